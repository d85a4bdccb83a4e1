/* Vectors: the recipe for them works at the first try, on sensors in units of their own. */
#define JEM_IMPLEMENTATION
#include "jem.h"
#include "tests/support/test.h"
#include "tests/support/common.h"

enum { SENSORS = 12, REGIMES = 3, HIDDEN = 2, TRAIN = 1500, TEST = 500, BATCH = 64 };

/* A machine: in each regime, sensors follow two hidden causes. */
typedef struct machine { float mean[REGIMES][SENSORS], gain[REGIMES][HIDDEN][SENSORS]; } machine;

static machine machine_create(jem_rng *rng) {
    machine m;
    for (int r = 0; r < REGIMES; r++)
        for (int i = 0; i < SENSORS; i++) {
            m.mean[r][i] = 2 * jem_rng_normal(rng);
            for (int h = 0; h < HIDDEN; h++) m.gain[r][h][i] = jem_rng_normal(rng);
        }
    return m;
}

/* Reads n vectors with noise of std `noise`; sensor i has the unit 10^(i-4) and an offset. */
static void measure(const machine *m, jem_rng *rng, int n, float noise, float *x, int *labels) {
    for (int k = 0; k < n; k++) {
        const int r = jem_rng_below(rng, REGIMES);
        float cause[HIDDEN];
        for (int h = 0; h < HIDDEN; h++) cause[h] = jem_rng_normal(rng);
        for (int i = 0; i < SENSORS; i++) {
            float v = m->mean[r][i] + noise * jem_rng_normal(rng);
            for (int h = 0; h < HIDDEN; h++) v += cause[h] * m->gain[r][h][i];
            x[k * SENSORS + i] = powf(10, (float)(i - 4)) * (v + 5 * (float)i);
        }
        labels[k] = r;
    }
}

/* Lets one sensor of each vector fail: it is stuck at a usual value, has an offset, or shows noise;
   in its unit of 10^(i-4). Writes which one. */
enum { STUCK, OFFSET, NOISE, FAILURES };
static void fail_one(const machine *m, jem_rng *rng, int n, int failure, float *x, int *which) {
    for (int k = 0; k < n; k++) {
        const int i = jem_rng_below(rng, SENSORS);
        const float unit = powf(10, (float)(i - 4));
        float *value = x + k * SENSORS + i;
        if (failure == STUCK) *value = unit * (m->mean[0][i] + 5 * (float)i);
        if (failure == OFFSET) *value += 2.5f * unit;
        if (failure == NOISE) *value += 3 * unit * jem_rng_normal(rng);
        which[k] = i;
    }
}

/* Replaces each sensor by that of another vector: every value is usual, not what it goes with. */
static void shuffle(jem_rng *rng, int n, float *x) {
    for (int i = 0; i < SENSORS; i++)
        for (int k = n - 1; k > 0; k--) {
            const int other = jem_rng_below(rng, k + 1);
            const float kept = x[k * SENSORS + i];
            x[k * SENSORS + i] = x[other * SENSORS + i];
            x[other * SENSORS + i] = kept;
        }
}

/* The probability that a usual vector has the higher log p(x). */
static double auroc(const jem_answer *usual, const jem_answer *odd, int n) {
    double wins = 0;
    for (int i = 0; i < n; i++)
        for (int k = 0; k < n; k++) wins += usual[i].log_density > odd[k].log_density;
    return wins / n / n;
}

static int by_density(const void *a, const void *b) {
    const float p = ((const jem_answer *)a)->log_density;
    const float q = ((const jem_answer *)b)->log_density;
    return (p > q) - (p < q);
}

/* Draws samples as jem_net_generate_desc says; most are as likely as usual vectors. Sorts those. */
static void sample_some(jem_net *net, jem_answer *usual) {
    enum { N = 32 };
    static float x[N * SENSORS];
    jem_answer a[N];
    int good = 0;
    jem_sampler *s = jem_net_sampler(net, NULL, N, 3, NULL);
    CHECK(s && jem_sampler_step(s, NULL) == JEM_OK, "%s", jem_error(net->ctx));
    if (!s) return;
    CHECK(jem_unstandardize(net, s->x, N, x) == JEM_OK, "%s", jem_error(net->ctx));
    CHECK(jem_classify(net, x, N, a) == JEM_OK, "%s", jem_error(net->ctx));
    qsort(usual, TEST, sizeof *usual, by_density);
    for (int i = 0; i < N; i++)
        good += a[i].log_density > usual[TEST / 100].log_density &&
                a[i].log_density < usual[TEST - 1].log_density + 5;
    CHECK(good >= N * 3 / 4, "%d of %d samples are as likely as data", good, N);
    jem_sampler_free(s);
}

