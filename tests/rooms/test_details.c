/* Details in the comments of the API: options of training, limits of ops, watch functions, attacks
   in place, fitted values, messages. For each check there is a change of jem.h that breaks it. */
#define JEM_IMPLEMENTATION
#include "jem.h"
#include "tests/support/test.h"
#include "tests/support/common.h"
#include "tests/support/elementwise.h"

/* Logits w sum(x) and -w sum(x) in turn: every gradient is known. `energy` (may be NULL) makes
   log p(x) something else. */
typedef struct line { jem_layer layer; jem_logp_fn energy; } line;

static jem_tensor *line_forward(jem_net *net, jem_tensor *x, int training, void *user) {
    const line *l = (const line *)user;
    if (l->energy) net->log_density = l->energy(net->ctx, x, NULL);
    return jem_apply(&l->layer, jem_flatten(net->ctx, x), training);
}

static jem_net *line_net(jem_ctx *ctx, int side, int classes, float w, jem_logp_fn energy) {
    jem_net *net = jem_net_create(ctx, line_forward, NULL, sizeof(line), 1, side, side, classes, 1);
    line *l = (line *)net->user;
    l->layer = jem_linear_layer(net, "last", side * side, classes);
    l->energy = energy;
    jem_param *p = l->layer.weight;
    jem_param *b = l->layer.bias;
    for (ptrdiff_t i = 0; i < p->size; i++) p->value[i] = i / (side * side) % 2 ? -w : w;
    memset(b->value, 0, (size_t)b->size * sizeof *b->value);
    jem_param_changed(p);
    jem_param_changed(b);
    return net;
}

static jem_tensor *squares(jem_ctx *ctx, jem_tensor *x, void *user) {
    (void)user;
    return jem_sum_image(ctx, jem_square(ctx, x));
}
static jem_tensor *slant(jem_ctx *ctx, jem_tensor *x, void *user) {    /* its slope is 1 */
    (void)user;
    return jem_sum_image(ctx, x);
}

static const small_shape four_classes = { 1, 3, 3, 4, 12 };

/* ---- training -------------------------------------------------------------------------------- */

/* Images are 0, so that the mean square of a pixel is that of its noise. */
static void test_label_noise(jem_ctx *ctx) {
    printf("noise of cross-entropy's images\n");
    enum { N = 1600, PIXELS = 16 };
    static float x[N * PIXELS];
    static int labels[N];
    static const float how[5][4] = {       /* label_noise, label_wide, noise_lo, noise_hi */
        { 0, 0, 100, 100 }, { 0, 0.25f, 100, 100 }, { 0, 1, 100, 100 }, { 3, 0, 100, 100 },
        { 2, 0.5f, 0.1f, 4 }
    };
    float ce[5];
    for (int i = 0; i < N; i++) labels[i] = i & 1;
    for (int k = 0; k < 5; k++) {
        jem_net *net = line_net(ctx, 4, 2, 0.02f, squares);
        jem_train_desc d = jem_train_desc_default();
        d.weights.cd = 0;
        d.data_noise = 0;
        d.label_noise = how[k][0];
        d.label_all_noise = how[k][1];
        d.noise_lo = how[k][2];
        d.noise_hi = how[k][3];
        jem_trainer *tr = jem_trainer_create(net, &d);
        const jem_stats s = jem_train_step(tr, x, labels, N);
        const double wide = (double)how[k][1], u = (double)how[k][0], lo = (double)how[k][2],
                     hi = (double)how[k][3];
        const double all = hi > lo ? (hi * hi - lo * lo) / (2 * log(hi / lo)) : lo * lo;
        const double want = wide * all + (1 - wide) * u * u / 3;
        CHECK_CLOSE(s.f_data / PIXELS, want, 0.1 * want, "noise of case %d", k);
        ce[k] = s.ce;
        jem_trainer_free(tr);
        jem_net_free(net);
    }
    CHECK_CLOSE(ce[0], log(2), 1e-6, "nothing is known of images without noise");
    CHECK(ce[2] > 5, "what is learned in noise: %g", (double)ce[2]);
    CHECK_CLOSE(ce[1], 0.25 * (double)ce[2] + 0.75 * log(2), 0.1 * (double)ce[1], "a quarter");
    CHECK(ce[3] > 0.7f && ce[3] < ce[1], "little noise: %g", (double)ce[3]);
}

/* The loss, plain cross-entropy, and the weights after a step. */
enum { SMOOTHED = 19, SMOOTHED_CLASSES = 4, SMOOTHED_PIXELS = 9 };
typedef struct smoothed { double loss, ce, weights[SMOOTHED_CLASSES * SMOOTHED_PIXELS]; } smoothed;

/* Computes a step of SGD by hand. */
static smoothed smooth(const jem_param *w, const float *x, const int *labels, double rate,
                       double share) {
    enum { N = SMOOTHED, CLASSES = SMOOTHED_CLASSES, PIXELS = SMOOTHED_PIXELS };
    smoothed s = { 0, 0, { 0 } };
    for (int i = 0; i < CLASSES * PIXELS; i++) s.weights[i] = (double)w->value[i];
    for (int i = 0; i < N; i++) {
        double f[CLASSES];
        double sum = 0;
        for (int c = 0; c < CLASSES; c++) {
            f[c] = 0;
            for (int k = 0; k < PIXELS; k++)
                f[c] += (double)w->value[c * PIXELS + k] * (double)x[i * PIXELS + k];
            sum += exp(f[c]);
        }
        s.ce += (log(sum) - f[labels[i]]) / N;
        for (int c = 0; c < CLASSES; c++) {
            const double target = (c == labels[i] ? 1 - share : 0) + share / CLASSES;
            const double slope = exp(f[c]) / sum - target;
            s.loss += target * (log(sum) - f[c]) / N;
            for (int k = 0; k < PIXELS; k++)
                s.weights[c * PIXELS + k] -= rate * slope * (double)x[i * PIXELS + k] / N;
        }
    }
    return s;
}

/* Cross-entropy with a target that gives 1 - s to the label and s to all classes alike: the loss,
   and a step of SGD, which must be its gradient's; `ce` remains the plain one. */
static void test_label_smoothing(jem_ctx *ctx) {
    printf("label smoothing\n");
    enum { N = SMOOTHED, SIDE = 3, PIXELS = SIDE * SIDE, CLASSES = SMOOTHED_CLASSES };
    const double rate = 0.5;
    const double share = 0.3;
    float x[N * PIXELS];
    int labels[N];
    jem_rng rng = jem_rng_seed(8);
    for (int i = 0; i < N * PIXELS; i++) x[i] = jem_rng_normal(&rng);
    for (int i = 0; i < N; i++) labels[i] = jem_rng_below(&rng, CLASSES);
    jem_net *net = line_net(ctx, SIDE, CLASSES, 0.3f, NULL);
    jem_param *w = net->params;
    for (ptrdiff_t i = 0; i < w->size; i++) w->value[i] = jem_rng_normal(&rng);
    jem_param_changed(w);
    const smoothed wanted = smooth(w, x, labels, rate, share);
    jem_train_desc d = jem_train_desc_default();
    d.weights.cd = 0;
    d.data_noise = 0;
    d.label_smoothing = (float)share;
    d.optim.kind = JEM_OPTIMIZER_SGD;
    d.optim.momentum = 0;
    d.lr = (float)rate;
    jem_trainer *tr = jem_trainer_create(net, &d);
    const jem_stats s = jem_train_step(tr, x, labels, N);
    CHECK_CLOSE(s.loss, wanted.loss, 1e-5, "the loss");
    CHECK_CLOSE(s.ce, wanted.ce, 1e-5, "cross-entropy without smoothing");
    for (int i = 0; i < CLASSES * PIXELS; i++)
        CHECK_CLOSE(w->value[i], wanted.weights[i], 1e-5, "weight %d after a step", i);
    jem_trainer_free(tr);
    jem_net_free(net);
}

/* Slots are marked by 9 visits: a fresh chain has none, or one if it was drawn at once. */
static void test_fresh_chains(jem_ctx *ctx) {
    printf("fresh chains: as many as are walked, every 1/reinit updates\n");
    enum { SLOTS = 200, PIXELS = 4, UPDATES = 81 };
    static float before[SLOTS * PIXELS];
    for (int by_class = 0; by_class < 2; by_class++) {
        jem_net *net = line_net(ctx, 2, 2, 0.1f, NULL);
        jem_train_desc d = jem_train_desc_default();
        d.negatives = 2;
        d.buffer_size = SLOTS;
        d.reinit = 0.25f;
        d.restart_denoise.steps = 2;
        d.class_conditional = by_class;
        d.sgld.steps = 1;
        jem_trainer *tr = jem_trainer_create(net, &d);
        jem_buffer *b = jem_trainer_buffer(tr);
        const float x[2 * PIXELS] = { 0 };
        const int labels[2] = { 0, 1 };
        int fresh = 0;
        int places[4] = { 0 };
        for (int k = 0; k < UPDATES; k++) {
            int changed = 0;
            int now = 0;
            memcpy(before, b->data, sizeof before);
            CHECK(jem_train_step(tr, x, labels, 2).status == JEM_OK, "%s", jem_error(ctx));
            for (int i = 0; i < SLOTS; i++) {
                const int is = b->visits[i] < 9;
                changed += !same_bits(before + i * PIXELS, b->data + i * PIXELS, PIXELS);
                now += is;
                b->visits[i] = 9;
                if (k) places[i / (SLOTS / 4)] += is;
            }
            if (k == 0) CHECK(changed == SLOTS, "all begin fresh: %d do", changed);
            else CHECK(changed <= (k % 4 ? 2 : 4) && now <= (k % 4 ? 0 : 2),
                       "update %d: %d slots changed, %d are fresh", k, changed, now);
            fresh += k ? now : 0;
        }
        CHECK(fresh > 36, "%d chains are fresh, of 40", fresh);
        for (int i = 0; i < 4; i++)
            CHECK(places[i] > 2, "into any slot: %d in part %d", places[i], i);
        jem_trainer_free(tr);
        jem_net_free(net);
    }
}

/* Chains that were put into the buffer before the first update remain; empty slots get samples. */
static void test_put_chains(jem_ctx *ctx) {
    printf("chains that a program puts into an empty buffer\n");
    enum { SLOTS = 40, PIXELS = 4 };
    for (int first = 0; first < 2; first++) {
        jem_net *net = line_net(ctx, 2, 2, 0.1f, NULL);
        jem_train_desc d = jem_train_desc_default();
        d.negatives = 2;
        d.buffer_size = SLOTS;
        d.reinit = 0;
        d.restart_denoise.steps = 2;
        d.sgld.steps = 0;                          /* chains stay where they are */
        jem_trainer *tr = jem_trainer_create(net, &d);
        jem_buffer *b = jem_trainer_buffer(tr);
        float before[SLOTS * PIXELS];
        const float put[2 * PIXELS] = { 7, 7, 7, 7, 8, 8, 8, 8 };
        const int slot[2] = { first ? 0 : 3, 5 };
        const int label = 0;
        const float x[PIXELS] = { 0 };
        int filled = 0;
        CHECK(jem_buffer_put(b, 2, slot, put) == JEM_OK, "%s", jem_error(ctx));
        CHECK(b->visits[5] == 1 && b->visits[6] == -1, "%d, %d visits", b->visits[5], b->visits[6]);
        memcpy(before, b->data, sizeof before);
        CHECK(jem_train_step(tr, x, &label, 1).status == JEM_OK, "%s", jem_error(ctx));
        CHECK(same_bits(put, b->data + slot[0] * PIXELS, PIXELS) &&
              same_bits(put + PIXELS, b->data + slot[1] * PIXELS, PIXELS), "they remain");
        for (int i = 0; i < SLOTS; i++)
            filled += !same_bits(before + i * PIXELS, b->data + i * PIXELS, PIXELS);
        CHECK(filled == SLOTS - 2, "the others are samples: %d", filled);
        jem_trainer_free(tr);
        jem_net_free(net);
    }
}

