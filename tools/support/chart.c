/* Letters, boxes, charts. */
#include "tools/support/chart.h"

/* ---- letters --------------------------------------------------------------------------------- */

/* A letter consists of lines between points "xy" on a grid: capitals are 4 wide and reach from 0
   down to 6, small letters start at 2, descenders end at 8. A blank lifts the pen. */
static const struct letter { char c; const char *lines; } letters[] = {
    { 'A', "062046 1434" }, { 'B', "06003041423303 3344453606" }, { 'C', "4130100105163645" },
    { 'D', "06003041453606" }, { 'E', "40000646 0333" }, { 'F', "400006 0333" },
    { 'G', "41301001051636454323" }, { 'H', "0006 4046 0343" }, { 'I', "0006" },
    { 'J', "3035261605" }, { 'K', "0006 400346" }, { 'L', "000646" }, { 'M', "0600234046" },
    { 'N', "06004640" }, { 'O', "100105163645413010" }, { 'P', "06003041423303" },
    { 'Q', "100105163645413010 2446" }, { 'R', "06003041423303 2346" },
    { 'S', "413010010213334445361605" }, { 'T', "0040 2026" }, { 'U', "000516364540" },
    { 'V', "002640" }, { 'W', "0016233640" }, { 'X', "0046 4006" }, { 'Y', "002340 2326" },
    { 'Z', "00400646" },
    { '0', "100105162635312010" }, { '1', "112026" }, { '2', "01102031320636" },
    { '3', "01102031322313 233435261605" }, { '4', "26200434" }, { '5', "300003233435261605" },
    { '6', "312010010516263534231304" }, { '7', "003016" },
    { '8', "100102132332312010 1304051626353423" }, { '9', "051626353120100102132332" },
    { 'a', "3236 3322120305162635" }, { 'b', "0006 0312223335261605" }, { 'c', "3322120305162635" },
    { 'd', "3036 3322120305162635" }, { 'e', "04343322120305162635" }, { 'f', "201116 0222" },
    { 'g', "3237281807 3322120305162635" }, { 'h', "0006 0312223336" }, { 'i', "00 0206" },
    { 'j', "10 121708" }, { 'k', "0006 320436" }, { 'l', "000516" },
    { 'm', "0206 03122326 23324346" }, { 'n', "0206 0312223336" }, { 'o', "120305162635332212" },
    { 'p', "0208 0312223335261605" }, { 'q', "3238 3322120305162635" }, { 'r', "0206 031222" },
    { 's', "3212031424352606" }, { 't', "101526 0222" }, { 'u', "0205162635 3236" },
    { 'v', "022642" }, { 'w', "0216233642" }, { 'x', "0236 3206" }, { 'y', "0226 4218" },
    { 'z', "02320636" },
    { '.', "06" }, { ',', "1608" }, { ':', "03 06" }, { ';', "13 1608" }, { '-', "0434" },
    { '_', "0747" }, { '+', "0444 2226" }, { '=', "0333 0535" }, { '/', "3007" },
    { '(', "10020517" }, { ')', "00121507" }, { '%', "5016 10010213222110 53444556656453" },
    { '\'', "0002" }, { '!', "0004 06" }, { '<', "320436" }, { '>', "023406" }, { '|', "1017" },
    { '[', "20101626" }, { ']', "10202616" }, { '^', "021022" }, { '@', "3323243433 34444130100105"
      "1646" }
};

