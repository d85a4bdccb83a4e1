/* Three custom ops: a circular shift of an image; GELU, an activation with a tanh; and PReLU, an
   activation with a learned slope per channel. The first is used by a lattice of spins on a torus
   whose neighbours tend to agree; Langevin dynamics grows domains in it. The second is timed
   against a version made of built-in ops. The third learns its slopes from data.
   Picture: build/pictures/own_op.png */
#define JEM_IMPLEMENTATION
#include "jem.h"

#include "tools/support/pictures.h"
#include <time.h>

/* ---- the op: y[i][j] = x[(i + down) mod h][(j + right) mod w] ---- */

typedef struct roll { int down, right; } roll;

/* Returns the index of the source of output pixel k. 16 images are interleaved: one pixel is
   in[0].c * JEM_LANES floats, and pixels follow each other row by row. */
static ptrdiff_t roll_from(const jem_call *call, int k) {
    const roll *r = (const roll *)call->user;
    const int h = call->out.h;
    const int w = call->out.w;
    return (ptrdiff_t)((k / w + r->down) % h * w + (k % w + r->right) % w);
}

/* Reads call->x and writes call->y, for one group of 16 images, on any thread. */
static void roll_forward(const jem_call *call) {
    const int size = call->out.c * JEM_LANES;
    for (int k = 0; k < call->out.h * call->out.w; k++)
        memcpy(call->y + k * size, call->x[0] + roll_from(call, k) * size,
               (size_t)size * sizeof *call->y);
}

/* Applies the chain rule: adds dy of each pixel to the dx of its source. It adds, because x may
   have other uses. */
static void roll_backward(const jem_call *call) {
    const int size = call->out.c * JEM_LANES;
    for (int k = 0; k < call->out.h * call->out.w; k++)
        for (int i = 0; i < size; i++)
            call->dx[0][roll_from(call, k) * size + i] += call->dy[k * size + i];
}

/* Our backward reads neither x nor y, so .keeps stays 0 and the tape keeps neither. */
static jem_tensor *roll_image(jem_ctx *ctx, jem_tensor *x, int down, int right) {
    static const jem_op op = { .name = "roll", .forward = roll_forward, .backward = roll_backward };
    if (!x) return NULL;                           /* like every op */
    const jem_shape out = { x->n, x->c, x->h, x->w };
    const roll r = { ((down % x->h) + x->h) % x->h, ((right % x->w) + x->w) % x->w };
    return jem_custom(ctx, &op, &x, 1, out, &r, sizeof r, 0);
}

/* ---- its use: log p(x) = - sum over neighbours (x_i - x_j)^2 - sum (x_i^2 - 1)^2 ---- */

static jem_tensor *spins(jem_ctx *ctx, jem_tensor *x, void *user) {
    (void)user;
    jem_tensor *below = jem_square(ctx, jem_sub(ctx, x, roll_image(ctx, x, 1, 0)));
    jem_tensor *beside = jem_square(ctx, jem_sub(ctx, x, roll_image(ctx, x, 0, 1)));
    jem_tensor *wells = jem_square(ctx, jem_add_constant(ctx, jem_square(ctx, x), -1));
    jem_tensor *energy = jem_add(ctx, jem_add(ctx, below, beside), wells);
    return jem_scale(ctx, jem_sum_image(ctx, energy), -1);
}

/* ---- an op with a tanh: GELU (Hendrycks & Gimpel 2016) ---- */

/* y = x/2 (1 + t), t = tanh(u), u = sqrt(2/pi) (x + .044715 x^3) */
#define GELU_ROOT 0.79788456f
#define GELU_CUBE 0.044715f

static int floats_of(const jem_call *call) {
    return call->out.c * call->out.h * call->out.w * JEM_LANES;
}

/* Computes tanh(u) in aux, where backward reads it: with the library's tanh, which takes whole
   arrays, or with math.h's. */
