/* CSV files: see table.h. */
#include "tools/support/table.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "jem.h"

enum { SKIPPED = -1, LABEL = -2 };                 /* roles of columns; from 0: where it goes */
static const size_t MOST_BYTES = 1000000000;

struct table_reader {
    csv_table *t;
    const table_desc *desc;
    const char *at, *end, *path;                   /* at .. end: lines to read, whole ones */
    char *kept;                                    /* bytes that arrived, the first of a line */
    size_t n_kept;
    char separator;
    int started;                                   /* 1: the first bytes are read */
    int failed;                                    /* 1: an error that is not of a single row */
    int line;
    int all;                                       /* columns of a line; 0: not known */
    int role[TABLE_COLUMNS + 1];                   /* [all] */
    char dropped[TABLE_COLUMNS + 1];               /* [all]: 1: --drop skips it */
    int keep[TABLE_COLUMNS + 1], n_keep;           /* columns for t->kept */
    size_t kept_used, kept_room;                   /* bytes of t->kept */
    char (*names)[TABLE_NAME];                     /* [all] */
    int has_label;                                 /* 1: a column has labels */
    int after_return;                              /* 1: the last line so far ends in \r, and a \n
                                                      may follow */
    int texts;                                     /* distinct labels, as text: t->class_names */
    int is_text;                                   /* 1: one of them is no number */
    size_t room, label_room;                       /* rows and labels for which there is memory */
    char *error;
    size_t error_size;
};

#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
static int wrong_at(table_reader *r, const char *format, ...) {
    char reason[480];
    va_list args;
    va_start(args, format);
    vsnprintf(reason, sizeof reason, format, args);
    va_end(args);
    if (r->line) snprintf(r->error, r->error_size, "%s, line %d: %s", r->path, r->line, reason);
    else snprintf(r->error, r->error_size, "%s: %s", r->path, reason);
    if (r->error_size) jem_mask_controls(r->error, 0);
    return 0;
}

static int is_line_end(char c) { return c == '\n' || c == '\r'; }

/* Finds the separator of the first line: a tab, otherwise a semicolon, otherwise a comma. Where one
   of the first two separates, a comma belongs to a name or is a decimal one. */
static char separator_of(const table_reader *r) {
    char separator = ',';
    int quoted = 0;
    int begins = 1;                                /* a value, so a quote counts */
    for (const char *c = r->at; c < r->end && !is_line_end(*c); c++) {
        if (*c == '"' && (begins || quoted)) quoted = !quoted;
        begins = !quoted && (strchr(",;\t", *c) || (begins && *c == ' '));
        if (quoted) continue;
        if (*c == '\t') return '\t';
        if (*c == ';') separator = ';';
    }
    return separator;
}

enum { VALUE_READ, VALUE_LONG, VALUE_BINARY, VALUE_OPEN };

/* Reads the next value of the line, without blanks and quotes around it, into value[room], or only
   moves past it (NULL; any length and bytes). Quotes count at its beginning: 5" is a text. Stops
   where it becomes too long, or at a zero byte. VALUE_OPEN: the line ends within quotes. */
static int take_value(table_reader *r, char *value, size_t room) {
    size_t n = 0;
    int found = VALUE_READ;
    while (r->at < r->end && *r->at == ' ') r->at++;
    int quoted = r->at < r->end && *r->at == '"';
    if (quoted) r->at++;
    for (; r->at < r->end && !is_line_end(*r->at); r->at++) {
        const int is_doubled = quoted && r->at + 1 < r->end && r->at[1] == '"';
        if (quoted && *r->at == '"' && !is_doubled) {
            quoted = 0;
            continue;
        }
        if (*r->at == '"') r->at += is_doubled;    /* "" within quotes is a quote (RFC 4180) */
        if (*r->at == r->separator && !quoted) break;
        if (!value) continue;
        if (!*r->at) found = VALUE_BINARY;
        else if (n == room - 1) found = VALUE_LONG;
        if (found != VALUE_READ) break;
        value[n++] = *r->at;
    }
    while (n > 0 && value[n - 1] == ' ') n--;
    if (value) value[n] = 0;
    return quoted && found == VALUE_READ ? VALUE_OPEN : found;
}

/* Returns 1 if a value was found; otherwise reports that it is too long, holds a zero byte, or does
   not end. */
static int is_value(table_reader *r, const char *column, int found) {
    if (found == VALUE_OPEN)
        return wrong_at(r, "column '%s': a quoted value does not end in its line", column);
    if (found == VALUE_BINARY) return wrong_at(r, "column '%s': a value is not text", column);
    if (found == VALUE_LONG)
        return wrong_at(r, "column '%s': a value is longer than %d bytes (--drop skips a column)",
                        column, TABLE_NAME - 1);
    return 1;
}

