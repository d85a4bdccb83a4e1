/* make bench: the speed of each part of jem.h on this machine, compared with the peak of the
   processor. Prints a table, and writes build/bench.csv for programs.

       build/bench [--quick] [--batch N] [--isa NAME] [--net wrn-DEPTH-WIDEN] [--curve] [--out FILE]

   --quick     some layers, little repetition: under 20 seconds
   --batch N   images per layer (64): each group of 16 has separate memory, so 64 images read from
               the last-level cache, and 16 from a closer one
   --isa NAME  only this one; `scalar`, which is very slow, runs only with this option
   --net NAME  only an SGLD step and an update of this network, on --batch images and chains
   --curve     only the time of n = 1 .. 17 images, beside n/16 of sixteen and n single ones

   The precisions are jem.h's: if possible, `exact` runs Winograd with M = 2, `fast` with M = 4.
   A layer's GFLOP/s count the operations of the direct convolution, taps in the padding included,
   so Winograd can exceed the peak, and so can direct, which skips those taps. Packing the
   weights is not in the time, since an SGLD chain packs once. One thread, the best of several. */
#if !defined(_POSIX_C_SOURCE)
#define _POSIX_C_SOURCE 200112L                    /* clock_gettime */
#endif
#define JEM_IMPLEMENTATION
#include "jem.h"
#include "tools/support/bench.h"

static double patience = 0.06;                     /* seconds */
static double enough = 1e9;                        /* seconds: until then 3 runs, after it 1 */
static int quick;
static int batch = 64;
static FILE *csv;
static int failed;                                 /* exit status */

/* Many parameters: the columns of the file. */
static void csv_row(const char *kind, const char *name, const char *pass, jem_isa isa,
                    const char *how, int threads, double value, const char *unit, double share) {
    fprintf(csv, "%s,%s,%s,%s,%s,%d,%.6g,%s,", kind, name, pass, jem_isa_name(isa), how, threads,
            value, unit);
    if (share > 0) fprintf(csv, "%.4f", share);
    fprintf(csv, "\n");
    fflush(csv);
}

static double (*clock_now)(void) = bench_now;
/* Returns seconds of processor time: other programs hardly change it. */
static double processor_now(void) { return (double)clock() / CLOCKS_PER_SEC; }

/* Returns the seconds of one call, the best of several after an untimed one. */
static double best_of(void (*work)(void *), void *arg) {
    double best = 1e30;
    double spent = 0;
    work(arg);
    for (int runs = 0; spent < patience || (runs < 3 && spent < enough); runs++) {
        const double start = clock_now();
        work(arg);
        const double t = clock_now() - start;
        if (t < best) best = t;
        spent += t;
    }
    return best;
}

/* ---- the peak: independent multiply-adds in registers ---------------------------------------- */

static volatile float peak_a = 1, peak_b = 0;      /* unknown to the compiler */
enum { PEAK_CHAINS = 12, PEAK_TIMES = 200000 };

#define PEAK(name, target, vector, width, set, fma, store)                                         \
    target static void name(void *flops) {                                                         \
        const vector a = set(peak_a), b = set(peak_b);                                             \
        vector v[PEAK_CHAINS];                                                                     \
        float out[PEAK_CHAINS * (width)];                                                          \
        JEM__UNROLL for (int i = 0; i < PEAK_CHAINS; i++) v[i] = set((float)i);                    \
        for (int t = 0; t < PEAK_TIMES; t++)                                                       \
            JEM__UNROLL for (int i = 0; i < PEAK_CHAINS; i++) v[i] = fma(v[i], a, b);              \
        for (int i = 0; i < PEAK_CHAINS; i++) store(out + i * (width), v[i]);                      \
        for (int i = 0; i < PEAK_CHAINS * (width); i++) peak_b = peak_b + out[i] * 0;              \
        *(double *)flops = 2.0 * PEAK_CHAINS * PEAK_TIMES * (width);                               \
    }
#define PEAK_ITSELF(x) (x)
#define PEAK_STORE(p, x) (*(p) = (x))
PEAK(peak_scalar, , float, 1, PEAK_ITSELF, fmaf, PEAK_STORE)
#ifdef JEM__X86
PEAK(peak_avx2, __attribute__((target("avx2,fma"))), __m256, 8, _mm256_set1_ps, _mm256_fmadd_ps,
     _mm256_storeu_ps)
PEAK(peak_avx512, __attribute__((target("avx512f"))), __m512, 16, _mm512_set1_ps, _mm512_fmadd_ps,
     _mm512_storeu_ps)
#endif
#ifdef JEM__ARM
#define PEAK_NEON(a, b, c) vfmaq_f32(c, a, b)
PEAK(peak_neon, , float32x4_t, 4, vdupq_n_f32, PEAK_NEON, vst1q_f32)
#endif

