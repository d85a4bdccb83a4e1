/* Worlds in two dimensions: labelled points whose true density is known. Needs only jem.h and libm,
   so that the playground can use it in a browser. */
#ifndef EXAMPLES_POINTS_H
#define EXAMPLES_POINTS_H

#include <math.h>
#include <string.h>

#include "jem.h"

/* A world is a curve per class with Gaussian noise around it, N(curve(t), noise^2 I), t ~ U(0,1);
   its density is the mean of that over t. The checkerboard consists of uniformly filled squares. */

typedef enum world_kind {
    MOONS = 0, CIRCLES, GAUSSIANS, PINWHEEL, SPIRALS, CHECKERBOARD, RINGS, SWISS_ROLL, WORLDS
} world_kind;
#define WORLD_BOX 3.0f                             /* [-3,3] x [-3,3] has 99.9% of each */

typedef struct world { const char *name; int classes; float noise; } world;
static const world worlds[WORLDS] = {
    { "moons", 2, 0.15f }, { "circles", 2, 0.13f }, { "gaussians", 8, 0.2f },
    { "pinwheel", 5, 0.12f }, { "spirals", 2, 0.1f }, { "checkerboard", 2, 0 },
    { "rings", 4, 0.08f }, { "swiss", 3, 0.12f }
};

static inline void world__curve(world_kind kind, int y, float t, float at[2]) {
    const float pi = 3.14159265f;
    const float up = y ? -1.0f : 1.0f;
    float r = 0;
    float angle = 2 * pi * t;
    if (kind == MOONS) {
        at[0] = 1.3f * up * (cosf(pi * t) - 0.5f);
        at[1] = 1.3f * up * (sinf(pi * t) - 0.25f);
        return;
    }
    if (kind == CIRCLES) r = y ? 0.9f : 2.0f;
    if (kind == GAUSSIANS) {
        r = 1.9f;
        angle = pi / 4 * (float)y;
    }
    if (kind == RINGS) r = 0.55f * (float)(y + 1);
    if (kind == SPIRALS) {
        r = 2.2f * sqrtf(t) * up;
        angle = 3 * pi * sqrtf(t);
    }
    if (kind == SWISS_ROLL) {
        r = sqrtf(((float)y + t + 0.15f) / 3.15f);
        angle = 4 * pi * r;
        r *= 2.2f;
    }
    if (kind == PINWHEEL) {
        r = 0.7f + 1.5f * t;
        angle = 2 * pi / 5 * (float)y + 1.1f * r;
    }
    at[0] = r * cosf(angle);
    at[1] = r * sinf(angle);
}

/* Samples n points x[n][2] and their labels, classes in turn. */
static inline void world_sample(world_kind kind, jem_rng *rng, int n, float *x, int *y) {
    for (int i = 0; i < n; i++, x += 2) {
        y[i] = i % worlds[kind].classes;
        if (kind == CHECKERBOARD) {
            const int row = 2 * jem_rng_below(rng, 2) + y[i];
            const int column = jem_rng_below(rng, 2);
            x[0] = (float)(2 * column + row % 2 - 2) + jem_rng_uniform(rng);
            x[1] = (float)(row - 2) + jem_rng_uniform(rng);
            continue;
        }
        world__curve(kind, y[i], jem_rng_uniform(rng), x);
        x[0] += worlds[kind].noise * jem_rng_normal(rng);
        x[1] += worlds[kind].noise * jem_rng_normal(rng);
    }
}

/* Computes the true log p(x) at n points x[n][2]. */
static inline void world_truth(world_kind kind, int n, const float *x, float *logp) {
    enum { POINTS = 300 };                         /* per class; their spacing is below the noise */
    static float middle[8 * POINTS][2];
    const int classes = worlds[kind].classes;
    const int count = classes * (kind == GAUSSIANS ? 1 : POINTS);
    const float s2 = worlds[kind].noise * worlds[kind].noise;
    for (int k = 0; k < count; k++)
        world__curve(kind, k % classes, ((float)(k / classes) + 0.5f) / POINTS, middle[k]);
    for (int i = 0; i < n; i++, x += 2) {
        double sum = 0;
        logp[i] = -30;                             /* far from all data */
        if (kind == CHECKERBOARD) {
            const int row = (int)floorf(x[1]);
            const int column = (int)floorf(x[0]);
            const int inside = fabsf(x[0]) < 2 && fabsf(x[1]) < 2 && (row + column) % 2 == 0;
            if (inside) logp[i] = logf(1.0f / 8);
            continue;
        }
        for (int k = 0; k < count; k++) {
            const float dx = x[0] - middle[k][0];
            const float dy = x[1] - middle[k][1];
            const float e = (dx * dx + dy * dy) / (2 * s2);
            if (e < 30) sum += (double)expf(-e);
        }
        if (sum > 0) logp[i] = (float)log(sum / (count * 6.283185307 * (double)s2));
    }
}

#endif
