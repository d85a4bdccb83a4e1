/* QUESTION  What does a JEM learn about a world whose true density is known?

   FORMULA   p(x) = sum over y of exp f(x)[y] / Z,  Z = integral of that (Grathwohl & others 2020).
             In the plane Z is a sum over a grid, so the likelihood of new points, intractable for
             images, can be computed here; and we know its maximum: that of the true density.
             Annealed importance sampling estimates Z without a grid: compare the two.

   RUN       build/worlds [moons circles gaussians pinwheel spirals checkerboard rings swiss | all]

   LOOK FOR  The four panels of a world, in the same colours: the true log p(x) with data; the
             learned one (above both, the mean of new points); the classes according to the same
             network (paler: less confident), samples coloured by their predicted class, and the
             paths of three chains from noise; and the ends of 20 short steps from noise. Two
             circles: samples are on both, but the density lacks the outer one! A chain needs longer
             to cross the gap than it lives in training (400 steps on average: 20 per update, and 5%
             restart), and restarts refill the outer circle, so training does not notice. Good
             samples do not prove a good density.

   TRY       In worlds.h: WORLD_STEP 10 times smaller or larger; 5 steps instead of 20, and
             how.weights.cd = 0, in world_recipe. Which panels change, and which does not?

   Picture: build/pictures/worlds.png */
#define JEM_IMPLEMENTATION
#include "jem.h"

#include "worlds.h"

enum { DREAMS = 500, PATHS = 3, STEPS = 300, TEST = 2000, SHORT = 40000 };

static jem_net *learn(jem_ctx *ctx, world_kind kind, int updates) {
    jem_net *net = world_net(ctx, kind);
    const jem_train_desc how = world_recipe(updates);      /* in worlds.h */
    jem_trainer *tr = jem_trainer_create(net, &how);
    jem_rng rng = jem_rng_seed(1);
    for (int i = 0; tr && i < updates && jem_ok(ctx); i++) world_learn(tr, kind, &rng);
    jem_trainer_use_average(tr, 1);
    jem_trainer_free(tr);
    return net;
}

typedef struct paths { float x[STEPS][PATHS][2], now[2 * DREAMS]; } paths;

static int follow(void *user, int step, jem_tensor *x) {
    paths *p = (paths *)user;
    if (jem_read(x, p->now) != JEM_OK) return 1;
    memcpy(p->x[step], p->now, sizeof p->x[step]);
    return 0;
}

/* Draws class regions, samples, and the paths of some of them. */
static void draw_classes(plot *p, jem_net *net) {
    static paths way;
    static jem_answer a[DREAMS];
    static float x[2 * DREAMS];
    plot_classes(p, net);
    world_walk(net, DREAMS, STEPS, follow, &way, x);
    if (jem_classify(net, x, DREAMS, a) != JEM_OK) return;
    for (int k = 0; k < DREAMS; k++) {
        plot_dot(p, x[2 * k], x[2 * k + 1], 6, 0xffffff);
        plot_dot(p, x[2 * k], x[2 * k + 1], 4, class_colours[a[k].label]);
    }
    for (int k = 0; k < PATHS; k++)
        for (int s = 1; s < STEPS; s++)
            plot_line(p, way.x[s - 1][k][0], way.x[s - 1][k][1], way.x[s][k][0], way.x[s][k][1],
                      1.5f, 0x111111);
}

static void draw(sheet *s, int row, plot *p, jem_net *net, world_kind kind) {
    static float x[2 * SHORT];
    static int y[SHORT];
    char title[64];
    jem_rng rng = jem_rng_seed(3);
    world_sample(kind, &rng, TEST, x, y);
    plot_truth(p, kind);
    plot_density(p, 0);
    for (int i = 0; i < 400; i++)
        plot_dot(p, x[2 * i], x[2 * i + 1], 3, class_colours[y[i]]);
    const double truth = world_mean_logp(kind, NULL);
    snprintf(title, sizeof title, "%s: %.2f", worlds[kind].name, truth);
    sheet_put(s, 0, row, p, title);

    const float right = jem_accuracy(net, x, y, TEST);
    plot_function(p, net->ctx, jem_logp, net);
    const double log_z = plot_log_z(p);
    const double learned = world_mean_logp(kind, net) - log_z;
    plot_density(p, log_z);
    snprintf(title, sizeof title, "learned: %.2f", learned);
    sheet_put(s, 1, row, p, title);

    draw_classes(p, net);
    snprintf(title, sizeof title, "classes: %.0f%%", 100 * (double)right);
    sheet_put(s, 2, row, p, title);

    world_walk(net, SHORT, 20, NULL, NULL, x);
    plot_histogram(p, SHORT, x, 5);
    plot_density(p, 0);
    sheet_put(s, 3, row, p, "20 steps from noise");
    const jem_ais_result ais = world_ais(net);
    printf("%-12s  accuracy %5.1f%%  log Z %7.2f, by AIS %.2f +- %.2f  mean log p of new points: "
           "learned %6.3f, truth %6.3f\n", worlds[kind].name, 100 * (double)right, log_z, ais.log_z,
           ais.error, learned, truth);
    fflush(stdout);
}

int main(int argc, char **argv) {
    int shown[WORLDS];
    int rows = 0;
    int ok = 1;
    for (int i = 1; i < argc && rows < WORLDS; i++) {
        if (!strcmp(argv[i], "all")) for (rows = 0; rows < WORLDS; rows++) shown[rows] = rows;
        else if (argv[i][0] != '-' && (shown[rows] = (int)world_find(argv[i])) == WORLDS) return 1;
        else if (argv[i][0] != '-') rows++;
        else if (strcmp(argv[i], "--quick")) {
            fprintf(stderr, "usage: %s [world...] [all] [--quick]\n", argv[0]);
            return 1;
        }
    }
    if (!rows) {
        shown[rows++] = PINWHEEL;
        shown[rows++] = CIRCLES;
    }
    sheet s;
    plot p;
    if (!sheet_create(&s, 4, rows, 240, 0)) return 1;
    jem_ctx *ctx = jem_ctx_create(NULL);
    for (int row = 0; row < rows && ok; row++) {
        const world_kind kind = (world_kind)shown[row];
        jem_net *net = learn(ctx, kind, is_quick(argc, argv) ? 5 : 2000);
        ok = net && panel_create(&p, &s);
        if (ok) {
            draw(&s, row, &p, net, kind);
            plot_free(&p);
        }
        jem_net_free(net);
    }
    const int failed = report(ctx) || !ok || !sheet_close(&s, "build/pictures/worlds.png");
    jem_ctx_free(ctx);
    return failed;
}
