/* Misuse by callers: NULL everywhere, hyper-parameters out of range, names with control characters.
   No call crashes; each rejected argument is named. */
#define JEM_IMPLEMENTATION
#include "jem.h"
#include "tests/support/test.h"
#include "tests/support/common.h"

static const float wrong[] = { NAN, INFINITY, -INFINITY, -1 };  /* the last may be fine */

static const small_shape two_numbers = { 2, 1, 1, 2, 0 };

/* Each float of a desc, by its place; is it refused, by its name? */
typedef struct field { const char *name; size_t at; int negative_is_fine; } field;

static void no_sum(void *user, float *x, ptrdiff_t n) {
    (void)user;
    (void)x;
    (void)n;
}

static void test_trainer(jem_ctx *ctx) {
    printf("trainers: what is out of range is refused by name\n");
#define FIELD(name, negative) { #name, offsetof(jem_train_desc, name), negative }
    static const field fields[] = {
        FIELD(lr, 0), FIELD(weights.ce, 0), FIELD(weights.cd, 0), FIELD(weights.cd_class, 0),
        FIELD(w_score, 0),
        FIELD(w_kl, 0), FIELD(kl_entropy, 0), FIELD(sam, 0), FIELD(weights.energy_l2, 0),
        FIELD(data_noise, 0), FIELD(label_noise, 0), FIELD(label_smoothing, 0),
        FIELD(noise_lo, 0), FIELD(reinit, 0),
        FIELD(max_loss, 0), FIELD(schedule.floor, 0), FIELD(schedule.rate, 0),
        FIELD(sgld.step_size, 1), FIELD(sgld.noise_std, 0), FIELD(sgld.clamp_grad, 0),
        FIELD(restart_denoise.beta, 0), FIELD(restart_denoise.sigma_max, 0),
        FIELD(optim.beta1, 0), FIELD(optim.beta2, 0), FIELD(optim.eps, 0), FIELD(optim.momentum, 0),
        FIELD(optim.weight_decay, 0), FIELD(optim.clip, 0), FIELD(optim.ema, 0),
        FIELD(optim.adam_rate, 0), FIELD(optim.muon_momentum, 0), FIELD(w_nce, 0),
        FIELD(w_term, 0), FIELD(label_all_noise, 0), FIELD(noise_hi, 0), FIELD(restart_lo, 1),
        FIELD(restart_denoise.fraction, 0), FIELD(max_gap, 0), FIELD(least_scale, 0),
        FIELD(pause_gap, 0),
        FIELD(sgld.clamp_lo, 1), FIELD(sgld.clamp_hi, 1), FIELD(sgld.decay_b, 0),
        FIELD(sgld.decay_gamma, 0),
        FIELD(sgld.temperature_from, 0), FIELD(sgld.temperature_to, 0)
    };
#undef FIELD
    jem_net *net = small_mlp(ctx, two_numbers, 1);
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        for (int k = 0; k < 4 - fields[i].negative_is_fine; k++) {
            jem_train_desc d = jem_train_desc_default();
            const char *name = strrchr(fields[i].name, '.');
            memcpy((char *)&d + fields[i].at, wrong + k, sizeof *wrong);
            CHECK(!jem_trainer_create(net, &d) && says(ctx, name ? name + 1 : fields[i].name),
                  "%s = %g", fields[i].name, (double)wrong[k]);
        }
    jem_net_free(net);
}

static void test_pauses(jem_ctx *ctx) {
    printf("trainers: pauses that cannot be\n");
    jem_net *net = small_mlp(ctx, two_numbers, 1);
    jem_train_desc d = jem_train_desc_default();
    d.pause_gap = 5;
    CHECK(!jem_trainer_create(net, &d) && says(ctx, "pause_gap = 5 needs w_score"), "no score");
    d.w_score = 1;
    d.max_gap = 5;
    CHECK(!jem_trainer_create(net, &d) && says(ctx, "pause_gap = 5 is not below max_gap = 5"),
          "divergence comes first");
    jem_net_free(net);
}

