/* The model card. */
#include "tools/cli/system.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "tools/cli/eval.h"
#include "tools/cli/report.h"
#include "tools/cli/score.h"
#include "tools/cli/train.h"
#include "tools/cli/train_options.h"
#include "tools/support/chart.h"
#include "tools/support/new_file.h"
#include "tools/support/table.h"

/* ---- HTML ------------------------------------------------------------------------------------ */

/* Returns the bytes of the UTF-8 character at s; 0: invalid, or not permitted in a page. */
static int utf8_letter(const unsigned char *s) {
    int n = 0;
    if (*s < 0x80) n = 1;
    else if (*s >= 0xc2 && *s < 0xe0) n = 2;
    else if (*s >= 0xe0 && *s < 0xf0) n = 3;
    else if (*s >= 0xf0 && *s < 0xf5) n = 4;
    if (n == 1) return (*s >= 32 && *s != 127) || *s == '\n' || *s == '\t';
    for (int i = 1; i < n; i++) if ((s[i] & 0xc0) != 0x80) return 0;
    if ((*s == 0xe0 && s[1] < 0xa0) || (*s == 0xf0 && s[1] < 0x90) ||      /* overlong */
        (*s == 0xed && s[1] >= 0xa0) || (*s == 0xf4 && s[1] >= 0x90)) return 0;    /* surrogates */
    return n;
}

/* Writes text from a file or a command line, escaped. */
static void html_text(FILE *f, const char *text) {
    const unsigned char *s = (const unsigned char *)text;
    while (*s) {
        const int n = utf8_letter(s);
        if (!n) fputs("\xef\xbf\xbd", f);          /* the replacement character */
        else if (*s == '<') fputs("&lt;", f);
        else if (*s == '>') fputs("&gt;", f);
        else if (*s == '&') fputs("&amp;", f);
        else if (*s == '"') fputs("&quot;", f);
        else if (*s == '\'') fputs("&#39;", f);
        else fwrite(s, 1, (size_t)n, f);
        if (n) s += n;
        else s++;
    }
}

static void html_base64(FILE *f, const unsigned char *s, size_t n) {
    static const char base64[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < n; i += 3) {
        const size_t bytes = n - i < 3 ? n - i : 3;
        unsigned char three[3] = { 0, 0, 0 };
        memcpy(three, s + i, bytes);
        const unsigned v = (unsigned)three[0] << 16 | (unsigned)three[1] << 8 | three[2];
        for (size_t k = 0; k < 4; k++)             /* six bits for each letter */
            putc(k <= bytes ? base64[v >> (18 - 6 * k) & 63] : '=', f);
    }
}

/* Reads a file, with a 0 after it; NULL: it cannot be read. */
static char *read_whole(FILE *f, size_t *n) {
    char *all = NULL;
    size_t room = 1 << 14;
    *n = 0;
    for (;;) {
        char *more = (char *)realloc(all, room);
        if (!more) break;
        all = more;
        *n += fread(all + *n, 1, room - 1 - *n, f);
        if (*n < room - 1) {
            all[*n] = 0;
            if (ferror(f)) break;
            return all;
        }
        room *= 2;
    }
    free(all);
    return NULL;
}

/* Writes the PNG file at path, if it exists. title: the text if it cannot be shown. */
static void html_picture(FILE *to, const char *path, int chart, const char *caption,
                         const char *title) {
    size_t n = 0;
    FILE *f = fopen(path, "rb");
    if (!f) return;
    char *png = read_whole(f, &n);
    fclose(f);
    if (png && n > 24) {
        const unsigned char *size = (const unsigned char *)png + 16;   /* in its first chunk */
        fprintf(to, "<figure class=\"%s\"><div class=\"wide\"><img width=\"%d\" height=\"%d\" "
                "alt=\"", chart ? "chart" : "images", size[2] << 8 | size[3],
                size[6] << 8 | size[7]);
        html_text(to, title);
        fputs("\" src=\"data:image/png;base64,", to);
        html_base64(to, (const unsigned char *)png, n);
        fputs("\" /></div>", to);
        if (*caption) {
            fputs("<figcaption>", to);
            html_text(to, caption);
            fputs("</figcaption>", to);
        }
        fputs("</figure>\n", to);
    }
    free(png);
}

/* ---- pages from text ----------------------------------------------------------------------- */

enum { WORDS_MOST = 32, WORD_SIZE = 512 };         /* of a command line */

enum { CELLS_MOST = 16 };

/* Splits a row, which begins with two blanks: cells are two blanks or more apart, the first one is
   empty if there are more than two. The last of `most` contains the rest. */
static int row_cells(char *line, char *cell[CELLS_MOST], int most) {
    char *s = line + 2;
    int n = 0;
    if (*s == ' ') {
        *s++ = 0;
        cell[n++] = s - 1;
    }
    while (n < most) {
        while (*s == ' ') s++;
        if (!*s) break;
        cell[n++] = s;
        char *end = strstr(s, "  ");
        if (n == most || !end) break;
        *end = 0;
        s = end + 1;
    }
    if (!n) return 0;
    char *end = strchr(cell[n - 1], 0);
    while (end > cell[n - 1] && end[-1] == ' ') *--end = 0;
    return n;
}

static int is_number(const char *s) {
    return !strcmp(s, "-") || (strpbrk(s, "0123456789") && !s[strspn(s, "0123456789.+-%e")]);
}

static void html_cell(FILE *to, const char *tag, int to_the_right, const char *text) {
    fprintf(to, "<%s%s>", tag, to_the_right ? " class=\"n\"" : "");
    html_text(to, text);
    fprintf(to, "</%s>", tag);
}

