/* Injected failures. The life cycle of a model (train, save, load, resume, sample, classify) with a
   failure of the n-th allocation, for every n, once and permanently; with a failure of the n-th
   system call of each kind; killed before each of them. Then the same for the commands of
   tools/cli/jem.c, each in a separate process. Required: a reported error, no leaks, no file left
   over or half-written, all objects usable. This test uses internals (jem__).

       build/test_faults          some failures of the commands, in a minute or two
       build/test_faults all      all of them: half an hour (make faults) */
#ifndef _XOPEN_SOURCE
#define _XOPEN_SOURCE 700
#endif
#define _DEFAULT_SOURCE                            /* MAP_ANONYMOUS */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* ---- the system's calls, as jem.h, tools/ and stb_image meet them ---- */

enum { MEMORY, OPEN, READ, WRITE, SYNC, CLOSE, RENAME, KINDS };
static const char *const faults[KINDS] = {
    "memory", "open", "read", "write", "sync", "close", "rename"
};

/* Shared with the processes that are made to fail. */
static struct world {
    long calls[KINDS], files;                      /* so far; files: of all kinds but memory */
    int kind, on;                                  /* the fail_at-th call of this kind fails; and,*/
    long fail_at;                                  /* if `on`, all that follow */
    long kill_at;                                  /* the process ends before this call for files */
    int hit;
    long blocks, handles;                          /* that are held */
    size_t piece;                                  /* bytes of one write; 0: all */
} *world;
static FILE *broken;                               /* a stream that had an error of ours */

static int fails(int kind) {
    static const int errors[KINDS] = { ENOMEM, EIO, EIO, ENOSPC, EIO, EIO, EIO };
    world->calls[kind]++;
    if (kind != MEMORY && ++world->files == world->kill_at) raise(SIGKILL);
    const long n = world->calls[kind];
    if (kind != world->kind || !world->fail_at) return 0;
    if (world->on ? n < world->fail_at : n != world->fail_at) return 0;
    world->hit = 1;
    errno = errors[kind];
    return 1;
}
static void *held(void *p) {
    world->blocks += p != NULL;
    return p;
}
static void *world_malloc(size_t n) {
    if (fails(MEMORY)) return NULL;
    return held(malloc(n));
}
static void *world_calloc(size_t n, size_t m) {
    if (fails(MEMORY)) return NULL;
    return held(calloc(n, m));
}
static void *world_realloc(void *p, size_t n) {
    if (fails(MEMORY)) return NULL;
    void *q = realloc(p, n);
    world->blocks += !p && q;
    return q;
}
static void world_free(void *p) {
    world->blocks -= p != NULL;
    free(p);
}
static FILE *world_fopen(const char *path, const char *mode) {
    if (fails(OPEN)) return NULL;
    FILE *f = fopen(path, mode);
    world->handles += f != NULL;
    return f;
}
static DIR *world_opendir(const char *path) {
    if (fails(OPEN)) return NULL;
    DIR *d = opendir(path);
    world->handles += d != NULL;
    return d;
}
static int world_closedir(DIR *d) {
    world->handles--;
    return closedir(d);
}
static int world_open(const char *path, int flags, ...) {
    va_list list;
    va_start(list, flags);
    const int mode = flags & O_CREAT ? va_arg(list, int) : 0;
    va_end(list);
    if (fails(OPEN)) return -1;
    const int fd = open(path, flags, (mode_t)mode);
    world->handles += fd >= 0;
    return fd;
}
static int world_bad(FILE *f, int kind) {
    if (!fails(kind)) return 0;
    broken = f;
    return 1;
}
static int world_ferror(FILE *f) { return f == broken || ferror(f); }
static size_t world_fread(void *p, size_t size, size_t n, FILE *f) {
    if (world_bad(f, READ)) return 0;
    return fread(p, size, n, f);
}
static int world_getc(FILE *f) {
    if (world_bad(f, READ)) return EOF;
    return getc(f);
}
static char *world_fgets(char *s, int n, FILE *f) {
    if (world_bad(f, READ)) return NULL;
    return fgets(s, n, f);
}
static int world_fseek(FILE *f, long to, int whence) {
    if (world_bad(f, READ)) return -1;
    return fseek(f, to, whence);
}
static size_t world_fwrite(const void *p, size_t size, size_t n, FILE *f) {
    if (world_bad(f, WRITE)) return 0;
    return fwrite(p, size, n, f);
}
static int world_fputs(const char *s, FILE *f) {
    if (f != stderr && f != stdout && world_bad(f, WRITE)) return EOF;
    return fputs(s, f);
}
static int world_fflush(FILE *f) {
    if (f != stdout && world_bad(f, WRITE)) return EOF;
    return fflush(f);
}
__attribute__((format(printf, 2, 3)))
static int world_fprintf(FILE *f, const char *format, ...) {
    if (f != stderr && f != stdout && world_bad(f, WRITE)) return -1;
    va_list list;
    va_start(list, format);
    const int n = vfprintf(f, format, list);
    va_end(list);
    return n;
}
static int world_fclose(FILE *f) {
    const int failed = fails(CLOSE);
    const int error = errno;
    const int closed = fclose(f);
    if (f == broken) broken = NULL;
    world->handles--;
    if (failed) errno = error;
    return failed ? EOF : closed;
}
static ssize_t world_write(int fd, const void *p, size_t n) {
    if (fails(WRITE)) return -1;
    return write(fd, p, world->piece && n > world->piece ? world->piece : n);
}
/* Does not wait for the disk: no process reads what only a power failure would lose. */
static int world_fsync(int fd) {
    if (fails(SYNC)) return -1;
    return fcntl(fd, F_GETFD) < 0 ? -1 : 0;
}
static int world_close(int fd) {
    const int failed = fails(CLOSE);
    const int error = errno;
    const int closed = close(fd);
    world->handles--;
    if (failed) errno = error;
    return failed ? -1 : closed;
}
static int world_rename(const char *from, const char *to) {
    if (fails(RENAME)) return -1;
    return rename(from, to);
}
/* Checkpoints say how long a run took: to compare them, no time passes. */
static int world_clock(clockid_t clock, struct timespec *t) {
    t->tv_sec = (time_t)(clock >= 0);
    t->tv_nsec = 0;
    return 0;
}

