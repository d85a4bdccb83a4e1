/* Tables of numbers from CSV files.

       table t;
       char error[256];
       if (!table_load(&t, "sensors.csv", error, sizeof error)) ...print error...
       t.x[row * t.columns + column] ...
       table_free(&t);

   A row per line; values are separated by commas, semicolons or tabs, and may be quoted. If a value
   of the first line is no number, that line has the names of the columns. Empty lines are skipped.
   A column of the name `label` becomes t.labels. Errors name the line and the column. */
#ifndef SUPPORT_TABLE_H
#define SUPPORT_TABLE_H

#include <stddef.h>

enum { TABLE_COLUMNS = 1024, TABLE_NAME = 32, TABLE_CLASSES = 1000 };

typedef struct table {
    int rows, columns;                             /* columns: without labels */
    float *x;                                      /* [rows][columns], finite, up to 1e12 */
    int *labels;                                   /* [rows], 0 to TABLE_CLASSES - 1; or NULL */
    int classes;                                   /* largest label + 1; 1 without labels */
    char (*names)[TABLE_NAME];                     /* [columns]; "1", "2", ... without a header */
} table;

/* Reads a file of up to 1 GB. Returns 1, or 0 and a message that begins with the path. */
int table_load(table *t, const char *path, char *error, size_t error_size);
/* The same for bytes[n] in memory; `path` is for messages only. */
int table_parse(table *t, const char *bytes, size_t n, const char *path, char *error,
                size_t error_size);
void table_free(table *t);

#endif
