/* QUESTION  How close does each method of learning a density get to the truth, and which of them
             tolerate a high learning rate?

   FORMULA   The exact way maximises E[log p(data)], log p = f - log Z. The others replace this aim
             by one that needs no integral Z:
             CD-k         f(sample) - f(data); k Langevin steps from the data (Hinton 2002)
             short-run    the same from noise; persistent: chains continue (Tieleman 2008)
             + KL         adds -f(sample), f held, minus the entropy of the samples: a gradient
                          through the last step (Du & others 2021)
             score, NCE   examples/losses.h; denoising: jem_score_matching

   LOOK FOR  A row is a method, its lines are learning rates, which fall to a hundredth in 2,000
             updates. The dot is the mean log p of new points at the end, with the true Z; the line
             starts at the worst value in the second half. The black line is the truth: the
             maximum. A cross: off the chart, or diverged. At its best rate, the exact way ends
             0.05 below the truth, the implicit score 0.09, informed chains and denoising 0.15, NCE
             0.20, most other persistent chains 0.3 (with clipped steps 0.4, with a spectral norm
             0.8). Short-run chains make good samples of a wrong density. With ten steps, the KL
             term changes little; with one it does harm, since the samples hardly move and f only
             gets steeper. The highest rate is too much for scores and CD-10, which do not
             constrain f far from the data, and for chains with clipped steps or moved ones.

   TRY       UPDATES 6000, with the middle rate alone: most ways come closer to the truth, but
             plain persistent chains fall far below it (numbers: examples/README.md, appendix).
             Another world. STEPS 2 or 40. Two tricks in one row. KL without H:
             how.kl_entropy = 0.

   RUN       build/ways [world]          Picture: build/pictures/ways.png */
#define JEM_IMPLEMENTATION
#include "jem.h"
#include "tools/support/tricks.h"
#include "losses.h"
#include "worlds.h"

enum { BATCH = 128, STEPS = 10, RATES = 3, UPDATES = 2000, EVERY = 20 };
enum { CHAINS, EXACT, IMPLICIT, SLICED, NCE };
enum { NOISE, DATA, CLASSES };                     /* starting points of chains */
static const float rates[RATES] = { 4e-3f, 2e-2f, 1e-1f };

static const struct way {
    const char *name;
    int loss, steps, from;
    float renewed, kl, l2, spectral, clip, move, sam, score;
} ways[] = {
    { "exact, by a grid", .loss = EXACT },
    { "CD-1", .steps = 1, .from = DATA, .renewed = 1 },
    { "CD-1 + KL", .steps = 1, .from = DATA, .renewed = 1, .kl = 1 },
    { "CD-10", .steps = STEPS, .from = DATA, .renewed = 1 },
    { "short-run", .steps = STEPS, .renewed = 1 },
    { "short-run + KL", .steps = STEPS, .renewed = 1, .kl = 1 },
    { "persistent", .steps = STEPS, .renewed = .05f },
    { "  + KL", .steps = STEPS, .renewed = .05f, .kl = 1 },
    { "  + energy L2", .steps = STEPS, .renewed = .05f, .l2 = .01f },  /* Du & Mordatch 2019, */
    { "  + spectral norm", .steps = STEPS, .renewed = .05f, .spectral = 3 },       /* and this */
    { "  + chains moved", .steps = STEPS, .renewed = .05f, .move = .1f },   /* Du & others 2021 */
    { "  + clipped steps", .steps = STEPS, .renewed = .05f, .clip = 20 },     /* Yang & Ji 2021 */
    { "  + informed starts", .steps = STEPS, .renewed = .05f, .from = CLASSES },   /* also */
    { "  + sharpness", .steps = STEPS, .renewed = .05f, .sam = .1f },   /* Yang, Su & Ji 2023 */
    { "denoising score", .score = 1 }, { "implicit score", .loss = IMPLICIT },
    { "sliced score", .loss = SLICED }, { "NCE", .loss = NCE }
};
enum { WAYS = sizeof ways / sizeof *ways };

typedef struct lesson {
    const struct way *w;
    jem_net *net;
    jem_layer log_z;
    jem_rng rng;
    float x[2 * BATCH]; int y[BATCH];              /* the data of an update */
} lesson;

/* Starts or moves a chain; called for each chain. */
static void begin(void *user, jem_rng *rng, int visits, int label, float *x) {
    const lesson *l = (const lesson *)user;
    if (l->w->from == DATA) memcpy(x, l->x + 2 * jem_rng_below(rng, BATCH), 2 * sizeof *x);
    if (l->w->from == CLASSES && !visits) class_gaussian(l->x, l->y, BATCH, 2, label, rng, x);
    for (int k = 0; k < 2 && visits; k++) x[k] = fmaf(l->w->move, jem_rng_normal(rng), x[k]);
}

