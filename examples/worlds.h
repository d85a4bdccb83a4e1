/* For lessons in two dimensions: plots of the worlds of points.h, and sheets of pictures side by
   side. In the plane even Z can be computed, by a sum of exp(f) over a grid; so a learned density
   can be compared with the true one. For programs of one file; pictures.h describes how functions
   fail. */
#ifndef EXAMPLES_WORLDS_H
#define EXAMPLES_WORLDS_H

#include "tools/support/chart.h"
#include "points.h"

/* Returns the world of that name, or WORLDS. */
static inline world_kind world_find(const char *name) {
    int k = 0;
    while (k < WORLDS && strcmp(worlds[k].name, name)) k++;
    if (k == WORLDS) {
        fprintf(stderr, "unknown world '%s'; the worlds are:", name);
        for (int i = 0; i < WORLDS; i++) fprintf(stderr, " %s", worlds[i].name);
        fprintf(stderr, "\n");
    }
    return (world_kind)k;
}

/* ---- densities on a grid --------------------------------------------------------------------- */

/* Returns log Z of the values of plot_function in p->values: the sum of exp(f) times a pixel's
   area. */
static inline double plot_log_z(const plot *p) {
    double top = -1e30;
    double sum = 0;
    const double area = (double)(p->x1 - p->x0) * (double)(p->y1 - p->y0) / p->w / p->h;
    for (int k = 0; k < p->w * p->h; k++) top = fmax(top, (double)p->values[k]);
    for (int k = 0; k < p->w * p->h; k++) sum += exp((double)p->values[k] - top);
    return top + log(sum * area);
}

/* Creates a grid for it, over the box of all worlds. */
static inline int world_grid(plot *p, int size) {
    return plot_create(p, size, size, -WORLD_BOX, WORLD_BOX, -WORLD_BOX, WORLD_BOX);
}

static inline void plot_truth(plot *p, world_kind kind) {
    for (int k = 0; k < p->w * p->h; k++) {
        const float x[2] = {
            p->x0 + (p->x1 - p->x0) * ((float)(k % p->w) + .5f) / (float)p->w,
            p->y1 - (p->y1 - p->y0) * ((float)(k / p->w) + .5f) / (float)p->h
        };
        world_truth(kind, 1, x, p->values + k);
    }
}

/* Estimates the log-density of n points, counted in cells of `cell` x `cell` pixels. */
static inline void plot_histogram(plot *p, int n, const float *x, int cell) {
    const int across = p->w / cell;
    const float area = (p->x1 - p->x0) * (p->y1 - p->y0) * (float)(cell * cell) /
                       (float)(p->w * p->h);
    memset(p->values, 0, (size_t)(p->w * p->h) * sizeof *p->values);
    for (int i = 0; i < n; i++) {
        const int column = (int)((x[2 * i] - p->x0) / (p->x1 - p->x0) * (float)p->w) / cell;
        const int row = (int)((p->y1 - x[2 * i + 1]) / (p->y1 - p->y0) * (float)p->h) / cell;
        if (x[2 * i] >= p->x0 && column < across && x[2 * i + 1] <= p->y1 && row < p->h / cell)
            p->values[row * cell * p->w + column * cell]++;
    }
    for (int k = p->w * p->h - 1; k >= 0; k--) {   /* from the end: a cell's corner comes last */
        const float count = p->values[(k / p->w / cell * p->w + k % p->w / cell) * cell];
        p->values[k] = count > 0 ? count : -1;
    }
    for (int k = 0; k < p->w * p->h; k++)
        p->values[k] = p->values[k] > 0 ? logf(p->values[k] / ((float)n * area)) : -30;
}

/* Creates a density of the plane without classes: two layers, one logit. */
static inline jem_net *density_net(jem_ctx *ctx, int width, int seed) {
    jem_mlp_desc shape = jem_mlp_desc_default();
    shape.channels = 2;
    shape.height = shape.width = shape.classes = 1;
    shape.widths[0] = shape.widths[1] = width;
    return jem_mlp_create(ctx, &shape, (uint64_t)seed);
}

static inline double mean_of(const float *x, int n) {
    double sum = 0;
    for (int i = 0; i < n; i++) sum += (double)x[i];
    return sum / n;
}

