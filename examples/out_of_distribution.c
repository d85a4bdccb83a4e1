/* Does the network know what it has not seen? It is shown digits that it knows the like of, and
   eight kinds of pictures that are none. log p(x) alone can call an empty picture likely, as that
   of clothes does: what is in it, blank paper, is in every picture. `familiarity` asks whether
   log p(x) AND the mean logit are what they usually are for the digit that the network takes it
   for.
       build/out_of_distribution        a table, and build/pictures/out_of_distribution.png: a kind
                                        per row, the strangest on the left */
#define JEM_IMPLEMENTATION
#include "../jem.h"

#include "pictures.h"

enum { HALF = DIGITS_TEST / 2, KINDS = 9, SHOWN = 16 };
static const char *const names[KINDS] = {
    "held-out digits", "two digits mixed", "upside down", "half of each of two", "dimmed",
    "inverted", "pixels shuffled", "of one grey", "noise"
};

/* Picture i of a kind, from the digits x. */
static void make(int kind, const float *x, int i, jem_rng *rng, float *out) {
    const float *digit = x + i * DIGIT_PIXELS, *other = x + (i + 1) % HALF * DIGIT_PIXELS;
    for (int k = 0; k < DIGIT_PIXELS; k++)
        switch (kind) {
        case 0: out[k] = digit[k]; break;
        case 1: out[k] = (digit[k] + other[k]) / 2; break;
        case 2: out[k] = digit[DIGIT_PIXELS - 1 - k]; break;
        case 3: out[k] = k % DIGIT < DIGIT / 2 ? digit[k] : other[k]; break;
        case 4: out[k] = (digit[k] + 1) / 4 - 1; break;
        case 5: out[k] = -digit[k]; break;
        case 6: out[k] = digit[jem_rng_below(rng, DIGIT_PIXELS)]; break;
        case 7: out[k] = 2 * (float)i / (HALF - 1) - 1; break;         /* from black to white */
        default: out[k] = 2 * jem_rng_uniform(rng) - 1;
        }
}

/* The share of calibration images with a lower log p(x): familiarity by log p(x) alone. */
static double by_density(const jem_answer *usual, float log_density) {
    int lower = 0;
    for (int i = 0; i < HALF; i++) lower += usual[i].log_density < log_density;
    return (double)lower / HALF;
}

typedef struct ranked { float familiarity; int i; } ranked;
static int stranger(const void *a, const void *b) {
    const float x = ((const ranked *)a)->familiarity, y = ((const ranked *)b)->familiarity;
    return (x > y) - (x < y);
}

static int compare(jem_net *net, const digits *d) {
    static float x[HALF * DIGIT_PIXELS], shown[KINDS * SHOWN * DIGIT_PIXELS];
    static jem_answer usual[HALF], a[HALF];
    jem_rng rng = jem_rng_seed(1);
    /* One half of the held-out digits tells what is usual, the other half asks. */
    if (jem_calibrate(net, d->test_x, HALF, JEM_AUTO) != JEM_OK ||
        jem_classify(net, d->test_x, HALF, usual) != JEM_OK) return 0;
    printf("called strange (as 1%% of digits are):  by log p(x)   by familiarity\n");
    for (int kind = 0; kind < KINDS; kind++) {
        ranked order[HALF];
        int low = 0, strange = 0;
        for (int i = 0; i < HALF; i++)
            make(kind, d->test_x + HALF * DIGIT_PIXELS, i, &rng, x + i * DIGIT_PIXELS);
        if (jem_classify(net, x, HALF, a) != JEM_OK) return 0;
        for (int i = 0; i < HALF; i++) {
            low += by_density(usual, a[i].log_density) < 0.01;
            strange += a[i].familiarity < 0.01f;
            order[i].familiarity = a[i].familiarity, order[i].i = i;
        }
        printf("  %-36s   %9.1f%%   %13.1f%%\n", names[kind], 100.0 * low / HALF,
               100.0 * strange / HALF);
        qsort(order, HALF, sizeof *order, stranger);
        for (int i = 0; i < SHOWN; i++)
            memcpy(shown + (kind * SHOWN + i) * DIGIT_PIXELS,
                   x + order[i * (HALF - 1) / (SHOWN - 1)].i * DIGIT_PIXELS,
                   DIGIT_PIXELS * sizeof *shown);
    }
    return picture_grid("build/pictures/out_of_distribution.png", shown, KINDS * SHOWN, SHOWN, 1,
                        DIGIT, DIGIT, 2);
}

int main(void) {
    digits d;
    jem_ctx *ctx = jem_ctx_create(NULL);
    jem_net *net = digits_model(ctx, NULL);
    int failed = !net || !digits_load(DIGITS_PATH, &d);
    if (!failed) failed = !compare(net, &d), digits_free(&d);
    if (net) failed = report(ctx) || failed;
    jem_net_free(net);
    jem_ctx_free(ctx);
    return failed;
}
