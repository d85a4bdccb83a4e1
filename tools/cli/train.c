/* The training run. */
#include "tools/cli/system.h"

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "tools/cli/memory.h"
#include "tools/cli/notes.h"
#include "tools/cli/stop.h"
#include "tools/cli/train.h"
#include "tools/cli/train_options.h"
#include "tools/cli/use.h"
#include "tools/support/chart.h"
#include "tools/support/crc32.h"
#include "tools/support/new_file.h"
#include "tools/support/options.h"
#include "tools/support/table.h"
#include "tools/support/tricks.h"

/* ---- the run --------------------------------------------------------------------------------- */

run_team team = { 0, 1, NULL, NULL };

/* A shuffled list of images, drawn in epochs. */
typedef struct deck { int *cards, n, batch, epoch; const int *of; uint64_t stream; } deck;

typedef struct run {
    options *table;
    train_options *o;
    jem_ctx *ctx;
    jem_net *net;
    jem_trainer *tr;
    data_set data, test;
    int *order, n_train, *labelled, n_labelled;    /* order: validation first, then training */
    deck all, few;
    float *x, *x_few;
    int *y, *y_few;
    float *starts, *moved;                         /* images where new chains start; one image */
    int *start_labels, n_starts;
    int total, per_epoch, update, status;          /* status: the exit status */
    /* Sums of ce, accuracy, f(x+), f(x-), |gradient|, loss since the last row, accuracy of
       best.safetensors on the validation images, running f(x+) - f(x-), rollbacks, updates summed;
       in runs of older versions, factors of the learning rate and of the step of SGLD, and seven
       more numbers of a guard; lowest loss on the validation images, update of best.safetensors
       (below 0: no such file, and no lowest loss); sum of NCE's loss since the last row; lowest
       -log p(y|x) of the validation images, its update (below 0: none): the state for resuming. */
    float state[STATES];
    double seconds, began, saved, shown, pace;  /* seconds: of earlier runs; pace: of each update */
    double pause;                                  /* seconds of the latest validation */
    int paced;                                     /* updates in pace */
    jem_stats last;
    float valid_accuracy, valid_ce, valid_score;   /* valid_score: see score_residual */
    double valid_logp;                             /* mean of log p(x); NaN: not learned by NCE */
    int valid_at;                                  /* update of these four; -1: no update */
    int calibrated_at;                             /* update of the network's calibration */
    int rare_last;                                 /* order_images; older runs: 0 */
    int warned;                                    /* 1: of a wall, see check_wall */
    int bad_pictures;                              /* that cannot be read */
    char uncalibrated[200];                        /* why the last calibration failed, or "" */
    char data_mark[DATA_MARK];
    int chains_at;                                 /* the update at which chains begin */
    int lock;                                      /* of the directory, locked during the run */
    FILE *log;
} run;

double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void say(const run *r, const char *what, const char *text) {
    if (r->shown > 0 && isatty(1)) printf("\n");   /* keeps the line of progress */
    fflush(stdout);
    fprintf(stderr, "jem train: %s%s\n", what, text);
}
/* Prints the error of the context once; stores the exit status. */
static int fail(run *r, int status) {
    char hint[80];
    const jem_status s = jem_error_status(r->ctx);
    if (s != JEM_OK) say(r, jem_error(r->ctx), memory_hint(hint));
    jem_clear_error(r->ctx);
    r->status = status;
    if (!status) r->status = s == JEM_BAD_ARGUMENT ? 2 : 1;
    return 0;
}
static int complain(run *r, int status, const char *what, const char *text) {
    say(r, what, text);
    r->status = status;
    return 0;
}

static int path_in(char *path, const run *r, const char *name) {
    const int n = snprintf(path, 512, "%s/%s", r->o->out, name);
    return n > 0 && n < 512;
}

/* Locks a directory against a second run, where the system can lock files. */
static int lock_folder(run *r) {
    char path[512];
    if (team.rank || !path_in(path, r, ".lock") || system_lock(path, &r->lock)) return 1;
    return complain(r, 1, r->o->out, ": another jem train uses this directory");
}

static int holds(const run *r, const char *name) {
    char path[512];
    struct stat s;
    return path_in(path, r, name) && !stat(path, &s);
}
static int holds_a_run(const run *r) { return holds(r, "last.safetensors"); }

/* Checks that a new run would not overwrite a network. */
static int is_free(run *r) {
    char text[1200], word[DATA_PATH];
    if (team.rank) return 1;
    if (!holds_a_run(r))
        return !holds(r, "best.safetensors") ||
               complain(r, 2, r->o->out, "/best.safetensors already exists, and would be "
                        "replaced: move it away, or take another --out DIR");
    snprintf(text, sizeof text, "/last.safetensors already exists: --resume %s continues it, "
             "--out DIR starts another", data_quoted(r->o->out, word, sizeof word));
    return complain(r, 2, r->o->out, text);
}

/* ---- data ------------------------------------------------------------------------------------ */

/* Returns the seed, which changes after each rollback. */
static uint64_t seed_of(const run *r) {
    return (uint64_t)r->o->seed + (uint64_t)r->state[STATE_RETRIES] * 1000003;
}
static jem_rng stream_of(const run *r, uint64_t stream, uint64_t number) {
    const jem_rng seed = jem_rng_seed(seed_of(r));
    const jem_rng rng = jem_rng_split(&seed, stream);
    return jem_rng_split(&rng, number);
}

int smaller(int a, int b) { return a < b ? a : b; }

void shuffle(int *a, int n, jem_rng *rng) {
    for (int i = n - 1; i > 0; i--) {
        const int k = jem_rng_below(rng, i + 1);
        const int t = a[i];
        a[i] = a[k];
        a[k] = t;
    }
}

/* An image and the hash of its pixels. */
typedef struct keyed_image { uint32_t key; int index; } keyed_image;

static int by_key(const void *a, const void *b) {
    const keyed_image *x = (const keyed_image *)a;
    const keyed_image *y = (const keyed_image *)b;
    if (x->key != y->key) return x->key < y->key ? -1 : 1;
    return x->index - y->index;
}

static int order_by_pixels(const data_set *d, int *order) {
    const size_t size = (size_t)d->c * (size_t)d->h * (size_t)d->w;
    keyed_image *all = (keyed_image *)malloc(((size_t)d->n + 1) * sizeof *all);
    if (!all) return 0;
    for (int i = 0; i < d->n; i++) {
        jem_rng rng = jem_rng_seed(crc32_of(0, d->pixels + (size_t)i * size, size));
        all[i].key = jem_rng_u32(&rng);
        all[i].index = i;
    }
    qsort(all, (size_t)d->n, sizeof *all, by_key);
    for (int i = 0; i < d->n; i++) order[i] = all[i].index;
    free(all);
    return 1;
}

enum { RARE = 5 };                                 /* a class of fewer images has none to spare */
/* Moves the images of rare classes to the end, since validation takes the first ones. */
static int move_rare(const data_set *d, int *order) {
    int most = d->classes;                         /* evaluation numbers labels as the model does */
    for (int i = 0; i < d->n; i++)
        if (d->labels[i] >= most) most = d->labels[i] + 1;
    int *seen = (int *)calloc((size_t)most, sizeof *seen);
    int *rare = (int *)malloc((size_t)d->n * sizeof *rare);
    int common = 0, rares = 0;
    const int ok = seen && rare;
    for (int i = 0; ok && i < d->n; i++) seen[d->labels[i]]++;
    for (int i = 0; ok && i < d->n; i++) {
        if (seen[d->labels[order[i]]] < RARE) rare[rares++] = order[i];
        else order[common++] = order[i];
    }
    for (int i = 0; i < rares; i++) order[common + i] = rare[i];
    free(seen);
    free(rare);
    return ok;
}

int order_images(const data_set *d, int seed, int rare_last, int *order) {
    if (d->by_name) return order_by_pixels(d, order) && (!rare_last || move_rare(d, order));
    jem_rng rng = jem_rng_seed(d->values ? (uint64_t)seed : 1234);
    for (int i = 0; i < d->n; i++) order[i] = i;
    shuffle(order, d->n, &rng);
    return 1;
}

static int deck_create(deck *d, const int *of, int n, int batch, uint64_t stream) {
    d->of = of;
    d->n = n;
    d->batch = smaller(batch, n);
    d->stream = stream;
    d->epoch = -1;
    d->cards = (int *)malloc(((size_t)n + 1) * sizeof *d->cards);
    return d->cards != NULL;
}

/* Returns place i of n places, reflected at the first and the last one. */
static int reflect(int i, int n) {
    if (i < 0) return -i;
    if (i >= n) return 2 * n - 2 - i;
    return i;
}

void move_image(const float *from, float *to, int c, int h, int w, int dy, int dx,
                int mirror) {
    for (int k = 0; k < c; k++, from += h * w)
        for (int i = 0; i < h; i++) {
            const int y = reflect(i + dy, h);
            for (int j = 0; j < w; j++) {
                const int x = reflect((mirror ? w - 1 - j : j) + dx, w);
                *to++ = from[y * w + x];
            }
        }
}

/* Copies an image, mirrored if asked to, and shifted by up to --shift pixels. */
static void move_randomly(const run *r, jem_rng *rng, int mirror, const float *from, float *to) {
    const data_set *s = &r->data;
    const int reach = r->o->shift;
    const int dy = jem_rng_below(rng, 2 * reach + 1) - reach;
    const int dx = jem_rng_below(rng, 2 * reach + 1) - reach;
    move_image(from, to, s->c, s->h, s->w, dy, dx, mirror);
}

/* Returns 1 if the deck mirrors this image in its epoch: in every second one, from the first or the
   second on, so that two epochs show both sides of all images (Jordan 2024). */
static int mirrors(const run *r, const deck *d, int image) {
    if (!r->o->flip) return 0;
    jem_rng coin = stream_of(r, d->stream + 2, (uint64_t)image);
    return (jem_rng_below(&coin, 2) + d->epoch) % 2;
}

/* Hides a square of an image, with its centre at a random pixel, behind the mean of the range
   (DeVries and Taylor 2017). */
static void hide_randomly(const run *r, jem_rng *rng, float *image) {
    const data_set *s = &r->data;
    const int side = r->o->cutout;
    const int top = jem_rng_below(rng, s->h) - side / 2;
    const int left = jem_rng_below(rng, s->w) - side / 2;
    for (int k = 0; k < s->c; k++)
        for (int i = 0; i < side; i++)
            for (int j = 0; j < side; j++) {
                const int y = top + i;
                const int x = left + j;
                if (y < 0 || y >= s->h || x < 0 || x >= s->w) continue;
                image[((ptrdiff_t)k * s->h + y) * s->w + x] = 0;
            }
}

/* Starts or moves a chain; called for each chain. */
static void on_chain(void *user, jem_rng *rng, int visits, int label, float *x) {
    const run *r = (const run *)user;
    const ptrdiff_t size = (ptrdiff_t)r->data.c * r->data.h * r->data.w;
    if (visits && r->o->move_chains > 0 && jem_rng_uniform(rng) < r->o->move_chains) {
        memcpy(r->moved, x, (size_t)size * sizeof *x);
        move_randomly(r, rng, r->o->flip && jem_rng_below(rng, 2), r->moved, x);
    } else if (!visits && r->n_starts) {
        class_gaussian(r->starts, r->start_labels, r->n_starts, size, label, rng, x);
        for (ptrdiff_t k = 0; k < size; k++) x[k] = fmaxf(-1, fminf(x[k], 1));
    }
}

/* Fills in the batch for an update: a function of the seed and the update number alone. */
static void draw_batch(run *r, deck *d, int plain, int hides, float *x, int *y) {
    const data_set *s = &r->data;
    const int per_epoch = d->n / d->batch;
    const int epoch = r->update / per_epoch;
    if (epoch != d->epoch) {
        jem_rng rng = stream_of(r, d->stream, (uint64_t)epoch);
        memcpy(d->cards, d->of, (size_t)d->n * sizeof *d->cards);
        shuffle(d->cards, d->n, &rng);
        d->epoch = epoch;
    }
    const int *which = d->cards + (ptrdiff_t)(r->update % per_epoch) * d->batch;
    const ptrdiff_t size = (ptrdiff_t)s->c * s->h * s->w;
    float *still = x + d->batch * size;            /* room for one more */
    jem_rng rng = stream_of(r, d->stream + 1, (uint64_t)r->update);
    for (int i = 0; i < d->batch; i++) {
        data_floats(s, which + i, 1, plain ? x + i * size : still);
        if (!plain) move_randomly(r, &rng, mirrors(r, d, which[i]), still, x + i * size);
        if (hides) hide_randomly(r, &rng, x + i * size);
        y[i] = s->labels[which[i]];
    }
}

static const char *kind_of_data(const run *r) { return r->data.values ? "rows" : "images"; }

/* Replaces a default above `most`, which does not suit so little data, and reports that. */
static void fit_default(run *r, const char *name, int value, int most, int instead) {
    const int i = option_find(r->table, name);
    char text[16];
    if (r->table->given[i] || *r->o->resume || value <= most) return;
    snprintf(text, sizeof text, "%d", instead);
    printf("%s: few %s: --%s is %s, not %d\n", r->o->dataset, kind_of_data(r), name, text, value);
    option_set(r->table, i, text);
}

/* Collects the first labelled images of each class, as starting points of new chains; returns 0
   without memory. */
static int load_starts(run *r) {
    const data_set *s = &r->data;
    const ptrdiff_t size = (ptrdiff_t)s->c * s->h * s->w;
    const int most = r->o->informative;
    int *seen = (int *)calloc((size_t)s->classes, sizeof *seen);
    int n = 0;
    for (int i = 0; seen && i < r->n_labelled; i++) n += seen[s->labels[r->labelled[i]]]++ < most;
    r->starts = (float *)malloc(((size_t)n * (size_t)size + 1) * sizeof(float));
    r->start_labels = (int *)malloc(((size_t)n + 1) * sizeof(int));
    const int ok = seen && r->starts && r->start_labels;
    if (ok) memset(seen, 0, (size_t)s->classes * sizeof *seen);
    for (int i = 0; ok && i < r->n_labelled; i++) {
        const int y = s->labels[r->labelled[i]];
        if (seen[y]++ >= most) continue;
        data_floats(s, r->labelled + i, 1, r->starts + r->n_starts * size);
        r->start_labels[r->n_starts++] = y;
    }
    free(seen);
    return ok;
}

enum { USUAL_SIZE = 28 * 28 };                     /* numbers in a digit of 28 x 28 */

/* Divides the weight of the preset for an image of 28 x 28 by the relative size of the images. */
static void fit_weight(run *r, const char *name, float weight, double larger) {
    const int i = option_find(r->table, name);
    char text[32];
    if (r->table->given[i]) return;
    snprintf(text, sizeof text, "%.2g", (double)weight / larger);
    printf("%s: an image has %.0f numbers, more than %d: --%s is lowered to %s\n", r->o->dataset,
           larger * USUAL_SIZE, USUAL_SIZE, name, text);
    option_set(r->table, i, text);
}

/* Adapts the weights of losses on log p(x), which are sums over pixels: larger images get smaller
   weights. */
