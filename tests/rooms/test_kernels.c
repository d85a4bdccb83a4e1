/* >>kernels: the same bits on every instruction set, for any number of threads and in any order of
   the tasks; convolutions compared with plain loops in double; and a fingerprint of the whole
   library, equal on every machine. Results recorded under a name in one configuration are compared
   with those of the scalar code; for WebAssembly's simd128, which has no fma, within 1e-4. bf16 is
   also compared with plain C, bit for bit if the instruction adds in the same order (AVX-512),
   approximately if not (AMX: the tiles are implemented in plain C here, since few processors have
   them; test_amx.c is this program with the tiles of the processor). */
#include <math.h>
#include <stdint.h>
#include <string.h>

/* ---- tiles of plain C: Intel's manual, TDPBF16PS --------------------------------------------- */

#ifdef __x86_64__
static float plain_tile[8][256];                   /* 16 rows of 64 bytes */
#ifdef _OPENMP
#pragma omp threadprivate(plain_tile)
#endif
static float tile_number(int tile, int i) {        /* element i of 512, bf16 */
    uint16_t upper;
    uint32_t bits;
    float f;
    memcpy(&upper, (const char *)plain_tile[tile] + 2 * i, sizeof upper);
    bits = (uint32_t)upper << 16;
    memcpy(&f, &bits, sizeof f);
    return f;
}
static void tile_dot(int c, int a, int b) {
    for (int m = 0; m < 16; m++)
        for (int n = 0; n < 16; n++) {
            float sum[2] = { 0, 0 };               /* of even elements, of odd ones */
            for (int k = 0; k < 32; k++)
                sum[k % 2] = fmaf(tile_number(a, m * 32 + k),
                                  tile_number(b, k / 2 * 32 + 2 * n + k % 2), sum[k % 2]);
            plain_tile[c][m * 16 + n] += sum[0] + sum[1];
        }
}
#ifndef OWN_TILES
#define JEM__TILE_LOAD(t, p) memcpy(plain_tile[t], p, 1024)
#define JEM__TILE_STORE(t, p) memcpy(p, plain_tile[t], 1024)
#define JEM__TILE_ZERO(t) memset(plain_tile[t], 0, 1024)
#define JEM__TILE_DOT(c, a, b) tile_dot(c, a, b)
#endif
#endif

#define JEM_IMPLEMENTATION
#include "jem.h"
#include "tests/support/test.h"
#include "tests/support/common.h"

/* ---- records --------------------------------------------------------------------------------- */

typedef struct piece { char what[96]; ptrdiff_t at, n; } piece;
typedef struct record {
    float *x;
    piece *pieces;
    ptrdiff_t n, cap;
    int count, cap_pieces;
    char title[72];                                /* goes before each piece's name */
} record;

static void record_add(record *r, const char *what, const void *x, ptrdiff_t n) {
    while (r->n + n > r->cap) {
        r->cap = r->cap ? 2 * r->cap : 1 << 16;
        r->x = (float *)realloc(r->x, (size_t)r->cap * sizeof *r->x);
    }
    if (r->count == r->cap_pieces) {
        r->cap_pieces = r->cap_pieces ? 2 * r->cap_pieces : 256;
        r->pieces = (piece *)realloc(r->pieces, (size_t)r->cap_pieces * sizeof *r->pieces);
    }
    piece *p = r->pieces + r->count++;
    snprintf(p->what, sizeof p->what, "%s %s", r->title, what);
    p->at = r->n;
    p->n = n;
    memcpy(r->x + r->n, x, (size_t)n * sizeof *r->x);
    r->n += n;
}
static void record_tensor(record *r, const char *what, jem_tensor *t, int gradient) {
    const ptrdiff_t n = (ptrdiff_t)t->n * t->c * t->h * t->w;
    float *x = (float *)calloc((size_t)n, sizeof *x);
    const jem_status s = gradient ? jem_read_grad(t, x) : jem_read(t, x);
    CHECK(s == JEM_OK, "%s %s: %s", r->title, what, jem_error(t->ctx));
    record_add(r, what, x, n);
    free(x);
}
static void record_params(record *r, const jem_net *net, int gradients) {
    for (const jem_param *p = net->params; p; p = p->next)
        if (!gradients || p->grad) record_add(r, p->name, gradients ? p->grad : p->value, p->size);
}
static void record_free(record *r) {
    free(r->x);
    free(r->pieces);
}

/* ---- set-ups: instruction sets, threads, orders of tasks ------------------------------------- */

typedef struct setup {
    char name[48];
    jem_ctx_desc desc;
    const jem__bf16 *bf16;                         /* in place of the context's own */
} setup;
typedef void (*scenario)(jem_ctx *ctx, record *r);

static void backwards(void *user, int n, void (*task)(void *arg, int i), void *arg) {
    static int within;
    CHECK(!within, "a task calls parallel_for");
    within = 1;
    (*(int *)user)++;
    while (n-- > 0) task(arg, n);
    within = 0;
}
static int backwards_calls;
static jem_precision precision;                    /* of every set-up, until it is changed */
static const char *const precision_name[] = { "exact", "fast", "direct", "bf16" };

static setup setup_of(jem_isa isa, int threads, int reverse) {
    setup s;
    memset(&s, 0, sizeof s);
    snprintf(s.name, sizeof s.name, "%s, %d threads%s", jem_isa_name(isa), threads,
             reverse ? " in reverse" : "");
    s.desc.isa = isa;
    s.desc.threads = threads;
    s.desc.precision = precision;
    if (reverse) {
        s.desc.parallel_for = backwards;
        s.desc.user = &backwards_calls;
    }
    return s;
}
static setup plain_tape(setup s) {
    s.desc.plain_tape = 1;
    snprintf(s.name, sizeof s.name, "%s, the plain tape", jem_isa_name(s.desc.isa));
    return s;
}
/* The scalar code is the first, the plain tape the last; returns how many there are. */
static int every_isa(setup *s) {
    int n = 0;
    for (int isa = JEM_ISA_SCALAR; isa <= JEM_ISA_NEON; isa++)
        if (jem_isa_available((jem_isa)isa)) s[n++] = setup_of((jem_isa)isa, 1, 0);
    if (jem_isa_available(JEM_ISA_WASM)) s[n++] = setup_of(JEM_ISA_WASM, 1, 0);
    s[n++] = plain_tape(setup_of(JEM_ISA_BEST, 1, 0));
    return n;
}
static int every_order(setup *s) {
    int n = 0;
    s[n++] = setup_of(JEM_ISA_BEST, 1, 0);
    for (int threads = 2; threads <= 3; threads++) {
#ifdef _OPENMP
        s[n++] = setup_of(JEM_ISA_BEST, threads, 0);
#endif
        s[n++] = setup_of(JEM_ISA_BEST, threads, 1);
    }
    s[n++] = plain_tape(setup_of(JEM_ISA_BEST, 1, 0));
    return n;
}

/* bf16, as it comes, and with all convolutions in it. */
static int every_bf16(setup *s) {
    int n = 0;
    s[n++] = setup_of(JEM_ISA_SCALAR, 1, 0);
    if (!jem_isa_available(JEM_ISA_AVX512_BF16)) return n;
    for (int threads = 1; threads <= 3; threads++)
        s[n++] = setup_of(JEM_ISA_AVX512_BF16, threads, 0);
    s[n++] = plain_tape(setup_of(JEM_ISA_AVX512_BF16, 1, 0));
    return n;
}
static jem__bf16 only_bf16[2];
static int every_only_bf16(setup *s) {
    const int n = every_bf16(s);
    only_bf16[0] = jem__bf16_scalar;
#ifdef JEM__X86_BF16
    only_bf16[1] = jem__bf16_avx512;
#endif
    only_bf16[0].twice = only_bf16[1].twice = 0;
    for (int i = 0; i < n; i++) s[i].bf16 = &only_bf16[i > 0];
    return n;
}
static jem_ctx *open_setup(const setup *s) {
    jem_ctx *ctx = jem_ctx_create(&s->desc);
    if (ctx && s->bf16) ctx->bf16 = s->bf16;
    return ctx;
}

