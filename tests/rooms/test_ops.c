/* >>tape, >>ops, >>nets, >>losses: every gradient compared with finite differences; random tapes
   compared with plain C in double; the order of calls, marks, errors, failing allocations, constant
   memory. */
#define JEM_IMPLEMENTATION
#include "jem.h"
#include "tests/support/test.h"
#include "tests/support/common.h"
#include "tests/support/elementwise.h"

/* ---- gradients against differences ----------------------------------------------------------- */

/* What a builder builds with. */
typedef struct things {
    jem_tensor *(*build)(jem_ctx *ctx, jem_tensor *x, const struct things *t);
    jem_net *net;                                  /* a bag of parameters, or a network */
    jem_param *p[4];
    jem_tensor *other[2];                          /* more leaves */
    int a, b;
    float f;
    int labels[17], more_labels[17];
    jem_tensor *earlier;                           /* than the function */
} things;

static float noise[1 << 12];                       /* weighs outputs, so that every one counts */

static jem_tensor *weighed(jem_ctx *ctx, jem_tensor *x, void *user) {
    const things *t = (const things *)user;
    jem_tensor *y = t->build(ctx, x, t);
    if (!y) return NULL;
    jem_tensor *probe = jem_input(ctx, noise, y->n, y->c, y->h, y->w);
    return jem_sum_image(ctx, jem_mul(ctx, y, probe));
}

static jem_tensor *of_many(jem_ctx *ctx, jem_tensor *x, void *user) {
    (void)user;
    return jem_tanh(ctx, x);
}

static void check_gradient(jem_ctx *ctx, const char *what, things *t, jem_tensor *x, jem_param *p,
                           float step, double tolerance) {
    const float e = jem_check_gradient(ctx, weighed, t, x, p, step);
    CHECK(e >= 0 && (double)e < tolerance, "%s, x (%d,%d,%d,%d), d/d%s: %g %s", what, x->n, x->c,
          x->h, x->w, p ? p->name : "x", (double)e, jem_error(ctx));
    jem_clear_error(ctx);
}
/* x, then every parameter of the net of no more than `most` numbers. */
static void check_gradients(jem_ctx *ctx, const char *what, things *t, jem_tensor *x, int most,
                            float step, double tolerance) {
    check_gradient(ctx, what, t, x, NULL, step, tolerance);
    for (jem_param *p = t->net ? t->net->params : NULL; p; p = p->next)
        if (p->grad && p->size <= most) check_gradient(ctx, what, t, x, p, step, tolerance);
}

/* Numbers in lo..hi, none nearer to 0 than gap: away from a kink. */
static jem_tensor *leaf_with_gap(jem_ctx *ctx, jem_rng *rng, jem_shape s, float lo, float hi,
                                 float gap) {
    const ptrdiff_t n = (ptrdiff_t)s.n * s.c * s.h * s.w;
    float *x = random_floats(rng, n, lo, hi);
    for (ptrdiff_t i = 0; i < n; i++) if (fabsf(x[i]) < gap) x[i] = x[i] < 0 ? -gap : gap;
    jem_tensor *t = jem_input(ctx, x, s.n, s.c, s.h, s.w);
    free(x);
    return t;
}

/* ---- elementwise, and sums: any shape -------------------------------------------------------- */

#define BUILDER(name, expression)                                                                  \
    static jem_tensor *name(jem_ctx *c, jem_tensor *x, const things *t) {                          \
        (void)t;                                                                                   \
        return expression;                                                                         \
    }
BUILDER(of_scale, jem_scale(c, x, -1.7f))
BUILDER(of_shift, jem_add_constant(c, x, 0.4f))
BUILDER(of_clamp_below, jem_clamp(c, x, 0, 9))
BUILDER(of_clamp_above, jem_clamp(c, x, -9, 0))
BUILDER(of_leaky, jem_leaky_relu(c, x, 0.2f))
BUILDER(of_add, jem_add(c, x, jem_tanh(c, x)))
BUILDER(of_add_left, jem_add(c, jem_tanh(c, x), x))
BUILDER(of_sub, jem_sub(c, x, jem_square(c, x)))
BUILDER(of_sub_left, jem_sub(c, jem_square(c, x), x))
BUILDER(of_mul, jem_mul(c, x, jem_exp(c, x)))
BUILDER(of_x_plus_x, jem_add(c, x, x))
BUILDER(of_x_minus_x, jem_sub(c, jem_square(c, x), jem_sub(c, x, x)))
BUILDER(of_x_times_x, jem_mul(c, x, x))
BUILDER(of_sum_image, jem_sum_image(c, jem_square(c, x)))
BUILDER(of_mean, jem_mean(c, jem_square(c, x)))
BUILDER(of_sum, jem_sum(c, jem_square(c, x)))
BUILDER(of_flatten, jem_flatten(c, x))
BUILDER(of_global_pool, jem_global_pool(c, x))
BUILDER(of_spread_add, jem_add(c, x, jem_tanh(c, jem_sum_image(c, x))))
BUILDER(of_spread_sub, jem_sub(c, x, jem_tanh(c, jem_sum_image(c, x))))
BUILDER(of_spread_mul, jem_mul(c, x, jem_tanh(c, jem_sum_image(c, x))))
BUILDER(of_channel_add, jem_add(c, x, jem_tanh(c, jem_global_pool(c, x))))
BUILDER(of_channel_sub, jem_sub(c, x, jem_tanh(c, jem_scale(c, jem_global_pool(c, x), -1))))
BUILDER(of_channel_mul, jem_mul(c, jem_exp(c, x), jem_tanh(c, jem_global_pool(c, x))))
BUILDER(of_concat, jem_square(c, jem_concat(c, jem_tanh(c, x), x)))
BUILDER(of_concat_same, jem_square(c, jem_concat(c, x, x)))
BUILDER(of_upsample, jem_square(c, jem_upsample(c, x, 3)))
BUILDER(of_detach, jem_add(c, jem_square(c, x), jem_scale(c, jem_detach(c, t->other[0]), 2)))
BUILDER(of_max_pool, jem_max_pool(c, x, t->a, t->b))
BUILDER(of_chain, jem_silu(c, jem_scale(c, jem_leaky_relu(c, x, 0.1f), 1.5f)))
BUILDER(of_residual, jem_add(c, jem_tanh(c, jem_scale(c, jem_silu(c, x), 0.7f)), x))
BUILDER(of_logsumexp, jem_logsumexp(c, jem_flatten(c, x)))
BUILDER(of_log_softmax, jem_log_softmax(c, jem_flatten(c, x)))
BUILDER(of_first_channel, jem_slice(c, x, 0, 1))
BUILDER(of_last_channels, jem_slice(c, x, x->c / 2, x->c - x->c / 2))
BUILDER(of_pool, jem_avg_pool(c, x, t->a, t->b))

static jem_tensor *of_dropout(jem_ctx *c, jem_tensor *x, const things *t) {
    jem_rng rng = jem_rng_seed((uint64_t)t->a);    /* a new copy: every call drops the same */
    return jem_dropout(c, x, t->f, &rng);
}
static jem_tensor *of_row(jem_ctx *c, jem_tensor *x, const things *t) {
    return elementwise[t->a].op(c, x);
}
static jem_tensor *of_gather(jem_ctx *c, jem_tensor *x, const things *t) {
    jem_tensor *flat = jem_flatten(c, x);
    int labels[17];
    for (int i = 0; i < flat->n; i++) labels[i] = t->labels[i] % flat->c;
    return jem_gather(c, flat, labels);
}
/* A value read by an op that would like to lie over it, and by another one after that. */
static jem_tensor *of_second_reader(jem_ctx *c, jem_tensor *x, const things *t) {
    (void)t;
    jem_tensor *a = jem_scale(c, x, 1.5f);
    jem_tensor *b = jem_silu(c, a);
    jem_tensor *d = jem_tanh(c, b);
    return jem_sub(c, jem_mul(c, d, b), jem_mul(c, a, d));
}

static const jem_shape shapes[] = {
    { 1, 1, 1, 1 }, { 3, 3, 5, 2 }, { 17, 10, 1, 1 }, { 17, 1, 3, 5 }, { 1, 3, 7, 1 },
    { 3, 47, 1, 3 }                                /* too large to be kept */
};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

static void check_elementary(jem_ctx *ctx, jem_rng *rng, things t) {
    t.build = of_row;
    for (t.a = 0; t.a < ELEMENTWISE; t.a++)
        for (int k = 0; k < SHAPES; k++) {
            const struct elementwise *e = &elementwise[t.a];
            jem_tensor *x = leaf_with_gap(ctx, rng, shapes[k], e->lo, e->hi, e->gap);
            check_gradient(ctx, e->name, &t, x, NULL, e->step, 1e-3);
            jem_reset(ctx);
        }
}

static void check_average_pools(jem_ctx *ctx, jem_rng *rng, things t) {
    printf("gradients: average pooling\n");
    t.build = of_pool;
    for (t.a = 1; t.a <= 5; t.a++)
        for (t.b = 0; t.b <= 3; t.b++)             /* stride 0 means k */
            for (int k = 0; k < 3; k++) {
                const jem_shape s = { k ? 3 : 17, 1 + 2 * k, t.a + k, t.a + 2 - k };
                jem_tensor *x = random_leaf(ctx, rng, s, -1, 1);
                check_gradient(ctx, "avg_pool", &t, x, NULL, 0.2f, 1e-3);
                jem_reset(ctx);
            }
}

static void test_elementwise(jem_ctx *ctx) {
    static const struct {
        const char *what;
        jem_tensor *(*build)(jem_ctx *, jem_tensor *, const things *);
        float lo, hi, gap, step;
    } cases[] = {
        { "scale", of_scale, -1, 1, 0, 0.2f }, { "shift", of_shift, -1, 1, 0, 0.2f },
        { "clamp, from 0", of_clamp_below, -1, 1, 0.1f, 0.04f },
        { "clamp, to 0", of_clamp_above, -1, 1, 0.1f, 0.04f },
        { "leaky_relu", of_leaky, -1, 1, 0.1f, 0.04f },
        { "dropout", of_dropout, -1, 1, 0, 0.2f },
        { "add", of_add, -1, 1, 0, 0.03f }, { "add, first", of_add_left, -1, 1, 0, 0.03f },
        { "sub", of_sub, -1, 1, 0, 0.1f }, { "sub, first", of_sub_left, -1, 1, 0, 0.1f },
        { "mul", of_mul, -1, 1, 0, 0.03f }, { "add(x,x)", of_x_plus_x, -1, 1, 0, 0.2f },
        { "sub(x,x)", of_x_minus_x, -1, 1, 0, 0.1f }, { "mul(x,x)", of_x_times_x, -1, 1, 0, 0.1f },
        { "sum_image", of_sum_image, -1, 1, 0, 0.1f }, { "mean", of_mean, -1, 1, 0, 0.1f },
        { "sum", of_sum, -1, 1, 0, 0.1f }, { "flatten", of_flatten, -1, 1, 0, 0.2f },
        { "global_pool", of_global_pool, -1, 1, 0, 0.2f },
        { "add, spread", of_spread_add, -0.2f, 0.2f, 0, 0.03f },
        { "sub, spread", of_spread_sub, -0.2f, 0.2f, 0, 0.03f },
        { "mul, spread", of_spread_mul, -0.2f, 0.2f, 0, 0.03f },
        { "add, per channel", of_channel_add, -1, 1, 0, 0.03f },
        { "sub, per channel", of_channel_sub, -1, 1, 0, 0.03f },
        { "mul, per channel", of_channel_mul, -1, 1, 0, 0.03f },
        { "concat", of_concat, -1, 1, 0, 0.03f }, { "concat(x,x)", of_concat_same, -1, 1, 0, 0.1f },
        { "upsample", of_upsample, -1, 1, 0, 0.1f },
        { "chain", of_chain, -1, 1, 0.1f, 0.04f }, { "residual", of_residual, -1, 1, 0, 0.03f },
        { "second reader", of_second_reader, -1, 1, 0, 0.03f },
        { "logsumexp", of_logsumexp, -3, 3, 0, 0.03f },
        { "log_softmax", of_log_softmax, -3, 3, 0, 0.1f }, { "gather", of_gather, -1, 1, 0, 0.2f },
        { "slice, first", of_first_channel, -1, 1, 0, 0.2f },
        { "slice, last", of_last_channels, -1, 1, 0, 0.2f }
    };
    printf("gradients: elementwise, sums, changes of shape\n");
    jem_rng rng = jem_rng_seed(1);
    things t;
    memset(&t, 0, sizeof t);
    t.a = 5;
    t.f = 0.4f;
    random_labels(&rng, t.labels, 17, 1000);
    for (int i = 0; i < (int)(sizeof cases / sizeof cases[0]); i++)
        for (int k = 0; k < SHAPES; k++) {
            t.build = cases[i].build;
            jem_tensor *x = leaf_with_gap(ctx, &rng, shapes[k], cases[i].lo, cases[i].hi,
                                          cases[i].gap);
            check_gradient(ctx, cases[i].what, &t, x, NULL, cases[i].step, 1e-3);
            jem_reset(ctx);
        }
    check_elementary(ctx, &rng, t);
    check_average_pools(ctx, &rng, t);
}

/* Every number once, 0.1 apart: no window has two that are the largest. */
static jem_tensor *apart_leaf(jem_ctx *ctx, jem_rng *rng, jem_shape s, float *x) {
    const int n = s.n * s.c * s.h * s.w;
    for (int i = 0; i < n; i++) {
        const int j = jem_rng_below(rng, i + 1);
        x[i] = x[j];
        x[j] = 0.1f * (float)(i - n / 2);
    }
    return jem_input(ctx, x, s.n, s.c, s.h, s.w);
}

/* Checks the gradient of max pooling, and that the results are the largest; k: which shape. */
static void check_max_pool(jem_ctx *ctx, jem_rng *rng, things *t, int k) {
    const jem_shape s = { k ? 3 : 17, 1 + 2 * k, t->a + k, t->a + 2 - k };
    float x[17 * 5 * 6 * 6], y[17 * 5 * 6 * 6];
    jem_tensor *leaf = apart_leaf(ctx, rng, s, x);
    check_gradient(ctx, "max_pool", t, leaf, NULL, 0.02f, 1e-3);
    jem_tensor *pooled = of_max_pool(ctx, leaf, t);
    const int step = t->b ? t->b : t->a;
    int bad = jem_read(pooled, y) != JEM_OK;
    for (int i = 0; i < s.n * s.c * pooled->h * pooled->w; i++) {
        const int row = i / pooled->w % pooled->h * step;
        const int column = i % pooled->w * step;
        const float *at = x + i / (pooled->w * pooled->h) * s.h * s.w;
        float most = -1e30f;
        for (int w = 0; w < t->a * t->a; w++)
            most = fmaxf(most, at[(row + w / t->a) * s.w + column + w % t->a]);
        bad += y[i] != most;
    }
    CHECK(bad == 0, "%d of max_pool %d, %d", bad, t->a, t->b);
}

static void test_shapes(jem_ctx *ctx) {
    printf("max pooling, channels, upsampling, stopped gradients\n");
    jem_rng rng = jem_rng_seed(11);
    things t;
    memset(&t, 0, sizeof t);
    t.build = of_max_pool;
    for (t.a = 1; t.a <= 4; t.a++)
        for (t.b = 0; t.b <= 3; t.b++)             /* stride 0 means k */
            for (int k = 0; k < 3; k++) {
                check_max_pool(ctx, &rng, &t, k);
                jem_reset(ctx);
            }
    const jem_shape s = { 17, 3, 2, 2 };
    float a[17 * 12], up[17 * 12 * 4], both[17 * 24], g[17 * 12];
    jem_tensor *x = apart_leaf(ctx, &rng, s, a);
    jem_tensor *shifted = jem_add_constant(ctx, x, 100);
    CHECK(jem_read(jem_upsample(ctx, x, 2), up) == JEM_OK &&
          jem_read(jem_concat(ctx, x, shifted), both) == JEM_OK, "%s", jem_error(ctx));
    int bad = 0;
    for (int i = 0; i < 17 * 12 * 4; i++) bad += up[i] != a[i / 16 * 4 + i / 8 % 2 * 2 + i / 2 % 2];
    for (int i = 0; i < 17 * 24; i++)
        bad += both[i] != (float)(a[i / 24 * 12 + i % 12] + (i % 24 < 12 ? 0.0f : 100.0f));
    CHECK(bad == 0, "%d numbers of upsample and concat", bad);
    t.other[0] = x;
    jem_tensor *y = jem_sum_image(ctx, of_detach(ctx, x, &t));
    CHECK(jem_grad(y, x) == JEM_OK && jem_read_grad(x, g) == JEM_OK, "%s", jem_error(ctx));
    for (int i = 0; i < 17 * 12; i++) bad += g[i] != 2 * a[i];         /* of the square alone */
    CHECK(bad == 0, "detach stops the gradient, and nothing else");
    y = jem_sum_image(ctx, jem_detach(ctx, jem_square(ctx, jem_square(ctx, x))));
    y = jem_add(ctx, y, jem_sum_image(ctx, x));
    CHECK(jem_grad(y, x) == JEM_OK && jem_read_grad(x, g) == JEM_OK, "%s", jem_error(ctx));
    for (int i = 0; i < 17 * 12; i++) bad += g[i] != 1;
    CHECK(bad == 0, "no gradient where only a detached end follows: %g", (double)g[0]);
    CHECK(!jem_max_pool(ctx, x, 3, 1) && says(ctx, "max_pool: 3x3 windows"), "a window too large");
    CHECK(!jem_concat(ctx, x, y) && says(ctx, "concat: (17,3,2,2) and (17,1,1,1)"), "two shapes");
    CHECK(!jem_upsample(ctx, x, 0) && says(ctx, "upsample: x (17,3,2,2), 0 times"), "not at all");
    CHECK(!jem_upsample(ctx, x, 1 << 30) && says(ctx, "upsample"), "too often");
    CHECK(!jem_mul(ctx, x, jem_zeros(ctx, 17, 2, 1, 1)) && says(ctx, "mul: "), "other channels");
    jem_reset(ctx);
}