#define malloc world_malloc
#define calloc world_calloc
#define realloc world_realloc
#define free world_free
#define fopen world_fopen
#define opendir world_opendir
#define closedir world_closedir
#define open world_open
#define ferror world_ferror
#define fread world_fread
#undef getc
#define getc world_getc
#define fgets world_fgets
#define fseek world_fseek
#define fwrite world_fwrite
#define fputs world_fputs
#define fflush world_fflush
#define fprintf world_fprintf
#define fclose world_fclose
#define write world_write
#define fsync world_fsync
#define close world_close
#define rename world_rename
#define clock_gettime world_clock
#define main jem_main
#define JEM_IMPLEMENTATION
#include "jem.h"
#include "tools/support/stb.c"
#include "tools/support/new_file.c"
#include "tools/support/pictures.c"
#include "tools/support/chart.c"
#include "tools/support/table.c"
#include "tools/support/data.c"
#include "tools/support/options.c"
#include "tools/support/robust.c"
#include "tools/support/judge.c"
#include "tools/cli/memory.c"
#include "tools/cli/stop.c"
#include "tools/cli/train_options.c"
#include "tools/cli/train.c"
#include "tools/cli/use.c"
#include "tools/cli/score.c"
#include "tools/cli/classify.c"
#include "tools/cli/eval.c"
#include "tools/cli/noise.c"
#include "tools/cli/judge.c"
#include "tools/cli/report.c"
#include "tools/cli/jem.c"
#undef malloc
#undef calloc
#undef realloc
#undef free
#undef fopen
#undef opendir
#undef closedir
#undef open
#undef ferror
#undef fread
#undef getc
#undef fgets
#undef fseek
#undef fwrite
#undef fputs
#undef fflush
#undef printf
#undef fprintf
#undef fclose
#undef write
#undef fsync
#undef close
#undef rename
#undef clock_gettime
#undef main
#include "tests/support/test.h"
#include "tests/support/common.h"

/* ---- helpers --------------------------------------------------------------------------------- */

static int thorough;

static void begin_world(int kind, long fail_at, int on) {
    memset(world, 0, sizeof *world);
    world->kind = kind;
    world->fail_at = fail_at;
    world->on = on;
}

