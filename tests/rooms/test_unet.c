/* Residual networks without norms, log p(x) with the energy of a U-Net, and Muon: compared with
   definitions in double. `test_unet FILE` writes a network, images and answers, for comparison with
   PyTorch by torch_unet.py. */
#define JEM_IMPLEMENTATION
#include "jem.h"

#include "tests/support/test.h"
#include "tests/support/common.h"

enum { N = 5, CHANNELS = 2, SIDE = 8, CLASSES = 3, PIXELS = CHANNELS * SIDE * SIDE };

static jem_wrn_desc small_desc(int unet) {
    jem_wrn_desc d = jem_wrn_desc_default();
    d.depth = 10;
    d.widen = 1;
    d.channels = CHANNELS;
    d.height = SIDE;
    d.width = SIDE;
    d.classes = CLASSES;
    d.activation = JEM_ACTIVATION_SILU;                       /* smooth, for the gradient checks */
    d.blocks = JEM_BLOCKS_ZERO;
    d.unet = unet;
    return d;
}
/* A small network whose blocks do something: no parameter is 0. */
static jem_net *small_net(jem_ctx *ctx, int unet) {
    const jem_wrn_desc d = small_desc(unet);
    jem_net *net = jem_wrn_create(ctx, &d, 3);
    jem_rng rng = jem_rng_seed(11);
    for (jem_param *p = net ? net->params : NULL; p; p = p->next) {
        for (ptrdiff_t i = 0; i < p->size; i++) p->value[i] += .05f * jem_rng_normal(&rng);
        jem_param_changed(p);
    }
    return net;
}
static int ends_with(const char *name, const char *end) {
    const size_t n = strlen(name);
    const size_t k = strlen(end);
    return n >= k && !strcmp(name + n - k, end);
}

/* ---- networks -------------------------------------------------------------------------------- */

static void test_identity(jem_ctx *ctx) {
    printf("every block begins as the identity\n");
    for (int depth = 10; depth <= 16; depth += 6) {
        jem_wrn_desc d = small_desc(1);
        d.depth = depth;
        jem_net *net = jem_wrn_create(ctx, &d, 3);
        jem_rng rng = jem_rng_seed(4);
        float *x = random_floats(&rng, N * PIXELS, -1, 1);
        float before[N * CLASSES], after[N * CLASSES];
        int changed = 0;
        CHECK(jem_logits(net, x, N, before) == JEM_OK, "%s", jem_error(ctx));
        for (jem_param *p = net ? net->params : NULL; p; p = p->next) {
            if (ends_with(p->name, "conv2.weight") || ends_with(p->name, "conv2.bias"))
                for (ptrdiff_t i = 0; i < p->size; i++)
                    CHECK(p->value[i] == 0, "%s begins at %g", p->name, (double)p->value[i]);
            if (!strstr(p->name, "layer") || !ends_with(p->name, "conv1.weight")) continue;
            for (ptrdiff_t i = 0; i < p->size; i++) p->value[i] += 1;
            jem_param_changed(p);
            changed++;
        }
        CHECK(changed == (depth - 4) / 2, "depth %d has %d blocks", depth, changed);
        CHECK(jem_logits(net, x, N, after) == JEM_OK, "%s", jem_error(ctx));
        CHECK(same_bits(before, after, N * CLASSES), "depth %d: a block adds something", depth);
        free(x);
        jem_net_free(net);
    }
}

static void test_odd_sides(jem_ctx *ctx) {
    printf("images whose sides cannot be halved evenly, with a flat head\n");
    for (int stem_stride = 1; stem_stride <= 3; stem_stride++)
        for (int side = 3 * stem_stride + 1; side < 32; side++) {
            jem_wrn_desc d = small_desc(0);
            d.head = JEM_HEAD_FLAT;
            d.stem_stride = stem_stride;
            d.height = side;
            d.width = side + 1;
            jem_net *net = jem_wrn_create(ctx, &d, 3);
            jem_tensor *x = jem_zeros(ctx, 2, CHANNELS, side, side + 1);
            CHECK(jem_forward(net, x, 0), "%d x %d, stem stride %d: %s", side + 1, side,
                  stem_stride, jem_error(ctx));
            jem_net_free(net);
        }
    jem_wrn_desc d = small_desc(0);
    d.width = 3;
    CHECK(!jem_wrn_create(ctx, &d, 3) && strstr(jem_error(ctx), "too small"), "3 columns: %s",
          jem_error(ctx));
    jem_clear_error(ctx);
}