/* Reads the next value of the line. Returns 0 if it is too long, holds a zero byte, or does not
   end; `column` is for that message. */
static int next_value(table_reader *r, const char *column, char value[TABLE_NAME]) {
    return is_value(r, column, take_value(r, value, TABLE_NAME));
}

/* Reads the next value of the line; cuts one that is too long. */
static int next_value_cut(table_reader *r, const char *column, char value[TABLE_NAME]) {
    const char *start = r->at;
    int found = take_value(r, value, TABLE_NAME);
    if (found == VALUE_LONG) {
        r->at = start;                             /* which may be a quote */
        found = take_value(r, NULL, 0);
    }
    return is_value(r, column, found);
}

/* Returns 1 and the number if all of the text is one. */
static int number_in(const char *text, double *value) {
    char *end;
    *value = strtod(text, &end);
    return end != text && !*end;
}

/* The same where a comma can be a decimal one, because another letter separates values. */
static int decimal_in(const table_reader *r, const char *text, double *value) {
    char pointed[TABLE_NAME];
    const char *comma = r->separator == ',' ? NULL : strchr(text, ',');
    *value = 0;
    if (!comma) return number_in(text, value);
    if (strchr(text, '.')) return 0;               /* one of them is between thousands */
    snprintf(pointed, sizeof pointed, "%s", text);
    pointed[comma - text] = '.';
    return number_in(pointed, value);
}

/* Returns 1 if another value of this line follows, and skips the separator. */
static int continues(table_reader *r) {
    if (r->at == r->end || *r->at != r->separator) return 0;
    r->at++;
    return 1;
}

/* Moves to the first line that is not empty. */
static int next_line(table_reader *r) {
    while (r->at < r->end && (is_line_end(*r->at) || *r->at == ' ')) {
        const int is_pair = *r->at == '\r' && r->at + 1 < r->end && r->at[1] == '\n';
        r->line += *r->at == '\n' || (*r->at == '\r' && !is_pair);
        r->at++;
    }
    return r->at < r->end;
}

/* Copies a name without control characters, cut between letters of UTF-8. Returns 0 if some of its
   bytes are not UTF-8: each becomes '?'. */
static int copy_name(char to[TABLE_NAME], const char *name) {
    size_t n = strlen(name);
    if (n >= TABLE_NAME) n = TABLE_NAME - 1;
    while (n > 0 && ((unsigned char)name[n] & 0xc0) == 0x80) n--;
    memcpy(to, name, n);
    to[n] = 0;
    jem_mask_controls(to, 0);
    for (size_t i = 0; i < n; i++)
        if (to[i] == '?' && (unsigned char)name[i] >= 0x80) return 0;
    return 1;
}

/* Returns the column of this name, or -1. */
static int column_of(const table_reader *r, const char *name) {
    char cut[TABLE_NAME];
    copy_name(cut, name);
    for (int i = 0; i < r->all; i++)
        if (!strcmp(r->names[i], cut)) return i;
    return -1;
}

/* Returns another column with the name of this one, which --drop does not skip; -1: none. */
static int namesake_of(const table_reader *r, int column) {
    for (int i = 0; i < r->all; i++)
        if (i != column && !r->dropped[i] && !strcmp(r->names[i], r->names[column])) return i;
    return -1;
}

/* Reports two columns of one name. */
static int two_named(table_reader *r, int a, int b, const char *remedy) {
    const int first = a < b ? a : b;
    return wrong_at(r, "columns %d and %d are both named '%.31s': %s", first + 1, a + b - first + 1,
                    r->names[a], remedy);
}

/* Returns the column of this number from 1, or the "last" one, or -1. A column whose name the desc
   lists holds values, so it is not the label: the file may have its columns in another order. */
static int column_placed(const table_reader *r, const char *place) {
    int at = r->all - 1;
    if (strcmp(place, "last")) at = place[strspn(place, "0123456789")] ? -1 : atoi(place) - 1;
    if (at < 0 || at >= r->all) return -1;
    for (int k = 0; r->desc->label_optional && r->desc->columns && k < r->desc->n_columns; k++)
        if (!strcmp(r->names[at], r->desc->columns[k])) return -1;
    return at;
}

/* Reports a column that the table does not have, and those that it has. */
static int no_column(table_reader *r, const char *name, const char *use) {
    enum { MOST = 240 };                           /* bytes of the list */
    char list[MOST + 2 * TABLE_NAME + 8] = "";
    char quoted[2 * TABLE_NAME + 3];
    size_t n = 0;
    for (int i = 0; i < r->all; i++) {
        if (n > MOST) {
            snprintf(list + n, sizeof list - n, ", ...");
            break;
        }
        table_quote(r->names[i], quoted);
        n += (size_t)snprintf(list + n, sizeof list - n, "%s%s", i ? ", " : "",
                              *quoted ? quoted : "''");
    }
    return wrong_at(r, "has no column '%.31s'%s (its columns: %s)", name, use, list);
}