/* Returns the mean log p of new points of a world: the true one (net NULL), or that of a net, up to
   its log Z. */
static inline double world_mean_logp(world_kind kind, jem_net *net) {
    enum { POINTS = 2000 };
    static float x[2 * POINTS], logp[POINTS];
    static int y[POINTS];
    jem_rng rng = jem_rng_seed(9);
    world_sample(kind, &rng, POINTS, x, y);
    if (!net) world_truth(kind, POINTS, x, logp);
    else {
        const jem_mark mark = jem_begin(net->ctx);
        if (jem_read(jem_logp(net->ctx, jem_input(net->ctx, x, POINTS, 2, 1, 1), net), logp))
            logp[0] = NAN;
        jem_end(net->ctx, mark);
    }
    return mean_of(logp, POINTS);
}

/* Returns the same for a net, minus its log Z; afterwards grid holds f. */
static inline double world_learned(world_kind kind, jem_net *net, plot *grid) {
    plot_function(grid, net->ctx, jem_logp, net);
    return world_mean_logp(kind, net) - plot_log_z(grid);
}

/* Returns E[f] over the density of the net itself, as the sum of f over a grid, weighted by the
   normalised exp(f): its gradient is E[grad f]. On the tape. */
static inline jem_tensor *world_exact_mean(jem_net *net) {
    enum { GRID = 64 };
    static float x[2 * GRID * GRID], share[GRID * GRID];
    jem_ctx *ctx = net->ctx;
    for (int k = 0; k < GRID * GRID; k++) {
        x[2 * k] = WORLD_BOX * (2 * ((float)(k % GRID) + .5f) / GRID - 1);
        x[2 * k + 1] = WORLD_BOX * (2 * ((float)(k / GRID) + .5f) / GRID - 1);
    }
    jem_tensor *f = jem_logp(ctx, jem_input(ctx, x, GRID * GRID, 2, 1, 1), net);
    if (jem_read(f, share) != JEM_OK) return NULL;
    double top = -1e30;
    double sum = 0;
    for (int k = 0; k < GRID * GRID; k++) top = fmax(top, (double)share[k]);
    for (int k = 0; k < GRID * GRID; k++) sum += exp((double)share[k] - top);
    for (int k = 0; k < GRID * GRID; k++) share[k] = (float)(exp((double)share[k] - top) / sum);
    return jem_sum(ctx, jem_mul(ctx, f, jem_input(ctx, share, GRID * GRID, 1, 1, 1)));
}
/* Returns a loss whose gradient is exactly that of mean -log p(x). */
static inline jem_tensor *world_exact_loss(jem_net *net, int n, const float *x) {
    jem_tensor *model = world_exact_mean(net);
    jem_tensor *data = jem_input(net->ctx, x, n, 2, 1, 1);
    return jem_sub(net->ctx, model, jem_mean(net->ctx, jem_logp(net->ctx, data, net)));
}

/* Plots all log-densities of a lesson in the same colours: black is e^-6, bright e^0.3. */
#define DENSITY_LO -6.0f
#define DENSITY_HI 0.3f
static inline void plot_density(plot *p, double log_z) {
    plot_heat(p, (float)log_z + DENSITY_LO, (float)log_z + DENSITY_HI);
}
/* Draws lines of equal log p, the lighter the higher, on a panel that is black but for a hundredth
   or less, and writes the range to note. Leaves any other panel as it is, and the note empty. */
static inline void plot_darkness(plot *p, double log_z, char note[64]) {
    enum { LINES = 8 };
    const int n = p->w * p->h;
    float lo = p->values[0];
    float hi = lo;
    int bright = 0;
    note[0] = 0;
    for (int k = 0; k < n; k++) {
        lo = fminf(lo, p->values[k]);
        hi = fmaxf(hi, p->values[k]);
        bright += (double)p->values[k] > log_z + (double)DENSITY_LO;
    }
    if (100 * bright > n || !(lo < hi)) return;
    for (int k = 0; k < LINES; k++) {
        const float share = ((float)k + .5f) / LINES;
        const unsigned grey = (unsigned)(70 + 160 * share);
        plot_contour(p, lo + (hi - lo) * share, 1.8f, grey * 0x10101u);
    }
    snprintf(note, 64, "log p: %.2g to %.2g", (double)lo - log_z, (double)hi - log_z);
}

