/* An op that jem.h does not have, added from outside: a circular shift of an image. With it comes a
   lattice of spins on a torus, where neighbours like to agree; Langevin dynamics lets it grow
   domains. Picture: build/pictures/own_op.png */
#define JEM_IMPLEMENTATION
#include "../jem.h"

#include "pictures.h"

/* ---- the op: y[i][j] = x[(i + down) mod h][(j + right) mod w] ---- */

typedef struct roll { int down, right; } roll;

/* 16 images are interleaved: one pixel is in[0].c * JEM_LANES floats, and pixels follow each other
   row by row. Where output pixel k of the image comes from: */
static ptrdiff_t roll_from(const jem_call *call, int k) {
    const roll *r = (const roll *)call->user;
    const int h = call->out.h, w = call->out.w;
    return (ptrdiff_t)((k / w + r->down) % h * w + (k % w + r->right) % w);
}

/* Called for one group of 16 images, from any thread: read call->x, write call->y. */
static void roll_forward(const jem_call *call) {
    const int size = call->out.c * JEM_LANES;
    for (int k = 0; k < call->out.h * call->out.w; k++)
        memcpy(call->y + k * size, call->x[0] + roll_from(call, k) * size,
               (size_t)size * sizeof *call->y);
}

/* The chain rule: what y took from a pixel, dy gives back to it. ADD: x may have other uses too. */
static void roll_backward(const jem_call *call) {
    const int size = call->out.c * JEM_LANES;
    if (!call->dx[0]) return;
    for (int k = 0; k < call->out.h * call->out.w; k++)
        for (int i = 0; i < size; i++)
            call->dx[0][roll_from(call, k) * size + i] += call->dy[k * size + i];
}

/* Our backward reads neither x nor y, so .keeps stays 0 and the tape keeps nothing for it. */
static jem_tensor *roll_image(jem_ctx *ctx, jem_tensor *x, int down, int right) {
    static const jem_op op = { .name = "roll", .forward = roll_forward, .backward = roll_backward };
    if (!x) return NULL;                           /* like every op */
    const jem_shape out = { x->n, x->c, x->h, x->w };
    const roll r = { ((down % x->h) + x->h) % x->h, ((right % x->w) + x->w) % x->w };
    return jem_custom(ctx, &op, &x, 1, out, &r, sizeof r, 0);
}

/* ---- a use of it: log p(x) = - sum over neighbours (x_i - x_j)^2 - sum (x_i^2 - 1)^2 ---- */

static jem_tensor *spins(jem_ctx *ctx, jem_tensor *x, void *user) {
    (void)user;
    jem_tensor *below = jem_square(ctx, jem_sub(ctx, x, roll_image(ctx, x, 1, 0)));
    jem_tensor *beside = jem_square(ctx, jem_sub(ctx, x, roll_image(ctx, x, 0, 1)));
    jem_tensor *wells = jem_square(ctx, jem_add_constant(ctx, jem_square(ctx, x), -1));
    jem_tensor *energy = jem_add(ctx, jem_add(ctx, below, beside), wells);
    return jem_scale(ctx, jem_sum_image(ctx, energy), -1);
}

enum { LATTICES = 4, SIDE = 96, STAGES = 4 };

int main(void) {
    static float shots[STAGES][LATTICES][SIDE * SIDE];
    const char *path = "build/pictures/own_op.png";
    jem_ctx *ctx = jem_ctx_create(NULL);
    if (!ctx) return report(ctx);
    jem_rng rng = jem_rng_seed(3);

    /* First of all: is backward the derivative of forward? Odd shapes find the mistakes. */
    float some[2 * 3 * 5 * 4];
    jem_fill_uniform(ctx, &rng, some, 2 * 3 * 5 * 4, -1, 1);
    const float error = jem_check_gradient(ctx, spins, NULL, jem_input(ctx, some, 2, 3, 5, 4), NULL,
                                           0.02f);
    printf("gradient of the density with the op: largest relative error %.0e\n", (double)error);

    /* From noise, which is the first row; a row for every stage. */
    static const int steps[STAGES] = { 0, 30, 300, 3000 };
    jem_fill_uniform(ctx, &rng, shots[0][0], LATTICES * SIDE * SIDE, -1, 1);
    jem_tensor *x = jem_input(ctx, shots[0][0], LATTICES, 1, SIDE, SIDE);
    for (int k = 1; k < STAGES; k++) {
        const jem_sgld_desc walk = jem_sgld_desc_langevin(0.05f, steps[k] - steps[k - 1]);
        jem_sgld(ctx, spins, NULL, x, &walk, &rng);
        jem_read(x, shots[k][0]);
    }
    int failed = report(ctx);
    if (!failed)
        failed = !picture_grid(path, shots[0][0], LATTICES * STAGES, LATTICES, 1, SIDE, SIDE, 2);
    if (!failed) printf("picture: %s\n", path);
    jem_ctx_free(ctx);
    return failed;
}
