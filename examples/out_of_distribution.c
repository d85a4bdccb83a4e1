/* QUESTION  Which statistic detects which unfamiliar image?

   FORMULA   Familiarity joins four scores, each as a p-value. Three measure how far x is from the
             digits of its predicted class: 'slopes' by the logits, log p(x), its slope, the details
             and the layout of x; 'features' by the last layer's features and all of these but the
             layout; 'image' by the details alone. The fourth compares the shades of x with those of
             all digits. Familiarity is the fraction of known digits that are
             stranger.

   LOOK FOR  Blue: the percentage of each kind that is flagged when 1% of digits are. The details of
             an image detect mixed, dim and noisy pictures, but no inverted digit, whose edges are
             those of digits. log p(x) detects these, but neither upside-down digits nor the halves
             of two: there the features are the best. Familiarity combines all of them. About
             half of the upside-down digits are digits again, mostly on the right of their row.

   TRY       0 gradients instead of JEM_AUTO in compare(): which kinds need the slope of log p(x)? A
             kind of your own in make(), such as a digit without its left half.

   RUN       build/out_of_distribution   A table. Picture: build/pictures/out_of_distribution.png */
#define JEM_IMPLEMENTATION
#include "jem.h"

#include "tools/support/chart.h"

enum { HALF = DIGITS_TEST / 2, KINDS = 9, SHOWN = 6 };
static const char *const names[KINDS] = {
    "held-out digits", "two digits mixed", "upside down", "half of each of two", "dimmed",
    "inverted", "pixels shuffled", "of one grey", "noise"
};

