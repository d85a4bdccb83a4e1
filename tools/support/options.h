/* Command-line options as a table: parses, checks, fills in defaults, and prints the help. Values
   keep their text, so that a checkpoint can store and restore it unchanged. */
#ifndef SUPPORT_OPTIONS_H
#define SUPPORT_OPTIONS_H

#include <stdio.h>

/* ---- the terminal ---------------------------------------------------------------------------- */

/* Masks control characters in names and contents of files (see jem_mask_controls). With lines = 0,
   a newline remains only at the end. */
void harmless(char *text, int lines);
/* Prints like fprintf, without control characters in names and contents; files, and rows for
   standard output, are written otherwise. */
#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
int speak(FILE *to, const char *format, ...);
#define printf(...) speak(stdout, __VA_ARGS__)
#ifndef fprintf                                    /* tests may define their own */
#define fprintf speak
#endif

typedef enum option_kind {
    OPTION_TITLE = 0,                              /* of a group, in the help */
    OPTION_FLAG,                                   /* int: --flip, --no-flip */
    OPTION_INT, OPTION_FLOAT,
    OPTION_CHOICE,                                 /* int: index of a word of `hint` */
    OPTION_LIST,                                   /* option_list */
    OPTION_TEXT                                    /* char[OPTION_TEXT_SIZE] */
} option_kind;

enum { OPTION_TEXT_SIZE = 256, OPTION_LIST_SIZE = 8, OPTIONS_MAX = 128 };

typedef struct option_list { int n, at[OPTION_LIST_SIZE]; } option_list;

typedef enum option_life {
    OPTION_FIXED = 0,                              /* stored; constant during a resumed run */
    OPTION_FREE,                                   /* stored; may change when resuming */
    OPTION_NOW                                     /* for this command only */
} option_life;

typedef struct option {
    const char *name;                              /* without the two dashes; or a title */
    option_kind kind;
    option_life life;
    size_t at;                                     /* offset of the value in the caller's struct */
    const char *hint;                              /* "N", "FILE"; OPTION_CHOICE: "adam|sgd" */
    const char *value[2];                          /* the defaults of two presets */
    double lo, hi;                                 /* of numbers */
    const char *help;
} option;

typedef struct options {
    const char *command;                           /* such as "jem train" */
    const option *table;
    int count;
    void *values;                                  /* the caller's struct */
    char text[OPTIONS_MAX][OPTION_TEXT_SIZE];
    unsigned char given[OPTIONS_MAX];              /* given on the command line */
} options;

/* Empties o, for a command with this table, of a size in bytes, and the struct of its values.
   Returns o. */
options *options_begin(options *o, const char *command, const option *table, size_t bytes,
                       void *values);

int option_find(const options *o, const char *name);
/* Returns 1 if the command has an option, and it was given. */
int option_given(const options *o, const char *name);
/* Marks an option as given. */
void option_mark(options *o, const char *name);

/* Sets a value from its text; returns 0 and prints the reason if it is invalid. */
int option_set(options *o, int i, const char *text);

/* Writes the value of option i in its normal form to `to`. */
void option_spell(const options *o, int i, char to[OPTION_TEXT_SIZE]);

/* Fills in options that were not given. */
int option_default(options *o, int i, const char *text);
int options_defaults(options *o, int preset);

/* Removes options from argv[first..]: the n_words others move there. Underscores equal dashes;
   arguments after a lone -- are not options. Returns 0 and prints the reason if an option is
   unknown or has an invalid value; -1 if help is requested. */
int options_parse(options *o, int argc, char **argv, int first, int *n_words);

/* If used is 0, refuses each given option of the list `names`, which NULL ends, unless its value
   turns something off (off, 0, -1) or repeats a default. Returns 0 and prints
   "COMMAND: --NAME REASON". */
int options_used(const options *o, int used, const char *reason, const char *const *names);

/* Prints a line for each option: its defaults and its purpose. presets: the number of columns of
   defaults. Options of the list `omitted`, which NULL ends, are not printed; it may be NULL. */
void options_print(const options *o, int presets, const char *const *omitted);

#endif
