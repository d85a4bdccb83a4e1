/* Numbers that are not finite are an error: JEM_OK means finite weights and finite answers.
   strict.sh also compiles this with -ffast-math, under which compilers assume that NaN does not
   occur: so values are created and checked as bits. */
#define JEM_IMPLEMENTATION
#include "jem.h"
#include "tests/support/test.h"
#include "tests/support/common.h"

static float from_bits(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}
static int finite_bits(const float *x, ptrdiff_t n) {
    uint32_t bits;
    for (ptrdiff_t i = 0; i < n; i++) {
        memcpy(&bits, x + i, sizeof bits);
        if ((bits & 0x7f800000u) == 0x7f800000u) return 0;
    }
    return 1;
}

enum { BAD = 4, BATCH = 4, PIXELS = 2 * 6 * 6 };
static const uint32_t bad_bits[BAD] = { 0x7fc00000u, 0xffc00001u, 0x7f800000u, 0xff800000u };
static const char *const bad_names[BAD] = { "NaN", "-NaN", "infinity", "-infinity" };
static float images[BATCH * PIXELS];
static const int labels[BATCH] = { 0, 1, 2, 1 };

static jem_net *small_net(jem_ctx *ctx, int kind) {
    if (kind >= 2) {
        jem_wrn_desc d = jem_wrn_desc_default();
        d.depth = 10;
        d.widen = 1;
        d.channels = 2;
        d.height = d.width = 6;
        d.classes = 3;
        d.norm = kind == 2 ? JEM_NORM_BATCH : JEM_NORM_ACT;
        return jem_wrn_create(ctx, &d, 1);
    }
    jem_convnet_desc d = kind ? jem_convnet_desc_default() : jem_mlp_desc_default();
    d.channels = 2;
    d.height = d.width = 6;
    d.classes = 3;
    d.layers = 2;
    d.widths[0] = 4;
    d.widths[1] = 6;
    d.activation = (jem_activation)(kind * 2);
    return kind ? jem_convnet_create(ctx, &d, 1) : jem_mlp_create(ctx, &d, 1);
}
static jem_train_desc small_desc(void) {
    jem_train_desc d = jem_train_desc_default();
    d.sgld.steps = 2;
    d.buffer_size = 16;
    d.negatives = 4;
    d.max_rollbacks = 0;                           /* errors, not rollbacks */
    return d;
}
/* All except the running statistics of batch norm. */
static uint64_t trained_hash(const jem_net *net) {
    uint64_t h = FNV_START;
    for (const jem_param *p = net->params; p; p = p->next)
        if (p->grad) h = fnv(h, p->value, p->size);
    return h;
}
static int finite_net(const jem_net *net) {
    for (const jem_param *p = net->params; p; p = p->next)
        if (!finite_bits(p->value, p->size)) return 0;
    return 1;
}

/* The first step sets act norm's scale, then fails: it is as it was, and the next one sets it. */
static void test_first_step(jem_ctx *ctx) {
    printf("a first step that diverges leaves all parameters as they were\n");
    for (int kind = 2; kind < 4; kind++) {
        jem_train_desc d = small_desc();
        d.max_loss = 1e-30f;
        jem_net *net = small_net(ctx, kind);
        jem_trainer *tr = jem_trainer_create(net, &d);
        const uint64_t before = trained_hash(net);
        CHECK(jem_train_step(tr, images, labels, BATCH).status == JEM_DIVERGED &&
              says(ctx, "diverged at update 0") && trained_hash(net) == before, "net %d", kind);
        jem_trainer_free(tr);
        d = small_desc();
        tr = jem_trainer_create(net, &d);
        CHECK(jem_train_step(tr, images, labels, BATCH).status == JEM_OK &&
              trained_hash(net) != before, "net %d: %s", kind, jem_error(ctx));
        jem_trainer_free(tr);
        jem_net_free(net);
    }
}

/* A number of each parameter is bad: no step is JEM_OK, none changes another parameter, and what is
   asked of the network is refused, or finite (a ReLU may swallow it). */