typedef struct file { unsigned char *bytes; size_t n; } file;

static file slurp(const char *path) {
    file f = { NULL, 0 };
    FILE *in = fopen(path, "rb");
    if (!in) return f;
    f.bytes = (unsigned char *)malloc(1 << 20);
    if (f.bytes) f.n = fread(f.bytes, 1, 1 << 20, in);
    fclose(in);
    return f;
}
static int same_file(file a, file b) {
    return a.bytes && b.bytes && a.n == b.n && !memcmp(a.bytes, b.bytes, a.n);
}
static void spit(const char *path, file f) {
    if (!f.bytes) {
        remove(path);
        return;
    }
    FILE *out = fopen(path, "wb");
    CHECK(out && fwrite(f.bytes, 1, f.n, out) == f.n && !fclose(out), "%s", path);
}

/* Files of a folder that end in .tmp: how many; `sweep` removes them. */
static int leftovers(const char *folder, int sweep) {
    int n = 0;
    DIR *d = opendir(folder);
    for (struct dirent *e; d && (e = readdir(d)) != NULL;) {
        char path[512];
        const size_t length = strlen(e->d_name);
        if (length < 5 || strcmp(e->d_name + length - 4, ".tmp")) continue;
        snprintf(path, sizeof path, "%.200s/%.250s", folder, e->d_name);
        if (sweep) remove(path);
        n++;
    }
    if (d) closedir(d);
    return n;
}
static void remove_all(const char *path) {
    DIR *d = opendir(path);
    for (struct dirent *e; d && (e = readdir(d)) != NULL;) {
        char inside[512];
        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..")) continue;
        snprintf(inside, sizeof inside, "%.200s/%.250s", path, e->d_name);
        remove_all(inside);
    }
    if (d) closedir(d);
    remove(path);
}

/* ---- the library ----------------------------------------------------------------------------- */

enum { SIDE = 4, BATCH = 6 };

static void batch(float *x, int *y, int seed) {
    jem_rng rng = jem_rng_seed((uint64_t)seed);
    for (int i = 0; i < BATCH * SIDE * SIDE; i++) x[i] = 2 * jem_rng_uniform(&rng) - 1;
    for (int i = 0; i < BATCH; i++) y[i] = i % 3;
}

static jem_train_desc small_desc(void) {
    jem_train_desc d = jem_train_desc_default();
    d.buffer_size = 8;
    d.negatives = 4;
    d.sgld.steps = 2;
    d.optim.ema = .9f;
    d.w_score = .01f;
    return d;
}

/* Checkpoint and trainer go to one file. */
static jem_status save_both(jem_net *net, jem_trainer *tr, const char *path) {
    jem_archive *a = jem_archive_create(net->ctx);
    jem_status s = a ? jem_net_to_archive(net, a) : JEM_NO_MEMORY;
    if (!s) s = jem_trainer_to_archive(tr, a);
    if (!s) s = jem_archive_write(a, path);
    jem_archive_free(a);
    return s;
}

/* Two samples, as jem_sample makes them, in fewer steps. */
static jem_status sample(jem_net *net, unsigned char *pixels) {
    float x[2 * SIDE * SIDE];
    jem_rng rng = jem_rng_seed(7);
    jem_generate_desc how = jem_generate_desc_default();
    how.denoise.steps = 3;
    how.walk.steps = 2;
    const jem_mark mark = jem_begin(net->ctx);
    jem_tensor *t = jem_zeros(net->ctx, 2, 1, SIDE, SIDE);
    jem_status s = jem_generate(net->ctx, jem_logp, net, t, &how, &rng);
    if (!s) s = jem_read(t, x);
    jem_end(net->ctx, mark);
    return s ? s : jem_floats_to_pixels(net, x, 2, NULL, pixels);
}