/* Checks that cross-entropy has a gradient in every parameter but those of the U-Net. */
static void check_blind_to_shift(jem_net *net, jem_tensor *x, const int *labels) {
    jem_zero_grad(net);
    CHECK(jem_backward(jem_cross_entropy(net->ctx, jem_forward(net, x, 1), labels)) == JEM_OK,
          "%s", jem_error(net->ctx));
    for (const jem_param *p = net->params; p; p = p->next) {
        double sum = 0;
        for (ptrdiff_t i = 0; i < p->size; i++) sum += fabs((double)p->grad[i]);
        CHECK((sum > 0) == (p->name[0] != 'u'), "cross-entropy's gradient of %s: %g", p->name, sum);
    }
}

static void test_shift(jem_ctx *ctx) {
    printf("softmax does not see the shift, every density does\n");
    jem_net *net = small_net(ctx, 1);
    jem_net *bare = small_net(ctx, 0);
    jem_rng rng = jem_rng_seed(5);
    float *x = random_floats(&rng, N * PIXELS, -1, 1);
    int labels[N];
    float f[N * CLASSES], logp[N], joint[N], label[N], guided[N], shift[N], lse[N];
    random_labels(&rng, labels, N, CLASSES);
    jem_query query = { net, labels, 3 };
    jem_param *out = jem_net_find(net, "u.energy_output.weight");
    jem_param *out_bias = jem_net_find(net, "u.energy_output.bias");
    if (!CHECK(out && out_bias && bare, "it has a U-Net: %s", jem_error(ctx))) return;
    for (int scaled = 0; scaled < 2; scaled++) {
        net->scale = scaled ? 10.0f : 1.0f;
        const double scale = (double)net->scale;
        jem_tensor *t = jem_input(ctx, x, N, CHANNELS, SIDE, SIDE);
        jem_tensor *logits = jem_forward(net, t, 0);
        jem_tensor *e = net->shift;
        CHECK(jem_read(logits, f) == JEM_OK && jem_read(e, shift) == JEM_OK, "%s", jem_error(ctx));
        CHECK(jem_read(jem_logsumexp(ctx, logits), lse) == JEM_OK, "%s", jem_error(ctx));
        CHECK(jem_read(jem_logp(ctx, t, net), logp) == JEM_OK, "%s", jem_error(ctx));
        CHECK(jem_read(jem_logp_class(ctx, t, &query), joint) == JEM_OK, "%s", jem_error(ctx));
        CHECK(jem_read(jem_logp_label(ctx, t, &query), label) == JEM_OK, "%s", jem_error(ctx));
        CHECK(jem_read(jem_logp_guided(ctx, t, &query), guided) == JEM_OK, "%s", jem_error(ctx));
        for (int i = 0; i < N; i++) {
            const double own = (double)f[i * CLASSES + labels[i]];
            const double density = (double)shift[i] + scale * (double)lse[i];
            CHECK(fabs((double)shift[i]) > 1e-3, "the U-Net says %g", (double)shift[i]);
            CHECK_CLOSE(logp[i], density, 1e-4, "log p(x)");
            CHECK_CLOSE(label[i], own - (double)lse[i], 1e-5, "log p(y|x)");
            CHECK_CLOSE(joint[i], density + own - (double)lse[i], 1e-4, "log p(x,y)");
            CHECK_CLOSE(guided[i], density + 3 * (own - (double)lse[i]), 1e-4, "guided");
        }
        CHECK(jem_check_gradient(ctx, jem_logp, net, t, NULL, .02f) < 2e-3f, "slope of log p(x)");
        CHECK(jem_check_gradient(ctx, jem_logp, net, t, out, .02f) < 2e-3f, "U-Net's weights");
        jem_answer a[N];
        CHECK(jem_classify(net, x, N, a) == JEM_OK, "%s", jem_error(ctx));
        for (int i = 0; i < N; i++) CHECK_CLOSE(a[i].log_density, logp[i], 1e-4, "is answered");
    }
    net->scale = 1;
    jem_tensor *t = jem_input(ctx, x, N, CHANNELS, SIDE, SIDE);
    check_blind_to_shift(net, t, labels);
    jem_tensor *plain = jem_forward(bare, t, 0);
    CHECK(plain && !bare->shift && !bare->log_density, "a network without a U-Net has no shift");
    free(x);
    jem_net_free(net);
    jem_net_free(bare);
}

