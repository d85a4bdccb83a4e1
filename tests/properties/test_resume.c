/* Thirty random training runs, interrupted at random updates and resumed in another process, with
   another number of threads and other instructions: the same bits as without interruption.

       test_resume [COUNT [SEED]]
       test_resume --part FILE RUN FROM TO THREADS ISA

   The first command starts the second: updates FROM to TO - 1 of a run, and a checkpoint. */
#define _XOPEN_SOURCE 700
#include <ctype.h>
#include <sys/wait.h>
#include <unistd.h>

#define JEM_IMPLEMENTATION
#include "jem.h"
#include "tests/support/test.h"
#include "tests/support/common.h"

enum { SIDE = 6, CLASSES = 3, MOST_IMAGES = 20, MOST_UPDATES = 8 };

/* A run: network, training, batches, all of it a function of its number. */
typedef struct run { int kind, images, updates; uint64_t seed; jem_train_desc how; } run;

static int between(jem_rng *rng, int lo, int hi) { return lo + jem_rng_below(rng, hi - lo + 1); }

static float one_of(jem_rng *rng, float a, float b, float c) {
    const float all[3] = { a, b, c };
    return all[jem_rng_below(rng, 3)];
}

static void choose_training(jem_rng *rng, jem_train_desc *d) {
    d->optim.kind = (jem_optimizer)jem_rng_below(rng, 3);
    d->optim.ema = one_of(rng, 0, 0.5f, 0.9f);
    d->lr = one_of(rng, 1e-3f, 3e-3f, 1e-2f);
    d->schedule.kind = (jem_schedule_kind)jem_rng_below(rng, 3);
    d->schedule.total = MOST_UPDATES;
    d->schedule.warmup = jem_rng_below(rng, 3);
    d->seed = jem_rng_u32(rng);
    d->class_conditional = jem_rng_below(rng, 2);
    d->sgld.steps = between(rng, 1, 3);
    d->negatives = between(rng, 1, 9);
    d->buffer_size = between(rng, 10, 30);
    d->reinit = one_of(rng, 0, 0.05f, 0.5f);
    d->w_score = one_of(rng, 0, 0, 0.5f);
    if (d->w_score > 0) d->pause_gap = one_of(rng, 0, 1e-4f, 1e-4f);
    d->cd_from = jem_rng_below(rng, 3);
    d->max_gap = one_of(rng, 100, 100, 0.004f);    /* so small that some runs have no good state */
}

static run run_of(int number) {
    run r;
    jem_rng rng = jem_rng_seed((uint64_t)number + 1000);
    memset(&r, 0, sizeof r);
    r.how = jem_train_desc_default();
    choose_training(&rng, &r.how);
    r.kind = jem_rng_below(&rng, 4);
    r.images = between(&rng, 2, MOST_IMAGES);
    r.updates = between(&rng, 3, MOST_UPDATES);
    r.seed = jem_rng_u32(&rng);
    return r;
}

static jem_net *run_net(jem_ctx *ctx, const run *r) {
    jem_wrn_desc w = jem_wrn_desc_default();
    jem_mlp_desc m = jem_mlp_desc_default();
    m.channels = 1;
    m.height = m.width = SIDE;
    m.classes = CLASSES;
    m.layers = 2;
    m.widths[0] = 17;
    m.widths[1] = 9;
    w.depth = 10;
    w.widen = 1;
    w.channels = 1;
    w.height = w.width = SIDE;
    w.classes = CLASSES;
    w.norm = r->kind == 2 ? JEM_NORM_BATCH : JEM_NORM_NONE;
    w.dropout = r->kind == 3 ? 0.2f : 0;
    if (r->kind == 0) return jem_mlp_create(ctx, &m, r->seed);
    if (r->kind == 1) return jem_convnet_create(ctx, &m, r->seed);
    return jem_wrn_create(ctx, &w, r->seed);
}

/* The batch of an update, which is a function of the update alone. */
static jem_stats update(jem_trainer *tr, const run *r, int number) {
    jem_rng rng = jem_rng_seed(r->seed + (uint64_t)number);
    int labels[MOST_IMAGES];
    float *x = random_floats(&rng, (ptrdiff_t)r->images * SIDE * SIDE, -1, 1);
    random_labels(&rng, labels, r->images, CLASSES);
    const jem_stats s = jem_train_step(tr, x, labels, r->images);
    free(x);
    return s;
}

/* Makes updates from .. to - 1: from a new trainer, or from the checkpoint at `path`, which is then
   replaced. Returns 1 if all went well. */