/* Measures the basic step of bf16, on operands in the first cache: comparable to a peak. */
static const jem__bf16 *bf16_step;
static void peak_bf16(void *flops) {
    static uint16_t a[32 * 512], b[16 * 512];
    static float c[4 * JEM__BF16_TILE];
    jem__bf16_block s;
    memset(&s, 0, sizeof s);
    s.m = s.n = 2;
    s.add = s.runs = 1;
    s.pairs = 64;
    s.a2 = 16 * 512;
    s.c = c;
    s.a[0] = a;
    s.b[0][0] = b;
    s.b[0][1] = b + 512;
    if (bf16_step->begin) bf16_step->begin();
    for (int t = 0; t < PEAK_TIMES / 64; t++) bf16_step->block(&s, NULL);
    if (bf16_step->end) bf16_step->end();
    *(double *)flops = 2.0 * 4 * 16 * 16 * 128 * (PEAK_TIMES / 64);
}

static double peak_of(jem_isa isa) {               /* GFLOP/s of one thread */
    void (*work)(void *) = peak_scalar;
    double flops = 0;
    if (isa == JEM_ISA_AVX512_BF16 || isa == JEM_ISA_AMX) {
        bf16_step = jem__bf16_for(isa);
        work = peak_bf16;
    }
    (void)isa;                                     /* of the scalar code alone */
#ifdef JEM__X86
    if (isa == JEM_ISA_AVX2) work = peak_avx2;
    if (isa == JEM_ISA_AVX512) work = peak_avx512;
#endif
#ifdef JEM__ARM
    if (isa == JEM_ISA_NEON) work = peak_neon;
#endif
    const double t = best_of(work, &flops);
    return flops / t * 1e-9;
}

/* ---- layers ---------------------------------------------------------------------------------- */

typedef struct layer {
    int ci, size, co, k, stride, pad;
    int always;                                    /* also with --quick */
    const char *where;
} layer;

static const layer layers[] = {
    { 3, 32, 16, 3, 1, 1, 1, "WRN stem" },
    { 16, 32, 16, 3, 1, 1, 1, "WRN-n-1" },
    { 32, 16, 32, 3, 1, 1, 1, "WRN-n-1" },
    { 64, 8, 64, 3, 1, 1, 0, "WRN-n-1" },
    { 16, 32, 32, 3, 1, 1, 0, "WRN-n-2" },
    { 32, 32, 32, 3, 1, 1, 1, "WRN-n-2" },
    { 32, 32, 64, 3, 1, 1, 0, "WRN-n-2" },
    { 64, 32, 64, 3, 2, 1, 1, "WRN-n-2" },
    { 64, 16, 64, 3, 1, 1, 1, "WRN-n-2" },
    { 64, 16, 128, 3, 1, 1, 0, "WRN-n-2" },
    { 128, 16, 128, 3, 2, 1, 0, "WRN-n-2" },
    { 128, 8, 128, 3, 1, 1, 1, "WRN-n-2" },
    { 16, 32, 32, 1, 1, 0, 1, "shortcut" },
    { 32, 32, 64, 1, 2, 0, 1, "shortcut" },
    { 64, 16, 128, 1, 2, 0, 0, "shortcut" },
    { 160, 32, 160, 3, 1, 1, 0, "WRN-n-10" },
    { 320, 16, 320, 3, 1, 1, 0, "WRN-n-10" },
    { 640, 8, 640, 3, 1, 1, 0, "WRN-n-10" },
    { 1, 28, 16, 3, 1, 1, 1, "demo" },
    { 16, 28, 32, 4, 2, 1, 1, "demo" },
    { 32, 14, 64, 4, 2, 1, 1, "demo" },
    { 64, 7, 64, 4, 2, 1, 1, "demo" },
    { 32, 32, 96, 4, 2, 1, 0, "cifar10" },
    { 96, 16, 192, 4, 2, 1, 0, "cifar10" },
    { 192, 8, 256, 4, 2, 1, 0, "cifar10" }
};

/* Returns the rows of its output. */
static int out_side(const layer *l) { return (l->size + 2 * l->pad - l->k) / l->stride + 1; }

/* A convolution on the tape, whose three passes are called here as the tape calls them: with memory
   for all groups, and nothing else. */
typedef struct conv {
    jem_ctx *ctx;
    jem_net *net;
    jem_param *w, *b;
    jem__node *x, *y;
    jem__run run;
    jem__step *step;                               /* of y */
} conv;

static float *floats(jem_ctx *ctx, jem_rng *rng, ptrdiff_t n, float size) {
    const ptrdiff_t whole = (n + 31) / 32 * 32;
    float *x = (float *)jem__push(ctx, (size_t)whole * sizeof *x);
    if (!x) {
        fprintf(stderr, "%s\n", jem_error(ctx));
        exit(1);
    }
    jem_fill_uniform(ctx, rng, x, whole, -size, size);
    return x;
}

static int bf16_alone;                             /* 1: bf16 also where it uses Winograd in fp32 */

