/* User extensions of the library: a term of the loss, and networks with constructors for files. */
#define JEM_IMPLEMENTATION
#include "jem.h"
#include "tests/support/test.h"
#include "tests/support/common.h"

enum { PIXELS = 6, CLASSES = 3, HIDDEN = 8, BATCH = 16, MANY = 64 };

/* ---- a custom network ------------------------------------------------------------------------ */

typedef struct own { jem_layer in, out; } own;

static jem_tensor *own_forward(jem_net *net, jem_tensor *x, int training, void *user) {
    const own *o = (const own *)user;
    return jem_apply(&o->out, jem_tanh(net->ctx, jem_apply(&o->in, x, training)), training);
}

static jem_net *own_create(jem_ctx *ctx, int hidden, uint64_t seed) {
    char text[16];
    jem_net *net = jem_net_create(ctx, own_forward, NULL, sizeof(own), PIXELS, 1, 1, CLASSES, seed);
    if (!net) return NULL;
    own *o = (own *)net->user;
    o->in = jem_linear_layer(net, "in", PIXELS, hidden);
    o->out = jem_linear_layer(net, "out", hidden, CLASSES);
    snprintf(text, sizeof text, "%d", hidden);
    jem_net_set_kind(net, "own");
    jem_net_set_meta(net, "hidden", text);
    return net;
}

/* ---- a term of the loss ---------------------------------------------------------------------- */

/* What the term saw, and how it is to behave. */
typedef struct term_notes {
    int calls, logits, labels, sample, apart;
    int wrong;                                     /* 1: NULL; 2: a number per image; 3: an error;
                                                      4: too large */
    float noise;                                   /* std of noise from in->rng on the logits */
} term_notes;

/* Mean of (f(x)[0] - f(x)[1])^2. */
static jem_tensor *gap_of(jem_ctx *ctx, jem_tensor *logits) {
    jem_tensor *first = jem_slice(ctx, logits, 0, 1);
    jem_tensor *second = jem_slice(ctx, logits, 1, 1);
    return jem_square(ctx, jem_sub(ctx, first, second));
}
static jem_tensor *gap_term(const jem_term_inputs *in, void *user) {
    term_notes *n = (term_notes *)user;
    jem_ctx *ctx = in->net->ctx;
    n->calls++;
    n->logits += in->logits != NULL;
    n->labels += in->labels != NULL;
    n->sample += in->sample != NULL;
    n->apart += in->x_data != in->x;
    if (n->wrong == 1) return NULL;
    if (n->wrong == 2) return gap_of(ctx, in->logits);
    if (n->wrong == 3) {
        jem_fail(ctx, JEM_BAD_ARGUMENT, "the term's own error");
        return NULL;
    }
    jem_tensor *logits = in->logits;
    if (!logits) logits = jem_forward(in->net, in->x_data, 1);
    if (n->noise > 0) {
        float noise[BATCH * CLASSES];
        jem_fill_normal(ctx, in->rng, noise, BATCH * CLASSES, 0, n->noise);
        logits = jem_add(ctx, logits, jem_input(ctx, noise, BATCH, CLASSES, 1, 1));
    }
    jem_tensor *mean = jem_mean(ctx, gap_of(ctx, logits));
    return n->wrong == 4 ? jem_scale(ctx, mean, 1e30f) : mean;
}
/* The same from images alone, for the gradient's checker: a number per image. */
static jem_tensor *gap_function(jem_ctx *ctx, jem_tensor *x, void *user) {
    return gap_of(ctx, jem_forward((jem_net *)user, x, 1));
}

static jem_train_desc term_desc(term_notes *n, float weight) {
    jem_train_desc d = jem_train_desc_default();
    d.lr = 1e-2f;
    d.data_noise = 0;
    d.weights.cd = 0;
    d.w_term = weight;
    d.term = gap_term;
    d.term_user = n;
    return d;
}

static void batch(jem_rng *rng, float *x, int *y) {
    for (int i = 0; i < BATCH * PIXELS; i++) x[i] = 2 * jem_rng_uniform(rng) - 1;
    random_labels(rng, y, BATCH, CLASSES);
}

