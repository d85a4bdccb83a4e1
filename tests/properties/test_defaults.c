/* Defaults as documented in the header, and options in combination: the schedule of a trainer,
   fresh chains of each class, explicit walks, ends of ranges. */
#define JEM_IMPLEMENTATION
#include "jem.h"
#include "tests/support/test.h"
#include "tests/support/common.h"

enum { D = 16, N = 64 };

/* ---- densities and networks ------------------------------------------------------------------ */

static jem_tensor *flat(jem_ctx *ctx, jem_tensor *x, void *user) {
    (void)user;
    return jem_scale(ctx, jem_sum_image(ctx, x), 0);
}
/* log p = exp(80 x), which is infinite beyond 1.2. */
static jem_tensor *cliff(jem_ctx *ctx, jem_tensor *x, void *user) {
    (void)user;
    return jem_sum_image(ctx, jem_square(ctx, jem_exp(ctx, jem_scale(ctx, x, 40))));
}
/* log p = -D/2 log |x - m|^2: one point, with any amount of noise on it. */
static jem_tensor *point(jem_ctx *ctx, jem_tensor *x, float m) {
    jem_tensor *square = jem_sum_image(ctx, jem_square(ctx, jem_add_constant(ctx, x, -m)));
    return jem_scale(ctx, jem_log(ctx, square), -0.5f * D);
}
/* Class 0 is at -1, class 1 at 1. */
static jem_tensor *two_points(jem_net *net, jem_tensor *x, int training, void *user) {
    (void)training;
    (void)user;
    return jem_linear(net->ctx, jem_concat(net->ctx, point(net->ctx, x, -1),
                                           point(net->ctx, x, 1)), net->params, NULL);
}
static jem_tensor *linear(jem_net *net, jem_tensor *x, int training, void *user) {
    (void)training;
    (void)user;
    return jem_linear(net->ctx, jem_flatten(net->ctx, x), net->params, NULL);
}
static jem_tensor *itself(jem_net *net, jem_tensor *x, int training, void *user) {
    (void)net;
    (void)training;
    (void)user;
    return x;
}
/* Two classes of D numbers, from `in` of them by weights w. */
static jem_net *net_of(jem_ctx *ctx, jem_forward_fn forward, int in) {
    const int shape[2] = { 2, in };
    jem_net *net = jem_net_create(ctx, forward, NULL, 0, D, 1, 1, 2, 1);
    jem_param *w = jem_net_param(net, "w", 2, shape, 1);
    if (in == 2) w->value[0] = w->value[3] = 1;
    jem_param_changed(w);
    return net;
}

static double mean_of(const float *x, ptrdiff_t n) {
    double mean = 0;
    for (ptrdiff_t i = 0; i < n; i++) mean += (double)x[i] / (double)n;
    return mean;
}

/* ---- tests ----------------------------------------------------------------------------------- */

/* Returns 1 if a walk has these values, and everything else is off. */
static int is_walk(const jem_sgld_desc *d, int steps, float step_size, float noise_std) {
    return d->steps == steps && d->step_size == step_size && d->noise_std == noise_std &&
           d->clamp_grad == 0 && d->clamp_lo == 0 && d->clamp_hi == 0 && d->decay_b == 0 &&
           d->decay_gamma == 0 && d->temperature_from == 0 && d->temperature_to == 0 && !d->watch &&
           !d->watch_user;
}
static int is_denoise(const jem_denoise_desc *d, int steps, float fraction, float beta,
                      float sigma_max) {
    return d->steps == steps && d->fraction == fraction && d->beta == beta &&
           d->sigma_max == sigma_max && !d->watch && !d->watch_user;
}
static int is_mcmc(const jem_mcmc_desc *d, int steps, int leapfrog) {
    return d->steps == steps && d->step_size == 0.1f && d->leapfrog == leapfrog &&
           d->temperatures == 1 && d->hottest == 10 && !d->swapped && !d->watch && !d->watch_user;
}
/* Returns 1 if an optimiser has the default values, except `kind`, `clip` and `ema`. */
static int is_optim(const jem_optim_desc *d) {
    return d->beta1 == 0.9f && d->beta2 == 0.999f && d->eps == 1e-8f && d->momentum == 0 &&
           d->weight_decay == 0 && !d->only && d->muon_momentum == 0.95f &&
           !strcmp(d->adam_names, "output") && d->adam_rate == 1;
}

