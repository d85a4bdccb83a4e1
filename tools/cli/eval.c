/* Measures calibration, detection of unfamiliar images, robustness and imputation; noise.c measures
   noisy images, judge.c samples. */
#include "tools/cli/system.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tools/cli/eval.h"
#include "tools/cli/judge.h"
#include "tools/cli/memory.h"
#include "tools/cli/noise.h"
#include "tools/cli/score.h"
#include "tools/cli/train.h"
#include "tools/cli/train_options.h"
#include "tools/support/chart.h"
#include "tools/support/measures.h"
#include "tools/support/robust.h"
#include "tools/support/table.h"

const unsigned uses_colours[USES_CURVES] = {
    0x1f5fb4, 0xd2491e, 0x2e8b57, 0x8b3a8b, 0xb8860b, 0x777777, 0x008b8b, 0xb22222
};

float *uses_floats(ptrdiff_t n) { return new_floats((double)n); }
const char *uses_images(const uses *s) {
    static const char *const names[3] = { "test images", "training images", "images" };
    return names[s->u->e.split];
}
int uses_no_memory(void) {
    context_fail("jem eval", NULL);
    return 1;
}

/* Loads up to n images, to be freed: those that `jem train` held out; if it held out no images,
   training images; or images of another data set. (The data set of the training may have moved to
   another folder; rows of a table may be in another order.) Sets n to their number, and what to
   their kind. Returns NULL after an error, which it prints. */
static float *held_out_images(const uses *s, int *n, const char **what) {
    eval_options e = s->u->e;
    data_set d;
    e.split = 1;
    if (data_for(&s->m, s->o, &e, &d)) return NULL;
    int *order = (int *)malloc((size_t)d.n * sizeof *order);
    const char *valid = jem_archive_meta(s->m.archive, OPTION_PREFIX "n-valid");
    const char *name = jem_archive_meta(s->m.archive, OPTION_PREFIX "dataset");
    const char *trained = jem_archive_meta(s->m.archive, "run.data");      /* N images, ... */
    char mark[DATA_MARK];
    mark_data(&d, mark);
    const int own = (name && !strcmp(name, e.dataset)) || (trained && !strcmp(trained, mark));
    const int changed = trained && atoi(trained) != d.n;
    int there = d.n;
    if (own && valid && atoi(valid) > 1) there = smaller(atoi(valid), d.n);
    *n = smaller(*n, there);
    float *x = uses_floats(*n * image_size(s->m.net));
    if (own && changed) *what = "images of a changed data set, which training may have used";
    else if (there < d.n) *what = "images that training held out";
    else if (own) *what = "training images";
    else *what = "images of another data set";
    const int rare_last = jem_archive_meta(s->m.archive, RARE_LAST) != NULL;
    const int ok = x && order && order_images(&d, 0, rare_last, order);
    if (ok) data_floats(&d, order, *n, x);
    else {
        uses_no_memory();
        free(x);
    }
    data_free(&d);
    free(order);
    return ok ? x : NULL;
}

/* Returns a walk of `steps` steps as in the model's training; for a score without chains, as in its
   samples. */
static jem_sgld_desc uses_walk(const uses *s, int steps) {
    jem_sgld_desc d = jem_sgld_desc_default();
    const char *size = jem_archive_meta(s->m.archive, OPTION_PREFIX "sgld-lr");
    const char *noise = jem_archive_meta(s->m.archive, OPTION_PREFIX "sgld-std");
    if (s->m.net->noise_hi > 0) d = jem_net_generate_desc(s->m.net).walk;
    d.steps = steps;
    if (s->m.net->noise_hi > 0 && !had_chains(s->m.archive)) return d;
    if (size) d.step_size = strtof(size, NULL);
    if (noise) d.noise_std = strtof(noise, NULL);
    return d;
}

/* Returns 1 if both models have images of one shape. */
static int uses_one_shape(const uses *s, const uses *beside) {
    if (!beside) return 1;
    const jem_net *a = s->m.net;
    const jem_net *b = beside->m.net;
    return a->channels == b->channels && a->height == b->height && a->width == b->width;
}
int uses_alike(const uses *s, const uses *beside) {
    if (uses_one_shape(s, beside)) return 1;
    const jem_net *a = s->m.net;
    const jem_net *b = beside->m.net;
    fprintf(stderr, "jem eval: %s has images (%d,%d,%d), but %s has (%d,%d,%d)\n", s->name,
            a->channels, a->height, a->width, beside->name, b->channels, b->height, b->width);
    return 0;
}

/* Computes the outline of a histogram: 2 points for each of `bins` bars, and one at either end. */
static void outline(const double *heights, int bins, double lo, double hi, float *x, float *y) {
    for (int k = 0; k < bins; k++)
        for (int side = 0; side < 2; side++) {
            x[1 + 2 * k + side] = (float)(lo + (hi - lo) * (k + side) / bins);
            y[1 + 2 * k + side] = (float)heights[k];
        }
    x[0] = (float)lo;
    x[2 * bins + 1] = (float)hi;
    y[0] = y[2 * bins + 1] = 0;
}

panel uses_panel(const char *title, const char *x_name, float top, float bottom,
                 const curve *curves, int n) {
    panel q;
    memset(&q, 0, sizeof q);
    q.title = title;
    q.x_name = x_name;
    q.left = 80;
    q.right = 870;
    q.top = top;
    q.bottom = bottom;
    q.curves = curves;
    q.n = n;
    return q;
}
int uses_draw(const char *path, const panel *panels, int n) {
    const int drawn = draw_panels(path, panels, n);
    if (drawn < 0) return uses_no_memory();
    if (drawn) printf("%s\n", path);
    else fprintf(stderr, "jem eval: %s: cannot be written\n", path);
    return !drawn;
}

/* ---- calibration ----------------------------------------------------------------------------- */

enum { BINS_MOST = 100, RELIABLE_MOST = 4, FEW = 10 };

/* Divides the logits of each half of the images by the temperature that was fitted to the other
   half. Returns the mean of both temperatures; after an error 0. */
static double divide_by_fitted(const uses *s, float *f) {
    jem_net *net = s->m.net;
    const int half = s->n / 2;
    const ptrdiff_t logits = (ptrdiff_t)s->n * net->classes;
    const ptrdiff_t of_first = (ptrdiff_t)half * net->classes;
    const float *last = s->x + half * image_size(net);
    const float t_first = jem_fit_temperature(net, s->x, s->labels, half);
    const float t_last = jem_fit_temperature(net, last, s->labels + half, s->n - half);
    const float least = fminf(t_first, t_last);
    if (!(t_first > 0 && t_last > 0)) return 0;
    if (2 * least < fmaxf(t_first, t_last))
        fprintf(stderr, "jem eval: %s: temperatures of %.2g and %.2g fit the two halves of the "
                "images: too few to fit one; ignore the row 'T fitted'\n", s->name,
                (double)t_first, (double)t_last);
    for (ptrdiff_t i = 0; i < logits; i++) f[i] /= i < of_first ? t_last : t_first;
    return .5 * ((double)t_first + (double)t_last);
}

/* Computes rows and curves of a model: without a temperature, and with fitted temperatures. */
static int calibration_of(uses *s, reliability_bin *bin, int row) {
    const int k = s->m.net->classes;
    float *f = uses_floats((ptrdiff_t)s->n * k);
    double t = 1;
    const char *const names[2] = { s->name, "T fitted" };
    int ok = f != NULL;
    jem_net_set_meta(s->m.net, "jem.temperature", NULL);
    ok = ok && jem_logits(s->m.net, s->x, s->n, f) == JEM_OK;
    for (int fit = 0; ok && fit < 2; fit++) {
        if (fit) t = divide_by_fitted(s, f);
        ok = t > 0;
        if (!ok) break;
        predictions p = { f, s->labels, s->n, k, 1 };
        reliability_bin other[20];
        const reliability r20 = measure_reliability(&p, 20, other);
        const reliability r = measure_reliability(&p, s->u->bins, bin + (row + fit) * BINS_MOST);
        printf("  %-22s  %5.3f  %7.2f%%  %9.2f%%  %6.2f%%  %11.2f%%  %5.1f%%  %6.4f  %6.4f\n",
               names[fit], t, 100 * r.accuracy, 100 * r.confidence, 100 * r.ece,
               100 * r20.ece, 100 * r.mce, r.nll, r.brier);
    }
    if (!ok) model_fail("jem eval", &s->m);
    free(f);
    return ok;
}

/* Computes the curve of a reliability diagram; returns its number of points. */
static int reliability_curve(const reliability_bin *bin, int bins, float *x, float *y) {
    int n = 0;
    for (int k = 0; k < bins; k++) {
        if (bin[k].count < FEW) continue;
        x[n] = (float)bin[k].confidence;
        y[n++] = (float)bin[k].accuracy;
    }
    return n;
}