static void test_recipe(jem_ctx *ctx, int classes, uint64_t seed) {
    static float x[TRAIN * SENSORS], test[TEST * SENSORS], batch[BATCH * SENSORS];
    static int labels[TRAIN], test_labels[TEST], batch_labels[BATCH];
    static jem_answer usual[TEST], odd[TEST];
    jem_rng rng = jem_rng_seed(seed);
    const machine m = machine_create(&rng);
    measure(&m, &rng, TRAIN, 0.25f, x, labels);
    const jem_mlp_desc shape = jem_mlp_desc_vectors(SENSORS, classes);
    jem_net *net = jem_mlp_create(ctx, &shape, seed);
    jem_net_fit_units(net, x, TRAIN);
    const int updates = 1000;
    const jem_train_desc how = jem_train_desc_vectors(updates);
    jem_trainer *tr = jem_trainer_create(net, &how);
    for (int u = 0; u < updates && jem_ok(ctx); u++) {
        for (int k = 0; k < BATCH; k++) {
            const int from = jem_rng_below(&rng, TRAIN);
            memcpy(batch + k * SENSORS, x + from * SENSORS, SENSORS * sizeof *x);
            batch_labels[k] = classes > 1 ? labels[from] : 0;
        }
        jem_train_step(tr, batch, batch_labels, BATCH);
    }
    jem_trainer_use_average(tr, 1);
    measure(&m, &rng, TEST, 0.25f, test, test_labels);
    CHECK(jem_classify(net, test, TEST, usual) == JEM_OK, "%s", jem_error(ctx));
    int right = 0;
    for (int i = 0; i < TEST; i++) right += usual[i].label == test_labels[i];
    CHECK(classes == 1 || right >= TEST * 0.98, "%d of %d are right", right, TEST);
    measure(&m, &rng, TEST, 1, test, test_labels);
    jem_classify(net, test, TEST, odd);
    const double noisy = auroc(usual, odd, TEST);
    measure(&m, &rng, TEST, 0.25f, test, test_labels);
    shuffle(&rng, TEST, test);
    CHECK(jem_classify(net, test, TEST, odd) == JEM_OK, "%s", jem_error(ctx));
    const double shuffled = auroc(usual, odd, TEST);
    printf("    %d classes, seed %d: %d right, AUROC of noise %.3f, of shuffled sensors %.3f\n",
           classes, (int)seed, right, noisy, shuffled);
    CHECK(noisy > 0.99, "noise: %.3f", noisy);
    CHECK(shuffled > 0.99, "shuffled: %.3f", shuffled);
    sample_some(net, usual);
    jem_trainer_free(tr);
    jem_net_free(net);
}

static void test_recipes(jem_ctx *ctx) {
    printf("vectors: the recipe finds noise and wrong combinations, with labels and without\n");
    for (uint64_t seed = 1; seed <= 2; seed++) {
        test_recipe(ctx, 1, seed);
        test_recipe(ctx, REGIMES, seed);
    }
}

/* Counts the strange vectors, and those of which the failing sensor has the largest gain. */
static void count_blamed(jem_net *net, const float *x, const int *which, int n, int *strange,
                         int *right) {
    static float gain[TEST * SENSORS];
    static jem_answer a[TEST];
    CHECK(jem_classify(net, x, n, a) == JEM_OK, "%s", jem_error(net->ctx));
    CHECK(jem_blame_values(net, x, n, gain, NULL) == JEM_OK, "%s", jem_error(net->ctx));
    *strange = 0;
    *right = 0;
    for (int k = 0; k < n; k++) {
        const float *g = gain + k * SENSORS;
        int most = 0;
        for (int i = 1; i < SENSORS; i++) if (g[i] > g[most]) most = i;
        if (jem_judge(a[k].familiarity) != JEM_VERDICT_STRANGE) continue;
        ++*strange;
        *right += most == which[k];
    }
}