/* Checks that every field of a desc has the value in its comment. */
static void test_sampler_descs(jem_ctx *ctx) {
    (void)ctx;
    const jem_sgld_desc s = jem_sgld_desc_default();
    CHECK(is_walk(&s, 20, 1, 0.01f), "jem_sgld_desc");
    const jem_sgld_desc l = jem_sgld_desc_langevin(0.25f, 7);
    CHECK(is_walk(&l, 7, 0.125f, 0.5f), "jem_sgld_desc_langevin");
    const jem_denoise_desc d = jem_denoise_desc_default();
    CHECK(is_denoise(&d, 300, 0.05f, 0.3f, 2), "jem_denoise_desc");
    const jem_denoise_desc c = jem_denoise_desc_clean(0.5f);
    CHECK(c.steps == 1 && c.fraction == 0.8f && c.sigma_max == 0.5f, "jem_denoise_desc_clean");
    const jem_generate_desc g = jem_generate_desc_default();
    CHECK(g.lo == 0 && g.hi == 0 && g.mean == 0 && is_denoise(&g.denoise, 300, 0.05f, 0.3f, 2) &&
          is_walk(&g.walk, 300, 0.01f, 0.1f) && g.last_sigma == 0.24f, "jem_generate_desc");
    const jem_mcmc_desc m = jem_mcmc_desc_default();
    CHECK(is_mcmc(&m, 1000, 1), "jem_mcmc_desc");
    const jem_ais_desc a = jem_ais_desc_default();
    CHECK(a.levels == 500 && a.mean == 0 && a.std == 1 && is_mcmc(&a.walk, 1, 5), "jem_ais_desc");
    const jem_impute_desc i = jem_impute_desc_default();
    CHECK(is_denoise(&i.denoise, 0, 0.8f, 0.019f, 2) && is_walk(&i.walk, 300, 1, 0.01f) &&
          i.lo == -1 && i.hi == 1 && i.last_sigma == 0.25f, "jem_impute_desc");
    const jem_attack_desc t = jem_attack_desc_default();
    CHECK(t.eps == 0.2f && !t.l2 && t.steps == 40 && t.step_size == 0 && t.restarts == 1 &&
          t.random_start == 1 && !t.all_steps && t.momentum == 0 && !t.targeted &&
          t.least_probability == 0 && t.lo == -1 && t.hi == 1 && !t.classify && !t.user,
          "jem_attack_desc");
}

static void test_network_descs(jem_ctx *ctx) {
    (void)ctx;
    const jem_wrn_desc w = jem_wrn_desc_default();
    CHECK(w.depth == 28 && w.widen == 10 && w.channels == 3 && w.height == 32 && w.width == 32 &&
          w.classes == 10 && w.activation == JEM_ACTIVATION_LEAKY_RELU && w.leak == 0.2f &&
          w.norm == JEM_NORM_NONE && w.dropout == 0 && w.head == JEM_HEAD_POOLED &&
          w.stem_stride == 1 && !w.separate_energy && w.blocks == JEM_BLOCKS_WRN && !w.unet,
          "jem_wrn_desc");
    const jem_convnet_desc c = jem_convnet_desc_default();
    CHECK(c.channels == 1 && c.height == 28 && c.width == 28 && c.classes == 10 && c.layers == 4 &&
          c.widths[0] == 16 && c.widths[1] == 32 && c.widths[2] == 64 && c.widths[3] == 64 &&
          c.activation == JEM_ACTIVATION_SILU && c.leak == 0.2f && !c.separate_energy &&
          c.quadratic == 0 && c.student == 0, "jem_convnet_desc");
    const jem_mlp_desc m = jem_mlp_desc_default();
    CHECK(m.channels == 1 && m.height == 28 && m.width == 28 && m.classes == 10 && m.layers == 2 &&
          m.widths[0] == 128 && m.widths[1] == 128 && m.activation == JEM_ACTIVATION_SILU &&
          m.leak == 0.2f && !m.separate_energy && m.quadratic == 0 && m.student == 0,
          "jem_mlp_desc");
    const jem_mlp_desc v = jem_mlp_desc_vectors(7, 2);
    CHECK(v.channels == 7 && v.height == 1 && v.width == 1 && v.classes == 2 && v.layers == 3 &&
          v.widths[0] == 64 && v.widths[1] == 64 && v.widths[2] == 64 && v.student == 3 &&
          v.quadratic == 0, "jem_mlp_desc_vectors");
}