/* The first of n numbers whose bits are not those of b; close: that is further from it than 1e-4 of
   it and of what a quarter of them are larger than, and than 2e-6. n: none. */
static int compare_sizes(const void *a, const void *b) {
    const float x = fabsf(*(const float *)a);
    const float y = fabsf(*(const float *)b);
    return (x > y) - (x < y);
}
static ptrdiff_t first_apart(const float *a, const float *b, ptrdiff_t n, int close) {
    ptrdiff_t i = 0;
    float *sorted = floats(n);
    float usual;
    memcpy(sorted, b, (size_t)n * sizeof *b);
    if (close) qsort(sorted, (size_t)n, sizeof *sorted, compare_sizes);
    usual = fabsf(sorted[n - 1 - n / 4]);
    free(sorted);
    while (i < n && (same_bits(a + i, b + i, 1) ||
                     (close && fabsf(a[i] - b[i]) <= 1e-4f * (fabsf(b[i]) + usual) + 2e-6f))) i++;
    return i;
}

static void compare(const char *heading, scenario run, int (*setups)(setup *)) {
    setup s[8];
    record first, r;
    char name[80];
    snprintf(name, sizeof name, "%s, %s", heading, precision_name[precision]);
    if (!test_wants(name)) return;
    const int n = setups(s);
    memset(&first, 0, sizeof first);
    printf("%s\n", name);
    for (int i = 0; i < n; i++) {
        jem_ctx *ctx = open_setup(&s[i]);
        const int close = s[0].desc.isa == JEM_ISA_SCALAR && jem_ctx_isa(ctx) == JEM_ISA_WASM;
        memset(&r, 0, sizeof r);
        CHECK(jem_ctx_precision(ctx) == s[i].desc.precision &&
              (s[i].desc.isa == JEM_ISA_BEST || jem_ctx_isa(ctx) == s[i].desc.isa),
              "%s, %s: it is %s, %s", s[i].name, precision_name[s[i].desc.precision],
              jem_isa_name(jem_ctx_isa(ctx)), precision_name[jem_ctx_precision(ctx)]);
        run(ctx, &r);
        CHECK(jem_ok(ctx), "%s: %s", s[i].name, jem_error(ctx));
        jem_ctx_free(ctx);
        if (i == 0) { first = r; continue; }
        CHECK(r.count == first.count && r.n == first.n, "%s: %d pieces", s[i].name, r.count);
        for (int k = 0; k < r.count && k < first.count && r.n == first.n; k++) {
            const piece *p = r.pieces + k;
            const ptrdiff_t at = p->at + first_apart(r.x + p->at, first.x + p->at, p->n, close);
            CHECK(at == p->at + p->n, "%s: %s [%d] is %.9g, %s made %.9g", s[i].name, p->what,
                  (int)(at - p->at), (double)r.x[at], s[0].name, (double)first.x[at]);
        }
        record_free(&r);
    }
    record_free(&first);
}

/* ---- every kernel but the convolutions, called directly -------------------------------------- */

/* n numbers on the arena: mostly ordinary, some that rounding or a branch may trip over. */
static float *some(jem_ctx *ctx, jem_rng *rng, ptrdiff_t n) {
    static const float odd[] = { 0, -0.0f, 1e-40f, -1e-40f, 1e15f, -1e15f, 1, -1, 88.4f, -87.4f };
    float *x = (float *)jem__push(ctx, (size_t)n * sizeof *x);
    jem_fill_normal(ctx, rng, x, n, 0, 2);
    for (ptrdiff_t i = jem_rng_below(rng, 40); i < n; i += 1 + jem_rng_below(rng, 40)) {
        x[i] = odd[jem_rng_below(rng, 10)];
        if (jem_isa_available(JEM_ISA_WASM) && fabsf(x[i]) > 1e14f)
            x[i] *= 1e-13f;                        /* what is left of sums beside 1e15 is chance */
    }
    return x;
}
/* The same without the odd ones, in lo..hi. */
static float *plain(jem_ctx *ctx, jem_rng *rng, ptrdiff_t n, float lo, float hi) {
    float *x = (float *)jem__push(ctx, (size_t)n * sizeof *x);
    jem_fill_uniform(ctx, rng, x, n, lo, hi);
    return x;
}
static float *copy_of(jem_ctx *ctx, const float *x, ptrdiff_t n) {
    float *y = (float *)jem__push(ctx, (size_t)n * sizeof *y);
    memcpy(y, x, (size_t)n * sizeof *y);
    return y;
}

static void direct_maps(jem_ctx *ctx, record *r) {
    jem_rng rng = jem_rng_seed(1);
    for (ptrdiff_t n = 16; n < 700; n += n) {
        const float *dy = some(ctx, &rng, n);
        const float *old = some(ctx, &rng, n);
        for (int kind = JEM__MAP_SCALE; kind <= JEM__MAP_DROP; kind++) {
            const float *x = kind == JEM__MAP_LOG ? plain(ctx, &rng, n, 1e-30f, 3)
                                                  : some(ctx, &rng, n);
            float *aux = plain(ctx, &rng, n, 0, 1);
            float *y = plain(ctx, &rng, n, 0, 1);
            float *dx = copy_of(ctx, old, n);
            const float a = 1.3f;
            snprintf(r->title, sizeof r->title, "map %d of %d", kind, (int)n);
            if (kind == JEM__MAP_DROP) ctx->k->drop(0.3f, a, x, y, (uint16_t *)(void *)aux, n);
            else {
                ctx->k->map(kind, a, x, y, NULL, n);
                record_add(r, "without aux", y, n);
                ctx->k->map(kind, a, x, y, aux, n);
            }
            record_add(r, "y", y, n);
            record_add(r, "aux", aux, n);
            const int output = kind < JEM__MAP_DROP &&
                               jem__map_ops[kind].keeps == JEM_KEEPS_OUTPUT;
            for (int add = 0; add < 2; add++) {
                ctx->k->map_back(kind, a, output ? y : x, aux, dy, dx, add, n);
                record_add(r, "dx", dx, n);
            }
            if (kind == JEM__MAP_DROP) continue;
            float *over = copy_of(ctx, x, n);      /* in place, both ways */
            ctx->k->map(kind, a, over, over, NULL, n);
            record_add(r, "over x", over, n);
            over = copy_of(ctx, dy, n);
            ctx->k->map_back(kind, a, output ? y : x, aux, over, over, 0, n);
            record_add(r, "over dy", over, n);
        }
    }
}

static void direct_pairs(jem_ctx *ctx, record *r) {
    jem_rng rng = jem_rng_seed(2);
    for (ptrdiff_t n = 16; n < 700; n += n)
        for (int spread = 0; spread < 2; spread++) {
            const float *a = some(ctx, &rng, n);
            const float *b = some(ctx, &rng, n);
            const float *dy = some(ctx, &rng, n);
            float *y = some(ctx, &rng, n);
            float *out = some(ctx, &rng, 16);
            snprintf(r->title, sizeof r->title, "pair of %d, spread %d", (int)n, spread);
            for (int kind = JEM__PAIR_ADD; kind <= JEM__PAIR_MUL; kind++) {
                ctx->k->pair(kind, a, b, spread, y, n);
                record_add(r, "y", y, n);
            }
            for (int how = 0; how < 4; how++) {
                const float *v = how & 1 ? b : NULL;
                ctx->k->pair_back(how ? -1.0f : 1.0f, dy, v, spread, y, how > 1, n);
                record_add(r, "dx", y, n);
                ctx->k->dot(0.7f, a, v, out, how > 1, n);
                record_add(r, "dot", out, 16);
            }
        }
}

/* Lanes moved along, against a plain loop. */
static void direct_shifts(jem_ctx *ctx, record *r) {
    jem_rng rng = jem_rng_seed(12);
    for (int by = -15; by < 16; by++)
        for (int n = 16; n < 100; n += 32) {
            const float *x = some(ctx, &rng, n);
            float *y = some(ctx, &rng, n);
            float *want = some(ctx, &rng, n);
            const unsigned all = 0xffffu >> abs(by) << (by < 0 ? -by : 0);
            snprintf(r->title, sizeof r->title, "%d numbers by %d:", n, by);
            for (int how = 0; how < 2; how++) {
                const unsigned lanes = how ? all : all & 0x5bc6;
                for (int i = 0; i < n; i++) want[i] = lanes >> i % 16 & 1 ? x[i + by] : 0;
                ctx->k->shift(x, by, lanes, y, n);
                CHECK(!memcmp(y, want, (size_t)n * sizeof *y), "%s %d", r->title, how);
                record_add(r, "shifted", y, n);
            }
        }
}

