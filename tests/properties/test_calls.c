/* Every public function, with each of its arguments wrong in every possible way (a row per function
   below): no call crashes, hangs or leaks, the number of rejected calls is constant, an error
   leaves the context usable, and valid objects stay valid. Arguments come from pools: a valid one,
   or, one argument at a time, each of the invalid ones. Pointers that C cannot check are omitted:
   to too little memory, or to a freed object. The test reads jem.h to ensure that no function is
   missing. */
#define JEM_IMPLEMENTATION
#include "jem.h"
#include <ctype.h>
#include <limits.h>
#include <stddef.h>
#include "tests/support/test.h"
#include "tests/support/common.h"

enum { MANY = 1 << 16, N = 3, SIDE = 4, CHANNELS = 3, CLASSES = 5 };

/* ---- the objects, created for every call ----------------------------------------------------- */

/* A machine of 64 MB: absurd sizes must not get far. */
typedef struct machine { long alive; size_t held, most; } machine;
static void *machine_allocate(void *user, size_t bytes) {
    machine *m = (machine *)user;
    if (bytes > m->most || m->held > m->most - bytes) return NULL;
    size_t *p = (size_t *)malloc(bytes + 64);
    if (!p) return NULL;
    m->alive++;
    m->held += bytes;
    *p = bytes;
    return (char *)p + 64;
}
static void machine_release(void *user, void *memory) {
    machine *m = (machine *)user;
    size_t *p = (size_t *)(void *)((char *)memory - 64);
    m->alive--;
    m->held -= *p;
    free(p);
}
static jem_ctx *machine_ctx(machine *m) {
    jem_ctx_desc d;
    memset(&d, 0, sizeof d);
    memset(m, 0, sizeof *m);
    m->most = (size_t)64 << 20;
    d.allocate = machine_allocate;
    d.release = machine_release;
    d.user = m;
    d.threads = 1;
    return jem_ctx_create(&d);
}

typedef struct world {                             /* as seen by one context */
    machine m;
    jem_ctx *ctx;
    jem_sampler *sampler;
    jem_file *file;
    jem_net *bag, *net, *image_net, *vector_net;   /* bag: owns the parameters below */
    jem_param *conv, *linear, *channel, *one;
    jem_trainer *tr;
    jem_optim *optim;
    jem_buffer *buffer;
    jem_archive *archive, *empty;                  /* archive: a net's, and its trainer's */
    jem_layer layer;
    jem_tensor *x, *stale, *one_each, *nan, *number, *wide, *computed, *flat, *logp, *loss;
} world;

static float some[MANY], out[MANY], nans[MANY];
static int labels[MANY], bad_labels[MANY], slots[MANY];
static unsigned char bytes[MANY * 4];
static char long_text[5000];

static const small_shape points = { CHANNELS, SIDE, SIDE, CLASSES, 4 };
static const small_shape grey_images = { 1, 8, 8, CLASSES, 4 };
static const small_shape vectors = { 2, 1, 1, CLASSES, 4 };

static void world_create(world *w) {
    jem_rng rng = jem_rng_seed(1);
    memset(w, 0, sizeof *w);
    jem_ctx *ctx = w->ctx = machine_ctx(&w->m);
    w->bag = bag_create(ctx);
    w->conv = random_param(w->bag, &rng, 1, 4, 4, CHANNELS, 3, -1, 1);
    w->linear = random_param(w->bag, &rng, 1, 2, CLASSES, CHANNELS * SIDE * SIDE, 1, -1, 1);
    w->channel = random_param(w->bag, &rng, 1, 1, CHANNELS, 1, 1, .5f, 1);
    w->one = random_param(w->bag, &rng, 0, 1, 1, 1, 1, 0, 1);
    w->layer = jem_linear_layer(w->bag, "layer", CHANNELS * SIDE * SIDE, 2);
    w->net = small_mlp(ctx, points, 1);
    w->image_net = small_mlp(ctx, grey_images, 1);
    w->vector_net = small_mlp(ctx, vectors, 1);
    jem_train_desc how = jem_train_desc_default();
    how.buffer_size = 8;
    how.sgld.steps = 1;
    how.negatives = 2;
    w->tr = jem_trainer_create(w->net, &how);
    w->optim = jem_optim_create(w->net, NULL);
    w->buffer = jem_buffer_create(ctx, 10, CHANNELS, SIDE, SIDE, CLASSES, &rng);
    w->archive = jem_archive_create(ctx);
    jem_net_to_archive(w->net, w->archive);
    jem_trainer_to_archive(w->tr, w->archive);
    w->empty = jem_archive_create(ctx);
    const jem_mark mark = jem_begin(ctx);
    w->stale = jem_zeros(ctx, N, CHANNELS, SIDE, SIDE);
    jem_end(ctx, mark);
    w->x = jem_input(ctx, some, N, CHANNELS, SIDE, SIDE);
    w->nan = jem_input(ctx, nans, N, CHANNELS, SIDE, SIDE);
    w->one_each = jem_input(ctx, some, N, CLASSES, 1, 1);
    w->number = jem_input(ctx, some, 1, 1, 1, 1);
    w->wide = jem_input(ctx, some, 17, 1, 9, 2);
    w->computed = jem_relu(ctx, w->x);
    w->flat = jem_flatten(ctx, w->x);
    jem_generate_desc few = jem_generate_desc_default();
    few.denoise.steps = 1;
    few.walk.steps = 1;
    w->sampler = jem_net_sampler(w->net, labels, 2, 1, &few);
    w->file = jem_file_create(ctx, "build/calls.file");
    w->logp = jem_logp(ctx, w->x, w->net);
    w->loss = jem_mean(ctx, w->logp);
    CHECK(jem_ok(ctx), "%s", jem_error(ctx));
}
static void world_free(world *w, const char *name) {
    jem_sampler_free(w->sampler);
    jem_file_free(w->file);
    jem_archive_free(w->archive);
    jem_archive_free(w->empty);
    jem_buffer_free(w->buffer);
    jem_optim_free(w->optim);
    jem_trainer_free(w->tr);
    jem_net_free(w->net);
    jem_net_free(w->image_net);
    jem_net_free(w->vector_net);
    jem_net_free(w->bag);
    jem_ctx_free(w->ctx);
    CHECK(w->m.alive == 0, "%s: %ld blocks leak", name, w->m.alive);
}

/* ---- pools ----------------------------------------------------------------------------------- */

static world here, there;                          /* there: everything of another context */
static struct {
    int at, bad, variant, variants, refused;
    int none;                                      /* what has the context is NULL */
} turn;

/* 0: a good one; else which of the wrong ones. */
static int wrong(int variants) {
    if (turn.at++ != turn.bad) return 0;
    turn.variants = variants;
    return turn.variant < variants ? turn.variant + 1 : 0;
}

