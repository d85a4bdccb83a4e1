/* >>samplers, >>optim, >>train, >>eval: chains compared with known results, within a number of
   standard errors; updates compared with manual ones; and steps that fail without side effects. */
#define JEM_IMPLEMENTATION
#include "jem.h"
#include "tests/support/test.h"
#include "tests/support/common.h"

static jem_sgld_desc walk_of(int steps, float step_size, float noise_std) {
    jem_sgld_desc d = jem_sgld_desc_default();
    d.steps = steps;
    d.step_size = step_size;
    d.noise_std = noise_std;
    return d;
}

/* ---- densities whose chains are known -------------------------------------------------------- */
/* Langevin's x' = x + a/2 dlogp/dx + sqrt(a) z is only near the density; but what it does is a
   linear recursion for a Gaussian, and an integral for anything in one dimension. All below compare
   with that, so nothing needs to be small or near. */

/* log p = - sum w x^2 / 2, w a leaf of x's shape */
static jem_tensor *diagonal(jem_ctx *ctx, jem_tensor *x, void *weights) {
    jem_tensor *y = jem_mul(ctx, jem_square(ctx, x), (jem_tensor *)weights);
    return jem_scale(ctx, jem_sum_image(ctx, y), -0.5f);
}
/* log p = log sum_k w_k N(x; m_k, s^2) + constant; params: 1, 1 and -m; identity and log w */
static const double mixture_m[2] = { -1.2, 1.2 }, mixture_w[2] = { 0.3, 0.7 }, mixture_s = 0.7;
static jem_tensor *mixture(jem_ctx *ctx, jem_tensor *x, void *params) {
    jem_param *const *p = (jem_param *const *)params;
    jem_tensor *d = jem_square(ctx, jem_linear(ctx, x, p[0], p[1]));
    d = jem_scale(ctx, d, (float)(-0.5 / (mixture_s * mixture_s)));
    return jem_logsumexp(ctx, jem_linear(ctx, d, p[2], p[3]));
}
static double mixture_slope(double x) {
    double sum = 0;
    double slope = 0;
    for (int k = 0; k < 2; k++) {
        const double d = (x - mixture_m[k]) / mixture_s;
        const double p = mixture_w[k] * exp(-0.5 * d * d);
        sum += p;
        slope -= p * d / mixture_s;
    }
    return slope / sum;
}
static jem_tensor *flat(jem_ctx *ctx, jem_tensor *x, void *user) {
    (void)user;
    return jem_scale(ctx, jem_sum_image(ctx, x), 0);
}
static jem_tensor *upward(jem_ctx *ctx, jem_tensor *x, void *user) {    /* x' runs away */
    (void)user;
    return jem_sum_image(ctx, jem_square(ctx, jem_square(ctx, x)));
}

static void test_diagonal(jem_ctx *ctx) {
    printf("a Gaussian of four variances: the chain's own, in the end s^2/(1 - a/(4 s^2))\n");
    enum { N = 512, C = 4, P = 64, STEPS = 150 };
    static const double s2[C] = { 0.25, 0.5, 1, 2 };
    const double a = 0.2;
    static float x[N * C * P];
    for (int i = 0; i < N * C * P; i++) x[i] = (float)(1 / s2[i / P % C]);
    jem_tensor *weights = jem_input(ctx, x, N, C, 8, 8);
    jem_tensor *t = jem_zeros(ctx, N, C, 8, 8);
    const jem_sgld_desc d = jem_sgld_desc_langevin((float)a, STEPS);
    jem_rng rng = jem_rng_seed(1);
    CHECK(fabs((double)d.step_size - a / 2) < 1e-7 && fabs((double)d.noise_std - sqrt(a)) < 1e-7 &&
          d.steps == STEPS, "jem_sgld_desc_langevin");
    CHECK(jem_sgld(ctx, diagonal, weights, t, &d, &rng) == JEM_OK, "%s", jem_error(ctx));
    jem_read(t, x);
    for (int c = 0; c < C; c++) {
        double sum = 0;
        double squares = 0;
        double fourth = 0;
        for (int i = 0; i < N * C * P; i++) {
            if (i / P % C != c) continue;
            const double v = (double)x[i];
            sum += v;
            squares += v * v;
            fourth += v * v * v * v;
        }
        const double n = N * P;
        const double rho = 1 - a / (2 * s2[c]);
        const double var = s2[c] / (1 - a / (4 * s2[c])) * (1 - pow(rho, 2 * STEPS));
        CHECK(fabs(sum / n) < 4 * sqrt(var / n), "mean of %g: %g", s2[c], sum / n);
        CHECK(fabs(squares / n - var) < 4 * var * sqrt(2 / n), "variance of %g: %g, not %g", s2[c],
              squares / n, var);
        CHECK(fabs(fourth / n - 3 * var * var) < 4 * var * var * sqrt(96 / n), "kurtosis of %g: %g",
              s2[c], fourth / n / (var * var));
    }
    jem_reset(ctx);
}

static void test_correlated(jem_ctx *ctx) {
    printf("a correlated Gaussian: the chain's own covariance\n");
    enum { N = 40000, STEPS = 40 };
    static const float values[9] = { 1.5f, 0.6f, -0.3f, 0, 1, 0.5f, 0, 0, 0.8f };
    const double a = 0.3;
    double p[9];
    double m[9];
    double cov[9] = { 0 };
    const int shape[4] = { 3, 3, 1, 1 };
    jem_net *bag = bag_create(ctx);
    jem_param *l = jem_net_param(bag, "l", 2, shape, 0);
    memcpy(l->value, values, sizeof values);
    jem_param_changed(l);
    for (int i = 0; i < 9; i++) {                  /* P = L'L, M = I - a/2 P */
        p[i] = 0;
        for (int k = 0; k < 3; k++) p[i] += (double)(values[3 * k + i / 3] * values[3 * k + i % 3]);
        m[i] = (i % 4 == 0) - a / 2 * p[i];
    }
    for (int step = 0; step < STEPS; step++) {     /* cov <- M cov M' + a I */
        double next[9];
        for (int i = 0; i < 9; i++) {
            next[i] = i % 4 == 0 ? a : 0;
            for (int k = 0; k < 9; k++)
                next[i] += m[i / 3 * 3 + k / 3] * cov[k] * m[i % 3 * 3 + k % 3];
        }
        memcpy(cov, next, sizeof cov);
    }
    float *x = floats(3 * N);
    jem_tensor *t = jem_zeros(ctx, N, 3, 1, 1);
    const jem_sgld_desc d = jem_sgld_desc_langevin((float)a, STEPS);
    jem_rng rng = jem_rng_seed(2);
    CHECK(jem_sgld(ctx, gauss_of, l, t, &d, &rng) == JEM_OK, "%s", jem_error(ctx));
    jem_read(t, x);
    for (int i = 0; i < 9; i++) {
        double sum = 0;
        for (int k = 0; k < N; k++) sum += (double)x[3 * k + i / 3] * (double)x[3 * k + i % 3];
        const double c = cov[i];
        const double error = sqrt((cov[i / 3 * 4] * cov[i % 3 * 4] + c * c) / N);
        CHECK(fabs(sum / N - c) < 4 * error, "covariance %d: %g, not %g +- %g", i, sum / N, c,
              error);
    }
    free(x);
    jem_net_free(bag);
    jem_reset(ctx);
}

/* Points from -6 to 6. */
enum { GRID = 401 };
static const double grid_step = 12.0 / (GRID - 1);

/* Computes the chain's distribution on the grid after some steps from 0, each an integral. */
static void chain_on_grid(double a, int steps, double p[GRID]) {
    const double h = grid_step;
    const double pi = 3.141592653589793;
    static double from[GRID * GRID], next[GRID];
    for (int i = 0; i < GRID * GRID; i++) {        /* the chance to go from point to point */
        const double x = i % GRID * h - 6;
        const double y = i / GRID * h - 6;
        const double d = y - x - a / 2 * mixture_slope(x);
        from[i] = exp(-d * d / (2 * a)) / sqrt(2 * pi * a) * h;
    }
    for (int i = 0; i < GRID; i++) p[i] = i == GRID / 2;
    for (int step = 0; step < steps; step++) {
        for (int i = 0; i < GRID; i++) {
            next[i] = 0;
            for (int k = 0; k < GRID; k++) next[i] += from[i * GRID + k] * p[k];
        }
        memcpy(p, next, sizeof next);
    }
}

/* Returns x, x^2, x^4, and whether x > 0 (half, for 0), at point i of the grid. */
static double statistic_at(int k, int i) {
    const double x = i * grid_step - 6;
    switch (k) {
        case 0: return x;
        case 1: return x * x;
        case 2: return x * x * x * x;
        default: return i == GRID / 2 ? 0.5 : x > 0;
    }
}

static void test_mixture(jem_ctx *ctx) {
    printf("two modes: the chain's own distribution, from the integral\n");
    enum { N = 40000, STEPS = 30 };
    const double a = 0.25;
    double p[GRID];
    const int shape[4] = { 2, 1, 1, 1 };
    const int square[4] = { 2, 2, 1, 1 };
    jem_net *bag = bag_create(ctx);
    jem_param *params[4] = { jem_net_param(bag, "one", 2, shape, 0),
                             jem_net_param(bag, "m", 1, shape, 0),
                             jem_net_param(bag, "identity", 2, square, 0),
                             jem_net_param(bag, "w", 1, shape, 0) };
    for (int k = 0; k < 2; k++) {
        params[0]->value[k] = 1;
        params[1]->value[k] = (float)-mixture_m[k];
        params[2]->value[3 * k] = 1;
        params[3]->value[k] = (float)log(mixture_w[k]);
    }
    chain_on_grid(a, STEPS, p);
    double want[4] = { 0 }, got[4] = { 0 }, squares[4] = { 0 };        /* x, x^2, x^4, x > 0 */
    for (int i = 0; i < GRID; i++)
        for (int k = 0; k < 4; k++) {
            const double f = statistic_at(k, i);
            want[k] += p[i] * f;
            squares[k] += p[i] * f * f;
        }
    float *x = floats(N);
    jem_tensor *t = jem_zeros(ctx, N, 1, 1, 1);
    const jem_sgld_desc d = jem_sgld_desc_langevin((float)a, STEPS);
    jem_rng rng = jem_rng_seed(3);
    CHECK(jem_sgld(ctx, mixture, params, t, &d, &rng) == JEM_OK, "%s", jem_error(ctx));
    jem_read(t, x);
    for (int i = 0; i < N; i++) {
        const double v = (double)x[i];
        got[0] += v / N;
        got[1] += v * v / N;
        got[2] += v * v * v * v / N;
        got[3] += (v > 0) / (double)N;
    }
    for (int k = 0; k < 4; k++) {
        const double error = sqrt((squares[k] - want[k] * want[k]) / N);
        CHECK(fabs(got[k] - want[k]) < 4 * error, "moment %d: %g, not %g +- %g", k, got[k], want[k],
              error);
    }
    CHECK(want[3] > 0.55 && want[3] < 0.7, "both modes, and not yet settled: %g", want[3]);
    free(x);
    jem_net_free(bag);
    jem_reset(ctx);
}