static void test_trainer_options(jem_ctx *ctx) {
    printf("trainers: options that do not go together\n");
    jem_net *net = small_mlp(ctx, two_numbers, 1);
    jem_train_desc d = jem_train_desc_default();
    d.optim.kind = (jem_optimizer)7;
    CHECK(!jem_trainer_create(net, &d) && says(ctx, "kind = 7"), "an optimiser");
    d = jem_train_desc_default();
    d.optim.beta2 = 1;
    CHECK(!jem_trainer_create(net, &d) && says(ctx, "beta2 = 1"), "beta2");
    d = jem_train_desc_default();
    d.restart_lo = 2;
    CHECK(!jem_trainer_create(net, &d) && says(ctx, "restart_lo = 2"), "restart");
    d.restart_hi = NAN;
    CHECK(!jem_trainer_create(net, &d) && says(ctx, "restart_hi = nan"), "restart");
    d = jem_train_desc_default();
    d.w_score = d.sam = 1;
    CHECK(!jem_trainer_create(net, &d) && says(ctx, "sam = 1"), "sharpness of a score");
    d = jem_train_desc_default();
    d.w_kl = 1;
    d.sgld.steps = 0;
    CHECK(!jem_trainer_create(net, &d) && says(ctx, "sgld.steps = 0"), "a KL without a walk");
    d = jem_train_desc_default();
    d.noise_hi = .01f;
    CHECK(!jem_trainer_create(net, &d) && says(ctx, "noise_hi = 0.01"), "noise");
    d = jem_train_desc_default();
    d.weights.cd_class = 1;
    d.label_noise = .3f;
    CHECK(!jem_trainer_create(net, &d) && says(ctx, "label_noise = 0.3"),
          "noise in data of p(x,y)");
    d.label_noise = 0;
    d.label_all_noise = .5f;
    CHECK(!jem_trainer_create(net, &d) && says(ctx, "label_all_noise = 0.5"),
          "noise in data of p(x,y)");
    d = jem_train_desc_default();
    d.max_loss = 0;
    CHECK(!jem_trainer_create(net, &d) && says(ctx, "max_loss = 0"), "each loss diverges");
    d = jem_train_desc_default();
    d.schedule.kind = (jem_schedule_kind)9;
    CHECK(!jem_trainer_create(net, &d) && says(ctx, "schedule.kind = 9"), "a schedule");
    d = jem_train_desc_default();
    d.weights.ce = d.weights.cd = 0;
    CHECK(!jem_trainer_create(net, &d) && says(ctx, "all weights = 0"), "nothing to train by");
    for (int i = 0; i < 6; i++) {                  /* each term may be the only one */
        float *const weights[6] = { &d.weights.ce, &d.weights.cd, &d.weights.cd_class,
                                    &d.w_score, &d.w_kl, &d.weights.energy_l2 };
        d = jem_train_desc_default();
        d.weights.ce = d.weights.cd = 0;
        *weights[i] = 1;
        jem_trainer *alone = jem_trainer_create(net, &d);
        CHECK(alone, "weight %d alone: %s", i, jem_error(ctx));
        jem_clear_error(ctx);
        jem_trainer_free(alone);
    }
    d = jem_train_desc_default();
    d.restart_lo = -3e38f;
    d.restart_hi = 3e38f;
    CHECK(!jem_trainer_create(net, &d) && says(ctx, "U(-3e+38,3e+38)"), "chains from infinity");
    jem_net_free(net);
}

static void test_trainer_data(jem_ctx *ctx) {
    printf("trainers: no data, and images that are no multiple of the ranks\n");
    jem_net *net = small_mlp(ctx, two_numbers, 1);
    const float x[2] = { 0 };
    const int label = 0;
    jem_trainer *tr = jem_trainer_create(net, NULL);
    for (int i = 0; i < 2; i++) {
        const jem_stats s = jem_train_step(tr, i ? x : NULL, i ? NULL : &label, 1);
        CHECK(s.status == JEM_BAD_ARGUMENT && says(ctx, "1 labelled, 0 unlabelled images: data or "
              "labels are NULL"), "%s: %s", i ? "labels" : "images", jem_error(ctx));
    }
    jem_stats s = jem_train_step(tr, x, &label, 0);
    const char *text = jem_error(ctx);
    CHECK(s.status == JEM_BAD_ARGUMENT && !strstr(text, "ranks") && !strstr(text, "NULL") &&
          strstr(text, "train_step: 0 labelled, 0 unlabelled images: a count"), "%s",
          text);
    jem_clear_error(ctx);
    jem_trainer_free(tr);
    jem_train_desc d = jem_train_desc_default();
    d.ranks = 4;
    d.sum = no_sum;
    tr = jem_trainer_create(net, &d);
    s = jem_train_step(tr, x, &label, 1);
    CHECK(s.status == JEM_BAD_ARGUMENT && says(ctx, "1 labelled, 0 unlabelled images: not "
          "multiples of ranks = 4"), "%s", jem_error(ctx));
    jem_trainer_free(tr);
    jem_net_free(net);
}

/* The guard has memory for the values that the network had. */
static void test_late_parameter(jem_ctx *ctx) {
    printf("trainers: a parameter that is added after them\n");
    jem_net *net = small_mlp(ctx, two_numbers, 1);
    const float x[2] = { 0 };
    const int label = 0;
    jem_trainer *tr = jem_trainer_create(net, NULL);
    CHECK(jem_train_step(tr, x, &label, 1).status == JEM_OK, "%s", jem_error(ctx));
    const int shape[2] = { 100, 100 };
    jem_net_param(net, "late", 2, shape, 1);
    const jem_stats s = jem_train_step(tr, x, &label, 1);
    CHECK(s.status == JEM_BAD_ARGUMENT && says(ctx, "add parameters before"), "%s", jem_error(ctx));
    jem_trainer_free(tr);
    jem_net_free(net);
}

static void test_late_optim(jem_ctx *ctx) {
    printf("optimisers: the same; an empty batch has no address; a scale that is not a number\n");
    jem_net *net = small_mlp(ctx, two_numbers, 1);
    const int shape[1] = { 3 };
    jem_optim *o = jem_optim_create(net, NULL);
    CHECK(jem_optim_step(o, 1e-3f, NULL) == JEM_OK, "%s", jem_error(ctx));
    jem_net_param(net, "late", 1, shape, 1);
    CHECK(jem_optim_step(o, 1e-3f, NULL) == JEM_BAD_ARGUMENT && says(ctx, "parameter late"), "o");
    jem_optim_free(o);
    CHECK(jem_classify(net, NULL, 0, NULL) == JEM_OK, "%s", jem_error(ctx));
    net->scale = NAN;
    CHECK(!jem_trainer_create(net, NULL) && says(ctx, "net->scale"), "scale");
    CHECK(jem_learning_rate(NULL, 1, -1) == 1, "without a schedule");
    const jem_schedule cosine = { JEM_SCHEDULE_COSINE, 0, 0, 0, 0, { 0 } };
    CHECK(jem_learning_rate(&cosine, 1, -1) == 1, "update -1");
    jem_net_free(net);
}

