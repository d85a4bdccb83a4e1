/* QUESTION  Which sampler should one use, and how can one detect that it has not converged, or
             never will?

   FORMULA   SGLD      x + a/2 d log p/dx + half of ULA's noise: T = 1/4
             ULA       the same with sqrt(a) N(0,I): right for small a, biased for large ones
             MALA      ULA's step as a proposal, some rejected: exact (Roberts & Tweedie 1996)
             HMC       a random momentum, several leapfrog steps, then acceptance (Neal 2011)
             tempered  MALA at several temperatures that swap points (Geyer 1991)
             tau = 1 + 2 (sum of the autocorrelations of u): gradients per independent sample.
             R-hat: the spread of all chains together over that within each; 1 when they agree.

   LOOK FOR  All use the same number of gradients. A column per sampler: the path of its first
             chain, and the ends of all chains (white); above, the error of a mean in standard
             errors. An error above 4 is not chance: on the banana SGLD has half of MALA's tau and
             is wrong, and so is ULA on the narrow density. On two modes, R-hat and tau show the
             failure. The second picture has, for each density, traces of five chains (u over time):
             a hairy caterpillar is good, a slow snake is not, two levels are two modes without
             transitions. Under them the autocorrelation of u: how fast a chain forgets. Each
             quantity has its own tau, and the slowest one counts: here u, the first coordinate.

   TRY       STEP .1f and .5f: which diverge, and which reject? All chains start left of 0 (START):
             what is the R-hat of two modes now? HOTTEST 2: does the ladder still reach across?

   RUN       build/samplers              Pictures: build/pictures/samplers.png,
                                         samplers_traces.png */
#define JEM_IMPLEMENTATION
#include "jem.h"
#include "tools/support/measures.h"
#include "worlds.h"

#define STEP 0.28f                                 /* of MALA; ULA's a is its square */
#define START -2.5f, 2.5f
#define HOTTEST 12
enum { CHAINS = 24, LADDER = 5, GRADIENTS = 8000, LAGS = 300, TRACED = 2000, SEEN = 5 };
enum { NARROW, BANANA, MODES, DENSITIES };
enum { SGLD, ULA, MALA, HMC, TEMPERED, WALKS };
static const struct walk { const char *name; unsigned colour; int temperatures; } walks[WALKS] = {
    { "SGLD", INK_GREY, 1 }, { "ULA", INK_RED, 1 }, { "MALA", INK_BLUE, 1 },
    { "HMC", INK_GREEN, 1 }, { "tempered", INK_PINK, LADDER }
};

/* -(x - mean)^2 / (2 std^2) */
static jem_tensor *gaussian(jem_ctx *ctx, jem_tensor *x, float mean, float std) {
    return jem_scale(ctx, jem_square(ctx, jem_add_constant(ctx, x, -mean)), -0.5f / (std * std));
}
/* Returns log p(u) + log p(v|u) of the target: u ~ N(0,1), then v ~ N(.9 u, .19), or
   N((u^2 - 1)/2, 1/4); or u ~ .3 N(-1.8, .35^2) + .7 N(1.8, .35^2), and v ~ N(0, .7^2). */
static jem_tensor *density(jem_ctx *ctx, jem_tensor *x, void *which) {
    jem_tensor *u = jem_slice(ctx, x, 0, 1);
    jem_tensor *v = jem_slice(ctx, x, 1, 1);
    jem_tensor *middle;
    float std = 0.5f;
    if (*(const int *)which == MODES) {
        jem_tensor *left = jem_add_constant(ctx, gaussian(ctx, u, -1.8f, 0.35f), logf(0.3f));
        jem_tensor *right = jem_add_constant(ctx, gaussian(ctx, u, 1.8f, 0.35f), logf(0.7f));
        u = jem_logsumexp(ctx, jem_concat(ctx, left, right));
        return jem_add(ctx, u, gaussian(ctx, v, 0, 0.7f));
    }
    if (*(const int *)which == NARROW) {
        middle = jem_scale(ctx, u, 0.9f);
        std = sqrtf(0.19f);
    } else middle = jem_scale(ctx, jem_add_constant(ctx, jem_square(ctx, u), -1), 0.5f);
    v = gaussian(ctx, jem_sub(ctx, v, middle), 0, std);
    return jem_add(ctx, v, gaussian(ctx, u, 0, 1));
}
static const struct target { const char *name, *number; float known; } targets[DENSITIES] = {
    { "narrow", "E (u-v)^2", 0.2f }, { "banana", "E v^2", 0.75f }, { "two modes", "E u", 0.72f }
};

