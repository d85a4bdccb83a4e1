/* The panel with chains on known densities. The page shows the code between the marks [name] and
   [end]. */
#include "page.h"

#include "tools/support/measures.h"
#include "examples/points.h"

enum {
    CHAINS = 16, LADDER = 4, GRID = 64, CELLS = GRID * GRID, BINS = 60, OWN = 12,
    RECORD = 6000, LEAPS = 40
};
enum { NARROW, BANANA, MODES, OWN_POINTS };
enum { ASCENT, LANGEVIN, MALA, HMC, TEMPERED };
#define HOTTEST 12

static int density_now, own_count, recorded, steps_made, kind_now;
static float own[2 * OWN], grid[CELLS], chain[2 * CHAINS], histogram[BINS], truth[BINS], facts[12];
static float path[10 + 2 * LEAPS];                 /* of chain 0; see walk_step */
static float record[RECORD * CHAINS];
static double accepted_sum;
static jem_rng walk_rng;

PAGE(float *, walk_place)(int what);
PAGE(int, walk_start)(int density, int points, int seed);
PAGE(void, walk_drop)(float x, float y);
PAGE(void, walk_forget)(void);
PAGE(int, walk_step)(int kind, float a, float noise, int leaps);
PAGE(int, walk_facts)(void);

PAGE(float *, walk_place)(int what) {
    float *const all[] = { chain, path, histogram, truth, facts, own, grid };
    return all[what];
}

/* [known] Records log p of densities with known moments: E (u-v)^2 = 0.2 of the narrow one,
   E v^2 = 0.75 of the banana, E u = 0.72 of the two modes; own points are centres of Gaussians. */
static jem_tensor *gaussian(jem_ctx *c, jem_tensor *x, float mean, float std) {
    return jem_scale(c, jem_square(c, jem_add_constant(c, x, -mean)), -0.5f / (std * std));
}
static jem_tensor *known(jem_ctx *c, jem_tensor *x, void *user) {
    jem_tensor *u = jem_slice(c, x, 0, 1);
    jem_tensor *v = jem_slice(c, x, 1, 1);
    jem_tensor *all = NULL;
    (void)user;
    if (density_now == NARROW) {
        v = gaussian(c, jem_sub(c, v, jem_scale(c, u, 0.9f)), 0, sqrtf(0.19f));
        return jem_add(c, gaussian(c, u, 0, 1), v);
    }
    if (density_now == BANANA) {
        jem_tensor *bent = jem_scale(c, jem_add_constant(c, jem_square(c, u), -1), 0.5f);
        v = gaussian(c, jem_sub(c, v, bent), 0, 0.5f);
        return jem_add(c, gaussian(c, u, 0, 1), v);
    }
    if (density_now == MODES) {
        jem_tensor *left = jem_add_constant(c, gaussian(c, u, -1.8f, 0.35f), logf(0.3f));
        jem_tensor *right = jem_add_constant(c, gaussian(c, u, 1.8f, 0.35f), logf(0.7f));
        all = jem_logsumexp(c, jem_concat(c, left, right));
        return jem_add(c, all, gaussian(c, v, 0, 0.7f));
    }
    for (int k = 0; k < own_count; k++) {
        jem_tensor *by_v = gaussian(c, v, own[2 * k + 1], 0.35f);
        jem_tensor *one = jem_add(c, gaussian(c, u, own[2 * k], 0.35f), by_v);
        all = all ? jem_concat(c, all, one) : one;
    }
    return jem_logsumexp(c, all);
}
/* [end] */

/* Returns the coordinate of a point whose distribution is shown. */
static float shown(const float *x) {
    if (density_now == NARROW) return x[0] - x[1];
    if (density_now == BANANA) return x[1];
    return x[0];
}
static int squared(void) { return density_now == NARROW || density_now == BANANA; }
static double known_moment(void) {
    static const double moments[OWN_POINTS] = { 0.2, 0.75, 0.72 };
    double mean = 0;
    if (density_now != OWN_POINTS) return moments[density_now];
    for (int k = 0; k < own_count; k++) mean += (double)own[2 * k] / own_count;
    return mean;
}