/* A function of the user's that resets the tape in the middle of one of the library's. */
typedef struct resetter { jem_ctx *ctx; jem_mark mark; int ends, calls; } resetter;
static void reset_now(resetter *r) {
    r->calls++;
    const jem_mark own = jem_begin(r->ctx);
    jem_zeros(r->ctx, 1, 1, 1, 1);
    jem_end(r->ctx, own);                          /* its own tensors are its own */
    if (r->ends) jem_end(r->ctx, r->mark);
    else jem_reset(r->ctx);
}
static int resetting_watch(void *user, int step, jem_tensor *x) {
    (void)step;
    (void)x;
    reset_now((resetter *)user);
    return 0;
}
static void resetting_chain(void *user, jem_rng *rng, int visits, int label, float *x) {
    (void)rng;
    (void)visits;
    (void)label;
    (void)x;
    reset_now((resetter *)user);
}
static void resetting_sum(void *user, float *x, ptrdiff_t n) {
    (void)x;
    (void)n;
    reset_now((resetter *)user);
}
static jem_status resetting_classify(void *user, const float *x, const int *labels, int n, float *f,
                                     float *gradient) {
    (void)x;
    (void)labels;
    for (int i = 0; i < 2 * n; i++) {
        f[i] = 0;
        if (gradient) gradient[i] = 0;
    }
    reset_now((resetter *)user);
    return JEM_OK;
}

/* Each function that the library calls, and that may not free what the library uses. */
static jem_status call_back(jem_net *net, int which, resetter *r) {
    jem_ctx *ctx = net->ctx;
    jem_rng rng = jem_rng_seed(1);
    const float x[4] = { .1f, .2f, .3f, .4f };
    const float known[4] = { 1, 0, 0, 1 };
    const int labels[2] = { 0, 1 };
    float out[4];
    jem_tensor *t = jem_input(ctx, x, 2, 2, 1, 1);
    r->mark = jem_begin(ctx);
    jem_tensor *late = jem_input(ctx, x, 2, 2, 1, 1);
    jem_sgld_desc walk = jem_sgld_desc_langevin(.01f, 3);
    jem_denoise_desc blind = jem_denoise_desc_default();
    jem_mcmc_desc mcmc = jem_mcmc_desc_default();
    jem_impute_desc impute = jem_impute_desc_default();
    jem_attack_desc attack = jem_attack_desc_default();
    jem_train_desc train = jem_train_desc_default();
    walk.watch = blind.watch = mcmc.watch = resetting_watch;
    walk.watch_user = blind.watch_user = mcmc.watch_user = r;
    blind.steps = mcmc.steps = 3;
    impute.denoise.steps = impute.walk.steps = 3;
    if (which == 3) impute.walk = walk;
    if (which == 4) impute.denoise = blind;
    if (which < 2) t = late;
    switch (which) {
    case 0: return jem_sgld(ctx, gauss, NULL, t, &walk, &rng);
    case 1: return jem_denoise(ctx, gauss, NULL, t, &blind, &rng);
    case 2: return jem_mcmc(ctx, gauss, NULL, t, &mcmc, &rng, NULL);
    case 3: case 4: return jem_impute(ctx, gauss, NULL, t, known, &impute, &rng);
    case 5:
        attack.classify = resetting_classify;
        attack.user = r;
        attack.steps = 2;
        return jem_attack(net, x, labels, 2, &attack, &rng, out, NULL);
    case 6:
        train.chain = resetting_chain;
        train.chain_user = r;
        break;
    default:
        train.ranks = 2;
        train.sum = resetting_sum;
        train.sum_user = r;
    }
    train.negatives = 2;
    train.buffer_size = 2;
    jem_trainer *tr = jem_trainer_create(net, &train);
    const jem_status status = jem_train_step(tr, x, labels, 2).status;
    jem_trainer_free(tr);
    return status;
}

/* A density that resets the tape at its third call, in the middle of a comparison. */
static jem_tensor *late_resetting(jem_ctx *ctx, jem_tensor *x, void *user) {
    resetter *r = (resetter *)user;
    if (++r->calls == 3) jem_reset(ctx);
    return gauss(ctx, x, NULL);
}

