/* >>rng: known answers, distributions, and dependence of a number on seed and position alone. The
   seeds are fixed, so the results are deterministic: the limits correspond to small probabilities.
   */
#define JEM_IMPLEMENTATION
#include "jem.h"
#include "tests/support/test.h"
#include "tests/support/common.h"

enum { MANY = 1 << 20 };
static float data[MANY];

/* ---- known answers --------------------------------------------------------------------------- */

/* From the authors' Random123, kat_vectors: threefry2x32, 20 rounds. */
static const struct { uint32_t counter[2], key[2], out[2]; } known[] = {
    { { 0, 0 }, { 0, 0 }, { 0x6b200159u, 0x99ba4efeu } },
    { { 0xffffffffu, 0xffffffffu }, { 0xffffffffu, 0xffffffffu }, { 0x1cb996fcu, 0xbb002be7u } },
    { { 0x243f6a88u, 0x85a308d3u }, { 0x13198a2eu, 0x03707344u }, { 0xc4923a9cu, 0x483df7a0u } }
};

static void test_known(void) {
    printf("known answers, in plain C and in the kernels\n");
    for (int i = 0; i < 3; i++) {
        const uint32_t *want = known[i].out;
        const uint64_t at = known[i].counter[0] | (uint64_t)known[i].counter[1] << 32;
        uint32_t x[2];
        jem__threefry_scalar(known[i].key, at, &x[0], &x[1]);
        CHECK(x[0] == want[0] && x[1] == want[1], "vector %d: %08x %08x", i, x[0], x[1]);
        jem_rng rng = { { known[i].key[0], known[i].key[1] }, at };
        CHECK(jem_rng_u32(&rng) == want[0], "jem_rng_u32, vector %d", i);
        for (int isa = JEM_ISA_SCALAR; isa <= JEM_ISA_WASM; isa++) {
            if (!jem_isa_available((jem_isa)isa)) continue;
            float u[32];
            jem__kernels_for((jem_isa)isa)->fill(0, known[i].key, at, u, 32, 0, 16777216);
            CHECK(u[0] == (float)(want[0] >> 8) && u[16] == (float)(want[1] >> 8), "%s, vector %d",
                  jem_isa_name((jem_isa)isa), i);
        }
    }
}

/* ---- distributions --------------------------------------------------------------------------- */

static int compare_floats(const void *a, const void *b) {
    const float x = *(const float *)a;
    const float y = *(const float *)b;
    return (x > y) - (x < y);
}
static double uniform_cdf(double x) {
    if (x < 0) return 0;
    return x > 1 ? 1 : x;
}
static double normal_cdf(double x) { return 0.5 * erfc(-x / sqrt(2)); }

/* Standard deviations that the mean of f is away from what it should be. */
static double z_score(double (*f)(double), double mean, double var) {
    double sum = 0;
    for (int i = 0; i < MANY; i++) sum += f((double)data[i]);
    return (sum / MANY - mean) / sqrt(var / MANY);
}
static double power1(double x) { return x; }
static double power2(double x) { return x * x; }
static double power3(double x) { return x * x * x; }
static double power4(double x) { return x * x * x * x; }
static double beyond2(double x) { return fabs(x) > 2; }
static double beyond3(double x) { return fabs(x) > 3; }
static double beyond4(double x) { return fabs(x) > 4; }
static double upper(double x) { return x > 0.5; }

static void check_z(const char *what, double (*f)(double), double mean, double var) {
    const double z = z_score(f, mean, var);
    CHECK(fabs(z) < 4, "%s is %.1f standard deviations off", what, z);      /* 6e-5 */
}

