/* Score matching and noise-blind sampling: the gradient against analytic second derivatives in
   double precision, learned scores and samples against known densities, bits, memory, resuming. */
#define JEM_IMPLEMENTATION
#include "jem.h"
#include "tests/support/test.h"
#include "tests/support/common.h"
#include "tests/support/dual.h"

enum { MOST_PARAMS = 12, DIRECTIONS = 4 };

/* One loss and its gradient by the library, and the same in double precision. */
typedef struct comparison { double value, exact, residual, exact_residual, gap; } comparison;

/* n images of d numbers, their noise, its size, and their weights; NULL: all are equal. */
typedef struct noisy_images {
    int n, d;
    const float *x, *z, *sigma, *weight;
} noisy_images;

/* Draws directions of all parameters, to be freed, and computes the gradient along each. */
static void draw_directions(const jem_net *net, jem_rng *rng,
                            float *moves[DIRECTIONS][MOST_PARAMS], double *got) {
    for (int k = 0; k < DIRECTIONS; k++) {
        int at = 0;
        got[k] = 0;
        for (const jem_param *p = net->params; p; p = p->next) {
            float *m = moves[k][at++] = random_floats(rng, p->size, -1, 1);
            for (ptrdiff_t i = 0; i < p->size; i++) got[k] += (double)m[i] * (double)p->grad[i];
        }
        while (at < MOST_PARAMS) moves[k][at++] = NULL;
    }
}

/* Computes the loss and the residual in double precision, and the gradient along each direction. */
static void exact_score(const jem_net *net, const noisy_images *in,
                        float *moves[DIRECTIONS][MOST_PARAMS], comparison *c, double *want) {
    const int n = in->n;
    const int d = in->d;
    double *noisy = (double *)malloc(sizeof *noisy * (size_t)d);
    double *r = (double *)malloc(sizeof *r * (size_t)d);
    double *zero = (double *)calloc((size_t)d, 8);
    for (int k = 0; k < DIRECTIONS; k++) want[k] = 0;
    for (int i = 0; i < n; i++) {
        const double s = (double)in->sigma[i];
        const double w = in->weight ? (double)in->weight[i] / n : 1.0 / n;
        const float *x = in->x + i * d;
        const float *z = in->z + i * d;
        double rr = 0;
        for (int k = 0; k < d; k++) noisy[k] = (double)x[k] + s * (double)z[k];
        for (int k = 0; k < d; k++) {              /* the slope, one direction at a time */
            zero[k] = 1;
            r[k] = s * dual_logp(net, noisy, zero, NULL).a + (double)z[k];
            zero[k] = 0;
            rr += r[k] * r[k];
        }
        c->exact += w * rr / 2;
        c->exact_residual += rr / d / n;
        for (int k = 0; k < DIRECTIONS; k++)
            want[k] += w * s * dual_logp(net, noisy, r, moves[k]).c;
    }
    free(noisy);
    free(r);
    free(zero);
}

/* Returns the length of got - want, in lengths of want. */
static double length_of_gap(const double *got, const double *want) {
    double error = 0;
    double length = 0;
    for (int k = 0; k < DIRECTIONS; k++) {
        error += (got[k] - want[k]) * (got[k] - want[k]);
        length += want[k] * want[k];
    }
    return sqrt(error / length);
}

static comparison compare_score(jem_net *net, int n, float step, int weighted, uint64_t seed) {
    jem_ctx *ctx = net->ctx;
    const int d = net->channels * net->height * net->width;
    jem_rng rng = jem_rng_seed(seed);
    jem_rng same;
    float *x = random_floats(&rng, n * d, -1, 1);
    float *z = floats(n * d);
    float *ones = floats(n);
    float *sigma = floats(n);
    float *weight = random_floats(&rng, n, 0.5f, 2);
    float residual = 0;
    comparison c = { 0, 0, 0, 0, 0 };
    jem_noise_levels(&rng, n, 0.12f, 2, sigma);
    for (int i = 0; i < n; i++) ones[i] = 1;
    same = rng;                                    /* the loss's own noise */
    const jem_mark mark = jem_begin(ctx);
    jem_tensor *leaf = jem_zeros(ctx, n, net->channels, net->height, net->width);
    jem_add_noise(leaf, ones, &same);
    jem_read(leaf, z);
    const noisy_images in = { n, d, x, z, sigma, weighted ? weight : NULL };
    jem_score_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.sigma = sigma;
    desc.weight = in.weight;
    desc.difference = step;
    leaf = jem_input(ctx, x, n, net->channels, net->height, net->width);
    jem_tensor *loss = jem_score_matching(ctx, jem_logp, net, leaf, &desc, &rng, &residual);
    jem_zero_grad(net);
    CHECK(jem_backward(loss) == JEM_OK, "%s", jem_error(ctx));
    c.value = (double)jem_item(loss);
    c.residual = (double)residual;
    CHECK(rng.counter == same.counter, "it takes the noise of its images, and no more");

    float *moves[DIRECTIONS][MOST_PARAMS];
    double want[DIRECTIONS], got[DIRECTIONS];
    draw_directions(net, &rng, moves, got);
    exact_score(net, &in, moves, &c, want);
    c.gap = length_of_gap(got, want);
    for (int k = 0; k < DIRECTIONS; k++)
        for (int at = 0; at < MOST_PARAMS; at++) free(moves[k][at]);
    jem_end(ctx, mark);
    free(x);
    free(z);
    free(ones);
    free(sigma);
    free(weight);
    return c;
}

