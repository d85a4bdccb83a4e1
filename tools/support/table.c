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
static const size_t MOST_BYTES = 1000000000;

typedef struct reader {
    table *t;
    const char *at, *end, *path;
    int line, label_at;                            /* label_at: column of labels, or -1 */
    int all;                                       /* columns of a line, with labels; 0: not known */
    size_t room;                                   /* rows for which there is memory */
    char *error;
    size_t error_size;
} reader;

#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
static int fail(reader *r, const char *format, ...) {
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
static int next_value(reader *r, char value[VALUE]) {
    int n = 0;
    int quoted = 0;
    while (r->at < r->end && *r->at == ' ') r->at++;
    for (; r->at < r->end && !is_line_end(*r->at); r->at++) {
        if (*r->at == '"') quoted = !quoted;
        else if (is_separator(*r->at) && !quoted) break;
        else if (!*r->at || n == VALUE - 1) return fail(r, "a value is too long, or not text");
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
static int continues(reader *r) {
    if (r->at == r->end || !is_separator(*r->at)) return 0;
    r->at++;
    return 1;
}

/* Moves to the first line that is not empty. */
static int next_line(reader *r) {
    while (r->at < r->end && (is_line_end(*r->at) || *r->at == ' ')) {
        r->line += *r->at == '\n';
        r->at++;
    }
    return r->at < r->end;
}

/* Counts the columns of the first line, and takes their names if it has any that is no number. */
static int read_header(reader *r) {
    const char *start = r->at;
    static const char label[] = "label";
    int numbers = 1;
    char value[VALUE];
    double number;
    r->t->names = (char (*)[TABLE_NAME])calloc(TABLE_COLUMNS + 1, sizeof *r->t->names);
    if (!r->t->names) return fail(r, "no memory");
    do {
        if (r->all > TABLE_COLUMNS) return fail(r, "more than %d columns", TABLE_COLUMNS);
        if (!next_value(r, value)) return 0;
        numbers &= number_in(value, &number);
        if (!strcmp(value, label)) r->label_at = r->all;
        else {
            jem_mask_controls(value, 0);
            snprintf(r->t->names[r->t->columns++], TABLE_NAME, "%.31s", value);
        }
        r->all++;
    } while (continues(r));
    if (r->t->columns > TABLE_COLUMNS) return fail(r, "more than %d columns", TABLE_COLUMNS);
    if (r->t->columns < 1) return fail(r, "no column but the label");
    if (!numbers) return 1;
    r->at = start;
    for (int i = 0; i < r->t->columns; i++) snprintf(r->t->names[i], TABLE_NAME, "%d", i + 1);
    return 1;
}

/* Makes room for one more row. */
static int grow(reader *r) {
    table *t = r->t;
    if ((size_t)t->rows < r->room) return 1;
    const size_t room = r->room ? 2 * r->room : 64;
    float *x = (float *)realloc(t->x, room * (size_t)t->columns * sizeof *x);
    if (x) t->x = x;
    int *labels = (int *)realloc(t->labels, room * sizeof *labels);
    if (labels) t->labels = labels;
    if (!x || !labels) return fail(r, "no memory for %.0f rows", (double)room);
    r->room = room;
    return 1;
}

static int take_label(reader *r, double number) {
    const int label = number >= 0 && number < TABLE_CLASSES ? (int)number : -1;
    if ((double)label != number)
        return fail(r, "label %g is not a whole number from 0 to %d", number, TABLE_CLASSES - 1);
    r->t->labels[r->t->rows] = label;
    if (label >= r->t->classes) r->t->classes = label + 1;
    return 1;
}

static int read_row(reader *r) {
    table *t = r->t;
    char value[VALUE];
    double number;
    int column = 0;
    int to = 0;
    if (!grow(r)) return 0;
    float *x = t->x + (size_t)t->rows * (size_t)t->columns;
    do {
        if (!next_value(r, value)) return 0;
        if (column == r->all) return fail(r, "more than %d values", r->all);
        const int is_label = column++ == r->label_at;
        if (!number_in(value, &number))
            return fail(r, "'%.20s' in column '%s' is not a number", value,
                        is_label ? "label" : t->names[to]);
        if (is_label) {
            if (!take_label(r, number)) return 0;
            continue;
        }
        if (!(fabs(number) <= 1e12))
            return fail(r, "%g in column '%s': numbers may be from -1e12 to 1e12", number,
                        t->names[to]);
        x[to++] = (float)number;
    } while (continues(r));
    if (column != r->all) return fail(r, "%d values, but %d columns", column, r->all);
    t->rows++;
    return 1;
}

int table_parse(table *t, const char *bytes, size_t n, const char *path, char *error,
                size_t error_size) {
    reader r;
    memset(t, 0, sizeof *t);
    memset(&r, 0, sizeof r);
    t->classes = 1;
    r.t = t;
    r.at = bytes;
    r.end = bytes + n;
    r.path = path;
    r.label_at = -1;
    r.line = 1;
    r.error = error;
    r.error_size = error_size;
    if (n > 2 && !memcmp(bytes, "\xef\xbb\xbf", 3)) r.at += 3;         /* the mark of UTF-8 */
    int ok = next_line(&r) && read_header(&r);
    while (ok && next_line(&r)) ok = read_row(&r);
    if (ok && t->rows) {
        if (r.label_at < 0) {
            free(t->labels);
            t->labels = NULL;
        }
        return 1;
    }
    r.line = ok || !t->names ? 0 : r.line;
    if (ok || !t->names) fail(&r, "no rows of numbers");
    table_free(t);
    return 0;
}

int table_load(table *t, const char *path, char *error, size_t error_size) {
    reader r;
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
    if (!f) return fail(&r, "cannot be opened: %s", strerror(errno));
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
    if (bad) fail(&r, "cannot be read: %s", strerror(errno));
    else if (!bytes || n == room) fail(&r, "no memory for it, or larger than 1 GB");
    else ok = table_parse(t, bytes, n, path, error, error_size);
    free(bytes);
    return ok;
}

void table_free(table *t) {
    free(t->x);
    free(t->labels);
    free(t->names);
    memset(t, 0, sizeof *t);
}
