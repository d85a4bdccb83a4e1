/* A model from anywhere: read, described, asked about an image, sampled from, written again. */
#define JEM_IMPLEMENTATION
#include "jem.h"
#include "archive.h"

static int finite(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (bits & 0x7f800000u) != 0x7f800000u;
}

static void use(jem_ctx *ctx, jem_net *net) {
    const ptrdiff_t size = (ptrdiff_t)net->channels * net->height * net->width;
    if (size > 4096 || jem_net_size(net) > 200000) return;     /* slow, and nothing new */
    float *x = (float *)calloc((size_t)size, sizeof *x);
    unsigned char *pixels = (unsigned char *)malloc((size_t)size);
    jem_answer a;
    FUZZ_CHECK(x && pixels);
    if (jem_classify(net, x, 1, &a) == JEM_OK) {
        FUZZ_CHECK(a.label >= 0 && a.label < net->classes && finite(a.log_density));
        FUZZ_CHECK(a.probability >= 0 && a.probability <= 1);
        FUZZ_CHECK(a.familiarity >= -1 && a.familiarity <= 1);
    }
    jem_clear_error(ctx);
    const jem_mark mark = jem_begin(ctx);
    jem_tensor *t = jem_input(ctx, x, 1, net->channels, net->height, net->width);
    jem_rng rng = jem_rng_seed(1);
    jem_sgld_desc walk = jem_sgld_desc_default();
    walk.steps = 2;
    if (jem_sgld(ctx, jem_logp, net, t, &walk, &rng) == JEM_OK && jem_read(t, x) == JEM_OK)
        jem_floats_to_pixels(net, x, 1, NULL, pixels);
    jem_end(ctx, mark);
    jem_clear_error(ctx);
    free(x);
    free(pixels);
}

/* Returns 1 if there is an error with a message just when something was not made. */
static int agrees(jem_ctx *ctx, const void *made) {
    if (made) return jem_ok(ctx);
    return !jem_ok(ctx) && *jem_error(ctx);
}

int LLVMFuzzerTestOneInput(const uint8_t *in, size_t n) {
    jem_ctx *ctx = fuzz_ctx();
    jem_archive *a = jem_archive_parse(ctx, in, n);
    jem_archive *b = NULL;
    FUZZ_CHECK(agrees(ctx, a));
    jem_net *net = NULL;
    if (a) net = jem_net_from_archive(ctx, a);
    FUZZ_CHECK(!a || agrees(ctx, net));
    jem_clear_error(ctx);
    if (net) {
        use(ctx, net);
        /* What was accepted is written, and read again, to the same bytes. */
        size_t size, again;
        b = jem_archive_create(ctx);
        void *bytes = NULL;
        if (b && jem_net_to_archive(net, b) == JEM_OK) bytes = jem_archive_to_memory(b, &size);
        if (bytes) {
            jem_archive *c = jem_archive_parse(ctx, bytes, size);
            FUZZ_CHECK(c || jem_error_status(ctx) == JEM_NO_MEMORY);
            void *more = NULL;
            if (c) more = jem_archive_to_memory(c, &again);
            FUZZ_CHECK(!more || (again == size && !memcmp(more, bytes, size)));
            jem_release(ctx, more);
            jem_archive_free(c);
        } else {
            FUZZ_CHECK(jem_error_status(ctx) == JEM_NO_MEMORY);
        }
        jem_release(ctx, bytes);
    }
    jem_archive_free(b);
    jem_net_free(net);
    jem_archive_free(a);
    fuzz_end(ctx);
    return 0;
}
