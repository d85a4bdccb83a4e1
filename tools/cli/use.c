/* sample, classify, eval, info, export. */
#include "tools/cli/system.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "tools/cli/memory.h"
#include "tools/cli/onnx.h"
#include "tools/cli/score.h"
#include "tools/cli/train.h"
#include "tools/cli/train_options.h"
#include "tools/cli/use.h"
#include "tools/support/chart.h"

/* ---- models ---------------------------------------------------------------------------------- */

int model_fail(const char *command, const model *m) {
    char hint[80];
    fprintf(stderr, "%s: %s%s\n", command, m->ctx ? jem_error(m->ctx) : "no memory",
            memory_hint(hint));
    return 0;
}

ptrdiff_t image_size(const jem_net *net) {
    return (ptrdiff_t)net->channels * net->height * net->width;
}

/* Checks that there is memory for 16 images of a network, the minimum of a pass: a few bytes of a
   file can describe images larger than any memory. */
static int model_fits(const model *m, const char *command) {
    const double mb = 2 * 16 * sizeof(float) * (double)image_size(m->net) / 1e6;
    if (mb * 1e6 <= budget.most) return 1;
    fprintf(stderr, "%s: %s: has images of %d x %d, a pass needs at least %.0f MB; %.0f MB may "
            "be used (--max-memory N allows N MB)\n", command, m->path, m->net->width,
            m->net->height, mb, budget.most / 1e6);
    return 0;
}

int model_open(model *m, const char *command, const char *path, int threads, int precision,
               int max_memory) {
    memset(m, 0, sizeof *m);
    limit_memory(max_memory);
    m->path = path;
    m->ctx = make_ctx(threads, precision);
    m->archive = m->ctx ? jem_archive_read(m->ctx, path) : NULL;
    m->net = m->archive ? jem_net_from_archive(m->ctx, m->archive) : NULL;
    if (m->net) return model_fits(m, command);
    struct stat status;
    if (!stat(path, &status) && S_ISDIR(status.st_mode)) {
        fprintf(stderr, "%s: %s is a folder; the model of a run is the file last.safetensors in it\n",
                command, path);
        return 0;
    }
    return model_fail(command, m);
}

void model_name(const char *path, char name[NAME_SIZE]) {
    const char *end = strrchr(path, '/');
    const char *from = end ? end + 1 : path;
    char *whole = NULL;                        /* the directory of the run may be the current one */
    if (!strcmp(from, "last.safetensors") && (*path == '.' || !end) &&
        (whole = realpath(path, NULL)) != NULL) {
        path = whole;
        end = strrchr(path, '/');
        from = end + 1;
    }
    if (end > path && !strcmp(from, "last.safetensors"))
        for (from = end; from > path && from[-1] != '/';) from--;
    else end = strstr(from, ".safetensors");
    snprintf(name, NAME_SIZE, "%.*s", end ? (int)(end - from) : 40, from);
    free(whole);
}

void model_close(model *m) {
    jem_net_free(m->net);
    jem_archive_free(m->archive);
    jem_ctx_free(m->ctx);
}

int may_write(const char *command, const char *from, const char *to) {
    struct stat source, target;
    if (stat(to, &target)) return 1;
    if (from && !stat(from, &source) && source.st_dev == target.st_dev && source.st_ino == target.st_ino)
        return fprintf(stderr, "%s: %s and %s are the same file\n", command, from, to), 0;
    jem_ctx *ctx = S_ISREG(target.st_mode) ? make_ctx(1, 0) : NULL;
    jem_archive *a = ctx ? jem_archive_read(ctx, to) : NULL;
    const int goes_on = a && jem_archive_find(a, "run.state");
    if (goes_on)
        fprintf(stderr, "%s: %s: contains a run that jem train --resume can continue\n", command,
                to);
    jem_archive_free(a);
    jem_ctx_free(ctx);
    return !goes_on;
}

const char *clean(const char *text, char to[NAME_SIZE]) {
    snprintf(to, NAME_SIZE, "%s", text);
    harmless(to, 0);
    return to;
}

const char *class_name(const jem_net *net, int label, char to[NAME_SIZE]) {
    char key[32];
    snprintf(key, sizeof key, CLASS_PREFIX "%d", label);
    const char *name = jem_net_meta(net, key);
    if (name) return clean(name, to);
    snprintf(to, NAME_SIZE, "%d", label);
    return to;
}

/* Returns the class of this name, or -1. */
static int class_named(const jem_net *net, const char *name) {
    for (int k = 0; k < net->classes; k++) {
        char key[32];
        snprintf(key, sizeof key, CLASS_PREFIX "%d", k);
        const char *is = jem_net_meta(net, key);
        if (is && !strcmp(is, name)) return k;
    }
    return -1;
}

/* Finds a class by name or number; returns 0 and prints the reason if the network does not have
   it. */
static int class_of(const jem_net *net, const char *command, const char *text, int *label) {
    char number[NAME_SIZE], *end;
    const int named = class_named(net, text);
    if (named >= 0) return *label = named, 1;
    const long v = strtol(text, &end, 10);
    if (end != text && !*end && v >= 0 && v < net->classes) return *label = (int)v, 1;
    fprintf(stderr, "%s: --class %s: the network has classes 0 to %d", command, text,
            net->classes - 1);
    for (int k = 0; k < net->classes && k < 20; k++)
        fprintf(stderr, "%s%s", k ? ", " : ": ", class_name(net, k, number));
    fprintf(stderr, "\n");
    return 0;
}

int read_options(options *o, int argc, char **argv, char ***words, int *n_words, int least,
                 int most, const char *usage) {
    const int parsed = options_parse(o, argc, argv, 2, n_words);
    *words = argv + 2;
    if (parsed < 0) {
        printf("%s\n", usage);
        options_print(o, 1);
        return 0;
    }
    if (!parsed) return 2;
    if (*n_words < least || *n_words > most) {
        char word[NAME_SIZE];
        if (*n_words > most)
            fprintf(stderr, "%s: unexpected '%s'; usage: ", o->command,
                    clean((*words)[most], word));
        fprintf(stderr, "%s (%s --help lists the options)\n", usage, o->command);
        return 2;
    }
    return options_defaults(o, 0) ? -1 : 2;
}

/* ---- jem sample ------------------------------------------------------------------------------ */

typedef struct sample_options {
    char out[OPTION_TEXT_SIZE], chains[OPTION_TEXT_SIZE], each[OPTION_TEXT_SIZE];
    char label[OPTION_TEXT_SIZE];
    int n, columns, zoom, from, visits, steps, fresh_steps, seed, threads, precision, max_memory;
    float sgld_lr, sgld_std, clamp, guidance, fraction;
} sample_options;

enum { FROM_NOISE = 0, FROM_BUFFER };
enum { GRID_MOST = 400, SHOTS = 12, STRIPS_MOST = 10 };