/* Returns the mean log p(x,y) of n images. */
static double mean_of_class(jem_net *net, const float *x, const int *labels, int n) {
    jem_query query = { net, labels, 0 };
    const jem_mark mark = jem_begin(net->ctx);
    jem_tensor *t = jem_input(net->ctx, x, n, CHANNELS, SIDE, SIDE);
    const double mean = (double)jem_item(jem_mean(net->ctx, jem_logp_class(net->ctx, t, &query)));
    jem_end(net->ctx, mark);
    return mean;
}

/* In the term of log p(x,y), e(x) is that of its own images, not that of the last forward pass. */
static void test_term_of_classes(jem_ctx *ctx) {
    printf("contrastive divergence of p(x,y) with e(x)\n");
    const int labels[N] = { 0, 1, 2, 1, 0 };
    const int sample_labels[N] = { 2, 1, 2, 0, 1 };
    jem_net *net = small_net(ctx, 1);
    jem_rng rng = jem_rng_seed(6);
    float *x = random_floats(&rng, N * PIXELS, -1, 1);
    float *x_sample = random_floats(&rng, N * PIXELS, -1, 1);
    const jem_loss_weights w = { 0, 0, 1, 0 };
    for (int n = 2; n <= N; n += N - 2) {          /* also as many samples as images */
        const jem_mark mark = jem_begin(ctx);
        jem_tensor *data = jem_input(ctx, x, N, CHANNELS, SIDE, SIDE);
        jem_tensor *sample = jem_input(ctx, x_sample, n, CHANNELS, SIDE, SIDE);
        jem_tensor *loss = jem_loss(net, &w, data, labels, NULL, sample, sample_labels, NULL);
        const double value = (double)jem_item(loss);
        jem_end(ctx, mark);
        const double expected = mean_of_class(net, x_sample, sample_labels, n) -
                                mean_of_class(net, x, labels, N);
        CHECK(jem_ok(ctx) && fabs(value - expected) < 1e-5, "%g instead of %g %s", value, expected,
              jem_error(ctx));
    }
    free(x);
    free(x_sample);
    jem_net_free(net);
}

