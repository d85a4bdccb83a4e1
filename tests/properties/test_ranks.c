/* Several processes that train one network (jem_sum_fn): the curve of a single process, equal
   state of all, resuming with another number, errors. Here the ranks are forked, and the parent
   sums their messages through pipes; tests/tools/mpi.sh does the same with MPI. */
#ifndef _XOPEN_SOURCE
#define _XOPEN_SOURCE 700
#endif
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#define JEM_IMPLEMENTATION
#include "jem.h"
#include "tests/support/test.h"
#include "tests/support/common.h"

enum { MOST_RANKS = 4, SIDE = 8, PIXELS = SIDE * SIDE, CLASSES = 3, BATCH = 64, UPDATES = 6 };
enum { CHAINS = 0, SCORE, BY_CLASS, SGD, MUON, DROPOUT, ACT_NORM, BATCH_NORM, ROWS, KINDS };
static const char *const kind_name[KINDS] = { "chains", "score, fresh chains", "chains by class",
                                              "sgd", "muon", "dropout", "act norm", "batch norm",
                                              "vectors" };

/* ---- processes ------------------------------------------------------------------------------- */

typedef struct pipes { int up[2], down[2]; } pipes;
typedef struct head { ptrdiff_t n; int is_result; } head;

/* What a rank ends with: NUMBERS per update, then the parameters, the chains, and the message. */
enum { NUMBERS = 8 };
typedef struct outcome { float *x; ptrdiff_t n; } outcome;

static int move_bytes(int file, void *bytes, size_t n, int out) {
    for (char *at = (char *)bytes; n > 0; ) {
        const ssize_t k = out ? write(file, at, n) : read(file, at, n);
        if (k <= 0) return 0;
        at += k;
        n -= (size_t)k;
    }
    return 1;
}

static void send_floats(const pipes *p, const float *x, ptrdiff_t n, int is_result) {
    head h;
    memset(&h, 0, sizeof h);
    h.n = n;
    h.is_result = is_result;
    if (!move_bytes(p->up[1], &h, sizeof h, 1) ||
        !move_bytes(p->up[1], (void *)(uintptr_t)x, (size_t)n * sizeof *x, 1)) _exit(3);
}

static void sum_by_pipe(void *user, float *x, ptrdiff_t n) {
    const pipes *p = (const pipes *)user;
    send_floats(p, x, n, 0);
    if (!move_bytes(p->down[0], x, (size_t)n * sizeof *x, 0)) _exit(4);
}

/* Adds up what the ranks send until all have sent a result; 0 if they do not send the same. */
static int add_up(const pipes *p, int ranks, outcome *out) {
    for (;;) {
        float *sum = NULL;
        ptrdiff_t n = 0;
        int results = 0;
        for (int r = 0; r < ranks; r++) {
            head h;
            if (!move_bytes(p[r].up[0], &h, sizeof h, 0)) return 0;
            float *x = (float *)malloc((size_t)h.n * sizeof *x);
            if (!x || !move_bytes(p[r].up[0], x, (size_t)h.n * sizeof *x, 0)) return 0;
            results += h.is_result;
            if (h.is_result) {
                out[r].x = x;
                out[r].n = h.n;
                continue;
            }
            if (sum && n != h.n) return 0;
            for (ptrdiff_t i = 0; sum && i < n; i++) sum[i] += x[i];
            if (sum) {
                free(x);
            } else {
                sum = x;
                n = h.n;
            }
        }
        if (results) {
            free(sum);
            return results == ranks;
        }
        for (int r = 0; r < ranks; r++)
            if (!move_bytes(p[r].down[1], sum, (size_t)n * sizeof *sum, 1)) return 0;
        free(sum);
    }
}

/* ---- a training run -------------------------------------------------------------------------- */

typedef struct plan {
    int kind, ranks, updates, batch;
    int diverges;                                  /* this rank walks with .. or -1 */
    float noise;                                   /* .. noise so large */
    int stranger;                                  /* this rank has another seed, or -1 */
    int bad_term;                                  /* the loss term of this rank diverges, or -1 */
    int fails_at;                                  /* .. at this update */
    int no_guard;                                  /* .. which is an error */
    const unsigned char *from;                     /* a checkpoint, and its bytes */
    size_t from_size;
    int returns_checkpoint;                        /* .. instead of parameters and chains */
} plan;