/* Records windows of every size and stride over h x w pixels. */
static void direct_pools(jem_ctx *ctx, record *r, jem_rng *rng, jem_shape s, const float *x,
                         const float *dy, float *dx) {
    const ptrdiff_t n = (ptrdiff_t)s.c * 16;
    for (int k = 1; k <= 5; k++)
        for (int stride = 1; stride <= 3; stride++) {
            const int ho = (s.h - k) / stride + 1;
            const int wo = (s.w - k) / stride + 1;
            float *out = some(ctx, rng, ho * wo * n);
            const jem__pool pool = { s.w, s.c, k, k, stride, ho, wo, 1.0f / (float)(k * k) };
            ctx->k->pool(&pool, x, out);
            record_add(r, "pool", out, ho * wo * n);
            ctx->k->pool_back(&pool, dy, dx);
            record_add(r, "pool_back", dx, n * s.h * s.w);
        }
}

/* Records the kernels of normalisations over some of h x w pixels. */
static void direct_norms(jem_ctx *ctx, record *r, jem_rng *rng, jem_shape s, const float *x,
                         const float *dy, float *dx) {
    const int c = s.c;
    const ptrdiff_t n = (ptrdiff_t)c * 16;
    for (ptrdiff_t pixels = 1; pixels <= s.h * s.w; pixels += 17) {
        float *mean = plain(ctx, rng, n, -1, 1);
        float *rstd = plain(ctx, rng, n, 0.5f, 2);
        const float *gamma = plain(ctx, rng, c, -1, 1);
        const float *beta = plain(ctx, rng, c, -1, 1);
        float *s1 = plain(ctx, rng, n, -1, 1);
        float *s2 = plain(ctx, rng, n, -1, 1);
        for (int how = 0; how < 4; how++) {
            ctx->k->moment(x, how & 1 ? mean : NULL, how > 1, pixels, c, s1);
            record_add(r, "moment", s1, n);
        }
        for (int how = 0; how < 2; how++) {
            const jem__norm norm = { mean, rstd, s1, s2, gamma, how ? beta : NULL, pixels, c, how };
            ctx->k->normalize(&norm, x, dx);
            record_add(r, "normalize", dx, pixels * n);
            ctx->k->normalize_sums(&norm, x, dy);
            record_add(r, "sum dy", s1, n);
            record_add(r, "sum dy xhat", s2, n);
            ctx->k->normalize_back(&norm, how, x, dy, dx);
            record_add(r, "normalize_back", dx, pixels * n);
        }
    }
}

static void direct_reductions(jem_ctx *ctx, record *r) {
    static const int channels[] = { 1, 2, 3, 10, 17 };
    jem_rng rng = jem_rng_seed(3);
    for (int j = 0; j < 5; j++) {
        const int c = channels[j];
        const jem_shape s = { 16, c, 5, 7 };
        const ptrdiff_t n = (ptrdiff_t)c * 16;
        const ptrdiff_t all = n * s.h * s.w;
        snprintf(r->title, sizeof r->title, "%d channels:", c);
        float *y = plain(ctx, &rng, 16, 0, 1);
        float *dx = some(ctx, &rng, all);
        const float *x = some(ctx, &rng, all);
        const float *dy = some(ctx, &rng, all);
        ctx->k->logsumexp(x, c, y);
        record_add(r, "logsumexp", y, 16);
        for (int add = 0; add < 2; add++) {
            ctx->k->logsumexp_back(x, y, dy, c, dx, add);
            record_add(r, "softmax", dx, n);
        }
        direct_pools(ctx, r, &rng, s, x, dy, dx);
        direct_norms(ctx, r, &rng, s, x, dy, dx);
    }
}

static void direct_updates(jem_ctx *ctx, record *r) {
    const uint64_t starts[] = { 0, 48, 0xfffffff0u, (uint64_t)1 << 40 };
    jem_rng rng = jem_rng_seed(4);
    for (ptrdiff_t n = 16; n < 400; n += 48)
        for (int how = 0; how < 8; how++) {
            float *x = plain(ctx, &rng, n, -1, 1);
            float *m = plain(ctx, &rng, n, -1, 1);
            float *v = plain(ctx, &rng, n, 0, 1);
            float *p = plain(ctx, &rng, n, -1, 1);
            const float *g = some(ctx, &rng, n);
            snprintf(r->title, sizeof r->title, "%d numbers, case %d:", (int)n, how);
            ctx->k->fill(how & 1, rng.key, starts[how / 2], x, n, -1, 2);
            record_add(r, "fill", x, n);
            jem__langevin d;
            memset(&d, 0, sizeof d);
            for (int l = 0; l < JEM_LANES; l++) {
                d.step[l] = 1 - 0.05f * (float)l;
                d.noise[l] = 0.3f + 0.02f * (float)l;
            }
            if (how & 1) d.clamp_grad = 0.5f;
            if (how & 2) {
                d.lo = -0.9f;
                d.hi = 1;
            }
            ctx->k->langevin(x, g, n, &d, how & 4 ? rng.key : NULL, starts[how % 4]);
            record_add(r, "langevin", x, n);
            jem__update u = { 0.9f, 0.999f, 1e-8f, 0, 0, 0.01f, 1.7f };
            if (how & 1) u.weight_decay = 0.01f;
            if (how & 2) {
                u.momentum = 0.9f;
                u.beta1 = 0;
            }
            ctx->k->adam(p, g, m, v, n, &u);
            record_add(r, "adam", p, n);
            record_add(r, "m", m, n);
            record_add(r, "v", v, n);
            ctx->k->sgd(p, g, m, n, &u);
            record_add(r, "sgd", p, n);
            record_add(r, "m", m, n);
        }
}

/* ---- convolutions ---------------------------------------------------------------------------- */

enum { CONVOLUTIONS = 120 };                       /* compared */

typedef struct conv_shape { int n, ci, co, h, w, k, stride, pad, blocks; } conv_shape;

static int below(jem_rng *rng, int lo, int hi) { return lo + jem_rng_below(rng, hi - lo + 1); }

/* Draws a shape, every third one such as Winograd is used for (2 or 3 times the stride, 8 channels
   or more), every fourth one of a few images that are cut into blocks. */
static conv_shape random_conv_shape(int i, jem_rng *rng) {
    static const int ns[] = { 1, 2, 3, 15, 16, 17, 33 };
    static const int channels[] = { 1, 2, 3, 4, 5, 8, 10, 17 };
    static const int wino[5][2] = { { 3, 1 }, { 4, 2 }, { 3, 1 }, { 2, 1 }, { 6, 2 } };
    conv_shape s;
    s.n = ns[jem_rng_below(rng, 7)];
    s.ci = channels[jem_rng_below(rng, 8)];
    s.co = below(rng, 1, 14);
    s.k = below(rng, 1, 6);
    s.stride = below(rng, 1, 3);
    s.pad = below(rng, 0, 3);
    if (s.k == 6) s.k = 7;
    if (i % 3 == 0) {
        s.ci = below(rng, 8, 18);
        s.co = below(rng, 8, 18);
        s.k = wino[i / 3 % 5][0];
        s.stride = wino[i / 3 % 5][1];
        s.pad = below(rng, 0, s.k > 2 ? 2 : 1);
        if (s.k != 3) {                            /* with fewer, the transformations cost more */
            s.ci += 20;
            s.co += 20;
        }
    }
    const int from = s.k - 2 * s.pad > 1 ? s.k - 2 * s.pad : 1;
    const int more = i % 3 == 0 ? 9 : 6;
    s.h = below(rng, from, from + more);
    s.w = below(rng, from, from + more);
    s.blocks = i % 4 == 0;
    if (s.blocks) {                                /* blocks that are whole before and after it */
        s.n = below(rng, 1, 3);
        s.k |= s.stride == 1;
        s.pad = (s.k - 1) / 2;
        const int least = s.pad / s.stride + 1;
        s.h = 4 * s.stride * below(rng, least, least + 3);
        s.w = 4 * s.stride * below(rng, least, least + 3);
        if (i % 8) {                               /* with a margin */
            s.h -= below(rng, 0, 4 * s.stride - 1);
            s.w -= below(rng, 0, 4 * s.stride - 1);
        }
    }
    return s;
}

