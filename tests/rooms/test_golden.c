/* Comparison with values of PyTorch, stored by make_golden.py, which also defines the networks and
   all names here. Weights and images are not stored: both sides derive them from their names. */
#define JEM_IMPLEMENTATION
#include "jem.h"
#include "tests/support/test.h"
#include "tests/support/common.h"

static jem_archive *golden;

/* ---- values from names ----------------------------------------------------------------------- */

/* x[i] = shift + scale u, u in [-1,1) from xorshift32, whose seed is the name's FNV-1a hash. */
static void made(float *x, ptrdiff_t n, double scale, double shift, const char *name) {
    uint32_t h = 2166136261u;
    for (const char *c = name; *c; c++) h = (h ^ (unsigned char)*c) * 16777619u;
    h |= 1;
    for (ptrdiff_t i = 0; i < n; i++) {
        h ^= h << 13;
        h ^= h >> 17;
        h ^= h << 5;
        x[i] = (float)(shift + scale * ((h >> 8) / 8388608.0 - 1.0));
    }
}
static float *made_floats(ptrdiff_t n, double scale, const char *name) {
    float *x = floats(n);
    made(x, n, scale, 0, name);
    return x;
}
static jem_tensor *made_leaf(jem_ctx *ctx, jem_shape s, double scale, const char *name) {
    float *x = made_floats((ptrdiff_t)s.n * s.c * s.h * s.w, scale, name);
    jem_tensor *t = jem_input(ctx, x, s.n, s.c, s.h, s.w);
    free(x);
    return t;
}

static int ends_with(const char *name, const char *end) {
    const size_t n = strlen(name);
    const size_t m = strlen(end);
    return n >= m && !strcmp(name + n - m, end);
}

/* Every parameter and buffer from its own name: of convolutions and linear layers at most
   1/sqrt(fan in), of norms near 1 (what multiplies) or 0 (what is added). */
static void fill_net(jem_net *net, int initialized) {
    double bound = 0;                              /* of the layer in hand; 0: it is a norm */
    for (jem_param *p = net->params; p; p = p->next) {
        const int around1 = ends_with(p->name, ".weight") || ends_with(p->name, ".scale") ||
                            ends_with(p->name, ".running_var");
        const int is_loc = ends_with(p->name, ".loc");
        if (ends_with(p->name, ".weight") || is_loc) {
            bound = 0;
            if (p->ndim > 1 && !is_loc) bound = 1 / sqrt((double)(p->size / p->shape[0]));
        }
        if (bound > 0) made(p->value, p->size, bound, 0, p->name);
        else made(p->value, p->size, 0.1, around1, p->name);
        if (ends_with(p->name, ".initialized")) p->value[0] = (float)initialized;
        jem_param_changed(p);
    }
}

/* ---- comparison with what is stored ---------------------------------------------------------- */

static const float *stored(const char *name_of_case, const char *what, ptrdiff_t n) {
    char name[128];
    snprintf(name, sizeof name, "%s/%s", name_of_case, what);
    const jem_entry *e = jem_archive_find(golden, name);
    const int good = e && e->dtype == JEM_DTYPE_F32 && e->bytes == (size_t)n * sizeof(float);
    CHECK(good, "%s: %d numbers", name, (int)n);
    if (!good) return NULL;
    return (const float *)e->data;
}
/* Off by no more than a share of the largest stored number. */
static void compare(const char *name_of_case, const char *what, const float *x, ptrdiff_t n,
                    double share) {
    const float *want = stored(name_of_case, what, n);
    if (want) CHECK(largest_gap(x, want, n) <= share, "%s/%s: off by %.2g of the largest",
                    name_of_case, what, largest_gap(x, want, n));
}
static void compare_tensor(const char *name_of_case, const char *what, jem_tensor *t, int gradient,
                           double share) {
    if (!t) {
        CHECK(0, "%s/%s: nothing", name_of_case, what);
        return;
    }
    const ptrdiff_t n = (ptrdiff_t)t->n * t->c * t->h * t->w;
    float *x = (float *)calloc((size_t)n, sizeof *x);
    const jem_status s = gradient ? jem_read_grad(t, x) : jem_read(t, x);
    CHECK(s == JEM_OK, "%s/%s: %s", name_of_case, what, jem_error(t->ctx));
    compare(name_of_case, what, x, n, share);
    free(x);
}

