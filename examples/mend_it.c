/* QUESTION  The JEM of worlds.c has lost the outer one of two circles: the mean log p of new points
             is below that of the uniform density. What repairs it?

   FORMULA   grad log p = grad f(data) - E[grad f(x')], x' from the model. If the chains cannot
             cross from one circle to the other, x' is not from the model: each circle is balanced
             against the chains that happen to be there, so the probability of each is
             undetermined. Two remedies:
                 tempered     chains of p^(1/T), which cross, and swap points with those of p
                              (Swendsen and Wang 1986; for learning: Desjardins and others 2010)
                 broad noise  no chains: score matching at noise levels up to the distance of the
                              circles; at such a level the two merge (Song and Ermon 2019)

   LOOK FOR  Each panel: log p(x), its chains (white), and in its title the mean log p of new
             points. The uniform density over the box has -log 36 = -3.58.
             as before     the network of worlds.c: the outer circle is almost black, although there
                           are chains on it
             tempered      a quarter of the chains are samples of p, and both circles are there
             broad noise   better than uniform, but blurred: a point in the plane hardly reveals its
                           noise level, so f is a mean over levels, and the high ones dominate

   TRY       HOTTEST 2, or 100: let how.swapped point to LADDER - 1 floats, and print them: how many
             of the neighbours in temperature swap. The world PINWHEEL, which needs no repair.

   RUN       build/mend_it               Picture: build/pictures/mend_it.png */
#define JEM_IMPLEMENTATION
#include "jem.h"

#include "worlds.h"

enum { RUNS = 3, BATCH = WORLD_BATCH, LADDER = 4, STEPS = 5 };
enum { AS_BEFORE, TEMPERED, BROAD };
#define HOTTEST 20
static const char *const names[RUNS] = { "as before", "tempered", "broad noise" };

typedef struct run {
    jem_net *net;
    jem_optim *optim;
    jem_rng rng;
    int way;
    float chains[2 * LADDER * BATCH];              /* every fourth tempered chain is cold */
} run;

/* Returns the mean f of this update's samples, the chains of temperature 1. */
static jem_tensor *samples_mean(run *r) {
    jem_ctx *ctx = r->net->ctx;
    float cold[2 * BATCH];
    jem_mcmc_desc how = jem_mcmc_desc_default();
    how.steps = STEPS;
    how.step_size = 0.12f;
    how.temperatures = LADDER;
    how.hottest = HOTTEST;
    jem_tensor *x = jem_input(ctx, r->chains, LADDER * BATCH, 2, 1, 1);
    jem_mcmc(ctx, world_boxed, r->net, x, &how, &r->rng, NULL);       /* hot chains stay inside */
    jem_read(x, r->chains);
    for (int i = 0; i < BATCH; i++)
        memcpy(cold + 2 * i, r->chains + 2 * i * LADDER, 2 * sizeof *cold);
    return jem_mean(ctx, jem_logp(ctx, jem_input(ctx, cold, BATCH, 2, 1, 1), r->net));
}

/* Returns the loss of score matching, each point at a random noise level. */
static jem_tensor *score_loss(run *r, jem_tensor *data) {
    float sigma[BATCH];
    jem_noise_levels(&r->rng, BATCH, 0.12f, 1.2f, sigma);
    const jem_score_desc how = { sigma, NULL, 0 };
    return jem_score_matching(r->net->ctx, jem_logp, r->net, data, &how, &r->rng, NULL);
}

/* Makes one update with a loss of this lesson. A few chains restart. */
static void learn(run *r, float rate) {
    float x[2 * BATCH];
    int y[BATCH];
    jem_ctx *ctx = r->net->ctx;
    world_sample(CIRCLES, &r->rng, BATCH, x, y);
    for (int i = 0; i < LADDER * BATCH; i++) {
        if (jem_rng_uniform(&r->rng) < 0.01f)
            jem_fill_uniform(ctx, &r->rng, r->chains + 2 * i, 2, -WORLD_BOX, WORLD_BOX);
    }
    const jem_mark mark = jem_begin(ctx);
    jem_tensor *data = jem_input(ctx, x, BATCH, 2, 1, 1);
    jem_tensor *loss;
    jem_zero_grad(r->net);
    if (r->way == BROAD) loss = score_loss(r, data);
    else {
        jem_tensor *f_data = jem_mean(ctx, jem_logp(ctx, data, r->net));
        loss = jem_sub(ctx, samples_mean(r), f_data);
    }
    jem_tensor *logits = jem_forward(r->net, data, 1);
    jem_backward(jem_add(ctx, loss, jem_cross_entropy(ctx, logits, y)));
    jem_optim_step(r->optim, rate, NULL);
    jem_end(ctx, mark);
}