/* Returns chosen ones first: every width of the register blocks and what is left over of them, more
   than one block of 16 input channels, kernels larger than the image, strides larger than the
   kernel, rows so long that a weight gradient is made in parts. Then random ones. */
static conv_shape conv_shape_at(int i, jem_rng *rng) {
    static const conv_shape chosen[] = {
        { 1, 1, 1, 1, 1, 1, 1, 0, 0 }, { 1, 1, 1, 1, 1, 3, 1, 1, 0 },
        { 17, 1, 6, 3, 3, 3, 1, 1, 0 }, { 3, 33, 7, 2, 3, 3, 1, 1, 0 },
        { 16, 17, 8, 3, 1, 1, 1, 0, 0 }, { 2, 16, 13, 4, 4, 4, 2, 1, 0 },
        { 33, 3, 5, 4, 5, 2, 3, 0, 0 }, { 1, 2, 9, 2, 2, 7, 1, 3, 0 },
        { 5, 5, 4, 7, 9, 1, 3, 2, 0 }, { 2, 3, 11, 9, 7, 5, 3, 3, 0 },
        { 1, 4, 10, 6, 40, 3, 1, 1, 0 }, { 1, 3, 2, 40, 35, 3, 2, 1, 0 },
        { 2, 1, 14, 1, 11, 5, 2, 2, 0 }, { 1, 20, 12, 1, 1, 1, 1, 0, 0 },
        { 18, 6, 3, 6, 1, 4, 1, 3, 0 }, { 1, 8, 8, 1, 1, 3, 1, 1, 0 },
        { 17, 9, 11, 5, 3, 3, 1, 0, 0 }, { 2, 17, 8, 3, 17, 3, 1, 2, 0 },
        { 1, 18, 70, 2, 2, 3, 1, 1, 0 }, { 2, 40, 35, 20, 24, 3, 1, 1, 1 },
        { 3, 40, 41, 3, 5, 4, 2, 1, 0 }, { 1, 100, 35, 8, 8, 3, 1, 1, 0 },
        { 33, 16, 18, 8, 9, 3, 1, 1, 0 },
        { 17, 40, 70, 15, 16, 4, 2, 1, 0 }, { 2, 40, 42, 15, 13, 6, 2, 2, 0 },
        { 3, 29, 30, 14, 15, 6, 3, 1, 0 },
        { 3, 26, 28, 13, 12, 9, 3, 4, 0 },
        { 33, 12, 20, 9, 8, 4, 2, 1, 0 }                       /* these are worth more threads */
    };
    enum { CHOSEN = sizeof chosen / sizeof chosen[0] };
    return i < CHOSEN ? chosen[i] : random_conv_shape(i, rng);
}
static int takes_winograd(conv_shape s) {
    return (s.k == 2 * s.stride || s.k == 3 * s.stride) && s.pad < s.k && s.ci >= 8 && s.co >= 8;
}
#define CONV_TEXT "conv n %d, %d -> %d, %dx%d, k %d, stride %d, pad %d%s"
#define CONV_ARGS(s) s.n, s.ci, s.co, s.h, s.w, s.k, s.stride, s.pad, s.blocks ? ", blocks" : ""

/* sum of conv(x) probe, and of x^2 besides, so that dx is added to; y, dx, dw, db of it */
typedef struct conv_run {
    jem_net *bag;
    jem_param *w, *b;
    jem_tensor *x, *y, *probe;
} conv_run;

static conv_run conv_make(jem_ctx *ctx, jem_rng *rng, conv_shape s) {
    conv_run c;
    jem_conv_desc d;
    d.stride = s.stride;
    d.pad = s.pad;
    c.bag = bag_create(ctx);
    c.w = random_param(c.bag, rng, 1, 4, s.co, s.ci, s.k, -1, 1);
    c.b = random_param(c.bag, rng, 1, 1, s.co, 1, 1, -1, 1);
    c.x = random_leaf(ctx, rng, jem__shape(s.n, s.ci, s.h, s.w), -1, 1);
    jem_tensor *x = s.blocks ? jem__cut_blocks(ctx, c.x, 4 * s.stride) : c.x;
    c.y = jem__join_blocks(ctx, jem_conv2d(ctx, x, c.w, c.b, d));
    c.probe = random_leaf(ctx, rng, jem__shape_of(c.y), -1, 1);
    jem_tensor *sum = jem_sum_image(ctx, jem_mul(ctx, c.y, c.probe));
    sum = jem_add(ctx, sum, jem_sum_image(ctx, jem_square(ctx, c.x)));
    jem_backward(jem_sum(ctx, sum));
    jem_grad(sum, c.x);
    return c;
}

static void convolutions(jem_ctx *ctx, record *r) {
    jem_rng rng = jem_rng_seed(5);
    for (int i = 0; i < CONVOLUTIONS; i++) {
        const conv_shape s = conv_shape_at(i, &rng);
        conv_run c = conv_make(ctx, &rng, s);
        snprintf(r->title, sizeof r->title, CONV_TEXT, CONV_ARGS(s));
        record_tensor(r, "y", c.y, 0);
        record_tensor(r, "dx", c.x, 1);
        record_params(r, c.bag, 1);
        jem_net_free(c.bag);
        jem_reset(ctx);
    }
}

/* A sum and the sum of its terms' magnitudes: adding n products in any order, each rounded once,
   is off by no more than n 2^-24 of the latter (Higham 2002, ch. 3). Winograd goes round by other
   sums, and is held to a share of the largest output's size. bf16 rounds both factors by up to
   2^-8 of them. */
typedef struct exact { double sum, size, terms; } exact;

static void exact_add(exact *e, double a, double b) {
    e->sum += a * b;
    e->size += fabs(a * b);
    e->terms += 1;
}
/* How many of n numbers are out of bounds. */
static int outside(const exact *e, const float *x, ptrdiff_t n, double share) {
    double largest = 0;
    int count = 0;
    for (ptrdiff_t i = 0; i < n; i++) if (e[i].size > largest) largest = e[i].size;
    for (ptrdiff_t i = 0; i < n; i++) {
        const double rounding = precision == JEM_PRECISION_BF16
                                    ? (ldexp(1, -7) + ldexp(1, -16)) * e[i].size : 0;
        const double bound = rounding + (share > 0 ? share * largest
                                     : (e[i].terms + 16) * ldexp(1, -24) * e[i].size);
        count += !(fabs((double)x[i] - e[i].sum) <= bound);
    }
    return count;
}
static exact *exacts(ptrdiff_t n) { return (exact *)calloc((size_t)n, sizeof(exact)); }

/* The sums of a convolution: its output, and the gradients of input, weights, biases. */
typedef struct conv_sums { exact *y, *dx, *dw, *db; } conv_sums;

static int out_size(int size, conv_shape s) { return (size + 2 * s.pad - s.k) / s.stride + 1; }

/* Adds all products, in plain loops. */
static void exact_conv(const conv_run *c, conv_shape s, const float *x, const float *dy,
                       conv_sums e) {
    const int ho = out_size(s.h, s);
    const int wo = out_size(s.w, s);
    const int image = s.ci * s.h * s.w;
    const int out = s.co * ho * wo;
    const int taps = s.k * s.k;
    for (int at = 0; at < s.n * out; at++) {       /* at is ((n O + o) ho + oy) wo + ox */
        const int ox = at % wo;
        const int oy = at / wo % ho;
        const int o = at / (wo * ho) % s.co;
        const int n = at / out;
        exact_add(&e.y[at], (double)c->b->value[o], 1);
        exact_add(&e.db[o], (double)dy[at], 1);
        for (int j = 0; j < s.ci * taps; j++) {
            const int iy = oy * s.stride + j % taps / s.k - s.pad;
            const int ix = ox * s.stride + j % s.k - s.pad;
            if (iy < 0 || iy >= s.h || ix < 0 || ix >= s.w) continue;
            const int from = n * image + (j / taps * s.h + iy) * s.w + ix;
            const int weight = o * s.ci * taps + j;
            exact_add(&e.y[at], (double)c->w->value[weight], (double)x[from]);
            exact_add(&e.dx[from], (double)c->w->value[weight], (double)dy[at]);
            exact_add(&e.dw[weight], (double)x[from], (double)dy[at]);
        }
    }
    for (int at = 0; at < s.n * image; at++) exact_add(&e.dx[at], 2, (double)x[at]);   /* and x^2 */
}