/* ---- ops ------------------------------------------------------------------------------------- */

/* op's y, then d sum(y probe) / dx */
static void compare_op(jem_ctx *ctx, const char *op, jem_tensor *x, jem_tensor *y,
                       const char *probe, jem_net *bag) {
    const double share = 2e-6;
    char what[64];
    if (!y) {
        CHECK(0, "%s: %s", op, jem_error(ctx));
        return;
    }
    jem_tensor *sum = y;
    if (probe) {
        jem_tensor *weights = made_leaf(ctx, shape(y->n, y->c, y->h, y->w), 1, probe);
        sum = jem_sum_image(ctx, jem_mul(ctx, y, weights));
    }
    snprintf(what, sizeof what, "%s/y", op);
    compare_tensor("ops", what, y, 0, share);
    CHECK(jem_grad(sum, x) == JEM_OK, "%s: %s", op, jem_error(ctx));
    snprintf(what, sizeof what, "%s/dx", op);
    compare_tensor("ops", what, x, 1, share);
    if (!bag) return;
    jem_backward(jem_sum(ctx, sum));
    for (const jem_param *p = bag->params; p; p = p->next) {
        snprintf(what, sizeof what, "%s/d%s", op, p->name);
        compare("ops", what, p->grad, p->size, share);
    }
}

static void test_conv(jem_ctx *ctx, const char *op, int pool) {
    char name[64];
    snprintf(name, sizeof name, "ops/%s/desc", op);
    const jem_entry *e = jem_archive_find(golden, name);
    if (!CHECK(e && e->dtype == JEM_DTYPE_I32 && e->bytes == 32, "%s", name)) return;
    const int32_t *d = (const int32_t *)e->data;   /* C, O, H, W, K, S, P, N */
    snprintf(name, sizeof name, "ops.%s.x", op);
    jem_tensor *x = made_leaf(ctx, shape(d[7], d[0], d[2], d[3]), 1, name);
    jem_tensor *y;
    jem_net *bag = NULL;
    if (pool) y = jem_avg_pool(ctx, x, d[4], d[5]);
    else {
        const int shape[4] = { d[1], d[0], d[4], d[4] };
        const jem_conv_desc conv = { d[5], d[6] };
        bag = bag_create(ctx);
        jem_param *w = jem_net_param(bag, "w", 4, shape, 1);
        jem_param *b = jem_net_param(bag, "b", 1, shape, 1);
        snprintf(name, sizeof name, "ops.%s.w", op);
        made(w->value, w->size, 1, 0, name);
        snprintf(name, sizeof name, "ops.%s.b", op);
        made(b->value, b->size, 1, 0, name);
        y = jem_conv2d(ctx, x, w, b, conv);
    }
    snprintf(name, sizeof name, "ops.%s.probe", op);
    compare_op(ctx, op, x, y, name, bag);
    jem_reset(ctx);
    jem_net_free(bag);
}

/* Records op number i of the list in test_ops. */
static jem_tensor *map_of(jem_ctx *ctx, jem_tensor *x, int i) {
    switch (i) {
        case 0: return jem_silu(ctx, x);
        case 1: return jem_leaky_relu(ctx, x, 0.2f);
        case 2: return jem_relu(ctx, x);
        case 3: return jem_tanh(ctx, x);
        case 4: return jem_sigmoid(ctx, x);
        case 5: return jem_softplus(ctx, x);
        default: return jem_clamp(ctx, x, -1.5f, 0.5f);
    }
}