/* Alone in the loss, its gradient is that of the tape, which the checker checks. */
static void test_gradient(jem_ctx *ctx) {
    printf("a term of the loss: its gradient\n");
    float x[BATCH * PIXELS];
    int y[BATCH];
    term_notes n = { 0, 0, 0, 0, 0, 0, 0 };
    jem_rng rng = jem_rng_seed(1);
    jem_net *net = own_create(ctx, HIDDEN, 2);
    batch(&rng, x, y);
    for (jem_param *p = net->params; p; p = p->next) {
        jem_tensor *leaf = jem_input(ctx, x, BATCH, PIXELS, 1, 1);
        const float gap = jem_check_gradient(ctx, gap_function, net, leaf, p, 0.02f);
        CHECK(gap >= 0 && gap < 1e-3f, "%s: %g", p->name, (double)gap);
        jem_reset(ctx);
    }
    jem_zero_grad(net);
    jem_tensor *leaf = jem_input(ctx, x, BATCH, PIXELS, 1, 1);
    jem_tensor *mean = jem_mean(ctx, gap_function(ctx, leaf, net));
    CHECK(jem_backward(mean) == JEM_OK, "%s", jem_error(ctx));
    const float value = jem_item(mean);
    float *grad = NULL;
    ptrdiff_t size = jem_net_size(net);
    ptrdiff_t at = 0;
    grad = (float *)malloc((size_t)size * sizeof *grad);
    for (jem_param *p = net->params; p; at += p->size, p = p->next)
        memcpy(grad + at, p->grad, (size_t)p->size * sizeof *grad);
    jem_reset(ctx);

    jem_train_desc d = term_desc(&n, 2);
    d.weights.ce = 0;
    jem_trainer *tr = jem_trainer_create(net, &d);
    const jem_stats s = jem_train_step(tr, x, y, BATCH);
    CHECK(s.status == JEM_OK && s.term == value && s.loss == 2 * value, "%s: %g, %g, not %g",
          jem_error(ctx), (double)s.term, (double)s.loss, (double)value);
    int different = 0;
    at = 0;
    for (jem_param *p = net->params; p; at += p->size, p = p->next)
        for (ptrdiff_t i = 0; i < p->size; i++) different += p->grad[i] != 2 * grad[at + i];
    CHECK(different == 0, "%d of %ld gradients", different, (long)size);
    free(grad);
    jem_trainer_free(tr);
    jem_net_free(net);
}

/* What the term gets, beside the other terms; and that the loss is their sum. */
static void test_beside(jem_ctx *ctx) {
    printf("a term of the loss: beside the others\n");
    float x[BATCH * PIXELS], apart[BATCH * PIXELS];
    int y[BATCH];
    term_notes n = { 0, 0, 0, 0, 0, 0, 0 };
    jem_rng rng = jem_rng_seed(3);
    jem_net *net = own_create(ctx, HIDDEN, 4);
    jem_train_desc d = term_desc(&n, 0.5f);
    d.weights.cd = 1;
    d.buffer_size = 64;
    d.negatives = BATCH;
    jem_trainer *tr = jem_trainer_create(net, &d);
    batch(&rng, apart, y);
    batch(&rng, x, y);
    jem_stats s = jem_train_step(tr, x, y, BATCH);
    CHECK(s.status == JEM_OK, "%s", jem_error(ctx));
    CHECK_CLOSE(s.loss, s.ce + s.cd + 0.5f * s.term, 1e-5, "the sum of the terms");
    CHECK(n.calls == 1 && n.logits == 1 && n.labels == 1 && n.sample == 1 && n.apart == 0,
          "%d calls, %d logits, %d labels, %d samples, %d apart", n.calls, n.logits, n.labels,
          n.sample, n.apart);
    s = jem_train_step_semi(tr, x, y, BATCH, apart, BATCH);
    CHECK(s.status == JEM_OK && n.apart == 1, "%s: %d apart", jem_error(ctx), n.apart);
    s = jem_train_step_semi(tr, NULL, NULL, 0, apart, BATCH);
    CHECK(s.status == JEM_OK && n.calls == 3 && n.logits == 2 && n.labels == 2,
          "%s: without labels %d calls, %d logits, %d labels", jem_error(ctx), n.calls, n.logits,
          n.labels);
    jem_trainer_free(tr);
    jem_net_free(net);
}