static void fit_weights(run *r) {
    const double larger = (double)r->data.c * r->data.h * r->data.w / USUAL_SIZE;
    if (*r->o->resume || r->o->preset != PRESET_FAST || !needs_folder_recipe(r->o->dataset) ||
        larger <= 1) return;
    fit_weight(r, "score-weight", r->o->w_score, larger);
    fit_weight(r, "p-x-weight", r->o->w_x, larger);
}

/* Compares the count of images or rows that calibrate familiarity with the count that 1% needs. */
static void note_calibration(const run *r) {
    const int n = r->o->n_valid;
    const char *kind = kind_of_data(r);
    if (n < 2)
        printf("%s: no familiarity, because calibration needs at least 2 %s, and has %d (--n-valid "
               "N)\n", r->o->dataset, kind, n);
    note_few_calibrate(stdout, r->o->dataset, n, kind);
}

/* Reports that a column of labels has only one. */
static void note_one_label(const run *r) {
    const data_set *s = &r->data;
    if (s->has_labels && s->classes == 1)
        printf("%s: all rows have the label %s: only p(x) is learned\n", r->o->dataset,
               s->class_names[0]);
}

/* Adapts options to a table: the count of rows for validation, and no cross-entropy with a single
   class. */
static int prepare_table(run *r) {
    enum { LEAST = 20 };
    const data_set *s = &r->data;
    char text[160];
    if (s->n < LEAST) {
        snprintf(text, sizeof text, ": has %d row%s: %d at least are needed", s->n,
                 s->n == 1 ? "" : "s", LEAST);
        return complain(r, 2, r->o->dataset, text);
    }
    if (r->o->n_valid < 0) {
        snprintf(text, sizeof text, "%d", s->n / 5);
        option_set(r->table, option_find(r->table, "n-valid"), text);
    }
    if (!*r->o->resume) {
        note_commas(r->o->dataset, s);
        note_letters(r->o->dataset, s);
        note_clocks(r->o->dataset, s);
        note_values(r->o->dataset, s);
        note_labels(r->o->dataset, s);
        note_one_label(r);
    }
    if (s->classes > 1) return 1;
    if (r->o->w_xy > 0) return complain(r, 2, "--p-x-y-weight needs labels of several classes", "");
    if (r->o->w_nce == 0 && r->o->w_x == 0 && r->o->w_score == 0)
        return complain(r, 2, r->o->dataset, ": has one class: --nce-weight 1 learns p(x)");
    option_set(r->table, option_find(r->table, "p-y-given-x-weight"), "0");
    return 1;
}

/* Makes a run on a table about ten validations long: its epochs are short. */
static void space_validations(run *r) {
    const int i = option_find(r->table, "eval-every");
    const int epochs = r->o->iters ? r->o->iters / r->per_epoch : r->o->epochs;
    const int every = epochs < 10 ? 1 : epochs / 10;
    char text[16];
    snprintf(text, sizeof text, "%d", every);
    if (!*r->o->resume) option_default(r->table, i, text);
}

static void on_bad_picture(void *user, const char *message) {
    run *r = (run *)user;
    r->bad_pictures++;
    if (!team.rank) say(r, "", message);
}

/* Describes the data set that the options name. */
static data_desc describe_data(run *r) {
    const train_options *t = r->o;
    data_desc desc;
    memset(&desc, 0, sizeof desc);
    limit_data(&desc, t->max_file, t->max_picture);
    desc.root = t->data;
    describe_pictures(&t->pictures, t->seed, &desc);
    desc.label = t->label;
    desc.drop = t->drop;
    desc.skip_rows = t->skip_rows;
    desc.bad = on_bad_picture;
    desc.user = r;
    return desc;
}

/* Prints why the data set cannot be loaded; returns 0. */
static int refuse_data(run *r, const char *error) {
    const int has_text = strstr(error, "is not a number") && !strstr(error, "is not a number (");
    const char *hint = "";
    const int is_label = strstr(error, "--label none") != NULL;        /* skips a whole class */
    if (strstr(error, "rows cannot be read") && !is_label) hint = " (--skip-rows leaves them out)";
    else if (strstr(error, "(most) cannot be read") && has_text)
        hint = " (--skip-rows leaves them out, --drop skips columns, --label names that of labels)";
    else if (has_text) hint = " (--drop skips columns, --label names that of labels)";
    else if (*r->o->resume &&
             (strstr(error, "no such folder") || strstr(error, "cannot be opened")))
        hint = " (that path is from the start of the run: --dataset gives its new place)";
    return complain(r, 1, error, hint);
}

void mark_data(const data_set *s, char mark[DATA_MARK]) {
    const size_t n = (size_t)s->n * (size_t)(s->c * s->h * s->w);
    const unsigned long of_x = s->values
        ? crc32_of(0, (const unsigned char *)s->values, n * sizeof *s->values)
        : crc32_of(0, s->pixels, n);
    unsigned long of_y = 0;
    for (int i = 0; i < s->n; i++) {
        const char *name = s->class_names[s->labels[i]];
        const char *rest = name + strspn(name, "0123456789");
        const int is_numbered = s->values && !*rest;           /* as in older runs */
        const int label = is_numbered ? atoi(name) : s->labels[i];
        of_y = crc32_of(of_y, (const unsigned char *)&label, sizeof label);
    }
    snprintf(mark, DATA_MARK, "%d images, checksum %08lx", s->n, of_x ^ of_y);
}

/* Loads the test images, if there are any, in the shape of the training images. Returns 0 if some
   of them are pictures that cannot be read, or have another size or class. */
static int load_test(run *r, data_desc *desc) {
    char error[512];
    desc->height = r->data.h;
    desc->width = r->data.w;
    desc->channels = r->data.c;
    if (!data_load(&r->test, r->o->dataset, "test", desc, error, sizeof error)) {
        if (r->bad_pictures || r->test.unfit) return complain(r, 1, "test images: ", error);
        say(r, "no final test: ", error);
        return 1;
    }
    if (r->test.classes <= r->data.classes) return 1;
    say(r, "no final test: ", "test images have more classes than training images");
    data_free(&r->test);
    return 1;
}

/* Stops a run whose pictures show nothing, unless their background was chosen. */
static int shows_subjects(run *r) {
    const data_set *s = &r->data;
    const int background = r->o->pictures.background;
    char text[200];
    if (2 * (ptrdiff_t)s->blank <= s->n || *r->o->resume) return 1;
    if (option_given(r->table, "background")) return 1;
    snprintf(text, sizeof text, ": %d of %d pictures have transparent pixels, and are nearly one "
             "colour over grey %d: --background %d shows %s ink (--background %d: as they are)",
             s->blank, s->n, background, background < 128 ? 255 : 0,
             background < 128 ? "dark" : "bright", background);
    return complain(r, 2, r->o->dataset, text);
}

/* Reports how pictures were changed, and the options that change them otherwise. */
static void note_pictures(const run *r) {
    const data_set *s = &r->data;
    const char *name = r->o->dataset;
    const int background = r->o->pictures.background;
    if (s->stretched)
        printf("%s: %d of %d pictures are stretched to %d x %d\n", name, s->stretched, s->n, s->w,
               s->h);
    note_grey(name, s);
    if (needs_folder_recipe(name)) note_sizes(name, s);
    if (s->blended)
        printf("%s: %d of %d pictures have transparent pixels, laid over grey %d (--background "
               "N)\n", name, s->blended, s->n, background);
    if (!s->blank) return;
    if (background < 128)
        printf("%s: %d of them are nearly one colour now: --background 255 shows dark ink\n", name,
               s->blank);
    else
        printf("%s: %d of them are nearly one colour now: --background 0 shows bright ink\n", name,
               s->blank);
}

/* Spaces the validations of images, which take seconds: by default, 100 updates or more are between
   two. */
static void space_pictures(run *r) {
    enum { LEAST = 100 };
    const int every = (LEAST + r->per_epoch - 1) / r->per_epoch;
    if (every > r->o->eval_every)
        fit_default(r, "eval-every", r->o->eval_every, 0, every);
}

/* Adapts the defaults of sizes to the number of images, and checks those that were given. */
static int fit_sizes(run *r) {
    const train_options *t = r->o;
    const data_set *s = &r->data;
    char text[160];
    fit_default(r, "n-valid", t->n_valid, s->n / 5, s->n / 10);
    if (t->n_valid >= s->n) {
        snprintf(text, sizeof text, "--n-valid %d of %d %s leaves nothing for training: take a "
                 "smaller number", t->n_valid, s->n, kind_of_data(r));
        return complain(r, 2, text, "");
    }
    if (!*t->resume) note_calibration(r);
    r->n_train = s->n - t->n_valid;
    fit_default(r, "batch-size", t->batch_size, r->n_train, r->n_train);
    r->per_epoch = r->n_train / t->batch_size;
    if (s->values && r->per_epoch > 0) space_validations(r);
    if (!s->values && r->per_epoch > 0) space_pictures(r);
    if (t->shift >= s->h || t->shift >= s->w)
        return complain(r, 2, "--shift must be smaller than the images", "");
    if (t->cutout > s->h || t->cutout > s->w)
        return complain(r, 2, "--cutout must not be larger than the images", "");
    return 1;
}


/* Chooses the images whose labels are used: up to --labels-per-class of each class, other ones for
   each seed; or all. seen[classes], zeroed, receives the number of chosen images of each class. */
static void choose_labelled(run *r, int *seen) {
    const int *train = r->order + r->o->n_valid;
    const int most = r->o->labels_per_class;
    jem_rng rng = jem_rng_seed((uint64_t)r->o->seed);
    const int first = most > 0 ? jem_rng_below(&rng, r->n_train) : 0;
    for (int k = 0; k < r->n_train; k++) {
        const int i = train[(first + k) % r->n_train];
        if (most <= 0 || seen[r->data.labels[i]]++ < most) r->labelled[r->n_labelled++] = i;
    }
}

/* Checks that no class has fewer images than --labels-per-class; seen[classes]: their numbers. */
static int enough_labelled(run *r, const int *seen) {
    const data_set *s = &r->data;
    const int requested = r->o->labels_per_class;
    int least = 0;
    char text[512];
    for (int k = 0; k < s->classes; k++) {
        if (seen[k] < seen[least]) least = k;
    }
    if (requested <= 0 || seen[least] >= requested) return 1;
    snprintf(text, sizeof text, "--labels-per-class %d: class %s has %d %s", requested,
             s->class_names[least], seen[least], kind_of_data(r));
    return complain(r, 2, text, "");
}

/* Reports the number of classes of which validation has no image, and the classes of which it takes
   all. seen[classes]: room for numbers. */
static void note_classes(const run *r, int *seen) {
    const data_set *s = &r->data;
    int unseen = 0;
    char names[LISTED_SIZE];
    if (*r->o->resume || s->values || r->o->n_valid < 1) return;
    memset(seen, 0, (size_t)s->classes * sizeof *seen);
    for (int k = 0; k < r->o->n_valid; k++) seen[s->labels[r->order[k]]]++;
    for (int c = 0; c < s->classes; c++) unseen += !seen[c];
    if (unseen)
        printf("%s: validation has no image of %d of %d classes (%s): accuracy and familiarity are "
               "not measured for them (--n-valid N)\n", r->o->dataset, unseen, s->classes,
               list_unseen(s, seen, names));
    for (int k = r->o->n_valid; k < s->n; k++) seen[s->labels[r->order[k]]] = 0;
    for (int c = 0; c < s->classes; c++)
        if (seen[c])
            printf("%s: class %s has no image for training, because validation takes all (%d): "
                   "add pictures, or use --n-valid 0\n", r->o->dataset, s->class_names[c], seen[c]);
}

/* Divides the images into those for validation and training, and chooses the labelled ones. */
static int split_data(run *r) {
    const data_set *s = &r->data;
    r->order = (int *)malloc((size_t)s->n * sizeof *r->order);
    r->labelled = (int *)malloc((size_t)s->n * sizeof *r->labelled);
    int *seen = (int *)calloc((size_t)s->classes, sizeof *seen);
    int ok = 0;
    if (r->order && r->labelled && seen && order_images(s, r->o->seed, r->rare_last, r->order)) {
        choose_labelled(r, seen);
        ok = enough_labelled(r, seen);
        if (ok) note_classes(r, seen);
    } else complain(r, 1, "out of memory for the data", "");
    free(seen);
    return ok;
}

/* Makes room for the batches, and their decks. */
static int make_batches(run *r) {
    const train_options *t = r->o;
    const data_set *s = &r->data;
    const int batch_x = t->batch_x ? t->batch_x : t->batch_size;
    const int is_larger = batch_x > t->batch_size;
    const int most = is_larger ? batch_x : t->batch_size;
    const ptrdiff_t size = (ptrdiff_t)s->c * s->h * s->w;
    const ptrdiff_t n = most + 1;
    char text[160], hint[80];
    r->moved = (float *)malloc((size_t)size * sizeof(float));
    if (!r->moved || !load_starts(r))
        return complain(r, 1, "out of memory for the data", memory_hint(hint));
    if (most > r->n_train) {
        snprintf(text, sizeof text, "--%s %d is more than the %d training %s: take a smaller one",
                 is_larger ? "p-x-batch" : "batch-size", most, r->n_train, kind_of_data(r));
        return complain(r, 2, text, "");
    }
    r->x = new_floats((double)n * (double)size);
    r->x_few = new_floats((double)n * (double)size);
    r->y = (int *)malloc((size_t)n * sizeof(int));
    r->y_few = (int *)malloc((size_t)n * sizeof(int));
    if (!r->x || !r->x_few || !r->y || !r->y_few ||
        !deck_create(&r->all, r->order + t->n_valid, r->n_train, batch_x, 10) ||
        !deck_create(&r->few, r->labelled, r->n_labelled, t->batch_size, 20))
        return complain(r, 1, "out of memory for the data", memory_hint(hint));
    return 1;
}

/* The pixels of a picture, by a hash (FNV-1a). */
typedef struct fingerprint { uint64_t hash; int label, is_test, index; } fingerprint;

/* Compares the places of two pictures: those for training come first. */
static int by_place(const fingerprint *p, const fingerprint *q) {
    return p->is_test != q->is_test ? p->is_test - q->is_test : p->index - q->index;
}
static int by_hash(const void *a, const void *b) {
    const fingerprint *p = (const fingerprint *)a;
    const fingerprint *q = (const fingerprint *)b;
    if (p->hash != q->hash) return p->hash > q->hash ? 1 : -1;
    return by_place(p, q);
}

/* Appends the fingerprints of a set to the n that there are. Returns the new n. */
static int add_fingerprints(fingerprint *all, int n, const data_set *d, int is_test) {
    const size_t size = (size_t)d->c * (size_t)d->h * (size_t)d->w;
    for (int i = 0; i < d->n; i++) {
        const unsigned char *pixels = d->pixels + (size_t)i * size;
        fingerprint f = { 14695981039346656037u, d->labels[i], is_test, i };
        for (size_t k = 0; k < size; k++) f.hash = (f.hash ^ pixels[k]) * 1099511628211u;
        all[n++] = f;
    }
    return n;
}

