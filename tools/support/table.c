/* CSV files: see table.h. */
#include "tools/support/table.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "jem.h"

enum { VALUE = 64 };                               /* letters of a value, and the 0 */
enum { SKIPPED = -1, LABEL = -2 };                 /* roles of columns; from 0: where it goes */
static const size_t MOST_BYTES = 1000000000;

typedef struct csv_reader {
    csv_table *t;
    const table_desc *desc;
    const char *at, *end, *path;
    int line;
    int all;                                       /* columns of a line; 0: not known */
    int role[TABLE_COLUMNS + 1];                   /* [all] */
    char (*names)[TABLE_NAME];                     /* [all] */
    char label[TABLE_NAME];                        /* name of the column of labels, or "" */
    int texts;                                     /* distinct labels, as text: t->class_names */
    int is_text;                                   /* 1: one of them is no number */
    size_t room;                                   /* rows for which there is memory */
    char *error;
    size_t error_size;
} csv_reader;

#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
static int wrong_at(csv_reader *r, const char *format, ...) {
    char reason[160];
    va_list args;
    va_start(args, format);
    vsnprintf(reason, sizeof reason, format, args);
    va_end(args);
    if (r->line) snprintf(r->error, r->error_size, "%s, line %d: %s", r->path, r->line, reason);
    else snprintf(r->error, r->error_size, "%s: %s", r->path, reason);
    if (r->error_size) jem_mask_controls(r->error, 0);
    return 0;
}

static int is_separator(char c) { return c == ',' || c == ';' || c == '\t'; }
static int is_line_end(char c) { return c == '\n' || c == '\r'; }

/* Reads the next value of the line, without blanks and quotes around it. Returns 0 if it is too
   long or holds a zero byte. */
static int next_value(csv_reader *r, char value[VALUE]) {
    int n = 0;
    int quoted = 0;
    while (r->at < r->end && *r->at == ' ') r->at++;
    for (; r->at < r->end && !is_line_end(*r->at); r->at++) {
        if (*r->at == '"') quoted = !quoted;
        else if (is_separator(*r->at) && !quoted) break;
        else if (!*r->at || n == VALUE - 1) return wrong_at(r, "a value is too long, or not text");
        else value[n++] = *r->at;
    }
    while (n > 0 && value[n - 1] == ' ') n--;
    value[n] = 0;
    return 1;
}

/* Returns 1 and the number if all of the text is one. */
static int number_in(const char *text, double *value) {
    char *end;
    *value = strtod(text, &end);
    return end != text && !*end;
}

/* Is there another value on this line? Skips the separator. */
static int continues(csv_reader *r) {
    if (r->at == r->end || !is_separator(*r->at)) return 0;
    r->at++;
    return 1;
}

/* Moves to the first line that is not empty. */
static int next_line(csv_reader *r) {
    while (r->at < r->end && (is_line_end(*r->at) || *r->at == ' ')) {
        r->line += *r->at == '\n';
        r->at++;
    }
    return r->at < r->end;
}

/* Copies a name without control characters, cut between letters of UTF-8. */
static void copy_name(char to[TABLE_NAME], const char *name) {
    size_t n = strlen(name);
    if (n >= TABLE_NAME) n = TABLE_NAME - 1;
    while (n > 0 && ((unsigned char)name[n] & 0xc0) == 0x80) n--;
    memcpy(to, name, n);
    to[n] = 0;
    jem_mask_controls(to, 0);
}

/* Returns the column of this name, or -1. */
static int column_of(const csv_reader *r, const char *name) {
    char cut[TABLE_NAME];
    copy_name(cut, name);
    for (int i = 0; i < r->all; i++)
        if (!strcmp(r->names[i], cut)) return i;
    return -1;
}