/* Returns the share of the largest output by which Winograd may be off; 0: another way is used. */
static double winograd_share(conv_shape s) {
    if (!takes_winograd(s) || precision == JEM_PRECISION_DIRECT) return 0;
    return precision == JEM_PRECISION_EXACT ? 1e-6 : 2e-5;
}

static void check_conv(jem_ctx *ctx, jem_rng *rng, conv_shape s) {
    conv_run c = conv_make(ctx, rng, s);
    const int ho = out_size(s.h, s);
    const int wo = out_size(s.w, s);
    const int nx = s.n * s.ci * s.h * s.w;
    const int ny = s.n * s.co * ho * wo;
    float *x = floats(nx);
    float *dx = floats(nx);
    float *y = floats(ny);
    float *dy = floats(ny);
    const conv_sums e = { exacts(ny), exacts(nx), exacts(c.w->size), exacts(s.co) };
    CHECK(c.y->h == ho && c.y->w == wo, CONV_TEXT ": y %dx%d", CONV_ARGS(s), c.y->h, c.y->w);
    jem_read(c.x, x);
    jem_read(c.y, y);
    jem_read(c.probe, dy);
    jem_read_grad(c.x, dx);
    exact_conv(&c, s, x, dy, e);
    const double share = winograd_share(s);
    const int bad[4] = {
        outside(e.y, y, ny, share), outside(e.dx, dx, nx, share),
        outside(e.dw, c.w->grad, c.w->size, 0), outside(e.db, c.b->grad, s.co, 0)
    };
    CHECK(bad[0] + bad[1] + bad[2] + bad[3] == 0, CONV_TEXT ": y %d, dx %d, dw %d, db %d",
          CONV_ARGS(s), bad[0], bad[1], bad[2], bad[3]);
    free(x);
    free(dx);
    free(y);
    free(dy);
    free(e.y);
    free(e.dx);
    free(e.dw);
    free(e.db);
    jem_net_free(c.bag);
    jem_reset(ctx);
}

static void test_conv_values(void) {
    printf("convolutions against plain loops in double, %s\n", precision_name[precision]);
    const setup s = setup_of(JEM_ISA_BEST, 1, 0);
    jem_ctx *ctx = jem_ctx_create(&s.desc);
    jem_rng rng = jem_rng_seed(6);
    for (int i = 0; i < 60; i++) check_conv(ctx, &rng, conv_shape_at(i, &rng));
    CHECK(jem_ok(ctx), "%s", jem_error(ctx));
    jem_ctx_free(ctx);
}

/* ---- whole networks -------------------------------------------------------------------------- */

static jem_net *small_wrn(jem_ctx *ctx, jem_norm norm, int size) {
    jem_wrn_desc d = jem_wrn_desc_default();
    d.depth = 10;
    d.widen = 1;
    d.height = d.width = size;
    d.norm = norm;
    return jem_wrn_create(ctx, &d, 7);
}
static jem_net *odd_convnet(jem_ctx *ctx) {
    jem_convnet_desc d = jem_convnet_desc_default();
    d.height = 8;
    d.width = 7;
    d.layers = 3;
    d.widths[0] = 8;
    d.widths[1] = 9;
    d.widths[2] = 13;
    return jem_convnet_create(ctx, &d, 7);
}
/* The same with 16, 32, 64: tiles of bf16 are full. */
static jem_net *tiled_convnet(jem_ctx *ctx) {
    jem_convnet_desc d = jem_convnet_desc_default();
    d.height = 8;
    d.width = 7;
    d.layers = 3;
    return jem_convnet_create(ctx, &d, 7);
}

/* 19 images and their labels: one whole group and part of another */
enum { IMAGES = 19 };
static float *images_for(const jem_net *net, int *labels) {
    jem_rng rng = jem_rng_seed(8);
    random_labels(&rng, labels, IMAGES, net->classes);
    return random_floats(&rng, (ptrdiff_t)IMAGES * net->channels * net->height * net->width, -1, 1);
}

static jem_train_desc short_training(void) {
    jem_train_desc d = jem_train_desc_default();
    d.lr = 1e-3f;
    d.sgld.steps = 3;
    d.negatives = 7;
    d.buffer_size = 20;
    d.reinit = 0.3f;
    return d;
}

/* Logits, log p(x) and its gradient, then three updates. Takes the net. */
static void use_net(record *r, const char *title, jem_net *net, const jem_train_desc *d) {
    jem_ctx *ctx = net->ctx;
    int labels[IMAGES];
    float *x = images_for(net, labels);
    jem_tensor *t = jem_input(ctx, x, IMAGES, net->channels, net->height, net->width);
    snprintf(r->title, sizeof r->title, "%s:", title);
    record_tensor(r, "logits", jem_forward(net, t, 0), 0);
    CHECK(jem_grad(jem_logp(ctx, t, net), t) == JEM_OK, "%s", jem_error(ctx));
    record_tensor(r, "input gradient", t, 1);
    jem_trainer *tr = jem_trainer_create(net, d);
    /* Adam makes a step of the rate's size even of rounding: after it, no two need be close. */
    const int close = jem_isa_available(JEM_ISA_WASM);
    const int steps = close ? 1 : 3;
    for (int step = 0; step < steps; step++) {
        snprintf(r->title, sizeof r->title, "%s, update %d:", title, step);
        jem_stats s = jem_train_step(tr, x, labels, IMAGES);
        CHECK(s.status == JEM_OK, "%s", jem_error(ctx));
        record_add(r, "loss", &s.loss, 1);
        record_add(r, "gradient norm", &s.grad_norm, 1);
        record_params(r, net, 1);
        if (!close) record_params(r, net, 0);
    }
    const jem_buffer *b = jem_trainer_buffer(tr);
    record_add(r, "buffer", b->data, (ptrdiff_t)b->capacity * b->channels * b->height * b->width);
    free(x);
    jem_trainer_free(tr);
    jem_net_free(net);
    jem_reset(ctx);
}

static void networks(jem_ctx *ctx, record *r) {
    jem_train_desc d = short_training();
    use_net(r, "convnet", odd_convnet(ctx), &d);
    d.optim.weight_decay = 1e-3f;
    d.optim.clip = 0.5f;
    use_net(r, "wrn, Adam with decay and clip", small_wrn(ctx, JEM_NORM_NONE, 4), &d);
    if (precision != JEM_PRECISION_EXACT) return;            /* the rest is as it was */
    d = short_training();
    d.optim.kind = JEM_OPTIMIZER_SGD;
    d.optim.momentum = 0.9f;
    d.optim.weight_decay = 1e-3f;
    use_net(r, "batch norm, SGD", small_wrn(ctx, JEM_NORM_BATCH, 4), &d);
    d.optim.clip = 0.5f;
    d.sgld.clamp_grad = 0.01f;
    d.sgld.clamp_lo = -1;
    d.sgld.clamp_hi = 1;
    use_net(r, "instance norm, SGD with clip", small_wrn(ctx, JEM_NORM_INSTANCE, 4), &d);
    d = short_training();
    d.weights.cd_class = 0.5f;
    d.weights.energy_l2 = 0.1f;
    use_net(r, "layer norm, by class", small_wrn(ctx, JEM_NORM_LAYER, 4), &d);
    use_net(r, "act norm, by class", small_wrn(ctx, JEM_NORM_ACT, 4), &d);
    jem_wrn_desc w = jem_wrn_desc_default();
    w.depth = 10;
    w.widen = 1;
    w.channels = 1;
    w.height = 5;
    w.width = 3;
    w.classes = 3;
    w.activation = JEM_ACTIVATION_TANH;
    w.dropout = 0.3f;
    w.head = JEM_HEAD_FLAT;
    w.stem_stride = 2;
    use_net(r, "dropout, tanh, flat", jem_wrn_create(ctx, &w, 7), &d);
    jem_mlp_desc m = jem_mlp_desc_default();
    m.channels = 2;
    m.height = m.width = 1;
    m.widths[0] = 33;
    m.widths[1] = 7;
    m.classes = 2;
    m.activation = JEM_ACTIVATION_RELU;
    use_net(r, "mlp", jem_mlp_create(ctx, &m, 7), &d);
}

