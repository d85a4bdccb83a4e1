/* Notes about data: see notes.h. */
#include "tools/cli/system.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "tools/cli/notes.h"
#include "tools/cli/train_options.h"
#include "tools/support/table.h"

/* Writes the name of a column as the shell's word for --drop. Returns `to`. */
static const char *drop_word(const char *name, char to[DATA_PATH]) {
    char listed[2 * TABLE_NAME + 3];
    char cut[TABLE_NAME];
    snprintf(cut, sizeof cut, "%s", name);
    table_quote(cut, listed);
    if (data_quoted(listed, to, DATA_PATH) == listed) strcpy(to, listed);
    return to;
}

/* Returns 1 if a column never falls from a row to the next, and has several values. Rows next to
   each other may be equal: a float has only 24 bits of a clock. */
static int only_rises(const data_set *s, int column) {
    enum { SEVERAL = 5 };
    int rises = 0;
    for (int i = 1; i < s->n; i++) {
        const float *at = s->values + (ptrdiff_t)i * s->c + column;
        if (at[0] < at[-s->c]) return 0;
        rises += at[0] > at[-s->c];
    }
    return rises >= SEVERAL;
}

void note_commas(const char *table, const data_set *s) {
    if (s->has_commas) printf("%s: commas in numbers are read as decimal points\n", table);
}

void note_letters(const char *table, const data_set *s) {
    if (s->masked)
        printf("%s: line 1 is not UTF-8, so letters in names of columns become '?': save it as CSV "
               "in UTF-8\n", table);
}

void note_clocks(const char *table, const data_set *s) {
    char word[DATA_PATH];
    for (int c = 0; c < s->c; c++) {
        if (!only_rises(s, c)) continue;
        printf("%s: column '%s' never falls from row to row: if it is a clock or a counter, many "
               "new rows will be strange: train again with --drop %s (and another --out)\n", table,
               s->column_names[c], drop_word(s->column_names[c], word));
    }
}

static int by_value(const void *a, const void *b) {
    const float x = *(const float *)a;
    const float y = *(const float *)b;
    return (x > y) - (x < y);
}

static double mean_of(const float *x, int n) {
    double mean = 0;
    for (int i = 0; i < n; i++) mean += (double)x[i] / n;
    return mean;
}

/* Returns the standard deviation of x[n]. */
static double deviation_of(const float *x, int n) {
    const double mean = mean_of(x, n);
    double sum = 0;
    for (int i = 0; i < n; i++) sum += ((double)x[i] - mean) * ((double)x[i] - mean);
    return sqrt(sum / n);
}

/* Finds the values first..last-1 of sorted x[n] that are not outliers. An outlier is farther from
   the quartiles than 20 times their distance; if they are equal, the 5% quantiles replace them; if
   those are equal, too, all values but the median are outliers, of which there may be 2%. */
static void find_usual(const float *x, int n, int *first, int *last) {
    static const double parts[] = { .25, .05 };
    *first = 0;
    *last = n;
    for (int k = 0; k < 2; k++) {
        const int skipped = (int)(parts[k] * n);
        const double low = (double)x[skipped];
        const double high = (double)x[n - 1 - skipped];
        const double reach = 20 * (high - low);
        if (reach <= 0) continue;
        while ((double)x[*first] < low - reach) ++*first;
        while ((double)x[*last - 1] > high + reach) --*last;
        return;
    }
    while (x[*first] < x[n / 2]) ++*first;
    while (x[*last - 1] > x[n / 2]) --*last;
    if (50 * (n - (*last - *first)) <= n) return;
    *first = 0;
    *last = n;
}

/* Returns 1 if loggers write this number when they have no value: -999, 9999, 65535, ... */
static int is_code(double v) {
    static const double others[] = { 32767, -32768, 65535, 2147483647, 4294967295 };
    double nines = 99;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (fabs(v - others[i]) <= 1e-7 * fabs(v)) return 1;
    while (nines * (1 + 1e-7) < fabs(v)) nines = 10 * nines + 9;
    return fabs(fabs(v) - nines) <= 1e-7 * nines;
}

/* Prints a note if many of sorted x[n] are a code of errors, the lowest or the highest number, far
   from all others. Returns 0 if they are not. */
static int note_code(const char *table, const char *name, const float *x, int n, int highest) {
    enum { SEVERAL = 5 };
    char word[DATA_PATH];
    const float end = highest ? x[n - 1] : x[0];
    int count = 0;
    while (count < n && fabsf((highest ? x[n - 1 - count] : x[count]) - end) <= 0) count++;
    if (count < SEVERAL || count > n - 2 || !is_code((double)end)) return 0;
    const double least = (double)(highest ? x[0] : x[count]);
    const double most = (double)(highest ? x[n - 1 - count] : x[n - 1]);
    const double gap = highest ? (double)end - most : least - (double)end;
    if (gap < 2 * (most - least)) return 0;
    printf("%s: column '%s': %d of %d values are %.10g, the others %g to %g: if that is a code of "
           "errors, delete its rows, or skip the column (--drop %s)\n", table, name, count, n,
           (double)end, least, most, drop_word(name, word));
    return 1;
}