/* Gives the column of labels its role. */
static int find_label(csv_reader *r) {
    const char *asked = r->desc->label;
    const char *name = asked && *asked ? asked : "label";
    const int is_extra = !r->desc->label_optional || r->all > r->desc->n_columns;
    int at = column_of(r, name);
    if (at < 0 && asked && !strcmp(asked, "last") && is_extra) at = r->all - 1;
    if (asked && !strcmp(asked, "none")) {
        if (at < 0) at = column_of(r, "label");
        if (at >= 0) r->role[at] = SKIPPED;
        return 1;
    }
    if (at < 0 && r->desc->label_optional) return 1;
    if (at < 0 && asked && *asked) {
        return wrong_at(r, "has no column '%.31s' of labels (its columns: %.31s%s%.31s%s)", asked,
                    r->names[0], r->all > 1 ? ", " : "", r->all > 1 ? r->names[1] : "",
                    r->all > 2 ? ", ..." : "");
    }
    if (at < 0) return 1;
    r->role[at] = LABEL;
    memcpy(r->label, r->names[at], TABLE_NAME);
    return 1;
}

/* Gives the columns that are to be skipped their role. */
static int find_dropped(csv_reader *r) {
    const char *drop = r->desc->drop;
    while (drop && *drop) {
        char name[VALUE];
        const size_t n = strcspn(drop, ",");
        snprintf(name, sizeof name, "%.*s", n < VALUE ? (int)n : VALUE - 1, drop);
        const int at = column_of(r, name);
        if (at < 0) return wrong_at(r, "has no column '%.31s' to drop", name);
        if (r->role[at] == LABEL) return wrong_at(r, "'%.31s' has the labels: it is needed", name);
        r->role[at] = SKIPPED;
        drop += n;
        drop += *drop == ',';
    }
    return 1;
}

/* Gives the columns that the desc lists their places, and the role of being skipped to the others.
   Without a header, there must be as many as the desc lists. */
static int find_columns(csv_reader *r, int has_header) {
    const table_desc *d = r->desc;
    const int by_name = has_header && d->columns;
    int values = 0;
    for (int i = 0; i < r->all; i++) values += r->role[i] >= 0;
    for (int i = 0; !by_name && i < r->all; i++)
        if (r->role[i] >= 0) r->role[i] = r->t->columns++;
    if (!by_name && values != d->n_columns)
        return wrong_at(r, "%d columns of values, but the model has %d", values, d->n_columns);
    if (!by_name) return 1;
    for (int i = 0; i < r->all; i++)
        if (r->role[i] >= 0) r->role[i] = SKIPPED;
    for (int k = 0; k < d->n_columns; k++) {
        const int at = column_of(r, d->columns[k]);
        if (at < 0) return wrong_at(r, "has no column '%.31s', which the model needs", d->columns[k]);
        if (r->role[at] != SKIPPED)
            return wrong_at(r, "column '%.31s' has two uses", d->columns[k]);
        r->role[at] = k;
    }
    r->t->columns = d->n_columns;
    return 1;
}

/* Gives every column its role. */
static int find_roles(csv_reader *r, int has_header) {
    csv_table *t = r->t;
    if (!find_label(r) || !find_dropped(r)) return 0;
    if (r->desc->n_columns > 0) {
        if (!find_columns(r, has_header)) return 0;
    } else {
        for (int i = 0; i < r->all; i++)
            if (r->role[i] >= 0) r->role[i] = t->columns++;
    }
    if (t->columns < 1) return wrong_at(r, "no column but the label");
    if (t->columns > TABLE_COLUMNS) return wrong_at(r, "more than %d columns", TABLE_COLUMNS);
    for (int i = 0; i < r->all; i++)
        if (r->role[i] >= 0) memcpy(t->names[r->role[i]], r->names[i], TABLE_NAME);
    return 1;
}

/* Counts the columns of the first line, and takes their names if it has a text that is not the
   label of a row. */