/* ---- a walk, bit for bit --------------------------------------------------------------------- */

static jem_net *small_net(jem_ctx *ctx, uint64_t seed) {
    const small_shape s = { 2, 6, 5, 3, 0 };
    return small_convnet(ctx, s, 8, 9, seed);
}
enum { SMALL = 2 * 6 * 5 };

typedef struct watched { int calls, stop_at; float last[17 * SMALL]; } watched;
static int watch(void *user, int step, jem_tensor *x) {
    watched *w = (watched *)user;
    CHECK(step == w->calls, "step %d is call %d", step, w->calls);
    CHECK(jem_read(x, w->last) == JEM_OK, "x may be read");
    return ++w->calls == w->stop_at;
}

enum { WALKS = 17, ALL = WALKS * SMALL };

/* Checks a walk without noise by hand; bits of `clamp`: of the gradient, of x. */
static void check_ascent(jem_net *net, const float *start, jem_rng *rng, int clamp) {
    jem_ctx *ctx = net->ctx;
    float x[ALL], y[ALL], g[ALL];
    jem_sgld_desc d = walk_of(1, 3, 0);
    if (clamp & 1) d.clamp_grad = 0.01f;
    if (clamp & 2) {
        d.clamp_lo = -0.9f;
        d.clamp_hi = 0.8f;
    }
    jem_tensor *t = jem_input(ctx, start, WALKS, 2, 6, 5);
    jem_tensor *u = jem_input(ctx, start, WALKS, 2, 6, 5);
    memcpy(x, start, sizeof x);
    int wrong = 0;
    int moved = 0;
    for (int step = 0; step < 5; step++) {         /* the same by hand */
        jem_grad(jem_logp(ctx, u, net), u);
        jem_read_grad(u, g);
        for (int i = 0; i < ALL; i++) {
            const float by = clamp & 1 ? fminf(fmaxf(g[i], -0.01f), 0.01f) : g[i];
            x[i] = fmaf(3, by, x[i]);
            if (clamp & 2) x[i] = fminf(fmaxf(x[i], -0.9f), 0.8f);
        }
        jem_write(u, x);
        CHECK(jem_sgld(ctx, jem_logp, net, t, &d, step & 1 ? rng : NULL) == JEM_OK, "%s",
              jem_error(ctx));
    }
    jem_read(t, y);
    CHECK(same_bits(x, y, ALL), "clamp %d: without noise it is gradient ascent", clamp);
    for (int i = 0; i < ALL; i++) {
        if (clamp & 2) wrong += y[i] < -0.9f || y[i] > 0.8f;
        else if (clamp) wrong += fabsf(y[i] - start[i]) > 5 * 3 * 0.01f + 1e-6f;
        moved += y[i] != start[i];
    }
    CHECK(wrong == 0 && moved > ALL / 2, "clamp %d: %d too far, %d moved", clamp, wrong, moved);
    jem_reset(ctx);
}

/* Checks that 10 steps are 5 and 5 more, and what a walk leaves behind. */
static void check_resumed(jem_net *net, const float *start, jem_rng rng) {
    jem_ctx *ctx = net->ctx;
    float x[ALL], y[ALL], z[ALL];
    jem_rng a = rng;
    jem_rng b = rng;
    jem_sgld_desc d = walk_of(10, 2, 0.05f);
    jem_tensor *t = jem_input(ctx, start, WALKS, 2, 6, 5);
    jem_tensor *u = jem_input(ctx, start, WALKS, 2, 6, 5);
    jem_sgld(ctx, jem_logp, net, t, &d, &a);
    watched w;
    memset(&w, 0, sizeof w);
    d.watch = watch;
    d.watch_user = &w;
    w.stop_at = 5;
    CHECK(jem_sgld(ctx, jem_logp, net, u, &d, &b) == JEM_OK && w.calls == 5, "stopped by watch");
    jem_read(u, y);
    CHECK(same_bits(w.last, y, ALL), "what the watch saw last");
    w.calls = 0;
    w.stop_at = 0;
    d.steps = 5;
    CHECK(jem_sgld(ctx, jem_logp, net, u, &d, &b) == JEM_OK && w.calls == 5, "not stopped");
    jem_read(t, x);
    jem_read(u, y);
    CHECK(same_bits(x, y, ALL) && a.counter == b.counter, "5 steps and 5 steps are 10 steps");
    jem_write(u, start);
    d.watch = NULL;
    d.steps = 10;
    jem_sgld(ctx, jem_logp, net, u, &d, &b);
    jem_read(u, z);
    CHECK(!same_bits(x, z, ALL), "the next walk has other noise");
    jem_tensor *twice = jem_scale(ctx, u, 2);      /* read before and after a walk */
    jem_write(u, start);
    jem_read(twice, x);
    jem_sgld(ctx, jem_logp, net, u, &d, &b);
    jem_read(u, z);
    jem_read(twice, y);
    int stale = 0;
    for (int i = 0; i < ALL; i++) stale += x[i] != 2 * start[i] || y[i] != 2 * z[i];
    CHECK(stale == 0, "values that depend on x are computed again after a walk");
    d.steps = 0;
    jem_write(u, start);
    jem_sgld(ctx, jem_logp, net, u, &d, &b);
    jem_read(u, z);
    CHECK(same_bits(start, z, ALL), "no steps");
    jem_reset(ctx);
}

static void check_noise_alone(jem_ctx *ctx, jem_rng *rng) {
    const jem_sgld_desc d = walk_of(1, 7, 0.25f);
    static float noise[64 * 60];
    jem_tensor *t = jem_zeros(ctx, 64, 2, 6, 5);
    jem_rng a = *rng;
    jem_sgld(ctx, flat, NULL, t, &d, rng);
    jem_read(t, noise);
    double sum = 0;
    double squares = 0;
    for (int i = 0; i < 64 * 60; i++) {
        sum += (double)noise[i];
        squares += (double)noise[i] * (double)noise[i];
    }
    CHECK(fabs(sum / 3840) < 4 * 0.25 / sqrt(3840), "mean %g", sum / 3840);
    CHECK(fabs(squares / 3840 - 0.0625) < 4 * 0.0625 * sqrt(2.0 / 3840), "%g", squares / 3840);
    float *plain = floats(3840);
    jem_fill_normal(ctx, &a, plain, 3840, 0, 0.25f);
    CHECK(same_bits(plain, t->node->value, 3840), "it is jem_fill_normal, in the order of memory");
    free(plain);
}

static void test_walk(jem_ctx *ctx) {
    printf("a walk step by step: ascent, clamps, noise, watching, resuming\n");
    jem_net *net = small_net(ctx, 1);
    jem_rng rng = jem_rng_seed(4);
    float *start = random_floats(&rng, ALL, -1, 1);
    for (int clamp = 0; clamp < 4; clamp++) check_ascent(net, start, &rng, clamp);
    check_resumed(net, start, rng);
    check_noise_alone(ctx, &rng);
    free(start);
    jem_net_free(net);
    jem_reset(ctx);
}

static jem_tensor *one_number(jem_ctx *ctx, jem_tensor *x, void *user) {
    (void)user;
    return jem_sum(ctx, x);
}
static jem_tensor *nothing(jem_ctx *ctx, jem_tensor *x, void *user) {
    (void)ctx;
    (void)x;
    (void)user;
    return NULL;
}
/* Gentle where the chains are; beyond 88 its gradient is 0 times infinity. */
static jem_tensor *steep(jem_ctx *ctx, jem_tensor *x, void *user) {
    (void)user;
    jem_tensor *far = jem_square(ctx, jem_scale(ctx, jem_exp(ctx, x), 100));
    far = jem_scale(ctx, far, -1e-34f);
    return jem_sum_image(ctx, jem_add(ctx, far, jem_scale(ctx, jem_square(ctx, x), -0.5f)));
}

static int stop_at_5(void *user, int step, jem_tensor *x) {
    (void)user;
    (void)x;
    return step == 5;
}
/* The message about a walk that was stopped counts the steps that were taken. */
static void check_stopped_walk(jem_ctx *ctx, jem_sgld_desc d) {
    jem_rng rng = jem_rng_seed(5);
    jem_tensor *x = random_leaf(ctx, &rng, shape(3, 2, 1, 1), 1, 2);
    d.watch = stop_at_5;
    CHECK(jem_sgld(ctx, upward, NULL, x, &d, &rng) == JEM_DIVERGED && says(ctx, "after 6 steps"),
          "6 of %d steps", d.steps);
}

static void test_walk_errors(jem_ctx *ctx) {
    printf("walks that go wrong\n");
    jem_rng rng = jem_rng_seed(5);
    const jem_sgld_desc d = walk_of(50, 10, 0.1f);
    jem_tensor *x = random_leaf(ctx, &rng, shape(3, 2, 1, 1), 1, 2);
    CHECK(jem_sgld(ctx, upward, NULL, x, &d, &rng) == JEM_DIVERGED && says(ctx, "(3,2,1,1)"), "up");
    check_stopped_walk(ctx, d);
    x = random_leaf(ctx, &rng, shape(3, 2, 1, 1), 1, 2);
    CHECK(jem_sgld(ctx, one_number, NULL, x, &d, &rng) == JEM_BAD_SHAPE && says(ctx, "(1,1,1,1)"),
          "one number for three images");
    CHECK(jem_sgld(ctx, nothing, NULL, x, &d, &rng) != JEM_OK && says(ctx, "sgld"), "NULL");
    CHECK(jem_sgld(ctx, NULL, NULL, x, &d, &rng) == JEM_BAD_ARGUMENT && says(ctx, "sgld"), "no fn");
    CHECK(jem_sgld(ctx, flat, NULL, NULL, &d, &rng) == JEM_BAD_ARGUMENT &&
          says(ctx, "x is NULL"), "x");
    CHECK(jem_sgld(ctx, flat, NULL, jem_exp(ctx, x), &d, &rng) == JEM_BAD_ARGUMENT &&
          says(ctx, "leaf"), "not a leaf");
    CHECK(jem_sgld(NULL, flat, NULL, x, &d, &rng) == JEM_BAD_ARGUMENT, "no context");
    CHECK(jem_sgld(ctx, flat, NULL, x, NULL, NULL) == JEM_OK, "the default walk, without noise");
    /* The 13 lanes without an image must not walk off to where nothing holds them. */
    const jem_sgld_desc longer = jem_sgld_desc_langevin(1, 20000);
    x = jem_zeros(ctx, 3, 1, 1, 1);
    CHECK(jem_sgld(ctx, steep, NULL, x, &longer, &rng) == JEM_OK, "%s", jem_error(ctx));
    jem_clear_error(ctx);
    jem_reset(ctx);
}

