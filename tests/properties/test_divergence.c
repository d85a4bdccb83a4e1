/* Training that is made to diverge in eleven ways, and recovers: `jem train` (tools/cli/train.c),
   with its steps controlled by this test. For each run: the divergence is detected, at once if a
   number is not finite; each rollback is printed on stderr and counted in log.csv; there are at
   most --retries of them; all saved values are finite; the status is 0; and the model classifies
   as well as that of an undisturbed run (WORSE, below).

       build/test_divergence          each way once, in some seconds
       build/test_divergence all      each with ten seeds: 110 runs (make diverge)
       build/test_divergence 3 7      the fourth way, seed 7, with its whole output */
#ifndef _DEFAULT_SOURCE
#define _DEFAULT_SOURCE
#endif
#include <ctype.h>
#include <dirent.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define JEM_IMPLEMENTATION
#include "jem.h"
#include "tests/support/test.h"
#include "tests/support/common.h"

enum { RATE, BATCH, OP, WEIGHT, SATURATE, COLLAPSE, JUMP, STEP, OPTIMISER, SCORE,
       LATE_STEP, WAYS };
static const char *const ways[WAYS] = {
    "rate x 30", "hostile batch", "NaN in an op", "weight", "chains saturate", "chains collapse",
    "gradient jumps", "SGLD step x 1000", "optimiser poisoned", "score explodes",
    "late steps x 1000"
};

enum { SEEDS = 10, UPDATES = 600, TIMES = 3 };
/* Allowed loss of accuracy compared with the mean of healthy runs, in percent of the 1,000 test
   images: three times the standard deviation of such a percentage. */
#define WORSE 3.0

/* What is done to a run, and what it noticed; in memory that parent and child share. */
static struct shared {
    int way, seed, at, long_for, passes;           /* -1: nothing; from this update on, for
                                                      long_for updates; number of passes */
    int armed;                                     /* the op below does its work */
    int first, noticed;                            /* updates: of the first harm, of its notice */
    int steps, errors, harms;
    int unsound;                                   /* saved, and not finite */
} *shared;
static jem_net *hurt;                              /* the network in training */
static jem_forward_fn plain_forward;

/* ---- what is done to it ---------------------------------------------------------------------- */

/* The identity; while it is armed, something else comes out of it, or goes back. */
static void hostile_forward(const jem_call *c) {
    const ptrdiff_t size = (ptrdiff_t)c->out.c * c->out.h * c->out.w * JEM_LANES;
    memcpy(c->y, c->x[0], (size_t)size * sizeof *c->y);
    if (shared->armed && shared->way == OP && shared->seed % 4 < 2)
        c->y[size / 2] = NAN;
}
static void hostile_backward(const jem_call *c) {
    const ptrdiff_t size = (ptrdiff_t)c->out.c * c->out.h * c->out.w * JEM_LANES;
    float more = 1;
    if (shared->armed && shared->way == JUMP) more = 1e7f;
    for (ptrdiff_t i = 0; c->dx[0] && i < size; i++) c->dx[0][i] += more * c->dy[i];
    if (c->dx[0] && shared->armed && shared->way == OP && shared->seed % 4 > 1)
        c->dx[0][size / 2] = NAN;
}
static const jem_op hostile_op = { "hostile", hostile_forward, hostile_backward, 0, NULL };

static jem_tensor *hostile(jem_tensor *x) {
    if (!x) return NULL;
    const jem_shape out = { x->n, x->c, x->h, x->w };
    return jem_custom(x->ctx, &hostile_op, &x, 1, out, NULL, 0, 0);
}
static jem_tensor *hurt_forward(jem_net *net, jem_tensor *x, int training, void *user) {
    if (shared->way == OP && shared->seed % 2)     /* before the network, or behind it */
        return plain_forward(net, hostile(x), training, user);
    return hostile(plain_forward(net, x, training, user));
}

