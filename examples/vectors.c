/* QUESTION  Which readings of a machine's sensors are unusual?

   FORMULA   log p(x) = log t(x) + f(x), with a Student density t whose scale matrix is
             the covariance of the data. The network learns to tell data from draws of t:
             noise-contrastive estimation (Gutmann and Hyvarinen 2010). A reading is unusual if log
             p(x) is below that of 99% of readings that were held out.

   LOOK FOR  Left: log p(x) of two sensors whose readings form two rings, and the limit as a white
             line. Right: log p(x) of twelve sensors, usual readings on top, then four kinds of
             failures. 'A stuck sensor' shows a value that is usual for it; log p(x) falls because
             the value does not fit those of the others. Which sensor has failed? The one whose
             replacement raises log p(x) most is named; the table shows how often that is the right
             one, of strange readings with one wrong sensor.

   TRY       RINGS instead of CIRCLES in draw_rings(): how many updates do four rings need? Fewer
             ROWS: with how many does log p(x) become worse than familiarity?

   RUN       build/vectors                          data made here; build/pictures/vectors.png
             build/vectors TRAIN.csv TEST.csv       a line per row of TEST.csv: log p(x),
                                                    familiarity, verdict; with a column `label`, 0
                                                    for usual rows and 1 for others, AUROC too
             build/vectors --write FOLDER           sensors.csv, usual readings of this machine, and
                                                    new.csv, of which rows 17 to 20 are not usual,
                                                    for `jem train` and `jem score` */
#define JEM_IMPLEMENTATION
#include "jem.h"

#include "points.h"
#include "tools/support/chart.h"
#include "tools/support/measures.h"
#include "tools/support/table.h"

enum { UPDATES = 2000, BATCH = 64 };
enum { SENSORS = 12, REGIMES = 3, CAUSES = 2, ROWS = 2500, TEST = 1000, KINDS = 5 };
static const char *const kinds[KINDS] = {
    "usual readings", "twice the noise", "a stuck sensor", "an offset", "two regimes mixed"
};

/* ---- the recipe ------------------------------------------------------------------------------ */

/* Compares two answers by log p(x), for qsort: the lowest comes first. */
static int compare_densities(const void *a, const void *b) {
    const float x = ((const jem_answer *)a)->log_density;
    const float y = ((const jem_answer *)b)->log_density;
    return (x > y) - (x < y);
}

/* Trains a network on x[n][length] without labels: on four fifths of the rows, in random order;
   the others calibrate it. Shuffles x. limit (may be NULL) receives the value of log p(x) that
   1% of the last fifth are below. */
static jem_net *learn(jem_ctx *ctx, float *x, int n, int length, int updates, float *limit) {
    const jem_mlp_desc shape = jem_mlp_desc_vectors(length, 1);
    const jem_train_desc how = jem_train_desc_vectors(updates);
    const int held_out = n / 5;
    const int taught = n - held_out;
    float *batch = (float *)malloc((size_t)BATCH * (size_t)length * sizeof *batch);
    int labels[BATCH] = { 0 };
    jem_rng rng = jem_rng_seed(1);
    if (!batch) jem_fail(ctx, JEM_NO_MEMORY, "learn: no memory for a batch");
    for (int i = n - 1; i > 0; i--) {
        const int other = jem_rng_below(&rng, i + 1);
        for (int k = 0; k < length; k++) {
            const float kept = x[i * length + k];
            x[i * length + k] = x[other * length + k];
            x[other * length + k] = kept;
        }
    }
    jem_net *net = jem_mlp_create(ctx, &shape, 1);
    jem_net_fit_units(net, x, taught);
    jem_trainer *trainer = jem_trainer_create(net, &how);
    for (int u = 0; batch && u < updates && jem_ok(ctx); u++) {
        for (int i = 0; i < BATCH; i++)
            memcpy(batch + i * length, x + jem_rng_below(&rng, taught) * length,
                   (size_t)length * sizeof *x);
        jem_train_step(trainer, batch, labels, BATCH);
    }
    jem_trainer_use_average(trainer, 1);
    jem_trainer_free(trainer);
    free(batch);
    jem_calibrate(net, x + taught * length, held_out, JEM_AUTO);
    if (!limit || !jem_ok(ctx)) return net;
    jem_answer *a = (jem_answer *)malloc((size_t)held_out * sizeof *a);
    if (!a) jem_fail(ctx, JEM_NO_MEMORY, "learn: no memory for the limit");
    if (a && jem_classify(net, x + taught * length, held_out, a) == JEM_OK) {
        qsort(a, (size_t)held_out, sizeof *a, compare_densities);
        *limit = a[held_out / 100].log_density;
    }
    free(a);
    return net;
}

