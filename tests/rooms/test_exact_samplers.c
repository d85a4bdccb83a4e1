/* The exact samplers of >>samplers compared with known moments of densities, within a number of
   standard errors from their own diagnostics; AIS compared with known Z; the diagnostics compared
   with arviz on the same numbers, and with chains of known autocorrelation. */
#define JEM_IMPLEMENTATION
#include "jem.h"
#include "tests/support/test.h"
#include "tests/support/common.h"
#include "tools/support/measures.h"

/* Steps x chains x numbers per chain, after every step. */
typedef struct trace { float *v; int chains, numbers, steps; } trace;

static int record(void *user, int step, jem_tensor *x) {
    trace *t = (trace *)user;
    t->steps = step + 1;
    return jem_read(x, t->v + (ptrdiff_t)step * t->chains * t->numbers) != JEM_OK;
}

/* Moment a of channel 0 times moment b of channel 1, from step `from` on, judged by its own error:
   |mean - known| <= 4.5 standard errors. Returns the number of standard errors. */
static double moment(const trace *t, int from, int a, int b, double known, chain_stats *out) {
    const int steps = t->steps - from;
    float *v = floats((ptrdiff_t)steps * t->chains);
    for (ptrdiff_t i = 0; i < (ptrdiff_t)steps * t->chains; i++) {
        const float *x = t->v + ((ptrdiff_t)from * t->chains + i) * t->numbers;
        v[i] = powf(x[0], (float)a) * (b ? powf(x[1], (float)b) : 1);
    }
    *out = measure_chains(v, steps, t->chains);
    free(v);
    return (out->mean - known) / out->error;
}

static trace trace_open(int chains, int numbers, int steps) {
    trace t = { floats((ptrdiff_t)chains * numbers * steps), chains, numbers, 0 };
    return t;
}

/* ---- densities ------------------------------------------------------------------------------- */

#define RHO 0.8f
/* A Gaussian in the plane: variances 1 and 1/4, correlation RHO. */
static jem_tensor *correlated(jem_ctx *ctx, jem_tensor *x, void *user) {
    (void)user;
    jem_tensor *u = jem_slice(ctx, x, 0, 1);
    jem_tensor *v = jem_scale(ctx, jem_slice(ctx, x, 1, 1), 2);
    jem_tensor *off = jem_square(ctx, jem_sub(ctx, v, jem_scale(ctx, u, RHO)));
    jem_tensor *uu = jem_scale(ctx, jem_square(ctx, u), -0.5f);
    return jem_add(ctx, uu, jem_scale(ctx, off, -0.5f / (1 - RHO * RHO)));
}
#define CORRELATED_Z (6.283185307179586 * 0.5 * sqrt(1 - (double)RHO * (double)RHO))

/* u ~ N(0,1), v = (u^2 - 1)/2 + N(0, 1/4) */
static jem_tensor *banana(jem_ctx *ctx, jem_tensor *x, void *user) {
    (void)user;
    jem_tensor *u2 = jem_square(ctx, jem_slice(ctx, x, 0, 1));
    jem_tensor *v = jem_slice(ctx, x, 1, 1);
    jem_tensor *bend = jem_scale(ctx, jem_add_constant(ctx, u2, -1), 0.5f);
    jem_tensor *off = jem_square(ctx, jem_sub(ctx, v, bend));
    return jem_add(ctx, jem_scale(ctx, u2, -0.5f), jem_scale(ctx, off, -2));
}

/* 0.3 N(-1.5, 0.5^2) + 0.7 N(1, 0.8^2), in one dimension, times e^3. */
static jem_tensor *mixture(jem_ctx *ctx, jem_tensor *x, void *user) {
    (void)user;
    jem_tensor *a = jem_scale(ctx, jem_square(ctx, jem_add_constant(ctx, x, 1.5f)), -2);
    jem_tensor *b = jem_scale(ctx, jem_square(ctx, jem_add_constant(ctx, x, -1)), -0.5f / 0.64f);
    a = jem_add_constant(ctx, a, 3 + logf(0.3f / (0.5f * 2.5066283f)));
    b = jem_add_constant(ctx, b, 3 + logf(0.7f / (0.8f * 2.5066283f)));
    return jem_logsumexp(ctx, jem_concat(ctx, a, b));
}
#define MIXTURE_MEAN (0.3 * -1.5 + 0.7)
#define MIXTURE_SQUARE (0.3 * (2.25 + 0.25) + 0.7 * (1 + 0.64))

/* Beyond the largest float: log p is not finite. */
static jem_tensor *infinite(jem_ctx *ctx, jem_tensor *x, void *user) {
    (void)user;
    return jem_sum_image(ctx, jem_square(ctx, jem_exp(ctx, jem_scale(ctx, x, 1e4f))));
}
static jem_tensor *nothing(jem_ctx *ctx, jem_tensor *x, void *user) {
    (void)ctx;
    (void)x;
    (void)user;
    return NULL;
}
static jem_tensor *too_many(jem_ctx *ctx, jem_tensor *x, void *user) {
    (void)ctx;
    (void)user;
    return x;
}

/* ---- walks ----------------------------------------------------------------------------------- */

/* A banana's ends are narrow: the step that suits its middle gets stuck there, so it is smaller.
   HMC must not slide for about a half of any direction's period, or x^2 hardly ever changes. */
typedef struct walk_case {
    const char *name;
    int leapfrog;
    float step, bent_step, low, high;
} walk_case;