/* Checks that the first of the largest numbers of a window, row by row, receives its gradient. */
static void test_max_ties(jem_ctx *ctx) {
    printf("max pooling: windows with several maxima\n");
    enum { ALL = 17 * 3 * 16 };
    static float x[ALL], g[ALL];
    for (int low = 0; low < 2; low++)              /* 1: the first number is below the others */
        for (int stride = 1; stride <= 2; stride++) {
            int bad = 0;
            for (int i = 0; i < ALL; i++)
                x[i] = low && i / 4 % 2 == 0 && i % 2 == 0 ? -2.0f : 0.5f;
            jem_tensor *leaf = jem_input(ctx, x, 17, 3, 4, 4);
            jem_tensor *sum = jem_sum_image(ctx, jem_max_pool(ctx, leaf, 2, stride));
            CHECK(jem_grad(sum, leaf) == JEM_OK && jem_read_grad(leaf, g) == JEM_OK, "%s",
                  jem_error(ctx));
            for (int i = 0; i < ALL; i++) {
                float wanted = 0;
                for (int w = 0; w < 9; w++) {      /* the first numbers of windows */
                    const int row = w / 3;
                    const int column = w % 3;
                    if (row % stride || column % stride) continue;
                    const int is_low = low && row % 2 == 0 && column % 2 == 0;
                    if (i / 4 % 4 == row && i % 4 == column + is_low) wanted += 1;
                }
                bad += g[i] != wanted;
            }
            CHECK(bad == 0, "%d of %d gradients, stride %d, low %d", bad, ALL, stride, low);
            jem_reset(ctx);
        }
}

/* Checks that the gradient of exp is its value, also beyond the range to which x is clamped. */
static void test_exp_clamped(jem_ctx *ctx) {
    printf("exp: gradients where x is clamped\n");
    const float x[4] = { 100, -100, 1, 1e30f };
    float y[4], g[4];
    jem_tensor *leaf = jem_input(ctx, x, 1, 4, 1, 1);
    jem_tensor *e = jem_exp(ctx, leaf);
    CHECK(jem_read(e, y) == JEM_OK && jem_grad(jem_sum_image(ctx, e), leaf) == JEM_OK &&
          jem_read_grad(leaf, g) == JEM_OK, "%s", jem_error(ctx));
    CHECK_CLOSE(y[0] / expf(88), 1, 1e-5, "clamped to 88");
    CHECK_CLOSE(y[1] / expf(-87), 1, 1e-5, "clamped to -87");
    for (int i = 0; i < 4; i++)
        CHECK(same_bits(g + i, y + i, 1), "at %g the gradient is %g, the value %g", (double)x[i],
              (double)g[i], (double)y[i]);
    jem_reset(ctx);
}

/* ---- convolutions, norms --------------------------------------------------------------------- */

static jem_tensor *of_conv(jem_ctx *c, jem_tensor *x, const things *t) {
    const jem_conv_desc d = { t->a, t->b };
    return jem_conv2d(c, x, t->p[0], t->p[1], d);
}
static jem_tensor *of_two_convs(jem_ctx *c, jem_tensor *x, const things *t) {
    const jem_conv_desc d = { 1, 1 };              /* one weight, used twice; x besides */
    jem_tensor *y = jem_tanh(c, jem_conv2d(c, x, t->p[0], t->p[1], d));
    return jem_add(c, jem_conv2d(c, y, t->p[0], NULL, d), x);
}
BUILDER(of_linear, jem_linear(c, x, t->p[0], t->p[1]))

static const int conv_ns[] = { 1, 17, 3 };
static const int conv_ins[] = { 1, 3, 8, 2 };
static const int conv_outs[] = { 3, 1, 2, 8, 10 };
enum { CONVOLUTIONS = 6 * 3 * 4, WITH_WINOGRAD = CONVOLUTIONS + 12 };

/* Checks convolution number i; the last twelve are such as Winograd takes. */
static void check_convolution(jem_ctx *ctx, jem_rng *rng, int i) {
    static const int kernels[] = { 1, 2, 3, 4, 5, 7 };
    const int wino = i >= CONVOLUTIONS;
    things t;
    memset(&t, 0, sizeof t);
    int k = kernels[i / 12 % 6];
    int ci = conv_ins[i % 4];
    int co = conv_outs[i % 5];
    t.a = i % 3 + 1;
    t.b = i / 3 % 4;
    if (wino) {
        k = 3 + i % 2;
        ci = 8 + i % 3;
        co = 10 - i % 2;
        t.a = 1 + i % 2;
        t.b = i % 3;
    }
    const int least = k > 2 * t.b ? k - 2 * t.b : 1;
    const int big = k * k * ci > 100;
    const int more = wino ? 2 : 0;
    const jem_shape s = { big && !wino ? 1 : conv_ns[i % 3], ci, least + i % 2 + more,
                          least + i % 3 + more };
    t.net = bag_create(ctx);
    t.build = of_conv;
    t.p[0] = random_param(t.net, rng, 1, 4, co, ci, k, -1, 1);
    t.p[1] = i % 7 ? random_param(t.net, rng, 1, 1, co, 1, 1, -1, 1) : NULL;
    jem_tensor *x = random_leaf(ctx, rng, s, -1, 1);
    char what[64];
    snprintf(what, sizeof what, "conv to %d, k %d, stride %d, pad %d", co, k, t.a, t.b);
    check_gradients(ctx, what, &t, x, 1 << 20, 0.5f, 1e-3);
    jem_reset(ctx);
    jem_net_free(t.net);
}

static jem_tensor *of_earlier(jem_ctx *ctx, jem_tensor *x, const things *t) {
    return jem_mul(ctx, x, t->earlier);
}

/* Checks the gradient of a weight that the function uses by a value from before it. */
static void check_value_of_weight(jem_ctx *ctx, jem_rng *rng) {
    const jem_shape s = { 3, 2, 1, 1 };
    float z[6];
    things t;
    memset(&t, 0, sizeof t);
    t.net = bag_create(ctx);
    t.build = of_earlier;
    t.p[0] = random_param(t.net, rng, 1, 2, 2, 2, 1, -1, 1);
    t.earlier = jem_linear(ctx, random_leaf(ctx, rng, s, -1, 1), t.p[0], NULL);
    jem_read(t.earlier, z);
    check_gradient(ctx, "a value", &t, random_leaf(ctx, rng, s, -1, 1), t.p[0], 0.5f, 1e-3);
    jem_reset(ctx);
    jem_net_free(t.net);
}

static void test_convolutions(jem_ctx *ctx) {
    printf("gradients: convolutions and linear layers\n");
    jem_rng rng = jem_rng_seed(2);
    things t;
    memset(&t, 0, sizeof t);
    for (int i = 0; i < WITH_WINOGRAD; i++) check_convolution(ctx, &rng, i);
    for (int i = 0; i < 9; i++) {
        const int ci = conv_ins[i % 4] + 9 * (i % 3);
        const int co = conv_outs[i % 5];
        t.net = bag_create(ctx);
        t.build = of_linear;
        t.p[0] = random_param(t.net, &rng, 1, 2, co, ci, 1, -1, 1);
        t.p[1] = i % 4 ? random_param(t.net, &rng, 1, 1, co, 1, 1, -1, 1) : NULL;
        const jem_shape s = { conv_ns[i % 3], ci, 1, 1 };
        check_gradients(ctx, "linear", &t, random_leaf(ctx, &rng, s, -1, 1), 1 << 20, 0.5f, 1e-3);
        jem_reset(ctx);
        jem_net_free(t.net);
    }
    check_value_of_weight(ctx, &rng);
    for (int channels = 2; channels <= 9; channels += 7) {
        t.net = bag_create(ctx);
        t.build = of_two_convs;
        t.p[0] = random_param(t.net, &rng, 1, 4, channels, channels, 3, -0.2f, 0.2f);
        t.p[1] = random_param(t.net, &rng, 1, 1, channels, 1, 1, -1, 1);
        const jem_shape s = { 3, channels, 3, 4 };
        check_gradients(ctx, "a weight used twice", &t, random_leaf(ctx, &rng, s, -1, 1), 1 << 20,
                        0.03f, 1e-3);
        jem_reset(ctx);
        jem_net_free(t.net);
    }
}

static jem_tensor *of_norm(jem_ctx *c, jem_tensor *x, const things *t) {
    switch ((jem_norm)t->a) {
    case JEM_NORM_BATCH:
        return jem_batch_norm(c, x, t->p[0], t->p[1], t->p[2], t->p[3], 0.1f, t->b);
    case JEM_NORM_INSTANCE: return jem_instance_norm(c, x, t->p[0], t->p[1]);
    case JEM_NORM_LAYER: return jem_layer_norm(c, x, t->p[0], t->p[1]);
    default: return jem_act_norm(c, x, t->p[0], t->p[1], t->p[2], t->b);
    }
}

static void test_norms(jem_ctx *ctx) {
    printf("gradients: norms, training and not\n");
    static const char *const name[] = { "none", "batch", "instance", "layer", "act" };
    static const jem_shape sizes[] = {
        { 3, 3, 5, 2 }, { 17, 10, 2, 2 }, { 17, 1, 3, 5 }, { 1, 3, 7, 1 }
    };
    jem_rng rng = jem_rng_seed(3);
    for (int kind = JEM_NORM_BATCH; kind <= JEM_NORM_ACT; kind++)
        for (int training = 0; training < 2; training++)
            for (int k = 0; k < 4; k++) {
                things t;
                memset(&t, 0, sizeof t);
                t.build = of_norm;
                t.a = kind;
                t.b = training;
                t.net = bag_create(ctx);
                const int c = sizes[k].c;
                t.p[0] = random_param(t.net, &rng, 1, 1, c, 1, 1, 0.5f, 1.5f);
                t.p[1] = random_param(t.net, &rng, 1, 1, c, 1, 1, 0.5f, 1.5f);
                t.p[2] = random_param(t.net, &rng, 0, 1, kind == JEM_NORM_ACT ? 1 : c, 1, 1, 0, 0);
                t.p[3] = random_param(t.net, &rng, 0, 1, c, 1, 1, 0.5f, 2);
                char what[64];
                snprintf(what, sizeof what, "%s norm, training %d", name[kind], training);
                jem_tensor *x = random_leaf(ctx, &rng, sizes[k], -2, 2);
                check_gradients(ctx, what, &t, x, 1 << 20, 0.02f, 2e-3);
                jem_reset(ctx);
                jem_net_free(t.net);
            }
}

/* ---- networks, log-densities, losses --------------------------------------------------------- */

/* norm, activation, conv, dropout, norm, activation, conv, plus a 1x1 shortcut; pool; linear */
typedef struct block {
    jem_layer norm[2], conv[2], shortcut, head;
    jem_activation activation;
    float dropout;
} block;

static jem_tensor *block_forward(jem_net *net, jem_tensor *x, int training, void *user) {
    const block *b = (const block *)user;
    jem_tensor *y = x;
    jem_tensor *around = jem_apply(&b->shortcut, x, training);
    for (int i = 0; i < 2; i++) {
        y = jem_activate(net->ctx, jem_apply(&b->norm[i], y, training), b->activation, 0.2f);
        y = jem_apply(&b->conv[i], y, training);
        jem_rng rng = jem_rng_seed(99);            /* every call drops the same */
        if (i == 0 && b->dropout > 0) y = jem_dropout(net->ctx, y, b->dropout, &rng);
    }
    return jem_apply(&b->head, jem_global_pool(net->ctx, jem_add(net->ctx, y, around)), training);
}

static jem_net *block_net(jem_ctx *ctx, jem_norm norm, jem_activation activation, float dropout) {
    block empty, *b;
    memset(&empty, 0, sizeof empty);
    empty.activation = activation;
    empty.dropout = dropout;
    jem_net *net = jem_net_create(ctx, block_forward, &empty, sizeof empty, 3, 4, 5, 3, 5);
    if (!net) return NULL;
    b = (block *)net->user;
    b->norm[0] = jem_norm_layer(net, "norm1", norm, 3);
    b->conv[0] = jem_conv_layer(net, "conv1", 3, 8, 3, 1, 1);
    b->conv[0].bias = NULL;                        /* some norms would take it out again */
    b->norm[1] = jem_norm_layer(net, "norm2", norm, 8);
    b->conv[1] = jem_conv_layer(net, "conv2", 8, 4, 3, 2, 1);
    b->shortcut = jem_conv_layer(net, "shortcut", 3, 4, 1, 2, 0);
    b->head = jem_linear_layer(net, "head", 4, 3);
    for (jem_param *p = net->params; p; p = p->next)           /* clear gradients */
        for (ptrdiff_t i = 0; p->ndim > 1 && i < p->size; i++) p->value[i] *= 2.5f;
    return net;
}
static const jem_shape block_shape = { 3, 3, 4, 5 };

static jem_tensor *of_net(jem_ctx *c, jem_tensor *x, const things *t) {
    (void)c;
    return jem_forward(t->net, x, t->a);
}
BUILDER(of_logp, jem_logp(c, x, t->net))
static jem_tensor *of_logp_class(jem_ctx *c, jem_tensor *x, const things *t) {
    jem_query query = { t->net, t->labels, 0 };
    return jem_logp_class(c, x, &query);
}
static jem_tensor *of_logp_label(jem_ctx *c, jem_tensor *x, const things *t) {
    jem_query query = { t->net, t->labels, 0 };
    return jem_logp_label(c, x, &query);
}
static jem_tensor *of_log_odds(jem_ctx *c, jem_tensor *x, const things *t) {
    jem_query query = { t->net, t->labels, 0 };
    return jem_log_odds(c, x, &query);
}
BUILDER(of_cross_entropy, jem_cross_entropy(c, jem_forward(t->net, x, 0), t->labels))
BUILDER(of_contrast, jem_contrastive(c, jem_logp(c, t->other[0], t->net), jem_logp(c, x, t->net)))

/* a: which of the three roles x has; b: which terms the loss has */
static jem_tensor *of_loss(jem_ctx *c, jem_tensor *x, const things *t) {
    const jem_loss_weights d = { t->b & 1 ? 0.7f : 0, t->b & 2 ? 1.3f : 0, t->b & 4 ? 0.4f : 0,
                                 t->b & 8 ? 0.3f : 0 };
    (void)c;
    jem_tensor *labelled = t->a == 0 ? x : t->other[0];
    jem_tensor *sample = t->a == 1 ? x : t->other[1];
    jem_tensor *data = t->a == 2 ? x : NULL;
    return jem_loss(t->net, &d, labelled, t->labels, data, sample, t->more_labels, NULL);
}

/* Creates a WRN, a convnet, a MLP. */
static void small_nets(jem_ctx *ctx, jem_net *nets[3]) {
    jem_wrn_desc w = jem_wrn_desc_default();
    w.depth = 10;
    w.widen = 1;
    w.height = 5;
    w.width = 4;
    w.classes = 4;
    w.activation = JEM_ACTIVATION_SILU;
    w.head = JEM_HEAD_FLAT;
    w.stem_stride = 2;
    w.norm = JEM_NORM_LAYER;
    jem_convnet_desc v = jem_convnet_desc_default();
    v.height = 6;
    v.width = 5;
    v.layers = 2;
    v.widths[0] = 3;
    v.widths[1] = 8;
    jem_mlp_desc m = jem_mlp_desc_default();
    m.channels = 2;
    m.height = 3;
    m.width = 1;
    m.widths[0] = 9;
    m.widths[1] = 5;
    m.activation = JEM_ACTIVATION_TANH;
    nets[0] = jem_wrn_create(ctx, &w, 3);
    nets[1] = jem_convnet_create(ctx, &v, 3);
    nets[2] = jem_mlp_create(ctx, &m, 3);
}

static void test_networks(jem_ctx *ctx) {
    printf("gradients: networks with every norm and activation, training and not, dropout\n");
    jem_rng rng = jem_rng_seed(4);
    things t;
    memset(&t, 0, sizeof t);
    t.build = of_net;
    for (int i = 0; i < 11; i++) {
        const jem_norm norm = (jem_norm)(i % 5);
        const float dropout = i % 2 ? 0.3f : 0;
        t.net = block_net(ctx, norm, i % 3 ? JEM_ACTIVATION_SILU : JEM_ACTIVATION_TANH, dropout);
        t.a = i / 5 % 2;
        jem_tensor *x = random_leaf(ctx, &rng, block_shape, -1, 1);
        char what[64];
        snprintf(what, sizeof what, "block, norm %d, training %d, dropout %g", norm, t.a,
                 (double)dropout);
        check_gradients(ctx, what, &t, x, 400, 0.02f, 3e-3);
        jem_reset(ctx);
        jem_net_free(t.net);
    }
    jem_net *nets[3];
    small_nets(ctx, nets);
    for (int i = 0; i < 3; i++) {
        static const char *const name[3] = { "wrn", "convnet", "mlp" };
        t.net = nets[i];
        t.a = 0;
        const jem_shape s = { i ? 17 : 3, t.net->channels, t.net->height, t.net->width };
        check_gradients(ctx, name[i], &t, random_leaf(ctx, &rng, s, -1, 1), 80, 0.02f, 3e-3);
        jem_reset(ctx);
        jem_net_free(t.net);
    }
}

/* Creates one of the networks that cut a few images into blocks. */
static jem_net *few_images_net(jem_ctx *ctx, int i) {
    static const jem_norm norms[] = { JEM_NORM_NONE, JEM_NORM_BATCH, JEM_NORM_ACT, JEM_NORM_LAYER };
    jem_wrn_desc w = jem_wrn_desc_default();
    w.depth = 10;
    w.widen = 1;
    w.height = i < 4 ? 16 : 28;
    w.width = i % 2 ? 16 : 12;
    w.norm = norms[i % 4];
    w.channels = 1 + i % 3;
    w.classes = 4;
    w.activation = i % 2 ? JEM_ACTIVATION_SILU : JEM_ACTIVATION_LEAKY_RELU;
    w.head = i > 5 ? JEM_HEAD_FLAT : JEM_HEAD_POOLED;
    if (i < 8) return jem_wrn_create(ctx, &w, 3);
    if (i < 10) {
        w.norm = JEM_NORM_NONE;
        w.blocks = JEM_BLOCKS_ZERO;
        w.unet = i % 2;
        jem_net *net = jem_wrn_create(ctx, &w, 3);
        jem_rng rng = jem_rng_seed(11);
        for (jem_param *p = net ? net->params : NULL; p; p = p->next) {
            for (ptrdiff_t k = 0; k < p->size; k++) p->value[k] += .05f * jem_rng_normal(&rng);
            jem_param_changed(p);
        }
        return net;
    }
    jem_convnet_desc c = jem_convnet_desc_default();
    c.channels = w.channels;
    c.height = 28;
    c.width = i % 2 ? 16 : 15;
    c.classes = 4;
    c.layers = 3;
    c.quadratic = i % 2 ? .1f : 0;
    return jem_convnet_create(ctx, &c, 3);
}