/* Two runs, one of which is saved and resumed: the same bits, as the noise is the trainer's. */
static void test_resumed(jem_ctx *ctx) {
    printf("a term of the loss: in a run that is resumed\n");
    float x[BATCH * PIXELS];
    int y[BATCH];
    uint64_t hash[2];
    for (int resumed = 0; resumed < 2; resumed++) {
        term_notes n = { 0, 0, 0, 0, 0, 0, 0.1f };
        jem_rng rng = jem_rng_seed(5);
        jem_net *net = own_create(ctx, HIDDEN, 6);
        const jem_train_desc d = term_desc(&n, 1);
        jem_trainer *tr = jem_trainer_create(net, &d);
        for (int i = 0; i < 10; i++) {
            if (resumed && i == 5) {
                size_t size;
                jem_archive *a = jem_archive_create(ctx);
                jem_net_to_archive(net, a);
                jem_trainer_to_archive(tr, a);
                void *bytes = jem_archive_to_memory(a, &size);
                jem_archive_free(a);
                jem_trainer_free(tr);
                jem_net_free(net);
                net = own_create(ctx, HIDDEN, 7);
                tr = jem_trainer_create(net, &d);
                a = jem_archive_parse(ctx, bytes, size);
                CHECK(jem_net_load(net, a) == JEM_OK && jem_trainer_from_archive(tr, a) == JEM_OK,
                      "%s", jem_error(ctx));
                jem_archive_free(a);
                jem_release(ctx, bytes);
            }
            batch(&rng, x, y);
            CHECK(jem_train_step(tr, x, y, BATCH).status == JEM_OK, "%s", jem_error(ctx));
        }
        hash[resumed] = net_hash(net);
        jem_trainer_free(tr);
        jem_net_free(net);
    }
    CHECK(hash[0] == hash[1], "a resumed run has the same bits");
}

static void test_wrong_terms(jem_ctx *ctx) {
    printf("a term of the loss: what is refused\n");
    float x[BATCH * PIXELS];
    int y[BATCH];
    term_notes n = { 0, 0, 0, 0, 0, 0, 0 };
    jem_rng rng = jem_rng_seed(8);
    batch(&rng, x, y);
    jem_net *net = own_create(ctx, HIDDEN, 9);
    const uint64_t before = net_hash(net);
    jem_train_desc d = term_desc(&n, 1);
    d.term = NULL;
    CHECK(!jem_trainer_create(net, &d) && says(ctx, "w_term = 1, but term is NULL"), "no function");
    const float wrong[3] = { -1, NAN, INFINITY };
    for (int i = 0; i < 3; i++) {
        d = term_desc(&n, wrong[i]);
        CHECK(!jem_trainer_create(net, &d) && says(ctx, "w_term"), "weight %g", (double)wrong[i]);
    }
    const char *const errors[4] = {
        "returned NULL, not one number", "returned (16,1,1,1), not one number",
        "the term's own error", "diverged at update 0"
    };
    d = term_desc(&n, 1);
    for (n.wrong = 1; n.wrong <= 4; n.wrong++) {
        jem_trainer *tr = jem_trainer_create(net, &d);
        const jem_stats s = jem_train_step(tr, x, y, BATCH);
        CHECK(s.status != JEM_OK && says(ctx, errors[n.wrong - 1]), "wrong in way %d", n.wrong);
        CHECK(net_hash(net) == before, "the parameters changed");
        jem_trainer_free(tr);
    }
    d = term_desc(&n, 0);
    CHECK(!jem_trainer_create(net, &d) && says(ctx, "needs a weight"), "a forgotten weight");
    jem_net_free(net);
}

/* ---- files ----------------------------------------------------------------------------------- */