static void check_moment(const trace *t, int from, int a, int b, double known, const char *what) {
    chain_stats s;
    const double z = moment(t, from, a, b, known, &s);
    CHECK(fabs(z) < 4.5, "%s: E u^%d v^%d is %.4f +- %.4f, known: %.4f", what, a, b, s.mean,
          s.error, known);
    CHECK(s.error < 0.1 * (1 + fabs(known)), "%s: an error of %g is too large", what, s.error);
    CHECK(s.rhat < 1.01 + 2 * s.tau / (t->steps - from), "%s: R-hat %g, tau %g", what, s.rhat,
          s.tau);
}

static double normal_below(double q) { return 0.5 * erfc(-q * 0.7071067811865476); }

/* P(v < q) of the banana: v = (u^2 - 1)/2 + N(0, 1/4), added up over u. */
static double banana_below(double q) {
    double sum = 0;
    for (int i = -800; i < 800; i++) {
        const double u = (i + 0.5) / 100;
        sum += 0.01 * exp(-u * u / 2) / sqrt(6.283185307179586) *
               normal_below((q - (u * u - 1) / 2) / 0.5);
    }
    return sum;
}

/* A share of numbers below q, in channel c. */
static void check_below(const trace *t, int from, int c, float q, double known, const char *what) {
    trace below = trace_open(t->chains, 1, t->steps);
    below.steps = t->steps;
    for (ptrdiff_t i = 0; i < (ptrdiff_t)t->chains * t->steps; i++)
        below.v[i] = t->v[i * t->numbers + c] < q ? 1.0f : 0.0f;
    check_moment(&below, from, 1, 0, known, what);
    free(below.v);
}

static void test_plane(jem_ctx *ctx) {
    printf("Metropolis, MALA, HMC: a correlated Gaussian, a banana\n");
    enum { CHAINS = 48, STEPS = 2500, FROM = 500 };
    static const walk_case cases[3] = {
        { "metropolis", 0, 0.9f, 0.9f, 0.2f, 0.6f }, { "mala", 1, 0.45f, 0.35f, 0.5f, 0.95f },
        { "hmc", 8, 0.25f, 0.15f, 0.6f, 1 }
    };
    for (int c = 0; c < 3; c++) {
        for (int bent = 0; bent < 2; bent++) {
            jem_rng rng = jem_rng_seed((uint64_t)(7 + c));
            trace t = trace_open(CHAINS, 2, STEPS);
            float accepted[CHAINS];
            float mean = 0;
            jem_mcmc_desc d = jem_mcmc_desc_default();
            d.steps = STEPS;
            d.step_size = bent ? cases[c].bent_step : cases[c].step;
            d.leapfrog = cases[c].leapfrog;
            d.watch = record;
            d.watch_user = &t;
            jem_tensor *x = random_leaf(ctx, &rng, shape(CHAINS, 2, 1, 1), -2, 2);
            CHECK(jem_mcmc(ctx, bent ? banana : correlated, NULL, x, &d, &rng, accepted) == JEM_OK,
                  "%s: %s", cases[c].name, jem_error(ctx));
            for (int i = 0; i < CHAINS; i++) mean += accepted[i] / CHAINS;
            CHECK(mean > cases[c].low && mean < cases[c].high, "%s takes %g", cases[c].name,
                  (double)mean);
            check_moment(&t, FROM, 1, 0, 0, cases[c].name);
            check_moment(&t, FROM, 2, 0, 1, cases[c].name);
            check_moment(&t, FROM, 0, 1, 0, cases[c].name);
            check_moment(&t, FROM, 0, 2, bent ? 0.75 : 0.25, cases[c].name);
            check_moment(&t, FROM, 1, 1, bent ? 0 : 0.5 * (double)RHO, cases[c].name);
            if (bent) check_moment(&t, FROM, 2, 1, 1, cases[c].name);
            for (int q = -1; q <= 1; q++) {
                const double v = bent ? banana_below(q) : normal_below(2 * q);
                check_below(&t, FROM, 0, (float)q, normal_below(q), cases[c].name);
                check_below(&t, FROM, 1, (float)q, v, cases[c].name);
            }
            free(t.v);
            jem_reset(ctx);
        }
    }
}

/* Positions of chains, and how often each of them has moved. */
enum { MOVERS = 20, PLACES = 3 };
typedef struct movers { float at[MOVERS * PLACES]; int moved[MOVERS]; } movers;

static int count_moves(void *user, int step, jem_tensor *x) {
    movers *m = (movers *)user;
    float now[MOVERS * PLACES];
    (void)step;
    if (jem_read(x, now) != JEM_OK) return 1;
    for (int i = 0; i < MOVERS; i++)
        m->moved[i] += !same_bits(now + i * PLACES, m->at + i * PLACES, PLACES);
    memcpy(m->at, now, sizeof now);
    return 0;
}

/* Checks that the acceptance rate of a chain is the share of steps at which it moved. */
static void test_accepted(jem_ctx *ctx) {
    printf("acceptance rates of single chains\n");
    enum { STEPS = 60, KINDS = 3 };
    static const struct { int leapfrog; float step; } kinds[KINDS] = {
        { 0, 1.5f }, { 1, 1.6f }, { 4, 1.9f }
    };
    for (int k = 0; k < KINDS; k++) {
        float accepted[MOVERS];
        movers m;
        int least = STEPS;
        int most = 0;
        memset(&m, 0, sizeof m);
        jem_rng rng = jem_rng_seed((uint64_t)(20 + k));
        jem_fill_normal(ctx, &rng, m.at, MOVERS * PLACES, 0, 1);
        jem_mcmc_desc d = jem_mcmc_desc_default();
        d.steps = STEPS;
        d.leapfrog = kinds[k].leapfrog;
        d.step_size = kinds[k].step;
        d.watch = count_moves;
        d.watch_user = &m;
        jem_tensor *x = jem_input(ctx, m.at, MOVERS, PLACES, 1, 1);
        CHECK(jem_mcmc(ctx, gauss, NULL, x, &d, &rng, accepted) == JEM_OK, "%s", jem_error(ctx));
        for (int i = 0; i < MOVERS; i++) {
            CHECK_CLOSE(accepted[i] * STEPS, m.moved[i], 1e-3, "chain %d, leapfrog %d", i,
                        kinds[k].leapfrog);
            if (m.moved[i] < least) least = m.moved[i];
            if (m.moved[i] > most) most = m.moved[i];
        }
        CHECK(least > 0 && least + 3 < most && most < STEPS, "chains moved %d to %d times", least,
              most);
        jem_reset(ctx);
    }
}

