/* Draws one column of the log.csv of several runs of `jem train` into one picture, a colour for
   each group of runs, and prints the values of the groups' runs at a quarter, half, and the end:

       runs_chart OUT.png TITLE COLUMN NAME RUN... -- NAME RUN... */
#define JEM_IMPLEMENTATION
#include "jem.h"
#include "tools/support/chart.h"

enum { GROUPS = 6, RUNS = 48, LINE = 1024 };
static const unsigned colours[GROUPS] = {
    0x9fc3e8, 0xd2491e, 0x2e8b57, 0x8b3a8b, 0x777777, 0xb22222
};

/* Reads the column `name` of a run's log.csv. */
static int read_run(const char *run, const char *name, curve *c) {
    char path[LINE];
    int n;
    snprintf(path, sizeof path, "%s/log.csv", run);
    float *x = chart_column(path, "update", &n);
    float *y = chart_column(path, name, &c->n);
    if (x && y && n == c->n) {
        c->x = x;
        c->y = y;
        return 1;
    }
    fprintf(stderr, "runs_chart: %s: no column \"%s\" with a row\n", path, name);
    free(x);
    free(y);
    return 0;
}

/* Prints the values of a group's curves at a quarter, half, and the end. */
static void print_group(const char *name, const curve *curves, int n) {
    static const char *const parts[5] = { "", "quarter", "half", "", "end" };
    printf("%-12s", name);
    for (int part = 1; part <= 4; part += part) {
        printf("   %s:", parts[part]);
        for (int k = 0; k < n; k++) {
            int at = curves[k].n * part / 4 - 1;   /* rows may be empty: the last one */
            while (at > 0 && !isfinite(curves[k].y[at])) at--;
            printf(" %.4f", (double)curves[k].y[at > 0 ? at : 0]);
        }
    }
    printf("\n");
}

/* Reads the runs of all groups from the words after the column, and prints each group. Counts the
   curves that are to be freed, also after a failure. */
static int read_groups(int argc, char **argv, curve *curves, int *n) {
    int group = 0;
    for (int i = 4; i < argc; i++, group++) {
        if (group == GROUPS) {
            fprintf(stderr, "runs_chart: more than %d groups\n", GROUPS);
            return 0;
        }
        const char *name = argv[i++];
        const int first = *n;
        for (; i < argc && strcmp(argv[i], "--"); i++) {
            if (*n == RUNS) {
                fprintf(stderr, "runs_chart: more than %d runs\n", RUNS);
                return 0;
            }
            curve *c = curves + *n;
            c->name = *n == first ? name : "";
            c->colour = colours[group];
            c->width = group ? 1.4f : 5;           /* the first shows also under others */
            if (!read_run(argv[i], argv[3], c)) return 0;
            ++*n;
        }
        if (*n == first) {
            fprintf(stderr, "runs_chart: %s: a group without runs\n", name);
            return 0;
        }
        print_group(name, curves + first, *n - first);
    }
    return 1;
}

static int draw(const curve *curves, int n, const char *title, const char *path) {
    plot p;
    panel all;
    if (!plot_create(&p, 900, 420, 0, 900, 420, 0)) return 0;
    memset(&all, 0, sizeof all);
    all.title = title;
    all.x_name = "updates";
    all.left = 80;
    all.top = 60;
    all.right = 870;
    all.bottom = 370;
    all.curves = curves;
    all.n = n;
    draw_panel(&p, &all);
    const int ok = plot_write(&p, path);
    if (!ok) fprintf(stderr, "runs_chart: %s: cannot be written\n", path);
    plot_free(&p);
    return ok;
}

int main(int argc, char **argv) {
    static curve curves[RUNS];
    int n = 0;
    if (argc <= 5) {
        fprintf(stderr, "runs_chart OUT.png TITLE COLUMN NAME RUN... -- NAME RUN...\n");
        return 2;
    }
    const int ok = read_groups(argc, argv, curves, &n) && draw(curves, n, argv[2], argv[1]);
    for (int i = 0; i < n; i++) {
        free((void *)curves[i].x);
        free((void *)curves[i].y);
    }
    return !ok;
}