/* A number of the optimiser's, by the archive that points at it. */
static float *moment(jem_trainer *tr, const char *kind, ptrdiff_t *size) {
    jem_archive *a = jem_archive_create(hurt->ctx);
    float *found = NULL;
    jem_trainer_to_archive(tr, a);
    for (int i = 0; i < jem_archive_count(a) && !found; i++) {
        const jem_entry *e = jem_archive_at(a, i);
        if (strncmp(e->name, kind, strlen(kind))) continue;
        found = (float *)(uintptr_t)e->data;
        *size = (ptrdiff_t)(e->bytes / sizeof *found);
    }
    jem_archive_free(a);
    return found;
}

static void harm(jem_trainer *tr, jem_rng *rng, float *x, int *y, int n) {
    const jem_buffer *b = jem_trainer_buffer(tr);
    const ptrdiff_t image = (ptrdiff_t)hurt->channels * hurt->height * hurt->width;
    const int seed = shared->seed;
    ptrdiff_t size = 0;
    if (shared->way == BATCH) {
        static const float factors[4] = { 30, 300, 3000, 9999 };
        for (ptrdiff_t i = 0; i < n * image; i++) {
            x[i] = factors[seed % 4];
            if (jem_rng_uniform(rng) < .5f) x[i] = -x[i];
        }
        for (int i = 0; i < n; i++) y[i] = (y[i] + 1) % hurt->classes;
    } else if (shared->way == WEIGHT) {
        static const float with[4] = { NAN, INFINITY, -INFINITY, 1e30f };
        jem_param *p = hurt->params;
        for (int k = seed % 6; k > 0 && p->next; k--) p = p->next;
        p->value[jem_rng_below(rng, (int)p->size)] = with[seed % 4];
        jem_param_changed(p);
    } else if (shared->way == SATURATE || shared->way == COLLAPSE) {
        for (ptrdiff_t i = 0; i < b->capacity * image; i++) {
            if (shared->way == COLLAPSE) b->data[i] = b->data[i % image];
            else b->data[i] = jem_rng_below(rng, 2) ? 2.0f : -2.0f;
        }
        for (int i = 0; i < b->capacity; i++) b->visits[i] += !b->visits[i];
    } else if (shared->way == OPTIMISER) {
        static const char *const kinds[3] = { "optim.m.", "optim.v.", "optim.v." };
        static const float with[3] = { NAN, NAN, -1 };
        float *m = moment(tr, kinds[seed % 3], &size);
        CHECK(m != NULL, "moments are in the archive");
        for (ptrdiff_t i = 0; m && i < size; i++) m[i] = with[seed % 3];
    } else if (shared->way == SCORE) {
        hurt->scale *= seed % 2 ? 1000.0f : 30.0f;
    }
}

/* In the place of jem_train_step_semi: the harm, the step. */
static jem_stats hostile_step(jem_trainer *tr, float *x, int *y, int n, const float *more,
                              int n_more) {
    const int update = jem_trainer_updates(tr);
    const float scale = hurt->scale;
    if (shared->passes > 0 && update >= shared->at && update < shared->at + shared->long_for) {
        jem_rng rng = jem_rng_seed((uint64_t)(shared->seed * 100 + shared->harms));
        if (!shared->harms++) shared->first = update;
        shared->armed = 1;
        harm(tr, &rng, x, y, n);
    }
    const jem_stats s = jem_train_step_semi(tr, x, y, n, more, n_more);
    shared->armed = 0;
    hurt->scale = scale;
    shared->steps++;
    if (s.rolled_back) shared->passes -= update >= shared->at;
    if (s.status != JEM_OK) shared->errors++;
    return s;
}

/* ... of jem_trainer_create: the network, with that op in it. */
static jem_trainer *hurt_create(jem_net *net, const jem_train_desc *d) {
    if (net && net != hurt && (shared->way == OP || shared->way == JUMP)) {
        plain_forward = net->forward;
        net->forward = hurt_forward;
    }
    hurt = net;
    return jem_trainer_create(net, d);
}

/* ... of jem_archive_write: what is written is finite. */
static jem_status watched_write(const jem_archive *a, const char *path) {
    for (int i = 0; i < jem_archive_count(a); i++) {
        const jem_entry *e = jem_archive_at(a, i);
        const float *x = (const float *)e->data;
        for (size_t k = 0; e->dtype == JEM_DTYPE_F32 && k < e->bytes / sizeof *x; k++)
            if (!isfinite(x[k])) shared->unsound++;
    }
    return jem_archive_write(a, path);
}

