/* QUESTION  A network has a thousand weights. In which direction should each of them change, and
             how can a program compute that?

   FORMULA   The chain rule: dL/dx = dL/dy dy/dx, from the loss back to the beginning (Linnainmaa
             1970). Each op computes its own dy/dx; the tape records the order of the calls.
             Then gradient descent, by hand: w <- w - rate dL/dw.

   LOOK FOR  A curve through noisy points, after more and more steps: first the slope and a shallow
             wave, at last the full waves. Printed: the largest difference between the tape's
             gradient and finite differences, and the loss on these points. Below 0.01, the variance
             of the noise, the network fits the noise.

   TRY       A rate of 0.02f, or 2. HIDDEN 4. jem_silu in place of jem_tanh. Omit jem_zero_grad.

   RUN       build/autograd              Picture: build/pictures/autograd.png */
#define JEM_IMPLEMENTATION
#include "jem.h"

#include "tools/support/chart.h"

enum { POINTS = 80, HIDDEN = 32, STEPS = 3000, CURVE = 600 };

static float truth(float x) { return 0.7f * sinf(5 * x) + 0.3f * x; }

/* The targets, and the parameters to fit. */
typedef struct problem {
    jem_tensor *y;                                 /* targets, (POINTS,1,1,1) */
    jem_param *w1, *b1, *w2, *b2, *w3, *b3;
} problem;

/* Predicts y from x (n,1,1,1) -> (n,1,1,1). An op only records the operation; values are computed
   when they are read. */
static jem_tensor *predict(jem_ctx *ctx, jem_tensor *x, const problem *p) {
    jem_tensor *h = jem_tanh(ctx, jem_linear(ctx, x, p->w1, p->b1));
    h = jem_tanh(ctx, jem_linear(ctx, h, p->w2, p->b2));
    return jem_linear(ctx, h, p->w3, p->b3);
}

/* Returns the mean squared error, a single number. The signature is that of jem_logp_fn, so that
   jem_check_gradient can check it. */
static jem_tensor *loss(jem_ctx *ctx, jem_tensor *x, void *user) {
    const problem *p = (const problem *)user;
    return jem_mean(ctx, jem_square(ctx, jem_sub(ctx, predict(ctx, x, p), p->y)));
}

/* Creates a matrix (out,in) of N(0, 1/in), or with in = 0 a vector of zeros. */
static jem_param *param(jem_net *net, const char *name, int out, int in) {
    const int shape[2] = { out, in };
    jem_param *p = jem_net_param(net, name, in ? 2 : 1, shape, 1);
    if (p && in) jem_fill_normal(p->ctx, &net->rng, p->value, p->size, 0, 1 / sqrtf((float)in));
    return p;
}

static void draw_fit(plot *graph, jem_ctx *ctx, const problem *p, float width, unsigned colour) {
    float x[CURVE], y[CURVE];
    for (int i = 0; i < CURVE; i++) x[i] = 2.2f * (float)i / (CURVE - 1) - 1.1f;
    const jem_mark mark = jem_begin(ctx);
    if (jem_read(predict(ctx, jem_input(ctx, x, CURVE, 1, 1, 1), p), y) == JEM_OK)
        for (int i = 1; i < CURVE; i++)
            plot_line(graph, x[i - 1], y[i - 1], x[i], y[i], width, colour);
    jem_end(ctx, mark);
}

static void fit(plot *graph, jem_ctx *ctx, jem_net *net) {
    float x[POINTS], y[POINTS];
    jem_rng rng = jem_rng_seed(1);
    for (int i = 0; i < POINTS; i++) {
        x[i] = 2 * jem_rng_uniform(&rng) - 1;
        y[i] = truth(x[i]) + 0.1f * jem_rng_normal(&rng);
        plot_dot(graph, x[i], y[i], 9, 0x9aa4b0);
    }
    problem p;
    p.w1 = param(net, "w1", HIDDEN, 1);
    p.b1 = param(net, "b1", HIDDEN, 0);
    p.w2 = param(net, "w2", HIDDEN, HIDDEN);
    p.b2 = param(net, "b2", HIDDEN, 0);
    p.w3 = param(net, "w3", 1, HIDDEN);
    p.b3 = param(net, "b3", 1, 0);
    p.y = jem_input(ctx, y, POINTS, 1, 1, 1);
    jem_tensor *in = jem_input(ctx, x, POINTS, 1, 1, 1);

    /* Compare the tape's gradient with finite differences. In fp32, up to 1e-2 is correct. */
    printf("gradient of w2: largest relative error %.0e\n",
           (double)jem_check_gradient(ctx, loss, &p, in, p.w2, 0.02f));

    char label[32];
    plot captions = *graph;                        /* the same picture, in pixels, y downwards */
    captions.x0 = captions.y1 = 0;
    captions.x1 = (float)graph->w;
    captions.y0 = (float)graph->h;
    const int show[4] = { 0, 100, 1000, STEPS };
    const unsigned colour[4] = { INK_GREY, INK_RED, INK_BLUE, 0x111111 };
    for (int step = 0; step <= STEPS && jem_ok(ctx); step++) {
        const jem_mark mark = jem_begin(ctx);      /* jem_end frees everything after this */
        jem_tensor *l = loss(ctx, in, &p);
        for (int k = 0; k < 4; k++) if (step == show[k]) {
            printf("step %4d  loss %.4f\n", step, (double)jem_item(l));
            draw_fit(graph, ctx, &p, k < 3 ? 2 : 4, colour[k]);
            snprintf(label, sizeof label, "step %d", step);
            text(&captions, 20, (float)(20 + 26 * k), 2, colour[k], label);
        }
        jem_zero_grad(net);
        jem_backward(l);                           /* adds d loss / d q to q->grad */
        for (jem_param *q = net->params; q; q = q->next) {             /* gradient descent */
            for (ptrdiff_t i = 0; i < q->size; i++) q->value[i] -= 0.2f * q->grad[i];
            jem_param_changed(q);                  /* q->value was changed outside of the tape */
        }
        jem_end(ctx, mark);
    }
}

int main(void) {
    const char *path = "build/pictures/autograd.png";
    plot graph;
    if (!plot_create(&graph, 800, 560, -1.1f, 1.1f, -1.4f, 1.4f)) return 1;
    jem_ctx *ctx = jem_ctx_create(NULL);
    jem_net *net = jem_net_create(ctx, NULL, NULL, 0, 1, 1, 1, 1, 1);  /* holds the parameters */
    if (net) fit(&graph, ctx, net);
    const int failed = report(ctx) || !plot_write(&graph, path);
    if (!failed) printf("picture: %s\n", path);
    jem_net_free(net);
    jem_ctx_free(ctx);
    plot_free(&graph);
    return failed;
}
