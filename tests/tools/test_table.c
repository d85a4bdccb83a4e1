/* CSV files: what is read, what is refused, and hostile bytes. */
#define JEM_IMPLEMENTATION
#include "jem.h"
#include <stdlib.h>

#include "tests/support/test.h"
#include "tools/support/table.h"

static char error[256];

static int parse(csv_table *t, const char *text) {
    return table_parse(t, text, strlen(text), "f.csv", NULL, error, sizeof error);
}

static void test_read(void) {
    printf("tables: headers, separators, quotes, labels, line ends\n");
    csv_table t;
    CHECK(parse(&t, "1,2\n3,4\n"), "%s", error);
    CHECK(t.rows == 2 && t.columns == 2 && t.x[3] == 4 && !t.labels && t.classes == 1, "plain");
    CHECK(!strcmp(t.names[1], "2"), "%s", t.names[1]);
    table_free(&t);
    CHECK(parse(&t, "\xef\xbb\xbfvolt;label;\"bar; abs\"\r\n-1e3;2; 5 \r\n\r\n.5;0;\"6\""), "%s",
          error);
    CHECK(t.rows == 2 && t.columns == 2 && t.classes == 2, "%d rows", t.rows);
    CHECK(t.x[0] == -1000 && t.x[1] == 5 && t.x[2] == 0.5f && t.x[3] == 6, "values");
    CHECK(t.labels[0] == 1 && t.labels[1] == 0, "labels");
    CHECK(!strcmp(t.names[0], "volt") && !strcmp(t.names[1], "bar; abs"), "%s", t.names[1]);
    table_free(&t);
}

/* A first row without a number is not a header, and a quote may be doubled. */
static void test_first_row(void) {
    printf("tables: first rows with missing values, doubled quotes, old line ends\n");
    csv_table t;
    CHECK(!parse(&t, "1.0,,3.0\n2,5,6\n") && strstr(error, "line 1"), "%s", error);
    CHECK(!parse(&t, "1,NA,3\n2,5,6\n") && strstr(error, "line 1"), "%s", error);
    CHECK(!parse(&t, "1,2\r3,4\r5,x\r") && strstr(error, "line 3"), "%s", error);
    CHECK(!parse(&t, "1,2\r\n3,4\r\n5,x\r\n") && strstr(error, "line 3"), "%s", error);
    CHECK(parse(&t, "\"5\"\" pipe\",\"a,\"\"b\"\"\"\n1,2\n"), "%s", error);
    CHECK(t.columns == 2 && !strcmp(t.names[0], "5\" pipe") && !strcmp(t.names[1], "a,\"b\""),
          "%s, %s", t.names[0], t.names[1]);
    table_free(&t);
}

/* Parses more labels than there can be classes: an error, unless any label is accepted. */
static void check_many_labels(table_desc *d) {
    static char text[16 * (TABLE_CLASSES + 4)];
    csv_table t;
    snprintf(text, sizeof text, "a,state\n");
    for (int i = 0; i <= TABLE_CLASSES; i++)
        snprintf(text + strlen(text), 16, "%d,s%d\n", i, i);
    snprintf(text + strlen(text), 16, "7,s7\n");
    CHECK(table_parse(&t, text, strlen(text), "f.csv", d, error, sizeof error), "%s", error);
    CHECK(t.rows == TABLE_CLASSES + 2 && t.unlabelled == 1 && t.labels[TABLE_CLASSES] == -1 &&
          t.labels[7] >= 0 && t.labels[7] == t.labels[TABLE_CLASSES + 1], "%d rows, %d unlabelled",
          t.rows, t.unlabelled);
    table_free(&t);
    d->any_label = 0;
    CHECK(!table_parse(&t, text, strlen(text), "f.csv", d, error, sizeof error) &&
          strstr(error, "more than 1000 classes"), "%s", error);
}

