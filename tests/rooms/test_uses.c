/* Applications of a JEM: calibration and detection compared with scikit-learn (golden_uses.h, made
   by make_golden_uses.py), familiarity compared with its formula, attacks on a linear model with a
   known best perturbation and compared with PyTorch's, imputation of a Gaussian with a known
   conditional mean. */
#define JEM_IMPLEMENTATION
#include "jem.h"
#include "tests/support/test.h"
#include "tests/support/common.h"
#include "tests/support/golden_uses.h"
#include "tools/support/measures.h"
#include "tools/support/robust.h"

#define COUNT(a) ((int)(sizeof(a) / sizeof *(a)))

/* ---- values from names, as in make_golden_uses.py ------------------------------------------ */

static void noise(const char *name, int n, double *x) {
    uint32_t h = 2166136261u;
    for (const char *c = name; *c; c++) h = (h ^ (unsigned char)*c) * 16777619u;
    h |= 1;
    for (int i = 0; i < n; i++) {
        h ^= h << 13;
        h ^= h >> 17;
        h ^= h << 5;
        x[i] = (h >> 8) / 8388608.0 - 1.0;
    }
}

enum { N = 400, CLASSES = 7, USUAL = 300, OTHER = 200 };

static predictions made_predictions(double scale) {
    static double u[N * CLASSES], v[N * CLASSES];
    static float f[N * CLASSES];
    static int labels[N];
    noise("logits", N * CLASSES, u);
    noise("labels", N * CLASSES, v);
    for (int i = 0; i < N; i++) {
        double best = -1e9;
        for (int c = 0; c < CLASSES; c++) {
            const int at = i * CLASSES + c;
            f[at] = (float)(scale * u[at]);
            if ((double)f[at] + 3 * v[at] > best) {
                best = (double)f[at] + 3 * v[at];
                labels[i] = c;
            }
        }
    }
    const predictions p = { f, labels, N, CLASSES, 0 };
    return p;
}

/* ---- probabilities --------------------------------------------------------------------------- */

static void test_reliability(void) {
    printf("calibration: as numpy and scikit-learn have it\n");
    reliability_bin bin[100];
    for (int i = 0; i < COUNT(golden_reliability); i++) {
        const golden *g = &golden_reliability[i];
        predictions p = made_predictions(g->scale);
        p.temperature = g->temperature;
        const reliability s = measure_reliability(&p, g->bins, bin);
        const double is[6] = { s.accuracy, s.confidence, s.nll, s.brier, s.ece, s.mce };
        for (int k = 0; k < 6; k++) CHECK_CLOSE(is[k], g->v[k], 1e-9, "case %d, number %d", i, k);
        int count = 0;
        for (int k = 0; k < g->bins; k++) {
            count += bin[k].count;
            CHECK(!bin[k].count || (bin[k].confidence * g->bins > k - 1e-9 &&
                                    bin[k].confidence * g->bins <= k + 1 + 1e-9),
                  "case %d: bin %d holds %g", i, k, bin[k].confidence);
        }
        CHECK(count == N, "case %d: %d in all bins", i, count);
    }
    const float large[4] = { 1e30f, 1e30f, 1e30f, 1e30f };     /* log 4 is no part of it */
    const int label = 1;
    const predictions p = { large, &label, 1, 4, 0 };
    const reliability s = measure_reliability(&p, 10, bin);
    CHECK_CLOSE(s.confidence, 0.25, 1e-12, "four alike");
    CHECK_CLOSE(s.nll, log(4), 1e-12, "four alike: nll");
    CHECK_CLOSE(s.brier, 0.75, 1e-12, "four alike: Brier");
}

/* ---- two sets of points ---------------------------------------------------------------------- */

enum { POINTS = 80, DIMS = 5 };

/* As points() in make_golden_uses.py. */
static void made_points(const char *name, double shift, double scale, float *x) {
    double u[POINTS * DIMS], mix[DIMS * DIMS];
    noise(name, POINTS * DIMS, u);
    noise("mix", DIMS * DIMS, mix);
    for (int i = 0; i < POINTS; i++)
        for (int k = 0; k < DIMS; k++) {
            double sum = 0;
            for (int l = 0; l < DIMS; l++)
                sum += scale * u[i * DIMS + l] * (mix[l * DIMS + k] + (l == k));
            x[i * DIMS + k] = (float)(sum + shift);
        }
}

static void test_sets(void) {
    printf("two sets of points: as scipy and scikit-learn have it, and as Gaussians have it\n");
    static float x[POINTS * DIMS], y[POINTS * DIMS];
    double d;
    double precision = 0;
    double recall = 0;
    for (int i = 0; i < COUNT(golden_sets); i++) {
        const golden *g = &golden_sets[i];
        made_points("here", g->scale, g->temperature, x);
        made_points("there", 0, 1, y);
        CHECK(measure_frechet(x, POINTS, y, POINTS, DIMS, &d) &&
              measure_precision(x, y, POINTS, DIMS, g->bins, &precision, &recall), "case %d", i);
        CHECK_CLOSE(d, g->v[0], 1e-5, "case %d", i);
        CHECK_CLOSE(precision, g->v[1], 1e-9, "case %d", i);
        CHECK_CLOSE(recall, g->v[2], 1e-9, "case %d", i);
    }
    CHECK(measure_frechet(x, POINTS, x, POINTS, DIMS, &d) && d < 1e-9, "itself: %g", d);
    CHECK(!measure_precision(x, y, 3, DIMS, 3, &precision, &recall), "no third neighbour");

    /* Frechet distance of N(0, diag s^2) and N(m, diag t^2): |m|^2 + sum (s - t)^2; of 20,000 */
    enum { MANY = 20000, D = 3 };
    static const float s[D] = { 1, 2, .5f };
    static const float t[D] = { 1, 1, 1.5f };
    static const float m[D] = { 1, 0, -2 };
    float *a = (float *)malloc(MANY * D * sizeof *a);
    float *b = (float *)malloc(MANY * D * sizeof *b);
    jem_rng rng = jem_rng_seed(5);
    for (int i = 0; i < MANY * D; i++) {
        a[i] = s[i % D] * jem_rng_normal(&rng);
        b[i] = m[i % D] + t[i % D] * jem_rng_normal(&rng);
    }
    CHECK(measure_frechet(a, MANY, b, MANY, D, &d), "no memory");
    CHECK_CLOSE(d, 5 + 0 + 1 + 1, .15, "Gaussians");
    free(a);
    free(b);
}

/* A network whose logits are its images. */
static jem_tensor *itself(jem_net *net, jem_tensor *x, int training, void *user) {
    (void)net;
    (void)training;
    (void)user;
    return x;
}

static void test_temperature(jem_ctx *ctx) {
    printf("temperature: as scipy finds it\n");
    jem_net *net = jem_net_create(ctx, itself, NULL, 0, CLASSES, 1, 1, CLASSES, 1);
    for (int i = 0; i < COUNT(golden_temperature); i++) {
        const predictions p = made_predictions(golden_temperature[i].scale);
        const double best = golden_temperature[i].v[0];
        CHECK_CLOSE(jem_fit_temperature(net, p.f, p.labels, N), best, 1e-5 * best, "case %d", i);
    }
    const predictions p = made_predictions(3);
    const double near = (double)jem_fit_temperature(net, p.f, p.labels, N);
    float far[N * CLASSES];                        /* a number for all classes changes nothing */
    for (int i = 0; i < N * CLASSES; i++) far[i] = p.f[i] + (i / CLASSES % 2 ? 1000.0f : -1000.0f);
    CHECK_CLOSE(jem_fit_temperature(net, far, p.labels, N), near, 1e-3 * near, "logits far from 0");
    int best[N];
    for (int i = 0; i < N; i++) {                  /* always right: the colder the better */
        best[i] = 0;
        for (int c = 1; c < CLASSES; c++)
            if (p.f[i * CLASSES + c] > p.f[i * CLASSES + best[i]]) best[i] = c;
    }
    CHECK_CLOSE(jem_fit_temperature(net, p.f, best, N), 0.01, 1e-6, "the least there is");
    best[3] = CLASSES;
    CHECK(jem_fit_temperature(net, p.f, best, N) < 0 && says(ctx, "is not in 0..6"), "a label");
    CHECK(jem_fit_temperature(net, p.f, best, 0) < 0 && says(ctx, ": 0 images"), "none");
    jem_net_free(net);
}