static jem_tensor *shifted_wrongly(jem_net *net, jem_tensor *x, int training, void *user) {
    (void)training;
    (void)user;
    net->shift = jem_flatten(net->ctx, x);
    return jem_slice(net->ctx, net->shift, 0, CLASSES);
}
static void test_refusals(jem_ctx *ctx) {
    printf("descriptions that no network has; files keep the others\n");
    jem_wrn_desc d = small_desc(1);
    d.separate_energy = 1;
    CHECK(!jem_wrn_create(ctx, &d, 1) && says(ctx, "separate_energy"), "two outputs for log p(x)");
    d = small_desc(1);
    d.height = 6;
    CHECK(!jem_wrn_create(ctx, &d, 1) && says(ctx, "multiples of 4"), "sides that do not halve");
    d.height = 8;
    d.stem_stride = 2;
    d.width = 12;
    CHECK(!jem_wrn_create(ctx, &d, 1) && says(ctx, "unet"), "nor with this stride");
    d.width = 16;
    jem_net *strided = jem_wrn_create(ctx, &d, 1);
    jem_tensor *wide = jem_zeros(ctx, 2, CHANNELS, 8, 16);
    float two[2];
    CHECK(strided && jem_read(jem_logp(ctx, wide, strided), two) == JEM_OK, "%s", jem_error(ctx));
    jem_net_free(strided);
    jem_net *own = jem_net_create(ctx, shifted_wrongly, NULL, 0, CHANNELS, SIDE, SIDE, CLASSES, 1);
    jem_tensor *x = jem_zeros(ctx, 1, CHANNELS, SIDE, SIDE);
    CHECK(!jem_forward(own, x, 0) && says(ctx, "as shift, not (1,1,1,1)"), "one number per image");
    CHECK(!own->shift, "it is not kept");
    jem_net_free(own);

    jem_net *net = small_net(ctx, 1);
    jem_archive *a = jem_archive_create(ctx);
    CHECK(jem_net_to_archive(net, a) == JEM_OK, "%s", jem_error(ctx));
    CHECK(jem_archive_meta(a, "jem.unet") && jem_archive_meta(a, "jem.blocks"), "both are written");
    jem_net *again = jem_net_from_archive(ctx, a);
    CHECK(again && net_hash(again) == net_hash(net), "%s", jem_error(ctx));
    float f[1], g[1];
    CHECK(jem_read(jem_logp(ctx, x, net), f) == JEM_OK &&
          jem_read(jem_logp(ctx, x, again), g) == JEM_OK && f[0] == g[0], "the same log p(x)");
    jem_archive_set_meta(a, "jem.blocks", "2");
    CHECK(!jem_net_from_archive(ctx, a) && says(ctx, "jem.blocks"), "blocks of a later version");
    jem_archive_free(a);
    jem_net_free(net);
    jem_net_free(again);
}

/* Score matching by the recipe, which refuses a network of scale 1, and needs none with a U-Net. */
static void test_training(jem_ctx *ctx) {
    printf("a score is learned without a scale, where there is a shift\n");
    enum { BATCH = 16, RUN = 300 };
    jem_train_desc how = jem_train_desc_score(RUN);
    how.optim.kind = JEM_OPTIMIZER_MUON;
    how.lr = 5e-3f;
    how.cd_from = RUN - 5;
    how.class_conditional = 1;
    how.restart_denoise.steps = 5;
    how.buffer_size = 12;
    how.negatives = 8;
    jem_net *bare = small_net(ctx, 0);
    CHECK(!jem_trainer_create(bare, &how) && says(ctx, "scale"), "logits alone need a scale");
    jem_net_free(bare);
    const jem_wrn_desc d = small_desc(1);
    jem_net *net = jem_wrn_create(ctx, &d, 3);
    jem_trainer *tr = jem_trainer_create(net, &how);
    if (!CHECK(tr != NULL, "%s", jem_error(ctx))) return;
    jem_rng rng = jem_rng_seed(14);
    float x[BATCH * PIXELS];
    int labels[BATCH];
    double first = 0;
    double last = 0;
    for (int t = 0; t < RUN; t++) {
        for (int i = 0; i < BATCH; i++) {          /* classes of plain colours */
            labels[i] = jem_rng_below(&rng, CLASSES);
            for (int k = 0; k < PIXELS; k++) x[i * PIXELS + k] = .8f * (float)(labels[i] - 1);
        }
        const jem_stats s = jem_train_step(tr, x, labels, BATCH);
        CHECK(s.status == JEM_OK, "update %d: %s", t, jem_error(ctx));
        if (t < 10) first += (double)s.residual / 10;
        if (t >= RUN - 10) last += (double)s.residual / 10;
    }
    CHECK(last < .6 * first, "the residual went from %g to %g", first, last);
    printf("residual %.3f, then %.3f\n", first, last);
    jem_trainer_free(tr);
    jem_net_free(net);
}