/* A share of chains right of 0, and quantiles, of two humps. */
static void test_mixture(jem_ctx *ctx) {
    printf("a mixture: moments, and the weight of each hump\n");
    enum { CHAINS = 64, STEPS = 3000, FROM = 500 };
    for (int leapfrog = 0; leapfrog < 2; leapfrog++) {
        jem_rng rng = jem_rng_seed(11);
        trace t = trace_open(CHAINS, 1, STEPS);
        jem_mcmc_desc d = jem_mcmc_desc_default();
        d.steps = STEPS;
        d.step_size = leapfrog ? 0.9f : 1.8f;
        d.leapfrog = leapfrog;
        d.watch = record;
        d.watch_user = &t;
        jem_tensor *x = random_leaf(ctx, &rng, shape(CHAINS, 1, 1, 1), -2, 2);
        CHECK(jem_mcmc(ctx, mixture, NULL, x, &d, &rng, NULL) == JEM_OK, "%s", jem_error(ctx));
        const char *what = leapfrog ? "mala" : "metropolis";
        check_moment(&t, FROM, 1, 0, MIXTURE_MEAN, what);
        check_moment(&t, FROM, 2, 0, MIXTURE_SQUARE, what);
        for (int q = -2; q <= 2; q++) {            /* distribution function at q */
            const double known = 0.3 * normal_below((q + 1.5) / 0.5) +
                                 0.7 * normal_below((q - 1) / 0.8);
            check_below(&t, FROM, 0, (float)q, known, what);
        }
        free(t.v);
        jem_reset(ctx);
    }
}

enum { BIAS_CHAINS = 256, BIAS_STEPS = 1200 };

/* Checks a decaying step. x' = (1 - a_t/2) x + sqrt(a_t) z: the variance obeys
   V' = (1 - a_t/2)^2 V + a_t. */
static void check_decay(jem_ctx *ctx, jem_sgld_desc ula, const trace *t, jem_rng *rng) {
    enum { CHAINS = BIAS_CHAINS, STEPS = BIAS_STEPS };
    double variance = 0;
    float zeros[CHAINS] = { 0 };
    for (int i = 0; i < STEPS; i++) {
        const double a = pow(1 + i / 10.0, -0.6);
        variance = (1 - a / 2) * (1 - a / 2) * variance + a;
    }
    jem_tensor *x = jem_input(ctx, zeros, CHAINS, 1, 1, 1);
    ula.decay_b = 10;
    ula.decay_gamma = 0.6f;
    CHECK(jem_sgld(ctx, gauss, NULL, x, &ula, rng) == JEM_OK, "%s", jem_error(ctx));
    CHECK(t->steps == STEPS, "watched %d times", t->steps);
    CHECK(fabs(variance - 1) < 0.03, "its bias has gone: %g", variance);
    double sum = 0;
    for (int i = 0; i < CHAINS; i++) {
        const double v = (double)t->v[(STEPS - 1) * CHAINS + i];
        sum += v * v / CHAINS;
    }
    CHECK(fabs(sum - variance) < 4.5 * variance * sqrt(2.0 / CHAINS), "%g of %g", sum, variance);
    /* Without noise every step is a factor of 1 - a_t/2. */
    double factor = 1;
    float ones[CHAINS];
    for (int i = 0; i < CHAINS; i++) ones[i] = 1;
    for (int i = 0; i < 20; i++) factor *= 1 - pow(1 + i / 10.0, -0.6) / 2;
    x = jem_input(ctx, ones, CHAINS, 1, 1, 1);
    ula.steps = 20;
    CHECK(jem_sgld(ctx, gauss, NULL, x, &ula, NULL) == JEM_OK, "%s", jem_error(ctx));
    CHECK_CLOSE(t->v[19 * CHAINS], factor, 1e-5 * factor, "the schedule");
}

/* At a = 1, Langevin without a decision has variance 1/(1 - a/4) = 4/3 of N(0,1); MALA has 1. */
static void test_bias(jem_ctx *ctx) {
    printf("where ULA is biased MALA is not; a decaying step forgets the bias\n");
    enum { CHAINS = BIAS_CHAINS, STEPS = BIAS_STEPS, FROM = 100 };
    trace t = trace_open(CHAINS, 1, STEPS);
    chain_stats s;
    double off;
    jem_rng rng = jem_rng_seed(12);
    jem_sgld_desc ula = jem_sgld_desc_langevin(1, STEPS);
    ula.watch = record;
    ula.watch_user = &t;
    jem_tensor *x = random_leaf(ctx, &rng, shape(CHAINS, 1, 1, 1), -1, 1);
    CHECK(jem_sgld(ctx, gauss, NULL, x, &ula, &rng) == JEM_OK, "%s", jem_error(ctx));
    off = moment(&t, FROM, 2, 0, 4.0 / 3, &s);
    CHECK(fabs(off) < 4.5, "ULA: %g +- %g", s.mean, s.error);
    off = moment(&t, FROM, 2, 0, 1, &s);
    CHECK(fabs(off) > 30, "its bias is seen: %g +- %g", s.mean, s.error);

    jem_mcmc_desc mala = jem_mcmc_desc_default();
    mala.steps = STEPS;
    mala.step_size = 1;
    mala.watch = record;
    mala.watch_user = &t;
    CHECK(jem_mcmc(ctx, gauss, NULL, x, &mala, &rng, NULL) == JEM_OK, "%s", jem_error(ctx));
    off = moment(&t, FROM, 2, 0, 1, &s);
    CHECK(fabs(off) < 4.5, "MALA: %g +- %g", s.mean, s.error);

    check_decay(ctx, ula, &t, &rng);
    free(t.v);
    jem_reset(ctx);
}