static void test_temperature_in_file(jem_ctx *ctx) {
    printf("temperature: in a file\n");
    enum { M = 300 };
    jem_mlp_desc d = jem_mlp_desc_default();
    d.channels = 5;
    d.height = d.width = 1;
    d.classes = 4;
    jem_net *net = jem_mlp_create(ctx, &d, 3);
    jem_rng rng = jem_rng_seed(4);
    float *x = random_floats(&rng, M * 5, -3, 3);
    float f[M * 4];
    int labels[M];
    static jem_answer before[M], after[M];
    CHECK(jem_logits(net, x, M, f) == JEM_OK && jem_classify(net, x, M, before) == JEM_OK, "%s",
          jem_error(ctx));
    for (int i = 0; i < M; i++) labels[i] = i % 5 ? before[i].label : i % 4;
    const double t = (double)jem_fit_temperature(net, x, labels, M);
    CHECK(t > 0.01 && fabs(t - 1) > 0.1, "temperature %g", t);
    size_t size;
    jem_archive *a = jem_archive_create(ctx);
    jem_net_to_archive(net, a);
    void *bytes = jem_archive_to_memory(a, &size);
    jem_archive *b = jem_archive_parse(ctx, bytes, size);
    jem_net *again = jem_net_from_archive(ctx, b);
    CHECK(again && jem_classify(again, x, M, after) == JEM_OK, "%s", jem_error(ctx));
    for (int i = 0; i < M; i++) {
        double sum[2] = { 0, 0 };
        for (int c = 0; c < 4; c++)
            for (int k = 0; k < 2; k++)
                sum[k] += exp(((double)f[4 * i + c] - (double)f[4 * i + before[i].label]) /
                              (k ? t : 1));
        CHECK_CLOSE(before[i].probability, 1 / sum[0], 1e-6, "image %d", i);
        CHECK_CLOSE(after[i].probability, 1 / sum[1], 1e-5, "image %d, divided by %g", i, t);
        CHECK(after[i].label == before[i].label && after[i].log_density == before[i].log_density,
              "image %d: the rest stays", i);
    }
    jem_net_free(again);
    jem_archive_free(b);
    jem_release(ctx, bytes);
    jem_archive_free(a);
    jem_net_free(net);
    free(x);
}

/* ---- in or out of distribution --------------------------------------------------------------- */

static void test_detection(void) {
    printf("detection: as scikit-learn has it, with and without ties\n");
    double u[USUAL], v[OTHER];
    float usual[USUAL], other[OTHER];
    detection d, e;
    for (int i = 0; i < COUNT(golden_detection); i++) {
        const double step = golden_detection[i].scale;
        const double *want = golden_detection[i].v;
        noise("usual", USUAL, u);
        noise("other", OTHER, v);
        for (int k = 0; k < USUAL; k++) {
            u[k] += 0.4;
            usual[k] = (float)(step > 0 ? floor(u[k] / step) * step : u[k]);
        }
        for (int k = 0; k < OTHER; k++)
            other[k] = (float)(step > 0 ? floor(v[k] / step) * step : v[k]);
        CHECK(measure_detection(usual, USUAL, other, OTHER, &d), "step %g", step);
        CHECK_CLOSE(d.auroc, want[0], 1e-10, "auroc, step %g", step);
        CHECK_CLOSE(d.aupr, want[1], 1e-10, "aupr, step %g", step);
        CHECK_CLOSE(d.fpr95, want[2], 1e-10, "fpr95, step %g", step);
        CHECK(measure_detection(other, OTHER, usual, USUAL, &e) &&
              fabs(d.auroc + e.auroc - 1) < 1e-12, "the other way round");
    }
    CHECK(!measure_detection(usual, 0, other, OTHER, &d), "none");
    usual[7] = NAN;
    CHECK(!measure_detection(usual, USUAL, other, OTHER, &d), "NaN");
}

/* log p(x) = -sum w x^2, as one logit of two; the other is 100 less, so it does not count. */
static jem_tensor *bowl(jem_net *net, jem_tensor *x, int training, void *user) {
    (void)training;
    (void)user;
    jem_tensor *f = jem_scale(net->ctx, jem_sum_image(net->ctx, jem_square(net->ctx, x)), -0.5f);
    return jem_concat(net->ctx, f, jem_add_constant(net->ctx, f, -100));
}

/* Returns the score of an image with |x|^2 = r2, after three steps of the walk of test_scores. */
static double bowl_score(int kind, double r2) {
    const double r = sqrt(r2);
    const double left = 0.125;                     /* (1 - .5)^3 */
    switch (kind) {
        case JEM_OOD_LOGP: return -r2 / 2;
        case JEM_OOD_MAXP: return 100;
        case JEM_OOD_MASS: return -r;
        case JEM_OOD_RISE: return (left * left - 1) * r2 / 2;
        default: return -(1 - left) * r;
    }
}

static void test_scores(jem_ctx *ctx) {
    printf("scores: those of a bowl by hand\n");
    enum { M = 300, D = 6 };
    jem_net *net = jem_net_create(ctx, bowl, NULL, 0, D, 1, 1, 2, 1);
    jem_rng rng = jem_rng_seed(2);
    float *x = random_floats(&rng, M * D, -2, 2);
    float s[M];
    jem_sgld_desc walk = jem_sgld_desc_default();
    walk.steps = 3;
    walk.step_size = 0.5f;
    walk.noise_std = 1;                            /* the noise is not used */
    for (int kind = JEM_OOD_LOGP; kind < JEM_OOD_USUAL; kind++) {
        CHECK(jem_ood_score(net, (jem_ood)kind, &walk, x, M, s) == JEM_OK, "%s", jem_error(ctx));
        for (int i = 0; i < M; i++) {
            double r2 = 0;
            for (int k = 0; k < D; k++) r2 += (double)x[i * D + k] * (double)x[i * D + k];
            const double want = bowl_score(kind, r2);
            CHECK_CLOSE(s[i], want, 2e-5 * (1 + fabs(want)), "score %d of image %d", kind, i);
        }
    }
    net->noise_lo = 0.3f;                          /* it has learned its score: steps of .09 */
    CHECK(jem_ood_score(net, JEM_OOD_MOVE, NULL, x, 1, s) == JEM_OK, "%s", jem_error(ctx));
    double r2 = 0;
    for (int k = 0; k < D; k++) r2 += (double)x[k] * (double)x[k];
    CHECK_CLOSE(s[0], (pow(0.91, 10) - 1) * sqrt(r2), 1e-4, "ten steps that suit the network");
    CHECK(jem_ood_score(net, JEM_OOD_USUAL, NULL, x, M, s) == JEM_BAD_ARGUMENT &&
          says(ctx, "not calibrated"), "not calibrated");
    CHECK(jem_ood_score(net, (jem_ood)99, NULL, x, M, s) == JEM_BAD_ARGUMENT &&
          says(ctx, "99 is not a jem_ood"), "which?");
    x[5] = NAN;
    CHECK(jem_ood_score(net, JEM_OOD_MASS, NULL, x, M, s) == JEM_BAD_ARGUMENT &&
          says(ctx, "row 0 contains nan"), "NaN");
    free(x);
    jem_net_free(net);
}

/* Its images are its logits. */
static jem_tensor *as_they_are(jem_net *net, jem_tensor *x, int training, void *user) {
    (void)net;
    (void)training;
    (void)user;
    return x;
}

/* However sure, there are no ties: the score is jem_log_odds of the label, and that of double. */
static void test_max(jem_ctx *ctx) {
    printf("scores: the highest p(y|x), from logits of 1e-3 to 1e4\n");
    enum { M = 64, MOST = 7 };
    jem_rng rng = jem_rng_seed(4);
    for (int k = 1; k <= MOST; k++) {
        jem_net *net = jem_net_create(ctx, as_they_are, NULL, 0, k, 1, 1, k, 1);
        float *f = random_floats(&rng, M * MOST, -1, 1);
        float s[M];
        float odds[M];
        jem_answer a[M];
        int labels[M];
        for (int i = 0; i < M * k; i++) f[i] *= powf(10, (float)(i / k % 8 - 3)) * 0.999f;
        CHECK(jem_ood_score(net, JEM_OOD_MAXP, NULL, f, M, s) == JEM_OK &&
              jem_classify(net, f, M, a) == JEM_OK, "%s", jem_error(ctx));
        for (int i = 0; i < M; i++) labels[i] = a[i].label;
        jem_query query = { net, labels, 0 };
        jem_tensor *x = jem_input(ctx, f, M, k, 1, 1);
        CHECK(jem_read(jem_log_odds(ctx, x, &query), odds) == JEM_OK, "%s", jem_error(ctx));
        for (int i = 0; i < M; i++) {
            double others = 0;
            double next = -HUGE_VAL;
            const double top = (double)f[i * k + labels[i]];
            for (int c = 0; c < k; c++)
                if (c != labels[i]) next = fmax(next, (double)f[i * k + c]);
            for (int c = 0; c < k; c++)
                if (c != labels[i]) others += exp((double)f[i * k + c] - next);
            const double want = k == 1 ? 1e18 : top - next - log(others);
            CHECK_CLOSE(s[i], want, 1e-6 * (1 + fabs(want)), "%d classes, image %d", k, i);
            CHECK_CLOSE(odds[i], want, 1e-6 * (1 + fabs(top) + fabs(want)), "its log odds");
        }
        jem_reset(ctx);
        free(f);
        jem_net_free(net);
    }
}

enum { CALIBRATED = 500, SORTS = 3 };

/* Computes the squares of the Mahalanobis distances from logits, in double, by the formula with the
   inverse. */