/* ---- the replay buffer ----------------------------------------------------------------------- */

enum { CAPACITY = 103, KINDS = 5, CHAIN = 3 * 2 * 2, DRAWN = 4000 };

/* Checks that slots are drawn evenly, of the labels' classes if there are labels. */
static void check_draws(jem_buffer *b, jem_rng *rng, const int *labels, const float *old, float *x,
                        int *slot) {
    int count[CAPACITY] = { 0 };
    int fresh = 0;
    int outside = 0;
    CHECK(jem_buffer_draw(b, rng, DRAWN, labels, 0.05f, x, slot) == JEM_OK, "%s",
          jem_error(b->ctx));
    for (int i = 0; i < DRAWN; i++) {
        const int per = CAPACITY / KINDS;
        if (labels) outside += slot[i] / per != labels[i];
        else outside += slot[i] < 0 || slot[i] >= CAPACITY;
        if (outside == 0) count[slot[i]]++;
        fresh += !same_bits(x + i * CHAIN, old + slot[i] * CHAIN, CHAIN);
    }
    CHECK(outside == 0, "%d slots outside", outside);
    CHECK(fabs(fresh - 0.05 * DRAWN) < 4 * sqrt(DRAWN * 0.05 * 0.95), "restarted: %d of %d", fresh,
          DRAWN);
    double chi2 = 0;
    const int n = labels ? CAPACITY / KINDS * KINDS : CAPACITY;
    for (int i = 0; i < n; i++) chi2 += pow(count[i] - (double)DRAWN / n, 2) * n / DRAWN;
    CHECK(chi2 < n + 4 * sqrt(2.0 * n), "slots are drawn evenly: chi^2 %g of %d", chi2, n);
}

/* Checks what is drawn after 20 chains have been put back. */
static void check_puts(jem_buffer *b, jem_rng *rng, const float *old, const float *put, float *x,
                       int *slot) {
    int bad = 0;
    for (int i = 0; i < 20; i++) slot[i] = 5 * i;
    memset(b->visits, 0, CAPACITY * sizeof *b->visits);
    CHECK(jem_buffer_put(b, 20, slot, put) == JEM_OK && jem_buffer_put(b, 10, slot, put) == JEM_OK,
          "%s", jem_error(b->ctx));
    for (int i = 0; i < CAPACITY; i++) {
        const int mine = i % 5 == 0 && i < 100;
        const float *want = mine ? put + i / 5 * CHAIN : old + i * CHAIN;
        bad += !same_bits(b->data + i * CHAIN, want, CHAIN);
        bad += b->visits[i] != mine + (mine && i < 50);
    }
    CHECK(bad == 0, "put: %d wrong", bad);
    CHECK(jem_buffer_draw(b, rng, DRAWN, NULL, 0, x, slot) == JEM_OK, "%s", jem_error(b->ctx));
    for (int i = 0; i < DRAWN; i++) {
        bad += !same_bits(x + i * CHAIN, b->data + slot[i] * CHAIN, CHAIN);
    }
    CHECK(bad == 0 && b->visits[0] == 2, "drawn as put: %d wrong", bad);
    CHECK(jem_buffer_draw(b, rng, DRAWN, NULL, 1, x, slot) == JEM_OK, "%s", jem_error(b->ctx));
    for (int i = 0; i < DRAWN; i++) bad += b->visits[slot[i]] != 0;
    for (int i = 0; i < DRAWN * CHAIN; i++) bad += !(x[i] >= -1 && x[i] < 1);
    CHECK(bad == 0, "all begin again in U(-1,1), never visited");
}

/* Checks labels and slots that do not exist, and a restart. */
static void check_restart(jem_buffer *b, jem_rng *rng, const float *put, float *x, int *labels,
                          int *slot) {
    jem_ctx *ctx = b->ctx;
    int bad = 0;
    labels[1] = KINDS;
    slot[1] = CAPACITY;
    CHECK(jem_buffer_draw(b, rng, 2, labels, 0, x, slot) == JEM_BAD_ARGUMENT &&
          says(ctx, "label 5 of image 1 is not in 0..4"), "a label outside: %s", jem_error(ctx));
    slot[0] = 0;
    slot[1] = CAPACITY;
    CHECK(jem_buffer_put(b, 2, slot, x) == JEM_BAD_ARGUMENT &&
          says(ctx, "slot 103 is not in 0..102"), "a slot outside: %s", jem_error(ctx));
    for (int i = 0; i < 20; i++) slot[i] = CAPACITY - 1 - i;
    CHECK(jem_buffer_put(b, 20, slot, put) == JEM_OK && b->visits[CAPACITY - 1] > 0, "put again");
    CHECK(jem_buffer_restart(b, rng, 4, 5) == JEM_OK, "%s", jem_error(ctx));
    for (int i = 0; i < CAPACITY; i++) bad += b->visits[i] != 0;
    for (int i = 0; i < CAPACITY * CHAIN; i++) bad += !(b->data[i] >= 4 && b->data[i] < 5);
    CHECK(bad == 0, "restarted: %d wrong", bad);
}

static void test_buffer(jem_ctx *ctx) {
    printf("the replay buffer: slots, restarts, what comes back\n");
    jem_rng rng = jem_rng_seed(6);
    jem_buffer *b = jem_buffer_create(ctx, CAPACITY, 3, 2, 2, KINDS, &rng);
    float *x = floats(DRAWN * CHAIN);
    float *old = floats(CAPACITY * CHAIN);
    int slot[DRAWN];
    int labels[DRAWN];
    int outside = 0;
    double sum = 0;
    memcpy(old, b->data, CAPACITY * CHAIN * sizeof *old);
    for (int i = 0; i < CAPACITY * CHAIN; i++) {
        outside += !(old[i] >= -1 && old[i] < 1);
        sum += (double)old[i];
    }
    CHECK(outside == 0 && fabs(sum) < 4 * sqrt(CAPACITY * CHAIN / 3.0), "begins as U(-1,1)");

    random_labels(&rng, labels, DRAWN, KINDS);
    check_draws(b, &rng, NULL, old, x, slot);
    check_draws(b, &rng, labels, old, x, slot);
    CHECK(same_bits(old, b->data, CAPACITY * CHAIN), "drawing changes no chain");

    float *put = random_floats(&rng, 20 * CHAIN, 2, 3);
    check_puts(b, &rng, old, put, x, slot);
    check_restart(b, &rng, put, x, labels, slot);
    CHECK(!jem_buffer_create(ctx, 4, 1, 1, 1, 5, &rng) && says(ctx, "capacity 4"), "too few slots");
    CHECK(!jem_buffer_create(ctx, 4, 1, 0, 1, 0, &rng) && says(ctx, "(1,0,1)"), "no image");
    CHECK(!jem_buffer_create(ctx, 4, 1, 1, 1, 0, NULL) && says(ctx, "rng"), "no rng");
    jem_buffer_free(b);
    free(x);
    free(old);
    free(put);
}

/* ---- exact samplers (test_exact_samplers.c has their densities) ------------------------------ */

static jem_tensor *needle(jem_ctx *ctx, jem_tensor *x, void *user) {
    (void)user;
    return jem_scale(ctx, jem_sum_image(ctx, jem_square(ctx, x)), -0.5e6f);
}
/* One of 2^24 draws is 0, whose logarithm is less than any gain. */
static void test_no_chance(jem_ctx *ctx) {
    printf("a proposal without a chance, whatever is drawn\n");
    enum { CHAINS = 13, ZERO = 116700 };           /* a draw of the last chain */
    jem_rng rng = jem_rng_seed(8);
    rng.counter = ZERO;
    CHECK(jem_rng_uniform(&rng) == 0, "such a draw");
    rng.counter = ZERO / 16 * 16 - 16;             /* those before it make the proposals */
    const jem_mark mark = jem_begin(ctx);
    jem_tensor *x = jem_zeros(ctx, CHAINS, 1, 1, 2);
    jem_mcmc_desc d = jem_mcmc_desc_default();
    d.steps = 1;
    d.leapfrog = 0;
    d.step_size = 1;
    float took[CHAINS];
    float all = 0;
    CHECK(jem_mcmc(ctx, needle, NULL, x, &d, &rng, took) == JEM_OK, "%s", jem_error(ctx));
    CHECK(rng.counter >= ZERO + 2, "the draw was made");
    for (int i = 0; i < CHAINS; i++) all += took[i];
    CHECK(all == 0, "%g were taken", (double)all);

    jem_ais_desc a = jem_ais_desc_default();
    jem_ais_result r;
    a.levels = 1;
    CHECK(jem_ais(ctx, needle, NULL, jem_zeros(ctx, 1, 1, 1, 2), &a, &rng, &r) == JEM_OK &&
          r.error == HUGE_VAL, "a single chain's error: %g", r.error);
    jem_end(ctx, mark);
}

/* ---- schedules, updates ---------------------------------------------------------------------- */