static void test_ops(jem_ctx *ctx) {
    printf("the generator; ops: values and gradients\n");
    static const struct { const char *name; double scale, shift; } generated[] = {
        { "golden.x", 1, 0 }, { "f.conv1.weight", 0.19245008972987526, 0 },
        { "f.bn1.weight", 0.1, 1 }, { "f.bn1.bias", 0.1, 0 }
    };
    for (int i = 0; i < 4; i++) {
        float x[8];
        made(x, 8, generated[i].scale, generated[i].shift, generated[i].name);
        compare("generator", generated[i].name, x, 8, 0);
    }
    static const char *const convs[] = { "conv0", "conv1", "conv2", "conv3", "conv4" };
    static const char *const pools[] = { "avg_pool0", "avg_pool1" };
    for (int i = 0; i < 5; i++) test_conv(ctx, convs[i], 0);
    for (int i = 0; i < 2; i++) test_conv(ctx, pools[i], 1);
    static const char *const maps[] = { "silu", "leaky_relu", "relu", "tanh", "sigmoid", "softplus",
                                        "clamp" };
    for (int i = 0; i < 7; i++) {
        jem_tensor *x = made_leaf(ctx, shape(2, 3, 4, 5), 4, "ops.act.x");
        compare_op(ctx, maps[i], x, map_of(ctx, x, i), "ops.act.probe", NULL);
    }
    int labels[5];
    for (int i = 0; i < 5; i++) labels[i] = (7 * i + 3) % 10;
    static const struct { double scale; const char *logsumexp, *cross_entropy; } logits[2] = {
        { 3, "logsumexp", "cross_entropy" },
        { 300, "logsumexp_large", "cross_entropy_large" }      /* too large for a naive exp */
    };
    for (int i = 0; i < 2; i++) {
        jem_tensor *x = made_leaf(ctx, shape(5, 10, 1, 1), logits[i].scale, "ops.logits");
        compare_op(ctx, logits[i].logsumexp, x, jem_logsumexp(ctx, x), "ops.logits.probe", NULL);
        compare_op(ctx, logits[i].cross_entropy, x, jem_cross_entropy(ctx, x, labels), NULL, NULL);
    }
    jem_reset(ctx);
}

/* ---- networks -------------------------------------------------------------------------------- */

static const char *const norm_name[] = { "none", "batch", "instance", "layer", "act", "act-init" };

/* One network of the file: norm 0..5 as above with leaky relu or SiLU; norm -1: the convnet. */
typedef struct network {
    char name[32];
    const char *images;
    jem_net *net;
    jem_shape image;
    int fresh, is_sharp;                           /* sharp: no kink keeps float32 runs apart */
    double loose;                                  /* how far losses may be off otherwise */
} network;

static network network_make(jem_ctx *ctx, int norm, int silu) {
    /* Leaky relu's kink: of millions of activations one is so near to it that float32 takes the
       other side than float64, and Adam makes that visible. As far as other float32 runs are. */
    static const double loose[] = { 5e-4, 1e-3, 2e-3, 5e-3, 3e-3, 2e-1 };
    network w;
    memset(&w, 0, sizeof w);
    w.fresh = norm == 5;
    w.is_sharp = silu || norm < 0;
    if (norm < 0) {
        w.image = shape(1, 1, 28, 28);
        w.images = "golden.digit";
        snprintf(w.name, sizeof w.name, "convnet");
        w.net = jem_convnet_create(ctx, NULL, 1);
    } else {
        w.image = shape(1, 3, 32, 32);
        w.images = "golden.x";
        w.loose = loose[norm];
        snprintf(w.name, sizeof w.name, "%s%s", norm_name[norm], silu ? "-silu" : "");
        jem_wrn_desc d = jem_wrn_desc_default();
        d.depth = 10;
        d.widen = 1;
        d.norm = (jem_norm)(norm == 5 ? JEM_NORM_ACT : norm);
        d.activation = silu ? JEM_ACTIVATION_SILU : JEM_ACTIVATION_LEAKY_RELU;
        w.net = jem_wrn_create(ctx, &d, 1);
    }
    CHECK(w.net, "%s: %s", w.name, jem_error(ctx));
    if (w.net) fill_net(w.net, !w.fresh);
    return w;
}
static jem_tensor *images(jem_ctx *ctx, const network *w, int n, const char *suffix) {
    char name[32];
    snprintf(name, sizeof name, "%s%s", w->images, suffix);
    return made_leaf(ctx, shape(n, w->image.c, w->image.h, w->image.w), 1, name);
}

