/* QUESTION  Can densities be combined like words: red AND round, circle OR square, NOT blue?

   FORMULA   and   log p = log a + log b                      (a product: both must agree)
             or    log p = log(a + b) = logsumexp(log a, log b)
             not   log p = - ALPHA log b                       (always with an 'and')
             (Du, Li and Mordatch 2020, arXiv:2004.06030.) 'And' and 'not' need no Z, 'or' needs
             the ratio of the two (here: their values as given). No model is retrained: energy-based
             models are components.

   LOOK FOR  Colour: the exact answer, by a sum over a grid. White: samples by Hamiltonian Monte
             Carlo, which uses only the expression. The printed numbers compare them. 'and' is high
             where both parts are high. Far from b, -log b grows without bound, so a negated
             part needs a floor, a small density everywhere; here every part has one.

   TRY       ALPHA 0.3f and 3. A FLOOR of 1e-9f: what happens to 'ring and not bar'? Expressions of
             your own in the table below.

   RUN       build/compose               Picture: build/pictures/compose.png */
#define JEM_IMPLEMENTATION
#include "jem.h"

#include "tools/support/measures.h"
#include "worlds.h"

#define ALPHA 1.0f
#define FLOOR 1e-3f
enum { CHAINS = 200, STEPS = 1500, FROM = 300 };

/* ---- densities over densities ---- */
typedef enum kind { RING, BAR, DOTS, AND, OR, NOT } kind;
typedef struct expression {
    const char *name;
    kind what;
    const struct expression *a, *b;
} expression;

/* log(exp(f) + FLOOR) */
static jem_tensor *with_floor(jem_ctx *ctx, jem_tensor *f) {
    jem_tensor *low = jem_add_constant(ctx, jem_scale(ctx, f, 0), logf(FLOOR));
    return jem_logsumexp(ctx, jem_concat(ctx, f, low));
}

static jem_tensor *off(jem_ctx *ctx, jem_tensor *x, float at) {                /* (x - at)^2 */
    return jem_square(ctx, jem_add_constant(ctx, x, -at));
}

/* The analytic parts: a ring of radius 1.6, a tilted bar, four dots. */
static jem_tensor *part(jem_ctx *ctx, jem_tensor *x, kind what) {
    jem_tensor *u = jem_slice(ctx, x, 0, 1);
    jem_tensor *v = jem_slice(ctx, x, 1, 1);
    jem_tensor *all = NULL;
    if (what == RING) {
        jem_tensor *v2 = jem_square(ctx, v);
        jem_tensor *r2 = jem_add(ctx, jem_square(ctx, u), v2);
        return with_floor(ctx, jem_scale(ctx, off(ctx, r2, 2.56f), -1.2f));
    }
    if (what == BAR) {
        jem_tensor *across = jem_square(ctx, jem_sub(ctx, v, jem_scale(ctx, u, 0.5f)));
        jem_tensor *along = jem_scale(ctx, jem_square(ctx, u), -0.15f);
        return with_floor(ctx, jem_add(ctx, along, jem_scale(ctx, across, -5)));
    }
    for (int k = 0; k < 4; k++) {
        jem_tensor *du = off(ctx, u, k & 1 ? 1.13f : -1.13f);
        jem_tensor *dv = off(ctx, v, k & 2 ? 1.13f : -1.13f);
        jem_tensor *dot = jem_scale(ctx, jem_add(ctx, du, dv), -7);
        if (k == 0) all = dot;
        else all = jem_concat(ctx, all, dot);
    }
    return with_floor(ctx, jem_logsumexp(ctx, all));
}

/* The central idea: a jem_logp_fn composed of jem_logp_fns. */
static jem_tensor *evaluate(jem_ctx *ctx, jem_tensor *x, void *user) {
    const expression *e = (const expression *)user;
    if (e->what < AND) return part(ctx, x, e->what);
    jem_tensor *a = evaluate(ctx, x, (void *)(uintptr_t)e->a);
    if (e->what == NOT) return jem_scale(ctx, a, -ALPHA);
    jem_tensor *b = evaluate(ctx, x, (void *)(uintptr_t)e->b);
    if (e->what == AND) return jem_add(ctx, a, b);
    return jem_logsumexp(ctx, jem_concat(ctx, a, b));
}

/* Returns the density to sample: the expression, in a box with soft walls (the floor alone has no
   finite Z). */
