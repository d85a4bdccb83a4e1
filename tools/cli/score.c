/* jem score. */
#include "tools/cli/system.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "tools/cli/memory.h"
#include "tools/cli/score.h"
#include "tools/cli/train.h"
#include "tools/cli/train_options.h"
#include "tools/support/measures.h"
#include "tools/support/new_file.h"

typedef struct score_options {
    char out[OPTION_TEXT_SIZE], label[OPTION_TEXT_SIZE];
    int threads, max_memory, max_file;
} score_options;

#define SCORE_AT(field) offsetof(score_options, field)
static const option score_table[] = {
    { "out", OPTION_TEXT, OPTION_NOW, SCORE_AT(out), "FILE.csv", NO_PRESETS(""), 0, 0,
      "the file to write (default: standard output)" },
    { "label", OPTION_TEXT, OPTION_NOW, SCORE_AT(label), "NAME", NO_PRESETS(""), 0, 0,
      "column of labels, if there is one (default: as in training)" },
    { "threads", OPTION_INT, OPTION_NOW, SCORE_AT(threads), "N", NO_PRESETS("0"), 0, 1024,
      "(0: all cores; results do not depend on it)" },
    LIMIT_MEMORY(score_options, "4000"),
    { "max-file", OPTION_INT, OPTION_NOW, SCORE_AT(max_file), "MB", NO_PRESETS("1000"), 1, 2000,
      "limit on files of data, also unpacked" }
};

int model_has(const char *command, const model *m, int rows) {
    const int is_table = m->net->height == 1 && m->net->width == 1;
    if (is_table == rows) return 1;
    if (rows)
        fprintf(stderr, "%s: %s has images of %d x %d, not rows of a table (jem classify is for "
                "images)\n", command, m->path, m->net->width, m->net->height);
    else
        fprintf(stderr, "%s: %s has rows of %d numbers, not images (jem score is for rows)\n",
                command, m->path, m->net->channels);
    return 0;
}

void columns_of(const model *m, const char **names, data_desc *desc) {
    int named = 0;
    char key[32];
    for (int i = 0; i < m->net->channels; i++) {
        snprintf(key, sizeof key, COLUMN_PREFIX "%d", i);
        names[i] = jem_net_meta(m->net, key);
        /* A table without a header has numbers as names. */
        named += names[i] && names[i][strspn(names[i], "0123456789")];
    }
    for (int i = 0; named && i < m->net->channels; i++)
        if (!names[i]) names[i] = "?";
    desc->columns = named ? names : NULL;
    desc->n_columns = m->net->channels;
    desc->memory_mb = budget.most / 1e6;
    if (!desc->label || !*desc->label) {
        desc->label = jem_archive_meta(m->archive, OPTION_PREFIX "label");
        desc->label_optional = 1;
    }
}

/* Quotes a name as CSV requires (RFC 4180): one with a comma or a quotation mark. */
static void quote_name(const char *name, char quoted[2 * NAME_SIZE + 3]) {
    char *to = quoted;
    if (!name[strcspn(name, ",\"")]) {
        strcpy(quoted, name);
        return;
    }
    *to++ = '"';
    for (; *name; name++) {
        if (*name == '"') *to++ = '"';
        *to++ = *name;
    }
    *to++ = '"';
    *to = 0;
}

enum { ROW_SIZE = 2 * NAME_SIZE + 160 };

/* Formats the line of a row. */
static void format_row(char line[ROW_SIZE], const model *m, int row, const jem_answer *a) {
    char name[NAME_SIZE];
    char quoted[2 * NAME_SIZE + 3];
    char familiarity[32] = "";
    if (a->familiarity >= 0)
        snprintf(familiarity, sizeof familiarity, "%.4f", (double)a->familiarity);
    int n = snprintf(line, ROW_SIZE, "%d,%.6g,%s,%s", row + 1, (double)a->log_density, familiarity,
                     jem_verdict_name(jem_judge(a->familiarity)));
    if (m->net->classes > 1) {
        quote_name(class_name(m->net, a->label, name), quoted);
        n += snprintf(line + n, (size_t)(ROW_SIZE - n), ",%s,%.4f", quoted,
                      (double)a->probability);
    }
    snprintf(line + n, (size_t)(ROW_SIZE - n), "\n");
}

/* Prints AUROC of log p(x) and of familiarity, if rows have the labels 0 (usual) and others. */
static void print_detection(FILE *to, const data_set *d, const jem_answer *a) {
    float *score = new_floats(2 * (double)d->n);
    detection by_density;
    detection by_familiarity;
    int n = 0;
    int usual = 0;
    for (int others = 0; score && others < 2; others++)
        for (int i = 0; i < d->n; i++) {
            if ((d->labels[i] > 0) != others) continue;
            score[n] = a[i].log_density;
            score[d->n + n] = a[i].familiarity;
            n++;
            usual += !others;
        }
    if (score && measure_detection(score, usual, score + usual, n - usual, &by_density) &&
        measure_detection(score + d->n, usual, score + d->n + usual, n - usual, &by_familiarity))
        fprintf(to, "label 0 against others: AUROC of log p(x) %.4f, of familiarity %.4f\n",
                by_density.auroc, by_familiarity.auroc);
    free(score);
}