/* Returns the path of a picture; "" if it is not of a folder. */
static const char *path_of(const run *r, const fingerprint *f) {
    const data_set *d = f->is_test ? &r->test : &r->data;
    return d->paths ? d->paths[f->index] : "";
}

/* Notes pictures of a folder that are equal to others in the network's size: if they are in two
   classes, a label is wrong; if a test has training pictures, its accuracy is too high. */
static void note_copies(const run *r) {
    int copies = 0;
    int disagree = 0;
    int leaked = 0;
    const fingerprint *pair[2] = { NULL, NULL };   /* the first two that disagree */
    if (team.rank || r->data.values || !needs_folder_recipe(r->o->dataset)) return;
    const size_t room = (size_t)r->data.n + (size_t)r->test.n;
    fingerprint *all = (fingerprint *)malloc(room * sizeof *all);
    if (!all) return;                              /* no more than a note */
    int n = add_fingerprints(all, 0, &r->data, 0);
    if (r->test.n) n = add_fingerprints(all, n, &r->test, 1);
    qsort(all, (size_t)n, sizeof *all, by_hash);
    for (int first = 0, end = 0; first < n; first = end) {
        int tests = 0;
        const fingerprint *differs = NULL;
        for (end = first; end < n && all[end].hash == all[first].hash; end++) {
            tests += all[end].is_test;
            if (!differs && all[end].label != all[first].label) differs = all + end;
        }
        copies += end - first - 1;
        if (differs) disagree += end - first;
        if (differs && (!pair[0] || by_place(all + first, pair[0]) < 0)) {
            pair[0] = all + first;
            pair[1] = differs;
        }
        if (tests < end - first) leaked += tests;
    }
    if (copies) printf("%s: copies of other pictures: %d of %d", r->o->dataset, copies, n);
    if (disagree) printf("; with copies in another class: %d", disagree);
    if (disagree && *path_of(r, pair[0]))
        printf(" (the first: %s and %s)", path_of(r, pair[0]), path_of(r, pair[1]));
    if (leaked) printf("; of the test, with copies among the training pictures: %d", leaked);
    if (copies) printf("\n");
    free(all);
}

/* Checks that the pictures of the run do not become data, or look like it: its directory is neither
   the data set's nor in it, except beside train and test. */
static int is_beside_data(run *r) {
    static const char *const halves[] = { "train", "test" };
    const char *data = r->o->dataset;
    const char *out = r->o->out;
    char folder[DATA_PATH + 8];
    char text[DATA_PATH + 200];
    if (!r->data.paths || *r->o->resume) return 1;
    int within = r->data.held_out ? is_within(out, data) : is_same_file(out, data);
    for (int i = 0; !r->data.held_out && i < 2; i++) {
        snprintf(folder, sizeof folder, "%s/%s", data, halves[i]);
        within |= is_within(out, folder);
    }
    if (!within) return 1;
    snprintf(text, sizeof text, ": is in the data set %s: a run's own pictures do not belong "
             "among the data: take another --out DIR", data);
    return complain(r, 2, out, text);
}

/* Names test pictures that cannot be read, too, if that is why training pictures are refused. */
static void refuse_test(run *r, data_desc *desc) {
    char error[512];
    const int before = r->bad_pictures;
    if (!before) return;
    data_load(&r->test, r->o->dataset, "test", desc, error, sizeof error);
    if (r->bad_pictures > before) say(r, "test images: ", error);
}

static int load_data(run *r) {
    const data_set *s = &r->data;
    char error[512];
    data_desc desc = describe_data(r);
    if (!data_load(&r->data, r->o->dataset, "train", &desc, error, sizeof error)) {
        refuse_test(r, &desc);
        return refuse_data(r, error);
    }
    if (!s->values && s->c != 1 && s->c != 3)
        return complain(r, 1, r->o->dataset, ": neither grey nor colour");
    mark_data(s, r->data_mark);
    note_unread(stdout, "", r->o->dataset, s);
    if (!is_beside_data(r) || !shows_subjects(r)) return 0;
    if (!s->values && s->classes == 1)
        printf("%s: the only class is %s, so only p(x) is learned: a second folder of pictures "
               "would be a second class\n", r->o->dataset, s->class_names[0]);
    if (s->values && !prepare_table(r)) return 0;
    if (!s->values && !load_test(r, &desc)) return 0;
    note_unread(stdout, "", r->o->dataset, &r->test);
    note_pictures(r);
    note_copies(r);
    fit_weights(r);
    return fit_sizes(r) && split_data(r) && make_batches(r);
}

/* Returns log p(u) - log p(x) of a row x: the logarithm of the volume of the network's units. */
static double log_volume(jem_net *net, const float *x) {
    jem_answer a;
    float *u = new_floats((double)net->channels * net->height * net->width);
    float logp = 0;
    if (!u) jem_fail(net->ctx, JEM_NO_MEMORY, "out of memory for the evaluation");
    if (u && jem_classify(net, x, 1, &a) == JEM_OK && jem_standardize(net, x, 1, u) == JEM_OK) {
        const jem_mark mark = jem_begin(net->ctx);
        jem_tensor *t = jem_input(net->ctx, u, 1, net->channels, net->height, net->width);
        jem_read(jem_logp(net->ctx, t, net), &logp);
        jem_end(net->ctx, mark);
    }
    free(u);
    if (!jem_ok(net->ctx)) return 0;
    return (double)logp - (double)a.log_density;
}

/* Computes logits f[n][classes] of images x[n], and replaces them by the means of their own and
   those of mirror images, if requested: then x is mirrored, too. */
static void evaluate_logits(jem_net *net, float *x, int n, int mirrored, float *f) {
    const ptrdiff_t size = (ptrdiff_t)net->channels * net->height * net->width;
    const ptrdiff_t values = (ptrdiff_t)n * net->classes;
    const jem_mark mark = jem_begin(net->ctx);
    float *image = NULL;
    jem_read(jem_forward(net, jem_input(net->ctx, x, n, net->channels, net->height, net->width), 0),
             f);
    if (mirrored) {
        image = new_floats((double)(size + values));
        if (!image) jem_fail(net->ctx, JEM_NO_MEMORY, "out of memory for mirror images");
    }
    if (image) {
        float *g = image + size;
        for (int k = 0; k < n; k++) {
            memcpy(image, x + k * size, (size_t)size * sizeof *x);
            move_image(image, x + k * size, net->channels, net->height, net->width, 0, 0, 1);
        }
        evaluate_logits(net, x, n, 0, g);
        for (ptrdiff_t i = 0; i < values; i++) f[i] = 0.5f * (f[i] + g[i]);
    }
    free(image);
    jem_end(net->ctx, mark);
}

/* Computes log p of images x[n], in the units of the network. */
static void evaluate_logp(jem_net *net, const float *x, int n, float *logp) {
    const jem_mark mark = jem_begin(net->ctx);
    jem_tensor *t = jem_input(net->ctx, x, n, net->channels, net->height, net->width);
    jem_read(jem_logp(net->ctx, t, net), logp);
    jem_end(net->ctx, mark);
}

/* Sums over images: correct answers; nll = -log p(y|x) and its square; log p(x) and its square. */
typedef struct evaluation_sums {
    double right, nll, nll_squares, logp, logp_squares;
} evaluation_sums;

/* Adds the answer for an image with this label, from its logits f[classes]. */
static void add_answer(evaluation_sums *sums, const float *f, int classes, int label) {
    int best = 0;
    double sum = 0;
    for (int c = 1; c < classes; c++) if (f[c] > f[best]) best = c;
    for (int c = 0; c < classes; c++) sum += exp((double)f[c] - (double)f[best]);
    const double nll = (double)f[best] + log(sum) - (double)f[label];
    sums->right += best == label;
    sums->nll += nll;
    sums->nll_squares += nll * nll;
}

/* Returns the standard error of a mean of n numbers, from the sum of their squares. */
static double error_of_mean(double squares, double mean, int n) {
    if (n < 2) return 0;
    return sqrt(fmax(0, squares / n - mean * mean) / (n - 1));
}

int evaluate(jem_net *net, const data_set *s, const int *which, int n, int requests,
             evaluation *e) {
    enum { AT_ONCE = 256 };
    const int with_logp = (requests & EVALUATE_LOGP) != 0;
    const ptrdiff_t size = (ptrdiff_t)s->c * s->h * s->w;
    float *x = new_floats((double)AT_ONCE * (double)size);
    float *f = new_floats((double)AT_ONCE * net->classes);
    float logp[AT_ONCE];
    double volume = 0;
    int one[AT_ONCE];
    evaluation_sums sums = { 0, 0, 0, 0, 0 };
    if (!x || !f) jem_fail(net->ctx, JEM_NO_MEMORY, "out of memory for the evaluation");
    for (int i = 0; i < n && jem_ok(net->ctx); i += AT_ONCE) {
        const int m = smaller(n - i, AT_ONCE);
        for (int k = 0; k < m; k++) one[k] = which ? which[i + k] : i + k;
        data_floats(s, one, m, x);
        if (with_logp && i == 0 && jem_net_meta(net, "jem.units")) volume = log_volume(net, x);
        jem_standardize(net, x, m, x);
        if (with_logp) evaluate_logp(net, x, m, logp);
        evaluate_logits(net, x, m, (requests & EVALUATE_MIRRORED) != 0, f);
        for (int k = 0; k < m && jem_ok(net->ctx); k++) {
            add_answer(&sums, f + k * net->classes, net->classes, s->labels[one[k]]);
            if (!with_logp) continue;
            const double one_logp = (double)logp[k] - volume;
            sums.logp += one_logp;
            sums.logp_squares += one_logp * one_logp;
        }
    }
    free(x);
    free(f);
    e->accuracy = sums.right / n;
    e->nll = sums.nll / n;
    e->error = error_of_mean(sums.nll_squares, e->nll, n);
    e->logp = sums.logp / n;
    e->logp_error = error_of_mean(sums.logp_squares, e->logp, n);
    return jem_ok(net->ctx);
}

/* ---- the network and its trainer ------------------------------------------------------------- */

static jem_net *make_plain_net(const run *r) {
    const train_options *t = r->o;
    const data_set *s = &r->data;
    if (t->net == NET_CONVNET) {
        jem_convnet_desc d = jem_convnet_desc_default();
        d.channels = s->c;
        d.height = s->h;
        d.width = s->w;
        d.classes = s->classes;
        d.layers = t->widths.n;
        d.activation = (jem_activation)t->activation;
        d.separate_energy = t->uncond;
        for (int i = 0; i < t->widths.n; i++) d.widths[i] = t->widths.at[i];
        return jem_convnet_create(r->ctx, &d, (uint64_t)t->seed);
    }
    if (t->net == NET_MLP) {
        jem_mlp_desc d = jem_mlp_desc_vectors(s->c, s->classes);
        d.height = s->h;
        d.width = s->w;
        d.layers = t->widths.n;
        d.activation = (jem_activation)t->activation;
        d.separate_energy = t->uncond;
        if (t->w_nce == 0) d.student = 0;
        for (int i = 0; i < t->widths.n; i++) d.widths[i] = t->widths.at[i];
        return jem_mlp_create(r->ctx, &d, (uint64_t)t->seed);
    }
    jem_wrn_desc d = jem_wrn_desc_default();
    d.channels = s->c;
    d.height = s->h;
    d.width = s->w;
    d.classes = s->classes;
    d.depth = t->depth;
    d.widen = t->width;
    d.activation = (jem_activation)t->activation;
    d.norm = (jem_norm)t->norm;
    d.dropout = t->dropout;
    d.head = (jem_head)t->head;
    d.stem_stride = t->stem_stride;
    d.separate_energy = t->uncond;
    d.blocks = (jem_blocks)t->blocks;
    d.unet = t->unet;
    return jem_wrn_create(r->ctx, &d, (uint64_t)t->seed);
}

/* Fits the network's units to the rows that it will learn from. */
static void fit_units(const run *r, jem_net *net) {
    float *x = new_floats((double)r->n_train * r->data.c);
    if (!x) {
        jem_fail(r->ctx, JEM_NO_MEMORY, "out of memory for the data");
        return;
    }
    data_floats(&r->data, r->order + r->o->n_valid, r->n_train, x);
    jem_net_fit_units(net, x, r->n_train);
    free(x);
}

/* Stores how the images show their subject, and how pictures of a folder were fitted, for pictures
   from elsewhere. */
static void fit_framing(const run *r, jem_net *net) {
    enum { MOST = 1000 };
    const int n = smaller(r->n_train, MOST);
    float *x = new_floats((double)n * r->data.c * r->data.h * r->data.w);
    if (!x) {
        jem_fail(r->ctx, JEM_NO_MEMORY, "out of memory for the data");
        return;
    }
    data_floats(&r->data, r->order + r->o->n_valid, n, x);
    jem_net_fit_framing(net, x, n);
    free(x);
    jem_fit fit = JEM_FIT_TRAINED;
    if (r->o->pictures.stretch) fit = JEM_FIT_STRETCH;
    if (r->o->pictures.crop) fit = JEM_FIT_CROP;
    if (r->o->pictures.pad) fit = JEM_FIT_PAD;
    jem_net_set_fit(net, fit);
    jem_net_set_background(net, r->o->pictures.background);
}

/* Sets the fields of a network that options determine. */
static void set_fields(const run *r, jem_net *net) {
    net->scale = r->o->scale;
    net->guidance = r->o->guidance;
    net->denoise_steps = r->o->sample_steps;
    net->denoise_fraction = r->o->sample_fraction;
    net->last_sigma = r->o->sample_last_sigma;
}

static jem_net *make_net(const run *r) {
    jem_net *net = make_plain_net(r);
    if (net) set_fields(r, net);
    if (net && r->data.values) fit_units(r, net);
    else if (net) fit_framing(r, net);
    return net;
}

/* Returns the update at which the chains of a run of `total` updates begin. */
static int chains_of(const run *r, int total) {
    return (int)((double)r->o->chains_from * total + .5);
}
static int chains_from(const run *r) { return r->chains_at; }

static int updates_of(const run *r, int epochs) {
    if (epochs > INT_MAX / r->per_epoch) return INT_MAX;
    return epochs * r->per_epoch;
}

/* Returns 1 if training has chains, from some update on. */
static int walks_chains(const train_options *t) {
    return t->w_x > 0 || t->w_xy > 0 || t->w_kl > 0;
}

/* Fills in the course of the learning rate. */
static void set_schedule(const run *r, jem_schedule *s) {
    const train_options *t = r->o;
    s->warmup = t->warmup > 0 ? t->warmup : 0;
    if (t->schedule == SCHEDULE_COSINE) {
        s->kind = JEM_SCHEDULE_COSINE;
        s->total = r->total;
        s->floor = .02f;
        if (t->chains_lr > 0 && walks_chains(t)) {
            s->at[0] = chains_from(r);
            s->rate = t->chains_lr / t->lr;
        }
        return;
    }
    s->kind = JEM_SCHEDULE_STEPS;
    s->rate = t->decay_rate;
    for (int i = 0; i < t->decay_epochs.n && i < 4; i++)
        s->at[i] = updates_of(r, t->decay_epochs.at[i]);
}