/* Neighbours in the sequence, and in a register, know nothing of each other. */
static void check_lags(const char *what, double mean, double var) {
    static const int lags[] = { 1, 2, 15, 16, 17, 31, 32, 33, 512, 4096 };
    for (int k = 0; k < 10; k++) {
        double sum = 0;
        for (int i = lags[k]; i < MANY; i++)
            sum += ((double)data[i] - mean) * ((double)data[i - lags[k]] - mean);
        CHECK(fabs(sum / var / sqrt((double)(MANY - lags[k]))) < 4, "%s: lag %d", what, lags[k]);
    }
}

/* Kolmogorov-Smirnov: sqrt(n) times the largest distance is below 1.95 with p = .999. Sorts. */
static void check_ks(const char *what, double (*cdf)(double)) {
    double worst = 0;
    qsort(data, MANY, sizeof *data, compare_floats);
    for (int i = 0; i < MANY; i++) {
        const double c = cdf((double)data[i]);
        const double a = c - (double)i / MANY;
        const double b = (i + 1.0) / MANY - c;
        worst = a > worst ? a : worst;
        worst = b > worst ? b : worst;
    }
    CHECK(sqrt((double)MANY) * worst < 1.95, "%s: Kolmogorov-Smirnov %.2f", what,
          sqrt((double)MANY) * worst);
}

static void check_uniform(const char *what) {
    printf("%s: moments, lags, Kolmogorov-Smirnov\n", what);
    int outside = 0;
    for (int i = 0; i < MANY; i++) outside += !(data[i] >= 0 && data[i] < 1);
    CHECK(outside == 0, "%s: %d outside [0,1)", what, outside);
    check_z("mean", power1, 0.5, 1.0 / 12);
    check_z("square", power2, 1.0 / 3, 1.0 / 5 - 1.0 / 9);
    check_z("upper half", upper, 0.5, 0.25);
    check_lags(what, 0.5, 1.0 / 12);
    check_ks(what, uniform_cdf);
}

static void check_normal(const char *what) {
    printf("%s: moments, tails, lags, Kolmogorov-Smirnov\n", what);
    check_z("mean", power1, 0, 1);
    check_z("square", power2, 1, 2);
    check_z("cube", power3, 0, 15);
    check_z("fourth power", power4, 3, 105 - 9);
    double (*const tail[3])(double) = { beyond2, beyond3, beyond4 };
    for (int i = 0; i < 3; i++) {
        const double p = 2 * normal_cdf(-2.0 - i);
        check_z("tail", tail[i], p, p * (1 - p));
    }
    check_lags(what, 0, 1);
    check_ks(what, normal_cdf);
    CHECK(data[0] > -5.8f && data[0] < -4 && data[MANY - 1] > 4 && data[MANY - 1] < 5.8f,
          "%s: extremes %g, %g", what, (double)data[0], (double)data[MANY - 1]);
}

static void test_distributions(jem_ctx *ctx) {
    jem_rng rng = jem_rng_seed(11);
    jem_fill_uniform(ctx, &rng, data, MANY, 0, 1);
    check_uniform("jem_fill_uniform");
    for (int i = 0; i < MANY; i++) data[i] = jem_rng_uniform(&rng);
    check_uniform("jem_rng_uniform");
    jem_fill_normal(ctx, &rng, data, MANY, 0, 1);
    check_normal("jem_fill_normal");
    for (int i = 0; i < MANY; i++) data[i] = jem_rng_normal(&rng);
    check_normal("jem_rng_normal");
}

/* Box-Muller in double, from the same words. */
static void test_normal_accuracy(jem_ctx *ctx) {
    printf("normal numbers against double precision\n");
    const double two_pi = 6.283185307179586;
    jem_rng rng = jem_rng_seed(3);
    double worst = 0;
    float z[3200];
    const jem_rng start = rng;
    jem_fill_normal(ctx, &rng, z, 3200, 0, 1);
    for (int i = 0; i < 1600; i++) {
        uint32_t x[2];
        jem__threefry_scalar(start.key, start.counter + (uint64_t)i, &x[0], &x[1]);
        const double r = sqrt(-2 * log(1 - (x[0] >> 8) / 16777216.0));
        const double t = two_pi * ((x[1] >> 8) / 16777216.0 - 0.5);
        const float *at = z + i / 16 * 32 + i % 16;
        const double a = fabs((double)at[0] - r * sin(t));
        const double b = fabs((double)at[16] - r * cos(t));
        worst = a > worst ? a : worst;
        worst = b > worst ? b : worst;
    }
    CHECK(worst < 3e-6, "off by %g", worst);
}

