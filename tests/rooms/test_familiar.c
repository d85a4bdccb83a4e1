/* Familiarity is a p-value: a fraction p of new data like the calibration data has a familiarity
   below p, also in each class, for any order of the calibration data, with 500 of them as with
   5,000. It does not depend on threads or instructions, and is kept in files; older files keep
   their values. */
#include "jem.h"

#include "tests/support/test.h"
#include "tests/support/common.h"

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
        const float angle = 3.14159f * jem_rng_uniform(rng), wide = 1 + 2 * jem_rng_uniform(rng);
        const float bright = 0.7f + 0.6f * jem_rng_uniform(rng);
        for (int at = 0; at < PIXELS; at++) {
            const float a = (float)(at / SIDE) - 5.5f, b = (float)(at % SIDE) - 5.5f;
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
        int alarms = 0, all = 0;
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
    float *x = clusters(ctx, &rng, MANY, CLASSES), *y = clusters(ctx, &rng, NEW, CLASSES);
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
    float *x = bars(ctx, &rng, FEW), *y = bars(ctx, &rng, NEW), *z = floats(100 * PIXELS);
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
            CHECK(jem_judge(answers[i].familiarity) == JEM_STRANGE && answers[i].reason, "noise %d",
                  i);
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
    float *x = clusters(ctx, &rng, MANY, CLASSES), *y = clusters(ctx, &rng, NEW, CLASSES);
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
              jem_judge(answers[0].familiarity) == JEM_FAMILIAR, "the centre of %d classes: %g",
              classes, (double)answers[0].familiarity);
        for (int k = 0; k < D; k++) centre[k] = 40;
        CHECK(jem_classify(net, centre, 1, answers) == JEM_OK &&
              jem_judge(answers[0].familiarity) == JEM_STRANGE && answers[0].reason, "far away: %g",
              (double)answers[0].familiarity);
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
    float *x = clusters(ctx, &rng, MANY, 1), *y = clusters(ctx, &rng, NEW, 1), s[NEW];
    for (int gradients = 0; gradients < 2; gradients++) {
        CHECK(jem_calibrate(net, x, FEW, gradients) == JEM_OK &&
              jem_classify(net, y, NEW, answers) == JEM_OK, "%s", jem_error(ctx));
        check_shares("one class", NEW, -1, FEW);
    }
    for (int i = 0; i < 100; i++) y[i * D + 1 + i % (D - 1)] += 3;
    CHECK(jem_ood_score(net, JEM_OOD_FEATURES, NULL, y, NEW, s) == JEM_OK &&
          jem_classify(net, y, 100, answers) == JEM_OK, "%s", jem_error(ctx));
    int found = 0, above = 0;
    for (int i = 0; i < 100; i++) {
        found += jem_judge(answers[i].familiarity) == JEM_STRANGE;
        for (int k = 100; k < NEW; k++) above += s[k] > s[i];
    }
    CHECK(found >= 98, "%d of 100 found", found);
    CHECK(above >= 0.98 * 100 * (NEW - 100), "by features: AUROC %g", above / (100.0 * (NEW - 100)));
    jem_net_free(net);
    net = picture_net(ctx, 1);
    float *in = bars(ctx, &rng, FEW), *out = bars(ctx, &rng, NEW);
    CHECK(jem_calibrate(net, in, FEW, JEM_AUTO) == JEM_OK &&
          jem_classify(net, out, NEW, answers) == JEM_OK, "%s", jem_error(ctx));
    check_shares("pictures of one class", NEW, -1, FEW);
    free(x);
    free(y);
    free(in);
    free(out);
    jem_net_free(net);
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
    float *x = bars(ctx, &rng, N), s[N];
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

/* What version 0.2 wrote for the network of test_older, calibrated with 100 images of 2 x 2 pixels:
   neither shades nor layout. */