/* Writes n rows. The first is a header if there is a number under its second word. */
static void html_table(FILE *to, char **row, int n) {
    char *cell[CELLS_MOST], *second[CELLS_MOST];
    char copy[512] = "  ";
    if (n > 1) snprintf(copy, sizeof copy, "%s", row[1]);
    const int columns = row_cells(row[0], cell, CELLS_MOST);
    const int header = columns > 1 && row_cells(copy, second, columns) > 1 &&
                       !is_number(cell[1]) && is_number(second[1]);
    fputs("<div class=\"wide\"><table>\n", to);
    for (int i = 0; i < n; i++) {
        const int count = i ? row_cells(row[i], cell, columns) : columns;
        const int top = header && i == 0;
        fputs("<tr>", to);
        for (int k = 0; k < columns; k++) {
            const char *text = k < count ? cell[k] : "";
            const int of_numbers = k && (top || (header && is_number(text)));
            html_cell(to, k && !top ? "td" : "th", of_numbers, text);
        }
        fputs("</tr>\n", to);
    }
    fputs("</table></div>\n", to);
}

/* Writes the picture that a line names at `at`, as "PATH: caption" or "caption: PATH". chart: black
   on white, which a dark page may invert; picture + SECOND is always an image. */
#define SECOND ".2.png"
static void html_named(FILE *to, char *line, char *at, const char *picture, int chart,
                       const char *title) {
    const char *after = at + strlen(picture);
    const char *caption = line;
    char path[WORD_SIZE];
    if (begins(after, SECOND)) {
        snprintf(path, sizeof path, "%s%s", picture, SECOND);
        after += strlen(SECOND);
        chart = 0;
    } else snprintf(path, sizeof path, "%s", picture);
    if (at >= line + 2) at[-2] = 0;
    else *at = 0;
    if (begins(after, ": ")) caption = after + 2;
    html_picture(to, path, chart, caption, title);
}

/* Writes the output of a command: tables, paragraphs, and the picture where the text names its file
   (NULL: no picture). */
static void html_printed(FILE *to, char *text, const char *picture, int chart, const char *title) {
    enum { ROWS_MOST = 256 };
    char *row[ROWS_MOST];
    int rows = 0;
    for (char *line = text, *next; line; line = next) {
        next = strchr(line, '\n');
        if (next) *next++ = 0;
        const int is_row = line[0] == ' ' && line[1] == ' ';
        if (rows && (!is_row || rows == ROWS_MOST)) {
            html_table(to, row, rows);
            rows = 0;
        }
        char *at = picture ? strstr(line, picture) : NULL;
        if (is_row) row[rows++] = line;
        else if (at) html_named(to, line, at, picture, chart, title);
        else if (*line) {
            fputs("<p>", to);
            html_text(to, line);
            fputs("</p>\n", to);
        }
    }
    if (rows) html_table(to, row, rows);
}

static const char html_style[] =
    ":root{color-scheme:light dark;--ink:#1d2329;--soft:#5b6570;--paper:#fff;--line:#d9dee3;"
    "--band:#f4f6f8}\n"
    "@media(prefers-color-scheme:dark){:root{--ink:#e4e7ea;--soft:#9aa4ae;--paper:#14181c;"
    "--line:#343b42;--band:#1d2227}figure.chart img{filter:invert(.92) hue-rotate(180deg)}}\n"
    "*{box-sizing:border-box}body{margin:0;background:var(--paper);color:var(--ink);"
    "font:16px/1.55 system-ui,-apple-system,\"Segoe UI\",Roboto,sans-serif}\n"
    "main{max-width:940px;margin:0 auto;padding:24px 20px 48px}h1{margin:0 0 4px;font-size:30px;"
    "line-height:1.2;overflow-wrap:anywhere}h2{margin:44px 0 4px;padding-top:14px;"
    "border-top:1px solid var(--line);font-size:22px}p{margin:8px 0;overflow-wrap:anywhere}\n"
    ".lead{font-size:18px}.help,figcaption,footer,.command{color:var(--soft)}"
    "nav{margin:16px 0;padding:10px 14px;background:var(--band);border-radius:8px}"
    "nav a{display:inline-block;margin:2px 16px 2px 0}a{color:inherit}\n"
    ".wide{overflow-x:auto;margin:12px 0}table{border-collapse:collapse;font-size:14px;"
    "font-variant-numeric:tabular-nums}th,td{padding:4px 14px 4px 0;text-align:left;"
    "vertical-align:top;border-bottom:1px solid var(--line)}th{font-weight:600}"
    "th:first-child{min-width:84px}th.n,td.n{text-align:right;white-space:nowrap}\n"
    "figure{margin:16px 0}figure img{display:block;max-width:100%;height:auto;border-radius:6px}"
    "figure.images img{image-rendering:pixelated}figcaption{font-size:14px}\n"
    "code{font:13px/1.5 ui-monospace,Menlo,Consolas,monospace;overflow-wrap:anywhere}"
    ".command{font-size:14px}footer{margin-top:44px;font-size:14px}\n"
    "@media(max-width:640px){main{padding:16px 14px 32px}h1{font-size:25px}"
    "figure.chart img{max-width:none;width:680px}th,td{padding-right:9px;font-size:13px}}\n";

/* ---- what a command prints ------------------------------------------------------------------- */

typedef struct command_line {                      /* argv of this program */
    char text[WORDS_MOST][WORD_SIZE], *word[WORDS_MOST + 1];
    int n;
} command_line;