static void conv_open(conv *c, const layer *l, jem_isa isa, jem_precision precision, int images) {
    jem_rng rng = jem_rng_seed(1);
    jem_ctx_desc d;
    memset(c, 0, sizeof *c);
    memset(&d, 0, sizeof d);
    d.isa = precision == JEM_PRECISION_BF16 ? bench_bf16(isa) : isa;
    d.precision = precision;
    d.threads = 1;
    c->ctx = jem_ctx_create(&d);
    if (bf16_alone && c->ctx && c->ctx->bf16) {
        static jem__bf16 alone;
        alone = *c->ctx->bf16;
        alone.twice = 0;
        c->ctx->bf16 = &alone;
    }
    c->net = jem_net_create(c->ctx, NULL, NULL, 0, l->ci, l->size, l->size, 1, 1);
    if (!c->net) exit(1);
    const jem_layer made = jem_conv_layer(c->net, "c", l->ci, l->co, l->k, l->stride, l->pad);
    jem_tensor *x = jem_zeros(c->ctx, images, l->ci, l->size, l->size);
    jem_tensor *y = jem_apply(&made, x, 0);
    if (!y) {
        fprintf(stderr, "%s\n", jem_error(c->ctx));
        exit(1);
    }
    c->w = made.weight;
    c->b = made.bias;
    c->x = x->node;
    c->y = y->node;
    jem_fill_normal(c->ctx, &rng, c->x->value, c->x->groups * c->x->group_floats, 0, 1);
    const ptrdiff_t nx = c->x->groups * c->x->group_floats;
    const ptrdiff_t ny = c->y->groups * c->y->group_floats;
    c->run.ctx = c->ctx;
    c->run.mode = JEM__BACKWARD;
    c->run.parts = c->run.work.slots = 1;
    jem__mark_steps(&c->run, c->y, NULL);
    c->step = c->run.target;
    c->step->needs = c->step->in[0]->needs = 1;
    c->step->in[0]->value = jem__all_groups(c->x, c->x->value);
    c->step->in[0]->grad = jem__all_groups(c->x, floats(c->ctx, &rng, nx, 1));
    c->step->value = jem__all_groups(c->y, floats(c->ctx, &rng, ny, 1));
    c->step->grad = jem__all_groups(c->y, floats(c->ctx, &rng, ny, 1));
    c->run.work.at = floats(c->ctx, &rng, c->y->work + 1, 1);
    if (jem__list_steps(&c->run) != JEM_OK) exit(1); /* packs */
}
static void conv_close(conv *c) {
    jem_net_free(c->net);
    jem_ctx_free(c->ctx);
}
static void conv_output(void *arg) {
    const conv *c = (const conv *)arg;
    for (int g = 0; g < c->y->groups; g++) jem__step_forward(&c->run, c->step, g);
}
static void conv_input_gradient(void *arg) {
    const conv *c = (const conv *)arg;
    for (int g = 0; g < c->y->groups; g++) jem__step_backward(&c->run, c->step, g);
}
static void conv_weight_gradient(void *arg) {
    const conv *c = (const conv *)arg;
    jem__step_params(&c->run, c->step);
}

enum { OUTPUT, INPUT_GRADIENT, WEIGHT_GRADIENT, PASSES };
static const char *const passes[PASSES] = { "output", "input gradient", "weight gradient" };
static void (*const pass_of[PASSES])(void *) = {
    conv_output, conv_input_gradient, conv_weight_gradient
};

static int takes_winograd(const layer *l) {
    return (l->k == 2 * l->stride || l->k == 3 * l->stride) && l->ci >= 8 && l->co >= 8;
}

/* Returns 1 if no earlier precision does the same. */
static int is_new(const conv *c, const layer *l, jem_precision precision, int pass) {
    const jem__conv_user *u = (const jem__conv_user *)c->y->user;
    if (precision == JEM_PRECISION_BF16) {
        const jem__conv *of_pass[PASSES] = { &u->out, &u->grad, &u->weights };
        return of_pass[pass]->method->bf16;
    }
    const int winograd = takes_winograd(l);
    if (precision == JEM_PRECISION_EXACT) return winograd && pass != WEIGHT_GRADIENT;
    return precision != JEM_PRECISION_FAST ||
           (winograd && (pass != WEIGHT_GRADIENT || (l->k == 3 && l->ci > 32 && l->co > 32)));
}

static void layer_name(const layer *l, char *name, size_t size) {
    snprintf(name, size, "%d>%d %dx%d k%d s%d", l->ci, l->co, l->size, l->size, l->k, l->stride);
}

