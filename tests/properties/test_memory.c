/* The memory of each network, measured by a counting allocator, equals the context's report, and
   the table in tests/README.md: the test reads the table and checks each figure.
       build/test_memory --table    prints that table */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What jem.h asks of the C library: nothing but jem__alloc may, and that only for who has set no
   allocator. (What the library takes for itself is not seen: glibc's qsort does, from 1 KB.) */
static long bypassed;
#define malloc(bytes) (bypassed++, (malloc)(bytes))
#define calloc(n, bytes) (bypassed++, (calloc)(n, bytes))
#define realloc(p, bytes) (bypassed++, (realloc)(p, bytes))
#define JEM_IMPLEMENTATION
#include "jem.h"
#undef malloc
#undef calloc
#undef realloc
#include "tests/support/test.h"
#include "tests/support/common.h"

/* malloc does not report sizes, so the size is stored before each block. */
typedef struct meter { size_t bytes, peak; } meter;
static void *meter_allocate(void *user, size_t bytes) {
    meter *m = (meter *)user;
    char *p = (char *)malloc(bytes + 64);
    if (!p) return NULL;
    memcpy(p, &bytes, sizeof bytes);
    m->bytes += bytes;
    if (m->bytes > m->peak) m->peak = m->bytes;
    return p + 64;
}
static void meter_release(void *user, void *memory) {
    size_t bytes = 0;
    if (!memory) return;
    memcpy(&bytes, (char *)memory - 64, sizeof bytes);
    ((meter *)user)->bytes -= bytes;
    free((char *)memory - 64);
}

/* Creates a context of one thread whose memory is measured. */
static jem_ctx *metered(meter *m) {
    jem_ctx_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.allocate = meter_allocate;
    desc.release = meter_release;
    desc.user = m;
    desc.threads = 1;
    return jem_ctx_create(&desc);
}

enum { CREATE, ONE, BATCH, CHAINS, UPDATE, USES, IMAGES = 64 };
static const char *const use_name[USES] = {
    "create", "classify 1", "classify 64", "SGLD, 64 chains", "update"
};

static jem_net *network(jem_ctx *ctx, const char *name) {
    jem_wrn_desc d = jem_wrn_desc_default();
    d.depth = 16;
    d.widen = 2;
    if (!strcmp(name, "WRN-16-2")) return jem_wrn_create(ctx, &d, 1);
    char path[96];
    snprintf(path, sizeof path, "examples/models/%s.safetensors", name);
    return jem_load(ctx, path);
}

static jem_status use(jem_net *net, int what, float *x, int *labels) {
    jem_answer answers[IMAGES];
    jem_ctx *ctx = net->ctx;
    if (what == ONE) return jem_classify(net, x, 1, answers);
    if (what == BATCH) return jem_classify(net, x, IMAGES, answers);
    if (what == CHAINS) {
        jem_sgld_desc walk = jem_sgld_desc_default();
        jem_tensor *t = jem_input(ctx, x, IMAGES, net->channels, net->height, net->width);
        walk.steps = 1;                            /* the others need what the first does */
        const jem_status s = jem_sgld(ctx, jem_logp, net, t, &walk, NULL);
        jem_reset(ctx);
        return s;
    }
    jem_train_desc d = jem_train_desc_default();
    d.sgld.steps = 1;
    d.buffer_size = IMAGES;
    jem_trainer *tr = jem_trainer_create(net, &d);
    const jem_status s = tr ? jem_train_step(tr, x, labels, IMAGES).status : JEM_NO_MEMORY;
    jem_trainer_free(tr);
    return s;
}

/* Of what is not measured, all that makes something. */
static void other_uses(jem_net *net, float *x, int *labels) {
    jem_ctx *ctx = net->ctx;
    jem_trainer *tr = jem_trainer_create(net, NULL);
    jem_archive *a = jem_archive_create(ctx);
    jem_archive *b = NULL;
    size_t size = 0;
    CHECK(jem_calibrate(net, x, IMAGES, JEM_AUTO) == JEM_OK &&
          jem_accuracy(net, x, labels, IMAGES) >= 0 &&
          jem_fit_temperature(net, x, labels, IMAGES) > 0 &&
          jem_net_to_archive(net, a) == JEM_OK && jem_trainer_to_archive(tr, a) == JEM_OK,
          "%s", jem_error(ctx));
    void *bytes = jem_archive_to_memory(a, &size);
    b = jem_archive_parse(ctx, bytes, size);
    CHECK(b && jem_net_load(net, b) == JEM_OK && jem_trainer_from_archive(tr, b) == JEM_OK, "%s",
          jem_error(ctx));
    jem_release(ctx, bytes);
    jem_archive_free(a);
    jem_archive_free(b);
    jem_trainer_free(tr);
}

static void test_bypass(void) {
    meter m = { 0, 0 };
    CHECK(bypassed == 0, "%ld calls of malloc, calloc or realloc beside the allocator", bypassed);
    jem_ctx *ctx = metered(&m);
    jem_net *net = network(ctx, "mnist");
    if (CHECK(net != NULL, "%s", jem_error(ctx))) {
        jem_rng rng = jem_rng_seed(2);
        int labels[IMAGES];
        float *x = random_floats(&rng, (ptrdiff_t)IMAGES * 784, -1, 1);
        random_labels(&rng, labels, IMAGES, net->classes);
        other_uses(net, x, labels);
        free(x);
    }
    jem_net_free(net);
    jem_ctx_free(ctx);
    CHECK(bypassed == 0 && m.bytes == 0, "%ld calls, and %.0f bytes leak", bypassed,
          (double)m.bytes);
    jem_ctx_free(jem_ctx_create(NULL));
    CHECK(bypassed > 0, "without an allocator it is calloc");
}

/* The most that is ever held, in a context of its own for each use. */
static void measure(const char *name, double mb[USES]) {
    for (int what = 0; what < USES; what++) {
        meter m = { 0, 0 };
        jem_ctx *ctx = metered(&m);
        jem_net *net = network(ctx, name);
        if (!CHECK(net != NULL, "%s: %s", name, jem_error(ctx))) { jem_ctx_free(ctx); return; }
        jem_rng rng = jem_rng_seed(1);
        int labels[IMAGES];
        float *x = random_floats(&rng, (ptrdiff_t)IMAGES * net->channels * net->height * net->width,
                                 -1, 1);
        random_labels(&rng, labels, IMAGES, net->classes);
        if (what != CREATE)
            CHECK(use(net, what, x, labels) == JEM_OK, "%s, %s: %s", name, use_name[what],
                  jem_error(ctx));
        CHECK(jem_memory(ctx).bytes == m.bytes && jem_memory(ctx).peak == m.peak,
              "%s, %s: the context says %.0f and %.0f bytes, the allocator %.0f and %.0f", name,
              use_name[what], (double)jem_memory(ctx).bytes, (double)jem_memory(ctx).peak,
              (double)m.bytes, (double)m.peak);
        mb[what] = (double)m.peak / 1e6;
        free(x);
        const size_t before = jem_memory(ctx).bytes;
        jem_reset(ctx);
        jem_trim(ctx);
        jem_trim(ctx);
        CHECK(jem_memory(ctx).bytes == m.bytes && jem_memory(ctx).peak == m.bytes &&
              m.bytes <= before && (what != UPDATE || m.bytes < before),
              "%s, %s: trimmed from %.0f to %.0f bytes", name, use_name[what], (double)before,
              (double)m.bytes);
        CHECK(jem_zeros(ctx, 1, 1, 1, 1) != NULL, "%s", jem_error(ctx));
        jem_net_free(net);
        jem_reset(ctx);
        jem_trim(ctx);
        CHECK(m.bytes < 1 << 20, "%s, %s: the whole tape is freed, %.0f bytes remain", name,
              use_name[what], (double)m.bytes);
        jem_ctx_free(ctx);
        CHECK(m.bytes == 0, "%s, %s: %.0f bytes leak", name, use_name[what], (double)m.bytes);
    }
}

/* Returns the most MB that a step of SGLD with n chains holds, besides their images. */
static double step_mb(int n) {
    meter m = { 0, 0 };
    jem_ctx *ctx = metered(&m);
    jem_net *net = network(ctx, "mnist");
    jem_sgld_desc walk = jem_sgld_desc_default();
    walk.steps = 1;
    jem_tensor *x = jem_zeros(ctx, n, 1, 28, 28);
    CHECK(jem_sgld(ctx, jem_logp, net, x, &walk, NULL) == JEM_OK, "%s", jem_error(ctx));
    jem_net_free(net);
    jem_ctx_free(ctx);
    return ((double)m.peak - (double)(n + 15) * 784 * 2 * sizeof(float)) / 1e6;
}

/* Of any number of chains, 16 pass through the network at a time, also if some are left over. */
static void test_many_chains(void) {
    printf("many chains take hardly more memory than 64\n");
    const double usual = step_mb(64);
    static const int counts[] = { 65, 69, 256, 257, 261, 1009 };
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        const double mb = step_mb(counts[i]);
        CHECK(mb < 1.5 * usual, "%d chains: %.1f MB, 64 take %.1f", counts[i], mb, usual);
    }
}