static void test_training_descs(jem_ctx *ctx) {
    (void)ctx;
    const jem_optim_desc o = jem_optim_desc_default();
    CHECK(o.kind == JEM_OPTIMIZER_ADAM && o.clip == 0 && o.ema == 0 && is_optim(&o),
          "jem_optim_desc");
    const jem_train_desc t = jem_train_desc_default();
    CHECK(t.lr == 1e-4f && t.schedule.kind == JEM_SCHEDULE_CONSTANT && t.schedule.warmup == 0,
          "jem_train_desc: its rate");
    CHECK(t.optim.kind == JEM_OPTIMIZER_ADAM && t.optim.clip == 0 && t.optim.ema == 0 &&
          is_optim(&t.optim), "jem_train_desc: Adam");
    CHECK(t.weights.ce == 1 && t.weights.cd == 1 && t.weights.cd_class == 0 &&
          t.weights.energy_l2 == 0 && t.w_score == 0 && t.w_nce == 0 && t.w_kl == 0 &&
          t.kl_entropy == 1 && t.w_term == 0 && !t.term && !t.term_user && t.sam == 0,
          "jem_train_desc: terms of the loss");
    CHECK(t.data_noise == 0.03f && t.label_noise == 0 && t.label_all_noise == 0 &&
          t.label_smoothing == 0 && t.noise_lo == 0.12f && t.noise_hi == 2, "jem_train_desc: data");
    CHECK(t.cd_from == 0 && is_walk(&t.sgld, 20, 1, 0.01f) && t.negatives == 64 &&
          t.buffer_size == 10000 && t.reinit == 0.05f && t.restart_lo == -1 && t.restart_hi == 1 &&
          is_denoise(&t.restart_denoise, 0, 0.05f, 0.3f, 2) && !t.chain && !t.chain_user &&
          !t.class_conditional, "jem_train_desc: chains");
    CHECK(t.max_loss == 1e8f && t.pause_gap == 0 && t.max_gap == 100 && t.max_rollbacks == 20 &&
          t.least_scale == 0 && t.seed == 1 && t.rank == 0 && t.ranks == 1 && !t.sum && !t.sum_user,
          "jem_train_desc: the guard, the seed, ranks");
    const jem_train_desc s = jem_train_desc_score(1000);
    CHECK(s.optim.kind == JEM_OPTIMIZER_MUON && s.w_score > 0 && s.weights.cd > 0 &&
          s.cd_from == 600 && s.pause_gap == 0 && s.least_scale == 2, "jem_train_desc_score");
    const jem_train_desc v = jem_train_desc_vectors(1000);
    CHECK(v.w_nce > 0 && v.weights.cd == 0 && v.weights.cd_class == 0 && v.w_kl == 0 &&
          v.w_score == 0 && v.optim.ema > 0, "jem_train_desc_vectors");
}

