/* What a JEM is for, measured: `jem eval MODEL calibration|ood|attack|impute|samples`, each a table
   and a picture; --beside OTHER puts another model's numbers next to it, a plain classifier's say.
   In what is printed, a line that begins with two blanks is a row of a table, whose cells are two
   blanks or more apart: report.c makes tables of a page out of it. */
#ifndef CLI_EVAL_H
#define CLI_EVAL_H

#include "tools/cli/use.h"

typedef struct uses_options {
    eval_options e;                                /* first: data_for reads it */
    char out[OPTION_TEXT_SIZE], beside[OPTION_TEXT_SIZE], save[OPTION_TEXT_SIZE];
    char other[OPTION_TEXT_SIZE], eps[OPTION_TEXT_SIZE];
    char smallest[OPTION_TEXT_SIZE];
    int bins, measure, gradients, norm, steps, restarts, hide, seed, refine, chains, through;
    int queries, noise_steps;
    float share, noise_step, noise_beta;
} uses_options;

typedef struct uses {                              /* a model, what it is asked about, where to */
    model m;
    options *o;
    const uses_options *u;
    char name[NAME_SIZE];                          /* in tables */
    data_set test;
    int n;
    float *x;                                      /* [n]: test images */
    const int *labels;
} uses;

float *uses_floats(ptrdiff_t n);
int uses_no_memory(void);

/* May both look at the same images? */
int uses_alike(const uses *s, const uses *beside);

/* ---- ood ------------------------------------------------------------------------------------- */

/* The next name of a list separated by commas or blanks, which is moved on; 0: none left. */
int next_name(const char **list, char *name, size_t size);

/* ---- the command ----------------------------------------------------------------------------- */

int uses_command(int argc, char **argv);

#endif