static int read_header(csv_reader *r) {
    const char *start = r->at;
    int texts = 0;
    int text_at = 0;
    char value[VALUE];
    double number;
    r->names = (char (*)[TABLE_NAME])calloc(TABLE_COLUMNS + 1, sizeof *r->names);
    r->t->names = (char (*)[TABLE_NAME])calloc(TABLE_COLUMNS + 1, sizeof *r->t->names);
    if (!r->names || !r->t->names) return wrong_at(r, "no memory");
    do {
        if (r->all > TABLE_COLUMNS) return wrong_at(r, "more than %d columns", TABLE_COLUMNS);
        if (!next_value(r, value)) return 0;
        if (!number_in(value, &number)) {
            texts++;
            text_at = r->all;
        }
        copy_name(r->names[r->all++], value);
    } while (continues(r));
    /* if the only text is a label, it belongs to a row */
    const char *label = r->desc->label;
    const int label_at = label ? (strcmp(label, "last") ? atoi(label) : r->all) - 1 : -1;
    const int has_header = texts > (label_at >= 0 && text_at == label_at);
    if (!has_header) {
        r->at = start;
        for (int i = 0; i < r->all; i++) snprintf(r->names[i], TABLE_NAME, "%d", i + 1);
    }
    return find_roles(r, has_header);
}

/* Makes room for one more row. */
static int grow(csv_reader *r) {
    csv_table *t = r->t;
    if ((size_t)t->rows < r->room) return 1;
    const size_t room = r->room ? 2 * r->room : 64;
    float *x = (float *)realloc(t->x, room * (size_t)t->columns * sizeof *x);
    if (x) t->x = x;
    int *labels = (int *)realloc(t->labels, room * sizeof *labels);
    if (labels) t->labels = labels;
    if (!x || !labels) return wrong_at(r, "no memory for %.0f rows", (double)room);
    r->room = room;
    return 1;
}

/* Returns the number of a label's text, which is new or known. */
static int class_numbered(csv_reader *r, const char *text) {
    csv_table *t = r->t;
    char name[TABLE_NAME];
    copy_name(name, text);
    const int before = t->rows > 0 ? t->labels[t->rows - 1] : 0;
    if (r->texts > 0 && !strcmp(t->class_names[before], name)) return before;
    for (int i = 0; i < r->texts; i++)
        if (!strcmp(t->class_names[i], name)) return i;
    if (r->texts == TABLE_CLASSES) {
        wrong_at(r, "more than %d classes in column '%s'", TABLE_CLASSES, r->label);
        return -1;
    }
    memcpy(t->class_names[r->texts], name, TABLE_NAME);
    return r->texts++;
}

static int take_label(csv_reader *r, const char *text) {
    csv_table *t = r->t;
    double number;
    if (!t->class_names)
        t->class_names = (char (*)[TABLE_NAME])calloc(TABLE_CLASSES, sizeof *t->class_names);
    if (!t->class_names) return wrong_at(r, "no memory");
    if (!*text) return wrong_at(r, "column '%s' has no label", r->label);
    if (!number_in(text, &number)) r->is_text = 1;
    else if (!(number >= 0 && number < TABLE_CLASSES && floor(number) == number))
        return wrong_at(r, "label %g is not a whole number from 0 to %d", number, TABLE_CLASSES - 1);
    const int label = class_numbered(r, text);
    t->labels[t->rows] = label;
    return label >= 0;
}

static int by_name(const void *a, const void *b) {
    return strcmp((const char *)a, (const char *)b);
}

/* Numbers the classes: as their texts say if all are numbers, otherwise in the order of their
   names. */
static int number_classes(csv_reader *r) {
    csv_table *t = r->t;
    char (*sorted)[TABLE_NAME] = (char (*)[TABLE_NAME])malloc((size_t)r->texts * sizeof *sorted);
    int *to = (int *)malloc((size_t)r->texts * sizeof *to);
    if (sorted && to) {
        memcpy(sorted, t->class_names, (size_t)r->texts * sizeof *sorted);
        qsort(sorted, (size_t)r->texts, sizeof *sorted, by_name);
        t->classes = r->texts;
        for (int i = 0; i < r->texts; i++) {
            char *name = t->class_names[i];
            const char *at = (const char *)bsearch(name, sorted, (size_t)r->texts, sizeof *sorted,
                                                   by_name);
            to[i] = r->is_text ? (int)((size_t)(at - *sorted) / sizeof *sorted)
                               : (int)strtod(name, NULL);
            if (to[i] >= t->classes) t->classes = to[i] + 1;
        }
        for (int i = 0; i < t->rows; i++) t->labels[i] = to[t->labels[i]];
        memcpy(t->class_names, sorted, (size_t)r->texts * sizeof *sorted);
    }
    const int ok = sorted && to;
    free(sorted);
    free(to);
    if (r->is_text || !ok) return ok || wrong_at(r, "no memory");
    free(t->class_names);
    t->class_names = NULL;
    return 1;
}