/* The rate of each update is the schedule's, of the lr that was set last; dropout is reseeded. */
static void test_rates(jem_ctx *ctx) {
    float x[N * D];
    int y[N];
    for (int i = 0; i < N; i++) y[i] = i % 2;
    for (int i = 0; i < N * D; i++) x[i] = i / D % 2 ? 1 : -1;
    jem_net *net = net_of(ctx, linear, D);
    jem_train_desc d = jem_train_desc_default();
    d.weights.cd = 0;
    d.schedule.warmup = 4;
    d.schedule.kind = JEM_SCHEDULE_COSINE;
    d.schedule.total = 9;
    jem_trainer *tr = jem_trainer_create(net, &d);
    for (int i = 0; i < 8; i++) {
        if (i == 5) jem_trainer_set_lr(tr, d.lr = 3e-4f);
        const float lr = jem_train_step(tr, x, y, N).lr;
        CHECK(lr == jem_learning_rate(&d.schedule, d.lr, i), "update %d: %g", i, (double)lr);
    }
    const jem_rng was = net->rng;
    jem_trainer_reseed(tr, 5);
    CHECK(memcmp(&was, &net->rng, sizeof was), "reseed: dropout has the same numbers");
    jem_trainer_free(tr);
    /* `diverged` holds on either side of 0 */
    d.weights.ce = 0;
    d.weights.energy_l2 = 0;
    d.weights.cd = 1;
    d.max_loss = 1e-3f;
    d.negatives = 8;
    d.sgld.steps = 1;
    d.buffer_size = 8;
    d.sgld.noise_std = 0;
    d.sgld.step_size = 0;
    d.schedule.warmup = 0;
    for (int sign = -1; sign < 2; sign += 2) {
        for (int k = 0; k < 2 * D; k++) net->params->value[k] = (float)sign;
        jem_param_changed(net->params);
        for (int i = 0; i < N * D; i++) x[i] = 1;
        tr = jem_trainer_create(net, &d);
        const jem_stats s = jem_train_step(tr, x, y, N);
        CHECK(s.status == JEM_DIVERGED && (s.loss < 0) == (sign > 0), "a loss of %g: %d",
              (double)s.loss, (int)s.status);
        jem_clear_error(ctx);
        jem_trainer_free(tr);
    }
    jem_net_free(net);
}

/* A buffer's first chains, noise-blind: around the data's mean; each in a slot of its class. */
static void test_first_chains(jem_ctx *ctx) {
    enum { SLOTS = 40 };
    float x[N * D];
    int y[N];
    int wrong = 0;
    for (int i = 0; i < N; i++) y[i] = i % 2;
    for (int i = 0; i < N * D; i++) x[i] = i / D % 2 ? 1 : -1;
    jem_train_desc d = jem_train_desc_default();
    d.sgld.steps = 0;
    d.negatives = 8;
    d.lr = 1e-20f;
    jem_net *net = net_of(ctx, linear, D);
    net->mean = 0.5f;
    d.restart_denoise.steps = 3;
    d.buffer_size = 200;
    for (int k = 0; k < 2 * D; k++) net->params->value[k] = 0;
    jem_param_changed(net->params);
    jem_trainer *tr = jem_trainer_create(net, &d);
    CHECK(jem_train_step(tr, x, y, N).status == JEM_OK, "%s", jem_error(ctx));
    /* noise of sigma_max on 3,200 numbers */
    CHECK_CLOSE(mean_of(jem_trainer_buffer(tr)->data, 200 * D), 0.5, 0.2, "around net->mean");
    jem_trainer_free(tr);
    jem_net_free(net);
    net = net_of(ctx, two_points, 2);
    d.class_conditional = 1;
    d.restart_denoise.steps = 200;
    d.buffer_size = SLOTS;
    tr = jem_trainer_create(net, &d);
    CHECK(jem_train_step(tr, x, y, N).status == JEM_OK, "%s", jem_error(ctx));
    for (int i = 0; i < SLOTS; i++) {
        const double is = mean_of(jem_trainer_buffer(tr)->data + i * D, D);
        wrong += !(fabs(is - (i < SLOTS / 2 ? -1 : 1)) < 0.3);
    }
    CHECK(wrong == 0, "%d of %d chains are not of their slot's class", wrong, SLOTS);
    jem_trainer_free(tr);
    jem_net_free(net);
}

/* Fresh samples join the buffer every 1/reinit updates, rounded, counted from the first chains. */
static void test_fresh_chains(jem_ctx *ctx) {
    enum { SLOTS = 200, FROM = 2, EVERY = 4, FRESH = 4 };
    static float before[SLOTS * D];
    float x[N * D];
    int y[N];
    for (int i = 0; i < N; i++) y[i] = i % 2;
    for (int i = 0; i < N * D; i++) x[i] = i / D % 2 ? 1 : -1;
    jem_train_desc d = jem_train_desc_default();
    d.sgld.steps = 0;
    d.negatives = FRESH;
    d.lr = 1e-20f;
    d.buffer_size = SLOTS;
    d.cd_from = FROM;
    d.reinit = 0.28f;
    d.restart_denoise.steps = 3;                   /* 1 / 0.28 = 3.57 */
    jem_net *net = net_of(ctx, linear, D);
    jem_trainer *tr = jem_trainer_create(net, &d);
    for (int update = 0; update < FROM + 3 * EVERY; update++) {
        const float *data = jem_trainer_buffer(tr)->data;
        memcpy(before, data, sizeof before);
        CHECK(jem_train_step(tr, x, y, N).status == JEM_OK, "%s", jem_error(ctx));
        int changed = 0;
        for (int i = 0; i < SLOTS; i++)
            changed += memcmp(data + i * D, before + i * D, D * sizeof *before) != 0;
        const int since = update - FROM;
        int most = 0;
        if (since == 0) most = SLOTS;
        if (since > 0 && since % EVERY == 0) most = FRESH;
        CHECK(changed <= most && changed * 2 >= most, "update %d: %d new of %d", update, changed,
              most);
    }
    jem_trainer_free(tr);
    jem_net_free(net);
}