static void gelu_forward(const jem_call *call) {
    const int by_math_h = *(const int *)call->user;
    const float *x = call->x[0];
    float *t = (float *)call->aux;
    const int n = floats_of(call);
    for (int i = 0; i < n; i++) t[i] = GELU_ROOT * (x[i] + GELU_CUBE * x[i] * x[i] * x[i]);
    if (!by_math_h) jem_compute_tanh(call->ctx, t, t, n);
    for (int i = 0; by_math_h && i < n; i++) t[i] = tanhf(t[i]);
    for (int i = 0; i < n; i++) call->y[i] = 0.5f * x[i] * (1 + t[i]);
}

/* Applies dy/dx = (1 + t)/2 + x/2 (1 - t^2) du/dx. It reads x, so .keeps requests x; otherwise x[0]
   would be NULL here, as y is. */
static void gelu_backward(const jem_call *call) {
    const float *x = call->x[0];
    const float *t = (const float *)call->aux;
    for (int i = 0; i < floats_of(call); i++) {
        const float du = GELU_ROOT * (1 + 3 * GELU_CUBE * x[i] * x[i]);
        const float slope = 0.5f * (1 + t[i]) + 0.5f * x[i] * (1 - t[i] * t[i]) * du;
        call->dx[0][i] += call->dy[i] * slope;
    }
}

static jem_tensor *gelu(jem_ctx *ctx, jem_tensor *x, int by_math_h) {
    static const jem_op op = { .name = "gelu", .forward = gelu_forward, .backward = gelu_backward,
                               .keeps = JEM_KEEPS_INPUT };
    if (!x) return NULL;
    const jem_shape out = { x->n, x->c, x->h, x->w };
    const size_t aux = (size_t)x->c * (size_t)x->h * (size_t)x->w * JEM_LANES * sizeof(float);
    return jem_custom(ctx, &op, &x, 1, out, &by_math_h, sizeof by_math_h, aux);
}

/* Builds GELU from built-in ops; try this first. */
static jem_tensor *gelu_of_ops(jem_ctx *ctx, jem_tensor *x) {
    jem_tensor *cube = jem_scale(ctx, jem_mul(ctx, jem_square(ctx, x), x), GELU_CUBE);
    jem_tensor *t = jem_tanh(ctx, jem_scale(ctx, jem_add(ctx, x, cube), GELU_ROOT));
    jem_tensor *gate = jem_add_constant(ctx, t, 1);
    return jem_mul(ctx, jem_scale(ctx, x, 0.5f), gate);
}

enum { BY_OPS, BY_COMPUTE, BY_MATH_H, WAYS };

/* Returns the sum of GELU over each image; user points to the implementation. */
static jem_tensor *sum_of_gelu(jem_ctx *ctx, jem_tensor *x, void *user) {
    const int way = *(const int *)user;
    jem_tensor *y = way == BY_OPS ? gelu_of_ops(ctx, x) : gelu(ctx, x, way == BY_MATH_H);
    return jem_sum_image(ctx, y);
}

/* Prints the error and the best time of each implementation, for a value and a gradient. */
static void compare(jem_ctx *ctx, jem_rng *rng) {
    enum { N = 64, C = 16, H = 28, TRIES = 10 };
    static const char *const names[WAYS] = { "built-in ops", "an op with jem_compute_tanh",
                                             "an op with tanhf" };
    static float x[N * C * H * H];
    jem_fill_normal(ctx, rng, x, N * C * H * H, 0, 1);
    printf("GELU of (%d,%d,%d,%d) and its gradient:\n", N, C, H, H);
    for (int way = 0; way < WAYS && jem_ok(ctx); way++) {
        const jem_mark mark = jem_begin(ctx);
        jem_tensor *few = jem_input(ctx, x, 2, 3, 5, 4);
        const float error = jem_check_gradient(ctx, sum_of_gelu, &way, few, NULL, 0.02f);
        jem_tensor *all = jem_input(ctx, x, N, C, H, H);
        double best = 1e9;
        for (int i = 0; i < TRIES; i++) {
            const jem_mark inner = jem_begin(ctx);
            const clock_t start = clock();
            jem_grad(sum_of_gelu(ctx, all, &way), all);
            const double ms = 1e3 * (double)(clock() - start) / CLOCKS_PER_SEC;
            best = fmin(best, ms);
            jem_end(ctx, inner);
        }
        printf("  %-28s %5.1f ms of processor time, error of the gradient %.0e\n", names[way], best,
               (double)error);
        jem_end(ctx, mark);
    }
}