static void bench_layer(jem_isa isa, const layer *l, double peak, double bf16_peak) {
    const int out = out_side(l);
    const int images = l->ci >= 160 && batch > 16 ? 16 : batch;        /* those run 16 chains */
    const double flops = 2e-9 * l->ci * l->co * l->k * l->k * out * out * images;
    char name[64];
    char row[PASSES][160] = { "", "", "" };
    layer_name(l, name, sizeof name);
    for (const struct bench_precision *p = bench_precisions; p->name; p++) {
        conv c;
        conv_open(&c, l, isa, p->precision, images);
        for (int pass = 0; pass < PASSES; pass++) {
            const size_t at = strlen(row[pass]);
            if (!is_new(&c, l, p->precision, pass)) {
                snprintf(row[pass] + at, sizeof row[pass] - at, "%12s", "");
                continue;
            }
            const double rate = flops / best_of(pass_of[pass], &c);
            const double share = rate / (p->precision == JEM_PRECISION_BF16 ? bf16_peak : peak);
            snprintf(row[pass] + at, sizeof row[pass] - at, " %6.1f %3.0f%%", rate, 100 * share);
            csv_row("layer", name, passes[pass], jem_ctx_isa(c.ctx), p->name, 1, rate, "GFLOP/s",
                    share);
        }
        conv_close(&c);
    }
    printf("%-20s %-8s %-6s |%s |%s |%s\n", name, l->where, jem_isa_name(isa), row[OUTPUT],
           row[INPUT_GRADIENT], row[WEIGHT_GRADIENT]);
    fflush(stdout);
}

/* ---- exactness ------------------------------------------------------------------------------- */

/* Returns the row that tap k of row y reads, or -1: of x, or of dy for an input gradient. */
static int row_read(const layer *l, int gradient, int y, int k) {
    int row = y * l->stride + k - l->pad;
    int rows = l->size;
    if (gradient) {
        row = y + l->pad - k;
        rows = out_side(l);
        if (row % l->stride != 0) return -1;
        row /= l->stride;
    }
    return row < rows ? row : -1;
}

/* Computes one group of a convolution as plain loops in double; in and out are lanes. */
static void in_double(const layer *l, int gradient, const float *in, const float *w, const float *b,
                      double *out) {
    const int side = gradient ? l->size : out_side(l);
    const int from = gradient ? out_side(l) : l->size;
    const int ci = gradient ? l->co : l->ci;
    const int co = gradient ? l->ci : l->co;
    const int taps = l->k * l->k;
    for (int p = 0; p < side * side; p++)
        for (int o = 0; o < co; o++, out += JEM_LANES) {
            for (int i = 0; i < JEM_LANES; i++) out[i] = gradient ? 0 : (double)b[o];
            for (int t = 0; t < taps; t++) {
                const int y = row_read(l, gradient, p / side, t / l->k);
                const int x = row_read(l, gradient, p % side, t % l->k);
                if (y < 0 || x < 0) continue;
                for (int c = 0; c < ci; c++) {
                    const double f = (double)w[(gradient ? c * co + o : o * ci + c) * taps + t];
                    const float *v = in + ((ptrdiff_t)(y * from + x) * ci + c) * JEM_LANES;
                    for (int i = 0; i < JEM_LANES; i++) out[i] += f * (double)v[i];
                }
            }
        }
}

static void bench_error(jem_isa isa, const layer *l) {
    const ptrdiff_t numbers[2] = { (ptrdiff_t)l->co * out_side(l) * out_side(l) * JEM_LANES,
                                   (ptrdiff_t)l->ci * l->size * l->size * JEM_LANES };
    const ptrdiff_t most = numbers[0] > numbers[1] ? numbers[0] : numbers[1];
    double *right = (double *)malloc((size_t)most * sizeof *right);
    char name[64];
    layer_name(l, name, sizeof name);
    if (!right) return;
    printf("%-36s |", name);
    for (int gradient = 0; gradient < 2; gradient++) {
        const ptrdiff_t n = numbers[gradient];
        for (const struct bench_precision *p = bench_precisions; p->name; p++) {
            double worst = 0;
            double sum = 0;
            conv c;
            conv_open(&c, l, isa, p->precision, JEM_LANES);
            jem_rng rng = jem_rng_seed(5);
            jem_fill_normal(c.ctx, &rng, c.step->grad.at, numbers[0], 0, 1);
            const float *in = gradient ? c.step->grad.at : c.x->value;
            in_double(l, gradient, in, c.w->value, c.b->value, right);
            pass_of[gradient](&c);
            const float *got = gradient ? c.step->in[0]->grad.at : c.step->value.at;
            for (ptrdiff_t i = 0; i < n; i++) {
                worst = fmax(worst, fabs((double)got[i] - right[i]));
                sum += right[i] * right[i];
            }
            worst /= sqrt(sum / (double)n);
            printf("     %7.1e", worst);
            csv_row("error", name, passes[gradient], isa, p->name, 1, worst, "max/rms", 0);
            conv_close(&c);
        }
        printf(" |");
    }
    printf("\n");
    free(right);
}

/* ---- the rest of an iteration ---------------------------------------------------------------- */

enum { IMAGES = 64, IMAGE = 3 * 32 * 32, PIECES = IMAGES * IMAGE };
enum { PHOTO_WIDTH = 1920, PHOTO_HEIGHT = 1080 };