/* A life; 1 if it went through to the end. All is freed in any case. *sum: what came of it. */
static int live(jem_ctx *ctx, uint64_t *sum) {
    float x[BATCH * SIDE * SIDE];
    int y[BATCH], ok;
    unsigned char pixels[2 * SIDE * SIDE];
    jem_answer a[BATCH];
    jem_convnet_desc shape = jem_convnet_desc_default();
    shape.channels = 1;
    shape.height = shape.width = SIDE;
    shape.classes = 3;
    shape.layers = 2;
    shape.widths[0] = 2;
    shape.widths[1] = 3;
    const jem_train_desc how = small_desc();
    batch(x, y, 1);
    jem_net *net = jem_convnet_create(ctx, &shape, 1);
    jem_net *other = NULL;
    jem_trainer *tr = net ? jem_trainer_create(net, &how) : NULL;
    jem_trainer *again = NULL;
    jem_archive *read = NULL;
    ok = tr && jem_train_step(tr, x, y, BATCH).status == JEM_OK &&
         jem_train_step(tr, x, y, BATCH).status == JEM_OK &&
         jem_calibrate(net, x, BATCH, JEM_AUTO) == JEM_OK && save_both(net, tr, "life") == JEM_OK;
    read = ok ? jem_archive_read(ctx, "life") : NULL;
    other = read ? jem_net_from_archive(ctx, read) : NULL;
    again = other ? jem_trainer_create(other, &how) : NULL;
    ok = again && jem_trainer_from_archive(again, read) == JEM_OK &&
         jem_train_step(again, x, y, BATCH).status == JEM_OK &&
         jem_trainer_use_average(again, 1) == JEM_OK &&
         sample(other, pixels) == JEM_OK &&
         jem_classify(other, x, BATCH, a) == JEM_OK && jem_save(other, "alone") == JEM_OK;
    *sum = ok ? net_hash(other) : 0;
    for (int i = 0; ok && i < BATCH; i++) *sum = fnv(*sum, &a[i].log_density, 1);
    for (size_t i = 0; ok && i < sizeof pixels; i++) *sum = (*sum ^ pixels[i]) * 1099511628211u;
    jem_archive_free(read);
    jem_trainer_free(again);
    jem_net_free(other);
    jem_trainer_free(tr);
    jem_net_free(net);
    return ok;
}

static jem_ctx *plain_ctx(void) {
    jem_ctx_desc d;
    memset(&d, 0, sizeof d);
    d.threads = 1;
    return jem_ctx_create(&d);
}

/* One failure; then the same context lives a whole life. 0: there was no such call any more. */
static int life_with(int kind, long n, int on, uint64_t want) {
    uint64_t sum;
    begin_world(kind, n, on);
    jem_ctx *ctx = plain_ctx();
    if (!ctx) {
        CHECK(world->hit && kind == MEMORY && !world->blocks, "%s %ld", faults[kind], n);
        return 1;
    }
    const int whole = live(ctx, &sum);
    const int hit = world->hit;
    const jem_status status = jem_error_status(ctx);
    world->fail_at = 0;
    /* What is read is not spoilt when closing fails; else an error, of its kind. */
    if (!hit || (kind == CLOSE && whole)) CHECK(whole && sum == want, "%s", jem_error(ctx));
    else {
        CHECK(!whole && status == (kind == MEMORY ? JEM_NO_MEMORY : JEM_BAD_FILE) &&
              *jem_error(ctx), "%s %ld%s: %s", faults[kind], n, on ? " on" : "", jem_error(ctx));
        CHECK(!leftovers(".", 1), "%s %ld: a file is left", faults[kind], n);
        jem_clear_error(ctx);
        CHECK(live(ctx, &sum) && sum == want, "after %s %ld: %s", faults[kind], n, jem_error(ctx));
    }
    jem_ctx_free(ctx);
    CHECK(!world->blocks && !world->handles, "%s %ld%s: %ld blocks and %ld files leak",
          faults[kind], n, on ? " on" : "", world->blocks, world->handles);
    return hit;
}