/* Images of one process, the same on all ranks: a bright square, by class in another place. */
static void make_batch(int update, float *x, int *y, int n) {
    jem_rng rng = jem_rng_seed((uint64_t)update + 1000);
    for (int i = 0; i < n; i++) {
        y[i] = jem_rng_below(&rng, CLASSES);
        for (int k = 0; k < PIXELS; k++)
            x[i * PIXELS + k] = (k / SIDE / 3 == y[i] ? .7f : -.8f) + .1f * jem_rng_normal(&rng);
    }
}

static jem_net *make_net(jem_ctx *ctx, int kind) {
    if (kind == ROWS) {
        static float x[BATCH * PIXELS];
        int y[BATCH];
        const jem_mlp_desc m = jem_mlp_desc_vectors(PIXELS, CLASSES);
        jem_net *rows = jem_mlp_create(ctx, &m, 7);
        make_batch(0, x, y, BATCH);
        jem_net_fit_units(rows, x, BATCH);
        return rows;
    }
    if (kind >= DROPOUT) {
        jem_wrn_desc w = jem_wrn_desc_default();
        w.depth = 10;
        w.widen = 1;
        w.channels = 1;
        w.height = w.width = SIDE;
        w.classes = CLASSES;
        w.activation = JEM_ACTIVATION_SILU;
        w.head = JEM_HEAD_FLAT;
        if (kind == DROPOUT) w.dropout = .3f;
        else w.norm = kind == ACT_NORM ? JEM_NORM_ACT : JEM_NORM_BATCH;
        return jem_wrn_create(ctx, &w, 7);
    }
    jem_convnet_desc c = jem_convnet_desc_default();
    c.height = c.width = SIDE;
    c.classes = CLASSES;
    c.layers = 2;
    c.widths[0] = 8;
    c.widths[1] = 16;
    jem_net *net = jem_convnet_create(ctx, &c, 7);
    if (net && kind == SCORE) net->scale = 10;
    return net;
}

/* The update that runs, and its plan, for bad_term below. */
static struct { const plan *p; int rank, update; } now;

/* The mean of the logits' squares; or, where the plan says so, an error. */
static jem_tensor *bad_term(const jem_term_inputs *in, void *user) {
    jem_ctx *ctx = in->net->ctx;
    (void)user;
    if (now.rank == now.p->bad_term && now.update == now.p->fails_at) {
        now.update = -1;                           /* the next try succeeds */
        jem_fail(ctx, JEM_DIVERGED, "the term diverged");
    }
    return jem_mean(ctx, jem_mul(ctx, in->logits, in->logits));
}

static jem_train_desc make_desc(const plan *p, int rank, const pipes *link) {
    jem_train_desc d = p->kind == SCORE ? jem_train_desc_score(8) : jem_train_desc_default();
    if (p->kind == ROWS) d = jem_train_desc_vectors(8);
    d.lr = 1e-3f;
    d.negatives = p->batch;
    d.buffer_size = 120;
    d.sgld.steps = 4;
    if (p->kind == SCORE) {
        d.cd_from = 2;
        d.restart_denoise.steps = 5;
        d.reinit = .5f;
        d.pause_gap = 1e-6f;
    }
    if (p->kind == SGD) d.optim.kind = JEM_OPTIMIZER_SGD;  /* Adam ignores a gradient's scale */
    if (p->kind == MUON) d.optim.kind = JEM_OPTIMIZER_MUON;
    if (p->kind == BY_CLASS) {
        d.class_conditional = 1;
        d.weights.cd_class = .5f;
        d.weights.energy_l2 = .01f;
        d.restart_denoise.steps = 3;
    }
    d.rank = rank;
    d.ranks = p->ranks;
    d.sum = sum_by_pipe;
    d.sum_user = (void *)(uintptr_t)link;
    if (p->kind == ACT_NORM) d.sgld.step_size = .05f;      /* its steep slopes amplify rounding */
    if (p->diverges >= 0) d.max_rollbacks = 0;     /* its divergence is an error */
    if (rank == p->diverges) d.sgld.noise_std = p->noise;
    if (rank == p->stranger) d.seed = 99;
    if (p->bad_term >= 0) {
        d.term = bad_term;
        d.w_term = .01f;
        if (p->no_guard) d.max_rollbacks = 0;
    }
    return d;
}