/* A few images are cut into blocks, many are not; the answers must be the same. */
static void test_few_images(jem_ctx *ctx) {
    printf("few images as many images: logits, gradients\n");
    enum { MANY = 32 };
    jem_rng rng = jem_rng_seed(10);
    for (int i = 0; i < 12; i++) {
        jem_net *net = few_images_net(ctx, i);
        if (!CHECK(net, "%s", jem_error(ctx))) return;
        const int size = net->channels * net->height * net->width;
        const ptrdiff_t numbers = jem_net_size(net);
        float *x = random_floats(&rng, MANY * size, -1, 1);
        float *g = floats(MANY * size);
        float f[MANY * 4];
        float *all = floats(MANY * size);
        float few[MANY * 4];
        float *back[2] = { floats(numbers), floats(numbers) };
        int n = i % 3 ? 3 + i % 3 * i / 2 : 1;     /* up to 13 are few */
        if (i % 4 > 1) n += 16;                    /* after a full group */
        for (int many = 0; many < 2; many++) {
            jem_mark mark = jem_begin(ctx);
            jem_tensor *t = jem_input(ctx, x, many ? MANY : n, net->channels, net->height,
                                      net->width);
            jem_tensor *first = NULL;
            jem_tensor *logp = jem_logp(ctx, t, net);
            CHECK(jem_read(jem_forward(net, t, 0), many ? f : few) == JEM_OK, "%s", jem_error(ctx));
            CHECK(jem_grad(logp, t) == JEM_OK, "%s", jem_error(ctx));
            jem_read_grad(t, many ? all : g);
            if (many) {                            /* the loss of the first n alone */
                float weight[MANY];
                for (int k = 0; k < MANY; k++) weight[k] = k < n ? 1 : 0;
                first = jem_mul(ctx, logp, jem_input(ctx, weight, MANY, 1, 1, 1));
            }
            jem_zero_grad(net);
            CHECK(jem_backward(jem_sum(ctx, many ? first : logp)) == JEM_OK, "%s", jem_error(ctx));
            float *to = back[many];
            for (const jem_param *p = net->params; p; p = p->next)
                for (ptrdiff_t k = 0; p->grad && k < p->size; k++) *to++ = p->grad[k];
            jem_end(ctx, mark);
        }
        CHECK(largest_gap(few, f, n * 4) < 1e-5, "logits: %g", largest_gap(few, f, n * 4));
        CHECK(largest_gap(g, all, n * size) < 1e-4, "input: %g", largest_gap(g, all, n * size));
        CHECK(largest_gap(back[0], back[1], numbers) < 1e-4, "net %d, parameters: %g", i,
              largest_gap(back[0], back[1], numbers));
        free(x);
        free(g);
        free(all);
        free(back[0]);
        free(back[1]);
        jem_net_free(net);
        jem_reset(ctx);
    }
}

/* Networks whose images are cut with a margin, or without: sides in the order height, width. */
typedef struct few_case { int h, w, kind, layers; jem_norm norm; } few_case;
enum { FEW_CONVNET, FEW_WRN, FEW_UNET };
enum { FEW_MANY = 16, FEW_ALL = 37, FEW_MOST = FEW_ALL * 64 * 8 * 8 };

static jem_net *few_bits_net(jem_ctx *ctx, const few_case *f) {
    if (f->kind == FEW_CONVNET) {
        jem_convnet_desc c = jem_convnet_desc_default();
        c.channels = 2;
        c.height = f->h;
        c.width = f->w;
        c.classes = 4;
        c.layers = f->layers;
        c.widths[0] = 5;
        c.widths[1] = 8;
        c.widths[2] = 9;
        c.widths[3] = 6;
        c.separate_energy = f->h == 20;
        c.activation = f->h % 4 ? JEM_ACTIVATION_SILU : JEM_ACTIVATION_LEAKY_RELU;
        return jem_convnet_create(ctx, &c, 5);
    }
    jem_wrn_desc w = jem_wrn_desc_default();
    w.depth = 10;
    w.widen = 1;
    w.height = f->h;
    w.width = f->w;
    w.channels = 1;
    w.classes = 4;
    w.norm = f->norm;
    w.blocks = f->kind == FEW_UNET ? JEM_BLOCKS_ZERO : JEM_BLOCKS_WRN;
    w.unet = f->kind == FEW_UNET;
    w.separate_energy = f->norm == JEM_NORM_ACT;
    w.activation = JEM_ACTIVATION_SILU;
    return jem_wrn_create(ctx, &w, 5);
}

/* Logits, features, the slope of log p and two steps of a walk, of n images x. */
typedef struct few_answers {
    float logits[FEW_ALL * 4], *features, *slope, *walk;
    int features_each;
} few_answers;

static void few_ask(jem_net *net, const float *x, int n, few_answers *a) {
    jem_ctx *ctx = net->ctx;
    jem_mark mark = jem_begin(ctx);
    jem_sgld_desc d = jem_sgld_desc_default();
    d.steps = 2;
    d.step_size = .05f;
    jem_tensor *t = jem_input(ctx, x, n, net->channels, net->height, net->width);
    CHECK(jem_read(jem_forward(net, t, 0), a->logits) == JEM_OK, "%s", jem_error(ctx));
    a->features_each = net->features->c * net->features->h * net->features->w;
    CHECK(jem_read(net->features, a->features) == JEM_OK, "%s", jem_error(ctx));
    CHECK(jem_grad(jem_logp(ctx, t, net), t) == JEM_OK, "%s", jem_error(ctx));
    CHECK(jem_read_grad(t, a->slope) == JEM_OK, "%s", jem_error(ctx));
    CHECK(jem_sgld(ctx, jem_logp, net, t, &d, NULL) == JEM_OK, "%s", jem_error(ctx));
    CHECK(jem_read(t, a->walk) == JEM_OK, "%s", jem_error(ctx));
    jem_end(ctx, mark);
}

static few_answers few_open(void) {
    few_answers a;
    memset(&a, 0, sizeof a);
    a.features = floats(FEW_MOST);
    a.slope = floats(FEW_MOST);
    a.walk = floats(FEW_MOST);
    return a;
}
static void few_close(few_answers *a) {
    free(a->features);
    free(a->slope);
    free(a->walk);
}

/* Returns the largest gap between n answers and those to the first 16 images, which repeat. */
static double few_gap(const float *some, const float *many, int n, int each) {
    double most = 0;
    for (int i = 0; i < n; i++) {
        const double gap = largest_gap(some + i * each, many + i % FEW_MANY * each, each);
        if (most <= gap || gap != gap) most = gap;
        if (most != most) break;
    }
    return most;
}
/* Compares the answers to n images with those to sixteen, which are the same ones in turn. */
static void check_few(jem_net *net, int number, const float *x, int n, few_answers *some,
                      const few_answers *many) {
    const int size = net->channels * net->height * net->width;
    few_ask(net, x, n, some);
    const double gaps[4] = {
        few_gap(some->logits, many->logits, n, 4),
        few_gap(some->features, many->features, n, some->features_each),
        few_gap(some->slope, many->slope, n, size), few_gap(some->walk, many->walk, n, size)
    };
    CHECK(gaps[0] + gaps[1] + gaps[2] + gaps[3] == 0,
          "case %d, %dx%d, %d images: logits %g, features %g, slope %g, walk %g", number,
          net->height, net->width, n, gaps[0], gaps[1], gaps[2], gaps[3]);
    CHECK(jem_logits(net, x, n, some->logits) == JEM_OK, "%s", jem_error(net->ctx));
    CHECK(few_gap(some->logits, many->logits, n, 4) == 0, "case %d: logits of %d", number, n);
}

/* An image cut into blocks has the same answers as one of sixteen, which are not cut, to the last
   bit, without Winograd's sums, whose tiles differ. */
static void test_few_bits(jem_ctx *usual) {
    printf("few images as many images: the same bits\n");
    static const few_case cases[] = {
        { 28, 28, FEW_CONVNET, 4, JEM_NORM_NONE }, { 20, 20, FEW_CONVNET, 4, JEM_NORM_NONE },
        { 12, 30, FEW_CONVNET, 3, JEM_NORM_NONE }, { 31, 17, FEW_CONVNET, 4, JEM_NORM_NONE },
        { 9, 28, FEW_CONVNET, 4, JEM_NORM_NONE }, { 32, 32, FEW_CONVNET, 4, JEM_NORM_NONE },
        { 28, 28, FEW_WRN, 0, JEM_NORM_NONE }, { 30, 21, FEW_WRN, 0, JEM_NORM_BATCH },
        { 13, 12, FEW_WRN, 0, JEM_NORM_ACT }, { 28, 28, FEW_UNET, 0, JEM_NORM_NONE },
        { 20, 12, FEW_UNET, 0, JEM_NORM_NONE }
    };
    jem_ctx_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.isa = jem_ctx_isa(usual);
    desc.threads = 2;
    desc.precision = JEM_PRECISION_DIRECT;
    jem_rng rng = jem_rng_seed(19);
    few_answers few = few_open();
    few_answers many = few_open();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        jem_ctx *ctx = jem_ctx_create(&desc);
        jem_net *net = few_bits_net(ctx, cases + i);
        if (!CHECK(net, "%s", jem_error(ctx))) break;
        for (jem_param *p = net->params; p; p = p->next) {     /* no bias may be 0 */
            for (ptrdiff_t k = 0; k < p->size; k++) p->value[k] += .1f * jem_rng_normal(&rng);
            jem_param_changed(p);
        }
        const int size = net->channels * net->height * net->width;
        float *x = random_floats(&rng, FEW_ALL * size, -1, 1);
        for (int k = FEW_MANY * size; k < FEW_ALL * size; k++) x[k] = x[k - FEW_MANY * size];
        few_ask(net, x, FEW_MANY, &many);
        const int step = cases[i].kind == FEW_CONVNET ? 1 : 4;
        for (int n = 1; n < 2 * FEW_MANY; n += step)
            check_few(net, (int)i, x, n, &few, &many);
        check_few(net, (int)i, x, FEW_ALL, &few, &many);
        free(x);
        jem_net_free(net);
        jem_ctx_free(ctx);
    }
    few_close(&few);
    few_close(&many);
}

static void test_losses(jem_ctx *ctx) {
    printf("gradients: log-densities and losses\n");
    static const struct {
        const char *what;
        jem_tensor *(*build)(jem_ctx *, jem_tensor *, const things *);
    } cases[] = {
        { "logp", of_logp }, { "logp_class", of_logp_class }, { "logp_label", of_logp_label },
        { "log_odds", of_log_odds },
        { "cross_entropy", of_cross_entropy }, { "contrastive", of_contrast }
    };
    jem_rng rng = jem_rng_seed(5);
    things t;
    memset(&t, 0, sizeof t);
    random_labels(&rng, t.labels, 17, 3);
    random_labels(&rng, t.more_labels, 17, 3);
    t.net = block_net(ctx, JEM_NORM_BATCH, JEM_ACTIVATION_SILU, 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        t.build = cases[i].build;
        const jem_shape more = { 5, 3, 4, 5 };     /* as many data as there are samples, or not */
        t.other[0] = random_leaf(ctx, &rng, more, -1, 1);
        jem_tensor *x = random_leaf(ctx, &rng, block_shape, -1, 1);
        check_gradients(ctx, cases[i].what, &t, x, 50, 0.04f, 3e-3);
        jem_reset(ctx);
    }
    t.build = of_loss;
    for (t.a = 0; t.a < 3; t.a++)
        for (t.b = 1; t.b < 16; t.b++) {
            for (int i = 0; i < 2; i++) t.other[i] = random_leaf(ctx, &rng, block_shape, -1, 1);
            jem_tensor *x = random_leaf(ctx, &rng, block_shape, -1, 1);
            char what[64];
            snprintf(what, sizeof what, "loss, role %d, terms %d", t.a, t.b);
            if (t.a == 0 || (t.b & (t.a == 1 ? 14 : 10)))   /* else x is not in it */
                check_gradient(ctx, what, &t, x, NULL, 0.02f, 3e-3);
            check_gradient(ctx, what, &t, x, jem_net_find(t.net, "head.weight"), 0.02f, 3e-3);
            check_gradient(ctx, what, &t, x, jem_net_find(t.net, "norm1.bias"), 0.02f, 3e-3);
            jem_reset(ctx);
        }
    jem_net_free(t.net);
}

/* Checks that -q/2 ||x||^2 is added to log p(x) and to nothing else, and that a file keeps it. */
static void test_quadratic(jem_ctx *ctx) {
    printf("values: the quadratic term of log p(x), also from a file\n");
    enum { N = 3, SIZE = 2 * 6 * 5, CLASSES = 3 };
    jem_rng rng = jem_rng_seed(12);
    for (int conv = 0; conv < 2; conv++) {
        jem_net *net[3] = { NULL, NULL, NULL };
        float *x = random_floats(&rng, N * SIZE, -1, 1);
        float f[3][N * CLASSES], logp[3][N];
        jem_convnet_desc d = jem_mlp_desc_default();
        d.channels = 2;
        d.height = 6;
        d.width = 5;
        d.classes = CLASSES;
        for (int k = 0; k < 2; k++) {
            d.quadratic = k ? 0.3f : 0;
            net[k] = conv ? jem_convnet_create(ctx, &d, 3) : jem_mlp_create(ctx, &d, 3);
        }
        jem_archive *file = jem_archive_create(ctx);
        CHECK(jem_net_to_archive(net[1], file) == JEM_OK, "%s", jem_error(ctx));
        net[2] = jem_net_from_archive(ctx, file);
        for (int k = 0; k < 3; k++) {
            jem_tensor *t = jem_input(ctx, x, N, 2, 6, 5);
            CHECK(jem_read(jem_logp(ctx, t, net[k]), logp[k]) == JEM_OK &&
                  jem_read(jem_forward(net[k], t, 0), f[k]) == JEM_OK, "%s", jem_error(ctx));
            CHECK(same_bits(f[k], f[0], N * CLASSES), "logits of network %d", k);
            for (int i = 0; i < N; i++) {
                double square = 0;
                for (int j = 0; j < SIZE; j++)
                    square += (double)x[i * SIZE + j] * (double)x[i * SIZE + j];
                CHECK_CLOSE(logp[k][i] - logp[0][i], k ? -0.15 * square : 0, 1e-5,
                            "log p of image %d, network %d, conv %d", i, k, conv);
            }
            jem_reset(ctx);
        }
        for (int k = 0; k < 3; k++) jem_net_free(net[k]);
        jem_archive_free(file);
        free(x);
    }
}

/* Checks which numbers dropout sets to 0, and by what it multiplies the others. x: (17,3,4,5). */
static void check_dropout(jem_ctx *ctx, jem_tensor *x, jem_rng *rng) {
    enum { ALL = 17 * 60 };
    float in[ALL], out[2][ALL];
    jem_tensor *drop[2];
    jem_read(x, in);
    for (int i = 0; i < 2; i++) drop[i] = jem_dropout(ctx, x, 0.25f, rng);
    jem_read(drop[0], out[0]);
    jem_read(drop[1], out[1]);
    int zeros = 0;
    int both = 0;
    int bad = 0;
    for (int i = 0; i < ALL; i++) {
        zeros += out[0][i] == 0;
        both += out[0][i] == 0 && out[1][i] == 0;
        bad += out[0][i] != 0 && fabsf(out[0][i] - in[i] / 0.75f) > 1e-6f;
    }
    const double n = ALL;
    CHECK(bad == 0 && fabs(zeros - 0.25 * n) < 4 * sqrt(n * 0.25 * 0.75), "%d zeros", zeros);
    CHECK(fabs(both - n / 16) < 4 * sqrt(n / 16), "%d zeros in common", both);
    jem_read(jem_dropout(ctx, x, 0, rng), out[0]);
    CHECK(same_bits(in, out[0], ALL), "p = 0 drops nothing");
}

/* The numbers themselves: each term of the loss, from logits. */
static void test_loss_values(jem_ctx *ctx) {
    printf("values: losses from logits, dropout\n");
    enum { N = 17, M = 5 };
    jem_rng rng = jem_rng_seed(11);
    jem_net *net = block_net(ctx, JEM_NORM_LAYER, JEM_ACTIVATION_SILU, 0);
    const jem_shape s = { N, 3, 4, 5 };
    const jem_shape few = { M, 3, 4, 5 };
    jem_tensor *x[3] = { random_leaf(ctx, &rng, s, -1, 1), random_leaf(ctx, &rng, few, -1, 1),
                         random_leaf(ctx, &rng, few, -1, 1) };         /* labelled, sample, data */
    int y[N], z[M];
    random_labels(&rng, y, N, 3);
    random_labels(&rng, z, M, 3);
    double mean[3] = { 0 };
    double squares[3] = { 0 };
    double at[2] = { 0 };
    for (int i = 0; i < 3; i++) {
        float f[3 * N];
        jem_read(jem_forward(net, x[i], 1), f);
        for (int k = 0, n = x[i]->n; k < n; k++) {
            double sum = 0;
            for (int c = 0; c < 3; c++) sum += exp((double)f[3 * k + c]);
            mean[i] += log(sum) / n;
            squares[i] += log(sum) * log(sum) / n;
            if (i < 2) at[i] += (double)f[3 * k + (i ? z[k] : y[k])] / n;
        }
    }
    for (int own_data = 0; own_data < 2; own_data++) {   /* p(x) of other images, or not */
        const int p = own_data ? 2 : 0;
        const jem_loss_weights d = { 0.5f, 2, 0.25f, 0.75f };
        jem_loss_terms t;
        jem_tensor *loss = jem_loss(net, &d, x[0], y, own_data ? x[2] : NULL, x[1], z, &t);
        const double want = 0.5 * (mean[0] - at[0]) + 2 * (mean[1] - mean[p]) +
                            0.25 * (at[1] - at[0]) + 0.75 * (squares[p] + squares[1]);
        CHECK_CLOSE(jem_item(loss), want, 1e-5, "the loss, case %d", own_data);
        CHECK_CLOSE(jem_item(t.ce), mean[0] - at[0], 1e-5, "cross-entropy");
        CHECK_CLOSE(jem_item(t.f_data), mean[p], 1e-5, "log p of data");
        CHECK_CLOSE(jem_item(t.f_sample), mean[1], 1e-5, "log p of samples");
        CHECK(t.logits && t.logits->n == N && t.logits->c == 3, "logits");
    }
    const jem_loss_weights none = { 0, 0, 0, 0 };
    CHECK(!jem_loss(net, &none, x[0], y, NULL, x[1], NULL, NULL) && says(ctx, "loss"), "no term");
    CHECK(!jem_loss(NULL, &none, x[0], y, NULL, x[1], NULL, NULL) && jem_ok(ctx), "no net");
    jem_net_free(net);
    check_dropout(ctx, x[0], &rng);
    jem_reset(ctx);
}

/* ---- custom ops ------------------------------------------------------------------------------ */

