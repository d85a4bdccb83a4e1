/* Further attacks: on a classifier that refines its images by SGLD first, with true gradients; and
   by labels only. */
#ifndef SUPPORT_ROBUST_H
#define SUPPORT_ROBUST_H

#include "jem.h"

int robust_best(const float *f, int classes);

/* ---- a classifier that refines first --------------------------------------------------------- */

/* A classifier that refines first: log p(y|x) = log mean over chains of p(y|x_n), x_n from x by n
   steps of SGLD on log p(x): the defence of Grathwohl et al. (2020), section 5.4. `through`:
   gradients go back through the steps,

       d log p(y|x_n)/dx = (I + a H(x_0)) ... (I + a H(x_n-1)) d log p(y|x_n)/dx_n,

   a the step size, H the Hessian of log p, with H v as a difference of two gradients; and are the
   expectation over the chains (Athalye et al. 2018). Otherwise the steps count as the identity. */
typedef struct refined {
    jem_net *net;
    jem_sgld_desc walk;
    int chains, through;
    jem_rng rng;
    float *path, *slope, *logp, *work;             /* x_0..x_n; a chain's gradients; log p(y|x) */
} refined;

enum { REFINED_MOST = 128 };

void refined_free(refined *r);

/* Returns the memory of its arrays. */
double refined_bytes(const jem_net *net, int steps, int chains);

/* Creates one for up to REFINED_MOST images at once; returns 0 without memory. */
int refined_create(refined *r, jem_net *net, jem_sgld_desc walk, int chains, int through,
                   uint64_t seed);

/* Classifies, as jem_attack_desc's classify; user: a refined *. For the log-odds of the mean p of C
   chains, since d log p/(1 - p) = dp / (p (1 - p)), the gradient is
   1/C sum p_c (1 - p_c) d_c / (p (1 - p)). */
jem_status refined_classify(void *user, const float *x, const int *labels, int n, float *f,
                            float *g);

/* ---- labels only ----------------------------------------------------------------------------- */

/* Finds, for each of n correctly classified images, found[n]: the nearest one with another label
   within `queries` queries, far: its L2 distance. The search begins at the next image in order that
   has another label; an image is omitted if that one is classified like it. Returns the number of
   the others, which is the size of `far`; -1: an error, or no memory. */
int robust_decision(jem_net *net, const jem_attack_desc *how, const float *x,
                    const int *labels, int n, int queries, uint64_t seed, float *found,
                    float *far);

#endif