/* Labels that are no classes do not matter where any label is accepted. */
static void test_unknown_labels(void) {
    printf("tables: labels that are no classes\n");
    static const char text[] = "a,b,state\n1,2,-1\n3,4,\n5,6,1\n7,8,2.5\n";
    table_desc d;
    csv_table t;
    memset(&d, 0, sizeof d);
    d.label = "state";
    CHECK(!table_parse(&t, text, strlen(text), "f.csv", &d, error, sizeof error), "for training");
    d.any_label = 1;
    CHECK(table_parse(&t, text, strlen(text), "f.csv", &d, error, sizeof error), "%s", error);
    CHECK(t.rows == 4 && t.labels[0] == 0 && t.labels[1] == -1 && t.labels[2] == 1 &&
          t.labels[3] == -1 && t.unlabelled == 2, "%d rows", t.rows);
    CHECK(!strcmp(t.class_names[0], "-1") && table_usual_label(&t) == 1, "-1 is an outlier");
    table_free(&t);
    check_many_labels(&d);
}

static void test_columns(void) {
    printf("tables: columns by name, number and position; names of classes\n");
    static const char text[] = "time,volt,bar,state\n9:00,1,2,run\n9:01,3,4,idle\n9:02,5,6,run\n";
    static char names[2][TABLE_NAME] = { "bar", "volt" };
    table_desc d;
    csv_table t;
    memset(&d, 0, sizeof d);
    d.label = "state";
    d.drop = "time, ";
    CHECK(table_parse(&t, text, strlen(text), "f.csv", &d, error, sizeof error), "%s", error);
    CHECK(t.rows == 3 && t.columns == 2 && t.classes == 2 && t.x[3] == 4, "%d rows", t.rows);
    CHECK(!strcmp(t.class_names[0], "idle") && !strcmp(t.class_names[1], "run"), "sorted");
    CHECK(t.labels[0] == 1 && t.labels[1] == 0 && t.labels[2] == 1, "labels");
    table_free(&t);
    d.label = "last";
    d.drop = NULL;
    d.columns = names;
    d.n_columns = 2;
    CHECK(table_parse(&t, text, strlen(text), "f.csv", &d, error, sizeof error), "%s", error);
    CHECK(t.columns == 2 && t.x[0] == 2 && t.x[1] == 1 && !strcmp(t.names[0], "bar"), "by name");
    table_free(&t);
    d.label = "volt";
    CHECK(!table_parse(&t, text, strlen(text), "f.csv", &d, error, sizeof error) &&
          strstr(error, "column 'volt' has two uses"), "%s", error);
    static const char bare[] = "1,2,run\n3,4,idle\n";
    d.label = "3";
    CHECK(table_parse(&t, bare, strlen(bare), "f.csv", &d, error, sizeof error), "%s", error);
    CHECK(t.rows == 2 && t.columns == 2 && t.classes == 2 && t.x[2] == 3, "by position");
    table_free(&t);
    static const char short_rows[] = "1,2\n3,4\n";
    d.label = "last";
    d.label_optional = 1;
    CHECK(table_parse(&t, short_rows, strlen(short_rows), "f.csv", &d, error, sizeof error),
          "%s", error);
    CHECK(t.columns == 2 && !t.labels, "no column is left for labels");
    table_free(&t);
    table_desc dropped;
    memset(&dropped, 0, sizeof dropped);
    dropped.drop = "label";
    CHECK(!table_parse(&t, "a,label\n1,2\n", 12, "f.csv", &dropped, error, sizeof error) &&
          strstr(error, "'label' has the labels: it is needed"), "%s", error);
    d.n_columns = 1;
    d.label = "none";
    CHECK(!table_parse(&t, short_rows, strlen(short_rows), "f.csv", &d, error, sizeof error) &&
          strstr(error, "line 1: 2 columns of values, but the model has 1"), "%s", error);
    static const char numbers[] = "a,label\n1,1e2\n2,07\n";
    CHECK(parse(&t, numbers) && t.classes == 2 && t.labels[0] == 1 && t.labels[1] == 0, "%s",
          error);
    CHECK(t.is_numbered && !strcmp(t.class_names[0], "7") && !strcmp(t.class_names[1], "100"),
          "names of numbers");
    table_free(&t);
}