static void test_schedules(void) {
    printf("learning rates\n");
    const double pi = 3.141592653589793;
    jem_schedule s;
    memset(&s, 0, sizeof s);
    CHECK_CLOSE(jem_learning_rate(&s, 0.5f, 0), 0.5, 0, "constant");
    CHECK_CLOSE(jem_learning_rate(&s, 0.5f, 1000000), 0.5, 0, "constant");
    s.warmup = 4;
    for (int i = 0; i < 6; i++)
        CHECK_CLOSE(jem_learning_rate(&s, 0.8f, i), i < 4 ? 0.2 * (i + 1) : 0.8, 1e-7, "%d", i);
    s.kind = JEM_SCHEDULE_STEPS;
    s.rate = 0.5f;
    s.at[0] = 10;
    s.at[1] = 20;
    s.at[3] = 25;
    static const struct { int at; double rate; } steps[] = {
        { 0, 0.25 }, { 3, 1 }, { 9, 1 }, { 10, 0.5 }, { 19, 0.5 }, { 20, 0.25 }, { 25, 0.125 }
    };
    for (int i = 0; i < 7; i++)
        CHECK_CLOSE(jem_learning_rate(&s, 1, steps[i].at), steps[i].rate, 1e-7, "steps %d", i);
    s.kind = JEM_SCHEDULE_COSINE;
    memset(s.at, 0, sizeof s.at);
    s.warmup = 0;
    s.total = 100;
    s.floor = 0.1f;
    for (int i = 0; i <= 120; i += 10) {
        const double t = i < 100 ? i / 100.0 : 1;
        const double want = 0.1 + 0.45 * (1 + cos(pi * t));
        CHECK_CLOSE(jem_learning_rate(&s, 2, i), 2 * want, 1e-6, "cosine at %d", i);
    }
    s.warmup = 50;
    CHECK_CLOSE(jem_learning_rate(&s, 2, 24), 2 * 0.5 * (0.1 + 0.45 * (1 + cos(0.24 * pi))), 1e-6,
                "cosine, warming up");
    s.at[2] = 60;                                  /* two periods: 60 updates, then 40 */
    s.warmup = 8;
    for (int i = 0; i <= 120; i++) {
        const int begin = i < 60 ? 0 : 60;
        const int length = i < 60 ? 60 : 40;
        const double t = i < 100 ? (double)(i - begin) / length : 1;
        double want = (i < 60 ? 2 : 1) * (0.1 + 0.45 * (1 + cos(pi * t)));
        if (i - begin < 8) want *= (i - begin + 1) / 8.0;
        CHECK_CLOSE(jem_learning_rate(&s, 2, i), want, 1e-6, "cosine, started again, at %d", i);
    }
    static const struct { int updates, warmup; } runs[] = { { 1500, 150 }, { 30000, 200 } };
    for (int i = 0; i < 2; i++) {                  /* the recipe for a run of this length */
        const int n = runs[i].updates;
        const int full = runs[i].warmup;
        const jem_train_desc d = jem_train_desc_score(n);
        CHECK_CLOSE(jem_learning_rate(&d.schedule, 1, full - 1) /
                        jem_learning_rate(&d.schedule, 1, full / 2 - 1), 2, 0.05, "it warms up");
        CHECK(jem_learning_rate(&d.schedule, 1, full) < jem_learning_rate(&d.schedule, 1, full - 1),
              "then it falls");
        CHECK_CLOSE(jem_learning_rate(&d.schedule, 1, n), 0.02, 1e-6, "to a fiftieth");
        CHECK(d.cd_from == n / 5 * 3, "chains at the end: from %d on", d.cd_from);
    }
}

/* The definition of one update of one number, in double. */
typedef struct by_hand { double p, m, v; } by_hand;
static void update_by_hand(by_hand *h, const jem_optim_desc *d, double lr, double g, int t) {
    const double b1 = (double)d->beta1;
    const double b2 = (double)d->beta2;
    g += (double)d->weight_decay * h->p;
    if (d->kind == JEM_OPTIMIZER_SGD) {
        h->m = (double)d->momentum * h->m + g;
        h->p -= lr * h->m;
        return;
    }
    h->m = b1 * h->m + (1 - b1) * g;
    h->v = b2 * h->v + (1 - b2) * g * g;
    h->p -= lr * h->m / (1 - pow(b1, t)) / (sqrt(h->v / (1 - pow(b2, t))) + (double)d->eps);
}

/* Returns case number `how`; its bits: SGD, weight decay (with momentum), clipping. */
static jem_optim_desc updates_desc(int how) {
    jem_optim_desc d = jem_optim_desc_default();
    if (how & 1) {
        d.kind = JEM_OPTIMIZER_SGD;
        d.momentum = how & 2 ? 0.9f : 0;
    }
    if (how & 2) d.weight_decay = 0.1f;
    if (how & 4) d.clip = 1.5f;
    return d;
}

/* Sizes of the gradients of six updates. */
static const float size[6] = { 0.1f, 0.3f, 0.3f, 1, 0.3f, 0.3f };

static void test_updates(jem_ctx *ctx) {
    printf("Adam and SGD by hand; clipping; gradients that are not finite\n");
    enum { N = 37 };
    for (int how = 0; how < 8; how++) {
        const jem_optim_desc d = updates_desc(how);
        jem_rng rng = jem_rng_seed(7);
        jem_net *bag = bag_create(ctx);
        jem_param *p = random_param(bag, &rng, 1, 1, N, 1, 1, -1, 1);
        jem_param *buffer = random_param(bag, &rng, 0, 1, N, 1, 1, -1, 1);
        jem_optim *o = jem_optim_create(bag, &d);
        by_hand h[N];
        memset(h, 0, sizeof h);
        for (int i = 0; i < N; i++) h[i].p = (double)p->value[i];
        const uint64_t untouched = fnv(FNV_START, buffer->value, N);
        double worst = 0;
        for (int t = 1; t <= 20; t++) {
            const double lr = 0.01 * t;
            double squares = 0;
            double after = 0;
            float norm;
            for (int i = 0; i < N; i++) {
                p->grad[i] = jem_rng_normal(&rng) * size[t % 6];
                squares += (double)p->grad[i] * (double)p->grad[i];
            }
            const double length = sqrt(squares);
            const double shrink = how & 4 && length > 1.5 ? 1.5 / length : 1;
            for (int i = 0; i < N; i++)
                update_by_hand(&h[i], &d, lr, shrink * (double)p->grad[i], t);
            CHECK(jem_optim_step(o, (float)lr, &norm) == JEM_OK, "%s", jem_error(ctx));
            CHECK_CLOSE(norm, length, 1e-6 * length, "the norm before clipping");
            for (int i = 0; i < N; i++) {
                after += (double)p->grad[i] * (double)p->grad[i];
                worst = most_of(worst, fabs((double)p->value[i] - h[i].p));
            }
            CHECK_CLOSE(sqrt(after), shrink * length, 1e-5, "the norm after clipping");
        }
        CHECK(worst < 2e-5 && fnv(FNV_START, buffer->value, N) == untouched, "case %d: off by %g",
              how, worst);
        const uint64_t before = net_hash(bag);
        const uint32_t version = p->version;
        p->grad[3] = how & 1 ? INFINITY : NAN;
        CHECK(jem_optim_step(o, 1, NULL) == JEM_DIVERGED && says(ctx, "norm") &&
              net_hash(bag) == before && p->version == version, "nothing is changed");
        jem_optim_free(o);
        jem_net_free(bag);
    }
    CHECK(!jem_optim_create(NULL, NULL) && jem_optim_step(NULL, 1, NULL) == JEM_BAD_ARGUMENT,
          "no net, no optimiser");
    jem_optim_free(NULL);
}

/* Gradients are small, but the weights would not stay finite; an error that is still there. */
static void test_refused_steps(jem_ctx *ctx) {
    printf("steps that are not made\n");
    for (int how = 0; how < 3; how++) {
        jem_optim_desc d = jem_optim_desc_default();
        d.kind = how ? JEM_OPTIMIZER_SGD : JEM_OPTIMIZER_ADAM;
        d.weight_decay = how < 2 ? 1e38f : 0;
        jem_rng rng = jem_rng_seed(7);
        jem_net *bag = bag_create(ctx);
        jem_param *p = random_param(bag, &rng, 1, 1, 5, 1, 1, 1, 2);
        jem_optim *o = jem_optim_create(bag, &d);
        for (int i = 0; i < 5; i++) p->grad[i] = 1;
        const uint64_t before = net_hash(bag);
        if (how < 2) CHECK(jem_optim_step(o, 1, NULL) == JEM_DIVERGED && says(ctx, "weight decay"),
                           "decay without bounds: %s", jem_error(ctx));
        else {
            jem_fail(ctx, JEM_BAD_SHAPE, "a backward that failed");
            CHECK(jem_optim_step(o, 1, NULL) == JEM_BAD_SHAPE && says(ctx, "failed"), "an error");
        }
        CHECK(net_hash(bag) == before, "case %d: the weights stay", how);
        jem_optim_free(o);
        jem_net_free(bag);
    }
}

/* Checks an optimiser of the parameters whose names begin with "p1", which is read at creation. */
static void check_only(jem_net *bag, jem_optim_desc d) {
    enum { N = 21 };
    jem_ctx *ctx = bag->ctx;
    const int shape[1] = { N };
    char only[8] = "p1";
    float norm = 0;
    int selected = 0;
    CHECK(jem_net_param(bag, "p11", 1, shape, 1) && jem_net_param(bag, "xp1", 1, shape, 1) &&
          jem_net_param(bag, "P1", 1, shape, 1) && jem_net_param(bag, "p", 1, shape, 1), "%s",
          jem_error(ctx));
    d.only = only;
    jem_optim *o = jem_optim_create(bag, &d);
    memset(only, 'x', sizeof only - 1);
    uint64_t before[8] = { 0 };
    for (jem_param *p = bag->params; p; p = p->next) {
        const int begins = !strcmp(p->name, "p1") || !strcmp(p->name, "p11");
        for (ptrdiff_t i = 0; i < p->size; i++) p->grad[i] = begins ? 2.0f : 100.0f;
        before[selected++] = fnv(FNV_START, p->value, p->size);
    }
    CHECK(selected == 6, "%d parameters", selected);
    selected = 0;
    CHECK(jem_optim_step(o, 0.1f, &norm) == JEM_OK, "%s", jem_error(ctx));
    for (const jem_param *p = bag->params; p; p = p->next) {
        const int begins = !strcmp(p->name, "p1") || !strcmp(p->name, "p11");
        const int moved = fnv(FNV_START, p->value, p->size) != before[selected++];
        CHECK(moved == begins, "%s %s", p->name, moved ? "is updated" : "stays");
    }
    CHECK_CLOSE(norm, 2 * sqrt(2.0 * N), 1e-4, "the norm of what is updated");
    jem_optim_free(o);
    d.only = "none of them";
    CHECK(!jem_optim_create(bag, &d) && says(ctx, "begins with none of them"), "none");
}