/* A single number is the first of a fill, and takes as many counters. */
static void test_single(jem_ctx *ctx) {
    printf("single normal numbers are the first of fills\n");
    enum { N = 1000 };
    float single[N], filled[N];
    jem_ctx *scalar = isa_ctx(JEM_ISA_SCALAR, 1);
    jem_rng a = jem_rng_seed(4);
    jem_rng b = a;
    for (int i = 0; i < N; i++) {
        single[i] = jem_rng_normal(&a);
        jem_fill_normal(scalar, &b, filled + i, 1, 0, 1);
        jem_rng_u32(&a);
        jem_rng_u32(&b);
    }
    CHECK(same_bits(single, filled, N) && a.counter == b.counter, "%s", jem_error(ctx));
    jem_ctx_free(scalar);
}

/* ---- fills: scale, place, length, instruction set -------------------------------------------- */

enum { FILLED = 1000 };
static void (*const fill[2])(jem_ctx *, jem_rng *, float *, ptrdiff_t, float, float) = {
    jem_fill_uniform, jem_fill_normal
};

/* Compares the numbers that a fill drew from `start` with those of every instruction set. */
static void check_isas(const jem_ctx *ctx, int kind, jem_rng start, const float *whole) {
    enum { N = FILLED };
    float part[N];
    for (int isa = JEM_ISA_SCALAR; isa <= JEM_ISA_NEON; isa++) {
        jem_ctx *other = isa_ctx((jem_isa)isa, 1);
        if (!other) continue;
        jem_rng rng = start;
        fill[kind](other, &rng, part, N, -1, 1);
        CHECK(same_bits(part, whole, N) || (jem_ctx_isa(ctx) == JEM_ISA_WASM && kind == 1 &&
              largest_gap(part, whole, N) < 1e-6), "kind %d by %s, off by %g", kind,
              jem_isa_name((jem_isa)isa), largest_gap(part, whole, N));
        jem_ctx_free(other);
    }
}

static void test_fills(jem_ctx *ctx) {
    printf("fills: range, scale, any length, every instruction set\n");
    enum { N = FILLED };
    float whole[N], part[N + 1];
    for (int kind = 0; kind < 2; kind++) {
        for (int burnt = 0; burnt < 3; burnt++) {  /* a fill may begin at any counter */
            jem_rng start = jem_rng_seed(5);
            jem_rng rng;
            start.counter = burnt == 2 ? 0xfffffff0u : 0;              /* and cross 2^32 */
            for (int i = 0; i < burnt; i++) jem_rng_u32(&start);
            rng = start;
            fill[kind](ctx, &rng, whole, N, -1, 1);
            for (int n = 0; n <= N; n = n < 70 ? n + 1 : n + 31) {
                rng = start;
                part[n] = 77;
                fill[kind](ctx, &rng, part, n, -1, 1);
                /* Whole blocks of 16 counters, two numbers from each. */
                const uint64_t block = (start.counter + 15) / 16 + (uint64_t)(n + 31) / 32;
                CHECK(same_bits(part, whole, n) && part[n] == 77 &&
                      rng.counter == (n ? 16 * block : start.counter),
                      "kind %d, the first %d of %d", kind, n, N);
            }
            check_isas(ctx, kind, start, whole);
        }
    }
    jem_rng a = jem_rng_seed(9);
    jem_rng b = a;
    jem_fill_uniform(ctx, &a, whole, N, -1, 1);
    jem_fill_uniform(ctx, &b, part, N, 0, 1);
    int bad = 0;
    for (int i = 0; i < N; i++) bad += whole[i] != 2 * part[i] - 1 || whole[i] >= 1;
    CHECK(bad == 0, "uniform in -1..1: %d of %d wrong", bad, N);
    b = a;
    jem_fill_normal(ctx, &a, whole, N, 3, 0.5f);
    jem_fill_normal(ctx, &b, part, N, 0, 1);
    for (int i = 0; i < N; i++) bad += fabsf(whole[i] - (3 + 0.5f * part[i])) > 3e-7f;
    CHECK(bad == 0, "normal(3, .5): %d of %d wrong", bad, N);
    CHECK(a.counter == b.counter, "a fill's length alone moves the counter");
    jem_fill_normal(ctx, &a, part, N, 3, 0.5f);
    CHECK(!same_bits(part, whole, N), "the next fill is another one");
}

