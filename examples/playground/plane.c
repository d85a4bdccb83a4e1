/* The panel with the plane: two networks learn the same points side by side, by cross-entropy alone
   or as a JEM. The page shows the code between the marks [name] and [end]. */
#include "page.h"

#include "examples/points.h"

enum {
    BATCH = 128, GRID = 64, CELLS = GRID * GRID, DREAMS = 120, TEST = 500,
    OWN = 600
};
typedef struct learner {
    jem_net *net;
    jem_trainer *trainer;
    jem_stats stats;
    int stopped;                                   /* it diverged */
    float dream[2 * DREAMS];
} learner;
static learner learners[2];
static jem_rng data_rng, walk_rng;
static int world_now, own_count, own_classes, own_label[OWN];
static float own[2 * OWN];

static float density[CELLS], best[CELLS], sure[CELLS], points[3 * TEST], facts[16];

/* Settings from the page: the method of each network, and values common to both. */
typedef struct plan { int ways[2], steps; float rate, noise, fresh, energy_l2; } plan;
enum { ALONE, CHAINS, SCORE };
#define STEP 0.01f

PAGE(float *, plane_place)(int what);
PAGE(void, plane_own)(int n, int classes);
PAGE(int, plane_start)(int world, int seed);
PAGE(int, plane_plan)(int left, int right, int steps, float rate, float noise, float fresh,
                      float energy_l2);
PAGE(int, plane_learn)(int which, int updates);
PAGE(int, plane_view)(int which, int walk_steps, float noise);
PAGE(float, plane_truth)(void);

PAGE(float *, plane_place)(int what) {
    float *const all[] = {
        density, best, sure, points, facts, own, learners[0].dream, learners[1].dream
    };
    return all[what];
}

/* Labels are floats after the points, 0 to classes - 1, each of them in use. */
PAGE(void, plane_own)(int n, int classes) {
    own_count = n < OWN ? n : OWN;
    own_classes = classes;
    for (int i = 0; i < own_count; i++) own_label[i] = (int)points[i];
}

static void sample(jem_rng *rng, int n, float *x, int *y) {
    if (world_now < WORLDS) {
        world_sample((world_kind)world_now, rng, n, x, y);
        return;
    }
    for (int i = 0; i < n; i++) {
        const int k = jem_rng_below(rng, own_count);
        x[2 * i] = own[2 * k] + 0.1f * jem_rng_normal(rng);
        x[2 * i + 1] = own[2 * k + 1] + 0.1f * jem_rng_normal(rng);
        y[i] = own_label[k];
    }
}

/* Creates two networks with the same initial weights. WORLDS and above: the visitor's own points.
   */
PAGE(int, plane_start)(int world, int seed) {
    world_now = world;
    const int classes = world < WORLDS ? worlds[world].classes : own_classes;
    data_rng = jem_rng_seed((uint64_t)seed);
    walk_rng = jem_rng_split(&data_rng, 1);
    for (int k = 0; k < 2; k++) {
        learner *l = learners + k;
        jem_trainer_free(l->trainer);
        jem_net_free(l->net);
        memset(l, 0, sizeof *l);
        jem_mlp_desc shape = jem_mlp_desc_default();
        shape.channels = 2;
        shape.height = shape.width = 1;
        shape.classes = classes;
        shape.layers = 2;
        shape.widths[0] = shape.widths[1] = 64;
        l->net = jem_mlp_create(ctx, &shape, (uint64_t)seed);
        jem_fill_uniform(ctx, &walk_rng, l->dream, 2 * DREAMS, -WORLD_BOX, WORLD_BOX);
    }
    int y[TEST] = { 0 };
    float x[2 * TEST] = { 0 };
    jem_rng view = jem_rng_seed(9);
    if (world < WORLDS || own_count) sample(&view, TEST, x, y);
    for (int i = 0; i < TEST; i++) {
        points[3 * i] = x[2 * i];
        points[3 * i + 1] = x[2 * i + 1];
        points[3 * i + 2] = (float)y[i];
    }
    return jem_ok(ctx);
}

/* [plan] Sets how each network learns. */
static jem_train_desc training(int way, const plan *p) {
    jem_train_desc how = jem_train_desc_default();
    how.max_rollbacks = 0;                         /* no guard: the divergence should be visible */
    how.lr = 2e-3f * p->rate;
    how.data_noise = 0;
    how.weights.ce = 1;                            /* cross-entropy alone */
    how.weights.cd = 0;
    if (way == SCORE) {                           /* also: from noise, the gradient leads to data */
        how.w_score = 1;
        how.noise_lo = how.noise_hi = 0.12f;
    }
    if (way == CHAINS) {                           /* also: data raise f, chains lower it */
        how.weights.cd = 1;
        how.weights.energy_l2 = p->energy_l2;
        how.sgld = jem_sgld_desc_langevin(STEP, p->steps);
        how.sgld.noise_std *= p->noise;
        how.sgld.clamp_lo = how.restart_lo = -WORLD_BOX;
        how.sgld.clamp_hi = how.restart_hi = WORLD_BOX;
        how.negatives = BATCH;
        how.buffer_size = 2000;
        how.reinit = p->fresh;
    }
    return how;
}
/* [end] */

