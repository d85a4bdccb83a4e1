/* A custom network: gated residual blocks, and a Gaussian that bounds the density far from the
   origin. Trained as a JEM on two moons, it is both classifier and density. Its file stores its
   kind; a program that has registered this kind loads the file with jem_load.
   Picture: build/pictures/own_net.png, drawn by the network loaded from the file. */
#define JEM_IMPLEMENTATION
#include "jem.h"

#include "tools/support/pictures.h"
#include "points.h"

enum { BLOCKS = 2, WIDTH = 48, BATCH = 128, UPDATES = 1200, SAMPLES = 600 };

/* The layers that the forward function uses. */
typedef struct gated {
    jem_layer in, value[BLOCKS], gate[BLOCKS], out[BLOCKS], logits;
} gated;

/* Computes logits (n,2,1,1) from x (n,2,1,1). user points to the network's copy of the struct. */
static jem_tensor *gated_forward(jem_net *net, jem_tensor *x, int training, void *user) {
    const gated *g = (const gated *)user;
    jem_ctx *ctx = net->ctx;
    jem_tensor *h = jem_apply(&g->in, x, training);
    for (int i = 0; i < BLOCKS; i++) {             /* h + out(tanh(value(h)) * silu(gate(h))) */
        jem_tensor *value = jem_tanh(ctx, jem_apply(&g->value[i], h, training));
        jem_tensor *gate = jem_silu(ctx, jem_apply(&g->gate[i], h, training));
        h = jem_add(ctx, h, jem_apply(&g->out[i], jem_mul(ctx, value, gate), training));
    }
    /* Subtract |x|^2/2 from every logit: p(y|x) does not change, p(x) gains a Gaussian factor. */
    jem_tensor *bowl = jem_scale(ctx, jem_sum_image(ctx, jem_square(ctx, x)), -0.5f);
    return jem_add(ctx, jem_apply(&g->logits, h, training), bowl);
}

static jem_net *gated_create(jem_ctx *ctx, uint64_t seed) {
    jem_net *net = jem_net_create(ctx, gated_forward, NULL, sizeof(gated), 2, 1, 1, 2, seed);
    if (!net) return NULL;
    gated *g = (gated *)net->user;
    g->in = jem_linear_layer(net, "in", 2, WIDTH);
    for (int i = 0; i < BLOCKS; i++) {
        char name[32];                             /* parameters are block0.gate.weight, ... */
        snprintf(name, sizeof name, "block%d.value", i);
        g->value[i] = jem_linear_layer(net, name, WIDTH, WIDTH);
        snprintf(name, sizeof name, "block%d.gate", i);
        g->gate[i] = jem_linear_layer(net, name, WIDTH, WIDTH);
        snprintf(name, sizeof name, "block%d.out", i);
        g->out[i] = jem_linear_layer(net, name, WIDTH, WIDTH);
    }
    g->logits = jem_linear_layer(net, "logits", WIDTH, 2);
    jem_net_set_kind(net, "gated");                /* stored in its files */
    return net;
}

/* Creates the network for jem_load. A kind with variable sizes would store them with
   jem_net_set_meta, and read and check them here with jem_archive_meta. */
static jem_net *gated_construct(jem_ctx *ctx, const jem_archive *file, void *user) {
    (void)file;
    (void)user;
    return gated_create(ctx, 1);
}

/* ---- from here on like any other JEM ---- */

/* Returns log p(y=0|x) - log p(y=1|x): zero on the class boundary. */
static jem_tensor *odds(jem_ctx *ctx, jem_tensor *x, void *user) {
    jem_tensor *logits = jem_forward((jem_net *)user, x, 0);
    jem_tensor *second = jem_slice(ctx, logits, 1, 1);
    return jem_sub(ctx, jem_slice(ctx, logits, 0, 1), second);
}

/* Draws log p(x) as heat (e^-8 of the maximum is black), the class boundary as a line, and samples
   that started from noise as dots. */
static int draw(jem_net *net, const char *path) {
    static float x[2 * SAMPLES];
    jem_answer answer[SAMPLES];
    jem_ctx *ctx = net->ctx;
    jem_rng rng = jem_rng_seed(5);
    plot p;
    if (!plot_create(&p, 640, 640, -WORLD_BOX, WORLD_BOX, -WORLD_BOX, WORLD_BOX)) return 0;
    plot_function(&p, ctx, jem_logp, net);
    float best = p.values[0];
    for (int i = 1; i < p.w * p.h; i++) best = fmaxf(best, p.values[i]);
    plot_heat(&p, best - 8, best + 2);
    plot_function(&p, ctx, odds, net);
    plot_contour(&p, 0, 3, 0xffffff);

    jem_fill_uniform(ctx, &rng, x, 2 * SAMPLES, -1, 1);
    jem_tensor *t = jem_input(ctx, x, SAMPLES, 2, 1, 1);
    const jem_sgld_desc walk = jem_sgld_desc_langevin(0.01f, 1000);
    jem_sgld(ctx, jem_logp, net, t, &walk, &rng);
    jem_read(t, x);
    int ok = jem_classify(net, x, SAMPLES, answer) == JEM_OK;
    for (int i = 0; ok && i < SAMPLES; i++)
        plot_dot(&p, x[2 * i], x[2 * i + 1], 5, answer[i].label ? 0x7fe0ff : 0xd8ff70);
    ok = ok && plot_write(&p, path);
    plot_free(&p);
    return ok;
}

int main(void) {
    float x[2 * BATCH];
    int y[BATCH];
    jem_ctx *ctx = jem_ctx_create(NULL);
    jem_rng rng = jem_rng_seed(1);
    jem_net *net = gated_create(ctx, 1);
    jem_train_desc how = jem_train_desc_default();
    how.lr = 1e-3f;
    how.negatives = BATCH;
    how.sgld = jem_sgld_desc_langevin(0.01f, 20);
    how.schedule.kind = JEM_SCHEDULE_COSINE;
    how.schedule.total = UPDATES;
    jem_trainer *tr = jem_trainer_create(net, &how);
    for (int i = 0; tr && i < UPDATES && jem_ok(ctx); i++) {
        world_sample(MOONS, &rng, BATCH, x, y);
        const jem_stats s = jem_train_step(tr, x, y, BATCH);
        if ((i + 1) % 200 == 0)
            printf("update %4d  ce %.3f  f(x+) - f(x-) %+.2f  accuracy %.0f%%\n", i + 1,
                   (double)s.ce, (double)(s.f_data - s.f_sample), 100 * (double)s.accuracy);
    }
    const char *file = "build/own_net.safetensors";
    const char *path = "build/pictures/own_net.png";
    jem_register_net(ctx, "gated", gated_construct, NULL);
    jem_net *again = jem_ok(ctx) && jem_save(net, file) == JEM_OK ? jem_load(ctx, file) : NULL;
    const int ok = again && draw(again, path);
    if (ok) printf("saved and reloaded: %s\npicture: %s\n", file, path);
    jem_net_free(again);
    const int failed = report(ctx) || !ok;
    jem_trainer_free(tr);
    jem_net_free(net);
    jem_ctx_free(ctx);
    return failed;
}