/* y[c][i][j] = s a[c][i][j] b[c][h-1-i][j]: every index of the layout matters */
static ptrdiff_t at_of(jem_shape s, int c, int i, int j, int lane) {
    return (((ptrdiff_t)i * s.w + j) * s.c + c) * 16 + lane;
}
static void mirror(const jem_call *call, int backward) {
    const jem_shape s = call->out;
    const float factor = *(const float *)call->user;
    for (int c = 0; c < s.c; c++)
        for (int i = 0; i < s.h; i++)
            for (int j = 0; j < s.w; j++)
                for (int l = 0; l < 16; l++) {
                    const ptrdiff_t a = at_of(s, c, i, j, l);
                    const ptrdiff_t b = at_of(s, c, s.h - 1 - i, j, l);
                    if (!backward) call->y[a] = factor * call->x[0][a] * call->x[1][b];
                    const float dy = backward && l < call->live ? call->dy[a] : 0;
                    if (call->dx[0]) call->dx[0][a] += factor * dy * call->x[1][b];
                    if (call->dx[1]) call->dx[1][b] += factor * dy * call->x[0][a];
                }
}
static void mirror_forward(const jem_call *call) { mirror(call, 0); }
static void mirror_backward(const jem_call *call) { mirror(call, 1); }
static const jem_op mirror_op = { "mirror", mirror_forward, mirror_backward,
    JEM_KEEPS_INPUT | JEM_KEEPS_INPUT1, NULL };

/* y = 1/(1 + x^2), a number per image from any shape by its sum; aux keeps dy/dx, y is kept too */
static void bump_forward(const jem_call *call) {
    float *slope = (float *)call->aux;
    for (int i = 0; i < call->out.c * call->out.h * call->out.w * 16; i++) {
        const float x = call->x[0][i];
        call->y[i] = 1 / (1 + x * x);
        slope[i] = -2 * x;
    }
}
static void bump_backward(const jem_call *call) {
    const float *slope = (const float *)call->aux;
    for (int i = 0; i < call->out.c * call->out.h * call->out.w * 16; i++)
        call->dx[0][i] += call->dy[i] * slope[i] * call->y[i] * call->y[i];
}
static const jem_op bump_op = { "bump", bump_forward, bump_backward, JEM_KEEPS_OUTPUT, NULL };
static const jem_op wall_op = { "wall", bump_forward, NULL, 0, NULL };

static jem_tensor *custom(jem_ctx *c, const jem_op *op, jem_tensor *a, jem_tensor *b, float f) {
    jem_tensor *in[2];
    if (!a) return NULL;
    in[0] = a;
    in[1] = b;
    const jem_shape s = { a->n, a->c, a->h, a->w };
    const size_t aux = (size_t)(s.c * s.h * s.w * 16) * sizeof(float);
    return jem_custom(c, op, in, b ? 2 : 1, s, &f, sizeof f, op == &mirror_op ? 0 : aux);
}
BUILDER(of_mirror, custom(c, &mirror_op, x, jem_tanh(c, x), 1.5f))
BUILDER(of_mirror_same, custom(c, &mirror_op, x, x, 0.5f))
BUILDER(of_bump, custom(c, &bump_op, x, NULL, 0))
BUILDER(of_bumps, custom(c, &mirror_op, custom(c, &bump_op, x, NULL, 0), t->other[0], 0.5f))

/* Checks a few images, which are cut into blocks, and joined again. */
static void check_dead_blocks(jem_ctx *ctx) {
    int bad = 0;
    jem_wrn_desc d = jem_wrn_desc_default();
    d.depth = 10;
    d.widen = 1;
    d.height = d.width = 16;
    jem_net *net = jem_wrn_create(ctx, &d, 1);
    jem_param *bias = jem_net_find(net, "class_output.bias");
    memset(bias->value, 0, (size_t)bias->size * sizeof(float));
    jem_param_changed(bias);
    for (int n = 1; n < 4; n++) {
        float image[3 * 3 * 256];
        for (int i = 0; i < n * 768; i++) image[i] = sinf((float)i);
        jem_tensor *y = jem_square(ctx, jem_forward(net, jem_input(ctx, image, n, 3, 16, 16), 0));
        jem_zero_grad(net);
        jem_backward(jem_mean(ctx, jem_log(ctx, jem_sum_image(ctx, y))));
        for (const jem_param *p = net->params; p; p = p->next)
            for (ptrdiff_t i = 0; p->grad && i < p->size; i++) bad += !(fabsf(p->grad[i]) < 1e6f);
        jem_reset(ctx);
    }
    CHECK(bad == 0 && jem_ok(ctx), "blocks: %d not finite, %s", bad, jem_error(ctx));
    jem_net_free(net);
}

/* The lanes behind the last image must do nothing that it would not: here, no log of 0. */
static void test_dead_lanes(jem_ctx *ctx) {
    printf("lanes without an image: no gradient of theirs gets through\n");
    jem_net *net = jem_net_create(ctx, NULL, NULL, 0, 6, 1, 1, 2, 1);
    jem_layer layer = jem_linear_layer(net, "fc", 6, 6);
    const int labels[2] = { 1, 3 };
    float x[12] = { 1, 2, 3, 4, 5, 6, 0, 9, 8, 7, 6, 5 };
    int bad = 0;
    memset(layer.weight->value, 0, 36 * sizeof(float));
    memset(layer.bias->value, 0, 24);
    for (int i = 0; i < 6; i++) layer.weight->value[7 * i] = 1;
    jem_param_changed(layer.weight);
    jem_param_changed(layer.bias);
    jem_tensor *y = jem_apply(&layer, jem_input(ctx, x, 2, 6, 1, 1), 1);
    jem_zero_grad(net);
    CHECK(jem_backward(jem_mean(ctx, jem_log(ctx, jem_gather(ctx, y, labels)))) == JEM_OK, "%s",
          jem_error(ctx));
    for (int i = 0; i < 36; i++) bad += !(fabsf(layer.weight->grad[i]) < 10);
    CHECK(bad == 0 && layer.weight->grad[7] == 0.5f, "gather: %d, %g", bad,
          (double)layer.weight->grad[7]);
    bad = 0;
    for (uint64_t seed = 0; seed < 100; seed++) {
        jem_rng rng = jem_rng_seed(seed);
        y = jem_apply(&layer, jem_input(ctx, x, 1, 6, 1, 1), 1);
        y = jem_sum_image(ctx, jem_dropout(ctx, y, 0.5f, &rng));
        jem_tensor *loss = jem_mean(ctx, jem_log(ctx, y));
        jem_zero_grad(net);
        jem_backward(loss);
        for (int i = 0; i < 36; i++)
            bad += jem_item(y) > 0 && !(fabsf(layer.weight->grad[i]) < 100);
        jem_reset(ctx);
    }
    CHECK(bad == 0 && jem_ok(ctx), "dropout: %d not finite, %s", bad, jem_error(ctx));
    jem_net_free(net);
    check_dead_blocks(ctx);
}

/* jem_backward also updates running statistics if no value has to be computed again. */
static void test_read_before(jem_ctx *ctx) {
    printf("a loss that was read before its backward: statistics, weights\n");
    enum { SIZE = 10, N = 18 };
    for (int side = 1; side <= SIZE; side += SIZE - 1) {       /* values that are kept, and not */
        float moved[2][4];
        for (int read = 0; read < 2; read++) {
            jem_net *net = jem_net_create(ctx, NULL, NULL, 0, 2, side, side, 2, 1);
            jem_layer norm = jem_norm_layer(net, "norm", JEM_NORM_BATCH, 2);
            jem_layer layer = jem_linear_layer(net, "fc", 2, 2);
            const int two = 2;
            jem_param *one = jem_net_param(net, "one", 1, &two, 0);
            jem_param *zero = jem_net_param(net, "zero", 1, &two, 0);
            float x[N * 2 * SIZE * SIZE];
            int labels[N];
            jem_rng rng = jem_rng_seed(3);
            one->value[0] = one->value[1] = 1;
            for (int i = 0; i < N; i++) labels[i] = i & 1;
            for (int i = 0; i < N * 2 * side * side; i++) x[i] = 5 + jem_rng_normal(&rng);
            jem_tensor *t = jem_batch_norm(ctx, jem_input(ctx, x, N, 2, side, side), one, zero,
                                           norm.extra[0], norm.extra[1], 0.5f, 1);
            t = jem_relu(ctx, t);
            if (side > 1) t = jem_avg_pool(ctx, t, side, side);
            jem_tensor *loss = jem_cross_entropy(ctx, jem_apply(&layer, t, 1), labels);
            if (read) jem_item(loss);
            jem_zero_grad(net);
            CHECK(jem_backward(loss) == JEM_OK, "%s", jem_error(ctx));
            for (int i = 0; i < 4; i++) moved[read][i] = norm.extra[i / 2]->value[i % 2];
            jem_net_free(net);
            jem_reset(ctx);
        }
        CHECK(fabsf(moved[0][0] - 2.5f) < 0.5f && same_bits(moved[0], moved[1], 4),
              "side %d: mean %g, %g", side, (double)moved[0][0], (double)moved[1][0]);
    }
}

/* One number has a mean, but no variance: the running one stays. */
static void test_norm_of_one(jem_ctx *ctx) {
    printf("batch norm of one number per channel\n");
    jem_net *net = jem_net_create(ctx, NULL, NULL, 0, 3, 1, 1, 1, 1);
    jem_layer norm = jem_norm_layer(net, "norm", JEM_NORM_BATCH, 3);
    const float x[3] = { 5, -2, 7 };
    for (int i = 0; i < 3; i++) norm.extra[1]->value[i] = 4;
    jem_tensor *y = jem_apply(&norm, jem_input(ctx, x, 1, 3, 1, 1), 1);
    CHECK(jem_backward(jem_sum(ctx, jem_square(ctx, y))) == JEM_OK, "%s", jem_error(ctx));
    for (int i = 0; i < 3; i++) {
        CHECK(norm.extra[1]->value[i] == 4, "variance %g", (double)norm.extra[1]->value[i]);
        CHECK_CLOSE(norm.extra[0]->value[i], 0.9 * (double)x[i], 1e-6, "mean");
    }
    jem_reset(ctx);
    jem_net_free(net);
}

/* What is asked after a failure gets no number of the failed run. */
static void once_forward(const jem_call *call) {
    const int *fails = *(const int *const *)call->user;
    for (int i = 0; i < 16; i++) call->y[i] = *fails ? -999 : 2 * call->x[0][i];
    if (*fails) jem_fail(call->ctx, JEM_BAD_ARGUMENT, "not now");
}
static void once_backward(const jem_call *call) {
    for (int i = 0; i < 16; i++) call->dx[0][i] += 2 * call->dy[i];
}
static const jem_op once_op = { "once", once_forward, once_backward, 0, NULL };

static void half_backward(const jem_call *call) {  /* wrong in its first half */
    const int n = call->out.c * call->out.h * call->out.w * 16;
    for (int i = 0; i < n; i++) call->dx[0][i] += i < n / 2 ? (float)NAN : call->dy[i];
}
static void half_forward(const jem_call *call) {
    memcpy(call->y, call->x[0], (size_t)(call->out.c * call->out.h * call->out.w * 16) * 4);
}
static const jem_op half_op = { "half", half_forward, half_backward, 0, NULL };
static jem_tensor *of_half(jem_ctx *ctx, jem_tensor *x, void *user) {
    (void)user;
    const jem_shape s = { x->n, x->c, 1, 1 };
    return jem_sum_image(ctx, jem_custom(ctx, &half_op, &x, 1, s, NULL, 0, 0));
}
static jem_tensor *of_failing(jem_ctx *ctx, jem_tensor *x, void *user) {
    if (++*(int *)user > 3) jem_fail(ctx, JEM_BAD_ARGUMENT, "no more");
    return jem_sum_image(ctx, jem_square(ctx, x));
}

static void test_after_failure(jem_ctx *ctx) {
    printf("after a run that failed; what the gradient's checker says\n");
    const jem_shape s = { 1, 1, 1, 1 };
    const float three = 3;
    const float pair[2] = { 1, 2 };
    int fails = 1;
    const int *user = &fails;
    float out[2] = { 5, 7 };
    jem_tensor *x = jem_input(ctx, &three, 1, 1, 1, 1);
    jem_tensor *y = jem_custom(ctx, &once_op, &x, 1, s, &user, sizeof user, 0);
    for (int how = 0; how < 2; how++) {
        fails = 1;
        CHECK((how ? jem_grad(y, x) : jem_read(y, out)) == JEM_BAD_ARGUMENT &&
              says(ctx, "not now"), "it fails");
        CHECK(out[0] == (how ? 2.0f : 5.0f), "what was there stays: %g", (double)out[0]);
        CHECK(jem_read_grad(x, out) == JEM_BAD_ARGUMENT && says(ctx, "jem_grad first"),
              "and left no gradient");
        fails = 0;
        CHECK(jem_read(y, out) == JEM_OK && out[0] == 6, "computed again: %g", (double)out[0]);
        CHECK(jem_grad(y, x) == JEM_OK && jem_read_grad(x, out) == JEM_OK && out[0] == 2, "%g",
              (double)out[0]);
    }
    x = jem_input(ctx, pair, 1, 2, 1, 1);
    const float gap = jem_check_gradient(ctx, of_half, NULL, x, NULL, 0.02f);
    CHECK(!(gap <= 1e30f) && jem_ok(ctx), "half of the gradient is NaN: %g", (double)gap);
    int calls = 0;
    CHECK(jem_check_gradient(ctx, of_failing, &calls, x, NULL, 0.02f) < 0 && says(ctx, "no more"),
          "a function that fails");
    CHECK(jem_read(x, out) == JEM_OK && same_bits(out, pair, 2), "x is %g, %g", (double)out[0],
          (double)out[1]);
    jem_reset(ctx);
}

/* Doubles x; fails in the second group of images. */
static void late_forward(const jem_call *call) {
    for (int i = 0; i < 16; i++) call->y[i] = 2 * call->x[0][i];
    if (call->group == 1) jem_fail(call->ctx, JEM_BAD_ARGUMENT, "the second group");
}
static const jem_op late_op = { "late", late_forward, NULL, 0, NULL };

static void test_read_failed(jem_ctx *ctx) {
    printf("a read that fails in its second group changes nothing\n");
    enum { N = 17 };
    const jem_shape s = { N, 1, 1, 1 };
    float x[N], out[N];
    int changed = 0;
    for (int i = 0; i < N; i++) {
        x[i] = (float)i;
        out[i] = -7;
    }
    jem_tensor *leaf = jem_input(ctx, x, N, 1, 1, 1);
    jem_tensor *y = jem_custom(ctx, &late_op, &leaf, 1, s, NULL, 0, 0);
    CHECK(jem_read(y, out) == JEM_BAD_ARGUMENT && says(ctx, "second group"), "it fails");
    for (int i = 0; i < N; i++) changed += out[i] != -7;
    CHECK(changed == 0, "%d of %d numbers are changed", changed, N);
    jem_reset(ctx);
}

/* Adds up the bytes of its data. */
enum { USER_BYTES = 64 };
static void bytes_forward(const jem_call *call) {
    const unsigned char *user = (const unsigned char *)call->user;
    int sum = 0;
    for (int i = 0; i < USER_BYTES; i++) sum += user[i];
    for (int i = 0; i < 16; i++) call->y[i] = (float)sum;
}
static const jem_op bytes_op = { "bytes", bytes_forward, NULL, 0, NULL };

static void test_zero_user(jem_ctx *ctx) {
    printf("data of a custom op: zeros without a source, in memory that was used before\n");
    enum { USED = 10000 };
    const jem_shape s = { 1, 1, 1, 1 };
    float *ones = floats(USED);
    for (int i = 0; i < USED; i++) ones[i] = 1;
    CHECK(jem_input(ctx, ones, 1, USED, 1, 1) != NULL, "%s", jem_error(ctx));
    jem_reset(ctx);
    jem_tensor *leaf = jem_zeros(ctx, 1, 1, 1, 1);
    const float sum = jem_item(jem_custom(ctx, &bytes_op, &leaf, 1, s, NULL, USER_BYTES, 0));
    CHECK(sum == 0, "its bytes add up to %g", (double)sum);
    free(ones);
    jem_reset(ctx);
}

/* Four inputs: y = their sum, and what an op sees is noted for each direction. */
typedef struct call_view { int x, y, aux, dx, calls; } call_view;
static void note(const jem_call *call, call_view *s) {
    for (int k = 0; k < 4; k++) {
        s->x |= (call->x[k] != NULL) << k;
        s->dx |= (call->dx[k] != NULL) << k;
    }
    s->y |= call->y != NULL;
    s->aux |= call->aux != NULL;
    s->calls++;
}
static void four_forward(const jem_call *call) {
    note(call, *(call_view *const *)call->user);
    for (int i = 0; i < call->out.c * call->out.h * call->out.w * 16; i++)
        call->y[i] = call->x[0][i] + call->x[1][i] + call->x[2][i] + call->x[3][i];
}
static void four_backward(const jem_call *call) {
    note(call, *(call_view *const *)call->user + 1);
    for (int k = 0; k < 4; k++)
        for (int i = 0; call->dx[k] && i < call->out.c * call->out.h * call->out.w * 16; i++)
            call->dx[k][i] += call->dy[i];
}

/* What backward did not ask for is NULL, and not the memory of another op. */
static void test_unkept(jem_ctx *ctx) {
    printf("a custom op receives the requested arrays, and NULL for the others\n");
    const jem_shape shape = { 5, 2, 3, 3 };
    jem_rng rng = jem_rng_seed(9);
    for (int keeps = 0; keeps < 32; keeps++) {
        const jem_op op = { "four", four_forward, four_backward, keeps, NULL };
        call_view s[2] = { { 0, 0, 0, 0, 0 }, { 0, 0, 0, 0, 0 } };
        call_view *user = s;
        const size_t aux = keeps & 1 ? 64 : 0;
        jem_tensor *x = random_leaf(ctx, &rng, shape, -1, 1);
        jem_tensor *in[4] = { jem_tanh(ctx, x), x, jem_square(ctx, x), NULL };
        in[3] = jem_detach(ctx, x);
        jem_tensor *y = jem_custom(ctx, &op, in, 4, shape, &user, sizeof user, aux);
        CHECK(jem_grad(jem_sum_image(ctx, jem_exp(ctx, y)), x) == JEM_OK, "%s", jem_error(ctx));
        CHECK(s[0].calls == 1 && s[0].x == 15 && s[0].y && !s[0].dx && s[0].aux == (aux > 0),
              "forward, keeps %d: x %d, y %d, dx %d", keeps, s[0].x, s[0].y, s[0].dx);
        CHECK(s[1].calls == 1 && s[1].x == (keeps & 15) && s[1].y == (keeps >> 4) &&
              s[1].dx == 7 && s[1].aux == (aux > 0),
              "backward, keeps %d: x %d, y %d, dx %d", keeps, s[1].x, s[1].y, s[1].dx);
        jem_reset(ctx);
    }
}

/* jem_compute_exp and its like: the bits of the ops, for any count, in place, and nothing beyond
   them. */