/* ---- Muon ------------------------------------------------------------------------------------ */

static double *doubles(ptrdiff_t n) {
    return (double *)calloc(n > 0 ? (size_t)n : 1, sizeof(double));
}

/* The same in double and in plain order: momentum, five Newton-Schulz steps, the update. shrink: of
   gradients, by clipping. */
static void muon_by_hand(double *w, double *m, const float *grad, int rows, int columns, double lr,
                         double decay, double shrink) {
    const int size = rows * columns;
    const int turned = rows > columns;
    const int r = turned ? columns : rows;
    const int c = turned ? rows : columns;
    double *x = doubles(size);
    double *next = doubles(size);
    double *a = doubles(r * r);
    double *b = doubles(r * r);
    double squares = 0;
    for (int i = 0; i < size; i++) {
        const int to = turned ? i % columns * c + i / columns : i;
        const double g = shrink * (double)grad[i];
        m[i] = .95 * m[i] + .05 * g;
        x[to] = .95 * m[i] + .05 * g;
        squares += x[to] * x[to];
    }
    for (int i = 0; i < size; i++) x[i] /= squares > 0 ? sqrt(squares) : 1;
    for (int step = 0; step < 5; step++) {
        for (int i = 0; i < r; i++)
            for (int j = 0; j < r; j++) {
                double sum = 0;
                for (int k = 0; k < c; k++) sum += x[i * c + k] * x[j * c + k];
                a[i * r + j] = sum;
            }
        for (int i = 0; i < r; i++)
            for (int j = 0; j < r; j++) {
                double sum = 0;
                for (int k = 0; k < r; k++) sum += a[i * r + k] * a[k * r + j];
                b[i * r + j] = -4.7750 * a[i * r + j] + 2.0315 * sum;
            }
        for (int i = 0; i < r; i++)
            for (int j = 0; j < c; j++) {
                double sum = 3.4445 * x[i * c + j];
                for (int k = 0; k < r; k++) sum += b[i * r + k] * x[k * c + j];
                next[i * c + j] = sum;
            }
        memcpy(x, next, (size_t)size * sizeof *x);
    }
    for (int i = 0; i < size; i++) {
        const int from = turned ? i % columns * c + i / columns : i;
        w[i] = w[i] * (1 - lr * decay) - lr * .2 * sqrt((double)c) * x[from];
    }
    free(x);
    free(next);
    free(a);
    free(b);
}

enum { MATRICES = 6, UPDATES = 4 };
static const int shapes[MATRICES][4] = {
    { 16, 16, 1, 1 }, { 5, 40, 1, 1 }, { 40, 5, 1, 1 }, { 33, 7, 3, 3 }, { 70, 2, 3, 3 },
    { 2, 2, 1, 1 }
};

/* The bag's matrices in double, and the averages of their weights. */
typedef struct muon_hand { double *w[MATRICES], *m[MATRICES], *average[MATRICES]; } muon_hand;

