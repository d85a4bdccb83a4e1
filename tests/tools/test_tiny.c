/* examples/tiny_jem.c, the JEM without jem.h, compared with jem.h: the same weights and images
   must give the same logits, log p(x), its gradients, and gradients of the loss; and training must
   learn. */
#define JEM_IMPLEMENTATION
#include "jem.h"
#include "tests/support/test.h"
#include "tests/support/common.h"

#define main tiny_main
#include "examples/tiny_jem.c"
#undef main

/* The same network, made of ops. */
typedef struct same_layers { jem_layer conv[LAYERS]; } same_layers;

static jem_tensor *same_forward(jem_net *n, jem_tensor *x, int training, void *user) {
    const same_layers *all = (const same_layers *)user;
    for (int k = 0; k < LAYERS; k++) {
        x = jem_apply(&all->conv[k], x, training);
        if (k < LAYERS - 1) x = jem_silu(n->ctx, x);
    }
    return x;
}

static jem_net *same_net(jem_ctx *ctx) {
    jem_net *n = jem_net_create(ctx, same_forward, NULL, sizeof(same_layers), 1, SIDE, SIDE,
                                CLASSES, 1);
    for (int k = 0; n && k < LAYERS; k++) {
        char name[16];
        snprintf(name, sizeof name, "conv%d", k);
        ((same_layers *)n->user)->conv[k] = jem_conv_layer(n, name, layers[k].in, layers[k].out,
                                                           layers[k].k, layers[k].stride,
                                                           layers[k].pad);
    }
    return n;
}

/* Weights and images that are not small, so that nothing is 0 or linear by chance. */
static void fill(jem_net *n, jem_rng *rng, float *x, int count) {
    float *to = param;
    for (jem_param *p = n->params; p; to += p->size, p = p->next) {
        jem_fill_normal(n->ctx, rng, p->value, p->size, 0,
                        p->ndim > 1 ? 1.2f / sqrtf((float)(p->size / p->shape[0])) : 0.3f);
        memcpy(to, p->value, (size_t)p->size * sizeof *to);
        jem_param_changed(p);
        if (!p->next) CHECK(to + p->size == param + PARAMS, "as many parameters");
    }
    jem_fill_uniform(n->ctx, rng, x, count * PIXELS, -1, 1);
}

/* Compares the gradient of one update's loss: of N labelled images, N samples. */
static void check_loss_gradient(jem_net *n, const float *images_in, const int *y) {
    static batch x[PIXELS];
    jem_ctx *ctx = n->ctx;
    jem_tensor *data = jem_input(ctx, images_in, N, 1, SIDE, SIDE);
    jem_tensor *dream = jem_input(ctx, images_in + N * PIXELS, N, 1, SIDE, SIDE);
    for (int l = 0; l < N; l++) load(x, l, images_in + l * PIXELS, 0);
    memset(grad, 0, sizeof grad);
    stats s = { 0, 0, 0, 0 };
    push(x, y, -1, &s);
    for (int l = 0; l < N; l++) load(x, l, images_in + (N + l) * PIXELS, 0);
    push(x, NULL, 1, &s);
    jem_loss_weights w = { 1, CD_WEIGHT, 0, 0 };
    jem_zero_grad(n);
    CHECK(jem_backward(jem_loss(n, &w, data, y, NULL, dream, NULL, NULL)) == JEM_OK, "%s",
          jem_error(ctx));
    const float *ours = grad;
    for (jem_param *q = n->params; q; ours += q->size, q = q->next)
        CHECK(largest_gap(ours, q->grad, q->size) < 1e-5, "%s: %g of the largest", q->name,
              largest_gap(ours, q->grad, q->size));
}