static void test_blame_sensors(jem_ctx *ctx) {
    printf("vectors: of twelve sensors, the one that has failed is named\n");
    enum { UPDATES = 1500, ROWS = 200 };
    static const char *const names[FAILURES] = { "stuck", "offset", "noise" };
    static float x[TRAIN * SENSORS], batch[BATCH * SENSORS];
    static int labels[TRAIN], which[ROWS];
    jem_rng rng = jem_rng_seed(11);
    const machine m = machine_create(&rng);
    measure(&m, &rng, TRAIN, 0.25f, x, labels);
    const jem_mlp_desc shape = jem_mlp_desc_vectors(SENSORS, 1);
    jem_net *net = jem_mlp_create(ctx, &shape, 1);
    jem_net_fit_units(net, x, TRAIN);
    const jem_train_desc how = jem_train_desc_vectors(UPDATES);
    jem_trainer *tr = jem_trainer_create(net, &how);
    memset(labels, 0, sizeof labels);
    for (int u = 0; u < UPDATES && jem_ok(ctx); u++) {
        for (int k = 0; k < BATCH; k++)
            memcpy(batch + k * SENSORS, x + jem_rng_below(&rng, TRAIN) * SENSORS,
                   SENSORS * sizeof *x);
        jem_train_step(tr, batch, labels, BATCH);
    }
    jem_trainer_use_average(tr, 1);
    measure(&m, &rng, TRAIN, 0.25f, x, labels);
    jem_calibrate(net, x, TRAIN, JEM_AUTO);
    for (int failure = 0; failure < FAILURES; failure++) {
        int strange;
        int right;
        measure(&m, &rng, ROWS, 0.25f, x, labels);
        fail_one(&m, &rng, ROWS, failure, x, which);
        count_blamed(net, x, which, ROWS, &strange, &right);
        printf("    %s: %d of %d are strange, the sensor is right in %.1f%%\n", names[failure],
               strange, ROWS, 100.0 * right / strange);
        CHECK(strange > ROWS / 4 && right >= 0.95 * strange, "%s: %d of %d", names[failure], right,
              strange);
    }
    jem_trainer_free(tr);
    jem_net_free(net);
}

/* log p(u) = -|L u|^2 / 2 */
static jem_tensor *normal_forward(jem_net *net, jem_tensor *u, int training, void *user) {
    (void)training;
    (void)user;
    jem_tensor *z = jem_linear(net->ctx, u, jem_net_find(net, "L"), NULL);
    return jem_scale(net->ctx, jem_sum_image(net->ctx, jem_square(net->ctx, z)), -0.5f);
}

/* Checks values whose replacements are all less likely: they remain. At u = 0 these are all values;
   in the other vectors the last one, which is the most likely one although it is beyond 3. */
static void check_blame_nothing(jem_net *net) {
    enum { D = 3, ROWS = 20 };
    float u[ROWS * D], x[ROWS * D], gain[ROWS * D], better[ROWS * D];
    for (int k = 0; k < ROWS; k++) {
        float *row = u + k * D;
        row[0] = k ? -6 - 0.07f * (float)k : 0;
        row[1] = k ? 6 + 0.05f * (float)k : 0;
        row[2] = (0.8f * row[1] - 0.5f * row[0]) / 1.6f;     /* (L u)[2] is 0 */
    }
    CHECK(jem_unstandardize(net, u, ROWS, x) == JEM_OK &&
          jem_blame_values(net, x, ROWS, gain, better) == JEM_OK, "%s", jem_error(net->ctx));
    for (int k = 0; k < ROWS * D; k++) {
        if (k >= D && k % D < 2) continue;
        CHECK(gain[k] == 0 && better[k] == x[k], "value %d: gain %g, %.9g for %.9g", k,
              (double)gain[k], (double)better[k], (double)x[k]);
    }
}

