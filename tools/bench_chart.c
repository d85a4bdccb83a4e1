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
    int places = 0;
    if (x < 100) places = 1;
    if (x < 10) places = 2;
    snprintf(to, size, "%.*f", places, (double)x);
}

/* ---- the picture ----------------------------------------------------------------------------- */

/* What is drawn: the bars of n rows, in some styles. */
typedef struct chart {
    const row *rows, *style[STYLES];
    int n, styles, bars, height;
} chart;

static float lo, hi;                               /* the axis, in powers of two */
static float across(float ratio) {
    float t = (log2f(ratio) - lo) / (hi - lo);
    if (t < 0) t = 0;
    if (t > 1) t = 1;
    return LEFT + (RIGHT - LEFT) * t;
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

/* Finds the styles of the bars, the height of the picture, and the axis. */
static chart measure(const row *rows, int n) {
    chart c = { rows, { NULL }, n, 0, 0, TOP + BOTTOM };
    const row *before = NULL;                      /* the last bar */
    lo = -1;
    hi = 2;
    for (int i = 0; i < n; i++) {
        const row *r = rows + i;
        const float power = log2f(r->ratio);
        if (is_bar(r) || !strcmp(r->torch, "bf16")) {
            lo = fmaxf(-5, fminf(lo, floorf(power)));
            hi = fminf(7, fmaxf(hi, ceilf(power)));
        }
        if (!is_bar(r)) continue;
        int k = 0;
        while (k < c.styles && !same_style(c.style[k], r)) k++;
        if (k == c.styles && c.styles < STYLES) c.style[c.styles++] = r;
        if (!before || strcmp(before->net, r->net)) c.height += NET_GAP;
        if (!before || strcmp(before->net, r->net) || strcmp(before->what, r->what))
            c.height += GROUP_GAP;
        c.height += STEP;
        c.bars++;
        before = r;
    }
    return c;
}

static void draw_head(plot *p, const chart *c, const char *title, const char *subtitle) {
    text(p, 30, 22, 2.6f, 0x000000, title);
    text(p, 30, 52, 1.6f, 0x333333, subtitle);
    text(p, 30, 74, 1.6f, 0x333333, "Bars: PyTorch's time (or memory) divided by jem.h's, "
         "medians. Right of the black line jem.h is better. Small print: PyTorch's : jem.h's.");
    float x = 30;
    for (int k = 0; k < c->styles; k++) {
        char name[64];
        snprintf(name, sizeof name, "jem.h %s, %s", c->style[k]->precision, c->style[k]->isa);
        box(p, x, 98, x + 16, 98 + BAR, colour_of(c->style[k], c->rows));
        x = text(p, x + 22, 100, 1.6f, 0x000000, name) + 26;
    }
    plot_dot(p, 36, 127, 7, 0x222222);
    text(p, 52, 122, 1.6f, 0x333333, "the same against PyTorch in bf16 (autocast); bars are "
         "against fp32, and bf16 against bf16");
}

/* Draws a line and its number at every power of two: that of 1 is black. */
static void draw_axis(plot *p, int height) {
    const float bottom = (float)height - BOTTOM;
    for (int power = (int)lo; power <= (int)hi; power++) {
        char tick[16];
        const float at = across(exp2f((float)power));
        const unsigned ink = power ? 0x555555 : 0x000000;
        snprintf(tick, sizeof tick, power < 0 ? "1/%.0f" : "%.0f", exp2(abs(power)));
        if (power) box(p, at - 1, TOP - 6, at, bottom + 8, 0xdddddd);
        else box(p, at - 1, TOP - 6, at + 1, bottom + 8, 0x000000);
        const float left = at + 1 - text(NULL, 0, 0, 1.5f, 0, tick) / 2;
        text(p, left, TOP - 20, 1.5f, ink, tick);
        text(p, left, bottom + 14, 1.5f, ink, tick);
    }
}

/* Returns the row that compares the same with PyTorch in bf16, or NULL; the last of several. */
static const row *in_bf16(const chart *c, const row *r) {
    const row *found = NULL;
    for (int j = 0; j < c->n; j++) {
        const row *other = c->rows + j;
        if (!strcmp(other->torch, "bf16") && strcmp(r->torch, "bf16") &&
            !strcmp(other->net, r->net) && !strcmp(other->what, r->what) && same_style(other, r))
            found = other;
    }
    return found;
}

/* Draws all bars, with a heading for each network and a name for each group. */
static void draw_bars(plot *p, const chart *c) {
    float y = TOP;
    const row *before = NULL;
    for (int i = 0; i < c->n; i++) {
        const row *r = c->rows + i;
        char label[64];
        if (!is_bar(r)) continue;
        const int new_net = !before || strcmp(before->net, r->net);
        if (new_net) {
            text(p, 30, y + 18, 2.1f, 0x000000, r->net);
            y += NET_GAP;
        }
        if (new_net || strcmp(before->what, r->what)) {
            y += GROUP_GAP;
            text_right(p, LEFT - 20, y + 1, 1.7f, 0x000000, words(r->what));
            snprintf(label, sizeof label, "batch %d", r->batch);
            text_right(p, LEFT - 20, y + 17, 1.4f, 0x777777, label);
        }
        draw_bar(p, r, in_bf16(c, r), y, colour_of(r, c->rows));
        y += STEP;
        before = r;
    }
}

int main(int argc, char **argv) {
    static row rows[ROWS];
    if (argc != 5) {
        fprintf(stderr, "bench_chart FROM.csv TO.png TITLE SUBTITLE\n");
        return 1;
    }
    const chart c = measure(rows, read_rows(argv[1], rows));
    plot p;
    if (!c.bars) {
        fprintf(stderr, "%s: no ratios to draw\n", argv[1]);
        return 1;
    }
    if (!plot_create(&p, WIDTH, c.height, 0, WIDTH, (float)c.height, 0)) return 1; /* y downwards */
    draw_head(&p, &c, argv[3], argv[4]);
    draw_axis(&p, c.height);
    draw_bars(&p, &c);
    const int ok = plot_write(&p, argv[2]);
    plot_free(&p);
    return !ok;
}