static void test_compute(jem_ctx *ctx) {
    printf("functions on arrays: the bits of the ops\n");
    enum { MOST = 70 };
    void (*const compute[3])(const jem_ctx *, const float *, float *, ptrdiff_t) =
        { jem_compute_exp, jem_compute_tanh, jem_compute_sigmoid };
    jem_tensor *(*const op[3])(jem_ctx *, jem_tensor *) = { jem_exp, jem_tanh, jem_sigmoid };
    jem_rng rng = jem_rng_seed(10);
    float x[MOST], y[MOST], z[MOST + 1];
    jem_fill_normal(ctx, &rng, x, MOST, 0, 6);
    x[0] = 200;
    x[1] = -200;
    for (int f = 0; f < 3; f++)
        for (int n = 0; n <= MOST; n++) {
            for (int i = 0; i <= MOST; i++) z[i] = 7;
            compute[f](ctx, x, z, n);
            if (n) jem_read(op[f](ctx, jem_input(ctx, x, 1, n, 1, 1)), y);
            CHECK(same_bits(y, z, n) && z[n] == 7, "function %d of %d numbers", f, n);
            memcpy(z, x, sizeof x);
            compute[f](ctx, z, z, n);
            CHECK(same_bits(y, z, n), "function %d of %d numbers in place", f, n);
            jem_reset(ctx);
        }
    jem_compute_exp(NULL, x, z, 1);
    jem_compute_exp(ctx, NULL, z, 1);
    jem_compute_exp(ctx, x, NULL, 1);
    CHECK(jem_ok(ctx), "%s", jem_error(ctx));
}

static void test_custom(jem_ctx *ctx) {
    printf("custom ops: values, gradients, and no gradient\n");
    jem_tensor *(*const build[4])(jem_ctx *, jem_tensor *, const things *) =
        { of_mirror, of_mirror_same, of_bump, of_bumps };
    jem_rng rng = jem_rng_seed(6);
    things t;
    memset(&t, 0, sizeof t);
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < SHAPES; k++) {
            t.build = build[i];
            t.other[0] = random_leaf(ctx, &rng, shapes[k], -1, 1);
            jem_tensor *x = random_leaf(ctx, &rng, shapes[k], -2, 2);
            check_gradient(ctx, "a custom op", &t, x, NULL, 0.03f, 1e-3);
            jem_reset(ctx);
        }
    const jem_shape s = { 17, 3, 5, 4 };
    float a[17 * 60], b[17 * 60], y[17 * 60];
    jem_tensor *ta = random_leaf(ctx, &rng, s, -1, 1);
    jem_tensor *tb = random_leaf(ctx, &rng, s, -1, 1);
    jem_read(ta, a);
    jem_read(tb, b);
    jem_read(custom(ctx, &mirror_op, ta, tb, 3), y);
    int bad = 0;
    for (int i = 0; i < 17 * 60; i++)              /* i is ((n C + c) 5 + row) 4 + column */
        bad += y[i] != (float)(3 * a[i] * b[i / 20 * 20 + (4 - i / 4 % 5) * 4 + i % 4]);
    CHECK(bad == 0, "mirror: %d of %d", bad, 17 * 60);
    jem_tensor *through = jem_sum_image(ctx, custom(ctx, &wall_op, ta, NULL, 0));
    CHECK(jem_grad(through, ta) == JEM_BAD_ARGUMENT && says(ctx, "does not depend"),
          "no gradient passes an op without backward");
    jem_tensor *beside = jem_sum_image(ctx, jem_add(ctx, custom(ctx, &wall_op, ta, NULL, 0), ta));
    CHECK(jem_grad(beside, ta) == JEM_OK && jem_read_grad(ta, a) == JEM_OK, "%s", jem_error(ctx));
    for (int i = 0; i < 17 * 60; i++) bad += a[i] != 1;
    CHECK(bad == 0, "but it passes beside it");
    jem_tensor *none[1] = { NULL };
    jem_tensor *of_other_n[1] = { ta };
    const jem_shape wrong = { 16, 1, 1, 1 };
    CHECK(!jem_custom(ctx, NULL, of_other_n, 1, s, NULL, 0, 0) &&
          says(ctx, "jem_custom: the op is NULL"), "no op");
    jem_op op = bump_op;
    op.keeps = JEM_KEEPS_INPUT | JEM_KEEPS_INPUT1;
    CHECK(!jem_custom(ctx, &op, of_other_n, 1, s, NULL, 0, 0) &&
          says(ctx, "bump: keeps is 3, which names more than its 1 input and the output"), "keeps");
    CHECK(!jem_custom(ctx, &bump_op, NULL, 1, s, NULL, 0, 0) && says(ctx, "bump: inputs is NULL"),
          "no inputs");
    CHECK(!jem_custom(ctx, &bump_op, of_other_n, 5, s, NULL, 0, 0) && says(ctx, "bump"), "many");
    CHECK(!jem_custom(ctx, &bump_op, of_other_n, 1, wrong, NULL, 0, 0) && says(ctx, "(17,3,5,4)"),
          "another n");
    CHECK(!jem_custom(ctx, &bump_op, none, 1, s, NULL, 0, 0) && jem_ok(ctx), "NULL in, NULL out");
    jem_reset(ctx);
}

static jem_ctx *plain_ctx(void) {
    jem_ctx_desc d;
    memset(&d, 0, sizeof d);
    d.threads = 1;
    d.plain_tape = 1;
    return jem_ctx_create(&d);
}

/* ---- random tapes against plain C in double -------------------------------------------------- */

/* A node of a tape, and the same in double: value, and gradient of the target. */
typedef enum kind {
    LEAF, SCALE, SHIFT, TANH, SILU, LEAKY, SQUARE, ADD, SUB, MUL, SPREAD_ADD, SPREAD_SUB,
    SPREAD_MUL, SUM_IMAGE, CONV, NORM, CUSTOM, KINDS
} kind;

typedef struct ref {
    kind kind;
    int in[2], c, pixels, is_reached;              /* c * pixels numbers per image */
    double *v, *g, *m;                             /* m: g in magnitudes */
    double scale;                                  /* of the numbers that v came from */
    jem_tensor *t;
    jem_param *p[4];
    double *pg[2], *pm[2];                         /* the same for the two that are trained */
} ref;

enum { MOST = 24, LEAVES = 2 };
typedef struct tape {
    jem_ctx *ctx;
    jem_net *bag;
    jem_rng rng;
    int n, c, h, w, count;
    ref nodes[MOST];
} tape;

static int pick(tape *t, int n) { return jem_rng_below(&t->rng, n); }
static int size_of(const tape *t, const ref *r) { return t->n * r->c * r->pixels; }
static int is_number(const ref *r) { return r->c * r->pixels == 1; }
static double *doubles(int n) { return (double *)calloc((size_t)n, sizeof(double)); }

/* A backward walk adds up terms; one in magnitudes says how large they were, which is what rounding
   goes by when they cancel. */
static int magnitudes;
static double term(double x) { return magnitudes ? fabs(x) : x; }

static double slope_of(kind k, double x) {         /* of the elementwise ones, at x */
    const double s = 1 / (1 + exp(-x));
    switch (k) {
    case SCALE: return -1.5;
    case TANH: return 1 + term(-tanh(x) * tanh(x));
    case SILU: return x < -30 ? 0 : s + x * s * (1 - s);
    case LEAKY: return x < 0 ? 0.25 : 1;
    case SQUARE: return 2 * x;
    case CUSTOM: return -2 * x / ((1 + x * x) * (1 + x * x));          /* bump_op */
    default: return 1;
    }
}
static double map_of(kind k, double x) {
    switch (k) {
    case SCALE: return -1.5 * x;
    case SHIFT: return x + 0.5;
    case TANH: return tanh(x);
    case SILU: return x < -30 ? 0 : x / (1 + exp(-x));
    case LEAKY: return x < 0 ? 0.25 * x : x;
    case CUSTOM: return 1 / (1 + x * x);
    default: return x * x;
    }
}

/* Convolution, 1x1 or 3x3 with padding 1, forward (gx NULL) or backward. */
static void ref_conv(const tape *t, ref *r, const ref *x, double *gx) {
    const int k = r->p[0]->shape[2];
    const int image = r->c * r->pixels;
    for (int to = 0; to < size_of(t, r); to++) {   /* to is ((n O + o) h + i) w + j */
        const int o = to / r->pixels % r->c;
        const int i = to / t->w % t->h;
        const int j = to % t->w;
        if (!gx) r->v[to] = (double)r->p[1]->value[o];
        else r->pg[1][o] += term(r->g[to]);
        for (int at = 0; at < x->c * k * k; at++) {
            const int y = i + at / k % k - k / 2;
            const int z = j + at % k - k / 2;
            if (y < 0 || y >= t->h || z < 0 || z >= t->w) continue;
            const int c = at / (k * k);
            const int w = o * x->c * k * k + at;
            const int from = (to / image * x->c + c) * x->pixels + y * t->w + z;
            if (!gx) r->v[to] += (double)r->p[0]->value[w] * x->v[from];
            else {
                gx[from] += term((double)r->p[0]->value[w] * r->g[to]);
                r->pg[0][w] += term(x->v[from] * r->g[to]);
            }
        }
    }
}

/* Batch norm in training, forward (gx NULL) or backward: the op that needs the whole batch. */
static void ref_norm(const tape *t, ref *r, const ref *x, double *gx) {
    const int per = t->n * r->pixels;
    for (int c = 0; c < r->c; c++) {
        double mean = 0;
        double var = 0;
        double s1 = 0;
        double s2 = 0;
        const double gamma = (double)r->p[0]->value[c];
        const double beta = (double)r->p[1]->value[c];
        for (int pass = 0; pass < 4; pass++) {     /* mean; variance; sums; result */
            const double rstd = 1 / sqrt(var + 1e-5);
            for (int i = 0; i < per; i++) {
                const int at = (i / r->pixels * r->c + c) * r->pixels + i % r->pixels;
                const double d = x->v[at] - mean;
                const double dy = gx ? r->g[at] : 0;
                if (pass == 0) mean += x->v[at] / per;
                if (pass == 1) var += d * d / per;
                if (pass == 2) {
                    s1 += term(dy);
                    s2 += term(dy * d * rstd);
                }
                if (pass == 3 && !gx) r->v[at] = d * rstd * gamma + beta;
                if (pass == 3 && gx)
                    gx[at] += gamma * rstd * (term(dy) + term(-s1 / per) +
                                              term(-d * rstd * s2 / per));
            }
        }
        if (gx) {
            r->pg[0][c] += s2;
            r->pg[1][c] += s1;
        }
    }
}

static void ref_forward(tape *t, ref *r) {
    const ref *a = t->nodes + r->in[0], *b = t->nodes + r->in[1];
    const int n = size_of(t, r);
    const int spread = r->c * r->pixels;
    if (r->kind == CONV) ref_conv(t, r, a, NULL);
    else if (r->kind == NORM) ref_norm(t, r, a, NULL);
    else if (r->kind == SUM_IMAGE) {
        memset(r->v, 0, (size_t)n * sizeof *r->v);
        for (int i = 0; i < size_of(t, a); i++) r->v[i / (a->c * a->pixels)] += a->v[i];
    } else for (int i = 0; i < n; i++)
        switch (r->kind) {
        case LEAF: break;
        case ADD: r->v[i] = a->v[i] + b->v[i]; break;
        case SUB: r->v[i] = a->v[i] - b->v[i]; break;
        case MUL: r->v[i] = a->v[i] * b->v[i]; break;
        case SPREAD_ADD: r->v[i] = a->v[i] + b->v[i / spread]; break;
        case SPREAD_SUB: r->v[i] = a->v[i] - b->v[i / spread]; break;
        case SPREAD_MUL: r->v[i] = a->v[i] * b->v[i / spread]; break;
        default: r->v[i] = map_of(r->kind, a->v[i]);
        }
}
static void ref_backward(tape *t, ref *r) {
    ref *a = t->nodes + r->in[0], *b = t->nodes + r->in[1];
    const int spread = r->c * r->pixels;
    if (r->kind == CONV) ref_conv(t, r, a, a->g);
    else if (r->kind == NORM) ref_norm(t, r, a, a->g);
    else if (r->kind == SUM_IMAGE)
        for (int i = 0; i < size_of(t, a); i++) a->g[i] += term(r->g[i / (a->c * a->pixels)]);
    else for (int i = 0; i < size_of(t, r); i++) {
        const double g = r->g[i];
        switch (r->kind) {
        case LEAF: break;
        case ADD:
            a->g[i] += term(g);
            b->g[i] += term(g);
            break;
        case SUB:
            a->g[i] += term(g);
            b->g[i] += term(-g);
            break;
        case MUL:
            a->g[i] += term(g * b->v[i]);
            b->g[i] += term(g * a->v[i]);
            break;
        case SPREAD_ADD:
            a->g[i] += term(g);
            b->g[i / spread] += term(g);
            break;
        case SPREAD_SUB:
            a->g[i] += term(g);
            b->g[i / spread] += term(-g);
            break;
        case SPREAD_MUL:
            a->g[i] += term(g * b->v[i / spread]);
            b->g[i / spread] += term(g * a->v[i]);
            break;
        default: a->g[i] += term(g * slope_of(r->kind, a->v[i]));
        }
    }
}

static jem_tensor *ref_record(tape *t, ref *r) {
    jem_ctx *c = t->ctx;
    jem_tensor *a = t->nodes[r->in[0]].t;
    jem_tensor *b = t->nodes[r->in[1]].t;
    const jem_conv_desc d = { 1, r->p[0] ? r->p[0]->shape[2] / 2 : 0 };
    switch (r->kind) {
    case SCALE: return jem_scale(c, a, -1.5f);
    case SHIFT: return jem_add_constant(c, a, 0.5f);
    case TANH: return jem_tanh(c, a);
    case SILU: return jem_silu(c, a);
    case LEAKY: return jem_leaky_relu(c, a, 0.25f);
    case SQUARE: return jem_square(c, a);
    case ADD: case SPREAD_ADD: return jem_add(c, a, b);
    case SUB: case SPREAD_SUB: return jem_sub(c, a, b);
    case MUL: case SPREAD_MUL: return jem_mul(c, a, b);
    case SUM_IMAGE: return jem_sum_image(c, a);
    case CONV: return jem_conv2d(c, a, r->p[0], r->p[1], d);
    case CUSTOM: return custom(c, &bump_op, a, NULL, 0);
    default: return jem_batch_norm(c, a, r->p[0], r->p[1], r->p[2], r->p[3], 0.1f, 1);
    }
}

/* Too large, or so near to leaky relu's kink that float may fall on the other side? */
static int is_risky(const tape *t, const ref *r) {
    for (int i = 0; i < size_of(t, r); i++)
        if (fabs(r->v[i]) > 30 || fabs(r->v[i]) < 1e-5) return 1;
    return 0;
}

/* Does a channel vary so little that a norm would blow up its rounding? */
static int is_flat(const tape *t, const ref *r) {
    for (int c = 0; c < r->c; c++) {
        double lo = 1e30;
        double hi = -1e30;
        for (int i = 0; i < t->n * r->pixels; i++) {
            const double v = r->v[(i / r->pixels * r->c + c) * r->pixels + i % r->pixels];
            if (v < lo) lo = v;
            if (v > hi) hi = v;
        }
        if (hi - lo < 0.3) return 1;
    }
    return 0;
}

/* Draws a node, one of the last four in half of the cases, so that tapes are deep. */
static int pick_node(tape *t) {
    if (pick(t, 2)) return t->count - 1 - pick(t, t->count < 4 ? t->count : 4);
    return pick(t, t->count);
}

/* Draws a node of the shape that fits. */
static int find(tape *t, int like, int number) {
    for (;;) {
        const int i = pick_node(t);
        const ref *r = t->nodes + i;
        if (number ? is_number(r) : like < 0 || (r->c == t->nodes[like].c &&
                                                 r->pixels == t->nodes[like].pixels)) return i;
    }
}
static int any_number(const tape *t) {
    for (int i = 0; i < t->count; i++) if (is_number(t->nodes + i)) return 1;
    return 0;
}

/* Adds a node of this kind with these inputs, in double and on the tape. */
static void tape_put(tape *t, kind k, int in0, int in1) {
    ref *r = t->nodes + t->count++;
    memset(r, 0, sizeof *r);
    r->kind = k;
    r->in[0] = in0;
    r->in[1] = in1;
    r->c = k == LEAF ? t->c : t->nodes[in0].c;
    r->pixels = k == LEAF ? t->h * t->w : t->nodes[in0].pixels;
    if (k == SUM_IMAGE) r->c = r->pixels = 1;
    if (k == CONV) {
        r->c = pick(t, 3) ? t->c : 1 + pick(t, 11);            /* mostly what can be added to */
        const int size = 1 + 2 * pick(t, 2);
        const int c = t->nodes[in0].c;
        const float most = 1.5f / (float)(size * c);
        r->p[0] = random_param(t->bag, &t->rng, 1, 4, r->c, c, size, -most, most);
        r->p[1] = random_param(t->bag, &t->rng, 1, 1, r->c, 1, 1, -1, 1);
    }
    for (int i = 0; k == NORM && i < 4; i++)
        r->p[i] = random_param(t->bag, &t->rng, i < 2, 1, r->c, 1, 1, 0.5f, 1.5f);
    for (int i = 0; r->p[0] && i < 2; i++) {
        r->pg[i] = doubles((int)r->p[i]->size);
        r->pm[i] = doubles((int)r->p[i]->size);
    }
    const int n = size_of(t, r);
    r->v = doubles(n);
    r->g = doubles(n);
    r->m = doubles(n);
    if (k != LEAF) {
        ref_forward(t, r);
        r->t = ref_record(t, r);
        const ref *a = t->nodes + in0;
        r->scale = k == SUM_IMAGE ? a->scale * sqrt(a->c * a->pixels)
                                  : fmax(a->scale, t->nodes[in1].scale);
        for (int i = 0; i < n; i++) r->scale = fmax(r->scale, fabs(r->v[i]));
        return;
    }
    r->scale = 1.5;
    float *x = random_floats(&t->rng, n, -1.5f, 1.5f);
    for (int i = 0; i < n; i++) r->v[i] = (double)x[i];
    r->t = jem_input(t->ctx, x, t->n, t->c, t->h, t->w);
    free(x);
}

/* A node of any kind, on inputs that it can have. */
static void tape_add(tape *t) {
    kind k = (kind)(1 + pick(t, KINDS - 1));
    const int in0 = find(t, -1, 0);
    const int spread = k >= SPREAD_ADD && k <= SPREAD_MUL && any_number(t);
    if (k >= SPREAD_ADD && k <= SPREAD_MUL && !spread) k = SUM_IMAGE;
    const int in1 = find(t, in0, spread);
    if (is_number(t->nodes + in0) && (k == NORM || k == CONV)) k = TANH;
    if (k == LEAKY || k == SQUARE || k == MUL || k == SPREAD_MUL || k == NORM)
        if (is_risky(t, t->nodes + in0) || is_risky(t, t->nodes + in1)) k = TANH;
    if (k == NORM && is_flat(t, t->nodes + in0)) k = TANH;
    tape_put(t, k, in0, in1);
}