static void usual_distances(const float *f, double *d2) {
    enum { M = CALIBRATED, K = SORTS };
    double v[M][2];
    double m[K][2];
    double all[2] = { 0, 0 };
    double c[3] = { 0, 0, 0 };
    int label[M];
    int count[K] = { 0, 0, 0 };
    memset(m, 0, sizeof m);
    for (int i = 0; i < M; i++) {
        double sum = 0;
        double mean = 0;
        label[i] = 0;
        for (int k = 0; k < K; k++) {
            const double l = (double)f[i * K + k];
            sum += exp(l);
            mean += l / K;
            if (f[i * K + k] > f[i * K + label[i]]) label[i] = k;
        }
        v[i][0] = log(sum);
        v[i][1] = mean;
        count[label[i]]++;
        for (int k = 0; k < 2; k++) {
            m[label[i]][k] += v[i][k];
            all[k] += v[i][k] / M;
        }
    }
    for (int y = 0; y < K; y++)
        for (int k = 0; k < 2; k++) m[y][k] = (m[y][k] + 4 * all[k]) / (count[y] + 4);
    for (int i = 0; i < M; i++)
        for (int k = 0; k < 3; k++)
            c[k] += (v[i][k / 2] - m[label[i]][k / 2]) * (v[i][(k + 1) / 2] -
                                                          m[label[i]][(k + 1) / 2]) / M;
    c[0] = c[0] * 1.001 + 1e-6;
    c[2] = c[2] * 1.001 + 1e-6;
    const double det = c[0] * c[2] - c[1] * c[1];
    for (int i = 0; i < M; i++) {
        const double p = v[i][0] - m[label[i]][0];
        const double q = v[i][1] - m[label[i]][1];
        d2[i] = (c[2] * p * p - 2 * c[1] * p * q + c[0] * q * q) / det;
    }
}

static void test_usual(jem_ctx *ctx) {
    printf("usual: the distance from images of the same label, and what becomes of it in a file\n");
    enum { M = CALIBRATED, D = 5, K = SORTS };
    jem_mlp_desc d = jem_mlp_desc_default();
    d.channels = D;
    d.height = d.width = 1;
    d.classes = K;
    d.layers = 1;
    d.widths[0] = 16;
    jem_net *net = jem_mlp_create(ctx, &d, 8);
    jem_rng rng = jem_rng_seed(2);
    float *x = random_floats(&rng, M * D, -2, 2);
    float s[M];
    float f[M * K];
    float far[D];
    double d2[M];
    jem_answer a[M];
    CHECK(jem_calibrate(net, x, M, JEM_AUTO) == JEM_OK && jem_logits(net, x, M, f) == JEM_OK &&
          jem_ood_score(net, JEM_OOD_USUAL, NULL, x, M, s) == JEM_OK &&
          jem_net_set_meta(net, "jem.statistics", NULL) == JEM_OK &&
          jem_classify(net, x, M, a) == JEM_OK, "%s", jem_error(ctx));
    usual_distances(f, d2);
    double mean = 0;
    for (int i = 0; i < M; i++) {
        int stranger = 0;
        for (int k = 0; k < M; k++) stranger += s[k] < s[i];
        CHECK_CLOSE(s[i], -sqrt(d2[i]), 1e-3 * (1 + sqrt(d2[i])), "image %d", i);
        CHECK_CLOSE(a[i].familiarity, (double)stranger / (M - 1), 1.01 / 64, "image %d", i);
        mean += (double)a[i].familiarity / M;
    }
    CHECK_CLOSE(mean, 0.5, 0.01, "even");
    for (int k = 0; k < D; k++) far[k] = 100;
    CHECK(jem_classify(net, far, 1, a) == JEM_OK && a[0].familiarity == 0, "far from all");
    jem_net_set_meta(net, "jem.usual", NULL);
    CHECK(jem_classify(net, far, 1, a) == JEM_OK && a[0].familiarity >= 0 && a[0].familiarity <= 1,
          "log p(x) serves: %g", (double)a[0].familiarity);
    free(x);
    jem_net_free(net);
}

/* The slopes part of a vector by the public API: an image at a time, sums in plain order. */
enum { FEW = 4, SIZE = 6, SEEN = FEW + 2 + 6 };
static int slopes_vector(jem_net *net, const float *x, double *v) {
    jem_ctx *ctx = net->ctx;
    static const double times[3] = { 0, 1, 4 };    /* the network's least noise */
    float f[FEW], z[SIZE], at[SIZE], g[SIZE], logp;
    int label = 0;
    int to = FEW + 1;
    CHECK(jem_logits(net, x, 1, f) == JEM_OK, "%s", jem_error(ctx));
    double sum = 0;
    for (int c = 0; c < FEW; c++) {
        sum += exp((double)f[c]);
        if (f[c] > f[label]) label = c;
    }
    for (int c = 0; c < FEW; c++) v[c] = (double)f[c] - log(sum);
    for (int level = 0; level < 3; level++) {
        const jem_rng seed = jem_rng_seed(39);
        jem_rng rng = jem_rng_split(&seed, (uint64_t)level);
        const double sigma = times[level] * (double)net->noise_lo;
        double off = 0;
        double slope = 0;
        jem_fill_normal(ctx, &rng, z, SIZE, 0, 1);
        for (int i = 0; i < SIZE; i++) at[i] = x[i] + (float)sigma * z[i];
        jem_tensor *t = jem_input(ctx, at, 1, SIZE, 1, 1);
        jem_tensor *p = jem_logp(ctx, t, net);
        jem_keep(p);
        jem_grad(p, t);
        CHECK(jem_read_grad(t, g) == JEM_OK && jem_read(p, &logp) == JEM_OK, "%s", jem_error(ctx));
        for (int i = 0; i < SIZE; i++) {
            const double gi = (level ? sigma : 1) * (double)g[i];
            slope += gi * gi / SIZE;
            off += (gi + (double)z[i]) * (gi + (double)z[i]) / SIZE;
        }
        if (level) v[to++] = log(off);
        v[to++] = log(slope);
        if (level) v[to++] = (double)logp;
        else v[FEW] = (double)logp;
        jem_reset(ctx);
    }
    return label;
}

/* Solves A w = b in place by Gauss's elimination with pivots. */
static void solve(double a[SEEN][SEEN], double *b) {
    for (int k = 0; k < SEEN; k++) {
        int pivot = k;
        for (int i = k; i < SEEN; i++) if (fabs(a[i][k]) > fabs(a[pivot][k])) pivot = i;
        for (int j = 0; j < SEEN; j++) {
            const double swap = a[k][j];
            a[k][j] = a[pivot][j];
            a[pivot][j] = swap;
        }
        const double swap = b[k];
        b[k] = b[pivot];
        b[pivot] = swap;
        for (int i = 0; i < SEEN; i++) {
            const double part = i == k ? 0 : a[i][k] / a[k][k];
            for (int j = k; j < SEEN; j++) a[i][j] -= part * a[k][j];
            b[i] -= part * b[k];
        }
    }
    for (int k = 0; k < SEEN; k++) b[k] /= a[k][k];
}

static jem_net *slopes_net(jem_ctx *ctx) {
    jem_mlp_desc d = jem_mlp_desc_default();
    d.channels = SIZE;
    d.height = d.width = 1;
    d.classes = FEW;
    d.layers = 1;
    d.widths[0] = 24;
    d.activation = JEM_ACTIVATION_TANH;
    jem_net *net = jem_mlp_create(ctx, &d, 8);
    if (net) {
        net->scale = 10;
        net->noise_lo = 0.3f;
        net->noise_hi = 2;
    }
    return net;
}

/* A vector's deviation from the mean: higher log p(x) and smaller slopes are not strange. */
static double deviation(int j, double d) {
    static const int side[SEEN] = { 0, 0, 0, 0, -1, 1, 1, 1, -1, 1, 1, -1 };
    return side[j] * d < 0 ? 0 : d;
}

/* Means and covariances, of all images and of each label. */
enum { SLOPED = 300 };
typedef struct slopes {
    double m[FEW][SEEN], all[SEEN], c[SEEN][SEEN], own[FEW][SEEN][SEEN];
    int count[FEW];
} slopes;

static void slopes_fit(slopes *s, double v[SLOPED][SEEN], const int *label) {
    for (int i = 0; i < SLOPED; i++) {
        s->count[label[i]]++;
        for (int k = 0; k < SEEN; k++) {
            s->m[label[i]][k] += v[i][k];
            s->all[k] += v[i][k] / SLOPED;
        }
    }
    for (int y = 0; y < FEW; y++)
        for (int k = 0; k < SEEN; k++)
            s->m[y][k] = (s->m[y][k] + 4 * s->all[k]) / (s->count[y] + 4);
    for (int i = 0; i < SLOPED; i++)
        for (int j = 0; j < SEEN; j++)
            for (int k = 0; k < SEEN; k++) {
                const double both = deviation(j, v[i][j] - s->m[label[i]][j]) *
                                    deviation(k, v[i][k] - s->m[label[i]][k]);
                s->c[j][k] += both / SLOPED;
                s->own[label[i]][j][k] += both;
            }
}