static void test_restart(jem_ctx *ctx) {
    printf("chains begin and restart in their range\n");
    enum { SLOTS = 100, PIXELS = 4 };
    static const float range[3][2] = { { 2, 3 }, { 0, 1 }, { -1, 4 } };
    static float before[SLOTS * PIXELS];
    for (int k = 0; k < 3; k++) {
        const float lo = range[k][0];
        const float hi = range[k][1];
        const float x[PIXELS] = { 0 };
        const int label = 0;
        jem_net *net = line_net(ctx, 2, 2, 0.1f, NULL);
        jem_train_desc d = jem_train_desc_default();
        d.restart_lo = lo;
        d.restart_hi = hi;
        d.buffer_size = SLOTS;
        d.negatives = 50;
        d.reinit = 1;
        d.sgld.steps = 0;            /* what is drawn has just begun, and stays */
        jem_trainer *tr = jem_trainer_create(net, &d);
        const float *data = jem_trainer_buffer(tr)->data;
        for (int again = 0; again < 2; again++) {
            double sum = 0;
            int outside = 0;
            for (int i = 0; i < SLOTS * PIXELS; i++) {
                sum += (double)data[i];
                outside += !(data[i] >= lo && data[i] < hi);
            }
            CHECK(outside == 0, "%d of U(%g,%g) are outside", outside, (double)lo, (double)hi);
            CHECK_CLOSE(sum / (SLOTS * PIXELS), (lo + hi) / 2, 0.06 * (double)(hi - lo),
                        "their mean");
            if (again) CHECK(!same_bits(before, data, SLOTS * PIXELS), "none has restarted");
            memcpy(before, data, sizeof before);
            if (!again) jem_train_step(tr, x, &label, 1);
        }
        jem_trainer_free(tr);
        jem_net_free(net);
    }
}

typedef struct hook { int calls, wrong, by_class, count[3]; } hook;
static void see_chain(void *user, jem_rng *rng, int visits, int label, float *x) {
    hook *h = (hook *)user;
    (void)rng;
    (void)visits;
    h->calls++;
    h->wrong += h->by_class ? label < 0 || label > 2 || x[0] != (float)label
        : label != -1;
    if (label >= 0 && label < 3) h->count[label]++;
}

/* A slot holds its class; the chains of an update have the classes of its images. */
static void test_chain_label(jem_ctx *ctx) {
    printf("the label of a chain\n");
    enum { SLOTS = 30, PIXELS = 4, UPDATES = 5, N = 4, CHAINS = 8 };
    for (int by_class = 0; by_class < 2; by_class++) {
        hook h = { 0, 0, by_class, { 0, 0, 0 } };
        const float x[N * PIXELS] = { 0 };
        const int labels[N] = { 2, 0, 2, 2 };
        jem_net *net = line_net(ctx, 2, 3, 0.1f, NULL);
        jem_train_desc d = jem_train_desc_default();
        d.class_conditional = by_class;
        d.buffer_size = SLOTS;
        d.negatives = CHAINS;
        d.reinit = 0;
        d.sgld.steps = 0;
        d.chain = see_chain;
        d.chain_user = &h;
        jem_trainer *tr = jem_trainer_create(net, &d);
        float *data = jem_trainer_buffer(tr)->data;
        for (int i = 0; i < SLOTS * PIXELS; i++) data[i] = (float)(i / (PIXELS * SLOTS / 3));
        for (int k = 0; k < UPDATES; k++) jem_train_step(tr, x, labels, N);
        CHECK(h.calls == UPDATES * CHAINS && h.wrong == 0, "by class %d: %d calls, %d wrong",
              by_class, h.calls, h.wrong);
        const int each = by_class ? UPDATES * CHAINS / N : 0;
        CHECK(h.count[0] == each && h.count[1] == 0 && h.count[2] == 3 * each,
              "by class %d: %d, %d and %d chains", by_class, h.count[0], h.count[1], h.count[2]);
        jem_trainer_free(tr);
        jem_net_free(net);
    }
}

static void test_batch_accuracy(jem_ctx *ctx) {
    printf("accuracy of a batch\n");
    enum { N = 20 };
    jem_rng rng = jem_rng_seed(3);
    float *x = random_floats(&rng, N * 9, -1, 1);
    int labels[N];
    jem_net *net = small_mlp(ctx, four_classes, 2);
    jem_train_desc d = jem_train_desc_default();
    d.weights.cd = 0;
    d.data_noise = 0;
    d.lr = 0.03f;
    jem_trainer *tr = jem_trainer_create(net, &d);
    random_labels(&rng, labels, N, 4);
    for (int k = 0; k < 8; k++) {
        const float want = jem_accuracy(net, x, labels, N);
        CHECK_CLOSE(jem_train_step(tr, x, labels, N).accuracy, want, 0, "update %d", k);
    }
    jem_trainer_free(tr);
    jem_net_free(net);
    free(x);
}

/* The loss of a small network, whose value depends on the step a little. */
static float score_of(jem_ctx *ctx, float step) {
    static const float sigma[3] = { .2f, .5f, 1 };
    jem_rng rng = jem_rng_seed(1);
    jem_rng data = jem_rng_seed(2);
    jem_score_desc d;
    float *x = random_floats(&data, 27, -1, 1);
    jem_net *net = small_mlp(ctx, four_classes, 3);
    d.sigma = sigma;
    d.weight = NULL;
    d.difference = step;
    jem_tensor *t = jem_input(ctx, x, 3, 1, 3, 3);
    const float loss = jem_item(jem_score_matching(ctx, jem_logp, net, t, &d, &rng, NULL));
    jem_reset(ctx);
    jem_net_free(net);
    free(x);
    return loss;
}
static void test_score_step(jem_ctx *fp32) {
    printf("score matching's step, if none is given\n");
    jem_ctx_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.precision = JEM_PRECISION_BF16;
    desc.isa = JEM_ISA_SCALAR;    /* which has it everywhere */
    jem_ctx *bf16 = jem_ctx_create(&desc);
    const float of[2] = { score_of(fp32, 0), score_of(bf16, 0) };
    const float is[2] = { score_of(fp32, 0.03f), score_of(bf16, 0.1f) };
    CHECK(of[0] == is[0] && of[1] == is[1], "%g %g: %g %g", (double)of[0], (double)of[1],
          (double)is[0], (double)is[1]);
    CHECK(of[0] != score_of(fp32, 0.06f) && of[1] != score_of(bf16, 0.2f), "twice the step");
    jem_ctx_free(bf16);
}

/* ---- ops ------------------------------------------------------------------------------------- */

typedef struct conv_shape { int n, side, k, stride, pad; } conv_shape;

static int out_side(conv_shape s) { return (s.side + 2 * s.pad - s.k) / s.stride + 1; }

/* Computes y, and of sum(y g) the gradients dx and dw. */
static void plain_conv(const float *x, const float *w, const float *g, conv_shape s,
                       float *out[3]) {
    enum { IN = 2, OUT = 3 };
    const int n = s.n;
    const int side = s.side;
    const int k = s.k;
    const int to = out_side(s);
    double *dx = (double *)calloc((size_t)(n * IN * side * side), sizeof *dx);
    double *dw = (double *)calloc((size_t)(OUT * IN * k * k), sizeof *dw);
    for (int at = 0; at < n * OUT * to * to; at++) {
        const int j = at % to;
        const int i = at / to % to;
        const int o = at / to / to % OUT;
        const int image = at / to / to / OUT;
        double sum = 0;
        for (int t = 0; t < IN * k * k; t++) {
            const int row = i * s.stride + t / k % k - s.pad;
            const int col = j * s.stride + t % k - s.pad;
            if (row < 0 || row >= side || col < 0 || col >= side) continue;
            const int from = ((image * IN + t / k / k) * side + row) * side + col;
            const int weight = o * IN * k * k + t;
            sum += (double)x[from] * (double)w[weight];
            dx[from] += (double)g[at] * (double)w[weight];
            dw[weight] += (double)g[at] * (double)x[from];
        }
        out[0][at] = (float)sum;
    }
    for (int i = 0; i < n * IN * side * side; i++) out[1][i] = (float)dx[i];
    for (int i = 0; i < OUT * IN * k * k; i++) out[2][i] = (float)dw[i];
    free(dx);
    free(dw);
}

/* Computes the same with the library. */
static void library_conv(jem_net *bag, const float *x, jem_param *w, const float *g, conv_shape s,
                         float *out[3]) {
    jem_ctx *ctx = bag->ctx;
    jem_conv_desc d;
    d.stride = s.stride == 1 ? 0 : s.stride;       /* 0 means 1 */
    d.pad = s.pad;
    jem_tensor *t = jem_input(ctx, x, s.n, 2, s.side, s.side);
    jem_tensor *by = jem_input(ctx, g, s.n, 3, out_side(s), out_side(s));
    jem_tensor *y = jem_conv2d(ctx, t, w, NULL, d);
    jem_tensor *each = jem_sum_image(ctx, jem_mul(ctx, y, by));
    jem_zero_grad(bag);
    jem_read(y, out[0]);
    jem_grad(each, t);
    jem_read_grad(t, out[1]);
    CHECK(jem_backward(jem_sum(ctx, each)) == JEM_OK, "%s", jem_error(ctx));
    memcpy(out[2], w->grad, (size_t)w->size * sizeof(float));
}

static void test_large_kernels(jem_ctx *ctx) {
    printf("convolutions up to 32 x 32\n");
    static const char *const name[3] = { "y", "dx", "dw" };
    static const conv_shape how[4] = {
        { 2, 23, 20, 1, 1 }, { 17, 25, 20, 2, 3 }, { 1, 34, 32, 1, 0 }, { 3, 32, 32, 3, 4 }
    };
    jem_rng rng = jem_rng_seed(4);
    jem_net *bag = bag_create(ctx);
    for (int c = 0; c < 4; c++) {
        const conv_shape s = how[c];
        const int to = out_side(s);
        const int sizes[3] = { s.n * 3 * to * to, s.n * 2 * s.side * s.side, 6 * s.k * s.k };
        float *x = random_floats(&rng, sizes[1], -1, 1);
        float *g = random_floats(&rng, sizes[0], -1, 1);
        float *want[3], *got[3];
        jem_param *w = random_param(bag, &rng, 1, 4, 3, 2, s.k, -1, 1);
        for (int i = 0; i < 3; i++) {
            want[i] = floats(sizes[i]);
            got[i] = floats(sizes[i]);
        }
        plain_conv(x, w->value, g, s, want);
        library_conv(bag, x, w, g, s, got);
        for (int i = 0; i < 3; i++) {
            CHECK(largest_gap(got[i], want[i], sizes[i]) < 1e-5, "k = %d, %s: off by %g", s.k,
                  name[i], largest_gap(got[i], want[i], sizes[i]));
            free(want[i]);
            free(got[i]);
        }
        free(x);
        free(g);
    }
    jem_conv_desc d = { 1, 0 };
    jem_param *w = random_param(bag, &rng, 1, 4, 1, 1, 33, -1, 1);
    CHECK(!jem_conv2d(ctx, jem_zeros(ctx, 1, 1, 40, 40), w, NULL, d) &&
          jem_error_status(ctx) == JEM_BAD_SHAPE && says(ctx, "do not fit"), "k = 33");
    jem_reset(ctx);
    jem_net_free(bag);
}