/* Two leaves, up to 21 nodes, and at last a number per image. */
static void tape_make(tape *t, jem_ctx *ctx, int seed) {
    static const int ns[] = { 1, 3, 16, 17, 33 };
    memset(t, 0, sizeof *t);
    t->ctx = ctx;
    t->rng = jem_rng_seed((uint64_t)seed);
    t->bag = bag_create(ctx);
    t->n = ns[pick(t, 5)];
    t->c = 1 + pick(t, 9);
    t->h = 1 + pick(t, 6);
    t->w = 2 + pick(t, 5);
    const int count = 6 + pick(t, MOST - 6);
    for (int i = 0; i < LEAVES; i++) tape_put(t, LEAF, 0, 0);
    while (t->count < count) tape_add(t);
    tape_put(t, SUM_IMAGE, t->count - 1, 0);
}

static void tape_free(tape *t) {
    for (int i = 0; i < t->count; i++) {
        ref *r = t->nodes + i;
        free(r->v);
        free(r->g);
        free(r->m);
        for (int k = 0; k < 2; k++) {
            free(r->pg[k]);
            free(r->pm[k]);
        }
    }
    jem_reset(t->ctx);
    jem_net_free(t->bag);
}

/* Gradients of the sum of seed * target, in double, and their magnitudes; flags what the target
   depends on. */
static void ref_walk(tape *t, int target, double seed) {
    for (magnitudes = 1; magnitudes >= 0; magnitudes--) {
        for (int i = 0; i < t->count; i++) {       /* what was walked before goes to m, pm */
            ref *r = t->nodes + i;
            double *swap = r->g;
            r->g = r->m;
            r->m = swap;
            r->is_reached = i == target;
            memset(r->g, 0, (size_t)size_of(t, r) * sizeof *r->g);
            for (int k = 0; r->p[0] && k < 2; k++) {
                swap = r->pg[k];
                r->pg[k] = r->pm[k];
                r->pm[k] = swap;
                memset(r->pg[k], 0, (size_t)r->p[k]->size * sizeof(double));
            }
        }
        for (int i = 0; i < t->n; i++) t->nodes[target].g[i] = seed;
        for (int i = target; i >= 0; i--) {
            ref *r = t->nodes + i;
            if (!r->is_reached) continue;
            ref_backward(t, r);
            if (r->kind != LEAF) t->nodes[r->in[0]].is_reached = 1;
            if ((r->kind >= ADD && r->kind <= MUL) ||
                (r->kind >= SPREAD_ADD && r->kind <= SPREAD_MUL))
                t->nodes[r->in[1]].is_reached = 1;
        }
    }
    magnitudes = 0;
}
/* Off by how much, relative to the largest sum of magnitudes. */
static double off(const float *a, const double *g, const double *m, int n) {
    double worst = 0;
    double largest = 1e-30;
    for (int i = 0; i < n; i++) {
        const double d = fabs((double)a[i] - g[i]);
        if (!(d <= worst) && worst == worst) worst = d;
        if (m[i] > largest) largest = m[i];
    }
    return worst / largest;
}

/* The same question must have the same bits for an answer, whatever was asked before. */
typedef struct answers { uint64_t read[MOST], grad[MOST][LEAVES], backward[MOST]; } answers;

static void same_answer(uint64_t *seen, uint64_t h, const char *what, int seed) {
    CHECK(*seen == 0 || *seen == h, "tape %d: another %s than before", seed, what);
    *seen = h;
}

static void ask_read(tape *t, answers *seen, int i, int seed) {
    const ref *r = t->nodes + i;
    float *x = floats(size_of(t, r));
    CHECK(jem_read(r->t, x) == JEM_OK, "%s", jem_error(t->ctx));
    double d = 0;
    for (int k = 0; k < size_of(t, r); k++) d = most_of(d, fabs((double)x[k] - r->v[k]));
    CHECK(d < 1e-5 * r->scale, "tape %d, node %d of kind %d: value off by %g", seed, i, r->kind, d);
    same_answer(&seen->read[i], fnv(FNV_START, x, size_of(t, r)), "value", seed);
    free(x);
}
static void ask_grad(tape *t, answers *seen, int target, int leaf, int seed) {
    const ref *r = t->nodes + leaf;
    ref_walk(t, target, 1);
    const jem_status s = jem_grad(t->nodes[target].t, r->t);
    if (!r->is_reached) {
        CHECK(s == JEM_BAD_ARGUMENT && says(t->ctx, "does not depend"), "tape %d: no path", seed);
        return;
    }
    float *g = floats(size_of(t, r));
    CHECK(s == JEM_OK && jem_read_grad(r->t, g) == JEM_OK, "%s", jem_error(t->ctx));
    const double d = off(g, r->g, r->m, size_of(t, r));
    const double bound = 3e-6 * t->nodes[target].scale;
    CHECK(d < bound, "tape %d: d node %d / d leaf %d off by %g", seed, target, leaf, d);
    same_answer(&seen->grad[target][leaf], fnv(FNV_START, g, size_of(t, r)), "gradient", seed);
    free(g);
}
static void ask_backward(tape *t, answers *seen, int target, int seed) {
    int trains = 0;
    uint64_t h = FNV_START;
    ref_walk(t, target, 1.0 / t->n);
    for (int i = 0; i <= target; i++) trains += t->nodes[i].is_reached && t->nodes[i].p[0];
    jem_zero_grad(t->bag);
    const jem_status s = jem_backward(jem_mean(t->ctx, t->nodes[target].t));
    if (!trains) {
        CHECK(s == JEM_BAD_ARGUMENT && says(t->ctx, "no parameter"), "tape %d: no path", seed);
        return;
    }
    CHECK(s == JEM_OK, "%s", jem_error(t->ctx));
    for (int i = 0; i < t->count; i++)
        for (int k = 0; k < 2; k++) {
            const ref *r = t->nodes + i;
            if (!r->p[0]) continue;
            const double d = off(r->p[k]->grad, r->pg[k], r->pm[k], (int)r->p[k]->size);
            const double bound = 3e-6 * t->nodes[target].scale;
            CHECK(d < bound, "tape %d: d node %d / d parameter %d of node %d of kind %d off by %g",
                  seed, target, k, i, r->kind, d);
            h = fnv(h, r->p[k]->grad, r->p[k]->size);
        }
    same_answer(&seen->backward[target], h, "parameter gradient", seed);
}
/* Nodes of an inner part, and old nodes that are computed in it, which must outlive it. */
static void ask_within(tape *t, answers *seen, int i, int seed, int depth) {
    jem_mark mark = jem_begin(t->ctx);
    jem_tensor *more = jem_tanh(t->ctx, jem_scale(t->ctx, t->nodes[i].t, 0.5f));
    float *x = floats(size_of(t, t->nodes + i));
    CHECK(jem_read(more, x) == JEM_OK, "%s", jem_error(t->ctx));
    free(x);
    if (depth) ask_within(t, seen, pick(t, t->count), seed, depth - 1);
    ask_read(t, seen, i, seed);
    ask_grad(t, seen, t->count - 1, pick(t, LEAVES), seed);
    jem_end(t->ctx, mark);
}

/* ---- random networks: what a plan fuses and shares ------------------------------------------- */

enum { MIX_WIDTH = 10, MIX_SIDE = 4, MIX_MOST = 20, MIX_FLOATS = 3 * MIX_SIDE * MIX_SIDE };

typedef struct mix {
    jem_layer conv[4], norm[2], batch;
} mix;

/* Random layers, each of one or two before it: residual blocks of every kind, and detached ends. A
   sum is often activated, and the sum itself read again. */
static jem_tensor *mix_make(jem_ctx *ctx, jem_tensor *x, mix *m, jem_rng *rng, int layers) {
    jem_tensor *t[16] = { jem_silu(ctx, jem_apply(&m->conv[0], x, 1)) };
    jem_tensor *sum = NULL;
    int read[16] = { 0 };
    int added = 0;
    for (int n = 1; n <= layers; n++) {
        const int act = added && jem_rng_below(rng, 2);
        const int last = act || jem_rng_below(rng, 3) > 0;
        const int a = last ? n - 1 : jem_rng_below(rng, n);
        const int near = jem_rng_below(rng, 2);
        const int b = near && n > 2 ? n - 2 : jem_rng_below(rng, n);
        const int what = act ? 6 + jem_rng_below(rng, 2) : jem_rng_below(rng, 11);
        added = what == 1 || what == 2;
        jem_tensor *conv = what < 4 ? jem_apply(&m->conv[1 + what % 3], t[a], 1) : NULL;
        read[a]++;
        read[b] += what == 1 || what == 2 || what == 4 || what == 5;
        switch (what) {
        case 0: case 3: t[n] = conv; break;
        case 1: t[n] = jem_add(ctx, t[b], conv); break;
        case 2: t[n] = jem_add(ctx, conv, t[b]); break;
        case 4: t[n] = jem_add(ctx, t[a], t[b]); break;
        case 5: t[n] = jem_sub(ctx, t[a], t[b]); break;
        case 6: t[n] = jem_silu(ctx, t[a]); break;
        case 7: t[n] = jem_leaky_relu(ctx, t[a], 0.1f); break;
        case 8: t[n] = jem_apply(&m->norm[n % 2], t[a], 1); break;
        case 9: t[n] = jem_apply(&m->batch, t[a], 1); break;
        default: t[n] = jem_detach(ctx, jem_tanh(ctx, t[a]));
        }
    }
    for (int i = 0; i <= layers; i++) {
        jem_tensor *end = read[i] && i ? NULL : jem_sum_image(ctx, jem_tanh(ctx, t[i]));
        if (end) sum = sum ? jem_add(ctx, sum, end) : end;
    }
    return sum;
}

/* What a random network says: values, d/dx, and the parameters' gradients. -> how many numbers */
static int mix_ask(const jem_ctx_desc *d, uint64_t seed, float *out) {
    jem_ctx *ctx = jem_ctx_create(d);
    jem_net *net = jem_net_create(ctx, NULL, NULL, 0, 3, MIX_SIDE, MIX_SIDE, 2, 1);
    jem_rng rng = jem_rng_seed(seed);
    mix m;
    float x[MIX_MOST * MIX_FLOATS];
    const int n = seed % 3 ? 5 : MIX_MOST;
    static const char *const names[4] = { "a", "b", "c", "d" };
    for (int i = 0; i < 4; i++)
        m.conv[i] = jem_conv_layer(net, names[i], i ? MIX_WIDTH : 3, MIX_WIDTH, i == 2 ? 1 : 3, 1,
                                   i != 2);
    m.norm[0] = jem_norm_layer(net, "e", JEM_NORM_INSTANCE, MIX_WIDTH);
    m.norm[1] = jem_norm_layer(net, "f", JEM_NORM_LAYER, MIX_WIDTH);
    m.batch = jem_norm_layer(net, "g", JEM_NORM_BATCH, MIX_WIDTH);
    jem_fill_normal(ctx, &rng, x, n * MIX_FLOATS, 0, 1);
    jem_tensor *leaf = jem_input(ctx, x, n, 3, MIX_SIDE, MIX_SIDE);
    jem_tensor *y = mix_make(ctx, leaf, &m, &rng, 2 + (int)(seed % 10));
    float *at = out;
    CHECK(jem_grad(y, leaf) == JEM_OK && jem_read(y, at) == JEM_OK, "%s", jem_error(ctx));
    jem_read_grad(leaf, at + n);
    at += n + n * MIX_FLOATS;
    CHECK(jem_backward(jem_mean(ctx, y)) == JEM_OK, "%s", jem_error(ctx));
    for (jem_param *p = net->params; p; p = p->next)
        for (int i = 0; p->grad && i < p->size; i++) *at++ = p->grad[i];
    jem_net_free(net);
    jem_ctx_free(ctx);
    return (int)(at - out);
}

/* Returns an instruction set with bf16, also if fp32 is faster, and is what JEM_ISA_BEST uses. */
static jem_isa isa_of_bf16(void) {
    const int amx = jem_isa_available(JEM_ISA_AMX);
    return !amx && jem_isa_available(JEM_ISA_AVX512_BF16) ? JEM_ISA_AVX512_BF16 : JEM_ISA_BEST;
}

static void test_mixes(void) {
    printf("random networks: planned as plain, bit for bit\n");
    static float want[8192], got[8192];
    static const jem_precision precisions[] = { JEM_PRECISION_EXACT, JEM_PRECISION_FAST,
                                                JEM_PRECISION_DIRECT, JEM_PRECISION_BF16 };
    for (uint64_t seed = 0; seed < 240; seed++) {
        jem_ctx_desc d;
        memset(&d, 0, sizeof d);
        d.precision = precisions[seed % 4];
        if (d.precision == JEM_PRECISION_BF16) d.isa = isa_of_bf16();
        d.plain_tape = d.threads = 1;
        const int n = mix_ask(&d, seed, want);
        for (int threads = 1; threads < 4; threads += 2) {
            d.plain_tape = 0;
            d.threads = threads;
            memset(got, 0, sizeof got);
            CHECK(mix_ask(&d, seed, got) == n && same_bits(got, want, n), "network %d, %d threads",
                  (int)seed, threads);
        }
    }
}

/* s = h + conv(h) and its activation are one step with the convolution, which reads h to its end; s
   is read by others, too, and must not lie where h does. */
enum { SUM_CHANNELS = 16, SUM_SIDE = 8, SUM_FLOATS = 3 * SUM_CHANNELS * SUM_SIDE * SUM_SIDE };
static void sum_ask(const jem_ctx_desc *d, int way, float *out) {
    jem_ctx *ctx = jem_ctx_create(d);
    jem_net *net = jem_net_create(ctx, NULL, NULL, 0, SUM_CHANNELS, SUM_SIDE, SUM_SIDE, 2, 1);
    const jem_layer a = jem_conv_layer(net, "a", SUM_CHANNELS, SUM_CHANNELS, 3, 1, 1),
                    b = jem_conv_layer(net, "b", SUM_CHANNELS, SUM_CHANNELS, 3, 1, 1);
    jem_rng rng = jem_rng_seed(1);
    float *x = random_floats(&rng, SUM_FLOATS, -1, 1);
    jem_tensor *leaf = jem_input(ctx, x, 3, SUM_CHANNELS, SUM_SIDE, SUM_SIDE);
    jem_tensor *h = jem_apply(&b, leaf, 0);
    if (way == 1) h = jem_max_pool(ctx, jem_upsample(ctx, h, 2), 2, 0);
    if (way == 2) h = jem_leaky_relu(ctx, h, 0.1f);
    jem_tensor *s = jem_add(ctx, h, jem_apply(&a, h, 0));
    jem_tensor *act = way == 1 ? jem_leaky_relu(ctx, s, 0.2f) : jem_silu(ctx, s);
    jem_tensor *y = jem_sum_image(ctx, jem_tanh(ctx, jem_add(ctx, s, jem_apply(&b, act, 0))));
    CHECK(jem_read(y, out) == JEM_OK && jem_grad(y, leaf) == JEM_OK &&
          jem_read_grad(leaf, out + 3) == JEM_OK, "%s", jem_error(ctx));
    free(x);
    jem_net_free(net);
    jem_ctx_free(ctx);
}
static void test_sums_read(void) {
    printf("a sum between a convolution and an activation, read by others too\n");
    static float want[3 + SUM_FLOATS], got[3 + SUM_FLOATS];
    static const jem_precision precisions[] = { JEM_PRECISION_EXACT, JEM_PRECISION_FAST,
                                                JEM_PRECISION_DIRECT, JEM_PRECISION_BF16 };
    for (int k = 0; k < 12; k++) {
        jem_ctx_desc d;
        memset(&d, 0, sizeof d);
        d.precision = precisions[k / 3];
        if (d.precision == JEM_PRECISION_BF16) d.isa = isa_of_bf16();
        d.plain_tape = d.threads = 1;
        sum_ask(&d, k % 3, want);
        d.plain_tape = 0;
        sum_ask(&d, k % 3, got);
        CHECK(same_bits(got, want, 3 + SUM_FLOATS), "precision %d, way %d", k / 3, k % 3);
    }
}

/* One number goes on as a batch of one: 15 lanes are dead, and must not disturb. */
static void test_one_number(jem_ctx *ctx) {
    const float x[8] = { 1, 2, 3, 4, 5, 6, 7, 8 };
    const int shape[2] = { 1, 1 };
    jem_net *net = bag_create(ctx);
    jem_param *w = jem_net_param(net, "w", 2, shape, 1);
    w->value[0] = 2;
    const jem_mark mark = jem_begin(ctx);
    jem_tensor *mean = jem_mean(ctx, jem_input(ctx, x, 8, 1, 1, 1));
    CHECK(jem_backward(jem_log(ctx, jem_linear(ctx, mean, w, NULL))) == JEM_OK, "%s",
          jem_error(ctx));
    CHECK_CLOSE(w->grad[0], 0.5, 1e-6, "d log(w mean) / dw");
    jem_end(ctx, mark);
    jem_net_free(net);
}

/* Every question is asked of the planned tape and of the plain one. */
static void test_tapes(jem_ctx *planned, jem_ctx *plain) {
    printf("random tapes: values and gradients, in any order, against double; planned as plain\n");
    answers seen;
    for (int run = 0; run < 3000; run++) {
        const int seed = run / 2;
        tape tape_, *t = &tape_;
        if (run % 2 == 0) memset(&seen, 0, sizeof seen);
        tape_make(t, run % 2 ? plain : planned, seed);
        for (int i = 0; i < 12; i++) {
            int target = t->count - 1;
            if (pick(t, 3) == 0) target = find(t, -1, 1);
            const int any = pick(t, t->count);
            const int leaf = pick(t, LEAVES);
            switch (pick(t, 7)) {
            case 0: ask_read(t, &seen, any, seed); break;
            case 1: ask_grad(t, &seen, target, leaf, seed); break;
            case 2: ask_backward(t, &seen, target, seed); break;
            case 3: ask_within(t, &seen, any, seed, pick(t, 3)); break;
            case 4: jem_keep(t->nodes[any].t); break;
            case 5: ask_grad(t, &seen, target, leaf, seed); break;
            default: {                             /* the same numbers, but the tape cannot know */
                float *x = floats(size_of(t, t->nodes + leaf));
                jem_read(t->nodes[leaf].t, x);
                jem_write(t->nodes[leaf].t, x);
                free(x);
            }
            }
        }
        for (int i = 0; i < t->count; i++) ask_read(t, &seen, t->count - 1 - i, seed);
        tape_free(t);
    }
    CHECK(jem_ok(planned) && jem_ok(plain), "%s%s", jem_error(planned), jem_error(plain));
}