static void test_weights(jem_ctx *ctx) {
    int refused = 0;
    for (int kind = 0; kind < 4; kind++) {
        jem_net *net = small_net(ctx, kind);
        jem_train_desc d = small_desc();
        jem_trainer *tr = jem_trainer_create(net, &d);
        CHECK(tr && jem_train_step(tr, images, labels, BATCH).status == JEM_OK, "%s",
              jem_error(ctx));
        for (jem_param *p = net->params; p; p = p->next)
            for (int k = 0; k < BAD; k++) {
                const float was = p->value[0];
                jem_answer a[BATCH];
                p->value[0] = from_bits(bad_bits[k]);
                jem_param_changed(p);
                const uint64_t before = trained_hash(net);
                const jem_stats s = jem_train_step(tr, images, labels, BATCH);
                if (p->grad)                       /* a step need not look at what is none */
                    CHECK(s.status == JEM_DIVERGED && before == trained_hash(net),
                          "%s in %s: status %d, loss %g", bad_names[k], p->name, (int)s.status,
                          (double)s.loss);
                jem_clear_error(ctx);
                const jem_status status = jem_classify(net, images, BATCH, a);
                for (int i = 0; i < BATCH; i++)
                    CHECK(status != JEM_OK || (finite_bits(&a[i].log_density, 1) &&
                          finite_bits(&a[i].probability, 1)), "%s in %s: an answer is not finite",
                          bad_names[k], p->name);
                refused += status != JEM_OK;
                jem_clear_error(ctx);
                p->value[0] = was;
                jem_param_changed(p);
                CHECK(finite_net(net), "%s in %s: left elsewhere", bad_names[k], p->name);
            }
        CHECK(jem_train_step(tr, images, labels, BATCH).status == JEM_OK, "%s", jem_error(ctx));
        jem_trainer_free(tr);
        jem_net_free(net);
    }
    CHECK(refused > 60, "%d", refused);
}

/* The same with a guard: it puts back the weights of the first update. */
static void test_guarded(jem_ctx *ctx) {
    for (int kind = 0; kind < 4; kind++) {
        jem_net *net = small_net(ctx, kind);
        jem_train_desc d = small_desc();
        d.max_rollbacks = 1000;
        jem_trainer *tr = jem_trainer_create(net, &d);
        CHECK(tr && jem_train_step(tr, images, labels, BATCH).status == JEM_OK, "%s",
              jem_error(ctx));
        const uint64_t good = trained_hash(net);
        for (jem_param *p = net->params; p; p = p->next)
            for (int k = 0; k < BAD && p->grad; k++) {
                p->value[0] = from_bits(bad_bits[k]);
                jem_param_changed(p);
                const jem_stats s = jem_train_step(tr, images, labels, BATCH);
                CHECK(s.status == JEM_OK && s.rolled_back == 1 && *s.reason && jem_ok(ctx) &&
                      trained_hash(net) == good, "%s in %s: status %d, rolled back %d: %s",
                      bad_names[k], p->name, (int)s.status, s.rolled_back, s.reason);
            }
        jem_trainer_set_lr(tr, d.lr);              /* each return has halved it */
        CHECK(jem_train_step(tr, images, labels, BATCH).status == JEM_OK, "%s", jem_error(ctx));
        CHECK(finite_net(net) && trained_hash(net) != good, "training goes on");
        jem_trainer_free(tr);
        jem_net_free(net);
    }
}

/* The loss itself, and the gradient behind a loss that looks healthy. */
typedef struct poison { uint32_t forward, backward; } poison;
static void poison_forward(const jem_call *c) {
    const poison *p = (const poison *)c->user;
    const ptrdiff_t n = (ptrdiff_t)c->out.c * c->out.h * c->out.w * JEM_LANES;
    for (ptrdiff_t i = 0; i < n; i++) c->y[i] = p->forward ? from_bits(p->forward) : c->x[0][i];
}
static void poison_backward(const jem_call *c) {
    const poison *p = (const poison *)c->user;
    const ptrdiff_t n = (ptrdiff_t)c->out.c * c->out.h * c->out.w * JEM_LANES;
    for (ptrdiff_t i = 0; c->dx[0] && i < n; i++)
        c->dx[0][i] += p->backward ? from_bits(p->backward) : c->dy[i];
}
static const jem_op poison_op = { "poison", poison_forward, poison_backward, JEM_KEEPS_NOTHING,
                                  NULL };
typedef struct spoilt { jem_layer one; poison p; } spoilt;
static jem_tensor *spoilt_forward(jem_net *net, jem_tensor *x, int training, void *user) {
    const spoilt *s = (const spoilt *)user;
    jem_tensor *y = jem_apply(&s->one, jem_flatten(net->ctx, x), training);
    const jem_shape out = { BATCH, 3, 1, 1 };
    return jem_custom(net->ctx, &poison_op, &y, 1, out, &s->p, sizeof s->p, 0);
}