static void test_large_windows(jem_ctx *ctx) {
    printf("windows up to 15 x 15\n");
    enum { N = 3, SIDE = 31, K = 15 };
    jem_rng rng = jem_rng_seed(5);
    float *x = random_floats(&rng, N * SIDE * SIDE, -1, 1);
    float y[N * 5 * 5];
    jem_tensor *t = jem_input(ctx, x, N, 1, SIDE, SIDE);
    for (int stride = 0; stride < 5; stride += 4) {
        const int s = stride ? stride : K;
        const int to = (SIDE - K) / s + 1;
        int wrong = 0;
        jem_read(jem_max_pool(ctx, t, K, stride), y);
        for (int at = 0; at < N * to * to; at++) {
            float most = -2;
            for (int i = 0; i < K * K; i++)
                most = fmaxf(most, x[(at / to / to * SIDE + at / to % to * s + i / K) * SIDE +
                                     at % to * s + i % K]);
            wrong += y[at] != most;
        }
        CHECK(wrong == 0, "stride %d: %d are not the largest", stride, wrong);
    }
    CHECK(!jem_max_pool(ctx, t, 16, 0) && says(ctx, "15x15 at most"), "k = 16");
    free(x);
}

/* Returns number i of n, which are spread evenly, and closely around 0 (for log: around 1). */
static double argument_at(int i, int n, int positive) {
    const double even = 2.0 * i / (n - 1) - 1;
    const double close = even * even * even * even * even;
    if (positive) return i % 2 ? pow(10, 30 * even) : 1 + close / 2;
    return i % 2 ? 100 * even : close;
}

static void test_functions(jem_ctx *ctx) {
    printf("elementary functions against libm\n");
    enum { N = 12800 };
    static float x[N], y[N];
    for (const struct elementwise *e = elementwise; e < elementwise + ELEMENTWISE; e++) {
        const int positive = e->op == jem_log;
        int at = 0;
        int wrong = 0;
        for (int i = 0; i < N; i++) x[i] = (float)argument_at(i, N, positive);
        CHECK(jem_read(e->op(ctx, jem_input(ctx, x, 16, 1, 1, N / 16)), y) == JEM_OK, "%s",
              jem_error(ctx));
        for (int i = 0; i < N; i++) {
            const double want = e->f((double)x[i]);
            if (fabs((double)y[i] - want) <= 3e-7 * fabs(want) + e->absolute) continue;
            at = i;
            wrong++;
        }
        CHECK(wrong == 0, "%s: %d are wrong, as %g of %g", e->name, wrong, (double)y[at],
              (double)x[at]);
    }
}

/* ---- watches --------------------------------------------------------------------------------- */

/* Counts, stops at step `stop`, and looks whether what is known is as it was. */
typedef struct looker { int calls, last, stop, jumps, moved; const float *known, *x; } looker;
enum { PIXELS = 9, MOST = 3 * PIXELS };

static int look(void *user, int step, jem_tensor *t) {
    looker *l = (looker *)user;
    float now[MOST];
    l->jumps += step != l->last + 1;
    l->last = step;
    l->calls++;
    if (l->known && jem_read(t, now) == JEM_OK)
        for (int i = 0; i < MOST; i++) l->moved += l->known[i] != 0 && now[i] != l->x[i];
    return step == l->stop;
}
static looker looks(int stop, const float *known, const float *x) {
    const looker l = { 0, -1, stop, 0, 0, known, x };
    return l;
}

static void test_walk_watches(jem_ctx *ctx) {
    printf("watches of jem_denoise and jem_kl_walk\n");
    jem_rng rng = jem_rng_seed(6);
    jem_rng same = rng;
    float *x = random_floats(&rng, MOST, -1, 1);
    float y[MOST];
    float z[MOST];
    jem_tensor *t = jem_input(ctx, x, 3, 1, 3, 3);
    jem_tensor *u = jem_input(ctx, x, 3, 1, 3, 3);
    jem_denoise_desc d = jem_denoise_desc_default();
    jem_denoise_desc two = d;
    looker l = looks(1, NULL, NULL);
    d.steps = 5;
    d.watch = look;
    d.watch_user = &l;
    two.steps = 2;
    same = rng;
    CHECK(jem_denoise(ctx, gauss, NULL, t, &d, &rng) == JEM_OK && l.calls == 2 && l.jumps == 0,
          "denoise: %d calls", l.calls);
    jem_denoise(ctx, gauss, NULL, u, &two, &same);
    jem_read(t, y);
    jem_read(u, z);
    CHECK(same_bits(y, z, MOST), "it stops at once");
    l = looks(9, NULL, NULL);
    jem_denoise(ctx, gauss, NULL, t, &d, &rng);
    CHECK(l.calls == 5 && l.jumps == 0, "denoise: %d calls", l.calls);

    /* where it stops, the last step follows: 3 of 5 in all */
    jem_sgld_desc walk = jem_sgld_desc_default();
    l = looks(1, NULL, NULL);
    walk.steps = 5;
    walk.step_size = 0.25f;
    walk.watch = look;
    walk.watch_user = &l;
    jem_write(t, x);
    CHECK(jem_kl_walk(ctx, slant, NULL, t, &walk, 0, NULL) != NULL, "%s", jem_error(ctx));
    jem_read(t, y);
    CHECK(l.calls == 3 && l.last == 4, "kl_walk: %d calls, the last is step %d", l.calls, l.last);
    for (int i = 0; i < MOST; i++) CHECK_CLOSE(y[i], x[i] + 0.75f, 1e-6, "three steps");
    free(x);
}

/* -|x|^2/2 - (sum of x)^2/4: what is known decides what is not */
static jem_tensor *coupled(jem_ctx *ctx, jem_tensor *x, void *user) {
    (void)user;
    jem_tensor *length = jem_scale(ctx, jem_sum_image(ctx, jem_square(ctx, x)), -0.5f);
    jem_tensor *sum = jem_square(ctx, jem_sum_image(ctx, x));
    return jem_add(ctx, length, jem_scale(ctx, sum, -0.25f));
}
static int looks_on(void *user, int step, jem_tensor *x) {
    (void)user;
    (void)step;
    (void)x;
    return 0;
}
/* A watch is shown what is known, and changes nothing. */
static void test_impute_watched(jem_ctx *ctx) {
    enum { N = 50 };                              /* lanes without an image, too */
    float y[2][3 * N], known[3 * N];
    double sum = 0;
    for (int k = 0; k < 2; k++) {
        jem_rng rng = jem_rng_seed(9);
        jem_impute_desc d = jem_impute_desc_default();
        d.denoise.steps = 100;
        d.denoise.sigma_max = 1;
        d.walk.step_size = 0.1f;
        if (k) d.walk.watch = looks_on;
        for (int i = 0; i < 3 * N; i++) {
            known[i] = (float)(i % 3 == 0);
            y[k][i] = 1.5f;
        }
        jem_tensor *x = jem_input(ctx, y[k], N, 1, 1, 3);
        CHECK(jem_impute(ctx, coupled, NULL, x, known, &d, &rng) == JEM_OK, "%s", jem_error(ctx));
        jem_read(x, y[k]);
    }
    for (int i = 0; i < 3 * N; i++) sum += known[i] == 0 ? (double)y[0][i] / (2 * N) : 0;
    CHECK(same_bits(y[0], y[1], 3 * N), "a watch that does nothing changes what is imputed");
    CHECK_CLOSE(sum, -0.375, 0.03, "their mean, cleaned of noise");
}

static void test_impute_watches(jem_ctx *ctx) {
    printf("watches of jem_impute, and what is known\n");
    static const int how[5][5] = {  /* denoise.steps, its stop, the walk's; calls of either */
        { 5, 9, 9, 5, 5 }, { 5, 1, 9, 2, 0 }, { 5, 9, 1, 5, 2 }, { 0, 9, 1, 0, 2 },
        { 0, 9, 9, 0, 5 }
    };
    jem_rng rng = jem_rng_seed(7);
    float *x = random_floats(&rng, MOST, -1, 1);
    float known[MOST];
    float y[MOST];
    for (int i = 0; i < MOST; i++) known[i] = (float)(i % 3 == 0);
    for (int k = 0; k < 5; k++) {
        looker first = looks(how[k][1], NULL, NULL), second = looks(how[k][2], known, x);
        jem_impute_desc d = jem_impute_desc_default();
        d.denoise.steps = how[k][0];
        d.denoise.watch = look;
        d.denoise.watch_user = &first;
        d.walk = jem_sgld_desc_langevin(0.1f, 5);
        d.walk.watch = look;
        d.walk.watch_user = &second;
        jem_tensor *t = jem_input(ctx, x, 3, 1, 3, 3);
        CHECK(jem_impute(ctx, gauss, NULL, t, known, &d, &rng) == JEM_OK, "%s", jem_error(ctx));
        CHECK(first.calls == how[k][3] && second.calls == how[k][4] &&
              first.jumps + second.jumps == 0, "case %d: %d and %d calls", k, first.calls,
              second.calls);
        CHECK(second.moved == 0, "case %d: what is known moved, %d times", k, second.moved);
        int off = 0;
        int stayed = 0;
        jem_read(t, y);
        for (int i = 0; i < MOST; i++) {
            off += known[i] != 0 && y[i] != x[i];
            stayed += known[i] == 0 && y[i] == x[i];
        }
        CHECK(off == 0 && stayed == 0, "case %d: %d known, %d not", k, off, stayed);
    }
    free(x);
}

/* ---- chains, samples ------------------------------------------------------------------------- */

static void test_flat_samples(jem_ctx *ctx) {
    printf("samples of a flat density\n");
    enum { N = 32, SIDE = 8, ALL = N * SIDE * SIDE };
    static unsigned char bytes[ALL];
    jem_net *net = line_net(ctx, SIDE, 2, 0, NULL);
    for (int label = -1; label < 2; label++) {
        jem_pixels_desc p;
        memset(&p, 0, sizeof p);
        p.hi = 1;
        double sum = 0;
        double ends = 0;
        CHECK(jem_sample(net, label, N, 5, &p, bytes) == JEM_OK, "%s", jem_error(ctx));
        for (int i = 0; i < ALL; i++) {
            sum += bytes[i];
            ends += bytes[i] == 0 || bytes[i] == 255;
        }
        CHECK_CLOSE(sum / ALL, 127.5, 6, "label %d: U(0,1) is grey on average", label);
        CHECK(ends / ALL < 0.25, "label %d: %g are black or white", label, ends / ALL);
    }
    jem_net_free(net);
}

/* Noise of a network, and the defaults that follow from it. */
typedef struct defaults {
    float noise_lo, noise_hi, mean, step_size, noise_std, lo, hi;
    int steps;
    float last_sigma, weight;
    int own_steps;
    float own_fraction;
} defaults;