static void test_blame_normal(jem_ctx *ctx) {
    printf("vectors: gains and replacements of a normal density are the exact ones\n");
    enum { D = 3, ROWS = 40 };
    static const float L[D * D] = { 2, 0, 0, -1.5f, 1, 0, 0.5f, -0.8f, 1.6f };
    static const float mean[D] = { 1000, 0, -3 };
    static const float scale[D] = { 50, 0.01f, 1 };
    const int shape[2] = { D, D };
    float x[ROWS * D], u[ROWS * D], gain[ROWS * D], better[ROWS * D], found[ROWS * D];
    jem_net *net = jem_net_create(ctx, normal_forward, NULL, 0, D, 1, 1, 1, 1);
    jem_param *l = jem_net_param(net, "L", 2, shape, 1);
    memcpy(l->value, L, sizeof L);
    jem_param_changed(l);
    jem_rng rng = jem_rng_seed(3);
    for (int k = 0; k < ROWS * D; k++)
        x[k] = mean[k % D] + scale[k % D] * jem_rng_normal(&rng);
    jem_net_fit_units(net, x, ROWS);
    jem_standardize(net, x, ROWS, u);
    CHECK(jem_blame_values(net, x, ROWS, gain, better) == JEM_OK &&
          jem_standardize(net, better, ROWS, found) == JEM_OK, "%s", jem_error(ctx));
    int inside = 0;
    for (int k = 0; k < ROWS * D; k++) {
        const int i = k % D;
        const float *row = u + k - i;
        double slope = 0;                          /* P u, with P = L'L */
        double curvature = 0;
        for (int r = 0; r < D; r++) {
            double z = 0;
            for (int c = 0; c < D; c++) z += (double)L[r * D + c] * (double)row[c];
            slope += (double)L[r * D + i] * z;
            curvature += (double)L[r * D + i] * (double)L[r * D + i];
        }
        const double best = (double)row[i] - slope / curvature;
        if (fabs(best) > 2.9) continue;            /* beyond the range of replacements */
        inside++;
        CHECK_CLOSE((double)gain[k], slope * slope / 2 / curvature, 2e-4, "gain of value %d", k);
        /* half of .003, from one trial to the next, and rounding of log p */
        CHECK_CLOSE(found[k], best, 0.002, "replacement of value %d", k);
    }
    CHECK(inside > ROWS * D * 0.8, "%d are inside of the range", inside);
    check_blame_nothing(net);
    jem_net_free(net);
}

/* Creates a network of vectors of two numbers, which are correlated and in units of their own, and
   whose units and A fit data x[n][2]. */
static jem_net *pair_net(jem_ctx *ctx, float *x, int n) {
    const jem_mlp_desc shape = jem_mlp_desc_vectors(2, 1);
    jem_net *net = jem_mlp_create(ctx, &shape, 1);
    jem_rng rng = jem_rng_seed(2);
    for (int i = 0; i < n; i++) {
        const float angle = 6.28f * jem_rng_uniform(&rng);
        const float a = cosf(angle) + 0.1f * jem_rng_normal(&rng);
        const float b = sinf(angle) + 0.1f * jem_rng_normal(&rng);
        x[2 * i] = 100 * a + 7;
        x[2 * i + 1] = 0.01f * (a + 0.5f * b);
    }
    CHECK(jem_net_fit_units(net, x, n) == JEM_OK, "%s", jem_error(ctx));
    return net;
}

static void test_blame_refused(jem_ctx *ctx) {
    printf("vectors: a far value is named and repaired; what cannot be blamed is refused\n");
    enum { N = 1000 };
    static float x[N * 2];
    float gain[2], better[2];
    jem_net *net = pair_net(ctx, x, N);
    jem_param *head = jem_net_find(net, "class_output.weight");
    memset(head->value, 0, (size_t)head->size * sizeof *head->value);
    jem_param_changed(head);                       /* Student's distribution remains */
    x[0] = 7;
    x[1] = 100;
    CHECK(jem_blame_values(net, x, 1, gain, better) == JEM_OK, "%s", jem_error(ctx));
    CHECK(gain[1] > gain[0] && gain[1] > 1 && fabsf(better[1]) < 0.05f, "gains %g, %g; %g",
          (double)gain[0], (double)gain[1], (double)better[1]);
    CHECK(jem_blame_values(net, x, 0, gain, NULL) == JEM_OK, "no vectors");
    CHECK(jem_blame_values(net, x, 1, NULL, NULL) && says(ctx, "NULL"), "no place");
    x[1] = (float)NAN;
    CHECK(jem_blame_values(net, x, 1, gain, NULL) && says(ctx, "(column 1)"),
          "NaN");
    jem_net_free(net);
    net = jem_mlp_create(ctx, NULL, 1);
    CHECK(jem_blame_values(net, x, 1, gain, NULL) &&
          says(ctx, "needs vectors, not images of 28 x 28"), "images");
    jem_net_free(net);
}