/* Prints a summary of all rows. */
static void print_summary(FILE *to, const model *m, const data_set *d, const jem_answer *a) {
    int verdicts[JEM_STRANGE + 1] = { 0 };
    int right = 0;
    double sum = 0;
    char name[NAME_SIZE];
    for (int i = 0; i < d->n; i++) {
        verdicts[jem_judge(a[i].familiarity)]++;
        sum += (double)a[i].log_density;
        right += d->has_labels &&
                 !strcmp(class_name(m->net, a[i].label, name), d->class_names[d->labels[i]]);
    }
    fprintf(to, "%d rows: %d familiar, %d odd, %d strange; mean log p(x) %.3f", d->n,
            verdicts[JEM_FAMILIAR], verdicts[JEM_ODD], verdicts[JEM_STRANGE], sum / d->n);
    if (d->has_labels && m->net->classes > 1)
        fprintf(to, "; accuracy %.2f%%", 100.0 * right / d->n);
    fprintf(to, "\n");
    if (d->has_labels && m->net->classes == 1) print_detection(to, d, a);
}

/* Writes all rows to `path`, or to standard output. */
static int write_rows(const model *m, const data_set *d, const jem_answer *a, const char *path) {
    new_file file;
    char line[ROW_SIZE];
    if (*path && !new_file_open(&file, path)) {
        new_file_done(&file, 0);
        fprintf(stderr, "jem score: %s\n", file.message);
        return 0;
    }
    int ok = 1;
    for (int i = -1; ok && i < d->n; i++) {
        snprintf(line, sizeof line, "row,log_p,familiarity,verdict%s\n",
                 m->net->classes > 1 ? ",label,probability" : "");
        if (i >= 0) format_row(line, m, i, &a[i]);
        ok = *path ? new_file_text(&file, line) : fputs(line, stdout) >= 0;
    }
    if (*path && !new_file_done(&file, ok)) {
        fprintf(stderr, "jem score: %s\n", file.message);
        ok = 0;
    }
    return ok;
}

static int score_rows(const model *m, const score_options *o, const char *path) {
    enum { AT_ONCE = 4096 };
    data_set d;
    data_desc desc;
    char error[512];
    const char **names = (const char **)malloc((size_t)m->net->channels * sizeof *names);
    memset(&desc, 0, sizeof desc);
    desc.label = o->label;
    desc.file_mb = o->max_file;
    if (!names) return fprintf(stderr, "jem score: out of memory\n"), 0;
    columns_of(m, names, &desc);
    const int loaded = data_load_table(&d, strcmp(path, "-") ? path : "/dev/stdin", &desc, error,
                                       sizeof error);
    free((void *)names);
    if (!loaded) return fprintf(stderr, "jem score: %s\n", error), 0;
    jem_answer *a = (jem_answer *)malloc((size_t)d.n * sizeof *a);
    int ok = a != NULL;
    if (!ok) fprintf(stderr, "jem score: out of memory\n");
    for (int i = 0; ok && i < d.n; i += AT_ONCE) {
        const int n = d.n - i < AT_ONCE ? d.n - i : AT_ONCE;
        ok = jem_classify(m->net, d.values + (ptrdiff_t)i * d.c, n, a + i) == JEM_OK ||
             model_fail("jem score", m);
    }
    if (ok) ok = write_rows(m, &d, a, o->out);
    if (ok) print_summary(*o->out ? stdout : stderr, m, &d, a);
    free(a);
    data_free(&d);
    return ok;
}

int score_command(int argc, char **argv) {
    static options table;
    static score_options values;
    char **words;
    int n = 0;
    model m;
    options *o = options_begin(&table, "jem score", score_table, sizeof score_table, &values);
    const int read = read_options(o, argc, argv, &words, &n, 2, 2, "jem score MODEL FILE.csv "
                                  "[OPTIONS]: log p(x) and familiarity of each row");
    if (read >= 0) return read;
    if (*values.out && (!may_write(o->command, words[0], values.out) ||
                        !may_write(o->command, words[1], values.out))) return 2;
    int status = 1;
    if (model_open(&m, o->command, words[0], values.threads, JEM_PRECISION_EXACT,
                   values.max_memory)) {
        if (!model_has(o->command, &m, 1)) status = 2;
        else status = !score_rows(&m, &values, words[1]);
    }
    model_close(&m);
    return status;
}