/* Makes picture i of a kind from the digits x. */
static void make(int kind, const float *x, int i, jem_rng *rng, float *out) {
    const float *digit = x + i * DIGIT_PIXELS;
    const float *other = x + (i + 1) % HALF * DIGIT_PIXELS;
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
static const char *const columns[SCORES] = {
    "log p(x)", "image", "features", "slopes", "familiar"
};

/* Results of a kind: percentage flagged by each score, the most frequent reason, some images. */
typedef struct row {
    double flagged[SCORES];
    jem_reason reason;
    float shown[SHOWN * DIGIT_PIXELS];
} row;

static int compare_floats(const void *a, const void *b) {
    const float x = *(const float *)a;
    const float y = *(const float *)b;
    return (x > y) - (x < y);
}

/* Finds the value of a score that 1% of the digits x are below. */
static int limit_of(jem_net *net, jem_ood score, const float *x, float *limit) {
    static float s[HALF];
    if (jem_ood_score(net, score, NULL, x, HALF, s) != JEM_OK) return 0;
    qsort(s, HALF, sizeof *s, compare_floats);
    *limit = s[HALF / 100];
    return 1;
}

typedef struct ranked { float familiarity; int i; } ranked;
static int stranger(const void *a, const void *b) {
    const float x = ((const ranked *)a)->familiarity;
    const float y = ((const ranked *)b)->familiarity;
    return (x > y) - (x < y);
}

/* Fills a row from the images x of a kind, at the limits of the scores. */
static int measure(jem_net *net, const float *x, const float *limits, row *to) {
    static jem_answer a[HALF];
    static float s[HALF];
    static ranked order[HALF];
    int reasons[JEM_REASON_LAYOUT + 1] = { 0 };
    for (int k = 0; k < SCORES; k++) {
        int low = 0;
        if (jem_ood_score(net, scores[k], NULL, x, HALF, s) != JEM_OK) return 0;
        for (int i = 0; i < HALF; i++) low += s[i] < limits[k];
        to->flagged[k] = 100.0 * low / HALF;
    }
    if (jem_classify(net, x, HALF, a) != JEM_OK) return 0;
    for (int i = 0; i < HALF; i++) {
        if (jem_judge(a[i].familiarity) == JEM_VERDICT_STRANGE) reasons[a[i].reason]++;
        order[i].familiarity = a[i].familiarity;
        order[i].i = i;
    }
    to->reason = JEM_REASON_NONE;
    for (int k = 1; k <= JEM_REASON_LAYOUT; k++) {
        if (reasons[k] > reasons[to->reason]) to->reason = (jem_reason)k;
    }
    qsort(order, HALF, sizeof *order, stranger);
    for (int i = 0; i < SHOWN; i++)                /* from the strangest to the most familiar */
        memcpy(to->shown + i * DIGIT_PIXELS,
               x + order[i * (HALF - 1) / (SHOWN - 1)].i * DIGIT_PIXELS,
               DIGIT_PIXELS * sizeof *to->shown);
    return 1;
}

static int compare(jem_net *net, const digits *d, row *rows) {
    static float x[HALF * DIGIT_PIXELS];
    float limits[SCORES];
    jem_rng rng = jem_rng_seed(1);
    const float *tested = d->test_x + HALF * DIGIT_PIXELS;
    /* One half of the held-out digits calibrates, the other half is tested and sets the limits:
       those of the first half would be too high, because the fits contain its digits. */
    if (jem_calibrate(net, d->test_x, HALF, JEM_AUTO) != JEM_OK) return 0;
    for (int k = 0; k < SCORES; k++) {
        if (!limit_of(net, scores[k], tested, &limits[k])) return 0;
    }
    printf("flagged, at a limit that 1%% of digits are below, by\n  %-18s", "");
    for (int k = 0; k < SCORES; k++) printf("  %8s", columns[k]);
    printf("  mostly because of\n");
    for (int kind = 0; kind < KINDS; kind++) {
        for (int i = 0; i < HALF; i++)
            make(kind, tested, i, &rng, x + i * DIGIT_PIXELS);
        if (!measure(net, x, limits, rows + kind)) return 0;
        printf("  %-18s", names[kind]);
        for (int k = 0; k < SCORES; k++) printf("  %7.1f%%", rows[kind].flagged[k]);
        printf("  %s\n", jem_reason_name(rows[kind].reason));
    }
    return 1;
}

/* ---- the picture ----------------------------------------------------------------------------- */

enum {
    ZOOM = 2, CELL = DIGIT * ZOOM, ROW = CELL + 8, TOP = 44, LEFT = 10, IMAGES = 300,
    TABLE = IMAGES + SHOWN * (CELL + 4) + 20, COLUMN = 84, WIDE = TABLE + SCORES * COLUMN + LEFT,
    HIGH = TOP + KINDS * ROW + 8
};

/* Draws a percentage on a field that is the bluer the higher it is. */
static void draw_cell(plot *p, double percent, int left, int top) {
    char label[32];
    const float share = (float)percent / 100;
    for (int k = 0; k < CELL * (COLUMN - 4); k++) {
        const int y = top + k / (COLUMN - 4);
        const int x = left + k % (COLUMN - 4);
        plot_blend(p, y, x, INK_BLUE, 0.06f + 0.94f * share);
    }
    unsigned ink = 0x333333;
    if (percent > 50) ink = 0xffffff;
    snprintf(label, sizeof label, "%.0f%%", percent);
    text(p, (float)left + 12, (float)top + 20, 2.6f, ink, label);
}

static int draw(const row *rows) {
    plot p;
    if (!plot_create(&p, WIDE, HIGH, 0, WIDE, HIGH, 0)) return 0;
    text(&p, IMAGES, 14, 2.1f, 0x333333, "strangest to most familiar");
    for (int k = 0; k < SCORES; k++)
        text(&p, (float)(TABLE + k * COLUMN), 15, 1.9f, 0x333333, columns[k]);
    for (int kind = 0; kind < KINDS; kind++) {
        const int top = TOP + kind * ROW;
        text(&p, LEFT, (float)top + 7, 2.4f, 0x333333, names[kind]);
        text(&p, LEFT, (float)top + 35, 1.9f, INK_GREY, jem_reason_name(rows[kind].reason));
        for (int i = 0; i < SHOWN; i++)
            plot_digit(&p, IMAGES + i * (CELL + 4), top, ZOOM, rows[kind].shown + i * DIGIT_PIXELS);
        for (int k = 0; k < SCORES; k++)
            draw_cell(&p, rows[kind].flagged[k], TABLE + k * COLUMN, top);
    }
    const int ok = plot_write(&p, "build/pictures/out_of_distribution.png");
    if (ok) printf("picture: build/pictures/out_of_distribution.png\n");
    plot_free(&p);
    return ok;
}

int main(void) {
    static row rows[KINDS];
    digits d;
    jem_ctx *ctx = jem_ctx_create(NULL);
    jem_net *net = digits_model(ctx, NULL);
    int failed = !net || !digits_load(DIGITS_PATH, &d);
    if (!failed) {
        failed = !compare(net, &d, rows) || !draw(rows);
        digits_free(&d);
    }
    if (net) failed = report(ctx) || failed;
    jem_net_free(net);
    jem_ctx_free(ctx);
    return failed;
}
