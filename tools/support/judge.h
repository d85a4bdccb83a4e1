/* A judge of samples: a small classifier with an additional class, 'none of these', trained on real
   images and on damaged ones (tools/cli/judge.c), independently of the model that it judges.
   Distributions are compared in the space of its last hidden layer. */
#ifndef SUPPORT_JUDGE_H
#define SUPPORT_JUDGE_H

#include "jem.h"

enum { JUDGE_CONVS = 4, JUDGE_FEATURES = 48, JUDGE_AT_ONCE = 128, JUDGE_KINDS = 12 };

/* Limits of judges; the functions that damage images need a minimum size. */
enum { JUDGE_SIDE_LEAST = 8, JUDGE_SIDE_MOST = 1024, JUDGE_CLASSES_MOST = 4095 };
/* Returns 1 if judges support such images. */
int judge_takes(int height, int width, int classes);

/* Creates a judge. classes: of the data, without the last one. Freed with jem_net_free. */
jem_net *judge_create(jem_ctx *ctx, int channels, int height, int width, int classes,
                      uint64_t seed);

/* Loads a judge; NULL with an error of the context. */
jem_net *judge_load(jem_ctx *ctx, const char *path);

/* Computes, for images x[n], logp[n][classes + 1], log p(class|x), and features[n][JUDGE_FEATURES]
   (either may be NULL). Clamps to [-1,1], the values of pictures. */
int judge_look(jem_net *judge, const float *x, int n, float *logp, float *features);

/* ---- other images: 'none of these' ----------------------------------------------------------- */

/* Damages two real images a and b to x; scratch[h * w]. One of JUDGE_KINDS kinds. */
void judge_damage(jem_rng *rng, int kind, const float *a, const float *b, int channels,
                  int h, int w, float *x, float *scratch);

#endif