static void test_callbacks(jem_ctx *ctx) {
    printf("functions of the user's that free what the library uses\n");
    resetter late = { ctx, { ctx, NULL, 0, 0, 0 }, 0, 0 };
    jem_tensor *leaf = jem_zeros(ctx, 2, 2, 1, 1);
    CHECK(jem_check_gradient(ctx, late_resetting, &late, leaf, NULL, .02f) < 0 && late.calls >= 3 &&
          says(ctx, "reset: a function"), "check_gradient, %d calls: %s", late.calls,
          jem_error(ctx));
    jem_reset(ctx);
    for (int k = 0; k < 16; k++) {
        jem_net *net = small_mlp(ctx, two_numbers, 1);
        resetter r = { ctx, { ctx, NULL, 0, 0, 0 }, k % 2, 0 };
        CHECK(call_back(net, k / 2, &r) == JEM_BAD_ARGUMENT && r.calls > 0 &&
              says(ctx, k % 2 ? "end: a function that the library calls" : "reset: a function"),
              "callback %d, %d calls: %s", k, r.calls, jem_error(ctx));
        jem_reset(ctx);
        jem_net_free(net);
    }
    jem_zeros(ctx, 1 << 20, 1, 1, 1);              /* a second chunk, which jem_trim frees */
    jem_mark mark = jem_begin(ctx);
    jem_reset(ctx);
    jem_trim(ctx);
    jem_end(ctx, mark);
    mark = jem_begin(ctx);
    jem_tensor *x = jem_zeros(ctx, 3, 2, 1, 1);
    jem_end(ctx, mark);
    CHECK(jem_ok(ctx) && !x->node, "afterwards, a mark frees as before: %s", jem_error(ctx));
    jem_reset(ctx);

    const float first[] = { 1, 2 }, second[] = { 3, 4 };
    float kept[2];
    jem_tensor *older = jem_input(ctx, first, 1, 2, 1, 1);
    const jem_mark outer = jem_begin(ctx);
    jem_zeros(ctx, 1 << 20, 1, 1, 1);
    const jem_mark inner = jem_begin(ctx);
    jem_end(ctx, outer);
    jem_trim(ctx);                                 /* frees the chunk of the inner mark */
    jem_end(ctx, inner);
    jem_input(ctx, second, 1, 2, 1, 1);
    CHECK(jem_read(older, kept) == JEM_OK && kept[0] == 1 && kept[1] == 2,
          "after an outdated mark, an older tensor has %g, %g", (double)kept[0], (double)kept[1]);
    jem_reset(ctx);
}

static void test_walks(jem_ctx *ctx) {
    printf("samplers: the same\n");
    jem_net *net = small_mlp(ctx, two_numbers, 1);
    jem_tensor *x = jem_zeros(ctx, 3, 2, 1, 1);
    jem_rng rng = jem_rng_seed(1);
    for (size_t k = 0; k < 3; k++) {
        jem_sgld_desc d = jem_sgld_desc_default();
        d.step_size = wrong[k];
        CHECK(jem_sgld(ctx, jem_logp, net, x, &d, &rng) && says(ctx, "step_size"), "step");
        d = jem_sgld_desc_default();
        d.noise_std = wrong[k];
        CHECK(jem_sgld(ctx, jem_logp, net, x, &d, &rng) && says(ctx, "noise_std"), "noise");
        d = jem_sgld_desc_default();
        d.clamp_grad = wrong[k];
        CHECK(jem_sgld(ctx, jem_logp, net, x, &d, &rng) && says(ctx, "clamp_grad"), "clamp");
    }
    jem_sgld_desc d = jem_sgld_desc_default();
    d.clamp_lo = 1;
    d.clamp_hi = -1;
    CHECK(jem_sgld(ctx, jem_logp, net, x, &d, &rng) && says(ctx, "clamp_hi = -1"), "range");
    d = jem_sgld_desc_default();
    d.decay_gamma = 0.6f;
    CHECK(jem_sgld(ctx, jem_logp, net, x, &d, &rng) && says(ctx, "decay_gamma = 0.6"), "no b");
    d = jem_sgld_desc_default();
    d.steps = -1;
    CHECK(jem_sgld(ctx, jem_logp, net, x, &d, &rng) && says(ctx, "steps = -1"), "steps");
    jem_denoise_desc blind = jem_denoise_desc_default();
    blind.sigma_max = 0;
    CHECK(jem_denoise(ctx, jem_logp, net, x, &blind, &rng) && says(ctx, "sigma_max = 0"),
          "no noise");
    int label = 0;
    CHECK(!jem_kl_walk(ctx, jem_logp, NULL, x, NULL, 1, &rng) && says(ctx, "NULL"), "no query");
    CHECK(!jem_kl_walk(ctx, jem_logp, net, NULL, NULL, 1, &rng) && says(ctx, "x is NULL"), "no x");
    CHECK(!jem_kl_walk(NULL, jem_logp, net, x, NULL, 1, &rng) &&
          !jem_slope_along(NULL, jem_logp, net, x, x, 0), "no context");
    CHECK(!jem_slope_along(ctx, jem_logp, net, x, NULL, 0) && says(ctx, "leaves"), "no direction");
    jem_sgld_desc frozen = jem_sgld_desc_default();
    frozen.step_size = NAN;
    CHECK(!jem_kl_walk(ctx, jem_logp, net, x, &frozen, 1, &rng) && says(ctx, "kl_walk: step_size"),
          "the walk's name");
    jem_ctx *other = jem_ctx_create(NULL);
    jem_tensor *theirs = jem_zeros(other, 3, 2, 1, 1);
    CHECK(jem_sgld(ctx, jem_logp, net, theirs, NULL, &rng) && says(ctx, "another context") &&
          !jem_slope_along(ctx, jem_logp, net, x, theirs, 0) && says(ctx, "one context"),
          "two contexts");
    jem_ctx_free(other);
    CHECK(jem_sgld(ctx, jem_logp_class, net, x, NULL, &rng) && says(ctx, "logp_class"), "a net");
    jem_query nothing = { NULL, &label, 0 };
    CHECK(jem_sgld(ctx, jem_logp, &nothing, x, NULL, &rng) && says(ctx, "net is NULL"), "no net");
    CHECK(!jem_buffer_create(ctx, 65536, 65536, 65536, 65536, 0, &rng) && says(ctx, "65536"),
          "a buffer of 2^64 numbers");
    jem_reset(ctx);
    jem_net_free(net);
}

