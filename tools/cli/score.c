/* jem score. */
#include "tools/cli/system.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/cli/memory.h"
#include "tools/cli/notes.h"
#include "tools/cli/score.h"
#include "tools/cli/stop.h"
#include "tools/cli/train.h"
#include "tools/cli/train_options.h"
#include "tools/support/measures.h"
#include "tools/support/new_file.h"
#include "tools/support/table.h"

typedef struct score_options {
    char out[OPTION_TEXT_SIZE], label[OPTION_TEXT_SIZE], keep[OPTION_TEXT_SIZE];
    char usual[OPTION_TEXT_SIZE];
    int blame, threads, max_memory;
} score_options;

#define SCORE_AT(field) offsetof(score_options, field)
static const option score_table[] = {
    { "out", OPTION_TEXT, OPTION_NOW, SCORE_AT(out), "FILE.csv", NO_PRESETS(""), 0, 0,
      "the file, written as a whole (default: standard output, row by row)" },
    { "label", OPTION_TEXT, OPTION_NOW, SCORE_AT(label), "NAME", NO_PRESETS(""), 0, 0,
      "column of labels, if there is one (default: as in training)" },
    { "keep", OPTION_TEXT, OPTION_NOW, SCORE_AT(keep), "NAMES", NO_PRESETS(""), 0, 0,
      "columns to copy beside the scores, as \"time,id\"; they are not judged" },
    { "usual", OPTION_TEXT, OPTION_NOW, SCORE_AT(usual), "NAMES", NO_PRESETS(""), 0, 0,
      "labels of usual rows, for AUROC, as \"run,idle\" (default: classes of the model)" },
    { "blame", OPTION_FLAG, OPTION_NOW, SCORE_AT(blame), "", NO_PRESETS("on"), 0, 0,
      "name the column to blame in odd and strange rows (--no-blame: faster)" },
    THREADS_OPTION(score_options),
    LIMIT_MEMORY(score_options, "4000")
};

int model_has(const char *command, const model *m, int rows) {
    const int is_table = m->net->height == 1 && m->net->width == 1;
    if (is_table == rows) return 1;
    if (rows)
        fprintf(stderr, "%s: %s has images of %d x %d, not rows of a table (jem classify is for "
                "images)\n", command, m->path, m->net->width, m->net->height);
    else
        fprintf(stderr, "%s: %s has rows of %d number%s, not images (jem score is for rows)\n",
                command, m->path, m->net->channels, m->net->channels == 1 ? "" : "s");
    return 0;
}

void columns_of(const model *m, const char **names, data_desc *desc) {
    int named = 0;
    char key[32];
    for (int i = 0; i < m->net->channels; i++) {
        snprintf(key, sizeof key, COLUMN_PREFIX "%d", i);
        names[i] = jem_net_meta(m->net, key);
        named += names[i] && !table_is_number(names[i]);
    }
    for (int i = 0; named && i < m->net->channels; i++)
        if (!names[i]) names[i] = "?";
    desc->columns = named ? names : NULL;
    desc->n_columns = m->net->channels;
    if (!named) desc->drop = jem_archive_meta(m->archive, OPTION_PREFIX "drop");
    if (!desc->label || !*desc->label) {
        desc->label = jem_archive_meta(m->archive, OPTION_PREFIX "label");
        desc->label_name = jem_net_meta(m->net, LABEL_COLUMN);
        desc->label_optional = 1;
    }
    const char *skip = jem_archive_meta(m->archive, OPTION_PREFIX "skip-rows");
    desc->skip_rows = skip && !strcmp(skip, "on");
}

/* Room for the column to blame with two numbers, and for a line: row number, answer, and that. */
enum { BLAME_SIZE = QUOTED_SIZE + 80, ROW_SIZE = ANSWER_SIZE + BLAME_SIZE + 16 };

/* What is known about the rows so far. */
typedef struct score_run {
    const model *m;
    const table_desc *desc;
    csv_table t;
    const char *usual;                             /* labels of usual rows; "": see mark_usual */
    int blames;                                    /* 1: odd rows have the column to blame */
    float *gain, *better;                          /* [channels] of a row */
    jem_answer *answers;                           /* [t.rows] if there are labels; or NULL */
    size_t room;                                   /* answers for which there is memory */
    int is_input;                                  /* 1: rows arrive through standard input */
    int stopped;                                   /* 1: by a signal, before the last row */
    int refused;                                   /* rows that cannot be read, so far */
    int rows, unreadable, verdicts[JEM_VERDICT_STRANGE + 1];
    double sum;                                    /* of log p(x) */
    const char *kept;                              /* of the next row; NULL: nothing is kept */
    const char *out;                               /* "": standard output */
    new_file file;
    int began;                                     /* 1: the header is written */
} score_run;