/* Draws the diagram of all rows, and the histograms of the models without a temperature. */
static int calibration_draw(uses *const both[2], int models, const reliability_bin *bin) {
    static float x[RELIABLE_MOST + 1][BINS_MOST], y[RELIABLE_MOST + 1][BINS_MOST];
    static float bx[2][2 * BINS_MOST + 2], by[2][2 * BINS_MOST + 2];
    const int bins = both[0]->u->bins;
    curve curves[RELIABLE_MOST + 1], bars[2];
    panel panels[2];
    double most = 0;
    x[RELIABLE_MOST][0] = y[RELIABLE_MOST][0] = 0;
    x[RELIABLE_MOST][1] = y[RELIABLE_MOST][1] = 1;
    const curve ideal = { "", 0xbbbbbb, x[RELIABLE_MOST], y[RELIABLE_MOST], 2, 1.5f };
    curves[0] = ideal;
    for (int r = 0; r < 2 * models; r++) {
        const reliability_bin *of_row = bin + r * BINS_MOST;
        const char *name = r % 2 ? "T fitted" : both[r / 2]->name;
        const int n = reliability_curve(of_row, bins, x[r], y[r]);
        const curve c = { name, uses_colours[r], x[r], y[r], n, 2 };
        double heights[BINS_MOST];
        curves[r + 1] = c;
        for (int k = 0; k < bins; k++) {
            heights[k] = log10(1 + (double)of_row[k].count);
            most = fmax(most, heights[k]);
        }
        if (r % 2) continue;
        outline(heights, bins, 0, 1, bx[r / 2], by[r / 2]);
        const curve bar = { "", uses_colours[r], bx[r / 2], by[r / 2], 2 * bins + 2, 1.5f };
        bars[r / 2] = bar;
    }
    panels[0] = uses_panel("accuracy, bins of 10 or more", "highest p(y|x)", 60, 400, curves,
                           2 * models + 1);
    panels[0].y_lo = 0;
    panels[0].y_hi = 1.001f;
    panels[1] = uses_panel("log10(1 + images in the bin)", "highest p(y|x)", 490, 620, bars,
                           models);
    panels[1].y_lo = 0;
    panels[1].y_hi = (float)most * 1.05f;
    return uses_draw(both[0]->u->out, panels, 2);
}

/* Saves the model with the temperature that fits all images. Returns the exit status. */
static int save_tempered(uses *s) {
    enum { FEW_TO_FIT = 200 };
    char origin[NAME_SIZE + 80];
    const float t = jem_fit_temperature(s->m.net, s->x, s->labels, s->n);
    snprintf(origin, sizeof origin, "%d %s of %s", s->n, uses_images(s), s->test.name);
    if (!(t > 0) || jem_net_set_meta(s->m.net, "run.tempered", origin) != JEM_OK ||
        jem_save(s->m.net, s->u->save) != JEM_OK) {
        model_fail("jem eval", &s->m);
        return 1;
    }
    printf("%s: the model, whose answers divide its logits by a temperature of %.3g, fitted to %s: "
           "measure it on others\n", s->u->save, (double)t, origin);
    if (s->n < FEW_TO_FIT)
        fprintf(stderr, "jem eval: %d images are few for a temperature\n", s->n);
    return 0;
}

static int eval_calibration(uses *s, uses *beside) {
    static reliability_bin bin[RELIABLE_MOST * BINS_MOST];
    const int models = beside ? 2 : 1;
    uses *both[2];
    both[0] = s;
    both[1] = beside;
    if (s->n < 4) {
        fprintf(stderr, "jem eval: calibration needs at least 4 images, not %d of %s (--n N for "
                "more, --split all for all, --dataset FOLDER for others)\n", s->n,
                s->u->e.dataset);
        return 2;
    }
    printf("%d bins, %d %s; each half has the T that was fitted to the other half\n", s->u->bins,
           s->n, uses_images(s));
    printf("  %-22s  %5s  %8s  %10s  %7s  %12s  %6s  %6s  %6s\n", "", "T", "accuracy", "confidence",
           "ECE", "ECE, 20 bins", "MCE", "NLL", "Brier");
    for (int b = 0; b < models; b++) {
        if (!calibration_of(both[b], bin, 2 * b)) return 1;
    }
    const int status = calibration_draw(both, models, bin);
    return status || !*s->u->save ? status : save_tempered(s);
}

/* ---- ood ------------------------------------------------------------------------------------- */

enum { OOD_SCORES = JEM_OOD_FAMILIAR + 1, OOD_OTHERS = 8, OOD_BINS = 60, OOD_SHOWN = 5 };
enum { MADE_MIXED, MADE_SHUFFLED, MADE_TURNED, MADE_INVERTED, MADE_NOISE, MADE_GREY, MADE_BLACK,
       MADE_WHITE, MADE_DIMMED, OOD_MADE };
static const char *const ood_scores[OOD_SCORES] = {
    "log p(x)", "max p(y|x)", "mass", "rise", "move", "usual", "slopes", "features", "image",
    "shades", "familiar"
};
static const char *const ood_words[OOD_SCORES] = {   /* of --scores */
    "logp", "maxp", "mass", "rise", "move", "usual", "slopes", "features", "image", "shades",
    "familiar"
};
static const char *const ood_made[OOD_MADE] = {
    "two images mixed", "pixels shuffled", "upside down", "inverted", "uniform noise", "one grey",
    "black", "white", "dimmed to a quarter"
};

/* Makes n images unlike those of the model, from its own. Returns 0 without memory. */
static int make_outliers(const uses *s, int kind, int n, float *out) {
    const ptrdiff_t size = image_size(s->m.net);
    const ptrdiff_t pixels = (ptrdiff_t)s->m.net->height * s->m.net->width;
    jem_rng rng = jem_rng_seed((uint64_t)s->u->seed + 100 * (uint64_t)kind);
    int *order = (int *)malloc((size_t)pixels * sizeof *order);
    if (!order) return 0;
    for (ptrdiff_t k = 0; k < pixels; k++) order[k] = (int)k;
    for (int i = 0; i < n; i++) {
        const float *x = s->x + i * size;
        const float *next = s->x + (i + 1) % n * size;
        float *y = out + i * size;
        if (kind == MADE_SHUFFLED) shuffle(order, (int)pixels, &rng);
        for (ptrdiff_t k = 0; k < size; k++) {
            const ptrdiff_t plane = k / pixels * pixels;
            const ptrdiff_t at = k % pixels;
            switch (kind) {
            case MADE_MIXED: y[k] = (x[k] + next[k]) / 2; break;
            case MADE_SHUFFLED: y[k] = x[plane + order[at]]; break;
            case MADE_TURNED: y[k] = x[plane + pixels - 1 - at]; break;
            case MADE_INVERTED: y[k] = -x[k]; break;
            case MADE_NOISE: y[k] = 2 * jem_rng_uniform(&rng) - 1; break;
            case MADE_GREY: y[k] = 2 * ((float)i + .5f) / (float)n - 1; break;
            case MADE_BLACK: y[k] = -1; break;
            case MADE_WHITE: y[k] = 1; break;
            default: y[k] = (x[k] + 1) / 4 - 1; break;     /* MADE_DIMMED */
            }
        }
    }
    free(order);
    return 1;
}

/* Checks that an option's list has `least` to `most` names; prints the reason if not. */
static int names_fit(const char *of, const char *list, int least, int most) {
    char name[OPTION_TEXT_SIZE];
    const char *at = list;
    int n = 0;
    while (next_name(&at, LIST_MARKS, name, sizeof name)) n++;
    if (n >= least && n <= most) return 1;
    fprintf(stderr, "jem eval: --%s %.60s: %d entries; %d to %d are allowed\n", of, list, n, least,
            most);
    return 0;
}

/* Test images of another data set, or all pictures of a folder, in the model's format. */
typedef struct other_set { char name[OPTION_TEXT_SIZE]; int n; float *x; } other_set;

/* Loads up to --n images, of all classes; returns 0 and prints the reason if there are no such
   images; -1: no memory. */
static int other_open(other_set *to, const uses *s, const char *left_out) {
    data_set d;
    data_desc desc;
    char error[512];
    if (data_is_table(to->name)) {
        fprintf(stderr, "jem eval: %s%s is a table; the model has images\n", left_out, to->name);
        return 0;
    }
    memset(&desc, 0, sizeof desc);
    limit_data(&desc, s->u->e.max_file, s->u->e.max_picture);
    describe_look(&s->m, &desc);
    desc.root = s->u->e.data;
    desc.channels = s->m.net->channels;
    desc.resize = DATA_FIT;
    desc.height = s->m.net->height;
    desc.width = s->m.net->width;
    desc.whole = 1;                                /* training has not learned these pictures */
    desc.unsorted = 1;
    name_unreadable(&desc, "jem eval");
    if (!data_load(&d, to->name, "test", &desc, error, sizeof error)) {
        fprintf(stderr, "jem eval: %s%s\n", left_out, error);
        return 0;
    }
    note_unread(stderr, "jem eval: ", to->name, &d);
    mix_classes(&d);
    to->n = smaller(d.n, s->u->e.n);
    to->x = uses_floats(to->n * image_size(s->m.net));
    if (to->x) data_floats(&d, NULL, to->n, to->x);
    else uses_no_memory();
    data_free(&d);
    if (!to->x) return -1;
    return 1;
}

const char *drawn_from(const char *set) { return strcmp(set, "digits") ? set : "mnist"; }

/* Opens all data sets of --other except the model's own; returns their number; -1: one cannot be
   opened. The default: those available that do not contain the model's own images. */
static int others_open(other_set others[OOD_OTHERS], const uses *s) {
    const int asked = option_given(s->o, "other");
    const char *list = s->u->other;
    int n = 0;
    while (n < OOD_OTHERS &&
           next_name(&list, LIST_MARKS, others[n].name, sizeof others[n].name)) {
        if (is_same_file(others[n].name, s->u->e.dataset)) {
            if (asked) fprintf(stderr, "jem eval: --other %s: left out, it is the model's own\n",
                               others[n].name);
            continue;
        }
        if (!asked && !strcmp(others[n].name, drawn_from(s->test.name))) continue;
        const int opened = other_open(&others[n], s, asked ? "--other: " : "left out: ");
        if (opened < 0 || (asked && !opened)) return -1;
        n += opened;
    }
    return n;
}

