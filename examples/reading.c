/* Judges readings of sensors, one per line, with a network of `jem train FILE.csv`: how familiar
   each is, and which value is to blame if it is not. Needs only jem.h: copy it into your program.
       make build/jem build/vectors build/reading && build/vectors --write build
       build/jem train build/sensors.csv                       makes runs/sensors
       build/reading runs/sensors/best.safetensors <build/new.csv
   A line has the numbers of the network's columns, in its order, separated by commas; a first line
   with names is compared with those of the network. */
#define JEM_IMPLEMENTATION
#include "jem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_COLUMNS = 256, MOST_LINE = 8192, MOST_KEY = 32 };

/* Reads numbers from a line. Returns their count; 0 if something else is among them. */
static int numbers_in(const char *line, float *x) {
    int count = 0;
    while (count < MOST_COLUMNS) {
        char *end;
        x[count] = strtof(line, &end);
        if (end == line) return 0;
        count++;
        while (*end == ' ' || *end == '\r' || *end == '\n') end++;
        if (!*end) return count;
        if (*end != ',') return 0;
        line = end + 1;
    }
    return 0;
}

/* Prints the name of a column, which `jem train` stored, or else its number. */
static void print_column(const jem_net *net, int column) {
    char key[MOST_KEY];
    snprintf(key, sizeof key, "column.%d", column);
    const char *name = jem_net_meta(net, key);
    if (name) printf("%s", name);
    else printf("value %d", column + 1);
}

/* Prints a number with the fewest digits that tell it from all others: at an offset of a million,
   that takes more than six. */
static void print_number(float x) {
    char text[32];
    for (int digits = 4; digits <= 9; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, (double)x);
        if (strtof(text, NULL) == x) break;
    }
    printf("%s", text);
}

/* Finds and prints the value whose replacement makes the reading most likely. */
static jem_status print_blame(jem_net *net, const float *x) {
    float gain[MOST_COLUMNS];
    float better[MOST_COLUMNS];
    int worst = 0;
    const jem_status status = jem_blame_values(net, x, 1, gain, better);
    if (status != JEM_OK) return status;
    for (int i = 1; i < net->channels; i++)
        if (gain[i] > gain[worst]) worst = i;
    if (!(gain[worst] > 0)) return JEM_OK;
    printf(" (");
    print_column(net, worst);
    printf(" is ");
    print_number(x[worst]);
    printf("; ");
    print_number(better[worst]);
    printf(" would fit the others)");
    return JEM_OK;
}

static jem_status judge(jem_net *net, int row, const float *x) {
    jem_answer a;
    if (jem_classify(net, x, 1, &a) != JEM_OK) return jem_error_status(net->ctx);
    const jem_verdict verdict = jem_judge(a.familiarity);
    printf("row %d: log p(x) %.1f, %s", row, (double)a.log_density, jem_verdict_name(verdict));
    const int is_unusual = verdict == JEM_VERDICT_ODD || verdict == JEM_VERDICT_STRANGE;
    const jem_status status = is_unusual ? print_blame(net, x) : JEM_OK;
    printf("\n");
    fflush(stdout);
    return status;
}

/* Returns 1 if a line does not begin with a number: it has the names of the columns. */
static int has_names(const char *line) {
    char *end;
    strtof(line, &end);
    return end == line;
}

/* Returns 1 if a line has the names of the network's columns, in its order. Those of a file without
   names are numbers. */
static int has_same_names(const jem_net *net, const char *line) {
    char key[MOST_KEY];
    for (int i = 0; i < net->channels; i++) {
        snprintf(key, sizeof key, "column.%d", i);
        const char *name = jem_net_meta(net, key);
        const size_t length = strcspn(line, ",\r\n");
        if (!name || strlen(name) != length || strncmp(name, line, length) != 0) return 0;
        line += length;
        if (*line == ',') line++;
    }
    return *line == '\r' || *line == '\n' || !*line;
}

/* Returns the text after the mark of UTF-8, with which some spreadsheets begin a file. */
static const char *after_mark(const char *line) {
    return strncmp(line, "\xef\xbb\xbf", 3) == 0 ? line + 3 : line;
}

/* Judges all lines of standard input. A line that cannot be judged is reported, and the next one is
   judged all the same: hence jem_clear_error. Returns the count of such lines. */
static int judge_lines(jem_net *net) {
    static char line[MOST_LINE];
    float x[MOST_COLUMNS];
    int unread = 0;
    int row = 0;
    while (fgets(line, sizeof line, stdin)) {
        const char *text = row ? line : after_mark(line);
        const int count = numbers_in(text, x);
        if (!row && has_same_names(net, text)) continue;
        if (!row && has_names(text)) {
            fprintf(stderr, "the columns are not those of the network, in its order\n");
            return 1;
        }
        row++;
        if (count != net->channels) {
            fprintf(stderr, "row %d: needs %d numbers, separated by commas\n", row, net->channels);
            unread++;
        } else if (judge(net, row, x) != JEM_OK) {
            fprintf(stderr, "row %d: %s\n", row, jem_error(net->ctx));
            jem_clear_error(net->ctx);
            unread++;
        }
    }
    return unread;
}

int main(int argc, char **argv) {
    const char *path = argc > 1 ? argv[1] : "runs/sensors/best.safetensors";
    jem_ctx *ctx = jem_ctx_create(NULL);
    jem_net *net = jem_load(ctx, path);
    int failed = !net;
    if (!net) fprintf(stderr, "%s\n", jem_error(ctx));
    else if (net->height * net->width != 1 || net->channels > MOST_COLUMNS) {
        fprintf(stderr, "%s: takes %d x %d x %d numbers, not a row of up to %d\n", path,
                net->channels, net->height, net->width, MOST_COLUMNS);
        failed = 1;
    } else {
        if (jem_calibrated(net) < 0) printf("%s is not calibrated: no verdicts\n", path);
        failed = judge_lines(net) > 0;
    }
    jem_net_free(net);
    jem_ctx_free(ctx);
    return failed;
}