/* Writes text to the file, or to standard output. */
static int put(score_run *s, const char *text) {
    if (*s->out) return new_file_text(&s->file, text);
    if (fputs(text, stdout) >= 0) return 1;
    fprintf(stderr, "jem score: standard output: cannot be written: %s\n", strerror(errno));
    return 0;
}

/* Writes a line, with columns that are kept. */
static int put_line(score_run *s, const char *line, const char *kept) {
    if (!put(s, line)) return 0;
    if (kept && (!put(s, ",") || !put(s, kept))) return 0;
    return put(s, "\n");
}

/* Writes the line of the next row. */
static int put_row(score_run *s, const char *line) {
    const char *kept = s->kept;
    if (kept) s->kept += strlen(kept) + 1;
    s->rows++;
    return put_line(s, line, kept);
}

/* Formats the column to blame for a row x, the gain of log p(x) if its value is replaced, and that
   replacement. */
static int format_blame(score_run *s, const float *x, char text[BLAME_SIZE]) {
    const jem_net *net = s->m->net;
    char quoted[QUOTED_SIZE];
    char number[16];
    int most = 0;
    if (jem_blame_values(s->m->net, x, 1, s->gain, s->better) != JEM_OK)
        return model_fail("jem score", s->m);
    for (int i = 1; i < net->channels; i++) if (s->gain[i] > s->gain[most]) most = i;
    snprintf(number, sizeof number, "%d", most + 1);
    table_quote(s->desc->columns ? s->desc->columns[most] : number, quoted);
    snprintf(text, BLAME_SIZE, ",%s,%.2f,%.9g", quoted, (double)s->gain[most],
             (double)s->better[most]);
    return 1;
}

/* Formats the line of a row; a NULL: one that cannot be read. blame: its last columns. */
static void format_row(char line[ROW_SIZE], const model *m, int row, const jem_answer *a,
                       const char *blame) {
    char answer[ANSWER_SIZE];
    format_answer(answer, m->net, a, a ? jem_verdict_name(jem_judge(a->familiarity))
                                          : "unreadable");
    snprintf(line, ROW_SIZE, "%d,%s%s", row + 1, answer, blame);
}

/* Marks the labels of --usual. Returns 0, after a message, if no row has one of them. */
static int mark_named(const score_run *s, char *usual) {
    const char *list = s->usual;
    char name[TABLE_NAME];
    char shown[NAME_SIZE];
    int missing = 0;
    if (!s->t.class_names) {
        fprintf(stderr, "jem score: --usual: the rows have no labels (--label NAME)\n");
        return 0;
    }
    while (next_name(&list, ",", name, sizeof name)) {
        int label = 0;
        while (label < s->t.classes && strcmp(s->t.class_names[label], name)) label++;
        if (label < s->t.classes) usual[label] = 1;
        else {
            fprintf(stderr, "jem score: --usual: no row has the label '%s'\n", clean(name, shown));
            missing++;
        }
    }
    return !missing;
}

/* Marks the labels of usual rows: those of --usual, or classes of the model, or the usual label of
   the table if the model has one class, of another name. Returns 0 after an error. */
static int mark_usual(const score_run *s, char *usual) {
    int known = 0;
    if (*s->usual) return mark_named(s, usual);
    for (int label = 0; s->t.class_names && label < s->t.classes; label++) {
        usual[label] = class_named(s->m->net, s->t.class_names[label]) >= 0;
        known += usual[label];
    }
    if (!known && s->m->net->classes == 1) usual[table_usual_label(&s->t)] = 1;
    return 1;
}

/* Prints the labels of usual rows, up to ten of them. */
static void print_usual(FILE *to, const score_run *s, const char *usual) {
    enum { MOST_NAMED = 10 };
    int n = 0;
    int named = 0;
    for (int label = 0; label < s->t.classes; label++) n += usual[label];
    fprintf(to, n == 1 ? "label" : "labels");
    for (int label = 0; label < s->t.classes && named < MOST_NAMED; label++)
        if (usual[label]) fprintf(to, "%s %s", named++ ? "," : "", s->t.class_names[label]);
    if (n > MOST_NAMED) fprintf(to, ", ...");
}