/* Returns the squared distance of a vector, by elimination. */
static double slopes_distance(const slopes *s, const double *v, int label) {
    double a[SEEN][SEEN];
    double b[SEEN];
    double d2 = 0;
    for (int j = 0; j < SEEN; j++) {
        const double unit = sqrt(s->c[j][j]) + 1e-6;
        for (int k = 0; k < SEEN; k++) {
            const double both = s->own[label][j][k] + 50 * s->c[j][k];
            a[j][k] = both / (s->count[label] + 50) / unit / (sqrt(s->c[k][k]) + 1e-6);
            if (j == k) a[j][k] += 0.01 + 0.1 * SEEN / SLOPED;
        }
        b[j] = deviation(j, v[j] - s->m[label][j]) / unit;
    }
    solve(a, b);
    for (int j = 0; j < SEEN; j++)
        d2 += b[j] * deviation(j, v[j] - s->m[label][j]) / (sqrt(s->c[j][j]) + 1e-6);
    return d2;
}

/* Within a class, scores are in proportion to the distance, by a formula without Cholesky. The
   covariance is the class's own, with fifty images of that of all. */
static void test_slopes(jem_ctx *ctx) {
    printf("slopes: the distance by elimination, a class at a time\n");
    enum { M = SLOPED };
    static double v[M][SEEN];
    static slopes fit;
    int label[M];
    float s[M];
    double ratio[FEW] = { 0 };
    jem_net *net = slopes_net(ctx);
    jem_rng rng = jem_rng_seed(2);
    float *x = random_floats(&rng, M * SIZE, -2, 2);
    CHECK(jem_calibrate(net, x, M, 3) == JEM_OK &&
          jem_ood_score(net, JEM_OOD_SLOPES, NULL, x, M, s) == JEM_OK, "%s", jem_error(ctx));
    for (int i = 0; i < M; i++) label[i] = slopes_vector(net, x + i * SIZE, v[i]);
    slopes_fit(&fit, v, label);
    for (int i = 0; i < M; i++) {
        const double d2 = slopes_distance(&fit, v[i], label[i]);
        double *first = &ratio[label[i]];
        if (*first == 0) *first = -(double)s[i] / sqrt(d2);
        CHECK_CLOSE(-(double)s[i] / sqrt(d2), *first, 2e-3 * *first, "image %d", i);
    }
    free(x);
    jem_net_free(net);
}

/* Checks that texts which are not statistics are refused, and those of another length. */
static void check_bad_statistics(const jem_net *net, jem_archive *file) {
    jem_ctx *ctx = net->ctx;
    static const char *const bad[8] = { "", "3 1 2", "4 0", "0.5 1", "nonsense", "1 129", "-1 0",
                                        "1 24 1e13" };
    const char *text = jem_net_meta(net, "jem.statistics");
    char *known = text ? (char *)malloc(strlen(text) + 8) : NULL;
    for (int k = 0; k < 8; k++) {
        jem_archive_set_meta(file, "jem.statistics", bad[k]);
        CHECK(!jem_net_from_archive(ctx, file) && jem_error_status(ctx) == JEM_BAD_FILE &&
              says(ctx, "jem.statistics"), "'%s' is refused", bad[k]);
    }
    for (int k = 0; known && k < 2; k++) {         /* a number too many, a number too few */
        sprintf(known, k ? "%s 1" : "%s", text);
        if (!k) *strrchr(known, ' ') = 0;
        jem_archive_set_meta(file, "jem.statistics", known);
        CHECK(!jem_net_from_archive(ctx, file) && says(ctx, "jem.statistics"), "case %d", k);
    }
    free(known);
}

/* What is new is called strange as often as it should be, within 3.5 standard errors of both
   samples, with 500 calibration images; what is far away always is. */
static void test_slopes_share(jem_ctx *ctx) {
    printf("slopes: false alarms, the same answer in any batch, files\n");
    enum { CAL = 500, NEW = 4000 };
    static const float level[3] = { 0.01f, 0.05f, 0.1f };
    static jem_answer a[NEW], one;
    jem_rng rng = jem_rng_seed(3);
    float *x = (float *)malloc(CAL * SIZE * sizeof *x);
    float *y = (float *)malloc(NEW * SIZE * sizeof *y);
    float far[SIZE];
    jem_net *net = slopes_net(ctx);
    jem_fill_normal(ctx, &rng, x, CAL * SIZE, 0, 1);
    jem_fill_normal(ctx, &rng, y, NEW * SIZE, 0, 1);
    for (int gradients = 0; gradients <= 3; gradients++) {
        CHECK(jem_calibrate(net, x, CAL, gradients) == JEM_OK &&
              jem_classify(net, y, NEW, a) == JEM_OK, "%s", jem_error(ctx));
        for (int k = 0; k < 3; k++) {
            const double p = (double)level[k];
            int alarms = 0;
            for (int i = 0; i < NEW; i++) alarms += a[i].familiarity < level[k];
            CHECK_CLOSE((double)alarms / NEW, p, 3.5 * sqrt(p * (1 - p) * (1.0 / CAL + 1.0 / NEW)),
                        "%d gradients, at %g", gradients, p);
        }
        for (int i = 0; i < NEW; i += 501)
            CHECK(jem_classify(net, y + i * SIZE, 1, &one) == JEM_OK &&
                  !memcmp(&one, a + i, sizeof one), "alone, %d gradients, %d", gradients, i);
        for (int k = 0; k < SIZE; k++) far[k] = 50;
        CHECK(jem_classify(net, far, 1, &one) == JEM_OK && one.familiarity == 0, "far away");
    }
    jem_archive *file = jem_archive_create(ctx);
    CHECK(jem_net_to_archive(net, file) == JEM_OK, "%s", jem_error(ctx));
    jem_net *back = jem_net_from_archive(ctx, file);
    CHECK(back && jem_classify(back, y + 5 * SIZE, 1, &one) == JEM_OK &&
          !memcmp(&one, a + 5, sizeof one), "from a file: %s", jem_error(ctx));
    jem_net_free(back);
    check_bad_statistics(net, file);
    jem_archive_free(file);
    net->noise_lo = 0;                             /* what a network without a score refuses */
    CHECK(jem_calibrate(net, x, CAL, 2) == JEM_BAD_ARGUMENT && says(ctx, "without a score"), "2");
    CHECK(jem_calibrate(net, x, CAL, 4) == JEM_BAD_ARGUMENT && says(ctx, "gradients"), "4");
    CHECK(jem_calibrate(net, x, 1, 0) == JEM_BAD_ARGUMENT && says(ctx, "images"), "1 image");
    jem_net_set_meta(net, "jem.statistics", NULL);
    for (int kind = JEM_OOD_SLOPES; kind <= JEM_OOD_FAMILIAR; kind++)
        CHECK(jem_ood_score(net, (jem_ood)kind, NULL, x, 1, far) == JEM_BAD_ARGUMENT &&
              says(ctx, "jem_calibrate"), "not calibrated");
    free(x);
    free(y);
    jem_net_free(net);
}

/* ---- attacks --------------------------------------------------------------------------------- */

enum { DIM = 12, IMAGES = 300 };
/* Logits W x + b: three classes. */
static jem_tensor *plane(jem_net *net, jem_tensor *x, int training, void *user) {
    (void)net;
    return jem_apply((const jem_layer *)user, x, training);
}
static jem_net *plane_net(jem_ctx *ctx, int classes) {
    jem_net *net = jem_net_create(ctx, plane, NULL, sizeof(jem_layer), DIM, 1, 1, classes, 5);
    if (net) *(jem_layer *)net->user = jem_linear_layer(net, "f", DIM, classes);
    return net;
}
/* f[1] - f[0] of a two-class plane, in double. */
static double margin(const jem_net *net, const float *x) {
    const jem_layer *l = (const jem_layer *)net->user;
    double m = (double)l->bias->value[1] - (double)l->bias->value[0];
    for (int k = 0; k < DIM; k++)
        m += ((double)l->weight->value[DIM + k] - (double)l->weight->value[k]) * (double)x[k];
    return m;
}
/* The norm that a perturbation is measured by, of v - x. */
static double far_from(const float *v, const float *x, int l2) {
    double sum = 0;
    double most = 0;
    for (int k = 0; k < DIM; k++) {
        const double d = fabs((double)v[k] - (double)x[k]);
        sum += d * d;
        most = most_of(most, d);
    }
    return l2 ? sqrt(sum) : most;
}