static int run_part(jem_ctx *ctx, const char *path, const run *r, int from, int to) {
    jem_archive *a = from ? jem_archive_read(ctx, path) : NULL;
    jem_net *net = a ? jem_net_from_archive(ctx, a) : run_net(ctx, r);
    jem_trainer *tr = jem_trainer_create(net, &r->how);
    int good = tr && (!a || jem_trainer_from_archive(tr, a) == JEM_OK);
    for (int i = from; good && i < to; i++) good = update(tr, r, i).status == JEM_OK;
    jem_archive_free(a);
    a = jem_archive_create(ctx);
    good = good && a && jem_net_to_archive(net, a) == JEM_OK &&
           jem_trainer_to_archive(tr, a) == JEM_OK && jem_archive_write(a, path) == JEM_OK;
    if (!good) printf("updates %d to %d: %s\n", from, to, jem_error(ctx));
    jem_archive_free(a);
    jem_trainer_free(tr);
    jem_net_free(net);
    return good;
}

/* A fingerprint of a file; 0 if there is none. */
static uint64_t file_hash(const char *path) {
    FILE *f = fopen(path, "rb");
    uint64_t h = FNV_START;
    if (!f) return 0;
    for (int c = getc(f); c != EOF; c = getc(f)) h = (h ^ (uint64_t)c) * 1099511628211u;
    fclose(f);
    return h;
}

/* Runs a part in a separate process, with these threads and instructions. */
static int part_in_process(const char *program, const char *path, int number, int from, int to,
                           int threads, jem_isa isa) {
    char words[5][16];
    const int numbers[5] = { number, from, to, threads, (int)isa };
    for (int i = 0; i < 5; i++) snprintf(words[i], sizeof words[i], "%d", numbers[i]);
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        execl(program, program, "--part", path, words[0], words[1], words[2], words[3], words[4],
              (char *)NULL);
        _exit(127);
    }
    int status = 1;
    if (child > 0) waitpid(child, &status, 0);
    return status == 0;
}

/* Runs one without a break, then again in two to four processes, and compares the checkpoints. */
static void check_run(const char *program, const char *folder, int number) {
    static const jem_isa isas[2] = { JEM_ISA_SCALAR, JEM_ISA_BEST };
    char whole[256], broken[256];
    const run r = run_of(number);
    jem_rng rng = jem_rng_seed((uint64_t)number + 5000);
    snprintf(whole, sizeof whole, "%s/whole.safetensors", folder);
    snprintf(broken, sizeof broken, "%s/broken.safetensors", folder);
    jem_ctx *ctx = isa_ctx(JEM_ISA_BEST, 1);
    CHECK(run_part(ctx, whole, &r, 0, r.updates), "run %d: %s", number, jem_error(ctx));
    jem_ctx_free(ctx);
    for (int from = 0, part = 0; from < r.updates; part++) {
        int to = between(&rng, from + 1, r.updates);
        if (part == 0 && to == r.updates) to = r.updates - 1;
        const int isa = jem_rng_below(&rng, 2);
        CHECK(part_in_process(program, broken, number, from, to, between(&rng, 1, 3), isas[isa]),
              "run %d, updates %d to %d", number, from, to);
        from = to;
    }
    const uint64_t hash = file_hash(whole);
    CHECK(hash && file_hash(broken) == hash, "run %d: resumed, its checkpoint has other bits",
          number);
    remove(whole);
    remove(broken);
}

int main(int argc, char **argv) {
    char folder[128] = "/tmp/jem_resume_XXXXXX";
    if (argc == 8 && !strcmp(argv[1], "--part")) {
        const run r = run_of(atoi(argv[3]));
        jem_ctx *ctx = isa_ctx((jem_isa)atoi(argv[7]), atoi(argv[6]));
        const int good = ctx && run_part(ctx, argv[2], &r, atoi(argv[4]), atoi(argv[5]));
        jem_ctx_free(ctx);
        return !good;
    }
    const int counted = argc > 1 && isdigit((unsigned char)argv[1][0]);
    const int count = counted ? atoi(argv[1]) : 30;
    const int seed = argc > 2 ? atoi(argv[2]) : 0;
    if (!counted) test_begin(argc, argv);
    if (!test_wants("runs")) return test_report();
    const char *base = getenv("TMPDIR");
    if (base && *base) snprintf(folder, sizeof folder, "%.80s/jem_resume_XXXXXX", base);
    /* Of the processes: threads that spin while they wait are slow on a busy machine. */
    CHECK(setenv("OMP_WAIT_POLICY", "passive", 1) == 0, "no memory");
    printf("%d training runs, interrupted and resumed in other processes\n", count);
    if (!CHECK(mkdtemp(folder), "%s cannot be made", folder)) return test_report();
    CHECK(count > 0, "no runs");
    for (int i = 0; i < count; i++) check_run(argv[0], folder, seed + i);
    CHECK(rmdir(folder) == 0, "%s is not empty", folder);
    return test_report();
}