static void test_generate_defaults(jem_ctx *ctx) {
    printf("the defaults for samples of a network, without noise and with it\n");
    static const defaults expected[4] = {
        { 0, 0, 0, 1, 0.01f, -1, 1, 0, 0, 1, 0, 0.05f },
        { 0.2f, 3, -0.5f, 0.01f, 0.1f, 0, 0, 300, 0.4f, 7, 150, 0.4f },
        { 0.03125f, 3, -0.5f, 0.00390625f, 0.0625f, 0, 0, 300, 0.0625f, 7, 150, 0.4f },
        { 0, 3, -0.5f, 0.01f, 0.1f, 0, 0, 300, 0, 7, 150, 0.4f }
    };
    jem_net *net = line_net(ctx, 8, 2, 0, NULL);
    for (int score = 0; score < 4; score++) {
        const defaults want = expected[score];
        net->noise_lo = want.noise_lo;
        net->noise_hi = want.noise_hi;
        net->mean = want.mean;
        const jem_generate_desc d = jem_net_generate_desc(net);
        const int labels[1] = { 1 };
        const jem_query g = jem_net_query(net, labels);
        CHECK(d.walk.steps == 300 && d.walk.step_size == want.step_size &&
              d.walk.noise_std == want.noise_std && !d.walk.watch, "score %d: walk", score);
        CHECK(d.lo == want.lo && d.hi == want.hi, "score %d: range", score);
        CHECK(d.denoise.steps == want.steps && !d.denoise.watch, "score %d", score);
        CHECK(d.last_sigma == want.last_sigma && d.mean == net->mean, "score %d", score);
        const jem_impute_desc fill = jem_net_impute_desc(net);
        CHECK(fill.denoise.steps == (score ? 300 : 0) && fill.last_sigma == d.last_sigma &&
              fill.walk.steps == 300 && fill.walk.step_size == d.walk.step_size &&
              fill.walk.noise_std == d.walk.noise_std && fill.lo == -1 && fill.hi == 1 &&
              (!score || fill.denoise.sigma_max == 3), "score %d: imputation", score);
        const jem_generate_desc draft = jem_net_draft_desc(net);
        CHECK(draft.denoise.steps == (score ? 15 : 0) && draft.walk.steps == (score ? 45 : 300) &&
              draft.denoise.fraction == (score ? 0.3f : d.denoise.fraction) &&
              draft.last_sigma == d.last_sigma && draft.walk.noise_std == d.walk.noise_std,
              "score %d: a draft", score);
        if (score) CHECK(d.denoise.sigma_max == 3 && d.denoise.fraction == 0.05f &&
                         d.denoise.beta == 0.3f, "noise-blind, from its largest noise");
        CHECK(g.net == net && g.labels == labels && g.weight == 1, "no guidance with a scale of 1");
        net->scale = 10;
        const float weight = jem_net_query(net, labels).weight;
        net->scale = 1;
        CHECK(weight == want.weight, "guidance with a scale of 10: %g", (double)weight);
        net->guidance = 2.5f;
        CHECK(jem_net_query(net, labels).weight == 2.5f, "the network's own guidance");
        net->guidance = 0;
        net->denoise_steps = 150;
        net->denoise_fraction = 0.4f;
        const jem_denoise_desc own = jem_net_generate_desc(net).denoise;
        CHECK(own.steps == want.own_steps && own.fraction == want.own_fraction,
              "score %d: the network's own %d steps of %g", score, own.steps, (double)own.fraction);
        net->denoise_steps = 0;
        net->denoise_fraction = 0;
        net->last_sigma = 0.0625f;
        const jem_generate_desc less = jem_net_generate_desc(net);
        net->last_sigma = 0;
        CHECK(less.last_sigma == (score ? 0.0625f : 0), "score %d: its own last step", score);
        CHECK(less.walk.noise_std == (score ? 0.0625f : want.noise_std) &&
              less.walk.step_size == (score ? 0.00390625f : want.step_size),
              "score %d: the walk adds no more noise than that step removes", score);
    }
    const jem_denoise_desc clean = jem_denoise_desc_clean(0.7f);
    CHECK(clean.steps == 1 && clean.fraction == 0.8f && clean.sigma_max == 0.7f && !clean.watch &&
          !clean.watch_user, "one step of .8");
    jem_net_free(net);
}

static void test_buffer(jem_ctx *ctx) {
    printf("the replay buffer: a slot drawn twice, refusals that change nothing\n");
    enum { SLOTS = 12, SIZE = 4 };
    jem_rng rng = jem_rng_seed(8);
    jem_buffer *b = jem_buffer_create(ctx, SLOTS, 1, 2, 2, 3, &rng);
    float data[SLOTS * SIZE], x[3 * SIZE];
    int visits[SLOTS], drawn[2];
    const int slots[3] = { 5, 7, 5 };
    const int beyond[2] = { 1, SLOTS };
    const int below[2] = { 1, -1 };
    const int wrong[2][2] = { { 0, 3 }, { 0, -1 } };
    for (int i = 0; i < SLOTS; i++) b->visits[i] = 4;
    for (int i = 0; i < 3 * SIZE; i++) x[i] = (float)(10 + i);
    CHECK(jem_buffer_put(b, 3, slots, x) == JEM_OK && b->visits[5] == 5 && b->visits[7] == 5 &&
          same_bits(b->data + 5 * SIZE, x + 2 * SIZE, SIZE), "once, the last: %d", b->visits[5]);
    memcpy(data, b->data, sizeof data);
    memcpy(visits, b->visits, sizeof visits);
    for (int k = 0; k < 2; k++) {
        CHECK(jem_buffer_draw(b, &rng, 2, wrong[k], 1, x, drawn) == JEM_BAD_ARGUMENT &&
              says(ctx, k ? "label -1" : "label 3"), "a bad second label");
        CHECK(jem_buffer_put(b, 2, k ? below : beyond, x) == JEM_BAD_ARGUMENT &&
              says(ctx, k ? "slot -1" : "slot 12"), "a bad second slot");
        const jem_status s = k ? jem_buffer_put(b, -3, slots, x)
                               : jem_buffer_draw(b, &rng, -3, NULL, 0, x, drawn);
        CHECK(s == JEM_BAD_ARGUMENT && says(ctx, "-3 chains"), "fewer than none");
        CHECK(jem_buffer_restart(b, &rng, k ? 0 : -INFINITY, INFINITY) == JEM_BAD_ARGUMENT &&
              says(ctx, "is not a range"), "an endless range");
    }
    CHECK(same_bits(data, b->data, SLOTS * SIZE) && !memcmp(visits, b->visits, sizeof visits) &&
          b->lo == -1 && b->hi == 1, "what is refused changes nothing");
    jem_buffer_free(b);
}

/* ---- what is unusual, and what is fooled ----------------------------------------------------- */

static void test_default_walk(jem_ctx *ctx) {
    printf("out-of-distribution scores by the default walk\n");
    const float x[PIXELS] = { 0.5f, -0.5f };
    for (int learned = 0; learned < 2; learned++) {
        jem_net *net = line_net(ctx, 3, 1, 0.5f, NULL);
        const float far = learned ? 10 * 0.25f : 10;       /* 10 steps of 1, or of noise_lo^2 */
        float rise = 0;
        float move = 0;
        if (learned) {
            net->noise_lo = 0.5f;
            net->noise_hi = 2;
        }
        CHECK(jem_ood_score(net, JEM_OOD_RISE, NULL, x, 1, &rise) == JEM_OK &&
              jem_ood_score(net, JEM_OOD_MOVE, NULL, x, 1, &move) == JEM_OK, "%s", jem_error(ctx));
        CHECK_CLOSE(rise, -far * 2.25f, 1e-4, "rise, learned %d: |slope|^2 is 2.25", learned);
        CHECK_CLOSE(move, -far * 1.5f, 1e-4, "move, learned %d", learned);
        jem_net_free(net);
    }
}

/* Fooled iff a pixel is above the limit; its gradient is 0. */
typedef struct edge { float limit; int calls; } edge;
static jem_status edge_see(void *user, const float *x, const int *labels, int n, float *f,
                           float *g) {
    edge *e = (edge *)user;
    e->calls++;
    for (int i = 0; i < n; i++) {
        float most = -1;
        for (int k = 0; k < PIXELS; k++) most = fmaxf(most, x[i * PIXELS + k]);
        f[2 * i + labels[i]] = (float)!(most > e->limit);
        f[2 * i + 1 - labels[i]] = (float)(most > e->limit);
    }
    if (g) memset(g, 0, (size_t)(n * PIXELS) * sizeof *g);
    return JEM_OK;
}

/* Sure beyond what fp32 can divide by: the slope is 1e-40, along all pixels but the last. */
static jem_status sure_see(void *user, const float *x, const int *labels, int n, float *f,
                           float *g) {
    (void)user;
    (void)x;
    for (int i = 0; i < n; i++) {
        f[2 * i + labels[i]] = 1;
        f[2 * i + 1 - labels[i]] = 0;
    }
    for (int i = 0; g && i < n * PIXELS; i++) g[i] = i % PIXELS == PIXELS - 1 ? 0 : -1e-40f;
    return JEM_OK;
}
static void test_attack_steep(jem_ctx *ctx) {
    float x[PIXELS], found[PIXELS];
    double far = 0;
    const int label = 0;
    jem_net *net = line_net(ctx, 3, 2, 0, NULL);
    for (int i = 0; i < PIXELS; i++) x[i] = 0.01f * (float)i;
    jem_attack_desc d = jem_attack_desc_default();
    d.l2 = 1;
    d.eps = 0.3f;
    d.random_start = 0;
    d.steps = 1;
    d.classify = sure_see;
    CHECK(jem_attack(net, x, &label, 1, &d, NULL, found, NULL) == JEM_OK, "%s", jem_error(ctx));
    for (int i = 0; i < PIXELS; i++) far += pow((double)(found[i] - x[i]), 2);
    CHECK_CLOSE(sqrt(far), 0.3, 1e-5, "how far a tiny slope leads");
    CHECK(found[PIXELS - 1] == x[PIXELS - 1] && found[0] > x[0], "and where: %g", (double)found[0]);
    jem_net_free(net);
}

enum { STARTS = 64 };

/* Checks how far starts are from 0: in a cube, in a ball, at the image. */
static void check_starts(int k, const float *found) {
    enum { N = STARTS, ALL = N * PIXELS };
    static const double lengths[3] = { 0.04 / 3, 0.2 * 0.9, 0 };
    double sum = 0;
    double square = 0;
    double most = 0;
    double length = 0;
    for (int i = 0; i < N; i++, square = 0) {
        for (int j = 0; j < PIXELS; j++) {
            const double v = (double)found[i * PIXELS + j];
            sum += v;
            square += v * v;
            if (k == 0) {
                most = most_of(most, fabs(v));
                length += v * v / ALL;
            }
        }
        if (k == 1) {
            most = most_of(most, sqrt(square));
            length += sqrt(square) / N;
        }
    }
    CHECK(most <= 0.2 * (1 + 1e-6) && (k == 2 || most > 0.19), "case %d: up to %g", k, most);
    CHECK_CLOSE(sum / ALL, 0, 0.02, "case %d: to all sides", k);
    CHECK_CLOSE(length, lengths[k], 0.002, "case %d", k);
}

static void test_attack_starts(jem_ctx *ctx) {
    printf("attacks: restarts, and where they start\n");
    enum { N = STARTS, ALL = N * PIXELS };
    static float x[ALL], found[ALL];
    static int labels[N], fooled[N];
    jem_net *net = line_net(ctx, 3, 2, 0, NULL);
    jem_rng rng = jem_rng_seed(9);
    edge e = { 0.195f, 0 };
    jem_attack_desc d = jem_attack_desc_default();
    d.steps = 1;
    d.classify = edge_see;
    d.user = &e;
    for (int k = 0; k < 2; k++) {
        int count = 0;
        d.restarts = k ? 50 : 1;
        CHECK(jem_attack(net, x, labels, N, &d, &rng, found, fooled) == JEM_OK, "%s",
              jem_error(ctx));
        for (int i = 0; i < N; i++) count += fooled[i];
        CHECK(k ? count > 58 : count < 20, "%d restarts fool %d", d.restarts, count);
    }
    d.restarts = 1;
    e.limit = 9;
    for (int k = 0; k < 3; k++) {                  /* a cube, a ball, the image */
        d.l2 = k == 1;
        d.random_start = k < 2;
        jem_attack(net, x, labels, N, &d, &rng, found, fooled);
        check_starts(k, found);
    }
    static const int bad[2] = { -5, 99 };
    for (int k = 0; k < 4; k++) {
        labels[1] = bad[k & 1];
        e.calls = 0;
        d.classify = k < 2 ? edge_see : NULL;
        CHECK(jem_attack(net, x, labels, N, &d, &rng, found, fooled) == JEM_BAD_ARGUMENT &&
              e.calls == 0 && says(ctx, "of image 1 is not in 0..1"), "%d", bad[k & 1]);
    }
    jem_net_free(net);
}

