/* What a caller can get wrong: NULL everywhere, hyper-parameters out of range, names that command a
   terminal. Nothing crashes; what is refused is named. */
#define JEM_IMPLEMENTATION
#include "../jem.h"
#include "test.h"
#include "common.h"

static const float wrong[] = { NAN, INFINITY, -INFINITY, -1 };

static jem_net *small_net(jem_ctx *ctx) {
    jem_mlp_desc d = jem_mlp_desc_default();
    d.channels = 2, d.height = d.width = 1, d.classes = 2;
    return jem_mlp_create(ctx, &d, 1);
}

/* Each float of a desc, by its place; is it refused, by its name? */
typedef struct field { const char *name; size_t at; int negative_is_fine; } field;

static void test_trainer(jem_ctx *ctx) {
    printf("trainers: what is out of range is refused by name\n");
#define FIELD(name, negative) { #name, offsetof(jem_train_desc, name), negative }
    static const field fields[] = {
        FIELD(lr, 0), FIELD(w_ce, 0), FIELD(w_cd, 0), FIELD(w_cd_class, 0), FIELD(w_score, 0),
        FIELD(w_kl, 0), FIELD(entropy, 0), FIELD(sam, 0), FIELD(energy_l2, 0),
        FIELD(input_noise, 0), FIELD(label_noise, 0), FIELD(noise_lo, 0), FIELD(reinit, 0),
        FIELD(optim.beta1, 0), FIELD(optim.beta2, 0), FIELD(optim.eps, 0), FIELD(optim.momentum, 0),
        FIELD(optim.weight_decay, 0), FIELD(optim.clip, 0), FIELD(optim.ema, 0)
    };
#undef FIELD
    jem_net *net = small_net(ctx);
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        for (size_t k = 0; k < sizeof wrong / sizeof *wrong; k++) {
            jem_train_desc d = jem_train_desc_default();
            const char *name = strrchr(fields[i].name, '.');
            memcpy((char *)&d + fields[i].at, wrong + k, sizeof *wrong);
            CHECK(!jem_trainer_create(net, &d) && says(ctx, name ? name + 1 : fields[i].name),
                  "%s = %g", fields[i].name, (double)wrong[k]);
        }
    jem_train_desc d = jem_train_desc_default();
    d.optim.kind = (jem_optimizer)7;
    CHECK(!jem_trainer_create(net, &d) && says(ctx, "kind = 7"), "an optimiser");
    d = jem_train_desc_default(), d.optim.beta2 = 1;
    CHECK(!jem_trainer_create(net, &d) && says(ctx, "beta2 = 1"), "beta2");
    d = jem_train_desc_default(), d.restart_lo = 2;
    CHECK(!jem_trainer_create(net, &d) && says(ctx, "restart_lo = 2"), "restart");
    d = jem_train_desc_default(), d.w_score = d.sam = 1;
    CHECK(!jem_trainer_create(net, &d) && says(ctx, "sam = 1"), "sharpness of a score");
    d = jem_train_desc_default(), d.w_kl = 1, d.sgld.steps = 0;
    CHECK(!jem_trainer_create(net, &d) && says(ctx, "sgld.steps = 0"), "a KL without a walk");
    d = jem_train_desc_default(), d.noise_hi = .01f;
    CHECK(!jem_trainer_create(net, &d) && says(ctx, "noise_hi = 0.01"), "noise");
    const float x[2] = { 0 };
    const int label = 0;
    jem_trainer *tr = jem_trainer_create(net, NULL);
    for (int i = 0; i < 2; i++) {
        const jem_stats s = jem_train_step(tr, i ? x : NULL, i ? NULL : &label, 1);
        CHECK(s.status == JEM_BAD_ARGUMENT && says(ctx, "1 labelled, 0 unlabelled images: data or "
              "labels are NULL"), "%s: %s", i ? "labels" : "images", jem_error(ctx));
    }
    jem_trainer_free(tr);
    jem_net_free(net);
}

