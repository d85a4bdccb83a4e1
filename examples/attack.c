/* QUESTION  How small a change makes a network wrong? Does familiarity reveal it?

   FORMULA   x <- x - a g/|g|,  g = d log p(y|x)/dx, y the right class; then back into the ball
             |x - x0| <= r (projected gradient descent: Madry and others 2018). r grows in
             steps of .5 (.25 for pixels of 0..1) until another class is more likely.

   LOOK FOR  Rows: digits; the changes (grey: unchanged), at twice their strength; the results, with
             strokes added and erased; noise that was changed until the network was confident of 0
             to 9. p(y|x) does not reveal the last row, but `familiarity` does.

   TRY       build/attack examples/models/mnist-plain.safetensors: a network trained only to
             classify.

   RUN       build/attack [MODEL]        Picture: build/pictures/attack.png */
#define JEM_IMPLEMENTATION
#include "jem.h"

#include "tools/support/pictures.h"

enum { N = 10, ROWS = 4 };

/* Finds the smallest eps at which the attack fools the network. Smaller changes may exist. */
static int smallest(jem_net *net, const digits *d, float *rows) {
    float *before = rows;
    float *change = rows + N * DIGIT_PIXELS;
    float *after = change + N * DIGIT_PIXELS;
    float found[N * DIGIT_PIXELS], size[N];
    int labels[N];
    int fooled[N];
    int done[N] = { 0 };
    jem_rng rng = jem_rng_seed(1);
    jem_answer was[N], is[N];
    memcpy(before, d->test_x, sizeof found);       /* number i is a digit i % 10 */
    memcpy(after, before, sizeof found);           /* until an attack succeeds */
    memcpy(labels, d->test_y, sizeof labels);
    jem_attack_desc how = jem_attack_desc_default();
    how.l2 = 1;
    for (how.eps = 0.5f; how.eps < 20; how.eps += 0.5f) {
        if (jem_attack(net, before, labels, N, &how, &rng, found, fooled) != JEM_OK) return 0;
        for (int i = 0; i < N; i++) {
            if (done[i] || !fooled[i]) continue;
            memcpy(after + i * DIGIT_PIXELS, found + i * DIGIT_PIXELS, DIGIT_PIXELS * sizeof *rows);
            done[i] = 1;
            size[i] = how.eps;
        }
    }
    if (jem_classify(net, before, N, was) != JEM_OK || jem_classify(net, after, N, is) != JEM_OK)
        return 0;
    printf("digit      p   changed by (L2, pixels 0..1)   becomes      p  familiarity\n");
    for (int i = 0; i < N; i++)
        printf("%5d  %.3f   %28.2f   %7d  %.3f       %.4f, %s\n", labels[i],
               (double)was[i].probability, done[i] ? (double)size[i] / 2 : -1.0, is[i].label,
               (double)is[i].probability, (double)is[i].familiarity,
               jem_verdict_name(jem_judge(is[i].familiarity)));
    for (int i = 0; i < N * DIGIT_PIXELS; i++) change[i] = 2 * (after[i] - before[i]);
    return 1;
}

/* Distal adversarials: changes noise, by any distance, until the network is confident. */
static int distal(jem_net *net, float *row) {
    float noise[N * DIGIT_PIXELS];
    int labels[N];
    int fooled[N];
    int sure = 0;
    jem_rng rng = jem_rng_seed(2);
    jem_answer a[N];
    for (int i = 0; i < N; i++) labels[i] = i;
    jem_fill_uniform(net->ctx, &rng, noise, N * DIGIT_PIXELS, -1, 1);
    jem_attack_desc how = jem_attack_desc_default();
    how.targeted = 1;
    how.least_probability = 0.99f;
    how.l2 = 1;
    how.eps = HUGE_VALF;
    how.step_size = 0.5f;
    how.steps = 300;
    if (jem_attack(net, noise, labels, N, &how, &rng, row, fooled) != JEM_OK ||
        jem_classify(net, row, N, a) != JEM_OK) return 0;
    for (int i = 0; i < N; i++) sure += fooled[i];
    printf("noise classified as a digit with 99%% confidence: %d of %d; familiarity", sure, N);
    for (int i = 0; i < N; i++) printf(" %.2f", (double)a[i].familiarity);
    printf("\n");
    return 1;
}

int main(int argc, char **argv) {
    static float rows[ROWS * N * DIGIT_PIXELS];
    digits d;
    jem_ctx *ctx = jem_ctx_create(NULL);
    jem_net *net = digits_model(ctx, argc > 1 ? argv[1] : NULL);
    int failed = !net || !digits_load(DIGITS_PATH, &d);
    if (!failed) {
        failed = !smallest(net, &d, rows) || !distal(net, rows + 3 * N * DIGIT_PIXELS) ||
                 !picture_grid("build/pictures/attack.png", rows, ROWS * N, N, 1, DIGIT, DIGIT, 3);
        digits_free(&d);
    }
    if (net) failed = report(ctx) || failed;
    if (!failed) printf("picture: build/pictures/attack.png\n");
    jem_net_free(net);
    jem_ctx_free(ctx);
    return failed;
}