/* Draws a letter, if there is a plot. Returns its width in units. */
static float chart__letter(plot *p, float x, float y, float unit, unsigned colour, char c) {
    float width = 2;                               /* for a blank, and for unknown characters */
    for (size_t i = 0; i < sizeof letters / sizeof *letters; i++) {
        if (letters[i].c != c) continue;
        float ax = 0;
        float ay = 0;
        int pen = 0;
        width = c >= '0' && c <= '9' ? 3 : 0;      /* columns of figures */
        for (const char *l = letters[i].lines; *l; l++) {
            if (*l == ' ') {
                pen = 0;
                continue;
            }
            const float bx = (float)(*l - '0');
            const float by = (float)(l[1] - '0');
            if (!pen) {
                ax = bx;
                ay = by;
            }
            if (p && (pen || l[2] == ' ' || !l[2]))
                plot_line(p, x + ax * unit, y + ay * unit, x + bx * unit, y + by * unit,
                          unit * .72f, colour);
            if (bx > width) width = bx;
            ax = bx;
            ay = by;
            pen = 1;
            l++;
        }
    }
    return width;
}
float text(plot *p, float x, float y, float unit, unsigned colour,
           const char *s) {
    for (; *s; s++) x += (chart__letter(p, x, y, unit, colour, *s) + 1.8f) * unit;
    return x;
}
void text_right(plot *p, float x, float y, float unit, unsigned colour,
                const char *s) {
    text(p, x - text(NULL, 0, 0, unit, colour, s), y, unit, colour, s);
}
void box(plot *p, float x0, float y0, float x1, float y1, unsigned colour) {
    for (int i = (int)y0; i < (int)y1; i++)
        for (int j = (int)x0; j < (int)x1; j++)
            if (i >= 0 && j >= 0 && i < p->h && j < p->w) plot_blend(p, i, j, colour, 1);
}

/* ---- curves ---------------------------------------------------------------------------------- */

float *chart_column(const char *path, const char *name, int *n) {
    char line[1024];
    float *x = NULL;
    int room = 0;
    int column = -1;
    FILE *f = fopen(path, "r");
    *n = 0;
    if (f && fgets(line, sizeof line, f)) {
        const char *s = line;
        for (int c = 0; column < 0 && s; c++) {
            const size_t wide = strcspn(s, ",\r\n");
            if (wide == strlen(name) && !strncmp(s, name, wide)) column = c;
            s = s[wide] == ',' ? s + wide + 1 : NULL;
        }
    }
    while (column >= 0 && fgets(line, sizeof line, f)) {
        const char *s = line;
        char *end;
        for (int c = 0; c < column && s; c++) {
            s = strchr(s, ',');
            s += s != NULL;
        }
        if (*n == room) {
            float *more = (float *)realloc(x, (size_t)(2 * room + 64) * sizeof *x);
            if (!more) break;
            x = more;
            room = 2 * room + 64;
        }
        x[*n] = NAN;
        if (s) {
            const float v = strtof(s, &end);
            if (end > s) x[*n] = v;
        }
        ++*n;
    }
    if (f) fclose(f);
    return x;
}

/* Returns a step of 1, 2 or 5 times a power of ten, for about `count` steps in the range. */
static double chart__step(double range, int count) {
    const double raw = range / count;
    const double ten = pow(10, floor(log10(raw)));
    if (raw / ten <= 1) return ten;
    if (raw / ten <= 2) return 2 * ten;
    if (raw / ten <= 5) return 5 * ten;
    return 10 * ten;
}
static void chart__number(char *to, size_t size, double v, double step) {
    const int places = step >= 1 ? 0 : (int)ceil(-log10(step) - 1e-9);
    snprintf(to, size, "%.*f", places, fabs(v) < step / 2 ? 0.0 : v);
}

static int chart__compare(const void *a, const void *b) {
    const float x = *(const float *)a;
    const float y = *(const float *)b;
    return (x > y) - (x < y);
}
/* Computes the range of all curves' finite values, x or y. Leaves it as it is if there are none, or
   without memory, which it notes in the plot. Of y, cuts off the most extreme hundredth at either
   end, so that single jumps do not flatten the rest, and enlarges the range slightly. */
static void chart__range(plot *p, const panel *q, int of_y, double *lo, double *hi) {
    size_t total = 0;
    size_t n = 0;
    for (int k = 0; k < q->n; k++) total += (size_t)q->curves[k].n;
    float *all = (float *)malloc((total + 1) * sizeof *all);
    if (!all) {
        p->failed = 1;
        return;
    }
    for (int k = 0; k < q->n; k++) {
        const float *v = of_y ? q->curves[k].y : q->curves[k].x;
        for (int i = 0; i < q->curves[k].n; i++)
            if (isfinite(v[i])) all[n++] = v[i];
    }
    if (n) {
        const size_t cut = of_y && n >= 200 ? n / 100 : 0;
        qsort(all, n, sizeof *all, chart__compare);
        *lo = (double)all[cut];
        *hi = (double)all[n - 1 - cut];
        if (of_y) {
            const double room = (*hi - *lo) * .05;
            *lo -= room;
            *hi += room;
        }
        if (!(*hi > *lo)) {
            const double around = fabs(*lo) > 0 ? fabs(*lo) * .1 : 1;
            *lo -= around;
            *hi += around;
        }
    }
    free(all);
}

