/* QUESTION  How can a network learn a density without drawing samples from the model?

   FORMULA   n = x + sigma z, a noisy point; z from N(0,I). Minimise E |sigma d log p(n)/dn + z|^2.
             At the minimum, p is the density of noisy points, and its gradient leads from n to the
             mean of all x that n may have come from: E[x | n] = n + sigma^2 d log p(n)/dn
             (Vincent 2011; Tweedie's formula, Efron 2011).

   LOOK FOR  Noisy points of a spiral; after one step along the gradient; after twenty; the gradient
             itself. One step leads almost to the line, except near its inner end, where points
             from several parts of the line may become the same n. Twenty small steps reach it.

   TRY       NOISE 0.4f: which arms merge? UPDATES 300.

   RUN       build/score                 Picture: build/pictures/score.png */
#define JEM_IMPLEMENTATION
#include "jem.h"

#include "tools/support/chart.h"

enum { POINTS = 512, UPDATES = 3000, ARROWS = 21, SHOWN = 3 };
#define NOISE 0.12f

/* Samples a spiral of one and a quarter turns in the plane. */
static void spiral(jem_rng *rng, float *x) {
    for (int i = 0; i < POINTS; i++) {
        const float turn = 0.15f + 0.85f * sqrtf(jem_rng_uniform(rng));
        const float angle = 9.425f * turn;
        x[2 * i] = 1.1f * turn * cosf(angle);
        x[2 * i + 1] = 1.1f * turn * sinf(angle);
    }
}

/* Trains by score matching. At n = x + sigma z the loss is |sigma d log p(n)/dn + z|^2 / 2: zero if
   sigma^2 times the gradient is -sigma z, the way back. n does not determine z, so the network
   learns the mean over all x from which n may have come (Vincent 2011). */
static jem_status learn(jem_net *net, jem_rng *rng) {
    jem_ctx *ctx = net->ctx;
    jem_optim *optim = jem_optim_create(net, NULL);
    float x[2 * POINTS];
    float sigma[POINTS];
    float residual = 0;
    float mean = 1;
    for (int i = 0; i < POINTS; i++) sigma[i] = NOISE;
    jem_score_desc how;
    memset(&how, 0, sizeof how);
    how.sigma = sigma;
    for (int i = 0; i < UPDATES && jem_ok(ctx); i++) {
        const jem_mark mark = jem_begin(ctx);
        spiral(rng, x);
        jem_tensor *clean = jem_input(ctx, x, POINTS, 2, 1, 1);
        jem_zero_grad(net);
        jem_backward(jem_score_matching(ctx, jem_logp, net, clean, &how, rng, &residual));
        jem_optim_step(optim, 3e-3f * (1 - (float)i / UPDATES), NULL);
        jem_end(ctx, mark);
        mean += 0.01f * (residual - mean);
        if ((i + 1) % (UPDATES / 5) == 0)
            printf("update %d: error %.3f, relative to the squared noise\n", i + 1, (double)mean);
    }
    jem_optim_free(optim);
    return jem_error_status(ctx);
}

/* Returns the mean distance of the points from their originals. */
static double distance(const float *a, const float *b) {
    double sum = 0;
    for (int i = 0; i < POINTS; i++)
        sum += (double)hypotf(a[2 * i] - b[2 * i], a[2 * i + 1] - b[2 * i + 1]) / POINTS;
    return sum;
}

/* Moves the points. One large step leads to the mean of the possible originals; small steps
   continue to climb, to the ridge: the points reach the line, but not their originals. */
static jem_status denoise(jem_net *net, const float *from, int steps, float share, float *to) {
    jem_ctx *ctx = net->ctx;
    jem_sgld_desc how = jem_sgld_desc_default();   /* uphill, without noise: no rng */
    how.steps = steps;
    how.step_size = share * NOISE * NOISE;
    const jem_mark mark = jem_begin(ctx);
    jem_tensor *x = jem_input(ctx, from, POINTS, 2, 1, 1);
    jem_sgld(ctx, jem_logp, net, x, &how, NULL);
    const jem_status s = jem_read(x, to);
    jem_end(ctx, mark);
    return s;
}