static void test_ops(jem_ctx *ctx) {
    for (int k = 0; k < BAD; k++)
        for (int back = 0; back < 2; back++) {
            jem_net *net = jem_net_create(ctx, spoilt_forward, NULL, sizeof(spoilt), 2, 6, 6, 3, 1);
            spoilt *s = (spoilt *)net->user;
            s->one = jem_linear_layer(net, "one", PIXELS, 3);
            jem_train_desc d = small_desc();
            d.weights.cd = 0;                            /* a walk would stop before the loss */
            jem_trainer *tr = jem_trainer_create(net, &d);
            CHECK(tr && jem_train_step(tr, images, labels, BATCH).status == JEM_OK, "%s",
                  jem_error(ctx));
            *(back ? &s->p.backward : &s->p.forward) = bad_bits[k];
            const uint64_t before = trained_hash(net);
            for (int i = 0; i < 3; i++) {
                const jem_stats t = jem_train_step(tr, images, labels, BATCH);
                CHECK(t.status == JEM_DIVERGED && before == trained_hash(net), "%s %s: %d",
                      bad_names[k], back ? "backward" : "forward", (int)t.status);
                jem_clear_error(ctx);
            }
            s->p.backward = s->p.forward = 0;
            CHECK(jem_train_step(tr, images, labels, BATCH).status == JEM_OK, "%s", jem_error(ctx));
            jem_trainer_free(tr);
            jem_net_free(net);
        }
}

/* Bad pixels and hyper-parameters: refused before they do anything. */
static void test_input(jem_ctx *ctx) {
    jem_net *net = small_net(ctx, 1);
    jem_train_desc d = small_desc();
    jem_trainer *tr = jem_trainer_create(net, &d);
    for (int k = 0; k < BAD; k++) {
        const float was = images[PIXELS + 5];
        const float bad = from_bits(bad_bits[k]);
        jem_answer a[BATCH];
        images[PIXELS + 5] = bad;
        CHECK(jem_train_step(tr, images, labels, BATCH).status == JEM_BAD_ARGUMENT &&
              says(ctx, "image 1 "), "train_step, %s", bad_names[k]);
        CHECK(jem_classify(net, images, BATCH, a) == JEM_BAD_ARGUMENT && says(ctx, "image 1 "),
              "classify, %s", bad_names[k]);
        CHECK(jem_calibrate(net, images, BATCH, 0) == JEM_BAD_ARGUMENT && says(ctx, "image 1 "),
              "calibrate, %s", bad_names[k]);
        CHECK(!(jem_accuracy(net, images, labels, BATCH) >= 0) && says(ctx, "image 1 "),
              "accuracy, %s", bad_names[k]);
        images[PIXELS + 5] = was;
        jem_trainer_set_lr(tr, bad);
        CHECK(jem_train_step(tr, images, labels, BATCH).status == JEM_OK, "lr %s: %s",
              bad_names[k], jem_error(ctx));
        jem_optim *o = jem_optim_create(net, NULL);
        CHECK(jem_optim_step(o, bad, NULL) == JEM_BAD_ARGUMENT && says(ctx, "lr"), "lr %s",
              bad_names[k]);
        jem_optim_free(o);
        float *const fields[] = { &d.lr, &d.weights.ce, &d.sgld.step_size, &d.sgld.noise_std,
                                  &d.optim.weight_decay, &d.optim.beta1, &d.reinit,
                                  &d.data_noise };
        for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
            const float good = *fields[i];
            *fields[i] = bad;
            jem_trainer *other = jem_trainer_create(net, &d);
            jem_stats s;
            s.status = jem_error_status(ctx);
            if (other) s = jem_train_step(other, images, labels, BATCH);
            CHECK(s.status == JEM_BAD_ARGUMENT, "field %d, %s: %d", (int)i, bad_names[k],
                  (int)s.status);
            jem_clear_error(ctx);
            jem_trainer_free(other);
            *fields[i] = good;
        }
    }
    CHECK(finite_net(net), "nothing has come through");
    jem_trainer_free(tr);
    jem_net_free(net);
}

