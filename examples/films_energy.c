/* QUESTION  How does the chain rule run, and when do logits define a density?

   FORMULA   dL/du = dL/dv dv/du, box by box, from the loss back to the beginning; then
             w <- w - rate dL/dw.   p(x) = exp f(x) / Z, if Z = integral of exp f(x) dx < infinity.

   LOOK FOR  films_chain.png: a network of one weight and one bias. Values (blue) are computed from
             left to right, gradients (orange) from right to left: each is the one on its right,
             times the slope of the box between them. A step against the gradient lowers the loss.
             films_bowl.png: the logits of a linear classifier. Z grows with the box that it is
             summed over: there is no density. With a bowl, -x^2/4, added to both logits, Z
             converges. A steeper bowl changes p(x), but no answer p(y|x).

   TRY       RATE 0.5f: does the loss still fall? A bowl of 0.01f: how large must the box be?

   RUN       build/films_energy          Pictures: build/pictures/films_chain.png, films_bowl.png */
#define JEM_IMPLEMENTATION
#include "jem.h"

#include "worlds.h"

/* ---- the chain rule -------------------------------------------------------------------------- */

#define RATE 0.1f
enum { TIMES, PLUS, TANH, MINUS, SQUARE, OPS, BOXES = OPS + 1, ROUNDS = 13 };
enum { CHAIN_WIDE = 700, CHAIN_HIGH = 330 };
enum { BOX = 88, BETWEEN = 30, EDGE = 11, ROW = 92, LOWER = 226 };         /* in pixels */
static const char *const op_names[BOXES] = { "w", "times x", "+ b", "tanh", "- y", "square" };

/* w and b are learned, x and y are a data point; values and gradients are those of the boxes. */
typedef struct chain {
    float w, b, x, y, value[BOXES], grad[BOXES], slope[BOXES], loss[ROUNDS];
    int round;
} chain;

static jem_tensor *apply(jem_ctx *ctx, const chain *c, int op, jem_tensor *u) {
    switch (op) {
        case TIMES: return jem_scale(ctx, u, c->x);
        case PLUS: return jem_add_constant(ctx, u, c->b);
        case TANH: return jem_tanh(ctx, u);
        case MINUS: return jem_add_constant(ctx, u, -c->y);
        default: return jem_square(ctx, u);
    }
}

/* Computes the value of op `last`, from the value u before op `first`, and its derivative with
   respect to u. */
static float apply_all(jem_ctx *ctx, const chain *c, int first, int last, float u, float *slope) {
    const jem_mark mark = jem_begin(ctx);
    jem_tensor *leaf = jem_input(ctx, &u, 1, 1, 1, 1);
    jem_tensor *v = leaf;
    for (int op = first; op <= last; op++) v = apply(ctx, c, op, v);
    const float value = jem_item(v);
    if (jem_grad(v, leaf) == JEM_OK) jem_read_grad(leaf, slope);
    jem_end(ctx, mark);
    return value;
}

/* Computes all values, slopes and gradients. */
static void evaluate(jem_ctx *ctx, chain *c) {
    float unused;
    c->value[0] = c->w;
    c->grad[OPS] = 1;
    for (int op = 0; op < OPS; op++)
        c->value[op + 1] = apply_all(ctx, c, op, op, c->value[op], c->slope + op + 1);
    for (int op = 0; op < OPS; op++) apply_all(ctx, c, op, SQUARE, c->value[op], c->grad + op);
    c->loss[c->round] = apply_all(ctx, c, TIMES, SQUARE, c->w, &unused);
}

static void middle(plot *p, float x, float y, float unit, unsigned colour, const char *s) {
    text(p, x - (text(NULL, 0, 0, unit, colour, s) - 1.8f * unit) / 2, y, unit, colour, s);
}
static void number(plot *p, float x, float y, unsigned colour, const char *before, float v) {
    char label[32];
    snprintf(label, sizeof label, "%s%.2f", before, (double)v);
    middle(p, x, y, 2.2f, colour, label);
}
static void arrow(plot *p, float ax, float ay, float bx, float by, unsigned colour) {
    const float along = hypotf(bx - ax, by - ay);
    const float u = (bx - ax) / along;
    const float v = (by - ay) / along;
    plot_line(p, ax, ay, bx, by, 2, colour);
    plot_line(p, bx, by, bx - 8 * u - 5 * v, by - 8 * v + 5 * u, 2, colour);
    plot_line(p, bx, by, bx - 8 * u + 5 * v, by - 8 * v - 5 * u, 2, colour);
}
static void cell(plot *p, float x, float y, const char *name, unsigned edge) {
    box(p, x, y, x + BOX, y + 62, edge);
    box(p, x + 2, y + 2, x + BOX - 2, y + 60, 0xffffff);
    middle(p, x + BOX / 2.0f, y + 10, 2, 0x333333, name);
}