/* A network so sure that its log p(y|x) is 0 in fp32: the way is as it would be were it less so. */
static void test_sure(jem_ctx *ctx) {
    printf("attacks: on a linear model with high confidence\n");
    jem_net *net = plane_net(ctx, 2);
    jem_param *weight = ((const jem_layer *)net->user)->weight;
    float *w = weight->value;
    float *bias = ((const jem_layer *)net->user)->bias->value;
    jem_rng rng = jem_rng_seed(3);
    float *x = random_floats(&rng, IMAGES * DIM, -2, 2);
    float found[IMAGES * DIM];
    int labels[IMAGES];
    int fooled[IMAGES];
    int sure = 0;
    double dual[2] = { 0, 0 };
    double most = 0;
    bias[0] = bias[1] = 0;
    for (int k = 0; k < DIM; k++) {                /* f[0] is 0: all of the slope is f[1]'s */
        w[k] = 0;
        w[DIM + k] = k & 1 ? -15.0f : 20.0f;
        dual[0] += fabs((double)w[DIM + k]);
        dual[1] += pow((double)w[DIM + k], 2);
    }
    dual[1] = sqrt(dual[1]);
    jem_param_changed(weight);
    jem_param_changed(((const jem_layer *)net->user)->bias);
    for (int i = 0; i < IMAGES; i++) {
        const double m = margin(net, x + i * DIM);
        labels[i] = m > 0;
        sure += m > 20;
        most = fmax(most, fabs(m));
    }
    CHECK(sure > IMAGES / 4, "%d", sure);
    for (int l2 = 0; l2 < 2; l2++) {
        jem_attack_desc d = jem_attack_desc_default();
        d.l2 = l2;
        d.lo = -99;
        d.hi = 99;
        d.random_start = 0;
        d.eps = (float)(1.02 * most / dual[l2]);
        int count = 0;
        CHECK(jem_attack(net, x, labels, IMAGES, &d, NULL, found, fooled) == JEM_OK, "%s",
              jem_error(ctx));
        for (int i = 0; i < IMAGES; i++) count += fooled[i];
        CHECK(count == IMAGES, "l2 %d: %d of %d fooled", l2, count, IMAGES);
    }
    free(x);
    jem_net_free(net);
}

/* A linear model that was attacked, and by how much the best perturbation moves its margin. */
typedef struct attacked {
    const jem_net *net;
    const jem_attack_desc *d;
    int kind;
    double best;
    const float *x, *found;
    const int *labels, *fooled;
} attacked;

/* Returns attack number `kind`: L-inf, L2; FGSM, 40 steps, 400 and 2 starts. */
static jem_attack_desc linear_desc(int kind) {
    jem_attack_desc d = jem_attack_desc_default();
    d.l2 = kind & 1;
    d.eps = d.l2 ? 0.5f : 0.2f;
    d.lo = -9;
    d.hi = 9;
    if (kind < 2) {
        d.steps = 1;
        d.random_start = 0;
    }
    if (kind > 3) {
        d.steps = 400;
        d.restarts = 2;
        d.step_size = d.eps / 40;
    }
    return d;
}

/* Checks an image: it is as far as the best perturbation, almost, and no farther. */
static void check_attacked(const attacked *a, int i) {
    const int kind = a->kind;
    const double best = a->best;
    /* on a sphere tan(angle/2) shrinks by exp(-2.5) in 40 steps: from 120 degrees to 16 */
    const double share = kind == 3 ? 0.96 * 0.99 : 0.9999;
    const float *v = a->found + i * DIM;
    const double was = margin(a->net, a->x + i * DIM);
    const double is = margin(a->net, v);
    const double moved = a->labels[i] ? was - is : is - was;
    const int fooled = a->fooled[i];
    CHECK(far_from(v, a->x + i * DIM, a->d->l2) <= (double)a->d->eps * 1.00001,
          "kind %d, image %d", kind, i);
    CHECK(fooled == ((is > 0) != (a->labels[i] > 0)), "kind %d, image %d: margin %g", kind, i, is);
    if (i == 7) CHECK(fooled && moved == 0, "wrong from the start");
    else if (fabs(was) > best * 1.0001)
        CHECK(!fooled && moved <= best * 1.0001 && moved >= best * share,
              "kind %d, image %d: %g of %g", kind, i, moved, best);
    else if (fabs(was) < best * share)
        CHECK(fooled, "kind %d, image %d: %g of %g", kind, i, fabs(was), best);
}

/* Checks that what is found stays in the range, for images near 0: x is scaled down for it. */
static void check_attack_range(jem_net *net, float *x, const int *labels, jem_rng *rng) {
    jem_ctx *ctx = net->ctx;
    float found[IMAGES * DIM];
    jem_attack_desc d = jem_attack_desc_default();
    d.lo = -0.5f;
    d.hi = 0.5f;
    d.eps = 0.4f;
    for (int i = 0; i < IMAGES * DIM; i++) x[i] *= 0.25f;            /* the range holds */
    CHECK(jem_attack(net, x, labels, IMAGES, &d, rng, found, NULL) == JEM_OK, "%s",
          jem_error(ctx));
    int edge = 0;
    for (int i = 0; i < IMAGES * DIM; i++) {
        CHECK(fabsf(found[i]) <= 0.5f && fabsf(found[i] - x[i]) <= 0.400001f, "number %d", i);
        edge += fabsf(found[i]) == 0.5f;
    }
    CHECK(edge > 100, "%d at the edge", edge);
    d.eps = NAN;
    CHECK(jem_attack(net, x, labels, IMAGES, &d, rng, found, NULL) == JEM_BAD_ARGUMENT &&
          says(ctx, "eps = nan"), "NaN");
    CHECK(jem_attack(net, x, labels, IMAGES, NULL, NULL, found, NULL) == JEM_BAD_ARGUMENT &&
          says(ctx, "needs an rng"), "no rng");
}

/* Of all perturbations of size eps, the best moves the margin by eps ||w||: the dual norm. */
static void test_linear(jem_ctx *ctx) {
    printf("attacks: on a linear model, as far as its closed form and no farther\n");
    jem_net *net = plane_net(ctx, 2);
    const float *w = ((const jem_layer *)net->user)->weight->value;
    double dual[2] = { 0, 0 };
    for (int k = 0; k < DIM; k++) {
        const double d = (double)w[DIM + k] - (double)w[k];
        dual[0] += fabs(d);
        dual[1] += d * d;
    }
    dual[1] = sqrt(dual[1]);
    jem_rng rng = jem_rng_seed(3);
    float *x = random_floats(&rng, IMAGES * DIM, -2, 2);
    float found[IMAGES * DIM];
    int labels[IMAGES], fooled[IMAGES];
    for (int i = 0; i < IMAGES; i++) labels[i] = margin(net, x + i * DIM) > 0;
    labels[7] = !labels[7];                        /* wrong from the start */
    for (int kind = 0; kind < 6; kind++) {
        const jem_attack_desc d = linear_desc(kind);
        const double best = (double)d.eps * dual[d.l2];
        const attacked all = { net, &d, kind, best, x, found, labels, fooled };
        CHECK(jem_attack(net, x, labels, IMAGES, &d, &rng, found, fooled) == JEM_OK, "%s",
              jem_error(ctx));
        int count = 0;
        for (int i = 0; i < IMAGES; i++) {
            count += fooled[i];
            check_attacked(&all, i);
        }
        CHECK(count > 10 && count < IMAGES - 10, "kind %d: %d fooled", kind, count);
    }
    check_attack_range(net, x, labels, &rng);
    free(x);
    jem_net_free(net);
}

/* A custom classifier: the network, as in jem_logp_class. */
static jem_status own_classify(void *user, const float *x, const int *labels, int n, float *f,
                               float *g) {
    jem_net *net = (jem_net *)user;
    jem_ctx *ctx = net->ctx;
    const jem_mark mark = jem_begin(ctx);
    jem_tensor *t = jem_input(ctx, x, n, DIM, 1, 1);
    jem_tensor *logp = jem_log_softmax(ctx, jem_forward(net, t, 0));
    if (g && jem_grad(jem_gather(ctx, logp, labels), t) == JEM_OK) jem_read_grad(t, g);
    jem_read(logp, f);
    jem_end(ctx, mark);
    return jem_error_status(ctx);
}

/* One that fails, and counts how often it is asked. */
static jem_status no_classify(void *user, const float *x, const int *labels, int n, float *f,
                              float *g) {
    (void)x;
    (void)labels;
    for (int i = 0; i < n * 3; i++) f[i] = 0;
    for (int i = 0; g && i < n * DIM; i++) g[i] = 1;
    return ++*(int *)user == 2 ? JEM_DIVERGED : JEM_OK;
}

/* A random classifier: label 1 if x[0] > 0, and in its first answers whatever x is. The slope is
   the next of five. */
typedef struct random_answers { int asked, wrong; float slopes[5]; } random_answers;
static jem_status random_classify(void *user, const float *x, const int *labels, int n, float *f,
                                  float *g) {
    random_answers *r = (random_answers *)user;
    const int asked = r->asked++;
    (void)labels;
    for (int i = 0; i < n; i++) {
        f[3 * i] = 0;
        f[3 * i + 1] = asked < r->wrong ? 1 : x[i * DIM];
        f[3 * i + 2] = -9;
        for (int k = 0; g && k < DIM; k++) g[i * DIM + k] = k ? 0.0f : r->slopes[asked % 5];
    }
    return JEM_OK;
}