int next_name(const char **list, const char *between, char *name, size_t size) {
    const char *c = *list;
    size_t n = 0;
    while (*c == ' ' || (*c && strchr(between, *c))) c++;
    if (!*c) return 0;
    const int quoted = *c == '"';
    c += quoted;
    for (; *c && (quoted || !strchr(between, *c)); c++) {
        if (quoted && *c == '"') {
            if (c[1] != '"') break;
            c++;
        }
        if (n + 1 < size) name[n++] = *c;
    }
    while (!quoted && n > 0 && name[n - 1] == ' ') n--;
    name[n] = 0;
    *list = c + strcspn(c, between);
    return 1;
}

/* Returns the column of a name in a list, or otherwise of a number from 1; -1 after an error. */
static int column_listed(table_reader *r, const char *name, const char *use) {
    int at = column_of(r, name);
    if (at < 0 && *name && table_is_number(name)) {
        const long number = strtol(name, NULL, 10);
        if (number >= 1 && number <= r->all) at = (int)number - 1;
    }
    if (at < 0) no_column(r, name, use);
    if (at < 0 || strcmp(r->names[at], name)) return at;
    const int other = namesake_of(r, at);
    if (other < 0) return at;
    two_named(r, at, other, "rename one, or give its number");
    return -1;
}

/* Gives the column of labels its role. */
static int find_label(table_reader *r, int has_header) {
    const char *asked = has_header && r->desc->label_name ? r->desc->label_name : r->desc->label;
    const char *name = asked && *asked ? asked : "label";
    const int is_extra = !r->desc->label_optional || r->all - r->n_keep > r->desc->n_columns;
    int at = column_of(r, name);
    if (at < 0 && is_extra) at = column_placed(r, name);
    if (asked && !strcmp(asked, "none")) {
        if (at < 0) at = column_of(r, "label");
        if (at >= 0) r->role[at] = SKIPPED;
        return 1;
    }
    if (at < 0 && r->desc->label_optional) return 1;
    if (at < 0 && asked && *asked) {
        return no_column(r, asked, " of labels");
    }
    if (at < 0) return 1;
    r->role[at] = LABEL;
    memcpy(r->t->label, r->names[at], TABLE_NAME);
    r->has_label = 1;
    return 1;
}

static int is_kept(const table_reader *r, int column) {
    for (int k = 0; k < r->n_keep; k++)
        if (r->keep[k] == column) return 1;
    return 0;
}

/* Gives a column that is not to be read its role. */
static int drop_column(table_reader *r, int at) {
    if (r->role[at] == LABEL)
        return wrong_at(r, "'%.31s' has the labels: it is needed", r->names[at]);
    r->role[at] = SKIPPED;
    r->dropped[at] = 1;
    return 1;
}

/* Adds a column to those that are kept as texts. */
static int keep_column(table_reader *r, int at) {
    if (is_kept(r, at)) return wrong_at(r, "column '%.31s' is kept twice", r->names[at]);
    r->keep[r->n_keep++] = at;
    r->role[at] = SKIPPED;
    return 1;
}

/* Applies a function to each column of a list, which may be NULL. */
static int for_columns(table_reader *r, const char *list, const char *use,
                       int (*take)(table_reader *r, int at)) {
    char name[TABLE_NAME];
    while (list && next_name(&list, ",", name, sizeof name)) {
        const int at = column_listed(r, name, use);
        if (at < 0 || !take(r, at)) return 0;
    }
    return 1;
}

/* Gives the columns that the desc lists their places, and the role of being skipped to the others.
   Without a header, there must be as many as the desc lists. */
static int find_columns(table_reader *r, int has_header) {
    const table_desc *d = r->desc;
    const int by_name = has_header && d->columns;
    int values = 0;
    for (int i = 0; i < r->all; i++) values += r->role[i] >= 0;
    for (int i = 0; !by_name && i < r->all; i++)
        if (r->role[i] >= 0) r->role[i] = r->t->columns++;
    if (!by_name && values != d->n_columns)
        return wrong_at(r, "%d column%s of values%s, but the model has %d%s", values,
                        values == 1 ? "" : "s", r->n_keep ? " besides those to keep" : "",
                        d->n_columns, values == 2 * d->n_columns && r->separator == ','
                                          ? " (decimal commas? write points)" : "");
    if (!by_name) return 1;
    for (int i = 0; i < r->all; i++)
        if (r->role[i] >= 0) r->role[i] = SKIPPED;
    for (int k = 0; k < d->n_columns; k++) {
        const int at = column_of(r, d->columns[k]);
        if (at < 0) return no_column(r, d->columns[k], ", which the model needs");
        if (is_kept(r, at))
            return wrong_at(r, "column '%.31s' cannot be kept: the model judges it", d->columns[k]);
        const int other = namesake_of(r, at);
        if (other >= 0) return two_named(r, at, other, "the model needs one, so rename the other");
        if (r->role[at] != SKIPPED)
            return wrong_at(r, "column '%.31s' has two uses", d->columns[k]);
        r->role[at] = k;
    }
    r->t->columns = d->n_columns;
    return 1;
}