/* What the constructor is to do. */
typedef struct construct_notes { int calls, wrong; } construct_notes;
enum { RIGHT, MAKES_NOTHING, FAILS, OTHER_CLASSES, OTHER_CTX, FAILS_LATE, NO_LAYERS,
       TRIES_A_FILE, FORGETS_ITS_ERROR, REMOVES_ITSELF };
static jem_ctx *other;

static jem_net *own_construct(jem_ctx *ctx, const jem_archive *a, void *user) {
    construct_notes *n = (construct_notes *)user;
    const char *text = jem_archive_meta(a, "hidden");
    n->calls++;
    if (n->wrong == REMOVES_ITSELF) jem_register_net(ctx, "own", NULL, NULL);
    if (n->wrong == TRIES_A_FILE || n->wrong == FORGETS_ITS_ERROR) {
        jem_net_free(jem_load(ctx, "build/no_such_file.safetensors"));
        jem_clear_error(ctx);
    }
    if (n->wrong == FORGETS_ITS_ERROR) return NULL;
    if (n->wrong == MAKES_NOTHING || n->wrong == REMOVES_ITSELF) return NULL;
    if (n->wrong == OTHER_CLASSES) return bag_create(ctx);
    if (n->wrong == OTHER_CTX) return own_create(other, HIDDEN, 1);
    if (n->wrong == FAILS || !text || atoi(text) < 1) {
        jem_fail(ctx, JEM_BAD_FILE, "hidden is not a number above 0");
        return NULL;
    }
    if (n->wrong == NO_LAYERS)
        return jem_net_create(ctx, own_forward, NULL, sizeof(own), PIXELS, 1, 1, CLASSES, 1);
    jem_net *net = own_create(ctx, atoi(text), 1);
    if (n->wrong == FAILS_LATE) jem_fail(ctx, JEM_BAD_FILE, "too late");
    return net;
}

/* Checks that a network without features can be calibrated, and that its file keeps that. */
static void check_calibrated(jem_net *net, const float *x, const char *path, jem_rng *rng) {
    jem_ctx *ctx = net->ctx;
    float many[MANY * PIXELS];
    jem_answer known[BATCH];
    jem_answer loaded[BATCH];
    jem_fill_normal(ctx, rng, many, MANY * PIXELS, 0, 1);
    CHECK(jem_calibrate(net, many, MANY, JEM_AUTO) == JEM_OK && jem_calibrated(net) >= 0, "%s",
          jem_error(ctx));
    CHECK(jem_classify(net, x, BATCH, known) == JEM_OK && jem_save(net, path) == JEM_OK, "%s",
          jem_error(ctx));
    jem_net *again = jem_load(ctx, path);
    CHECK(again && jem_calibrated(again) >= 0 && jem_classify(again, x, BATCH, loaded) == JEM_OK,
          "%s", jem_error(ctx));
    for (int i = 0; again && i < BATCH; i++)
        CHECK(known[i].familiarity >= 0 && known[i].familiarity == loaded[i].familiarity,
              "image %d: %g, loaded %g", i, (double)known[i].familiarity,
              (double)loaded[i].familiarity);
    jem_net_free(again);
}

/* Opens a file with a constructor that is wrong in every way, or removes itself. */
static void check_constructors(jem_ctx *ctx, const char *path, construct_notes *n) {
    const char *const errors[] = { "", "returned no network", "hidden is not",
        "images (1,1,1) and 1 classes; the file has (6,1,1) and 3", "of another context",
        "too late" };
    for (n->wrong = MAKES_NOTHING; n->wrong <= FAILS_LATE; n->wrong++)
        CHECK(!jem_load(ctx, path) && says(ctx, errors[n->wrong]), "wrong in way %d", n->wrong);
    n->wrong = NO_LAYERS;
    jem_net *again = jem_load(ctx, path);
    CHECK(again != NULL, "it takes what it has: %s", jem_error(ctx));
    jem_net_free(again);
    n->wrong = TRIES_A_FILE;                       /* an error that it has cleared is none */
    again = jem_load(ctx, path);
    CHECK(again && jem_ok(ctx), "a missing file: '%s'", jem_error(ctx));
    jem_net_free(again);
    n->wrong = FORGETS_ITS_ERROR;
    CHECK(!jem_load(ctx, path) && says(ctx, "returned no network"), "without a message");
    n->wrong = REMOVES_ITSELF;                     /* the message must not read the freed kind */
    CHECK(!jem_load(ctx, path) && says(ctx, "\"own\" returned no network"), "%s", jem_error(ctx));
    CHECK(!jem_load(ctx, path) && says(ctx, "jem_register_net"), "no longer registered");
    CHECK(jem_register_net(ctx, "own", NULL, NULL) == JEM_OK, "removed twice");
}