static jem_attack_desc against_random(void) {
    jem_attack_desc d = jem_attack_desc_default();
    d.classify = random_classify;
    d.eps = 0.5f;
    d.random_start = 0;
    return d;
}

static void test_random_answers(jem_ctx *ctx) {
    printf("attacks: a classifier with random answers is attacked to the end\n");
    jem_net *net = plane_net(ctx, 3);
    jem_attack_desc d = against_random();
    for (d.all_steps = 0; d.all_steps < 2; d.all_steps++) {
        for (int reachable = 0; reachable < 2; reachable++) {
            float x[2 * DIM] = { 0 };
            float found[2 * DIM];
            int labels[2] = { 0, 0 };
            int fooled[2];
            random_answers answers = { 0, 2, { -1, -1, -1, -1, -1 } };
            x[0] = x[DIM] = reachable ? -0.4f : -0.6f;
            d.user = &answers;
            CHECK(jem_attack(net, x, labels, 2, &d, NULL, found, fooled) == JEM_OK, "%s",
                  jem_error(ctx));
            const int want = d.all_steps ? reachable : 1;
            CHECK(fooled[0] == want && fooled[1] == want, "all_steps %d, reachable %d: %d, %d",
                  d.all_steps, reachable, fooled[0], fooled[1]);
            const float moved = d.all_steps ? 0.5f : 0.0f;
            CHECK(found[0] - x[0] == moved, "moved by %g", (double)(found[0] - x[0]));
            CHECK(answers.asked == (d.all_steps ? d.steps + 2 : 1), "asked %d times",
                  answers.asked);
        }
    }
    jem_net_free(net);
}

static void test_momentum(jem_ctx *ctx) {
    printf("attacks: momentum averages random gradients\n");
    jem_net *net = plane_net(ctx, 3);
    jem_attack_desc d = against_random();
    for (d.l2 = 0; d.l2 < 2; d.l2++) {
        for (int with = 0; with < 2; with++) {
            float x[DIM] = { -0.4f };
            float found[DIM];
            int label = 0;
            int fooled;
            random_answers answers = { 0, 0, { -1, 1, -1, -1, 1 } };   /* two of five are wrong */
            d.momentum = (float)with;
            d.user = &answers;
            CHECK(jem_attack(net, x, &label, 1, &d, NULL, found, &fooled) == JEM_OK, "%s",
                  jem_error(ctx));
            CHECK(fooled == with, "momentum %d, L2 %d: fooled %d at %g", with, d.l2, fooled,
                  (double)found[0]);
            /* without: a fifth of 40 steps of 2.5 eps / 40, in all */
            if (!with) CHECK_CLOSE(found[0] - x[0], 0.25, 1e-5, "moved");
        }
    }
    d.momentum = 1.5f;
    float x[DIM] = { 0 };
    int label = 0;
    CHECK(jem_attack(net, x, &label, 1, &d, NULL, x, NULL) == JEM_BAD_ARGUMENT, "momentum 1.5");
    jem_clear_error(ctx);
    jem_net_free(net);
}

/* Attacks through a custom classifier, and through one that fails. */
static void check_own_classifier(jem_net *net, jem_attack_desc d, const float *x,
                                 const int *labels, jem_rng *rng) {
    jem_ctx *ctx = net->ctx;
    float f[IMAGES * 3];
    float found[IMAGES * DIM];
    int fooled[IMAGES];
    int near = 0;
    /* The network's temperature is its own: a classifier is as sure as its logits say. */
    CHECK(load_text(net, "jem.temperature", "3") == JEM_OK, "%s", jem_error(ctx));
    d.classify = own_classify;
    d.user = net;
    CHECK(jem_attack(net, x, labels, IMAGES, &d, rng, found, fooled) == JEM_OK &&
          own_classify(net, found, labels, IMAGES, f, NULL) == JEM_OK, "%s", jem_error(ctx));
    for (int i = 0; i < IMAGES; i++)
        near += fooled[i] && f[3 * i + labels[i]] >= logf(0.8999f) &&
                f[3 * i + labels[i]] < logf(0.92f);
    CHECK(near == IMAGES, "a custom classifier: %d of %d equal", near, IMAGES);
    int asked = 0;
    d.classify = no_classify;
    d.user = &asked;
    CHECK(jem_attack(net, x, labels, IMAGES, &d, rng, found, NULL) == JEM_DIVERGED &&
          says(ctx, "classify failed") && asked == 2, "asked again after it failed: %d", asked);
}

static void test_targets(jem_ctx *ctx) {
    printf("attacks: with a target, also from noise and over any distance; the same twice\n");
    jem_net *net = plane_net(ctx, 3);
    jem_rng rng = jem_rng_seed(4);
    jem_rng again;
    float *x = random_floats(&rng, IMAGES * DIM, -1, 1);
    float f[IMAGES * 3];
    float found[IMAGES * DIM], second[IMAGES * DIM];
    int labels[IMAGES];
    int fooled[IMAGES];
    int count = 0;
    int near = 0;
    for (int i = 0; i < IMAGES; i++) labels[i] = i % 3;
    jem_attack_desc d = jem_attack_desc_default();
    d.targeted = 1;
    d.eps = HUGE_VALF;
    d.step_size = 0.1f;
    d.l2 = 1;
    d.least_probability = 0.9f;
    d.steps = 200;
    d.lo = -9;
    d.hi = 9;
    again = rng;
    CHECK(jem_attack(net, x, labels, IMAGES, &d, &rng, found, fooled) == JEM_OK &&
          jem_attack(net, x, labels, IMAGES, &d, &again, second, NULL) == JEM_OK &&
          jem_logits(net, found, IMAGES, f) == JEM_OK, "%s", jem_error(ctx));
    CHECK(same_bits(found, second, IMAGES * DIM), "the same twice");
    for (int i = 0; i < IMAGES; i++) {
        double sum = 0;
        for (int c = 0; c < 3; c++)
            sum += exp((double)f[3 * i + c] - (double)f[3 * i + labels[i]]);
        count += fooled[i];
        near += 1 / sum >= 0.8999 && 1 / sum < 0.92;
    }
    CHECK(count == IMAGES && near == IMAGES, "%d of %d done, %d just so", count, IMAGES, near);
    check_own_classifier(net, d, x, labels, &again);
    free(x);
    jem_net_free(net);
}

/* A layer of tanh and one to the classes, with the numbers of make_golden_uses.py. */
enum { HIDDEN = 16, KINDS = 3, GOLDEN_IMAGES = 6 };
static jem_tensor *tanh_net(jem_net *net, jem_tensor *x, int training, void *user) {
    (void)training;
    (void)user;
    jem_param *w1 = net->params;
    jem_param *b1 = w1->next;
    jem_param *w2 = b1->next;
    return jem_linear(net->ctx, jem_tanh(net->ctx, jem_linear(net->ctx, x, w1, b1)), w2, NULL);
}
static void noise_floats(const char *name, int n, float *x) {
    double u[HIDDEN * DIM];
    noise(name, n, u);
    for (int i = 0; i < n; i++) x[i] = (float)u[i];
}

/* With the numbers of make_golden_uses.py. */
static jem_net *golden_net(jem_ctx *ctx) {
    static const int sizes[3][2] = { { HIDDEN, DIM }, { HIDDEN, 0 }, { KINDS, HIDDEN } };
    static const char *const names[3] = { "w1", "b1", "w2" };
    jem_net *net = jem_net_create(ctx, tanh_net, NULL, 0, DIM, 1, 1, KINDS, 1);
    for (int k = 0; k < 3; k++) {
        jem_param *p = jem_net_param(net, names[k], k == 1 ? 1 : 2, sizes[k], 1);
        noise_floats(names[k], (int)p->size, p->value);
        jem_param_changed(p);
    }
    return net;
}

static void test_as_pytorch(jem_ctx *ctx) {
    printf("attacks: on a network with a hidden layer, as PyTorch's gradients take them\n");
    jem_net *net = golden_net(ctx);
    float x[GOLDEN_IMAGES * DIM], found[GOLDEN_IMAGES * DIM];
    int labels[GOLDEN_IMAGES], fooled[GOLDEN_IMAGES];
    jem_answer a[GOLDEN_IMAGES];
    noise_floats("images", GOLDEN_IMAGES * DIM, x);
    CHECK(jem_classify(net, x, GOLDEN_IMAGES, a) == JEM_OK, "%s", jem_error(ctx));
    for (int i = 0; i < GOLDEN_IMAGES; i++) labels[i] = a[i].label;
    for (int l2 = 0; l2 < 2; l2++) {
        jem_attack_desc d = jem_attack_desc_default();
        d.l2 = l2;
        d.eps = l2 ? 0.4f : 0.15f;
        d.random_start = 0;
        CHECK(jem_attack(net, x, labels, GOLDEN_IMAGES, &d, NULL, found, fooled) == JEM_OK, "%s",
              jem_error(ctx));
        for (int i = 0; i < GOLDEN_IMAGES; i++) {
            const double *want = l2 ? golden_l2[i] : golden_linf[i];
            CHECK(fooled[i] == (want[0] < 40), "norm %d, image %d: %g steps", l2, i, want[0]);
            for (int k = 0; k < DIM; k++)
                CHECK_CLOSE(found[i * DIM + k], want[k + 1], 1e-5, "norm %d, image %d, %d", l2, i,
                            k);
        }
    }
    jem_net_free(net);
}