/* Use of a tensor that jem_end has freed is detected, whatever the use. */
static void test_forgotten(jem_ctx *ctx) {
    printf("tensors used too late\n");
    const float one[1] = { 1 };
    float out[1];
    jem_tensor *leaf = jem_input(ctx, one, 1, 1, 1, 1);
    for (int how = 0; how < 9; how++) {
        jem_mark mark = jem_begin(ctx);
        jem_tensor *x = jem_input(ctx, one, 1, 1, 1, 1);
        jem_tensor *y = jem_exp(ctx, x);
        CHECK(jem_item(y) > 2 && jem_grad(y, x) == JEM_OK, "%s", jem_error(ctx));
        if (how < 8) jem_end(ctx, mark);
        else jem_reset(ctx);
        switch (how) {
        case 0: CHECK(jem_read(y, out) == JEM_BAD_ARGUMENT, "read"); break;
        case 1: CHECK(jem_item(y) != jem_item(y), "item"); break;
        case 2: CHECK(jem_write(x, one) == JEM_BAD_ARGUMENT, "write"); break;
        case 3: CHECK(!jem_add(ctx, leaf, y), "an input"); break;
        case 4: CHECK(jem_backward(y) == JEM_BAD_ARGUMENT, "backward"); break;
        case 5: CHECK(jem_grad(y, leaf) == JEM_BAD_ARGUMENT, "grad of it"); break;
        case 6: CHECK(jem_grad(leaf, x) == JEM_BAD_ARGUMENT, "grad in it"); break;
        case 7: CHECK(jem_read_grad(x, out) == JEM_BAD_ARGUMENT, "read_grad"); break;
        default:
            jem_keep(y);
            CHECK(!jem_tanh(ctx, x), "after a reset");
        }
        CHECK(says(ctx, "has freed this tensor (1,1,1,1)"), "use %d", how);
    }
    jem_end(NULL, jem_begin(NULL));
    jem_reset(NULL);

    static const float big[30000];                 /* jem_reset, or another pair, between a pair */
    for (int how = 0; how < 2; how++) {
        const jem_mark outer = jem_begin(ctx);
        for (int i = 0; i < 4; i++) jem_input(ctx, one, 1, 1, 1, 1);
        const jem_mark inner = jem_begin(ctx);
        if (how) jem_end(ctx, outer); else jem_reset(ctx);
        for (int i = 0; i < 3; i++) jem_input(ctx, big, 1, 3, 100, 100);
        jem_tensor *x = jem_input(ctx, one, 1, 1, 1, 1);
        jem_tensor *y = jem_scale(ctx, x, 2);
        jem_end(ctx, inner);
        CHECK(jem_read(x, out) == JEM_BAD_ARGUMENT && says(ctx, "has freed"), "pairs, %d", how);
        CHECK(jem_read(y, out) == JEM_BAD_ARGUMENT && says(ctx, "has freed"), "pairs, %d", how);
        jem_reset(ctx);
    }
}

/* ---- marks, writing, memory ------------------------------------------------------------------ */

/* Checks that one tape, asked again and again, does not use up memory. */
static void check_asking(jem_ctx *ctx) {
    const float values[6] = { 0.1f, -0.2f, 0.3f, -0.4f, 0.5f, -0.6f };
    float again[6];
    jem_tensor *leaf = NULL;
    jem_tensor *a = NULL;
    const size_t held = jem_memory(ctx).bytes;
    const size_t calls = jem_memory(ctx).allocations;
    for (int i = 0; i < 20000; i++) {
        if (i % 1000 == 0) {
            jem_reset(ctx);
            leaf = jem_zeros(ctx, 2, 3, 1, 1);
            a = jem_exp(ctx, leaf);
        }
        jem_write(leaf, values);
        jem_read(a, again);
    }
    CHECK(jem_memory(ctx).bytes == held && jem_memory(ctx).allocations == calls &&
          jem_memory(ctx).peak >= held, "asking does not use up memory");
}

static void test_marks(jem_ctx *ctx) {
    printf("marks: what is older outlives them, in the same bits; writing\n");
    jem_rng rng = jem_rng_seed(7);
    enum { N = 17 * 150 };
    const jem_shape s = { 17, 6, 5, 5 };
    float first[N];
    float again[N];
    float data[N];
    float *x = random_floats(&rng, N, -1, 1);
    jem_tensor *leaf = jem_input(ctx, x, s.n, s.c, s.h, s.w);
    jem_tensor *a = jem_tanh(ctx, jem_scale(ctx, leaf, 2));
    jem_tensor *b = jem_mul(ctx, a, leaf);
    jem_tensor *sum = jem_sum_image(ctx, b);
    jem_read(b, first);
    for (int round = 0; round < 3; round++) {      /* more than a chunk of the arena, twice deep */
        jem_mark outer = jem_begin(ctx);
        jem_tensor *big = jem_zeros(ctx, 1, 1, 300, 1000 << round);
        jem_read(jem_add(ctx, b, leaf), again);
        jem_mark inner = jem_begin(ctx);
        CHECK(jem_item(jem_sum(ctx, jem_add_constant(ctx, big, 1))) == (float)(300000 << round),
              "a sum");
        CHECK(jem_grad(sum, leaf) == JEM_OK && jem_read_grad(leaf, data) == JEM_OK, "in the inner");
        jem_end(ctx, inner);
        CHECK(jem_read_grad(leaf, data) == JEM_BAD_ARGUMENT && says(ctx, "jem_grad first"),
              "a gradient ends with the mark it was made in");
        CHECK(jem_read(b, again) == JEM_OK && same_bits(first, again, N), "in the outer mark");
        jem_keep(a);
        jem_end(ctx, outer);
        CHECK(jem_read(b, again) == JEM_OK && same_bits(first, again, N), "after the outer mark");
        CHECK(jem_read(a, data) == JEM_OK, "%s", jem_error(ctx));
        for (int i = 0; i < N; i++) data[i] *= x[i];
        CHECK(same_bits(first, data, N), "a kept value");
    }
    for (int i = 0; i < N; i++) data[i] = -x[i];
    CHECK(jem_write(leaf, data) == JEM_OK && jem_read(b, again) == JEM_OK, "%s", jem_error(ctx));
    int bad = 0;
    for (int i = 0; i < N; i++) bad += fabsf(again[i] - first[i]) > 1e-6f;     /* b is even */
    CHECK(bad == 0 && !same_bits(x, data, N), "what is written is computed with");
    CHECK(jem_read(a, again) == JEM_OK, "%s", jem_error(ctx));
    for (int i = 0; i < N; i++) bad += !(again[i] * data[i] >= 0);
    CHECK(bad == 0, "a kept value is computed again");
    CHECK(jem_write(a, data) == JEM_BAD_ARGUMENT && says(ctx, "not a leaf"), "only leaves");
    free(x);
    jem_reset(ctx);

    check_asking(ctx);
    jem_reset(ctx);
}

/* ---- errors ---------------------------------------------------------------------------------- */

