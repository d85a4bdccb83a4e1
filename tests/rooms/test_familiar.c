/* Familiarity is a p-value: a fraction p of new data like the calibration data has a familiarity
   below p, also in each class, for any order of the calibration data, with 500 of them as with
   5,000. It does not depend on threads or instructions, and is kept in files; older files keep
   their values. */
#include "jem.h"

#include "tests/support/test.h"
#include "tests/support/common.h"
#include "tests/support/older.h"

enum { D = 12, CLASSES = 10, FEW = 500, MANY = 5000, NEW = 4000 };
static const float levels[3] = { 0.01f, 0.05f, 0.1f };
static jem_answer answers[MANY];

/* ---- networks and data ----------------------------------------------------------------------- */

typedef struct heads { jem_layer hidden, out; } heads;

/* Logits of hidden units that copy the numbers: class k has the highest where number k is. */
static jem_tensor *heads_forward(jem_net *net, jem_tensor *x, int training, void *user) {
    const heads *h = (const heads *)user;
    net->features = jem_tanh(net->ctx, jem_apply(&h->hidden, x, training));
    return jem_apply(&h->out, net->features, training);
}

/* classes: 1 to CLASSES. */
static jem_net *heads_net(jem_ctx *ctx, int classes) {
    jem_net *net = jem_net_create(ctx, heads_forward, NULL, sizeof(heads), D, 1, 1, classes, 5);
    heads h;
    h.hidden = jem_linear_layer(net, "hidden", D, D);
    h.out = jem_linear_layer(net, "out", D, classes);
    *(heads *)net->user = h;
    memset(h.hidden.weight->value, 0, D * D * sizeof(float));
    memset(h.out.weight->value, 0, (size_t)classes * D * sizeof(float));
    for (int k = 0; k < D; k++) {
        h.hidden.weight->value[k * D + k] = 0.3f;
        if (k < classes) h.out.weight->value[k * D + k] = 9;
    }
    jem_param_changed(h.hidden.weight);
    jem_param_changed(h.out.weight);
    return net;
}

/* Vectors of classes in turn: class k is around 4 of number k, with a spread of its own. */
static float *clusters(jem_ctx *ctx, jem_rng *rng, int n, int classes) {
    float *x = floats((ptrdiff_t)n * D);
    jem_fill_normal(ctx, rng, x, (ptrdiff_t)n * D, 0, 1);
    for (int i = 0; i < n; i++) {
        const int label = i % classes;
        for (int k = 0; k < D; k++) x[i * D + k] *= 0.3f + 0.05f * (float)label;
        x[i * D + label] += 4;
    }
    return x;
}

enum { SIDE = 12, PIXELS = SIDE * SIDE };
static jem_net *picture_net(jem_ctx *ctx, int classes) {
    jem_convnet_desc d = jem_convnet_desc_default();
    d.channels = 1;
    d.height = SIDE;
    d.width = SIDE;
    d.classes = classes;
    d.layers = 2;
    d.widths[0] = 8;
    d.widths[1] = 12;
    jem_net *net = jem_convnet_create(ctx, &d, 7);
    if (net) {
        net->scale = 10;
        net->noise_lo = 0.12f;
        net->noise_hi = 2;
    }
    return net;
}

/* Bars of any direction, width and brightness, with noise. */
static float *bars(jem_ctx *ctx, jem_rng *rng, int n) {
    float *x = floats((ptrdiff_t)n * PIXELS);
    jem_fill_normal(ctx, rng, x, (ptrdiff_t)n * PIXELS, 0, 0.1f);
    for (int i = 0; i < n; i++) {
        const float angle = 3.14159f * jem_rng_uniform(rng);
        const float wide = 1 + 2 * jem_rng_uniform(rng);
        const float bright = 0.7f + 0.6f * jem_rng_uniform(rng);
        for (int at = 0; at < PIXELS; at++) {
            const float a = (float)(at / SIDE) - 5.5f;
            const float b = (float)(at % SIDE) - 5.5f;
            const float off = a * cosf(angle) + b * sinf(angle);
            x[(ptrdiff_t)i * PIXELS + at] += bright * (2 * expf(-off * off / wide) - 1);
        }
    }
    return x;
}

/* ---- false alarms ---------------------------------------------------------------------------- */

/* Checks shares below each level among n answers of a label (-1: all), within 3.5 standard errors
   of them and of the calibration's `known` data of that label. */
static void check_shares(const char *what, int n, int label, int known) {
    for (int k = 0; k < 3; k++) {
        const double p = (double)levels[k];
        int alarms = 0;
        int all = 0;
        for (int i = 0; i < n; i++) {
            if (label >= 0 && answers[i].label != label) continue;
            alarms += answers[i].familiarity < levels[k];
            all++;
        }
        if (all < 30) continue;
        CHECK_CLOSE((double)alarms / all, p, 3.5 * sqrt(p * (1 - p) * (1.0 / known + 1.0 / all)),
                    "%s, label %d, at %g: %d of %d", what, label, p, alarms, all);
    }
}