static const unsigned class_colours[8] = {
    INK_BLUE, INK_ORANGE, INK_GREEN, INK_RED, INK_SKY, INK_PINK, INK_GREY, INK_YELLOW
};

/* Draws the class at every pixel, paler where the network is less confident; on white. */
static inline void plot_classes(plot *p, jem_net *net) {
    enum { MOST = 1000 };
    jem_answer a[MOST];
    float x[2 * MOST];
    memset(p->rgb, 255, (size_t)(p->w * p->h) * 3);
    for (int i = 0; i < p->h; i++) {
        for (int j = 0; j < p->w && j < MOST; j++) {
            x[2 * j] = p->x0 + (p->x1 - p->x0) * ((float)j + .5f) / (float)p->w;
            x[2 * j + 1] = p->y1 - (p->y1 - p->y0) * ((float)i + .5f) / (float)p->h;
        }
        if (jem_classify(net, x, p->w < MOST ? p->w : MOST, a) != JEM_OK) return;
        for (int j = 0; j < p->w && j < MOST; j++)
            plot_blend(p, i, j, class_colours[a[j].label % 8], 0.4f * a[j].probability);
    }
}

/* ---- a JEM of a world: worlds.c, film.c ------------------------------------------------------ */

#define WORLD_STEP 0.006f
enum { WORLD_BATCH = 256 };

static inline jem_net *world_net(jem_ctx *ctx, world_kind kind) {
    jem_mlp_desc shape = jem_mlp_desc_default();
    shape.channels = 2;
    shape.height = shape.width = 1;
    shape.classes = worlds[kind].classes;
    return jem_mlp_create(ctx, &shape, 1);
}
static inline jem_train_desc world_recipe(int updates) {
    jem_train_desc how = jem_train_desc_default();
    how.lr = 1e-3f;
    how.schedule.kind = JEM_SCHEDULE_COSINE;
    how.schedule.total = updates;
    how.optim.ema = 0.99f;
    how.data_noise = 0;
    how.negatives = WORLD_BATCH;
    how.buffer_size = 4000;
    how.sgld = jem_sgld_desc_langevin(WORLD_STEP, 20);
    how.sgld.clamp_grad = 30;
    how.sgld.clamp_lo = how.restart_lo = -WORLD_BOX;
    how.sgld.clamp_hi = how.restart_hi = WORLD_BOX;
    return how;
}
static inline void world_learn(jem_trainer *tr, world_kind kind, jem_rng *rng) {
    float x[2 * WORLD_BATCH];
    int y[WORLD_BATCH];
    world_sample(kind, rng, WORLD_BATCH, x, y);
    jem_train_step(tr, x, y, WORLD_BATCH);
}
/* Walks n chains x[n][2] from noise. */
static inline void world_walk(jem_net *net, int n, int steps,
                              int (*watch)(void *user, int step, jem_tensor *x), void *user,
                              float *x) {
    jem_rng rng = jem_rng_seed(2);
    jem_sgld_desc how = jem_sgld_desc_langevin(WORLD_STEP, steps);
    how.clamp_lo = -WORLD_BOX;
    how.clamp_hi = WORLD_BOX;
    how.watch = watch;
    how.watch_user = user;
    const jem_mark mark = jem_begin(net->ctx);
    jem_fill_uniform(net->ctx, &rng, x, 2 * n, -WORLD_BOX, WORLD_BOX);
    jem_tensor *t = jem_input(net->ctx, x, n, 2, 1, 1);
    jem_sgld(net->ctx, jem_logp, net, t, &how, &rng);
    jem_read(t, x);
    jem_end(net->ctx, mark);
}
/* Returns log p(x) + log Z, with steep walls around the box. */
static inline jem_tensor *world_boxed(jem_ctx *ctx, jem_tensor *x, void *net) {
    jem_tensor *out = jem_relu(ctx, jem_add_constant(ctx, jem_square(ctx, x),
                                                     -WORLD_BOX * WORLD_BOX));
    jem_tensor *wall = jem_scale(ctx, jem_sum_image(ctx, out), -1000);
    return jem_add(ctx, jem_logp(ctx, x, net), wall);
}
/* Estimates log Z without a grid, by annealed importance sampling, over the box: comparable to the
   grid's. */
