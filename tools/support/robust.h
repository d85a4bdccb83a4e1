/* More ways to attack: a classifier that refines its images by SGLD before it looks, with honest
   gradients; an attack that sees labels only. */
#ifndef SUPPORT_ROBUST_H
#define SUPPORT_ROBUST_H

#include "jem.h"

int robust_best(const float *f, int classes);

/* ---- a classifier that refines first --------------------------------------------------------- */

/* log p(y|x) = log mean over chains of p(y|x_n), x_n from x by n steps of SGLD on log p(x): the
   defence of Grathwohl et al. (2020), section 5.4. `through`: gradients go back through the steps,

       d log p(y|x_n)/dx = (I + a H(x_0)) ... (I + a H(x_n-1)) d log p(y|x_n)/dx_n,

   a the step size, H the second derivative of log p, of which H v is a difference of two first
   ones; and are the expectation over the chains (Athalye et al. 2018). Otherwise the steps count
   as if they did nothing. */
typedef struct refined {
    jem_net *net;
    jem_sgld_desc walk;
    int chains, through;
    jem_rng rng;
    float *path, *slope, *logp, *work;             /* x_0..x_n; a chain's gradients; log p(y|x) */
} refined;

enum { REFINED_MOST = 128 };

void refined_free(refined *r);

/* What its arrays take. */
double refined_bytes(const jem_net *net, int steps, int chains);

/* For up to REFINED_MOST images at once; 0: no memory. */
int refined_create(refined *r, jem_net *net, jem_sgld_desc walk, int chains, int through,
                   uint64_t seed);

/* As jem_attack_desc's classify; user: a refined *. Of the log-odds of the mean p of C chains, since
   d log p/(1 - p) = dp / (p (1 - p)), the gradient is 1/C sum p_c (1 - p_c) d_c / (p (1 - p)). */
jem_status refined_classify(void *user, const float *x, const int *labels, int n, float *f,
                            float *g);

/* ---- labels only ----------------------------------------------------------------------------- */

/* For each of n images that is right to begin with, found[n]: the nearest one with another label
   that `queries` questions lead to, far: its L2 distance. Not for one whose next neighbour of
   another label is taken for its own. Returns how many that leaves: `far` has as many; -1: an
   error, or no memory. */
int robust_decision(jem_net *net, const jem_attack_desc *how, const float *x,
                    const int *labels, int n, int queries, uint64_t seed, float *found,
                    float *far);

#endif
