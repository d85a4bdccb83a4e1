/* Commands of `jem` for trained models: sample, eval, info, export; what the others share. */
#ifndef CLI_USE_H
#define CLI_USE_H

#include <stdio.h>

#include "jem.h"
#include "tools/support/data.h"
#include "tools/support/options.h"

/* ---- models ---------------------------------------------------------------------------------- */

enum { NAME_SIZE = 64 };

typedef struct model {
    jem_ctx *ctx;
    jem_archive *archive;                          /* all contents of the file */
    jem_net *net;
    const char *path;
} model;

/* Prints the error of a context, or lack of memory if it has none, and a hint; returns 0. */
int context_fail(const char *command, const jem_ctx *ctx);
/* Prints the error of a model's context; returns 0. */
int model_fail(const char *command, const model *m);

/* Returns channels * height * width. */
ptrdiff_t image_size(const jem_net *net);

/* Opens a model; returns 0 and prints the reason if it cannot. Close it with model_close in any
   case. */
int model_open(model *m, const char *command, const char *path, int threads, int precision,
               int max_memory);

/* Names the model that exists, if the path is the folder of a run, or a file of it that is not
   there. Returns 1 if it did. */
int name_model_of_run(const char *command, const char *path);

/* Checks that a path is no folder without the files of a run. Returns 0 and prints the reason if it
   is. */
int may_be_run(const char *command, const char *path);

/* Writes a short name of the model: of its file; for runs/NAME/last.safetensors, of its run. */
void model_name(const char *path, char name[NAME_SIZE]);

void model_close(model *m);

/* Checks that the output made from one file (NULL: from no file) can be written to another:
   neither to the same file, nor over a run. Returns 0 and prints the reason if it cannot. */
int may_write(const char *command, const char *from, const char *to);
/* The same for a picture, a page or a table, which must not replace any model. */
int may_write_other(const char *command, const char *from, const char *to);
/* Returns 1 if a path names a device, such as /dev/stdout. */
int names_device(const char *path);
/* Checks the name of a table, made from files words[n]: "", a device, or one that ends in .csv (any
   other may be that of a picture) and may be written. Returns 0 and prints the reason. */
int is_table_name(const char *command, const char *out, int n, char **words);
/* Checks, before long work, that a file can be created; creates its missing folders. Returns 0 and
   prints the reason if it cannot. */
int can_create(const char *command, const char *path);
/* Checks that the picture of an option has a PNG name; "", a device and a folder, which can_create
   refuses, pass. Returns 0 and prints the remedy if it does not. */
int is_picture_name(const char *command, const char *name, const char *path);
/* Checks the name of a page in the same way. */
int is_page_name(const char *command, const char *path);
/* Returns 1 if two paths name the same file, which need not exist yet. */
int is_same_file(const char *a, const char *b);
/* Returns 1 if a path, which need not exist yet, is a folder or in it. */
int is_within(const char *path, const char *folder);
/* Returns 1 if no two of n outputs are the same file; otherwise prints which. "" is not written. */
int outputs_differ(const char *command, const char *const *out, int n);

/* Copies a text of a file for the terminal: shortened, without control characters. */
const char *clean(const char *text, char to[NAME_SIZE]);

/* Cuts a text in UTF-8 to `width` characters, or pads it with spaces. Returns `to`. */
const char *fitted(const char *text, int width, char to[4 * NAME_SIZE]);

/* Returns the name of a class in the data set; its number if the file has no names. */
const char *class_name(const jem_net *net, int label, char to[NAME_SIZE]);
/* Returns the class of this name, or -1. */
int class_named(const jem_net *net, const char *text);

/* Formats an answer as values of a CSV file, whose names answer_columns returns; a NULL: the
   verdict alone. Familiarity is rounded down, so that .01 is not strange; below .001, to two
   digits. */
enum { QUOTED_SIZE = 2 * NAME_SIZE + 3, ANSWER_SIZE = QUOTED_SIZE + 120 };
void format_answer(char text[ANSWER_SIZE], const jem_net *net, const jem_answer *a,
                   const char *verdict);
const char *answer_columns(const jem_net *net);

/* Returns the count of rows or images that calibrated a model; 0: unknown. */
int rows_calibrated(const model *m);

/* Prints how many of n rows, or pictures, are familiar, odd, strange and not judged. */
void print_verdicts(FILE *to, int n, const char *what, const int counts[JEM_VERDICT_STRANGE + 1]);

/* Sets an option that was not given to its value in training, if the file has it; or to
   `otherwise`, if there is one (NULL: there is not). */
int as_in_training(options *o, const jem_archive *a, const char *name, const char *otherwise);

/* Lets a data set print a message of the command about each damaged picture or row. */
void name_unreadable(data_desc *desc, const char *command);

/* Reports rows of a table that cannot be read, or what a folder has besides pictures of classes. */
void note_unread(FILE *to, const char *prefix, const char *name, const data_set *d);

/* Parses the options of one of these commands; checks that it has `least` to `most` words. Returns
   -1 to continue, or the exit status; `words` points into argv. Names the first extra word: it is
   often a misspelt option. */
int read_options(options *o, int argc, char **argv, char ***words, int *n_words, int least,
                 int most, const char *usage);

/* ---- jem sample ------------------------------------------------------------------------------ */

enum { SAMPLE_AT_ONCE = 128 };

int sample_command(int argc, char **argv);

/* Returns 1 if the model was trained with chains, or if that is unknown. */
int had_chains(const jem_archive *a);

/* ---- jem eval -------------------------------------------------------------------------------- */

typedef struct eval_options {
    char dataset[OPTION_TEXT_SIZE], data[OPTION_TEXT_SIZE], label[OPTION_TEXT_SIZE];
    int split, n, mirror, skip_rows, threads, precision, max_memory, max_file, max_picture;
} eval_options;

/* Shuffles the images of a data set, with their labels; the seed determines the order. */
void shuffle_images(data_set *d, int seed);
/* Shuffles the images of a folder, which are sorted by class, so that the first n are of all
   classes. */
void mix_classes(data_set *d);

/* Returns 1 if the networks of two files differ in depth and widths only; a text that a file lacks
   counts as 0. */
int same_but_for_size(const jem_archive *a, const jem_archive *b);
/* Removes calibration and temperature: those of other weights would find all images strange. */
void forget_calibration(jem_net *net);

/* Returns the treatment of other proportions by --size in training. */
data_shape shape_in_training(const jem_archive *a);
/* Describes transparent pictures, and those of other proportions, as in the model's training. */
void describe_look(const model *m, data_desc *desc);

/* Loads the images that the options name, or those of the model, in the network's format. Returns
   0, or prints the reason and returns the exit status. */
int data_for(const model *m, options *o, const eval_options *e, data_set *d);
/* Notes that images of the training are measured, too. */
void note_learned(const model *m, const eval_options *e, const data_set *d);

int eval_command(int argc, char **argv);

/* ---- jem info, jem export -------------------------------------------------------------------- */

/* Returns 1 if a text begins with another. */
int begins(const char *text, const char *with);

/* Returns 1 for --help and -h. */
int is_help(const char *word);

int info_command(int argc, char **argv);

/* Copies a network to a file, without the options that depend on this machine. */
int export_command(int argc, char **argv);

#endif
