/* Draws build/bench-torch.csv, which tools/bench_torch.py writes: a bar for every ratio.
       build/bench_chart FROM.csv TO.png TITLE SUBTITLE */
#define JEM_IMPLEMENTATION
#include "jem.h"
#include "tools/support/chart.h"

enum {
    ROWS = 4096, STYLES = 8,
    WIDTH = 1180, LEFT = 330, RIGHT = 1000, TOP = 168, BOTTOM = 34,    /* the bars lie between */
    BAR = 13, STEP = 16, GROUP_GAP = 12, NET_GAP = 34
};

/* ---- the file -------------------------------------------------------------------------------- */

typedef struct row {
    char what[24], net[24], isa[12], precision[12], torch[8];
    int batch;
    float ours, theirs, ratio;
} row;

static int read_rows(const char *path, row *rows) {
    char line[512];
    int n = 0;
    int threads;
    FILE *f = fopen(path, "r");
    if (!f) return 0;
    while (n < ROWS && fgets(line, sizeof line, f)) {
        row *r = rows + n;
        n += sscanf(line, "%23[^,],%23[^,],%d,%d,%11[^,],%11[^,],%f,%7[^,],%f,%f", r->what, r->net,
                    &r->batch, &threads, r->isa, r->precision, &r->ours, r->torch, &r->theirs,
                    &r->ratio) == 10 && r->ratio > 0;              /* skip the header */
    }
    fclose(f);
    return n;
}

/* Returns 1 if r compares equal precisions, and has a bar. */
static int is_bar(const row *r) {
    return !strcmp(r->torch, strcmp(r->precision, "bf16") ? "fp32" : "bf16");
}
/* Returns a hue for an instruction set, a shade for a precision. */
static unsigned colour_of(const row *r, const row *first) {
    static const unsigned shades[2][2] = { { 0x1f5fa8, 0x8ab6e0 }, { 0xd2691e, 0xf0b27a } };
    if (!strcmp(r->precision, "bf16")) return 0x2e8b57;
    if (!strcmp(r->precision, "direct")) return 0x999999;
    return shades[!!strcmp(r->isa, first->isa)][!!strcmp(r->precision, "fast")];
}
static int same_style(const row *a, const row *b) {
    return !strcmp(a->isa, b->isa) && !strcmp(a->precision, b->precision);
}
static const char *words(const char *what) {
    static const char *const names[][2] = {
        { "sgld", "SGLD step" }, { "update", "update" }, { "iteration", "20 steps + update" },
        { "one-image", "classify one image" }, { "one-image-sgld", "SGLD step of one" },
        { "memory", "memory of a chain" }
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(what, names[i][0])) return names[i][1];
    return what;
}
static void number(char *to, size_t size, float x) {
    snprintf(to, size, x < 10 ? "%.2f" : x < 100 ? "%.1f" : "%.0f", (double)x);
}

/* ---- the picture ----------------------------------------------------------------------------- */

static float lo, hi;                               /* the axis, in powers of two */
static float across(float ratio) {
    const float t = (log2f(ratio) - lo) / (hi - lo);
    return LEFT + (RIGHT - LEFT) * (t < 0 ? 0 : t > 1 ? 1 : t);
}

static void draw_bar(plot *p, const row *r, const row *other, float y, unsigned colour) {
    char ours[24], theirs[24], label[96];
    const float one = across(1);
    const float end = across(r->ratio);
    const char *unit = strcmp(r->what, "memory") ? "ms" : "MB";
    box(p, fminf(one, end), y, fmaxf(one, end), y + BAR, colour);
    float label_x = fmaxf(one, end);
    if (other) {
        const float x = across(other->ratio);
        const float middle = y + BAR / 2.0f;
        plot_dot(p, x, middle, 9, 0xffffff);
        plot_dot(p, x, middle, 7, 0x222222);
        if (x > label_x - 6) label_x = fmaxf(label_x, x + 5);
    }
    number(ours, sizeof ours, r->ours);
    number(theirs, sizeof theirs, r->theirs);
    snprintf(label, sizeof label, "%.2f", (double)r->ratio);
    const float x = text(p, label_x + 7, y + 2, 1.5f, 0x000000, label);
    snprintf(label, sizeof label, " %s : %s %s", theirs, ours, unit);
    text(p, x + 4, y + 2.5f, 1.3f, 0x777777, label);
}