static void test_life(void) {
    uint64_t want, sum;
    begin_world(0, 0, 0);
    jem_ctx *ctx = plain_ctx();
    CHECK(ctx && live(ctx, &want), "%s", jem_error(ctx));
    jem_ctx_free(ctx);
    long most[KINDS];
    for (int k = 0; k < KINDS; k++) most[k] = world->calls[k];
    CHECK(!world->blocks && !world->handles, "%ld, %ld", world->blocks, world->handles);
    CHECK(most[MEMORY] > 100 && most[OPEN] >= 3 && most[READ] >= 3 && most[WRITE] == 2 &&
          most[SYNC] == 4 && most[RENAME] == 2, "calls: %ld %ld %ld %ld %ld %ld", most[MEMORY],
          most[OPEN], most[READ], most[WRITE], most[SYNC], most[RENAME]);
    long lives = 0;
    for (int k = 0; k < KINDS; k++)
        for (int on = 0; on < 2; on++) {
            long n = 1;
            while (life_with(k, n, on, want)) n++;
            CHECK(n == most[k] + 1, "%s: %ld calls, not %ld", faults[k], n - 1, most[k]);
            lives += n;
        }
    ctx = plain_ctx();
    CHECK(ctx && live(ctx, &sum) && sum == want, "%s", jem_error(ctx));
    jem_ctx_free(ctx);
    remove("life");
    remove("alone");
    printf("a life of %ld allocations and %ld calls for files: %ld failures\n", most[MEMORY],
           most[OPEN] + most[READ] + most[WRITE] + most[SYNC] + most[CLOSE] + most[RENAME], lives);
}

/* Saves a network in a process that is killed before call k, and writes little at once. Returns its
   status. */
static int save_and_die(const jem_net *net, long k) {
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        begin_world(0, 0, 0);
        world->kill_at = k;
        world->piece = 300;
        _exit(jem_save(net, "net") != JEM_OK);
    }
    int status = 0;
    CHECK(child > 0 && waitpid(child, &status, 0) == child, "fork");
    return status;
}

/* Killed before each call, and between the pieces of what is written: the file is the old one or
   the new one, to the byte, and the next save goes through. */
static void test_kills(void) {
    begin_world(0, 0, 0);
    jem_ctx *ctx = plain_ctx();
    const small_shape shape = { 1, SIDE, SIDE, 3, 50 };
    jem_net *older = small_mlp(ctx, shape, 1);
    jem_net *newer = small_mlp(ctx, shape, 2);
    CHECK(jem_save(older, "net") == JEM_OK && jem_save(newer, "other") == JEM_OK, "%s",
          jem_error(ctx));
    const file old = slurp("net");
    const file new_one = slurp("other");
    CHECK(old.n > 4000 && !same_file(old, new_one), "%d bytes", (int)old.n);
    int kills = 0;
    int olds = 0;
    int news = 0;
    for (int first = 0; first < 2; first++)        /* over an old file; where there was none */
        for (long k = 1; ; k++) {
            if (first) remove("net");
            else spit("net", old);
            const int status = save_and_die(newer, k);
            const file now = slurp("net");
            const int is_old = first ? !now.bytes : same_file(now, old);
            const int is_new = same_file(now, new_one);
            CHECK(is_old || is_new, "killed at call %ld: neither the old file nor the new", k);
            leftovers(".", 1);                     /* which a process that is killed may leave */
            free(now.bytes);
            if (WIFEXITED(status)) {
                CHECK(WEXITSTATUS(status) == 0 && is_new, "status %d", status);
                break;
            }
            CHECK(WTERMSIG(status) == SIGKILL, "signal %d", WTERMSIG(status));
            CHECK(jem_save(newer, "net") == JEM_OK, "after a kill: %s", jem_error(ctx));
            kills++;
            olds += is_old;
            news += is_new;
        }
    CHECK(kills > 40 && olds > 30 && news > 2, "%d kills: %d old, %d new", kills, olds, news);
    printf("%d kills while saving: %d times the old file, %d times the new one\n", kills, olds,
           news);
    free(old.bytes);
    free(new_one.bytes);
    remove("net");
    remove("other");
    jem_net_free(older);
    jem_net_free(newer);
    jem_ctx_free(ctx);
}

/* ---- the commands ---------------------------------------------------------------------------- */

enum { LEAK = 99, CRASH = 1000, KILLED = 2000 };

