/* The models in examples/models: each opens, has a description, and contains only the network; it
   rates noise as unfamiliar; a walk from noise for a class ends in that class. Of their data only
   MNIST's digits are included, so only that accuracy can be tested. */
#define JEM_IMPLEMENTATION
#include "jem.h"
#include "tools/support/pictures.h"
#include "tests/support/test.h"

enum { CLASSES = 10, EACH = 2, CHAINS = CLASSES * EACH };

typedef struct shipped {
    const char *path, *dataset, *first, *last;     /* names of the first and last class */
    int channels, side, steps, familiar;           /* familiar: minimum number of 20 */
} shipped;

static const shipped models[] = {
    { "examples/models/mnist.safetensors", "mnist", "0", "9", 1, 28, 60, 10 },
    { "examples/models/mnist-wide.safetensors", "mnist", "0", "9", 1, 28, 60, 10 },
    { "examples/models/fashion-mnist.safetensors", "fashion-mnist", "T-shirt", "ankle boot", 1, 28,
      60, 10 },
    { "examples/models/fashion-mnist-unet.safetensors", "fashion-mnist", "T-shirt", "ankle boot", 1,
      28, 60, 10 },
    { "examples/models/fashion-mnist-wide.safetensors", "fashion-mnist", "T-shirt", "ankle boot", 1,
      28, 60, 10 },
    { "examples/models/cifar10-unet.safetensors", "cifar10", "airplane", "truck", 3, 32, 60, 4 },
    { "examples/models/cifar10-wrn.safetensors", "cifar10", "airplane", "truck", 3, 32, 60, 4 },
    { "examples/models/cifar10-wide.safetensors", "cifar10", "airplane", "truck", 3, 32, 60, 4 },
    { "examples/models/cifar10-deep.safetensors", "cifar10", "airplane", "truck", 3, 32, 60, 4 },
    { "examples/models/cifar10-large.safetensors", "cifar10", "airplane", "truck", 3, 32, 60, 4 },
    { "examples/models/cifar10.safetensors", "cifar10", "airplane", "truck", 3, 32, 60,
      4 }                                          /* likelier than photographs at weight 5 */
};

static int is(const jem_net *net, const char *key, const char *value) {
    const char *text = jem_net_meta(net, key);
    return text && !strcmp(text, value);
}

static long file_size(const char *path) {
    FILE *f = fopen(path, "rb");
    long size = -1;
    if (f && !fseek(f, 0, SEEK_END)) size = ftell(f);
    if (f) fclose(f);
    return size;
}

/* Small, and nothing in it but parameters. */
static void holds(jem_net *net, const shipped *s) {
    jem_archive *a = jem_archive_read(net->ctx, s->path);
    size_t bytes = 0;
    for (int i = 0; a && i < jem_archive_count(a); i++) {
        const jem_entry *e = jem_archive_at(a, i);
        CHECK(jem_net_find(net, e->name) != NULL, "%s: %s is no parameter", s->path, e->name);
        bytes += e->bytes;
    }
    const long size = file_size(s->path);
    CHECK(bytes == (size_t)jem_net_size(net) * sizeof(float), "%s: %.0f bytes of arrays", s->path,
          (double)bytes);
    CHECK(size > 100000 && size < 8000000, "%s: %ld bytes", s->path, size);
    jem_archive_free(a);
}