static void test_files(jem_ctx *ctx) {
    printf("a custom network, opened from a file\n");
    const char *path = "build/test_own.safetensors";
    float x[BATCH * PIXELS], f[BATCH * CLASSES], g[BATCH * CLASSES];
    int y[BATCH];
    construct_notes n = { 0, RIGHT };
    jem_rng rng = jem_rng_seed(11);
    batch(&rng, x, y);
    jem_net *net = own_create(ctx, 5, 12);
    net->scale = 3;
    jem_logits(net, x, BATCH, f);
    CHECK(jem_save(net, path) == JEM_OK, "%s", jem_error(ctx));
    CHECK(!jem_load(ctx, path) && says(ctx, "jem_register_net"), "not registered yet");
    CHECK(jem_register_net(ctx, "own", own_construct, NULL) == JEM_OK, "%s", jem_error(ctx));
    CHECK(jem_register_net(ctx, "other", own_construct, NULL) == JEM_OK, "%s", jem_error(ctx));
    CHECK(jem_register_net(ctx, "own", own_construct, &n) == JEM_OK, "%s", jem_error(ctx));
    jem_net *again = jem_load(ctx, path);
    CHECK(again && n.calls == 1, "%s", jem_error(ctx));
    if (again) {
        jem_logits(again, x, BATCH, g);
        CHECK(same_bits(f, g, BATCH * CLASSES) && again->scale == 3, "other numbers");
        CHECK(!strcmp(jem_net_meta(again, "jem.net"), "own") &&
              !strcmp(jem_net_meta(again, "hidden"), "5"), "its texts");
        CHECK(jem_save(again, path) == JEM_OK, "%s", jem_error(ctx));
        jem_net_free(again);
        again = jem_load(ctx, path);
        CHECK(again && net_hash(again) == net_hash(net), "saved a second time");
        jem_net_free(again);
    }
    check_calibrated(net, x, path, &rng);
    check_constructors(ctx, path, &n);
    remove(path);
    jem_net_free(net);
}

/* A hostile file has arbitrary sizes and strings. */
static void test_hostile(jem_ctx *ctx) {
    printf("a custom network, from hostile files\n");
    static const struct { const char *key, *value, *error; } texts[] = {
        { "hidden", NULL, "hidden is not" }, { "hidden", "-3", "hidden is not" },
        { "hidden", "6", "in.weight" },
        { "hidden", "100000000", "more parameters than it contains" },
        { "jem.classes", "4", "and 3 classes; the file has (6,1,1) and 4" },
        { "jem.classes", "x", "jem.classes = x" }, { "jem.height", NULL, "jem.height = (nothing)" },
        { "jem.channels", "-1", "jem.channels = -1" }, { "jem.width", "1e9", "jem.width = 1e9" },
        { "jem.net", "owl", "jem.net = \"owl\"" }, { "jem.net", "", "jem.net = \"\"" },
        { "jem.net", "wrn", "jem.activation" }, { "jem.scale", "0", "jem.scale = 0" }
    };
    construct_notes n = { 0, RIGHT };
    jem_register_net(ctx, "own", own_construct, &n);
    jem_net *net = own_create(ctx, 5, 13);
    for (int i = 0; i < (int)(sizeof texts / sizeof texts[0]); i++) {
        jem_archive *a = jem_archive_create(ctx);
        jem_net_to_archive(net, a);
        jem_archive_set_meta(a, texts[i].key, texts[i].value);
        CHECK(!jem_net_from_archive(ctx, a) && says(ctx, texts[i].error), "%s = %s", texts[i].key,
              texts[i].value ? texts[i].value : "(nothing)");
        jem_archive_free(a);
    }
    jem_net_free(net);
}

