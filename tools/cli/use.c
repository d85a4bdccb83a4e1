/* sample, eval, info, export. */
#include "tools/cli/system.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#include "tools/cli/memory.h"
#include "tools/cli/notes.h"
#include "tools/cli/onnx.h"
#include "tools/cli/score.h"
#include "tools/cli/train.h"
#include "tools/cli/train_options.h"
#include "tools/cli/use.h"
#include "tools/support/chart.h"
#include "tools/support/new_file.h"
#include "tools/support/table.h"

/* ---- models ---------------------------------------------------------------------------------- */

int context_fail(const char *command, const jem_ctx *ctx) {
    char hint[80];
    const char *reason = "out of memory";
    if (ctx && !jem_ok(ctx)) reason = jem_error(ctx);
    fprintf(stderr, "%s: %s%s\n", command, reason, memory_hint(hint));
    return 0;
}

int model_fail(const char *command, const model *m) { return context_fail(command, m->ctx); }

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

/* Returns 1 if a path has a name before this ending. */
static int has_ending(const char *path, const char *ending) {
    const size_t n = strlen(path);
    const size_t m = strlen(ending);
    return n > m && !strcasecmp(path + n - m, ending);
}

int name_model_of_run(const char *command, const char *path) {
    static const char *const files[] = { "last.safetensors", "best.safetensors" };
    static const char rule[] = " (training writes best.safetensors only with validation images, "
                               "after the chains have begun)";
    struct stat status;
    char file[OPTION_TEXT_SIZE + 32];
    const int is_there = !stat(path, &status);
    const int is_folder = is_there && S_ISDIR(status.st_mode);
    /* The best classifier may be a poor sampler. */
    const int last_first = !is_folder || !strcmp(command, "jem sample");
    const char *name = strrchr(path, '/');
    name = name ? name + 1 : path;
    const int length = is_folder ? (int)strlen(path) : (int)(name - path);
    if (length >= OPTION_TEXT_SIZE || (is_there && !is_folder)) return 0;
    if (!is_folder && strcmp(name, files[0]) != 0 && strcmp(name, files[1]) != 0) return 0;
    for (int i = 0; i < 2; i++) {
        const char *slash = is_folder && path[length - 1] != '/' ? "/" : "";
        snprintf(file, sizeof file, "%.*s%s%s", length, path, slash, files[last_first ? i : 1 - i]);
        if (stat(file, &status)) continue;
        if (is_folder)
            fprintf(stderr, "%s: %s is a folder; its model is the file %s\n", command, path, file);
        else
            fprintf(stderr, "%s: %s is not there, but %s is%s\n", command, path, file,
                    i ? "" : rule);
        return 1;
    }
    return 0;
}

int may_be_run(const char *command, const char *path) {
    static const char *const files[] = { ".", "last.safetensors", "best.safetensors" };
    struct stat status;
    char file[OPTION_TEXT_SIZE + 32];
    int there = 0;
    for (int i = 0; i < 3; i++) {
        snprintf(file, sizeof file, "%s/%s", path, files[i]);
        if (!stat(file, &status)) there++;
        else if (errno != ENOENT || !i) return 1;
    }
    if (there > 1) return 1;
    fprintf(stderr, "%s: %s: is not the folder of a run: it has no last.safetensors\n", command,
            path);
    return 0;
}

/* Returns 1 if a file begins like a model, 0 if not, -1 if it cannot be read. */
static int begins_as_model(const char *path) {
    enum { LENGTH = 8 };                           /* bytes before the text of safetensors */
    unsigned char head[LENGTH + 1];
    FILE *f = fopen(path, "rb");
    if (!f) return -1;
    const size_t n = fread(head, 1, sizeof head, f);
    const int failed = ferror(f);
    fclose(f);
    if (failed) return -1;
    return n == sizeof head && head[LENGTH] == '{';
}

int model_open(model *m, const char *command, const char *path, int threads, int precision,
               int max_memory) {
    memset(m, 0, sizeof *m);
    limit_memory(max_memory);
    m->path = path;
    m->ctx = make_ctx(threads, precision);
    if (m->ctx) m->archive = jem_archive_read(m->ctx, path);
    if (m->archive) m->net = jem_net_from_archive(m->ctx, m->archive);
    if (m->net) return model_fits(m, command);
    struct stat status;
    if (!m->archive && name_model_of_run(command, path)) return 0;
    if (!stat(path, &status) && S_ISDIR(status.st_mode)) {
        fprintf(stderr, "%s: %s is a folder; the model of a run is the file last.safetensors in "
                "it\n", command, path);
        return 0;
    }
    if (!m->archive && has_ending(path, ".onnx") && !stat(path, &status)) {
        fprintf(stderr, "%s: %s is an ONNX graph, for other programs; use the .safetensors file "
                "that it was exported from\n", command, path);
        return 0;
    }
    char hint[80];
    if (m->archive || jem_error_status(m->ctx) != JEM_BAD_FILE || begins_as_model(path))
        return model_fail(command, m);
    fprintf(stderr, "%s: %s (the model comes first: best.safetensors of a run)%s\n", command,
            jem_error(m->ctx), memory_hint(hint));
    return 0;
}

void model_name(const char *path, char name[NAME_SIZE]) {
    const char *slash = strrchr(path, '/');
    const char *from = slash ? slash + 1 : path;
    const int is_best = !strcmp(from, "best.safetensors");
    const int is_of_run = is_best || !strcmp(from, "last.safetensors");
    char *whole = NULL;                        /* the directory of the run may be the current one */
    if (is_of_run && (*path == '.' || !slash)) whole = system_path(path);
    if (whole) {
        path = whole;
        slash = strrchr(path, '/');
    }
    const char *end = NULL;
    if (is_of_run && slash && slash > path) {
        end = slash;
        for (from = end; from > path && from[-1] != '/';) from--;
    } else end = strstr(from, ".safetensors");
    snprintf(name, NAME_SIZE, "%.*s%s", end ? (int)(end - from) : 40, from,
             is_best && end == slash ? ", best" : "");
    free(whole);
}

void model_close(model *m) {
    jem_net_free(m->net);
    jem_archive_free(m->archive);
    jem_ctx_free(m->ctx);
}

/* Returns the length of the folder in a path, with its last slash; 0: the current folder. */
static size_t folder_length(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? (size_t)(slash + 1 - path) : 0;
}

/* Returns 1 if two paths lead to one file or folder. Where files have no numbers (Windows), it
   compares absolute paths. */
static int lead_to_one(const char *a, const char *b) {
    struct stat x, y;
    if (stat(a, &x) || stat(b, &y)) return 0;
    if (x.st_ino) return x.st_dev == y.st_dev && x.st_ino == y.st_ino;
    char *of_a = system_path(a);
    char *of_b = system_path(b);
    const int same = of_a && of_b && !strcasecmp(of_a, of_b);
    free(of_a);
    free(of_b);
    return same;
}

int is_within(const char *path, const char *folder) {
    char at[OPTION_TEXT_SIZE];
    struct stat s;
    snprintf(at, sizeof at, "%s", path);
    while (stat(at, &s)) {                         /* up to a folder that exists */
        char *slash = strrchr(at, '/');
        const int is_drive = slash == at + 2 && at[1] == ':';
        const int is_root = slash && (slash == at || is_drive);
        if (is_root && !slash[1]) return 0;        /* no such drive */
        if (!slash) strcpy(at, ".");
        else slash[is_root] = 0;
        if (!slash) break;
    }
    char *whole = system_path(at);
    char *slash = whole ? whole + strlen(whole) : NULL;
    int within = 0;
    while (slash && slash > whole && !within) {
        *slash = 0;
        within = lead_to_one(whole, folder);
        slash = strrchr(whole, '/');
    }
    free(whole);
    return within;
}

int is_same_file(const char *a, const char *b) {
    char folder[2][OPTION_TEXT_SIZE];
    const size_t n = folder_length(a);
    const size_t m = folder_length(b);
    if (!strcmp(a, b) || lead_to_one(a, b)) return 1;
    if (strcmp(a + n, b + m) != 0) return 0;
    if (n + 1 >= OPTION_TEXT_SIZE || m + 1 >= OPTION_TEXT_SIZE) return 0;
    snprintf(folder[0], OPTION_TEXT_SIZE, "%.*s.", (int)n, a);
    snprintf(folder[1], OPTION_TEXT_SIZE, "%.*s.", (int)m, b);
    return lead_to_one(folder[0], folder[1]);
}

int outputs_differ(const char *command, const char *const *out, int n) {
    for (int i = 0; i < n; i++)
        for (int k = 0; k < i; k++) {
            if (!*out[i] || !*out[k] || !is_same_file(out[i], out[k])) continue;
            fprintf(stderr, "%s: %s would be written twice: give its outputs different names\n",
                    command, out[i]);
            return 0;
        }
    return 1;
}

int can_create(const char *command, const char *path) {
    struct stat target;
    new_file n;
    const int is_there = stat(path, &target) == 0;
    if (is_there && S_ISDIR(target.st_mode)) {
        fprintf(stderr, "%s: %s: is a folder\n", command, path);
        return 0;
    }
    if (is_there && !S_ISREG(target.st_mode)) return 1;        /* a device or a pipe */
    const int ok = new_file_open(&n, path);
    new_file_done(&n, 0);
    if (!ok) fprintf(stderr, "%s: %s\n", command, n.message);
    return ok;
}

/* Returns 1 for "", a device and a folder. */
static int names_no_file(const char *path) {
    struct stat target;
    return !*path || (!stat(path, &target) && !S_ISREG(target.st_mode));
}