typedef struct ood_table {
    const uses *s;
    int room;                                      /* most images of a row */
    float *usual, *other;                          /* [OOD_SCORES][room] */
    double sum[2][OOD_SCORES];                     /* of the measure; fraction flagged */
    int rows;
    int features, shades;                          /* 0: the network, the calibration has none */
    char names[OOD_SHOWN][32];         /* shown by the histograms, the first one for usual images */
    double *heights;                               /* [2][OOD_SHOWN][OOD_BINS] */
    double lo[2], hi[2];
    int shown;
    double seconds;                                /* of all rows */
} ood_table;

static const int ood_drawn[2] = { JEM_OOD_LOGP, JEM_OOD_FAMILIAR };
enum { OOD_FLAGGED = 3, OOD_BOTH };                /* of --measure */

/* Returns 1 if a list has a name. */
static int list_has(const char *list, const char *name) {
    char item[OPTION_TEXT_SIZE];
    while (next_name(&list, LIST_MARKS, item, sizeof item)) {
        if (!strcmp(item, name)) return 1;
    }
    return 0;
}

/* Returns 1 for the scores of the table: those of --scores, by default all. */
static int ood_shown(const uses *s, int score) {
    return !*s->u->scores || list_has(s->u->scores, ood_words[score]);
}

/* Checks the names of --scores; prints the reason if one is unknown. */
static int ood_scores_known(const uses *s) {
    const char *list = s->u->scores;
    char item[OPTION_TEXT_SIZE];
    while (next_name(&list, LIST_MARKS, item, sizeof item)) {
        int known = 0;
        for (int k = 0; k < OOD_SCORES; k++) known += !strcmp(item, ood_words[k]);
        if (known) continue;
        fprintf(stderr, "jem eval: --scores %.60s: no such score; there are", item);
        for (int k = 0; k < OOD_SCORES; k++) fprintf(stderr, " %s", ood_words[k]);
        fprintf(stderr, "\n");
        return 0;
    }
    return 1;
}

/* Returns 0 for scores that need what the network or an older calibration lacks, or that are
   neither in the table nor in the picture. */
static int ood_has(const ood_table *t, int score) {
    if (!t->features && score == JEM_OOD_FEATURES) return 0;
    if (!t->shades && score == JEM_OOD_SHADES) return 0;
    return ood_shown(t->s, score) || score == ood_drawn[0] || score == ood_drawn[1];
}

static void ood_cell(const ood_table *t, double value, double flagged) {
    if (t->s->u->measure == OOD_BOTH) printf("  %5.3f %3.0f%%", value, 100 * flagged);
    else if (t->s->u->measure == OOD_FLAGGED) printf("  %9.1f%%", 100 * flagged);
    else printf("  %10.3f", value);
}

/* Computes the histograms of both drawn scores; values beyond the range are in the end bars. */
static void ood_count(ood_table *t, const char *name, const float *scores, int n) {
    if (t->shown == OOD_SHOWN) return;
    snprintf(t->names[t->shown], sizeof t->names[0], "%s", name);
    for (int k = 0; k < 2; k++) {
        double *h = t->heights + (k * OOD_SHOWN + t->shown) * OOD_BINS;
        for (int i = 0; i < n; i++) {
            const double v = (double)scores[ood_drawn[k] * t->room + i];
            h[measure_bin(v, t->lo[k], t->hi[k], OOD_BINS)] += 1.0 / n;
        }
    }
    t->shown++;
}

enum { OOD_NAME = 22 };                            /* width of the first column */

/* Prints the name of a row; of a long path, its end. */
static void ood_name(const char *name) {
    char clear[OPTION_TEXT_SIZE];
    snprintf(clear, sizeof clear, "%s", name);
    harmless(clear, 0);
    const size_t n = strlen(clear);
    if (n <= OOD_NAME) {
        printf("  %-*s", OOD_NAME, clear);
        return;
    }
    const char *end = clear + n - (OOD_NAME - 2);
    while ((*end & 0xc0) == 0x80) end++;           /* not within a character of UTF-8 */
    printf("  ..%-*s", OOD_NAME - 2, end);
}

/* Prints the first line of the table. */
static void ood_header(const uses *s) {
    printf("  %-*s", OOD_NAME, "");
    for (int k = 0; k < OOD_SCORES; k++) {
        if (ood_shown(s, k)) printf("  %10s", ood_scores[k]);
    }
    printf("  %6s  %7s\n", "images", "seconds");
}

/* Prints the means of all rows, and their seconds together. */
static void ood_means(const ood_table *t, const char *name) {
    ood_name(name);
    for (int k = 0; k < OOD_SCORES; k++) {
        if (!ood_shown(t->s, k)) continue;
        if (ood_has(t, k)) ood_cell(t, t->sum[0][k] / t->rows, t->sum[1][k] / t->rows);
        else printf("  %10s", "-");
    }
    printf("  %6s  %7.1f\n", "-", t->seconds);
}

static int ood_row(ood_table *t, const char *name, const float *x, int n) {
    const uses *s = t->s;
    const double began = now();
    ood_name(name);
    for (int k = 0; k < OOD_SCORES; k++) {
        detection d;
        if (!ood_has(t, k)) {
            if (ood_shown(s, k)) printf("  %10s", "-");
            continue;
        }
        const ptrdiff_t at = (ptrdiff_t)k * t->room;
        if (jem_ood_score(s->m.net, (jem_ood)k, NULL, x, n, t->other + at) != JEM_OK ||
            !measure_detection(t->usual + at, s->n, t->other + at, n, &d)) {
            printf("\n");
            return model_fail("jem eval", &s->m);
        }
        double v = d.auroc;
        if (s->u->measure == 1) v = d.aupr;
        if (s->u->measure == 2) v = d.fpr95;
        if (ood_shown(s, k)) ood_cell(t, v, d.flagged);
        t->sum[0][k] += v;
        t->sum[1][k] += d.flagged;
    }
    const double took = now() - began;
    t->seconds += took;
    printf("  %6d  %7.1f\n", n, took);
    fflush(stdout);
    t->rows++;
    return 1;
}

/* Orders floats, the lowest first, for qsort. */
static int compare_floats(const void *a, const void *b) {
    const float x = *(const float *)a;
    const float y = *(const float *)b;
    return (x > y) - (x < y);
}

/* Sets the range of the drawn scores: that of the usual images, and twice as much below it; above
   it half as much for log p(x), and up to 0 for familiarity. */
static void ood_range(ood_table *t) {
    for (int k = 0; k < 2; k++) {
        const float *v = t->usual + (ptrdiff_t)ood_drawn[k] * t->room;
        float *sorted = uses_floats(t->s->n);
        if (!sorted) {
            t->lo[k] = -1;
            t->hi[k] = 1;
            continue;
        }
        memcpy(sorted, v, (size_t)t->s->n * sizeof *v);
        qsort(sorted, (size_t)t->s->n, sizeof *sorted, compare_floats);
        const double lo = (double)sorted[t->s->n / 50];
        const double hi = (double)sorted[t->s->n - 1];
        t->lo[k] = lo - 2 * (hi - lo) - 1e-6;
        t->hi[k] = 0;
        if (k == 0) t->hi[k] = hi + .5 * (hi - lo) + 1e-6;
        free(sorted);
    }
}

static int ood_draw(const ood_table *t) {
    static const char *const titles[2] = { "log p(x)",
        "familiar: log p(x) and its gradients, logits, features and the image, combined" };
    static float x[2][OOD_SHOWN][2 * OOD_BINS + 2], y[2][OOD_SHOWN][2 * OOD_BINS + 2];
    curve curves[2][OOD_SHOWN];
    panel panels[2];
    for (int k = 0; k < 2; k++) {
        for (int i = 0; i < t->shown; i++) {
            outline(t->heights + (k * OOD_SHOWN + i) * OOD_BINS, OOD_BINS, t->lo[k], t->hi[k],
                    x[k][i], y[k][i]);
            const curve c = { k ? "" : t->names[i], uses_colours[i], x[k][i], y[k][i],
                              2 * OOD_BINS + 2, i ? 1.6f : 3 };
            curves[k][i] = c;
        }
        const float down = 380.0f * (float)k;
        panels[k] = uses_panel(titles[k], "fraction of images; values beyond them are in the end "
                               "bars", 60 + down, 320 + down, curves[k], t->shown);
        panels[k].y_lo = 0;
        panels[k].y_hi = .4f;
    }
    return uses_draw(t->s->u->out, panels, 2);
}

/* Measures both models (`two`: there is another) on the same images; its row has its name. */
static int ood_pair(ood_table t[2], int two, const char *name, const float *x, int n) {
    return ood_row(t, name, x, n) && (!two || ood_row(t + 1, t[1].s->name, x, n));
}

static int ood_rows(ood_table t[2], int two, const other_set *others, int n) {
    const uses *s = t->s;
    float *x = uses_floats(s->n * image_size(s->m.net));
    int ok = x != NULL;
    for (int i = 0; ok && i < n; i++) {
        const other_set *o = &others[i];
        ok = ood_pair(t, two, o->name, o->x, o->n);
        if (ok && t->shown < 3) ood_count(t, o->name, t->other, o->n);
    }
    for (int kind = 0; ok && kind < OOD_MADE; kind++) {
        ok = make_outliers(s, kind, s->n, x);
        if (!ok) uses_no_memory();
        ok = ok && ood_pair(t, two, ood_made[kind], x, s->n);
        if (ok && (kind == MADE_MIXED || kind == MADE_TURNED || kind == MADE_BLACK))
            ood_count(t, ood_made[kind], t->other, s->n);
    }
    free(x);
    return ok;
}