static void hand_open(muon_hand *h, jem_param *const *p) {
    for (int i = 0; i < MATRICES; i++) {
        h->w[i] = doubles(p[i]->size);
        h->m[i] = doubles(p[i]->size);
        h->average[i] = doubles(p[i]->size);
        for (ptrdiff_t k = 0; k < p[i]->size; k++) h->w[i][k] = (double)p[i]->value[k];
    }
}
/* Takes update number t. The norm that is clipped is that of all gradients. */
static void hand_step(muon_hand *h, jem_param *const *p, const jem_optim_desc *d, int t, float lr) {
    const double clip = (double)d->clip;
    const double ema = fmin((double)d->ema, t / (t + 10.0));
    double square = 0;
    double shrink = 1;
    for (int i = 0; i < MATRICES; i++)
        for (ptrdiff_t k = 0; k < p[i]->size; k++)
            square += (double)p[i]->grad[k] * (double)p[i]->grad[k];
    if (clip > 0 && sqrt(square) > clip) shrink = clip / sqrt(square);
    for (int i = 0; i < MATRICES; i++) {
        muon_by_hand(h->w[i], h->m[i], p[i]->grad, p[i]->shape[0],
                     (int)(p[i]->size / p[i]->shape[0]), (double)lr, (double)d->weight_decay,
                     shrink);
        for (ptrdiff_t k = 0; k < p[i]->size; k++)
            h->average[i][k] = ema * h->average[i][k] + (1 - ema) * h->w[i][k];
    }
}
/* Compares the weights in the bag with their definition, and frees it. */
static void hand_compare(muon_hand *h, jem_param *const *p, jem_optim *o, const jem_optim_desc *d) {
    for (int average = 0; average < (d->ema > 0 ? 2 : 1); average++) {
        CHECK(jem_optim_use_average(o, average) == JEM_OK, "no error");
        for (int i = 0; i < MATRICES; i++) {
            const double *is = average ? h->average[i] : h->w[i];
            double worst = 0;
            for (ptrdiff_t k = 0; k < p[i]->size; k++)
                worst = most_of(worst, fabs((double)p[i]->value[k] - is[k]));
            CHECK(worst < 2e-5, "matrix %d, decay %g, clip %g, average %d: off by %g", i,
                  (double)d->weight_decay, (double)d->clip, average, worst);
        }
    }
    jem_optim_use_average(o, 0);
    for (int i = 0; i < MATRICES; i++) {
        free(h->w[i]);
        free(h->m[i]);
        free(h->average[i]);
    }
}

static jem_optim_desc muon_desc(float decay, float clip, float ema) {
    jem_optim_desc d = jem_optim_desc_default();
    d.kind = JEM_OPTIMIZER_MUON;
    d.weight_decay = decay;
    d.clip = clip;
    d.ema = ema;
    return d;
}

/* A bag with these matrices, which takes some steps on random gradients. Returns the hash. */
static uint64_t muon_steps(jem_ctx *ctx, jem_optim_desc d, int check) {
    jem_net *bag = bag_create(ctx);
    jem_rng rng = jem_rng_seed(21);
    jem_param *p[MATRICES];
    muon_hand h;
    memset(&h, 0, sizeof h);
    for (int i = 0; i < MATRICES; i++)
        p[i] = random_param(bag, &rng, 1, shapes[i][2] > 1 ? 4 : 2, shapes[i][0], shapes[i][1],
                            shapes[i][2], -1, 1);
    if (check) hand_open(&h, p);
    jem_optim *o = jem_optim_create(bag, &d);
    for (int t = 0; t < UPDATES; t++) {
        const float lr = .02f * (float)(t + 1);
        for (int i = 0; i < MATRICES; i++) {
            jem_fill_normal(ctx, &rng, p[i]->grad, p[i]->size, 0, t == 2 ? 1e-3f : 1.0f);
            if (t == 0 && i == 1) memset(p[i]->grad, 0, (size_t)p[i]->size * sizeof(float));
        }
        if (check) hand_step(&h, p, &d, t, lr);
        CHECK(jem_optim_step(o, lr, NULL) == JEM_OK, "%s", jem_error(ctx));
    }
    if (check) hand_compare(&h, p, o, &d);
    const uint64_t hash = net_hash(bag);
    jem_optim_free(o);
    jem_net_free(bag);
    return hash;
}

static void test_muon(jem_ctx *ctx) {
    printf("Muon by its definition, in double; the same bits everywhere\n");
    const jem_optim_desc usual = muon_desc(.3f, 0, 0);
    muon_steps(ctx, muon_desc(0, 0, 0), 1);
    muon_steps(ctx, usual, 1);
    muon_steps(ctx, muon_desc(.3f, 5, .2f), 1);
    const uint64_t expected = muon_steps(ctx, usual, 0);
    static const jem_isa isas[] = { JEM_ISA_SCALAR, JEM_ISA_AVX2, JEM_ISA_AVX512, JEM_ISA_NEON };
    for (size_t i = 0; i < sizeof isas / sizeof *isas; i++)
        for (int threads = 1; threads <= 3 && jem_isa_available(isas[i]); threads += 2) {
            jem_ctx *other = isa_ctx(isas[i], threads);
            CHECK(muon_steps(other, usual, 0) == expected, "%s, %d threads", jem_isa_name(isas[i]),
                  threads);
            jem_ctx_free(other);
        }
}