static void set_optimizer(const train_options *t, jem_optim_desc *d) {
    d->kind = (jem_optimizer)t->optimizer;
    d->momentum = .9f;
    d->adam_rate = t->adam_rate;
    d->weight_decay = t->weight_decay;
    d->clip = t->clip_grad;
    d->ema = t->ema;
    if (t->clf_only) d->only = "class_output";
}

/* Fills in the terms of the loss, and the noise of their images. */
static void set_losses(const train_options *t, jem_train_desc *d) {
    d->weights.ce = t->w_y;
    d->weights.cd = t->w_x;
    d->weights.cd_class = t->w_xy;
    d->weights.energy_l2 = t->energy_l2;
    d->w_nce = t->w_nce;
    d->w_score = t->w_score;
    d->w_kl = t->w_kl;
    d->kl_entropy = t->entropy;
    d->sam = t->sam;
    d->data_noise = t->sigma;
    d->noise_lo = t->noise_lo;
    d->noise_hi = t->noise_hi;
    d->label_noise = t->label_noise;
    d->label_all_noise = t->label_wide;
    d->label_smoothing = t->label_smoothing;
}

/* Fills in the chains: their starts, their walk, the replay buffer. */
static void set_chains(run *r, jem_train_desc *d) {
    const train_options *t = r->o;
    d->sgld.steps = t->n_steps;
    d->sgld.step_size = t->sgld_lr * r->state[STATE_STEP];
    d->sgld.noise_std = t->sgld_std;
    d->sgld.clamp_grad = t->clamp_grad;
    if (t->clamp > 0) {
        d->sgld.clamp_lo = -t->clamp;
        d->sgld.clamp_hi = t->clamp;
    }
    d->negatives = t->negatives ? t->negatives : t->batch_size;
    d->buffer_size = t->buffer_size;
    d->reinit = t->reinit;
    d->class_conditional = t->class_cond;
    if (t->informative || t->move_chains > 0) {
        d->chain = on_chain;
        d->chain_user = r;
    }
    d->cd_from = chains_from(r);
    d->restart_denoise.steps = t->fresh_steps;
    d->restart_denoise.sigma_max = t->noise_hi;
}

static jem_trainer *make_trainer(run *r) {
    const train_options *t = r->o;
    jem_train_desc d = jem_train_desc_default();
    d.lr = t->lr * r->state[STATE_LR];
    d.seed = (uint64_t)t->seed;
    set_schedule(r, &d.schedule);
    set_optimizer(t, &d.optim);
    set_losses(t, &d);
    set_chains(r, &d);
    d.pause_gap = t->pause_gap;
    d.max_gap = t->max_gap;
    d.max_rollbacks = t->retries;
    d.rank = team.rank;
    d.ranks = team.ranks;
    d.sum = team.sum;
    d.sum_user = team.user;
    return jem_trainer_create(r->net, &d);
}

/* ---- checkpoints ----------------------------------------------------------------------------- */

static const int64_t state_shape[1] = { STATES };

/* Saves network, trainer and the state of the run. */
static jem_archive *pack(run *r) {
    jem_archive *a = jem_archive_create(r->ctx);
    if (!a) return NULL;
    jem_net_to_archive(r->net, a);
    jem_trainer_to_archive(r->tr, a);
    jem_archive_add(a, "run.state", JEM_DTYPE_F32, 1, state_shape, r->state);
    return a;
}

static int asked_now(const run *r, const char *name) {
    return option_given(r->table, name);
}

/* Reads the state of the run, before a trainer is made with it. */
static int unpack_state(run *r, const jem_archive *a) {
    const jem_entry *e = jem_archive_find(a, "run.state");
    if (!e || e->dtype != JEM_DTYPE_F32) {
        jem_fail(r->ctx, JEM_BAD_FILE, "no run.state in the file");
        return 0;
    }
    r->state[STATE_SCORE] = NAN;                   /* older files lack the sum: no mean, at first */
    memcpy(r->state, e->data, e->bytes < sizeof r->state ? e->bytes : sizeof r->state);
    if (!(r->state[STATE_COUNT] > 0)) r->state[STATE_SCORE] = 0;
    if (asked_now(r, "sgld-lr")) r->state[STATE_STEP] = 1;       /* the command line has priority */
    if (asked_now(r, "lr")) r->state[STATE_LR] = 1;
    return 1;
}

/* Reads the results of the validation of this update, if the file has them. */
static void unpack_validation(run *r, const jem_archive *a) {
    const char *text = jem_archive_meta(a, "run.validation");
    double accuracy, nll, residual;
    int n;
    if (!text || sscanf(text, "%d %lf %lf %lf %lf", &n, &accuracy, &nll, &residual,
                        &r->valid_logp) < 4) return;
    r->valid_accuracy = (float)accuracy;
    r->valid_ce = (float)nll;
    r->valid_score = (float)residual;
    r->valid_at = r->update;
}

static int unpack(run *r, const jem_archive *a) {
    if (jem_net_load(r->net, a) != JEM_OK) return 0;
    set_fields(r, r->net);
    if (jem_trainer_from_archive(r->tr, a) != JEM_OK) return 0;
    if (asked_now(r, "lr")) jem_trainer_set_lr(r->tr, r->o->lr);  /* in full */
    r->update = jem_trainer_updates(r->tr);
    unpack_validation(r, a);
    jem_trainer_use_average(r->tr, 0);
    return jem_ok(r->ctx);
}

static int store_options(const run *r, jem_archive *a) {
    char key[64];
    for (int i = 0; i < r->table->count; i++) {
        const option *t = &r->table->table[i];
        if (t->kind == OPTION_TITLE || t->life == OPTION_NOW) continue;
        snprintf(key, sizeof key, OPTION_PREFIX "%s", t->name);
        jem_archive_set_meta(a, key, r->table->text[i]);
    }
    return jem_ok(r->ctx);
}

static double elapsed(const run *r) { return r->seconds + now() - r->began; }

/* Returns 1 if there is an f(x-). */
static int chains_walked(const run *r) {
    return jem_trainer_buffer(r->tr) && r->update > chains_from(r);
}

/* Returns 1 if later updates will have chains, and take longer than those before. */
static int awaits_chains(const run *r) {
    return jem_trainer_buffer(r->tr) && r->update <= chains_from(r) && chains_from(r) < r->total;
}

/* Returns the number of validation images that calibrate the network. */
static int calibration_images(const run *r) { return smaller(r->o->n_valid, 1000); }

/* Stores the update of a file, and its measurements. */
static int store_moment(const run *r, jem_archive *a) {
    const int score = r->o->w_score > 0;
    const int chains = chains_walked(r);
    const char *density = "none";
    if (r->o->w_nce > 0) density = "noise-contrastive estimation";
    else if (score && chains) density = "score and chains";
    else if (score) density = "score";
    else if (chains) density = "chains";
    char text[128];
    snprintf(text, sizeof text, "%d", r->update);
    if (jem_archive_set_meta(a, "run.updates", text) != JEM_OK) return 0;
    snprintf(text, sizeof text, "%d", chains_from(r));
    if (jem_archive_set_meta(a, "run.chains", text) != JEM_OK) return 0;
    if (jem_archive_set_meta(a, "run.density", density) != JEM_OK) return 0;
    if (r->rare_last && jem_archive_set_meta(a, RARE_LAST, "1") != JEM_OK) return 0;
    snprintf(text, sizeof text, "%d", jem_calibrated(r->net) < 0 ? 0 : calibration_images(r));
    if (jem_archive_set_meta(a, "run.calibrated", text) != JEM_OK) return 0;
    if (r->valid_at != r->update) return 1;
    int n = snprintf(text, sizeof text, "%d %.6g %.6g %.6g", r->o->n_valid,
                     (double)r->valid_accuracy, (double)r->valid_ce, (double)r->valid_score);
    if (r->o->w_nce > 0)
        snprintf(text + n, sizeof text - (size_t)n, " %.6g", r->valid_logp);
    return jem_archive_set_meta(a, "run.validation", text) == JEM_OK;
}

/* Calibrates the network, with the averaged weights in it, on validation images. If they cannot
   calibrate it, as a few equal images may, keeps the reason: the run goes on. */
static int calibrate(run *r) {
    const int n = calibration_images(r);
    char hint[80];
    r->calibrated_at = r->update;
    if (n < 2) return 1;
    float *x = new_floats((double)n * r->data.c * r->data.h * r->data.w);
    if (!x) return complain(r, 1, "out of memory for the validation", memory_hint(hint));
    data_floats(&r->data, r->order, n, x);
    const jem_status status = jem_calibrate(r->net, x, n, JEM_AUTO);
    *r->uncalibrated = 0;
    if (status != JEM_OK && status != JEM_NO_MEMORY) {
        snprintf(r->uncalibrated, sizeof r->uncalibrated, "%s", jem_error(r->ctx));
        jem_clear_error(r->ctx);
        forget_calibration(r->net);
    }
    free(x);
    return jem_ok(r->ctx);
}

/* Reports that a checkpoint that cannot be written has not replaced the one before. */
static void note_kept(const run *r) {
    char word[DATA_PATH], text[DATA_PATH + 100];
    if (!holds_a_run(r)) return;
    snprintf(text, sizeof text, "the checkpoint before it remains: jem train --resume %s",
             data_quoted(r->o->out, word, sizeof word));
    say(r, text, "");
}

/* Writes last.safetensors, calibrated with its own weights. */
static int save(run *r) {
    char path[512], text[32];
    if (team.rank) return 1;
    jem_trainer_use_average(r->tr, 1);             /* other programs load the averaged network */
    int ok = r->calibrated_at == r->update || calibrate(r);
    jem_archive *a = ok ? pack(r) : NULL;
    ok = a && path_in(path, r, "last.safetensors") && store_options(r, a);
    snprintf(text, sizeof text, "%.1f", elapsed(r));
    ok = ok && jem_archive_set_meta(a, "run.seconds", text) == JEM_OK;
    ok = ok && store_moment(r, a) &&
         jem_archive_set_meta(a, "run.data", r->data_mark) == JEM_OK &&
         jem_archive_write(a, path) == JEM_OK;
    jem_archive_free(a);
    jem_trainer_use_average(r->tr, 0);
    r->saved = now();
    if (!ok && !r->status) {
        fail(r, 1);
        note_kept(r);
    }
    return ok;
}

/* Saves the network alone, with its training options. */
static int save_net(run *r, const char *name) {
    char path[512];
    jem_archive *a = jem_archive_create(r->ctx);
    const int ok = a && path_in(path, r, name) && jem_net_to_archive(r->net, a) == JEM_OK &&
                   store_options(r, a) && store_moment(r, a) &&
                   jem_archive_set_meta(a, "run.data", r->data_mark) == JEM_OK &&
                   jem_archive_write(a, path) == JEM_OK;
    jem_archive_free(a);
    return ok || fail(r, 1);
}

/* Checks that all processes have the same data, weights and chains; otherwise their sums would be
   meaningless. */
static int same_everywhere(run *r) {
    const jem_buffer *b = jem_trainer_buffer(r->tr);
    if (team.ranks < 2) return 1;
    unsigned long hash = 0;
    for (const char *c = r->data_mark; *c; c++) hash = hash * 31 + (unsigned char)*c;
    for (const jem_param *p = r->net->params; p; p = p->next)
        hash = hash * 31 + crc32_of(0, (const unsigned char *)p->value,
                                    (size_t)p->size * sizeof *p->value);
    if (b) hash = hash * 31 + crc32_of(0, (const unsigned char *)b->data,
                                       (size_t)b->capacity * sizeof *b->data *
                                          (size_t)(b->channels * b->height * b->width));
    const float mine[2] = { (float)(hash & 4095), (float)(hash >> 12 & 4095) };
    const float n = (float)team.ranks;
    float all[2] = { mine[0], mine[1] };           /* whole numbers, so the sums are exact */
    team.sum(team.user, all, 2);
    if (all[0] == n * mine[0] && all[1] == n * mine[1]) return 1;
    return complain(r, 1, "the processes differ in data, weights or chains: does each have the "
                    "same program, options, files, and for bf16 the same kind of processor?", "");
}

/* ---- reports --------------------------------------------------------------------------------- */

static int uses_labels(const train_options *t) {
    return t->w_y > 0 || t->w_xy > 0 || !draws_twice(t);
}

static int learns_classes(const run *r) {
    return uses_labels(r->o) && r->data.classes > 1;
}

#define LOG_HEADER "update,epoch,lr,loss,ce,accuracy,f_data,f_sample,grad_norm,valid_accuracy," \
                   "valid_ce,retries,nce,valid_log_p,score_error,valid_score_error,seconds"

static int count_commas(const char *text) {
    int n = 0;
    for (; *text; text++) n += *text == ',';
    return n;
}

/* Copies a row of a log. One of an older version gets the `missing` columns, which are before the
   last. */
static int copy_row(new_file *n, char *line, int missing) {
    char *last = strrchr(line, ',');
    if (missing <= 0 || !last) return new_file_text(n, line);
    *last = 0;
    int ok = new_file_text(n, line);
    for (int i = 0; i < missing; i++) ok = ok && new_file_text(n, ",");
    *last = ',';
    return ok && new_file_text(n, last);
}

/* Opens the log for appending, without the rows beyond `update`; does not replace unreadable
   files. */
static int log_open(run *r, int update) {
    char path[512], line[512];
    const char *wrong = NULL;
    FILE *old = NULL;
    int replaced = 0;
    int missing = 0;                               /* columns: the log is of an older version */
    new_file n;
    if (team.rank) return 1;
    if (!path_in(path, r, "log.csv")) return complain(r, 1, r->o->out, ": the name is too long");
    if (r->log) {
        fclose(r->log);
        r->log = NULL;
    }
    errno = 0;
    if (update > 0 && !(old = fopen(path, "r")) && errno != ENOENT) wrong = "cannot be opened";
    else {
        int ok = new_file_open(&n, path) && new_file_text(&n, LOG_HEADER "\n");
        while (ok && old && fgets(line, sizeof line, old)) {
            if (!strncmp(line, "update,", 7))
                missing = count_commas(LOG_HEADER) - count_commas(line);
            if (isdigit((unsigned char)*line) && strchr(line, '\n') && atoi(line) <= update)
                ok = copy_row(&n, line, missing);
        }
        if (old && ferror(old)) ok = new_file_fail(&n, "cannot be read");
        if (old) fclose(old);                      /* Windows does not replace an open file */
        replaced = new_file_done(&n, ok);
        errno = 0;
        if (replaced && !(r->log = fopen(path, "ab"))) wrong = "cannot be opened";
    }
    if (!replaced && !wrong) return complain(r, 1, "", n.message);
    if (wrong && errno) snprintf(line, sizeof line, ": %s: %s", wrong, strerror(errno));
    else if (wrong) snprintf(line, sizeof line, ": %s", wrong);
    if (wrong) return complain(r, 1, path, line);
    return 1;
}

/* Sets the sums over updates to 0, for the next row of the log. */
static void clear_sums(run *r) {
    for (int i = 0; i < STATE_SUMS; i++) r->state[i] = 0;
    r->state[STATE_NCE] = 0;
    r->state[STATE_SCORE] = 0;
    r->state[STATE_COUNT] = 0;
}

