/* Random graphs of ops: odd sizes, strides, pads, norms, pools with ties, 1 to 33 images. The plan
   has the bits of the plain tape, and scalar code those of vector code: for values, for the
   gradient of the input, and for those of the parameters.

       test_graphs FILE COUNT [SEED]          also writes them, for torch_graphs.py */
#define JEM_IMPLEMENTATION
#include "jem.h"
#include "tests/support/test.h"
#include "tests/support/common.h"

enum { STEPS = 9, TENSORS = STEPS + 1, PARAMS = 5 * STEPS };
enum { IMAGES = 33, NUMBERS = 8000, LABELS = 3 };

typedef enum op_kind {
    CONV = 0, LINEAR, ADD, SUB, MUL, MUL_DETACHED, CONCAT, SCALE, SHIFT, SQUARE, EXP, LOG, TANH,
    SIGMOID, SOFTPLUS, CLAMP, RELU, LEAKY, SILU, AVG_POOL, MAX_POOL, GLOBAL_POOL, UPSAMPLE, FLATTEN,
    SLICE, LOGSUMEXP, LOG_SOFTMAX, GATHER, SUM_IMAGE, INSTANCE, LAYER, BATCH, BATCH_TRAINING, ACT,
    OPS
} op_kind;
static const char *const names[OPS] = {
    "conv", "linear", "add", "sub", "mul", "mul_detached", "concat", "scale", "shift", "square",
    "exp", "log", "tanh", "sigmoid", "softplus", "clamp", "relu", "leaky", "silu", "avg_pool",
    "max_pool", "global_pool", "upsample", "flatten", "slice", "logsumexp", "log_softmax", "gather",
    "sum_image", "instance", "layer", "batch", "batch_training", "act"
};

/* An op of tensors in[0], in[1] (-1: of one), with the parameters of these numbers (-1: there is
   none), and up to three whole numbers and two others. */
typedef struct step {
    op_kind op;
    int in[2], number[3], param[5];
    float factor[2];
} step;

/* Tensor 0 is the input, tensor i + 1 the output of step i; the last one is weighed by `probe`. */
typedef struct graph {
    jem_shape in;
    float *x, *probe;
    int labels[IMAGES];
    int count;
    step steps[STEPS];
    jem_net *bag;
} graph;

/* What a pass gives: all of it, in order, for fingerprints. */
typedef struct results {
    float *y, *dx;
    ptrdiff_t y_size, dx_size;
    uint64_t hash;
} results;

static ptrdiff_t size_of(const jem_tensor *t) { return (ptrdiff_t)t->n * t->c * t->h * t->w; }

static int between(jem_rng *rng, int lo, int hi) { return lo + jem_rng_below(rng, hi - lo + 1); }

static void list_params(const jem_net *bag, jem_param **all) {
    for (jem_param *p = bag->params; p; p = p->next) *all++ = p;
}

/* ---- one op ---------------------------------------------------------------------------------- */

static jem_tensor *apply_norm(jem_ctx *ctx, const step *s, jem_tensor *a, jem_param *const *p) {
    if (s->op == INSTANCE) return jem_instance_norm(ctx, a, p[0], p[1]);
    if (s->op == LAYER) return jem_layer_norm(ctx, a, p[0], p[1]);
    if (s->op == ACT) return jem_act_norm(ctx, a, p[0], p[1], p[2], 1);
    return jem_batch_norm(ctx, a, p[0], p[1], p[2], p[3], 0.25f, s->op == BATCH_TRAINING);
}

static jem_tensor *apply_map(jem_ctx *ctx, const step *s, jem_tensor *a) {
    switch (s->op) {
    case SCALE: return jem_scale(ctx, a, s->factor[0]);
    case SHIFT: return jem_add_constant(ctx, a, s->factor[0]);
    case SQUARE: return jem_square(ctx, a);
    case EXP: return jem_exp(ctx, jem_tanh(ctx, a));
    case LOG: return jem_log(ctx, jem_add_constant(ctx, jem_softplus(ctx, a), 0.125f));
    case TANH: return jem_tanh(ctx, a);
    case SIGMOID: return jem_sigmoid(ctx, a);
    case SOFTPLUS: return jem_softplus(ctx, a);
    case CLAMP: return jem_clamp(ctx, a, s->factor[0], s->factor[1]);
    case RELU: return jem_relu(ctx, a);
    case LEAKY: return jem_leaky_relu(ctx, a, s->factor[0]);
    default: return jem_silu(ctx, a);
    }
}