static const char older_text[] =
    "0 2 -0.40108 -0.40108 0.86012 0.45251 -6.9078 0.2378 0.2378 0.89813 0.43677 4.5823e-05 "
    "10075 9926 1726 -2627 -229 9723 -2646 -231 9564 1725 0 -1 0 0 9858 0 1.7783 -2.7913 "
    "-2.7913 -2.7913 -2.7913 -2.7913 -2.7913 -2.7913 -2.7634 -2.7139 -2.6578 -2.1743 -1.6373 "
    "-1.6121 -1.6004 -1.5801 -1.5515 -1.511 -1.4638 -1.4573 -1.3916 -1.3725 -1.3124 -1.3011 "
    "-1.2803 -1.2599 -1.2244 -1.1926 -1.1877 -1.174 -1.1347 -1.0993 -1.0788 -1.0583 -1.0262 "
    "-1.0047 -0.98768 -0.96185 -0.95569 -0.94515 -0.93207 -0.92465 -0.90711 -0.89883 -0.87764 "
    "-0.8619 -0.85249 -0.84054 -0.8276 -0.82245 -0.80565 -0.78915 -0.77922 -0.76314 -0.73997 "
    "-0.72356 -0.68633 -0.67907 -0.67141 -0.64924 -0.6348 -0.62366 -0.61312 -0.59373 -0.57539 "
    "-0.5698 0.58853 0.085798 0.23321 -0.40108 -0.40108 0.86012 0.45251 -6.9078 0.21987 0.39827 "
    "0.2378 0.2378 0.89813 0.43677 4.5823e-05 10085 5811 8242 -7410 -6622 1716 -7410 -6622 725 "
    "1555 2639 1005 -152 -97 9679 2656 1015 -152 -97 9498 1836 0 0 -1 0 0 0 9868 0 2.0457 "
    "-2.4665 -2.4665 -2.4665 -2.4665 -2.4665 -2.4665 -2.4665 -2.4291 -2.3626 -2.2873 -2.0134 "
    "-1.7095 -1.6637 -1.6164 -1.5456 -1.5091 -1.4718 -1.4211 -1.4026 -1.4021 -1.3961 -1.3873 "
    "-1.3301 -1.3062 -1.2557 -1.249 -1.2188 -1.1661 -1.1547 -1.1361 -1.1251 -1.1006 -1.0883 "
    "-1.0743 -1.0497 -1.0398 -1.0294 -0.98618 -0.95658 -0.94391 -0.91191 -0.90199 -0.89171 "
    "-0.8843 -0.87571 -0.85829 -0.84719 -0.83699 -0.83078 -0.81857 -0.79722 -0.78358 -0.76743 "
    "-0.74834 -0.74097 -0.73752 -0.73158 -0.71945 -0.70707 -0.69741 -0.67859 -0.66477 -0.64056 "
    "-0.56738 -0.53013 0.47623 0.86012 0.45251 -6.9078 0.89813 0.43677 4.5823e-05 10065 9935 "
    "1611 0 0 9848 0 1.445 -3.2975 -3.2975 -3.2975 -3.2975 -3.2975 -3.2975 -3.2975 -3.029 "
    "-2.5522 -2.0117 -1.9816 -1.952 -1.8777 -1.7821 -1.6403 -1.603 -1.5937 -1.561 -1.4584 "
    "-1.4344 -1.4301 -1.4168 -1.3935 -1.2159 -1.2005 -1.1813 -1.1716 -1.0949 -1.0753 -1.0613 "
    "-1.0528 -1.0441 -1.0247 -1.0139 -0.99441 -0.99005 -0.94281 -0.91653 -0.91019 -0.88027 "
    "-0.86745 -0.85682 -0.84277 -0.83032 -0.82032 -0.80794 -0.80206 -0.79052 -0.78003 -0.75801 "
    "-0.75313 -0.73845 -0.73648 -0.73017 -0.72158 -0.71621 -0.70985 -0.69707 -0.6928 -0.68878 "
    "-0.68715 -0.68242 -0.67994 -0.67883 -0.67525 0.62836 -17.982 -17.982 -17.982 -17.982 "
    "-17.982 -17.982 -17.982 -17.627 -16.998 -16.284 -13.744 -10.926 -10.788 -10.674 -10.381 "
    "-10.176 -9.8847 -9.427 -9.0479 -8.9729 -8.6238 -8.222 -8.0696 -7.8289 -7.0265 -6.8532 "
    "-6.5925 -6.3978 -5.9509 -5.6319 -5.4282 -5.2287 -5.0391 -4.8564 -4.7691 -4.671 -4.3388 "
    "-4.2064 -4.1257 -3.9957 -3.8691 -3.7053 -3.652 -3.4639 -3.2153 -2.8445 -2.727 -2.4701 "
    "-2.4062 -2.3266 -2.1116 -2.0397 -1.8922 -1.8062 -1.7271 -1.5987 -1.3958 -1.2489 -1.1283 "
    "-1.0557 -0.93372 -0.7342 -0.58952 -0.36239 -0.28957";