/* Integrates p(x) over a grid of [7 - 800, 7 + 800] x [-.08, .08]. */
static double integral(jem_net *net) {
    enum { SIDE = 400 };
    static float x[SIDE * 2];
    static jem_answer a[SIDE];
    double sum = 0;
    for (int i = 0; i < SIDE; i++) {
        for (int k = 0; k < SIDE; k++) {
            x[2 * k] = 7 + 1600 * ((float)i + 0.5f) / SIDE - 800;
            x[2 * k + 1] = 0.16f * ((float)k + 0.5f) / SIDE - 0.08f;
        }
        CHECK(jem_classify(net, x, SIDE, a) == JEM_OK, "%s", jem_error(net->ctx));
        for (int k = 0; k < SIDE; k++) sum += exp((double)a[k].log_density);
    }
    return sum * 1600 / SIDE * 0.16 / SIDE;
}

/* Checks that A makes n pairs uncorrelated, with variance 1. */
static void check_whitened(jem_net *net, const float *x, int n) {
    const jem_param *a = jem_net_find(net, "whiten.weight");
    float *u = floats(2 * n);
    jem_standardize(net, x, n, u);
    double cov[3] = { 0, 0, 0 };
    for (int i = 0; i < n; i++) {
        const double z0 = (double)(a->value[0] * u[2 * i]);
        const double z1 = (double)(a->value[2] * u[2 * i] + a->value[3] * u[2 * i + 1]);
        cov[0] += z0 * z0 / n;
        cov[1] += z0 * z1 / n;
        cov[2] += z1 * z1 / n;
    }
    CHECK(a->value[1] == 0, "A is lower triangular");
    CHECK_CLOSE(cov[0], 1, 2e-3, "variance of z0");
    CHECK_CLOSE(cov[1], 0, 2e-3, "covariance");
    CHECK_CLOSE(cov[2], 1, 2e-3, "variance of z1");
    free(u);
}

/* Sets the last layer to 0: log p(x) is then that of the Student distribution alone. */
static void leave_student(jem_net *net) {
    jem_param *head = jem_net_find(net, "class_output.weight");
    jem_param *bias = jem_net_find(net, "class_output.bias");
    memset(head->value, 0, (size_t)head->size * sizeof *head->value);
    bias->value[0] = 0;
    jem_param_changed(head);
    jem_param_changed(bias);
}

static void test_normalised(jem_ctx *ctx) {
    printf("vectors: log p(x) is normalised: the Student distribution's, and what is learned\n");
    enum { N = 1000 };
    static float x[N * 2];
    static int labels[N];
    jem_net *net = pair_net(ctx, x, N);
    check_whitened(net, x, N);
    leave_student(net);
    const double alone = integral(net);
    CHECK(alone > 0.98 && alone < 1, "Student's, all but its tails: %.4f", alone);
    jem_net_free(net);
    net = pair_net(ctx, x, N);
    const int updates = 600;
    const jem_train_desc how = jem_train_desc_vectors(updates);
    jem_trainer *tr = jem_trainer_create(net, &how);
    float first = 0;
    float last = 0;
    for (int i = 0; i < updates; i++) {
        const jem_stats s = jem_train_step(tr, x + i % 15 * 128, labels, 64);
        CHECK(s.status == JEM_OK, "%s", jem_error(ctx));
        if (i == 0) first = s.nce;
        if (i >= updates - 100) last += s.nce / 100;
    }
    CHECK(first > 1 && last < 1, "noise-contrastive loss: %.3f, at last %.3f", (double)first,
          (double)last);
    jem_trainer_use_average(tr, 1);
    const double learned = integral(net);
    printf("    integral of p(x): %.4f before, %.4f learned\n", alone, learned);
    CHECK(learned > 0.9 && learned < 1.1, "learned: %.4f", learned);
    jem_archive *file = jem_archive_create(ctx);
    CHECK(jem_net_to_archive(net, file) == JEM_OK, "%s", jem_error(ctx));
    jem_net *back = jem_net_from_archive(ctx, file);
    jem_answer answers[2];
    CHECK(back && jem_classify(net, x, 1, answers) == JEM_OK &&
          jem_classify(back, x, 1, answers + 1) == JEM_OK &&
          answers[0].log_density == answers[1].log_density, "a file keeps A: %s", jem_error(ctx));
    jem_net_free(back);
    jem_archive_free(file);
    jem_trainer_free(tr);
    jem_net_free(net);
}

