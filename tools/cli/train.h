/* `jem train`: a training run that can be interrupted, and goes on to the bit (after a
   retry, not always to those of an uninterrupted one).

   All random choices of the data (order, shifts, flips) are functions of the seed and the number of
   the update, so nothing of them needs saving; the trainer's own state goes into the checkpoint.
   A run lives in a folder:

       last.safetensors      the checkpoint: network, optimiser, replay buffer, options
       best.safetensors      the network alone, when its loss on the validation images was lowest;
                             of losses that do not differ by more than chance, the latest
       log.csv               a row per report       curves.png       the same, drawn
       samples_000704.png    chains of the replay buffer after so many updates; before there are
                             any, what score matching has learned, from noise */
#ifndef CLI_TRAIN_H
#define CLI_TRAIN_H

#include "jem.h"
#include "tools/support/data.h"

/* ---- the run --------------------------------------------------------------------------------- */

/* The processes that make this run together (examples/mpi.c). All compute; rank 0 writes. */
typedef struct run_team { int rank, ranks; jem_sum_fn sum; void *user; } run_team;
extern run_team team;

enum {
    STATE_SUMS = 6, STATE_BEST = STATE_SUMS, STATE_GAP, STATE_RETRIES, STATE_COUNT, STATE_LR,
    STATE_STEP, STATE_CE, STATE_LEAST, STATE_NORM, STATE_DULL, STATE_LOW, STATE_TOP, STATE_RIGHT,
    STATE_LOWEST, STATE_BEST_AT, STATES
};

double now(void);

/* mkdir -p */
int make_folder(const char *path);

/* ---- data ------------------------------------------------------------------------------------ */

void shuffle(int *a, int n, jem_rng *rng);

/* Image i of the data moved by (dy,dx), beyond the border reflected, and mirrored. */
void move_image(const float *from, float *to, int c, int h, int w, int dy, int dx, int mirror);

/* What images and their labels say about a network. */
typedef struct evaluation {
    double accuracy, nll;                          /* nll: mean of -log p(y|x) */
    double error;                                  /* standard error of that mean */
    double logp;                                   /* mean of log p(x), or 0 */
} evaluation;

/* Evaluates images which[0..n-1] (NULL: the first n). */
int evaluate(jem_net *net, const data_set *s, const int *which, int n, int wants_logp,
             evaluation *e);

/* ---- checkpoints ----------------------------------------------------------------------------- */

#define OPTION_PREFIX "train."
#define CLASS_PREFIX "class."                      /* class.7: its name */

/* ---- reports --------------------------------------------------------------------------------- */

/* Draws a log.csv. */
int draw_log(const char *log, const char *png);

void time_text(char text[32], double seconds);

/* ---- the command ----------------------------------------------------------------------------- */

int train_command(int argc, char **argv);

#endif