/* ---- whole numbers --------------------------------------------------------------------------- */

static void test_below(void) {
    printf("jem_rng_below: no bias\n");
    static const int sizes[] = { 2, 3, 7, 10, 1000 };
    jem_rng rng = jem_rng_seed(21);
    for (int k = 0; k < 5; k++) {
        int count[1000] = { 0 };
        int outside = 0;
        const int n = sizes[k];
        const int draws = 200 * n > 100000 ? 200 * n : 100000;
        for (int i = 0; i < draws; i++) {
            const int x = jem_rng_below(&rng, n);
            if (x < 0 || x >= n) outside++; else count[x]++;
        }
        double chi2 = 0;
        for (int i = 0; i < n; i++) {
            const double d = count[i] - (double)draws / n;
            chi2 += d * d * n / draws;
        }
        CHECK(outside == 0 && chi2 < n + 3 + 4 * sqrt(2.0 * n), "n %d: chi^2 %.1f", n, chi2);
    }
    /* A plain remainder would favour the lowest third of 3 * 2^29 by 3:2. */
    int third[3] = { 0 };
    for (int i = 0; i < 90000; i++) third[jem_rng_below(&rng, 3 << 29) >> 29]++;
    for (int i = 0; i < 3; i++)
        CHECK(abs(third[i] - 30000) < 600, "third %d: %d of 90000", i, third[i]);
    const jem_rng before = rng;
    CHECK(jem_rng_below(&rng, 1) == 0 && jem_rng_below(&rng, 0) == 0 &&
          jem_rng_below(&rng, -5) == 0 && rng.counter == before.counter, "n <= 1 is 0, and free");
    int ones[32] = { 0 };
    int worst = 0;
    for (int i = 0; i < 100000; i++)
        for (uint32_t bit = 0, u = jem_rng_u32(&rng); bit < 32; bit++)
            ones[bit] += (int)(u >> bit & 1);
    for (int bit = 0; bit < 32; bit++)
        if (abs(ones[bit] - 50000) > worst) worst = abs(ones[bit] - 50000);
    CHECK(worst < 4 * 158 + 60, "a bit of jem_rng_u32 is off by %d of 50000", worst);
}

/* ---- streams --------------------------------------------------------------------------------- */