static jem_tensor *apply(jem_ctx *ctx, const graph *g, const step *s, jem_tensor *const *tensors,
                         jem_param *const *all) {
    jem_tensor *a = tensors[s->in[0]];
    jem_tensor *b = s->in[1] < 0 ? NULL : tensors[s->in[1]];
    jem_param *p[5];
    const jem_conv_desc conv = { s->number[0], s->number[1] };
    for (int i = 0; i < 5; i++) p[i] = s->param[i] < 0 ? NULL : all[s->param[i]];
    switch (s->op) {
    case CONV: return jem_conv2d(ctx, a, p[0], p[1], conv);
    case LINEAR: return jem_linear(ctx, a, p[0], p[1]);
    case ADD: return jem_add(ctx, a, b);
    case SUB: return jem_sub(ctx, a, b);
    case MUL: return jem_mul(ctx, a, b);
    case MUL_DETACHED: return jem_mul(ctx, a, jem_detach(ctx, b));
    case CONCAT: return jem_concat(ctx, a, b);
    case AVG_POOL: return jem_avg_pool(ctx, a, s->number[0], s->number[1]);
    case MAX_POOL: return jem_max_pool(ctx, a, s->number[0], s->number[1]);
    case GLOBAL_POOL: return jem_global_pool(ctx, a);
    case UPSAMPLE: return jem_upsample(ctx, a, s->number[0]);
    case FLATTEN: return jem_flatten(ctx, a);
    case SLICE: return jem_slice(ctx, a, s->number[0], s->number[1]);
    case LOGSUMEXP: return jem_logsumexp(ctx, a);
    case LOG_SOFTMAX: return jem_log_softmax(ctx, a);
    case GATHER: return jem_gather(ctx, a, g->labels);
    case SUM_IMAGE: return jem_sum_image(ctx, a);
    case INSTANCE: case LAYER: case BATCH: case BATCH_TRAINING: case ACT:
        return apply_norm(ctx, s, a, p);
    default: return apply_map(ctx, s, a);
    }
}

/* ---- choosing one ---------------------------------------------------------------------------- */

/* Adds a parameter to the graph's bag and returns its number. */
static int add_param(graph *g, jem_rng *rng, int ndim, const int *shape, float lo, float hi) {
    int count = 0;
    char name[16];
    for (const jem_param *p = g->bag->params; p; p = p->next) count++;
    snprintf(name, sizeof name, "p%d", count);
    jem_param *p = jem_net_param(g->bag, name, ndim, shape, 1);
    for (ptrdiff_t i = 0; p && i < p->size; i++)
        p->value[i] = lo + (hi - lo) * jem_rng_uniform(rng);
    return count;
}

static void choose_conv(graph *g, jem_rng *rng, step *s, const jem_tensor *a) {
    const int out = between(rng, 1, 19);
    int k = between(rng, 1, 5);
    const int pad = between(rng, 0, k);
    const int side = (a->h < a->w ? a->h : a->w) + 2 * pad;
    if (k > side) k = side;
    const int shape[4] = { out, a->c, k, k };
    const float bound = 1.5f / sqrtf((float)(a->c * k * k));
    s->number[0] = between(rng, 1, 3);
    s->number[1] = pad;
    s->number[2] = k;
    s->param[0] = add_param(g, rng, 4, shape, -bound, bound);
    if (jem_rng_below(rng, 3)) s->param[1] = add_param(g, rng, 1, shape, -1, 1);
}

static void choose_linear(graph *g, jem_rng *rng, step *s, const jem_tensor *a) {
    const int shape[2] = { between(rng, 1, 35), a->c };
    const float bound = 1.5f / sqrtf((float)a->c);
    s->param[0] = add_param(g, rng, 2, shape, -bound, bound);
    if (jem_rng_below(rng, 3)) s->param[1] = add_param(g, rng, 1, shape, -1, 1);
}

static void choose_norm(graph *g, jem_rng *rng, step *s, const jem_tensor *a) {
    const int one = 1;
    const int shape[4] = { 1, a->c, 1, 1 };
    const int *sizes = shape + 1;
    if (s->op == ACT) {
        s->param[0] = add_param(g, rng, 4, shape, -0.5f, 0.5f);
        s->param[1] = add_param(g, rng, 4, shape, 0.5f, 1.5f);
        s->param[2] = add_param(g, rng, 1, &one, 1, 1);
        return;
    }
    s->param[0] = add_param(g, rng, 1, sizes, 0.5f, 1.5f);
    s->param[1] = add_param(g, rng, 1, sizes, -0.5f, 0.5f);
    if (s->op != BATCH && s->op != BATCH_TRAINING) return;
    s->param[2] = add_param(g, rng, 1, sizes, -0.5f, 0.5f);
    s->param[3] = add_param(g, rng, 1, sizes, 0.5f, 1.5f);
}

