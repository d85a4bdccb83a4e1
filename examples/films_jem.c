/* QUESTION  What does the second term of a JEM's loss add, and what is the density good for?

   FORMULA   L = -log p(y|x) - log p(x): cross-entropy, and contrastive divergence.
             Familiarity: the fraction of held-out digits that are less typical than x.

   LOOK FOR  films_both.png: the same network learns a pinwheel twice. By cross-entropy alone (upper
             row) it learns where the classes meet, and a density that is highest in a corner of the
             box. As a JEM it learns nearly the same classes, and the density is the pinwheel.
             films_turn.png: a 9 turns. Softmax (blue) names a digit with confidence at most angles.
             Familiarity (orange) is low in between, and high again where the 9 has become a 6.

   TRY       CD_WEIGHT 0.01f: how much of the second term is enough? Another digit in film_turn.

   RUN       build/films_jem             Pictures: build/pictures/films_both.png, films_turn.png */
#define JEM_IMPLEMENTATION
#include "jem.h"

#include "worlds.h"

/* ---- both terms ------------------------------------------------------------------------------ */

#define CD_WEIGHT 1.0f
enum { UPDATES = 1000, SHOTS = 28, SIZE = 140, SEEN = 2000, SHOWN = 120 };

/* Returns the update of a shot: shots are denser at the beginning, where more changes. */
static int moment(int shot, int updates) {
    const double t = shot / (SHOTS - 1.0);
    return (int)(updates * t * t + 0.5);
}

/* Panels of one training: the classes and the density, with their titles. */
typedef struct shot {
    unsigned char rgb[2][SIZE * SIZE * 3];
    char title[2][64];
} shot;

static void shoot(shot *to, const char *name, plot *p, jem_net *net, const float *x, const int *y) {
    const double right = 100 * (double)jem_accuracy(net, x, y, SEEN);
    snprintf(to->title[0], sizeof to->title[0], "%s: %.0f%%", name, right);
    plot_classes(p, net);
    for (int k = 0; k < SIZE * SIZE * 3; k++) {    /* fewer colours make a smaller file */
        p->rgb[k] = (unsigned char)(255 - (255 - p->rgb[k]) / 12 * 12);
    }
    for (int i = 0; i < SHOWN; i++) plot_dot(p, x[2 * i], x[2 * i + 1], 3, class_colours[y[i]]);
    memcpy(to->rgb[0], p->rgb, sizeof to->rgb[0]);
    const double learned = world_learned(PINWHEEL, net, p);
    snprintf(to->title[1], sizeof to->title[1], "mean log p: %.1f", learned);
    plot_density(p, plot_log_z(p));
    memcpy(to->rgb[1], p->rgb, sizeof to->rgb[1]);
}

static int train(jem_ctx *ctx, shot *shots, plot *p, float cd_weight, int updates) {
    static float x[2 * SEEN];
    static int y[SEEN];
    int taken = 0;
    jem_net *net = world_net(ctx, PINWHEEL);
    jem_train_desc how = world_recipe(updates);
    how.weights.cd = cd_weight;
    jem_trainer *trainer = jem_trainer_create(net, &how);
    jem_rng rng = jem_rng_seed(1);
    jem_rng other = jem_rng_seed(3);
    world_sample(PINWHEEL, &other, SEEN, x, y);
    for (int i = 0; trainer && jem_ok(ctx) && taken < SHOTS; i++) {
        while (taken < SHOTS && i >= moment(taken, updates)) {
            jem_trainer_use_average(trainer, 1);
            shoot(shots + taken++, cd_weight > 0 ? "JEM" : "classifier", p, net, x, y);
            jem_trainer_use_average(trainer, 0);
        }
        if (i < updates) world_learn(trainer, PINWHEEL, &rng);
    }
    jem_trainer_free(trainer);
    jem_net_free(net);
    return taken == SHOTS;
}

static int film_both(jem_ctx *ctx, int updates) {
    static shot shots[2][SHOTS];
    reel r = { NULL, 0, 0, 0, SHOTS };
    plot p;
    sheet s;
    if (!world_grid(&p, SIZE)) return 0;
    int ok = train(ctx, shots[0], &p, 0, updates) && train(ctx, shots[1], &p, CD_WEIGHT, updates);
    for (int t = 0; ok && t < SHOTS; t++) {
        ok = sheet_create(&s, 2, 2, SIZE, 0);
        for (int k = 0; ok && k < 4; k++) {
            const shot *now = &shots[k / 2][t];
            memcpy(p.rgb, now->rgb[k % 2], sizeof now->rgb[0]);
            sheet_put(&s, k % 2, k / 2, &p, now->title[k % 2]);
        }
        ok = ok && reel_add(&r, s.paper.w, s.paper.h, s.paper.rgb);
        plot_free(&s.paper);
    }
    for (int k = 0; ok && k < 2; k++)
        printf("%s  %s\n", shots[k][SHOTS - 1].title[0], shots[k][SHOTS - 1].title[1]);
    plot_free(&p);
    return reel_close(&r, "build/pictures/films_both.png", 350) && ok;
}

/* ---- a digit that turns ---------------------------------------------------------------------- */

enum { ANGLES = 36, WHICH = 789, ZOOM = 6, WIDE = 640, HIGH = 330 };

/* Returns the weight of a pixel at distance t along an axis: cubic interpolation (Keys 1981), which
   blurs less than linear. */