void draw_panel(plot *p, const panel *q) {
    draw_panel_in(p, q, 1.75f);
}

int draw_panels(const char *path, const panel *panels, int n) {
    enum { WIDTH = 900 };
    const int height = (int)panels[n - 1].bottom + PANEL_BELOW;
    plot p;
    if (!plot_create(&p, WIDTH, height, 0, WIDTH, (float)height, 0)) return -1;
    for (int i = 0; i < n; i++) draw_panel(&p, panels + i);
    const int ok = plot_write(&p, path);
    plot_free(&p);
    return ok;
}

/* What a panel shows: from x0 to x1 and from y0 to y1; sx, sy: pixels of a unit. */
typedef struct chart__scale { double x0, x1, y0, y1, sx, sy; } chart__scale;

static chart__scale chart__scale_of(plot *p, const panel *q) {
    chart__scale s = { 0, 1, (double)q->y_lo, (double)q->y_hi, 0, 0 };
    chart__range(p, q, 0, &s.x0, &s.x1);
    if (!(s.y1 > s.y0)) {
        s.y0 = 0;
        s.y1 = 1;
        chart__range(p, q, 1, &s.y0, &s.y1);
    }
    s.sx = (double)(q->right - q->left) / (s.x1 - s.x0);
    s.sy = (double)(q->bottom - q->top) / (s.y1 - s.y0);
    return s;
}

/* Draws the axes: grey lines at round numbers, which they name. */
static void chart__axes(plot *p, const panel *q, const chart__scale *s, float unit) {
    const double dy = chart__step(s->y1 - s->y0, 5);
    const double dx = chart__step(s->x1 - s->x0, 8);
    char label[32];
    for (double v = ceil(s->y0 / dy) * dy; v <= s->y1 + dy * 1e-6; v += dy) {
        const float at = q->bottom - (float)((v - s->y0) * s->sy);
        box(p, q->left - 4, at, q->right, at + 1, 0xdddddd);
        chart__number(label, sizeof label, v, dy);
        text_right(p, q->left - 6, at - 3.3f * unit, unit, 0x555555, label);
    }
    for (double v = ceil(s->x0 / dx) * dx; v <= s->x1 + dx * 1e-6; v += dx) {
        const float at = q->left + (float)((v - s->x0) * s->sx);
        box(p, at, q->top, at + 1, q->bottom + 4, 0xdddddd);
        chart__number(label, sizeof label, v, dx);
        text(p, at + 1 - text(NULL, 0, 0, unit, 0, label) / 2, q->bottom + 9, unit, 0x555555,
             label);
    }
    box(p, q->left - 1, q->top, q->left + 1, q->bottom + 1, 0x000000);
    box(p, q->left - 1, q->bottom, q->right, q->bottom + 2, 0x000000);
    if (q->x_name)
        text_right(p, q->right, q->bottom + 17 * unit, unit, 0x333333, q->x_name);
}

/* Draws the names of the curves above the panel, from the right; in smaller letters if they would
   touch the title. */
static void chart__legend(plot *p, const panel *q, float unit) {
    const float room = q->right - q->left - text(NULL, 0, 0, unit / .75f, 0, q->title);
    float size = unit + .1f;
    float needed = room + 1;
    while (needed > room && size > 1) {
        needed = 0;
        for (int k = 0; k < q->n; k++)
            if (*q->curves[k].name) needed += text(NULL, 0, 0, size, 0, q->curves[k].name) + 44;
        if (needed > room) size -= .1f;
    }
    float right = q->right;
    for (int k = q->n - 1; k >= 0; k--) {
        if (!*q->curves[k].name) continue;         /* another curve of the group before it */
        const float width = text(NULL, 0, 0, size, 0, q->curves[k].name);
        text(p, right - width, q->top - 13 * unit - 3 * size, size, 0x333333,
             q->curves[k].name);
        const float middle = q->top - 13 * unit;
        box(p, right - width - 24, middle - 2, right - width - 8, middle + 2, q->curves[k].colour);
        right -= width + 44;
    }
}