typedef struct piece {
    jem_ctx *ctx;
    jem_rng rng;
    float *x, *y, *slopes;
    jem_tensor *leaf;
    jem_buffer *buffer;
    int slot[IMAGES];
    subject *s;
    jem_optim *muon;
    jem_net *digits;                               /* takes grey images, in a frame */
    unsigned char *photo, *sheet;                  /* RGB: noise; a black square on paper */
} piece;

static void piece_normal(void *arg) {
    piece *p = (piece *)arg;
    jem_fill_normal(p->ctx, &p->rng, p->x, PIECES, 0, 1);
}
static void piece_silu(void *arg) {
    piece *p = (piece *)arg;
    p->ctx->k->map(JEM__MAP_SILU, 1, p->x, p->y, p->slopes, IMAGE);
}
static void piece_write(void *arg) { jem_write(((piece *)arg)->leaf, ((piece *)arg)->x); }
static void piece_read(void *arg) { jem_read(((piece *)arg)->leaf, ((piece *)arg)->y); }
static void piece_buffer(void *arg) {
    piece *p = (piece *)arg;
    jem_buffer_draw(p->buffer, &p->rng, IMAGES, NULL, .05f, p->x, p->slot);
    jem_buffer_put(p->buffer, IMAGES, p->slot, p->x);
}
static void piece_optim(void *arg) { jem_optim_step(((piece *)arg)->s->optim, 1e-6f, NULL); }
static void piece_muon(void *arg) { jem_optim_step(((piece *)arg)->muon, 1e-6f, NULL); }
static void piece_photo(void *arg) {
    piece *p = (piece *)arg;
    jem_pixels_to_floats(p->s->net, p->photo, PHOTO_WIDTH, PHOTO_HEIGHT, 3, NULL, p->x, NULL);
}
static void piece_framed(void *arg) {
    piece *p = (piece *)arg;
    jem_pixels_desc d;
    memset(&d, 0, sizeof d);
    d.subject = .7f;
    jem_pixels_to_floats(p->digits, p->sheet, PHOTO_WIDTH, PHOTO_HEIGHT, 3, &d, p->x, NULL);
}

/* Creates the optimisers, and gradients for them. */
static void pieces_optim(piece *p) {
    jem_net *net = p->s->net;
    jem_optim_desc muon = jem_optim_desc_default();
    muon.kind = JEM_OPTIMIZER_MUON;
    p->s->optim = jem_optim_create(net, NULL);
    p->muon = jem_optim_create(net, &muon);
    for (jem_param *q = net->params; q; q = q->next)
        if (q->grad) jem_fill_normal(p->ctx, &p->rng, q->grad, q->size, 0, 1);
}

/* Creates the pictures, and the network of the framed one. Returns 0 if memory runs out. */
static int pieces_pictures(piece *p) {
    const size_t bytes = (size_t)PHOTO_WIDTH * PHOTO_HEIGHT * 3;
    enum { SIDE = 600, TOP = 200, LEFT = 700 };
    jem_mlp_desc shape = jem_mlp_desc_default();
    shape.height = 28;
    shape.width = 28;
    p->digits = jem_mlp_create(p->ctx, &shape, 1);
    p->photo = (unsigned char *)malloc(bytes);
    p->sheet = (unsigned char *)malloc(bytes);
    if (!p->digits || !p->photo || !p->sheet) return 0;
    for (size_t i = 0; i < bytes; i++) {
        p->photo[i] = jem_rng_u32(&p->rng) & 255;
        p->sheet[i] = (unsigned char)(200 + p->photo[i] % 16);
    }
    for (int row = TOP; row < TOP + SIDE; row++)
        memset(p->sheet + 3 * ((ptrdiff_t)row * PHOTO_WIDTH + LEFT), 20, 3 * SIDE);
    return 1;
}

