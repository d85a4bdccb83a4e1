/* The same bits in memory and in files, for any compiler and processor: fingerprints of random
   numbers, of every op with its gradients, of walks, of training, of a checkpoint's bytes, and of
   the resumed run. It is short, and C++ as well as C, because portability.sh runs it for every
   available compiler, standard and processor.
       test_portable --save FILE      also writes the checkpoint to FILE
       test_portable --resume FILE    resumes from that file, of another machine
   JEM_WANT_ISA=NAME: the instruction set that jem.h must choose (common.h). */
#define JEM_IMPLEMENTATION
#include "jem.h"
#include "tests/support/test.h"
#include "tests/support/common.h"

enum { IMAGES = 18, SIDE = 6 };                    /* a whole group of 16, and a part of one */
#ifdef __wasm__
enum { FILES = 0 };                                /* tests/support/wasm.js has none */
#else
enum { FILES = 1 };
#endif

static void same(const char *what, uint64_t got, uint64_t want) {
    CHECK(got == want, "%s: it is 0x%08x%08xu", what, (unsigned)(got >> 32), (unsigned)got);
}

static uint64_t fnv_bytes(const void *bytes, size_t size) {
    const unsigned char *p = (const unsigned char *)bytes;
    uint64_t h = FNV_START;
    for (size_t i = 0; i < size; i++) h = (h ^ p[i]) * 1099511628211u;
    return h;
}

static uint64_t fnv_tensor(uint64_t h, jem_tensor *t, int gradient) {
    if (!CHECK(t != NULL, "no tensor")) return 0;
    const ptrdiff_t n = (ptrdiff_t)t->n * t->c * t->h * t->w;
    float *x = floats(n);
    CHECK((gradient ? jem_read_grad(t, x) : jem_read(t, x)) == JEM_OK, "%s", jem_error(t->ctx));
    h = fnv(h, x, n);
    free(x);
    return h;
}

static void random_numbers(jem_ctx *ctx) {
    float x[1000];
    jem_rng rng = jem_rng_seed(1);
    jem_fill_uniform(ctx, &rng, x, 500, -1, 1);
    jem_fill_normal(ctx, &rng, x + 500, 499, 1, 2);
    x[999] = (float)jem_rng_below(&rng, 1000) + jem_rng_normal(&rng);
    same("random numbers", fnv(FNV_START, x, 1000), 0x7509129972616fc9u);
}

/* ---- every op -------------------------------------------------------------------------------- */

/* C does not say which argument comes first: parameters are made before they are used, in order. */
typedef struct pass { jem_net *bag; jem_rng rng; const int *labels; } pass;