#define SAMPLE_AT(field) offsetof(sample_options, field)
static const option sample_table[] = {
    { "out", OPTION_TEXT, OPTION_NOW, SAMPLE_AT(out), "FILE.png", NO_PRESETS("samples.png"), 0, 0,
      "a grid of the samples (the first 400)" },
    { "n", OPTION_INT, OPTION_NOW, SAMPLE_AT(n), "N", NO_PRESETS("100"), 1, 1e7,
      "number of samples" },
    { "class", OPTION_TEXT, OPTION_NOW, SAMPLE_AT(label), "K", NO_PRESETS("any"), 0, 0,
      "a class (name or number), any, or all: a row for each" },
    { "from", OPTION_CHOICE, OPTION_NOW, SAMPLE_AT(from), "noise|buffer", NO_PRESETS("noise"), 0,
      0, "starting points of chains; last.safetensors has the buffer" },
    { "steps", OPTION_INT, OPTION_NOW, SAMPLE_AT(steps), "N", NO_PRESETS("-1"), -1, 1e8,
      "SGLD steps (-1: 300 from noise, 0 from the buffer)" },
    { "fresh-steps", OPTION_INT, OPTION_NOW, SAMPLE_AT(fresh_steps), "N", NO_PRESETS("-1"), -1, 1e8,
      "noise-blind steps first, after score matching (-1: the model's, usually 300)" },
    { "fraction", OPTION_FLOAT, OPTION_NOW, SAMPLE_AT(fraction), "X", NO_PRESETS("0"), 0, 1,
      "of the noise that such a step removes (0: the model's, usually .05); 15 steps of .3, then "
      "45: a quick draft" },
    { "guidance", OPTION_FLOAT, OPTION_NOW, SAMPLE_AT(guidance), "X", NO_PRESETS("0"), 0, 1e6,
      "weight of log p(y|x) for a class (0: the model's)" },
    { "min-visits", OPTION_INT, OPTION_NOW, SAMPLE_AT(visits), "N", NO_PRESETS("5"), 0, 1e8,
      "minimum walks of a chain, from the buffer" },
    { "sgld-lr", OPTION_FLOAT, OPTION_NOW, SAMPLE_AT(sgld_lr), "X", NO_PRESETS("1"), -1e9, 1e9,
      "step size (default: as in training)" },
    { "sgld-std", OPTION_FLOAT, OPTION_NOW, SAMPLE_AT(sgld_std), "X", NO_PRESETS(".01"), 0, 1e9,
      "std of the noise of a step (default: as in training)" },
    { "clamp", OPTION_FLOAT, OPTION_NOW, SAMPLE_AT(clamp), "X", NO_PRESETS("0"), 0, 1e9,
      "keep samples within +-X (default: as in training)" },
    { "chains", OPTION_TEXT, OPTION_NOW, SAMPLE_AT(chains), "FILE.png", NO_PRESETS(""), 0, 0,
      "ten chains from start to end, one per row" },
    { "each", OPTION_TEXT, OPTION_NOW, SAMPLE_AT(each), "DIR", NO_PRESETS(""), 0, 0,
      "each sample as its own PNG file, for FID tools" },
    { "columns", OPTION_INT, OPTION_NOW, SAMPLE_AT(columns), "N", NO_PRESETS("10"), 1, 1000,
      "columns of the grid" },
    { "zoom", OPTION_INT, OPTION_NOW, SAMPLE_AT(zoom), "N", NO_PRESETS("2"), 1, 32,
      "enlarge the grid N times" },
    { "seed", OPTION_INT, OPTION_NOW, SAMPLE_AT(seed), "N", NO_PRESETS("1"), 0, 2147483647,
      "seed for all random numbers" },
    { "precision", OPTION_CHOICE, OPTION_NOW, SAMPLE_AT(precision), "exact|fast|direct|bf16",
      NO_PRESETS("exact"), 0, 0, "arithmetic" },
    { "threads", OPTION_INT, OPTION_NOW, SAMPLE_AT(threads), "N", NO_PRESETS("0"), 0, 1024,
      "(0: all cores; results do not depend on it)" },
    LIMIT_MEMORY(sample_options, "4000")
};

typedef struct sampling {
    const sample_options *o;
    model m;
    jem_generate_desc how;                          /* suitable for the network, with the options */
    int steps, fresh_steps, one_class, all_classes;
    int walked;                                    /* steps before the current walk */
    float *x, *grid, *strips;                      /* strips[row][shot] */
    int labels[SAMPLE_AT_ONCE];
    int *queue, *next, *end;                       /* buffer: remaining chains by class */
    int rows, apart, taken;                        /* the strips show every apart-th chain */
    int done;                                      /* samples before these */
    double logp, sure, unstrange;
    int calibrated;
} sampling;

/* Returns the step of shot k: all steps if there are at most SHOTS, otherwise denser at the start.
   */
static int moment(int k, int steps) {
    const double t = (double)k / (SHOTS - 1);
    const int even = (int)((int64_t)k * steps / (SHOTS - 1));
    const int early = (int)(steps * t * t * t + .5);
    return steps <= SHOTS - 1 ? (k < steps ? k : steps) : early > k ? early : even < k ? even : k;
}
static void take_shots(sampling *s, const float *x, int step) {
    const ptrdiff_t size = image_size(s->m.net);
    const int steps = s->fresh_steps + s->steps;
    for (; s->taken < SHOTS && moment(s->taken, steps) == step; s->taken++)
        for (int i = 0; i < s->rows; i++)
            memcpy(s->strips + (i * SHOTS + s->taken) * size, x + i * s->apart * size,
                   (size_t)size * sizeof *x);
}
static int watch_chains(void *user, int step, jem_tensor *x) {
    sampling *s = (sampling *)user;
    const int now = s->walked + step + 1;
    if (s->taken < SHOTS && moment(s->taken, s->fresh_steps + s->steps) == now &&
        jem_read(x, s->x) == JEM_OK) take_shots(s, s->x, now);
    if (now == s->fresh_steps) s->walked = now;    /* the next walk starts from 0 again */
    return 0;
}

/* Sorts the chains of the buffer by class, each class in random order. */
static int queue_buffer(sampling *s, jem_rng *rng) {
    const jem_net *net = s->m.net;
    const jem_entry *b = jem_archive_find(s->m.archive, "replay_buffer");
    const jem_entry *v = jem_archive_find(s->m.archive, "replay_visits");
    const int by_class = s->one_class || s->all_classes;
    if (b->dtype != JEM_DTYPE_F32 || b->ndim != 4 || b->shape[0] < 1 || b->shape[0] > INT_MAX / 8 ||
        b->shape[1] != net->channels || b->shape[2] != net->height || b->shape[3] != net->width ||
        (v && (v->dtype != JEM_DTYPE_I32 || v->ndim != 1 || v->shape[0] != b->shape[0]))) {
        fprintf(stderr, "jem sample: %s: the replay buffer does not fit the network\n",
                s->m.path);
        return 0;
    }
    const int n = (int)b->shape[0];
    const int classes = by_class ? net->classes : 1;
    const float *data = (const float *)b->data;
    const int *visits = v ? (const int *)v->data : NULL;
    s->queue = (int *)malloc((size_t)n * sizeof(int));
    s->next = (int *)calloc((size_t)classes + 1, sizeof(int));
    s->end = (int *)calloc((size_t)classes + 1, sizeof(int));
    int *order = (int *)malloc((size_t)n * sizeof(int));
    jem_answer *a = (jem_answer *)malloc((size_t)n * sizeof *a);
    int ok = s->queue && s->next && s->end && order && a;
    if (ok && by_class && jem_classify(s->m.net, data, n, a) != JEM_OK) ok = 0;
    if (ok) {
        int used = 0;
        for (int i = 0; i < n; i++) order[i] = i;
        shuffle(order, n, rng);
        for (int c = 0; c < classes; c++) {
            s->next[c] = used;
            for (int i = 0; i < n; i++)
                if ((!visits || visits[order[i]] >= s->o->visits) &&
                    (!by_class || a[order[i]].label == c)) s->queue[used++] = order[i];
            s->end[c] = used;
        }
    } else if (!jem_ok(s->m.ctx)) model_fail("jem sample", &s->m);
    else fprintf(stderr, "jem sample: out of memory for the %d chains of the buffer\n", n);
    free(order);
    free(a);
    return ok;
}

