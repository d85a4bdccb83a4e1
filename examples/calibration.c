/* Is the network right as often as its confidence implies? Of the digits with a confidence of 80%,
   80% should be right. The digits are noisy, so that the network is uncertain; then a temperature
   is fitted to half of them and tested on the other half.
       build/calibration  build/pictures/calibration.png: accuracy (up) over confidence (across),
                          without (blue) and with the temperature (orange); the size of a dot is the
                          number of digits; bins of fewer than 10 are not drawn. A calibrated
                          network is on the diagonal; one above it is underconfident, and its T
                          is below 1. */
#define JEM_IMPLEMENTATION
#include "jem.h"

#include "tools/support/chart.h"
#include "tools/support/measures.h"

enum { HALF = DIGITS_TEST / 2, BINS = 10, FEW = 10, CLASSES = 10, SIDE = 480 };

/* Returns the same picture, in pixels, y downwards. */
static plot in_pixels(const plot *p) {
    plot paper = *p;
    paper.x0 = paper.y1 = 0;
    paper.x1 = (float)p->w;
    paper.y0 = (float)p->h;
    return paper;
}

/* Draws accuracy over confidence, of bins with at least FEW digits, with a caption at `top`. Prints
   the means of both and the expected calibration error: |confidence of a bin - its accuracy|,
   averaged over all answers. */
static void draw_reliability(const predictions *predicted, const char *what, plot *p, float top,
                             unsigned colour) {
    char caption[64];
    plot paper = in_pixels(p);
    reliability_bin bin[BINS];
    const reliability r = measure_reliability(predicted, BINS, bin);
    float last_x = 0;
    float last_y = 0;
    for (int k = 0, drawn = 0; k < BINS; k++) {
        if (bin[k].count < FEW) continue;
        const float x = (float)bin[k].confidence;
        const float y = (float)bin[k].accuracy;
        if (drawn++) plot_line(p, last_x, last_y, x, y, 2, colour);
        plot_dot(p, x, y, 4 + 3 * sqrtf((float)bin[k].count) / 2, colour);
        last_x = x;
        last_y = y;
    }
    printf("%-18s accuracy %.1f%%, confidence %.1f%%, error %.1f%%\n", what, 100 * r.accuracy,
           100 * r.confidence, 100 * r.ece);
    snprintf(caption, sizeof caption, "%s error %.1f%%", what, 100 * r.ece);
    text(&paper, 70, top, 1.8f, colour, caption);
}

/* Draws the diagonal, a grid, and its numbers. */
static void draw_axes(plot *p) {
    plot paper = in_pixels(p);
    char tick[8];
    for (int k = 0; k <= 4; k++) {
        const float at = (float)k / 4;
        const float x = (at - p->x0) / (p->x1 - p->x0) * SIDE;
        snprintf(tick, sizeof tick, "%d%%", 25 * k);
        plot_line(p, at, 0, at, 1, 1, 0xdddddd);
        plot_line(p, 0, at, 1, at, 1, 0xdddddd);
        text_right(&paper, x + 18, SIDE - 42, 1.6f, 0x555555, tick);
        text_right(&paper, 50, SIDE - 6 - x, 1.6f, 0x555555, tick);
    }
    plot_line(p, 0, 0, 1, 1, 1.5f, 0x999999);
    text(&paper, 8, 12, 1.8f, 0x333333, "accuracy");
    text_right(&paper, SIDE - 10, SIDE - 20, 1.8f, 0x333333, "confidence");
}

static int calibrate(jem_net *net, const digits *d, plot *p) {
    static float x[DIGITS_TEST * DIGIT_PIXELS], logits[HALF * CLASSES];
    jem_ctx *ctx = net->ctx;
    jem_rng rng = jem_rng_seed(1);
    jem_fill_normal(ctx, &rng, x, DIGITS_TEST * DIGIT_PIXELS, 0, 1.2f);
    for (int i = 0; i < DIGITS_TEST * DIGIT_PIXELS; i++) x[i] += d->test_x[i];
    const float t = jem_fit_temperature(net, x, d->test_y, HALF);      /* kept by the network */
    if (t < 0 || jem_logits(net, x + HALF * DIGIT_PIXELS, HALF, logits) != JEM_OK) return 0;
    char title[32];
    predictions predicted = { logits, d->test_y + HALF, HALF, CLASSES, 1 };
    draw_reliability(&predicted, "uncalibrated:", p, 56, 0x1f5fb4);
    snprintf(title, sizeof title, "temperature %.2f:", (double)t);
    predicted.temperature = (double)t;
    draw_reliability(&predicted, title, p, 80, 0xd2691e);
    return 1;
}

int main(void) {
    digits d;
    plot p;
    jem_ctx *ctx = jem_ctx_create(NULL);
    jem_net *net = digits_model(ctx, NULL);
    int failed = !net || !digits_load(DIGITS_PATH, &d);
    if (!failed && plot_create(&p, SIDE, SIDE, -0.13f, 1.12f, -0.13f, 1.12f)) {
        draw_axes(&p);
        failed = !calibrate(net, &d, &p) || !plot_write(&p, "build/pictures/calibration.png");
        plot_free(&p);
    } else failed = 1;
    if (net) {
        failed = report(ctx) || failed;
        digits_free(&d);
    }
    if (!failed) printf("picture: build/pictures/calibration.png\n");
    jem_net_free(net);
    jem_ctx_free(ctx);
    return failed;
}