/* Checks that level i of n is in part i of the range, in logarithms, and anywhere in it. */
static void test_noise_levels(void) {
    printf("noise levels: one from each part of the range\n");
    enum { LEVELS = 50 };
    float sigma[LEVELS];
    double mean = 0;
    jem_rng rng = jem_rng_seed(4);
    jem_noise_levels(&rng, LEVELS, 0.12f, 2, sigma);
    for (int i = 0; i < LEVELS; i++) {
        const double at = LEVELS * log((double)sigma[i] / 0.12) / log(2 / 0.12);
        CHECK(at > i - 1e-3 && at < i + 1 + 1e-3, "level %d is at %.4f", i, at);
        mean += (at - i) / LEVELS;
    }
    CHECK_CLOSE(mean, 0.5, 4.5 * sqrt(1.0 / 12 / LEVELS), "places within a part");
    jem_noise_levels(&rng, 3, 0.7f, 0.7f, sigma);
    for (int i = 0; i < 3; i++) CHECK_CLOSE(sigma[i], 0.7f, 1e-6, "lo = hi");
}

static void test_gradient(void) {
    printf("the loss and its gradient against second derivatives in double precision\n");
    counter count;
    jem_ctx *ctx = open_ctx(&count);
    for (int how = 0; how < 4; how++) {
        jem_net *net = smooth_net(ctx, how & 1);
        net->scale = how & 2 ? 10 : 1;
        static const int images[4] = { 20, 3, 16, 37 };
        const comparison c = compare_score(net, images[how], 0.02f, how > 1, 5 + (uint64_t)how);
        CHECK_CLOSE(c.gap, 0, 1e-3, "gradient, case %d", how);
        CHECK_CLOSE(c.value, c.exact, 1e-3 * c.exact, "value");
        CHECK_CLOSE(c.residual, c.exact_residual, 1e-5 * c.exact_residual, "residual");
        jem_net_free(net);
    }
    close_ctx(ctx, &count, "gradients");
}

/* Trains a network a little, on images of stripes. */
static jem_net *striped_net(jem_ctx *ctx) {
    jem_convnet_desc shape = jem_convnet_desc_default();
    shape.channels = 8;
    shape.height = shape.width = 6;
    shape.layers = 2;
    jem_net *net = jem_convnet_create(ctx, &shape, 3);
    jem_rng rng = jem_rng_seed(1);
    net->scale = 10;
    jem_optim *o = jem_optim_create(net, NULL);
    enum { SIZE = 8 * 36 };
    float x[16 * SIZE], sigma[16];
    for (int i = 0; i < 100; i++) {
        const jem_mark mark = jem_begin(ctx);
        for (int k = 0; k < 16 * SIZE; k++) x[k] = (k / 3 + k / 36) % 3 ? -1.f : 1.f;
        jem_noise_levels(&rng, 16, 0.12f, 2, sigma);
        jem_score_desc d;
        memset(&d, 0, sizeof d);
        d.sigma = sigma;
        jem_tensor *t = jem_input(ctx, x, 16, 8, 6, 6);
        jem_zero_grad(net);
        jem_backward(jem_score_matching(ctx, jem_logp, net, t, &d, &rng, NULL));
        jem_optim_step(o, 1e-3f, NULL);
        jem_end(ctx, mark);
    }
    jem_optim_free(o);
    return net;
}

/* How far a network, a little trained, may step to either side: the default must be nearly as good
   as any, with room for the rounding of larger networks below it. */
static void test_step(void) {
    static const float steps[] = { 0.003f, 0.01f, 0.03f, 0.1f, 0.3f };
    static const char *const name[] = { "exact", "fast", "direct", "bf16" };
    enum { STEPS = sizeof steps / sizeof *steps };
    printf("error of the gradient by step and arithmetic\n          ");
    for (int k = 0; k < STEPS; k++) printf("  %8.3f", (double)steps[k]);
    for (int precision = 0; precision < 4; precision++) {      /* in the order of jem_precision */
        jem_ctx_desc desc;
        memset(&desc, 0, sizeof desc);
        desc.threads = 1;
        desc.precision = (jem_precision)precision;
        if (precision == JEM_PRECISION_BF16) desc.isa = JEM_ISA_SCALAR;  /* has it everywhere */
        jem_ctx *ctx = jem_ctx_create(&desc);
        jem_net *net = striped_net(ctx);
        printf("\n  %-8s", name[precision]);
        double error[STEPS];
        double least = 1;
        for (int k = 0; k < STEPS; k++) {
            error[k] = compare_score(net, 1, steps[k], 0, 11).gap;
            least = error[k] < least ? error[k] : least;
            printf("  %8.5f", error[k]);
        }
        const double usual = compare_score(net, 1, 0, 0, 11).gap;
        const int at = precision == JEM_PRECISION_BF16 ? 3 : 2;
        CHECK(usual == error[at] && usual < 20 * least && usual < (at == 3 ? 0.05 : 2e-3),
              "the default step: %g (the best is %g)", usual, least);
        jem_net_free(net);
        jem_ctx_free(ctx);
    }
    printf("\n");
}

