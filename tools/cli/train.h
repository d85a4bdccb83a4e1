/* `jem train`: a training run that can be interrupted, and resumes bit for bit.

   All random choices of the data (order, shifts, flips) are functions of the seed and the update
   number, so they need not be saved; the checkpoint contains the state of the trainer.
   A run has a directory:

       last.safetensors      the checkpoint: network, optimiser, replay buffer, options
       best.safetensors      the network alone, at its lowest loss on the validation images; of
                             losses that do not differ significantly, the latest
       log.csv               a row per report       curves.png       the same, drawn: of it, what
                                                                     this run learns
       samples.png           the latest chains of the replay buffer; before there are chains,
                             samples from noise by the learned score
       samples_film.png      all of them, an animated PNG with a frame per report of samples */
#ifndef CLI_TRAIN_H
#define CLI_TRAIN_H

#include "jem.h"
#include "tools/support/data.h"

/* ---- the run --------------------------------------------------------------------------------- */

/* The processes of this run (examples/mpi.c). All compute; rank 0 writes. */
typedef struct run_team { int rank, ranks; jem_sum_fn sum; void *user; } run_team;
extern run_team team;

/* Places of run.state, which checkpoints keep: first the sums over updates since the last complete
   row of the log. The seven after STATE_STEP are of older versions, whose guard was here. */
enum {
    STATE_CE, STATE_ACCURACY, STATE_F_DATA, STATE_F_SAMPLE, STATE_GRAD_NORM, STATE_LOSS,
    STATE_SUMS, STATE_BEST = STATE_SUMS, STATE_GAP, STATE_RETRIES, STATE_COUNT, STATE_LR,
    STATE_STEP, STATE_LOWEST = STATE_STEP + 8, STATE_BEST_AT, STATE_NCE,
    STATE_LEAST_CE, STATE_LEAST_CE_AT, STATE_SCORE, STATES
};

/* Returns seconds of a clock that never goes back. */
double now(void);

/* ---- data ------------------------------------------------------------------------------------ */

/* Returns the smaller of two numbers. */
int smaller(int a, int b);
/* Returns the mean over pixels of (sigma d log p/dx + z)^2 for n images x, each with noise sigma z,
   z ~ N(0,1): 1 for a constant log p(x); infinity if it is not finite. Advances rng. Other errors
   remain in the context. */
double batch_residual(jem_net *net, const float *x, int n, const float *sigma, jem_rng *rng);
/* A residual of the score above which log p(x) has a wall; a constant log p(x) has 1. */
#define SCORE_WALL 1.1

/* Shuffles a[0..n-1]. */
void shuffle(int *a, int n, jem_rng *rng);

/* Fills order[d->n] with the images in a random order, in which training takes those for validation
   first: rows of a table by the seed; images always in the same order. If names decide which images
   are for testing, hashes of the pixels order the others, so that images that are added later move
   few others between training and validation; with rare_last, classes of fewer than 5 images come
   last (in runs whose files have the text RARE_LAST). Returns 0 without memory. */
#define RARE_LAST "run.rare_last"
int order_images(const data_set *d, int seed, int rare_last, int *order);

/* Identifies a data set by its size and its checksum, in `mark`. */
enum { DATA_MARK = 64 };
void mark_data(const data_set *s, char mark[DATA_MARK]);

/* Copies image i of the data moved by (dy,dx), reflected beyond the border, and mirrored. */
void move_image(const float *from, float *to, int c, int h, int w, int dy, int dx, int mirror);

/* Statistics of a network on labelled images. */
typedef struct evaluation {
    double accuracy, nll;                          /* nll: mean of -log p(y|x) */
    double error;                                  /* standard error of that mean */
    double logp;                                   /* mean of log p(x), or 0 */
    double logp_error;                             /* standard error of that mean, or 0 */
} evaluation;

/* Measured only on request: log p(x); classes by the mean of the logits of an image and of its
   mirror image. */
enum { EVALUATE_LOGP = 1, EVALUATE_MIRRORED = 2 };

/* Evaluates images which[0..n-1] (NULL: the first n). requests: EVALUATE_LOGP + EVALUATE_MIRRORED,
   or 0. Returns 0 and leaves an error in the context if it fails. */
int evaluate(jem_net *net, const data_set *s, const int *which, int n, int requests,
             evaluation *e);

/* ---- checkpoints ----------------------------------------------------------------------------- */

#define OPTION_PREFIX "train."
#define CLASS_PREFIX "class."                      /* class.7: its name */
#define COLUMN_PREFIX "column."                    /* column.0: its name, in a table */
#define LABEL_COLUMN COLUMN_PREFIX "label"         /* the name of that of labels */

/* ---- reports --------------------------------------------------------------------------------- */

/* Draws the curves of a log.csv. */
int draw_log(const char *log, const char *png);

/* Writes a duration as text. */
void time_text(char text[32], double seconds);

/* ---- the command ----------------------------------------------------------------------------- */

int train_command(int argc, char **argv);

#endif