/* .3 N(-4, 1/4) + .7 N(4, 1/4) in u, N(0, 1/4) in v: 32 nats of nothing between. */
static jem_tensor *apart(jem_ctx *ctx, jem_tensor *x, void *user) {
    (void)user;
    jem_tensor *u = jem_slice(ctx, x, 0, 1);
    jem_tensor *v = jem_square(ctx, jem_slice(ctx, x, 1, 1));
    jem_tensor *a = jem_scale(ctx, jem_square(ctx, jem_add_constant(ctx, u, 4)), -2);
    jem_tensor *b = jem_scale(ctx, jem_square(ctx, jem_add_constant(ctx, u, -4)), -2);
    a = jem_add_constant(ctx, a, logf(0.3f));
    b = jem_add_constant(ctx, b, logf(0.7f));
    a = jem_logsumexp(ctx, jem_concat(ctx, a, b));
    return jem_add(ctx, a, jem_scale(ctx, v, -2));
}

/* The trace of one temperature of a ladder. */
static trace rung(const trace *t, int k, int temperatures) {
    trace r = trace_open(t->chains / temperatures, t->numbers, t->steps);
    r.steps = t->steps;
    for (ptrdiff_t i = 0; i < (ptrdiff_t)r.chains * r.steps; i++)
        memcpy(r.v + i * r.numbers, t->v + (i * temperatures + k) * r.numbers,
               (size_t)r.numbers * sizeof *r.v);
    return r;
}

static void test_tempering(jem_ctx *ctx) {
    printf("tempering: modes that a walk does not cross, and the weight of each\n");
    enum { CHAINS = 24, LADDER = 6, ALL = CHAINS * LADDER, STEPS = 3000, FROM = 500 };
    float start[2 * ALL], swapped[LADDER - 1];
    for (int i = 0; i < 2 * ALL; i++) start[i] = i % 2 ? 0 : -4;       /* all on the lighter side */
    for (int leapfrog = 0; leapfrog < 5; leapfrog += leapfrog ? 3 : 1) {           /* 0, 1, 4 */
        char what[32];
        jem_rng rng = jem_rng_seed(21);
        jem_mcmc_desc d = jem_mcmc_desc_default();
        trace t = trace_open(ALL, 2, STEPS);
        snprintf(what, sizeof what, "tempering, %d leapfrog", leapfrog);
        d.steps = STEPS;
        d.step_size = leapfrog == 4 ? 0.25f : 0.6f;
        d.leapfrog = leapfrog;
        d.temperatures = LADDER;
        d.hottest = 40;
        d.swapped = swapped;
        d.watch = record;
        d.watch_user = &t;
        jem_tensor *x = jem_input(ctx, start, ALL, 2, 1, 1);
        CHECK(jem_mcmc(ctx, apart, NULL, x, &d, &rng, NULL) == JEM_OK, "%s", jem_error(ctx));
        trace cold = rung(&t, 0, LADDER);
        check_below(&cold, FROM, 0, 0, 0.3, what);
        check_moment(&cold, FROM, 1, 0, 0.4 * 4, what);
        check_moment(&cold, FROM, 2, 0, 16.25, what);
        check_moment(&cold, FROM, 0, 2, 0.25, what);
        for (int k = 0; k < LADDER - 1; k++)
            CHECK(swapped[k] > 0.2f && swapped[k] < 0.95f, "%s: %d and %d exchange %g", what, k,
                  k + 1, (double)swapped[k]);
        free(cold.v);
        if (leapfrog == 1) {                       /* single steps are all accepted */
            d.temperatures = 1;
            d.swapped = NULL;
            x = jem_input(ctx, start, ALL, 2, 1, 1);
            CHECK(jem_mcmc(ctx, apart, NULL, x, &d, &rng, NULL) == JEM_OK, "%s", jem_error(ctx));
            for (int i = 0; i < ALL * STEPS; i++) if (t.v[2 * i] > 0) { CHECK(0, "left"); break; }
        }
        free(t.v);
        jem_reset(ctx);
    }
}

/* Every temperature has its own density: N(0, T) for N(0, 1). Equal ones always exchange. */
static void test_tempered_densities(jem_ctx *ctx) {
    printf("tempering: the density of each temperature\n");
    enum { CHAINS = 24, LADDER = 6, ALL = CHAINS * LADDER, STEPS = 3000, FROM = 500 };
    float swapped[LADDER - 1];
    for (int equal = 0; equal < 2; equal++) {
        jem_rng rng = jem_rng_seed(22);
        jem_mcmc_desc d = jem_mcmc_desc_default();
        trace t = trace_open(ALL, 1, STEPS);
        d.steps = STEPS;
        d.step_size = 1.2f;
        d.temperatures = LADDER;
        d.hottest = equal ? 1 : 32;
        d.swapped = swapped;
        d.watch = record;
        d.watch_user = &t;
        jem_tensor *x = jem_zeros(ctx, ALL, 1, 1, 1);
        CHECK(jem_mcmc(ctx, gauss, NULL, x, &d, &rng, NULL) == JEM_OK, "%s", jem_error(ctx));
        for (int k = 0; k < LADDER; k++) {
            trace r = rung(&t, k, LADDER);
            check_moment(&r, FROM, 2, 0, pow(equal ? 1 : 2, k), "a rung");
            free(r.v);
            if (equal && k) CHECK(swapped[k - 1] == 1, "equals always exchange");
        }
        free(t.v);
        jem_reset(ctx);
    }
}