/* What the version after that wrote for it: shades have one Gaussian per class. */
static const char older_shades[2][4000] = {
    "10 2 -2.4964 2.83 -0.40108 -0.40108 0.86012 0.45251 -6.9078 0 0 0 0 0 0.45515 0 "
    "0.47149 0 0 0 0 0 0.48667 0 0.47298 0.2378 0.2378 0.89813 0.43677 4.5823e-05 0.1 0.1 "
    "0.1 0.1 0.1 0.22637 0.1 0.22294 0.1 0.1 0.1 0.1 0.1 0.21852 0.1 0.21361 10154 9849 "
    "2470 -2607 -322 9808 -2626 -324 9487 2469 0 0 0 0 9939 0 0 0 0 0 10154 0 0 0 0 0 0 "
    "10154 0 0 0 0 0 0 0 10154 0 0 0 0 0 0 0 0 10154 0 0 0 0 0 0 0 0 0 10154 -3579 -442 "
    "-654 -94 0 0 0 0 0 0 9469 0 0 0 0 0 0 0 0 0 0 0 10154 5039 620 861 105 0 0 0 0 0 0 "
    "3241 0 8128 0 0 0 0 0 0 0 0 0 0 0 0 0 10154 0 0 0 0 0 0 0 0 0 0 0 0 0 0 10154 0 0 0 0 "
    "0 0 0 0 0 0 0 0 0 0 0 10154 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 10154 0 0 0 0 0 0 0 0 0 0 "
    "0 0 0 0 0 0 0 10154 -5948 -736 -193 -48 0 0 0 0 0 0 -907 0 3825 0 0 0 0 0 7189 0 0 0 0 "
    "0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 10154 -1005 -122 1032 159 0 0 0 0 0 0 -2082 0 1288 0 0 0 "
    "0 0 -1288 0 9661 0 2.401 -2.18 -2.18 -2.18 -2.18 -2.18 -2.18 -2.18 -2.1277 -2.0348 "
    "-1.9295 -1.8287 -1.7174 -1.5938 -1.4619 -1.3266 -1.2883 -1.2811 -1.2729 -1.2696 "
    "-1.2656 -1.265 -1.256 -1.2511 -1.2319 -1.2254 -1.2247 -1.2054 -1.183 -1.1736 -1.155 "
    "-1.1441 -1.1372 -1.1198 -1.0935 -1.0762 -1.052 -1.0388 -1.0135 -0.99739 -0.99157 "
    "-0.97211 -0.95518 -0.94915 -0.92298 -0.91382 -0.90881 -0.90276 -0.89759 -0.88866 "
    "-0.87982 -0.87328 -0.86288 -0.85309 -0.84685 -0.81804 -0.7933 -0.7714 -0.75252 "
    "-0.74786 -0.72535 -0.71261 -0.70774 -0.68813 -0.62966 -0.61699 0.50306 0.085798 "
    "0.23321 -0.40108 -0.40108 0.86012 0.45251 -6.9078 0.21987 0.39827 0.2378 0.2378 "
    "0.89813 0.43677 4.5823e-05 10085 5811 8242 -7410 -6622 1716 -7410 -6622 725 1555 2639 "
    "1005 -152 -97 9679 2656 1015 -152 -97 9498 1836 0 0 -1 0 0 0 9868 0 2.0457 -2.4665 "
    "-2.4665 -2.4665 -2.4665 -2.4665 -2.4665 -2.4665 -2.4291 -2.3626 -2.2873 -2.0134 "
    "-1.7095 -1.6637 -1.6164 -1.5456 -1.5091 -1.4718 -1.4211 -1.4026 -1.4021 -1.3961 "
    "-1.3873 -1.3301 -1.3062 -1.2557 -1.249 -1.2188 -1.1661 -1.1547 -1.1361 -1.1251 -1.1006 "
    "-1.0883 -1.0743 -1.0497 -1.0398 -1.0294 -0.98618 -0.95658 -0.94391 -0.91191 -0.90199 "
    "-0.89171 -0.8843 -0.87571 -0.85829 -0.84719 -0.83699 -0.83078 -0.81857 -0.79722 "
    "-0.78358 -0.76743 -0.74834 -0.74097 -0.73752 -0.73158 -0.71945 -0.70707 -0.69741 ",
    "-0.67859 -0.66477 -0.64056 -0.56738 -0.53013 0.47623 0.86012 0.45251 -6.9078 0.89813 "
    "0.43677 4.5823e-05 10065 9935 1611 0 0 9848 0 1.445 -3.2975 -3.2975 -3.2975 -3.2975 "
    "-3.2975 -3.2975 -3.2975 -3.029 -2.5522 -2.0117 -1.9816 -1.952 -1.8777 -1.7821 -1.6403 "
    "-1.603 -1.5937 -1.561 -1.4584 -1.4344 -1.4301 -1.4168 -1.3935 -1.2159 -1.2005 -1.1813 "
    "-1.1716 -1.0949 -1.0753 -1.0613 -1.0528 -1.0441 -1.0247 -1.0139 -0.99441 -0.99005 "
    "-0.94281 -0.91653 -0.91019 -0.88027 -0.86745 -0.85682 -0.84277 -0.83032 -0.82031 "
    "-0.80794 -0.80206 -0.79052 -0.78003 -0.75801 -0.75313 -0.73845 -0.73648 -0.73017 "
    "-0.72158 -0.71621 -0.70985 -0.69707 -0.6928 -0.68878 -0.68715 -0.68242 -0.67994 "
    "-0.67883 -0.67525 0.62836 0.15732 0.49516 0.65255 0.41165 0.11406 0.41871 0.079844 "
    "0.47157 0.16659 0.15848 0.20639 0.14089 0.20979 0.1331 0.15605 1.2707 0.10409 0.062199 "
    "10094 1312 10009 -3344 -3589 8822 -1690 -5511 -4902 6681 -806 -2985 -2975 -1483 9016 "
    "-2722 -62 2623 -2238 -2439 8755 -1897 -6 -584 479 798 -181 9852 -4583 -6998 -2488 2316 "
    "2406 63 128 3816 4260 -619 -4056 3158 3855 -1277 -122 329 6350 0 2.5869 -1.9349 "
    "-1.9349 -1.9349 -1.9349 -1.9349 -1.9349 -1.9349 -1.9142 -1.8775 -1.8359 -1.7559 "
    "-1.6673 -1.5897 -1.525 -1.5104 -1.4851 -1.4657 -1.4606 -1.4502 -1.4466 -1.4458 -1.4152 "
    "-1.41 -1.3705 -1.3448 -1.3048 -1.2647 -1.2408 -1.2072 -1.1876 -1.1785 -1.167 -1.1616 "
    "-1.1423 -1.1024 -1.0552 -1.0469 -1.0345 -1.009 -0.98836 -0.97743 -0.96634 -0.95244 "
    "-0.93671 -0.92494 -0.91311 -0.90105 -0.87362 -0.84279 -0.82894 -0.8058 -0.79336 "
    "-0.77525 -0.76069 -0.74609 -0.71607 -0.70693 -0.69615 -0.68062 -0.6682 -0.66311 "
    "-0.62382 -0.5721 -0.52777 -0.49464 0.23052 -20.912 -20.912 -20.912 -20.912 -20.912 "
    "-20.912 -20.912 -20.613 -20.08 -19.477 -17.388 -15.071 -14.354 -13.79 -13.635 -13.026 "
    "-12.425 -12.099 -11.847 -11.783 -11.276 -11.015 -10.914 -9.9566 -8.5525 -8.4225 "
    "-7.9697 -7.7431 -7.4859 -7.4342 -7.2794 -6.8974 -6.6519 -6.4272 -6.3097 -6.1212 "
    "-5.8279 -5.6958 -5.5408 -5.2738 -5.0589 -4.8699 -4.5966 -4.398 -4.2589 -4.1486 -3.9424 "
    "-3.4464 -3.2546 -2.9924 -2.83 -2.6798 -2.6152 -2.5246 -2.176 -1.9586 -1.839 -1.7641 "
    "-1.7451 -1.6331 -1.4121 -1.312 -1.1194 -0.47831 -0.32276"
};