/* Adds a pair of words; value may be NULL. */
static void add_words(command_line *c, const char *name, const char *value) {
    const char *const both[2] = { name, value };
    for (int k = 0; k < 2 && both[k] && c->n < WORDS_MOST; k++)
        snprintf(c->text[c->n++], WORD_SIZE, "%s", both[k]);
}
static void add_number(command_line *c, const char *name, int value) {
    char text[32];
    snprintf(text, sizeof text, "%d", value);
    add_words(c, name, text);
}

/* Writes words quoted for a shell. */
static void html_command(FILE *to, const command_line *c) {
    char quoted[4 * WORD_SIZE + 8];
    fputs("<p class=\"command\"><code>", to);
    for (int i = 0; i < c->n; i++) {
        if (i) putc(' ', to);
        html_text(to, data_quoted(c->text[i], quoted, sizeof quoted));
    }
    fputs("</code></p>\n", to);
}

/* Runs a command, and captures its standard output and error in said[2]. Returns its status; -1:
   not run. */
static int run_caught(int (*command)(int argc, char **argv), command_line *c, char *said[2]) {
    FILE *file[2];
    int kept[2];
    int status = -1;
    int ok = 1;
    size_t n;
    fflush(stdout);
    fflush(stderr);
    for (int i = 0; i < c->n; i++) c->word[i] = c->text[i];
    for (int k = 0; k < 2; k++) {
        file[k] = system_temporary();
        kept[k] = dup(k + 1);
        said[k] = NULL;
        ok = ok && file[k] && kept[k] >= 0;
    }
    if (ok && dup2(fileno(file[0]), 1) >= 0 && dup2(fileno(file[1]), 2) >= 0)
        status = command(c->n, c->word);
    fflush(stdout);
    fflush(stderr);
    for (int k = 0; k < 2; k++) {
        if (kept[k] >= 0) {
            dup2(kept[k], k + 1);
            close(kept[k]);
        }
        if (file[k]) {
            rewind(file[k]);
            said[k] = read_whole(file[k], &n);
            fclose(file[k]);
        }
        if (!said[k]) status = -1;
    }
    return status;
}

/* ---- the sections ---------------------------------------------------------------------------- */

typedef struct report_options {
    char out[OPTION_TEXT_SIZE], dataset[OPTION_TEXT_SIZE], data[OPTION_TEXT_SIZE];
    char beside[OPTION_TEXT_SIZE], judge[OPTION_TEXT_SIZE];
    int n, threads, max_memory, max_file, max_picture;
    float minutes;
} report_options;

enum { OF_RUN = 1, OF_BUFFER = 2, OF_DATA = 4, OF_TWO = 8, OF_JUDGE = 16, COUNTS = 32,
       BY_CLASS = 64, DRAWS = 128, CHART = 256, ACCURACY = 512, SMALLEST_TOO = 1024,
       ALWAYS = 2048,                              /* in any time: as a draft if it is short */
       OF_CLASSES = 4096 };                        /* needs two classes */

enum { ALL_IMAGES = 1000000 };

static const struct section {
    const char *id, *title, *help, *command;
    int (*run)(int argc, char **argv);
    int flags, n;                                  /* default number of images */
    float work;                                    /* approximate: gradients per image, of a model
                                                      that learned a score (others: half) */
    float share;                                   /* weight of its part of the time */
} sections[] = {
    { "model", "Model", "", "info", info_command, 0, 0, 0, 0 },
    { "training", "Training", "Cross-entropy and accuracy should settle. The difference "
      "of f between images and samples, f(x+) - f(x-), should stay small once chains "
      "run.", "", NULL, OF_RUN, 0, 0, 0 },
    { "dreams", "Samples from noise", "Every image started as noise and was walked uphill in "
      "log p(x); each row is a class, if the model has p(x,y).", "sample", sample_command,
      BY_CLASS | COUNTS | DRAWS | ALWAYS, 100, 900, 3 },
    { "buffer", "Samples in the replay buffer", "Chains of training, in random order. "
      "Papers often show these.", "sample --from buffer", sample_command,
      OF_BUFFER | COUNTS | DRAWS, 100, 3, .1f },
    { "samples", "Samples, judged", "By a small classifier trained on real images of this data "
      "set, and damaged ones. Recognised: it is confident in a class. Passes: it is not rated "
      "damaged. Frechet, precision and recall compare with training images; test images are the "
      "yardstick.", "eval samples", uses_command, OF_DATA | OF_JUDGE | COUNTS | DRAWS, 1000, 1000,
      10 },
    { "accuracy", "Accuracy", "On test images. A lower -log p(y|x) is better; log p(x) is up "
      "to a constant, which is the same for all images.", "eval", eval_command,
      OF_DATA | COUNTS | ACCURACY, ALL_IMAGES, .5f, 1 },
    { "calibration", "Calibration", "Of the images with a confidence of 80%, 80% should be right: "
      "the grey diagonal. ECE is the mean distance from it, MCE the largest, NLL is -log p(y|x); "
      "logits are divided by T, fitted to other images.", "eval calibration", uses_command,
      OF_DATA | OF_TWO | OF_CLASSES | COUNTS | DRAWS | CHART, 10000, .6f, 1 },
    { "ood", "Out of distribution", "AUROC is the probability that a test image has a higher score "
      "than an image of another kind: 1 is perfect, .5 is chance, less is inverted.",
      "eval ood", uses_command, OF_DATA | COUNTS | DRAWS | CHART, 1000, 170, 4 },
    { "attack", "Attacks, L-infinity", "Each pixel may change by eps. FGSM is one step, PGD many.",
      "eval attack", uses_command, OF_DATA | OF_TWO | OF_CLASSES | COUNTS | DRAWS | CHART |
      SMALLEST_TOO, 500, 290, 2 },
    { "attack-l2", "Attacks, L2", "The root of the sum of all squared changes is at most eps.",
      "eval attack --norm l2", uses_command, OF_DATA | OF_TWO | OF_CLASSES | COUNTS | DRAWS |
      CHART | SMALLEST_TOO, 500, 290, 2 },
    { "impute", "Imputation", "Half of each image is hidden, and sampled given the "
      "other half.", "eval impute", uses_command, OF_DATA | COUNTS | DRAWS, 200, 2400, 6 }
};
enum { SECTIONS = sizeof sections / sizeof *sections, LEAST = 16, WHY_SIZE = 1024 };
enum { DRAFT_SHORTER = 10 };                       /* the usual steps, over those of a draft */

