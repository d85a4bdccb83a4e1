/* The life cycle of a model in a loop: train, save, load, resume, sample, classify. After the first
   rounds memory is constant, and every round ends with the same bits. The first rounds run on many
   threads that execute their tasks in a shuffled order, in two contexts at once. If OpenMP is
   enabled, its threads are used.
       build/test_soak            some seconds
       build/test_soak SECONDS    make soak: an hour; 0 is a single round, for valgrind
   examine.sh also runs it under ThreadSanitizer and under valgrind. */
#ifndef _XOPEN_SOURCE
#define _XOPEN_SOURCE 700
#endif
#define JEM_IMPLEMENTATION
#include "jem.h"
#include "tests/support/test.h"
#include "tests/support/common.h"

#ifdef _OPENMP
#include <omp.h>
#endif
#include <ctype.h>
#include <pthread.h>
#include <time.h>
#include <unistd.h>
#if defined __GLIBC__ && defined __GLIBC_PREREQ
#if __GLIBC_PREREQ(2, 33)
#include <malloc.h>
#define MALLOC_TELLS
#endif
#endif

enum { IMAGES = 18, SIDE = 8, CLASSES = 4, PIXELS = SIDE * SIDE, HELPERS = 4 };

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- a life ---------------------------------------------------------------------------------- */

static jem_net *create(jem_ctx *ctx) {
    jem_wrn_desc d = jem_wrn_desc_default();
    d.depth = 10;
    d.widen = 1;
    d.channels = 1;
    d.height = d.width = SIDE;
    d.classes = CLASSES;
    d.norm = JEM_NORM_BATCH;
    d.dropout = 0.1f;
    d.stem_stride = 2;
    return jem_wrn_create(ctx, &d, 7);
}
static jem_train_desc training(void) {
    jem_train_desc d = jem_train_desc_default();
    d.lr = 1e-3f;
    d.w_score = 0.5f;
    d.w_kl = 0.1f;
    d.weights.energy_l2 = 0.01f;
    d.sgld.steps = 2;
    d.negatives = 20;
    d.buffer_size = 40;
    d.reinit = 0.3f;
    d.optim.ema = 0.9f;
    d.optim.clip = 1;
    return d;
}
static void images(float *x, int *labels, uint64_t seed) {
    jem_rng rng = jem_rng_seed(seed);
    random_labels(&rng, labels, IMAGES, CLASSES);
    for (int i = 0; i < IMAGES * PIXELS; i++) x[i] = 2 * jem_rng_uniform(&rng) - 1;
}

/* Makes two updates from `seed`, on a new trainer or one that goes on from the archive, and writes
   a file. */
static jem_status train(jem_net *net, const jem_archive *from, uint64_t seed, const char *path) {
    const jem_train_desc d = training();
    float x[IMAGES * PIXELS];
    int labels[IMAGES];
    jem_trainer *tr = jem_trainer_create(net, &d);
    jem_status s = JEM_OK;
    if (!tr) s = JEM_NO_MEMORY;
    else if (from) s = jem_trainer_from_archive(tr, from);
    for (int i = 0; i < 2 && !s; i++) {
        images(x, labels, seed + (uint64_t)i);
        s = jem_train_step(tr, x, labels, IMAGES).status;
    }
    jem_archive *a = s ? NULL : jem_archive_create(net->ctx);
    if (a && !(s = jem_net_to_archive(net, a)) && !(s = jem_trainer_to_archive(tr, a)))
        s = jem_archive_write(a, path);
    jem_archive_free(a);
    jem_trainer_free(tr);
    return s;
}

/* As jem_sample does, in few steps. */
static jem_status sample(jem_net *net, unsigned char *pixels) {
    const int labels[2] = { 1, 3 };
    float x[2 * PIXELS];
    jem_rng rng = jem_rng_seed(6);
    jem_generate_desc d = jem_net_generate_desc(net);
    jem_query query = jem_net_query(net, labels);
    jem_tensor *t = jem_zeros(net->ctx, 2, 1, SIDE, SIDE);
    d.denoise.steps = d.walk.steps = 3;
    jem_status s = jem_generate(net->ctx, jem_logp_guided, &query, t, &d, &rng);
    if (!s) s = jem_read(t, x);
    return s ? s : jem_floats_to_pixels(net, x, 2, NULL, pixels);
}

