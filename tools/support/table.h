/* Tables of numbers from CSV files.

       csv_table t;
       char error[256];
       if (!table_load(&t, "sensors.csv", NULL, error, sizeof error)) ...print error...
       t.x[row * t.columns + column] ...
       table_free(&t);

   A row per line; values may be quoted. Tabs separate them if the first line has tabs, otherwise
   semicolons if it has those, otherwise commas; numbers have decimal points or, between tabs or
   semicolons, all of them decimal commas. If a value of the first line is no number, that line has
   the names of the columns. Empty lines are skipped. The column `label`, or another that table_desc
   names, becomes t.labels: the classes that occur, named by whole numbers or by other texts, are
   numbered from 0. Errors name the line and the column. */
#ifndef SUPPORT_TABLE_H
#define SUPPORT_TABLE_H

#include <stddef.h>

/* TABLE_NAME: bytes of a name, a label or a number, and the 0; a longer one is an error. */
enum { TABLE_COLUMNS = 1024, TABLE_NAME = 64, TABLE_CLASSES = 1000 };

typedef struct csv_table {
    int rows, columns;                             /* columns: without labels */
    int first;                                     /* row of x[0]; 0, see table_reader_forget */
    float *x;                                      /* [rows - first][columns], finite, up to 1e12 */
    int *labels;                                   /* [rows], 0 to classes - 1; -1: unreadable or,
                                                      if optional, no class; or NULL */
    int unlabelled;                                /* count of rows whose label is no class */
    int classes;                                   /* count of those that occur; 1 without labels */
    char (*class_names)[TABLE_NAME];               /* [classes], in the order of numbers or names;
                                                      NULL without labels, or if all are missing */
    int is_numbered;                               /* 1: the names of all classes are numbers */
    char (*names)[TABLE_NAME];                     /* [columns]; "1", "2", ... without a header */
    char *kept;                                    /* of rows from `first` on, the columns of
                                                      table_desc.keep as a line of CSV, such as
                                                      "12:00,7", and a 0; NULL: none */
    char *kept_names;                              /* the same of their names; or NULL */
    char label[TABLE_NAME];                        /* the name of the column of labels, or "" */
    int masked;                                    /* 1: names in the first line are not UTF-8, and
                                                      have '?' for such bytes */
    char decimal;                                  /* '.' or ',', the decimal mark; 0: commas
                                                      separate values, or all are whole */
} csv_table;

/* Zero or NULL means default. */
typedef struct table_desc {
    const char *label;         /* the column of labels: its name, its number from 1, "last", or
                                  "none"; "label" if there is one */
    const char *label_name;    /* the column's name, which replaces `label` in files with a header;
                                  or NULL */
    int label_optional;        /* 1: a file without that column is accepted */
    int any_label;             /* 1: a row whose label is missing or no class has the label -1 */
    const char *drop;          /* columns to skip: their names, or their numbers from 1, separated
                                  by commas; a name with commas is in quotes */
    const char *keep;          /* columns for csv_table.kept, in the same way; not values */
    /* Takes these columns, by name and in this order, and skips others; without names, in the
       desc or in the file, their count must be equal. */
    char (*columns)[TABLE_NAME];
    int n_columns;
    /* Receives the message about a row that cannot be read; the row becomes one of NaN, with the
       label -1. NULL: such a row is an error. */
    void (*bad)(void *user, const char *message);
    void *user;
} table_desc;

/* Reads a file of up to 1 GB. Returns 1, or 0 and a message that begins with the path. */
int table_load(csv_table *t, const char *path, const table_desc *desc, char *error,
               size_t error_size);
/* The same for bytes[n] in memory; `path` is for messages only. */
int table_parse(csv_table *t, const char *bytes, size_t n, const char *path, const table_desc *desc,
                char *error, size_t error_size);
void table_free(csv_table *t);
/* Returns the label of usual rows. Of numbers, it is the lowest from 0 on (-1 is an outlier in
   scikit-learn), or the most frequent one if all are below 0; of names, the most frequent one. */
int table_usual_label(const csv_table *t);
/* Copies a text as a value of a CSV file (RFC 4180), in quotes if it has a comma, a quote or a line
   end, to up to 2 strlen(text) + 3 bytes. Returns its length. */
size_t table_quote(const char *text, char *to);
/* Copies the next name of a list and moves past it. The letters of `between` separate names; blanks
   at the ends of a name are not copied. A name that contains such letters is in quotes, where a
   quote is doubled. Returns 0 at the end of the list. */
int next_name(const char **list, const char *between, char *name, size_t size);
/* Returns 1 if the name of a column is only its number, as in tables without a header. */
int table_is_number(const char *name);

/* A table that grows while its bytes arrive, for instance through a pipe. After each call of
   table_reader_take, t->x has the rows of all whole lines so far; t->labels are numbers in the
   order of appearance until table_reader_end. t, path, desc and error must stay valid. Functions
   return 0 after an error, with the message in `error`. */
typedef struct table_reader table_reader;
table_reader *table_reader_create(csv_table *t, const char *path, const table_desc *desc,
                                  char *error, size_t error_size);
int table_reader_take(table_reader *r, const char *bytes, size_t n);
/* Reads a last line without a line end, and numbers the classes. */
int table_reader_end(table_reader *r);
/* Frees the place of all values so far for the next rows; labels are kept. */
void table_reader_forget(table_reader *r);
void table_reader_free(table_reader *r);           /* not the table; accepts NULL */

#endif