static void bench_pieces(jem_isa isa) {
    static const struct {
        const char *name, *unit;
        void (*work)(void *);
        double scale;                              /* of a time; below 0: of its inverse */
        int digits;
    } all[] = {
        { "normal deviates", "million/s", piece_normal, -1e-6 * PIECES, 0 },
        { "SiLU and its slope", "ns", piece_silu, 1e9 / IMAGE, 3 },
        { "64 images to lanes", "ms", piece_write, 1e3, 3 },
        { "64 images from lanes", "ms", piece_read, 1e3, 3 },
        { "buffer: 64 out and in", "ms", piece_buffer, 1e3, 3 },
        { "Adam WRN-16-2", "ms", piece_optim, 1e3, 3 },
        { "Muon WRN-16-2", "ms", piece_muon, 1e3, 3 },
        { "1920 x 1080 to 32 x 32", "ms", piece_photo, 1e3, 3 },
        { "... framed, to 28 x 28", "ms", piece_framed, 1e3, 3 }
    };
    static subject s;
    piece p;
    memset(&p, 0, sizeof p);
    if (subject_open(&s, "wrn-16-2", 1, isa, JEM_PRECISION_FAST)) return;
    p.ctx = s.ctx;
    p.rng = jem_rng_seed(4);
    p.s = &s;
    p.x = floats(s.ctx, &p.rng, PIECES, 3);
    p.y = floats(s.ctx, &p.rng, PIECES, 1);
    p.slopes = floats(s.ctx, &p.rng, PIECES, 1);
    p.leaf = jem_input(s.ctx, p.x, IMAGES, 3, 32, 32);
    p.buffer = jem_buffer_create(s.ctx, 10000, 3, 32, 32, 0, &p.rng);
    pieces_optim(&p);
    const int ok = pieces_pictures(&p) && jem_ok(s.ctx);
    if (!ok) {
        failed = 1;
        fprintf(stderr, "%s\n", jem_ok(s.ctx) ? "out of memory" : jem_error(s.ctx));
    }
    for (size_t i = 0; ok && i < sizeof all / sizeof *all; i++) {
        const double t = best_of(all[i].work, &p);
        const double value = all[i].scale < 0 ? -all[i].scale / t : all[i].scale * t;
        printf("  %-24s %-6s  %9.*f %s\n", all[i].name, jem_isa_name(isa), all[i].digits, value,
               all[i].unit);
        csv_row("piece", all[i].name, "", isa, "", 1, value, all[i].unit, 0);
    }
    free(p.photo);
    free(p.sheet);
    jem_net_free(p.digits);
    jem_optim_free(p.muon);
    jem_buffer_free(p.buffer);
    subject_close(&s);
}

/* ---- whole things ---------------------------------------------------------------------------- */

static void whole_sgld(void *arg) { subject_sgld((subject *)arg, 1); }
static void whole_update(void *arg) {
    float loss, norm;
    subject_update((subject *)arg, 0, &loss, &norm);
}
static void whole_score(void *arg) {
    float loss, norm;
    subject_update((subject *)arg, 1, &loss, &norm);
}

/* The fastest measured way of training WRN-16-2: ms of an update with its chains. */
static struct { double ms; char how[64]; int threads; } night = { 1e30, "", 1 };
enum { NIGHT_STEPS = 10, NIGHT_EPOCHS = 150, NIGHT_IMAGES = 50000 };

static void bench_whole(const char *net, int images, jem_isa isa, const struct bench_precision *p,
                        int threads) {
    static subject s;
    if (p->precision == JEM_PRECISION_BF16) {
        isa = bench_bf16(isa);
        if (isa == JEM_ISA_BEST) return;
    }
    const char *wrong = subject_open(&s, net, threads, isa, p->precision);
    if (!wrong) wrong = subject_batch(&s, images);
    if (!wrong) {
        const double sgld = 1e3 * best_of(whole_sgld, &s);
        const double mb = 1e-6 * (double)jem_memory(s.ctx).peak;
        const double update = 1e3 * best_of(whole_update, &s);
        const double all = NIGHT_STEPS * sgld + update;
        const double score = 1e3 * best_of(whole_score, &s);
        printf("  %-10s %-11s  %-7s %2d thread%s  %9.1f ms  %7.0f MB  %9.1f ms  %9.1f ms\n", net,
               jem_isa_name(isa), p->name, threads, threads > 1 ? "s" : " ", sgld, mb, update,
               score);
        csv_row("whole", net, "sgld", isa, p->name, threads, sgld, "ms", 0);
        csv_row("whole", net, "memory", isa, p->name, threads, mb, "MB", 0);
        csv_row("whole", net, "update", isa, p->name, threads, update, "ms", 0);
        csv_row("whole", net, "score", isa, p->name, threads, score, "ms", 0);
        if (!jem_ok(s.ctx)) wrong = jem_error(s.ctx);
        else if (!strcmp(net, "wrn-16-2") && images == IMAGES && all < night.ms) {
            night.ms = all;
            night.threads = threads;
            snprintf(night.how, sizeof night.how, "%s, %s", jem_isa_name(isa), p->name);
        }
    }
    if (wrong) {
        failed = 1;
        printf("  %s %s: %s\n", net, p->name, wrong);
    }
    fflush(stdout);
    subject_close(&s);
}

/* Measures networks with every instruction set, precision, and one or all threads. */
static void bench_wholes(const char *const *nets, int n_nets, int images, const jem_isa *isas,
                         int n) {
    jem_ctx *all = jem_ctx_create(NULL);
    const int threads = all ? jem_ctx_threads(all) : 1;
    jem_ctx_free(all);
    printf("\nwhole, batch %-23d SGLD step, its memory      update  score update\n", images);
    for (int k = 0; k < n_nets; k++)
        for (int i = 0; i < (quick ? 1 : n); i++)
            for (const struct bench_precision *p = bench_precisions; p->name; p++)
                for (int t = 1; t <= threads; t += threads > 1 ? threads - 1 : 1)
                    if (!quick || p->precision != JEM_PRECISION_DIRECT)
                        bench_whole(nets[k], images, isas[i], p, t);
    if (night.ms < 1e30) {
        const double updates = floor((double)NIGHT_IMAGES / IMAGES) * NIGHT_EPOCHS;
        printf("\na JEM of WRN-16-2 on CIFAR-10, %d epochs, %d images and chains per update, %d "
               "SGLD steps:\n  %.0f updates of %.0f ms (%s, %d thread%s): %.1f hours\n",
               NIGHT_EPOCHS, IMAGES, NIGHT_STEPS, updates, night.ms, night.how, night.threads,
               night.threads > 1 ? "s" : "", updates * night.ms / 3.6e6);
        csv_row("whole", "wrn-16-2", "150 epochs", JEM_ISA_BEST, "", night.threads,
                updates * night.ms / 3.6e6, "hours", 0);
    }
}

