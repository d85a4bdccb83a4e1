/* Units: a network with units gives the same results for raw data as one without them for
   standardised data; files keep them. */
#define JEM_IMPLEMENTATION
#include "jem.h"
#include "tests/support/test.h"
#include "tests/support/common.h"

enum { N = 40, DIM = 3 };
static const float mean[DIM] = { 1000, -3, 0 }, size[DIM] = { 250, 0.125f, 1e-4f };

static jem_net *small_net(jem_ctx *ctx) {
    const small_shape s = { DIM, 1, 1, 2, 0 };
    return small_mlp(ctx, s, 1);
}

/* Fills x[N][DIM] with sensors' values, and labels. */
static void sense(float *x, int *labels) {
    jem_rng rng = jem_rng_seed(3);
    for (int i = 0; i < N; i++) {
        labels[i] = i % 2;
        for (int c = 0; c < DIM; c++)
            x[i * DIM + c] = mean[c] + size[c] * (jem_rng_normal(&rng) + (float)labels[i]);
    }
}

static void test_moments(jem_ctx *ctx) {
    printf("units: standardised data have mean 0 and standard deviation 1, and come back\n");
    float x[N * DIM], u[N * DIM], back[N * DIM];
    int labels[N];
    jem_net *net = small_net(ctx);
    sense(x, labels);
    CHECK(jem_standardize(net, x, N, u) == JEM_OK && !memcmp(x, u, sizeof u), "none: a copy");
    CHECK(jem_net_fit_units(net, x, N) == JEM_OK, "%s", jem_error(ctx));
    CHECK(jem_standardize(net, x, N, u) == JEM_OK, "%s", jem_error(ctx));
    CHECK(jem_unstandardize(net, u, N, back) == JEM_OK, "%s", jem_error(ctx));
    for (int c = 0; c < DIM; c++) {
        double sum = 0;
        double square = 0;
        for (int i = 0; i < N; i++) {
            sum += (double)u[i * DIM + c] / N;
            square += (double)u[i * DIM + c] * (double)u[i * DIM + c] / N;
            CHECK_CLOSE(back[i * DIM + c], x[i * DIM + c], 2e-6f * (fabsf(mean[c]) + 4 * size[c]),
                        "value %d of %d", c, i);
        }
        CHECK_CLOSE(sum, 0, 1e-5, "mean of %d", c);
        CHECK_CLOSE(square, 1, 1e-4, "variance of %d", c);
    }
    jem_net_free(net);
}

static void test_same_answers(jem_ctx *ctx) {
    printf("units: training, answers, scores and attacks are those on standardised data\n");
    float x[N * DIM], u[N * DIM], f[2][N * 2], score[2][N], found[2][N * DIM];
    int labels[N], fooled[2][N];
    jem_answer a[2][N];
    sense(x, labels);
    double log_size = 0;
    for (int own = 0; own < 2; own++) {
        jem_net *net = small_net(ctx);
        jem_net *with = small_net(ctx);
        CHECK(jem_net_fit_units(with, x, N) == JEM_OK, "%s", jem_error(ctx));
        jem_standardize(with, x, N, u);
        const char *text = jem_net_meta(with, "jem.units");
        float numbers[2 * DIM];
        CHECK(jem__numbers_parse(text, numbers, 2 * DIM) == 2 * DIM, "%s", text);
        for (int c = 0; c < DIM && !own; c++) log_size += log((double)numbers[2 * c + 1]);
        jem_net *use = own ? with : net;
        const float *data = own ? x : u;
        jem_train_desc how = jem_train_desc_default();
        how.sgld = jem_sgld_desc_langevin(0.01f, 2);
        how.negatives = 16;
        jem_trainer *tr = jem_trainer_create(use, &how);
        for (int i = 0; i < 5; i++) jem_train_step(tr, data, labels, N);
        CHECK(jem_calibrate(use, data, N, 1) == JEM_OK, "%s", jem_error(ctx));
        CHECK(jem_classify(use, data, N, a[own]) == JEM_OK, "%s", jem_error(ctx));
        CHECK(jem_logits(use, data, N, f[own]) == JEM_OK, "%s", jem_error(ctx));
        CHECK(jem_ood_score(use, JEM_OOD_MASS, NULL, data, N, score[own]) == JEM_OK, "%s",
              jem_error(ctx));
        jem_attack_desc attack = jem_attack_desc_default();
        jem_rng rng = jem_rng_seed(4);
        attack.lo = -5;
        attack.hi = 5;
        CHECK(jem_attack(use, data, labels, N, &attack, &rng, found[own], fooled[own]) == JEM_OK,
              "%s", jem_error(ctx));
        if (own) jem_standardize(use, found[1], N, found[1]);
        jem_trainer_free(tr);
        jem_net_free(net);
        jem_net_free(with);
    }
    CHECK(!memcmp(f[0], f[1], sizeof f[0]), "logits");
    CHECK(!memcmp(score[0], score[1], sizeof score[0]), "slopes");
    CHECK(!memcmp(fooled[0], fooled[1], sizeof fooled[0]), "the fooled images");
    for (int i = 0; i < N * DIM; i++)
        CHECK_CLOSE(found[0][i], found[1][i], 2e-4, "what was found: %d", i);
    for (int i = 0; i < N; i++) {
        CHECK(a[0][i].label == a[1][i].label && a[0][i].probability == a[1][i].probability &&
              a[0][i].familiarity == a[1][i].familiarity, "answer %d", i);
        CHECK_CLOSE(a[0][i].log_density - a[1][i].log_density, log_size, 1e-5, "log p of %d", i);
    }
}