/* Fills in the starting points of n chains. */
static int begin_chains(sampling *s, int n, jem_rng *rng) {
    const ptrdiff_t size = image_size(s->m.net);
    char number[NAME_SIZE];
    if (s->o->from == FROM_NOISE) {
        if (s->fresh_steps)
            jem_fill_normal(s->m.ctx, rng, s->x, n * size, s->how.mean, s->how.denoise.sigma_max);
        else jem_fill_uniform(s->m.ctx, rng, s->x, n * size, -1, 1);
        return 1;
    }
    const float *data = (const float *)jem_archive_find(s->m.archive, "replay_buffer")->data;
    for (int i = 0; i < n; i++) {
        const int c = s->one_class || s->all_classes ? s->labels[i] : 0;
        if (s->next[c] == s->end[c]) {
            fprintf(stderr, "jem sample: the buffer has too few chains%s%s with %d or more walks "
                    "(after %d samples): use a smaller --n or --min-visits, or --from noise\n",
                    s->one_class || s->all_classes ? " of class " : "",
                    s->one_class || s->all_classes ? class_name(s->m.net, c, number) : "",
                    s->o->visits, s->done + i);
            return 0;
        }
        memcpy(s->x + i * size, data + s->queue[s->next[c]++] * size, (size_t)size * sizeof(float));
    }
    return 1;
}

static int write_each(const sampling *s, int n) {
    const jem_net *net = s->m.net;
    const ptrdiff_t size = image_size(net);
    const ptrdiff_t pixels = (ptrdiff_t)net->height * net->width;
    unsigned char *bytes = (unsigned char *)malloc((size_t)size);
    int ok = bytes != NULL;
    for (int i = 0; ok && i < n; i++) {
        char path[512];
        for (ptrdiff_t k = 0; k < size; k++)       /* NCHW to NHWC */
            bytes[k % pixels * net->channels + k / pixels] =
                picture_byte((s->x[i * size + k] + 1) / 2);
        snprintf(path, sizeof path, "%.400s/%06d.png", s->o->each, s->done + i);
        ok = picture_write(path, bytes, net->width, net->height, net->channels);
    }
    free(bytes);
    return ok;
}

/* Makes the next n samples: starts, walks, counts, writes. */
static int sample_some(sampling *s, int n, jem_rng *rng) {
    const ptrdiff_t size = image_size(s->m.net);
    jem_ctx *ctx = s->m.ctx;
    jem_answer a[SAMPLE_AT_ONCE];
    for (int i = 0; i < n; i++)
        if (s->all_classes) s->labels[i] = (s->done + i) / s->o->columns % s->m.net->classes;
    if (!begin_chains(s, n, rng)) return 0;
    if (s->done == 0 && s->strips) take_shots(s, s->x, 0);
    const jem_mark mark = jem_begin(ctx);
    jem_tensor *t = jem_input(ctx, s->x, n, s->m.net->channels, s->m.net->height, s->m.net->width);
    jem_sgld_desc walk = s->how.walk;
    jem_denoise_desc denoise = s->how.denoise;
    const jem_denoise_desc last = jem_denoise_desc_clean(s->how.last_sigma);
    if (s->done == 0 && s->strips) {
        walk.watch = denoise.watch = watch_chains;
        walk.watch_user = denoise.watch_user = s;
    }
    jem_query query = jem_net_query(s->m.net, s->labels);
    if (s->o->guidance > 0) query.weight = s->o->guidance;
    const int labelled = s->one_class || s->all_classes;
    jem_logp_fn logp = jem_logp;
    if (labelled) logp = query.weight == 1 ? jem_logp_class : jem_logp_guided;
    if (s->fresh_steps) jem_denoise(ctx, logp, &query, t, &denoise, rng);
    jem_sgld(ctx, logp, &query, t, &walk, rng);
    if (s->how.last_sigma > 0 && s->fresh_steps + s->steps > 0)             /* remaining noise */
        jem_denoise(ctx, logp, &query, t, &last, NULL);
    jem_read(t, s->x);
    jem_end(ctx, mark);
    for (ptrdiff_t k = 0; k < n * size; k++)       /* the pictures that are written are judged */
        s->x[k] = (float)picture_byte((s->x[k] + 1) / 2) / 127.5f - 1;
    if (jem_classify(s->m.net, s->x, n, a) != JEM_OK) return model_fail("jem sample", &s->m);
    for (int i = 0; i < n; i++) {
        s->logp += (double)a[i].log_density;
        s->sure += (double)a[i].probability;
        s->unstrange += jem_judge(a[i].familiarity) != JEM_STRANGE;
        s->calibrated = a[i].familiarity >= 0;
    }
    for (int i = 0; i < n && s->done + i < GRID_MOST; i++)
        memcpy(s->grid + (s->done + i) * size, s->x + i * size, (size_t)size * sizeof(float));
    if (*s->o->each && !write_each(s, n)) return 0;
    s->done += n;
    return 1;
}

static int sample_all(sampling *s) {
    const jem_net *net = s->m.net;
    const sample_options *o = s->o;
    const ptrdiff_t size = image_size(net);
    const int shown = o->n < GRID_MOST ? o->n : GRID_MOST;
    char hint[80];
    int label = 0;
    if (net->channels != 1 && net->channels != 3) {
        fprintf(stderr, "jem sample: %s has images of %d channels; picture files have 1 or 3\n",
                s->m.path, net->channels);
        return 1;
    }
    s->all_classes = !strcmp(o->label, "all");
    s->one_class = !s->all_classes && strcmp(o->label, "any") != 0;
    if ((s->one_class || s->all_classes) && jem_net_meta(net, "jem.uncond")) {
        fprintf(stderr, "jem sample: %s has no p(x,y) (--uncond): use --class any\n",
                s->m.path);
        return 2;
    }
    if (s->one_class && !class_of(net, "jem sample", o->label, &label)) return 2;
    for (int i = 0; i < SAMPLE_AT_ONCE; i++) s->labels[i] = label;
    s->how = jem_net_generate_desc(net);
    s->steps = o->steps >= 0 ? o->steps : o->from == FROM_NOISE ? s->how.walk.steps : 0;
    if (o->from != FROM_NOISE) s->how.denoise.steps = 0;
    if (o->fresh_steps >= 0 && s->how.denoise.steps > 0) s->how.denoise.steps = o->fresh_steps;
    s->fresh_steps = s->how.denoise.steps;
    s->how.walk.steps = s->steps;
    if (o->fraction > 0) s->how.denoise.fraction = o->fraction;
    s->how.walk.step_size = o->sgld_lr;
    s->how.walk.noise_std = o->sgld_std;
    if (o->clamp > 0) {
        s->how.walk.clamp_lo = -o->clamp;
        s->how.walk.clamp_hi = o->clamp;
    }
    s->apart = s->all_classes && STRIPS_MOST * o->columns <= SAMPLE_AT_ONCE ? o->columns : 1;
    s->rows = (o->n - 1) / s->apart + 1 < STRIPS_MOST ? (o->n - 1) / s->apart + 1 : STRIPS_MOST;
    if (*o->each && !make_folder(o->each)) {
        fprintf(stderr, "jem sample: %s: cannot be created: %s\n", o->each, strerror(errno));
        return 1;
    }
    s->x = new_floats((double)(o->n < SAMPLE_AT_ONCE ? o->n : SAMPLE_AT_ONCE) * (double)size);
    s->grid = new_floats((double)shown * (double)size);
    if (*o->chains) s->strips = new_floats((double)(STRIPS_MOST * SHOTS) * (double)size);
    if (!s->x || !s->grid || (*o->chains && !s->strips)) {
        fprintf(stderr, "jem sample: out of memory for the samples%s\n", memory_hint(hint));
        return 1;
    }
    jem_rng rng = jem_rng_seed((uint64_t)o->seed);
    if (o->from == FROM_BUFFER && !jem_archive_find(s->m.archive, "replay_buffer")) {
        fprintf(stderr, "jem sample: %s: has no replay buffer (last.safetensors of a run has)\n",
                s->m.path);
        return 2;
    }
    if (o->from == FROM_BUFFER && !queue_buffer(s, &rng)) return 1;
    while (s->done < o->n) {
        const int left = o->n - s->done;
        if (!sample_some(s, left < SAMPLE_AT_ONCE ? left : SAMPLE_AT_ONCE, &rng)) return 1;
    }
    if (!picture_grid(o->out, s->grid, shown, o->columns, net->channels, net->height, net->width,
                      o->zoom)) return 1;
    if (s->strips && !picture_grid(o->chains, s->strips, s->rows * SHOTS, SHOTS, net->channels,
                                   net->height, net->width, o->zoom)) return 1;
    if (*o->each) {                           /* from an earlier call: FID tools would count them */
        char path[OPTION_TEXT_SIZE + 16];
        struct stat old;
        snprintf(path, sizeof path, "%.400s/%06d.png", o->each, s->done);
        if (!stat(path, &old)) fprintf(stderr, "jem sample: %s already existed: more images are in "
                                       "%s than these %d\n", path, o->each, s->done);
    }
    printf("%d samples after %d steps from %s: %s%s%s%s%s\n", s->done, s->fresh_steps + s->steps,
           o->from == FROM_NOISE ? "noise" : "the buffer", o->out, *o->chains ? ", " : "",
           o->chains, *o->each ? ", " : "", o->each);
    printf("mean log p(x) %.1f, mean highest p(y|x) %.3f", s->logp / s->done, s->sure / s->done);
    if (s->calibrated) printf(", %.1f%% not strange", 100 * s->unstrange / s->done);
    printf("\n");
    return 0;
}