/* Logits, log p(x), and its gradient: of image 2 in full, of all their length and one direction. */
static void check_eval(jem_ctx *ctx, network *w, double share) {
    const int size = w->image.c * w->image.h * w->image.w;
    jem_tensor *x = images(ctx, w, 3, "");
    jem_tensor *logits = jem_forward(w->net, x, w->fresh);     /* PyTorch's initialises here too */
    jem_tensor *logp = jem_logsumexp(ctx, logits);
    compare_tensor(w->name, "logits_eval", logits, 0, share);
    compare_tensor(w->name, "logp_eval", logp, 0, share);
    float *g = floats(3 * size);
    float *probe = made_floats(size, 1, "golden.probe");
    float norm[3];
    float dot[3];
    if (CHECK(jem_grad(logp, x) == JEM_OK && jem_read_grad(x, g) == JEM_OK, "%s", jem_error(ctx))) {
        for (int i = 0; i < 3; i++) {
            double squares = 0;
            double products = 0;
            for (int k = i * size; k < (i + 1) * size; k++) {
                squares += (double)g[k] * (double)g[k];
                products += (double)g[k] * (double)probe[k - i * size];
            }
            norm[i] = (float)sqrt(squares);
            dot[i] = (float)products;
        }
        compare(w->name, "input_grad_eval", g + 2 * size, size, share);
        compare(w->name, "input_grad_eval_norm", norm, 3, share);
        compare(w->name, "input_grad_eval_dot", dot, 3, 3 * share);
    }
    free(g);
    free(probe);
    jem_reset(ctx);
}

/* Ten numbers of a gradient, see make_golden.py; some are 0 but for rounding, so the scale is at
   least a hundredth of the largest gradient. */
static void check_gradients(const network *w, double share) {
    double largest = 0;
    for (int pass = 0; pass < 2; pass++)
        for (const jem_param *p = w->net->params; p; p = p->next) {
            if (!p->grad) continue;
            char what[64];
            snprintf(what, sizeof what, "grad/%s", p->name);
            const float *want = stored(w->name, what, 10);
            for (int i = 0; want && !pass && i < 10; i++)
                if (fabs((double)want[i]) > largest) largest = fabs((double)want[i]);
            if (!pass || !want) continue;
            snprintf(what, sizeof what, "probe.%s", p->name);
            float *probe = made_floats(p->size, 1, what);
            double squares = 0;
            double products = 0;
            double worst = 0;
            for (ptrdiff_t i = 0; i < p->size; i++) {
                squares += (double)p->grad[i] * (double)p->grad[i];
                products += (double)p->grad[i] * (double)probe[i];
            }
            free(probe);
            const double scale = fmax((double)want[0], 0.01 * largest);
            double x[10] = { sqrt(squares), products };
            for (int i = 2; i < 10; i++) {
                ptrdiff_t at = i < 8 ? i - 2 : p->size - 10 + i;       /* 0..5, the last two */
                if (at > p->size - 1) at = p->size - 1;
                x[i] = (double)p->grad[at > 0 ? at : 0];
            }
            for (int i = 0; i < 10; i++)
                worst = most_of(worst, fabs(x[i] - (double)want[i]) / scale);
            CHECK(worst <= share, "%s, gradient of %s: off by %.2g", w->name, p->name, worst);
        }
}

static void check_running(const network *w, const char *suffix, double mean, double var) {
    const jem_param *rm = jem_net_find(w->net, "f.bn1.running_mean");
    const jem_param *rv = jem_net_find(w->net, "f.bn1.running_var");
    char what[32];
    if (!rm || !rv) return;
    snprintf(what, sizeof what, "running_mean%s", suffix);
    const float *want = stored(w->name, what, rm->size);
    double worst = 0;                              /* a bias of gradient 0 moves it: absolutely */
    for (ptrdiff_t i = 0; want && i < rm->size; i++)
        worst = most_of(worst, fabs((double)rm->value[i] - (double)want[i]));
    CHECK(worst <= mean, "%s/%s: off by %.2g", w->name, what, worst);
    snprintf(what, sizeof what, "running_var%s", suffix);
    compare(w->name, what, rv->value, rv->size, var);
}

/* Updates on 19 images and 5 samples, from the generated weights: the first `steps` of those that
   are stored. */