/* Runs `jem LINE` in a process of its own: its status, or one of the above. */
static int command(const char *line) {
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        char text[512], *words[64];
        int n = 0;
        snprintf(text, sizeof text, "jem %s", line);
        for (char *w = strtok(text, " "); w && n < 63; w = strtok(NULL, " ")) words[n++] = w;
        words[n] = NULL;
        if (!freopen("said", "w", stdout) || !freopen("said", "a", stderr)) _exit(98);
        const int status = jem_main(n, words);
        if (world->blocks || world->handles)
            printf("%ld blocks and %ld files leak\n", world->blocks, world->handles);
        fflush(stdout);
        fflush(stderr);
        _exit(world->blocks || world->handles ? LEAK : status);
    }
    int status = 0;
    if (child < 0 || waitpid(child, &status, 0) != child) return CRASH;
    if (WIFEXITED(status)) return WEXITSTATUS(status);
    return WTERMSIG(status) == SIGKILL ? KILLED : CRASH + WTERMSIG(status);
}
static const char *said(void) {
    static char text[400];
    FILE *f = fopen("said", "r");
    size_t n = 0;
    if (f) {
        n = fread(text, 1, sizeof text - 1, f);
        fclose(f);
    }
    text[n] = 0;
    return text;
}

/* A set of 8 x 8 images in two sheets. */
static void make_set(void) {
    unsigned char p[24 * 64];
    mkdir("set", 0777);
    for (int half = 0; half < 2; half++) {
        const char *name = half ? "test" : "train";
        const int n = half ? 8 : 24;
        char path[32];
        jem_rng rng = jem_rng_seed((uint64_t)half);
        for (int i = 0; i < n * 64; i++) p[i] = (unsigned char)jem_rng_below(&rng, 256);
        snprintf(path, sizeof path, "set/%s.png", name);
        CHECK(stbi_write_png(path, 8 * 8, n, 1, p, 64) != 0, "%s", path);
        snprintf(path, sizeof path, "set/%s.txt", name);
        FILE *f = fopen(path, "w");
        CHECK(f != NULL, "%s", path);
        for (int i = 0; f && i < n; i++) fprintf(f, "%d\n", i % 2);
        if (f) fclose(f);
    }
}

#define SMALL "--dataset set --widths 3 --batch-size 8 --n-steps 1 --buffer-size 8 --negatives 4 " \
              "--n-valid 4 --print-every 1 --eval-every 1000 --threads 1 --warmup-iters 0 --iters 9"

/* What a run holds that must not be lost, or half there. */
static const char *const run_files[] = { "last.safetensors", "best.safetensors", "log.csv" };
enum { RUN_FILES = 3 };
typedef struct state { file at[RUN_FILES]; } state;

static state look(void) {
    state s;
    char path[64];
    for (int i = 0; i < RUN_FILES; i++) {
        snprintf(path, sizeof path, "run/%s", run_files[i]);
        s.at[i] = slurp(path);
    }
    return s;
}
static void put_back(const state *s) {
    char path[64];
    mkdir("run", 0777);
    for (int i = 0; i < RUN_FILES; i++) {
        snprintf(path, sizeof path, "run/%s", run_files[i]);
        spit(path, s->at[i]);
    }
    leftovers("run", 1);
}
static void forget(state *s) { for (int i = 0; i < RUN_FILES; i++) free(s->at[i].bytes); }

/* Everything of `before` is still there: checkpoints as they were or as they will be, the log with
   all of its rows. */
static void check_run(const state *before, const state *after, const char *what) {
    char path[64];
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "run/%s", run_files[i]);
        const file now = slurp(path);
        CHECK(same_file(now, before->at[i]) || same_file(now, after->at[i]) ||
              (!now.bytes && !before->at[i].bytes), "%s: %s is neither the old file nor the new",
              what, path);
        free(now.bytes);
    }
    const file old = before->at[2], now = slurp("run/log.csv");
    CHECK(!old.bytes || (now.n >= old.n && !memcmp(now.bytes, old.bytes, old.n)),
          "%s: log.csv has lost rows: %d bytes, not %d", what, (int)now.n, (int)old.n);
    free(now.bytes);
}

/* Files that a command makes. */
enum { MOST_MADE = 2 };
static const char *const checkpoint[MOST_MADE] = { "run/last.safetensors" };

/* One command, with every stride-th failure of every kind. Where it reports success, all files that
   it makes must be there, as without a failure. */