/* Sets an option that was not given to its value in training, if the file has it; or to
   `otherwise`, if there is one. */
static int as_in_training(options *o, const jem_archive *a, const char *name,
                          const char *otherwise) {
    char key[64];
    snprintf(key, sizeof key, OPTION_PREFIX "%s", name);
    const char *text = jem_archive_meta(a, key);
    if (!text) text = otherwise;
    return !text || option_default(o, option_find(o, name), text);
}

int sample_command(int argc, char **argv) {
    static options table;
    static sample_options values;
    static sampling s;
    char **words;
    int n = 0;
    memset(&s, 0, sizeof s);
    options *o = options_begin(&table, "jem sample", sample_table, sizeof sample_table, &values);
    const int read = read_options(o, argc, argv, &words, &n, 1, 1,
                                  "jem sample MODEL [OPTIONS]: draws images from a model");
    if (read >= 0) return read;
    s.o = &values;
    int status = 1;
    if (!may_write(o->command, words[0], values.out) ||
        (*values.chains && !may_write(o->command, words[0], values.chains))) return 2;
    if (model_open(&s.m, o->command, words[0], values.threads, values.precision,
                   values.max_memory)) {
        const int score = s.m.net->noise_hi > 0;
        if (!model_has(o->command, &s.m, 0)) status = 2;
        else status = as_in_training(o, s.m.archive, "sgld-lr", score ? ".01" : NULL) &&
                 as_in_training(o, s.m.archive, "sgld-std", score ? ".1" : NULL) &&
                 as_in_training(o, s.m.archive, "clamp", NULL) ? sample_all(&s) : 1;
    }
    free(s.x);
    free(s.grid);
    free(s.strips);
    free(s.queue);
    free(s.next);
    free(s.end);
    model_close(&s.m);
    return status;
}

/* ---- jem classify ---------------------------------------------------------------------------- */

typedef struct classify_options {
    int top, invert, frame, background, threads, precision, max_memory, max_file, max_picture;
} classify_options;
static const option classify_table[] = {
    { "top", OPTION_INT, OPTION_NOW, offsetof(classify_options, top), "N", NO_PRESETS("1"), 1,
      1000, "number of classes to show" },
    { "invert", OPTION_FLAG, OPTION_NOW, offsetof(classify_options, invert), "", NO_PRESETS("off"),
      0, 0, "invert: ink on paper, for a model of white on black" },
    { "frame", OPTION_FLAG, OPTION_NOW, offsetof(classify_options, frame), "", NO_PRESETS("on"), 0,
      0, "show the subject as training images do, inverted if needed (--no-frame: off)" },
    { "background", OPTION_INT, OPTION_NOW, offsetof(classify_options, background), "N",
      NO_PRESETS("0"), 0, 255, "grey behind transparent pixels (default: as in training)" },
    { "precision", OPTION_CHOICE, OPTION_NOW, offsetof(classify_options, precision),
      "exact|fast|direct|bf16", NO_PRESETS("exact"), 0, 0, "arithmetic" },
    { "threads", OPTION_INT, OPTION_NOW, offsetof(classify_options, threads), "N", NO_PRESETS("0"),
      0, 1024, "(0: all cores; results do not depend on it)" },
    LIMIT_MEMORY(classify_options, "4000"), LIMIT_FILES(classify_options, "100")
};

/* Prints the verdict, and its reason. */
static void print_familiarity(const jem_answer *a) {
    const jem_verdict verdict = jem_judge(a->familiarity);
    if (verdict == JEM_UNJUDGED) return;
    printf("; %s", jem_verdict_name(verdict));
    if (a->reason != JEM_REASON_NONE) printf(": %s", jem_reason_name(a->reason));
    printf(" (more typical than %.1f%% of the calibration images)", 100 * (double)a->familiarity);
}

/* Returns what --size did with pictures of other proportions. */
static data_shape shape_of(const jem_archive *a) {
    const char *crop = jem_archive_meta(a, OPTION_PREFIX "crop");
    const char *pad = jem_archive_meta(a, OPTION_PREFIX "pad");
    if (crop && !strcmp(crop, "on")) return DATA_CROP;
    return pad && !strcmp(pad, "on") ? DATA_PAD : DATA_STRETCH;
}

/* Frames a picture of any size as the network's images are; returns 0 if it cannot be, and -1 after
   an error, which it prints. */
static int frame_picture(const model *m, const data_set *d, const char *path, float *x, int *did) {
    const ptrdiff_t pixels = (ptrdiff_t)d->h * d->w;
    unsigned char *bytes = (unsigned char *)malloc((size_t)pixels * (size_t)d->c);
    int framed = -1;
    for (ptrdiff_t i = 0; bytes && i < pixels; i++)
        for (int k = 0; k < d->c; k++) bytes[i * d->c + k] = d->pixels[k * pixels + i];
    if (!bytes) fprintf(stderr, "jem classify: out of memory for %s\n", path);
    else if (jem_pixels_to_floats(m->net, bytes, d->w, d->h, d->c, NULL, x, did) == JEM_OK)
        framed = (*did & JEM_DID_FRAME) != 0;
    else model_fail("jem classify", m);
    free(bytes);
    return framed;
}