#define jem_train_step_semi hostile_step
#define jem_trainer_create hurt_create
#define jem_archive_write watched_write
#include "tools/cli/train.c"
#undef jem_train_step_semi
#undef jem_trainer_create
#undef jem_archive_write

/* ---- a run ----------------------------------------------------------------------------------- */

/* Digits, made smaller, in two sheets that load at once. */
static void make_set(void) {
    enum { SIDE = 12, ACROSS = 20 };
    static const char *const names[2] = { "train", "test" };
    static const int sizes[2] = { 3000, 1000 };
    data_desc d;
    char error[256], path[32];
    memset(&d, 0, sizeof d);
    d.height = d.width = SIDE;
    d.resize = DATA_FIT;
    mkdir("set", 0777);
    for (int half = 0; half < 2; half++) {
        const char *name = names[half];
        const int n = sizes[half];
        data_set s;
        if (!CHECK(data_load(&s, "digits", name, &d, error, sizeof error), "%s", error)) exit(1);
        unsigned char *sheet = (unsigned char *)malloc((size_t)(n * SIDE * SIDE));
        snprintf(path, sizeof path, "set/%s.txt", name);
        FILE *f = fopen(path, "w");
        for (int i = 0; i < n && sheet && f; i++) {
            const int from = (int)((long)i * 7919 % s.n);  /* all classes, mixed */
            for (int k = 0; k < SIDE * SIDE; k++)
                sheet[((i / ACROSS * SIDE + k / SIDE) * ACROSS + i % ACROSS) * SIDE + k % SIDE] =
                    s.pixels[from * SIDE * SIDE + k];
            fprintf(f, "%d\n", s.labels[from]);
        }
        snprintf(path, sizeof path, "set/%s.png", name);
        CHECK(sheet && f && !fclose(f) && stbi_write_png(path, ACROSS * SIDE, n / ACROSS * SIDE, 1,
                                                         sheet, ACROSS * SIDE), "%s", path);
        free(sheet);
        data_free(&s);
    }
}

#define OPTIONS "train --dataset set --preset fast --threads 1 --widths 12,24 --batch-size 32 " \
                "--n-steps 5 --buffer-size 200 --negatives 16 --n-valid 300 --print-every 20 " \
                "--warmup-iters 20 --clip-grad 0 --sigma .03 --label-noise 0 --label-wide 0 " \
                "--p-y-given-x-weight 1 --optimizer adam --ema .999 --out run "
/* Chains from the first update on, which diverge most easily; a folder's preset begins them
   late. */
#define CHAINS "--scale 1 --score-weight 0 --p-x-weight .1 --chains-from 0 --fresh-steps 0 " \
               "--sgld-std .01 "
/* A score first, and chains for the last updates. */
#define SCORES "--scale 10 --score-weight .016 --p-x-weight .003 --sgld-std .1 --chains-from .7 " \
               "--fresh-steps 50 "

typedef struct outcome { int status, retries, printed, rows; double accuracy; } outcome;

static char said[20000];

static void read_said(const char *path) {
    FILE *f = fopen(path, "r");
    size_t n = 0;
    if (f) {
        n = fread(said, 1, sizeof said - 1, f);
        fclose(f);
    }
    said[n] = 0;
}
static void remove_run(void) {
    DIR *dir = opendir("run");
    char path[300];
    for (struct dirent *e; dir && (e = readdir(dir)); )
        if (snprintf(path, sizeof path, "run/%.250s", e->d_name) > 0) remove(path);
    if (dir) closedir(dir);
    rmdir("run");
}

static void remove_set(void) {
    static const char *const files[] = {
        "out", "err", "examples", "set/train.png", "set/train.txt", "set/test.png", "set/test.txt"
    };
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) remove(files[i]);
    rmdir("set");
}

/* Returns 1 if options of the run are the harm. */
static int is_by_options(int way) { return way == RATE || way == STEP || way == LATE_STEP; }