static void test_label_number(void) {
    printf("tables: a label's number counts columns, with a header too\n");
    static const char text[] = "a,b,kind\n1,2,on\n3,4,off\n";
    static const char other[] = "kind,b,a\nx,2,1\n";
    static const char without[] = "a,b\n1,2\n";
    static char names[2][TABLE_NAME] = { "a", "b" };
    table_desc d;
    csv_table t;
    memset(&d, 0, sizeof d);
    d.label = "3";
    CHECK(table_parse(&t, text, strlen(text), "f.csv", &d, error, sizeof error), "%s", error);
    CHECK(t.columns == 2 && t.classes == 2 && t.labels[0] == 1 && t.x[2] == 3, "the third column");
    table_free(&t);
    static const char unnamed[] = "a,b,\n1,2,on\n3,4,off\n";
    CHECK(table_parse(&t, unnamed, strlen(unnamed), "f.csv", &d, error, sizeof error), "%s", error);
    CHECK(t.columns == 2 && t.classes == 2 && t.labels[1] == 0, "without a name");
    table_free(&t);
    d.label = "4";
    CHECK(!table_parse(&t, text, strlen(text), "f.csv", &d, error, sizeof error) &&
          strstr(error, "no column '4' of labels"), "%s", error);
    d.label = "3";
    d.label_optional = 1;
    d.columns = names;
    d.n_columns = 2;
    CHECK(table_parse(&t, other, strlen(other), "f.csv", &d, error, sizeof error), "%s", error);
    CHECK(t.x[0] == 1 && t.x[1] == 2 && !t.labels, "in another order, the third has values");
    table_free(&t);
    CHECK(table_parse(&t, without, strlen(without), "f.csv", &d, error, sizeof error) && !t.labels,
          "none: %s", error);
    table_free(&t);
}

/* Counts messages about rows. */
static void on_bad(void *user, const char *message) {
    (*(int *)user)++;
    CHECK(strstr(message, "f.csv, line "), "%s", message);
}

static void test_arriving(void) {
    printf("tables: bytes that arrive in pieces; rows that cannot be read\n");
    static const char text[] =
        "\xef\xbb\xbf" "a;b;label\r\n1;2;x\r\n\r\n3;4,5,6;y\n3;nan;x\n"
        "5;6\n5;6;7;8\n\"5\";6;y\n7;8;x";
    enum { ROWS = 7 };
    static const float x[ROWS] = { 1, -1, -1, -1, -1, 5, 7 };      /* -1: cannot be read */
    for (size_t step = 1; step < sizeof text; step++) {
        table_desc d;
        csv_table t;
        int bad = 0;
        int seen = 0;
        memset(&d, 0, sizeof d);
        d.bad = on_bad;
        d.user = &bad;
        table_reader *r = table_reader_create(&t, "f.csv", &d, error, sizeof error);
        int ok = r != NULL;
        for (size_t at = 0; ok && at < sizeof text - 1; at += step) {
            const size_t left = sizeof text - 1 - at;
            ok = table_reader_take(r, text + at, left < step ? left : step);
            if (ok && left <= step) ok = table_reader_end(r);
            for (; ok && seen < t.rows; seen++) {
                const float *row = t.x + (seen - t.first) * t.columns;
                if (x[seen] > 0) CHECK(row[0] == x[seen] && row[1] == x[seen] + 1, "row %d", seen);
                else CHECK(isnan(row[0]) && isnan(row[1]), "row %d has no numbers", seen);
            }
            if (ok) table_reader_forget(r);
        }
        CHECK(ok && t.rows == ROWS && seen == ROWS && bad == 4, "%d bytes at once: %d rows: %s",
              (int)step, t.rows, error);
        CHECK(t.classes == 2 && t.labels[0] == 0 && t.labels[1] == -1 && t.labels[5] == 1 &&
              t.labels[6] == 0, "labels");
        table_reader_free(r);
        table_free(&t);
    }
    csv_table t;
    table_reader *r = table_reader_create(&t, "f.csv", NULL, error, sizeof error);
    CHECK(r && table_reader_take(r, "a,b\n1,", 6) && !t.rows && !table_reader_take(r, "x\n", 2) &&
          !strcmp(error, "f.csv, line 2: 'x' in column 'b' is not a number"), "%s", error);
    table_reader_free(r);
    table_free(&t);
    r = table_reader_create(&t, "f.csv", NULL, error, sizeof error);
    CHECK(r && table_reader_take(r, "a,b", 3) && !table_reader_end(r) &&
          strstr(error, "no rows of numbers"), "%s", error);
    table_reader_free(r);
    table_free(&t);
}