/* Counts labels of the n calibration data x into known[classes], which check_classes needs. */
static void count_labels(jem_net *net, const float *x, int n, int *known) {
    for (int k = 0; k < net->classes; k++) known[k] = 0;
    CHECK(jem_classify(net, x, n, answers) == JEM_OK, "%s", jem_error(net->ctx));
    for (int i = 0; i < n; i++) known[answers[i].label]++;
}
/* Checks each class that had 30 calibration data or more. */
static void check_classes(const char *what, int n, int classes, const int *known) {
    for (int label = 0; label < classes; label++) {
        if (known[label] >= 30) check_shares(what, n, label, known[label]);
    }
}

static void test_order(jem_ctx *ctx) {
    printf("order: classes in turn, by tens, are the worst for folds dealt in turn\n");
    jem_net *net = heads_net(ctx, CLASSES);
    jem_rng rng = jem_rng_seed(1);
    float *x = clusters(ctx, &rng, MANY, CLASSES);
    float *y = clusters(ctx, &rng, NEW, CLASSES);
    for (int n = FEW; n <= MANY; n += MANY - FEW) {
        CHECK(jem_calibrate(net, x, n, JEM_AUTO) == JEM_OK &&
              jem_classify(net, y, NEW, answers) == JEM_OK, "%s", jem_error(ctx));
        check_shares("in turn", NEW, -1, n);
        for (int label = 0; label < CLASSES; label++)
            check_shares("a class in turn", NEW, label, n / CLASSES);
    }
    free(x);
    free(y);
    jem_net_free(net);
}

static void test_pictures(jem_ctx *ctx) {
    printf("pictures: false alarms for each number of gradients; what is not known is strange\n");
    jem_net *net = picture_net(ctx, 4);
    int known[4];
    jem_rng rng = jem_rng_seed(2);
    float *x = bars(ctx, &rng, FEW);
    float *y = bars(ctx, &rng, NEW);
    float *z = floats(100 * PIXELS);
    jem_fill_normal(ctx, &rng, z, 100 * PIXELS, 0, 1);
    for (int gradients = 0; gradients <= 3; gradients++) {
        CHECK(jem_calibrate(net, x, FEW, gradients) == JEM_OK, "%s", jem_error(ctx));
        CHECK(jem_calibrated(net) == gradients, "%d gradients", jem_calibrated(net));
        count_labels(net, x, FEW, known);
        CHECK(jem_classify(net, y, NEW, answers) == JEM_OK, "%s", jem_error(ctx));
        check_shares("bars", NEW, -1, FEW);
        check_classes("bars of a class", NEW, 4, known);
        CHECK(jem_classify(net, z, 100, answers) == JEM_OK, "%s", jem_error(ctx));
        for (int i = 0; i < 100; i++)
            CHECK(jem_judge(answers[i].familiarity) == JEM_VERDICT_STRANGE && answers[i].reason,
                  "noise %d", i);
    }
    free(x);
    free(y);
    free(z);
    jem_net_free(net);
}

/* An MLP for vectors, of one class and of several. */
static void test_mlp(jem_ctx *ctx) {
    printf("vectors through an MLP: false alarms, also of each class; its centre is familiar\n");
    int known[CLASSES];
    float centre[D];
    jem_rng rng = jem_rng_seed(8);
    float *x = clusters(ctx, &rng, MANY, CLASSES);
    float *y = clusters(ctx, &rng, NEW, CLASSES);
    for (int classes = 1; classes <= 3; classes += 2) {
        const jem_mlp_desc d = jem_mlp_desc_vectors(D, classes);
        jem_net *net = jem_mlp_create(ctx, &d, 9);
        CHECK(jem_net_fit_units(net, x, MANY) == JEM_OK, "%s", jem_error(ctx));
        for (int n = FEW; n <= MANY; n += MANY - FEW) {
            CHECK(jem_calibrate(net, x, n, JEM_AUTO) == JEM_OK, "%s", jem_error(ctx));
            count_labels(net, x, n, known);
            CHECK(jem_classify(net, y, NEW, answers) == JEM_OK, "%s", jem_error(ctx));
            check_shares("an MLP", NEW, -1, n);
            check_classes("a class of an MLP", NEW, classes, known);
        }
        for (int k = 0; k < D; k++) {
            double sum = 0;
            for (int i = 0; i < MANY; i++) sum += (double)x[(ptrdiff_t)i * D + k];
            centre[k] = (float)(sum / MANY);
        }
        CHECK(jem_classify(net, centre, 1, answers) == JEM_OK &&
              jem_judge(answers[0].familiarity) == JEM_VERDICT_FAMILIAR,
              "the centre of %d classes: %g", classes, (double)answers[0].familiarity);
        for (int k = 0; k < D; k++) centre[k] = 40;
        CHECK(jem_classify(net, centre, 1, answers) == JEM_OK &&
              jem_judge(answers[0].familiarity) == JEM_VERDICT_STRANGE && answers[0].reason,
              "far away: %g", (double)answers[0].familiarity);
        jem_net_free(net);
    }
    free(x);
    free(y);
}