/* Biases and the weights whose names contain `names` are updated as by Adam alone at adam_rate (a
   power of 2) times the rate and without weight decay, bit for bit; `by_muon` others are not. */
static void check_rest(jem_ctx *ctx, float adam_rate, const char *names, int by_muon) {
    jem_net *net[2] = { small_net(ctx, 1), small_net(ctx, 1) };
    jem_optim *o[2] = { NULL, NULL };
    char copy[64];
    for (int k = 0; k < 2; k++) {
        jem_optim_desc d = jem_optim_desc_default();
        d.kind = k ? JEM_OPTIMIZER_MUON : JEM_OPTIMIZER_ADAM;
        snprintf(copy, sizeof copy, "%s", names);
        if (k) {
            d.adam_rate = adam_rate;
            d.weight_decay = .5f;
            d.adam_names = copy;
        }
        o[k] = jem_optim_create(net[k], &d);
        memset(copy, 0, sizeof copy);              /* it is read at creation only */
        jem_rng rng = jem_rng_seed(6);
        for (int t = 0; t < 2; t++) {
            for (jem_param *p = net[k]->params; p; p = p->next)
                jem_fill_normal(ctx, &rng, p->grad, p->size, 0, 1);
            CHECK(jem_optim_step(o[k], k ? .01f : .01f * adam_rate, NULL) == JEM_OK, "%s",
                  jem_error(ctx));
        }
    }
    int others = 0;
    for (const jem_param *p = net[0]->params, *q = net[1]->params; p; p = p->next, q = q->next) {
        const int same = same_bits(p->value, q->value, p->size);
        CHECK(same == (p->ndim == 1 || strstr(p->name, names) != NULL), "'%s': %s: %s", names,
              p->name, same ? "as with Adam" : "not as with Adam");
        others += !same;
    }
    CHECK(others == by_muon, "'%s': %d weights are orthogonalised", names, others);
    for (int k = 0; k < 2; k++) {
        jem_optim_free(o[k]);
        jem_net_free(net[k]);
    }
}

static void test_rest(jem_ctx *ctx) {
    printf("Adam updates the rest\n");
    jem_net *net = small_net(ctx, 1);
    int weights = 0;
    for (const jem_param *p = net->params; p; p = p->next) weights += p->ndim > 1;
    check_rest(ctx, 1, "output", 13);
    check_rest(ctx, 4, "output", 13);
    check_rest(ctx, 1, net->params->name, weights - 1);        /* the first layer alone */
    jem_net_free(net);
    jem_net *bag = bag_create(ctx);
    jem_optim_desc d = jem_optim_desc_default();
    d.muon_momentum = 1;
    CHECK(!jem_optim_create(bag, &d) && says(ctx, "muon_momentum"), "momentum is below 1");
    d.muon_momentum = .9f;
    d.adam_rate = -1;
    CHECK(!jem_optim_create(bag, &d) && says(ctx, "adam_rate"), "a negative rate");
    jem_net_free(bag);
    net = small_net(ctx, 1);
    d = muon_desc(4, 0, 0);
    jem_optim *o = jem_optim_create(net, &d);
    const uint64_t before = net_hash(net);
    CHECK(jem_optim_step(o, .26f, NULL) == JEM_BAD_ARGUMENT && says(ctx, "lr * weight_decay") &&
          net_hash(net) == before, "decay that would change signs: %s", jem_error(ctx));
    CHECK(jem_optim_step(o, .25f, NULL) == JEM_OK, "decay to 0: %s", jem_error(ctx));
    jem_optim_free(o);
    jem_net_free(net);
}