/* More images than are attacked at a time, many with pixels outside of -1..1. */
static void test_attack_bounds(jem_ctx *ctx) {
    printf("attacks in place, and of pixels out of range\n");
    enum { N = 300, ALL = N * PIXELS };
    static float found[ALL];
    static int labels[N];
    jem_rng rng = jem_rng_seed(10);
    float *x = random_floats(&rng, ALL, -2, 2);
    float *own = floats(ALL);
    jem_net *net = small_mlp(ctx, four_classes, 4);
    random_labels(&rng, labels, N, 4);
    for (int k = 0; k < 4; k++) {
        jem_attack_desc d = jem_attack_desc_default();
        jem_rng first = jem_rng_seed(11);
        jem_rng second = first;
        double most = 0;
        double square = 0;
        int further = 0;
        int moved = 0;
        d.l2 = k & 1;
        d.steps = 5;
        d.step_size = k & 2 ? 0.5f : 0.07f;
        d.restarts = 2;
        d.targeted = 1;
        d.least_probability = 1;                                /* never: so all of it runs */
        memcpy(own, x, ALL * sizeof *x);
        CHECK(jem_attack(net, x, labels, N, &d, &first, found, NULL) == JEM_OK &&
              jem_attack(net, own, labels, N, &d, &second, own, NULL) == JEM_OK, "%s",
              jem_error(ctx));
        CHECK(same_bits(own, found, ALL), "case %d: in place it finds the same", k);
        for (int i = 0; i < ALL; i++) {
            const double off = fabs((double)found[i] - (double)x[i]);
            if (i % PIXELS == 0) square = 0;
            square += off * off;
            most = most_of(most, d.l2 ? sqrt(square) : off);
            moved += off > 0.01;
            further += fabsf(found[i]) > fmaxf(1, fabsf(x[i]));
        }
        CHECK(most <= 0.2 * (1 + 1e-5), "case %d: by up to %g", k, most);
        CHECK(further == 0 && moved > ALL / 4, "case %d: %d are further out, %d moved", k, further,
              moved);
    }
    jem_net_free(net);
    free(x);
    free(own);
}

static void test_nan(jem_ctx *ctx) {
    printf("a bias that is no number\n");
    jem_rng rng = jem_rng_seed(12);
    float *x = random_floats(&rng, 40 * PIXELS, -1, 1);
    float score[40];
    float found[40 * PIXELS];
    int labels[40];
    jem_net *net = small_mlp(ctx, four_classes, 5);
    random_labels(&rng, labels, 40, 4);
    CHECK(jem_calibrate(net, x, 40, JEM_AUTO) == JEM_OK, "%s", jem_error(ctx));
    jem_param *p = net->params;
    while (p->next) p = p->next;
    p->value[1] = NAN;
    jem_param_changed(p);
    for (int kind = JEM_OOD_LOGP; kind <= JEM_OOD_USUAL; kind++)
        CHECK(jem_ood_score(net, (jem_ood)kind, NULL, x, 40, score) == JEM_DIVERGED &&
              says(ctx, "finite"), "score %d", kind);
    CHECK(jem_attack(net, x, labels, 40, NULL, &rng, found, NULL) == JEM_DIVERGED &&
          says(ctx, "finite"), "attack");
    jem_net_free(net);
    free(x);
}

/* ---- networks -------------------------------------------------------------------------------- */

static jem_tensor *all_pixels(jem_ctx *ctx, jem_tensor *x, void *user) {
    (void)user;
    return jem_flatten(ctx, x);
}
static jem_tensor *one_number(jem_ctx *ctx, jem_tensor *x, void *user) {
    (void)user;
    return jem_mean(ctx, x);
}

static void test_energy_shape(jem_ctx *ctx) {
    printf("an energy of a wrong shape\n");
    const float x[MOST] = { 0 };
    for (int k = 0; k < 2; k++) {
        jem_net *net = line_net(ctx, 3, 2, 0.1f, k ? one_number : all_pixels);
        const char *const what = k ? "(1,1,1,1) as log_density" : "(3,9,1,1) as log_density";
        jem_answer a[3];
        float score[3];
        CHECK(!jem_forward(net, jem_input(ctx, x, 3, 1, 3, 3), 0) &&
              jem_error_status(ctx) == JEM_BAD_SHAPE && says(ctx, what), "forward");
        CHECK(jem_classify(net, x, 3, a) == JEM_BAD_SHAPE && says(ctx, what), "classify");
        for (int kind = JEM_OOD_LOGP; kind <= JEM_OOD_MOVE; kind++)
            CHECK(jem_ood_score(net, (jem_ood)kind, NULL, x, 3, score) == JEM_BAD_SHAPE &&
                  says(ctx, what), "score %d", kind);
        jem_net_free(net);
    }
}

static int same_text(const jem_net *net, const char *key, const char *text) {
    const char *is = jem_net_meta(net, key);
    return is && text ? !strcmp(is, text) : is == text;
}

/* From one network's archive, with a text changed, into another of other weights and texts. */
static void test_fitted_texts(jem_ctx *ctx) {
    printf("texts that were fitted to weights\n");
    enum { N = 60, GOOD = 4, CASES = 14 };
    static char large[4096], nan_text[4096];
    static const char *const key[3] = { "jem.temperature", "jem.familiar", "jem.usual" };
    const struct { int key; const char *text; } how[CASES] = {
        { 0, "0.5" }, { 1, "1 2 3" }, { 1, "-4 5" }, { 0, "100" }, { 0, "0" }, { 0, "-0.1" },
        { 0, "nonsense" }, { 0, "1e-99" }, { 1, "-1e99 1e99" }, { 1, "3 2 1" }, { 2, large },
        { 2, nan_text }, { 0, "0.001" }, { 0, "200" }
    };
    jem_rng rng = jem_rng_seed(13);
    float *x = random_floats(&rng, N * PIXELS, -1, 1);
    int labels[N];
    jem_net *from = small_mlp(ctx, four_classes, 6);
    jem_net *zero = line_net(ctx, 3, 4, 0, NULL);
    random_labels(&rng, labels, N, 4);
    jem_calibrate(from, x, N, JEM_AUTO);
    jem_fit_temperature(from, x, labels, N);
    const char *usual = jem_net_meta(from, key[2]);
    const char *rest = strchr(usual, ' ');
    snprintf(large, sizeof large, "1e99%s", rest);
    snprintf(nan_text, sizeof nan_text, "nan%s", rest);
    for (int k = 0; k < CASES; k++) {
        jem_archive *a = jem_archive_create(ctx);
        jem_net *net = small_mlp(ctx, four_classes, 7);
        char before[3][2048];
        jem_calibrate(net, x + 20 * PIXELS, 30, JEM_AUTO);
        jem_fit_temperature(net, x, labels, 20);
        for (int i = 0; i < 3; i++) strncpy(before[i], jem_net_meta(net, key[i]), 2047)[2047] = 0;
        const uint64_t weights = net_hash(net);
        jem_net_to_archive(from, a);
        jem_archive_set_meta(a, key[how[k].key], how[k].text);
        const jem_status s = jem_net_load(net, a);
        if (k < GOOD) {
            CHECK(s == JEM_OK && net_hash(net) == net_hash(from), "'%s': %s", how[k].text,
                  jem_error(ctx));
            for (int i = 0; i < 3; i++)
                CHECK(same_text(net, key[i], jem_archive_meta(a, key[i])), "%s is loaded", key[i]);
        } else {
            CHECK(s == JEM_BAD_FILE && says(ctx, key[how[k].key]), "'%.30s'", how[k].text);
            CHECK(net_hash(net) == weights, "'%.30s': the weights are others", how[k].text);
            for (int i = 0; i < 3; i++)
                CHECK(same_text(net, key[i], before[i]), "'%.30s': %s is another", how[k].text,
                      key[i]);
        }
        jem_archive_free(a);
        jem_net_free(net);
    }
    CHECK_CLOSE(jem_fit_temperature(zero, x, labels, N), 1, 0, "equal logits say nothing");
    CHECK(same_text(zero, key[0], "1"), "and that is what is kept");
    jem_net_free(from);
    jem_net_free(zero);
    free(x);
}

/* The second channel's sum, or its square's, is infinite: neither channel's numbers change. */
static void test_overflow(jem_ctx *ctx) {
    printf("norms of a channel that overflows\n");
    enum { N = 4, CHANNELS = 2, EACH = 4, ALL = N * CHANNELS * EACH };
    static const float large[3] = { 3e38f, 1e30f, 1 };     /* the last one is all right */
    jem_rng rng = jem_rng_seed(14);
    float *x = random_floats(&rng, ALL, 0.5f, 1);
    float y[ALL];
    jem_net *bag = bag_create(ctx);
    jem_layer norm[2] = { jem_norm_layer(bag, "batch", JEM_NORM_BATCH, CHANNELS),
                          jem_norm_layer(bag, "act", JEM_NORM_ACT, CHANNELS) };
    for (int k = 0; k < 3; k++)
        for (int act = 0; act < 2; act++) {
            for (int i = 0; i < ALL; i++) y[i] = x[i] * (i / EACH % CHANNELS ? large[k] : 1);
            const uint64_t before = net_hash(bag);
            jem_tensor *t = jem_apply(norm + act, jem_input(ctx, y, N, CHANNELS, 2, 2), 1);
            CHECK(jem_backward(jem_mean(ctx, jem_square(ctx, t))) == JEM_OK || k < 2, "%s",
                  jem_error(ctx));
            CHECK((net_hash(bag) == before) == (k < 2), "%s norm of %g", act ? "act" : "batch",
                  (double)large[k]);
            jem_clear_error(ctx);
            jem_reset(ctx);
        }
    jem_net_free(bag);
    free(x);
}

/* ---- messages -------------------------------------------------------------------------------- */

static void check_harmless(jem_ctx *ctx, const char *what) {
    const char *e = jem_error(ctx);
    CHECK(strstr(e, "a?b?c??d") && strstr(e, "\303\251") && strstr(e, "\303\237") &&
          !strpbrk(e, "\033\233"), "%s: '%s'", what, e);
    jem_clear_error(ctx);
}

static void test_messages(jem_ctx *ctx) {
    printf("names in messages: commands do not pass, letters do\n");
    static const char name[] = "\303\251a\033b\233c\302\233d\303\237";
    const int shape1[1] = { 1 };
    char text[700];
    jem_net *bag = bag_create(ctx);
    jem_archive *a = jem_archive_create(ctx);
    CHECK(!jem_net_param(bag, name, 1, shape1, 1), "not UTF-8");
    check_harmless(ctx, "a parameter's name");
    char longest[600] = "";
    memset(longest, 'a', sizeof longest - 1);
    CHECK(!jem_net_param(bag, longest, 5, shape1, 1) && strstr(jem_error(ctx), "1 to 4 sizes"),
          "%s", jem_error(ctx));
    jem_clear_error(ctx);
#ifndef JEM_NO_STDIO
    snprintf(text, sizeof text, "no_such_folder/%s", name);
    CHECK(!jem_load(ctx, text), "no such file");
    check_harmless(ctx, "a path");
    CHECK(jem_archive_write(a, text) != JEM_OK, "no such folder");
    check_harmless(ctx, "a path");
#endif
    for (int i = 0; i < 699; i++) text[i] = i & 1 ? '\251' : '\303';
    text[699] = 0;
    jem_fail(ctx, JEM_BAD_FILE, text);
    const char *e = jem_error(ctx);
    CHECK(strlen(e) > 300 && !strcmp(e + strlen(e) - 3, "\303\251?"), "a letter cut in half");
    jem_clear_error(ctx);
    jem_archive_free(a);
    jem_net_free(bag);
}

/* Each byte of what is not UTF-8, and of a control character, becomes '?'. */
static void test_utf8(jem_ctx *ctx) {
    printf("strings from outside\n");
    static const char *const texts[][2] = {
        { "a\303\251z", "a\303\251z" }, { "\360\237\230\200", "\360\237\230\200" },
        { "\364\217\277\277", "\364\217\277\277" }, { "\302\240", "\302\240" },
        { "\302\233", "??" }, { "\340\202\233z", "???z" },      /* U+009B, in two bytes and three */
        { "\377\200\200\200", "????" }, { "\355\240\200", "???" },
        { "\364\220\200\200", "????" }, { "\360\217\277\277", "????" },
        { "\342\202", "??" }, { "\251", "?" }, { "a\tb\177", "a?b?" }
    };
    (void)ctx;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        char text[16];
        snprintf(text, sizeof text, "%s", texts[i][0]);
        jem_mask_controls(text, 0);
        CHECK(!strcmp(text, texts[i][1]), "text %d became %s", (int)i, text);
    }
    char layout[] = "a\tb\nc\r\033";
    jem_mask_controls(layout, 1);
    CHECK(!strcmp(layout, "a\tb\nc\r?"), "newlines and tabs remain");
}