/* Returns 1 if the network defines features. */
static int uses_features(const uses *s) {
    jem_net *net = s->m.net;
    const jem_mark mark = jem_begin(net->ctx);
    jem_tensor *x = jem_zeros(net->ctx, 1, net->channels, net->height, net->width);
    const int named = jem_forward(net, x, 0) && net->features;
    jem_end(net->ctx, mark);
    return named;
}

static int ood_open(ood_table *t, const uses *s, int room) {
    memset(t, 0, sizeof *t);
    t->s = s;
    t->room = room;
    t->usual = uses_floats((ptrdiff_t)OOD_SCORES * room);
    t->other = uses_floats((ptrdiff_t)OOD_SCORES * room);
    t->heights = (double *)calloc((size_t)(2 * OOD_SHOWN * OOD_BINS), sizeof(double));
    if (!t->usual || !t->other || !t->heights) {
        uses_no_memory();
        return 0;
    }
    t->features = uses_features(s);
    t->shades = jem_ood_score(s->m.net, JEM_OOD_SHADES, NULL, s->x, 1, t->usual) == JEM_OK;
    jem_clear_error(s->m.net->ctx);
    for (int k = 0; k < OOD_SCORES; k++)
        if (ood_has(t, k) && jem_ood_score(s->m.net, (jem_ood)k, NULL, s->x, s->n,
                                           t->usual + (ptrdiff_t)k * room) != JEM_OK)
            return model_fail("jem eval", &s->m);
    return 1;
}

/* Counts the answers of a label (-1: all) and those whose familiarity is below .01, .05 and .1;
   converts these to percentages. */
static int count_alarms(const jem_answer *a, const int *labels, int n, int label,
                        double alarms[3]) {
    static const float at[3] = { 0.01f, 0.05f, 0.1f };
    int all = 0;
    memset(alarms, 0, 3 * sizeof *alarms);
    for (int i = 0; i < n; i++) {
        if (label >= 0 && labels[i] != label) continue;
        for (int k = 0; k < 3; k++) alarms[k] += a[i].familiarity < at[k];
        all++;
    }
    for (int k = 0; k < 3; k++) alarms[k] *= 100 / fmax(all, 1);
    return all;
}

/* Prints the cost of an answer, and false alarms, overall and in each class. */
static int ood_alarms(const uses *s) {
    enum { CLASSES_SHOWN = 20 };
    const jem_net *net = s->m.net;
    char number[NAME_SIZE];
    double alarms[3];
    char name[4 * NAME_SIZE];
    jem_answer *a = (jem_answer *)malloc((size_t)s->n * sizeof *a);
    float *f = uses_floats((ptrdiff_t)s->n * net->classes);
    const clock_t start = clock();
    int ok = a && f && jem_logits(s->m.net, s->x, s->n, f) == JEM_OK;
    const clock_t plain = clock();
    ok = ok && jem_classify(s->m.net, s->x, s->n, a) == JEM_OK;
    const clock_t end = clock();
    if (ok) {
        printf("processor time: %.2f ms an answer, %.1f times that of its logits\n",
               1e3 * (double)(end - plain) / CLOCKS_PER_SEC / s->n,
               (double)(end - plain) / fmax((double)(plain - start), 1));
        count_alarms(a, s->labels, s->n, -1, alarms);
        printf("of %d %s, familiarity is below .01 for %.1f%%, .05 for %.1f%%, .1 for %.1f%%\n",
               s->n, uses_images(s), alarms[0], alarms[1], alarms[2]);
    }
    if (ok && net->classes <= CLASSES_SHOWN) {
        printf("  %-14s  %6s  %6s  %6s  %6s\n", "of class", "images", ".01", ".05", ".1");
        for (int label = 0; label < net->classes; label++) {
            const int all = count_alarms(a, s->labels, s->n, label, alarms);
            printf("  %s  %6d  %5.1f%%  %5.1f%%  %5.1f%%\n",
                   fitted(class_name(net, label, number), 14, name), all, alarms[0], alarms[1],
                   alarms[2]);
        }
    }
    free(a);
    free(f);
    return ok || model_fail("jem eval", &s->m);
}

/* Calibrates with images that training held out: a model without calibration, or to be saved, or
   with a given number of images or gradients. */
static int uses_calibrate(uses *s) {
    int n = 5000;
    if (s->u->calibrate > 0) n = s->u->calibrate;
    else if (jem_net_meta(s->m.net, "jem.statistics") && !*s->u->save && !s->u->gradients) return 1;
    const char *what = "";
    float *x = held_out_images(s, &n, &what);
    if (x && n == 1) fprintf(stderr, "jem eval: %s is not calibrated, which needs two images or "
                             "more\n", s->name);
    int gradients = s->u->gradients - 1;           /* auto is JEM_AUTO */
    if (gradients < 0 && jem_calibrated(s->m.net) >= 0) gradients = jem_calibrated(s->m.net);
    int ok = x && n > 1 && (jem_calibrate(s->m.net, x, n, gradients) == JEM_OK ||
                            model_fail("jem eval", &s->m));
    char count[16];
    snprintf(count, sizeof count, "%d", n);
    ok = ok && jem_net_set_meta(s->m.net, "run.calibrated", count) == JEM_OK;
    if (ok) printf("calibrated with %d %s\n", n, what);
    free(x);
    return ok;
}

static int eval_ood(uses *s, uses *beside) {
    static const char *const measures[5] = {
        "AUROC", "AUPR", "FPR at 95% TPR", "percentage flagged at 1% false alarms",
        "AUROC and the percentage flagged at 1% false alarms"
    };
    ood_table t[2];
    other_set others[OOD_OTHERS];
    const int two = beside != NULL;
    if (!names_fit("other", s->u->other, 0, OOD_OTHERS)) return 2;
    if (!ood_scores_known(s)) return 2;
    memset(t, 0, sizeof t);
    memset(others, 0, sizeof others);
    const int n = uses_alike(s, beside) ? others_open(others, s) : -1;
    int room = s->n;
    for (int i = 0; i < n; i++) if (others[i].n > room) room = others[i].n;
    int ok = n >= 0 && uses_calibrate(s) && (!two || uses_calibrate(beside)) &&
             ood_open(t, s, room) && (!two || ood_open(t + 1, beside, room));
    if (ok) {
        printf("%s: %s of %d %s of %s against\n", s->name, measures[s->u->measure], s->n,
               uses_images(s), s->test.name);
        ood_header(s);
        ood_range(t);
        ood_count(t, uses_images(s), t->usual, s->n);
        ok = ood_rows(t, two, others, n);
    }
    for (int i = 0; ok && i <= two; i++) ood_means(t + i, i ? beside->name : "mean");
    ok = ok && ood_alarms(s) && (!two || ood_alarms(beside)) && !ood_draw(t);
    if (ok && *s->u->save) {
        ok = jem_save(s->m.net, s->u->save) == JEM_OK || model_fail("jem eval", &s->m);
        if (ok) printf("%s: the model, calibrated\n", s->u->save);
    }
    for (int i = 0; i < 2; i++) {
        free(t[i].usual);
        free(t[i].other);
        free(t[i].heights);
    }
    for (int i = 0; i < OOD_OTHERS; i++) free(others[i].x);
    return !ok;
}

/* ---- attack ---------------------------------------------------------------------------------- */

enum { EPS_MOST = 12, SMALLEST = 10 };

/* The target of an attack: the network, alone or after it has refined its images. */
typedef struct attacked { uses *s; jem_attack_desc how; refined refined; } attacked;

static int attacked_begin(attacked *a, uses *s) {
    a->s = s;
    a->how = jem_attack_desc_default();
    a->how.l2 = s->u->norm;
    a->how.steps = s->u->steps;
    a->how.restarts = s->u->restarts;
    if (!s->u->refine) return 1;
    if (!memory_has(refined_bytes(s->m.net, s->u->refine, s->u->chains)) ||
        !refined_create(&a->refined, s->m.net, uses_walk(s, s->u->refine), s->u->chains,
                        s->u->through == 1, (uint64_t)s->u->seed + 5)) {
        uses_no_memory();
        return 0;
    }
    a->how.classify = refined_classify;
    a->how.user = &a->refined;
    a->how.all_steps = 1;                          /* its answers are random, */
    a->how.momentum = 1;                           /* and so are their gradients */
    return 1;
}
static void attacked_end(attacked *a) { if (a->how.classify) refined_free(&a->refined); }

/* Finds the images with another label: fooled[n]. A classifier with random numbers is asked again,
   because its answer may change. */
static int attacked_again(attacked *a, const float *x, const int *labels, int n, int *fooled) {
    const int k = a->s->m.net->classes;
    float *f = uses_floats((ptrdiff_t)n * k);
    int ok = f != NULL;
    if (!ok) jem_fail(a->s->m.ctx, JEM_NO_MEMORY, "out of memory for the images");
    if (!a->how.classify) {
        free(f);
        return ok;
    }
    ok = ok && refined_classify(&a->refined, x, labels, n, f, NULL) == JEM_OK;
    for (int i = 0; ok && i < n; i++) fooled[i] = robust_best(f + i * k, k) != labels[i];
    free(f);
    return ok;
}

/* An attack on all images with one eps after the other. */
typedef struct attack_run {
    uses *s;
    attacked a;
    float *x, *found;                              /* images that are left; perturbed ones */
    int *labels, *which;                           /* of x; their numbers among all images */
    int *fooled;                                   /* for found */
    int left;
    jem_rng rng;
    float *shown, *shown_eps;                      /* see attack_curve */
} attack_run;