/* Gives every column its role. */
static int find_roles(table_reader *r, int has_header) {
    csv_table *t = r->t;
    if (!for_columns(r, r->desc->keep, " to keep", keep_column) || !find_label(r, has_header) ||
        !for_columns(r, r->desc->drop, " to drop", drop_column))
        return 0;
    const int is_new = !r->desc->n_columns;        /* the names are not those of a model */
    if (!is_new) {
        if (!find_columns(r, has_header)) return 0;
    } else {
        for (int i = 0; i < r->all; i++)
            if (r->role[i] >= 0) r->role[i] = t->columns++;
    }
    if (t->columns < 1) return wrong_at(r, "no column but the label");
    if (t->columns > TABLE_COLUMNS) return wrong_at(r, "more than %d columns", TABLE_COLUMNS);
    for (int i = 0; i < r->all; i++) {
        if (r->role[i] < 0) continue;
        if (is_new && !*r->names[i])
            return wrong_at(r, "column %d has no name: name it, or skip it (--drop %d)", i + 1,
                            i + 1);
        const int other = is_new ? namesake_of(r, i) : -1;
        if (other >= 0) return two_named(r, i, other, "rename one");
        memcpy(t->names[r->role[i]], r->names[i], TABLE_NAME);
    }
    return 1;
}

/* Returns 1 if a text is in a list, which NULL ends. */
static int is_among(const char *text, const char *const *list) {
    while (*list && strcmp(text, *list)) list++;
    return *list != NULL;
}
/* Returns 1 if a value is missing, or is a usual mark for that. */
static int is_missing(const char *text, int is_label) {
    static const char *const marks[] = { "", "?", "NA", "N/A", "#N/A", "null", "NULL", "nan", "NaN",
                                         "NAN", NULL };
    static const char *const names_of_classes[] = { "-", "none", "None", NULL };
    return is_among(text, marks) || (!is_label && is_among(text, names_of_classes));
}

/* Returns why a value may not be a number, and a remedy. */
static const char *reason_of_text(const table_reader *r, const char *value) {
    char pointed[TABLE_NAME];
    double number;
    snprintf(pointed, sizeof pointed, "%s", value);
    char *comma = strchr(pointed, ',');
    if (comma) *comma = '.';
    if (comma && r->separator == ',' && number_in(pointed, &number))
        return " (a decimal comma? write points)";
    if (comma && r->separator != ',' && strchr(value, '.'))
        return " (a comma and a point: write nothing between thousands)";
    if (r->all > 1) return "";
    if (r->at < r->end && *r->at == r->separator)
        return " (the first line has one column: delete lines before the names)";
    return strchr(value, ' ') ? " (separate values by commas, semicolons or tabs)" : "";
}

/* Rejects a value that should be a number. */
static int not_a_number(table_reader *r, const char *value, const char *name) {
    if (is_missing(value, 0))
        return wrong_at(r, "'%s' in column '%s' is not a number: a missing value", value, name);
    return wrong_at(r, "'%.20s' in column '%s' is not a number%s", value, name,
                    reason_of_text(r, value));
}

/* Returns the column that the desc gives by its number, or as the last; -1: by its name. */
static int place_of_label(const table_reader *r) {
    const char *label = r->desc->label;
    if (!label) return -1;
    if (!strcmp(label, "last")) return r->all - 1;
    return atoi(label) - 1;
}

size_t table_quote(const char *text, char *to) {
    char *at = to;
    const int quoted = text[strcspn(text, ",\"\r\n")] != 0;
    if (quoted) *at++ = '"';
    for (; *text; text++) {
        if (*text == '"') *at++ = '"';
        *at++ = *text;
    }
    if (quoted) *at++ = '"';
    *at = 0;
    return (size_t)(at - to);
}

/* Fails for another reason than a row's contents. */
static int no_memory(table_reader *r) {
    r->failed = 1;
    return wrong_at(r, "no memory for %d rows", r->t->rows + 1);
}