/* A network and a trainer of one seed: chains must not begin as the network's weights did, nor
   after another seed is taken. */
static void test_one_seed(jem_ctx *ctx) {
    printf("the random numbers of a network and a trainer of one seed\n");
    enum { SLOTS = 4 };
    jem_net *net = small_mlp(ctx, four_classes, 5);
    jem_train_desc d = jem_train_desc_default();
    d.seed = 5;
    d.buffer_size = SLOTS;
    d.negatives = 2;
    jem_trainer *tr = jem_trainer_create(net, &d);
    const jem_buffer *b = jem_trainer_buffer(tr);
    float first[SLOTS * PIXELS];
    jem_rng rng = jem_rng_seed(5);
    jem_fill_uniform(ctx, &rng, first, SLOTS * PIXELS, -1, 1);
    int alike = 0;
    for (int i = 0; b && i < SLOTS * PIXELS; i++) alike += fabsf(b->data[i] - first[i]) < 1e-6f;
    CHECK(b && alike == 0, "%d of %d numbers are alike: %s", alike, SLOTS * PIXELS, jem_error(ctx));
    jem_trainer_free(tr);
    jem_net_free(net);
}

static void test_relu_zero(jem_ctx *ctx) {
    printf("relu gives no -0\n");
    enum { N = 33 };
    float x[N], y[N];
    for (int i = 0; i < N; i++) x[i] = i % 3 ? -(float)i : -0.0f;
    jem_tensor *t = jem_input(ctx, x, N, 1, 1, 1);
    CHECK(jem_read(jem_relu(ctx, t), y) == JEM_OK, "%s", jem_error(ctx));
    for (int i = 0; i < N; i++) {
        uint32_t bits;
        memcpy(&bits, y + i, sizeof bits);
        CHECK(bits == 0, "relu(%g) is %g", (double)x[i], (double)y[i]);
    }
}

/* A gradient that could not be computed cannot be read: neither that of an earlier target, nor the
   memory of a walk that failed before its last step. */
static jem_tensor *failing_last(jem_ctx *ctx, jem_tensor *x, void *user) {
    int *left = (int *)user;
    if ((*left)-- > 0) return squares(ctx, x, NULL);
    jem_fail(ctx, JEM_BAD_ARGUMENT, "no more");
    return NULL;
}
static void test_failed_gradients(jem_ctx *ctx) {
    printf("gradients that were not computed\n");
    const float numbers[2] = { 1, 2 };
    float dx[2];
    jem_tensor *x = jem_input(ctx, numbers, 1, 2, 1, 1);
    jem_tensor *other = jem_input(ctx, numbers, 1, 2, 1, 1);
    CHECK(jem_grad(squares(ctx, x, NULL), x) == JEM_OK && jem_read_grad(x, dx) == JEM_OK, "%s",
          jem_error(ctx));
    CHECK(jem_grad(squares(ctx, other, NULL), x) == JEM_BAD_ARGUMENT, "another leaf");
    jem_clear_error(ctx);
    CHECK(jem_read_grad(x, dx) == JEM_BAD_ARGUMENT, "the gradient of another target");
    jem_clear_error(ctx);
    CHECK(jem_grad(squares(ctx, x, NULL), x) == JEM_OK, "%s", jem_error(ctx));
    CHECK(jem_grad(jem_square(ctx, x), x) == JEM_BAD_SHAPE, "two numbers per image");
    jem_clear_error(ctx);
    CHECK(jem_read_grad(x, dx) == JEM_BAD_ARGUMENT, "the gradient before a wrong shape");
    jem_clear_error(ctx);
    jem_sgld_desc walk = jem_sgld_desc_langevin(0.01f, 1);
    for (int calls = 0; calls < 2; calls++) {
        int left = calls;
        jem_tensor *leaf = jem_input(ctx, numbers, 1, 2, 1, 1);
        CHECK(!jem_kl_walk(ctx, failing_last, &left, leaf, &walk, 0, NULL) && says(ctx, "no more"),
              "%d calls: %s", calls, jem_error(ctx));
        jem_clear_error(ctx);
        CHECK(jem_read_grad(leaf, dx) == JEM_BAD_ARGUMENT, "memory without a gradient");
        jem_clear_error(ctx);
    }
}

/* A network whose forward function sets a text, also while a calibration is used. */
static jem_tensor *noting_forward(jem_net *net, jem_tensor *x, int training, void *user) {
    const line *l = (const line *)user;
    jem_net_set_meta(net, "noted", "yes");
    return jem_apply(&l->layer, jem_flatten(net->ctx, x), training);
}
static void test_texts_in_forward(jem_ctx *ctx) {
    printf("texts that change while a network is used\n");
    enum { N = 40 };
    jem_answer answers[N];
    jem_rng rng = jem_rng_seed(5);
    float *x = random_floats(&rng, N * 4, -1, 1);
    jem_net *net = jem_net_create(ctx, noting_forward, NULL, sizeof(line), 1, 2, 2, 3, 1);
    ((line *)net->user)->layer = jem_linear_layer(net, "last", 4, 3);
    CHECK(jem_calibrate(net, x, N, JEM_AUTO) == JEM_OK, "%s", jem_error(ctx));
    CHECK(jem_classify(net, x, N, answers) == JEM_OK && answers[0].familiarity >= 0, "%s",
          jem_error(ctx));
    CHECK(jem_net_meta(net, "noted") != NULL, "it has set the text");
    jem_net_free(net);
    free(x);
}

/* The gradients of sure answers are 0 or normal: subnormal ones would make training slow. */
static void test_sure_gradients(jem_ctx *ctx) {
    printf("gradients of sure answers\n");
    for (int gap = 10; gap <= 110; gap += 5) {
        const float x[3] = { 0, (float)gap, 1 };
        const int label = 1;
        float dx[2][3] = { { 0 } };
        jem_tensor *t = jem_input(ctx, x, 1, 3, 1, 1);
        CHECK(jem_grad(jem_cross_entropy(ctx, t, &label), t) == JEM_OK &&
              jem_read_grad(t, dx[0]) == JEM_OK, "%s", jem_error(ctx));
        t = jem_input(ctx, x, 1, 3, 1, 1);
        CHECK(jem_grad(jem_logsumexp(ctx, t), t) == JEM_OK && jem_read_grad(t, dx[1]) == JEM_OK,
              "%s", jem_error(ctx));
        double sum = 0;
        for (int i = 0; i < 3; i++) sum += exp((double)x[i] - gap);
        for (int i = 0; i < 3; i++) {
            const double p = exp((double)x[i] - gap) / sum;
            for (int k = 0; k < 2; k++) {
                const double d = (double)dx[k][i];
                CHECK(d == 0 || fabs(d) > 1e-30, "gap %d: %g", gap, d);
                CHECK_CLOSE(d, k ? p : p - (i == label), 1e-6, "gap %d", gap);
                if (i != label && gap < 50) CHECK_CLOSE(d / p, 1, 1e-4, "gap %d", gap);
            }
        }
    }
}

/* Without gradients, parameters come to rest: moments end at 0, not at the smallest numbers. */
static void test_rest(jem_ctx *ctx) {
    printf("optimisers come to rest\n");
    static const jem_optimizer kinds[3] = { JEM_OPTIMIZER_SGD, JEM_OPTIMIZER_ADAM,
                                            JEM_OPTIMIZER_MUON };
    enum { SIDE = 4, ALL = SIDE * SIDE };
    const int shape[2] = { SIDE, SIDE };
    for (int k = 0; k < 3; k++) {
        jem_net *net = jem_net_create(ctx, NULL, NULL, 0, 1, 1, 1, 2, 1);
        jem_param *w = jem_net_param(net, "w", 2, shape, 1);
        jem_optim_desc d = jem_optim_desc_default();
        d.kind = kinds[k];
        d.momentum = 0.9f;
        jem_optim *o = jem_optim_create(net, &d);
        for (int i = 0; i < ALL; i++) w->grad[i] = i % 5 ? 0.25f : -1;
        CHECK(jem_optim_step(o, 0, NULL) == JEM_OK, "%s", jem_error(ctx));
        jem_zero_grad(net);
        for (int i = 0; i < 2000; i++) jem_optim_step(o, 0, NULL);
        CHECK(jem_optim_step(o, 1e9f, NULL) == JEM_OK, "%s", jem_error(ctx));
        for (int i = 0; i < ALL; i++)
            CHECK(w->value[i] == 0, "optimiser %d: %g", k, (double)w->value[i]);
        jem_optim_free(o);
        jem_net_free(net);
    }
}

/* Compares a convolution with one of the same weight that nothing else has used. */
static void compare_stride(jem_ctx *ctx, jem_net *net, const float *x, const float *weight,
                           int stride) {
    enum { N = 2, C = 16, SIDE = 36 };
    const jem_conv_desc how = { stride, 2 };
    const int shape[4] = { C, C, 6, 6 };
    float *got = floats(N * C * SIDE * SIDE);
    float *want = floats(N * C * SIDE * SIDE);
    char name[32];
    snprintf(name, sizeof name, "alone%d", stride);
    jem_param *alone = jem_net_param(net, name, 4, shape, 1);
    memcpy(alone->value, weight, (size_t)alone->size * sizeof *weight);
    jem_param_changed(alone);
    jem_tensor *in = jem_input(ctx, x, N, C, SIDE, SIDE);
    jem_tensor *shared = jem_conv2d(ctx, in, jem_net_find(net, "shared"), NULL, how);
    CHECK(jem_read(shared, got) == JEM_OK, "%s", jem_error(ctx));
    CHECK(jem_read(jem_conv2d(ctx, in, alone, NULL, how), want) == JEM_OK, "%s", jem_error(ctx));
    const ptrdiff_t n = shared ? (ptrdiff_t)shared->n * shared->c * shared->h * shared->w : 0;
    CHECK(n > 0 && same_bits(got, want, n), "stride %d", stride);
    free(got);
    free(want);
}

/* Copies of a weight that are packed for one stride must not serve another. */
static void test_shared_weight(void) {
    printf("one weight, with two strides\n");
    const int shape[4] = { 16, 16, 6, 6 };
    static const int strides[3] = { 2, 3, 6 };
    jem_rng rng = jem_rng_seed(31);
    float *x = random_floats(&rng, 2 * 16 * 36 * 36, -1, 1);
    for (int precision = JEM_PRECISION_EXACT; precision <= JEM_PRECISION_FAST; precision++) {
        jem_ctx_desc desc;
        memset(&desc, 0, sizeof desc);
        desc.precision = (jem_precision)precision;
        jem_ctx *mine = jem_ctx_create(&desc);
        jem_net *net = jem_net_create(mine, NULL, NULL, 0, 16, 36, 36, 1, 1);
        jem_param *w = jem_net_param(net, "shared", 4, shape, 1);
        jem_fill_uniform(mine, &rng, w->value, w->size, -1, 1);
        jem_param_changed(w);
        for (int k = 0; k < 3; k++) compare_stride(mine, net, x, w->value, strides[k]);
        jem_net_free(net);
        jem_ctx_free(mine);
    }
    free(x);
}

static void test_unknown_norm(jem_ctx *ctx) {
    printf("a layer with a norm that does not exist\n");
    jem_net *net = jem_net_create(ctx, NULL, NULL, 0, 4, 3, 3, 1, 1);
    const jem_layer layer = jem_norm_layer(net, "norm", (jem_norm)77, 4);
    CHECK(says(ctx, "77"), "the layer");
    CHECK(!jem_apply(&layer, jem_zeros(ctx, 1, 4, 3, 3), 0) && says(ctx, "77"), "and its op");
    jem_net_free(net);
}