/* Checks that a walk which began on one side ends on both as it cools, in proportions that it froze
   in: not exact. */
static void check_cooled_modes(jem_ctx *ctx, jem_rng *rng) {
    enum { CHAINS = 2048 };
    float *at = floats(2 * CHAINS);
    double right[2] = { 0, 0 };
    double far = 0;
    for (int hot = 0; hot < 2; hot++) {
        for (int i = 0; i < 2 * CHAINS; i++) at[i] = i % 2 ? 0 : -4;
        jem_sgld_desc d = jem_sgld_desc_langevin(0.05f, 600);
        jem_tensor *x = jem_input(ctx, at, CHAINS, 2, 1, 1);
        d.temperature_from = hot ? 60 : 1;
        d.temperature_to = 1;
        CHECK(jem_sgld(ctx, apart, NULL, x, &d, rng) == JEM_OK, "%s", jem_error(ctx));
        jem_read(x, at);
        for (int i = 0; i < CHAINS; i++) {
            const double off = fabs((double)at[2 * i]) - 4;
            right[hot] += (at[2 * i] > 0) / (double)CHAINS;
            far += off * off / (2 * CHAINS);
        }
    }
    CHECK(right[0] == 0, "without heat no chain crosses: %g", right[0]);
    CHECK(right[1] > 0.4 && right[1] < 0.8, "with it, many do: %g", right[1]);
    CHECK(far < 0.4, "and end in a mode: %g", far);
    free(at);
}

/* x' = (1 - a/2) x + sqrt(a T) z: V' = (1 - a/2)^2 V + a T. */
static void test_annealing(jem_ctx *ctx) {
    printf("annealing: a temperature that falls\n");
    enum { CHAINS = 2048, STEPS = 60 };
    jem_rng rng = jem_rng_seed(23);
    jem_sgld_desc d = jem_sgld_desc_langevin(0.2f, STEPS);
    float *at = floats(CHAINS);
    double variance = 0;
    double sum = 0;
    for (int i = 0; i < STEPS; i++)
        variance = 0.81 * variance + 0.2 * 9 * pow(1 / 36.0, i / (STEPS - 1.0));
    jem_tensor *x = jem_zeros(ctx, CHAINS, 1, 1, 1);
    d.temperature_from = 9;
    d.temperature_to = 0.25f;
    CHECK(jem_sgld(ctx, gauss, NULL, x, &d, &rng) == JEM_OK, "%s", jem_error(ctx));
    jem_read(x, at);
    for (int i = 0; i < CHAINS; i++) sum += (double)at[i] * (double)at[i] / CHAINS;
    CHECK(fabs(sum - variance) < 4.5 * variance * sqrt(2.0 / CHAINS), "%g of %g", sum, variance);

    float plain[2] = { 1, 2 }, even[2];                                /* at T = 1: the same */
    jem_rng once = rng;
    jem_rng again = rng;
    x = jem_input(ctx, plain, 2, 1, 1, 1);
    d.temperature_from = d.temperature_to = 1;
    jem_sgld(ctx, gauss, NULL, x, &d, &once);
    jem_read(x, even);
    x = jem_input(ctx, plain, 2, 1, 1, 1);
    d.temperature_from = 0;
    jem_sgld(ctx, gauss, NULL, x, &d, &again);
    jem_read(x, plain);
    CHECK(!memcmp(plain, even, sizeof even), "%g, not %g", (double)even[0], (double)plain[0]);
    free(at);

    check_cooled_modes(ctx, &rng);
    jem_reset(ctx);
}

/* Detailed balance, seen: in equilibrium, as many go from left to right as from right to left, for
   any two sets; so E[h(x, x')] = 0 for h(x, x') = u^2 v' - u'^2 v. */
static void test_balance(jem_ctx *ctx) {
    printf("detailed balance: forwards is like backwards\n");
    enum { CHAINS = 64, STEPS = 2000 };
    for (int leapfrog = 0; leapfrog < 3; leapfrog++) {
        trace t = trace_open(CHAINS, 2, STEPS);
        float *h = floats(CHAINS * (STEPS - 1));
        float start[2 * CHAINS];
        jem_rng rng = jem_rng_seed(13);
        for (int i = 0; i < CHAINS; i++) {         /* from the banana itself */
            start[2 * i] = jem_rng_normal(&rng);
            start[2 * i + 1] = (start[2 * i] * start[2 * i] - 1 + jem_rng_normal(&rng)) / 2;
        }
        jem_mcmc_desc d = jem_mcmc_desc_default();
        d.steps = STEPS;
        d.step_size = leapfrog == 2 ? 0.3f : 0.7f;
        d.leapfrog = leapfrog * leapfrog;
        d.watch = record;
        d.watch_user = &t;
        jem_tensor *x = jem_input(ctx, start, CHAINS, 2, 1, 1);
        CHECK(jem_mcmc(ctx, banana, NULL, x, &d, &rng, NULL) == JEM_OK, "%s", jem_error(ctx));
        for (int i = 0; i < CHAINS * (STEPS - 1); i++) {
            const float *a = t.v + 2 * i;
            const float *b = t.v + 2 * (i + CHAINS);
            h[i] = a[0] * a[0] * b[1] - b[0] * b[0] * a[1];
        }
        const chain_stats s = measure_chains(h, STEPS - 1, CHAINS);
        CHECK(fabs(s.mean) < 4.5 * s.error, "leapfrog %d: %g +- %g", d.leapfrog, s.mean, s.error);
        free(t.v);
        free(h);
        jem_reset(ctx);
    }
}