static void test_command(const char *line, const state *before, const state *after,
                         const long stride[2], const char *const *made) {
    char what[600];
    file wanted[MOST_MADE] = { { 0 } };
    begin_world(0, 0, 0);
    put_back(before);
    const int well = command(line);
    CHECK(well == 0, "jem %s: status %d: %s", line, well, said());
    for (int i = 0; i < MOST_MADE && made[i]; i++) {
        wanted[i] = slurp(made[i]);
        CHECK(wanted[i].bytes, "jem %s: no %s", line, made[i]);
    }
    long most[KINDS], tried = 0, refused = 0;
    for (int k = 0; k < KINDS; k++) most[k] = world->calls[k];
    for (int k = 0; k < KINDS; k++)
        for (int on = 0; on < 2; on++)
            for (long n = 1; n <= most[k]; n += thorough ? 1 : stride[k != MEMORY]) {
                for (int i = 0; i < MOST_MADE && made[i]; i++) remove(made[i]);
                put_back(before);
                begin_world(k, n, on);
                const int status = command(line);
                snprintf(what, sizeof what, "jem %.300s: %s %ld%s", line, faults[k], n,
                         on ? " on" : "");
                CHECK(status >= 0 && status <= 2, "%s: status %d: %s", what, status, said());
                CHECK(status == 0 || *said(), "%s: status %d, and nothing said", what, status);
                CHECK(!leftovers("run", 1) && !leftovers(".", 1), "%s: a file is left", what);
                check_run(before, after, what);
                for (int i = 0; i < MOST_MADE && made[i] && status == 0; i++) {
                    const file now = slurp(made[i]);
                    CHECK(same_file(now, wanted[i]), "%s: success, but %s is another", what,
                          made[i]);
                    free(now.bytes);
                }
                tried++;
                refused += status != 0;
            }
    for (int i = 0; i < MOST_MADE; i++) free(wanted[i].bytes);
    printf("jem %.40s...: %ld allocations, %ld + %ld + %ld + %ld + %ld + %ld calls for files: %ld "
           "failures, %ld of them reported\n", line, most[MEMORY], most[OPEN], most[READ],
           most[WRITE], most[SYNC], most[CLOSE], most[RENAME], tried, refused);
    CHECK(refused > tried / 2, "%ld of %ld", refused, tried);
}

/* Killed before each of its calls for files: then it goes on, to the same end. */
static void test_command_kills(const char *line, const state *before, const state *after,
                               long stride) {
    char what[64];
    long kills = 0;
    for (long k = 1; ; k += thorough ? 1 : stride) {
        put_back(before);
        begin_world(0, 0, 0);
        world->kill_at = k;
        world->piece = 2000;
        const int status = command(line);
        if (status != KILLED) {
            CHECK(status == 0, "%s: %d", line, status);
            break;
        }
        snprintf(what, sizeof what, "killed at call %ld", k);
        check_run(before, after, what);
        leftovers("run", 1);
        begin_world(0, 0, 0);
        CHECK(command(line) == 0, "%s, and again: %s", what, said());
        const file now = slurp("run/last.safetensors");
        CHECK(same_file(now, after->at[0]), "%s: it ends elsewhere", what);
        free(now.bytes);
        kills++;
    }
    CHECK(kills > 5, "%ld", kills);
    printf("jem %.40s...: killed %ld times\n", line, kills);
}

/* Rows of a table: a run that ends, and the scores of its model. */
static void test_rows(void) {
    static const long stride[2] = { 61, 9 }, use[2] = { 17, 1 };
    static const char first[] = "train rows.csv --widths 3 --batch-size 8 --print-every 1 "
                                "--threads 1 --iters 4 --eval-every 1000 --stop-at 2 --out run";
    begin_world(0, 0, 0);
    FILE *f = fopen("rows.csv", "w");
    CHECK(f != NULL, "rows.csv");
    if (f) fputs("volt,label,bar\n", f);
    for (int i = 0; f && i < 30; i++) fprintf(f, "%d,%s,%d\n", i % 7, i % 2 ? "on" : "off", i % 5);
    if (f) fclose(f);
    remove_all("run");
    CHECK(command(first) == 0, "%s", said());
    state begun = look();
    CHECK(command("train --resume run") == 0, "%s", said());
    state done = look();
    static const char *const scores[MOST_MADE] = { "s.csv" };
    test_command("train --resume run", &begun, &done, stride, checkpoint);
    test_command("score run/last.safetensors rows.csv --threads 1 --out s.csv", &done, &done, use,
                 scores);
    forget(&begun);
    forget(&done);
    remove_all("run");
    remove("rows.csv");
    remove("s.csv");
    remove("said");
}