static void test_same(jem_ctx *ctx) {
    printf("tiny_jem.c and jem.h: logits, log p(x), its slope, the loss's gradient\n");
    static float images_in[2 * N * PIXELS], gradient[PIXELS];
    static batch x[PIXELS], dx[PIXELS];
    static float theirs[N * PIXELS], f_theirs[N * CLASSES], logp_theirs[N];
    batch p[CLASSES];
    float logp[N], f_ours[CLASSES * N];
    int y[N];
    jem_rng rng = jem_rng_seed(3);
    jem_net *n = same_net(ctx);
    if (!CHECK(n != NULL, "%s", jem_error(ctx))) return;
    fill(n, &rng, images_in, 2 * N);
    random_labels(&rng, y, N, CLASSES);

    const jem_mark mark = jem_begin(ctx);
    jem_tensor *data = jem_input(ctx, images_in, N, 1, SIDE, SIDE);
    CHECK(jem_read(jem_forward(n, data, 0), f_theirs) == JEM_OK, "%s", jem_error(ctx));
    CHECK(jem_read(jem_logp(ctx, data, n), logp_theirs) == JEM_OK, "%s", jem_error(ctx));
    CHECK(jem_grad(jem_logp(ctx, data, n), data) == JEM_OK, "%s", jem_error(ctx));
    CHECK(jem_read_grad(data, theirs) == JEM_OK, "%s", jem_error(ctx));

    for (int l = 0; l < N; l++) load(x, l, images_in + l * PIXELS, 0);
    batch *f = forward(x);
    for (int i = 0; i < CLASSES * N; i++) f_ours[i % N * CLASSES + i / N] = f[i / N][i % N];
    CHECK(largest_gap(f_ours, f_theirs, N * CLASSES) < 1e-5, "logits: %g",
          largest_gap(f_ours, f_theirs, N * CLASSES));
    density(f, logp, p);
    CHECK(largest_gap(logp, logp_theirs, N) < 1e-5, "log p: %g", largest_gap(logp, logp_theirs, N));
    backward(x, p, dx, 0);
    double worst = 0;
    for (int l = 0; l < N; l++) {
        store(dx, l, gradient);
        worst = most_of(worst, largest_gap(gradient, theirs + l * PIXELS, PIXELS));
    }
    CHECK(worst < 1e-5, "d log p / dx: %g of the largest", worst);
    check_loss_gradient(n, images_in, y);
    jem_end(ctx, mark);
    jem_net_free(n);
}

/* Adam against the library's, from the gradient just computed. */
static void test_adam(jem_ctx *ctx) {
    printf("its Adam is Adam\n");
    jem_net *n = same_net(ctx);
    jem_rng rng = jem_rng_seed(5);
    static float x[PIXELS];
    fill(n, &rng, x, 1);
    jem_optim *opt = jem_optim_create(n, NULL);
    for (int update = 0; update < 5; update++) {
        float *g = grad;
        for (jem_param *p = n->params; p; g += p->size, p = p->next) {
            jem_fill_normal(ctx, &rng, p->grad, p->size, 0, 1e-3f);
            memcpy(g, p->grad, (size_t)p->size * sizeof *g);
        }
        adam(update, 1e-2f);
        CHECK(jem_optim_step(opt, 1e-2f, NULL) == JEM_OK, "%s", jem_error(ctx));
    }
    const float *w = param;
    for (jem_param *p = n->params; p; w += p->size, p = p->next)
        CHECK(largest_gap(w, p->value, p->size) < 1e-5, "%s: %g", p->name,
              largest_gap(w, p->value, p->size));
    jem_optim_free(opt);
    jem_net_free(n);
}

static void test_training(void) {
    printf("60 updates of it: it classifies, data and samples are as likely\n");
    digits d;
    if (!CHECK(digits_load(DIGITS_PATH, &d), "run this in the project's directory")) return;
    int count[CLASSES] = { 0 };
    for (int i = 0; i < DIGITS_TEST; i++) count[d.test_y[i]]++;
    for (int c = 0; c < CLASSES; c++) {
        CHECK(count[c] == DIGITS_TEST / CLASSES, "%d: %d", c, count[c]);
    }
    train(d.x, d.y, DIGITS_TRAIN, 60);
    const float right = accuracy(&d);
    CHECK(right > 0.6f, "%.1f%% are right", 100 * (double)right);
    float data = 0;
    float sample = 0;
    for (int k = 0; k < 4; k++) {
        const stats s = learn(d.x, d.y, DIGITS_TRAIN);
        data += s.data / 4;
        sample += s.sample / 4;
    }
    CHECK(fabsf(data - sample) < 15, "f of data %g, of samples %g", (double)data, (double)sample);
    digits_free(&d);
}

/* The pages say how long it is: lines that are neither blank nor comments. */
static void test_length(void) {
    FILE *f = fopen("examples/tiny_jem.c", "r");
    char line[256];
    int lines = 0;
    int comment = 0;
    if (!CHECK(f != NULL, "run this in the project's directory")) return;
    while (fgets(line, sizeof line, f)) {
        const char *at = line + strspn(line, " \n");
        const int begins = !strncmp(at, "/*", 2);
        lines += *at && !comment && !begins;
        if (begins) comment = 1;
        if (comment && strstr(at, "*/")) comment = 0;
    }
    fclose(f);
    CHECK(lines > 200 && lines <= 240, "%d lines of code", lines);
}

int main(int argc, char **argv) {
    static const test_case all[] = {
        TEST_IN(test_same), TEST(test_length), TEST_IN(test_adam), TEST(test_training)
    };
    return run_in_ctx(argc, argv, all, TEST_COUNT(all), no_error_left);
}