static void test_older(jem_ctx *ctx) {
    printf("older calibrations: the answers of their version\n");
    const small_shape s = { 1, 2, 2, 1, 2 };
    const float x[12] = { 0.5f, 0.25f, -0.5f, 0.1f, 1.5f, -1, 1.75f, 0, 3, 3, 3, -3 };
    const struct { double familiarity[3]; jem_reason reasons[3]; } older[] = {
        { { 0.2040901, 0.0704239, 0.02812866 },
          { JEM_REASON_NONE, JEM_REASON_CLASSES, JEM_REASON_EDGES } },
        { { 0.35952869, 0.13049649, 0 },
          { JEM_REASON_NONE, JEM_REASON_NONE, JEM_REASON_SHADES } }
    };
    jem_net *made = small_mlp(ctx, s, 1);
    char text[sizeof older_shades];
    snprintf(text, sizeof text, "%s%s", older_shades[0], older_shades[1]);
    for (int version = 0; version < 2; version++) {
        float score = 0;
        jem_archive *file = jem_archive_create(ctx);
        CHECK(jem_net_to_archive(made, file) == JEM_OK &&
              jem_archive_set_meta(file, "jem.statistics",
                                   version ? text : older_text) == JEM_OK, "%s",
              jem_error(ctx));
        jem_net *net = jem_net_from_archive(ctx, file);
        CHECK(net && jem_classify(net, x, 3, answers) == JEM_OK, "%s", jem_error(ctx));
        for (int i = 0; i < 3; i++) {
            CHECK_CLOSE(answers[i].familiarity, older[version].familiarity[i], 2e-6, "image %d of "
                        "version %d", i, version);
            CHECK(answers[i].reason == older[version].reasons[i], "reason %d of version %d",
                  (int)answers[i].reason, version);
        }
        CHECK(jem_ood_score(net, JEM_OOD_IMAGE, NULL, x, 1, &score) == JEM_OK, "%s",
              jem_error(ctx));
        const jem_status shades = jem_ood_score(net, JEM_OOD_SHADES, NULL, x, 1, &score);
        if (version == 0)
            CHECK(shades == JEM_BAD_ARGUMENT && strstr(jem_error(ctx), "older"), "shades: %s",
                  jem_error(ctx));
        else CHECK(shades == JEM_OK, "shades: %s", jem_error(ctx));
        jem_clear_error(ctx);
        jem_archive_free(file);
        jem_net_free(net);
    }
    jem_net_free(made);
}