typedef struct trace {
    int which, ladder, steps;
    float now[2 * CHAINS * LADDER], way[GRADIENTS][2], seen[SEEN][GRADIENTS];
    float value[GRADIENTS * CHAINS];               /* the number whose mean is known */
    float u[GRADIENTS * CHAINS];                   /* the first coordinate */
} trace;

static int record(void *user, int step, jem_tensor *x) {
    trace *t = (trace *)user;
    if (jem_read(x, t->now) != JEM_OK) return 1;
    memcpy(t->way[step], t->now, sizeof t->way[step]);
    for (int i = 0; i < CHAINS; i++) {
        const float *at = t->now + 2 * i * t->ladder;                  /* those of temperature 1 */
        float value = at[0];
        if (t->which == NARROW) value = (at[0] - at[1]) * (at[0] - at[1]);
        if (t->which == BANANA) value = at[1] * at[1];
        t->value[step * CHAINS + i] = value;
        t->u[step * CHAINS + i] = at[0];
        if (i < SEEN) t->seen[i][step] = at[0];
    }
    t->steps = step + 1;
    return 0;
}

static void run(jem_ctx *ctx, int k, trace *t, int gradients) {
    t->ladder = walks[k].temperatures;
    const int n = CHAINS * t->ladder;
    jem_rng rng = jem_rng_seed(1);
    jem_sgld_desc langevin = jem_sgld_desc_langevin(STEP * STEP, gradients);
    jem_mcmc_desc d = jem_mcmc_desc_default();
    if (k == SGLD) langevin.noise_std /= 2;
    d.step_size = STEP;
    d.leapfrog = 1;
    if (k == HMC) {
        d.step_size = STEP * 0.7f;
        d.leapfrog = 8;
    }
    d.steps = gradients / d.leapfrog / t->ladder;
    d.temperatures = t->ladder;
    d.hottest = HOTTEST;
    langevin.watch = d.watch = record;
    langevin.watch_user = d.watch_user = t;
    jem_fill_uniform(ctx, &rng, t->now, 2 * n, START);
    jem_tensor *x = jem_input(ctx, t->now, n, 2, 1, 1);
    if (k <= ULA) jem_sgld(ctx, density, &t->which, x, &langevin, &rng);
    else jem_mcmc(ctx, density, &t->which, x, &d, &rng, NULL);
    jem_reset(ctx);
}

/* The two pictures: a panel per sampler and density; traces and autocorrelations, a density per
   column. */
typedef struct pictures { sheet s; plot traces; } pictures;
enum { WIDE = 1206, HIGH = 660, NAMES = 130, COLUMN = (WIDE - NAMES) / DENSITIES, CHART = 310 };

/* Returns the height of a sampler's traces. */
static float middle_of(int k) { return 74 + 56 * (float)k; }

/* Draws the path of a chain and the ends of all chains; and traces. */
static void draw(pictures *to, plot *p, int k, const trace *t, int cost, const char *title) {
    const float left = NAMES + COLUMN * (float)t->which;
    const float middle = middle_of(k);
    plot_way(p, t->way[0], 400 / cost < t->steps ? 400 / cost : t->steps, 1, 0x30d0f0);
    for (int i = 0; i < CHAINS; i++) plot_dots(p, t->now + 2 * i * t->ladder, 1, 3.5f, 0xffffff);
    sheet_put(&to->s, k, t->which, p, title);
    const int n = t->steps * cost < TRACED ? t->steps : TRACED / cost;
    for (int j = 0; j < SEEN; j++)
        plot_trace(&to->traces, left, middle, CHART, -8, t->seen[j], n, class_colours[j]);
}

static float lag[WALKS][LAGS], r[WALKS][LAGS];     /* the autocorrelations of one density */

static void show_divergence(jem_ctx *ctx, pictures *to, plot *p, int k, trace *t) {
    char title[64];
    printf("%-9s %-8s  diverged: %s\n", targets[t->which].name, walks[k].name, jem_error(ctx));
    jem_clear_error(ctx);                          /* the others continue */
    plot_function(p, ctx, density, &t->which);
    plot_density(p, plot_log_z(p));
    snprintf(title, sizeof title, "%s: diverged", walks[k].name);
    sheet_put(&to->s, k, t->which, p, title);
}