#define POOL2(type, name, good, other) \
    static type name(void) { \
        type const of[3] = { good, NULL, other }; \
        const int k = wrong(2); \
        turn.none |= k == 1; \
        return of[k]; \
    }
#define POOL1(type, name, good) \
    static type name(void) { \
        type const of[2] = { good, NULL }; \
        return of[wrong(1)]; \
    }
POOL2(jem_ctx *, CTX, here.ctx, there.ctx)
POOL2(jem_net *, NET, here.net, there.net)
POOL2(jem_net *, IMAGES, here.image_net, here.net)
POOL2(jem_net *, VECTORS, here.vector_net, here.net)
POOL2(jem_net *, OWN, here.bag, here.net)
POOL2(jem_trainer *, TRAINER, here.tr, there.tr)
POOL2(jem_optim *, OPTIM, here.optim, there.optim)
POOL2(jem_buffer *, BUFFER, here.buffer, there.buffer)
POOL2(jem_archive *, ARCHIVE, here.archive, there.archive)
POOL2(jem_sampler *, SAMPLER, here.sampler, there.sampler)
POOL2(jem_file *, NEW_FILE, here.file, there.file)
POOL2(jem_archive *, EMPTY, here.empty, here.archive)
POOL2(const jem_layer *, LAYER, &here.layer, &there.layer)
POOL1(float *, OUT, out)
POOL1(int *, SLOTS, slots)
POOL1(unsigned char *, BYTES, bytes)

static jem_tensor *wrong_tensor(int k, jem_tensor *good) {
    jem_tensor *const of[9] = { good, NULL, here.stale, there.x, here.nan, here.one_each,
                                here.number, here.wide, here.computed };
    turn.none |= k == 1;
    return of[k];
}
static jem_tensor *X(void) { return wrong_tensor(wrong(8), here.x); }
static jem_tensor *EACH(void) { return wrong_tensor(wrong(8), here.one_each); }
static jem_tensor *FLAT(void) { return wrong_tensor(wrong(8), here.flat); }
static jem_tensor *PER_IMAGE(void) { return wrong_tensor(wrong(8), here.logp); }
static jem_tensor *LOSS(void) { return wrong_tensor(wrong(8), here.loss); }
static jem_tensor *NUMBER(void) { return wrong_tensor(wrong(8), here.number); }

static jem_param *wrong_param(int k, jem_param *good) {
    jem_param *const of[7] = { good, NULL, there.conv, here.conv, here.linear, here.channel,
                               here.one };
    return of[k];
}
static jem_param *CONV(void) { return wrong_param(wrong(6), here.conv); }
static jem_param *LINEAR(void) { return wrong_param(wrong(6), here.linear); }
static jem_param *CHANNEL(void) { return wrong_param(wrong(6), here.channel); }
static jem_param *ONE(void) { return wrong_param(wrong(6), here.one); }

static float F(float good) {
    const float of[7] = { good, NAN, INFINITY, -INFINITY, -1, 0, 1e38f };
    return of[wrong(6)];
}
static int odd_int(int k, int good) {
    const int of[6] = { good, 0, -1, INT_MIN, INT_MAX, 1 << 20 };
    return of[k];
}
static int INT(int good) { return odd_int(wrong(5), good); }
static int COUNT(int good) { return odd_int(wrong(3), good); }
/* Of an enum, whose type may be unsigned. */
static int KIND(int good) {
    const int of[3] = { good, 99, -1 };
    return of[wrong(2)];
}
static int FLAG(void) {
    static const int of[3] = { 1, 2, -1 };
    return of[wrong(2)];
}

static const float *IN(void) {
    static const float *const of[3] = { some, NULL, nans };
    return of[wrong(2)];
}
static const int *LABELS(void) {
    static const int *const of[3] = { labels, NULL, bad_labels };
    return of[wrong(2)];
}
static jem_rng *RNG(void) {
    static jem_rng rng;
    rng = jem_rng_seed(3);
    if (wrong(1)) return NULL;
    return &rng;
}
static const char *TEXT(const char *good) {
    const char *const of[5] = { good, NULL, "", long_text, "\xff\xfe\"\n" };
    return of[wrong(4)];
}

static jem_tensor *makes_nothing(jem_ctx *ctx, jem_tensor *x, void *user) {
    (void)ctx;
    (void)x;
    (void)user;
    return NULL;
}
static jem_tensor *makes_x(jem_ctx *ctx, jem_tensor *x, void *user) {
    (void)ctx;
    (void)user;
    return x;
}
static jem_logp_fn LOGP(void) {
    static const jem_logp_fn of[4] = { jem_logp, NULL, makes_nothing, makes_x };
    return of[wrong(3)];
}
static jem_query query;
/* A network, or a query without labels, for log p(x). */
static void *USER(void) {
    const int k = wrong(3);
    query.net = NULL;
    query.labels = NULL;
    if (k == 1) return NULL;
    if (k == 2) return there.net;
    if (k == 3) return &query;
    return here.net;
}
/* A query with labels; `weighted`, with a weight that matters. */
static void *query_of(int weighted) {
    const int k = wrong(4 + weighted);
    query.net = here.net;
    query.labels = labels;
    query.weight = 2;
    if (k == 2) query.net = NULL;
    if (k == 3) query.labels = NULL;
    if (k == 4) query.labels = bad_labels;
    if (k == 5) query.weight = NAN;
    if (k == 1) return NULL;
    return &query;
}
static void *LABELLED(void) { return query_of(0); }
static void *GUIDED(void) { return query_of(1); }

/* A range of words of 4 bytes in a desc: of all but its pointers. */
typedef struct span { size_t from, to; } span;

/* A desc with one word of its spans as no sane program has it; -1 and NaN come in every place,
   sizes beyond all memory only where they do not mean work (`huge`). */
static void *SPANS(void *desc, size_t size, const span *spans, int n, int huge) {
    static char copy[1024];
    static const uint32_t odd[6] = { 0, 0xffffffffu, 0x80000000u, 0xbf800000u, 0x7fffffffu,
                                     0x7fc00000u };
    const int each = huge ? 6 : 4;
    int words = 0;
    for (int i = 0; i < n; i++) words += (int)(spans[i].to - spans[i].from);
    const int k = wrong(1 + each * words);
    memcpy(copy, desc, size);
    if (k == 1) return NULL;
    if (k > 1) {
        size_t word = (size_t)((k - 2) / each);
        while (word >= spans->to - spans->from) {
            word -= spans->to - spans->from;
            spans++;
        }
        memcpy(copy + 4 * (spans->from + word), &odd[(k - 2) % each], 4);
    }
    return copy;
}
static void *WORDS(void *desc, size_t size, size_t words, int huge) {
    const span all = { 0, words };
    return SPANS(desc, size, &all, 1, huge);
}
#define DESC(type, value, words, huge) \
    static type *type##_(void) { type d = value; return (type *)WORDS(&d, sizeof d, words, huge); }