static void test_refused(void) {
    printf("tables: messages name line and column\n");
    static const struct { const char *text, *message; } bad[] = {
        { "", "f.csv: no rows of numbers" },
        { "volt,bar\n", "f.csv: no rows of numbers" },
        { "label\n1\n", "f.csv, line 1: no column but the label" },
        { "a,b\n1,2\n1,x\n", "f.csv, line 3: 'x' in column 'b' is not a number" },
        { "1,2\n3\n", "f.csv, line 2: 1 value, but 2 columns: column '2' has none" },
        { "1,2\n3,4,5\n", "f.csv, line 2: more than 2 values" },
        { "a\n3,4\n", "f.csv, line 2: more than 1 value (the last column is 'a')" },
        { "a,b\n", "f.csv: no rows of numbers after the names of columns" },
        { "a,b,a\n1,2,3\n", "f.csv, line 1: columns 1 and 3 are both named 'a': rename one" },
        { "a,,b\n1,2,3\n", "f.csv, line 1: column 2 has no name: name it, or skip it (--drop 2)" },
        { "a,label,label\n1,2,3\n", "f.csv, line 1: columns 2 and 3 are both named 'label'" },
        { "a,b,c\n1,2\n", "f.csv, line 2: 2 values, but 3 columns: column 'c' has none" },
        { "a,b\n1,5,2,5\n", "f.csv, line 2: more than 2 values (the last column is 'b'); if it" },
        { "a,b\n\"1,5\",2\n",
          "f.csv, line 2: '1,5' in column 'a' is not a number (a decimal comma?" },
        { "a b\n1 2\n", "f.csv, line 2: '1 2' in column 'a b' is not a number (separate values" },
        { "log\na,b\n", "f.csv, line 2: 'a' in column 'log' is not a number (the first line has" },
        { "\xff\xfe" "1\n", "f.csv, line 1: is UTF-16: save it as CSV in UTF-8" },
        { "\x1f\x8b" "1,2\n", "f.csv, line 1: is packed: unpack it (gunzip)" },
        { "PK\3\4" "1,2\n", "f.csv, line 1: is a spreadsheet or an archive: save it as CSV" },
        { "1,2\n3,\n", "f.csv, line 2: '' in column '2' is not a number" },
        { "1,2\nnan,3\n", "f.csv, line 2: 'nan' in column '1' is not a number: a missing" },
        { "1,2\ninf,3\n", "f.csv, line 2: inf in column '1': numbers may be" },
        { "1,2\n1e13,3\n", "f.csv, line 2: 1e+13 in column '1': numbers may be from -1e12 to 1e12: "
          "divide the column by a power of ten, here and in the rows to score" },
        { "a,label\n1,1.5\n", "f.csv, line 2: label 1.5 is not a whole number" },
        { "a,label\n1,\n", "f.csv, line 2: column 'label' has no label" },
        { "a,b\n1,\"2\n3,4\n",
          "f.csv, line 2: column 'b': a quoted value does not end in its line" },
        { "a,label\n1,.5\n", "f.csv, line 2: label 0.5 is not a whole number" },
        { "a\tb\n1,2,3\t4\n", "f.csv, line 2: '1,2,3' in column 'a' is not a number" },
        { "a;b\n,;4\n", "f.csv, line 2: ',' in column 'a' is not a number" },
        { "a;b\n-,;4\n", "f.csv, line 2: '-,' in column 'a' is not a number" },
        { "a;b\n,e5;4\n", "f.csv, line 2: ',e5' in column 'a' is not a number" },
        { "a;b\n1,5x;4\n", "f.csv, line 2: '1,5x' in column 'a' is not a number" },
        { "a;b\n1 234,5;4\n", "f.csv, line 2: '1 234,5' in column 'a' is not a number" },
        { "a;b\n1.234,5;4\n", "f.csv, line 2: '1.234,5' in column 'a' is not a number (a comma and "
          "a point: write nothing between thousands)" },
        { "a\tb\n1,234.5\t4\n", "f.csv, line 2: '1,234.5' in column 'a' is not a number (a comma" },
        { "a;b\n1,5;4\n2;3.5\n", "f.csv, line 3: '3.5' in column 'b' has a point, but numbers "
          "before it have decimal commas: write one of them, and nothing between thousands" },
        { "a;b\n1.5;4,25\n", "f.csv, line 2: '4,25' in column 'b' has a comma, but numbers "
          "before it have decimal points" },
        { "a;label\n1,5;1,5\n", "f.csv, line 2: label 1.5 is not a whole number" },
        { "a;b\n1e12,5;3\n", "f.csv, line 2: '1e12,5' in column 'a' is not a number" },
        { "a;b\n10000000000000,5;3\n", "f.csv, line 2: 1e+13 in column 'a': numbers may be" }
    };
    csv_table t;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        CHECK(!parse(&t, bad[i].text), "\"%s\" is read", bad[i].text);
        CHECK(!strncmp(error, bad[i].message, strlen(bad[i].message)), "%s", error);
        CHECK(!t.x && !t.names && !t.labels, "nothing is left");
    }
    table_desc of_model;
    memset(&of_model, 0, sizeof of_model);
    of_model.n_columns = 2;
    CHECK(!table_parse(&t, "1,2\n1e13,3\n", 11, "f.csv", &of_model, error, sizeof error) &&
          !strstr(error, "divide"), "%s", error);
    CHECK(!parse(&t, "1,2\n-inf,3\n") && !strstr(error, "divide"), "%s", error);
    CHECK(!table_parse(&t, "1,2\n\0,3\n", 8, "f.csv", NULL, error, sizeof error), "a zero byte");
    CHECK(!table_load(&t, "nowhere/f.csv", NULL, error, sizeof error) &&
          !strncmp(error, "nowhere/f.csv: cannot be opened: ", 33), "%s", error);
    enum { MANY = 1025 };
    char wide[2 * MANY + 1];
    for (int i = 0; i < MANY; i++) memcpy(wide + 2 * i, "1,", 2);
    wide[2 * MANY - 1] = 0;
    CHECK(!parse(&t, wide) && strstr(error, "more than 1024 columns"), "%s", error);
    wide[2 * (MANY - 1) - 1] = 0;
    CHECK(parse(&t, wide) && t.columns == MANY - 1, "%s", error);
    table_free(&t);
}