static int classify_one(const model *m, const classify_options *o, const char *path) {
    jem_net *net = m->net;
    const ptrdiff_t size = image_size(net);
    data_set d;
    data_desc desc;
    char error[512], number[NAME_SIZE];
    int was[3] = { 0, 0, 0 };
    memset(&desc, 0, sizeof desc);
    desc.background = o->background;
    desc.file_mb = o->max_file;
    desc.picture_mb = o->max_picture;
    desc.memory_mb = budget.most / 1e6;
    if (!data_load_image(&d, strcmp(path, "-") ? path : "/dev/stdin", &desc, was, error,
                         sizeof error)) {
        fprintf(stderr, "jem classify: %s\n", error);
        return 0;
    }
    desc.channels = net->channels;
    desc.height = net->height;
    desc.width = net->width;
    desc.resize = DATA_FIT;
    desc.shape = shape_of(m->archive);
    const int same = was[1] == net->height && was[2] == net->width;
    float *x = new_floats((double)size);
    float *f = new_floats(net->classes);
    int *order = (int *)malloc((size_t)net->classes * sizeof *order);
    jem_answer a;
    int framed = 0;
    int did = 0;
    int ok = x && f && order;
    if (ok) {
        const int frames = o->frame && jem_net_meta(net, "jem.framing");
        framed = frames ? frame_picture(m, &d, path, x, &did) : 0;
        if (framed == 0 && !data_fit_image(&d, &desc, error, sizeof error)) {
            fprintf(stderr, "jem classify: %s\n", error);
            framed = -1;
        }
        if (framed == 0) {
            data_floats(&d, NULL, 1, x);
            for (ptrdiff_t i = 0; o->invert && i < size; i++) x[i] = -x[i];
        }
        ok = framed >= 0 && jem_classify(net, x, 1, &a) == JEM_OK;
        const char *divisor = jem_net_meta(net, "jem.temperature");
        const jem_mark mark = jem_begin(m->ctx);
        jem_tensor *t = jem_input(m->ctx, x, 1, net->channels, net->height, net->width);
        t = jem_scale(m->ctx, jem_forward(net, t, 0), divisor ? 1 / strtof(divisor, NULL) : 1);
        ok = ok && jem_read(jem_log_softmax(m->ctx, t), f) == JEM_OK;
        jem_end(m->ctx, mark);
        if (ok && !isfinite(a.log_density))
            ok = jem_fail(m->ctx, JEM_DIVERGED, "log p(x) of the model is not finite") == JEM_OK;
    }
    if (ok) {
        printf("%s: %s (p = %.3f), log p(x) = %.1f", path, class_name(net, a.label, number),
               (double)a.probability, (double)a.log_density);
        const int blank = framed == 0 &&
                          data_is_blank(d.pixels, d.c, (size_t)d.h * (size_t)d.w, 0);
        if (blank) printf("; the image has one colour: nothing to see");
        else print_familiarity(&a);
        if (!same || was[0] != net->channels)
            printf("; from %d x %d%s to %d x %d%s", was[2], was[1], was[0] == 1 ? " grey" :
                   " in colour", net->width, net->height, net->channels == 1 ? " grey" :
                   " in colour");
        if (framed) printf(", framed%s", did & JEM_DID_INVERT ? ", inverted" : "");
        if (d.blended) printf("; transparent pixels over grey %d", o->background);
        printf("\n");
        for (int i = 0; i < net->classes; i++) {   /* the other classes, by insertion */
            int k = i;
            for (; k > 0 && f[order[k - 1]] < f[i]; k--) order[k] = order[k - 1];
            order[k] = i;
        }
        for (int i = 1; i < o->top && i < net->classes; i++)
            printf("    %s (p = %.3f)\n", class_name(net, order[i], number),
                   exp((double)f[order[i]]));
    } else if (framed < 0) ok = 0;
    else if (jem_ok(m->ctx)) fprintf(stderr, "jem classify: out of memory for %s\n", path);
    else model_fail("jem classify", m);
    free(x);
    free(f);
    free(order);
    data_free(&d);
    return ok;
}

int classify_command(int argc, char **argv) {
    static options table;
    static classify_options values;
    char **words;
    model m;
    int n = 0;
    int failed = 0;
    options *o = options_begin(&table, "jem classify", classify_table, sizeof classify_table,
                               &values);
    int status = read_options(o, argc, argv, &words, &n, 2, INT_MAX,
                              "jem classify MODEL IMAGE... [OPTIONS]: classifies pictures");
    if (status < 0) {
        status = 1;
        if (model_open(&m, o->command, words[0], values.threads, values.precision,
                       values.max_memory)) {
            const int fits = model_has(o->command, &m, 0) &&
                             as_in_training(o, m.archive, "background", NULL);
            for (int i = 1; fits && i < n; i++) failed += !classify_one(&m, &values, words[i]);
            status = fits ? failed > 0 : 2;
        }
        model_close(&m);
    }
    return status;
}

/* ---- jem eval -------------------------------------------------------------------------------- */

static const option eval_table[] = {
    { "dataset", OPTION_TEXT, OPTION_NOW, offsetof(eval_options, dataset), "NAME", NO_PRESETS(""),
      0, 0, "as in jem train (default: that of the model)" },
    { "data", OPTION_TEXT, OPTION_NOW, offsetof(eval_options, data), "DIR", NO_PRESETS("data"), 0,
      0, "the folder that tools/get-data filled" },
    { "split", OPTION_CHOICE, OPTION_NOW, offsetof(eval_options, split), "test|train",
      NO_PRESETS("test"), 0, 0, "part of the data set" },
    { "n", OPTION_INT, OPTION_NOW, offsetof(eval_options, n), "N", NO_PRESETS("0"), 0, 1e9,
      "only the first N images (0: all)" },
    { "mirror", OPTION_FLAG, OPTION_NOW, offsetof(eval_options, mirror), "", NO_PRESETS("off"), 0,
      0, "classes by the mean of the logits of an image and of its mirror image" },
    { "precision", OPTION_CHOICE, OPTION_NOW, offsetof(eval_options, precision),
      "exact|fast|direct|bf16", NO_PRESETS("exact"), 0, 0, "arithmetic" },
    { "threads", OPTION_INT, OPTION_NOW, offsetof(eval_options, threads), "N", NO_PRESETS("0"), 0,
      1024, "(0: all cores; results do not depend on it)" },
    LIMIT_OPTIONS(eval_options, "0")
};

/* Maps labels to those of the network, by class names if it has any (an unknown name keeps its
   number from training). Returns 0 and prints the reason if the network lacks a class. */
static int label_as(const jem_net *net, data_set *d) {
    char name[NAME_SIZE];
    if (!jem_net_meta(net, CLASS_PREFIX "0")) return 1;
    int *to = (int *)malloc((size_t)d->classes * sizeof *to);
    int ok = to != NULL;
    if (!ok) fprintf(stderr, "jem eval: out of memory for the classes\n");
    for (int k = 0; ok && k < d->classes; k++) {
        char key[32];
        snprintf(key, sizeof key, CLASS_PREFIX "%d", k);
        to[k] = class_named(net, d->class_names[k]);
        if (to[k] < 0 && k < net->classes && !jem_net_meta(net, key)) to[k] = k;
        if (to[k] < 0) {
            fprintf(stderr, "jem eval: %s: class '%s': the model's are %s, ...\n", d->name,
                    d->class_names[k], class_name(net, 0, name));
            ok = 0;
        }
    }
    for (int i = 0; ok && i < d->n; i++) d->labels[i] = to[d->labels[i]];
    free(to);
    return ok;
}

void mix_classes(data_set *d) {
    if (d->values) return;
    const size_t size = (size_t)d->c * (size_t)d->h * (size_t)d->w;
    jem_rng rng = jem_rng_seed(1);
    int runs = 1;
    for (int i = 1; i < d->n; i++) runs += d->labels[i] != d->labels[i - 1];
    for (int at = runs > d->classes ? 0 : d->n - 1; at > 0; at--) {
        const int k = jem_rng_below(&rng, at + 1);
        const int label = d->labels[at];
        unsigned char *a = d->pixels + (size_t)at * size;
        unsigned char *b = d->pixels + (size_t)k * size;
        d->labels[at] = d->labels[k];
        d->labels[k] = label;
        for (size_t p = 0; p < size; p++) {
            const unsigned char one = a[p];
            a[p] = b[p];
            b[p] = one;
        }
    }
}