/* Batches of all sizes up to BATCHES, one after the other, take hardly more memory than the one
   that needs most; after a few rounds nothing is allocated. */
enum { BATCHES = 40 };
static float batch_images[BATCHES * 784];

/* Returns the most MB held by batches from `first` to `last`, in four rounds, the last two in other
   orders. */
static double batches_mb(int first, int last) {
    meter m = { 0, 0 };
    jem_ctx *ctx = metered(&m);
    jem_net *net = network(ctx, "mnist");
    jem_answer answers[BATCHES];
    size_t allocations = 0;
    const int count = last - first + 1;
    for (int round = 0; round < 4; round++) {
        allocations = jem_memory(ctx).allocations;
        for (int k = 0; k < count; k++) {
            const int n = first + (round < 2 ? k : round * 7 * k % count);
            CHECK(jem_classify(net, batch_images, n, answers) == JEM_OK, "%s", jem_error(ctx));
        }
    }
    CHECK(jem_memory(ctx).allocations == allocations, "the last round allocates");
    jem_net_free(net);
    jem_ctx_free(ctx);
    return (double)m.peak / 1e6;
}
static void test_batch_sizes(void) {
    double most = 0;
    for (int n = 1; n <= BATCHES; n++) {
        const double alone = batches_mb(n, n);
        if (alone > most) most = alone;
    }
    const double all = batches_mb(1, BATCHES);
    printf("batches of 1 to %d images: the largest takes %.1f MB, all sizes %.1f\n", BATCHES, most,
           all);
    CHECK(all < 1.2 * most, "all take %.1f MB, the largest alone %.1f", all, most);
}