/* Draws a curve, whose values beyond an end of y are at that end. */
static void chart__curve(plot *p, const panel *q, const chart__scale *s, const curve *c) {
    const double most = (double)(q->bottom - q->top);
    float px = 0;
    float py = 0;
    int pen = 0;
    for (int i = 0; i < c->n; i++) {
        if (!isfinite(c->x[i]) || !isfinite(c->y[i])) continue;
        const double t = fmin(fmax(((double)c->y[i] - s->y0) * s->sy, 0), most);
        const float x = q->left + (float)(((double)c->x[i] - s->x0) * s->sx);
        const float y = q->bottom - (float)t;
        if (pen) plot_line(p, px, py, x, y, c->width, c->colour);
        else plot_dot(p, x, y, 3, c->colour);
        px = x;
        py = y;
        pen = 1;
    }
}

void draw_panel_in(plot *p, const panel *q, float unit) {
    const chart__scale s = chart__scale_of(p, q);
    text(p, q->left, q->top - 18.5f * unit, unit / .75f, 0x000000, q->title);
    chart__axes(p, q, &s, unit);
    chart__legend(p, q, unit);
    for (int k = 0; k < q->n; k++) chart__curve(p, q, &s, &q->curves[k]);
}

/* ---- rows ------------------------------------------------------------------------------------ */

enum { ROWS_LEFT = 210, ROWS_RIGHT = 880, ROWS_TOP = 60, ROWS_EACH = 40 };     /* in pixels */

void draw_rows(plot *p, const row_chart *q) {
    const float low = ROWS_LEFT;
    const float right_end = ROWS_RIGHT;
    const float top = ROWS_TOP;
    const float each = ROWS_EACH;
    const float scale = (right_end - low) / (q->hi - q->lo);
    const float bottom = top + each * (float)q->rows;
    const double dx = chart__step((double)(q->hi - q->lo), 8);
    char label[32];
    text(p, 10, top - 36, 2.6f, 0x000000, q->title);
    for (int r = 0; r < q->rows; r += 2) {
        const float y = top + each * (float)r;
        box(p, 10, y, right_end, y + each, 0xf3f3f3);
    }
    for (double v = ceil((double)q->lo / dx) * dx; v <= (double)q->hi + dx * 1e-6; v += dx) {
        const float at = low + ((float)v - q->lo) * scale;
        box(p, at, top, at + 1, bottom, 0xcccccc);
        chart__number(label, sizeof label, v, dx);
        text(p, at - text(NULL, 0, 0, 1.9f, 0, label) / 2, bottom + 9, 1.9f, 0x555555, label);
    }
    box(p, low + (q->mark - q->lo) * scale - 1, top, low + (q->mark - q->lo) * scale + 1, bottom,
        0x000000);
    float right = right_end;
    for (int k = q->lines - 1; k >= 0; k--) {      /* the legend, from the right */
        text_right(p, right, top - 32, 2, 0x333333, q->line_names[k]);
        right -= text(NULL, 0, 0, 2, 0, q->line_names[k]) + 12;
        plot_dot(p, right, top - 24, 9, q->colours[k]);
        right -= 26;
    }
    for (int i = 0; i < q->rows * q->lines; i++) {
        const int r = i / q->lines;
        const int k = i % q->lines;
        const float y = top + each * ((float)r + ((float)k + 1) / (float)(q->lines + 1));
        if (!k) text(p, 14, top + each * ((float)r + .5f) - 6, 2, 0x222222, q->names[r]);
        if (q->to[i] >= q->lo) {
            const float x = low + (q->to[i] - q->lo) * scale;
            const float from = q->from[i] >= q->lo ? low + (q->from[i] - q->lo) * scale : low;
            plot_line(p, from, y, x, y, 1.8f, q->colours[k]);
            plot_dot(p, x, y, 8, q->colours[k]);
        } else for (int s = -3; s <= 3; s += 6)
            plot_line(p, low + 5, y - (float)s, low + 11, y + (float)s, 1.8f, q->colours[k]);
    }
}

int rows_write(const row_chart *q, const char *path) {
    const int w = ROWS_RIGHT + 20;
    const int h = ROWS_TOP + ROWS_EACH * q->rows + 40;
    plot p;
    if (!plot_create(&p, w, h, 0, (float)w, (float)h, 0)) return 0;
    draw_rows(&p, q);
    const int ok = plot_write(&p, path);
    plot_free(&p);
    return ok;
}