static void test_walks(jem_ctx *ctx) {
    printf("samplers: the same\n");
    jem_net *net = small_net(ctx);
    jem_tensor *x = jem_zeros(ctx, 3, 2, 1, 1);
    jem_rng rng = jem_rng_seed(1);
    for (size_t k = 0; k < 3; k++) {
        jem_sgld_desc d = jem_sgld_desc_default();
        d.step_size = wrong[k];
        CHECK(jem_sgld(ctx, jem_logp, net, x, &d, &rng) && says(ctx, "step_size"), "step");
        d = jem_sgld_desc_default(), d.noise_std = wrong[k];
        CHECK(jem_sgld(ctx, jem_logp, net, x, &d, &rng) && says(ctx, "noise_std"), "noise");
        d = jem_sgld_desc_default(), d.clamp_grad = wrong[k];
        CHECK(jem_sgld(ctx, jem_logp, net, x, &d, &rng) && says(ctx, "clamp_grad"), "clamp");
    }
    jem_sgld_desc d = jem_sgld_desc_default();
    d.clamp_lo = 1, d.clamp_hi = -1;
    CHECK(jem_sgld(ctx, jem_logp, net, x, &d, &rng) && says(ctx, "clamp_hi = -1"), "range");
    d = jem_sgld_desc_default(), d.steps = -1;
    CHECK(jem_sgld(ctx, jem_logp, net, x, &d, &rng) && says(ctx, "steps = -1"), "steps");
    jem_denoise_desc blind = jem_denoise_desc_default();
    blind.sigma_max = 0;
    CHECK(jem_denoise(ctx, jem_logp, net, x, &blind, &rng) && says(ctx, "sigma_max = 0"), "no noise");
    int label = 0;
    jem_class_of of = { net, &label };
    CHECK(!jem_kl_walk(ctx, jem_logp, &of, x, NULL, 1, &rng) && says(ctx, "logp"), "a class");
    CHECK(!jem_kl_walk(ctx, jem_logp, net, NULL, NULL, 1, &rng) && says(ctx, "a leaf"), "no x");
    CHECK(!jem_kl_walk(NULL, jem_logp, net, x, NULL, 1, &rng) && !jem_slope(NULL, jem_logp, net, x,
          x, 0), "no context");
    CHECK(!jem_slope(ctx, jem_logp, net, x, NULL, 0) && says(ctx, "leaves"), "no direction");
    CHECK(jem_sgld(ctx, jem_logp_class, net, x, NULL, &rng) && says(ctx, "logp_class"), "a net");
    CHECK(jem_sgld(ctx, jem_logp, &of, x, NULL, &rng) && says(ctx, "logp"), "a class");
    CHECK(!jem_buffer_create(ctx, 65536, 65536, 65536, 65536, 0, &rng) && says(ctx, "65536"),
          "a buffer of 2^64 numbers");
    jem_reset(ctx), jem_net_free(net);
}

static jem_tensor *nothing(jem_net *net, jem_tensor *x, int training, void *user) {
    (void)net, (void)x, (void)training, (void)user;
    return NULL;
}

static void test_null(jem_ctx *ctx) {
    printf("NULL, wherever it can be\n");
    float x[4] = { 0 };
    jem_answer a;
    int label = 0;
    jem_end(NULL, jem_begin(NULL)), jem_reset(NULL), jem_clear_error(NULL), jem_ctx_free(NULL);
    jem_net_free(NULL), jem_trainer_free(NULL), jem_buffer_free(NULL), jem_archive_free(NULL);
    jem_optim_free(NULL), jem_zero_grad(NULL), jem_param_changed(NULL), jem_keep(NULL);
    jem_release(NULL, NULL), jem_trainer_reseed(NULL, 1), jem_trainer_set_lr(NULL, 1);
    CHECK(jem_rng_u32(NULL) == 0 && jem_rng_below(NULL, 9) == 0, "no rng");
    CHECK(jem_rng_uniform(NULL) == 0 && jem_rng_normal(NULL) == 0, "no rng");
    CHECK(jem_rng_split(NULL, 3).counter == 0, "no rng");
    CHECK(!jem_net_find(NULL, "x") && !jem_net_param(NULL, "x", 1, &label, 1), "no net");
    CHECK(!jem_apply(NULL, NULL, 0) && !jem_forward(NULL, NULL, 0), "no layer, no net");
    CHECK(jem_learning_rate(NULL, 0.5f, 3) == 0.5f, "no schedule");
    CHECK(jem_classify(NULL, x, 1, &a) == JEM_BAD_ARGUMENT, "no net");
    CHECK(jem_read(NULL, x) && jem_backward(NULL) && jem_grad(NULL, NULL), "no tensor");
    const jem_memory_stats none = jem_memory(NULL);
    CHECK(none.bytes == 0 && none.peak == 0 && none.allocations == 0, "no context");
    CHECK(!jem_ok(NULL) && jem_ctx_threads(NULL) == 1, "no context");
    jem_net *net = small_net(ctx);
    CHECK(!jem_net_find(net, NULL) && jem_ok(ctx), "no name");
    CHECK(jem_classify(net, NULL, 1, &a) && says(ctx, "NULL"), "no images");
    CHECK(jem_accuracy(net, x, NULL, 1) < 0 && says(ctx, "no label"), "no labels");
    CHECK(jem_calibrate(net, NULL, 5) && says(ctx, "calibrate"), "no images");
    jem_net_free(net);
    net = jem_net_create(ctx, nothing, NULL, 0, 2, 1, 1, 2, 1);
    a.label = 77;
    CHECK(jem_classify(net, x, 1, &a) && says(ctx, "made nothing"), "a function that makes nothing");
    CHECK(jem_accuracy(net, x, &label, 1) < 0 && says(ctx, "made nothing"), "its accuracy");
    jem_net_free(net);
}