/* Returns the number of rows of log.csv; a negative one if their updates are not in order. */
static int log_rows(void) {
    char line[1000];
    int rows = 0;
    int last = 0;
    FILE *log = fopen("run/log.csv", "r");
    for (int update; log && fgets(line, sizeof line, log); ) {
        if (sscanf(line, "%d,", &update) != 1) continue;
        if (update > last) rows++;
        else rows = -1000;
        last = update;
    }
    if (log) fclose(log);
    return rows;
}

/* `jem train` in a process of its own, with what is done to it at update `at`; -1: nothing. */
static outcome run_train(int way, int seed, int at) {
    const char *with = CHAINS "--sgld-lr 1 ";
    if (way == SCORE || way == LATE_STEP) with = SCORES "--sgld-lr .01 ";
    if (way == LATE_STEP && at >= 0) with = SCORES "--sgld-lr 1000 ";
    if (way == STEP && at >= 0) with = CHAINS "--sgld-lr 1000 ";
    const char *rate = "2e-3";
    if (way == RATE && at >= 0) rate = "6e-2";
    char line[1000], *words[64];
    int n = 0;
    outcome o = { 0, 0, 0, 0, 0 };
    memset(shared, 0, sizeof *shared);
    shared->way = way;
    shared->seed = seed;
    shared->at = at;
    shared->noticed = -1;
    if (at >= 0 && !is_by_options(way)) shared->passes = 1 + (seed % 5 == 4);
    shared->long_for = 1;
    if (way == BATCH || way == SCORE) shared->long_for = TIMES;
    remove_run();
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        snprintf(line, sizeof line, "jem " OPTIONS "--iters %d --seed %d --lr %s %s", UPDATES,
                 seed + 1, rate, with);
        for (char *w = strtok(line, " "); w && n < 63; w = strtok(NULL, " ")) words[n++] = w;
        words[n] = NULL;
        if (!freopen("out", "w", stdout) || !freopen("err", "w", stderr)) _exit(98);
        const int status = train_command(n, words);
        fflush(stdout);
        fflush(stderr);
        _exit(status);
    }
    if (child < 0 || waitpid(child, &o.status, 0) != child) o.status = -1;
    o.status = WIFEXITED(o.status) ? WEXITSTATUS(o.status) : 1000 + o.status;
    read_said("out");
    const char *end = strstr(said, "test images: accuracy ");
    if (!end || sscanf(end, "test images: accuracy %lf%%, -log p(y|x) %*f; retries: %d",
                       &o.accuracy, &o.retries) != 2) o.accuracy = -1;
    o.rows = log_rows();
    read_said("err");
    for (const char *c = said; (c = strstr(c, "; rollback to update ")) != NULL; c++) o.printed++;
    const char *first = strstr(said, "jem train: update ");
    if (first) shared->noticed = atoi(first + 18) - 1;       /* they count from 1 here */
    return o;
}

/* Where a run is hurt: also just before, at and after a state is remembered. */
static int place_of(int seed) {
    static const int at[SEEDS] = { 137, 99, 100, 101, 251, 30, 199, 200, 320, 410 };
    return at[seed % SEEDS];
}