/* Bars, and bars with a bright border, which no calibration image has. */
static void test_shades(jem_ctx *ctx) {
    printf("shades: found by their own score, whatever range pixels have\n");
    enum { N = 400, OTHERS = 100 };
    jem_net *net = picture_net(ctx, 4);
    const float units[2] = { 1, 0.01f };
    for (int unit = 0; unit < 2; unit++) {
        jem_rng rng = jem_rng_seed(9);
        float *x = bars(ctx, &rng, N), *y = bars(ctx, &rng, N), *z = bars(ctx, &rng, OTHERS);
        float usual[N], other[OTHERS];
        int low = 0, strange = 0;
        for (int i = 0; i < OTHERS * PIXELS; i++) {
            const int row = i / SIDE % SIDE, column = i % SIDE;
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
            strange += jem_judge(answers[i].familiarity) == JEM_STRANGE;
        }
        CHECK(low > 95 && strange > 95, "pixels of %g: %d of 100 by shades, %d are strange",
              (double)units[unit], low, strange);
        free(x);
        free(y);
        free(z);
    }
    jem_net_free(net);
}

int main(int argc, char **argv) {
    static const test_case all[] = {
        TEST_IN(test_order), TEST_IN(test_pictures), TEST_IN(test_mlp), TEST_IN(test_one_class),
        TEST(test_same), TEST_IN(test_old), TEST_IN(test_older), TEST_IN(test_shades)
    };
    return run_in_ctx(argc, argv, all, TEST_COUNT(all), no_error_left);
}