/* Returns the mean of state[sum] since the last row of the log; right after one, the value of the
   last update. */
static double mean_of(const run *r, int sum, float last) {
    const float n = r->state[STATE_COUNT];
    return (double)(n > 0 ? r->state[sum] / n : last);
}

/* Returns the mean of log p(x), of data or of samples: since chains began, if they did in this
   row. */
static double mean_f(const run *r, int sum, float last) {
    const float since = (float)(r->update - chains_from(r));
    const float n = r->state[STATE_COUNT];
    if (!chains_walked(r) || since >= n) return mean_of(r, sum, last);
    return (double)(r->state[sum] / since);
}

/* Writes a row of means since the last complete one. A validation between two of those also has a
   row, with means if there are enough updates. */
static int log_row(run *r, int evaluated) {
    const int whole = r->update % r->o->print_every == 0 || r->update == r->total;
    const float n = r->state[STATE_COUNT];
    char row[512];
    char valid[64] = ",";
    char labels[64] = ",";
    char loss[32] = "";
    char others[96] = ",,";
    char data[32] = "";
    char sample[32] = "";
    char nce[32] = "";
    char logp[32] = "";
    char score[32] = "";
    char valid_score[32] = "";
    if (n > 0 && (whole || 2 * n >= (float)r->o->print_every)) {
        const double f_data = mean_f(r, STATE_F_DATA, 0);
        snprintf(loss, sizeof loss, "%.6g", mean_of(r, STATE_LOSS, 0));
        if (learns_classes(r))
            snprintf(labels, sizeof labels, "%.6g,%.5f", mean_of(r, STATE_CE, 0),
                     mean_of(r, STATE_ACCURACY, 0));
        if (r->o->w_nce > 0) snprintf(nce, sizeof nce, "%.6g", mean_of(r, STATE_NCE, 0));
        if (r->o->w_score > 0 && isfinite(r->state[STATE_SCORE]))
            snprintf(score, sizeof score, "%.5g", mean_of(r, STATE_SCORE, 0));
        if (chains_walked(r))
            snprintf(sample, sizeof sample, "%.6g", mean_f(r, STATE_F_SAMPLE, 0));
        if (f_data != 0) snprintf(data, sizeof data, "%.6g", f_data);
        snprintf(others, sizeof others, "%s,%s,%.6g", data, sample, mean_of(r, STATE_GRAD_NORM, 0));
    }
    if (evaluated && r->valid_accuracy >= 0 && learns_classes(r))
        snprintf(valid, sizeof valid, "%.5f,%.5f", (double)r->valid_accuracy, (double)r->valid_ce);
    if (evaluated && r->valid_at == r->update && isfinite(r->valid_logp))
        snprintf(logp, sizeof logp, "%.6g", r->valid_logp);
    if (evaluated && r->valid_at == r->update && r->valid_score > 0 && isfinite(r->valid_score))
        snprintf(valid_score, sizeof valid_score, "%.5g", (double)r->valid_score);
    snprintf(row, sizeof row, "%d,%.3f,%.4g,%s,%s,%s,%s,%.0f,%s,%s,%s,%s,%.1f\n", r->update,
             (double)r->update / r->per_epoch, (double)r->last.lr, loss, labels, others, valid,
             (double)r->state[STATE_RETRIES], nce, logp, score, valid_score, elapsed(r));
    if (whole) clear_sums(r);
    errno = 0;
    if (!r->log || (fputs(row, r->log) >= 0 && !fflush(r->log))) return 1;
    snprintf(row, sizeof row, "log.csv: cannot be written: %s", strerror(errno));
    return complain(r, 1, row, "");
}

/* Columns of log.csv that are drawn; logs of older versions lack those from LOG_NCE on. */
enum {
    LOG_UPDATE, LOG_CE, LOG_VALID_CE, LOG_ACCURACY, LOG_VALID_ACCURACY, LOG_GAP, LOG_F_SAMPLE,
    LOG_NCE, LOG_VALID_LOGP, LOG_SCORE, LOG_VALID_SCORE, LOG_COLUMNS
};
typedef struct log_columns { float *at[LOG_COLUMNS]; int n; } log_columns;

static int read_columns(log_columns *c, const char *log) {
    static const char *const names[LOG_COLUMNS] = {
        "update", "ce", "valid_ce", "accuracy", "valid_accuracy", "f_data", "f_sample", "nce",
        "valid_log_p", "score_error", "valid_score_error"
    };
    memset(c, 0, sizeof *c);
    for (int k = 0; k < LOG_COLUMNS; k++) {
        int rows = 0;
        c->at[k] = chart_column(log, names[k], &rows);
        if (k == LOG_UPDATE) c->n = rows;
        if (k < LOG_NCE && !c->at[k]) return 0;
        if (c->at[k] && rows != c->n) return 0;
    }
    for (int i = 0; i < c->n; i++) {               /* in percent; f(x+) - f(x-) */
        c->at[LOG_ACCURACY][i] *= 100;
        c->at[LOG_VALID_ACCURACY][i] *= 100;
        c->at[LOG_GAP][i] -= c->at[LOG_F_SAMPLE][i];
    }
    return 1;
}

/* Returns 1 if a column has a number. */
static int has_numbers(const log_columns *c, int column) {
    for (int i = 0; c->at[column] && i < c->n; i++) if (isfinite(c->at[column][i])) return 1;
    return 0;
}

static curve curve_of(const log_columns *c, int column, const char *name, unsigned colour) {
    const curve one = { name, colour, c->at[LOG_UPDATE], c->at[column], c->n, 1.8f };
    return one;
}

int draw_log(const char *log, const char *png) {
    enum { LEFT = 80, RIGHT = 870, PANEL = 290, PANELS = 6 };
    enum { BLUE = 0x1f5fa8, ORANGE = 0xd2691e, GREEN = 0x2e8b57 };
    log_columns c;
    panel panels[PANELS];
    int n = 0;
    int ok = read_columns(&c, log);
    const int by_noise = ok && has_numbers(&c, LOG_NCE);
    const int by_score = ok && has_numbers(&c, LOG_SCORE);
    const int chains = ok && has_numbers(&c, LOG_GAP);
    const curve ce[2] = { curve_of(&c, LOG_CE, "training", BLUE),
                          curve_of(&c, LOG_VALID_CE, "validation", ORANGE) };
    const curve accuracy[2] = { curve_of(&c, LOG_ACCURACY, "training", BLUE),
                                curve_of(&c, LOG_VALID_ACCURACY, "validation", ORANGE) };
    const curve score[2] = { curve_of(&c, LOG_SCORE, "training", BLUE),
                             curve_of(&c, LOG_VALID_SCORE, "validation", ORANGE) };
    const curve nce = curve_of(&c, LOG_NCE, "training", BLUE);
    const curve logp = curve_of(&c, LOG_VALID_LOGP, "validation", ORANGE);
    const curve gap = curve_of(&c, LOG_GAP, "f(x+) - f(x-)", GREEN);
    const panel all[PANELS] = {
        { "noise-contrastive loss", NULL, LEFT, 0, RIGHT, 0, 0, 0, &nce, 1 },
        { "log p(x), mean", NULL, LEFT, 0, RIGHT, 0, 0, 0, &logp, 1 },
        { "cross-entropy", NULL, LEFT, 0, RIGHT, 0, 0, 0, ce, 2 },
        { "accuracy, %", NULL, LEFT, 0, RIGHT, 0, 0, 0, accuracy, 2 },
        { "score error: fraction of the noise that is not predicted", NULL, LEFT, 0, RIGHT, 0, 0, 0,
          score, 2 },
        { chains ? "data against samples" : "data against samples: no chains yet", NULL, LEFT, 0,
          RIGHT, 0, 0, 0, &gap, chains }
    };
    const int drawn[PANELS] = { by_noise, by_noise && has_numbers(&c, LOG_VALID_LOGP),
                                has_numbers(&c, LOG_CE), has_numbers(&c, LOG_CE),
                                by_score, !by_noise || chains };
    for (int k = 0; k < PANELS; k++) {
        if (!drawn[k]) continue;
        panels[n] = all[k];
        panels[n].top = (float)(PANEL * n + 60);
        panels[n].bottom = (float)(PANEL * n + PANEL);
        n++;
    }
    if (ok) {
        panels[n - 1].x_name = "updates";
        panels[n - 1].bottom -= 20;
        ok = draw_panels(png, panels, n) > 0;
    }
    for (int k = 0; k < LOG_COLUMNS; k++) free(c.at[k]);
    return ok;
}

static int draw_curves(const run *r) {
    char log[512], png[512];
    if (team.rank) return 1;
    return path_in(log, r, "log.csv") && path_in(png, r, "curves.png") && draw_log(log, png);
}

enum { DREAMS = 20, DRAWN = 100 };                 /* from noise; chains, at most */

static int zoom_of(const jem_net *net) { return net->height <= 32 ? 2 : 1; }

/* Adds images to the film of the run. Its frames have one size: empty places are grey. */
static int draw_frame(const run *r, const float *x, int n) {
    enum { FRAME_MS = 200 };
    const jem_net *net = r->net;
    const ptrdiff_t size = (ptrdiff_t)net->channels * net->height * net->width;
    const jem_buffer *chains = jem_trainer_buffer(r->tr);
    char path[512];
    int most = DREAMS;
    if (chains && chains->capacity > most) most = smaller(chains->capacity, DRAWN);
    if (most < n) most = n;
    float *all = new_floats((double)most * (double)size);
    if (!all || !path_in(path, r, "samples_film.png")) {
        free(all);
        return 0;
    }
    memcpy(all, x, (size_t)(n * size) * sizeof *all);
    for (ptrdiff_t i = n * size; i < most * size; i++) all[i] = PICTURE_GREY / 127.5f - 1;
    const int ok = picture_film_add(path, all, most, 10, net->channels, net->height, net->width,
                                    zoom_of(net), (unsigned)r->update, FRAME_MS);
    free(all);
    return ok;
}

static int draw_images(const run *r, const float *x, int n) {
    const jem_net *net = r->net;
    char path[512];
    if (!path_in(path, r, "samples.png")) return 1;
    return picture_grid(path, x, n, 10, net->channels, net->height, net->width, zoom_of(net)) &&
           draw_frame(r, x, n);
}

/* Draws samples of the score from noise, without a walk. */
static int draw_dreams(run *r) {
    const jem_net *net = r->net;
    float *x = new_floats((double)DREAMS * net->channels * net->height * net->width);
    jem_rng rng = jem_rng_seed((uint64_t)r->o->seed);
    /* the first update sets the network's noise levels */
    jem_generate_desc how = jem_net_generate_desc(net);
    how.denoise.steps = r->o->fresh_steps ? r->o->fresh_steps : 200;
    how.walk.steps = 0;
    const jem_mark mark = jem_begin(r->ctx);
    jem_tensor *t = jem_zeros(r->ctx, DREAMS, net->channels, net->height, net->width);
    jem_generate(r->ctx, jem_logp, r->net, t, &how, &rng);
    const int drawn = x && jem_read(t, x) == JEM_OK;
    jem_end(r->ctx, mark);
    jem_clear_error(r->ctx);                       /* no picture: not worth a failure of the run */
    const int ok = !drawn || draw_images(r, x, DREAMS);
    free(x);
    return ok;
}

/* Draws some chains, or samples of a model without chains; nothing for a table. */
static int draw_samples(run *r) {
    if (r->data.values) return 1;
    const jem_buffer *b = jem_trainer_buffer(r->tr);
    if (b && r->update >= chains_from(r))
        return draw_images(r, b->data, smaller(b->capacity, DRAWN));
    return r->o->w_score <= 0 || draw_dreams(r);
}

void time_text(char text[32], double seconds) {
    const long s = seconds > 0 && seconds < 1e9 ? (long)seconds : 0;
    if (s >= 3600) snprintf(text, 32, "%ld:%02ld h", s / 3600, s / 60 % 60);
    else snprintf(text, 32, "%ld:%02ld min", s / 60, s % 60);
}

static int terminal_width(void) {
    const int columns = system_columns();
    return columns > 20 ? smaller(columns, 250) : 80;
}

/* Estimates the seconds until the end, with those of validations after the first one. */
static double time_left(const run *r) {
    const int every = updates_of(r, r->o->eval_every);
    const int last = r->total % every != 0;        /* the end has one in any case */
    const int validations = r->total / every - r->update / every + last;
    if (r->update >= r->total) return 0;
    return (r->total - r->update) * r->pace + validations * r->pause;
}

/* Prints the progress: cross-entropy, accuracy and f as means since the last row of the log; score
   error and NCE of the last update. */
static void progress(run *r) {
    const int bar = isatty(1);
    const double t = now();
    const int too_soon = bar ? t - r->shown < .1 : r->update % r->o->print_every != 0;
    if (r->update < r->total && too_soon) return;
    r->shown = t;
    char left[32];
    char ce[32] = "";
    char accuracy[32] = "";
    char valid[32] = "";
    char score[32] = "";
    char line[320];
    char data[32] = "";
    char sample[32] = "";
    time_text(left, time_left(r));
    if (r->valid_accuracy >= 0 && learns_classes(r))
        snprintf(valid, sizeof valid, " (validation %.1f%%)", 100 * (double)r->valid_accuracy);
    const jem_stats *s = &r->last;
    if (learns_classes(r)) {
        snprintf(ce, sizeof ce, "  CE %.3f", mean_of(r, STATE_CE, s->ce));
        snprintf(accuracy, sizeof accuracy, "  accuracy %.1f%%",
                 100 * mean_of(r, STATE_ACCURACY, s->accuracy));
    }
    if (r->o->w_score > 0)
        snprintf(score, sizeof score, "  score error %.3f", (double)s->residual);
    if (r->o->w_nce > 0) snprintf(score, sizeof score, "  NCE %.3f", (double)s->nce);
    if (chains_walked(r))
        snprintf(sample, sizeof sample, "  f(x-) %.1f", mean_f(r, STATE_F_SAMPLE, s->f_sample));
    const double f_data = mean_f(r, STATE_F_DATA, s->f_data);
    if (f_data != 0) snprintf(data, sizeof data, "  f(x+) %.1f", f_data);
    snprintf(line, sizeof line, "epoch %d  %d/%d  %s%s left  %.3g/s%s%s%s%s%s%s",
             r->update / r->per_epoch, r->update, r->total, awaits_chains(r) ? "at least " : "",
             left, 1 / fmax(r->pace, 1e-9), ce, score, data, sample, accuracy, valid);
    const int wide = bar ? terminal_width() - 1 : 0;       /* so that it covers a longer line */
    if (bar) {
        printf("\r%-*.*s", wide, wide, line);
        if (r->update == r->total) printf("\n");
    } else printf("%s\n", line);
    fflush(stdout);
}

/* ---- training -------------------------------------------------------------------------------- */

enum { COMPARE_EVERY = 100 };
enum { SCORE_IMAGES = 512, WALL_IMAGES = 64 };      /* a wall shows in few: its residual is large */

