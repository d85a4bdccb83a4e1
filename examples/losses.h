/* Losses for lessons that learn a density without chains, in a few lines each: implicit and sliced
   score matching, noise-contrastive estimation. They take any log-density f of the plane and up to
   LOSS_MOST points x[n][2]; each returns one number for jem_backward. */
#ifndef EXAMPLES_LOSSES_H
#define EXAMPLES_LOSSES_H

#include <math.h>
#include <string.h>

#include "jem.h"

enum { LOSS_MOST = 1024 };

/* Returns mean v'Hv + (v'g)^2 / 2, with gradient g and Hessian H of f, from three ordinary passes:
   at x and at x +- h v (as do Pang & others 2020). The rounding of f, 1e-6, is divided by h^2. */
static inline jem_tensor *loss__along(jem_ctx *ctx, jem_logp_fn f, void *user, int n,
                                      const float *x, const float *v, float h) {
    float to[2 * LOSS_MOST];
    jem_tensor *y[3];
    for (int k = 0; k < 3; k++) {
        for (int i = 0; i < 2 * n; i++) to[i] = fmaf((float)(k - 1) * h, v[i], x[i]);
        y[k] = f(ctx, jem_input(ctx, to, n, 2, 1, 1), user);
    }
    jem_tensor *slope = jem_scale(ctx, jem_sub(ctx, y[2], y[0]), 0.5f / h);
    jem_tensor *twice = jem_scale(ctx, y[1], 2);
    jem_tensor *bend = jem_sub(ctx, jem_add(ctx, y[2], y[0]), twice);
    jem_tensor *half = jem_scale(ctx, jem_square(ctx, slope), 0.5f);
    return jem_mean(ctx, jem_add(ctx, jem_scale(ctx, bend, 1 / (h * h)), half));
}

/* Score matching minimises E |grad f - grad log p|^2 / 2; integration by parts removes p, up to a
   constant:

       L = E[ sum_k d2f/dx_k^2 + (df/dx_k)^2 / 2 ]                 implicit (Hyvarinen 2005)
         = E[ v'Hv + (v'g)^2 / 2 ],  v ~ N(0,I)                    sliced (Song & others 2019)

   Without rng, computes the first, along both axes; with rng, the second, along one random
   direction per point. */
static inline jem_tensor *loss_score(jem_ctx *ctx, jem_logp_fn f, void *user, int n, const float *x,
                                     float h, jem_rng *rng) {
    float v[2 * LOSS_MOST];
    if (n > LOSS_MOST) {
        jem_fail(ctx, JEM_BAD_ARGUMENT, "loss_score: too many points");
        return NULL;
    }
    jem_tensor *axis[2];
    if (rng) {
        jem_fill_normal(ctx, rng, v, 2 * n, 0, 1);
        return loss__along(ctx, f, user, n, x, v, h);
    }
    for (int k = 0; k < 2; k++) {
        for (int i = 0; i < 2 * n; i++) v[i] = (float)(i % 2 == k);
        axis[k] = loss__along(ctx, f, user, n, x, v, h);
    }
    return jem_add(ctx, axis[0], axis[1]);
}

/* Noise-contrastive estimation (Gutmann & Hyvarinen 2010): distinguishes data from as many points
   of a known density q, here uniform in [-box, box]^2, by g = f - log Z - log q:

       L = mean log(1 + exp(-g(data))) + mean log(1 + exp(g(noise)))

   log Z is learned like any weight: the layer log_z adds its bias, -log Z; its weight is fixed at
   1, in a buffer. */
static inline jem_tensor *loss_nce(jem_ctx *ctx, jem_logp_fn f, void *user, const jem_layer *log_z,
                                   int n, const float *x, float box, jem_rng *rng) {
    float noise[2 * LOSS_MOST];
    const float log_q = -2 * logf(2 * box);
    jem_tensor *loss[2];
    if (n > LOSS_MOST) {
        jem_fail(ctx, JEM_BAD_ARGUMENT, "loss_nce: too many points");
        return NULL;
    }
    jem_fill_uniform(ctx, rng, noise, 2 * n, -box, box);
    for (int k = 0; k < 2; k++) {
        jem_tensor *g = f(ctx, jem_input(ctx, k ? noise : x, n, 2, 1, 1), user);
        g = jem_add_constant(ctx, jem_apply(log_z, g, 1), -log_q);
        loss[k] = jem_mean(ctx, jem_softplus(ctx, jem_scale(ctx, g, k ? 1.0f : -1.0f)));
    }
    return jem_add(ctx, loss[0], loss[1]);
}

/* Creates the layer that subtracts log Z, initially 0, with its parameters in a net. */
static inline jem_layer loss_log_z(jem_net *net) {
    const int shape[2] = { 1, 1 };
    jem_layer l;
    memset(&l, 0, sizeof l);
    l.kind = JEM_LAYER_LINEAR;
    l.weight = jem_net_param(net, "log_z.one", 2, shape, 0);
    l.bias = jem_net_param(net, "log_z.minus", 1, shape, 1);
    if (l.weight) {
        l.weight->value[0] = 1;
        jem_param_changed(l.weight);
    }
    return l;
}

#endif