/* Prints a note if x[n] differ by so little that floats of their size hardly represent it. */
static void note_offset(const char *table, const char *name, const float *x, int n) {
    static const double resolved = 5e-7;           /* some 4 to 8 steps of a float */
    char word[DATA_PATH];
    const double mean = mean_of(x, n);
    const double deviation = deviation_of(x, n);
    if (deviation > resolved * fabs(mean)) return;
    printf("%s: column '%s' is %.7g with a deviation of only %.2g, which numbers of 24 bits cannot "
           "resolve: subtract %.7g from it, here and in rows to score, or skip it (--drop %s)\n",
           table, name, mean, deviation, mean, drop_word(name, word));
}

/* Classes of so few rows count as typing errors. */
enum { FEW_LABELS = 2 };

/* Returns 1 if the rows of which a column is not from `least` to `most`, `count` rows, are whole
   classes, but for a few. */
static int are_classes(const data_set *s, int column, float least, float most, int count) {
    int *rows = (int *)calloc(2 * (size_t)s->classes, sizeof *rows);
    int misfits = 0;
    if (!rows || !s->has_labels) {
        free(rows);
        return 0;
    }
    int *far = rows + s->classes;
    for (int i = 0; i < s->n; i++) {
        const float at = s->values[(ptrdiff_t)i * s->c + column];
        rows[s->labels[i]]++;
        far[s->labels[i]] += at < least || at > most;
    }
    for (int k = 0; k < s->classes; k++) {
        const int near = rows[k] <= FEW_LABELS ? rows[k] : rows[k] - far[k];
        misfits += near < far[k] ? near : far[k];
    }
    free(rows);
    return 20 * misfits <= count;
}

/* Prints a note if the outliers of a column, as sorted x[s->n], make most of its standard
   deviation. If they are many, or a class, they are a regime of operation, and no errors. */
static void note_outliers(const char *table, const data_set *s, int column, const float *x) {
    static const double dominant = 3;
    static const double many = .05;
    const int n = s->n;
    char word[DATA_PATH];
    int first;
    int last;
    find_usual(x, n, &first, &last);
    const int count = n - (last - first);
    const int two_values = x[first] == x[last - 1] && (x[0] == x[first] || x[n - 1] == x[first]);
    if (two_values && x[n - 1] - x[0] == 1) return;        /* a flag, which is rarely set */
    if (!count || count > many * n) return;
    if (deviation_of(x, n) < dominant * deviation_of(x + first, last - first)) return;
    if (are_classes(s, column, x[first], x[last - 1], count)) return;
    const double below = (double)x[first] - (double)x[0];
    const double above = (double)x[n - 1] - (double)x[last - 1];
    printf("%s: column '%s': %d of %d values are far from the others (%g; the others are %g to "
           "%g) and determine its mean and scale: if they are a rare regime, keep them; if they "
           "are codes of errors, delete their rows, or skip the column (--drop %s)\n", table,
           s->column_names[column], count, n,
           (double)(below > above ? x[0] : x[n - 1]), (double)x[first], (double)x[last - 1],
           drop_word(s->column_names[column], word));
}

void note_values(const char *table, const data_set *s) {
    char word[DATA_PATH];
    float *x = (float *)malloc((size_t)s->n * sizeof *x);
    for (int c = 0; x && c < s->c; c++) {
        const char *name = s->column_names[c];
        for (int i = 0; i < s->n; i++) x[i] = s->values[(ptrdiff_t)i * s->c + c];
        qsort(x, (size_t)s->n, sizeof *x, by_value);
        if (x[0] < x[s->n - 1]) {
            note_offset(table, name, x, s->n);
            if (!note_code(table, name, x, s->n, 0) && !note_code(table, name, x, s->n, 1))
                note_outliers(table, s, c, x);
        } else
            printf("%s: column '%s' is %g in every row%s: nothing can be learned from it, and rows "
                   "with another value will be strange; --drop %s skips it\n", table, name,
                   (double)x[0], fabsf(x[0]) < 1e4f ? "" : ", rounded to 24 bits",
                   drop_word(name, word));
    }
    free(x);
}

/* Prints a note about classes, each with rows[k] rows, whose names differ only in case. */
static void note_case(const char *table, const data_set *s, const int *rows) {
    int pairs = 0;
    int one = 0;
    int other = 0;
    for (int k = 1; k < s->classes; k++) {
        for (int i = 0; i < k; i++) {
            if (!rows[i] || !rows[k]) continue;
            if (strcasecmp(s->class_names[i], s->class_names[k]) != 0) continue;
            if (pairs++) continue;
            one = i;
            other = k;
        }
    }
    if (!pairs) return;
    printf("%s: column '%s': labels that differ only in case, such as '%s' (%d row%s) and '%s' "
           "(%d), are different classes: if they mean the same, write them in one way\n", table,
           s->label, s->class_names[one], rows[one], rows[one] == 1 ? "" : "s",
           s->class_names[other], rows[other]);
}