static jem_param *param(pass *p, int ndim, int a, int b, int k) {
    return random_param(p->bag, &p->rng, 1, ndim, a, b, k, 0.1f, 0.9f);
}
static jem_tensor *norms(jem_ctx *c, jem_tensor *x, pass *p) {
    const int sizes[4] = { 1, 6, 1, 1 };
    jem_param *by[6], *at[5];
    for (int i = 0; i < 6; i++) by[i] = param(p, 1, 6, 0, 0);
    for (int i = 0; i < 3; i++)
        at[i] = random_param(p->bag, &p->rng, 0, 1, i < 2 ? 6 : 1, 0, 0, i == 1, i == 1);
    at[3] = jem_net_param(p->bag, "loc", 4, sizes, 1);
    at[4] = jem_net_param(p->bag, "scale", 4, sizes, 1);
    x = jem_batch_norm(c, x, by[0], by[1], at[0], at[1], 0.1f, 1);
    x = jem_layer_norm(c, jem_instance_norm(c, x, by[2], by[3]), by[4], by[5]);
    return jem_act_norm(c, x, at[3], at[4], at[2], 1);
}
static jem_tensor *elementwise(jem_ctx *c, jem_tensor *x, pass *p) {
    jem_tensor *y = jem_tanh(c, jem_scale(c, x, 0.7f));
    y = jem_add(c, y, jem_sigmoid(c, jem_add_constant(c, x, 0.1f)));
    y = jem_sub(c, y, jem_softplus(c, jem_clamp(c, x, -1, 1)));
    y = jem_mul(c, y, jem_exp(c, jem_scale(c, jem_square(c, jem_tanh(c, x)), -1)));
    y = jem_add(c, y, jem_log(c, jem_add_constant(c, jem_square(c, x), 1)));
    jem_tensor *bent = jem_relu(c, y);
    y = jem_add(c, bent, jem_leaky_relu(c, x, 0.2f));
    return jem_dropout(c, jem_silu(c, y), 0.25f, &p->rng);
}
/* One number per image. */
static jem_tensor *every_op(jem_ctx *c, jem_tensor *x, pass *p) {
    const jem_conv_desc same_size = { 1, 1 };
    const jem_conv_desc half = { 2, 1 };
    jem_param *w = param(p, 4, 6, 3, 3);
    jem_param *b = param(p, 1, 6, 0, 0);
    x = norms(c, jem_conv2d(c, x, w, b, same_size), p);
    x = elementwise(c, x, p);
    jem_tensor *pooled = jem_avg_pool(c, x, 2, 0);
    x = jem_conv2d(c, x, param(p, 4, 6, 6, 4), NULL, half);
    x = jem_concat(c, jem_slice(c, x, 1, 4), pooled);
    x = jem_max_pool(c, jem_upsample(c, x, 2), 3, 2);
    jem_tensor *mean = jem_linear(c, jem_global_pool(c, x), param(p, 2, 5, 10, 0), NULL);
    jem_param *v = param(p, 2, 5, 10 * x->h * x->w, 0);
    jem_param *u = param(p, 1, 5, 0, 0);
    x = jem_add(c, jem_linear(c, jem_flatten(c, x), v, u), mean);
    jem_tensor *one = jem_gather(c, jem_log_softmax(c, x), p->labels);
    one = jem_add(c, one, jem_sum_image(c, jem_square(c, jem_detach(c, x))));
    return jem_add(c, one, jem_logsumexp(c, x));
}

static void ops(jem_ctx *ctx) {
    int labels[IMAGES];
    pass p;
    p.rng = jem_rng_seed(2);
    p.bag = bag_create(ctx);
    p.labels = labels;
    random_labels(&p.rng, labels, IMAGES, 5);
    jem_tensor *x = random_leaf(ctx, &p.rng, shape(IMAGES, 3, SIDE, SIDE), -1, 1);
    jem_tensor *y = every_op(ctx, x, &p);
    jem_tensor *mean = jem_mean(ctx, y);
    CHECK(jem_backward(jem_add(ctx, mean, jem_sum(ctx, y))) == JEM_OK, "%s", jem_error(ctx));
    uint64_t h = fnv_tensor(FNV_START, y, 0);
    for (const jem_param *q = p.bag->params; q; q = q->next)
        h = fnv(fnv(h, q->value, q->size), q->grad, q->grad ? q->size : 0);
    CHECK(jem_grad(y, x) == JEM_OK, "%s", jem_error(ctx));
    same("every op", fnv_tensor(h, x, 1), 0x67997f34f6f8ca4du);
    jem_net_free(p.bag);
    jem_reset(ctx);
}

/* ---- walks, training, files ------------------------------------------------------------------ */

static jem_net *create(jem_ctx *ctx, int which) {
    jem_convnet_desc c = jem_convnet_desc_default();
    jem_wrn_desc w = jem_wrn_desc_default();
    c.channels = 3;
    c.height = c.width = SIDE;
    c.layers = 3;
    c.widths[0] = 8;
    c.widths[1] = 9;
    c.widths[2] = 13;
    w.depth = 10;
    w.widen = 1;
    w.height = w.width = SIDE;
    w.norm = JEM_NORM_BATCH;
    w.dropout = 0.1f;
    w.stem_stride = 2;                             /* a quarter of the time under an emulator */
    return which ? jem_wrn_create(ctx, &w, 7) : jem_convnet_create(ctx, &c, 7);
}