/* w <- w + share (value - w), share = 1 - min(ema, t/(t+10)); put in and taken out again. */
static void test_averages(jem_ctx *ctx) {
    printf("averaged weights by hand; an optimiser of some parameters only\n");
    enum { N = 21 };
    for (int kind = JEM_OPTIMIZER_ADAM; kind <= JEM_OPTIMIZER_SGD; kind++) {
        jem_optim_desc d = jem_optim_desc_default();
        d.kind = (jem_optimizer)kind;
        d.ema = 0.7f;
        jem_rng rng = jem_rng_seed(9);
        jem_net *bag = bag_create(ctx);
        jem_param *p = random_param(bag, &rng, 1, 1, N, 1, 1, -1, 1);
        jem_optim *o = jem_optim_create(bag, &d);
        const uint64_t start = net_hash(bag);
        CHECK(jem_optim_use_average(o, 1) == JEM_OK && net_hash(bag) == start,
              "nothing to average");
        CHECK(jem_optim_use_average(o, 0) == JEM_OK && net_hash(bag) == start, "nor to put back");
        double average[N] = { 0 };
        double worst = 0;
        for (int t = 0; t < 40; t++) {
            const double ema = fmin(0.7, t / (t + 10.0));
            for (int i = 0; i < N; i++) p->grad[i] = jem_rng_normal(&rng);
            if (t % 5 == 3) jem_optim_use_average(o, 1);  /* the step takes them out by itself */
            CHECK(jem_optim_step(o, 0.05f, NULL) == JEM_OK, "%s", jem_error(ctx));
            for (int i = 0; i < N; i++)
                average[i] = ema * average[i] + (1 - ema) * (double)p->value[i];
            const uint64_t trained = net_hash(bag);
            const uint32_t version = p->version;
            jem_optim_use_average(o, 1);
            jem_optim_use_average(o, 1);
            CHECK(net_hash(bag) != trained || t == 0, "update %d: the same", t);
            CHECK(p->version != version, "packed copies are made again");
            for (int i = 0; i < N; i++)
                worst = most_of(worst, fabs((double)p->value[i] - average[i]));
            jem_optim_use_average(o, 0);
            CHECK(net_hash(bag) == trained, "update %d: back as they were", t);
        }
        CHECK(worst < 1e-6, "off by %g", worst);
        jem_optim_free(o);
        d.ema = 1;
        CHECK(!jem_optim_create(bag, &d) && says(ctx, "ema = 1 is not"), "never anything new");
        d.ema = 0;
        random_param(bag, &rng, 1, 1, N, 1, 1, -1, 1);
        check_only(bag, d);
        jem_net_free(bag);
    }
    CHECK(jem_optim_use_average(NULL, 1) == JEM_BAD_ARGUMENT, "no optimiser");
}

/* ---- the trainer ----------------------------------------------------------------------------- */

enum { IMAGES = 18 };
typedef struct data { float *x; int labels[IMAGES]; } data;

static data small_data(void) {
    data d;
    jem_rng rng = jem_rng_seed(8);
    d.x = random_floats(&rng, IMAGES * SMALL, -1, 1);
    random_labels(&rng, d.labels, IMAGES, 3);
    return d;
}
static jem_train_desc small_training(void) {
    jem_train_desc d = jem_train_desc_default();
    d.lr = 1e-3f;
    d.sgld.steps = 3;
    d.negatives = 7;
    d.buffer_size = 30;
    return d;
}
/* All numbers after a few updates of each sort. */
static uint64_t train_hash(jem_ctx *ctx, const jem_train_desc *d, uint64_t net_seed, int semi) {
    const data in = small_data();
    jem_net *net = small_net(ctx, net_seed);
    jem_trainer *tr = jem_trainer_create(net, d);
    for (int step = 0; step < 4; step++) {
        const jem_stats s = semi ? jem_train_step_semi(tr, in.x, in.labels, step * 3,
                                                       in.x + SMALL, IMAGES - 1 - step)
                                 : jem_train_step(tr, in.x, in.labels, IMAGES);
        const float ce = !semi || step ? d->weights.ce * s.ce : 0;
        CHECK(s.status == JEM_OK && s.update == step && s.lr == d->lr && s.grad_norm > 0, "update "
              "%d: %s", step, jem_error(ctx));
        if (d->weights.cd > 0) CHECK_CLOSE(s.cd, s.f_sample - s.f_data, 1e-6, "cd");
        if (d->weights.cd_class == 0 && d->weights.energy_l2 == 0)
            CHECK_CLOSE(s.loss, ce + d->weights.cd * s.cd, 1e-5, "the terms make the loss");
        CHECK(s.accuracy >= 0 && s.accuracy <= 1, "accuracy %g", (double)s.accuracy);
    }
    const jem_buffer *b = jem_trainer_buffer(tr);
    uint64_t h = net_hash(net);
    if (b) {
        int visits = 0;
        for (int i = 0; i < b->capacity; i++) visits += b->visits[i];
        const int chains = 4 * (d->negatives ? d->negatives : IMAGES);
        CHECK(visits > 0 && visits <= chains && b->capacity == 30, "%d visits", visits);
        h = fnv(h, b->data, 30 * SMALL);
    }
    free(in.x);
    jem_trainer_free(tr);
    jem_net_free(net);
    return h;
}

/* Without labels, score matching beside a penalty on log p(x): both count. */
static void test_unlabelled(jem_ctx *ctx) {
    printf("training without a label\n");
    const data in = small_data();
    float loss[2];
    for (int l2 = 0; l2 < 2; l2++) {
        jem_train_desc d = small_training();
        d.weights.cd = 0;
        d.w_score = 1;
        d.weights.energy_l2 = l2 ? 100.0f : 0;
        jem_net *net = small_net(ctx, 1);
        jem_trainer *tr = jem_trainer_create(net, &d);
        const jem_stats s = jem_train_step_semi(tr, NULL, NULL, 0, in.x, IMAGES);
        CHECK(s.status == JEM_OK, "%s", jem_error(ctx));
        loss[l2] = s.loss;
        CHECK(jem_train_step_semi(tr, NULL, NULL, 0, NULL, IMAGES).status && says(ctx, "NULL") &&
              jem__finite(net->mean), "no images: the mean is %g", (double)net->mean);
        jem_trainer_free(tr);
        jem_net_free(net);
    }
    CHECK(loss[1] > loss[0] + 1e-3f, "a penalty of nothing: %g, %g", (double)loss[0],
          (double)loss[1]);
    free(in.x);
}

/* The noise that a score was learned from, and the mean pixel of the first batch; else nothing. */
static void test_remembered(jem_ctx *ctx) {
    printf("what a network remembers of score matching\n");
    for (int score = 0; score < 2; score++) {
        data in = small_data();
        double sum = 0;
        for (int i = 0; i < IMAGES * SMALL; i++) sum += (double)in.x[i];
        jem_train_desc d = small_training();
        d.weights.cd = 0;
        d.w_score = (float)score;
        d.noise_lo = 0.2f;
        d.noise_hi = 3;
        jem_net *net = small_net(ctx, 1);
        jem_trainer *tr = jem_trainer_create(net, &d);
        for (int step = 0; step < 2; step++) {
            CHECK(jem_train_step(tr, in.x, in.labels, IMAGES).status == JEM_OK, "%s",
                  jem_error(ctx));
            CHECK(net->noise_lo == (score ? 0.2f : 0) && net->noise_hi == (score ? 3.0f : 0),
                  "noise %g .. %g", (double)net->noise_lo, (double)net->noise_hi);
            CHECK_CLOSE(net->mean, score ? sum / (IMAGES * SMALL) : 0, 0.0005, "its mean");
            for (int i = 0; i < IMAGES * SMALL; i++) in.x[i] += 0.3f;
        }
        jem_trainer_free(tr);
        jem_net_free(net);
        free(in.x);
    }
}

/* Each term of the loss may be the only one. */
static void test_alone(jem_ctx *ctx) {
    printf("training by one term of the loss alone\n");
    static const struct { float ce, cd, score, kl; int cd_from, unlabelled, works; } how[] = {
        { 1, 0, 0, 0, 0, 0, 1 }, { 0, 1, 0, 0, 0, 0, 1 }, { 0, 0, 1, 0, 0, 0, 1 },
        { 0, 0, 0, 1, 0, 0, 1 }, { 0, 1, 0, 0, 0, 1, 1 }, { 0, 0, 1, 0, 0, 1, 1 },
        { 0, 0, 0, 1, 0, 1, 1 }, { 0, 0, 1, 1, 0, 1, 1 }, { 0, 1, 1, 0, 5, 0, 1 },
        { 0, 1, 1, 0, 5, 1, 1 }, { 0, 1, 0, 0, 5, 0, 0 }
    };
    const data in = small_data();
    for (int k = 0; k < (int)(sizeof how / sizeof *how); k++) {
        jem_train_desc d = small_training();
        d.weights.ce = how[k].ce;
        d.weights.cd = how[k].cd;
        d.w_score = how[k].score;
        d.w_kl = how[k].kl;
        d.cd_from = how[k].cd_from;
        jem_net *net = small_net(ctx, 1);
        jem_trainer *tr = jem_trainer_create(net, &d);
        const uint64_t before = net_hash(net);
        const jem_stats s = how[k].unlabelled
                          ? jem_train_step_semi(tr, NULL, NULL, 0, in.x, IMAGES)
                          : jem_train_step(tr, in.x, in.labels, IMAGES);
        if (how[k].works) CHECK(s.status == JEM_OK, "case %d: %s", k, jem_error(ctx));
        else CHECK(s.status == JEM_BAD_ARGUMENT && says(ctx, "no term"), "case %d", k);
        CHECK((net_hash(net) != before) == how[k].works, "case %d: the weights", k);
        CHECK(how[k].unlabelled || !how[k].works || s.ce > 0, "case %d: ce is reported", k);
        jem_trainer_free(tr);
        jem_net_free(net);
    }
    free(in.x);
}