void note_labels(const char *table, const data_set *s) {
    char word[DATA_PATH];
    int different = 0;
    int rare = 0;
    int rarest = 0;
    int *rows = (int *)calloc((size_t)s->classes, sizeof *rows);
    if (!rows || !s->has_labels) {
        free(rows);
        return;
    }
    for (int i = 0; i < s->n; i++) rows[s->labels[i]]++;
    for (int k = 0; k < s->classes; k++) {
        if (!rows[k]) continue;
        different++;
        if (rows[k] > FEW_LABELS) continue;
        if (!rare++ || rows[k] < rows[rarest]) rarest = k;
    }
    drop_word(s->label, word);
    if (2 * different > s->n)
        printf("%s: column '%s' has %d different labels in %d rows: if they are names or numbers "
               "of rows, --label none --drop %s skips them\n", table, s->label, different, s->n,
               word);
    else if (rare)
        printf("%s: column '%s': %d of %d labels occur once or twice, such as '%s': correct or "
               "delete these rows, or learn without labels (--label none --drop %s)\n", table,
               s->label, rare, different, s->class_names[rarest], word);
    note_case(table, s, rows);
    free(rows);
}

void note_sizes(const char *name, const data_set *s) {
    enum { TIMES = 5 };
    int *size = (int *)calloc((size_t)s->classes, sizeof *size);
    int least = 0;
    int most = 0;
    if (!size) return;                             /* no more than a note */
    for (int i = 0; i < s->n; i++) size[s->labels[i]]++;
    for (int k = 1; k < s->classes; k++) {
        if (size[k] < size[least]) least = k;
        if (size[k] > size[most]) most = k;
    }
    if (size[most] > TIMES * size[least])
        printf("%s: classes differ in size: %s has %d images, %s has %d; always answering %s is "
               "right for %.0f%%\n", name, s->class_names[most], size[most],
               s->class_names[least], size[least], s->class_names[most],
               100. * size[most] / s->n);
    free(size);
}

void note_grey(const char *name, const data_set *s) {
    int first = -1;
    int classes = 1;
    if (s->grey == s->n)
        printf("%s: no picture has colours: --grey learns a third of the numbers\n", name);
    if (!s->grey || s->grey == s->n || !s->paths) return;
    for (int i = 0; i < s->n; i++) {
        if (!data_is_grey(s, i)) continue;
        if (first < 0) first = i;
        if (s->labels[i] != s->labels[first]) classes++;
    }
    printf("%s: %d of %d pictures %s grey (the first: %s), the others in colour: ", name, s->grey,
           s->n, s->grey == 1 ? "is" : "are", s->paths[first]);
    if (classes == 1 && s->classes > 1 && s->grey > 1)
        printf("all are of class %s, so grey alone determines it; ",
               s->class_names[s->labels[first]]);
    printf("--grey makes all grey, if colours do not matter\n");
}

const char *list_unseen(const data_set *s, const int *seen, char to[LISTED_SIZE]) {
    enum { NAMED = 3 };
    int count = 0;
    size_t n = 0;
    *to = 0;
    for (int k = 0; k < s->classes && count <= NAMED; k++) {
        if (seen[k]) continue;
        const char *name = count < NAMED ? s->class_names[k] : "..";
        n += (size_t)snprintf(to + n, LISTED_SIZE - n, "%s%.40s", count ? ", " : "", name);
        count++;
    }
    return to;
}

void note_few_calibrate(FILE *to, const char *name, int n, const char *kind) {
    if (n < 2) return;
    if (n < LEAST_CALIBRATED)
        fprintf(to, "%s: only %d %s calibrate familiarity: 1 in %d usual %s may be called strange; "
                "1 in 100 needs at least %d %s, and about 500 to be reliable (jem train --n-valid "
                "N)\n", name, n, kind, n + 1, kind, LEAST_CALIBRATED, kind);
    else if (n < FEW_CALIBRATED)
        fprintf(to, "%s: %d %s calibrate familiarity: more than 1%% of usual %s may be called "
                "strange; 1%% needs about 500 (jem train --n-valid N)\n", name, n, kind, kind);
}

void print_chance(FILE *to, int judged, int n, const char *kind) {
    const double by_chance = round((double)judged / (n + 1));
    const double usually = round(.01 * judged);
    if (n < 2 || n >= LEAST_CALIBRATED || by_chance <= usually) return;
    fprintf(to, "; about %.0f of %d usual %s may be strange by chance (%d calibration %s); with "
            "at least %d, about %.0f", by_chance, judged, kind, n, kind, LEAST_CALIBRATED, usually);
}