int is_picture_name(const char *command, const char *name, const char *path) {
    if (names_no_file(path) || has_ending(path, ".png")) return 1;
    fprintf(stderr, "%s: %s: pictures are written as PNG, to names that end in .png (--%s "
            "FILE.png)\n", command, path, name);
    return 0;
}

int is_page_name(const char *command, const char *path) {
    if (names_no_file(path) || has_ending(path, ".html") || has_ending(path, ".htm")) return 1;
    fprintf(stderr, "%s: %s: the page is written to a name that ends in .html or .htm (--out "
            "FILE.html)\n", command, path);
    return 0;
}

/* Returns 1 if a path is the best network of a run: its checkpoint is beside it. */
static int is_best_of_run(const char *path) {
    static const char best[] = "best.safetensors";
    char last[OPTION_TEXT_SIZE + 32];
    struct stat s;
    const char *slash = strrchr(path, '/');
    const char *name = slash ? slash + 1 : path;
    if (strcmp(name, best)) return 0;
    const int n = snprintf(last, sizeof last, "%.*slast.safetensors", (int)(name - path), path);
    return n >= (int)sizeof last || !stat(last, &s);
}

/* Returns 1 if a file may be written: it is not the one that is read, nor a run or its best
   network, nor, unless is_model, a model; a model replaces nothing else. A file that cannot be read
   may be a run. */
static int may_replace(const char *command, const char *from, const char *to, int is_model) {
    struct stat target;
    if (stat(to, &target)) return 1;
    if (from && is_same_file(from, to)) {
        fprintf(stderr, "%s: %s and %s are the same file\n", command, from, to);
        return 0;
    }
    jem_ctx *ctx = NULL;
    jem_archive *a = NULL;
    const int begins = S_ISREG(target.st_mode) ? begins_as_model(to) : 0;
    if (begins > 0) ctx = make_ctx(1, 0);
    if (ctx) a = jem_archive_read(ctx, to);
    const int no_memory = begins > 0 && (!ctx || jem_error_status(ctx) == JEM_NO_MEMORY);
    const int unknown = begins < 0 || no_memory;
    const int goes_on = a && jem_archive_find(a, "run.state");
    const int replaced = a && !is_model;
    const int is_other = is_model && !begins && S_ISREG(target.st_mode) && target.st_size > 0;
    const int is_best = a && is_best_of_run(to);
    if (goes_on)
        fprintf(stderr, "%s: %s: contains a run that jem train --resume can continue\n", command,
                to);
    else if (is_best)
        fprintf(stderr, "%s: %s: is the best network of the run in its folder: choose another "
                "name\n", command, to);
    else if (replaced) fprintf(stderr, "%s: %s: is a model, and would be replaced\n", command, to);
    else if (is_other)
        fprintf(stderr, "%s: %s: is not a model, and would be replaced by one\n", command, to);
    else if (unknown)
        fprintf(stderr, "%s: %s: may be a run, and cannot be read%s\n", command, to,
                no_memory ? ": out of memory" : "");
    jem_archive_free(a);
    jem_ctx_free(ctx);
    return !goes_on && !is_best && !replaced && !is_other && !unknown;
}
int may_write(const char *command, const char *from, const char *to) {
    return may_replace(command, from, to, 1);
}
int may_write_other(const char *command, const char *from, const char *to) {
    return may_replace(command, from, to, 0);
}

int names_device(const char *path) { return !strncmp(path, "/dev/", 5); }