/* A chain is marked by its own values: a slot is often drawn twice here. */
typedef struct marks { int wrong, young, old; } marks;
static void mark_chain(void *user, jem_rng *rng, int visits, int label, float *x) {
    marks *m = (marks *)user;
    const int old = x[0] == 42.0f;
    (void)rng;
    (void)label;
    m->wrong += old != (visits > 0);
    m->old += old;
    m->young += !old;
    x[0] = 42;
}
static void test_visits(jem_ctx *ctx) {
    printf("how often each chain has walked\n");
    const data in = small_data();
    marks m = { 0, 0, 0 };
    jem_train_desc d = small_training();
    d.buffer_size = 9;
    d.negatives = 12;
    d.reinit = 0.4f;
    d.sgld.steps = 0;
    d.chain = mark_chain;
    d.chain_user = &m;
    jem_net *net = small_net(ctx, 1);
    jem_trainer *tr = jem_trainer_create(net, &d);
    for (int i = 0; i < 30; i++)
        CHECK(jem_train_step(tr, in.x, in.labels, IMAGES).status == JEM_OK, "%s", jem_error(ctx));
    CHECK(!m.wrong && m.young > 100 && m.old > 100, "%d wrong, %d young, %d old", m.wrong, m.young,
          m.old);
    jem_trainer_free(tr);
    d.sgld.steps = 2;
    d.chain = NULL;              /* a walk that fails began no chain again */
    d.max_rollbacks = 0;
    tr = jem_trainer_create(net, &d);
    for (int i = 0; i < 8; i++) jem_train_step(tr, in.x, in.labels, IMAGES);
    jem_buffer *b = jem_trainer_buffer(tr);
    int visits[9];
    memcpy(visits, b->visits, sizeof visits);
    const float kept = net->params->value[0];
    net->params->value[0] = (float)NAN;
    jem_param_changed(net->params);
    CHECK(jem_train_step(tr, in.x, in.labels, IMAGES).status == JEM_DIVERGED, "a walk of NaNs");
    jem_clear_error(ctx);
    net->params->value[0] = kept;
    jem_param_changed(net->params);
    CHECK(!memcmp(visits, b->visits, sizeof visits), "and left other visits behind");
    d.chain = mark_chain;
    m.wrong = m.young = m.old = 0;
    jem_trainer_free(tr);
    d.sgld.steps = 0;
    d.reinit = 0;                /* what has not begun is new */
    tr = jem_trainer_create(net, &d);
    for (int i = 0; i < 9; i++) jem_trainer_buffer(tr)->visits[i] = -1;
    for (int i = 0; i < 6; i++) jem_train_step(tr, in.x, in.labels, IMAGES);
    for (int i = 0; i < 9; i++) m.wrong += jem_trainer_buffer(tr)->visits[i] == 0;
    CHECK(!m.wrong && m.young > 0 && m.old > 20 && jem_ok(ctx), "%d wrong, %d young, %d old",
          m.wrong, m.young, m.old);
    jem_trainer_free(tr);
    jem_net_free(net);
    free(in.x);
}

/* Cross-entropy has no weight, and is computed after the rest, in memory of its own. */
static void test_poor(void) {
    printf("a step without memory, at every place\n");
    enum { MANY = 900, CLASSES = 3000 };
    static float x[2 * MANY + 2];
    static int labels[MANY];
    int whole = 0;
    int k = 1;
    for (; !whole && k < 400; k++) {
        counter c;
        jem_ctx *ctx = open_ctx(&c);
        jem_mlp_desc m = jem_mlp_desc_default();
        m.channels = 2;
        m.height = m.width = m.layers = 1;
        m.widths[0] = 4;
        m.classes = CLASSES;
        jem_train_desc d = small_training();
        d.weights.ce = 0;
        d.sgld.steps = d.negatives = 1;
        jem_net *net = jem_mlp_create(ctx, &m, 1);
        jem_trainer *tr = jem_trainer_create(net, &d);
        const uint64_t before = net_hash(net);
        c.fail_at = c.calls + k;
        const jem_stats s = jem_train_step_semi(tr, x, labels, MANY, x + 2, 16);
        whole = c.calls < c.fail_at;
        CHECK(s.status == (whole ? JEM_OK : JEM_NO_MEMORY), "allocation %d: %s", k, jem_error(ctx));
        CHECK((net_hash(net) == before) == !jem_trainer_updates(tr),
              "allocation %d: %d updates, but the weights say otherwise", k,
              jem_trainer_updates(tr));
        jem_clear_error(ctx);
        jem_trainer_free(tr);
        jem_net_free(net);
        close_ctx(ctx, &c, "a poor step");
    }
    CHECK(whole && k > 3, "%d allocations", k);
}

/* Checks that settings and seeds decide all: each case differs from the others in one thing. */
static void check_cases(jem_ctx *ctx) {
    uint64_t seen[12];
    for (int how = 0; how < 10; how++) {
        jem_train_desc d = small_training();
        if (how == 1) d.seed = 2;
        if (how == 3) d.class_conditional = 1;
        if (how == 4) d.weights.cd_class = 0.5f;
        if (how == 5) d.weights.cd = 0;
        if (how == 6) d.data_noise = 0;
        if (how == 7) d.weights.energy_l2 = 0.1f;
        if (how == 8) {
            d.weights.ce = 0.5f;
            d.weights.cd = 2;
        }
        if (how == 9) d.negatives = 0;             /* as many as there are data */
        const uint64_t net_seed = how == 2 ? 2 : 1;
        seen[how] = train_hash(ctx, &d, net_seed, 0);
        CHECK(train_hash(ctx, &d, net_seed, 0) == seen[how], "case %d repeats itself", how);
        for (int i = 0; i < how; i++) CHECK(seen[i] != seen[how], "cases %d and %d differ", i, how);
        if (how == 5) continue;                    /* nothing to learn from without labels */
        const uint64_t semi = train_hash(ctx, &d, net_seed, 1);
        CHECK(semi != seen[how] && train_hash(ctx, &d, net_seed, 1) == semi, "case %d, semi", how);
    }
}

/* Checks a step whose first images have labels, with the same images or a copy as unlabelled. */
static void check_some_labels(jem_ctx *ctx, const jem_train_desc *d, data in, float *copy) {
    float f[2];
    float last = in.x[IMAGES * SMALL - 1];
    for (int same = 0; same < 2; same++) {         /* the first of the images have labels */
        jem_net *one = small_net(ctx, 1);
        jem_trainer *tr = jem_trainer_create(one, d);
        f[same] = jem_train_step_semi(tr, in.x, in.labels, 4, same ? in.x : copy, IMAGES).f_data;
        in.x[IMAGES * SMALL - 1] = copy[IMAGES * SMALL - 1] = NAN;
        CHECK(jem_train_step_semi(tr, in.x, in.labels, 4, same ? in.x : copy, IMAGES).status &&
              says(ctx, "unlabelled"), "a bad one among those without");
        in.x[IMAGES * SMALL - 1] = copy[IMAGES * SMALL - 1] = last;
        jem_trainer_free(tr);
        jem_net_free(one);
    }
    CHECK(f[0] == f[1] && f[0] != 0, "log p(x) of all: %g, %g", (double)f[0], (double)f[1]);
}

static void test_trainer(jem_ctx *ctx) {
    printf("training: the seed decides all; labels, classes, unlabelled images\n");
    check_cases(ctx);
    const data in = small_data();
    jem_train_desc d = small_training();
    d.class_conditional = 1;                       /* chains stay in the slots of their class */
    jem_net *net = small_net(ctx, 1);
    jem_trainer *tr = jem_trainer_create(net, &d);
    CHECK(jem_trainer_buffer(tr)->classes == 3 && !jem_trainer_buffer(NULL), "a buffer by class");
    const jem_stats none = jem_train_step_semi(tr, in.x, in.labels, IMAGES, in.x, 0);
    CHECK(none.status == JEM_OK, "no unlabelled images: %s", jem_error(ctx));
    CHECK(jem_train_step_semi(tr, in.x, in.labels, IMAGES, NULL, 3).status == JEM_BAD_ARGUMENT &&
          says(ctx, "3 unlabelled images: data or labels are NULL"), "unlabelled images: NULL");
    for (int step = 0; step < 4; step++) jem_train_step(tr, in.x, in.labels, IMAGES);
    int visits[3] = { 0 };
    for (int i = 0; i < 30; i++) visits[i / 10] += jem_trainer_buffer(tr)->visits[i];
    CHECK(visits[0] > 0 && visits[1] > 0 && visits[2] > 0, "chains of every class are walked");
    jem_trainer_free(tr);
    d = small_training();
    d.weights.cd = 0;
    tr = jem_trainer_create(net, &d);
    CHECK(tr && !jem_trainer_buffer(tr), "without contrastive divergence there are no chains");
    jem_trainer_free(tr);
    float *copy = floats(IMAGES * SMALL);
    memcpy(copy, in.x, IMAGES * SMALL * sizeof *copy);
    d.weights.energy_l2 = 1e-3f;                   /* uses log p(x) */
    check_some_labels(ctx, &d, in, copy);
    d.weights.energy_l2 = 0;
    tr = jem_trainer_create(net, &d);
    CHECK(jem_train_step_semi(tr, in.x, in.labels, 4, copy, IMAGES).f_data == 0 &&
          jem_train_step(tr, in.x, in.labels, 4).f_data != 0, "no pass for a statistic alone");
    jem_trainer_free(tr);
    free(copy);
    d.weights.cd = 1;
    d.reinit = 2;
    CHECK(!jem_trainer_create(net, &d) && says(ctx, "reinit = 2"), "out of range");
    d = small_training();
    d.buffer_size = 0;
    CHECK(!jem_trainer_create(net, &d) && says(ctx, "buffer_size = 0"), "no room for chains");
    jem_net_free(net);
    free(in.x);
}

/* Log-densities are those of evaluation: whatever dropout does in training, they do not change. */
static void test_evaluation(jem_ctx *ctx) {
    enum { N = 5, SIDE = 8 };
    jem_wrn_desc d = jem_wrn_desc_default();
    d.depth = 10;
    d.widen = 1;
    d.channels = 1;
    d.height = d.width = SIDE;
    d.classes = 3;
    d.dropout = 0.5f;
    jem_net *net = jem_wrn_create(ctx, &d, 1);
    jem_rng rng = jem_rng_seed(3);
    float *x = random_floats(&rng, N * SIDE * SIDE, -1, 1);
    float f[N * 3];
    float in_training[N * 3];
    float logp[N];
    const int labels[N] = { 2, 0, 1, 1, 0 };
    jem_query query = { net, labels, 3 };
    const struct { jem_logp_fn fn; void *user; float of_label, of_all; } all[4] = {
        { jem_logp, net, 0, 1 }, { jem_logp_class, &query, 1, 0 },
        { jem_logp_label, &query, 1, -1 }, { jem_logp_guided, &query, 3, -2 }
    };
    const jem_mark mark = jem_begin(ctx);
    jem_tensor *t = jem_input(ctx, x, N, 1, SIDE, SIDE);
    jem_read(jem_forward(net, t, 0), f);
    jem_read(jem_forward(net, t, 1), in_training);
    CHECK(largest_gap(in_training, f, N * 3) > 1e-3, "dropout does something");
    for (int k = 0; k < 4; k++) {
        CHECK(jem_read(all[k].fn(ctx, t, all[k].user), logp) == JEM_OK, "%s", jem_error(ctx));
        for (int i = 0; i < N; i++) {
            double sum = 0;
            for (int c = 0; c < 3; c++) sum += exp((double)f[i * 3 + c]);
            CHECK_CLOSE(logp[i], (double)all[k].of_label * (double)f[i * 3 + labels[i]] +
                        (double)all[k].of_all * log(sum), 1e-5, "density %d, image %d", k, i);
        }
    }
    jem_end(ctx, mark);
    free(x);
    jem_net_free(net);
}