static void test_names(jem_ctx *ctx) {
    printf("names of kinds\n");
    static const char *const bad[] = { NULL, "", "wrn", "convnet", "mlp", "a b", "a.b", "\xc3\xa4",
        "0123456789012345678901234567890123456789012345678901234567890123" };
    jem_net *net = own_create(ctx, 5, 14);
    jem_net *mlp = jem_mlp_create(ctx, NULL, 1);
    for (int i = 0; i < (int)(sizeof bad / sizeof bad[0]); i++) {
        CHECK(jem_register_net(ctx, bad[i], own_construct, NULL) == JEM_BAD_ARGUMENT &&
              says(ctx, "name a custom kind"), "registered %s", bad[i] ? bad[i] : "NULL");
        CHECK(jem_net_set_kind(net, bad[i]) == JEM_BAD_ARGUMENT && says(ctx, "name a custom kind"),
              "set %s", bad[i] ? bad[i] : "NULL");
    }
    CHECK(jem_net_set_kind(mlp, "own") == JEM_BAD_ARGUMENT && says(ctx, "kind \"mlp\""), "an MLP");
    jem_net *wide = jem_net_create(ctx, own_forward, NULL, 0, 1, 1, 1, (1 << 24) + 1, 1);
    CHECK(jem_net_set_kind(wide, "own") == JEM_BAD_ARGUMENT, "%s", jem_error(ctx));
    CHECK(says(ctx, "classes") && !jem_net_meta(wide, "jem.channels"), "a refused description");
    jem_net_free(wide);
    CHECK(!strcmp(jem_net_meta(net, "jem.net"), "own"), "the name stayed");
    CHECK(jem_net_set_kind(net, "Own_2-x") == JEM_OK &&
          !strcmp(jem_net_meta(net, "jem.net"), "Own_2-x"), "%s", jem_error(ctx));
    CHECK(jem_net_set_kind(NULL, "own") == JEM_BAD_ARGUMENT &&
          jem_register_net(NULL, "own", own_construct, NULL) == JEM_BAD_ARGUMENT, "NULL");
    jem_net_free(mlp);
    jem_net_free(net);
}

/* A layer may have the name of an array of the optimiser. */
static void test_prefix(jem_ctx *ctx) {
    printf("a layer called optim.v\n");
    jem_net *net = jem_net_create(ctx, NULL, NULL, 0, PIXELS, 1, 1, CLASSES, 15);
    jem_net *to = jem_net_create(ctx, NULL, NULL, 0, PIXELS, 1, 1, CLASSES, 16);
    jem_linear_layer(net, "optim.v", PIXELS, CLASSES);
    jem_linear_layer(to, "optim.v", PIXELS, CLASSES);
    jem_archive *a = jem_archive_create(ctx);
    CHECK(jem_net_to_archive(net, a) == JEM_OK, "%s", jem_error(ctx));
    CHECK(net_hash(to) != net_hash(net), "other weights");
    CHECK(jem_net_load(to, a) == JEM_OK, "%s", jem_error(ctx));
    CHECK(net_hash(to) == net_hash(net), "its weights, some of them negative");
    jem_archive_free(a);
    jem_net_free(to);
    jem_net_free(net);
}

/* ---- padding lanes of a custom op ------------------------------------------------------------ */

/* Doubles x; other lanes than those of images get NaN. */
static void doubled_forward(const jem_call *c) {
    const int n = c->out.c * c->out.h * c->out.w * 16;
    for (int i = 0; i < n; i++) c->y[i] = i % 16 < c->live ? 2 * c->x[0][i] : (float)NAN;
}
static void doubled_backward(const jem_call *c) {
    const int n = c->out.c * c->out.h * c->out.w * 16;
    for (int i = 0; i < n; i++) {
        if (i % 16 < c->live) c->dx[0][i] += 2 * c->dy[i];
        else c->dx[0][i] = (float)NAN;
    }
}