/* Chooses another tensor that goes with a: of the same shape, a number per channel or per image, or
   for concat of the same height and width. a itself is one of them. */
static int choose_other(jem_rng *rng, op_kind op, jem_tensor *const *t, int count, int a) {
    int good[TENSORS];
    int found = 0;
    for (int i = 0; i < count; i++) {
        const int small = t[i]->h == 1 && t[i]->w == 1 && op != CONCAT;
        const int sides = t[i]->h == t[a]->h && t[i]->w == t[a]->w;
        const int channels = op == CONCAT || t[i]->c == t[a]->c || (small && t[i]->c == 1);
        if (channels && (sides || small)) good[found++] = i;
    }
    return good[jem_rng_below(rng, found)];
}

/* Returns 1 if an op is possible for a tensor, and not too large. */
static int possible(op_kind op, const jem_tensor *a) {
    const int flat = a->h == 1 && a->w == 1;
    const int pixels = a->h * a->w;
    switch (op) {
    case LINEAR: return flat;
    case LOGSUMEXP: case LOG_SOFTMAX: return flat && a->c > 1;
    case GATHER: return flat && a->c >= LABELS;
    case SUM_IMAGE: case FLATTEN: return a->c * pixels > 1 && a->c * pixels < 2000;
    case CONCAT: return 2 * a->c * pixels < NUMBERS / 4;
    case UPSAMPLE: return 9 * a->c * pixels < NUMBERS / 4;
    case AVG_POOL: case MAX_POOL: case GLOBAL_POOL: return pixels > 1;
    case INSTANCE: return pixels > 3;
    case LAYER: return a->c * pixels > 3;
    case BATCH_TRAINING: return a->n * pixels > 3;
    case CONV: return a->c * pixels < NUMBERS / 4;
    default: return 1;
    }
}

static void choose_numbers(graph *g, jem_rng *rng, step *s, const jem_tensor *a) {
    const int side = a->h < a->w ? a->h : a->w;
    const int most = side < 4 ? side : 4;
    s->factor[0] = (float)between(rng, -8, 8) / 8;
    switch (s->op) {
    case CONV: choose_conv(g, rng, s, a); break;
    case LINEAR: choose_linear(g, rng, s, a); break;
    case CLAMP:
        s->factor[0] = -(float)between(rng, 1, 4) / 4;
        s->factor[1] = (float)between(rng, 1, 4) / 4;
        break;
    case AVG_POOL: case MAX_POOL:
        s->number[0] = between(rng, 1, most);
        s->number[1] = between(rng, 1, most);
        break;
    case UPSAMPLE: s->number[0] = between(rng, 1, 3); break;
    case SLICE:
        s->number[0] = jem_rng_below(rng, a->c);
        s->number[1] = between(rng, 1, a->c - s->number[0]);
        break;
    case INSTANCE: case LAYER: case BATCH: case BATCH_TRAINING: case ACT:
        choose_norm(g, rng, s, a);
        break;
    default: break;
    }
}

/* Chooses a step for the tensors so far: mostly of the last, since otherwise graphs are flat. The
   last step of a graph has parameters, on which the loss then depends. */
static step choose(graph *g, jem_rng *rng, jem_tensor *const *t, int count, int last) {
    step s;
    memset(&s, 0, sizeof s);
    for (int i = 0; i < 5; i++) s.param[i] = -1;
    s.in[0] = last || jem_rng_below(rng, 4) ? count - 1 : jem_rng_below(rng, count);
    do {
        const int conv = last || !jem_rng_below(rng, 4);
        s.op = conv ? CONV : (op_kind)jem_rng_below(rng, OPS);
    } while (!last && !possible(s.op, t[s.in[0]]));
    s.in[1] = -1;
    if (s.op >= ADD && s.op <= CONCAT) s.in[1] = choose_other(rng, s.op, t, count, s.in[0]);
    choose_numbers(g, rng, &s, t[s.in[0]]);
    return s;
}

/* ---- a graph --------------------------------------------------------------------------------- */

/* Chooses the graph, recording it on the way. In half of them x has few values, none of them 0, so
   that maxima are tied. */