/* ---- log Z ----------------------------------------------------------------------------------- */

static void check_z(jem_ctx *ctx, jem_logp_fn fn, jem_tensor *x, const jem_ais_desc *d,
                    jem_rng *rng,
                    double known, double error, const char *what) {
    jem_ais_result r = { 0, 0, 0 };
    CHECK(jem_ais(ctx, fn, NULL, x, d, rng, &r) == JEM_OK, "%s: %s", what, jem_error(ctx));
    CHECK(fabs(r.log_z - known) < 4.5 * r.error + 1e-4, "%s: log Z is %.4f +- %.4f, known: %.4f",
          what, r.log_z, r.error, known);
    CHECK(r.error < error && r.effective_chains > 10, "%s: error %g, %g chains count", what,
          r.error, r.effective_chains);
}

/* What a few chains say of their error is, on average, what it is. */
static void test_z_error(jem_ctx *ctx) {
    printf("annealed importance sampling: its error, of a few chains\n");
    enum { TIMES = 3000 };
    jem_ais_desc d = jem_ais_desc_default();
    d.levels = 1;
    d.walk.steps = 0;
    d.std = 1.2f;
    for (int n = 2; n < 6; n += 3) {
        jem_rng rng = jem_rng_seed((uint64_t)n);
        double claimed = 0, sum = 0, squares = 0;     /* of the estimate of Z / Z */
        for (int i = 0; i < TIMES; i++) {
            jem_ais_result r;
            jem_ais(ctx, gauss, NULL, jem_zeros(ctx, n, 1, 1, 1), &d, &rng, &r);
            const double z = exp(r.log_z) / sqrt(6.283185307179586);
            const double error = z * r.error;
            sum += z;
            squares += z * z;
            claimed += error * error;
            jem_reset(ctx);
        }
        const double is = squares / TIMES - sum / TIMES * (sum / TIMES);
        CHECK(jem_ok(ctx) && fabs(sum / TIMES - 1) < 0.02, "%d chains: Z is %g of it", n,
              sum / TIMES);
        CHECK(fabs(claimed / TIMES / is - 1) < 0.15, "%d chains: variance %g, claimed %g", n, is,
              claimed / TIMES);
    }
}

static void test_log_z(jem_ctx *ctx) {
    printf("annealed importance sampling: log Z\n");
    jem_rng rng = jem_rng_seed(14);
    jem_ais_desc d = jem_ais_desc_default();
    d.levels = 120;
    d.std = 1.5f;
    d.walk.step_size = 0.25f;
    d.walk.leapfrog = 3;
    jem_tensor *x = jem_zeros(ctx, 256, 2, 1, 1);
    check_z(ctx, correlated, x, &d, &rng, log(CORRELATED_Z), 0.05, "correlated");
    check_z(ctx, banana, x, &d, &rng, log(6.283185307179586 * 0.5), 0.05, "banana");
    x = jem_zeros(ctx, 256, 1, 1, 1);
    check_z(ctx, mixture, x, &d, &rng, 3, 0.05, "mixture");
    x = jem_zeros(ctx, 64, 3, 4, 2);               /* 24 dimensions */
    d.levels = 200;
    d.mean = 0.5f;
    check_z(ctx, gauss, x, &d, &rng, 12 * log(6.283185307179586), 0.3, "24 dimensions");
    d.levels = 1;
    d.walk.steps = 0;
    d.mean = 0;
    d.std = 1;             /* q is p: exact at once */
    check_z(ctx, gauss, x, &d, &rng, 12 * log(6.283185307179586), 1e-5, "itself");
    jem_reset(ctx);
}

/* ---- diagnostics ----------------------------------------------------------------------------- */

/* x' = r x + sqrt(1 - r^2) z: autocorrelation r^t, hence tau = (1 + r)/(1 - r). */
static void test_known_tau(void) {
    printf("diagnostics: chains whose autocorrelation time is known\n");
    enum { CHAINS = 8, STEPS = 20000 };
    static const float r[4] = { 0, 0.5f, 0.9f, -0.5f };
    float *v = floats(CHAINS * STEPS);
    for (int k = 0; k < 4; k++) {
        jem_rng rng = jem_rng_seed(15);
        for (int i = 0; i < CHAINS * STEPS; i++) {
            const float z = jem_rng_normal(&rng);
            v[i] = i < CHAINS ? z : r[k] * v[i - CHAINS] + sqrtf(1 - r[k] * r[k]) * z;
        }
        const chain_stats s = measure_chains(v, STEPS, CHAINS);
        const double tau = (1 + (double)r[k]) / (1 - (double)r[k]);
        CHECK(fabs(s.tau / tau - 1) < 0.08, "r %g: tau %g, known %g", (double)r[k], s.tau, tau);
        CHECK_CLOSE(s.ess * s.tau, CHAINS * STEPS, 1, "ess");
        CHECK_CLOSE(s.std, 1, 0.05, "std");
        CHECK(fabs(s.mean) < 4.5 * s.error && s.rhat < 1.01, "mean %g +- %g, R-hat %g", s.mean,
              s.error, s.rhat);
    }
    for (int i = 0; i < CHAINS * STEPS; i++) if (i % CHAINS == 0) v[i] += 1;
    CHECK(measure_chains(v, STEPS, CHAINS).rhat > 1.05, "a chain that disagrees is seen");
    for (int i = 0; i < CHAINS * STEPS; i++)
        v[i] = (float)(i / CHAINS) / STEPS + 0.01f * (float)(i % 7);
    CHECK(measure_chains(v, STEPS, CHAINS).rhat > 1.5, "and so is one that drifts");
    const chain_stats few = measure_chains(v, 7, 2);
    CHECK(few.ess != few.ess, "too few steps: NaN");
    const chain_stats none = measure_chains(NULL, 100, 2);
    CHECK(none.rhat != none.rhat, "no numbers: NaN");
    for (int i = 0; i < CHAINS * STEPS; i++) v[i] = 0.1f;      /* whose mean is rounded */
    const chain_stats still = measure_chains(v, STEPS, CHAINS);
    CHECK_CLOSE(still.mean, 0.1f, 1e-9, "chains that stand still");
    CHECK(still.std == 0 && still.ess != still.ess && still.rhat != still.rhat,
          "are worth nothing");
    free(v);
}