/* Walks and updates so large that they are spread over threads too. */
static void large(jem_ctx *ctx, record *r) {
    jem_rng rng = jem_rng_seed(9);
    jem_tensor *x = random_leaf(ctx, &rng, jem__shape(40, 3, 24, 24), -1, 1);
    jem_sgld_desc walk = jem_sgld_desc_langevin(0.1f, 3);
    snprintf(r->title, sizeof r->title, "a large walk:");
    CHECK(jem_sgld(ctx, gauss, NULL, x, &walk, &rng) == JEM_OK, "%s", jem_error(ctx));
    record_tensor(r, "x", x, 0);
    jem_reset(ctx);
    jem_mlp_desc m = jem_mlp_desc_default();
    m.widths[0] = 256;
    m.widths[1] = 50;
    jem_train_desc d = short_training();
    d.sgld.steps = 1;
    use_net(r, "a large mlp", jem_mlp_create(ctx, &m, 7), &d);
    jem_convnet_desc c = jem_convnet_desc_default();   /* one group of samples, two of images */
    c.height = c.width = 16;
    c.layers = 3;
    use_net(r, "a large convnet", jem_convnet_create(ctx, &c, 7), &d);
}

/* ---- the fingerprint ------------------------------------------------------------------------- */

/* All parameters and buffers of two nets after three updates. No cosine and no sine of the C
   library is in it; of its pow, in Adam's correction, what is left after rounding to float. */
static uint64_t fingerprint(jem_ctx *ctx) {
    const jem_train_desc d = short_training();
    uint64_t h = 0;
    for (int i = 0; i < 2; i++) {
        int labels[IMAGES];
        jem_net *net = i ? small_wrn(ctx, JEM_NORM_BATCH, 8) : odd_convnet(ctx);
        jem_trainer *tr = jem_trainer_create(net, &d);
        float *x = images_for(net, labels);
        for (int step = 0; step < 3; step++)
            CHECK(jem_train_step(tr, x, labels, IMAGES).status == JEM_OK, "%s", jem_error(ctx));
        h = h * 31 + net_hash(net);
        free(x);
        jem_trainer_free(tr);
        jem_net_free(net);
    }
    return h;
}

/* If one changes, so do the numbers of everyone who trains: on purpose, or not at all. */
static const uint64_t known[] = {                  /* in the order of jem_precision */
    0xa6101f788a3c33eau, 0x84dc44e64af2ec2au, 0x6f931c0e282067cdu,
    0x675e25ee3cab1536u
};

static void test_fingerprint(void) {
    printf("fingerprint of three updates, %s\n", precision_name[precision]);
    setup s[8];
    const int n = precision == JEM_PRECISION_BF16 ? every_bf16(s) : every_isa(s);
    for (int i = 0; i < n; i++) {
        jem_ctx *ctx = open_setup(&s[i]);
        const uint64_t h = fingerprint(ctx);
        CHECK(h == known[precision], "%s: it is 0x%08x%08xu", s[i].name, (unsigned)(h >> 32),
              (unsigned)h);
        jem_ctx_free(ctx);
    }
}

/* ---- bf16 ------------------------------------------------------------------------------------ */

/* AMX's way through every convolution against that of plain C: the same products, added in another
   order. On three threads. */
static void test_tiles(void) {
#ifdef JEM__X86_BF16
    printf("convolutions on AMX tiles\n");
    const setup plain = setup_of(JEM_ISA_SCALAR, 1, 0), amx = setup_of(JEM_ISA_AVX512_BF16, 3, 0);
    jem__bf16 direct = jem__bf16_scalar;
    direct.twice = 0;
    jem_ctx *a = jem_ctx_create(&plain.desc);
    jem_ctx *b = jem_ctx_create(&amx.desc);
    a->bf16 = &direct;
    b->bf16 = &jem__bf16_amx;
    record ra, rb;
    memset(&ra, 0, sizeof ra);
    memset(&rb, 0, sizeof rb);
    convolutions(a, &ra);
    convolutions(b, &rb);
    CHECK(ra.count == rb.count && ra.n == rb.n, "%d and %d pieces", ra.count, rb.count);
    for (int i = 0; i < ra.count && ra.n == rb.n; i++) {
        const piece *p = ra.pieces + i;
        const double gap = largest_gap(rb.x + p->at, ra.x + p->at, p->n);
        CHECK(gap < 1e-5, "%s: off by %g", p->what, gap);
    }
    record_free(&ra);
    record_free(&rb);
    jem_net *na = small_wrn(a, JEM_NORM_NONE, 8);
    jem_net *nb = small_wrn(b, JEM_NORM_NONE, 8);
    int labels[IMAGES];
    float *x = images_for(na, labels);
    float *ga = floats(IMAGES * 192);
    float *gb = floats(IMAGES * 192);
    jem_tensor *ta = jem_input(a, x, IMAGES, 3, 8, 8);
    jem_tensor *tb = jem_input(b, x, IMAGES, 3, 8, 8);
    jem_grad(jem_logp(a, ta, na), ta);
    jem_grad(jem_logp(b, tb, nb), tb);
    jem_read_grad(ta, ga);
    jem_read_grad(tb, gb);
    const double gap = largest_gap(gb, ga, IMAGES * 192);    /* ties go either way */
    CHECK(gap < 0.02, "input gradient: off by %g", gap);
    free(x);
    free(ga);
    free(gb);
    jem_net_free(na);
    jem_net_free(nb);
    jem_ctx_free(a);
    jem_ctx_free(b);
#endif
}

/* Where bf16 is not to be had, it is JEM_PRECISION_FAST, and the log says so. */
static void remember(void *user, const char *message) { snprintf((char *)user, 99, "%s", message); }

static void test_fallback(void) {
    char said[100] = "";
    setup s = setup_of(jem_isa_available(JEM_ISA_AVX2) ? JEM_ISA_AVX2 : JEM_ISA_BEST, 1, 0);
    s.desc.log = remember;
    s.desc.user = said;
    jem_ctx *ctx = jem_ctx_create(&s.desc);
    CHECK(jem_ctx_precision(ctx) == JEM_PRECISION_FAST, "%d", jem_ctx_precision(ctx));
    CHECK(strstr(said, "bf16") && jem_ok(ctx), "it says '%s'", said);
    jem_ctx_free(ctx);
    s.desc.isa = JEM_ISA_BEST;
    said[0] = 0;
    ctx = jem_ctx_create(&s.desc);
    int pays = jem_isa_available(JEM_ISA_AVX512_BF16);
#if defined(__x86_64__) && defined(__GNUC__)
    if (__builtin_cpu_is("intel")) pays = jem_isa_available(JEM_ISA_AMX);
#endif
    CHECK((jem_ctx_precision(ctx) == JEM_PRECISION_BF16) == pays, "%s: %d",
          jem_isa_name(jem_ctx_isa(ctx)), jem_ctx_precision(ctx));
    CHECK(jem_ctx_precision(ctx) == JEM_PRECISION_BF16 || !jem_isa_available(JEM_ISA_AVX512_BF16) ||
          strstr(said, "without AMX"), "%s: it says '%s'", jem_isa_name(jem_ctx_isa(ctx)), said);
    CHECK((jem_ctx_precision(ctx) == JEM_PRECISION_BF16) == !said[0], "it says '%s'", said);
    jem_ctx_free(ctx);
    if (!jem_isa_available(JEM_ISA_AVX512_BF16)) return;
    s.desc.isa = JEM_ISA_AVX512_BF16;              /* also where fp32 is faster */
    ctx = jem_ctx_create(&s.desc);
    CHECK(jem_ctx_precision(ctx) == JEM_PRECISION_BF16, "%d", jem_ctx_precision(ctx));
    jem_ctx_free(ctx);
}