/* A number of a desc, by its place, and a value that is refused by its name. */
typedef struct setting { const char *name; size_t at; float value; } setting;

#define ALL_REFUSED(table, type, call) \
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) { \
        type d = type##_default(); \
        const char *point = strchr(table[i].name, '.'); \
        memcpy((char *)&d + table[i].at, &table[i].value, sizeof(float)); \
        CHECK((call) == JEM_BAD_ARGUMENT && says(ctx, point ? point + 1 : table[i].name), \
              #type ".%s = %g", table[i].name, (double)table[i].value); \
    }

/* What others hold is looked at before anything is done. */
static void test_descs(jem_ctx *ctx) {
    printf("descs within descs: the same, and x stays as it was\n");
    jem_net *net = small_mlp(ctx, two_numbers, 1);
    jem_tensor *x = jem_zeros(ctx, 3, 2, 1, 1);
    jem_rng rng = jem_rng_seed(1);
    const float known[6] = { 1, 0, 1, 0, 1, 0 };
    float before[6] = { .1f, .2f, .3f, .4f, .5f, .6f };
    float after[6];
    jem_write(x, before);
#define FRESH(name, value) { #name, offsetof(jem_generate_desc, name), value }
    static const setting fresh[] = {
        FRESH(lo, NAN), FRESH(hi, -1), FRESH(mean, NAN), FRESH(mean, 1e5f), FRESH(last_sigma, -1),
        FRESH(last_sigma, NAN), FRESH(last_sigma, 1e-35f), FRESH(denoise.beta, 2),
        FRESH(denoise.fraction, 0), FRESH(walk.noise_std, -1)
    };
#define IMPUTE(name, value) { #name, offsetof(jem_impute_desc, name), value }
    static const setting impute[] = {
        IMPUTE(lo, NAN), IMPUTE(hi, -2), IMPUTE(denoise.fraction, 2),
        IMPUTE(walk.step_size, INFINITY), IMPUTE(last_sigma, NAN), IMPUTE(last_sigma, -1)
    };
#define AIS(name, value) { #name, offsetof(jem_ais_desc, name), value }
    static const setting ais[] = { AIS(std, 1e-25f), AIS(std, 1e25f), AIS(std, NAN) };
    jem_ais_result result;
    ALL_REFUSED(fresh, jem_generate_desc, jem_generate(ctx, jem_logp, net, x, &d, &rng))
    ALL_REFUSED(impute, jem_impute_desc, jem_impute(ctx, jem_logp, net, x, known, &d, &rng))
    ALL_REFUSED(ais, jem_ais_desc, jem_ais(ctx, jem_logp, net, x, &d, &rng, &result))
    jem_ais_desc q = jem_ais_desc_default();
    q.mean = NAN;
    CHECK(jem_ais(ctx, jem_logp, net, x, &q, &rng, &result) && says(ctx, "ais: mean = nan"), "q");
    jem_impute_desc d = jem_impute_desc_default();
    d.walk.steps = -1;
    CHECK(jem_impute(ctx, jem_logp, net, x, known, &d, &rng) && says(ctx, "walk: steps = -1"),
          "walk");
    d = jem_impute_desc_default();
    d.denoise.steps = -5;
    CHECK(jem_impute(ctx, jem_logp, net, x, known, &d, &rng) && says(ctx, "denoise: steps = -5"),
          "noise-blind");
    CHECK(jem_read(x, after) == JEM_OK && !memcmp(before, after, sizeof after), "x is another");
    jem_reset(ctx);
    jem_net_free(net);
}

static void test_attacks(jem_ctx *ctx) {
    printf("attacks: the same\n");
    jem_net *net = small_mlp(ctx, two_numbers, 1);
    jem_rng rng = jem_rng_seed(1);
    const int labels[3] = { 0, 1, 0 };
    float before[6] = { .1f, .2f, .3f, .4f, .5f, .6f };
    float after[6];
#define ATTACK(name, value) { #name, offsetof(jem_attack_desc, name), value }
    static const setting attack[] = {
        ATTACK(eps, NAN), ATTACK(eps, -1), ATTACK(step_size, -1),
        ATTACK(least_probability, 5), ATTACK(least_probability, NAN),
        ATTACK(lo, NAN), ATTACK(hi, -2)
    };
    ALL_REFUSED(attack, jem_attack_desc,
                jem_attack(net, before, labels, 3, &d, &rng, after, NULL))
    jem_attack_desc a = jem_attack_desc_default();
    a.restarts = 0;
    CHECK(jem_attack(net, before, labels, 3, &a, &rng, after, NULL) &&
          says(ctx, "restarts = 0"), "no attempt");
    a = jem_attack_desc_default();
    a.steps = 0;
    CHECK(jem_attack(net, before, labels, 3, &a, &rng, after, NULL) &&
          says(ctx, "steps = 0"), "steps");
    a = jem_attack_desc_default();
    a.eps = HUGE_VALF;
    CHECK(jem_attack(net, before, labels, 3, &a, &rng, after, NULL) &&
          says(ctx, "step_size = 0"), "step");
    CHECK(jem_attack(net, before, labels, 3, NULL, NULL, after, NULL) &&
          says(ctx, "needs an rng"), "rng");
    CHECK(jem_attack(net, before, labels, 3, NULL, &rng, NULL, NULL) &&
          says(ctx, "found"), "found");
    CHECK(jem_attack(net, before, NULL, 3, NULL, &rng, after, NULL) &&
          says(ctx, "labels are NULL"), "none");
    CHECK(jem_attack(net, NULL, labels, 3, NULL, &rng, after, NULL) &&
          says(ctx, "x is NULL"), "images");
    before[4] = 10001;
    CHECK(jem_attack(net, before, labels, 3, NULL, &rng, after, NULL) &&
          says(ctx, "row 2 contains 10001"), "far");
    jem_reset(ctx);
    jem_net_free(net);
}

/* What is no description, no activation, no noise, no error. */
static void test_little(jem_ctx *ctx) {
    printf("small things: a precision, an activation, a noise, a status that is not an error\n");
    jem_ctx_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.precision = (jem_precision)9;
    CHECK(!jem_ctx_create(&desc), "a precision that there is not");
    jem_tensor *x = jem_zeros(ctx, 2, 1, 1, 1);
    CHECK(!jem_activate(ctx, x, (jem_activation)99, 0) && says(ctx, "unknown activation 99"),
          "activation");
    jem_rng rng = jem_rng_seed(1);
    const float sigma[2] = { .1f, NAN };
    float v[2] = { 7, 7 };
    CHECK(jem_add_noise(x, sigma, &rng) == JEM_BAD_ARGUMENT && says(ctx, "sigma[1]"), "noise");
    CHECK(jem_read(x, v) == JEM_OK && v[0] == 0 && v[1] == 0, "x is another");
    CHECK(jem_fail(ctx, JEM_OK, "hello") == JEM_OK && jem_ok(ctx) && !*jem_error(ctx), "no error");
    jem_buffer *b = jem_buffer_create(ctx, 4, 1, 1, 1, 0, &rng);
    CHECK(jem_buffer_restart(b, &rng, -3e38f, 3e38f) == JEM_BAD_ARGUMENT &&
          says(ctx, "not a range") && b->lo == -1 && b->hi == 1, "a range beyond all numbers");
    jem_buffer_free(b);
    jem_net *net = small_mlp(ctx, two_numbers, 1);
    static const char *const keys[] = { "jem.activation", "jem.scale", "jem.temperature", "jem." };
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const char *was = jem_net_meta(net, keys[i]);
        CHECK(jem_net_set_meta(net, keys[i], "1") == JEM_BAD_ARGUMENT &&
              says(ctx, "are reserved") && jem_net_meta(net, keys[i]) == was, "%s", keys[i]);
    }
    CHECK(jem_net_set_meta(net, "jem.temperature", NULL) == JEM_OK &&
          jem_net_set_meta(net, "jem", "mine") == JEM_OK &&
          jem_net_set_meta(net, "run.jem.x", "mine") == JEM_OK, "%s", jem_error(ctx));
    jem_reset(ctx);
    jem_net_free(net);
}