typedef struct golden { int steps, chains; double drift, ess, rhat, mean; } golden;
/* R's posterior 1.4.0 (Stan's own): ess_basic(v), rhat_basic(v), mean(v): diagnostics.R */
static const golden posterior[] = {
    { 200, 4, 0, 137.674617, 1.01520819, -0.0323527986 },
    { 1000, 2, 0.5, 13.4179509, 1.11197397, 0.131032059 },
    { 501, 3, 0, 220.207106, 1.01065594, -0.0139379338 },
    { 64, 1, 0, 12.0557311, 1.11145095, 0.00803743037 },
    { 20, 2, 0, 6.97491054, 1.35192457, -0.0089635885 }
};

/* Chains of an integer generator, so that any language makes the same: chain c follows
   v' = 3/4 v + u, u = s/2^31 - 1/2, s' = 16807 s mod (2^31 - 1), and drifts. */
static void test_golden(void) {
    printf("diagnostics: the numbers of R's package posterior\n");
    for (size_t k = 0; k < sizeof posterior / sizeof *posterior; k++) {
        const golden *g = posterior + k;
        float *v = floats((ptrdiff_t)g->steps * g->chains);
        double s = 1;
        for (int c = 0; c < g->chains; c++) {
            double at = 0;
            for (int i = 0; i < g->steps; i++) {
                s = fmod(s * 16807, 2147483647);
                at = 0.75 * at + s / 2147483648.0 - 0.5;
                v[i * g->chains + c] = (float)(at + g->drift * i * c / g->steps);
            }
        }
        const chain_stats d = measure_chains(v, g->steps, g->chains);
        CHECK_CLOSE(d.ess, g->ess, 1e-4 * g->ess, "%d x %d: ess", g->steps, g->chains);
        CHECK_CLOSE(d.rhat, g->rhat, 1e-5, "%d x %d: R-hat", g->steps, g->chains);
        if (g->steps % 2 == 0) CHECK_CLOSE(d.mean, g->mean, 1e-5, "mean");    /* else of halves */
        free(v);
    }
}

/* ---- mistakes -------------------------------------------------------------------------------- */

static void test_errors(jem_ctx *ctx) {
    printf("errors are reported, too large steps rejected, the same seed gives the same chains\n");
    jem_rng rng = jem_rng_seed(1);
    jem_mcmc_desc d = jem_mcmc_desc_default();
    d.steps = 20;
    jem_tensor *x = random_leaf(ctx, &rng, shape(20, 2, 1, 1), -1, 1);
    float a[40], b[40], accepted[20];
    CHECK(jem_mcmc(ctx, gauss, NULL, x, &d, NULL, NULL) == JEM_BAD_ARGUMENT &&
          says(ctx, "rng is NULL"), "no rng");
    CHECK(jem_mcmc(ctx, gauss, NULL, NULL, &d, &rng, NULL) == JEM_BAD_ARGUMENT &&
          says(ctx, "mcmc"), "no leaf");
    CHECK(jem_mcmc(ctx, gauss, NULL, jem_square(ctx, x), &d, &rng, NULL) == JEM_BAD_ARGUMENT &&
          says(ctx, "leaf"), "not a leaf");
    CHECK(jem_mcmc(ctx, nothing, NULL, x, &d, &rng, NULL) == JEM_BAD_SHAPE && says(ctx, "nothing"),
          "no density");
    CHECK(jem_mcmc(ctx, too_many, NULL, x, &d, &rng, NULL) == JEM_BAD_SHAPE &&
          says(ctx, "(20,2,1,1)"), "two numbers per image");
    CHECK(jem_mcmc(ctx, infinite, NULL, x, &d, &rng, NULL) == JEM_DIVERGED &&
          says(ctx, "not finite"), "a density that is not one");
    d.step_size = 0;
    CHECK(jem_mcmc(ctx, gauss, NULL, x, &d, &rng, NULL) == JEM_BAD_ARGUMENT &&
          says(ctx, "step_size = 0"), "no step");
    jem_ais_desc ais = jem_ais_desc_default();
    ais.std = 0;
    jem_ais_result r;
    CHECK(jem_ais(ctx, gauss, NULL, x, &ais, &rng, &r) == JEM_BAD_ARGUMENT &&
          says(ctx, "std = 0"), "no width");
    ais.std = 1;
    ais.levels = 2;
    ais.walk.temperatures = 2;
    CHECK(jem_ais(ctx, gauss, NULL, x, &ais, &rng, &r) == JEM_BAD_ARGUMENT &&
          says(ctx, "temperatures = 2"), "a ladder");
    d.step_size = 1;
    d.temperatures = 3;
    CHECK(jem_mcmc(ctx, gauss, NULL, x, &d, &rng, NULL) == JEM_BAD_ARGUMENT &&
          says(ctx, "20 images are not a multiple of temperatures = 3"), "no ladders");
    d.temperatures = 2;
    d.hottest = 0.5f;
    CHECK(jem_mcmc(ctx, gauss, NULL, x, &d, &rng, NULL) == JEM_BAD_ARGUMENT &&
          says(ctx, "hottest = 0.5"), "colder than 1");
    jem_sgld_desc walk = jem_sgld_desc_default();
    walk.temperature_from = 1;
    CHECK(jem_sgld(ctx, gauss, NULL, x, &walk, &rng) == JEM_BAD_ARGUMENT &&
          says(ctx, "temperature_to = 0"), "no temperature");
    walk.temperature_from = 0;
    walk.decay_b = -1;
    CHECK(jem_sgld(ctx, gauss, NULL, x, &walk, &rng) == JEM_BAD_ARGUMENT &&
          says(ctx, "decay_b = -1"), "b");
    ais.walk.temperatures = 1;
    CHECK(jem_ais(ctx, nothing, NULL, x, &ais, &rng, &r) == JEM_BAD_SHAPE &&
          says(ctx, "ais: the log-density returned nothing"), "no density");
    CHECK(jem_mcmc(NULL, gauss, NULL, x, &d, &rng, NULL) == JEM_BAD_ARGUMENT, "no context");

    d = jem_mcmc_desc_default();
    d.steps = 50;
    d.step_size = 1e20f;
    d.leapfrog = 3;
    CHECK(jem_read(x, a) == JEM_OK, "where they are");
    CHECK(jem_mcmc(ctx, gauss, NULL, x, &d, &rng, accepted) == JEM_OK, "%s", jem_error(ctx));
    CHECK(jem_read(x, b) == JEM_OK && same_bits(a, b, 40), "no chain moves with such steps");
    for (int i = 0; i < 20; i++) CHECK(accepted[i] == 0, "none is accepted");

    d.step_size = 0.5f;
    jem_rng again = rng;
    CHECK(jem_mcmc(ctx, gauss, NULL, x, &d, &rng, accepted) == JEM_OK, "%s", jem_error(ctx));
    jem_read(x, b);
    jem_write(x, a);
    CHECK(jem_mcmc(ctx, gauss, NULL, x, &d, &again, NULL) == JEM_OK, "%s", jem_error(ctx));
    jem_read(x, a);
    CHECK(same_bits(a, b, 40), "the same chains");
    jem_reset(ctx);
}

