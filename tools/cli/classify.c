/* jem classify. */
#include "tools/cli/system.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#include "tools/cli/classify.h"
#include "tools/cli/memory.h"
#include "tools/cli/notes.h"
#include "tools/cli/score.h"
#include "tools/cli/stop.h"
#include "tools/cli/train_options.h"
#include "tools/cli/use.h"
#include "tools/support/new_file.h"
#include "tools/support/table.h"

typedef struct classify_options {
    char out[OPTION_TEXT_SIZE];
    int wrong, top, invert, frame, background;
    int threads, precision, max_memory, max_file, max_picture;
} classify_options;
static const option classify_table[] = {
    { "out", OPTION_TEXT, OPTION_NOW, offsetof(classify_options, out), "FILE.csv", NO_PRESETS(""),
      0, 0, "a table with a row for each picture (default: a line on standard output)" },
    { "wrong", OPTION_FLAG, OPTION_NOW, offsetof(classify_options, wrong), "", NO_PRESETS("off"), 0,
      0, "with --out: only pictures in the folder of another class, the most certain first" },
    { "top", OPTION_INT, OPTION_NOW, offsetof(classify_options, top), "N", NO_PRESETS("1"), 1,
      1000, "number of classes to show" },
    { "invert", OPTION_FLAG, OPTION_NOW, offsetof(classify_options, invert), "", NO_PRESETS("off"),
      0, 0, "invert a picture that is not framed: ink on paper, for a model of white on black" },
    { "frame", OPTION_FLAG, OPTION_NOW, offsetof(classify_options, frame), "", NO_PRESETS("on"), 0,
      0, "show the subject as training images do, inverted if needed (--no-frame: off; --frame: "
      "also in a picture of the network's size)" },
    { "background", OPTION_INT, OPTION_NOW, offsetof(classify_options, background), "N",
      NO_PRESETS("0"), 0, 255, "grey behind transparent pixels (default: as in training)" },
    COMPUTE_OPTIONS(classify_options, "exact"),
    LIMIT_MEMORY(classify_options, "4000"), LIMIT_FILES(classify_options, "100")
};

enum { CHANGES_SIZE = 200 };

/* Prints the verdict, and its reason. */
static void print_familiarity(const jem_answer *a) {
    const jem_verdict verdict = jem_judge(a->familiarity);
    if (verdict == JEM_VERDICT_NONE) return;
    printf("; %s", jem_verdict_name(verdict));
    if (a->reason != JEM_REASON_NONE) printf(": %s", jem_reason_name(a->reason));
    printf(" (more typical than %.1f%% of the calibration images)", 100 * (double)a->familiarity);
}

/* A picture, and the answer of the network. */
typedef struct classified {
    const char *path;
    data_set d;                                    /* as in the file; after fit_picture, of the
                                                      network's shape */
    int was[3];                                    /* channels, height and width in the file */
    int framed, did;                               /* did: see jem_pixels_to_floats; unless framed,
                                                      only how other proportions were fitted */
    int blank;                                     /* 1: one colour, which has no verdict */
    float *x, *logp_class;                         /* [image_size], [classes] */
    int *order;                                    /* [classes], the most probable one first */
    jem_answer answer;
} classified;

/* Prints the error of the context for a picture, and clears it for later ones; returns 0. */
static int picture_fail(const model *m, const classified *p) {
    char hint[80];
    fprintf(stderr, "jem classify: %s: %s%s\n", p->path, jem_error(m->ctx), memory_hint(hint));
    jem_clear_error(m->ctx);
    return 0;
}

static data_desc describe_picture(const classify_options *o) {
    data_desc desc;
    memset(&desc, 0, sizeof desc);
    limit_data(&desc, o->max_file, o->max_picture);
    desc.background = o->background;
    return desc;
}

static int load_picture(const model *m, const classify_options *o, classified *p) {
    data_desc desc = describe_picture(o);
    desc.opposite = m->net->channels;
    const char *path = strcmp(p->path, "-") ? p->path : "/dev/stdin";
    char error[512];
    if (data_load_image(&p->d, path, &desc, p->was, error, sizeof error)) return 1;
    fprintf(stderr, "jem classify: %s\n", error);
    return 0;
}