#define REFUSED(expression, kept, op, shape)                                                       \
    do {                                                                                           \
        const void *result = (expression);                                                         \
        CHECK(!result && jem_error_status(ctx) == kept && strstr(jem_error(ctx), op) &&            \
              strstr(jem_error(ctx), shape), #expression " says '%s'", jem_error(ctx));            \
        jem_clear_error(ctx);                                                                      \
    } while (0)

static char logged[512];
static void log_message(void *user, const char *message) {
    (void)user;
    snprintf(logged, sizeof logged, "%s", message);
}

/* Every op of one input, for what all of them do with NULL and while an error is kept. */
static void all_ops(jem_ctx *ctx, jem_net *bag, jem_tensor *x, int *made) {
    const jem_conv_desc d = { 1, 1 };
    static const int labels[17] = { 0 };
    jem_param *w = jem_net_find(bag, "p0");
    jem_param *b = jem_net_find(bag, "p1");
    jem_param *v = jem_net_find(bag, "p2");
    jem_param *one = jem_net_find(bag, "p3");
    jem_rng rng = jem_rng_seed(1);
    const jem_tensor *const results[] = {
        jem_conv2d(ctx, x, w, b, d), jem_linear(ctx, x, v, b), jem_add(ctx, x, x),
        jem_sub(ctx, x, x), jem_mul(ctx, x, x), jem_scale(ctx, x, 2), jem_add_constant(ctx, x, 2),
        jem_clamp(ctx, x, -1, 1), jem_leaky_relu(ctx, x, 0.1f), jem_dropout(ctx, x, 0.1f, &rng),
        jem_avg_pool(ctx, x, 1, 1), jem_global_pool(ctx, x), jem_flatten(ctx, x),
        jem_slice(ctx, x, 0, 1), jem_logsumexp(ctx, x), jem_log_softmax(ctx, x),
        jem_gather(ctx, x, labels), jem_sum_image(ctx, x), jem_mean(ctx, x), jem_sum(ctx, x),
        jem_instance_norm(ctx, x, b, b), jem_layer_norm(ctx, x, b, b),
        jem_batch_norm(ctx, x, b, b, b, b, 0.1f, 1), jem_act_norm(ctx, x, b, b, one, 1),
        jem_activate(ctx, x, JEM_ACTIVATION_SILU, 0), jem_cross_entropy(ctx, x, labels),
        jem_contrastive(ctx, x, x)
    };
    *made = 0;
    const int n = (int)(sizeof results / sizeof results[0]);
    for (int i = 0; i < n; i++) *made += results[i] != NULL;
    for (int i = 0; i < ELEMENTWISE; i++) *made += elementwise[i].op(ctx, x) != NULL;
    if (*made) CHECK(*made == n + ELEMENTWISE, "%s", jem_error(ctx));
}

/* A context, a bag of parameters, and tensors of several shapes, for the tests of errors. */
typedef struct fixture {
    counter count;
    jem_ctx *ctx;
    jem_rng rng;
    jem_net *bag;
    jem_param *w, *b, *v, *one, *even;
    jem_tensor *x, *y, *z, *flat, *per;
} fixture;

static void fixture_open(fixture *f) {
    f->ctx = open_ctx(&f->count);
    f->rng = jem_rng_seed(8);
    f->bag = bag_create(f->ctx);
    f->w = random_param(f->bag, &f->rng, 1, 4, 3, 3, 3, -1, 1);
    f->b = random_param(f->bag, &f->rng, 1, 1, 3, 1, 1, -1, 1);
    f->v = random_param(f->bag, &f->rng, 1, 2, 3, 3, 1, -1, 1);
    f->one = random_param(f->bag, &f->rng, 0, 1, 1, 1, 1, 0, 0);
    f->even = random_param(f->bag, &f->rng, 1, 4, 3, 2, 3, -1, 1);
    f->x = random_leaf(f->ctx, &f->rng, shapes[2], -1, 1);
    f->y = jem_zeros(f->ctx, 2, 3, 4, 5);
    f->z = jem_zeros(f->ctx, 2, 3, 5, 4);
    f->flat = jem_zeros(f->ctx, 17, 3, 1, 1);
    f->per = jem_zeros(f->ctx, 2, 1, 1, 1);
}
static void fixture_close(fixture *f, const char *what) {
    jem_net_free(f->bag);
    close_ctx(f->ctx, &f->count, what);
}

static void test_errors(void) {
    printf("errors: names, shapes, the first one is kept, NULL goes through\n");
    fixture f;
    fixture_open(&f);
    jem_ctx *ctx = f.ctx;
    const jem_conv_desc d0 = { 0, 0 };
    const jem_conv_desc d1 = { 1, 1 };
    const jem_conv_desc far = { 65, 0 };
    const jem_conv_desc out = { 1, -1 };
    jem_param *w = f.w;
    jem_param *b = f.b;
    jem_param *v = f.v;
    jem_param *one = f.one;
    jem_tensor *x = f.x;
    jem_tensor *y = f.y;
    jem_tensor *z = f.z;
    jem_tensor *flat = f.flat;
    jem_tensor *per = f.per;
    int made;

    all_ops(ctx, f.bag, flat, &made);
    CHECK(made > 30, "all ops, where all is well: %d", made);
    all_ops(ctx, f.bag, NULL, &made);
    CHECK(made == 0 && jem_ok(ctx), "NULL in, NULL out, and no other error: %s", jem_error(ctx));
    jem_fail(ctx, JEM_BAD_FILE, "mine");
    all_ops(ctx, f.bag, flat, &made);
    REFUSED(jem_conv2d(ctx, y, v, NULL, d0), JEM_BAD_FILE, "mine", "");
    CHECK(made == 0, "while an error is kept");

    REFUSED(jem_conv2d(ctx, y, NULL, NULL, d0), JEM_BAD_SHAPE, "conv2d", "(2,3,4,5)");
    REFUSED(jem_conv2d(ctx, y, v, NULL, d0), JEM_BAD_SHAPE, "conv2d", "(3,3)");
    REFUSED(jem_conv2d(ctx, y, f.even, NULL, d0), JEM_BAD_SHAPE, "conv2d", "(3,2,3,3)");
    REFUSED(jem_conv2d(ctx, y, w, one, d0), JEM_BAD_SHAPE, "conv2d", "(2,3,4,5)");
    REFUSED(jem_conv2d(ctx, y, w, b, far), JEM_BAD_SHAPE, "conv2d", "65");
    REFUSED(jem_conv2d(ctx, y, w, b, out), JEM_BAD_SHAPE, "conv2d", "-1");
    REFUSED(jem_conv2d(ctx, flat, w, b, d0), JEM_BAD_SHAPE, "conv2d", "(17,3,1,1)");
    CHECK(jem_conv2d(ctx, flat, w, b, d1) && jem_ok(ctx), "with padding it fits");
    REFUSED(jem_linear(ctx, y, v, b), JEM_BAD_SHAPE, "linear", "(2,3,4,5)");
    REFUSED(jem_linear(ctx, x, v, b), JEM_BAD_SHAPE, "linear", "(17,10,1,1)");
    REFUSED(jem_linear(ctx, flat, w, b), JEM_BAD_SHAPE, "linear", "(3,3,3,3)");
    REFUSED(jem_linear(ctx, flat, v, one), JEM_BAD_SHAPE, "linear", "(1)");
    REFUSED(jem_linear(ctx, flat, NULL, b), JEM_BAD_SHAPE, "linear", "(17,3,1,1)");
    REFUSED(jem_add(ctx, y, z), JEM_BAD_SHAPE, "add: (2,3,4,5)", "(2,3,5,4)");
    REFUSED(jem_sub(ctx, per, y), JEM_BAD_SHAPE, "sub: (2,1,1,1)", "(2,3,4,5)");
    REFUSED(jem_mul(ctx, x, flat), JEM_BAD_SHAPE, "mul: (17,10,1,1)", "(17,3,1,1)");
    CHECK(jem_mul(ctx, y, per) && jem_ok(ctx), "a number per image is spread");
    fixture_close(&f, "errors");
}

static void test_more_errors(void) {
    printf("errors of ops with numbers, labels or statistics\n");
    fixture f;
    fixture_open(&f);
    jem_ctx *ctx = f.ctx;
    jem_param *b = f.b;
    jem_param *one = f.one;
    jem_tensor *x = f.x;
    jem_tensor *y = f.y;
    REFUSED(jem_dropout(ctx, y, 1, &f.rng), JEM_BAD_ARGUMENT, "dropout", "1");
    REFUSED(jem_dropout(ctx, y, -0.1f, &f.rng), JEM_BAD_ARGUMENT, "dropout", "-0.1");
    REFUSED(jem_dropout(ctx, y, 0.1f, NULL), JEM_BAD_ARGUMENT, "dropout", "rng");
    REFUSED(jem_clamp(ctx, y, 1, 0.5f), JEM_BAD_ARGUMENT, "clamp", "lo = 1");
    REFUSED(jem_clamp(ctx, y, 0, NAN), JEM_BAD_ARGUMENT, "clamp", "is not a number");
    REFUSED(jem_avg_pool(ctx, y, 5, 1), JEM_BAD_SHAPE, "avg_pool", "(2,3,4,5)");
    REFUSED(jem_avg_pool(ctx, y, 0, 1), JEM_BAD_SHAPE, "avg_pool", "(2,3,4,5)");
    REFUSED(jem_avg_pool(ctx, y, 2, -1), JEM_BAD_SHAPE, "avg_pool", "-1");
    REFUSED(jem_slice(ctx, y, 1, 3), JEM_BAD_SHAPE, "slice", "(2,3,4,5)");
    REFUSED(jem_slice(ctx, y, -1, 1), JEM_BAD_SHAPE, "slice", "(2,3,4,5)");
    REFUSED(jem_slice(ctx, y, 1, 2147483647), JEM_BAD_SHAPE, "slice", "2147483647");
    REFUSED(jem_logsumexp(ctx, y), JEM_BAD_SHAPE, "logsumexp", "(2,3,4,5)");
    REFUSED(jem_log_softmax(ctx, y), JEM_BAD_SHAPE, "logsumexp", "(2,3,4,5)");
    REFUSED(jem_log_softmax(ctx, jem_slice(ctx, y, 0, 1)), JEM_BAD_SHAPE, "log", "(2,1,4,5)");
    const int labels[17] = { 0, 9, 10 };
    const int negative[17] = { -1 };
    REFUSED(jem_gather(ctx, y, labels), JEM_BAD_SHAPE, "gather", "(2,3,4,5)");
    REFUSED(jem_gather(ctx, x, NULL), JEM_BAD_ARGUMENT, "gather", "labels");
    REFUSED(jem_gather(ctx, x, labels), JEM_BAD_ARGUMENT, "gather: label 10 of image 2", "0..9");
    REFUSED(jem_cross_entropy(ctx, x, negative), JEM_BAD_ARGUMENT, "label -1", "0..9");
    REFUSED(jem_instance_norm(ctx, x, b, b), JEM_BAD_SHAPE, "instance_norm", "(17,10,1,1)");
    REFUSED(jem_layer_norm(ctx, y, b, NULL), JEM_BAD_SHAPE, "layer_norm", "NULL");
    REFUSED(jem_batch_norm(ctx, y, b, b, b, one, 0.1f, 1), JEM_BAD_SHAPE, "batch_norm", "(1)");
    REFUSED(jem_act_norm(ctx, y, b, b, b, 1), JEM_BAD_SHAPE, "act_norm", "(2,3,4,5)");
    REFUSED(jem_input(ctx, NULL, 1, 1, 1, 1), JEM_BAD_ARGUMENT, "input", "");
    REFUSED(jem_zeros(ctx, 1, 0, 1, 1), JEM_BAD_SHAPE, "zeros", "(1,0,1,1)");
    REFUSED(jem_zeros(ctx, 1, 1 << 20, 1 << 20, 1), JEM_BAD_SHAPE, "zeros", "1048576");
    fixture_close(&f, "errors of ops");
}

/* Checks a tensor of another context, and one that a mark has freed there. */
static void check_other_context(jem_ctx *ctx, jem_tensor *y, jem_tensor *per) {
    counter count2;
    jem_ctx *other = open_ctx(&count2);
    REFUSED(jem_add(ctx, y, jem_zeros(other, 2, 3, 4, 5)), JEM_BAD_ARGUMENT, "add", "another");
    REFUSED(jem_add_constant(ctx, jem_zeros(other, 1, 1, 1, 1), 1), JEM_BAD_ARGUMENT,
            "add_constant: a tensor", "another");
    REFUSED(jem_clamp(ctx, jem_zeros(other, 1, 1, 1, 1), 0, 1), JEM_BAD_ARGUMENT,
            "clamp: a tensor", "another");
    jem_clear_error(ctx);
    jem_tensor *theirs = jem_zeros(other, 2, 3, 4, 5);
    CHECK(jem_grad(per, theirs) == JEM_BAD_ARGUMENT && says(ctx, "grad: x is a tensor of another"),
          "a leaf of another context");
    jem_clear_error(ctx);
    jem_mark mark = jem_begin(other);
    jem_tensor *late = jem_zeros(other, 1, 1, 1, 1);
    jem_end(other, mark);
    CHECK(jem_grad(per, late) == JEM_BAD_ARGUMENT && says(other, "has freed"),
          "another's, too late");
    REFUSED(jem_add(ctx, y, theirs), JEM_BAD_ARGUMENT, "add", "another");    /* in its error, too */
    jem_clear_error(ctx);
    jem_clear_error(other);
    jem_end(other, jem_begin(ctx));
    CHECK(says(other, "end: a mark of another context"), "another's mark: %s", jem_error(other));
    jem_clear_error(other);
    float values[2 * 3 * 4 * 5];
    CHECK(jem_zeros(other, 2, 3, 4, 5) && jem_read(theirs, values) == JEM_OK,
          "frees nothing: %s", jem_error(other));
    close_ctx(other, &count2, "another context");
}

static void test_gradient_errors(void) {
    printf("errors of gradients and reading\n");
    fixture f;
    fixture_open(&f);
    jem_ctx *ctx = f.ctx;
    jem_tensor *x = f.x;
    jem_tensor *y = f.y;
    jem_tensor *per = f.per;
    float number[17 * 10];
    CHECK(isnan(jem_item(y)) && says(ctx, "(2,3,4,5)"), "item of many");
    CHECK(isnan(jem_item(NULL)) && jem_ok(ctx), "item of NULL");
    CHECK(jem_read_grad(jem_exp(ctx, x), number) == JEM_BAD_ARGUMENT &&
          says(ctx, "is computed (by exp), not a leaf"), "the gradient of a computed tensor");
    jem_clear_error(ctx);
    CHECK(jem_backward(y) == JEM_BAD_SHAPE && says(ctx, "(2,3,4,5)"), "backward of many");
    CHECK(jem_backward(NULL) == JEM_BAD_ARGUMENT && jem_ok(ctx), "backward of NULL");
    CHECK(jem_backward(jem_sum(ctx, y)) == JEM_BAD_ARGUMENT && says(ctx, "no parameter"), "none");
    CHECK(jem_grad(y, y) == JEM_BAD_SHAPE && says(ctx, "one number per image"), "grad of many");
    CHECK(jem_grad(jem_sum(ctx, y), jem_exp(ctx, y)) == JEM_BAD_ARGUMENT &&
          says(ctx, "grad: (2,3,4,5) is computed (by exp), not a leaf"), "op");
    CHECK(jem_grad(jem_sum(ctx, y), f.z) == JEM_BAD_ARGUMENT && says(ctx, "depend"),
          "another leaf");
    CHECK(jem_grad(NULL, y) == JEM_BAD_ARGUMENT && jem_ok(ctx), "grad of NULL");
    CHECK(jem_read_grad(x, number) == JEM_BAD_ARGUMENT && says(ctx, "jem_grad first"), "no grad");
    CHECK(jem_read(NULL, number) == JEM_BAD_ARGUMENT && jem_write(NULL, number) == JEM_BAD_ARGUMENT,
          "read and write of NULL");
    CHECK(jem_read(x, NULL) == JEM_BAD_ARGUMENT && jem_write(x, NULL) == JEM_BAD_ARGUMENT &&
          jem_read_grad(x, NULL) == JEM_BAD_ARGUMENT, "read and write to NULL");
    jem_clear_error(ctx);
    CHECK(jem_grad(per, per) == JEM_OK && jem_read_grad(per, number) == JEM_OK && number[0] == 1 &&
          number[1] == 1, "dx/dx: %s", jem_error(ctx));

    check_other_context(ctx, y, per);
    CHECK(jem_check_gradient(ctx, NULL, NULL, x, NULL, 0.1f) < 0 && says(ctx, "a function"),
          "no function");
    things t;
    memset(&t, 0, sizeof t);
    t.build = of_row;
    t.a = 1;                                       /* exp */
    CHECK(jem_check_gradient(ctx, weighed, &t, x, f.one, 0.1f) < 0 && says(ctx, "trainable"),
          "a buffer has no gradient");
    CHECK(jem_check_gradient(ctx, weighed, &t, x, NULL, 0) < 0 && says(ctx, "step"), "step 0");
    jem_ctx *apart = jem_ctx_create(NULL);
    jem_tensor *leaf = jem_input(apart, number, 1, 2, 1, 1);
    CHECK(jem_check_gradient(ctx, weighed, &t, leaf, NULL, 0.1f) < 0 && says(ctx, "the leaf is of"),
          "a leaf of another context: %s", jem_error(ctx));
    jem_ctx_free(apart);
    jem_param *trained = random_param(f.bag, &f.rng, 1, 1, 1, 1, 1, -1, 1);
    CHECK(jem_check_gradient(ctx, of_many, NULL, x, trained, 0.1f) < 0 && says(ctx, "one number"),
          "many numbers per image");
    fixture_close(&f, "errors of gradients");
}

static void test_net_errors(void) {
    printf("errors of networks\n");
    fixture f;
    fixture_open(&f);
    jem_ctx *ctx = f.ctx;
    const int none = 0;
    jem_wrn_desc wd = jem_wrn_desc_default();
    wd.depth = 12;
    REFUSED(jem_wrn_create(ctx, &wd, 1), JEM_BAD_ARGUMENT, "wrn", "12");
    jem_convnet_desc cd = jem_convnet_desc_default();
    cd.height = 7;
    REFUSED(jem_convnet_create(ctx, &cd, 1), JEM_BAD_ARGUMENT, "convnet", "too small");
    cd.layers = 9;
    REFUSED(jem_mlp_create(ctx, &cd, 1), JEM_BAD_ARGUMENT, "mlp", "9");
    REFUSED(jem_net_param(f.bag, "p0", 1, &none, 1), JEM_BAD_ARGUMENT, "p0", "");
    jem_net *net = block_net(ctx, JEM_NORM_NONE, JEM_ACTIVATION_SILU, 0);
    REFUSED(jem_forward(net, f.x, 0), JEM_BAD_SHAPE, "(17,10,1,1)", "(n,3,4,5)");
    jem_net_free(net);
    fixture_close(&f, "errors of networks");
}

static void keep_message(void *user, const char *message) {
    snprintf((char *)user, 256, "%s", message);
}
static void clear_in_log(void *user, const char *message) {
    (void)message;
    jem_clear_error((jem_ctx *)user);
}

static void test_messages(void) {
    printf("errors: logged, cleared; NULL in place of a context\n");
    jem_ctx_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.log = log_message;
    jem_ctx *ctx = jem_ctx_create(&desc);
    jem_zeros(ctx, 0, 1, 1, 1);
    jem_fail(ctx, JEM_BAD_FILE, "later");
    CHECK(strstr(logged, "zeros: (0,1,1,1)") && !strcmp(logged, jem_error(ctx)) &&
          jem_error_status(ctx) == JEM_BAD_SHAPE && !jem_ok(ctx), "logged: %s", logged);
    jem_clear_error(ctx);
    CHECK(jem_ok(ctx) && !jem_error(ctx)[0], "cleared");
    ctx->desc.log = clear_in_log;
    ctx->desc.user = ctx;
    CHECK(!jem_zeros(ctx, 0, 1, 1, 1) && jem_error_status(ctx) == JEM_BAD_SHAPE,
          "the log cannot clear the error of a function that has not returned");
    jem_ctx_free(ctx);
    CHECK(!jem_ok(NULL) && jem_error(NULL)[0] && jem_error_status(NULL) == JEM_BAD_ARGUMENT,
          "no context");
    jem_ctx_free(NULL);
    jem_net_free(NULL);
    jem_trainer_free(NULL);
    jem_buffer_free(NULL);
    char said[256] = "";
    desc.log = keep_message;
    desc.user = said;
    desc.isa = (jem_isa)99;
    CHECK(!jem_ctx_create(&desc) && strstr(said, "instruction set unknown (99)"), "%s", said);
    desc.isa = JEM_ISA_BEST;
    desc.precision = (jem_precision)-1;
    CHECK(!jem_ctx_create(&desc) && strstr(said, "-1 is not a jem_precision"), "%s", said);
    CHECK(!strcmp(jem_status_name(JEM_NO_MEMORY), "out of memory") &&
          !strcmp(jem_status_name(JEM_DIVERGED), "diverged") &&
          !strcmp(jem_status_name((jem_status)-1), "unknown"), "statuses in words");
    int major = -1;
    int minor = -1;
    FILE *head = fopen("jem.h", "r");
    const int found = head ? fscanf(head, "/* jem.h - v%d.%d", &major, &minor) : 0;
    CHECK(!head || (found == 2 && JEM_VERSION == 100 * major + minor), "v%d.%d", major, minor);
    if (head) fclose(head);
}

/* ---- memory: what fails, what is steady ------------------------------------------------------ */

enum { BATCH = 18 };                               /* images: more than a group */

static jem_train_desc small_training(int by_class) {
    jem_train_desc d = jem_train_desc_default();
    d.lr = 1e-3f;
    d.sgld.steps = 2;
    d.negatives = 5;
    d.buffer_size = 9;
    d.class_conditional = by_class;
    d.weights.cd_class = by_class ? 0.5f : 0;
    return d;
}

/* A whole life with a network; anything in it may fail. Returns whether all went well. */
static int life(jem_ctx *ctx, int which) {
    const jem_train_desc d = small_training(which);
    jem_convnet_desc c = jem_convnet_desc_default();
    c.height = 6;
    c.width = 5;
    c.layers = 2;
    c.widths[0] = 9;
    c.widths[1] = 8;
    jem_net *net = which ? block_net(ctx, JEM_NORM_BATCH, JEM_ACTIVATION_SILU, 0.2f)
                         : jem_convnet_create(ctx, &c, 1);
    jem_trainer *tr = net ? jem_trainer_create(net, &d) : NULL;
    int labels[BATCH];
    int good = 0;
    jem_answer answers_[BATCH];
    if (tr) {
        jem_rng rng = jem_rng_seed(3);
        const jem_shape s = { BATCH, net->channels, net->height, net->width };
        float *x = random_floats(&rng, (ptrdiff_t)s.n * s.c * s.h * s.w, -1, 1);
        random_labels(&rng, labels, BATCH, net->classes);
        good = jem_train_step(tr, x, labels, BATCH).status == JEM_OK;
        good &= jem_train_step_semi(tr, x, labels, 3, x, BATCH).status == JEM_OK;
        good &= jem_net_set_meta(net, "key", "value") == JEM_OK;
        good &= jem_calibrate(net, x, BATCH, JEM_AUTO) == JEM_OK;
        good &= jem_classify(net, x, BATCH, answers_) == JEM_OK;
        good &= jem_accuracy(net, x, labels, BATCH) >= 0;
        jem_mark mark = jem_begin(ctx);
        jem_tensor *t = jem_input(ctx, x, s.n, s.c, s.h, s.w);
        good &= jem_sgld(ctx, jem_logp, net, t, &d.sgld, &rng) == JEM_OK;
        good &= jem_check_gradient(ctx, jem_logp, net, jem_input(ctx, x, 1, s.c, s.h, s.w), NULL,
                                   0.1f) >= 0;
        jem_end(ctx, mark);
        free(x);
    }
    jem_trainer_free(tr);
    jem_net_free(net);
    return good;
}

static void test_failures(void) {
    printf("the k-th allocation fails, for every k: a message, no leak, and it can go on\n");
    counter c;
    for (int which = 0; which < 2; which++)
        for (int on = 0; on < 2; on++) {
            long k = 1;
            for (int done = 0; !done; k++) {
                jem_ctx *ctx = open_ctx(&c);
                c.fail_at = c.calls + k;
                c.fail_on = on;
                const int good = life(ctx, which);
                done = c.calls < c.fail_at;        /* this one was not asked for any more */
                CHECK(good == done && jem_error_status(ctx) == (done ? JEM_OK : JEM_NO_MEMORY) &&
                      (done || strstr(jem_error(ctx), "out of memory")), "net %d, allocation %ld: "
                      "good %d, '%s'", which, k, good, jem_error(ctx));
                jem_clear_error(ctx);
                jem_reset(ctx);
                c.fail_at = 0;
                if (k % 8 == 0) CHECK(life(ctx, which), "afterwards: %s", jem_error(ctx));
                close_ctx(ctx, &c, "after a failure");
            }
            CHECK(k > 50, "only %ld allocations", k);
        }
    jem_ctx_desc desc;
    memset(&desc, 0, sizeof desc);
    memset(&c, 0, sizeof c);
    desc.allocate = count_allocate;
    desc.release = count_release;
    desc.user = &c;
    c.fail_at = 1;
    CHECK(!jem_ctx_create(&desc) && c.alive == 0, "not even a context");
    desc.release = NULL;
    CHECK(!jem_ctx_create(&desc), "both functions or neither");
}

static void test_steady(void) {
    printf("steady loops do not allocate\n");
    for (int which = 0; which < 2; which++) {
        counter c;
        jem_ctx *ctx = open_ctx(&c);
        jem_rng rng = jem_rng_seed(4);
        jem_net *net = block_net(ctx, which ? JEM_NORM_BATCH : JEM_NORM_NONE,
                                 JEM_ACTIVATION_LEAKY_RELU, 0);
        const jem_train_desc d = small_training(which);
        jem_trainer *tr = jem_trainer_create(net, &d);
        const jem_shape s = { BATCH, 3, 4, 5 };
        float *x = random_floats(&rng, BATCH * 60, -1, 1);
        jem_answer answers_[BATCH];
        int labels[BATCH];
        random_labels(&rng, labels, BATCH, 3);
        for (int step = 0; step <= 10; step++) {
            const long before = c.calls;
            const jem_memory_stats m = jem_memory(ctx);
            jem_train_step(tr, x, labels, BATCH);
            CHECK(step < 3 || (c.calls == before && jem_memory(ctx).allocations == m.allocations &&
                               jem_memory(ctx).bytes == m.bytes), "training step %d", step);
        }
        jem_tensor *t = jem_input(ctx, x, s.n, s.c, s.h, s.w);
        for (int step = 0; step <= 10; step++) {
            const long before = c.calls;
            jem_sgld(ctx, jem_logp, net, t, &d.sgld, &rng);
            CHECK(step < 1 || c.calls == before, "SGLD, time %d", step);
        }
        for (int step = 0; step <= 3; step++) {
            const long before = c.calls;
            jem_classify(net, x, BATCH, answers_);
            CHECK(step < 1 || c.calls == before, "classification, time %d", step);
        }
        CHECK(jem_ok(ctx), "%s", jem_error(ctx));
        free(x);
        jem_trainer_free(tr);
        jem_net_free(net);
        close_ctx(ctx, &c, "steady loops");
    }
}

/* ---- what has to hold with the plan and without ---------------------------------------------- */

static void in_both(jem_ctx *ctx, void (*test)(jem_ctx *)) {
    jem_ctx *plain = plain_ctx();
    test(ctx);
    test(plain);
    jem_ctx_free(plain);
}
static void test_both_unkept(jem_ctx *ctx) { in_both(ctx, test_unkept); }
static void test_both_dead_lanes(jem_ctx *ctx) { in_both(ctx, test_dead_lanes); }
static void test_both_read_before(jem_ctx *ctx) { in_both(ctx, test_read_before); }
static void test_both_norm_of_one(jem_ctx *ctx) { in_both(ctx, test_norm_of_one); }
static void test_both_after_failure(jem_ctx *ctx) { in_both(ctx, test_after_failure); }
static void test_both_one_number(jem_ctx *ctx) { in_both(ctx, test_one_number); }
static void test_both_max_ties(jem_ctx *ctx) { in_both(ctx, test_max_ties); }
static void test_both_exp_clamped(jem_ctx *ctx) { in_both(ctx, test_exp_clamped); }
static void test_both_read_failed(jem_ctx *ctx) { in_both(ctx, test_read_failed); }
static void test_both_zero_user(jem_ctx *ctx) { in_both(ctx, test_zero_user); }
static void test_both_tapes(jem_ctx *ctx) {
    jem_ctx *plain = plain_ctx();
    test_tapes(ctx, plain);
    jem_ctx_free(plain);
}

int main(int argc, char **argv) {
    static const test_case all[] = {
        TEST_IN(test_elementwise), TEST_IN(test_shapes), TEST_IN(test_convolutions),
        TEST_IN(test_norms), TEST_IN(test_networks), TEST_IN(test_few_images),
        TEST_IN(test_few_bits), TEST_IN(test_losses), TEST_IN(test_loss_values),
        TEST_IN(test_quadratic), TEST_IN(test_both_max_ties), TEST_IN(test_both_exp_clamped),
        TEST_IN(test_both_read_failed), TEST_IN(test_both_zero_user),
        TEST_IN(test_custom), TEST_IN(test_compute), TEST_IN(test_both_unkept),
        TEST_IN(test_both_dead_lanes), TEST_IN(test_both_read_before),
        TEST_IN(test_both_norm_of_one), TEST_IN(test_both_after_failure),
        TEST_IN(test_both_tapes), TEST(test_mixes), TEST(test_sums_read),
        TEST_IN(test_both_one_number), TEST_IN(test_marks), TEST_IN(test_forgotten),
        TEST(test_errors), TEST(test_more_errors), TEST(test_gradient_errors),
        TEST(test_net_errors), TEST(test_messages), TEST(test_failures), TEST(test_steady)
    };
    jem_rng rng = jem_rng_seed(0);
    for (int i = 0; i < (int)(sizeof noise / sizeof noise[0]); i++)
        noise[i] = jem_rng_uniform(&rng) + 0.2f;
    return run_in_ctx(argc, argv, all, TEST_COUNT(all), NULL);
}