/* ---- what is learned ------------------------------------------------------------------------- */

enum { CENTRES = 3, POINTS = 256, MOST_DIMS = 16 };
static const double centre[CENTRES][2] = { { -0.7, -0.4 }, { 0.8, -0.5 }, { 0.1, 0.8 } };

/* The slope of log sum_k N(x; centre k, s2), k < centres, at x; centres are 0 beyond the plane. */
static void true_score(const float *x, int dims, int centres, double s2, double *g) {
    double sum = 0;
    for (int j = 0; j < dims; j++) g[j] = 0;
    for (int k = 0; k < centres; k++) {
        const double a = centre[k][0] - (double)x[0];
        const double b = centre[k][1] - (double)x[1];
        const double p = exp(-(a * a + b * b) / (2 * s2));
        sum += p;
        g[0] += p * a / s2;
        g[1] += p * b / s2;
    }
    g[0] /= sum;
    g[1] /= sum;
    for (int j = 2; j < dims; j++) g[j] = -(double)x[j] / s2;
}

static void draw(jem_rng *rng, int dims, int centres, float *x) {
    for (int k = 0; k < POINTS; k++) {
        const int c = jem_rng_below(rng, centres);
        for (int j = 0; j < dims; j++)
            x[dims * k + j] = (j < 2 ? (float)centre[c][j] : 0) + 0.2f * jem_rng_normal(rng);
    }
}

/* What the error's square is of the score's, where samples with noise are. */
static double learn(jem_ctx *ctx, int dims, int centres) {
    enum { UPDATES = 1500 };
    jem_mlp_desc m = jem_mlp_desc_default();
    m.channels = dims;
    m.height = m.width = 1;
    m.classes = 3;
    m.widths[0] = m.widths[1] = 48;
    jem_net *net = jem_mlp_create(ctx, &m, 1);
    jem_optim *o = jem_optim_create(net, NULL);
    jem_rng rng = jem_rng_seed(2);
    static float x[MOST_DIMS * POINTS], g[MOST_DIMS * POINTS];
    float sigma[POINTS];
    double error = 0;
    double length = 0;
    jem_score_desc d;
    memset(&d, 0, sizeof d);
    d.sigma = sigma;
    for (int k = 0; k < POINTS; k++) sigma[k] = 0.3f;
    for (int i = 0; i < UPDATES; i++) {
        draw(&rng, dims, centres, x);
        jem_tensor *t = jem_input(ctx, x, POINTS, dims, 1, 1);
        jem_zero_grad(net);
        jem_backward(jem_score_matching(ctx, jem_logp, net, t, &d, &rng, NULL));
        jem_optim_step(o, 5e-3f * (1 - (float)i / UPDATES), NULL);
        jem_reset(ctx);
    }
    draw(&rng, dims, centres, x);
    jem_tensor *t = jem_input(ctx, x, POINTS, dims, 1, 1);
    jem_add_noise(t, sigma, &rng);
    jem_read(t, x);
    jem_grad(jem_logp(ctx, t, net), t);
    jem_read_grad(t, g);
    jem_reset(ctx);
    for (int k = 0; k < POINTS; k++) {
        double want[MOST_DIMS];
        true_score(x + dims * k, dims, centres, 0.2 * 0.2 + 0.3 * 0.3, want);
        for (int j = 0; j < dims; j++) {
            const double e = (double)g[dims * k + j] - want[j];
            error += e * e;
            length += want[j] * want[j];
        }
    }
    jem_optim_free(o);
    jem_net_free(net);
    return error / length;
}

/* A small network learns one and three Gaussians from samples with noise .3, which adds to their
   variance. */
static void test_learned(void) {
    printf("a Gaussian and mixtures in 2 and 16 dimensions: the learned score against the true "
           "one\n");
    counter count;
    jem_ctx *ctx = open_ctx(&count);
    for (int dims = 2; dims <= MOST_DIMS; dims *= 8)
        for (int centres = 1; centres <= CENTRES; centres += CENTRES - 1) {
            const double share = learn(ctx, dims, centres);
            CHECK(jem_ok(ctx) && share < 0.02, "%d dimensions, %d centres: error %.4f of the "
                  "score's square (%s)", dims, centres, share, jem_error(ctx));
            printf("  %d dimensions, %d: error %.4f of the score's square\n", dims, centres,
                   share);
        }
    close_ctx(ctx, &count, "learning");
}

/* ---- samples --------------------------------------------------------------------------------- */
/* Data of which everything is known: N(mean, spread^2) in the first SPREAD coordinates, 0 in the
   others. With noise sigma it is a Gaussian too, and for unknown sigma a mixture of those,
   the noise-blind density: LEVELS of them, log-uniform. */
enum { PIXELS = 256, SPREAD = 8, LEVELS = 64 };
static const double spread = 0.5, mean = 0.4;