/* Frames a picture as the network's images are, one of the network's size only if `always`;
   p->framed: whether it could be. Returns 0 after an error, which it prints. */
static int frame_picture(const model *m, int always, classified *p) {
    const data_set *d = &p->d;
    jem_pixels_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.frame_all = always;
    const ptrdiff_t pixels = (ptrdiff_t)d->h * d->w;
    unsigned char *bytes = (unsigned char *)malloc((size_t)pixels * (size_t)d->c);
    if (!bytes) {
        fprintf(stderr, "jem classify: out of memory for %s\n", p->path);
        return 0;
    }
    for (ptrdiff_t i = 0; i < pixels; i++)
        for (int k = 0; k < d->c; k++) bytes[i * d->c + k] = d->pixels[k * pixels + i];
    const jem_status status = jem_pixels_to_floats(m->net, bytes, d->w, d->h, d->c, &desc, p->x,
                                                   &p->did);
    free(bytes);
    if (status != JEM_OK) return picture_fail(m, p);
    p->framed = (p->did & JEM_DID_FRAME) != 0;
    return 1;
}

/* Converts a picture to the network's shape as in training. */
static int fit_picture(const model *m, const classify_options *o, classified *p) {
    static const int did_for[] = { JEM_DID_STRETCH, JEM_DID_CROP, JEM_DID_PAD };   /* data_shape */
    const ptrdiff_t size = image_size(m->net);
    data_desc desc = describe_picture(o);
    char error[512];
    describe_look(m, &desc);
    desc.background = p->d.behind;
    desc.channels = m->net->channels;
    desc.height = m->net->height;
    desc.width = m->net->width;
    desc.resize = DATA_FIT;
    const int other = (double)p->d.h * desc.width != (double)p->d.w * desc.height;
    p->did = other ? did_for[desc.shape] : 0;
    if (!data_fit_image(&p->d, p->path, &desc, error, sizeof error)) {
        fprintf(stderr, "jem classify: %s\n", error);
        return 0;
    }
    data_floats(&p->d, NULL, 1, p->x);
    for (ptrdiff_t i = 0; o->invert && i < size; i++) p->x[i] = -p->x[i];
    return 1;
}

/* Computes the answer of the network, and log p(y|x) of all classes, which it sorts. */
static int answer_picture(const model *m, classified *p) {
    jem_net *net = m->net;
    const char *divisor = jem_net_meta(net, "jem.temperature");
    float factor = 1;
    if (divisor) factor = 1 / strtof(divisor, NULL);
    if (jem_classify(net, p->x, 1, &p->answer) != JEM_OK) return picture_fail(m, p);
    jem_standardize(net, p->x, 1, p->x);           /* from here on in units of the network */
    const jem_mark mark = jem_begin(m->ctx);
    jem_tensor *t = jem_input(m->ctx, p->x, 1, net->channels, net->height, net->width);
    t = jem_scale(m->ctx, jem_forward(net, t, 0), factor);
    jem_read(jem_log_softmax(m->ctx, t), p->logp_class);
    jem_end(m->ctx, mark);
    if (jem_ok(m->ctx) && !isfinite(p->answer.log_density))
        jem_fail(m->ctx, JEM_DIVERGED, "log p(x) of the model is not finite");
    if (!jem_ok(m->ctx)) return picture_fail(m, p);
    for (int i = 0; i < net->classes; i++) {       /* by insertion */
        int k = i;
        for (; k > 0 && p->logp_class[p->order[k - 1]] < p->logp_class[i]; k--)
            p->order[k] = p->order[k - 1];
        p->order[k] = i;
    }
    return 1;
}

/* Returns how other proportions were fitted, or "". */
static const char *fitting_of(const classified *p) {
    if (p->framed) return "";
    if (p->did & JEM_DID_CROP) return "cropped";
    if (p->did & JEM_DID_PAD) return "padded";
    return p->did & JEM_DID_STRETCH ? "stretched" : "";
}