/* ---- the machine ----------------------------------------------------------------------------- */

/* In each regime, twelve sensors follow two hidden causes. */
typedef struct machine { float mean[REGIMES][SENSORS], gain[REGIMES][CAUSES][SENSORS]; } machine;

static machine machine_create(jem_rng *rng) {
    machine m;
    for (int r = 0; r < REGIMES; r++)
        for (int i = 0; i < SENSORS; i++) {
            m.mean[r][i] = 2 * jem_rng_normal(rng);
            for (int c = 0; c < CAUSES; c++) m.gain[r][c][i] = jem_rng_normal(rng);
        }
    return m;
}

/* Reads the sensors n times. Sensor i has an offset, and a unit of its own: 10^(i-4). which[n]
   receives the sensor that fails in kinds 2 and 3. */
static void measure(const machine *m, jem_rng *rng, int kind, int n, float *x, int *which) {
    const float noise = kind == 1 ? 0.5f : 0.25f;
    for (int k = 0; k < n; k++) {
        const int regime = jem_rng_below(rng, REGIMES);
        const int failing = jem_rng_below(rng, SENSORS);
        which[k] = failing;
        float cause[CAUSES];
        for (int c = 0; c < CAUSES; c++) cause[c] = jem_rng_normal(rng);
        for (int i = 0; i < SENSORS; i++) {
            int r = regime;
            if (kind == 4 && i % 2) r = (regime + 1) % REGIMES;
            float v = m->mean[r][i] + noise * jem_rng_normal(rng);
            for (int c = 0; c < CAUSES; c++) v += cause[c] * m->gain[r][c][i];
            if (kind == 2 && i == failing) v = m->mean[0][i];
            if (kind == 3 && i == failing) v += 1.5f;
            x[k * SENSORS + i] = powf(10, (float)(i - 4)) * (v + 5 * (float)i);
        }
    }
}

/* ---- the picture ----------------------------------------------------------------------------- */

enum { SIDE = 420, WIDTH = 1000 };

/* Draws log p(x) of rings into the left of the page. */
static int draw_rings(jem_ctx *ctx, plot *page) {
    static float x[2 * ROWS], u[2 * ROWS], logp[1];
    static int labels[ROWS];
    const float most = 2.9f;
    float limit = 0;
    plot p;
    jem_rng rng = jem_rng_seed(5);
    world_sample(CIRCLES, &rng, ROWS, x, labels);
    jem_net *net = learn(ctx, x, ROWS, 2, UPDATES, &limit);
    if (!net) return 0;
    if (!plot_create(&p, SIDE, SIDE, -most, most, -most, most)) {
        jem_net_free(net);
        return 0;
    }
    /* log p(u) - log p(x) is a constant, measured at the first point: the limit is one of x */
    jem_answer answer = { 0, 0, 0, 0, JEM_REASON_NONE };
    jem_standardize(net, x, ROWS, u);
    jem_classify(net, x, 1, &answer);
    jem_tensor *first = jem_logp(ctx, jem_input(ctx, u, 1, 2, 1, 1), net);
    jem_read(first, logp);
    const int drawn = plot_function(&p, ctx, jem_logp, net) == JEM_OK;
    plot_heat(&p, -8, 0);
    plot_contour(&p, limit + logp[0] - answer.log_density, 2, 0xffffff);
    for (int i = 0; i < 400; i++) plot_dot(&p, u[2 * i], u[2 * i + 1], 2.2f, 0x4db8ff);
    plot_put(page, 0, 0, &p);
    plot_free(&p);
    jem_net_free(net);
    return drawn;
}

/* Draws log p(x) of a kind as a row of dots, from the limit - 40 or less on the left to + 34. */
static void draw_row(plot *page, int kind, const float *logp, float limit, jem_rng *rng) {
    const float left = SIDE + 40;
    const float right = WIDTH - 30;
    const float top = 70 + 68 * (float)kind;
    const float scale = (right - left) / 74;
    text(page, left, top - 15, 2, 0x333333, kinds[kind]);
    plot_line(page, left, top + 42, right, top + 42, 1, 0xdddddd);
    for (int i = 0; i < 400; i++) {
        const float at = left + scale * (fmaxf(logp[i] - limit, -40) + 40);
        const int low = logp[i] < limit;
        plot_dot(page, at, top + 6 + 32 * jem_rng_uniform(rng), 2.5f, low ? 0xd2691e : 0x1f5fb4);
    }
    const float mark = left + scale * 40;
    plot_line(page, mark, top, mark, top + 42, 1.5f, 0x333333);
}