static void walks(jem_ctx *ctx) {
    jem_net *net = create(ctx, 0);
    jem_rng rng = jem_rng_seed(3);
    jem_tensor *x = random_leaf(ctx, &rng, shape(IMAGES, 3, SIDE, SIDE), -1, 1);
    jem_sgld_desc sgld = jem_sgld_desc_default();
    jem_denoise_desc denoise = jem_denoise_desc_default();
    jem_mcmc_desc mcmc = jem_mcmc_desc_default();
    float accepted[IMAGES];
    sgld.steps = 3;
    denoise.steps = 3;
    mcmc.steps = 3;
    mcmc.leapfrog = 2;
    CHECK(jem_sgld(ctx, jem_logp, net, x, &sgld, &rng) == JEM_OK &&
          jem_denoise(ctx, jem_logp, net, x, &denoise, &rng) == JEM_OK &&
          jem_mcmc(ctx, jem_logp, net, x, &mcmc, &rng, accepted) == JEM_OK, "%s", jem_error(ctx));
    same("walks", fnv(fnv_tensor(FNV_START, x, 0), accepted, IMAGES), 0x34d44b827312db55u);
    jem_reset(ctx);
    jem_net_free(net);
}

static jem_train_desc training(void) {
    jem_train_desc d = jem_train_desc_default();
    d.lr = 1e-3f;
    d.w_score = 0.5f;
    d.w_kl = 0.1f;
    d.weights.cd_class = 0.2f;
    d.weights.energy_l2 = 0.01f;
    d.sgld.steps = 1;
    d.negatives = 4;
    d.buffer_size = 20;
    d.reinit = 0.3f;
    d.optim.ema = 0.9f;
    d.optim.clip = 1;
    return d;
}
static void update(jem_trainer *tr, jem_net *net, int images, uint64_t seed) {
    int labels[IMAGES];
    jem_rng rng = jem_rng_seed(seed);
    float *x = random_floats(&rng, images * 3 * SIDE * SIDE, -1, 1);
    random_labels(&rng, labels, images, net->classes);
    CHECK(jem_train_step(tr, x, labels, images).status == JEM_OK, "%s", jem_error(net->ctx));
    free(x);
}
static jem_archive *checkpoint(jem_net *net, jem_trainer *tr) {
    jem_archive *a = jem_archive_create(net->ctx);
    CHECK(jem_net_to_archive(net, a) == JEM_OK && jem_trainer_to_archive(tr, a) == JEM_OK,
          "%s", jem_error(net->ctx));
    return a;
}
static void same_bytes(const char *what, const jem_archive *a, jem_ctx *ctx, uint64_t want) {
    size_t size = 0;
    void *bytes = jem_archive_to_memory(a, &size);
    same(what, fnv_bytes(bytes, size), want);
    jem_release(ctx, bytes);
}

/* Two updates, a checkpoint, and a third update of what was read back from it. want: fingerprints
   of the checkpoint, of the network after it, of the next checkpoint. */
static void train(jem_ctx *ctx, int which, const char *save, const char *resume,
                  const uint64_t *want) {
    const jem_train_desc d = training();
    const int n = which ? 4 : IMAGES;
    jem_net *net = create(ctx, which);
    jem_trainer *tr = jem_trainer_create(net, &d);
    update(tr, net, n, 11);
    update(tr, net, n, 12);
    jem_archive *a = checkpoint(net, tr);
    size_t size = 0;
    void *memory = jem_archive_to_memory(a, &size);
    same("a checkpoint's bytes", fnv_bytes(memory, size), want[0]);
    if (save) CHECK(jem_archive_write(a, save) == JEM_OK, "%s", jem_error(ctx));
    jem_archive_free(a);
    jem_trainer_free(tr);
    jem_net_free(net);
    a = resume ? jem_archive_read(ctx, resume) : jem_archive_parse(ctx, memory, size);
    jem_release(ctx, memory);
    net = a ? jem_net_from_archive(ctx, a) : NULL;
    tr = net ? jem_trainer_create(net, &d) : NULL;
    if (CHECK(tr && jem_trainer_from_archive(tr, a) == JEM_OK, "%s", jem_error(ctx))) {
        update(tr, net, n, 13);
        same("training goes on", net_hash(net), want[1]);
        jem_archive *again = checkpoint(net, tr);
        same_bytes("its next checkpoint", again, ctx, want[2]);
        jem_archive_free(again);
    }
    jem_archive_free(a);
    jem_trainer_free(tr);
    jem_net_free(net);
}