/* Shows the error of a sampler's mean, its chains, tau and R-hat. Computes the autocorrelations,
   and returns their number. */
static int show(jem_ctx *ctx, pictures *to, plot *p, int k, trace *t, int gradients) {
    const struct target *q = targets + t->which;
    const int cost = gradients / t->steps;
    const int from = t->steps / 8;
    const int steps = t->steps - from;
    const float *u = t->u + from * CHAINS;
    const chain_stats c = measure_chains(t->value + from * CHAINS, steps, CHAINS);
    const chain_stats slow = measure_chains(u, steps, CHAINS);
    const double off = fabs(c.mean - (double)q->known) / c.error;
    char title[64];
    printf("%-9s %-8s  %s %.3f +- %.3f, known %.2f: error %7.1f   u: tau %5.0f, R-hat %.3f\n",
           q->name, walks[k].name, q->number, c.mean, c.error, (double)q->known,
           (c.mean - (double)q->known) / c.error, slow.tau * cost, slow.rhat);
    fflush(stdout);
    plot_function(p, ctx, density, &t->which);
    plot_density(p, plot_log_z(p));
    snprintf(title, sizeof title, "%s: %.*f", walks[k].name, off < 10 ? 1 : 0, off);
    draw(to, p, k, t, cost, title);
    snprintf(title, sizeof title, "tau %.0f", slow.tau * cost);
    sheet_note(&to->s, k, t->which, 1, title);
    snprintf(title, sizeof title, "R-hat %.2f", slow.rhat);
    sheet_note(&to->s, k, t->which, 0, title);
    const int lags = (LAGS - 1) / cost + 1;
    for (int i = 0; i < lags; i++) {
        lag[k][i] = (float)(i * cost);
        r[k][i] = autocorrelation(u, steps, CHAINS, slow.mean, i);
    }
    return lags;
}

/* Draws how fast the samplers forget: their autocorrelations. Writes the texts of the column. */
static void draw_curves(plot *paper, int which, const curve *curves) {
    const float left = NAMES + COLUMN * (float)which;
    const panel chart = { "autocorrelation of u", "lag in gradients", left, HIGH - 236,
                          left + CHART, HIGH - 60, -0.1f, 1, curves, WALKS };
    text(paper, left, 12, 3, 0x000000, targets[which].name);
    if (!which) text(paper, left, 344, SHEET_UNIT, 0x333333, "u of five chains, over time");
    draw_panel_in(paper, &chart, SHEET_UNIT);
}

static int pictures_write(pictures *to) {
    const char *path = "build/pictures/samplers_traces.png";
    const int ok = sheet_close(&to->s, "build/pictures/samplers.png") &&
                   plot_write(&to->traces, path);
    if (ok) printf("picture: %s\n", path);
    return ok;
}

int main(int argc, char **argv) {
    static trace t;
    const int gradients = is_quick(argc, argv) ? 800 : GRADIENTS;
    curve curves[WALKS];
    pictures to;
    plot p;
    if (!sheet_create(&to.s, WALKS, DENSITIES, 216, 0) || !panel_create(&p, &to.s) ||
        !plot_create(&to.traces, WIDE, HIGH, 0, WIDE, HIGH, 0)) return 1;
    for (int k = 0; k < WALKS; k++)
        text(&to.traces, 10, middle_of(k) - 8, 2.7f, walks[k].colour, walks[k].name);
    jem_ctx *ctx = jem_ctx_create(NULL);
    for (t.which = 0; t.which < DENSITIES && jem_ok(ctx); t.which++) {
        for (int k = 0; k < WALKS && jem_ok(ctx); k++) {
            curve forgets = { "", walks[k].colour, lag[k], r[k], 0, 2 };
            run(ctx, k, &t, gradients);
            if (jem_error_status(ctx) == JEM_DIVERGED) show_divergence(ctx, &to, &p, k, &t);
            else if (jem_ok(ctx)) forgets.n = show(ctx, &to, &p, k, &t, gradients);
            curves[k] = forgets;
        }
        if (jem_ok(ctx)) draw_curves(&to.traces, t.which, curves);
    }
    const int failed = report(ctx) || !pictures_write(&to);
    plot_free(&to.traces);
    plot_free(&p);
    jem_ctx_free(ctx);
    return failed;
}