/* Prints AUROC of log p(x) and of familiarity, if rows have usual labels and others. Returns 0
   after an error. */
static int print_detection(FILE *to, const score_run *s) {
    const int rows = s->t.rows;
    char usual[TABLE_CLASSES] = "";
    detection by_density;
    detection by_familiarity;
    if (!s->answers) return !*s->usual || mark_named(s, usual);
    if (!mark_usual(s, usual)) return 0;
    float *density = new_floats(2 * (double)rows);
    int *is_usual = (int *)malloc((size_t)rows * sizeof *is_usual);
    for (int i = 0; density && is_usual && i < rows; i++) {
        const int label = s->t.labels[i];
        density[i] = s->answers[i].log_density;
        density[rows + i] = s->answers[i].familiarity;
        is_usual[i] = label < 0 ? -1 : usual[label];
    }
    if (density && is_usual && measure_labelled(density, is_usual, rows, 1, &by_density) &&
        measure_labelled(density + rows, is_usual, rows, 1, &by_familiarity)) {
        print_usual(to, s, usual);
        fprintf(to, " against others: AUROC of log p(x) %.4f", by_density.auroc);
        if (!s->verdicts[JEM_VERDICT_NONE])
            fprintf(to, ", of familiarity %.4f", by_familiarity.auroc);
        if (!*s->usual && s->m->net->classes == 1 && s->t.classes > 2)
            fprintf(to, " (--usual names all usual labels)");
        fprintf(to, "\n");
    }
    free(is_usual);
    free(density);
    return 1;
}

/* Names labels that are no classes of the model. */
static void note_unknown(const score_run *s) {
    const jem_net *net = s->m->net;
    enum { MOST_NAMED = 20 };
    int unknown = 0;
    for (int k = 0; s->t.class_names && k < s->t.classes; k++) {
        const char *label = s->t.class_names[k];
        int count = 0;
        for (int i = 0; i < s->t.rows; i++) count += s->t.labels[i] == k;
        if (!count || class_named(net, label) >= 0) continue;
        if (unknown++ < MOST_NAMED)
            fprintf(stderr, "jem score: the label '%s' of %d row%s is no class of the model\n",
                    label, count, count == 1 ? "" : "s");
    }
    const int one = unknown == MOST_NAMED + 1;
    if (unknown > MOST_NAMED)
        fprintf(stderr, "jem score: so %s %d other label%s\n", one ? "is" : "are",
                unknown - MOST_NAMED, one ? "" : "s");
}

/* Returns the percentage of rows with their label as the answer, of those whose label is a class of
   the model; -1: there are no such rows. */
static double accuracy_of(const score_run *s) {
    char answer[NAME_SIZE];
    int right = 0;
    int n = 0;
    for (int i = 0; i < s->t.rows; i++) {
        if (s->t.labels[i] < 0) continue;
        const char *label = s->t.class_names[s->t.labels[i]];
        const int agrees = !strcmp(class_name(s->m->net, s->answers[i].label, answer), label);
        right += agrees;
        n += agrees || class_named(s->m->net, label) >= 0;
    }
    return n ? 100.0 * right / n : -1;
}

/* Prints a summary of all rows. Returns 0 after an error in --usual. */
static int print_summary(FILE *to, const score_run *s) {
    const int read = s->rows - s->unreadable;
    print_verdicts(to, s->rows, s->rows == 1 ? "row" : "rows", s->verdicts);
    if (s->unreadable) fprintf(to, ", %d unreadable", s->unreadable);
    if (read) fprintf(to, "; mean log p(x) %.3f", s->sum / read);
    double accuracy = -1;
    if (s->answers && read && s->m->net->classes > 1) accuracy = accuracy_of(s);
    if (accuracy >= 0) fprintf(to, "; accuracy %.2f%%", accuracy);
    print_chance(to, read, rows_calibrated(s->m), "rows");
    fprintf(to, "\n");
    if (s->t.unlabelled)
        fprintf(stderr, "jem score: %d row%s unlabelled: the label is missing, is neither a name "
                "nor a whole number, or comes after the first %d different labels\n",
                s->t.unlabelled, s->t.unlabelled == 1 ? " counts as" : "s count as",
                TABLE_CLASSES);
    const int ok = print_detection(to, s);
    if (s->answers && s->m->net->classes > 1) note_unknown(s);
    if (read >= 20 && s->verdicts[JEM_VERDICT_STRANGE] > read - read / 10)
        fprintf(stderr, "jem score: nearly all rows are strange: are their units%s those of the "
                "training data?\n", s->desc->columns ? "" : " and the order of their columns");
    return ok;
}