/* Decimal commas, where another letter separates values. */
static void test_commas(void) {
    printf("tables: decimal commas between semicolons or tabs\n");
    csv_table t;
    table_desc d;
    CHECK(parse(&t, "1,5;2,5\n3;4\n5;-6,5\n"), "%s", error);
    CHECK(t.rows == 3 && t.columns == 2 && t.decimal == ',', "%d rows", t.rows);
    CHECK(t.x[0] == 1.5f && t.x[1] == 2.5f && t.x[2] == 3 && t.x[5] == -6.5f, "values");
    CHECK(!strcmp(t.names[1], "2"), "%s", t.names[1]);
    table_free(&t);
    CHECK(parse(&t, "a\tb\tlabel\n-,5\t1,\t2,0\n\"+1,5E-03\"\t 2,50 \t10\n"), "%s", error);
    CHECK(t.x[0] == -.5f && t.x[1] == 1 && t.x[2] == 1.5e-3f && t.x[3] == 2.5f, "values");
    CHECK(t.classes == 2 && !strcmp(t.class_names[0], "2"), "%s", t.class_names[0]);
    table_free(&t);
    CHECK(parse(&t, "\"temp, C\";kind, of;label\n1,5;2;a,b\n2,5;3;1,c\n"), "%s", error);
    CHECK(t.columns == 2 && !strcmp(t.names[0], "temp, C") && !strcmp(t.class_names[0], "1,c"),
          "%s", t.names[0]);
    table_free(&t);
    CHECK(parse(&t, "a;b\n1.5;2\n"), "%s", error);
    CHECK(t.decimal == '.' && t.x[0] == 1.5f, "points stay points");
    table_free(&t);
    CHECK(parse(&t, "a,b\n1.5,2\n") && !t.decimal, "%s", error);
    table_free(&t);
    int bad = 0;
    memset(&d, 0, sizeof d);
    d.bad = on_bad;
    d.user = &bad;
    static const char text[] = "a;b\n1.5;x\n1,5;2\n2.5;3\n3,5;4\n";
    CHECK(table_parse(&t, text, strlen(text), "f.csv", &d, error, sizeof error), "%s", error);
    CHECK(t.rows == 4 && isnan(t.x[0]) && t.x[2] == 1.5f && isnan(t.x[4]) && t.x[6] == 3.5f,
          "a row that cannot be read has no mark");
    table_free(&t);
}