/* Reads the next value of the line and appends it to t->kept, followed by `last`. */
static int keep_value(table_reader *r, char last) {
    csv_table *t = r->t;
    const char *start = r->at;
    take_value(r, NULL, 0);
    const size_t n = (size_t)(r->at - start) + 1;
    const size_t needed = r->kept_used + 3 * n + 4;                /* quoted, and as it is read */
    if (needed > r->kept_room) {
        char *more = (char *)realloc(t->kept, 2 * needed);
        if (!more) return no_memory(r);
        t->kept = more;
        r->kept_room = 2 * needed;
    }
    char *text = t->kept + r->kept_room - n;
    r->at = start;
    take_value(r, text, n);
    jem_mask_controls(text, 0);
    r->kept_used += table_quote(text, t->kept + r->kept_used);
    t->kept[r->kept_used++] = last;
    return 1;
}

/* Appends the values of a line's columns to keep; a short line has empty ones. Does not move. */
static int keep_values(table_reader *r) {
    const char *start = r->at;
    for (int k = 0; k < r->n_keep; k++) {
        r->at = start;
        int column = 0;
        while (column < r->keep[k]) {
            take_value(r, NULL, 0);
            if (!continues(r)) break;
            column++;
        }
        if (!keep_value(r, k + 1 < r->n_keep ? ',' : 0)) return 0;
    }
    r->at = start;
    return 1;
}

/* Sets t->kept_names; r->at is the first line. */
static int keep_names(table_reader *r, int has_header) {
    csv_table *t = r->t;
    const char *start = r->at;
    const char *end = r->end;
    char numbers[16];
    for (int k = 0; !has_header && k < r->n_keep; k++) {
        snprintf(numbers, sizeof numbers, "%d", r->keep[k] + 1);
        r->at = numbers;
        r->end = numbers + strlen(numbers);
        if (!keep_value(r, k + 1 < r->n_keep ? ',' : 0)) return 0;
    }
    r->at = start;
    r->end = end;
    if (has_header && !keep_values(r)) return 0;
    t->kept_names = t->kept;
    t->kept = NULL;
    r->kept_used = 0;
    r->kept_room = 0;
    return 1;
}

/* Returns 1 if a list of columns has a column's number. */
static int has_number(const char *list, int column) {
    char name[TABLE_NAME];
    while (list && next_name(&list, ",", name, sizeof name))
        if (table_is_number(name) && strtol(name, NULL, 10) == column + 1) return 1;
    return 0;
}

/* Counts the columns of the first line, and takes their names if it has a text that is neither the
   label of a row nor, in a column that is dropped or kept by its number, a text with a digit. */
static int read_header(table_reader *r) {
    const char *start = r->at;
    int texts = 0;
    int text_at = 0;
    int is_utf8 = 1;
    char value[TABLE_NAME];
    double number;
    r->names = (char (*)[TABLE_NAME])calloc(TABLE_COLUMNS + 1, sizeof *r->names);
    r->t->names = (char (*)[TABLE_NAME])calloc(TABLE_COLUMNS + 1, sizeof *r->t->names);
    if (!r->names || !r->t->names) return wrong_at(r, "no memory");
    r->separator = separator_of(r);
    do {
        if (r->all > TABLE_COLUMNS) return wrong_at(r, "more than %d columns", TABLE_COLUMNS);
        char column[16];
        snprintf(column, sizeof column, "%d", r->all + 1);
        const int is_listed = has_number(r->desc->drop, r->all) ||
                              has_number(r->desc->keep, r->all);
        if (is_listed ? !next_value_cut(r, column, value) : !next_value(r, column, value)) return 0;
        const int is_text = !decimal_in(r, value, &number) && !is_missing(value, 0);
        const int has_digit = value[strcspn(value, "0123456789")] != 0;
        if (is_text && !(is_listed && has_digit)) {        /* 12:30 and P-07 are of a row */
            texts++;
            text_at = r->all;
        }
        const int may_be_cut = strlen(value) >= TABLE_NAME - 1;      /* within a letter */
        is_utf8 &= copy_name(r->names[r->all++], value) || may_be_cut;
    } while (continues(r));
    /* if the only text is a label, it belongs to a row */
    const int label_at = place_of_label(r);
    const int has_header = texts > (label_at >= 0 && text_at == label_at);
    const char *values = has_header ? r->at : start;
    r->t->masked = has_header && !is_utf8;
    if (!has_header) {
        for (int i = 0; i < r->all; i++) snprintf(r->names[i], TABLE_NAME, "%d", i + 1);
    }
    r->at = start;
    const int ok = find_roles(r, has_header) && (!r->n_keep || keep_names(r, has_header));
    r->at = values;
    return ok;
}