static int attack_begin(attack_run *r, uses *s, float *shown, float *shown_eps) {
    const ptrdiff_t all = s->n * image_size(s->m.net);
    memset(r, 0, sizeof *r);
    r->s = s;
    r->left = s->n;
    r->rng = jem_rng_seed((uint64_t)s->u->seed);
    r->shown = shown;
    r->shown_eps = shown_eps;
    r->x = uses_floats(all);
    r->found = uses_floats(all);
    r->labels = (int *)malloc((size_t)s->n * sizeof *r->labels);
    r->fooled = (int *)calloc((size_t)s->n, sizeof *r->fooled);
    r->which = (int *)malloc((size_t)s->n * sizeof *r->which);
    if (!r->x || !r->found || !r->labels || !r->fooled || !r->which) {
        uses_no_memory();
        return 0;
    }
    for (int i = 0; i < s->n; i++) {
        r->which[i] = i;
        r->labels[i] = s->labels[i];
    }
    memcpy(r->x, s->x, (size_t)all * sizeof *r->x);
    return attacked_begin(&r->a, s);
}
static void attack_end(attack_run *r) {
    attacked_end(&r->a);
    free(r->x);
    free(r->found);
    free(r->labels);
    free(r->fooled);
    free(r->which);
}

/* Attacks all images with a single step; right: the part still classified correctly. */
static int attack_once(attack_run *r, float eps, float *right) {
    const uses *s = r->s;
    jem_attack_desc d = r->a.how;
    int count = 0;
    d.eps = 2 * eps;                               /* pixels are in [-1,1] */
    d.steps = 1;
    d.random_start = 0;
    d.restarts = 1;
    if (jem_attack(s->m.net, s->x, s->labels, s->n, &d, NULL, r->found, r->fooled) != JEM_OK ||
        !attacked_again(&r->a, r->found, s->labels, s->n, r->fooled)) return 0;
    for (int i = 0; i < s->n; i++) count += !r->fooled[i];
    *right = (float)count / (float)s->n;
    return 1;
}

/* Attacks the images that are left, and removes those that are found. */
static int attack_left(attack_run *r, float eps) {
    const ptrdiff_t size = image_size(r->s->m.net);
    const size_t bytes = (size_t)size * sizeof *r->x;
    jem_attack_desc d = r->a.how;
    int kept = 0;
    d.eps = 2 * eps;
    if (jem_attack(r->s->m.net, r->x, r->labels, r->left, &d, &r->rng, r->found,
                   r->fooled) != JEM_OK ||
        !attacked_again(&r->a, r->found, r->labels, r->left, r->fooled)) return 0;
    for (int i = 0; i < r->left; i++) {
        const int number = r->which[i];
        if (r->fooled[i]) {
            if (!r->shown || number >= SMALLEST) continue;
            memcpy(r->shown + number * size, r->found + i * size, bytes);
            r->shown_eps[number] = eps;
            continue;
        }
        memmove(r->x + kept * size, r->x + i * size, bytes);
        r->which[kept] = number;
        r->labels[kept++] = r->labels[i];
    }
    r->left = kept;
    return 1;
}

/* Attacks, at each eps, the images on which no smaller eps fooled the model. right[k]: part still
   classified correctly; fgsm: after a single step. shown (may be NULL): perturbed versions of the
   first SMALLEST images, at the smallest eps that fooled the model; shown_eps: that eps, < 0 if
   there was none. */
static int attack_curve(uses *s, const float *eps, int count, float *right, float *fgsm,
                        float *shown, float *shown_eps) {
    attack_run r;
    int ok = attack_begin(&r, s, shown, shown_eps);
    for (int i = 0; shown && i < SMALLEST && i < s->n; i++) shown_eps[i] = -1;
    for (int k = 0; ok && k < count; k++) {
        ok = attack_once(&r, eps[k], &fgsm[k]) && attack_left(&r, eps[k]);
        right[k] = (float)r.left / (float)s->n;
    }
    if (!ok && !jem_ok(s->m.ctx)) model_fail("jem eval", &s->m);
    attack_end(&r);
    return ok;
}

/* The results of `jem eval MODEL attack`. */
typedef struct attack_results {
    uses *both[2];
    int models, n;                                 /* 1 or 2; values of eps */
    float eps[EPS_MOST];
    char eps_text[EPS_MOST][OPTION_TEXT_SIZE];
    float right[2][EPS_MOST], fgsm[2][EPS_MOST];   /* of each model */
    float *shown[2], shown_eps[2][SMALLEST];       /* see attack_curve */
} attack_results;

/* Draws rows: images; perturbed versions at the smallest eps of the list that fooled the model;
   their difference, as grey. The same for the other model, if its images have the same shape. */
static int attack_pictures(const attack_results *t) {
    const uses *s = t->both[0];
    const uses *beside = t->both[1];
    const ptrdiff_t size = image_size(s->m.net);
    const int columns = smaller(s->n, SMALLEST);
    const int rows = beside && uses_one_shape(s, beside) ? 5 : 3;
    char name[4 * NAME_SIZE];
    float *grid = uses_floats(rows * columns * size);
    if (!grid) {
        uses_no_memory();
        return 0;
    }
    memcpy(grid, s->x, (size_t)(columns * size) * sizeof *grid);
    for (int b = 0; b < rows / 2; b++)
        for (int i = 0; i < columns; i++) {
            const float *from = s->x + i * size;
            const float *to = from;
            float *moved = grid + ((1 + 2 * b) * columns + i) * size;
            float *difference = grid + ((2 + 2 * b) * columns + i) * size;
            if (t->shown_eps[b][i] >= 0) to = t->shown[b] + i * size;
            for (ptrdiff_t k = 0; k < size; k++) {
                moved[k] = to[k];
                difference[k] = to[k] - from[k];
            }
        }
    const int ok = picture_grid(s->u->smallest, grid, rows * columns, columns, s->m.net->channels,
                                s->m.net->height, s->m.net->width, 3);
    if (ok) {
        printf("%s: images; perturbed at the smallest eps that fooled the model, and the "
               "difference%s\n", s->u->smallest, rows == 5 ? "; the same for the other model" : "");
        if (beside && rows == 3)
            printf("%s has images of another shape: it is not in the picture\n", beside->name);
        for (int b = 0; b < t->models; b++) {
            printf("  %s", fitted(t->both[b]->name, 22, name));
            for (int i = 0; i < columns; i++)
                if (t->shown_eps[b][i] < 0) printf("        -");
                else printf("  %7.3g", (double)t->shown_eps[b][i]);
            printf("\n");
        }
    }
    free(grid);
    return ok;
}

/* Measures, without gradients, the distance of the nearest image with another label. */
static int attack_decision(uses *s) {
    static const double shares[3] = { .25, .5, .75 };
    const ptrdiff_t size = image_size(s->m.net);
    float *found = uses_floats(s->n * size);
    float *far = uses_floats(s->n);
    attacked a;
    memset(&a, 0, sizeof a);
    int ok = found && far;
    if (!ok) uses_no_memory();
    ok = ok && attacked_begin(&a, s);
    int n = -1;
    if (ok) {
        n = robust_decision(s->m.net, &a.how, s->x, s->labels, s->n, s->u->queries,
                            (uint64_t)s->u->seed, found, far);
        if (n < 0) model_fail("jem eval", &s->m);
    }
    if (n >= 0) {
        qsort(far, (size_t)n, sizeof *far, compare_floats);
        printf("%s, labels only, %d queries per image, on %d of %d (classified correctly, with "
               "another image to start from); L2 distance of the attack, for pixels in [0,1]:",
               s->name, s->u->queries, n, s->n);
        for (int k = 0; k < 3 && n; k++)
            printf(" %.3g (%g%%)", (double)far[(int)(shares[k] * n)] / 2, 100 * shares[k]);
        printf("\n");
    }
    attacked_end(&a);
    free(found);
    free(far);
    return n >= 0;
}

/* Returns the usual eps: smaller for colour photographs, because invisible changes of them fool
   most networks. */
static const char *usual_eps(const uses *s) {
    static const char *const lists[2][2] = {       /* [colour][L2] */
        { "0,.025,.05,.1,.15,.2,.3", "0,.25,.5,1,1.5,2,3" },
        { "0,1/255,2/255,4/255,8/255", "0,.125,.25,.5,1" }
    };
    return lists[s->m.net->channels > 1][s->u->norm];
}

/* Reads a number, or a fraction a/b; returns -1 if the word is neither. */
static float read_eps(const char *word) {
    char *end, *last;
    const float above = strtof(word, &end);
    if (end == word) return -1;
    if (!*end) return above;
    if (*end != '/') return -1;
    const float below = strtof(end + 1, &last);
    if (last == end + 1 || *last || !(below > 0)) return -1;
    return above / below;
}

/* Reads the values of eps, and keeps fractions as they are written; prints the reason if it
   cannot. */
static int attack_read(attack_results *t, const char *list) {
    char word[OPTION_TEXT_SIZE];
    if (!names_fit("eps", list, 1, EPS_MOST)) return 0;
    while (t->n < EPS_MOST && next_name(&list, LIST_MARKS, word, sizeof word)) {
        const float eps = read_eps(word);
        char *text = t->eps_text[t->n];
        if (!(eps >= 0 && eps < 1e6f) || (t->n && !(eps > t->eps[t->n - 1]))) {
            fprintf(stderr, "jem eval: --eps %.60s: must be increasing numbers\n", word);
            return 0;
        }
        if (strchr(word, '/')) snprintf(text, OPTION_TEXT_SIZE, "%s", word);
        else snprintf(text, OPTION_TEXT_SIZE, "%g", (double)eps);
        t->eps[t->n++] = eps;
    }
    return 1;
}