static int stop_early(void *user, int step, jem_tensor *x) {
    (void)user;
    (void)x;
    return step == 9;
}
static jem_tensor *no_slope(jem_ctx *ctx, jem_tensor *x, void *user) {
    return jem_detach(ctx, gauss(ctx, x, user));
}

/* Shares are of what was proposed, and a random walk asks for no gradient. */
static void test_shares(jem_ctx *ctx) {
    printf("a walk that is stopped early, and one without a slope\n");
    enum { N = 12 };
    float swapped[2], accepted[N];
    for (int stop = 0; stop < 2; stop++) {
        jem_rng rng = jem_rng_seed(5);
        jem_mcmc_desc d = jem_mcmc_desc_default();
        d.steps = stop ? INT32_MAX : 10;
        d.step_size = 1e-4f;
        d.temperatures = 3;
        d.hottest = 1;
        d.watch = stop ? stop_early : NULL;
        d.swapped = swapped;
        d.leapfrog = stop;
        jem_tensor *x = jem_zeros(ctx, N, 2, 1, 1);
        CHECK(jem_mcmc(ctx, stop ? gauss : no_slope, NULL, x, &d, &rng, accepted) == JEM_OK,
              "%s", jem_error(ctx));
        for (int i = 0; i < N; i++) CHECK(accepted[i] == 1, "%d: %g", i, (double)accepted[i]);
        CHECK(swapped[0] == 1 && swapped[1] == 1, "%g, %g", (double)swapped[0],
              (double)swapped[1]);
        jem_reset(ctx);
    }
}

/* The same bits on every instruction set. */
static void test_bits(void) {
    printf("the same bits on every instruction set\n");
    float first[2 * 20], x[2 * 20];
    for (int isa = JEM_ISA_SCALAR; isa <= JEM_ISA_NEON; isa++) {
        if (!jem_isa_available((jem_isa)isa)) continue;
        jem_ctx *ctx = isa_ctx((jem_isa)isa, isa % 2 ? 1 : 3);
        jem_rng rng = jem_rng_seed(4);
        jem_mcmc_desc d = jem_mcmc_desc_default();
        d.steps = 100;
        d.leapfrog = 4;
        d.step_size = 0.3f;
        d.temperatures = 5;
        jem_tensor *t = random_leaf(ctx, &rng, shape(20, 2, 1, 1), -1, 1);
        CHECK(jem_mcmc(ctx, banana, NULL, t, &d, &rng, NULL) == JEM_OK, "%s", jem_error(ctx));
        CHECK(jem_read(t, x) == JEM_OK, "%s", jem_error(ctx));
        if (isa == JEM_ISA_SCALAR) memcpy(first, x, sizeof x);
        CHECK(same_bits(first, x, 40), "%s", jem_isa_name((jem_isa)isa));
        jem_ctx_free(ctx);
    }
}

int main(int argc, char **argv) {
    static const test_case all[] = {
        TEST_IN(test_plane), TEST_IN(test_accepted), TEST_IN(test_mixture), TEST_IN(test_bias),
        TEST_IN(test_tempering), TEST_IN(test_tempered_densities), TEST_IN(test_annealing),
        TEST_IN(test_balance), TEST_IN(test_log_z), TEST_IN(test_z_error), TEST(test_known_tau),
        TEST(test_golden), TEST_IN(test_errors), TEST_IN(test_shares), TEST(test_bits)
    };
    return run_in_ctx(argc, argv, all, TEST_COUNT(all), no_error_left);
}