static int graph_make(graph *g, jem_ctx *ctx, uint64_t seed) {
    jem_rng rng = jem_rng_seed(seed);
    jem_tensor *t[TENSORS];
    jem_param *all[PARAMS];
    memset(g, 0, sizeof *g);
    g->in = shape(between(&rng, 1, IMAGES), between(&rng, 1, 9), between(&rng, 1, 13),
                  between(&rng, 1, 13));
    if (jem_rng_below(&rng, 4) == 0) g->in.n = jem_rng_below(&rng, 2) ? 1 : 17;
    const ptrdiff_t size = (ptrdiff_t)g->in.n * g->in.c * g->in.h * g->in.w;
    g->x = random_floats(&rng, size, -1.5f, 1.5f);
    const int coarse = jem_rng_below(&rng, 2);
    for (ptrdiff_t i = 0; i < size && coarse; i++)
        g->x[i] = (2 * floorf(g->x[i] * 2) + 1) / 4;
    g->bag = bag_create(ctx);
    random_labels(&rng, g->labels, g->in.n, LABELS);
    t[0] = jem_input(ctx, g->x, g->in.n, g->in.c, g->in.h, g->in.w);
    const int steps = between(&rng, 2, STEPS);
    for (int i = 0; i < steps && t[i]; i++) {
        g->steps[i] = choose(g, &rng, t, i + 1, i == steps - 1);
        list_params(g->bag, all);
        t[i + 1] = apply(ctx, g, &g->steps[i], t, all);
        if (t[i + 1]) g->count = i + 1;
    }
    if (!CHECK(jem_ok(ctx), "graph %d: %s", (int)seed, jem_error(ctx))) {
        jem_clear_error(ctx);
        return 0;
    }
    g->probe = random_floats(&rng, size_of(t[g->count]), -1, 1);
    jem_reset(ctx);
    return 1;
}

static void graph_free(graph *g) {
    free(g->x);
    free(g->probe);
    jem_net_free(g->bag);
}

/* Copies the parameters to a bag of another context. */
static jem_net *bag_copy(jem_ctx *ctx, const jem_net *bag) {
    jem_net *copy = bag_create(ctx);
    for (const jem_param *p = bag->params; p; p = p->next) {
        jem_param *q = jem_net_param(copy, p->name, p->ndim, p->shape, 1);
        if (q) memcpy(q->value, p->value, (size_t)p->size * sizeof *p->value);
    }
    return copy;
}

/* Computes everything: the output, the input's gradient, those of the parameters (in bag), and
   the running statistics that they leave. */
static results graph_run(const graph *g, jem_ctx *ctx, jem_net *bag, const char *how) {
    results r;
    jem_param *all[PARAMS];
    jem_tensor *t[TENSORS];
    memset(&r, 0, sizeof r);
    list_params(bag, all);
    t[0] = jem_input(ctx, g->x, g->in.n, g->in.c, g->in.h, g->in.w);
    for (int i = 0; i < g->count; i++) t[i + 1] = apply(ctx, g, &g->steps[i], t, all);
    jem_tensor *y = t[g->count];
    if (!CHECK(y, "%s: %s", how, jem_error(ctx))) return r;
    jem_tensor *probe = jem_input(ctx, g->probe, y->n, y->c, y->h, y->w);
    jem_tensor *each = jem_sum_image(ctx, jem_mul(ctx, y, probe));
    r.y_size = size_of(y);
    r.dx_size = size_of(t[0]);
    r.y = floats(r.y_size);
    r.dx = floats(r.dx_size);
    jem_keep(y);
    CHECK(jem_grad(each, t[0]) == JEM_OK && jem_read_grad(t[0], r.dx) == JEM_OK &&
          jem_read(y, r.y) == JEM_OK, "%s: %s", how, jem_error(ctx));
    jem_zero_grad(bag);
    CHECK(jem_backward(jem_sum(ctx, each)) == JEM_OK, "%s: %s", how, jem_error(ctx));
    r.hash = fnv(fnv(FNV_START, r.y, r.y_size), r.dx, r.dx_size);
    for (const jem_param *p = bag->params; p; p = p->next) {
        r.hash = fnv(r.hash, p->grad, p->size);
        r.hash = fnv(r.hash, p->value, p->size);
    }
    jem_reset(ctx);
    return r;
}

static void results_free(results *r) {
    free(r->y);
    free(r->dx);
}

/* ---- in a file ------------------------------------------------------------------------------- */

/* What an archive points at must stay until it is written. */
typedef struct saved { jem_archive *a; void **kept; int count; } saved;

static void save(saved *to, int graph_number, const char *name, const float *x, ptrdiff_t n) {
    char full[64];
    const int64_t sizes[1] = { (int64_t)n };
    float *copy = floats(n);
    memcpy(copy, x, (size_t)n * sizeof *x);
    to->kept[to->count++] = copy;
    snprintf(full, sizeof full, "%d.%s", graph_number, name);
    jem_archive_add(to->a, full, JEM_DTYPE_F32, 1, sizes, copy);
}