/* Makes room for one more row. */
static int grow(table_reader *r) {
    csv_table *t = r->t;
    if ((size_t)(t->rows - t->first) >= r->room) {
        const size_t room = r->room ? 2 * r->room : 64;
        float *x = (float *)realloc(t->x, room * (size_t)t->columns * sizeof *x);
        if (!x) return no_memory(r);
        t->x = x;
        r->room = room;
    }
    if (r->has_label && (size_t)t->rows >= r->label_room) {
        const size_t room = r->label_room ? 2 * r->label_room : 64;
        int *labels = (int *)realloc(t->labels, room * sizeof *labels);
        if (!labels) return no_memory(r);
        t->labels = labels;
        r->label_room = room;
    }
    return 1;
}

/* Returns the number of a label's text, which is new or known; -1 if there are too many, which is
   an error unless any label is accepted. */
static int class_numbered(table_reader *r, const char *text) {
    csv_table *t = r->t;
    char name[TABLE_NAME];
    copy_name(name, text);
    const int before = t->rows > 0 ? t->labels[t->rows - 1] : 0;
    if (before >= 0 && before < r->texts && !strcmp(t->class_names[before], name)) return before;
    for (int i = 0; i < r->texts; i++)
        if (!strcmp(t->class_names[i], name)) return i;
    if (r->texts == TABLE_CLASSES && r->desc->any_label) return -1;
    if (r->texts == TABLE_CLASSES) {
        r->failed = 1;
        wrong_at(r, "more than %d classes in column '%s'", TABLE_CLASSES, r->t->label);
        return -1;
    }
    memcpy(t->class_names[r->texts], name, TABLE_NAME);
    return r->texts++;
}

static int take_label(table_reader *r, const char *text) {
    csv_table *t = r->t;
    double number;
    if (!t->class_names)
        t->class_names = (char (*)[TABLE_NAME])calloc(TABLE_CLASSES, sizeof *t->class_names);
    if (!t->class_names) return no_memory(r);
    const int is_number = decimal_in(r, text, &number) && fabs(number) <= 1e15; /* not a long id */
    const int is_class = floor(number) == number;
    char whole[TABLE_NAME];
    if (is_number && is_class && strpbrk(text, ".,eE")) {      /* 1.0, as pandas writes it, is 1 */
        snprintf(whole, sizeof whole, "%.0f", number + 0.0);
        text = whole;
    }
    const int is_none = is_missing(text, 1);
    const int is_known = !is_none && (!is_number || is_class);
    const int label = is_known ? class_numbered(r, text) : -1;
    if (label < 0 && r->desc->any_label) {         /* only the row's values count */
        t->labels[t->rows] = -1;
        t->unlabelled++;
        return 1;
    }
    if (is_none) return wrong_at(r, "column '%s' has no label", r->t->label);
    if (!is_known)
        return wrong_at(r, "label %g is not a whole number (--label none uses no labels)", number);
    if (!is_number) r->is_text = 1;
    t->labels[t->rows] = label;
    return label >= 0;
}

static int by_name(const void *a, const void *b) {
    return strcmp((const char *)a, (const char *)b);
}

static int by_number(const void *a, const void *b) {
    const double x = strtod((const char *)a, NULL);
    const double y = strtod((const char *)b, NULL);
    return (x > y) - (x < y);
}

/* Numbers the classes that occur, from 0: in the order of the numbers if all labels are numbers (1
   and 1.0 are the same), otherwise in the order of their names. */
static int number_classes(table_reader *r) {
    csv_table *t = r->t;
    int (*const compare)(const void *, const void *) = r->is_text ? by_name : by_number;
    if (!r->texts) {                               /* all labels are missing, or unreadable */
        free(t->class_names);
        t->class_names = NULL;
        return 1;
    }
    char (*sorted)[TABLE_NAME] = (char (*)[TABLE_NAME])malloc((size_t)r->texts * sizeof *sorted);
    int *to = (int *)malloc((size_t)r->texts * sizeof *to);
    const int ok = sorted && to;
    t->classes = 0;
    if (ok) {
        memcpy(sorted, t->class_names, (size_t)r->texts * sizeof *sorted);
        qsort(sorted, (size_t)r->texts, sizeof *sorted, compare);
        for (int i = 0; i < r->texts; i++) {
            const int n = t->classes;
            if (n > 0 && !compare(sorted[n - 1], sorted[i])) continue;
            memmove(sorted[n], sorted[i], sizeof *sorted);
            t->classes++;
        }
        for (int i = 0; i < r->texts; i++) {
            const char *at = (const char *)bsearch(t->class_names[i], sorted, (size_t)t->classes,
                                                   sizeof *sorted, compare);
            to[i] = (int)((size_t)(at - *sorted) / sizeof *sorted);
        }
        for (int i = 0; i < t->rows; i++)
            if (t->labels[i] >= 0) t->labels[i] = to[t->labels[i]];
        memcpy(t->class_names, sorted, (size_t)t->classes * sizeof *sorted);
        t->is_numbered = !r->is_text;
        for (int k = 0; t->is_numbered && k < t->classes; k++)         /* 1.0 becomes 1 */
            snprintf(t->class_names[k], TABLE_NAME, "%.0f", strtod(t->class_names[k], NULL) + 0.0);
    }
    free(sorted);
    free(to);
    return ok || wrong_at(r, "no memory");
}

