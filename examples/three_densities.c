/* QUESTION  A classifier computes p(y|x). Which other densities are hidden in its logits?

   FORMULA   f(x)[y] = log p(x,y) + constant        joint, a density over points and classes
             logsumexp over y of f(x)[y] = log p(x) + constant            marginal, over points
             softmax over y of f(x)[y] = p(y|x)     the classifier; adding g(x) to all logits does
             not change it, but changes the other two arbitrarily: a classifier leaves them
             undefined (Grathwohl and others 2020, section 3).

   LOOK FOR  First row: a mixture of three Gaussians as an energy-based model. Its logits are
             log(1/3) + log N(x; mean, covariance), and its softmax is Bayes' rule: here all three
             are correct. Second: a network trained only to classify. It is as good a classifier,
             but its p(x) is useless. Third: the same network, trained as a JEM. Above p(x) the mean
             log p(x) of new points; a panel that would be black has lines of equal log p.

   TRY       0.01f instead of 1.0f in main: how little contrastive divergence is enough? Move the
             means apart: does the classifier's p(x) become better or worse?

   RUN       build/three_densities       Picture: build/pictures/three_densities.png */
#define JEM_IMPLEMENTATION
#include "jem.h"

#include "worlds.h"

enum { CLASSES = 3, BATCH = 256, TEST = 2000 };
static const float mean[CLASSES][2] = { { -1.3f, -0.4f }, { 0.9f, -1.0f }, { 0.5f, 1.2f } };
static const float std_uv[CLASSES][2] = { { 0.35f, 0.8f }, { 0.8f, 0.35f }, { 0.5f, 0.5f } };

static void sample(jem_rng *rng, int n, float *x, int *y) {
    for (int i = 0; i < n; i++) {
        y[i] = i % CLASSES;
        for (int k = 0; k < 2; k++)
            x[2 * i + k] = mean[y[i]][k] + std_uv[y[i]][k] * jem_rng_normal(rng);
    }
}

/* Computes the logits of the mixture: log(1/3) + log N(x; mean, diag(std^2)). */
static jem_tensor *mixture(jem_net *net, jem_tensor *x, int training, void *user) {
    jem_ctx *ctx = net->ctx;
    jem_tensor *u = jem_slice(ctx, x, 0, 1);
    jem_tensor *v = jem_slice(ctx, x, 1, 1);
    jem_tensor *all = NULL;
    (void)training;
    (void)user;
    for (int y = 0; y < CLASSES; y++) {
        const float su = std_uv[y][0];
        const float sv = std_uv[y][1];
        jem_tensor *du = jem_square(ctx, jem_add_constant(ctx, u, -mean[y][0]));
        jem_tensor *dv = jem_square(ctx, jem_add_constant(ctx, v, -mean[y][1]));
        du = jem_scale(ctx, du, -0.5f / (su * su));
        dv = jem_scale(ctx, dv, -0.5f / (sv * sv));
        jem_tensor *f = jem_add_constant(ctx, jem_add(ctx, du, dv),
                                  -logf((float)CLASSES * 6.2831853f * su * sv));
        all = y ? jem_concat(ctx, all, f) : f;
    }
    return all;
}

static jem_net *learn(jem_ctx *ctx, float w_cd, int updates) {
    jem_mlp_desc shape = jem_mlp_desc_default();
    shape.channels = 2;
    shape.height = shape.width = 1;
    shape.classes = CLASSES;
    jem_net *net = jem_mlp_create(ctx, &shape, 1);
    jem_train_desc how = jem_train_desc_default();
    how.lr = 1e-3f;
    how.schedule.kind = JEM_SCHEDULE_COSINE;
    how.schedule.total = updates;
    how.weights.cd = w_cd;
    how.optim.ema = 0.99f;
    how.data_noise = 0;
    how.negatives = BATCH;
    how.buffer_size = 4000;
    how.sgld = jem_sgld_desc_langevin(0.02f, 20);
    how.sgld.clamp_lo = how.restart_lo = -WORLD_BOX;
    how.sgld.clamp_hi = how.restart_hi = WORLD_BOX;
    jem_trainer *tr = jem_trainer_create(net, &how);
    jem_rng rng = jem_rng_seed(1);
    float x[2 * BATCH];
    int y[BATCH];
    for (int i = 0; tr && i < updates && jem_ok(ctx); i++) {
        sample(&rng, BATCH, x, y);
        jem_train_step(tr, x, y, BATCH);
    }
    jem_trainer_use_average(tr, 1);
    jem_trainer_free(tr);
    return net;
}