#define BEFORE(type, field) (offsetof(type, field) / 4)
static jem_wrn_desc small_wrn(void) {
    jem_wrn_desc d = jem_wrn_desc_default();
    d.depth = 10;
    d.widen = 1;
    return d;
}
DESC(jem_wrn_desc, small_wrn(), sizeof(jem_wrn_desc) / 4, 1)
DESC(jem_convnet_desc, jem_convnet_desc_default(), sizeof(jem_convnet_desc) / 4, 1)
DESC(jem_optim_desc, jem_optim_desc_default(), BEFORE(jem_optim_desc, only), 1)
DESC(jem_sgld_desc, jem_sgld_desc_default(), BEFORE(jem_sgld_desc, watch), 0)
DESC(jem_denoise_desc, jem_denoise_desc_default(), BEFORE(jem_denoise_desc, watch), 0)
DESC(jem_mcmc_desc, jem_mcmc_desc_default(), BEFORE(jem_mcmc_desc, swapped), 0)
DESC(jem_ais_desc, jem_ais_desc_default(), BEFORE(jem_ais_desc, walk), 0)
DESC(jem_attack_desc, jem_attack_desc_default(), BEFORE(jem_attack_desc, classify), 0)
DESC(jem_schedule, jem_train_desc_default().schedule, sizeof(jem_schedule) / 4, 1)
DESC(jem_train_desc, jem_train_desc_default(), BEFORE(jem_train_desc, optim.only), 1)

static jem_generate_desc *jem_generate_desc_(void) {
    static const span spans[] = {
        { 0, BEFORE(jem_generate_desc, denoise.watch) },
        { BEFORE(jem_generate_desc, walk), BEFORE(jem_generate_desc, walk.watch) },
        { BEFORE(jem_generate_desc, last_sigma), BEFORE(jem_generate_desc, last_sigma) + 1 }
    };
    jem_generate_desc d = jem_generate_desc_default();
    d.denoise.steps = d.walk.steps = 2;
    return (jem_generate_desc *)SPANS(&d, sizeof d, spans, 3, 0);
}
static jem_impute_desc *jem_impute_desc_(void) {
    static const span spans[] = {
        { 0, BEFORE(jem_impute_desc, denoise.watch) },
        { BEFORE(jem_impute_desc, walk), BEFORE(jem_impute_desc, walk.watch) },
        { BEFORE(jem_impute_desc, lo), BEFORE(jem_impute_desc, last_sigma) + 1 }
    };
    jem_impute_desc d = jem_impute_desc_default();
    d.walk.steps = 2;
    return (jem_impute_desc *)SPANS(&d, sizeof d, spans, 3, 0);
}
/* Changes what comes behind the names of parameters; jem_train_desc_ changes what comes before. */
static jem_train_desc *LATE(void) {
    static const span spans[] = {
        { BEFORE(jem_train_desc, weights), BEFORE(jem_train_desc, term) },
        { BEFORE(jem_train_desc, sam), BEFORE(jem_train_desc, sgld.watch) },
        { BEFORE(jem_train_desc, negatives), BEFORE(jem_train_desc, restart_denoise.watch) },
        { BEFORE(jem_train_desc, class_conditional), BEFORE(jem_train_desc, sum) }
    };
    jem_train_desc d = jem_train_desc_default();
    d.buffer_size = 8;
    return (jem_train_desc *)SPANS(&d, sizeof d, spans, 4, 0);
}

static const jem_pixels_desc *PIXELS(void) {
    jem_pixels_desc d;
    memset(&d, 0, sizeof d);
    return (const jem_pixels_desc *)WORDS(&d, sizeof d, sizeof d / 4, 1);
}
static const jem_score_desc *SCORE(void) {
    static jem_score_desc d;
    const int k = wrong(5);
    d.sigma = some;
    d.weight = NULL;
    d.difference = 0;
    if (k == 2) d.sigma = NULL;
    if (k == 3) d.sigma = nans;
    if (k == 4) d.weight = nans;
    if (k == 5) d.difference = NAN;
    return k == 1 ? NULL : &d;
}
static const jem_loss_weights *WEIGHTS(void) {
    jem_loss_weights d = { 1, 1, 0, 0 };
    return (const jem_loss_weights *)WORDS(&d, sizeof d, 4, 0);
}
static jem_conv_desc CONV_DESC(void) {
    jem_conv_desc d;
    d.stride = INT(1);
    d.pad = INT(1);
    return d;
}
static const jem_ctx_desc *CTX_DESC(void) {
    static machine m;
    jem_ctx_desc d;
    const int k = wrong(6);
    memset(&d, 0, sizeof d);
    memset(&m, 0, sizeof m);
    m.most = (size_t)1 << 20;
    d.allocate = machine_allocate;
    d.release = machine_release;
    d.user = &m;
    if (k == 2) d.release = NULL;
    if (k == 3) d.threads = -1;
    if (k == 4) d.precision = (jem_precision)99;
    if (k == 5) d.isa = (jem_isa)99;
    if (k == 6) m.most = 0;
    return k == 1 ? NULL : (const jem_ctx_desc *)WORDS(&d, sizeof d, 0, 0);
}

static void own_forward(const jem_call *call) {
    for (int i = 0; i < call->out.c * call->out.h * call->out.w * 16; i++) call->y[i] = 1;
}
static const jem_op *OP(void) {
    static jem_op op;
    const int k = wrong(3);
    memset(&op, 0, sizeof op);
    if (k != 2) op.name = "own";
    if (k != 3) op.forward = own_forward;
    return k == 1 ? NULL : &op;
}
static jem_tensor *const *INPUTS(void) {
    static jem_tensor *inputs[JEM_MAX_INPUTS];
    const int k = wrong(3);
    inputs[0] = here.x;
    if (k == 2) inputs[0] = NULL;
    if (k == 3) inputs[0] = here.stale;
    turn.none |= k == 2;
    return k == 1 ? NULL : (jem_tensor *const *)inputs;
}
static jem_shape SHAPE(void) {
    const jem_shape s = { N, INT(2), INT(2), INT(2) };
    return s;
}
static jem_tensor *own_net_forward(jem_net *net, jem_tensor *x, int training, void *user) {
    (void)training;
    (void)user;
    return jem_sum_image(net->ctx, x);
}
static jem_net *construct_none(jem_ctx *ctx, const jem_archive *a, void *user) {
    (void)ctx;
    (void)a;
    (void)user;
    return NULL;
}
static const int *SIZES(void) {
    static int sizes[4];
    const int k = wrong(4);
    static const int of[5][2] = { { 2, 3 }, { 2, 3 }, { 0, 3 }, { -1, 3 }, { INT_MAX, INT_MAX } };
    sizes[0] = of[k][0];
    sizes[1] = of[k][1];
    return k == 1 ? NULL : sizes;
}
static const int64_t *SIZES64(void) {
    static int64_t sizes[8];
    const int k = wrong(3);
    static const int64_t of[4][2] = { { 2, 3 }, { 2, 3 }, { -1, 3 }, { INT64_MAX, INT64_MAX } };
    sizes[0] = of[k][0];
    sizes[1] = of[k][1];
    return k == 1 ? NULL : sizes;
}
static const char *PATH(void) {
    static const char *const of[5] = { "build/calls.tmp", NULL, "", "no/such/folder/x", "." };
    return of[wrong(4)];
}
static jem_mark MARK(void) {
    static const jem_mark none;
    if (wrong(1)) return none;
    return jem_begin(here.ctx);
}
static jem_answer answers[N];
static jem_loss_terms terms;
static jem_ais_result ais;