static inline jem_ais_result world_ais(jem_net *net) {
    jem_ais_result r = { NAN, NAN, NAN };
    jem_ais_desc how = jem_ais_desc_default();
    jem_rng rng = jem_rng_seed(4);
    how.levels = 200;
    how.std = 1.5f;
    how.walk.step_size = 0.08f;
    how.walk.leapfrog = 3;
    const jem_mark mark = jem_begin(net->ctx);
    jem_ais(net->ctx, world_boxed, net, jem_zeros(net->ctx, 256, 2, 1, 1), &how, &rng, &r);
    jem_end(net->ctx, mark);
    return r;
}

/* ---- sheets ---------------------------------------------------------------------------------- */

/* Panels of size x size pixels, each with a title above; on their right the colours of densities,
   optionally a chart of curves under them. y of the paper points down. */
typedef struct sheet { plot paper; int size, chart_top; } sheet;
enum { SHEET_GAP = 10, SHEET_TITLE = 32, SHEET_BAR = 66 };
#define SHEET_UNIT 2.3f                            /* of the letters in charts */

/* Draws the colours of plot_density with their values, on the right of the first row. */
static inline void sheet_bar(sheet *s) {
    const int left = s->paper.w - SHEET_BAR;
    const int high = s->size - 8;
    const int wide = 14;
    char label[16];
    plot bar;
    if (!plot_create(&bar, wide, high, 0, 1, 0, 1)) return;
    for (int k = 0; k < wide * high; k++) {
        bar.values[k] = (float)(high - 1 - k / wide) / (float)(high - 1);
    }
    plot_heat(&bar, 0, 1);
    text(&s->paper, (float)left, SHEET_TITLE - 21, 2.3f, 0x222222, "log p");
    plot_put(&s->paper, left, SHEET_TITLE + 4, &bar);
    for (int v = (int)DENSITY_LO; v <= (int)DENSITY_HI; v += 2) {
        const float share = ((float)v - DENSITY_LO) / (DENSITY_HI - DENSITY_LO);
        snprintf(label, sizeof label, "%d", v);
        text(&s->paper, (float)(left + wide + 6), SHEET_TITLE - 3 + (1 - share) * (float)high, 2.3f,
             0x222222, label);
    }
    plot_free(&bar);
}

static inline int sheet_create(sheet *s, int columns, int rows, int size, int chart_height) {
    const int w = columns * (size + SHEET_GAP) + SHEET_GAP + SHEET_BAR;
    const int h = rows * (size + SHEET_TITLE + SHEET_GAP) + SHEET_GAP / 2;
    s->size = size;
    s->chart_top = h;
    if (!plot_create(&s->paper, w, h + chart_height, 0, (float)w, (float)(h + chart_height), 0)) {
        return 0;
    }
    sheet_bar(s);
    return 1;
}

/* Creates a panel to draw on, showing the box of all worlds. */
static inline int panel_create(plot *p, const sheet *s) {
    return world_grid(p, s->size);
}

static inline void sheet_put(sheet *s, int column, int row, const plot *from, const char *title) {
    const int x = SHEET_GAP + column * (s->size + SHEET_GAP);
    const int y = SHEET_TITLE + row * (s->size + SHEET_TITLE + SHEET_GAP);
    float unit = 2.8f;
    /* A gap of a letter or two remains before the next title. */
    while (unit > 1.2f && text(NULL, 0, 0, unit, 0, title) > (float)s->size - 4 * unit) unit -= .1f;
    text(&s->paper, (float)x, (float)y - 9 * unit, unit, 0x222222, title);
    plot_put(&s->paper, x, y, from);
}

/* Underlines a panel, in the colour of its curve in the chart. */
static inline void sheet_underline(sheet *s, int column, int row, unsigned colour) {
    const int x = SHEET_GAP + column * (s->size + SHEET_GAP);
    const int y = (row + 1) * (s->size + SHEET_TITLE) + row * SHEET_GAP;
    box(&s->paper, (float)x, (float)y + 3, (float)(x + s->size), (float)y + 10, colour);
}