/* Returns log p(x, y = 0), for plot_function. */
static jem_tensor *joint_0(jem_ctx *ctx, jem_tensor *x, void *net) {
    return jem_slice(ctx, jem_forward((jem_net *)net, x, 0), 0, 1);
}
/* A network and one of its classes. */
typedef struct net_class { jem_net *net; int y; } net_class;
static jem_tensor *posterior(jem_ctx *ctx, jem_tensor *x, void *user) {
    const net_class *o = (const net_class *)user;
    jem_tensor *all = jem_log_softmax(ctx, jem_forward(o->net, x, 0));
    return jem_exp(ctx, jem_slice(ctx, all, o->y, 1));
}

static void draw(sheet *s, int row, plot *p, jem_net *net, const char *name) {
    static float x[2 * TEST], f[TEST];
    static int y[TEST];
    char title[64], note[64];
    jem_rng rng = jem_rng_seed(3);
    sample(&rng, TEST, x, y);
    const jem_mark mark = jem_begin(net->ctx);
    jem_read(jem_logp(net->ctx, jem_input(net->ctx, x, TEST, 2, 1, 1), net), f);
    jem_end(net->ctx, mark);
    const double right = 100 * (double)jem_accuracy(net, x, y, TEST);
    plot_function(p, net->ctx, jem_logp, net);
    const double log_z = plot_log_z(p);
    const double learned = mean_of(f, TEST) - log_z;
    plot_density(p, log_z);
    snprintf(title, sizeof title, "p(x): %.2f", learned);
    sheet_put(s, 1, row, p, title);

    plot_function(p, net->ctx, joint_0, net);
    plot_density(p, log_z);
    plot_darkness(p, log_z, note);
    snprintf(title, sizeof title, "%s: p(x, blue)", name);
    sheet_put(s, 0, row, p, title);
    sheet_note(s, 0, row, 0, note);

    memset(p->rgb, 255, (size_t)(p->w * p->h) * 3);
    for (int c = 0; c < CLASSES; c++) {
        net_class o = { net, c };
        plot_function(p, net->ctx, posterior, &o);
        for (int k = 0; k < p->w * p->h; k++)
            plot_blend(p, k / p->w, k % p->w, class_colours[c], 0.45f * p->values[k]);
    }
    for (int i = 0; i < 300; i++) plot_dot(p, x[2 * i], x[2 * i + 1], 3, class_colours[y[i]]);
    snprintf(title, sizeof title, "p(y|x): %.1f%%", right);
    sheet_put(s, 2, row, p, title);
    printf("%-10s  accuracy %.1f%%  mean log p(x) of new points %.3f\n", name, right, learned);
    fflush(stdout);
}

int main(int argc, char **argv) {
    const int updates = is_quick(argc, argv) ? 5 : 1500;
    static const char *const names[3] = { "mixture", "classifier", "JEM" };
    sheet s;
    plot p;
    if (!sheet_create(&s, 3, 3, 260, 0) || !panel_create(&p, &s)) return 1;
    jem_ctx *ctx = jem_ctx_create(NULL);
    for (int row = 0; row < 3 && jem_ok(ctx); row++) {
        jem_net *net;
        if (row == 0) net = jem_net_create(ctx, mixture, NULL, 0, 2, 1, 1, CLASSES, 1);
        else net = learn(ctx, row == 1 ? 0.0f : 1.0f, updates);
        if (net) draw(&s, row, &p, net, names[row]);
        jem_net_free(net);
    }
    const int failed = report(ctx) || !sheet_close(&s, "build/pictures/three_densities.png");
    plot_free(&p);
    jem_ctx_free(ctx);
    return failed;
}