static void check_training(jem_ctx *ctx, network *w, int steps, int stored_steps, int sgd) {
    fill_net(w->net, !w->fresh);
    const jem_loss_weights d = { 1, 1, 0, 0 };
    jem_optim_desc o = jem_optim_desc_default();
    if (sgd) {
        o.kind = JEM_OPTIMIZER_SGD;
        o.momentum = 0.9f;
        o.weight_decay = 5e-4f;
    }
    jem_optim *optim = jem_optim_create(w->net, &o);
    float losses[10][4];
    int labels[19];
    for (int i = 0; i < 19; i++) labels[i] = (7 * i + 3) % 10;
    for (int step = 0; step < steps; step++) {
        jem_loss_terms t;
        jem_tensor *data = images(ctx, w, 19, "+");
        jem_tensor *sample = images(ctx, w, 5, "-");
        jem_tensor *loss = jem_loss(w->net, &d, data, labels, NULL, sample, NULL, &t);
        jem_zero_grad(w->net);
        if (!CHECK(jem_backward(loss) == JEM_OK, "%s: %s", w->name, jem_error(ctx))) break;
        losses[step][0] = jem_item(loss);
        losses[step][1] = jem_item(t.ce);
        losses[step][2] = jem_item(t.f_data);
        losses[step][3] = jem_item(t.f_sample);
        if (step == 0 && !sgd) {
            compare(w->name, "loss0", losses[0], 4, 3e-6);
            check_gradients(w, w->is_sharp ? 1e-4 : 1e-2);
            check_running(w, "0", 1e-6, 1e-6);
        }
        jem_optim_step(optim, sgd ? 1e-2f : 1e-3f, NULL);
        jem_reset(ctx);
    }
    char what[32];
    snprintf(what, sizeof what, "losses%d%s", stored_steps, sgd ? "_sgd" : "");
    const float *want = stored(w->name, what, 4 * stored_steps);
    for (int i = 0; want && i < 4 * steps; i++)
        CHECK_CLOSE(losses[i / 4][i % 4], want[i], w->is_sharp || sgd || i < 8 ? 1e-5 : w->loose,
                    "%s, step %d, term %d", w->name, i / 4, i % 4);
    if (!sgd && steps == stored_steps) check_running(w, "", 0.03, 1e-5);
    jem_optim_free(optim);
}

static void test_networks(jem_ctx *ctx, double share, int training) {
    for (int norm = -1; norm <= 5; norm++) {
        network w = network_make(ctx, norm, 0);
        printf("%s%s", norm < 0 ? "" : ", ", w.name);
        fflush(stdout);
        check_eval(ctx, &w, share);
        if (training) check_training(ctx, &w, w.is_sharp ? 10 : 4, 10, 0);
        if (training && norm == 0) check_training(ctx, &w, 10, 10, 1);
        jem_net_free(w.net);
        if (!training || norm < 0) continue;
        w = network_make(ctx, norm, 1);
        check_training(ctx, &w, 5, 5, 0);
        jem_net_free(w.net);
    }
    printf("\n");
}

/* ---- score matching -------------------------------------------------------------------------- */

enum { SCORED = 5, PIXELS = 28 * 28, NOISE_SEED = 7 };

/* What jem_score_matching draws for five digits from a generator of this seed. */
static float *score_noise(jem_ctx *ctx) {
    static const float ones[SCORED] = { 1, 1, 1, 1, 1 };
    float *z = floats(SCORED * PIXELS);
    jem_rng rng = jem_rng_seed(NOISE_SEED);
    jem_tensor *leaf = jem_zeros(ctx, SCORED, 1, 28, 28);
    CHECK(jem_add_noise(leaf, ones, &rng) == JEM_OK && jem_read(leaf, z) == JEM_OK, "%s",
          jem_error(ctx));
    jem_reset(ctx);
    return z;
}

/* For make_golden.py, which cannot draw it: raw numbers. */
static int write_noise(const char *path) {
    jem_ctx *ctx = jem_ctx_create(NULL);
    float *z = score_noise(ctx);
    FILE *f = fopen(path, "wb");
    const int ok = f && fwrite(z, sizeof *z, SCORED * PIXELS, f) == SCORED * PIXELS;
    if (f) fclose(f);
    free(z);
    jem_ctx_free(ctx);
    return !ok;
}

/* The loss and its gradient by differences, against PyTorch's second derivatives. */
static void test_score(jem_ctx *ctx, double share) {
    static const float sigma[SCORED] = { .12f, .3f, .6f, 1, 2 };
    network w = network_make(ctx, -1, 0);
    snprintf(w.name, sizeof w.name, "convnet-score");
    w.net->scale = 10;
    jem_score_desc d;
    memset(&d, 0, sizeof d);
    d.sigma = sigma;
    float values[2];
    jem_rng rng = jem_rng_seed(NOISE_SEED);
    jem_tensor *loss = jem_score_matching(ctx, jem_logp, w.net, images(ctx, &w, SCORED, ""), &d,
                                          &rng, &values[1]);
    jem_zero_grad(w.net);
    CHECK(jem_backward(loss) == JEM_OK, "%s", jem_error(ctx));
    values[0] = jem_item(loss);
    compare(w.name, "loss", values, 2, 1e-5);
    check_gradients(&w, share);
    jem_reset(ctx);
    jem_net_free(w.net);
}