static float weight(float t) {
    t = fabsf(t);
    if (t < 1) return (1.5f * t - 2.5f) * t * t + 1;
    if (t < 2) return ((2.5f - 0.5f * t) * t - 4) * t + 2;
    return 0;
}
/* Turns an image by an angle. */
static void turn(const float *from, float angle, float *to) {
    const float c = cosf(angle);
    const float s = sinf(angle);
    const float middle = (DIGIT - 1) / 2.0f;
    for (int k = 0; k < DIGIT_PIXELS; k++) {
        const float u = (float)(k % DIGIT) - middle;
        const float v = (float)(k / DIGIT) - middle;
        const float x = c * u + s * v + middle;
        const float y = c * v - s * u + middle;
        float sum = 0;
        for (int q = 0; q < 16; q++) {
            const int j = (int)floorf(x) - 1 + q % 4;
            const int i = (int)floorf(y) - 1 + q / 4;
            const int inside = i >= 0 && j >= 0 && i < DIGIT && j < DIGIT;
            const float ink = inside ? from[i * DIGIT + j] : -1;
            sum += weight(x - (float)j) * weight(y - (float)i) * ink;
        }
        to[k] = fmaxf(-1, fminf(sum, 1));
    }
}

/* Draws the image, its answers, and those to all angles: pale beyond the present one. */
static int turn_frame(reel *r, int shown, const float *x, const jem_answer *a) {
    static float angle[ANGLES], value[2][ANGLES];
    char label[64];
    plot p;
    if (!plot_create(&p, WIDE, HIGH, 0, WIDE, HIGH, 0)) return 0;
    for (int k = 0; k < ANGLES; k++) {
        angle[k] = 360.0f * (float)k / ANGLES;
        value[0][k] = a[k].probability;
        value[1][k] = a[k].familiarity;
    }
    for (int k = 0; k < DIGIT * ZOOM * DIGIT * ZOOM; k++) {
        const int i = k / (DIGIT * ZOOM);
        const int j = k % (DIGIT * ZOOM);
        const float v = (x[i / ZOOM * DIGIT + j / ZOOM] + 1) / 2;
        const unsigned grey = (unsigned)(fmaxf(0, fminf(v, 1)) * 15 + 0.5f) * 17;
        plot_blend(&p, 20 + i, 20 + j, grey * 0x10101u, 1);
    }
    const jem_answer *now = a + shown;
    snprintf(label, sizeof label, "softmax: %d, %.0f%%", now->label,
             100 * (double)now->probability);
    text(&p, 20, 214, 2.2f, INK_BLUE, label);
    snprintf(label, sizeof label, "familiarity: %.1f%%", 100 * (double)now->familiarity);
    text(&p, 20, 244, 2.2f, INK_RED, label);
    text(&p, 20, 274, 2.2f, 0x111111, jem_verdict_name(jem_judge(now->familiarity)));
    const curve curves[4] = { { "", 0xb2d4e7, angle, value[0], ANGLES, 3 },
                              { "", 0xf0c6a8, angle, value[1], ANGLES, 3 },
                              { "", INK_BLUE, angle, value[0], shown + 1, 3 },
                              { "", INK_RED, angle, value[1], shown + 1, 3 } };
    const panel q = { "", "degrees", 280, 30, 620, HIGH - 60, 0, 1.02f, curves, 4 };
    draw_panel_in(&p, &q, 2.2f);
    for (int k = 0; k < 2; k++) {                  /* the present angle */
        const float at = q.left + (q.right - q.left) * angle[shown] / angle[ANGLES - 1];
        const float up = (q.bottom - q.top) * value[k][shown] / q.y_hi;
        plot_dot(&p, at, q.bottom - up, 10, k ? INK_RED : INK_BLUE);
    }
    const int ok = !p.failed && reel_add(r, WIDE, HIGH, p.rgb);
    plot_free(&p);
    return ok;
}

static int film_turn(jem_ctx *ctx) {
    static float x[ANGLES][DIGIT_PIXELS];
    jem_answer a[ANGLES];
    reel r = { NULL, 0, 0, 0, ANGLES };
    digits d;
    if (!digits_load(DIGITS_PATH, &d)) return 0;
    jem_net *net = jem_load(ctx, SHIPPED_PATH);
    for (int k = 0; k < ANGLES; k++) {
        turn(d.test_x + WHICH * DIGIT_PIXELS, 6.2831853f * (float)k / ANGLES, x[k]);
    }
    int ok = net && jem_classify(net, x[0], ANGLES, a) == JEM_OK;
    int confident = 0;
    int strange = 0;
    for (int k = 0; k < ANGLES && ok; k++) {
        confident += a[k].probability > 0.9f;
        strange += jem_judge(a[k].familiarity) != JEM_VERDICT_FAMILIAR;
        if (k % 3 == 0)
            printf("%3d degrees: softmax %d, p = %.2f   familiarity %.3f\n", 360 * k / ANGLES,
                   a[k].label, (double)a[k].probability, (double)a[k].familiarity);
        ok = turn_frame(&r, k, x[k], a);
    }
    if (ok) printf("of %d angles, p > 0.9 at %d, not familiar at %d\n", ANGLES, confident, strange);
    digits_free(&d);
    jem_net_free(net);
    return reel_close(&r, "build/pictures/films_turn.png", 280) && ok;
}

int main(int argc, char **argv) {
    jem_ctx *ctx = jem_ctx_create(NULL);
    int ok = film_both(ctx, is_quick(argc, argv) ? 20 : UPDATES);
    ok = ok && film_turn(ctx);
    ok = !report(ctx) && ok;
    jem_ctx_free(ctx);
    return !ok;
}