int is_table_name(const char *command, const char *out, int n, char **words) {
    if (!*out || names_device(out)) return 1;
    if (!has_ending(out, ".csv")) {
        fprintf(stderr, "%s: --out %s: the name of a table must end in .csv\n", command, out);
        return 0;
    }
    for (int i = 0; i < n; i++)
        if (!may_write_other(command, words[i], out)) return 0;
    return 1;
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

const char *fitted(const char *text, int width, char to[4 * NAME_SIZE]) {
    int bytes = 0;
    int count = 0;
    for (; *text && bytes < 4 * NAME_SIZE - 1; text++) {
        const int starts = ((unsigned char)*text & 0xC0) != 0x80;          /* a character */
        if (starts && count == width) break;
        count += starts;
        to[bytes++] = *text;
    }
    for (; count < width && bytes < 4 * NAME_SIZE - 1; count++) to[bytes++] = ' ';
    to[bytes] = 0;
    return to;
}

const char *answer_columns(const jem_net *net) {
    if (net->classes > 1) return "log_p,familiarity,verdict,label,probability";
    return "log_p,familiarity,verdict";
}

void format_answer(char text[ANSWER_SIZE], const jem_net *net, const jem_answer *a,
                   const char *verdict) {
    char name[NAME_SIZE];
    char quoted[QUOTED_SIZE];
    char familiarity[32] = "";
    const int classes = net->classes > 1;
    if (!a) {
        snprintf(text, ANSWER_SIZE, ",,%s%s", verdict, classes ? ",," : "");
        return;
    }
    const float f = a->familiarity;
    if (f >= .001f)
        snprintf(familiarity, sizeof familiarity, "%.4f", (double)floorf(1e4f * f) / 1e4);
    else if (f >= 0) snprintf(familiarity, sizeof familiarity, "%.2g", (double)f);
    const int n = snprintf(text, ANSWER_SIZE, "%.6g,%s,%s", (double)a->log_density, familiarity,
                           verdict);
    if (!classes) return;
    table_quote(class_name(net, a->label, name), quoted);
    snprintf(text + n, (size_t)(ANSWER_SIZE - n), ",%s,%.4f", quoted, (double)a->probability);
}

int rows_calibrated(const model *m) {
    const char *calibrated = jem_archive_meta(m->archive, "run.calibrated");
    const char *validation = jem_archive_meta(m->archive, "run.validation");   /* older files */
    if (calibrated) return atoi(calibrated);
    return validation ? atoi(validation) : 0;
}

void print_verdicts(FILE *to, int n, const char *what, const int counts[JEM_VERDICT_STRANGE + 1]) {
    fprintf(to, "%d %s: %d familiar, %d odd, %d strange", n, what, counts[JEM_VERDICT_FAMILIAR],
            counts[JEM_VERDICT_ODD], counts[JEM_VERDICT_STRANGE]);
    if (counts[JEM_VERDICT_NONE])
        fprintf(to, ", %d not judged (the model is not calibrated: train with --n-valid %d or "
                "more)", counts[JEM_VERDICT_NONE], LEAST_CALIBRATED);
}

int class_named(const jem_net *net, const char *text) {
    char name[NAME_SIZE];
    for (int k = 0; k < net->classes; k++)
        if (!strcmp(class_name(net, k, name), text)) return k;
    return -1;
}

/* Returns 1 if the name of each class is its number. */
static int are_numbers(const jem_net *net) {
    char name[NAME_SIZE], number[NAME_SIZE];
    for (int k = 0; k < net->classes; k++) {
        snprintf(number, sizeof number, "%d", k);
        if (strcmp(class_name(net, k, name), number)) return 0;
    }
    return 1;
}

/* Finds a class by name or number; returns 0 and prints the reason if the network does not have
   it. */
static int class_of(const jem_net *net, const char *command, const char *text, int *label) {
    char number[NAME_SIZE], *end;
    *label = class_named(net, text);
    if (*label >= 0) return 1;
    const long v = strtol(text, &end, 10);
    if (end != text && !*end && v >= 0 && v < net->classes) {
        *label = (int)v;
        return 1;
    }
    fprintf(stderr, "%s: --class %s: the network has classes 0 to %d", command, text,
            net->classes - 1);
    const int named = !are_numbers(net);
    for (int k = 0; named && k < net->classes && k < 20; k++)
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
        options_print(o, 1, NULL);
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
    if (!options_defaults(o, 0)) return 2;
    return -1;
}

/* ---- jem sample ------------------------------------------------------------------------------ */

typedef struct sample_options {
    char out[OPTION_TEXT_SIZE], chains[OPTION_TEXT_SIZE], each[OPTION_TEXT_SIZE];
    char label[OPTION_TEXT_SIZE];
    int n, columns, zoom, from, draft, visits, steps, fresh_steps, seed, threads, precision;
    int max_memory;
    float sgld_lr, sgld_std, clamp, guidance, fraction, last_sigma;
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
    { "draft", OPTION_FLAG, OPTION_NOW, SAMPLE_AT(draft), "", NO_PRESETS("off"), 0, 0,
      "a tenth of the steps, after score matching: 15 noise-blind ones of .3, 45 of SGLD" },
    { "steps", OPTION_INT, OPTION_NOW, SAMPLE_AT(steps), "N", NO_PRESETS("-1"), -1, 1e8,
      "SGLD steps (-1: 300 from noise, 0 from the buffer)" },
    { "fresh-steps", OPTION_INT, OPTION_NOW, SAMPLE_AT(fresh_steps), "N", NO_PRESETS("-1"), -1, 1e8,
      "noise-blind steps first, after score matching (-1: the model's, usually 300)" },
    { "fraction", OPTION_FLOAT, OPTION_NOW, SAMPLE_AT(fraction), "X", NO_PRESETS("0"), 0, 1,
      "of the noise that such a step removes (0: the model's, usually .05)" },
    { "last-sigma", OPTION_FLOAT, OPTION_NOW, SAMPLE_AT(last_sigma), "X", NO_PRESETS("0"), 0, 1e6,
      "noise that a last step removes, at most (0: the model's, usually twice --noise-lo)" },
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
    COMPUTE_OPTIONS(sample_options, "exact"),
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
    double logp, sure, strange;
    int calibrated;
} sampling;

/* Returns the step of shot k: every step if there are fewer than SHOTS, otherwise denser at
   first. */
static int moment(int k, int steps) {
    const double t = (double)k / (SHOTS - 1);
    const int even = (int)((int64_t)k * steps / (SHOTS - 1));
    const int early = (int)(steps * t * t * t + .5);
    if (steps <= SHOTS - 1) return smaller(k, steps);
    if (early > k) return early;
    return smaller(even, k);
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

/* Returns 1 if each sample has a requested class. */
static int has_labels(const sampling *s) { return s->one_class || s->all_classes; }

/* Sorts the chains of the buffer by class, each class in random order. */
static int queue_buffer(sampling *s, jem_rng *rng) {
    const jem_net *net = s->m.net;
    const jem_entry *b = jem_archive_find(s->m.archive, "replay_buffer");
    const jem_entry *v = jem_archive_find(s->m.archive, "replay_visits");
    const int by_class = has_labels(s);
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
    if (s->o->from == FROM_NOISE) {
        if (s->fresh_steps)
            jem_fill_normal(s->m.ctx, rng, s->x, n * size, s->how.mean, s->how.denoise.sigma_max);
        else jem_fill_uniform(s->m.ctx, rng, s->x, n * size, -1, 1);
        return 1;
    }
    const float *data = (const float *)jem_archive_find(s->m.archive, "replay_buffer")->data;
    for (int i = 0; i < n; i++) {
        const int c = has_labels(s) ? s->labels[i] : 0;
        if (s->next[c] == s->end[c]) {
            char number[NAME_SIZE];
            char of_class[NAME_SIZE + 16] = "";
            if (has_labels(s))
                snprintf(of_class, sizeof of_class, " of class %s",
                         class_name(s->m.net, c, number));
            fprintf(stderr, "jem sample: the buffer has too few chains%s with %d or more walks "
                    "(after %d samples): use a smaller --n or --min-visits, or --from noise\n",
                    of_class, s->o->visits, s->done + i);
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
    int ok = bytes != NULL || context_fail("jem sample", NULL);
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
    jem_logp_fn logp = jem_logp;
    if (has_labels(s)) logp = query.weight == 1 ? jem_logp_class : jem_logp_guided;
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
        s->strange += jem_judge(a[i].familiarity) == JEM_VERDICT_STRANGE;
        s->calibrated = a[i].familiarity >= 0;
    }
    for (int i = 0; i < n && s->done + i < GRID_MOST; i++)
        memcpy(s->grid + (s->done + i) * size, s->x + i * size, (size_t)size * sizeof(float));
    if (*s->o->each && !write_each(s, n)) return 0;
    s->done += n;
    return 1;
}

/* Finds the requested classes. Returns 0 and prints the reason if the network does not have
   them. */
static int choose_classes(sampling *s) {
    const jem_net *net = s->m.net;
    int label = 0;
    s->all_classes = !strcmp(s->o->label, "all");
    s->one_class = !s->all_classes && strcmp(s->o->label, "any") != 0;
    if (has_labels(s) && jem_net_meta(net, "jem.uncond")) {
        fprintf(stderr, "jem sample: %s has no p(x,y) (--uncond): use --class any\n",
                s->m.path);
        return 0;
    }
    if (s->one_class && !class_of(net, "jem sample", s->o->label, &label)) return 0;
    for (int i = 0; i < SAMPLE_AT_ONCE; i++) s->labels[i] = label;
    return 1;
}

/* Plans the steps of the chains, and which of them the strips show. */
static void plan_chains(sampling *s) {
    const sample_options *o = s->o;
    const int from_noise = o->from == FROM_NOISE;
    s->how = jem_net_generate_desc(s->m.net);
    if (o->draft) s->how = jem_net_draft_desc(s->m.net);
    if (o->steps >= 0) s->steps = o->steps;
    else s->steps = from_noise ? s->how.walk.steps : 0;
    if (!from_noise) s->how.denoise.steps = 0;
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
    s->apart = 1;
    if (s->all_classes && STRIPS_MOST * o->columns <= SAMPLE_AT_ONCE) s->apart = o->columns;
    s->rows = smaller((o->n - 1) / s->apart + 1, STRIPS_MOST);
}

/* Allocates the images; returns 0 and prints the reason without memory. */
static int make_images(sampling *s, int shown) {
    const sample_options *o = s->o;
    const double size = (double)image_size(s->m.net);
    char hint[80];
    s->x = new_floats((double)smaller(o->n, SAMPLE_AT_ONCE) * size);
    s->grid = new_floats((double)shown * size);
    if (*o->chains) s->strips = new_floats((double)(STRIPS_MOST * SHOTS) * size);
    if (s->x && s->grid && (!*o->chains || s->strips)) return 1;
    fprintf(stderr, "jem sample: out of memory for the samples%s\n", memory_hint(hint));
    return 0;
}

/* Checks the sizes of the grid and the strips, before samples take their time. */
static int sampled_fit(const sampling *s, int shown) {
    const jem_net *net = s->m.net;
    const sample_options *o = s->o;
    return picture_grid_fits(o->out, shown, o->columns, net->channels, net->height, net->width,
                             o->zoom) &&
           (!*o->chains || picture_grid_fits(o->chains, s->rows * SHOTS, SHOTS, net->channels,
                                            net->height, net->width, o->zoom));
}
/* Draws the grid and the strips. */
static int draw_sampled(const sampling *s, int shown) {
    const jem_net *net = s->m.net;
    const sample_options *o = s->o;
    if (!picture_grid(o->out, s->grid, shown, o->columns, net->channels, net->height, net->width,
                      o->zoom)) return 0;
    return !s->strips || picture_grid(o->chains, s->strips, s->rows * SHOTS, SHOTS, net->channels,
                                      net->height, net->width, o->zoom);
}

/* Reports files of an earlier call after those of --each: FID tools would count them. */
static void note_earlier(const sampling *s) {
    const char *folder = s->o->each;
    char path[OPTION_TEXT_SIZE + 16];
    struct stat old;
    snprintf(path, sizeof path, "%.400s/%06d.png", folder, s->done);
    if (stat(path, &old)) return;
    fprintf(stderr, "jem sample: %s already existed: more images are in %s than these %d\n", path,
            folder, s->done);
}

/* Returns 1 if a checkpoint has learned from a score alone: chains had no part yet. */
static int is_score_alone(const jem_archive *a) {
    const char *density = jem_archive_meta(a, "run.density");
    return density && !strcmp(density, "score");
}

/* Returns 1 if a file is there whose training had chains. */
static int has_walked(jem_ctx *ctx, const char *path) {
    struct stat status;
    if (stat(path, &status)) return 0;
    jem_archive *a = jem_archive_read(ctx, path);
    const int walked = a && !is_score_alone(a);
    char hint[80];
    jem_archive_free(a);
    if (!a) memory_hint(hint);                     /* forgets that the limit was reached */
    jem_clear_error(ctx);
    return walked;
}

/* Notes that samples of a model without chains are poor; names the checkpoint of its run if that
   has them. */
static void note_no_chains(const model *m) {
    static const char best[] = "best.safetensors";
    const size_t folder = folder_length(m->path);
    char last[OPTION_TEXT_SIZE + 32] = "";
    if (!is_score_alone(m->archive)) return;
    if (!strcmp(m->path + folder, best) && folder < OPTION_TEXT_SIZE)
        snprintf(last, sizeof last, "%.*slast.safetensors", (int)folder, m->path);
    const int better = *last && has_walked(m->ctx, last);
    fprintf(stderr, "jem sample: %s: has learned a score alone, without chains: its samples are "
            "poor%s%s\n", m->path, better ? "; use " : "", better ? last : "");
}

static void print_sampled(const sampling *s) {
    const sample_options *o = s->o;
    const char *from = o->from == FROM_NOISE ? "noise" : "the buffer";
    printf("%d samples after %d steps from %s: %s%s%s%s%s\n", s->done, s->fresh_steps + s->steps,
           from, o->out, *o->chains ? ", " : "", o->chains, *o->each ? ", " : "", o->each);
    printf("mean log p(x) %.1f, mean highest p(y|x) %.3f", s->logp / s->done, s->sure / s->done);
    if (s->calibrated && s->strange >= s->done) printf(", all strange");
    else if (s->calibrated) printf(", %.1f%% strange", 100 * s->strange / s->done);
    printf("\n");
}

/* Makes and writes all samples. Returns the exit status. */
static int sample_all(sampling *s) {
    const jem_net *net = s->m.net;
    const sample_options *o = s->o;
    const int shown = smaller(o->n, GRID_MOST);
    if (net->channels != 1 && net->channels != 3) {
        fprintf(stderr, "jem sample: %s has images of %d channels; picture files have 1 or 3\n",
                s->m.path, net->channels);
        return 1;
    }
    if (!choose_classes(s)) return 2;
    if (o->from == FROM_BUFFER && !jem_archive_find(s->m.archive, "replay_buffer")) {
        fprintf(stderr, "jem sample: %s: has no replay buffer (last.safetensors of a run has)\n",
                s->m.path);
        return 2;
    }
    if (!is_picture_name("jem sample", "out", o->out) ||
        !is_picture_name("jem sample", "chains", o->chains)) return 2;
    if ((*o->out && !can_create("jem sample", o->out)) ||
        (*o->chains && !can_create("jem sample", o->chains))) return 1;
    plan_chains(s);
    if (!sampled_fit(s, shown)) return 1;
    if (*o->each && !make_folder(o->each)) {
        fprintf(stderr, "jem sample: %s: cannot be created: %s\n", o->each, strerror(errno));
        return 1;
    }
    if (!make_images(s, shown)) return 1;
    note_no_chains(&s->m);
    jem_rng rng = jem_rng_seed((uint64_t)o->seed);
    if (o->from == FROM_BUFFER && !queue_buffer(s, &rng)) return 1;
    while (s->done < o->n) {
        if (!sample_some(s, smaller(o->n - s->done, SAMPLE_AT_ONCE), &rng)) return 1;
    }
    if (!draw_sampled(s, shown)) return 1;
    if (*o->each) note_earlier(s);
    print_sampled(s);
    if (s->calibrated)
        note_few_calibrate(stderr, "jem sample", rows_calibrated(&s->m), "images");
    return 0;
}

int as_in_training(options *o, const jem_archive *a, const char *name, const char *otherwise) {
    char key[64];
    snprintf(key, sizeof key, OPTION_PREFIX "%s", name);
    const char *text = jem_archive_meta(a, key);
    if (!text) text = otherwise;
    return !text || option_default(o, option_find(o, name), text);
}

int had_chains(const jem_archive *a) {
    static const char *const weights[] = { "p-x-weight", "p-x-y-weight", "kl-weight" };
    int known = 0;
    for (size_t i = 0; i < sizeof weights / sizeof *weights; i++) {
        char key[64];
        snprintf(key, sizeof key, OPTION_PREFIX "%s", weights[i]);
        const char *text = jem_archive_meta(a, key);
        if (text && strtod(text, NULL) > 0) return 1;
        known += text != NULL;
    }
    return !known;
}

/* Takes the steps of SGLD from the options of training, except those of a score without chains,
   which training never used. */
static int walk_as_in_training(options *o, const model *m) {
    const int score = m->net->noise_hi > 0;
    const jem_sgld_desc walk = jem_net_generate_desc(m->net).walk;
    char step[32], noise[32];
    snprintf(step, sizeof step, "%.6g", (double)walk.step_size);
    snprintf(noise, sizeof noise, "%.6g", (double)walk.noise_std);
    if (score && !had_chains(m->archive))
        return option_default(o, option_find(o, "sgld-lr"), step) &&
               option_default(o, option_find(o, "sgld-std"), noise);
    return as_in_training(o, m->archive, "sgld-lr", score ? step : NULL) &&
           as_in_training(o, m->archive, "sgld-std", score ? noise : NULL) &&
           as_in_training(o, m->archive, "clamp", NULL);
}

/* Refuses options that samples of this model do not use. */
static int sample_options_used(const options *o, const sampling *s) {
    static const char *const of_buffer[] = { "min-visits", NULL };
    static const char *const of_noise[] = { "draft", "fresh-steps", "fraction", NULL };
    static const char *const of_steps[] = { "fraction", NULL };
    static const char *const of_score[] = { "draft", "fresh-steps", "fraction", "last-sigma",
                                            NULL };
    static const char *const of_class[] = { "guidance", NULL };
    static const char *const of_walk[] = { "sgld-lr", "sgld-std", "clamp", NULL };
    const int from_buffer = s->o->from == FROM_BUFFER;
    static const char *const of_samples[] = { "last-sigma", NULL };
    const int walks = s->o->steps > 0 || (s->o->steps < 0 && !from_buffer);
    const int moves = walks || (!from_buffer && s->o->fresh_steps != 0);
    return options_used(o, from_buffer, "is for --from buffer", of_buffer) &&
           options_used(o, !from_buffer, "is for --from noise", of_noise) &&
           options_used(o, s->m.net->noise_hi > 0, "is for models that learned a score",
                        of_score) &&
           options_used(o, s->o->fresh_steps != 0, "is for --fresh-steps above 0", of_steps) &&
           options_used(o, strcmp(s->o->label, "any"), "is for --class K or --class all",
                        of_class) &&
           options_used(o, walks, "is for --steps N", of_walk) &&
           options_used(o, moves, "is for --steps N", of_samples);
}

/* Returns 1 if the grid would be among the samples of --each, as one more sample. */
static int grid_is_sample(const sample_options *v) {
    const char *slash = strrchr(v->out, '/');
    const char *name = slash ? slash + 1 : v->out;
    char folder[OPTION_TEXT_SIZE] = ".";
    if (slash) snprintf(folder, sizeof folder, "%.*s", (int)(slash - v->out), v->out);
    if (!*v->each || strspn(name, "0123456789") != 6 || strcmp(name + 6, ".png") != 0) return 0;
    if (strcmp(folder, v->each) != 0 && !is_same_file(folder, v->each)) return 0;
    fprintf(stderr, "jem sample: %s is the name of a sample of --each: give --out another one\n",
            v->out);
    return 1;
}

/* With --class all, makes a row for each class, also of many, unless options decide the count;
   notes how many classes the picture shows, if not all. */
static void fit_count(const options *o, sample_options *v, const jem_net *net) {
    if (strcmp(v->label, "all") || jem_net_meta(net, "jem.uncond")) return;
    const int decided = option_given(o, "n") || option_given(o, "columns") ||
                        option_given(o, "from");
    if (!decided && v->n < v->columns * net->classes && net->classes <= GRID_MOST) {
        v->columns = smaller(v->columns, GRID_MOST / net->classes);
        v->n = v->columns * net->classes;
    }
    const int rows = (smaller(v->n, GRID_MOST) - 1) / v->columns + 1;
    if (rows < net->classes)
        fprintf(stderr, "jem sample: the picture of at most %d samples, %d in a row, shows %d of "
                "%d classes\n", GRID_MOST, v->columns, rows, net->classes);
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
    const char *const out[] = { values.out, values.chains };
    if (!outputs_differ(o->command, out, 2) || grid_is_sample(&values) ||
        !may_write_other(o->command, words[0], values.out) ||
        (*values.chains && !may_write_other(o->command, words[0], values.chains))) return 2;
    if (model_open(&s.m, o->command, words[0], values.threads, values.precision,
                   values.max_memory)) {
        if (values.last_sigma > 0) s.m.net->last_sigma = values.last_sigma;    /* limits the walk */
        if (!model_has(o->command, &s.m, 0)) status = 2;
        else if (!walk_as_in_training(o, &s.m)) status = 1;
        else if (!sample_options_used(o, &s)) status = 2;
        else {
            fit_count(o, &values, s.m.net);
            status = sample_all(&s);
        }
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

/* ---- jem eval -------------------------------------------------------------------------------- */

static const option eval_table[] = {
    { "dataset", OPTION_TEXT, OPTION_NOW, offsetof(eval_options, dataset), "NAME", NO_PRESETS(""),
      0, 0, "as in jem train (default: that of the model)" },
    { "data", OPTION_TEXT, OPTION_NOW, offsetof(eval_options, data), "DIR", NO_PRESETS("data"), 0,
      0, "the folder that tools/get-data filled" },
    { "split", OPTION_CHOICE, OPTION_NOW, offsetof(eval_options, split), "test|train|all",
      NO_PRESETS("test"), 0, 0, "part of the data set" },
    { "n", OPTION_INT, OPTION_NOW, offsetof(eval_options, n), "N", NO_PRESETS("0"), 0, 1e9,
      "only the first N images (0: all)" },
    { "mirror", OPTION_FLAG, OPTION_NOW, offsetof(eval_options, mirror), "", NO_PRESETS("off"), 0,
      0, "classes by the mean of the logits of an image and of its mirror image" },
    { "label", OPTION_TEXT, OPTION_NOW, offsetof(eval_options, label), "NAME", NO_PRESETS(""), 0, 0,
      "CSV: column of labels (default: as in training)" },
    { "skip-rows", OPTION_FLAG, OPTION_NOW, offsetof(eval_options, skip_rows), "",
      NO_PRESETS("off"), 0, 0,
      "CSV: leave out rows that cannot be read (default: as in training)" },
    COMPUTE_OPTIONS(eval_options, "exact"),
    LIMIT_OPTIONS(eval_options, "0")
};

/* The values of --split. */
static const char *const split_names[] = { "test", "train", "all" };

/* Maps labels to those of the network, by class names if it has any (an unknown name keeps its
   number from training). Returns 0 and prints the reason if the network lacks a class. */
static int label_as(const jem_net *net, data_set *d) {
    enum { NAMED = 10 };
    char name[NAME_SIZE];
    if (!d->values && !jem_net_meta(net, CLASS_PREFIX "0")) return 1;
    int *to = (int *)malloc((size_t)d->classes * sizeof *to);
    int ok = to != NULL;
    if (!ok) fprintf(stderr, "jem eval: out of memory for the classes\n");
    for (int k = 0; ok && k < d->classes; k++) {
        char key[32];
        snprintf(key, sizeof key, CLASS_PREFIX "%d", k);
        to[k] = class_named(net, d->class_names[k]);
        if (to[k] < 0 && !d->values && k < net->classes && !jem_net_meta(net, key)) to[k] = k;
        if (to[k] < 0) {
            fprintf(stderr, "jem eval: %s: the model has no class '%s'; its classes are", d->name,
                    d->class_names[k]);
            for (int c = 0; c < net->classes && c < NAMED; c++)
                fprintf(stderr, "%s %s", c ? "," : "", class_name(net, c, name));
            fprintf(stderr, "%s (%s)\n", net->classes > NAMED ? ", ..." : "",
                    d->values ? "correct the label, or use jem score" : "rename the folder?");
            ok = 0;
        }
    }
    for (int i = 0; ok && i < d->n; i++) d->labels[i] = to[d->labels[i]];
    free(to);
    return ok;
}

void shuffle_images(data_set *d, int seed) {
    const size_t size = (size_t)d->c * (size_t)d->h * (size_t)d->w;
    jem_rng rng = jem_rng_seed((uint64_t)seed);
    for (int at = d->n - 1; at > 0; at--) {
        const int k = jem_rng_below(&rng, at + 1);
        const int label = d->labels[at];
        unsigned char *a = d->pixels + (size_t)at * size;
        unsigned char *b = d->pixels + (size_t)k * size;
        d->labels[at] = d->labels[k];
        d->labels[k] = label;
        if (d->paths) {
            char *path = d->paths[at];
            d->paths[at] = d->paths[k];
            d->paths[k] = path;
        }
        for (size_t p = 0; p < size; p++) {
            const unsigned char one = a[p];
            a[p] = b[p];
            b[p] = one;
        }
    }
}

void mix_classes(data_set *d) {
    if (d->values) return;
    int runs = 1;
    for (int i = 1; i < d->n; i++) runs += d->labels[i] != d->labels[i - 1];
    /* Not mixed already; train and test of a folder may follow each other. */
    if (runs <= 2 * d->classes) shuffle_images(d, 1);
}

/* Returns 1 if the data are in the place of those that the model has learned. */
static int is_place_of_training(const model *m, const eval_options *e) {
    const char *trained_on = jem_archive_meta(m->archive, OPTION_PREFIX "dataset");
    return trained_on && (!strcmp(trained_on, e->dataset) || is_same_file(trained_on, e->dataset));
}

/* Returns 1 if the model has learned these data: by their contents, or by their place if the file
   does not have the mark of its data. */
static int has_learned(const model *m, const eval_options *e, const data_set *d) {
    const char *learned = jem_archive_meta(m->archive, "run.data");
    char mark[DATA_MARK];
    mark_data(d, mark);
    return learned ? !strcmp(learned, mark) : is_place_of_training(m, e);
}

/* Loads the rows of a table for a model of rows. */
static int table_for(const model *m, const options *o, const eval_options *e, data_desc *desc,
                     data_set *d) {
    char error[512];
    const char **names = NULL;
    if (!model_has("jem eval", m, 1)) return 2;
    names = (const char **)malloc((size_t)m->net->channels * sizeof *names);
    if (!names) {
        fprintf(stderr, "jem eval: out of memory\n");
        return 1;
    }
    desc->label = e->label;
    columns_of(m, names, desc);
    if (option_given(o, "skip-rows")) desc->skip_rows = e->skip_rows;
    const int loaded = data_load(d, e->dataset, "train", desc, error, sizeof error);
    free((void *)names);
    if (!loaded) {
        const int can_skip = strstr(error, "rows cannot be read") != NULL ||
                             strstr(error, "rows (most) cannot be read") != NULL;
        fprintf(stderr, "jem eval: %s%s\n", error,
                can_skip ? " (--skip-rows leaves them out)" : "");
        return 1;
    }
    note_unread(stderr, "jem eval: ", e->dataset, d);
    if (!e->split && has_learned(m, e, d)) {
        fprintf(stderr, "jem eval: %s: the model has learned its rows: --dataset OTHER.csv, or "
                "--split train\n", e->dataset);
        data_free(d);
        return 2;
    }
    if (!e->split && is_place_of_training(m, e))
        fprintf(stderr, "jem eval: %s: has changed since training; rows that the model has learned "
                "make it look better than it is\n", e->dataset);
    int ok = m->net->classes == 1 || d->has_labels;
    if (!ok) fprintf(stderr, "jem eval: %s: has no labels (jem score needs none)\n", e->dataset);
    for (int i = 0; m->net->classes == 1 && i < d->n; i++) d->labels[i] = 0;
    if (ok && m->net->classes > 1) ok = label_as(m->net, d);
    if (ok) return 0;
    data_free(d);
    return 2;
}

static void on_unreadable(void *user, const char *message) {
    fprintf(stderr, "%s: %s\n", (const char *)user, message);
}
void name_unreadable(data_desc *desc, const char *command) {
    desc->bad = on_unreadable;
    desc->user = (void *)(uintptr_t)command;
}

void note_unread(FILE *to, const char *prefix, const char *name, const data_set *d) {
    const int one = d->skipped == 1;
    if (!d->skipped) return;
    if (d->values)
        fprintf(to, "%s%s: %d %s left out; the first: %s\n", prefix, name, d->skipped,
                one ? "row cannot be read, and is" : "rows cannot be read, and are",
                d->first_skipped);
    else
        fprintf(to, "%s%s: %d %s, because %s: %s\n", prefix, name, d->skipped,
                one ? "file or folder is not read" : "files or folders are not read",
                one ? "it is hidden, or no picture in the folder of a class"
                    : "they are hidden, or no pictures in the folder of a class",
                d->first_skipped);
}

int same_but_for_size(const jem_archive *a, const jem_archive *b) {
    static const char *const keys[] = {
        "jem.net", "jem.channels", "jem.height", "jem.width", "jem.classes", "jem.activation",
        "jem.slope", "jem.norm", "jem.head", "jem.stem_stride", "jem.blocks", "jem.unet",
        "jem.uncond"
    };
    int same = 1;
    for (size_t i = 0; same && i < sizeof keys / sizeof *keys; i++) {
        const char *mine = jem_archive_meta(a, keys[i]);
        const char *its = jem_archive_meta(b, keys[i]);
        same = !strcmp(mine ? mine : "0", its ? its : "0");
    }
    return same;
}

void forget_calibration(jem_net *net) {
    static const char *const texts[] = { "jem.statistics", "jem.usual", "jem.familiar",
                                         "run.calibrated", "jem.temperature", "run.tempered" };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) jem_net_set_meta(net, texts[i], NULL);
}

data_shape shape_in_training(const jem_archive *a) {
    const char *crop = jem_archive_meta(a, OPTION_PREFIX "crop");
    const char *pad = jem_archive_meta(a, OPTION_PREFIX "pad");
    if (crop && !strcmp(crop, "on")) return DATA_CROP;
    return pad && !strcmp(pad, "on") ? DATA_PAD : DATA_STRETCH;
}

void describe_look(const model *m, data_desc *desc) {
    const char *background = jem_archive_meta(m->archive, OPTION_PREFIX "background");
    if (background) desc->background = atoi(background) & 255;
    desc->shape = shape_in_training(m->archive);
}

/* Describes images in the format of the model's training. */
static void describe_as_trained(const model *m, const eval_options *e, data_desc *desc) {
    const jem_archive *a = m->archive;
    const char *trained_on = jem_archive_meta(a, OPTION_PREFIX "dataset");
    const char *split = jem_archive_meta(a, OPTION_PREFIX "test-split");
    const char *seed = jem_archive_meta(a, OPTION_PREFIX "seed");
    const char *size = jem_archive_meta(a, OPTION_PREFIX "size");
    const char *grey = jem_archive_meta(a, OPTION_PREFIX "grey");
    describe_look(m, desc);
    if (!split && trained_on) split = OLD_SPLIT;
    if (split) describe_split(split, seed ? atoi(seed) : 0, desc);
    if (size && atoi(size)) {
        desc->height = m->net->height;
        desc->width = m->net->width;
        desc->resize = DATA_FIT;
    }
    if ((grey && !strcmp(grey, "on")) || (trained_on && !strcmp(trained_on, e->dataset)))
        desc->channels = m->net->channels;
}

/* Notes that only a part of another folder than the model's is measured. */
static void note_held_out(const model *m, const eval_options *e, const data_set *d) {
    if (!d->held_out || strcmp(split_names[e->split], "test")) return;
    if (is_place_of_training(m, e)) return;
    fprintf(stderr, "jem eval: %s: %d test images, about a tenth of each class; --split all takes "
            "all, if the model has not learned them\n", e->dataset, d->n);
}

void note_learned(const model *m, const eval_options *e, const data_set *d) {
    const char *const part = split_names[e->split];
    if (!strcmp(part, "test") || !(is_place_of_training(m, e) || has_learned(m, e, d))) return;
    if (d->values)
        fprintf(stderr, "jem eval: %s has learned most of these rows: only others show how it "
                "does on new ones\n", m->path);
    else
        fprintf(stderr, "jem eval: %s has learned most of these images: only test images show how "
                "it does on others\n", m->path);
}

/* Refuses options that only tables have. */
static int no_table_options(const options *o) {
    static const char *const names[] = { "label", "skip-rows" };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (!option_given(o, names[i])) continue;
        fprintf(stderr, "jem eval: --%s is for a table, whose name ends in .csv or .tsv\n",
                names[i]);
        return 0;
    }
    return 1;
}

/* Returns 1 if the data set that the model names, and the command does not, is not there. */
static int is_gone(const options *o, const char *error) {
    const int named = option_given(o, "dataset") || option_given(o, "data");
    return !named && strstr(error, "no such folder") != NULL;
}

int data_for(const model *m, options *o, const eval_options *e, data_set *d) {
    const jem_net *net = m->net;
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
    limit_data(&desc, e->max_file, e->max_picture);
    desc.root = e->data;
    name_unreadable(&desc, "jem eval");
    if (data_is_table(e->dataset)) return table_for(m, o, e, &desc, d);
    if (!no_table_options(o)) return 2;
    describe_as_trained(m, e, &desc);
    if (!data_load(d, e->dataset, split_names[e->split], &desc, error, sizeof error)) {
        const char *hint = "";
        if (is_gone(o, error))
            hint = " (that path is from the training; --dataset or --data gives another)";
        else if (strstr(error, "no pictures remain for testing"))
            hint = " (jem eval MODEL --split all takes all pictures)";
        else if (strstr(error, "no folder per class"))
            hint = " (--split all takes them as pictures of the class of that name)";
        fprintf(stderr, "jem eval: %s%s\n", error, hint);
        return 1;
    }
    note_unread(stderr, "jem eval: ", e->dataset, d);
    note_held_out(m, e, d);
    const int alike = d->c == net->channels && d->h == net->height && d->w == net->width;
    int ok = alike && d->classes <= net->classes;
    if (alike && !ok)
        fprintf(stderr, "jem eval: %s has %d classes, %s %d\n", e->dataset, d->classes, m->path,
                net->classes);
    else if (!ok)
        fprintf(stderr, "jem eval: %s has images (%d,%d,%d), classes: %d; %s has (%d,%d,%d), %d "
                "(a model that was trained with --size N resizes pictures)\n", e->dataset, d->c,
                d->h, d->w, d->classes, m->path, net->channels, net->height, net->width,
                net->classes);
    ok = ok && label_as(net, d);
    if (ok) return 0;
    data_free(d);
    return 2;
}

static int eval_model(const model *m, options *o, const eval_options *e) {
    const char *const part = split_names[e->split];
    data_set d;
    int status = data_for(m, o, e, &d);
    if (status) return status;
    const int n = e->n ? smaller(e->n, d.n) : d.n;
    evaluation v;
    if (e->mirror && d.values) {
        fprintf(stderr, "jem eval: --mirror: %s is a table, and not of images\n", e->dataset);
        data_free(&d);
        return 2;
    }
    note_learned(m, e, &d);
    mix_classes(&d);
    const int requests = EVALUATE_LOGP | (e->mirror ? EVALUATE_MIRRORED : 0);
    if (evaluate(m->net, &d, NULL, n, requests, &v) && !isfinite(v.nll + v.logp))
        jem_fail(m->ctx, JEM_DIVERGED, "results of the model are not finite");
    const int rows = d.values != NULL;
    if (jem_ok(m->ctx) && rows && m->net->classes == 1)
        printf("%s, %d rows: mean log p(x) %.3f\n", e->dataset, n, v.logp);
    else if (jem_ok(m->ctx) && m->net->classes == 1)
        printf("%s, %s, %d images: mean log p(x) %.2f\n", e->dataset, part, n, v.logp);
    else if (jem_ok(m->ctx) && rows)
        printf("%s, %d rows: accuracy %.2f%%, -log p(y|x) %.4f, mean log p(x) %.3f\n",
               e->dataset, n, 100 * v.accuracy, v.nll, v.logp);
    else if (jem_ok(m->ctx))
        printf("%s, %s, %d images%s: accuracy %.2f%%, -log p(y|x) %.4f, mean log p(x) %.2f\n",
               e->dataset, part, n, e->mirror ? ", also mirrored" : "",
               100 * v.accuracy, v.nll, v.logp);
    else {
        model_fail("jem eval", m);
        status = 1;
    }
    const char *temperature = jem_net_meta(m->net, "jem.temperature");
    if (status == 0 && temperature && m->net->classes > 1)
        printf("(at temperature 1; jem %s divides the logits by %s)\n", rows ? "score" : "classify",
               temperature);
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
                                  "jem eval MODEL [calibration|ood|attack|impute|noise|samples] "
                                  "[OPTIONS]: accuracy and log-likelihood, or the named "
                                  "measurement (jem eval MODEL NAME --help: its options)");
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

/* Prints the kind of a network, and its sizes. */
static void info_layers(const jem_net *net) {
    static const char *const activations[] = { "leaky-relu", "relu", "silu", "tanh" };
    const char *const blocks = jem_net_meta(net, "jem.blocks");
    const char *kind = jem_net_meta(net, "jem.net");
    const char *act = jem_net_meta(net, "jem.activation");
    printf("  network    %s", kind);
    if (!strcmp(kind, "wrn"))
        printf("-%s-%s, %s%s head, stem stride %s", jem_net_meta(net, "jem.depth"),
               jem_net_meta(net, "jem.widen"),
               blocks && atoi(blocks) ? "blocks that begin as the identity, " : "",
               atoi(jem_net_meta(net, "jem.head")) ? "flat" : "pooled",
               jem_net_meta(net, "jem.stem_stride"));
    else
        for (int i = 0; i < atoi(jem_net_meta(net, "jem.layers")); i++) {
            char key[32];
            snprintf(key, sizeof key, "jem.width%d", i + 1);
            printf(" %s", jem_net_meta(net, key));
        }
    printf(", %s, %ld parameters\n", activations[atoi(act) & 3], (long)jem_net_size(net));
}

/* Prints what the network takes, with the names of columns, and its classes. */
static void info_data(const jem_net *net, int is_table) {
    enum { SHOWN = 20 };
    static const char *const colours[4] = { "", " grey", "", " in colour" };
    char number[NAME_SIZE];
    if (is_table) {
        printf("  rows       %d numbers:", net->channels);
        for (int i = 0; i < net->channels && i < SHOWN; i++) {
            char key[32];
            snprintf(key, sizeof key, COLUMN_PREFIX "%d", i);
            const char *name = jem_net_meta(net, key);
            printf(" %s", name ? clean(name, number) : "?");
        }
        printf("%s\n  classes    %d:", net->channels > SHOWN ? " ..." : "", net->classes);
    } else
        printf("  images     %d x %d%s, %d class%s:", net->width, net->height,
               colours[net->channels <= 3 ? net->channels : 0], net->classes,
               net->classes == 1 ? "" : "es");
    for (int i = 0; i < net->classes && i < SHOWN; i++)
        printf("%s %s", i ? "," : "", class_name(net, i, number));
    printf("%s\n", net->classes > SHOWN ? ", ..." : "");
}

/* Prints the noise levels of a network that has learned a score, and its way of sampling. */
static void info_score(const jem_net *net) {
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
    if (net->noise_hi > 0 && net->last_sigma > 0)
        printf("  last step  of a sample removes noise of at most %g\n", (double)net->last_sigma);
}

/* Prints how a picture of another size is fitted to the network. */
static void info_pictures(const jem_archive *a, const jem_net *net) {
    const char *framing = jem_net_meta(net, "jem.framing");
    const char *background = jem_archive_meta(a, OPTION_PREFIX "background");
    const data_shape shape = shape_in_training(a);
    const char *fit = jem_net_meta(net, "jem.fit");
    if (!fit && shape == DATA_CROP) fit = "crop";
    if (!fit && shape == DATA_PAD) fit = "pad";
    if (jem_net_meta(net, "jem.background")) background = jem_net_meta(net, "jem.background");
    double ground = 0;
    double share = 0;
    if (framing && sscanf(framing, "%lf %lf", &ground, &share) == 2)
        printf("  pictures   framed as in training: the subject, %s, has %.0f%% of the side",
               ground > .5 ? "dark on bright" : "bright on dark", 100 * share);
    else if (fit && !strcmp(fit, "crop"))
        printf("  pictures   cropped to the image's proportions");
    else if (fit && !strcmp(fit, "pad"))
        printf("  pictures   padded to the image's proportions");
    else printf("  pictures   not framed; of other proportions: stretched");
    if (background && atoi(background)) printf("; transparent pixels on grey %s", background);
    printf("\n");
}

static void info_familiar(const jem_net *net, int is_table) {
    const int gradients = jem_calibrated(net);
    if (!jem_net_meta(net, "jem.familiar")) {
        printf("  familiar   not calibrated\n");
        return;
    }
    printf("  familiar   calibrated: it can rate the familiarity of %s",
           is_table ? "rows" : "images");
    if (gradients == 0) printf(", without gradients");
    if (gradients > 0) printf(", at %d gradient%s each", gradients, gradients > 1 ? "s" : "");
    if (gradients > 0 && !is_table) printf(" (jem eval MODEL ood --gradients 0 --save NEW: none)");
    printf("\n");
}

static void info_temperature(const jem_net *net) {
    const char *t = jem_net_meta(net, "jem.temperature");
    const char *origin = jem_net_meta(net, "run.tempered");
    char clear[NAME_SIZE];
    if (!t) return;
    printf("  temperature divides the logits of answers by %.4g", atof(t));
    if (origin) printf(", fitted to %s", clean(origin, clear));
    printf("\n");
}

static void info_network(const jem_archive *a, const jem_net *net) {
    const int is_table = net->height == 1 && net->width == 1;
    info_layers(net);
    info_data(net, is_table);
    if (!is_table && net->channels <= 3) info_pictures(a, net);
    info_score(net);
    info_familiar(net, is_table);
    info_temperature(net);
}

/* Prints the uses of a file, from the state of training when it was written. */
static void info_uses(const jem_archive *a, int classes) {
    const char *validation = jem_archive_meta(a, "run.validation");
    const char *density = jem_archive_meta(a, "run.density");
    char clear[NAME_SIZE];
    int n = 0;
    double accuracy = 0;
    double nll = 0;
    double residual = 0;
    double logp = 0;
    int numbers = 0;
    if (!density) return;                          /* an older file */
    if (validation) numbers = sscanf(validation, "%d %lf %lf %lf %lf", &n, &accuracy, &nll,
                                     &residual, &logp);
    const char *by_noise = "noise-contrastive estimation";
    if (!strcmp(density, by_noise)) {
        printf("  use        log p(x) of rows (%s), familiarity%s\n", by_noise,
               classes > 1 ? ", classification" : "");
        if (numbers == 5)
            printf("  validation mean log p(x) %.3f of %d rows%s\n", logp, n,
                   classes > 1 ? "; of their classes:" : "");
        if (numbers == 5 && classes > 1)
            printf("             accuracy %.2f%%, -log p(y|x) %.4f\n", 100 * accuracy, nll);
        return;
    }
    if (classes < 2) {
        printf("  use        log p(x), familiarity; of one class, no classification\n");
        return;
    }
    printf("  use        classification");
    if (numbers >= 4) {
        printf(" (%.2f%% of %d validation images, -log p(y|x) %.4f", 100 * accuracy, n, nll);
        if (residual > 0) printf(", score error %.3f", residual);
        printf(")");
    }
    if (!strcmp(density, "none")) printf("; not for samples: it has not learned a density\n");
    else if (!strcmp(density, "score"))
        printf("; samples, with score alone, which gives poor ones\n");
    else printf("; samples, with %s\n", clean(density, clear));
}

/* Prints the origin of the best file; of one class, accuracy says nothing. */
static void info_best(const float *state, int classes) {
    const double lowest = (double)state[STATE_LOWEST];
    printf("  best       best.safetensors is from update %.0f: ", (double)state[STATE_BEST_AT]);
    if (classes > 1) printf("accuracy %.2f%%; ", 100 * (double)state[STATE_BEST]);
    if (lowest != 0) printf("lowest loss %.4g\n", lowest);
    else printf("the latest with the lowest loss, 0 (chains alone have none)\n");
}

/* Prints how training went, from the state of the run. */
static void info_health(const jem_archive *a, int classes) {
    const jem_entry *state = jem_archive_find(a, "run.state");
    const char *density = jem_archive_meta(a, "run.density");
    if (!state || state->dtype != JEM_DTYPE_F32 || state->bytes <= STATE_RETRIES * sizeof(float))
        return;
    const float *f = (const float *)state->data;
    printf("  health     ");
    if (!density || strstr(density, "chains"))
        printf("f(x+) - f(x-) about %.2f, ", (double)f[STATE_GAP]);
    printf("retries after divergence: %.0f\n", (double)f[STATE_RETRIES]);
    if (state->bytes > STATE_BEST_AT * sizeof(float) && f[STATE_BEST_AT] >= 0)
        info_best(f, classes);
}

/* Prints the replay buffer, if there is one. */
static void info_buffer(const jem_archive *a) {
    const jem_entry *b = jem_archive_find(a, "replay_buffer");
    const jem_entry *v = jem_archive_find(a, "replay_visits");
    if (!b) return;
    if (b->ndim == 4)
        printf("  buffer     %.0f chains of (%.0f,%.0f,%.0f)", (double)b->shape[0],
               (double)b->shape[1], (double)b->shape[2], (double)b->shape[3]);
    if (v && v->dtype == JEM_DTYPE_I32) {
        const int *n = (const int *)v->data;
        double sum = 0;
        ptrdiff_t count = (ptrdiff_t)(v->bytes / sizeof(int));
        ptrdiff_t fresh = 0;
        ptrdiff_t empty = 0;
        for (ptrdiff_t i = 0; i < count; i++) {
            sum += n[i] > 0 ? n[i] : 0;
            fresh += n[i] == 0;
            empty += n[i] < 0;
        }
        if (empty == count) printf(", not filled yet: the chains have not begun");
        else printf(", walked %.1f times on average, %ld never", sum / (double)(count - empty),
                    (long)fresh);
    }
    printf("\n");
}

/* Prints the arrays of the optimiser, if there are any. */
static void info_optimiser(const jem_archive *a) {
    int moments = 0;
    int averages = 0;
    int trained = 0;
    for (int i = 0; i < jem_archive_count(a); i++) {
        const char *name = jem_archive_at(a, i)->name;
        moments += begins(name, "optim.");
        averages += begins(name, "average.");
        trained += begins(name, "trained.");
    }
    const char *weights = "";
    if (trained)
        weights = "; the network is the average of the trained weights, which are here too";
    else if (averages) weights = "; averaged weights as well";
    if (moments) printf("  optimiser  %d arrays of moments%s\n", moments, weights);
}

static void info_run(const jem_archive *a, int classes) {
    const char *updates = jem_archive_meta(a, "run.updates");
    const char *seconds = jem_archive_meta(a, "run.seconds");
    char text[2][NAME_SIZE];
    if (updates && seconds)
        printf("  run        after update %s, %s seconds of training\n", clean(updates, text[0]),
               clean(seconds, text[1]));
    else if (updates) printf("  run        update %s\n", clean(updates, text[0]));
    info_uses(a, classes);
    info_health(a, classes);
    info_buffer(a);
    info_optimiser(a);
}

/* Returns 1 for options that are listed even if they have their default. */
static int always_listed(const char *name) {
    return !strcmp(name, "preset") || !strcmp(name, "dataset");
}

/* Fills in the options that a run with this preset, data set and network has without others. Marks
   the options of the network and the density that differ from the preset as given. Returns NULL if
   the options are unknown. */
static const options *usual_options(const jem_archive *a) {
    static const char *const names[] = { "preset", "dataset", "net", "unet", "scale",
                                         "score-weight", "optimizer" };
    static options o;
    static train_options values;
    options_begin(&o, "jem info", train_table, (size_t)train_count * sizeof *train_table, &values);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char key[64];
        const int at = option_find(&o, names[i]);
        snprintf(key, sizeof key, OPTION_PREFIX "%s", names[i]);
        const char *text = jem_archive_meta(a, key);
        if (i == 2 && !train_defaults(&o, &values)) return NULL;
        if (!text && i < 2) return NULL;
        if (!text || !strcmp(text, o.text[at])) continue;  /* defaults depend on what is given */
        if (!option_set(&o, at, text)) return NULL;
        o.given[at] = 1;
    }
    return train_defaults(&o, &values) ? &o : NULL;
}

/* Prints the options of training that differ from the defaults of its preset and data set. */
static void info_options_of(const jem_archive *a) {
    const options *o = usual_options(a);           /* NULL: unknown */
    const char *preset = jem_archive_meta(a, OPTION_PREFIX "preset");
    const int fast = preset && !strcmp(preset, "fast");
    if (!preset) return;
    printf("  options   ");
    for (int i = 0; i < train_count; i++) {
        const option *t = &train_table[i];
        const char *usual = fast && t->value[1] ? t->value[1] : t->value[0];
        if (o) usual = o->text[i];
        char key[64], clear[OPTION_TEXT_SIZE], quoted[OPTION_TEXT_SIZE + 8];
        if (t->kind == OPTION_TITLE) continue;
        snprintf(key, sizeof key, OPTION_PREFIX "%s", t->name);
        const char *text = jem_archive_meta(a, key);
        const int listed = always_listed(t->name) || (o && o->given[i]);
        if (!text || (!strcmp(text, usual) && !listed)) continue;
        if (t->kind == OPTION_FLAG) printf(" --%s%s", strcmp(text, "on") ? "no-" : "", t->name);
        else {
            snprintf(clear, sizeof clear, "%s", text);
            harmless(clear, 0);
            printf(" --%s %s", t->name, data_quoted(clear, quoted, sizeof quoted));
        }
    }
    printf("\n");
}

/* Prints the contents of a file without a network of a known kind. */
static void info_tensors(const jem_archive *a) {
    enum { SHOWN = 40 };
    const char *kind = jem_archive_meta(a, "jem.net");
    char name[NAME_SIZE];
    if (kind)
        printf("  a custom network, of the kind '%s': only a program that registers it "
               "can compute it (examples/README.md, 'A network of your own')\n", clean(kind, name));
    else if (jem_archive_meta(a, "judge.shape"))
        printf("  a judge of samples, for jem eval MODEL samples --judge FILE\n");
    else
        printf("  no description of a network: not written by jem (tools/pt2safetensors.py "
               "converts checkpoints of the reference)\n");
    for (int i = 0; i < jem_archive_count(a) && i < SHOWN; i++) print_tensor(jem_archive_at(a, i));
    if (jem_archive_count(a) > SHOWN) printf("    ...\n");
}

static int is_known_kind(const char *kind) {
    return !strcmp(kind, "wrn") || !strcmp(kind, "convnet") || !strcmp(kind, "mlp");
}

static int info_file(const char *path) {
    jem_ctx *ctx = make_ctx(1, 0);
    jem_archive *a = NULL;
    jem_net *net = NULL;
    struct stat file;
    int ok = 1;
    if (ctx) a = jem_archive_read(ctx, path);
    if (!a) {
        if (!name_model_of_run("jem info", path)) context_fail("jem info", ctx);
        jem_ctx_free(ctx);
        return 0;
    }
    printf("%s: %d tensors", path, jem_archive_count(a));
    if (stat(path, &file) == 0) printf(", %.2f MB", (double)file.st_size / 1e6);
    printf("\n");
    const char *kind = jem_archive_meta(a, "jem.net");
    if (kind && is_known_kind(kind)) net = jem_net_from_archive(ctx, a);
    if (net) {
        info_network(a, net);
        info_run(a, net->classes);
        info_options_of(a);
    } else if (!jem_ok(ctx)) ok = context_fail("jem info", ctx);
    else info_tensors(a);
    jem_net_free(net);
    jem_archive_free(a);
    jem_ctx_free(ctx);
    return ok;
}

int is_help(const char *word) { return !strcmp(word, "--help") || !strcmp(word, "-h"); }

typedef struct info_options { int max_memory; } info_options;
static const option info_table[] = { LIMIT_MEMORY(info_options, "4000") };

int info_command(int argc, char **argv) {
    static options table;
    static info_options values;
    char **words;
    int n = 0;
    int failed = 0;
    options *o = options_begin(&table, "jem info", info_table, sizeof info_table, &values);
    const int read = read_options(o, argc, argv, &words, &n, 1, INT_MAX, "jem info FILE... "
                                  "[OPTIONS]: lists the contents of checkpoints");
    if (read >= 0) return read;
    limit_memory(values.max_memory);
    for (int i = 0; i < n; i++) failed += !info_file(words[i]);
    return failed > 0;
}

typedef struct export_options {
    int dtype, onnx, slope, fresh_steps, max_memory;
    float guidance, fraction, last_sigma;
    char average[OPTION_TEXT_SIZE];
} export_options;
enum { EXPORT_F32 = 0, EXPORT_BF16 };

static const option export_table[] = {
    { "dtype", OPTION_CHOICE, OPTION_NOW, offsetof(export_options, dtype), "f32|bf16",
      { "f32", NULL }, 0, 0,
      "full precision, or rounded to bf16, in half the bytes, except for the layer of the logits" },
    { "onnx", OPTION_FLAG, OPTION_NOW, offsetof(export_options, onnx), "", { "off", NULL }, 0, 0,
      "an ONNX graph instead, in fp32: from x, logits, logp and slope = d logp / dx" },
    { "slope", OPTION_FLAG, OPTION_NOW, offsetof(export_options, slope), "", { "on", NULL }, 0, 0,
      "with --onnx: also compute the slope; --no-slope for a graph that only classifies" },
    { "average", OPTION_TEXT, OPTION_NOW, offsetof(export_options, average), "FILE", { "", NULL },
      0, 0, "the mean of the weights of both files, for example of two runs that continue the same "
      "training (not calibrated: see jem eval MODEL ood --save)" },
    { "guidance", OPTION_FLOAT, OPTION_NOW, offsetof(export_options, guidance), "X", { "0", NULL },
      0, 1e6, "weight of log p(y|x) in samples of a class, stored in the copy (0: as it was)" },
    { "fresh-steps", OPTION_INT, OPTION_NOW, offsetof(export_options, fresh_steps), "N",
      { "0", NULL }, 0, 1e6, "noise-blind steps per sample, stored in the copy (0: unchanged)" },
    { "fraction", OPTION_FLOAT, OPTION_NOW, offsetof(export_options, fraction), "X", { "0", NULL },
      0, 1, "fraction of the noise that each of them removes (0: unchanged)" },
    { "last-sigma", OPTION_FLOAT, OPTION_NOW, offsetof(export_options, last_sigma), "X",
      { "0", NULL }, 0, 1e6,
      "noise that the last step of a sample removes, at most (0: unchanged)" },
    LIMIT_MEMORY(export_options, "4000")
};

/* Writes a network to a file; the new file replaces the old one when it is complete. In bf16, the
   layer of the logits remains in fp32 (see jem_archive_keep_f32). */
static jem_status export_net(const jem_net *net, const char *path, int dtype) {
    static const char *const kept[2] = { "class_output.weight", "class_output.bias" };
    jem_archive *a = jem_archive_create(net->ctx);
    jem_status status = a ? jem_net_to_archive(net, a) : JEM_NO_MEMORY;
    if (!status) status = jem_archive_set_bf16(a, dtype == EXPORT_BF16);
    for (int i = 0; i < 2 && !status; i++)
        if (jem_archive_find(a, kept[i])) status = jem_archive_keep_f32(a, kept[i]);
    if (!status) status = jem_archive_write(a, path);
    jem_archive_free(a);
    return status;
}

/* Removes what only this machine knows from the options of a run: the folder of its data, threads,
   and the folders of its data set (if its path is absolute) and of the file that it began with. */
static int forget_machine(jem_net *net) {
    const char *init = jem_net_meta(net, OPTION_PREFIX "init");
    const char *slash = init ? strrchr(init, '/') : NULL;
    const char *path = jem_net_meta(net, OPTION_PREFIX "dataset");
    char data[OPTION_TEXT_SIZE];
    snprintf(data, sizeof data, "%s", path ? path : "");
    for (size_t n = strlen(data); n > 0 && data[n - 1] == '/'; n--) data[n - 1] = 0;
    const char *name = *data == '/' ? strrchr(data, '/') + 1 : NULL;
    if (name && data_is_known(name)) name = "";    /* mnist means another data set */
    return (!slash || jem_net_set_meta(net, OPTION_PREFIX "init", slash + 1) == JEM_OK) &&
           (!name || jem_net_set_meta(net, OPTION_PREFIX "dataset", *name ? name : NULL) ==
            JEM_OK) &&
           jem_net_set_meta(net, OPTION_PREFIX "data", NULL) == JEM_OK &&
           jem_net_set_meta(net, OPTION_PREFIX "threads", NULL) == JEM_OK;
}

/* Returns 1 if a text of two networks is the same, or neither has it. */
static int same_text(const jem_net *a, const jem_net *b, const char *key) {
    const char *mine = jem_net_meta(a, key);
    const char *its = jem_net_meta(b, key);
    return mine && its ? !strcmp(mine, its) : mine == its;
}

/* Returns 1 if two networks compute the same function of their parameters, of the same classes. */
static int compute_alike(const model *a, const model *b) {
    const jem_net *net = a->net;
    char name[NAME_SIZE];
    char other[NAME_SIZE];
    int same = same_but_for_size(a->archive, b->archive) && net->scale == b->net->scale &&
               net->noise_lo == b->net->noise_lo && net->noise_hi == b->net->noise_hi &&
               same_text(net, b->net, "jem.quadratic") && same_text(net, b->net, "jem.student") &&
               same_text(net, b->net, "jem.units");
    for (int i = 0; same && i < net->classes; i++)
        same = !strcmp(class_name(net, i, name), class_name(b->net, i, other));
    return same;
}

/* Replaces the weights by their means with those of another file, whose network must be the same.
   Networks that continue one training differ little, and the mean of their weights often classifies
   better than either (Wortsman et al. 2022). Removes texts that were fitted to the weights. */
static int average_with(model *m, const char *command, const char *path, int max_memory) {
    model other;
    int same = model_open(&other, command, path, 1, 0, max_memory);
    if (same) {
        same = compute_alike(m, &other);
        jem_param *p = m->net->params;
        const jem_param *q = other.net->params;
        for (; p && q && same; p = p->next) {
            same = !strcmp(p->name, q->name) && p->size == q->size && p->ndim == q->ndim &&
                   !memcmp(p->shape, q->shape, (size_t)p->ndim * sizeof *p->shape);
            for (ptrdiff_t i = 0; same && i < p->size; i++)
                p->value[i] = .5f * (p->value[i] + q->value[i]);
            jem_param_changed(p);
            q = q->next;
        }
        same = same && !p && !q;
        if (!same)
            fprintf(stderr, "%s: %s and %s have different networks (jem info shows them)\n",
                    command, m->path, path);
    }
    forget_calibration(m->net);
    jem_net_set_meta(m->net, "run.validation", NULL);
    model_close(&other);
    return same;
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
    if (how->last_sigma > 0) m->net->last_sigma = how->last_sigma;
    if (forget_machine(m->net) && export_net(m->net, path, how->dtype) == JEM_OK) return 1;
    return model_fail(command, m);
}

/* Rejects options that the requested format does not have; prints the reason. */
static int export_combination(const options *o, const export_options *how, const char *path) {
    static const char *const stored[] = { "guidance", "fresh-steps", "fraction", "last-sigma" };
    if (how->onnx && how->dtype != EXPORT_F32) {
        fprintf(stderr, "jem export: --onnx writes fp32: leave out --dtype\n");
        return 0;
    }
    for (size_t i = 0; how->onnx && i < sizeof stored / sizeof *stored; i++) {
        if (!option_given(o, stored[i])) continue;
        fprintf(stderr, "jem export: an ONNX graph has no sampler: leave out --%s\n", stored[i]);
        return 0;
    }
    if (how->onnx && !names_no_file(path) && !has_ending(path, ".onnx")) {
        fprintf(stderr, "jem export: %s: the name of a graph must end in .onnx\n", path);
        return 0;
    }
    if (!how->onnx && has_ending(path, ".onnx")) {
        fprintf(stderr, "jem export: %s: a name that ends in .onnx is for a graph: add --onnx, or "
                "choose a name that ends in .safetensors\n", path);
        return 0;
    }
    if (!how->onnx && !how->slope) {
        fprintf(stderr, "jem export: --no-slope needs --onnx\n");
        return 0;
    }
    return 1;
}

/* Refuses options of a sampler that the model does not use. */
static int export_options_used(const options *o, const jem_net *net) {
    static const char *const of_score[] = { "fresh-steps", "fraction", "last-sigma", NULL };
    static const char *const of_classes[] = { "guidance", NULL };
    return options_used(o, net->noise_hi > 0, "is for models that learned a score", of_score) &&
           options_used(o, net->classes > 1 && !jem_net_meta(net, "jem.uncond"),
                        "is for models of p(x,y)", of_classes);
}

int export_command(int argc, char **argv) {
    static const char usage[] = "jem export FROM TO [OPTIONS]: copies the network of a checkpoint, "
                                "without optimiser and buffer";
    export_options values;
    static options table;
    options *o = options_begin(&table, "jem export", export_table, sizeof export_table, &values);
    char **words;
    int n_words = 0;
    int status = 1;
    model m;
    const int code = read_options(o, argc, argv, &words, &n_words, 2, 2, usage);
    if (code >= 0) return code;
    if (!export_combination(o, &values, words[1])) return 2;
    if (!may_replace(o->command, words[0], words[1], !values.onnx)) return 2;
    if (*values.average &&
        !may_replace(o->command, values.average, words[1], !values.onnx)) return 2;
    if (model_open(&m, o->command, words[0], 1, 0, values.max_memory)) {
        if (!export_options_used(o, m.net)) status = 2;
        else if (!can_create(o->command, words[1])) status = 1;
        else if (*values.average &&
                 !average_with(&m, o->command, values.average, values.max_memory)) status = 1;
        else status = !export_to(&m, o->command, words[1], &values);
        if (!status) printf("%s: %ld parameters\n", words[1], (long)jem_net_size(m.net));
    }
    model_close(&m);
    return status;
}
