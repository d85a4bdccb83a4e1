/* jem.h - v0.2 - energy-based models in one C header            license: MIT-0 or public domain

   Every classifier is also an energy-based model. It assigns each image x one number per class, the
   logit f(x)[y]. Read as log p(x) = logsumexp f(x) - log Z, the same numbers also say how likely
   the image itself is. Trained for both, one small network classifies images, generates new ones,
   and detects images unlike any it has seen. (JEM: Grathwohl, Wang, Jacobsen, Duvenaud, Norouzi,
   Swersky. ICLR 2020, arXiv:1912.03263.)

   This file contains everything: reverse-mode autograd, SIMD convolutions (AVX2, AVX-512, NEON),
   the wide residual network, the loss, the Langevin sampler, the optimiser, and safetensors files.

   DO THIS
       In ONE .c or .cpp file:               In every other file that uses it:
           #define JEM_IMPLEMENTATION            #include "jem.h"
           #include "jem.h"
       Compile with: cc -O2 program.c -lm    (add -fopenmp to use all cores)
       No other flag or file is needed. The fastest instruction set is selected at run time.
       The implementation takes seconds to compile: put it in a separate impl.c, compiled once.

   A COMPLETE PROGRAM
       It trains a small network on two moons, then classifies three points.

       #define JEM_IMPLEMENTATION
       #include "jem.h"
       #include <stdio.h>
       int main(void) {
           jem_ctx *ctx = jem_ctx_create(NULL);
           jem_mlp_desc shape = jem_mlp_desc_default();
           shape.channels = 2, shape.height = shape.width = 1, shape.classes = 2;
           jem_net *net = jem_mlp_create(ctx, &shape, 1);
           jem_train_desc how = jem_train_desc_default();
           how.lr = 3e-3f, how.sgld = jem_sgld_desc_langevin(0.02f, 20);
           jem_trainer *tr = jem_trainer_create(net, &how);
           jem_rng rng = jem_rng_seed(7);
           for (int i = 0; i < 400 && jem_ok(ctx); i++) {
               float x[2 * 64]; int y[64];
               for (int k = 0; k < 64; k++) {
                   float a = 3.14159f * jem_rng_uniform(&rng);
                   y[k] = k & 1;
                   x[2*k]     = (y[k] ? 0.5f - cosf(a) : cosf(a) - 0.5f) * 0.5f;
                   x[2*k + 1] = (y[k] ? 0.25f - sinf(a) : sinf(a) - 0.25f) * 0.5f;
               }
               jem_train_step(tr, x, y, 64);
           }
           float ask[6] = { -0.25f, 0.35f,   0.25f, -0.35f,   0.9f, 0.9f };
           jem_answer a[3];
           if (jem_classify(net, ask, 3, a) != JEM_OK) { puts(jem_error(ctx)); return 1; }
           for (int i = 0; i < 3; i++)
               printf("moon %d (p = %.2f), log p(x) = %+.1f\n",
                      a[i].label, (double)a[i].probability, (double)a[i].log_density);
           jem_trainer_free(tr); jem_net_free(net); jem_ctx_free(ctx);
           return 0;
       }

   THE IDEA, IN FOUR LINES
       energy E(x,y) = -f(x)[y]     log p(y|x) = f(x)[y] - logsumexp f(x)       the classifier
       log p(x,y) = f(x)[y] - log Z       log p(x) = logsumexp f(x) - log Z     the two densities
       learn:   L = CE(f(x), y) + mean E(x_data) - mean E(x_sample)      lowers E of data, raises
                                                                         E of samples
       sample:  x <- x + step * d log p(x)/dx + noise_std * N(0,I)       (SGLD; Z cancels in both)

   WHAT IT DOES
       - trains, samples and evaluates JEMs on small images or vectors, on the CPU, in fp32 or with
         bf16 convolutions (AMX, AVX-512 BF16)
       - learns log p(x) from chains (contrastive divergence), from noise (score matching), or both
       - supports any network built from its ops, and samples from any log-density written with them
       - computes the same bits on scalar, AVX2, AVX-512 and NEON (in fp32), with any thread count
       - resumes interrupted training from a checkpoint, bit for bit; averages weights; trains on
         several machines, given a function that sums over them (examples/mpi.c)
       - reports errors as results: a bad shape, a damaged file or a diverging run gives a clear
         message
   WHAT IT DOES NOT DO
       - GPUs; second derivatives; grouped or dilated convolutions; kernels larger than 32 x 32
       - image files (the examples use stb_image), data sets, plots
       - thread safety within a context: use one context per thread; contexts share nothing
       - 32-bit ARM; SIMD with compilers other than gcc and clang

   MACROS to define before the #include
       JEM_IMPLEMENTATION   compiles the implementation here; define it in exactly one file
       JEM_DECLARATIONS     overrides JEM_IMPLEMENTATION, for builds that compile the implementation
                            once and link it to programs like the one above
       JEM_STATIC           makes all functions static, private to the implementing file
       JEM_NO_STDIO         removes file input and output (keeps jem_archive_parse and _to_memory)
       JEM_NO_SIMD          compiles only the scalar kernels
       JEM_FILE "name.h"    names this file if you rename it (it includes itself once per
                            instruction set)

   ERRORS
       Nothing exits, asserts or prints. A function that can fail returns a jem_status or NULL. The
       context keeps the FIRST error, with the op's name and the shapes or the file: jem_error(ctx).
       After an error all ops return NULL until jem_clear_error(ctx), and an op whose input is NULL
       returns NULL, so you can write a whole expression and check once at its end.
   DESCRIPTIONS
       Start each jem_..._desc from jem_..._desc_default() and change the fields you need; zero is a
       value, not a default. A NULL desc means all defaults. (The descs of contexts, convolutions,
       scores and pixels have no such function: there zero means default.) An rng is required unless
       the function says that it may be NULL.
   MEMORY
       Everything belongs to a context and is allocated with its two functions. Tensors live on the
       context's tape, an arena: jem_end frees all tensors made since jem_begin (jem_reset: all
       tensors) and keeps the memory for reuse, so a training loop does not allocate. Networks,
       trainers, buffers and archives have their own jem_*_free; free them before the context.
   THREADS
       The library uses OpenMP if the compiler enables it, or the parallel_for in the context's
       desc. Work is divided by images, pixels and channels; the order of a sum never changes. gcc's
       OpenMP threads spin while they wait: set OMP_WAIT_POLICY=passive if other programs run too.
   DETERMINISM
       The same seed gives the same numbers on every instruction set and any number of threads, for
       a given jem_precision, as long as values are finite and the compiler follows IEEE arithmetic
       (FLT_EVAL_METHOD is 0; on 32-bit x86: -msse2 -mfpmath=sse). Exceptions: JEM_PRECISION_BF16 gives the
       same numbers only on the same instruction set, and JEM_ISA_WASM has its own. With -ffast-math
       the numbers differ, but values that are not finite are still detected and reported.
       tests/README.md names the test of each guarantee.
       The tape records ops in the order in which they are called. C does not specify the order in
       which arguments are evaluated: if two ops are arguments of a third, give each its own line.
   IMAGES
       Functions take and return images as row-major NCHW floats, usually in [-1,1]. Internally, 16
       images are interleaved ("lanes are images", see >>platform), so odd sizes cost nothing.

   TABLE OF CONTENTS                                          (search for a mark)
       >>platform   status, context, instruction sets      >>samplers    SGLD, HMC, AIS, buffer
       >>rng        counter-based random numbers           >>optim       Adam, SGD, schedules
       >>memory     the tape's arena                       >>train       one step at a time
       >>tape       record, and the plain walk             >>eval        classify, accuracy
       >>plan       the same, faster                       >>io          safetensors
       >>ops        what you build with                    >>checkpoint  networks, trainers in files
       >>nets       wide-resnet, convnet, MLP, your own    >>engine      what the processor runs
       >>losses     log-densities, CE, CD, score           >>changelog   and licence
   First the API in this order, then the implementation in the same order: ideas first, machinery
   last. Each room uses only the rooms above it, with one exception: >>engine, the kernels for every
   instruction set, is last; its interface is declared in >>platform.
*/
#ifdef JEM_DECLARATIONS
#undef JEM_IMPLEMENTATION
#endif

#ifndef JEM_H
#define JEM_H

#include <stddef.h>
#include <stdint.h>

#if defined(JEM_STATIC) && defined(__GNUC__)
#define JEM_API static __attribute__((unused))
#elif defined(JEM_STATIC)
#define JEM_API static
#elif defined(__cplusplus)
#define JEM_API extern "C"
#else
#define JEM_API extern
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define JEM_LANES 16       /* images that are interleaved in memory: one group */
#define JEM_MAX_INPUTS 4   /* inputs of one op */
#define JEM_MAX_PARAMS 4   /* parameters of one op */

/* ==== >>platform: status, context, instruction sets =========================================== */

typedef enum jem_status {
    JEM_OK = 0,
    JEM_BAD_ARGUMENT,      /* a NULL, a number out of range, an impossible combination */
    JEM_BAD_SHAPE,         /* shapes that do not fit together */
    JEM_NO_MEMORY,
    JEM_BAD_FILE,          /* cannot be opened, read or written, or has the wrong content */
    JEM_DIVERGED           /* a loss or gradient that is not finite, or a loss that is too large */
} jem_status;

typedef enum jem_isa {
    JEM_ISA_BEST = 0,      /* the widest that processor, system and build all support */
    JEM_ISA_SCALAR,        /* plain C: the reference for the tests of the others */
    JEM_ISA_AVX2,          /* AVX2 with FMA */
    JEM_ISA_AVX512,        /* AVX-512 F, BW, DQ, VL */
    JEM_ISA_NEON,          /* AArch64 */
    JEM_ISA_AVX512_BF16,   /* AVX-512 with BF16; differs from JEM_ISA_AVX512 only in JEM_PRECISION_BF16 */
    JEM_ISA_AMX,           /* AVX-512 with AMX; differs from JEM_ISA_AVX512 only in JEM_PRECISION_BF16 */
    JEM_ISA_WASM           /* WebAssembly with -msimd128. It has no fma: a product and a sum round
                              twice, so its results are close to the others', not identical */
} jem_isa;

/* Algorithm for 3x3 convolutions of stride 1. Largest error, compared with double and relative to
   the output's rms: direct 9e-6, Winograd F(2x2) 3e-6, F(4x4) 6e-5 (`make bench`).
   JEM_PRECISION_BF16 applies to all convolutions. It requires AMX or AVX-512 BF16 (on AVX-512 BF16,
   convolutions of stride 1 run as JEM_PRECISION_FAST,
       which is as fast there). Elsewhere it becomes JEM_PRECISION_FAST,
   and a note is logged; with JEM_ISA_SCALAR, however, it is computed in plain C.
   Memory: sampling needs packed weights in addition to the weights, in total, for output and input
   gradient, 2 times their size (direct), 1.8 times (exact), 4 times (fast), once (bf16). */
typedef enum jem_precision {
    JEM_PRECISION_EXACT = 0,         /* F(2x2,3x3): as exact as the direct sum, half the multiplications */
    JEM_PRECISION_FAST,              /* F(4x4,3x3): a quarter of the multiplications */
    JEM_PRECISION_DIRECT,            /* the plain sum, the reference for the other two */
    JEM_PRECISION_BF16               /* operands of convolutions rounded to bf16 (error 2e-2), sums in fp32 */
} jem_precision;

typedef struct jem_ctx jem_ctx;

/* Settings of a context. Zero means default in every field; a NULL desc is all defaults. */
typedef struct jem_ctx_desc {
    void *(*allocate)(void *user, size_t bytes);   /* set both or neither */
    void (*release)(void *user, void *memory);
    void (*log)(void *user, const char *message);  /* receives each error that is kept, and a note
                                                      if JEM_PRECISION_BF16 is not available or tensors of a
                                                      file cannot be read; default: none */
    /* Calls task(arg, i) once for each i in 0..n-1, in any order; returns when all are done. */
    void (*parallel_for)(void *user, int n, void (*task)(void *arg, int i), void *arg);
    void *user;            /* passed to the four functions */
    int threads;           /* at most 4096; default: OpenMP's thread count, or 1 without OpenMP, so
                              set it if you set parallel_for */
    jem_precision precision;
    jem_isa isa;           /* default: the best */
    int plain_tape;             /* 1: runs ops one by one as recorded, without fusion or planning: slow,
                              the same bits; for debugging, and as the reference of the tests */
} jem_ctx_desc;

/* Creates a context. Returns NULL if memory runs out, or if the instruction set in the desc is not
   available. */
JEM_API jem_ctx *jem_ctx_create(const jem_ctx_desc *desc);
/* Frees the context and its tape. Free everything else made with it first. Accepts NULL. */
JEM_API void jem_ctx_free(jem_ctx *ctx);
/* Returns the first error since the context was created or cleared, or "". Owned by the context. */
JEM_API const char *jem_error(const jem_ctx *ctx);
JEM_API jem_status jem_error_status(const jem_ctx *ctx);
JEM_API int jem_ok(const jem_ctx *ctx);            /* 1 if there is no error */
JEM_API void jem_clear_error(jem_ctx *ctx);
/* Reports an error of your own, which is kept if it is the first. Copies `message` and returns
   `status`; with JEM_OK it reports nothing. */
JEM_API jem_status jem_fail(jem_ctx *ctx, jem_status status, const char *message);
/* Returns 1 if this build, the processor and the operating system all support `isa`. */
JEM_API int jem_isa_available(jem_isa isa);
JEM_API const char *jem_isa_name(jem_isa isa);
JEM_API jem_isa jem_ctx_isa(const jem_ctx *ctx);   /* the one in use; never JEM_ISA_BEST */
JEM_API jem_precision jem_ctx_precision(const jem_ctx *ctx);   /* in use, see jem_precision */
JEM_API int jem_ctx_threads(const jem_ctx *ctx);

/* ==== >>rng: counter-based random numbers ===================================================== */
/* Threefry-2x32-20 (Salmon, Moraes, Dror, Shaw: 'Parallel random numbers: as easy as 1, 2, 3',
   SC 2011). Number i is a function of (seed, i) alone, so any number of threads can generate the
   numbers in any order. A jem_rng is a value: copy it to repeat a sequence, save it to resume. */

typedef struct jem_rng { uint32_t key[2]; uint64_t counter; } jem_rng;

JEM_API jem_rng jem_rng_seed(uint64_t seed);
/* Returns an independent sequence for each `stream` of the same seed (per purpose or thread). */
JEM_API jem_rng jem_rng_split(const jem_rng *rng, uint64_t stream);
JEM_API uint32_t jem_rng_u32(jem_rng *rng);
JEM_API float jem_rng_uniform(jem_rng *rng);               /* [0,1), 24 bits */
JEM_API float jem_rng_normal(jem_rng *rng);                /* N(0,1), Box-Muller */
JEM_API int jem_rng_below(jem_rng *rng, int n);            /* 0..n-1, without bias; 0 if n <= 1 */
/* Fill n floats, with the same numbers on every instruction set. */
JEM_API void jem_fill_uniform(jem_ctx *ctx, jem_rng *rng, float *out, ptrdiff_t n, float lo,
                              float hi);
JEM_API void jem_fill_normal(jem_ctx *ctx, jem_rng *rng, float *out, ptrdiff_t n, float mean,
                             float std);

/* ==== >>memory: memory in use ================================================================= */

typedef struct jem_memory_stats {
    size_t bytes;          /* allocated from the context's allocator now */
    size_t peak;           /* largest value of `bytes` so far */
    size_t allocations;    /* calls to allocate so far: a steady loop makes no further ones */
} jem_memory_stats;
JEM_API jem_memory_stats jem_memory(const jem_ctx *ctx);
/* Frees memory that a function of this header returned to you (jem_archive_to_memory). */
JEM_API void jem_release(jem_ctx *ctx, void *memory);

/* ==== >>tape: recording ops =================================================================== */
/* An op records itself and returns the tensor that it will compute. Computation starts only when
   you request a value or a gradient: see >>plan. */

/* Batch of n images with c channels, h rows, w columns. One number per image means c = h = w = 1; a
   single number means n = 1 as well. Valid until jem_end or jem_reset removes it from the tape. */
typedef struct jem_tensor {
    int n, c, h, w;
    int blocks;                                    /* private: 1 if images are cut into blocks */
    jem_ctx *ctx;
    struct jem__node *node;                        /* private: its tape record; NULL: freed */
} jem_tensor;

/* jem_end frees all tensors made since the jem_begin that returned `mark`. Pairs may nest. Using a
   freed tensor is reported as an error, until a new tensor reuses its memory. */
typedef struct jem_mark { void *chunk; size_t used; int nodes; uint64_t pushes; } jem_mark;
JEM_API jem_mark jem_begin(jem_ctx *ctx);
JEM_API void jem_end(jem_ctx *ctx, jem_mark mark);
JEM_API void jem_reset(jem_ctx *ctx);                      /* frees every tensor */

/* Parameter or buffer of a network: a row-major array in PyTorch's shape. */
typedef struct jem_param {
    const char *name;      /* PyTorch's: "f.layer1.0.conv1.weight" */
    int ndim, shape[4];
    ptrdiff_t size;        /* element count */
    float *value, *grad;   /* call jem_param_changed after writing value; grad: NULL in a buffer */
    jem_ctx *ctx;
    struct jem_param *next;                        /* next in the same network */
    struct jem__pack *packs;                       /* private: copies in the kernels' order */
    uint32_t version;      /* private: see jem_param_changed */
} jem_param;

/* Marks packed copies of p->value as outdated. Call it after writing to p->value yourself. */
JEM_API void jem_param_changed(jem_param *p);

/* Records a leaf with a copy of n images, nchw[n][c][h][w]. */
JEM_API jem_tensor *jem_input(jem_ctx *ctx, const float *nchw, int n, int c, int h, int w);
JEM_API jem_tensor *jem_zeros(jem_ctx *ctx, int n, int c, int h, int w);
/* Replaces a leaf's images. Tensors that depend on them are recomputed at the next request. */
JEM_API jem_status jem_write(jem_tensor *leaf, const float *nchw);

/* Custom op. forward and backward are called for one group of 16 images at a time, possibly from
   several threads; they read x and write y. Element (channel c, row i, column j) of lane l is at
   [((i*w + j)*c_total + c)*16 + l]. Lanes from `live` on are padding: they repeat the last image
   and have no gradient. */
typedef struct jem_shape { int n, c, h, w; } jem_shape;

typedef struct jem_call {
    jem_ctx *ctx;
    void *user;                                    /* the tape's copy of your data */
    int group, live;                               /* index of the 16 images; count of real ones */
    int inputs;
    jem_shape in[JEM_MAX_INPUTS], out;
    const float *x[JEM_MAX_INPUTS];                /* forward: all; backward: those in `keeps` */
    float *y;                                      /* forward: write; backward: read, if kept by
                                                      JEM_KEEPS_OUTPUT */
    void *aux;                                     /* aux_bytes per group, kept for backward */
    const float *dy;                               /* backward: gradient of the output; in forward,
                                                      NULL if no backward will follow */
    float *dx[JEM_MAX_INPUTS];                     /* backward: ADD to it; NULL if not needed */
    struct jem__inner *inner;                      /* private: used by built-in ops */
} jem_call;

enum {                                             /* jem_op.keeps: arrays that backward reads */
    JEM_KEEPS_NOTHING = 0, JEM_KEEPS_INPUT = 1, JEM_KEEPS_INPUT1 = 2, JEM_KEEPS_OUTPUT = 16
};
typedef struct jem_op {
    const char *name;
    void (*forward)(const jem_call *call);
    void (*backward)(const jem_call *call);        /* NULL: passes no gradient */
    int keeps;
    const struct jem__traits *traits;              /* private: used by built-in ops; else NULL */
} jem_op;
/* Records a custom op. out.n must equal the inputs' n. Copies user_bytes of `user` (NULL: zeros),
   but not `op`, which must stay valid. Each group has aux_bytes in which forward can store values
   for backward. */
JEM_API jem_tensor *jem_custom(jem_ctx *ctx, const jem_op *op, jem_tensor *const *inputs,
                               int n_inputs, jem_shape out, const void *user, size_t user_bytes,
                               size_t aux_bytes);

/* ==== >>plan: requesting values and gradients ================================================= */
/* At each request, the tape plans only the computation that the request needs. If that is the
   gradient of the input alone, as in SGLD, it takes 16 images at a time forward and back through
   the whole network in one small workspace, and keeps nothing for weight gradients. */

/* Computes t if necessary, and copies it to nchw[n][c][h][w]. */
JEM_API jem_status jem_read(jem_tensor *t, float *nchw);
/* Returns the value of a tensor with n = c = h = w = 1; NaN and an error for any other tensor. */
JEM_API float jem_item(jem_tensor *t);
/* Keeps t's values, from the next pass on, so that they can be read after it. Small tensors (up to
   128 numbers per image) are always kept. A larger tensor is computed when it is first read, from
   the kept values of that pass and the parameters at the time of reading. */
JEM_API void jem_keep(jem_tensor *t);

/* Adds d loss / d parameter to the grad of every parameter on which the loss (one number)
   depends. */
JEM_API jem_status jem_backward(jem_tensor *loss);
/* Computes d (sum of y) / dx for a leaf x (jem_input, jem_zeros). y has one number per image, so
   each image receives the gradient of its own number. Parameters receive no gradient. */
JEM_API jem_status jem_grad(jem_tensor *y, jem_tensor *x);
JEM_API jem_status jem_read_grad(const jem_tensor *x, float *nchw);   /* of the last jem_grad */

/* Function that computes one number per image, or a single number, from x: the argument of samplers
   and of jem_check_gradient. */
typedef jem_tensor *(*jem_logp_fn)(jem_ctx *ctx, jem_tensor *x, void *user);
/* Compares the tape's gradient of the sum of fn's numbers with a central difference of 4th order,
   for every element of x (or of p, if it is not NULL). Returns the largest difference, relative to
   the largest gradient: about 1e-3 if correct (in fp32, step 0.02), 0.1 to 1 if a backward is
   wrong, NaN if a value is NaN; negative on an error. With p, the grads of other parameters are
   added to as well. */
JEM_API float jem_check_gradient(jem_ctx *ctx, jem_logp_fn fn, void *user, jem_tensor *x,
                                 jem_param *p,
                                 float step);

/* ==== >>ops: building blocks of networks ====================================================== */
/* Shapes are (n,c,h,w). An op that fails returns NULL; the error names the op and the shapes. */

typedef struct jem_conv_desc { int stride, pad; } jem_conv_desc;   /* stride 0 means 1 */

/* y[o] = b[o] + sum w[o][i][ky][kx] x[i][...]. x (n,I,h,w); w (O,I,k,k), k <= 32; b (O) or NULL;
   stride <= 64, pad < 64; y (n, O, (h + 2 pad - k)/stride + 1, ...). Cross-correlation, as in
   PyTorch. */
JEM_API jem_tensor *jem_conv2d(jem_ctx *ctx, jem_tensor *x, jem_param *w, jem_param *b,
                               jem_conv_desc desc);
/* x (n,I,1,1); w (O,I); b (O) or NULL; y (n,O,1,1). */
JEM_API jem_tensor *jem_linear(jem_ctx *ctx, jem_tensor *x, jem_param *w, jem_param *b);

/* Elementwise ops on equal shapes; b may also hold a number per image (n,1,1,1) or per channel
   (n,c,1,1), which is broadcast over a. */
JEM_API jem_tensor *jem_add(jem_ctx *ctx, jem_tensor *a, jem_tensor *b);
JEM_API jem_tensor *jem_sub(jem_ctx *ctx, jem_tensor *a, jem_tensor *b);
JEM_API jem_tensor *jem_mul(jem_ctx *ctx, jem_tensor *a, jem_tensor *b);
JEM_API jem_tensor *jem_scale(jem_ctx *ctx, jem_tensor *x, float factor);
JEM_API jem_tensor *jem_add_constant(jem_ctx *ctx, jem_tensor *x, float term);
JEM_API jem_tensor *jem_square(jem_ctx *ctx, jem_tensor *x);
/* jem_exp clamps x to [-87, 88]; its gradient is y even where x is clamped. jem_log is defined for
   x from 1.2e-38 to 3.4e38; for other x (0 or less, for example) the result is meaningless. */
JEM_API jem_tensor *jem_exp(jem_ctx *ctx, jem_tensor *x);
JEM_API jem_tensor *jem_log(jem_ctx *ctx, jem_tensor *x);
JEM_API jem_tensor *jem_tanh(jem_ctx *ctx, jem_tensor *x);
JEM_API jem_tensor *jem_sigmoid(jem_ctx *ctx, jem_tensor *x);
JEM_API jem_tensor *jem_softplus(jem_ctx *ctx, jem_tensor *x);     /* log(1 + e^x) */
/* Limits x to lo <= y <= hi; the gradient is zero where x is outside. */
JEM_API jem_tensor *jem_clamp(jem_ctx *ctx, jem_tensor *x, float lo, float hi);
JEM_API jem_tensor *jem_relu(jem_ctx *ctx, jem_tensor *x);
JEM_API jem_tensor *jem_leaky_relu(jem_ctx *ctx, jem_tensor *x, float slope);
JEM_API jem_tensor *jem_silu(jem_ctx *ctx, jem_tensor *x);         /* x sigmoid(x) */
/* Zeroes each element with probability p and divides the others by 1 - p. Advances rng. */
JEM_API jem_tensor *jem_dropout(jem_ctx *ctx, jem_tensor *x, float p, jem_rng *rng);

/* Computes the mean of k x k windows, without padding. stride 0 means k. */
JEM_API jem_tensor *jem_avg_pool(jem_ctx *ctx, jem_tensor *x, int k, int stride);
JEM_API jem_tensor *jem_global_pool(jem_ctx *ctx, jem_tensor *x);  /* (n,c,1,1), mean over h,w */
/* Computes the maximum of each window, k <= 15; its first occurrence receives the gradient. */
JEM_API jem_tensor *jem_max_pool(jem_ctx *ctx, jem_tensor *x, int k, int stride);
JEM_API jem_tensor *jem_upsample(jem_ctx *ctx, jem_tensor *x, int k);  /* each pixel k x k times */
JEM_API jem_tensor *jem_flatten(jem_ctx *ctx, jem_tensor *x);      /* (n,c*h*w,1,1), as PyTorch */
/* Copies channels first .. first+count-1. */
JEM_API jem_tensor *jem_slice(jem_ctx *ctx, jem_tensor *x, int first, int count);
JEM_API jem_tensor *jem_concat(jem_ctx *ctx, jem_tensor *a, jem_tensor *b);    /* of channels */
JEM_API jem_tensor *jem_detach(jem_ctx *ctx, jem_tensor *x);       /* x; no gradient passes */

/* Reductions to one number per image, except jem_log_softmax. */
JEM_API jem_tensor *jem_logsumexp(jem_ctx *ctx, jem_tensor *x);    /* over c; x (n,c,1,1) */
JEM_API jem_tensor *jem_log_softmax(jem_ctx *ctx, jem_tensor *x);  /* (n,c,1,1), the same shape */
JEM_API jem_tensor *jem_gather(jem_ctx *ctx, jem_tensor *x, const int *labels);    /* x[i][y[i]] */
JEM_API jem_tensor *jem_sum_image(jem_ctx *ctx, jem_tensor *x);    /* over c, h, w */
/* Reductions of all elements (over n too) to one number; sum in double, in a fixed order. */
JEM_API jem_tensor *jem_mean(jem_ctx *ctx, jem_tensor *x);
JEM_API jem_tensor *jem_sum(jem_ctx *ctx, jem_tensor *x);

typedef enum jem_norm {
    JEM_NORM_NONE = 0,
    JEM_NORM_BATCH,        /* over n,h,w: batch statistics in training, running ones otherwise */
    JEM_NORM_INSTANCE,     /* over h,w of each image and channel */
    JEM_NORM_LAYER,        /* over c,h,w of each image (PyTorch's GroupNorm with one group) */
    JEM_NORM_ACT           /* scale*(x + loc), set by the first training batch (Glow, 2018) */
} jem_norm;

/* (x - mean)/sqrt(var + 1e-5) * gamma[c] + beta[c]; gamma, beta (c). */
JEM_API jem_tensor *jem_instance_norm(jem_ctx *ctx, jem_tensor *x, jem_param *gamma,
                                      jem_param *beta);
JEM_API jem_tensor *jem_layer_norm(jem_ctx *ctx, jem_tensor *x, jem_param *gamma, jem_param *beta);
/* Normalises with batch statistics if training = 1; jem_backward then moves the running statistics
   towards them by a fraction `momentum` (variance with n-1, as in PyTorch; a batch of one number
   per channel leaves the variance unchanged). Otherwise normalises with the running statistics. */
JEM_API jem_tensor *jem_batch_norm(jem_ctx *ctx, jem_tensor *x, jem_param *gamma, jem_param *beta,
                                   jem_param *running_mean, jem_param *running_var, float momentum,
                                   int training);
/* Computes scale*(x + loc); loc, scale (1,c,1,1). While initialized (1) is 0, a training pass sets
   loc and scale so that the output has mean 0 and std 1 per channel. */
JEM_API jem_tensor *jem_act_norm(jem_ctx *ctx, jem_tensor *x, jem_param *loc, jem_param *scale,
                                 jem_param *initialized, int training);

/* ==== >>nets: wide-resnet, convnet, MLP, your own ============================================= */

typedef enum jem_activation { JEM_ACTIVATION_LEAKY_RELU = 0, JEM_ACTIVATION_RELU,
                              JEM_ACTIVATION_SILU, JEM_ACTIVATION_TANH } jem_activation;
typedef enum jem_head { JEM_HEAD_POOLED = 0, JEM_HEAD_FLAT } jem_head;  /* of the net */

typedef struct jem_net jem_net;
/* Builds the logits (n,classes,1,1) of x on the tape. */
typedef jem_tensor *(*jem_forward_fn)(jem_net *net, jem_tensor *x, int training, void *user);

/* log p(x) = scale * logsumexp f(x); a score (>>losses) is best learned with a scale of 10. A
   forward function with an output of its own for log p(x) puts it into `energy`. */
struct jem_net {
    const struct jem_net *self;                    /* private: see jem_logp */
    jem_ctx *ctx;
    int channels, height, width, classes;
    float scale;                                   /* 1. This and the next three are saved */
    float noise_lo, noise_hi, mean;                /* what a score was learned from: noise levels
                                                      and mean pixel. 0, 0: there was none */
    jem_param *params;                             /* linked list, in the order they were added */
    jem_rng rng;                                   /* initialisation, then dropout */
    void *user;                                    /* your forward function's data */
    jem_tensor *energy;                            /* NULL: it has none */
    jem_tensor *shift;                             /* NULL: it has none; see below */
    jem_forward_fn forward;                        /* private from here: use jem_forward */
    struct jem__meta *meta;
    jem_param *last;
};

/* A forward function may put one number per image, e(x), into net->shift. It is added to all logits
   after the scale: p(y|x) does not change, since softmax does not see a shift, and log p(x) becomes
   e(x) + scale * logsumexp f(x) - log Z. The network is still a JEM, p(x,y) included. The shift is
   not in the logits that jem_forward returns, so the cross-entropy does not compute it. */

/* How the blocks of a wide residual network are built. */
typedef enum jem_blocks {
    JEM_BLOCKS_WRN = 0,    /* as the authors of JEM do, described below */
    JEM_BLOCKS_ZERO        /* for a network without norms: the second convolution of a block starts
                              at 0, so that the block begins as the identity (Fixup: Zhang, Dauphin
                              & Ma 2019; SkipInit: De & Smith 2020). The stem has 16 * widen
                              channels, blocks keep theirs, and a conv4x4 of stride 2 between two
                              stages doubles them. Learns best with JEM_ACTIVATION_SILU and JEM_OPTIMIZER_MUON */
} jem_blocks;

/* The wide residual network (Zagoruyko & Komodakis 2016) as the authors of JEM use it, by default
   without batch norm: conv3x3; three stages of (depth-4)/6 blocks with 16, 32, 64 times `widen`
   channels; activation, head, linear. The second convolution of a block has the stride. */
typedef struct jem_wrn_desc {
    int depth, widen;                              /* 28, 10; depth = 6k + 4 */
    int channels, height, width, classes;          /* 3, 32, 32, 10 */
    jem_activation activation;                     /* leaky-relu of slope .2 */
    float leak;
    jem_norm norm;                                 /* none */
    float dropout;                                 /* 0 */
    jem_head head;                                 /* pooled; flat learns faster on small nets */
    int stem_stride;                               /* 1; 2 makes the rest 4 times cheaper */
    int separate_energy;                           /* 1: log p(x) from "energy_output", a head */
                                                   /* of its own */
    jem_blocks blocks;                             /* JEM_BLOCKS_WRN */
    int unet;                                      /* 1: adds e(x) = sum of x U(x) to log p(x), see
                                                      jem_net.shift. U is a U-Net's decoder on the
                                                      features of all stages: an energy of this form
                                                      denoises as well as a score network (Guth,
                                                      Kadkhodaie & Simoncelli 2025). Sides are
                                                      multiples of 4 * stem_stride. Not with
                                                      uncond */
} jem_wrn_desc;
JEM_API jem_wrn_desc jem_wrn_desc_default(void);
JEM_API jem_net *jem_wrn_create(jem_ctx *ctx, const jem_wrn_desc *desc, uint64_t seed);

/* conv3x3 at full size, then a conv4x4 of stride 2 for each further width, each followed by the
   activation; flat head, linear. The default, for 28x28 digits, has 113,000 parameters. */
typedef struct jem_convnet_desc {
    int channels, height, width, classes;          /* 1, 28, 28, 10 */
    int layers, widths[8];                         /* 4: 16, 32, 64, 64 */
    jem_activation activation;                     /* SiLU */
    float leak;
    int separate_energy;                                    /* as in jem_wrn_desc */
} jem_convnet_desc;
JEM_API jem_convnet_desc jem_convnet_desc_default(void);
JEM_API jem_net *jem_convnet_create(jem_ctx *ctx, const jem_convnet_desc *desc, uint64_t seed);

/* Linear layers of the given widths, then one to the classes; default 128, 128. */
typedef struct jem_convnet_desc jem_mlp_desc;
JEM_API jem_mlp_desc jem_mlp_desc_default(void);
JEM_API jem_net *jem_mlp_create(jem_ctx *ctx, const jem_mlp_desc *desc, uint64_t seed);

JEM_API void jem_net_free(jem_net *net);                           /* NULL is fine */

/* A network of your own: create it, add layers, write the forward function (examples/own_net.c).
   user_bytes of `user` are copied to net->user, which is passed to your forward function; with NULL
   they start as zeros, for you to fill in, for instance with the layers. forward may be NULL if the
   net only holds parameters. */
JEM_API jem_net *jem_net_create(jem_ctx *ctx, jem_forward_fn forward, const void *user,
                                size_t user_bytes, int channels, int height, int width, int classes,
                                uint64_t seed);
/* A parameter (trainable = 1) or buffer (0), filled with zeros; owned by the net. */
JEM_API jem_param *jem_net_param(jem_net *net, const char *name, int ndim, const int *shape,
                                 int trainable);
JEM_API jem_param *jem_net_find(const jem_net *net, const char *name);   /* NULL if there is none */
JEM_API ptrdiff_t jem_net_size(const jem_net *net);                      /* how many it trains */
JEM_API void jem_zero_grad(jem_net *net);

/* A layer is its parameters and how to apply them. They are named name.weight, ..., and initialised
   as in PyTorch: weights and biases uniform in +-1/sqrt(fan_in); norms with gamma 1, beta 0. */
typedef enum jem_layer_kind {
    JEM_LAYER_NONE = 0, JEM_LAYER_CONV, JEM_LAYER_LINEAR, JEM_LAYER_NORM
} jem_layer_kind;
typedef struct jem_layer {
    jem_layer_kind kind;
    jem_param *weight, *bias, *extra[3];
    jem_conv_desc conv;
    jem_norm norm;
} jem_layer;
JEM_API jem_layer jem_conv_layer(jem_net *net, const char *name, int in, int out, int k, int stride,
                                 int pad);
JEM_API jem_layer jem_linear_layer(jem_net *net, const char *name, int in, int out);
JEM_API jem_layer jem_norm_layer(jem_net *net, const char *name, jem_norm norm, int channels);
JEM_API jem_tensor *jem_apply(const jem_layer *layer, jem_tensor *x, int training);
JEM_API jem_tensor *jem_activate(jem_ctx *ctx, jem_tensor *x, jem_activation a, float slope);

/* Logits of x (n,channels,height,width). training = 1: with batch statistics and dropout. */
JEM_API jem_tensor *jem_forward(jem_net *net, jem_tensor *x, int training);
/* Short texts that are saved with the network. The value is copied; NULL removes the key. Keys that
   begin with "jem." are the library's own: they can be read and removed, not set. */
JEM_API jem_status jem_net_set_meta(jem_net *net, const char *key, const char *value);
JEM_API const char *jem_net_meta(const jem_net *net, const char *key);   /* NULL if there is none */

/* ==== >>losses: log-densities, cross-entropy, contrastive divergence, score =================== */

/* Log-densities up to a constant, a number per image: what every sampler takes. user: a jem_net *
   for jem_logp, a jem_guide * for jem_logp_guided, and for the others either of the two structs. A
   network for a struct, or a struct for a network, is an error; a jem_class_of for a guide cannot
   be told. Evaluation mode (no dropout, running statistics). */
typedef struct jem_class_of { jem_net *net; const int *labels; } jem_class_of;
typedef struct jem_guide { jem_net *net; const int *labels; float weight; } jem_guide;
JEM_API jem_tensor *jem_logp(jem_ctx *ctx, jem_tensor *x, void *net);             /* log p(x) */
JEM_API jem_tensor *jem_logp_class(jem_ctx *ctx, jem_tensor *x, void *class_of);  /* log p(x,y) */
JEM_API jem_tensor *jem_logp_label(jem_ctx *ctx, jem_tensor *x, void *class_of);  /* log p(y|x) */
/* log [p(y|x) / (1 - p(y|x))], whatever temperature was fitted. Its slope points as that of
   log p(y|x) does, which fp32 takes for flat where p(y|x) is nearly 1. For one class it is 1e18. */
JEM_API jem_tensor *jem_log_odds(jem_ctx *ctx, jem_tensor *x, void *class_of);
/* log p(x) + weight log p(y|x): p(x,y) at weight 1, clearer specimens of the class above it. */
JEM_API jem_tensor *jem_logp_guided(jem_ctx *ctx, jem_tensor *x, void *guide);

/* Mean of -log p(y|x) over the batch: mean(logsumexp(logits) - logits[y]). One number. */
JEM_API jem_tensor *jem_cross_entropy(jem_ctx *ctx, jem_tensor *logits, const int *labels);
/* mean E(data) - mean E(sample) = mean logp(sample) - mean logp(data). One number. Its gradient
   estimates that of mean -log p(data) (Hinton 2002). The inputs may differ in n. */
JEM_API jem_tensor *jem_contrastive(jem_ctx *ctx, jem_tensor *logp_data, jem_tensor *logp_sample);

/* Denoising score matching (Vincent 2011): at images with noise, x~ = x + sigma z, the
   slope of log p must point back to where they came from,

       L = mean over images of weight/2 ||r||^2,    r = sigma d log p(x~)/dx~ + z,    z ~ N(0,I)

   It learns a density without a single chain. The density is not told sigma: in hundreds of pixels
   it can see it. */
typedef struct jem_score_desc {
    const float *sigma;    /* [n], > 0: noise of each image, from what the eye overlooks to what
                              hides any image: .12 to 2 for pixels in [-1,1] */
    const float *weight;   /* [n]; NULL: all 1 */
    float difference;  /* of the difference, see >>losses below; 0: .03, JEM_PRECISION_BF16 .1 */
} jem_score_desc;
/* n noise levels, evenly spread over lo .. hi in their logarithm; 0 < lo <= hi. */
JEM_API void jem_noise_levels(jem_rng *rng, int n, float lo, float hi, float *sigma);
/* Adds sigma[i] N(0,I) to image i of a leaf. sigma[n], finite. */
JEM_API jem_status jem_add_noise(jem_tensor *leaf, const float *sigma, jem_rng *rng);
/* L, as one number for jem_backward, for clean images x (a leaf) and any log-density: it is asked
   for its slope at once, and recorded on either side. residual (may be NULL): mean ||r||^2 per
   pixel; 1 for a density that knows nothing. */
JEM_API jem_tensor *jem_score_matching(jem_ctx *ctx, jem_logp_fn logp, void *user, jem_tensor *x,
                                       const jem_score_desc *desc, jem_rng *rng, float *residual);

/* Sum over images of v . d log p/dx, one number; x and v are leaves of one shape. Its jem_backward
   gives second derivatives, of the slope by the parameters: it is a difference of two ordinary
   passes, h to either side (0: .003 sqrt(pixels), JEM_PRECISION_BF16 .01). */
JEM_API jem_tensor *jem_slope_along(jem_ctx *ctx, jem_logp_fn logp, void *user, jem_tensor *x,
                                    jem_tensor *v,
                              float h);

/* The loss of a JEM from given data and samples, for those who write their own loop. x, labels:
   cross-entropy, and p(x,y); x_data: p(x) (NULL: x serves both); x_sample, sample_labels: what the
   sampler drew (may be NULL, as may x and labels). terms: tensors of one number each, but logits;
   NULL where they do not occur. */
typedef struct jem_loss_weights {
    float ce;              /* of -log p(y|x) */
    float cd, cd_class;    /* of contrastive divergence on p(x), on p(x,y) */
    float energy_l2;       /* of mean f(x+)^2 + mean f(x-)^2, f = log p(x) */
} jem_loss_weights;
typedef struct jem_loss_terms { jem_tensor *ce, *f_data, *f_sample, *logits; } jem_loss_terms;
JEM_API jem_tensor *jem_loss(jem_net *net, const jem_loss_weights *weights, jem_tensor *x,
                             const int *labels, jem_tensor *x_data, jem_tensor *x_sample,
                             const int *sample_labels, jem_loss_terms *terms);

/* ==== >>samplers: SGLD, noise-blind sampling, replay buffer =================================== */

/* Langevin walk: x <- x + step_size * clamp(d log p/dx) + noise_std * N(0,I), then clamp x.
   Clamping gradients gives the proximal SGLD of Yang & Ji (2021). With decay_b > 0, the size of
   step t is multiplied by s = (1 + t/b)^-gamma and its noise by sqrt(s); the bias of the walk then
   vanishes for gamma in (1/2,1] (Welling & Teh 2011). With hot > 0, noise is multiplied by sqrt(T),
   where the temperature T falls from hot to cold by the same factor at every step (Kirkpatrick &
   others 1983). */
typedef struct jem_sgld_desc {
    int steps;                                     /* 20 */
    float step_size, noise_std;                    /* 1, .01, as in the JEM paper */
    float clamp_grad;                              /* 0: off; else limits gradients to +- this */
    float clamp_lo, clamp_hi;                      /* lo < hi: limits x to this range; 0, 0 */
    float decay_b, decay_gamma;                    /* 0: off */
    float temperature_from, temperature_to;                               /* 0: off */
    /* Called after every step; nonzero stops the walk. May read x, but must not record ops. */
    int (*watch)(void *user, int step, jem_tensor *x);
    void *watch_user;
} jem_sgld_desc;
JEM_API jem_sgld_desc jem_sgld_desc_default(void);
/* Returns the unadjusted Langevin algorithm with step a: step_size a/2, noise_std sqrt(a). */
JEM_API jem_sgld_desc jem_sgld_desc_langevin(float a, int steps);
/* Walks the leaf x in place. Advances rng; with rng NULL it adds no noise. */
JEM_API jem_status jem_sgld(jem_ctx *ctx, jem_logp_fn logp, void *user, jem_tensor *x,
                            const jem_sgld_desc *desc, jem_rng *rng);

/* Walks as jem_sgld does, and returns the term that contrastive divergence omits, which accounts
   for the samples' dependence on the parameters (Du, Li, Tenenbaum & Mordatch 2021): one number for
   jem_backward,

       L_KL = mean E(x; held) - entropy H(x),      x = x' + step_size d log p(x')/dx' + noise

   whose gradient flows through the last step only; `held` parameters receive no gradient. H, the
   entropy of samples of d pixels, is d mean log(distance to the nearest other sample) plus a
   constant (Kozachenko & Leonenko 1987). entropy: 1 as in the paper, 0 to omit H. hot and decay_b
   are not supported; if watch stops the walk, the last step is still taken. */
JEM_API jem_tensor *jem_kl_walk(jem_ctx *ctx, jem_logp_fn logp, void *user, jem_tensor *x,
                                const jem_sgld_desc *desc, float entropy, jem_rng *rng);

/* Noise-blind sampling (Kadkhodaie & Simoncelli 2021, algorithm 1), for a density trained by score
   matching over a range of noise levels. The gradient g of log p estimates the noise in an image of
   d pixels, sigma = sqrt(d)/||g||, and x + sigma^2 g estimates the clean image. Each step covers a
   fraction of that distance, and adds some noise again:

       x <- x + step sigma^2 g + gamma N(0,I),
       gamma^2 = ((1 - beta step)^2 - (1 - step)^2) sigma^2

   Starting from noise it produces a sample; starting from a noisy image, the clean image. One step
   of size 1 without rng is the least-squares denoiser (Miyasawa 1961). */
typedef struct jem_denoise_desc {
    int steps;                                     /* 300 */
    float fraction;                                /* .05: fraction of the noise removed per step */
    float beta;                                    /* .3: 1 adds no noise, near 0 almost all */
    float sigma_max;                               /* 2: upper limit of the estimated sigma */
    int (*watch)(void *user, int step, jem_tensor *x);                 /* as in jem_sgld_desc */
    void *watch_user;
} jem_denoise_desc;
JEM_API jem_denoise_desc jem_denoise_desc_default(void);
/* Returns the desc that removes the remaining noise of a walk, at most sigma: one step of .8, to be
   taken without rng. A full step leaves more grain. */
JEM_API jem_denoise_desc jem_denoise_desc_clean(float sigma);
/* Walks the leaf x in place. To draw a sample, fill x with N(mean, sigma_max^2) first. With rng
   NULL it adds no noise. */
JEM_API jem_status jem_denoise(jem_ctx *ctx, jem_logp_fn logp, void *user, jem_tensor *x,
                               const jem_denoise_desc *desc, jem_rng *rng);

/* Sampling from scratch, in three phases after N(mean, denoise.sigma_max^2): denoising; a walk like
   that of the chains in training, which corrects the first phase; removal of the remaining noise,
   at most `clean`. Each watch can stop only its own phase. jem_net_generate_desc returns the desc for a
   network. */
typedef struct jem_generate_desc {
    float lo, hi;                                  /* lo < hi: starts from U(lo,hi) instead: 0, 0 */
    float mean;                                    /* mean pixel of the data: 0. See jem_net.mean */
    jem_denoise_desc denoise;
    jem_sgld_desc walk;                            /* 300 steps of .01, noise .1 */
    float last_sigma;                                   /* .24, twice the smallest noise level of score
                                                      matching; 0: skips the third phase */
} jem_generate_desc;
JEM_API jem_generate_desc jem_generate_desc_default(void);
/* Replaces the leaf x by samples; its previous content is ignored. */
JEM_API jem_status jem_generate(jem_ctx *ctx, jem_logp_fn logp, void *user, jem_tensor *x,
                             const jem_generate_desc *desc, jem_rng *rng);

/* Replay buffer of chains (persistent contrastive divergence, Tieleman 2008). With classes > 0, the
   slots of class y start at y*(capacity/classes). data[capacity][c][h][w], visits[capacity]. */
typedef struct jem_buffer {
    jem_ctx *ctx;
    int capacity, channels, height, width, classes;
    float *data;
    int *visits;                                   /* walks since the chain's start; -1: none */
    float lo, hi;                                  /* chains start from U(lo,hi): -1, 1 */
} jem_buffer;
/* Creates a buffer whose chains all start from U(-1,1). jem_buffer_restart restarts all of them
   from U(lo,hi), which also applies to later restarts; checkpoints do not store lo and hi (a
   trainer takes them from restart_lo and restart_hi in its desc). */
JEM_API jem_buffer *jem_buffer_create(jem_ctx *ctx, int capacity, int channels, int height,
                                      int width, int classes, jem_rng *rng);
JEM_API void jem_buffer_free(jem_buffer *buffer);
JEM_API jem_status jem_buffer_restart(jem_buffer *buffer, jem_rng *rng, float lo, float hi);
/* Draws n chains (without labels: any; with labels: each from its class's slots) into x[n][c][h][w]
   and their slots into slot[n]; a fraction `reinit` of them restarts from U(lo,hi). */
JEM_API jem_status jem_buffer_draw(jem_buffer *buffer, jem_rng *rng, int n, const int *labels,
                                   float reinit, float *x, int *slot);
/* Stores chains after a walk; if a slot occurs more than once, the last chain is stored. */
JEM_API jem_status jem_buffer_put(jem_buffer *buffer, int n, const int *slot, const float *x);

/* ---- exact samplers (tools/measures.h computes the effective sample size of chains) ---- */

/* A Langevin step has a bias that grows with its size. If a proposal x' is accepted with
   probability min(1, ratio) and otherwise rejected (Metropolis & others 1953; Hastings 1970), the
   chains converge to p exactly. These samplers differ only in the count of `leapfrog` steps before
   each decision (Neal 2011, section 5):
       0   random-walk Metropolis, which needs no gradient: x' = x + step N(0,I)
       1   MALA: the Langevin step of jem_sgld_desc_langevin(step^2, ..), made exact
       L   Hamiltonian Monte Carlo: x' follows Hamilton's equations from x, with momentum N(0,I),
           for the time L step */
typedef struct jem_mcmc_desc {
    int steps;                                     /* proposals: 1000 */
    float step_size;                                    /* .1 */
    int leapfrog;                                  /* 1 */
    int temperatures;                              /* 1; more: replica exchange, see below */
    float hottest;                                 /* highest temperature: 10 */
    float *swapped;                                /* NULL, or [temperatures - 1]: see below */
    int (*watch)(void *user, int step, jem_tensor *x);                 /* as in jem_sgld_desc */
    void *watch_user;
} jem_mcmc_desc;
JEM_API jem_mcmc_desc jem_mcmc_desc_default(void);
/* Walks each image of the leaf x, in place, as a separate chain. accepted[n] (may be NULL) receives
   each chain's acceptance rate. In many dimensions, the best step has an acceptance rate of .23
   with leapfrog 0, .57 with 1 (Roberts & Rosenthal 1998), .65 with more (Beskos & others 2013). If
   logp fails, x may hold a proposal. */
JEM_API jem_status jem_mcmc(jem_ctx *ctx, jem_logp_fn logp, void *user, jem_tensor *x,
                            const jem_mcmc_desc *desc, jem_rng *rng, float *accepted);
/* Replica exchange, for modes that single chains do not connect (Swendsen & Wang 1986; Geyer 1991):
   image i is walked at temperature T = hottest^(k/(temperatures - 1)), k = i % temperatures, on
   p^(1/T), with sqrt(T) times the step. After each proposal, neighbours swap with probability
   min(1, (p(x')/p(x))^(1/T - 1/T')), alternating between even and odd pairs; .swapped receives
   their swap rates. Chains with k = 0 converge to p. The hottest chains should move freely between
   modes, and each swap rate should exceed .2. Annealed SGLD (jem_sgld_desc.hot) is cheaper, but not
   exact. */

/* Annealed importance sampling (Neal 2001): estimates Z in p(x) = exp(logp(x))/Z. Weighted chains
   move from q = N(mean, std^2 I) to p through q^(1-b) p^b. The expected weight is Z for any number
   of levels; more levels reduce the noise of the estimate. */
typedef struct jem_ais_desc {
    int levels;                                    /* 500 */
    float mean, std;                               /* of q, which should cover p: 0, 1 */
    jem_mcmc_desc walk;                            /* at each level: 1 proposal of 5 steps of .1 */
} jem_ais_desc;
typedef struct jem_ais_result {
    double log_z;
    double error;                                  /* standard deviation of log_z; HUGE_VAL for a
                                                      single chain, where it is unknown */
    double chains;                                 /* effective sample size; if it is below 10, use
                                                      more levels */
} jem_ais_result;
JEM_API jem_ais_desc jem_ais_desc_default(void);
/* Estimates log Z with one chain per image of the leaf x. Ignores the content of x, and replaces it
   by the final states of the chains. */
JEM_API jem_status jem_ais(jem_ctx *ctx, jem_logp_fn logp, void *user, jem_tensor *x,
                           const jem_ais_desc *desc, jem_rng *rng, jem_ais_result *result);

/* ==== >>optim: Adam, SGD, schedules =========================================================== */

typedef enum jem_optimizer { JEM_OPTIMIZER_ADAM = 0, JEM_OPTIMIZER_SGD,
                             JEM_OPTIMIZER_MUON } jem_optimizer;

typedef struct jem_optim_desc {
    jem_optimizer kind;
    float beta1, beta2, eps;                       /* Adam (Kingma & Ba 2015): .9, .999, 1e-8 */
    float momentum;                                /* SGD, PyTorch's convention: 0 */
    float weight_decay;                            /* L2 added to the gradient: 0 */
    float clip;                                    /* 0: off; else limits the gradient's L2 norm */
    float ema;                                     /* 0: off; else averages the weights: an update
                                                      counts 1 - ema, the first ones more */
    const char *only;                              /* NULL: all; else names that begin with this;
                                                      read at creation only */
    /* Muon (Jordan & others 2024): the momentum of a weight matrix, (O,I) or (O,I*k*k), is replaced
       by nearly the closest matrix with orthogonal rows or columns, found by five Newton-Schulz
       steps: every direction is learned at the same rate. A step is .2 sqrt(max(rows, columns)) lr,
       about as long as Adam's (Liu & others 2025), so one rate serves both: Adam updates biases,
       norms, and the weights whose names contain `adam_names`. Weight decay is decoupled: a step
       multiplies a matrix by 1 - lr * weight_decay. */
    float muon_momentum;                           /* .95, Nesterov's */
    const char *adam_names;                        /* "output": the last layers; read at creation */
} jem_optim_desc;
JEM_API jem_optim_desc jem_optim_desc_default(void);

typedef struct jem_optim jem_optim;
JEM_API jem_optim *jem_optim_create(jem_net *net, const jem_optim_desc *desc);
JEM_API void jem_optim_free(jem_optim *opt);
/* Updates the net's parameters from their gradients, which stay as they are (if clipped, scaled).
   grad_norm (may be NULL) receives their norm before clipping. If that and what weight decay adds
   is not finite, or above 1e18, the result is JEM_DIVERGED, and nothing changes; nor does it after
   an error that the context still has. */
JEM_API jem_status jem_optim_step(jem_optim *opt, float lr, float *grad_norm);
/* on = 1: puts the averaged weights (ema) into the net and sets the trained ones aside. on = 0:
   puts the trained ones back, as jem_optim_step also does. Swaps values, not gradients. It swaps
   pointers: read a parameter's value anew. jem_optim_free leaves what is in the net there. */
JEM_API jem_status jem_optim_use_average(jem_optim *opt, int on);

typedef enum jem_schedule_kind { JEM_SCHEDULE_CONSTANT = 0, JEM_SCHEDULE_STEPS,
                                 JEM_SCHEDULE_COSINE } jem_schedule_kind;
typedef struct jem_schedule {
    jem_schedule_kind kind;
    int warmup;                                    /* linear from 0 over this many updates */
    int total;                                     /* cosine: length of the run, in updates */
    float floor;                                   /* cosine: ends at floor*lr */
    float rate;                                    /* steps: multiplies the rate at each .. */
    int at[4];                                     /* .. of these updates (0: unused) */
} jem_schedule;
/* The rate for update number `update` (from 0). */
JEM_API float jem_learning_rate(const jem_schedule *schedule, float lr, int update);

/* ==== >>train: one step at a time ============================================================= */

/* Several machines train one model if each runs the same program on the same data, with its own
   rank. Each takes its share of a step's images and chains; `sum` adds up x[n] over all ranks, in
   place: chains after their walk, and before the optimiser's step the gradients and the numbers of
   jem_stats, as one array. So all hold the same state, chains included: any of them can save it,
   any number of them go on with it. With whole groups of 16 images per rank it is one process's
   training to rounding, batch norm apart. What diverges does so on all; `sum` may jem_fail. */
typedef void (*jem_sum_fn)(void *user, float *x, ptrdiff_t n);

/* The defaults are the paper's; the batch size is up to you at every step. */
typedef struct jem_train_desc {
    float lr;                                      /* 1e-4 */
    jem_schedule schedule;                         /* constant, no warm-up */
    jem_optim_desc optim;                          /* Adam */
    float w_ce;                                    /* weight of -log p(y|x): 1 */
    float w_cd;                                    /* of contrastive divergence on p(x): 1 */
    float w_cd_class;                              /* on p(x,y): 0 */
    float w_score;                                 /* of score matching (>>losses): 0 */
    float w_kl, kl_entropy;                           /* of L_KL, of H in it (jem_kl_walk): 0, 1 */
    float energy_l2;                               /* of mean f(x+)^2 + mean f(x-)^2: 0 */
    /* 0: off; else sharpness-aware (Foret & others 2021; Yang, Su & Ji 2023): the gradient where,
       so far from the weights, the loss is worst. Not with w_score; it and w_kl: with one rank. */
    float sam;
    float data_noise;                             /* std of the noise added to data: .03 */
    /* Either > 0: cross-entropy has images of its own, a share label_wide with all noise levels of
       score matching, the rest with noise of std U(0, label_noise): 0, 0. What knows classes in
       noise makes samples by class, and better ones. Not with w_cd_class. */
    float label_noise, label_all_noise;
    float noise_lo, noise_hi;                      /* score matching's noise levels: .12, 2 */
    int cd_from;                                   /* the first update with chains: 0 */
    jem_sgld_desc sgld;                            /* 20 steps of 1, noise .01 */
    int negatives;                                 /* chains per step (64); 0: one per data image */
    int buffer_size;                               /* 10000 */
    float reinit;                                  /* fraction of chains restarted: .05 */
    float restart_lo, restart_hi;                  /* from U(lo,hi), the range of data: -1, 1 */
    /* If its steps > 0 (0), they restart from noise-blind samples instead: as many as a walk has
       chains, every 1/reinit updates, into any slots of the buffer. */
    jem_denoise_desc restart_denoise;
    /* NULL, or called on each chain x[c][h][w] that is drawn, before its walk. May change it: begin
       it elsewhere if visits is 0, or move it about as data are (Du, Li, Tenenbaum & Mordatch
       2021). label: its class, or -1. Must take all that is random from rng. */
    void (*chain)(void *user, jem_rng *rng, int visits, int label, float *x);
    void *chain_user;
    int class_conditional;                         /* 1: slots by class, chains follow p(x|y) */
    float diverged;                                /* |loss| above this is an error: 1e8 */
    /* The guard. Every 100 updates the trainer keeps a copy of its state, if that is a good one:
       the gap f(x+) - f(x-) is at most a twentieth of max_gap times the network's scale. Where the
       mean gap of about ten updates exceeds max_gap times that scale, or an update diverges, the
       trainer returns to the copy, takes other random numbers, and goes on with half the rate and
       half the step of SGLD (with noise of the same temperature). The rate recovers; the step does
       not. Without chains, the gap is 0. The copy has the size of the parameters, the optimiser's
       numbers and the buffer; it is allocated at update 100 and is part of checkpoints. Before
       that, divergence is an error. */
    float max_gap;                                 /* 100 */
    int max_returns;                               /* 20; after these, an error. 0: no guard */
    float least_scale;                             /* a smaller jem_net.scale is an error, except
                                                      for a network with a shift: 0 */
    uint64_t seed;                                 /* 1 */
    int rank, ranks;                               /* this one of so many: 0 of 1 */
    jem_sum_fn sum;                                /* examples/mpi.c: MPI_Allreduce */
    void *sum_user;
} jem_train_desc;
JEM_API jem_train_desc jem_train_desc_default(void);
/* For a run of so many updates with batches of 64 small images in [-1,1], and a network with
   scale = 10: the score first, chains in the last quarter. Sooner and better than chains alone.
   Its least_scale is 2: a network with the default scale of 1 and no shift is refused, as it learns
   no score. */
JEM_API jem_train_desc jem_train_desc_score(int updates);

typedef struct jem_stats {
    jem_status status;
    int update;                                    /* from 0 */
    float loss, ce, cd;                            /* cd = f_sample - f_data */
    float score, residual, kl;                     /* see jem_score_matching, jem_kl_walk */
    float f_data, f_sample;                        /* mean log p(x) of data and of samples */
    float accuracy;                                /* of this batch */
    float lr, grad_norm;                           /* lr: as the guard reduced it */
    int returned, returns;                         /* 1: the guard returned at this update; count
                                                      of its returns since the trainer began */
} jem_stats;

typedef struct jem_trainer jem_trainer;
/* The trainer does not own the net, and is freed before it. */
JEM_API jem_trainer *jem_trainer_create(jem_net *net, const jem_train_desc *desc);
JEM_API void jem_trainer_free(jem_trainer *tr);
/* One update from n labelled images x[n][c][h][w], labels 0..classes-1, in random order: the first
   of a batch get other noise than the last. Images must be in -10^4 .. 10^4 (here and wherever a
   network's images are given as x). If status is an error, the trainable parameters are unchanged:
   the trained ones, as jem_trainer_use_average(.., 0) puts them back before anything else. When the
   guard returns, status is JEM_OK, the update counts as one, the numbers are those that led to the
   return (0 where they are not finite), and the context's log gets a note. After the last return
   that desc.max_returns allows, status is JEM_DIVERGED; the parameters are then those of the last
   good state. */
JEM_API jem_stats jem_train_step(jem_trainer *tr, const float *x, const int *labels, int n);
/* The same with separate images for p(x), which need no labels. n may be 0. */
JEM_API jem_stats jem_train_step_semi(jem_trainer *tr, const float *x, const int *labels, int n,
                                      const float *x_unlabelled, int n_unlabelled);
JEM_API jem_buffer *jem_trainer_buffer(jem_trainer *tr);                 /* owned by the trainer */
JEM_API int jem_trainer_updates(const jem_trainer *tr);                  /* made so far */
/* As jem_optim_use_average: on = 1 to evaluate or save the averaged weights, 0 to train on. */
JEM_API jem_status jem_trainer_use_average(jem_trainer *tr, int on);
/* Switches to other random numbers, to try again from a good checkpoint after JEM_DIVERGED. */
JEM_API void jem_trainer_reseed(jem_trainer *tr, uint64_t seed);
/* Replaces desc.lr; the schedule still applies to it. If lr is not above 0, nothing changes. */
JEM_API void jem_trainer_set_lr(jem_trainer *tr, float lr);

/* ==== >>eval: classify, accuracy ============================================================== */

typedef struct jem_answer {
    int label;
    float probability;     /* p(label|x) */
    float log_density;     /* log p(x), up to a constant of the network */
    float familiarity;     /* share of calibration images that are stranger, by JEM_OOD_SLOPES after
                              jem_calibrate_slopes, else by JEM_OOD_USUAL; -1: not calibrated */
} jem_answer;
/* x[n][c][h][w]; one answer per image. */
JEM_API jem_status jem_classify(jem_net *net, const float *x, int n, jem_answer *answers);
/* Remembers how images known to be normal (some hundreds, not trained on) look to the network, so
   that jem_answer.familiarity means something; saved with the network. Training leaves it as it is:
   calibrate again. (Files written before that was so hold the spread of log p(x): with them, a less
   likely image is a stranger one.) */
JEM_API jem_status jem_calibrate(jem_net *net, const float *x, int n);
/* Calibrates as jem_calibrate does, and for JEM_OOD_SLOPES, too: each answer's familiarity then
   costs `gradients` of log p(x). 0: it compares log p(x) and the logits; 1: also the slope at the
   image; 2 and 3: also the slope at one and at two noise levels, for networks that have learned a
   score (others: JEM_BAD_ARGUMENT). The p-value is honest from some 500 images on. The text
   "jem.slopes" holds the result; jem_calibrate removes it. */
JEM_API jem_status jem_calibrate_slopes(jem_net *net, const float *x, int n, int gradients);
JEM_API float jem_accuracy(jem_net *net, const float *x, const int *labels, int n);  /* <0: error */

JEM_API jem_status jem_logits(jem_net *net, const float *x, int n, float *f);    /* f[n][classes] */
/* The temperature, .01 to 100, by which logits must be divided to make -log p(y|x) of held-out
   images least (Guo et al. 2017); negative: an error. jem_answer.probability obeys it from here on,
   labels and log p(x) stay. It is saved with the network, as meta "jem.temperature", and removing
   that undoes it. */
JEM_API float jem_fit_temperature(jem_net *net, const float *x, const int *labels, int n);

/* Does the network know what it has not seen? Scores of images, higher for more usual ones. USUAL
   finds what is too likely strange, too. It wants jem_calibrate, and costs no gradient. */
typedef enum jem_ood {
    JEM_OOD_LOGP = 0,      /* log p(x) */
    JEM_OOD_MAXP,          /* the highest p(y|x), as log odds (Hendrycks & Gimpel 2017) */
    JEM_OOD_MASS,          /* -||d log p(x)/dx||: approximate mass (Grathwohl et al. 2020) */
    JEM_OOD_RISE,          /* minus what log p(x) gains by a walk without noise */
    JEM_OOD_MOVE,          /* minus how far that walk goes */
    JEM_OOD_USUAL,         /* minus the Mahalanobis distance of (log p(x), mean logit) from those of
                              calibration images that get the same label */
    JEM_OOD_SLOPES         /* the same of logits, log p(x) and slopes, in units of what is usual for
                              the label; needs jem_calibrate_slopes (Mahmood, Oliva & Styner 2021;
                              Lee et al. 2018) */
} jem_ood;
/* walk: of RISE and MOVE; NULL is 10 steps of 1, or of noise_lo^2 for a network that has learned
   its score. (tools/measures.h has AUROC and the like.) */
JEM_API jem_status jem_ood_score(jem_net *net, jem_ood kind, const jem_sgld_desc *walk,
                                 const float *x, int n, float *score);

/* How easily is it fooled? Projected gradient descent (Madry et al. 2018) on log p(y|x). */
typedef struct jem_attack_desc {
    float eps;             /* how far from the image: .2. HUGE_VALF: any distance, with a step */
    int l2;                /* 0: no pixel by more than that (L-infinity); 1: in L2 norm */
    int steps;             /* 40; 1 without random_start is FGSM (Goodfellow et al. 2015) */
    float step_size;            /* 0: 2.5 eps / steps, and eps for a single step */
    int restarts;          /* 1: attempts in all */
    int random_start;      /* 1: anywhere within eps, if that is finite; 0: at the image */
    int targeted;          /* 1: labels are what images shall become; 0: what they shall not be */
    float least_probability;            /* targeted: done when p(label|x) is the highest and at least this: 0 */
    float lo, hi;          /* pixels stay in this range, or do not leave it further: -1, 1 */
    /* What to fool instead of the network itself, a classifier that refines its images first, say:
       logits f[n][classes] of x[n][c][h][w], gradients of log p(label|x) to g (not if NULL), or
       better, for a sure one, of the label's log-odds (jem_log_odds). */
    jem_status (*classify)(void *user, const float *x, const int *labels, int n, float *f,
                           float *g);
    void *user;
} jem_attack_desc;
JEM_API jem_attack_desc jem_attack_desc_default(void);
/* x[n][c][h][w] to found[n][c][h][w] (which may be x): the first that does it, or the last that was
   tried. fooled[n] (may be NULL): whether it does; an image that was wrong from the start stays as
   it is. */
JEM_API jem_status jem_attack(jem_net *net, const float *x, const int *labels, int n,
                              const jem_attack_desc *desc, jem_rng *rng, float *found, int *fooled);

/* What is missing: pixels of x (a leaf) whose known[n][c][h][w] is not 0 are held, the others are
   sampled, in place: with denoise.steps > 0, for a density that has learned its score, noise-blind
   from sigma_max down, with as much noise on what is known; then by a walk. Each step takes most of
   the noise off and puts nearly all of it back: time for what is sampled to agree with what is
   known (as in RePaint, Lugmayr et al. 2022). */
typedef struct jem_impute_desc {
    jem_denoise_desc denoise;                      /* .8, beta .019; steps 0, or for a density with
                                                      a score 300: .01 of the noise stays */
    jem_sgld_desc walk;                            /* 300 steps of 1, noise .01 */
    float lo, hi;                                  /* without denoise they begin as U(lo,hi): -1, 1;
                                                      as they are in x: lo = hi */
} jem_impute_desc;
JEM_API jem_impute_desc jem_impute_desc_default(void);
JEM_API jem_status jem_impute(jem_ctx *ctx, jem_logp_fn logp, void *user, jem_tensor *x,
                              const float *known, const jem_impute_desc *desc, jem_rng *rng);

/* Pictures as programs have them: 8-bit pixels, row by row from the top left, of `channels` bytes:
   1 grey, 2 grey and alpha, 3 RGB, 4 RGBA (as stb_image gives them). */
typedef struct jem_pixels_desc {                   /* zero means default, NULL is all defaults */
    float lo, hi;                                  /* what 0 and 255 are to the network: -1, 1 */
    int background;                                /* behind alpha: grey 0 (default) to 255 */
    int invert;                                    /* 1: black on white becomes white on black */
} jem_pixels_desc;
enum {                                             /* what was done to a picture, added up */
    JEM_DID_RESIZE = 1, JEM_DID_STRETCH = 2,       /* to the network's size; of other proportions */
    JEM_DID_GREY = 4, JEM_DID_COLOUR = 8,          /* colour made grey; grey to every channel */
    JEM_DID_BLEND = 16, JEM_DID_INVERT = 32        /* laid over the background; inverted */
};
/* One picture of any size to what the network takes, x[c][h][w]; each pixel is the mean of the area
   it covers (of the nearest, if the picture is smaller). did may be NULL. Networks of 1 or 3
   channels. */
JEM_API jem_status jem_pixels_to_floats(const jem_net *net, const unsigned char *pixels, int width,
                                        int height, int channels, const jem_pixels_desc *desc,
                                        float *x, int *did);
/* n images x[n][c][h][w] of a network to pixels[n][h][w][c], held to 0..255. */
JEM_API jem_status jem_floats_to_pixels(const jem_net *net, const float *x, int n,
                                        const jem_pixels_desc *desc, unsigned char *pixels);
/* jem_classify for one such picture. */
JEM_API jem_status jem_classify_pixels(jem_net *net, const unsigned char *pixels, int width,
                                       int height, int channels, const jem_pixels_desc *desc,
                                       jem_answer *answer, int *did);
/* How samples of a network are best made, by what it has learned. A score: noise-blind from its
   largest noise, and guidance 7, for clear specimens of a class. Otherwise: 300 steps of SGLD from
   U(-1,1), and guidance 1. */
JEM_API jem_generate_desc jem_net_generate_desc(const jem_net *net);
JEM_API jem_guide jem_net_guide(jem_net *net, const int *labels);
/* n samples of a class (label -1: of any) to pixels[n][h][w][c], made in this way; without a score,
   from U(lo,hi) of the pixels. The same n and seed give the same samples. */
JEM_API jem_status jem_sample(jem_net *net, int label, int n, uint64_t seed,
                              const jem_pixels_desc *desc, unsigned char *pixels);

/* ==== >>io: safetensors ======================================================================= */
/* Named arrays and short texts in a file: 8 bytes of length, a JSON header, the data
   (github.com/huggingface/safetensors). PyTorch can read these files, and jem.h PyTorch's. */

typedef enum jem_dtype { JEM_DTYPE_F32 = 0, JEM_DTYPE_I32, JEM_DTYPE_I64, JEM_DTYPE_U8 } jem_dtype;
typedef struct jem_entry {
    const char *name;
    jem_dtype dtype;
    int ndim;
    int64_t shape[8];
    const void *data;      /* aligned to 8 bytes */
    size_t bytes;
} jem_entry;
typedef struct jem_archive jem_archive;
JEM_API jem_archive *jem_archive_create(jem_ctx *ctx);
/* Copies everything it needs; `bytes` may be freed. Damaged input: NULL and an error. Of the
   format's dtypes F32, I32, I64 and U8 are kept, F64, F16 and BF16 become JEM_DTYPE_F32, BOOL JEM_DTYPE_U8.
   Tensors of any other dtype are skipped, with a note to the context's log. */
JEM_API jem_archive *jem_archive_parse(jem_ctx *ctx, const void *bytes, size_t size);
JEM_API void jem_archive_free(jem_archive *a);
JEM_API int jem_archive_count(const jem_archive *a);
JEM_API const jem_entry *jem_archive_at(const jem_archive *a, int i);
JEM_API const jem_entry *jem_archive_find(const jem_archive *a, const char *name);
/* The name is copied, the data is NOT: it must stay until the archive is written or freed. */
JEM_API jem_status jem_archive_add(jem_archive *a, const char *name, jem_dtype dtype, int ndim,
                                   const int64_t *shape, const void *data);
/* UTF-8, up to 4096 of them; copied. NULL removes. */
JEM_API jem_status jem_archive_set_meta(jem_archive *a, const char *key, const char *value);
JEM_API const char *jem_archive_meta(const jem_archive *a, const char *key);
/* The file's bytes, from the context's allocator: free them with jem_release. */
JEM_API void *jem_archive_to_memory(const jem_archive *a, size_t *size);

#ifndef JEM_NO_STDIO
JEM_API jem_archive *jem_archive_read(jem_ctx *ctx, const char *path);
/* Writes a new file beside it (path.XXXXXXXX.tmp, never one that is there), syncs it, renames it to
   path and syncs the folder: whatever fails, and whoever else writes there, path is whole. What
   stands at path must be a regular file, whose mode is kept, and no symbolic link (POSIX). A
   process killed in between leaves the .tmp, which may be deleted. */
JEM_API jem_status jem_archive_write(const jem_archive *a, const char *path);
#endif

/* ==== >>checkpoint: networks and trainers in files ============================================ */
/* A network's parameters and description (every field of its desc, to the bit), as an archive and
   back: what jem_*_create accepts, loading accepts, and no more. The archive points at the
   parameters: write it before they change. From one without a description (PyTorch's own), create
   the net first and use jem_net_load. */
JEM_API jem_status jem_net_to_archive(const jem_net *net, jem_archive *a);
JEM_API jem_net *jem_net_from_archive(jem_ctx *ctx, const jem_archive *a);
/* The archive must have every parameter of the net, with its shape; otherwise nothing changes.
   Other entries are ignored, and of its texts all but the network's scale and noise (see jem_net)
   and what was fitted to its weights (jem_calibrate, jem_fit_temperature). */
JEM_API jem_status jem_net_load(jem_net *net, const jem_archive *a);

/* Everything that a trainer holds besides the network's parameters: the optimiser's moments and
   averages (or trained weights, see jem_trainer_use_average), replay buffer, random numbers,
       counts,
   and once it has one, the guard's good state (which nearly doubles the file).
   With jem_net_to_archive this makes a checkpoint: load the network, create a trainer with the same
   desc, and training continues bit for bit. The archive points into both, so write it before the
   next step. On an error, from_archive changes nothing. */
JEM_API jem_status jem_trainer_to_archive(jem_trainer *tr, jem_archive *a);
JEM_API jem_status jem_trainer_from_archive(jem_trainer *tr, const jem_archive *a);

#ifndef JEM_NO_STDIO
JEM_API jem_net *jem_load(jem_ctx *ctx, const char *path);
JEM_API jem_status jem_save(const jem_net *net, const char *path);
#endif

#ifdef __cplusplus
}
#endif
#endif /* JEM_H */

/* ==============================================================================================
   STOP HERE if you only use the API. Below is how it works: the same rooms, in the same order.
   ============================================================================================== */
#ifndef JEM_FILE
#define JEM_FILE "jem.h"
#endif

#if defined(JEM_IMPLEMENTATION) && !defined(JEM__IMPLEMENTED)
#define JEM__IMPLEMENTED

/* ==== >>platform: status, context, instruction sets =========================================== */

#include <math.h>
#include <stdarg.h>
#include <stdio.h>         /* vsnprintf; files only without JEM_NO_STDIO */
#include <stdlib.h>
#include <string.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#if !defined(JEM_NO_SIMD) && defined(__GNUC__) && defined(__x86_64__)
#define JEM__X86 1
/* AVX-512 BF16 and AMX; gcc for Windows writes tile addresses that cannot be assembled. */
#if defined(__clang__) || (__GNUC__ >= 11 && !defined(_WIN32))
#define JEM__X86_BF16 1
#endif
#include <cpuid.h>
#if !defined(__clang__)    /* gcc 12 warns about its own AVX-512 header */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#if !defined(__clang__)
#pragma GCC diagnostic pop
#endif
#elif !defined(JEM_NO_SIMD) && defined(__GNUC__) && defined(__aarch64__)
#define JEM__ARM 1
#include <arm_neon.h>
#elif !defined(JEM_NO_SIMD) && defined(__wasm_simd128__)
#define JEM__WASM 1
#include <wasm_simd128.h>
#endif

#ifdef __GNUC__
#define JEM__PRINTF(f, a) __attribute__((format(printf, f, a)))
#define JEM__INLINE static inline __attribute__((always_inline))
#define JEM__ONCE static __attribute__((noinline))         /* code for all who call it */
#else
#define JEM__PRINTF(f, a)
#define JEM__INLINE static
#define JEM__ONCE static
#endif

/* Only full unrolling keeps the accumulators in registers; each compiler spells it its own way. */
#if defined(__clang__)
#define JEM__UNROLL _Pragma("clang loop unroll(full)")
#elif defined(__GNUC__)
#define JEM__UNROLL _Pragma("GCC unroll 16")
#else
#define JEM__UNROLL
#endif

/* Asks for the line of memory where p[n] is, or would be: nothing is read, so it may lie outside of
   every array, and is no pointer until here. (To C++ the builtin may throw.) */
#ifdef __GNUC__
JEM__INLINE __attribute__((nothrow)) void jem__prefetch(const float *p, ptrdiff_t n) {
    __builtin_prefetch((const void *)((uintptr_t)p + (uintptr_t)n * sizeof *p));
}
#else
JEM__INLINE void jem__prefetch(const float *p, ptrdiff_t n) { (void)p, (void)n; }
#endif

/* Most of gcc's time goes into the last percents of speed, which only the kernels are worth: what
   stands between these two is compiled with that option. */
#if defined(__GNUC__) && !defined(__clang__) && defined(__OPTIMIZE__)
#define JEM__PRAGMA(text) _Pragma(#text)
#define JEM__COMPILE(option) JEM__PRAGMA(GCC push_options) JEM__PRAGMA(GCC optimize(option))
#define JEM__COMPILE_END JEM__PRAGMA(GCC pop_options)
#else
#define JEM__COMPILE(option)
#define JEM__COMPILE_END
#endif

JEM__COMPILE("Og")

#define JEM__ZEROED(type, name) type name; memset(&name, 0, sizeof name)

typedef struct jem__chunk { struct jem__chunk *next; size_t size; } jem__chunk;

struct jem_ctx {
    jem_ctx_desc desc;
    const struct jem__kernels *k;
    const struct jem__bf16 *bf16;                  /* of JEM_PRECISION_BF16, or NULL */
    jem_isa isa;
    int threads;
    jem_status status;
    int errors;                                    /* so many, of which the first is kept */
    char message[512];
    size_t held, peak, allocations;                /* see jem_memory */
    jem__chunk *chunks, *chunk;                    /* the arena: all chunks, the one in use */
    size_t used;                                   /* bytes of the chunk in use */
    struct jem__node **nodes;                      /* the tape, in the order it was recorded */
    struct jem__step *steps;                       /* of each node, during a run */
    int n_nodes, cap_nodes;
    double params_left;                            /* how many a file may still create */
    uint64_t pushes;                               /* counts arena allocations, to order them */
    int rank, others;                              /* during a step of several ranks (>>train) */
};

/* Names in files must not command a terminal: control characters, also those of 8 bits (U+0080 to
   U+009F, or bare), become '?'. */
static void jem__harmless(char *text) {
    for (unsigned char *c = (unsigned char *)text; *c; c++) {
        int more = *c < 0xC2 ? 0 : *c < 0xE0 ? 1 : *c < 0xF0 ? 2 : 3, k = 1;
        while (k <= more && (c[k] & 0xC0) == 0x80) k++;
        if (k <= more || (*c == 0xC2 && c[1] < 0xA0)) more = 0;
        if (*c < 32 || *c == 127 || (*c >= 0x80 && !more)) *c = '?';
        c += more;
    }
}

/* Replaces a locale's decimal point, a comma or two bytes, by a point. */
static void jem__with_point(char *text) {
    char *to = text;
    for (const char *s = text; *s; s++) {
        const int letter = (*s >= 'a' && *s <= 'z') || (*s >= 'A' && *s <= 'Z');
        if (letter || strchr("-+() 0123456789", *s)) *to++ = *s;
        else if (to == text || to[-1] != '.') *to++ = '.';
    }
    *to = 0;
}

/* Does what vsnprintf does, in every locale alike. Understands %c, %d, %ld, %e, %f, %g, %s, %u, %x
   and %%, without '*'. */
static void jem__message(char *out, size_t room, const char *format, va_list list) {
    size_t n = 0;
    out[0] = 0;
    while (*format && n + 1 < room) {
        char how[16] = { 0 }, *to = out + n;
        size_t length = strcspn(format, "%");
        if (length) {                              /* text */
            if (length > room - n - 1) length = room - n - 1;
            memcpy(to, format, length);
            to[length] = 0;
        } else {
            length = 2 + strcspn(format + 1, "%cdefgsux");
            if (length >= sizeof how) return;
            memcpy(how, format, length);
            const char kind = how[length - 1];
            if (kind == '%') snprintf(to, room - n, "%%");
            else if (kind == 's') snprintf(to, room - n, how, va_arg(list, const char *));
            else if (strchr("efg", kind)) {
                snprintf(to, room - n, how, va_arg(list, double));
                jem__with_point(to);
            } else if (how[length - 2] == 'l') snprintf(to, room - n, how, va_arg(list, long));
            else snprintf(to, room - n, how, va_arg(list, int));
        }
        format += length;
        n += strlen(to);
    }
}

/* Keeps an error, if it is the first. */
JEM__PRINTF(3, 4)
static jem_status jem__fail(jem_ctx *ctx, jem_status status, const char *format, ...) {
    va_list list;
    if (ctx) ctx->errors++;
    if (!ctx || ctx->status != JEM_OK) return status;
    va_start(list, format);
    jem__message(ctx->message, sizeof ctx->message, format, list);
    va_end(list);
    jem__harmless(ctx->message);
    ctx->status = status;
    if (ctx->desc.log) ctx->desc.log(ctx->desc.user, ctx->message);
    return status;
}
/* The same, where a pointer is returned. */
#define jem__null(...) (jem__fail(__VA_ARGS__), (void *)NULL)

JEM__INLINE uint32_t jem__float_bits(float f) { uint32_t u; memcpy(&u, &f, 4); return u; }
JEM__INLINE float jem__bits_float(uint32_t u) { float f; memcpy(&f, &u, 4); return f; }
/* By the bits: -ffast-math lets a compiler assume that a comparison is never with a NaN. */
static int jem__finite(float x) { return (jem__float_bits(x) & 0x7f800000u) != 0x7f800000u; }

/* 1 if lo <= value <= hi; otherwise says so, by name and value; a desc's fields come as d.name. */
static int jem__in_range(jem_ctx *ctx, const char *what, const char *name, double value, double lo,
                         double hi) {
    if (jem__finite((float)value) && value >= lo && value <= hi) return 1;
    jem__fail(ctx, JEM_BAD_ARGUMENT, "%s: %s = %g is not in %g..%g", what,
              strncmp(name, "d.", 2) ? name : name + 2, value, lo, hi);
    return 0;
}
#define JEM__IN(x, lo, hi) jem__in_range(ctx, what, #x, (double)(x), (double)(lo), (double)(hi))
#define JEM__TINY 1e-30    /* above 0 */
#define JEM__MOST 3.4e38
/* 1 if there are n > 0 labels, each 0..classes-1; otherwise says what is wrong. */
static int jem__labels_good(jem_ctx *ctx, const char *what, const int *labels, int n, int classes) {
    int i = 0;
    while (labels && i < n && labels[i] >= 0 && labels[i] < classes) i++;
    if (n > 0 && i == n) return 1;
    if (labels && i < n)
        jem__fail(ctx, JEM_BAD_ARGUMENT, "%s: label %d of image %d is not in 0..%d", what,
                  labels[i], i, classes - 1);
    else jem__fail(ctx, JEM_BAD_ARGUMENT, "%s: no labels of %d images", what, n);
    return 0;
}

jem_status jem_fail(jem_ctx *ctx, jem_status status, const char *message) {
    return status == JEM_OK ? JEM_OK : jem__fail(ctx, status, "%s", message ? message : "");
}
const char *jem_error(const jem_ctx *ctx) { return ctx ? ctx->message : "no context"; }
jem_status jem_error_status(const jem_ctx *ctx) { return ctx ? ctx->status : JEM_BAD_ARGUMENT; }
int jem_ok(const jem_ctx *ctx) { return ctx && ctx->status == JEM_OK; }
void jem_clear_error(jem_ctx *ctx) {
    if (ctx) ctx->status = JEM_OK, ctx->message[0] = 0;
}

/* Under the address sanitizer, memory that is not in use cannot be touched unnoticed. */
#if defined(__SANITIZE_ADDRESS__)
#define JEM__ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define JEM__ASAN 1
#endif
#endif
#ifdef JEM__ASAN
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(at, size) ((void)(at), (void)(size))
#define ASAN_UNPOISON_MEMORY_REGION(at, size) ((void)(at), (void)(size))
#endif

/* Every allocation is zeroed, aligned to 64 bytes (an AVX-512 register, a cache line), and counted.
   The head in front of it holds its true start and size. */
typedef struct jem__head { void *start; size_t bytes; } jem__head;

static void *jem__alloc(jem_ctx *ctx, size_t bytes) {
    size_t total = bytes + 64 + sizeof(jem__head);
    void *start = total < bytes ? NULL
                : ctx->desc.allocate ? ctx->desc.allocate(ctx->desc.user, total) : calloc(1, total);
    if (!start)
        return jem__null(ctx, JEM_NO_MEMORY, "out of memory: %.1f MB asked for, %.1f MB held",
                         (double)bytes / 1048576.0, (double)ctx->held / 1048576.0);
    uintptr_t at = ((uintptr_t)start + sizeof(jem__head) + 63) & ~(uintptr_t)63;
    jem__head *head = (jem__head *)at - 1;
    head->start = start, head->bytes = total;
    ctx->held += total, ctx->allocations++;
    if (ctx->held > ctx->peak) ctx->peak = ctx->held;
    if (ctx->desc.allocate) memset((void *)at, 0, bytes);    /* calloc touches no page early */
    ASAN_POISON_MEMORY_REGION((char *)at + bytes, total - bytes - (size_t)(at - (uintptr_t)start));
    return (void *)at;
}
static void jem__free(jem_ctx *ctx, void *memory) {
    if (!memory) return;
    jem__head *head = (jem__head *)memory - 1;
    void *start = head->start;
    ASAN_UNPOISON_MEMORY_REGION(start, head->bytes);
    ctx->held -= head->bytes;
    if (ctx->desc.release) ctx->desc.release(ctx->desc.user, start); else free(start);
}

static int jem__all_finite(const float *x, ptrdiff_t n) {
    while (n > 0 && jem__finite(x[n - 1])) n--;
    return n <= 0;
}

/* a b + c, rounded once. Where the C library's is not (MinGW) or is slow (WebAssembly), the product
   is exact in double; where the sum there is halfway between two floats, or below the normal ones,
   it is rounded to odd, so that rounding it to float is right (Boldo & Melquiond 2008). */
#if defined(_WIN32) || defined(__wasm__)
static float jem__fmaf(float a, float b, float c) {
    const double p = (double)a * (double)b, z = (double)c, s = p + z;
    uint64_t bits;
    memcpy(&bits, &s, sizeof bits);
    if ((bits & 0x1fffffff) != 0x10000000 && (bits >> 52 & 0x7ff) > 0x380) return (float)s;
    const double t = s - p, error = (p - (s - t)) + (z - t);           /* of the sum: Knuth */
    if (error != 0 && !(bits & 1) && (bits >> 52 & 0x7ff) != 0x7ff)
        bits += (error > 0) == (s > 0) ? 1 : (uint64_t)-1;
    double odd;
    memcpy(&odd, &bits, sizeof odd);
    return (float)odd;
}
#else
#define jem__fmaf(a, b, c) fmaf(a, b, c)
#endif

/* So many floats can be addressed: more would wrap where pointers have 32 bits. */
#define JEM__FLOATS (PTRDIFF_MAX / 8)
static void *jem__too_much(jem_ctx *ctx) {
    return jem__null(ctx, JEM_NO_MEMORY, "out of memory: more asked for than can be addressed");
}
static size_t jem__float_bytes(ptrdiff_t n) {      /* if there are so many: else none has them */
    return n >= 0 && n <= JEM__FLOATS ? (size_t)n * sizeof(float) : (size_t)-1;
}
static float *jem__alloc_floats(jem_ctx *ctx, ptrdiff_t n) {
    return (float *)jem__alloc(ctx, jem__float_bytes(n));
}

static char *jem__strdup(jem_ctx *ctx, const char *s) {
    size_t n = strlen(s) + 1;
    char *copy = (char *)jem__alloc(ctx, n);
    if (copy) memcpy(copy, s, n);
    return copy;
}

/* Calls task(arg, i) for i in 0..n-1. Tasks write to different places and do not depend on their
   order. `flops` is roughly how much work it all is: a little is done before threads wake up. */
static void jem__parallel(jem_ctx *ctx, int n, double flops, void (*task)(void *arg, int i),
                          void *arg) {
    const int spread = n > 1 && ctx->threads > 1 && flops > 4e6;
    if (spread && ctx->desc.parallel_for) ctx->desc.parallel_for(ctx->desc.user, n, task, arg);
#ifdef _OPENMP
    else if (spread) {
#pragma omp parallel for schedule(dynamic, 1) num_threads(ctx->threads)
        for (int i = 0; i < n; i++) task(arg, i);
    }
#endif
    else for (int i = 0; i < n; i++) task(arg, i);
}

#ifdef JEM__X86
/* The system must save the registers too: OSXSAVE, then XCR0 (Intel SDM vol. 1, 13.3 and 15.2). */
static int jem__x86_has(jem_isa isa) {
    unsigned a, b, c, d, lo, hi;
    const unsigned need = 1u << 27 | 1u << 28 | 1u << 12;              /* OSXSAVE, AVX, FMA */
    if (!__get_cpuid(1, &a, &b, &c, &d) || (c & need) != need) return 0;
    __asm__ volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return 0;
    const unsigned avx512 = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31; /* F, DQ, BW, VL */
    if (isa == JEM_ISA_AVX2) return (lo & 0x06) == 0x06 && (b & 1u << 5);
    if (!((lo & 0xe6) == 0xe6 && (b & 1u << 5) && (b & avx512) == avx512)) return 0;
    if (isa == JEM_ISA_AVX512) return 1;
#ifdef JEM__X86_BF16
    const unsigned tiles = d, amx = 1u << 22 | 1u << 24;               /* AMX-BF16, AMX-TILE */
    if (!__get_cpuid_count(7, 1, &a, &b, &c, &d) || !(a & 1u << 5)) return 0;    /* AVX512_BF16 */
    if (isa == JEM_ISA_AVX512_BF16) return 1;
    if ((tiles & amx) != amx || (lo & 0x60000) != 0x60000) return 0;
#ifdef __linux__           /* grants them on request: arch_prctl(ARCH_REQ_XCOMP_PERM, XTILEDATA) */
    long r = 158;
    __asm__ volatile("syscall" : "+a"(r) : "D"(0x1023L), "S"(18L) : "rcx", "r11", "memory");
    return r == 0;
#endif
#endif
    return 0;
}
#endif

int jem_isa_available(jem_isa isa) {
    switch (isa) {
    case JEM_ISA_BEST: case JEM_ISA_SCALAR: return 1;
#ifdef JEM__X86
    case JEM_ISA_AVX2: case JEM_ISA_AVX512: case JEM_ISA_AVX512_BF16: case JEM_ISA_AMX:
        return jem__x86_has(isa);
#elif defined(JEM__ARM)
    case JEM_ISA_NEON: return 1;
#elif defined(JEM__WASM)
    case JEM_ISA_WASM: return 1;
#endif
    default: return 0;
    }
}

const char *jem_isa_name(jem_isa isa) {
    static const char *const name[] = { "best", "scalar", "avx2", "avx512", "neon", "avx512-bf16",
                                        "amx", "wasm" };
    return (unsigned)isa < sizeof name / sizeof *name ? name[isa] : "unknown";
}

/* ---- bytes and files of the system ----------------------------------------------------------- */
#include <errno.h>

/* Copies numbers of `width` bytes, a power of two, from the machine's order of bytes to the file's,
   or back. */
static void jem__copy_numbers(void *to, const void *from, size_t bytes, size_t width) {
    const uint16_t one = 1;
    const size_t flip = *(const unsigned char *)&one ? 0 : width - 1;
    if (!flip && bytes) memcpy(to, from, bytes);
    for (size_t i = 0; i < bytes && flip; i++)
        ((unsigned char *)to)[i ^ flip] = ((const unsigned char *)from)[i];
}

#ifndef JEM_NO_STDIO
#include <fcntl.h>
#include <sys/stat.h>
#include <time.h>
#ifdef _WIN32
#include <io.h>
#ifdef __cplusplus
extern "C"
#endif                                             /* all that is wanted of windows.h */
__declspec(dllimport) int __stdcall MoveFileExA(const char *, const char *, unsigned long);
#define JEM__SYS(name) _##name
#define JEM__NEW_FILE (_O_WRONLY | _O_CREAT | _O_EXCL | _O_BINARY)
#define JEM__FSYNC _commit
#define JEM__RENAME(from, to) (!MoveFileExA(from, to, 1 | 8))      /* replace, write through */
#else
#include <unistd.h>
#define JEM__SYS(name) name
#define JEM__NEW_FILE (O_WRONLY | O_CREAT | O_EXCL)
#define JEM__FSYNC fsync
#define JEM__RENAME(from, to) rename(from, to)
#if defined(__GLIBC__) && defined(__STRICT_ANSI__) && !defined(__USE_XOPEN2K)
extern ssize_t readlink(const char *, char *, size_t);     /* -std=c99 hides them */
extern int fchmod(int, mode_t);
#endif
#endif

static int jem__file_put(int fd, const char *bytes, size_t size) {
    while (size) {
        const unsigned most = 1u << 30, n = size < most ? (unsigned)size : most;
        const ptrdiff_t done = JEM__SYS(write)(fd, bytes, n);
        if (done > 0) bytes += done, size -= (size_t)done;
        else if (done == 0 || errno != EINTR) return 0;
    }
    return 1;
}

/* To the disk itself, where the file system can. */
static int jem__file_sync(int fd) {
    while (JEM__FSYNC(fd))
        if (errno != EINTR) return errno == EINVAL || errno == ENOTSUP || errno == ENOSYS;
    return 1;
}
#endif /* JEM_NO_STDIO */

/* ---- what the engine room offers ------------------------------------------------------------- */
/* Lanes are images. Element (n,c,h,w) of a batch is at

       data[((((n/16)*H + h)*W + w)*C + c)*16 + n%16]

   so 16 neighbours are one (pixel, channel) of 16 images, and every kernel below is the plain
   scalar algorithm in which a scalar is 16 images wide: 1 register of AVX-512, 2 of AVX2, 4 of
   NEON. The kernels themselves, for every instruction set, are the last room of this file:
   >>engine. What the rooms in between may use of it is declared here. */

#define JEM__MAX_KERNEL 32
#define JEM__MAX_TAPS (JEM__MAX_KERNEL * JEM__MAX_KERNEL)

/* Elementwise y = f(x), a row each: what it is called, what its backward wants (the input, the
   output, a bit or a slope kept for each number), f, and its derivative. K() makes a word into the
   kernels' own (>>engine); X is the input, Y the output, A the op's number. Of these rows come the
   enum, the kernels map and map_back, and the ops. */
#define JEM__MAPS(ROW, K)                                                                          \
    ROW(SCALE, "scale", NOTHING, K(X) * K(A), K(A))                                                \
    ROW(SHIFT, "shift", NOTHING, K(X) + K(A), K(ONE))                                              \
    ROW(SQUARE, "square", INPUT, K(X) * K(X), K(X) + K(X))                                         \
    ROW(EXP, "exp", OUTPUT, K(FN)(exp)(K(X)), K(Y))                                                \
    ROW(LOG, "log", INPUT, K(FN)(log)(K(X)), K(ONE) / K(X))                                        \
    ROW(TANH, "tanh", OUTPUT, K(FN)(tanh)(K(X)), K(FNMA)(K(Y), K(Y), K(ONE)))                      \
    ROW(LEAKY, "leaky_relu", BIT, K(ACTIVATE)(JEM__MAP_LEAKY), K(PICK)(K(BIT), K(A), K(ONE)))      \
    ROW(SILU, "silu", SLOPE, K(ACTIVATE)(JEM__MAP_SILU), K(SLOPE))                                 \
    ROW(SIGMOID, "sigmoid", OUTPUT, K(FN)(sigmoid)(K(X)), K(FNMA)(K(Y), K(Y), K(Y)))               \
    ROW(SOFTPLUS, "softplus", INPUT, K(FN)(softplus)(K(X)), K(FN)(sigmoid)(K(X)))                  \
    ROW(AT_LEAST, "clamp", INPUT, K(LESS)(K(X), K(A), K(A), K(X)),                                 \
        K(LESS)(K(X), K(A), K(ZERO), K(ONE)))                                                      \
    ROW(AT_MOST, "clamp", INPUT, K(LESS)(K(A), K(X), K(A), K(X)),                                  \
        K(LESS)(K(A), K(X), K(ZERO), K(ONE)))

#define JEM__ROW(kind, name, wants, f, derivative) JEM__MAP_##kind,
enum { JEM__MAPS(JEM__ROW, ) JEM__MAP_DROP /* the backward of dropout */ };
#undef JEM__ROW
enum { JEM__PAIR_ADD, JEM__PAIR_SUB, JEM__PAIR_MUL };

/* A convolution reads (ci,hi,wi) and writes (co,ho,wo). An input gradient is a convolution too: it
   reads dy and writes dx, with the weights turned round, in stride*stride phases: the pixels of one
   phase see the same taps. A convolution's output has one phase. */
typedef struct jem__conv {
    int ci, hi, wi, co, ho, wo, k, stride, pad;
    int gradient;                                  /* 1: it is an input gradient */
    int tile;                                      /* Winograd's M */
    const struct jem__method *method;              /* how it is computed */
} jem__conv;

/* One of several parts of a piece of work: part i does units from(i) .. from(i+1)-1, in steps. */
typedef struct jem__part { int i, of; } jem__part;
static int jem__part_from(int i, int of, int units, int step) {
    const int steps = (units + step - 1) / step, from = (int)((int64_t)steps * i / of) * step;
    return from < units ? from : units;
}

/* What is done with a convolution's sum, in this order; NULL: nothing. Tensors have the output's
   shape and hold one group. */
typedef struct jem__finish {
    const float *bias;                             /* (co): added */
    const uint16_t *bits;                          /* multiplied: by `slope` where the bit is set */
    const float *slopes;                           /* multiplied, number by number */
    const float *add;                              /* added */
    float *y;                                      /* stored; may be `add` */
    int kind;                                      /* 0, or JEM__MAP_LEAKY (with `slope`), _SILU: */
    float slope;
    float *act;                                    /* its activation, stored ... */
    uint16_t *keep_bits;                           /* ... with what its backward needs */
    float *keep_slopes;
    uint16_t *y16;                                 /* the last of these in bf16 (see >>engine) */
} jem__finish;

/* What a convolution reads, of one group: x, or the same in bf16; weights as packed; scratch. It
   does one part of the work. */
typedef struct jem__operands {
    jem_ctx *ctx;
    const float *x;
    const uint16_t *x16;
    const float *packed;
    float *work;
    jem__part part;
} jem__operands;

/* A weight gradient in progress: first the operands of every group are put into the method's order,
   then `products` tasks multiply, then `finishes` tasks complete the sums. Tasks of one kind run in
   parallel. Sizes are in floats; `sums` starts at zero. */
typedef struct jem__weights {
    jem_ctx *ctx;
    const struct jem_call *call;                   /* from which the operands come */
    const jem__conv *q;
    int stage, groups, products, finishes;         /* stage: 0, 1 or 2 of these */
    float *dw, *db;                                /* (O,I,k,k) and (O), or NULL: added to */
    int planes;                                    /* of the operands: groups, or points */
    ptrdiff_t x_plane, y_plane, product_size, product_step, sums_size;
    float *x, *y, *product, *sums;
    float *framed;                                 /* x with its frame, of blocks of few images */
} jem__weights;

/* Weights (O,I,k,k), put into a method's order by so many tasks, one for 16 channels written. */
typedef struct jem__packing {
    jem_ctx *ctx;
    const jem__conv *q;
    const float *w;
    float *out;
    int parts;
} jem__packing;

/* A way to compute convolutions: direct, Winograd, bf16. */
typedef struct jem__method {
    int bf16;                                      /* it can read and write bf16 */
    ptrdiff_t (*pack_size)(const jem__conv *);     /* floats */
    void (*pack)(void *packing, int part);
    ptrdiff_t (*work)(const jem__conv *);          /* floats of scratch */
    void (*run)(const jem__conv *, const jem__operands *, const jem__finish *);
    void (*plan)(jem__weights *);                  /* sizes and tasks */
    void (*deal)(const jem__weights *, int group, int side, const jem__operands *);     /* 0: of x,
                                                      1: of dy, as the operands' x */
    void (*product)(const jem__weights *, int i);
    void (*finish)(const jem__weights *, int i);
} jem__method;

/* Chooses the methods of a convolution's output, input gradient and weight gradient: q[0..2]. */
static void jem__conv_choose(const jem_ctx *ctx, jem__conv *q);
/* How many floats of memory a group of images (c,h,w) takes in bf16. */
static ptrdiff_t jem__bf16_floats(int c, int h, int w);

/* Average pooling of (h,w,c) to (ho,wo,c): windows of kh x kw; scale: 1/(kh kw). */
typedef struct jem__pool { int w, c, kh, kw, stride, ho, wo; float scale; } jem__pool;
/* Where pixel t of the window of output pixel o is. */
JEM__INLINE ptrdiff_t jem__pool_at(const jem__pool *p, int o, int t) {
    const ptrdiff_t row = o / p->wo * p->stride + t / p->kw;
    return (row * p->w + o % p->wo * p->stride + t % p->kw) * p->c * JEM_LANES;
}
/* A normalisation of (pixels,c): see >>ops. */
typedef struct jem__norm {
    float *mean, *rstd, *s1, *s2;                  /* (c,16) each */
    const float *gamma, *beta;                     /* (c); beta NULL: 0 */
    ptrdiff_t pixels;
    int c, own;                                    /* own: statistics are of x itself */
} jem__norm;
/* x <- clamp(x + step clamp(g) + noise N(0,1)), with a step and a noise per lane, that is, per
   image; a clamp of 0 is off */
typedef struct jem__langevin {
    float step[JEM_LANES], noise[JEM_LANES], clamp_grad, lo, hi;
} jem__langevin;
/* An update of parameters; lr and root2 hold Adam's two corrections of bias. */
typedef struct jem__update {
    float beta1, beta2, eps, momentum, weight_decay, lr, root2;
} jem__update;

/* A tree of fixed shape: the same bits whatever the register width. */
static float jem__sum_lanes(const float *x) {
    float s[8];
    for (int i = 0; i < 8; i++) s[i] = x[i] + x[i + 8];
    for (int i = 0; i < 4; i++) s[i] = s[i] + s[i + 4];
    return (s[0] + s[2]) + (s[1] + s[3]);
}

/* A matrix for Muon: columns in panels of 16, element (i,j) at [(j/16 * rows + i)*16 + j%16]. Rows
   and columns are padded with zeros to multiples of 16. */
typedef struct jem__matrix { int rows, panels; float *data; } jem__matrix;

typedef struct jem__kernels {
    jem_isa isa;
    int wi;                                        /* in channels of a weight gradient's block */
    const jem__method *direct, *winograd;
    void (*fill)(int, const uint32_t *, uint64_t, float *, ptrdiff_t, float, float);
    void (*map)(int, float, const float *, float *, void *, ptrdiff_t);
    void (*map_back)(int, float, const float *, const void *, const float *, float *, int,
                     ptrdiff_t);
    void (*drop)(float, float, const float *, float *, uint16_t *, ptrdiff_t);
    void (*pair)(int, const float *, const float *, int, float *, ptrdiff_t);
    void (*pair_back)(float, const float *, const float *, int, float *, int, ptrdiff_t);
    void (*shift)(const float *, int, unsigned, float *, ptrdiff_t);
    void (*dot)(float, const float *, const float *, float *, int, ptrdiff_t);
    void (*logsumexp)(const float *, int, float *);
    void (*logsumexp_back)(const float *, const float *, const float *, int, float *, int);
    void (*pool)(const jem__pool *, const float *, float *);
    void (*pool_back)(const jem__pool *, const float *, float *);
    void (*moment)(const float *, const float *, int, ptrdiff_t, int, float *);
    void (*normalize)(const jem__norm *, const float *, float *);
    void (*normalize_sums)(const jem__norm *, const float *, const float *);
    void (*normalize_back)(const jem__norm *, int, const float *, const float *, float *);
    void (*langevin)(float *, const float *, ptrdiff_t, const jem__langevin *, const uint32_t *,
                     uint64_t);
    void (*adam)(float *, const float *, float *, float *, ptrdiff_t, const jem__update *);
    void (*sgd)(float *, const float *, float *, ptrdiff_t, const jem__update *);
    void (*gram)(const jem__matrix *x, int first, float *out);
    void (*symmetric_product)(const jem__matrix *x, const float *a, float alpha, float beta,
                              int panel, float *out);
} jem__kernels;

/* The kernels of an instruction set; NULL if this build or processor does not have it. */
static const jem__kernels *jem__kernels_for(jem_isa isa);
/* Sets k, bf16, isa and precision as the desc asks; 0 if that is not available. */
static int jem__engine_open(jem_ctx *ctx);
/* Two words that are a function of key and counter. */
static void jem__threefry_scalar(const uint32_t *key, uint64_t counter, uint32_t *, uint32_t *);

/* ---- contexts -------------------------------------------------------------------------------- */

enum { JEM__THREADS = 1 << 12 };                   /* at most: more of them would overflow */

jem_ctx *jem_ctx_create(const jem_ctx_desc *desc) {
    JEM__ZEROED(jem_ctx, seed);                    /* enough of one to allocate the real context */
    if (desc) seed.desc = *desc;
    if (seed.desc.precision > JEM_PRECISION_BF16 || (int)seed.desc.precision < 0 ||
        !jem__engine_open(&seed) || !seed.desc.allocate != !seed.desc.release) return NULL;
    seed.threads = seed.desc.threads > 0 ? seed.desc.threads : 1;
#ifdef _OPENMP
    if (seed.desc.threads <= 0) seed.threads = omp_get_max_threads();
#endif
    if (seed.threads > JEM__THREADS) seed.threads = JEM__THREADS;
    seed.params_left = HUGE_VAL;
    jem_ctx *ctx = (jem_ctx *)jem__alloc(&seed, sizeof *ctx);
    if (ctx) *ctx = seed;
    return ctx;
}

void jem_ctx_free(jem_ctx *ctx) {
    if (!ctx) return;
    for (jem__chunk *c = ctx->chunks, *next; c; c = next) next = c->next, jem__free(ctx, c);
    for (int i = 0; i < ctx->cap_nodes; i++) jem__free(ctx, ctx->nodes[i]);
    jem__free(ctx, ctx->nodes), jem__free(ctx, ctx->steps);
    jem_ctx copy = *ctx;                           /* its allocator frees it last */
    jem__free(&copy, ctx);
}

jem_isa jem_ctx_isa(const jem_ctx *ctx) { return ctx ? ctx->isa : JEM_ISA_SCALAR; }
jem_precision jem_ctx_precision(const jem_ctx *ctx) {
    return ctx ? ctx->desc.precision : JEM_PRECISION_EXACT;
}
int jem_ctx_threads(const jem_ctx *ctx) { return ctx ? ctx->threads : 1; }

/* ==== >>rng: counter-based random numbers ===================================================== */
/* The kernels of >>engine compute Threefry with one counter per lane; numbers drawn one at a time
   use jem__threefry_scalar. */

jem_rng jem_rng_split(const jem_rng *rng, uint64_t stream) {
    jem_rng r = { { 0, 0 }, 0 };
    if (rng) jem__threefry_scalar(rng->key, stream ^ (uint64_t)1 << 63, &r.key[0], &r.key[1]);
    return r;
}

jem_rng jem_rng_seed(uint64_t seed) {
    const jem_rng r = { { (uint32_t)seed, (uint32_t)(seed >> 32) }, 0 };
    return jem_rng_split(&r, 0);
}

uint32_t jem_rng_u32(jem_rng *rng) {
    uint32_t x = 0, spare;
    if (rng) jem__threefry_scalar(rng->key, rng->counter++, &x, &spare);
    return x;
}

float jem_rng_uniform(jem_rng *rng) {
    return (float)(jem_rng_u32(rng) >> 8) * (1.0f / 16777216.0f);
}

int jem_rng_below(jem_rng *rng, int n) {
    if (n <= 1 || !rng) return 0;
    /* Of 2^32 values, the lowest 2^32 mod n are rejected: n divides the number of the others. */
    const uint32_t bound = (uint32_t)n;
    const uint32_t rejected = (0u - bound) % bound;
    uint32_t u;
    do u = jem_rng_u32(rng); while (u < rejected);
    return (int)(u % bound);
}

/* Reserves counters for a vector fill: whole blocks of 16, so that no lane needs a carry. */
static uint64_t jem__rng_take(jem_rng *rng, ptrdiff_t floats) {
    uint64_t start = (rng->counter + 15) & ~(uint64_t)15;
    rng->counter = start + (uint64_t)((floats + 31) / 32) * 16;
    return start;
}

/* Fills out[n]. The kernel writes whole blocks of 32 numbers; the last, incomplete block is written
   to a local one, and its beginning copied. */
static void jem__fill(jem_ctx *ctx, int kind, jem_rng *rng, float *out, ptrdiff_t n, float a,
                      float b) {
    if (!ctx || !rng || !out || n <= 0) return;
    const uint64_t start = jem__rng_take(rng, n);
    const ptrdiff_t whole = n / 32 * 32;
    ctx->k->fill(kind, rng->key, start, out, whole, a, b);
    if (whole == n) return;
    float last[32];
    ctx->k->fill(kind, rng->key, start + (uint64_t)whole / 2, last, 32, a, b);
    for (ptrdiff_t i = whole; i < n; i++) out[i] = last[i - whole];
}

void jem_fill_uniform(jem_ctx *ctx, jem_rng *rng, float *out, ptrdiff_t n, float lo, float hi) {
    jem__fill(ctx, 0, rng, out, n, lo, hi - lo);
}
void jem_fill_normal(jem_ctx *ctx, jem_rng *rng, float *out, ptrdiff_t n, float mean, float std) {
    jem__fill(ctx, 1, rng, out, n, mean, std);
}
/* Draws a block with the scalar kernel and returns its first number. */
float jem_rng_normal(jem_rng *rng) {
    float z[16];
    if (!rng) return 0;
    jem__kernels_for(JEM_ISA_SCALAR)->fill(1, rng->key, jem__rng_take(rng, 16), z, 16, 0, 1);
    return z[0];
}

/* ==== >>memory: the tape's arena ============================================================== */
/* The arena is a list of chunks, used in order; a mark is a position in it. Chunks are kept when
   the tape is reset, so that the second step of a loop finds all the memory that it needs. */

#define JEM__CHUNK ((size_t)1 << 20)

/* Returns 1 if the chunk in use has room for this many bytes. */
static int jem__chunk_fits(const jem_ctx *ctx, size_t bytes) {
    return ctx->chunk && ctx->used + bytes <= ctx->chunk->size;
}

/* Appends a chunk to the list, behind the one in use; returns 0 if memory is short. */
static int jem__chunk_add(jem_ctx *ctx, size_t bytes) {
    size_t size = JEM__CHUNK;
    if (bytes > size) size = bytes;
    jem__chunk *chunk = (jem__chunk *)jem__alloc(ctx, size + 64);
    if (!chunk) return 0;
    chunk->next = NULL;
    chunk->size = size;
    if (ctx->chunk) ctx->chunk->next = chunk;
    else ctx->chunks = chunk;
    ctx->chunk = chunk;
    ctx->used = 0;
    return 1;
}

/* Allocates bytes on the tape, aligned to 64, not zeroed. */
static void *jem__push(jem_ctx *ctx, size_t bytes) {
    if (bytes > (size_t)-1 / 4) return jem__too_much(ctx);
    bytes = (bytes + 63) & ~(size_t)63;
    while (ctx->chunk && ctx->chunk->next && !jem__chunk_fits(ctx, bytes)) {
        ctx->chunk = ctx->chunk->next;
        ctx->used = 0;
    }
    if (!jem__chunk_fits(ctx, bytes) && !jem__chunk_add(ctx, bytes)) return NULL;
    char *memory = (char *)ctx->chunk + 64 + ctx->used;
    ASAN_UNPOISON_MEMORY_REGION(memory, bytes);
#ifdef JEM__ASAN
    memset(memory, 0xff, bytes);                   /* NaNs, so that reading before writing shows */
#endif
    ctx->used += bytes;
    ctx->pushes++;
    return memory;
}

static void *jem__push_zero(jem_ctx *ctx, size_t bytes) {
    void *memory = jem__push(ctx, bytes);
    if (memory) memset(memory, 0, bytes);
    return memory;
}
static float *jem__push_floats(jem_ctx *ctx, ptrdiff_t n) {
    return (float *)jem__push(ctx, jem__float_bytes(n));
}

jem_memory_stats jem_memory(const jem_ctx *ctx) {
    jem_memory_stats stats = { 0, 0, 0 };
    if (!ctx) return stats;
    stats.bytes = ctx->held;
    stats.peak = ctx->peak;
    stats.allocations = ctx->allocations;
    return stats;
}
void jem_release(jem_ctx *ctx, void *memory) { if (ctx) jem__free(ctx, memory); }

/* Lets ASan report any access to the part of the arena that is free again. */
static void jem__arena_forget(jem_ctx *ctx) {
    size_t used = ctx->used;
    for (jem__chunk *c = ctx->chunk; c; c = c->next) {
        ASAN_POISON_MEMORY_REGION((char *)c + 64 + used, c->size - used);
        used = 0;
    }
}

/* ==== >>tape: what is recorded, and the plain walk ============================================ */
/* An op called on tensors computes nothing. It adds a node that knows the op, its inputs and the
   shape of its output; the nodes, in the order of recording, are the tape. A number is computed by
   walking the tape forward. Gradients are computed by going back from the number y, where dy/dy is
   1: each op turns the gradient of its output into those of its inputs, which is the chain rule
   (reverse mode; Griewank & Walther, 'Evaluating derivatives', 2008). jem__walk_plain, at the end
   of this room, does just that and is the whole idea; >>plan does the same faster. */

typedef struct jem__node {
    jem_tensor t;
    const jem_op *op;                              /* NULL: a leaf */
    struct jem__node *in[JEM_MAX_INPUTS];
    jem_param *param[JEM_MAX_PARAMS];
    void *user;                                    /* the op's own data */
    int index, inputs, params, groups;             /* groups of 16 images */
    ptrdiff_t stride;                              /* floats of a group: h*w*c*16 */
    size_t aux_bytes;                              /* of a group, from forward to backward */
    ptrdiff_t work;                                /* floats of scratch while it runs */
    double flops;                                  /* about, of one group, forward */
    int bf16_out, bf16_grad;                       /* that pass can read and write bf16, ... */
    int bf16_params;                               /* ... that one read it */
    int keep, ready;                               /* ready: value is up to date */
    float *value, *grad;                           /* all groups; NULL: only during a run */
    uint64_t made, value_push, grad_push;          /* when it and they were allocated */
} jem__node;

/* Where something of a node lies during a run: group g at `at` + g % slots * step. */
typedef struct jem__place { float *at; ptrdiff_t step; int slots; } jem__place;

/* A node's part in a run. */
typedef struct jem__step {
    jem__node *node;
    struct jem__step *in[JEM_MAX_INPUTS];
    int reached;                                   /* the target depends on it */
    int needs;                                     /* its gradient is requested, or on the way */
    int wanted;                                    /* a reader passes its gradient on to it */
    int runs;                                      /* it is computed in this run */
    int written;                                   /* its gradient has been begun */
    int add[JEM_MAX_INPUTS];                       /* backward adds to that input's gradient */
    jem__place value, grad, aux;

    /* Notes of the plan (see >>plan); the plain walk has none. */
    int pos;                                       /* list[pos] is this step; -1: not in the list */
    int value_buf, aux_buf, grad_buf;              /* numbers of buffers; 0: no buffer */
    int readers;                                   /* number of inputs that are this value */
    struct jem__step *first_reader;
    struct jem__step *fused_conv, *fused_sum;      /* computed with this step, forward */
    struct jem__step *fused_into;                  /* step that computes this one, forward */
    struct jem__step *back_conv;                   /* of an activation: fused with it, back */
    struct jem__step *back_fused_into;             /* of a convolution: that activation */
    int value16_buf, grad16_buf;                   /* bf16 copies */
    int grad16_only;                               /* no step reads the gradient in fp32 */
    jem__place value16, grad16;                    /* places of bf16 values */
    int reads16;                                   /* a convolution: reads in[0]'s value16 */
    struct jem__step *dy16;                        /* a convolution: reads this one's grad16 */
    struct jem__step *grad16_writer;
} jem__step;

typedef enum { JEM__EVAL, JEM__GRAD, JEM__BACKWARD } jem__mode;

/* Memory that steps need from one time to another. */
typedef struct jem__buf { int start, end; ptrdiff_t size, at; } jem__buf;

typedef struct jem__run {
    jem_ctx *ctx;
    jem__mode mode;
    jem__step *target, *leaf;                      /* of d target / d leaf, or NULL */
    jem__step **list;                              /* those that run, in the order of recording */
    int n;
    jem__place work;                               /* scratch for the op that runs, of part 0; */
    ptrdiff_t part_step;                           /* floats from there to the next part's */
    int parts;                                     /* threads that share a group */

    /* Notes of the plan (see >>plan). */
    jem__buf *bufs;
    int n_bufs;
    int slots;                                     /* regions; each holds all buffers */
    int from, to;                                  /* the span list[from..to-1] is running, */
    int back;                                      /* backward, if it runs in parts */
    int both;                                      /* forward and backward, group by group */
    float *base;
    ptrdiff_t region;                              /* floats */
} jem__run;

/* What only built-in ops have: of an op, and of one call. */
enum {
    JEM__OP_STORES = 1,    /* backward obeys add[]: 0 store, 1 add (otherwise dx starts at 0) */
    JEM__OP_SHARES = 2,    /* y may share memory with x[0], dx[0] with dy */
    JEM__OP_IN_PLACE = JEM__OP_STORES | JEM__OP_SHARES,
    JEM__OP_WHOLE = 4,     /* called once for all groups: sums over the batch */
    JEM__OP_CONV = 8, JEM__OP_SUM = 16, JEM__OP_ACTIVATION = 32,       /* what can be fused */
    JEM__OP_LEARNS = 64    /* on the way to jem_backward's loss forward has to be called */
};
typedef struct jem__traits {
    int flags;
    jem_status (*prepare)(const jem_call *call, int want_input_grad);  /* before a run: packing */
    jem_status (*param_grad)(const jem_call *call);                    /* called once */
    int keeps_for_params;                          /* as jem_op.keeps, for param_grad */
} jem__traits;
static const jem__traits jem__stores = { JEM__OP_STORES, NULL, NULL, 0 };
static const jem__traits jem__in_place = { JEM__OP_IN_PLACE, NULL, NULL, 0 };
static const jem__traits jem__sums = { JEM__OP_IN_PLACE | JEM__OP_SUM, NULL, NULL, 0 };
static const jem__traits jem__activates = { JEM__OP_IN_PLACE | JEM__OP_ACTIVATION, NULL, NULL, 0 };
static const jem__traits jem__whole = { JEM__OP_WHOLE, NULL, NULL, 0 };

typedef struct jem__inner {
    const jem__run *run;
    jem__step *step;
    jem_param *const *param;
    int add[JEM_MAX_INPUTS];
    float *work;                                   /* scratch */
    int part, parts;                               /* which part of the group to do */
    uint16_t *y16;                                 /* wanted of the result, besides or only */
    const float *plus;                             /* fused to a convolution: an addition, */
    const void *act;                               /* an activation: its user data, output and */
    float *act_y;                                  /* aux */
    void *act_aux;
} jem__inner;

static int jem__has(const jem__node *n, int flag) {
    return n->op && n->op->traits && n->op->traits->flags & flag;
}
static ptrdiff_t jem__padded(const jem_param *p) {
    return (p->size + JEM_LANES - 1) / JEM_LANES * JEM_LANES;
}
static int jem__calls(const jem__node *n) {        /* of its op, for the whole batch */
    return jem__has(n, JEM__OP_WHOLE) ? 1 : n->groups;
}
static int jem__trains(const jem__node *n) {       /* has a parameter that wants a gradient */
    for (int i = 0; n->op && n->op->traits && n->op->traits->param_grad && i < n->params; i++)
        if (n->param[i] && n->param[i]->grad) return 1;
    return 0;
}

/* ---- recording ------------------------------------------------------------------------------- */

jem_mark jem_begin(jem_ctx *ctx) {
    const jem_mark none = { NULL, 0, 0, 0 };
    if (!ctx) return none;
    const jem_mark mark = { ctx->chunk, ctx->used, ctx->n_nodes, ctx->pushes };
    return mark;
}

/* A node's memory is only ever a node's, and a forgotten one has t.node = NULL: so a tensor that is
   used too late can be told. A node from before the mark may have been computed since: then its
   value goes, and it stays. */
void jem_end(jem_ctx *ctx, jem_mark mark) {
    if (!ctx) return;
    ctx->chunk = mark.chunk ? (jem__chunk *)mark.chunk : ctx->chunks;
    ctx->used = mark.chunk ? mark.used : 0;
    while (ctx->n_nodes > 0 && (ctx->n_nodes > mark.nodes ||      /* or jem_reset came between */
                                ctx->nodes[ctx->n_nodes - 1]->made > mark.pushes))
        ctx->nodes[--ctx->n_nodes]->t.node = NULL;
    for (int i = 0; i < ctx->n_nodes; i++) {
        jem__node *n = ctx->nodes[i];
        if (n->value && n->value_push > mark.pushes) n->value = NULL, n->ready = 0;
        if (n->grad && n->grad_push > mark.pushes) n->grad = NULL;
    }
    jem__arena_forget(ctx);
}

void jem_reset(jem_ctx *ctx) {
    const jem_mark start = { NULL, 0, 0, 0 };
    jem_end(ctx, start);
}

/* An op says why there is no tensor. */
#define jem__refuse(...) (jem__fail(__VA_ARGS__), (jem_tensor *)NULL)

/* "(64,3,32,32)" for error messages; a few can be in one message */
typedef struct jem__words { char s[64]; } jem__words;
static jem__words jem__shape_text(const jem_tensor *t) {
    jem__words x;
    if (t) snprintf(x.s, sizeof x.s, "(%d,%d,%d,%d)", t->n, t->c, t->h, t->w);
    else snprintf(x.s, sizeof x.s, "NULL");
    return x;
}
static jem__words jem__param_text(const jem_param *p) {
    jem__words x;
    int n = snprintf(x.s, sizeof x.s, "(");
    for (int i = 0; p && i < p->ndim; i++)
        n += snprintf(x.s + n, sizeof x.s - (size_t)n, i ? ",%d" : "%d", p->shape[i]);
    snprintf(x.s + n, sizeof x.s - (size_t)n, ")");
    return x;
}

/* There, and not forgotten, in a context without an error; keeps an error if it was forgotten. */
static int jem__live(const jem_tensor *t, const char *what) {
    if (t && !t->node)
        jem__fail(t->ctx, JEM_BAD_ARGUMENT, "%s: jem_end or jem_reset has forgotten this tensor %s",
                  what, jem__shape_text(t).s);
    return t && t->ctx->status == JEM_OK;
}

static int jem__is_leaf(const jem_tensor *t, const char *what) {
    return jem__live(t, what) && !t->node->op;
}

static int jem__groups(int n) { return n / JEM_LANES + (n % JEM_LANES > 0); }
static int jem__live_lanes(int n, int group) {     /* images of a group of n */
    return n - group * JEM_LANES < JEM_LANES ? n - group * JEM_LANES : JEM_LANES;
}
static jem_shape jem__shape(int n, int c, int h, int w) {
    const jem_shape s = { n, c, h, w };
    return s;
}
static jem_shape jem__shape_of(const jem_tensor *t) { return jem__shape(t->n, t->c, t->h, t->w); }
static ptrdiff_t jem__floats(jem_shape s) { return (ptrdiff_t)s.c * s.h * s.w * JEM_LANES; }

/* Room for one more node and its step; nodes stay allocated, and are used again. */
static jem__node *jem__node_next(jem_ctx *ctx) {
    if (ctx->n_nodes == ctx->cap_nodes) {
        const int cap = ctx->cap_nodes ? 2 * ctx->cap_nodes : 64;
        jem__node **nodes = (jem__node **)jem__alloc(ctx, (size_t)cap * sizeof *nodes);
        jem__step *steps = (jem__step *)jem__alloc(ctx, (size_t)cap * sizeof *steps);
        if (!nodes || !steps) {
            jem__free(ctx, nodes), jem__free(ctx, steps);
            return NULL;
        }
        if (ctx->cap_nodes) memcpy(nodes, ctx->nodes, (size_t)ctx->cap_nodes * sizeof *nodes);
        jem__free(ctx, ctx->nodes), jem__free(ctx, ctx->steps);
        ctx->nodes = nodes, ctx->steps = steps, ctx->cap_nodes = cap;
    }
    jem__node **n = ctx->nodes + ctx->n_nodes;
    if (*n) memset(*n, 0, sizeof **n);
    else *n = (jem__node *)jem__alloc(ctx, sizeof **n);
    return *n;
}

/* A node without its inputs: checks the shape, puts it on the tape. */
static jem__node *jem__node_create(jem_ctx *ctx, const char *what, jem_shape s) {
    if (!ctx || ctx->status != JEM_OK) return NULL;
    if (s.n < 1 || s.c < 1 || s.h < 1 || s.w < 1 ||
        (double)s.n * s.c * s.h * s.w > 1e12 || (double)s.c * s.h * s.w > 1e8 ||
        (double)jem__groups(s.n) * (double)jem__floats(s) > (double)JEM__FLOATS)
        return (jem__node *)jem__null(ctx, JEM_BAD_SHAPE, "%s: (%d,%d,%d,%d) is not a shape that "
                                      "can be made", what, s.n, s.c, s.h, s.w);
    jem__node *n = jem__node_next(ctx);
    if (!n) return NULL;
    n->t.n = s.n, n->t.c = s.c, n->t.h = s.h, n->t.w = s.w, n->t.ctx = ctx, n->t.node = n;
    n->groups = jem__groups(s.n), n->stride = jem__floats(s);
    n->flops = 10 * (double)n->stride;             /* elementwise; a convolution knows better */
    n->index = ctx->n_nodes++, n->made = ++ctx->pushes;
    return n;
}

/* Many parameters: this is all that a node is. */
static jem_tensor *jem__record(jem_ctx *ctx, const jem_op *op, jem_tensor *const *inputs,
                               int n_inputs, jem_shape out, jem_param *const *params, int n_params,
                               const void *user, size_t user_bytes, size_t aux_bytes) {
    for (int i = 0; i < n_inputs; i++) {
        if (!jem__live(inputs[i], op->name)) return NULL;
        if (inputs[i]->ctx != ctx)
            return jem__refuse(ctx, JEM_BAD_ARGUMENT, "%s: a tensor of another context", op->name);
    }
    for (int i = 0; i < n_params; i++)
        if (params[i] && params[i]->ctx != ctx)
            return jem__refuse(ctx, JEM_BAD_ARGUMENT, "%s: %.80s is a parameter of another context",
                               op->name, params[i]->name);
    jem__node *n = jem__node_create(ctx, op->name, out);
    if (!n) return NULL;
    n->op = op, n->inputs = n_inputs, n->params = n_params, n->aux_bytes = aux_bytes;
    for (int i = 0; i < n_inputs; i++) n->in[i] = inputs[i]->node;
    n->t.blocks = inputs[0]->blocks;
    for (int i = 0; i < n_params; i++) n->param[i] = params[i];
    if (user_bytes) {
        n->user = jem__push(ctx, user_bytes);
        if (!n->user) return NULL;
        if (user) memcpy(n->user, user, user_bytes);
        else memset(n->user, 0, user_bytes);
    }
    return &n->t;
}

/* Many parameters: the author of an op says all this once. */
jem_tensor *jem_custom(jem_ctx *ctx, const jem_op *op, jem_tensor *const *inputs, int n_inputs,
                       jem_shape out, const void *user, size_t user_bytes, size_t aux_bytes) {
    if (!op || !op->name || !op->forward || !inputs || n_inputs < 1 || n_inputs > JEM_MAX_INPUTS)
        return jem__refuse(ctx, JEM_BAD_ARGUMENT, "%s: needs a name, a forward, and 1 to %d inputs",
                           op && op->name ? op->name : "jem_custom", JEM_MAX_INPUTS);
    for (int i = 0; i < n_inputs; i++)
        if (inputs[i] && inputs[i]->n != out.n)
            return jem__refuse(ctx, JEM_BAD_SHAPE, "%s: input %d is %s, the output has n = %d",
                               op->name, i, jem__shape_text(inputs[i]).s, out.n);
    return jem__record(ctx, op, inputs, n_inputs, out, NULL, 0, user, user_bytes, aux_bytes);
}

/* ---- leaves: nchw[n][c][h][w] <-> lanes ------------------------------------------------------ */

/* Dead lanes repeat the last image, so that they do nothing that a real one would not. */
static void jem__fill_dead(float *x, ptrdiff_t n, int live) {
    for (ptrdiff_t i = 0; live < JEM_LANES && i < n; i += JEM_LANES)
        for (int l = live; l < JEM_LANES; l++) x[i + l] = x[i + live - 1];
}

JEM__COMPILE("O2")                                 /* every number of a batch passes here */
static ptrdiff_t jem__lane_at(const jem__node *n, int image, int c, int y, int x) {
    const ptrdiff_t pixel = (ptrdiff_t)y * n->t.w + x;
    return image / JEM_LANES * n->stride + (pixel * n->t.c + c) * JEM_LANES + image % JEM_LANES;
}

static void jem__copy_out(const jem__node *n, const float *lanes, float *nchw) {
    for (int i = 0; i < n->t.n; i++)
        for (int c = 0; c < n->t.c; c++)
            for (int y = 0; y < n->t.h; y++)
                for (int x = 0; x < n->t.w; x++) *nchw++ = lanes[jem__lane_at(n, i, c, y, x)];
}
static void jem__copy_in(const jem__node *n, float *lanes, const float *nchw) {
    const ptrdiff_t size = n->stride / JEM_LANES;
    for (int i = 0; i < n->groups * JEM_LANES; i++) {
        const float *from = nchw + (i < n->t.n ? i : n->t.n - 1) * size;
        for (int c = 0; c < n->t.c; c++)
            for (int y = 0; y < n->t.h; y++)
                for (int x = 0; x < n->t.w; x++) lanes[jem__lane_at(n, i, c, y, x)] = *from++;
    }
}
JEM__COMPILE_END
/* A leaf has new numbers: what was computed after it may be old. */
static void jem__leaf_changed(const jem__node *leaf) {
    for (int i = leaf->index + 1; i < leaf->t.ctx->n_nodes; i++)
        if (leaf->t.ctx->nodes[i]->op) leaf->t.ctx->nodes[i]->ready = 0;
}

static jem_tensor *jem__leaf(jem_ctx *ctx, const char *what, jem_shape s) {
    jem__node *leaf = jem__node_create(ctx, what, s);
    if (!leaf) return NULL;
    leaf->value = (float *)jem__push_zero(ctx,
                                          (size_t)(leaf->groups * leaf->stride) * sizeof(float));
    leaf->value_push = ctx->pushes;
    leaf->ready = 1;
    return leaf->value ? &leaf->t : NULL;
}

jem_tensor *jem_zeros(jem_ctx *ctx, int n, int c, int h, int w) {
    return jem__leaf(ctx, "zeros", jem__shape(n, c, h, w));
}

jem_tensor *jem_input(jem_ctx *ctx, const float *nchw, int n, int c, int h, int w) {
    if (!nchw)
        return jem__refuse(ctx, JEM_BAD_ARGUMENT, "input: no data (NULL)");
    jem_tensor *t = jem__leaf(ctx, "input", jem__shape(n, c, h, w));
    if (t) jem__copy_in(t->node, t->node->value, nchw);
    return t;
}

jem_status jem_write(jem_tensor *leaf, const float *nchw) {
    if (!leaf) return JEM_BAD_ARGUMENT;
    if (!jem__live(leaf, "write")) return leaf->ctx->status;
    if (!nchw) return jem__fail(leaf->ctx, JEM_BAD_ARGUMENT, "write: nchw is NULL");
    if (leaf->node->op)
        return jem__fail(leaf->ctx, JEM_BAD_ARGUMENT, "write: %s is computed (by %s), not a leaf",
                         jem__shape_text(leaf).s, leaf->node->op->name);
    jem__copy_in(leaf->node, leaf->node->value, nchw);
    jem__leaf_changed(leaf->node);
    return JEM_OK;
}

void jem_param_changed(jem_param *p) { if (p) p->version++; }

/* ---- what a run has to do -------------------------------------------------------------------- */

static float *jem__at_place(jem__place p, int group) {
    return p.at ? p.at + group % p.slots * p.step : NULL;
}
static jem__place jem__all_groups(const jem__node *n, float *at) {
    const jem__place p = { at, n->stride, n->groups };
    return p;
}

/* Prepares a step for each node up to the target. */
static void jem__run_steps(jem__run *r, const jem__node *target, const jem__node *leaf) {
    jem__step *steps = r->ctx->steps;
    for (int i = 0; i <= target->index; i++) {
        jem__step *s = steps + i;
        memset(s, 0, sizeof *s);
        s->node = r->ctx->nodes[i];
        s->pos = -1;
        for (int k = 0; k < s->node->inputs; k++) s->in[k] = steps + s->node->in[k]->index;
    }
    r->target = steps + target->index;
    if (leaf) r->leaf = steps + leaf->index;
}

/* Marks the steps on which the target depends. */
static void jem__mark_reached(jem__run *r) {
    r->target->reached = 1;
    for (int i = r->target->node->index; i >= 0; i--) {
        jem__step *s = r->ctx->steps + i;
        if (!s->reached) continue;
        for (int k = 0; k < s->node->inputs; k++) s->in[k]->reached = 1;
    }
}

/* Marks, from the leaves on, the steps that depend on the leaf or on parameters in training. */
static void jem__mark_needs(jem__run *r) {
    if (r->mode == JEM__EVAL) return;
    for (jem__step *s = r->ctx->steps; s <= r->target; s++) {
        if (!s->reached) continue;
        s->needs = s == r->leaf || (r->mode == JEM__BACKWARD && jem__trains(s->node));
        for (int k = 0; k < s->node->inputs; k++)
            if (s->in[k]->needs && s->node->op->backward) s->needs = 1;
    }
}

/* Unmarks, from the target back, the steps that no gradient reaches: an op without a backward ends
   the way. */
static void jem__mark_wanted(jem__run *r) {
    r->target->wanted = 1;
    for (int i = r->target->node->index; i >= 0; i--) {
        jem__step *s = r->ctx->steps + i;
        s->needs = s->needs && s->wanted;
        if (!s->needs || !s->node->op || !s->node->op->backward) continue;
        for (int k = 0; k < s->node->inputs; k++) s->in[k]->wanted = 1;
    }
}

/* Marks the ops to compute. A value that is ready is used as it is, unless a gradient passes
   through it: its backward may need what its forward keeps. */
static void jem__mark_runs(jem__run *r) {
    r->target->runs = 1;
    for (int i = r->target->node->index; i >= 0; i--) {
        jem__step *s = r->ctx->steps + i;
        const jem__node *n = s->node;
        if (n->ready && !s->needs) s->runs = 0;
        if (r->mode == JEM__BACKWARD && s->reached && jem__has(n, JEM__OP_LEARNS)) s->runs = 1;
        if (!n->op) s->runs = 0;
        if (!s->runs) continue;
        for (int k = 0; k < n->inputs; k++) s->in[k]->runs = 1;
        r->n++;
    }
}

/* Decides which steps run, and which of them have a gradient. */
static void jem__run_marks(jem__run *r, const jem__node *target, const jem__node *leaf) {
    jem__run_steps(r, target, leaf);
    jem__mark_reached(r);
    jem__mark_needs(r);
    jem__mark_wanted(r);
    jem__mark_runs(r);
}

/* Memory for all groups of what stays after the run, if it has none yet; `push`: when it got it. */
static int jem__keep_room(const jem__node *n, float **at, uint64_t *push) {
    if (*at) return 1;
    *at = jem__push_floats(n->t.ctx, n->groups * n->stride);
    *push = n->t.ctx->pushes;
    return *at != NULL;
}

/* Values that stay after the run: the target's, small ones, and those asked for. */
static jem_status jem__run_kept(jem__run *r) {
    for (jem__step *s = r->ctx->steps; s <= r->target; s++) {
        jem__node *n = s->node;
        const int value = s->runs && (s == r->target || n->keep || n->stride <= 128 * JEM_LANES);
        if ((value && !jem__keep_room(n, &n->value, &n->value_push)) ||
            (s == r->leaf && !jem__keep_room(n, &n->grad, &n->grad_push))) return JEM_NO_MEMORY;
        if (n->value) s->value = jem__all_groups(n, n->value);
        if (s == r->leaf) s->grad = jem__all_groups(n, n->grad);
    }
    return JEM_OK;
}

/* What a convolution reads in bf16 in place of x[0], and of dy, if a plan has it so, or NULL. */
static uint16_t *jem__at_place16(jem__place p, int group) {
    return (uint16_t *)(void *)jem__at_place(p, group);
}
static const uint16_t *jem__x16(const jem__step *s, int group) {
    return s->reads16 ? jem__at_place16(s->in[0]->value16, group) : NULL;
}
static const uint16_t *jem__dy16(const jem__step *s, int group) {
    return s->dy16 ? jem__at_place16(s->dy16->grad16, group) : NULL;
}

/* Points a call at a group. */
static void jem__call_group(jem_call *c, int group) {
    const jem__step *s = c->inner->step;
    c->group = group, c->live = jem__live_lanes(s->node->t.n, group);
    c->y = jem__at_place(s->value, group), c->aux = jem__at_place(s->aux, group);
    c->dy = s->needs ? jem__at_place(s->grad, group) : NULL;
    for (int k = 0; k < c->inputs; k++) {
        c->x[k] = jem__at_place(s->in[k]->value, group);
        c->dx[k] = s->needs && s->in[k]->needs ? jem__at_place(s->in[k]->grad, group) : NULL;
    }
}
/* The same call for another group: for ops that need the whole batch. */
static jem_call jem__at(const jem_call *call, int group) {
    jem_call c = *call;
    jem__call_group(&c, group);
    return c;
}

/* Everything an op sees of one group. */
static void jem__call_open(const jem__run *r, jem__step *s, int group, int part, jem_call *c,
                           jem__inner *in) {
    const jem__node *n = s->node;
    memset(c, 0, sizeof *c), memset(in, 0, sizeof *in);
    in->run = r, in->step = s, in->param = n->param;
    in->part = part, in->parts = r->parts;
    if (r->work.at) in->work = jem__at_place(r->work, group) + part * r->part_step;
    c->ctx = r->ctx, c->user = n->user, c->inputs = n->inputs, c->inner = in;
    c->out = jem__shape_of(&n->t);
    for (int k = 0; k < n->inputs; k++)
        c->in[k] = jem__shape_of(&n->in[k]->t), in->add[k] = s->add[k];
    jem__call_group(c, group);
}

/* d target / d target: 1 for each image, nothing for dead lanes. */
static void jem__seed(const jem__run *r, int group) {
    const jem__node *n = r->target->node;
    float *g = jem__at_place(r->target->grad, group);
    for (int l = 0; l < JEM_LANES; l++) g[l] = group * JEM_LANES + l < n->t.n ? 1.0f : 0.0f;
}

static void jem__step_forward(const jem__run *r, jem__step *s, int group) {
    jem_call c;
    jem__inner in;
    jem__call_open(r, s, group, 0, &c, &in);
    s->node->op->forward(&c);
}

/* Gradients that are begun here, by an op that adds, begin at 0. */
static void jem__step_backward(const jem__run *r, jem__step *s, int group) {
    const int whole = jem__has(s->node, JEM__OP_WHOLE), adds = !jem__has(s->node, JEM__OP_STORES);
    jem_call c;
    jem__inner in;
    int any = 0;
    jem__call_open(r, s, group, 0, &c, &in);
    for (int k = 0; k < s->node->inputs; k++) {
        const jem__node *x = s->in[k]->node;
        any |= c.dx[k] != NULL;
        if (!c.dx[k] || !adds || s->add[k]) continue;
        for (int g = whole ? 0 : group; g < (whole ? x->groups : group + 1); g++)
            memset(jem__at_place(s->in[k]->grad, g), 0, (size_t)x->stride * sizeof(float));
    }
    if (any) s->node->op->backward(&c);
}

static jem_status jem__step_params(const jem__run *r, jem__step *s) {
    jem_call c;
    jem__inner in;
    jem__call_open(r, s, 0, 0, &c, &in);
    return s->node->op->traits->param_grad(&c);
}

/* ---- the plain walk -------------------------------------------------------------------------- */

/* Memory for every value, gradient and scratch, all at once. */
static jem_status jem__walk_memory(jem__run *r) {
    ptrdiff_t work = JEM_LANES;
    for (int i = 0; i < r->n; i++) {
        jem__step *s = r->list[i];
        const jem__node *n = s->node;
        const ptrdiff_t aux = (ptrdiff_t)((n->aux_bytes + 63) / 64 * JEM_LANES);
        const ptrdiff_t size = n->groups * n->stride;
        if (!s->value.at) s->value = jem__all_groups(n, jem__push_floats(r->ctx, size));
        if (s->needs) s->grad = jem__all_groups(n, jem__push_floats(r->ctx, size));
        s->aux = jem__all_groups(n, jem__push_floats(r->ctx, n->groups * aux)), s->aux.step = aux;
        if (n->work > work) work = n->work;
    }
    r->work.at = jem__push_floats(r->ctx, work), r->work.slots = r->parts = 1;
    return r->ctx->status;
}

/* Forward in order; then back from the target, whose gradient in itself is 1. Of several readers
   of a value, the one that is met first on the way back begins its gradient, the others add. */
static jem_status jem__walk_plain(jem__run *r) {
    jem_status status = jem__walk_memory(r);
    for (int i = 0; status == JEM_OK && i < r->n; i++) {
        jem__step *s = r->list[i];
        for (int g = 0; g < jem__calls(s->node); g++) jem__step_forward(r, s, g);
    }
    if (status != JEM_OK || r->mode == JEM__EVAL) return status;
    for (int g = 0; g < r->target->node->groups; g++) jem__seed(r, g);
    for (int i = r->n; status == JEM_OK && i-- > 0;) {
        jem__step *s = r->list[i];
        if (!s->needs) continue;
        if (r->mode == JEM__BACKWARD && jem__trains(s->node)) status = jem__step_params(r, s);
        for (int k = 0; k < s->node->inputs; k++)
            if (s->in[k]->needs) s->add[k] = s->in[k]->written, s->in[k]->written = 1;
        for (int g = 0; g < jem__calls(s->node); g++) jem__step_backward(r, s, g);
    }
    return status;
}

/* ==== >>plan: the same, faster ================================================================ */
/* jem__walk_plain keeps every value and passes over memory once per op. The plan computes the same
   bits, but:

     - gives every value, gradient and scratch an offset in one region. Buffers whose lifetimes do
       not overlap share memory. A value that no backward reads dies with its last use: that is how
       jem_grad keeps nothing for the weights;
     - runs steps that treat images separately depth-first, a group of 16 images at a time. In
       jem_grad a group goes forward and back at once, so a thread needs one region, for one group,
       whatever the batch. In jem_backward every group has its region, because a weight's gradient
       sums over all of them;
     - fuses a convolution with the addition and activation after it, and its input gradient with
       that of the activation before it;
     - passes bf16 from convolution to convolution, where both compute in it. */

/* Adds a buffer that lives from time `start` to time `end`; returns its number. */
static int jem__plan_buf(jem__run *r, int start, int end, ptrdiff_t floats) {
    jem__buf *b = r->bufs + r->n_bufs;
    b->start = start;
    b->end = end;
    b->at = -1;
    b->size = (floats + JEM_LANES - 1) / JEM_LANES * JEM_LANES;
    return r->n_bufs++;
}

static void jem__plan_extend(jem__run *r, int buf, int end) {
    if (r->bufs[buf].end < end) r->bufs[buf].end = end;
}

/* ---- fusion ---------------------------------------------------------------------------------- */
/* A convolution finishes its sums in registers. Fused with it, an addition and an activation after
   it cost no pass over memory; the same holds for the mask of an activation before it on the way
   back:

     forward    conv -> add -> activation    run as one step, in place of the last of them: its
                                             `fused_conv`, `fused_sum`; `fused_into` of the others
     backward   the input gradients of conv  run as one step, in place of the activation: its
                and of the activation        `back_conv`; the conv's `back_fused_into`
                that computed its input

   A value in between is stored only if another step reads it. */

/* Counts the readers of each value, and finds the first of them. */
static void jem__plan_readers(jem__run *r) {
    for (int j = 0; j < r->n; j++) {
        jem__step *reader = r->list[j];
        for (int k = 0; k < reader->node->inputs; k++) {
            jem__step *in = reader->in[k];
            if (in->readers == 0) in->first_reader = reader;
            in->readers++;
        }
    }
}

/* Returns 1 if the step adds two different values of the same shape, not yet part of a fusion. */
static int jem__can_fuse_sum(const jem__step *s) {
    return jem__has(s->node, JEM__OP_SUM) && !s->fused_conv && !s->fused_into &&
           s->in[0] != s->in[1] && s->in[0]->node->stride == s->in[1]->node->stride;
}

/* Fuses a convolution with the only reader of its output, if that is an addition or an activation,
   and then with the activation that reads the addition first. */
static void jem__fuse_forward(jem__step *conv) {
    if (conv->readers != 1 || conv->node->value) return;
    jem__step *last = conv;
    jem__step *sum = NULL;
    if (jem__can_fuse_sum(conv->first_reader)) {
        sum = conv->first_reader;
        last = sum;
    }
    jem__step *next = last->first_reader;
    if (next && jem__has(next->node, JEM__OP_ACTIVATION)) last = next;
    if (last == conv) return;
    last->fused_conv = conv;
    last->fused_sum = sum;
    conv->fused_into = last;
    if (sum && sum != last) sum->fused_into = last;
}

/* Fuses a convolution's input gradient with that of the activation before it, if the convolution is
   the activation's only reader: the gradient between them then has no other summand. */
static void jem__fuse_back(jem__step *conv) {
    jem__step *activation = conv->in[0];
    if (activation->pos < 0 || !jem__has(activation->node, JEM__OP_ACTIVATION)) return;
    if (activation->readers != 1 || !activation->needs || !conv->needs) return;
    activation->back_conv = conv;
    conv->back_fused_into = activation;
}

static void jem__plan_fuse(jem__run *r) {
    jem__plan_readers(r);
    for (int i = 0; i < r->n; i++) {
        if (!jem__has(r->list[i]->node, JEM__OP_CONV)) continue;
        jem__fuse_back(r->list[i]);
        jem__fuse_forward(r->list[i]);
    }
}

/* Returns the node whose op computes the step forward: that of the convolution fused into it. */
static const jem__node *jem__forward_node(const jem__step *s) {
    if (s->fused_conv) return s->fused_conv->node;
    return s->node;
}
static const jem__node *jem__backward_node(const jem__step *s) {
    if (s->back_conv) return s->back_conv->node;
    return s->node;
}

/* ---- lifetimes ------------------------------------------------------------------------------- */
/* list[i] goes forward at time i and back at time 2n-1-i, unless it is fused into another step. A
   buffer lives from the first time it is written to the last time it is read. */

static int jem__time_forward(const jem__step *s) {
    if (s->fused_into) return s->fused_into->pos;
    return s->pos;
}
static int jem__time_back(const jem__run *r, const jem__step *s) {
    if (s->back_fused_into) return 2 * r->n - 1 - s->back_fused_into->pos;
    return 2 * r->n - 1 - s->pos;
}

/* bf16 pays where one bf16 convolution writes what another reads: the value for its output and for
   the gradient of its weights, or the gradient for its input gradient. */
static int jem__writes_bf16(const jem__step *s) {
    return !s->fused_into && jem__forward_node(s)->bf16_out;
}
static int jem__params_bf16(const jem__run *r, const jem__step *s) {
    return r->mode != JEM__BACKWARD || !jem__trains(s->node) || s->node->bf16_params;
}
static int jem__reads_bf16(const jem__run *r, const jem__step *reader, const jem__step *s) {
    return reader->node->bf16_out && reader->in[0] == s && jem__writes_bf16(s) &&
           jem__params_bf16(r, reader);
}

/* Returns 1 if both are parts of one fused step, so that the value never reaches memory. */
static int jem__reads_in_registers(const jem__step *reader, const jem__step *s) {
    if (!s->fused_into) return 0;
    return reader == s->fused_into || reader->fused_into == s->fused_into;
}

/* Returns the last time the reader needs its input k: on the way back if its backward or its weight
   gradient needs the value, otherwise on the way forward. */
static int jem__time_read(const jem__run *r, const jem__step *reader, int k) {
    const jem_op *op = reader->node->op;
    int keeps = op->keeps;
    if (r->mode == JEM__BACKWARD && jem__trains(reader->node))
        keeps |= op->traits->keeps_for_params;
    if (reader->needs && keeps >> k & 1) return jem__time_back(r, reader);
    return jem__time_forward(reader);
}

/* Returns the last time that a value is read from memory, -1 if it never is. With `bf16`, only the
   readers of its bf16 copy count, without it only the others. */
static int jem__last_use(const jem__run *r, const jem__step *s, int bf16) {
    int last_use = -1;
    if (!bf16 && s->needs && s->node->op->keeps & JEM_KEEPS_OUTPUT)
        last_use = jem__time_back(r, s);
    for (int j = s->pos + 1; j < r->n; j++)
        for (int k = 0; k < r->list[j]->node->inputs; k++) {
            const jem__step *reader = r->list[j];
            if (reader->in[k] != s || jem__reads_bf16(r, reader, s) != bf16) continue;
            if (jem__reads_in_registers(reader, s)) continue;
            const int time = jem__time_read(r, reader, k);
            if (time > last_use) last_use = time;
        }
    return last_use;
}

/* ---- buffers of values ----------------------------------------------------------------------- */

static void jem__plan_value16(jem__run *r, jem__step *s) {
    if (!jem__writes_bf16(s)) return;
    const jem_tensor *t = &s->node->t;
    const int last_use = jem__last_use(r, s, 1);
    if (last_use < 0) return;
    s->value16_buf = jem__plan_buf(r, jem__time_forward(s), last_use,
                                   jem__bf16_floats(t->c, t->h, t->w));
}

/* Returns 1 if the step may write its output over its first input: the input dies here. A fused
   convolution reads its own input until the fused step ends; that input must survive. */
static int jem__can_overwrite_input(const jem__run *r, const jem__step *s) {
    if (!jem__has(s->node, JEM__OP_SHARES)) return 0;
    const jem__step *input = s->in[0];
    if (!input->value_buf || input->node->stride != s->node->stride) return 0;
    const jem__step *fused = s;
    if (s->fused_into) fused = s->fused_into;
    if (fused->fused_conv && fused->fused_conv->in[0]->value_buf == input->value_buf) return 0;
    return r->bufs[input->value_buf].end == jem__time_forward(s);
}

static void jem__plan_value(jem__run *r, jem__step *s) {
    if (s->node->value) return;                    /* kept after the run, outside the region */
    const int start = jem__time_forward(s);
    int last_use = jem__last_use(r, s, 0);
    if (last_use < 0) {                            /* unread; its op may run all the same */
        if (!jem__has(s->node, JEM__OP_LEARNS)) return;
        last_use = start;
    }
    if (!jem__can_overwrite_input(r, s)) {
        s->value_buf = jem__plan_buf(r, start, last_use, s->node->stride);
        return;
    }
    s->value_buf = s->in[0]->value_buf;
    r->bufs[s->value_buf].end = last_use;
}

/* Plans the memory that an op passes from its forward to its backward. */
static void jem__plan_aux(jem__run *r, jem__step *s) {
    if (!s->node->aux_bytes) return;
    int end = s->pos;
    if (s->needs) end = 2 * r->n - 1 - s->pos;
    s->aux_buf = jem__plan_buf(r, s->pos, end, (ptrdiff_t)((s->node->aux_bytes + 3) / 4));
}

static void jem__plan_values(jem__run *r) {
    for (int i = 0; i < r->n; i++) {
        jem__plan_value16(r, r->list[i]);
        jem__plan_value(r, r->list[i]);
    }
    for (int i = 0; i < r->n; i++) jem__plan_aux(r, r->list[i]);
}

/* ---- buffers of gradients -------------------------------------------------------------------- */

/* Marks, for each step, the inputs whose gradient another step has already begun: it adds to those.
   The way back is in reverse order, so the last reader of a value begins its gradient. */
static void jem__plan_adds(jem__run *r) {
    for (int i = r->n - 1; i >= 0; i--) {
        jem__step *s = r->list[i];
        if (!s->needs || s->back_fused_into) continue;
        for (int k = 0; k < s->node->inputs; k++) {
            jem__step *in = s->in[k];
            if (!in->needs) continue;
            s->add[k] = in->written;
            in->written = 1;
        }
    }
}

/* Returns the step whose gradient the convolution reads. A sum passes its gradient to its inputs
   unchanged; if the sum is the only reader, that gradient serves without a copy. */
static jem__step *jem__gradient_source(jem__step *conv) {
    if (conv->readers != 1) return conv;
    jem__step *sum = conv->first_reader;
    if (!jem__has(sum->node, JEM__OP_SUM) || sum->in[0] == sum->in[1]) return conv;
    if (sum->node->stride != conv->node->stride) return conv;
    return sum;
}

/* Returns the last step to write s's gradient on the way back, which is its first reader that needs
   a gradient; NULL if no reader does. */
static jem__step *jem__last_gradient_writer(const jem__run *r, const jem__step *s) {
    for (int j = s->pos + 1; j < r->n; j++)
        for (int k = 0; k < r->list[j]->node->inputs; k++)
            if (r->list[j]->in[k] == s && r->list[j]->needs) return r->list[j];
    return NULL;
}

/* Plans a bf16 copy of the gradient that a bf16 convolution reads, if its last writer is a bf16
   convolution too. */
static void jem__plan_gradient16(jem__run *r, jem__step *conv) {
    if (!conv->node->bf16_grad || !conv->needs) return;
    if (!conv->in[0]->needs || !jem__params_bf16(r, conv)) return;
    jem__step *source = jem__gradient_source(conv);
    jem__step *writer = jem__last_gradient_writer(r, source);
    if (!writer || writer->back_fused_into || !jem__backward_node(writer)->bf16_grad) return;
    const int start = 2 * r->n - 1 - writer->pos;
    const int end = jem__time_back(r, conv);
    const jem_tensor *t = &source->node->t;
    conv->dy16 = source;
    conv->grad16_only = source == conv && conv->readers == 1;
    source->grad16_writer = writer;
    if (!source->grad16_buf)
        source->grad16_buf = jem__plan_buf(r, start, end, jem__bf16_floats(t->c, t->h, t->w));
    jem__plan_extend(r, source->grad16_buf, end);
}

/* Returns 1 if the gradient is stored in fp32, rather than in registers or in bf16 only. */
static int jem__stores_gradient(const jem__step *s) { return !s->back_conv && !s->grad16_only; }

/* Returns 1 if a step other than the sum writes to the gradient of `a` before that of `b` has been
   read. */
static int jem__changes_gradient_before(const jem__run *r, const jem__step *sum, const jem__step *a,
                                        const jem__step *b) {
    for (int j = a->pos + 1; j < r->n; j++)
        for (int k = 0; k < r->list[j]->node->inputs; k++) {
            const jem__step *reader = r->list[j];
            if (reader == sum || reader->in[k] != a) continue;
            if (jem__time_back(r, reader) <= jem__time_back(r, b)) return 1;
        }
    return 0;
}

/* Returns 1 if a sum may pass its gradient's buffer on to input k. Its inputs have the same
   gradient and can all use one buffer, unless another step adds to one input's gradient before the
   other's has been read. */
static int jem__can_share_gradient(const jem__run *r, const jem__step *sum, int k) {
    const jem__step *first = sum->in[0];
    const jem__step *second = sum->in[1];
    if (first == second) return 0;
    if (k == 0) return 1;
    return !jem__changes_gradient_before(r, sum, first, second) &&
           !jem__changes_gradient_before(r, sum, second, first);
}

/* Gives the gradient of input k a buffer: the step's own if the step allows it, or a new one. */
static void jem__plan_input_gradient(jem__run *r, jem__step *s, int k, int in_place) {
    jem__step *in = s->in[k];
    const int last_use = jem__time_back(r, in);
    int share = in_place && in->node->stride == s->node->stride;
    if (share && jem__has(s->node, JEM__OP_SUM)) share = jem__can_share_gradient(r, s, k);
    else if (k > 0) share = 0;
    if (share) {
        in->grad_buf = s->grad_buf;
        jem__plan_extend(r, in->grad_buf, last_use);
    } else in->grad_buf = jem__plan_buf(r, jem__time_back(r, s), last_use, in->node->stride);
}

/* Plans all gradients. One lives from its first writer to the step that it belongs to. */
static void jem__plan_gradients(jem__run *r) {
    for (int i = r->n - 1; i >= 0; i--) {
        jem__step *s = r->list[i];
        if (!s->needs) continue;
        const int now = 2 * r->n - 1 - i;
        int in_place = 0;
        if (jem__stores_gradient(s)) {
            const int last_use = jem__time_back(r, s);
            if (!s->grad_buf) s->grad_buf = jem__plan_buf(r, now, last_use, s->node->stride);
            jem__plan_extend(r, s->grad_buf, last_use);
            in_place = r->bufs[s->grad_buf].end == now && jem__has(s->node, JEM__OP_SHARES);
        }
        for (int k = 0; k < s->node->inputs; k++) {
            const jem__step *in = s->in[k];
            if (!in->needs || in->pos < 0 || in->grad_buf || !jem__stores_gradient(in)) continue;
            jem__plan_input_gradient(r, s, k, in_place);
        }
    }
}

/* ---- offsets in a region --------------------------------------------------------------------- */

/* Fills order[] with the numbers of all buffers, the largest first. */
static void jem__sort_buffers(const jem__run *r, int *order) {
    for (int i = 0; i < r->n_bufs; i++) {
        int j = i;
        for (; j > 0 && r->bufs[order[j - 1]].size < r->bufs[i].size; j--) order[j] = order[j - 1];
        order[j] = i;
    }
}

/* Returns the lowest offset at which the buffer is free during its lifetime; placed[] holds the
   buffers that have an offset, in the order of their offsets. */
static ptrdiff_t jem__lowest_offset(const jem__run *r, const jem__buf *b, const int *placed,
                                    int n_placed) {
    ptrdiff_t offset = 0;
    for (int i = 0; i < n_placed; i++) {
        const jem__buf *other = r->bufs + placed[i];
        if (other->end < b->start || other->start > b->end) continue;
        if (other->at - offset >= b->size) break;
        if (other->at + other->size > offset) offset = other->at + other->size;
    }
    return offset;
}

/* Places the largest buffers first, each at its lowest free offset. */
static jem_status jem__plan_layout(jem__run *r) {
    int *order = (int *)jem__push(r->ctx, (size_t)(r->n_bufs + 1) * 2 * sizeof *order);
    if (!order) return JEM_NO_MEMORY;
    int *placed = order + r->n_bufs;
    jem__sort_buffers(r, order);
    for (int i = 0; i < r->n_bufs; i++) {
        jem__buf *b = r->bufs + order[i];
        b->at = jem__lowest_offset(r, b, placed, i);
        if (b->at > JEM__FLOATS - b->size) {
            jem__too_much(r->ctx);
            return JEM_NO_MEMORY;
        }
        if (b->at + b->size > r->region) r->region = b->at + b->size;
        int j = i;
        for (; j > 0 && r->bufs[placed[j - 1]].at > b->at; j--) placed[j] = placed[j - 1];
        placed[j] = order[i];
    }
    return JEM_OK;
}

/* Allocates the regions. Each ends with the scratch of its parts. */
static jem_status jem__plan_memory(jem__run *r) {
    const ptrdiff_t scratch = r->region;
    for (int i = 0; i < r->n; i++)
        if (r->list[i]->node->work > r->part_step) r->part_step = r->list[i]->node->work;
    r->part_step += (16 - r->part_step % 16) % 16 + 16;
    r->region += r->part_step * r->parts;
    /* Regions a power of two apart would compete for the same cache lines. */
    r->region = (r->region / 1024 + 1) * 1024 + 16 * JEM_LANES;
    if (r->region > JEM__FLOATS / r->slots) {
        jem__too_much(r->ctx);
        return JEM_NO_MEMORY;
    }
    r->base = jem__push_floats(r->ctx, r->slots * r->region);
    if (!r->base) return JEM_NO_MEMORY;
    r->work.at = r->base + scratch;
    r->work.step = r->region;
    r->work.slots = r->slots;
    return JEM_OK;
}

static jem__place jem__buf_place(const jem__run *r, int buf) {
    jem__place p = { NULL, r->region, r->slots };
    if (buf) p.at = r->base + r->bufs[buf].at;
    return p;
}

/* Turns the numbers of buffers into addresses. A gradient that stays in registers points to the
   scratch, because NULL would mean that no backward follows. */
static void jem__plan_places(jem__run *r) {
    for (int i = 0; i < r->n; i++) {
        jem__step *s = r->list[i];
        if (!s->node->value) s->value = jem__buf_place(r, s->value_buf);
        s->aux = jem__buf_place(r, s->aux_buf);
        s->grad = r->work;
        if (s->grad_buf) s->grad = jem__buf_place(r, s->grad_buf);
        s->value16 = jem__buf_place(r, s->value16_buf);
        s->grad16 = jem__buf_place(r, s->grad16_buf);
        s->reads16 = s->node->inputs && jem__reads_bf16(r, s, s->in[0]);
    }
}

/* ---- running --------------------------------------------------------------------------------- */

/* Returns how many parts a step is computed in. Only convolutions are large enough to divide. */
static int jem__parts(const jem__run *r, const jem__step *s, int back) {
    const jem__node *n = jem__forward_node(s);
    if (back) n = jem__backward_node(s);
    if (jem__has(n, JEM__OP_CONV)) return r->parts;
    return 1;
}

/* Points the call of a fused convolution to the outputs of the addition and the activation. */
static void jem__call_fused(const jem__step *s, int group, jem_call *call, jem__inner *in) {
    const jem__step *conv = s->fused_conv;
    const jem__step *sum = s->fused_sum;
    const jem__step *before_activation = conv;
    if (sum) {
        const jem__step *other = sum->in[0];
        if (other == conv) other = sum->in[1];
        in->plus = jem__at_place(other->value, group);
        before_activation = sum;
    }
    call->y = jem__at_place(before_activation->value, group);
    if (s == before_activation) return;            /* there is no activation */
    in->act = s->node->user;
    in->act_y = jem__at_place(s->value, group);
    if (s->needs) in->act_aux = jem__at_place(s->aux, group);
}

static void jem__plan_forward(const jem__run *r, jem__step *s, int group, int part) {
    if (s->fused_into || part >= jem__parts(r, s, 0)) return;
    jem__step *main_step = s;
    if (s->fused_conv) main_step = s->fused_conv;
    jem_call call;
    jem__inner in;
    jem__call_open(r, main_step, group, part, &call, &in);
    in.y16 = jem__at_place16(s->value16, group);
    if (s->fused_conv) jem__call_fused(s, group, &call, &in);
    main_step->node->op->forward(&call);
}

static void jem__plan_backward(const jem__run *r, jem__step *s, int group, int part) {
    if (s->back_fused_into || part >= jem__parts(r, s, 1)) return;
    if (!jem__has(jem__backward_node(s), JEM__OP_CONV)) {
        jem__step_backward(r, s, group);
        return;
    }
    jem__step *main_step = s;
    if (s->back_conv) main_step = s->back_conv;
    jem_call call;
    jem__inner in;
    jem__call_open(r, main_step, group, part, &call, &in);
    if (s->back_conv) {                            /* through the activation, to its input */
        in.act = s->node->user;
        in.act_aux = jem__at_place(s->aux, group);
        in.add[0] = s->add[0];
        call.dx[0] = NULL;
        if (s->in[0]->needs) call.dx[0] = jem__at_place(s->in[0]->grad, group);
    }
    if (s->in[0]->grad16_writer == s) in.y16 = jem__at_place16(s->in[0]->grad16, group);
    if (s->in[0]->grad16_only) call.dx[0] = NULL;
    if (call.dx[0] || in.y16) main_step->node->op->backward(&call);
}

/* Takes one group through list[from..to-1]. */
static void jem__group_forward(const jem__run *r, int group) {
    for (int i = r->from; i < r->to; i++) jem__plan_forward(r, r->list[i], group, 0);
}
static void jem__group_backward(const jem__run *r, int group) {
    for (int i = r->to - 1; i >= r->from; i--)
        if (r->list[i]->needs) jem__plan_backward(r, r->list[i], group, 0);
}

/* Takes all groups that share a region forward, and back at once if the run does both. */
static void jem__task_slot(void *arg, int slot) {
    const jem__run *r = (const jem__run *)arg;
    const int groups = r->list[r->from]->node->groups;
    for (int group = slot; group < groups; group += r->slots) {
        jem__group_forward(r, group);
        if (!r->both) continue;
        jem__seed(r, group);
        jem__group_backward(r, group);
    }
}
static void jem__task_group_backward(void *arg, int group) {
    jem__group_backward((const jem__run *)arg, group);
}

/* Computes one part of one group of the step list[from]. */
static void jem__task_part(void *arg, int i) {
    const jem__run *r = (const jem__run *)arg;
    jem__step *s = r->list[r->from];
    const int parts = jem__parts(r, s, r->back);
    if (r->back) jem__plan_backward(r, s, i / parts, i % parts);
    else jem__plan_forward(r, s, i / parts, i % parts);
}

/* Runs list[from..to-1] depth-first, one task per region forward, one per group on the way back. */
static void jem__span_depth_first(jem__run *r, int back) {
    const int groups = r->list[r->from]->node->groups;
    double flops = 0;
    for (int i = r->from; i < r->to; i++) flops += (1 + r->both) * r->list[i]->node->flops * groups;
    if (back) {
        jem__parallel(r->ctx, groups, flops, jem__task_group_backward, r);
        return;
    }
    int tasks = r->slots;
    if (tasks > groups) tasks = groups;
    jem__parallel(r->ctx, tasks, flops, jem__task_slot, r);
}

/* Runs list[from..to-1] step by step, each convolution in parts. */
static void jem__span_in_parts(jem__run *r, int back) {
    const int from = r->from;
    const int groups = r->list[from]->node->groups;
    r->back = back;
    for (int i = 0; i < r->to - from; i++) {
        int at = from + i;
        if (back) at = r->to - 1 - i;
        const jem__step *s = r->list[at];
        if (back && (!s->needs || s->back_fused_into)) continue;
        if (!back && s->fused_into) continue;
        const jem__node *n = jem__forward_node(s);
        if (back) n = jem__backward_node(s);
        r->from = at;
        jem__parallel(r->ctx, groups * jem__parts(r, s, back), n->flops * groups, jem__task_part,
                      r);
    }
    r->from = from;
}

/* Runs list[from..to-1] over all groups: in parts where there are fewer groups than threads. */
static void jem__plan_span(jem__run *r, int back) {
    if (r->parts == 1) jem__span_depth_first(r, back);
    else jem__span_in_parts(r, back);
}

/* Returns 1 if steps i and j can go depth-first together: neither needs the whole batch. */
static int jem__together(const jem__run *r, int i, int j) {
    const jem__node *a = r->list[i]->node;
    const jem__node *b = r->list[j]->node;
    return !jem__has(a, JEM__OP_WHOLE) && !jem__has(b, JEM__OP_WHOLE) && a->groups == b->groups;
}

static void jem__plan_all_forward(jem__run *r) {
    for (r->from = 0; r->from < r->n; r->from = r->to) {
        r->to = r->from + 1;
        while (r->to < r->n && jem__together(r, r->from, r->to)) r->to++;
        if (jem__has(r->list[r->from]->node, JEM__OP_WHOLE))
            jem__step_forward(r, r->list[r->from], 0);
        else jem__plan_span(r, 0);
    }
}

static jem_status jem__plan_all_back(jem__run *r) {
    for (int g = 0; g < r->target->node->groups; g++) jem__seed(r, g);
    for (int i = r->n - 1; i >= 0; i--) {
        jem__step *s = r->list[i];
        if (!s->needs) continue;
        if (r->mode == JEM__BACKWARD && jem__trains(s->node)) {
            const jem_status status = jem__step_params(r, s);
            if (status != JEM_OK) return status;
        }
        if (jem__has(s->node, JEM__OP_WHOLE)) {
            jem__step_backward(r, s, 0);
            continue;
        }
        /* The span ends before the next step with weights: their gradient is summed first. */
        r->to = i + 1;
        while (i > 0 && jem__together(r, i - 1, r->to - 1) &&
               !(r->mode == JEM__BACKWARD && jem__trains(r->list[i - 1]->node))) i--;
        r->from = i;
        jem__plan_span(r, 1);
    }
    return JEM_OK;
}

/* Divides the run among threads: `slots` regions, and `parts` threads for one group. Returns 1 if
   all steps can go depth-first together. */
static int jem__plan_threads(jem__run *r) {
    const int threads = r->ctx->threads;
    int groups = 1;
    int together = r->n > 0;
    for (int i = 0; i < r->n; i++) {
        jem__step *s = r->list[i];
        s->pos = i;
        if (s->node->groups > groups) groups = s->node->groups;
        together = together && jem__together(r, 0, i);
    }
    r->parts = 1;
    if (threads > groups) r->parts = (threads + groups - 1) / groups;
    r->slots = threads;
    if (r->mode == JEM__BACKWARD || !together || groups < threads) r->slots = groups;
    return together;
}

static jem_status jem__run_planned(jem__run *r) {
    r->bufs = (jem__buf *)jem__push(r->ctx, (size_t)(5 * r->n + 1) * sizeof *r->bufs);
    if (!r->bufs) return JEM_NO_MEMORY;
    jem__plan_buf(r, 0, -1, 0);                    /* buffer 0 means 'no buffer' */
    const int together = jem__plan_threads(r);
    jem__plan_fuse(r);
    jem__plan_adds(r);
    jem__plan_values(r);
    for (int i = 0; i < r->n; i++) jem__plan_gradient16(r, r->list[i]);
    jem__plan_gradients(r);
    jem_status status = jem__plan_layout(r);
    if (status == JEM_OK) status = jem__plan_memory(r);
    if (status != JEM_OK) return status;
    jem__plan_places(r);
    if (together && r->mode == JEM__GRAD && r->parts == 1) {
        r->to = r->n;
        r->both = 1;
        jem__plan_span(r, 0);
        return JEM_OK;
    }
    jem__plan_all_forward(r);
    if (r->mode == JEM__EVAL) return JEM_OK;
    return jem__plan_all_back(r);
}

/* ---- requests -------------------------------------------------------------------------------- */

/* Lists the steps to run, and lets their ops prepare: a convolution packs its weights. */
static jem_status jem__run_list(jem__run *r) {
    r->list = (jem__step **)jem__push(r->ctx, (size_t)(r->n + 1) * sizeof *r->list);
    if (!r->list) return JEM_NO_MEMORY;
    r->n = 0;
    jem_status status = JEM_OK;
    for (jem__step *s = r->ctx->steps; s <= r->target && status == JEM_OK; s++) {
        const jem_op *op = s->node->op;
        if (!s->runs) continue;
        r->list[r->n++] = s;
        jem_call c;
        jem__inner in;
        jem__call_open(r, s, 0, 0, &c, &in);
        if (op->traits && op->traits->prepare)
            status = op->traits->prepare(&c, s->needs && s->in[0]->needs);
    }
    return status;
}

/* Computes target; with JEM__GRAD d target / d leaf too, with JEM__BACKWARD adds to the gradients
   of the parameters. */
static jem_status jem__run_tape(jem_ctx *ctx, jem__mode mode, jem__node *target, jem__node *leaf) {
    JEM__ZEROED(jem__run, r);
    r.ctx = ctx;
    r.mode = mode;
    jem__run_marks(&r, target, leaf);
    if (leaf && !r.target->needs)
        return jem__fail(ctx, JEM_BAD_ARGUMENT, "grad: %s does not depend on the leaf %s",
                         jem__shape_text(&target->t).s, jem__shape_text(&leaf->t).s);
    if (mode == JEM__BACKWARD && !r.target->needs)
        return jem__fail(ctx, JEM_BAD_ARGUMENT, "backward: the loss depends on no parameter");
    jem_status s = jem__run_kept(&r);
    if (s == JEM_OK && r.n == 0 && !leaf) return s;
    jem_mark mark = jem_begin(ctx);                /* the run's memory ends with it */
    if (s == JEM_OK) s = jem__run_list(&r);
    if (s == JEM_OK && ctx->desc.plain_tape) s = jem__walk_plain(&r);
    else if (s == JEM_OK) s = jem__run_planned(&r);
    if (s == JEM_OK) s = ctx->status;              /* a custom op may have called jem_fail */
    for (int i = 0; r.list && i < r.n; i++)
        r.list[i]->node->ready = s == JEM_OK && r.list[i]->node->value;
    if (s != JEM_OK && leaf) leaf->grad = NULL;
    jem_end(ctx, mark);
    return s;
}

static jem_status jem__compute(jem_tensor *t, const char *what) {
    if (!t) return JEM_BAD_ARGUMENT;
    if (!jem__live(t, what)) return t->ctx->status;
    if (t->node->ready) return JEM_OK;
    return jem__run_tape(t->ctx, JEM__EVAL, t->node, NULL);
}

void jem_keep(jem_tensor *t) { if (t && t->node) t->node->keep = 1; }

jem_status jem_read(jem_tensor *t, float *nchw) {
    if (jem__live(t, "read") && !nchw)
        return jem__fail(t->ctx, JEM_BAD_ARGUMENT, "read: nchw is NULL");
    const jem_status s = jem__compute(t, "read");
    if (s == JEM_OK) jem__copy_out(t->node, t->node->value, nchw);
    return s;
}

static int jem__one_number(const jem_tensor *t) { return (double)t->n * t->c * t->h * t->w <= 1; }

float jem_item(jem_tensor *t) {
    if (jem__live(t, "item") && !jem__one_number(t))
        jem__fail(t->ctx, JEM_BAD_SHAPE, "item: %s is not one number", jem__shape_text(t).s);
    if (jem__compute(t, "item") != JEM_OK) return (float)NAN;
    return t->node->value[0];
}

jem_status jem_backward(jem_tensor *loss) {
    if (!loss) return JEM_BAD_ARGUMENT;
    if (!jem__live(loss, "backward")) return loss->ctx->status;
    if (!jem__one_number(loss))
        return jem__fail(loss->ctx, JEM_BAD_SHAPE, "backward: the loss is %s, not one number",
                         jem__shape_text(loss).s);
    return jem__run_tape(loss->ctx, JEM__BACKWARD, loss->node, NULL);
}

jem_status jem_grad(jem_tensor *y, jem_tensor *x) {
    if (!y || !x) return JEM_BAD_ARGUMENT;
    if (!jem__live(y, "grad")) return y->ctx->status;
    if (!jem__live(x, "grad")) return x->ctx->status;
    if (x->ctx != y->ctx || x->node->op || y->node->stride != JEM_LANES)
        return jem__fail(y->ctx, JEM_BAD_SHAPE,
                         "grad: y is %s, x is %s: y must have one number per image, x be a leaf",
                         jem__shape_text(y).s, jem__shape_text(x).s);
    return jem__run_tape(y->ctx, JEM__GRAD, y->node, x->node);
}

jem_status jem_read_grad(const jem_tensor *x, float *nchw) {
    if (!x) return JEM_BAD_ARGUMENT;
    if (!jem__live(x, "read_grad")) return x->ctx->status;
    if (!nchw) return jem__fail(x->ctx, JEM_BAD_ARGUMENT, "read_grad: nchw is NULL");
    if (!x->node->grad)
        return jem__fail(x->ctx, JEM_BAD_ARGUMENT,
                         "read_grad: no gradient of this %s leaf: jem_grad first",
                         jem__shape_text(x).s);
    jem__copy_out(x->node, x->node->grad, nchw);
    return JEM_OK;
}

/* ---- the gradient checker -------------------------------------------------------------------- */

/* Sums fn(x) over images, in double. */
static double jem__check_value(jem_ctx *ctx, jem_logp_fn fn, void *user, jem_tensor *x) {
    jem_mark mark = jem_begin(ctx);
    jem_tensor *y = fn(ctx, x, user);
    double sum = NAN;
    if (jem__compute(y, "check_gradient") == JEM_OK) {
        sum = 0;
        for (int i = 0; i < y->n; i++)
            sum += (double)y->node->value[jem__lane_at(y->node, i, 0, 0, 0)];
    }
    jem_end(ctx, mark);
    return sum;
}

/* Lets the tape compute d sum fn / d x, or d sum fn / d p if p is given. grad begins as zeros. */
static void jem__check_tape(jem_ctx *ctx, jem_logp_fn fn, void *user, jem_tensor *x, jem_param *p,
                            float *grad) {
    jem_mark mark = jem_begin(ctx);
    jem_tensor *y = fn(ctx, x, user);
    if (!p && jem_grad(y, x) == JEM_OK) jem_read_grad(x, grad);
    if (p && jem__live(y, "check_gradient")) {
        float *own = p->grad;
        p->grad = grad;
        if (y->node->stride == JEM_LANES) jem__run_tape(ctx, JEM__BACKWARD, y->node, NULL);
        else jem__fail(ctx, JEM_BAD_SHAPE, "check_gradient: y must have one number per image");
        p->grad = own;
    }
    if (!y) jem__fail(ctx, JEM_BAD_ARGUMENT, "check_gradient: the function made nothing");
    jem_end(ctx, mark);
}

/* Makes the tape use the changed elements; unlike jem_write, after an error too. */
static void jem__check_put(jem_tensor *x, jem_param *p, const float *elements) {
    if (p) {
        jem_param_changed(p);
        return;
    }
    jem__copy_in(x->node, x->node->value, elements);
    jem__leaf_changed(x->node);
}

/* Returns d sum fn / d element by a central difference of fourth order. */
static double jem__check_difference(jem_ctx *ctx, jem_logp_fn fn, void *user, jem_tensor *x,
                                    jem_param *p, float *elements, ptrdiff_t i, float step) {
    static const double weight[4] = { -8, 8, 1, -1 };
    static const double offset[4] = { -1, 1, -2, 2 };
    const float before = elements[i];
    double difference = 0;
    for (int k = 0; k < 4; k++) {
        elements[i] = before + (float)offset[k] * step;
        jem__check_put(x, p, elements);
        difference += weight[k] * jem__check_value(ctx, fn, user, x);
    }
    elements[i] = before;
    jem__check_put(x, p, elements);
    return difference / (12 * (double)step);
}

float jem_check_gradient(jem_ctx *ctx, jem_logp_fn fn, void *user, jem_tensor *x, jem_param *p,
                         float step) {
    if (!ctx || !fn || !x || !jem__live(x, "check_gradient") || x->node->op || (p && !p->grad) ||
        !(step > 0)) {
        jem__fail(ctx, JEM_BAD_ARGUMENT, "check_gradient: needs a function, a leaf, a trainable "
                  "parameter (or none) and a step > 0");
        return -1;
    }
    ptrdiff_t n = x->n * x->node->stride / JEM_LANES;
    ptrdiff_t n_grad = n;
    if (p) {
        n = p->size;
        n_grad = jem__padded(p);
    }
    float *grad = jem__alloc_floats(ctx, n_grad);
    float *elements = p ? p->value : jem__alloc_floats(ctx, n);
    double worst = 0;
    double largest = 1e-12;
    if (grad && elements) {
        jem__check_tape(ctx, fn, user, x, p, grad);
        if (!p) jem_read(x, elements);
    }
    for (ptrdiff_t i = 0; i < n && jem_ok(ctx); i++) {
        const double by_tape = (double)grad[i];
        const double difference = jem__check_difference(ctx, fn, user, x, p, elements, i, step);
        const double error = fabs(difference - by_tape);
        if (fabs(by_tape) > largest) largest = fabs(by_tape);
        if (fabs(difference) > largest) largest = fabs(difference);
        if (jem__finite((float)worst) && !(jem__finite((float)error) && error <= worst))
            worst = error;                         /* and NaN remains the worst */
    }
    jem__free(ctx, grad);
    if (!p) jem__free(ctx, elements);
    if (!jem_ok(ctx)) return -1;
    return (float)(worst / largest);
}

/* ==== >>ops: what you build with ============================================================== */
/* An op is a check of shapes, a jem_op, and two functions on one group of 16 images. */

#define JEM__OP(name, what, keeps, traits)                                                         \
    static const jem_op jem__op_##name = { #name, jem__##what##_forward, jem__##what##_backward,   \
                                           keeps, traits }
static jem_tensor *jem__op1(jem_ctx *ctx, const jem_op *op, jem_tensor *x, jem_shape out,
                            const void *user, size_t user_bytes, size_t aux_bytes) {
    return jem__record(ctx, op, &x, 1, out, NULL, 0, user, user_bytes, aux_bytes);
}

/* ---- few images: lanes are blocks of one image ----------------------------------------------- */
/* A batch of one would leave 15 of 16 lanes idle. So the networks below cut a few images into 4 x 4
   blocks: a batch of 16 n smaller images, one image a group, lane 4*row + column. Elementwise ops
   work on it as on any batch. So do convolutions, both ways, of a copy whose padding is taken from
   the blocks around, moved by lanes. */

enum { JEM__GRID = 4 };

/* Copies between x (n,c,h,w) and its blocks (16 n,c,h/4,w/4): one way, or back and adding. */
static void jem__blocks_copy(const jem_call *c, int n, jem_shape block, int split, int gradient) {
    for (int i = 0; i < n; i++) {
        const jem_call image = jem__at(c, split ? i / JEM_LANES : i),
                       cut = jem__at(c, split ? i : i / JEM_LANES);
        for (int l = 0; l < JEM_LANES; l++)
            for (int y = 0; y < block.h; y++)
                for (int x = 0; x < block.w; x++) {
                    const ptrdiff_t row = (ptrdiff_t)(l / JEM__GRID) * block.h + y;
                    const ptrdiff_t at = row * block.w * JEM__GRID + (l % JEM__GRID) * block.w + x;
                    const ptrdiff_t whole = at * block.c * JEM_LANES + i % JEM_LANES;
                    const ptrdiff_t part = ((ptrdiff_t)y * block.w + x) * block.c * JEM_LANES + l;
                    const ptrdiff_t in = split ? whole : part, out = split ? part : whole;
                    for (int k = 0; k < block.c * JEM_LANES; k += JEM_LANES)
                        if (gradient) image.dx[0][in + k] += cut.dy[out + k];
                        else cut.y[out + k] = image.x[0][in + k];
                }
    }
}
static void jem__split_forward(const jem_call *c) {
    jem__blocks_copy(c, c->in[0].n, c->out, 1, 0);
}
static void jem__split_backward(const jem_call *c) {
    jem__blocks_copy(c, c->in[0].n, c->out, 1, 1);
}
static void jem__join_forward(const jem_call *c) {
    jem__blocks_copy(c, c->out.n, c->in[0], 0, 0);
    for (int g = 0; g < jem__groups(c->out.n); g++) {
        const jem_call at = jem__at(c, g);
        jem__fill_dead(at.y, jem__floats(c->out), at.live);
    }
}
static void jem__join_backward(const jem_call *c) { jem__blocks_copy(c, c->out.n, c->in[0], 0, 1); }
JEM__OP(split, split, JEM_KEEPS_NOTHING, &jem__whole);
JEM__OP(join, join, JEM_KEEPS_NOTHING, &jem__whole);

static jem_tensor *jem__recut(jem_ctx *ctx, jem_tensor *x, int blocks) {       /* or join them */
    if (!x || !jem_ok(ctx)) return NULL;
    const jem_shape cut = jem__shape(x->n * JEM_LANES, x->c, x->h / JEM__GRID, x->w / JEM__GRID),
                    whole = jem__shape(x->n / JEM_LANES, x->c, x->h * JEM__GRID, x->w * JEM__GRID);
    jem_tensor *y = jem__op1(ctx, blocks ? &jem__op_split : &jem__op_join, x,
                             blocks ? cut : whole, NULL, 0, 0);
    if (y) y->blocks = blocks;
    return y;
}

/* x (h,w,c) -> y (h+2p,w+2p,c), p <= h, w: the frame is from the blocks around, or zero. */
static void jem__frame(const jem_ctx *ctx, const float *x, jem_shape s, int p, float *y) {
    const ptrdiff_t n = (ptrdiff_t)s.c * JEM_LANES;
    for (int row = -p; row < s.h + p; row++)
        for (int col = -p, run; col < s.w + p; col += run, y += run * n) {
            const int by = row < 0 ? -1 : row >= s.h, bx = col < 0 ? -1 : col >= s.w;
            const float *from = x + ((ptrdiff_t)(row - by * s.h) * s.w + col - bx * s.w) * n;
            unsigned see = 0;                      /* lane l sees l + 4 by + bx, if there is one */
            run = bx ? 1 : s.w;                    /* pixels beside each other move alike */
            for (int l = 0; l < JEM_LANES; l++) {
                const int ly = l / JEM__GRID + by, lx = l % JEM__GRID + bx;
                if (ly >= 0 && ly < JEM__GRID && lx >= 0 && lx < JEM__GRID) see |= 1u << l;
            }
            if (by || bx) ctx->k->shift(from, JEM__GRID * by + bx, see, y, run * n);
            else memcpy(y, from, (size_t)(run * n) * sizeof *y);
        }
}

/* ---- conv2d, linear -------------------------------------------------------------------------- */

/* What an op of the tape adds to the engine's convolutions: shapes, packed weights, and what is
   fused to them. */

/* A copy of a parameter in the order that a method reads; made again when it changes. */
typedef struct jem__pack {
    struct jem__pack *next;
    const jem__method *method;
    int kind;
    uint32_t version;
    float *data;
} jem__pack;

/* Convolutions of one kind share it: an output's depends on the weights' shape alone, and by
   Winograd the input gradient reads the output's. */
static int jem__pack_kind(const jem__conv *q) {
    return q->tile ? q->tile : q->gradient ? 1 + q->stride * 64 + q->pad % q->stride : 0;
}
static jem__pack *jem__pack_find(const jem_param *w, const jem__conv *q) {
    jem__pack *k = w->packs;
    while (k && (k->method != q->method || k->kind != jem__pack_kind(q))) k = k->next;
    return k;
}

static jem_status jem__pack_update(jem_ctx *ctx, jem_param *w, const jem__conv *q) {
    jem__pack *k = jem__pack_find(w, q);
    if (k && k->version == w->version) return JEM_OK;
    if (!k) {
        float *data = jem__alloc_floats(w->ctx, q->method->pack_size(q));
        k = data ? (jem__pack *)jem__alloc(w->ctx, sizeof *k) : NULL;
        if (!k) {
            jem__free(w->ctx, data);
            return jem__fail(ctx, JEM_NO_MEMORY, "out of memory: packing %s", w->name);
        }
        k->data = data, k->method = q->method, k->kind = jem__pack_kind(q);
        k->next = w->packs, w->packs = k;
    }
    jem__packing p = { ctx, q, w->value, k->data, (q->co + 15) / 16 };
    jem__parallel(ctx, p.parts, 100 * (double)q->method->pack_size(q), q->method->pack, &p);
    k->version = w->version;
    return JEM_OK;
}

/* frame: how far beyond blocks the output reads x, and the input gradient dy. */
typedef struct jem__conv_user { jem__conv out, grad, weights; int frame[2]; } jem__conv_user;
typedef struct jem__map_user { int kind; float a; } jem__map_user;     /* an elementwise op's */
static ptrdiff_t jem__framed(const jem__conv *q) {
    return jem__floats(jem__shape(1, q->ci, q->hi, q->wi));
}

static jem_status jem__conv_prepare(const jem_call *c, int want_input_grad) {
    const jem__conv_user *u = (const jem__conv_user *)c->user;
    jem_status s = jem__pack_update(c->ctx, c->inner->param[0], &u->out);
    if (s == JEM_OK && want_input_grad) s = jem__pack_update(c->ctx, c->inner->param[0], &u->grad);
    return s;
}

/* Forward, or back, with what is fused to it. */
static void jem__conv_run(const jem_call *c, int back) {
    const jem__conv_user *u = (const jem__conv_user *)c->user;
    const jem__inner *in = c->inner;
    const jem__map_user *act = (const jem__map_user *)in->act;
    const jem__conv *q = back ? &u->grad : &u->out;
    float *slopes = act && act->kind == JEM__MAP_SILU ? (float *)in->act_aux : NULL;
    uint16_t *bits = slopes ? NULL : (uint16_t *)in->act_aux;
    JEM__ZEROED(jem__finish, f);
    jem__operands from;
    f.y = back ? c->dx[0] : c->y, f.y16 = in->y16, f.slope = act ? act->a : 0;
    if (back) f.add = in->add[0] ? c->dx[0] : NULL, f.slopes = slopes, f.bits = bits;
    else {
        f.bias = in->param[1] ? in->param[1]->value : NULL, f.add = in->plus;
        f.act = in->act_y, f.kind = act ? act->kind : 0, f.keep_slopes = slopes, f.keep_bits = bits;
    }
    from.ctx = c->ctx, from.work = in->work, from.packed = jem__pack_find(in->param[0], q)->data;
    from.x = back ? c->dy : c->x[0];
    if (u->frame[back]) {
        jem__frame(c->ctx, from.x, back ? c->out : c->in[0], u->frame[back], in->work);
        from.x = in->work, from.work += jem__framed(q);
    }
    from.x16 = (back ? jem__dy16 : jem__x16)(in->step, c->group);
    from.part.i = in->part, from.part.of = in->parts;
    q->method->run(q, &from, &f);
}
/* x (h,w,I,16) -> y (ho,wo,O,16); dy -> dx */
static void jem__conv_forward(const jem_call *c) { jem__conv_run(c, 0); }
static void jem__conv_backward(const jem_call *c) { jem__conv_run(c, 1); }

/* dw[o][i][tap] += sum over images and pixels of dy[o] x[i] at that tap; db[o] += sum of dy[o] */
static void jem__weights_task(void *arg, int i) {
    const jem__weights *w = (const jem__weights *)arg;
    const jem__method *m = w->q->method;
    if (w->stage) {
        (w->stage == 1 ? m->product : m->finish)(w, i);
        return;
    }
    const jem_call c = jem__at(w->call, i / 2);
    JEM__ZEROED(jem__operands, in);
    in.ctx = c.ctx, in.x = i % 2 ? c.dy : c.x[0];
    in.x16 = (i % 2 ? jem__dy16 : jem__x16)(c.inner->step, i / 2);
    if (w->framed && i % 2 == 0) {
        float *to = w->framed + i / 2 * jem__framed(w->q);
        jem__frame(c.ctx, in.x, c.in[0], ((const jem__conv_user *)c.user)->frame[0], to);
        in.x = to;
    }
    m->deal(w, i / 2, i % 2, &in);
}

static jem_status jem__conv_param_grad(const jem_call *c) {
    const jem__node *n = c->inner->step->node;
    jem__weights weights, *w = &weights;
    memset(w, 0, sizeof *w);
    w->ctx = c->ctx, w->call = c, w->q = &((const jem__conv_user *)c->user)->weights;
    w->groups = n->groups, w->dw = n->param[0]->grad;
    w->db = n->param[1] ? n->param[1]->grad : NULL;
    w->q->method->plan(w);
    jem_mark mark = jem_begin(c->ctx);
    w->x = jem__push_floats(c->ctx, w->planes * w->x_plane);
    w->y = jem__push_floats(c->ctx, w->planes * w->y_plane);
    w->product = jem__push_floats(c->ctx, w->product_size);
    w->sums = (float *)jem__push_zero(c->ctx, (size_t)w->sums_size * sizeof(float));
    const int frame = ((const jem__conv_user *)c->user)->frame[0];
    if (frame) w->framed = jem__push_floats(c->ctx, w->groups * jem__framed(w->q));
    if (!w->dw) w->dw = jem__push_floats(c->ctx, jem__padded(n->param[0]));        /* not wanted */
    const jem_status s = w->x && w->y && w->product && w->sums && w->dw && (w->framed || !frame)
                       ? JEM_OK : JEM_NO_MEMORY;
    const int tasks[3] = { 2 * w->groups, w->products, w->finishes };
    for (; s == JEM_OK && w->stage < 3; w->stage++)
        jem__parallel(c->ctx, tasks[w->stage], n->flops * n->groups, jem__weights_task, w);
    jem_end(c->ctx, mark);
    return s;
}

static const jem__traits jem__conv_traits = { JEM__OP_STORES | JEM__OP_CONV, jem__conv_prepare,
    jem__conv_param_grad, JEM_KEEPS_INPUT };
JEM__OP(conv2d, conv, JEM_KEEPS_NOTHING, &jem__conv_traits);
JEM__OP(linear, conv, JEM_KEEPS_NOTHING, &jem__conv_traits);

/* k: the weight's sides; 0: it has none that fit */
static jem_tensor *jem__conv_record(jem_ctx *ctx, const jem_op *op, jem_tensor *x, jem_param *w,
                                    jem_param *b, int k, int s, int pad) {
    if (!w || k < 1 || k > JEM__MAX_KERNEL || w->shape[1] != x->c ||
        (b && (b->ndim != 1 || b->shape[0] != w->shape[0])) || s < 1 || s > 64 || pad < 0 ||
        pad >= 64 || x->h + 2 * pad < k || x->w + 2 * pad < k)
        return jem__refuse(ctx, JEM_BAD_SHAPE, "%s: x %s, weight %s, bias %s, stride %d, pad %d do "
                           "not fit", op->name, jem__shape_text(x).s, jem__param_text(w).s,
                           b ? jem__param_text(b).s : "none", s, pad);
    const int co = w->shape[0], ho = (x->h + 2 * pad - k) / s + 1,
              wo = (x->w + 2 * pad - k) / s + 1;
    /* An input gradient's y reads (y + pad - tap)/s: so far before blocks, and behind them. */
    const int before = (k - 1 - pad) / s, behind = (s - 1 + pad) / s;
    const int p = x->blocks ? pad : 0, r = !x->blocks ? 0 : before > behind ? before : behind;
    const jem__conv q = { x->c, x->h + 2 * p, x->w + 2 * p, co, ho, wo, k, s, pad - p, 0, 0, NULL },
        back = { co, ho + 2 * r, wo + 2 * r, x->c, x->h, x->w, k, s, pad + s * r, 1, 0, NULL };
    jem__conv all[3] = { q, back, q };
    jem__conv_choose(ctx, all);
    const jem__conv_user u = { all[0], all[1], all[2], { p, r } };
    jem_param *params[2] = { w, b };
    jem_tensor *y = jem__record(ctx, op, &x, 1, jem__shape(x->n, co, ho, wo), params, 2, &u,
                                sizeof u, 0);
    if (!y) return NULL;
    const ptrdiff_t one = u.out.method->work(&u.out) + (p ? jem__framed(&u.out) : 0),
                    two = u.grad.method->work(&u.grad) + (r ? jem__framed(&u.grad) : 0);
    y->node->flops = 2 * (double)y->node->stride * x->c * k * k;
    y->node->work = one > two ? one : two;
    y->node->bf16_out = !x->blocks && u.out.method->bf16;
    y->node->bf16_grad = !x->blocks && u.grad.method->bf16;
    y->node->bf16_params = !x->blocks && u.weights.method->bf16;
    return y;
}

jem_tensor *jem_conv2d(jem_ctx *ctx, jem_tensor *x, jem_param *w, jem_param *b,
                       jem_conv_desc desc) {
    if (!x || !jem_ok(ctx)) return NULL;
    const int k = w && w->ndim == 4 && w->shape[2] == w->shape[3] ? w->shape[2] : 0;
    return jem__conv_record(ctx, &jem__op_conv2d, x, w, b, k, desc.stride ? desc.stride : 1,
                            desc.pad);
}

/* A 1x1 convolution on one pixel. */
jem_tensor *jem_linear(jem_ctx *ctx, jem_tensor *x, jem_param *w, jem_param *b) {
    if (!x || !jem_ok(ctx)) return NULL;
    const int fits = w && w->ndim == 2 && x->h == 1 && x->w == 1;
    return jem__conv_record(ctx, &jem__op_linear, x, w, b, fits, 1, 0);
}

/* ---- elementwise, one input ------------------------------------------------------------------ */

/* y = f(x) */
static void jem__map_forward(const jem_call *c) {
    const jem__map_user *u = (const jem__map_user *)c->user;
    c->ctx->k->map(u->kind, u->a, c->x[0], c->y, c->dy ? c->aux : NULL, jem__floats(c->out));
}
/* dx = dy f'(x) */
static void jem__map_backward(const jem_call *c) {
    const jem__map_user *u = (const jem__map_user *)c->user;
    const int output = c->inner->step->node->op->keeps == JEM_KEEPS_OUTPUT;
    c->ctx->k->map_back(u->kind, u->a, output ? c->y : c->x[0], c->aux, c->dy, c->dx[0],
                        c->inner->add[0], jem__floats(c->out));
}

/* In the rows' order (JEM__MAPS). What keeps a bit or a slope can be part of the convolution before
   it. */
#define JEM__MAP_NOTHING JEM_KEEPS_NOTHING, &jem__in_place
#define JEM__MAP_INPUT JEM_KEEPS_INPUT, &jem__in_place
#define JEM__MAP_OUTPUT JEM_KEEPS_OUTPUT, &jem__in_place
#define JEM__MAP_BIT JEM_KEEPS_NOTHING, &jem__activates
#define JEM__MAP_SLOPE JEM_KEEPS_NOTHING, &jem__activates
#define JEM__ROW(kind, name, wants, f, derivative)                                                 \
    { name, jem__map_forward, jem__map_backward, JEM__MAP_##wants },
static const jem_op jem__map_ops[] = { JEM__MAPS(JEM__ROW, ) };
#undef JEM__ROW

static jem_tensor *jem__map(jem_ctx *ctx, jem_tensor *x, int kind, float a) {
    if (!x || !jem_ok(ctx)) return NULL;
    const jem__map_user u = { kind, a };
    const size_t n = (size_t)jem__floats(jem__shape_of(x)), bits = n / 8, slopes = n * sizeof a;
    return jem__op1(ctx, &jem__map_ops[kind], x, jem__shape_of(x), &u, sizeof u,
                    kind == JEM__MAP_LEAKY ? bits : kind == JEM__MAP_SILU ? slopes : 0);
}

jem_tensor *jem_scale(jem_ctx *ctx, jem_tensor *x, float a) {
    return jem__map(ctx, x, JEM__MAP_SCALE, a);
}
jem_tensor *jem_add_constant(jem_ctx *ctx, jem_tensor *x, float a) {
    return jem__map(ctx, x, JEM__MAP_SHIFT, a);
}
jem_tensor *jem_leaky_relu(jem_ctx *ctx, jem_tensor *x, float slope) {
    return jem__map(ctx, x, JEM__MAP_LEAKY, slope);
}
jem_tensor *jem_square(jem_ctx *ctx, jem_tensor *x) { return jem__map(ctx, x, JEM__MAP_SQUARE, 0); }
jem_tensor *jem_exp(jem_ctx *ctx, jem_tensor *x) { return jem__map(ctx, x, JEM__MAP_EXP, 0); }
jem_tensor *jem_log(jem_ctx *ctx, jem_tensor *x) { return jem__map(ctx, x, JEM__MAP_LOG, 0); }
jem_tensor *jem_tanh(jem_ctx *ctx, jem_tensor *x) { return jem__map(ctx, x, JEM__MAP_TANH, 0); }
jem_tensor *jem_relu(jem_ctx *ctx, jem_tensor *x) { return jem__map(ctx, x, JEM__MAP_LEAKY, 0); }
jem_tensor *jem_silu(jem_ctx *ctx, jem_tensor *x) { return jem__map(ctx, x, JEM__MAP_SILU, 0); }
jem_tensor *jem_sigmoid(jem_ctx *ctx, jem_tensor *x) {
    return jem__map(ctx, x, JEM__MAP_SIGMOID, 0);
}
jem_tensor *jem_softplus(jem_ctx *ctx, jem_tensor *x) {
    return jem__map(ctx, x, JEM__MAP_SOFTPLUS, 0);
}

jem_tensor *jem_clamp(jem_ctx *ctx, jem_tensor *x, float lo, float hi) {
    if (!x || !jem_ok(ctx)) return NULL;
    if (!(lo <= hi))
        return jem__refuse(ctx, JEM_BAD_ARGUMENT, "clamp: lo = %g is not below hi = %g", (double)lo,
                           (double)hi);
    return jem__map(ctx, jem__map(ctx, x, JEM__MAP_AT_LEAST, lo), JEM__MAP_AT_MOST, hi);
}

/* ---- dropout --------------------------------------------------------------------------------- */

typedef struct jem__drop_user { float p, scale; jem_rng rng; } jem__drop_user;

static void jem__drop_forward(const jem_call *c) {
    const jem__drop_user *u = (const jem__drop_user *)c->user;
    const int group = c->group + c->ctx->rank * jem__groups(c->out.n);
    const jem_rng r = jem_rng_split(&u->rng, (uint64_t)group);
    const ptrdiff_t n = jem__floats(c->out);
    c->ctx->k->fill(0, r.key, 0, c->y, n, 0.0f, 1.0f);
    jem__fill_dead(c->y, n, c->live);
    c->ctx->k->drop(u->p, u->scale, c->x[0], c->y, c->dy ? (uint16_t *)c->aux : NULL, n);
}
static void jem__drop_backward(const jem_call *c) {
    const jem__drop_user *u = (const jem__drop_user *)c->user;
    c->ctx->k->map_back(JEM__MAP_DROP, u->scale, NULL, c->aux, c->dy, c->dx[0], c->inner->add[0],
                        jem__floats(c->out));
}
JEM__OP(dropout, drop, JEM_KEEPS_NOTHING, &jem__stores);

jem_tensor *jem_dropout(jem_ctx *ctx, jem_tensor *x, float p, jem_rng *rng) {
    if (!x || !jem_ok(ctx)) return NULL;
    if (!(p >= 0 && p < 1) || !rng)
        return jem__refuse(ctx, JEM_BAD_ARGUMENT, "dropout: p = %g is not in [0,1)%s", (double)p,
                           rng ? "" : ", and there is no rng");
    const jem__drop_user u = { p, 1 / (1 - p), jem_rng_split(rng, rng->counter++) };
    return jem__op1(ctx, &jem__op_dropout, x, jem__shape_of(x), &u, sizeof u,
                    (size_t)jem__floats(jem__shape_of(x)) / JEM_LANES * sizeof(uint16_t));
}

/* ---- elementwise, two inputs ----------------------------------------------------------------- */

static int jem__spread(const jem_call *c) {        /* b is a number per image, a is more */
    return c->in[1].c * c->in[1].h * c->in[1].w == 1 && jem__floats(c->in[0]) > JEM_LANES;
}
/* Floats that one call of a kernel covers: all, or, if b is a number per channel, a pixel. */
static ptrdiff_t jem__pair_run(const jem_call *c) {
    return jem__spread(c) ? jem__floats(c->in[0]) : jem__floats(c->in[1]);
}
/* y = a op b */
static void jem__pair_forward(const jem_call *c) {
    const ptrdiff_t n = jem__floats(c->out), run = jem__pair_run(c);
    for (ptrdiff_t at = 0; at < n; at += run)
        c->ctx->k->pair(*(const int *)c->user, c->x[0] + at, c->x[1], jem__spread(c), c->y + at,
                        run);
}
/* da = dy (+, -), dy b (*); db = dy, -dy, dy a, summed where b was spread. A sum's gradient may be
   in its place already: dx = dy. */
static void jem__pair_backward(const jem_call *c) {
    const int kind = *(const int *)c->user, mul = kind == JEM__PAIR_MUL, spread = jem__spread(c);
    const int own[2] = { c->dx[0] && c->dx[0] != c->dy,
                         c->dx[1] && (c->dx[1] != c->dy || c->dx[1] == c->dx[0]) };
    const float s = kind == JEM__PAIR_SUB ? -1.0f : 1.0f;
    const ptrdiff_t n = jem__floats(c->out), run = jem__pair_run(c);
    const jem__kernels *k = c->ctx->k;
    for (ptrdiff_t at = 0; own[0] && at < n; at += run)
        k->pair_back(1, c->dy + at, mul ? c->x[1] : NULL, spread, c->dx[0] + at, c->inner->add[0],
                     run);
    if (c->dx[1] && spread)
        k->dot(s, c->dy, mul ? c->x[0] : NULL, c->dx[1], c->inner->add[1], n);
    else for (ptrdiff_t at = 0; own[1] && at < n; at += run)
        k->pair_back(s, c->dy + at, mul ? c->x[0] + at : NULL, 0, c->dx[1],
                     c->inner->add[1] || at > 0, run);
}
static jem_tensor *jem__pair(jem_ctx *ctx, jem_tensor *a, jem_tensor *b, int kind) {
    static const jem_op ops[] = {                  /* in the order of JEM__PAIR_ADD, ... */
        { "add", jem__pair_forward, jem__pair_backward, JEM_KEEPS_NOTHING, &jem__sums },
        { "sub", jem__pair_forward, jem__pair_backward, JEM_KEEPS_NOTHING, &jem__in_place },
        { "mul", jem__pair_forward, jem__pair_backward, JEM_KEEPS_INPUT | JEM_KEEPS_INPUT1,
          &jem__stores }
    };
    if (!a || !b || !jem_ok(ctx)) return NULL;
    const int one = b->h == 1 && b->w == 1;
    const int fits = a->c == b->c ? one || (a->h == b->h && a->w == b->w) : one && b->c == 1;
    if (a->n != b->n || !fits)
        return jem__refuse(ctx, JEM_BAD_SHAPE, "%s: %s and %s do not fit", ops[kind].name,
                           jem__shape_text(a).s, jem__shape_text(b).s);
    jem_tensor *in[2] = { a, b };
    return jem__record(ctx, &ops[kind], in, 2, jem__shape_of(a), NULL, 0, &kind, sizeof kind, 0);
}
jem_tensor *jem_add(jem_ctx *ctx, jem_tensor *a, jem_tensor *b) {
    return jem__pair(ctx, a, b, JEM__PAIR_ADD);
}
jem_tensor *jem_sub(jem_ctx *ctx, jem_tensor *a, jem_tensor *b) {
    return jem__pair(ctx, a, b, JEM__PAIR_SUB);
}
jem_tensor *jem_mul(jem_ctx *ctx, jem_tensor *a, jem_tensor *b) {
    return jem__pair(ctx, a, b, JEM__PAIR_MUL);
}

/* ---- pooling, and changes of shape ----------------------------------------------------------- */

static void jem__pool_forward(const jem_call *c) {
    c->ctx->k->pool((const jem__pool *)c->user, c->x[0], c->y);
}
static void jem__pool_backward(const jem_call *c) {
    c->ctx->k->pool_back((const jem__pool *)c->user, c->dy, c->dx[0]);
}
JEM__OP(avg_pool, pool, JEM_KEEPS_NOTHING, NULL);

/* aux: which of the window, for each number */
static void jem__max_forward(const jem_call *c) {
    const jem__pool *u = (const jem__pool *)c->user;
    const ptrdiff_t n = (ptrdiff_t)c->out.c * JEM_LANES;
    unsigned char *which = (unsigned char *)c->aux;
    float *y = c->y;
    for (int p = 0; p < u->ho * u->wo; p++, y += n, which += n)
        for (int t = 0; t < u->kh * u->kw; t++) {
            const float *x = c->x[0] + jem__pool_at(u, p, t);
            for (ptrdiff_t k = 0; k < n; k++)
                if (t == 0 || x[k] > y[k] || x[k] != x[k]) y[k] = x[k], which[k] = (unsigned char)t;
        }
}
static void jem__max_backward(const jem_call *c) {
    const jem__pool *u = (const jem__pool *)c->user;
    const ptrdiff_t n = (ptrdiff_t)c->out.c * JEM_LANES;
    const unsigned char *which = (const unsigned char *)c->aux;
    const float *dy = c->dy;
    for (int p = 0; p < u->ho * u->wo; p++, dy += n, which += n)
        for (ptrdiff_t k = 0; k < n; k++) c->dx[0][jem__pool_at(u, p, which[k]) + k] += dy[k];
}
JEM__OP(max_pool, max, JEM_KEEPS_NOTHING, NULL);

static jem_tensor *jem__pooled(jem_ctx *ctx, const jem_op *op, jem_tensor *x, int kh, int kw,
                               int stride) {
    if (!x || !jem_ok(ctx)) return NULL;
    const int max = op == &jem__op_max_pool;
    if (kh < 1 || kw < 1 || stride < 1 || kh > x->h || kw > x->w || (max && kh > 15))
        return jem__refuse(ctx, JEM_BAD_SHAPE, "%s: %dx%d windows of stride %d do not fit x %s%s",
                           op->name, kh, kw, stride, jem__shape_text(x).s,
                           max ? " (15x15 at most)" : "");
    const jem__pool u = { x->w, x->c, kh, kw, stride, (x->h - kh) / stride + 1,
                          (x->w - kw) / stride + 1, 1.0f / (float)(kh * kw) };
    const jem_shape out = jem__shape(x->n, x->c, u.ho, u.wo);
    return jem__op1(ctx, op, x, out, &u, sizeof u, max ? (size_t)jem__floats(out) : 0);
}
jem_tensor *jem_avg_pool(jem_ctx *ctx, jem_tensor *x, int k, int stride) {
    return jem__pooled(ctx, &jem__op_avg_pool, x, k, k, stride ? stride : k);
}
jem_tensor *jem_global_pool(jem_ctx *ctx, jem_tensor *x) {
    return x ? jem__pooled(ctx, &jem__op_avg_pool, x, x->h, x->w, x->h > x->w ? x->h : x->w) : NULL;
}
jem_tensor *jem_max_pool(jem_ctx *ctx, jem_tensor *x, int k, int stride) {
    return jem__pooled(ctx, &jem__op_max_pool, x, k, k, stride ? stride : k);
}

/* Ops that only move numbers, in runs of whole vectors of 16 lanes: run i of input k is `size`
   floats at `from` of x, which go to `to` of y. On the way back they are added. */
enum { JEM__DETACH, JEM__CONCAT, JEM__SLICE, JEM__UPSAMPLE, JEM__FLATTEN };
typedef struct jem__move_user { int kind, a; } jem__move_user;         /* a: slice's first, ... */
typedef struct jem__span { ptrdiff_t from, to, size; } jem__span;

static int jem__move_runs(const jem_call *c) {     /* pixels of y; of flatten, vectors */
    const int flatten = ((const jem__move_user *)c->user)->kind == JEM__FLATTEN;
    return flatten ? c->out.c : c->out.h * c->out.w;
}
static jem__span jem__move_span(const jem_call *c, int k, int i) {
    const jem__move_user *u = (const jem__move_user *)c->user;
    const jem_shape in = c->in[k], out = c->out;
    ptrdiff_t from = (ptrdiff_t)i * in.c, to = (ptrdiff_t)i * out.c, n = out.c;
    switch (u->kind) {
    case JEM__CONCAT: to += k * (out.c - in.c), n = in.c; break;
    case JEM__SLICE: from += u->a; break;
    case JEM__UPSAMPLE:                            /* y[i][j] = x[i/a][j/a] */
        from = ((ptrdiff_t)(i / out.w / u->a) * in.w + i % out.w / u->a) * in.c;
        break;
    case JEM__FLATTEN: from = i, to = (ptrdiff_t)(i % in.c) * in.h * in.w + i / in.c, n = 1; break;
    default: break;
    }
    const jem__span span = { from * JEM_LANES, to * JEM_LANES, n * JEM_LANES };
    return span;
}
static void jem__move_forward(const jem_call *c) {
    for (int k = 0; k < c->inputs; k++)
        for (int i = 0; i < jem__move_runs(c); i++) {
            const jem__span r = jem__move_span(c, k, i);
            memcpy(c->y + r.to, c->x[k] + r.from, (size_t)r.size * sizeof *c->y);
        }
}
static void jem__move_backward(const jem_call *c) {
    for (int k = 0; k < c->inputs; k++)
        for (int i = 0; c->dx[k] && i < jem__move_runs(c); i++) {
            const jem__span r = jem__move_span(c, k, i);
            float *dx = c->dx[k] + r.from;
            c->ctx->k->pair(JEM__PAIR_ADD, dx, c->dy + r.to, 0, dx, r.size);
        }
}
static jem_tensor *jem__move(jem_ctx *ctx, int kind, jem_tensor *x, jem_tensor *x2, jem_shape out,
                             int a) {
#define JEM__MOVE_OP(name, backward) { name, jem__move_forward, backward, JEM_KEEPS_NOTHING, NULL }
    static const jem_op ops[] = {                  /* in the order of JEM__DETACH, ... */
        JEM__MOVE_OP("detach", NULL), JEM__MOVE_OP("concat", jem__move_backward),
        JEM__MOVE_OP("slice", jem__move_backward), JEM__MOVE_OP("upsample", jem__move_backward),
        JEM__MOVE_OP("flatten", jem__move_backward)
    };
#undef JEM__MOVE_OP
    jem_tensor *in[2] = { x, x2 };
    const jem__move_user u = { kind, a };
    return jem__record(ctx, ops + kind, in, x2 ? 2 : 1, out, NULL, 0, &u, sizeof u, 0);
}

jem_tensor *jem_upsample(jem_ctx *ctx, jem_tensor *x, int k) {
    if (!x || !jem_ok(ctx)) return NULL;
    if (k < 1 || x->h > 65536 / k || x->w > 65536 / k)
        return jem__refuse(ctx, JEM_BAD_SHAPE, "upsample: x %s, %d times: from 1 up, to sides of "
                           "65536", jem__shape_text(x).s, k);
    return jem__move(ctx, JEM__UPSAMPLE, x, NULL, jem__shape(x->n, x->c, k * x->h, k * x->w), k);
}

jem_tensor *jem_flatten(jem_ctx *ctx, jem_tensor *x) {
    if (!x || !jem_ok(ctx)) return NULL;
    return jem__move(ctx, JEM__FLATTEN, x, NULL, jem__shape(x->n, x->c * x->h * x->w, 1, 1), 0);
}

jem_tensor *jem_slice(jem_ctx *ctx, jem_tensor *x, int first, int count) {
    if (!x || !jem_ok(ctx)) return NULL;
    if (first < 0 || count < 1 || count > x->c - first)
        return jem__refuse(ctx, JEM_BAD_SHAPE, "slice: %d channels from %d on, of x %s", count,
                           first, jem__shape_text(x).s);
    return jem__move(ctx, JEM__SLICE, x, NULL, jem__shape(x->n, count, x->h, x->w), first);
}

jem_tensor *jem_concat(jem_ctx *ctx, jem_tensor *a, jem_tensor *b) {
    if (!a || !b || !jem_ok(ctx)) return NULL;
    if (a->n != b->n || a->h != b->h || a->w != b->w)
        return jem__refuse(ctx, JEM_BAD_SHAPE, "concat: %s and %s differ in more than channels",
                           jem__shape_text(a).s, jem__shape_text(b).s);
    return jem__move(ctx, JEM__CONCAT, a, b, jem__shape(a->n, a->c + b->c, a->h, a->w), 0);
}

jem_tensor *jem_detach(jem_ctx *ctx, jem_tensor *x) {
    return x ? jem__move(ctx, JEM__DETACH, x, NULL, jem__shape_of(x), 0) : NULL;
}

/* ---- a number per image ---------------------------------------------------------------------- */

static void jem__lse_forward(const jem_call *c) { c->ctx->k->logsumexp(c->x[0], c->in[0].c, c->y); }
static void jem__lse_backward(const jem_call *c) {
    c->ctx->k->logsumexp_back(c->x[0], c->y, c->dy, c->in[0].c, c->dx[0], c->inner->add[0]);
}
JEM__OP(logsumexp, lse, JEM_KEEPS_INPUT | JEM_KEEPS_OUTPUT, &jem__stores);

jem_tensor *jem_logsumexp(jem_ctx *ctx, jem_tensor *x) {
    if (!x || !jem_ok(ctx)) return NULL;
    if (x->h != 1 || x->w != 1)
        return jem__refuse(ctx, JEM_BAD_SHAPE, "logsumexp: x is %s, not (n,c,1,1)",
                           jem__shape_text(x).s);
    return jem__op1(ctx, &jem__op_logsumexp, x, jem__shape(x->n, 1, 1, 1), NULL, 0, 0);
}

jem_tensor *jem_log_softmax(jem_ctx *ctx, jem_tensor *x) {
    const int one = x && x->c == 1 && x->h == 1 && x->w == 1;          /* log 1 */
    return one ? jem_sub(ctx, x, x) : jem_sub(ctx, x, jem_logsumexp(ctx, x));
}

/* y = x[label], label by lane */
static void jem__gather_forward(const jem_call *c) {
    const int *label = (const int *)c->user + c->group * JEM_LANES;
    for (int l = 0; l < JEM_LANES; l++) c->y[l] = c->x[0][label[l] * JEM_LANES + l];
}
static void jem__gather_backward(const jem_call *c) {
    const int *label = (const int *)c->user + c->group * JEM_LANES;
    for (int l = 0; l < JEM_LANES; l++) c->dx[0][label[l] * JEM_LANES + l] += c->dy[l];
}
JEM__OP(gather, gather, JEM_KEEPS_NOTHING, NULL);

jem_tensor *jem_gather(jem_ctx *ctx, jem_tensor *x, const int *labels) {
    if (!x || !jem_ok(ctx)) return NULL;
    if (x->h != 1 || x->w != 1 || !labels)
        return jem__refuse(ctx, JEM_BAD_SHAPE, "gather: x is %s, not (n,c,1,1)%s",
                           jem__shape_text(x).s, labels ? "" : ", and there are no labels");
    if (!jem__labels_good(ctx, "gather", labels, x->n, x->c)) return NULL;
    const size_t bytes = (size_t)(jem__groups(x->n) * JEM_LANES) * sizeof(int);
    jem_tensor *y = jem__op1(ctx, &jem__op_gather, x, jem__shape(x->n, 1, 1, 1), NULL, bytes, 0);
    int *own = y ? (int *)y->node->user : NULL;
    for (int i = 0; own && i < jem__groups(x->n) * JEM_LANES; i++)
        own[i] = labels[i < x->n ? i : x->n - 1];
    return y;
}

/* y = sum of x over c, h, w */
static void jem__sum_image_forward(const jem_call *c) {
    c->ctx->k->dot(1, c->x[0], NULL, c->y, 0, jem__floats(c->in[0]));
}
static void jem__sum_image_backward(const jem_call *c) {
    c->ctx->k->pair(JEM__PAIR_ADD, c->dx[0], c->dy, 1, c->dx[0], jem__floats(c->in[0]));
}
JEM__OP(sum_image, sum_image, JEM_KEEPS_NOTHING, NULL);

jem_tensor *jem_sum_image(jem_ctx *ctx, jem_tensor *x) {
    if (!x || !jem_ok(ctx)) return NULL;
    return jem__op1(ctx, &jem__op_sum_image, x, jem__shape(x->n, 1, 1, 1), NULL, 0, 0);
}

/* ---- one number ------------------------------------------------------------------------------ */

/* y = s sum of x over images and everything else, in double and in order */
static void jem__total_forward(const jem_call *c) {
    double sum = 0;
    for (int g = 0; g < jem__groups(c->in[0].n); g++) {
        const jem_call at = jem__at(c, g);
        const int live = jem__live_lanes(c->in[0].n, g);
        for (ptrdiff_t i = 0; i < jem__floats(c->in[0]); i += JEM_LANES)
            for (int l = 0; l < live; l++) sum += (double)at.x[0][i + l];
    }
    for (int l = 0; l < JEM_LANES; l++) c->y[l] = (float)(sum * *(const double *)c->user);
}
/* dx = s dy for every image; dead lanes nothing, which keeps them out of weight gradients */
static void jem__total_backward(const jem_call *c) {
    const float d = (float)((double)c->dy[0] * *(const double *)c->user);
    for (int g = 0; g < jem__groups(c->in[0].n); g++) {
        const jem_call at = jem__at(c, g);
        const int live = jem__live_lanes(c->in[0].n, g);
        for (ptrdiff_t i = 0; i < jem__floats(c->in[0]); i += JEM_LANES)
            for (int l = 0; l < live; l++) at.dx[0][i + l] += d;
    }
}
JEM__OP(mean, total, JEM_KEEPS_NOTHING, &jem__whole);
JEM__OP(sum, total, JEM_KEEPS_NOTHING, &jem__whole);

static jem_tensor *jem__total(jem_ctx *ctx, const jem_op *op, jem_tensor *x, double s) {
    if (!x || !jem_ok(ctx)) return NULL;
    return jem__op1(ctx, op, x, jem__shape(1, 1, 1, 1), &s, sizeof s, 0);
}
jem_tensor *jem_mean(jem_ctx *ctx, jem_tensor *x) {
    return jem__total(ctx, &jem__op_mean, x, x ? 1.0 / ((double)x->n * x->c * x->h * x->w) : 0);
}
jem_tensor *jem_sum(jem_ctx *ctx, jem_tensor *x) { return jem__total(ctx, &jem__op_sum, x, 1); }

/* ---- normalisation: y = (x - mean) rstd gamma + beta ----------------------------------------- */
/* All five norms are this; they differ in where mean and rstd come from: from x (instance, layer;
   batch in training), or from elsewhere (running statistics; act norm: mean = -loc, rstd = 1). They
   lie in aux as mean[c][16], rstd[c][16], then room for the two sums of the backward. */

typedef struct jem__norm_user { jem_norm kind; int training; float momentum; } jem__norm_user;
#define JEM__NORM_EPS 1e-5f

static jem__norm jem__norm_open(const jem_call *c) {
    const jem__norm_user *u = (const jem__norm_user *)c->user;
    const ptrdiff_t n = (ptrdiff_t)c->out.c * JEM_LANES;
    jem__norm p;
    p.mean = (float *)c->aux, p.rstd = p.mean + n, p.s1 = p.rstd + n, p.s2 = p.s1 + n;
    p.gamma = u->kind == JEM_NORM_ACT ? c->inner->param[1]->value : c->inner->param[0]->value;
    p.beta = u->kind == JEM_NORM_ACT ? NULL : c->inner->param[1]->value;
    p.pixels = (ptrdiff_t)c->out.h * c->out.w, p.c = c->out.c;
    p.own = u->kind == JEM_NORM_INSTANCE || u->kind == JEM_NORM_LAYER;
    return p;
}

/* s[c][16] -> its mean over pixels, and over channels too for the layer norm */
static void jem__norm_mean(const jem__norm *p, jem_norm kind, float *s) {
    for (int l = 0; l < JEM_LANES; l++) {
        float all = 0;
        for (int i = 0; i < p->c; i++) all += s[i * JEM_LANES + l];
        for (int i = 0; i < p->c; i++)
            s[i * JEM_LANES + l] = kind == JEM_NORM_LAYER
                ? all / (float)(p->pixels * p->c) : s[i * JEM_LANES + l] / (float)p->pixels;
    }
}

/* Mean and rstd that do not come from x. */
static void jem__norm_given(const jem_call *c, const jem__norm *p) {
    const int act = ((const jem__norm_user *)c->user)->kind == JEM_NORM_ACT;
    jem_param *const *param = c->inner->param;
    for (int i = 0; i < p->c; i++)
        for (int l = 0; l < JEM_LANES; l++) {
            p->mean[i * JEM_LANES + l] = act ? -param[0]->value[i] : param[2]->value[i];
            p->rstd[i * JEM_LANES + l] = act ? 1 : 1 / sqrtf(param[3]->value[i] + JEM__NORM_EPS);
        }
}

static void jem__norm_forward(const jem_call *c) {
    const jem__norm_user *u = (const jem__norm_user *)c->user;
    const jem__norm p = jem__norm_open(c);
    const jem__kernels *k = c->ctx->k;
    const ptrdiff_t n = (ptrdiff_t)p.c * JEM_LANES;
    if (p.own) {
        memset(p.mean, 0, 2 * (size_t)n * sizeof(float));
        k->moment(c->x[0], NULL, 0, p.pixels, p.c, p.mean);
        jem__norm_mean(&p, u->kind, p.mean);
        k->moment(c->x[0], p.mean, 1, p.pixels, p.c, p.rstd);
        jem__norm_mean(&p, u->kind, p.rstd);
        for (int i = 0; i < n; i++) p.rstd[i] = 1 / sqrtf(p.rstd[i] + JEM__NORM_EPS);
    } else jem__norm_given(c, &p);
    k->normalize(&p, c->x[0], c->y);
}

/* dx = rstd (dy gamma - mean(dy gamma) - xhat mean(dy gamma xhat)); no means if they are given */
static void jem__norm_backward(const jem_call *c) {
    const jem__norm_user *u = (const jem__norm_user *)c->user;
    const jem__norm p = jem__norm_open(c);
    const jem__kernels *k = c->ctx->k;
    if (p.own) {
        memset(p.s1, 0, 2 * (size_t)p.c * JEM_LANES * sizeof(float));
        k->normalize_sums(&p, c->x[0], c->dy);
        for (int i = 0; i < p.c * JEM_LANES; i++)
            p.s1[i] *= p.gamma[i / JEM_LANES], p.s2[i] *= p.gamma[i / JEM_LANES];
        jem__norm_mean(&p, u->kind, p.s1);
        jem__norm_mean(&p, u->kind, p.s2);
    }
    k->normalize_back(&p, p.own, c->x[0], c->dy, c->dx[0]);
}

/* s1[c] = sum dy, s2[c] = sum dy xhat over the batch, in the first lane of group 0's s1, s2 */
static void jem__norm_totals(const jem_call *c) {
    const jem__norm first = jem__norm_open(c);
    for (int g = 0; g < jem__groups(c->out.n); g++) {
        const jem_call at = jem__at(c, g);
        const jem__norm p = jem__norm_open(&at);
        memset(p.s1, 0, 2 * (size_t)p.c * JEM_LANES * sizeof(float));
        c->ctx->k->normalize_sums(&p, at.x[0], at.dy);
        for (int i = 0; i < p.c; i++) {            /* dead lanes have dy = 0 */
            const float a = jem__sum_lanes(p.s1 + i * JEM_LANES),
                        b = jem__sum_lanes(p.s2 + i * JEM_LANES);
            first.s1[i * JEM_LANES] = g ? first.s1[i * JEM_LANES] + a : a;
            first.s2[i * JEM_LANES] = g ? first.s2[i * JEM_LANES] + b : b;
        }
    }
}

/* dgamma = sum dy xhat, dbeta = sum dy; act norm: dscale = sum dy (x + loc), dloc = scale sum dy */
static jem_status jem__norm_param_grad(const jem_call *c) {
    const jem__norm p = jem__norm_open(c);
    const int act = ((const jem__norm_user *)c->user)->kind == JEM_NORM_ACT;
    jem__norm_totals(c);
    float *dgamma = c->inner->param[act ? 1 : 0]->grad, *dbeta = c->inner->param[act ? 0 : 1]->grad;
    for (int i = 0; i < p.c; i++) {
        if (dgamma) dgamma[i] += p.s2[i * JEM_LANES];
        if (dbeta) dbeta[i] = jem__fmaf(p.s1[i * JEM_LANES], act ? p.gamma[i] : 1, dbeta[i]);
    }
    return JEM_OK;
}

/* Batch statistics: mean and mean squared deviation per channel over images and pixels, summed in
   double, into the mean and rstd of group 0. */
static void jem__norm_statistics(const jem_call *c, const jem__norm *p) {
    const int groups = jem__groups(c->out.n);
    const double count = (double)c->out.n * (double)p->pixels;
    for (int pass = 0; pass < 2; pass++) {         /* the mean, then the deviations from it */
        float *to = pass ? p->rstd : p->mean;
        for (int g = 0; g < groups; g++) {
            const jem_call at = jem__at(c, g);
            const jem__norm q = jem__norm_open(&at);
            memset(q.s1, 0, (size_t)p->c * JEM_LANES * sizeof(float));
            c->ctx->k->moment(at.x[0], pass ? p->mean : NULL, pass, p->pixels, p->c, q.s1);
        }
        for (int i = 0; i < p->c; i++) {
            double sum = 0;
            for (int g = 0; g < groups; g++) {
                const jem_call at = jem__at(c, g);
                const float *s = jem__norm_open(&at).s1 + i * JEM_LANES;
                for (int l = 0; l < at.live; l++) sum += (double)s[l];
            }
            for (int l = 0; l < JEM_LANES; l++) to[i * JEM_LANES + l] = (float)(sum / count);
        }
    }
}

static void jem__norm_batch_forward(const jem_call *c) {
    const jem__norm_user *u = (const jem__norm_user *)c->user;
    const jem__norm p = jem__norm_open(c);
    const int groups = jem__groups(c->out.n);
    const double count = (double)c->out.n * (double)p.pixels;
    const double unbiased = count > 1 ? count / (count - 1) : 1;
    jem_param *const *param = c->inner->param;
    const int act = u->kind == JEM_NORM_ACT;
    const int learn = !act || param[2]->value[0] == 0;       /* or an older node was first */
    if (learn) jem__norm_statistics(c, &p);
    const int sound = !learn || (jem__all_finite(p.mean, p.c * JEM_LANES) &&
                                 jem__all_finite(p.rstd, p.c * JEM_LANES));
    for (int i = 0; learn && i < p.c; i++) {
        const float mean = p.mean[i * JEM_LANES], var = p.rstd[i * JEM_LANES];
        if (!sound) {                              /* what diverges must not leave its mark */
        } else if (act) {
            param[0]->value[i] = -mean;
            param[1]->value[i] = (float)(1 / (sqrt((double)var * unbiased) + 1e-6));
        } else if (c->inner->run->mode == JEM__BACKWARD) {  /* running statistics follow training */
            const double m = (double)u->momentum;
            float *rm = param[2]->value + i, *rv = param[3]->value + i;
            *rm = (float)fma(m, (double)mean - (double)*rm, (double)*rm);
            if (count > 1)                         /* one number has no variance */
                *rv = (float)fma(m, fma((double)var, unbiased, -(double)*rv), (double)*rv);
        }
        for (int l = 0; l < JEM_LANES; l++)
            p.rstd[i * JEM_LANES + l] = 1 / sqrtf(var + JEM__NORM_EPS);
    }
    if (act && learn) param[2]->value[0] = (float)sound;
    for (int g = 0; g < groups; g++) {
        const jem_call at = jem__at(c, g);
        const jem__norm q = jem__norm_open(&at);
        if (act) { jem__norm_forward(&at); continue; }
        if (g) memcpy(q.mean, p.mean, 2 * (size_t)p.c * JEM_LANES * sizeof(float));
        c->ctx->k->normalize(&p, at.x[0], at.y);
    }
}

static void jem__norm_batch_backward(const jem_call *c) {
    const jem__norm p = jem__norm_open(c);
    const int own = ((const jem__norm_user *)c->user)->kind == JEM_NORM_BATCH;
    const float count = (float)c->out.n * (float)p.pixels;
    jem__norm_totals(c);
    for (int i = 0; i < p.c; i++) {
        const float m1 = p.s1[i * JEM_LANES] * p.gamma[i] / count;
        const float m2 = p.s2[i * JEM_LANES] * p.gamma[i] / count;
        for (int l = 0; l < JEM_LANES; l++)
            p.s1[i * JEM_LANES + l] = m1, p.s2[i * JEM_LANES + l] = m2;
    }
    for (int g = 0; g < jem__groups(c->out.n); g++) {
        const jem_call at = jem__at(c, g);
        c->ctx->k->normalize_back(&p, own, at.x[0], at.dy, at.dx[0]);
        /* dead lanes stay out */
        for (ptrdiff_t i = 0; at.live < JEM_LANES && i < p.pixels * p.c * JEM_LANES; i += JEM_LANES)
            for (int l = at.live; l < JEM_LANES; l++) at.dx[0][i + l] = 0;
    }
}

/* kind by kind: the name, and whether it needs the whole batch */
static jem_tensor *jem__norm_record(jem_ctx *ctx, jem_tensor *x, jem_norm kind, int training,
                                    float momentum, jem_param *const *params, int n_params) {
    static const jem__traits apart = { 0, NULL, jem__norm_param_grad, JEM_KEEPS_INPUT };
    static const jem__traits together = { JEM__OP_WHOLE | JEM__OP_LEARNS, NULL,
                                          jem__norm_param_grad, JEM_KEEPS_INPUT };
#define JEM__NORM_OP(name, how, traits)                                                            \
    { name, jem__norm_##how##forward, jem__norm_##how##backward, JEM_KEEPS_INPUT, traits }
    static const jem_op each[] = {
        JEM__NORM_OP("none", , &apart), JEM__NORM_OP("batch_norm", , &apart),
        JEM__NORM_OP("instance_norm", , &apart), JEM__NORM_OP("layer_norm", , &apart),
        JEM__NORM_OP("act_norm", , &apart)
    };
    static const jem_op batch_op = JEM__NORM_OP("batch_norm", batch_, &together);
    static const jem_op act_op = JEM__NORM_OP("act_norm", batch_, &together);
#undef JEM__NORM_OP
    if (!x || !jem_ok(ctx)) return NULL;
    for (int i = 0; i < n_params; i++) {
        const ptrdiff_t want = kind == JEM_NORM_ACT && i == 2 ? 1 : x->c;
        if (!params[i] || params[i]->size != want)
            return jem__refuse(ctx, JEM_BAD_SHAPE, "%s: x %s, parameter %d %s: %d numbers wanted",
                               each[kind].name, jem__shape_text(x).s, i,
                               params[i] ? jem__param_text(params[i]).s : "NULL", (int)want);
    }
    const int fresh = kind == JEM_NORM_ACT && training && params[2]->value[0] == 0;
    const jem_op *op = kind == JEM_NORM_BATCH && training ? &batch_op
                     : fresh ? &act_op : &each[kind];
    const jem__norm_user u = { kind, training, momentum };
    return jem__record(ctx, op, &x, 1, jem__shape_of(x), params, n_params, &u, sizeof u,
                       4 * (size_t)x->c * JEM_LANES * sizeof(float));
}

jem_tensor *jem_instance_norm(jem_ctx *ctx, jem_tensor *x, jem_param *gamma, jem_param *beta) {
    jem_param *p[2] = { gamma, beta };
    return jem__norm_record(ctx, x, JEM_NORM_INSTANCE, 0, 0, p, 2);
}
jem_tensor *jem_layer_norm(jem_ctx *ctx, jem_tensor *x, jem_param *gamma, jem_param *beta) {
    jem_param *p[2] = { gamma, beta };
    return jem__norm_record(ctx, x, JEM_NORM_LAYER, 0, 0, p, 2);
}
jem_tensor *jem_batch_norm(jem_ctx *ctx, jem_tensor *x, jem_param *gamma, jem_param *beta,
                           jem_param *running_mean, jem_param *running_var, float momentum,
                           int training) {
    jem_param *p[4] = { gamma, beta, running_mean, running_var };
    return jem__norm_record(ctx, x, JEM_NORM_BATCH, training, momentum, p, 4);
}
jem_tensor *jem_act_norm(jem_ctx *ctx, jem_tensor *x, jem_param *loc, jem_param *scale,
                         jem_param *initialized, int training) {
    jem_param *p[3] = { loc, scale, initialized };
    return jem__norm_record(ctx, x, JEM_NORM_ACT, training, 0, p, 3);
}

/* ==== >>nets: wide-resnet, convnet, MLP, your own ============================================= */
/* A network is a list of parameters and a function that builds its logits. The three that come with
   the library use only what your own would: jem_net_create, the layers, jem_apply. */

/* ---- short texts: a network's description, and what travels with it into a file -------------- */

typedef struct jem__meta { struct jem__meta *next; const char *key, *value; } jem__meta;
#define JEM__MAX_TEXTS 4096                        /* bounds what a hostile file can cost */

static const char *jem__meta_get(const jem__meta *list, const char *key) {
    for (; list; list = list->next)
        if (!strcmp(list->key, key)) return list->value;
    return NULL;
}

static void jem__meta_free(jem_ctx *ctx, jem__meta *list) {
    for (jem__meta *next; list; list = next) next = list->next, jem__free(ctx, list);
}

/* Well-formed UTF-8 as in RFC 3629: no overlong forms, no surrogates. */
static int jem__utf8_valid(const char *s, size_t n) {
    static const uint32_t least[4] = { 0, 0x80, 0x800, 0x10000 };
    for (size_t i = 0; i < n;) {
        uint32_t c = (unsigned char)s[i++];
        size_t more = c < 0x80 ? 0 : c < 0xE0 ? 1 : c < 0xF0 ? 2 : 3;
        if ((c >= 0x80 && c < 0xC2) || c > 0xF4 || n - i < more) return 0;
        if (more) c &= 0x3Fu >> more;
        for (size_t k = 0; k < more; k++, i++) {
            if (((unsigned char)s[i] & 0xC0) != 0x80) return 0;
            c = c << 6 | ((unsigned char)s[i] & 0x3F);
        }
        if (c < least[more] || c > 0x10FFFF || (c >= 0xD800 && c < 0xE000)) return 0;
    }
    return 1;
}

/* Adds at the end, replaces, or removes (value NULL). What is refused here no file may hold. */
static jem_status jem__meta_set(jem_ctx *ctx, jem__meta **list, const char *key,
                                const char *value) {
    const size_t k = key ? strlen(key) : 0, v = value ? strlen(value) : 0;
    int texts = 0;
    if (!key || !jem__utf8_valid(key, k) || (value && !jem__utf8_valid(value, v)))
        return jem__fail(ctx, JEM_BAD_ARGUMENT, "text \"%.80s\": key or value is not UTF-8",
                         key ? key : "");
    for (; *list && strcmp((*list)->key, key); texts++) list = &(*list)->next;
    jem__meta *old = *list, *rest = old ? old->next : NULL, *m = NULL;
    if (texts == JEM__MAX_TEXTS && !old && value)
        return jem__fail(ctx, JEM_BAD_ARGUMENT, "text \"%.80s\": there are %d already", key, texts);
    if (value) {                                   /* both texts stand behind their struct */
        m = (jem__meta *)jem__alloc(ctx, sizeof *m + k + 1 + v + 1);
        if (!m) return JEM_NO_MEMORY;
        m->key = (char *)memcpy(m + 1, key, k + 1);
        m->value = (char *)memcpy((char *)(m + 1) + k + 1, value, v + 1);
        m->next = rest;
    }
    *list = m ? m : rest;
    jem__free(ctx, old);
    return JEM_OK;
}

/* Puts the texts of `from` into the place of those of the same keys, where nothing can fail. */
static void jem__meta_take(jem_net *net, jem__meta *from, int take) {
    for (jem__meta *next; take && from; from = next) {
        jem__meta **at = &net->meta;
        while (*at && strcmp((*at)->key, from->key)) at = &(*at)->next;
        jem__meta *old = *at;
        next = from->next, from->next = old ? old->next : NULL, *at = from;
        jem__free(net->ctx, old);
    }
    if (!take) jem__meta_free(net->ctx, from);
}

jem_status jem_net_set_meta(jem_net *net, const char *key, const char *value) {
    if (!net) return JEM_BAD_ARGUMENT;
    if (key && value && !strncmp(key, "jem.", 4))
        return jem__fail(net->ctx, JEM_BAD_ARGUMENT, "text \"%.80s\": names that begin with jem. "
                         "are the library's", key);
    return jem__meta_set(net->ctx, &net->meta, key, value);
}
const char *jem_net_meta(const jem_net *net, const char *key) {
    return net && key ? jem__meta_get(net->meta, key) : NULL;
}

/* Reads a decimal number, as 3, -0.25 or 1.5e-07, in every locale the same. Returns where it
   stopped: `s` itself if there is no number, or one of no use here. */
static const char *jem__scan_number(const char *s, double *x) {
    const char *const start = s;
    double v = 0, scale = 1;
    int digits = 0, point = 0, exponent = 0, e = 0;
    s += *s == '-';
    for (; (*s >= '0' && *s <= '9') || (*s == '.' && digits && !point); s++)
        if (*s == '.') point = 1;
        else v = 10 * v + (*s - '0'), digits++, exponent -= point;
    if (*s == 'e') {
        const int minus = *++s == '-';
        for (s += minus || *s == '+'; *s >= '0' && *s <= '9' && e < 100; s++) e = 10 * e + *s - '0';
        exponent += minus ? -e : e;
    }
    if (!digits || digits > 40 || e >= 100) return start;    /* so v and scale stay finite */
    for (int i = abs(exponent); i > 0; i--) scale *= 10;
    v = exponent < 0 ? v / scale : v * scale;
    *x = *start == '-' ? -v : v;
    return s;
}

/* The shortest text from which jem__scan_number reads the same float (9 digits tell any two floats
   apart), or the same whole number; x is finite. Returns its length. */
static int jem__print_number(char *out, size_t size, double x) {
    if (x == floor(x) && fabs(x) < 1e9) return snprintf(out, size, "%.0f", x);
    char text[64];
    double back = x;
    for (int digits = 6; digits <= 9; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, x);
        jem__with_point(text);
        if (jem__scan_number(text, &back) != text && (float)back == (float)x) break;
    }
    return snprintf(out, size, "%s", text);
}

/* Each field of a desc is listed once, in jem__wrn_fields or jem__stack_fields, with its limits. To
   visit the list reads every field from a file's texts (in), checks it, and adds it to a network's
   or a file's (out); so creating and loading agree on what is allowed. */
typedef struct jem__fields {
    jem_ctx *ctx;
    const char *kind;                              /* jem.net */
    const char *where;                             /* for messages: the file, or the kind */
    const jem__meta *in;                           /* or NULL */
    jem__meta **out;                               /* or NULL */
    jem_status status;
} jem__fields;

/* text: what a file says, or NULL. */
static void jem__fields_fail(jem__fields *f, const char *key, const char *text, double value,
                             const char *wanted) {
    char number[32];
    if (f->status) return;
    snprintf(number, sizeof number, "%.9g", value);
    jem__with_point(number);
    f->status = jem__fail(f->ctx, f->in ? JEM_BAD_FILE : JEM_BAD_ARGUMENT, "%s: %s = %.40s: %s",
                          f->where, f->in ? key : key + strlen("jem."), text ? text : number,
                          wanted);
}

/* whole: without a fraction. What is wrong is an error, and lo. */
static double jem__field(jem__fields *f, const char *key, double value, double lo, double hi,
                         int whole) {
    const char *text = f->in ? jem__meta_get(f->in, key) : NULL;
    int bad = f->in && (!text || !*text || *jem__scan_number(text, &value));   /* all of it */
    if (f->status) return lo;
    if (!whole && fabs(value) < 1e30) value = (double)(float)value;
    bad = bad || !(value >= lo && value <= hi) || (whole && value != floor(value));
    if (bad) {
        char wanted[96];
        snprintf(wanted, sizeof wanted, "a %snumber from %.9g to %.9g is wanted",
                 whole ? "whole " : "", lo, hi);
        jem__with_point(wanted);
        jem__fields_fail(f, key, f->in && !text ? "(nothing)" : text, value, wanted);
        return lo;
    }
    if (f->out) {
        char number[32];
        jem__print_number(number, sizeof number, value);
        f->status = jem__meta_set(f->ctx, f->out, key, number);
    }
    return value;
}
static int jem__int(jem__fields *f, const char *key, int value, int lo, int hi) {
    return (int)jem__field(f, key, value, lo, hi, 1);
}
static float jem__float(jem__fields *f, const char *key, float value, float lo, float hi) {
    return (float)jem__field(f, key, (double)value, (double)lo, (double)hi, 0);
}

/* A field that stands in a file of ours, which has a description, only where it is not the usual
   one; where any other file says nothing, it stays. */
static float jem__unusual(jem__fields *f, const char *key, float value, float usual, float lo,
                          float hi, int whole) {
    if (f->in ? jem__meta_get(f->in, key) != NULL
              : value != usual || (f->out && !jem__meta_get(*f->out, "jem.net")))
        return (float)jem__field(f, key, (double)value, (double)lo, (double)hi, whole);
    if (f->out && !f->status) f->status = jem__meta_set(f->ctx, f->out, key, NULL);
    return f->in && jem__meta_get(f->in, "jem.net") ? usual : value;
}
/* A network's own numbers. */
static void jem__net_fields(jem__fields *f, jem_net *net) {
    net->scale = jem__unusual(f, "jem.scale", net->scale, 1, 1e-6f, 1e6f, 0);
    net->noise_lo = jem__unusual(f, "jem.noise_lo", net->noise_lo, 0, 0, 1e6f, 0);
    net->noise_hi = jem__unusual(f, "jem.noise_hi", net->noise_hi, 0, 0, 1e6f, 0);
    net->mean = jem__unusual(f, "jem.mean", net->mean, 0, -1e6f, 1e6f, 0);
}

/* What all descs have. */
static void jem__shared_fields(jem__fields *f, int *channels, int *height, int *width, int *classes,
                               jem_activation *activation, float *slope, int *uncond) {
    if (f->out) f->status = jem__meta_set(f->ctx, f->out, "jem.net", f->kind);
    *channels = jem__int(f, "jem.channels", *channels, 1, 65536);
    *height = jem__int(f, "jem.height", *height, 1, 65536);
    *width = jem__int(f, "jem.width", *width, 1, 65536);
    *classes = jem__int(f, "jem.classes", *classes, 1, 1 << 24);
    *activation = (jem_activation)jem__int(f, "jem.activation", (int)*activation, 0, JEM_ACTIVATION_TANH);
    *slope = jem__float(f, "jem.slope", *slope, -1000, 1000);
    *uncond = (int)jem__unusual(f, "jem.uncond", (float)*uncond, 0, 0, 1, 1);
}

/* So many numbers of an image reach the linear layers: their weights must be possible. */
static int jem__features(jem__fields *f, double features) {
    if (features > 1e9)
        jem__fields_fail(f, "jem.features", NULL, features, "too many for the last layer");
    return f->status ? 0 : (int)features;
}

static int jem__wrn_fields(jem__fields *f, jem_wrn_desc *d) {
    jem__shared_fields(f, &d->channels, &d->height, &d->width, &d->classes, &d->activation,
                       &d->leak, &d->separate_energy);
    d->depth = jem__int(f, "jem.depth", d->depth, 10, 1000);
    d->widen = jem__int(f, "jem.widen", d->widen, 1, 100);
    d->norm = (jem_norm)jem__int(f, "jem.norm", (int)d->norm, 0, JEM_NORM_ACT);
    d->dropout = jem__float(f, "jem.dropout", d->dropout, 0, 0.99999994f);
    d->head = (jem_head)jem__int(f, "jem.head", (int)d->head, 0, JEM_HEAD_FLAT);
    d->stem_stride = jem__int(f, "jem.stem_stride", d->stem_stride, 1, 8);
    d->blocks = (jem_blocks)jem__unusual(f, "jem.blocks", (float)d->blocks, 0, 0,
                                         (float)JEM_BLOCKS_ZERO, 1);
    d->unet = (int)jem__unusual(f, "jem.unet", (float)d->unet, 0, 0, 1, 1);
    if ((d->depth - 4) % 6) jem__fields_fail(f, "jem.depth", NULL, d->depth, "6k + 4 is wanted");
    if (d->unet && d->separate_energy)
        jem__fields_fail(f, "jem.unet", NULL, 1, "not together with uncond");
    if (d->unet && (d->height % (4 * d->stem_stride) || d->width % (4 * d->stem_stride)))
        jem__fields_fail(f, "jem.unet", NULL, 1, "sides must be multiples of 4 stem strides");
    const int shrink = 4 * d->stem_stride, pooled = d->head != JEM_HEAD_FLAT;
    const double h = (d->height - 1) / shrink + 1, w = (d->width - 1) / shrink + 1;
    return jem__features(f, 64.0 * d->widen * (pooled ? 1 : h * w));
}

static int jem__stack_fields(jem__fields *f, jem_convnet_desc *d) {
    jem__shared_fields(f, &d->channels, &d->height, &d->width, &d->classes, &d->activation,
                       &d->leak, &d->separate_energy);
    d->layers = jem__int(f, "jem.layers", d->layers, 1, 8);
    for (int i = 0; i < d->layers && !f->status; i++) {
        char key[32];
        snprintf(key, sizeof key, "jem.width%d", i + 1);
        d->widths[i] = jem__int(f, key, d->widths[i], 1, 65536);
    }
    const int last = d->layers - 1, conv = !strcmp(f->kind, "convnet");
    return jem__features(f, conv ? (double)d->widths[last] * (d->height >> last) *
                                   (d->width >> last)
                                 : (double)d->channels * d->height * d->width);
}

/* ---- parameters ------------------------------------------------------------------------------ */

/* Creation's last word: the net, if there was no error since it began. */
static jem_net *jem__net_done(jem_net *net, int errors) {
    if (net->ctx->errors == errors) return net;
    jem_net_free(net);
    return NULL;
}

/* Many parameters: the function, its data, and the sizes of images and answers. */
jem_net *jem_net_create(jem_ctx *ctx, jem_forward_fn forward, const void *user, size_t user_bytes,
                        int channels, int height, int width, int classes, uint64_t seed) {
    if (!ctx) return NULL;
    if (channels < 1 || height < 1 || width < 1 || classes < 1)
        return (jem_net *)jem__null(ctx, JEM_BAD_ARGUMENT, "net_create: images (%d,%d,%d) and "
                                    "classes (%d) must be 1 or more", channels, height, width,
                                    classes);
    const int errors = ctx->errors;
    jem_net *net = (jem_net *)jem__alloc(ctx, sizeof *net);
    if (!net) return NULL;
    net->self = net, net->scale = 1;
    net->ctx = ctx, net->forward = forward, net->rng = jem_rng_seed(seed);
    net->channels = channels, net->height = height, net->width = width, net->classes = classes;
    net->user = jem__alloc(ctx, user_bytes);
    if (net->user && user && user_bytes) memcpy(net->user, user, user_bytes);
    return jem__net_done(net, errors);
}

static void jem__param_free(jem_param *p) {
    for (jem__pack *k = p->packs, *next; k; k = next) {
        next = k->next;
        jem__free(p->ctx, k->data), jem__free(p->ctx, k);
    }
    jem__free(p->ctx, p->value), jem__free(p->ctx, p->grad);
    jem__free(p->ctx, (void *)(uintptr_t)p->name);
    jem__free(p->ctx, p);
}

void jem_net_free(jem_net *net) {
    if (!net) return;
    for (jem_param *p = net->params, *next; p; p = next) next = p->next, jem__param_free(p);
    jem__meta_free(net->ctx, net->meta);
    jem__free(net->ctx, net->user);
    jem__free(net->ctx, net);
}

/* Padded to 16 floats, so that the optimiser's kernels have no remainder. */
static float *jem__alloc_padded(jem_ctx *ctx, ptrdiff_t n) {
    return jem__alloc_floats(ctx, (n + JEM_LANES - 1) / JEM_LANES * JEM_LANES);
}

jem_param *jem_net_param(jem_net *net, const char *name, int ndim, const int *shape,
                         int trainable) {
    if (!net) return NULL;
    int bad = !name || !shape || ndim < 1 || ndim > 4;
    double size = 1;
    for (int i = 0; !bad && i < ndim; i++) size *= shape[i], bad = shape[i] < 1 || size > 1e9;
    if (!bad && (net->ctx->params_left -= size) < 0)
        return (jem_param *)jem__null(net->ctx, JEM_BAD_FILE, "the file describes a larger network "
                                      "than it holds");
    if (bad || jem_net_find(net, name))
        return (jem_param *)jem__null(net->ctx, JEM_BAD_ARGUMENT, "net_param: %s%s",
                                      name ? name : "no name",
                                      bad ? ": not a shape that can be made" : " is there already");
    jem_param *p = (jem_param *)jem__alloc(net->ctx, sizeof *p);
    if (!p) return NULL;
    p->ctx = net->ctx, p->ndim = ndim, p->size = (ptrdiff_t)size;
    for (int i = 0; i < ndim; i++) p->shape[i] = shape[i];
    p->name = jem__strdup(net->ctx, name);
    p->value = jem__alloc_padded(net->ctx, p->size);
    if (trainable) p->grad = jem__alloc_padded(net->ctx, p->size);
    if (!p->name || !p->value || (trainable && !p->grad)) {
        jem__param_free(p);
        return NULL;
    }
    if (net->last) net->last->next = p; else net->params = p;
    return net->last = p;
}

jem_param *jem_net_find(const jem_net *net, const char *name) {
    jem_param *p = net && name ? net->params : NULL;
    while (p && strcmp(p->name, name)) p = p->next;
    return p;
}

ptrdiff_t jem_net_size(const jem_net *net) {
    ptrdiff_t n = 0;
    for (const jem_param *p = net ? net->params : NULL; p; p = p->next) n += p->grad ? p->size : 0;
    return n;
}

void jem_zero_grad(jem_net *net) {
    for (jem_param *p = net ? net->params : NULL; p; p = p->next)
        if (p->grad) memset(p->grad, 0, (size_t)p->size * sizeof(float));
}

/* ---- layers ---------------------------------------------------------------------------------- */

/* The parameter name.suffix. */
static jem_param *jem__layer_param(jem_net *net, const char *name, const char *suffix,
                                   int ndim, const int *shape, int trainable) {
    char full[128];
    if (name && snprintf(full, sizeof full, "%s.%s", name, suffix) < (int)sizeof full)
        return jem_net_param(net, full, ndim, shape, trainable);
    jem__fail(net->ctx, JEM_BAD_ARGUMENT, "layer %.60s...: the name is too long, or NULL",
              name ? name : "");
    return NULL;
}
/* Weight (O,I,k,k) or (O,I), and bias (O): uniform in +-1/sqrt(fan_in). */
static void jem__layer_weights(jem_net *net, const char *name, int ndim, int in, int out, int k,
                               jem_layer *l) {
    const int shape[4] = { out, in, k, k };
    const float bound = 1 / sqrtf((float)in * (float)k * (float)k);
    l->weight = jem__layer_param(net, name, "weight", ndim, shape, 1);
    if (!l->weight) return;
    jem_fill_uniform(net->ctx, &net->rng, l->weight->value, l->weight->size, -bound, bound);
    l->bias = jem__layer_param(net, name, "bias", 1, shape, 1);
    if (l->bias)
        jem_fill_uniform(net->ctx, &net->rng, l->bias->value, l->bias->size, -bound, bound);
}
/* A number per channel, all the same at first. */
static jem_param *jem__layer_numbers(jem_net *net, const char *name, const char *suffix,
                                     int channels, float value, int trainable) {
    jem_param *p = jem__layer_param(net, name, suffix, 1, &channels, trainable);
    for (ptrdiff_t i = 0; p && i < p->size; i++) p->value[i] = value;
    return p;
}

jem_layer jem_conv_layer(jem_net *net, const char *name, int in, int out, int k, int stride,
                         int pad) {
    JEM__ZEROED(jem_layer, l);
    l.kind = JEM_LAYER_CONV, l.conv.stride = stride, l.conv.pad = pad;
    if (net) jem__layer_weights(net, name, 4, in, out, k, &l);
    return l;
}

jem_layer jem_linear_layer(jem_net *net, const char *name, int in, int out) {
    JEM__ZEROED(jem_layer, l);
    l.kind = JEM_LAYER_LINEAR;
    if (net) jem__layer_weights(net, name, 2, in, out, 1, &l);
    return l;
}

jem_layer jem_norm_layer(jem_net *net, const char *name, jem_norm norm, int channels) {
    JEM__ZEROED(jem_layer, l);
    l.kind = norm == JEM_NORM_NONE ? JEM_LAYER_NONE : JEM_LAYER_NORM, l.norm = norm;
    if (!net || norm == JEM_NORM_NONE) return l;
    if ((int)norm < 0 || norm > JEM_NORM_ACT) {
        jem__fail(net->ctx, JEM_BAD_ARGUMENT, "norm_layer: there is no norm %d", (int)norm);
        return l;
    }
    if (norm == JEM_NORM_ACT) {
        const int shape[4] = { 1, channels, 1, 1 };
        l.bias = jem__layer_param(net, name, "loc", 4, shape, 1);
        l.weight = jem__layer_param(net, name, "scale", 4, shape, 1);
        for (int i = 0; l.weight && i < channels; i++) l.weight->value[i] = 1;
        l.extra[0] = jem__layer_numbers(net, name, "initialized", 1, 0, 0);
        return l;
    }
    l.weight = jem__layer_numbers(net, name, "weight", channels, 1, 1);
    l.bias = jem__layer_numbers(net, name, "bias", channels, 0, 1);
    if (norm == JEM_NORM_BATCH) {
        l.extra[0] = jem__layer_numbers(net, name, "running_mean", channels, 0, 0);
        l.extra[1] = jem__layer_numbers(net, name, "running_var", channels, 1, 0);
    }
    return l;
}

/* The reference's momentum for batch norm, in PyTorch's sense: the new batch counts .9. */
#define JEM__BATCH_MOMENTUM 0.9f

jem_tensor *jem_apply(const jem_layer *l, jem_tensor *x, int training) {
    if (!x || !l) return NULL;
    switch (l->kind) {
    case JEM_LAYER_CONV: return jem_conv2d(x->ctx, x, l->weight, l->bias, l->conv);
    case JEM_LAYER_LINEAR: return jem_linear(x->ctx, x, l->weight, l->bias);
    case JEM_LAYER_NORM: break;
    default: return x;
    }
    switch (l->norm) {
    case JEM_NORM_BATCH:
        return jem_batch_norm(x->ctx, x, l->weight, l->bias, l->extra[0], l->extra[1],
                              JEM__BATCH_MOMENTUM, training);
    case JEM_NORM_INSTANCE: return jem_instance_norm(x->ctx, x, l->weight, l->bias);
    case JEM_NORM_LAYER: return jem_layer_norm(x->ctx, x, l->weight, l->bias);
    case JEM_NORM_ACT: return jem_act_norm(x->ctx, x, l->bias, l->weight, l->extra[0], training);
    default: return x;
    }
}

jem_tensor *jem_activate(jem_ctx *ctx, jem_tensor *x, jem_activation a, float slope) {
    switch (a) {
    case JEM_ACTIVATION_RELU: return jem_relu(ctx, x);
    case JEM_ACTIVATION_SILU: return jem_silu(ctx, x);
    case JEM_ACTIVATION_TANH: return jem_tanh(ctx, x);
    case JEM_ACTIVATION_LEAKY_RELU: return jem_leaky_relu(ctx, x, slope);
    }
    return jem__refuse(ctx, JEM_BAD_ARGUMENT, "activate: there is no activation %d", (int)a);
}

/* Up to 3 images are cut into blocks (beyond that the copies cost more than the idle lanes), if the
   sides can be cut, and halved `halvings` times after that: each block must keep whole pixels. */
static jem_tensor *jem__cut_few(jem_ctx *ctx, jem_tensor *x, int halvings) {
    if (!x || x->n > 3 || x->h % (JEM__GRID << halvings) || x->w % (JEM__GRID << halvings))
        return x;
    return jem__recut(ctx, x, 1);
}

/* Checks what a forward function put beside its logits: NULL, or one number per image. */
static int jem__is_per_image(jem_net *net, const jem_tensor *t, const char *what, int n) {
    if (!t || (t->n == n && t->c == 1 && t->h == 1 && t->w == 1)) return 1;
    net->energy = NULL;
    net->shift = NULL;
    jem__fail(net->ctx, JEM_BAD_SHAPE, "forward: the network made %s of %s, not (%d,1,1,1)",
              jem__shape_text(t).s, what, n);
    return 0;
}

jem_tensor *jem_forward(jem_net *net, jem_tensor *x, int training) {
    if (!net || !x) return NULL;
    if (x->c != net->channels || x->h != net->height || x->w != net->width)
        return (jem_tensor *)jem__null(net->ctx, JEM_BAD_SHAPE, "forward: x is %s, the network "
                                       "takes (n,%d,%d,%d)", jem__shape_text(x).s, net->channels,
                                       net->height, net->width);
    if (!net->forward)
        return (jem_tensor *)jem__null(net->ctx, JEM_BAD_ARGUMENT, "forward: this network was made "
                                       "without a function");
    net->energy = NULL;
    net->shift = NULL;
    jem_tensor *logits = net->forward(net, x, training, net->user);
    if (!logits && jem_ok(net->ctx))
        jem__fail(net->ctx, JEM_BAD_ARGUMENT, "forward: the network's function made nothing");
    if (logits && (logits->n != x->n || logits->c != net->classes ||
                   logits->h != 1 || logits->w != 1))
        return (jem_tensor *)jem__null(net->ctx, JEM_BAD_SHAPE, "forward: the network made %s, not "
                                       "logits (%d,%d,1,1)", jem__shape_text(logits).s, x->n,
                                       net->classes);
    if (logits && !(jem__is_per_image(net, net->energy, "energy", x->n) &&
                    jem__is_per_image(net, net->shift, "shift", x->n))) return NULL;
    return logits;
}

/* Numbers in an image; a leaf of n images of them (x NULL: zeros). */
static ptrdiff_t jem__image(const jem_net *net) {
    return (ptrdiff_t)net->channels * net->height * net->width;
}
static jem_tensor *jem__images(const jem_net *net, const float *x, int n) {
    return x ? jem_input(net->ctx, x, n, net->channels, net->height, net->width)
             : jem_zeros(net->ctx, n, net->channels, net->height, net->width);
}

#define JEM__LARGEST 1e4f  /* beyond it, a number in an image is taken for garbage */

/* Numbers that images can have: garbage in should be an error, not an answer. */
static jem_status jem__images_check(const jem_net *net, const char *what, const float *x, int n) {
    const ptrdiff_t size = jem__image(net);
    for (ptrdiff_t i = 0; i < n * size; i++)
        if (!jem__finite(x[i]) || x[i] > JEM__LARGEST || x[i] < -JEM__LARGEST)
            return jem__fail(net->ctx, JEM_BAD_ARGUMENT, "%s: image %d has a %g among its numbers, "
                             "which may be from -%g to %g", what, (int)(i / size), (double)x[i],
                             (double)JEM__LARGEST, (double)JEM__LARGEST);
    return JEM_OK;
}

/* ---- the wide-resnet ------------------------------------------------------------------------- */

enum { JEM__STAGES = 3 };
typedef struct jem__wrn {
    jem_wrn_desc desc;
    int blocks;                                    /* of all stages */
    jem_layer stem, norm, head, energy;
    jem_layer down[JEM__STAGES - 1];               /* JEM_BLOCKS_ZERO: between stages */
    jem_layer up[JEM__STAGES - 1];                 /* unet: after upsampling to stage i ... */
    jem_layer skip[JEM__STAGES - 1];               /* ... and 1x1, of the features of stage i */
    jem_layer block[1][5];                         /* norm1, conv1, norm2, conv2, shortcut */
} jem__wrn;

/* One block: conv2(act(norm2(dropout(conv1(act(norm1(x))))))) + shortcut(x) */
static jem_tensor *jem__wrn_block(jem_net *net, const jem__wrn *w, const jem_layer *l,
                                  jem_tensor *x, int training) {
    const jem_wrn_desc *d = &w->desc;
    jem_tensor *y = jem_activate(net->ctx, jem_apply(&l[0], x, training), d->activation, d->leak);
    y = jem_apply(&l[1], y, training);
    if (training && d->dropout > 0) y = jem_dropout(net->ctx, y, d->dropout, &net->rng);
    y = jem_activate(net->ctx, jem_apply(&l[2], y, training), d->activation, d->leak);
    /* not inside the call: C leaves the order of arguments, and so the tape's, open */
    jem_tensor *shortcut = jem_apply(&l[4], x, training);
    y = jem_apply(&l[3], y, training);
    return jem_add(net->ctx, y, shortcut);
}

/* e(x) = sum of x U(x): from the last features up, at each size the smaller features upsampled and
   those of that size, then back to the image's channels. features: of each stage, (n, 16 widen 2^i,
   h/2^i, w/2^i). */
static jem_tensor *jem__wrn_unet(jem_net *net, const jem__wrn *w, jem_tensor *x,
                                 jem_tensor *const *features, int training) {
    const jem_wrn_desc *d = &w->desc;
    jem_ctx *ctx = net->ctx;
    jem_tensor *y = features[JEM__STAGES - 1];
    for (int i = JEM__STAGES - 2; i >= 0; i--) {
        jem_tensor *coarse = jem_apply(&w->up[i], jem_upsample(ctx, y, 2), training);
        jem_tensor *fine = jem_activate(ctx, features[i], d->activation, d->leak);
        fine = jem_apply(&w->skip[i], fine, training);
        y = jem_activate(ctx, jem_add(ctx, coarse, fine), d->activation, d->leak);
    }
    if (d->stem_stride > 1) y = jem_upsample(ctx, y, d->stem_stride);
    return jem_sum_image(ctx, jem_mul(ctx, jem_apply(&w->energy, y, training), x));
}

static jem_tensor *jem__wrn_forward(jem_net *net, jem_tensor *x, int training, void *user) {
    const jem__wrn *w = (const jem__wrn *)user;
    const jem_wrn_desc *d = &w->desc;
    const int local = !training && d->norm != JEM_NORM_INSTANCE && d->norm != JEM_NORM_LAYER &&
                      d->blocks == JEM_BLOCKS_WRN && !d->unet;
    jem_tensor *features[JEM__STAGES] = { NULL };
    if (local && d->stem_stride == 1) x = jem__cut_few(net->ctx, x, 2);
    jem_tensor *y = jem_apply(&w->stem, x, training);
    const int per_stage = w->blocks / JEM__STAGES;
    for (int stage = 0; stage < JEM__STAGES; stage++) {
        if (stage && d->blocks == JEM_BLOCKS_ZERO) {
            y = jem_activate(net->ctx, y, d->activation, d->leak);
            y = jem_apply(&w->down[stage - 1], y, training);
        }
        for (int i = 0; i < per_stage; i++)
            y = jem__wrn_block(net, w, w->block[stage * per_stage + i], y, training);
        features[stage] = y;
    }
    y = jem_activate(net->ctx, jem_apply(&w->norm, y, training), d->activation, d->leak);
    features[JEM__STAGES - 1] = y;
    if (d->unet) net->shift = jem__wrn_unet(net, w, x, features, training);
    if (y && y->blocks) y = jem__recut(net->ctx, y, 0);
    y = d->head == JEM_HEAD_FLAT ? jem_flatten(net->ctx, y) : jem_global_pool(net->ctx, y);
    if (d->separate_energy) net->energy = jem_apply(&w->energy, y, training);
    return jem_apply(&w->head, y, training);
}

jem_wrn_desc jem_wrn_desc_default(void) {
    JEM__ZEROED(jem_wrn_desc, d);
    d.depth = 28, d.widen = 10, d.channels = 3, d.height = d.width = 32, d.classes = 10;
    d.leak = 0.2f, d.stem_stride = 1;
    return d;
}

/* Sets a layer to 0, as the last of a block that begins as the identity. */
static void jem__layer_zero(jem_layer *l) {
    if (l->weight) memset(l->weight->value, 0, (size_t)l->weight->size * sizeof(float));
    if (l->bias) memset(l->bias->value, 0, (size_t)l->bias->size * sizeof(float));
}

/* Adds block i, which reads `in` channels; with JEM_BLOCKS_ZERO, what leads to its stage, too.
   Returns how many channels it makes. */
static int jem__wrn_add_block(jem_net *net, jem__wrn *w, int i, int in) {
    static const char *const part[5] = { "bn1", "conv1", "bn2", "conv2", "shortcut.0" };
    const jem_wrn_desc *d = &w->desc;
    const int per_stage = w->blocks / JEM__STAGES;
    const int stage = i / per_stage;
    const int out = (16 << stage) * d->widen;
    const int zero = d->blocks == JEM_BLOCKS_ZERO;
    const int narrows = stage && i % per_stage == 0;
    const int stride = 1 + (narrows && !zero);
    char name[5][64];
    for (int k = 0; k < 5; k++)
        snprintf(name[k], sizeof name[k], "f.layer%d.%d.%s", stage + 1, i % per_stage, part[k]);
    if (narrows && zero) {
        char down[32];
        snprintf(down, sizeof down, "f.down%d", stage);
        w->down[stage - 1] = jem_conv_layer(net, down, in, out, 4, 2, 1);
        in = out;
    }
    jem_layer *l = w->block[i];
    l[0] = jem_norm_layer(net, name[0], d->norm, in);
    l[1] = jem_conv_layer(net, name[1], in, out, 3, 1, 1);
    l[2] = jem_norm_layer(net, name[2], d->norm, out);
    l[3] = jem_conv_layer(net, name[3], out, out, 3, stride, 1);
    if (zero) jem__layer_zero(&l[3]);
    if (stride != 1 || in != out) l[4] = jem_conv_layer(net, name[4], in, out, 1, stride, 0);
    return out;
}

static void jem__wrn_add_unet(jem_net *net, jem__wrn *w) {
    const int width = 16 * w->desc.widen;
    for (int i = JEM__STAGES - 2; i >= 0; i--) {
        char up[32], skip[32];
        snprintf(up, sizeof up, "u.up%d", i + 1);
        snprintf(skip, sizeof skip, "u.skip%d", i + 1);
        w->up[i] = jem_conv_layer(net, up, width << (i + 1), width << i, 3, 1, 1);
        w->skip[i] = jem_conv_layer(net, skip, width << i, width << i, 1, 1, 0);
    }
    w->energy = jem_conv_layer(net, "u.energy_output", width, net->channels, 3, 1, 1);
}

jem_net *jem_wrn_create(jem_ctx *ctx, const jem_wrn_desc *desc, uint64_t seed) {
    if (!ctx) return NULL;
    const int errors = ctx->errors;
    jem_wrn_desc d = desc ? *desc : jem_wrn_desc_default();
    jem__fields fields = { ctx, "wrn", "wrn", NULL, NULL, JEM_OK };
    const int features = jem__wrn_fields(&fields, &d), n = (d.depth - 4) / 6;
    if (fields.status) return NULL;
    const size_t bytes = sizeof(jem__wrn) + (size_t)(3 * n) * 5 * sizeof(jem_layer);
    jem_net *net = jem_net_create(ctx, jem__wrn_forward, NULL, bytes, d.channels, d.height, d.width,
                                  d.classes, seed);
    if (!net) return NULL;
    jem__wrn *w = (jem__wrn *)net->user;
    w->desc = d, w->blocks = 3 * n;
    int in = 16;
    if (d.blocks == JEM_BLOCKS_ZERO) in *= d.widen;
    w->stem = jem_conv_layer(net, "f.conv1", d.channels, in, 3, d.stem_stride, 1);
    for (int i = 0; i < 3 * n; i++) in = jem__wrn_add_block(net, w, i, in);
    w->norm = jem_norm_layer(net, "f.bn1", d.norm, in);
    w->head = jem_linear_layer(net, "class_output", features, d.classes);
    if (d.separate_energy) w->energy = jem_linear_layer(net, "energy_output", features, 1);
    if (d.unet) jem__wrn_add_unet(net, w);
    fields.out = &net->meta;
    jem__wrn_fields(&fields, &d);
    return jem__net_done(net, errors);
}

/* ---- the strided convnet and the MLP: one stack of layers ------------------------------------ */

typedef struct jem__stack {
    jem_convnet_desc desc;
    int convs;                                     /* conv layers, then linear ones */
    jem_layer layer[8], head, energy;
} jem__stack;

static jem_tensor *jem__stack_forward(jem_net *net, jem_tensor *x, int training, void *user) {
    const jem__stack *s = (const jem__stack *)user;
    const jem_convnet_desc *d = &s->desc;
    for (int i = 0; i < d->layers; i++) {
        if (i == s->convs) x = jem_flatten(net->ctx, x);
        x = jem_apply(&s->layer[i], x, training);
        x = jem_activate(net->ctx, x, d->activation, d->leak);
    }
    if (s->convs) x = jem_flatten(net->ctx, x);
    if (d->separate_energy) net->energy = jem_apply(&s->energy, x, training);
    return jem_apply(&s->head, x, training);
}

static jem_net *jem__stack_create(jem_ctx *ctx, jem_convnet_desc *d, int conv, uint64_t seed) {
    if (!ctx) return NULL;
    const int errors = ctx->errors;
    const char *kind = conv ? "convnet" : "mlp";
    jem__fields fields = { ctx, kind, kind, NULL, NULL, JEM_OK };
    const int features = jem__stack_fields(&fields, d);
    if (fields.status) return NULL;
    jem_net *net = jem_net_create(ctx, jem__stack_forward, NULL, sizeof(jem__stack), d->channels,
                                  d->height, d->width, d->classes, seed);
    if (!net) return NULL;
    jem__stack *s = (jem__stack *)net->user;
    s->desc = *d, s->convs = conv ? d->layers : 0;
    int in = conv ? d->channels : features;
    for (int i = 0; i < d->layers; i++) {
        char name[32];
        snprintf(name, sizeof name, conv ? "conv%d" : "linear%d", i + 1);
        s->layer[i] = !conv ? jem_linear_layer(net, name, in, d->widths[i])
                    : i > 0 ? jem_conv_layer(net, name, in, d->widths[i], 4, 2, 1)
                            : jem_conv_layer(net, name, in, d->widths[i], 3, 1, 1);
        in = d->widths[i];
    }
    if (!features)
        jem__fail(ctx, JEM_BAD_ARGUMENT, "convnet: %dx%d images are too small for %d layers",
                  d->height, d->width, d->layers);
    if (conv) in = features;
    s->head = jem_linear_layer(net, "class_output", in, d->classes);
    if (d->separate_energy) s->energy = jem_linear_layer(net, "energy_output", in, 1);
    fields.out = &net->meta;
    jem__stack_fields(&fields, d);
    return jem__net_done(net, errors);
}

jem_convnet_desc jem_convnet_desc_default(void) {
    JEM__ZEROED(jem_convnet_desc, d);
    d.channels = 1, d.height = d.width = 28, d.classes = 10;
    d.layers = 4, d.widths[0] = 16, d.widths[1] = 32, d.widths[2] = d.widths[3] = 64;
    d.activation = JEM_ACTIVATION_SILU, d.leak = 0.2f;
    return d;
}
jem_net *jem_convnet_create(jem_ctx *ctx, const jem_convnet_desc *desc, uint64_t seed) {
    jem_convnet_desc d = desc ? *desc : jem_convnet_desc_default();
    return jem__stack_create(ctx, &d, 1, seed);
}

jem_mlp_desc jem_mlp_desc_default(void) {
    jem_mlp_desc d = jem_convnet_desc_default();
    d.layers = 2, d.widths[0] = d.widths[1] = 128, d.widths[2] = d.widths[3] = 0;
    return d;
}
jem_net *jem_mlp_create(jem_ctx *ctx, const jem_mlp_desc *desc, uint64_t seed) {
    jem_mlp_desc d = desc ? *desc : jem_mlp_desc_default();
    return jem__stack_create(ctx, &d, 0, seed);
}

/* A network as described in a file, with fresh parameters. */
static jem_net *jem__net_from_meta(jem_ctx *ctx, const jem__meta *meta, const char *where) {
    const char *kind = jem__meta_get(meta, "jem.net");
    jem__fields f = { ctx, kind ? kind : "(nothing)", where, meta, NULL, JEM_OK };
    if (!strcmp(f.kind, "wrn")) {
        jem_wrn_desc d = jem_wrn_desc_default();
        jem__wrn_fields(&f, &d);
        return f.status ? NULL : jem_wrn_create(ctx, &d, 0);
    }
    const int conv = !strcmp(f.kind, "convnet");
    if (conv || !strcmp(f.kind, "mlp")) {
        JEM__ZEROED(jem_convnet_desc, d);
        jem__stack_fields(&f, &d);
        return f.status ? NULL : jem__stack_create(ctx, &d, conv, 0);
    }
    jem__fail(ctx, JEM_BAD_FILE, "%s: does not say which network it is, of those that this version "
              "knows (jem.net = \"%.40s\"): create the network first, then jem_net_load", where,
              f.kind);
    return NULL;
}

/* ==== >>losses: log-densities, cross-entropy, contrastive divergence, score =================== */

/* Two ops that meet are made one after the other, not as two arguments of a third: C leaves the
   order of arguments open, and the tape's order is part of 'the same bits everywhere'. */

/* log p(x) = e(x) + K logsumexp_y f(x)[y] - log Z, from the logits that jem_forward has just made,
   or K times the output that an unconditional network has for it. e is the shift of a network that
   has one. K, the scale, is for score matching: at little noise the slope of log p is
   sqrt(pixels)/sigma, hundreds, and a fresh network's logits are near 0. */
static jem_tensor *jem__logp(jem_net *net, jem_tensor *logits) {
    if (!net || !logits) return NULL;
    jem_tensor *f = net->energy ? net->energy : jem_logsumexp(net->ctx, logits);
    if (net->scale != 1) f = jem_scale(net->ctx, f, net->scale);
    return net->shift ? jem_add(net->ctx, f, net->shift) : f;
}

/* log p(y|x) = f(x)[y] - logsumexp f(x) */
static jem_tensor *jem__label(jem_net *net, jem_tensor *logits, const int *labels) {
    jem_tensor *all = jem_logsumexp(net->ctx, logits);
    return jem_sub(net->ctx, jem_gather(net->ctx, logits, labels), all);
}

/* f(x)[y] - logsumexp of the others: what is added to the logits takes y out of them. */
static jem_tensor *jem__odds(jem_net *net, jem_tensor *logits, const int *labels) {
    jem_ctx *ctx = net->ctx;
    jem_tensor *own = jem_gather(ctx, logits, labels);
    if (!own) return NULL;
    const int n = logits->n, k = logits->c;
    float *out = (float *)jem__push_zero(ctx, (size_t)n * (size_t)k * sizeof *out);
    for (int i = 0; out && i < n; i++) out[i * k + labels[i]] = -1e18f;
    jem_tensor *others = jem_add(ctx, logits, jem_input(ctx, out, n, k, 1, 1));
    return jem_sub(ctx, own, jem_logsumexp(ctx, others));
}

/* log p(x,y) = log p(x) + log p(y|x), which is f(x)[y] - log Z where K = 1 */
static jem_tensor *jem__joint(jem_net *net, jem_tensor *logits, const int *labels) {
    if (logits && net->energy)
        return (jem_tensor *)jem__null(net->ctx, JEM_BAD_ARGUMENT, "this network is unconditional "
                                       "(uncond): it has no log p(x,y)");
    if (net->scale == 1 && !net->shift) return jem_gather(net->ctx, logits, labels);
    jem_tensor *logp = jem__logp(net, logits);
    return jem_add(net->ctx, logp, jem__label(net, logits, labels));
}

/* A network's first field points at itself; jem_class_of and jem_guide begin with a pointer to a
   network. So either can be told from the other before anything else of it is read. */
static jem_net *jem__net_of(jem_ctx *ctx, const char *what, void *user, int is_struct) {
    if (!user)
        return (jem_net *)jem__null(ctx, JEM_BAD_ARGUMENT, "%s: user is NULL", what);
    jem_net *first;
    memcpy(&first, user, sizeof first);
    if (is_struct ? first && first != user : first == user) return first;
    jem__fail(ctx, JEM_BAD_ARGUMENT, "%s: user must point to a %s, and this is %s", what,
              is_struct ? "struct of a network and labels" : "jem_net", !first ? "none: net is NULL"
              : is_struct ? "a jem_net itself" : "something else, or a network after jem_net_free");
    return NULL;
}

jem_tensor *jem_logp(jem_ctx *ctx, jem_tensor *x, void *user) {
    jem_net *net = jem__net_of(ctx, "logp", user, 0);
    return net ? jem__logp(net, jem_forward(net, x, 0)) : NULL;
}
jem_tensor *jem_logp_class(jem_ctx *ctx, jem_tensor *x, void *class_of) {
    jem_net *net = jem__net_of(ctx, "logp_class", class_of, 1);
    if (!net) return NULL;
    jem_tensor *logits = jem_forward(net, x, 0);
    return jem__joint(net, logits, ((const jem_class_of *)class_of)->labels);
}
jem_tensor *jem_logp_label(jem_ctx *ctx, jem_tensor *x, void *class_of) {
    jem_net *net = jem__net_of(ctx, "logp_label", class_of, 1);
    return net ? jem__label(net, jem_forward(net, x, 0), ((const jem_class_of *)class_of)->labels)
               : NULL;
}
jem_tensor *jem_log_odds(jem_ctx *ctx, jem_tensor *x, void *class_of) {
    jem_net *net = jem__net_of(ctx, "log_odds", class_of, 1);
    return net ? jem__odds(net, jem_forward(net, x, 0), ((const jem_class_of *)class_of)->labels)
               : NULL;
}
jem_tensor *jem_logp_guided(jem_ctx *ctx, jem_tensor *x, void *guide) {
    jem_net *net = jem__net_of(ctx, "logp_guided", guide, 1);
    if (!net) return NULL;
    const jem_guide *g = (const jem_guide *)guide;
    jem_tensor *logits = jem_forward(net, x, 0), *logp = jem__logp(net, logits);
    return jem_add(ctx, logp, jem_scale(ctx, jem__label(net, logits, g->labels), g->weight));
}

jem_tensor *jem_cross_entropy(jem_ctx *ctx, jem_tensor *logits, const int *labels) {
    jem_tensor *logp = jem_logsumexp(ctx, logits);
    return jem_mean(ctx, jem_sub(ctx, logp, jem_gather(ctx, logits, labels)));
}

jem_tensor *jem_contrastive(jem_ctx *ctx, jem_tensor *logp_data, jem_tensor *logp_sample) {
    jem_tensor *f_data = jem_mean(ctx, logp_data);
    return jem_sub(ctx, jem_mean(ctx, logp_sample), f_data);
}

/* sum + weight*term, where either may not be there */
static jem_tensor *jem__accumulate(jem_ctx *ctx, jem_tensor *sum, float weight, jem_tensor *term) {
    if (!term || weight == 0) return sum;
    if (weight != 1) term = jem_scale(ctx, term, weight);
    return sum ? jem_add(ctx, sum, term) : term;
}

/* The sum of those terms that have a weight and what they need, or NULL. */
static jem_tensor *jem__loss(jem_net *net, const jem_loss_weights *w, jem_tensor *x,
                             const int *labels, jem_tensor *x_data, jem_tensor *x_sample,
                             const int *sample_labels, jem_loss_terms *t) {
    jem_ctx *ctx = net->ctx;
    jem_tensor *sum = NULL, *logp_sample = NULL, *cd_class = NULL;
    t->logits = jem_forward(net, x, 1);
    if (t->logits && labels) t->ce = jem_cross_entropy(ctx, t->logits, labels);
    jem_tensor *logp = jem__logp(net, x_data ? jem_forward(net, x_data, 1) : t->logits);
    t->f_data = jem_mean(ctx, logp);
    if (x_sample) {
        jem_tensor *logits = jem_forward(net, x_sample, 1);
        logp_sample = jem__logp(net, logits);
        t->f_sample = jem_mean(ctx, logp_sample);
        if (t->logits && labels && sample_labels && w->cd_class != 0) {
            jem_tensor *joint = jem__joint(net, t->logits, labels);
            cd_class = jem_contrastive(ctx, joint, jem__joint(net, logits, sample_labels));
        }
    }
    sum = jem__accumulate(ctx, sum, w->ce, t->ce);
    sum = jem__accumulate(ctx, sum, w->cd, jem_sub(ctx, t->f_sample, t->f_data));
    sum = jem__accumulate(ctx, sum, w->cd_class, cd_class);
    for (int i = 0; i < 2 && w->energy_l2 > 0; i++)
        sum = jem__accumulate(ctx, sum, w->energy_l2,
                              jem_mean(ctx, jem_square(ctx, i ? logp_sample : logp)));
    return sum;
}
static jem_tensor *jem__loss_sum(jem_ctx *ctx, jem_tensor *sum) {
    if (jem_ok(ctx) && !sum)
        jem__fail(ctx, JEM_BAD_ARGUMENT, "loss: no term of it has a weight and what it needs");
    return jem_ok(ctx) ? sum : NULL;
}
jem_tensor *jem_loss(jem_net *net, const jem_loss_weights *w, jem_tensor *x, const int *labels,
                     jem_tensor *x_data, jem_tensor *x_sample, const int *sample_labels,
                     jem_loss_terms *terms) {
    JEM__ZEROED(jem_loss_terms, t);
    jem_tensor *sum = NULL;
    if (net && w) sum = jem__loss(net, w, x, labels, x_data, x_sample, sample_labels, &t);
    if (terms) *terms = t;
    if (net && !w) jem__fail(net->ctx, JEM_BAD_ARGUMENT, "loss: weights is NULL");
    return net ? jem__loss_sum(net->ctx, sum) : NULL;
}

/* ---- noise ----------------------------------------------------------------------------------- */

/* Random numbers for a tensor: every group has counters of its own, on every rank. */
static uint64_t jem__group_counters(const jem__node *x) {
    return (uint64_t)(x->stride + 31) / 32 * 16;
}
static uint64_t jem__take_counters(const jem__node *x, jem_rng *rng) {
    const uint64_t counters = jem__group_counters(x) * (uint64_t)x->groups;
    const jem_ctx *ctx = x->t.ctx;
    return jem__rng_take(rng, (ptrdiff_t)(counters * 2) * (1 + ctx->others)) +
           counters * (uint64_t)ctx->rank;
}

static float jem__sigma(const jem__node *x, const float *sigma, int group, int lane) {
    const int i = group * JEM_LANES + lane;
    return sigma[i < x->t.n ? i : x->t.n - 1];
}

/* Is there what a walk needs? Otherwise it is an error. rng: there is one, or none is needed. */
static int jem__walk_ready(jem_ctx *ctx, const char *what, jem_logp_fn logp, const jem_tensor *x,
                           int rng) {
    if (!ctx || ctx->status != JEM_OK) return 0;
    if (logp && jem__is_leaf(x, what) && rng) return 1;
    jem__fail(ctx, JEM_BAD_ARGUMENT, "%s: needs a log-density, a leaf x%s", what,
              rng ? "" : ", an rng");
    return 0;
}

/* log p of the images of the leaf x; NULL and an error if there is none. And its slope. */
static jem_tensor *jem__density(jem_ctx *ctx, const char *what, jem_logp_fn logp, void *user,
                                jem_tensor *x) {
    jem_tensor *y = x ? logp(ctx, x, user) : NULL;
    if (!x || (y && y->n == x->n && y->c == 1 && y->h == 1 && y->w == 1)) return y;
    return (jem_tensor *)jem__null(ctx, JEM_BAD_SHAPE, "%s: the log-density made %s of x %s", what,
                                   y ? jem__shape_text(y).s : "nothing", jem__shape_text(x).s);
}
static jem_tensor *jem__with_slope(jem_ctx *ctx, const char *what, jem_logp_fn logp, void *user,
                                   jem_tensor *x) {
    jem_tensor *y = jem__density(ctx, what, logp, user, x);
    return jem_grad(y, x) == JEM_OK ? y : NULL;
}

/* Noise, or a step of a walk (>>samplers). */
typedef struct jem__walk {
    jem__node *x;
    const float *sigma;                            /* [n]: noise alone, of each image; or NULL */
    jem__langevin d;                               /* a step. Noise-blind: for sigma = 1, to be */
    float sigma_max;                               /* multiplied by each image's; 0: it is not */
    const jem_rng *rng;
    uint64_t start;
} jem__walk;

static void jem__walk_group(void *arg, int g) {
    const jem__walk *w = (const jem__walk *)arg;
    const jem__kernels *k = w->x->t.ctx->k;
    const ptrdiff_t n = w->x->stride;
    float *x = w->x->value + g * n, squares[JEM_LANES];
    const float *grad = w->sigma ? x : w->x->grad + g * n;
    jem__langevin d = w->d;
    for (int l = 0; w->sigma && l < JEM_LANES; l++) d.noise[l] = jem__sigma(w->x, w->sigma, g, l);
    if (w->sigma_max > 0) {                        /* ||g|| = sqrt(pixels) / sigma */
        k->dot(1, grad, grad, squares, 0, n);
        for (int l = 0; l < JEM_LANES; l++) {
            const float sigma = sqrtf((float)(n / JEM_LANES) / squares[l]);
            const float s = sigma < w->sigma_max ? sigma : w->sigma_max;
            d.step[l] *= s * s, d.noise[l] *= s;
        }
    }
    k->langevin(x, grad, n, &d, w->rng ? w->rng->key : NULL,
                w->start + (uint64_t)g * jem__group_counters(w->x));
    jem__fill_dead(x, n, jem__live_lanes(w->x->t.n, g));
}

static void jem__walk_step(jem__walk *w, jem_rng *rng) {
    jem__node *x = w->x;
    w->rng = rng, w->start = rng ? jem__take_counters(x, rng) : 0;
    jem__parallel(x->t.ctx, x->groups, 50 * (double)(x->groups * x->stride), jem__walk_group, w);
    jem__leaf_changed(x);
}

jem_status jem_add_noise(jem_tensor *leaf, const float *sigma, jem_rng *rng) {
    if (!leaf) return JEM_BAD_ARGUMENT;
    if (!jem__live(leaf, "add_noise")) return leaf->ctx->status;
    if (!sigma || !rng)
        return jem__fail(leaf->ctx, JEM_BAD_ARGUMENT, "add_noise: sigma or rng is NULL");
    if (leaf->node->op)
        return jem__fail(leaf->ctx, JEM_BAD_ARGUMENT, "add_noise: %s is computed (by %s), not a "
                         "leaf", jem__shape_text(leaf).s, leaf->node->op->name);
    for (int i = 0; i < leaf->n; i++)
        if (!jem__finite(sigma[i]))
            return jem__fail(leaf->ctx, JEM_BAD_ARGUMENT, "add_noise: sigma[%d] = %g", i,
                             (double)sigma[i]);
    JEM__ZEROED(jem__walk, w);
    w.x = leaf->node, w.sigma = sigma;
    jem__walk_step(&w, rng);
    return JEM_OK;
}

/* ---- score matching -------------------------------------------------------------------------- */
/* With g = d log p(x~)/dx~ and r = sigma g + z the loss of an image is 1/2 ||r||^2, and with the
   direction u = r/||r||

       d/d theta 1/2 ||r||^2 = r . d(sigma g)/d theta = sigma ||r|| d/d theta (u . g)

   u . g is the slope of log p along u: a difference of two ordinary passes, h to either side,

       u . g = [log p(x~ + h u) - log p(x~ - h u)] / 2h + O(h^2),      h = step sigma sqrt(pixels)

   so that two batches of n images, weighted by +- sigma ||r||/2h, stand for the second derivative.
   jem_slope_along is the same along any directions.
   The kernel of Langevin steps does all of it: noise is a step without a slope, r = 0 + sigma g + z
   is a step from 0, x~ +- h u are steps along r. z is made twice from its counters, not kept. */

typedef struct jem__score_group { float rr[JEM_LANES], rg[JEM_LANES]; } jem__score_group;

/* The two sides, and a weight of every image: weight (log p(plus) - log p(minus)) is the loss. */
typedef struct jem__apart { jem_tensor *plus, *minus, *w; } jem__apart;

typedef struct jem__score {
    const jem__node *x;
    jem__node *noisy;
    jem__apart at;
    jem__score_group *group;                       /* r.r and r.g of every image */
    const float *sigma;
    const uint32_t *key;
    uint64_t start;
    float step;                                    /* h / sigma */
} jem__score;

static int jem__apart_open(jem__apart *p, const jem_tensor *x, const char *what) {
    p->plus = jem__leaf(x->ctx, what, jem__shape_of(x));
    p->minus = jem__leaf(x->ctx, what, jem__shape_of(x));
    p->w = jem__leaf(x->ctx, what, jem__shape(x->n, 1, 1, 1));
    return p->plus && p->minus && p->w;
}

static jem_tensor *jem__apart_sum(jem_ctx *ctx, const jem__apart *p, jem_logp_fn logp, void *user) {
    jem_tensor *plus = logp(ctx, p->plus, user), *minus = logp(ctx, p->minus, user);
    return jem_sum(ctx, jem_mul(ctx, jem_sub(ctx, plus, minus), p->w));
}

/* For a group: x + h r/||r|| in place of r, x - h r/||r|| -> minus, r . r -> rr; x is lost. */
static void jem__sides(const jem__kernels *k, ptrdiff_t n, float *x, float *r, float *minus,
                       const float *h, float *rr) {
    JEM__ZEROED(jem__langevin, d);
    memcpy(minus, x, (size_t)n * sizeof *x);
    k->dot(1, r, r, rr, 0, n);
    for (int l = 0; l < JEM_LANES; l++) d.step[l] = rr[l] > 0 ? -h[l] / sqrtf(rr[l]) : 0;
    k->langevin(minus, r, n, &d, NULL, 0);
    for (int l = 0; l < JEM_LANES; l++) d.step[l] = -d.step[l];
    k->langevin(x, r, n, &d, NULL, 0);
    memcpy(r, x, (size_t)n * sizeof *x);
}

static void jem__score_pair(void *arg, int g) {
    const jem__score *s = (const jem__score *)arg;
    const jem__kernels *k = s->x->t.ctx->k;
    const ptrdiff_t n = s->x->stride;
    const float *grad = s->noisy->grad + g * n;
    float *r = s->at.plus->node->value + g * n, h[JEM_LANES];
    jem__score_group *q = s->group + g;
    JEM__ZEROED(jem__langevin, d);
    memset(r, 0, (size_t)n * sizeof *r);
    for (int l = 0; l < JEM_LANES; l++)
        d.step[l] = jem__sigma(s->x, s->sigma, g, l), d.noise[l] = 1;
    k->langevin(r, grad, n, &d, s->key, s->start + (uint64_t)g * jem__group_counters(s->x));
    k->dot(1, r, grad, q->rg, 0, n);
    for (int l = 0; l < JEM_LANES; l++) h[l] = s->step * d.step[l];
    jem__sides(k, n, s->noisy->value + g * n, r, s->at.minus->node->value + g * n, h, q->rr);
}

void jem_noise_levels(jem_rng *rng, int n, float lo, float hi, float *sigma) {
    const double ratio = log((double)hi / (double)lo);
    for (int i = 0; sigma && i < n; i++) {         /* one of each n-th: less spread in the loss */
        const double part = ((double)i + (double)jem_rng_uniform(rng)) / n;
        sigma[i] = (float)((double)lo * exp(ratio * part));
    }
}

/* The weights of the pair; and what is missing between the sum of the weighted differences, which
   is mean weight (r . sigma g), and the loss, which is mean weight 1/2 ||r||^2: a constant. */
static double jem__score_weights(const jem__score *s, const jem_score_desc *d, double *residual) {
    const int n = s->x->t.n;
    double missing = *residual = 0;
    for (int i = 0; i < n; i++) {
        const jem__score_group *q = s->group + i / JEM_LANES;
        const int l = i % JEM_LANES;
        const double weight = (d->weight ? (double)d->weight[i] : 1) / n, rr = (double)q->rr[l];
        s->at.w->node->value[i] = (float)(weight * sqrt(rr) / (2 * (double)s->step));
        missing += weight * fma((double)-s->sigma[i], (double)q->rg[l], 0.5 * rr);
        *residual += rr / n;
    }
    return missing;
}

jem_tensor *jem_score_matching(jem_ctx *ctx, jem_logp_fn logp, void *user, jem_tensor *x,
                               const jem_score_desc *desc, jem_rng *rng, float *residual) {
    const char *const what = "score_matching";
    if (!jem__walk_ready(ctx, what, logp, x, rng != NULL)) return NULL;
    int bad = !desc || !desc->sigma || desc->difference < 0;
    for (int i = 0; !bad && i < x->n; i++) bad = !(desc->sigma[i] > 0 && desc->sigma[i] < 1e6f);
    if (bad)
        return (jem_tensor *)jem__null(ctx, JEM_BAD_ARGUMENT, "%s: needs a noise level above 0 for "
                                       "each image, and a step >= 0", what);
    const int pixels = x->c * x->h * x->w, groups = x->node->groups;
    jem__score s;
    jem_rng same = *rng;
    s.x = x->node, s.sigma = desc->sigma, s.key = rng->key;
    s.start = jem__take_counters(s.x, &same);
    /* a long step errs as its square, a short one drowns in rounding: tests/test_score.c */
    s.step = desc->difference > 0 ? desc->difference : jem_ctx_precision(ctx) ==
        JEM_PRECISION_BF16 ? 0.1f : 0.03f;
    s.step *= sqrtf((float)pixels);
    s.group = (jem__score_group *)jem__push_zero(ctx, (size_t)groups * sizeof *s.group);
    if (!jem__apart_open(&s.at, x, what) || !s.group) return NULL;
    const double work = 50 * (double)(groups * s.x->stride);
    const jem_mark mark = jem_begin(ctx);
    jem_tensor *noisy = jem__leaf(ctx, what, jem__shape_of(x));
    s.noisy = noisy ? noisy->node : NULL;
    if (noisy)
        memcpy(noisy->node->value, x->node->value, (size_t)(groups * s.x->stride) * sizeof(float));
    jem_add_noise(noisy, desc->sigma, rng);
    if (jem__with_slope(ctx, what, logp, user, noisy))
        jem__parallel(ctx, groups, work, jem__score_pair, &s);
    jem_end(ctx, mark);
    if (ctx->status != JEM_OK) return NULL;
    double rr;
    const double missing = jem__score_weights(&s, desc, &rr);
    if (residual) *residual = (float)(rr / pixels);
    return jem_add_constant(ctx, jem__apart_sum(ctx, &s.at, logp, user), (float)missing);
}

jem_tensor *jem_slope_along(jem_ctx *ctx, jem_logp_fn logp, void *user, jem_tensor *x,
                            jem_tensor *v,
                      float h) {
    const char *const what = "slope";
    if (!jem__walk_ready(ctx, what, logp, x, 1) || !JEM__IN(h, 0, 1e6)) return NULL;
    if (!jem__is_leaf(v, what) || v->n != x->n || v->c != x->c || v->h != x->h || v->w != x->w)
        return (jem_tensor *)jem__null(ctx, JEM_BAD_ARGUMENT, "slope: x and v must be leaves of "
                                       "one shape");
    const ptrdiff_t n = x->node->stride;
    const float usual = jem_ctx_precision(ctx) == JEM_PRECISION_BF16 ? 0.01f : 0.003f;
    jem__apart p;
    float *at = jem__push_floats(ctx, n), rr[JEM_LANES], far[JEM_LANES];
    if (!jem__apart_open(&p, x, what) || !at) return NULL;
    if (h == 0) h = usual * sqrtf((float)(n / JEM_LANES));
    for (int l = 0; l < JEM_LANES; l++) far[l] = h;
    for (int g = 0; g < x->node->groups; g++) {
        float *r = p.plus->node->value + g * n;
        memcpy(at, x->node->value + g * n, (size_t)n * sizeof *at);
        memcpy(r, v->node->value + g * n, (size_t)n * sizeof *at);
        jem__sides(ctx->k, n, at, r, p.minus->node->value + g * n, far, rr);
        for (int l = 0; l < JEM_LANES; l++)
            p.w->node->value[g * JEM_LANES + l] = sqrtf(rr[l]) / (2 * h);
    }
    return jem__apart_sum(ctx, &p, logp, user);
}

/* ==== >>samplers: SGLD, noise-blind sampling, replay buffer =================================== */

jem_sgld_desc jem_sgld_desc_default(void) {
    JEM__ZEROED(jem_sgld_desc, d);
    d.steps = 20;
    d.step_size = 1;
    d.noise_std = 0.01f;
    return d;
}

jem_sgld_desc jem_sgld_desc_langevin(float a, int steps) {
    jem_sgld_desc d = jem_sgld_desc_default();
    d.steps = steps;
    d.step_size = a / 2;
    d.noise_std = sqrtf(a);
    return d;
}

jem_denoise_desc jem_denoise_desc_default(void) {
    JEM__ZEROED(jem_denoise_desc, d);
    d.steps = 300;
    d.fraction = 0.05f;
    d.beta = 0.3f;
    d.sigma_max = 2;
    return d;
}

jem_denoise_desc jem_denoise_desc_clean(float sigma) {
    jem_denoise_desc d = jem_denoise_desc_default();
    d.steps = 1;
    d.fraction = 0.8f;
    d.sigma_max = sigma;
    return d;
}

/* Computes the size and noise of step number `step`, with decay and annealing. */
static void jem__sgld_sizes(const jem_sgld_desc *d, int step, float *size, float *noise) {
    const double hot = (double)d->temperature_from, b = (double)d->decay_b;
    double progress = 1, temperature = 1, decay = 1;
    if (d->steps > 1) progress = step / (d->steps - 1.0);
    if (hot > 0) temperature = hot * pow((double)d->temperature_to / hot, progress);
    if (b > 0) decay = pow(1 + step / b, -(double)d->decay_gamma);
    *size = d->step_size * (float)decay;
    *noise = d->noise_std * (float)sqrt(decay * temperature);
}

/* Walks with the step and noise of d if sigma_max is 0. Otherwise walks noise-blind: the step and
   noise of d are multiples of the estimated sigma, which sigma_max limits. Many parameters: those
   of jem_sgld, the name of the walk, and sigma_max. */
static jem_status jem__walk_all(jem_ctx *ctx, jem_logp_fn logp, void *user, jem_tensor *x,
                                const jem_sgld_desc *d, jem_rng *rng, const char *what,
                                float sigma_max) {
    JEM__ZEROED(jem__walk, w);
    w.x = x->node;
    w.sigma_max = sigma_max;
    w.d.clamp_grad = d->clamp_grad;
    w.d.lo = d->clamp_lo;
    w.d.hi = d->clamp_hi;
    for (int step = 0; step < d->steps && ctx->status == JEM_OK; step++) {
        jem_mark mark = jem_begin(ctx);
        float size, noise;
        jem__sgld_sizes(d, step, &size, &noise);
        for (int l = 0; l < JEM_LANES; l++) {
            w.d.step[l] = size;
            w.d.noise[l] = noise;
        }
        if (jem__with_slope(ctx, what, logp, user, x))
            jem__walk_step(&w, d->noise_std != 0 ? rng : NULL);
        jem_end(ctx, mark);
        if (ctx->status == JEM_OK && d->watch && d->watch(d->watch_user, step, x)) break;
    }
    if (ctx->status == JEM_OK && !jem__all_finite(w.x->value, w.x->groups * w.x->stride))
        jem__fail(ctx, JEM_DIVERGED, "%s: x %s is not finite after %d steps of %g", what,
                  jem__shape_text(x).s, d->steps, (double)d->step_size);
    return ctx->status;
}

/* Check the desc of a walk: return 1 if it is valid, otherwise report the invalid field. */
static int jem__sgld_good(jem_ctx *ctx, const char *what, jem_sgld_desc d) {
    return JEM__IN(d.steps, 0, INT32_MAX) && JEM__IN(d.step_size, -JEM__MOST, JEM__MOST) &&
           JEM__IN(d.noise_std, 0, JEM__MOST) && JEM__IN(d.clamp_grad, 0, JEM__MOST) &&
           JEM__IN(d.clamp_hi, d.clamp_lo, JEM__MOST) && JEM__IN(d.temperature_from, 0,
                                                                 JEM__MOST) &&
           JEM__IN(d.decay_b, 0, JEM__MOST) && JEM__IN(d.decay_gamma, 0, JEM__MOST) &&
           JEM__IN(d.temperature_to, d.temperature_from > 0 ? JEM__TINY : 0, JEM__MOST);
}
static int jem__denoise_good(jem_ctx *ctx, const char *what, jem_denoise_desc d) {
    return JEM__IN(d.steps, 0, INT32_MAX) && JEM__IN(d.fraction, JEM__TINY, 1) &&
           JEM__IN(d.beta, 0, 1) && JEM__IN(d.sigma_max, JEM__TINY, JEM__MOST);
}

jem_status jem_sgld(jem_ctx *ctx, jem_logp_fn logp, void *user, jem_tensor *x,
                    const jem_sgld_desc *desc,
                    jem_rng *rng) {
    const jem_sgld_desc d = desc ? *desc : jem_sgld_desc_default();
    const char *const what = "sgld";
    if (!jem__walk_ready(ctx, what, logp, x, 1) || !jem__sgld_good(ctx, what, d))
        return jem_error_status(ctx);
    return jem__walk_all(ctx, logp, user, x, &d, rng, what, 0);
}

/* Subtracts d (entropy H)/dx from v, which moves each sample and its nearest neighbour apart.
   Returns entropy H, up to a constant. */
static double jem__drift_apart(const jem__node *x, double entropy, float *v) {
    const double weight = entropy * (double)(x->stride / JEM_LANES) / x->t.n;
    double sum = 0;
    for (int i = 0; i < x->t.n; i++) {
        const ptrdiff_t own = i / JEM_LANES * x->stride + i % JEM_LANES;
        ptrdiff_t nearest = -1;
        double least = HUGE_VAL;                   /* squared distance to the nearest sample */
        for (int j = 0; j < x->t.n; j++) {
            const ptrdiff_t at = j / JEM_LANES * x->stride + j % JEM_LANES;
            double square = 0;
            for (ptrdiff_t k = 0; k < x->stride && square < least; k += JEM_LANES) {
                const double offset = (double)x->value[own + k] - (double)x->value[at + k];
                square = fma(offset, offset, square);
            }
            if (square > 0 && square < least) {
                least = square;
                nearest = at;
            }
        }
        if (nearest < 0) continue;                 /* all samples are equal */
        const float push = (float)(weight / least);
        sum = fma(weight / 2, log(least), sum);
        for (ptrdiff_t k = 0; k < x->stride; k += JEM_LANES) {
            const float offset = x->value[own + k] - x->value[nearest + k];
            v[own + k] = jem__fmaf(-push, offset, v[own + k]);
            v[nearest + k] = jem__fmaf(push, offset, v[nearest + k]);
        }
    }
    return sum;
}

/* Computes v = step_size dL_KL/dx, with 0 where a limit clamps the step. By the chain rule
   d/d theta L_KL = v . d/d theta (gradient of log p at the last step). */
jem_tensor *jem_kl_walk(jem_ctx *ctx, jem_logp_fn logp, void *user, jem_tensor *x,
                        const jem_sgld_desc *desc, float entropy, jem_rng *rng) {
    jem_sgld_desc d = desc ? *desc : jem_sgld_desc_default(), last = d;
    const char *const what = "kl_walk";
    if (!ctx || !JEM__IN(d.steps, 1, INT32_MAX) || !JEM__IN(entropy, 0, JEM__MOST) ||
        !JEM__IN(d.temperature_from, 0, 0) || !JEM__IN(d.decay_b, 0, 0)) return NULL;
    d.steps--;
    last.steps = 1;
    last.watch = NULL;
    if (jem_sgld(ctx, logp, user, x, &d, rng) != JEM_OK) return NULL;
    jem__node *node = x->node;
    const ptrdiff_t size = node->groups * node->stride;
    if (!node->grad) {                             /* allocated here to outlive the step */
        node->grad = jem__push_floats(ctx, size);
        node->grad_push = ctx->pushes;
    }
    jem_tensor *before = jem__leaf(ctx, "kl_walk", jem__shape_of(x));
    jem_tensor *direction = jem__leaf(ctx, "kl_walk", jem__shape_of(x));
    float *gradient = jem__push_floats(ctx, size), *f = jem__push_floats(ctx, x->n);
    if (!before || !direction || !gradient || !f) return NULL;
    memcpy(before->node->value, node->value, (size_t)size * sizeof *f);
    if (jem_sgld(ctx, logp, user, x, &last, rng) != JEM_OK) return NULL;
    memcpy(gradient, node->grad, (size_t)size * sizeof *f);
    if (d.watch) d.watch(d.watch_user, d.steps, x);
    const jem_mark mark = jem_begin(ctx);
    jem_read(jem__with_slope(ctx, what, logp, user, x), f);
    jem_end(ctx, mark);
    if (ctx->status != JEM_OK) return NULL;
    float *v = direction->node->value;
    double value = 0;
    for (int i = 0; i < x->n; i++) value -= (double)f[i] / x->n;
    for (ptrdiff_t i = 0; i < size; i++) v[i] = -node->grad[i] / (float)x->n;
    if (entropy > 0) value -= jem__drift_apart(node, (double)entropy, v);
    for (ptrdiff_t i = 0; i < size; i++) {
        const int clamped = (d.clamp_grad > 0 && fabsf(gradient[i]) >= d.clamp_grad) ||
            (d.clamp_lo < d.clamp_hi && (node->value[i] <= d.clamp_lo ||
                                         node->value[i] >= d.clamp_hi));
        v[i] *= d.step_size;
        if (clamped) v[i] = 0;
        value = fma((double)-v[i], (double)gradient[i], value);
    }
    return jem_add_constant(ctx, jem_slope_along(ctx, logp, user, before, direction, 0),
                            (float)value);
}

jem_status jem_denoise(jem_ctx *ctx, jem_logp_fn logp, void *user, jem_tensor *x,
                       const jem_denoise_desc *desc, jem_rng *rng) {
    const jem_denoise_desc d = desc ? *desc : jem_denoise_desc_default();
    const char *const what = "denoise";
    if (!jem__walk_ready(ctx, what, logp, x, 1) || !jem__denoise_good(ctx, what, d))
        return jem_error_status(ctx);
    /* The step leaves the fraction `remaining` of the noise, and adds noise up to `target`. The
       variance to add is target^2 - remaining^2 = (target + remaining)(target - remaining). */
    const float remaining = 1 - d.fraction, target = jem__fmaf(-d.beta, d.fraction, 1);
    JEM__ZEROED(jem_sgld_desc, walk);
    walk.steps = d.steps;
    walk.step_size = d.fraction;
    walk.watch = d.watch;
    walk.watch_user = d.watch_user;
    if (rng) walk.noise_std = sqrtf((target + remaining) * (target - remaining));
    return jem__walk_all(ctx, logp, user, x, &walk, rng, what, d.sigma_max);
}

jem_generate_desc jem_generate_desc_default(void) {
    JEM__ZEROED(jem_generate_desc, d);
    d.denoise = jem_denoise_desc_default();
    d.walk = jem_sgld_desc_default();
    d.walk.steps = 300;
    d.walk.step_size = 0.01f;
    d.walk.noise_std = 0.1f;
    d.last_sigma = 0.24f;
    return d;
}

jem_status jem_generate(jem_ctx *ctx, jem_logp_fn logp, void *user, jem_tensor *x,
                     const jem_generate_desc *desc, jem_rng *rng) {
    const jem_generate_desc d = desc ? *desc : jem_generate_desc_default();
    const char *const what = "fresh";
    if (!jem__walk_ready(ctx, what, logp, x, rng != NULL) || !JEM__IN(d.lo, -1e4, 1e4) ||
        !JEM__IN(d.hi, d.lo, 1e4) || !JEM__IN(d.mean, -1e4, 1e4) ||
        !JEM__IN(d.last_sigma, 0, JEM__MOST) || !jem__denoise_good(ctx, "fresh: denoise",
                                                                   d.denoise) ||
        !jem__sgld_good(ctx, "fresh: walk", d.walk)) return jem_error_status(ctx);
    const jem_denoise_desc last = jem_denoise_desc_clean(d.last_sigma);
    const ptrdiff_t size = (ptrdiff_t)x->n * x->c * x->h * x->w;
    const jem_mark mark = jem_begin(ctx);
    float *pixels = jem__push_floats(ctx, size), *sigma = jem__push_floats(ctx, x->n);
    const int uniform = d.lo < d.hi, ready = pixels && sigma;
    if (ready && uniform) jem_fill_uniform(ctx, rng, pixels, size, d.lo, d.hi);
    for (ptrdiff_t i = 0; ready && !uniform && i < size; i++) pixels[i] = d.mean;
    for (int i = 0; ready && i < x->n; i++) sigma[i] = d.denoise.sigma_max;
    jem_status s = ready ? jem_write(x, pixels) : JEM_NO_MEMORY;
    if (s == JEM_OK && !uniform) s = jem_add_noise(x, sigma, rng);
    if (s == JEM_OK) s = jem_denoise(ctx, logp, user, x, &d.denoise, rng);
    if (s == JEM_OK) s = jem_sgld(ctx, logp, user, x, &d.walk, rng);
    if (s == JEM_OK && d.last_sigma > 0) s = jem_denoise(ctx, logp, user, x, &last, NULL);
    jem_end(ctx, mark);
    return s;
}

/* ---- the replay buffer ----------------------------------------------------------------------- */

static ptrdiff_t jem__buffer_image(const jem_buffer *b) {
    return (ptrdiff_t)b->channels * b->height * b->width;
}

jem_buffer *jem_buffer_create(jem_ctx *ctx, int capacity, int channels, int height, int width,
                              int classes, jem_rng *rng) {
    if (!ctx) return NULL;
    if (capacity < 1 || channels < 1 || height < 1 || width < 1 || classes < 0 ||
        (double)capacity * channels * height * width > fmin(1e12, (double)JEM__FLOATS) ||
        (classes > 0 && capacity < classes) || !rng)
        return (jem_buffer *)jem__null(ctx, JEM_BAD_ARGUMENT, "buffer: capacity %d for %d classes "
                                       "of images (%d,%d,%d)%s", capacity, classes, channels,
                                       height, width, rng ? "" : ", and no rng");
    jem_buffer *b = (jem_buffer *)jem__alloc(ctx, sizeof *b);
    if (!b) return NULL;
    b->ctx = ctx;
    b->capacity = capacity;
    b->classes = classes;
    b->channels = channels;
    b->height = height;
    b->width = width;
    b->data = jem__alloc_floats(ctx, capacity * jem__buffer_image(b));
    b->visits = (int *)jem__alloc(ctx, (size_t)capacity * sizeof(int));
    if (!b->data || !b->visits) {
        jem_buffer_free(b);
        return NULL;
    }
    jem_buffer_restart(b, rng, -1, 1);
    return b;
}

jem_status jem_buffer_restart(jem_buffer *b, jem_rng *rng, float lo, float hi) {
    if (!b) return JEM_BAD_ARGUMENT;
    if (!rng || !(lo < hi) || !jem__finite(hi - lo))
        return jem__fail(b->ctx, JEM_BAD_ARGUMENT, "buffer_restart: U(%g,%g) is no range%s",
                         (double)lo, (double)hi, rng ? "" : ", or no rng");
    b->lo = lo;
    b->hi = hi;
    jem_fill_uniform(b->ctx, rng, b->data, b->capacity * jem__buffer_image(b), lo, hi);
    memset(b->visits, 0, (size_t)b->capacity * sizeof *b->visits);
    return JEM_OK;
}

void jem_buffer_free(jem_buffer *b) {
    if (!b) return;
    jem__free(b->ctx, b->data);
    jem__free(b->ctx, b->visits);
    jem__free(b->ctx, b);
}

/* Returns 1 if slot[i] occurs again later: only the chain of the last occurrence is kept. */
static int jem__drawn_again(const int *slot, int i, int n) {
    int k = i + 1;
    while (k < n && slot[k] != slot[i]) k++;
    return k < n;
}

/* Draws chains, and returns the visits of each one in `visits`: if a slot is drawn twice, only one
   of the two chains may be restarted. */
static void jem__buffer_draw(jem_buffer *b, jem_rng *rng, int n, const int *labels, float reinit,
                             float *x, int *slot, int *visits) {
    const ptrdiff_t size = jem__buffer_image(b);
    for (int i = 0; i < n; i++, x += size) {
        int first = 0, count = b->capacity;
        if (labels) {
            count /= b->classes;
            first = labels[i] * count;
        }
        slot[i] = first + jem_rng_below(rng, count);
        const int restart = jem_rng_uniform(rng) < reinit;
        visits[i] = 0;
        if (!restart && b->visits[slot[i]] > 0) visits[i] = b->visits[slot[i]];
        if (restart) jem_fill_uniform(b->ctx, rng, x, size, b->lo, b->hi);
        else memcpy(x, b->data + slot[i] * size, (size_t)size * sizeof *x);
    }
}
jem_status jem_buffer_draw(jem_buffer *b, jem_rng *rng, int n, const int *labels, float reinit,
                           float *x, int *slot) {
    if (!b) return JEM_BAD_ARGUMENT;
    if (!rng || n < 0 || !x || !slot)
        return jem__fail(b->ctx, JEM_BAD_ARGUMENT, "buffer_draw: %d chains, or NULL", n);
    const int by_class = labels && b->classes > 0;
    if (by_class && n && !jem__labels_good(b->ctx, "buffer_draw", labels, n, b->classes))
        return JEM_BAD_ARGUMENT;
    const jem_mark mark = jem_begin(b->ctx);
    int *visits = (int *)jem__push(b->ctx, (size_t)n * sizeof *visits);
    if (visits) jem__buffer_draw(b, rng, n, by_class ? labels : NULL, reinit, x, slot, visits);
    for (int i = 0; visits && i < n; i++)
        if (!jem__drawn_again(slot, i, n)) b->visits[slot[i]] = visits[i];
    jem_end(b->ctx, mark);
    return visits ? JEM_OK : b->ctx->status;
}

/* Stores chains; of several chains of one slot, the last. visits: as drawn, or NULL to continue the
   counts of the slots. */
static void jem__buffer_put(jem_buffer *b, int n, const int *slot, const int *visits,
                            const float *x) {
    const ptrdiff_t size = jem__buffer_image(b);
    for (int i = 0; i < n; i++) {
        if (jem__drawn_again(slot, i, n)) continue;
        memcpy(b->data + slot[i] * size, x + i * size, (size_t)size * sizeof *x);
        if (visits) b->visits[slot[i]] = visits[i];
        b->visits[slot[i]]++;
    }
}
jem_status jem_buffer_put(jem_buffer *b, int n, const int *slot, const float *x) {
    if (!b) return JEM_BAD_ARGUMENT;
    if (n < 0 || !slot || !x)
        return jem__fail(b->ctx, JEM_BAD_ARGUMENT, "buffer_put: %d chains, or NULL", n);
    for (int i = 0; i < n; i++)
        if (slot[i] < 0 || slot[i] >= b->capacity)
            return jem__fail(b->ctx, JEM_BAD_ARGUMENT, "buffer_put: slot %d is not in 0..%d",
                             slot[i], b->capacity - 1);
    jem__buffer_put(b, n, slot, NULL, x);
    return JEM_OK;
}

/* ---- exact samplers -------------------------------------------------------------------------- */

jem_mcmc_desc jem_mcmc_desc_default(void) {
    JEM__ZEROED(jem_mcmc_desc, d);
    d.steps = 1000;
    d.step_size = 0.1f;
    d.leapfrog = 1;
    d.temperatures = 1;
    d.hottest = 10;
    return d;
}

/* State of n chains of d numbers each: their current points, and the proposed ones (new_). */
typedef struct jem__mcmc {
    jem_ctx *ctx;
    jem_logp_fn logp;
    void *user;
    jem_tensor *leaf;
    int n;
    ptrdiff_t d;
    float *x, *g, *f;                              /* [n][d] points, gradients; [n] log p */
    float *new_x, *new_g, *new_f;
    float *momentum;                               /* [n][d] */
    float *coldness;                               /* [n] 1/temperature */
    int proposals;                                 /* proposals per chain so far */
    double *accepted;                              /* [n] accepted proposals */
    double *swaps;                                 /* [temperatures] swaps with the next one */
} jem__mcmc;

/* Computes log p at x in f, and its gradient in g unless g is NULL. */
static jem_status jem__density_at(jem__mcmc *m, const float *x, float *f, float *g) {
    if (jem_write(m->leaf, x) != JEM_OK) return m->ctx->status;
    const jem_mark mark = jem_begin(m->ctx);
    jem_tensor *y = jem__density(m->ctx, "mcmc", m->logp, m->user, m->leaf);
    if (g && jem_grad(y, m->leaf) == JEM_OK) jem_read_grad(m->leaf, g);
    jem_read(y, f);
    jem_end(m->ctx, mark);
    return m->ctx->status;
}

static jem_status jem__mcmc_open(jem__mcmc *m, jem_ctx *ctx, jem_logp_fn logp, void *user,
                                 jem_tensor *x, const jem_mcmc_desc *d) {
    m->ctx = ctx;
    m->logp = logp;
    m->user = user;
    m->leaf = x;
    m->n = x->n;
    m->d = (ptrdiff_t)x->c * x->h * x->w;
    float **const arrays[8] = { &m->x, &m->g, &m->new_x, &m->new_g, &m->momentum, &m->f, &m->new_f,
                                &m->coldness };
    for (int i = 0; i < 8; i++)
        *arrays[i] = jem__push_floats(ctx, i < 5 ? m->n * m->d : m->n);
    m->accepted = (double *)jem__push_zero(ctx, (size_t)m->n * sizeof *m->accepted);
    m->swaps = (double *)jem__push_zero(ctx, (size_t)d->temperatures * sizeof *m->swaps);
    if (m->g) memset(m->g, 0, (size_t)(m->n * m->d) * sizeof *m->g);
    for (int i = 0; m->coldness && i < m->n; i++)
        m->coldness[i] = (float)pow((double)d->hottest, -(double)(i % d->temperatures) /
                                                    (d->temperatures - 1 + (d->temperatures == 1)));
    if (ctx->status != JEM_OK || jem_read(x, m->x) != JEM_OK ||
        jem__density_at(m, m->x, m->f, d->leapfrog ? m->g : NULL) != JEM_OK) return ctx->status;
    for (int i = 0; i < m->n; i++)
        if (!jem__finite(m->f[i]))
            return jem__fail(ctx, JEM_DIVERGED, "mcmc: log p of image %d is not finite", i);
    return JEM_OK;
}

/* Makes a proposal for every chain. gain[i] is the logarithm of the acceptance ratio: with
   H = |momentum|^2/2 - log p/T, which exact dynamics would conserve, gain = H(old) - H(new). */
static jem_status jem__mcmc_propose(jem__mcmc *m, const jem_mcmc_desc *d, jem_rng *rng,
                                    double *gain) {
    const ptrdiff_t size = m->n * m->d;
    jem_fill_normal(m->ctx, rng, m->momentum, size, 0, 1);
    memcpy(m->new_x, m->x, (size_t)size * sizeof *m->x);
    memcpy(m->new_g, m->g, (size_t)size * sizeof *m->g);
    for (ptrdiff_t i = 0; i < m->n; i++) {
        gain[i] = 0;
        for (ptrdiff_t k = i * m->d; k < (i + 1) * m->d; k++)
            gain[i] = fma((double)m->momentum[k], 0.5 * (double)m->momentum[k], gain[i]);
    }
    for (int step = 0; step < d->leapfrog || step == 0; step++) {
        for (ptrdiff_t k = 0; k < size; k++) {
            const float root = sqrtf(m->coldness[k / m->d]), half = d->step_size / 2 * root;
            if (d->leapfrog) m->momentum[k] = jem__fmaf(half, m->new_g[k], m->momentum[k]);
            m->new_x[k] = jem__fmaf(d->step_size / root, m->momentum[k], m->new_x[k]);
        }
        if (jem__density_at(m, m->new_x, m->new_f, d->leapfrog ? m->new_g : NULL) != JEM_OK)
            return m->ctx->status;
        for (ptrdiff_t k = 0; d->leapfrog && k < size; k++)
            m->momentum[k] = jem__fmaf(d->step_size / 2 * sqrtf(m->coldness[k / m->d]), m->new_g[k],
                                       m->momentum[k]);
    }
    for (ptrdiff_t i = 0; i < m->n; i++) {
        for (ptrdiff_t k = i * m->d; k < (i + 1) * m->d; k++)
            gain[i] = fma((double)m->momentum[k], -0.5 * (double)m->momentum[k], gain[i]);
        gain[i] = fma((double)m->coldness[i], (double)m->new_f[i] - (double)m->f[i], gain[i]);
    }
    return JEM_OK;
}

/* Draws log U(0,1). If a draw of 24 bits is 0, the next draw supplies the following bits; log 0
   would accept a proposal of any ratio. */
static double jem__log_uniform(jem_rng *rng) {
    double unit = 1, u = (double)jem_rng_uniform(rng);
    while (!(u > 0) && unit > 1e-200) {
        unit /= 16777216;
        u = (double)jem_rng_uniform(rng);
    }
    return log(unit * u);
}

/* Decides for every second pair of neighbours in temperature whether they swap their points. */
static void jem__mcmc_exchange(jem__mcmc *m, const jem_mcmc_desc *d, int step, jem_rng *rng) {
    for (int i = 0; i + 1 < m->n; i++) {
        const int k = i % d->temperatures;
        if ((k ^ step) & 1 || k == d->temperatures - 1) continue;
        const double u = jem__log_uniform(rng);
        if (!(u < ((double)m->coldness[i] - (double)m->coldness[i + 1]) *
                  ((double)m->f[i + 1] - (double)m->f[i]))) continue;
        float *a[3] = { m->x + i * m->d, m->g + i * m->d, m->f + i };
        for (int j = 0; j < 3; j++)
            for (ptrdiff_t c = 0, size = j < 2 ? m->d : 1; c < size; c++) {
                const float swapped = a[j][c];
                a[j][c] = a[j][c + size];
                a[j][c + size] = swapped;
            }
        m->swaps[k]++;
    }
}

/* Computes the acceptance rates of chains and the swap rates of neighbouring temperatures. */
static void jem__mcmc_rates(const jem__mcmc *m, const jem_mcmc_desc *d, float *accepted) {
    for (int i = 0; accepted && i < m->n; i++)
        accepted[i] = m->proposals ? (float)(m->accepted[i] / m->proposals) : 0;
    for (int k = 0; d->swapped && k + 1 < d->temperatures; k++) {
        const double ladders = m->n / d->temperatures;
        /* Pair k may swap at every second proposal, from the first one if k is even. */
        const double rounds = m->proposals / 2 + (m->proposals & ~k & 1);
        d->swapped[k] = rounds > 0 ? (float)(m->swaps[k] / (rounds * ladders)) : 0;
    }
}

jem_status jem_mcmc(jem_ctx *ctx, jem_logp_fn logp, void *user, jem_tensor *x,
                    const jem_mcmc_desc *desc, jem_rng *rng, float *accepted) {
    const jem_mcmc_desc d = desc ? *desc : jem_mcmc_desc_default();
    const char *const what = "mcmc";
    if (!jem__walk_ready(ctx, what, logp, x, rng != NULL) || !JEM__IN(d.steps, 0, INT32_MAX) ||
        !JEM__IN(d.leapfrog, 0, INT32_MAX) || !JEM__IN(d.step_size, JEM__TINY, JEM__MOST) ||
        !JEM__IN(d.temperatures, 1, INT32_MAX) || !JEM__IN(d.hottest, 1, 1e30) ||
        !jem__in_range(ctx, what, "images modulo temperatures", x->n % d.temperatures, 0, 0))
        return jem_error_status(ctx);
    JEM__ZEROED(jem__mcmc, m);
    m.n = x->n;
    const jem_mark mark = jem_begin(ctx);
    double *gain = (double *)jem__push(ctx, (size_t)x->n * sizeof *gain);
    if (gain) jem__mcmc_open(&m, ctx, logp, user, x, &d);
    for (int step = 0; step < d.steps && ctx->status == JEM_OK; step++) {
        if (jem__mcmc_propose(&m, &d, rng, gain) != JEM_OK) break;
        for (int i = 0; i < m.n; i++) {            /* a NaN in gain rejects the proposal */
            const ptrdiff_t at = i * m.d;
            const size_t bytes = (size_t)m.d * sizeof(float);
            const double u = jem__log_uniform(rng);
            if (!(u < gain[i]) || !jem__finite(m.new_f[i])) continue;
            memcpy(m.x + at, m.new_x + at, bytes);
            memcpy(m.g + at, m.new_g + at, bytes);
            m.f[i] = m.new_f[i];
            m.accepted[i]++;
        }
        m.proposals++;
        if (d.temperatures > 1) jem__mcmc_exchange(&m, &d, step, rng);
        if (jem_write(x, m.x) != JEM_OK) break;
        if (d.watch && d.watch(d.watch_user, step, x)) break;
    }
    jem__mcmc_rates(&m, &d, accepted);
    jem_end(ctx, mark);
    return ctx->status;
}

jem_ais_desc jem_ais_desc_default(void) {
    JEM__ZEROED(jem_ais_desc, d);
    d.levels = 500;
    d.std = 1;
    d.walk = jem_mcmc_desc_default();
    d.walk.steps = 1;
    d.walk.leapfrog = 5;
    return d;
}

/* Density a log q + b log p between p and the normalised q = N(mean, std^2 I). */
typedef struct jem__bridge {
    jem_logp_fn logp;
    void *user;
    float a, b;
    float mean, std;
} jem__bridge;

static jem_tensor *jem__between(jem_ctx *ctx, jem_tensor *x, void *user) {
    const jem__bridge *s = (const jem__bridge *)user;
    const double log_norm = log((double)s->std * sqrt(6.283185307179586));     /* per pixel */
    jem_tensor *p = s->logp(ctx, x, s->user);
    jem_tensor *q = jem_sum_image(ctx, jem_square(ctx, jem_add_constant(ctx, x, -s->mean)));
    q = jem_scale(ctx, q, -0.5f / (s->std * s->std));
    q = jem_add_constant(ctx, q, (float)(-log_norm * x->c * x->h * x->w));
    return jem_add(ctx, jem_scale(ctx, q, s->a), jem_scale(ctx, p, s->b));
}

/* Computes the logarithm of the mean of exp(w[i]), its error, and the effective sample size. */
static void jem__ais_sum(const double *w, int n, jem_ais_result *r) {
    double top = w[0], sum = 0, squares = 0;
    for (int i = 1; i < n; i++) {
        if (w[i] > top) top = w[i];
    }
    for (int i = 0; i < n; i++) {
        const double e = exp(w[i] - top);
        sum += e;
        squares = fma(e, e, squares);
    }
    r->log_z = top + log(sum / n);
    r->chains = sum * sum / squares;
    r->error = HUGE_VAL;                           /* relative error of the mean */
    if (n > 1) r->error = sqrt(fmax((n / r->chains - 1) / (n - 1), 0));
}

jem_status jem_ais(jem_ctx *ctx, jem_logp_fn logp, void *user, jem_tensor *x,
                   const jem_ais_desc *desc,
                   jem_rng *rng, jem_ais_result *result) {
    const jem_ais_desc d = desc ? *desc : jem_ais_desc_default();
    const char *const what = "ais";
    if (!jem__walk_ready(ctx, what, logp, x, rng != NULL) || !JEM__IN(d.levels, 1, INT32_MAX) ||
        !JEM__IN(d.mean, -1e4, 1e4) || !JEM__IN(d.std, 1e-15, 1e15) ||
        !JEM__IN(d.walk.temperatures, 1, 1))
        return jem_error_status(ctx);
    if (!result) return jem__fail(ctx, JEM_BAD_ARGUMENT, "ais: result is NULL");
    jem_generate_desc start = jem_generate_desc_default();  /* fills x with noise, and no more */
    start.mean = d.mean;
    start.denoise.sigma_max = d.std;
    start.denoise.steps = start.walk.steps = 0;
    start.last_sigma = 0;
    jem__bridge s;
    s.logp = logp;
    s.user = user;
    s.mean = d.mean;
    s.std = d.std;
    const jem_mark mark = jem_begin(ctx);
    double *w = (double *)jem__push_zero(ctx, (size_t)x->n * sizeof *w);
    float *f = jem__push_floats(ctx, x->n);
    if (w && f) jem_generate(ctx, logp, user, x, &start, rng);
    for (int k = 1; k <= d.levels && ctx->status == JEM_OK; k++) {     /* b = (k/levels)^2 */
        const double to = (double)k / d.levels, from = (double)(k - 1) / d.levels;
        const double growth = (to - from) * (to + from);   /* of b */
        s.a = -1;
        s.b = 1;
        const jem_mark level = jem_begin(ctx);
        const jem_status status = jem_read(jem__density(ctx, what, jem__between, &s, x), f);
        jem_end(ctx, level);
        if (status != JEM_OK) break;
        for (int i = 0; i < x->n; i++) w[i] = fma(growth, (double)f[i], w[i]);
        s.b = (float)(to * to);
        s.a = 1 - s.b;
        jem_mcmc(ctx, jem__between, &s, x, &d.walk, rng, NULL);
    }
    if (ctx->status == JEM_OK) jem__ais_sum(w, x->n, result);
    jem_end(ctx, mark);
    return ctx->status;
}

/* ==== >>optim: Adam, SGD, schedules =========================================================== */

/* State of one parameter. */
typedef struct jem__moments {
    jem_param *param;
    float *m;                                      /* first moment, or momentum */
    float *v;                                      /* second moment; NULL except for Adam */
    float *other;                                  /* averages, or the trained weights while the
                                                      averages are in the network; NULL: ema is 0 */
    int orthogonal;                                /* 1: the momentum is made orthogonal (Muon) */
} jem__moments;

struct jem_optim {
    jem_net *net;
    jem_optim_desc desc;
    int count;                                     /* of moments */
    int updates;
    int averaged;                                  /* 1: the averages are in the network */
    jem__update update;                            /* arguments of the kernels */
    float weight;                                  /* of this update in the averages */
    jem__moments *moments;                         /* of each parameter that is updated */
    float *scratch;                                /* Muon's four matrices, see jem__muon */
};

jem_optim_desc jem_optim_desc_default(void) {
    JEM__ZEROED(jem_optim_desc, d);
    d.beta1 = 0.9f;
    d.beta2 = 0.999f;
    d.eps = 1e-8f;
    d.muon_momentum = 0.95f;
    d.adam_names = "output";
    return d;
}

void jem_optim_free(jem_optim *o) {
    if (!o) return;
    for (int i = 0; o->moments && i < o->count; i++) {
        jem__free(o->net->ctx, o->moments[i].m);
        jem__free(o->net->ctx, o->moments[i].v);
        jem__free(o->net->ctx, o->moments[i].other);
    }
    jem__free(o->net->ctx, o->moments);
    jem__free(o->net->ctx, o->scratch);
    jem__free(o->net->ctx, o);
}

/* Muon takes a weight as a matrix of out rows and in*k*k columns, and works on it as it is or
   turned, so that there are no more rows than columns. */
typedef struct jem__fold { int rows, columns, turned; } jem__fold;
static jem__fold jem__muon_fold(const jem_param *p) {
    const int out = p->shape[0];
    const int in = (int)(p->size / out);
    jem__fold fold = { out, in, 0 };
    if (out > in) {
        fold.rows = in;
        fold.columns = out;
        fold.turned = 1;
    }
    return fold;
}
static int jem__round_16(int n) { return (n + JEM_LANES - 1) / JEM_LANES * JEM_LANES; }
/* Two matrices of the weight's size, two of its smaller side squared. */
static ptrdiff_t jem__muon_floats(const jem_param *p) {
    const jem__fold s = jem__muon_fold(p);
    const ptrdiff_t rows = jem__round_16(s.rows);
    return 2 * rows * (jem__round_16(s.columns) + rows);
}
/* Weights of linear layers and convolutions, except where the name says that Adam updates it. */
static int jem__is_matrix(const jem_param *p, const char *adam_names) {
    return (p->ndim == 2 || p->ndim == 4) && p->shape[0] > 1 && p->size > p->shape[0] &&
           !(adam_names && *adam_names && strstr(p->name, adam_names));
}

static int jem__optim_desc_good(jem_ctx *ctx, jem_optim_desc d) {
    const char *const what = "optim";
    const double below_1 = 0.99999998;
    return JEM__IN(d.kind, JEM_OPTIMIZER_ADAM, JEM_OPTIMIZER_MUON) && JEM__IN(d.beta1, 0,
                                                                              below_1) &&
           JEM__IN(d.beta2, 0, below_1) && JEM__IN(d.eps, JEM__TINY, JEM__MOST) &&
           JEM__IN(d.momentum, 0, 1) && JEM__IN(d.muon_momentum, 0, below_1) &&
           JEM__IN(d.weight_decay, 0, JEM__MOST) && JEM__IN(d.clip, 0, JEM__MOST) &&
           JEM__IN(d.ema, 0, below_1);
}

/* Adds one parameter, and the arrays that its update needs. */
static void jem__optim_add(jem_optim *o, jem_param *p) {
    jem_ctx *ctx = o->net->ctx;
    const jem_optim_desc *d = &o->desc;
    jem__moments *m = &o->moments[o->count++];
    m->param = p;
    m->orthogonal = d->kind == JEM_OPTIMIZER_MUON && jem__is_matrix(p, d->adam_names);
    m->m = jem__alloc_padded(ctx, p->size);
    if (d->kind != JEM_OPTIMIZER_SGD && !m->orthogonal) m->v = jem__alloc_padded(ctx, p->size);
    if (d->ema > 0) m->other = jem__alloc_padded(ctx, p->size);
}

/* Adds the trainable parameters whose names begin as desc.only asks, and Muon's scratch memory for
   the largest of them. Names that the desc points at may go once this returns. */
static void jem__optim_fill(jem_optim *o) {
    jem_ctx *ctx = o->net->ctx;
    const char *only = o->desc.only;
    size_t all = 1;
    ptrdiff_t largest = 0;
    if (!only) only = "";
    for (const jem_param *p = o->net->params; p; p = p->next) all++;
    o->moments = (jem__moments *)jem__alloc(ctx, all * sizeof *o->moments);
    if (!o->moments) return;
    for (jem_param *p = o->net->params; p; p = p->next)
        if (p->grad && !strncmp(p->name, only, strlen(only))) jem__optim_add(o, p);
    for (int i = 0; i < o->count; i++) {
        const ptrdiff_t floats = jem__muon_floats(o->moments[i].param);
        if (o->moments[i].orthogonal && floats > largest) largest = floats;
    }
    if (largest) o->scratch = jem__alloc_floats(ctx, largest);
    if (o->count) return;
    if (*only)
        jem__fail(ctx, JEM_BAD_ARGUMENT, "optim: the network has no parameter to update, none that "
                  "begins with %.80s", only);
    else jem__fail(ctx, JEM_BAD_ARGUMENT, "optim: the network has no parameter to update");
}

jem_optim *jem_optim_create(jem_net *net, const jem_optim_desc *desc) {
    if (!net) return NULL;
    jem_ctx *ctx = net->ctx;
    const jem_optim_desc usual = jem_optim_desc_default();
    const int errors = ctx->errors;
    if (!desc) desc = &usual;
    if (!jem__optim_desc_good(ctx, *desc)) return NULL;
    jem_optim *o = (jem_optim *)jem__alloc(ctx, sizeof *o);
    if (!o) return NULL;
    o->net = net;
    o->desc = *desc;
    jem__optim_fill(o);
    if (ctx->errors == errors) return o;
    jem_optim_free(o);
    return NULL;
}

jem_status jem_optim_use_average(jem_optim *o, int on) {
    if (!o) return JEM_BAD_ARGUMENT;
    if (o->desc.ema <= 0 || !on == !o->averaged) return JEM_OK;
    for (int i = 0; i < o->count; i++) {
        jem__moments *m = o->moments + i;
        float *value = m->param->value;
        if (o->updates == 0)                       /* nothing to average yet */
            memcpy(m->other, value, (size_t)m->param->size * sizeof *value);
        m->param->value = m->other;
        m->other = value;
        jem_param_changed(m->param);
    }
    o->averaged = !!on;
    return JEM_OK;
}

/* ---- Muon ------------------------------------------------------------------------------------ */

/* Where element i of a weight is in its matrix. */
static ptrdiff_t jem__muon_at(const jem__fold *s, ptrdiff_t i) {
    ptrdiff_t row = i / s->columns;
    ptrdiff_t column = i % s->columns;
    if (s->turned) {
        row = i % s->rows;
        column = i / s->rows;
    }
    return (column / JEM_LANES * jem__round_16(s->rows) + row) * JEM_LANES + column % JEM_LANES;
}

/* Moves the momentum, m <- b m + (1 - b) g, and writes the look-ahead b m + (1 - b) g to the
   matrix, divided by its norm, so that no singular value is above 1. Returns 0 if all of it is 0.
   A product of two floats is exact in double, so a contraction by the compiler changes no bit. */
static int jem__muon_load(const jem__moments *m, float momentum, const jem__fold *s, float *x) {
    const jem_param *p = m->param;
    const double b = (double)momentum;
    const double rest = (double)(1 - momentum);
    double sum = 0;
    for (ptrdiff_t i = 0; i < p->size; i++) {
        const double g = (double)p->grad[i];
        m->m[i] = (float)(b * (double)m->m[i] + rest * g);
        const float ahead = (float)(b * (double)m->m[i] + rest * g);
        x[jem__muon_at(s, i)] = ahead;
        sum += (double)ahead * (double)ahead;
    }
    if (!(sum > 0)) return 0;
    const double shrink = 1 / sqrt(sum);
    for (ptrdiff_t i = 0; i < p->size; i++) {
        float *at = x + jem__muon_at(s, i);
        *at = (float)((double)*at * shrink);
    }
    return 1;
}

/* One Newton-Schulz step, x <- a x + (b A + c A^2) x with A = x x^T, in three products. */
typedef struct jem__newton {
    const jem__kernels *k;
    jem__matrix from;
    const float *by;                               /* symmetric factor of a product */
    float alpha, beta;
    float *to;
} jem__newton;
static void jem__newton_gram(void *arg, int i) {
    const jem__newton *s = (const jem__newton *)arg;
    s->k->gram(&s->from, 4 * i, s->to);
}
static void jem__newton_product(void *arg, int panel) {
    const jem__newton *s = (const jem__newton *)arg;
    s->k->symmetric_product(&s->from, s->by, s->alpha, s->beta, panel, s->to);
}

/* Makes x(rows, columns) nearly orthogonal: singular values from 0 to 1 become about .7 to 1.2.
   Coefficients: Jordan & others 2024. scratch: x, the same again, two of (rows, rows). Returns
   where the result is. */
static float *jem__orthogonalize(jem_ctx *ctx, const jem__fold *sides, float *scratch) {
    enum { NEWTON_STEPS = 5 };
    const int rows = jem__round_16(sides->rows);
    const int panels = jem__round_16(sides->columns) / JEM_LANES;
    const int square_panels = rows / JEM_LANES;
    const ptrdiff_t size = (ptrdiff_t)rows * panels * JEM_LANES;
    float *x = scratch;
    float *next = x + size;
    float *gram = next + size;
    float *factor = gram + (ptrdiff_t)rows * rows;
    const double flops = 2 * (double)rows * (double)size;
    const double square = 2 * (double)rows * (double)rows * rows;
    for (int step = 0; step < NEWTON_STEPS; step++) {
        jem__newton a = { ctx->k, { rows, panels, x }, NULL, 0, 0, gram };
        jem__newton b = { ctx->k, { rows, square_panels, gram }, gram, 2.0315f, -4.7750f, factor };
        jem__newton c = { ctx->k, { rows, panels, x }, factor, 1, 3.4445f, next };
        jem__parallel(ctx, rows / 4, flops / 2, jem__newton_gram, &a);
        jem__parallel(ctx, square_panels, square, jem__newton_product, &b);
        jem__parallel(ctx, panels, flops, jem__newton_product, &c);
        float *const result = next;
        next = x;
        x = result;
    }
    return x;
}

/* Updates one weight: momentum, orthogonal matrix, step. Parameters take turns, since each product
   runs on all threads and they share the scratch memory. */
static void jem__muon(jem_optim *o, const jem__moments *m, float lr) {
    jem_param *p = m->param;
    const jem__fold sides = jem__muon_fold(p);
    memset(o->scratch, 0, (size_t)jem__muon_floats(p) * sizeof *o->scratch);
    const float *x = o->scratch;
    if (jem__muon_load(m, o->desc.muon_momentum, &sides, o->scratch))
        x = jem__orthogonalize(o->net->ctx, &sides, o->scratch);
    const double step = (double)(float)((double)lr * .2 * sqrt((double)sides.columns));
    const double keep = (double)(float)(1 - (double)lr * (double)o->desc.weight_decay);
    for (ptrdiff_t i = 0; i < p->size; i++) {
        const float kept = (float)((double)p->value[i] * keep);
        p->value[i] = (float)((double)kept - step * (double)x[jem__muon_at(&sides, i)]);
    }
}

/* ---- a step ---------------------------------------------------------------------------------- */

/* Updates parameter i, unless Muon has, and its average. */
static void jem__optim_update(void *arg, int i) {
    const jem_optim *o = (const jem_optim *)arg;
    const jem__moments *m = o->moments + i;
    const jem__kernels *k = o->net->ctx->k;
    jem_param *p = m->param;
    if (m->v) k->adam(p->value, p->grad, m->m, m->v, jem__padded(p), &o->update);
    else if (!m->orthogonal) k->sgd(p->value, p->grad, m->m, jem__padded(p), &o->update);
    for (ptrdiff_t j = 0; m->other && j < p->size; j++)
        m->other[j] = jem__fmaf(o->weight, p->value[j] - m->other[j], m->other[j]);
    jem_param_changed(p);
}

static double jem__squares(const float *x, ptrdiff_t n, double sum) {
    for (ptrdiff_t i = 0; i < n; i++) sum += (double)x[i] * (double)x[i];
    return sum;
}
/* L2 norm of all gradients. */
static float jem__gradient_norm(const jem_optim *o) {
    double sum = 0;
    for (int i = 0; i < o->count; i++)
        sum = jem__squares(o->moments[i].param->grad, o->moments[i].param->size, sum);
    return (float)sqrt(sum);
}
/* L2 norm of what weight decay adds to them. */
static float jem__decay_norm(const jem_optim *o) {
    double sum = 0;
    if (o->desc.weight_decay <= 0) return 0;
    for (int i = 0; i < o->count; i++)
        sum = jem__squares(o->moments[i].param->value, o->moments[i].param->size, sum);
    return o->desc.weight_decay * (float)sqrt(sum);
}

static void jem__clip_gradients(const jem_optim *o, float norm) {
    const jem_ctx *ctx = o->net->ctx;
    if (o->desc.clip <= 0 || norm <= o->desc.clip) return;
    for (int i = 0; i < o->count; i++) {
        jem_param *p = o->moments[i].param;
        ctx->k->map(JEM__MAP_SCALE, o->desc.clip / norm, p->grad, p->grad, NULL, jem__padded(p));
    }
}

/* Sets the kernels' arguments for the next update, and counts it. An update weighs 1 - ema in the
   averages; the first ones weigh more, 10/(t + 10), so that the start is forgotten. */
static void jem__optim_prepare(jem_optim *o, float lr) {
    const double t = o->updates;
    double keep = t / (t + 10);
    if ((double)o->desc.ema < keep) keep = (double)o->desc.ema;
    o->weight = (float)(1 - keep);
    o->updates++;
    jem__update *u = &o->update;
    u->beta1 = o->desc.beta1;
    u->beta2 = o->desc.beta2;
    u->eps = o->desc.eps;
    u->momentum = o->desc.momentum;
    u->weight_decay = o->desc.weight_decay;
    u->lr = lr;
    u->root2 = 1;
    if (o->desc.kind == JEM_OPTIMIZER_SGD) return;
    u->lr = (float)((double)lr / (1 - pow((double)u->beta1, o->updates)));
    u->root2 = (float)(1 / sqrt(1 - pow((double)u->beta2, o->updates)));
}

jem_status jem_optim_step(jem_optim *o, float lr, float *grad_norm) {
    if (!o) return JEM_BAD_ARGUMENT;
    jem_ctx *ctx = o->net->ctx;
    const char *const what = "optim";
    if (ctx->status != JEM_OK || !JEM__IN(lr, 0, 1e9)) return ctx->status;
    jem_optim_use_average(o, 0);
    const float norm = jem__gradient_norm(o);
    const float decay = jem__decay_norm(o);
    if (grad_norm) *grad_norm = norm;
    if (!jem__finite(norm + decay) || norm + decay > 1e18f)    /* its square would be infinite */
        return jem__fail(ctx, JEM_DIVERGED, "optim: the gradient's norm is %g, weight decay's %g",
                         (double)norm, (double)decay);
    jem__clip_gradients(o, norm);
    jem__optim_prepare(o, lr);
    for (int i = 0; i < o->count; i++)
        if (o->moments[i].orthogonal) jem__muon(o, &o->moments[i], lr);
    jem__parallel(ctx, o->count, 20 * (double)jem_net_size(o->net), jem__optim_update, o);
    return JEM_OK;
}

/* Copies moments and averages to kept (back: from there); NULL: only counts. Returns the number
   of floats. The averages must not be in the network. */
static ptrdiff_t jem__optim_copy(jem_optim *o, float *kept, int back) {
    ptrdiff_t at = 0;
    for (int i = 0; i < o->count; i++) {
        float *const arrays[3] = { o->moments[i].m, o->moments[i].v, o->moments[i].other };
        const size_t bytes = (size_t)o->moments[i].param->size * sizeof *kept;
        for (int k = 0; k < 3; k++) {
            if (!arrays[k]) continue;
            if (kept && back) memcpy(arrays[k], kept + at, bytes);
            else if (kept) memcpy(kept + at, arrays[k], bytes);
            at += o->moments[i].param->size;
        }
    }
    return at;
}

/* Says whether numbers in the order of jem__optim_copy can be used: second moments are not
   negative, and all are finite. */
static int jem__optim_good(const jem_optim *o, const float *kept) {
    for (int i = 0; i < o->count; i++) {
        const float *const arrays[3] = { o->moments[i].m, o->moments[i].v, o->moments[i].other };
        for (int k = 0; k < 3; k++) {
            if (!arrays[k]) continue;
            for (ptrdiff_t j = 0; j < o->moments[i].param->size; j++, kept++)
                if (!jem__finite(*kept) || (k == 1 && *kept < 0)) return 0;
        }
    }
    return 1;
}

float jem_learning_rate(const jem_schedule *s, float lr, int update) {
    double rate = (double)lr;
    if (!s) return lr;
    if (s->kind == JEM_SCHEDULE_STEPS)
        for (int i = 0; i < 4; i++)
            if (s->at[i] > 0 && update >= s->at[i]) rate *= (double)s->rate;
    if (s->kind == JEM_SCHEDULE_COSINE && s->total > 0) {
        const double low = (double)s->floor;
        double t = 1;
        if (update < s->total) t = (double)update / s->total;
        rate *= low + (1 - low) * 0.5 * (1 + cos(3.14159265358979 * t));
    }
    if (update < s->warmup) rate *= ((double)update + 1) / s->warmup;
    return (float)rate;
}

/* ==== >>train: one step at a time ============================================================= */

enum { JEM__GUARD_EVERY = 100, JEM__GUARD_COUNTS = 4, JEM__GUARD_NUMBERS = 3 };

/* The guard's good state. Float arrays in one block: the network's parameters, the optimiser's
   numbers, the chains. */
typedef struct jem__guard {
    float *kept;                                   /* NULL: never allocated */
    int *visits;
    ptrdiff_t size;                                /* of kept */
    float gap, rate, walk;                         /* running f(x+) - f(x-); factors of the rate and
                                                      of the step of SGLD */
    int good, returns, optim_updates, calm;        /* good: kept holds a state; calm: good states
                                                      since the last return */
    float numbers[JEM__GUARD_NUMBERS];             /* what jem_trainer_to_archive points at */
    int64_t counts[JEM__GUARD_COUNTS];
} jem__guard;

struct jem_trainer {
    jem_net *net;
    float *flat;                                   /* gradients and numbers, for jem_sum_fn */
    jem_train_desc desc;
    jem_optim *optim;
    jem_buffer *buffer;
    jem_rng rng;
    int updates;
    int64_t state[9];                              /* what jem_trainer_to_archive points at */
    int has_buffers;                               /* batch norm's, act norm's */
    jem__guard guard;
};

jem_train_desc jem_train_desc_default(void) {
    JEM__ZEROED(jem_train_desc, d);
    d.lr = 1e-4f, d.optim = jem_optim_desc_default(), d.sgld = jem_sgld_desc_default();
    d.w_ce = d.w_cd = d.kl_entropy = 1, d.data_noise = 0.03f;
    d.negatives = 64, d.buffer_size = 10000, d.reinit = 0.05f, d.diverged = 1e8f, d.seed = 1;
    d.restart_lo = -1, d.restart_hi = 1, d.noise_lo = 0.12f, d.noise_hi = 2, d.ranks = 1;
    d.restart_denoise = jem_denoise_desc_default(), d.restart_denoise.steps = 0;
    d.max_gap = 100;
    d.max_returns = 20;
    return d;
}

jem_train_desc jem_train_desc_score(int updates) {
    jem_train_desc d = jem_train_desc_default();
    d.lr = 1.5e-3f, d.optim.clip = 20, d.optim.ema = 0.999f;
    d.schedule.kind = JEM_SCHEDULE_COSINE, d.schedule.total = updates, d.schedule.floor = 0.02f;
    d.schedule.warmup = updates < 2000 ? updates / 10 : 200;
    d.w_ce = 2, d.w_score = 0.016f, d.w_cd = 0.005f, d.cd_from = updates / 4 * 3;
    d.data_noise = d.noise_lo, d.label_noise = 0.3f, d.label_all_noise = 0.5f;
    d.sgld.steps = 10, d.sgld.step_size = 0.01f, d.sgld.noise_std = 0.1f;
    d.negatives = 32, d.buffer_size = 200, d.reinit = 0.025f, d.restart_denoise.steps = 200;
    d.least_scale = 2;
    return d;
}

static int jem__by_class(const jem_train_desc *d) {
    return d->class_conditional || d->w_cd_class > 0;
}
static int jem__wants_samples(const jem_train_desc *d) {
    return d->w_cd > 0 || d->w_cd_class > 0 || d->w_kl > 0;
}

/* Checks what a desc says of the guard. */
static int jem__guard_good(jem_ctx *ctx, jem_train_desc d) {
    const char *const what = "trainer";
    return JEM__IN(d.max_gap, JEM__TINY, JEM__MOST) && JEM__IN(d.max_returns, 0, 1000000) &&
           JEM__IN(d.least_scale, 0, JEM__MOST);
}

/* Checks that log p(x) of the network can be trained as a desc says: by class only if p(x,y)
   exists, a score only with a scale, or with a shift, whose slope needs none. Which outputs a
   network has is known once its forward function has recorded an image; nothing is computed. */
static int jem__density_good(jem_net *net, const jem_train_desc *d) {
    jem_ctx *ctx = net->ctx;
    const int small = fabsf(net->scale) < d->least_scale;
    if (!net->forward || !(small || jem__by_class(d))) return 1;
    const jem_mark mark = jem_begin(ctx);
    jem_forward(net, jem__images(net, NULL, 1), 0);
    const int has_energy = net->energy != NULL;
    const int has_shift = net->shift != NULL;
    jem_end(ctx, mark);
    if (!jem_ok(ctx)) return 0;
    if (has_energy && jem__by_class(d)) {
        jem__fail(ctx, JEM_BAD_ARGUMENT, "trainer: class_conditional and w_cd_class need "
                  "log p(x,y), which an unconditional network (uncond) does not have");
        return 0;
    }
    return has_shift ||
           jem__in_range(ctx, "trainer", "the network's scale (net->scale; for a score 10)",
                         (double)fabsf(net->scale), (double)d->least_scale, JEM__MOST);
}

jem_trainer *jem_trainer_create(jem_net *net, const jem_train_desc *desc) {
    if (!net) return NULL;
    jem_ctx *ctx = net->ctx;
    const jem_train_desc d = desc ? *desc : jem_train_desc_default();
    const double most = JEM__MOST;
    const char *const what = "trainer";
    const int joint = d.w_cd_class > 0;            /* its data are those of cross-entropy */
    const double weights = (double)d.w_ce + (double)d.w_cd + (double)d.w_cd_class +
                           (double)d.w_score + (double)d.w_kl + (double)d.energy_l2;
    if (!(JEM__IN(d.lr, JEM__TINY, 1e9) && JEM__IN(d.w_ce, 0, most) && JEM__IN(d.w_cd, 0, most) &&
          JEM__IN(d.w_cd_class, 0, most) && JEM__IN(d.w_score, 0, most) &&
          JEM__IN(d.w_kl, 0, most) && JEM__IN(d.kl_entropy, 0, most) &&
          JEM__IN(d.energy_l2, 0, most) && JEM__IN(d.sam, 0, d.w_score > 0 ? 0 : most) &&
          JEM__IN(d.data_noise, 0, most) && JEM__IN(d.label_noise, 0, joint ? 0 : most) &&
          JEM__IN(d.label_all_noise, 0, !joint) && JEM__IN(d.noise_lo, JEM__TINY, most) &&
          JEM__IN(d.noise_hi, d.noise_lo, most) && JEM__IN(d.cd_from, 0, INT32_MAX) &&
          JEM__IN(d.negatives, 0, INT32_MAX) && JEM__IN(d.sgld.steps, d.w_kl > 0, INT32_MAX) &&
          jem__sgld_good(ctx, "trainer: sgld", d.sgld) &&
          jem__denoise_good(ctx, "trainer: fresh", d.restart_denoise) && JEM__IN(d.reinit, 0, 1) &&
          JEM__IN(d.restart_lo, -most, d.restart_hi) && JEM__IN(d.diverged, JEM__TINY, most) &&
          jem__guard_good(ctx, d) &&
          JEM__IN(d.schedule.kind, JEM_SCHEDULE_CONSTANT,
                  JEM_SCHEDULE_COSINE) && JEM__IN(d.schedule.floor, 0, 1e6) &&
          JEM__IN(d.schedule.rate, 0, 1e6) &&
          jem__in_range(ctx, what, "the sum of all weights", weights, JEM__TINY, most) &&
          JEM__IN(d.ranks, 1, d.sum && !(d.sam > 0 || d.w_kl > 0) ? 1 << 20 : 1) &&
          JEM__IN(d.rank, 0, d.ranks - 1) &&
          jem__in_range(ctx, what, "negatives modulo ranks", d.negatives % d.ranks, 0, 0) &&
          jem__density_good(net, &d)))
        return NULL;
    jem_trainer *tr = (jem_trainer *)jem__alloc(ctx, sizeof *tr);
    if (!tr) return NULL;
    tr->net = net, tr->desc = d, tr->rng = jem_rng_seed(d.seed);
    tr->guard.rate = tr->guard.walk = 1;
    tr->optim = jem_optim_create(net, &d.optim);
    if (jem__wants_samples(&d)) {
        tr->buffer = jem_buffer_create(net->ctx, d.buffer_size, net->channels, net->height,
                                       net->width, jem__by_class(&d) ? net->classes : 0, &tr->rng);
        if (tr->buffer && (d.restart_lo != -1 || d.restart_hi != 1))
            jem_buffer_restart(tr->buffer, &tr->rng, d.restart_lo, d.restart_hi);
        for (int i = 0; tr->buffer && d.restart_denoise.steps && i < tr->buffer->capacity; i++)
            tr->buffer->visits[i] = -1;
    }
    ptrdiff_t size = sizeof(jem_stats) / sizeof(float);
    for (const jem_param *p = net->params; p; p = p->next)
        size += p->size, tr->has_buffers |= !p->grad;
    if (d.ranks > 1) tr->flat = jem__alloc_floats(net->ctx, size);
    if (tr->optim && (tr->buffer || !jem__wants_samples(&d)) && jem_ok(net->ctx)) return tr;
    jem_trainer_free(tr);
    return NULL;
}

void jem_trainer_free(jem_trainer *tr) {
    if (!tr) return;
    jem_optim_free(tr->optim);
    jem_buffer_free(tr->buffer);
    jem__free(tr->net->ctx, tr->guard.kept);
    jem__free(tr->net->ctx, tr->guard.visits);
    jem__free(tr->net->ctx, tr->flat), jem__free(tr->net->ctx, tr);
}

jem_buffer *jem_trainer_buffer(jem_trainer *tr) { return tr ? tr->buffer : NULL; }
int jem_trainer_updates(const jem_trainer *tr) { return tr ? tr->updates : 0; }

jem_status jem_trainer_use_average(jem_trainer *tr, int on) {
    return tr ? jem_optim_use_average(tr->optim, on) : JEM_BAD_ARGUMENT;
}

void jem_trainer_reseed(jem_trainer *tr, uint64_t seed) {
    if (!tr) return;
    tr->rng = jem_rng_seed(seed);
    tr->net->rng = jem_rng_split(&tr->rng, 1);     /* dropout's */
}

void jem_trainer_set_lr(jem_trainer *tr, float lr) {
    if (tr && jem__finite(lr) && lr > 0) tr->desc.lr = lr;
}

/* ---- several ranks --------------------------------------------------------------------------- */

/* The first of n images that is this rank's; a leaf of its share of x[n] (NULL: zeros). */
static int jem__first(const jem_trainer *tr, int n) {
    return n / (1 + tr->net->ctx->others) * tr->net->ctx->rank;
}
static jem_tensor *jem__share(const jem_trainer *tr, const float *x, int n) {
    const jem_net *net = tr->net;
    return jem__images(net, x ? x + jem__first(tr, n) * jem__image(net) : NULL,
                       n / (1 + net->ctx->others));
}

/* The shares t of all ranks to x[n]. A rank that failed tells the others by an infinity. */
static jem_status jem__gather(jem_trainer *tr, jem_tensor *t, int n, float *x) {
    jem_ctx *ctx = tr->net->ctx;
    const ptrdiff_t image = jem__buffer_image(tr->buffer), size = n * image;
    if (!ctx->others) return jem_read(t, x);
    memset(x, 0, (size_t)size * sizeof *x);
    if (jem_read(t, x + jem__first(tr, n) * image) != JEM_OK) *x = HUGE_VALF;
    tr->desc.sum(tr->desc.sum_user, x, size);
    for (ptrdiff_t i = 0; i < size && jem_ok(ctx); i++)
        if (!jem__finite(x[i])) jem__fail(ctx, JEM_DIVERGED, "sgld: diverged on another rank");
    return ctx->status;
}

/* Gradients and numbers become their mean over ranks; buffers (running statistics) rank 0's. */
static jem_status jem__agree(jem_trainer *tr, jem_stats *s) {
    jem_ctx *ctx = tr->net->ctx;
    float *const numbers[7] = { &s->loss, &s->ce, &s->accuracy, &s->f_data, &s->f_sample, &s->score,
                                &s->residual }, part = 1 / (float)(1 + ctx->others);
    for (int back = 0; back < 2 && jem_ok(ctx); back++) {
        float *flat = tr->flat;
        for (int i = 0; i < 7; i++, flat++)
            if (back) *numbers[i] = *flat; else *flat = part * *numbers[i];
        for (jem_param *p = tr->net->params; p; p = p->next) {
            float *a = p->grad ? p->grad : p->value, share = p->grad ? part : (float)!ctx->rank;
            for (ptrdiff_t i = 0; i < p->size; i++, flat++)
                if (back) a[i] = *flat; else *flat = share * a[i];
        }
        if (!back) tr->desc.sum(tr->desc.sum_user, tr->flat, flat - tr->flat);
    }
    return ctx->status;
}

/* ---- the loss -------------------------------------------------------------------------------- */

/* A leaf of the images plus the noise that data get (as the paper does). */
static jem_tensor *jem__noisy(jem_trainer *tr, const float *x, int n) {
    if (!(tr->desc.data_noise > 0)) return jem__share(tr, x, n);
    const ptrdiff_t size = n * jem__image(tr->net);
    float *sum = jem__push_floats(tr->net->ctx, size);
    if (!sum) return NULL;
    jem_fill_normal(tr->net->ctx, &tr->rng, sum, size, 0, tr->desc.data_noise);
    for (ptrdiff_t i = 0; i < size; i++) sum[i] += x[i];
    return jem__share(tr, sum, n);
}

/* Images for cross-entropy. Most have little noise; a share has that of score matching, all of it:
   a class that can be told in noise is what leads a sample out of noise to one class. */
static jem_tensor *jem__labelled(jem_trainer *tr, const float *x, int n) {
    const jem_train_desc *d = &tr->desc;
    if (!(d->label_noise > 0 || d->label_all_noise > 0)) return jem__noisy(tr, x, n);
    const jem_net *net = tr->net;
    float *sigma = (float *)jem__push(net->ctx, (size_t)n * sizeof *sigma);
    jem_tensor *t = jem__share(tr, x, n);
    const int wide = (int)(d->label_all_noise * (float)n + 0.5f);
    if (!sigma) return NULL;
    jem_noise_levels(&tr->rng, wide, d->noise_lo, d->noise_hi, sigma);
    for (int i = wide; i < n; i++) sigma[i] = d->label_noise * jem_rng_uniform(&tr->rng);
    return jem_add_noise(t, sigma + jem__first(tr, n), &tr->rng) == JEM_OK ? t : NULL;
}

/* n new chains, x[n][c][h][w], from noise; labels (may be NULL): of these classes. */
static jem_status jem__breed(jem_trainer *tr, int n, const int *labels, float *x) {
    jem_net *net = tr->net;
    jem_ctx *ctx = net->ctx;
    jem_class_of of;
    of.net = net, of.labels = labels ? labels + jem__first(tr, n) : NULL;
    jem_generate_desc d = jem_generate_desc_default();
    d.mean = net->mean, d.denoise = tr->desc.restart_denoise, d.walk.steps = 0, d.last_sigma = 0;
    const jem_mark mark = jem_begin(ctx);
    jem_tensor *t = jem__share(tr, NULL, n);
    jem_generate(ctx, labels ? jem_logp_class : jem_logp, labels ? (void *)&of : (void *)net, t, &d,
              &tr->rng);
    jem__gather(tr, t, n, x);
    jem_end(ctx, mark);
    return ctx->status;
}

/* When contrastive divergence sets in, the buffer fills with copies of a few dozen samples, at
   least two of each class, which soon part; afterwards n new ones come every 1/reinit updates. */
static jem_status jem__breed_some(jem_trainer *tr, int n) {
    jem_buffer *b = tr->buffer;
    const jem_train_desc *d = &tr->desc;
    const int begin = b->visits[0] < 0, by_class = jem__by_class(d);
    const int every = d->reinit > 1e-6f ? (int)(1 / d->reinit + 0.5f) : 0;
    if (!d->restart_denoise.steps || !(begin || (every && (tr->updates - d->cd_from) % every == 0)))
        return JEM_OK;
    if (begin) n = n < 64 ? 64 : n;
    if (begin && by_class && n < 2 * b->classes) n = 2 * b->classes;
    if (n > b->capacity) n = b->capacity;
    if (begin && by_class) n -= n % b->classes;
    const ptrdiff_t size = jem__buffer_image(b);
    const int whole = tr->net->ctx->others ? (1 + tr->net->ctx->others) * JEM_LANES : 1;
    const int made = (n + whole - 1) / whole * whole;      /* for all ranks, a few too many */
    float *x = (float *)jem__push(tr->net->ctx, (size_t)(made * size) * sizeof *x);
    int *labels = (int *)jem__push_zero(tr->net->ctx, (size_t)made * sizeof *labels);
    if (!x || !labels) return JEM_NO_MEMORY;
    const int classes = by_class ? b->classes : 1, per = b->capacity / classes;
    for (int i = 0; i < n; i++) labels[i] = begin ? i % classes : jem_rng_below(&tr->rng, classes);
    const jem_status s = jem__breed(tr, made, by_class ? labels : NULL, x);
    for (int i = 0; i < (begin ? b->capacity : n) && s == JEM_OK; i++) {
        const int own = (i % per * classes + i / per) % n;   /* of slot i's class, at the start */
        const int slot = begin ? i : labels[i] * per + jem_rng_below(&tr->rng, per);
        memcpy(b->data + slot * size, x + (begin ? own : i) * size, (size_t)size * sizeof *x);
        b->visits[slot] = 0;
    }
    return s;
}

/* Chains out of the buffer, walked, and put back: a leaf of samples, constant for the update. */
static jem_tensor *jem__negatives(jem_trainer *tr, int n, int *labels, jem_tensor **kl) {
    const jem_net *net = tr->net;
    const jem_train_desc *d = &tr->desc;
    jem_ctx *ctx = net->ctx;
    if (jem__breed_some(tr, n) != JEM_OK) return NULL;
    float *x = (float *)jem__push(ctx, (size_t)(n * jem__buffer_image(tr->buffer)) * sizeof(float));
    int *slot = (int *)jem__push(ctx, (size_t)n * sizeof(int));
    int *visits = (int *)jem__push(ctx, (size_t)n * sizeof(int));
    if (!x || !slot || !visits) return NULL;
    for (int i = 0; labels && i < n; i++) labels[i] = jem_rng_below(&tr->rng, net->classes);
    jem__buffer_draw(tr->buffer, &tr->rng, n, labels, d->restart_denoise.steps ? 0 : d->reinit, x,
                     slot,
                     visits);
    for (int i = 0; d->chain && i < n; i++)
        d->chain(d->chain_user, &tr->rng, visits[i], labels ? labels[i] : -1,
                 x + i * jem__buffer_image(tr->buffer));
    jem_tensor *t = jem__share(tr, x, n);
    jem_class_of of;
    of.net = tr->net, of.labels = labels ? labels + jem__first(tr, n) : NULL;
    const jem_logp_fn logp = labels ? jem_logp_class : jem_logp;
    void *user = labels ? (void *)&of : (void *)tr->net;
    jem_sgld_desc walk = d->sgld;
    walk.step_size *= tr->guard.walk;
    if (tr->guard.walk < 1) walk.noise_std *= sqrtf(tr->guard.walk);
    if (!(d->w_kl > 0)) jem_sgld(ctx, logp, user, t, &walk, &tr->rng);
    else *kl = jem_kl_walk(ctx, logp, user, t, &walk, d->kl_entropy, &tr->rng);
    if (jem__gather(tr, t, n, x) != JEM_OK) return NULL;
    jem__buffer_put(tr->buffer, n, slot, visits, x);
    return t;
}

static float jem__batch_accuracy(const jem_tensor *logits, const int *labels) {
    int right = 0;
    for (int i = 0; i < logits->n; i++) {
        const float *f = logits->node->value;
        int best = 0;
        for (int c = 1; c < logits->c; c++)
            if (f[jem__lane_at(logits->node, i, c, 0, 0)] >
                f[jem__lane_at(logits->node, i, best, 0, 0)])
                best = c;
        right += best == labels[i];
    }
    return (float)right / (float)logits->n;
}

/* What a network remembers of score matching: its noise, and the mean pixel of the first batch, so
   rounded that a file gives back the same bits. */
static void jem__remember_noise(jem_trainer *tr, const float *x, ptrdiff_t size) {
    jem_net *net = tr->net;
    if (tr->updates > 0 || !(tr->desc.w_score > 0)) return;
    double sum = 0;
    for (ptrdiff_t i = 0; i < size; i++) sum += (double)x[i];
    net->mean = (float)(floor(sum / (double)size * 1000 + 0.5) / 1000);
    net->noise_lo = tr->desc.noise_lo, net->noise_hi = tr->desc.noise_hi;
}

/* Score matching on n images: it needs no labels. */
static jem_tensor *jem__score_term(jem_trainer *tr, const float *x, int n, jem_stats *s) {
    const jem_net *net = tr->net;
    float *sigma = (float *)jem__push(net->ctx, (size_t)n * sizeof *sigma);
    if (!sigma) return NULL;
    JEM__ZEROED(jem_score_desc, d);
    d.sigma = sigma + jem__first(tr, n);
    jem_noise_levels(&tr->rng, n, tr->desc.noise_lo, tr->desc.noise_hi, sigma);
    return jem_score_matching(net->ctx, jem_logp, tr->net, jem__share(tr, x, n), &d, &tr->rng,
                              &s->residual);
}

/* Act norm takes its parameters from the first batch, before anything is computed with them. */
static void jem__first_look(jem_net *net, jem_tensor *x) {
    const jem_rng rng = net->rng;                  /* what dropout draws, it draws again */
    const jem_mark mark = jem_begin(net->ctx);
    jem_item(jem_mean(net->ctx, jem__logp(net, jem_forward(net, x, 1))));
    jem_end(net->ctx, mark);
    net->rng = rng;
}

/* ---- the guard ------------------------------------------------------------------------------- */

/* Counts the chains whose visits are kept; at least 1, as an array has a length. */
static int jem__guard_slots(const jem_buffer *b) {
    if (!b) return 1;
    return b->capacity;
}

/* Copies bytes from `live` to `kept`, or back. */
static void jem__guard_move(void *live, void *kept, size_t bytes, int back) {
    if (back) memcpy(live, kept, bytes);
    else memcpy(kept, live, bytes);
}

/* Allocates the memory of the good state, once. */
static jem_status jem__guard_memory(jem_trainer *tr) {
    jem_ctx *ctx = tr->net->ctx;
    jem__guard *g = &tr->guard;
    const jem_buffer *b = tr->buffer;
    if (g->kept) return JEM_OK;
    ptrdiff_t size = jem__optim_copy(tr->optim, NULL, 0);
    for (const jem_param *p = tr->net->params; p; p = p->next) size += p->size;
    if (b) size += b->capacity * jem__buffer_image(b);
    float *kept = jem__alloc_floats(ctx, size);
    int *visits = (int *)jem__alloc(ctx, (size_t)jem__guard_slots(b) * sizeof *visits);
    if (kept && visits) {
        g->kept = kept;
        g->visits = visits;
        g->size = size;
        return JEM_OK;
    }
    jem__free(ctx, kept);
    jem__free(ctx, visits);
    return JEM_NO_MEMORY;
}

/* Copies the state into the guard's memory, or back. */
static void jem__guard_copy(jem_trainer *tr, int back) {
    jem__guard *g = &tr->guard;
    jem_buffer *b = tr->buffer;
    float *at = g->kept;
    for (jem_param *p = tr->net->params; p; p = p->next) {
        jem__guard_move(p->value, at, (size_t)p->size * sizeof *at, back);
        at += p->size;
        if (back) jem_param_changed(p);
    }
    at += jem__optim_copy(tr->optim, at, back);
    if (back) tr->optim->updates = g->optim_updates;
    else g->optim_updates = tr->optim->updates;
    if (!b) return;
    const size_t chains = (size_t)(b->capacity * jem__buffer_image(b)) * sizeof *at;
    const size_t visits = (size_t)b->capacity * sizeof *b->visits;
    jem__guard_move(b->data, at, chains, back);
    jem__guard_move(b->visits, g->visits, visits, back);
}

/* Says whether all that a copy would hold is finite, and what the optimiser can go on from. */
static int jem__guard_sound(const jem_trainer *tr, const float *kept, ptrdiff_t size) {
    ptrdiff_t params = 0;
    for (const jem_param *p = tr->net->params; p; p = p->next) params += p->size;
    for (ptrdiff_t i = 0; i < size; i++)
        if (!jem__finite(kept[i])) return 0;
    return jem__optim_good(tr->optim, kept + params);
}

/* Keeps the state before an update, if it is time and the state is good; afterwards the rate may
   recover, one doubling for every five good states. Only what is the same on all ranks decides. */
static jem_status jem__guard_keep(jem_trainer *tr) {
    jem__guard *g = &tr->guard;
    const float good = tr->desc.max_gap * fabsf(tr->net->scale) / 20;
    if (!tr->desc.max_returns || !tr->updates || tr->updates % JEM__GUARD_EVERY) return JEM_OK;
    if (!(fabsf(g->gap) <= good)) return JEM_OK;
    if (jem__guard_memory(tr) != JEM_OK) return tr->net->ctx->status;
    jem__guard_copy(tr, 0);
    g->good = jem__guard_sound(tr, g->kept, g->size);
    if (g->rate < 1 && ++g->calm % 5 == 0) g->rate *= 2;
    return JEM_OK;
}

/* Returns to the good state because of the context's error or of a gap. */
static void jem__guard_return(jem_trainer *tr, jem_stats *s) {
    jem_ctx *ctx = tr->net->ctx;
    jem__guard *g = &tr->guard;
    float *const numbers[10] = { &s->loss, &s->ce, &s->cd, &s->score, &s->residual, &s->kl,
                                 &s->f_data, &s->f_sample, &s->accuracy, &s->grad_norm };
    char why[160], note[320];
    if (s->status != JEM_OK) snprintf(why, sizeof why, "%.150s", ctx->message);
    else snprintf(why, sizeof why, "f(x+) - f(x-) is %.3g in the mean", (double)g->gap);
    jem_clear_error(ctx);
    jem__guard_copy(tr, 1);
    const int given_up = g->returns >= tr->desc.max_returns;
    g->returns += !given_up;
    g->gap = 0;
    g->calm = 0;
    g->rate *= 0.5f;
    g->walk *= 0.5f;
    tr->rng = jem_rng_split(&tr->rng, (uint64_t)g->returns);
    tr->net->rng = jem_rng_split(&tr->rng, 1);     /* dropout's */
    for (int i = 0; i < 10; i++)
        if (!jem__finite(*numbers[i])) *numbers[i] = 0;
    if (given_up) {
        s->status = jem__fail(ctx, JEM_DIVERGED, "train_step: update %d: %s; the guard returned %d "
                              "times already: lower lr or sgld.step_size, or set energy_l2",
                              tr->updates, why, g->returns);
        return;
    }
    snprintf(note, sizeof note, "train_step: update %d: %s; return %d of %d to the last good "
             "state, with %g of the rate and %g of the step of SGLD", tr->updates, why, g->returns,
             tr->desc.max_returns, (double)g->rate, (double)g->walk);
    if (ctx->desc.log) ctx->desc.log(ctx->desc.user, note);
    s->status = JEM_OK;
    s->returned = 1;
    tr->updates++;
}

/* Watches an update that was made, or that diverged: without a good state there is no return. */
static void jem__guard_watch(jem_trainer *tr, jem_stats *s) {
    jem__guard *g = &tr->guard;
    if (s->status == JEM_OK) g->gap += 0.1f * (-s->cd - g->gap);
    const int gone = s->status == JEM_DIVERGED ||
                     (s->status == JEM_OK &&
                      !(fabsf(g->gap) <= tr->desc.max_gap * fabsf(tr->net->scale)));
    if (gone && g->good && tr->desc.max_returns) {
        tr->updates -= s->status == JEM_OK;        /* this update is counted once */
        jem__guard_return(tr, s);
    }
    s->returns = g->returns;
}

/* Images of an update: labelled ones, and those for p(x), which may be the same. */
typedef struct jem__batch {
    const float *x, *x_data;
    const int *labels;
    int n, n_data, apart;                          /* apart: they are not the same */
} jem__batch;
typedef struct jem__terms { jem_loss_terms of; jem_tensor *score, *kl; } jem__terms;

/* The whole loss, on the tape: chains first, then what depends on data. */
static jem_tensor *jem__train_loss(jem_trainer *tr, jem__batch *b, jem__terms *terms,
                                   jem_stats *s) {
    jem_ctx *ctx = tr->net->ctx;
    const jem_train_desc *d = &tr->desc;
    const int chains = jem__wants_samples(d) && tr->updates >= d->cd_from;
    const int n_neg = d->negatives ? d->negatives : b->n_data;
    const int own = d->label_noise > 0 || d->label_all_noise > 0;   /* cross-entropy's own images */
    const jem_loss_weights w = { d->w_ce, d->w_cd, d->w_cd_class, d->energy_l2 };
    int *sample_labels = NULL;
    memset(terms, 0, sizeof *terms);
    if (!tr->has_buffers || tr->updates)           /* else each does the whole: see act norm */
        ctx->rank = d->rank, ctx->others = d->ranks - 1;
    if (b->n) b->labels += jem__first(tr, b->n);
    jem__remember_noise(tr, b->x_data, b->n_data * jem__image(tr->net));
    if (chains && jem__by_class(d) &&
        !(sample_labels = (int *)jem__push(ctx, (size_t)n_neg * sizeof(int)))) return NULL;
    jem_tensor *sample = chains ? jem__negatives(tr, n_neg, sample_labels, &terms->kl) : NULL;
    jem_tensor *labelled = b->n ? jem__labelled(tr, b->x, b->n) : NULL, *data = NULL;
    if (b->apart || (own && (chains || d->energy_l2 > 0)))
        data = jem__noisy(tr, b->x_data, b->n_data);
    if (tr->has_buffers && !tr->updates) jem__first_look(tr->net, labelled ? labelled : data);
    if (d->w_score > 0) terms->score = jem__score_term(tr, b->x_data, b->n_data, s);
    if (sample_labels) sample_labels += jem__first(tr, n_neg);
    jem_tensor *loss = jem__loss(tr->net, &w, labelled, b->labels, data, sample, sample_labels,
                                 &terms->of);
    loss = jem__accumulate(ctx, loss, d->w_kl, terms->kl);
    return jem__loss_sum(ctx, jem__accumulate(ctx, loss, d->w_score, terms->score));
}

/* All numbers of a network, on the tape, or NULL; and back, or those alone that are not trained. */
static float *jem__keep_params(const jem_net *net) {
    ptrdiff_t size = 0;
    for (const jem_param *p = net->params; p; p = p->next) size += p->size;
    float *kept = jem__push_floats(net->ctx, size), *at = kept;
    for (const jem_param *p = net->params; kept && p; at += p->size, p = p->next)
        memcpy(at, p->value, (size_t)p->size * sizeof *at);
    return kept;
}
static void jem__restore_params(jem_net *net, const float *kept, int all) {
    for (jem_param *p = net->params; kept && p; kept += p->size, p = p->next)
        if (all || !p->grad)
            memcpy(p->value, kept, (size_t)p->size * sizeof *kept), jem_param_changed(p);
}

/* The gradient g of the same loss (images, samples, noise) at w + sam g/||g|| instead of w: so far
   from w, it is about worst there. Weights and running statistics stay as they are; the loss is
   computed with statistics from before it moved them, in `before`. */
static jem_status jem__sharpness(jem_trainer *tr, jem_tensor *loss, const float *before) {
    jem_net *net = tr->net;
    const float norm = jem__gradient_norm(tr->optim), share = tr->desc.sam / norm;
    const float *kept = jem__keep_params(net);
    if (!kept || !(norm > 0) || !jem__finite(norm)) return net->ctx->status;
    for (int i = 0; i < tr->optim->count; i++) {
        jem_param *p = tr->optim->moments[i].param;
        for (ptrdiff_t j = 0; j < p->size; j++)
            p->value[j] = jem__fmaf(share, p->grad[j], p->value[j]);
        jem_param_changed(p);
    }
    jem__restore_params(net, before, 0);
    jem_zero_grad(net);
    const jem_status status = jem_backward(loss);
    jem__restore_params(net, kept, 1);
    return status;
}

/* What makes no sense is an error, and 0. */
static int jem__batch_ready(const jem_trainer *tr, jem__batch *b, const float *x, int n) {
    const int lost = (b->n > 0 && (!b->x || !b->labels)) || (n > 0 && !x), ranks = tr->desc.ranks;
    jem_ctx *ctx = tr->net->ctx;
    if (lost || b->n < 0 || n < 0 || (!b->n && !n) || b->n % ranks || n % ranks)
        return jem__fail(ctx, JEM_BAD_ARGUMENT, "train_step: %d labelled, %d unlabelled images%s "
                         "for %d ranks", b->n, n, lost ? ": data or labels are NULL" : "",
                         ranks), 0;
    b->apart = n > 0;
    if (n > 0) b->x_data = x, b->n_data = n;
    jem__images_check(tr->net, "train_step", b->x, b->n);
    if (n > 0) jem__images_check(tr->net, "train_step, unlabelled", x, n);
    if (b->n > 0 && ctx->status == JEM_OK)
        jem__labels_good(ctx, "train_step", b->labels, b->n, tr->net->classes);
    return ctx->status == JEM_OK;
}

jem_stats jem_train_step_semi(jem_trainer *tr, const float *x, const int *labels, int n,
                              const float *x_unlabelled, int n_unlabelled) {
    JEM__ZEROED(jem_stats, s);
    s.status = JEM_BAD_ARGUMENT;
    if (!tr) return s;
    jem__batch b = { x, x, labels, n, n, 0 };
    jem_ctx *ctx = tr->net->ctx;
    const jem_train_desc *d = &tr->desc;
    s.update = tr->updates;
    if (!jem__batch_ready(tr, &b, x_unlabelled, n_unlabelled)) {
        s.status = ctx->status;
        return s;
    }
    s.lr = jem_learning_rate(&d->schedule, d->lr, tr->updates) * tr->guard.rate;
    jem_optim_use_average(tr->optim, 0);
    s.returns = tr->guard.returns;
    if ((s.status = jem__guard_keep(tr)) != JEM_OK) return s;
    jem_mark mark = jem_begin(ctx);
    jem__terms t;
    /* the first forward pass sets act norm's parameters: a failure takes that back */
    const float *kept = tr->has_buffers && !tr->updates ? jem__keep_params(tr->net) : NULL;
    jem_tensor *loss = jem__train_loss(tr, &b, &t, &s);
    const float *before = tr->has_buffers && d->sam > 0 ? jem__keep_params(tr->net) : NULL;
    jem_keep(t.of.logits);
    jem_zero_grad(tr->net);
    s.status = loss ? jem_backward(loss) : ctx->status;
    if (s.status == JEM_OK) {
        s.loss = jem_item(loss);
        if (t.of.ce) s.ce = jem_item(t.of.ce);
        if (t.of.ce && ctx->status == JEM_OK)
            s.accuracy = jem__batch_accuracy(t.of.logits, b.labels);
        if (t.of.f_data) s.f_data = jem_item(t.of.f_data);
        if (t.of.f_sample) s.f_sample = jem_item(t.of.f_sample);
        s.score = t.score ? jem_item(t.score) : 0, s.kl = t.kl ? jem_item(t.kl) : 0;
        s.status = ctx->others ? jem__agree(tr, &s) : ctx->status;
        if (t.of.f_sample) s.cd = s.f_sample - s.f_data;
        if (s.status == JEM_OK && (!jem__finite(s.loss) || !(fabsf(s.loss) <= d->diverged)))
            s.status = jem__fail(ctx, JEM_DIVERGED, "train_step: diverged at update %d: loss %g, "
                                 "f(x+) %g, f(x-) %g", tr->updates, (double)s.loss,
                                 (double)s.f_data, (double)s.f_sample);
        if (s.status == JEM_OK && d->sam > 0) s.status = jem__sharpness(tr, loss, before);
        if (s.status == JEM_OK) s.status = jem_optim_step(tr->optim, s.lr, &s.grad_norm);
        if (s.status == JEM_OK) tr->updates++;
    }
    if (s.status != JEM_OK) jem__restore_params(tr->net, kept, 1);
    ctx->rank = ctx->others = 0;
    jem_end(ctx, mark);
    jem__guard_watch(tr, &s);
    return s;
}

jem_stats jem_train_step(jem_trainer *tr, const float *x, const int *labels, int n) {
    return jem_train_step_semi(tr, x, labels, n, NULL, 0);
}

/* ==== >>eval: classify, accuracy ============================================================== */

#define JEM__EVAL_BATCH 256
#define JEM__QUANTILES 65
static const char *const jem__familiar_key = "jem.familiar";  /* quantiles of log p(x), ascending */
static const char *const jem__usual_key = "jem.usual";        /* see jem__usual */
static const char *const jem__slopes_key = "jem.slopes";      /* see jem__slopes */
static const char *const jem__temperature_key = "jem.temperature";

/* The share of the calibration images with a lower score, between quantiles linearly. */
static float jem__familiarity(const float *q, int n, float score) {
    if (n < 2) return -1;
    int i = 0;
    while (i < n && q[i] < score) i++;
    if (i == 0 || i == n) return i == 0 ? 0.0f : 1.0f;
    const float part = (score - q[i - 1]) / (q[i] - q[i - 1]);
    return ((float)(i - 1) + part) / (float)(n - 1);
}

/* Up to n numbers of a text: how many; 0 if anything else is in it, or a number above 1e12. */
static int jem__numbers_in(const char *s, float *q, int n) {
    int i = 0;
    for (double v; s && *s; i++) {
        const char *end = jem__scan_number(s, &v);
        if (end == s || i == n || fabs(v) > 1e12) return 0;
        q[i] = (float)v, s = end + (*end == ' ');
    }
    return i;
}
static int jem__rises(const float *q, int n) {
    while (n > 1 && q[n - 2] <= q[n - 1]) n--;
    return n < 2;
}
static jem_status jem__numbers_write(jem_net *net, jem__meta **list, const char *key,
                                     const float *q, int n) {
    char *text = (char *)jem__alloc(net->ctx, (size_t)n * 32 + 1);
    size_t used = 0;
    for (int i = 0; text && i < n; i++) {
        if (i) text[used++] = ' ';
        used += (size_t)jem__print_number(text + used, 31, (double)q[i]);
    }
    const jem_status s = text ? jem__meta_set(net->ctx, list, key, text) : JEM_NO_MEMORY;
    jem__free(net->ctx, text);
    return s;
}

/* What the logits of an image say: its label, log p(x), their mean, log odds and p of the label. */
typedef struct jem__seen { int label; float logp, mean, odds, p; } jem__seen;

/* Whether that is usual: a = log p(x) and b = the mean logit, less their means m[y][2] over the
   calibration images of the same predicted label y; l is the root of the covariance S = L L' that
   is left (l[0] 0; l[1] l[2]), and d^2 = (a,b) S^-1 (a,b)' (Mahalanobis; for the features of a
   layer: Lee et al. 2018). q are the calibration images' quantiles of -d. The mean logit sees what
   log p(x) does not: something else may have as high a logit, but not as low ones beside it. */
typedef struct jem__usual { float l[3], q[JEM__QUANTILES], m[2]; } jem__usual;
static float jem__usual_score(const jem__usual *u, const float *m, jem__seen s) {
    const float a = (s.logp - m[2 * s.label]) / u->l[0];
    const float b = jem__fmaf(-u->l[1], a, s.mean - m[2 * s.label + 1]) / u->l[2];
    return -sqrtf(jem__fmaf(a, a, b * b));
}
/* So many numbers, m being as long as it has to be. */
static int jem__usual_size(const jem_net *net) { return 3 + JEM__QUANTILES + 2 * net->classes; }
/* A text in those numbers; NULL if it is none of this. */
static jem__usual *jem__usual_in(const jem_net *net, const char *text, float *all) {
    const int n = jem__usual_size(net);
    jem__usual *u = (jem__usual *)(void *)all;
    if (!u || jem__numbers_in(text, all, n) < n || !jem__rises(u->q, JEM__QUANTILES)) return NULL;
    return u->l[0] > 1e-6f && u->l[2] > 1e-6f ? u : NULL;
}
/* The network's, on the tape. */
static jem__usual *jem__usual_read(const jem_net *net) {
    const char *text = jem_net_meta(net, jem__usual_key);
    return jem__usual_in(net, text, text ? jem__push_floats(net->ctx, jem__usual_size(net)) : NULL);
}
/* Quantiles, or in older files mean and spread: how many numbers. */
static int jem__familiar_read(const char *text, float q[JEM__QUANTILES]) {
    const int n = jem__numbers_in(text, q, JEM__QUANTILES);
    return n > 1 && jem__rises(q, n) ? n : 0;
}
/* 1 if there is none. */
static float jem__temperature_read(const char *text) {
    float t = 1;
    if (text && (jem__numbers_in(text, &t, 1) != 1 || !(t >= 0.0099f && t <= 101))) return 0;
    return t;
}

static float jem__temperature_of(const jem_net *net) {
    const float t = jem__temperature_read(jem_net_meta(net, jem__temperature_key));
    return t > 0 ? t : 1;
}
static void jem__see_one(const float *f, int classes, float temperature, jem__seen *s) {
    double sum = 0, others = 0, cooled = 0;
    int next = -1;                                 /* the second highest */
    s->label = 0;
    for (int c = 0; c < classes; c++) {
        sum += (double)f[c];
        if (f[c] > f[s->label]) s->label = c;
    }
    for (int c = 0; c < classes; c++)
        if (c != s->label && (next < 0 || f[c] > f[next])) next = c;
    for (int c = 0; c < classes; c++) {
        if (c == s->label) continue;
        others += exp((double)f[c] - (double)f[next]);
        cooled += exp(((double)f[c] - (double)f[s->label]) / (double)temperature);
    }
    s->mean = (float)(sum / classes), s->p = (float)(1 / (1 + cooled));
    s->odds = next < 0 ? 1e18f                     /* log p/(1-p): has no ties near p = 1 */
            : (float)((double)f[s->label] - (double)f[next] - log(others));
}

/* Logits f[n][classes] of n images and what they say; either may be NULL. */
static jem_status jem__see(jem_net *net, const char *what, const float *x, int n, float *f,
                           jem__seen *seen) {
    jem_ctx *ctx = net->ctx;
    const ptrdiff_t size = jem__image(net), k = net->classes;
    if (!x || n < 0 || (!f && !seen))
        return jem__fail(ctx, JEM_BAD_ARGUMENT, "%s: %d images, or NULL", what, n);
    if (jem__images_check(net, what, x, n) != JEM_OK) return ctx->status;
    const float temperature = jem__temperature_of(net);
    for (int i = 0; i < n && ctx->status == JEM_OK; i += JEM__EVAL_BATCH) {
        const int m = n - i < JEM__EVAL_BATCH ? n - i : JEM__EVAL_BATCH;
        const jem_mark mark = jem_begin(ctx);
        float *rows = f ? f + i * k : jem__push_floats(ctx, m * k), *p = jem__push_floats(ctx, m);
        jem_tensor *logits = jem_forward(net, jem__images(net, x + i * size, m), 0);
        jem_tensor *logp = jem__logp(net, logits);
        jem_keep(logits);                          /* or a network of many classes runs twice */
        if (rows && p && jem_read(logits, rows) == JEM_OK && jem_read(logp, p) == JEM_OK)
            for (int j = 0; seen && j < m; j++) {
                seen[i + j].logp = p[j];
                jem__see_one(rows + j * k, net->classes, temperature, seen + i + j);
            }
        if (ctx->status == JEM_OK && !(jem__all_finite(rows, m * k) && jem__all_finite(p, m)))
            jem__fail(ctx, JEM_DIVERGED, "%s: the network's numbers are not finite", what);
        jem_end(ctx, mark);
    }
    return ctx->status;
}

/* ---- familiarity from slopes ----------------------------------------------------------------- */
/* What an image looks like to the network is a vector v:

       the logits;  log p(x);  log(||g||^2/d), g = d log p(x)/dx, d pixels;
       for each noise level sigma:  log(||sigma g + z||^2/d),  log(||sigma g||^2/d),  log p(x~),
                                    x~ = x + sigma z,  g = d log p(x~)/dx~

   The score that a density should have at noisy data is -z/sigma, so ||sigma g + z|| is the error
   of its denoiser: small for images like those learned (multiscale score matching: Mahmood, Oliva &
   Styner 2021). z is the same for every image, so an image always gets the same answer. Given the
   predicted label y, v has mean m[y]; what is left has one covariance S for all labels, and

       score = - sqrt((v - m[y])' S^-1 (v - m[y])) / scale[y]     (Lee et al. 2018)

   scale[y] is the root mean square of that distance in the class: no class is strange as a whole.
   Scores of calibration images come from fits without them (five folds), as new images' do; so the
   share of them with a lower score is a p-value. */

enum { JEM__FOLDS = 5, JEM__MOST_LOGITS = 32, JEM__MOST_SLOPES = 3 };

/* A calibration, in one array of floats: its text is their list. */
typedef struct jem__slopes {
    int gradients, dims, classes;
    float *all;                                    /* gradients, then the arrays below */
    float *q;                                      /* [JEM__QUANTILES] of the scores */
    float *scale;                                  /* [classes] */
    float *mean;                                   /* [classes][dims] */
    float *spread;                                 /* [dims]: the unit in which v - m[y] counts */
    float *root;                                   /* lower triangle of L, S = L L', by rows */
} jem__slopes;

/* Many classes: their mean logit and log odds take the place of the logits. */
static int jem__slopes_dims(const jem_net *net, int gradients) {
    const int slopes[JEM__MOST_SLOPES + 1] = { 0, 1, 4, 7 };
    int logits = net->classes;
    if (logits > JEM__MOST_LOGITS) logits = 2;
    return logits + 1 + slopes[gradients];
}
static int jem__slopes_size(const jem_net *net, int gradients) {
    const int dims = jem__slopes_dims(net, gradients);
    return 1 + JEM__QUANTILES + net->classes * (1 + dims) + dims + dims * (dims + 1) / 2;
}
static jem__slopes jem__slopes_at(const jem_net *net, int gradients, float *all) {
    jem__slopes s;
    s.gradients = gradients;
    s.dims = jem__slopes_dims(net, gradients);
    s.classes = net->classes;
    s.all = all;
    s.q = all + 1;
    s.scale = s.q + JEM__QUANTILES;
    s.mean = s.scale + s.classes;
    s.spread = s.mean + s.classes * s.dims;
    s.root = s.spread + s.dims;
    return s;
}

/* How many gradients a text's calibration takes; -1: it is no such text. */
static int jem__slopes_gradients(const char *text) {
    double v = -1;
    if (!text || jem__scan_number(text, &v) == text) return -1;
    return v == floor(v) && v >= 0 && v <= (int)JEM__MOST_SLOPES ? (int)v : -1;
}
/* Reads a text into all[jem__slopes_size]; 0: the text is damaged, or of another network. */
static int jem__slopes_in(const jem_net *net, const char *text, float *all, jem__slopes *s) {
    const int gradients = jem__slopes_gradients(text);
    if (gradients < 0 || (gradients > 1 && !(net->noise_lo > 0))) return 0;
    const int n = jem__slopes_size(net, gradients);
    if (jem__numbers_in(text, all, n) < n) return 0;
    *s = jem__slopes_at(net, gradients, all);
    int good = jem__rises(s->q, JEM__QUANTILES);
    for (int c = 0; c < s->classes; c++) good &= s->scale[c] > 1e-6f;
    for (int i = 0; i < s->dims; i++)
        good &= s->spread[i] > 1e-7f && s->root[i * (i + 3) / 2] > 1e-4f;
    return good;
}
/* Reads the network's own; its numbers are on the tape. */
static int jem__slopes_read(const jem_net *net, jem__slopes *s) {
    const char *text = jem_net_meta(net, jem__slopes_key);
    const int gradients = jem__slopes_gradients(text);
    if (gradients < 0) return 0;
    float *all = jem__push_floats(net->ctx, jem__slopes_size(net, gradients));
    return all && jem__slopes_in(net, text, all, s);
}

/* log of the mean square of scale * a + b; b may be NULL. What is 0 is as small as can be told. */
static float jem__log_square(const float *a, float scale, const float *b, ptrdiff_t n) {
    double sum = 0;
    for (ptrdiff_t i = 0; i < n; i++) {
        double v = (double)scale * (double)a[i];   /* exact */
        if (b) v += (double)b[i];
        sum = fma(v, v, sum);
    }
    return (float)log(sum / (double)n + 1e-12);
}

/* Writes statistics of the slope at x + sigma z, for m images, to v[m][dims] from `at` on: one
   without noise (sigma 0), otherwise three. */
static jem_status jem__slopes_look(jem_net *net, const float *x, int m, float sigma, const float *z,
                                   float *v, int dims, int at) {
    jem_ctx *ctx = net->ctx;
    const ptrdiff_t size = jem__image(net);
    const jem_mark mark = jem_begin(ctx);
    float *noisy = jem__push_floats(ctx, m * size);
    float *g = jem__push_floats(ctx, m * size);
    float *p = jem__push_floats(ctx, m);
    for (ptrdiff_t i = 0; noisy && i < m * size; i++)
        noisy[i] = jem__fmaf(sigma, z[i % size], x[i]);
    jem_tensor *t = noisy ? jem__images(net, noisy, m) : NULL;
    jem_tensor *logp = jem_logp(ctx, t, net);
    jem_keep(logp);
    jem_grad(logp, t);
    if (g && p && jem_read_grad(t, g) == JEM_OK && jem_read(logp, p) == JEM_OK) {
        for (int i = 0; i < m; i++) {
            const float *slope = g + i * size;
            float *to = v + i * dims + at;
            if (sigma == 0) {
                to[0] = jem__log_square(slope, 1, NULL, size);
                continue;
            }
            to[0] = jem__log_square(slope, sigma, z, size);
            to[1] = jem__log_square(slope, sigma, NULL, size);
            to[2] = p[i];
        }
    }
    jem_end(ctx, mark);
    return ctx->status;
}

/* The vectors v[n][dims] of n images, and what their logits say. */
static jem_status jem__slopes_see(jem_net *net, const char *what, const float *x, int n,
                                  int gradients, jem__seen *seen, float *v) {
    jem_ctx *ctx = net->ctx;
    const ptrdiff_t size = jem__image(net);
    const int k = net->classes;
    const int dims = jem__slopes_dims(net, gradients);
    float times[JEM__MOST_SLOPES] = { 0, 1, 4 };   /* noise_lo */
    const jem_rng seed = jem_rng_seed(39);
    if (gradients == 2) times[1] = 2;
    const jem_mark mark = jem_begin(ctx);
    float *z = jem__push_floats(ctx, size);
    float *f = jem__push_floats(ctx, (ptrdiff_t)JEM__EVAL_BATCH * k);
    for (int i = 0; z && f && i < n && ctx->status == JEM_OK; i += JEM__EVAL_BATCH) {
        int m = n - i;
        if (m > JEM__EVAL_BATCH) m = JEM__EVAL_BATCH;
        float *to = v + (ptrdiff_t)i * dims;
        if (jem__see(net, what, x + i * size, m, f, seen + i) != JEM_OK) break;
        int at = 0;
        for (int j = 0; j < m; j++) {
            float *row = to + (ptrdiff_t)j * dims;
            if (k <= JEM__MOST_LOGITS) {
                memcpy(row, f + (ptrdiff_t)j * k, (size_t)k * sizeof *row);
                at = k;
            } else {
                row[0] = seen[i + j].mean;
                row[1] = seen[i + j].odds;
                at = 2;
            }
            row[at] = seen[i + j].logp;
        }
        at++;
        for (int level = 0; level < gradients && ctx->status == JEM_OK; level++) {
            jem_rng rng = jem_rng_split(&seed, (uint64_t)level);
            jem_fill_normal(ctx, &rng, z, size, 0, 1);
            jem__slopes_look(net, x + i * size, m, times[level] * net->noise_lo, z, to, dims, at);
            at += 1 + 2 * (level > 0);
        }
        if (ctx->status == JEM_OK && !jem__all_finite(to, m * dims))
            jem__fail(ctx, JEM_DIVERGED, "%s: slopes are not finite", what);
    }
    jem_end(ctx, mark);
    return ctx->status;
}

/* Minus the distance of v from the mean of label y, before it is divided by scale[y]. w[dims]. */
static float jem__slopes_far(const jem__slopes *s, const float *v, int y, double *w) {
    const float *mean = s->mean + (ptrdiff_t)y * s->dims;
    const float *row = s->root;
    double square = 0;
    for (int i = 0; i < s->dims; i++) {            /* L w = (v - m) / spread */
        double sum = ((double)v[i] - (double)mean[i]) / (double)s->spread[i];
        for (int j = 0; j < i; j++) sum = fma(-(double)row[j], w[j], sum);
        w[i] = sum / (double)row[i];
        square = fma(w[i], w[i], square);
        row += i + 1;
    }
    return -(float)sqrt(square);
}
static float jem__slopes_score(const jem__slopes *s, const float *v, int y, double *w) {
    return jem__slopes_far(s, v, y, w) / s->scale[y];
}

/* The share of calibration images with a lower score. Quantile k is that of (k/64)^2, for many are
   needed where few images are; between them the root is linear. */
static float jem__slopes_share(const jem__slopes *s, float score) {
    const float root = jem__familiarity(s->q, JEM__QUANTILES, score);
    return root * root;
}

/* Fits mean, spread and root to images whose number modulo JEM__FOLDS is not `without`. The mean of
   a label with few images is drawn towards that of all, as if four images of that were its own.
   work: two numbers per dimension, and a triangle of them. */
static void jem__slopes_fit(jem__slopes *s, const float *v, const jem__seen *seen, int n,
                            int without, double *work) {
    const int dims = s->dims;
    double *mean = work, *sum = work + dims, *cov = work + 2 * dims;
    int count = 0;
    memset(work, 0, (size_t)(2 * dims + dims * (dims + 1) / 2) * sizeof *work);
    for (int i = 0; i < n; i++) {
        if (i % JEM__FOLDS == without) continue;
        for (int a = 0; a < dims; a++) mean[a] += (double)v[(ptrdiff_t)i * dims + a];
        count++;
    }
    for (int a = 0; a < dims; a++) mean[a] /= count;
    for (int c = 0; c < s->classes; c++) {
        double own = 4;
        for (int a = 0; a < dims; a++) sum[a] = 4 * mean[a];
        for (int i = 0; i < n; i++) {
            if (i % JEM__FOLDS == without || seen[i].label != c) continue;
            for (int a = 0; a < dims; a++) sum[a] += (double)v[(ptrdiff_t)i * dims + a];
            own++;
        }
        for (int a = 0; a < dims; a++) s->mean[(ptrdiff_t)c * dims + a] = (float)(sum[a] / own);
    }
    for (int i = 0; i < n; i++) {
        if (i % JEM__FOLDS == without) continue;
        const float *row = v + (ptrdiff_t)i * dims;
        const float *m = s->mean + (ptrdiff_t)seen[i].label * dims;
        double *to = cov;
        for (int a = 0; a < dims; a++) {
            const double d = (double)row[a] - (double)m[a];
            for (int b = 0; b <= a; b++) to[b] = fma(d, (double)row[b] - (double)m[b], to[b]);
            to += a + 1;
        }
    }
    for (int a = 0; a < dims; a++)
        s->spread[a] = (float)(sqrt(cov[a * (a + 3) / 2] / count) + 1e-6);
    /* Cholesky of the correlations and .01 I, which keeps logits that move together from making
       small differences count for much. */
    for (int a = 0; a < dims; a++)
        for (int b = 0; b <= a; b++) {
            const double unit = (double)s->spread[a] * (double)s->spread[b] * count;
            double r = cov[a * (a + 1) / 2 + b] / unit + 0.01 * (a == b);
            for (int j = 0; j < b; j++)
                r = fma(-(double)s->root[a * (a + 1) / 2 + j],
                        (double)s->root[b * (b + 1) / 2 + j], r);
            if (a == b) r = sqrt(fmax(r, 1e-3));
            else r /= (double)s->root[b * (b + 3) / 2];
            s->root[a * (a + 1) / 2 + b] = (float)r;
        }
}

jem_status jem_classify(jem_net *net, const float *x, int n, jem_answer *answers) {
    if (!net) return JEM_BAD_ARGUMENT;
    const jem_mark mark = jem_begin(net->ctx);
    float q[JEM__QUANTILES];
    jem__slopes slopes;
    const int deep = jem__slopes_read(net, &slopes);
    const jem__usual *u = jem__usual_read(net);
    const int n_q = jem__familiar_read(jem_net_meta(net, jem__familiar_key), q);
    const int good = answers && x && n >= 0;
    jem__seen *seen = good ? (jem__seen *)jem__push(net->ctx, (size_t)n * sizeof *seen) : NULL;
    float *v = NULL;
    double *work = NULL;
    if (seen && deep) {
        v = jem__push_floats(net->ctx, (ptrdiff_t)n * slopes.dims);
        work = (double *)jem__push(net->ctx, (size_t)slopes.dims * sizeof *work);
    }
    jem_status s = JEM_NO_MEMORY;
    if (!good || (seen && !deep)) s = jem__see(net, "classify", x, n, NULL, seen);
    else if (v && work) s = jem__slopes_see(net, "classify", x, n, slopes.gradients, seen, v);
    for (int i = 0; s == JEM_OK && i < n; i++) {
        jem_answer *a = answers + i;
        a->label = seen[i].label, a->probability = seen[i].p, a->log_density = seen[i].logp;
        if (deep) {
            const float *row = v + (ptrdiff_t)i * slopes.dims;
            const float score = jem__slopes_score(&slopes, row, a->label, work);
            a->familiarity = jem__slopes_share(&slopes, score);
        } else if (u) {
            const float score = jem__usual_score(u, u->m, seen[i]);
            a->familiarity = jem__familiarity(u->q, JEM__QUANTILES, score);
        } else {
            a->familiarity = jem__familiarity(q, n_q, seen[i].logp);
        }
    }
    jem_end(net->ctx, mark);
    return s;
}

float jem_accuracy(jem_net *net, const float *x, const int *labels, int n) {
    if (!net || !jem__labels_good(net->ctx, "accuracy", labels, n, net->classes)) return -1;
    const jem_mark mark = jem_begin(net->ctx);
    jem__seen *seen = (jem__seen *)jem__push(net->ctx, (size_t)n * sizeof *seen);
    const int ok = seen && jem__see(net, "accuracy", x, n, NULL, seen) == JEM_OK;
    int right = 0;
    for (int i = 0; ok && i < n; i++) right += seen[i].label == labels[i];
    jem_end(net->ctx, mark);
    return ok ? (float)right / (float)n : -1;
}

static int jem__compare_floats(const void *a, const void *b) {
    const float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}
/* Sorts x, and takes so many of them at even distances. */
static void jem__quantiles(float *x, int n, float *q) {
    qsort(x, (size_t)n, sizeof *x, jem__compare_floats);
    for (int i = 0; i < JEM__QUANTILES; i++)
        q[i] = x[(int)((double)i * (n - 1) / (JEM__QUANTILES - 1) + 0.5)];
}

/* Means by label, and what is left of the covariance. A label with few images takes its mean also
   from the others, as if four of them were its own. */
static void jem__usual_fit(jem__usual *u, float *m, int classes, const jem__seen *a, int n) {
    double all[2] = { 0, 0 }, s[3] = { 0, 0, 0 };
    for (int i = 0; i < n; i++) all[0] += (double)a[i].logp / n, all[1] += (double)a[i].mean / n;
    for (int c = 0; c < classes; c++) {
        double sum[2] = { 4 * all[0], 4 * all[1] }, count = 4;
        for (int i = 0; i < n; i++) if (a[i].label == c)
            sum[0] += (double)a[i].logp, sum[1] += (double)a[i].mean, count++;
        for (int k = 0; k < 2; k++) m[2 * c + k] = (float)(sum[k] / count);
    }
    for (int i = 0; i < n; i++) {
        const double d = (double)a[i].logp - (double)m[2 * a[i].label];
        const double e = (double)a[i].mean - (double)m[2 * a[i].label + 1];
        s[0] += d * d / n, s[1] += d * e / n, s[2] += e * e / n;
    }
    const double l = sqrt(fma(s[0], 1.001, 1e-6)), down = s[1] / l;    /* never singular */
    u->l[0] = (float)l, u->l[1] = (float)down;
    u->l[2] = (float)sqrt(fmax(fma(-down, down, s[2] * 1.001), 0) + 1e-6);
}

/* Fits to all images; scores[n] are of each by a fit without its fold, the scale of which is then
   the class's: as if sixteen images of the mean square were its own. */
static jem_status jem__slopes_calibrate(jem__slopes *s, jem_ctx *ctx, const float *v,
                                        const jem__seen *seen, int n, float *scores) {
    const int dims = s->dims;
    const int triangle = dims * (dims + 1) / 2;
    double *work = (double *)jem__push(ctx, (size_t)(2 * dims + triangle) * sizeof *work);
    double *square = (double *)jem__push_zero(ctx, (size_t)s->classes * sizeof *square);
    int *count = (int *)jem__push_zero(ctx, (size_t)s->classes * sizeof *count);
    if (!work || !square || !count) return JEM_NO_MEMORY;
    double all = 0;
    for (int fold = 0; fold < JEM__FOLDS && fold < n; fold++) {
        jem__slopes_fit(s, v, seen, n, fold, work);
        for (int i = fold; i < n; i += JEM__FOLDS) {
            const int y = seen[i].label;
            scores[i] = jem__slopes_far(s, v + (ptrdiff_t)i * dims, y, work);
            const double far = (double)scores[i];
            square[y] += far * far;
            all += far * far / n;
            count[y]++;
        }
    }
    for (int c = 0; c < s->classes; c++)
        s->scale[c] = (float)sqrt((square[c] + 16 * all) / (count[c] + 16) + 1e-6);
    for (int i = 0; i < n; i++) scores[i] /= s->scale[seen[i].label];
    jem__slopes_fit(s, v, seen, n, -1, work);
    qsort(scores, (size_t)n, sizeof *scores, jem__compare_floats);
    for (int k = 0; k < JEM__QUANTILES; k++) {     /* score j of n is the quantile (j+1)/(n+1) */
        const double root = (double)k / (JEM__QUANTILES - 1);
        const double at = fmin(fmax(root * root * (n + 1) - 1, 0), n - 1);
        const int low = (int)at;
        const int high = low + (low + 1 < n);
        const double gap = (double)scores[high] - (double)scores[low];
        s->q[k] = (float)fma(at - low, gap, (double)scores[low]);
    }
    return JEM_OK;
}

jem_status jem_calibrate_slopes(jem_net *net, const float *x, int n, int gradients) {
    if (!net) return JEM_BAD_ARGUMENT;
    jem_ctx *ctx = net->ctx;
    if (!x) return jem__fail(ctx, JEM_BAD_ARGUMENT, "calibrate_slopes: x is NULL");
    if (n < 2 || gradients < 0 || gradients > JEM__MOST_SLOPES)
        return jem__fail(ctx, JEM_BAD_ARGUMENT, "calibrate_slopes: %d images, %d gradients (2 "
                         "images or more, 0 to %d gradients)", n, gradients,
                         (int)JEM__MOST_SLOPES);
    if (gradients > 1 && !(net->noise_lo > 0))
        return jem__fail(ctx, JEM_BAD_ARGUMENT, "calibrate_slopes: %d gradients: this network has "
                         "learned no score, and takes 0 or 1", gradients);
    const int numbers = jem__slopes_size(net, gradients);
    const jem_mark mark = jem_begin(ctx);
    float *all = jem__push_floats(ctx, numbers);
    float *v = jem__push_floats(ctx, (ptrdiff_t)n * jem__slopes_dims(net, gradients));
    float *scores = jem__push_floats(ctx, n);
    jem__seen *seen = (jem__seen *)jem__push(ctx, (size_t)n * sizeof *seen);
    jem__meta *text = NULL;
    jem_status s = JEM_NO_MEMORY;
    if (all && v && scores && seen)
        s = jem__slopes_see(net, "calibrate_slopes", x, n, gradients, seen, v);
    if (s == JEM_OK) {
        jem__slopes slopes = jem__slopes_at(net, gradients, all);
        all[0] = (float)gradients;
        s = jem__slopes_calibrate(&slopes, ctx, v, seen, n, scores);
    }
    if (s == JEM_OK) s = jem__numbers_write(net, &text, jem__slopes_key, all, numbers);
    if (s == JEM_OK) s = jem_calibrate(net, x, n);
    jem__meta_take(net, text, s == JEM_OK);
    jem_end(ctx, mark);
    return s;
}

jem_status jem_calibrate(jem_net *net, const float *x, int n) {
    if (!net) return JEM_BAD_ARGUMENT;
    jem_ctx *ctx = net->ctx;
    if (n < 2) return jem__fail(ctx, JEM_BAD_ARGUMENT, "calibrate: needs 2 images, not %d", n);
    const int numbers = jem__usual_size(net);
    const jem_mark mark = jem_begin(ctx);
    jem__seen *a = (jem__seen *)jem__push(ctx, (size_t)n * sizeof *a);
    float *v = jem__push_floats(ctx, n), *all = jem__push_floats(ctx, numbers), q[JEM__QUANTILES];
    jem_status s = a && v && all ? jem__see(net, "calibrate", x, n, NULL, a) : JEM_NO_MEMORY;
    for (int i = 0; i < n && s == JEM_OK; i++)
        if (!(fabsf(a[i].logp) < 1e8f && fabsf(a[i].mean) < 1e8f))
            s = jem__fail(ctx, JEM_DIVERGED, "calibrate: log p(x) of image %d is %g, its mean "
                          "logit %g", i, (double)a[i].logp, (double)a[i].mean);
    if (s == JEM_OK) {
        jem__usual *u = (jem__usual *)(void *)all;
        for (int i = 0; i < n; i++) v[i] = a[i].logp;
        jem__quantiles(v, n, q);
        jem__usual_fit(u, u->m, net->classes, a, n);
        for (int i = 0; i < n; i++) v[i] = jem__usual_score(u, u->m, a[i]);
        jem__quantiles(v, n, u->q);
        jem__meta *both = NULL;
        s = jem__numbers_write(net, &both, jem__familiar_key, q, JEM__QUANTILES);
        if (s == JEM_OK) s = jem__numbers_write(net, &both, jem__usual_key, all, numbers);
        jem__meta_take(net, both, s == JEM_OK);
        if (s == JEM_OK) jem__meta_set(ctx, &net->meta, jem__slopes_key, NULL);
    }
    jem_end(ctx, mark);
    return s;
}

/* ---- probabilities --------------------------------------------------------------------------- */

jem_status jem_logits(jem_net *net, const float *x, int n, float *f) {
    return net ? jem__see(net, "logits", x, n, f, NULL) : JEM_BAD_ARGUMENT;
}

/* -log p(y|x) is convex in 1/T: its slope, the mean of E_p[f] - f[y], rises with it. */
float jem_fit_temperature(jem_net *net, const float *x, const int *labels, int n) {
    if (!net || !jem__labels_good(net->ctx, "fit_temperature", labels, n, net->classes)) return -1;
    jem_ctx *ctx = net->ctx;
    const int k = net->classes;
    const jem_mark mark = jem_begin(ctx);
    float *f = jem__push_floats(ctx, (ptrdiff_t)n * k);
    double lo = log(0.01), hi = log(100);          /* of 1/T */
    int matters = 0;                               /* equal logits say nothing about T */
    const int ok = f && jem_logits(net, x, n, f) == JEM_OK;
    for (int round = 0; ok && round < 40; round++) {
        double slope = 0, middle = (lo + hi) / 2, cold = exp(middle);
        for (int i = 0; i < n; i++) {
            const float *row = f + (ptrdiff_t)i * k;
            double sum = 0, above = 0, most = (double)row[0];
            for (int c = 1; c < k; c++) most = fmax(most, (double)row[c]);
            for (int c = 0; c < k; c++) {
                const double e = exp(cold * ((double)row[c] - most));
                sum += e, above = fma(e, (double)row[c] - (double)row[labels[i]], above);
            }
            slope += above / sum;
        }
        *(slope > 0 ? &hi : &lo) = middle, matters |= slope > 0 || slope < 0;
    }
    jem_end(ctx, mark);
    const float t = matters ? (float)exp(-(lo + hi) / 2) : 1;
    const jem_status s = !ok ? ctx->status
                             : jem__numbers_write(net, &net->meta, jem__temperature_key, &t, 1);
    return s == JEM_OK ? t : -1;
}

/* ---- in or out of distribution --------------------------------------------------------------- */

static float jem__norm_of(const float *a, const float *b, ptrdiff_t n) {         /* of a - b */
    double sum = 0;
    for (ptrdiff_t i = 0; i < n; i++) {
        const float d = b ? a[i] - b[i] : a[i];
        sum += (double)d * (double)d;              /* exact */
    }
    return (float)sqrt(sum);
}

/* The score of slopes, of m images. */
static void jem__ood_slopes(jem_net *net, const float *x, int m, float *score) {
    jem_ctx *ctx = net->ctx;
    jem__slopes s;
    if (!jem__slopes_read(net, &s)) {
        jem__fail(ctx, JEM_BAD_ARGUMENT, "ood_score: not calibrated (jem_calibrate_slopes)");
        return;
    }
    jem__seen seen[JEM__EVAL_BATCH];
    float *v = jem__push_floats(ctx, (ptrdiff_t)m * s.dims);
    double *work = (double *)jem__push(ctx, (size_t)s.dims * sizeof *work);
    if (!v || !work || jem__slopes_see(net, "ood_score", x, m, s.gradients, seen, v) != JEM_OK)
        return;
    for (int i = 0; i < m; i++)
        score[i] = jem__slopes_score(&s, v + (ptrdiff_t)i * s.dims, seen[i].label, work);
}

/* The scores that want gradients: of one, or of a walk. */
static void jem__ood_walk(jem_net *net, jem_ood kind, const jem_sgld_desc *walk, const float *x,
                          int m, float *score) {
    jem_ctx *ctx = net->ctx;
    const ptrdiff_t size = jem__image(net);
    float *after = jem__push_floats(ctx, m * size), *end = jem__push_floats(ctx, m);
    jem_tensor *t = jem__images(net, x, m), *logp = jem_logp(ctx, t, net);
    if (!after || !end || jem_read(logp, score) != JEM_OK) return;
    if (kind == JEM_OOD_MASS) jem_grad(logp, t), jem_read_grad(t, after);
    else jem_sgld(ctx, jem_logp, net, t, walk, NULL), jem_read(t, after), jem_read(logp, end);
    for (int i = 0; jem_ok(ctx) && i < m; i++, x += size, after += size)
        score[i] = kind == JEM_OOD_RISE ? score[i] - end[i]
                 : -jem__norm_of(after, kind == JEM_OOD_MOVE ? x : NULL, size);
}

jem_status jem_ood_score(jem_net *net, jem_ood kind, const jem_sgld_desc *walk, const float *x,
                         int n, float *score) {
    if (!net) return JEM_BAD_ARGUMENT;
    jem_ctx *ctx = net->ctx;
    const ptrdiff_t size = jem__image(net);
    jem_sgld_desc d = walk ? *walk : jem_sgld_desc_default();
    if (!walk) d.steps = 10;
    if (!walk && net->noise_lo > 0) d.step_size = net->noise_lo * net->noise_lo;
    if (!x || !score || n < 0 || kind < JEM_OOD_LOGP || kind > JEM_OOD_SLOPES)
        return jem__fail(ctx, JEM_BAD_ARGUMENT, "ood_score: %d images, score %d", n, (int)kind);
    if (jem__images_check(net, "ood_score", x, n) != JEM_OK) return ctx->status;
    for (int i = 0, m; i < n && ctx->status == JEM_OK; i += m, x += m * size) {
        const jem_mark mark = jem_begin(ctx);
        const jem__usual *u = kind == JEM_OOD_USUAL ? jem__usual_read(net) : NULL;
        jem__seen seen[JEM__EVAL_BATCH];
        m = n - i < JEM__EVAL_BATCH ? n - i : JEM__EVAL_BATCH;
        if (kind == JEM_OOD_USUAL && !u)
            jem__fail(ctx, JEM_BAD_ARGUMENT, "ood_score: not calibrated (jem_calibrate)");
        else if (kind >= JEM_OOD_MASS && kind <= JEM_OOD_MOVE)
            jem__ood_walk(net, kind, &d, x, m, score + i);
        else if (kind == JEM_OOD_SLOPES)
            jem__ood_slopes(net, x, m, score + i);
        else if (jem__see(net, "ood_score", x, m, NULL, seen) == JEM_OK)
            for (int k = 0; k < m; k++)
                score[i + k] = u ? jem__usual_score(u, u->m, seen[k])
                             : kind == JEM_OOD_MAXP ? seen[k].odds : seen[k].logp;
        if (ctx->status == JEM_OK && !jem__all_finite(score + i, m))
            jem__fail(ctx, JEM_DIVERGED, "ood_score: scores are not finite");
        jem_end(ctx, mark);
    }
    return ctx->status;
}

/* ---- attacks --------------------------------------------------------------------------------- */

jem_attack_desc jem_attack_desc_default(void) {
    JEM__ZEROED(jem_attack_desc, d);
    d.eps = 0.2f, d.steps = 40, d.restarts = 1, d.random_start = 1, d.lo = -1, d.hi = 1;
    return d;
}

/* v += step along g (L2: of that length; else each pixel by it), then back to within eps of x, and
   to between lo or x and hi or x: which only comes nearer to x. */
static void jem__attack_move(const jem_attack_desc *d, const float *x, const float *g, float step,
                             float *v, ptrdiff_t n) {
    const float length = d->l2 ? jem__norm_of(g, NULL, n) : 0;
    const float share = length > 0 ? step / length : 0;
    const int steep = jem__finite(share);          /* a sure network's slope may be 1e-40 */
    for (ptrdiff_t i = 0; i < n; i++)
        v[i] = d->l2 ? jem__fmaf(steep ? share : step, steep ? g[i] : g[i] / length, v[i])
             : g[i] > 0 ? v[i] + step : g[i] < 0 ? v[i] - step : v[i];
    const float far = d->l2 && d->eps < HUGE_VALF ? jem__norm_of(v, x, n) : 0;
    for (ptrdiff_t i = 0; i < n; i++) {
        if (far > d->eps) v[i] = jem__fmaf(v[i] - x[i], d->eps / far, x[i]);
        if (!d->l2) v[i] = fminf(fmaxf(v[i], x[i] - d->eps), x[i] + d->eps);
        v[i] = fminf(fmaxf(v[i], fminf(d->lo, x[i])), fmaxf(d->hi, x[i]));
    }
}

/* Anywhere within eps: even in the cube; in the ball, a direction times eps u^(1/n). g: scratch. */
static void jem__attack_start(jem_ctx *ctx, const jem_attack_desc *d, jem_rng *rng, const float *x,
                              float *g, float *v, ptrdiff_t n) {
    memcpy(v, x, (size_t)n * sizeof *v);
    if (!d->random_start || !(d->eps < HUGE_VALF)) return;
    if (d->l2) jem_fill_normal(ctx, rng, g, n, 0, 1);
    else jem_fill_uniform(ctx, rng, g, n, -d->eps, d->eps);
    for (ptrdiff_t i = 0; !d->l2 && i < n; i++) v[i] += g[i];
    jem__attack_move(d, x, g, d->l2 ? d->eps * powf(jem_rng_uniform(rng), 1 / (float)n) : 0, v, n);
}

/* As jem_attack_desc's classify: the network itself. */
static jem_status jem__attack_see(void *user, const float *x, const int *labels, int n, float *f,
                                  float *g) {
    jem_net *net = (jem_net *)user;
    const jem_mark mark = jem_begin(net->ctx);
    jem_tensor *t = jem__images(net, x, n), *logits = jem_forward(net, t, 0);
    jem_tensor *odds = jem__odds(net, logits, labels);
    jem_keep(logits);
    if (g && jem_grad(odds, t) == JEM_OK) jem_read_grad(t, g);
    jem_read(logits, f);
    jem_end(net->ctx, mark);
    return net->ctx->status;
}

/* One attempt at m images; `found` is where they are. Step -1 looks whether they are done. */
static void jem__attack_once(jem_net *net, const float *x, const int *labels, int m,
                             const jem_attack_desc *d, jem_rng *rng, float *found, int *done) {
    jem_ctx *ctx = net->ctx;
    const int k = net->classes;
    const ptrdiff_t size = jem__image(net);
    const float temperature = d->classify == jem__attack_see ? jem__temperature_of(net) : 1;
    const ptrdiff_t all = (ptrdiff_t)m * k;
    float *g = jem__push_floats(ctx, m * size), *f = jem__push_floats(ctx, all);
    for (int step = -1, left = m; g && f && step <= d->steps && left; step++) {
        const int moves = step >= 0 && step < d->steps;
        const jem_status told = d->classify(d->user, found, labels, m, f, moves ? g : NULL);
        if (told != JEM_OK) jem__fail(ctx, told, "attack: classify failed");
        if (jem_ok(ctx) && !(jem__all_finite(f, all) && (!moves || jem__all_finite(g, m * size))))
            jem__fail(ctx, JEM_DIVERGED, "attack: the classifier's numbers are not finite");
        if (!jem_ok(ctx)) return;
        for (int i = left = 0; i < m; i++) {
            jem__seen s;
            jem__see_one(f + (ptrdiff_t)i * k, k, temperature, &s);
            done[i] |= !d->targeted ? s.label != labels[i]
                                    : s.label == labels[i] && s.p >= d->least_probability;
            const ptrdiff_t at = i * size;
            if (!done[i] && step < 0)
                jem__attack_start(ctx, d, rng, x + at, g + at, found + at, size);
            else if (!done[i] && step < d->steps)
                jem__attack_move(d, x + at, g + at, d->targeted ? d->step_size : -d->step_size,
                                 found + at,
                                 size);
            left += !done[i];
        }
    }
}

jem_status jem_attack(jem_net *net, const float *x, const int *labels, int n,
                      const jem_attack_desc *desc, jem_rng *rng, float *found, int *fooled) {
    if (!net) return JEM_BAD_ARGUMENT;
    jem_ctx *ctx = net->ctx;
    const ptrdiff_t size = jem__image(net);
    jem_attack_desc d = desc ? *desc : jem_attack_desc_default();
    if (!d.classify) d.classify = jem__attack_see, d.user = net;
    const char *const what = "attack";
    const int far = jem__float_bits(d.eps) == 0x7f800000u; /* infinite: it must be told a step */
    if ((!far && !JEM__IN(d.eps, 0, JEM__MOST)) || !JEM__IN(d.steps, 1, INT32_MAX) ||
        !JEM__IN(d.step_size, far ? JEM__TINY : 0, JEM__MOST) || !JEM__IN(d.restarts, 1,
                                                                          INT32_MAX) ||
        !JEM__IN(d.least_probability, 0, 1) || !JEM__IN(d.lo, -JEM__MOST, JEM__MOST) ||
        !JEM__IN(d.hi, d.lo, JEM__MOST)) return ctx->status;
    if (d.step_size == 0) d.step_size = d.steps == 1 ? d.eps : 2.5f * d.eps / (float)d.steps;
    if (!x || !found || n < 0 || (!rng && d.random_start))
        return jem__fail(ctx, JEM_BAD_ARGUMENT, "attack: %d images%s%s%s", n, x ? "" : ", x NULL",
                         found ? "" : ", found NULL", rng ? "" : ", no rng to start at random");
    if (jem__images_check(net, what, x, n) != JEM_OK ||
        (n > 0 && !jem__labels_good(ctx, what, labels, n, net->classes))) return ctx->status;
    if (found != x) memcpy(found, x, (size_t)(n * size) * sizeof *x);
    for (int i = 0; i < n && ctx->status == JEM_OK; i += JEM__EVAL_BATCH) {
        const int m = n - i < JEM__EVAL_BATCH ? n - i : JEM__EVAL_BATCH;
        int done[JEM__EVAL_BATCH] = { 0 };
        const jem_mark batch = jem_begin(ctx);
        float *from = jem__push_floats(ctx, m * size);     /* found may be x */
        if (from) memcpy(from, x + i * size, (size_t)(m * size) * sizeof *x);
        for (int r = 0; r < d.restarts && ctx->status == JEM_OK; r++) {
            const jem_mark mark = jem_begin(ctx);
            jem__attack_once(net, from, labels + i, m, &d, rng, found + i * size, done);
            jem_end(ctx, mark);
        }
        jem_end(ctx, batch);
        if (fooled) memcpy(fooled + i, done, (size_t)m * sizeof *done);
    }
    return ctx->status;
}

/* ---- what is missing ------------------------------------------------------------------------- */

jem_impute_desc jem_impute_desc_default(void) {
    JEM__ZEROED(jem_impute_desc, d);
    d.denoise = jem_denoise_desc_default(), d.walk = jem_sgld_desc_default();
    d.denoise.steps = 0, d.denoise.fraction = 0.8f, d.denoise.beta = 0.019f;
    d.walk.steps = 300, d.lo = -1, d.hi = 1;
    return d;
}

/* log p of u where it is open, and of what is held elsewhere: no gradient comes to u there. */
typedef struct jem__held {
    jem_logp_fn logp;
    void *user;
    jem_tensor *open, *held;
    const jem_impute_desc *desc;
    float *noisy;                                  /* all of u, while a watch looks */
    int stopped;                                   /* by a watch */
} jem__held;
static jem_tensor *jem__logp_held(jem_ctx *ctx, jem_tensor *u, void *user) {
    const jem__held *h = (const jem__held *)user;
    return h->logp(ctx, jem_add(ctx, jem_mul(ctx, u, h->open), h->held), h->user);
}

/* What is known again where u has noise on it, whether there was an error or not. */
static void jem__impute_restore(const jem__held *h, jem_tensor *u) {
    const jem__node *to = u->node, *open = h->open->node, *held = h->held->node;
    for (ptrdiff_t i = 0; i < to->groups * to->stride; i++)
        if (open->value[i] == 0) to->value[i] = held->value[i];
    jem__leaf_changed(to);
}
/* It sees what is known; but the walk keeps its noise there, by which the last step tells how much
   it cleans: without it, samples stay grainy. */
static int jem__impute_watch(void *user, int step, jem_tensor *u) {
    jem__held *h = (jem__held *)user;
    jem_read(u, h->noisy), jem__impute_restore(h, u);
    h->stopped = h->desc->walk.watch(h->desc->walk.watch_user, step, u);
    jem_write(u, h->noisy);
    return h->stopped;
}

/* Noise-blind steps, all pixels having the same noise: a step leaves 1 - beta step of it. */
static void jem__impute_noisy(jem_ctx *ctx, jem__held *h, jem_tensor *u, const float *known,
                              const float *x, float *v, const jem_denoise_desc *d, jem_rng *rng) {
    const ptrdiff_t size = (ptrdiff_t)u->n * u->c * u->h * u->w;
    jem_denoise_desc one = *d;
    float sigma = d->sigma_max;
    one.steps = 1, one.watch = NULL;
    jem_fill_normal(ctx, rng, v, size, 0, sigma);
    for (int step = 0; step < d->steps && jem_ok(ctx); step++) {
        for (ptrdiff_t i = 0; i < size; i++)
            if (known[i] != 0) v[i] = jem__fmaf(sigma, jem_rng_normal(rng), x[i]);
        jem_write(u, v), jem_denoise(ctx, h->logp, h->user, u, &one, rng), jem_read(u, v);
        if (d->watch && (h->stopped = d->watch(d->watch_user, step, u))) break;
        sigma *= 1 - d->beta * d->fraction;
    }
}

jem_status jem_impute(jem_ctx *ctx, jem_logp_fn logp, void *user, jem_tensor *x, const float *known,
                      const jem_impute_desc *desc, jem_rng *rng) {
    const jem_impute_desc d = desc ? *desc : jem_impute_desc_default();
    const char *const what = "impute";
    if (!jem__walk_ready(ctx, what, logp, x, rng != NULL) || !JEM__IN(d.lo, -1e4, 1e4) ||
        !JEM__IN(d.hi, d.lo, 1e4) || !jem__denoise_good(ctx, "impute: denoise", d.denoise) ||
        !jem__sgld_good(ctx, "impute: walk", d.walk)) return jem_error_status(ctx);
    if (!known) return jem__fail(ctx, JEM_BAD_ARGUMENT, "impute: known is NULL");
    const ptrdiff_t size = (ptrdiff_t)x->n * x->c * x->h * x->w;
    const jem_mark mark = jem_begin(ctx);
    float *is = jem__push_floats(ctx, size), *u = jem__push_floats(ctx, size);
    float *open = jem__push_floats(ctx, size);
    if (is && u && open && jem_read(x, is) == JEM_OK) {
        JEM__ZEROED(jem__held, h);
        jem_sgld_desc walk = d.walk;
        if (walk.watch) walk.watch = jem__impute_watch, walk.watch_user = &h;
        h.logp = logp, h.user = user, h.desc = &d, h.noisy = u;
        memcpy(u, is, (size_t)size * sizeof *u);
        for (ptrdiff_t i = 0; i < size; i++)       /* what is missing may be NaN */
            open[i] = known[i] == 0 ? 1.0f : 0, is[i] = open[i] != 0 ? 0 : is[i];
        h.open = jem_input(ctx, open, x->n, x->c, x->h, x->w);
        h.held = jem_input(ctx, is, x->n, x->c, x->h, x->w);
        if (d.denoise.steps > 0) jem__impute_noisy(ctx, &h, x, known, is, u, &d.denoise, rng);
        else if (d.lo != d.hi) jem_fill_uniform(ctx, rng, u, size, d.lo, d.hi);
        if (jem_ok(ctx)) jem_write(x, u);
        if (!h.stopped) jem_sgld(ctx, jem__logp_held, &h, x, &walk, rng);
        const jem_denoise_desc last = jem_denoise_desc_clean(0.25f);
        if (d.denoise.steps > 0 && !h.stopped) jem_denoise(ctx, logp, user, x, &last, NULL);
        if (h.open && h.held) jem__impute_restore(&h, x);
    }
    jem_end(ctx, mark);
    return ctx->status;
}

/* ---- pictures -------------------------------------------------------------------------------- */

/* One pixel as the network has channels, 0..1: alpha over the background, Rec. 601 grey. */
static void jem__pixel(const unsigned char *p, int channels, const jem_pixels_desc *d, int wanted,
                       double *out) {
    const int colour = channels > 2, alpha = channels % 2 == 0;
    const double a = alpha ? p[channels - 1] / 255.0 : 1, behind = (1 - a) * d->background / 255.0;
    double c[3];
    for (int i = 0; i < 3; i++) c[i] = a * p[colour ? i : 0] / 255.0 + behind;
    if (wanted == 1 && colour) c[0] = 0.299 * c[0] + 0.587 * c[1] + 0.114 * c[2];
    for (int i = 0; i < wanted; i++) out[i] = d->invert ? 1 - c[i] : c[i];
}

/* Pixel i of `to` covers from .. until of `all`: the share of each is what lies inside. */
static void jem__cover(int i, int to, int all, double *from, double *until) {
    *from = (double)i * all / to, *until = (double)(i + 1) * all / to;
    if (*until - *from >= 1) return;               /* smaller than a pixel: the nearest one */
    *from = floor((*from + *until) / 2), *until = *from + 1;
}

/* Can pictures of this kind be told to the network? desc, with its defaults -> d. */
static jem_status jem__pixels_check(const jem_net *net, int width, int height, int channels,
                                    const jem_pixels_desc *desc, jem_pixels_desc *d) {
    memset(d, 0, sizeof *d);
    if (desc) *d = *desc;
    if (d->lo == 0 && d->hi == 0) d->lo = -1, d->hi = 1;
    if (width < 1 || height < 1 || channels < 1 || channels > 4 ||
        (double)width * height * channels > 1e9)
        return jem__fail(net->ctx, JEM_BAD_ARGUMENT,
                         "pixels: a picture of %d x %d pixels of %d bytes: 1 to 4 bytes each, up "
                         "to 10^9 in all", width, height, channels);
    if (net->channels != 1 && net->channels != 3)
        return jem__fail(net->ctx, JEM_BAD_SHAPE, "pixels: the network takes %d channels, and "
                         "pictures have 1 or 3", net->channels);
    if (!(d->lo < d->hi) || d->background < 0 || d->background > 255)
        return jem__fail(net->ctx, JEM_BAD_ARGUMENT, "pixels: from %g to %g, background %d "
                         "(0..255)", (double)d->lo, (double)d->hi, d->background);
    return JEM_OK;
}

/* Many parameters: a picture is pixels, width, height and channels wherever it goes. */
jem_status jem_pixels_to_floats(const jem_net *net, const unsigned char *pixels, int width,
                                int height, int channels, const jem_pixels_desc *desc, float *x,
                                int *did) {
    if (!net) return JEM_BAD_ARGUMENT;
    jem_pixels_desc d;
    const int h = net->height, w = net->width, c = net->channels;
    if (!pixels || !x) return jem__fail(net->ctx, JEM_BAD_ARGUMENT, "pixels_to_floats: NULL");
    if (jem__pixels_check(net, width, height, channels, desc, &d)) return net->ctx->status;
    for (int i = 0; i < h; i++)
        for (int j = 0; j < w; j++) {
            double y0, y1, x0, x1, sum[3] = { 0, 0, 0 };
            jem__cover(i, h, height, &y0, &y1), jem__cover(j, w, width, &x0, &x1);
            for (int row = (int)y0; row < y1 && row < height; row++)
                for (int col = (int)x0; col < x1 && col < width; col++) {
                    const double share = (fmin(row + 1, y1) - fmax(row, y0)) *
                                         (fmin(col + 1, x1) - fmax(col, x0));
                    double v[3];
                    jem__pixel(pixels + ((ptrdiff_t)row * width + col) * channels, channels, &d, c,
                               v);
                    for (int k = 0; k < c; k++) sum[k] += share * v[k];
                }
            for (int k = 0; k < c; k++) {
                const double mean = sum[k] / ((y1 - y0) * (x1 - x0));
                x[((ptrdiff_t)k * h + i) * w + j] =
                    (float)((double)d.lo + ((double)d.hi - (double)d.lo) * mean);
            }
        }
    const int resized = width != w || height != h;
    if (did) *did = (resized ? JEM_DID_RESIZE : 0) | (channels > 2 && c == 1 ? JEM_DID_GREY : 0) |
                    ((int64_t)width * h != (int64_t)height * w ? JEM_DID_STRETCH : 0) |
                    (channels < 3 && c == 3 ? JEM_DID_COLOUR : 0) |
                    (channels % 2 == 0 ? JEM_DID_BLEND : 0) | (d.invert ? JEM_DID_INVERT : 0);
    return JEM_OK;
}

jem_status jem_floats_to_pixels(const jem_net *net, const float *x, int n,
                                const jem_pixels_desc *desc, unsigned char *pixels) {
    if (!net) return JEM_BAD_ARGUMENT;
    jem_pixels_desc d;
    if (!x || !pixels || n < 0)
        return jem__fail(net->ctx, JEM_BAD_ARGUMENT, "floats_to_pixels: %d images%s", n,
                         x && pixels ? "" : ", or NULL");
    if (jem__pixels_check(net, net->width, net->height, 1, desc, &d)) return net->ctx->status;
    const ptrdiff_t size = (ptrdiff_t)net->height * net->width;
    for (ptrdiff_t i = 0; i < n; i++, x += net->channels * size)
        for (ptrdiff_t p = 0; p < size; p++)
            for (int c = 0; c < net->channels; c++) {
                double v = ((double)x[c * size + p] - (double)d.lo) / ((double)d.hi - (double)d.lo);
                v = !(v > 0) ? 0 : v > 1 ? 1 : v;  /* NaN is black */
                *pixels++ = (unsigned char)(255 * (d.invert ? 1 - v : v) + 0.5);
            }
    return JEM_OK;
}

jem_status jem_classify_pixels(jem_net *net, const unsigned char *pixels, int width, int height,
                               int channels, const jem_pixels_desc *desc, jem_answer *answer,
                               int *did) {
    if (!net) return JEM_BAD_ARGUMENT;
    float *x = jem__alloc_floats(net->ctx, jem__image(net));
    if (!x) return JEM_NO_MEMORY;
    jem_status s = jem_pixels_to_floats(net, pixels, width, height, channels, desc, x, did);
    if (s == JEM_OK) s = jem_classify(net, x, 1, answer);
    jem__free(net->ctx, x);
    return s;
}

jem_generate_desc jem_net_generate_desc(const jem_net *net) {
    jem_generate_desc d = jem_generate_desc_default();
    if (net && net->noise_hi > 0) {
        d.mean = net->mean, d.denoise.sigma_max = net->noise_hi, d.last_sigma = 2 * net->noise_lo;
        return d;
    }
    d.lo = -1, d.hi = 1, d.denoise.steps = 0, d.last_sigma = 0;
    d.walk = jem_sgld_desc_default(), d.walk.steps = 300;
    return d;
}

jem_guide jem_net_guide(jem_net *net, const int *labels) {
    jem_guide g;
    g.net = net, g.labels = labels, g.weight = net && net->noise_hi > 0 ? 7 : 1;
    return g;
}

jem_status jem_sample(jem_net *net, int label, int n, uint64_t seed, const jem_pixels_desc *desc,
                      unsigned char *pixels) {
    if (!net) return JEM_BAD_ARGUMENT;
    jem_ctx *ctx = net->ctx;
    jem_pixels_desc p;
    if (n < 1 || !pixels || label < -1 || label >= net->classes)
        return jem__fail(ctx, JEM_BAD_ARGUMENT, "sample: %d of class %d (-1, or 0..%d)%s", n, label,
                         net->classes - 1, pixels ? "" : ", and pixels is NULL");
    if (jem__pixels_check(net, net->width, net->height, 1, desc, &p)) return ctx->status;
    const jem_mark mark = jem_begin(ctx);
    float *x = jem__push_floats(ctx, n * jem__image(net));
    int *labels = (int *)jem__push(ctx, (size_t)n * sizeof(int));
    for (int i = 0; labels && i < n; i++) labels[i] = label;
    jem_rng rng = jem_rng_seed(seed);
    jem_guide guide = jem_net_guide(net, labels);
    jem_generate_desc how = jem_net_generate_desc(net);
    if (how.lo < how.hi) how.lo = p.lo, how.hi = p.hi;
    jem_tensor *t = jem__images(net, NULL, n);
    if (x && labels && jem_generate(ctx, label < 0 ? jem_logp : jem_logp_guided,
                                 label < 0 ? (void *)net : (void *)&guide, t, &how,
                                 &rng) == JEM_OK && jem_read(t, x) == JEM_OK)
        jem_floats_to_pixels(net, x, n, &p, pixels);
    jem_end(ctx, mark);
    return ctx->status;
}

/* ==== >>io: safetensors ======================================================================= */
/* A file is: 8 bytes, the header's length n, little-endian; n bytes of JSON,

       {"__metadata__": {"key": "text", ...},
        "name": {"dtype": "F32", "shape": [64,3,3,3], "data_offsets": [begin, end]}, ...}

   padded with spaces; then the tensors, row-major, little-endian. Offsets count from the end of the
   header; together the tensors cover the rest of the file, without gap or overlap.

   A file may come from anyone, so reading has three steps: parse the header, which cannot reach
   outside of it; check it whole against the file's size; only then allocate and copy. */

#include <inttypes.h>

#define JEM__MAX_HEADER 100000000u                 /* the reference's limit too */

/* The first four are jem_dtype's, in its order; the others are converted to `as` when read. */
typedef struct jem__dtype { const char *name; size_t size; jem_dtype as; } jem__dtype;
static const jem__dtype jem__dtypes[] = {
    { "F32", 4, JEM_DTYPE_F32 }, { "I32", 4, JEM_DTYPE_I32 }, { "I64", 8, JEM_DTYPE_I64 }, { "U8", 1, JEM_DTYPE_U8 },
    { "F64", 8, JEM_DTYPE_F32 }, { "F16", 2, JEM_DTYPE_F32 }, { "BF16", 2, JEM_DTYPE_F32 },
        { "BOOL", 1, JEM_DTYPE_U8 }
};
enum { JEM__F64 = 4, JEM__F16, JEM__BF16, JEM__BOOL, JEM__DTYPES };
#define JEM__READABLE "F32, F64, F16, BF16, I64, I32, U8, BOOL can"

typedef struct jem__entry {
    jem_entry e;
    void *owned;                                   /* e.data, if it came from a file */
    int dtype;                                     /* in the file: index into jem__dtypes, or -1 */
    size_t begin, end;                             /* in the file: data_offsets */
} jem__entry;

struct jem_archive {
    jem_ctx *ctx;
    const char *where;                             /* for messages: the path */
    jem__entry **entries;                          /* pointers, so that a jem_entry * stays good */
    int count, capacity;
    jem__entry **skipped;                          /* of a dtype that cannot be read; no data */
    int skips;
    jem__meta *meta;
};

/* ---- archives in memory ---------------------------------------------------------------------- */

void jem_archive_free(jem_archive *a) {
    if (!a) return;
    for (int i = 0; i < a->count; i++) {
        jem__free(a->ctx, a->entries[i]->owned);
        jem__free(a->ctx, a->entries[i]);
    }
    for (int i = 0; i < a->skips; i++) jem__free(a->ctx, a->skipped[i]);
    jem__meta_free(a->ctx, a->meta);
    jem__free(a->ctx, a->skipped);
    jem__free(a->ctx, a->entries);
    jem__free(a->ctx, a);
}

int jem_archive_count(const jem_archive *a) { return a ? a->count : 0; }
const jem_entry *jem_archive_at(const jem_archive *a, int i) {
    return a && i >= 0 && i < a->count ? &a->entries[i]->e : NULL;
}
const jem_entry *jem_archive_find(const jem_archive *a, const char *name) {
    for (int i = 0; a && name && i < a->count; i++)
        if (!strcmp(a->entries[i]->e.name, name)) return &a->entries[i]->e;
    return NULL;
}

jem_status jem_archive_set_meta(jem_archive *a, const char *key, const char *value) {
    return a ? jem__meta_set(a->ctx, &a->meta, key, value) : JEM_BAD_ARGUMENT;
}
const char *jem_archive_meta(const jem_archive *a, const char *key) {
    return a && key ? jem__meta_get(a->meta, key) : NULL;
}

/* Numbers in a tensor of this shape; -1 if a size is negative or there are too many to address. */
static ptrdiff_t jem__elements(int ndim, const int64_t *shape) {
    const int64_t most = PTRDIFF_MAX / 16;         /* 8 bytes each, and the allocator's own */
    int64_t n = 1;
    for (int i = 0; i < ndim; i++) {
        if (shape[i] < 0 || (shape[i] > 0 && n > most / shape[i])) return -1;
        n *= shape[i];
    }
    return (ptrdiff_t)n;
}

/* Appends without asking; the caller has checked name, ndim and shape. */
static jem__entry *jem__archive_append(jem_archive *a, const char *name, int dtype, int ndim,
                                       const int64_t *shape) {
    if (a->count == a->capacity) {
        const size_t bytes = (size_t)a->count * sizeof *a->entries;
        jem__entry **more = (jem__entry **)jem__alloc(a->ctx, 2 * bytes + 16 * sizeof *more);
        if (!more) return NULL;
        if (bytes) memcpy(more, a->entries, bytes);
        jem__free(a->ctx, a->entries);
        a->entries = more, a->capacity = 2 * a->count + 16;
    }
    const size_t length = strlen(name);
    jem__entry *entry = (jem__entry *)jem__alloc(a->ctx, sizeof(jem__entry) + length + 1);
    if (!entry) return NULL;
    memcpy(entry + 1, name, length);
    entry->dtype = dtype;
    entry->e.name = (const char *)(entry + 1);
    entry->e.dtype = JEM_DTYPE_U8;
    if (dtype >= 0) entry->e.dtype = jem__dtypes[dtype].as;
    entry->e.ndim = ndim;
    for (int i = 0; i < ndim; i++) entry->e.shape[i] = shape[i];
    entry->e.bytes = (size_t)jem__elements(ndim, shape) * jem__dtypes[entry->e.dtype].size;
    return a->entries[a->count++] = entry;
}

jem_status jem_archive_add(jem_archive *a, const char *name, jem_dtype dtype, int ndim,
                           const int64_t *shape, const void *data) {
    if (!a) return JEM_BAD_ARGUMENT;
    const char *wrong = NULL;
    ptrdiff_t n = 0;
    if (!name || !jem__utf8_valid(name, strlen(name))) wrong = "the name is not UTF-8";
    else if (!strcmp(name, "__metadata__")) wrong = "this name is reserved";
    else if (jem_archive_find(a, name)) wrong = "there is one of this name already";
    else if ((int)dtype < 0 || (int)dtype > JEM_DTYPE_U8) wrong = "no such dtype";
    else if (ndim < 0 || ndim > 8 || (ndim && !shape)) wrong = "0 to 8 dimensions are possible";
    else if ((n = jem__elements(ndim, shape)) < 0) wrong = "a size is negative or too large";
    else if (n && !data) wrong = "data is NULL";
    if (wrong)
        return jem__fail(a->ctx, JEM_BAD_ARGUMENT, "jem_archive_add: \"%.80s\": %s",
                         name ? name : "", wrong);
    jem__entry *entry = jem__archive_append(a, name, (int)dtype, ndim, shape);
    if (entry) entry->e.data = data;
    return entry ? JEM_OK : JEM_NO_MEMORY;
}

/* ---- writing --------------------------------------------------------------------------------- */
/* Text is made twice by the same code: once with out = NULL to learn its length, then in place. */

typedef struct jem__text { char *out; size_t n, room; } jem__text;

JEM__PRINTF(2, 3) static void jem__put(jem__text *t, const char *format, ...) {
    va_list list;
    va_start(list, format);
    t->n += (size_t)vsnprintf(t->out ? t->out + t->n : NULL, t->out ? t->room - t->n : 0, format,
                              list);
    va_end(list);
}

/* A string of JSON, after what comes before it. */
static void jem__put_json(jem__text *t, const char *before, const char *s) {
    jem__put(t, "%s\"", before);
    for (; *s; s++) {
        const unsigned char c = (unsigned char)*s;
        jem__put(t, c < 0x20 ? "\\u%04x" : c == '"' || c == '\\' ? "\\%c" : "%c", c);
    }
    jem__put(t, "\"");
}

/* Numbers in brackets: [64,3,3,3]. */
static void jem__put_list(jem__text *t, const char *brackets, int n, const int64_t *x) {
    jem__put(t, "%c", brackets[0]);
    for (int i = 0; i < n; i++) jem__put(t, "%s%" PRId64, i ? "," : "", x[i]);
    jem__put(t, "%c", brackets[1]);
}

static void jem__put_header(jem__text *t, const jem_archive *a) {
    const char *comma = "";
    jem__put(t, a->meta ? "{\"__metadata__\":{" : "{");
    for (const jem__meta *m = a->meta; m; m = m->next, comma = ",")
        jem__put_json(t, comma, m->key), jem__put_json(t, ":", m->value);
    if (a->meta) jem__put(t, "}");
    for (int i = 0; i < a->count; i++, comma = ",") {
        const jem__entry *entry = a->entries[i];
        const int64_t offsets[2] = { (int64_t)entry->begin, (int64_t)entry->end };
        jem__put_json(t, comma, entry->e.name);
        jem__put(t, ":{\"dtype\":\"%s\",\"shape\":", jem__dtypes[entry->e.dtype].name);
        jem__put_list(t, "[]", entry->e.ndim, entry->e.shape);
        jem__put(t, ",\"data_offsets\":"), jem__put_list(t, "[]", 2, offsets), jem__put(t, "}");
    }
    jem__put(t, "}");
    while (t->n % 64 != 56) jem__put(t, " ");      /* the data begins at a multiple of 64 */
}

void *jem_archive_to_memory(const jem_archive *a, size_t *size) {
    size_t total = 0;
    if (size) *size = 0;
    if (!a) return NULL;
    for (size_t width = 8; width; width /= 2)      /* wide numbers first: all are aligned */
        for (int i = 0; i < a->count; i++) {
            jem__entry *entry = a->entries[i];
            if (jem__dtypes[entry->e.dtype].size != width) continue;
            if (entry->e.bytes > PTRDIFF_MAX / 2 - total)
                return jem__null(a->ctx, JEM_NO_MEMORY, "%s: too large to be packed", a->where);
            entry->begin = total, entry->end = total += entry->e.bytes;
        }
    jem__text text = { NULL, 0, 0 };
    jem__put_header(&text, a);
    const size_t n = text.n;
    const uint64_t length = n;
    if (n > JEM__MAX_HEADER)
        return jem__null(a->ctx, JEM_BAD_ARGUMENT, "%s: names and texts make a header of %.0f MB, "
                         "100 are allowed", a->where, (double)n / 1e6);
    char *out = (char *)jem__alloc(a->ctx, 8 + n + total + 1);     /* 1: the 0 after a text */
    if (!out) return NULL;
    jem__copy_numbers(out, &length, 8, 8);
    text.out = out + 8, text.room = n + 1, text.n = 0;
    jem__put_header(&text, a);
    for (int i = 0; i < a->count; i++) {
        const jem_entry *e = &a->entries[i]->e;
        char *to = out + 8 + n + a->entries[i]->begin;
        jem__copy_numbers(to, e->data, e->bytes, jem__dtypes[e->dtype].size);
    }
    if (size) *size = 8 + n + total;
    return out;
}

/* ---- reading --------------------------------------------------------------------------------- */
/* JSON by recursive descent, of just this depth, in a copy of the header that ends in a 0, which
   nothing matches: strings are decoded where they stand. After an error at = end, where every loop
   ends and every step is an error; the context keeps the first. */

typedef struct jem__json {
    jem_archive *a;
    char *begin, *at, *end;
    size_t room;           /* bytes of data after the header */
    const char *name;      /* of the tensor in hand, for messages */
} jem__json;

static int jem__json_fail(jem__json *j, const char *what, const char *detail) {
    jem__fail(j->a->ctx, JEM_BAD_FILE, "%s: %s%.80s%s: %s%.80s at byte %.0f", j->a->where,
              j->name ? "tensor \"" : "header", j->name ? j->name : "", j->name ? "\"" : "", what,
              detail, (double)(j->at - j->begin + 8));
    j->at = j->end;
    return 0;
}

static void jem__json_space(jem__json *j) { j->at += strspn(j->at, " \n\r\t"); }

/* Is c next, after any space? Then it is taken; otherwise that may be an error. */
static int jem__json_take(jem__json *j, char c, int must) {
    const char what[2] = { c, 0 };
    jem__json_space(j);
    if (*j->at == c) return j->at++, 1;
    return must ? jem__json_fail(j, "expected ", what) : 0;
}

/* Is there an i-th item between these brackets? Takes what comes before it, or the closing one. */
static int jem__json_item(jem__json *j, const char *brackets, int i) {
    if (i == 0) return jem__json_take(j, brackets[0], 1) && !jem__json_take(j, brackets[1], 0);
    if (jem__json_take(j, ',', 0)) return 1;
    jem__json_take(j, brackets[1], 1);
    return 0;
}

/* \uXXXX; 0 if it is none (no escape may stand for 0). */
static uint32_t jem__json_unit(jem__json *j) {
    char hex[5] = "";
    if (strncmp(j->at, "\\u", 2) || strspn(j->at + 2, "0123456789abcdefABCDEF") < 4) return 0;
    memcpy(hex, j->at + 2, 4), j->at += 6;
    return (uint32_t)strtoul(hex, NULL, 16);
}

/* An escape to UTF-8, which is never longer. \u comes in UTF-16: a pair of them above U+FFFF. */
static char *jem__json_escape(jem__json *j, char *out) {
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    static const uint32_t lead[4] = { 0, 0xC0, 0xE0, 0xF0 };
    const char *known = j->at[1] ? strchr(from, j->at[1]) : NULL;
    if (known) { j->at += 2, *out++ = to[known - from]; return out; }
    uint32_t code = jem__json_unit(j);
    if (code >= 0xD800 && code < 0xE000) {
        const uint32_t low = jem__json_unit(j);
        code = code < 0xDC00 && low >= 0xDC00 && low < 0xE000
             ? 0x10000 + ((code & 0x3FF) << 10 | (low & 0x3FF)) : 0;
    }
    if (!code) { jem__json_fail(j, "bad escape in a string", ""); return out; }
    const int more = code < 0x80 ? 0 : code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
    *out++ = (char)(lead[more] | code >> 6 * more);
    for (int i = more - 1; i >= 0; i--) *out++ = (char)(0x80 | (code >> 6 * i & 0x3F));
    return out;
}

/* key: with the colon after it. */
static const char *jem__json_string(jem__json *j, int key) {
    jem__json_take(j, '"', 1);
    char *start = j->at, *out = start;
    while (*j->at != '"' && (unsigned char)*j->at >= 0x20)
        if (*j->at == '\\') out = jem__json_escape(j, out);
        else *out++ = *j->at++;
    if (*j->at != '"')
        jem__json_fail(j, j->at < j->end ? "control byte in a string" : "a string does not end",
                       "");
    else j->at++;
    *out = 0;
    if (key) jem__json_take(j, ':', 1);
    return start;
}

/* Whole numbers from 0; how many. */
static int jem__json_integers(jem__json *j, int64_t *out, int most) {
    int n = 0;
    for (; jem__json_item(j, "[]", n); n++) {
        jem__json_space(j), errno = 0;
        const size_t digits = strspn(j->at, "0123456789");
        const int64_t v = digits ? strtoll(j->at, NULL, 10) : 0;
        if (!digits || (digits > 1 && *j->at == '0'))
            return jem__json_fail(j, "expected a whole number", "");
        if (errno) return jem__json_fail(j, "number too large", "");
        if (n == most) return jem__json_fail(j, "too many numbers in a list", "");
        out[n] = v, j->at += digits;
    }
    return n;
}

static void jem__json_metadata(jem__json *j) {
    jem_archive *a = j->a;
    for (int i = 0; jem__json_item(j, "{}", i); i++) {
        const char *key = jem__json_string(j, 1), *value = jem__json_string(j, 0);
        if (jem__meta_get(a->meta, key)) jem__json_fail(j, "repeated key in metadata: ", key);
        else if (i == JEM__MAX_TEXTS) jem__json_fail(j, "more than 4096 texts", "");
        else jem__meta_set(a->ctx, &a->meta, key, value);
    }
}

static void jem__json_tensor(jem__json *j) {
    int dtype = -1, named = 0, ndim = -1, n_offsets = -1;
    int64_t shape[8], offsets[2];
    for (int i = 0; jem__json_item(j, "{}", i); i++) {
        const char *key = jem__json_string(j, 1);
        if (!strcmp(key, "shape") && ndim < 0) ndim = jem__json_integers(j, shape, 8);
        else if (!strcmp(key, "data_offsets") && n_offsets < 0)
            n_offsets = jem__json_integers(j, offsets, 2);
        else if (!strcmp(key, "dtype") && !named) {
            const char *name = jem__json_string(j, 0);
            named = *name != 0;
            for (dtype = JEM__DTYPES - 1; dtype >= 0; dtype--)
                if (!strcmp(jem__dtypes[dtype].name, name)) break;
        } else jem__json_fail(j, "unknown or repeated key ", key);
    }
    ptrdiff_t n = 0;
    const char *wrong = NULL;
    if (!named || ndim < 0 || n_offsets != 2)
        wrong = "dtype, shape and two data_offsets are needed";
    else if ((n = jem__elements(ndim, shape)) < 0) wrong = "the shape is too large";
    else if (offsets[1] < offsets[0] ||
             (dtype >= 0 && offsets[1] - offsets[0] != n * (ptrdiff_t)jem__dtypes[dtype].size))
        wrong = "data_offsets do not agree with dtype and shape";
    else if ((uint64_t)offsets[1] > j->room) wrong = "its data lies beyond the file's end";
    jem__entry *entry = wrong ? NULL : jem__archive_append(j->a, j->name, dtype, ndim, shape);
    if (entry) entry->begin = (size_t)offsets[0], entry->end = (size_t)offsets[1];
    else jem__json_fail(j, wrong ? wrong : "out of memory", "");
}

static void jem__json_header(jem__json *j) {
    int described = 0;
    if (!jem__utf8_valid(j->begin, (size_t)(j->end - j->begin))) jem__json_fail(j, "not UTF-8", "");
    for (int i = 0; jem__json_item(j, "{}", i); i++) {
        const char *name = jem__json_string(j, 1);
        const int texts = !strcmp(name, "__metadata__");
        if (texts && described++) jem__json_fail(j, "repeated key ", name);
        if (texts) jem__json_metadata(j);
        else j->name = name, jem__json_tensor(j), j->name = NULL;
    }
    jem__json_space(j);
    if (j->at < j->end) jem__json_fail(j, "text after its end", "");
}

static int jem__by_name(const void *p, const void *q) {
    return strcmp((*(jem__entry *const *)p)->e.name, (*(jem__entry *const *)q)->e.name);
}
static int jem__by_place(const void *p, const void *q) {
    const jem__entry *a = *(jem__entry *const *)p, *b = *(jem__entry *const *)q;
    if (a->begin != b->begin) return a->begin < b->begin ? -1 : 1;
    return (a->end > b->end) - (a->end < b->end);  /* empty ones first */
}

/* Every name once, and the tensors side by side from 0 to `size`. */
static void jem__archive_check(const jem_archive *a, size_t size) {
    const size_t count = (size_t)a->count;
    size_t i = 1, end = 0;
    jem__entry **order = (jem__entry **)jem__alloc(a->ctx, count * sizeof *order);
    if (!order) return;
    if (count) memcpy(order, a->entries, count * sizeof *order);
    qsort(order, count, sizeof *order, jem__by_name);
    while (i < count && strcmp(order[i - 1]->e.name, order[i]->e.name)) i++;
    if (i < count)
        jem__fail(a->ctx, JEM_BAD_FILE, "%s: two tensors are named \"%.80s\"", a->where,
                  order[i]->e.name);
    qsort(order, count, sizeof *order, jem__by_place);
    for (i = 0; i < count && order[i]->begin == end; i++) end = order[i]->end;
    if (i < count)
        jem__fail(a->ctx, JEM_BAD_FILE, "%s: tensor \"%.80s\" begins at byte %.0f of the data, "
                  "the one before ends at %.0f", a->where, order[i]->e.name,
                  (double)order[i]->begin, (double)end);
    else if (end != size)
        jem__fail(a->ctx, JEM_BAD_FILE, "%s: %.0f bytes of data, the header tells of %.0f",
                  a->where, (double)size, (double)end);
    jem__free(a->ctx, order);
}

/* Moves the entries that cannot be read out of the list of those that can; says so. */
static void jem__archive_skip(jem_archive *a) {
    int kept = 0, skips = 0;
    char note[256];
    for (int i = 0; i < a->count; i++) skips += a->entries[i]->dtype < 0;
    if (!skips) return;
    a->skipped = (jem__entry **)jem__alloc(a->ctx, (size_t)skips * sizeof *a->skipped);
    if (!a->skipped) return;
    for (int i = 0; i < a->count; i++) {
        jem__entry *entry = a->entries[i];
        if (entry->dtype < 0) a->skipped[a->skips++] = entry;
        else a->entries[kept++] = entry;
    }
    a->count = kept;
    snprintf(note, sizeof note, "%.80s: skipped %d of %d tensors, as \"%.60s\", whose dtype cannot "
             "be read", a->where, skips, kept + skips, a->skipped[0]->e.name);
    jem__harmless(note);
    if (a->ctx->desc.log) a->ctx->desc.log(a->ctx->desc.user, note);
}

/* From a binary16: +-fraction 2^(exponent - 25), exactly. */
static float jem__from_fp16(int h) {
    const int exponent = h >> 10 & 31, fraction = (h & 1023) + (exponent ? 1024 : 0);
    float x = ldexpf((float)fraction, (exponent ? exponent : 1) - 25);
    if (exponent == 31) x = fraction > 1024 ? (float)NAN : (float)INFINITY;
    return h & 0x8000 ? -x : x;
}

/* One number of any dtype, wherever it lies, as a float. */
static float jem__to_float(int dtype, const unsigned char *p) {
    union { uint32_t u32; uint16_t u16; float f; int32_t i32; int64_t i64; double f64; } n;
    uint32_t high;
    memcpy(&n, p, jem__dtypes[dtype].size);
    switch (dtype) {
    case JEM_DTYPE_I32: return (float)n.i32;
    case JEM_DTYPE_I64: return (float)n.i64;
    case JEM__F64: return (float)n.f64;
    case JEM__F16: return jem__from_fp16(n.u16);
    case JEM__BF16: high = n.u16, n.u32 = high << 16; return n.f;
    case JEM_DTYPE_U8: case JEM__BOOL: return (float)p[0];
    default: return n.f;
    }
}

static void jem__entry_take(jem_ctx *ctx, jem__entry *entry, const unsigned char *data) {
    const size_t size = jem__dtypes[entry->dtype].size, n = (entry->end - entry->begin) / size;
    const int converted = entry->e.dtype == JEM_DTYPE_F32 && entry->dtype != JEM_DTYPE_F32;
    entry->e.data = entry->owned = jem__alloc(ctx, entry->e.bytes);
    if (!entry->owned) return;
    data += entry->begin;
    if (!converted) jem__copy_numbers(entry->owned, data, entry->e.bytes, size);
    for (size_t i = 0; i < n && converted; i++) {
        unsigned char number[8];
        jem__copy_numbers(number, data + size * i, size, size);
        ((float *)entry->owned)[i] = jem__to_float(entry->dtype, number);
    }
}

/* The header, then the data: each only if the context still has no more than so many errors. */
static void jem__archive_fill(jem_archive *a, const unsigned char *bytes, size_t size, int errors) {
    uint64_t n = 0;
    if (size >= 8) jem__copy_numbers(&n, bytes, 8, 8);
    if (size < 8 || n > size - 8 || n > JEM__MAX_HEADER) {
        jem__fail(a->ctx, JEM_BAD_FILE, "%s: not a safetensors file, or cut short: %.0f bytes, "
                  "with a header of %.0f", a->where, (double)size, (double)n);
        return;
    }
    JEM__ZEROED(jem__json, j);
    j.a = a, j.room = size - 8 - (size_t)n;
    j.begin = j.at = (char *)jem__alloc(a->ctx, (size_t)n + 1);
    if (!j.begin) return;
    j.end = j.begin + n;
    memcpy(j.begin, bytes + 8, (size_t)n);
    jem__json_header(&j);
    jem__free(a->ctx, j.begin);
    if (a->ctx->errors == errors) jem__archive_check(a, j.room);
    if (a->ctx->errors == errors) jem__archive_skip(a);
    for (int i = 0; i < a->count && a->ctx->errors == errors; i++)
        jem__entry_take(a->ctx, a->entries[i], bytes + 8 + n);
}

/* bytes: a file's, or NULL for an empty archive. */
static jem_archive *jem__archive_of(jem_ctx *ctx, const char *where, const void *bytes,
                                    size_t size) {
    const int errors = ctx->errors;
    jem_archive *a = (jem_archive *)jem__alloc(ctx, sizeof *a + strlen(where) + 1);
    if (!a) return NULL;
    a->ctx = ctx, a->where = (char *)memcpy(a + 1, where, strlen(where));
    if (bytes) jem__archive_fill(a, (const unsigned char *)bytes, size, errors);
    if (ctx->errors == errors) return a;
    jem_archive_free(a);
    return NULL;
}

jem_archive *jem_archive_create(jem_ctx *ctx) {
    return ctx ? jem__archive_of(ctx, "archive", NULL, 0) : NULL;
}
jem_archive *jem_archive_parse(jem_ctx *ctx, const void *bytes, size_t size) {
    if (ctx && !bytes) jem__fail(ctx, JEM_BAD_ARGUMENT, "jem_archive_parse: bytes is NULL");
    return ctx && bytes ? jem__archive_of(ctx, "archive", bytes, size) : NULL;
}

/* ---- files: read whole, and replaced --------------------------------------------------------- */
#ifndef JEM_NO_STDIO

/* With the system's reason, if it gave one. */
static jem_status jem__file_fail(jem_ctx *ctx, const char *path, const char *what) {
    return jem__fail(ctx, JEM_BAD_FILE, "%s: %s%s%s", path, what, errno ? ": " : "",
                     errno ? strerror(errno) : "");
}

/* A new file beside `path`, its name in `temp`: O_EXCL opens nothing that is there and follows no
   link, so it is ours alone. -1: no. */
static int jem__file_create(const char *path, char *temp, size_t room) {
#ifdef _WIN32
    const int mode = _S_IREAD | _S_IWRITE;
#else
    const int mode = 0666;                         /* less the umask */
#endif
    jem_rng names = jem_rng_seed((uint64_t)time(NULL) << 32 ^ (uintptr_t)temp);
    int fd = -1;
    for (int i = 0; i < 100; i++) {
        snprintf(temp, room, "%s.%08x.tmp", path, (unsigned)jem_rng_u32(&names));
        fd = JEM__SYS(open)(temp, JEM__NEW_FILE, mode);
        if (fd >= 0 || errno != EEXIST) break;
    }
    return fd;
}

/* Why what is at `path` will not be replaced, or NULL. mode: the old one's, -1 if there is none. */
static const char *jem__file_refused(const char *path, int *mode) {
    *mode = -1;
#ifdef _WIN32
    (void)path;
#else
    struct stat s;
    char target;
    if (readlink(path, &target, 1) >= 0) return "is a symbolic link, and will not be replaced";
    if (stat(path, &s) || S_ISDIR(s.st_mode)) return NULL;       /* rename will speak of a folder */
    if (!S_ISREG(s.st_mode)) return "is no regular file, and will not be replaced";
    *mode = (int)(s.st_mode & 0777);
#endif
    return NULL;
}

/* The list of names that `path` stands in, cut out of it in place, to the disk. */
static int jem__folder_sync(char *path) {
    int synced = 1;
#ifndef _WIN32
    char *slash = strrchr(path, '/');
    if (slash) slash[1] = 0;
    const int fd = open(slash ? path : ".", O_RDONLY);
    if (fd < 0) return errno == EACCES;            /* one may write there, not read: it cannot be */
    synced = jem__file_sync(fd);
    const int error = errno;
    close(fd);
    errno = error;
#endif
    return (void)path, synced;
}

/* Until the new name is given, path is as it was, and on a failure temp, which is ours, goes. What
   went wrong, with errno, or NULL. */
static const char *jem__file_replace(const char *path, char *temp, size_t room, const char *bytes,
                                     size_t size) {
    int mode;
    const char *what = jem__file_refused(path, &mode);
    errno = 0;
    if (what) return what;
    const int fd = jem__file_create(path, temp, room);
    if (fd < 0) return "cannot be created";
#if !defined(_WIN32) && !defined(__wasm__)
    if (mode >= 0) (void)fchmod(fd, (mode_t)mode); /* some file systems have no modes */
#endif
    what = !jem__file_put(fd, bytes, size) ? "cannot be written"
         : !jem__file_sync(fd) ? "cannot be synced" : NULL;
    int error = errno;
    if (JEM__SYS(close)(fd) && !what) what = "cannot be closed", error = errno;
    if (!what && JEM__RENAME(temp, path)) what = "cannot be replaced", error = errno;
    if (what) { remove(temp), errno = error; return what; }
    return jem__folder_sync(temp) ? NULL : "is written, but its folder cannot be synced";
}

jem_archive *jem_archive_read(jem_ctx *ctx, const char *path) {
    if (ctx && !path) jem__fail(ctx, JEM_BAD_ARGUMENT, "a file to read: path is NULL");
    if (!ctx || !path) return NULL;
    const char *wrong = NULL;
    char *bytes = NULL;
    long n = 0;
    errno = 0;
    FILE *f = fopen(path, "rb");
    if (!f) wrong = "cannot be opened";
    else if (getc(f) == EOF && !ferror(f)) wrong = "is empty", errno = 0;
    else if (ferror(f) || fseek(f, 0, SEEK_END) || (n = ftell(f)) <= 0 || fseek(f, 0, SEEK_SET))
        wrong = "cannot be read";
    else bytes = (char *)jem__alloc(ctx, (size_t)n);
    if (bytes && fread(bytes, 1, (size_t)n, f) != (size_t)n) wrong = "cannot be read to its end";
    if (wrong) jem__file_fail(ctx, path, wrong);
    if (f) fclose(f);
    jem_archive *a = bytes && !wrong ? jem__archive_of(ctx, path, bytes, (size_t)n) : NULL;
    jem__free(ctx, bytes);
    return a;
}

jem_status jem_archive_write(const jem_archive *a, const char *path) {
    if (!a) return JEM_BAD_ARGUMENT;
    if (!path) return jem__fail(a->ctx, JEM_BAD_ARGUMENT, "a file to write: path is NULL");
    size_t size = 0, room = strlen(path) + sizeof ".12345678.tmp";
    char *temp = (char *)jem__alloc(a->ctx, room);
    char *bytes = temp ? (char *)jem_archive_to_memory(a, &size) : NULL;
    jem_status status = bytes ? JEM_OK : a->ctx->status;
    const char *wrong = bytes ? jem__file_replace(path, temp, room, bytes, size) : NULL;
    if (wrong) status = jem__file_fail(a->ctx, path, wrong);
    jem__free(a->ctx, bytes), jem__free(a->ctx, temp);
    return status;
}

#endif /* JEM_NO_STDIO */

/* ==== >>checkpoint: networks and trainers in files ============================================ */
/* Like the fields of a desc (see jem__fields), a network's arrays are listed once, and a trainer's
   once. To visit a list looks for each array in a file (in) and then, to fill it, reads it; or adds
   it to an archive (out). */

typedef struct jem__arrays {
    jem__fields f;                                 /* a network's; of both, what messages say */
    const jem_archive *in;                         /* or NULL */
    jem_archive *out;                              /* or NULL */
    int fill;
} jem__arrays;

enum { JEM__MANY = 1 << 30 };                      /* updates, visits: more would overflow */

/* What training writes into an array of dtype `as`: finite numbers, second moments from 0 on,
   visits from -1 on. */
static int jem__entry_good(const jem_entry *e, jem_dtype as) {
    const int squares = !strncmp(e->name, "optim.v.", 8);
    int good = 1;
    for (size_t i = 0; good && i < e->bytes; i += jem__dtypes[e->dtype].size) {
        const unsigned char *at = (const unsigned char *)e->data + i;
        const float x = as == JEM_DTYPE_F32 ? jem__to_float((int)e->dtype, at) : 0;
        int32_t n = 0;
        if (as == JEM_DTYPE_I32) memcpy(&n, at, 4);
        good = jem__finite(x) && !(squares && x < 0) && n >= -1 && n <= JEM__MANY;
    }
    return good;
}

/* In a file this array must have its dtype and shape; but a float on its own may have any dtype and
   the shape () or (1): so PyTorch keeps counts and flags. */
static void jem__array(jem__arrays *v, const char *name, jem_dtype dtype, int ndim,
                       const int64_t *shape, void *data) {
    jem__fields *f = &v->f;
    if (v->out && !f->status) f->status = jem_archive_add(v->out, name, dtype, ndim, shape, data);
    if (v->out || f->status) return;
    const jem_entry *e = jem_archive_find(v->in, name);
    const int one = dtype == JEM_DTYPE_F32 && jem__elements(ndim, shape) == 1;
    const int flag = one && ndim <= 1 && e && e->ndim <= 1 &&
                     jem__elements(e->ndim, e->shape) == 1;
    const int same = e && e->ndim == ndim && !memcmp(e->shape, shape, (size_t)ndim * sizeof *shape);
    int skipped = 0;
    while (!e && skipped < v->in->skips && strcmp(v->in->skipped[skipped]->e.name, name))
        skipped++;
    if (!e && skipped < v->in->skips)
        f->status = jem__fail(f->ctx, JEM_BAD_FILE, "%s: \"%.80s\", which the %s has, is of a "
                              "dtype that cannot be read (" JEM__READABLE ")", f->where, name,
                              f->kind);
    else if (!e)
        f->status = jem__fail(f->ctx, JEM_BAD_FILE, "%s: misses \"%.80s\", which the %s has (the "
                              "file has %d tensors)", f->where, name, f->kind, v->in->count);
    else if (!flag && !(same && (one || e->dtype == dtype))) {
        char is[384];
        jem__text t = { is, 0, sizeof is };
        jem__put(&t, "%s ", jem__dtypes[e->dtype].name), jem__put_list(&t, "()", e->ndim, e->shape);
        jem__put(&t, " in the file, %s ", jem__dtypes[dtype].name);
        jem__put_list(&t, "()", ndim, shape);
        f->status = jem__fail(f->ctx, same ? JEM_BAD_FILE : JEM_BAD_SHAPE, "%s: \"%.80s\" is %s in "
                              "the %s", f->where, name, is, f->kind);
    } else if (!v->fill && !jem__entry_good(e, dtype))
        f->status = jem__fail(f->ctx, JEM_BAD_FILE, "%s: \"%.80s\" holds a number that is not "
                              "finite, or cannot be there", f->where, name);
    else if (v->fill && e->dtype != dtype)
        *(float *)data = jem__to_float((int)e->dtype, (const unsigned char *)e->data);
    else if (v->fill && e->bytes) memmove(data, e->data, e->bytes);    /* it may be its own */
}

/* data, if there is any, has the shape of p, and is called prefix + its name. */
static void jem__array_like(jem__arrays *v, const char *prefix, const jem_param *p, float *data) {
    char name[256];
    int64_t shape[4];
    for (int i = 0; i < p->ndim; i++) shape[i] = p->shape[i];
    if (!data || v->f.status) return;
    if (*prefix && snprintf(name, sizeof name, "%s%s", prefix, p->name) >= (int)sizeof name)
        v->f.status = jem__fail(v->f.ctx, JEM_BAD_ARGUMENT, "\"%s%.60s...\": the name is too long "
                                "for a file", prefix, p->name);
    else jem__array(v, *prefix ? name : p->name, JEM_DTYPE_F32, p->ndim, shape, data);
}

/* Of an archive and what goes into it or comes out, one is not there. */
static jem_status jem__no_two(jem_ctx *ctx, const jem_archive *a, const char *what) {
    return jem__fail(ctx ? ctx : a ? a->ctx : NULL, JEM_BAD_ARGUMENT, "%s: %s is NULL", what,
                     a ? "what goes with the archive" : "the archive");
}

jem_status jem_net_to_archive(const jem_net *net, jem_archive *a) {
    if (!net || !a) return jem__no_two(net ? net->ctx : NULL, a, "net_to_archive");
    jem_net copy = *net;
    jem__arrays v = { { a->ctx, "network", "network", NULL, &a->meta, JEM_OK }, NULL, a, 0 };
    for (const jem__meta *m = net->meta; m && !v.f.status; m = m->next)
        v.f.status = jem_archive_set_meta(a, m->key, m->value);
    jem__net_fields(&v.f, &copy);
    for (const jem_param *p = net->params; p; p = p->next) jem__array_like(&v, "", p, p->value);
    return v.f.status;
}

/* Texts that were fitted to weights: good ones to `list`. */
static const char *const *const jem__fitted[] = {
    &jem__familiar_key, &jem__usual_key, &jem__temperature_key, &jem__slopes_key
};
enum { JEM__FITTED = sizeof jem__fitted / sizeof *jem__fitted };

/* Whether a text is what jem_calibrate_slopes writes for this network; -1: no memory. */
static int jem__slopes_good(const jem_net *net, const char *text) {
    jem__slopes s;
    const int gradients = jem__slopes_gradients(text);
    if (gradients < 0) return 0;
    float *all = jem__alloc_floats(net->ctx, jem__slopes_size(net, gradients));
    const int good = all ? jem__slopes_in(net, text, all, &s) : -1;
    jem__free(net->ctx, all);
    return good;
}
static jem_status jem__fitted_read(const jem_net *net, const jem_archive *a, jem__meta **list) {
    float q[JEM__QUANTILES], *usual = jem__alloc_floats(net->ctx, jem__usual_size(net));
    jem_status s = usual ? JEM_OK : JEM_NO_MEMORY;
    for (int i = 0; i < JEM__FITTED && s == JEM_OK; i++) {
        const char *text = jem_archive_meta(a, *jem__fitted[i]);
        int good = 0;
        if (i == 0) good = jem__familiar_read(text, q) > 0;
        if (i == 1) good = jem__usual_in(net, text, usual) != NULL;
        if (i == 2) good = jem__temperature_read(text) > 0;
        if (i == 3) good = jem__slopes_good(net, text);
        if (good < 0) s = JEM_NO_MEMORY;
        else if (text && !good)
            s = jem__fail(net->ctx, JEM_BAD_FILE, "%s: its text \"%s\" is none", a->where,
                          *jem__fitted[i]);
        else if (text) s = jem__meta_set(net->ctx, list, *jem__fitted[i], text);
    }
    jem__free(net->ctx, usual);
    return s;
}

jem_status jem_net_load(jem_net *net, const jem_archive *a) {
    if (!net || !a) return jem__no_two(net ? net->ctx : NULL, a, "net_load");
    jem_net copy = *net;
    jem__arrays v = { { net->ctx, "network", a->where, a->meta, NULL, JEM_OK }, a, NULL, 0 };
    jem__net_fields(&v.f, &copy);
    for (jem_param *p = net->params; p; p = p->next) jem__array_like(&v, "", p, p->value);
    jem__meta *fitted = NULL;
    if (!v.f.status) v.f.status = jem__fitted_read(&copy, a, &fitted);
    jem__meta_take(net, fitted, !v.f.status);
    if (v.f.status) return v.f.status;             /* from here on nothing can fail */
    v.fill = 1;
    for (jem_param *p = net->params; p; p = p->next)
        jem__array_like(&v, "", p, p->value), jem_param_changed(p);
    jem__net_fields(&v.f, net);
    for (int i = 0; i < JEM__FITTED; i++)
        if (!jem_archive_meta(a, *jem__fitted[i])) jem_net_set_meta(net, *jem__fitted[i], NULL);
    return v.f.status;
}

jem_net *jem_net_from_archive(jem_ctx *ctx, const jem_archive *a) {
    if (!ctx || !a) return jem__no_two(ctx, a, "net_from_archive"), (jem_net *)NULL;
    const int errors = ctx->errors;
    ctx->params_left = 1e7;                        /* a small hostile file must not fill memory */
    for (int i = 0; i < a->count; i++) ctx->params_left += (double)a->entries[i]->e.bytes;
    jem_net *net = jem__net_from_meta(ctx, a->meta, a->where);
    ctx->params_left = HUGE_VAL;
    if (!net) return NULL;
    for (const jem__meta *m = a->meta; m; m = m->next)
        jem__meta_set(ctx, &net->meta, m->key, m->value);
    jem_net_load(net, a);
    return jem__net_done(net, errors);
}

enum { JEM__COUNTS = 3, JEM__STATES = 9 };         /* of a trainer: counts, two generators */
static const int64_t jem__states[1] = { JEM__STATES };

/* Between a trainer and these numbers. */
static void jem__trainer_state(jem_trainer *tr, int64_t *s, int load) {
    int *counts[JEM__COUNTS] = { &tr->updates, &tr->optim->updates, &tr->optim->averaged };
    jem_rng *rngs[2] = { &tr->rng, &tr->net->rng };
    for (int i = 0; i < JEM__COUNTS; i++, s++)
        if (load) *counts[i] = (int)*s; else *s = *counts[i];
    for (int i = 0; i < 2; i++, s += 3) {
        jem_rng *r = rngs[i];
        for (int k = 0; k < 2; k++)
            if (load) r->key[k] = (uint32_t)s[k]; else s[k] = r->key[k];
        if (load) r->counter = (uint64_t)s[2]; else s[2] = (int64_t)r->counter;
    }
}

/* averaged: the averages are in the network, and the trained weights here. */
static void jem__trainer_arrays(jem__arrays *v, const jem_trainer *tr, int averaged) {
    const jem_buffer *b = tr->buffer;
    for (int i = 0; i < tr->optim->count; i++) {
        const jem__moments *m = tr->optim->moments + i;
        jem__array_like(v, "optim.m.", m->param, m->m);
        jem__array_like(v, "optim.v.", m->param, m->v);
        jem__array_like(v, averaged ? "trained." : "average.", m->param, m->other);
    }
    if (!b) return;
    const int64_t shape[4] = { b->capacity, b->channels, b->height, b->width };
    jem__array(v, "replay_buffer", JEM_DTYPE_F32, 4, shape, b->data);
    jem__array(v, "replay_visits", JEM_DTYPE_I32, 1, shape, b->visits);
}

/* Lists the guard's arrays, in its memory. */
static void jem__guard_arrays(jem__arrays *v, jem__guard *g, const jem_buffer *b) {
    const int64_t size[1] = { g->size }, slots[1] = { jem__guard_slots(b) };
    const int64_t numbers[1] = { JEM__GUARD_NUMBERS }, counts[1] = { JEM__GUARD_COUNTS };
    jem__array(v, "guard.numbers", JEM_DTYPE_F32, 1, numbers, g->numbers);
    jem__array(v, "guard.counts", JEM_DTYPE_I64, 1, counts, g->counts);
    jem__array(v, "guard.state", JEM_DTYPE_F32, 1, size, g->kept);
    jem__array(v, "guard.visits", JEM_DTYPE_I32, 1, slots, g->visits);
}

/* Puts the guard's numbers where an archive points. */
static void jem__guard_pack(jem__guard *g) {
    g->numbers[0] = g->gap;
    g->numbers[1] = g->rate;
    g->numbers[2] = g->walk;
    g->counts[0] = g->returns;
    g->counts[1] = g->optim_updates;
    g->counts[2] = g->calm;
    g->counts[3] = g->good;
}

/* Reads and checks the guard of a file; without an entry of it, it is that of a new trainer. All
   that was read goes into `to`, whose memory the caller frees or keeps. */
static void jem__guard_read(jem__arrays *v, jem_trainer *tr, jem__guard *to) {
    jem_trainer apart = *tr;
    memset(to, 0, sizeof *to);
    to->rate = to->walk = 1;
    if (v->f.status || !jem_archive_find(v->in, "guard.numbers")) return;
    apart.guard = *to;
    v->f.status = jem__guard_memory(&apart);
    if (v->f.status) return;
    *to = apart.guard;
    for (v->fill = 0; v->fill < 2; v->fill++) jem__guard_arrays(v, to, tr->buffer);
    if (v->f.status) return;
    const float *n = to->numbers;
    const int64_t *c = to->counts;
    int good = n[1] >= 0 && n[1] <= 1 && n[2] >= 0 && n[2] <= 1;
    for (int i = 0; i < JEM__GUARD_COUNTS; i++) good = good && c[i] >= 0 && c[i] <= JEM__MANY;
    if (!good || (c[3] && !jem__guard_sound(tr, to->kept, to->size))) {
        v->f.status = jem__fail(v->f.ctx, JEM_BAD_FILE, "%s: \"guard\" holds a number that cannot "
                                "be there", v->f.where);
        return;
    }
    to->gap = n[0];
    to->rate = n[1];
    to->walk = n[2];
    to->returns = (int)c[0];
    to->optim_updates = (int)c[1];
    to->calm = (int)c[2];
    to->good = c[3] != 0;
}

jem_status jem_trainer_to_archive(jem_trainer *tr, jem_archive *a) {
    if (!tr || !a) return jem__no_two(tr ? tr->net->ctx : NULL, a, "trainer_to_archive");
    jem__arrays v = { { a->ctx, "trainer", "trainer", NULL, NULL, JEM_OK }, NULL, a, 0 };
    jem__trainer_state(tr, tr->state, 0);
    jem__array(&v, "trainer.state", JEM_DTYPE_I64, 1, jem__states, tr->state);
    jem__trainer_arrays(&v, tr, tr->optim->averaged);
    jem__guard_pack(&tr->guard);
    if (tr->guard.kept) jem__guard_arrays(&v, &tr->guard, tr->buffer);
    return v.f.status;
}

jem_status jem_trainer_from_archive(jem_trainer *tr, const jem_archive *a) {
    if (!tr || !a)
        return jem__no_two(tr ? tr->net->ctx : NULL, a, "trainer_from_archive");
    const int64_t most[JEM__COUNTS] = { JEM__MANY, JEM__MANY, tr->optim->desc.ema > 0 };
    int64_t state[JEM__STATES] = { 0 };
    jem__arrays v = { { tr->net->ctx, "trainer", a->where, NULL, NULL, JEM_OK }, a, NULL, 1 };
    jem__array(&v, "trainer.state", JEM_DTYPE_I64, 1, jem__states, state);
    for (int i = 0; i < JEM__COUNTS && !v.f.status; i++)
        if (state[i] < 0 || state[i] > most[i])
            v.f.status = jem__fail(v.f.ctx, JEM_BAD_FILE, "%s: \"trainer.state\": number %d is "
                                   "%.0f", a->where, i, (double)state[i]);
    v.fill = 0;
    jem__trainer_arrays(&v, tr, state[2] != 0);
    jem__guard guard;
    jem__guard_read(&v, tr, &guard);
    v.fill = 1;
    jem__trainer_arrays(&v, tr, state[2] != 0);
    if (!v.f.status) {
        jem__guard old = tr->guard;
        jem__trainer_state(tr, state, 1);
        tr->guard = guard;
        guard = old;
    }
    jem__free(tr->net->ctx, guard.kept);
    jem__free(tr->net->ctx, guard.visits);
    return v.f.status;
}

#ifndef JEM_NO_STDIO
jem_net *jem_load(jem_ctx *ctx, const char *path) {
    jem_archive *a = jem_archive_read(ctx, path);
    jem_net *net = a ? jem_net_from_archive(ctx, a) : NULL;
    jem_archive_free(a);
    return net;
}

jem_status jem_save(const jem_net *net, const char *path) {
    jem_archive *a = net ? jem_archive_create(net->ctx) : NULL;
    jem_status status = a ? jem_net_to_archive(net, a) : net ? JEM_NO_MEMORY : JEM_BAD_ARGUMENT;
    if (!status) status = jem_archive_write(a, path);
    jem_archive_free(a);
    return status;
}

#endif

/* ==== >>engine: what the processor runs ======================================================= */
/* This section is compiled once per instruction set: the file includes itself (at 'instances'
   below) with JEM__PASS set. A sum's order never depends on the instruction set or the number of
   threads, every multiply-add is an explicit fma, no product meets a bare addition (a compiler may
   contract those), and exp, log, sine are our own: so all instances give the same bits, but for
   JEM_ISA_WASM, which has no fma. */

/* ---- what all instances share ---------------------------------------------------------------- */

JEM__COMPILE_END
JEM__COMPILE("O1")
enum {
    JEM__CO = 6,           /* most output channels of a block of a convolution */
#ifdef JEM__WASM
    JEM__WHOLE = 4,        /* and of most blocks: browsers load a block's weights all at once */
#else
    JEM__WHOLE = 6,        /* and of most blocks */
#endif
    JEM__WO = 4,           /* output channels of a block of a weight gradient */
    JEM__TILES = 4         /* Winograd works on so many tiles at a time */
};

/* Some of the pixels written, and the taps that they see: ny rows of nx. */
typedef struct jem__phase {
    int y0, x0, step_out, rows, cols;              /* pixels written: y0 + r*step_out, ... */
    int step_in, ny, nx;                           /* pixel r,c reads r*step_in + down, ... */
    int down[JEM__MAX_KERNEL], right[JEM__MAX_KERNEL];
    int ky[JEM__MAX_KERNEL], kx[JEM__MAX_KERNEL];  /* with weight ky, kx */
} jem__phase;

JEM__ONCE int jem__conv_phase(const jem__conv *q, int phase, jem__phase *f) {
    const int s = q->gradient ? q->stride : 1;
    if (phase >= s * s) return 0;
    f->y0 = phase / s;
    f->x0 = phase % s;
    f->step_out = s;
    f->rows = (q->ho - f->y0 + s - 1) / s;
    f->cols = (q->wo - f->x0 + s - 1) / s;
    f->step_in = q->gradient ? 1 : q->stride;
    f->ny = f->nx = 0;
    for (int i = 0; i < q->k; i++) {               /* a gradient's y reads (y + pad - ky)/stride */
        const int tap = i - q->pad;
        const int down = q->gradient ? f->y0 - tap : tap, right = q->gradient ? f->x0 - tap : tap;
        if (down % s == 0) {
            f->down[f->ny] = down / s;
            f->ky[f->ny++] = i;
        }
        if (right % s == 0) {
            f->right[f->nx] = right / s;
            f->kx[f->nx++] = i;
        }
    }
    return 1;
}

/* Some pixels of a phase, computed together: where they are written, and of the taps that lie
   inside for any of them, where each reads its first channel (NULL: in the padding). */
typedef struct jem__pixels {
    int count, channels;                           /* so many channels are read of each */
    int live, taps, index[JEM__MAX_TAPS];          /* so many of the phase's taps, which ones */
    const float *tap[JEM__MAX_TAPS][4];
    ptrdiff_t at[4];
} jem__pixels;

JEM__ONCE void jem__conv_pixels(const jem__conv *q, const jem__phase *s, int first, int count,
                             const float *x, jem__pixels *p) {
    int iy[4], ix[4];
    for (int i = 0; i < count; i++) {
        const int r = (first + i) / s->cols, c = (first + i) % s->cols;
        iy[i] = r * s->step_in;
        ix[i] = c * s->step_in;
        p->at[i] = ((ptrdiff_t)(s->y0 + r * s->step_out) * q->wo + s->x0 + c * s->step_out) *
                   q->co * JEM_LANES;
    }
    p->live = 0;
    p->taps = s->ny * s->nx;
    p->channels = q->ci;
    p->count = count;
    for (int t = 0, j = 0; j < s->ny; j++)
        for (int k = 0; k < s->nx; k++, t++) {
            int inside = 0;
            for (int i = 0; i < count; i++) {
                const int y = iy[i] + s->down[j], z = ix[i] + s->right[k];
                const int in = (unsigned)y < (unsigned)q->hi && (unsigned)z < (unsigned)q->wi;
                p->tap[p->live][i] = in ? x + ((ptrdiff_t)y * q->wi + z) * q->ci * JEM_LANES : NULL;
                inside |= in;
            }
            if (inside) p->index[p->live++] = t;   /* a tap outside for all pixels adds nothing */
        }
}

/* Channels of the next register block when `left` remain: whole ones, and an end that divides. */
JEM__ONCE int jem__conv_channels(int left) {
    return left >= JEM__WHOLE && left != 8 ? JEM__WHOLE : left >= 4 ? 4 : left;
}

/* The first channel of part i: parts of whole blocks, in bf16 of two tiles. */
JEM__ONCE int jem__conv_from(const jem__conv *q, int i, int of) {
    int blocks = 0, o = 0;
    if (q->method->bf16) return jem__part_from(i, of, q->co, 32);
    while (o < q->co) {
        o += jem__conv_channels(q->co - o);
        blocks++;
    }
    o = 0;
    for (int b = jem__part_from(i, of, blocks, 1); b > 0; b--) o += jem__conv_channels(q->co - o);
    return o;
}
/* What a part does: units first .. last-1 (pixels, tiles, rows) of channels o0 .. o1-1. It is of
   units, which go through the kernels `step` at a time; or of channels, where units are too few, or
   where weights, which every part of units reads, are more than x, which is only read. */
typedef struct jem__piece { int first, last, o0, o1; } jem__piece;
JEM__ONCE jem__piece jem__conv_share(const jem__conv *q, jem__part part, int units, int step) {
    const int heavy = (ptrdiff_t)q->co * q->k * q->k > (ptrdiff_t)q->hi * q->wi * JEM_LANES;
    const int direct = !q->tile && !q->method->bf16;         /* the others would transform x anew */
    const int deep = units <= (part.of - 1) * step || (part.of > 1 && direct && heavy);
    const jem__piece p = { deep ? 0 : jem__part_from(part.i, part.of, units, step),
                           deep ? units : jem__part_from(part.i + 1, part.of, units, step),
                           deep ? jem__conv_from(q, part.i, part.of) : 0,
                           deep ? jem__conv_from(q, part.i + 1, part.of) : q->co };
    return p;
}

/* Of the direct sum, and of Winograd's. */
static ptrdiff_t jem__pack_size(const jem__conv *q) {
    const int points = q->tile ? (q->tile + 2) * (q->tile + 2) : q->k * q->k;
    return (ptrdiff_t)q->co * q->ci * points + 3 * JEM__CO;  /* which the last block may read */
}
/* Where in weights (O,I,k,k) the kernel between o and c is; a gradient goes from O to I. */
static ptrdiff_t jem__kernel_at(const jem__conv *q, int o, int c) {
    return (q->gradient ? (ptrdiff_t)c * q->co + o : (ptrdiff_t)o * q->ci + c) * q->k * q->k;
}
/* Weights in the order in which the blocks read them, phase after phase. */
static void jem__direct_pack(void *packing, int part) {
    const jem__packing *p = (const jem__packing *)packing;
    const jem__conv *q = p->q;
    const int o1 = jem__conv_from(q, part + 1, p->parts);
    float *phase_out = p->out;
    jem__phase f;
    for (int phase = 0, taps; jem__conv_phase(q, phase, &f); phase++) {
        taps = f.ny * f.nx;
        for (int o0 = jem__conv_from(q, part, p->parts), co; o0 < o1; o0 += co) {
            float *out = phase_out + (ptrdiff_t)o0 * q->ci * taps;
            co = jem__conv_channels(q->co - o0);
            for (int c0 = 0; c0 < q->ci; c0 += 16)
                for (int t = 0; t < taps; t++) {
                    const float *w = p->w + f.ky[t / f.nx] * q->k + f.kx[t % f.nx];
                    for (int c = c0; c < q->ci && c < c0 + 16; c++)
                        for (int o = o0; o < o0 + co; o++) *out++ = w[jem__kernel_at(q, o, c)];
                }
        }
        phase_out += (ptrdiff_t)q->co * q->ci * taps;
    }
}

/* A weight gradient's convolution as its dealt operands show it: where a kernel is one pixel, those
   of x that it meets. */
static jem__conv jem__conv_dealt(const jem__conv *q) {
    jem__conv d = *q;
    if (q->k == 1 && q->pad == 0) {
        d.hi = q->ho;
        d.wi = q->wo;
        d.stride = 1;
    }
    return d;
}
/* A product is a block of output channels (or of input channels, if x is the larger: it is read
   once) with every block of the others, of which a few go through a group together, so that it
   stays in the cache. Nothing is left to finish. */
static int jem__direct_by_x(const jem__weights *w, const jem__conv *dealt) {
    return dealt->hi * dealt->wi > dealt->ho * dealt->wo &&
           dealt->ci >= w->ctx->threads * w->ctx->k->wi;
}
static int jem__direct_panel(const jem__weights *w) {
    const int fit = 56 / (w->q->k * w->q->k);      /* sums of 64 KB with AVX-512 */
    return w->groups == 1 || fit < 1 ? 1 : fit;
}
static void jem__direct_plan(jem__weights *w) {
    const jem__kernels *k = w->ctx->k;
    const jem__conv d = jem__conv_dealt(w->q), *q = &d;
    const int oblocks = (q->co + JEM__WO - 1) / JEM__WO, iblocks = (q->ci + k->wi - 1) / k->wi;
    w->products = jem__direct_by_x(w, q) ? iblocks : oblocks;
    w->planes = w->groups;
    w->x_plane = (ptrdiff_t)iblocks * k->wi * q->hi * q->wi * JEM_LANES;
    w->y_plane = (ptrdiff_t)oblocks * JEM__WO * q->ho * q->wo * JEM_LANES;
    w->product_step = (ptrdiff_t)jem__direct_panel(w) * q->k * q->k * JEM__WO * k->wi * JEM_LANES;
    w->product_size = w->products * w->product_step;
}
static ptrdiff_t jem__direct_work(const jem__conv *q) { (void)q; return 0; }

/* Bias sums of a group, channel by channel and lane by lane, and their end. */
static void jem__bias_deal(const jem__weights *w, int g, const float *dy) {
    w->ctx->k->moment(dy, NULL, 0, (ptrdiff_t)w->q->ho * w->q->wo, w->q->co,
                      w->sums + (ptrdiff_t)g * w->q->co * JEM_LANES);
}
static void jem__bias_finish(const jem__weights *w, int o) {
    for (int g = 0; w->db && g < w->groups; g++)
        w->db[o] += jem__sum_lanes(w->sums + ((ptrdiff_t)g * w->q->co + o) * JEM_LANES);
}

/* Planes of one point, not a power of two apart. */
static ptrdiff_t jem__wino_plane(int channels) {
    return (ptrdiff_t)channels * JEM__TILES * JEM_LANES + 48;
}
static ptrdiff_t jem__wino_work(const jem__conv *q) {                  /* floats */
    const int m = q->tile, a = m + 2;
    return a * a * (jem__wino_plane(q->ci) + jem__wino_plane(q->co)) +
           (ptrdiff_t)m * m * (q->co + 1) * JEM_LANES + (ptrdiff_t)q->ci * JEM_LANES;
}

/* One part of a convolution; and the scratch: transformed inputs, their products, a tile's outputs,
   a pixel of zeros. */
typedef struct jem__wino {
    int across, pad;
    jem__piece to;
    float *v, *p, *out, *zero;
    ptrdiff_t vplane, pplane, pixel;               /* from point to point, from pixel to pixel */
} jem__wino;

JEM__ONCE void jem__wino_open(const jem__conv *q, jem__part part, float *work, jem__wino *w) {
    const int m = q->tile, a = m + 2;
    w->across = (q->wo + m - 1) / m;
    w->to = jem__conv_share(q, part, w->across * ((q->ho + m - 1) / m), JEM__TILES);
    w->pad = q->gradient ? 2 - q->pad : q->pad;
    w->vplane = jem__wino_plane(q->ci);
    w->pplane = jem__wino_plane(q->co);
    w->pixel = (ptrdiff_t)q->co * JEM_LANES + JEM_LANES;     /* not a power of two */
    w->v = work;
    w->p = w->v + a * a * w->vplane;
    w->out = w->p + a * a * w->pplane;
    w->zero = w->out + m * m * w->pixel;
    memset(w->zero, 0, (size_t)(q->ci * JEM_LANES) * sizeof *w->zero);
}

/* A transformation of one tile, channel by channel: where the first channel of each number of it is
   read, and written; how far it is to the next channel, the next number, the next of 16/VL strips
   of lanes. */
typedef struct jem__wino_move {
    const float *in[36];
    float *out;
    ptrdiff_t in_step, out_step, point, strip;
} jem__wino_move;

/* It reads size x size pixels from (y,z) on; turned: the last of them first. */
typedef struct jem__picture { const float *x, *zero; int c, h, w, turned; } jem__picture;

JEM__ONCE void jem__wino_read(jem__wino_move *t, const jem__picture *p, int size, int y, int z) {
    for (int i = 0; i < size * size; i++) {
        const int iy = y + i / size, ix = z + i % size;
        const int inside = (unsigned)iy < (unsigned)p->h && (unsigned)ix < (unsigned)p->w;
        t->in[p->turned ? size * size - 1 - i : i] =
            inside ? p->x + ((ptrdiff_t)iy * p->w + ix) * p->c * JEM_LANES : p->zero;
    }
}

/* Of the 36 points of F4: operands transformed, a product is (point, block of output channels), and
   G' finishes an output channel. Planes of a point are not a power of two apart; a pixel of zeros
   lies behind the bias sums. */
static ptrdiff_t jem__wino_sums(const jem__conv *q) { return (ptrdiff_t)q->co * q->ci + 80; }
static void jem__wino_plan(jem__weights *w) {
    const jem__kernels *k = w->ctx->k;
    const jem__conv *q = w->q;
    const int oblocks = (q->co + JEM__WO - 1) / JEM__WO, iblocks = (q->ci + k->wi - 1) / k->wi;
    const ptrdiff_t all = (ptrdiff_t)w->groups * ((q->ho + 3) / 4) * ((q->wo + 3) / 4);
    w->x_plane = all * iblocks * k->wi * JEM_LANES + 80;
    w->y_plane = all * oblocks * JEM__WO * JEM_LANES + 80;
    w->product_step = all;
    w->planes = 36;
    w->products = 36 * oblocks;
    w->finishes = q->co;
    w->product_size = 36 * jem__wino_sums(q);
    w->sums_size = ((ptrdiff_t)w->groups * q->co + q->ci + q->co) * JEM_LANES;
}

JEM__COMPILE_END
#endif /* JEM_IMPLEMENTATION: the rooms */

#ifdef JEM__PASS
#if JEM__PASS == 2                                 /* JEM_ISA_AVX2 */
#define JEM__TARGET __attribute__((target("avx2,fma")))
#define JEM__FN(name) jem__##name##_avx2
#define JEM__VL 8
#define JEM__MM(name) _mm256_##name
#define JEM__PX 2                                  /* conv block: channels x pixels fill the file */
#define JEM__WI 3                                  /* weight gradient block: WO x in channels */
#define JEM__FOLD4(a, b) _mm256_permute2f128_ps(a, b, 0x20) + _mm256_permute2f128_ps(a, b, 0x31)
#define JEM__LESS(a, b, x, y) (JEM__V)_mm256_blendv_ps(y, x, _mm256_cmp_ps(a, b, _CMP_LT_OQ))
#define JEM__BITS(a)                                                                               \
    ((unsigned)_mm256_movemask_ps(_mm256_cmp_ps(a, _mm256_setzero_ps(), _CMP_LT_OQ)))
#define JEM__PICK(bits, x, y)                                                                      \
    (JEM__V)_mm256_blendv_ps(y, x, (__m256)_mm256_sllv_epi32(_mm256_set1_epi32((int)(bits)),       \
                             _mm256_setr_epi32(31, 30, 29, 28, 27, 26, 25, 24)))
#define JEM__IOTA (JEM__I)_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)
#define JEM__TO_V(i) (JEM__V)_mm256_cvtepi32_ps((__m256i)(i))

#elif JEM__PASS == 3                               /* JEM_ISA_AVX512 */
#define JEM__TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")))
#define JEM__FN(name) jem__##name##_avx512
#define JEM__VL 16
#define JEM__MM(name) _mm512_##name
#define JEM__PX 4
#define JEM__WI 4
#define JEM__FOLD8(a, b) _mm512_shuffle_f32x4(a, b, 0x44) + _mm512_shuffle_f32x4(a, b, 0xee)
#define JEM__FOLD4(a, b) _mm512_shuffle_f32x4(a, b, 0x88) + _mm512_shuffle_f32x4(a, b, 0xdd)
#define JEM__LESS(a, b, x, y) (JEM__V)_mm512_mask_mov_ps(y, _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), x)
#define JEM__BITS(a) ((unsigned)_mm512_cmp_ps_mask(a, _mm512_setzero_ps(), _CMP_LT_OQ))
#define JEM__PICK(bits, x, y) (JEM__V)_mm512_mask_mov_ps(y, (__mmask16)(bits), x)
#define JEM__IOTA (JEM__I)_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)
#define JEM__TO_V(i) (JEM__V)_mm512_cvtepi32_ps((__m512i)(i))

#elif JEM__PASS == 4                               /* JEM_ISA_NEON */
#define JEM__TARGET
#define JEM__FN(name) jem__##name##_neon
#define JEM__VL 4
#define JEM__PX 4
#define JEM__WI 4
#define JEM__LOAD(p) (JEM__V)vld1q_f32(p)
#define JEM__STORE(p, v) vst1q_f32(p, v)
#define JEM__SET(x) (JEM__V)vdupq_n_f32(x)
#define JEM__FMA(a, b, c) (JEM__V)vfmaq_f32(c, a, b)
#define JEM__FNMA(a, b, c) (JEM__V)vfmsq_f32(c, a, b)
#define JEM__SQRT(a) (JEM__V)vsqrtq_f32(a)
#define JEM__FOLD2(a, b)                                                                           \
    vcombine_f32(vget_low_f32(a), vget_low_f32(b)) +                                               \
    vcombine_f32(vget_high_f32(a), vget_high_f32(b))
#define JEM__FOLD1(a, b) vpaddq_f32(a, b)
#define JEM__LESS(a, b, x, y) (JEM__V)vbslq_f32(vcltq_f32(a, b), x, y)
#define JEM__BITS(a) vaddvq_u32(vandq_u32(vcltzq_f32(a), jem__neon_bits))
#define JEM__PICK(bits, x, y)                                                                      \
    (JEM__V)vbslq_f32(vtstq_u32(vdupq_n_u32((uint32_t)(bits)), jem__neon_bits), x, y)
#define JEM__ISET(x) (JEM__I)vdupq_n_u32((uint32_t)(x))
#define JEM__IOTA (JEM__I)jem__neon_iota
#define JEM__TO_V(i) (JEM__V)vcvtq_f32_s32((int32x4_t)(i))
static const uint32x4_t jem__neon_iota = { 0, 1, 2, 3 }, jem__neon_bits = { 1, 2, 4, 8 };

#elif JEM__PASS == 7                               /* JEM_ISA_WASM */
#define JEM__TARGET
#define JEM__FN(name) jem__##name##_wasm
#define JEM__VL 4
#define JEM__PX 2                                  /* for the 16 registers of x86-64 */
#define JEM__WI 2
#define JEM__LOAD(p) (JEM__V)wasm_v128_load(p)
#define JEM__STORE(p, v) wasm_v128_store(p, (v128_t)(v))
#define JEM__SET(x) (JEM__V)wasm_f32x4_splat(x)
#define JEM__FMA(a, b, c) ((a) * (b) + (c))
#define JEM__FNMA(a, b, c) ((c) - (a) * (b))
#define JEM__SQRT(a) (JEM__V)wasm_f32x4_sqrt((v128_t)(a))
#define JEM__FOLD2(a, b)                                                                           \
    __builtin_shufflevector(a, b, 0, 1, 4, 5) + __builtin_shufflevector(a, b, 2, 3, 6, 7)
#define JEM__FOLD1(a, b)                                                                           \
    __builtin_shufflevector(a, b, 0, 2, 4, 6) + __builtin_shufflevector(a, b, 1, 3, 5, 7)
#define JEM__LESS(a, b, x, y)                                                                      \
    (JEM__V)wasm_v128_bitselect((v128_t)(x), (v128_t)(y), (v128_t)((a) < (b)))
#define JEM__BITS(a) wasm_i32x4_bitmask((v128_t)((a) < JEM__SET(0.0f)))
#define JEM__PICK(bits, x, y)                                                                      \
    (JEM__V)wasm_v128_bitselect((v128_t)(x), (v128_t)(y), (v128_t)(                                \
        (JEM__ISET(bits) & (JEM__I)wasm_i32x4_const(1, 2, 4, 8)) != JEM__ISET(0)))
#define JEM__ISET(x) (JEM__I)wasm_i32x4_splat((int)(x))
#define JEM__IOTA (JEM__I)wasm_i32x4_const(0, 1, 2, 3)
#define JEM__TO_V(i) (JEM__V)wasm_f32x4_convert_i32x4((v128_t)(i))

#else                                              /* JEM_ISA_SCALAR: one lane at a time */
#define JEM__TARGET
#define JEM__FN(name) jem__##name##_scalar
#define JEM__VL 1
#define JEM__PX 2
#define JEM__WI 4
#define JEM__LOAD(p) (*(p))
#define JEM__STORE(p, v) (*(p) = (v))
#define JEM__SET(x) (x)
#define JEM__FMA(a, b, c) jem__fmaf(a, b, c)
#define JEM__FNMA(a, b, c) jem__fmaf(-(a), b, c)
#define JEM__SQRT(a) sqrtf(a)
#define JEM__LESS(a, b, x, y) ((a) < (b) ? (x) : (y))
#define JEM__BITS(a) ((a) < 0 ? 1u : 0u)
#define JEM__PICK(bits, x, y) ((bits) & 1u ? (x) : (y))
#define JEM__ISET(x) ((uint32_t)(x))
#define JEM__IOTA 0u
#define JEM__TO_V(i) ((float)(int32_t)(i))
#endif

#ifdef JEM__MM                                     /* AVX2 and AVX-512 have these alike */
#define JEM__LOAD(p) (JEM__V)JEM__MM(loadu_ps)(p)
#define JEM__STORE(p, v) JEM__MM(storeu_ps)(p, v)
#define JEM__SET(x) (JEM__V)JEM__MM(set1_ps)(x)
#define JEM__FMA(a, b, c) (JEM__V)JEM__MM(fmadd_ps)(a, b, c)
#define JEM__FNMA(a, b, c) (JEM__V)JEM__MM(fnmadd_ps)(a, b, c)
#define JEM__SQRT(a) (JEM__V)JEM__MM(sqrt_ps)(a)
#define JEM__ISET(x) (JEM__I)JEM__MM(set1_epi32)((int)(x))
#define JEM__FOLD2(a, b) JEM__MM(shuffle_ps)(a, b, 0x44) + JEM__MM(shuffle_ps)(a, b, 0xee)
#define JEM__FOLD1(a, b) JEM__MM(shuffle_ps)(a, b, 0x88) + JEM__MM(shuffle_ps)(a, b, 0xdd)
#endif

/* Vectors, which the compiler adds and multiplies; for the rest there are these macros. The scalar
   code is the oracle: plain loops, of which the compiler may make what it likes. */
#define JEM__V JEM__FN(floats)
#define JEM__I JEM__FN(words)
#if JEM__VL == 1
typedef float JEM__V;
typedef uint32_t JEM__I;
#define JEM__AS_I(v) jem__float_bits(v)
#define JEM__AS_V(i) jem__bits_float(i)
#define JEM__VINLINE static inline
#define JEM__REPEAT(i, n) for (int i = 0; i < (n); i++)
#else
typedef float JEM__V __attribute__((vector_size(4 * JEM__VL)));
typedef uint32_t JEM__I __attribute__((vector_size(4 * JEM__VL)));
#define JEM__AS_I(v) (JEM__I)(v)
#define JEM__AS_V(i) (JEM__V)(i)
#define JEM__VINLINE JEM__TARGET JEM__INLINE
#define JEM__REPEAT(i, n) JEM__UNROLL for (int i = 0; i < (n); i++)
#endif
#define JEM__KERNEL JEM__TARGET static
#define JEM__EACH(i, n) for (ptrdiff_t i = 0; i < (n); i += JEM__VL)

/* ---- elementary functions -------------------------------------------------------------------- */

/* c[0] x^(n-1) + ... + c[n-1] */
JEM__VINLINE JEM__V JEM__FN(poly)(const int n, const float *c, JEM__V x) {
    JEM__V y = JEM__SET(c[0]);
    JEM__REPEAT(i, n - 1) y = JEM__FMA(y, x, JEM__SET(c[i + 1]));
    return y;
}

/* e^x = 2^n (1 + r + r^2 q(r)), |r| <= ln(2)/2; x held to [-87, 88]. Relative error 1e-7. */
JEM__VINLINE JEM__V JEM__FN(exp)(JEM__V x) {
    static const float c[] = { 1.39411096e-3f, 8.36317982e-3f, 4.16663753e-2f, 0.16666577f, 0.5f };
    const JEM__V lo = JEM__SET(-87.0f), hi = JEM__SET(88.0f);
    const JEM__V round = JEM__SET(12582912.0f);    /* 1.5 * 2^23: adding it rounds to an integer */
    x = JEM__LESS(x, lo, lo, x);
    x = JEM__LESS(hi, x, hi, x);
    JEM__V t = JEM__FMA(x, JEM__SET(1.44269504f), round), n = t - round;
    JEM__V r = JEM__FNMA(n, JEM__SET(0.693359375f), x);
    r = JEM__FNMA(n, JEM__SET(-2.12194440e-4f), r);
    const JEM__V q = JEM__FMA(r * r, JEM__FN(poly)(5, c, r), r) + JEM__SET(1.0f);
    const JEM__V y = JEM__AS_V(JEM__AS_I(q) + (JEM__AS_I(t) << 23));
    return JEM__FMA(x, JEM__SET(0.0f), y);         /* a NaN stays one */
}

/* ln x = e ln2 + 2 atanh(s), s = (m-1)/(m+1), m in [sqrt(1/2), sqrt(2)); for normal x > 0. */
JEM__VINLINE JEM__V JEM__FN(log)(JEM__V x) {
    static const float c[] = { 0.233327598f, 0.285507233f, 0.400001229f, 0.666666666f };
    const JEM__I low = JEM__ISET(0x3f3504f3u);     /* bits of sqrt(1/2) */
    JEM__I u = JEM__AS_I(x) + JEM__ISET(0x3f800000u - 0x3f3504f3u);
    JEM__V e = JEM__TO_V(u >> 23) - JEM__SET(127.0f);
    JEM__V m = JEM__AS_V((u & JEM__ISET(0x007fffffu)) + low);
    const JEM__V one = JEM__SET(1.0f);
    JEM__V s = (m - one) / (m + one), z = s * s;
    JEM__V q = JEM__FN(poly)(4, c, z);
    q = JEM__FMA(s * z, q, JEM__FMA(e, JEM__SET(-2.12194440e-4f), s + s));
    q = JEM__FMA(e, JEM__SET(0.693359375f), q);
    return JEM__FMA(x, JEM__SET(0.0f), q);         /* infinity and NaN come out as NaN */
}

/* 1/(1 + e^-x) */
JEM__VINLINE JEM__V JEM__FN(sigmoid)(JEM__V x) {
    const JEM__V one = JEM__SET(1.0f);
    return one / (one + JEM__FN(exp)(JEM__SET(0.0f) - x));
}

/* 2 sigmoid(2x) - 1 */
JEM__VINLINE JEM__V JEM__FN(tanh)(JEM__V x) {
    return JEM__FMA(JEM__SET(2.0f), JEM__FN(sigmoid)(x + x), JEM__SET(-1.0f));
}

/* log(1 + e^x) = max(x, 0) + log(1 + e^-|x|); u is 1 + e^-|x| rounded, and (e^-|x|)/(u - 1) mends
   what that lost */
JEM__VINLINE JEM__V JEM__FN(softplus)(JEM__V x) {
    const JEM__V zero = JEM__SET(0.0f), one = JEM__SET(1.0f), minus = zero - x;
    const JEM__V e = JEM__FN(exp)(JEM__LESS(x, zero, x, minus)), u = one + e;
    const JEM__V top = JEM__LESS(x, zero, zero, x);
    const JEM__V mend = e / (u - one);
    return JEM__LESS(one, u, JEM__FMA(JEM__FN(log)(u), mend, top), e + top);
}

/* ---- random numbers: block b of 32 floats is counters start+16b .. +15, two words each ------- */

/* Threefry-2x32-20: 20 rounds of add, rotate, xor, the key mixed in every 4. */
JEM__VINLINE void JEM__FN(threefry)(const uint32_t *key, uint64_t counter, JEM__I *a, JEM__I *b) {
    static const unsigned rotate[8] = { 13, 15, 26, 6, 17, 29, 16, 24 };
    const uint32_t k2 = key[0] ^ key[1] ^ 0x1BD11BDAu;
    const JEM__I ks[3] = { JEM__ISET(key[0]), JEM__ISET(key[1]), JEM__ISET(k2) };
    JEM__I x = JEM__ISET((uint32_t)counter) + JEM__IOTA + ks[0];
    JEM__I y = JEM__ISET((uint32_t)(counter >> 32)) + ks[1];
    JEM__REPEAT(j, 5) {
        JEM__REPEAT(r, 4) {
            const unsigned s = rotate[(j * 4 + r) & 7];
            x = x + y;
            y = ((y << s) + (y >> (32 - s))) ^ x;
        }
        x = x + ks[(j + 1) % 3];
        y = y + (ks[(j + 2) % 3] + JEM__ISET(j + 1));
    }
    *a = x;
    *b = y;
}

JEM__VINLINE JEM__V JEM__FN(unit)(JEM__I u) {      /* [0,1), 24 bits */
    return JEM__TO_V(u >> 8) * JEM__SET(1.0f / 16777216.0f);
}

/* Two N(0,1) from two words (Box & Muller 1958): sqrt(-2 ln u) times sine and cosine of 2 pi t,
   which are polynomials in t^2 for t in [-1/2, 1/2). */
JEM__VINLINE void JEM__FN(normal2)(JEM__I a, JEM__I b, JEM__V *p, JEM__V *q) {
    static const float sine[] = {
        -0.620820359f, 3.78135533f, -15.0865778f, 42.0577562f, -76.7058004f, 81.6052474f,
        -41.3417022f, 6.28318531f
    };
    static const float cosine[] = {
        -1.45323693f, 7.80024045f, -26.4047057f, 60.2421377f, -85.4566589f, 64.9393891f,
        -19.7392087f, 1.0f
    };
    JEM__V u = JEM__SET(1.0f) - JEM__FN(unit)(a);             /* (0,1] */
    JEM__V t = JEM__FN(unit)(b) - JEM__SET(0.5f), z = t * t;
    JEM__V r = JEM__SQRT(JEM__SET(-2.0f) * JEM__FN(log)(u));
    *p = r * (JEM__FN(poly)(8, sine, z) * t);
    *q = r * JEM__FN(poly)(8, cosine, z);
}

/* What counters .. + VL make of their two words: uniform numbers (kind 0) or normal ones (1). */
JEM__KERNEL void JEM__FN(draw)(int kind, const uint32_t *key, uint64_t counter, JEM__V *p) {
    JEM__I a, b;
    JEM__FN(threefry)(key, counter, &a, &b);
    if (kind == 0) {
        p[0] = JEM__FN(unit)(a);
        p[1] = JEM__FN(unit)(b);
    } else {
        JEM__FN(normal2)(a, b, &p[0], &p[1]);
    }
}

/* kind 0: a + b U[0,1); kind 1: a + b N(0,1). n in 16s. */
JEM__KERNEL void JEM__FN(fill)(int kind, const uint32_t *key, uint64_t start, float *out,
                               ptrdiff_t n, float a, float b) {
    const JEM__V va = JEM__SET(a), vb = JEM__SET(b);
    for (ptrdiff_t i = 0; i < n; i += 32)
        for (int l = 0; l < 16; l += JEM__VL) {
            JEM__V p[2];
            JEM__FN(draw)(kind, key, start + (uint64_t)(i / 2 + l), p);
            JEM__STORE(out + i + l, JEM__FMA(vb, p[0], va));
            if (i + 16 < n) JEM__STORE(out + i + 16 + l, JEM__FMA(vb, p[1], va));
        }
}

/* The two fused activations, of one vector at lanes l ..; bits: signs (leaky relu), slopes: the
   derivative s + x s (1-s) (SiLU), for the backward, or NULL. */
JEM__VINLINE JEM__V JEM__FN(activate)(int kind, float slope, JEM__V v, int l, uint16_t *bits,
                                      float *slopes) {
    if (kind == JEM__MAP_SILU) {
        const JEM__V s = JEM__FN(sigmoid)(v), r = v * s;
        if (slopes) JEM__STORE(slopes, JEM__FMA(r, JEM__SET(1.0f) - s, s));
        return r;
    }
    if (bits) *bits = (uint16_t)((l ? *bits : 0u) | JEM__BITS(v) << l);
    return JEM__LESS(v, JEM__SET(0.0f), v * JEM__SET(slope), v);
}

/* ---- convolution: output, and input gradient ------------------------------------------------- */

/* What becomes of a finished sum (see jem__finish), at lanes l ..; o: its channel; at: its place in
   the tensor, l included. A mask and an addition are one fma, as they are where they are not fused.
   Returns what came of it last. */
JEM__VINLINE JEM__V JEM__FN(finish_one)(const jem__finish *f, JEM__V v, int o, ptrdiff_t at,
                                        int l) {
    const ptrdiff_t bit = at / JEM_LANES;
    if (f->bias) v = v + JEM__SET(f->bias[o]);
    if (f->bits || f->slopes) {
        const JEM__V m = f->slopes ? JEM__LOAD(f->slopes + at)
                                   : JEM__PICK((unsigned)f->bits[bit] >> l, JEM__SET(f->slope),
                                               JEM__SET(1.0f));
        v = f->add ? JEM__FMA(v, m, JEM__LOAD(f->add + at)) : v * m;
    } else if (f->add) v = v + JEM__LOAD(f->add + at);
    if (f->y) JEM__STORE(f->y + at, v);
    if (f->kind) {
        v = JEM__FN(activate)(f->kind, f->slope, v, l, f->keep_bits ? f->keep_bits + bit : NULL,
                              f->keep_slopes ? f->keep_slopes + at : NULL);
        if (f->act) JEM__STORE(f->act + at, v);
    }
    return v;
}
/* The same of n channels from o on of one pixel, `step` floats apart; at: of its channel 0. */
JEM__KERNEL void JEM__FN(finish)(const jem__finish *f, const float *sum, ptrdiff_t step, int o,
                                 int n, ptrdiff_t at, int l) {
    at += (ptrdiff_t)o * JEM_LANES + l;
    for (int end = o + n; o < end; o++, sum += step, at += JEM_LANES)
        (void)JEM__FN(finish_one)(f, JEM__LOAD(sum), o, at, l);
}

/* acc[o][i] += w[o] x[i], over n input channels of PX pixels or tiles x[i], which lie `step` floats
   apart; w[o] are `apart` from each other, and w goes on by `next`. Many parameters: it is inlined,
   and most of them are constants. */
JEM__VINLINE void JEM__FN(multiply)(const int rows, const int px, const float *w, int apart,
                                    int next, const float *const *x, int step, int n,
                                    JEM__V (*acc)[JEM__PX]) {
    for (int c = 0; c < n; c++, w += next) {
        JEM__V v[JEM__PX];
        JEM__REPEAT(i, px) v[i] = JEM__LOAD(x[i] + c * step);
        JEM__REPEAT(o, rows) {
            const JEM__V wo = JEM__SET(w[o * apart]);
            JEM__REPEAT(i, px) acc[o][i] = JEM__FMA(wo, v[i], acc[o][i]);
        }
    }
}

/* Output channels x pixels (CO x PX) are accumulated in registers over taps and input channels.
   Weights are packed [block of CO][16 input channels][tap][input channel][CO]. Of `most` channels
   only co are wanted: the others read what follows, and are thrown away. */
JEM__VINLINE void JEM__FN(conv_block)(const int most, const int px, const jem__pixels *p,
                                      const float *w, int co, const jem__finish *f, int o0, int l) {
    static const float zero[16 * JEM_LANES] = { 0 };
    const int rows = JEM__VL == 1 ? co : most, ci = p->channels;
    JEM__V acc[JEM__CO][JEM__PX], sum[JEM__PX][JEM__CO];
    JEM__REPEAT(o, rows) JEM__REPEAT(i, px) acc[o][i] = JEM__SET(0.0f);
    for (int c0 = 0; c0 < ci; c0 += 16) {
        const int nc = ci - c0 < 16 ? ci - c0 : 16;
        const float *wc = w + (ptrdiff_t)c0 * p->taps * co;
        for (int t = 0; t < p->live; t++) {
            const float *wt = wc + (ptrdiff_t)p->index[t] * nc * co;
            const float *x[JEM__PX];
            JEM__REPEAT(i, px) {
                const float *from = p->tap[t][i];
                x[i] = (from ? from + c0 * JEM_LANES : zero) + l;
            }
            JEM__FN(multiply)(rows, px, wt, 1, co, x, JEM_LANES, nc, acc);
        }
    }
    if (!f->bits && !f->slopes && !f->add && !f->kind) {     /* nothing but a bias: no detour */
        float *y = f->y + (ptrdiff_t)o0 * JEM_LANES + l;
        JEM__REPEAT(o, rows) {
            if (o >= co) continue;
            if (f->bias) JEM__REPEAT(i, px) acc[o][i] = acc[o][i] + JEM__SET(f->bias[o0 + o]);
            JEM__REPEAT(i, px) JEM__STORE(y + p->at[i] + o * JEM_LANES, acc[o][i]);
        }
        return;
    }
    JEM__REPEAT(i, px) JEM__REPEAT(o, rows) sum[i][o] = acc[o][i];
    for (int i = 0; i < px; i++)
        JEM__FN(finish)(f, (const float *)sum[i], JEM__VL, o0, co, p->at[i], l);
}
/* Few kinds of block, since each is compiled for every instruction set. A pixel alone waits for its
   sums anyway: six of them as long as one. */
JEM__TARGET JEM__ONCE void JEM__FN(conv_blocks)(const jem__pixels *p, const float *w, int co,
                                                const jem__finish *f, int o, int l) {
    switch (p->count == JEM__PX ? co : 0) {
    case 0: JEM__FN(conv_block)(6, 1, p, w, co, f, o, l); break;
    case 1: JEM__FN(conv_block)(1, JEM__PX, p, w, 1, f, o, l); break;
    case 4: JEM__FN(conv_block)(4, JEM__PX, p, w, 4, f, o, l); break;
    case 6: JEM__FN(conv_block)(6, JEM__PX, p, w, 6, f, o, l); break;
    default: JEM__FN(conv_block)(3, JEM__PX, p, w, co, f, o, l);
    }
}

/* One group of 16 images. x (hi,wi,ci,16) -> (ho,wo,co,16), finished as f says; of all that, one
   part, for as many threads as there are parts. */
JEM__KERNEL void JEM__FN(conv)(const jem__conv *q, const jem__operands *in, const jem__finish *f) {
    const float *pack = in->packed;
    jem__phase s;
    jem__pixels p;
    for (int phase = 0; jem__conv_phase(q, phase, &s); phase++) {
        const jem__piece to = jem__conv_share(q, in->part, s.rows * s.cols, JEM__PX);
        for (int i = to.first, n; i < to.last; i += n) {
            n = to.last - i >= JEM__PX ? JEM__PX : 1;
            jem__conv_pixels(q, &s, i, n, in->x, &p);
            const float *w = pack + (ptrdiff_t)to.o0 * q->ci * p.taps;
            for (int o = to.o0, co; o < to.o1; o += co) {
                co = jem__conv_channels(q->co - o);
                for (int l = 0; l < JEM_LANES; l += JEM__VL)
                    JEM__FN(conv_blocks)(&p, w, co, f, o, l);
                w += (ptrdiff_t)co * q->ci * p.taps;
            }
        }
        pack += (ptrdiff_t)q->co * q->ci * s.ny * s.nx;
    }
}

/* ---- Winograd: 3x3 convolutions of stride 1 with fewer multiplications ----------------------- */
/* Lavin & Gray 2015 (arXiv:1509.09308): a tile of M x M outputs is A'[(G g G') . (B' d B)]A, with d
   the (M+2) x (M+2) inputs under it. The product in the middle, point by point, is a matrix product
   over channels. M = 2 has 2.25 times fewer multiplications than the direct sum, M = 4 has 4 times
   fewer; interpolation points are 0, 1, -1, (2, -2,) infinity. An input gradient's kernels are the
   output's, turned round: it turns each tile instead, before and after, and reads the output's
   packed weights, which are most of a wide network's memory. */

/* o = B' d, M = 2 */
JEM__VINLINE void JEM__FN(wino_b2)(const JEM__V *d, JEM__V *o) {
    o[0] = d[0] - d[2];
    o[1] = d[1] + d[2];
    o[2] = d[2] - d[1];
    o[3] = d[1] - d[3];
}
/* o = B' d, M = 4 */
JEM__VINLINE void JEM__FN(wino_b4)(const JEM__V *d, JEM__V *o) {
    const JEM__V two = JEM__SET(2.0f), four = JEM__SET(4.0f), five = JEM__SET(5.0f);
    const JEM__V p = JEM__FNMA(four, d[2], d[4]), q = JEM__FNMA(four, d[1], d[3]);
    const JEM__V r = d[4] - d[2], s = d[3] - d[1];
    o[0] = JEM__FMA(four, d[0], JEM__FNMA(five, d[2], d[4]));
    o[1] = p + q;
    o[2] = p - q;
    o[3] = JEM__FMA(two, s, r);
    o[4] = JEM__FNMA(two, s, r);
    o[5] = JEM__FMA(four, d[1], JEM__FNMA(five, d[3], d[5]));
}
/* o = A' d, M = 2 */
JEM__VINLINE void JEM__FN(wino_a2)(const JEM__V *d, JEM__V *o) {
    o[0] = d[0] + (d[1] + d[2]);
    o[1] = d[1] - d[2] - d[3];
}
/* o = A' d, M = 4 */
JEM__VINLINE void JEM__FN(wino_a4)(const JEM__V *d, JEM__V *o) {
    const JEM__V p = d[1] + d[2], q = d[1] - d[2];
    const JEM__V r = d[3] + d[4], s = d[3] - d[4];
    o[0] = d[0] + p + r;
    o[1] = JEM__FMA(JEM__SET(2.0f), s, q);
    o[2] = JEM__FMA(JEM__SET(4.0f), r, p);
    o[3] = JEM__FMA(JEM__SET(8.0f), s, q) + d[5];
}
/* o = A d, M = 4 (for weight gradients) */
JEM__VINLINE void JEM__FN(wino_at)(const JEM__V *d, JEM__V *o) {
    const JEM__V s = d[0] + d[2], r = d[1] + d[3];
    const JEM__V s2 = JEM__FMA(JEM__SET(4.0f), d[2], d[0]);
    const JEM__V r2 = JEM__FMA(JEM__SET(8.0f), d[3], d[1] + d[1]);
    o[0] = d[0];
    o[1] = s + r;
    o[2] = s - r;
    o[3] = s2 + r2;
    o[4] = s2 - r2;
    o[5] = d[3];
}

/* One of these for all columns, then for all rows of a tile: from x from numbers become to x to.
   What goes into Winograd's domain is in so many places that no processor foresees where the next
   channel's will be read and written: they are asked for. */
#define JEM__WINO(name, line, from, to)                                                            \
    JEM__KERNEL void JEM__FN(name)(const jem__wino_move *w, int channels) {                        \
        for (int c = 0; c < channels; c++)                                                         \
            for (int l = 0; l < JEM_LANES; l += JEM__VL) {                                         \
                const ptrdiff_t at = c * w->in_step + l;                                           \
                float *out = w->out + c * w->out_step + l / JEM__VL * w->strip;                    \
                JEM__V t[to][from];                                                                \
                JEM__REPEAT(i, (from) * (from))                                                    \
                    if ((to) >= (from) && l == 0) jem__prefetch(w->in[i] + at, w->in_step);        \
                JEM__REPEAT(i, (to) * (to))                                                        \
                    if ((to) >= (from) && (l == 0 || w->strip > JEM__VL))                          \
                        jem__prefetch(out + i * w->point, w->out_step);                            \
                JEM__REPEAT(j, from) {                                                             \
                    JEM__V d[from], o[to];                                                         \
                    JEM__REPEAT(i, from) d[i] = JEM__LOAD(w->in[i * (from) + j] + at);             \
                    JEM__FN(line)(d, o);                                                           \
                    JEM__REPEAT(i, to) t[i][j] = o[i];                                             \
                }                                                                                  \
                JEM__REPEAT(i, to) {                                                               \
                    JEM__V o[to];                                                                  \
                    JEM__FN(line)(t[i], o);                                                        \
                    JEM__REPEAT(j, to) JEM__STORE(out + (i * (to) + j) * w->point, o[j]);          \
                }                                                                                  \
            }                                                                                      \
    }
JEM__WINO(wino_in2, wino_b2, 4, 4)
JEM__WINO(wino_in4, wino_b4, 6, 6)
JEM__WINO(wino_out2, wino_a2, 4, 2)
JEM__WINO(wino_out4, wino_a4, 6, 4)
JEM__WINO(wino_dy, wino_at, 4, 6)
#undef JEM__WINO

/* p[o][tile] = sum over channels of u[channel][o] v[channel][tile], PX tiles, for the block of co
   channels from o0 on; as conv_block. u is packed by the output's blocks. To an input gradient
   these are blocks of what it reads, so many whole ones and a rest: it reads u across, and of each
   block asks in time for what the next channels will need. */
JEM__VINLINE void JEM__FN(wino_block)(const int most, const jem__conv *q, int whole, const float *u,
                                      int o0, int co, const float *v, float *p) {
    enum { N = JEM__WHOLE };
    const int rows = JEM__VL == 1 ? co : most, step = JEM__TILES * JEM_LANES;
    const float *x[JEM__PX];
    JEM__V acc[JEM__CO][JEM__PX];
    JEM__REPEAT(t, JEM__PX) x[t] = v + t * JEM_LANES;
    JEM__REPEAT(o, rows) JEM__REPEAT(t, JEM__PX) acc[o][t] = JEM__SET(0.0f);
    if (!q->gradient)
        JEM__FN(multiply)(rows, JEM__PX, u + (ptrdiff_t)o0 * q->ci, 1, co, x, step, q->ci, acc);
    else {
        for (int b = 0; b < whole; b++, u += (ptrdiff_t)N * q->co) {
            JEM__REPEAT(i, 3) jem__prefetch(u, (o0 + N) * N + i * 16);
            JEM__FN(multiply)(rows, JEM__PX, u + o0 * N, N, 1, x, step, N, acc);
            JEM__REPEAT(t, JEM__PX) x[t] += N * step;
        }
        for (int left = q->ci - N * whole, n; left > 0; left -= n, u += (ptrdiff_t)n * q->co) {
            n = left < 4 ? left : 4;
            JEM__FN(multiply)(rows, JEM__PX, u + o0 * n, n, 1, x, step, n, acc);
            JEM__REPEAT(t, JEM__PX) x[t] += n * step;
        }
    }
    JEM__REPEAT(o, rows) {
        if (o >= co) continue;
        JEM__REPEAT(t, JEM__PX) JEM__STORE(p + (o * JEM__TILES + t) * JEM_LANES, acc[o][t]);
    }
}
JEM__TARGET JEM__ONCE void JEM__FN(wino_blocks)(const jem__conv *q, int whole, const float *u,
                                                int o, int co, const float *v, float *p) {
    switch (co) {
    case 1: JEM__FN(wino_block)(1, q, whole, u, o, 1, v, p); break;
    case 4: JEM__FN(wino_block)(4, q, whole, u, o, 4, v, p); break;
    case 6: JEM__FN(wino_block)(6, q, whole, u, o, 6, v, p); break;
    default: JEM__FN(wino_block)(3, q, whole, u, o, co, v, p);
    }
}

/* The products of n tiles, point by point */
JEM__KERNEL void JEM__FN(wino_products)(const jem__conv *q, const jem__wino *w, const float *u,
                                        int n) {
    int whole = 0;
    while (jem__conv_channels(q->ci - JEM__WHOLE * whole) == JEM__WHOLE) whole++;
    for (int i = 0; i < (q->tile + 2) * (q->tile + 2); i++, u += (ptrdiff_t)q->co * q->ci) {
        const float *v = w->v + i * w->vplane;
        for (int o = w->to.o0, co; o < w->to.o1; o += co) {
            float *p = w->p + i * w->pplane + (ptrdiff_t)o * JEM__TILES * JEM_LANES;
            co = jem__conv_channels(q->co - o);
            for (int t = 0; t < n * JEM_LANES; t += JEM__PX * JEM_LANES)
                for (int l = 0; l < JEM_LANES; l += JEM__VL)
                    JEM__FN(wino_blocks)(q, whole, u, o, co, v + t + l, p + t + l);
        }
    }
}

/* As conv, for k = 3, stride 1. */
JEM__KERNEL void JEM__FN(wino_conv)(const jem__conv *q, const jem__operands *from,
                                    const jem__finish *f) {
    const int m = q->tile;
    jem__wino w;
    jem__wino_move in, out;
    jem__wino_open(q, from->part, from->work, &w);
    const int o0 = w.to.o0, o1 = w.to.o1;
    const jem__picture image = { from->x, w.zero, q->ci, q->hi, q->wi, q->gradient };
    in.out_step = out.in_step = JEM__TILES * JEM_LANES;
    in.point = w.vplane;
    out.out = w.out;
    out.out_step = JEM_LANES;
    out.point = w.pixel;
    in.strip = out.strip = JEM__VL;
    for (int t0 = w.to.first; t0 < w.to.last; t0 += JEM__TILES) {
        const int n = w.to.last - t0 < JEM__TILES ? w.to.last - t0 : JEM__TILES;
        for (int t = 0; t < n; t++) {
            const int at = t0 + t;
            jem__wino_read(&in, &image, m + 2, at / w.across * m - w.pad,
                           at % w.across * m - w.pad);
            in.out = w.v + t * JEM_LANES;
            in.in_step = JEM_LANES;
            (m == 2 ? JEM__FN(wino_in2) : JEM__FN(wino_in4))(&in, q->ci);
        }
        JEM__FN(wino_products)(q, &w, from->packed, n);
        for (int t = 0; t < n; t++) {
            const int y = (t0 + t) / w.across * m, z = (t0 + t) % w.across * m;
            const float *sums = w.p + ((ptrdiff_t)o0 * JEM__TILES + t) * JEM_LANES;
            for (int i = 0; i < (m + 2) * (m + 2); i++) out.in[i] = sums + i * w.pplane;
            (m == 2 ? JEM__FN(wino_out2) : JEM__FN(wino_out4))(&out, o1 - o0);
            for (int i = 0; i < m * m; i++) {
                const int at = q->gradient ? m * m - 1 - i : i, row = y + at / m, col = z + at % m;
                if (row >= q->ho || col >= q->wo) continue;
                for (int l = 0; l < JEM_LANES; l += JEM__VL)
                    JEM__FN(finish)(f, w.out + i * w.pixel + l, JEM_LANES, o0, o1 - o0,
                                    ((ptrdiff_t)row * q->wo + col) * q->co * JEM_LANES, l);
            }
        }
    }
}

/* ---- convolution: weight gradient ------------------------------------------------------------ */
/* dW[o][i][t] = sum over images and pixels of dy[o][pixel] x[i][pixel at tap t]. A block of WO x WI
   weights is accumulated in registers, a tap at a time, over rows small enough for the L1. Operands
   are first copied to [strip of VL lanes][block of B channels][pixel][B][VL]: straight lines to
   read, and no power-of-two strides. */

/* A few pixels at a time, so that reads are of neighbours too. */
JEM__KERNEL void JEM__FN(deal)(const jem__weights *w, int g, int side, const jem__operands *in) {
    const jem__conv *q = w->q, d = jem__conv_dealt(q);
    const int channels = side ? q->co : q->ci, block = side ? JEM__WO : JEM__WI;
    const int blocks = (channels + block - 1) / block, s = side ? 1 : q->stride / d.stride;
    const int width = side ? q->wo : q->wi, wide = side ? q->wo : d.wi;        /* dealt of them */
    const int pixels = wide * (side ? q->ho : d.hi);
    float *out = side ? w->y + g * w->y_plane : w->x + g * w->x_plane;
    for (int p0 = 0; p0 < pixels; p0 += 8)
        for (int c0 = 0; c0 < channels; c0 += block)
            for (int l = 0; l < JEM_LANES; l += JEM__VL) {
                float *to = out + ((ptrdiff_t)(l / JEM__VL * blocks + c0 / block) * pixels + p0) *
                                  block * JEM__VL;
                for (int p = p0; p < pixels && p < p0 + 8; p++) {
                    const float *from = in->x + ((ptrdiff_t)(p / wide * width + p % wide) * s *
                                                 channels + c0) * JEM_LANES + l;
                    for (int c = c0; c < c0 + block; c++, to += JEM__VL, from += JEM_LANES)
                        JEM__STORE(to, c < channels ? JEM__LOAD(from) : JEM__SET(0.0f));
                }
            }
}

/* The 16 lanes of each of WO x WI sums, [strip][cell][VL], added up in jem__sum_lanes' order: lanes
   that lie 8, 4, 2, 1 apart. A fold does so with two registers at once and makes one of them, so
   VL sums end as the VL lanes of one register; none of it goes through memory (Intel's processors
   wait long for a wide load of what was just stored in pieces). */
JEM__KERNEL void JEM__FN(sums)(const float *acc, ptrdiff_t strip, float *out) {
    for (int c0 = 0; c0 < JEM__WO * JEM__WI; c0 += JEM__VL) {
        JEM__V v[JEM__VL];
        JEM__REPEAT(i, JEM__VL) {                  /* cells in the order in which folds take them */
            int cell = c0 + (JEM__VL < 4 ? 0 : i * 4 % JEM__VL + i * 4 / JEM__VL);
            cell = cell < JEM__WO * JEM__WI ? cell : JEM__WO * JEM__WI - 1;
            JEM__V s[JEM_LANES / JEM__VL];
            JEM__REPEAT(j, JEM_LANES / JEM__VL)
                s[j] = JEM__LOAD(acc + j * strip + (ptrdiff_t)cell * JEM__VL);
            for (int n = JEM_LANES / JEM__VL / 2; n > 0; n /= 2)
                for (int j = 0; j < n; j++) s[j] = s[j] + s[j + n];
            v[i] = s[0];
        }
#if JEM__VL == 16
        JEM__REPEAT(i, 8) v[i] = JEM__FOLD8(v[2 * i], v[2 * i + 1]);
#endif
#if JEM__VL >= 8
        JEM__REPEAT(i, 4) v[i] = JEM__FOLD4(v[2 * i], v[2 * i + 1]);
#endif
#if JEM__VL >= 4
        v[0] = JEM__FOLD1(JEM__FOLD2(v[0], v[1]), JEM__FOLD2(v[2], v[3]));
#endif
        JEM__STORE(out + c0, v[0]);
    }
}

/* a[WO][WI] += dy x, n times: dy goes on by WO vectors, x by `step`; meanwhile n lines of memory
   from from[ahead] on are asked for, unless `from` is NULL. */
JEM__VINLINE void JEM__FN(correlate)(const float *dy, const float *x, ptrdiff_t n, int step,
                                     const float *from, ptrdiff_t ahead,
                                     JEM__V (*a)[JEM__WI]) {
    for (ptrdiff_t t = 0; t < n; t++, dy += JEM__WO * JEM__VL, x += step * JEM__VL) {
        JEM__V v[JEM__WI];
        if (from) jem__prefetch(from, ahead + t * 16);
        JEM__REPEAT(i, JEM__WI) v[i] = JEM__LOAD(x + i * JEM__VL);
        JEM__REPEAT(o, JEM__WO) {
            const JEM__V g = JEM__LOAD(dy + o * JEM__VL);
            JEM__REPEAT(i, JEM__WI) a[o][i] = JEM__FMA(g, v[i], a[o][i]);
        }
    }
}

/* acc[tap][WO][WI][VL] += rows y0..y1 of the output. The first taps ask for x's next rows, the
   others for dy's. */
JEM__KERNEL void JEM__FN(weight_block)(const jem__conv *q, const float *x, const float *dy,
                                       float *acc, int y0, int y1) {
    const int s = q->stride, half = (q->k * q->k + 1) / 2;
    const ptrdiff_t next_x = ((ptrdiff_t)y1 * s + q->k - s - q->pad) * q->wi * JEM__WI * JEM__VL;
    const ptrdiff_t next_dy = (ptrdiff_t)y1 * q->wo * JEM__WO * JEM__VL;
    for (int ky = 0; ky < q->k; ky++)
        for (int kx = 0; kx < q->k; kx++, acc += JEM__WO * JEM__WI * JEM__VL) {
            JEM__V a[JEM__WO][JEM__WI];
            JEM__REPEAT(o, JEM__WO)
                JEM__REPEAT(i, JEM__WI) a[o][i] = JEM__LOAD(acc + (o * JEM__WI + i) * JEM__VL);
            const int right = kx - q->pad;
            int lo = 0, hi = q->wo;                /* columns whose tap lies inside */
            while (lo < hi && lo * s + right < 0) lo++;
            while (hi > lo && (hi - 1) * s + right >= q->wi) hi--;
            const ptrdiff_t lines = (ptrdiff_t)(hi - lo) * 16, tap = ky * q->k + kx;
            const float *from = tap < half ? x : dy;
            ptrdiff_t ahead = tap < half ? next_x + tap * (y1 - y0) * lines
                                         : next_dy + (tap - half) * (y1 - y0) * lines;
            for (int oy = y0; oy < y1; oy++, ahead += lines) {
                const int iy = oy * s + ky - q->pad;
                if ((unsigned)iy >= (unsigned)q->hi) continue;
                const float *g = dy + ((ptrdiff_t)oy * q->wo + lo) * JEM__WO * JEM__VL;
                const float *v = x + ((ptrdiff_t)iy * q->wi + lo * s + right) * JEM__WI * JEM__VL;
                JEM__FN(correlate)(g, v, hi - lo, s * JEM__WI, from, ahead, a);
            }
            JEM__REPEAT(o, JEM__WO)
                JEM__REPEAT(i, JEM__WI) JEM__STORE(acc + (o * JEM__WI + i) * JEM__VL, a[o][i]);
        }
}

/* db[o] += the sum of dy (as dealt) over groups and pixels, for the WO channels from o0 on */
JEM__KERNEL void JEM__FN(bias_gradient)(const jem__weights *w, int o0, const float *dy,
                                        ptrdiff_t strip) {
    const ptrdiff_t pixels = (ptrdiff_t)w->q->ho * w->q->wo;
    float lane[JEM__WO][JEM_LANES];
    for (int l = 0; l < JEM_LANES; l += JEM__VL, dy += strip) {
        JEM__V s[JEM__WO];
        JEM__REPEAT(o, JEM__WO) s[o] = JEM__SET(0.0f);
        for (int g = 0; g < w->groups; g++)
            for (ptrdiff_t p = 0; p < pixels; p++) {
                const float *at = dy + g * w->y_plane + p * JEM__WO * JEM__VL;
                JEM__REPEAT(o, JEM__WO) s[o] = s[o] + JEM__LOAD(at + o * JEM__VL);
            }
        JEM__REPEAT(o, JEM__WO) JEM__STORE(lane[o] + l, s[o]);
    }
    for (int o = 0; o < JEM__WO && o0 + o < w->q->co; o++) w->db[o0 + o] += jem__sum_lanes(lane[o]);
}

/* The sums of the block of output channels from o0, input channels from i0 on: added to dw. */
JEM__KERNEL void JEM__FN(weight_sums)(const jem__weights *w, const float *acc, int o0, int i0) {
    const int taps = w->q->k * w->q->k, cells = JEM__WO * JEM__WI, ci = w->q->ci;
    const int out = w->q->co - o0 < JEM__WO ? w->q->co - o0 : JEM__WO;
    const int in = ci - i0 < JEM__WI ? ci - i0 : JEM__WI;
    float sum[32], *dw = w->dw + ((ptrdiff_t)o0 * ci + i0) * taps;
    for (int t = 0; t < taps; t++, dw++) {
        JEM__FN(sums)(acc + (ptrdiff_t)t * cells * JEM__VL, (ptrdiff_t)taps * cells * JEM__VL, sum);
        for (int o = 0; o < out; o++)
            for (int i = 0; i < in; i++)
                dw[((ptrdiff_t)o * ci + i) * taps] += sum[o * JEM__WI + i];
    }
}

/* Product i, over all groups: see jem__direct_plan. */
JEM__KERNEL void JEM__FN(weight_gradient)(const jem__weights *w, int block) {
    const jem__conv d = jem__conv_dealt(w->q), *q = &d;
    const int taps = q->k * q->k, cells = JEM__WO * JEM__WI, panel = jem__direct_panel(w);
    const int oblocks = (q->co + JEM__WO - 1) / JEM__WO, iblocks = (q->ci + JEM__WI - 1) / JEM__WI;
    const int by_x = jem__direct_by_x(w, q), others = by_x ? oblocks : iblocks;
    const ptrdiff_t px = (ptrdiff_t)q->hi * q->wi * JEM__WI * JEM__VL,       /* of a block */
                    py = (ptrdiff_t)q->ho * q->wo * JEM__WO * JEM__VL;
    const ptrdiff_t strip = (ptrdiff_t)taps * cells * JEM__VL, all = (ptrdiff_t)taps * cells * 16;
    float *acc = w->product + block * w->product_step;
    const ptrdiff_t row = (ptrdiff_t)q->wi * q->stride * JEM__WI + (ptrdiff_t)q->wo * JEM__WO;
    int rows = (int)(20480 / (row * JEM__VL * 4));
    if (rows < 1) rows = 1;
    for (int b0 = 0; b0 < others; b0 += panel) {
        const int n = others - b0 < panel ? others - b0 : panel;
        memset(acc, 0, (size_t)(n * all) * sizeof *acc);
        for (int s = 0; s < JEM_LANES / JEM__VL; s++)
            for (int g = 0; g < w->groups; g++)
                for (int b = 0; b < n; b++) {
                    const int ob = by_x ? b0 + b : block, ib = by_x ? block : b0 + b;
                    const float *x = w->x + g * w->x_plane + (s * iblocks + ib) * px,
                                *dy = w->y + g * w->y_plane + (s * oblocks + ob) * py;
                    for (int y0 = 0; y0 < q->ho; y0 += rows)
                        JEM__FN(weight_block)(q, x, dy, acc + b * all + s * strip, y0,
                                              y0 + rows < q->ho ? y0 + rows : q->ho);
                }
        for (int b = 0; b < n; b++)
            JEM__FN(weight_sums)(w, acc + b * all, (by_x ? b0 + b : block) * JEM__WO,
                                 (by_x ? block : b0 + b) * JEM__WI);
    }
    for (int ob = block; w->db && ob < oblocks; ob += w->products)
        JEM__FN(bias_gradient)(w, ob * JEM__WO, w->y + ob * py, oblocks * py);
}

static const jem__method JEM__FN(direct) = { 0, jem__pack_size, jem__direct_pack,
    jem__direct_work, JEM__FN(conv), jem__direct_plan, JEM__FN(deal), JEM__FN(weight_gradient),
    NULL };

/* ---- weight gradient by Winograd ------------------------------------------------------------- */
/* The gradient of A'[(G g G') . (B' d B)]A in g: dg = G'[(A dy A') . (B' d B)]G, so the same
   matrices turned round. Both factors are made for all tiles, point by point; the sum over tiles
   and images is a matrix product per point; G' goes last. Operands lie as [point]
   [strip of VL lanes][block of B channels][tile][B][VL], tiles counted through all groups. For
   M = 4 and more than 32 channels: with fewer, the direct sum was measured to be as fast. */

/* One group's tiles of x (side 0) or dy (side 1), transformed. */
JEM__KERNEL void JEM__FN(wino_deal)(const jem__weights *w, int group, int side,
                                    const jem__operands *in) {
    const jem__conv *q = w->q;
    const int across = (q->wo + 3) / 4, tiles = across * ((q->ho + 3) / 4);
    const int size = side ? 4 : 6, from = side ? 0 : -q->pad;
    const int channels = side ? q->co : q->ci, block = side ? JEM__WO : JEM__WI;
    const jem__picture image = { in->x, w->sums + (ptrdiff_t)w->groups * q->co * JEM_LANES,
                                 channels, side ? q->ho : q->hi, side ? q->wo : q->wi, 0 };
    const ptrdiff_t all = w->product_step, cell = (ptrdiff_t)block * JEM__VL;
    jem__wino_move tile;
    tile.in_step = JEM_LANES;
    tile.out_step = JEM__VL;
    tile.point = side ? w->y_plane : w->x_plane;
    tile.strip = (channels + block - 1) / block * all * cell;
    for (int t = 0; t < tiles; t++) {
        jem__wino_read(&tile, &image, size, t / across * 4 + from, t % across * 4 + from);
        tile.out = (side ? w->y : w->x) + (group * tiles + t) * cell;
        for (int c = 0; c < channels; c += block, tile.out += all * cell) {
            const int n = c + block < channels ? block : channels - c;
            (side ? JEM__FN(wino_dy) : JEM__FN(wino_in4))(&tile, n);
            for (int i = 0; i < size * size; i++) tile.in[i] += n * JEM_LANES;
            for (int i = 0; n < block && i < 36; i++)                  /* fill the last block */
                for (int s = 0; s < JEM_LANES / JEM__VL; s++)
                    memset(tile.out + i * tile.point + s * tile.strip + n * JEM__VL, 0,
                           (size_t)((block - n) * JEM__VL) * sizeof(float));
        }
    }
    if (side) jem__bias_deal(w, group, in->x);
}

/* Product i: one point and one block of WO output channels: sum over all tiles and lanes, to
   [point][o][i]. */
JEM__KERNEL void JEM__FN(wino_weights)(const jem__weights *w, int i) {
    const jem__conv *q = w->q;
    const int iblocks = (q->ci + JEM__WI - 1) / JEM__WI, oblocks = (q->co + JEM__WO - 1) / JEM__WO;
    const int point = i / oblocks, ob = i % oblocks, cells = JEM__WO * JEM__WI;
    const ptrdiff_t all = w->product_step;
    float *to = w->product + point * jem__wino_sums(q) + (ptrdiff_t)ob * JEM__WO * q->ci;
    for (int ib = 0; ib < iblocks; ib++) {
        float lanes[JEM__WO * JEM__WI * JEM_LANES], sum[32];
        for (int s = 0; s < JEM_LANES / JEM__VL; s++) {
            const float *v = w->x + point * w->x_plane +
                             ((ptrdiff_t)s * iblocks + ib) * all * JEM__WI * JEM__VL;
            const float *g = w->y + point * w->y_plane +
                             ((ptrdiff_t)s * oblocks + ob) * all * JEM__WO * JEM__VL;
            JEM__V acc[JEM__WO][JEM__WI];
            JEM__REPEAT(o, JEM__WO) JEM__REPEAT(c, JEM__WI) acc[o][c] = JEM__SET(0.0f);
            JEM__FN(correlate)(g, v, all, JEM__WI, NULL, 0, acc);
            JEM__REPEAT(o, JEM__WO)
                JEM__REPEAT(c, JEM__WI)
                    JEM__STORE(lanes + (s * cells + o * JEM__WI + c) * JEM__VL, acc[o][c]);
        }
        JEM__FN(sums)(lanes, cells * JEM__VL, sum);
        const int in = q->ci - ib * JEM__WI;
        for (int o = 0; o < JEM__WO && ob * JEM__WO + o < q->co; o++) {
            float *row = to + (ptrdiff_t)o * q->ci + ib * JEM__WI;
            if (in >= JEM__WI) memcpy(row, sum + o * JEM__WI, JEM__WI * sizeof *row); /* one move */
            else memcpy(row, sum + o * JEM__WI, (size_t)in * sizeof *row);
        }
    }
}

JEM__COMPILE("tree-vectorize")                     /* doubles, which have no JEM__V */
/* o[3] = G' p[6], of 16 input channels */
JEM__VINLINE void JEM__FN(wino_gt)(double (*p)[16], double (*o)[16]) {
    for (int l = 0; l < 16; l++) {                  /* a division by 6, and by a power of two */
        const double add = (p[1][l] + p[2][l]) / 6, sub = (p[1][l] - p[2][l]) / 6;
        const double add2 = (p[3][l] + p[4][l]) / 6, sub2 = (p[3][l] - p[4][l]) / 6;
        o[0][l] = p[0][l] / 4 - add + add2 / 4;
        o[1][l] = sub2 / 2 - sub;
        o[2][l] = add2 - add + p[5][l];
    }
}
/* G' .. G of an output channel's products, in double: added to dw */
JEM__KERNEL void JEM__FN(wino_finish)(const jem__weights *w, int o) {
    const int ci = w->q->ci;
    jem__bias_finish(w, o);
    for (int c0 = 0; c0 < ci; c0 += 16) {
        const float *p = w->product + (ptrdiff_t)o * ci + c0;
        const int n = ci - c0 < 16 ? ci - c0 : 16;
        float *dw = w->dw + ((ptrdiff_t)o * ci + c0) * 9;
        double line[6][16], t[6][3][16], r[3][16];
        for (int y = 0; y < 6; y++) {
            for (int x = 0; x < 6; x++, p += jem__wino_sums(w->q))     /* past n: thrown away */
                for (int l = 0; l < 16; l++) line[x][l] = (double)p[l];
            JEM__FN(wino_gt)(line, t[y]);
        }
        for (int x = 0; x < 3; x++) {
            for (int y = 0; y < 6; y++) memcpy(line[y], t[y][x], sizeof line[y]);
            JEM__FN(wino_gt)(line, r);
            for (int l = 0; l < n; l++)
                for (int y = 0; y < 3; y++) dw[l * 9 + y * 3 + x] += (float)r[y][l];
        }
    }
}

/* o = G g, of 16 kernels; every product is exact or the last operation, so no compiler changes a
   bit. M = 2, then M = 4. */
JEM__VINLINE void JEM__FN(wino_g2)(double (*g)[16], double (*o)[16]) {
    for (int l = 0; l < 16; l++) {
        const double s = g[0][l] + g[2][l];
        o[0][l] = g[0][l];
        o[1][l] = (s + g[1][l]) / 2;
        o[2][l] = (s - g[1][l]) / 2;
        o[3][l] = g[2][l];
    }
}
JEM__VINLINE void JEM__FN(wino_g4)(double (*g)[16], double (*o)[16]) {
    for (int l = 0; l < 16; l++) {
        const double s = g[0][l] + g[2][l], r = g[0][l] + 4 * g[2][l], d = 2 * g[1][l];
        o[0][l] = g[0][l] / 4;
        o[1][l] = (s + g[1][l]) / -6;
        o[2][l] = (s - g[1][l]) / -6;
        o[3][l] = (r + d) / 24;
        o[4][l] = (r - d) / 24;
        o[5][l] = g[2][l];
    }
}
/* Weights w (O,I,3,3) to [point][block of CO][input channel][CO]: the block of `co` channels from
   o0 on, 16 numbers of each point at a time. */
JEM__KERNEL void JEM__FN(wino_pack_block)(const jem__conv *q, const float *w, int o0, int co,
                                          float *out) {
    const int m = q->tile, a = m + 2, all = q->ci * co;
    const ptrdiff_t plane = (ptrdiff_t)q->ci * q->co;
    out += (ptrdiff_t)o0 * q->ci;
    for (int at = 0; at < all; at += 16) {
        const int n = all - at < 16 ? all - at : 16;
        double g[3][3][16], t[6][3][16], u[6][16];
        float line[16];
        memset(g, 0, sizeof g);
        for (int l = 0; l < n; l++) {
            const int c = (at + l) / co, o = o0 + (at + l) % co;
            const float *k = w + ((ptrdiff_t)o * q->ci + c) * 9;
            for (int i = 0; i < 9; i++) g[i % 3][i / 3][l] = (double)k[i];
        }
        for (int j = 0; j < 3; j++) {
            if (m == 2) JEM__FN(wino_g2)(g[j], u); else JEM__FN(wino_g4)(g[j], u);
            for (int i = 0; i < a; i++) memcpy(t[i][j], u[i], sizeof u[i]);
        }
        for (int i = 0; i < a; i++) {
            if (m == 2) JEM__FN(wino_g2)(t[i], u); else JEM__FN(wino_g4)(t[i], u);
            for (int j = 0; j < a; j++) {
                for (int l = 0; l < 16; l++) line[l] = (float)u[j][l];
                memcpy(out + (i * a + j) * plane + at, line, (size_t)n * sizeof *line);
            }
        }
    }
}
JEM__COMPILE_END
JEM__KERNEL void JEM__FN(wino_pack)(void *packing, int part) {
    const jem__packing *p = (const jem__packing *)packing;
    const int o1 = jem__conv_from(p->q, part + 1, p->parts);
    for (int o = jem__conv_from(p->q, part, p->parts), co; o < o1; o += co) {
        co = jem__conv_channels(p->q->co - o);
        JEM__FN(wino_pack_block)(p->q, p->w, o, co, p->out);
    }
}
static const jem__method JEM__FN(winograd) = { 0, jem__pack_size, JEM__FN(wino_pack),
    jem__wino_work, JEM__FN(wino_conv), jem__wino_plan, JEM__FN(wino_deal), JEM__FN(wino_weights),
    JEM__FN(wino_finish) };

/* ---- elementwise: n floats, in 16s ----------------------------------------------------------- */

#define JEM__WORD(word) JEM__##word
#define JEM__A JEM__SET(a)
#define JEM__ONE JEM__SET(1.0f)
#define JEM__ZERO JEM__SET(0.0f)

/* y = f(x). aux: the bits or slopes that the backward wants, or NULL. */
JEM__KERNEL void JEM__FN(map)(int kind, float a, const float *x, float *y, void *aux, ptrdiff_t n) {
    uint16_t *bits = (uint16_t *)aux;
    float *slopes = (float *)aux;
#define JEM__X JEM__LOAD(x + i)
#define JEM__ACTIVATE(which)                                                                       \
    JEM__FN(activate)(which, a, JEM__X, (int)(i % JEM_LANES),                                      \
                      which == JEM__MAP_LEAKY && bits ? bits + i / JEM_LANES : NULL,               \
                      which == JEM__MAP_SILU && slopes ? slopes + i : NULL)
#define JEM__ROW(which, name, wants, f, derivative)                                                \
    case JEM__MAP_##which: JEM__EACH(i, n) JEM__STORE(y + i, f); break;
    switch (kind) { JEM__MAPS(JEM__ROW, JEM__WORD) default: break; }
#undef JEM__ROW
#undef JEM__ACTIVATE
#undef JEM__X
}

/* dx = (add ? dx : 0) + dy f'(x). kept: the input or the output, as the row says. */
JEM__KERNEL void JEM__FN(map_back)(int kind, float a, const float *kept, const void *aux,
                                   const float *dy, float *dx, int add, ptrdiff_t n) {
    const uint16_t *bits = (const uint16_t *)aux;
    const float *slopes = (const float *)aux;
#define JEM__X JEM__LOAD(kept + i)
#define JEM__Y JEM__LOAD(kept + i)
#define JEM__BIT ((unsigned)bits[i / JEM_LANES] >> (i % JEM_LANES))
#define JEM__SLOPE JEM__LOAD(slopes + i)
#define JEM__ROW(which, name, wants, f, derivative)                                                \
    case JEM__MAP_##which:                                                                         \
        JEM__EACH(i, n) {                                                                          \
            const JEM__V d = derivative, g = JEM__LOAD(dy + i);                                    \
            JEM__STORE(dx + i, add ? JEM__FMA(g, d, JEM__LOAD(dx + i)) : g * d);                   \
        }                                                                                          \
        break;
    switch (kind) {
        JEM__MAPS(JEM__ROW, JEM__WORD)
        JEM__ROW(DROP, "", BIT, , JEM__PICK(JEM__BIT, JEM__SET(0.0f), JEM__SET(a)))
    default: break;
    }
#undef JEM__ROW
#undef JEM__SLOPE
#undef JEM__BIT
#undef JEM__Y
#undef JEM__X
}
#undef JEM__WORD
#undef JEM__A
#undef JEM__ONE
#undef JEM__ZERO

/* y = u < p ? 0 : x a, where y holds the uniform numbers u on entry; bits: which were dropped. */
JEM__KERNEL void JEM__FN(drop)(float p, float a, const float *x, float *y, uint16_t *bits,
                               ptrdiff_t n) {
    const JEM__V va = JEM__SET(a), vp = JEM__SET(p), zero = JEM__SET(0.0f);
    for (ptrdiff_t i = 0; i < n; i += JEM_LANES) {
        unsigned m = 0;
        for (int h = 0; h < JEM_LANES; h += JEM__VL) {
            const JEM__V below = JEM__LOAD(y + i + h) - vp;
            m |= JEM__BITS(below) << h;
            JEM__STORE(y + i + h, JEM__LESS(below, zero, zero, JEM__LOAD(x + i + h) * va));
        }
        if (bits) bits[i / JEM_LANES] = (uint16_t)m;
    }
}

/* y = a op b, op one of + - *. spread: b is one number per lane. */
JEM__KERNEL void JEM__FN(pair)(int kind, const float *a, const float *b, int spread, float *y,
                               ptrdiff_t n) {
#define JEM__PAIR(op)                                                                              \
    JEM__EACH(i, n)                                                                                \
        JEM__STORE(y + i, JEM__LOAD(a + i) op JEM__LOAD(b + (spread ? i % JEM_LANES : i)))
    if (kind == JEM__PAIR_ADD) JEM__PAIR(+);
    if (kind == JEM__PAIR_SUB) JEM__PAIR(-);
    if (kind == JEM__PAIR_MUL) JEM__PAIR(*);
#undef JEM__PAIR
}

/* dx = (add ? dx : 0) + s dy v; v NULL: 1. spread: v is one number per lane. */
JEM__KERNEL void JEM__FN(pair_back)(float s, const float *dy, const float *v, int spread, float *dx,
                                    int add, ptrdiff_t n) {
    const JEM__V vs = JEM__SET(s);
    JEM__EACH(i, n) {
        const JEM__V g = JEM__LOAD(dy + i);
        const JEM__V d = v ? vs * JEM__LOAD(v + (spread ? i % JEM_LANES : i)) : vs;
        JEM__STORE(dx + i, add ? JEM__FMA(g, d, JEM__LOAD(dx + i)) : g * d);
    }
}

/* y[lane] = x[lane + by], where `lanes` has a bit; else 0. */
JEM__KERNEL void JEM__FN(shift)(const float *x, int by, unsigned lanes, float *y, ptrdiff_t n) {
    for (ptrdiff_t i = 0; i < n; i += JEM_LANES) {
        float edge[3 * JEM_LANES];
        const float *from = x + i;
        if (i == 0 || i + JEM_LANES == n) {        /* beyond x nothing may be read */
            memset(edge, 0, sizeof edge);
            from = (const float *)memcpy(edge + JEM_LANES, from, JEM_LANES * sizeof *x);
        }
        for (int h = 0; h < JEM_LANES; h += JEM__VL)
            JEM__STORE(y + i + h, JEM__PICK(lanes >> h, JEM__LOAD(from + h + by), JEM__SET(0.0f)));
    }
}

/* out[lane] = s sum over i of a[i] b[i]; b NULL: 1. */
JEM__KERNEL void JEM__FN(dot)(float s, const float *a, const float *b, float *out, int add,
                              ptrdiff_t n) {
    for (int h = 0; h < JEM_LANES; h += JEM__VL) {
        JEM__V t = JEM__SET(0.0f);
        for (ptrdiff_t i = h; i < n; i += JEM_LANES)
            t = b ? JEM__FMA(JEM__LOAD(a + i), JEM__LOAD(b + i), t) : t + JEM__LOAD(a + i);
        const JEM__V vs = JEM__SET(s);
        JEM__STORE(out + h, add ? JEM__FMA(vs, t, JEM__LOAD(out + h)) : vs * t);
    }
}

/* ---- over channels: x[c][16] -> a number per lane -------------------------------------------- */

JEM__KERNEL void JEM__FN(logsumexp)(const float *x, int c, float *y) {
    for (int h = 0; h < JEM_LANES; h += JEM__VL) {
        JEM__V m = JEM__LOAD(x + h), s = JEM__SET(0.0f);
        for (int i = 1; i < c; i++) {
            const JEM__V v = JEM__LOAD(x + i * JEM_LANES + h);
            m = JEM__LESS(m, v, v, m);
        }
        for (int i = 0; i < c; i++)
            s = s + JEM__FN(exp)(JEM__LOAD(x + i * JEM_LANES + h) - m);
        JEM__STORE(y + h, m + JEM__FN(log)(s));
    }
}

/* dx[i] = (add ? dx[i] : 0) + dy softmax(x)[i], softmax = exp(x - y) */
JEM__KERNEL void JEM__FN(logsumexp_back)(const float *x, const float *y, const float *dy, int c,
                                         float *dx, int add) {
    for (int i = 0; i < c; i++)
        for (int h = 0; h < JEM_LANES; h += JEM__VL) {
            const ptrdiff_t at = (ptrdiff_t)i * JEM_LANES + h;
            const JEM__V p = JEM__FN(exp)(JEM__LOAD(x + at) - JEM__LOAD(y + h));
            const JEM__V g = JEM__LOAD(dy + h);
            JEM__STORE(dx + at, add ? JEM__FMA(g, p, JEM__LOAD(dx + at)) : g * p);
        }
}

/* ---- average pooling ------------------------------------------------------------------------- */

JEM__KERNEL void JEM__FN(pool)(const jem__pool *p, const float *x, float *y) {
    const ptrdiff_t n = (ptrdiff_t)p->c * JEM_LANES;
    for (int o = 0; o < p->ho * p->wo; o++, y += n) {
        const float *from = x + jem__pool_at(p, o, 0);
        JEM__EACH(i, n) {
            JEM__V t = JEM__SET(0.0f);
            for (int ky = 0; ky < p->kh; ky++)
                for (int kx = 0; kx < p->kw; kx++)
                    t = t + JEM__LOAD(from + ((ptrdiff_t)ky * p->w + kx) * n + i);
            JEM__STORE(y + i, t * JEM__SET(p->scale));
        }
    }
}
JEM__KERNEL void JEM__FN(pool_back)(const jem__pool *p, const float *dy, float *dx) {
    const JEM__V s = JEM__SET(p->scale);
    const ptrdiff_t n = (ptrdiff_t)p->c * JEM_LANES;
    for (int o = 0; o < p->ho * p->wo; o++, dy += n)
        for (int t = 0; t < p->kh * p->kw; t++) {
            float *at = dx + jem__pool_at(p, o, t);
            JEM__EACH(i, n)
                JEM__STORE(at + i, JEM__FMA(JEM__LOAD(dy + i), s, JEM__LOAD(at + i)));
        }
}

/* ---- normalisation: per channel and lane; arrays mean, rstd (c,16), gamma, beta (c) ---------- */

/* sum[c][16] += x - mean (squared: its square), over pixels; mean NULL: 0 */
JEM__KERNEL void JEM__FN(moment)(const float *x, const float *mean, int squared, ptrdiff_t pixels,
                                 int c, float *sum) {
    const ptrdiff_t n = (ptrdiff_t)c * JEM_LANES;
    for (ptrdiff_t p = 0; p < pixels; p++, x += n)
        JEM__EACH(i, n) {
            JEM__V v = JEM__LOAD(x + i), s = JEM__LOAD(sum + i);
            if (mean) v = v - JEM__LOAD(mean + i);
            JEM__STORE(sum + i, squared ? JEM__FMA(v, v, s) : s + v);
        }
}

/* y = (x - mean) rstd gamma + beta */
JEM__KERNEL void JEM__FN(normalize)(const jem__norm *norm, const float *x, float *y) {
    const jem__norm p = *norm;                     /* which no store can change */
    for (ptrdiff_t t = 0; t < p.pixels; t++)
        for (int i = 0; i < p.c; i++, x += JEM_LANES, y += JEM_LANES) {
            const JEM__V g = JEM__SET(p.gamma[i]), b = JEM__SET(p.beta ? p.beta[i] : 0.0f);
            for (int h = 0; h < JEM_LANES; h += JEM__VL) {
                const ptrdiff_t at = (ptrdiff_t)i * JEM_LANES + h;
                JEM__V v = JEM__LOAD(x + h) - JEM__LOAD(p.mean + at);
                v = v * JEM__LOAD(p.rstd + at);
                JEM__STORE(y + h, JEM__FMA(v, g, b));
            }
        }
}

/* s1[c][16] += dy, s2[c][16] += dy xhat, over pixels; xhat = (x - mean) rstd */
JEM__KERNEL void JEM__FN(normalize_sums)(const jem__norm *norm, const float *x, const float *dy) {
    const jem__norm p = *norm;                     /* which no store can change */
    const ptrdiff_t n = (ptrdiff_t)p.c * JEM_LANES;
    for (ptrdiff_t t = 0; t < p.pixels; t++, x += n, dy += n)
        JEM__EACH(i, n) {
            const JEM__V g = JEM__LOAD(dy + i), m = JEM__LOAD(p.mean + i);
            const JEM__V v = (JEM__LOAD(x + i) - m) * JEM__LOAD(p.rstd + i);
            JEM__STORE(p.s1 + i, JEM__LOAD(p.s1 + i) + g);
            JEM__STORE(p.s2 + i, JEM__FMA(g, v, JEM__LOAD(p.s2 + i)));
        }
}

/* dx += rstd (dy gamma - s1 - xhat s2), or, if statistics do not depend on x, rstd dy gamma */
JEM__KERNEL void JEM__FN(normalize_back)(const jem__norm *norm, int own, const float *x,
                                         const float *dy, float *dx) {
    const jem__norm p = *norm;                     /* which no store can change */
    for (ptrdiff_t t = 0; t < p.pixels; t++)
        for (int i = 0; i < p.c; i++, x += JEM_LANES, dy += JEM_LANES, dx += JEM_LANES)
            for (int h = 0; h < JEM_LANES; h += JEM__VL) {
                const ptrdiff_t at = (ptrdiff_t)i * JEM_LANES + h;
                const JEM__V r = JEM__LOAD(p.rstd + at), g = JEM__LOAD(dy + h),
                             gm = JEM__SET(p.gamma[i]);
                JEM__V d = g * gm;
                if (own) {
                    const JEM__V v = (JEM__LOAD(x + h) - JEM__LOAD(p.mean + at)) * r;
                    d = JEM__FMA(g, gm, JEM__SET(0.0f) - JEM__LOAD(p.s1 + at));
                    d = JEM__FNMA(v, JEM__LOAD(p.s2 + at), d);
                }
                JEM__STORE(dx + h, JEM__FMA(r, d, JEM__LOAD(dx + h)));
            }
}

/* ---- sampling and learning ------------------------------------------------------------------- */

/* x <- clamp(x + step clamp(g) + noise N(0,1)); n in 16s; key NULL: no noise */
JEM__KERNEL void JEM__FN(langevin)(float *x, const float *g, ptrdiff_t n, const jem__langevin *d,
                                   const uint32_t *key, uint64_t start) {
    const JEM__V gmax = JEM__SET(d->clamp_grad), gmin = JEM__SET(-d->clamp_grad);
    const JEM__V lo = JEM__SET(d->lo), hi = JEM__SET(d->hi);
    const int clamp_x = d->lo < d->hi, clamp_g = d->clamp_grad > 0;
    for (ptrdiff_t i = 0; i < n; i += 32)
        for (int l = 0; l < 16; l += JEM__VL) {
            JEM__V z[2] = { JEM__SET(0.0f), JEM__SET(0.0f) };
            if (key) JEM__FN(draw)(1, key, start + (uint64_t)(i / 2 + l), z);
            for (int j = 0; j < 2 && i + j * 16 < n; j++) {
                float *at = x + i + j * 16 + l;
                JEM__V v = JEM__LOAD(g + i + j * 16 + l);
                if (clamp_g) {
                    v = JEM__LESS(v, gmin, gmin, v);
                    v = JEM__LESS(gmax, v, gmax, v);
                }
                v = JEM__FMA(JEM__LOAD(d->step + l), v, JEM__LOAD(at));
                v = JEM__FMA(JEM__LOAD(d->noise + l), z[j], v);
                if (clamp_x) {
                    v = JEM__LESS(v, lo, lo, v);
                    v = JEM__LESS(hi, v, hi, v);
                }
                JEM__STORE(at, v);
            }
        }
}

/* Adam (Kingma & Ba 2015, algorithm 1); lr and root2 hold the two bias corrections:
   p -= lr m/(sqrt(v) root2 + eps), lr = rate/(1 - b1^t), root2 = 1/sqrt(1 - b2^t) */
JEM__KERNEL void JEM__FN(adam)(float *p, const float *grad, float *m, float *v, ptrdiff_t n,
                               const jem__update *d) {
    const JEM__V decay = JEM__SET(d->weight_decay), eps = JEM__SET(d->eps);
    const JEM__V b1 = JEM__SET(d->beta1), c1 = JEM__SET(1.0f - d->beta1);
    const JEM__V b2 = JEM__SET(d->beta2), c2 = JEM__SET(1.0f - d->beta2);
    const JEM__V rate = JEM__SET(d->lr), root = JEM__SET(d->root2);
    JEM__EACH(i, n) {
        const JEM__V w = JEM__LOAD(p + i), g = JEM__FMA(decay, w, JEM__LOAD(grad + i));
        const JEM__V mi = JEM__FMA(c1, g, b1 * JEM__LOAD(m + i));
        const JEM__V vi = JEM__FMA(c2 * g, g, b2 * JEM__LOAD(v + i));
        JEM__STORE(m + i, mi);
        JEM__STORE(v + i, vi);
        const JEM__V q = mi / JEM__FMA(JEM__SQRT(vi), root, eps);
        JEM__STORE(p + i, JEM__FNMA(rate, q, w));
    }
}

/* m = momentum m + g; p -= lr m (PyTorch's convention) */
JEM__KERNEL void JEM__FN(sgd)(float *p, const float *grad, float *m, ptrdiff_t n,
                              const jem__update *d) {
    const JEM__V decay = JEM__SET(d->weight_decay), mu = JEM__SET(d->momentum);
    const JEM__V rate = JEM__SET(d->lr);
    JEM__EACH(i, n) {
        const JEM__V w = JEM__LOAD(p + i), g = JEM__FMA(decay, w, JEM__LOAD(grad + i));
        const JEM__V mi = JEM__FMA(mu, JEM__LOAD(m + i), g);
        JEM__STORE(m + i, mi);
        JEM__STORE(p + i, JEM__FNMA(rate, mi, w));
    }
}

/* Computes 4 rows of x x^T from row `first` on, and the equal columns: out(i,j) = sum over k of
   x(i,k) x(j,k), in panels as x. Each of 16 lanes sums its own columns, panel by panel. */
JEM__KERNEL void JEM__FN(gram)(const jem__matrix *x, int first, float *out) {
    const ptrdiff_t rows = x->rows;
    for (int j0 = first; j0 < x->rows; j0 += 4) {
        float lanes[4][4][JEM_LANES];
        for (int l = 0; l < JEM_LANES; l += JEM__VL) {
            JEM__V sum[4][4];
            JEM__UNROLL
            for (int i = 0; i < 16; i++) sum[i / 4][i % 4] = JEM__SET(0.0f);
            for (int k = 0; k < x->panels; k++) {
                const float *a = x->data + (k * rows + first) * JEM_LANES + l;
                const float *b = x->data + (k * rows + j0) * JEM_LANES + l;
                JEM__UNROLL
                for (int i = 0; i < 16; i++)
                    sum[i / 4][i % 4] = JEM__FMA(JEM__LOAD(a + i / 4 * JEM_LANES),
                                                 JEM__LOAD(b + i % 4 * JEM_LANES),
                                                 sum[i / 4][i % 4]);
            }
            JEM__UNROLL
            for (int i = 0; i < 16; i++) JEM__STORE(lanes[i / 4][i % 4] + l, sum[i / 4][i % 4]);
        }
        for (int i = first; i < first + 4; i++)
            for (int j = j0; j < j0 + 4; j++) {
                const float dot = jem__sum_lanes(lanes[i - first][j - j0]);
                out[(j / JEM_LANES * rows + i) * JEM_LANES + j % JEM_LANES] = dot;
                out[(i / JEM_LANES * rows + j) * JEM_LANES + i % JEM_LANES] = dot;
            }
    }
}

/* Computes one panel of alpha a x + beta x for a symmetric matrix a of as many rows, in panels too.
   It reads a(k,i) for a(i,k), so that 8 rows of the result read 8 neighbours. */
JEM__KERNEL void JEM__FN(symmetric_product)(const jem__matrix *x, const float *a, float alpha,
                                            float beta, int panel, float *out) {
    const ptrdiff_t rows = x->rows, at = panel * rows * JEM_LANES;
    const JEM__V va = JEM__SET(alpha), vb = JEM__SET(beta);
    for (int i0 = 0; i0 < x->rows; i0 += 8)
        for (int l = 0; l < JEM_LANES; l += JEM__VL) {
            const float *from = a + i0 / JEM_LANES * rows * JEM_LANES + i0 % JEM_LANES;
            const float *column = x->data + at + l;
            JEM__V sum[8];
            JEM__UNROLL
            for (int i = 0; i < 8; i++) sum[i] = JEM__SET(0.0f);
            for (int k = 0; k < x->rows; k++) {
                const JEM__V v = JEM__LOAD(column + k * JEM_LANES);
                JEM__UNROLL
                for (int i = 0; i < 8; i++)
                    sum[i] = JEM__FMA(JEM__SET(from[k * JEM_LANES + i]), v, sum[i]);
            }
            for (int i = 0; i < 8; i++) {
                const ptrdiff_t to = (i0 + i) * JEM_LANES + l;
                JEM__STORE(out + at + to, JEM__FMA(va, sum[i], vb * JEM__LOAD(x->data + at + to)));
            }
        }
}

static const jem__kernels JEM__FN(kernels) = {
    (jem_isa)JEM__PASS, JEM__WI, &JEM__FN(direct), &JEM__FN(winograd), JEM__FN(fill),
    JEM__FN(map), JEM__FN(map_back), JEM__FN(drop), JEM__FN(pair), JEM__FN(pair_back),
    JEM__FN(shift), JEM__FN(dot), JEM__FN(logsumexp), JEM__FN(logsumexp_back), JEM__FN(pool),
    JEM__FN(pool_back), JEM__FN(moment), JEM__FN(normalize), JEM__FN(normalize_sums),
    JEM__FN(normalize_back), JEM__FN(langevin), JEM__FN(adam), JEM__FN(sgd), JEM__FN(gram),
    JEM__FN(symmetric_product)
};

#undef JEM__PASS
#undef JEM__TARGET
#undef JEM__FN
#undef JEM__VL
#undef JEM__MM
#undef JEM__PX
#undef JEM__WI
#undef JEM__LOAD
#undef JEM__STORE
#undef JEM__SET
#undef JEM__FMA
#undef JEM__FNMA
#undef JEM__SQRT
#undef JEM__FOLD8
#undef JEM__FOLD4
#undef JEM__FOLD2
#undef JEM__FOLD1
#undef JEM__LESS
#undef JEM__BITS
#undef JEM__PICK
#undef JEM__ISET
#undef JEM__IOTA
#undef JEM__TO_V
#undef JEM__AS_I
#undef JEM__AS_V
#undef JEM__VINLINE
#undef JEM__REPEAT
#elif defined(JEM_IMPLEMENTATION) && !defined(JEM__INSTANCES)
#define JEM__INSTANCES

/* ---- instances ------------------------------------------------------------------------------- */

#ifdef JEM__X86
JEM__COMPILE("Og")                                 /* the oracle, hardly ever what runs */
#else
JEM__COMPILE("O1")
#endif
#define JEM__PASS 1
#include JEM_FILE
JEM__COMPILE_END
JEM__COMPILE("no-tree-vectorize")                  /* they are vectors already */
#ifdef JEM__X86
#define JEM__PASS 2
#include JEM_FILE
#define JEM__PASS 3
#include JEM_FILE
#elif defined(JEM__ARM)
#define JEM__PASS 4
#include JEM_FILE
#elif defined(JEM__WASM)
#define JEM__PASS 7
#include JEM_FILE
#endif

/* ---- bf16: convolutions with operands of 8 bits of mantissa, sums in fp32 -------------------- */
/* Everything is one step: a tile of 16 x 16 sums, C += A B, where A is 16 rows of pairs and B pairs
   of 16 columns, and a pair is two neighbouring bf16. That is an instruction of AMX (16 pairs at a
   time), and 16 of AVX-512 BF16 for each pair.

     output, input gradient   A: weights of 16 channels   B: 16 images          pairs of channels
     weight gradient          A: dy of 16 channels        B: x of 16 channels   pairs of images

   What B reads for neighbouring taps is one run of memory: an image is [row][column][pair of
   channels][16 images][2], with columns of zeros before and behind every row, so a row of taps
   needs no test and few channels still make long sums. Of JEM_PRECISION_BF16, and only of it, the bits depend
   on the instruction set: AMX adds even and odd elements apart. */

enum {
    JEM__BF16_TILE = 256,                          /* floats of C */
    JEM__BF16_PAIR = 32,                           /* bf16 of one pair of B */
    JEM__BF16_EDGE = 2,                            /* columns of zeros beside an image */
    JEM__BF16_RUNS = JEM__MAX_KERNEL               /* runs that one call can add up */
};

/* A block of sums: c[n][m] = (add: +=) the sum over runs and pairs of a[run], m tiles a2 apart,
   times b[run][n]; m is 1 or 2, m n at most 4; a: 16 pairs after another, the last filled with
   zeros. A convolution's are then finished, `done` of the m n tiles so far: n pixels from (y,x) on,
   `step` apart, channels from 16*o on. */
typedef struct jem__bf16_block {
    int m, n, add, runs, pairs, o, y, x, step, done;
    ptrdiff_t a2;
    const uint16_t *a[JEM__BF16_RUNS], *b[JEM__BF16_RUNS][4];
    float *c;
    const struct jem__bf16 *k;
    const jem__conv *q;
    const jem__finish *f;
} jem__bf16_block;

typedef struct jem__bf16 {
    jem_isa isa;
    int tiled;                                     /* A is [16 pairs][16 rows]; 1: its transpose */
    int twice;                                     /* only twice as fast as fp32: where Winograd
                                                      serves, or tiles would be half empty, fp32 */
    /* Multiplies; meanwhile it may finish tiles of the last one (or NULL). */
    void (*block)(const jem__bf16_block *, jem__bf16_block *last);
    /* Finishes n channels from o on of one pixel; at: of channel 0, in floats; f->y16 too */
    void (*finish)(const jem__finish *f, const float *c, int o, int n, ptrdiff_t at,
                   ptrdiff_t at16);
    /* One pixel's channels as pairs, x[c][16] -> out[(c + 1)/2][16][2] */
    void (*pairs)(const float *x, int c, uint16_t *out);
    /* Pairs of images: c <= 16 channels of one pixel, x[8][16][2] -> out[8][16][2] or, rows:
       out[16][32]. Adds them to sums[c][16], if there are any. */
    void (*turn)(const uint16_t *x, int c, int rows, uint16_t *out, float *sums);
    void (*begin)(void);                           /* around blocks; may be NULL */
    void (*end)(void);
} jem__bf16;

/* To nearest, ties to even. */
static uint16_t jem__to_bf16(float f) {
    const uint32_t u = jem__float_bits(f);
    if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(u >> 16 | 0x40);      /* NaN */
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}
static float jem__from_bf16(uint16_t h) { return jem__bits_float((uint32_t)h << 16); }

static int jem__bf16_pairs_of(int channels) { return (channels + 1) / 2; }
/* bf16 from a pixel to the next, and from a row to the next */
static ptrdiff_t jem__bf16_pixel(int c) {
    return (ptrdiff_t)jem__bf16_pairs_of(c) * JEM__BF16_PAIR;
}
static ptrdiff_t jem__bf16_row(int c, int w) {
    return (w + 2 * JEM__BF16_EDGE) * jem__bf16_pixel(c);
}
static void jem__bf16_finish_tile(jem__bf16_block *d) {
    const int t = d->done++, o = (d->o + t % d->m) * 16, left = d->q->co - o;
    const int co = d->q->co, w = d->q->wo, x = d->x + t / d->m * d->step;
    d->k->finish(d->f, d->c + t * JEM__BF16_TILE, o, left < 16 ? left : 16,
                 ((ptrdiff_t)d->y * w + x) * co * JEM_LANES,
                 d->y * jem__bf16_row(co, w) + (x + JEM__BF16_EDGE) * jem__bf16_pixel(co));
}
static void jem__bf16_finish_all(jem__bf16_block *d) {
    while (d->done < d->m * d->n) jem__bf16_finish_tile(d);
}

/* ---- in plain C: what the others are tested against ---- */

static void jem__bf16_block_scalar(const jem__bf16_block *s, jem__bf16_block *last) {
    (void)last;
    for (int t = 0; t < s->m * s->n; t++) {
        float *c = s->c + t * JEM__BF16_TILE;
        if (!s->add) memset(c, 0, JEM__BF16_TILE * sizeof *c);
        for (int r = 0; r < s->runs; r++) {
            const uint16_t *w = s->a[r] + t % s->m * s->a2, *x = s->b[r][t / s->m];
            for (int k = 0; k < s->pairs; k++, w += JEM__BF16_PAIR, x += JEM__BF16_PAIR)
                for (int i = 0; i < JEM__BF16_TILE; i++)
                    for (int odd = 1; odd >= 0; odd--)
                        c[i] = jem__fmaf(jem__from_bf16(w[i / 16 * 2 + odd]),
                                         jem__from_bf16(x[i % 16 * 2 + odd]), c[i]);
        }
    }
}
static void jem__bf16_pairs_scalar(const float *x, int c, uint16_t *out) {
    for (int i = 0; i < c + c % 2; i++)
        for (int l = 0; l < JEM_LANES; l++)
            out[i / 2 * JEM__BF16_PAIR + 2 * l + i % 2] =
                i < c ? jem__to_bf16(x[i * JEM_LANES + l]) : (uint16_t)0;
}
static void jem__bf16_finish_scalar(const jem__finish *f, const float *c, int o, int n,
                                    ptrdiff_t at, ptrdiff_t at16) {
    float v[JEM__BF16_TILE];
    at += (ptrdiff_t)o * JEM_LANES;
    for (int i = 0; i < n * JEM_LANES; i++)
        v[i] = jem__finish_one_scalar(f, c[i], o + i / 16, at + i, i % 16);
    if (f->y16) jem__bf16_pairs_scalar(v, n, f->y16 + at16 + o / 2 * JEM__BF16_PAIR);
}
static void jem__bf16_turn_scalar(const uint16_t *x, int c, int rows, uint16_t *out, float *sums) {
    for (int i = 0; i < 16; i++)
        for (int l = 0; l < JEM_LANES; l++) {
            const uint16_t v = i < c ? x[i / 2 * JEM__BF16_PAIR + 2 * l + i % 2] : (uint16_t)0;
            out[rows ? i * 32 + l : l / 2 * JEM__BF16_PAIR + 2 * i + l % 2] = v;
            if (sums && i < c) sums[i * JEM_LANES + l] += jem__from_bf16(v);
        }
}
static const jem__bf16 jem__bf16_scalar = { JEM_ISA_SCALAR, 0, 1, jem__bf16_block_scalar,
    jem__bf16_finish_scalar, jem__bf16_pairs_scalar, jem__bf16_turn_scalar, NULL, NULL };

#ifdef JEM__X86_BF16
#define JEM__TARGET                                                                                \
    __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma")))

/* b of the even, a of the odd elements: out = a0 b0 a1 b1 ... as bf16 */
JEM__TARGET JEM__INLINE __m512i jem__bf16_zip(__m512 a, __m512 b) {
    const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9,
        24, 8, 23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    return _mm512_permutexvar_epi16(order, (__m512i)_mm512_cvtne2ps_pbh(b, a));
}
JEM__TARGET static void jem__bf16_block_avx512(const jem__bf16_block *s, jem__bf16_block *last) {
    (void)last;                                    /* there is nothing to wait for */
    for (int t = 0; t < s->m * s->n; t++) {
        float *c = s->c + t * JEM__BF16_TILE;
        __m512 acc[16];
        JEM__UNROLL for (int i = 0; i < 16; i++)
            acc[i] = s->add ? _mm512_loadu_ps(c + i * 16) : _mm512_setzero_ps();
        for (int r = 0; r < s->runs; r++) {
            const uint16_t *w = s->a[r] + t % s->m * s->a2, *x = s->b[r][t / s->m];
            for (int k = 0; k < s->pairs; k++, w += JEM__BF16_PAIR, x += JEM__BF16_PAIR) {
                const __m512i v = _mm512_loadu_si512(x);
                JEM__UNROLL for (int i = 0; i < 16; i++) {
                    int32_t pair;
                    memcpy(&pair, w + 2 * i, 4);
                    acc[i] = _mm512_dpbf16_ps(acc[i], (__m512bh)_mm512_set1_epi32(pair),
                                              (__m512bh)v);
                }
            }
        }
        JEM__UNROLL for (int i = 0; i < 16; i++) _mm512_storeu_ps(c + i * 16, acc[i]);
    }
}
/* Epilogues of a bf16 convolution that networks with a leaky ReLU or SiLU need. The compiler
   specialises jem__bf16_finish_as for each, so that no condition is tested per sum. _ADD: an
   addition whose sum is stored follows. */
typedef enum jem__epilogue {
    JEM__EPILOGUE_ANY = 0,                         /* every case: all conditions are tested */
    JEM__EPILOGUE_LEAKY,
    JEM__EPILOGUE_LEAKY_ADD,
    JEM__EPILOGUE_LEAKY_BACK,
    JEM__EPILOGUE_LEAKY_BACK_ADD,
    JEM__EPILOGUE_SILU,
    JEM__EPILOGUE_SILU_BACK
} jem__epilogue;

/* Stores n channels of sums c as `f` describes, given which fields of f the epilogue uses. */
JEM__TARGET JEM__INLINE void jem__bf16_finish_as(const jem__epilogue epilogue, const jem__finish *f,
                                                 const float *c, int o, int n, ptrdiff_t at,
                                                 ptrdiff_t at16) {
    const int silu = epilogue == JEM__EPILOGUE_SILU || epilogue == JEM__EPILOGUE_SILU_BACK;
    const int adds = epilogue == JEM__EPILOGUE_LEAKY_ADD ||
                     epilogue == JEM__EPILOGUE_LEAKY_BACK_ADD;
    const int back = epilogue == JEM__EPILOGUE_LEAKY_BACK ||
                     epilogue == JEM__EPILOGUE_LEAKY_BACK_ADD ||
                     epilogue == JEM__EPILOGUE_SILU_BACK;
    jem__finish own = *f;              /* a copy in registers, which stores cannot alias */
    if (epilogue != JEM__EPILOGUE_ANY) {
        n = 16;
        own.act = NULL;
        if (silu || !back) own.bits = NULL;
        if (!silu || !back) own.slopes = NULL;
        if (silu) own.keep_bits = NULL;
        else own.keep_slopes = NULL;
        own.kind = silu ? JEM__MAP_SILU : JEM__MAP_LEAKY;
        if (back) {
            own.kind = 0;
            own.bias = NULL;
        }
        if (!adds) {
            own.add = NULL;
            own.y = NULL;
        }
    }
    at += (ptrdiff_t)o * JEM_LANES;
    at16 += (ptrdiff_t)o / 2 * JEM__BF16_PAIR;
    for (int i = 0; i < n; i += 2, at += 2 * JEM_LANES, at16 += JEM__BF16_PAIR) {
        const __m512 p = jem__finish_one_avx512(&own, _mm512_loadu_ps(c + i * 16), o + i, at, 0);
        jem__floats_avx512 q = { 0 };
        if (i + 1 < n)
            q = jem__finish_one_avx512(&own, _mm512_loadu_ps(c + i * 16 + 16), o + i + 1,
                                       at + JEM_LANES, 0);
        if (own.y16) _mm512_storeu_si512(own.y16 + at16, jem__bf16_zip(p, q));
    }
}
/* Returns the epilogue for `f` and n channels. */
static jem__epilogue jem__bf16_epilogue(const jem__finish *f, int n) {
    const int forward = f->bias && !f->bits && !f->slopes;
    const int back = !f->kind && !f->bias;
    if (n != 16 || !f->y16 || f->act || !f->add != !f->y) return JEM__EPILOGUE_ANY;
    if (forward && f->kind == JEM__MAP_LEAKY && f->keep_bits)
        return f->add ? JEM__EPILOGUE_LEAKY_ADD : JEM__EPILOGUE_LEAKY;
    if (forward && f->kind == JEM__MAP_SILU && !f->add) return JEM__EPILOGUE_SILU;
    if (back && f->bits && !f->slopes)
        return f->add ? JEM__EPILOGUE_LEAKY_BACK_ADD : JEM__EPILOGUE_LEAKY_BACK;
    if (back && f->slopes && !f->add) return JEM__EPILOGUE_SILU_BACK;
    return JEM__EPILOGUE_ANY;
}
JEM__TARGET static void jem__bf16_finish_avx512(const jem__finish *f, const float *c, int o, int n,
                                                ptrdiff_t at, ptrdiff_t at16) {
#define JEM__CASE(epilogue)                                                                        \
    case epilogue: jem__bf16_finish_as(epilogue, f, c, o, n, at, at16); break;
    switch (jem__bf16_epilogue(f, n)) {
    JEM__CASE(JEM__EPILOGUE_LEAKY)
    JEM__CASE(JEM__EPILOGUE_LEAKY_ADD)
    JEM__CASE(JEM__EPILOGUE_LEAKY_BACK)
    JEM__CASE(JEM__EPILOGUE_LEAKY_BACK_ADD)
    JEM__CASE(JEM__EPILOGUE_SILU)
    JEM__CASE(JEM__EPILOGUE_SILU_BACK)
    JEM__CASE(JEM__EPILOGUE_ANY)
    }
#undef JEM__CASE
}
JEM__TARGET static void jem__bf16_pairs_avx512(const float *x, int c, uint16_t *out) {
    for (int i = 0; i < c; i += 2, x += 2 * JEM_LANES, out += JEM__BF16_PAIR)
        _mm512_storeu_si512(out, jem__bf16_zip(_mm512_loadu_ps(x), i + 1 < c
                            ? _mm512_loadu_ps(x + JEM_LANES) : _mm512_setzero_ps()));
}
JEM__TARGET static void jem__bf16_turn_avx512(const uint16_t *x, int c, int rows, uint16_t *out,
                                              float *sums) {
    __m512i r[8], t[8];                            /* r[i]: channels 2i and 2i+1 */
    JEM__UNROLL for (int i = 0; i < 8; i++)
        r[i] = 2 * i < c ? _mm512_loadu_si512(x + i * JEM__BF16_PAIR) : _mm512_setzero_si512();
    for (int i = 0; sums && i < c; i++) {
        const __m512i v = _mm512_loadu_si512(x + i / 2 * JEM__BF16_PAIR);
        const __m512i f = i % 2 ? _mm512_and_si512(v, _mm512_set1_epi32((int)0xffff0000u))
                                : _mm512_slli_epi32(v, 16);
        float *sum = sums + i * JEM_LANES;
        _mm512_storeu_ps(sum, _mm512_add_ps(_mm512_loadu_ps(sum), _mm512_castsi512_ps(f)));
    }
    if (rows) {
        JEM__UNROLL for (int i = 0; i < 8; i++) {
            __m256i *to = (__m256i *)(void *)(out + i * 64);
            _mm256_storeu_si256(to, _mm512_cvtepi32_epi16(r[i]));
            _mm256_storeu_si256(to + 2, _mm512_cvtepi32_epi16(_mm512_srli_epi32(r[i], 16)));
        }
        return;
    }
    /* Of 4 numbers (2 images of 2 channels) the middle ones change places; then 8 x 8 of these. */
    JEM__UNROLL for (int i = 0; i < 8; i++)
        r[i] = _mm512_shufflehi_epi16(_mm512_shufflelo_epi16(r[i], 0xd8), 0xd8);
    JEM__UNROLL for (int i = 0; i < 8; i += 2) {
        t[i] = _mm512_unpacklo_epi64(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi64(r[i], r[i + 1]);
    }
    JEM__UNROLL for (int i = 0; i < 8; i++) {      /* 2 x 2 blocks, then 4 x 4 */
        const int a = i / 4 * 4 + i % 2;
        r[i] = i & 2 ? _mm512_shuffle_i64x2(t[a], t[a + 2], 0xdd)
                     : _mm512_shuffle_i64x2(t[a], t[a + 2], 0x88);
    }
    JEM__UNROLL for (int i = 0; i < 4; i++) {
        _mm512_storeu_si512(out + i * 32, _mm512_shuffle_i64x2(r[i], r[i + 4], 0x88));
        _mm512_storeu_si512(out + (i + 4) * 32, _mm512_shuffle_i64x2(r[i], r[i + 4], 0xdd));
    }
}
static const jem__bf16 jem__bf16_avx512 = { JEM_ISA_AVX512_BF16, 0, 1, jem__bf16_block_avx512,
    jem__bf16_finish_avx512, jem__bf16_pairs_avx512, jem__bf16_turn_avx512, NULL, NULL };
#undef JEM__TARGET

/* Linux alone gives tiles to those who ask; gcc's intrinsics want a long of 64 bits. */
#if (defined(__linux__) && defined(__LP64__)) || defined(JEM__TILE_LOAD)
#define JEM__AMX 1

/* AMX: 8 tiles of 16 rows of 64 bytes. 0..3 hold C, 4 A, 5 B. Two are left empty, for it seems that
   a core which is shared renames tiles with what is free: a loop of these products then makes 550
   GFLOP/s with 8 in use and 820 with 6 (2,200 either way on a core of its own).
   Tests define these three for processors that have no tiles. */
#ifndef JEM__TILE_LOAD
#define JEM__TILE_TARGET __attribute__((target("amx-tile,amx-bf16")))
#define JEM__TILE_LOAD(t, p) _tile_loadd(t, p, 64)
#define JEM__TILE_STORE(t, p) _tile_stored(t, p, 64)
#define JEM__TILE_ZERO(t) _tile_zero(t)
#define JEM__TILE_DOT(c, a, b) _tile_dpbf16ps(c, a, b)
JEM__TILE_TARGET static void jem__tile_begin(void) {
    struct { uint8_t palette, start, none[14]; uint16_t bytes[16]; uint8_t rows[16]; } c;
    memset(&c, 0, sizeof c);
    c.palette = 1;
    for (int i = 0; i < 8; i++) {
        c.bytes[i] = 64;
        c.rows[i] = 16;
    }
    __asm__ volatile("" : : "r"(&c) : "memory");   /* gcc 12 would leave the stores out */
    _tile_loadconfig(&c);
}
JEM__TILE_TARGET static void jem__tile_end(void) { _tile_release(); }
#else
#define JEM__TILE_TARGET
static void jem__tile_begin(void) {}
static void jem__tile_end(void) {}
#endif

/* For each of its sizes, so that nothing is asked between two tile instructions. */
#define JEM__TILE_SUMS(DO)                                                                         \
    DO(0);                                                                                         \
    if (m * n > 1) DO(1);                                                                          \
    if (m * n > 2) DO(2);                                                                          \
    if (m * n > 3) DO(3)
#define JEM__TILE_LOAD_SUM(t) JEM__TILE_LOAD(t, c + (t) * JEM__BF16_TILE)
#define JEM__TILE_STORE_SUM(t) JEM__TILE_STORE(t, c + (t) * JEM__BF16_TILE)
JEM__TILE_TARGET JEM__INLINE void jem__bf16_tiles(const int m, const int n,
                                                  const jem__bf16_block *s,
                                                  jem__bf16_block *last) {
    float *c = s->c;
    __asm__ volatile("" : : "r"(s), "r"(c) : "memory");                /* see jem__tile_begin */
    if (s->add) { JEM__TILE_SUMS(JEM__TILE_LOAD_SUM); }
    else { JEM__TILE_SUMS(JEM__TILE_ZERO); }
    for (int r = 0; r < s->runs; r++) {
        const uint16_t *a = s->a[r], *const *b = s->b[r];
        const ptrdiff_t a2 = s->a2, end = (ptrdiff_t)s->pairs * JEM__BF16_PAIR;
        for (ptrdiff_t k = 0; k < end; k += 16 * JEM__BF16_PAIR) {
            JEM__TILE_LOAD(4, a + k);
            JEM__TILE_LOAD(5, b[0] + k);
            JEM__TILE_DOT(0, 4, 5);
            if (m == 2) {
                JEM__TILE_LOAD(4, a + a2 + k);
                JEM__TILE_DOT(1, 4, 5);
            }
            if (n > 1) JEM__TILE_LOAD(5, b[1] + k);
            if (m == 2 && n > 1) {
                JEM__TILE_DOT(3, 4, 5);
                JEM__TILE_LOAD(4, a + k);
                JEM__TILE_DOT(2, 4, 5);
            } else if (n > 1) JEM__TILE_DOT(1, 4, 5);
            if (m == 1 && n > 2) {
                JEM__TILE_LOAD(5, b[2] + k);
                JEM__TILE_DOT(2, 4, 5);
            }
            if (m == 1 && n > 3) {
                JEM__TILE_LOAD(5, b[3] + k);
                JEM__TILE_DOT(3, 4, 5);
            }
            if (last && last->done < last->m * last->n) jem__bf16_finish_tile(last);
        }
    }
    JEM__TILE_SUMS(JEM__TILE_STORE_SUM);
}
JEM__TILE_TARGET static void jem__bf16_block_amx(const jem__bf16_block *s, jem__bf16_block *last) {
    switch (s->m == 2 ? s->n + 4 : s->n) {
    case 1: jem__bf16_tiles(1, 1, s, last); return;
    case 2: jem__bf16_tiles(1, 2, s, last); return;
    case 3: jem__bf16_tiles(1, 3, s, last); return;
    case 4: jem__bf16_tiles(1, 4, s, last); return;
    case 5: jem__bf16_tiles(2, 1, s, last); return;
    default: jem__bf16_tiles(2, 2, s, last);
    }
}
static const jem__bf16 jem__bf16_amx = { JEM_ISA_AMX, 1, 0, jem__bf16_block_amx,
    jem__bf16_finish_avx512, jem__bf16_pairs_avx512, jem__bf16_turn_avx512, jem__tile_begin,
    jem__tile_end };
#endif /* tiles */
#endif

/* The one for this processor; NULL: none. Whether tiles do what we think they do is tried. */
static const jem__bf16 *jem__bf16_for(jem_isa isa) {
#ifdef JEM__X86_BF16
    const int best = isa == JEM_ISA_BEST;
#ifdef JEM__AMX
    if ((best || isa == JEM_ISA_AMX) && jem_isa_available(JEM_ISA_AMX)) {
        uint16_t a[512], b[512];
        float c[2][JEM__BF16_TILE];
        JEM__ZEROED(jem__bf16_block, one);
        one.m = one.n = one.runs = 1;
        one.pairs = 16;
        one.a[0] = a;
        one.b[0][0] = b;
        one.c = c[0];
        for (int i = 0; i < 512; i++) {            /* whole numbers; a is its own transpose */
            a[i] = jem__to_bf16((float)((i / 32 + i / 2 % 16 + i % 2) % 7));
            b[i] = jem__to_bf16((float)(i % 5));
        }
        jem__tile_begin();
        jem__bf16_block_amx(&one, NULL);
        jem__tile_end();
        one.c = c[1];
        jem__bf16_block_scalar(&one, NULL);
        if (!memcmp(c[0], c[1], sizeof c[0])) return &jem__bf16_amx;
    }
#endif
    if ((best || isa == JEM_ISA_AVX512_BF16) && jem_isa_available(JEM_ISA_AVX512_BF16))
        return &jem__bf16_avx512;
#endif
    return isa == JEM_ISA_SCALAR ? &jem__bf16_scalar : NULL;
}

JEM__COMPILE_END
JEM__COMPILE("O1")
/* ---- the three passes, in plain C over those four ---- */

/* floats of an image of (c,h,w), and what AMX may read behind it */
static ptrdiff_t jem__bf16_floats(int c, int h, int w) {
    return (h * jem__bf16_row(c, w) + 16 * JEM__BF16_PAIR) / 2;
}
/* Row y of a group, with the zeros around it; rows come in ascending order. */
static void jem__bf16_convert(const jem__bf16 *k, const float *x, int c, int w, int y,
                              uint16_t *out) {
    const ptrdiff_t pixel = jem__bf16_pixel(c), edge = JEM__BF16_EDGE * pixel;
    out += y * jem__bf16_row(c, w);
    memset(out, 0, (size_t)edge * sizeof *out);
    for (int i = 0; i < w; i++)
        k->pairs(x + ((ptrdiff_t)y * w + i) * c * JEM_LANES, c, out + edge + i * pixel);
    memset(out + edge + w * pixel, 0, (size_t)(edge + 16 * JEM__BF16_PAIR) * sizeof *out);
}

/* A row of taps reads neighbours, a gradient's from its last tap on: where the first of them is. */
static int jem__bf16_first(const jem__conv *q, const jem__phase *s) {
    return s->nx == 0 ? 0 : s->right[q->gradient ? s->nx - 1 : 0];
}
/* Can it be done so? No tap may look further than those zeros beside the image. */
static int jem__bf16_fits(const jem__conv *q) {
    jem__phase s;
    for (int phase = 0; q->k <= 8 && jem__conv_phase(q, phase, &s); phase++) {
        const int first = jem__bf16_first(q, &s), last = (s.cols - 1) * s.step_in + first + s.nx;
        if (first < -JEM__BF16_EDGE || last > q->wi + JEM__BF16_EDGE) return 0;
    }
    return q->k <= 8;
}
static ptrdiff_t jem__bf16_span(const jem__conv *q, const jem__phase *s) {     /* of A, in bf16 */
    return (s->nx * jem__bf16_pairs_of(q->ci) + 15) / 16 * 16 * JEM__BF16_PAIR;
}
/* floats of all packed weights */
static ptrdiff_t jem__bf16_pack_size(const jem__conv *q) {
    ptrdiff_t size = 0;
    jem__phase s;
    for (int phase = 0; jem__conv_phase(q, phase, &s); phase++)
        size += (q->co + 15) / 16 * s.ny * jem__bf16_span(q, &s);
    return size / 2;
}
/* The weights w of one tap, of 16 outputs from o on and 16 inputs from c on, as A's pairs k and
   on. */
static void jem__bf16_pack_tap(const jem__packing *p, const float *w, int o, int c, int k,
                               uint16_t *out) {
    const jem__conv *q = p->q;
    const int ni = q->ci - c < 16 ? q->ci - c : 16, no = q->co - o < 16 ? q->co - o : 16;
    float v[16][16] = { { 0 } };
    uint16_t pairs[8 * JEM__BF16_PAIR];
    for (int j = 0; j < no; j++)
        for (int i = 0; i < ni; i++) v[i][j] = w[jem__kernel_at(q, o + j, c + i)];
    p->ctx->bf16->pairs(v[0], ni, pairs);
    for (int i = 0; 2 * i < ni; i++, k++)
        for (int j = 0; j < no; j++)               /* row j of pair k */
            memcpy(out + k / 16 * 512 + (p->ctx->bf16->tiled ? j * 32 + k % 16 * 2
                                                             : k % 16 * 32 + j * 2),
                   pairs + i * JEM__BF16_PAIR + 2 * j, 2 * sizeof *pairs);
}
/* Weights to [phase][tile of 16 outputs][row of taps][pairs: column, channels]: a tile. A channel's
   taps lie together in w, so 16 channels of 16 outputs stay in the cache. */
static void jem__bf16_pack(void *packing, int tile) {
    const jem__packing *p = (const jem__packing *)packing;
    const jem__conv *q = p->q;
    uint16_t *out = (uint16_t *)(void *)p->out;
    jem__phase s;
    for (int phase = 0; jem__conv_phase(q, phase, &s); phase++) {
        const ptrdiff_t run = jem__bf16_span(q, &s), size = s.ny * run;
        uint16_t *to = out + tile * size;
        memset(to, 0, (size_t)size * sizeof *to);
        for (int c = 0; c < q->ci; c += 16)
            for (int j = 0; j < s.ny; j++)
                for (int x = 0; x < s.nx; x++) {
                    const float *w = p->w + s.ky[j] * q->k + s.kx[q->gradient ? s.nx - 1 - x : x];
                    jem__bf16_pack_tap(p, w, tile * 16, c, x * jem__bf16_pairs_of(q->ci) + c / 2,
                                       to + j * run);
                }
        out += p->parts * size;
    }
}

/* Zeros before and behind some rows of what is written in bf16. */
static void jem__bf16_edges(const jem__conv *q, uint16_t *y16, int y, int rows) {
    const ptrdiff_t edge = JEM__BF16_EDGE * jem__bf16_pixel(q->co);
    const ptrdiff_t row = jem__bf16_row(q->co, q->wo);
    for (; rows > 0 && y < q->ho; rows--, y++) {
        memset(y16 + y * row, 0, (size_t)edge * sizeof *y16);
        memset(y16 + (y + 1) * row - edge, 0, (size_t)edge * sizeof *y16);
    }
}

static ptrdiff_t jem__bf16_work(const jem__conv *q) {        /* x, where it is not yet in bf16 */
    return jem__bf16_floats(q->ci, q->hi, q->wi);
}
/* A part's channels of row r of a phase; b[0] is the next block, b[1] the last. */
static void jem__bf16_conv_row(const jem__phase *s, int r, const jem__piece *part,
                               const uint16_t *pack, const uint16_t *from, jem__bf16_block **b) {
    const jem__conv *q = b[0]->q;
    const int tiles = (part->o1 + 15) / 16, most = q->co > 16 ? 2 : 4;
    const ptrdiff_t pixel = jem__bf16_pixel(q->ci), row = jem__bf16_row(q->ci, q->wi);
    const ptrdiff_t run = jem__bf16_span(q, s);
    int row_of[JEM__BF16_RUNS], tap_row[JEM__BF16_RUNS], runs = 0;
    for (int j = 0; j < s->ny; j++) {              /* the rows of taps that lie inside */
        const int iy = r * s->step_in + s->down[j];
        if ((unsigned)iy < (unsigned)q->hi) {
            tap_row[runs] = j;
            row_of[runs++] = iy;
        }
    }
    from += (JEM__BF16_EDGE + jem__bf16_first(q, s)) * pixel;
    for (int o = part->o0 / 16, m; o < tiles; o += m) {
        m = o + 2 <= tiles ? 2 : 1;
        for (int x = 0, n; x < s->cols; x += n) {
            jem__bf16_block *now = b[0], *last = b[1];
            n = s->cols - x < most ? s->cols - x : most;
            for (int i = 0; i < runs; i++) {
                now->a[i] = pack + (o * s->ny + tap_row[i]) * run;
                for (int p = 0; p < n; p++)
                    now->b[i][p] = from + row_of[i] * row + (x + p) * s->step_in * pixel;
            }
            now->m = m;
            now->n = n;
            now->runs = runs;
            now->a2 = s->ny * run;
            now->pairs = s->nx * jem__bf16_pairs_of(q->ci);
            now->k->block(now, last);
            jem__bf16_finish_all(last);
            now->o = o;
            now->y = s->y0 + r * s->step_out;
            now->x = s->x0 + x * s->step_out;
            now->step = s->step_out;
            now->done = 0;
            b[0] = last;
            b[1] = now;
        }
    }
}
/* Output or input gradient, as conv. */
static void jem__bf16_conv(const jem__conv *q, const jem__operands *in, const jem__finish *f) {
    const jem__bf16 *k = in->ctx->bf16;
    const uint16_t *pack = (const uint16_t *)(const void *)in->packed;
    uint16_t *work = (uint16_t *)(void *)in->work;
    float c[2][4 * JEM__BF16_TILE];
    jem__bf16_block two[2], *blocks[2] = { two, two + 1 };
    jem__phase s;
    memset(two, 0, sizeof two);
    for (int i = 0; i < 2; i++) {
        two[i].k = k;
        two[i].q = q;
        two[i].f = f;
        two[i].c = c[i];
    }
    if (k->begin) k->begin();
    for (int phase = 0, have = -1, from = 0; jem__conv_phase(q, phase, &s); phase++) {
        const jem__piece to = jem__conv_share(q, in->part, s.rows, 1);         /* or of channels */
        const int first = to.first * s.step_in - q->k - q->pad, top = first < 0 ? 0 : first;
        if (have < 0 || top < from) have = from = top;                 /* no tap reads higher */
        for (int r = to.first; r < to.last; r++) {
            const int until = in->x16 || s.ny == 0 ? 0     /* the lowest row that it reads */
                            : r * s.step_in + s.down[q->gradient ? 0 : s.ny - 1] + 1;
            for (; have < until && have < q->hi; have++)
                jem__bf16_convert(k, in->x, q->ci, q->wi, have, work);
            jem__bf16_conv_row(&s, r, &to, pack, in->x16 ? in->x16 : work, blocks);
            if (f->y16 && phase == 0 && to.o1 == q->co)      /* of a row, one part does */
                jem__bf16_edges(q, f->y16, s.y0 + r * s.step_out, s.step_out);
        }
        pack += (q->co + 15) / 16 * s.ny * jem__bf16_span(q, &s);
    }
    jem__bf16_finish_all(blocks[1]);
    if (f->y16 && in->part.i == 0)
        memset(f->y16 + q->ho * jem__bf16_row(q->co, q->wo), 0,
               16 * JEM__BF16_PAIR * sizeof *f->y16);
    if (k->end) k->end();
}

/* Weight gradient. Operands are first turned, group by group, so that pairs are of images:
   x to [row][16 channels][column mod stride][column][8 pairs][16][2], with the padding, dy to
   A's order [row][16 channels][column][..]. */
static int jem__bf16_columns(const jem__conv *q) { return q->wo + 1 + (q->k - 1) / q->stride; }
static ptrdiff_t jem__bf16_x_tile(const jem__conv *q) {      /* one row of 16 channels, in bf16 */
    return (ptrdiff_t)q->stride * jem__bf16_columns(q) * 256;
}
static ptrdiff_t jem__bf16_y_tile(const jem__conv *q) { return (ptrdiff_t)(q->wo + 1) / 2 * 512; }

static void jem__bf16_deal(const jem__weights *w, int g, int side, const jem__operands *in) {
    const jem__bf16 *k = w->ctx->bf16;
    const jem__conv *q = w->q;
    const int channels = side ? q->co : q->ci, rows = side ? q->ho : q->hi;
    const int width = side ? q->wo : q->wi, pad = side ? 0 : q->pad, s = side ? 1 : q->stride;
    const int tiled = side && k->tiled, columns = side ? (q->wo + 1) / 2 * 2 : jem__bf16_columns(q);
    const ptrdiff_t pixel = jem__bf16_pixel(channels), row = jem__bf16_row(channels, width);
    uint16_t own[8 * JEM__BF16_PAIR], *out = (uint16_t *)(void *)(side ? w->y : w->x);
    out += 2 * g * (side ? w->y_plane : w->x_plane);
    for (int y = 0; y < rows; y++)
        for (int c = 0; c < channels; c += 16, out += s * columns * 256)
            for (int i = 0; i < columns * s; i++) {
                const int px = i - pad, left = channels - c < 16 ? channels - c : 16;
                const int n = (unsigned)px < (unsigned)width ? left : 0;       /* 0: makes zeros */
                const uint16_t *from = own;
                if (n && in->x16)
                    from = in->x16 + y * row + (px + JEM__BF16_EDGE) * pixel +
                           c / 2 * JEM__BF16_PAIR;
                else if (n)
                    k->pairs(in->x + (((ptrdiff_t)y * width + px) * channels + c) * JEM_LANES, n,
                             own);
                k->turn(from, n, tiled, out + (tiled ? i / 2 * 512 + i % 2 * 16
                                                     : (i % s * columns + i / s) * 256),
                        side ? w->sums + ((ptrdiff_t)g * q->co + c) * JEM_LANES : NULL);
            }
}

/* A product is a pair of tiles of output channels with a tile of input channels, and one of the
   kernel's rows where that is too few for all threads. */
static int jem__bf16_pairs_of_tiles(const jem__conv *q) {
    return ((q->co + 15) / 16 + 1) / 2 * ((q->ci + 15) / 16);
}
static void jem__bf16_plan(jem__weights *w) {
    const jem__conv *q = w->q;
    const int pairs = jem__bf16_pairs_of_tiles(q);
    w->products = pairs * (pairs < w->ctx->threads ? q->k : 1);
    w->finishes = q->co;
    w->product_step = (ptrdiff_t)2 * q->k * q->k * JEM__BF16_TILE;
    w->planes = w->groups;
    w->x_plane = (ptrdiff_t)q->hi * ((q->ci + 15) / 16) * jem__bf16_x_tile(q) / 2;
    w->y_plane = (ptrdiff_t)q->ho * ((q->co + 15) / 16) * jem__bf16_y_tile(q) / 2;
    w->product_size = w->products * w->product_step;
    w->sums_size = (ptrdiff_t)w->groups * q->co * JEM_LANES;
}
/* Adds the products of up to two tiles of outputs, from tile o on, with input tile i to w->dw, for
   the rows ky0 .. ky1 - 1 of the kernel. */
static void jem__bf16_add_tiles(const jem__weights *w, const float *acc, int o, int i, int ky0,
                                int ky1) {
    const jem__conv *q = w->q;
    const int kk = q->k * q->k, rest = q->ci - i * 16, n_in = rest < 16 ? rest : 16;
    for (int r = 0; r < 32 && o * 16 + r < q->co; r++) {
        const float *sum = acc + r / 16 * kk * JEM__BF16_TILE + r % 16 * 16;
        float *dw = w->dw + ((ptrdiff_t)(o * 16 + r) * q->ci + i * 16) * kk;
        for (int c = 0; c < n_in; c++, dw += kk)
            for (int t = ky0 * q->k; t < ky1 * q->k; t++) dw[t] += sum[t * JEM__BF16_TILE + c];
    }
}

/* Adds to dw (O,I,k,k); scratch is m*k*k tiles. */
static void jem__bf16_product(const jem__weights *w, int task) {
    const jem__bf16 *k = w->ctx->bf16;
    const jem__conv *q = w->q;
    const uint16_t *xs = (const uint16_t *)(const void *)w->x,
                   *dys = (const uint16_t *)(const void *)w->y;
    const int split = w->products / jem__bf16_pairs_of_tiles(q), in = (q->ci + 15) / 16;
    const int o = task / split / in * 2, i = task / split % in;        /* tiles */
    const int m = o + 2 <= (q->co + 15) / 16 ? 2 : 1;
    const int ky0 = q->k * (task % split) / split, ky1 = q->k * (task % split + 1) / split;
    float *acc = w->product + task * w->product_step;
    JEM__ZEROED(jem__bf16_block, s);
    const ptrdiff_t xt = jem__bf16_x_tile(q), yt = jem__bf16_y_tile(q);
    const ptrdiff_t xrow = (q->ci + 15) / 16 * xt, yrow = (q->co + 15) / 16 * yt;
    const int columns = jem__bf16_columns(q), kk = q->k * q->k;
    int rows = 128 / q->wo;                        /* stay in the cache while the taps go by */
    rows = rows < 1 ? 1 : rows > JEM__BF16_RUNS ? JEM__BF16_RUNS : rows;
    memset(acc, 0, (size_t)(m * kk * JEM__BF16_TILE) * sizeof *acc);
    s.add = 1;
    s.m = 1;
    s.pairs = q->wo * 8;
    if (k->begin) k->begin();
    for (int g = 0; g < w->groups; g++)
        for (int y0 = 0; y0 < q->ho; y0 += rows)
            for (int ky = ky0; ky < ky1; ky++)
                for (int t = 0, n; t < m * q->k; t += n) {     /* taps, for each tile of o */
                    const int kx = t % q->k, tile = t / q->k;
                    s.runs = 0;
                    n = q->k - kx < 4 ? q->k - kx : 4;
                    for (int y = y0; y < q->ho && y < y0 + rows; y++) {
                        const int iy = y * q->stride + ky - q->pad;
                        if ((unsigned)iy >= (unsigned)q->hi) continue;
                        s.a[s.runs] = dys + 2 * g * w->y_plane + y * yrow + (o + tile) * yt;
                        for (int p = 0; p < n; p++) {
                            const int at = kx + p;
                            s.b[s.runs][p] = xs + 2 * g * w->x_plane + iy * xrow + i * xt +
                                ((ptrdiff_t)(at % q->stride) * columns + at / q->stride) * 256;
                        }
                        s.runs++;
                    }
                    s.n = n;
                    s.c = acc + (tile * kk + ky * q->k + kx) * JEM__BF16_TILE;
                    k->block(&s, NULL);
                }
    if (k->end) k->end();
    jem__bf16_add_tiles(w, acc, o, i, ky0, ky1);
}
static const jem__method jem__bf16_method = { 1, jem__bf16_pack_size, jem__bf16_pack,
    jem__bf16_work, jem__bf16_conv, jem__bf16_plan, jem__bf16_deal, jem__bf16_product,
    jem__bias_finish };

/* ---- what is chosen -------------------------------------------------------------------------- */

/* Winograd's M, or 0 for the direct sum: what has fewest multiplications if tiles and pixels go
   through the kernels four at a time. */
static int jem__wino_tile(const jem_ctx *ctx, const jem__conv *q) {
    const int fast = ctx->desc.precision ==
        JEM_PRECISION_FAST || ctx->desc.precision == JEM_PRECISION_BF16;
    int tile = 0, least = (q->ho * q->wo + 3) / 4 * 9;
    for (int m = 2; m <= (fast ? 4 : 2); m += 2) {
        const int tiles = ((q->ho + m - 1) / m) * ((q->wo + m - 1) / m);
        const int work = (tiles + 3) / 4 * (m + 2) * (m + 2);
        if (work <= least) {
            tile = m;
            least = work;
        }
    }
    return tile;
}
static void jem__conv_choose(const jem_ctx *ctx, jem__conv *q) {
    const int least = ctx->bf16 && ctx->bf16->twice ? 8 : 1; /* channels worth a tile of bf16 */
    const int fits = q->k == 3 && q->stride == 1 && q->pad <= 2 && q->ci >= 8 && q->co >= 8;
    const int tile = fits && ctx->desc.precision != JEM_PRECISION_DIRECT && (!ctx->bf16 ||
                                                                             ctx->bf16->twice)
                   ? jem__wino_tile(ctx, q) : 0;
    const int one = q->k == 1 && q->hi == 1 && q->wi == 1;   /* linear: too little to round for */
    for (int i = 0; i < 2; i++) {
        q[i].tile = tile;
        q[i].method = tile ? ctx->k->winograd
                    : !one && ctx->bf16 && q[i].co >= least && jem__bf16_fits(q + i)
                    ? &jem__bf16_method : ctx->k->direct;
    }
    q[2].method = !one && ctx->bf16 && q->ci >= least && q->co >= least && q->k <= 8
                ? &jem__bf16_method
                : q->tile == 4 && q->ci > 32 && q->co > 32 ? ctx->k->winograd : ctx->k->direct;
}

static const jem__kernels *jem__kernels_for(jem_isa isa) {
    static const jem__kernels *const all[] = {     /* the best first */
#ifdef JEM__X86
        &jem__kernels_avx512, &jem__kernels_avx2,
#elif defined(JEM__ARM)
        &jem__kernels_neon,
#elif defined(JEM__WASM)
        &jem__kernels_wasm,
#endif
        &jem__kernels_scalar
    };
    if (!jem_isa_available(isa)) return NULL;
    if (isa == JEM_ISA_AVX512_BF16 || isa == JEM_ISA_AMX) isa = JEM_ISA_AVX512;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (isa == JEM_ISA_BEST ? jem_isa_available(all[i]->isa) : all[i]->isa == isa)
            return all[i];
    return NULL;
}

static int jem__engine_open(jem_ctx *ctx) {
    if (ctx->desc.precision == JEM_PRECISION_BF16 && !(ctx->bf16 = jem__bf16_for(ctx->desc.isa))) {
        ctx->desc.precision = JEM_PRECISION_FAST;
        if (ctx->desc.log)
            ctx->desc.log(ctx->desc.user, "bf16: neither AMX nor AVX-512 BF16: fast instead");
    }
    ctx->isa = ctx->bf16 ? ctx->bf16->isa : ctx->desc.isa;
    ctx->k = jem__kernels_for(ctx->isa);
    if (ctx->k && ctx->isa == JEM_ISA_BEST) ctx->isa = ctx->k->isa;
    return ctx->k != NULL;
}

JEM__COMPILE_END
#endif /* JEM_IMPLEMENTATION */

/* ==== >>changelog ============================================================================= */
/* 0.2  2026-11  The plain tape, its plan after it, the engine last. Score matching, noise-blind
                 sampling, a scale of log p(x). Pictures (jem_classify_pixels, jem_sample).
                 Metropolis, MALA, HMC, tempering, annealing. Calibration,
                 out-of-distribution scores, attacks, imputation. max_pool, upsample, concat,
                 detach, sigmoid, softplus, clamp. WebAssembly's simd128. The full loss of
                 contrastive divergence, sharpness-aware steps, a hook for chains. Files are written
                 under names of their own; descs survive bit for bit. Several machines (jem_sum_fn).
                 Mended: jem_add(h, conv(h)) in jem_grad and jem_read; gradients of detached ends;
                 NaN gradients of log behind gather or dropout; training by score matching alone.
                 Changed: jem_loss takes jem_loss_weights; jem_op and jem_call have what an author
                 needs and no more; jem_archive_write refuses symbolic links; images with NaN or
                 absurd numbers are errors; JEM_FAST, JEM_BF16 and score matching have new bits.
   0.1  2026-11  first: autograd, kernels for AVX2, AVX-512, NEON, AMX, wide-resnet, JEM,
                 safetensors, checkpoints of training, averaged weights; the jem command line. */

/* ----------------------------------------------------------------------------------------------
   This software is available under two licences: choose the one you prefer. LICENSE has the text.
   A - MIT No Attribution (MIT-0). Copyright (c) 2026 the jem.h authors.
   B - Public domain (unlicense.org).
   ---------------------------------------------------------------------------------------------- */