static jem_tensor *nothing(jem_net *net, jem_tensor *x, int training, void *user) {
    (void)net;
    (void)x;
    (void)training;
    (void)user;
    return NULL;
}

static void test_null(jem_ctx *ctx) {
    printf("NULL, wherever it can be\n");
    float x[4] = { 0 };
    jem_answer a;
    int label = 0;
    jem_end(NULL, jem_begin(NULL));
    jem_reset(NULL);
    jem_clear_error(NULL);
    jem_ctx_free(NULL);
    jem_net_free(NULL);
    jem_trainer_free(NULL);
    jem_buffer_free(NULL);
    jem_archive_free(NULL);
    jem_optim_free(NULL);
    jem_zero_grad(NULL);
    jem_param_changed(NULL);
    jem_keep(NULL);
    jem_release(NULL, NULL);
    jem_trainer_reseed(NULL, 1);
    jem_trainer_set_lr(NULL, 1);
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
    jem_net *net = small_mlp(ctx, two_numbers, 1);
    CHECK(!jem_net_find(net, NULL) && jem_ok(ctx), "no name");
    CHECK(jem_classify(net, NULL, 1, &a) && says(ctx, "NULL"), "no images");
    CHECK(jem_accuracy(net, x, NULL, 1) < 0 && says(ctx, "labels are NULL"), "no labels");
    CHECK(jem_calibrate(net, NULL, 5, JEM_AUTO) && says(ctx, "calibrate"), "no images");
    jem_net_free(net);
    net = jem_net_create(ctx, nothing, NULL, 0, 2, 1, 1, 2, 1);
    a.label = 77;
    CHECK(jem_classify(net, x, 1, &a) && says(ctx, "returned NULL"),
          "a function that returns NULL");
    CHECK(jem_accuracy(net, x, &label, 1) < 0 && says(ctx, "returned NULL"), "its accuracy");
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
            d.depth = 10;
            d.widen = 1;
            d.separate_energy = 1;
            jem_fail(ctx, JEM_DIVERGED, "of before");
            c.fail_at = c.calls + k;
            jem_net *net = wrn ? jem_wrn_create(ctx, &d, 1) : jem_mlp_create(ctx, NULL, 1);
            whole = c.calls < c.fail_at;
            CHECK(!net == !whole, "%s, allocation %ld: %s", wrn ? "wrn" : "mlp", k,
                  net ? "half a network" : "no network");
            CHECK(says(ctx, "of before"), "the first error remains");
            jem_net_free(net);
            close_ctx(ctx, &c, "half made");
        }
        CHECK(k > 20 && k < 1000, "%ld allocations", k);
    }
}