/* Writes a checkpoint to `out`. Returns its number of floats; 0 without memory. */
static ptrdiff_t put_checkpoint(const jem_net *net, jem_trainer *tr, float *out) {
    jem_ctx *ctx = net->ctx;
    ptrdiff_t n = 0;
    size_t size = 0;
    jem_archive *a = jem_archive_create(ctx);
    jem_net_to_archive(net, a);
    jem_trainer_to_archive(tr, a);
    void *bytes = jem_archive_to_memory(a, &size);
    if (bytes) {
        memcpy(out, bytes, size);
        n = (ptrdiff_t)(size + 3) / 4;
    }
    jem_release(ctx, bytes);
    jem_archive_free(a);
    return n;
}

/* Writes parameters, chains and the error message to `out`. Returns the number of floats. */
static ptrdiff_t put_state(const jem_net *net, jem_trainer *tr, float *out) {
    ptrdiff_t n = 0;
    const jem_buffer *b = jem_trainer_buffer(tr);
    for (const jem_param *q = net->params; q; q = q->next) {
        memcpy(out + n, q->value, (size_t)q->size * sizeof *out);
        n += q->size;
    }
    if (b) {
        memcpy(out + n, b->data, (size_t)b->capacity * PIXELS * sizeof *out);
        n += b->capacity * PIXELS;
    }
    for (const char *c = jem_error(net->ctx); *c; c++) out[n++] = (float)*c;
    out[n++] = 0;
    return n;
}

/* The updates from `at` on; the outcome is sent. */
static void be_rank(const plan *p, int rank, const pipes *link) {
    static float x[BATCH * PIXELS], more[BATCH * PIXELS], out[1 << 20];
    static int y[BATCH];
    jem_ctx_desc one;
    memset(&one, 0, sizeof one);
    one.threads = 1;
    jem_ctx *ctx = jem_ctx_create(&one);
    jem_net *net = make_net(ctx, p->kind);
    const jem_train_desc d = make_desc(p, rank, link);
    jem_trainer *tr = jem_trainer_create(net, &d);
    jem_archive *a = p->from ? jem_archive_parse(ctx, p->from, p->from_size) : NULL;
    if (a) {
        jem_net_load(net, a);
        jem_trainer_from_archive(tr, a);
    }
    jem_archive_free(a);
    ptrdiff_t n = 0;
    now.p = p;
    now.rank = rank;
    for (int i = jem_trainer_updates(tr); i < p->updates; i++) {
        now.update = i;
        make_batch(i + 500, more, y, p->batch);
        make_batch(i, x, y, p->batch);
        const jem_stats s = jem_train_step_semi(tr, x, y, p->batch, more,
                                                p->kind == BY_CLASS ? p->batch : 0);
        const float numbers[NUMBERS] = { s.loss, s.ce, s.accuracy, s.f_data - s.f_sample,
                                         s.cd, s.residual, s.grad_norm, (float)s.status };
        memcpy(out + n, numbers, sizeof numbers);
        n += NUMBERS;
        if (s.status != JEM_OK) break;
    }
    if (p->returns_checkpoint) n = put_checkpoint(net, tr, out);
    else n += put_state(net, tr, out + n);
    send_floats(link, out, n, 1);
    jem_trainer_free(tr);
    jem_net_free(net);
    jem_ctx_free(ctx);
}