/* Fits units to a channel that varies, to a constant 7 and to a constant 0. */
static void test_images(jem_ctx *ctx) {
    printf("units: of images, those of each channel, which count for every pixel in log p(x)\n");
    enum { CHANNELS = 3, PLANE = 3 * 4, SIZE = CHANNELS * PLANE };
    static float x[N * SIZE], u[N * SIZE], back[N * SIZE];
    const small_shape s = { CHANNELS, 3, 4, 2, 0 };
    jem_answer plain[N], with_units[N];
    float numbers[2 * CHANNELS];
    double sum = 0;
    double square = 0;
    jem_rng rng = jem_rng_seed(6);
    for (int i = 0; i < N * SIZE; i++) {
        const int channel = i / PLANE % CHANNELS;
        x[i] = channel == 1 ? 7.0f : 0.0f;
        if (channel != 0) continue;
        x[i] = 5 + 3 * jem_rng_normal(&rng);
        sum += (double)x[i];
        square += (double)x[i] * (double)x[i];
    }
    const double middle = sum / (N * PLANE);
    const double spread = sqrt(square / (N * PLANE) - middle * middle);
    const double wanted[2 * CHANNELS] = { middle, spread, 7, 7, 0, 1 };
    jem_net *net = small_mlp(ctx, s, 1);
    jem_net *with = small_mlp(ctx, s, 1);
    CHECK(jem_net_fit_units(with, x, N) == JEM_OK, "%s", jem_error(ctx));
    CHECK(jem__numbers_parse(jem_net_meta(with, "jem.units"), numbers, 2 * CHANNELS) ==
              2 * CHANNELS,
          "%s", jem_net_meta(with, "jem.units"));
    for (int k = 0; k < 2 * CHANNELS; k++)
        CHECK_CLOSE(numbers[k], wanted[k], 1e-5, "number %d of \"jem.units\"", k);
    CHECK(jem_standardize(with, x, N, u) == JEM_OK && jem_unstandardize(with, u, N, back) == JEM_OK,
          "%s", jem_error(ctx));
    for (int i = 0; i < N * SIZE; i++) {
        const int channel = i / PLANE % CHANNELS;
        const double is = ((double)x[i] - wanted[2 * channel]) / wanted[2 * channel + 1];
        CHECK_CLOSE(u[i], is, 1e-5, "standardised, pixel %d", i % SIZE);
        CHECK_CLOSE(back[i], x[i], 2e-6, "and back, pixel %d", i % SIZE);
    }
    CHECK(jem_classify(net, u, N, plain) == JEM_OK &&
          jem_classify(with, x, N, with_units) == JEM_OK, "%s", jem_error(ctx));
    for (int i = 0; i < N; i++)
        CHECK_CLOSE(with_units[i].log_density - plain[i].log_density,
                    -PLANE * (log(spread) + log(7.0)), 2e-5, "log p of image %d", i);
    jem_net_free(net);
    jem_net_free(with);
}

