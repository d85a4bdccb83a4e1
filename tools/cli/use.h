/* What `jem` does with a trained model: sample, classify, eval, info, export. */
#ifndef CLI_USE_H
#define CLI_USE_H

#include "jem.h"
#include "tools/support/data.h"
#include "tools/support/options.h"

/* ---- models ---------------------------------------------------------------------------------- */

enum { NAME_SIZE = 64 };

typedef struct model {
    jem_ctx *ctx;
    jem_archive *archive;                          /* all that the file holds */
    jem_net *net;
    const char *path;
} model;

int model_fail(const char *command, const model *m);

ptrdiff_t image_size(const jem_net *net);

int model_open(model *m, const char *command, const char *path, int threads, int precision,
               int max_memory);

/* The file's; or its run's, for runs/NAME/last.safetensors. */
void model_name(const char *path, char name[NAME_SIZE]);

void model_close(model *m);

/* May what is made from one file (NULL: from none) be written to another? Not to the same, and to
   none that a run goes on from: what else they hold would be gone. 0 and a line on stderr if it may
   not. */
int may_write(const char *command, const char *from, const char *to);

/* A text out of a file, for the terminal: cut, and without what would command it. */
const char *clean(const char *text, char to[NAME_SIZE]);

/* The name of a class, as the data set had it; its number if the file does not say. */
const char *class_name(const jem_net *net, int label, char to[NAME_SIZE]);

/* Takes the options of one of these commands; the words are between `least` and `most`. Returns -1
   to go on, or what to exit with. A word too many is named: it is often a misspelt one. */
int read_options(options *o, int argc, char **argv, char **words, int *n_words, int least,
                 int most, const char *usage);

/* ---- jem sample ------------------------------------------------------------------------------ */

enum { SAMPLE_AT_ONCE = 128 };

int sample_command(int argc, char **argv);

/* ---- jem classify ---------------------------------------------------------------------------- */

int classify_command(int argc, char **argv);

/* ---- jem eval -------------------------------------------------------------------------------- */

typedef struct eval_options {
    char dataset[OPTION_TEXT_SIZE], data[OPTION_TEXT_SIZE];
    int split, n, threads, precision, max_memory, max_file, max_picture;
} eval_options;

/* A folder's images come class after class: mixed, so that the first n are of all classes. */
void mix_classes(data_set *d);

/* The images that the options name, the model's own if they name none, as the model takes them.
   0; or a line on stderr, and what to exit with. */
int data_for(const model *m, options *o, const eval_options *e, data_set *d);

int eval_command(int argc, char **argv);

/* ---- jem info, jem export -------------------------------------------------------------------- */

int begins(const char *text, const char *with);

int is_help(const char *word);

int info_command(int argc, char **argv);

/* What the run took from its machine is of no use on another. */
int export_command(int argc, char **argv);

#endif