/* ---- two ways to run ------------------------------------------------------------------------- */

/* Returns the share of strange readings of which the failing sensor has the largest gain, in
   percent. */
static double share_named(jem_net *net, const float *x, const jem_answer *a, const int *which) {
    float gain[SENSORS];
    int strange = 0;
    int named = 0;
    for (int i = 0; i < TEST; i++) {
        int most = 0;
        if (jem_judge(a[i].familiarity) != JEM_VERDICT_STRANGE) continue;
        if (jem_blame_values(net, x + i * SENSORS, 1, gain, NULL) != JEM_OK) return 0;
        for (int k = 1; k < SENSORS; k++) if (gain[k] > gain[most]) most = k;
        strange++;
        named += most == which[i];
    }
    return strange ? 100.0 * named / strange : 0;
}

/* Prints a row of the table, but for the last column: AUROC of both scores, and the share of x that
   each calls unusual. */
static int print_kind(int kind, const jem_answer *usual, const jem_answer *a, float limit) {
    static float score[4][TEST];
    detection by_density, by_familiarity;
    int low = 0;
    int strange = 0;
    for (int i = 0; i < TEST; i++) {
        score[0][i] = usual[i].log_density;
        score[1][i] = a[i].log_density;
        score[2][i] = usual[i].familiarity;
        score[3][i] = a[i].familiarity;
        low += a[i].log_density < limit;
        strange += jem_judge(a[i].familiarity) == JEM_VERDICT_STRANGE;
    }
    if (!measure_detection(score[0], TEST, score[1], TEST, &by_density)) return 0;
    if (!measure_detection(score[2], TEST, score[3], TEST, &by_familiarity)) return 0;
    printf("  %-18s  %.3f %7.1f%%       %.3f %7.1f%%", kinds[kind], by_density.auroc,
           100.0 * low / TEST, by_familiarity.auroc, 100.0 * strange / TEST);
    return 1;
}

static int show_machine(jem_ctx *ctx, plot *page) {
    static float x[ROWS * SENSORS], logp[TEST];
    static jem_answer usual[TEST], a[TEST];
    static int which[ROWS];
    jem_rng rng = jem_rng_seed(3);
    const machine m = machine_create(&rng);
    float limit = 0;
    measure(&m, &rng, 0, ROWS, x, which);
    jem_net *net = learn(ctx, x, ROWS, SENSORS, UPDATES, &limit);
    printf("  %-18s  log p(x)              familiarity           sensor\n", "");
    printf("  %-18s  AUROC  below 1%%       AUROC  below 1%%       named\n", "");
    text(page, SIDE + 40, 18, 2.6f, 0x333333, "log p(x) of twelve sensors");
    text(page, SIDE + 40, 396, 2, 0xb4521a, "below the limit");
    text_right(page, WIDTH - 30, 396, 2, 0x1f5fb4, "above the limit");
    int ok = net != NULL;
    for (int kind = 0; ok && kind < KINDS; kind++) {
        measure(&m, &rng, kind, TEST, x, which);
        ok = jem_classify(net, x, TEST, a) == JEM_OK;
        if (kind == 0) memcpy(usual, a, sizeof a);
        ok = ok && print_kind(kind, usual, a, limit);
        if (ok && (kind == 2 || kind == 3))
            printf("  %9.1f%%\n", share_named(net, x, a, which));
        else printf("           -\n");
        for (int i = 0; i < TEST; i++) logp[i] = a[i].log_density;
        if (ok) draw_row(page, kind, logp, limit, &rng);
    }
    jem_net_free(net);
    return ok;
}

/* Writes readings as a table, with the names of the sensors in its first line. */
static int write_table(jem_ctx *ctx, const char *folder, const char *name, const float *x, int n) {
    char path[512];
    char text[32];
    snprintf(path, sizeof path, "%.400s/%s", folder, name);
    jem_file *f = jem_file_create(ctx, path);
    if (!f) return 0;
    for (int i = 0; i < (n + 1) * SENSORS; i++) {
        const char end = (i + 1) % SENSORS ? ',' : '\n';
        if (i < SENSORS) snprintf(text, sizeof text, "sensor%d%c", i + 1, end);
        else snprintf(text, sizeof text, "%.6g%c", (double)x[i - SENSORS], end);
        jem_file_put(f, text, strlen(text));
    }
    const jem_status status = jem_file_commit(f);
    jem_file_free(f);
    if (status == JEM_OK) printf("%s: %d rows\n", path, n);
    return status == JEM_OK;
}