/* Creates network `kind`: a WRN with each norm, a convnet of odd sizes, one of full tiles. */
static jem_net *net_of_kind(jem_ctx *ctx, int kind) {
    if (kind > JEM_NORM_ACT + 1) return tiled_convnet(ctx);
    if (kind > JEM_NORM_ACT) return odd_convnet(ctx);
    return small_wrn(ctx, (jem_norm)kind, 8);
}

/* What travels from convolution to convolution in bf16 is what each would have made of fp32. */
static void test_bf16_buffers(void) {
    setup s[8];
    const int ways = every_only_bf16(s) > 1 ? 2 : 1;         /* plain C, and AVX-512 */
    for (int i = 0; i < ways * (JEM_NORM_ACT + 3); i++) {
        const int kind = i / ways;
        jem_ctx *ctx = open_setup(&s[i % ways]);
        jem_net *net = net_of_kind(ctx, kind);
        const ptrdiff_t n = (ptrdiff_t)IMAGES * net->channels * net->height * net->width;
        int labels[IMAGES];
        int count = 0;
        float *x = images_for(net, labels);
        float *with = floats(n);
        float *without = floats(n);
        jem_tensor *t = jem_input(ctx, x, IMAGES, net->channels, net->height, net->width);
        jem_grad(jem_logp(ctx, t, net), t);
        jem_read_grad(t, with);
        jem_tensor *y = jem_logp(ctx, t, net);
        for (int k = 0; k < ctx->n_nodes; k++) {
            count += ctx->nodes[k]->bf16_out && ctx->nodes[k]->bf16_grad;
            ctx->nodes[k]->bf16_out = ctx->nodes[k]->bf16_grad = 0;
        }
        jem_grad(y, t);
        jem_read_grad(t, without);
        CHECK(count > 0 && same_bits(with, without, n), "%s, net %d: off by %g (%d convolutions)",
              s[i % ways].name, kind, largest_gap(with, without, n), count);
        free(x);
        free(with);
        free(without);
        jem_net_free(net);
        jem_ctx_free(ctx);
    }
}

/* Beside an image in bf16 are two columns of zeros: what looks no further is done in bf16, the rest
   in fp32. */
static void test_bf16_choice(void) {
    jem_rng rng = jem_rng_seed(9);
    setup ways[8];
    every_only_bf16(ways);
    for (int k = 1; k <= 7; k += 2)
        for (int stride = 1; stride <= 2; stride++) {
            jem_ctx *ctx = open_setup(&ways[0]);
            conv_shape s;
            s.n = s.ci = s.co = 16;
            s.h = s.w = 8;
            s.blocks = 0;
            s.k = k;
            s.stride = stride;
            s.pad = k / 2;
            const conv_run c = conv_make(ctx, &rng, s);
            const jem__node *n = c.y->node;
            CHECK(n->bf16_out == (k <= 5), CONV_TEXT ": forward", CONV_ARGS(s));
            CHECK(n->bf16_grad == (k <= 5 || stride == 2), CONV_TEXT ": back", CONV_ARGS(s));
            jem_net_free(c.bag);
            jem_ctx_free(ctx);
        }
}

/* As many parts as a phase of the gradient has rows, and one more than the next phase has: that one
   is in parts of channels, each of all rows. */
static void test_bf16_parts(void) {
    printf("bf16: phases in other parts than the one before\n");
    static const struct { int k, pad, side, threads; } how[] = {
        { 3, 1, 11, 6 }, { 3, 1, 15, 8 }, { 2, 0, 7, 4 }, { 4, 1, 13, 7 }
    };
    enum { MOST = 2 * 16 * 15 * 15 };
    static float dx[2][MOST];
    setup ways[8];
    const int n = every_only_bf16(ways);
    for (int i = 0; i < 4 * n; i++) {
        conv_shape s;
        s.n = 2;
        s.ci = s.co = 16;
        s.h = s.w = how[i % 4].side;
        s.blocks = 0;
        s.k = how[i % 4].k;
        s.stride = 2;
        s.pad = how[i % 4].pad;
        for (int t = 0; t < 2; t++) {
            setup way = ways[i / 4];
            way.desc.threads = t ? how[i % 4].threads : 1;
            jem_ctx *ctx = open_setup(&way);
            jem_rng rng = jem_rng_seed(3);
            const conv_run c = conv_make(ctx, &rng, s);
            CHECK(jem_read_grad(c.x, dx[t]) == JEM_OK, "%s", jem_error(ctx));
            jem_net_free(c.bag);
            jem_ctx_free(ctx);
        }
        CHECK(same_bits(dx[0], dx[1], 2 * 16 * s.h * s.w), CONV_TEXT ", %d threads", CONV_ARGS(s),
              how[i % 4].threads);
    }
}

/* SiLU and its gradient are 0 where they would be so small that products become subnormal, which
   Intel's processors multiply many times more slowly. */
static void test_subnormal(jem_ctx *ctx) {
    enum { N = 300, CUT = 60 };
    float x[N], y0[N], dx[N];
    for (int i = 0; i < N; i++) x[i] = -.5f * (float)i;
    jem_tensor *t = jem_input(ctx, x, 1, N, 1, 1);
    jem_tensor *silu = jem_silu(ctx, t);
    jem_tensor *y = jem_sum(ctx, silu);
    CHECK(jem_grad(y, t) == JEM_OK && jem_read_grad(t, dx) == JEM_OK, "%s", jem_error(ctx));
    CHECK(jem_read(silu, y0) == JEM_OK, "%s", jem_error(ctx));
    CHECK(dx[0] == .5f && dx[CUT] < 0, "at 0 and -30: %g, %g", (double)dx[0], (double)dx[CUT]);
    CHECK_CLOSE(y0[CUT] / (-30 * exp(-30)), 1, 1e-5, "at -30");
    for (int i = CUT + 1; i < N; i++)
        CHECK(dx[i] == 0 && y0[i] == 0, "of %g: %g, %g", (double)x[i], (double)y0[i],
              (double)dx[i]);
}

/* A NaN of any bits stays one; rows so wide that what is counted of them is no int. */
static void test_far_out(void) {
    printf("every NaN; subnormal numbers; very wide rows\n");
    static const uint32_t bits[] = { 0x7fc00000, 0x7fc00001, 0x7fc12345, 0xffffffff, 0x7f800123 };
    for (int isa = 0; isa < 8; isa++) {
        jem_ctx_desc desc;
        memset(&desc, 0, sizeof desc);
        desc.isa = (jem_isa)isa;
        desc.threads = 1;
        jem_ctx *ctx = jem_ctx_create(&desc);
        for (int i = 0; ctx && i < (int)(sizeof bits / sizeof *bits); i++) {
            float x[3] = { 1, 2, 0 };
            float y[3];
            memcpy(x + 2, bits + i, sizeof bits[i]);
            jem_tensor *t = jem_input(ctx, x, 1, 3, 1, 1);
            jem_tensor *all[4] = { jem_exp(ctx, t), jem_tanh(ctx, t), jem_sigmoid(ctx, t),
                                   jem_logsumexp(ctx, t) };
            for (int k = 0; k < 4; k++) {
                CHECK(jem_read(all[k], y) == JEM_OK, "%s", jem_error(ctx));
                CHECK(y[k < 3 ? 2 : 0] != y[k < 3 ? 2 : 0], "isa %d: way %d of %08x", isa, k,
                      (unsigned)bits[i]);
            }
        }
        if (ctx) test_subnormal(ctx);
        jem_ctx_free(ctx);
    }
    jem_ctx *ctx = jem_ctx_create(NULL);
    jem_net *bag = bag_create(ctx);
    jem_rng rng = jem_rng_seed(2);
    jem_param *w = random_param(bag, &rng, 1, 4, 1, 1, 2, 1, 1);
    jem_conv_desc d;
    d.stride = 64;
    d.pad = 1;
    const int shape[4] = { 1, 1, 1, 262080 };      /* 64 of these and 4096 are 2^24 */
    jem_tensor *y = jem_conv2d(ctx, jem_zeros(ctx, shape[0], shape[1], shape[2], shape[3]), w, NULL,
                               d);
    CHECK(jem_backward(jem_mean(ctx, y)) == JEM_OK, "%s", jem_error(ctx));
    jem_net_free(bag);
    jem_ctx_free(ctx);
}