/* Writes the gradients of the weights before and after an op: the custom one, or a built-in one. */
static void grads_around(jem_ctx *ctx, jem_net *net, int n, int custom, float *before,
                         float *after) {
    static const jem_op op = { "doubled", doubled_forward, doubled_backward, JEM_KEEPS_NOTHING,
                               NULL };
    const own *o = (const own *)net->user;
    float x[MANY * PIXELS];
    jem_rng rng = jem_rng_seed(5);
    jem_fill_normal(ctx, &rng, x, MANY * PIXELS, 0, 1);
    const jem_mark mark = jem_begin(ctx);
    jem_tensor *t = jem_apply(&o->in, jem_input(ctx, x, n, PIXELS, 1, 1), 1);
    const jem_shape shape = { n, HIDDEN, 1, 1 };
    t = custom ? jem_custom(ctx, &op, &t, 1, shape, NULL, 0, 0) : jem_scale(ctx, t, 2);
    t = jem_apply(&o->out, t, 1);
    jem_zero_grad(net);
    CHECK(jem_backward(jem_mean(ctx, jem_square(ctx, t))) == JEM_OK, "%s", jem_error(ctx));
    jem_end(ctx, mark);
    memcpy(before, o->in.weight->grad, HIDDEN * PIXELS * sizeof *before);
    memcpy(after, o->out.weight->grad, CLASSES * HIDDEN * sizeof *after);
}

static void test_padding(jem_ctx *ctx) {
    printf("what a custom op writes to padding lanes has no effect\n");
    float before[2][HIDDEN * PIXELS];
    float after[2][CLASSES * HIDDEN];
    for (int plain = 0; plain < 2; plain++)
        for (int n = 1; n <= 33; n += 8) {
            jem_ctx_desc how = { 0 };
            how.plain_tape = plain;
            jem_ctx *own_ctx = jem_ctx_create(&how);
            jem_net *net = own_create(own_ctx, HIDDEN, 3);
            for (int custom = 0; custom < 2; custom++)
                grads_around(own_ctx, net, n, custom, before[custom], after[custom]);
            CHECK(!memcmp(before[0], before[1], sizeof before[0]), "weights before, %d images", n);
            CHECK(!memcmp(after[0], after[1], sizeof after[0]), "weights after, %d images", n);
            jem_net_free(net);
            jem_ctx_free(own_ctx);
        }
    (void)ctx;
}

/* A log-density of a network of another context is refused in the context of the walk. */
static void test_contexts(jem_ctx *ctx) {
    printf("a network of another context\n");
    jem_net *net = own_create(other, HIDDEN, 3);
    const jem_sgld_desc walk = jem_sgld_desc_default();
    jem_rng rng = jem_rng_seed(1);
    const jem_mark mark = jem_begin(ctx);
    jem_tensor *x = jem_zeros(ctx, 2, PIXELS, 1, 1);
    CHECK(jem_sgld(ctx, jem_logp, net, x, &walk, &rng) == JEM_BAD_ARGUMENT &&
          strstr(jem_error(ctx), "belongs to another context"), "%s", jem_error(ctx));
    CHECK(jem_ok(other), "its own context has no error: %s", jem_error(other));
    jem_clear_error(ctx);
    jem_end(ctx, mark);
    jem_net_free(net);
}

int main(int argc, char **argv) {
    static const test_case all[] = {
        TEST_IN(test_gradient), TEST_IN(test_beside), TEST_IN(test_resumed),
        TEST_IN(test_wrong_terms), TEST_IN(test_files), TEST_IN(test_hostile), TEST_IN(test_names),
        TEST_IN(test_prefix), TEST_IN(test_padding), TEST_IN(test_contexts)
    };
    other = jem_ctx_create(NULL);
    const int failed = run_in_ctx(argc, argv, all, TEST_COUNT(all), NULL);
    jem_ctx_free(other);
    return failed;
}