/* Checks log p(x) without logits, which is that of Student's distribution alone. */
static void test_student(jem_ctx *ctx) {
    printf("vectors: Student's log-density for several degrees of freedom\n");
    enum { N = 20, MOST = 3, CASES = 4 };
    static const int cases[CASES][2] = { { 1, 1 }, { 7, 1 }, { 1, 3 }, { 7, 3 } };
    jem_rng rng = jem_rng_seed(5);
    for (int k = 0; k < CASES; k++) {
        const int nu = cases[k][0];
        const int d = cases[k][1];
        const double constant = lgamma((nu + d) / 2.0) - lgamma(nu / 2.0) -
                                d / 2.0 * log(nu * 3.14159265358979);
        float x[N * MOST];
        jem_answer a[N];
        jem_mlp_desc shape = jem_mlp_desc_vectors(d, 1);
        shape.student = nu;
        jem_net *net = jem_mlp_create(ctx, &shape, 1);
        leave_student(net);
        jem_fill_normal(ctx, &rng, x, N * d, 0, 3);
        CHECK(jem_classify(net, x, N, a) == JEM_OK, "%s", jem_error(ctx));
        for (int i = 0; i < N; i++) {
            double square = 0;
            for (int j = 0; j < d; j++) square += (double)x[i * d + j] * (double)x[i * d + j];
            CHECK_CLOSE(a[i].log_density, constant - (nu + d) / 2.0 * log(1 + square / nu), 1e-5,
                        "nu %d, %d numbers, vector %d", nu, d, i);
        }
        jem_net_free(net);
    }
}

static void test_refused(jem_ctx *ctx) {
    printf("vectors: what has no Student distribution is refused\n");
    jem_mlp_desc shape = jem_mlp_desc_default();
    jem_net *net = jem_mlp_create(ctx, &shape, 1);
    const jem_train_desc how = jem_train_desc_vectors(100);
    CHECK(!jem_trainer_create(net, &how) && says(ctx, "Student"), "an MLP without");
    shape.student = 3;
    CHECK(!jem_mlp_create(ctx, &shape, 1) && says(ctx, "student = 3: needs an MLP"), "images");
    shape = jem_mlp_desc_vectors(2, 1);
    shape.quadratic = 1;
    CHECK(!jem_mlp_create(ctx, &shape, 1) && says(ctx, "not together with quadratic"), "both");
    shape = jem_mlp_desc_vectors(2000, 1);
    CHECK(!jem_mlp_create(ctx, &shape, 1) && says(ctx, "up to 1024"), "long ones");
    jem_convnet_desc convs = jem_mlp_desc_vectors(2, 1);
    convs.layers = 1;
    CHECK(!jem_convnet_create(ctx, &convs, 1) && says(ctx, "needs an MLP"), "a convnet");
    jem_net_free(net);
}

int main(int argc, char **argv) {
    static const test_case all[] = {
        TEST_IN(test_recipes), TEST_IN(test_student), TEST_IN(test_normalised),
        TEST_IN(test_blame_sensors), TEST_IN(test_blame_normal), TEST_IN(test_blame_refused),
        TEST_IN(test_refused)
    };
    return run_each_in_ctx(argc, argv, all, TEST_COUNT(all));
}