/* ---- initialisation -------------------------------------------------------------------------- */

/* PyTorch's default: uniform in +-1/sqrt(fan in), weights and biases alike. */
static void check_uniform(const jem_param *p, int fan_in) {
    const double bound = 1 / sqrt((double)fan_in);
    double most = 0;
    double squares = 0;
    for (ptrdiff_t i = 0; i < p->size; i++) {
        most = most_of(most, fabs((double)p->value[i]));
        squares += (double)p->value[i] * (double)p->value[i];
    }
    /* that the largest of n is below 1 - 12/n has probability e^-12 */
    CHECK(most <= bound * 1.000001 && most >= bound * (1 - 12.0 / (double)p->size), "%s: largest "
          "is %g of %g", p->name, most, bound);
    const double spread = sqrt(squares / (double)p->size * 3) / bound;
    CHECK(fabs(spread - 1) < 2.5 / sqrt((double)p->size), "%s: deviation %g", p->name, spread);
}
static void check_constant(const jem_param *p, float value) {
    int bad = 0;
    for (ptrdiff_t i = 0; i < p->size; i++) bad += p->value[i] != value;
    CHECK(bad == 0, "%s: not all %g", p->name, (double)value);
}

/* Creates network i: a WRN with each norm, a convnet, a MLP. */
static jem_net *default_net(jem_ctx *ctx, int i) {
    jem_wrn_desc d = jem_wrn_desc_default();
    jem_mlp_desc m = jem_mlp_desc_default();
    if (i == 6) return jem_mlp_create(ctx, &m, 1);
    if (i == 5) return jem_convnet_create(ctx, NULL, 1);
    d.depth = 10;
    d.widen = 2;
    d.norm = (jem_norm)i;
    return jem_wrn_create(ctx, &d, 1);
}

static void test_initialisation(jem_ctx *ctx) {
    printf("default initialisation\n");
    for (int i = 0; i < 7; i++) {
        jem_net *net = default_net(ctx, i);
        if (i == 5) CHECK(jem_net_size(net) == 112586, "%d numbers", (int)jem_net_size(net));
        int fan_in = 0;                            /* of the layer in hand; 0: a norm */
        for (const jem_param *p = net->params; p; p = p->next) {
            if (ends_with(p->name, ".weight"))
                fan_in = p->ndim > 1 ? (int)(p->size / p->shape[0]) : 0;
            if (ends_with(p->name, ".loc") || ends_with(p->name, ".initialized") ||
                ends_with(p->name, ".running_mean") || (!fan_in && ends_with(p->name, ".bias")))
                check_constant(p, 0);
            else if (ends_with(p->name, ".scale") || ends_with(p->name, ".running_var") || !fan_in)
                check_constant(p, 1);
            else check_uniform(p, fan_in);
        }
        jem_net_free(net);
    }
}

/* All of it in one precision; the name of the test is that of the precision. */
static void test_precision(jem_precision precision, const char *name, double share) {
    const int exact = precision == JEM_PRECISION_EXACT;
    jem_ctx_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.precision = precision;
    jem_ctx *ctx = jem_ctx_create(&desc);
    golden = jem_archive_read(ctx, "tests/support/golden.safetensors");
    if (CHECK(golden, "%s", jem_error(ctx))) {
        if (exact) {
            test_ops(ctx);
            test_initialisation(ctx);
        }
        printf("%s%s: ", name, exact ? "" : ", evaluation only");
        test_networks(ctx, share, exact);
        test_score(ctx, 5e-4);
    }
    CHECK(jem_ok(ctx), "%s", jem_error(ctx));
    jem_archive_free(golden);
    jem_ctx_free(ctx);
}

int main(int argc, char **argv) {
    static const double share[] = { 3e-6, 1e-4, 3e-6 };        /* in the order of jem_precision */
    static const char *const name[] = { "exact", "fast", "direct" };
    if (argc == 3 && !strcmp(argv[1], "noise")) return write_noise(argv[2]);
    test_begin(argc, argv);
    for (int i = JEM_PRECISION_EXACT; i <= JEM_PRECISION_DIRECT; i++)
        if (test_wants(name[i])) test_precision((jem_precision)i, name[i], share[i]);
    return test_report();
}