typedef struct card {
    const report_options *o;
    char model[WORD_SIZE], log[WORD_SIZE], name[NAME_SIZE];
    char picture[640], second[660];                /* where commands draw */
    char lead[256], accuracy[256], why[WHY_SIZE];  /* why: of the current section */
    char dataset[OPTION_TEXT_SIZE], data[OPTION_TEXT_SIZE];        /* the model's own */
    int is_run, buffer, by_class, score, classes;  /* buffer: its chains */
    int shape[3];                                  /* of the images it takes: (c,h,w) */
    int test_n;                                    /* number of test images; 0: unknown */
    int planned, done, failed;
    double began, gradient;                        /* seconds; of one image's gradient */
    FILE *body, *links, *left_out;                 /* parts of the page */
} card;

static int report_has(const card *r, const struct section *s) {
    return !(s->flags & OF_RUN && !r->is_run) && !(s->flags & OF_BUFFER && !r->buffer) &&
           !(s->flags & OF_CLASSES && r->classes < 2);
}

static void html_element(FILE *to, const char *tag, const char *class_name, const char *text) {
    if (*class_name) fprintf(to, "<%s class=\"%s\">", tag, class_name);
    else fprintf(to, "<%s>", tag);
    html_text(to, text);
    fprintf(to, "</%s>\n", tag);
}

static int leave_out(card *r, const struct section *s, const char *why) {
    char line[WHY_SIZE + 64];
    if (why != r->why) snprintf(r->why, sizeof r->why, "%s", why);
    snprintf(line, sizeof line, "%s: %s", s->title, why);
    html_element(r->left_out, "li", "", line);
    return 0;
}

static void begin_section(card *r, const struct section *s) {
    fprintf(r->links, "<a href=\"#%s\">%s</a>\n", s->id, s->title);
    fprintf(r->body, "<section id=\"%s\">\n", s->id);
    html_element(r->body, "h2", "", s->title);
    if (*s->help) html_element(r->body, "p", "help", s->help);
}

/* Adds the words for a grid of up to n images, a row for each class, ten images of it at most;
   returns their number. */
static int class_grid(const card *r, int n, command_line *c) {
    const int rows = r->by_class ? smaller(r->classes, 40) : 10;
    int columns = smaller(n / rows, 10);
    if (columns < 1) columns = 1;
    add_words(c, "--class", r->by_class ? "all" : "any");
    add_number(c, "--columns", r->by_class ? columns : 10);
    return columns * rows;
}

/* Adds the words of the command of section s for n images, or for the available number, which it
   returns; without the words that the page need not show. draft: of few steps. */
static int section_command(const card *r, const struct section *s, const char *path, int n,
                            int draft, command_line *c) {
    const char *words = s->command;
    const char *set = r->o->dataset;
    const char *root = r->o->data;
    char word[256];
    if (path != r->model && !*set) set = r->dataset;       /* the other model, on the same images */
    if (path != r->model && !*root) root = r->data;
    c->n = 0;
    add_words(c, "jem", NULL);
    for (int i = 0; next_name(&words, LIST_MARKS, word, sizeof word); i++)
        add_words(c, word, i ? NULL : path);
    if (s->flags & BY_CLASS) n = class_grid(r, n, c);
    if (s->flags & OF_BUFFER && n > r->buffer / 2) {
        n = r->buffer / 2;
        if (n < 1) n = 1;
    }
    if (s->flags & COUNTS) add_number(c, "--n", n);
    if (draft) add_words(c, "--draft", NULL);
    if (s->flags & OF_DATA && *set) add_words(c, "--dataset", set);
    if (s->flags & OF_DATA && *root) add_words(c, "--data", root);
    if (s->flags & COUNTS && r->o->max_memory) add_number(c, "--max-memory", r->o->max_memory);
    if (s->flags & OF_DATA && r->o->max_file) add_number(c, "--max-file", r->o->max_file);
    if (s->flags & OF_DATA && r->o->max_picture) add_number(c, "--max-picture", r->o->max_picture);
    if (s->flags & OF_TWO && *r->o->beside) add_words(c, "--beside", r->o->beside);
    if (s->flags & OF_JUDGE && *r->o->judge) add_words(c, "--judge", r->o->judge);
    return n;
}

typedef struct outcome {
    int status, n, asked, draft;                   /* n: number of images, of those requested */
    double seconds;
    char *said[2];
    command_line command;
} outcome;