/* Other random numbers, another rate from some update on: different, but repeatable. */
static void test_changes(jem_ctx *ctx) {
    printf("reseeding and another rate on the way\n");
    const data in = small_data();
    uint64_t seen[5];
    for (int how = 0; how < 5; how++) {            /* 0 and 1, 2 and 3 are the same */
        const jem_train_desc d = small_training();
        jem_net *net = small_net(ctx, 1);
        jem_trainer *tr = jem_trainer_create(net, &d);
        for (int step = 0; step < 4; step++) {
            if (step == 2 && how / 2 == 1) jem_trainer_reseed(tr, 77);
            if (step == 2 && how == 4) jem_trainer_set_lr(tr, d.lr / 2);
            jem_trainer_set_lr(tr, 0);
            jem_trainer_set_lr(tr, -1);
            jem_trainer_set_lr(tr, NAN);
            const jem_stats s = jem_train_step(tr, in.x, in.labels, IMAGES);
            CHECK(s.status == JEM_OK && s.lr == d.lr * (how == 4 && step > 1 ? .5f : 1), "%s",
                  jem_error(ctx));
            CHECK(jem_trainer_updates(tr) == step + 1, "counted");
        }
        seen[how] = net_hash(net);
        jem_trainer_free(tr);
        jem_net_free(net);
    }
    CHECK(seen[0] == seen[1] && seen[2] == seen[3], "repeatable");
    CHECK(seen[0] != seen[2] && seen[0] != seen[4] && seen[2] != seen[4], "different");
    jem_trainer_reseed(NULL, 1);
    jem_trainer_set_lr(NULL, 1);
    CHECK(jem_trainer_updates(NULL) == 0 && jem_trainer_use_average(NULL, 1) == JEM_BAD_ARGUMENT,
          "no trainer");
    free(in.x);
}

static jem_net *unconditional_net(jem_ctx *ctx, int conv) {
    if (conv) {
        jem_convnet_desc d = jem_convnet_desc_default();
        d.channels = 2;
        d.height = d.width = 6;
        d.classes = 3;
        d.layers = 2;
        d.separate_energy = 1;
        return jem_convnet_create(ctx, &d, 3);
    }
    jem_wrn_desc w = jem_wrn_desc_default();
    w.depth = 10;
    w.widen = 1;
    w.channels = 2;
    w.height = w.width = 6;
    w.classes = 3;
    w.separate_energy = 1;
    w.activation = JEM_ACTIVATION_SILU;            /* smooth, for the gradient's check */
    return jem_wrn_create(ctx, &w, 3);
}

/* Checks that training changes the output for log p(x), and what cannot be trained. */
static void check_unconditional_training(jem_net *net, const int *labels, jem_rng *rng) {
    jem_ctx *ctx = net->ctx;
    jem_train_desc how = small_training();
    jem_trainer *tr = jem_trainer_create(net, &how);
    jem_param *bias = jem_net_find(net, "energy_output.bias");
    const float old = bias ? bias->value[0] : 0;
    jem_param *weight = jem_net_find(net, "energy_output.weight");
    const uint64_t old_weight = weight ? fnv(FNV_START, weight->value, weight->size) : 0;
    float *x = random_floats(rng, 8 * 72, -1, 1);
    for (int i = 0; i < 3; i++) {
        const jem_stats s = jem_train_step(tr, x, labels, 8);
        CHECK(s.status == JEM_OK && s.f_data != s.f_sample, "%s", jem_error(ctx));
        CHECK_CLOSE(s.loss, s.ce + s.cd, 1e-4, "the terms make the loss");
    }
    CHECK(weight && fnv(FNV_START, weight->value, weight->size) != old_weight, "it learns");
    if (bias) CHECK_CLOSE(bias->value[0], old, 1e-3, "a constant has no gradient");
    jem_trainer_free(tr);
    how.weights.cd_class = 1;
    CHECK(!jem_trainer_create(net, &how) && says(ctx, "separate_energy"), "no p(x,y) to train");
    how.weights.cd_class = 0;
    how.class_conditional = 1;
    CHECK(!jem_trainer_create(net, &how) && says(ctx, "separate_energy"), "no chains by class");
    free(x);
}

/* log p(x) as a separate output: its gradient differs from that of the classes. */
static void test_unconditional(jem_ctx *ctx) {
    printf("unconditional networks: log p(x) beside the logits\n");
    const data in = small_data();
    for (int conv = 0; conv < 2; conv++) {
        jem_net *net = unconditional_net(ctx, conv);
        jem_param *bias = jem_net_find(net, "energy_output.bias");
        float x[5 * 72], before[5], after[5], lse[5];
        jem_rng rng = jem_rng_seed(4);
        jem_answer a[5];
        jem_fill_uniform(ctx, &rng, x, 5 * 72, -1, 1);
        jem_mark mark = jem_begin(ctx);
        jem_tensor *t = jem_input(ctx, x, 5, 2, 6, 6);
        CHECK(jem_read(jem_logp(ctx, t, net), before) == JEM_OK, "%s", jem_error(ctx));
        CHECK(jem_read(jem_logsumexp(ctx, jem_forward(net, t, 0)), lse) == JEM_OK, "of the logits");
        CHECK(jem_classify(net, x, 5, a) == JEM_OK, "%s", jem_error(ctx));
        CHECK(bias != NULL, "it has its own parameters");
        const jem_loss_weights plain = { 1, 1, 0, 0 };
        const int labels[5] = { 0, 1, 2, 1, 0 };
        CHECK(jem_loss(net, &plain, t, labels, NULL, t, labels, NULL) != NULL,
              "labels of samples, which have no weight: %s", jem_error(ctx));
        if (bias) {
            bias->value[0] += 2;
            jem_param_changed(bias);
        }
        t = jem_input(ctx, x, 5, 2, 6, 6);
        CHECK(jem_read(jem_logp(ctx, t, net), after) == JEM_OK, "again");
        for (int i = 0; i < 5; i++) {
            CHECK_CLOSE(after[i], before[i] + 2, 1e-5, "the bias moves log p(x) alone");
            CHECK_CLOSE(a[i].log_density, before[i], 1e-5, "and so it is answered");
            CHECK(fabsf(lse[i] - before[i]) > 1e-3f, "it is not that of the logits");
        }
        CHECK(jem_check_gradient(ctx, jem_logp, net, t, NULL, 0.02f) < 2e-3f, "its gradient");
        jem_query query;
        query.net = net;
        query.labels = in.labels;
        CHECK(!jem_logp_class(ctx, t, &query) && says(ctx, "separate_energy"), "no log p(x,y)");
        CHECK(jem_logp_label(ctx, t, &query) != NULL, "but log p(y|x): %s", jem_error(ctx));
        jem_end(ctx, mark);
        check_unconditional_training(net, in.labels, &rng);
        jem_net_free(net);
    }
    free(in.x);
}

/* A failing update leaves the weights as they were and says why; what != 0 on the way back too. */
static void fails(const char *what, jem_trainer *tr, const float *x, const int *labels, int n,
                  jem_status status, const char *message) {
    const jem_net *net = tr->net;
    jem_ctx *ctx = net->ctx;
    const uint64_t before = net_hash(net);
    const jem_stats s = jem_train_step(tr, x, labels, n);
    CHECK(s.status == status && jem_error_status(ctx) == status, "%s: status %d", what, s.status);
    CHECK(net_hash(net) == before, "%s: the weights are as before", what);
    CHECK(jem_train_step(tr, x, labels, n).status == status, "%s: nothing goes on unseen", what);
    CHECK(says(ctx, message), "%s", what);
}

/* Makes an update fail in way number `how`, in a trainer that was set up for it. */
static void check_failure(int how, jem_trainer *tr, float *x, int *labels) {
    jem_net *net = tr->net;
    jem_ctx *ctx = net->ctx;
    if (how == 0) {                                /* one update too far, then it shows */
        CHECK(jem_train_step(tr, x, labels, IMAGES).status == JEM_OK, "%s", jem_error(ctx));
        fails("a huge rate", tr, x, labels, IMAGES, JEM_DIVERGED,
              "sgld: x (7,2,6,5) is not finite");
    } else if (how == 1) {
        uint64_t before = 0;
        for (int step = 0; step < 10 && jem_ok(ctx); step++) {
            before = net_hash(net);
            jem_train_step(tr, x, labels, IMAGES);
        }
        CHECK(jem_error_status(ctx) == JEM_DIVERGED && net_hash(net) == before,
              "a huge step of the walk: '%s'", jem_error(ctx));
        jem_clear_error(ctx);
    } else if (how == 2) {
        fails("a loss beyond", tr, x, labels, IMAGES, JEM_DIVERGED, "at update 0");
    } else if (how == 3) {
        x[5] = NAN;
        fails("data that are NaN", tr, x, labels, IMAGES, JEM_BAD_ARGUMENT,
              "image 0 contains nan");
        x[5] = -1e30f;
        fails("absurd data", tr, x, labels, IMAGES, JEM_BAD_ARGUMENT, "contains -1e+30");
        x[5] = 0;
        const float kept = net->params->value[0];
        net->params->value[0] = NAN;
        fails("a weight that is NaN", tr, x, labels, IMAGES, JEM_DIVERGED,
              "sgld: x (7,2,6,5) is not finite");
        net->params->value[0] = kept;
        jem_param_changed(net->params);
    } else if (how == 4) {
        labels[7] = 3;
        fails("a label", tr, x, labels, IMAGES, JEM_BAD_ARGUMENT, "label 3 of");
    } else {
        fails("no data", tr, NULL, labels, IMAGES, JEM_BAD_ARGUMENT, "NULL");
        fails("no images", tr, x, labels, 0, JEM_BAD_ARGUMENT, "0 labelled");
    }
}

static void test_divergence(jem_ctx *ctx) {
    printf("training that goes wrong: a message, and no trace in the weights\n");
    const data in = small_data();
    int labels[IMAGES];
    for (int how = 0; how < 6; how++) {
        jem_train_desc d = small_training();
        d.max_rollbacks = 0;                       /* test_guard.c: with a guard */
        jem_net *net = small_net(ctx, 1);
        if (how == 0) d.lr = 1e9f;
        if (how == 1) d.sgld.step_size = 1e38f;
        if (how == 2) d.max_loss = 1e-3f;
        jem_trainer *tr = jem_trainer_create(net, &d);
        float *x = floats(IMAGES * SMALL);
        memcpy(x, in.x, IMAGES * SMALL * sizeof *x);
        memcpy(labels, in.labels, sizeof labels);
        check_failure(how, tr, x, labels);
        const jem_buffer *b = jem_trainer_buffer(tr);
        int bad = 0;
        for (int i = 0; i < b->capacity * SMALL; i++) bad += !isfinite(b->data[i]);
        CHECK(bad == 0, "case %d: %d numbers of the chains are not finite", how, bad);
        if (how > 1) {
            const float limit = d.max_loss;
            tr->desc.max_loss = 1e8f;
            CHECK(jem_train_step(tr, in.x, in.labels, IMAGES).status == JEM_OK, "goes on: %s (%g)",
                  jem_error(ctx), (double)limit);
        }
        free(x);
        jem_trainer_free(tr);
        jem_net_free(net);
    }
    CHECK(jem_train_step(NULL, in.x, in.labels, 1).status == JEM_BAD_ARGUMENT, "no trainer");
    free(in.x);
}