/* Columns that are kept as texts beside the values, also of rows that cannot be read. */
static void test_kept(void) {
    printf("tables: columns to keep, lists of names\n");
    static const char text[] = "time\tx\t\"a, b\"\n"
                               "1:00\t2\t\"q \"\"z\"\"\"\n2:00\tbad\n3:00\t4\t\"open\n";
    static const char expected[] = "\"q \"\"z\"\"\",1:00\0" ",2:00\0" "open,3:00";
    csv_table t;
    table_desc d;
    int bad = 0;
    memset(&d, 0, sizeof d);
    d.bad = on_bad;
    d.user = &bad;
    d.keep = " \"a, b\", time ";
    CHECK(table_parse(&t, text, strlen(text), "f.csv", &d, error, sizeof error), "%s", error);
    CHECK(t.columns == 1 && t.rows == 3 && isnan(t.x[1]) && isnan(t.x[2]), "%d rows", t.rows);
    CHECK(!strcmp(t.kept_names, "\"a, b\",time"), "%s", t.kept_names);
    CHECK(!memcmp(t.kept, expected, sizeof expected), "%s", t.kept);
    table_free(&t);
    d.keep = "2, 1,2";
    CHECK(!table_parse(&t, text, strlen(text), "f.csv", &d, error, sizeof error) &&
          strstr(error, "column 'x' is kept twice"), "%s", error);
    d.keep = "4";
    CHECK(!table_parse(&t, text, strlen(text), "f.csv", &d, error, sizeof error) &&
          strstr(error, "line 1: has no column '4' to keep (its columns: time, x, \"a, b\")"), "%s",
          error);
    d.keep = NULL;
    d.drop = "time,\"a, b\"";
    CHECK(table_parse(&t, text, strlen(text), "f.csv", &d, error, sizeof error) && t.columns == 1 &&
          !t.kept, "%s", error);
    table_free(&t);
    d.drop = "1,3";
    CHECK(table_parse(&t, text, strlen(text), "f.csv", &d, error, sizeof error) && t.columns == 1 &&
          !strcmp(t.names[0], "x"), "%s", error);
    table_free(&t);
}