/* ---- few images ------------------------------------------------------------------------------ */

enum { CURVE = 17 };

static void curve_forward(void *arg) {
    subject *s = (subject *)arg;
    jem_logits(s->net, s->data, s->n, s->logits);
}

/* Measures the best times of 1 .. 17 images, in rounds, since processors change their clock: all
   counts of images are measured at all clocks. Returns an error, or NULL. */
static const char *curve_times(subject *s, double ms[2][CURVE + 1]) {
    static void (*const works[2])(void *) = { curve_forward, whole_sgld };
    const int rounds = quick ? 2 : 7;
    const char *wrong = NULL;
    for (int k = 0; k < 2; k++)
        for (int n = 0; n <= CURVE; n++) ms[k][n] = 1e30;
    for (int i = 0; i < rounds * CURVE && !wrong; i++) {
        const int n = i % CURVE + 1;
        wrong = subject_batch(s, n);
        for (int k = 0; k < 2 && !wrong; k++) {
            works[k](s);
            const double start = clock_now();
            works[k](s);
            ms[k][n] = fmin(ms[k][n], 1e3 * (clock_now() - start));
        }
        if (!wrong && !jem_ok(s->ctx)) wrong = jem_error(s->ctx);
    }
    return wrong;
}

/* Prints the processor times of 1 .. 17 images, and divides them by those of whole groups and of
   single images. A network's cost is proportional to n if all numbers are 1. */
static void bench_curve(const char *net, jem_isa isa) {
    static const char *const names[2] = { "forward", "sgld" };
    static subject s;
    double ms[2][CURVE + 1];
    clock_now = processor_now;
    const char *wrong = subject_open(&s, net, 1, isa, JEM_PRECISION_EXACT);
    if (!wrong) wrong = curve_times(&s, ms);
    subject_close(&s);
    clock_now = bench_now;
    if (wrong) {
        failed = 1;
        printf("  %s: %s\n", net, wrong);
        return;
    }
    printf("\n  %s, %s\n   n", net, jem_isa_name(isa));
    for (int k = 0; k < 2; k++) printf(" | %8s ms  / n/16 of 16  / n single", names[k]);
    printf("\n");
    for (int n = 1; n <= CURVE; n++) {
        printf("  %2d", n);
        for (int k = 0; k < 2; k++) {
            const double groups = ms[k][n] / (ms[k][16] * n / 16);
            const double single = ms[k][n] / (ms[k][1] * n);
            char count[16];
            printf(" | %11.2f %13.2f %11.2f", ms[k][n], groups, single);
            snprintf(count, sizeof count, "%d", n);
            csv_row("curve", net, names[k], isa, count, 1, ms[k][n], "ms", 0);
        }
        printf("\n");
    }
    fflush(stdout);
}

static void bench_curves(jem_isa isa) {
    static const char *const nets[] = {
        "examples/models/mnist.safetensors", "examples/models/fashion-mnist.safetensors",
        "examples/models/cifar10.safetensors", "examples/models/cifar10-unet.safetensors",
        "wrn-16-2"
    };
    printf("\nfew images, one thread, processor time, exact: goal 1.3 times n/16 of sixteen, "
           "floor n single ones\n");
    for (size_t i = 0; i < sizeof nets / sizeof *nets; i++) bench_curve(nets[i], isa);
}

static void precision_names(int times) {
    printf("%36s ", "");
    for (int i = 0; i < times; i++) {
        printf("|");
        for (const struct bench_precision *p = bench_precisions; p->name; p++)
            printf("%12s", p->name);
        printf(" ");
    }
    printf("\n");
}

/* Returns the exit status. */
static int bench_done(const char *out) {
    const int whole = !ferror(csv);
    if (fclose(csv) || !whole) {
        fprintf(stderr, "%s: cannot be written\n", out);
        return 1;
    }
    printf("\n%s\n", out);
    return failed;
}

/* ---- the command line ------------------------------------------------------------------------ */

/* The options that are not variables above. */
typedef struct request {
    const char *out, *net;
    jem_isa only;                                  /* JEM_ISA_BEST: all but scalar */
    int curve;
} request;