/* Rates from wild to absurd: sooner or later a step is an error; until then, all is finite. */
static void test_rates(jem_ctx *ctx) {
    static const float rates[] = { 1, 1e3f, 1e6f, 1e9f, 1e14f, 1e20f, 1e25f, 1e30f, 3e38f };
    int diverged = 0;
    for (int sgd = 0; sgd < 2; sgd++)
        for (size_t r = 0; r < sizeof rates / sizeof *rates; r++) {
            jem_net *net = small_net(ctx, 1);
            jem_train_desc d = small_desc();
            d.lr = rates[r];
            d.optim.kind = sgd ? JEM_OPTIMIZER_SGD : JEM_OPTIMIZER_ADAM;
            jem_trainer *tr = jem_trainer_create(net, &d);
            jem_status status = jem_error_status(ctx);
            for (int i = 0; tr && i < 30 && status == JEM_OK; i++) {
                const uint64_t before = net_hash(net);
                const jem_stats s = jem_train_step(tr, images, labels, BATCH);
                status = s.status;
                CHECK(finite_net(net), "rate %g, step %d: %d", (double)rates[r], i, (int)status);
                CHECK(status == JEM_OK ? finite_bits(&s.loss, 1) : before == net_hash(net),
                      "rate %g, step %d: %d", (double)rates[r], i, (int)status);
            }
            diverged += status == JEM_DIVERGED;
            CHECK(status == JEM_OK || status == JEM_DIVERGED || status == JEM_BAD_ARGUMENT, "%d",
                  (int)status);
            jem_clear_error(ctx);
            jem_trainer_free(tr);
            jem_net_free(net);
        }
    CHECK(diverged >= 6, "%d", diverged);
}

/* A large momentum over a vanished second moment: the step is limited. */
static void test_quotient(jem_ctx *ctx) {
    const int shape[1] = { 3 };
    jem_net *net = jem_net_create(ctx, NULL, NULL, 0, 1, 1, 1, 2, 1);
    jem_param *w = jem_net_param(net, "w", 1, shape, 1);
    jem_optim_desc d = jem_optim_desc_default();
    d.beta2 = 0;
    d.eps = 1e-30f;
    jem_optim *o = jem_optim_create(net, &d);
    for (int i = 0; i < 20; i++) {
        for (int k = 0; k < 3; k++) w->grad[k] = i ? 0 : 1e12f * (float)(k - 1);
        CHECK(jem_optim_step(o, 0.1f, NULL) == JEM_OK && finite_net(net), "step %d: %g", i,
              (double)w->value[0]);
    }
    jem_optim_free(o);
    jem_net_free(net);
}

/* A compiler that may change the order of sums must not remove a rounding by addition. */
static void test_functions(jem_ctx *unused) {
    printf("exp, tanh and sigmoid, compared with libm\n");
    static const jem_isa isas[2] = { JEM_ISA_SCALAR, JEM_ISA_BEST };
    enum { N = 101 };
    for (int k = 0; k < 2; k++) {
        jem_ctx *ctx = isa_ctx(isas[k], 1);
        float x[N], e[N], t[N], s[N];
        double worst = 0;
        for (int i = 0; i < N; i++) x[i] = 0.17f * (float)(i - 50);
        jem_compute_exp(ctx, x, e, N);
        jem_compute_tanh(ctx, x, t, N);
        jem_compute_sigmoid(ctx, x, s, N);
        for (int i = 0; i < N; i++) {
            const double v = (double)x[i];
            const double errors[3] = { fabs((double)e[i] / exp(v) - 1),
                                       fabs((double)t[i] - tanh(v)),
                                       fabs((double)s[i] - 1 / (1 + exp(-v))) };
            for (int j = 0; j < 3; j++) {          /* fmax would drop a NaN */
                if (!(errors[j] <= worst)) worst = errors[j];
            }
        }
        CHECK(worst < 2e-6, "%s: an error of %g", jem_isa_name(jem_ctx_isa(ctx)), worst);
        jem_ctx_free(ctx);
    }
    (void)unused;
}

int main(int argc, char **argv) {
    static const test_case all[] = {
        TEST_IN(test_weights), TEST_IN(test_guarded), TEST_IN(test_ops), TEST_IN(test_input),
        TEST_IN(test_rates), TEST_IN(test_first_step), TEST_IN(test_quotient),
        TEST_IN(test_functions)
    };
    jem_rng rng = jem_rng_seed(5);
    for (int i = 0; i < BATCH * PIXELS; i++) images[i] = 2 * jem_rng_uniform(&rng) - 1;
    return run_in_ctx(argc, argv, all, TEST_COUNT(all), NULL);
}