/* Rejects a line with more values than columns. */
static int more_values(table_reader *r) {
    const int decimal = r->separator == ',' && r->all > 1;
    return wrong_at(r, "more than %d value%s (the last column is '%s')%s", r->all,
                    r->all == 1 ? "" : "s", r->names[r->all - 1],
                    decimal ? "; if it has decimal commas, write points" : "");
}

/* Returns 1 if the decimal mark of a number is that of the numbers before it. One of the two is
   otherwise between thousands, and the number is not what it seems. */
static int has_same_mark(table_reader *r, const char *value, const char *name) {
    const char *mark = strpbrk(value, ".,");
    if (!mark || r->separator == ',') return 1;
    if (!r->t->decimal) r->t->decimal = *mark;
    if (r->t->decimal == *mark) return 1;
    return wrong_at(r, "'%.20s' in column '%s' has a %s, but numbers before it have decimal %ss: "
                    "write one of them, and nothing between thousands", value, name,
                    *mark == ',' ? "comma" : "point", *mark == ',' ? "point" : "comma");
}

/* Rejects a number out of range. Its remedy is for a new model, not for the rows of one. */
static int too_large(table_reader *r, double number, const char *name) {
    const int can_divide = !isinf(number) && !r->desc->n_columns;
    return wrong_at(r, "%g in column '%s': numbers may be from -1e12 to 1e12%s", number, name,
                    can_divide ? ": divide the column by a power of ten, here and in the rows to "
                                 "score" : "");
}

static int read_row(table_reader *r) {
    csv_table *t = r->t;
    char value[TABLE_NAME];
    double number;
    int column = 0;
    if (!grow(r)) return 0;
    float *x = t->x + (size_t)(t->rows - t->first) * (size_t)t->columns;
    do {
        if (column == r->all) return more_values(r);
        const char *name = r->names[column];
        const int role = r->role[column++];
        if (role == SKIPPED) {
            if (!is_value(r, name, take_value(r, NULL, 0))) return 0;
            continue;
        }
        if (!next_value(r, name, value)) return 0;
        if (role == LABEL && !take_label(r, value)) return 0;
        if (role < 0) continue;
        if (!decimal_in(r, value, &number) || isnan(number)) return not_a_number(r, value, name);
        if (!has_same_mark(r, value, name)) return 0;
        if (!(fabs(number) <= 1e12)) return too_large(r, number, name);
        x[role] = (float)number;
    } while (continues(r));
    if (column != r->all)
        return wrong_at(r, "%d value%s, but %d columns: column '%s' has none", column,
                        column == 1 ? "" : "s", r->all, r->names[column]);
    t->rows++;
    return 1;
}

/* Adds a row of NaN in place of one that cannot be read, and skips the rest of its line. */
static void skip_row(table_reader *r) {
    csv_table *t = r->t;
    float *x = t->x + (size_t)(t->rows - t->first) * (size_t)t->columns;
    for (int i = 0; i < t->columns; i++) x[i] = NAN;
    if (r->has_label) t->labels[t->rows] = -1;
    t->rows++;
    while (r->at < r->end && !is_line_end(*r->at)) r->at++;
    r->desc->bad(r->desc->user, r->error);
}

/* Returns the remedy for a file that begins with these bytes, if it is no text; otherwise NULL. */
static const char *no_text(const char *bytes, ptrdiff_t n) {
    if (n < 4) return NULL;
    if (!memcmp(bytes, "\xff\xfe", 2) || !memcmp(bytes, "\xfe\xff", 2))
        return "is UTF-16: save it as CSV in UTF-8";
    if (!memcmp(bytes, "\x1f\x8b", 2)) return "is packed: unpack it (gunzip)";
    if (!memcmp(bytes, "PK\3\4", 4))
        return "is a spreadsheet or an archive: save it as CSV, or unpack it";
    return NULL;
}