/* Makes room for an answer per row, if rows have labels. */
static int keep_answers(score_run *s) {
    const size_t n = (size_t)s->t.rows;
    if (!s->t.labels || n <= s->room) return 1;
    jem_answer *more = (jem_answer *)realloc(s->answers, 2 * n * sizeof *more);
    if (!more) {
        fprintf(stderr, "jem score: out of memory\n");
        return 0;
    }
    s->answers = more;
    s->room = 2 * n;
    return 1;
}

/* Scores and writes n rows x, of which the first is s->rows, and all can be read. */
static int score_some(score_run *s, const float *x, int n) {
    enum { AT_ONCE = 256 };
    jem_answer a[AT_ONCE];
    char line[ROW_SIZE];
    char blame[BLAME_SIZE];
    for (int i = 0; i < n; i += AT_ONCE) {
        const int m = smaller(n - i, AT_ONCE);
        if (jem_classify(s->m->net, x + (ptrdiff_t)i * s->t.columns, m, a) != JEM_OK)
            return model_fail("jem score", s->m);
        for (int k = 0; k < m; k++) {
            const jem_verdict verdict = jem_judge(a[k].familiarity);
            strcpy(blame, s->blames ? ",,," : "");
            if (s->blames && (verdict == JEM_VERDICT_ODD || verdict == JEM_VERDICT_STRANGE) &&
                !format_blame(s, x + (ptrdiff_t)(i + k) * s->t.columns, blame)) return 0;
            format_row(line, s->m, s->rows, &a[k], blame);
            if (s->answers) s->answers[s->rows] = a[k];
            if (!put_row(s, line)) return 0;
            s->verdicts[verdict]++;
            s->sum += (double)a[k].log_density;
        }
    }
    return 1;
}

/* Scores and writes the rows that have arrived, and forgets their values. */
static int score_arrived(score_run *s) {
    const csv_table *t = &s->t;
    char line[ROW_SIZE];
    if (!s->began && t->rows) {
        snprintf(line, sizeof line, "row,%s%s", answer_columns(s->m->net),
                 s->blames ? ",column,gain,better" : "");
        if (!put_line(s, line, t->kept_names)) return 0;
        note_few_calibrate(stderr, "jem score", rows_calibrated(s->m), "rows");
        s->began = 1;
    }
    if (!keep_answers(s)) return 0;
    s->kept = t->kept;
    while (s->rows < t->rows) {
        const float *x = t->x + (ptrdiff_t)(s->rows - t->first) * t->columns;
        int n = 0;
        while (s->rows + n < t->rows && !isnan(x[(ptrdiff_t)n * t->columns])) n++;
        if (n && !score_some(s, x, n)) return 0;
        if (n) continue;
        format_row(line, s->m, s->rows, NULL, s->blames ? ",,," : "");
        if (!put_row(s, line)) return 0;
        s->unreadable++;
    }
    return *s->out || !fflush(stdout);
}

static void on_bad_row(void *user, const char *message) {
    enum { MOST_NAMED = 20 };
    score_run *s = (score_run *)user;
    const char *remedy = s->refused++ ? "" : "; such rows have no score until they are corrected";
    if (s->refused <= MOST_NAMED || s->is_input)
        fprintf(stderr, "jem score: %s%s\n", message, remedy);
    else if (s->refused == MOST_NAMED + 1)
        fprintf(stderr, "jem score: further rows that cannot be read are only counted\n");
}

/* Reads a file, or standard input, as it arrives, and scores its rows. */
static int score_input(score_run *s, int input, const char *path, const table_desc *desc) {
    static char bytes[65536];
    char error[512] = "";
    table_reader *r = table_reader_create(&s->t, path, desc, error, sizeof error);
    int ok = r != NULL;
    if (!ok) fprintf(stderr, "jem score: %s\n", error);
    long n = 1;
    while (ok && n > 0 && !stop_signal) {
        do n = (long)read(input, bytes, sizeof bytes);
        while (n < 0 && errno == EINTR && !stop_signal);
        if (n < 0 && stop_signal) break;
        if (n < 0) snprintf(error, sizeof error, "%s: cannot be read: %s", path, strerror(errno));
        ok = n >= 0 && (n > 0 ? table_reader_take(r, bytes, (size_t)n) : table_reader_end(r));
        if (!ok) fprintf(stderr, "jem score: %s\n", error);
        ok = ok && score_arrived(s);
        if (ok) table_reader_forget(r);
    }
    s->stopped = stop_signal && n != 0;
    table_reader_free(r);
    return ok;
}

