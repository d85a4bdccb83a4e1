/* QUESTION  Two numbers describe an image, softmax and familiarity: which of them can one trust?

   FORMULA   p(y|x) = softmax over y of f(x)[y] names one of the classes for any x; f(x) =
             logsumexp over y of f(x)[y] = log p(x) + log Z measures how likely x itself is.
             Familiarity: the fraction of held-out digits that are less typical than x.

   LOOK FOR  Six images, with softmax (blue) and familiarity (orange) under each. All six have a
             class; only the first is familiar, and the others are strange.
             Below: two networks that separate two moons equally well. The density of the first is
             highest as far from the class boundary as the box allows; that of the second follows
             the moons.

   TRY       build/hello picture.png, with any picture that is not a digit: when is it 'odd'?

   RUN       build/glance                Picture: build/pictures/glance.png */
#define JEM_IMPLEMENTATION
#include "jem.h"

#include "tools/support/pictures.h"
#include "worlds.h"

enum { SHOWN = 6, ZOOM = 5, CELL = DIGIT * ZOOM, GAP = 20, WIDE = SHOWN * (CELL + GAP) + GAP };
enum { BARS = 80, UPPER = CELL + BARS + 2 * GAP, PANEL = 300, HIGH = UPPER + PANEL + 50 };
static const char *const names[SHOWN] = {
    "a 4", "upside down", "the letter M", "a shirt", "its negative", "noise"
};

/* Fills x with the images in the order of `names`. */
static int images(jem_ctx *ctx, float x[SHOWN][DIGIT_PIXELS]) {
    static const int place[SHOWN] = { 0, 1, 4, 5, 2, 3 };
    static float all[SHOWN][DIGIT_PIXELS];
    if (!digits_and_others(ctx, all)) return 0;
    for (int i = 0; i < SHOWN; i++) memcpy(x[i], all[place[i]], sizeof x[i]);
    return 1;
}

/* Draws a bar from 0 to 1 on a pale track, with its label above it. */
static void bar(plot *paper, float x, float y, float share, unsigned colour, const char *label) {
    text(paper, x, y - 2, 2.1f, 0x333333, label);
    plot_line(paper, x + 4, y + 20, x + CELL - 4, y + 20, 8, 0xe4e4e0);
    if (share > 0.005f)
        plot_line(paper, x + 4, y + 20, x + 4 + share * (CELL - 8), y + 20, 8, colour);
}

/* Draws the six images, with the network's answers under each. */
static int draw_images(jem_ctx *ctx, plot *paper) {
    static float x[SHOWN][DIGIT_PIXELS];
    jem_answer a[SHOWN];
    jem_net *net = jem_load(ctx, SHIPPED_PATH);
    char label[64];
    const int ok = net && images(ctx, x) && jem_classify(net, x[0], SHOWN, a) == JEM_OK;
    for (int i = 0; i < SHOWN && ok; i++) {
        const int left = GAP + i * (CELL + GAP);
        plot_digit(paper, left, GAP, ZOOM, x[i]);
        const float y = CELL + GAP + 10;
        snprintf(label, sizeof label, "%d: %.0f%%", a[i].label, 100 * (double)a[i].probability);
        bar(paper, (float)left, y, a[i].probability, INK_BLUE, label);
        snprintf(label, sizeof label, "familiar: %.1f%%", 100 * (double)a[i].familiarity);
        bar(paper, (float)left, y + 34, a[i].familiarity, INK_RED, label);
        printf("%-13s softmax %d, p = %.3f   familiarity %.4f\n", names[i], a[i].label,
               (double)a[i].probability, (double)a[i].familiarity);
    }
    jem_net_free(net);
    return ok;
}

/* Trains on two moons by cross-entropy alone, or as a JEM. Plots the density to p; writes the
   accuracy to title. */
static double learn_moons(jem_ctx *ctx, int jem, int updates, plot *p, char *title, size_t size) {
    enum { TEST = 2000 };
    static float x[2 * TEST];
    static int y[TEST];
    const char *name = jem ? "JEM" : "classifier";
    jem_net *net = world_net(ctx, MOONS);
    jem_train_desc how = world_recipe(updates);
    how.weights.cd = (float)jem;                   /* 0: cross-entropy alone */
    jem_trainer *trainer = jem_trainer_create(net, &how);
    jem_rng rng = jem_rng_seed(1);
    for (int i = 0; trainer && i < updates && jem_ok(ctx); i++)
        world_learn(trainer, MOONS, &rng);
    jem_trainer_use_average(trainer, 1);
    jem_trainer_free(trainer);
    jem_rng other = jem_rng_seed(3);
    world_sample(MOONS, &other, TEST, x, y);
    const double right = 100 * (double)jem_accuracy(net, x, y, TEST);
    const double learned = world_learned(MOONS, net, p);
    plot_density(p, plot_log_z(p));
    for (int i = 0; i < 250; i++)
        plot_dot(p, x[2 * i], x[2 * i + 1], 3.5f, y[i] ? INK_ORANGE : INK_SKY);
    snprintf(title, size, "%s: %.1f%% right", name, right);
    printf("%-13s accuracy %.1f%%   mean log p of new points %.3f\n", name, right, learned);
    jem_net_free(net);
    return learned;
}

int main(int argc, char **argv) {
    const int updates = is_quick(argc, argv) ? 5 : 1000;
    plot paper, moons;
    char title[64];
    if (!plot_create(&paper, WIDE, HIGH, 0, WIDE, HIGH, 0)) return 1;
    if (!world_grid(&moons, PANEL)) return 1;
    jem_ctx *ctx = jem_ctx_create(NULL);
    int ok = ctx && draw_images(ctx, &paper);
    for (int k = 0; k < 2 && ok; k++) {
        const int left = GAP + k * (WIDE - GAP) / 2 + 70;
        learn_moons(ctx, k, updates, &moons, title, sizeof title);
        text(&paper, (float)left, UPPER - 2, 2.8f, 0x333333, title);
        plot_put(&paper, left, UPPER + 28, &moons);
        ok = jem_ok(ctx);
    }
    const int failed = report(ctx) || !ok || !plot_write(&paper, "build/pictures/glance.png");
    if (!failed) printf("picture: build/pictures/glance.png\n");
    plot_free(&paper);
    plot_free(&moons);
    jem_ctx_free(ctx);
    return failed;
}