/* Everything else that one asks of a network. */
static jem_status ask(jem_net *net, uint64_t *hash) {
    float x[IMAGES * PIXELS], found[IMAGES * PIXELS], score[IMAGES];
    unsigned char pixels[2 * PIXELS];
    int labels[IMAGES];
    jem_answer answers[IMAGES];
    jem_rng rng = jem_rng_seed(5);
    jem_attack_desc attack = jem_attack_desc_default();
    jem_sgld_desc walk = jem_sgld_desc_default();
    attack.steps = 2;
    walk.steps = 2;
    images(x, labels, 4);
    jem_status s = jem_calibrate(net, x, IMAGES, JEM_AUTO);
    if (!s) s = jem_classify(net, x, IMAGES, answers);
    if (!s && jem_accuracy(net, x, labels, IMAGES) < 0) s = jem_error_status(net->ctx);
    if (!s && jem_fit_temperature(net, x, labels, IMAGES) < 0) s = jem_error_status(net->ctx);
    if (!s) s = jem_ood_score(net, JEM_OOD_RISE, &walk, x, IMAGES, score);
    if (!s) s = jem_attack(net, x, labels, IMAGES, &attack, &rng, found, NULL);
    if (!s) s = sample(net, pixels);
    if (s) return s;
    for (int i = 0; i < IMAGES; i++) *hash = fnv(*hash, &answers[i].log_density, 1);
    *hash = fnv(fnv(*hash, score, IMAGES), found, IMAGES * PIXELS);
    for (int i = 0; i < 2 * PIXELS; i++) *hash = (*hash ^ pixels[i]) * 1099511628211u;
    return JEM_OK;
}

/* What the life comes to; 0 if something failed. */
static uint64_t live(jem_ctx *ctx, const char *path) {
    uint64_t hash = 0;
    jem_net *net = create(ctx);
    jem_status s = net ? train(net, NULL, 1, path) : JEM_NO_MEMORY;
    jem_net_free(net);
    net = NULL;
    jem_archive *a = s ? NULL : jem_archive_read(ctx, path);
    if (a) net = jem_net_from_archive(ctx, a);
    if (net) s = train(net, a, 3, path);
    jem_archive_free(a);
    jem_net_free(net);
    net = s ? NULL : jem_load(ctx, path);
    if (net) {
        hash = net_hash(net);
        s = ask(net, &hash);
    }
    jem_net_free(net);
    jem_reset(ctx);
    return jem_ok(ctx) && !s ? hash : 0;
}

/* ---- custom threads -------------------------------------------------------------------- */

/* Tasks in a shuffled order, each taken by whichever of the threads comes first. */
typedef struct crew {
    pthread_mutex_t lock;
    uint32_t state;                                /* of the shuffle */
    int next, n, order[4096];
    void (*task)(void *arg, int i);
    void *arg;
    long calls;
} crew;

static void *helper(void *user) {
    crew *c = (crew *)user;
    for (;;) {
        pthread_mutex_lock(&c->lock);
        const int i = c->next < c->n ? c->order[c->next++] : -1;
        pthread_mutex_unlock(&c->lock);
        if (i < 0) return NULL;
        c->task(c->arg, i);
    }
}

static void shuffled(void *user, int n, void (*task)(void *arg, int i), void *arg) {
    crew *c = (crew *)user;
    pthread_t thread[HELPERS];
    for (int begin = 0; begin < n; begin += 4096) {
        c->n = n - begin < 4096 ? n - begin : 4096;
        for (int i = 0; i < c->n; i++) c->order[i] = begin + i;
        for (int i = c->n - 1; i > 0; i--) {
            c->state = c->state * 1664525u + 1013904223u;
            const int k = (int)((c->state >> 8) % (unsigned)(i + 1));
            const int t = c->order[i];
            c->order[i] = c->order[k];
            c->order[k] = t;
        }
        c->next = 0;
        c->task = task;
        c->arg = arg;
        c->calls++;
        int started = 0;
        while (started < HELPERS && !pthread_create(thread + started, NULL, helper, c)) started++;
        helper(c);
        while (started) pthread_join(thread[--started], NULL);
    }
}

