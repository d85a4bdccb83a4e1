/* QUESTION  What does it look like when the training of an energy-based model fails, and why
             does it fail?

   FORMULA   f(data) - f(sample), of the means, is the density's part of the loss with the opposite
             sign. In healthy training it soon stays near 0. It does not measure progress, but it is
             an alarm: if it moves far from 0, the samples are not from the model, and the update
             changes f in the wrong places.
                 f(data) far above   chains do not reach the maxima of f, so f is not lowered there
                 f(data) far below   chains sit on a spike without data: f has run away

   LOOK FOR  Each panel: log p(x) and 300 chains of the replay buffer (white). A panel that would be
             black has lines of equal log p, the lighter the higher. The line under a panel has
             the colour of its curve in the chart.
             rate x 30     the landscape changes faster than the chains can follow, becomes steep,
                           and throws them into two corners of the box (two dots there). The trainer
                           stops, and restores the weights from before that
             no noise      chains climb to a ridge and stay there: samples on thin lines
             one step from noise
                           the samples are noise, so f at the data runs away from f at the samples,
                           until all probability is in one spot. (CD-1 of learn.c differs: its one
                           step begins at the data.)
             L2 on f       a remedy for the first: adding 0.1 mean f^2 to the loss keeps f flat
                           (Du and Mordatch 2019)
             20 steps from noise
                           better than one, but no cure: the samples are on the rings, but the
                           density is a blob in the middle

   TRY       Other remedies for rate x 30: how.optim.clip = 0.3f, how.sgld.clamp_grad = 10 (neither
             is enough, nor are both), how.schedule with a warm-up. The moons instead of the rings.

   RUN       build/break_it              Picture: build/pictures/break_it.png */
#define JEM_IMPLEMENTATION
#include "jem.h"

#include "worlds.h"

enum { BATCH = 256, RUNS = 6, EVERY = 10, MOST = 100 };

typedef struct run {
    const char *name;
    unsigned colour;
    float rate;                                    /* times 1e-3 */
    float noise;                                   /* relative to Langevin dynamics */
    int steps;
    float reinit;                                  /* fraction of chains that start from noise */
    float energy_l2;
} run;
static const run runs[RUNS] = {
    { "healthy", 0x111111, 1, 1, 20, 0.05f, 0 },
    { "rate x 30", INK_RED, 30, 1, 20, 0.05f, 0 },
    { "no noise", INK_ORANGE, 1, 0, 20, 0.05f, 0 },
    { "one step from noise", INK_BLUE, 1, 1, 1, 1, 0 },
    { "rate x 30, L2 on f", INK_PINK, 30, 1, 20, 0.05f, 0.1f },
    { "20 steps from noise", INK_GREEN, 1, 1, 20, 1, 0 }
};

static jem_train_desc training(const run *r) {
    jem_train_desc how = jem_train_desc_default();
    how.max_rollbacks = 0;                         /* no guard: the divergence should be visible */
    how.lr = 1e-3f * r->rate;
    how.weights.energy_l2 = r->energy_l2;
    how.data_noise = 0;
    how.negatives = BATCH;
    how.buffer_size = 4000;
    how.reinit = r->reinit;
    how.sgld = jem_sgld_desc_langevin(0.01f, r->steps);
    how.sgld.noise_std *= r->noise;
    how.sgld.clamp_lo = how.restart_lo = -WORLD_BOX;
    how.sgld.clamp_hi = how.restart_hi = WORLD_BOX;
    return how;
}

/* Draws the density, and the samples: the chains of the buffer. Returns log Z. */
static double draw(jem_net *net, const jem_buffer *b, plot *p, char note[64]) {
    plot_function(p, net->ctx, jem_logp, net);
    const double log_z = plot_log_z(p);
    plot_density(p, log_z);
    plot_darkness(p, log_z, note);
    const float edge = 0.96f * WORLD_BOX;          /* show points on the edge as well */
    int shown = 0;
    for (int i = 0; b && i < b->capacity && shown < 300; i++) {
        if (b->visits[i] <= 0) continue;
        const float *dream = b->data + 2 * i;
        plot_dot(p, fmaxf(-edge, fminf(dream[0], edge)), fmaxf(-edge, fminf(dream[1], edge)), 2.5f,
                 0xffffff);
        shown++;
    }
    return log_z;
}

/* Trains, and stores f(data) - f(sample) in c. Draws the result, with its state in the title. */
static void live(jem_ctx *ctx, const run *r, int updates, plot *p, curve *c, char title[64],
                 char note[64]) {
    float *at = (float *)(uintptr_t)c->x;
    float *value = (float *)(uintptr_t)c->y;
    float x[2 * BATCH];
    int y[BATCH];
    int update = 0;
    jem_net *net = world_net(ctx, RINGS);
    const jem_train_desc how = training(r);
    jem_trainer *tr = jem_trainer_create(net, &how);
    jem_rng rng = jem_rng_seed(1);
    double mean = 0;
    for (; tr && update < updates; update++) {
        world_sample(RINGS, &rng, BATCH, x, y);
        const jem_stats s = jem_train_step(tr, x, y, BATCH);
        mean += (double)(s.f_data - s.f_sample) / EVERY;
        if (s.status != JEM_OK) break;             /* the weights from before are restored */
        if (update % EVERY != EVERY - 1) continue;
        at[c->n] = (float)update;
        value[c->n++] = (float)mean;
        mean = 0;
    }
    if (jem_error_status(ctx) == JEM_DIVERGED) {
        printf("%-20s  %s\n", r->name, jem_error(ctx));
        jem_clear_error(ctx);
    }
    const double log_z = draw(net, jem_trainer_buffer(tr), p, note);
    world_sample(RINGS, &rng, BATCH, x, y);
    const float right = jem_accuracy(net, x, y, BATCH);
    const double got = world_mean_logp(RINGS, net) - log_z;
    if (update < updates) snprintf(title, 64, "%s: diverged at %d", r->name, update);
    else snprintf(title, 64, "%s: %.3g", r->name, got);
    printf("%-20s  %4d updates, accuracy %.1f%%, mean log p of new points %.4g\n", r->name, update,
           100 * (double)right, got);
    fflush(stdout);
    jem_trainer_free(tr);
    jem_net_free(net);
}

int main(int argc, char **argv) {
    const int updates = is_quick(argc, argv) ? 20 : 1000;
    static float at[RUNS][MOST + 1], value[RUNS][MOST + 1];
    curve curves[RUNS];
    char title[64], note[64];
    sheet s;
    plot p;
    if (!sheet_create(&s, 3, 2, 300, 310) || !panel_create(&p, &s)) return 1;
    jem_ctx *ctx = jem_ctx_create(NULL);
    printf("%-20s  mean log p of new points %.4g\n", "the true density",
           world_mean_logp(RINGS, NULL));
    for (int k = 0; k < RUNS && jem_ok(ctx); k++) {
        curve c = { "", runs[k].colour, at[k], value[k], 0, 2 };
        live(ctx, runs + k, updates, &p, &c, title, note);
        curves[k] = c;
        sheet_put(&s, k % 3, k / 3, &p, title);
        sheet_note(&s, k % 3, k / 3, 0, note);
        sheet_underline(&s, k % 3, k / 3, runs[k].colour);
    }
    if (jem_ok(ctx)) {
        sheet_chart_in(&s, "f(data) - f(sample)", "updates; colours as under the panels", curves,
                       RUNS, -6, 12, 3.4f);
    }
    const int failed = report(ctx) || !sheet_close(&s, "build/pictures/break_it.png");
    plot_free(&p);
    jem_ctx_free(ctx);
    return failed;
}