static void test_commands(void) {
    static const long train[2] = { 17, 1 }, use[2] = { 17, 1 }, once[2] = { 100, 20 };
    static const long often[2] = { 67, 1 };        /* thousands of allocations */
    static const char stopped[] = "train " SMALL " --stop-at 2 --out run";
    static const char resumed[] = "train --resume run --stop-at 4";
    static const char ended[] = "train --resume run";
    begin_world(0, 0, 0);
    make_set();
    remove_all("run");
    state none, begun, further, done;
    memset(&none, 0, sizeof none);
    CHECK(command(stopped) == 0, "%s", said());
    begun = look();
    CHECK(command(resumed) == 0, "%s", said());
    further = look();
    CHECK(command(ended) == 0, "%s", said());
    done = look();
    CHECK(done.at[0].bytes && done.at[1].bytes && done.at[2].n > further.at[2].n, "three stages");

    remove_all("run");
    static const char *const none_made[MOST_MADE] = { NULL };
    static const char *const samples[MOST_MADE] = { "s.png", "c.png" };
    static const char *const small[MOST_MADE] = { "small" };
    static const char *const onnx[MOST_MADE] = { "net.onnx" };
    static const char *const chart[MOST_MADE] = { "plot.png" };
    static const char *const answers[MOST_MADE] = { "a.csv" };
    test_command(resumed, &begun, &further, train, checkpoint);
    test_command(ended, &further, &done, once, checkpoint);    /* validates, draws */
    test_command_kills(resumed, &begun, &further, 3);
    test_command("sample run/last.safetensors --n 3 --steps 1 --zoom 1 --threads 1 --out s.png "
                 "--chains c.png", &done, &done, use, samples);
    test_command("classify run/best.safetensors --threads 1 s.png", &done, &done, use, none_made);
    CHECK(mkdir("few", 0777) == 0 && mkdir("few/in", 0777) == 0 && !link("s.png", "few/in/s.png"),
          "a folder of pictures");
    test_command("classify run/best.safetensors --threads 1 few --out a.csv", &done, &done, use,
                 answers);
    test_command("eval run/best.safetensors --threads 1", &done, &done, use, none_made);
    test_command("eval run/best.safetensors calibration --threads 1 --out plot.png", &done, &done,
                 often, chart);
    test_command("eval run/best.safetensors noise --n 2 --threads 1 --out plot.png", &done, &done,
                 often, chart);
    test_command("info run/last.safetensors", &done, &done, use, none_made);
    test_command("export run/last.safetensors small", &done, &done, use, small);
    test_command("export run/last.safetensors net.onnx --onnx", &done, &done, use, onnx);
    forget(&begun);
    forget(&further);
    forget(&done);
    remove_all("run");
    remove_all("set");
    remove_all("few");
    remove("a.csv");
    remove("s.png");
    remove("c.png");
    remove("small");
    remove("net.onnx");
    remove("plot.png");
    remove("said");
}

int main(int argc, char **argv) {
    static const test_case all[] = {
        TEST(test_life), TEST(test_kills), TEST(test_commands), TEST(test_rows)
    };
    char folder[160];
    const char *base = getenv("TMPDIR");
    thorough = argc > 1 && !strcmp(argv[1], "all");
    if (!thorough) test_begin(argc, argv);
    world = (struct world *)mmap(NULL, sizeof *world, PROT_READ | PROT_WRITE,
                                 MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (world == MAP_FAILED) {
        perror("mmap");
        return 1;
    }
    snprintf(folder, sizeof folder, "%.80s/jem_test_faults_%ld", base && *base ? base : "/tmp",
             (long)getpid());
    if (mkdir(folder, 0700) || chdir(folder)) {
        perror(folder);
        return 1;
    }
    test_run(all, TEST_COUNT(all), NULL);
    CHECK(chdir("/") == 0 && rmdir(folder) == 0, "%s is not empty", folder);
    return test_report();
}