typedef struct liver { uint32_t seed; int parallel; const char *path; uint64_t hash; } liver;

static void *live_alone(void *user) {
    liver *l = (liver *)user;
    jem_ctx_desc desc;
    memset(&desc, 0, sizeof desc);
    crew *c = (crew *)calloc(1, sizeof *c);
    if (!c) return NULL;
    pthread_mutex_init(&c->lock, NULL);
    c->state = l->seed;
    desc.threads = 1;
    if (l->parallel) {
        desc.threads = HELPERS;
        desc.parallel_for = shuffled;
        desc.user = c;
    }
    jem_ctx *ctx = jem_ctx_create(&desc);
    if (ctx) l->hash = live(ctx, l->path);
    if (l->hash == 0) printf("%s\n", jem_error(ctx));
    if (l->parallel && c->calls < 100) l->hash = 1;          /* it took no part */
    jem_ctx_free(ctx);
    pthread_mutex_destroy(&c->lock);
    free(c);
    return NULL;
}

static uint64_t two_at_once(char path[][128]) {
    liver alone = { 0, 0, path[0], 0 };
    liver first = { 17, 1, path[0], 0 };
    liver second = { 4, 1, path[1], 0 };
    pthread_t other;
    live_alone(&alone);
    CHECK(alone.hash != 0, "a life in one thread");
    if (!CHECK(!pthread_create(&other, NULL, live_alone, &second), "no thread")) return 0;
    live_alone(&first);
    pthread_join(other, NULL);
    CHECK(first.hash == alone.hash && second.hash == alone.hash,
          "two contexts at once, with shuffled tasks on %d threads each", HELPERS + 1);
    return alone.hash;
}

/* ---- OpenMP's threads ------------------------------------------------------------------------ */
#ifdef _OPENMP
static volatile int came[2];

/* Whoever comes first waits for the other, which has nothing else to do: else it might, all alone,
   be done before the other wakes up. */
static void meet(const jem_call *call) {
    const double late = omp_get_wtime() + 20;
    came[omp_get_thread_num() > 0] = 1;
    while (omp_get_num_threads() > 1 && !(came[0] && came[1]) && omp_get_wtime() < late) {
#pragma omp flush
    }
    memset(call->y, 0, (size_t)call->out.c * 16 * sizeof *call->y);
}
static const jem_op meet_op = { "meet", meet, NULL, JEM_KEEPS_NOTHING, NULL };

/* Large enough to be worth a thread's start. */
static void test_openmp(void) {
    const jem_shape s = { 1024, 1024, 1, 1 };
    jem_ctx *ctx = jem_ctx_create(NULL);
    CHECK(jem_ctx_threads(ctx) == omp_get_max_threads(), "%d threads, OpenMP has %d",
          jem_ctx_threads(ctx), omp_get_max_threads());
    if (omp_get_max_threads() < 2) printf("OpenMP has one thread here: no other default is seen\n");
    jem_ctx_free(ctx);
    if (omp_get_thread_limit() < 2 || omp_get_dynamic()) {
        printf("OpenMP may refuse a second thread here: not tested that there is one\n");
        return;
    }
    ctx = isa_ctx(JEM_ISA_BEST, 2);
    jem_tensor *x = jem_zeros(ctx, s.n, 1, 1, 1);
    float *y = floats((ptrdiff_t)s.n * s.c);
    CHECK(jem_read(jem_custom(ctx, &meet_op, &x, 1, s, NULL, 0, 0), y) == JEM_OK, "%s",
          jem_error(ctx));
    CHECK(came[0] && came[1], "two threads were asked for, one did it all");
    free(y);
    jem_ctx_free(ctx);
}
#else
static void test_openmp(void) {}
#endif