static void measure(const card *r, const struct section *s, const char *path, int n,
                    outcome *result) {
    const double began = now();
    command_line c;
    result->asked = n;
    result->n = section_command(r, s, path, n, result->draft, &result->command);
    c = result->command;
    if (s->flags & COUNTS) add_number(&c, "--threads", r->o->threads);
    if (s->flags & DRAWS) add_words(&c, "--out", r->picture);
    if (s->flags & SMALLEST_TOO) add_words(&c, "--smallest", r->second);
    free(result->said[0]);
    free(result->said[1]);
    result->status = run_caught(s->run, &c, result->said);
    result->seconds = now() - began;
}

/* Returns the number of images for a section if time is not limited. */
static int images_of(const card *r, const struct section *s) {
    const int n = r->o->n ? r->o->n : s->n;
    return s->flags & OF_DATA && r->test_n ? smaller(n, r->test_n) : n;
}

/* Returns the part of the remaining seconds for section s. The rest is left to later sections. */
static double section_share(const card *r, const struct section *s, double left) {
    double all = 0;
    for (const struct section *k = s; k < sections + SECTIONS; k++)
        if (report_has(r, k)) all += (double)k->share;
    return left * (double)s->share / all;
}

/* Measures section s with as many images as the time allows: an estimate for half of its part, or
   the useful minimum, then more if that was quick, in whole groups of JEM_LANES, since a part of a
   group takes as long. Returns 0 if there is no time, unless it is one of ALWAYS: that becomes a
   draft if the model can make one, of as few images as necessary. */
static int measure_in_time(const card *r, const struct section *s, outcome *result) {
    const int most = images_of(r, s);
    const int timed = r->o->minutes > 0 && s->share > 0;
    const double began = now();
    const double left = fmax(60 * (double)r->o->minutes - (began - r->began), 0);
    const double share = timed ? section_share(r, s, left) : 0;
    double each = r->gradient * (double)s->work * (r->score ? 1 : .5);
    double n = timed ? fmin(fmax(.5 * share / each, LEAST), most) : most;
    memset(result, 0, sizeof *result);
    if (timed && n * each > .6 * left) {
        if (!(s->flags & ALWAYS)) return 0;
        result->draft = r->score;
        if (result->draft) each /= DRAFT_SHORTER;
        n = fmin(fmax(.5 * share / each, 1), most);
    }
    for (;;) {
        measure(r, s, r->model, (int)n, result);
        if (!timed || result->status || n >= most) return 1;
        const double groups = ceil(n / JEM_LANES);
        const double rest = share - (now() - began);
        const double more = JEM_LANES * floor(groups * .8 * rest / fmax(result->seconds, 1e-3));
        if (more < fmin(2 * n, most) || result->n < (int)n) return 1;
        n = fmin(more, most);
    }
}

/* Copies the messages of a command on standard error, without progress. */
static void complaints(char *said, char text[WHY_SIZE]) {
    size_t n = strlen(text);
    for (char *line = said, *next; line; line = next) {
        next = strchr(line, '\n');
        if (next) *next++ = 0;
        if (!*line || strchr(line, '\r')) continue;
        if (!strncmp(line, "jem eval: ", 10)) line += 10;
        if (!strncmp(line, "jem sample: ", 12)) line += 12;
        if (n < WHY_SIZE)
            n += (size_t)snprintf(text + n, WHY_SIZE - n, "%s%s", n ? "; " : "", line);
    }
}

/* Finds the last finite number of a column of log.csv, and the row of the maximum; -1: none. */
static double log_last(const card *r, const char *name, int *best) {
    int rows = 0;
    float *v = chart_column(r->log, name, &rows);
    float last = -1;
    for (int i = *best = 0; v && i < rows; i++)
        if (isfinite(v[i])) {
            last = v[i];
            if (!(v[*best] >= v[i])) *best = i;
        }
    free(v);
    return (double)last;
}

static int section_training(card *r, const struct section *s) {
    char text[512], took[32];
    int best;
    int any;
    int rows = 0;
    const double updates = log_last(r, "update", &any);
    const double seconds = log_last(r, "seconds", &any);
    const double train = log_last(r, "accuracy", &any);
    const double valid = log_last(r, "valid_accuracy", &best);
    if (!(updates > 0) || !draw_log(r->log, r->picture))
        return leave_out(r, s, "its log.csv has no rows, or cannot be drawn");
    time_text(took, seconds);
    int n = snprintf(text, sizeof text, "  updates  %.0f (%.1f epochs)\n"
                     "  time  %s, %.3g s per update\n  retries after divergence  %.0f\n", updates,
                     log_last(r, "epoch", &any), took, seconds / updates,
                     log_last(r, "retries", &any));
    if (train >= 0)
        n += snprintf(text + n, sizeof text - (size_t)n,
                      "  accuracy on training images  %.2f%% at the end\n", 100 * train);
    float *at = chart_column(r->log, "update", &rows);
    float *v = chart_column(r->log, "valid_accuracy", &any);
    if (valid >= 0 && at && v && best < rows)
        snprintf(text + n, sizeof text - (size_t)n, "  accuracy on validation images  %.2f%% at "
                 "the end, best: %.2f%% after update %.0f\n", 100 * valid, 100 * (double)v[best],
                 (double)at[best]);
    free(at);
    free(v);
    begin_section(r, s);
    html_printed(r->body, text, NULL, 0, s->title);
    html_picture(r->body, r->picture, 1, "", "curves of training");
    return 1;
}