/* Descs that no update could follow are refused at once, with the rule. */
static void test_rules(jem_ctx *ctx) {
    printf("rules of a training's desc\n");
    jem_net *net = line_net(ctx, 3, 4, 0.1f, NULL);
    jem_train_desc d = jem_train_desc_default();
    d.weights.ce = 0;
    d.cd_from = 3;
    CHECK(!jem_trainer_create(net, &d) && says(ctx, "cd_from = 3"), "no term before the chains");
    d = jem_train_desc_default();
    d.w_kl = 0.3f;
    d.sgld.decay_b = 10;
    CHECK(!jem_trainer_create(net, &d) && says(ctx, "decay_b = 10"), "w_kl and smaller steps");
    d.sgld.decay_b = 0;
    d.sgld.temperature_from = 2;
    d.sgld.temperature_to = 1;
    CHECK(!jem_trainer_create(net, &d) && says(ctx, "temperature_from = 2"), "w_kl, tempered");
    d = jem_train_desc_default();
    d.noise_lo = 1e5f;
    d.noise_hi = 1e7f;
    CHECK(!jem_trainer_create(net, &d) && says(ctx, "noise_hi"), "noise beyond that of files");
    jem_net_free(net);
}

static jem_tensor *pixels_of(jem_ctx *ctx, jem_tensor *x, void *user) {
    (void)ctx;
    (void)user;
    return x;
}
static jem_tensor *nothing(jem_ctx *ctx, jem_tensor *x, void *user) {
    (void)ctx;
    (void)x;
    (void)user;
    return NULL;
}
static void test_slope_density(jem_ctx *ctx) {
    printf("the slope of a function that is no log-density\n");
    jem_tensor *x = jem_zeros(ctx, 2, 1, 3, 3);
    jem_tensor *v = jem_zeros(ctx, 2, 1, 3, 3);
    CHECK(!jem_slope_along(ctx, pixels_of, NULL, x, v, 0) && says(ctx, "slope_along: the log"),
          "a number per pixel");
    CHECK(!jem_slope_along(ctx, nothing, NULL, x, v, 0) && says(ctx, "returned nothing"), "NULL");
}

/* Records the largest value of x_data, whose images are 0: its noise. */
static jem_tensor *measure_noise(const jem_term_inputs *in, void *user) {
    float *far = (float *)user;
    float x[64 * 9];
    jem_read(in->x_data, x);
    for (int i = 0; i < in->x_data->n * 9; i++) *far = fmaxf(*far, fabsf(x[i]));
    return jem_mean(in->net->ctx, in->x_data);
}
static void test_term_data(jem_ctx *ctx) {
    printf("a term's images of p(x) do not have cross-entropy's noise\n");
    enum { N = 64 };
    static float x[N * 9];
    static int labels[N];
    float far = 0;
    jem_net *net = line_net(ctx, 3, 4, 0.1f, NULL);
    jem_train_desc d = jem_train_desc_default();
    d.weights.cd = 0;
    d.data_noise = 0.01f;
    d.label_all_noise = 1;
    d.noise_lo = 5;
    d.noise_hi = 6;
    d.w_term = 0.1f;
    d.term = measure_noise;
    d.term_user = &far;
    jem_trainer *tr = jem_trainer_create(net, &d);
    const jem_stats s = jem_train_step(tr, x, labels, N);
    CHECK(s.status == JEM_OK && far > 0 && far < 0.1f, "noise of %g: %s", (double)far,
          jem_error(ctx));
    CHECK(s.f_data == 0, "f_data = %g is that of no images", (double)s.f_data);
    jem_trainer_free(tr);
    jem_net_free(net);
}

/* Without memory for one allocation after the other, units and A are both old, or both new. */
static void test_units_poor(void) {
    printf("fitting units without memory changes nothing\n");
    enum { D = 64, N = 20000 };
    jem_rng rng = jem_rng_seed(8);
    float *x = random_floats(&rng, D * N, 2, 9);
    int k = 1;
    for (int whole = 0; !whole && k < 50; k++) {
        counter c;
        jem_ctx *ctx = open_ctx(&c);
        jem_mlp_desc m = jem_mlp_desc_vectors(D, 2);
        jem_net *net = jem_mlp_create(ctx, &m, 1);
        const float before = jem_net_find(net, "whiten.weight")->value[0];
        c.fail_at = c.calls + k;
        const jem_status status = jem_net_fit_units(net, x, N);
        whole = c.calls < c.fail_at;
        const int is_set = jem_net_meta(net, "jem.units") != NULL;
        const int is_white = jem_net_find(net, "whiten.weight")->value[0] != before;
        CHECK(status == (whole ? JEM_OK : JEM_NO_MEMORY) && is_set == whole && is_white == whole,
              "allocation %d: units %d, A %d", k, is_set, is_white);
        jem_clear_error(ctx);
        jem_net_free(net);
        close_ctx(ctx, &c, "without units");
    }
    CHECK(k > 3 && k < 50, "%d allocations", k);
    free(x);
}

static const small_shape two_values = { 2, 1, 1, 4, 12 };

/* Averages of two optimisers, switched in any order, and weights loaded while averages are in. */
static void test_averages(jem_ctx *ctx) {
    printf("averages of two optimisers of one network\n");
    static const float x[4] = { 1, -1, 2, 0.5f };
    static const int labels[2] = { 0, 3 };
    jem_net *net = small_mlp(ctx, two_values, 5);
    jem_optim *o[2];
    jem_optim_desc d = jem_optim_desc_default();
    d.ema = 0.9f;
    for (int i = 0; i < 2; i++) o[i] = jem_optim_create(net, &d);
    for (int i = 0; i < 6; i++) {
        jem_tensor *f = jem_forward(net, jem_input(ctx, x, 2, 2, 1, 1), 1);
        jem_zero_grad(net);
        jem_backward(jem_cross_entropy(ctx, f, labels));
        CHECK(jem_optim_step(o[i % 2], 0.1f, NULL) == JEM_OK, "%s", jem_error(ctx));
    }
    const uint64_t trained = net_hash(net);
    for (int i = 0; i < 64; i++) {                 /* three switches, then back */
        for (int k = 0; k < 3; k++) jem_optim_use_average(o[i >> k & 1], i >> (3 + k) & 1);
        jem_optim_use_average(o[i & 1], 0);
        CHECK(net_hash(net) == trained, "switches %d", i);
    }
    for (int i = 0; i < 2; i++) {
        jem_net *other = small_mlp(ctx, two_values, 6 + (uint64_t)i);
        jem_archive *a = jem_archive_create(ctx);
        jem_net_to_archive(other, a);
        jem_optim_use_average(o[i], 1);
        CHECK(net_hash(net) != trained, "averages");
        CHECK(jem_net_load(net, a) == JEM_OK && net_hash(net) == net_hash(other), "loaded");
        jem_optim_use_average(o[i], 0);
        CHECK(net_hash(net) == net_hash(other), "still the loaded ones");
        jem_archive_free(a);
        jem_net_free(other);
    }
    const uint64_t loaded = net_hash(net);
    jem_optim_use_average(o[0], 1);
    jem_optim_free(o[0]);
    const uint64_t average = net_hash(net);
    jem_optim_use_average(o[1], 0);
    CHECK(average != loaded && net_hash(net) == average, "what a freed one left remains");
    jem_optim_free(o[1]);
    jem_net_free(net);
}

/* Fails, or returns a number whose gradient is about 1e-41. */
static jem_tensor *tiny_term(const jem_term_inputs *in, void *user) {
    const int *fails = (const int *)user;
    jem_ctx *ctx = in->net->ctx;
    if (*fails) return NULL;
    jem_tensor *x = jem_slice(ctx, jem_forward(in->net, in->x, 1), 0, 1);
    return jem_scale(ctx, jem_mean(ctx, x), 1e-41f);
}

/* A first update that fails leaves a network without a score. */
static void test_no_score(jem_ctx *ctx) {
    printf("a failed first update has learned no score\n");
    static const float x[4] = { 1, -1, 2, 0.5f };
    static const int labels[2] = { 0, 3 };
    int fails = 1;
    jem_net *net = small_mlp(ctx, two_values, 5);
    jem_train_desc d = jem_train_desc_default();
    d.weights.cd = 0;
    d.w_score = d.w_term = 1;
    d.term = tiny_term;
    d.term_user = &fails;
    jem_trainer *tr = jem_trainer_create(net, &d);
    CHECK(jem_train_step(tr, x, labels, 2).status != JEM_OK, "the term fails");
    jem_clear_error(ctx);
    CHECK(net->noise_lo == 0 && net->noise_hi == 0 && net->mean == 0, "%g to %g, mean %g",
          (double)net->noise_lo, (double)net->noise_hi, (double)net->mean);
    fails = 0;
    CHECK(jem_train_step(tr, x, labels, 2).status == JEM_OK, "%s", jem_error(ctx));
    CHECK(net->noise_lo == d.noise_lo && net->noise_hi == d.noise_hi && net->mean == 0.625f,
          "mean %g", (double)net->mean);
    jem_trainer_free(tr);
    jem_net_free(net);
}

/* Checks that a network is sampled with the steps of its chains in training, also from a file. */
static void test_stored_walk(jem_ctx *ctx) {
    printf("the steps of the chains are stored with the network\n");
    static const float x[4] = { 1, -1, 2, 0.5f };
    static const int labels[2] = { 0, 3 };
    for (int score = 0; score < 2; score++) {
        jem_net *net = small_mlp(ctx, two_values, 5);
        jem_archive *a = jem_archive_create(ctx);
        jem_train_desc d = jem_train_desc_default();
        d.sgld = jem_sgld_desc_langevin(0.02f, 5);
        d.cd_from = 1;
        d.w_score = (float)score;
        jem_trainer *tr = jem_trainer_create(net, &d);
        CHECK(jem_train_step(tr, x, labels, 2).status == JEM_OK, "%s", jem_error(ctx));
        CHECK(net->walk_step == 0 && net->walk_noise == 0, "before there are chains");
        CHECK(jem_train_step(tr, x, labels, 2).status == JEM_OK, "%s", jem_error(ctx));
        CHECK(jem_net_to_archive(net, a) == JEM_OK, "%s", jem_error(ctx));
        jem_net *back = jem_net_from_archive(ctx, a);
        const jem_sgld_desc walk = jem_net_generate_desc(back).walk;
        const int same = walk.step_size == d.sgld.step_size && walk.noise_std == d.sgld.noise_std;
        CHECK(back && same == !score && walk.steps == 300, "score %d: %d steps of %g, noise %g",
              score, walk.steps, (double)walk.step_size, (double)walk.noise_std);
        CHECK(!jem_net_meta(net, "jem.walk_step"), "a field, not a text of the network");
        jem_archive_free(a);
        jem_trainer_free(tr);
        jem_net_free(back);
        jem_net_free(net);
    }
}

/* Near a minimum sam / ||g|| is infinite, but the point to go to is not. */
static void test_flat_sharpness(jem_ctx *ctx) {
    printf("sharpness where the gradient is 1e-41\n");
    static const float x[4] = { 1, -1, 2, 0.5f };
    static const int labels[2] = { 0, 3 };
    int fails = 0;
    jem_net *net = small_mlp(ctx, two_values, 5);
    jem_train_desc d = jem_train_desc_default();
    d.weights.ce = d.weights.cd = 0;
    d.w_term = 1;
    d.term = tiny_term;
    d.term_user = &fails;
    d.sam = 0.05f;
    d.max_rollbacks = 0;
    jem_trainer *tr = jem_trainer_create(net, &d);
    const jem_stats s = jem_train_step(tr, x, labels, 2);
    CHECK(s.status == JEM_OK && s.grad_norm > 0 && s.grad_norm < 1e-38f, "%g: %s",
          (double)s.grad_norm, jem_error(ctx));
    jem_trainer_free(tr);
    jem_net_free(net);
}