/* Draws the loss after every step so far. */
static void draw_losses(plot *p, const chain *c) {
    const float left = 400;
    const float bottom = CHAIN_HIGH - 26;
    const float wide = 270;
    const float high = 78;
    text(p, left + 30, LOWER + 2, 2, 0x333333, "the loss L after each step");
    plot_line(p, left, bottom, left + wide, bottom, 1.5f, 0x999999);
    for (int k = 0; k <= c->round; k++) {
        const float x = left + 8 + (wide - 16) * (float)k / (ROUNDS - 1);
        plot_line(p, x, bottom, x, bottom - high * c->loss[k] / c->loss[0], 10, INK_BLUE);
    }
}

/* Draws the boxes: the values of the first `values` boxes, the gradients from box `from` on. */
static int chain_frame(reel *r, const chain *c, int values, int from, const char *title) {
    plot p;
    const unsigned grey = 0xb0b0b0;
    const int now = values < BOXES ? values - 1 : from;        /* the box that was computed last */
    if (!plot_create(&p, CHAIN_WIDE, CHAIN_HIGH, 0, CHAIN_WIDE, CHAIN_HIGH, 0)) return 0;
    text(&p, EDGE, 14, 2.2f, 0x111111, title);
    for (int k = 0; k < BOXES; k++) {
        const float x = (float)(EDGE + k * (BOX + BETWEEN));
        const float half = BOX / 2.0f;
        const int back = k >= from;
        unsigned edge = grey;
        if (k == now) edge = back ? INK_RED : INK_BLUE;
        cell(&p, x, ROW, op_names[k], edge);
        if (k < values) number(&p, x + half, ROW + 34, INK_BLUE, k == OPS ? "L " : "", c->value[k]);
        if (back) number(&p, x + half, ROW + 74, INK_RED, "", c->grad[k]);
        if (k && k < values && from > k - 1)
            arrow(&p, x - BETWEEN + 4, ROW + 30, x - 4, ROW + 30,
                  k == values - 1 ? INK_BLUE : grey);
        else if (k && back && from <= k - 1) {
            arrow(&p, x - 4, ROW + 30, x - BETWEEN + 4, ROW + 30, k - 1 == from ? INK_RED : grey);
            number(&p, x - BETWEEN / 2.0f, ROW - 20, INK_RED, "times ", c->slope[k]);
        }
        if (k == 2) {                              /* b has a box of its own below */
            cell(&p, x, LOWER, "b", grey);
            arrow(&p, x + 9, LOWER - 3, x + 9, ROW + 66, grey);
            number(&p, x + half, LOWER + 34, INK_BLUE, "", c->b);
            if (back) number(&p, x + half, LOWER + 74, INK_RED, "", c->grad[k]);
        }
    }
    text(&p, EDGE, LOWER + 2, 2, 0x333333, "data:");
    number(&p, EDGE + 36, LOWER + 28, INK_BLUE, "x = ", c->x);
    number(&p, EDGE + 36, LOWER + 52, INK_BLUE, "y = ", c->y);
    draw_losses(&p, c);
    const int ok = reel_add(r, p.w, p.h, p.rgb);
    plot_free(&p);
    return ok;
}

static int film_chain(jem_ctx *ctx, int rounds) {
    chain c = { -0.5f, 0.5f, 1.5f, 0.8f, { 0 }, { 0 }, { 0 }, { 0 }, 0 };
    reel r = { NULL, 0, 0, 0, 3 * ROUNDS + 2 * BOXES };
    char title[64];
    int ok = 1;
    for (; ok && c.round < rounds; c.round++) {
        evaluate(ctx, &c);
        snprintf(title, sizeof title, "values, from the first to the last");
        for (int k = 1; ok && k <= BOXES; k++) {
            if (c.round && k < BOXES) continue;    /* box by box only in the first round */
            ok = chain_frame(&r, &c, k, BOXES, title);
        }
        snprintf(title, sizeof title, "gradients of the loss L, from the last to the first");
        for (int k = OPS; ok && k >= 0; k--) {
            if (c.round && k) continue;
            ok = chain_frame(&r, &c, BOXES, k, title);
        }
        printf("step %2d  loss %.4f  dL/dw %+.3f  dL/db %+.3f\n", c.round, (double)c.loss[c.round],
               (double)c.grad[0], (double)c.grad[PLUS + 1]);
        c.w -= RATE * c.grad[0];
        c.b -= RATE * c.grad[PLUS + 1];
    }
    return reel_close(&r, "build/pictures/films_chain.png", 290) && ok;
}

/* ---- the bowl -------------------------------------------------------------------------------- */

#define REACH 6.0f                                 /* numbers are in [-6,6] */
enum { POINTS = 481, GROW = 12, STEEPER = 16, BOWL_WIDE = 700, BOWL_HIGH = 330 };

/* Computes the logits 1.2 x and -1.2 x + 0.6, plus -bowl x^2 in both. */
static jem_tensor *bowl_forward(jem_net *net, jem_tensor *x, int training, void *user) {
    jem_ctx *ctx = net->ctx;
    jem_tensor *bowl = jem_scale(ctx, jem_square(ctx, x), -*(const float *)user);
    jem_tensor *first = jem_scale(ctx, x, 1.2f);
    jem_tensor *second = jem_add_constant(ctx, jem_scale(ctx, x, -1.2f), 0.6f);
    (void)training;
    second = jem_add(ctx, second, bowl);
    return jem_concat(ctx, jem_add(ctx, first, bowl), second);
}