static int run(const plan *p, outcome *out) {
    pipes link[MOST_RANKS];
    pid_t child[MOST_RANKS];
    int ok = 1;
    int status;
    alarm(500);                                    /* ranks that wait for each other forever */
    memset(out, 0, MOST_RANKS * sizeof *out);
    fflush(stdout);
    for (int r = 0; r < p->ranks; r++) {
        if (pipe(link[r].up) || pipe(link[r].down) || (child[r] = fork()) < 0) return 0;
        if (child[r] == 0) {
            for (int k = 0; k <= r; k++) {         /* so that reading ends if the parent stops */
                close(link[k].up[0]);
                close(link[k].down[1]);
            }
            be_rank(p, r, &link[r]);
            _exit(0);
        }
    }
    for (int r = 0; r < p->ranks; r++) {
        close(link[r].up[1]);
        close(link[r].down[0]);
    }
    ok = add_up(link, p->ranks, out);
    for (int r = 0; r < p->ranks; r++) {
        close(link[r].up[0]);
        close(link[r].down[1]);
    }
    for (int r = 0; r < p->ranks; r++)
        ok = waitpid(child[r], &status, 0) == child[r] && status == 0 && ok;
    alarm(0);
    return ok;
}

static void outcome_free(outcome *out) { for (int r = 0; r < MOST_RANKS; r++) free(out[r].x); }

static plan plan_of(int kind, int ranks) {
    plan p;
    memset(&p, 0, sizeof p);
    p.kind = kind;
    p.ranks = ranks;
    p.updates = UPDATES;
    p.batch = BATCH;
    p.diverges = p.stranger = p.bad_term = -1;
    return p;
}

/* ---- tests ----------------------------------------------------------------------------------- */

static int all_equal(const outcome *out, int ranks) {
    for (int r = 1; r < ranks; r++)
        if (out[r].n != out[0].n || memcmp(out[r].x, out[0].x, (size_t)out[0].n * sizeof(float)))
            return 0;
    return 1;
}

/* The largest difference of two outcomes' numbers, parameters and chains. */
static double distance(const outcome *a, const outcome *b) {
    double most = a->n == b->n ? 0 : 1e9;
    for (ptrdiff_t i = 0; i < a->n && i < b->n; i++) {
        const double d = fabs((double)a->x[i] - (double)b->x[i]);
        if (!(d <= most) && most == most) most = d;
    }
    return most;
}

/* One, two and four processes: equal up to rounding; the ranks of a run bit for bit. */
static void test_one_curve(int kind) {
    outcome one[MOST_RANKS], many[MOST_RANKS];
    plan p = plan_of(kind, 1);
    CHECK(run(&p, one), "%s: one process", kind_name[kind]);
    CHECK(one[0].n > UPDATES * NUMBERS && one[0].x[UPDATES * NUMBERS - 1] == (float)JEM_OK,
          "%s: not all updates are made", kind_name[kind]);
    for (int ranks = 2; ranks <= MOST_RANKS; ranks *= 2) {
        p.ranks = ranks;
        CHECK(run(&p, many), "%s: %d ranks do not send the same", kind_name[kind], ranks);
        CHECK(all_equal(many, ranks), "%s: %d ranks differ", kind_name[kind], ranks);
        const double d = distance(one, many);
        if (getenv("VERBOSE")) printf("%s, %d ranks: %g\n", kind_name[kind], ranks, d);
        if (kind != BATCH_NORM) CHECK(d < 1e-4, "%s, %d ranks: %g", kind_name[kind], ranks, d);
        outcome_free(many);
    }
    outcome_free(one);
}

/* With weights that are still equal, chains have the bits of a single process. */
static void test_chains_to_the_bit(void) {
    outcome one[MOST_RANKS], many[MOST_RANKS];
    plan p = plan_of(CHAINS, 1);
    p.updates = 1;
    CHECK(run(&p, one), "one process");
    p.ranks = 4;
    CHECK(run(&p, many), "4 ranks");
    const ptrdiff_t chains = 120 * PIXELS + 1;
    const ptrdiff_t at = one[0].n - chains;
    int same = 1;
    for (ptrdiff_t i = at; i < one[0].n; i++) same &= one[0].x[i] == many[0].x[i];
    CHECK(same && chains < one[0].n, "chains after one update differ");
    outcome_free(one);
    outcome_free(many);
}