/* Reads lines from r->at to r->end. */
static int read_lines(table_reader *r) {
    if (r->at == r->end) return 1;
    if (!r->started && r->end - r->at > 2 && !memcmp(r->at, "\xef\xbb\xbf", 3))
        r->at += 3;                                /* the mark of UTF-8 */
    const char *remedy = r->started ? NULL : no_text(r->at, r->end - r->at);
    if (remedy) return wrong_at(r, "%s", remedy);
    r->started = 1;
    while (next_line(r)) {
        if (!r->all && !read_header(r)) return 0;
        if (r->at == r->end || is_line_end(*r->at)) continue;          /* after the names */
        const int texts = r->texts;
        const int is_text = r->is_text;
        const int unlabelled = r->t->unlabelled;
        const char decimal = r->t->decimal;
        if (!keep_values(r)) return 0;
        if (read_row(r)) continue;
        if (r->failed || !r->desc->bad) return 0;
        r->texts = texts;                          /* its label may be another value */
        r->is_text = is_text;
        r->t->unlabelled = unlabelled;
        r->t->decimal = decimal;
        skip_row(r);
    }
    return 1;
}

/* Completes the table. */
static int complete(table_reader *r) {
    csv_table *t = r->t;
    if (!t->rows) {
        r->line = 0;
        return wrong_at(r, "no rows of numbers%s", r->all ? " after the names of columns" : "");
    }
    return !r->has_label || number_classes(r);
}

static void begin(table_reader *r, csv_table *t, const char *path, const table_desc *desc,
                  char *error, size_t error_size) {
    static const table_desc usual = { NULL, NULL, 0, 0, NULL, NULL, NULL, 0, NULL, NULL };
    memset(t, 0, sizeof *t);
    memset(r, 0, sizeof *r);
    t->classes = 1;
    r->t = t;
    r->desc = desc ? desc : &usual;
    r->path = path;
    r->line = 1;
    r->error = error;
    r->error_size = error_size;
}

int table_parse(csv_table *t, const char *bytes, size_t n, const char *path, const table_desc *desc,
                char *error, size_t error_size) {
    table_reader r;
    begin(&r, t, path, desc, error, error_size);
    r.at = bytes;
    r.end = bytes + n;
    const int ok = read_lines(&r) && complete(&r);
    free(r.names);
    if (!ok) table_free(t);
    return ok;
}

table_reader *table_reader_create(csv_table *t, const char *path, const table_desc *desc,
                                  char *error, size_t error_size) {
    table_reader *r = (table_reader *)malloc(sizeof *r);
    if (r) begin(r, t, path, desc, error, error_size);
    else {
        memset(t, 0, sizeof *t);
        snprintf(error, error_size, "%s: no memory", path);
    }
    return r;
}

int table_reader_take(table_reader *r, const char *bytes, size_t n) {
    static const size_t most = 1000000;            /* bytes of a line */
    char *all = (char *)realloc(r->kept, r->n_kept + n + 1);
    if (!all) return no_memory(r);
    memcpy(all + r->n_kept, bytes, n);
    r->kept = all;
    r->n_kept += n;
    size_t whole = r->n_kept;
    while (whole > 0 && !is_line_end(all[whole - 1])) whole--;
    r->at = all;
    r->end = all + whole;
    if (whole > 0) {
        r->at += r->after_return && *all == '\n';
        r->after_return = all[whole - 1] == '\r';
    }
    if (!read_lines(r)) return 0;
    r->n_kept -= whole;
    memmove(all, all + whole, r->n_kept);
    return r->n_kept < most || wrong_at(r, "a line is too long");
}

int table_reader_end(table_reader *r) {
    r->at = r->kept;
    r->end = r->kept ? r->kept + r->n_kept : NULL;
    r->n_kept = 0;
    return (!r->at || read_lines(r)) && complete(r);
}

void table_reader_forget(table_reader *r) {
    r->t->first = r->t->rows;
    r->kept_used = 0;
}

void table_reader_free(table_reader *r) {
    if (!r) return;
    free(r->names);
    free(r->kept);
    free(r);
}

int table_load(csv_table *t, const char *path, const table_desc *desc, char *error,
               size_t error_size) {
    table_reader r;
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
        if (!more) {
            free(bytes);
            bytes = NULL;
            break;
        }
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

int table_is_number(const char *name) { return !name[strspn(name, "0123456789")]; }

void table_free(csv_table *t) {
    free(t->x);
    free(t->labels);
    free(t->names);
    free(t->class_names);
    free(t->kept);
    free(t->kept_names);
    memset(t, 0, sizeof *t);
}

int table_usual_label(const csv_table *t) {
    int best = 0;
    int most = 0;
    if (!t->labels || !t->class_names) return 0;
    for (int label = 0; label < t->classes; label++) {
        int n = 0;
        for (int i = 0; i < t->rows; i++) n += t->labels[i] == label;
        if (n && t->is_numbered && strtod(t->class_names[label], NULL) >= 0) return label;
        if (n <= most) continue;
        best = label;
        most = n;
    }
    return best;
}