/* A density without classes: its features must count although there is no other class. */
static void test_one_class(jem_ctx *ctx) {
    printf("one class: false alarms, and what only the features show\n");
    jem_net *net = heads_net(ctx, 1);
    jem_rng rng = jem_rng_seed(3);
    float *x = clusters(ctx, &rng, MANY, 1);
    float *y = clusters(ctx, &rng, NEW, 1);
    float s[NEW];
    for (int gradients = 0; gradients < 2; gradients++) {
        CHECK(jem_calibrate(net, x, FEW, gradients) == JEM_OK &&
              jem_classify(net, y, NEW, answers) == JEM_OK, "%s", jem_error(ctx));
        check_shares("one class", NEW, -1, FEW);
    }
    for (int i = 0; i < 100; i++) y[i * D + 1 + i % (D - 1)] += 3;
    CHECK(jem_ood_score(net, JEM_OOD_FEATURES, NULL, y, NEW, s) == JEM_OK &&
          jem_classify(net, y, 100, answers) == JEM_OK, "%s", jem_error(ctx));
    int found = 0;
    int above = 0;
    for (int i = 0; i < 100; i++) {
        found += jem_judge(answers[i].familiarity) == JEM_VERDICT_STRANGE;
        for (int k = 100; k < NEW; k++) above += s[k] > s[i];
    }
    CHECK(found >= 98, "%d of 100 found", found);
    CHECK(above >= 0.98 * 100 * (NEW - 100), "by features: AUROC %g",
          above / (100.0 * (NEW - 100)));
    jem_net_free(net);
    net = picture_net(ctx, 1);
    float *in = bars(ctx, &rng, FEW);
    float *out = bars(ctx, &rng, NEW);
    CHECK(jem_calibrate(net, in, FEW, JEM_AUTO) == JEM_OK &&
          jem_classify(net, out, NEW, answers) == JEM_OK, "%s", jem_error(ctx));
    check_shares("pictures of one class", NEW, -1, FEW);
    free(x);
    free(y);
    free(in);
    free(out);
    jem_net_free(net);
}

/* Readings of a machine that is off for all, or half, of the calibration. */
static void test_equal(jem_ctx *ctx) {
    printf("equal readings: they tie, and are not strange\n");
    jem_net *net = heads_net(ctx, 1);
    jem_rng rng = jem_rng_seed(4);
    float *x = clusters(ctx, &rng, FEW, 1);
    for (int half = 0; half < 2; half++) {
        for (int i = 0; i < FEW * D; i++)
            if (!half || i / D % 2) x[i] = (float)(1 + i % D);
        CHECK(jem_calibrate(net, x, FEW, 1) == JEM_OK &&
              jem_classify(net, x, FEW, answers) == JEM_OK, "%s", jem_error(ctx));
        CHECK(answers[1].familiarity > .2f, "half %d: an equal reading has %g", half,
              (double)answers[1].familiarity);
        free(x);
        x = clusters(ctx, &rng, FEW, 1);
    }
    for (int i = 0; i < FEW * D; i++) x[i] = (float)(1 + i % D);
    CHECK(jem_calibrate(net, x, FEW, 1) == JEM_OK, "%s", jem_error(ctx));
    x[D] += 3;
    CHECK(jem_classify(net, x + D, 1, answers) == JEM_OK, "%s", jem_error(ctx));
    CHECK(jem_judge(answers[0].familiarity) == JEM_VERDICT_STRANGE, "another reading has %g",
          (double)answers[0].familiarity);
    free(x);
    jem_net_free(net);
}

/* ---- verdicts, scores, reasons --------------------------------------------------------------- */