static double normal(double x, double mean, double std) {
    return exp(-(x - mean) * (x - mean) / (2 * std * std)) / (std * 2.5066282746310002);
}
static double marginal(double t) {
    double sum = 0;
    if (density_now == NARROW) return normal(t, 0, sqrt(0.2));
    if (density_now == MODES) return 0.3 * normal(t, -1.8, 0.35) + 0.7 * normal(t, 1.8, 0.35);
    if (density_now == BANANA) {
        for (int k = 0; k < 400; k++) {            /* over u from -5 to 5 */
            const double u = (k + 0.5) / 40 - 5;
            sum += normal(u, 0, 1) * normal(t, (u * u - 1) / 2, 0.5) / 40;
        }
        return sum;
    }
    for (int k = 0; k < own_count; k++)
        sum += normal(t, (double)own[2 * k], 0.35) / own_count;
    return sum;
}

/* Computes log p on a grid, without its Z. */
static void fill_grid(void) {
    static float x[2 * CELLS];
    for (int k = 0; k < CELLS; k++) {
        x[2 * k] = WORLD_BOX * (2 * ((float)(k % GRID) + .5f) / GRID - 1);
        x[2 * k + 1] = WORLD_BOX * (1 - 2 * ((float)(k / GRID) + .5f) / GRID);
    }
    const jem_mark mark = jem_begin(ctx);
    jem_read(known(ctx, jem_input(ctx, x, CELLS, 2, 1, 1), NULL), grid);
    jem_end(ctx, mark);
}

PAGE(void, walk_forget)(void) {
    recorded = steps_made = 0;
    accepted_sum = 0;
}
PAGE(int, walk_start)(int density, int points, int seed) {
    density_now = density;
    own_count = points < OWN ? points : OWN;
    walk_rng = jem_rng_seed((uint64_t)seed);
    jem_fill_uniform(ctx, &walk_rng, chain, 2 * CHAINS, -2.8f, 2.8f);
    walk_forget();
    fill_grid();
    for (int k = 0; k < BINS; k++) {
        const double t = (double)WORLD_BOX * (2 * (k + 0.5) / BINS - 1);
        truth[k] = (float)marginal(t);
    }
    return jem_ok(ctx);
}
PAGE(void, walk_drop)(float x, float y) {
    chain[0] = x;
    chain[1] = y;
}

/* Predicts the next leapfrog steps of chain 0 in jem_mcmc, to be drawn: its momenta are the next
   numbers of its generator. */
static void foresee(jem_tensor *x, const jem_mcmc_desc *how) {
    float p[2 * CHAINS], at[2 * CHAINS], g[2 * CHAINS];
    jem_rng same = walk_rng;
    memcpy(at, chain, sizeof at);
    jem_fill_normal(ctx, &same, p, 2 * CHAINS, 0, 1);
    path[9] = (float)how->leapfrog;
    for (int step = 0; step < how->leapfrog && step < LEAPS; step++) {
        for (int half = 0; half < 2; half++) {
            jem_write(x, at);
            const jem_mark mark = jem_begin(ctx);
            if (jem_grad(known(ctx, x, NULL), x) == JEM_OK) jem_read_grad(x, g);
            jem_end(ctx, mark);
            for (int k = 0; k < 2; k++) {
                p[k] += how->step_size / 2 * g[k];
                if (!half) at[k] += how->step_size * p[k];
            }
        }
        path[10 + 2 * step] = at[0];
        path[11 + 2 * step] = at[1];
    }
    jem_write(x, chain);
}

/* Returns the number of temperatures of the chains so far. */
static int rungs(void) { return kind_now == TEMPERED ? LADDER : 1; }

/* Keeps the coordinate shown of each chain of temperature 1; if there are too many, the newer
   half. */
static void keep(void) {
    const int ladder = rungs();
    const int kept = CHAINS / ladder;
    if (recorded == RECORD) {
        recorded = RECORD / 2;
        memmove(record, record + recorded * kept, (size_t)(recorded * kept) * sizeof *record);
    }
    for (int i = 0; i < kept; i++) record[recorded * kept + i] = shown(chain + 2 * i * ladder);
    recorded++;
    steps_made++;
}

/* [steps] Makes one step of all chains, two if they are tempered. a is the step of Langevin's
   equation; noise a multiple of sqrt(a): 0 makes it gradient ascent. */