/* A run that is stopped in four processes goes on in one and in two. */
static void test_resume(int kind) {
    outcome whole[MOST_RANKS], half[MOST_RANKS], rest[MOST_RANKS];
    plan p = plan_of(kind, 4);
    CHECK(run(&p, whole), "4 ranks");
    p.updates = UPDATES / 2;
    p.returns_checkpoint = 1;
    CHECK(run(&p, half) && all_equal(half, 4), "checkpoints of ranks differ");
    p = plan_of(kind, 1);
    p.from = (const unsigned char *)half[2].x;
    p.from_size = (size_t)half[2].n * sizeof(float);
    for (; p.ranks <= MOST_RANKS; p.ranks *= 2) {
        CHECK(run(&p, rest) && all_equal(rest, p.ranks), "%d ranks", p.ranks);
        outcome late = whole[0];                   /* of which the rest has no early numbers */
        late.x += UPDATES / 2 * NUMBERS;
        late.n -= UPDATES / 2 * NUMBERS;
        const double d = distance(&late, rest);
        CHECK(d < (p.ranks == 4 ? 1e-30 : 1e-4), "%s, on %d ranks: %g", kind_name[kind], p.ranks,
              d);
        outcome_free(rest);
    }
    outcome_free(whole);
    outcome_free(half);
}

/* Shares that are not whole groups: other noise, but the ranks agree. */
static void test_odd_shares(void) {
    outcome out[MOST_RANKS];
    for (int kind = 0; kind < KINDS; kind++) {
        plan p = plan_of(kind, 3);
        p.batch = 15;
        CHECK(run(&p, out) && all_equal(out, 3), "%s: 15 images on 3 ranks", kind_name[kind]);
        CHECK(out[0].x[UPDATES * NUMBERS - 1] == (float)JEM_OK, "%s", kind_name[kind]);
        outcome_free(out);
    }
}

/* What one rank meets is an error on all, at the same update: numbers that are not finite, or a
   loss that is too large. */
static void test_divergence(void) {
    static const float noise[2] = { 3e38f, 1e30f };
    for (int i = 0; i < 4; i++) {
        outcome out[MOST_RANKS];
        const int finite = i & 1;
        const int score = i >> 1;
        const int rank = 2 * score;
        plan p = plan_of(score ? SCORE : CHAINS, 4);
        p.diverges = rank;
        p.noise = noise[finite];
        CHECK(run(&p, out), "case %d: ranks do not send the same", i);
        const int at = score ? 2 : 0;              /* when SCORE's chains set in */
        for (int r = 0; r < 4; r++) {
            char text[32];                         /* the end of the message, with its 0 */
            for (int k = 0; k < 32; k++) text[k] = (char)(int)out[r].x[out[r].n - 32 + k];
            text[0] = ' ';
            CHECK(out[r].x[at * NUMBERS + NUMBERS - 1] == (float)JEM_DIVERGED, "case %d, rank %d",
                  i, r);
            const char *why = r == rank ? "finite after 4 steps" : "another rank";
            if (finite) why = "f(x-)";
            CHECK(strstr(text, why), "case %d, rank %d says %s", i, r, text);
        }
        outcome_free(out);
    }
}

/* A loss term that diverges on one rank: an error on all, or a return of all to the good state. */
static void test_bad_term(void) {
    for (int k = 0; k < 4; k++) {
        outcome out[MOST_RANKS];
        plan p = plan_of(k & 1 ? SCORE : CHAINS, 4);
        p.bad_term = 1;
        p.fails_at = 3;
        p.no_guard = k >> 1;
        CHECK(run(&p, out), "case %d: ranks do not send the same", k);
        for (int r = 0; r < 4; r++) {
            const float status = out[r].x[3 * NUMBERS + NUMBERS - 1];
            const jem_status wanted = p.no_guard ? JEM_DIVERGED : JEM_OK;
            CHECK(status == (float)wanted, "case %d, rank %d: %g", k, r, (double)status);
        }
        if (!p.no_guard) {                         /* the numbers of the failed update differ */
            for (int r = 1; r < 4; r++)
                memcpy(out[r].x + 3 * NUMBERS, out[0].x + 3 * NUMBERS, NUMBERS * sizeof(float));
            CHECK(all_equal(out, 4), "case %d: the ranks returned to different states", k);
        }
        outcome_free(out);
    }
}

