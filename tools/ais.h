/* Annealed importance sampling (Neal 2001): the Z of p(x) = exp(logp(x))/Z. Chains go from q =
   N(mean, std^2 I) to p through q^(1-b) p^b, and are weighed; the mean weight is Z, whatever the
   number of levels: more make it less noisy. For programs of one .c file that include jem.h. */
#ifndef TOOLS_AIS_H
#define TOOLS_AIS_H

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct ais_desc {
    int levels;                                    /* 500 */
    float mean, std;                               /* 0, 1: q, which should cover p */
    jem_mcmc_desc walk;                            /* at each level: 1 proposal of 5 steps of .1 */
} ais_desc;
typedef struct ais_result {
    double log_z, error;                           /* error: one standard deviation of log_z */
    double chains;                                 /* as many weights count; below 10: believe none
                                                      of it, and take more levels */
} ais_result;

static inline ais_desc ais_desc_default(void) {
    ais_desc d;
    memset(&d, 0, sizeof d);
    d.levels = 500, d.std = 1, d.walk = jem_mcmc_desc_default();
    d.walk.steps = 1, d.walk.leapfrog = 5;
    return d;
}

/* a log q + b log p, where q is normalised. */
typedef struct ais__bridge { jem_fn logp; void *user; float a, b, mean, std; } ais__bridge;

static inline jem_tensor *ais__between(jem_ctx *ctx, jem_tensor *x, void *user) {
    const ais__bridge *s = (const ais__bridge *)user;
    const double each = log((double)s->std * sqrt(6.283185307179586));
    jem_tensor *p = s->logp(ctx, x, s->user);
    jem_tensor *q = jem_sum_image(ctx, jem_square(ctx, jem_shift(ctx, x, -s->mean)));
    q = jem_scale(ctx, q, -0.5f / (s->std * s->std));
    q = jem_shift(ctx, q, (float)(-each * x->c * x->h * x->w));
    return jem_add(ctx, jem_scale(ctx, q, s->a), jem_scale(ctx, p, s->b));
}

/* The mean of exp(w[i]), in logarithms. */
static inline void ais__sum(const double *w, int n, ais_result *r) {
    double top = w[0], sum = 0, squares = 0;
    for (int i = 1; i < n; i++) top = w[i] > top ? w[i] : top;
    for (int i = 0; i < n; i++) {
        const double e = exp(w[i] - top);
        sum += e, squares = fma(e, e, squares);
    }
    r->log_z = top + log(sum / n), r->chains = sum * sum / squares;
    r->error = sqrt(fmax(1 / r->chains - 1.0 / n, 0));     /* relative error of the mean */
}

/* Every pixel of x N(mean, std^2); then from level to level, adding up log weights in w. */
static inline jem_status ais__walk(jem_ctx *ctx, ais__bridge *s, jem_tensor *x, const ais_desc *d,
                                   jem_rng *rng, double *w, float *f, float *at) {
    for (int i = 0; i < x->n; i++) f[i] = d->std;
    for (ptrdiff_t i = 0; i < (ptrdiff_t)x->n * x->c * x->h * x->w; i++) at[i] = d->mean;
    jem_write(x, at), jem_add_noise(x, f, rng);
    for (int k = 1; k <= d->levels && jem_ok(ctx); k++) {              /* b = (k/levels)^2 */
        const double to = (double)k / d->levels, from = (double)(k - 1) / d->levels;
        const double more = (to - from) * (to + from);
        const jem_mark mark = jem_begin(ctx);
        s->a = -1, s->b = 1;
        const jem_status told = jem_read(ais__between(ctx, x, s), f);
        for (int i = 0; told == JEM_OK && i < x->n; i++) w[i] = fma(more, (double)f[i], w[i]);
        jem_end(ctx, mark);
        if (told != JEM_OK) return jem_fail(ctx, told, "ais: the log-density failed");
        s->b = (float)(to * to), s->a = 1 - s->b;
        jem_mcmc(ctx, ais__between, s, x, &d->walk, rng, NULL);
    }
    return jem_error_status(ctx);
}

/* x is a leaf; what it holds does not matter. Then it holds the chains' ends. desc NULL: the
   default. On an error result stays as it is. */
static inline jem_status ais_run(jem_ctx *ctx, jem_fn logp, void *user, jem_tensor *x,
                                 const ais_desc *desc, jem_rng *rng, ais_result *result) {
    const ais_desc d = desc ? *desc : ais_desc_default();
    if (!ctx || !jem_ok(ctx)) return jem_error_status(ctx);
    if (!logp || !x || !rng || !result || d.levels < 1 || !(d.std > 0) || d.walk.temperatures != 1)
        return jem_fail(ctx, JEM_BAD_ARGUMENT, "ais: needs a log-density, a leaf x, an rng, a "
                        "place for the result, levels and std above 0, a walk of one temperature");
    const size_t n = (size_t)x->n, size = n * (size_t)x->c * (size_t)x->h * (size_t)x->w;
    ais__bridge s = { logp, user, 0, 0, d.mean, d.std };
    double *w = (double *)calloc(n, sizeof *w);
    float *f = (float *)calloc(n, sizeof *f), *at = (float *)calloc(size, sizeof *at);
    jem_status status = w && f && at ? JEM_OK : jem_fail(ctx, JEM_NO_MEMORY, "ais: out of memory");
    if (status == JEM_OK) status = ais__walk(ctx, &s, x, &d, rng, w, f, at);
    if (status == JEM_OK) ais__sum(w, x->n, result);
    free(w), free(f), free(at);
    return status;
}

#endif