/* What a call returned, if that can say no: a status, NULL, a number below 0. */
static jem_status got;
static const void *ptr;
static float num;
static void *made(void *p) {                       /* and freed at once */
    if (!p) got = JEM_NO_MEMORY;
    return p;
}
/* These cannot: they return nothing, or a value for whatever they are given. */
static const char always[] =
    " jem_error jem_ok jem_clear_error jem_isa_available jem_isa_name jem_ctx_isa"
    " jem_status_name"
    " jem_ctx_precision jem_ctx_threads jem_rng_split jem_rng_u32 jem_rng_uniform jem_rng_normal"
    " jem_rng_below jem_fill_uniform jem_fill_normal jem_memory jem_release jem_begin jem_end"
    " jem_trim jem_reset jem_param_changed jem_keep jem_net_size jem_zero_grad jem_noise_levels"
    " jem_sgld_desc_langevin jem_denoise_desc_clean jem_learning_rate jem_train_desc_score"
    " jem_trainer_updates jem_trainer_reseed jem_trainer_set_lr jem_net_generate_desc jem_net_query"
    " jem_net_impute_desc"
    " jem_archive_count jem_mask_controls jem_judge jem_verdict_name jem_reason_name"
    " jem_compute_exp jem_compute_tanh jem_compute_sigmoid jem_train_desc_vectors"
    " jem_mlp_desc_vectors jem_file_temporary jem_calibrated jem_net_draft_desc ";
/* These have none to tell of it: they look something up, or make the context. */
static const char silent[] =
    " jem_ctx_create jem_error_status jem_fail jem_net_find jem_net_meta jem_trainer_buffer"
    " jem_archive_at jem_archive_find jem_archive_meta ";
/* Here the other argument has a context. */
static const char pair[] =
    " jem_net_to_archive jem_net_from_archive jem_net_load jem_trainer_to_archive"
    " jem_trainer_from_archive jem_optim_to_archive jem_optim_from_archive ";
enum { REFUSED = 1986 };                           /* of all wrong calls: not one less */

/* A string that may be written to, or NULL. */
static char letters[8];
static char *writable(const char *text) {
    if (!text) return NULL;
    snprintf(letters, sizeof letters, "%.7s", text);
    return letters;
}

static void to_memory(const jem_archive *a) {
    size_t size;
    void *bytes_of = made(jem_archive_to_memory(a, &size));
    jem_release(a == there.archive ? there.ctx : here.ctx, bytes_of);
    (void)jem_archive_to_memory(NULL, NULL);
}

/* ---- the table ------------------------------------------------------------------------------- */