static void test_temperature(jem_ctx *ctx) {
    float f[2 * N];
    int y[N];
    for (int i = 0; i < N; i++) {
        y[i] = i % 2;
        f[2 * i + y[i]] = -3;
        f[2 * i + 1 - y[i]] = 3;
    }
    jem_net *net = jem_net_create(ctx, itself, NULL, 0, 2, 1, 1, 2, 1);
    CHECK_CLOSE(jem_fit_temperature(net, f, y, N), 100, 1e-2, "always wrong: all there is");
    jem_net_free(net);
}

static void test_mcmc(jem_ctx *ctx) {
    jem_rng rng = jem_rng_seed(1);
    float swapped[2];
    float x[N] = { 0 };
    jem_mcmc_desc d = jem_mcmc_desc_default();
    d.steps = 11;
    d.step_size = 1e-4f;
    d.temperatures = 3;
    d.hottest = 1;
    d.swapped = swapped;
    CHECK(jem_mcmc(ctx, gauss, NULL, jem_zeros(ctx, 12, 2, 1, 1), &d, &rng, NULL) == JEM_OK, "%s",
          jem_error(ctx));
    CHECK(swapped[0] == 1 && swapped[1] == 1, "alike, after an odd number of steps: %g %g",
          (double)swapped[0], (double)swapped[1]);
    d = jem_mcmc_desc_default();
    d.steps = 50;
    d.leapfrog = 0;
    d.step_size = 1;
    jem_tensor *t = jem_input(ctx, x, N, 1, 1, 1);
    CHECK(jem_mcmc(ctx, cliff, NULL, t, &d, &rng, NULL) == JEM_OK, "%s", jem_error(ctx));
    int beyond = 0;
    jem_read(t, x);
    for (int i = 0; i < N; i++) beyond += !(x[i] < 1.2f);
    CHECK(beyond == 0, "%d chains are where log p is infinite", beyond);
}

/* A classifier that answers what it should, and whose gradient is -1. */
static jem_status never_fooled(void *user, const float *x, const int *y, int n, float *f,
                               float *g) {
    (void)user;
    (void)x;
    for (int i = 0; i < n; i++) {
        f[2 * i + y[i]] = 1;
        f[2 * i + 1 - y[i]] = 0;
    }
    for (int i = 0; g && i < n * D; i++) g[i] = -1;
    return JEM_OK;
}
static void test_single_step(jem_ctx *ctx) {
    static float zero[N * D], found[N * D];
    int y[N];
    jem_rng rng = jem_rng_seed(1);
    jem_net *net = net_of(ctx, linear, D);
    jem_attack_desc d = jem_attack_desc_default();
    for (int i = 0; i < N; i++) y[i] = i % 2;
    d.steps = 1;
    d.random_start = 1;
    d.eps = 0.2f;
    d.classify = never_fooled;
    CHECK(jem_attack(net, zero, y, N, &d, &rng, found, NULL) == JEM_OK, "%s", jem_error(ctx));
    /* from u in [-eps, eps], up by eps and no further than eps: eps for u > 0, else u + eps */
    CHECK_CLOSE(mean_of(found, N * D), 0.15, 0.01, "a single step is eps");
    jem_net_free(net);
}

