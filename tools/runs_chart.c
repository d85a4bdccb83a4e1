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

static int read_run(const char *run, const char *name, curve *c) {
    char path[LINE];
    int n;
    snprintf(path, sizeof path, "%s/log.csv", run);
    float *x = chart_column(path, "update", &n);
    float *y = chart_column(path, name, &c->n);
    if (x && y && n == c->n) return c->x = x, c->y = y, 1;
    fprintf(stderr, "runs_chart: %s: no column \"%s\" with a row\n", path, name);
    free(x);
    free(y);
    return 0;
}

int main(int argc, char **argv) {
    static curve curves[RUNS];
    int n = 0;
    int group = 0;
    int ok = argc > 5;
    if (!ok) {
        fprintf(stderr, "runs_chart OUT.png TITLE COLUMN NAME RUN... -- NAME RUN...\n");
        return 2;
    }
    for (int i = 4; ok && i < argc; i++, group++) {
        if (group == GROUPS) {
            fprintf(stderr, "runs_chart: more than %d groups\n", GROUPS);
            ok = 0;
            break;
        }
        const char *name = argv[i++];
        int first = n;
        for (; ok && i < argc && strcmp(argv[i], "--"); i++, n++) {
            if (n == RUNS) {
                fprintf(stderr, "runs_chart: more than %d runs\n", RUNS);
                ok = 0;
                break;
            }
            curves[n].name = n == first ? name : "";
            curves[n].colour = colours[group];
            curves[n].width = group ? 1.4f : 5;    /* the first shows also under others */
            ok = read_run(argv[i], argv[3], curves + n);
        }
        if (!ok) break;
        if (n == first) {
            fprintf(stderr, "runs_chart: %s: a group without runs\n", name);
            ok = 0;
            break;
        }
        printf("%-12s", name);
        for (int part = 1; part <= 4; part += part) {
            printf("   %s:", part == 4 ? "end" : part == 2 ? "half" : "quarter");
            for (int k = first; k < n; k++) {
                int at = curves[k].n * part / 4 - 1;       /* rows may be empty: the last one */
                while (at > 0 && !isfinite(curves[k].y[at])) at--;
                printf(" %.4f", (double)curves[k].y[at > 0 ? at : 0]);
            }
        }
        printf("\n");
    }
    plot p;
    if (ok && (ok = plot_create(&p, 900, 420, 0, 900, 420, 0))) {
        panel all;
        memset(&all, 0, sizeof all);
        all.title = argv[2];
        all.x_name = "updates";
        all.left = 80;
        all.top = 60;
        all.right = 870;
        all.bottom = 370;
        all.curves = curves;
        all.n = n;
        draw_panel(&p, &all);
        ok = plot_write(&p, argv[1]);
        if (!ok) fprintf(stderr, "runs_chart: %s: cannot be written\n", argv[1]);
        plot_free(&p);
    }
    for (int i = 0; i < n; i++) {
        free((void *)curves[i].x);
        free((void *)curves[i].y);
    }
    return ok ? 0 : 1;
}
