/* Shared code of test programs: contexts that count and fail, random numbers, and comparison of
   bits. Include it after jem.h and test.h. */
#ifndef COMMON_H
#define COMMON_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* An allocator that counts live blocks, and fails at the fail_at-th call, or from it on. */
typedef struct counter { long alive, calls, fail_at; int fail_on; } counter;

static inline void *count_allocate(void *user, size_t bytes) {
    counter *c = (counter *)user;
    c->calls++;
    if (c->fail_at && (c->fail_on ? c->calls >= c->fail_at : c->calls == c->fail_at)) return NULL;
    void *p = malloc(bytes);
    if (p) c->alive++;
    return p;
}

static inline void count_release(void *user, void *memory) {
    ((counter *)user)->alive--;
    free(memory);
}

/* One thread: with tensors this small, more threads would only wait for each other. */
static inline jem_ctx *open_ctx(counter *c) {
    jem_ctx_desc desc;
    memset(&desc, 0, sizeof desc);
    memset(c, 0, sizeof *c);
    desc.threads = 1;
    desc.allocate = count_allocate;
    desc.release = count_release;
    desc.user = c;
    return jem_ctx_create(&desc);
}

static inline void close_ctx(jem_ctx *ctx, counter *c, const char *what) {
    jem_ctx_free(ctx);
    CHECK(c->alive == 0, "%s: %ld blocks leak", what, c->alive);
}

/* Runs the tests of a program in one context, and checks for leaks: its main. `after` may be NULL;
   it checks the context after the tests. */
static inline int run_in_ctx(int argc, char **argv, const test_case *all, size_t n,
                             void (*after)(jem_ctx *ctx)) {
    counter count;
    jem_ctx *ctx = open_ctx(&count);
    test_begin(argc, argv);
    test_run(all, n, ctx);
    if (after) after(ctx);
    close_ctx(ctx, &count, "the tests above");
    return test_report();
}

static inline void no_error_left(jem_ctx *ctx) {
    CHECK(jem_ok(ctx), "an error is left: %s", jem_error(ctx));
}

/* Does the same, and checks after each test that there is no error. */
static inline int run_each_in_ctx(int argc, char **argv, const test_case *all, size_t n) {
    counter count;
    jem_ctx *ctx = open_ctx(&count);
    test_begin(argc, argv);
    for (size_t i = 0; i < n; i++) {
        if (!test_wants(all[i].name)) continue;
        if (all[i].run) all[i].run();
        else all[i].run_in(ctx);
        no_error_left(ctx);
        jem_clear_error(ctx);
        jem_reset(ctx);
    }
    close_ctx(ctx, &count, "the tests above");
    return test_report();
}

/* Returns 1 if the stored error contains `text`. Clears it. */
static inline int says(jem_ctx *ctx, const char *text) {
    int yes = strstr(jem_error(ctx), text) != NULL;
    if (!yes) printf("(the message is '%s', expected '%s')\n", jem_error(ctx), text);
    jem_clear_error(ctx);
    return yes;
}

static inline jem_ctx *isa_ctx(jem_isa isa, int threads) {
    jem_ctx_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.isa = isa;
    desc.threads = threads;
    return jem_ctx_create(&desc);
}

/* JEM_WANT_ISA=NAME, set by a caller that knows the processor: jem.h must choose this instruction
   set. If jem.h failed to detect it, all tests of it would be skipped without notice. */
static inline void check_isa(const jem_ctx *ctx) {
#if !defined(JEM_NO_SIMD) && (defined(__x86_64__) || defined(__aarch64__))
    const char *want = getenv("JEM_WANT_ISA");
    const char *isa = jem_isa_name(jem_ctx_isa(ctx));
    if (want && *want) CHECK(!strcmp(isa, want), "it chose %s, not %s", isa, want);
#else
    (void)ctx;
#endif
}

static inline jem_shape shape(int n, int c, int h, int w) {
    const jem_shape s = { n, c, h, w };
    return s;
}

/* ---- random numbers -------------------------------------------------------------------------- */

static inline float *floats(ptrdiff_t n) { return (float *)malloc((size_t)n * sizeof(float)); }

/* Returns n uniform numbers in lo..hi; to be freed. */
static inline float *random_floats(jem_rng *rng, ptrdiff_t n, float lo, float hi) {
    float *x = floats(n);
    for (ptrdiff_t i = 0; i < n; i++) x[i] = lo + (hi - lo) * jem_rng_uniform(rng);
    return x;
}

static inline jem_tensor *random_leaf(jem_ctx *ctx, jem_rng *rng, jem_shape s, float lo, float hi) {
    float *x = random_floats(rng, (ptrdiff_t)s.n * s.c * s.h * s.w, lo, hi);
    jem_tensor *t = jem_input(ctx, x, s.n, s.c, s.h, s.w);
    free(x);
    return t;
}

static inline void random_labels(jem_rng *rng, int *labels, int n, int classes) {
    for (int i = 0; i < n; i++) labels[i] = jem_rng_below(rng, classes);
}

/* Creates a net without a forward function, as owner of parameters. */
static inline jem_tensor *no_forward(jem_net *net, jem_tensor *x, int training, void *user) {
    (void)net;
    (void)training;
    (void)user;
    return x;
}
static inline jem_net *bag_create(jem_ctx *ctx) {
    return jem_net_create(ctx, no_forward, NULL, 0, 1, 1, 1, 1, 1);
}

