/* QUESTION  How can one sample from a density of which only log p is known, without Z?

   FORMULA   Langevin: x <- x + a/2 d log p/dx + sqrt(a) N(0,I). For small a and many steps, x is
             distributed as p, up to an error of order a (Talay & Tubaro 1990); if a is too large,
             the walk diverges (Roberts & Tweedie 1996). Z is a constant: the gradient of log p does
             not contain it.

   LOOK FOR  A banana. White: the last points of 1000 chains. Blue: the path of the first chain from
             the top, where all of them start. Printed: known and sampled moments.

   TRY       A density of your own in place of `banana`: any that you can express with ops. 0.1f for
             a, or 0.5f: is that still a walk? STEPS 200: which moments converge last?

   RUN       build/own_energy            Picture: build/pictures/own_energy.png */
#define JEM_IMPLEMENTATION
#include "jem.h"

#include "tools/support/pictures.h"

/* u ~ N(0,1) and v = BEND (u^2 - 1) + N(0, WIDTH^2), hence
   log p(u,v) = -u^2/2 - (v - BEND (u^2 - 1))^2 / (2 WIDTH^2) + constant. */
#define BEND 0.5f
#define WIDTH 0.5f

/* Returns log p of each point. x is a batch of points, each an image of 2 channels and 1 x 1
   pixels. Errors need no checks: after the first one every op accepts and returns NULL. */
static jem_tensor *banana(jem_ctx *ctx, jem_tensor *x, void *user) {
    (void)user;
    jem_tensor *u = jem_slice(ctx, x, 0, 1);       /* (n,1,1,1), like v */
    jem_tensor *v = jem_slice(ctx, x, 1, 1);
    jem_tensor *u2 = jem_square(ctx, u);
    jem_tensor *off = jem_sub(ctx, v, jem_scale(ctx, jem_add_constant(ctx, u2, -1), BEND));
    jem_tensor *across = jem_scale(ctx, jem_square(ctx, off), -0.5f / (WIDTH * WIDTH));
    return jem_add(ctx, jem_scale(ctx, u2, -0.5f), across);
}

enum { CHAINS = 1000, STEPS = 6000, BURN_IN = STEPS / 2, SHOWN = 200 };

typedef struct walk {
    float now[2 * CHAINS], first[SHOWN][2];        /* all chains; the start of the first one */
    double sum[5];                                 /* of u, v, u^2, v^2, u^2 v, after BURN_IN */
} walk;

/* Records the chains; the sampler calls it after every step. */
static int look(void *user, int step, jem_tensor *x) {
    walk *w = (walk *)user;
    if (jem_read(x, w->now) != JEM_OK) return 1;                       /* stop */
    if (step < SHOWN) memcpy(w->first[step], w->now, sizeof w->first[step]);
    for (int i = 0; step >= BURN_IN && i < CHAINS; i++) {
        const double u = (double)w->now[2 * i];
        const double v = (double)w->now[2 * i + 1];
        w->sum[0] += u;
        w->sum[1] += v;
        w->sum[2] += u * u;
        w->sum[3] += v * v;
        w->sum[4] += u * u * v;
    }
    return 0;
}

/* Draws p(x) as heat, the last points of the chains in white, the path of the first one in blue. */
static int draw(jem_ctx *ctx, const walk *w, const char *path) {
    plot p;
    if (!plot_create(&p, 720, 720, -3.5f, 3.5f, -2.6f, 4.4f)) return 0;
    int ok = plot_function(&p, ctx, banana, NULL) == JEM_OK;
    plot_heat(&p, -8, 2.5f);
    plot_dots(&p, w->now, CHAINS, 3, 0xffffff);
    plot_way(&p, w->first[0], SHOWN, 2, 0x40c8ff);
    ok = ok && plot_write(&p, path);
    plot_free(&p);
    return ok;
}

int main(void) {
    static walk w;
    jem_ctx *ctx = jem_ctx_create(NULL);
    jem_rng rng = jem_rng_seed(1);

    /* 1000 independent chains are one batch. All start outside of the banana. */
    for (int i = 0; i < CHAINS; i++) {
        w.now[2 * i] = 0;
        w.now[2 * i + 1] = 4;
    }
    jem_tensor *x = jem_input(ctx, w.now, CHAINS, 2, 1, 1);

    jem_sgld_desc how = jem_sgld_desc_langevin(0.01f, STEPS);
    how.watch = look;
    how.watch_user = &w;
    int ok = jem_sgld(ctx, banana, NULL, x, &how, &rng) == JEM_OK;

    static const char *const name[5] = { "u", "v", "u^2", "v^2", "u^2 v" };
    const float known[5] = { 0, 0, 1, 2 * BEND * BEND + WIDTH * WIDTH, 2 * BEND };
    if (ok) printf("mean of    known  sampled\n");
    for (int k = 0; ok && k < 5; k++)
        printf("%-8s %7.3f  %7.3f\n", name[k], (double)known[k],
               w.sum[k] / ((double)CHAINS * (STEPS - BURN_IN)));

    const char *path = "build/pictures/own_energy.png";
    ok = ok && draw(ctx, &w, path);
    if (ok) printf("picture: %s\n", path);
    const int failed = report(ctx);
    jem_ctx_free(ctx);
    return failed || !ok;
}