int main(int argc, char **argv) {
    static row rows[ROWS];
    const row *style[STYLES];
    int styles = 0;
    int height = TOP + BOTTOM;
    int bars = 0;
    const int n = argc == 5 ? read_rows(argv[1], rows) : 0;
    if (argc != 5) return fprintf(stderr, "bench_chart FROM.csv TO.png TITLE SUBTITLE\n"), 1;
    lo = -1;
    hi = 2;
    for (int i = 0; i < n; i++) {
        const row *r = rows + i, *before = NULL;
        const float power = log2f(r->ratio);
        if (is_bar(r) || !strcmp(r->torch, "bf16")) {
            lo = fmaxf(-5, fminf(lo, floorf(power)));
            hi = fminf(7, fmaxf(hi, ceilf(power)));
        }
        if (!is_bar(r)) continue;
        int k = 0;
        while (k < styles && !same_style(style[k], r)) k++;
        if (k == styles && styles < STYLES) style[styles++] = r;
        for (int j = 0; j < i; j++) if (is_bar(rows + j)) before = rows + j;
        if (!before || strcmp(before->net, r->net)) height += NET_GAP;
        if (!before || strcmp(before->net, r->net) || strcmp(before->what, r->what))
            height += GROUP_GAP;
        height += STEP;
        bars++;
    }
    plot p;
    if (!bars) return fprintf(stderr, "%s: no ratios to draw\n", argv[1]), 1;
    if (!plot_create(&p, WIDTH, height, 0, WIDTH, (float)height, 0)) return 1;     /* y downwards */

    text(&p, 30, 22, 2.6f, 0x000000, argv[3]);
    text(&p, 30, 52, 1.6f, 0x333333, argv[4]);
    text(&p, 30, 74, 1.6f, 0x333333, "Bars: PyTorch's time (or memory) divided by jem.h's, "
         "medians. Right of the black line jem.h is better. Small print: PyTorch's : jem.h's.");
    float x = 30;
    for (int k = 0; k < styles; k++) {
        char name[64];
        snprintf(name, sizeof name, "jem.h %s, %s", style[k]->precision, style[k]->isa);
        box(&p, x, 98, x + 16, 98 + BAR, colour_of(style[k], rows));
        x = text(&p, x + 22, 100, 1.6f, 0x000000, name) + 26;
    }
    plot_dot(&p, 36, 127, 7, 0x222222);
    text(&p, 52, 122, 1.6f, 0x333333, "the same against PyTorch in bf16 (autocast); bars are "
         "against fp32, and bf16 against bf16");

    for (int power = (int)lo; power <= (int)hi; power++) {
        char tick[16];
        const float at = across(exp2f((float)power));
        snprintf(tick, sizeof tick, power < 0 ? "1/%.0f" : "%.0f", exp2(abs(power)));
        box(&p, at - 1, TOP - 6, at + (power ? 0 : 1), (float)height - BOTTOM + 8,
            power ? 0xdddddd : 0x000000);
        const float left = at + 1 - text(NULL, 0, 0, 1.5f, 0, tick) / 2;
        text(&p, left, TOP - 20, 1.5f, power ? 0x555555 : 0x000000, tick);
        text(&p, left, (float)height - BOTTOM + 14, 1.5f, power ? 0x555555 : 0x000000, tick);
    }
    float y = TOP;
    const row *before = NULL;
    for (int i = 0; i < n; i++) {
        const row *r = rows + i, *other = NULL;
        char label[64];
        if (!is_bar(r)) continue;
        const int new_net = !before || strcmp(before->net, r->net);
        if (new_net) {
            text(&p, 30, y + 18, 2.1f, 0x000000, r->net);
            y += NET_GAP;
        }
        if (new_net || strcmp(before->what, r->what)) {
            y += GROUP_GAP;
            text_right(&p, LEFT - 20, y + 1, 1.7f, 0x000000, words(r->what));
            snprintf(label, sizeof label, "batch %d", r->batch);
            text_right(&p, LEFT - 20, y + 17, 1.4f, 0x777777, label);
        }
        for (int j = 0; j < n; j++)
            if (!strcmp(rows[j].torch, "bf16") && strcmp(r->torch, "bf16") &&
                !strcmp(rows[j].net, r->net) && !strcmp(rows[j].what, r->what) &&
                same_style(rows + j, r))
                other = rows + j;
        draw_bar(&p, r, other, y, colour_of(r, rows));
        y += STEP;
        before = r;
    }
    const int ok = plot_write(&p, argv[2]);
    plot_free(&p);
    return !ok;
}