static const char *const names[] = {
    "mnist", "mnist-plain", "fashion-mnist", "cifar10", "WRN-16-2"
};

/* Row `| NAME | 0.7 | ..` of the page. */
static int promised(const char *name, double mb[USES]) {
    char line[256], wanted[64];
    int found = 0;
    FILE *f = fopen("tests/README.md", "r");
    snprintf(wanted, sizeof wanted, "| %s |", name);
    while (f && !found && fgets(line, sizeof line, f))
        if (!strncmp(line, wanted, strlen(wanted)))
            found = sscanf(line + strlen(wanted), "%lf | %lf | %lf | %lf | %lf", mb, mb + 1, mb + 2,
                           mb + 3, mb + 4) == USES;
    if (f) fclose(f);
    return found;
}

static void print_row(const char *network_name, const double *mb) {
    printf("| %s |", network_name);
    for (int k = 0; k < USES; k++) printf(" %.1f |", mb[k]);
    printf("\n");
}

static void check_row(const char *network_name, const double *mb) {
    double most[USES];
    if (!CHECK(promised(network_name, most), "tests/README.md has no row for %s", network_name))
        return;
    for (int k = 0; k < USES; k++)                 /* the page has the most of any registers */
        CHECK(mb[k] < most[k] + 0.05 && mb[k] > most[k] * 0.5 - 0.05,
              "%s, %s: %.2f MB, %.1f are promised", network_name, use_name[k], mb[k], most[k]);
}

int main(int argc, char **argv) {
    const int table = argc > 1 && !strcmp(argv[1], "--table");
    if (!table) test_begin(argc, argv);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        double mb[USES] = { 0, 0, 0, 0, 0 };
        if (!table && !test_wants(names[i])) continue;
        measure(names[i], mb);
        if (table) print_row(names[i], mb);
        else check_row(names[i], mb);
    }
    if (!table && test_wants("test_many_chains")) test_many_chains();
    if (!table && test_wants("test_batch_sizes")) test_batch_sizes();
    if (!table && test_wants("test_bypass")) test_bypass();
    return test_report();
}