/* Attacks each model. */
static int attack_models(attack_results *t) {
    const int draws_smallest = *t->both[0]->u->smallest != 0;
    for (int b = 0; b < t->models; b++) {
        uses *s = t->both[b];
        if (draws_smallest) {
            t->shown[b] = uses_floats(SMALLEST * image_size(s->m.net));
            if (!t->shown[b]) {
                uses_no_memory();
                return 0;
            }
        }
        if (!attack_curve(s, t->eps, t->n, t->right[b], t->fgsm[b], t->shown[b], t->shown_eps[b]))
            return 0;
    }
    return 1;
}

static void attack_print(const attack_results *t) {
    const uses *s = t->both[0];
    const uses_options *u = s->u;
    printf("accuracy under attack, %s, %d images; FGSM: 1 step; PGD: %d steps, %d start%s\n",
           u->norm ? "L2" : "L-infinity", s->n, u->steps, u->restarts, u->restarts == 1 ? "" : "s");
    if (u->norm)
        printf("eps: most that the root of the sum of squared changes may be, for pixels in "
               "[0,1]\n");
    else printf("eps: most that a pixel may change, for pixels in [0,1]\n");
    if (u->refine) {
        const char *gradients = "past the steps";
        if (u->through == 1) gradients = "through the steps, mean over the chains";
        printf("images are refined first: %d SGLD steps of %d chains; gradients %s\n", u->refine,
               u->chains, gradients);
    }
    printf("  %-7s", "eps");
    for (int b = 0; b < t->models; b++)
        printf("  %16.16s, FGSM  %16.16s, PGD", t->both[b]->name, t->both[b]->name);
    printf("\n");
    for (int k = 0; k < t->n; k++) {
        printf("  %-7s", t->eps_text[k]);
        for (int b = 0; b < t->models; b++)
            printf("  %21.1f%%  %20.1f%%", 100 * (double)t->fgsm[b][k],
                   100 * (double)t->right[b][k]);
        printf("\n");
    }
}

static int attack_draw(const attack_results *t) {
    static const unsigned pale[2] = { 0xa5c1e6, 0xe9b49f };
    const uses *s = t->both[0];
    char title[160], of[80];
    curve curves[4];
    for (int b = 0; b < t->models; b++) {
        const curve pgd = { t->both[b]->name, uses_colours[b], t->eps, t->right[b], t->n, 2 };
        const curve fgsm = { "FGSM", pale[b], t->eps, t->fgsm[b], t->n, 5 };
        curves[2 * b] = fgsm;                      /* wider, to be seen below an equal one */
        curves[2 * b + 1] = pgd;
    }
    snprintf(title, sizeof title, "accuracy of %d images", s->n);
    snprintf(of, sizeof of, "eps, %s, pixels in [0,1]; PGD: %d step%s",
             s->u->norm ? "L2" : "L-infinity", s->u->steps, s->u->steps == 1 ? "" : "s");
    panel q = uses_panel(title, of, 60, 400, curves, 2 * t->models);
    q.y_lo = 0;
    q.y_hi = 1.001f;
    return !uses_draw(s->u->out, &q, 1);
}

static int eval_attack(uses *s, uses *beside) {
    static attack_results t;
    memset(&t, 0, sizeof t);
    t.both[0] = s;
    t.both[1] = beside;
    t.models = beside ? 2 : 1;
    if (!attack_read(&t, *s->u->eps ? s->u->eps : usual_eps(s))) return 2;
    int ok = attack_models(&t);
    if (ok) {
        attack_print(&t);
        ok = attack_draw(&t);
    }
    if (ok && *s->u->smallest) ok = attack_pictures(&t);
    for (int b = 0; ok && s->u->queries && b < t.models; b++) ok = attack_decision(t.both[b]);
    free(t.shown[0]);
    free(t.shown[1]);
    return !ok;
}

/* ---- impute ---------------------------------------------------------------------------------- */

enum { IMPUTE_SHOWN = 12, IMPUTE_ROWS = 5, IMPUTE_DRAWS = 4 };

enum { HIDE_HALF = 0, HIDE_BLOCK, HIDE_RANDOM };     /* of --hide */

/* Fills in known[n]: 1 where a pixel is kept, 0 where it is hidden, equal in all channels. */
static void make_mask(const uses *s, float *known) {
    const int h = s->m.net->height;
    const int w = s->m.net->width;
    const int c = s->m.net->channels;
    jem_rng rng = jem_rng_seed((uint64_t)s->u->seed + 7);
    for (int i = 0; i < s->n; i++) {
        const int top = jem_rng_below(&rng, h / 2 + 1);
        const int left = jem_rng_below(&rng, w / 2 + 1);
        for (int y = 0; y < h; y++)
            for (int k = 0; k < w; k++) {
                const float u = jem_rng_uniform(&rng);
                int hidden = y >= h / 2;           /* HIDE_HALF */
                if (s->u->hide == HIDE_BLOCK)
                    hidden = y >= top && y < top + h / 2 && k >= left && k < left + w / 2;
                if (s->u->hide == HIDE_RANDOM) hidden = u < s->u->share;
                for (int p = 0; p < c; p++)
                    known[(((ptrdiff_t)i * c + p) * h + y) * w + k] = (float)!hidden;
            }
    }
}

/* Prints the root mean square error of the hidden pixels, in units of their range, and the fraction
   classified correctly. */
static int impute_row(const uses *s, const char *name, const float *filled, const float *known) {
    const ptrdiff_t all = s->n * image_size(s->m.net);
    double sum = 0;
    double hidden = 0;
    for (ptrdiff_t i = 0; i < all; i++)
        if (known[i] == 0) {
            const double d = fmin(fmax((double)filled[i], -1), 1) - (double)s->x[i];
            sum += d * d / 4;
            hidden++;
        }
    const float right = jem_accuracy(s->m.net, filled, s->labels, s->n);
    if (right < 0) return model_fail("jem eval", &s->m);
    printf("  %-38s  %6.4f  %9.1f%%\n", name, sqrt(sum / fmax(hidden, 1)), 100 * (double)right);
    return 1;
}

static int impute_once(const uses *s, const float *known, jem_rng *rng, float *filled) {
    jem_net *net = s->m.net;
    const jem_sgld_desc walk = uses_walk(s, s->u->steps);
    jem_impute_desc d = jem_net_impute_desc(net);
    d.walk.steps = walk.steps;
    d.walk.step_size = walk.step_size;
    d.walk.noise_std = walk.noise_std;
    if (d.denoise.steps > 0) {
        d.denoise.steps = s->u->noise_steps;
        d.denoise.fraction = s->u->noise_step;
        d.denoise.beta = s->u->noise_beta;
    }
    for (int i = 0; i < s->n && jem_ok(s->m.ctx); i += SAMPLE_AT_ONCE) {
        const int n = smaller(s->n - i, SAMPLE_AT_ONCE);
        const ptrdiff_t at = i * image_size(net);
        const jem_mark mark = jem_begin(s->m.ctx);
        jem_tensor *t = jem_input(s->m.ctx, s->x + at, n, net->channels, net->height, net->width);
        jem_impute(s->m.ctx, jem_logp, net, t, known + at, &d, rng);
        jem_read(t, filled + at);
        jem_end(s->m.ctx, mark);
    }
    return jem_ok(s->m.ctx) || model_fail("jem eval", &s->m);
}

/* Images with hidden pixels, and the ways of filling them. */
typedef struct imputing {
    uses *s, *beside;
    ptrdiff_t size, all;                           /* length of an image, and of all images */
    int shown;
    float *known, *filled, *mean;                  /* [all] */
    float *grid;                                   /* [IMPUTE_ROWS][shown][size] */
    float *held;                                   /* other images, at most IMPUTE_HELD */
    double *pixel;                                 /* [size]: their mean */
    const char *from;                              /* what they are */
} imputing;

enum { IMPUTE_HELD = 2000 };

static int impute_create(imputing *p, uses *s, uses *beside) {
    memset(p, 0, sizeof *p);
    p->s = s;
    p->beside = beside;
    p->size = image_size(s->m.net);
    p->all = s->n * p->size;
    p->shown = smaller(s->n, IMPUTE_SHOWN);
    p->known = uses_floats(p->all);
    p->filled = uses_floats(p->all);
    p->mean = uses_floats(p->all);
    p->grid = uses_floats(IMPUTE_ROWS * p->shown * p->size);
    p->pixel = (double *)calloc((size_t)p->size, sizeof *p->pixel);
    if (p->known && p->filled && p->mean && p->grid && p->pixel) return 1;
    uses_no_memory();
    return 0;
}
static void impute_free(imputing *p) {
    free(p->known);
    free(p->filled);
    free(p->mean);
    free(p->grid);
    free(p->held);
    free(p->pixel);
}

/* Copies the first images to a row of the picture. */
static void impute_show(imputing *p, int row, const float *x) {
    const ptrdiff_t n = p->shown * p->size;
    memcpy(p->grid + row * n, x, (size_t)n * sizeof *x);
}

/* Hides pixels, and fills them with grey, then with the mean of other images. */
static int impute_plainly(imputing *p) {
    static const char *const hides[3] = { "the lower half", "a block", "pixels at random" };
    const uses *s = p->s;
    char name[96];
    int n = IMPUTE_HELD;
    p->held = held_out_images(s, &n, &p->from);
    if (!p->held || n <= 0) return 0;
    make_mask(s, p->known);
    for (ptrdiff_t i = 0; i < n * p->size; i++) p->pixel[i % p->size] += (double)p->held[i] / n;
    for (ptrdiff_t i = 0; i < p->all; i++) p->filled[i] = p->known[i] != 0 ? s->x[i] : 0;
    printf("%s, %d %s without %s; error: rms of the hidden pixels in [0,1]\n"
           "  %-38s  %6s  %10s\n", s->name, s->n, uses_images(s), hides[s->u->hide], "", "error",
           "recognised");
    impute_show(p, 0, s->x);
    impute_show(p, 1, p->filled);
    if (!impute_row(s, "grey", p->filled, p->known)) return 0;
    for (ptrdiff_t i = 0; i < p->all; i++)
        if (p->known[i] == 0) p->filled[i] = (float)p->pixel[i % p->size];
    impute_show(p, 2, p->filled);
    snprintf(name, sizeof name, "mean of %s", p->from);
    return impute_row(s, name, p->filled, p->known);
}