static void fails(void *user, float *x, ptrdiff_t n) {
    (void)x;
    (void)n;
    jem_fail((jem_ctx *)user, JEM_BAD_FILE, "the network is down");
}

static void refused(jem_ctx *ctx, jem_net *net, const jem_train_desc *d, const char *why) {
    jem_trainer *tr = jem_trainer_create(net, d);
    CHECK(!tr && strstr(jem_error(ctx), why), "not refused: %s: %s", why, jem_error(ctx));
    jem_trainer_free(tr);
    jem_clear_error(ctx);
}

static void test_misuse(void) {
    static float x[BATCH * PIXELS];
    int y[BATCH];
    jem_ctx *ctx = jem_ctx_create(NULL);
    jem_net *net = make_net(ctx, CHAINS);
    plan p = plan_of(CHAINS, 4);
    jem_train_desc d = make_desc(&p, 4, NULL);
    refused(ctx, net, &d, "rank");
    d.rank = 0;
    d.ranks = 0;
    refused(ctx, net, &d, "ranks");
    d.ranks = 4;
    d.sum = NULL;
    refused(ctx, net, &d, "ranks");
    d.sum = fails;
    d.sum_user = ctx;
    d.negatives = 30;
    refused(ctx, net, &d, "negatives = 30 is not a multiple of ranks = 4");
    d.negatives = 32;
    d.rank = 3;
    jem_trainer *tr = jem_trainer_create(net, &d);
    make_batch(0, x, y, BATCH);
    CHECK(jem_train_step(tr, x, y, 30).status == JEM_BAD_ARGUMENT &&
          strstr(jem_error(ctx), "ranks = 4"), "30 images for 4 ranks: %s", jem_error(ctx));
    jem_clear_error(ctx);
    const int label = y[0];
    y[0] = 99;                                     /* in another's share: known before any sum */
    CHECK(jem_train_step(tr, x, y, 32).status == JEM_BAD_ARGUMENT &&
          strstr(jem_error(ctx), "label 99 of image 0"), "a label: %s", jem_error(ctx));
    jem_clear_error(ctx);
    y[0] = label;
    const float before = net->params->value[0];
    CHECK(jem_train_step(tr, x, y, 32).status == JEM_BAD_FILE &&
          strstr(jem_error(ctx), "network is down"), "a sum that fails: %s", jem_error(ctx));
    CHECK(jem_trainer_updates(tr) == 0 && net->params->value[0] == before, "an update was made");
    jem_clear_error(ctx);
    float lone = 0;                                /* after an error, samplers are on their own */
    jem_rng a = jem_rng_seed(1);
    jem_rng b = a;
    jem_tensor *t = jem_zeros(ctx, 1, 1, 1, 1);
    lone = 1;
    jem_add_noise(t, &lone, &a);
    jem_fill_normal(ctx, &b, &lone, 1, 0, 1);
    CHECK(jem_item(t) == lone, "%g, not %g", (double)jem_item(t), (double)lone);
    jem_trainer_free(tr);
    jem_net_free(net);
    jem_ctx_free(ctx);
}

static void test_curves(void) {
    for (int kind = 0; kind < KINDS; kind++) test_one_curve(kind);
}

/* Batch norm is of each rank's own images. */
static void test_resumed(void) {
    for (int kind = 0; kind < KINDS; kind++)
        if (kind != BATCH_NORM) test_resume(kind);
}

int main(int argc, char **argv) {
    static const test_case all[] = {
        TEST(test_curves), TEST(test_chains_to_the_bit), TEST(test_resumed),
        TEST(test_odd_shares), TEST(test_divergence), TEST(test_bad_term), TEST(test_misuse)
    };
    signal(SIGPIPE, SIG_IGN);
    return test_main(argc, argv, all, TEST_COUNT(all));
}
