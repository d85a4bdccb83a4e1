/* QUESTION  Each of four networks has learned one factor of pictures. Can they jointly draw what is
             requested in words, even combinations missing from all training data?

   FORMULA   Du, Li and Mordatch (2020, arXiv:2004.06030) add energies. log p(x|red) is log p(x) +
             log p(red|x), up to a constant (Bayes); with a network for each factor,
                 log p(x | red and square) = log p(x) + log p(red|x) + log p(square|x)
                 or    logsumexp of the two            not   - log p(red|x), with a floor
             log p(x) is the mean over the four networks; the words have the weight WEIGHT
             (guidance).

   LOOK FOR  A row for each expression: samples from noise, and the fraction of them that match it.
             To measure it, we render all possible pictures and take the nearest; a sample matches
             none if that one explains less than two thirds of it. Two of the rows were never shown
             in training: no red square on the left, no green triangle.

   TRY       WEIGHT 1 and 50. 480 updates for the shape, too. Expressions of your own. held_out:
             all red pictures except circles: does anything but circles become red?

   RUN       build/compose_images [--updates N]    Picture: build/pictures/compose_images.png */
#define JEM_IMPLEMENTATION
#include "jem.h"

#include "count.h"
#include "shapes.h"

#define FLOOR 1e-3f
#define WEIGHT 12
enum { UPDATES = 1200, BATCH = 64, SAMPLES = 16, SHOWN = 8, ROWS = 9 };
enum { ZOOM = 5, CELL = SIDE * ZOOM + 6, LEFT_OF = 320 };     /* layout of the picture, in pixels */

WORD(red, COLOUR, RED);     WORD(green, COLOUR, GREEN);     WORD(blue, COLOUR, BLUE);
WORD(circle, SHAPE, CIRCLE);    WORD(square, SHAPE, SQUARE);    WORD(triangle, SHAPE, TRIANGLE);
WORD(left, PLACE, LEFT);    WORD(small, SIZE, SMALL);       WORD(large, SIZE, LARGE);
JOIN(red_circle, AND, &red, &circle);           JOIN(red_square, AND, &red, &square);
JOIN(circle_left, AND, &red_circle, &left);     JOIN(square_left, AND, &red_square, &left);
JOIN(green_triangle, AND, &green, &triangle);   JOIN(round_or_square, OR, &circle, &square);
JOIN(not_red, NOT, &red, NULL);                 JOIN(other_triangle, AND, &triangle, &not_red);
JOIN(small_red, AND, &red, &small);             JOIN(large_blue, AND, &blue, &large);
JOIN(either, OR, &small_red, &large_blue);
static const struct row { const words *asked; const char *name, *note; } rows[ROWS] = {
    { &red, "red", "" }, { &large_blue, "blue and large", "" },
    { &round_or_square, "circle or square", "" }, { &not_red, "not red", "" },
    { &other_triangle, "triangle and not red", "" }, { &either, "small red or large blue", "" },
    { &circle_left, "red and circle and left", "" },
    { &square_left, "red and square and left", ", never shown" },
    { &green_triangle, "green and triangle", ", never shown" }
};
static int held_out(const scene *s) {
    return (s->is[COLOUR] == RED && s->is[SHAPE] == SQUARE && s->is[PLACE] == LEFT) ||
           (s->is[COLOUR] == GREEN && s->is[SHAPE] == TRIANGLE);
}

/* ---- and their log-densities ---- */
typedef struct model { jem_net *net[FACTORS]; const words *asked; } model;

/* logp[k]: (n,values,1,1), log p(value of factor k | x) */
static jem_tensor *evaluate(jem_ctx *ctx, jem_tensor *const *logp, const words *w) {
    if (w->what == IS) return jem_slice(ctx, logp[w->factor], w->value, 1);
    jem_tensor *a = evaluate(ctx, logp, w->a);
    if (w->what == NOT) {
        jem_tensor *low = jem_add_constant(ctx, jem_scale(ctx, a, 0), logf(FLOOR));
        return jem_scale(ctx, jem_logsumexp(ctx, jem_concat(ctx, a, low)), -1);
    }
    jem_tensor *b = evaluate(ctx, logp, w->b);
    return w->what == AND ? jem_add(ctx, a, b) : jem_logsumexp(ctx, jem_concat(ctx, a, b));
}

static jem_tensor *together(jem_ctx *ctx, jem_tensor *x, void *user) {
    const model *m = (const model *)user;
    jem_tensor *logp[FACTORS];
    jem_tensor *sum = NULL;
    for (int k = 0; k < FACTORS; k++) {
        jem_tensor *f = jem_forward(m->net[k], x, 0);
        jem_tensor *all = jem_logsumexp(ctx, f);
        sum = k ? jem_add(ctx, sum, all) : all;
        logp[k] = jem_log_softmax(ctx, f);
    }
    sum = jem_scale(ctx, sum, m->net[0]->scale / FACTORS);
    return jem_add(ctx, sum, jem_scale(ctx, evaluate(ctx, logp, m->asked), WEIGHT));
}