typedef struct blind { jem_param *shift, *quadratic, *constant, *one; } blind;

static jem_tensor *blind_logp(jem_ctx *ctx, jem_tensor *x, void *user) {
    const blind *b = (const blind *)user;
    jem_tensor *d = jem_square(ctx, jem_linear(ctx, x, b->one, b->shift));
    return jem_logsumexp(ctx, jem_linear(ctx, d, b->quadratic, b->constant));
}

static void blind_make(jem_net *bag, blind *b, double lo) {    /* noise from lo to 4 */
    jem_rng rng = jem_rng_seed(1);
    b->one = random_param(bag, &rng, 0, 2, PIXELS, PIXELS, 1, 0, 0);
    b->shift = random_param(bag, &rng, 0, 1, PIXELS, 1, 1, 0, 0);
    b->quadratic = random_param(bag, &rng, 0, 2, LEVELS, PIXELS, 1, 0, 0);
    b->constant = random_param(bag, &rng, 0, 1, LEVELS, 1, 1, 0, 0);
    for (int i = 0; i < PIXELS; i++) {
        b->one->value[i * PIXELS + i] = 1;
        b->shift->value[i] = i < SPREAD ? (float)-mean : 0;
    }
    for (int k = 0; k < LEVELS; k++) {
        const double sigma = lo * pow(4 / lo, (double)k / (LEVELS - 1));
        double constant = 0;
        for (int i = 0; i < PIXELS; i++) {
            const double v = sigma * sigma + (i < SPREAD ? spread * spread : 0);
            b->quadratic->value[k * PIXELS + i] = (float)(-0.5 / v);
            constant -= 0.5 * log(v);
        }
        b->constant->value[k] = (float)constant;
    }
}

/* Mean and variance in a coordinate with spread, if sigma falls as it should: of x' - m =
   (1 - s sigma^2/v) (x - m) + gamma z they are recursions. In the limit of small steps, and of much
   noise at the start, they are m and spread^2. */
static double walked(const jem_denoise_desc *d, double *variance) {
    const double s = (double)d->fraction;
    const double k = 1 - (double)d->beta * s;
    double sigma = (double)d->sigma_max;
    double v = sigma * sigma;
    double off = mean;
    for (int i = 0; i < d->steps; i++) {
        const double f = 1 - s * sigma * sigma / (spread * spread + sigma * sigma);
        off *= f;
        v = f * f * v + (k * k - (1 - s) * (1 - s)) * sigma * sigma;
        sigma *= k;
    }
    *variance = v;
    return mean - off;
}

/* The variance after a fresh sample's whole way. In the walk, x' = x + a d log p/dx + b z, and in
   the last step, the density takes for sigma^2 what coordinates without spread have: r. */
static double fresh_variance(const jem_generate_desc *d) {
    const double a = (double)d->walk.step_size;
    const double b = (double)d->walk.noise_std;
    const double s = spread * spread;
    const double last = (double)jem_denoise_desc_clean(d->last_sigma).fraction;
    double v;
    double r = (double)d->denoise.sigma_max;
    walked(&d->denoise, &v);
    r *= pow(1 - (double)d->denoise.beta * (double)d->denoise.fraction, d->denoise.steps);
    r *= r;
    for (int i = 0; i < d->walk.steps; i++) {
        const double f = 1 - a / (s + r);
        const double g = 1 - a / r;
        v = f * f * v + b * b;
        r = g * g * r + b * b;
    }
    const double f = 1 - last * r / (s + r);
    return f * f * v;
}

/* Sums over n samples: of their first SPREAD coordinates, less the mean, and their squares; of the
   squares of the others. */
typedef struct sums { double sum, squares, off; } sums;
static sums sums_of(const float *x, int n) {
    sums all = { 0, 0, 0 };
    for (int i = 0; i < n * PIXELS; i++) {
        const double v = (double)x[i] - mean;
        if (i % PIXELS < SPREAD) {
            all.sum += v;
            all.squares += v * v;
        } else {
            all.off += (double)x[i] * (double)x[i];
        }
    }
    return all;
}

/* All of a fresh sample's way. (Steps of a with noise sqrt(a) walk at half the density's own
   temperature: the variance is about half of its.) */