/* Adds parameter number i of a bag, with `ndim` sizes a, b, k, k, and uniform numbers in lo..hi.
   Many parameters: a shape, a range, and what they are for. */
static inline jem_param *random_param(jem_net *bag, jem_rng *rng, int trainable, int ndim, int a,
                                      int b, int k, float lo, float hi) {
    char name[16];
    int count = 0;
    const int shape[4] = { a, b, k, k };
    for (const jem_param *p = bag->params; p; p = p->next) count++;
    snprintf(name, sizeof name, "p%d", count);
    jem_param *p = jem_net_param(bag, name, ndim, shape, trainable);
    for (ptrdiff_t i = 0; p && i < p->size; i++)
        p->value[i] = lo + (hi - lo) * jem_rng_uniform(rng);
    return p;
}

/* ---- networks and densities ------------------------------------------------------------------ */

/* Sizes of a small network; hidden: of an MLP; 0 is the default number of layers. */
typedef struct small_shape { int channels, height, width, classes, hidden; } small_shape;

static inline jem_net *small_mlp(jem_ctx *ctx, small_shape s, uint64_t seed) {
    jem_mlp_desc d = jem_mlp_desc_default();
    d.channels = s.channels;
    d.height = s.height;
    d.width = s.width;
    d.classes = s.classes;
    if (s.hidden) {
        d.layers = 1;
        d.widths[0] = s.hidden;
    }
    return jem_mlp_create(ctx, &d, seed);
}

/* A convnet of two layers with `first` and `second` channels. */
static inline jem_net *small_convnet(jem_ctx *ctx, small_shape s, int first, int second,
                                     uint64_t seed) {
    jem_convnet_desc d = jem_convnet_desc_default();
    d.channels = s.channels;
    d.height = s.height;
    d.width = s.width;
    d.classes = s.classes;
    d.layers = 2;
    d.widths[0] = first;
    d.widths[1] = second;
    return jem_convnet_create(ctx, &d, seed);
}

/* Returns log p = -|x|^2 / 2 + constant: N(0,1) in each value of x. `user` is not used. */
static inline jem_tensor *gauss(jem_ctx *ctx, jem_tensor *x, void *user) {
    (void)user;
    return jem_scale(ctx, jem_sum_image(ctx, jem_square(ctx, x)), -0.5f);
}

/* Returns log p = -|L x|^2 / 2 + constant: a Gaussian of precision L'L. `l` is the jem_param L. */
static inline jem_tensor *gauss_of(jem_ctx *ctx, jem_tensor *x, void *l) {
    return gauss(ctx, jem_linear(ctx, x, (jem_param *)l, NULL), NULL);
}

/* ---- comparison ------------------------------------------------------------------------------ */

static inline int same_bits(const float *a, const float *b, ptrdiff_t n) {
    return !memcmp(a, b, (size_t)n * sizeof *a);
}

/* Computes FNV-1a over the bits of the numbers, in any byte order; start with h = FNV_START. */
#define FNV_START 14695981039346656037u
static inline uint64_t fnv(uint64_t h, const float *x, ptrdiff_t n) {
    for (ptrdiff_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, x + i, sizeof bits);
        for (int k = 0; k < 32; k += 8) h = (h ^ (bits >> k & 255)) * 1099511628211u;
    }
    return h;
}
/* Sets a reserved text of a network, as a file does. */
static inline jem_status load_text(jem_net *net, const char *key, const char *value) {
    jem_archive *a = jem_archive_create(net->ctx);
    jem_status s = jem_net_to_archive(net, a);
    if (s == JEM_OK) s = jem_archive_set_meta(a, key, value);
    if (s == JEM_OK) s = jem_net_load(net, a);
    jem_archive_free(a);
    return s;
}

/* Creates a network whose log p(x) has smooth slopes: an MLP of 12 dimensions, a convnet of 36. */
static inline jem_net *smooth_net(jem_ctx *ctx, int conv) {
    jem_mlp_desc m = jem_mlp_desc_default();
    m.channels = conv ? 1 : 3;
    m.height = m.width = conv ? 6 : 2;
    m.classes = 3;
    m.widths[0] = 8;
    m.widths[1] = 5;
    if (!conv) return jem_mlp_create(ctx, &m, 3);
    m.layers = 2;
    return jem_convnet_create(ctx, &m, 3);
}

static inline uint64_t net_hash(const jem_net *net) {
    uint64_t h = FNV_START;
    for (const jem_param *p = net->params; p; p = p->next) h = fnv(h, p->value, p->size);
    return h;
}

/* Returns the largest |a - b|, relative to the largest |b|. */
static inline double largest_gap(const float *a, const float *b, ptrdiff_t n) {
    double worst = 0;
    double largest = 1e-30;
    for (ptrdiff_t i = 0; i < n; i++) {
        const double d = fabs((double)a[i] - (double)b[i]);
        if (!(d <= worst) && worst == worst) worst = d;     /* NaN is the largest */
        if (fabs((double)b[i]) > largest) largest = fabs((double)b[i]);
    }
    return worst / largest;
}

#endif