/* Describes how the picture was changed; "": not at all. */
static void describe_changes(char text[CHANGES_SIZE], const jem_net *net, const classified *p) {
    static const char *const colours[2] = { " in colour", " grey" };
    const data_set *d = &p->d;
    const char *fitting = fitting_of(p);
    const int same = p->was[0] == net->channels && p->was[1] == net->height &&
                     p->was[2] == net->width;
    int n = 0;
    *text = 0;
    if (!same)
        n = snprintf(text, CHANGES_SIZE, "from %d x %d%s to %d x %d%s", p->was[2], p->was[1],
                     colours[p->was[0] == 1], net->width, net->height,
                     colours[net->channels == 1]);
    if (p->framed)
        n += snprintf(text + n, (size_t)(CHANGES_SIZE - n), "%sframed%s", n ? ", " : "",
                      p->did & JEM_DID_INVERT ? ", inverted" : "");
    else if (*fitting)
        n += snprintf(text + n, (size_t)(CHANGES_SIZE - n), "%s%s", n ? ", " : "", fitting);
    if (d->blended)
        snprintf(text + n, (size_t)(CHANGES_SIZE - n), "%stransparent pixels over grey %d",
                 n ? "; " : "", d->behind);
}

/* Prints the answer, how the picture was changed, and the next probable classes. */
static void print_picture(const jem_net *net, const classify_options *o, const classified *p) {
    char changes[CHANGES_SIZE];
    char number[NAME_SIZE];
    describe_changes(changes, net, p);
    if (p->blank) {
        const int cropped = (p->did & JEM_DID_CROP) != 0;
        const char *image = cropped ? "the middle, all that --crop leaves," : "the image";
        printf("%s: %s has one colour: nothing to see%s%s\n", p->path, image, *changes ? "; " : "",
               changes);
        return;
    }
    printf("%s: ", p->path);
    if (net->classes > 1)
        printf("%s (p = %.3f), ", class_name(net, p->answer.label, number),
               (double)p->answer.probability);
    printf("log p(x) = %.1f", (double)p->answer.log_density);
    print_familiarity(&p->answer);
    printf("%s%s\n", *changes ? "; " : "", changes);
    for (int i = 1; i < o->top && i < net->classes; i++)
        printf("    %s (p = %.3f)\n", class_name(net, p->order[i], number),
               exp((double)p->logp_class[p->order[i]]));
}

/* A row of a table that is sorted. */
typedef struct classify_row { char *text; float probability; int at; } classify_row;

/* A path to classify; listed: found in a folder, where it may be no file. */
typedef struct classify_path { char *path; int listed; } classify_path;

/* The pictures, and what is known about them so far. */
typedef struct classify_run {
    const model *m;
    const classify_options *o;
    classify_path *at;
    int n, room;
    int frame_always;                              /* 1: --frame was given */
    int folders;                                   /* folders among the words of the command */
    new_file table;                                /* of --out */
    int pictures, unreadable, blank, verdicts[JEM_VERDICT_STRANGE + 1];
    int framed, inverted, stretched, cropped, padded;
    int *of_class;                                 /* [classes] */
    classify_row *rows;                            /* [n_rows] of --wrong, with room for all */
    int n_rows, in_class;                          /* in_class: pictures in the folder of a class */
    int failed;                                    /* folders without pictures */
} classify_run;

/* Returns the class that the folder of a picture is named after, or -1. */
static int class_of_folder(const jem_net *net, const char *path) {
    char folder[NAME_SIZE];
    char name[NAME_SIZE];
    const char *end = strrchr(path, '/');
    const char *from = end;
    while (from && from > path && from[-1] != '/') from--;
    if (!from) return -1;
    snprintf(folder, sizeof folder, "%.*s", (int)(end - from), from);
    return class_named(net, clean(folder, name));
}

/* Counts a picture in the folder of a class. Returns 1 if a picture has a row: with --wrong, only
   one in the folder of another class. */
static int has_row(classify_run *r, const classified *p, int answered) {
    if (!r->o->wrong) return 1;
    const int k = class_of_folder(r->m->net, p->path);
    r->in_class += k >= 0;
    return answered && !p->blank && k >= 0 && k != p->answer.label;
}

static int by_certainty(const void *a, const void *b) {
    const classify_row *x = (const classify_row *)a;
    const classify_row *y = (const classify_row *)b;
    if (x->probability < y->probability) return 1;
    return x->probability > y->probability ? -1 : x->at - y->at;
}