/* ---- for PyTorch ----------------------------------------------------------------------------- */

static void add(jem_archive *a, const char *name, int n, int numbers, const float *data) {
    const int64_t shape[2] = { n, numbers };
    CHECK(jem_archive_add(a, name, JEM_DTYPE_F32, 2, shape, data) == JEM_OK, "%s", name);
}
/* Writes a network, images, logits, log p(x), its slope, the gradient of cross-entropy, and the
   weights after two steps of Muon on that gradient. */
static void write_case(jem_ctx *ctx, const char *path) {
    enum { LR_IN_THOUSANDTHS = 10 };
    static float x[N * PIXELS], f[N * CLASSES], logp[N], slope[N * PIXELS];
    jem_net *net = small_net(ctx, 1);
    jem_net *after = small_net(ctx, 1);
    jem_rng rng = jem_rng_seed(8);
    int labels[N];
    float floats_of_labels[N];
    char names[64][80];
    int count = 0;
    jem_fill_uniform(ctx, &rng, x, N * PIXELS, -1, 1);
    for (int i = 0; i < N; i++) {
        labels[i] = i % CLASSES;
        floats_of_labels[i] = (float)labels[i];
    }
    jem_tensor *t = jem_input(ctx, x, N, CHANNELS, SIDE, SIDE);
    jem_tensor *y = jem_logp(ctx, t, net);
    CHECK(jem_grad(y, t) == JEM_OK && jem_read_grad(t, slope) == JEM_OK, "%s", jem_error(ctx));
    CHECK(jem_read(y, logp) == JEM_OK, "%s", jem_error(ctx));
    CHECK(jem_read(jem_forward(net, t, 0), f) == JEM_OK, "%s", jem_error(ctx));
    jem_backward(jem_cross_entropy(ctx, jem_forward(after, t, 1), labels));
    jem_archive *a = jem_archive_create(ctx);
    CHECK(jem_net_to_archive(net, a) == JEM_OK, "%s", jem_error(ctx));
    add(a, "x", N, PIXELS, x);
    add(a, "labels", N, 1, floats_of_labels);
    add(a, "logits", N, CLASSES, f);
    add(a, "logp", N, 1, logp);
    add(a, "slope", N, PIXELS, slope);
    jem_optim_desc d = jem_optim_desc_default();
    d.kind = JEM_OPTIMIZER_MUON;
    jem_optim *o = jem_optim_create(after, &d);
    for (int i = 0; i < 2; i++)
        CHECK(jem_optim_step(o, LR_IN_THOUSANDTHS / 1000.0f, NULL) == JEM_OK, "%s", jem_error(ctx));
    for (jem_param *p = after->params; p; p = p->next) {
        snprintf(names[count], sizeof names[0], "grad/%s", p->name);
        add(a, names[count++], 1, (int)p->size, p->grad);
        snprintf(names[count], sizeof names[0], "after/%s", p->name);
        add(a, names[count++], 1, (int)p->size, p->value);
    }
    CHECK(jem_archive_write(a, path) == JEM_OK, "%s", jem_error(ctx));
    jem_archive_free(a);
    jem_optim_free(o);
    jem_net_free(net);
    jem_net_free(after);
}

/* A file's name has a dot, a test's has none. */
int main(int argc, char **argv) {
    static const test_case all[] = {
        TEST_IN(test_identity), TEST_IN(test_odd_sides), TEST_IN(test_shift),
        TEST_IN(test_term_of_classes), TEST_IN(test_refusals),
        TEST_IN(test_training), TEST_IN(test_muon), TEST_IN(test_rest)
    };
    if (argc > 1 && strchr(argv[1], '.')) {
        counter c;
        jem_ctx *ctx = open_ctx(&c);
        write_case(ctx, argv[1]);
        close_ctx(ctx, &c, "a case for PyTorch");
        return test_report();
    }
    return run_each_in_ctx(argc, argv, all, TEST_COUNT(all));
}