#define CALLS(ROW) \
    ROW(jem_ctx_create, jem_ctx_free(made(jem_ctx_create(CTX_DESC())))) \
    ROW(jem_ctx_free, jem_ctx_free(NULL)) \
    ROW(jem_error, ptr = jem_error(CTX())) \
    ROW(jem_error_status, got = jem_error_status(CTX())) \
    ROW(jem_ok, (void)jem_ok(CTX())) \
    ROW(jem_clear_error, jem_clear_error(CTX())) \
    ROW(jem_fail, got = jem_fail(CTX(), (jem_status)KIND(JEM_BAD_FILE), TEXT("why"))) \
    ROW(jem_isa_available, (void)jem_isa_available((jem_isa)KIND(1))) \
    ROW(jem_status_name, ptr = jem_status_name((jem_status)KIND(1))) \
    ROW(jem_isa_name, ptr = jem_isa_name((jem_isa)KIND(1))) \
    ROW(jem_ctx_isa, (void)jem_ctx_isa(CTX())) \
    ROW(jem_ctx_precision, (void)jem_ctx_precision(CTX())) \
    ROW(jem_ctx_threads, (void)jem_ctx_threads(CTX())) \
    ROW(jem_rng_seed, (void)jem_rng_seed(0)) \
    ROW(jem_rng_split, (void)jem_rng_split(RNG(), 1)) \
    ROW(jem_rng_u32, (void)jem_rng_u32(RNG())) \
    ROW(jem_rng_uniform, (void)jem_rng_uniform(RNG())) \
    ROW(jem_rng_normal, (void)jem_rng_normal(RNG())) \
    ROW(jem_rng_below, (void)jem_rng_below(RNG(), INT(3))) \
    ROW(jem_fill_uniform, jem_fill_uniform(CTX(), RNG(), OUT(), COUNT(9), F(0), F(1))) \
    ROW(jem_fill_normal, jem_fill_normal(CTX(), RNG(), OUT(), COUNT(9), F(0), F(1))) \
    ROW(jem_memory, (void)jem_memory(CTX())) \
    ROW(jem_release, jem_release(CTX(), NULL)) \
    ROW(jem_begin, (void)jem_begin(CTX())) \
    ROW(jem_end, jem_end(CTX(), MARK())) \
    ROW(jem_reset, jem_reset(CTX())) \
    ROW(jem_trim, jem_trim(CTX())) \
    ROW(jem_param_changed, jem_param_changed(CONV())) \
    ROW(jem_input, ptr = jem_input(CTX(), IN(), COUNT(2), COUNT(3), COUNT(4), COUNT(5))) \
    ROW(jem_zeros, ptr = jem_zeros(CTX(), INT(2), INT(3), INT(4), INT(5))) \
    ROW(jem_write, got = jem_write(X(), IN())) \
    ROW(jem_custom, got = jem_read(jem_custom(CTX(), OP(), INPUTS(), INT(1), SHAPE(), IN(), 4, 4), \
                                   out)) \
    ROW(jem_read, got = jem_read(X(), OUT())) \
    ROW(jem_item, (void)jem_item(NUMBER())) \
    ROW(jem_keep, jem_keep(X())) \
    ROW(jem_backward, got = jem_backward(LOSS())) \
    ROW(jem_grad, got = jem_grad(PER_IMAGE(), X())) \
    ROW(jem_read_grad, ((void)jem_grad(here.logp, here.x), got = jem_read_grad(X(), OUT()))) \
    ROW(jem_check_gradient, num = jem_check_gradient(CTX(), LOGP(), USER(), X(), NULL, F(.02f))) \
    ROW(jem_conv2d, got = jem_read(jem_conv2d(CTX(), X(), CONV(), NULL, CONV_DESC()), out)) \
    ROW(jem_linear, got = jem_read(jem_linear(CTX(), FLAT(), LINEAR(), NULL), out)) \
    ROW(jem_add, got = jem_read(jem_add(CTX(), X(), X()), out)) \
    ROW(jem_sub, got = jem_read(jem_sub(CTX(), X(), X()), out)) \
    ROW(jem_mul, got = jem_read(jem_mul(CTX(), X(), X()), out)) \
    ROW(jem_scale, got = jem_read(jem_scale(CTX(), X(), F(2)), out)) \
    ROW(jem_add_constant, got = jem_read(jem_add_constant(CTX(), X(), F(2)), out)) \
    ROW(jem_square, got = jem_read(jem_square(CTX(), X()), out)) \
    ROW(jem_exp, got = jem_read(jem_exp(CTX(), X()), out)) \
    ROW(jem_log, got = jem_read(jem_log(CTX(), X()), out)) \
    ROW(jem_tanh, got = jem_read(jem_tanh(CTX(), X()), out)) \
    ROW(jem_sigmoid, got = jem_read(jem_sigmoid(CTX(), X()), out)) \
    ROW(jem_softplus, got = jem_read(jem_softplus(CTX(), X()), out)) \
    ROW(jem_compute_exp, jem_compute_exp(CTX(), IN(), OUT(), COUNT(9))) \
    ROW(jem_compute_tanh, jem_compute_tanh(CTX(), IN(), OUT(), COUNT(9))) \
    ROW(jem_compute_sigmoid, jem_compute_sigmoid(CTX(), IN(), OUT(), COUNT(9))) \
    ROW(jem_clamp, got = jem_read(jem_clamp(CTX(), X(), F(0), F(1)), out)) \
    ROW(jem_relu, got = jem_read(jem_relu(CTX(), X()), out)) \
    ROW(jem_leaky_relu, got = jem_read(jem_leaky_relu(CTX(), X(), F(.2f)), out)) \
    ROW(jem_silu, got = jem_read(jem_silu(CTX(), X()), out)) \
    ROW(jem_dropout, got = jem_read(jem_dropout(CTX(), X(), F(.5f), RNG()), out)) \
    ROW(jem_avg_pool, got = jem_read(jem_avg_pool(CTX(), X(), INT(2), INT(2)), out)) \
    ROW(jem_global_pool, got = jem_read(jem_global_pool(CTX(), X()), out)) \
    ROW(jem_max_pool, got = jem_read(jem_max_pool(CTX(), X(), INT(2), INT(2)), out)) \
    ROW(jem_upsample, got = jem_read(jem_upsample(CTX(), X(), INT(2)), out)) \
    ROW(jem_flatten, got = jem_read(jem_flatten(CTX(), X()), out)) \
    ROW(jem_slice, got = jem_read(jem_slice(CTX(), X(), INT(1), INT(2)), out)) \
    ROW(jem_concat, got = jem_read(jem_concat(CTX(), X(), X()), out)) \
    ROW(jem_detach, got = jem_read(jem_detach(CTX(), X()), out)) \
    ROW(jem_logsumexp, got = jem_read(jem_logsumexp(CTX(), EACH()), out)) \
    ROW(jem_log_softmax, got = jem_read(jem_log_softmax(CTX(), EACH()), out)) \
    ROW(jem_gather, got = jem_read(jem_gather(CTX(), EACH(), LABELS()), out)) \
    ROW(jem_sum_image, got = jem_read(jem_sum_image(CTX(), X()), out)) \
    ROW(jem_mean, got = jem_read(jem_mean(CTX(), X()), out)) \
    ROW(jem_sum, got = jem_read(jem_sum(CTX(), X()), out)) \
    ROW(jem_instance_norm, got = jem_read(jem_instance_norm(CTX(), X(), CHANNEL(), CHANNEL()), \
                                          out)) \
    ROW(jem_layer_norm, got = jem_read(jem_layer_norm(CTX(), X(), CHANNEL(), CHANNEL()), out)) \
    ROW(jem_batch_norm, got = jem_read(jem_batch_norm(CTX(), X(), CHANNEL(), CHANNEL(), CHANNEL(), \
                                                      CHANNEL(), F(.1f), FLAG()), out)) \
    ROW(jem_act_norm, got = jem_read(jem_act_norm(CTX(), X(), CHANNEL(), CHANNEL(), ONE(), \
                                                  FLAG()), out)) \
    ROW(jem_wrn_desc_default, (void)jem_wrn_desc_default()) \
    ROW(jem_wrn_create, jem_net_free(made(jem_wrn_create(CTX(), jem_wrn_desc_(), 1)))) \
    ROW(jem_convnet_desc_default, (void)jem_convnet_desc_default()) \
    ROW(jem_convnet_create, jem_net_free(made(jem_convnet_create(CTX(), jem_convnet_desc_(), 1)))) \
    ROW(jem_mlp_desc_default, (void)jem_mlp_desc_default()) \
    ROW(jem_mlp_desc_vectors, (void)jem_mlp_desc_vectors(INT(4), INT(2))) \
    ROW(jem_mlp_create, jem_net_free(made(jem_mlp_create(CTX(), jem_convnet_desc_(), 1)))) \
    ROW(jem_net_free, jem_net_free(NULL)) \
    ROW(jem_net_create, jem_net_free(made(jem_net_create(CTX(), own_net_forward, IN(), 4, INT(1), \
                                                    INT(2), INT(3), INT(4), 1)))) \
    ROW(jem_net_param, ptr = jem_net_param(NET(), TEXT("new"), INT(2), SIZES(), FLAG())) \
    ROW(jem_net_find, ptr = jem_net_find(NET(), TEXT("new"))) \
    ROW(jem_mask_controls, jem_mask_controls(writable(TEXT("a\tb")), INT(1))) \
    ROW(jem_net_size, (void)jem_net_size(NET())) \
    ROW(jem_zero_grad, jem_zero_grad(NET())) \
    ROW(jem_conv_layer, (void)jem_conv_layer(NET(), TEXT("n"), INT(2), INT(3), INT(3), INT(1), \
                                             INT(1))) \
    ROW(jem_linear_layer, (void)jem_linear_layer(NET(), TEXT("n"), INT(2), INT(3))) \
    ROW(jem_norm_layer, (void)jem_norm_layer(NET(), TEXT("n"), (jem_norm)KIND(1), INT(3))) \
    ROW(jem_apply, got = jem_read(jem_apply(LAYER(), FLAT(), FLAG()), out)) \
    ROW(jem_activate, got = jem_read(jem_activate(CTX(), X(), (jem_activation)KIND(1), F(.1f)), \
                                     out)) \
    ROW(jem_forward, got = jem_read(jem_forward(NET(), X(), FLAG()), out)) \
    ROW(jem_net_set_meta, got = jem_net_set_meta(NET(), TEXT("key"), TEXT("value"))) \
    ROW(jem_net_meta, ptr = jem_net_meta(NET(), TEXT("key"))) \
    ROW(jem_net_fit_units, got = jem_net_fit_units(NET(), IN(), COUNT(3))) \
    ROW(jem_standardize, got = jem_standardize(NET(), IN(), COUNT(3), OUT())) \
    ROW(jem_unstandardize, got = jem_unstandardize(NET(), IN(), COUNT(3), OUT())) \
    ROW(jem_logp, got = jem_read(jem_logp(CTX(), X(), USER()), out)) \
    ROW(jem_logp_class, got = jem_read(jem_logp_class(CTX(), X(), LABELLED()), out)) \
    ROW(jem_logp_label, got = jem_read(jem_logp_label(CTX(), X(), LABELLED()), out)) \
    ROW(jem_log_odds, got = jem_read(jem_log_odds(CTX(), X(), LABELLED()), out)) \
    ROW(jem_logp_guided, got = jem_read(jem_logp_guided(CTX(), X(), GUIDED()), out)) \
    ROW(jem_cross_entropy, (void)jem_item(jem_cross_entropy(CTX(), EACH(), LABELS()))) \
    ROW(jem_contrastive, (void)jem_item(jem_contrastive(CTX(), EACH(), EACH()))) \
    ROW(jem_noise_levels, jem_noise_levels(RNG(), COUNT(3), F(.1f), F(2), OUT())) \
    ROW(jem_add_noise, got = jem_add_noise(X(), IN(), RNG())) \
    ROW(jem_score_matching, (void)jem_item(jem_score_matching(CTX(), LOGP(), USER(), X(), SCORE(), \
                                                              RNG(), OUT()))) \
    ROW(jem_slope_along, (void)jem_item(jem_slope_along(CTX(), LOGP(), USER(), X(), X(), F(.1f)))) \
    ROW(jem_loss, got = jem_backward(jem_loss(NET(), WEIGHTS(), X(), LABELS(), X(), X(), LABELS(), \
                                              &terms))) \
    ROW(jem_sgld_desc_default, (void)jem_sgld_desc_default()) \
    ROW(jem_sgld_desc_langevin, (void)jem_sgld_desc_langevin(F(.1f), INT(3))) \
    ROW(jem_sgld, got = jem_sgld(CTX(), LOGP(), USER(), X(), jem_sgld_desc_(), RNG())) \
    ROW(jem_kl_walk, (void)jem_item(jem_kl_walk(CTX(), LOGP(), USER(), X(), jem_sgld_desc_(), \
                                                F(1), RNG()))) \
    ROW(jem_denoise_desc_default, (void)jem_denoise_desc_default()) \
    ROW(jem_denoise_desc_clean, (void)jem_denoise_desc_clean(F(.2f))) \
    ROW(jem_denoise, got = jem_denoise(CTX(), LOGP(), USER(), X(), jem_denoise_desc_(), RNG())) \
    ROW(jem_generate_desc_default, (void)jem_generate_desc_default()) \
    ROW(jem_generate, got = jem_generate(CTX(), LOGP(), USER(), X(), jem_generate_desc_(), RNG())) \
    ROW(jem_buffer_create, jem_buffer_free(made(jem_buffer_create(CTX(), INT(10), INT(1), INT(4), \
                                                             INT(4), INT(2), RNG())))) \
    ROW(jem_buffer_free, jem_buffer_free(NULL)) \
    ROW(jem_buffer_restart, got = jem_buffer_restart(BUFFER(), RNG(), F(-1), F(1))) \
    ROW(jem_buffer_draw, got = jem_buffer_draw(BUFFER(), RNG(), COUNT(3), LABELS(), F(.1f), OUT(), \
                                               SLOTS())) \
    ROW(jem_buffer_put, got = jem_buffer_put(BUFFER(), COUNT(3), LABELS(), IN())) \
    ROW(jem_mcmc_desc_default, (void)jem_mcmc_desc_default()) \
    ROW(jem_mcmc, got = jem_mcmc(CTX(), LOGP(), USER(), X(), jem_mcmc_desc_(), RNG(), OUT())) \
    ROW(jem_ais_desc_default, (void)jem_ais_desc_default()) \
    ROW(jem_ais, got = jem_ais(CTX(), LOGP(), USER(), X(), jem_ais_desc_(), RNG(), &ais)) \
    ROW(jem_optim_desc_default, (void)jem_optim_desc_default()) \
    ROW(jem_optim_create, jem_optim_free(made(jem_optim_create(NET(), jem_optim_desc_())))) \
    ROW(jem_optim_free, jem_optim_free(NULL)) \
    ROW(jem_optim_step, got = jem_optim_step(OPTIM(), F(1e-3f), OUT())) \
    ROW(jem_optim_use_average, got = jem_optim_use_average(OPTIM(), FLAG())) \
    ROW(jem_learning_rate, (void)jem_learning_rate(jem_schedule_(), F(.1f), INT(5))) \
    ROW(jem_train_desc_default, (void)jem_train_desc_default()) \
    ROW(jem_train_desc_score, (void)jem_train_desc_score(INT(100))) \
    ROW(jem_train_desc_vectors, (void)jem_train_desc_vectors(INT(100))) \
    ROW(jem_trainer_create, jem_trainer_free(made(jem_trainer_create(NET(), jem_train_desc_()))); \
        jem_trainer_free(made(jem_trainer_create(NET(), LATE())))) \
    ROW(jem_trainer_free, jem_trainer_free(NULL)) \
    ROW(jem_train_step, got = jem_train_step(TRAINER(), IN(), LABELS(), COUNT(3)).status) \
    ROW(jem_train_step_semi, (void)jem_train_step_semi(TRAINER(), IN(), LABELS(), COUNT(3), IN(), \
                                                       COUNT(2))) \
    ROW(jem_trainer_buffer, ptr = jem_trainer_buffer(TRAINER())) \
    ROW(jem_trainer_updates, (void)jem_trainer_updates(TRAINER())) \
    ROW(jem_trainer_use_average, got = jem_trainer_use_average(TRAINER(), FLAG())) \
    ROW(jem_trainer_reseed, jem_trainer_reseed(TRAINER(), 2)) \
    ROW(jem_trainer_set_lr, jem_trainer_set_lr(TRAINER(), F(.1f))) \
    ROW(jem_classify, got = jem_classify(NET(), IN(), COUNT(N), wrong(1) ? NULL : answers)) \
    ROW(jem_calibrate, got = jem_calibrate(NET(), IN(), COUNT(9), KIND(1))) \
    ROW(jem_calibrated, (void)jem_calibrated(NET())) \
    ROW(jem_judge, (void)jem_judge(F(.5f))) \
    ROW(jem_verdict_name, ptr = jem_verdict_name((jem_verdict)KIND(1))) \
    ROW(jem_reason_name, ptr = jem_reason_name((jem_reason)KIND(1))) \
    ROW(jem_accuracy, num = jem_accuracy(NET(), IN(), LABELS(), COUNT(3))) \
    ROW(jem_logits, got = jem_logits(NET(), IN(), COUNT(3), OUT())) \
    ROW(jem_blame_values, got = jem_blame_values(VECTORS(), IN(), COUNT(3), OUT(), OUT())) \
    ROW(jem_fit_temperature, num = jem_fit_temperature(NET(), IN(), LABELS(), COUNT(3))) \
    ROW(jem_ood_score, got = jem_ood_score(NET(), (jem_ood)KIND(3), jem_sgld_desc_(), IN(), \
                                           COUNT(2), OUT())) \
    ROW(jem_attack_desc_default, (void)jem_attack_desc_default()) \
    ROW(jem_attack, got = jem_attack(NET(), IN(), LABELS(), COUNT(2), jem_attack_desc_(), RNG(), \
                                     OUT(), SLOTS())) \
    ROW(jem_impute_desc_default, (void)jem_impute_desc_default()) \
    ROW(jem_impute, got = jem_impute(CTX(), LOGP(), USER(), X(), IN(), jem_impute_desc_(), RNG())) \
    ROW(jem_net_generate_desc, (void)jem_net_generate_desc(NET())) \
    ROW(jem_net_impute_desc, (void)jem_net_impute_desc(NET())) \
    ROW(jem_net_draft_desc, (void)jem_net_draft_desc(NET())) \
    ROW(jem_net_query, (void)jem_net_query(NET(), LABELS())) \
    ROW(jem_pixels_to_floats, got = jem_pixels_to_floats(IMAGES(), BYTES(), COUNT(9), COUNT(7), \
                                                         INT(3), PIXELS(), OUT(), SLOTS())) \
    ROW(jem_net_fit_framing, got = jem_net_fit_framing(IMAGES(), IN(), COUNT(2))) \
    ROW(jem_net_set_fit, got = jem_net_set_fit(IMAGES(), (jem_fit)INT(2))) \
    ROW(jem_net_set_background, got = jem_net_set_background(IMAGES(), INT(2))) \
    ROW(jem_floats_to_pixels, got = jem_floats_to_pixels(IMAGES(), IN(), COUNT(2), PIXELS(), \
                                                         BYTES())) \
    ROW(jem_classify_pixels, got = jem_classify_pixels(IMAGES(), BYTES(), COUNT(9), COUNT(7), \
                                                       INT(3), PIXELS(), \
                                                       wrong(1) ? NULL : answers, SLOTS())) \
    ROW(jem_net_sampler, jem_sampler_free(made(jem_net_sampler(IMAGES(), LABELS(), COUNT(2), 1, \
                                                               jem_generate_desc_())))) \
    ROW(jem_sampler_create, jem_sampler_free(made(jem_sampler_create(CTX(), LOGP(), USER(), \
                                                  SHAPE(), jem_generate_desc_(), RNG())))) \
    ROW(jem_sampler_step, got = jem_sampler_step(SAMPLER(), NULL)) \
    ROW(jem_sampler_restart, got = jem_sampler_restart(SAMPLER())) \
    ROW(jem_sampler_set_labels, got = jem_sampler_set_labels(SAMPLER(), LABELS())) \
    ROW(jem_sampler_free, jem_sampler_free(NULL)) \
    ROW(jem_sample, got = jem_sample(IMAGES(), INT(1), COUNT(2), 1, PIXELS(), BYTES())) \
    ROW(jem_archive_create, jem_archive_free(made(jem_archive_create(CTX())))) \
    ROW(jem_archive_parse, jem_archive_free(made(jem_archive_parse(CTX(), BYTES(), 100)))) \
    ROW(jem_archive_free, jem_archive_free(NULL)) \
    ROW(jem_archive_count, (void)jem_archive_count(ARCHIVE())) \
    ROW(jem_archive_at, ptr = jem_archive_at(ARCHIVE(), INT(0))) \
    ROW(jem_archive_find, ptr = jem_archive_find(ARCHIVE(), TEXT("x"))) \
    ROW(jem_archive_add, got = jem_archive_add(ARCHIVE(), TEXT("x"), (jem_dtype)KIND(0), INT(2), \
                                               SIZES64(), IN())) \
    ROW(jem_archive_set_bf16, got = jem_archive_set_bf16(ARCHIVE(), INT(1))) \
    ROW(jem_archive_keep_f32, got = jem_archive_keep_f32(ARCHIVE(), TEXT("class_output.weight"))) \
    ROW(jem_archive_set_meta, got = jem_archive_set_meta(ARCHIVE(), TEXT("key"), TEXT("value"))) \
    ROW(jem_archive_meta, ptr = jem_archive_meta(ARCHIVE(), TEXT("key"))) \
    ROW(jem_archive_to_memory, to_memory(ARCHIVE())) \
    ROW(jem_net_to_archive, got = jem_net_to_archive(NET(), EMPTY())) \
    ROW(jem_net_from_archive, jem_net_free(made(jem_net_from_archive(CTX(), ARCHIVE())))) \
    ROW(jem_net_load, got = jem_net_load(NET(), ARCHIVE())) \
    ROW(jem_register_net, got = jem_register_net(CTX(), TEXT("kind"), construct_none, NULL)) \
    ROW(jem_net_set_kind, got = jem_net_set_kind(OWN(), TEXT("kind"))) \
    ROW(jem_optim_to_archive, got = jem_optim_to_archive(OPTIM(), EMPTY())) \
    ROW(jem_optim_from_archive, got = jem_optim_from_archive(OPTIM(), ARCHIVE())) \
    ROW(jem_trainer_to_archive, got = jem_trainer_to_archive(TRAINER(), EMPTY())) \
    ROW(jem_trainer_from_archive, got = jem_trainer_from_archive(TRAINER(), ARCHIVE())) \
    ROW(jem_archive_read, jem_archive_free(made(jem_archive_read(CTX(), PATH())))) \
    ROW(jem_archive_write, got = jem_archive_write(ARCHIVE(), PATH())) \
    ROW(jem_file_create, jem_file_free(made(jem_file_create(CTX(), PATH())))) \
    ROW(jem_file_put, got = jem_file_put(NEW_FILE(), BYTES(), 9)) \
    ROW(jem_file_commit, got = jem_file_commit(NEW_FILE())) \
    ROW(jem_file_temporary, ptr = jem_file_temporary(NEW_FILE())) \
    ROW(jem_file_free, jem_file_free(NULL)) \
    ROW(jem_load, jem_net_free(made(jem_load(CTX(), PATH())))) \
    ROW(jem_save, got = jem_save(NET(), PATH()))