/* Writes the rows of --wrong, sorted. Returns 0 if it cannot. */
static int put_rows(classify_run *r) {
    int ok = 1;
    if (r->n_rows) qsort(r->rows, (size_t)r->n_rows, sizeof *r->rows, by_certainty);
    for (int i = 0; ok && i < r->n_rows; i++) ok = new_file_text(&r->table, r->rows[i].text);
    return ok;
}

/* Writes the row of a picture; answered = 0: of one that cannot be read. Returns 0 if it cannot. */
static int put_picture(classify_run *r, const classified *p, int answered) {
    const jem_net *net = r->m->net;
    const jem_answer *a = &p->answer;
    char answer[ANSWER_SIZE];
    char changes[CHANGES_SIZE] = "";
    char listed[2 * CHANGES_SIZE + 3];
    const char *verdict = "unreadable";
    const char *reason = "";
    char *quoted = (char *)malloc(2 * strlen(p->path) + 3);
    if (!quoted) return new_file_fail(&r->table, "out of memory");
    table_quote(p->path, quoted);
    if (answered) {
        describe_changes(changes, net, p);
        verdict = p->blank ? "blank" : jem_verdict_name(jem_judge(a->familiarity));
        if (!p->blank) reason = jem_reason_name(a->reason);
    }
    table_quote(changes, listed);
    format_answer(answer, net, answered && !p->blank ? a : NULL, verdict);
    const size_t size = strlen(quoted) + strlen(answer) + strlen(reason) + strlen(listed) + 5;
    char *row = (char *)malloc(size);
    if (row) snprintf(row, size, "%s,%s,%s,%s\n", quoted, answer, reason, listed);
    free(quoted);
    if (!row) return new_file_fail(&r->table, "out of memory");
    if (r->o->wrong) {
        const classify_row one = { row, a->probability, r->n_rows };
        r->rows[r->n_rows++] = one;
        return 1;
    }
    const int ok = new_file_text(&r->table, row);
    free(row);
    return ok;
}

/* Counts an answer. */
static void count_answer(classify_run *r, const classified *p) {
    r->framed += p->framed;
    r->inverted += p->framed && (p->did & JEM_DID_INVERT);
    r->stretched += !p->framed && (p->did & JEM_DID_STRETCH) != 0;
    r->cropped += !p->framed && (p->did & JEM_DID_CROP) != 0;
    r->padded += !p->framed && (p->did & JEM_DID_PAD) != 0;
    if (p->blank) r->blank++;
    else {
        r->verdicts[jem_judge(p->answer.familiarity)]++;
        r->of_class[p->answer.label]++;
    }
}

/* Loads a picture in the network's shape, and computes the answer. */
static int answer_file(const classify_run *r, classified *p) {
    const model *m = r->m;
    const classify_options *o = r->o;
    char hint[80];
    if (!load_picture(m, o, p)) return 0;
    p->x = new_floats((double)image_size(m->net));
    p->logp_class = new_floats(m->net->classes);
    p->order = (int *)malloc((size_t)m->net->classes * sizeof *p->order);
    int ok = p->x && p->logp_class && p->order;
    if (!ok) fprintf(stderr, "jem classify: out of memory for %s%s\n", p->path, memory_hint(hint));
    if (ok && o->frame && jem_net_meta(m->net, "jem.framing"))
        ok = frame_picture(m, r->frame_always, p);
    if (ok && !p->framed) ok = fit_picture(m, o, p);
    ok = ok && answer_picture(m, p);
    if (ok && !p->framed)
        p->blank = data_is_blank(p->d.pixels, p->d.c, (size_t)p->d.h * (size_t)p->d.w);
    return ok;
}

/* Returns 1 if a path that was found in a folder is a file. */
static int is_file(const char *path) {
    struct stat s;
    const char *reason = "is not a file";
    if (stat(path, &s)) reason = strerror(errno);
    else if (S_ISREG(s.st_mode)) return 1;
    else if (S_ISDIR(s.st_mode)) reason = "cannot be listed";
    fprintf(stderr, "jem classify: %s: %s\n", path, reason);
    return 0;
}