/* The methods of a convolution's output, input gradient and weight gradient. */
static void choose(jem_ctx *ctx, conv_shape s, jem__conv *q) {
    memset(q, 0, 3 * sizeof *q);
    for (int i = 0; i < 3; i++) {
        q[i].ci = s.ci;
        q[i].co = s.co;
        q[i].k = s.k;
        q[i].stride = s.stride;
        q[i].pad = s.pad;
        q[i].hi = s.h;
        q[i].wi = s.w;
        q[i].ho = (s.h + 2 * s.pad - s.k) / s.stride + 1;
        q[i].wo = (s.w + 2 * s.pad - s.k) / s.stride + 1;
    }
    jem__conv_choose(ctx, q);
}

/* Moments without gradients end at 0, and not at subnormal numbers, which are slow. */
static void test_moments_end(void) {
    static const jem_isa isas[2] = { JEM_ISA_SCALAR, JEM_ISA_BEST };
    enum { N = JEM_LANES };
    for (int k = 0; k < 2; k++) {
        jem_ctx *ctx = isa_ctx(isas[k], 1);
        const jem__update u = { 0.9f, 0.9f, 1e-8f, 0.9f, 0, 0.01f, 1 };
        float p[N] = { 0 };
        float g[N] = { 0 };
        float m[2][N] = { { 0 } };
        float v[N] = { 0 };
        int ended = 1;
        for (int i = 0; i < N; i++) m[0][i] = m[1][i] = i % 2 ? 1.0f : -1.0f;
        for (int i = 0; i < N; i++) v[i] = 1;
        for (int i = 0; i < 1500; i++) {
            ctx->k->adam(p, g, m[0], v, N, &u);
            ctx->k->sgd(p, g, m[1], N, &u);
            for (int j = 0; j < N; j++) {
                CHECK(v[j] == 0 || v[j] > 1e-38f, "update %d: %g", i, (double)v[j]);
                CHECK(m[0][j] == 0 || fabsf(m[0][j]) > 9e-31f, "update %d", i);
                CHECK(m[1][j] == 0 || fabsf(m[1][j]) > 9e-31f, "update %d", i);
            }
        }
        for (int i = 0; i < N; i++) ended &= m[0][i] == 0 && m[1][i] == 0 && v[i] == 0;
        CHECK(ended, "%s: moments remain", jem_isa_name(jem_ctx_isa(ctx)));
        v[3] = -1;                                 /* a corrupt one is not hidden */
        ctx->k->adam(p, g, m[0], v, N, &u);
        CHECK(isnan(p[3]) && !isnan(p[2]), "%s: %g", jem_isa_name(jem_ctx_isa(ctx)), (double)p[3]);
        jem_ctx_free(ctx);
    }
}

/* Winograd's weight gradient is for 3x3 and more than 32 channels on both sides: other ways, other
   bits. */
static void test_weight_choice(void) {
    jem_ctx_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.precision = JEM_PRECISION_FAST;
    jem_ctx *ctx = jem_ctx_create(&desc);
    for (int stride = 1; stride <= 2; stride++)
        for (int ci = 32; ci <= 33; ci++)
            for (int co = 32; co <= 33; co++) {
                const int side = 8 * stride;
                const conv_shape s = { 1, ci, co, side, side, 2 + stride, stride, 1, 0 };
                jem__conv q[3];
                choose(ctx, s, q);
                CHECK(q[0].tile == 4 && q[0].method == ctx->k->winograd, "the output");
                CHECK((q[2].method == ctx->k->winograd) == (stride == 1 && ci > 32 && co > 32),
                      "%d to %d, stride %d", ci, co, stride);
            }
    jem_ctx_free(ctx);
}

/* All kinds of Winograd are among the shapes that are compared: F(2,2) to F(4,3), with phases and
   without. */
static void test_kinds(void) {
    int count[2][2][2] = { { { 0 } } };            /* [r - 2][M/2 - 1][phases] */
    for (int fast = 0; fast < 2; fast++) {
        jem_ctx_desc desc;
        memset(&desc, 0, sizeof desc);
        if (fast) desc.precision = JEM_PRECISION_FAST;
        jem_ctx *ctx = jem_ctx_create(&desc);
        jem_rng rng = jem_rng_seed(5);
        for (int i = 0; i < CONVOLUTIONS; i++) {
            const conv_shape s = conv_shape_at(i, &rng);
            jem__conv q[3];
            jem_net_free(conv_make(ctx, &rng, s).bag);         /* draws as `convolutions` does */
            jem_reset(ctx);
            choose(ctx, s, q);
            if (!q[0].tile || s.blocks) continue;
            count[s.k / s.stride - 2][q[0].tile / 2 - 1][s.stride > 1]++;
        }
        jem_ctx_free(ctx);
    }
    for (int r = 0; r < 2; r++)
        for (int m = 0; m < 2; m++)
            for (int phases = 0; phases < 2; phases++)
                CHECK(count[r][m][phases] > 0, "F(%d,%d)%s", 2 * m + 2, r + 2,
                      phases ? " with phases" : "");
}

#ifdef OWN_TILES
static int test_own_tiles(void);                   /* in test_amx.c, in place of all that follows */
#endif

/* All that does not depend on the precision. */
static void compare_kernels(void) {
    compare("elementwise kernels", direct_maps, every_isa);
    compare("pairs and dot products", direct_pairs, every_isa);
    compare("lanes moved along", direct_shifts, every_isa);
    compare("logsumexp, pooling, norms", direct_reductions, every_isa);
    compare("fills, Langevin, Adam, SGD", direct_updates, every_isa);
    compare("convolutions on threads", convolutions, every_order);
    compare("networks and training on threads", networks, every_order);
    compare("large walks and updates on threads", large, every_order);
    if (test_all()) CHECK(backwards_calls > 0, "the context's parallel_for is called");
}

static void compare_bf16(void) {
    compare("networks and training", networks, every_bf16);
    compare("convolutions, all in bf16", convolutions, every_only_bf16);
    compare("networks and training, all in bf16", networks, every_only_bf16);
    if (test_wants("test_tiles")) test_tiles();
}

int main(int argc, char **argv) {
    static const test_case values[] = { TEST(test_conv_values), TEST(test_fingerprint) };
    static const test_case in_bf16[] = {
        TEST(test_bf16_buffers), TEST(test_bf16_choice), TEST(test_bf16_parts),
        TEST(test_weight_choice), TEST(test_moments_end), TEST(test_kinds), TEST(test_far_out),
        TEST(test_fallback)
    };
    test_begin(argc, argv);
#ifdef OWN_TILES
    if (precision == JEM_PRECISION_EXACT) return test_own_tiles();
#endif
    /* WebAssembly: with simd128, plain C is only what it is compared with; without, its values and
       fingerprints are tested, and no more, since it is slow. */
    const int wasm = jem_isa_available(JEM_ISA_WASM);
    const int last = wasm ? JEM_PRECISION_DIRECT : JEM_PRECISION_BF16;
    jem_ctx *best = jem_ctx_create(NULL);
    check_isa(best);
    jem_ctx_free(best);
#ifdef __wasm__
    const int alone = !wasm;
#else
    const int alone = 0;
#endif
    if (!alone) compare_kernels();
    for (int i = JEM_PRECISION_EXACT; i <= last; i++) {
        precision = (jem_precision)i;
        if (!alone && i != JEM_PRECISION_BF16) compare("convolutions", convolutions, every_isa);
        if (!alone && i < JEM_PRECISION_DIRECT)
            compare("networks and training", networks, every_isa);
        test_run(values, wasm ? 1 : 2, NULL);
    }
    precision = JEM_PRECISION_BF16;
    if (jem_isa_available(JEM_ISA_AVX512_BF16)) compare_bf16();
    test_run(in_bf16, TEST_COUNT(in_bf16), NULL);
    return test_report();
}