/* Returns the logits of two normalised values. */
static jem_tensor *normed(jem_net *net, jem_tensor *x, int training, void *user) {
    jem_param *p = net->params;
    (void)user;
    return jem_linear(net->ctx, jem_batch_norm(net->ctx, x, p, p->next, p->next->next,
                                               p->next->next->next, 0.9f, training),
                      p->next->next->next->next, NULL);
}

/* Fails; its values are finite, and meaningless. */
static void failing_forward(const jem_call *call) {
    const int n = call->out.c * call->out.h * call->out.w * JEM_LANES;
    for (int i = 0; i < n; i++) call->y[i] = (float)(i % 7);
    jem_fail(call->ctx, JEM_BAD_ARGUMENT, "not now");
}
static void failing_backward(const jem_call *call) { call->dx[0][0] += 1; }
static const jem_op failing_op = { "failing", failing_forward, failing_backward, 0, NULL };

static void test_failed_values(jem_ctx *ctx) {
    printf("values that a failed op did not compute change nothing\n");
    static const char *const names[4] = { "gamma", "beta", "mean", "var" };
    static const float x[4] = { 1, -1, 2, 0.5f };
    const int two[1] = { 2 };
    const jem_shape shape = { 2, 2, 1, 1 };
    jem_net *net = jem_net_create(ctx, normed, NULL, 0, 2, 1, 1, 2, 1);
    jem_param *p[4];
    for (int i = 0; i < 4; i++) {
        p[i] = jem_net_param(net, names[i], 1, two, i < 2);
        p[i]->value[0] = p[i]->value[1] = i % 3 == 0 ? 1.0f : 0;
    }
    jem_tensor *leaf = jem_input(ctx, x, 2, 2, 1, 1);
    jem_tensor *y = jem_custom(ctx, &failing_op, &leaf, 1, shape, NULL, 0, 0);
    y = jem_batch_norm(ctx, y, p[0], p[1], p[2], p[3], 0.5f, 1);
    jem_zero_grad(net);
    CHECK(jem_backward(jem_mean(ctx, jem_square(ctx, y))) == JEM_BAD_ARGUMENT &&
          says(ctx, "not now"), "it fails");
    for (int k = 0; k < 2; k++) {
        CHECK(p[2]->value[k] == 0 && p[3]->value[k] == 1, "statistics: %g, %g",
              (double)p[2]->value[k], (double)p[3]->value[k]);
        CHECK(p[0]->grad[k] == 0 && p[1]->grad[k] == 0, "gradients: %g, %g",
              (double)p[0]->grad[k], (double)p[1]->grad[k]);
    }
    CHECK(!jem_custom(ctx, &failing_op, &leaf, 1, shape, NULL, 0, (size_t)-1) &&
          says(ctx, "too many"), "aux memory");
    CHECK(!jem_net_create(ctx, normed, NULL, 0, 1 << 30, 1 << 30, 8, 2, 1) &&
          says(ctx, "more than 1e8"), "sizes of images");
    jem_reset(ctx);
    jem_net_free(net);
}

/* A failed update leaves running statistics as they were, not only in the first update. */
static void test_failed_statistics(jem_ctx *ctx) {
    printf("a failed update changes no running statistics\n");
    static const char *const names[4] = { "gamma", "beta", "mean", "var" };
    static const float x[4] = { 1, -1, 2, 0.5f };
    static const int labels[2] = { 0, 1 };
    const int two[1] = { 2 };
    const int square[2] = { 2, 2 };
    jem_net *net = jem_net_create(ctx, normed, NULL, 0, 2, 1, 1, 2, 1);
    for (int i = 0; i < 4; i++) {
        jem_param *p = jem_net_param(net, names[i], 1, two, i < 2);
        p->value[0] = p->value[1] = i % 3 == 0 ? 1.0f : 0;
    }
    jem_net_param(net, "output", 2, square, 1)->value[0] = 1;
    jem_train_desc d = jem_train_desc_default();
    int fails = 0;
    d.weights.cd = 0;
    d.w_term = 1;
    d.term = tiny_term;
    d.term_user = &fails;
    d.max_rollbacks = 0;
    d.max_loss = 10;
    jem_trainer *tr = jem_trainer_create(net, &d);
    CHECK(jem_train_step(tr, x, labels, 2).status == JEM_OK, "%s", jem_error(ctx));
    jem_param *output = jem_net_find(net, "output");
    output->value[0] = 1e3f;
    jem_param_changed(output);
    const uint64_t hash = net_hash(net);
    CHECK(jem_train_step(tr, x, labels, 2).status == JEM_DIVERGED, "a large loss");
    jem_clear_error(ctx);
    CHECK(net_hash(net) == hash, "nothing changed");
    jem_trainer_free(tr);
    jem_net_free(net);
}

static void test_refusals(jem_ctx *ctx) {
    printf("arguments that were accepted once\n");
    static const float x[4] = { 1, -1, 2, 0.5f };
    static const int labels[2] = { 0, 3 };
    float chains[4];
    int slot[2];
    jem_rng rng = jem_rng_seed(1);
    jem_net *net = small_mlp(ctx, two_values, 5);
    jem_tensor *t = jem_input(ctx, x, 2, 2, 1, 1);
    jem_loss_weights w = { 1, 0, 0, -0.1f };
    CHECK(!jem_loss(net, &w, t, labels, NULL, NULL, NULL, NULL) && says(ctx, "energy_l2 = -0.1"),
          "a weight");
    w.energy_l2 = 0;
    w.cd_class = 1;
    CHECK(!jem_loss(net, &w, t, labels, NULL, t, NULL, NULL) && says(ctx, "sample_labels is NULL"),
          "samples without classes: %s", jem_error(ctx));
    CHECK(!jem_loss(net, &w, t, NULL, NULL, t, labels, NULL) && says(ctx, ", but labels is NULL"),
          "data without classes: %s", jem_error(ctx));
    w.cd = 1;
    CHECK(!jem_loss(net, &w, NULL, labels, t, t, labels, NULL) && says(ctx, ", but x is NULL"),
          "no data with classes: %s", jem_error(ctx));
    w.cd = 0;
    jem_train_desc d = jem_train_desc_default();
    d.schedule.warmup = -5;
    CHECK(!jem_trainer_create(net, &d) &&
          says(ctx, "schedule.warmup = -5 is not in 0..2147483647"), "%s", jem_error(ctx));
    d.schedule.warmup = 0;
    d.schedule.kind = (jem_schedule_kind)-1;
    CHECK(!jem_trainer_create(net, &d) && says(ctx, "schedule.kind = -1 is"), "%s", jem_error(ctx));
    d.schedule.kind = JEM_SCHEDULE_CONSTANT;
    d.class_conditional = 2;
    CHECK(!jem_trainer_create(net, &d) && says(ctx, "class_conditional = 2 is not in 0..1"), "%s",
          jem_error(ctx));
    d.class_conditional = 0;
    d.optim.beta1 = 1;
    CHECK(!jem_trainer_create(net, &d) && says(ctx, "beta1 = 1 is not in 0..0.99999994"), "%s",
          jem_error(ctx));
    d.optim.beta1 = 0.9f;
    d.schedule.kind = JEM_SCHEDULE_COSINE;
    CHECK(!jem_trainer_create(net, &d) && says(ctx, "schedule.total = 0"), "a cosine of no length");
    d.schedule.kind = JEM_SCHEDULE_STEPS;
    d.schedule.at[1] = 7;
    CHECK(!jem_trainer_create(net, &d) && says(ctx, "schedule.rate above 0"), "a rate of 0");
    d.schedule.kind = JEM_SCHEDULE_CONSTANT;
    CHECK(!jem_trainer_create(net, &d) && says(ctx, "schedule.at[1] = 7 has no effect"), "%s",
          jem_error(ctx));
    jem_buffer *b = jem_buffer_create(ctx, 4, 2, 1, 1, 0, &rng);
    CHECK(jem_buffer_draw(b, &rng, 2, labels, 0, chains, slot) == JEM_BAD_ARGUMENT &&
          says(ctx, "no slots by class"), "labels");
    CHECK(jem_buffer_draw(b, &rng, 2, NULL, 5, chains, slot) == JEM_BAD_ARGUMENT &&
          says(ctx, "reinit = 5"), "a probability");
    jem_buffer_free(b);
    const int two[1] = { 2 };
    jem_param *p[4];
    static const char *const names[4] = { "a", "b", "c", "d" };
    for (int i = 0; i < 4; i++) p[i] = jem_net_param(net, names[i], 1, two, 0);
    CHECK(!jem_batch_norm(ctx, t, p[0], p[1], p[2], p[3], 2, 1) && says(ctx, "momentum = 2"),
          "a momentum");
    jem_net_free(net);
}

/* Numbers of an archive may have any address, also if they are rounded. */
static void test_odd_address(jem_ctx *ctx) {
    printf("an archive of numbers at an odd address\n");
    char bytes[9];
    float read = 0;
    const float numbers[2] = { 1.5f, -2 };
    const int64_t shape[1] = { 2 };
    memcpy(bytes + 1, numbers, sizeof numbers);
    for (int bf16 = 0; bf16 < 2; bf16++) {
        size_t size = 0;
        jem_archive *a = jem_archive_create(ctx);
        jem_archive_set_bf16(a, bf16);
        CHECK(jem_archive_add(a, "x", JEM_DTYPE_F32, 1, shape, bytes + 1) == JEM_OK, "%s",
              jem_error(ctx));
        void *file = jem_archive_to_memory(a, &size);
        jem_archive *b = jem_archive_parse(ctx, file, size);
        const jem_entry *e = jem_archive_find(b, "x");
        if (CHECK(e != NULL, "%s", jem_error(ctx))) memcpy(&read, (const float *)e->data + 1, 4);
        CHECK(read == -2, "%g", (double)read);
        jem_archive_free(a);
        jem_archive_free(b);
        jem_release(ctx, file);
    }
}

int main(int argc, char **argv) {
    static const test_case all[] = {
        TEST_IN(test_label_noise), TEST_IN(test_label_smoothing),
        TEST_IN(test_fresh_chains), TEST_IN(test_put_chains), TEST_IN(test_restart),
        TEST_IN(test_chain_label), TEST_IN(test_batch_accuracy), TEST_IN(test_score_step),
        TEST_IN(test_large_kernels), TEST_IN(test_large_windows), TEST_IN(test_functions),
        TEST_IN(test_walk_watches), TEST_IN(test_impute_watches), TEST_IN(test_impute_watched),
        TEST_IN(test_flat_samples), TEST_IN(test_generate_defaults), TEST_IN(test_buffer),
        TEST_IN(test_default_walk),
        TEST_IN(test_attack_starts), TEST_IN(test_attack_steep), TEST_IN(test_attack_bounds),
        TEST_IN(test_nan), TEST_IN(test_energy_shape), TEST_IN(test_fitted_texts),
        TEST_IN(test_overflow), TEST_IN(test_messages), TEST_IN(test_one_seed),
        TEST_IN(test_relu_zero), TEST_IN(test_sure_gradients), TEST_IN(test_rest),
        TEST_IN(test_failed_gradients), TEST_IN(test_texts_in_forward),
        TEST_IN(test_utf8), TEST(test_shared_weight),
        TEST_IN(test_unknown_norm), TEST_IN(test_rules), TEST_IN(test_slope_density),
        TEST_IN(test_term_data), TEST(test_units_poor), TEST_IN(test_averages),
        TEST_IN(test_no_score), TEST_IN(test_stored_walk), TEST_IN(test_flat_sharpness),
        TEST_IN(test_odd_address),
        TEST_IN(test_failed_statistics), TEST_IN(test_failed_values), TEST_IN(test_refusals)
    };
    return run_each_in_ctx(argc, argv, all, TEST_COUNT(all));
}
