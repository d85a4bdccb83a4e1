/* Detects images unlike the training data: the network is given known kinds of digits, and eight
   kinds of other pictures. Which statistic detects which kind? log p(x) alone can be high for an
   empty picture; the details of the image detect blank, grey and noisy pictures, but neither mixed
   nor inverted digits; logits, slopes and the features of the last layer detect those.
   `familiarity` combines all of them.
       build/out_of_distribution        a table, and build/pictures/out_of_distribution.png: a kind
                                        per row, the least familiar on the left */
#define JEM_IMPLEMENTATION
#include "jem.h"

#include "tools/support/pictures.h"

enum { HALF = DIGITS_TEST / 2, KINDS = 9, SHOWN = 16 };
static const char *const names[KINDS] = {
    "held-out digits", "two digits mixed", "upside down", "half of each of two", "dimmed",
    "inverted", "pixels shuffled", "of one grey", "noise"
};

/* Makes picture i of a kind from the digits x. */
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

enum { SCORES = 5 };
static const jem_ood scores[SCORES] = {
    JEM_OOD_LOGP, JEM_OOD_IMAGE, JEM_OOD_FEATURES, JEM_OOD_SLOPES, JEM_OOD_FAMILIAR
};

static int compare_floats(const void *a, const void *b) {
    const float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* Returns the value of a score that 1% of the calibration images are below. */
static int limit_of(jem_net *net, jem_ood score, const float *x, float *limit) {
    static float s[HALF];
    if (jem_ood_score(net, score, NULL, x, HALF, s) != JEM_OK) return 0;
    qsort(s, HALF, sizeof *s, compare_floats);
    *limit = s[HALF / 100];
    return 1;
}

typedef struct ranked { float familiarity; int i; } ranked;
static int stranger(const void *a, const void *b) {
    const float x = ((const ranked *)a)->familiarity, y = ((const ranked *)b)->familiarity;
    return (x > y) - (x < y);
}

/* Prints a row: how many of x are below the limit of each score, and the most frequent reason. */
static int print_row(jem_net *net, const char *name, const float *x, const float *limits,
                     const jem_answer *a) {
    static float s[HALF];
    int reasons[JEM_REASON_VALUES + 1] = { 0 };
    int most = JEM_REASON_NONE;
    printf("  %-18s", name);
    for (int k = 0; k < SCORES; k++) {
        int low = 0;
        if (jem_ood_score(net, scores[k], NULL, x, HALF, s) != JEM_OK) return 0;
        for (int i = 0; i < HALF; i++) low += s[i] < limits[k];
        printf("  %7.1f%%", 100.0 * low / HALF);
    }
    for (int i = 0; i < HALF; i++) {
        if (jem_judge(a[i].familiarity) == JEM_STRANGE) reasons[a[i].reason]++;
    }
    for (int k = 1; k <= JEM_REASON_VALUES; k++) {
        if (reasons[k] > reasons[most]) most = k;
    }
    printf("  %s\n", jem_reason_name((jem_reason)most));
    return 1;
}

static int compare(jem_net *net, const digits *d) {
    static float x[HALF * DIGIT_PIXELS], shown[KINDS * SHOWN * DIGIT_PIXELS];
    static jem_answer a[HALF];
    float limits[SCORES];
    jem_rng rng = jem_rng_seed(1);
    /* One half of the held-out digits calibrates, the other half is tested. */
    if (jem_calibrate(net, d->test_x, HALF, JEM_AUTO) != JEM_OK) return 0;
    for (int k = 0; k < SCORES; k++) {
        if (!limit_of(net, scores[k], d->test_x, &limits[k])) return 0;
    }
    printf("rejected, at a limit that 1%% of digits are below, by\n");
    printf("  %-18s  log p(x)     image  features    slopes  familiar  mostly because of\n", "");
    for (int kind = 0; kind < KINDS; kind++) {
        ranked order[HALF];
        for (int i = 0; i < HALF; i++)
            make(kind, d->test_x + HALF * DIGIT_PIXELS, i, &rng, x + i * DIGIT_PIXELS);
        if (jem_classify(net, x, HALF, a) != JEM_OK) return 0;
        if (!print_row(net, names[kind], x, limits, a)) return 0;
        for (int i = 0; i < HALF; i++) {
            order[i].familiarity = a[i].familiarity;
            order[i].i = i;
        }
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