static jem_tensor *in_box(jem_ctx *ctx, jem_tensor *x, void *user) {
    jem_tensor *far = jem_sum_image(ctx, jem_square(ctx, jem_relu(ctx,
        jem_add_constant(ctx, jem_square(ctx, x), -0.8f * WORLD_BOX * WORLD_BOX))));
    jem_tensor *wall = jem_scale(ctx, far, -10);
    return jem_add(ctx, evaluate(ctx, x, user), wall);
}

static const expression ring = { "ring", RING, NULL, NULL };
static const expression bar = { "bar", BAR, NULL, NULL };
static const expression dots = { "dots", DOTS, NULL, NULL };
static const expression no_bar = { "not bar", NOT, &bar, NULL };
static const expression no_dots = { "", NOT, &dots, NULL };
static const expression both = { "ring and bar", AND, &ring, &bar };
static const expression either = { "ring or bar", OR, &ring, &bar };
static const expression without = { "ring and not bar", AND, &ring, &no_bar };
static const expression dots_on = { "ring and dots", AND, &ring, &dots };
static const expression rich = { "(ring or bar) and not dots", AND, &either, &no_dots };
static const expression *const shown[8] = {
    &ring, &bar, &dots, &both, &either, &without, &dots_on, &rich
};

/* ---- samples compared with the exact answer ---- */
typedef struct trace { float now[2 * CHAINS], r2[STEPS * CHAINS]; } trace;

static int record(void *user, int step, jem_tensor *x) {
    trace *t = (trace *)user;
    if (jem_read(x, t->now) != JEM_OK) return 1;
    for (int i = 0; i < CHAINS; i++) {
        const float u = t->now[2 * i];
        const float v = t->now[2 * i + 1];
        t->r2[step * CHAINS + i] = u * u + v * v;
    }
    return 0;
}

static void draw(plot *p, jem_ctx *ctx, const expression *e, int steps) {
    static trace t;
    void *user = (void *)(uintptr_t)e;
    jem_rng rng = jem_rng_seed(1);
    plot_function(p, ctx, in_box, user);
    const double log_z = plot_log_z(p);
    const double area = pow(2 * (double)WORLD_BOX / p->w, 2);
    double exact = 0;
    for (int k = 0; k < p->w * p->h; k++) {
        const double x = 2 * WORLD_BOX * (k % p->w + 0.5) / p->w - WORLD_BOX;
        const double y = 2 * WORLD_BOX * (k / p->w + 0.5) / p->h - WORLD_BOX;
        exact += exp((double)p->values[k] - log_z) * area * (x * x + y * y);
    }
    plot_density(p, log_z);

    jem_fill_uniform(ctx, &rng, t.now, 2 * CHAINS, -2, 2);
    jem_tensor *x = jem_input(ctx, t.now, CHAINS, 2, 1, 1);
    jem_mcmc_desc how = jem_mcmc_desc_default();
    how.steps = steps;
    how.step_size = 0.12f;
    how.leapfrog = 8;
    how.watch = record;
    how.watch_user = &t;
    jem_mcmc(ctx, in_box, user, x, &how, &rng, NULL);
    const int from = steps > FROM ? FROM : 0;
    const chain_stats s = measure_chains(t.r2 + from * CHAINS, steps - from, CHAINS);
    plot_dots(p, t.now, CHAINS, 3, 0xffffff);
    printf("%-28s mean |x|^2: exact %.3f, sampled %.3f +- %.3f  (R-hat %.3f)\n", e->name, exact,
           s.mean, s.error, s.rhat);
    fflush(stdout);
    jem_reset(ctx);
}

int main(int argc, char **argv) {
    sheet s;
    plot p;
    if (!sheet_create(&s, 4, 2, 240, 0) || !panel_create(&p, &s)) return 1;
    jem_ctx *ctx = jem_ctx_create(NULL);
    for (int k = 0; k < 8 && jem_ok(ctx); k++) {
        draw(&p, ctx, shown[k], is_quick(argc, argv) ? 20 : STEPS);
        sheet_put(&s, k % 4, k / 4, &p, shown[k]->name);
    }
    const int failed = report(ctx) || !sheet_close(&s, "build/pictures/compose.png");
    plot_free(&p);
    jem_ctx_free(ctx);
    return failed;
}