/* Completes the table of --out, and prints the summary. Returns 0 if one of them fails, or if ok is
   0. */
static int finish_table(score_run *s, int ok) {
    const int none = s->stopped && !s->rows;       /* replaces no earlier file */
    if (*s->out && !new_file_done(&s->file, ok && !none) && *s->file.message) {
        fprintf(stderr, "jem score: %s\n", s->file.message);
        return 0;
    }
    if (!ok) return 0;
    if (none) fprintf(stderr, "jem score: stopped before a row: %s is not written\n", s->out);
    else if (s->stopped)
        fprintf(stderr, "jem score: stopped: %s has the first %d rows\n", s->out, s->rows);
    else return print_summary(*s->out && !names_device(s->out) ? stdout : stderr, s);
    return 1;
}

/* Takes columns and label of the model for the table's. */
static int describe(const model *m, const score_options *o, table_desc *desc) {
    const char **names = (const char **)malloc((size_t)m->net->channels * sizeof *names);
    data_desc of_model;
    memset(&of_model, 0, sizeof of_model);
    memset(desc, 0, sizeof *desc);
    of_model.label = o->label;
    if (names) columns_of(m, names, &of_model);
    desc->label = of_model.label;
    desc->label_name = of_model.label_name;
    desc->label_optional = of_model.label_optional;
    desc->any_label = 1;
    desc->n_columns = of_model.n_columns;
    desc->drop = of_model.drop;
    desc->keep = o->keep;
    desc->bad = on_bad_row;
    if (names && of_model.columns)
        desc->columns = (char (*)[TABLE_NAME])calloc((size_t)desc->n_columns, TABLE_NAME);
    for (int i = 0; desc->columns && i < desc->n_columns; i++)
        snprintf(desc->columns[i], TABLE_NAME, "%s", names[i]);
    for (int i = 0; desc->columns && i < desc->n_columns; i++) harmless(desc->columns[i], 0);
    const int ok = names && (desc->columns || !of_model.columns);
    if (!ok) fprintf(stderr, "jem score: out of memory\n");
    free((void *)names);
    return ok;
}

/* Returns the exit status: 0, or 1 after an error or if rows cannot be read. */
static int score_rows(const model *m, const score_options *o, const char *path) {
    static score_run s;
    table_desc desc;
    const int is_input = !strcmp(path, "-");
    s.m = m;
    s.desc = &desc;
    s.out = o->out;
    s.is_input = is_input;
    s.usual = o->usual;
    s.blames = o->blame;
    s.gain = new_floats(2 * (double)m->net->channels);
    if (!s.gain) return !context_fail("jem score", NULL);
    s.better = s.gain + m->net->channels;
    const int input = is_input ? 0 : open(path, O_RDONLY);
    if (input < 0) {
        fprintf(stderr, "jem score: %s: cannot be opened: %s\n", path, strerror(errno));
        free(s.gain);
        return 1;
    }
    int ok = describe(m, o, &desc);
    desc.user = &s;
    if (*o->out) stop_on_signals("\njem score: stopping; press again to lose all rows\n");
    if (ok && *o->out) ok = new_file_open(&s.file, o->out);
    ok = ok && score_input(&s, input, is_input ? "standard input" : path, &desc);
    ok = finish_table(&s, ok);
    if (!is_input) close(input);
    free(desc.columns);
    free(s.answers);
    free(s.gain);
    table_free(&s.t);
    if (ok && s.stopped) return 128 + stop_signal;
    return !ok || s.unreadable > 0;
}

int score_command(int argc, char **argv) {
    static options table;
    static score_options values;
    char **words;
    int n = 0;
    model m;
    options *o = options_begin(&table, "jem score", score_table, sizeof score_table, &values);
    const int read = read_options(o, argc, argv, &words, &n, 2, 2, "jem score MODEL FILE.csv "
                                  "[OPTIONS]: log p(x), familiarity and verdict of each row; "
                                  "FILE -: standard input, rows as they arrive");
    if (read >= 0) return read;
    if (!is_table_name(o->command, values.out, n, words)) return 2;
    int status = 1;
    if (model_open(&m, o->command, words[0], values.threads, JEM_PRECISION_EXACT,
                   values.max_memory)) {
        if (!model_has(o->command, &m, 1)) status = 2;
        else status = score_rows(&m, &values, words[1]);
    }
    model_close(&m);
    return status;
}