/* Adds to *off how far g is from differences of the outcome with the same noise, in number k of all
   images, and to *all half of what it should be. */
static void add_slope_error(refined *r, const float *x, const int *labels, const float *g, int k,
                            double *off, double *all) {
    float moved[GOLDEN_IMAGES * DIM];
    float f[2][GOLDEN_IMAGES * KINDS];
    const float h = 0.002f;
    for (int side = 0; side < 2; side++) {
        memcpy(moved, x, sizeof moved);
        for (int i = 0; i < GOLDEN_IMAGES; i++) moved[i * DIM + k] += side ? -h : h;
        r->rng = jem_rng_seed(8);
        refined_classify(r, moved, labels, GOLDEN_IMAGES, f[side], NULL);
    }
    for (int i = 0; i < GOLDEN_IMAGES; i++) {
        const int at = i * KINDS + labels[i];
        double want = 0;                           /* of log p / (1 - p) */
        for (int side = 0; side < 2; side++)
            want += (side ? -1 : 1) * ((double)f[side][at] -
                                       log(1 - exp((double)f[side][at]))) / (2 * (double)h);
        *off += fabs((double)g[i * DIM + k] - want);
        *all += fabs(want) / 2;
    }
}

/* The gradient through the walk, against differences of the outcome with the same noise. */
static void test_refined(jem_ctx *ctx) {
    printf("attacks: a classifier that refines first: gradients through its walk\n");
    jem_net *net = golden_net(ctx);
    jem_sgld_desc walk = jem_sgld_desc_default();
    refined r;
    walk.steps = 6;
    walk.step_size = 0.3f;
    walk.noise_std = 0.2f;
    float x[GOLDEN_IMAGES * DIM], g[GOLDEN_IMAGES * DIM], moved[GOLDEN_IMAGES * DIM];
    float f[GOLDEN_IMAGES * KINDS];
    int labels[GOLDEN_IMAGES];
    noise_floats("images", GOLDEN_IMAGES * DIM, x);
    for (int i = 0; i < GOLDEN_IMAGES; i++) labels[i] = i % KINDS;
    CHECK(refined_create(&r, net, walk, 3, 1, 8), "no memory");
    double off[2] = { 0, 0 };
    double all = 0;
    for (int through = 0; through < 2; through++) {
        r.through = through;
        r.rng = jem_rng_seed(8);
        CHECK(refined_classify(&r, x, labels, GOLDEN_IMAGES, f, g) == JEM_OK, "%s",
              jem_error(ctx));
        for (int k = 0; k < DIM; k++) add_slope_error(&r, x, labels, g, k, &off[through], &all);
    }
    CHECK(off[1] < 0.005 * all && off[0] > 0.05 * all, "off by %g through the walk, %g straight, "
          "of %g", off[1], off[0], all);
    for (int i = 0; i < GOLDEN_IMAGES; i++) {
        double sum = 0;
        for (int c = 0; c < KINDS; c++) sum += exp((double)f[i * KINDS + c]);
        CHECK_CLOSE(sum, 1, 1e-5, "p(y|x) of image %d", i);
    }
    jem_attack_desc d = jem_attack_desc_default();
    int fooled[GOLDEN_IMAGES];
    int count = 0;
    jem_rng rng = jem_rng_seed(2);
    d.classify = refined_classify;
    d.user = &r;
    d.eps = 1;
    d.steps = 20;
    CHECK(jem_attack(net, x, labels, GOLDEN_IMAGES, &d, &rng, moved, fooled) == JEM_OK, "%s",
          jem_error(ctx));
    for (int i = 0; i < GOLDEN_IMAGES; i++) count += fooled[i];
    CHECK(count == GOLDEN_IMAGES, "%d of %d fooled by far", count, GOLDEN_IMAGES);
    refined_free(&r);
    jem_net_free(net);
}

static void test_decision(jem_ctx *ctx) {
    printf("attacks: with labels only, on a linear model: the distance to its plane\n");
    jem_net *net = plane_net(ctx, 2);
    const float *w = ((const jem_layer *)net->user)->weight->value;
    const jem_attack_desc how = jem_attack_desc_default();
    double length = 0;
    double worst = 0;
    double mean = 0;
    for (int k = 0; k < DIM; k++)
        length += ((double)w[DIM + k] - (double)w[k]) * ((double)w[DIM + k] - (double)w[k]);
    jem_rng rng = jem_rng_seed(3);
    float *x = random_floats(&rng, IMAGES * DIM, -0.4f, 0.4f);
    float found[IMAGES * DIM];
    float far[IMAGES];
    int labels[IMAGES];
    for (int i = 0; i < IMAGES; i++) labels[i] = margin(net, x + i * DIM) > 0;
    const int n = robust_decision(net, &how, x, labels, IMAGES, 1500, 1, found, far);
    CHECK(n == IMAGES, "%d of %d", n, IMAGES);
    for (int i = 0; i < n; i++) {
        const double best = fabs(margin(net, x + i * DIM)) / sqrt(length);
        const double is = margin(net, found + i * DIM);
        CHECK((is > 0) != (labels[i] > 0) || fabs(is) < 1e-5, "image %d is not fooled", i);
        CHECK((double)far[i] >= best * 0.9999, "image %d: %g, the plane is at %g", i,
              (double)far[i], best);
        worst = most_of(worst, (double)far[i] - best);
        mean += ((double)far[i] - best) / n;
    }
    CHECK(mean < 0.02 && worst < 0.2, "beyond the plane: mean %g, most %g", mean, worst);
    CHECK(robust_decision(net, &how, x, labels, 1, 10, 1, found, far) == 0, "one image: no other");
    free(x);
    jem_net_free(net);
}

/* ---- what is missing ------------------------------------------------------------------------- */


/* A Gaussian of four pixels, 0 and 1 open; how many chains. */
enum { OPEN_D = 4, OPEN_CHAINS = 4096 };
static const float open_rows[OPEN_D * OPEN_D] = {
    1.2f, .3f, -.5f, .4f,  .2f, 1, .6f, -.3f, -.4f, .5f, 1.1f, .2f,  .3f, -.6f, .1f, .9f
};

/* The mean and the covariance of the open pixels. */
typedef struct conditional { double mean[2], s[2][2]; } conditional;

/* The conditional mean is -A_oo^-1 A_ok x_k; a step of ULA of size a changes a variance 1/c to
   1/(c (1 - a c/4)), for each eigenvalue c of A_oo. */
static void conditional_of(conditional *w, double step) {
    enum { D = OPEN_D };
    const float *rows = open_rows;
    double a[D][D];
    for (int i = 0; i < D; i++)
        for (int j = 0; j < D; j++) {
            a[i][j] = 0;
            for (int k = 0; k < D; k++)
                a[i][j] += (double)rows[k * D + i] * (double)rows[k * D + j];
        }
    const double det = a[0][0] * a[1][1] - a[0][1] * a[0][1];
    const double b0 = a[0][2] * 1.5 - a[0][3] * 0.7;
    const double b1 = a[1][2] * 1.5 - a[1][3] * 0.7;
    w->mean[0] = -(a[1][1] * b0 - a[0][1] * b1) / det;
    w->mean[1] = -(a[0][0] * b1 - a[0][1] * b0) / det;
    /* (A - step/4 A^2)^-1 */
    double b[2][2];
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 2; j++)
            b[i][j] = a[i][j] - step / 4 * (a[i][0] * a[0][j] + a[i][1] * a[1][j]);
    const double det_b = b[0][0] * b[1][1] - b[0][1] * b[0][1];
    w->s[0][0] = b[1][1] / det_b;
    w->s[1][1] = b[0][0] / det_b;
    w->s[0][1] = -b[0][1] / det_b;
}

/* Checks that the known pixels are as they were, and the moments of the open ones. */
static void check_conditional(const conditional *w, const float *y) {
    enum { D = OPEN_D, CHAINS = OPEN_CHAINS };
    double m[2] = { 0, 0 };
    double v[2][2] = { { 0, 0 }, { 0, 0 } };
    int kept = 1;
    for (int i = 0; i < CHAINS; i++) {
        kept &= y[i * D + 2] == 1.5f && y[i * D + 3] == -0.7f;
        for (int j = 0; j < 2; j++) m[j] += (double)y[i * D + j] / CHAINS;
    }
    for (int i = 0; i < CHAINS; i++)
        for (int j = 0; j < 2; j++)
            for (int k = 0; k < 2; k++)
                v[j][k] += ((double)y[i * D + j] - m[j]) * ((double)y[i * D + k] - m[k]) / CHAINS;
    CHECK(kept, "what is known stays");
    for (int j = 0; j < 2; j++) {
        CHECK_CLOSE(m[j], w->mean[j], 4 * sqrt(w->s[j][j] / CHAINS), "mean %d", j);
        CHECK_CLOSE(v[j][j], w->s[j][j], 4 * w->s[j][j] * sqrt(2.0 / CHAINS), "variance %d", j);
    }
    CHECK_CLOSE(v[0][1], w->s[0][1], 4 * sqrt(w->s[0][0] * w->s[1][1] * 2 / CHAINS), "covariance");
}