#define FUNCTION(name, call) static void call_##name(void) { call; }
CALLS(FUNCTION)
typedef struct row { const char *name; void (*call)(void); } row;
#define ENTRY(name, call) { #name, call_##name },
static const row rows[] = { CALLS(ENTRY) };
enum { ROWS = (int)(sizeof rows / sizeof *rows) };

/* ---- the test -------------------------------------------------------------------------------- */

/* What worked before the call works after it; a call that is refused has changed no weight. */
static void still_good(const world *w, const char *name, uint64_t hash) {
    jem_ctx *ctx = w->ctx;
    float three = 0;
    jem_clear_error(ctx);
    jem_tensor *t = jem_add_constant(ctx, jem_zeros(ctx, 1, 1, 1, 1), 3);
    CHECK(jem_read(t, &three) == JEM_OK && three == 3, "%s, argument %d, way %d: then %s", name,
          turn.bad, turn.variant, jem_error(ctx));
    const jem_status s = jem_classify(w->net, some, N, answers);
    const int same = hash == net_hash(w->net);
    CHECK(s == JEM_OK || !same, "%s, argument %d, way %d: then classify: %s", name, turn.bad,
          turn.variant, jem_error(ctx));
    CHECK(!turn.refused || same, "%s, argument %d, way %d: refused, but weights changed", name,
          turn.bad, turn.variant);
    for (const jem_param *p = w->net->params; p; p = p->next) {
        int finite = 1;
        for (ptrdiff_t i = 0; i < p->size; i++) finite &= isfinite(p->value[i]) != 0;
        CHECK(finite, "%s, argument %d, way %d: %s is not finite", name, turn.bad, turn.variant,
              p->name);
    }
}