double batch_residual(jem_net *net, const float *x, int n, const float *sigma, jem_rng *rng) {
    const jem_score_desc how = { sigma, NULL, 0 };
    const jem_mark mark = jem_begin(net->ctx);
    jem_tensor *t = jem_input(net->ctx, x, n, net->channels, net->height, net->width);
    float residual = 0;
    jem_score_matching(net->ctx, jem_logp, net, t, &how, rng, &residual);
    jem_end(net->ctx, mark);
    if (jem_error_status(net->ctx) != JEM_DIVERGED) return (double)residual;
    jem_clear_error(net->ctx);
    return HUGE_VAL;
}

/* Measures the remaining error of the score on the first `most` validation images, per pixel, with
   noise of lo to hi: 1 for an untrained density. Noise is the same at every update, so that the
   results are comparable. */
static int score_residual(const run *r, int most, float lo, float hi, double *residual) {
    enum { AT_ONCE = 64 };
    const data_set *s = &r->data;
    const int n = smaller(r->o->n_valid, most);
    float *x = new_floats((double)AT_ONCE * s->c * s->h * s->w);
    float sigma[AT_ONCE];
    jem_rng rng = jem_rng_seed(4321);
    double sum = 0;
    if (!x) jem_fail(r->ctx, JEM_NO_MEMORY, "out of memory for the validation");
    for (int i = 0; i < n && jem_ok(r->ctx); i += AT_ONCE) {
        const int m = smaller(n - i, AT_ONCE);
        data_floats(s, r->order + i, m, x);
        jem_noise_levels(&rng, m, lo, hi, sigma);
        sum += m * batch_residual(r->net, x, m, sigma, &rng);
    }
    free(x);
    *residual = sum / n;                           /* infinity: worse than any, but no failure */
    return jem_ok(r->ctx);
}

/* Measures the residual below --noise-lo; warns once if there is a wall. Images have noise below
   that level only from --sigma and --label-noise; at levels that training does not use, log p(x)
   may rise away from the images. Chains from noise then stop there, and chains near the images
   diverge. */
static int check_wall(run *r) {
    const train_options *t = r->o;
    char text[320];
    double residual = 0;
    if (r->warned || r->data.values || t->n_valid < 1 || t->w_score <= 0) return 1;
    if (!score_residual(r, WALL_IMAGES, t->noise_lo / 8, t->noise_lo, &residual)) return 0;
    if (residual <= SCORE_WALL) return 1;
    r->warned = 1;
    snprintf(text, sizeof text, "update %d: with noise of %.2g to %g, the slope of log p(x) is "
             "worse than none (residual %.3g): a wall, at which chains may diverge, or stop; "
             "`jem eval FILE noise` shows it, and a run with --noise-lo %.2g --sigma %.2g may have "
             "none", r->update, (double)t->noise_lo / 8, (double)t->noise_lo, residual,
             (double)t->noise_lo / 4, fmin((double)t->sigma, (double)t->noise_lo / 2));
    say(r, text, "");
    return 1;
}

/* Returns 0 while the run is close to the limit of divergence. best.safetensors is not replaced
   then, and last.safetensors only if the run ends or is stopped. */
static int is_calm(const run *r) {
    return fabsf(r->state[STATE_GAP]) / r->o->scale < r->o->max_gap / 4;
}

/* Keeps the network as best.safetensors if its loss on the validation images is the lowest, or
   higher by no more than the standard error of the mean: at equal -log p(y|x), the later one has
   learned more about p(x). In runs with chains, only networks from after their beginning are
   compared, and only by -log p(y|x): contrastive divergence has no loss, and chains raise the loss
   of the score while samples improve. Where classes are not learned, nothing can be compared then,
   and the latest network is kept. */
static int keep_best(run *r, const evaluation *e) {
    const train_options *t = r->o;
    const int pixels = r->data.c * r->data.h * r->data.w;
    float *lowest = &r->state[STATE_LOWEST];
    double score = 0;
    const double by_class = learns_classes(r) ? (double)t->w_y + (double)t->w_xy : 0;
    if (t->w_score > 0 && !chains_walked(r))
        score = (double)r->valid_score * pixels / 2;
    const double loss = by_class * e->nll + (double)t->w_score * score -
                        (double)t->w_nce * e->logp;
    const double tie = by_class * e->error + (double)t->w_nce * e->logp_error;
    const int has_one = r->state[STATE_BEST_AT] >= 0;
    if (!is_calm(r) || awaits_chains(r)) return 1;
    if (!isfinite(loss) || !isfinite(r->valid_score)) return 1;
    if (has_one && loss > (double)*lowest + tie) return 1;
    if (!has_one || loss < (double)*lowest) *lowest = (float)loss;
    r->state[STATE_BEST] = r->valid_accuracy;
    r->state[STATE_BEST_AT] = (float)r->update;
    return save_net(r, "best.safetensors");
}

/* Notes the lowest -log p(y|x) of the validation images so far, for note_overfitting; in runs with
   chains, which raise it, since their beginning. */
static void note_least(run *r) {
    float *const at = &r->state[STATE_LEAST_CE_AT];
    if (r->data.classes < 2 || !isfinite(r->valid_ce) || awaits_chains(r)) return;
    if (r->o->w_y <= 0 && r->o->w_xy <= 0) return;
    if (*at >= 0 && r->valid_ce > r->state[STATE_LEAST_CE]) return;
    r->state[STATE_LEAST_CE] = r->valid_ce;
    *at = (float)r->update;
}

/* Reports a picture that cannot be drawn. Training goes on: a picture can be drawn again. */
static void note_undrawn(run *r, const char *what) {
    char hint[80];
    const int has_reason = jem_error_status(r->ctx) != JEM_OK;
    if (has_reason) say(r, jem_error(r->ctx), memory_hint(hint));
    jem_clear_error(r->ctx);
    say(r, what, has_reason ? "" : memory_hint(hint));
}

/* Measures the accuracy on the validation images, with the averaged weights if there are any; keeps
   the best network; draws samples. */
static int validate(run *r) {
    const train_options *t = r->o;
    int ok = 1;
    if (team.rank) return 1;
    r->valid_accuracy = r->valid_ce = -1;
    r->valid_score = 0;
    r->valid_at = -1;
    jem_trainer_use_average(r->tr, 1);
    if (t->n_valid > 0) {
        const int requests = t->w_nce > 0 ? EVALUATE_LOGP : 0;
        evaluation e;
        double residual = 0;
        ok = evaluate(r->net, &r->data, r->order, t->n_valid, requests, &e);
        if (ok && t->w_score > 0)
            ok = score_residual(r, SCORE_IMAGES, t->noise_lo, t->noise_hi, &residual);
        ok = ok && check_wall(r);
        if (ok) {
            r->valid_accuracy = (float)e.accuracy;
            r->valid_ce = (float)e.nll;
            r->valid_score = (float)residual;
            r->valid_logp = t->w_nce > 0 ? e.logp : (double)NAN;
            r->valid_at = r->update;
            note_least(r);
            ok = calibrate(r) && keep_best(r, &e);
        }
    }
    if (ok && !draw_samples(r)) note_undrawn(r, "samples.png is not drawn; training continues");
    jem_trainer_use_average(r->tr, 0);
    if (!ok && !r->status) fail(r, 1);
    return ok;
}

/* Reports a rollback of the trainer's guard, and removes rows of the log that it took back. */
static int follow_rollback(run *r, const jem_stats *s) {
    char text[300];
    clear_sums(r);                                 /* of updates that were taken back */
    r->state[STATE_RETRIES] += 1;
    if (r->state[STATE_LEAST_CE_AT] > (float)r->update) r->state[STATE_LEAST_CE_AT] = -1;
    r->all.epoch = r->few.epoch = -1;              /* the decks are shuffled again */
    snprintf(text, sizeof text, "update %d: %s; rollback to update %d, other random numbers (%d of "
             "%d)", s->update + 1, s->reason, r->update, s->rollbacks, r->o->retries);
    say(r, text, "");
    return log_open(r, r->update);
}

/* Ends the run when its guard has given up, or there is none: with one, the network is in the last
   good state, which is saved. */
static int give_up(run *r) {
    char text[512];
    snprintf(text, sizeof text, "%s. Possible remedies: --resume with --sigma %g and --lr %g; "
             "another run with a smaller --p-x-weight, or with --energy-l2 .1", jem_error(r->ctx),
             2 * fmax(0.05, (double)r->o->sigma), (double)r->o->lr / 2);
    jem_clear_error(r->ctx);
    if (r->last.rollbacks && !save(r)) return 0;
    return complain(r, 1, text, "");
}

/* Averages the time of updates. With chains they take longer, and the first one, which makes the
   chains, longest: neither those before it nor itself count for those after it. */
static void keep_pace(run *r, double took) {
    if (chains_walked(r) && r->update - chains_from(r) <= 2) r->paced = 0;
    r->paced++;
    r->pace += (took - r->pace) * fmax(.05, 1. / r->paced);
}

/* Removes the checkpoint of a run whose first update failed, so that it can be tried again with
   other options. */
static void forget_start(const run *r) {
    char path[512];
    if (!team.rank && path_in(path, r, "last.safetensors")) remove(path);
}

/* Makes an update and adds up its statistics; returns 0 if it failed. */
static int step(run *r) {
    const train_options *t = r->o;
    const int two = draws_twice(t);
    const int for_labels = uses_labels(t);
    const int for_x = two && (t->w_x > 0 || t->w_score > 0 || t->w_nce > 0 || t->w_kl > 0);
    const double start = now();
    deck *labels = two ? &r->few : &r->all;
    const int n_labels = for_labels ? labels->batch : 0;
    const int n_x = for_x ? r->all.batch : 0;
    if (for_labels) draw_batch(r, labels, 0, t->cutout > 0, r->x_few, r->y_few);
    if (for_x) draw_batch(r, &r->all, t->plain_px, 0, r->x, r->y);
    const jem_stats s = jem_train_step_semi(r->tr, r->x_few, r->y_few, n_labels, r->x, n_x);
    r->state[STATE_GAP] = s.gap;
    if (s.status != JEM_OK) {
        r->last.rollbacks = s.rollbacks;
        r->update = jem_trainer_updates(r->tr);
        if (s.status == JEM_DIVERGED) return give_up(r);
        if (!r->paced && !s.rollbacks && !*t->resume) forget_start(r);
        return fail(r, 0);
    }
    if (t->spectral > 0 && !spectral_limit(r->net, t->spectral)) {
        jem_fail(r->ctx, JEM_NO_MEMORY, "out of memory for --spectral-norm");
        return fail(r, 0);
    }
    r->last = s;
    r->update = jem_trainer_updates(r->tr);
    if (s.rolled_back) return follow_rollback(r, &s);
    if (chains_walked(r) && r->update == chains_from(r) + 1)
        r->state[STATE_F_DATA] = 0;                /* see mean_f */
    const float add[STATE_SUMS] = { s.ce, s.accuracy, s.f_data, s.f_sample, s.grad_norm, s.loss };
    for (int i = 0; i < STATE_SUMS; i++) r->state[i] += add[i];
    r->state[STATE_NCE] += s.nce;
    r->state[STATE_SCORE] += s.residual;
    r->state[STATE_COUNT] += 1;
    keep_pace(r, now() - start);
    return 1;
}

/* Returns 1 if any process was asked to stop; all stop before the same update. */
static int is_stopped(void) {
    float asked = stop_signal != 0;
    if (team.ranks > 1) team.sum(team.user, &asked, 1);
    return asked > 0;
}

static int train(run *r) {
    const train_options *t = r->o;
    const int stop = t->stop_at ? smaller(t->stop_at, r->total) : r->total;
    const int eval_every = updates_of(r, t->eval_every);
    while (r->update < stop && !is_stopped()) {
        if (r->update % COMPARE_EVERY == 0 && !same_everywhere(r)) return 0;
        if (!step(r)) return 0;
        if (r->last.rolled_back) continue;
        const int evaluates = r->update % eval_every == 0 || r->update == r->total;
        const double start = now();
        if (evaluates && !validate(r)) return 0;
        if (evaluates) r->pause = now() - start;
        progress(r);
        if ((evaluates || r->update % t->print_every == 0) && !log_row(r, evaluates)) return 0;
        if ((evaluates || now() - r->saved > 60 * (double)t->save_minutes) &&
            is_calm(r) && !save(r)) return 0;
        if (evaluates && !draw_curves(r))
            note_undrawn(r, "curves.png is not drawn from log.csv; training continues");
    }
    return save(r);
}

/* ---- the command ----------------------------------------------------------------------------- */

static void run_free(run *r) {
    if (r->log) fclose(r->log);
    system_unlock(r->lock);
    jem_trainer_free(r->tr);
    jem_net_free(r->net);
    jem_ctx_free(r->ctx);
    data_free(&r->data);
    data_free(&r->test);
    free(r->order);
    free(r->labelled);
    free(r->all.cards);
    free(r->few.cards);
    free(r->x);
    free(r->x_few);
    free(r->y);
    free(r->y_few);
    free(r->starts);
    free(r->start_labels);
    free(r->moved);
}

/* Returns --stretch of runs from before that option: they stretched pictures by default. */
static const char *old_stretch(const jem_archive *a) {
    const char *size = jem_archive_meta(a, OPTION_PREFIX "size");
    return size && atoi(size) && shape_in_training(a) == DATA_STRETCH ? "on" : "off";
}

/* Reads the options of the run; some of them cannot differ from the stored ones. */
static int restore_options(options *o, const jem_archive *a) {
    char key[64];
    for (int i = 0; i < o->count; i++) {
        const option *t = &o->table[i];
        if (t->kind == OPTION_TITLE || t->life == OPTION_NOW) continue;
        if (t->life == OPTION_FREE && o->given[i]) continue;
        char given[OPTION_TEXT_SIZE], asked[OPTION_TEXT_SIZE], had[OPTION_TEXT_SIZE];
        snprintf(key, sizeof key, OPTION_PREFIX "%s", t->name);
        const char *stored = jem_archive_meta(a, key);
        if (!stored && !strcmp(t->name, "test-split")) stored = OLD_SPLIT;
        if (!stored && !strcmp(t->name, "stretch")) stored = old_stretch(a);
        if (!stored) stored = t->value[0];         /* newer than the run */
        strcpy(given, o->text[i]);
        option_spell(o, i, asked);
        if (!option_set(o, i, stored)) return 0;
        option_spell(o, i, had);
        if (o->given[i] && strcmp(asked, had)) {
            fprintf(stderr, "%s: --%s %s: this run has %s, which cannot be changed\n",
                    o->command, t->name, given, *stored ? stored : "nothing");
            return 0;
        }
    }
    /* a new length in one unit replaces the old one in the other */
    const int epochs = option_find(o, "epochs");
    const int iters = option_find(o, "iters");
    if (o->given[epochs] && !o->given[iters]) return option_set(o, iters, "0");
    if (o->given[iters] && !o->given[epochs]) return option_set(o, epochs, "0");
    return 1;
}

/* Checks that weights of a file are of the same classes and, in a table, of the same columns: all
   shapes can fit without a meaning. */