/* Of a network that learned a score, too, a walk that is given is the one that is walked. */
static void test_own_walk(jem_ctx *ctx) {
    float x[D];
    float move = 0;
    jem_net *net = net_of(ctx, linear, D);
    net->noise_lo = 0.5f;
    net->noise_hi = 2;
    for (int k = 0; k < 2 * D; k++) net->params->value[k] = k < D ? 1.0f : -1.0f;
    for (int k = 0; k < D; k++) x[k] = 1;
    jem_param_changed(net->params);
    jem_sgld_desc walk = jem_sgld_desc_default();
    walk.steps = 2;
    walk.step_size = 0.01f;
    CHECK(jem_ood_score(net, JEM_OOD_MOVE, &walk, x, 1, &move) == JEM_OK, "%s", jem_error(ctx));
    CHECK_CLOSE(move, -2 * 0.01 * sqrt((double)D), 1e-4, "two steps of .01, slope 1 everywhere");
    jem_net_free(net);
}

static double open_square;
static int look_first(void *user, int step, jem_tensor *x) {
    float v[N * D];
    (void)user;
    if (step || jem_read(x, v) != JEM_OK) return 0;
    open_square = 0;
    for (int i = 1; i < N * D; i += 2) open_square += (double)v[i] * (double)v[i] / (N * D / 2.0);
    return 0;
}
static void test_beginnings(jem_ctx *ctx) {
    static float x[N * D], known[N * D];
    jem_rng rng = jem_rng_seed(1);
    jem_tensor *t = jem_zeros(ctx, N, D, 1, 1);
    jem_generate_desc fresh = jem_generate_desc_default();
    fresh.mean = 3;
    fresh.denoise.sigma_max = 0.1f;
    fresh.last_sigma = 0;
    fresh.denoise.steps = fresh.walk.steps = 0;
    CHECK(jem_generate(ctx, flat, NULL, t, &fresh, &rng) == JEM_OK, "%s", jem_error(ctx));
    jem_read(t, x);
    CHECK_CLOSE(mean_of(x, N * D), 3, 0.02, "the mean that fresh samples begin with");

    for (int i = 0; i < N * D; i++) known[i] = (float)(i % 2 == 0);
    jem_impute_desc d = jem_impute_desc_default();
    d.denoise.steps = 2;
    d.denoise.watch = look_first;
    d.walk.steps = 0;
    CHECK(jem_impute(ctx, flat, NULL, t, known, &d, &rng) == JEM_OK, "%s", jem_error(ctx));
    /* nothing pulls: sigma_max, and the noise that the first step adds */
    const double step = (double)d.denoise.fraction;
    const double left = 1 - (double)d.denoise.beta * step;
    const double sigma = (double)d.denoise.sigma_max;
    CHECK_CLOSE(open_square, sigma * sigma * (1 + left * left - (1 - step) * (1 - step)), 1,
                "imputing begins with noise of sigma_max");
}

static void test_slope_in_bf16(void) {
    float x[784], along[784];
    jem_ctx_desc how;
    memset(&how, 0, sizeof how);
    how.precision = JEM_PRECISION_BF16;
    how.isa = JEM_ISA_SCALAR;
    jem_ctx *ctx = jem_ctx_create(&how);
    jem_net *net = jem_mlp_create(ctx, NULL, 1);
    for (int i = 0; i < 784; i++) {
        x[i] = sinf((float)i);
        along[i] = cosf((float)i);
    }
    jem_tensor *p = jem_input(ctx, x, 1, 1, 28, 28);
    jem_tensor *v = jem_input(ctx, along, 1, 1, 28, 28);
    const float by_default = jem_item(jem_slope_along(ctx, jem_logp, net, p, v, 0));
    const float by_name = jem_item(jem_slope_along(ctx, jem_logp, net, p, v, 0.01f * sqrtf(784)));
    CHECK(by_default == by_name, "%g and %g", (double)by_default, (double)by_name);
    jem_net_free(net);
    jem_ctx_free(ctx);
}

int main(int argc, char **argv) {
    static const test_case all[] = {
        TEST_IN(test_sampler_descs), TEST_IN(test_network_descs), TEST_IN(test_training_descs),
        TEST_IN(test_rates), TEST_IN(test_first_chains), TEST_IN(test_fresh_chains),
        TEST_IN(test_temperature), TEST_IN(test_mcmc),
        TEST_IN(test_single_step), TEST_IN(test_own_walk), TEST_IN(test_beginnings),
        TEST(test_slope_in_bf16)
    };
    return run_each_in_ctx(argc, argv, all, TEST_COUNT(all));
}