static int call_once(const row *r, int bad, int variant) {
    world_create(&here);
    world_create(&there);
    const uint64_t hash = net_hash(here.net);
    const uint64_t other_hash = net_hash(there.net);
    char name[64];
    snprintf(name, sizeof name, " %s ", r->name);
    turn.at = 0;
    turn.bad = bad;
    turn.variant = variant;
    turn.variants = turn.refused = turn.none = 0;
    if (getenv("CALLS")) {
        printf("%s %d %d\n", r->name, bad, variant);
        fflush(stdout);
    }
    got = JEM_OK;
    ptr = r;
    num = 0;
    r->call();
    if (got != JEM_OK || !ptr || num < 0 || !jem_ok(here.ctx) || !jem_ok(there.ctx)) turn.refused++;
    CHECK((got == JEM_OK && ptr && !(num < 0)) || !jem_ok(here.ctx) || !jem_ok(there.ctx) ||
          (turn.none && !strstr(pair, name)) || strstr(silent, name),
          "%s, argument %d, way %d: an error without a message", r->name, bad, variant);
    CHECK(bad >= 0 || jem_ok(here.ctx) || !strcmp(r->name, "jem_fail") ||
          !strcmp(r->name, "jem_archive_parse"), "%s, nothing wrong: %s", r->name,
          jem_error(here.ctx));
    still_good(&here, r->name, hash);
    still_good(&there, r->name, other_hash);
    world_free(&here, r->name);
    world_free(&there, r->name);
    return turn.variants;
}