/* ---- the soak -------------------------------------------------------------------------------- */

/* Bytes of this process that are in memory; 0 where the system does not tell. */
static double resident(void) {
    double all = 0;
    double in = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (f && fscanf(f, "%lf %lf", &all, &in) != 2) in = 0;
    if (f) fclose(f);
    return in * (double)sysconf(_SC_PAGESIZE);
}

/* Bytes that malloc has given out, to whomever; 0 where it does not tell. */
static double given_out(void) {
#ifdef MALLOC_TELLS
    const struct mallinfo2 m = mallinfo2();
    return (double)m.uordblks + (double)m.hblkhd;
#else
    return 0;
#endif
}

typedef struct peak { double early, later; } peak;  /* in the first eighth, and after it */
static void see(peak *p, int early, double bytes) {
    double *most = early ? &p->early : &p->later;
    if (bytes > *most) *most = bytes;
}

/* Rounds in one context that stays, and in one for each round, until the time is up. What malloc
   has given out grows by some KB until its lists of small pieces are full (they count as given
   out); what is resident may jump once, by .75 MB here: whether malloc gives the heap's top back
   to the system depends on the start of the heap. (By 8 MB, and at any time, with malloc's dynamic
   threshold for blocks from the heap, which this test therefore fixes.) */
static void soak(double seconds, uint64_t want, const char *path) {
    counter c;
#ifdef MALLOC_TELLS
    mallopt(M_MMAP_THRESHOLD, 128 << 10);
#endif
    jem_ctx *stays = open_ctx(&c);
    const double start = now();
    peak in = { 0, 0 }, given = { 0, 0 };
    size_t held = 0;
    long alive = 0, rounds = 0;
    for (; rounds < 4 || now() - start < seconds; rounds++) {
        if (seconds <= 0 && rounds) break;
        liver l = { 0, 0, path, 0 };
        const uint64_t hash = live(stays, path);
        live_alone(&l);
        const int same = hash == want && l.hash == want;
        if (!CHECK(same, "round %ld: %s", rounds, jem_error(stays))) break;
        if (rounds == 1) {
            held = jem_memory(stays).bytes;
            alive = c.alive;
        }
        if (rounds > 1 && !CHECK(jem_memory(stays).bytes == held && c.alive == alive,
                                 "round %ld: %.0f bytes, %ld blocks; before %.0f, %ld", rounds,
                                 (double)jem_memory(stays).bytes, c.alive, (double)held, alive))
            break;
        const int early = rounds < 3 || now() - start < seconds / 8;
        see(&in, early, resident());
        see(&given, early, given_out());
    }
    close_ctx(stays, &c, "the soak");
    printf("%ld rounds in %.0f s; resident: %.2f MB early on, at most %.2f MB later; given out: "
           "%.3f MB, %.3f MB\n", rounds, now() - start, in.early / 1e6, in.later / 1e6,
           given.early / 1e6, given.later / 1e6);
    if (rounds <= 3) return;
    CHECK(given.later <= given.early + 65536, "malloc: %.0f bytes more", given.later - given.early);
    CHECK(in.later <= in.early + 1048576, "memory grew by %.0f bytes", in.later - in.early);
}

/* An argument that is a number is the time of the soak in seconds. */
int main(int argc, char **argv) {
    char path[2][128];
    const char *base = getenv("TMPDIR");
    const int timed = argc > 1 && isdigit((unsigned char)argv[1][0]);
    if (!timed) test_begin(argc, argv);
    for (int i = 0; i < 2; i++) snprintf(path[i], sizeof path[i], "%.80s/jem_soak_%ld_%d",
                                         base && *base ? base : "/tmp", (long)getpid(), i);
    if (test_wants("test_openmp")) test_openmp();
    if (test_wants("two_at_once, soak"))
        soak(timed ? atof(argv[1]) : 3, two_at_once(path), path[0]);
    for (int i = 0; i < 2; i++) remove(path[i]);
    return test_report();
}