static void test_escapes(jem_ctx *ctx) {
    printf("names that would command a terminal\n");
    jem_fail(ctx, JEM_BAD_FILE, "a\033[2Jb\r\nc\177");
    CHECK(!strcmp(jem_error(ctx), "a?[2Jb??c?"), "'%s'", jem_error(ctx));
    jem_clear_error(ctx);
    CHECK(!jem_load(ctx, "no\033[31m/such") && says(ctx, "no?[31m/such: cannot be opened"), "path");
}

/* An error is kept already, and memory runs out at every place: a whole network, or none. */
static void test_half_made(void) {
    printf("networks without memory, after an error\n");
    for (int wrn = 0; wrn < 2; wrn++) {
        counter c;
        long k = 1;
        for (int whole = 0; !whole && k < 1000; k++) {
            jem_ctx *ctx = open_ctx(&c);
            jem_wrn_desc d = jem_wrn_desc_default();
            d.depth = 10, d.widen = 1, d.uncond = 1;
            jem_fail(ctx, JEM_DIVERGED, "of before");
            c.fail_at = c.calls + k;
            jem_net *net = wrn ? jem_wrn_create(ctx, &d, 1) : jem_mlp_create(ctx, NULL, 1);
            whole = c.calls < c.fail_at;
            CHECK(!net == !whole, "%s, allocation %ld: %s", wrn ? "wrn" : "mlp", k,
                  net ? "half a network" : "no network");
            CHECK(says(ctx, "of before"), "the first error stands");
            jem_net_free(net);
            close_ctx(ctx, &c, "half made");
        }
        CHECK(k > 20 && k < 1000, "%ld allocations", k);
    }
}

/* What a run needs at once, if it is more than the arena has in one piece, is asked for by itself. */
static void test_large_run(void) {
    printf("a gradient without memory\n");
    int refused = 0, whole = 0;
    for (long k = 1; !whole && k < 100; k++) {
        counter c;
        jem_ctx *ctx = open_ctx(&c);
        jem_tensor *x = jem_zeros(ctx, 1, 16, 64, 64);
        jem_tensor *y = jem_sum_image(ctx, jem_square(ctx, jem_tanh(ctx, jem_square(ctx, x))));
        c.fail_at = c.calls + k;
        const jem_status s = jem_grad(y, x);
        whole = c.calls < c.fail_at, refused += s == JEM_NO_MEMORY;
        CHECK(s == (whole ? JEM_OK : JEM_NO_MEMORY) && s == jem_error_status(ctx),
              "allocation %ld: %s", k, jem_error(ctx));
        close_ctx(ctx, &c, "a gradient");
    }
    CHECK(whole && refused > 1, "%d allocations", refused);
}

int main(void) {
    counter count;
    jem_ctx *ctx = open_ctx(&count);
    test_trainer(ctx), test_walks(ctx), test_null(ctx), test_escapes(ctx);
    test_half_made(), test_large_run();
    close_ctx(ctx, &count, "misuse");
    return test_report();
}