static void test_fresh(jem_ctx *ctx, blind *b) {
    jem_rng rng = jem_rng_seed(8);
    jem_generate_desc d = jem_generate_desc_default();
    enum { N = 256 };
    float *x = floats(N * PIXELS);
    d.mean = (float)mean;
    d.walk.steps = 50;
    jem_tensor *t = jem_zeros(ctx, N, PIXELS, 1, 1);
    CHECK(jem_generate(ctx, blind_logp, b, t, &d, &rng) == JEM_OK, "%s", jem_error(ctx));
    jem_read(t, x);
    const sums all = sums_of(x, N);
    const int n = N * SPREAD;
    const double want = fresh_variance(&d);
    printf("  fresh: variance %.4f, expected %.4f\n", all.squares / n, want);
    CHECK_CLOSE(all.sum / n, 0, 5 * sqrt(want / n), "fresh: the mean");
    CHECK_CLOSE(all.squares / n, want, 5 * want * sqrt(2.0 / n), "fresh: the variance");
    CHECK(sqrt(all.off / (N * (PIXELS - SPREAD))) < 0.05, "fresh: noise left");
    CHECK(jem_generate(ctx, blind_logp, b, t, NULL, NULL) == JEM_BAD_ARGUMENT && says(ctx, "rng"),
          "noise needs an rng");
    float *other = floats(N * PIXELS);
    d.denoise.steps = 2;
    for (d.walk.steps = 0; d.walk.steps < 2; d.walk.steps++) {
        rng = jem_rng_seed(8);
        CHECK(jem_generate(ctx, blind_logp, b, t, &d, &rng) == JEM_OK, "%s", jem_error(ctx));
        jem_read(t, d.walk.steps ? other : x);
    }
    CHECK(!same_bits(x, other, N * PIXELS), "fresh: there is a walk");
    free(x);
    free(other);
}

/* What is sampled agrees with what is known: x[i] and x[SPREAD + i] are a pair, (1,1)/sqrt(2) times
   a number that is spread, so the second of them says what the first one is. */
static void test_impute(jem_ctx *ctx, blind *b) {
    enum { N = 64 };
    jem_rng rng = jem_rng_seed(10);
    float *x = floats(N * PIXELS);
    float *y = floats(N * PIXELS);
    float *known = floats(N * PIXELS);
    const float root = sqrtf(0.5f);
    for (int i = 0; i < SPREAD; i++) {
        const int k = SPREAD + i;
        b->one->value[i * PIXELS + i] = b->one->value[i * PIXELS + k] = root;
        b->one->value[k * PIXELS + i] = root;
        b->one->value[k * PIXELS + k] = -root;
    }
    jem_param_changed(b->one);
    for (int i = 0; i < N * PIXELS; i++) {
        const int at = i % PIXELS;
        known[i] = at >= SPREAD;
        x[i] = at < SPREAD || at >= 2 * SPREAD ? 0
             : root * ((float)mean + (float)spread * jem_rng_normal(&rng));
    }
    jem_impute_desc d = jem_impute_desc_default();
    d.denoise.steps = 400;
    d.denoise.sigma_max = 4;
    d.walk.steps = 0;
    jem_tensor *t = jem_input(ctx, x, N, PIXELS, 1, 1);
    CHECK(jem_impute(ctx, blind_logp, b, t, known, &d, &rng) == JEM_OK, "%s", jem_error(ctx));
    jem_read(t, y);
    double off = 0;
    double moved = 0;
    for (int i = 0; i < N * PIXELS; i++) {
        const double e = (double)y[i] - (double)(i % PIXELS < SPREAD ? x[i + SPREAD] : x[i]);
        *(i % PIXELS < SPREAD ? &off : &moved) += e * e;
    }
    printf("  imputed: off by %.4f of %.4f\n", sqrt(off / (N * SPREAD)), (double)root * spread);
    CHECK(sqrt(off / (N * SPREAD)) < 0.02, "imputed: it does not agree with what is known");
    CHECK(moved == 0, "imputed: what is known has moved");
    free(x);
    free(y);
    free(known);
}

/* Compares the moments of noise-blind samples with known ones: the default, finer steps, a flow. */
static void check_samples(jem_ctx *ctx, blind *b, int how) {
    enum { N = 512 };
    jem_rng rng = jem_rng_seed(4 + (uint64_t)how);
    jem_denoise_desc d = jem_denoise_desc_default();
    if (how == 1) {
        d.fraction = 0.02f;
        d.beta = 0.5f;
        d.steps = 600;
    }
    if (how == 2) {                                /* nothing put back: a flow */
        d.beta = 1;
        d.steps = 120;
    }
    float *x = floats(N * PIXELS);
    jem_fill_normal(ctx, &rng, x, N * PIXELS, 0, d.sigma_max);
    jem_tensor *t = jem_input(ctx, x, N, PIXELS, 1, 1);
    CHECK(jem_denoise(ctx, blind_logp, b, t, &d, how == 2 ? NULL : &rng) == JEM_OK, "%s",
          jem_error(ctx));
    jem_read(t, x);
    const sums all = sums_of(x, N);
    const int n = N * SPREAD;
    double want;
    const double want_mean = walked(&d, &want);
    const double sigma = (double)d.sigma_max * pow(1 - (double)(d.beta * d.fraction), d.steps);
    printf("  case %d: mean %+.3f, variance %.3f; noise left %.4f\n", how, mean + all.sum / n,
           all.squares / n, sqrt(all.off / (N * (PIXELS - SPREAD))));
    CHECK_CLOSE(mean + all.sum / n, want_mean, 5 * spread / sqrt(n), "the mean, case %d", how);
    CHECK_CLOSE(all.squares / n, want, 0.08 * want, "the variance, case %d", how);
    CHECK_CLOSE(want, spread * spread, 0.3 * spread * spread, "it is about the density's");
    CHECK(sqrt(all.off / (N * (PIXELS - SPREAD))) < 1.5 * sigma + 0.01, "noise left, case %d", how);
    free(x);
    jem_reset(ctx);
}