/* ---- learning: each network learns one factor, the others vary; shapes are the hardest ---- */
static const float effort[FACTORS] = { 1, 0.4f, 0.4f, 0.5f };

static jem_net *learn(jem_ctx *ctx, int k, int updates) {
    static float x[BATCH * SHAPE_NUMBERS];
    int y[BATCH];
    jem_convnet_desc shape = jem_convnet_desc_default();
    shape.channels = 3;
    shape.height = shape.width = SIDE;
    shape.classes = factors[k].values;
    jem_net *net = jem_convnet_create(ctx, &shape, (uint64_t)k + 1);
    if (!net) return NULL;
    jem_train_desc how = jem_train_desc_score(updates);    /* first the score, then chains */
    net->scale = 10;
    how.weights.cd = 0.01f;
    how.cd_from = updates / 2;
    how.negatives = 16;
    jem_trainer *tr = jem_trainer_create(net, &how);
    jem_rng rng = jem_rng_seed((uint64_t)k + 10);
    for (int i = 1; i <= updates && jem_ok(ctx); i++) {
        for (int j = 0; j < BATCH; j++) {
            scene s = scene_random(&rng);
            while (held_out(&s)) s = scene_random(&rng);
            scene_draw(&s, x + j * SHAPE_NUMBERS);
            y[j] = s.is[k];
        }
        const jem_stats st = jem_train_step(tr, x, y, BATCH);
        if (i % 100 == 0 || i == updates) {
            printf("\r%-6s  %d of %d updates, accuracy %.2f", factors[k].name, i, updates,
                   (double)st.accuracy);
            fflush(stdout);
        }
    }
    printf("\n");
    jem_trainer_use_average(tr, 1);
    jem_trainer_free(tr);
    return net;
}

/* Samples from noise; returns the number that match the request. */
static int draw(jem_ctx *ctx, model *m, const struct row *row, plot *paper, int top) {
    static float x[SAMPLES * SHAPE_NUMBERS];
    char note[80];
    int hits = 0;
    jem_rng rng = jem_rng_seed((uint64_t)top);
    jem_generate_desc how = jem_generate_desc_default();
    jem_denoise_desc last = jem_denoise_desc_default();
    jem_tensor *t = jem_zeros(ctx, SAMPLES, 3, SIDE, SIDE);
    how.mean = m->net[0]->mean;
    m->asked = row->asked;
    last.steps = 8;
    last.fraction = 0.3f;
    last.sigma_max = 0.3f;     /* final steps without noise */
    jem_generate(ctx, together, m, t, &how, &rng);
    jem_denoise(ctx, together, m, t, &last, NULL);
    const int ok = jem_read(t, x) == JEM_OK;
    for (int i = 0; ok && i < SAMPLES; i++) {
        scene s;
        const float explained = scene_nearest(x + i * SHAPE_NUMBERS, &s);
        hits += explained > SHAPE_SEEN && words_hold(m->asked, &s);
        if (i < SHOWN) shape_put(paper, LEFT_OF + CELL * i, top, ZOOM, x + i * SHAPE_NUMBERS);
    }
    snprintf(note, sizeof note, "%d%% of %d%s", 100 * hits / SAMPLES, SAMPLES, row->note);
    text(paper, 8, (float)top + 12, 2.3f, 0x222222, row->name);
    text(paper, 8, (float)top + 44, 2, 0x555555, note);
    printf("%-28s %3d%%%s\n", row->name, 100 * hits / SAMPLES, row->note);
    fflush(stdout);
    jem_reset(ctx);
    return hits;
}

int main(int argc, char **argv) {
    const int asked = argc == 3 && !strcmp(argv[1], "--updates");
    int updates = UPDATES;
    if (asked) updates = count_of(argv[2]);
    else if (argc > 1) updates = 0;
    const int wide = LEFT_OF + CELL * SHOWN;
    const int high = CELL * ROWS + 4;
    static model m;
    int hits = 0;
    plot paper;
    if (updates < 1) {
        fprintf(stderr, "usage: %s [--updates N], " COUNT_RANGE "\n", argv[0]);
        return 1;
    }
    if (!plot_create(&paper, wide, high, 0, (float)wide, (float)high, 0)) return 1;
    jem_ctx *ctx = jem_ctx_create(NULL);
    for (int k = 0; k < FACTORS && jem_ok(ctx); k++) {
        const int of_net = (int)(effort[k] * (float)updates);
        m.net[k] = learn(ctx, k, of_net > 0 ? of_net : 1);
    }
    for (int row = 0; row < ROWS && jem_ok(ctx); row++)
        hits += draw(ctx, &m, rows + row, &paper, 4 + CELL * row);
    if (jem_ok(ctx))
        printf("of all samples, %d%% match the request\n", 100 * hits / (ROWS * SAMPLES));
    const int failed = report(ctx) || !plot_write(&paper, "build/pictures/compose_images.png");
    if (!failed) printf("picture: build/pictures/compose_images.png\n");
    for (int k = 0; k < FACTORS; k++) jem_net_free(m.net[k]);
    plot_free(&paper);
    jem_ctx_free(ctx);
    return failed;
}