static int in_table(const char *name, size_t n) {
    for (int i = 0; i < ROWS; i++)
        if (strlen(rows[i].name) == n && !strncmp(rows[i].name, name, n)) return 1;
    return 0;
}

/* Each name before a bracket in a line that begins with JEM_API. */
static void test_complete(void) {
    char line[256];
    int found = 0;
    FILE *f = fopen("jem.h", "r");
    CHECK(f, "jem.h cannot be opened");
    while (f && fgets(line, sizeof line, f)) {
        const char *bracket = strchr(line, '(');
        if (strncmp(line, "JEM_API ", 8) || !bracket) continue;
        const char *name = bracket;
        while (name > line && (isalnum((unsigned char)name[-1]) || name[-1] == '_')) name--;
        found++;
        CHECK(in_table(name, (size_t)(bracket - name)), "%.*s is not in the table",
              (int)(bracket - name), name);
    }
    if (f) fclose(f);
    CHECK(found == ROWS, "%d functions in jem.h, %d in the table", found, ROWS);
}

static int calls, refused;                         /* wrong calls; those that were an error */

/* Calls a function rightly, and with each argument wrong in every way. */
static void test_row(const row *r) {
    const int calls_before = calls;
    const int refused_before = refused;
    char name[64];
    call_once(r, -1, 0);
    for (int bad = 0, variants = 1; variants; bad++) {
        variants = 0;
        for (int k = 0, most = 1; k < most; k++) {
            most = variants = call_once(r, bad, k);
            refused += turn.refused;
            calls++;
        }
    }
    snprintf(name, sizeof name, " %s ", r->name);
    CHECK(refused > refused_before || calls == calls_before + 1 || strstr(always, name),
          "%s refuses nothing", r->name);
}

int main(int argc, char **argv) {
    jem_rng rng = jem_rng_seed(9);
    test_begin(argc, argv);
    for (int i = 0; i < MANY; i++) {
        some[i] = .1f + .8f * jem_rng_uniform(&rng);
        nans[i] = NAN;
        labels[i] = slots[i] = i % CLASSES;
        bad_labels[i] = i % 2 ? -1 : INT_MAX;
    }
    memset(long_text, 'a', sizeof long_text - 1);
    if (test_wants("test_complete")) test_complete();
    world_create(&here);                           /* a file to be read */
    jem_archive_write(here.archive, "build/calls.tmp");
    world_free(&here, "a file");
    for (int i = 0; i < ROWS; i++)
        if (test_wants(rows[i].name)) test_row(&rows[i]);
    remove("build/calls.tmp");
    remove("build/calls.file");
    if (!test_all()) return test_report();
    CHECK(refused >= REFUSED, "%d wrong calls are refused, %d were", refused, REFUSED);
    printf("%d functions, %d wrong calls, %d of them refused\n", ROWS, calls, refused);
    return test_report();
}