/* Changes the plan during training: optimiser and chains keep their state. */
PAGE(int, plane_plan)(int left, int right, int steps, float rate, float noise, float fresh,
                      float energy_l2) {
    const plan p = { { left, right }, steps, rate, noise, fresh, energy_l2 };
    for (int k = 0; k < 2; k++) {
        learner *l = learners + k;
        const jem_train_desc how = training(p.ways[k], &p);
        jem_trainer *next = jem_trainer_create(l->net, &how);
        jem_archive *a = l->trainer ? jem_archive_create(ctx) : NULL;
        if (a && jem_trainer_to_archive(l->trainer, a) == JEM_OK) jem_trainer_from_archive(next, a);
        if (next) jem_clear_error(ctx);            /* another method has other chains: restart */
        jem_archive_free(a);
        jem_trainer_free(l->trainer);
        l->trainer = next;
        l->stopped = 0;
    }
    return jem_ok(ctx);
}

/* [plane] */
PAGE(int, plane_learn)(int which, int updates) {
    learner *l = learners + which;
    float x[2 * BATCH];
    int y[BATCH];
    for (int i = 0; i < updates && !l->stopped; i++) {
        sample(&data_rng, BATCH, x, y);
        l->stats = jem_train_step(l->trainer, x, y, BATCH);
        l->stopped = l->stats.status != JEM_OK;
    }
    /* [end] */
    const jem_stats *s = &l->stats;
    facts[0] = (float)jem_trainer_updates(l->trainer);
    facts[1] = s->ce;
    facts[2] = s->accuracy;
    facts[3] = s->f_data - s->f_sample;
    facts[4] = s->residual;
    facts[5] = (float)l->stopped;
    return !l->stopped;
}

/* [walk] */
static void walk(learner *l, int steps, float noise) {
    jem_sgld_desc d = jem_sgld_desc_langevin(STEP, steps);
    d.noise_std *= noise;
    d.clamp_lo = -WORLD_BOX;
    d.clamp_hi = WORLD_BOX;
    for (int i = 0; i < DREAMS; i++)               /* a few chains restart */
        if (jem_rng_uniform(&walk_rng) < 0.01f)
            jem_fill_uniform(ctx, &walk_rng, l->dream + 2 * i, 2, -WORLD_BOX, WORLD_BOX);
    const jem_mark mark = jem_begin(ctx);
    jem_tensor *x = jem_input(ctx, l->dream, DREAMS, 2, 1, 1);
    jem_sgld(ctx, jem_logp, l->net, x, &d, &walk_rng);
    jem_read(x, l->dream);
    jem_end(ctx, mark);
}
/* [end] */

/* Computes log p(x) on a grid, with its own Z, the class of each cell, and the mean log p of the
   test points; walks the chains. */
PAGE(int, plane_view)(int which, int walk_steps, float noise) {
    static float x[2 * CELLS], at[2 * TEST];
    static jem_answer a[CELLS];
    learner *l = learners + which;
    const float cell = 2 * WORLD_BOX / GRID;
    for (int k = 0; k < CELLS; k++) {
        x[2 * k] = ((float)(k % GRID) + .5f) * cell - WORLD_BOX;
        x[2 * k + 1] = WORLD_BOX - ((float)(k / GRID) + .5f) * cell;
    }
    if (jem_classify(l->net, x, CELLS, a) != JEM_OK) return 0;
    double top = -1e30;
    double sum = 0;
    double mean = 0;
    for (int k = 0; k < CELLS; k++) {
        density[k] = a[k].log_density;
        best[k] = (float)a[k].label;
        sure[k] = a[k].probability;
        top = fmax(top, (double)density[k]);
    }
    for (int k = 0; k < CELLS; k++) sum += exp((double)density[k] - top);
    const double log_z = top + log(sum * (double)(cell * cell));
    for (int k = 0; k < CELLS; k++) density[k] -= (float)log_z;

    for (int i = 0; i < 2 * TEST; i++) at[i] = points[3 * (i / 2) + i % 2];
    if (jem_classify(l->net, at, TEST, a) != JEM_OK) return 0;
    for (int i = 0; i < TEST; i++) mean += (double)a[i].log_density / TEST;
    facts[6] = (float)(mean - log_z);
    if (walk_steps > 0) walk(l, walk_steps, noise);
    return jem_ok(ctx);
}

/* Returns the mean log p of the test points under the true density: the maximum. */
PAGE(float, plane_truth)(void) {
    static float at[2 * TEST], logp[TEST];
    double mean = 0;
    if (world_now >= WORLDS) return NAN;
    for (int i = 0; i < 2 * TEST; i++) at[i] = points[3 * (i / 2) + i % 2];
    world_truth((world_kind)world_now, TEST, at, logp);
    for (int i = 0; i < TEST; i++) mean += (double)logp[i] / TEST;
    return (float)mean;
}