/* A file of PyTorch's numbers: read, and written again. */
static void files(jem_ctx *ctx) {
    jem_archive *a = jem_archive_read(ctx, "tests/support/golden.safetensors");
    if (!CHECK(a != NULL, "%s", jem_error(ctx))) return;
    uint64_t h = FNV_START;
    for (int i = 0; i < jem_archive_count(a); i++) {
        const jem_entry *e = jem_archive_at(a, i);
        if (e->dtype == JEM_DTYPE_F32) h = fnv(h, (const float *)e->data,
                                               (ptrdiff_t)(e->bytes / 4));
    }
    same("the numbers in a file", h, 0xe53b3cbfd95d1986u);
    same_bytes("a file, written again", a, ctx, 0x10e0c02c7d58ecdbu);
    jem_archive_free(a);
}

/* Of the convnet in JEM_PRECISION_EXACT, of the WRN in JEM_PRECISION_FAST. */
static const uint64_t known[2][3] = {
    { 0xa1200150cd9dd97du, 0x754f334fac909e17u, 0x3a3364fb5d6b5c69u },
    { 0x2d842a7651f3b521u, 0x76407130a9e4ec5eu, 0x9730a49ada100e12u }
};

/* 4 GB and more, where pointers have 32 bits: what would wrap to 0 bytes is refused. */
static void too_large(jem_ctx *ctx) {
    if (sizeof(void *) > 4) return;
    for (int n = 63; n < 66; n++) {
        CHECK(!jem_zeros(ctx, n, 256, 256, 256) && strstr(jem_error(ctx), "not a possible shape"),
              "%d images of 64 MB: %s", n, jem_error(ctx));
        jem_clear_error(ctx);
    }
    jem_tensor *x = jem_zeros(ctx, 1, 16, 256, 256), *y = x;           /* 64 MB each */
    for (int i = 0; i < 70; i++) {
        jem_tensor *factor = jem_tanh(ctx, jem_scale(ctx, x, (float)i));
        y = jem_mul(ctx, y, factor);
    }
    y = jem_sum_image(ctx, y);
    CHECK(y && jem_grad(y, x) == JEM_NO_MEMORY, "gigabytes of values: %s", jem_error(ctx));
    jem_clear_error(ctx);
    jem_reset(ctx);
}

int main(int argc, char **argv) {
    static const test_case all[] = {
        TEST_IN(random_numbers), TEST_IN(ops), TEST_IN(walks), TEST_IN(too_large)
    };
    jem_ctx_desc desc;
    memset(&desc, 0, sizeof desc);
    jem_ctx *ctx = jem_ctx_create(&desc);
    const char *isa = jem_isa_name(jem_ctx_isa(ctx));
    const char *option = argc == 3 ? argv[1] : "";
    const char *save = NULL;
    const char *resume = NULL;
    if (!strcmp(option, "--save")) save = argv[2];
    if (!strcmp(option, "--resume")) resume = argv[2];
    if (argc == 2) test_begin(argc, argv);
    CHECK(argc < 3 || save || resume, "usage: test_portable [NAME | --save FILE | --resume FILE]");
    check_isa(ctx);
    test_run(all, TEST_COUNT(all), ctx);
    if (test_wants("train")) train(ctx, 0, NULL, NULL, known[0]);
    if (FILES && test_wants("files")) files(ctx);
    jem_ctx_free(ctx);
    desc.precision = JEM_PRECISION_FAST;                     /* its bits are its own */
    ctx = jem_ctx_create(&desc);
    if (test_wants("train, fast")) train(ctx, 1, save, resume, known[1]);
    jem_ctx_free(ctx);
    if (test_all()) printf("on %s\n", isa);
    return test_report();
}