/* ---- an op with a parameter: PReLU (He et al. 2015), y = x above 0, and slope[c] x below ---- */

/* Returns the number of the channel's slope in x[1] (n,c,1,1), for element i of x[0] (n,c,h,w). */
static int slope_of(const jem_call *call, int i) { return i % (call->in[1].c * JEM_LANES); }

static void prelu_forward(const jem_call *call) {
    const float *x = call->x[0];
    const float *slope = call->x[1];
    for (int i = 0; i < floats_of(call); i++)
        call->y[i] = x[i] > 0 ? x[i] : x[i] * slope[slope_of(call, i)];
}

/* Computes only the gradients that are needed: a sampler needs dx[0], training dx[1]; and dx[0] too
   if x depends on parameters. */
static void prelu_backward(const jem_call *call) {
    const float *x = call->x[0];
    const float *slope = call->x[1];
    const float *dy = call->dy;
    for (int i = 0; call->dx[0] && i < floats_of(call); i++)
        call->dx[0][i] += x[i] > 0 ? dy[i] : dy[i] * slope[slope_of(call, i)];
    for (int i = 0; call->dx[1] && i < floats_of(call); i++)
        if (x[i] < 0) call->dx[1][slope_of(call, i)] += dy[i] * x[i];
}

/* Applies PReLU. slopes: a parameter (c,1) of the network. As the weight of jem_linear it becomes
   an input (n,c,1,1), with equal values for every image; jem_linear sums the images' gradients. */
static jem_tensor *prelu(jem_ctx *ctx, jem_tensor *x, jem_param *slopes) {
    static const jem_op op = { .name = "prelu", .forward = prelu_forward,
                               .backward = prelu_backward,
                               .keeps = JEM_KEEPS_INPUT | JEM_KEEPS_INPUT1 };
    if (!x) return NULL;
    jem_tensor *one = jem_add_constant(ctx, jem_zeros(ctx, x->n, 1, 1, 1), 1);
    jem_tensor *slope = jem_linear(ctx, one, slopes, NULL);
    if (!slope) return NULL;
    if (slope->c != x->c) jem_fail(ctx, JEM_BAD_SHAPE, "prelu: one slope per channel is needed");
    jem_tensor *inputs[2] = { x, slope };
    const jem_shape out = { x->n, x->c, x->h, x->w };
    return jem_custom(ctx, &op, inputs, 2, out, NULL, 0, 0);
}

static jem_tensor *sum_of_prelu(jem_ctx *ctx, jem_tensor *x, void *user) {
    return jem_sum_image(ctx, prelu(ctx, x, (jem_param *)user));
}