static int fits_data(run *r, const char *path, const jem_archive *from) {
    const data_set *s = &r->data;
    const char *classes = jem_archive_meta(from, "jem.classes");
    char text[200];
    if (classes && atoi(classes) != s->classes) {
        const int has = atoi(classes);
        snprintf(text, sizeof text, ": the model has %d class%s, the data %d: --init needs as "
                 "many", has, has == 1 ? "" : "es", s->classes);
        return complain(r, 1, path, text);
    }
    const char *height = jem_archive_meta(from, "jem.height");
    const char *width = jem_archive_meta(from, "jem.width");
    if (!s->values && height && width && (atoi(height) != s->h || atoi(width) != s->w)) {
        snprintf(text, sizeof text, ": the model has images of %d x %d, the data of %d x %d "
                 "(--size N resizes them)", atoi(width), atoi(height), s->w, s->h);
        return complain(r, 1, path, text);
    }
    const char *channels = jem_archive_meta(from, "jem.channels");
    if (s->values && channels && atoi(channels) != s->c) {
        snprintf(text, sizeof text, ": the model has %d columns, the data %d", atoi(channels),
                 s->c);
        return complain(r, 1, path, text);
    }
    for (int i = 0; s->column_names && i < s->c; i++) {
        char key[32];
        snprintf(key, sizeof key, COLUMN_PREFIX "%d", i);
        const char *name = jem_archive_meta(from, key);
        if (!name || !strcmp(name, s->column_names[i])) continue;
        if (table_is_number(name) || table_is_number(s->column_names[i])) continue;
        snprintf(text, sizeof text, ": column %d of the model is '%.60s', of the data '%.60s'",
                 i + 1, name, s->column_names[i]);
        jem_mask_controls(text, 0);
        return complain(r, 1, path, text);
    }
    return 1;
}

/* Warns if the run of the file held out other test images of this folder: it has learned many of
   those that this run holds out. Names decide the same for more images, a count does not. */
static void note_split(run *r, const char *path, const jem_archive *from) {
    const char *mine = r->table->text[option_find(r->table, "test-split")];
    const char *dataset = jem_archive_meta(from, OPTION_PREFIX "dataset");
    const char *split = jem_archive_meta(from, OPTION_PREFIX "test-split");
    const char *seed = jem_archive_meta(from, OPTION_PREFIX "seed");
    const char *mark = jem_archive_meta(from, "run.data");
    char text[160];
    if (!r->data.held_out || !dataset || strcmp(dataset, r->o->dataset)) return;
    if (!split) split = OLD_SPLIT;
    const int same_seed = strcmp(mine, "random") || (seed && atoi(seed) == r->o->seed);
    const int same_images = !mark || !strcmp(mark, r->data_mark);
    if (!strcmp(split, mine) && (r->data.by_name || (same_seed && same_images))) return;
    snprintf(text, sizeof text, ": may have learned some of the images held out here: it was "
             "trained with --test-split %.10s --seed %.12s", split, seed ? seed : "?");
    say(r, path, text);
}

/* Warns if the run of the file has learned images or rows that are for validation here. A smaller
   number is of the same ones; another seed holds out other rows, but not other images. Other data
   may contain the same rows, as when new ones were added, and hold out others of them. */
static void note_validation(run *r, const char *path, const jem_archive *from) {
    const char *mark = jem_archive_meta(from, "run.data");
    const char *seed = jem_archive_meta(from, OPTION_PREFIX "seed");
    const char *n_valid = jem_archive_meta(from, OPTION_PREFIX "n-valid");
    char text[160];
    if (!mark || !seed || !n_valid || r->o->n_valid < 1) return;
    if (strcmp(mark, r->data_mark)) {
        if (r->data.values)
            say(r, path, ": was trained with other rows: if some of them are here again, it may "
                "have learned rows of validation");
        return;
    }
    const int same_order = !r->data.values || atoi(seed) == r->o->seed;
    if (same_order && atoi(n_valid) >= r->o->n_valid) return;
    snprintf(text, sizeof text, ": has learned some of the %s of validation here: it was trained "
             "with --n-valid %.12s%s%.12s", kind_of_data(r), n_valid,
             same_order ? "" : " --seed ", same_order ? "" : seed);
    say(r, path, text);
}

/* Warns if classes of the same number have other names in the file. */
static void note_renamed(run *r, const char *path, const jem_archive *from) {
    char text[256];
    for (int k = 0; k < r->data.classes; k++) {
        char key[32];
        char had[NAME_SIZE];
        char has[NAME_SIZE];
        snprintf(key, sizeof key, CLASS_PREFIX "%d", k);
        const char *name = jem_archive_meta(from, key);
        if (!name || !strcmp(name, r->data.class_names[k])) continue;
        snprintf(text, sizeof text, ": class %d of the model is '%s', of the data '%s': training "
                 "starts from the weights of another class", k, clean(name, had),
                 clean(r->data.class_names[k], has));
        if (!team.rank) say(r, path, text);
        return;
    }
}

/* Notes options of pictures that differ from those of the file's training: its weights expect
   pictures that look like those. */
static void note_other_look(run *r, const char *path, const jem_archive *from) {
    static const char *const names[] = { "size", "crop", "pad", "stretch", "grey", "background" };
    const char *dataset = jem_archive_meta(from, OPTION_PREFIX "dataset");
    char text[200] = ": was trained with";
    size_t n = strlen(text);
    int differ = 0;
    if (team.rank || !dataset || !needs_folder_recipe(dataset) ||
        !needs_folder_recipe(r->o->dataset))
        return;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char key[64];
        const int at = option_find(r->table, names[i]);
        snprintf(key, sizeof key, OPTION_PREFIX "%s", names[i]);
        const char *value = jem_archive_meta(from, key);
        if (!value || !strcmp(value, r->table->text[at])) continue;
        const int is_flag = r->table->table[at].kind == OPTION_FLAG;
        differ++;
        if (is_flag)
            snprintf(text + n, sizeof text - n, " --%s%s", strcmp(value, "on") ? "no-" : "",
                     names[i]);
        else snprintf(text + n, sizeof text - n, " --%s %.12s", names[i], value);
        n += strlen(text + n);
    }
    snprintf(text + n, sizeof text - n, ", unlike this run");
    if (differ) say(r, path, text);
}

/* Returns the number of a text of an archive, 0 without it. */
static int number_of(const jem_archive *a, const char *key) {
    const char *text = jem_archive_meta(a, key);
    return text ? atoi(text) : 0;
}

/* Returns 1 if the network can begin as that of a file, which has fewer blocks (*deeper) or
   channels (*wider): both with --blocks zero, and alike otherwise; when wider, without norms, whose
   means would include the new channels, and without a U-Net. */
static int can_grow_from(const run *r, const jem_archive *from, int *deeper, int *wider) {
    jem_archive *to = jem_archive_create(r->ctx);
    int can = r->o->net == NET_WRN && r->o->blocks == (int)JEM_BLOCKS_ZERO && to &&
              jem_net_to_archive(r->net, to) == JEM_OK && same_but_for_size(to, from);
    const int blocks = can ? number_of(to, "jem.depth") - number_of(from, "jem.depth") : 0;
    const int widths = can ? number_of(to, "jem.widen") - number_of(from, "jem.widen") : 0;
    jem_archive_free(to);
    *deeper = blocks > 0;
    *wider = widths > 0;
    if (blocks < 0 || widths < 0 || (*wider && (r->o->unet || r->o->norm))) return 0;
    return *deeper || *wider;
}

/* Copies a parameter [outputs][inputs][...] of a narrower network. An output that it has does not
   see inputs that it lacks; other outputs keep their first weights. Returns 0 if it cannot fit. */
static int widen(jem_param *p, const jem_param *from) {
    ptrdiff_t window = 1;
    const int fits = p->ndim == from->ndim && p->shape[0] >= from->shape[0] &&
                     (p->ndim < 2 || p->shape[1] >= from->shape[1]);
    for (int i = 2; i < p->ndim; i++) {
        if (!fits || p->shape[i] != from->shape[i]) return 0;
        window *= p->shape[i];
    }
    if (!fits) return 0;
    const ptrdiff_t row = p->ndim < 2 ? 1 : p->shape[1] * window;
    const ptrdiff_t had = p->ndim < 2 ? 1 : from->shape[1] * window;
    for (ptrdiff_t i = 0; i < from->shape[0]; i++) {
        memset(p->value + i * row, 0, (size_t)row * sizeof *p->value);
        memcpy(p->value + i * row, from->value + i * had, (size_t)had * sizeof *p->value);
    }
    jem_param_changed(p);
    return 1;
}

/* Takes the weights of a file's network of fewer layers or channels, so that the network computes
   the same: new blocks begin as the identity. */
static int grow_from(run *r, const jem_archive *from) {
    jem_net *small = jem_net_from_archive(r->ctx, from);
    int fits = small != NULL;
    for (jem_param *p = r->net->params; fits && p; p = p->next) {
        const jem_param *had = jem_net_find(small, p->name);
        if (had) fits = widen(p, had);
    }
    if (fits) {                                    /* as jem_net_load does */
        r->net->noise_lo = small->noise_lo;
        r->net->noise_hi = small->noise_hi;
        r->net->mean = small->mean;
        r->net->walk_step = small->walk_step;
        r->net->walk_noise = small->walk_noise;
    }
    jem_net_free(small);
    if (!fits && jem_ok(r->ctx)) jem_net_load(r->net, from);   /* its error names the shapes */
    return fits && jem_ok(r->ctx);
}

/* Takes the weights of a file, not its options, nor what was fitted to its data: units and framing
   are of the data at hand (weights learn to fit other units, but numbers that are far from 0 are
   hard to learn from), and a calibration is of the trained network. */
static int start_from(run *r, const char *path) {
    jem_archive *from = jem_archive_read(r->ctx, path);
    if (!from && !team.rank && name_model_of_run("jem train", path)) {
        r->status = 1;
        return 0;
    }
    if (!from) return fail(r, 1);
    const int fits = fits_data(r, path, from);     /* prints what does not fit */
    if (fits) note_other_look(r, path, from);
    int deeper = 0;
    int wider = 0;
    const int grows = fits && can_grow_from(r, from, &deeper, &wider);
    int ok = 0;
    if (grows) ok = grow_from(r, from);
    else if (fits) ok = jem_net_load(r->net, from) == JEM_OK;
    if (ok) note_split(r, path, from);
    if (ok) note_validation(r, path, from);
    if (ok) note_renamed(r, path, from);
    if (ok && grows && deeper && !team.rank)
        say(r, path, ": is shallower: the blocks that it lacks begin as the identity");
    if (ok && grows && wider && !team.rank)
        say(r, path, ": is narrower: its outputs begin with weights of 0 on the new channels");
    jem_archive_free(from);
    if (ok) {
        forget_calibration(r->net);
        if (r->data.values) fit_units(r, r->net);
        else fit_framing(r, r->net);
        ok = jem_ok(r->ctx);
    }
    if (ok) set_fields(r, r->net);
    else if (fits) fail(r, 1);
    return ok;
}

/* Returns the update at which the chains of a checkpoint's run begin. */
static int planned_chains(const run *r, const jem_archive *a) {
    const char *at = jem_archive_meta(a, "run.chains");        /* older files have none */
    const char *iters = jem_archive_meta(a, OPTION_PREFIX "iters");
    const char *epochs = jem_archive_meta(a, OPTION_PREFIX "epochs");
    int total = 0;
    if (at) return atoi(at);
    if (iters) total = atoi(iters);
    if (!total && epochs) total = updates_of(r, atoi(epochs));
    return chains_of(r, total);
}

/* Places the chains of a run, which may continue a checkpoint's. If those have begun, a longer run
   must not stop them. */
static void place_chains(run *r, const jem_archive *a) {
    const char *updates = a ? jem_archive_meta(a, "run.updates") : NULL;
    r->chains_at = chains_of(r, r->total);
    if (!updates) return;
    const int planned = planned_chains(r, a);
    if (planned < atoi(updates)) r->chains_at = planned;
}

/* Refuses a shorter run whose chains would start at once, before the score is learned. */
static int keeps_chains_back(run *r, const jem_archive *a) {
    const train_options *t = r->o;
    const int planned = planned_chains(r, a);
    char text[200];
    if (!walks_chains(t)) return 1;
    if (r->update >= planned || r->update <= chains_from(r)) return 1;
    snprintf(text, sizeof text, "a run of %d updates would start its chains now, at update %d "
             "instead of %d; it needs %.0f updates or more", r->total, r->update, planned,
             ceil(r->update / (double)t->chains_from));
    return complain(r, 2, text, "");
}

/* Checks that the file of a checkpoint can store the options. */
static int options_storable(run *r) {
    jem_archive *a = jem_archive_create(r->ctx);
    const int ok = a && store_options(r, a);
    jem_archive_free(a);
    return ok || fail(r, 0);
}

/* Checks that a run goes on with the data that it started with. */
static int same_data(run *r, const jem_archive *a) {
    const char *mark = jem_archive_meta(a, "run.data");
    char word[DATA_PATH], remedy[DATA_PATH + 200] = "";
    char text[DATA_PATH + 500];
    if (!mark || !strcmp(mark, r->data_mark)) return 1;
    if (!r->data.values)
        snprintf(remedy, sizeof remedy, ", perhaps from these weights: --init %s/last.safetensors, "
                 "and the same --size, --crop, --pad, --stretch, --grey and --background",
                 data_quoted(r->o->out, word, sizeof word));
    snprintf(text, sizeof text, ": not the data that this run started with: %d %s then, %d now, "
             "with another checksum; train again with another --out%s", atoi(mark),
             kind_of_data(r), r->data.n, remedy);
    return complain(r, 1, r->o->dataset, text);
}

/* Checks that the batch and the chains can be divided among classes and processes. */
static int divisible(run *r) {
    const train_options *t = r->o;
    const int batch = r->all.batch;
    const int labelled = r->few.batch;
    char text[256];
    if ((t->class_cond || t->w_xy > 0) && t->buffer_size % r->data.classes)
        return complain(r, 2, "--buffer-size must be a multiple of the number of classes", "");
    if (batch % team.ranks == 0 && labelled % team.ranks == 0 && t->negatives % team.ranks == 0)
        return 1;
    snprintf(text, sizeof text, "%d processes: the batch (%d %s, %d labelled) and --negatives "
             "(%d) must be multiples of that", team.ranks, batch, kind_of_data(r), labelled,
             t->negatives);
    return complain(r, 2, text, "");
}

/* Stores a name in the network, unless a file cannot store it: `a` is an archive to try. */
static void store_name(run *r, jem_archive *a, const char *key, const char *name) {
    if (jem_archive_set_meta(a, key, name) == JEM_OK) jem_net_set_meta(r->net, key, name);
    else if (jem_error_status(r->ctx) == JEM_BAD_ARGUMENT) jem_clear_error(r->ctx);
}
/* Stores n names, with keys of this prefix and their numbers. */
static void store_names(run *r, jem_archive *a, const char *prefix, char *const *names, int n) {
    char key[32];
    for (int i = 0; i < n; i++) {
        snprintf(key, sizeof key, "%s%d", prefix, i);
        store_name(r, a, key, names[i]);
    }
}