/* Fills the pixels with samples, then with their mean; and with a sample of the other model, whose
   images the first model classifies. */
static int impute_samples(imputing *p) {
    const uses *s = p->s;
    jem_rng rng = jem_rng_seed((uint64_t)s->u->seed);
    char name[64];
    memset(p->mean, 0, (size_t)p->all * sizeof *p->mean);
    for (int draw = 0; draw < IMPUTE_DRAWS; draw++) {
        if (!impute_once(s, p->known, &rng, p->filled)) return 0;
        for (ptrdiff_t i = 0; i < p->all; i++) p->mean[i] += p->filled[i] / IMPUTE_DRAWS;
        if (draw < 2) impute_show(p, 3 + draw, p->filled);
        if (draw == 0 && !impute_row(s, "one sample", p->filled, p->known)) return 0;
    }
    if (!impute_row(s, "mean of 4 samples", p->mean, p->known)) return 0;
    if (!p->beside) return 1;
    snprintf(name, sizeof name, "one sample of %.40s", p->beside->name);
    return impute_once(p->beside, p->known, &rng, p->filled) &&
           impute_row(s, name, p->filled, p->known);
}

static int eval_impute(uses *s, uses *beside) {
    const jem_net *net = s->m.net;
    imputing p;
    int ok = impute_create(&p, s, beside);
    ok = ok && uses_alike(s, beside) && impute_plainly(&p) && impute_samples(&p);
    ok = ok && picture_grid(s->u->out, p.grid, IMPUTE_ROWS * p.shown, p.shown, net->channels,
                            net->height, net->width, 2);
    if (ok) printf("%s: images, their known pixels, filled with the mean, two samples\n",
                   s->u->out);
    impute_free(&p);
    return !ok;
}

/* ---- the command ----------------------------------------------------------------------------- */

#define USES_AT(field) offsetof(uses_options, field)
#define USES_COMMON(count, out_file) \
    { "dataset", OPTION_TEXT, OPTION_NOW, USES_AT(e.dataset), "NAME", NO_PRESETS(""), 0, 0, \
      "as in jem train (default: that of the model)" }, \
    { "data", OPTION_TEXT, OPTION_NOW, USES_AT(e.data), "DIR", NO_PRESETS("data"), 0, 0, \
      "the folder that tools/get-data filled" }, \
    { "split", OPTION_CHOICE, OPTION_NOW, USES_AT(e.split), "test|train|all", NO_PRESETS("test"), \
      0, 0, "part of the data set; all: for pictures that training did not have" }, \
    { "n", OPTION_INT, OPTION_NOW, USES_AT(e.n), "N", NO_PRESETS(count), 1, 1e9, \
      "number of test images, and of samples or changed images" }, \
    { "out", OPTION_TEXT, OPTION_NOW, USES_AT(out), "FILE.png", NO_PRESETS(out_file), 0, 0, \
      "the picture to draw" }, \
    { "seed", OPTION_INT, OPTION_NOW, USES_AT(seed), "N", NO_PRESETS("1"), 0, 2147483647, \
      "seed for all random numbers" }, \
    COMPUTE_OPTIONS(eval_options, "fast"), \
    LIMIT_OPTIONS(eval_options, "0")               /* e is the first of uses_options */
#define USES_BESIDE \
    { "beside", OPTION_TEXT, OPTION_NOW, USES_AT(beside), "MODEL", NO_PRESETS(""), 0, 0, \
      "another model to compare with" }

static const option calibration_table[] = {
    USES_COMMON("10000", "calibration.png"), USES_BESIDE,
    { "bins", OPTION_INT, OPTION_NOW, USES_AT(bins), "N", NO_PRESETS("15"), 1, BINS_MOST,
      "bins of the reliability diagram" },
    { "save", OPTION_TEXT, OPTION_NOW, USES_AT(save), "FILE", NO_PRESETS(""), 0, 0,
      "fit the temperature to all of these images (test images, without --split and --dataset), "
      "and save the model with it" }
};
static const option ood_table_options[] = {
    USES_COMMON("1000", "ood.png"), USES_BESIDE,
    { "other", OPTION_TEXT, OPTION_NOW, USES_AT(other), "NAMES",
      NO_PRESETS("mnist,fashion-mnist,cifar10"), 0, 0,
      "other data sets, or folders (also without classes; all of their pictures, up to --n); 8 at "
      "most, separated by commas, without blanks; in addition to synthetic images" },
    { "measure", OPTION_CHOICE, OPTION_NOW, USES_AT(measure),
      "auroc|aupr|fpr95|flagged|both", NO_PRESETS("auroc"), 0, 0,
      "contents of the table (both: AUROC, and percentage flagged at 1% false alarms)" },
    { "scores", OPTION_TEXT, OPTION_NOW, USES_AT(scores), "NAMES", NO_PRESETS(""), 0, 0,
      "columns of the table: logp,maxp,mass,rise,move,usual,slopes,features,image,shades,familiar "
      "(default: all; rise and move take most of the time)" },
    { "calibrate", OPTION_INT, OPTION_NOW, USES_AT(calibrate), "N", NO_PRESETS("0"), 0, 1e6,
      "recalibrate with N images (0: 5000 images, if the model is not calibrated, or with "
      "--gradients or --save)" },
    { "gradients", OPTION_CHOICE, OPTION_NOW, USES_AT(gradients), "auto|0|1|2|3",
      NO_PRESETS("auto"), 0, 0, "gradients per answer for recalibration (auto: unchanged)" },
    { "save", OPTION_TEXT, OPTION_NOW, USES_AT(save), "FILE", NO_PRESETS(""), 0, 0,
      "calibrate with images that training held out, and save the model" }
};
static const option attack_table[] = {
    USES_COMMON("500", "attack.png"), USES_BESIDE,
    { "norm", OPTION_CHOICE, OPTION_NOW, USES_AT(norm), "linf|l2", NO_PRESETS("linf"), 0, 0,
      "the norm that eps limits" },
    { "eps", OPTION_TEXT, OPTION_NOW, USES_AT(eps), "LIST", NO_PRESETS(""), 0, 0,
      "increasing numbers or fractions a/b, 12 at most, for pixels in [0,1] (default: to .3 or, "
      "L2, 3; colour: 8/255 or 1)" },
    { "steps", OPTION_INT, OPTION_NOW, USES_AT(steps), "N", NO_PRESETS("40"), 1, 1e6,
      "steps of PGD" },
    { "restarts", OPTION_INT, OPTION_NOW, USES_AT(restarts), "N", NO_PRESETS("1"), 1, 1000,
      "random starts" },
    { "refine", OPTION_INT, OPTION_NOW, USES_AT(refine), "N", NO_PRESETS("0"), 0, 1000,
      "SGLD steps of the classifier before its answer" },
    { "chains", OPTION_INT, OPTION_NOW, USES_AT(chains), "N", NO_PRESETS("5"), 1, 100,
      "with --refine: chains per image, whose p(y|x) are averaged" },
    { "gradient", OPTION_CHOICE, OPTION_NOW, USES_AT(through), "straight|through",
      NO_PRESETS("through"), 0, 0, "with --refine: gradients past those steps, or through them" },
    { "queries", OPTION_INT, OPTION_NOW, USES_AT(queries), "N", NO_PRESETS("0"), 0, 1e6,
      "also attack with labels only, in N queries (0: off)" },
    { "smallest", OPTION_TEXT, OPTION_NOW, USES_AT(smallest), "FILE.png", NO_PRESETS(""), 0, 0,
      "a picture of the smallest perturbations found" }
};
static const option impute_table[] = {
    USES_COMMON("200", "impute.png"), USES_BESIDE,
    { "hide", OPTION_CHOICE, OPTION_NOW, USES_AT(hide), "half|block|random", NO_PRESETS("half"), 0,
      0, "pixels to hide" },
    { "share", OPTION_FLOAT, OPTION_NOW, USES_AT(share), "X", NO_PRESETS(".8"), 0, 1,
      "random: fraction of the pixels to hide" },
    { "noise-steps", OPTION_INT, OPTION_NOW, USES_AT(noise_steps), "N", NO_PRESETS("300"), 1, 1e6,
      "steps from noise, for a model that learned a score" },
    { "noise-step", OPTION_FLOAT, OPTION_NOW, USES_AT(noise_step), "X", NO_PRESETS(".8"), 0, 1,
      "fraction of the noise that each step removes" },
    { "noise-beta", OPTION_FLOAT, OPTION_NOW, USES_AT(noise_beta), "X", NO_PRESETS(".019"), 0, 1,
      "1: a step adds no noise again; near 0: almost all" },
    { "steps", OPTION_INT, OPTION_NOW, USES_AT(steps), "N", NO_PRESETS("300"), 0, 1e6,
      "steps of SGLD after them" }
};
static const option noise_table[] = { USES_COMMON("500", "noise.png"), USES_BESIDE };
static const option samples_table[] = {
    USES_COMMON("10000", "nearest.png"), USES_BESIDE,
    { "judge", OPTION_TEXT, OPTION_NOW, USES_AT(other), "FILE", NO_PRESETS(""), 0, 0,
      "made by jem judge (default: examples/models/judge-DATASET.safetensors)" },
    { "fresh-steps", OPTION_INT, OPTION_NOW, USES_AT(fresh_steps), "N", NO_PRESETS("-1"), -1, 1e6,
      "noise-blind steps first, after score matching (-1: the model's, usually 300)" },
    { "fraction", OPTION_FLOAT, OPTION_NOW, USES_AT(fraction), "X", NO_PRESETS("0"), 0, 1,
      "of the noise that such a step removes (0: the model's, usually .05)" },
    { "walk-steps", OPTION_INT, OPTION_NOW, USES_AT(walk_steps), "N", NO_PRESETS("-1"), -1, 1e6,
      "SGLD steps after that (-1: 300)" },
    { "last-sigma", OPTION_FLOAT, OPTION_NOW, USES_AT(last_sigma), "X", NO_PRESETS("0"), 0, 1e6,
      "noise that the last step removes, at most (0: the model's, usually twice --noise-lo)" },
    { "guidance", OPTION_FLOAT, OPTION_NOW, USES_AT(guidance), "X", NO_PRESETS("0"), 0, 1e6,
      "weight of log p(y|x) in samples of a class (0: the model's)" },
    { "keep", OPTION_TEXT, OPTION_NOW, USES_AT(keep), "FILE.safetensors", NO_PRESETS(""), 0, 0,
      "keep the samples so far in a file, where the same command goes on after an interruption" }
};