static jem_status one_step(jem_tensor *x, int kind, float a, float noise, int leaps,
                           float *accepted) {
    if (kind <= LANGEVIN) {
        jem_sgld_desc how = jem_sgld_desc_langevin(a, 1);  /* x + a/2 gradient + sqrt(a) N(0,I) */
        how.noise_std *= kind == ASCENT ? 0 : noise;
        return jem_sgld(ctx, known, NULL, x, &how, &walk_rng);
    }
    jem_mcmc_desc how = jem_mcmc_desc_default();
    how.steps = 1;
    how.step_size = sqrtf(a);                      /* the same step, but some are rejected */
    how.leapfrog = kind == HMC ? leaps : 1;
    how.temperatures = 1;
    how.hottest = HOTTEST;
    if (kind == TEMPERED) {
        how.temperatures = LADDER;
        how.steps = 2;                             /* so that all neighbours in T can swap */
    } else foresee(x, &how);
    return jem_mcmc(ctx, known, NULL, x, &how, &walk_rng, accepted);
}
/* [end] */

/* Makes one step of all chains. path receives, of chain 0: the previous position, the end of its
   gradient, the proposal, the new position, 0 if that proposal was rejected, the number of leapfrog
   steps, and their positions. Returns 0 if a chain diverged. */
PAGE(int, walk_step)(int kind, float a, float noise, int leaps) {
    float accepted[CHAINS], g[2 * CHAINS];
    const jem_mark mark = jem_begin(ctx);
    jem_tensor *x = jem_input(ctx, chain, CHAINS, 2, 1, 1);
    if (kind != kind_now) walk_forget();
    kind_now = kind;
    if (jem_grad(known(ctx, x, NULL), x) == JEM_OK) jem_read_grad(x, g);
    for (int k = 0; k < 2; k++) {
        path[k] = chain[k];
        path[2 + k] = chain[k] + a / 2 * g[k];
    }
    path[9] = 0;
    const jem_status s = one_step(x, kind, a, noise, leaps, accepted);
    if (s == JEM_OK) jem_read(x, chain);
    jem_end(ctx, mark);
    if (s != JEM_OK) return 0;
    const int last = 8 + 2 * (int)path[9];         /* the last leapfrog step is the proposal */
    for (int k = 0; k < 2; k++) {
        path[4 + k] = path[9] > 0 ? path[last + k] : chain[k];
        path[6 + k] = chain[k];
    }
    path[8] = path[9] > 0 ? accepted[0] : 1;       /* only foresee() knows the proposal */
    for (int i = 0; i < CHAINS; i++) {
        if (!(fabsf(chain[2 * i]) < 100 && fabsf(chain[2 * i + 1]) < 100)) return 0;
        if (kind > LANGEVIN) accepted_sum += (double)accepted[i] / CHAINS;
    }
    keep();
    return jem_ok(ctx);
}

/* Computes, from the newer half of the values, the histogram and facts: the moment, its error, the
   known one, their difference in errors, tau, R-hat, accepted proposals, steps. */
PAGE(int, walk_facts)(void) {
    static float value[RECORD * CHAINS];
    const int kept = CHAINS / rungs();
    const int from = recorded / 2;
    const int n = (recorded - from) * kept;
    memset(histogram, 0, sizeof histogram);
    for (int i = 0; i < n; i++) {
        const float v = record[from * kept + i];
        const int bin = (int)floorf((v / WORLD_BOX + 1) / 2 * BINS);
        if (bin >= 0 && bin < BINS) histogram[bin] += BINS / (2 * WORLD_BOX * (float)n);
        value[i] = v;
        if (squared()) value[i] = v * v;
    }
    memset(facts, 0, sizeof facts);
    facts[2] = (float)known_moment();
    facts[6] = kind_now <= LANGEVIN ? 1 : (float)(accepted_sum / fmax(steps_made, 1));
    facts[7] = (float)steps_made;
    if (recorded - from < 8) return 1;
    const chain_stats c = measure_chains(value, recorded - from, kept);
    facts[0] = (float)c.mean;
    facts[1] = (float)c.error;
    facts[3] = (float)((c.mean - known_moment()) / fmax(c.error, 1e-9));
    facts[4] = (float)c.tau;
    facts[5] = (float)c.rhat;
    return 1;
}