static int check_run(int way, int seed, double healthy, int loud) {
    const int failed = test__failed;
    const int at = place_of(seed);
    const outcome o = run_train(way, seed, at);
    const int notice = shared->noticed - shared->first;
    char what[100];
    snprintf(what, sizeof what, "%s, seed %d", ways[way], seed);
    if (loud) printf("%s: harmed %d times from update %d on\n%s", what, shared->harms, at, said);
    CHECK(o.status == 0, "%s: status %d", what, o.status);
    CHECK(o.accuracy >= healthy - WORSE, "%s: %.1f%%, in a healthy run %.1f%%", what, o.accuracy,
          healthy);
    CHECK(o.retries == o.printed && o.retries <= 8, "%s: %d retries, %d printed", what, o.retries,
          o.printed);
    CHECK(o.rows >= UPDATES / 20, "%s: the log's rows: %d", what, o.rows);
    CHECK(shared->unsound == 0, "%s: %d numbers saved are not finite", what, shared->unsound);
    CHECK(is_by_options(way) || shared->harms > 0, "%s: nothing was done", what);
    if (way == OP || way == WEIGHT || way == OPTIMISER || way == JUMP)
        CHECK(o.retries > 0 && notice >= 0 && notice <= 1, "%s: noticed after %d updates", what,
              notice);
    if (way == LATE_STEP || way == SATURATE) CHECK(o.retries > 0, "%s: not noticed", what);
    if (way == STEP) CHECK(o.retries > 0 && shared->noticed < 100, "%s: noticed at %d", what,
                           shared->noticed);
    printf("%-20s seed %d: %.1f%%, %d %s, %d updates", ways[way], seed, o.accuracy, o.retries,
           o.retries == 1 ? "retry" : "retries", shared->steps);
    if (o.retries && shared->harms) printf(", noticed after %d", notice);
    if (test__failed > failed) printf("  FAILED");
    printf("\n");
    fflush(stdout);
    return test__failed == failed;
}

/* The mean accuracy of runs to which nothing is done. */
static double healthy_runs(int way, int seeds) {
    double least = 100;
    double sum = 0;
    for (int seed = 0; seed < seeds; seed++) {
        const outcome o = run_train(way, seed, -1);
        CHECK(o.status == 0 && o.retries == 0 && o.accuracy > 80 && shared->unsound == 0,
              "a healthy run: status %d, %.1f%%, %d retries\n%s", o.status, o.accuracy, o.retries,
              said);
        if (o.accuracy < least) least = o.accuracy;
        sum += o.accuracy;
    }
    printf("healthy%s: %.1f%% in the mean, at least %.1f%%\n", way == SCORE ? ", with a score" : "",
           sum / seeds, least);
    return sum / seeds;
}

/* Returns 1 if a way is selected by name, or by the given number. */
static int wants_way(int way, int only) {
    if (only >= 0) return way == only;
    return test_wants(ways[way]);
}

/* An argument that is a number, or 'all', asks for more runs; any other is the name of a way. */
int main(int argc, char **argv) {
    const int all = argc > 1 && !strcmp(argv[1], "all");
    const int only = argc > 1 && isdigit((unsigned char)argv[1][0]) ? atoi(argv[1]) : -1;
    const int many = all || only >= 0;
    const int seeds = many ? SEEDS : 1;
    const int one = argc > 2 ? atoi(argv[2]) : -1;
    int healthy = 2;                               /* runs to which nothing is done */
    if (many) healthy = SEEDS;
    if (one >= 0) healthy = 1;
    char folder[160], root[500], link[600];
    const char *base = getenv("TMPDIR");
    double well[2] = { -1, -1 };                   /* not known yet */
    if (!many) test_begin(argc, argv);
    shared = (struct shared *)mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE,
                                   MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED || !getcwd(root, sizeof root)) {
        perror("mmap");
        return 1;
    }
    snprintf(folder, sizeof folder, "%.80s/jem_test_divergence_%ld", base && *base ? base : "/tmp",
             (long)getpid());
    snprintf(link, sizeof link, "%s/examples", root);
    if (mkdir(folder, 0700) || chdir(folder) || symlink(link, "examples")) {
        perror(folder);
        return 1;
    }
    make_set();
    int good = 0;
    int runs = 0;
    for (int way = 0; way < WAYS; way++) {
        const int score = way == SCORE || way == LATE_STEP;
        double *healthy_one = &well[score];
        if (!wants_way(way, only)) continue;
        if (*healthy_one < 0) *healthy_one = healthy_runs(score ? SCORE : RATE, healthy);
        for (int k = 0; k < seeds; k++) {
            if (one >= 0 && k != one) continue;
            good += check_run(way, many ? k : way, *healthy_one, one >= 0);
            runs++;
        }
    }
    if (runs) printf("%d of %d runs end as well as a healthy one\n", good, runs);
    remove_run();
    remove_set();
    CHECK(chdir("/") == 0 && rmdir(folder) == 0, "%s is not empty", folder);
    return test_report();
}
