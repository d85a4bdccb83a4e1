/* Measurements of a JEM: `jem eval MODEL calibration|ood|attack|impute|noise|samples`, each with a
   table and a picture; --beside OTHER adds the results of another model, for example a plain
   classifier.
   A printed line that begins with two blanks is a row of a table, whose cells are separated by two
   blanks or more: report.c converts it to a table of a page. */
#ifndef CLI_EVAL_H
#define CLI_EVAL_H

#include "tools/cli/use.h"
#include "tools/support/chart.h"

typedef struct uses_options {
    eval_options e;                                /* first: data_for reads it */
    char out[OPTION_TEXT_SIZE], beside[OPTION_TEXT_SIZE], save[OPTION_TEXT_SIZE];
    char other[OPTION_TEXT_SIZE], eps[OPTION_TEXT_SIZE];
    char smallest[OPTION_TEXT_SIZE], scores[OPTION_TEXT_SIZE], keep[OPTION_TEXT_SIZE];
    int bins, measure, gradients, calibrate, norm, steps, restarts, hide, seed, refine, chains;
    int through, queries, noise_steps, fresh_steps, walk_steps;
    float share, noise_step, noise_beta, fraction, last_sigma, guidance;
} uses_options;

typedef struct uses {                              /* a model, its options, its output */
    model m;
    options *o;
    const uses_options *u;
    char name[NAME_SIZE];                          /* in tables */
    data_set test;
    int n;
    float *x;                                      /* [n]: test images */
    const int *labels;
} uses;

/* Allocates n numbers; NULL beyond the limit of memory. */
float *uses_floats(ptrdiff_t n);
/* Returns what its images are: "test images", or those of another --split. */
const char *uses_images(const uses *s);
/* Reports the lack of memory; returns the exit status. */
int uses_no_memory(void);

/* Returns the data set that a set of images is drawn from: the sheet of digits is from MNIST. */
const char *drawn_from(const char *set);

/* Checks that both models can use the same images. */
int uses_alike(const uses *s, const uses *beside);

/* ---- pictures -------------------------------------------------------------------------------- */

/* Colours of the first USES_CURVES curves. */
enum { USES_CURVES = 8 };
extern const unsigned uses_colours[USES_CURVES];
/* Returns a panel over the whole width of the picture, between these heights. */
panel uses_panel(const char *title, const char *x_name, float top, float bottom,
                 const curve *curves, int n);
/* Draws n panels, the last one at the bottom, and prints the picture's path; returns the exit
   status. */
int uses_draw(const char *path, const panel *panels, int n);

/* ---- lists ----------------------------------------------------------------------------------- */

/* Letters between the names of a list, but for columns: see next_name. */
#define LIST_MARKS ", "

/* ---- the command ----------------------------------------------------------------------------- */

int uses_command(int argc, char **argv);

#endif