/* Checks that one step of size 1 without noise takes the noise off an image. */
static void check_one_step(jem_ctx *ctx, blind *b) {
    float x[20 * PIXELS], sigma[20];
    double off = 0;
    jem_rng rng = jem_rng_seed(9);
    for (int i = 0; i < 20; i++) sigma[i] = 0.05f * (float)(i + 1);
    jem_tensor *t = jem_zeros(ctx, 20, PIXELS, 1, 1);
    jem_denoise_desc once = jem_denoise_desc_default();
    once.steps = 1;
    once.fraction = 1;
    jem_add_noise(t, sigma, &rng);
    CHECK(jem_denoise(ctx, blind_logp, b, t, &once, NULL) == JEM_OK, "%s", jem_error(ctx));
    jem_read(t, x);
    for (int i = 0; i < 20 * PIXELS; i++)
        if (i % PIXELS >= SPREAD) off += (double)x[i] * (double)x[i] / (20 * (PIXELS - SPREAD));
    CHECK(sqrt(off) < 0.06, "one step leaves %.3f of noise up to 1", sqrt(off));
}

static void test_samples(void) {
    printf("noise-blind samples: mean and variance\n");
    counter count;
    jem_ctx *ctx = open_ctx(&count);
    jem_net *bag = bag_create(ctx);
    blind b;
    blind_make(bag, &b, 0.005);
    for (int how = 0; how < 3; how++) check_samples(ctx, &b, how);
    check_one_step(ctx, &b);
    blind_make(bag, &b, 0.12);                     /* the walk's noise is .1: it must not be less */
    test_fresh(ctx, &b);
    blind_make(bag, &b, 0.005);
    test_impute(ctx, &b);
    jem_net_free(bag);
    close_ctx(ctx, &count, "samples");
}

/* ---- in training ----------------------------------------------------------------------------- */

enum { SIDE = 8, SMALL = SIDE * SIDE, BATCH = 21, CLASSES = 3 };

static jem_net *small_net(jem_ctx *ctx) {
    const small_shape s = { 1, SIDE, SIDE, CLASSES, 0 };
    jem_net *net = small_convnet(ctx, s, 5, 6, 3);
    if (net) net->scale = 10;
    return net;
}

static jem_train_desc score_training(int by_class) {
    jem_train_desc d = jem_train_desc_default();
    d.lr = 1e-3f;
    d.w_score = 0.016f;
    d.weights.cd = 0.005f;
    d.cd_from = 3;
    d.data_noise = 0.12f;
    d.label_noise = 0.3f;
    d.label_all_noise = 0.5f;
    d.restart_denoise.steps = 6;
    d.reinit = 0.25f;
    d.negatives = 18;
    d.buffer_size = 40;
    d.class_conditional = by_class;
    d.sgld = jem_sgld_desc_langevin(0.01f, 3);
    d.optim.ema = 0.9f;
    return d;
}

static void batch(int step, float *x, int *labels) {
    jem_rng rng = jem_rng_seed(100 + (uint64_t)step);
    for (int i = 0; i < BATCH; i++) {
        labels[i] = jem_rng_below(&rng, CLASSES);
        for (int k = 0; k < SMALL; k++)
            x[i * SMALL + k] = k % CLASSES == labels[i] ? 1.f : -1 + 0.1f * jem_rng_uniform(&rng);
    }
}

/* Eleven updates; a checkpoint after `stop` of them (0: none), from which others go on. */
static uint64_t train(jem_ctx *ctx, int by_class, int stop, size_t *allocations) {
    const jem_train_desc d = score_training(by_class);
    jem_net *net = small_net(ctx);
    jem_trainer *tr = jem_trainer_create(net, &d);
    float x[BATCH * SMALL];
    int labels[BATCH];
    for (int i = 0; i < 11; i++) {
        if (stop && i == stop) {
            jem_archive *a = jem_archive_create(ctx);
            size_t size;
            CHECK(jem_net_to_archive(net, a) == JEM_OK && jem_trainer_to_archive(tr, a) == JEM_OK,
                  "%s", jem_error(ctx));
            void *file = jem_archive_to_memory(a, &size);
            jem_archive_free(a);
            jem_trainer_free(tr);
            jem_net_free(net);
            a = jem_archive_parse(ctx, file, size);
            net = jem_net_from_archive(ctx, a);
            CHECK(net && net->scale == 10 && net->noise_lo == d.noise_lo && net->noise_hi == 2 &&
                  net->mean != 0, "scale, noise, mean are in the file");
            tr = jem_trainer_create(net, &d);
            CHECK(tr && jem_trainer_from_archive(tr, a) == JEM_OK, "%s", jem_error(ctx));
            jem_archive_free(a);
            jem_release(ctx, file);
        }
        batch(i, x, labels);
        const jem_stats s = jem_train_step(tr, x, labels, BATCH);
        CHECK(s.status == JEM_OK && s.score > 0 && s.residual > 0, "%s", jem_error(ctx));
        CHECK((s.f_sample != 0) == (i >= d.cd_from), "chains from update %d on: %d", d.cd_from, i);
        CHECK_CLOSE(s.loss, s.ce + d.weights.cd * s.cd + d.w_score * s.score, 1e-3, "the terms");
        if (allocations && i == 7) *allocations = jem_memory(ctx).allocations;
    }
    if (allocations) *allocations = jem_memory(ctx).allocations - *allocations;
    uint64_t h = net_hash(net);
    if (tr) h = fnv(h, jem_trainer_buffer(tr)->data, 40 * SMALL);
    jem_trainer_free(tr);
    jem_net_free(net);
    return h;
}