/* Classifies a picture. Returns 0 if the table cannot be written. */
static int classify_one(classify_run *r, const classify_path *at) {
    classified p;
    int ok = 1;
    memset(&p, 0, sizeof p);
    p.path = at->path;
    fflush(stdout);                                /* before messages */
    const int answered = (!at->listed || is_file(at->path)) && answer_file(r, &p);
    const int counts = answered || !stop_signal;   /* otherwise the signal ended its reading */
    if (answered) count_answer(r, &p);
    else r->unreadable += counts;
    r->pictures += counts;
    if (*r->o->out && counts) ok = !has_row(r, &p, answered) || put_picture(r, &p, answered);
    else if (answered) print_picture(r->m->net, r->o, &p);
    free(p.x);
    free(p.logp_class);
    free(p.order);
    data_free(&p.d);
    return ok;
}

/* Adds a path, of which it makes a copy. Returns 0 without memory. */
static int add_path(classify_run *r, const char *path, int listed) {
    if (r->n == r->room) {
        const int room = r->room ? 2 * r->room : 64;
        classify_path *more = NULL;
        if (room > 0) more = (classify_path *)realloc(r->at, (size_t)room * sizeof *more);
        if (!more) return context_fail("jem classify", NULL);
        r->at = more;
        r->room = room;
    }
    char *copy = (char *)malloc(strlen(path) + 1);
    if (!copy) return context_fail("jem classify", NULL);
    strcpy(copy, path);
    r->at[r->n].path = copy;
    r->at[r->n].listed = listed;
    r->n++;
    return 1;
}

/* Adds all pictures of a folder. Returns 0 without memory. */
static int add_folder(classify_run *r, const char *folder) {
    data_set d;
    char **paths;
    char error[512];
    int ok = 1;
    r->folders++;
    if (!data_list_pictures(&d, &paths, folder, error, sizeof error)) {
        fprintf(stderr, "jem classify: %s\n", error);
        r->failed++;
        return 1;
    }
    if (!d.n) {
        fprintf(stderr, "jem classify: %s: has no pictures in it\n", folder);
        r->failed++;
    }
    if (d.skipped)
        fprintf(stderr, "jem classify: %s: %d %s: %s\n", folder, d.skipped,
                d.skipped == 1 ? "file is not a picture" : "files are not pictures",
                d.first_skipped);
    for (int i = 0; ok && i < d.n; i++) ok = add_path(r, paths[i], 1);
    data_free_paths(paths, d.n);
    return ok;
}

/* Prints a count of a summary, unless it is 0. */
static void print_count(FILE *to, int count, const char *what) {
    if (count) fprintf(to, ", %d %s", count, what);
}

/* Prints how many pictures have which verdict and class. */
static void print_classified(const classify_run *r, FILE *to) {
    enum { MOST_NAMED = 20 };
    const jem_net *net = r->m->net;
    char name[NAME_SIZE];
    int named = 0;
    print_verdicts(to, r->pictures, r->pictures == 1 ? "picture" : "pictures", r->verdicts);
    print_count(to, r->blank, "of one colour");
    print_count(to, r->unreadable, "unreadable");
    print_count(to, r->framed, "framed");
    print_count(to, r->inverted, "inverted");
    print_count(to, r->stretched, "stretched");
    print_count(to, r->cropped, "cropped");
    print_count(to, r->padded, "padded");
    print_chance(to, r->pictures - r->blank - r->unreadable, rows_calibrated(r->m), "images");
    for (int k = 0; net->classes > 1 && k < net->classes && named <= MOST_NAMED; k++) {
        if (!r->of_class[k]) continue;
        if (named == MOST_NAMED) fprintf(to, ", ...");
        else
            fprintf(to, "%s %s: %d", named ? "," : "; classes:", class_name(net, k, name),
                    r->of_class[k]);
        named++;
    }
    if (r->o->wrong)
        fprintf(to, "; of %d in the folder of a class, the answer is another for %d", r->in_class,
                r->n_rows);
    fprintf(to, "\n");
    if (r->o->wrong && !r->in_class)
        fprintf(stderr, "jem classify: --wrong: no picture is in a folder with the name of a "
                "class: give the folder that contains those of the classes\n");
    note_few_calibrate(stderr, "jem classify", rows_calibrated(r->m), "images");
}