/* What a run needs at once, if it is more than the arena has in one piece, is asked for by
   itself. */
static void test_large_run(void) {
    printf("a gradient without memory\n");
    int refused = 0;
    int whole = 0;
    for (long k = 1; !whole && k < 100; k++) {
        counter c;
        jem_ctx *ctx = open_ctx(&c);
        jem_tensor *x = jem_zeros(ctx, 1, 16, 64, 64);
        jem_tensor *y = jem_sum_image(ctx, jem_square(ctx, jem_tanh(ctx, jem_square(ctx, x))));
        c.fail_at = c.calls + k;
        const jem_status s = jem_grad(y, x);
        whole = c.calls < c.fail_at;
        refused += s == JEM_NO_MEMORY;
        CHECK(s == (whole ? JEM_OK : JEM_NO_MEMORY) && s == jem_error_status(ctx),
              "allocation %ld: %s", k, jem_error(ctx));
        close_ctx(ctx, &c, "a gradient");
    }
    CHECK(whole && refused > 1, "%d allocations", refused);
}

/* ---- no memory, at every place in the arena ---- */

enum { IMAGES = 3, PIXELS = 12 };
typedef struct subject {
    jem_net *net;
    jem_trainer *trainer;
    jem_rng rng;
    float x[IMAGES * PIXELS], known[IMAGES * PIXELS], out[IMAGES * PIXELS];
    int labels[IMAGES];
    unsigned char pixels[4 * PIXELS];
} subject;

static jem_status do_classify(subject *s) {
    jem_answer a[IMAGES];
    return jem_classify(s->net, s->x, IMAGES, a);
}
static jem_status do_logits(subject *s) { return jem_logits(s->net, s->x, IMAGES, s->out); }
static jem_status do_calibrate(subject *s) { return jem_calibrate(s->net, s->x, IMAGES, JEM_AUTO); }
static jem_status do_logits_only(subject *s) {
    return jem_calibrate(s->net, s->x, IMAGES, 0);
}
static jem_status do_accuracy(subject *s) {
    const float right = jem_accuracy(s->net, s->x, s->labels, IMAGES);
    return right < 0 ? jem_error_status(s->net->ctx) : JEM_OK;
}
static jem_status do_temperature(subject *s) {
    const float t = jem_fit_temperature(s->net, s->x, s->labels, IMAGES);
    return t < 0 ? jem_error_status(s->net->ctx) : JEM_OK;
}
static jem_status do_mass(subject *s) {
    return jem_ood_score(s->net, JEM_OOD_MASS, NULL, s->x, IMAGES, s->out);
}
static jem_status do_rise(subject *s) {
    return jem_ood_score(s->net, JEM_OOD_RISE, NULL, s->x, IMAGES, s->out);
}
static jem_status do_usual(subject *s) {
    return jem_ood_score(s->net, JEM_OOD_USUAL, NULL, s->x, IMAGES, s->out);
}
static jem_status do_attack(subject *s) {
    return jem_attack(s->net, s->x, s->labels, IMAGES, NULL, &s->rng, s->out, NULL);
}
static jem_status do_impute(subject *s) {
    jem_ctx *ctx = s->net->ctx;
    jem_impute_desc d = jem_impute_desc_default();
    d.denoise.steps = d.walk.steps = 1;
    jem_tensor *x = jem_input(ctx, s->x, IMAGES, 3, 2, 2);
    return jem_impute(ctx, jem_logp, s->net, x, s->known, &d, &s->rng);
}
static jem_status do_sample(subject *s) { return jem_sample(s->net, 1, 1, 1, NULL, s->pixels); }
static jem_status do_pixels(subject *s) {
    jem_answer a;
    return jem_classify_pixels(s->net, s->pixels, 4, 3, 4, NULL, &a, NULL);
}
static jem_status do_update(subject *s) {
    return jem_train_step(s->trainer, s->x, s->labels, IMAGES).status;
}
static jem_status do_unlabelled(subject *s) {
    return jem_train_step_semi(s->trainer, NULL, NULL, 0, s->x, IMAGES).status;
}
static const struct { const char *name; jem_status (*run)(subject *); } uses[] = {
    { "classify", do_classify }, { "logits", do_logits }, { "calibrate", do_calibrate },
    { "calibrate without gradients", do_logits_only },
    { "accuracy", do_accuracy }, { "temperature", do_temperature }, { "mass", do_mass },
    { "rise", do_rise }, { "usual", do_usual }, { "attack", do_attack }, { "impute", do_impute },
    { "sample", do_sample }, { "pixels", do_pixels }, { "update", do_update },
    { "unlabelled update", do_unlabelled }
};

/* Refuses the arena another piece (see jem__push). */
enum { PIECE = 1 << 20 };
typedef struct pieces { counter count; int full, refused; } pieces;
static void *piece_allocate(void *user, size_t bytes) {
    pieces *p = (pieces *)user;
    const int refuse = p->full && bytes >= PIECE;
    p->refused += refuse;
    return refuse ? NULL : count_allocate(&p->count, bytes);
}
static void piece_release(void *user, void *memory) {
    count_release(&((pieces *)user)->count, memory);
}