/* Loads the rows of a table for a model of rows. */
static int table_for(const model *m, const eval_options *e, data_desc *desc, data_set *d) {
    char error[512];
    const char *trained_on = jem_archive_meta(m->archive, OPTION_PREFIX "dataset");
    const char **names = NULL;
    if (!model_has("jem eval", m, 1)) return 2;
    if (trained_on && !strcmp(trained_on, e->dataset) && !e->split) {
        fprintf(stderr, "jem eval: %s: the model has learned its rows: --dataset OTHER.csv, or "
                "--split train\n", e->dataset);
        return 2;
    }
    names = (const char **)malloc((size_t)m->net->channels * sizeof *names);
    if (!names) return fprintf(stderr, "jem eval: out of memory\n"), 1;
    columns_of(m, names, desc);
    const int loaded = data_load(d, e->dataset, "train", desc, error, sizeof error);
    free((void *)names);
    if (!loaded) return fprintf(stderr, "jem eval: %s\n", error), 1;
    int ok = m->net->classes == 1 || d->has_labels;
    if (!ok) fprintf(stderr, "jem eval: %s: has no labels (jem score needs none)\n", e->dataset);
    for (int i = 0; m->net->classes == 1 && i < d->n; i++) d->labels[i] = 0;
    if (ok && m->net->classes > 1) ok = label_as(m->net, d);
    if (!ok) data_free(d);
    return ok ? 0 : 2;
}

static void on_unreadable(void *user, const char *message) {
    fprintf(stderr, "%s: %s\n", (const char *)user, message);
}
void name_unreadable(data_desc *desc, const char *command) {
    desc->bad = on_unreadable;
    desc->user = (void *)(uintptr_t)command;
}

int data_for(const model *m, options *o, const eval_options *e, data_set *d) {
    data_desc desc;
    char error[512];
    if (!as_in_training(o, m->archive, "dataset", NULL) ||
        !as_in_training(o, m->archive, "data", NULL))
        return 1;
    if (!*e->dataset) {
        fprintf(stderr, "jem eval: %s does not name its data set: use --dataset NAME\n",
                m->path);
        return 2;
    }
    memset(&desc, 0, sizeof desc);
    desc.root = e->data;
    desc.file_mb = e->max_file;
    desc.picture_mb = e->max_picture;
    desc.memory_mb = budget.most / 1e6;
    name_unreadable(&desc, "jem eval");
    const char *trained_on = jem_archive_meta(m->archive, OPTION_PREFIX "dataset");
    if (data_is_table(e->dataset)) return table_for(m, e, &desc, d);
    const char *split = jem_archive_meta(m->archive, OPTION_PREFIX "test-split");
    const char *seed = jem_archive_meta(m->archive, OPTION_PREFIX "seed");
    const char *behind = jem_archive_meta(m->archive, OPTION_PREFIX "background");
    const char *size = jem_archive_meta(m->archive, OPTION_PREFIX "size");
    desc.background = behind ? atoi(behind) & 255 : 0;
    desc.shape = shape_of(m->archive);
    if (split && !strcmp(split, "random") && seed)
        desc.seed = atoi(seed) + (atoi(seed) < INT_MAX);
    const char *grey = jem_archive_meta(m->archive, OPTION_PREFIX "grey");
    if (size && atoi(size)) {
        desc.height = m->net->height;
        desc.width = m->net->width;
        desc.resize = DATA_FIT;
    }
    if ((grey && !strcmp(grey, "on")) || (trained_on && !strcmp(trained_on, e->dataset)))
        desc.channels = m->net->channels;
    if (!data_load(d, e->dataset, e->split ? "train" : "test", &desc, error, sizeof error)) {
        fprintf(stderr, "jem eval: %s\n", error);
        return 1;
    }
    const jem_net *net = m->net;
    int ok = d->c == net->channels && d->h == net->height && d->w == net->width &&
             d->classes <= net->classes;
    if (!ok)
        fprintf(stderr, "jem eval: %s has images (%d,%d,%d) of %d classes, %s has (%d,%d,%d) of "
                "%d\n", e->dataset, d->c, d->h, d->w, d->classes, m->path, net->channels,
                net->height, net->width, net->classes);
    ok = ok && label_as(net, d);
    if (!ok) data_free(d);
    return ok ? 0 : 2;
}

static int eval_model(const model *m, options *o, const eval_options *e) {
    data_set d;
    int status = data_for(m, o, e, &d);
    if (status) return status;
    const int n = e->n && e->n < d.n ? e->n : d.n;
    evaluation v;
    if (e->mirror && d.values) {
        fprintf(stderr, "jem eval: --mirror: %s is a table, and not of images\n", e->dataset);
        data_free(&d);
        return 2;
    }
    mix_classes(&d);
    const int requests = EVALUATE_LOGP | (e->mirror ? EVALUATE_MIRRORED : 0);
    if (evaluate(m->net, &d, NULL, n, requests, &v) && !isfinite(v.nll + v.logp))
        jem_fail(m->ctx, JEM_DIVERGED, "results of the model are not finite");
    const int rows = d.values != NULL;
    if (jem_ok(m->ctx) && rows && m->net->classes == 1)
        printf("%s, %d rows: mean log p(x) %.3f\n", e->dataset, n, v.logp);
    else if (jem_ok(m->ctx) && rows)
        printf("%s, %d rows: accuracy %.2f%%, -log p(y|x) %.4f, mean log p(x) %.3f\n",
               e->dataset, n, 100 * v.accuracy, v.nll, v.logp);
    else if (jem_ok(m->ctx))
        printf("%s, %s, %d images%s: accuracy %.2f%%, -log p(y|x) %.4f, mean log p(x) %.2f\n",
               e->dataset, e->split ? "train" : "test", n, e->mirror ? ", also mirrored" : "",
               100 * v.accuracy, v.nll, v.logp);
    else model_fail("jem eval", m), status = 1;
    data_free(&d);
    return status;
}

int eval_command(int argc, char **argv) {
    static options table;
    static eval_options values;
    char **words;
    int n = 0;
    model m;
    options *o = options_begin(&table, "jem eval", eval_table, sizeof eval_table, &values);
    const int read = read_options(o, argc, argv, &words, &n, 1, 1,
                                  "jem eval MODEL [calibration|ood|attack|impute|samples] "
                                  "[OPTIONS]: accuracy and log-likelihood, or the named "
                                  "measurement");
    if (read >= 0) return read;
    int status = 1;
    if (model_open(&m, o->command, words[0], values.threads, values.precision, values.max_memory))
        status = eval_model(&m, o, &values);
    model_close(&m);
    return status;
}

/* ---- jem info, jem export -------------------------------------------------------------------- */

int begins(const char *text, const char *with) { return !strncmp(text, with, strlen(with)); }

static void print_tensor(const jem_entry *e) {
    static const char *const dtypes[] = { "F32", "I32", "I64", "U8" };
    char name[NAME_SIZE];
    printf("    %-44s %s (", clean(e->name, name), dtypes[e->dtype]);
    for (int i = 0; i < e->ndim; i++) printf("%s%.0f", i ? "," : "", (double)e->shape[i]);
    printf(")\n");
}