/* From noise towards each class: noise is not familiar, what comes out is what was asked for. */
static void dreams(jem_net *net, const shipped *s) {
    const ptrdiff_t size = (ptrdiff_t)s->channels * s->side * s->side;
    float *x = (float *)malloc((size_t)(CHAINS * size) * sizeof *x);
    jem_rng rng = jem_rng_seed(1);
    jem_answer a[CHAINS];
    int labels[CHAINS];
    int familiar = 0;
    int right = 0;
    for (int i = 0; i < CHAINS; i++) labels[i] = i / EACH;
    jem_fill_uniform(net->ctx, &rng, x, CHAINS * size, -1, 1);
    CHECK(jem_classify(net, x, CHAINS, a) == JEM_OK, "%s", jem_error(net->ctx));
    for (int i = 0; i < CHAINS; i++) familiar += !(a[i].familiarity < .01f);
    CHECK(familiar == 0, "%s finds %d of %d noises familiar", s->path, familiar, CHAINS);

    jem_tensor *t = jem_input(net->ctx, x, CHAINS, s->channels, s->side, s->side);
    jem_query query;
    query.net = net;
    query.labels = labels;
    query.weight = 1;
    jem_sgld_desc walk = jem_sgld_desc_default();
    jem_generate_desc fresh = jem_generate_desc_default();
    walk.steps = fresh.walk.steps = s->steps;
    walk.clamp_lo = -2;
    walk.clamp_hi = 2;
    fresh.mean = net->mean;
    if (net->noise_hi > 0) {                       /* it has learned a score */
        query.weight = 5;
        jem_generate(net->ctx, jem_logp_guided, &query, t, &fresh, &rng);
    } else jem_sgld(net->ctx, jem_logp_guided, &query, t, &walk, &rng);
    CHECK(jem_read(t, x) == JEM_OK, "%s", jem_error(net->ctx));
    for (ptrdiff_t i = 0; i < CHAINS * size; i++) x[i] = fminf(1, fmaxf(-1, x[i])); /* a picture */
    CHECK(jem_classify(net, x, CHAINS, a) == JEM_OK, "%s", jem_error(net->ctx));
    familiar = 0;
    for (int i = 0; i < CHAINS; i++) {
        right += a[i].label == labels[i];
        familiar += a[i].familiarity >= .01f;
    }
    printf("%s: after %d steps from noise %d of %d are what was asked for, %d not strange\n",
           s->path, s->steps, right, CHAINS, familiar);
    CHECK(right >= CHAINS * 9 / 10, "%s: %d of %d", s->path, right, CHAINS);
    CHECK(familiar >= s->familiar, "%s: %d of %d", s->path, familiar, CHAINS);
    free(x);
}

/* The 1,000 held-out digits of the sheet. */
static void knows_digits(jem_net *net) {
    digits d;
    if (!CHECK(digits_load(DIGITS_PATH, &d), "%s", DIGITS_PATH)) return;
    jem_answer *a = (jem_answer *)malloc(DIGITS_TEST * sizeof *a);
    int right = 0;
    int familiar = 0;
    CHECK(a && jem_classify(net, d.test_x, DIGITS_TEST, a) == JEM_OK, "%s", jem_error(net->ctx));
    for (int i = 0; i < DIGITS_TEST; i++) {
        right += a[i].label == d.test_y[i];
        familiar += a[i].familiarity >= .01f;
    }
    printf("mnist: %d of %d digits right, %d familiar\n", right, DIGITS_TEST, familiar);
    CHECK(abs(right - 995) <= 1, "%d of %d digits", right, DIGITS_TEST);
    CHECK(familiar >= 970, "%d of %d familiar", familiar, DIGITS_TEST);
    for (int i = 0; i < DIGITS_TEST * DIGIT_PIXELS; i++) d.test_x[i] = -d.test_x[i];
    CHECK(jem_classify(net, d.test_x, DIGITS_TEST, a) == JEM_OK, "%s", jem_error(net->ctx));
    familiar = 0;
    for (int i = 0; i < DIGITS_TEST; i++) familiar += a[i].familiarity >= .01f;
    CHECK(familiar <= 10, "black on white: %d of %d familiar", familiar, DIGITS_TEST);
    free(a);
    digits_free(&d);
}

static void test_model(const shipped *s) {
    jem_ctx *ctx = jem_ctx_create(NULL);
    jem_net *net = jem_load(ctx, s->path);
    if (CHECK(net != NULL, "%s", jem_error(ctx))) {
        CHECK(net->channels == s->channels && net->height == s->side && net->width == s->side &&
              net->classes == CLASSES, "%s: (%d,%d,%d)", s->path, net->channels, net->height,
              net->width);
        CHECK(is(net, "class.0", s->first) && is(net, "class.9", s->last) &&
              is(net, "train.dataset", s->dataset), "%s: not of %s", s->path, s->dataset);
        const char *data = jem_net_meta(net, "train.data");    /* a folder here is not there */
        CHECK(!data || !strcmp(data, "data"), "%s: its data are in %s", s->path, data);
        holds(net, s);
        dreams(net, s);
        if (s == models) knows_digits(net);
    }
    CHECK(jem_ok(ctx), "%s", jem_error(ctx));
    jem_net_free(net);
    jem_ctx_free(ctx);
}

int main(int argc, char **argv) {
    test_begin(argc, argv);
    for (size_t i = 0; i < sizeof models / sizeof *models; i++)
        if (test_wants(models[i].path)) test_model(&models[i]);
    return test_report();
}
