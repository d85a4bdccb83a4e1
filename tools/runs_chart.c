/* Draws one column of the log.csv of several runs of `jem train` into one picture, a colour for
   each group of runs, and prints what the groups' runs had at a quarter, half, and the end:

       runs_chart OUT.png TITLE COLUMN NAME RUN... -- NAME RUN... */
#define JEM_IMPLEMENTATION
#include "../jem.h"
#include "chart.h"

enum { GROUPS = 6, RUNS = 48, LINE = 1024 };
static const unsigned colours[GROUPS] = {
    0x9fc3e8, 0xd2491e, 0x2e8b57, 0x8b3a8b, 0x777777, 0xb22222
};

/* Which column, counted from 0, is called so; -1: none. */
static int column_of(const char *header, const char *name) {
    const size_t n = strlen(name);
    for (int c = 0;; c++) {
        const size_t wide = strcspn(header, ",\r\n");
        if (wide == n && !strncmp(header, name, n)) return c;
        if (header[wide] != ',') return -1;
        header += wide + 1;
    }
}

/* The first column and one more of RUN/log.csv. */
static int read_run(const char *run, const char *name, curve *c) {
    char path[LINE], line[LINE];
    float *x = NULL, *y = NULL;
    int room = 0, n = 0, column = -1;
    snprintf(path, sizeof path, "%s/log.csv", run);
    FILE *f = fopen(path, "r");
    if (f && fgets(line, sizeof line, f)) column = column_of(line, name);
    while (column >= 0 && fgets(line, sizeof line, f)) {
        const char *s = line;
        for (int i = 0; i < column && s; i++) s = strchr(s, ','), s += s != NULL;
        if (!s) continue;
        if (n == room) {
            room = 2 * room + 64;
            float *more_x = (float *)realloc(x, (size_t)room * sizeof *x);
            if (more_x) x = more_x;
            float *more_y = (float *)realloc(y, (size_t)room * sizeof *y);
            if (more_y) y = more_y;
            if (!more_x || !more_y) break;
        }
        x[n] = strtof(line, NULL), y[n++] = strtof(s, NULL);
    }
    if (f) fclose(f);
    if (n == 0) {
        fprintf(stderr, "runs_chart: %s: no column \"%s\" with a row\n", path, name);
        free(x), free(y);
        return 0;
    }
    c->x = x, c->y = y, c->n = n;
    return 1;
}

int main(int argc, char **argv) {
    static curve curves[RUNS];
    int n = 0, group = 0, ok = argc > 5;
    if (!ok) {
        fprintf(stderr, "runs_chart OUT.png TITLE COLUMN NAME RUN... -- NAME RUN...\n");
        return 2;
    }
    for (int i = 4; ok && i < argc && group < GROUPS; i++, group++) {
        const char *name = argv[i++];
        int first = n;
        for (; ok && i < argc && strcmp(argv[i], "--") && n < RUNS; i++, n++) {
            curves[n].name = n == first ? name : "", curves[n].colour = colours[group];
            curves[n].width = group ? 1.4f : 5;    /* where others lie on the first, it still shows */
            ok = read_run(argv[i], argv[3], curves + n);
        }
        if (!ok) break;
        printf("%-12s", name);
        for (int part = 1; part <= 4; part += part) {
            printf("   %s:", part == 4 ? "end" : part == 2 ? "half" : "quarter");
            for (int k = first; k < n; k++)
                printf(" %.4f", (double)curves[k].y[curves[k].n * part / 4 - 1]);
        }
        printf("\n");
    }
    plot p;
    if (ok && (ok = plot_create(&p, 900, 420, 0, 900, 420, 0))) {
        panel all;
        memset(&all, 0, sizeof all);
        all.title = argv[2], all.x_name = "updates";
        all.left = 80, all.top = 60, all.right = 870, all.bottom = 370;
        all.curves = curves, all.n = n;
        draw_panel(&p, &all);
        ok = plot_write(&p, argv[1]);
        if (!ok) fprintf(stderr, "runs_chart: %s: cannot be written\n", argv[1]);
        plot_free(&p);
    }
    for (int i = 0; i < n; i++) free((void *)curves[i].x), free((void *)curves[i].y);
    return ok ? 0 : 1;
}