/* Writes usual readings, and new ones, the last four with a failure of each kind. */
static int write_tables(jem_ctx *ctx, const char *folder) {
    enum { NEW = 20 };
    static float x[ROWS * SENSORS], fresh[NEW * SENSORS];
    static int which[ROWS];
    jem_rng rng = jem_rng_seed(3);
    const machine m = machine_create(&rng);
    measure(&m, &rng, 0, ROWS, x, which);
    measure(&m, &rng, 0, NEW, fresh, which);
    for (int kind = 1; kind < KINDS; kind++)
        measure(&m, &rng, kind, 1, fresh + (NEW - KINDS + kind) * SENSORS, which);
    return write_table(ctx, folder, "sensors.csv", x, ROWS) &&
           write_table(ctx, folder, "new.csv", fresh, NEW);
}

/* Trains on a file, and prints what it says about each row of another. */
static int score_file(jem_ctx *ctx, const char *train_path, const char *test_path) {
    csv_table train, test;
    table_desc same;
    char error[256];
    memset(&test, 0, sizeof test);
    memset(&same, 0, sizeof same);
    int ok = table_load(&train, train_path, NULL, error, sizeof error);
    if (ok && train.rows < 10) {
        snprintf(error, sizeof error, "%.200s: has %d rows; 10 are needed", train_path, train.rows);
        ok = 0;
    }
    if (ok) {                                      /* the same columns, whatever their order */
        same.columns = table_is_number(train.names[0]) ? NULL : train.names;
        same.n_columns = train.columns;
        same.label_optional = 1;
        same.any_label = 1;
        ok = table_load(&test, test_path, &same, error, sizeof error);
    }
    if (!ok) fprintf(stderr, "vectors: %s\n", error);
    jem_net *net = ok ? learn(ctx, train.x, train.rows, train.columns, UPDATES, NULL) : NULL;
    jem_answer *a = (jem_answer *)malloc(((size_t)test.rows + 1) * sizeof *a);
    float *score = (float *)malloc(((size_t)test.rows + 1) * sizeof *score);
    if (!a || !score) fprintf(stderr, "vectors: %s: no memory for %d rows\n", test_path, test.rows);
    ok = net && a && score && jem_classify(net, test.x, test.rows, a) == JEM_OK;
    for (int i = 0; ok && i < test.rows; i++)
        printf("%.6g,%.4f,%s\n", (double)a[i].log_density,
               (double)floorf(1e4f * a[i].familiarity) / 1e4,  /* .00999, which is strange: .0099 */
               jem_verdict_name(jem_judge(a[i].familiarity)));
    for (int by = 0; ok && test.labels && by < 2; by++) {
        detection d;
        for (int i = 0; i < test.rows; i++) score[i] = by ? a[i].familiarity : a[i].log_density;
        if (measure_labelled(score, test.labels, test.rows, table_usual_label(&test), &d))
            fprintf(stderr, "AUROC of %s: %.4f\n", by ? "familiarity" : "log p(x)", d.auroc);
    }
    free(a);
    free(score);
    jem_net_free(net);
    table_free(&train);
    table_free(&test);
    return ok;
}

int main(int argc, char **argv) {
    jem_ctx *ctx = jem_ctx_create(NULL);
    int ok = ctx != NULL;
    if (argc == 3 && !strcmp(argv[1], "--write")) ok = ok && write_tables(ctx, argv[2]);
    else if (argc == 3) ok = ok && score_file(ctx, argv[1], argv[2]);
    else if (argc > 1) {
        fprintf(stderr, "usage: vectors [TRAIN.csv TEST.csv | --write FOLDER]\n");
        ok = 0;
    } else {
        plot page;
        ok = ok && plot_create(&page, WIDTH, SIDE, 0, WIDTH, SIDE, 0);
        if (ok) {
            ok = draw_rings(ctx, &page) && show_machine(ctx, &page);
            ok = ok && plot_write(&page, "build/pictures/vectors.png");
            plot_free(&page);
        }
    }
    const int failed = report(ctx) || !ok;
    if (!failed && argc == 1) printf("picture: build/pictures/vectors.png\n");
    jem_ctx_free(ctx);
    return failed;
}