/* Trains as worlds.c does; draws the chains of the buffer. */
static void train_as_before(run *r, int updates) {
    const jem_train_desc how = world_recipe(updates);
    jem_trainer *trainer = jem_trainer_create(r->net, &how);
    for (int i = 0; trainer && i < updates && jem_ok(r->net->ctx); i++)
        world_learn(trainer, CIRCLES, &r->rng);
    const jem_buffer *b = jem_trainer_buffer(trainer);
    for (int i = 0, n = 0; b && i < b->capacity && n < BATCH; i++) {
        if (b->visits[i] <= 0) continue;
        memcpy(r->chains + 2 * LADDER * n, b->data + 2 * i, 2 * sizeof *r->chains);
        n++;
    }
    jem_trainer_use_average(trainer, 1);
    jem_trainer_free(trainer);
}

static void train_otherwise(run *r, int updates) {
    jem_ctx *ctx = r->net->ctx;
    jem_optim_desc d = jem_optim_desc_default();
    d.ema = 0.99f;
    r->optim = jem_optim_create(r->net, &d);
    jem_fill_uniform(ctx, &r->rng, r->chains, 2 * LADDER * BATCH, -WORLD_BOX, WORLD_BOX);
    const jem_schedule cosine = { JEM_SCHEDULE_COSINE, 0, updates, 0, 0, { 0 } };
    for (int i = 0; i < updates && jem_ok(ctx); i++)
        learn(r, jem_learning_rate(&cosine, 2e-3f, i));
    jem_optim_use_average(r->optim, 1);
    jem_optim_free(r->optim);
}

/* Trains, and draws the result on p; returns the mean log p of new points. */
static double train(jem_ctx *ctx, int way, int updates, plot *p) {
    static run r;
    r.net = world_net(ctx, CIRCLES);
    r.rng = jem_rng_seed(1);
    r.way = way;
    if (way == AS_BEFORE) train_as_before(&r, updates);
    else train_otherwise(&r, updates);
    const double got = world_learned(CIRCLES, r.net, p);
    plot_density(p, plot_log_z(p));
    for (int i = 0; i < BATCH && way != BROAD; i++) {
        const float *x = r.chains + 2 * LADDER * i;
        plot_dot(p, x[0], x[1], 2.5f, 0xffffff);
    }
    jem_net_free(r.net);
    return got;
}

int main(int argc, char **argv) {
    const int quick = is_quick(argc, argv);
    sheet s;
    plot p;
    char title[64];
    if (!sheet_create(&s, RUNS + 1, 1, 260, 0) || !panel_create(&p, &s)) return 1;
    jem_ctx *ctx = jem_ctx_create(NULL);
    const double truth = world_mean_logp(CIRCLES, NULL);
    plot_truth(&p, CIRCLES);
    plot_density(&p, 0);
    snprintf(title, sizeof title, "truth: %.2f", truth);
    sheet_put(&s, 0, 0, &p, title);
    for (int way = 0; way < RUNS && ctx && jem_ok(ctx); way++) {
        const int updates = way == AS_BEFORE ? 2000 : 1000;
        const double got = train(ctx, way, quick ? 8 : updates, &p);
        snprintf(title, sizeof title, "%s: %.2f", names[way], got);
        sheet_put(&s, way + 1, 0, &p, title);
        printf("%-13s mean log p of new points %.3f\n", names[way], got);
        fflush(stdout);
    }
    printf("%-13s mean log p of new points %.3f\n", "the truth", truth);
    const int failed = report(ctx) || !sheet_close(&s, "build/pictures/mend_it.png");
    plot_free(&p);
    jem_ctx_free(ctx);
    return failed;
}