/* Stores the names of classes and columns in the network. */
static int name_outputs(run *r) {
    const data_set *s = &r->data;
    jem_archive *a = jem_archive_create(r->ctx);
    if (a) store_names(r, a, CLASS_PREFIX, s->class_names, smaller(s->classes, 1000));
    if (a && s->column_names) store_names(r, a, COLUMN_PREFIX, s->column_names, s->c);
    if (a && *s->label && !table_is_number(s->label)) store_name(r, a, LABEL_COLUMN, s->label);
    jem_archive_free(a);
    return jem_ok(r->ctx) || fail(r, 0);
}

/* Loads the data, makes the network and its trainer, and reads their state from a, unless it is
   NULL. */
static int prepare(run *r, const jem_archive *a) {
    const train_options *t = r->o;
    char text[256];
    if (!options_storable(r) || !load_data(r)) return 0;
    if (a && !same_data(r, a)) return 0;
    r->total = t->iters ? t->iters : updates_of(r, t->epochs);
    place_chains(r, a);
    if (!divisible(r)) return 0;
    if (a && !unpack_state(r, a)) return fail(r, 1);
    r->net = make_net(r);
    if (r->net) r->tr = make_trainer(r);
    if (!r->tr) return fail(r, 0);
    if (!name_outputs(r)) return 0;
    if (a && !unpack(r, a)) return fail(r, 1);
    r->calibrated_at = r->update;                  /* the file's, or no calibration yet */
    if (r->update > r->total) {
        snprintf(text, sizeof text, "%d updates requested, but %d are done", r->total, r->update);
        return complain(r, 2, text, "");
    }
    if (a && !keeps_chains_back(r, a)) return 0;
    return !*t->init || a || start_from(r, t->init);
}

static void announce(const run *r) {
    const data_set *s = &r->data;
    if (s->values && !s->has_labels)
        printf("%s: %d rows of %d number%s, without labels; %d for validation\n", r->o->dataset,
               s->n, s->c, s->c == 1 ? "" : "s", r->o->n_valid);
    else if (s->values)
        printf("%s: %d rows of %d number%s, %d class%s; %d for validation, %d labels\n",
               r->o->dataset, s->n, s->c, s->c == 1 ? "" : "s", s->classes,
               s->classes == 1 ? "" : "es", r->o->n_valid, r->n_labelled);
    else {
        printf("%s: %d image%s of %d x %d%s, %d class%s; %d for validation, %d for training",
               r->o->dataset, s->n, s->n == 1 ? "" : "s", s->w, s->h,
               s->c == 3 ? " in colour" : "", s->classes, s->classes == 1 ? "" : "es",
               r->o->n_valid, r->n_train);
        if (r->n_labelled < r->n_train) printf(" (%d labels)", r->n_labelled);
        if (r->test.n) printf("; %d more for the test", r->test.n);
        printf("\n");
    }
    printf("%ld parameters, %d updates (%.1f epochs), %s x %d; results go to %s\n",
           (long)jem_net_size(r->net), r->total, (double)r->total / r->per_epoch,
           jem_isa_name(jem_ctx_isa(r->ctx)), jem_ctx_threads(r->ctx), r->o->out);
    if (team.ranks > 1) printf("%d processes, each with a part of the batch\n", team.ranks);
    if (r->update == r->total) printf("all updates are done; a larger --iters N continues\n");
    else if (r->update) printf("resuming after update %d\n", r->update);
    fflush(stdout);
}

/* Reports, after the last update, what the run could not write, and why. */
static void note_missing(const run *r) {
    const int n = calibration_images(r);
    char why[160] = "no validation came after the first chains (if there are any), f(x+) - f(x-) "
                    "was too large, or the validation loss was not finite";
    char word[DATA_PATH];
    if (team.rank) return;
    if (r->o->n_valid < 1)
        snprintf(why, sizeof why, "there are no validation %s (--n-valid N)", kind_of_data(r));
    if (r->state[STATE_BEST_AT] < 0)
        printf("no best.safetensors was written, because %s: use %s/last.safetensors\n", why,
               data_quoted(r->o->out, word, sizeof word));
    if (*r->uncalibrated)
        printf("no familiarity, because the %d %s for calibration are of no use: %s\n", n,
               kind_of_data(r), r->uncalibrated);
}

/* Evaluates the test images, which had no influence on any choice. */
static int test_images(run *r, const char *took) {
    evaluation e;
    jem_trainer_use_average(r->tr, 1);
    const int one = r->data.classes == 1;
    const int ok = evaluate(r->net, &r->test, NULL, r->test.n, one ? EVALUATE_LOGP : 0, &e);
    jem_trainer_use_average(r->tr, 0);
    if (!ok) return fail(r, 1);
    printf("trained in %s; %d test images: ", took, r->test.n);
    if (one) printf("mean log p(x) %.2f", e.logp);
    else printf("accuracy %.2f%%, -log p(y|x) %.4f", 100 * e.accuracy, e.nll);
    printf("; retries: %d\n", (int)r->state[STATE_RETRIES]);
    return 1;
}

/* Reports that the classes of the validation images were clearer earlier in the run. */
static void note_overfitting(const run *r) {
    const train_options *t = r->o;
    const float least = r->state[STATE_LEAST_CE];
    const int at = (int)r->state[STATE_LEAST_CE_AT];
    if (at < 0 || r->valid_at != r->update || !(r->valid_ce > 1.25f * least + .02f)) return;
    printf("overfitting: -log p(y|x) of the validation %s was %.3f after update %d, and is %.3f "
           "now: more %s%s%s or a shorter run (--iters %d) may help\n", kind_of_data(r),
           (double)least, at, (double)r->valid_ce,
           r->n_labelled < r->n_train ? "labels" : kind_of_data(r),
           r->data.values || t->shift ? "" : ", --shift 2",
           r->data.values || t->flip ? "" : ", --flip (if mirror images keep their class)", at);
}

/* Prints the results of a run, and the next command. */
static int final_test(run *r) {
    char took[32];
    char word[DATA_PATH];
    const char *out = data_quoted(r->o->out, word, sizeof word);
    time_text(took, elapsed(r));
    if (team.rank) return 1;
    note_overfitting(r);
    if (r->data.values) {
        printf("trained in %s; to score other rows: jem score %s/%s.safetensors FILE.csv\n", took,
               out, holds(r, "best.safetensors") ? "best" : "last");
        note_clocks(r->o->dataset, &r->data);      /* again: the first note scrolls past */
        return 1;
    }
    if (!r->test.n) printf("trained in %s; no test images\n", took);
    else if (!test_images(r, took)) return 0;
    if (needs_folder_recipe(r->o->dataset))
        printf("to classify other pictures: jem classify %s/last.safetensors PICTURE...\n", out);
    return 1;
}

static int train_help(options *o, train_options *t) {
    o->given[option_find(o, "preset")] = 0;        /* its defaults are the first column */
    if (!train_defaults(o, t)) return 2;
    printf("jem train [OPTIONS]: trains a model. Defaults: --preset paper, and fast (for %s)\n",
           t->dataset);
    options_print(o, 2, data_is_table(t->dataset) ? train_image_options : NULL);
    printf("After Ctrl-C or a power failure: jem train --resume DIR\n");
    return 0;
}

/* Sets --out to runs/NAME for the data set. Returns 0 and prints the reason if it has no such
   name. */
static int default_folder(train_options *t) {
    size_t end = strlen(t->dataset);
    size_t begin;
    while (end > 0 && t->dataset[end - 1] == '/') end--;
    for (begin = end; begin > 0 && t->dataset[begin - 1] != '/'; ) begin--;
    const int n = (int)(end - begin);
    if (n > 200 || !n || !strncmp(t->dataset + begin, "..", n < 2 ? 1 : (size_t)n)) {
        fprintf(stderr, "jem train: --dataset %s: use --out DIR for the results\n",
                t->dataset);
        return 0;
    }
    const int ending = data_is_table(t->dataset) && n > 4 ? 4 : 0;
    snprintf(t->out, sizeof t->out, "runs/%.*s", n - ending, t->dataset + begin);
    return 1;
}

/* Takes a word that is no option as the data set, if it is one. */
static int take_data_set(options *o, const char *word) {
    struct stat s;
    const int at = option_find(o, "dataset");
    if (o->given[at]) return 0;
    const int is_known = data_is_known(word) || !needs_folder_recipe(word);
    if (!is_known && stat(word, &s) && !data_is_table(word)) return 0;
    const int ok = option_set(o, at, word);
    o->given[at] = ok != 0;
    return ok;
}

/* Reads the command line. Returns -1 to continue, or the exit status. */
static int read_train_options(options *o, train_options *t, int argc, char **argv) {
    char **words = argv + 2;
    int n_words = 0;
    const int parsed = options_parse(o, argc, argv, 2, &n_words);
    if (!parsed) return 2;
    if (parsed < 0 && n_words == 1) take_data_set(o, words[0]);      /* it has its own defaults */
    if (parsed < 0) return train_help(o, t);
    if (!n_words || (n_words == 1 && take_data_set(o, words[0]))) return -1;
    if (n_words == 1 && strlen(words[0]) >= OPTION_TEXT_SIZE) {
        option_set(o, option_find(o, "dataset"), words[0]);    /* reports that it is too long */
        return 2;
    }
    if (option_given(o, "dataset"))
        fprintf(stderr, "jem train: unexpected '%s': the data set is %s already; options begin "
                "with --\n", words[n_words - 1], t->dataset);
    else
        fprintf(stderr, "jem train: unexpected '%s': not a data set, a folder or a .csv file that "
                "is there (one at most); options begin with --\n", words[n_words - 1]);
    return 2;
}

static void run_create(run *r, options *o, train_options *t) {
    memset(r, 0, sizeof *r);
    r->table = o;
    r->o = t;
    r->status = 2;
    r->began = r->saved = now();
    r->valid_accuracy = r->valid_ce = r->state[STATE_BEST] = -1;
    r->state[STATE_LR] = r->state[STATE_STEP] = 1;
    r->state[STATE_LOWEST] = r->state[STATE_BEST_AT] = r->state[STATE_LEAST_CE_AT] = -1;
    r->valid_at = -1;
    r->valid_logp = (double)NAN;
    r->lock = -1;
}

/* Reads the file of a run, locked first, into `a`, and its options. */
static int read_run(run *r, jem_ctx *reader, jem_archive **a) {
    char path[512];
    char hint[80];
    r->status = 1;
    if (reader && holds_a_run(r) && !lock_folder(r)) return 0;
    if (reader && path_in(path, r, "last.safetensors")) *a = jem_archive_read(reader, path);
    if (!*a) {
        fprintf(stderr, "jem train: %s%s\n", reader ? jem_error(reader) : "no memory",
                memory_hint(hint));
        return 0;
    }
    if (!jem_archive_meta(*a, OPTION_PREFIX "dataset") || !jem_archive_find(*a, "run.state")) {
        fprintf(stderr, "jem train: %s: not a run that this program can continue\n", path);
        return 0;
    }
    const char *seconds = jem_archive_meta(*a, "run.seconds");
    if (seconds) r->seconds = atof(seconds);
    r->status = 2;
    return restore_options(r->table, *a);
}

/* Finds the directory of --resume, which may also be given as the file in it. */
static int resumed_folder(train_options *t) {
    if (*t->out || *t->init) {
        fprintf(stderr, "jem train: --%s starts a new run; --resume continues one in place\n",
                *t->out ? "out" : "init");
        return 0;
    }
    char *slash = strrchr(t->resume, '/');
    char *file = slash ? slash + 1 : t->resume;
    if (!strcmp(file, "best.safetensors")) {
        fprintf(stderr, "jem train: %s: is the network alone, without the state of its run: "
                "--resume DIR continues the run in DIR, --init FILE begins another with these "
                "weights\n", t->resume);
        return 0;
    }
    if (!strcmp(file, "last.safetensors")) strcpy(file, slash ? "" : ".");
    strcpy(t->out, t->resume);
    t->out[system_path_length(t->out)] = 0;
    return may_be_run("jem train", t->out);
}

/* Makes the run itself, and its directory, whose lock a resumed run has already. */
static int open_folder(run *r, const jem_archive *a) {
    const train_options *t = r->o;
    char text[512];
    r->status = 0;
    r->ctx = make_ctx(t->threads, t->precision);
    if (!r->ctx) return complain(r, 1, "no memory", "");
    if (!prepare(r, a)) return 0;
    if (!team.rank && !make_folder(t->out)) {
        snprintf(text, sizeof text, ": cannot be created: %s", strerror(errno));
        return complain(r, 1, t->out, text);
    }
    return *t->resume || (lock_folder(r) && is_free(r));
}

/* Trains until the end, or until the run is stopped. */
static void carry_out(run *r) {
    char word[DATA_PATH];
    stop_on_signals(team.ranks > 1 ? "\nsaving after this update, unless another process is gone: "
                                     "then the last checkpoint remains\n"
                                   : "\nsaving after this update; press again to stop at once\n");
#ifdef SIGPIPE
    signal(SIGPIPE, SIG_IGN);                      /* training continues without a reader */
#endif
    announce(r);
    char film[512];
    if (!r->update && !team.rank && path_in(film, r, "samples_film.png")) remove(film);
    const int ok = log_open(r, r->update) && (r->update || save(r)) && train(r);
    if (isatty(1) && r->shown > 0 && r->update < r->total) printf("\n");
    if (!ok) return;
    if (r->update < r->total) {
        printf("stopped after update %d; to continue: jem train --resume %s\n", r->update,
               data_quoted(r->o->out, word, sizeof word));
        r->status = stop_signal ? 128 + stop_signal : 0;
        return;
    }
    signal(SIGINT, SIG_DFL);                       /* everything is saved */
    signal(SIGTERM, SIG_DFL);
    if (final_test(r)) note_missing(r);
}

int train_command(int argc, char **argv) {
    static options table;                          /* zeroed, and too large for some stacks */
    static train_options values;
    const size_t bytes = (size_t)train_count * sizeof *train_table;
    options *o = options_begin(&table, "jem train", train_table, bytes, &values);
    const int code = read_train_options(o, &values, argc, argv);
    if (code >= 0) return code;

    run r;
    jem_archive *a = NULL;
    jem_ctx *reader = NULL;
    int ok;
    run_create(&r, o, &values);
    limit_memory(values.max_memory);
    if (*values.resume) {
        ok = resumed_folder(&values);
        if (ok) {
            reader = make_ctx(1, 0);
            ok = read_run(&r, reader, &a);
        }
    } else ok = train_defaults(o, &values);
    ok = ok && train_combination(o, &values);
    ok = ok && (*values.out || default_folder(&values));
    values.out[system_path_length(values.out)] = 0;
    ok = ok && (*values.resume || is_free(&r));
    r.rare_last = !a || jem_archive_meta(a, RARE_LAST) != NULL;
    ok = ok && open_folder(&r, a);
    jem_archive_free(a);
    jem_ctx_free(reader);
    if (ok) carry_out(&r);
    const int status = r.status;
    run_free(&r);
    return status;
}