static int compare_words(const void *a, const void *b) {
    const uint64_t x = *(const uint64_t *)a;
    const uint64_t y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* The first 64 bits of many sequences: any two alike would be a collision. */
static int collisions(jem_rng (*sequence)(int), int n) {
    uint64_t *first = (uint64_t *)malloc((size_t)n * sizeof *first);
    int alike = 0;
    for (int i = 0; i < n; i++) {
        jem_rng rng = sequence(i);
        const uint64_t high = jem_rng_u32(&rng);
        first[i] = high << 32 | jem_rng_u32(&rng);
    }
    qsort(first, (size_t)n, sizeof *first, compare_words);
    for (int i = 1; i < n; i++) alike += first[i] == first[i - 1];
    free(first);
    return alike;
}
static jem_rng by_seed(int i) { return jem_rng_seed((uint64_t)i); }
static jem_rng by_high_seed(int i) { return jem_rng_seed((uint64_t)i << 32); }
static jem_rng by_stream(int i) {
    const jem_rng rng = jem_rng_seed(1);
    return jem_rng_split(&rng, (uint64_t)i);
}
static jem_rng by_high_stream(int i) {
    const jem_rng rng = jem_rng_seed(1);
    return jem_rng_split(&rng, (uint64_t)i << 32);
}
static jem_rng by_two_streams(int i) {             /* split(split(a), b) for each a, b */
    const jem_rng rng = by_stream(i / 100);
    return jem_rng_split(&rng, (uint64_t)(i % 100));
}
static jem_rng by_counter(int i) {                 /* the rng's own sequence, place by place */
    jem_rng rng = jem_rng_seed(1);
    rng.counter = 2 * (uint64_t)i;
    return rng;
}

static void test_streams(jem_ctx *ctx) {
    printf("seeds, streams and copies\n");
    jem_rng (*const sequence[])(int) = { by_seed, by_high_seed, by_stream, by_high_stream,
                                         by_two_streams, by_counter };
    for (int i = 0; i < 6; i++) CHECK(collisions(sequence[i], 10000) == 0, "sequences, kind %d", i);

    enum { N = 1 << 18 };
    jem_rng parent = jem_rng_seed(4);
    jem_rng streams[5];
    for (int i = 0; i < 4; i++) streams[i] = jem_rng_split(&parent, (uint64_t)i);
    streams[4] = parent;
    for (int i = 0; i < 4; i++)                    /* each with each, and with the parent */
        for (int j = i + 1; j < 5; j++) {
            jem_rng a = streams[i];
            jem_rng b = streams[j];
            jem_fill_normal(ctx, &a, data, N, 0, 1);
            jem_fill_normal(ctx, &b, data + N, N, 0, 1);
            double sum = 0;
            for (int k = 0; k < N; k++) sum += (double)data[k] * (double)data[N + k];
            CHECK(fabs(sum / sqrt((double)N)) < 4, "streams %d and %d correlate: %.1f", i, j,
                  sum / sqrt((double)N));
        }

    const jem_rng untouched = parent;
    jem_rng_split(&parent, 7);
    CHECK(parent.counter == untouched.counter && !memcmp(parent.key, untouched.key, 8),
          "a split leaves its parent as it was");
    for (int i = 0; i < 5; i++) {
        jem_rng_normal(&parent);
        jem_rng_u32(&parent);
    }
    jem_rng copy = parent;                         /* saved here, resumed below */
    float a[100], b[100];
    for (int i = 0; i < 100; i++) a[i] = i % 3 ? jem_rng_uniform(&parent) : jem_rng_normal(&parent);
    for (int i = 0; i < 100; i++) b[i] = i % 3 ? jem_rng_uniform(&copy) : jem_rng_normal(&copy);
    CHECK(same_bits(a, b, 100) && parent.counter == copy.counter, "a copy repeats the original");
    const jem_rng late = jem_rng_split(&parent, 2);
    const jem_rng early = jem_rng_split(&untouched, 2);
    CHECK(!memcmp(late.key, early.key, 8), "a stream does not depend on what was drawn before");
}

int main(int argc, char **argv) {
    static const test_case all[] = {
        TEST(test_known), TEST_IN(test_distributions), TEST_IN(test_normal_accuracy),
        TEST_IN(test_single), TEST_IN(test_fills), TEST(test_below), TEST_IN(test_streams)
    };
    jem_ctx *ctx = jem_ctx_create(NULL);
    check_isa(ctx);
    test_begin(argc, argv);
    test_run(all, TEST_COUNT(all), ctx);
    jem_ctx_free(ctx);
    return test_report();
}
