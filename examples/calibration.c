/* Is it right as often as it says? Of digits that the network is 80% sure of, 80% should be
   right. Digits in much noise, so that there is something to be unsure of; then with a
   temperature, fitted to half of them and tried on the other half.
       build/calibration  build/pictures/calibration.png: how often it is right (up) over how sure
                          it is (across), as it is (blue) and with the temperature (orange); the
                          larger a dot, the more digits. On the diagonal it is calibrated. */
#define JEM_IMPLEMENTATION
#include "../jem.h"

#include "pictures.h"

enum { HALF = DIGITS_TEST / 2, BINS = 10 };

/* Expected calibration error: what a bin of answers claims, less how many of it are right. */
static double reliability(const jem_answer *a, const int *labels, plot *p, unsigned colour) {
    double sure[BINS] = { 0 }, right[BINS] = { 0 }, count[BINS] = { 0 }, error = 0;
    float last_x = 0, last_y = 0;
    for (int i = 0; i < HALF; i++) {
        const int above = (int)(a[i].probability * BINS), bin = above < BINS ? above : BINS - 1;
        sure[bin] += (double)a[i].probability, count[bin]++;
        right[bin] += a[i].label == labels[i];
    }
    for (int bin = 0, drawn = 0; bin < BINS; bin++) {
        if (count[bin] < 1) continue;
        error += fabs(sure[bin] - right[bin]) / HALF;
        const float x = (float)(sure[bin] / count[bin]), y = (float)(right[bin] / count[bin]);
        if (drawn++) plot_line(p, last_x, last_y, x, y, 2, colour);
        plot_dot(p, x, y, 4 + 3 * sqrtf((float)count[bin]) / 2, colour);
        last_x = x, last_y = y;
    }
    return error;
}

static double mean_sure(const jem_answer *a) {
    double sum = 0;
    for (int i = 0; i < HALF; i++) sum += (double)a[i].probability / HALF;
    return sum;
}

static int calibrate(jem_net *net, const digits *d, plot *p) {
    static float x[DIGITS_TEST * DIGIT_PIXELS];
    static jem_answer a[HALF];
    const float *asked = x + HALF * DIGIT_PIXELS;
    const int *labels = d->test_y + HALF;
    jem_rng rng = jem_rng_seed(1);
    jem_fill_normal(net->ctx, &rng, x, DIGITS_TEST * DIGIT_PIXELS, 0, 1.2f);
    for (int i = 0; i < DIGITS_TEST * DIGIT_PIXELS; i++) x[i] += d->test_x[i];
    const float accuracy = jem_accuracy(net, asked, labels, HALF);
    if (accuracy < 0 || jem_classify(net, asked, HALF, a) != JEM_OK) return 0;
    printf("as it is:           %.1f%% right, %.1f%% sure, calibration error %.1f%%\n",
           100 * (double)accuracy, 100 * mean_sure(a), 100 * reliability(a, labels, p, 0x1f5fb4));
    const float t = jem_fit_temperature(net, x, d->test_y, HALF);      /* kept by the network */
    if (t < 0 || jem_classify(net, asked, HALF, a) != JEM_OK) return 0;
    printf("temperature %.2f:   %.1f%% right, %.1f%% sure, calibration error %.1f%%\n", (double)t,
           100 * (double)accuracy, 100 * mean_sure(a), 100 * reliability(a, labels, p, 0xd2691e));
    return 1;
}

int main(void) {
    digits d;
    plot p;
    jem_ctx *ctx = jem_ctx_create(NULL);
    jem_net *net = digits_model(ctx);
    int failed = !net || !digits_load(DIGITS_PATH, &d);
    if (!failed && plot_create(&p, 420, 420, -0.05f, 1.05f, -0.05f, 1.05f)) {
        for (int k = 0; k < 5; k++) {
            const float at = (float)k / 4;
            plot_line(&p, at, 0, at, 1, 1, 0xdddddd), plot_line(&p, 0, at, 1, at, 1, 0xdddddd);
        }
        plot_line(&p, 0, 0, 1, 1, 1.5f, 0x999999);
        failed = !calibrate(net, &d, &p) || !plot_write(&p, "build/pictures/calibration.png");
        plot_free(&p);
    } else failed = 1;
    if (net) failed = report(ctx) || failed, digits_free(&d);
    jem_net_free(net);
    jem_ctx_free(ctx);
    return failed;
}