static void test_training(void) {
    printf("training with all three terms: bits, memory, resuming\n");
    for (int by_class = 0; by_class < 2; by_class++) {
        uint64_t first = 0;
        for (int isa = JEM_ISA_SCALAR; isa <= JEM_ISA_NEON; isa++)
            for (int threads = 1; threads <= 3 && jem_isa_available((jem_isa)isa); threads++) {
                jem_ctx *ctx = isa_ctx((jem_isa)isa, threads);
                size_t allocations = 0;
                const uint64_t h = train(ctx, by_class, 0, &allocations);
                if (!first) first = h;
                CHECK(h == first, "%s, %d threads: the same bits", jem_isa_name((jem_isa)isa),
                      threads);
                CHECK(allocations == 0, "%d allocations when all is running", (int)allocations);
                jem_ctx_free(ctx);
            }
        counter count;
        jem_ctx *ctx = open_ctx(&count);
        for (int stop = 1; stop < 11; stop += 2)   /* before, when and after chains set in */
            CHECK(train(ctx, by_class, stop, NULL) == first, "resumed after %d", stop);
        close_ctx(ctx, &count, "training");
    }
}

/* ---- mistakes -------------------------------------------------------------------------------- */

static jem_tensor *class_of_two(jem_ctx *ctx, jem_tensor *x, void *user) {
    return x->n == 2 ? jem_logp_class(ctx, x, user) : jem_zeros(ctx, x->n, 1, 1, 1);
}
static jem_tensor *one_number(jem_ctx *ctx, jem_tensor *x, void *user) {
    (void)user;
    return jem_mean(ctx, x);
}

static void test_mistakes(void) {
    printf("mistakes are errors that say which\n");
    counter count;
    jem_ctx *ctx = open_ctx(&count);
    jem_net *net = small_net(ctx);
    int labels[2] = { 0, 1 };
    jem_query query = { net, labels, 3 };
    jem_tensor *x = jem_zeros(ctx, 2, 1, SIDE, SIDE);
    CHECK(!jem_logp_class(ctx, x, net) && says(ctx, "labels are NULL"), "a net without labels");
    CHECK(!jem_logp_label(ctx, x, net) && says(ctx, "logp_label"), "a net without labels");
    CHECK(!jem_log_odds(ctx, x, net) && says(ctx, "log_odds"), "a net without labels");
    CHECK(!jem_logp_guided(ctx, x, net) && says(ctx, "logp_guided"), "a net without labels");
    CHECK(!jem_logp(ctx, x, NULL) && says(ctx, "NULL"), "nothing");
    query.net = NULL;
    CHECK(!jem_logp_class(ctx, x, &query) && says(ctx, "NULL"), "no net");
    query.net = net;
    float two[5][2];
    jem_read(jem_logp(ctx, x, net), two[0]);
    jem_read(jem_logp_class(ctx, x, &query), two[1]);
    jem_read(jem_logp_label(ctx, x, &query), two[2]);
    jem_read(jem_logp_guided(ctx, x, &query), two[3]);
    jem_read(jem_log_odds(ctx, x, &query), two[4]);
    for (int i = 0; i < 2; i++) {
        CHECK_CLOSE(two[1][i], two[0][i] + two[2][i], 1e-4, "p(x,y) = p(x) p(y|x), scaled");
        CHECK_CLOSE(two[3][i], two[0][i] + 3 * two[2][i], 1e-4, "guided");
        CHECK_CLOSE(two[4][i], two[2][i] - logf(1 - expf(two[2][i])), 1e-4, "log p / (1 - p)");
    }
    jem_net_free(net);
    close_ctx(ctx, &count, "mistakes");
}