static void info_network(const jem_net *net) {
    static const char *const activations[] = { "leaky-relu", "relu", "silu", "tanh" };
    const char *kind = jem_net_meta(net, "jem.net");
    const char *act = jem_net_meta(net, "jem.activation");
    char number[NAME_SIZE];
    printf("  network    %s", kind);
    if (!strcmp(kind, "wrn"))
        printf("-%s-%s, %s head, stem stride %s", jem_net_meta(net, "jem.depth"),
               jem_net_meta(net, "jem.widen"),
               atoi(jem_net_meta(net, "jem.head")) ? "flat" : "pooled",
               jem_net_meta(net, "jem.stem_stride"));
    else for (int i = 0; i < atoi(jem_net_meta(net, "jem.layers")); i++) {
        char key[32];
        snprintf(key, sizeof key, "jem.width%d", i + 1);
        printf(" %s", jem_net_meta(net, key));
    }
    printf(", %s, %ld parameters\n", activations[atoi(act) & 3], (long)jem_net_size(net));
    const int is_table = net->height == 1 && net->width == 1;
    if (is_table) {
        printf("  rows       %d numbers:", net->channels);
        for (int i = 0; i < net->channels && i < 20; i++) {
            char key[32];
            snprintf(key, sizeof key, COLUMN_PREFIX "%d", i);
            const char *name = jem_net_meta(net, key);
            printf(" %s", name ? clean(name, number) : "?");
        }
        printf("%s\n  classes    %d:", net->channels > 20 ? " ..." : "", net->classes);
    } else
        printf("  images     %d x %d%s, %d classes:", net->width, net->height,
               net->channels == 1 ? " grey" : net->channels == 3 ? " in colour" : "",
               net->classes);
    for (int i = 0; i < net->classes && i < 20; i++) printf(" %s", class_name(net, i, number));
    printf("%s\n", net->classes > 20 ? " ..." : "");
    if (net->noise_hi > 0)
        printf("  score      of noise %g to %g, log p(x) = %s%g logsumexp f(x)\n",
               (double)net->noise_lo, (double)net->noise_hi,
               jem_net_meta(net, "jem.unet") ? "e(x) + " : "", (double)net->scale);
    if (net->guidance > 0)
        printf("  guidance   %g log p(y|x) in samples of a class\n", (double)net->guidance);
    if (net->noise_hi > 0 && (net->denoise_steps > 0 || net->denoise_fraction > 0)) {
        const jem_denoise_desc d = jem_net_generate_desc(net).denoise;
        printf("  samples    %d noise-blind steps that remove %g of the noise\n", d.steps,
               (double)d.fraction);
    }
    if (!jem_net_meta(net, "jem.familiar")) printf("  familiar   not calibrated\n");
    else {
        const int gradients = jem_calibrated(net);
        printf("  familiar   calibrated: it can rate the familiarity of %s",
               is_table ? "rows" : "images");
        if (gradients == 0) printf(", without gradients");
        if (gradients > 0)
            printf(", at %d gradient%s each (jem eval MODEL ood --gradients 0 --save NEW: none)",
                   gradients, gradients > 1 ? "s" : "");
        printf("\n");
    }
}

/* Prints the uses of a file, from the state of training when it was written. */
static void info_uses(const jem_archive *a, int classes) {
    const char *validation = jem_archive_meta(a, "run.validation");
    const char *density = jem_archive_meta(a, "run.density");
    char clear[NAME_SIZE];
    int n;
    double accuracy, nll, residual;
    if (!density) return;                          /* an older file */
    const char *by_noise = "noise-contrastive estimation";
    if (!strcmp(density, by_noise)) {
        double logp;
        printf("  use        log p(x) of rows (%s), familiarity\n", by_noise);
        if (validation && sscanf(validation, "%d %lf %lf %lf %lf", &n, &accuracy, &nll, &residual,
                                 &logp) == 5)
            printf("  validation mean log p(x) %.3f of %d rows%s\n", logp, n,
                   classes > 1 ? "; of their classes:" : "");
        if (validation && classes > 1)
            printf("             accuracy %.2f%%, -log p(y|x) %.4f\n", 100 * accuracy, nll);
        return;
    }
    if (classes < 2) {
        printf("  use        log p(x), familiarity; of one class, no classification\n");
        return;
    }
    printf("  use        classification");
    if (validation && sscanf(validation, "%d %lf %lf %lf", &n, &accuracy, &nll, &residual) == 4) {
        printf(" (%.2f%% of %d validation images, -log p(y|x) %.4f", 100 * accuracy, n, nll);
        if (residual > 0) printf(", score error %.3f", residual);
        printf(")");
    }
    if (strcmp(density, "none"))
        printf("; samples, with %s%s\n", clean(density, clear),
               strcmp(density, "score") ? "" : " alone, which gives poor ones");
    else printf("; not for samples: it has not learned a density\n");
}

/* Prints the origin of the best file; of one class, accuracy says nothing. */
static void info_best(const float *state, int classes) {
    printf("  best       best.safetensors is from update %.0f: ", (double)state[STATE_BEST_AT]);
    if (classes > 1) printf("accuracy %.2f%%; ", 100 * (double)state[STATE_BEST]);
    printf("lowest loss %.4g\n", (double)state[STATE_LOWEST]);
}

static void info_run(const jem_archive *a, int classes) {
    const jem_entry *state = jem_archive_find(a, "run.state");
    const jem_entry *b = jem_archive_find(a, "replay_buffer");
    const jem_entry *v = jem_archive_find(a, "replay_visits");
    int moments = 0;
    int averages = 0;
    int trained = 0;
    for (int i = 0; i < jem_archive_count(a); i++) {
        const char *name = jem_archive_at(a, i)->name;
        moments += begins(name, "optim.");
        averages += begins(name, "average.");
        trained += begins(name, "trained.");
    }
    const char *updates = jem_archive_meta(a, "run.updates");
    const char *seconds = jem_archive_meta(a, "run.seconds");
    char text[2][NAME_SIZE];
    if (updates && seconds)
        printf("  run        after update %s, %s seconds of training\n", clean(updates, text[0]),
               clean(seconds, text[1]));
    else if (updates) printf("  run        update %s\n", clean(updates, text[0]));
    info_uses(a, classes);
    if (state && state->dtype == JEM_DTYPE_F32 && state->bytes > STATE_RETRIES * sizeof(float)) {
        const float *f = (const float *)state->data;
        const char *density = jem_archive_meta(a, "run.density");
        printf("  health     ");
        if (!density || strstr(density, "chains"))
            printf("f(x+) - f(x-) about %.2f, ", (double)f[STATE_GAP]);
        printf("retries after divergence: %.0f\n", (double)f[STATE_RETRIES]);
        if (state->bytes > STATE_BEST_AT * sizeof(float) && f[STATE_BEST_AT] >= 0)
            info_best(f, classes);
    }
    if (b && b->ndim == 4)
        printf("  buffer     %.0f chains of (%.0f,%.0f,%.0f)", (double)b->shape[0],
               (double)b->shape[1], (double)b->shape[2], (double)b->shape[3]);
    if (b && v && v->dtype == JEM_DTYPE_I32) {
        const int *n = (const int *)v->data;
        double sum = 0;
        ptrdiff_t count = (ptrdiff_t)(v->bytes / sizeof(int));
        ptrdiff_t fresh = 0;
        for (ptrdiff_t i = 0; i < count; i++) {
            sum += n[i];
            fresh += n[i] == 0;
        }
        printf(", walked %.1f times on average, %ld never", sum / (double)(count ? count : 1),
               (long)fresh);
    }
    if (b) printf("\n");
    if (moments) printf("  optimiser  %d arrays of moments%s\n", moments,
                        trained ? "; the network is the average of the trained weights, which are "
                        "here too" : averages ? "; averaged weights as well" : "");
}