static const struct use {
    const char *name, *help;
    const option *table;
    size_t bytes;
    int (*run)(uses *s, uses *beside);
} uses_known[] = {
    { "calibration", "reliability of its probabilities", calibration_table,
      sizeof calibration_table, eval_calibration },
    { "ood", "detection of unfamiliar images", ood_table_options, sizeof ood_table_options,
      eval_ood },
    { "attack", "robustness to attacks", attack_table, sizeof attack_table, eval_attack },
    { "impute", "imputation of missing pixels", impute_table, sizeof impute_table, eval_impute },
    { "noise", "log p(x) and its score over the noise of the images", noise_table,
      sizeof noise_table, eval_noise },
    { "samples", "quality of its samples", samples_table, sizeof samples_table, eval_samples }
};

/* Opens a model and its test images. If `halves` is 1, it shuffles all images: the two halves of
   MNIST's test set have different writers, employees and students. */
static int uses_open(uses *s, options *o, const uses_options *u, const char *path, int halves) {
    s->o = o;
    s->u = u;
    if (!model_open(&s->m, "jem eval", path, u->e.threads, u->e.precision, u->e.max_memory))
        return 1;
    model_name(path, s->name);
    if (!model_has("jem eval", &s->m, 0)) return 2;
    const int status = data_for(&s->m, o, &u->e, &s->test);
    if (status) return status;
    note_learned(&s->m, &u->e, &s->test);
    if (halves) shuffle_images(&s->test, u->seed);
    else mix_classes(&s->test);
    s->n = smaller(u->e.n, s->test.n);
    s->labels = s->test.labels;
    s->x = uses_floats(s->n * image_size(s->m.net));
    if (!s->x) return uses_no_memory();
    data_floats(&s->test, NULL, s->n, s->x);
    return 0;
}

/* Checks that no output replaces a run, and no picture a model. */
static int may_write_all(const struct use *what, const uses_options *u, const char *path) {
    const int draws_smallest = what->run == eval_attack;       /* only its table has --smallest */
    const int reads_judge = what->run == eval_samples && *u->other;
    const char *const out[] = { u->save, u->keep, u->out, draws_smallest ? u->smallest : "" };
    if (!outputs_differ("jem eval", out, 4)) return 0;
    for (int i = 0; i < 4; i++) {
        if (!*out[i]) continue;
        if (reads_judge && is_same_file(out[i], u->other)) {
            fprintf(stderr, "jem eval: %s is the judge, which would be replaced\n", out[i]);
            return 0;
        }
        int (*may)(const char *, const char *, const char *) = i < 2 ? may_write : may_write_other;
        if (!may("jem eval", path, out[i])) return 0;
        if (*u->beside && !may("jem eval", u->beside, out[i])) return 0;
    }
    return 1;
}

/* Refuses options that nothing uses with the others. */
static int eval_options_used(const struct use *what, const options *o, const uses_options *u) {
    static const char *const of_refining[] = { "chains", "gradient", NULL };
    static const char *const of_random[] = { "share", NULL };
    static const char *const of_steps[] = { "fraction", NULL };
    if (what->run == eval_attack)
        return options_used(o, u->refine > 0, "is for --refine N", of_refining);
    if (what->run == eval_impute)
        return options_used(o, u->hide == HIDE_RANDOM, "is for --hide random", of_random);
    return options_used(o, u->fresh_steps != 0, "is for --fresh-steps above 0", of_steps);
}

/* Checks that two models have the same test images: those of a folder depend on options of the
   training, and may be training images of the other model. */
static int same_test_images(const uses *a, const uses *b) {
    const data_set *s = &a->test;
    const data_set *t = &b->test;
    const size_t size = (size_t)s->n * (size_t)s->c * (size_t)s->h * (size_t)s->w;
    int same = s->n == t->n && !memcmp(s->labels, t->labels, (size_t)s->n * sizeof *s->labels);
    if (same && uses_one_shape(a, b)) same = !memcmp(s->pixels, t->pixels, size);
    if (!same)
        fprintf(stderr, "jem eval: %s and %s have different test images of %s (trained "
                "with a different --test-split, --seed, --crop, --pad or --background, say)\n",
                a->name, b->name, a->u->e.dataset);
    return same;
}

/* Refuses options of denoising if no model has learned a score. */
static int eval_models_use(const struct use *what, const options *o, const uses *s, int two) {
    static const char *const of_samples[] = { "fresh-steps", "fraction", "last-sigma", NULL };
    static const char *const of_impute[] = { "noise-steps", "noise-step", "noise-beta", NULL };
    const int score = s[0].m.net->noise_hi > 0 || (two && s[1].m.net->noise_hi > 0);
    const char *const reason = "is for models that learned a score";
    if (what->run == eval_samples) return options_used(o, score, reason, of_samples);
    if (what->run == eval_impute) return options_used(o, score, reason, of_impute);
    return 1;
}

/* Checks that --out and --smallest have names of pictures. */
static int are_picture_names(const struct use *what, const uses_options *u) {
    const int draws_smallest = what->run == eval_attack;
    return is_picture_name("jem eval", "out", u->out) &&
           (!draws_smallest || is_picture_name("jem eval", "smallest", u->smallest));
}

/* Checks, before the measurements, that --save, --out and --smallest can be created. */
static int can_create_all(const struct use *what, const uses_options *u) {
    const int draws_smallest = what->run == eval_attack && *u->smallest;
    return (!*u->save || can_create("jem eval", u->save)) &&
           (!*u->out || can_create("jem eval", u->out)) &&
           (!draws_smallest || can_create("jem eval", u->smallest));
}

/* Refuses measurements of answers that are always right: those of a model with one class. */
static int has_classes(const struct use *what, const uses *s) {
    const int needs_two = what->run == eval_calibration || what->run == eval_attack;
    if (!needs_two || s->m.net->classes > 1) return 1;
    fprintf(stderr, "jem eval: %s has one class, so it is always right: nothing to measure\n",
            s->name);
    return 0;
}

static int run_use(const struct use *what, options *o, const uses_options *u, const char *path) {
    static uses s[2];
    memset(s, 0, sizeof s);
    if (!eval_options_used(what, o, u) || !may_write_all(what, u, path)) return 2;
    const int halves = what->run == eval_calibration;
    int status = uses_open(&s[0], o, u, path, halves);
    const int two = !status && *u->beside;
    option_mark(o, "dataset");                     /* the same for both */
    option_mark(o, "data");
    if (two) status = uses_open(&s[1], o, u, u->beside, halves);
    if (two && !status && !same_test_images(&s[0], &s[1])) status = 2;
    if (!status && !eval_models_use(what, o, s, two)) status = 2;
    if (!status && !has_classes(what, &s[0])) status = 2;
    if (!status && !are_picture_names(what, u)) status = 2;
    if (!status && !can_create_all(what, u)) status = 1;
    if (!status) status = what->run(&s[0], two ? &s[1] : NULL);
    for (int i = 0; i <= two; i++) {
        free(s[i].x);
        data_free(&s[i].test);
        if (s[i].m.path) model_close(&s[i].m);
    }
    return status;
}

/* Returns 1 if the next word can be the value of this option. */
static int awaits_value(const char *word) {
    return *word == '-' && !strchr(word, '=') && strcmp(word, "--") != 0 && !is_help(word);
}

int uses_command(int argc, char **argv) {
    static options table;
    static uses_options values;
    char **words;
    char usage[128];
    int n = 0;
    const struct use *what = NULL;
    for (size_t i = 0; i < sizeof uses_known / sizeof *uses_known; i++) {
        int words_only = 0;                        /* after -- there are no options */
        for (int k = 2; k < argc; k++) {
            const int value = k > 2 && !words_only && awaits_value(argv[k - 1]);
            if (!strcmp(argv[k], uses_known[i].name) && !value) what = &uses_known[i];
            if (!strcmp(argv[k], "--")) words_only = 1;
        }
    }
    if (!what) return eval_command(argc, argv);
    options *o = options_begin(&table, "jem eval", what->table, what->bytes, &values);
    snprintf(usage, sizeof usage, "jem eval MODEL %s [OPTIONS]: %s", what->name, what->help);
    const int read = read_options(o, argc, argv, &words, &n, 2, 2, usage);
    if (read >= 0) return read;
    return run_use(what, o, &values, words[!strcmp(words[0], what->name)]);
}