/* Describes a graph in a line: its shape; the labels; then each step. */
static void describe(const graph *g, char *text, size_t room) {
    size_t n = (size_t)snprintf(text, room, "%d %d %d %d;", g->in.n, g->in.c, g->in.h, g->in.w);
    for (int i = 0; i < g->in.n; i++)
        n += (size_t)snprintf(text + n, room - n, " %d", g->labels[i]);
    for (int i = 0; i < g->count; i++) {
        const step *s = &g->steps[i];
        n += (size_t)snprintf(text + n, room - n, "; %s %d %d %d %d %d", names[s->op], s->in[0],
                              s->in[1], s->number[0], s->number[1], s->number[2]);
        n += (size_t)snprintf(text + n, room - n, " %.9g %.9g", (double)s->factor[0],
                              (double)s->factor[1]);
        for (int k = 0; k < 5; k++)
            n += (size_t)snprintf(text + n, room - n, " %d", s->param[k]);
    }
}

static void save_graph(saved *to, int number, const graph *g, const results *r,
                       const jem_net *done) {
    char text[2048], key[32];
    describe(g, text, sizeof text);
    snprintf(key, sizeof key, "%d", number);
    jem_archive_set_meta(to->a, key, text);
    save(to, number, "x", g->x, r->dx_size);
    save(to, number, "probe", g->probe, r->y_size);
    save(to, number, "y", r->y, r->y_size);
    save(to, number, "dx", r->dx, r->dx_size);
    for (const jem_param *p = g->bag->params; p; p = p->next) save(to, number, p->name, p->value,
                                                                   p->size);
    for (const jem_param *p = done->params; p; p = p->next) {
        char name[32];
        snprintf(name, sizeof name, "d%s", p->name);
        save(to, number, name, p->grad, p->size);
        snprintf(name, sizeof name, "after.%s", p->name);
        save(to, number, name, p->value, p->size);
    }
}

/* ---- all of them ----------------------------------------------------------------------------- */

typedef struct machine { jem_ctx *ctx; const char *how; } machine;

/* Runs graph `seed` in every way, and keeps the first way's results in `to`, if that has an
   archive. Returns the graph's steps. */
static int run_graph(const machine *m, int ways, uint64_t seed, int number, saved *to) {
    graph g;
    if (!graph_make(&g, m[0].ctx, seed)) return 0;
    uint64_t first = 0;
    for (int i = 0; i < ways; i++) {
        jem_net *bag = bag_copy(m[i].ctx, g.bag);
        results r = graph_run(&g, m[i].ctx, bag, m[i].how);
        char text[2048];
        describe(&g, text, sizeof text);
        if (i == 0) first = r.hash;
        CHECK(r.hash == first, "graph %d, %s: other bits than %s: %s", (int)seed, m[i].how,
              m[0].how, text);
        if (i == 0 && to->a) save_graph(to, number, &g, &r, bag);
        results_free(&r);
        jem_net_free(bag);
    }
    graph_free(&g);
    return g.count;
}

int main(int argc, char **argv) {
    const int written = argc > 2;
    const int count = written ? atoi(argv[2]) : 150;
    const int seed = argc > 3 ? atoi(argv[3]) : 1;
    if (!written) test_begin(argc, argv);
    if (!test_wants("graphs")) return test_report();
    jem_ctx_desc plain;
    memset(&plain, 0, sizeof plain);
    plain.threads = 1;
    plain.plain_tape = 1;
    const machine m[3] = { { isa_ctx(JEM_ISA_BEST, 2), "the plan, two threads" },
                           { jem_ctx_create(&plain), "the plain tape" },
                           { isa_ctx(JEM_ISA_SCALAR, 1), "the plan, scalar code" } };
    saved to = { NULL, NULL, 0 };
    long steps = 0;
    if (written) {
        to.a = jem_archive_create(m[0].ctx);
        to.kept = (void **)calloc((size_t)count * (4 + 3 * PARAMS), sizeof *to.kept);
    }
    printf("%d random graphs: the plan, the plain tape, scalar code\n", count);
    for (int i = 0; i < count; i++) steps += run_graph(m, 3, (uint64_t)(seed + i), i, &to);
    CHECK(steps > 3 * (long)count, "only %ld steps", steps);
    if (to.a) CHECK(jem_archive_write(to.a, argv[1]) == JEM_OK, "%s", jem_error(m[0].ctx));
    jem_archive_free(to.a);
    for (int i = 0; i < to.count; i++) free(to.kept[i]);
    free(to.kept);
    for (int i = 0; i < 3; i++) jem_ctx_free(m[i].ctx);
    return test_report();
}