/* Returns 0 if an option is wrong. */
static int read_options(int argc, char **argv, request *r) {
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        if (!strcmp(argv[i], "--quick")) {
            quick = 1;
            patience = 0.003;
            enough = 0.1;
            continue;
        }
        if (!strcmp(argv[i], "--curve")) {
            r->curve = 1;
            continue;
        }
        if (!strcmp(argv[i], "--batch") && atoi(value) > 0) batch = atoi(value);
        else if (!strcmp(argv[i], "--isa") && jem_isa_available(bench_isa(value)))
            r->only = bench_isa(value);
        else if (!strcmp(argv[i], "--out") && *value) r->out = value;
        else if (!strcmp(argv[i], "--net") && *value) r->net = value;
        else return 0;
        i++;                                       /* the value */
    }
    return 1;
}

/* Lists the instruction sets to measure, the widest first; returns their number. */
static int choose_isas(jem_isa only, jem_isa isas[4]) {
    int n = 0;
    if (only == JEM_ISA_AMX || only == JEM_ISA_AVX512_BF16)
        only = JEM_ISA_AVX512;                     /* it has them */
    for (int isa = JEM_ISA_NEON; isa >= JEM_ISA_SCALAR; isa--) {
        if (only && only != (jem_isa)isa) continue;
        if (!only && (isa == JEM_ISA_SCALAR || !jem_isa_available((jem_isa)isa))) continue;
        isas[n++] = (jem_isa)isa;
    }
    if (n == 0) isas[n++] = JEM_ISA_SCALAR;
    return n;
}

/* Measures the peak of each instruction set; returns that of bf16, or 0. */
static double bench_peaks(const jem_isa *isas, int n, double *peaks) {
    double bf16_peak = 0;
    printf("peak of one thread, multiply-adds in registers\n");
    for (int i = 0; i < n; i++) {
        peaks[i] = peak_of(isas[i]);
        printf("  %-11s %7.1f GFLOP/s\n", jem_isa_name(isas[i]), peaks[i]);
        csv_row("peak", "fma", "", isas[i], "", 1, peaks[i], "GFLOP/s", 1);
        if (!bench_bf16(isas[i])) continue;
        bf16_peak = peak_of(bench_bf16(isas[i]));
        printf("  %-11s %7.1f GFLOP/s in bf16\n", jem_isa_name(bench_bf16(isas[i])), bf16_peak);
        csv_row("peak", "fma", "", bench_bf16(isas[i]), "bf16", 1, bf16_peak, "GFLOP/s", 1);
    }
    return bf16_peak;
}

static void bench_layers(const jem_isa *isas, int n, const double *peaks, double bf16_peak) {
    const int width = 12 * (int)(sizeof bench_precisions / sizeof *bench_precisions - 1);
    printf("\nlayers, batch %d (WRN-n-10: 16), one thread: GFLOP/s and share of peak\n", batch);
    printf("%36s | %-*s| %-*s| %s\n", "", width, passes[0], width, passes[1], passes[2]);
    precision_names(PASSES);
    for (size_t k = 0; k < sizeof layers / sizeof *layers; k++)
        for (int i = 0; i < n; i++)
            if (!quick || layers[k].always) bench_layer(isas[i], layers + k, peaks[i], bf16_peak);
}

static void bench_errors(jem_isa isa) {
    printf("\nlargest error against double, as a share of the rms\n");
    bf16_alone = 1;
    precision_names(2);
    for (size_t k = 0; k < sizeof layers / sizeof *layers; k++)
        if (takes_winograd(layers + k) && layers[k].ci <= (quick ? 64 : 128))
            bench_error(isa, layers + k);
}

int main(int argc, char **argv) {
    static const char *const nets[2] = { "wrn-10-1", "wrn-16-2" };
    request r = { "build/bench.csv", NULL, JEM_ISA_BEST, 0 };
    jem_isa isas[4];
    double peaks[4];
    if (!read_options(argc, argv, &r)) {
        fprintf(stderr, "bench [--quick] [--batch N] [--isa NAME] [--net wrn-DEPTH-WIDEN] "
                        "[--curve] [--out FILE]\n");
        return 2;
    }
    const int n = choose_isas(r.only, isas);
    csv = fopen(r.out, "w");
    if (!csv) {
        fprintf(stderr, "%s: cannot be written\n", r.out);
        return 1;
    }
    fprintf(csv, "kind,name,pass,isa,precision,threads,value,unit,share_of_peak\n");

    if (r.net) {
        bench_wholes(&r.net, 1, batch, isas, n);
        return bench_done(r.out);
    }
    if (r.curve) {
        bench_curves(isas[0]);
        return bench_done(r.out);
    }
    const double bf16_peak = bench_peaks(isas, n, peaks);
    bench_layers(isas, n, peaks, bf16_peak);
    bench_errors(isas[0]);

    printf("\npieces, one thread\n");
    for (int i = 0; i < n; i++) bench_pieces(isas[i]);

    if (!quick) bench_curves(isas[0]);
    bench_wholes(nets, 2, IMAGES, isas, n);
    return bench_done(r.out);
}