static void test_conditional(jem_ctx *ctx) {
    printf("imputation: a Gaussian's conditional mean and covariance, known pixels untouched\n");
    enum { D = OPEN_D, CHAINS = OPEN_CHAINS };
    static const float start[D] = { 9, 9, 1.5f, -0.7f };
    jem_net *bag = bag_create(ctx);
    const int sizes[2] = { D, D };
    jem_param *l = jem_net_param(bag, "l", 2, sizes, 0);
    memcpy(l->value, open_rows, sizeof open_rows);
    jem_param_changed(l);
    float *x = floats(CHAINS * D);
    float *known = floats(CHAINS * D);
    float *y = floats(CHAINS * D);
    for (int i = 0; i < CHAINS * D; i++) {
        known[i] = i % D >= 2;
        x[i] = start[i % D];
    }
    const double step = 0.1;
    conditional want;
    conditional_of(&want, step);
    jem_impute_desc d = jem_impute_desc_default();
    d.walk = jem_sgld_desc_langevin((float)step, 200);
    jem_rng rng = jem_rng_seed(6);
    jem_mark mark = jem_begin(ctx);
    jem_tensor *t = jem_input(ctx, x, CHAINS, D, 1, 1);
    CHECK(jem_impute(ctx, gauss_of, l, t, known, &d, &rng) == JEM_OK && jem_read(t, y) == JEM_OK,
          "%s", jem_error(ctx));
    check_conditional(&want, y);

    for (int i = 0; i < CHAINS * D; i++) {
        y[i] = i % 3 ? NAN : INFINITY;
        if (known[i] != 0) y[i] = x[i];
    }
    jem_write(t, y);
    CHECK(jem_impute(ctx, gauss_of, l, t, known, &d, &rng) == JEM_OK && jem_read(t, y) == JEM_OK,
          "what is missing is NaN: %s", jem_error(ctx));
    d.walk.steps = 0;
    d.lo = d.hi = 0;                               /* begins as x is, goes nowhere */
    jem_write(t, x);
    CHECK(jem_impute(ctx, gauss_of, l, t, known, &d, &rng) == JEM_OK && jem_read(t, y) == JEM_OK &&
          same_bits(x, y, CHAINS * D), "no steps: %s", jem_error(ctx));
    CHECK(jem_impute(ctx, gauss_of, l, t, NULL, &d, &rng) == JEM_BAD_ARGUMENT &&
          says(ctx, "known is NULL"), "no mask");
    jem_end(ctx, mark);
    free(x);
    free(y);
    free(known);
    jem_net_free(bag);
}

/* Images that are one of two templates, with any noise: p(x) = integral of N(template, s^2) ds/s,
   log p = -pixels/2 log |x - template|^2. Each half of a template identifies it. */
enum { SIDE = 8, PIXELS = SIDE * SIDE, PICTURES = 32 };
static jem_tensor *templates(jem_ctx *ctx, jem_tensor *x, void *user) {
    jem_tensor *l[2];
    for (int k = 0; k < 2; k++) {
        const float *all = (const float *)user + k * PIXELS * PICTURES;
        jem_tensor *off = jem_sub(ctx, x, jem_input(ctx, all, x->n, 1, SIDE, SIDE));
        l[k] = jem_log(ctx, jem_sum_image(ctx, jem_square(ctx, off)));
    }
    return jem_logsumexp(ctx, jem_scale(ctx, jem_concat(ctx, l[0], l[1]), -0.5f * PIXELS));
}
static void test_noise_blind(jem_ctx *ctx) {
    printf("imputation: noise-blind, the half that belongs to the one that is known\n");
    jem_rng rng = jem_rng_seed(9);
    float *one = random_floats(&rng, 2 * PIXELS, -1, 1);
    float *all = floats(2 * PIXELS * PICTURES);
    float *x = floats(PIXELS * PICTURES);
    float *known = floats(PIXELS * PICTURES);
    float *y = floats(PIXELS * PICTURES);
    for (int i = 0; i < PIXELS * PICTURES; i++) {
        for (int k = 0; k < 2; k++) all[k * PIXELS * PICTURES + i] = one[k * PIXELS + i % PIXELS];
        known[i] = i % PIXELS < PIXELS / 2;
        x[i] = known[i] > 0 ? one[i / PIXELS % 2 * PIXELS + i % PIXELS] : 5;
    }
    jem_impute_desc d = jem_impute_desc_default();
    d.denoise.steps = 300;
    d.walk.steps = 0;
    jem_mark mark = jem_begin(ctx);
    jem_tensor *t = jem_input(ctx, x, PICTURES, 1, SIDE, SIDE);
    CHECK(jem_impute(ctx, templates, all, t, known, &d, &rng) == JEM_OK && jem_read(t, y) == JEM_OK,
          "%s", jem_error(ctx));
    jem_end(ctx, mark);
    for (int i = 0; i < PICTURES; i++) {
        double off = 0;
        for (int k = 0; k < PIXELS; k++) {
            const double e = (double)y[i * PIXELS + k] - (double)one[i % 2 * PIXELS + k];
            off += e * e / PIXELS;
        }
        CHECK(sqrt(off) < 0.05, "picture %d is off by %g", i, sqrt(off));
    }
    free(one);
    free(all);
    free(x);
    free(y);
    free(known);
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* All of it, on a small network; how many of seven things could be done. */
static int use_all(jem_ctx *ctx) {
    enum { M = 20, K = 3 };
    jem_net *net = plane_net(ctx, K);
    jem_rng rng = jem_rng_seed(1);
    float *x = random_floats(&rng, M * DIM, -1, 1);
    float *y = floats(M * DIM);
    float *ones = floats(M * DIM);
    int labels[M];
    int good = 0;
    jem_answer a[M];
    for (int i = 0; i < M; i++) labels[i] = i % K;
    for (int i = 0; i < M * DIM; i++) ones[i] = (float)(i % 2);
    good += net && jem_calibrate(net, x, M, JEM_AUTO) == JEM_OK;
    good += jem_ood_score(net, JEM_OOD_USUAL, NULL, x, M, y) == JEM_OK;
    good += jem_ood_score(net, JEM_OOD_RISE, NULL, x, M, y) == JEM_OK;
    good += jem_fit_temperature(net, x, labels, M) > 0;
    good += jem_classify(net, x, M, a) == JEM_OK;
    good += jem_attack(net, x, labels, M, NULL, &rng, y, NULL) == JEM_OK;
    const jem_mark mark = jem_begin(ctx);
    jem_tensor *t = jem_input(ctx, x, M, DIM, 1, 1);
    jem_impute_desc d = jem_impute_desc_default();
    d.denoise.steps = 2;
    d.walk.steps = 2;
    good += jem_impute(ctx, jem_logp, net, t, ones, &d, &rng) == JEM_OK;
    jem_end(ctx, mark);
    jem_net_free(net);
    free(x);
    free(y);
    free(ones);
    return good;
}
static void test_memory(void) {
    printf("memory that runs out at any place: an error, no crash, no leak\n");
    int tries = 0;
    int done = 0;
    for (long at = 2; !done && at < 3000; at++, tries++) {
        counter count;
        jem_ctx *ctx = open_ctx(&count);
        count.fail_at = at;
        count.fail_on = 1;
        done = use_all(ctx) == 7 && count.calls < at;
        CHECK(done || jem_error_status(ctx) == JEM_NO_MEMORY, "call %ld: %s", at, jem_error(ctx));
        count.fail_at = 0;
        close_ctx(ctx, &count, "what did not find memory");
    }
    CHECK(done && tries > 10, "%d tries", tries);
}

int main(int argc, char **argv) {
    static const test_case all[] = {
        TEST(test_reliability), TEST(test_sets), TEST_IN(test_temperature),
        TEST_IN(test_temperature_in_file), TEST(test_detection), TEST_IN(test_scores),
        TEST_IN(test_max), TEST_IN(test_usual), TEST_IN(test_slopes), TEST_IN(test_slopes_share),
        TEST_IN(test_linear), TEST_IN(test_sure), TEST_IN(test_random_answers),
        TEST_IN(test_momentum), TEST_IN(test_targets), TEST_IN(test_as_pytorch),
        TEST_IN(test_refined), TEST_IN(test_decision), TEST_IN(test_conditional),
        TEST_IN(test_noise_blind), TEST(test_memory)
    };
    return run_in_ctx(argc, argv, all, TEST_COUNT(all), no_error_left);
}
