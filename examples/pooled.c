/* QUESTION  Convolutions, a mean over the picture, a linear layer: a good classifier. Why does the
             same network give a bad density?

   FORMULA   A flat head has a weight for each feature at each place; a pooled one has
                 f(x)[y] = w[y] . mean over places of h(place) = mean of a score per window.
             So log p(x,y) counts patterns; that is a model of textures (Zhu, Wu and Mumford 1998,
             'FRAME'). Each score sees only its own window of 12 x 12 pixels: none of the sixteen
             knows whether there is a shape elsewhere.

   LOOK FOR  Data; samples of the flat head; samples of the pooled one: one shape, two, two that
             touch, or nothing. The networks differ only in the head, learned the colours as
             classes, and classify them equally well. Shapes are counted as in compose_images.

   TRY       UPDATES 2000: which of the two does more training help? LAYERS 1: the first convolution
             alone before the head, windows of 3 x 3 that cover hardly more than an edge.

   RUN       build/pooled                Picture: build/pictures/pooled.png */
#define JEM_IMPLEMENTATION
#include "jem.h"

#include "shapes.h"

enum { UPDATES = 1000, BATCH = 64, SAMPLES = 32, SHOWN = 9, LAYERS = 3 };
enum { ZOOM = 5, CELL = SIDE * ZOOM + 6, LEFT_OF = 250 };     /* layout of the picture, in pixels */

typedef struct layers { jem_layer conv[LAYERS], head; int pooled; } layers;

static jem_tensor *forward(jem_net *net, jem_tensor *x, int training, void *user) {
    const layers *l = (const layers *)user;
    for (int k = 0; k < LAYERS; k++)
        x = jem_silu(net->ctx, jem_apply(&l->conv[k], x, training));
    x = l->pooled ? jem_global_pool(net->ctx, x) : jem_flatten(net->ctx, x);
    return jem_apply(&l->head, x, training);
}

static jem_net *create(jem_ctx *ctx, int pooled) {
    jem_net *net = jem_net_create(ctx, forward, NULL, sizeof(layers), 3, SIDE, SIDE, 3, 1);
    if (!net) return NULL;
    static const char *const names[] = { "conv0", "conv1", "conv2" };
    layers *l = (layers *)net->user;
    int wide = 16;
    int side = SIDE;
    l->pooled = pooled;
    l->conv[0] = jem_conv_layer(net, names[0], 3, wide, 3, 1, 1);
    for (int k = 1; k < LAYERS; k++, wide *= 2, side /= 2)
        l->conv[k] = jem_conv_layer(net, names[k], wide, 2 * wide, 4, 2, 1);
    l->head = jem_linear_layer(net, "head", pooled ? wide : wide * side * side, 3);
    return net;
}

/* Trains with scores first, then chains, as in compose_images; returns the accuracy on the last
   batch. */
static double learn(jem_net *net, int updates) {
    static float x[BATCH * SHAPE_NUMBERS];
    int y[BATCH];
    jem_train_desc how = jem_train_desc_score(updates);
    net->scale = 10;
    how.weights.cd = 0.01f;
    how.cd_from = updates / 2;
    how.negatives = 16;
    jem_trainer *tr = jem_trainer_create(net, &how);
    jem_rng rng = jem_rng_seed(2);
    for (int i = 0; i < updates && jem_ok(net->ctx); i++) {
        for (int j = 0; j < BATCH; j++) {
            const scene s = scene_random(&rng);
            scene_draw(&s, x + j * SHAPE_NUMBERS);
            y[j] = s.is[COLOUR];
        }
        jem_train_step(tr, x, y, BATCH);
    }
    jem_trainer_use_average(tr, 1);
    jem_trainer_free(tr);
    return (double)jem_accuracy(net, x, y, BATCH);
}

/* Draws a row of pictures; returns the percentage of single shapes. */
static int put(plot *paper, int row, const char *name, const float *x) {
    char note[40];
    int whole = 0;
    for (int i = 0; i < SAMPLES; i++) {
        scene s;
        whole += scene_nearest(x + i * SHAPE_NUMBERS, &s) > SHAPE_SEEN;
        if (i < SHOWN)
            shape_put(paper, LEFT_OF + CELL * i, 4 + CELL * row, ZOOM, x + i * SHAPE_NUMBERS);
    }
    snprintf(note, sizeof note, "%d%% are one shape", 100 * whole / SAMPLES);
    text(paper, 8, (float)(14 + CELL * row), 2.4f, 0x222222, name);
    text(paper, 8, (float)(46 + CELL * row), 2, 0x555555, note);
    return 100 * whole / SAMPLES;
}

int main(int argc, char **argv) {
    static float x[SAMPLES * SHAPE_NUMBERS];
    static const char *const names[2] = { "flat head", "pooled head" };
    const int updates = is_quick(argc, argv) ? 6 : UPDATES;
    const int wide = LEFT_OF + CELL * SHOWN;
    const int high = 3 * CELL + 4;
    plot paper;
    if (!plot_create(&paper, wide, high, 0, (float)wide, (float)high, 0)) return 1;
    jem_ctx *ctx = jem_ctx_create(NULL);
    jem_rng rng = jem_rng_seed(1);
    for (int i = 0; i < SAMPLES; i++) {
        const scene s = scene_random(&rng);
        scene_draw(&s, x + i * SHAPE_NUMBERS);
    }
    put(&paper, 0, "data", x);
    for (int pooled = 0; pooled < 2 && jem_ok(ctx); pooled++) {
        jem_net *net = create(ctx, pooled);
        double right = 0;
        if (net) right = learn(net, updates);
        jem_tensor *t = jem_zeros(ctx, SAMPLES, 3, SIDE, SIDE);
        jem_generate_desc how = jem_net_generate_desc(net);
        jem_generate(ctx, jem_logp, net, t, &how, &rng);
        if (jem_read(t, x) == JEM_OK)
            printf("%-12s colours %.0f%% right, of its samples %d%% are one shape\n", names[pooled],
                   100 * right, put(&paper, 1 + pooled, names[pooled], x));
        jem_reset(ctx);
        jem_net_free(net);
    }
    const int failed = report(ctx) || !plot_write(&paper, "build/pictures/pooled.png");
    if (!failed) printf("picture: build/pictures/pooled.png\n");
    plot_free(&paper);
    jem_ctx_free(ctx);
    return failed;
}
