/* Measures log p(x), its slope and the classes of noisy images. */
#include "tools/cli/system.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/cli/noise.h"
#include "tools/cli/train.h"
#include "tools/support/chart.h"

enum { LEVELS = 19, NOISE_BATCH = 64 };
static const float noise_levels[LEVELS] = {
    0, .01f, .015f, .02f, .03f, .04f, .05f, .06f, .08f, .1f, .12f, .15f, .2f, .3f, .5f, .7f, 1,
    1.5f, 2
};

typedef struct noise_curve {                       /* means over the images, at each level */
    float logp[LEVELS], residual[LEVELS], accuracy[LEVELS];
} noise_curve;

/* Adds noise to n images of s, from image `from` on: the same noise at every level, so that levels
   differ by nothing else. */
static void noise_add(const uses *s, int from, int n, float sigma, float *out) {
    const ptrdiff_t size = image_size(s->m.net);
    jem_rng rng = jem_rng_seed((uint64_t)s->u->seed + 1000003 * (uint64_t)from);
    for (ptrdiff_t k = 0; k < n * size; k++)
        out[k] = s->x[from * size + k] + sigma * jem_rng_normal(&rng);
}

/* Measures a model at one level. noisy[NOISE_BATCH images] and logp[NOISE_BATCH] are scratch.
   Returns 0 after an error, which it prints. */
static int noise_level(uses *s, int level, float *noisy, float *logp, noise_curve *c) {
    jem_net *net = s->m.net;
    const float sigma = noise_levels[level];
    jem_rng rng = jem_rng_seed((uint64_t)s->u->seed);
    float levels[NOISE_BATCH];
    double sum[3] = { 0, 0, 0 };
    for (int i = 0; i < NOISE_BATCH; i++) levels[i] = sigma;
    for (int from = 0; from < s->n && jem_ok(net->ctx); from += NOISE_BATCH) {
        const int n = smaller(NOISE_BATCH, s->n - from);
        noise_add(s, from, n, sigma, noisy);
        if (jem_ood_score(net, JEM_OOD_LOGP, NULL, noisy, n, logp) != JEM_OK) break;
        for (int i = 0; i < n; i++) sum[0] += (double)logp[i] / s->n;
        const float *x = s->x + from * image_size(net);
        if (sigma > 0) sum[1] += n * batch_residual(net, x, n, levels, &rng) / s->n;
        sum[2] += n * (double)jem_accuracy(net, noisy, s->labels + from, n) / s->n;
    }
    c->logp[level] = (float)sum[0];
    c->residual[level] = sigma > 0 ? (float)sum[1] : NAN;
    c->accuracy[level] = (float)sum[2];
    return jem_ok(net->ctx) || model_fail("jem eval", &s->m);
}

/* Names the levels at which the slope of log p(x) is a worse estimate of the score than 0. Such a
   slope may point away from the images; SGLD from noise then stops at this wall around them. */
static void noise_wall(const jem_net *net, const noise_curve *c) {
    int first = 0;
    int last = 0;
    for (int i = 1; i < LEVELS; i++) {
        if (c->residual[i] <= SCORE_WALL) continue;
        if (!first) first = i;
        last = i;
    }
    if (!first) return;
    printf("a wall: at noise levels from %g to %g, the slope of log p(x) is worse than none "
           "(residual above %g)", (double)noise_levels[first], (double)noise_levels[last],
           SCORE_WALL);
    if (net->noise_hi > 0 && noise_levels[first] < net->noise_lo)
        printf("; training with a lower --noise-lo may remove it");
    printf("\n");
}

/* Prints the table of one model, a row per level. Returns 0 after an error, which it prints. */
static int noise_print(uses *s, noise_curve *c) {
    const jem_net *net = s->m.net;
    float *noisy = uses_floats(NOISE_BATCH * image_size(net));
    float logp[NOISE_BATCH];
    int ok = 1;
    if (!noisy) return !uses_no_memory();
    printf("%s: noise added to %d %s", s->name, s->n, uses_images(s));
    if (net->noise_hi > 0)
        printf("; its score was learned with %g to %g", (double)net->noise_lo,
               (double)net->noise_hi);
    printf("\n  %6s  %9s  %9s  %14s  %8s\n", "noise", "log p(x)", "change", "score residual",
           "accuracy");
    for (int i = 0; ok && i < LEVELS; i++) {
        ok = noise_level(s, i, noisy, logp, c);
        if (!ok) break;
        printf("  %6g  %9.1f  %+9.1f  ", (double)noise_levels[i], (double)c->logp[i],
               (double)(c->logp[i] - c->logp[0]));
        if (i) printf("%14.3f", (double)c->residual[i]);
        else printf("%14s", "-");
        printf("  %7.1f%%\n", 100.0 * (double)c->accuracy[i]);
        fflush(stdout);
    }
    if (ok) noise_wall(net, c);
    free(noisy);
    return ok;
}

/* Draws three panels of curves over the logarithm of the noise. */
static int noise_draw(const uses *const both[2], const noise_curve *c, int models) {
    static const char *const titles[3] = {
        "log p(x) minus its value without noise",
        "score residual (a constant log p(x) has 1)",
        "accuracy"
    };
    float x[LEVELS], change[2][LEVELS];
    curve curves[3][2];
    panel panels[3];
    x[0] = log10f(.007f);
    for (int i = 1; i < LEVELS; i++) x[i] = log10f(noise_levels[i]);
    for (int k = 0; k < 3; k++) {
        for (int b = 0; b < models; b++) {
            for (int i = 0; i < LEVELS; i++) change[b][i] = c[b].logp[i] - c[b].logp[0];
            const float *const y[3] = { change[b], c[b].residual, c[b].accuracy };
            const curve one = { k ? "" : both[b]->name, uses_colours[b], x, y[k], LEVELS, 2.5f };
            curves[k][b] = one;
        }
        panels[k] = uses_panel(titles[k], "log10 of the noise (the first point has none)",
                               60 + 300 * (float)k, 260 + 300 * (float)k, curves[k], models);
    }
    panels[1].y_lo = 0;
    panels[1].y_hi = 2;
    panels[2].y_lo = 0;
    panels[2].y_hi = 1.001f;
    return uses_draw(both[0]->u->out, panels, 3);
}

int eval_noise(uses *s, uses *beside) {
    noise_curve curves[2];
    const uses *const both[2] = { s, beside };
    if (!noise_print(s, &curves[0])) return 1;
    if (beside && !noise_print(beside, &curves[1])) return 1;
    return noise_draw(both, curves, beside ? 2 : 1);
}