/* Writes white letters at the bottom right of a panel; line 0 is the lowest. */
static inline void sheet_note(sheet *s, int column, int row, int line, const char *note) {
    const int right = (column + 1) * (s->size + SHEET_GAP) - 4;
    const int y = SHEET_TITLE + row * (s->size + SHEET_TITLE + SHEET_GAP) + s->size - 22;
    text_right(&s->paper, (float)right, (float)(y - 22 * line), SHEET_UNIT, 0xffffff, note);
}

/* Draws n values as a line, `wide` pixels wide, starting at x, `unit` pixels per 1. */
static inline void plot_trace(plot *paper, float x, float y, float wide, float unit, const float *v,
                              int n, unsigned colour) {
    const float step = wide / (float)n;
    for (int i = 1; i < n; i++)
        plot_line(paper, x + step * (float)(i - 1), y + unit * v[i - 1], x + step * (float)i,
                  y + unit * v[i], 0.9f, colour);
}
/* Computes r(lag) = mean of v[t] v[t + lag] over that of v[t]^2, after subtracting the mean, of
   v[steps][chains]. */
static inline float autocorrelation(const float *v, int steps, int chains, double mean, int lag) {
    double both = 0;
    double square = 1e-30;
    for (int i = 0; i < (steps - lag) * chains; i++) {
        const double now = (double)v[i] - mean;
        both += now * ((double)v[i + lag * chains] - mean);
        square += now * now;
    }
    return (float)(both / square);
}

/* Draws curves in the room under the panels. `unit` sets the size of letters, as in
   draw_panel_in. */
static inline void sheet_chart_in(sheet *s, const char *title, const char *x_name,
                                  const curve *curves, int n, float y_lo, float y_hi, float unit) {
    const float larger = unit / SHEET_UNIT;
    panel q;
    memset(&q, 0, sizeof q);
    q.title = title;
    q.x_name = x_name;
    q.curves = curves;
    q.n = n;
    q.y_lo = y_lo;
    q.y_hi = y_hi;
    q.left = 60;
    q.right = (float)s->paper.w - 20;
    q.top = (float)s->chart_top + 46 * larger;
    q.bottom = (float)s->paper.h - 60 * larger;
    draw_panel_in(&s->paper, &q, unit);
}
static inline void sheet_chart(sheet *s, const char *title, const char *x_name, const curve *curves,
                               int n, float y_lo, float y_hi) {
    sheet_chart_in(s, title, x_name, curves, n, y_lo, y_hi, SHEET_UNIT);
}

/* Writes and frees the sheet; returns 1 on success. */
static inline int sheet_close(sheet *s, const char *path) {
    const int ok = plot_write(&s->paper, path);
    if (ok) printf("picture: %s\n", path);
    plot_free(&s->paper);
    return ok;
}

/* ---- films ----------------------------------------------------------------------------------- */

/* Frames of a film, of w x h pixels each. */
typedef struct reel {
    unsigned char *rgb;
    int w, h, taken, most;
} reel;

static inline int reel_add(reel *r, int w, int h, const unsigned char *rgb) {
    const size_t size = (size_t)w * (size_t)h * 3;
    if (!r->rgb) r->rgb = (unsigned char *)malloc((size_t)r->most * size);
    if (!r->rgb) {
        fprintf(stderr, "no memory for a film of %d frames of %d x %d pixels\n", r->most, w, h);
        return 0;
    }
    if (r->taken == r->most) {
        fprintf(stderr, "a film has more than %d frames\n", r->most);
        return 0;
    }
    r->w = w;
    r->h = h;
    memcpy(r->rgb + (size_t)r->taken++ * size, rgb, size);
    return 1;
}

/* Writes and frees the film: `ms` per frame. The last one is shown for two seconds. */
static inline int reel_close(reel *r, const char *path, int ms) {
    const ptrdiff_t pixels = (ptrdiff_t)r->taken * r->w * r->h;
    const int ok = r->rgb && picture_reduce(r->rgb, pixels) &&
                   picture_film(path, r->rgb, r->taken, r->w, r->h, ms, 2000);
    if (ok) printf("picture: %s, of %d frames\n", path, r->taken);
    free(r->rgb);
    r->rgb = NULL;
    return ok;
}

/* Returns 1 if argv has --quick: lessons then take few steps, so that a test can run them all. */
static inline int is_quick(int argc, char **argv) {
    for (int i = 1; i < argc; i++) if (!strcmp(argv[i], "--quick")) return 1;
    return 0;
}

#endif