/* Writes why a section has fewer images, or fewer steps, than usual. */
static void html_limits(const card *r, const struct section *s, const outcome *result) {
    const int most = images_of(r, s);
    const double minutes = (double)r->o->minutes;
    const char *reason = "no more are available";
    if (s->flags & BY_CLASS) reason = "at most ten of each class";
    if (result->draft)
        fprintf(r->body, "<p class=\"help\">A draft in a tenth of the steps, which is noisier: "
                "--minutes %g gave no time for all steps.</p>\n", minutes);
    if (result->asked < most && most == ALL_IMAGES)
        fprintf(r->body, "<p class=\"help\">%d images: --minutes %g gave no time for all.</p>\n",
                result->n, minutes);
    else if (result->asked < most)
        fprintf(r->body, "<p class=\"help\">%d images, not %d: --minutes %g gave no time for "
                "more.</p>\n", result->n, most, minutes);
    else if (result->n < most && r->o->n)
        fprintf(r->body, "<p class=\"help\">%d images, not %d: %s.</p>\n", result->n, most, reason);
}

/* Writes the output of a section's command. */
static void section_write(card *r, const struct section *s, outcome *result) {
    char *printed = result->said[0];
    const char *count = strstr(printed, ", test, ");           /* then the number of images */
    if (s->flags & ACCURACY && count && atoi(count + 8) < result->asked)
        r->test_n = atoi(count + 8);
    if (s->flags & ACCURACY)
        snprintf(r->accuracy, sizeof r->accuracy, "%.*s", (int)strcspn(printed, "\n"), printed);
    begin_section(r, s);
    html_printed(r->body, printed, s->flags & DRAWS ? r->picture : NULL, s->flags & CHART,
                 s->title);
    html_command(r->body, &result->command);
    if (*r->why) html_element(r->body, "p", "help", r->why);
    html_limits(r, s, result);
}

/* Writes the accuracy of the other model, on as many images. */
static void section_beside(card *r, const struct section *s, outcome *result) {
    measure(r, s, r->o->beside, result->n, result);
    complaints(result->said[1], r->why);
    html_element(r->body, "p", "", result->status ? r->why : result->said[0]);
    html_command(r->body, &result->command);
}

static int section_measured(card *r, const struct section *s) {
    outcome result;
    if (!measure_in_time(r, s, &result)) return leave_out(r, s, "not enough time (--minutes)");
    const int ok = result.status == 0;
    complaints(result.said[1], r->why);
    if (ok) {
        section_write(r, s, &result);
        if (s->flags & ACCURACY && *r->o->beside) section_beside(r, s, &result);
    } else {
        leave_out(r, s, *r->why ? r->why : "the measurement failed");
        r->failed |= s->flags & ACCURACY;
    }
    free(result.said[0]);
    free(result.said[1]);
    return ok;
}

static void report_section(card *r, const struct section *s) {
    const double began = now();
    int ok;
    printf("%d of %d: %s", ++r->done, r->planned, s->title);
    fflush(stdout);
    *r->why = 0;
    if (s->run) ok = section_measured(r, s);
    else ok = section_training(r, s);
    if (ok) {
        fputs("</section>\n", r->body);
        printf(", %.1f s\n", now() - began);
    } else printf(", left out\n");
    fflush(stdout);
    if (*r->why) fprintf(stderr, "    %s\n", r->why);
    remove(r->picture);
    remove(r->second);
}

/* ---- the page -------------------------------------------------------------------------------- */

/* Returns 0 if the part is incomplete, for example on a full disk. */
static int append(FILE *to, FILE *part) {
    char some[4096];
    size_t n;
    if (fflush(part) || ferror(part)) return 0;
    for (rewind(part); (n = fread(some, 1, sizeof some, part)) > 0;) fwrite(some, 1, n, to);
    return !ferror(part);
}

static int write_page(const card *r, FILE *to) {
    char date[64] = "";
    char took[32];
    const time_t t = time(NULL);
    const struct tm *day = localtime(&t);
    if (day) strftime(date, sizeof date, "%Y-%m-%d", day);
    time_text(took, now() - r->began);
    fputs("<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\" />\n"
          "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\" />\n", to);
    html_element(to, "title", "", r->name);
    fprintf(to, "<style>\n%s</style></head>\n<body><main>\n", html_style);
    html_element(to, "h1", "", r->name);
    html_element(to, "p", "lead", r->lead);
    if (*r->accuracy) html_element(to, "p", "lead", r->accuracy);
    fputs("<nav>\n", to);
    int whole = append(to, r->links);
    fputs("<a href=\"#left-out\">Omitted sections</a></nav>\n", to);
    whole &= append(to, r->body);
    fputs("<section id=\"left-out\"><h2>Omitted sections</h2>\n", to);
    const int list = ftell(r->left_out) > 0;
    fputs(list ? "<ul>\n" : "<p>No section was omitted.</p>\n", to);
    whole &= append(to, r->left_out);
    if (list) fputs("</ul>\n", to);
    fprintf(to, "</section>\n<footer>Made by jem report in %s on %s. Each command above prints the "
            "same numbers again, except for times, on any number of threads.</footer>\n"
            "</main></body></html>\n", took, date);
    return whole && !ferror(to);
}

/* Describes the model in one sentence; data: the data set of its training, or NULL. */
static void describe_model(card *r, const jem_net *net, const char *data) {
    static const char *const colours[4] = { "", " in grey", "", " in colour" };
    const char *kind = jem_net_meta(net, "jem.net");
    char clear[NAME_SIZE];
    char trained_on[NAME_SIZE + 16] = "";
    if (data) snprintf(trained_on, sizeof trained_on, "; trained on %s", clean(data, clear));
    snprintf(r->lead, sizeof r->lead, "An energy-based model: a %s of %ld parameters, for images "
             "of %d x %d%s, %d classes%s.", kind ? clean(kind, clear) : "network",
             (long)jem_net_size(net), net->width, net->height,
             colours[net->channels <= 3 ? net->channels : 0], net->classes, trained_on);
}