static void test_extremes(jem_ctx *ctx) {
    printf("units: constants, broken sensors, and what is no number\n");
    float x[4] = { 7, 1, 7, 3 };
    float u[4];
    jem_answer a[2];
    jem_mlp_desc d = jem_mlp_desc_default();
    d.channels = 2;
    d.height = d.width = 1;
    jem_net *net = jem_mlp_create(ctx, &d, 1);
    CHECK(jem_net_fit_units(net, x, 2) == JEM_OK, "%s", jem_error(ctx));
    CHECK(!strcmp(jem_net_meta(net, "jem.units"), "7 7 2 1"), "a constant: %s",
          jem_net_meta(net, "jem.units"));
    const float back[2] = { 0, 1e38f };
    CHECK(jem_unstandardize(net, back, 1, u) == JEM_OK && u[1] == 10002, "limited: %g",
          (double)u[1]);
    const float farads[4] = { 1e-12f, 0, 3e-12f, 0 };
    CHECK(jem_net_fit_units(net, farads, 2) == JEM_OK &&
          jem_standardize(net, farads, 2, u) == JEM_OK, "%s", jem_error(ctx));
    CHECK(fabsf(u[0] + 1) < 1e-3f && fabsf(u[2] - 1) < 1e-3f && u[1] == 0 && u[3] == 0,
          "picofarads: %g, %g", (double)u[0], (double)u[2]);
    CHECK(jem_net_fit_units(net, x, 2) == JEM_OK, "%s", jem_error(ctx));
    x[0] = 1e30f;
    CHECK(jem_standardize(net, x, 2, u) == JEM_OK && u[0] == 1e4f, "limited: %g", (double)u[0]);
    CHECK(jem_classify(net, x, 2, a) == JEM_OK && isfinite(a[0].log_density), "a broken sensor");
    x[3] = NAN;
    CHECK(jem_classify(net, x, 2, a) != JEM_OK && says(ctx, "row 1 contains nan (column"),
          "no number");
    CHECK(jem_net_fit_units(net, x, 2) != JEM_OK && says(ctx, "net_fit_units: row 0 contains "
          "1e+30 (column 0); values must be from -1e+12 to 1e+12"), "large");
    CHECK(jem_net_fit_units(net, x, 0) != JEM_OK && says(ctx, "net_fit_units: 0"), "no images");
    CHECK(jem_standardize(net, x, 1, NULL) != JEM_OK && says(ctx, "standardize"), "NULL");
    CHECK(jem_net_set_meta(net, "jem.units", NULL) == JEM_OK, "removed");
    CHECK(jem_classify(net, x, 1, a) != JEM_OK && says(ctx, "-10000"), "as without units");
    jem_net_free(net);
}

static void test_files(jem_ctx *ctx) {
    printf("units: a file keeps them, and a hostile one is refused\n");
    static const char *const bad[] = { "1 0 1 1 1 1", "1 1 1 1 1", "1 1 1 1 1 -1", "1 1 1 1 1 1 1",
                                       "1 1 1 1 1 x", "" };
    float x[N * DIM];
    int labels[N];
    sense(x, labels);
    jem_net *net = small_net(ctx);
    jem_archive *a = jem_archive_create(ctx);
    CHECK(jem_net_to_archive(net, a) == JEM_OK && !jem_archive_meta(a, "jem.units"), "without");
    CHECK(jem_net_fit_units(net, x, N) == JEM_OK, "%s", jem_error(ctx));
    CHECK(jem_net_load(net, a) == JEM_OK && !jem_net_meta(net, "jem.units"), "those of the file");
    CHECK(jem_net_fit_units(net, x, N) == JEM_OK, "%s", jem_error(ctx));
    jem_archive_free(a);
    a = jem_archive_create(ctx);
    CHECK(jem_net_to_archive(net, a) == JEM_OK, "%s", jem_error(ctx));
    jem_net *back = jem_net_from_archive(ctx, a);
    CHECK(back && !strcmp(jem_net_meta(back, "jem.units"), jem_net_meta(net, "jem.units")),
          "read back: %s", jem_error(ctx));
    jem_net_free(back);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        jem_archive_set_meta(a, "jem.units", bad[i]);
        CHECK(!jem_net_from_archive(ctx, a) && says(ctx, "jem.units"), "\"%s\"", bad[i]);
    }
    jem_archive_free(a);
    jem_net_free(net);
}

/* A pressure in pascals varies by a millionth of itself, and its deviations count. */
static void test_slight(jem_ctx *ctx) {
    printf("units: a channel that varies little is not constant\n");
    enum { ROWS = 400 };
    float x[ROWS * 2];
    float units[4] = { 0, 0, 0, 0 };
    jem_rng rng = jem_rng_seed(3);
    for (int i = 0; i < ROWS; i++) {
        x[2 * i] = 101325 + 0.08f * jem_rng_normal(&rng);
        x[2 * i + 1] = 101325;
    }
    const jem_mlp_desc d = jem_mlp_desc_vectors(2, 1);
    jem_net *net = jem_mlp_create(ctx, &d, 1);
    CHECK(jem_net_fit_units(net, x, ROWS) == JEM_OK, "%s", jem_error(ctx));
    CHECK(jem__numbers_parse(jem_net_meta(net, "jem.units"), units, 4) == 4, "four numbers");
    CHECK_CLOSE(units[1], 0.08, 0.01, "a standard deviation");
    CHECK(units[3] == 101325, "a constant: %g", (double)units[3]);
    jem_net_free(net);
}

int main(int argc, char **argv) {
    static const test_case all[] = {
        TEST_IN(test_moments), TEST_IN(test_same_answers), TEST_IN(test_images),
        TEST_IN(test_extremes), TEST_IN(test_files), TEST_IN(test_slight)
    };
    return run_each_in_ctx(argc, argv, all, TEST_COUNT(all));
}
