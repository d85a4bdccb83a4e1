/* QUESTION  How can one learn a density without its Z, and what does each method cost?

   FORMULA   grad log p = grad f(data) - E[grad f(sample)], samples of the model. Methods:
             exact        the mean by a grid: only in the plane. The reference for the others
             CD-1         a chain starts at the data and takes one step (Hinton 2002)
             persistent   chains continue from update to update (Tieleman 2008)
             short-run    chains always start from noise (Nijkamp and others 2019)
             score        no chains: the gradient of f points from noisy data to the data (Vincent
                          2011)

   LOOK FOR  The numbers: mean log-likelihood of new points, with the true Z. CD-1's samples
             hardly differ from the data, so it learns nothing about the gaps between the modes.
             Short-run chains (white) end at the data, but the density that leads them there is not
             that of the data: it is a generator. Score matching uses no samples; it learns the
             world blurred by noise.

   TRY       STEPS 5, or 100, for persistent and short-run. SIGMA 0.3f or 0.05f. Another world.

   RUN       build/learn [world]         Picture: build/pictures/learn.png */
#define JEM_IMPLEMENTATION
#include "jem.h"

#include "worlds.h"

#define STEP 0.01f
#define SIGMA 0.12f
enum { BATCH = 256, STEPS = 30, BUFFER = 4000, EVERY = 50, MOST = 24 };
enum { EXACT, CD_1, PERSISTENT, SHORT_RUN, SCORE, WAYS };
static const char *const way_names[WAYS] = { "exact", "CD-1", "persistent", "short-run", "score" };
static const unsigned way_colours[WAYS] = {
    0x111111, INK_RED, INK_BLUE, INK_ORANGE, INK_GREEN
};

typedef struct lesson {
    jem_net *net;
    jem_buffer *buffer;
    jem_rng rng;
    float sample[2 * BATCH];                       /* the last samples, to be drawn */
    plot grid;                                     /* for the sum of exp(f) */
} lesson;

/* Returns the mean f of samples at the ends of their walks. */
static jem_tensor *walked_mean(lesson *l, int way, const float *data) {
    jem_ctx *ctx = l->net->ctx;
    int slot[BATCH];
    jem_sgld_desc walk = jem_sgld_desc_langevin(STEP, way == CD_1 ? 1 : STEPS);
    walk.clamp_lo = -WORLD_BOX;
    walk.clamp_hi = WORLD_BOX;
    walk.clamp_grad = 30;
    if (way == CD_1) memcpy(l->sample, data, sizeof l->sample);
    else jem_buffer_draw(l->buffer, &l->rng, BATCH, NULL, way == PERSISTENT ? 0.05f : 1, l->sample,
                         slot);
    jem_tensor *x = jem_input(ctx, l->sample, BATCH, 2, 1, 1);
    jem_sgld(ctx, jem_logp, l->net, x, &walk, &l->rng);
    jem_read(x, l->sample);
    if (way == PERSISTENT) jem_buffer_put(l->buffer, BATCH, slot, l->sample);
    return jem_mean(ctx, jem_logp(ctx, x, l->net));
}

static jem_tensor *loss(lesson *l, int way, const float *data) {
    jem_ctx *ctx = l->net->ctx;
    jem_tensor *x = jem_input(ctx, data, BATCH, 2, 1, 1);
    if (way == SCORE) {
        float sigma[BATCH];
        for (int i = 0; i < BATCH; i++) sigma[i] = SIGMA;
        const jem_score_desc d = { sigma, NULL, 0 };
        return jem_score_matching(ctx, jem_logp, l->net, x, &d, &l->rng, NULL);
    }
    jem_tensor *model;
    if (way == EXACT) model = world_exact_mean(l->net);
    else model = walked_mean(l, way, data);
    return jem_sub(ctx, model, jem_mean(ctx, jem_logp(ctx, x, l->net)));
}

static double learn(lesson *l, int way, world_kind kind, int updates, curve *c) {
    static float at[WAYS][MOST], values[WAYS][MOST];
    float x[2 * BATCH];
    int y[BATCH];
    jem_optim_desc d = jem_optim_desc_default();
    jem_schedule cosine = { JEM_SCHEDULE_COSINE, 0, updates, 0, 0, { 0 } };
    d.ema = 0.99f;
    jem_optim *opt = jem_optim_create(l->net, &d);
    double got = 0;
    c->name = way_names[way];
    c->colour = way_colours[way];
    c->width = 2.5f;
    c->x = at[way];
    c->y = values[way];
    c->n = 0;
    for (int i = 0; i <= updates && jem_ok(l->net->ctx); i++) {
        if (i % EVERY == 0 || i == updates) {
            jem_optim_use_average(opt, i > 0);
            got = world_learned(kind, l->net, &l->grid);
            if (i < updates) jem_optim_use_average(opt, 0);
            at[way][c->n] = (float)i;
            values[way][c->n++] = (float)got;
            if (i == updates) break;
        }
        world_sample(kind, &l->rng, BATCH, x, y);
        const jem_mark mark = jem_begin(l->net->ctx);
        jem_zero_grad(l->net);
        jem_backward(loss(l, way, x));
        jem_optim_step(opt, jem_learning_rate(&cosine, 3e-3f, i), NULL);
        jem_end(l->net->ctx, mark);
    }
    jem_optim_free(opt);
    return got;
}

int main(int argc, char **argv) {
    const int quick = is_quick(argc, argv);
    const int updates = quick ? 4 : 1000;
    const world_kind kind = argc > 1 && !quick ? world_find(argv[1]) : GAUSSIANS;
    curve curves[WAYS];
    sheet s;
    lesson l;
    plot p;
    char title[64];
    if (kind == WORLDS || !sheet_create(&s, 3, 2, 300, 300) || !panel_create(&p, &s)) return 1;
    if (!world_grid(&l.grid, 120)) return 1;
    jem_ctx *ctx = jem_ctx_create(NULL);
    plot_truth(&p, kind);
    plot_density(&p, 0);
    snprintf(title, sizeof title, "truth: %.2f", world_mean_logp(kind, NULL));
    sheet_put(&s, 0, 0, &p, title);
    for (int way = 0; way < WAYS && jem_ok(ctx); way++) {
        l.net = density_net(ctx, 128, 1);
        l.rng = jem_rng_seed(1);
        l.buffer = jem_buffer_create(ctx, BUFFER, 2, 1, 1, 0, &l.rng);
        jem_buffer_restart(l.buffer, &l.rng, -WORLD_BOX, WORLD_BOX);
        const double got = learn(&l, way, kind, updates, curves + way);
        plot_function(&p, ctx, jem_logp, l.net);
        plot_density(&p, plot_log_z(&p));
        if (way != EXACT && way != SCORE) plot_dots(&p, l.sample, BATCH, 2.5f, 0xffffff);
        snprintf(title, sizeof title, "%s: %.2f", way_names[way], got);
        sheet_put(&s, (way + 1) % 3, (way + 1) / 3, &p, title);
        printf("%-10s  mean log p of new points %.3f\n", way_names[way], got);
        fflush(stdout);
        jem_buffer_free(l.buffer);
        jem_net_free(l.net);
    }
    if (jem_ok(ctx)) sheet_chart(&s, "mean log p", "updates", curves, WAYS, -5, -1.5f);
    const int failed = report(ctx) || !sheet_close(&s, "build/pictures/learn.png");
    plot_free(&l.grid);
    plot_free(&p);
    jem_ctx_free(ctx);
    return failed;
}