static void one_by_one(void *user, int n, void (*task)(void *arg, int i), void *arg) {
    (void)user;
    for (int i = 0; i < n; i++) task(arg, i);
}
static void test_many_threads(void) {
    printf("more threads than there can be\n");
    float x[17 * 12], f[2][2 * 17];
    for (int i = 0; i < 17 * 12; i++) x[i] = sinf((float)i);
    for (int k = 0; k < 2; k++) {
        jem_ctx_desc desc;
        memset(&desc, 0, sizeof desc);
        desc.threads = k ? 0x7fffffff : 1;
        desc.parallel_for = one_by_one;
        jem_ctx *ctx = jem_ctx_create(&desc);
        jem_convnet_desc d = jem_convnet_desc_default();
        d.channels = 3;
        d.height = d.width = 2;
        d.classes = 2;
        d.layers = 1;
        d.widths[0] = 2;
        jem_net *net = jem_convnet_create(ctx, &d, 1);
        CHECK(jem_logits(net, x, 17, f[k]) == JEM_OK, "%s", jem_error(ctx));
        jem_net_free(net);
        jem_ctx_free(ctx);
    }
    CHECK(same_bits(f[0], f[1], 34), "%g, not %g", (double)f[1][0], (double)f[0][0]);
#ifdef _OPENMP
    const int usual = omp_get_max_threads();
    omp_set_num_threads(6000);                     /* as OMP_NUM_THREADS would */
    jem_ctx *ctx = jem_ctx_create(NULL);
    CHECK(jem_ctx_threads(ctx) == 4096, "OpenMP's %d", jem_ctx_threads(ctx));
    jem_ctx_free(ctx);
    omp_set_num_threads(usual);
#endif
}

static void subject_open(subject *s, jem_ctx *ctx) {
    jem_convnet_desc d = jem_convnet_desc_default();
    memset(s, 0, sizeof *s);
    d.channels = 3;
    d.height = d.width = 2;
    d.classes = 2;
    d.layers = 1;
    d.widths[0] = 2;
    s->net = jem_convnet_create(ctx, &d, 1);
    s->rng = jem_rng_seed(1);
    for (int i = 0; i < IMAGES * PIXELS; i++) s->x[i] = 2 * jem_rng_uniform(&s->rng) - 1;
    s->labels[1] = 1;
    if (s->net) s->net->scale = 10;
    jem_train_desc how = jem_train_desc_score(100);
    how.cd_from = 0;
    how.restart_denoise.steps = 1;
    how.buffer_size = how.negatives = 2;
    s->trainer = jem_trainer_create(s->net, &how);
}

/* Its first piece is used by half, so that a leaf which leaves less room than that is in the
   second: more room, until it is enough. */
static void test_full_arena(void) {
    printf("answers and updates whose memory ends anywhere\n");
    for (size_t k = 0; k < sizeof uses / sizeof *uses; k++) {
        pieces p;
        subject s;
        jem_ctx_desc desc;
        memset(&desc, 0, sizeof desc);
        memset(&p, 0, sizeof p);
        desc.threads = 1;
        desc.user = &p;
        desc.allocate = piece_allocate;
        desc.release = piece_release;
        jem_ctx *ctx = jem_ctx_create(&desc);
        subject_open(&s, ctx);
        const int most = PIECE / 2;
        int room = 0;
        int refused = 0;
        CHECK(do_calibrate(&s) == JEM_OK && uses[k].run(&s) == JEM_OK, "%s", jem_error(ctx));
        for (p.refused = 1; p.refused && room < most; room += 64) {
            const jem_mark mark = jem_begin(ctx);
            jem_zeros(ctx, 1, PIECE / 2 / 64, 1, 1);       /* 16 lanes of 4 bytes a channel */
            CHECK(jem_zeros(ctx, 1, (PIECE - room) / 64, 1, 1) != NULL, "%s", jem_error(ctx));
            p.full = 1;
            p.refused = 0;
            const jem_status got = uses[k].run(&s);
            p.full = 0;
            refused += p.refused > 0;
            CHECK(got == (p.refused ? JEM_NO_MEMORY : JEM_OK) && got == jem_error_status(ctx),
                  "%s, room for %d: %d, %s", uses[k].name, room, (int)got, jem_error(ctx));
            jem_end(ctx, mark);
            jem_clear_error(ctx);
        }
        CHECK(refused > 10 && room < most, "%s: %d of %d", uses[k].name, refused, room);
        CHECK(uses[k].run(&s) == JEM_OK, "%s, afterwards: %s", uses[k].name, jem_error(ctx));
        jem_trainer_free(s.trainer);
        jem_net_free(s.net);
        close_ctx(ctx, &p.count, uses[k].name);
    }
}

int main(int argc, char **argv) {
    static const test_case all[] = {
        TEST_IN(test_trainer), TEST_IN(test_pauses), TEST_IN(test_trainer_options),
        TEST_IN(test_trainer_data),
        TEST_IN(test_late_parameter), TEST_IN(test_late_optim), TEST_IN(test_callbacks),
        TEST_IN(test_walks), TEST_IN(test_descs), TEST_IN(test_attacks), TEST_IN(test_little),
        TEST_IN(test_null), TEST_IN(test_escapes), TEST(test_half_made), TEST(test_large_run),
        TEST(test_many_threads), TEST(test_full_arena)
    };
    return run_in_ctx(argc, argv, all, TEST_COUNT(all), NULL);
}