static void test_score_mistakes(void) {
    printf("mistakes in score matching and denoising\n");
    counter count;
    jem_ctx *ctx = open_ctx(&count);
    jem_net *net = small_net(ctx);
    jem_query query = { net, NULL, 3 };
    jem_tensor *x = jem_zeros(ctx, 2, 1, SIDE, SIDE);
    jem_rng rng = jem_rng_seed(1);
    float sigma[2] = { 1, 0 };
    jem_score_desc d;
    memset(&d, 0, sizeof d);
    d.sigma = sigma;
    CHECK(!jem_score_matching(ctx, jem_logp, net, x, &d, &rng, NULL) && says(ctx, "image 1"), "0");
    sigma[1] = 1;
    float weight[2] = { 1, NAN };
    d.weight = weight;
    for (int k = 0; k < 2; k++, weight[1] = -1)
        CHECK(!jem_score_matching(ctx, jem_logp, net, x, &d, &rng, NULL) && says(ctx, "weights"),
              "a weight of %g", (double)weight[1]);
    d.weight = NULL;
    CHECK(!jem_score_matching(ctx, jem_logp, net, jem_exp(ctx, x), &d, &rng, NULL) &&
          says(ctx, "leaf"), "no leaf");
    CHECK(!jem_score_matching(ctx, one_number, net, x, &d, &rng, NULL) && says(ctx, "(1,1,1,1)"),
          "one number for two images");
    CHECK(!jem_score_matching(ctx, jem_logp, net, x, &d, NULL, NULL) && says(ctx, "rng"), "no rng");
    CHECK(!jem_score_matching(NULL, jem_logp, net, x, &d, &rng, NULL), "no context");
    float first[] = { 1, 0 };
    float loss[3];
    for (int k = 0; k < 3; k++) {                  /* labels of n images are enough, each its own */
        int own[2] = { k == 2 ? 1 : 0, k ? 1 : 0 };
        jem_rng same = jem_rng_seed(3);
        query.labels = own;
        d.weight = first;
        loss[k] = jem_item(jem_score_matching(ctx, class_of_two, &query, x, &d, &same, NULL));
    }
    CHECK(jem_ok(ctx) && loss[0] == loss[1] && loss[0] != loss[2], "%s: %g, %g, %g",
          jem_error(ctx), (double)loss[0], (double)loss[1], (double)loss[2]);
    d.weight = NULL;
    jem_denoise_desc walk = jem_denoise_desc_default();
    walk.fraction = 2;
    CHECK(jem_denoise(ctx, jem_logp, net, x, &walk, &rng) == JEM_BAD_ARGUMENT &&
          says(ctx, "fraction = 2 is not in"), "a step beyond the image");
    CHECK(jem_add_noise(jem_exp(ctx, x), sigma, &rng) == JEM_BAD_ARGUMENT && says(ctx, "leaf"),
          "noise on what is computed");
    jem_net_free(net);
    close_ctx(ctx, &count, "mistakes of scores");
}

static void test_training_mistakes(void) {
    printf("mistakes in training, and in the range of chains\n");
    counter count;
    jem_ctx *ctx = open_ctx(&count);
    jem_net *net = small_net(ctx);
    jem_rng rng = jem_rng_seed(1);
    static const char *const wrong[] = { "w_score = -1", "noise_lo = 3", "label_all_noise = 2",
                                         "cd_from = -1", "restart_denoise: steps = -1",
                                         "restart_lo = 2" };
    for (int i = 0; i < 6; i++) {
        jem_train_desc t = score_training(0);
        if (i == 0) t.w_score = -1;
        if (i == 2) t.label_all_noise = 2;
        if (i == 3) t.cd_from = -1;
        if (i == 4) t.restart_denoise.steps = -1;
        if (i == 5) t.restart_lo = 2;
        if (i == 1) {
            t.noise_lo = 3;
            t.noise_hi = 2;
        }
        CHECK(!jem_trainer_create(net, &t) && says(ctx, i == 1 ? "noise_hi = 2" : wrong[i]), "%s",
              wrong[i]);
    }
    jem_buffer *b = jem_buffer_create(ctx, 50, 1, 2, 2, 0, &rng);
    CHECK(jem_buffer_restart(b, &rng, 2, 4) == JEM_OK, "%s", jem_error(ctx));
    int outside = 0;
    int slot[50];
    float drawn[200];
    jem_buffer_draw(b, &rng, 50, NULL, 1, drawn, slot);
    for (int i = 0; i < 200; i++)
        outside += !(drawn[i] >= 2 && drawn[i] < 4) + !(b->data[i] >= 2 && b->data[i] < 4);
    CHECK(outside == 0, "chains begin and restart in the buffer's range: %d do not", outside);
    CHECK(jem_buffer_restart(b, &rng, 1, 1) == JEM_BAD_ARGUMENT && says(ctx, "U(1,1)"), "no range");
    jem_buffer_free(b);
    jem_train_desc late = jem_train_desc_score(20);
    late.reinit = 0;
    net->scale = 10;
    jem_trainer *tr = jem_trainer_create(net, &late);
    b = jem_trainer_buffer(tr);
    float chain[SIDE * SIDE];
    CHECK(b && jem_buffer_draw(b, &rng, 1, NULL, 0, chain, slot) == JEM_OK, "%s", jem_error(ctx));
    int filled = 0;
    for (int i = 0; b && i < b->capacity; i++) filled += b->visits[i] >= 0;
    CHECK(filled == 0, "%d empty slots count as filled after a draw", filled);
    jem_trainer_free(tr);
    jem_net_free(net);
    close_ctx(ctx, &count, "mistakes in training");
}

int main(int argc, char **argv) {
    static const test_case all[] = {
        TEST(test_noise_levels), TEST(test_gradient), TEST(test_step), TEST(test_learned),
        TEST(test_samples), TEST(test_training), TEST(test_mistakes), TEST(test_score_mistakes),
        TEST(test_training_mistakes)
    };
    return test_main(argc, argv, all, TEST_COUNT(all));
}