/* Classifies all pictures, and writes the table if there is one. Returns the exit status. */
static int classify_paths(classify_run *r) {
    const char *out = r->o->out;
    const int is_device = names_device(out);
    int ok = 1;
    if (*out) {
        stop_on_signals("\njem classify: stopping; press again to lose all rows\n");
        ok = new_file_open(&r->table, out) && new_file_text(&r->table, "file,") &&
             new_file_text(&r->table, answer_columns(r->m->net)) &&
             new_file_text(&r->table, ",reason,changes\n");
    }
    for (int i = 0; ok && i < r->n && !stop_signal; i++) ok = classify_one(r, &r->at[i]);
    ok = ok && put_rows(r);
    const int stopped = stop_signal && r->pictures < r->n;
    const int none = r->pictures == r->unreadable;
    if (*out && !new_file_done(&r->table, ok && !none) && *r->table.message) {
        fprintf(stderr, "jem classify: %s\n", r->table.message);
        ok = 0;
    }
    if (*out && ok && none && !is_device)
        fprintf(stderr, "jem classify: %s: is not written\n", out);
    if (ok && stopped)
        fprintf(stderr, "jem classify: stopped after %d of %d pictures\n", r->pictures, r->n);
    if (ok && (*out || r->folders)) print_classified(r, *out && !is_device ? stdout : stderr);
    if (ok && stopped) return 128 + stop_signal;
    return !ok || r->failed > 0 || r->unreadable > 0;
}

/* Classifies pictures and folders. Returns the exit status. */
static int classify_all(classify_run *r, char **words, int n) {
    struct stat s;
    int ok = 1;
    int status = 1;
    r->of_class = (int *)calloc((size_t)r->m->net->classes, sizeof *r->of_class);
    if (!r->of_class) return !context_fail("jem classify", NULL);
    for (int i = 0; ok && i < n; i++) {
        const int is_folder = !stat(words[i], &s) && S_ISDIR(s.st_mode);
        ok = is_folder ? add_folder(r, words[i]) : add_path(r, words[i], 0);
    }
    if (ok && r->n && r->o->wrong) {
        r->rows = (classify_row *)malloc((size_t)r->n * sizeof *r->rows);
        ok = r->rows || context_fail("jem classify", NULL);
    }
    if (ok && r->n) status = classify_paths(r);
    for (int i = 0; i < r->n_rows; i++) free(r->rows[i].text);
    free(r->rows);
    for (int i = 0; i < r->n; i++) free(r->at[i].path);
    free(r->at);
    free(r->of_class);
    return status;
}

int classify_command(int argc, char **argv) {
    static const char *const of_lines[] = { "top", NULL };
    static const char *const of_table[] = { "wrong", NULL };
    static options table;
    static classify_options values;
    classify_run r;
    char **words;
    model m;
    int n = 0;
    int status = 1;
    options *o = options_begin(&table, "jem classify", classify_table, sizeof classify_table,
                               &values);
    const int read = read_options(o, argc, argv, &words, &n, 2, INT_MAX,
                                  "jem classify MODEL PICTURE|FOLDER... [OPTIONS]: classifies "
                                  "pictures, and all pictures of folders");
    if (read >= 0) return read;
    if (!is_table_name(o->command, values.out, n, words) ||
        !options_used(o, !*values.out, "is for lines, not for the table of --out", of_lines) ||
        !options_used(o, *values.out != 0, "is for the table of --out", of_table))
        return 2;
    memset(&r, 0, sizeof r);
    r.m = &m;
    r.o = &values;
    r.frame_always = option_given(o, "frame");
    if (model_open(&m, o->command, words[0], values.threads, values.precision,
                   values.max_memory)) {
        status = 2;
        const int frames = r.frame_always && values.frame;
        if (frames && !jem_net_meta(m.net, "jem.framing"))
            fprintf(stderr, "jem classify: %s has no framing: --frame has no effect\n", m.path);
        if (model_has(o->command, &m, 0) && as_in_training(o, m.archive, "background", NULL))
            status = classify_all(&r, words + 1, n - 1);
    }
    model_close(&m);
    return status;
}