static void test_verdicts(void) {
    printf("verdicts: exactly at their limits; names of verdicts and reasons\n");
    const struct { float familiarity; jem_verdict verdict; } cases[] = {
        { -1, JEM_VERDICT_NONE }, { 0, JEM_VERDICT_STRANGE },
        { nextafterf(0.01f, 0), JEM_VERDICT_STRANGE }, { 0.01f, JEM_VERDICT_ODD },
        { nextafterf(0.01f, 1), JEM_VERDICT_ODD }, { nextafterf(0.1f, 0), JEM_VERDICT_ODD },
        { 0.1f, JEM_VERDICT_FAMILIAR }, { nextafterf(0.1f, 1), JEM_VERDICT_FAMILIAR },
        { 1, JEM_VERDICT_FAMILIAR }
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        CHECK(jem_judge(cases[i].familiarity) == cases[i].verdict, "%.9g is %s",
              (double)cases[i].familiarity, jem_verdict_name(jem_judge(cases[i].familiarity)));
    static const char *const names[] = { "not calibrated", "familiar", "odd", "strange" };
    for (int v = JEM_VERDICT_NONE; v <= JEM_VERDICT_STRANGE; v++)
        CHECK(!strcmp(jem_verdict_name((jem_verdict)v), names[v]), "verdict %d: %s", v,
              jem_verdict_name((jem_verdict)v));
    for (int v = -1; v <= JEM_REASON_BLANK + 1; v += JEM_REASON_BLANK + 2)
        CHECK(!strcmp(jem_verdict_name((jem_verdict)v), "unknown") &&
              !strcmp(jem_reason_name((jem_reason)v), "unknown"), "value %d: %s, %s", v,
              jem_verdict_name((jem_verdict)v), jem_reason_name((jem_reason)v));
    CHECK(!strcmp(jem_reason_name(JEM_REASON_SMOOTH), "too smooth for its class"), "smooth: %s",
          jem_reason_name(JEM_REASON_SMOOTH));
    for (int r = JEM_REASON_CLASSES; r <= JEM_REASON_BLANK; r++) {
        const char *name = jem_reason_name((jem_reason)r);
        CHECK(*name, "reason %d has no name", r);
        for (int other = JEM_REASON_NONE; other < r; other++)
            CHECK(strcmp(name, jem_reason_name((jem_reason)other)), "reasons %d and %d: %s", r,
                  other, name);
    }
}

/* Checks that of images with one label, a higher score means no less familiarity. */
static void check_ranks(const float *score, const jem_answer *a, int n) {
    int wrong = 0;
    int pairs = 0;
    for (int i = 0; i < n; i++)
        for (int k = 0; k < n; k++) {
            if (a[i].label != a[k].label || !(score[i] > score[k])) continue;
            wrong += a[i].familiarity < a[k].familiarity;
            pairs += a[i].familiarity > a[k].familiarity;
        }
    CHECK(wrong == 0 && pairs > n, "%d of %d pairs are ranked otherwise", wrong, pairs + wrong);
}

/* Scores bars with more noise from one to the next. */
static void test_scores(jem_ctx *ctx) {
    printf("scores: familiarity ranks their sum; two of them need no more of the network\n");
    enum { N = 300, OTHERS = 150 };
    float whole[OTHERS], image[2][OTHERS], shades[2][OTHERS];
    jem_rng rng = jem_rng_seed(12);
    float *x = bars(ctx, &rng, N);
    float *y = bars(ctx, &rng, OTHERS);
    for (int i = 0; i < OTHERS * PIXELS; i++)
        y[i] += 0.004f * (float)(i / PIXELS) * jem_rng_normal(&rng);
    jem_net *net = picture_net(ctx, 4);
    CHECK(jem_calibrated(net) == -1, "not calibrated: %d", jem_calibrated(net));
    CHECK(jem_calibrate(net, x, N, 1) == JEM_OK &&
          jem_ood_score(net, JEM_OOD_FAMILIAR, NULL, y, OTHERS, whole) == JEM_OK &&
          jem_classify(net, y, OTHERS, answers) == JEM_OK, "%s", jem_error(ctx));
    check_ranks(whole, answers, OTHERS);
    for (int twice = 0; twice < 2; twice++) {      /* logits times two: the same labels */
        CHECK(jem_calibrate(net, x, N, 1) == JEM_OK &&
              jem_ood_score(net, JEM_OOD_IMAGE, NULL, y, OTHERS, image[twice]) == JEM_OK &&
              jem_ood_score(net, JEM_OOD_SHADES, NULL, y, OTHERS, shades[twice]) == JEM_OK, "%s",
              jem_error(ctx));
        jem_param *head[2] = { jem_net_find(net, "class_output.weight"),
                               jem_net_find(net, "class_output.bias") };
        for (int k = 0; k < 2; k++) {
            for (ptrdiff_t i = 0; i < head[k]->size; i++) head[k]->value[i] *= 2;
            jem_param_changed(head[k]);
        }
    }
    CHECK(same_bits(image[0], image[1], OTHERS), "details of the image");
    CHECK(same_bits(shades[0], shades[1], OTHERS), "shades of the image");
    free(x);
    free(y);
    jem_net_free(net);
}

/* Counts those of n images that are strange for this reason. */
static int count_reason(jem_net *net, const float *x, int n, jem_reason reason) {
    int count = 0;
    CHECK(jem_classify(net, x, n, answers) == JEM_OK, "%s", jem_error(net->ctx));
    for (int i = 0; i < n; i++)
        count += jem_judge(answers[i].familiarity) == JEM_VERDICT_STRANGE &&
                 answers[i].reason == reason;
    return count;
}

/* Change an image, each as one of the reasons describes. */
static void blur_image(float *x) {
    float y[PIXELS];
    for (int at = 0; at < PIXELS; at++) {
        float sum = 0;
        int count = 0;
        for (int k = 0; k < 9; k++) {
            const int row = at / SIDE + k / 3 - 1;
            const int column = at % SIDE + k % 3 - 1;
            if (row < 0 || row >= SIDE || column < 0 || column >= SIDE) continue;
            sum += x[row * SIDE + column];
            count++;
        }
        y[at] = sum / (float)count;
    }
    memcpy(x, y, sizeof y);
}
static void roughen_image(float *x) {
    for (int at = 0; at < PIXELS; at++) x[at] += (at / SIDE + at) % 2 ? 0.3f : -0.3f;
}
static void frame_image(float *x) {
    for (int at = 0; at < PIXELS; at++) {
        const int row = at / SIDE;
        const int column = at % SIDE;
        if (row % (SIDE - 1) == 0 || column % (SIDE - 1) == 0) x[at] = 1;
    }
}
static void shift_image(float *x) {
    float y[PIXELS];
    for (int at = 0; at < PIXELS; at++)
        y[at] = x[(at / SIDE + 4) % SIDE * SIDE + (at % SIDE + 4) % SIDE];
    memcpy(x, y, sizeof y);
}

/* Returns logits of one class that are all 0: what is strange, the image itself shows. */
static jem_tensor *blind_forward(jem_net *net, jem_tensor *x, int training, void *user) {
    (void)training;
    (void)user;
    return jem_scale(net->ctx, jem_sum_image(net->ctx, x), 0);
}

static void test_image_reasons(jem_ctx *ctx) {
    printf("reasons: of images\n");
    enum { N = 500, OTHERS = 50, KINDS = 4 };
    static const struct { void (*change)(float *x); jem_reason reason; } kinds[KINDS] = {
        { blur_image, JEM_REASON_SMOOTH }, { roughen_image, JEM_REASON_EDGES },
        { frame_image, JEM_REASON_SHADES }, { shift_image, JEM_REASON_LAYOUT }
    };
    jem_rng rng = jem_rng_seed(13);
    jem_net *net = jem_net_create(ctx, blind_forward, NULL, 0, 1, SIDE, SIDE, 1, 1);
    float *x = bars(ctx, &rng, N);
    CHECK(jem_calibrate(net, x, N, 0) == JEM_OK, "%s", jem_error(ctx));
    for (int k = 0; k < KINDS; k++) {
        float *y = bars(ctx, &rng, OTHERS);
        for (int i = 0; i < OTHERS; i++) kinds[k].change(y + i * PIXELS);
        const int count = count_reason(net, y, OTHERS, kinds[k].reason);
        CHECK(count > OTHERS / 2, "%s: %d of %d", jem_reason_name(kinds[k].reason), count, OTHERS);
        free(y);
    }
    free(x);
    jem_net_free(net);
}

/* Kinds of networks of pairs of numbers, in which (0,0) is strange by one statistic, and usual by
   the numbers themselves. Data are on a ring, which log p(x) or a feature shows; or on both sides
   of a cliff, where the slope is larger or the classes are equally likely. */
enum { RING_DENSITY, RING_FEATURE, CLIFF_SLOPE, CLIFF_CLASSES, PAIRS };

/* Returns the logits of one class or, on the cliff between them, of two. */
static jem_tensor *pairs_forward(jem_net *net, jem_tensor *x, int training, void *user) {
    jem_ctx *ctx = net->ctx;
    const int kind = *(const int *)user;
    (void)training;
    jem_tensor *square = jem_sum_image(ctx, jem_square(ctx, x));
    jem_tensor *cliff = jem_tanh(ctx, jem_scale(ctx, jem_slice(ctx, x, 0, 1), 5));
    jem_tensor *off = jem_square(ctx, jem_add_constant(ctx, square, -1));
    if (kind == RING_DENSITY) return jem_scale(ctx, off, -5);
    if (kind == CLIFF_SLOPE) return cliff;
    if (kind == RING_FEATURE) net->features = square;
    if (kind == RING_FEATURE) return jem_scale(ctx, square, 0);
    jem_tensor *other = jem_scale(ctx, cliff, -3);
    return jem_log_softmax(ctx, jem_concat(ctx, jem_scale(ctx, cliff, 3), other));
}

/* Draws n pairs; to be freed. */
static float *pairs(jem_rng *rng, int n, int kind) {
    float *x = floats(2 * n);
    for (int i = 0; i < n; i++) {
        const float angle = 6.28318f * jem_rng_uniform(rng);
        const float radius = 1 + 0.1f * jem_rng_normal(rng);
        x[2 * i] = radius * cosf(angle);
        x[2 * i + 1] = radius * sinf(angle);
        if (kind < CLIFF_SLOPE) continue;
        x[2 * i] = i % 2 ? radius : -radius;
        x[2 * i + 1] = jem_rng_normal(rng);
    }
    return x;
}

static void test_vector_reasons(jem_ctx *ctx) {
    printf("reasons: of vectors\n");
    enum { N = 500 };
    static const jem_reason reasons[PAIRS] = { JEM_REASON_DENSITY, JEM_REASON_FEATURES,
                                               JEM_REASON_SLOPE, JEM_REASON_CLASSES };
    const float centre[2] = { 0, 0 };
    const float far[2] = { 1, 40 };
    jem_rng rng = jem_rng_seed(14);
    for (int kind = 0; kind < PAIRS; kind++) {
        const int classes = kind == CLIFF_CLASSES ? 2 : 1;
        jem_net *net = jem_net_create(ctx, pairs_forward, &kind, sizeof kind, 2, 1, 1, classes, 1);
        float *x = pairs(&rng, N, kind);
        CHECK(jem_calibrate(net, x, N, JEM_AUTO) == JEM_OK, "%s", jem_error(ctx));
        int found = count_reason(net, centre, 1, reasons[kind]);
        CHECK(found, "the centre, kind %d: %g, %s", kind, (double)answers[0].familiarity,
              jem_reason_name(answers[0].reason));
        if (kind >= CLIFF_SLOPE) found = count_reason(net, far, 1, JEM_REASON_VALUES);
        CHECK(found, "far away, kind %d: %g, %s", kind, (double)answers[0].familiarity,
              jem_reason_name(answers[0].reason));
        CHECK(jem_classify(net, x, N, answers) == JEM_OK, "%s", jem_error(ctx));
        for (int i = 0; i < N; i++)
            CHECK((jem_judge(answers[i].familiarity) != JEM_VERDICT_FAMILIAR) ==
                  (answers[i].reason != 0),
                  "vector %d: %g, '%s'", i, (double)answers[i].familiarity,
                  jem_reason_name(answers[i].reason));
        free(x);
        jem_net_free(net);
    }
}

/* ---- the same everywhere --------------------------------------------------------------------- */

static void test_same(void) {
    printf("same: any threads and instructions, and from a file\n");
    enum { N = 300 };
    static const jem_isa isas[4] = { JEM_ISA_SCALAR, JEM_ISA_BEST, JEM_ISA_BEST, JEM_ISA_SCALAR };
    static const int threads[4] = { 1, 1, 3, 2 };
    static jem_answer first[N];
    char *text = NULL;
    for (int k = 0; k < 4; k++) {
        jem_ctx *ctx = isa_ctx(isas[k], threads[k]);
        jem_net *net = picture_net(ctx, 4);
        jem_rng rng = jem_rng_seed(4);
        float *x = bars(ctx, &rng, N);
        CHECK(jem_calibrate(net, x, N, 3) == JEM_OK &&
              jem_classify(net, x, N, answers) == JEM_OK, "%s", jem_error(ctx));
        jem_archive *file = jem_archive_create(ctx);
        CHECK(jem_net_to_archive(net, file) == JEM_OK, "%s", jem_error(ctx));
        jem_net *back = jem_net_from_archive(ctx, file);
        const char *known = jem_net_meta(net, "jem.statistics");
        if (k == 0) {
            memcpy(first, answers, sizeof first);
            if (known) text = (char *)malloc(strlen(known) + 1);
            if (text) strcpy(text, known);
        }
        CHECK(!memcmp(answers, first, sizeof first), "answers of case %d", k);
        CHECK(text && known && !strcmp(text, known), "calibration of case %d", k);
        CHECK(back && jem_classify(back, x, N, answers) == JEM_OK &&
              !memcmp(answers, first, sizeof first), "from a file, case %d: %s", k, jem_error(ctx));
        jem_archive_free(file);
        jem_net_free(back);
        jem_net_free(net);
        free(x);
        jem_ctx_free(ctx);
    }
    free(text);
}

/* A file of before has no "jem.statistics"; it may have a "jem.known", which is not read. */
static void test_old(jem_ctx *ctx) {
    printf("old files: log p(x) and the mean logit, as before, and no reasons\n");
    enum { N = 300 };
    static jem_answer before[N];
    jem_net *net = picture_net(ctx, 4);
    jem_rng rng = jem_rng_seed(6);
    float *x = bars(ctx, &rng, N);
    float s[N];
    CHECK(jem_calibrate(net, x, N, JEM_AUTO) == JEM_OK &&
          jem_net_set_meta(net, "jem.statistics", NULL) == JEM_OK &&
          jem_classify(net, x, N, before) == JEM_OK &&
          jem_ood_score(net, JEM_OOD_USUAL, NULL, x, N, s) == JEM_OK, "%s", jem_error(ctx));
    jem_archive *file = jem_archive_create(ctx);
    CHECK(jem_net_to_archive(net, file) == JEM_OK &&
          jem_archive_set_meta(file, "jem.known", "1 12 0.5") == JEM_OK, "%s", jem_error(ctx));
    jem_net *back = jem_net_from_archive(ctx, file);
    CHECK(back && jem_classify(back, x, N, answers) == JEM_OK &&
          !memcmp(answers, before, sizeof before), "%s", jem_error(ctx));
    int lower = 0;
    for (int i = 0; i < N; i++) {
        lower += s[i] < s[0];
        CHECK(answers[i].reason == JEM_REASON_NONE, "image %d has a reason", i);
    }
    CHECK_CLOSE(answers[0].familiarity, (double)lower / (N - 1), 1.01 / 64, "its rank");
    jem_archive_free(file);
    jem_net_free(back);
    jem_net_free(net);
    free(x);
}

/* Makes three images of 2 x 2; the first has a colour if there are channels for it. */
static void older_images(int channels, float *x) {
    static const float shades[3][4] = {
        { 0.5f, 0.25f, -0.5f, 0.1f }, { 1.5f, -1, 1.75f, 0 }, { 3, 3, 3, -3 }
    };
    for (int i = 0; i < 3 * channels * 4; i++) {
        const int image = i / (channels * 4);
        const int channel = i / 4 % channels;
        x[i] = shades[image][i % 4];
        if (image == 0) x[i] += 0.1f * (float)channel;
    }
}

static void test_older(jem_ctx *ctx) {
    printf("older calibrations: the answers of their version\n");
    enum { VERSIONS = 3, IMAGES = 3, MOST = 3 * 4 };
    const struct {
        const char *text, *more;
        int channels;
        double familiarity[IMAGES];
        jem_reason reasons[IMAGES];
    } older[VERSIONS] = {
        { older_text, "", 1, { 0.2040901, 0.0704239, 0.02812866 },
          { JEM_REASON_NONE, JEM_REASON_CLASSES, JEM_REASON_EDGES } },
        { older_shades[0], older_shades[1], 1, { 0.35952869, 0.13049649, 0 },
          { JEM_REASON_NONE, JEM_REASON_NONE, JEM_REASON_SHADES } },
        { older_mixture[0], older_mixture[1], 3, { 0.138152912, 0.0414205343, 0 },
          { JEM_REASON_NONE, JEM_REASON_FEATURES, JEM_REASON_SHADES } }
    };
    for (int version = 0; version < VERSIONS; version++) {
        const int channels = older[version].channels;
        const small_shape s = { channels, 2, 2, 1, 2 };
        char text[sizeof older_mixture];
        float x[IMAGES * MOST];
        float score = 0;
        older_images(channels, x);
        jem_net *made = small_mlp(ctx, s, 1);
        jem_archive *file = jem_archive_create(ctx);
        snprintf(text, sizeof text, "%s%s", older[version].text, older[version].more);
        CHECK(jem_net_to_archive(made, file) == JEM_OK &&
              jem_archive_set_meta(file, "jem.statistics", text) == JEM_OK, "%s", jem_error(ctx));
        jem_net *net = jem_net_from_archive(ctx, file);
        CHECK(net && jem_classify(net, x, IMAGES, answers) == JEM_OK, "%s", jem_error(ctx));
        for (int i = 0; i < IMAGES; i++) {
            CHECK_CLOSE(answers[i].familiarity, older[version].familiarity[i], 2e-6, "image %d of "
                        "version %d", i, version);
            CHECK(answers[i].reason == older[version].reasons[i], "reason %d of version %d",
                  (int)answers[i].reason, version);
        }
        CHECK(jem_ood_score(net, JEM_OOD_IMAGE, NULL, x, 1, &score) == JEM_OK, "%s",
              jem_error(ctx));
        const jem_status found = jem_ood_score(net, JEM_OOD_SHADES, NULL, x, 1, &score);
        if (version == 0)
            CHECK(found == JEM_BAD_ARGUMENT && strstr(jem_error(ctx), "older"), "shades: %s",
                  jem_error(ctx));
        else CHECK(found == JEM_OK, "shades: %s", jem_error(ctx));
        jem_clear_error(ctx);
        jem_archive_free(file);
        jem_net_free(net);
        jem_net_free(made);
    }
}

/* Bars, and bars with a bright border, which no calibration image has. */
static void test_shades(jem_ctx *ctx) {
    printf("shades: found by their own score, whatever range pixels have\n");
    enum { N = 400, OTHERS = 100 };
    jem_net *net = picture_net(ctx, 4);
    const float units[2] = { 1, 0.01f };
    for (int unit = 0; unit < 2; unit++) {
        jem_rng rng = jem_rng_seed(9);
        float *x = bars(ctx, &rng, N);
        float *y = bars(ctx, &rng, N);
        float *z = bars(ctx, &rng, OTHERS);
        float usual[N], other[OTHERS];
        int low = 0;
        int strange = 0;
        for (int i = 0; i < OTHERS * PIXELS; i++) {
            const int row = i / SIDE % SIDE;
            const int column = i % SIDE;
            const int border = row == 0 || row == SIDE - 1 || column == 0 || column == SIDE - 1;
            if (border) z[i] = 1;
        }
        for (int i = 0; i < N * PIXELS; i++) {
            x[i] *= units[unit];
            y[i] *= units[unit];
            if (i < OTHERS * PIXELS) z[i] *= units[unit];
        }
        CHECK(jem_calibrate(net, x, N, 0) == JEM_OK &&
              jem_ood_score(net, JEM_OOD_SHADES, NULL, y, N, usual) == JEM_OK &&
              jem_ood_score(net, JEM_OOD_SHADES, NULL, z, OTHERS, other) == JEM_OK &&
              jem_classify(net, z, OTHERS, answers) == JEM_OK, "%s", jem_error(ctx));
        for (int i = 0; i < OTHERS; i++) {
            int higher = 0;
            for (int k = 0; k < N; k++) higher += usual[k] > other[i];
            low += higher > 99 * N / 100;
            strange += jem_judge(answers[i].familiarity) == JEM_VERDICT_STRANGE;
        }
        CHECK(low > 95 && strange > 95, "pixels of %g: %d of 100 by shades, %d are strange",
              (double)units[unit], low, strange);
        free(x);
        free(y);
        free(z);
    }
    jem_net_free(net);
}

/* Makes n images of bars in three channels: without colour, or with a border of one shade, or with
   both, or with neither. */
static float *coloured(jem_ctx *ctx, jem_rng *rng, int n, int grey, int even) {
    float *bar = bars(ctx, rng, n);
    float *x = floats((ptrdiff_t)n * 3 * PIXELS);
    for (int i = 0; i < n; i++) {
        for (int c = 0; c < 3; c++) {
            float tint = 0;
            if (!grey) tint = 0.5f * (jem_rng_uniform(rng) - 0.5f);
            for (int at = 0; at < PIXELS; at++) {
                const int row = at / SIDE;
                const int column = at % SIDE;
                const int border = row % (SIDE - 1) == 0 || column % (SIDE - 1) == 0;
                float shade = bar[i * PIXELS + at];
                if (even && border) shade = bar[i * PIXELS];
                x[(i * 3 + c) * PIXELS + at] = shade + tint;
            }
        }
    }
    free(bar);
    return x;
}

static int ascending(const void *a, const void *b) {
    const float x = *(const float *)a;
    const float y = *(const float *)b;
    return (x > y) - (x < y);
}

/* Of the images of the calibration, one in 20 has no colour, and one in 20 an even border. */
static void test_together(jem_ctx *ctx) {
    printf("shades: strange together, if not alone\n");
    enum { N = 1000, SOME = 50, OTHERS = 200 };
    const small_shape s = { .channels = 3, .height = SIDE, .width = SIDE, .classes = 2 };
    jem_net *net = small_convnet(ctx, s, 4, 6, 1);
    jem_rng rng = jem_rng_seed(11);
    float *x = coloured(ctx, &rng, N, 0, 0);
    float usual[N];
    int strange[4];
    for (int kind = 1; kind < 3; kind++) {
        float *some = coloured(ctx, &rng, SOME, kind & 1, kind & 2);
        memcpy(x + (ptrdiff_t)(kind - 1) * SOME * 3 * PIXELS, some,
               sizeof(float) * SOME * 3 * PIXELS);
        free(some);
    }
    CHECK(net && jem_calibrate(net, x, N, 0) == JEM_OK &&
          jem_ood_score(net, JEM_OOD_SHADES, NULL, x, N, usual) == JEM_OK, "%s", jem_error(ctx));
    qsort(usual, N, sizeof *usual, ascending);
    for (int kind = 0; kind < 4; kind++) {
        float *y = coloured(ctx, &rng, OTHERS, kind & 1, kind & 2);
        float score[OTHERS];
        CHECK(jem_ood_score(net, JEM_OOD_SHADES, NULL, y, OTHERS, score) == JEM_OK, "%s",
              jem_error(ctx));
        strange[kind] = 0;
        for (int i = 0; i < OTHERS; i++) strange[kind] += score[i] < usual[N / 100];
        free(y);
    }
    CHECK(strange[0] < 8 && strange[1] < 50 && strange[2] < 50 && strange[3] > 180,
          "strange of 200: %d, without colour %d, with an even border %d, both %d", strange[0],
          strange[1], strange[2], strange[3]);
    free(x);
    jem_net_free(net);
}

int main(int argc, char **argv) {
    static const test_case all[] = {
        TEST_IN(test_order), TEST_IN(test_pictures), TEST_IN(test_mlp), TEST_IN(test_one_class),
        TEST_IN(test_equal), TEST(test_verdicts), TEST_IN(test_scores), TEST_IN(test_image_reasons),
        TEST_IN(test_vector_reasons), TEST(test_same), TEST_IN(test_old), TEST_IN(test_older),
        TEST_IN(test_shades), TEST_IN(test_together)
    };
    return run_in_ctx(argc, argv, all, TEST_COUNT(all), no_error_left);
}
