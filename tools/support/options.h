/* Command-line options as a table: it parses, checks, fills in defaults, and prints the help. A
   value keeps its text besides, so that a checkpoint can store it and give it back unchanged. */
#ifndef SUPPORT_OPTIONS_H
#define SUPPORT_OPTIONS_H

#include <stdio.h>

/* ---- the terminal ---------------------------------------------------------------------------- */

/* Names of files, and their contents, must not control it (see jem_mask_controls). With lines = 0,
   a newline remains only at the end. */
void harmless(char *text, int lines);
/* fprintf, by which all of this program's text goes. */
#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
int speak(FILE *to, const char *format, ...);
#define printf(...) speak(stdout, __VA_ARGS__)
#ifndef fprintf                                    /* a test may have its own */
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

enum { OPTION_TEXT_SIZE = 256, OPTION_LIST_SIZE = 8, OPTIONS_MAX = 96 };

typedef struct option_list { int n, at[OPTION_LIST_SIZE]; } option_list;

typedef enum option_life {
    OPTION_FIXED = 0,                              /* stored; the same for all of a resumed run */
    OPTION_FREE,                                   /* stored; may be changed when resuming */
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
    const char *command;                           /* "jem train" */
    const option *table;
    int count;
    void *values;                                  /* the caller's struct */
    char text[OPTIONS_MAX][OPTION_TEXT_SIZE];
    unsigned char given[OPTIONS_MAX];              /* on the command line */
} options;

int option_find(const options *o, const char *name);

/* Sets a value from its text; 0 and a line on stderr if it is not one. */
int option_set(options *o, int i, const char *text);

/* The value of option i, spelled in one way. */
void option_spell(const options *o, int i, char to[OPTION_TEXT_SIZE]);

/* Fills in what was not given. */
int option_default(options *o, int i, const char *text);
int options_defaults(options *o, int preset);

/* Takes options out of argv[first..]; what remains is moved to `words`. Underscores do for dashes,
   and what follows a lone -- is no option, whatever it looks like. 0 and a line on stderr if one is
   unknown or has no good value; -1 if help was asked for. */
int options_parse(options *o, int argc, char **argv, int first, char **words, int *n_words);

/* A line for each option: its defaults and what it does. presets: how many columns of defaults. */
void options_print(const options *o, int presets);

#endif