static int read_row(csv_reader *r) {
    csv_table *t = r->t;
    char value[VALUE];
    double number;
    int column = 0;
    if (!grow(r)) return 0;
    float *x = t->x + (size_t)t->rows * (size_t)t->columns;
    do {
        if (!next_value(r, value)) return 0;
        if (column == r->all) return wrong_at(r, "more than %d values", r->all);
        const char *name = r->names[column];
        const int role = r->role[column++];
        if (role == LABEL && !take_label(r, value)) return 0;
        if (role < 0) continue;
        if (!number_in(value, &number))
            return wrong_at(r, "'%.20s' in column '%s' is not a number", value, name);
        if (!(fabs(number) <= 1e12))
            return wrong_at(r, "%g in column '%s': numbers may be from -1e12 to 1e12", number, name);
        x[role] = (float)number;
    } while (continues(r));
    if (column != r->all) return wrong_at(r, "%d values, but %d columns", column, r->all);
    t->rows++;
    return 1;
}

int table_parse(csv_table *t, const char *bytes, size_t n, const char *path, const table_desc *desc,
                char *error, size_t error_size) {
    static const table_desc usual = { NULL, 0, NULL, NULL, 0 };
    csv_reader r;
    memset(t, 0, sizeof *t);
    memset(&r, 0, sizeof r);
    t->classes = 1;
    r.t = t;
    r.desc = desc ? desc : &usual;
    r.at = bytes;
    r.end = bytes + n;
    r.path = path;
    r.line = 1;
    r.error = error;
    r.error_size = error_size;
    if (n > 2 && !memcmp(bytes, "\xef\xbb\xbf", 3)) r.at += 3;         /* the mark of UTF-8 */
    int ok = next_line(&r) && read_header(&r);
    while (ok && next_line(&r)) ok = read_row(&r);
    if (ok && t->rows && *r.label) ok = number_classes(&r);
    free(r.names);
    if (ok && t->rows) {
        if (!*r.label) {
            free(t->labels);
            t->labels = NULL;
        }
        return 1;
    }
    r.line = ok || !t->names ? 0 : r.line;
    if (ok || !t->names) wrong_at(&r, "no rows of numbers");
    table_free(t);
    return 0;
}

int table_load(csv_table *t, const char *path, const table_desc *desc, char *error,
               size_t error_size) {
    csv_reader r;
    char *bytes = NULL;
    size_t n = 0;
    size_t room = 65536;
    memset(t, 0, sizeof *t);
    memset(&r, 0, sizeof r);
    r.path = path;
    r.error = error;
    r.error_size = error_size;
    errno = 0;
    FILE *f = fopen(path, "rb");
    if (!f) return wrong_at(&r, "cannot be opened: %s", strerror(errno));
    for (;;) {
        char *more = (char *)realloc(bytes, room);
        if (!more) break;
        bytes = more;
        n += fread(bytes + n, 1, room - n, f);
        if (n < room || n > MOST_BYTES) break;
        room *= 2;
    }
    const int bad = ferror(f) != 0;
    fclose(f);
    int ok = 0;
    if (bad) wrong_at(&r, "cannot be read: %s", strerror(errno));
    else if (!bytes || n == room) wrong_at(&r, "no memory for it, or larger than 1 GB");
    else ok = table_parse(t, bytes, n, path, desc, error, error_size);
    free(bytes);
    return ok;
}

void table_free(csv_table *t) {
    free(t->x);
    free(t->labels);
    free(t->names);
    free(t->class_names);
    memset(t, 0, sizeof *t);
}