/* Measures the time of one image's gradient. */
static int time_gradient(card *r, const model *m) {
    enum { CHAINS = 64, STEPS = 3 };
    const jem_net *net = m->net;
    const ptrdiff_t all = CHAINS * image_size(net);
    float *x = uses_floats(all);
    jem_rng rng = jem_rng_seed(1);
    jem_sgld_desc walk = jem_sgld_desc_default();
    walk.steps = STEPS;
    if (x) jem_fill_uniform(m->ctx, &rng, x, all, -1, 1);
    for (int pass = 0; x && pass < 2; pass++) {    /* the first one also prepares */
        const jem_mark mark = jem_begin(m->ctx);
        const double began = now();
        jem_tensor *t = jem_input(m->ctx, x, CHAINS, net->channels, net->height, net->width);
        jem_sgld(m->ctx, jem_logp, (void *)m->net, t, &walk, &rng);
        r->gradient = fmax((now() - began) / (CHAINS * STEPS), 1e-7);
        jem_end(m->ctx, mark);
    }
    const int ok = (x && jem_ok(m->ctx)) || model_fail("jem report", m);
    free(x);
    return ok;
}

/* Reads the properties of the model; returns 0 and prints the reason if it cannot be opened. */
static int look_at_model(card *r) {
    model m;
    if (!model_open(&m, "jem report", r->model, r->o->threads, JEM_PRECISION_FAST,
                    r->o->max_memory) || !model_has("jem report", &m, 0)) {
        model_close(&m);
        return 0;
    }
    const jem_net *net = m.net;
    const jem_entry *b = jem_archive_find(m.archive, "replay_buffer");
    const char *data = jem_archive_meta(m.archive, OPTION_PREFIX "dataset");
    const char *root = jem_archive_meta(m.archive, OPTION_PREFIX "data");
    r->by_class = !jem_net_meta(net, "jem.uncond");
    r->score = net->noise_hi > 0;
    if (b && b->ndim == 4 && b->shape[0] < INT_MAX) r->buffer = (int)b->shape[0];
    r->classes = net->classes;
    r->shape[0] = net->channels;
    r->shape[1] = net->height;
    r->shape[2] = net->width;
    if (data) snprintf(r->dataset, sizeof r->dataset, "%s", data);
    if (root) snprintf(r->data, sizeof r->data, "%s", root);
    describe_model(r, net, data);
    const int ok = time_gradient(r, &m);
    model_close(&m);
    return ok;
}

static char report_temp[3][660];                   /* to be removed on a signal */
static void report_stopped(int number) {
    for (int k = 0; k < 3; k++) if (*report_temp[k]) unlink(report_temp[k]);
    _exit(128 + number);
}

/* Makes the sections, whose pictures are temporary files beside the page's. */
static void report_sections(card *r, const char *temporary) {
    snprintf(r->picture, sizeof r->picture, "%s.png", temporary);
    snprintf(r->second, sizeof r->second, "%s" SECOND, r->picture);
    snprintf(report_temp[0], sizeof report_temp[0], "%s", temporary);
    strcpy(report_temp[1], r->picture);
    strcpy(report_temp[2], r->second);
    system_on_signals(report_stopped);
    for (int i = 0; i < SECTIONS; i++) r->planned += report_has(r, &sections[i]);
    for (int i = 0; i < SECTIONS; i++) {
        const struct section *s = &sections[i];
        if (report_has(r, s)) report_section(r, s);
        else if (s->flags & OF_RUN)
            leave_out(r, s, "the argument is not the directory of its run");
        else leave_out(r, s, "the file has no replay buffer");
    }
}

static int report_make(card *r, const char *out) {
    new_file page;
    FILE *whole = NULL;                            /* the page's own temporary file */
    r->body = system_temporary();
    r->links = system_temporary();
    r->left_out = system_temporary();
    int ok = new_file_open(&page, out);
    const char *temporary = ok && page.file ? jem_file_temporary(page.file) : "";
    if (ok && (!*temporary || strlen(temporary) + 11 > OPTION_TEXT_SIZE)) {
        errno = 0;
        ok = new_file_fail(&page, *temporary ? "the name is too long" : "is not a file");
    } else if (ok) {
        whole = fopen(temporary, "wb");
        if (!(whole && r->body && r->links && r->left_out))
            ok = new_file_fail(&page, "temporary files cannot be created");
    }
    if (ok) {
        report_sections(r, temporary);
        ok = write_page(r, whole) && fflush(whole) == 0 && !ferror(whole);
        errno = 0;
        if (!ok) new_file_fail(&page, "was not written: temporary files are incomplete");
    }
    if (whole && fclose(whole)) ok = new_file_fail(&page, "cannot be closed");
    ok = new_file_done(&page, ok);
    for (int k = 0; k < 3; k++) *report_temp[k] = 0;
    if (ok) printf("%s\n", out);
    else fprintf(stderr, "jem report: %s\n", page.message);
    if (r->body) fclose(r->body);
    if (r->links) fclose(r->links);
    if (r->left_out) fclose(r->left_out);
    return !ok || r->failed;
}

/* ---- the command ----------------------------------------------------------------------------- */