/* Two moons, as in the header: it learns which is which, and where they are. */
static void test_learning(jem_ctx *ctx) {
    printf("two moons are learned: classes, and where data are\n");
    jem_mlp_desc shape = jem_mlp_desc_default();
    shape.channels = 2;
    shape.height = shape.width = 1;
    shape.classes = 2;
    shape.widths[0] = shape.widths[1] = 64;
    jem_net *net = jem_mlp_create(ctx, &shape, 1);
    jem_train_desc how = jem_train_desc_default();
    how.lr = 3e-3f;
    how.sgld = jem_sgld_desc_langevin(0.02f, 10);
    how.buffer_size = 1000;
    jem_trainer *tr = jem_trainer_create(net, &how);
    jem_rng rng = jem_rng_seed(7);
    float x[2 * 64];
    float first = 0;
    float last = 0;
    int y[64];
    for (int i = 0; i < 600; i++) {
        for (int k = 0; k < 64; k++) {
            const float a = 3.14159f * jem_rng_uniform(&rng);
            y[k] = k & 1;
            x[2 * k] = (y[k] ? 0.5f - cosf(a) : cosf(a) - 0.5f) * 0.5f;
            x[2 * k + 1] = (y[k] ? 0.25f - sinf(a) : sinf(a) - 0.25f) * 0.5f;
        }
        const jem_stats s = jem_train_step(tr, x, y, 64);
        CHECK(s.status == JEM_OK, "%s", jem_error(ctx));
        if (i == 0) first = s.ce;
        last = s.ce;
    }
    const float right = jem_accuracy(net, x, y, 64);
    CHECK(right > 0.85f && last < 0.4f * first, "CE %g -> %g, accuracy %g", (double)first,
          (double)last, (double)right);
    const float ask[4] = { -0.25f, 0.35f, 0.9f, 0.9f };
    jem_answer a[2];
    memset(a, 0, sizeof a);
    CHECK(jem_classify(net, ask, 2, a) == JEM_OK && a[0].log_density > a[1].log_density + 1,
          "on a moon %g, off it %g", (double)a[0].log_density, (double)a[1].log_density);
    jem_trainer_free(tr);
    jem_net_free(net);
}

/* ---- answers --------------------------------------------------------------------------------- */

static void test_answers(jem_ctx *ctx) {
    printf("answers: as by hand, in any number; accuracy\n");
    enum { N = 300 };                              /* more than one batch of the library's own */
    jem_net *net = small_net(ctx, 3);
    jem_rng rng = jem_rng_seed(9);
    float *x = random_floats(&rng, N * SMALL, -2, 2);
    float f[3 * N];
    int labels[N];
    int right = 0;
    int bad = 0;
    jem_answer all[N], one;
    random_labels(&rng, labels, N, 3);
    CHECK(jem_classify(net, x, N, all) == JEM_OK, "%s", jem_error(ctx));
    jem_read(jem_forward(net, jem_input(ctx, x, N, 2, 6, 5), 0), f);
    for (int i = 0; i < N; i++) {
        const float *row = f + 3 * i;
        double sum = 0;
        int best = 0;
        for (int c = 0; c < 3; c++) {
            sum += exp((double)row[c]);
            best = row[c] > row[best] ? c : best;
        }
        right += best == labels[i];
        bad += all[i].label != best || all[i].familiarity != -1;
        bad += !(fabs((double)all[i].probability - exp((double)row[best]) / sum) < 1e-6);
        bad += !(fabs((double)all[i].log_density - log(sum)) < 1e-5);
        if (i % 50) continue;
        CHECK(jem_classify(net, x + i * SMALL, 1, &one) == JEM_OK && one.label == all[i].label &&
              fabsf(one.log_density - all[i].log_density) < 1e-5f, "image %d alone", i);
    }
    CHECK(bad == 0, "%d wrong", bad);
    CHECK_CLOSE(jem_accuracy(net, x, labels, N), (double)right / N, 1e-6, "accuracy");
    CHECK(jem_classify(net, x, 0, all) == JEM_OK, "no images");
    CHECK(jem_classify(net, NULL, 1, all) == JEM_BAD_ARGUMENT && says(ctx, "NULL"), "no images");
    CHECK(jem_accuracy(net, x, NULL, 1) < 0 && says(ctx, "labels are NULL"), "no labels");
    CHECK(jem_accuracy(net, x, labels, 0) < 0 && says(ctx, ": 0 images"), "no images");
    CHECK(jem_classify(NULL, x, 1, all) == JEM_BAD_ARGUMENT, "no net");
    free(x);
    jem_net_free(net);
    jem_reset(ctx);
}

/* A network whose log p(x) is known: -|x|^2 scaled, one class. */
static jem_tensor *bowl(jem_net *net, jem_tensor *x, int training, void *user) {
    (void)training;
    return jem_scale(net->ctx, jem_sum_image(net->ctx, jem_square(net->ctx, x)), *(float *)user);
}

enum { CALIBRATED = 600 };

/* Checks the familiarity of the images that the net was calibrated with, by hand: of one class, it
   is that of the distance of log p(x) from the usual. */
static void check_even(const jem_answer *a) {
    double worst = 0;
    double mean = 0;
    double middle = 0;
    for (int i = 0; i < CALIBRATED; i++) middle += (double)a[i].log_density / CALIBRATED;
    for (int i = 0; i < CALIBRATED; i++) {
        int lower = 0;
        for (int k = 0; k < CALIBRATED; k++)
            lower += fabs((double)a[k].log_density - middle) >
                     fabs((double)a[i].log_density - middle);
        worst = most_of(worst, fabs((double)a[i].familiarity - (double)lower / (CALIBRATED - 1)));
        mean += (double)a[i].familiarity / CALIBRATED;
        CHECK(a[i].probability == 1 && a[i].label == 0, "one class");
    }
    CHECK(worst < 1.0 / 64 && fabs(mean - 0.5) < 0.005, "off by %g, mean %g", worst, mean);
}

static void test_familiarity(jem_ctx *ctx) {
    printf("familiarity: even over what it was calibrated with, 0 for noise and for the mode\n");
    enum { N = CALIBRATED, D = 8 };
    float steepness = -1;
    jem_net *net = jem_net_create(ctx, bowl, &steepness, sizeof steepness, D, 1, 1, 1, 1);
    float x[N * D], far[N * D];
    jem_answer a[N];
    jem_rng rng = jem_rng_seed(10);
    jem_fill_normal(ctx, &rng, x, N * D, 0, 1);
    CHECK(jem_calibrate(net, x, N, JEM_AUTO) == JEM_OK, "%s", jem_error(ctx));
    jem_net_set_meta(net, "jem.statistics", NULL);      /* as files of before */
    CHECK(jem_classify(net, x, N, a) == JEM_OK, "%s", jem_error(ctx));
    check_even(a);
    jem_fill_normal(ctx, &rng, far, N * D, 0, 1);
    jem_classify(net, far, N, a);
    double mean = 0;
    for (int i = 0; i < N; i++) mean += (double)a[i].familiarity / N;
    CHECK(fabs(mean - 0.5) < 4 * sqrt(2.0 / 12 / N), "others of their sort: %g", mean);
    jem_fill_normal(ctx, &rng, far, N * D, 0, 10);
    memset(far, 0, D * sizeof *far);
    jem_classify(net, far, 100, a);
    CHECK(a[0].familiarity < 0.1f, "the most likely one: %g", (double)a[0].familiarity);
    for (int i = 1; i < 100; i++)
        CHECK(a[i].familiarity < 0.01f, "noise: %g", (double)a[i].familiarity);
    jem_net_set_meta(net, "jem.usual", NULL);      /* as earlier files: the likelier the better */
    jem_classify(net, far, 1, a);
    CHECK(a[0].familiarity == 1, "the most likely one, by log p(x) alone");
    for (int gradients = 0; gradients < 2; gradients++) {
        CHECK(jem_calibrate(net, x, N, gradients) == JEM_OK, "%s", jem_error(ctx));
        jem_classify(net, far, 100, a);
        CHECK(jem_judge(a[0].familiarity) == JEM_VERDICT_FAMILIAR, "the centre of the data: %g",
              (double)a[0].familiarity);
        int passed = 0;
        for (int i = 1; i < 100; i++) passed += a[i].familiarity >= 0.01f;
        CHECK(passed <= 2, "%d of 99 noises pass", passed);
    }
    CHECK(jem_calibrate(net, x, 1, 0) == JEM_BAD_ARGUMENT && says(ctx, "calibrate"), "one image");
    const char *before = jem_net_meta(net, "jem.familiar");
    const float invalid[3] = { NAN, -1e35f, -3e8f };         /* in a file's text */
    for (int i = 0; i < 3; i++) {
        *(float *)net->user = invalid[i];
        CHECK(jem_calibrate(net, x, N, JEM_AUTO) == JEM_DIVERGED &&
              says(ctx, i ? "log p(x)" : "not finite") &&
              jem_net_meta(net, "jem.familiar") == before, "log p times %g",
              (double)*(float *)net->user);
    }
    jem_net_free(net);
}

int main(int argc, char **argv) {
    static const test_case all[] = {
        TEST_IN(test_diagonal), TEST_IN(test_correlated), TEST_IN(test_mixture),
        TEST_IN(test_walk), TEST_IN(test_walk_errors), TEST_IN(test_buffer), TEST(test_schedules),
        TEST_IN(test_updates), TEST_IN(test_averages), TEST_IN(test_refused_steps),
        TEST_IN(test_no_chance), TEST_IN(test_trainer), TEST_IN(test_unlabelled),
        TEST_IN(test_remembered), TEST_IN(test_alone), TEST_IN(test_visits), TEST(test_poor),
        TEST_IN(test_evaluation), TEST_IN(test_changes), TEST_IN(test_unconditional),
        TEST_IN(test_divergence), TEST_IN(test_learning), TEST_IN(test_answers),
        TEST_IN(test_familiarity)
    };
    return run_in_ctx(argc, argv, all, TEST_COUNT(all), no_error_left);
}