/* Learns three slopes from pairs x, PReLU(x), and prints them. Returns 0 if they are wrong. */
static int learn_slopes(jem_ctx *ctx, jem_rng *rng) {
    enum { N = 32, C = 3, H = 4, SIZE = C * H * H };
    static const float truth[C] = { -0.5f, 0.1f, 0.9f };
    static const int shape[2] = { C, 1 };
    static float x[N * SIZE], y[N * SIZE];
    jem_net *net = jem_net_create(ctx, NULL, NULL, 0, C, H, H, 1, 1);
    jem_param *slopes = net ? jem_net_param(net, "slopes", 2, shape, 1) : NULL;
    if (!slopes) return 0;
    jem_fill_normal(ctx, rng, x, N * SIZE, 0, 1);
    for (int i = 0; i < N * SIZE; i++) y[i] = x[i] > 0 ? x[i] : x[i] * truth[i / (H * H) % C];
    for (int c = 0; c < C; c++) slopes->value[c] = 0.3f - 0.5f * (float)c;
    jem_param_changed(slopes);
    jem_tensor *few = jem_input(ctx, x, 2, C, H, H);
    const float of_x = jem_check_gradient(ctx, sum_of_prelu, slopes, few, NULL, 1e-3f);
    const float of_slopes = jem_check_gradient(ctx, sum_of_prelu, slopes, few, slopes, 0.02f);
    const jem_optim_desc adam = jem_optim_desc_default();
    jem_optim *optim = jem_optim_create(net, &adam);
    for (int k = 0; k < 300 && jem_ok(ctx); k++) {
        const jem_mark mark = jem_begin(ctx);
        jem_tensor *error = prelu(ctx, jem_input(ctx, x, N, C, H, H), slopes);
        error = jem_sub(ctx, error, jem_input(ctx, y, N, C, H, H));
        jem_zero_grad(net);
        jem_backward(jem_mean(ctx, jem_sum_image(ctx, jem_square(ctx, error))));
        jem_optim_step(optim, 0.02f, NULL);
        jem_end(ctx, mark);
    }
    printf("PReLU: errors of the gradients %.0e, %.0e; slopes %.2f %.2f %.2f, learned from data of "
           "%.2f %.2f %.2f\n", (double)of_x, (double)of_slopes, (double)slopes->value[0],
           (double)slopes->value[1], (double)slopes->value[2], (double)truth[0], (double)truth[1],
           (double)truth[2]);
    int good = jem_ok(ctx) && of_x < 0.01f && of_slopes < 0.01f;
    for (int c = 0; c < C; c++) good = good && fabsf(slopes->value[c] - truth[c]) < 0.02f;
    jem_optim_free(optim);
    jem_net_free(net);
    return good;
}

enum { LATTICES = 4, SIDE = 96, STAGES = 4 };

int main(void) {
    static float shots[STAGES][LATTICES][SIDE * SIDE];
    const char *path = "build/pictures/own_op.png";
    jem_ctx *ctx = jem_ctx_create(NULL);
    if (!ctx) return report(ctx);
    jem_rng rng = jem_rng_seed(3);

    /* First check that backward is the derivative of forward. Odd shapes reveal mistakes. */
    float some[2 * 3 * 5 * 4];
    jem_fill_uniform(ctx, &rng, some, 2 * 3 * 5 * 4, -1, 1);
    const float error = jem_check_gradient(ctx, spins, NULL, jem_input(ctx, some, 2, 3, 5, 4), NULL,
                                           0.02f);
    printf("gradient of the density with the op: largest relative error %.0e\n", (double)error);
    compare(ctx, &rng);
    const int learned = learn_slopes(ctx, &rng);

    /* Start from noise, the first row; each stage adds a row. */
    static const int steps[STAGES] = { 0, 30, 300, 3000 };
    jem_fill_uniform(ctx, &rng, shots[0][0], LATTICES * SIDE * SIDE, -1, 1);
    jem_tensor *x = jem_input(ctx, shots[0][0], LATTICES, 1, SIDE, SIDE);
    for (int k = 1; k < STAGES; k++) {
        const jem_sgld_desc walk = jem_sgld_desc_langevin(0.05f, steps[k] - steps[k - 1]);
        jem_sgld(ctx, spins, NULL, x, &walk, &rng);
        jem_read(x, shots[k][0]);
    }
    int failed = report(ctx) || !learned;
    if (!failed)
        failed = !picture_grid(path, shots[0][0], LATTICES * STAGES, LATTICES, 1, SIDE, SIDE, 2);
    if (!failed) printf("picture: %s\n", path);
    jem_ctx_free(ctx);
    return failed;
}