/* Draws p(y|x), and p(x) = exp f(x) / Z with Z summed over [-half,half]. */
static int bowl_frame(reel *r, jem_net *net, float half, const char *title) {
    static float x[POINTS], f[POINTS], both[2 * POINTS], share[2][POINTS], p[POINTS];
    const float step = 2 * REACH / (POINTS - 1);
    double z = 0;
    char label[64];
    plot paper;
    for (int i = 0; i < POINTS; i++) x[i] = step * (float)i - REACH;
    const jem_mark mark = jem_begin(net->ctx);
    jem_tensor *in = jem_input(net->ctx, x, POINTS, 1, 1, 1);
    jem_tensor *answers = jem_log_softmax(net->ctx, jem_forward(net, in, 0));
    const int read = jem_read(jem_logp(net->ctx, in, net), f) == JEM_OK &&
                     jem_read(answers, both) == JEM_OK;
    jem_end(net->ctx, mark);
    if (!read || !plot_create(&paper, BOWL_WIDE, BOWL_HIGH, 0, BOWL_WIDE, BOWL_HIGH, 0)) return 0;
    for (int i = 1; i < POINTS; i++) {             /* the trapezoidal rule */
        const double mean = (exp((double)f[i - 1]) + exp((double)f[i])) / 2;
        if (fabsf(x[i] - step / 2) < half) z += mean * (double)step;
    }
    for (int i = 0; i < POINTS; i++) {
        for (int y = 0; y < 2; y++) share[y][i] = expf(both[2 * i + y]);
        p[i] = fabsf(x[i]) < half + step / 2 ? (float)(exp((double)f[i]) / z) : NAN;
    }
    const curve answer[2] = { { "", INK_BLUE, x, share[0], POINTS, 3 },
                              { "", INK_ORANGE, x, share[1], POINTS, 3 } };
    const curve density = { "", 0x111111, x, p, POINTS, 3 };
    panel left = { "the answers: p(y given x)", "x", 60, 86, 340, BOWL_HIGH - 56, 0, 1, answer, 2 };
    panel right = { label, "x", 405, 86, 685, BOWL_HIGH - 56, 0, 1.2f, &density, 1 };
    const char *form = z < 1000 ? "p(x), with Z = %.2f" : "p(x), with Z = %.0f";
    snprintf(label, sizeof label, form, z);
    draw_panel_in(&paper, &left, 2);
    draw_panel_in(&paper, &right, 2);
    const float scale = (right.right - right.left) / (2 * REACH);
    const float mid = (right.left + right.right) / 2;
    for (int k = -1; k <= 1; k += 2) {             /* the ends of the box */
        const float at = mid + (float)k * half * scale;
        plot_line(&paper, at, right.top, at, right.bottom, 1.5f, INK_RED);
    }
    text(&paper, 16, 14, 2.2f, 0x111111, title);
    const int ok = !paper.failed && reel_add(r, paper.w, paper.h, paper.rgb);
    plot_free(&paper);
    if (ok && (r->taken % GROW == 0 || r->taken == 1)) printf("%s: Z = %.2f\n", title, z);
    return ok;
}

static int film_bowl(jem_ctx *ctx) {
    static const float bowls[2] = { 0, 0.25f };
    static const char *const titles[2] = {
        "logits as trained: Z grows with the box, no density",
        "- x^2/4 in both logits: Z converges, a density"
    };
    reel r = { NULL, 0, 0, 0, 2 * GROW + STEEPER };
    float bowl = 0;
    char title[64];
    jem_net *net = jem_net_create(ctx, bowl_forward, &bowl, sizeof bowl, 1, 1, 1, 2, 1);
    int ok = net != NULL;
    for (int k = 0; ok && k < 2 * GROW; k++) {
        *(float *)net->user = bowls[k / GROW];
        ok = bowl_frame(&r, net, 1 + (REACH - 1) * (float)(k % GROW) / (GROW - 1),
                        titles[k / GROW]);
    }
    for (int k = 1; ok && k <= STEEPER; k++) {
        bowl = 0.25f + 1.25f * (float)k / STEEPER;
        *(float *)net->user = bowl;
        snprintf(title, sizeof title, "- %.2f x^2: another density, the same answers",
                 (double)bowl);
        ok = bowl_frame(&r, net, REACH, title);
    }
    jem_net_free(net);
    return reel_close(&r, "build/pictures/films_bowl.png", 220) && ok;
}

int main(int argc, char **argv) {
    jem_ctx *ctx = jem_ctx_create(NULL);
    int ok = film_chain(ctx, is_quick(argc, argv) ? 2 : ROUNDS);
    ok = ok && film_bowl(ctx);
    ok = !report(ctx) && ok;
    jem_ctx_free(ctx);
    return !ok;
}