/* Details that are easily lost: spellings of numbers, long texts, names that occur twice. */
static void test_details(void) {
    printf("tables: spellings of labels, long values, equal names, a mark that arrives alone\n");
    csv_table t;
    table_desc d;
    memset(&d, 0, sizeof d);
    CHECK(parse(&t, "5\" a;b;label\n1;2;0\n") && t.columns == 2 && !strcmp(t.names[0], "5\" a"),
          "%s", error);
    table_free(&t);
    CHECK(parse(&t, "x,label\n1,1.0\n2,odd\n3,1\n4,007\n") && t.classes == 3 &&
          t.labels[0] == t.labels[2] && !strcmp(t.class_names[0], "007"), "%s", error);
    table_free(&t);
    CHECK(parse(&t, "x,label\n1,-0\n2,0\n3,10000000000000000\n") && t.classes == 3, "%s", error);
    table_free(&t);
    CHECK(parse(&t, "x,label\n1,5\" pipe\n2,\"a, \"\"b\"\"\"\n") &&
          !strcmp(t.class_names[0], "5\" pipe") && !strcmp(t.class_names[1], "a, \"b\""),
          "%s", error);
    table_free(&t);
    CHECK(parse(&t, "x,label\n1,0\n2,0.0\n3,1\n4,1.0\n"), "%s", error);
    CHECK(t.classes == 2 && t.labels[1] == 0 && t.labels[3] == 1, "%d classes", t.classes);
    table_free(&t);
    CHECK(parse(&t, "x,label\n1,Communications_and_Networking_Equipment_A\n"
                    "2,Communications_and_Networking_Equipment_B\n"), "%s", error);
    CHECK(t.classes == 2 && t.labels[0] != t.labels[1], "%d classes", t.classes);
    table_free(&t);
    static const char text[] = "x;note\n1;a note of many more than sixty-three letters, which is "
                               "as long as people write, with a comma\n";
    CHECK(!parse(&t, text) && strstr(error, "column 'note': a value is longer than 63"), "%s",
          error);
    d.drop = "note";
    CHECK(table_parse(&t, text, strlen(text), "f.csv", &d, error, sizeof error) && t.columns == 1,
          "%s", error);
    table_free(&t);
    CHECK(!parse(&t, "x,x\n1,2\n") && strstr(error, "columns 1 and 2 are both named 'x'"), "%s",
          error);
    static const char twins[] = "x,y,x\n1,2,3\n";
    d.drop = "x";
    CHECK(!table_parse(&t, twins, strlen(twins), "f.csv", &d, error, sizeof error) &&
          strstr(error, "columns 1 and 3 are both named 'x': rename one, or give its number"), "%s",
          error);
    d.drop = "1";
    CHECK(table_parse(&t, twins, strlen(twins), "f.csv", &d, error, sizeof error) && t.x[1] == 3,
          "%s", error);
    table_free(&t);
    table_reader *r = table_reader_create(&t, "a pipe", NULL, error, sizeof error);
    CHECK(r && table_reader_take(r, "\xef\xbb\xbf", 3) && table_reader_take(r, "volt\n3\n", 7) &&
          table_reader_end(r) && t.rows == 1 && !strcmp(t.names[0], "volt"), "%s", error);
    table_reader_free(r);
    table_free(&t);
    r = table_reader_create(&t, "a pipe", NULL, error, sizeof error);
    CHECK(r && table_reader_take(r, "volt\r", 5) && table_reader_take(r, "\n3\r", 3) &&
          !table_reader_take(r, "\nx\r\n", 4) && strstr(error, "line 3"), "%s", error);
    table_reader_free(r);
    table_free(&t);
}

static void test_hostile(void) {
    printf("tables: damaged ones are read or refused; all that is read is finite\n");
    static const char *const seeds[] = {
        "a,b,label\n1,2,0\n3,4,1\n", "1;2;3\n4;5;6\r\n\"7\";8;9", "x\ty\n1e5\t-2\n", "1\n2\n3\n"
    };
    static const char letters[] = "0123456789.,;\t\n\r\"e-+ xnaif";
    jem_rng rng = jem_rng_seed(1);
    int read = 0;
    for (int i = 0; i < 40000; i++) {
        char text[64];
        const char *from = seeds[i % 4];
        size_t n = strlen(from);
        memcpy(text, from, n);
        const int changes = 1 + jem_rng_below(&rng, 4);
        for (int k = 0; k < changes; k++) {
            const int at = jem_rng_below(&rng, (int)n);
            if (jem_rng_below(&rng, 8) == 0) n = (size_t)at + 1;
            else if (jem_rng_below(&rng, 4)) text[at] = letters[jem_rng_below(&rng, 27)];
            else text[at] = (char)jem_rng_below(&rng, 256);
        }
        char *exact = (char *)malloc(n);           /* sanitizers see what is read beyond it */
        csv_table t;
        if (!exact) return;
        memcpy(exact, text, n);
        if (table_parse(&t, exact, n, "f.csv", NULL, error, sizeof error)) {
            read++;
            for (int k = 0; k < t.rows * t.columns; k++)
                CHECK(fabsf(t.x[k]) <= 1e12f, "value %d of %d", k, i);
            for (int k = 0; t.labels && k < t.rows; k++)
                CHECK(t.labels[k] >= 0 && t.labels[k] < t.classes, "label %d of %d", k, i);
            table_free(&t);
        } else CHECK(*error && !t.x, "a message for %d", i);
        free(exact);
    }
    CHECK(read > 1000 && read < 39000, "%d were read", read);
}

int main(int argc, char **argv) {
    static const test_case all[] = {
        TEST(test_read), TEST(test_first_row), TEST(test_unknown_labels), TEST(test_columns),
        TEST(test_label_number), TEST(test_arriving), TEST(test_refused), TEST(test_commas),
        TEST(test_kept), TEST(test_details), TEST(test_hostile)
    };
    return test_main(argc, argv, all, TEST_COUNT(all));
}
