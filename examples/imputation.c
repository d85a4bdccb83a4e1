/* Samples missing pixels: half of each digit is hidden, and sampled from the density given the
   other half. For comparison, the hidden half is filled with the mean of all digits.
       build/imputation   build/pictures/imputation.png: digits; their known halves; filled with the
                          mean; three samples */
#define JEM_IMPLEMENTATION
#include "jem.h"

#include "tools/support/pictures.h"

enum { N = 16, SAMPLES = 3, ROWS = 3 + SAMPLES, ROW = N * DIGIT_PIXELS };

/* Prints the root mean square error of the hidden pixels, in 0..1, and the number of digits that
   are still classified correctly. */
static int print(jem_net *net, const char *name, const float *x, const digits *d,
                 const float *known) {
    double sum = 0;
    double hidden = 0;
    int right = 0;
    jem_answer a[N];
    if (jem_classify(net, x, N, a) != JEM_OK) return 0;
    for (int k = 0; k < ROW; k++) {
        if (known[k] != 0) continue;
        const double e = ((double)x[k] - (double)d->test_x[k]) / 2;
        sum += e * e;
        hidden++;
    }
    for (int i = 0; i < N; i++) right += a[i].label == d->test_y[i];
    printf("%-18s error %.3f, %d of %d classified correctly\n", name, sqrt(sum / hidden), right, N);
    return 1;
}

static int fill_in(jem_net *net, const digits *d, float *rows) {
    jem_ctx *ctx = net->ctx;
    float known[ROW];
    float mean[DIGIT_PIXELS] = { 0 };
    float *masked = rows + ROW;
    float *by_mean = masked + ROW;
    jem_rng rng = jem_rng_seed(1);
    for (int i = 0; i < DIGITS_TRAIN; i++)
        for (int k = 0; k < DIGIT_PIXELS; k++)
            mean[k] += d->x[i * DIGIT_PIXELS + k] / DIGITS_TRAIN;
    for (int k = 0; k < ROW; k++) {
        const int pixel = k % DIGIT_PIXELS;
        const int left = k / DIGIT_PIXELS % 2;     /* else the upper half */
        known[k] = left ? pixel % DIGIT < DIGIT / 2 : pixel < DIGIT_PIXELS / 2;
        rows[k] = d->test_x[k];
        masked[k] = known[k] != 0 ? rows[k] : 0;
        by_mean[k] = known[k] != 0 ? rows[k] : mean[pixel];
    }
    if (!print(net, "filled with mean", by_mean, d, known)) return 0;

    const jem_impute_desc how = jem_net_impute_desc(net);
    for (int s = 0; s < SAMPLES; s++) {
        float *sample = rows + (3 + s) * ROW;
        const jem_mark mark = jem_begin(ctx);
        jem_tensor *x = jem_input(ctx, rows, N, 1, DIGIT, DIGIT);
        jem_impute(ctx, jem_logp, net, x, known, &how, &rng);
        jem_read(x, sample);
        jem_end(ctx, mark);
        if (!jem_ok(ctx) || !print(net, "sampled", sample, d, known)) return 0;
    }
    return picture_grid("build/pictures/imputation.png", rows, ROWS * N, N, 1, DIGIT, DIGIT, 2);
}

int main(void) {
    static float rows[ROWS * ROW];
    digits d;
    jem_ctx *ctx = jem_ctx_create(NULL);
    jem_net *net = digits_model(ctx, NULL);
    int failed = !net || !digits_load(DIGITS_PATH, &d);
    if (!failed) {
        failed = !fill_in(net, &d, rows);
        digits_free(&d);
    }
    if (net) failed = report(ctx) || failed;
    if (!failed) printf("picture: build/pictures/imputation.png\n");
    jem_net_free(net);
    jem_ctx_free(ctx);
    return failed;
}