#define REPORT_AT(field) offsetof(report_options, field)
static const option report_table[] = {
    { "out", OPTION_TEXT, OPTION_NOW, REPORT_AT(out), "FILE.html", NO_PRESETS(""), 0, 0,
      "the page (default: report.html in the directory of the run, or here)" },
    { "dataset", OPTION_TEXT, OPTION_NOW, REPORT_AT(dataset), "NAME", NO_PRESETS(""), 0, 0,
      "as in jem train (default: that of the model)" },
    { "data", OPTION_TEXT, OPTION_NOW, REPORT_AT(data), "DIR", NO_PRESETS(""), 0, 0,
      "the directory of tools/get-data (default: as in training)" },
    { "beside", OPTION_TEXT, OPTION_NOW, REPORT_AT(beside), "MODEL", NO_PRESETS(""), 0, 0,
      "add accuracy, calibration and attacks of another model" },
    { "judge", OPTION_TEXT, OPTION_NOW, REPORT_AT(judge), "FILE", NO_PRESETS(""), 0, 0,
      "judge of samples, as in jem eval MODEL samples" },
    { "n", OPTION_INT, OPTION_NOW, REPORT_AT(n), "N", NO_PRESETS("0"), 0, 1e7,
      "images for each measurement (0: automatic, 100 to 10000; for accuracy all)" },
    { "minutes", OPTION_FLOAT, OPTION_NOW, REPORT_AT(minutes), "X", NO_PRESETS("0"), 0, 1e6,
      "limit the time, with fewer images, a draft of samples (0: no limit)" },
    { "threads", OPTION_INT, OPTION_NOW, REPORT_AT(threads), "N", NO_PRESETS("0"), 0, 1024,
      "(0: all; the results are the same)" },
    { "max-memory", OPTION_INT, OPTION_NOW, REPORT_AT(max_memory), "MB", NO_PRESETS("0"), 0, 1e9,
      "as in jem eval, like the next two (0: its default)" },
    { "max-file", OPTION_INT, OPTION_NOW, REPORT_AT(max_file), "MB", NO_PRESETS("0"), 0, 2000,
      "limit on files of data" },
    { "max-picture", OPTION_INT, OPTION_NOW, REPORT_AT(max_picture), "MB", NO_PRESETS("0"), 0,
      8000, "limit on the pixels of a picture" }
};

/* Sets the paths of the model, its log and the page (`out`), with ./ before a leading dash. Returns
   0 and prints the reason if the name is too long. */
static int find_model(card *r, const char *path, char *out, size_t size) {
    struct stat s;
    const char *dash = *path == '-' ? "./" : "";
    const char *file = "";
    r->is_run = stat(path, &s) == 0 && S_ISDIR(s.st_mode);
    const size_t n = r->is_run ? system_path_length(path) : strlen(path);
    if (n > 200) {
        fprintf(stderr, "jem report: %s: the name is too long\n", path);
        return 0;
    }
    if (r->is_run) file = "/last.safetensors";
    snprintf(r->model, sizeof r->model, "%s%.*s%s", dash, (int)n, path, file);
    snprintf(r->log, sizeof r->log, "%s%.*s/log.csv", dash, (int)n, path);
    if (*r->o->out) snprintf(out, size, "%s", r->o->out);
    else if (r->is_run) snprintf(out, size, "%s%.*s/report.html", dash, (int)n, path);
    else snprintf(out, size, "report.html");
    model_name(r->model, r->name);
    return 1;
}

/* Checks the other files of the command line before an hour of measurements. */
static int besides_open(const card *r) {
    const report_options *o = r->o;
    model m;
    struct stat s;
    if (*o->dataset && !data_is_known(o->dataset) && needs_folder_recipe(o->dataset) &&
        stat(o->dataset, &s)) {
        fprintf(stderr, "jem report: --dataset %s: no such folder, and no data set\n", o->dataset);
        return 0;
    }
    FILE *judge = *o->judge ? fopen(o->judge, "rb") : NULL;
    if (*o->judge && !judge) {
        fprintf(stderr, "jem report: %s: cannot be opened: %s\n", o->judge, strerror(errno));
        return 0;
    }
    if (judge) fclose(judge);
    if (!*o->beside) return 1;
    int ok = model_open(&m, "jem report", o->beside, o->threads, JEM_PRECISION_FAST, o->max_memory);
    if (ok && (m.net->channels != r->shape[0] || m.net->height != r->shape[1] ||
               m.net->width != r->shape[2])) {
        ok = 0;
        fprintf(stderr, "jem report: %s has images (%d,%d,%d), but %s has (%d,%d,%d)\n",
                r->model, r->shape[0], r->shape[1], r->shape[2], o->beside,
                m.net->channels, m.net->height, m.net->width);
    }
    model_close(&m);
    return ok;
}

int report_command(int argc, char **argv) {
    static options table;
    static report_options values;
    static card r;
    char **words;
    char out[OPTION_TEXT_SIZE + 64];
    int n = 0;
    options *o = options_begin(&table, "jem report", report_table, sizeof report_table, &values);
    const int read = read_options(o, argc, argv, &words, &n, 1, 1,
                                  "jem report RUN|MODEL [OPTIONS]: a model card, one HTML page "
                                  "with the measurements of jem eval");
    if (read >= 0) return read;
    r.o = &values;
    r.began = now();
    if (!find_model(&r, words[0], out, sizeof out)) return 2;
    if (!is_page_name(o->command, values.out) || !may_be_run(o->command, words[0])) return 2;
    if (!may_write_other(o->command, r.model, out)) return 2;
    if (!look_at_model(&r) || !besides_open(&r)) return 1;
    return report_make(&r, out);
}