static jem_trainer *trainer_of(lesson *l, float rate, const jem_schedule *schedule) {
    const struct way *w = l->w;
    jem_train_desc how = jem_train_desc_default();
    how.max_rollbacks = 0;                         /* no guard: the divergence should be visible */
    how.lr = rate;
    how.schedule = *schedule;
    how.weights.ce = how.data_noise = 0;
    how.w_score = w->score;
    how.noise_lo = how.noise_hi = 0.1f;
    how.weights.cd = w->score > 0 ? 0 : 1;
    how.w_kl = w->kl;
    how.weights.energy_l2 = w->l2;
    how.sam = w->sam;
    how.sgld = jem_sgld_desc_langevin(0.01f, w->steps);
    how.sgld.clamp_grad = w->clip;
    how.restart_lo = how.sgld.clamp_lo = -WORLD_BOX;
    how.restart_hi = how.sgld.clamp_hi = WORLD_BOX;
    how.negatives = BATCH;
    how.buffer_size = 2000;
    how.reinit = w->renewed;
    how.chain = begin;
    how.chain_user = l;
    return jem_trainer_create(l->net, &how);
}

/* Makes an update, without a trainer, with one of the losses that need no chain. */
static jem_status step_on(lesson *l, jem_optim *opt, float rate) {
    const int loss = l->w->loss;
    jem_rng *rng = loss == IMPLICIT ? NULL : &l->rng;
    jem_ctx *ctx = l->net->ctx;
    const jem_mark mark = jem_begin(ctx);
    jem_zero_grad(l->net);
    jem_tensor *value;
    if (loss == EXACT) value = world_exact_loss(l->net, BATCH, l->x);
    else if (loss == NCE)
        value = loss_nce(ctx, jem_logp, l->net, &l->log_z, BATCH, l->x, WORLD_BOX, rng);
    else value = loss_score(ctx, jem_logp, l->net, BATCH, l->x, 0.05f, rng);
    jem_backward(value);
    jem_end(ctx, mark);
    return jem_optim_step(opt, rate, NULL);
}

/* Computes the mean log p of new points at the end of a run, and the worst in its second half. */
static float learn(lesson *l, world_kind kind, float rate, int updates, plot *grid, float *worst) {
    const jem_schedule cosine = { JEM_SCHEDULE_COSINE, 0, updates, 0.01f, 0, { 0 } };
    if (l->w->loss == NCE) l->log_z = loss_log_z(l->net);
    jem_trainer *tr = NULL;
    jem_optim *opt = NULL;
    if (l->w->loss == CHAINS) tr = trainer_of(l, rate, &cosine);
    if (!tr) opt = jem_optim_create(l->net, NULL);
    jem_status s = JEM_OK;
    float now = 0;
    for (int i = 1; i <= updates && s == JEM_OK; i++) {
        world_sample(kind, &l->rng, BATCH, l->x, l->y);
        if (tr) s = jem_train_step_semi(tr, NULL, NULL, 0, l->x, BATCH).status;
        else s = step_on(l, opt, jem_learning_rate(&cosine, rate, i - 1));
        if (l->w->spectral > 0) spectral_limit(l->net, l->w->spectral);
        if (s == JEM_OK && i < updates && (i % EVERY || 2 * i < updates)) continue;
        now = s == JEM_OK ? (float)world_learned(kind, l->net, grid) : -INFINITY;
        if (!(now > *worst)) *worst = now;
    }
    if (s == JEM_DIVERGED) jem_clear_error(l->net->ctx);
    jem_trainer_free(tr);
    jem_optim_free(opt);
    return now;
}

int main(int argc, char **argv) {
    static float worst[WAYS][RATES], end[WAYS][RATES];
    static const char *names[WAYS];
    static const char *const rate_names[RATES] = { "rate 0.004", "0.02", "0.1" };
    static const unsigned colours[RATES] = { INK_BLUE, INK_GREEN, INK_RED };
    const int quick = is_quick(argc, argv);
    const world_kind kind = argc > 1 && !quick ? world_find(argv[1]) : PINWHEEL;
    plot grid;
    if (kind == WORLDS || !world_grid(&grid, 100)) return 1;
    jem_ctx *ctx = jem_ctx_create(NULL);
    for (int w = 0; w < WAYS && jem_ok(ctx); w++) {
        names[w] = ways[w].name;
        printf("%-20s", names[w]);
        for (int r = 0; r < RATES; r++) {
            lesson l = { &ways[w], density_net(ctx, 64, 1), .rng = jem_rng_seed(1) };
            if (l.net) {
                end[w][r] = learn(&l, kind, rates[r], quick ? 4 : UPDATES, &grid, &worst[w][r]);
            }
            jem_net_free(l.net);
            printf(" %7.3f (%7.3f)", (double)end[w][r], (double)worst[w][r]);
            fflush(stdout);
        }
        printf("\n");
    }
    const float truth = (float)world_mean_logp(kind, NULL);
    const row_chart c = { "mean log p of new points", names, WAYS, RATES, worst[0], end[0],
                          colours, rate_names, truth - 3, truth + .2f, truth };
    printf("%-20s %7.3f\n", "the truth", (double)truth);
    const int failed = report(ctx) || !rows_write(&c, "build/pictures/ways.png");
    if (!failed) printf("picture: build/pictures/ways.png\n");
    plot_free(&grid);
    jem_ctx_free(ctx);
    return failed;
}