/* Draws the direction of a single step, on a grid of points. */
static jem_status field(plot *p, jem_net *net, float right) {
    jem_ctx *ctx = net->ctx;
    float x[2 * ARROWS * ARROWS], g[2 * ARROWS * ARROWS];
    for (int i = 0; i < ARROWS * ARROWS; i++) {
        x[2 * i] = 1.4f * (2 * (float)(i % ARROWS) / (ARROWS - 1) - 1);
        x[2 * i + 1] = 1.4f * (2 * (float)(i / ARROWS) / (ARROWS - 1) - 1);
    }
    const jem_mark mark = jem_begin(ctx);
    jem_tensor *t = jem_input(ctx, x, ARROWS * ARROWS, 2, 1, 1);
    jem_grad(jem_logp(ctx, t, net), t);
    const jem_status s = jem_read_grad(t, g);
    jem_end(ctx, mark);
    for (int i = 0; i < ARROWS * ARROWS && s == JEM_OK; i++) {
        const float a = right + x[2 * i];
        const float b = x[2 * i + 1];
        const float k = 0.7f * NOISE * NOISE;
        plot_line(p, a, b, a + k * g[2 * i], b + k * g[2 * i + 1], 1.3f, INK_BLUE);
        plot_dot(p, a + k * g[2 * i], b + k * g[2 * i + 1], 3, INK_RED);       /* arrowhead */
    }
    return s;
}

/* Draws the points in SHOWN stages, and the gradient. Returns 1 on success. */
static int draw(jem_net *net, const float *clean, float x[SHOWN][2 * POINTS]) {
    static const char *const name[SHOWN + 1] = {
        "with noise", "one step", "twenty steps", "the gradient, on a grid"
    };
    plot p;
    if (!plot_create(&p, 1200, 332, -1.5f, 10.5f, -1.5f, 1.82f)) return 0;
    plot captions = p;                             /* the same picture, in pixels, y downwards */
    captions.x0 = captions.y1 = 0;
    captions.x1 = (float)p.w;
    captions.y0 = (float)p.h;
    for (int k = 0; k <= SHOWN; k++)
        text(&captions, 300 * (float)k + 20, 8, 2.2f, 0x222222, name[k]);
    for (int k = 0; k < SHOWN; k++) {
        for (int i = 0; i < POINTS; i++)
            plot_dot(&p, 3 * (float)k + x[k][2 * i], x[k][2 * i + 1], 3, INK_BLUE);
        printf("%-13s mean distance from the original %.3f\n", name[k], distance(x[k], clean));
    }
    const int ok = field(&p, net, 9) == JEM_OK && plot_write(&p, "build/pictures/score.png");
    plot_free(&p);
    return ok;
}

int main(void) {
    jem_ctx *ctx = jem_ctx_create(NULL);
    jem_rng rng = jem_rng_seed(1);
    jem_mlp_desc shape = jem_mlp_desc_default();
    shape.channels = 2;
    shape.height = shape.width = 1;
    shape.classes = 2;
    jem_net *net = jem_mlp_create(ctx, &shape, 1);
    if (net) net->scale = 10;                     /* log p(x) is steep from the start of training */
    int ok = net && learn(net, &rng) == JEM_OK;

    float clean[2 * POINTS], x[SHOWN][2 * POINTS], sigma[POINTS];
    if (ok) {
        spiral(&rng, clean);
        for (int i = 0; i < POINTS; i++) sigma[i] = NOISE;
        jem_tensor *t = jem_input(ctx, clean, POINTS, 2, 1, 1);
        jem_add_noise(t, sigma, &rng);
        jem_read(t, x[0]);
        ok = denoise(net, x[0], 1, 1, x[1]) == JEM_OK &&
             denoise(net, x[0], 20, 0.3f, x[2]) == JEM_OK;
    }
    ok = ok && draw(net, clean, x);
    if (ok) printf("picture: build/pictures/score.png\n");
    const int failed = report(ctx);
    jem_net_free(net);
    jem_ctx_free(ctx);
    return failed || !ok;
}