static int info_file(const char *path) {
    jem_ctx *ctx = make_ctx(1, 0);
    jem_archive *a = ctx ? jem_archive_read(ctx, path) : NULL;
    if (!a) {
        fprintf(stderr, "jem info: %s\n", ctx ? jem_error(ctx) : "no memory");
        jem_ctx_free(ctx);
        return 0;
    }
    double bytes = 0;
    char name[NAME_SIZE];
    for (int i = 0; i < jem_archive_count(a); i++) bytes += (double)jem_archive_at(a, i)->bytes;
    printf("%s: %d tensors, %.2f MB\n", path, jem_archive_count(a), bytes / 1e6);
    const char *kind = jem_archive_meta(a, "jem.net");
    const int known = kind && (!strcmp(kind, "wrn") || !strcmp(kind, "convnet") ||
                               !strcmp(kind, "mlp"));
    jem_net *net = known ? jem_net_from_archive(ctx, a) : NULL;
    int ok = 1;
    if (net) {
        info_network(net);
        info_run(a, net->classes);
        printf("  options   ");
        for (int i = 0; i < train_count; i++) {
            char key[64], clear[NAME_SIZE];
            const option *t = &train_table[i];
            snprintf(key, sizeof key, OPTION_PREFIX "%s", t->name);
            const char *text = t->kind == OPTION_TITLE ? NULL : jem_archive_meta(a, key);
            const int preset = jem_archive_meta(a, OPTION_PREFIX "preset") &&
                               !strcmp(jem_archive_meta(a, OPTION_PREFIX "preset"), "fast");
            const char *usual = t->value[preset && t->value[1] ? 1 : 0];
            if (text && (strcmp(text, usual) || !strcmp(t->name, "preset") ||
                         !strcmp(t->name, "dataset"))) {
                if (t->kind == OPTION_FLAG)
                    printf(" --%s%s", strcmp(text, "on") ? "no-" : "", t->name);
                else printf(" --%s %s", t->name, clean(text, clear));
            }
        }
        printf("\n");
    } else if (!jem_ok(ctx)) {
        fprintf(stderr, "jem info: %s\n", jem_error(ctx));
        ok = 0;
    } else {
        if (kind)
            printf("  a custom network, of the kind '%s': only a program that registers it "
                   "(jem_register_net) can compute it\n", clean(kind, name));
        else printf("%s\n", jem_archive_meta(a, "judge.shape") ? "  a judge of samples, for jem eval "
               "MODEL samples --judge FILE" : "  no description of a network: not written by jem "
               "(tools/pt2safetensors.py converts checkpoints of the reference)");
        for (int i = 0; i < jem_archive_count(a) && i < 40; i++)
            print_tensor(jem_archive_at(a, i));
        if (jem_archive_count(a) > 40) printf("    ...\n");
    }
    jem_net_free(net);
    jem_archive_free(a);
    jem_ctx_free(ctx);
    return ok;
}

int is_help(const char *word) { return !strcmp(word, "--help") || !strcmp(word, "-h"); }

/* Runs jem info, which has no options except --max-memory and the like. Words start at argv[first];
   after a lone -- they may begin with a dash. */
enum { USE_MEMORY = 4000 };
static int plain_words(int argc, char **argv) {
    const int first = argc > 2 && !strcmp(argv[2], "--") ? 3 : 2;
    for (int i = first; first == 2 && i < argc; i++) if (*argv[i] == '-' && argv[i][1]) return argc;
    limit_memory(USE_MEMORY);
    return first;
}

int info_command(int argc, char **argv) {
    static const char usage[] = "jem info FILE...: lists the contents of checkpoints\n";
    int failed = 0;
    if (argc > 2 && is_help(argv[2])) return printf("%s", usage) < 0;
    const int first = plain_words(argc, argv);
    if (first >= argc) return fprintf(stderr, "%s", usage), 2;
    for (int i = first; i < argc; i++) failed += !info_file(argv[i]);
    return failed > 0;
}

typedef struct export_options {
    int dtype, onnx, slope, fresh_steps;
    float guidance, fraction;
} export_options;
enum { EXPORT_F32 = 0, EXPORT_BF16 };

static const option export_table[] = {
    { "dtype", OPTION_CHOICE, OPTION_NOW, offsetof(export_options, dtype), "f32|bf16",
      { "f32", NULL }, 0, 0, "full precision, or rounded to bf16, in half the bytes" },
    { "onnx", OPTION_FLAG, OPTION_NOW, offsetof(export_options, onnx), "", { "off", NULL }, 0, 0,
      "an ONNX graph instead, in fp32: from x, logits, logp and slope = d logp / dx" },
    { "slope", OPTION_FLAG, OPTION_NOW, offsetof(export_options, slope), "", { "on", NULL }, 0, 0,
      "with --onnx: also compute the slope; --no-slope for a graph that only classifies" },
    { "guidance", OPTION_FLOAT, OPTION_NOW, offsetof(export_options, guidance), "X", { "0", NULL },
      0, 1e6, "weight of log p(y|x) in samples of a class, stored in the copy (0: as it was)" },
    { "fresh-steps", OPTION_INT, OPTION_NOW, offsetof(export_options, fresh_steps), "N",
      { "0", NULL }, 0, 1e6, "noise-blind steps of its samples, likewise" },
    { "fraction", OPTION_FLOAT, OPTION_NOW, offsetof(export_options, fraction), "X", { "0", NULL },
      0, 1, "of the noise that such a step removes, likewise" }
};

/* Writes a network to a file; the new file replaces the old one when it is complete. */
static jem_status export_net(const jem_net *net, const char *path, int dtype) {
    jem_archive *a = jem_archive_create(net->ctx);
    jem_status status = a ? jem_net_to_archive(net, a) : JEM_NO_MEMORY;
    if (!status) status = jem_archive_set_bf16(a, dtype == EXPORT_BF16);
    if (!status) status = jem_archive_write(a, path);
    jem_archive_free(a);
    return status;
}

/* Removes what only this machine knows from the options of a run: the folder of its data, threads,
   and the folder of the file that it began with. */
static int forget_machine(jem_net *net) {
    const char *init = jem_net_meta(net, OPTION_PREFIX "init");
    const char *slash = init ? strrchr(init, '/') : NULL;
    return (!slash || jem_net_set_meta(net, OPTION_PREFIX "init", slash + 1) == JEM_OK) &&
           jem_net_set_meta(net, OPTION_PREFIX "data", NULL) == JEM_OK &&
           jem_net_set_meta(net, OPTION_PREFIX "threads", NULL) == JEM_OK;
}

/* Writes the file that the options request; returns 1, or 0 and prints the reason. */
static int export_to(model *m, const char *command, const char *path, const export_options *how) {
    char message[ONNX_MESSAGE_SIZE];
    if (how->onnx) {
        if (onnx_export(m->net, path, how->slope, message)) return 1;
        fprintf(stderr, "%s: %s\n", command, message);
        return 0;
    }
    if (how->guidance > 0) m->net->guidance = how->guidance;
    if (how->fresh_steps > 0) m->net->denoise_steps = how->fresh_steps;
    if (how->fraction > 0) m->net->denoise_fraction = how->fraction;
    if (forget_machine(m->net) && export_net(m->net, path, how->dtype) == JEM_OK) return 1;
    return model_fail(command, m);
}

int export_command(int argc, char **argv) {
    static const char usage[] = "jem export FROM TO [OPTIONS]: copies the network of a checkpoint, "
                                "without optimiser and buffer";
    export_options values = { EXPORT_F32, 0, 1, 0, 0, 0 };
    static options table;
    options *o = options_begin(&table, "jem export", export_table, sizeof export_table, &values);
    char **words;
    int n_words = 0;
    int status = 1;
    model m;
    const int code = read_options(o, argc, argv, &words, &n_words, 2, 2, usage);
    if (code >= 0) return code;
    limit_memory(USE_MEMORY);
    if (values.onnx && values.dtype != EXPORT_F32) {
        fprintf(stderr, "jem export: --onnx writes fp32: leave out --dtype\n");
        return 2;
    }
    if (!may_write(o->command, words[0], words[1])) return 2;
    if (model_open(&m, o->command, words[0], 1, 0, USE_MEMORY)) {
        status = !export_to(&m, o->command, words[1], &values);
        if (!status) printf("%s: %ld parameters\n", words[1], (long)jem_net_size(m.net));
    }
    model_close(&m);
    return status;
}
