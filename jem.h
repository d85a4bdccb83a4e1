/* jem.h - v0.3 - energy-based models in one C header            licence: MIT-0 or public domain

   Every classifier is also an energy-based model. It assigns each image x one number per class, the
   logit f(x)[y]. The same numbers also define how likely the image itself is:
   log p(x) = logsumexp f(x) - log Z. Here logsumexp f(x) is the logarithm of the sum of exp f(x)[y]
   over all classes y, and Z is the constant that normalises p, which need not be known. Trained for
   both, one small network classifies images, generates new ones, and detects images unlike any it
   has seen. It is a joint energy-based model, or JEM (Grathwohl, Wang, Jacobsen, Duvenaud, Norouzi,
   Swersky. ICLR 2020, arXiv:1912.03263).

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
       It trains a small network on two moons, then classifies three points. The moons are curves,
       on which a density would grow without limit: data_noise blurs them, and energy_l2 keeps
       log p(x) near 0, so that even long runs remain stable.

       #define JEM_IMPLEMENTATION
       #include "jem.h"
       #include <math.h>
       #include <stdio.h>

       static void draw_point(jem_rng *rng, int moon, float *x) {
           float angle = 3.14159f * jem_rng_uniform(rng);
           x[0] = (cosf(angle) - 0.5f) * 0.5f;
           x[1] = (sinf(angle) - 0.25f) * 0.5f;
           if (moon == 1) {
               x[0] = -x[0];
               x[1] = -x[1];
           }
       }

       int main(void) {
           jem_ctx *ctx = jem_ctx_create(NULL);
           jem_mlp_desc shape = jem_mlp_desc_default();
           shape.channels = 2;
           shape.height = 1;
           shape.width = 1;
           shape.classes = 2;
           jem_net *net = jem_mlp_create(ctx, &shape, 1);
           jem_train_desc how = jem_train_desc_default();
           how.lr = 3e-3f;
           how.data_noise = 0.15f;
           how.weights.energy_l2 = 0.03f;
           how.sgld = jem_sgld_desc_langevin(0.02f, 20);
           jem_trainer *trainer = jem_trainer_create(net, &how);
           jem_rng rng = jem_rng_seed(7);
           for (int i = 0; i < 400 && jem_ok(ctx); i++) {
               float x[64][2];
               int y[64];
               for (int k = 0; k < 64; k++) {
                   y[k] = k % 2;
                   draw_point(&rng, y[k], x[k]);
               }
               jem_train_step(trainer, x[0], y, 64);
           }
           float points[3][2] = { { -0.25f, 0.35f }, { 0.25f, -0.35f }, { 0.9f, 0.9f } };
           jem_answer answer[3];
           if (jem_classify(net, points[0], 3, answer) != JEM_OK) {
               puts(jem_error(ctx));
               return 1;
           }
           for (int i = 0; i < 3; i++)
               printf("moon %d (p = %.2f), log p(x) = %+.1f\n", answer[i].label,
                      (double)answer[i].probability, (double)answer[i].log_density);
           jem_trainer_free(trainer);
           jem_net_free(net);
           jem_ctx_free(ctx);
           return 0;
       }

   THE IDEA, IN FIVE LINES
       energy      E(x,y) = -f(x)[y]                         E(x) = -logsumexp f(x)
       density     log p(x,y) = f(x)[y] - log Z              log p(x) = logsumexp f(x) - log Z
       classify    log p(y|x) = f(x)[y] - logsumexp f(x)
       learn       L = CE(f(x), y) + mean E(x_data) - mean E(x_sample)
       sample      x <- x + step * d log p(x)/dx + noise_std * N(0,I)

       CE is the cross-entropy, the mean of -log p(y|x). The rest of L is contrastive divergence
       (CD): it lowers the energy of data, and raises that of samples. Samples come from Markov
       chains, which start at noise and repeat the last line: stochastic gradient Langevin dynamics
       (SGLD). Here, a run of such steps is called a walk, and a callback that runs after every
       step is called a watch. Z cancels in learning and in sampling.

   WHAT TO CALL
       build a network     jem_wrn_create, jem_convnet_create (faster), jem_mlp_create (vectors)
       train it            jem_trainer_create, then jem_train_step with each batch of data
       use it              jem_classify, jem_sample
       on pictures         jem_classify_pixels, jem_pixels_to_floats, jem_floats_to_pixels
       frame by frame      jem_net_sampler, jem_sampler_step
       fill in, clean up   jem_impute with jem_net_impute_desc, jem_denoise
       detect the unusual  jem_calibrate once, then jem_answer.familiarity
       store it            jem_save, jem_load

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
   WHAT IT DOES NOT SUPPORT
       - GPUs; exact second derivatives; grouped or dilated convolutions; kernels above 32 x 32
       - image files (the examples use stb_image), data sets, plots
       - thread safety within a context: use one context per thread; contexts share nothing. A
         context and its objects may move to another thread, if only one uses them at a time
       - 32-bit ARM; SIMD with compilers other than gcc and clang (gcc for Windows needs a macro:
         JEM_WINDOWS_SIMD)

   MACROS to define before the #include
       JEM_IMPLEMENTATION   compiles the implementation here; define it in exactly one file
       JEM_DECLARATIONS     overrides JEM_IMPLEMENTATION, for builds that compile the implementation
                            once and link it to programs like the one above
       JEM_STATIC           makes all functions static, private to the implementing file
       JEM_API              begins each declaration (default: extern, with "C" in C++), for example
                            with __declspec(dllexport) or a visibility
       JEM_CHUNK_BYTES N    makes the tape grow by at least N bytes instead of 1 MB (small systems)
       JEM_NO_STDIO         removes file input and output (keeps jem_archive_parse and _to_memory)
       JEM_NO_SIMD          compiles only the scalar kernels
       JEM_WINDOWS_SIMD     also compiles AVX2 and AVX-512 with gcc for Windows, which needs its
                            option -Wa,-muse-unaligned-vector-move (clang for MinGW needs neither;
                            with MSVC and clang-cl only the scalar kernels are compiled)
       JEM_FILE "name.h"    names this file if you rename it (it includes itself once per
                            instruction set)

   ERRORS
       Nothing exits, asserts or prints. A function that can fail returns a jem_status, NULL, or the
       value that its comment names (NaN, a negative number, a struct with a status). The context
       keeps the FIRST error, with the op's name and the shapes or the file: jem_error(ctx). After
       an error all ops return NULL, and functions that use ops do nothing and return that first
       error, until jem_clear_error(ctx). An op whose input is NULL returns NULL, so you can write a
       whole expression and check once at its end. A program that continues after an error, for
       instance with the next file, must clear it. Callbacks (functions of yours that the library
       calls) must return: neither longjmp nor a C++ exception may leave them. They may call the
       library, but must not free an object that is in use; to free a tensor made before the call is
       an error.
   DESCRIPTIONS
       Start each jem_..._desc from jem_..._desc_default() and change the fields you need; zero is a
       value, not a default. A field's comment begins with the default. A NULL desc means all
       defaults, except where sigma is required (jem_score_desc). (The descs of contexts,
       convolutions, scores and pixels have no such function: there zero means default, = {0} in C,
       = {} in C++.) Unless a comment says otherwise, numbers are finite, at least 0 and, for rates
       of decay, shares and probabilities, at most 1; a step size, a scale and a noise level that is
       divided by must be above 0. Any other value is an error, which names the field and its range.
       An rng is required unless the function says that it may be NULL.
   MEMORY
       Everything belongs to a context and is allocated with the context's `allocate` (default: the
       C library's). Tensors live on the context's tape, an arena: jem_end frees all tensors made
       since jem_begin (jem_reset: all tensors) and keeps the memory for reuse, so a training loop
       does not allocate. The arena grows by JEM_CHUNK_BYTES or more at a time; jem_trim returns
       unused memory. Networks, optimisers, trainers, samplers, buffers, archives and files have
       their own jem_*_free; free them before the context.
   THREADS
       The library uses OpenMP if the compiler enables it, or the parallel_for in the context's
       desc. Work is divided by images, pixels and channels; the order of a sum never changes. gcc's
       OpenMP threads spin while they wait: set OMP_WAIT_POLICY=passive if other programs run too,
       or small networks may take several times as long. These threads do not survive fork: a child
       that computes needs a context of one thread, or exec. A thread needs 64 KB of stack for the
       library (measured); give it twice as much.
   DETERMINISM
       The same seed gives the same numbers on every instruction set and any number of threads, for
       a given jem_precision, as long as values are finite and the compiler follows IEEE arithmetic
       (FLT_EVAL_METHOD is 0; on 32-bit x86: -msse2 -mfpmath=sse). Exceptions: JEM_PRECISION_BF16
       gives the same numbers only on the same instruction set; JEM_ISA_WASM has its own; and with
       gcc for Windows, whose fma() of doubles rounds twice, sums in double can differ. With
       -ffast-math the numbers differ (and a softplus near 0 becomes 0), but values that are not
       finite are still detected and reported.
       tests/README.md names the test of each guarantee.
       The tape records ops in the order in which they are called. C does not specify the order in
       which arguments are evaluated: if two ops are arguments of a third, give each its own line.
   IMAGES
       Functions take and return images as row-major NCHW floats, usually in [-1,1]. Internally, 16
       images are interleaved ("lanes are images", see >>platform), so in batches of 16 or more any
       height and width is as fast as a multiple of a vector's length. Subnormal values (within
       +-1.2e-38, other than 0) are computed correctly, but very slowly on most processors.

   TABLE OF CONTENTS              (each section is a room; search for its mark)
       >>platform   status, context, instruction sets      >>optim       Adam, SGD, Muon, schedules
       >>rng        counter-based random numbers           >>train       one step at a time
       >>memory     the tape's arena                       >>familiar    calibration, OOD scores
       >>tape       recording ops, and running them        >>eval        classify, accuracy
       >>plan       running them faster                    >>uses        samples, pictures, attacks
       >>ops        building blocks of networks            >>io          safetensors
       >>text       strings, numbers, fields               >>checkpoint  networks, trainers in files
       >>nets       wide-resnet, convnet, MLP, your own    >>engine      kernels by instruction set
       >>losses     log-densities, CE, CD, score           >>bf16        convolutions in bf16
       >>samplers   SGLD, HMC, AIS, buffer                 >>changelog   and licence
   The API comes first, in this order, then the implementation, in the same order: ideas first,
   machinery last. A room uses only the rooms above it. The exceptions are >>engine and >>bf16, the
   kernels for every instruction set, which are last: their interface is declared in >>platform and,
   for convolutions, in >>ops.
*/
#ifdef JEM_DECLARATIONS
#undef JEM_IMPLEMENTATION
#endif

#ifndef JEM_H
#define JEM_H

#include <stddef.h>
#include <stdint.h>

#ifdef JEM_API
/* defined by the user */
#elif defined(JEM_STATIC) && defined(__GNUC__)
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

#define JEM_VERSION 3      /* 100 * major + minor: version 0.3 */
#define JEM_LANES 16       /* images that are interleaved in memory: one group */
#define JEM_MAX_INPUTS 4   /* inputs of one op */

/* ==== >>platform: status, context, instruction sets =========================================== */

typedef enum jem_status {
    JEM_OK = 0,
    JEM_BAD_ARGUMENT,      /* a NULL, a number out of range, an impossible combination */
    JEM_BAD_SHAPE,         /* shapes that do not fit together */
    JEM_NO_MEMORY,
    JEM_BAD_FILE,          /* cannot be opened, read or written, or has the wrong content */
    JEM_DIVERGED           /* a loss, gradient, logit, log p, sample or parameter that is too large
                              or not finite; or a rollback after max_rollbacks of them (>>train) */
} jem_status;
/* Returns the status in words, such as "out of memory"; "unknown" for any other number. The string
   is static. */
JEM_API const char *jem_status_name(jem_status status);

typedef enum jem_isa {
    JEM_ISA_BEST = 0,      /* the widest that processor, system and build all support */
    JEM_ISA_SCALAR,        /* plain C: the reference for the tests of the others */
    JEM_ISA_AVX2,          /* AVX2 with FMA */
    JEM_ISA_AVX512,        /* AVX-512 F, BW, DQ, VL */
    JEM_ISA_NEON,          /* AArch64 */
    JEM_ISA_AVX512_BF16,   /* JEM_ISA_AVX512 plus, in JEM_PRECISION_BF16, BF16 instructions */
    JEM_ISA_AMX,           /* JEM_ISA_AVX512 plus, in JEM_PRECISION_BF16, AMX tiles */
    JEM_ISA_WASM           /* WebAssembly with -msimd128. It has no fma: a product and a sum round
                              twice, so its results are close to the others', not identical */
} jem_isa;

/* Precision of convolutions, and the method that computes them. The method matters if the kernel is
   2 or 3 times the stride, such as 3x3 with stride 1 or 4x4 with stride 2: Winograd's, in tiles of
   M x M outputs (Lavin & Gray 2015), then replaces the direct sum where it is faster. Largest
   error, compared with double and relative to the output's rms: 9e-6 (direct), 3e-6 (M = 2), 6e-5
   (M = 4); see `make bench`. The images of a small batch, or the last ones of a batch, are computed
   with different tiles, so their results may be rounded differently, except with
   JEM_PRECISION_DIRECT.

   JEM_PRECISION_BF16 applies to convolutions with kernels up to 8 x 8 that read at most 2 columns
   of padding (weight gradients: any padding). All others, and jem_linear, are computed in fp32.
       AMX              bf16 for all of these convolutions
       AVX-512 BF16     bf16 except for convolutions that write fewer than 8 channels (weight
                        gradients: that read or write fewer), and for outputs and input gradients
                        for which Winograd in fp32 is as fast (if the kernel is 3 times the stride,
                        where JEM_PRECISION_FAST uses it)
       JEM_ISA_SCALAR   as AVX-512 BF16, in plain C
       others           not available: JEM_PRECISION_FAST replaces it, and a note is logged
   With JEM_ISA_BEST, the same happens on Intel's processors without AMX, where AVX-512 BF16 is
   slower than fp32.

   Sampling keeps packed copies of the weights, for outputs and input gradients. In units of the
   weights' own memory, these take 2 (direct), 1.8 (exact), 4 (fast) or 1 (bf16); with stride 2, 2.3
   (exact) and up to 6.3 (fast). */
typedef enum jem_precision {
    JEM_PRECISION_EXACT = 0,   /* M = 2: as exact as direct, about half the multiplications */
    JEM_PRECISION_FAST,        /* M = 2 or 4: a quarter of the multiplications, at best */
    JEM_PRECISION_DIRECT,      /* the plain sum, the reference for the others */
    JEM_PRECISION_BF16         /* operands of convolutions in bf16 (error 2e-2), sums in fp32 */
} jem_precision;

typedef struct jem_ctx jem_ctx;

/* Settings of a context. Zero means default in every field; a NULL desc is all defaults. */
typedef struct jem_ctx_desc {
    /* Set both or neither. allocate returns memory as malloc does, which need not be zero, or NULL.
       They are called only on the thread that called the library; release is never called for
       NULL. */
    void *(*allocate)(void *user, size_t bytes);
    void (*release)(void *user, void *memory);
    void (*log)(void *user, const char *message);  /* receives each error that is kept, and notes:
                                                      JEM_PRECISION_FAST replaces _BF16; arrays of a
                                                      file are skipped; a trainer rolls back, or has
                                                      had no good state for 1,000 updates. Default:
                                                      no log */
    /* Calls task(arg, i) once for each i in 0..n-1, in any order and on any threads (also on one),
       and returns when all are done. It is called on the thread that called the library, never by a
       task, and only for work that several threads finish sooner. Threads need the stack of
       THREADS, above. */
    void (*parallel_for)(void *user, int n, void (*task)(void *arg, int i), void *arg);
    void *user;            /* passed to the four functions */
    int threads;           /* at most 4096 (more become 4096); below 1, the default: OpenMP's thread
                              count, or 1 without OpenMP, so set it if you set parallel_for.
                              With neither, always 1 */
    jem_precision precision;
    jem_isa isa;           /* default: the best */
    int plain_tape;        /* 1: runs ops one by one as recorded, without fusion or planning: slow,
                              the same bits; for debugging, and as the reference of the tests */
} jem_ctx_desc;

/* Creates a context. Returns NULL if memory runs out, the instruction set in the desc is not
   available, the precision is unknown, or only one of allocate and release is set; desc->log
   receives the reason. */
JEM_API jem_ctx *jem_ctx_create(const jem_ctx_desc *desc);
/* Frees the context and its tape. Free everything else made with it first. Accepts NULL. */
JEM_API void jem_ctx_free(jem_ctx *ctx);
/* Returns the first error since the context was created or cleared, or "". Owned by the context.
   If ctx is NULL, returns "no context". */
JEM_API const char *jem_error(const jem_ctx *ctx);
/* Returns the status of that error, or JEM_OK; JEM_BAD_ARGUMENT if ctx is NULL. */
JEM_API jem_status jem_error_status(const jem_ctx *ctx);
JEM_API int jem_ok(const jem_ctx *ctx);            /* 1 if there is no error, and ctx is not NULL */
/* Forgets the error, so that ops work again. Tensors, networks and trainers remain as they are. Has
   no effect in the context's log, since the function that failed has not returned yet. */
JEM_API void jem_clear_error(jem_ctx *ctx);
/* Reports an error of your own, which is kept if it is the first. Copies the first 511 bytes of
   `message`, with '?' for control characters, and returns `status`; with JEM_OK it reports
   nothing. */
JEM_API jem_status jem_fail(jem_ctx *ctx, jem_status status, const char *message);
/* Returns 1 if this build, the processor and the operating system all support `isa`. For
   JEM_ISA_AMX on Linux, it requests tiles for the whole process, which then needs larger signal
   stacks. */
JEM_API int jem_isa_available(jem_isa isa);
/* Returns a name such as "avx2", or "unknown". The string is static. */
JEM_API const char *jem_isa_name(jem_isa isa);
/* Return the settings in use: the instruction set, never JEM_ISA_BEST; the precision,
   JEM_PRECISION_FAST if it has replaced JEM_PRECISION_BF16; the number of threads. If ctx is NULL,
   they return JEM_ISA_SCALAR, JEM_PRECISION_EXACT and 1. */
JEM_API jem_isa jem_ctx_isa(const jem_ctx *ctx);
JEM_API jem_precision jem_ctx_precision(const jem_ctx *ctx);
JEM_API int jem_ctx_threads(const jem_ctx *ctx);

/* ==== >>rng: counter-based random numbers ===================================================== */
/* Threefry-2x32-20 (Salmon, Moraes, Dror, Shaw: 'Parallel random numbers: as easy as 1, 2, 3',
   SC 2011). Number i is a function of (seed, i) alone, so any number of threads can generate the
   numbers in any order. A jem_rng is a value: copy it to repeat a sequence, save it to resume. */

typedef struct jem_rng { uint32_t key[2]; uint64_t counter; } jem_rng;

/* Returns the start of a sequence; different seeds give independent sequences. */
JEM_API jem_rng jem_rng_seed(uint64_t seed);
/* Returns an independent sequence for each `stream` below 2^63, for instance one per purpose or
   thread. It depends on the seed of rng and on `stream`, not on how many numbers have been drawn:
   the same stream gives the same sequence again. Does not advance rng. */
JEM_API jem_rng jem_rng_split(const jem_rng *rng, uint64_t stream);
/* Draw one number and advance rng; return 0 if rng is NULL. */
JEM_API uint32_t jem_rng_u32(jem_rng *rng);                /* 32 random bits */
JEM_API float jem_rng_uniform(jem_rng *rng);               /* [0,1), 24 bits */
JEM_API float jem_rng_normal(jem_rng *rng);                /* N(0,1), Box-Muller */
JEM_API int jem_rng_below(jem_rng *rng, int n);            /* 0..n-1, without bias; 0 if n <= 1 */
/* Fill out[n] with uniform numbers from lo to hi, or with N(mean, std^2), and advance rng. They are
   much faster than single draws, and yield different numbers, but the same numbers on all
   instruction sets except JEM_ISA_WASM. Rounding can yield hi itself, unless lo = 0 or lo = -hi,
   and hi is a normal number. hi - lo must be finite, which is not checked. If a pointer is NULL or
   n <= 0, they do nothing. */
JEM_API void jem_fill_uniform(jem_ctx *ctx, jem_rng *rng, float *out, ptrdiff_t n, float lo,
                              float hi);
JEM_API void jem_fill_normal(jem_ctx *ctx, jem_rng *rng, float *out, ptrdiff_t n, float mean,
                             float std);

/* ==== >>memory: memory in use ================================================================= */

typedef struct jem_memory_stats {
    size_t bytes;          /* allocated from the context's allocator now */
    size_t peak;           /* largest value of `bytes` so far */
    size_t allocations;    /* successful calls to allocate so far; a steady loop makes no more */
} jem_memory_stats;
/* Returns the memory that the context and everything created with it hold; zeros if ctx is NULL. */
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
    int image_h, image_w;                          /* private: sides of the images that these are
                                                      blocks of; 0: whole images */
    jem_ctx *ctx;
    struct jem__node *node;                        /* private: its tape record; NULL: freed */
} jem_tensor;

/* Position on the tape. Its fields are private. */
typedef struct jem_mark {
    jem_ctx *ctx;
    void *chunk;
    size_t used;
    int nodes;
    uint64_t pushes;
} jem_mark;
/* Returns the current position, for jem_end. Pairs of jem_begin and jem_end may nest. */
JEM_API jem_mark jem_begin(jem_ctx *ctx);
/* Frees all tensors made since `mark`. The use of a freed tensor is reported as an error until a
   new tensor reuses its memory. Values and gradients of older tensors that were computed since
   `mark` are freed as well: a value is computed again on request, but jem_read_grad must be called
   before jem_end. It is an error, and nothing is freed, if the mark belongs to another context or,
   in a callback such as a watch, was made before the call. */
JEM_API void jem_end(jem_ctx *ctx, jem_mark mark);
/* Frees all tensors of the context, as jem_end does. */
JEM_API void jem_reset(jem_ctx *ctx);

/* Returns the tape's unused memory to the allocator, and resets jem_memory_stats.peak to the memory
   that is still allocated. Useful after an unusually large request. */
JEM_API void jem_trim(jem_ctx *ctx);

/* Parameter of a network, or buffer: an array that is saved but not trained, such as a running
   mean. Row-major, in PyTorch's shape. (The replay buffer of >>samplers is something else.) */
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

/* Marks packed copies of p->value as outdated. Call it after writing to p->value yourself. Values
   on the tape that have been computed already stay as they are. */
JEM_API void jem_param_changed(jem_param *p);

/* Records a leaf, a tensor that no op computes, with a copy of n images nchw[n][c][h][w], or with
   zeros. Returns NULL after an error: nchw is NULL, a size is below 1, c*h*w is above 1e8, n*c*h*w
   is above 1e12, or memory runs out. */
JEM_API jem_tensor *jem_input(jem_ctx *ctx, const float *nchw, int n, int c, int h, int w);
JEM_API jem_tensor *jem_zeros(jem_ctx *ctx, int n, int c, int h, int w);
/* Replaces a leaf's images with a copy of nchw[n][c][h][w]. Tensors that depend on them are
   recomputed at the next request. It is an error if an op computes the tensor. */
JEM_API jem_status jem_write(jem_tensor *leaf, const float *nchw);

/* Custom op. forward and backward are called for one group of 16 images at a time, possibly from
   several threads, so they must not change anything shared. To report an error, forward writes NaN
   to y, and backward NaN to dx; in a context of one thread they may also call jem_fail. Training
   detects both, jem_logits NaN in y, jem_sgld and jem_denoise NaN in dx; jem_read returns it.
   jem_mcmc rejects a proposal where log p is NaN, and fails if it is NaN at the start. forward and
   backward read x, and forward writes y. Element (channel c, row i, column j) of lane l is at
   [((i*w + j)*c_total + c)*16 + l]. Lanes from `live` on are padding: they repeat the last image,
   and their dy is 0; y and dx may hold any value there. Try the ops of >>ops first: unlike a loop
   over math.h, they are vectorised and fuse with convolutions (for exp, tanh and sigmoid, see
   jem_compute_exp). A custom op cannot own parameters: pass a parameter as another input, such as
   jem_linear of a constant 1 whose weight is the parameter (PReLU in examples/own_op.c). */
typedef struct jem_shape { int n, c, h, w; } jem_shape;

typedef struct jem_call {
    jem_ctx *ctx;
    void *user;                                    /* the tape's copy of your data */
    int group, live;                               /* index of these 16 images; how many are real */
    int inputs;
    jem_shape in[JEM_MAX_INPUTS], out;
    const float *x[JEM_MAX_INPUTS];                /* forward: all; backward: those in `keeps`, the
                                                      others are NULL */
    float *y;                                      /* forward: write; backward: read, NULL without
                                                      JEM_KEEPS_OUTPUT */
    void *aux;                                     /* aux_bytes per group, kept for backward; NULL
                                                      if aux_bytes is 0 */
    const float *dy;                               /* backward: gradient of the output; forward: not
                                                      to be read, and NULL if no backward will
                                                      follow */
    float *dx[JEM_MAX_INPUTS];                     /* backward: ADD to it; NULL if not needed (with
                                                      one input it is needed), and in forward */
    struct jem__inner *inner;                      /* private: used by built-in ops */
} jem_call;

enum {                                             /* jem_op.keeps: arrays that backward reads */
    JEM_KEEPS_NOTHING = 0, JEM_KEEPS_INPUT = 1, JEM_KEEPS_INPUT1 = 2, JEM_KEEPS_INPUT2 = 4,
    JEM_KEEPS_INPUT3 = 8, JEM_KEEPS_OUTPUT = 16
};
typedef struct jem_op {
    const char *name;
    void (*forward)(const jem_call *call);
    void (*backward)(const jem_call *call);        /* NULL: passes no gradient */
    int keeps;                                     /* sum of JEM_KEEPS_...: arrays that backward
                                                      reads; in backward, all others are NULL, and
                                                      reading them crashes */
    const struct jem__traits *traits;              /* private: used by built-in ops; else NULL */
} jem_op;
/* Records a custom op on inputs[n_inputs], 1 to 4 tensors of this context, and returns its output,
   of shape `out`; out.n must equal the inputs' n. Copies user_bytes of `user` (NULL: zeros), but
   not `op` and op->name, which must stay valid. Each group has aux_bytes in which forward can store
   values for backward. Returns NULL if an input is NULL, and after an error: JEM_BAD_ARGUMENT if
   op, its name, its forward or `inputs` is NULL, or n_inputs, op->keeps or aux_bytes is out of
   range; JEM_BAD_SHAPE if out.n or the shape is wrong. */
JEM_API jem_tensor *jem_custom(jem_ctx *ctx, const jem_op *op, jem_tensor *const *inputs,
                               int n_inputs, jem_shape out, const void *user, size_t user_bytes,
                               size_t aux_bytes);

/* ==== >>plan: requesting values and gradients ================================================= */
/* At each request, the tape plans only the computation that the request needs. If that is the
   gradient of the input alone, as in SGLD, it takes 16 images at a time forward and back through
   the whole network in one small workspace, and keeps nothing for weight gradients. (The
   library's convnets and most of its wide residual networks keep the values of a batch of 17 to 63
   images if its last group has few, since these few are computed separately, which is faster.) */

/* Computes t if necessary, and copies it to nchw[n][c][h][w], which is yours. After an error, nchw
   is unchanged. */
JEM_API jem_status jem_read(jem_tensor *t, float *nchw);
/* Returns the value of a tensor with one element, n = c = h = w = 1. Returns NaN if t is NULL, and
   after an error: another shape is reported as JEM_BAD_SHAPE. */
JEM_API float jem_item(jem_tensor *t);
/* Keeps t's values when a later request computes them, so that they can be read after it. Small
   tensors (up to 128 numbers per image) are always kept. Without jem_keep, a larger tensor is
   computed again when it is read, from kept values and the parameters at that time. */
JEM_API void jem_keep(jem_tensor *t);

/* Adds d loss / d parameter to the grad of every parameter on which the loss (one number) depends.
   A loss that depends on no parameter is an error. After any error the gradients may be incomplete:
   call jem_zero_grad before the next jem_backward. */
JEM_API jem_status jem_backward(jem_tensor *loss);
/* Computes d (sum of y) / dx for a leaf x (jem_input, jem_zeros). y is (n,1,1,1), so each image
   receives the gradient of its own number; or it is a single number, such as a mean over images.
   Parameters receive no gradient. Returns JEM_BAD_SHAPE if y has another shape; JEM_BAD_ARGUMENT if
   x is not a leaf, or y does not depend on it, or depends on it only through jem_detach. */
JEM_API jem_status jem_grad(jem_tensor *y, jem_tensor *x);
/* Copies the gradient from the last jem_grad for x to nchw[n][c][h][w], which is yours. It is that
   of the images at that time: after jem_write, call jem_grad again. Returns JEM_BAD_ARGUMENT if
   there is no gradient: jem_grad was not called, or failed, or jem_end has freed its result. */
JEM_API jem_status jem_read_grad(const jem_tensor *x, float *nchw);

/* Log-density, up to a constant, for samplers and losses. Records log p of each image of
   x(n,c,h,w), and returns it as (n,1,1,1), or NULL after an error. `user` is the pointer that was
   passed with the function. For jem_check_gradient, the result may also be a single number. */
typedef jem_tensor *(*jem_logp_fn)(jem_ctx *ctx, jem_tensor *x, void *user);
/* Compares the tape's gradient of the sum of fn's numbers with a central difference of 4th order,
   for every element of the leaf x or, if p is not NULL, of the trainable parameter p; their values
   are restored. Returns the largest difference, relative to the largest gradient: below .01 if the
   gradient is correct, otherwise the share of it that is wrong; NaN if a value is NaN; a negative
   number on an error. The limit of .01 is for a single op in fp32, with a step of .02. As the step
   grows, the rounding error falls as 1/step, but the truncation error rises: for parameters and log
   p(x) of a whole network, and for jem_slope_along, take the smallest result of several steps, .005
   to 1. (A wrong backward has a large difference with all of them.) A backward that sets dx instead
   of adding to it is found if fn also uses x after the op, as in f(x) + x. With p, gradients are
   also added to the grad of all other parameters. */
JEM_API float jem_check_gradient(jem_ctx *ctx, jem_logp_fn fn, void *user, jem_tensor *x,
                                 jem_param *p, float step);

/* ==== >>ops: building blocks of networks ====================================================== */
/* Shapes are (n,c,h,w). The tensor that an op returns belongs to the tape (see jem_end). The tape
   refers to the parameters of its ops, so they must outlive it. An op that fails returns NULL; the
   error names the op and the shapes. All ops have a gradient, except jem_detach. */

typedef struct jem_conv_desc { int stride, pad; } jem_conv_desc;   /* stride 0 means 1 */

/* Computes y[o] = b[o] + sum w[o][i][ky][kx] x[i][...], a cross-correlation, as in PyTorch.
   x (n,I,h,w); w (O,I,k,k), k <= 32; b (O) or NULL; stride <= 64, pad < 64;
   y (n, O, (h + 2 pad - k)/stride + 1, ...). */
JEM_API jem_tensor *jem_conv2d(jem_ctx *ctx, jem_tensor *x, jem_param *w, jem_param *b,
                               jem_conv_desc desc);
/* Computes y = w x + b. x (n,I,1,1); w (O,I); b (O) or NULL; y (n,O,1,1). */
JEM_API jem_tensor *jem_linear(jem_ctx *ctx, jem_tensor *x, jem_param *w, jem_param *b);

/* Compute a + b, a - b, a * b, element by element. b has a's shape, or holds a number per image
   (n,1,1,1) or per channel of each image (n,c,1,1), which is broadcast over a. For numbers that
   all images share, use jem_linear of an input of ones (n,1,1,1), with the numbers as w (c,1). */
JEM_API jem_tensor *jem_add(jem_ctx *ctx, jem_tensor *a, jem_tensor *b);
JEM_API jem_tensor *jem_sub(jem_ctx *ctx, jem_tensor *a, jem_tensor *b);
JEM_API jem_tensor *jem_mul(jem_ctx *ctx, jem_tensor *a, jem_tensor *b);
JEM_API jem_tensor *jem_scale(jem_ctx *ctx, jem_tensor *x, float factor);   /* factor * x */
JEM_API jem_tensor *jem_add_constant(jem_ctx *ctx, jem_tensor *x, float term);   /* x + term */
JEM_API jem_tensor *jem_square(jem_ctx *ctx, jem_tensor *x);
/* jem_exp clamps x to [-87, 88]; its gradient is y even where x is clamped. jem_log is defined for
   x from 1.2e-38 to 3.4e38; for other x (0 or less, for example) the result is meaningless. */
JEM_API jem_tensor *jem_exp(jem_ctx *ctx, jem_tensor *x);
JEM_API jem_tensor *jem_log(jem_ctx *ctx, jem_tensor *x);
JEM_API jem_tensor *jem_tanh(jem_ctx *ctx, jem_tensor *x);
JEM_API jem_tensor *jem_sigmoid(jem_ctx *ctx, jem_tensor *x);
JEM_API jem_tensor *jem_softplus(jem_ctx *ctx, jem_tensor *x);     /* log(1 + e^x) */
/* Compute y[i] = f(x[i]) for n numbers, with the bits of the ops above, several times as fast as
   math.h's functions: for ops of your own. The absolute error of tanh is 1e-7, so its relative
   error grows near 0. y may be x. Any thread may call them. */
JEM_API void jem_compute_exp(const jem_ctx *ctx, const float *x, float *y, ptrdiff_t n);
JEM_API void jem_compute_tanh(const jem_ctx *ctx, const float *x, float *y, ptrdiff_t n);
JEM_API void jem_compute_sigmoid(const jem_ctx *ctx, const float *x, float *y, ptrdiff_t n);
/* Limits x to lo <= y <= hi; the gradient is zero where x is outside. */
JEM_API jem_tensor *jem_clamp(jem_ctx *ctx, jem_tensor *x, float lo, float hi);
JEM_API jem_tensor *jem_relu(jem_ctx *ctx, jem_tensor *x);         /* max(x, 0), not -0, of finite
                                                                      x */
/* Computes x where x >= 0, slope * x elsewhere. */
JEM_API jem_tensor *jem_leaky_relu(jem_ctx *ctx, jem_tensor *x, float slope);
JEM_API jem_tensor *jem_silu(jem_ctx *ctx, jem_tensor *x);         /* x sigmoid(x); 0 if x < -30 */
/* Zeroes each element with probability p in [0,1) and divides the others by 1 - p (Srivastava et
   al. 2014). It does so in evaluation, too, so record it only in training. Advances rng. */
JEM_API jem_tensor *jem_dropout(jem_ctx *ctx, jem_tensor *x, float p, jem_rng *rng);

/* Computes the mean of k x k windows, without padding: y (n, c, (h - k)/stride + 1, ...), for k up
   to h and w. stride 0 means k, here and in jem_max_pool. */
JEM_API jem_tensor *jem_avg_pool(jem_ctx *ctx, jem_tensor *x, int k, int stride);
JEM_API jem_tensor *jem_global_pool(jem_ctx *ctx, jem_tensor *x);  /* (n,c,1,1), mean over h,w */
/* Computes the maximum of each window, k <= 15; its first occurrence receives the gradient. */
JEM_API jem_tensor *jem_max_pool(jem_ctx *ctx, jem_tensor *x, int k, int stride);
/* Repeats each pixel k x k times; y (n,c,k*h,k*w), with sides of at most 65536. */
JEM_API jem_tensor *jem_upsample(jem_ctx *ctx, jem_tensor *x, int k);
/* Changes (n,c,h,w) to (n,c*h*w,1,1), in PyTorch's order. */
JEM_API jem_tensor *jem_flatten(jem_ctx *ctx, jem_tensor *x);
/* Copies channels first .. first+count-1. */
JEM_API jem_tensor *jem_slice(jem_ctx *ctx, jem_tensor *x, int first, int count);
/* Appends b's channels to a's; n, h, w are equal. */
JEM_API jem_tensor *jem_concat(jem_ctx *ctx, jem_tensor *a, jem_tensor *b);
JEM_API jem_tensor *jem_detach(jem_ctx *ctx, jem_tensor *x);       /* a copy without gradient */

/* Reductions to one number per image, except jem_log_softmax. */
JEM_API jem_tensor *jem_logsumexp(jem_ctx *ctx, jem_tensor *x);    /* over c; x (n,c,1,1) */
JEM_API jem_tensor *jem_log_softmax(jem_ctx *ctx, jem_tensor *x);  /* over c; x, y (n,c,1,1) */
/* Selects x[i][labels[i]] for image i; x (n,c,1,1), labels[n] in 0..c-1, which are copied. */
JEM_API jem_tensor *jem_gather(jem_ctx *ctx, jem_tensor *x, const int *labels);
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

/* Compute (x - mean)/sqrt(var + 1e-5) * gamma[c] + beta[c], for gamma, beta (c), with mean and
   variance of each image and channel (Ulyanov, Vedaldi & Lempitsky 2016) or of each image (Ba,
   Kiros & Hinton 2016). */
JEM_API jem_tensor *jem_instance_norm(jem_ctx *ctx, jem_tensor *x, jem_param *gamma,
                                      jem_param *beta);
JEM_API jem_tensor *jem_layer_norm(jem_ctx *ctx, jem_tensor *x, jem_param *gamma, jem_param *beta);
/* Computes (x - mean[c])/sqrt(var[c] + 1e-5) * gamma[c] + beta[c] with the statistics of the batch
   if training = 1 (Ioffe & Szegedy 2015), otherwise with the running ones. In training,
   jem_backward moves the running statistics towards those of the batch by a fraction `momentum`,
   0..1 (variance with n-1, as in PyTorch; a batch of one number per channel leaves the variance
   unchanged). All parameters have c numbers. */
JEM_API jem_tensor *jem_batch_norm(jem_ctx *ctx, jem_tensor *x, jem_param *gamma, jem_param *beta,
                                   jem_param *running_mean, jem_param *running_var, float momentum,
                                   int training);
/* Computes scale*(x + loc); loc, scale (1,c,1,1). `initialized` has one number. While that is 0, a
   training pass sets loc and scale so that the output has mean 0 and std 1 per channel, and then
   sets it to 1 (Glow: Kingma & Dhariwal 2018). */
JEM_API jem_tensor *jem_act_norm(jem_ctx *ctx, jem_tensor *x, jem_param *loc, jem_param *scale,
                                 jem_param *initialized, int training);

/* ==== >>text: strings from outside ============================================================ */

/* Makes a string from a file or a user safe to print: control characters, also the 8-bit ones
   (U+0080 to U+009F), and bytes that are not UTF-8 become '?', so that the string cannot control a
   terminal. With keep_newlines = 1, newlines, carriage returns and tabs remain. In place; NULL is
   allowed. The library's own messages are already clean. */
JEM_API void jem_mask_controls(char *text, int keep_newlines);

/* ==== >>nets: wide-resnet, convnet, MLP, your own ============================================= */

typedef enum jem_activation { JEM_ACTIVATION_LEAKY_RELU = 0, JEM_ACTIVATION_RELU,
                              JEM_ACTIVATION_SILU, JEM_ACTIVATION_TANH } jem_activation;
/* Input of the last layer: the mean of each channel over pixels, or all values. */
typedef enum jem_head { JEM_HEAD_POOLED = 0, JEM_HEAD_FLAT } jem_head;

typedef struct jem_net jem_net;
/* Builds the logits (n,classes,1,1) of x (n,channels,height,width) on the tape. user: net->user.
   May set net->log_density, shift and features to tensors of the tape; they are NULL when it is
   called. After an error, which it reports with jem_fail, it returns NULL. */
typedef jem_tensor *(*jem_forward_fn)(jem_net *net, jem_tensor *x, int training, void *user);

/* Argument of the log-densities in >>losses: the network, the label of each image, and, for
   jem_logp_guided, the weight of log p(y|x). Owns neither net nor labels. */
typedef struct jem_query {
    jem_net *net;
    const int *labels;                             /* [n], 0..classes-1; NULL for log p(x) alone */
    float weight;
} jem_query;

/* A network with log p(x) = scale * logsumexp f(x) - log Z and p(y|x) = softmax f(x), without the
   scale; so log p(x,y) = log p(x) + log p(y|x) is f(x)[y] - log Z only for a scale of 1. Score
   matching (>>losses) needs a larger scale, since the slopes of log p(x) are in the hundreds there,
   while the logits of a new network are near 0: set `scale` to 10 before training. A forward
   function can compute log p(x) separately (see `log_density`). If it also sets `features`, to the
   inputs of the last linear layer, jem_calibrate includes them in its statistics. */
struct jem_net {
    jem_query query;                               /* this network, no labels: being the first
                                                      field, it lets a jem_net * serve as a
                                                      jem_query * (>>losses) */
    jem_ctx *ctx;
    int channels, height, width, classes;
    float scale;                                   /* 1; in a file, 1e-6..1e6. This and the next
                                                      nine fields are saved */
    float noise_lo, noise_hi, mean;                /* noise levels and mean pixel from which a score
                                                      was learned; 0, 0, 0 without a score */
    float guidance;                                /* weight of log p(y|x) in samples of a class; 0:
                                                      see jem_net_query */
    int denoise_steps;                             /* noise-blind steps (jem_denoise_desc) of its
                                                      samples; 0: 300 */
    float denoise_fraction;                        /* part of the noise that each of them removes,
                                                      0..1; 0: .05 */
    float last_sigma;                              /* noise that the last step of a sample removes,
                                                      at most; 0: 2 noise_lo */
    float walk_step, walk_noise;                   /* step size and noise of its chains in training
                                                      (jem_sgld_desc); 0: unknown */
    jem_param *params;                             /* linked list, in the order they were added */
    jem_rng rng;                                   /* initialisation, then dropout */
    void *user;                                    /* your forward function's data */
    jem_tensor *log_density;                       /* g(x), (n,1,1,1), or NULL: the higher, the more
                                                      likely is x. It replaces the logsumexp: log
                                                      p(x) = scale * g(x) - log Z, plus the shift */
    jem_tensor *shift;                             /* e(x), (n,1,1,1), see below, or NULL */
    jem_tensor *features;                          /* (n,c,h,w), or NULL */
    jem_forward_fn forward;                        /* private from here: use jem_forward */
    struct jem__meta *meta;
    float *calibration;                            /* parsed "jem.statistics", or NULL */
    jem_param *last;
    struct jem_optim *averaged;                    /* whose averages are in params, or NULL */
};

/* A forward function may store one number per image, e(x), in net->shift. It is added to log p(x)
   and log p(x,y): log p(x) becomes e(x) + scale * logsumexp f(x) - log Z, and p(y|x) remains the
   same, since softmax is invariant to a shift of all logits. The network is still a JEM, p(x,y)
   included, but most of log p(x) may be e(x) (measured in examples/models/recipes.md). The logits
   that jem_forward returns do not contain the shift, so the cross-entropy does not compute it. */

/* Kinds of blocks of a wide residual network. */
typedef enum jem_blocks {
    JEM_BLOCKS_WRN = 0,    /* those of the authors of JEM, described below */
    JEM_BLOCKS_ZERO        /* for a network without norms: the second convolution of a block starts
                              at 0, so that the block begins as the identity (Fixup: Zhang, Dauphin
                              & Ma 2019; SkipInit: De & Smith 2020). The stem has 16 * widen
                              channels, a block keeps their number, and between two stages an
                              activation and a conv4x4 of stride 2 (f.down1, f.down2) double it.
                              Learns best with JEM_ACTIVATION_SILU and JEM_OPTIMIZER_MUON */
} jem_blocks;

/* Shape of the wide residual network (Zagoruyko & Komodakis 2016) as the authors of JEM use it, by
   default without batch norm: conv3x3; three stages of (depth-4)/6 blocks with 16, 32, 64 times
   `widen` channels; activation, head, linear. The first block of stages 2 and 3 has a stride of 2,
   in its second convolution and its shortcut. The padding is 1, or 0 for kernels of 1x1. A field's
   comment begins with its default. */
typedef struct jem_wrn_desc {
    int depth, widen;                              /* 28, 10; depth = 6k + 4, 10 to 1000; widen 1
                                                      to 100 */
    int channels, height, width, classes;          /* 3, 32, 32, 10; of images and logits. At most
                                                      65536 and, of classes, 2^24 */
    jem_activation activation;                     /* leaky ReLU */
    float leak;                                    /* .2: slope of leaky ReLU for x < 0, from -1000
                                                      to 1000 */
    jem_norm norm;                                 /* none */
    float dropout;                                 /* 0; probability, below 1 */
    jem_head head;                                 /* pooled; flat learns faster on small nets */
    int stem_stride;                               /* 1; 2 makes the rest 4 times cheaper;
                                                      at most 8 */
    int separate_energy;                           /* 0; 1: log p(x) has a head of its own, the
                                                      layer "energy_output", whose output is
                                                      net->log_density (minus an energy: high where
                                                      x is likely) */
    jem_blocks blocks;                             /* JEM_BLOCKS_WRN */
    int unet;                                      /* 0; 1: adds e(x) = sum of x U(x) to log p(x),
                                                      see jem_net.shift. U is a U-Net's decoder on
                                                      the features of all stages, see below: an
                                                      energy of this form denoises as well as a
                                                      score network (Guth et al. 2025).
                                                      Sides are multiples of 4 * stem_stride. Not
                                                      with separate_energy */
} jem_wrn_desc;
/* The U-Net, with the layers u.up1, u.up2 (3x3), u.skip1, u.skip2 (1x1), u.energy_output (3x3),
   the features h1, h2 of the first stages, before their activation, and h3 as it enters the head:
       y2 = act(up2 * upsample(h3) + skip2 * act(h2))          upsample: nearest, by 2
       y1 = act(up1 * upsample(y2) + skip1 * act(h1))
       U  = energy_output * y1            with a stem_stride > 1, of y1 upsampled by it */
JEM_API jem_wrn_desc jem_wrn_desc_default(void);
/* Creates the network; free it with jem_net_free. The seed determines the initial parameters. A
   NULL desc means all defaults. Returns NULL after an error, which names the field that is out of
   range. */
JEM_API jem_net *jem_wrn_create(jem_ctx *ctx, const jem_wrn_desc *desc, uint64_t seed);

/* Shape of a convnet: conv3x3 at full size, then a conv4x4 of stride 2 for each further width, each
   with a padding of 1 and followed by the activation; flat head, linear. The default, for 28x28
   digits, has 113,000 parameters. */
typedef struct jem_convnet_desc {
    int channels, height, width, classes;          /* 1, 28, 28, 10; limits as in jem_wrn_desc */
    int layers, widths[8];                         /* 4 (1 to 8); 16, 32, 64, 64 (each up to 65536):
                                                      channels of each layer */
    jem_activation activation;                     /* SiLU */
    float leak;                                    /* as in jem_wrn_desc */
    int separate_energy;                           /* as in jem_wrn_desc */
    float quadratic;                               /* 0; q adds -q/2 ||x||^2 to log p(x), as
                                                      jem_net.shift: far from the data it falls as
                                                      a normal density does */
    int student;                                   /* 0: off; 1..1000: degrees of freedom. Adds to
                                                      log p(x), as jem_net.shift, the log-density of
                                                      u if z = A u has a multivariate Student's t
                                                      distribution whose scale matrix is the
                                                      identity. u is x in the network's units; f is
                                                      a function of z, too. A is the buffer
                                                      "whiten.weight": the identity until
                                                      jem_net_fit_units sets it so that the
                                                      coordinates of the data's z are
                                                      uncorrelated and have variance 1. Only for an
                                                      MLP of vectors (height and width 1, up to 1024
                                                      numbers), without quadratic */
} jem_convnet_desc;
JEM_API jem_convnet_desc jem_convnet_desc_default(void);
/* Creates the network, as jem_wrn_create does. */
JEM_API jem_net *jem_convnet_create(jem_ctx *ctx, const jem_convnet_desc *desc, uint64_t seed);

/* Shape of an MLP: linear layers of the given widths, each followed by the activation, then one to
   the classes. Default: 1 x 28 x 28 images, 10 classes, widths 128, 128. For vectors, set channels
   to their length, height and width to 1. */
typedef struct jem_convnet_desc jem_mlp_desc;
JEM_API jem_mlp_desc jem_mlp_desc_default(void);
/* Creates the network, as jem_wrn_create does. */
JEM_API jem_net *jem_mlp_create(jem_ctx *ctx, const jem_mlp_desc *desc, uint64_t seed);
/* Returns the desc for vectors of `length` numbers, for jem_train_desc_vectors: widths 64, 64, 64,
   student = 3. */
JEM_API jem_mlp_desc jem_mlp_desc_vectors(int length, int classes);

JEM_API void jem_net_free(jem_net *net);                           /* accepts NULL */

/* Creates a network without parameters, for your own architecture: add layers, and write the
   forward function (examples/own_net.c). Free it with jem_net_free. Sizes and classes are at least
   1, channels * height * width at most 1e8. Copies user_bytes of `user` to net->user, which the
   forward function receives; with NULL they start as zeros, and you fill them in, for instance with
   the layers. forward may be NULL if the net only holds parameters. The seed determines the random
   numbers of its layers. Fewer than 16 images take as long as 16. (In evaluation, the library's
   convnets and most of its wide residual networks are faster, its MLPs are not.) Returns NULL after
   an error, such as a size out of range. */
JEM_API jem_net *jem_net_create(jem_ctx *ctx, jem_forward_fn forward, const void *user,
                                size_t user_bytes, int channels, int height, int width, int classes,
                                uint64_t seed);
/* Adds a parameter (trainable = 1) or buffer (0) of ndim 1 to 4, filled with zeros; owned by the
   net. Returns NULL after an error: a name that exists, a shape that is not possible. */
JEM_API jem_param *jem_net_param(jem_net *net, const char *name, int ndim, const int *shape,
                                 int trainable);
/* Returns the parameter or buffer of that name; NULL, without an error, if it does not exist. */
JEM_API jem_param *jem_net_find(const jem_net *net, const char *name);
JEM_API ptrdiff_t jem_net_size(const jem_net *net);        /* count of trainable numbers */
JEM_API void jem_zero_grad(jem_net *net);                  /* zeroes all gradients of parameters */

/* Layer of a network: an op with its parameters, which belong to the network. */
typedef enum jem_layer_kind {
    JEM_LAYER_NONE = 0, JEM_LAYER_CONV, JEM_LAYER_LINEAR, JEM_LAYER_NORM
} jem_layer_kind;
typedef struct jem_layer {
    jem_layer_kind kind;
    jem_param *weight, *bias;                      /* norm: gamma, beta; act norm: scale, loc */
    jem_param *extra[2];                           /* running mean and variance of a batch norm,
                                                      `initialized` of an act norm; else NULL */
    jem_conv_desc conv;
    jem_norm norm;
} jem_layer;
/* Add parameters to the net, and return the layer, a value that may be copied. The parameters are
   named name.weight, name.bias, ... (at most 127 bytes), with the shapes of PyTorch and its
   initialisation: weights and biases uniform in +-1/sqrt(fan_in); norms with gamma 1, beta 0. After
   an error, such as a name that exists or a size below 1, parameters that were added before it
   remain in the net, and jem_apply of the layer returns NULL. */
JEM_API jem_layer jem_conv_layer(jem_net *net, const char *name, int in, int out, int k, int stride,
                                 int pad);
JEM_API jem_layer jem_linear_layer(jem_net *net, const char *name, int in, int out);
JEM_API jem_layer jem_norm_layer(jem_net *net, const char *name, jem_norm norm, int channels);
/* Applies the layer's op to x. A layer of kind JEM_LAYER_NONE returns x. The momentum of batch norm
   is .9, as in the code of JEM's authors (PyTorch's default is .1). */
JEM_API jem_tensor *jem_apply(const jem_layer *layer, jem_tensor *x, int training);
/* Applies an activation; `slope` is that of JEM_ACTIVATION_LEAKY_RELU for x < 0. */
JEM_API jem_tensor *jem_activate(jem_ctx *ctx, jem_tensor *x, jem_activation a, float slope);

/* Records the logits (n,classes,1,1) of x (n,channels,height,width), in the network's units.
   training = 1 uses batch statistics and dropout. Replaces net->log_density, shift and features
   with those of this pass: use them before the next one. Returns NULL if x is NULL, and after an
   error: x has been freed, x or an output has the wrong shape (JEM_BAD_SHAPE), or the network has
   no forward function. */
JEM_API jem_tensor *jem_forward(jem_net *net, jem_tensor *x, int training);
/* Stores a text (UTF-8) that is saved with the network; a value of NULL removes it. Key and value
   are copied. A network holds at most 3840 texts, the library's included. Keys that begin with
   "jem." are the library's: they can only be read and removed. The tools store and read names:
   "class.0", "class.1", ... of the classes and, for rows of a table, "column.0", "column.1", ... of
   its columns. */
JEM_API jem_status jem_net_set_meta(jem_net *net, const char *key, const char *value);
/* Returns the text stored under the key, or NULL. It is valid until it is set or removed. */
JEM_API const char *jem_net_meta(const jem_net *net, const char *key);

/* Units. A network learns best from numbers of mean 0 and standard deviation 1; sensors measure
   volts and bars. Once units are fitted to training data, every function that takes or returns
   numbers x[n][c][h][w] of a network (jem_train_step, jem_classify, jem_ood_score, ...) uses the
   data's own units; it computes with

       u = (x - m[c]) / s[c],      log p(x) = log p(u) - height * width * sum of log s[c]

   where m and s are the mean and standard deviation of channel c (not jem_net.mean and .scale); a
   vector (height and width 1) has a channel for each value. Tensors, samplers, replay buffers, and
   the steps, noise, distances and ranges in descs stay in the network's units, u: jem_standardize
   and jem_unstandardize convert. The text "jem.units", which is saved with the network, contains m
   and s of the first channel, then of the second, and so on; to return to a network without units,
   remove it (jem_net_set_meta). */
/* Fits units to the training data x[n][c][h][w], n > 0, before training. No number may exceed 1e12
   in absolute value. The s[c] of a constant channel is its absolute value, or 1 if that is (nearly)
   0. An outlier, such as a sensor's error code, enlarges s[c] and hides the variation
   of all other numbers: remove it first. In a network with `student`, also sets A. */
JEM_API jem_status jem_net_fit_units(jem_net *net, const float *x, int n);
/* Convert x[n][c][h][w] to u, in the network's units, and back; u may be x. u is limited to
   -10^4 .. 10^4. Without units they copy numbers from -10^4 to 10^4; others are an error. */
JEM_API jem_status jem_standardize(const jem_net *net, const float *x, int n, float *u);
JEM_API jem_status jem_unstandardize(const jem_net *net, const float *u, int n, float *x);

/* ==== >>losses: log-densities, cross-entropy, contrastive divergence, score =================== */

/* Log-densities up to a constant, for samplers: each records one number per image of x(n,c,h,w), in
   evaluation mode (no dropout, running statistics), and returns (n,1,1,1). The last argument is a
   jem_query *; a jem_net *, which begins with one, suffices where no labels are needed. Labels are
   copied. NULL after an error: no query; no labels where they are needed; jem_logp_class of a
   network whose log p(x) is a separate output (net->log_density). There, f(x)[y] is not part of
   log p(x,y); jem_logp_guided with weight 1 adds log p(x) and log p(y|x). */
JEM_API jem_tensor *jem_logp(jem_ctx *ctx, jem_tensor *x, void *query);           /* log p(x) */
JEM_API jem_tensor *jem_logp_class(jem_ctx *ctx, jem_tensor *x, void *query);     /* log p(x,y) */
JEM_API jem_tensor *jem_logp_label(jem_ctx *ctx, jem_tensor *x, void *query);     /* log p(y|x) */
/* Records log [p(y|x) / (1 - p(y|x))], without a fitted temperature. Its gradient has the direction
   of the gradient of log p(y|x), which vanishes in fp32 where p(y|x) is nearly 1. For one class the
   value is 1e18. */
JEM_API jem_tensor *jem_log_odds(jem_ctx *ctx, jem_tensor *x, void *query);
/* Records log p(x) + weight log p(y|x): with weight 1 that is log p(x,y); a larger weight gives
   samples more typical of the class. jem_net_query chooses the weight. */
JEM_API jem_tensor *jem_logp_guided(jem_ctx *ctx, jem_tensor *x, void *query);

/* Records the mean of -log p(y|x) over the batch, mean(logsumexp(logits) - logits[y]), as one
   number, for logits (n,classes,1,1) and labels[n]. */
JEM_API jem_tensor *jem_cross_entropy(jem_ctx *ctx, jem_tensor *logits, const int *labels);
/* Records mean E(data) - mean E(sample) = mean logp(sample) - mean logp(data), as one number. Its
   gradient estimates that of mean -log p(data), without bias only if the samples are drawn from p
   itself, not by a few steps towards it (Hinton 2002). The inputs may differ in n. */
JEM_API jem_tensor *jem_contrastive(jem_ctx *ctx, jem_tensor *logp_data, jem_tensor *logp_sample);

/* The score of a density is the gradient of log p. Denoising score matching (Vincent 2011) learns
   it without chains. At noisy images x~ = x + sigma z, the score of the noisy density points to the
   mean of the clean images that x~ may come from. The loss, over many noise levels and weighted by
   sigma^2 (Song & Ermon 2019), is

       L = mean over images of weight/2 ||r||^2,    r = sigma d log p(x~)/dx~ + z,    z ~ N(0,I)

   It is minimal if d log p(x~)/dx~ is the mean of -z/sigma, given x~. One log p serves all noise
   levels, since an image of hundreds of values shows how noisy it is. A vector of a few values does
   not: with several levels, its log p is blurred by all of them, so use a single level. Below the
   lowest level, score matching does not determine log p. Here and in >>samplers, D = c*h*w is the
   number of values of an image. */
typedef struct jem_score_desc {
    const float *sigma;    /* [n], 0 < sigma < 1e6: noise of each image, from invisible to
                              dominant: .12 to 2 for pixels in [-1,1] */
    const float *weight;   /* [n]; NULL: all 1 */
    float difference;      /* 0: .03, or .1 with JEM_PRECISION_BF16. The gradient of L, a second
                              derivative of log p, is computed as a difference of log p at
                              x~ +- h r/||r||, h = difference * sigma sqrt(D) */
} jem_score_desc;
/* Draws n noise levels into sigma[n], ascending: one from each of n equal parts of lo .. hi on a
   logarithmic scale. Level i is for image i, so images must be in random order. 0 < lo <= hi is not
   checked here; jem_score_matching rejects levels that are not above 0. */
JEM_API void jem_noise_levels(jem_rng *rng, int n, float lo, float hi, float *sigma);
/* Adds sigma[i] N(0,I) to image i of a leaf. sigma[n] is finite. Advances rng. */
JEM_API jem_status jem_add_noise(jem_tensor *leaf, const float *sigma, jem_rng *rng);
/* Records L, as one number for jem_backward, for clean images x(n,c,h,w), a leaf, and any
   log-density. Computes the score at x~ immediately, then records log p on either side of x~, so
   the value of L has the error of this difference, too. residual (may be NULL) receives the mean of
   ||r||^2 / D, without that error: 1 for a density that has learned nothing. Advances rng. NULL
   after an error. */
JEM_API jem_tensor *jem_score_matching(jem_ctx *ctx, jem_logp_fn logp, void *user, jem_tensor *x,
                                       const jem_score_desc *desc, jem_rng *rng, float *residual);

/* Records the sum over images of v . d log p/dx, as one number; x and v are leaves of one shape.
   jem_backward of this number gives second derivatives, those of the slope with respect to the
   parameters. The number is a difference of two ordinary passes, at x +- h v/||v||,
   0 <= h <= 1e6 (0: .003 sqrt(D), JEM_PRECISION_BF16 .01 sqrt(D)).
   For a penalty ||g||^2 on the slope g, compute g with jem_grad and jem_read_grad, record
   jem_slope_along with v = g, and multiply it by 2: the result has the gradient of ||g||^2 (v is
   constant), but twice its value. Returns NULL after an error, for instance if x and v have
   different shapes (JEM_BAD_ARGUMENT). */
JEM_API jem_tensor *jem_slope_along(jem_ctx *ctx, jem_logp_fn logp, void *user, jem_tensor *x,
                                    jem_tensor *v, float h);

/* Weights of the terms in the sum that is the loss of a JEM, 0 or more. */
typedef struct jem_loss_weights {
    float ce;              /* of -log p(y|x) */
    float cd, cd_class;    /* of contrastive divergence on p(x), on p(x,y) */
    float energy_l2;       /* of mean (log p(x))^2 of data, plus that of samples, without log Z */
} jem_loss_weights;
/* Terms of a loss, without their weights, one number each: cross-entropy, and mean log p(x) of data
   and of samples, without log Z. Also the logits (n,classes,1,1). A term is NULL if its inputs are
   not given; f_data is also NULL if no term uses x_data. */
typedef struct jem_loss_terms { jem_tensor *ce, *f_data, *f_sample, *logits; } jem_loss_terms;
/* Records the loss of a JEM from given data and samples, as one number for jem_backward, in
   training mode; for training loops of your own. x(n,c,h,w) and labels[n] are for cross-entropy and
   p(x,y), x_data for p(x) (NULL: x is used); x_sample and sample_labels are the samples and their
   classes. Each of these may be NULL, but one term must remain. terms may be NULL. Errors: a weight
   below 0 or not finite, no term, x_sample without x, labels or sample_labels although cd_class has
   a weight. */
JEM_API jem_tensor *jem_loss(jem_net *net, const jem_loss_weights *weights, jem_tensor *x,
                             const int *labels, jem_tensor *x_data, jem_tensor *x_sample,
                             const int *sample_labels, jem_loss_terms *terms);

/* ==== >>samplers: SGLD, noise-blind sampling, replay buffer =================================== */

/* Stochastic gradient Langevin dynamics (SGLD), a walk of x towards samples of p:
   x <- x + step_size * clamp(d log p/dx) + noise_std * N(0,I), then clamp x.
   Clamping gradients gives the proximal SGLD of Yang & Ji (2021). With decay_b > 0, the size of
   step t = 0, 1, ... is multiplied by s = (1 + t/b)^-gamma, its noise by sqrt(s); the bias then
   vanishes for gamma in (1/2,1] (Welling & Teh 2011). With temperature_from > 0, the noise is
   multiplied by sqrt(r), where r changes from temperature_from at the first step to temperature_to
   (which must be above 0) at the last, by the same factor at every step (simulated annealing,
   Kirkpatrick et al. 1983). Small steps sample from p^(1/T) at the temperature
   T = r noise_std^2 / (2 step_size), with r = 1 without annealing: T = 1 for
   jem_sgld_desc_langevin, 5e-5 for the paper's step of 1 and noise of .01, whose walk is nearly an
   ascent. The noise is drawn in the order of memory (>>tape), padding included. For a schedule of
   your own, call jem_sgld with steps = 1. */
typedef struct jem_sgld_desc {
    int steps;                                     /* 20 */
    float step_size, noise_std;                    /* 1, .01, as in the JEM paper; a negative step
                                                      walks to lower densities */
    float clamp_grad;                              /* 0: off; else limits each number of the
                                                      gradient to +- this */
    float clamp_lo, clamp_hi;                      /* 0, 0; lo < hi: x is clamped to lo..hi after
                                                      every step; any lo = hi: no clamp */
    float decay_b, decay_gamma;                    /* 0, 0: off; else both above 0 */
    float temperature_from, temperature_to;        /* 0: off */
    /* NULL, or called after every step, with its index, from 0, and the leaf x. A result other than
       0 stops the walk. May read x, write it (jem_write, jem_mcmc), and call functions such as
       jem_classify (see ERRORS). For chains by a sampler of your own in training: steps 1,
       step_size and noise_std 0, and a watch that walks x. */
    int (*watch)(void *user, int step, jem_tensor *x);
    void *watch_user;
} jem_sgld_desc;
JEM_API jem_sgld_desc jem_sgld_desc_default(void);
/* Returns the unadjusted Langevin algorithm with step a: step_size a/2, noise_std sqrt(a). */
JEM_API jem_sgld_desc jem_sgld_desc_langevin(float a, int steps);
/* Walks each image of the leaf x(n,c,h,w) in place. Advances rng; with rng NULL it adds no noise.
   If x is not finite afterwards, returns JEM_DIVERGED. */
JEM_API jem_status jem_sgld(jem_ctx *ctx, jem_logp_fn logp, void *user, jem_tensor *x,
                            const jem_sgld_desc *desc, jem_rng *rng);

/* Walks as jem_sgld does, and returns the term that contrastive divergence omits, which accounts
   for the samples' dependence on the parameters (Du, Li, Tenenbaum & Mordatch 2021): one number for
   jem_backward,

       L_KL = mean E(x; held) - entropy H(x),      x = x' + step_size d log p(x')/dx' + noise

   whose gradient flows through the last step only; `held`: the parameters of E count as constants,
   and receive no gradient. H, the entropy of the samples, is D mean log(distance to the nearest
   unequal sample) plus a constant (Kozachenko & Leonenko 1987), with D = c*h*w. `entropy` is its
   weight; 0 omits H. The paper's code leaves out the factor D and has a weight of .3, here .3/D;
   for images, 1 is too much. steps must be at least 1; temperature_from and decay_b must be 0. If
   watch stops the walk, the last step is still taken. Advances rng; with rng NULL it adds no noise.
   Returns NULL on an error. */
JEM_API jem_tensor *jem_kl_walk(jem_ctx *ctx, jem_logp_fn logp, void *user, jem_tensor *x,
                                const jem_sgld_desc *desc, float entropy, jem_rng *rng);

/* Noise-blind sampling (Kadkhodaie & Simoncelli 2021, algorithm 1, with a constant h), for a
   density trained by score matching over a range of noise levels. There the gradient g of log p is
   -z/sigma on average, and ||z|| is about sqrt(D). So sigma = sqrt(D)/||g|| estimates the noise in
   an image, and x + sigma^2 g the clean image. Each step covers a fraction h of the way to it, and
   adds some noise again:

       x <- x + h sigma^2 g + gamma N(0,I),     gamma^2 = ((1 - beta h)^2 - (1 - h)^2) sigma^2

   Starting from noise it produces a sample; starting from a noisy image, a sample of the clean
   images that it may be. To clean a picture with the least error on average, take one step with
   h = 1, without rng: the least-squares denoiser (Miyasawa 1961). */
typedef struct jem_denoise_desc {
    int steps;                                     /* 300 */
    float fraction;                                /* .05: h, the part of the noise that a step
                                                      removes, 0 < h <= 1 */
    float beta;                                    /* .3, 0..1. With 1, a step adds no noise;
                                                      near 0, almost as much as it removes */
    float sigma_max;                               /* 2: upper limit of the estimated sigma */
    int (*watch)(void *user, int step, jem_tensor *x);                 /* as in jem_sgld_desc */
    void *watch_user;
} jem_denoise_desc;
JEM_API jem_denoise_desc jem_denoise_desc_default(void);
/* Returns the desc that removes the remaining noise of a walk, at most sigma: one step of .8, to be
   taken without rng. A full step leaves more grain. */
JEM_API jem_denoise_desc jem_denoise_desc_clean(float sigma);
/* Walks the leaf x in place. To draw a sample, fill x with N(mean, sigma_max^2) first. With rng
   NULL it adds no noise. If x is not finite afterwards, returns JEM_DIVERGED. */
JEM_API jem_status jem_denoise(jem_ctx *ctx, jem_logp_fn logp, void *user, jem_tensor *x,
                               const jem_denoise_desc *desc, jem_rng *rng);

/* Sampling from scratch. Images start as noise, N(mean, denoise.sigma_max^2), and pass through
   three phases: denoising; a walk like that of the chains in training, which corrects the first
   phase; removal of the remaining noise, at most `last_sigma`. A watch can stop only its own phase.
   jem_net_generate_desc returns the desc for a network. */
typedef struct jem_generate_desc {
    float lo, hi;                                  /* 0, 0; lo < hi: starts from U(lo,hi) instead */
    float mean;                                    /* 0; mean pixel of the data, see jem_net.mean.
                                                      lo, hi and mean: from -1e4 to 1e4 */
    jem_denoise_desc denoise;
    jem_sgld_desc walk;                            /* 300 steps of .01, noise .1; see
                                                      jem_net_generate_desc */
    float last_sigma;                              /* .24, twice the smallest noise level of score
                                                      matching; 0: skips the third phase */
} jem_generate_desc;
JEM_API jem_generate_desc jem_generate_desc_default(void);
/* Replaces the leaf x(n,c,h,w) with n samples; its previous content is ignored. A NULL desc is
   jem_generate_desc_default's. rng is required, and advances. Returns JEM_DIVERGED if x is not
   finite after one of the phases. */
JEM_API jem_status jem_generate(jem_ctx *ctx, jem_logp_fn logp, void *user, jem_tensor *x,
                                const jem_generate_desc *desc, jem_rng *rng);

/* jem_generate in pieces, for programs that draw frames; gives the same bits, however the steps are
   divided. Each step computes one gradient of log p for all images. Do not copy the struct: both
   copies would have the same x. */
typedef struct jem_sampler {
    jem_ctx *ctx;
    int n, channels, height, width;
    float *x;                                      /* [n][c][h][w]: the current images, in the units
                                                      of the network; freed with the sampler. May
                                                      be read and changed between steps. Values may
                                                      exceed the range of pixels: jem_classify needs
                                                      a copy, clamped and, if the network has
                                                      units, converted by jem_unstandardize */
    int step, steps;                               /* count of steps taken so far, and of all */
    double slowest;                                /* time of the slowest recent step, microseconds
                                                      of the budget's clock; 0 before the first one
                                                      with a clock; may be changed */
    jem_rng rng;
    jem_logp_fn logp;                              /* private from here */
    void *user, *owned;
    jem_generate_desc desc;
} jem_sampler;
/* Limits of one call of jem_sampler_step. The call takes at least one step, unless all are taken,
   so a frame must have room for one gradient of the network (tools/BENCHMARKS.md, 'Few images', has
   the times of most models that ship). For many images, create several samplers of a few each, and
   step them in turn. The time of a step is an estimate from recent ones: leave a margin, and take
   the first step, and the first after jem_net_load, which are slower, outside of frames. In a game,
   give the context one thread: several would wait, at every step, for a core that another thread
   uses. */
typedef struct jem_budget {
    int steps;                                     /* at most this many; 0: no limit */
    double microseconds;                           /* 0: no limit; below 0, for a frame that is
                                                      late: one step; else a step begins only if the
                                                      slowest recent step (jem_sampler.slowest)
                                                      would fit into the time that is left. A recent
                                                      step is counted as at most this limit, so a
                                                      pause of the program does no lasting harm */
    double (*clock)(void *user);                   /* microseconds since any fixed moment; required
                                                      if `microseconds` is above 0. The call ends if
                                                      it goes back, or returns NaN */
    void *clock_user;
} jem_budget;
/* Creates a sampler whose images are the noise from which desc starts. Copies rng; the steps draw
   from the copy as many numbers as jem_generate would. Watch functions of desc are not called.
   logp's user must stay valid. Returns NULL on an error. */
JEM_API jem_sampler *jem_sampler_create(jem_ctx *ctx, jem_logp_fn logp, void *user, jem_shape shape,
                                        const jem_generate_desc *desc, const jem_rng *rng);
JEM_API void jem_sampler_free(jem_sampler *s);                           /* NULL is allowed */
/* Takes steps within the budget, or all that are left if it is NULL. On an error the images stay as
   they were before the call. A number in s->x that is not finite is an error. */
JEM_API jem_status jem_sampler_step(jem_sampler *s, const jem_budget *budget);
/* Restarts the sampler from noise drawn from s->rng, which advances; logp and labels stay the same.
   To repeat the samples, first set s->rng to the sequence that the sampler was created with
   (jem_net_sampler: jem_rng_seed(seed)). To store a sampler and continue it later, with the same
   bits, create one with the same arguments, set its labels if jem_sampler_set_labels has changed
   them, and copy x, rng and step to it. On an error, x, rng and step stay the same. */
JEM_API jem_status jem_sampler_restart(jem_sampler *s);

/* Replay buffer: the current states of `capacity` Markov chains, one in each slot, whose walks
   continue from update to update (persistent contrastive divergence, Tieleman 2008). With
   classes > 0, each class has the same number of slots, capacity/classes, which must be at least 1:
   those of class y begin at y*(capacity/classes). Draws by label do not use the slots that are left
   over. data[capacity][c][h][w] and visits[capacity] belong to the buffer. */
typedef struct jem_buffer {
    jem_ctx *ctx;
    int capacity, channels, height, width, classes;
    float *data;
    int *visits;                                   /* walks since the chain's start; -1: the slot is
                                                      empty */
    float lo, hi;                                  /* -1, 1: chains start from U(lo,hi) */
} jem_buffer;
/* Creates a buffer whose chains all start from U(-1,1); NULL on an error. jem_buffer_restart
   restarts all of them from U(lo,hi), lo < hi, which also applies to later restarts; checkpoints do
   not store lo and hi (a trainer takes them from restart_lo and restart_hi in its desc). Both
   advance rng. */
JEM_API jem_buffer *jem_buffer_create(jem_ctx *ctx, int capacity, int channels, int height,
                                      int width, int classes, jem_rng *rng);
JEM_API void jem_buffer_free(jem_buffer *buffer);                        /* NULL is allowed */
JEM_API jem_status jem_buffer_restart(jem_buffer *buffer, jem_rng *rng, float lo, float hi);
/* Draws n chains into x[n][c][h][w] and their slots into slot[n]: without labels from all slots,
   with labels[n] (of a buffer with classes) each from the slots of its class. Each restarts from
   U(lo,hi) with the probability `reinit`, 0..1. If one slot gives several chains, some may restart
   while others continue: its visits become those of the last one. Advances rng. */
JEM_API jem_status jem_buffer_draw(jem_buffer *buffer, jem_rng *rng, int n, const int *labels,
                                   float reinit, float *x, int *slot);
/* Stores chains x[n][c][h][w] after a walk in slot[n], and adds 1 to the slots' visits; if a slot
   occurs more than once, only its last chain is stored and counted. */
JEM_API jem_status jem_buffer_put(jem_buffer *buffer, int n, const int *slot, const float *x);

/* ---- exact samplers -------------------------------------------------------------------------- */

/* A Langevin step has a bias that grows with its size. If a proposal x' is accepted with
   probability min(1, ratio) and otherwise rejected (Metropolis et al. 1953; Hastings 1970), the
   chains converge to p exactly. These samplers differ only in the count of `leapfrog` steps before
   each decision (Neal 2011, section 5):
       0   random-walk Metropolis, which needs no gradient: x' = x + step_size N(0,I)
       1   MALA: the Langevin step of jem_sgld_desc_langevin(step_size^2, ..), made exact
       L   Hamiltonian Monte Carlo: x' follows Hamilton's equations from x, with momentum N(0,I),
           for a time of L step_size
   tools/support/measures.h computes the effective sample size of their chains. */
typedef struct jem_mcmc_desc {
    int steps;                                     /* 1000: proposals */
    float step_size;                               /* .1 */
    int leapfrog;                                  /* 1 */
    int temperatures;                              /* 1; more: replica exchange, see below */
    float hottest;                                 /* 10: highest temperature, 1 to 1e30 */
    float *swapped;                                /* NULL, or [temperatures - 1]: see below */
    int (*watch)(void *user, int step, jem_tensor *x);                 /* as in jem_sgld_desc, but
                                                                          must not write x */
    void *watch_user;
} jem_mcmc_desc;
JEM_API jem_mcmc_desc jem_mcmc_desc_default(void);
/* Walks each image of the leaf x, in place, as a separate chain. accepted[n] (may be NULL) receives
   each chain's acceptance rate. In many dimensions, the best rate is .23 with leapfrog 0 (Roberts,
   Gelman & Gilks 1997), .57 with 1 (Roberts & Rosenthal 1998), .65 with more (Beskos et al. 2013).
   Returns JEM_DIVERGED if log p of an image is not finite at the start. If logp fails, x may hold a
   proposal. */
JEM_API jem_status jem_mcmc(jem_ctx *ctx, jem_logp_fn logp, void *user, jem_tensor *x,
                            const jem_mcmc_desc *desc, jem_rng *rng, float *accepted);
/* Replica exchange, for modes that single chains do not connect (Swendsen & Wang 1986; Geyer 1991):
   image i is walked at temperature T = hottest^(k/(temperatures - 1)), k = i % temperatures, on
   p^(1/T), with sqrt(T) times the step size; n must be a multiple of temperatures. After each
   proposal, neighbours swap with probability min(1, (p(x')/p(x))^(1/T - 1/T')), alternating between
   even and odd pairs; .swapped receives their swap rates. Chains with k = 0 converge to p. The
   hottest chains should move freely between modes, and each swap rate should exceed .2. Annealed
   SGLD (jem_sgld_desc.temperature_from) is cheaper, but not exact. */

/* Annealed importance sampling (Neal 2001): estimates Z in p(x) = exp(logp(x))/Z. Weighted chains
   move from q = N(mean, std^2 I) to p through q^(1-b) p^b, with b = (k/levels)^2 at level k. The
   expected weight is Z for any number of levels; more levels reduce the noise of the estimate. */
typedef struct jem_ais_desc {
    int levels;                                    /* 500; at least 1 */
    float mean, std;                               /* 0 (-1e4 to 1e4), 1 (1e-15 to 1e15): of q,
                                                      which should cover p */
    jem_mcmc_desc walk;                            /* at each level: 1 proposal of 5 leapfrog steps
                                                      of .1. temperatures must be 1; a watch stops
                                                      the proposals of one level */
} jem_ais_desc;
typedef struct jem_ais_result {
    double log_z;
    double error;                                  /* standard deviation of log_z, estimated from
                                                      the chains' weights; an underestimate if
                                                      `effective_chains` is below 10. HUGE_VAL for
                                                      a single chain */
    double effective_chains;                       /* effective sample size, at most the number of
                                                      chains; below 10, use more levels or chains */
} jem_ais_result;
JEM_API jem_ais_desc jem_ais_desc_default(void);
/* Estimates log Z with one chain per image of the leaf x. Ignores the content of x, and replaces it
   by the final states of the chains. rng is required. Writes the result only on success. log p must
   be finite wherever the chains start: outside the support of p, use about -1e4 instead of minus
   infinity. */
JEM_API jem_status jem_ais(jem_ctx *ctx, jem_logp_fn logp, void *user, jem_tensor *x,
                           const jem_ais_desc *desc, jem_rng *rng, jem_ais_result *result);

/* ==== >>optim: Adam, SGD, Muon, schedules ===================================================== */

typedef enum jem_optimizer { JEM_OPTIMIZER_ADAM = 0, JEM_OPTIMIZER_SGD,
                             JEM_OPTIMIZER_MUON } jem_optimizer;

typedef struct jem_optim_desc {
    jem_optimizer kind;                            /* JEM_OPTIMIZER_ADAM */
    float beta1, beta2, eps;                       /* .9, .999, 1e-8: Adam's (Kingma & Ba 2015);
                                                      beta1, beta2, muon_momentum, ema < 1;
                                                      eps > 0 */
    float momentum;                                /* 0; 0..1: SGD's, PyTorch's convention */
    float weight_decay;                            /* 0; L2 added to the gradient; Muon: below */
    float clip;                                    /* 0: off; else limits the gradient's L2 norm */
    float ema;                                     /* 0: off; else a running average of the
                                                      weights: each update counts 1 - ema, and
                                                      update t, from 0, at least 10/(t + 10), so
                                                      that the first weights are soon forgotten.
                                                      Running statistics are not averaged */
    const char *only;                              /* NULL: all parameters; else those whose names
                                                      begin with this; read at creation only */
    /* Muon (Jordan et al. 2024): five Newton-Schulz steps replace the momentum of a weight matrix,
       (O,I) or (O,I*k*k), by nearly the closest matrix with orthonormal rows or columns, so that
       every direction is learned at the same rate. A step is this matrix, with singular values of
       about .7 to 1.2, times .2 sqrt(max(rows, columns)) lr. It changes a weight by about .2 lr
       (rms), as Adam does (Liu et al. 2025), so one rate can serve both: Adam updates biases,
       norms, weights of a single row or column, and those whose names contain `adam_names`. Weight
       decay is decoupled, and for the matrices only: a step multiplies them by
       1 - lr * weight_decay, which must not be negative. */
    float muon_momentum;                           /* .95, Nesterov's */
    const char *adam_names;                        /* "output", for the last layers; NULL or "":
                                                      Muon updates all other matrices; read at
                                                      creation only */
    float adam_rate;                               /* 1; Muon: Adam's rate, in units of lr, up to
                                                      1e6 */
} jem_optim_desc;
JEM_API jem_optim_desc jem_optim_desc_default(void);

typedef struct jem_optim jem_optim;
/* Creates an optimiser of the trainable parameters of a network, which it does not own; free it
   before the network. NULL if a field of desc is out of its range, or no parameter is selected. A
   trainable parameter added to the network afterwards is an error of jem_optim_step. */
JEM_API jem_optim *jem_optim_create(jem_net *net, const jem_optim_desc *desc);
JEM_API void jem_optim_free(jem_optim *opt);                             /* NULL is allowed */
/* Updates the net's parameters from their gradients, which remain (scaled, if clipped); lr is the
   rate, 0..1e9. grad_norm (may be NULL) receives their norm before clipping. If this norm plus that
   of weight_decay times the parameters is not finite or above 1e18, returns JEM_DIVERGED, and no
   parameter is updated. With Muon, lr * weight_decay above 1 is JEM_BAD_ARGUMENT. Nothing changes
   while the context has an error. */
JEM_API jem_status jem_optim_step(jem_optim *opt, float lr, float *grad_norm);
/* If on is 1, puts the averaged weights (ema) into the net, and keeps the trained ones. If on is
   0, or if ema is 0, puts the trained ones back, even if another optimiser of this net keeps them;
   jem_optim_step and jem_net_load also do that. Before the first update, the averages equal the
   weights. The call swaps the pointers jem_param.value, so read them again; it does not swap
   gradients. If the averages are in the net, jem_optim_free leaves them there, and frees the
   trained weights. Returns JEM_BAD_ARGUMENT if opt is NULL. */
JEM_API jem_status jem_optim_use_average(jem_optim *opt, int on);

typedef enum jem_schedule_kind { JEM_SCHEDULE_CONSTANT = 0, JEM_SCHEDULE_STEPS,
                                 JEM_SCHEDULE_COSINE } jem_schedule_kind;
/* Learning rate as a function of the update. */
typedef struct jem_schedule {
    jem_schedule_kind kind;                        /* JEM_SCHEDULE_CONSTANT */
    int warmup;                                    /* 0; updates over which the rate rises linearly
                                                      to lr */
    int total;                                     /* 0; length of the run in updates, required for
                                                      a cosine */
    float floor;                                   /* 0; learning rate at the end of a cosine's
                                                      period, as a fraction of that at its start */
    float rate;                                    /* 0; factor (not a learning rate) that applies
                                                      at each of `at`; above 0 if `at` is used */
    int at[4];                                     /* 0: unused; else updates. STEPS: at each of
                                                      them, the learning rate is multiplied by
                                                      `rate`. COSINE: at each of them, a cosine ends
                                                      and the next one starts, with warm-up, from
                                                      `rate` times the previous start (Loshchilov &
                                                      Hutter 2017) */
} jem_schedule;
/* Returns the rate of update number `update`, from 0. lr is the rate that the schedule multiplies;
   without a schedule (NULL), returns lr. */
JEM_API float jem_learning_rate(const jem_schedule *schedule, float lr, int update);

/* ==== >>train: one step at a time ============================================================= */

/* Sums x[n] over all processes (ranks), in place, as MPI_Allreduce does. x belongs to the library.
   The function may call jem_fail; after that it may still be called once.

   To train one model on several machines, run the same program with the same data on each, with its
   own jem_train_desc.rank. A rank computes its share of an update's images and chains. The function
   is called for new samples (restart_denoise), for the chains after their walk, and, before the
   optimiser's step, for one array of the gradients, the buffers and the numbers of jem_stats. So
   all ranks have the same state, including chains: any of them can save it, and any number of them
   can continue from it. With whole groups of 16 images per rank, the result is that of one process
   up to rounding, except with batch norm.

   If the network has buffers (jem_param), those of rank 0 are kept, each rank computes the whole
   first update, and the function is not called for it. Divergence on one rank is divergence on all.
   After any other error (no memory, a term that fails), this rank stops, and the others diverge or
   block: end them, as examples/mpi.c does. */
typedef void (*jem_sum_fn)(void *user, float *x, ptrdiff_t n);

/* Inputs of a loss term of your own, on the tape; an input that the update does not have is NULL.
   x, x_data and sample are leaves, so a term may differentiate (jem_grad, jem_slope_along). Do not
   write to them or walk them, since other terms read them: copy them (jem_read, jem_input). With
   several ranks, each has its own share of images, except in the first update of a network with
   buffers (see jem_sum_fn). */
typedef struct jem_term_inputs {
    jem_net *net;
    jem_tensor *x;                                 /* labelled images, as used by cross-entropy */
    const int *labels;                             /* labels of x */
    jem_tensor *logits;                            /* f(x), as jem_forward returns in training */
    jem_tensor *x_data;                            /* images for p(x): x, or images of their own */
    jem_tensor *sample;                            /* chains after their walk */
    jem_rng *rng;                                  /* source of the term's random numbers, the same
                                                      on every rank; jem_add_noise gives the images
                                                      of each rank noise of their own */
} jem_term_inputs;
/* Builds one number on the tape, preferably a mean over images; the update adds w_term times this
   number to the loss. Called once per update; NULL is an error. */
typedef jem_tensor *(*jem_term_fn)(const jem_term_inputs *in, void *user);

/* Settings of a training run. The defaults are those of the paper, with two differences: they lack
   its schedule (kind STEPS, warmup 1000, rate .3, at the updates of epochs 160 and 180 of 200), and
   they add the guard, which max_rollbacks = 0 turns off. The batch size may vary from one update to
   the next. */
typedef struct jem_train_desc {
    float lr;                                      /* 1e-4 */
    jem_schedule schedule;                         /* constant, no warm-up */
    jem_optim_desc optim;                          /* Adam */
    jem_loss_weights weights;                      /* ce 1, cd 1, cd_class 0, energy_l2 0 */
    float w_score;                                 /* 0; weight of score matching (>>losses), which
                                                      runs the network in evaluation mode */
    float w_nce;                                   /* 0; weight of noise-contrastive estimation
                                                      (Gutmann & Hyvarinen 2010), which learns to
                                                      distinguish vectors from as many draws of the
                                                      network's Student distribution. log p(x) then
                                                      needs no constant Z. Only for networks with
                                                      `student` and jem_net_fit_units */
    float w_kl, kl_entropy;                        /* 0, 1; weights of L_KL, and of H within L_KL;
                                                      for images, .3/(c*h*w) (see jem_kl_walk) */
    /* 0, NULL; weight of a loss term of your own, and the term: give both. (To maximise it, negate
       the term.) Checkpoints contain neither the term nor its data, and the guard does not restore
       its data. To resume, give the same term. */
    float w_term;
    jem_term_fn term;
    void *term_user;
    /* 0: off; else sharpness-aware training (Foret et al. 2021; Yang, Su & Ji 2023): the gradient
       is computed at this distance from the weights, in the direction in which the loss increases
       most. Not with w_score. sam and w_kl need ranks = 1. */
    float sam;
    float data_noise;                              /* .03: std of the noise added to images of p(x)
                                                      and, unless the next two fields are set, of
                                                      cross-entropy; not of score matching */
    /* 0, 0: noise in labelled images (labels are not changed). If either is > 0, cross-entropy uses
       noisy images of its own: label_all_noise is the fraction of them, 0..1, that get the noise
       levels of score matching; the std of the noise of the others is drawn from U(0, label_noise).
       A network that recognises classes in noise can generate samples of a given class, and its
       samples are better. Not with weights.cd_class. */
    float label_noise, label_all_noise;
    float label_smoothing;                         /* 0; fraction of cross-entropy's target that is
                                                      shared by all classes (Szegedy et al. 2016) */
    float noise_lo, noise_hi;                      /* .12, 2: noise levels of score matching, up to
                                                      1e5; for vectors of a few values, both equal
                                                      (>>losses) */
    int cd_from;                                   /* 0; index of the first update with chains.
                                                      Above 0, a term without chains needs a
                                                      weight: ce, energy_l2, w_score, w_nce or
                                                      w_term */
    jem_sgld_desc sgld;                            /* 20 steps of 1, noise .01. With chains at the
                                                      temperature T, contrastive divergence fits
                                                      p^(1/T) to the data; for a calibrated log p(x)
                                                      use T = 1 (jem_sgld_desc_langevin) */
    int negatives;                                 /* 64: chains per update; 0: one per data
                                                      image */
    int buffer_size;                               /* 10000 */
    float reinit;                                  /* .05: probability that a chain restarts */
    float restart_lo, restart_hi;                  /* -1, 1: it restarts from U(lo,hi), lo < hi, the
                                                      range of data in the network's units */
    /* 0 steps. If steps > 0, chains start from noise-blind samples instead. The first update with
       chains fills the buffer with copies of new samples: as many as the update has chains, but at
       least 64 and two of each class. From then on, every 1/reinit updates (never, if reinit is at
       most 1e-6), as many new samples as the update has chains replace random slots. */
    jem_denoise_desc restart_denoise;
    /* NULL, or called before the walk for each drawn chain x[c][h][w], in the network's units. May
       change x: replace it if visits (walks since its start) is 0, or augment it as data are
       augmented (Du, Li, Tenenbaum & Mordatch 2021). label: the chain's class, or -1. Every rank
       makes the same calls and must compute the same x: draw all random numbers from rng. */
    void (*chain)(void *user, jem_rng *rng, int visits, int label, float *x);
    void *chain_user;
    int class_conditional;                         /* 0; 1: each chain has a class y, that of a
                                                      labelled image of the update (a random one
                                                      if there are none); it uses the slots of that
                                                      class, and walks by log p(x,y), so it samples
                                                      p(x|y). weights.cd_class > 0 has the same
                                                      effect. Not for a network with log_density */
    /* 0: off. Else, while the mean gap (jem_stats.gap) exceeds pause_gap times the network's scale,
       the contrastive terms have no weight, and chains walk on and catch up. Without a limit, a
       network can learn to separate samples from data faster than the samples can improve. Energy
       Matching (Balcerak et al. 2025) bounds this loss from below instead. Needs w_score. Must be
       below max_gap; up to max_gap/20, pauses end in states that the guard keeps. */
    float pause_gap;
    float max_loss;                                /* 1e8: an update whose |loss| is above this has
                                                      diverged */
    /* The guard copies the trainer's state when it is good, and restores the copy (a rollback) when
       training fails. A state is good if all its numbers are finite, |gap| (jem_stats.gap) is at
       most max_gap/20 times |jem_net.scale|, and the mean residual of the score is at most three
       times its lowest. The first good state is copied, then a good one after every 100th update.
       A rollback follows if
           the update diverges;
           |gap| exceeds max_gap times |jem_net.scale|;
           the mean cross-entropy was below 3/4 log(classes), and returns to log(classes), that of a
           guess (six times at most: then the labels count as unlearnable);
           the mean residual was below .5, and exceeds .9;
           the gradient's norm, after clipping, is a thousand times its mean;
           nine tenths of the chains' values are far from all images: at a clamp more than 1.5 times
           as wide as restart_lo .. restart_hi or, without such a clamp, ten half widths of that
           range from its middle, and twice as far from it as any value of the images;
           the chains are nearly equal: their variance is below .02 of that of the images, and
           below .02 of the square of half that range;
           or a step of SGLD moves them by a quarter of that range (measured every 20 updates).
       Chains are compared with images if 8 or more have walked, and the batch has 8 or more images.

       After a rollback, training draws different random numbers. Each rollback from the second on
       also halves the learning rate, which recovers, and the step of SGLD, which does not (the
       noise shrinks with it, at the same temperature). If the step was too wide, only the step is
       shortened; it grows again when the gradients allow it. The copy takes as much memory as
       parameters, optimiser and buffer, and is part of checkpoints. Before the first copy,
       divergence is an error, and the other conditions have no effect. */
    float max_gap;                                 /* 100; without chains, the gap is 0 */
    int max_rollbacks;                             /* 20; the next one is an error. 0: no guard */
    float least_scale;                             /* 0; a smaller |jem_net.scale| is an error,
                                                      except for a network with a shift */
    uint64_t seed;                                 /* 1; a network with the same seed uses
                                                      other random numbers */
    int rank, ranks;                               /* 0, 1; index of this process, and their count,
                                                      which must divide negatives and batches */
    jem_sum_fn sum;                                /* NULL; examples/mpi.c has MPI_Allreduce */
    void *sum_user;
} jem_train_desc;
JEM_API jem_train_desc jem_train_desc_default(void);
/* Returns the desc for a run of this many updates with batches of 64 small images in [-1,1], and a
   network with scale = 10: score matching by Muon first, chains in the last two fifths. It is
   faster than chains alone, and gives better samples. Its least_scale is 2: it rejects a network
   with the default scale of 1 and no shift, which cannot learn a score. Weights are averaged:
   jem_trainer_use_average(trainer, 1) at the end puts the averages into the network. Its chains
   have a temperature of 1/2: their term, which has a small weight, fits p^2 to the data, and score
   matching fits p. */
JEM_API jem_train_desc jem_train_desc_score(int updates);
/* Returns the desc for a run of this many updates, 2000 for example, with batches of 64 vectors and
   a network of jem_mlp_desc_vectors that has units (jem_net_fit_units): noise-contrastive
   estimation, no chains, averaged weights (as above). Z is learned, too: log p(x) becomes
   normalised. For data without labels, create the network with classes = 1, and give each vector
   the label 0. */
JEM_API jem_train_desc jem_train_desc_vectors(int updates);

/* Result of an update. Terms of the loss are given without their weights, and are 0 if they are not
   computed: cd and f_sample without chains; score, residual and kl if their weights are 0; f_data
   if p(x) has images of its own (unlabelled ones, or with w_term and label_noise or
   label_all_noise), and neither chains nor energy_l2 use them. */
typedef struct jem_stats {
    jem_status status;
    int update;                                    /* from 0 */
    float loss, ce, cd;                            /* cd = f_sample - f_data; cd_class and
                                                      energy_l2 are part of loss only */
    float score, residual, kl;                     /* see jem_score_matching, jem_kl_walk */
    float term;                                    /* your own (jem_train_desc), without weight */
    float nce;                                     /* log 4 if it cannot separate data and draws */
    float f_data, f_sample;                        /* mean log p(x) + log Z of data and of samples,
                                                      f(x+) and f(x-) in messages */
    float accuracy;                                /* of this batch, 0..1 */
    float lr, grad_norm;                           /* lr: after the guard's reductions; grad_norm:
                                                      before clipping */
    float gap;                                     /* running mean of f_data - f_sample, over about
                                                      ten updates */
    int rolled_back;                               /* 1: the guard rolled back at this update; 0 if
                                                      it did so for the last time, after
                                                      max_rollbacks (status: JEM_DIVERGED) */
    int rollbacks;                                 /* rollbacks so far, at most max_rollbacks */
    const char *reason;                            /* cause of a rollback, the last one included, or
                                                      ""; belongs to the trainer, valid until the
                                                      next update */
} jem_stats;

typedef struct jem_trainer jem_trainer;
/* Creates a trainer. It does not own the net, and must be freed before it. NULL after an error,
   which names the field of desc that is out of its range, or the rule that the fields violate. */
JEM_API jem_trainer *jem_trainer_create(jem_net *net, const jem_train_desc *desc);
JEM_API void jem_trainer_free(jem_trainer *tr);                          /* NULL is allowed */
/* Makes one update from n labelled images x[n][c][h][w], labels[n] in 0..classes-1. The images must
   be in random order: noise levels ascend from the first image of a batch to the last. Values of x
   must be in -10^4 .. 10^4 or, if the network has units, in -3.4e38 .. 3.4e38, as in every function
   that takes images of a network. Parameters that were added to the network after the trainer are
   an error. First puts the trained weights back (see jem_trainer_use_average).

   After an error the weights are as before, but random numbers may have been drawn, so the same
   update again has other bits unless a checkpoint is restored. If memory runs out while the guard
   measures the chains, the update is complete (jem_trainer_updates counts it). To cancel training,
   stop between two updates.

   After a rollback, status is JEM_OK, rolled_back is 1, and the count of updates is that of the
   restored state; the other numbers are those that led to the rollback (0 if not finite); the
   context's log receives a note. When a rollback is due after max_rollbacks of them, the state is
   restored as well, but status is JEM_DIVERGED. */
JEM_API jem_stats jem_train_step(jem_trainer *tr, const float *x, const int *labels, int n);
/* Does the same with other images for p(x), x_unlabelled[n_unlabelled][c][h][w], without labels; n
   may then be 0. With n_unlabelled = 0, the labelled images are used. */
JEM_API jem_stats jem_train_step_semi(jem_trainer *tr, const float *x, const int *labels, int n,
                                      const float *x_unlabelled, int n_unlabelled);
/* Returns the chains, which belong to the trainer; NULL if it needs none. */
JEM_API jem_buffer *jem_trainer_buffer(jem_trainer *tr);
JEM_API int jem_trainer_updates(const jem_trainer *tr);                  /* made so far */
/* Calls jem_optim_use_average: on = 1 to evaluate or save the averaged weights, 0 to continue
   training. */
JEM_API jem_status jem_trainer_use_average(jem_trainer *tr, int on);
/* Switches to different random numbers, to try again from a good checkpoint after JEM_DIVERGED. */
JEM_API void jem_trainer_reseed(jem_trainer *tr, uint64_t seed);
/* Replaces desc.lr, and undoes the guard's reductions of the learning rate; the schedule still
   applies. If lr is not above 0, or is above 1e9, nothing changes. Checkpoints do not contain the
   new lr: give it in the desc of a resumed run. */
JEM_API void jem_trainer_set_lr(jem_trainer *tr, float lr);

/* ==== >>familiar: calibration, familiarity, out-of-distribution scores ======================== */
/* Detects images unlike the training data. Familiarity is a p-value: the fraction of calibration
   images that are stranger. It combines statistics of the logits, log p(x), its slopes, the last
   layer's features and the image itself, each compared with calibration images of the same
   predicted label. A single cut-off therefore serves all networks: of new images like those of the
   calibration, 1 in 100 has a familiarity below .01. */

/* Verdicts by familiarity; the limits are the same for all networks. */
typedef enum jem_verdict {
    JEM_VERDICT_NONE = 0,      /* the network is not calibrated */
    JEM_VERDICT_FAMILIAR,      /* familiarity is .1 or more */
    JEM_VERDICT_ODD,           /* below .1 */
    JEM_VERDICT_STRANGE        /* below .01 */
} jem_verdict;
/* Returns the verdict on a familiarity: JEM_VERDICT_NONE if it is negative or NaN. */
JEM_API jem_verdict jem_judge(float familiarity);
/* Returns "not calibrated", "familiar", "odd", "strange" or "unknown". The string is static. */
JEM_API const char *jem_verdict_name(jem_verdict verdict);

/* Reason of the verdict "odd" or "strange": the statistic that contributed most to it. */
typedef enum jem_reason {
    JEM_REASON_NONE = 0,   /* familiar, not calibrated, or calibrated without "jem.statistics" */
    JEM_REASON_CLASSES,    /* logits unlike those of any class, for instance between two */
    JEM_REASON_DENSITY,    /* log p(x) */
    JEM_REASON_SMOOTH,     /* fewer details than its class has */
    JEM_REASON_EDGES,      /* more details, or different ones */
    JEM_REASON_SLOPE,      /* the slope of log p(x), without or with noise */
    JEM_REASON_FEATURES,   /* the last layer's features */
    JEM_REASON_VALUES,     /* of a vector: its numbers */
    JEM_REASON_SHADES,     /* shares of dark and bright pixels, flat ones, the border, colours */
    JEM_REASON_LAYOUT,     /* where it is dark and bright, its symmetry, its edges' directions */
    JEM_REASON_BLANK       /* the picture has a single colour (JEM_DID_BLANK); only in answers of
                              jem_classify_pixels, where it replaces the other reasons */
} jem_reason;
/* Returns the reason in words, such as "too smooth for its class"; "" for JEM_REASON_NONE,
   "unknown" for a value that is not in the enum. The string is static. */
JEM_API const char *jem_reason_name(jem_reason reason);

#define JEM_AUTO (-1)      /* for jem_calibrate: as many gradients as cost little, which is 1 */
/* Stores statistics of n images x[n][c][h][w], n >= 2, from which jem_answer.familiarity is
   computed. The images must resemble those to be judged, and should not have been used in training.
   p-values are accurate from about 500 images on; more images resolve smaller p-values. With fewer
   than 100, more than one usual image in a hundred is judged strange. The
   calibration is saved with the network, as the texts "jem.statistics", "jem.usual" and
   "jem.familiar". Calibrate again after training, which does not update it, and when the conditions
   change (another season, another camera); otherwise new images are judged strange. After an error,
   the previous calibration remains.

   gradients: the cost of an answer, in gradients of log p(x):
       0              uses logits, features (if the network has them) and the image itself
       1 or JEM_AUTO  adds the slope at the image, from the same pass: a batch then takes less than
                      three times the time of its logits
       2              adds the slope at an image with noise of std noise_lo
       3              adds the slope at an image with noise of std 4 noise_lo
   2 and 3 are only for networks that have learned a score.

   Of vectors (height and width 1), the numbers are compared instead of details: each of them, or
   their variance if there are more than 32; the centre of the data is familiar. To detect anomalies
   in sensor data, use jem_mlp_desc_vectors, jem_net_fit_units, jem_train_desc_vectors, and
   jem_calibrate with rows that were held out (examples/vectors.c; compared with scikit-learn in
   tests/tools/sklearn_sensors.py). A calibration from a file of an older version still works, with
   fewer statistics.

   Errors: n < 2; more than 32768 classes; gradients out of range, or above 1 without a score;
   numbers that are not finite; log p(x) or a mean logit of 1e8 or more in absolute value;
   statistics that a file cannot hold (above 1e12). */
JEM_API jem_status jem_calibrate(jem_net *net, const float *x, int n, int gradients);
/* Returns how many gradients of log p(x) an answer of jem_classify costs: 0 to 3, and 0 for a
   calibration from an early version, without "jem.statistics"; -1: not calibrated. */
JEM_API int jem_calibrated(const jem_net *net);

/* Scores of images, higher for more familiar ones. (Not the score that a network learns, which is
   the gradient of log p, see >>losses.) */
typedef enum jem_ood {
    JEM_OOD_LOGP = 0,      /* log p(x) */
    JEM_OOD_MAXP,          /* the highest p(y|x), as log odds (Hendrycks & Gimpel 2017) */
    JEM_OOD_MASS,          /* -||d log p(x)/dx||: approximate mass (Grathwohl et al.
                              2020). MASS and MOVE are in the network's units */
    JEM_OOD_RISE,          /* minus the gain of log p(x) during a walk without noise */
    JEM_OOD_MOVE,          /* minus the distance between its start and end */
    JEM_OOD_USUAL,         /* minus the Mahalanobis distance of (log p(x), mean logit) from those of
                              calibration images that get the same label. This and the rest require
                              jem_calibrate */
    /* The next four are in the order of the parts of a calibration, see >>familiar. */
    JEM_OOD_SLOPES,        /* minus the Mahalanobis distance of logits, log p(x), slopes, details
                              and, of images, the layout, standardised by label (Mahmood, Oliva &
                              Styner 2021; Lee et al. 2018) */
    JEM_OOD_FEATURES,      /* relative Mahalanobis distance (Ren et al. 2021) of the last layer's
                              features and the numbers of SLOPES except the layout */
    JEM_OOD_IMAGE,         /* the details of the image alone; of the network, only the label */
    JEM_OOD_SHADES,        /* dark and bright pixels of the image, its flat ones, its border and its
                              colourfulness, regardless of the label: log density of a mixture */
    JEM_OOD_FAMILIAR       /* SLOPES, FEATURES, IMAGE and SHADES combined; familiarity is the rank
                              of this score among those of the calibration images */
} jem_ood;
/* Writes a score per image of x[n][c][h][w], n from 0, to score[n]. walk: the walk of RISE and
   MOVE, whose noise is omitted; NULL: 10 steps of 1, or of noise_lo^2 for a network trained by
   score matching. Errors: no calibration where one is required; FEATURES of a network without
   features; SHADES of vectors, or with a calibration of an older version; scores that are not
   finite (JEM_DIVERGED). tools/support/measures.h computes AUROC. */
JEM_API jem_status jem_ood_score(jem_net *net, jem_ood kind, const jem_sgld_desc *walk,
                                 const float *x, int n, float *score);

/* ==== >>eval: classify, accuracy, temperature ================================================= */

/* Answer of jem_classify for one image. */
typedef struct jem_answer {
    int label;             /* predicted class, 0..classes-1 */
    float probability;     /* p(label|x), at the network's temperature */
    float log_density;     /* log p(x), in nats, up to a constant that is the same for all images;
                              normalised, in units of x, if the network has learned by
                              noise-contrastive estimation (jem_train_desc_vectors) */
    float familiarity;     /* fraction of calibration images that are stranger, 0 to 1; see
                              >>familiar and jem_judge. -1: not calibrated */
    jem_reason reason;     /* why it is odd or strange */
} jem_answer;
/* Classifies x[n][c][h][w], n from 0; writes one answer per image. An image gets the same answer in
   any batch, up to rounding (see jem_precision). x has the same range as in jem_train_step. Returns
   JEM_DIVERGED if logits or log p(x) are not finite; after an error, answers are undefined. */
JEM_API jem_status jem_classify(jem_net *net, const float *x, int n, jem_answer *answers);
/* Returns the fraction of the images x[n][c][h][w], n > 0, that get labels[n]; -1 on an error. */
JEM_API float jem_accuracy(jem_net *net, const float *x, const int *labels, int n);
/* Writes the logits of x[n][c][h][w], n from 0, to f[n][classes], which is yours; they are not
   divided by the fitted temperature. Returns JEM_BAD_ARGUMENT for values of x that are out of range
   (see jem_train_step), JEM_DIVERGED if logits or log p(x) are not finite. */
JEM_API jem_status jem_logits(jem_net *net, const float *x, int n, float *f);
/* Finds the values that make vectors x[n][channels] unlikely (height and width 1), such as that of
   a failed sensor. gain[n][channels] receives the rise of log p(x), at least 0, that results if
   this value alone is replaced by its most likely one; better[n][channels] (may be NULL) receives
   that replacement, in units of x. If a single value is wrong, its gain is usually the largest.
   The search covers -3 to 3 in the network's units, so fit those first (jem_net_fit_units): 64
   values in steps of .094, one of which is 0, the mean, then 64 more within a step of the best one,
   the original included. If no value is more likely, the original stays, with a gain of 0. Each
   value of x costs 128 evaluations of log p(x). For a normal density of mean m and inverse
   covariance P, the gain is (P (x - m))[i]^2 / (2 P[i][i]). Returns JEM_BAD_ARGUMENT if the network
   is not for vectors, or a value is out of range; JEM_DIVERGED if log p(x) is not finite. */
JEM_API jem_status jem_blame_values(jem_net *net, const float *x, int n, float *gain,
                                    float *better);
/* Fits the temperature T, .01 to 100, that minimises -log p(y|x) of held-out images x[n][c][h][w]
   with labels[n], n > 0, if the logits are divided by T (Guo et al. 2017). Returns T, or -1 on an
   error. From then on, jem_answer.probability is computed at this temperature; labels and log p(x)
   do not change. T is saved with the network, as the text "jem.temperature"; to undo the fit,
   remove this text (jem_net_set_meta). */
JEM_API float jem_fit_temperature(jem_net *net, const float *x, const int *labels, int n);

/* ==== >>uses: attack, imputation, pictures, samples =========================================== */

/* Attack on a classifier: projected gradient descent (Madry et al. 2018) on log p(y|x). */
typedef struct jem_attack_desc {
    float eps;             /* .2: largest distance from the image, in the network's units, as are
                              step_size, lo and hi. HUGE_VALF: no limit; step_size is then
                              required */
    int l2;                /* 0: that distance is L-infinity (each pixel); 1: L2 */
    int steps;             /* 40, at least 1, which without random_start is FGSM (Goodfellow et al.
                              2015) */
    float step_size;       /* 0: 2.5 eps / steps, and eps for a single step */
    int restarts;          /* 1: attempts in all, at least 1 */
    int random_start;      /* 1: anywhere within eps, if that is finite; 0: at the image */
    int all_steps;         /* 0: an image stops at its first success; 1: each attempt takes all its
                              steps, for a `classify` with random answers, whose first error
                              may be due to chance */
    float momentum;        /* 0; 0..1: a step goes along d <- momentum d + g/||g||, where g is the
                              gradient (Dong et al. 2018), so random gradients are averaged */
    int targeted;          /* 0: moves images away from their labels; 1: towards the labels given */
    float least_probability;   /* 0; targeted: done when p(label|x) is the highest, and at least
                                  this */
    float lo, hi;          /* -1, 1: range of pixels; those of x outside it move no further out */
    /* NULL, or the classifier to fool instead of the network, for example one that refines its
       images first. Writes to f[n][classes] the logits of x[n][c][h][w], which is in the network's
       units; and to g[n][c][h][w], if it is not NULL, the gradients with respect to x of log
       p(label|x) or, better for a confident classifier, of the label's log-odds (jem_log_odds). A
       status other than JEM_OK ends the attack. */
    jem_status (*classify)(void *user, const float *x, const int *labels, int n, float *f,
                           float *g);
    void *user;
} jem_attack_desc;
JEM_API jem_attack_desc jem_attack_desc_default(void);
/* Attacks images x[n][c][h][w]. found[n][c][h][w] (may be x) receives, for each, the first image
   that reaches the goal, or the last one tried; fooled[n] (may be NULL), 1 if it does, else 0. An
   image at the goal from the start stays as it is, unless all_steps is 1. rng may be NULL if
   random_start is 0. */
JEM_API jem_status jem_attack(jem_net *net, const float *x, const int *labels, int n,
                              const jem_attack_desc *desc, jem_rng *rng, float *found, int *fooled);

/* Imputation, in up to three phases. If denoise.steps > 0, for a density with a learned score, the
   missing pixels are sampled noise-blind from sigma_max down, while the known ones get the same
   amount of noise. Each step removes most of the noise and adds nearly all of it again, which gives
   the sampled pixels time to agree with the known ones (as in RePaint, Lugmayr et al. 2022). A walk
   follows, for which the known pixels have no noise. If denoise.steps > 0, a last step after the
   walk removes the remaining noise. If the watch of any phase returns nonzero, the imputation ends;
   here, a watch must not write x. jem_net_impute_desc returns the desc for a network. */
typedef struct jem_impute_desc {
    jem_denoise_desc denoise;                      /* 0 steps of fraction .8, beta .019: 300 of them
                                                      leave .01 of the noise. Missing pixels start
                                                      from N(0, sigma_max^2) */
    jem_sgld_desc walk;                            /* 300 steps of 1, noise .01 */
    float lo, hi;                                  /* -1, 1: without denoise, missing pixels start
                                                      from U(lo,hi) or, if lo = hi, as in x */
    float last_sigma;                              /* .25: noise that the last step removes, at
                                                      most; 0: skips it */
} jem_impute_desc;
JEM_API jem_impute_desc jem_impute_desc_default(void);
/* Samples the pixels of the leaf x(n,c,h,w) for which known[n][c][h][w] is 0, in place; the others
   keep their values. Framing would move a picture with missing parts: convert it with subject -1
   (jem_pixels_desc). rng is required. Returns JEM_DIVERGED if x is not finite afterwards. */
JEM_API jem_status jem_impute(jem_ctx *ctx, jem_logp_fn logp, void *user, jem_tensor *x,
                              const float *known, const jem_impute_desc *desc, jem_rng *rng);

/* Pictures as programs have them: 8-bit pixels, row by row from the top left, of `channels` bytes:
   1 grey, 2 grey and alpha, 3 RGB, 4 RGBA (as stb_image gives them). */

/* Ways in which a picture of other proportions fills the network's input, unless it is framed. */
typedef enum jem_fit {
    JEM_FIT_TRAINED = 0,   /* as the training images did (jem_net_set_fit); else as STRETCH */
    JEM_FIT_STRETCH,       /* the whole picture, stretched to fit */
    JEM_FIT_CROP,          /* the largest part in the middle that has the right proportions */
    JEM_FIT_PAD            /* the whole picture, in the middle of the background */
} jem_fit;
typedef struct jem_pixels_desc {                   /* zero means default, NULL is all defaults */
    float lo, hi;                                  /* both 0: -1, 1; values of bytes 0 and 255 in
                                                      x. In a framed picture, the values of ground
                                                      and ink in "jem.framing" replace them, if
                                                      the network stores these */
    int background;                                /* 0: as for the training images; 1 to 255: grey
                                                      with which transparent pixels are blended (see
                                                      jem_pixels_to_floats). If the network stores
                                                      another grey (jem_net_set_background), black
                                                      cannot be requested */
    int invert;                                    /* 0; 1: exchanges dark and bright. No effect on
                                                      a framed picture, whose polarity is always
                                                      that of the training images */
    /* Framing. 0: as in the training images (jem_net_fit_framing), unless the picture has the
       network's size; > 0 (at most 2): share of the image's side that the picture's subject gets;
       < 0: no framing. */
    float subject;
    jem_fit fit;                                   /* JEM_FIT_TRAINED; for a picture of other
                                                      proportions than the network's */
    int frame_all;                                 /* 0; 1: subject 0 frames a picture of the
                                                      network's size, too */
} jem_pixels_desc;
enum {                                             /* flags: changes made to a picture */
    JEM_DID_RESIZE = 1,                            /* it was scaled to the network's size */
    JEM_DID_STRETCH = 2,                           /* its proportions were changed */
    JEM_DID_GREY = 4,                              /* its colours were converted to grey */
    JEM_DID_COLOUR = 8,                            /* its grey was copied to three channels */
    JEM_DID_BLEND = 16,                            /* its alpha channel was blended */
    JEM_DID_INVERT = 32,                           /* dark and bright were exchanged, as requested
                                                      or by framing */
    JEM_DID_FRAME = 64,                            /* the part that shows its subject was cut out */
    JEM_DID_BLANK = 128,                           /* the result has a single colour */
    JEM_DID_OPPOSITE = 256,                        /* the opposite of the background was used */
    JEM_DID_CROP = 512,                            /* it was cut to the network's proportions */
    JEM_DID_PAD = 1024                             /* it was extended to them by the background */
};
/* Framing. In many data sets, such as MNIST, images show one subject on a plain ground, of equal
   size and in the middle. Networks trained on them cannot read a digit that fills the picture, or a
   small one in its corner. Framing, for networks of one channel, cuts out the part of a picture
   that shows its subject as the training images do.

   The ground is the dark or the bright end of the picture's range of greys: the end to which at
   least three quarters of the outermost pixels are closer than a quarter of the range; failing
   that, the end to which at least half of all pixels are that close. Its grey is the median of all
   pixels that are so close to it. A picture without a ground, or with a range below 32 of 256
   greys, remains whole.

   The ink of a pixel is 0 at the ground's grey and 1 at the other end of the range. Pixels with
   more than 1/2 define the bounding box, whose larger side gets the given share of the image's.
   The ink above 1/4 defines the centre of mass, which moves to that of the training images (for
   subject > 0, to the middle). The result is bright on dark, or dark on bright if the training
   images are, with their values of ground and strongest ink. In a picture of more than 2^18 pixels,
   about 2^18 of them determine ground and centre, at least 64 in each row and column. */
/* Measures the framing of n images x[n][1][h][w] of the training data, n > 0, and stores it with
   the network as the text "jem.framing": ground (0 dark, 1 bright), share of the side (median), row
   and column of the centre (means, as shares); then, unless they are -1 and 1, the values of ground
   and strongest ink (medians over the images). Images without a plain border, or of several
   channels, have no framing: the text is removed. */
JEM_API jem_status jem_net_fit_framing(jem_net *net, const float *x, int n);
/* Stores with the network, as the text "jem.fit", how its training pictures of other proportions
   were fitted; JEM_FIT_TRAINED removes it. */
JEM_API jem_status jem_net_set_fit(jem_net *net, jem_fit fit);
/* Stores with the network, as the text "jem.background", the grey, 0 to 255, with which transparent
   pixels of its training pictures were blended; 0 removes it. */
JEM_API jem_status jem_net_set_background(jem_net *net, int background);
/* Converts one picture, height rows of width pixels of `channels` bytes, to x[c][h][w], as
   jem_classify takes it. A picture of the network's size is not framed unless frame_all is 1: black
   on white stays so. Each value is the mean of the area that it covers (of the nearest pixel, if
   the picture is smaller). did (may be NULL) receives the sum of JEM_DID_... If a picture with
   an alpha channel shows nothing on the background, but something on its opposite, 255 minus the
   background, it is blended with the opposite (JEM_DID_OPPOSITE). It shows nothing if its greys
   (for RGBA and a network of 3 channels, those of each colour) span fewer than 32 of 256. Returns
   JEM_BAD_SHAPE if the network does not have 1 or 3 channels; JEM_BAD_ARGUMENT if the picture has
   more than 1e9 bytes, or a field of desc is out of range. After an error, x and did are
   unchanged. */
JEM_API jem_status jem_pixels_to_floats(const jem_net *net, const unsigned char *pixels, int width,
                                        int height, int channels, const jem_pixels_desc *desc,
                                        float *x, int *did);
/* Converts n images x[n][c][h][w] to pixels[n][h][w][c], limited to 0..255 (NaN: 0). The
   network must have 1 or 3 channels. */
JEM_API jem_status jem_floats_to_pixels(const jem_net *net, const float *x, int n,
                                        const jem_pixels_desc *desc, unsigned char *pixels);
/* Classifies one picture: jem_pixels_to_floats, then jem_classify; after the first answer it does
   not allocate. A large picture takes longer to convert than to classify. */
JEM_API jem_status jem_classify_pixels(jem_net *net, const unsigned char *pixels, int width,
                                       int height, int channels, const jem_pixels_desc *desc,
                                       jem_answer *answer, int *did);
/* Returns the desc for sampling a network. With a learned score: noise-blind steps from its largest
   noise, by its denoise_steps and denoise_fraction; a walk whose noise is .1, or the limit of the
   last step if that is less, and whose step size is the square of its noise; a last step that
   removes the remaining noise, at most its last_sigma (if that is 0, 2 noise_lo). Without a score:
   300 steps of SGLD from U(-1,1), with step size and noise of the chains in training or, if they
   are unknown, the paper's 1 and .01; for vectors with a Student distribution and no chains, 1000
   steps of jem_sgld_desc_langevin(.01) from U(-2,2). */
JEM_API jem_generate_desc jem_net_generate_desc(const jem_net *net);
/* Returns the desc for a quick draft: that of jem_net_generate_desc, but with 15 noise-blind steps
   of .3 and a walk of 45, usually a tenth of the steps (quality: tools/BENCHMARKS.md). Without a
   score it is the same as jem_net_generate_desc. */
JEM_API jem_generate_desc jem_net_draft_desc(const jem_net *net);
/* Returns the desc for imputing pixels with a network. With a learned score: 300 noise-blind steps
   from its largest noise; the walk and the last step of jem_net_generate_desc. Without a score: the
   walk of jem_net_generate_desc, within -1..1 for images. */
JEM_API jem_impute_desc jem_net_impute_desc(const jem_net *net);
/* Returns the query for jem_logp_guided. The query points to labels, which must stay valid. Its
   weight is net->guidance. If that is 0, the weight is 7 for a network with a score and a scale
   above 1, which gives clear specimens of a class, and 1 for other networks, which gives p(x,y). */
JEM_API jem_query jem_net_query(jem_net *net, const int *labels);
/* Creates a sampler of n images of classes labels[n] (copied; NULL: any), in the network's units. A
   NULL desc is jem_net_generate_desc's. Free it before the network. Returns NULL on an error. */
JEM_API jem_sampler *jem_net_sampler(jem_net *net, const int *labels, int n, uint64_t seed,
                                     const jem_generate_desc *desc);
/* Gives other classes, labels[s->n] (copied), to a sampler that jem_net_sampler created with
   labels. The steps that are left lead from the present images to the new classes; after the last
   step, call jem_sampler_restart, which starts from noise. Returns JEM_BAD_ARGUMENT, and keeps the
   classes, if the sampler was created without labels, or a label is out of range. */
JEM_API jem_status jem_sampler_set_labels(jem_sampler *s, const int *labels);
/* Draws n samples of a class (label -1: of any) into pixels[n][h][w][c]: jem_net_sampler, run to
   its end. Without a score they start from U(lo,hi) of desc, or U(-2,2) in the network's units if
   it has units (jem_net_fit_units). The same n and seed give the same samples. Errors: n below 1,
   a label that is out of range, a network without 1 or 3 channels (JEM_BAD_SHAPE). */
JEM_API jem_status jem_sample(jem_net *net, int label, int n, uint64_t seed,
                              const jem_pixels_desc *desc, unsigned char *pixels);

/* ==== >>io: safetensors ======================================================================= */
/* Named arrays and metadata in a file: 8 bytes of length, a JSON header, the data
   (github.com/huggingface/safetensors). PyTorch can read these files, and jem.h PyTorch's. */

typedef enum jem_dtype { JEM_DTYPE_F32 = 0, JEM_DTYPE_I32, JEM_DTYPE_I64, JEM_DTYPE_U8 } jem_dtype;
/* A named array. */
typedef struct jem_entry {
    const char *name;      /* UTF-8 */
    jem_dtype dtype;
    int ndim;
    int64_t shape[8];
    const void *data;      /* row-major, native byte order; of a file: aligned to 8 bytes */
    size_t bytes;
} jem_entry;
/* Arrays and metadata in memory. */
typedef struct jem_archive jem_archive;
/* Creates an empty archive. */
JEM_API jem_archive *jem_archive_create(jem_ctx *ctx);
/* Parses the bytes of a file, and copies what it needs: `bytes` may be freed. Returns NULL after an
   error, as for damaged input. Arrays of the dtypes F32, I32, I64 and U8 keep their dtype, F64, F16
   and BF16 become JEM_DTYPE_F32, BOOL becomes JEM_DTYPE_U8. Arrays of other dtypes are skipped,
   with a note to the context's log. */
JEM_API jem_archive *jem_archive_parse(jem_ctx *ctx, const void *bytes, size_t size);
JEM_API void jem_archive_free(jem_archive *a);                           /* NULL is allowed */
/* Return the number of arrays; array i; the array with a name. NULL if there is no such array. They
   belong to the archive. */
JEM_API int jem_archive_count(const jem_archive *a);
JEM_API const jem_entry *jem_archive_at(const jem_archive *a, int i);
JEM_API const jem_entry *jem_archive_find(const jem_archive *a, const char *name);
/* Adds an array with 0 to 8 dimensions. The name (UTF-8, unique) and the shape are copied, the data
   are NOT: they must remain until the archive is written or freed. */
JEM_API jem_status jem_archive_add(jem_archive *a, const char *name, jem_dtype dtype, int ndim,
                                   const int64_t *shape, const void *data);
/* Sets metadata, up to 4096 keys; key and value are UTF-8, and are copied. A NULL value removes the
   key. jem_archive_meta returns a value, which belongs to the archive; NULL without one. */
JEM_API jem_status jem_archive_set_meta(jem_archive *a, const char *key, const char *value);
JEM_API const char *jem_archive_meta(const jem_archive *a, const char *key);
/* Chooses how arrays of JEM_DTYPE_F32 are written from now on: on = 1: as BF16, in half the bytes,
   each number rounded to the nearest, ties to even, which changes it by at most 1/256 of itself, or
   by 5e-41 if that is more; 0: in full, the default. Numbers that would round to infinity become
   the largest bf16, 3.39e38. Reading gives JEM_DTYPE_F32 again. Not for a trainer's archive:
   training would not resume bit for bit. */
JEM_API jem_status jem_archive_set_bf16(jem_archive *a, int on);
/* Exempts the array of this name from jem_archive_set_bf16: it is written in full. Use it for the
   last layer of a network: rounding errors grow with the logits, but p(y|x) depends only on
   their differences. JEM_BAD_ARGUMENT if the archive has no such array. */
JEM_API jem_status jem_archive_keep_f32(jem_archive *a, const char *name);
/* Returns the bytes of the file, and their count in size (may be NULL). They are allocated by the
   context's allocator: free them with jem_release. NULL after an error. */
JEM_API void *jem_archive_to_memory(const jem_archive *a, size_t *size);

#ifndef JEM_NO_STDIO
/* Reads a file, as jem_archive_parse does. NULL after an error, which names the path. On Windows,
   paths are UTF-8 in all functions; one that is not is read in the system's code page. */
JEM_API jem_archive *jem_archive_read(jem_ctx *ctx, const char *path);
/* Writes a file safely, as jem_file_commit does. */
JEM_API jem_status jem_archive_write(const jem_archive *a, const char *path);

/* A file of any kind that replaces another only when it is complete. The file at `path` is never
   half-written, whichever call fails, even if other programs write there. If it exists, it must be
   a regular file and, on POSIX, not a symbolic link; its mode is kept (except for setuid), but not
   its owner. Its name may have at most 242 bytes. On Windows, a file that is open elsewhere cannot
   be replaced. A killed process leaves the temporary file, which may be deleted. After fork, only
   one of the processes may use or free the jem_file. */
typedef struct jem_file jem_file;
/* Creates a temporary file in the folder of path: path.XXXXXXXX.tmp, never an existing file. Copies
   path. Free the result with jem_file_free. Returns NULL after an error, which names the path. */
JEM_API jem_file *jem_file_create(jem_ctx *ctx, const char *path);
/* Appends bytes[size]. If that fails, returns JEM_BAD_FILE, names the path, and removes the
   temporary file: it can no longer be committed. */
JEM_API jem_status jem_file_put(jem_file *f, const void *bytes, size_t size);
/* Syncs the temporary file, renames it to path, and syncs the folder. Fails as jem_file_put does,
   with one exception: if only the folder cannot be synced, it returns JEM_BAD_FILE although the
   file has been replaced. */
JEM_API jem_status jem_file_commit(jem_file *f);
/* Frees f; without a commit, also removes the temporary file. Accepts NULL. */
JEM_API void jem_file_free(jem_file *f);
/* Returns the path of the temporary file, which belongs to f; "" when it no longer exists. */
JEM_API const char *jem_file_temporary(const jem_file *f);
#endif

/* ==== >>checkpoint: networks and trainers in files ============================================ */
/* Add a network's parameters and description (every field of its desc, exactly) to an archive, and
   create a network from an archive: free it with jem_net_free. Loading accepts the descs that
   jem_*_create accepts, and no others. The archive points to the parameters: write it before they
   change. If adding them fails, for instance because a parameter is not finite, the archive has
   only some of them: free the archive. jem_net_from_archive returns NULL after an error, as for a
   file without a description (such as PyTorch's): create the net first, and use jem_net_load. */
JEM_API jem_status jem_net_to_archive(const jem_net *net, jem_archive *a);
JEM_API jem_net *jem_net_from_archive(jem_ctx *ctx, const jem_archive *a);
/* Loads the parameters of a network. The archive must have every parameter of the net, with its
   shape; otherwise nothing changes. Other arrays are ignored. Of the metadata it reads the fields
   of jem_net from scale to walk_noise, and the texts of jem_calibrate, jem_fit_temperature,
   jem_net_fit_units, jem_net_fit_framing, jem_net_set_fit and jem_net_set_background. Texts that
   the file lacks are removed; fields that it lacks get their defaults, or remain as they are if the
   file does not describe its network (PyTorch's). Samplers and trainers of the net stay valid, so
   this replaces a model that is in use: jem_archive_read, jem_net_load, jem_archive_free. */
JEM_API jem_status jem_net_load(jem_net *net, const jem_archive *a);

/* Networks of your own in files: a file names the kind of its network, for which a constructor is
   registered in the context. jem_net_from_archive and jem_load then open it: construct creates the
   network with fresh parameters, which are loaded afterwards. It may read the archive's texts and
   shapes, which come from a file: check them. Returns NULL on an error. A network with more
   parameters than the file, or with other sizes of images or classes, is an error. */
typedef jem_net *(*jem_construct_fn)(jem_ctx *ctx, const jem_archive *a, void *user);
/* Registers a constructor; NULL removes it, another one replaces it. kind: 1 to 63 letters, digits,
   '_' and '-', but no kind of the library's (wrn, convnet, mlp). user must stay valid. */
JEM_API jem_status jem_register_net(jem_ctx *ctx, const char *kind, jem_construct_fn construct,
                                    void *user);
/* Names the kind of a network of your own, as jem_register_net accepts it, for its files. */
JEM_API jem_status jem_net_set_kind(jem_net *net, const char *kind);

/* Add the state of a trainer, without the network's parameters, to an archive, and restore it: the
   optimiser's moments and averages (or trained weights, see jem_trainer_use_average), the replay
   buffer, random numbers, counts, and the guard's good state, once it exists (which nearly doubles
   the file). With jem_net_to_archive this makes a checkpoint: load the network, create a trainer
   with the same desc, call jem_trainer_from_archive last, and training continues bit for bit.

   Rates, the schedule and the values of loss weights may differ from those of the first run. An
   array that is missing, or has a different shape, is an error: keep the kind of optimiser,
   optim.only, optim.adam_names and buffer_size; do not turn optim.ema on or off; do not turn chains
   on or off (by weights.cd, weights.cd_class or w_kl). A change of class_conditional is not
   detected: chains of the buffer would keep the wrong class. The archive points into net and
   trainer: write it before the next step; to restore them, read the written file. If
   jem_trainer_from_archive fails, nothing changes. */
JEM_API jem_status jem_trainer_to_archive(jem_trainer *tr, jem_archive *a);
JEM_API jem_status jem_trainer_from_archive(jem_trainer *tr, const jem_archive *a);
/* Do the same for the optimiser of a training loop of your own, which has to store its random
   numbers and counts itself: load the network, create an optimiser with the same desc, and call
   jem_optim_from_archive last. A file of another kind of optimiser, or for other parameters, is an
   error. Files of trainers are accepted from version 0.3 on. */
JEM_API jem_status jem_optim_to_archive(jem_optim *opt, jem_archive *a);
JEM_API jem_status jem_optim_from_archive(jem_optim *opt, const jem_archive *a);

#ifndef JEM_NO_STDIO
/* Read and write a network in a file of its own. jem_load returns a network, to be freed with
   jem_net_free, or NULL after an error. It opens networks of your own if jem_net_set_kind named
   their kind and jem_register_net registered it. An untrusted file may describe a small network for
   huge images, or long sampling: check net->channels, height, width and denoise_steps before use.
   Paths are those of jem_archive_read; files are replaced as by jem_file_commit. */
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

#ifdef _MSC_VER
#pragma warning(push)
#pragma warning(disable: 4996)                     /* strerror: an error with /sdl */
#endif

/* ==== >>platform: status, context, instruction sets =========================================== */

#include <math.h>
#include <stdarg.h>
#include <stdio.h>         /* snprintf; files, unless JEM_NO_STDIO is defined */
#include <stdlib.h>
#include <string.h>
#ifdef _OPENMP
#include <omp.h>
#endif

/* gcc for Windows aligns the stack to 16 bytes, but may save vectors of 32 there as if they were
   aligned (gcc bug 54412): see JEM_WINDOWS_SIMD. */
#if (defined(_WIN32) || defined(__CYGWIN__)) && !defined(__clang__) && !defined(JEM_WINDOWS_SIMD)
#define JEM__UNALIGNED_STACK 1
#endif
#if !defined(JEM_NO_SIMD) && !defined(JEM__UNALIGNED_STACK) && defined(__GNUC__) && \
    defined(__x86_64__)
#define JEM__X86 1
/* AVX-512 BF16 and AMX; gcc for Windows writes tile addresses that cannot be assembled. */
#if (defined(__clang__) && __clang_major__ >= 12) || \
    (!defined(__clang__) && __GNUC__ >= 11 && !defined(_WIN32) && !defined(__CYGWIN__))
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
#define JEM__ONCE static __attribute__((noinline))         /* not inlined: callers share one copy */
#else
#define JEM__PRINTF(f, a)
#define JEM__INLINE static
#define JEM__ONCE static
#endif

/* Only full unrolling keeps the accumulators in registers. */
#if defined(__clang__)
#define JEM__UNROLL _Pragma("clang loop unroll(full)")
#elif defined(__GNUC__)
#define JEM__UNROLL _Pragma("GCC unroll 16")
#else
#define JEM__UNROLL
#endif

/* Prefetches the cache line of x[n]. This cannot fault, so the address may be outside of every
   array; it is computed as an integer, since such a pointer is not valid C. (Without nothrow, C++
   compilers assume that the builtin can throw.) */
#ifdef __GNUC__
JEM__INLINE __attribute__((nothrow)) void jem__prefetch(const float *x, ptrdiff_t n) {
    __builtin_prefetch((const void *)((uintptr_t)x + (uintptr_t)n * sizeof *x));
}
#else
JEM__INLINE void jem__prefetch(const float *x, ptrdiff_t n) {
    (void)x;
    (void)n;
}
#endif

/* Compiles the code up to JEM__COMPILE_END with an option of its own: full optimisation takes gcc a
   long time, and only the kernels need it. */
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

/* First member of jem__kind, through which the context frees a list of them. */
typedef struct jem__list { struct jem__list *next; } jem__list;

struct jem_ctx {
    jem_ctx_desc desc;
    const struct jem__kernels *k;                  /* of the instruction set */
    const struct jem__bf16 *bf16;                  /* kernels of JEM_PRECISION_BF16, or NULL */
    jem_isa isa;
    int threads;
    jem_status status;                             /* of the first error, or JEM_OK */
    char message[512];                             /* that of the first error, or "" */
    int errors;                                    /* count of all errors, also cleared ones */
    int logging;                                   /* 1 while the log receives an error */
    size_t held, peak, allocations;                /* see jem_memory */
    jem__chunk *chunks, *chunk;                    /* the arena: all chunks, the one in use */
    size_t used;                                   /* bytes of the chunk in use */
    struct jem__node **nodes;                      /* the tape, in the order of recording */
    struct jem__step *steps;                       /* of each node, during a run */
    int n_nodes, cap_nodes;
    double params_left;                            /* parameter values that a file being loaded may
                                                      still add */
    const char *loading;                           /* name of that file, or NULL */
    uint64_t floor;                                /* jem_end frees nothing made before this
                                                      count of pushes: see jem__protect */
    uint64_t pushes;                               /* counts arena allocations and nodes, to order
                                                      them */
    int rank, ranks;                               /* of the running step (>>train); else 0, 1 */
    jem__list *kinds;                              /* jem__kind, of jem_register_net */
};

/* Decodes the UTF-8 character at c, reading at most n > 0 bytes. Returns its length, 1 to 4, or 0
   if it is malformed, overlong, a surrogate or above U+10FFFF (RFC 3629). */
static int jem__utf8(const unsigned char *c, size_t n, uint32_t *code) {
    static const uint32_t smallest[5] = { 0, 0, 0x80, 0x800, 0x10000 };
    int length = 2;
    *code = *c;
    if (*c < 0x80) return 1;
    if (*c >= 0xE0) length++;
    if (*c >= 0xF0) length++;
    if (*c < 0xC2 || *c > 0xF4 || n < (size_t)length) return 0;
    *code &= 0x7Fu >> length;
    for (int k = 1; k < length; k++) {
        if ((c[k] & 0xC0) != 0x80) return 0;
        *code = *code << 6 | (c[k] & 0x3F);
    }
    if (*code < smallest[length] || *code > 0x10FFFF) return 0;
    if (*code >= 0xD800 && *code < 0xE000) return 0;
    return length;
}

/* Implements jem_mask_controls. */
static void jem__mask_controls(char *text, int keep_newlines) {
    unsigned char *c = (unsigned char *)text;
    while (*c) {
        uint32_t code;
        int length = jem__utf8(c, 4, &code);       /* reads no further than the final 0 */
        const int is_layout = code == '\n' || code == '\r' || code == '\t';
        const int is_control = code < 32 || (code >= 127 && code < 0xA0);
        if (length == 0 || (is_control && !(is_layout && keep_newlines))) {
            *c = '?';
            length = 1;
        }
        c += length;
    }
}

/* Replaces a locale's decimal point (a comma, for example, or a character of two bytes) by '.'. */
static void jem__with_point(char *text) {
    char *to = text;
    for (const char *from = text; *from; from++) {
        const int letter = (*from >= 'a' && *from <= 'z') || (*from >= 'A' && *from <= 'Z');
        if (letter || strchr("-+() 0123456789", *from)) *to++ = *from;
        else if (to == text || to[-1] != '.') *to++ = '.';
    }
    *to = 0;
}

/* Formats one argument by a conversion such as "%.3g". */
static void jem__message_argument(char *out, size_t room, const char *conversion, va_list *list) {
    const size_t length = strlen(conversion);
    const char kind = conversion[length - 1];
    if (kind == '%') snprintf(out, room, "%%");
    else if (kind == 's') snprintf(out, room, conversion, va_arg(*list, const char *));
    else if (strchr("efg", kind)) {
        snprintf(out, room, conversion, va_arg(*list, double));
        jem__with_point(out);
    } else if (conversion[length - 2] == 'l') snprintf(out, room, conversion, va_arg(*list, long));
    else snprintf(out, room, conversion, va_arg(*list, int));
}

/* Formats a message as vsnprintf does, but in the same way in every locale. Supports %c, %d, %ld,
   %e, %f, %g, %s, %u, %x and %%, without '*'. */
static void jem__message(char *out, size_t room, const char *format, va_list *list) {
    size_t n = 0;
    out[0] = 0;
    while (*format && n + 1 < room) {
        char *to = out + n;
        size_t length = strcspn(format, "%");
        if (length > 0) {                          /* text */
            if (length > room - n - 1) length = room - n - 1;
            memcpy(to, format, length);
            to[length] = 0;
        } else {
            char conversion[16] = { 0 };
            length = 2 + strcspn(format + 1, "%cdefgsux");
            if (length >= sizeof conversion) return;
            memcpy(conversion, format, length);
            jem__message_argument(to, room - n, conversion, list);
        }
        format += length;
        n += strlen(to);
    }
}

/* Counts an error, and keeps it if it is the first. Returns `status`. */
JEM__PRINTF(3, 4)
static jem_status jem__fail(jem_ctx *ctx, jem_status status, const char *format, ...) {
    va_list list;
    if (ctx) ctx->errors++;
    if (!ctx || ctx->status != JEM_OK) return status;
    va_start(list, format);
    jem__message(ctx->message, sizeof ctx->message, format, &list);
    va_end(list);
    jem__mask_controls(ctx->message, 0);
    ctx->status = status;
    ctx->logging = 1;                              /* the failing function still needs the error */
    if (ctx->desc.log) (ctx->desc.log)(ctx->desc.user, ctx->message);     /* log may be a macro */
    ctx->logging = 0;
    return status;
}
/* Formats a text as jem__message does, from its own arguments. snprintf is for texts without a
   decimal point. */
JEM__PRINTF(3, 4)
static void jem__print(char *out, size_t room, const char *format, ...) {
    va_list list;
    va_start(list, format);
    jem__message(out, room, format, &list);
    va_end(list);
}
/* Reports an error, and yields a null pointer of any type. */
#ifdef __cplusplus
#define jem__refuse(...) (jem__fail(__VA_ARGS__), nullptr)
#else
#define jem__refuse(...) (jem__fail(__VA_ARGS__), (void *)NULL)
#endif

/* Gives a note to the log. */
static void jem__note(const jem_ctx *ctx, const char *note) {
    if (ctx->desc.log) (ctx->desc.log)(ctx->desc.user, note);
}

JEM__INLINE uint32_t jem__float_bits(float f) {
    uint32_t bits;
    memcpy(&bits, &f, 4);
    return bits;
}
JEM__INLINE float jem__bits_float(uint32_t bits) {
    float f;
    memcpy(&f, &bits, 4);
    return f;
}
JEM__INLINE float jem__from_bf16(uint16_t h) { return jem__bits_float((uint32_t)h << 16); }
/* Rounds to nearest, ties to even. */
JEM__INLINE uint16_t jem__to_bf16(float f) {
    const uint32_t u = jem__float_bits(f);
    if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(u >> 16 | 0x40);      /* NaN */
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

/* Compares bits, because with -ffast-math a compiler assumes that no number is NaN. */
JEM__INLINE int jem__finite(float x) {
    return (jem__float_bits(x) & 0x7f800000u) != 0x7f800000u;
}
JEM__INLINE int jem__min(int x, int y) { return x < y ? x : y; }
/* Returns n / unit, rounded up. No sum overflows. */
JEM__INLINE int jem__div_up(int n, int unit) { return n / unit + (n % unit > 0); }
JEM__INLINE int jem__is_nan(float x) { return (jem__float_bits(x) & 0x7fffffffu) > 0x7f800000u; }

/* Formats a number for a message; a whole number below 1e15 gets all its digits. */
static void jem__number(char to[48], double v, int digits) {
    if (v == floor(v) && fabs(v) < 1e15) snprintf(to, 48, "%.0f", v);
    else snprintf(to, 48, "%.*g", digits, v);
}

/* Returns 1 if lo <= value <= hi; otherwise reports name and value. The prefix "d." of a desc's
   field is omitted. */
static int jem__in_range(jem_ctx *ctx, const char *what, const char *name, double value, double lo,
                         double hi) {
    char given[48], least[48], most[48];
    if (jem__finite((float)value) && value >= lo && value <= hi) return 1;
    if (!strncmp(name, "d.", 2)) name += 2;
    jem__number(given, value, 6);
    jem__number(least, lo, 8);                     /* 8 digits: .99999994 is below 1 */
    jem__number(most, hi, 8);
    jem__fail(ctx, JEM_BAD_ARGUMENT, "%s: %s = %s is not in %s..%s", what, name, given, least,
              most);
    return 0;
}
/* Checks a field. Uses the caller's variables ctx and what. */
#define JEM__IN(x, lo, hi) jem__in_range(ctx, what, #x, (double)(x), (double)(lo), (double)(hi))
#define JEM__IN_ENUM(x, lo, hi) jem__in_range(ctx, what, #x, (double)(int)(x), lo, hi)
#define JEM__TINY 1e-30    /* lower limit of numbers that must be above 0 */
#define JEM__MOST 3.4e38   /* upper limit of numbers that have no other: almost FLT_MAX */

enum { JEM__MANY = 1 << 30 };                      /* upper limit of counts of updates and visits */
#define JEM__MOST_SIZE 1e8                         /* that of channels * height * width */
/* Adds 1 to a count below its limit. */
static void jem__count(int *n) {
    if (*n < JEM__MANY) ++*n;
}

/* Returns 1 if there are n > 0 labels, each 0..classes-1; otherwise reports the error. */
static int jem__labels_good(jem_ctx *ctx, const char *what, const int *labels, int n, int classes) {
    if (!labels || n <= 0) {
        jem__fail(ctx, JEM_BAD_ARGUMENT, "%s: %d images%s", what, n,
                  labels ? "" : ", labels are NULL");
        return 0;
    }
    for (int i = 0; i < n; i++) {
        if (labels[i] >= 0 && labels[i] < classes) continue;
        jem__fail(ctx, JEM_BAD_ARGUMENT, "%s: label %d of image %d is not in 0..%d", what,
                  labels[i], i, classes - 1);
        return 0;
    }
    return 1;
}

/* Reports that one of two arguments is NULL, or that their count n is negative. */
static jem_status jem__bad_arrays(jem_ctx *ctx, const char *what, int n, const char *first,
                                  const void *a, const char *second, const void *b) {
    const char *missing = b ? NULL : second;
    if (!a) missing = first;
    if (missing) return jem__fail(ctx, JEM_BAD_ARGUMENT, "%s: %s is NULL", what, missing);
    return jem__fail(ctx, JEM_BAD_ARGUMENT, "%s: n is %d, below 0", what, n);
}

jem_status jem_fail(jem_ctx *ctx, jem_status status, const char *message) {
    if (status == JEM_OK) return JEM_OK;
    if ((int)status < JEM_OK || status > JEM_DIVERGED) status = JEM_BAD_ARGUMENT;
    return jem__fail(ctx, status, "%s", message ? message : "an error without a message");
}
const char *jem_error(const jem_ctx *ctx) {
    if (!ctx) return "no context";
    return ctx->message;
}
jem_status jem_error_status(const jem_ctx *ctx) {
    if (!ctx) return JEM_BAD_ARGUMENT;
    return ctx->status;
}
int jem_ok(const jem_ctx *ctx) { return ctx && ctx->status == JEM_OK; }
void jem_clear_error(jem_ctx *ctx) {
    if (!ctx || ctx->logging) return;
    ctx->status = JEM_OK;
    ctx->message[0] = 0;
}

/* Under the address sanitizer, access to memory that is not in use is reported. */
#if defined(__SANITIZE_ADDRESS__)
#define JEM__ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define JEM__ASAN 1
#endif
#endif
#ifdef JEM__ASAN
#include <sanitizer/asan_interface.h>
#define JEM__POISON(at, size) ASAN_POISON_MEMORY_REGION(at, size)
#define JEM__UNPOISON(at, size) ASAN_UNPOISON_MEMORY_REGION(at, size)
#else
#define JEM__POISON(at, size) ((void)(at))
#define JEM__UNPOISON(at, size) ((void)(at))
#endif

/* Header of every allocation. */
typedef struct jem__allocation { void *start; size_t bytes; } jem__allocation;

static void *jem__too_much(jem_ctx *ctx) {
    return jem__refuse(ctx, JEM_NO_MEMORY, "out of memory: the size exceeds the address space");
}

/* Allocates memory that is zeroed, aligned to 64 bytes (an AVX-512 register, a cache line), and
   counted. Returns NULL, and reports an error, if memory runs out. */
static void *jem__alloc(jem_ctx *ctx, size_t bytes) {
    const size_t total = bytes + 64 + sizeof(jem__allocation);
    void *start = NULL;
    if (total < bytes) return jem__too_much(ctx);  /* the sum has wrapped */
    if (ctx->desc.allocate) start = ctx->desc.allocate(ctx->desc.user, total);
    else start = calloc(1, total);
    if (!start)
        return jem__refuse(ctx, JEM_NO_MEMORY, "out of memory: %.0f bytes requested, %.0f in use",
                           (double)bytes, (double)ctx->held);
    uintptr_t at = ((uintptr_t)start + sizeof(jem__allocation) + 63) & ~(uintptr_t)63;
    jem__allocation *head = (jem__allocation *)at - 1;
    head->start = start;
    head->bytes = total;
    ctx->held += total;
    ctx->allocations++;
    if (ctx->held > ctx->peak) ctx->peak = ctx->held;
    if (ctx->desc.allocate) memset((void *)at, 0, bytes);    /* calloc leaves its pages untouched */
    JEM__POISON((char *)at + bytes, total - bytes - (size_t)(at - (uintptr_t)start));
    return (void *)at;
}
static void jem__free(jem_ctx *ctx, void *memory) {
    if (!memory) return;
    jem__allocation *head = (jem__allocation *)memory - 1;
    void *start = head->start;
    JEM__UNPOISON(start, head->bytes);
    ctx->held -= head->bytes;
    if (ctx->desc.release) ctx->desc.release(ctx->desc.user, start);
    else free(start);
}

/* Returns 1 if all of x[n] are finite. Infinity and NaN have the exponent 255; adding 1 to it
   carries into the sign bit, so the loop needs no branch. */
static int jem__all_finite(const float *x, ptrdiff_t n) {
    uint32_t exponents = 0;
    for (ptrdiff_t i = 0; i < n; i++)
        exponents |= (jem__float_bits(x[i]) & 0x7f800000u) + 0x00800000u;
    return !(exponents & 0x80000000u);
}

/* Computes a b + c, rounded once. Where the C library's fma rounds twice (MinGW) or is slow
   (WebAssembly), the sum is computed in double, in which the product is exact. If the sum is
   halfway between two floats, or below the normal ones, it is first rounded to odd, which makes its
   rounding to float correct (Boldo & Melquiond 2008). Sums in double also need one rounding per
   term for their bits not to depend on the compiler: they call fma(), unless the factors are
   floats, whose product is exact. */
#if defined(_WIN32) || defined(__wasm__)
static float jem__fmaf(float a, float b, float c) {
    const double product = (double)a * (double)b;
    const double term = (double)c;
    const double sum = product + term;
    uint64_t bits;
    memcpy(&bits, &sum, sizeof bits);
    const uint64_t exponent = (bits >> 52) & 0x7ff;
    const int is_halfway = (bits & 0x1fffffff) == 0x10000000;
    if (!is_halfway && exponent > 0x380) return (float)sum;
    const double rounded = sum - product;
    const double error = (product - (sum - rounded)) + (term - rounded);         /* Knuth */
    const int is_even = !(bits & 1);
    if (error != 0 && is_even) {
        if ((error > 0) == (sum > 0)) bits++;      /* away from 0 */
        else bits--;
    }
    double odd;
    memcpy(&odd, &bits, sizeof odd);
    return (float)odd;
}
#else
#define jem__fmaf(a, b, c) fmaf(a, b, c)
#endif

/* Largest number of floats in an array: its size in bytes is half of PTRDIFF_MAX, so that the sum
   of two sizes does not overflow. */
#define JEM__FLOATS (PTRDIFF_MAX / 8)

/* Returns the size of n floats in bytes; for an impossible n, one that no allocator can supply. */
static size_t jem__float_bytes(ptrdiff_t n) {
    if (n < 0 || n > JEM__FLOATS) return (size_t)-1;
    return (size_t)n * sizeof(float);
}
static float *jem__alloc_floats(jem_ctx *ctx, ptrdiff_t n) {
    return (float *)jem__alloc(ctx, jem__float_bytes(n));
}

static char *jem__strdup(jem_ctx *ctx, const char *s) {
    const size_t n = strlen(s) + 1;
    char *copy = (char *)jem__alloc(ctx, n);
    if (copy) memcpy(copy, s, n);
    return copy;
}

/* Calls task(arg, i) for i in 0..n-1, in any order and on several threads, so tasks must not write
   to the same memory. `flops` estimates the work of all tasks. If that is small, the calling thread
   does all of it: it finishes before the others could start. */
static void jem__parallel(jem_ctx *ctx, int n, double flops, void (*task)(void *arg, int i),
                          void *arg) {
    const double worth_threads = 4e6;
    const int is_parallel = n > 1 && ctx->threads > 1 && flops > worth_threads;
    if (is_parallel && ctx->desc.parallel_for) {
        ctx->desc.parallel_for(ctx->desc.user, n, task, arg);
        return;
    }
#ifdef _OPENMP
    if (is_parallel) {
#pragma omp parallel for schedule(dynamic, 1) num_threads(ctx->threads)
        for (int i = 0; i < n; i++) task(arg, i);
        return;
    }
#endif
    for (int i = 0; i < n; i++) task(arg, i);
}

#ifdef JEM__X86
/* Returns the register states that the system saves (XCR0); 0 if XCR0 cannot be read, or if the
   processor has no AVX or FMA. See Intel SDM vol. 1, 13.3. */
static unsigned jem__x86_saved_states(void) {
    unsigned a, b, c, d, low, high;
    const unsigned needed = 1u << 27 | 1u << 28 | 1u << 12;  /* OSXSAVE, AVX, FMA */
    if (!__get_cpuid(1, &a, &b, &c, &d) || (c & needed) != needed) return 0;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

#ifdef JEM__X86_BF16
/* Requests permission to use AMX tiles, as Linux requires; returns 1 if it is granted. Returns 0 on
   other systems. */
static int jem__x86_tiles_granted(unsigned saved_states) {
    if ((saved_states & 0x60000) != 0x60000) return 0;
#ifdef __linux__           /* arch_prctl(ARCH_REQ_XCOMP_PERM, XTILEDATA) */
    long result = 158;
    __asm__ volatile("syscall" : "+a"(result) : "D"(0x1023L), "S"(18L) : "rcx", "r11", "memory");
    return result == 0;
#else
    return 0;
#endif
}
#endif

/* Returns 1 if the processor has the instructions, and the system saves their registers. */
static int jem__x86_has(jem_isa isa) {
    unsigned a, b, c, d;
    const unsigned saved_states = jem__x86_saved_states();
    if (!saved_states || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return 0;
    const unsigned avx512 = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31; /* F, DQ, BW, VL */
    const int has_avx2 = (b & 1u << 5) != 0;
    if (isa == JEM_ISA_AVX2) return has_avx2 && (saved_states & 0x06) == 0x06;
    if (!has_avx2 || (b & avx512) != avx512 || (saved_states & 0xe6) != 0xe6) return 0;
    if (isa == JEM_ISA_AVX512) return 1;
#ifdef JEM__X86_BF16
    const unsigned amx = 1u << 22 | 1u << 24;                /* AMX-BF16, AMX-TILE */
    const int has_amx = (d & amx) == amx;
    if (!__get_cpuid_count(7, 1, &a, &b, &c, &d) || !(a & 1u << 5)) return 0;    /* AVX512_BF16 */
    if (isa == JEM_ISA_AVX512_BF16) return 1;
    if (has_amx) return jem__x86_tiles_granted(saved_states);
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
    if ((unsigned)isa >= sizeof name / sizeof *name) return "unknown";
    return name[isa];
}

/* ---- kernels --------------------------------------------------------------------------------- */
/* Lanes are images. Element (n,c,h,w) of a batch is at

       data[((((n/16)*H + h)*W + w)*C + c)*16 + n%16]

   so 16 neighbours are one (pixel, channel) of 16 images, and every kernel is the plain scalar
   algorithm with scalars that are 16 images wide: 1 register of AVX-512, 2 of AVX2, 4 of NEON. The
   kernels, for every instruction set, are in the last rooms of this file, >>engine and >>bf16;
   their interface is declared here and, for convolutions, in >>ops. */

enum { JEM__UNIFORM, JEM__NORMAL };                /* kinds of the kernel `fill` */
enum { JEM__PAIR_ADD, JEM__PAIR_SUB, JEM__PAIR_MUL };        /* of the kernel `pair` */

/* Returns the size of a group of images (c,h,w) in bf16, in floats; see >>bf16. */
static ptrdiff_t jem__bf16_floats(int c, int h, int w);

/* Returns the sum of 16 lanes by a tree of fixed shape: the same bits for every register width. */
static float jem__sum_lanes(const float *x) {
    float s[8];
    for (int i = 0; i < 8; i++) s[i] = x[i] + x[i + 8];
    for (int i = 0; i < 4; i++) s[i] = s[i] + s[i + 4];
    return (s[0] + s[2]) + (s[1] + s[3]);
}

/* Parameters of a Langevin step (kernel `langevin`): step size and noise level of each lane, that
   is, of each image. Gradients are clamped unless clamp_grad = 0, x unless lo = hi. */
typedef struct jem__langevin {
    float step[JEM_LANES], noise[JEM_LANES], clamp_grad, lo, hi;
} jem__langevin;

#define JEM__LEAST_MOMENTUM 1e-30f  /* smaller ones become 0: they would decay to subnormals */

/* Coefficients of a parameter update; for lr and root2 see the kernel `adam`. */
typedef struct jem__update {
    float beta1, beta2, eps, momentum, weight_decay, lr, root2;
} jem__update;

/* A matrix for Muon: columns in panels of 16, element (i,j) at [(j/16 * rows + i)*16 + j%16]. Rows
   and columns are padded with zeros to multiples of 16. */
typedef struct jem__matrix { int rows, panels; float *data; } jem__matrix;

/* The kernels of one instruction set. The structs are described in the rooms that use them. */
struct jem__method;
struct jem__norm;
struct jem__pool;
typedef struct jem__kernels {
    jem_isa isa;
    int ins;                                       /* input channels of a weight gradient's block */
    const struct jem__method *direct, *winograd;

    /* Fills out[n], n a multiple of 16, with a + b U[0,1) (JEM__UNIFORM) or a + b N(0,1)
       (JEM__NORMAL), from counter `start` on. */
    void (*fill)(int kind, const uint32_t *key, uint64_t start, float *out, ptrdiff_t n, float a,
                 float b);

    /* Elementwise kernels on n floats; `shift` moves lanes. The backward ones store dx or, with
       `add`, add to it. */
    void (*map)(int kind, float a, const float *x, float *y, void *aux, ptrdiff_t n);
    void (*map_back)(int kind, float a, const float *kept, const void *aux, const float *dy,
                     float *dx, int add, ptrdiff_t n);
    void (*drop)(float probability, float a, const float *x, float *y, uint16_t *bits, ptrdiff_t n);
    void (*pair)(int kind, const float *a, const float *b, int broadcast, float *y, ptrdiff_t n);
    void (*pair_back)(float factor, const float *dy, const float *v, int broadcast, float *dx,
                      int add, ptrdiff_t n);
    void (*shift)(const float *x, int by, unsigned lanes, float *y, ptrdiff_t n);

    /* Reductions to one number per lane, of n floats or of the c channels of one pixel. */
    void (*dot)(float factor, const float *a, const float *b, float *out, int add, ptrdiff_t n);
    void (*logsumexp)(const float *x, int c, float *y);
    void (*logsumexp_back)(const float *x, const float *y, const float *dy, int c, float *dx,
                           int add);

    void (*pool)(const struct jem__pool *, const float *x, float *y);
    void (*pool_back)(const struct jem__pool *, const float *dy, float *dx);
    void (*moment)(const float *x, const float *mean, int squared, ptrdiff_t pixels, int c,
                   float *sum);
    void (*normalize)(const struct jem__norm *, const float *x, float *y);
    void (*normalize_sums)(const struct jem__norm *, const float *x, const float *dy);
    void (*normalize_back)(const struct jem__norm *, int from_x, const float *x, const float *dy,
                           float *dx);

    /* Sampling and learning: m and v are the optimiser's moments. */
    void (*langevin)(float *x, const float *gradient, ptrdiff_t n, const jem__langevin *,
                     const uint32_t *key, uint64_t start);
    void (*adam)(float *value, const float *gradient, float *m, float *v, ptrdiff_t n,
                 const jem__update *);
    void (*sgd)(float *value, const float *gradient, float *m, ptrdiff_t n, const jem__update *);
    void (*gram)(const jem__matrix *x, int first, float *out);
    void (*symmetric_product)(const jem__matrix *x, const float *a, float alpha, float beta,
                              int panel, float *out);
} jem__kernels;

/* Returns the kernels of an instruction set, or the best ones; NULL if this build or processor does
   not have it. */
static const jem__kernels *jem__kernels_for(jem_isa isa);
/* Sets k, bf16 and isa as the desc requests. Without kernels for bf16, JEM_PRECISION_FAST replaces
   JEM_PRECISION_BF16. Returns 0 if the instruction set is not available. */
static int jem__engine_open(jem_ctx *ctx);
/* Computes two random words from key and counter. */
static void jem__threefry_scalar(const uint32_t *key, uint64_t counter, uint32_t *first,
                                 uint32_t *second);
/* Draws two numbers of a kind from key and counter. */
static void jem__draw_scalar(int kind, const uint32_t *key, uint64_t counter, float *numbers);

/* ---- contexts -------------------------------------------------------------------------------- */

enum { JEM__MAX_THREADS = 1 << 12 };

/* Returns the thread count for a desc: 1 if tasks cannot run in parallel. */
static int jem__thread_count(const jem_ctx_desc *desc) {
    int threads = 1;
#ifdef _OPENMP
    threads = omp_get_max_threads();
    if (desc->threads > 0) threads = desc->threads;
#else
    if (desc->threads > 0 && desc->parallel_for) threads = desc->threads;
#endif
    if (threads > JEM__MAX_THREADS) return JEM__MAX_THREADS;
    return threads;
}

jem_ctx *jem_ctx_create(const jem_ctx_desc *desc) {
    JEM__ZEROED(jem_ctx, draft);                   /* enough to allocate the real context */
    if (desc) draft.desc = *desc;
    const int precision = (int)draft.desc.precision;
    if (precision < 0 || precision > JEM_PRECISION_BF16)
        return jem__refuse(&draft, JEM_BAD_ARGUMENT, "ctx_create: %d is not a jem_precision",
                           precision);
    if (!draft.desc.allocate != !draft.desc.release)
        return jem__refuse(&draft, JEM_BAD_ARGUMENT, "ctx_create: only one of allocate and release "
                           "is set");
    if (!jem__engine_open(&draft))
        return jem__refuse(&draft, JEM_BAD_ARGUMENT, "ctx_create: the instruction set %s (%d) is "
                           "not available", jem_isa_name(draft.desc.isa), (int)draft.desc.isa);
    draft.threads = jem__thread_count(&draft.desc);
    draft.params_left = HUGE_VAL;
    draft.ranks = 1;
    jem_ctx *ctx = (jem_ctx *)jem__alloc(&draft, sizeof *ctx);
    if (ctx) *ctx = draft;
    return ctx;
}

void jem_ctx_free(jem_ctx *ctx) {
    if (!ctx) return;
    jem__chunk *chunk = ctx->chunks;
    while (chunk) {
        jem__chunk *next = chunk->next;
        jem__free(ctx, chunk);
        chunk = next;
    }
    for (int i = 0; i < ctx->cap_nodes; i++) jem__free(ctx, ctx->nodes[i]);
    for (jem__list *kind = ctx->kinds, *next; kind; kind = next) {
        next = kind->next;
        jem__free(ctx, kind);
    }
    jem__free(ctx, ctx->nodes);
    jem__free(ctx, ctx->steps);
    jem_ctx copy = *ctx;                           /* jem__free needs a context other than the one
                                                      that it frees */
    jem__free(&copy, ctx);
}

const char *jem_status_name(jem_status status) {
    static const char *const name[] = { "ok", "bad argument", "bad shape", "out of memory",
                                        "bad file", "diverged" };
    if ((unsigned)status >= sizeof name / sizeof *name) return "unknown";
    return name[status];
}

jem_isa jem_ctx_isa(const jem_ctx *ctx) {
    if (!ctx) return JEM_ISA_SCALAR;
    return ctx->isa;
}
jem_precision jem_ctx_precision(const jem_ctx *ctx) {
    if (!ctx) return JEM_PRECISION_EXACT;
    return ctx->desc.precision;
}
int jem_ctx_threads(const jem_ctx *ctx) {
    if (!ctx) return 1;
    return ctx->threads;
}

/* ==== >>rng: counter-based random numbers ===================================================== */
/* The kernels of >>engine compute Threefry with one counter per lane; single numbers are computed
   by the scalar ones. */

/* Derives the new key from a counter that no sequence reaches: its highest bit is set. */
jem_rng jem_rng_split(const jem_rng *rng, uint64_t stream) {
    jem_rng r = { { 0, 0 }, 0 };
    if (rng) jem__threefry_scalar(rng->key, stream ^ ((uint64_t)1 << 63), &r.key[0], &r.key[1]);
    return r;
}

jem_rng jem_rng_seed(uint64_t seed) {
    const jem_rng r = { { (uint32_t)seed, (uint32_t)(seed >> 32) }, 0 };
    return jem_rng_split(&r, 0);
}

uint32_t jem_rng_u32(jem_rng *rng) {
    uint32_t x = 0;
    uint32_t spare;
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

/* Reserves counters for a vector fill, one for every two floats, and returns the first. They form
   whole blocks of 16, so that adding the lane never carries into a counter's upper word. */
static uint64_t jem__rng_take(jem_rng *rng, ptrdiff_t floats) {
    uint64_t start = (rng->counter + 15) & ~(uint64_t)15;
    rng->counter = start + (uint64_t)((floats + 31) / 32) * 16;
    return start;
}

/* Fills out[n], in whole blocks of 32. If the last block is incomplete, it is computed in a local
   array, and its beginning is copied. */
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
    jem__fill(ctx, JEM__UNIFORM, rng, out, n, lo, hi - lo);
}
void jem_fill_normal(jem_ctx *ctx, jem_rng *rng, float *out, ptrdiff_t n, float mean, float std) {
    jem__fill(ctx, JEM__NORMAL, rng, out, n, mean, std);
}
/* Reserves a block of counters, but uses only the first number. */
float jem_rng_normal(jem_rng *rng) {
    float z[2];
    if (!rng) return 0;
    jem__draw_scalar(JEM__NORMAL, rng->key, jem__rng_take(rng, 16), z);
    return z[0] + 0.0f;                            /* not -0, like jem_fill_normal */
}

/* ==== >>memory: the tape's arena ============================================================== */
/* The arena is a list of chunks, used in order; a mark is a position in it. Chunks are kept when
   the tape is reset, so that a loop allocates them in its first step only. A chunk that is too
   small when its turn comes is freed, and a larger one takes its place, so that chunks of earlier,
   smaller requests do not accumulate. */

#ifndef JEM_CHUNK_BYTES
#define JEM_CHUNK_BYTES 1048576
#endif

/* Rounds a count of floats up to whole vectors of 16. */
static ptrdiff_t jem__whole_vectors(ptrdiff_t n) {
    return (n + JEM_LANES - 1) / JEM_LANES * JEM_LANES;
}

/* Returns 1 if the chunk in use has room for this many bytes. */
static int jem__chunk_fits(const jem_ctx *ctx, size_t bytes) {
    return ctx->chunk && ctx->used + bytes <= ctx->chunk->size;
}

/* Appends a chunk to the list, after the one in use; returns 0 if memory runs out. */
static int jem__chunk_add(jem_ctx *ctx, size_t bytes) {
    size_t size = JEM_CHUNK_BYTES;
    if (bytes > size) size = bytes;
    jem__chunk *chunk = (jem__chunk *)jem__alloc(ctx, size + 64);
    if (!chunk) return 0;
    chunk->next = NULL;
    chunk->size = size;
    if (ctx->chunk) ctx->chunk->next = chunk;
    else ctx->chunks = chunk;
    ctx->chunk = chunk;
    ctx->used = 0;
    JEM__POISON((char *)chunk + 64, size);         /* until jem__push returns it */
    return 1;
}

/* Moves to the next chunk that has room for this many bytes, and frees those between; without one,
   frees all that follow: the chunk in use becomes the last. */
static void jem__chunk_next(jem_ctx *ctx, size_t bytes) {
    jem__chunk *next = ctx->chunk->next;
    while (next && next->size < bytes) {
        jem__chunk *const unused = next;
        next = next->next;
        jem__free(ctx, unused);
    }
    ctx->chunk->next = next;
    if (!next) return;
    ctx->chunk = next;
    ctx->used = 0;
}

/* Allocates bytes on the tape, aligned to 64, not zeroed. */
static void *jem__push(jem_ctx *ctx, size_t bytes) {
    if (bytes > (size_t)-1 / 4) return jem__too_much(ctx);
    bytes = (bytes + 63) & ~(size_t)63;
    if (ctx->chunk && !jem__chunk_fits(ctx, bytes)) jem__chunk_next(ctx, bytes);
    if (!jem__chunk_fits(ctx, bytes) && !jem__chunk_add(ctx, bytes)) return NULL;
    char *memory = (char *)ctx->chunk + 64 + ctx->used;
    JEM__UNPOISON(memory, bytes);
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
/* Allocates n elements of `size` bytes; the product can exceed a size_t. */
static void *jem__push_array(jem_ctx *ctx, int n, size_t size) {
    if ((size_t)n > (size_t)-1 / size) return jem__too_much(ctx);
    return jem__push(ctx, (size_t)n * size);
}
static float *jem__push_floats(jem_ctx *ctx, ptrdiff_t n) {
    return (float *)jem__push(ctx, jem__float_bytes(n));
}
/* Allocates n arrays of `size` floats, whose product can exceed a 32-bit ptrdiff_t. */
static float *jem__push_images(jem_ctx *ctx, int n, ptrdiff_t size) {
    if ((double)n * (double)size > (double)JEM__FLOATS) n = -1;
    return jem__push_floats(ctx, n * size);
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
static void jem__arena_poison(jem_ctx *ctx) {
    size_t used = ctx->used;
    for (jem__chunk *c = ctx->chunk; c; c = c->next) {
        JEM__POISON((char *)c + 64 + used, c->size - used);
        used = 0;
    }
}

/* ==== >>tape: recorded ops, and the plain run ================================================= */
/* An op called on tensors computes nothing. It adds a node that holds the op, its inputs and the
   shape of its output; the nodes, in the order of recording, are the tape. A value is computed by
   running the tape forward. Gradients are computed by going back from the target y, where dy/dy is
   1: each op turns the gradient of its output into those of its inputs, which is the chain rule
   (reverse mode; Griewank & Walther, 'Evaluating derivatives', 2008). jem__tape_plain, at the end
   of this room, is the whole idea; >>plan does the same faster. */

enum { JEM__MAX_PARAMS = 4 };                      /* parameters of one built-in op */

typedef struct jem__node {
    jem_tensor t;                                  /* the caller's handle */
    const jem_op *op;                              /* NULL: a leaf */
    struct jem__node *in[JEM_MAX_INPUTS];
    jem_param *param[JEM__MAX_PARAMS];
    void *user;                                    /* the op's own data */
    int index;                                     /* position on the tape */
    int inputs, params;
    int groups;                                    /* groups of 16 images */
    ptrdiff_t group_floats;                        /* floats of a group: h*w*c*16 */
    size_t aux_bytes;                              /* per group, kept from forward to backward */
    ptrdiff_t work;                                /* floats of scratch during the op */
    double flops;                                  /* estimate for one group, forward */
    int bf16_out;                                  /* forward can read and write bf16 */
    int bf16_grad;                                 /* backward can read and write bf16 */
    int bf16_params;                               /* the weight gradient can read bf16 */
    int custom;                                    /* made by jem_custom */
    int keep;                                      /* jem_keep was called */
    int ready;                                     /* value is up to date */
    float *value, *grad;                           /* all groups; NULL: stored only during a run */
    uint64_t made, value_push, grad_push;          /* ctx->pushes when node and arrays were made */
} jem__node;

/* Place of an array during a run: group g is at `at` + (g % slots) * stride. */
typedef struct jem__place { float *at; ptrdiff_t stride; int slots; } jem__place;

/* A node's state during a run. */
typedef struct jem__step {
    jem__node *node;
    struct jem__step *in[JEM_MAX_INPUTS];
    int reached;                                   /* the target depends on it */
    int needs;                                     /* the run computes its gradient */
    int receives;                                  /* a reader passes its gradient on to it */
    int runs;                                      /* it is computed in this run */
    int written;                                   /* a reader already writes its gradient */
    int add[JEM_MAX_INPUTS];                       /* backward adds to that input's gradient */
    jem__place value, grad, aux;

    /* Fields that only the plan uses (see >>plan). */
    int pos;                                       /* list[pos] is this step; -1: not in the list */
    int value_buf, aux_buf, grad_buf;              /* indices of buffers; 0: no buffer */
    int readers;                                   /* number of its uses as an input */
    struct jem__step *first_reader;
    struct jem__step *fused_conv, *fused_add;      /* computed with this step, forward */
    struct jem__step *fused_into;                  /* step that computes this one, forward */
    struct jem__step *back_conv;                   /* of an activation: fused conv, backward */
    struct jem__step *back_fused_into;             /* of such a convolution: the activation */
    int value16_buf, grad16_buf;                   /* bf16 copies */
    int grad16_only;                               /* no step reads the gradient in fp32 */
    jem__place value16, grad16;                    /* places of bf16 values */
    int reads16;                                   /* a convolution: reads in[0]'s value16 */
    struct jem__step *dy16;                        /* step whose grad16 this convolution reads */
    struct jem__step *grad16_writer;
} jem__step;

typedef enum { JEM__EVAL, JEM__GRAD, JEM__BACKWARD } jem__mode;

/* Buffer of `size` floats at offset `at` of a region, in use from time `start` to time `end`. */
typedef struct jem__buf { int start, end; ptrdiff_t size, at; } jem__buf;

typedef struct jem__run {
    jem_ctx *ctx;
    jem__mode mode;
    jem__step *target;
    jem__step *leaf;                               /* of d target / d leaf; NULL: not requested */
    jem__step **list;                              /* steps that run, in the order of recording */
    int n;
    jem__place work;                               /* scratch of the running op's part 0 */
    ptrdiff_t part_stride;                         /* floats from a part's scratch to the next's */
    int parts;                                     /* of each group, in the running span */

    /* Fields that only the plan uses (see >>plan). */
    jem__buf *bufs;
    int n_bufs;
    int slots;                                     /* regions; each holds all buffers */
    int most_parts;                                /* largest number of parts in a span */
    int from, to;                                  /* the running span is list[from..to-1] */
    int back;                                      /* 1: the running span runs backward */
    int both;                                      /* 1: each group runs forward, then backward */
    float *base;
    ptrdiff_t region_size;                         /* in floats */
} jem__run;

/* Properties of built-in ops. */
enum {
    JEM__OP_STORES = 1,    /* backward stores dx, or adds if add[] is 1. Without this property it
                              always adds, to a dx that starts at 0 */
    JEM__OP_SHARES = 2,    /* y may share memory with x[0], dx[0] with dy; in jem_add dx[1], too */
    JEM__OP_IN_PLACE = JEM__OP_STORES | JEM__OP_SHARES,
    JEM__OP_WHOLE = 4,     /* called once for all groups, because it combines them */
    JEM__OP_CONV = 8, JEM__OP_ADD = 16, JEM__OP_ACTIVATION = 32,       /* kinds that can be fused */
    JEM__OP_LEARNS = 64    /* forward changes parameters: jem_backward always calls it */
};
typedef struct jem__traits {
    int flags;
    jem_status (*prepare)(const jem_call *call, int need_input_grad);  /* before a run: packing */
    jem_status (*param_grad)(const jem_call *call);                    /* called once */
    int keeps_for_params;                          /* as jem_op.keeps, for param_grad */
} jem__traits;
static const jem__traits jem__stores = { JEM__OP_STORES, NULL, NULL, 0 };
static const jem__traits jem__in_place = { JEM__OP_IN_PLACE, NULL, NULL, 0 };
static const jem__traits jem__adds = { JEM__OP_IN_PLACE | JEM__OP_ADD, NULL, NULL, 0 };
static const jem__traits jem__activates = { JEM__OP_IN_PLACE | JEM__OP_ACTIVATION, NULL, NULL, 0 };
static const jem__traits jem__whole = { JEM__OP_WHOLE, NULL, NULL, 0 };

/* Part of a call that only built-in ops read. */
typedef struct jem__inner {
    const jem__run *run;
    jem__step *step;
    jem_param *const *param;
    int add[JEM_MAX_INPUTS];
    float *work;                                   /* scratch */
    int part, parts;                               /* of the group: index, and their number */
    uint16_t *y16;                                 /* bf16 copy of the result, or NULL */
    const float *plus;                             /* addend fused with a convolution */
    const void *act;                               /* user data of the activation fused with it */
    float *act_y;                                  /* output of that activation */
    void *act_aux;                                 /* aux of that activation */
} jem__inner;

static int jem__has(const jem__node *node, int flag) {
    return node->op && node->op->traits && node->op->traits->flags & flag;
}

/* Returns the length of a parameter's arrays: whole vectors, so that kernels need no code for a
   remainder. */
static ptrdiff_t jem__padded(const jem_param *p) { return jem__whole_vectors(p->size); }

/* Returns how many times the node's op is called for one batch. */
static int jem__calls(const jem__node *node) {
    if (jem__has(node, JEM__OP_WHOLE)) return 1;
    return node->groups;
}

/* Returns 1 if the node has a parameter with a gradient. */
static int jem__trains(const jem__node *node) {
    if (!node->op || !node->op->traits || !node->op->traits->param_grad) return 0;
    for (int i = 0; i < node->params; i++)
        if (node->param[i] && node->param[i]->grad) return 1;
    return 0;
}
/* Returns 1 if the run computes gradients of the node's parameters. */
static int jem__run_trains(const jem__run *r, const jem__node *node) {
    return r->mode == JEM__BACKWARD && jem__trains(node);
}

/* ---- recording ------------------------------------------------------------------------------- */

jem_mark jem_begin(jem_ctx *ctx) {
    jem_mark mark = { ctx, NULL, 0, 0, 0 };
    if (!ctx) return mark;
    if (ctx->used > 0 || ctx->chunk != ctx->chunks) mark.chunk = ctx->chunk;
    mark.used = ctx->used;
    mark.nodes = ctx->n_nodes;
    mark.pushes = ctx->pushes;
    return mark;
}

/* Returns 1 if the last node of the tape was made after the mark. If jem_reset was called in
   between, the tape may be shorter than at the mark: then the node's time of creation decides. */
static int jem__last_is_newer(const jem_ctx *ctx, jem_mark mark) {
    if (ctx->n_nodes == 0) return 0;
    return ctx->n_nodes > mark.nodes || ctx->nodes[ctx->n_nodes - 1]->made > mark.pushes;
}

/* Moves the arena back to the mark's position; NULL is its start. If an older mark was ended first,
   the chunk may have been freed since: then nothing moves, as older arrays may be in use. */
static void jem__arena_return(jem_ctx *ctx, jem_mark mark) {
    if (!mark.chunk) {
        ctx->chunk = ctx->chunks;
        ctx->used = 0;
    }
    for (jem__chunk *c = ctx->chunks; c; c = c->next) {
        if (c != mark.chunk) continue;
        ctx->chunk = c;
        ctx->used = mark.used;
        if (mark.used > c->size) ctx->used = c->size;          /* another chunk at that address */
    }
}

/* Frees the nodes made since the mark. Their memory is reused for nodes only, and t.node = NULL
   marks a freed one, so that the use of a freed tensor is detected until a new node takes its
   place. Older nodes remain, but lose arrays that were allocated after the mark. */
static void jem__end(jem_ctx *ctx, jem_mark mark, const char *what) {
    if (!ctx) return;
    if (mark.ctx != ctx) {
        jem__fail(ctx, JEM_BAD_ARGUMENT, "%s: a mark of another context", what);
        return;
    }
    if (mark.pushes < ctx->floor) {
        jem__fail(ctx, JEM_BAD_ARGUMENT, "%s: a function that the library calls, such as a watch, "
                  "may free only its own tensors", what);
        return;
    }
    jem__arena_return(ctx, mark);
    while (jem__last_is_newer(ctx, mark)) {
        ctx->n_nodes--;
        ctx->nodes[ctx->n_nodes]->t.node = NULL;
    }
    for (int i = 0; i < ctx->n_nodes; i++) {
        jem__node *node = ctx->nodes[i];
        if (node->value && node->value_push > mark.pushes) {
            node->value = NULL;
            node->ready = 0;
        }
        if (node->grad && node->grad_push > mark.pushes) node->grad = NULL;
    }
    jem__arena_poison(ctx);
}

void jem_end(jem_ctx *ctx, jem_mark mark) { jem__end(ctx, mark, "end"); }

void jem_reset(jem_ctx *ctx) {
    const jem_mark start = { ctx, NULL, 0, 0, 0 };
    jem__end(ctx, start, "reset");
}

/* Protects everything on the tape while a callback runs, so that jem_end cannot free it. Returns
   the floor to restore afterwards. */
static uint64_t jem__protect(jem_ctx *ctx) {
    const uint64_t outer = ctx->floor;
    ctx->floor = ctx->pushes;
    return outer;
}

/* Calls the watch of a walk, if there is one; returns 1 if the walk is to stop. */
static int jem__watch(int (*watch)(void *user, int step, jem_tensor *x), void *user, int step,
                      jem_tensor *x) {
    if (!watch) return 0;
    const uint64_t outer = jem__protect(x->ctx);
    const int stop = watch(user, step, x) != 0;
    x->ctx->floor = outer;
    return stop;
}

void jem_trim(jem_ctx *ctx) {
    if (!ctx) return;
    jem__chunk *unused = ctx->chunks;
    if (ctx->chunk == ctx->chunks && ctx->used == 0) ctx->chunk = NULL;
    if (ctx->chunk) {
        unused = ctx->chunk->next;
        ctx->chunk->next = NULL;
    } else ctx->chunks = NULL;
    while (unused) {
        jem__chunk *next = unused->next;
        jem__free(ctx, unused);
        unused = next;
    }
    ctx->peak = ctx->held;
}

/* Text of a shape, such as "(64,3,32,32)"; a struct, so that a message can contain several. */
typedef struct jem__words { char s[64]; } jem__words;
static jem__words jem__shape_text(const jem_tensor *t) {
    jem__words text;
    if (t) snprintf(text.s, sizeof text.s, "(%d,%d,%d,%d)", t->n, t->c, t->h, t->w);
    else snprintf(text.s, sizeof text.s, "NULL");
    return text;
}

/* Returns the shape of a parameter as text, such as "(16,3,3,3)". */
static jem__words jem__param_text(const jem_param *p) {
    jem__words text;
    int n = snprintf(text.s, sizeof text.s, p ? "(" : "NULL");
    for (int i = 0; p && i < p->ndim; i++) {
        const char *format = i ? ",%d" : "%d";
        n += snprintf(text.s + n, sizeof text.s - (size_t)n, format, p->shape[i]);
    }
    if (p) snprintf(text.s + n, sizeof text.s - (size_t)n, ")");
    return text;
}

/* Returns 1 if t can be used: a tensor that has not been freed, in a context without an error.
   Reports a freed tensor. */
static int jem__usable(const jem_tensor *t, const char *what) {
    if (!t) return 0;
    if (!t->node)
        jem__fail(t->ctx, JEM_BAD_ARGUMENT, "%s: jem_end or jem_reset has freed this tensor %s",
                  what, jem__shape_text(t).s);
    return t->ctx->status == JEM_OK;
}

/* Returns 1 if t is a leaf that can be used; reports a freed tensor, or the op that computes t. */
static int jem__need_leaf(const jem_tensor *t, const char *what) {
    if (!jem__usable(t, what)) return 0;
    if (!t->node->op) return 1;
    jem__fail(t->ctx, JEM_BAD_ARGUMENT, "%s: %s is computed (by %s), not a leaf", what,
              jem__shape_text(t).s, t->node->op->name);
    return 0;
}

static int jem__groups(int images) { return jem__div_up(images, JEM_LANES); }

/* Returns how many of a group's lanes hold one of the n images. */
static int jem__live_lanes(int n, int group) {
    const int left = n - group * JEM_LANES;
    if (left < JEM_LANES) return left;
    return JEM_LANES;
}

static jem_shape jem__shape(int n, int c, int h, int w) {
    const jem_shape shape = { n, c, h, w };
    return shape;
}
/* Returns how many numbers a tensor holds, without padding. */
static ptrdiff_t jem__tensor_values(const jem_tensor *t) {
    return (ptrdiff_t)t->n * t->c * t->h * t->w;
}
static jem_shape jem__shape_of(const jem_tensor *t) { return jem__shape(t->n, t->c, t->h, t->w); }

/* Returns the number of floats in one group. */
static ptrdiff_t jem__group_floats(jem_shape shape) {
    return (ptrdiff_t)shape.c * shape.h * shape.w * JEM_LANES;
}

/* Doubles the room for nodes and their steps; returns 0 if memory runs out. */
static int jem__grow_tape(jem_ctx *ctx) {
    int cap = 64;
    if (ctx->cap_nodes) cap = 2 * ctx->cap_nodes;
    jem__node **nodes = (jem__node **)jem__alloc(ctx, (size_t)cap * sizeof *nodes);
    jem__step *steps = (jem__step *)jem__alloc(ctx, (size_t)cap * sizeof *steps);
    if (!nodes || !steps) {
        jem__free(ctx, nodes);
        jem__free(ctx, steps);
        return 0;
    }
    if (ctx->cap_nodes) memcpy(nodes, ctx->nodes, (size_t)ctx->cap_nodes * sizeof *nodes);
    jem__free(ctx, ctx->nodes);
    jem__free(ctx, ctx->steps);
    ctx->nodes = nodes;
    ctx->steps = steps;
    ctx->cap_nodes = cap;
    return 1;
}

/* Returns memory for the next node, zeroed. Nodes remain allocated and are reused. */
static jem__node *jem__node_next(jem_ctx *ctx) {
    if (ctx->n_nodes == ctx->cap_nodes && !jem__grow_tape(ctx)) return NULL;
    jem__node **next = ctx->nodes + ctx->n_nodes;
    if (*next) memset(*next, 0, sizeof **next);
    else *next = (jem__node *)jem__alloc(ctx, sizeof **next);
    return *next;
}

static int jem__shape_possible(jem_shape shape) {
    if (shape.n < 1 || shape.c < 1 || shape.h < 1 || shape.w < 1) return 0;
    const double per_image = (double)shape.c * shape.h * shape.w;
    if (per_image > JEM__MOST_SIZE || (double)shape.n * per_image > 1e12) return 0;
    return (double)jem__groups(shape.n) * (double)jem__group_floats(shape) <= (double)JEM__FLOATS;
}

/* Adds a node to the tape, still without op and inputs. */
static jem__node *jem__node_create(jem_ctx *ctx, const char *what, jem_shape shape) {
    if (!ctx || ctx->status != JEM_OK) return NULL;
    if (!jem__shape_possible(shape))
        return jem__refuse(ctx, JEM_BAD_SHAPE, "%s: (%d,%d,%d,%d) is not a possible shape", what,
                           shape.n, shape.c, shape.h, shape.w);
    jem__node *node = jem__node_next(ctx);
    if (!node) return NULL;
    node->t.n = shape.n;
    node->t.c = shape.c;
    node->t.h = shape.h;
    node->t.w = shape.w;
    node->t.ctx = ctx;
    node->t.node = node;
    node->groups = jem__groups(shape.n);
    node->group_floats = jem__group_floats(shape);
    node->flops = 10 * (double)node->group_floats; /* elementwise; convolutions overwrite it */
    node->index = ctx->n_nodes;
    ctx->n_nodes++;
    ctx->pushes++;
    node->made = ctx->pushes;
    return node;
}

/* Records an op, and returns its output. Many parameters: a node stores them all. */
static jem_tensor *jem__record(jem_ctx *ctx, const jem_op *op, jem_tensor *const *inputs,
                               int n_inputs, jem_shape out, jem_param *const *params, int n_params,
                               const void *user, size_t user_bytes, size_t aux_bytes) {
    for (int i = 0; i < n_inputs; i++) {
        if (!inputs[i]) return NULL;
        if (inputs[i]->ctx != ctx)
            return jem__refuse(ctx, JEM_BAD_ARGUMENT, "%s: a tensor of another context", op->name);
        if (!jem__usable(inputs[i], op->name)) return NULL;
    }
    for (int i = 0; i < n_params; i++)
        if (params[i] && params[i]->ctx != ctx)
            return jem__refuse(ctx, JEM_BAD_ARGUMENT, "%s: %.80s is a parameter of another context",
                               op->name, params[i]->name);
    jem__node *node = jem__node_create(ctx, op->name, out);
    if (!node) return NULL;
    node->op = op;
    node->inputs = n_inputs;
    node->params = n_params;
    node->aux_bytes = aux_bytes;
    node->t.image_h = inputs[0]->image_h;
    node->t.image_w = inputs[0]->image_w;
    for (int i = 0; i < n_inputs; i++) node->in[i] = inputs[i]->node;
    for (int i = 0; i < n_params; i++) node->param[i] = params[i];
    if (user_bytes) {
        node->user = jem__push(ctx, user_bytes);
        if (!node->user) return NULL;
        if (user) memcpy(node->user, user, user_bytes);
        else memset(node->user, 0, user_bytes);
    }
    return &node->t;
}

jem_tensor *jem_custom(jem_ctx *ctx, const jem_op *op, jem_tensor *const *inputs, int n_inputs,
                       jem_shape out, const void *user, size_t user_bytes, size_t aux_bytes) {
    if (!op || !op->name)
        return jem__refuse(ctx, JEM_BAD_ARGUMENT, "jem_custom: the op %s",
                           op ? "has no name" : "is NULL");
    const char *name = op->name;
    if (!op->forward || !inputs)
        return jem__refuse(ctx, JEM_BAD_ARGUMENT, "%s: %s", name,
                           inputs ? "the op has no forward" : "inputs is NULL");
    if (n_inputs < 1 || n_inputs > JEM_MAX_INPUTS)
        return jem__refuse(ctx, JEM_BAD_ARGUMENT, "%s: needs 1 to %d inputs, not %d", name,
                           JEM_MAX_INPUTS, n_inputs);
    if (op->keeps & ~(JEM_KEEPS_OUTPUT | ((1 << n_inputs) - 1)))
        return jem__refuse(ctx, JEM_BAD_ARGUMENT, "%s: keeps is %d, which names more than its "
                           "%d input%s and the output", name, op->keeps, n_inputs,
                           n_inputs > 1 ? "s" : "");
    for (int i = 0; i < n_inputs; i++)
        if (inputs[i] && inputs[i]->n != out.n)
            return jem__refuse(ctx, JEM_BAD_SHAPE, "%s: input %d is %s, the output has n = %d",
                               name, i, jem__shape_text(inputs[i]).s, out.n);
    if ((double)aux_bytes * (out.n > 0 ? out.n : 1) > 4.0 * (double)JEM__FLOATS)
        return jem__refuse(ctx, JEM_BAD_ARGUMENT, "%s: %g bytes of aux memory are too many", name,
                           (double)aux_bytes);
    jem_tensor *y = jem__record(ctx, op, inputs, n_inputs, out, NULL, 0, user, user_bytes,
                                aux_bytes);
    if (y) y->node->custom = 1;
    return y;
}

/* ---- leaves: nchw[n][c][h][w] <-> lanes ------------------------------------------------------ */

JEM__COMPILE("O2")                                 /* all values of a batch are copied here */
/* Repeats the last image in the padding lanes, so that all lanes hold values of images. */
static void jem__fill_padding(float *x, ptrdiff_t n, int live) {
    if (live == JEM_LANES) return;
    for (ptrdiff_t i = 0; i < n; i += JEM_LANES, x += JEM_LANES) {
        const float last = x[live - 1];            /* storing all lanes takes one vector store */
        for (int l = 0; l < JEM_LANES; l++) x[l] = l < live ? x[l] : last;
    }
}
/* Zeroes the padding lanes of a gradient. */
static void jem__clear_padding(float *dx, ptrdiff_t n, int live) {
    for (ptrdiff_t i = 0; i < n && live < JEM_LANES; i += JEM_LANES)
        for (int l = live; l < JEM_LANES; l++) dx[i + l] = 0;
}
static ptrdiff_t jem__lane_at(const jem__node *node, int image, int c, int y, int x) {
    const ptrdiff_t pixel = (ptrdiff_t)y * node->t.w + x;
    const ptrdiff_t at = (pixel * node->t.c + c) * JEM_LANES;
    return image / JEM_LANES * node->group_floats + at + image % JEM_LANES;
}

/* Copies lanes to images, without the padding lanes. It is simple rather than fast, because most
   outputs are small, such as logits. */
static void jem__copy_out(const jem__node *node, const float *lanes, float *nchw) {
    for (int i = 0; i < node->t.n; i++)
        for (int c = 0; c < node->t.c; c++)
            for (int y = 0; y < node->t.h; y++)
                for (int x = 0; x < node->t.w; x++) *nchw++ = lanes[jem__lane_at(node, i, c, y, x)];
}

/* Copies images into lanes, 16 pixels at a time, so that both sides remain in the cache. Padding
   lanes repeat the last image. */
static void jem__copy_in(const jem__node *node, float *lanes, const float *nchw) {
    enum { AT_A_TIME = 16 };
    const int channels = node->t.c;
    const ptrdiff_t pixels = (ptrdiff_t)node->t.h * node->t.w;
    for (int g = 0; g < node->groups; g++) {
        const int live = jem__live_lanes(node->t.n, g);
        for (ptrdiff_t start = 0; start < pixels; start += AT_A_TIME) {
            ptrdiff_t n = pixels - start;
            if (n > AT_A_TIME) n = AT_A_TIME;
            for (int l = 0; l < live; l++) {
                const ptrdiff_t image = (ptrdiff_t)g * JEM_LANES + l;
                for (int c = 0; c < channels; c++) {
                    const float *from = nchw + (image * channels + c) * pixels + start;
                    float *to = lanes + c * JEM_LANES + l;
                    for (ptrdiff_t i = 0; i < n; i++) to[i * channels * JEM_LANES] = from[i];
                }
            }
            jem__fill_padding(lanes, n * channels * JEM_LANES, live);
            lanes += n * channels * JEM_LANES;
        }
    }
}
JEM__COMPILE_END

/* Marks all computed values from node `first` on as outdated. */
static void jem__outdate(const jem_ctx *ctx, int first) {
    for (int i = first; i < ctx->n_nodes; i++)
        if (ctx->nodes[i]->op) ctx->nodes[i]->ready = 0;
}
static void jem__leaf_changed(const jem__node *leaf) {
    jem__outdate(leaf->t.ctx, leaf->index + 1);
}

/* Records a leaf of zeros. */
static jem_tensor *jem__leaf(jem_ctx *ctx, const char *what, jem_shape shape) {
    jem__node *leaf = jem__node_create(ctx, what, shape);
    if (!leaf) return NULL;
    const size_t floats = (size_t)(leaf->groups * leaf->group_floats);
    leaf->value = (float *)jem__push_zero(ctx, floats * sizeof(float));
    leaf->value_push = ctx->pushes;
    leaf->ready = 1;
    if (!leaf->value) return NULL;
    return &leaf->t;
}

jem_tensor *jem_zeros(jem_ctx *ctx, int n, int c, int h, int w) {
    return jem__leaf(ctx, "zeros", jem__shape(n, c, h, w));
}

jem_tensor *jem_input(jem_ctx *ctx, const float *nchw, int n, int c, int h, int w) {
    if (!nchw) return jem__refuse(ctx, JEM_BAD_ARGUMENT, "input: no data (NULL)");
    jem_tensor *t = jem__leaf(ctx, "input", jem__shape(n, c, h, w));
    if (t) jem__copy_in(t->node, t->node->value, nchw);
    return t;
}

jem_status jem_write(jem_tensor *leaf, const float *nchw) {
    if (!leaf) return JEM_BAD_ARGUMENT;
    if (!jem__need_leaf(leaf, "write")) return leaf->ctx->status;
    if (!nchw) return jem__fail(leaf->ctx, JEM_BAD_ARGUMENT, "write: nchw is NULL");
    jem__copy_in(leaf->node, leaf->node->value, nchw);
    jem__leaf_changed(leaf->node);
    return JEM_OK;
}

void jem_param_changed(jem_param *p) {
    if (p) p->version++;
}

/* ---- which steps run ------------------------------------------------------------------------- */

static float *jem__at_place(jem__place place, int group) {
    if (!place.at) return NULL;
    return place.at + (group % place.slots) * place.stride;
}
static jem__place jem__all_groups(const jem__node *node, float *at) {
    const jem__place place = { at, node->group_floats, node->groups };
    return place;
}

/* Prepares a step for each node up to the target. */
static void jem__prepare_steps(jem__run *r, const jem__node *target, const jem__node *leaf) {
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

/* Marks, in the order of recording, the steps that depend on the leaf or on trained parameters. */
static void jem__mark_needs(jem__run *r) {
    if (r->mode == JEM__EVAL) return;
    for (jem__step *s = r->ctx->steps; s <= r->target; s++) {
        if (!s->reached) continue;
        s->needs = s == r->leaf || jem__run_trains(r, s->node);
        for (int k = 0; k < s->node->inputs; k++)
            if (s->in[k]->needs && s->node->op->backward) s->needs = 1;
    }
}

/* Clears `needs` of the steps that no gradient reaches, from the target back: gradients stop at an
   op without a backward. */
static void jem__mark_receives(jem__run *r) {
    r->target->receives = 1;
    for (int i = r->target->node->index; i >= 0; i--) {
        jem__step *s = r->ctx->steps + i;
        s->needs = s->needs && s->receives;
        if (!s->needs || !s->node->op || !s->node->op->backward) continue;
        for (int k = 0; k < s->node->inputs; k++) s->in[k]->receives = 1;
    }
}

/* Marks the ops to compute. A value that is up to date is not computed again, unless a gradient
   passes through it: the op's backward may need data that only its forward stores. */
static void jem__mark_runs(jem__run *r) {
    r->target->runs = 1;
    for (int i = r->target->node->index; i >= 0; i--) {
        jem__step *s = r->ctx->steps + i;
        const jem__node *node = s->node;
        if (node->ready && !s->needs) s->runs = 0;
        if (r->mode == JEM__BACKWARD && s->reached && jem__has(node, JEM__OP_LEARNS)) s->runs = 1;
        if (!node->op) s->runs = 0;
        if (!s->runs) continue;
        for (int k = 0; k < node->inputs; k++) s->in[k]->runs = 1;
        r->n++;
    }
}

/* Decides which steps run, and which of them have a gradient. */
static void jem__mark_steps(jem__run *r, const jem__node *target, const jem__node *leaf) {
    jem__prepare_steps(r, target, leaf);
    jem__mark_reached(r);
    jem__mark_needs(r);
    jem__mark_receives(r);
    jem__mark_runs(r);
}

/* Allocates an array of all groups that remains after the run, unless the node already has it.
   Stores the time of the allocation in `push`. Returns 0 if memory runs out. */
static int jem__keep_room(const jem__node *node, float **array, uint64_t *push) {
    if (*array) return 1;
    *array = jem__push_floats(node->t.ctx, node->groups * node->group_floats);
    *push = node->t.ctx->pushes;
    return *array != NULL;
}

/* Returns 1 if the value remains after the run: the target's, small ones, and those of jem_keep. */
static int jem__keeps_value(const jem__run *r, const jem__step *s) {
    enum { SMALL = 128 };                          /* numbers per image, see jem_keep */
    const int is_small = s->node->group_floats <= SMALL * JEM_LANES;
    return s->runs && (s == r->target || s->node->keep || is_small);
}

/* Allocates the arrays that remain after the run: kept values and the leaf's gradient. */
static jem_status jem__allocate_kept(jem__run *r) {
    for (jem__step *s = r->ctx->steps; s <= r->target; s++) {
        jem__node *node = s->node;
        if (jem__keeps_value(r, s) && !jem__keep_room(node, &node->value, &node->value_push))
            return JEM_NO_MEMORY;
        if (node->value) s->value = jem__all_groups(node, node->value);
        if (s != r->leaf) continue;
        if (!jem__keep_room(node, &node->grad, &node->grad_push)) return JEM_NO_MEMORY;
        s->grad = jem__all_groups(node, node->grad);
    }
    return JEM_OK;
}

/* ---- calling an op --------------------------------------------------------------------------- */

static uint16_t *jem__at_place16(jem__place place, int group) {
    return (uint16_t *)(void *)jem__at_place(place, group);
}
/* Returns the bf16 copy that a convolution reads in place of x[0]; NULL without one. */
static const uint16_t *jem__x16(const jem__step *s, int group) {
    if (!s->reads16) return NULL;
    return jem__at_place16(s->in[0]->value16, group);
}
/* Returns the bf16 copy that a convolution reads in place of dy; NULL without one. */
static const uint16_t *jem__dy16(const jem__step *s, int group) {
    if (!s->dy16) return NULL;
    return jem__at_place16(s->dy16->grad16, group);
}

/* Points a call to a group. */
static void jem__call_group(jem_call *call, int group) {
    const jem__step *s = call->inner->step;
    call->group = group;
    call->live = jem__live_lanes(s->node->t.n, group);
    call->y = jem__at_place(s->value, group);
    call->aux = jem__at_place(s->aux, group);
    call->dy = NULL;
    if (s->needs) call->dy = jem__at_place(s->grad, group);
    for (int k = 0; k < call->inputs; k++) {
        call->x[k] = jem__at_place(s->in[k]->value, group);
        call->dx[k] = NULL;
        if (s->needs && s->in[k]->needs) call->dx[k] = jem__at_place(s->in[k]->grad, group);
    }
}

/* Returns the same call for another group: for ops that need the whole batch. */
static jem_call jem__at(const jem_call *call, int group) {
    jem_call other = *call;
    jem__call_group(&other, group);
    return other;
}

/* Fills in everything that an op reads for one group. */
static void jem__call_open(const jem__run *r, jem__step *s, int group, int part, jem_call *call,
                           jem__inner *inner) {
    const jem__node *node = s->node;
    memset(inner, 0, sizeof *inner);
    inner->run = r;
    inner->step = s;
    inner->param = node->param;
    inner->part = part;
    inner->parts = r->parts;
    if (r->work.at) inner->work = jem__at_place(r->work, group) + part * r->part_stride;
    memset(call, 0, sizeof *call);
    call->ctx = r->ctx;
    call->user = node->user;
    call->inputs = node->inputs;
    call->inner = inner;
    call->out = jem__shape_of(&node->t);
    for (int k = 0; k < node->inputs; k++) {
        call->in[k] = jem__shape_of(&node->in[k]->t);
        inner->add[k] = s->add[k];
    }
    jem__call_group(call, group);
}

/* Sets d target / d target: 1 for each image, 0 for padding lanes. */
static void jem__seed(const jem__run *r, int group) {
    const int live = jem__live_lanes(r->target->node->t.n, group);
    float *grad = jem__at_place(r->target->grad, group);
    for (int l = 0; l < JEM_LANES; l++) grad[l] = (float)(l < live);
}

/* Calls an op's forward. Makes the padding lanes of a custom op's y repeat the last image: weight
   gradients of later ops add 0 times these values, which must therefore be finite. */
static void jem__op_forward(const jem__node *node, const jem_call *call) {
    node->op->forward(call);
    if (node->custom) jem__fill_padding(call->y, jem__group_floats(call->out), call->live);
}

/* Calls an op's backward. Zeroes a custom op's dx in padding, which weight gradients sum. */
static void jem__op_backward(const jem__node *node, const jem_call *call) {
    node->op->backward(call);
    if (!node->custom || call->live == JEM_LANES) return;
    for (int k = 0; k < call->inputs; k++) {
        if (!call->dx[k]) continue;
        jem__clear_padding(call->dx[k], jem__group_floats(call->in[k]), call->live);
    }
}

static void jem__step_forward(const jem__run *r, jem__step *s, int group) {
    jem_call call;
    jem__inner inner;
    jem__call_open(r, s, group, 0, &call, &inner);
    memset(call.dx, 0, sizeof call.dx);
    jem__op_forward(s->node, &call);
}

/* Hides the arrays that backward must not read: their memory may already have been reused. */
static void jem__hide_unkept(jem_call *call, int keeps) {
    for (int k = 0; k < call->inputs; k++)
        if (!(keeps >> k & 1)) call->x[k] = NULL;
    if (!(keeps & JEM_KEEPS_OUTPUT)) call->y = NULL;
}

/* Zeroes the gradient of input k, in one group, or in all of them for an op of the whole batch. */
static void jem__clear_input_grad(const jem__step *s, int k, int group) {
    const jem__node *input = s->in[k]->node;
    int from = group;
    int to = group + 1;
    if (jem__has(s->node, JEM__OP_WHOLE)) {
        from = 0;
        to = input->groups;
    }
    for (int g = from; g < to; g++)
        memset(jem__at_place(s->in[k]->grad, g), 0, (size_t)input->group_floats * sizeof(float));
}

/* Calls an op's backward. If the op always adds to dx, but is the first to write it, dx is zeroed
   first. */
static void jem__step_backward(const jem__run *r, jem__step *s, int group) {
    const int always_adds = !jem__has(s->node, JEM__OP_STORES);
    jem_call call;
    jem__inner inner;
    int any = 0;
    jem__call_open(r, s, group, 0, &call, &inner);
    for (int k = 0; k < s->node->inputs; k++) {
        if (!call.dx[k]) continue;
        any = 1;
        if (always_adds && !s->add[k]) jem__clear_input_grad(s, k, group);
    }
    jem__hide_unkept(&call, s->node->op->keeps);
    if (any) jem__op_backward(s->node, &call);
}

/* Adds to the gradients of a step's parameters. */
static jem_status jem__step_params(const jem__run *r, jem__step *s) {
    jem_call call;
    jem__inner inner;
    jem__call_open(r, s, 0, 0, &call, &inner);
    return s->node->op->traits->param_grad(&call);
}

/* ---- the plain run --------------------------------------------------------------------------- */

/* Allocates every value, gradient and scratch at once. */
static jem_status jem__tape_memory(jem__run *r) {
    ptrdiff_t work = JEM_LANES;
    for (int i = 0; i < r->n; i++) {
        jem__step *s = r->list[i];
        const jem__node *node = s->node;
        const ptrdiff_t aux = jem__whole_vectors((ptrdiff_t)((node->aux_bytes + 3) / 4));
        const ptrdiff_t size = node->groups * node->group_floats;
        if (!s->value.at) s->value = jem__all_groups(node, jem__push_floats(r->ctx, size));
        if (s->needs) s->grad = jem__all_groups(node, jem__push_floats(r->ctx, size));
        if (aux) s->aux = jem__all_groups(node, jem__push_floats(r->ctx, node->groups * aux));
        s->aux.stride = aux;                         /* not node->group_floats */
        if (node->work > work) work = node->work;
    }
    r->work.at = jem__push_floats(r->ctx, work);
    r->work.slots = 1;
    r->parts = 1;
    return r->ctx->status;
}

/* Computes values in the order of recording. */
static void jem__tape_forward(const jem__run *r) {
    for (int i = 0; i < r->n; i++) {
        jem__step *s = r->list[i];
        for (int g = 0; g < jem__calls(s->node); g++) jem__step_forward(r, s, g);
    }
}

/* Decides for each input whether the step stores its gradient or adds to it. Of a value's readers,
   the one recorded last runs backward first, and stores. */
static void jem__begin_input_gradients(jem__step *s) {
    for (int k = 0; k < s->node->inputs; k++) {
        jem__step *in = s->in[k];
        if (!in->needs) continue;
        s->add[k] = in->written;
        in->written = 1;
    }
}

/* Computes gradients in reverse order, from the target, whose gradient with respect to itself
   is 1. */
static jem_status jem__tape_backward(const jem__run *r) {
    for (int g = 0; g < r->target->node->groups; g++) jem__seed(r, g);
    for (int i = r->n - 1; i >= 0; i--) {
        jem__step *s = r->list[i];
        if (!s->needs) continue;
        if (jem__run_trains(r, s->node)) {
            const jem_status status = jem__step_params(r, s);
            if (status != JEM_OK) return status;
        }
        jem__begin_input_gradients(s);
        for (int g = 0; g < jem__calls(s->node); g++) jem__step_backward(r, s, g);
    }
    return JEM_OK;
}

/* Runs all steps forward, then those with a gradient backward. */
static jem_status jem__tape_plain(jem__run *r) {
    const jem_status status = jem__tape_memory(r);
    if (status != JEM_OK) return status;
    jem__tape_forward(r);
    if (r->mode == JEM__EVAL || !jem_ok(r->ctx)) return r->ctx->status;
    return jem__tape_backward(r);
}

/* ==== >>plan: the same, faster ================================================================ */
/* jem__tape_plain keeps every value and passes over memory once per op. The plan computes the same
   bits, but:

     - gives every value, gradient and scratch an offset in a region. Buffers whose lifetimes do
       not overlap share memory. A value that no backward reads may be overwritten after its last
       use, so jem_grad keeps nothing for the weights;
     - takes a group of 16 images at a time depth-first through steps that treat images separately.
       In jem_grad a group then goes straight back: a thread needs the region of only one group,
       whatever the batch size. In jem_backward every group has its region, because a weight's
       gradient sums over all of them. With too few groups to occupy all threads, each step runs for
       all groups before the next step begins, and convolutions are split among threads;
     - fuses a convolution with the addition and activation after it, and its input gradient with
       that of the activation before it;
     - passes values in bf16 between convolutions that both compute in bf16. */

/* Adds a buffer in use from time `start` to time `end`; returns its index. */
static int jem__plan_buf(jem__run *r, int start, int end, ptrdiff_t floats) {
    jem__buf *b = r->bufs + r->n_bufs;
    b->start = start;
    b->end = end;
    b->at = -1;
    b->size = jem__whole_vectors(floats);
    return r->n_bufs++;
}

static void jem__plan_extend(jem__run *r, int buf, int end) {
    if (r->bufs[buf].end < end) r->bufs[buf].end = end;
}

/* ---- fusion ---------------------------------------------------------------------------------- */
/* A convolution finishes its sums in registers. If an addition and an activation after it are fused
   with it, they cost no pass over memory; nor, backward, do the slopes of an activation before it:

     forward    conv -> add -> activation    run as one step, that of the last, which has
                                             `fused_conv`, `fused_add`; the others: `fused_into`
     backward   the input gradients of conv  run as one step, that of the activation, which has
                and of the activation        `back_conv`; the conv has `back_fused_into`
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

/* Returns 1 if the step, not yet fused, adds two different values of the same shape. */
static int jem__can_fuse_add(const jem__step *s) {
    return jem__has(s->node, JEM__OP_ADD) && !s->fused_conv && !s->fused_into &&
           s->in[0] != s->in[1] && s->in[0]->node->group_floats == s->in[1]->node->group_floats;
}

/* Fuses a convolution with the only reader of its output, if that is an addition or an activation,
   and with the addition's first reader if that is an activation. */
static void jem__fuse_forward(jem__step *conv) {
    if (conv->readers != 1 || conv->node->value) return;
    jem__step *last = conv;
    jem__step *add = NULL;
    if (jem__can_fuse_add(conv->first_reader)) {
        add = conv->first_reader;
        last = add;
    }
    jem__step *next = last->first_reader;
    if (next && jem__has(next->node, JEM__OP_ACTIVATION)) last = next;
    if (last == conv) return;
    last->fused_conv = conv;
    last->fused_add = add;
    conv->fused_into = last;
    if (add && add != last) add->fused_into = last;
}

/* Fuses a convolution's input gradient with that of the activation before it, if the convolution is
   the activation's only reader: then nothing else contributes to the gradient between them. */
static void jem__fuse_backward(jem__step *conv) {
    jem__step *activation = conv->in[0];
    if (activation->pos < 0 || !jem__has(activation->node, JEM__OP_ACTIVATION)) return;
    if (activation->readers != 1 || !activation->needs || !conv->needs) return;
    activation->back_conv = conv;
    conv->back_fused_into = activation;
}

/* Fuses each convolution with its neighbours, both ways. */
static void jem__plan_fuse(jem__run *r) {
    jem__plan_readers(r);
    for (int i = 0; i < r->n; i++) {
        if (!jem__has(r->list[i]->node, JEM__OP_CONV)) continue;
        jem__fuse_backward(r->list[i]);
        jem__fuse_forward(r->list[i]);
    }
}

/* Returns the node whose op computes the step forward: the fused convolution's, or its own. */
static const jem__node *jem__forward_node(const jem__step *s) {
    if (s->fused_conv) return s->fused_conv->node;
    return s->node;
}
static const jem__node *jem__backward_node(const jem__step *s) {
    if (s->back_conv) return s->back_conv->node;
    return s->node;
}
/* Returns the node whose op computes the step, forward or back. */
static const jem__node *jem__main_node(const jem__step *s, int back) {
    if (back) return jem__backward_node(s);
    return jem__forward_node(s);
}

/* ---- lifetimes ------------------------------------------------------------------------------- */
/* list[i] goes forward at time i and back at time 2n-1-i, unless it is fused into another step. A
   buffer's lifetime extends from its first write to its last read.

   bf16 pays only where one bf16 convolution writes an array that another one reads: a value, for
   the next output and the weight gradient, or a gradient, for input and weight gradients. */

/* Returns the time at which list[pos] goes back, if it is not fused into another step. */
static int jem__mirrored(const jem__run *r, int pos) { return 2 * r->n - 1 - pos; }

static int jem__time_forward(const jem__step *s) {
    if (s->fused_into) return s->fused_into->pos;
    return s->pos;
}
static int jem__time_back(const jem__run *r, const jem__step *s) {
    if (s->back_fused_into) return jem__mirrored(r, s->back_fused_into->pos);
    return jem__mirrored(r, s->pos);
}

/* Returns 1 if a bf16 convolution computes the step's value. */
static int jem__writes_bf16(const jem__step *s) {
    return !s->fused_into && jem__forward_node(s)->bf16_out;
}
/* Returns 1 unless the run computes a weight gradient of the step from arrays in fp32. */
static int jem__params_bf16(const jem__run *r, const jem__step *s) {
    return !jem__run_trains(r, s->node) || s->node->bf16_params;
}
/* Returns 1 if the reader is a bf16 convolution that reads the bf16 copy of s's value. */
static int jem__reads_bf16(const jem__run *r, const jem__step *reader, const jem__step *s) {
    return reader->node->bf16_out && reader->in[0] == s && jem__writes_bf16(s) &&
           jem__params_bf16(r, reader);
}

/* Returns 1 if both are parts of one fused step, which passes the value in registers. */
static int jem__reads_in_registers(const jem__step *reader, const jem__step *s) {
    if (!s->fused_into) return 0;
    return reader == s->fused_into || reader->fused_into == s->fused_into;
}

/* Returns the last time the reader needs its input k: in the backward pass if its backward or its
   weight gradient reads the value, otherwise in the forward pass. */
static int jem__time_read(const jem__run *r, const jem__step *reader, int k) {
    const jem_op *op = reader->node->op;
    int keeps = op->keeps;
    if (jem__run_trains(r, reader->node)) keeps |= op->traits->keeps_for_params;
    if (reader->needs && keeps >> k & 1) return jem__time_back(r, reader);
    return jem__time_forward(reader);
}

/* Returns the last time that a value is read from memory, -1 if it never is. With `bf16`, only the
   readers of its bf16 copy count; without it, the others. */
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

/* Plans the bf16 copy of a value, if a bf16 convolution reads it. */
static void jem__plan_value16(jem__run *r, jem__step *s) {
    if (!jem__writes_bf16(s)) return;
    const jem_tensor *t = &s->node->t;
    const int last_use = jem__last_use(r, s, 1);
    if (last_use < 0) return;
    s->value16_buf = jem__plan_buf(r, jem__time_forward(s), last_use,
                                   jem__bf16_floats(t->c, t->h, t->w));
}

/* Returns 1 if the step may write its output over its first input, because it is the last to read
   it. A fused convolution reads its own input until the fused step ends; that input must remain. */
static int jem__can_overwrite_input(const jem__run *r, const jem__step *s) {
    if (!jem__has(s->node, JEM__OP_SHARES)) return 0;
    const jem__step *input = s->in[0];
    if (!input->value_buf || input->node->group_floats != s->node->group_floats) return 0;
    const jem__step *fused = s;
    if (s->fused_into) fused = s->fused_into;
    if (fused->fused_conv && fused->fused_conv->in[0]->value_buf == input->value_buf) return 0;
    return r->bufs[input->value_buf].end == jem__time_forward(s);
}

/* Plans the memory of a value: the buffer of its first input, a new one, or none if it is never
   read. */
static void jem__plan_value(jem__run *r, jem__step *s) {
    if (s->node->value) return;                    /* kept after the run, outside the region */
    const int start = jem__time_forward(s);
    int last_use = jem__last_use(r, s, 0);
    if (last_use < 0) {                            /* unread; but some ops must run */
        if (!jem__has(s->node, JEM__OP_LEARNS)) return;
        last_use = start;
    }
    if (!jem__can_overwrite_input(r, s)) {
        s->value_buf = jem__plan_buf(r, start, last_use, s->node->group_floats);
        return;
    }
    s->value_buf = s->in[0]->value_buf;
    r->bufs[s->value_buf].end = last_use;
}

/* Plans the memory that an op passes from its forward to its backward. */
static void jem__plan_aux(jem__run *r, jem__step *s) {
    if (!s->node->aux_bytes) return;
    int end = s->pos;
    if (s->needs) end = jem__mirrored(r, s->pos);
    s->aux_buf = jem__plan_buf(r, s->pos, end, (ptrdiff_t)((s->node->aux_bytes + 3) / 4));
}

static void jem__plan_values(jem__run *r) {
    for (int i = 0; i < r->n; i++) {
        jem__plan_value16(r, r->list[i]);
        jem__plan_value(r, r->list[i]);
    }
    /* After all values: in this order, buffers are placed with fewer gaps. */
    for (int i = 0; i < r->n; i++) jem__plan_aux(r, r->list[i]);
}

/* ---- buffers of gradients -------------------------------------------------------------------- */

/* Decides, in the order of the backward pass, which step is the first to write each gradient. */
static void jem__plan_adds(jem__run *r) {
    for (int i = r->n - 1; i >= 0; i--) {
        jem__step *s = r->list[i];
        if (s->needs && !s->back_fused_into) jem__begin_input_gradients(s);
    }
}

/* Returns the step whose gradient the convolution reads. An addition passes its gradient to its
   inputs unchanged; if it is the only reader, its gradient is read directly, without a copy. */
static jem__step *jem__gradient_source(jem__step *conv) {
    if (conv->readers != 1) return conv;
    jem__step *add = conv->first_reader;
    if (!jem__has(add->node, JEM__OP_ADD) || add->in[0] == add->in[1]) return conv;
    if (add->node->group_floats != conv->node->group_floats) return conv;
    return add;
}

/* Returns the last step to write s's gradient in the backward pass: its first reader that needs a
   gradient; NULL if no reader does. */
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
    const int start = jem__mirrored(r, writer->pos);
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

/* Returns 1 if a reader of `a` other than `add` may add to a's gradient before or while b's
   gradient is read; then the two cannot share a buffer. */
static int jem__changes_gradient_before(const jem__run *r, const jem__step *add, const jem__step *a,
                                        const jem__step *b) {
    for (int j = a->pos + 1; j < r->n; j++)
        for (int k = 0; k < r->list[j]->node->inputs; k++) {
            const jem__step *reader = r->list[j];
            if (reader == add || reader->in[k] != a) continue;
            if (jem__time_back(r, reader) <= jem__time_back(r, b)) return 1;
        }
    return 0;
}

/* Returns 1 if an addition may pass its gradient's buffer on to input k. Its inputs have the same
   gradient and can all use one buffer, unless another step adds to one input's gradient before the
   other's has been read. */
static int jem__can_share_gradient(const jem__run *r, const jem__step *add, int k) {
    const jem__step *first = add->in[0];
    const jem__step *second = add->in[1];
    if (first == second) return 0;
    if (k == 0) return 1;
    return !jem__changes_gradient_before(r, add, first, second) &&
           !jem__changes_gradient_before(r, add, second, first);
}

/* Returns 1 if the gradient of input k may take over the buffer of the step's own. */
static int jem__passes_gradient_on(const jem__run *r, const jem__step *s, int k) {
    if (s->in[k]->node->group_floats != s->node->group_floats) return 0;
    if (jem__has(s->node, JEM__OP_ADD)) return jem__can_share_gradient(r, s, k);
    return k == 0;
}

/* Gives the gradient of input k a buffer: the step's own, if that is free, or a new one. */
static void jem__plan_input_gradient(jem__run *r, jem__step *s, int k, int in_place) {
    jem__step *in = s->in[k];
    const int last_use = jem__time_back(r, in);
    if (in_place && jem__passes_gradient_on(r, s, k)) {
        in->grad_buf = s->grad_buf;
        jem__plan_extend(r, in->grad_buf, last_use);
    } else in->grad_buf = jem__plan_buf(r, jem__time_back(r, s), last_use, in->node->group_floats);
}

/* Plans all gradients. Each is in use from the first step that writes it until the step whose
   gradient it is runs backward. */
static void jem__plan_gradients(jem__run *r) {
    for (int i = r->n - 1; i >= 0; i--) {
        jem__step *s = r->list[i];
        if (!s->needs) continue;
        const int now = jem__mirrored(r, i);
        int in_place = 0;
        if (jem__stores_gradient(s)) {
            const int last_use = jem__time_back(r, s);
            if (!s->grad_buf) s->grad_buf = jem__plan_buf(r, now, last_use, s->node->group_floats);
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

/* Fills order[] with the indices of all buffers, the largest first. */
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

/* Reports that no memory can hold a plan. */
static jem_status jem__plan_too_large(const jem__run *r) {
    jem__too_much(r->ctx);
    return JEM_NO_MEMORY;
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
        if (b->at > JEM__FLOATS - b->size) return jem__plan_too_large(r);
        if (b->at + b->size > r->region_size) r->region_size = b->at + b->size;
        int j = i;
        for (; j > 0 && r->bufs[placed[j - 1]].at > b->at; j--) placed[j] = placed[j - 1];
        placed[j] = order[i];
    }
    return JEM_OK;
}

/* Allocates the regions. Each ends with the scratch of its parts. */
static jem_status jem__plan_memory(jem__run *r) {
    const ptrdiff_t scratch = r->region_size;
    for (int i = 0; i < r->n; i++)
        if (r->list[i]->node->work > r->part_stride) r->part_stride = r->list[i]->node->work;
    r->part_stride = jem__whole_vectors(r->part_stride) + JEM_LANES;
    if (r->part_stride > (JEM__FLOATS - r->region_size) / r->most_parts)
        return jem__plan_too_large(r);
    r->region_size += r->part_stride * r->most_parts;
    /* Regions a power of two apart would compete for the same cache lines. */
    r->region_size = (r->region_size / 1024 + 1) * 1024 + 16 * JEM_LANES;
    if (r->region_size > JEM__FLOATS / r->slots) return jem__plan_too_large(r);
    r->base = jem__push_floats(r->ctx, r->slots * r->region_size);
    if (!r->base) return JEM_NO_MEMORY;
    r->work.at = r->base + scratch;
    r->work.stride = r->region_size;
    r->work.slots = r->slots;
    return JEM_OK;
}

static jem__place jem__buf_place(const jem__run *r, int buf) {
    jem__place place = { NULL, r->region_size, r->slots };
    if (buf) place.at = r->base + r->bufs[buf].at;
    return place;
}

/* Turns the indices of buffers into addresses. A gradient without an fp32 buffer points to the
   scratch, since to forward a NULL dy means that no backward follows (jem_call.dy). */
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

/* Returns the number of parts of a step. Only convolutions are worth dividing. */
static int jem__parts(const jem__run *r, const jem__step *s, int back) {
    if (jem__has(jem__main_node(s, back), JEM__OP_CONV)) return r->parts;
    return 1;
}

/* Points the call of a fused convolution to the outputs of the addition and the activation. */
static void jem__call_fused(const jem__step *s, int group, jem_call *call, jem__inner *inner) {
    const jem__step *conv = s->fused_conv;
    const jem__step *add = s->fused_add;
    const jem__step *before_activation = conv;
    if (add) {
        const jem__step *addend = add->in[0];
        if (addend == conv) addend = add->in[1];
        inner->plus = jem__at_place(addend->value, group);
        before_activation = add;
    }
    call->y = jem__at_place(before_activation->value, group);
    if (s == before_activation) return;            /* there is no activation */
    inner->act = s->node->user;
    inner->act_y = jem__at_place(s->value, group);
    if (s->needs) inner->act_aux = jem__at_place(s->aux, group);
}

/* Computes one part of one group of a step and of the steps fused with it. If these include a
   convolution, its op computes them all. */
static void jem__run_step_forward(const jem__run *r, jem__step *s, int group, int part) {
    if (s->fused_into || part >= jem__parts(r, s, 0)) return;
    jem__step *main_step = s;
    if (s->fused_conv) main_step = s->fused_conv;
    jem_call call;
    jem__inner inner;
    jem__call_open(r, main_step, group, part, &call, &inner);
    memset(call.dx, 0, sizeof call.dx);
    inner.y16 = jem__at_place16(s->value16, group);
    if (s->fused_conv) jem__call_fused(s, group, &call, &inner);
    jem__op_forward(main_step->node, &call);
}

/* Computes a part of a group backward: the input gradient of the step's op or, if a convolution is
   fused with it, that of the convolution and then of the activation before it. */
static void jem__run_step_backward(const jem__run *r, jem__step *s, int group, int part) {
    if (s->back_fused_into || part >= jem__parts(r, s, 1)) return;
    if (!jem__has(jem__backward_node(s), JEM__OP_CONV)) {
        jem__step_backward(r, s, group);
        return;
    }
    jem__step *main_step = s;
    if (s->back_conv) main_step = s->back_conv;
    jem_call call;
    jem__inner inner;
    jem__call_open(r, main_step, group, part, &call, &inner);
    if (s->back_conv) {                            /* through the activation, to its input */
        inner.act = s->node->user;
        inner.act_aux = jem__at_place(s->aux, group);
        inner.add[0] = s->add[0];
        call.dx[0] = NULL;
        if (s->in[0]->needs) call.dx[0] = jem__at_place(s->in[0]->grad, group);
    }
    if (s->in[0]->grad16_writer == s) inner.y16 = jem__at_place16(s->in[0]->grad16, group);
    if (s->in[0]->grad16_only) call.dx[0] = NULL;
    if (call.dx[0] || inner.y16) jem__op_backward(main_step->node, &call);
}

/* Takes one group through list[from..to-1]. */
static void jem__group_forward(const jem__run *r, int group) {
    for (int i = r->from; i < r->to; i++) jem__run_step_forward(r, r->list[i], group, 0);
}
static void jem__group_backward(const jem__run *r, int group) {
    for (int i = r->to - 1; i >= r->from; i--)
        if (r->list[i]->needs) jem__run_step_backward(r, r->list[i], group, 0);
}

/* Takes each group that uses region `slot` forward, then back if the run does both. */
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
    if (r->back) jem__run_step_backward(r, s, i / parts, i % parts);
    else jem__run_step_forward(r, s, i / parts, i % parts);
}

/* Runs list[from..to-1] depth-first, with one task per region forward, one per group backward. */
static void jem__span_depth_first(jem__run *r) {
    const int groups = r->list[r->from]->node->groups;
    double flops = 0;
    for (int i = r->from; i < r->to; i++) flops += (1 + r->both) * r->list[i]->node->flops * groups;
    if (r->back) {
        jem__parallel(r->ctx, groups, flops, jem__task_group_backward, r);
        return;
    }
    int tasks = r->slots;
    if (tasks > groups) tasks = groups;
    jem__parallel(r->ctx, tasks, flops, jem__task_slot, r);
}

/* Runs list[from..to-1] step by step, each convolution in parts. */
static void jem__span_in_parts(jem__run *r) {
    const int from = r->from;
    const int groups = r->list[from]->node->groups;
    for (int i = 0; i < r->to - from; i++) {
        int at = from + i;
        if (r->back) at = r->to - 1 - i;
        const jem__step *s = r->list[at];
        if (r->back && (!s->needs || s->back_fused_into)) continue;
        if (!r->back && s->fused_into) continue;
        const double flops = jem__main_node(s, r->back)->flops * groups;
        r->from = at;
        jem__parallel(r->ctx, groups * jem__parts(r, s, r->back), flops, jem__task_part, r);
    }
    r->from = from;
}

/* Returns the largest number of tasks per thread if each group is split into `parts` tasks. */
static int jem__rounds(int threads, int groups, int parts) {
    return jem__div_up(groups * parts, threads);
}

/* Returns the number of parts that leaves threads idle for the shortest time, but 1 if there are
   two or more groups per thread: undivided groups go depth-first and remain in the caches. */
static int jem__parts_for(const jem__run *r, int groups) {
    const int threads = r->ctx->threads;
    if (groups >= 2 * threads) return 1;
    const int least = jem__div_up(threads, groups);
    int best = least;
    for (int parts = least + 1; parts <= least + 2; parts++)
        if (jem__rounds(threads, groups, parts) * best < jem__rounds(threads, groups, best) * parts)
            best = parts;
    return best;
}

/* Runs list[from..to-1] over all groups. */
static void jem__run_span(jem__run *r) {
    r->parts = jem__parts_for(r, r->list[r->from]->node->groups);
    if (r->parts == 1) jem__span_depth_first(r);
    else jem__span_in_parts(r);
}

/* Returns 1 if steps i and j can go depth-first together: neither needs the whole batch, and both
   have the same number of groups. */
static int jem__together(const jem__run *r, int i, int j) {
    const jem__node *a = r->list[i]->node;
    const jem__node *b = r->list[j]->node;
    return !jem__has(a, JEM__OP_WHOLE) && !jem__has(b, JEM__OP_WHOLE) && a->groups == b->groups;
}

/* Runs all steps forward. Neighbours that treat images separately form one span. */
static void jem__run_forward(jem__run *r) {
    r->back = 0;
    for (r->from = 0; r->from < r->n; r->from = r->to) {
        r->to = r->from + 1;
        while (r->to < r->n && jem__together(r, r->from, r->to)) r->to++;
        if (jem__has(r->list[r->from]->node, JEM__OP_WHOLE))
            jem__step_forward(r, r->list[r->from], 0);
        else jem__run_span(r);
    }
}

/* Runs all steps backward, in spans, and computes the gradients of parameters. */
static jem_status jem__run_backward(jem__run *r) {
    r->back = 1;
    for (int g = 0; g < r->target->node->groups; g++) jem__seed(r, g);
    for (int i = r->n - 1; i >= 0; i--) {
        jem__step *s = r->list[i];
        if (!s->needs) continue;
        if (jem__run_trains(r, s->node)) {
            const jem_status status = jem__step_params(r, s);
            if (status != JEM_OK) return status;
        }
        if (jem__has(s->node, JEM__OP_WHOLE)) {
            jem__step_backward(r, s, 0);
            continue;
        }
        /* A span ends before a step with weights, whose gradient reads dy of all groups. */
        r->to = i + 1;
        while (i > 0 && jem__together(r, i - 1, r->to - 1) &&
               !jem__run_trains(r, r->list[i - 1]->node)) i--;
        r->from = i;
        jem__run_span(r);
    }
    return JEM_OK;
}

/* Sets the number of regions, `slots`, and of parts with scratch in each, `most_parts`. Returns 1
   if all steps can go depth-first together. */
static int jem__plan_threads(jem__run *r) {
    const int threads = r->ctx->threads;
    int groups = 1;
    int together = r->n > 0;
    r->most_parts = 1;
    for (int i = 0; i < r->n; i++) {
        jem__step *s = r->list[i];
        const int parts = jem__parts_for(r, s->node->groups);
        if (s->node->groups > groups) groups = s->node->groups;
        if (jem__has(s->node, JEM__OP_CONV) && parts > r->most_parts) r->most_parts = parts;
        together = together && jem__together(r, 0, i);
    }
    if (together) r->most_parts = jem__parts_for(r, groups);
    r->slots = threads;
    if (r->mode == JEM__BACKWARD || !together || r->most_parts > 1) r->slots = groups;
    return together;
}

/* Plans a run and executes it. The order of planning matters: fusion decides which values and
   gradients are stored, and bf16 copies decide which of the gradients are stored in fp32. */
static jem_status jem__run_planned(jem__run *r) {
    enum { MOST = 5 };                             /* buffers of a step: value, aux, gradient, and
                                                      bf16 copies of value and gradient */
    r->bufs = (jem__buf *)jem__push(r->ctx, (size_t)(MOST * r->n + 1) * sizeof *r->bufs);
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
    if (together && r->mode == JEM__GRAD && r->most_parts == 1) {
        r->to = r->n;
        r->both = 1;
        jem__run_span(r);
        return JEM_OK;
    }
    jem__run_forward(r);
    if (r->mode == JEM__EVAL || !jem_ok(r->ctx)) return r->ctx->status;
    return jem__run_backward(r);
}

/* ---- requests -------------------------------------------------------------------------------- */

/* Lists the steps to run, and prepares their ops: a convolution packs its weights. */
static jem_status jem__list_steps(jem__run *r) {
    r->list = (jem__step **)jem__push(r->ctx, (size_t)(r->n + 1) * sizeof *r->list);
    if (!r->list) return JEM_NO_MEMORY;
    r->n = 0;
    jem_status status = JEM_OK;
    for (jem__step *s = r->ctx->steps; s <= r->target && status == JEM_OK; s++) {
        const jem_op *op = s->node->op;
        if (!s->runs) continue;
        s->pos = r->n;
        r->list[r->n++] = s;
        if (!op->traits || !op->traits->prepare) continue;
        jem_call call;
        jem__inner inner;
        jem__call_open(r, s, 0, 0, &call, &inner);
        status = op->traits->prepare(&call, s->needs && s->in[0]->needs);
    }
    return status;
}

/* Computes the target. JEM__GRAD also computes d target / d leaf; JEM__BACKWARD also adds to the
   gradients of the parameters. */
static jem_status jem__run_tape(jem_ctx *ctx, jem__mode mode, jem__node *target, jem__node *leaf) {
    JEM__ZEROED(jem__run, r);
    r.ctx = ctx;
    r.mode = mode;
    jem__mark_steps(&r, target, leaf);
    if (leaf && !r.target->needs) {
        leaf->grad = NULL;                         /* of an earlier target */
        return jem__fail(ctx, JEM_BAD_ARGUMENT, "grad: %s does not depend on the leaf %s, or only "
                         "through an op without a gradient", jem__shape_text(&target->t).s,
                         jem__shape_text(&leaf->t).s);
    }
    if (mode == JEM__BACKWARD && !r.target->needs)
        return jem__fail(ctx, JEM_BAD_ARGUMENT, "backward: the loss depends on no parameter");
    jem_status status = jem__allocate_kept(&r);
    if (status == JEM_OK && r.n == 0 && !leaf) return status;
    jem_mark mark = jem_begin(ctx);                /* jem_end frees the memory of the run */
    if (status == JEM_OK) status = jem__list_steps(&r);
    if (status == JEM_OK) {
        if (ctx->desc.plain_tape) status = jem__tape_plain(&r);
        else status = jem__run_planned(&r);
    }
    if (status == JEM_OK) status = ctx->status;    /* an op may have failed */
    for (int i = 0; r.list && i < r.n; i++) {
        jem__node *node = r.list[i]->node;
        node->ready = status == JEM_OK && node->value;
    }
    if (status != JEM_OK && leaf) leaf->grad = NULL;
    jem_end(ctx, mark);
    return status;
}

static jem_status jem__compute(jem_tensor *t, const char *what) {
    if (!t) return JEM_BAD_ARGUMENT;
    if (!jem__usable(t, what)) return t->ctx->status;
    if (t->node->ready) return JEM_OK;
    return jem__run_tape(t->ctx, JEM__EVAL, t->node, NULL);
}

void jem_keep(jem_tensor *t) { if (t && t->node) t->node->keep = 1; }

jem_status jem_read(jem_tensor *t, float *nchw) {
    if (jem__usable(t, "read") && !nchw)
        return jem__fail(t->ctx, JEM_BAD_ARGUMENT, "read: nchw is NULL");
    const jem_status status = jem__compute(t, "read");
    if (status == JEM_OK) jem__copy_out(t->node, t->node->value, nchw);
    return status;
}

static int jem__one_number(const jem_tensor *t) { return (double)t->n * t->c * t->h * t->w <= 1; }

float jem_item(jem_tensor *t) {
    if (jem__usable(t, "item") && !jem__one_number(t))
        jem__fail(t->ctx, JEM_BAD_SHAPE, "item: %s is not one number", jem__shape_text(t).s);
    if (jem__compute(t, "item") != JEM_OK) return (float)NAN;
    return t->node->value[0];
}

jem_status jem_backward(jem_tensor *loss) {
    if (!loss) return JEM_BAD_ARGUMENT;
    if (!jem__usable(loss, "backward")) return loss->ctx->status;
    if (!jem__one_number(loss))
        return jem__fail(loss->ctx, JEM_BAD_SHAPE, "backward: the loss is %s, not one number",
                         jem__shape_text(loss).s);
    return jem__run_tape(loss->ctx, JEM__BACKWARD, loss->node, NULL);
}

jem_status jem_grad(jem_tensor *y, jem_tensor *x) {
    if (!y || !x) return JEM_BAD_ARGUMENT;
    if (!jem__usable(y, "grad")) return y->ctx->status;
    if (!jem__need_leaf(x, "grad")) return x->ctx->status;
    if (x->ctx != y->ctx)
        return jem__fail(y->ctx, JEM_BAD_ARGUMENT, "grad: x is a tensor of another context");
    if (y->node->group_floats != JEM_LANES) {
        x->node->grad = NULL;                      /* of an earlier target */
        return jem__fail(y->ctx, JEM_BAD_SHAPE, "grad: y is %s, not one number per image",
                         jem__shape_text(y).s);
    }
    return jem__run_tape(y->ctx, JEM__GRAD, y->node, x->node);
}

jem_status jem_read_grad(const jem_tensor *x, float *nchw) {
    if (!x) return JEM_BAD_ARGUMENT;
    if (!jem__need_leaf(x, "read_grad")) return x->ctx->status;
    if (!nchw) return jem__fail(x->ctx, JEM_BAD_ARGUMENT, "read_grad: nchw is NULL");
    if (!x->node->grad)
        return jem__fail(x->ctx, JEM_BAD_ARGUMENT,
                         "read_grad: this %s leaf has no gradient: call jem_grad first",
                         jem__shape_text(x).s);
    jem__copy_out(x->node, x->node->grad, nchw);
    return JEM_OK;
}

/* ---- the gradient checker -------------------------------------------------------------------- */

/* Calls a log-density function, and keeps it from freeing tensors that the library uses. */
static jem_tensor *jem__call_logp(jem_ctx *ctx, jem_logp_fn logp, void *user, jem_tensor *x) {
    const uint64_t outer = jem__protect(ctx);
    jem_tensor *y = logp(ctx, x, user);
    ctx->floor = outer;
    return y;
}

/* Returns the sum of fn(x) over images, in double; NaN after an error. */
static double jem__check_value(jem_ctx *ctx, jem_logp_fn fn, void *user, jem_tensor *x) {
    jem_mark mark = jem_begin(ctx);
    jem_tensor *y = jem__call_logp(ctx, fn, user, x);
    double sum = (double)NAN;
    if (jem__compute(y, "check_gradient") == JEM_OK) {
        sum = 0;
        for (int i = 0; i < y->n; i++)
            sum += (double)y->node->value[jem__lane_at(y->node, i, 0, 0, 0)];
    }
    jem_end(ctx, mark);
    return sum;
}

/* Computes d sum fn / d x by the tape, or d sum fn / d p if p is given. grad must hold zeros. */
static void jem__check_tape(jem_ctx *ctx, jem_logp_fn fn, void *user, jem_tensor *x, jem_param *p,
                            float *grad) {
    jem_mark mark = jem_begin(ctx);
    jem_tensor *y = jem__call_logp(ctx, fn, user, x);
    if (!p && jem_grad(y, x) == JEM_OK) jem_read_grad(x, grad);
    if (p && jem__usable(y, "check_gradient")) {
        float *before = p->grad;
        p->grad = grad;
        if (y->node->group_floats == JEM_LANES) jem__run_tape(ctx, JEM__BACKWARD, y->node, NULL);
        else jem__fail(ctx, JEM_BAD_SHAPE, "check_gradient: y must have one number per image");
        p->grad = before;
    }
    if (!y) jem__fail(ctx, JEM_BAD_ARGUMENT, "check_gradient: the function made nothing");
    jem_end(ctx, mark);
}

/* Makes the tape use the changed elements; unlike jem_write, works after an error too. */
static void jem__check_put(jem_tensor *x, jem_param *p, const float *elements) {
    if (p) {
        jem_param_changed(p);
        jem__outdate(p->ctx, 0);
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
    const int is_leaf = jem__need_leaf(x, "check_gradient");
    const int trainable = !p || p->grad;
    if (!ctx || !fn || !is_leaf || !trainable || !jem__finite(step) || !(step > 0)) {
        jem__fail(ctx, JEM_BAD_ARGUMENT, "check_gradient: needs a function, a leaf, a trainable "
                  "parameter (or none) and a finite step > 0");
        return -1;
    }
    if (x->ctx != ctx || (p && p->ctx != ctx)) {
        jem__fail(ctx, JEM_BAD_ARGUMENT, "check_gradient: the %s is of another context",
                  x->ctx != ctx ? "leaf" : "parameter");
        return -1;
    }
    ptrdiff_t n = x->n * (x->node->group_floats / JEM_LANES);
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
        const int larger = !jem__finite((float)error) || error > worst;
        if (larger && jem__finite((float)worst)) worst = error;        /* NaN remains the worst */
    }
    jem__free(ctx, grad);
    if (!p) jem__free(ctx, elements);
    if (!jem_ok(ctx)) return -1;
    return (float)(worst / largest);
}

/* ==== >>ops: building blocks of networks ====================================================== */
/* An op is a check of shapes, a jem_op, and two functions on one group of 16 images. */

#define JEM__OP(name, functions, keeps, traits)                                                    \
    static const jem_op jem__op_##name = { #name, jem__##functions##_forward,                      \
                                           jem__##functions##_backward, keeps, traits }

/* Records an op of one input, without parameters. */
static jem_tensor *jem__op1(jem_ctx *ctx, const jem_op *op, jem_tensor *x, jem_shape out,
                            const void *user, size_t user_bytes, size_t aux_bytes) {
    return jem__record(ctx, op, &x, 1, out, NULL, 0, user, user_bytes, aux_bytes);
}

/* Elementwise ops y = f(x): map_NAME and slope_NAME in >>engine, the op's name in messages, and the
   array from which its backward computes f'. */
#define JEM__MAPS(ROW)                                                                             \
    ROW(SCALE, scale, "scale", NOTHING)                                                            \
    ROW(SHIFT, shift, "add_constant", NOTHING)                                                     \
    ROW(SQUARE, square, "square", INPUT)                                                           \
    ROW(EXP, exp, "exp", OUTPUT)                                                                   \
    ROW(LOG, log, "log", INPUT)                                                                    \
    ROW(TANH, tanh, "tanh", OUTPUT)                                                                \
    ROW(SIGMOID, sigmoid, "sigmoid", OUTPUT)                                                       \
    ROW(SOFTPLUS, softplus, "softplus", INPUT)                                                     \
    ROW(AT_LEAST, at_least, "clamp", INPUT)                                                        \
    ROW(AT_MOST, at_most, "clamp", INPUT)

#define JEM__ROW(KIND, name, op, kept) JEM__MAP_##KIND,
enum {
    JEM__MAPS(JEM__ROW)
    JEM__MAP_LEAKY,        /* activation that can be fused; keeps a bit for each value */
    JEM__MAP_SILU,         /* activation that can be fused; keeps a slope for each value */
    JEM__MAP_DROP          /* the backward of dropout */
};
#undef JEM__ROW
typedef struct jem__map_user { int kind; float a; } jem__map_user;     /* a: the op's constant */

/* ---- few images: lanes are blocks of one image ----------------------------------------------- */
/* A batch of one would leave 15 of 16 lanes idle. Therefore the networks below cut the images of a
   group with idle lanes into 4 x 4 blocks: n images become 16 n smaller ones, each image fills a
   group, and its block (row, column) is lane 4*row + column. The full groups of a larger batch
   remain whole, and pass through the network separately. Elementwise ops treat blocks like any
   other images. Convolutions do so too, forward and backward, but read a copy with a border from
   the neighbouring blocks, that is, from other lanes.

   If an image's side is not 4 times a block's, a margin at the right and bottom fills up the last
   blocks. A convolution that reads neighbours must read zeros there, as in padding, and its input
   gradient must be zero there, since no output depends on the margin: the op `trim`, recorded
   before such a convolution, ensures both. In other ops, values of the margin come only from the
   margin, and gradients of 0 remain 0, so that sums over pixels, as for a bias's gradient, may
   include the margin. */

enum { JEM__GRID = 4 };
enum { JEM__TO_IMAGE, JEM__TO_BLOCKS, JEM__ADDS = 2 };     /* bits of jem__copy_blocks' `how` */

/* Returns the image's row that is row y of the block in a lane; likewise for columns. */
static int jem__row_of(int lane, int block_h, int y) { return lane / JEM__GRID * block_h + y; }
static int jem__column_of(int lane, int block_w, int x) { return lane % JEM__GRID * block_w + x; }

/* Copies image number `image` of the batch to its blocks (how = JEM__TO_BLOCKS) or from them; with
   JEM__ADDS, adds instead. `from` and `to` are the groups that hold them. Leaves the margin as it
   is. */
static void jem__copy_blocks(const float *from, float *to, jem_shape block, jem_shape whole,
                             int image, int how) {
    const int to_blocks = how & JEM__TO_BLOCKS;
    for (int lane = 0; lane < JEM_LANES; lane++) {
        const int column = jem__column_of(lane, block.w, 0);
        const int columns = whole.w - column < block.w ? whole.w - column : block.w;
        for (int y = 0; y < block.h; y++) {
            const int row = jem__row_of(lane, block.h, y);
            if (row >= whole.h) break;
            ptrdiff_t in_whole = ((ptrdiff_t)row * whole.w + column) * block.c * JEM_LANES;
            ptrdiff_t in_block = (ptrdiff_t)y * block.w * block.c * JEM_LANES + lane;
            in_whole += image % JEM_LANES;
            for (int i = 0; i < columns * block.c; i++) {
                const float *source = from + (to_blocks ? in_whole : in_block);
                float *target = to + (to_blocks ? in_block : in_whole);
                if (how & JEM__ADDS) *target += *source;
                else *target = *source;
                in_whole += JEM_LANES;
                in_block += JEM_LANES;
            }
        }
    }
}

/* Copies all images of a call or, if `how` contains JEM__ADDS, adds their gradients. */
static void jem__copy_images(const jem_call *call, jem_shape block, jem_shape whole, int how) {
    const int to_blocks = how & JEM__TO_BLOCKS;
    for (int i = 0; i < whole.n; i++) {
        const jem_call source = jem__at(call, to_blocks ? i / JEM_LANES : i);
        const jem_call target = jem__at(call, to_blocks ? i : i / JEM_LANES);
        const float *from = how & JEM__ADDS ? source.dy : source.x[0];
        float *to = how & JEM__ADDS ? target.dx[0] : target.y;
        jem__copy_blocks(from, to, block, whole, i, how);
    }
}

static void jem__cut_forward(const jem_call *call) {
    for (int i = 0; i < call->in[0].n; i++)        /* the margin, too */
        memset(jem__at(call, i).y, 0, (size_t)jem__group_floats(call->out) * sizeof(float));
    jem__copy_images(call, call->out, call->in[0], JEM__TO_BLOCKS);
}
static void jem__cut_backward(const jem_call *call) {
    jem__copy_images(call, call->out, call->in[0], JEM__TO_IMAGE | JEM__ADDS);
}
static void jem__join_forward(const jem_call *call) {
    jem__copy_images(call, call->in[0], call->out, JEM__TO_IMAGE);
    for (int g = 0; g < jem__groups(call->out.n); g++) {
        const jem_call whole = jem__at(call, g);
        jem__fill_padding(whole.y, jem__group_floats(call->out), whole.live);
    }
}
static void jem__join_backward(const jem_call *call) {
    jem__copy_images(call, call->in[0], call->out, JEM__TO_BLOCKS | JEM__ADDS);
}
JEM__OP(cut, cut, JEM_KEEPS_NOTHING, &jem__whole);
JEM__OP(join, join, JEM_KEEPS_NOTHING, &jem__whole);

/* Cuts images into blocks. Rounds sides up to a multiple of `unit`, which is a multiple of 4. */
static jem_tensor *jem__cut_blocks(jem_ctx *ctx, jem_tensor *x, int unit) {
    if (!x || !jem_ok(ctx)) return NULL;
    const int h = jem__div_up(x->h, unit) * unit;
    const int w = jem__div_up(x->w, unit) * unit;
    const jem_shape out = jem__shape(x->n * JEM_LANES, x->c, h / JEM__GRID, w / JEM__GRID);
    jem_tensor *y = jem__op1(ctx, &jem__op_cut, x, out, NULL, 0, 0);
    if (!y) return NULL;
    y->image_h = x->h;
    y->image_w = x->w;
    return y;
}

/* Joins blocks; whole images remain as they are. */
static jem_tensor *jem__join_blocks(jem_ctx *ctx, jem_tensor *x) {
    if (!x || !jem_ok(ctx) || !x->image_h) return x;
    const jem_shape out = jem__shape(x->n / JEM_LANES, x->c, x->image_h, x->image_w);
    jem_tensor *y = jem__op1(ctx, &jem__op_join, x, out, NULL, 0, 0);
    if (!y) return NULL;
    y->image_h = 0;
    y->image_w = 0;
    return y;
}

/* Multiplies margin pixels by 0 and all others by 1; stores the products in y or, with `add`, adds
   them. A position that is inside the image in the last row and column of blocks is inside it in
   every lane; in place, such pixels are skipped. */
static void jem__trim_pixels(const jem_call *call, const float *x, float *y, int add) {
    enum { LAST = JEM__GRID - 1 };
    const int *image = (const int *)call->user;
    const jem_shape block = call->out;
    const ptrdiff_t pixel = (ptrdiff_t)block.c * JEM_LANES;
    for (int row = 0; row < block.h; row++) {
        for (int column = 0; column < block.w; column++, x += pixel, y += pixel) {
            float inside[JEM_LANES], down[JEM__GRID], right[JEM__GRID];
            for (int i = 0; i < JEM__GRID; i++) {
                down[i] = (float)(i * block.h + row < image[0]);
                right[i] = (float)(i * block.w + column < image[1]);
            }
            if (down[LAST] > 0 && right[LAST] > 0 && !add && x == y) continue;
            for (int lane = 0; lane < JEM_LANES; lane++)
                inside[lane] = down[lane / JEM__GRID] * right[lane % JEM__GRID];
            call->ctx->k->pair_back(1, x, inside, 1, y, add, pixel);
        }
    }
}
static void jem__trim_forward(const jem_call *call) {
    jem__trim_pixels(call, call->x[0], call->y, 0);
}
static void jem__trim_backward(const jem_call *call) {
    jem__trim_pixels(call, call->dy, call->dx[0], call->inner->add[0]);
}
JEM__OP(trim, trim, JEM_KEEPS_NOTHING, &jem__in_place);

/* Sets the margin of blocks to 0, if they have one. */
static jem_tensor *jem__trim(jem_ctx *ctx, jem_tensor *x) {
    const int image[2] = { x->image_h, x->image_w };
    if (!x->image_h) return x;
    if (x->image_h == JEM__GRID * x->h && x->image_w == JEM__GRID * x->w) return x;
    return jem__op1(ctx, &jem__op_trim, x, jem__shape_of(x), image, sizeof image, 0);
}

/* Returns the block of a row or column: -1 for the one before, 0 for this one, 1 for the next. */
static int jem__block_step(int at, int side) {
    if (at < 0) return -1;
    return at >= side;
}

/* Returns the lanes whose block has a neighbour in direction (down, right), as bits. */
static unsigned jem__lanes_with_neighbour(int down, int right) {
    static const unsigned rows[3] = { 0xFFF0, 0xFFFF, 0x0FFF };     /* -1, 0, 1 */
    static const unsigned columns[3] = { 0xEEEE, 0xFFFF, 0x7777 };
    return rows[down + 1] & columns[right + 1];
}

/* Copies blocks x (h,w,c) to y (h + 2 border, w + 2 border, c), border <= h, w. The border is taken
   from the neighbouring blocks; it is 0 outside the image. */
static void jem__frame(const jem_ctx *ctx, const float *x, jem_shape shape, int border, float *y) {
    const ptrdiff_t pixel = (ptrdiff_t)shape.c * JEM_LANES;
    for (int row = -border; row < shape.h + border; row++) {
        const int down = jem__block_step(row, shape.h);
        const ptrdiff_t line = (ptrdiff_t)(row - down * shape.h) * shape.w;
        int column = -border;
        while (column < shape.w + border) {
            const int right = jem__block_step(column, shape.w);
            const float *from = x + (line + column - right * shape.w) * pixel;
            int pixels = 1;                        /* pixels copied at once */
            if (right == 0) pixels = shape.w;
            if (down || right)
                ctx->k->shift(from, JEM__GRID * down + right,
                              jem__lanes_with_neighbour(down, right), y, pixels * pixel);
            else memcpy(y, from, (size_t)(pixels * pixel) * sizeof *y);
            y += pixels * pixel;
            column += pixels;
        }
    }
}

/* Fills y with groups of the inputs: those of the first from the index in call->user on, then those
   of the second, if there is one. With `back`, adds y's gradients to the inputs' instead. */
static void jem__move_groups(const jem_call *call, int back) {
    const ptrdiff_t size = jem__group_floats(call->out);
    const int groups = jem__groups(call->out.n);
    int from = *(const int *)call->user;
    int to = 0;
    for (int k = 0; k < call->inputs; k++) {
        for (; from < jem__groups(call->in[k].n) && to < groups; from++, to++) {
            const jem_call source = jem__at(call, from);
            const jem_call target = jem__at(call, to);
            float *dx = source.dx[k];
            if (!back) memcpy(target.y, source.x[k], (size_t)size * sizeof(float));
            else if (dx) call->ctx->k->pair(JEM__PAIR_ADD, dx, target.dy, 0, dx, size);
        }
        from = 0;
    }
}
static void jem__take_groups_forward(const jem_call *call) { jem__move_groups(call, 0); }
static void jem__take_groups_backward(const jem_call *call) { jem__move_groups(call, 1); }
JEM__OP(take_groups, take_groups, JEM_KEEPS_NOTHING, &jem__whole);

/* Copies images first .. first+n-1 of x. first is a multiple of 16; first+n is one too, or it is
   x's number of images. */
static jem_tensor *jem__take_images(jem_ctx *ctx, jem_tensor *x, int first, int n) {
    const int group = first / JEM_LANES;
    const jem_shape out = jem__shape(n, x->c, x->h, x->w);
    return jem__op1(ctx, &jem__op_take_groups, x, out, &group, sizeof group, 0);
}
/* Appends the images of b to those of a, whose number is a multiple of 16. */
static jem_tensor *jem__append_images(jem_ctx *ctx, jem_tensor *a, jem_tensor *b) {
    const int group = 0;
    jem_tensor *in[2] = { a, b };
    const jem_shape out = jem__shape(a->n + b->n, a->c, a->h, a->w);
    return jem__record(ctx, &jem__op_take_groups, in, 2, out, NULL, 0, &group, sizeof group, 0);
}

/* ---- convolutions: interface of the engine --------------------------------------------------- */

#define JEM__MAX_KERNEL 32
#define JEM__MAX_TAPS (JEM__MAX_KERNEL * JEM__MAX_KERNEL)

/* A convolution reads (ci,hi,wi) and writes (co,ho,wo). An input gradient is a convolution too: it
   reads dy and writes dx, with rotated weights, in stride*stride phases, each of which contains the
   pixels that read the same taps. A convolution's output has one phase. */
typedef struct jem__conv {
    int ci, hi, wi, co, ho, wo, k, stride, pad;
    int gradient;                                  /* 1: it is an input gradient */
    int tile;                                      /* Winograd's M; 0: another method */
    const struct jem__method *method;              /* how it is computed */
} jem__conv;

/* Part number `index` of the `count` parts of a group. */
typedef struct jem__part { int index, count; } jem__part;

/* Returns the first of the units that a part computes; parts begin at multiples of `step`. */
static int jem__part_from(int index, int count, int units, int step) {
    const int steps = jem__div_up(units, step);
    const int from = (int)((int64_t)steps * index / count) * step;
    if (from > units) return units;
    return from;
}

/* Operations on a convolution's sum, in this order; NULL: omitted. Tensors have the output's shape
   and hold one group. */
typedef struct jem__finish {
    const float *bias;                             /* (co): added */
    const uint16_t *bits;                          /* multiplied: by `slope` where the bit is set */
    const float *slopes;                           /* multiplied, value by value */
    const float *add;                              /* added */
    float *y;                                      /* stored; may be `add` */
    int kind;                                      /* JEM__MAP_LEAKY, _SILU; 0: no activation */
    float slope;                                   /* of JEM__MAP_LEAKY below 0; also for `bits` */
    float *act;                                    /* output of the activation, stored */
    uint16_t *keep_bits;                           /* data for its backward, stored */
    float *keep_slopes;
    uint16_t *y16;                                 /* result of all these, in bf16 (see >>bf16) */
} jem__finish;

/* Input of a convolution, for one part of one group: x, or its bf16 copy; packed weights; and
   scratch. */
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
typedef struct jem__weight_grad {
    jem_ctx *ctx;
    const struct jem_call *call;                   /* source of the operands */
    const jem__conv *q;
    int groups, products, finishes;
    float *dw, *db;                                /* added to: (O,I,k,k) and (O), or NULL */
    int planes;                                    /* of each operand: one per group or, with
                                                      Winograd, one per point of a tile */
    ptrdiff_t x_plane, y_plane, product_size, product_step, sums_size;
    ptrdiff_t tiles;                               /* Winograd: tiles of all groups */
    float *x, *y, *product, *sums;
    int border;                                    /* of blocks of few images; 0: no blocks */
    float *framed;                                 /* x with that border */
} jem__weight_grad;

/* Weights (O,I,k,k) that are being put into a method's order, by one task per 16 channels
   written. */
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
    void (*plan)(jem__weight_grad *);              /* sizes and tasks of a weight gradient */
    /* Puts one operand of a group, x (side 0) or dy (side 1), into the method's order. */
    void (*deal)(const jem__weight_grad *, int group, int side, const jem__operands *);
    void (*product)(const jem__weight_grad *, int i);
    void (*finish)(const jem__weight_grad *, int i);
} jem__method;

/* Chooses the methods of a convolution's output, input gradient and weight gradient: q[0..2]. */
static void jem__conv_choose(const jem_ctx *ctx, jem__conv *q);

/* ---- packed weights -------------------------------------------------------------------------- */

/* A copy of a parameter in the order that a method reads; remade when the parameter changes. */
typedef struct jem__pack {
    struct jem__pack *next;
    const jem__method *method;
    int kind;
    uint32_t version;
    float *data;
} jem__pack;

/* Returns the kind of a packed copy. Convolutions with the same weights, method and kind share one
   copy. With Winograd, the kind depends on tile and stride, so an input gradient shares the
   output's copy; with other methods, an input gradient's kind depends on stride and pad. */
static int jem__pack_kind(const jem__conv *q) {
    if (q->tile) return q->tile + 8 * q->stride;
    if (q->gradient) return 1 + q->stride * 64 + q->pad % q->stride;
    return 0;
}
static jem__pack *jem__pack_find(const jem_param *w, const jem__conv *q) {
    jem__pack *pack = w->packs;
    while (pack && (pack->method != q->method || pack->kind != jem__pack_kind(q)))
        pack = pack->next;
    return pack;
}

/* Adds an empty copy to the parameter; returns NULL if memory runs out. */
static jem__pack *jem__pack_add(jem_param *w, const jem__conv *q) {
    float *data = jem__alloc_floats(w->ctx, q->method->pack_size(q));
    if (!data) return NULL;
    jem__pack *pack = (jem__pack *)jem__alloc(w->ctx, sizeof *pack);
    if (!pack) {
        jem__free(w->ctx, data);
        return NULL;
    }
    pack->data = data;
    pack->method = q->method;
    pack->kind = jem__pack_kind(q);
    pack->next = w->packs;
    w->packs = pack;
    return pack;
}

/* Returns the number of blocks of 16 that hold n channels; in bf16, a tile has one block. */
static int jem__channel_blocks(int n) { return jem__div_up(n, 16); }

/* Packs the weights for a convolution, unless an up-to-date copy exists. */
static jem_status jem__pack_update(jem_ctx *ctx, jem_param *w, const jem__conv *q) {
    jem__pack *pack = jem__pack_find(w, q);
    if (pack && pack->version == w->version) return JEM_OK;
    if (!pack) pack = jem__pack_add(w, q);
    if (!pack) return JEM_NO_MEMORY;               /* which jem__alloc has reported */
    jem__packing packing = { ctx, q, w->value, pack->data, jem__channel_blocks(q->co) };
    const double flops = 100 * (double)q->method->pack_size(q);        /* an estimate */
    jem__parallel(ctx, packing.parts, flops, q->method->pack, &packing);
    pack->version = w->version;
    return JEM_OK;
}

/* ---- conv2d, linear -------------------------------------------------------------------------- */

typedef struct jem__conv_user {
    jem__conv out, grad, weights;                  /* output, input gradient, weight gradient */
    int border_x, border_dy;                       /* pixels read beyond blocks, of x and of dy */
} jem__conv_user;

/* Returns the number of floats in one group of an input with its border. */
static ptrdiff_t jem__framed_floats(const jem__conv *q) {
    return jem__group_floats(jem__shape(1, q->ci, q->hi, q->wi));
}

/* Packs the weights if they have changed: for forward and, on request, for the input gradient. */
static jem_status jem__conv_prepare(const jem_call *call, int need_input_grad) {
    const jem__conv_user *user = (const jem__conv_user *)call->user;
    jem_param *w = call->inner->param[0];
    jem_status status = jem__pack_update(call->ctx, w, &user->out);
    if (status == JEM_OK && need_input_grad) status = jem__pack_update(call->ctx, w, &user->grad);
    return status;
}

/* Returns the operands of a convolution of x; with `border`, copies x and its border to scratch. */
static jem__operands jem__conv_operands(const jem_call *call, const jem__conv *q, const float *x,
                                        jem_shape shape, int border) {
    const jem__inner *inner = call->inner;
    JEM__ZEROED(jem__operands, operands);
    operands.ctx = call->ctx;
    operands.x = x;
    operands.work = inner->work;
    operands.packed = jem__pack_find(inner->param[0], q)->data;
    operands.part.index = inner->part;
    operands.part.count = inner->parts;
    if (border) {
        jem__frame(call->ctx, x, shape, border, inner->work);
        operands.x = inner->work;
        operands.work = inner->work + jem__framed_floats(q);
    }
    return operands;
}

/* Computes x (h,w,I,16) -> y (ho,wo,O,16), with the addition and the activation fused with it. */
static void jem__conv_forward(const jem_call *call) {
    const jem__conv_user *user = (const jem__conv_user *)call->user;
    const jem__inner *inner = call->inner;
    const jem__conv *q = &user->out;
    const jem__map_user *act = (const jem__map_user *)inner->act;
    jem__operands operands = jem__conv_operands(call, q, call->x[0], call->in[0], user->border_x);
    operands.x16 = jem__x16(inner->step, call->group);
    JEM__ZEROED(jem__finish, finish);
    finish.y = call->y;
    finish.y16 = inner->y16;
    finish.add = inner->plus;
    finish.act = inner->act_y;
    if (inner->param[1]) finish.bias = inner->param[1]->value;
    if (act) {
        finish.kind = act->kind;
        finish.slope = act->a;
        if (act->kind == JEM__MAP_SILU) finish.keep_slopes = (float *)inner->act_aux;
        else finish.keep_bits = (uint16_t *)inner->act_aux;
    }
    q->method->run(q, &operands, &finish);
}

/* Computes dy -> dx, with the backward of the activation fused with it. */
static void jem__conv_backward(const jem_call *call) {
    const jem__conv_user *user = (const jem__conv_user *)call->user;
    const jem__inner *inner = call->inner;
    const jem__conv *q = &user->grad;
    const jem__map_user *act = (const jem__map_user *)inner->act;
    jem__operands operands = jem__conv_operands(call, q, call->dy, call->out, user->border_dy);
    operands.x16 = jem__dy16(inner->step, call->group);
    JEM__ZEROED(jem__finish, finish);
    finish.y = call->dx[0];
    finish.y16 = inner->y16;
    if (inner->add[0]) finish.add = call->dx[0];
    if (act) {
        finish.slope = act->a;
        if (act->kind == JEM__MAP_SILU) finish.slopes = (const float *)inner->act_aux;
        else finish.bits = (const uint16_t *)inner->act_aux;
    }
    q->method->run(q, &operands, &finish);
}

/* A weight gradient is dw[o][i][tap] += sum over images and pixels of dy[o] x[i] at that tap, and
   db[o] += sum of dy[o]. Three kinds of tasks compute it (see jem__weight_grad). */

/* Puts x of a group into the method's order. */
static void jem__task_deal_x(const jem__weight_grad *weights, int group) {
    const jem_call call = jem__at(weights->call, group);
    JEM__ZEROED(jem__operands, operands);
    operands.ctx = call.ctx;
    operands.x = call.x[0];
    operands.x16 = jem__x16(call.inner->step, group);
    if (weights->border) {
        float *framed = weights->framed + group * jem__framed_floats(weights->q);
        jem__frame(call.ctx, call.x[0], call.in[0], weights->border, framed);
        operands.x = framed;
    }
    weights->q->method->deal(weights, group, 0, &operands);
}

/* Puts dy of a group into the method's order. */
static void jem__task_deal_dy(const jem__weight_grad *weights, int group) {
    const jem_call call = jem__at(weights->call, group);
    JEM__ZEROED(jem__operands, operands);
    operands.ctx = call.ctx;
    operands.x = call.dy;
    operands.x16 = jem__dy16(call.inner->step, group);
    weights->q->method->deal(weights, group, 1, &operands);
}
/* Puts x or dy of group i / 2 into the method's order. */
static void jem__task_deal(void *arg, int i) {
    const jem__weight_grad *weights = (const jem__weight_grad *)arg;
    if (i % 2 == 0) jem__task_deal_x(weights, i / 2);
    else jem__task_deal_dy(weights, i / 2);
}
static void jem__task_product(void *arg, int i) {
    const jem__weight_grad *weights = (const jem__weight_grad *)arg;
    weights->q->method->product(weights, i);
}
static void jem__task_finish(void *arg, int i) {
    const jem__weight_grad *weights = (const jem__weight_grad *)arg;
    weights->q->method->finish(weights, i);
}

/* Allocates the arrays of a weight gradient; returns 0 if memory runs out. */
static int jem__weights_memory(jem__weight_grad *weights, const jem_param *w) {
    jem_ctx *ctx = weights->ctx;
    weights->x = jem__push_floats(ctx, weights->planes * weights->x_plane);
    weights->y = jem__push_floats(ctx, weights->planes * weights->y_plane);
    weights->product = jem__push_floats(ctx, weights->product_size);
    weights->sums = (float *)jem__push_zero(ctx, (size_t)weights->sums_size * sizeof(float));
    if (weights->border) {
        weights->framed = jem__push_floats(ctx, weights->groups * jem__framed_floats(weights->q));
        if (!weights->framed) return 0;
    }
    /* A bias can be trained without its weights; their gradient is then computed and discarded. */
    if (!weights->dw) weights->dw = jem__push_floats(ctx, jem__padded(w));
    return weights->x && weights->y && weights->product && weights->sums && weights->dw;
}

/* Adds to the gradients of weight and bias. */
static jem_status jem__conv_param_grad(const jem_call *call) {
    const jem__conv_user *user = (const jem__conv_user *)call->user;
    const jem__node *node = call->inner->step->node;
    jem_ctx *ctx = call->ctx;
    JEM__ZEROED(jem__weight_grad, weights);
    weights.ctx = ctx;
    weights.call = call;
    weights.q = &user->weights;
    weights.groups = node->groups;
    weights.border = user->border_x;
    weights.dw = node->param[0]->grad;
    if (node->param[1]) weights.db = node->param[1]->grad;
    weights.q->method->plan(&weights);
    jem_status status = JEM_NO_MEMORY;
    jem_mark mark = jem_begin(ctx);
    if (jem__weights_memory(&weights, node->param[0])) {
        const double flops = node->flops * node->groups;
        jem__parallel(ctx, 2 * node->groups, flops, jem__task_deal, &weights);
        jem__parallel(ctx, weights.products, flops, jem__task_product, &weights);
        jem__parallel(ctx, weights.finishes, flops, jem__task_finish, &weights);
        status = JEM_OK;
    }
    jem_end(ctx, mark);
    return status;
}

static const jem__traits jem__conv_traits = { JEM__OP_STORES | JEM__OP_CONV, jem__conv_prepare,
    jem__conv_param_grad, JEM_KEEPS_INPUT };
JEM__OP(conv2d, conv, JEM_KEEPS_NOTHING, &jem__conv_traits);
JEM__OP(linear, conv, JEM_KEEPS_NOTHING, &jem__conv_traits);

/* Returns 1 if x (n,I,h,w), w (O,I,k,k) and b (O) fit; k = 0 if w is not square. */
static int jem__conv_fits(const jem_tensor *x, const jem_param *w, const jem_param *b, int k,
                          jem_conv_desc desc) {
    if (!w || k < 1 || k > JEM__MAX_KERNEL || w->shape[1] != x->c) return 0;
    if (b && (b->ndim != 1 || b->shape[0] != w->shape[0])) return 0;
    if (desc.stride < 1 || desc.stride > 64 || desc.pad < 0 || desc.pad >= 64) return 0;
    return x->h + 2 * desc.pad >= k && x->w + 2 * desc.pad >= k;
}

/* Returns the side of a convolution's output; `side` is that of its input. */
static int jem__conv_side(int side, int k, jem_conv_desc desc) {
    return (side + 2 * desc.pad - k) / desc.stride + 1;
}

/* Describes the convolution that computes the output from x with a border. */
static jem__conv jem__conv_of_output(const jem_tensor *x, int co, int k, jem_conv_desc desc,
                                     int border) {
    JEM__ZEROED(jem__conv, q);
    q.ci = x->c;
    q.hi = x->h + 2 * border;
    q.wi = x->w + 2 * border;
    q.co = co;
    q.ho = jem__conv_side(x->h, k, desc);
    q.wo = jem__conv_side(x->w, k, desc);
    q.k = k;
    q.stride = desc.stride;
    q.pad = desc.pad - border;
    return q;
}

/* Describes the convolution that computes the input gradient from dy with a border. */
static jem__conv jem__conv_of_input_grad(const jem_tensor *x, const jem__conv *out,
                                         jem_conv_desc desc, int border) {
    JEM__ZEROED(jem__conv, q);
    q.ci = out->co;
    q.hi = out->ho + 2 * border;
    q.wi = out->wo + 2 * border;
    q.co = x->c;
    q.ho = x->h;
    q.wo = x->w;
    q.k = out->k;
    q.stride = desc.stride;
    q.pad = desc.pad + desc.stride * border;
    q.gradient = 1;
    return q;
}

/* Describes the convolutions of a call, and chooses their methods. */
static jem__conv_user jem__conv_describe(const jem_ctx *ctx, const jem_tensor *x, int co, int k,
                                         jem_conv_desc desc) {
    JEM__ZEROED(jem__conv_user, user);
    if (x->image_h) {
        /* Row y of dx reads dy at (y + pad - tap)/stride, up to `before` rows before its block and
           `after` rows after it; likewise for columns. */
        const int before = (k - 1 - desc.pad) / desc.stride;
        const int after = (desc.stride - 1 + desc.pad) / desc.stride;
        user.border_x = desc.pad;
        user.border_dy = before > after ? before : after;
    }
    jem__conv q[3];
    q[0] = jem__conv_of_output(x, co, k, desc, user.border_x);
    q[1] = jem__conv_of_input_grad(x, &q[0], desc, user.border_dy);
    q[2] = q[0];
    jem__conv_choose(ctx, q);
    user.out = q[0];
    user.grad = q[1];
    user.weights = q[2];
    return user;
}

/* Returns the number of floats of scratch that a convolution needs. */
static ptrdiff_t jem__conv_work(const jem__conv *q, int border) {
    const ptrdiff_t work = q->method->work(q);
    if (border) return work + jem__framed_floats(q);
    return work;
}

/* Records a convolution with a k x k kernel. */
static jem_tensor *jem__conv_record(jem_ctx *ctx, const jem_op *op, jem_tensor *x, jem_param *w,
                                    jem_param *b, int k, jem_conv_desc desc) {
    if (!jem__conv_fits(x, w, b, k, desc)) {
        char steps[48] = "";                       /* for convolutions only */
        if (op != &jem__op_linear)
            jem__print(steps, sizeof steps, ", stride %d, pad %d", desc.stride, desc.pad);
        return jem__refuse(ctx, JEM_BAD_SHAPE, "%s: x %s, weight %s, bias %s%s do not fit",
                           op->name, jem__shape_text(x).s, jem__param_text(w).s,
                           b ? jem__param_text(b).s : "none", steps);
    }
    if (desc.pad > 0) x = jem__trim(ctx, x);
    if (!x) return NULL;
    const jem__conv_user user = jem__conv_describe(ctx, x, w->shape[0], k, desc);
    jem_param *params[2] = { w, b };
    const jem_shape out = jem__shape(x->n, user.out.co, user.out.ho, user.out.wo);
    jem_tensor *y = jem__record(ctx, op, &x, 1, out, params, 2, &user, sizeof user, 0);
    if (!y) return NULL;
    jem__node *node = y->node;
    const ptrdiff_t forward = jem__conv_work(&user.out, user.border_x);
    const ptrdiff_t backward = jem__conv_work(&user.grad, user.border_dy);
    node->flops = 2 * (double)node->group_floats * x->c * k * k;
    node->work = forward > backward ? forward : backward;
    node->bf16_out = !x->image_h && user.out.method->bf16;
    node->bf16_grad = !x->image_h && user.grad.method->bf16;
    node->bf16_params = !x->image_h && user.weights.method->bf16;
    if (x->image_h) {
        y->image_h = jem__conv_side(x->image_h, k, desc);
        y->image_w = jem__conv_side(x->image_w, k, desc);
    }
    return y;
}

jem_tensor *jem_conv2d(jem_ctx *ctx, jem_tensor *x, jem_param *w, jem_param *b,
                       jem_conv_desc desc) {
    if (!x || !jem_ok(ctx)) return NULL;
    int k = 0;
    if (w && w->ndim == 4 && w->shape[2] == w->shape[3]) k = w->shape[2];
    if (desc.stride == 0) desc.stride = 1;
    return jem__conv_record(ctx, &jem__op_conv2d, x, w, b, k, desc);
}

/* Records a 1x1 convolution of one pixel. */
jem_tensor *jem_linear(jem_ctx *ctx, jem_tensor *x, jem_param *w, jem_param *b) {
    if (!x || !jem_ok(ctx)) return NULL;
    const jem_conv_desc desc = { 1, 0 };
    const int k = w && w->ndim == 2 && x->h == 1 && x->w == 1;     /* 1; or 0, which never fits */
    return jem__conv_record(ctx, &jem__op_linear, x, w, b, k, desc);
}

/* ---- elementwise, one input ------------------------------------------------------------------ */

/* Computes y = f(x). */
static void jem__map_forward(const jem_call *call) {
    const jem__map_user *user = (const jem__map_user *)call->user;
    void *aux = NULL;
    if (call->dy) aux = call->aux;
    call->ctx->k->map(user->kind, user->a, call->x[0], call->y, aux, jem__group_floats(call->out));
}
/* Computes dx = dy f'(x). */
static void jem__map_backward(const jem_call *call) {
    const jem__map_user *user = (const jem__map_user *)call->user;
    const float *kept = call->x[0];
    if (call->inner->step->node->op->keeps == JEM_KEEPS_OUTPUT) kept = call->y;
    call->ctx->k->map_back(user->kind, user->a, kept, call->aux, call->dy, call->dx[0],
                           call->inner->add[0], jem__group_floats(call->out));
}

/* The ops in the order of JEM__MAP_SCALE, ... */
#define JEM__ROW(KIND, name, op, kept)                                                             \
    { op, jem__map_forward, jem__map_backward, JEM_KEEPS_##kept, &jem__in_place },
static const jem_op jem__map_ops[] = {
    JEM__MAPS(JEM__ROW)
    { "leaky_relu", jem__map_forward, jem__map_backward, JEM_KEEPS_NOTHING, &jem__activates },
    { "silu", jem__map_forward, jem__map_backward, JEM_KEEPS_NOTHING, &jem__activates }
};
#undef JEM__ROW

/* Records an elementwise op of one input. */
static jem_tensor *jem__map(jem_ctx *ctx, jem_tensor *x, int kind, float a) {
    if (!x || !jem_ok(ctx)) return NULL;
    const jem__map_user user = { kind, a };
    const size_t floats = (size_t)jem__group_floats(jem__shape_of(x));
    size_t aux_bytes = 0;
    if (kind == JEM__MAP_LEAKY) aux_bytes = floats / 8;      /* a bit for each value */
    if (kind == JEM__MAP_SILU) aux_bytes = floats * sizeof(float);
    return jem__op1(ctx, &jem__map_ops[kind], x, jem__shape_of(x), &user, sizeof user, aux_bytes);
}

jem_tensor *jem_scale(jem_ctx *ctx, jem_tensor *x, float factor) {
    return jem__map(ctx, x, JEM__MAP_SCALE, factor);
}
jem_tensor *jem_add_constant(jem_ctx *ctx, jem_tensor *x, float term) {
    return jem__map(ctx, x, JEM__MAP_SHIFT, term);
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

/* Computes y = f(x) of an array. The kernel takes 16 numbers at a time: the rest is padded. */
static void jem__map_array(const jem_ctx *ctx, int kind, const float *x, float *y, ptrdiff_t n) {
    if (!ctx || !x || !y || n < 1) return;
    const ptrdiff_t rest = n % JEM_LANES;
    ctx->k->map(kind, 0, x, y, NULL, n - rest);
    if (!rest) return;
    float last[JEM_LANES] = { 0 };
    memcpy(last, x + n - rest, (size_t)rest * sizeof *last);
    ctx->k->map(kind, 0, last, last, NULL, JEM_LANES);
    memcpy(y + n - rest, last, (size_t)rest * sizeof *last);
}
void jem_compute_exp(const jem_ctx *ctx, const float *x, float *y, ptrdiff_t n) {
    jem__map_array(ctx, JEM__MAP_EXP, x, y, n);
}
void jem_compute_tanh(const jem_ctx *ctx, const float *x, float *y, ptrdiff_t n) {
    jem__map_array(ctx, JEM__MAP_TANH, x, y, n);
}
void jem_compute_sigmoid(const jem_ctx *ctx, const float *x, float *y, ptrdiff_t n) {
    jem__map_array(ctx, JEM__MAP_SIGMOID, x, y, n);
}

jem_tensor *jem_clamp(jem_ctx *ctx, jem_tensor *x, float lo, float hi) {
    if (!x || !jem_ok(ctx)) return NULL;
    if (jem__is_nan(lo) || jem__is_nan(hi))
        return jem__refuse(ctx, JEM_BAD_ARGUMENT, "clamp: lo = %g or hi = %g is not a number",
                           (double)lo, (double)hi);
    if (!(lo <= hi))
        return jem__refuse(ctx, JEM_BAD_ARGUMENT, "clamp: lo = %g exceeds hi = %g", (double)lo,
                           (double)hi);
    return jem__map(ctx, jem__map(ctx, x, JEM__MAP_AT_LEAST, lo), JEM__MAP_AT_MOST, hi);
}

/* ---- dropout --------------------------------------------------------------------------------- */

typedef struct jem__drop_user { float probability, scale; jem_rng rng; } jem__drop_user;

/* Draws a uniform number for each element of y; the kernel replaces it by 0 or the scaled x. The
   numbers depend on the group's index in the whole batch, of all ranks. */
static void jem__drop_forward(const jem_call *call) {
    const jem__drop_user *user = (const jem__drop_user *)call->user;
    const jem__kernels *k = call->ctx->k;
    const int group = call->group + call->ctx->rank * jem__groups(call->out.n);
    const jem_rng rng = jem_rng_split(&user->rng, (uint64_t)group);
    const ptrdiff_t n = jem__group_floats(call->out);
    uint16_t *dropped = NULL;
    if (call->dy) dropped = (uint16_t *)call->aux;
    k->fill(JEM__UNIFORM, rng.key, 0, call->y, n, 0.0f, 1.0f);
    jem__fill_padding(call->y, n, call->live);
    k->drop(user->probability, user->scale, call->x[0], call->y, dropped, n);
}
static void jem__drop_backward(const jem_call *call) {
    const jem__drop_user *user = (const jem__drop_user *)call->user;
    call->ctx->k->map_back(JEM__MAP_DROP, user->scale, NULL, call->aux, call->dy, call->dx[0],
                           call->inner->add[0], jem__group_floats(call->out));
}
JEM__OP(dropout, drop, JEM_KEEPS_NOTHING, &jem__stores);

jem_tensor *jem_dropout(jem_ctx *ctx, jem_tensor *x, float p, jem_rng *rng) {
    if (!x || !jem_ok(ctx)) return NULL;
    if (!rng) return jem__refuse(ctx, JEM_BAD_ARGUMENT, "dropout: rng is NULL");
    if (!jem__finite(p) || !(p >= 0 && p < 1))
        return jem__refuse(ctx, JEM_BAD_ARGUMENT, "dropout: p = %g is not in [0,1)", (double)p);
    const jem_rng own = jem_rng_split(rng, rng->counter);
    rng->counter++;
    const jem__drop_user user = { p, 1 / (1 - p), own };
    const size_t vectors = (size_t)jem__group_floats(jem__shape_of(x)) / JEM_LANES;
    return jem__op1(ctx, &jem__op_dropout, x, jem__shape_of(x), &user, sizeof user,
                    vectors * sizeof(uint16_t));
}

/* ---- elementwise, two inputs ----------------------------------------------------------------- */

static int jem__pair_kind(const jem_call *call) { return *(const int *)call->user; }

/* Returns 1 if b has one number per image, and a has more. */
static int jem__is_broadcast(const jem_call *call) {
    const jem_shape b = call->in[1];
    return b.c * b.h * b.w == 1 && jem__group_floats(call->in[0]) > JEM_LANES;
}

/* Returns the number of floats per call of a kernel: all, or those of a pixel if b has one number
   per channel. */
static ptrdiff_t jem__pair_length(const jem_call *call) {
    if (jem__is_broadcast(call)) return jem__group_floats(call->in[0]);
    return jem__group_floats(call->in[1]);
}

/* Computes y = a op b. */
static void jem__pair_forward(const jem_call *call) {
    const int kind = jem__pair_kind(call);
    const int broadcast = jem__is_broadcast(call);
    const ptrdiff_t n = jem__group_floats(call->out);
    const ptrdiff_t length = jem__pair_length(call);
    for (ptrdiff_t at = 0; at < n; at += length)
        call->ctx->k->pair(kind, call->x[0] + at, call->x[1], broadcast, call->y + at, length);
}

/* Computes da = dy (add, sub), dy b (mul). */
static void jem__pair_backward_a(const jem_call *call) {
    const int broadcast = jem__is_broadcast(call);
    const ptrdiff_t n = jem__group_floats(call->out);
    const ptrdiff_t length = jem__pair_length(call);
    const float *factor = NULL;
    if (jem__pair_kind(call) == JEM__PAIR_MUL) factor = call->x[1];
    for (ptrdiff_t at = 0; at < n; at += length)
        call->ctx->k->pair_back(1, call->dy + at, factor, broadcast, call->dx[0] + at,
                                call->inner->add[0], length);
}

/* Computes db = dy (add), -dy (sub), dy a (mul); summed where b was broadcast. */
static void jem__pair_backward_b(const jem_call *call) {
    const ptrdiff_t n = jem__group_floats(call->out);
    const ptrdiff_t length = jem__pair_length(call);
    float sign = 1;
    if (jem__pair_kind(call) == JEM__PAIR_SUB) sign = -1;
    const float *factor = NULL;
    if (jem__pair_kind(call) == JEM__PAIR_MUL) factor = call->x[0];
    if (jem__is_broadcast(call)) {
        call->ctx->k->dot(sign, call->dy, factor, call->dx[1], call->inner->add[1], n);
        return;
    }
    for (ptrdiff_t at = 0; at < n; at += length) {
        const int add = call->inner->add[1] || at > 0;
        const float *factor_at = NULL;
        if (factor) factor_at = factor + at;
        call->ctx->k->pair_back(sign, call->dy + at, factor_at, 0, call->dx[1], add, length);
    }
}

/* Computes both gradients, except one that shares dy's memory (dx = dy): it is there already. For
   x - x, dx[0] and dx[1] are one buffer, to which the second gradient is still added. */
static void jem__pair_backward(const jem_call *call) {
    const jem__step *s = call->inner->step;
    const float *da = call->dx[0];
    const float *db = call->dx[1];
    if (da && da != call->dy) jem__pair_backward_a(call);
    if (db && (db != call->dy || s->in[0] == s->in[1])) jem__pair_backward_b(call);
}

/* Records an elementwise op of two inputs. */
static jem_tensor *jem__pair(jem_ctx *ctx, jem_tensor *a, jem_tensor *b, int kind) {
    static const jem_op ops[] = {                  /* in the order of JEM__PAIR_ADD, ... */
        { "add", jem__pair_forward, jem__pair_backward, JEM_KEEPS_NOTHING, &jem__adds },
        { "sub", jem__pair_forward, jem__pair_backward, JEM_KEEPS_NOTHING, &jem__in_place },
        { "mul", jem__pair_forward, jem__pair_backward, JEM_KEEPS_INPUT | JEM_KEEPS_INPUT1,
          &jem__stores }
    };
    if (!a || !b || !jem_ok(ctx)) return NULL;
    const int one_pixel = b->h == 1 && b->w == 1;
    const int same_size = a->h == b->h && a->w == b->w;
    const int channels_fit = a->c == b->c && (one_pixel || same_size);
    const int one_number = one_pixel && b->c == 1;
    if (a->n != b->n || !(channels_fit || one_number))
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

/* ---- pooling --------------------------------------------------------------------------------- */

/* Pooling of (h,w,c) to (ho,wo,c): windows of kh x kw; scale: 1/(kh kw). */
typedef struct jem__pool { int w, c, kh, kw, stride, ho, wo; float scale; } jem__pool;

/* Returns the offset in x of pixel t in the window of output pixel o. */
JEM__INLINE ptrdiff_t jem__pool_at(const jem__pool *pool, int o, int t) {
    const ptrdiff_t row = o / pool->wo * pool->stride + t / pool->kw;
    const ptrdiff_t column = o % pool->wo * pool->stride + t % pool->kw;
    return (row * pool->w + column) * pool->c * JEM_LANES;
}

static void jem__pool_forward(const jem_call *call) {
    call->ctx->k->pool((const jem__pool *)call->user, call->x[0], call->y);
}
static void jem__pool_backward(const jem_call *call) {
    call->ctx->k->pool_back((const jem__pool *)call->user, call->dy, call->dx[0]);
}
JEM__OP(avg_pool, pool, JEM_KEEPS_NOTHING, NULL);

/* Computes the maximum of each window, and stores in aux its index in the window, which is
   below 256 (see jem__pooled). A NaN counts as a maximum; it is detected by its bits, because of
   -ffast-math. */
static void jem__max_forward(const jem_call *call) {
    const jem__pool *pool = (const jem__pool *)call->user;
    const ptrdiff_t n = (ptrdiff_t)call->out.c * JEM_LANES;
    unsigned char *which = (unsigned char *)call->aux;
    float *y = call->y;
    for (int o = 0; o < pool->ho * pool->wo; o++) {
        for (int t = 0; t < pool->kh * pool->kw; t++) {
            const float *x = call->x[0] + jem__pool_at(pool, o, t);
            for (ptrdiff_t k = 0; k < n; k++) {
                const int larger = jem__is_nan(x[k]) || (!jem__is_nan(y[k]) && x[k] > y[k]);
                if (t > 0 && !larger) continue;
                y[k] = x[k];
                which[k] = (unsigned char)t;
            }
        }
        y += n;
        which += n;
    }
}

/* Adds each dy to the gradient of the pixel that was the maximum. */
static void jem__max_backward(const jem_call *call) {
    const jem__pool *pool = (const jem__pool *)call->user;
    const ptrdiff_t n = (ptrdiff_t)call->out.c * JEM_LANES;
    const unsigned char *which = (const unsigned char *)call->aux;
    const float *dy = call->dy;
    for (int o = 0; o < pool->ho * pool->wo; o++) {
        for (ptrdiff_t k = 0; k < n; k++)
            call->dx[0][jem__pool_at(pool, o, which[k]) + k] += dy[k];
        dy += n;
        which += n;
    }
}
JEM__OP(max_pool, max, JEM_KEEPS_NOTHING, NULL);

/* Records a pooling op. */
static jem_tensor *jem__pooled(jem_ctx *ctx, const jem_op *op, jem_tensor *x, int kh, int kw,
                               int stride) {
    if (!x || !jem_ok(ctx)) return NULL;
    const int max = op == &jem__op_max_pool;
    if (kh < 1 || kw < 1 || stride < 1 || kh > x->h || kw > x->w || (max && kh > 15))
        return jem__refuse(ctx, JEM_BAD_SHAPE, "%s: %dx%d windows of stride %d do not fit x %s%s",
                           op->name, kh, kw, stride, jem__shape_text(x).s,
                           max ? " (15x15 at most)" : "");
    JEM__ZEROED(jem__pool, pool);
    pool.w = x->w;
    pool.c = x->c;
    pool.kh = kh;
    pool.kw = kw;
    pool.stride = stride;
    pool.ho = (x->h - kh) / stride + 1;
    pool.wo = (x->w - kw) / stride + 1;
    pool.scale = 1.0f / (float)(kh * kw);
    const jem_shape out = jem__shape(x->n, x->c, pool.ho, pool.wo);
    size_t aux_bytes = 0;
    if (max) aux_bytes = (size_t)jem__group_floats(out);           /* a byte for each value */
    return jem__op1(ctx, op, x, out, &pool, sizeof pool, aux_bytes);
}
jem_tensor *jem_avg_pool(jem_ctx *ctx, jem_tensor *x, int k, int stride) {
    if (stride == 0) stride = k;
    return jem__pooled(ctx, &jem__op_avg_pool, x, k, k, stride);
}
jem_tensor *jem_global_pool(jem_ctx *ctx, jem_tensor *x) {
    if (!x) return NULL;
    const int stride = x->h > x->w ? x->h : x->w;
    return jem__pooled(ctx, &jem__op_avg_pool, x, x->h, x->w, stride);
}
jem_tensor *jem_max_pool(jem_ctx *ctx, jem_tensor *x, int k, int stride) {
    if (stride == 0) stride = k;
    return jem__pooled(ctx, &jem__op_max_pool, x, k, k, stride);
}

/* ---- changes of shape ------------------------------------------------------------------------ */
/* These ops only move numbers. All but flatten move segments, whole vectors of 16 lanes: segment i
   of input k is `size` floats at `from` in x, copied to `to` in y. Backward adds them. */

enum { JEM__DETACH, JEM__CONCAT, JEM__SLICE, JEM__UPSAMPLE };
typedef struct jem__move_user { int kind, a; } jem__move_user;         /* a: slice's first channel,
                                                                          upsample's factor */
typedef struct jem__segment { ptrdiff_t from, to, size; } jem__segment;

/* Returns the number of segments: one for each pixel of y. */
static int jem__move_segments(const jem_call *call) { return call->out.h * call->out.w; }

/* Returns segment i of input k. */
static jem__segment jem__move_segment(const jem_call *call, int k, int i) {
    const jem__move_user *user = (const jem__move_user *)call->user;
    const jem_shape in = call->in[k];
    const jem_shape out = call->out;
    ptrdiff_t from = (ptrdiff_t)i * in.c;          /* in vectors, at first for a whole pixel */
    ptrdiff_t to = (ptrdiff_t)i * out.c;
    ptrdiff_t size = out.c;
    if (user->kind == JEM__CONCAT) {
        to += k * (out.c - in.c);
        size = in.c;
    } else if (user->kind == JEM__SLICE) {
        from += user->a;
    } else if (user->kind == JEM__UPSAMPLE) {      /* y[row][column] = x[row/a][column/a] */
        const int row = i / out.w / user->a;
        const int column = i % out.w / user->a;
        from = ((ptrdiff_t)row * in.w + column) * in.c;
    }
    const jem__segment segment = { from * JEM_LANES, to * JEM_LANES, size * JEM_LANES };
    return segment;
}

static void jem__move_forward(const jem_call *call) {
    for (int k = 0; k < call->inputs; k++)
        for (int i = 0; i < jem__move_segments(call); i++) {
            const jem__segment segment = jem__move_segment(call, k, i);
            memcpy(call->y + segment.to, call->x[k] + segment.from,
                   (size_t)segment.size * sizeof(float));
        }
}
static void jem__move_backward(const jem_call *call) {
    for (int k = 0; k < call->inputs; k++)
        for (int i = 0; call->dx[k] && i < jem__move_segments(call); i++) {
            const jem__segment segment = jem__move_segment(call, k, i);
            float *dx = call->dx[k] + segment.from;
            call->ctx->k->pair(JEM__PAIR_ADD, dx, call->dy + segment.to, 0, dx, segment.size);
        }
}

/* Records an op that only copies values. x2: the second input, or NULL. */
static jem_tensor *jem__move(jem_ctx *ctx, int kind, jem_tensor *x, jem_tensor *x2, jem_shape out,
                             int a) {
#define JEM__MOVE_OP(name, backward) { name, jem__move_forward, backward, JEM_KEEPS_NOTHING, NULL }
    static const jem_op ops[] = {                  /* in the order of JEM__DETACH, ... */
        JEM__MOVE_OP("detach", NULL), JEM__MOVE_OP("concat", jem__move_backward),
        JEM__MOVE_OP("slice", jem__move_backward), JEM__MOVE_OP("upsample", jem__move_backward)
    };
#undef JEM__MOVE_OP
    jem_tensor *in[2] = { x, x2 };
    const int inputs = 1 + (x2 != NULL);
    const jem__move_user user = { kind, a };
    return jem__record(ctx, ops + kind, in, inputs, out, NULL, 0, &user, sizeof user, 0);
}

jem_tensor *jem_upsample(jem_ctx *ctx, jem_tensor *x, int k) {
    if (!x || !jem_ok(ctx)) return NULL;
    if (k < 1 || x->h > 65536 / k || x->w > 65536 / k)
        return jem__refuse(ctx, JEM_BAD_SHAPE, "upsample: x %s, %d times: the factor must be 1 or "
                           "more, the sides at most 65536", jem__shape_text(x).s, k);
    const jem_shape out = jem__shape(x->n, x->c, k * x->h, k * x->w);
    jem_tensor *y = jem__move(ctx, JEM__UPSAMPLE, x, NULL, out, k);
    if (!y) return NULL;
    y->image_h = k * x->image_h;
    y->image_w = k * x->image_w;
    return y;
}

/* Moves channel c of pixel p from (p,c) to (c,p), that is, from rows, columns, channels to
   channels, rows, columns, the order that weights in files expect. */
static void jem__flatten_forward(const jem_call *call) {
    const float *x = call->x[0];
    const int pixels = call->in[0].h * call->in[0].w;
    for (int p = 0; p < pixels; p++) {
        float *y = call->y + p * JEM_LANES;
        for (int c = 0; c < call->in[0].c; c++) {
            memcpy(y, x, JEM_LANES * sizeof *y);
            x += JEM_LANES;
            y += pixels * JEM_LANES;
        }
    }
}
static void jem__flatten_backward(const jem_call *call) {
    float *dx = call->dx[0];
    const int pixels = call->in[0].h * call->in[0].w;
    for (int p = 0; p < pixels; p++) {
        const float *dy = call->dy + p * JEM_LANES;
        for (int c = 0; c < call->in[0].c; c++) {
            for (int l = 0; l < JEM_LANES; l++) dx[l] += dy[l];
            dx += JEM_LANES;
            dy += pixels * JEM_LANES;
        }
    }
}
JEM__OP(flatten, flatten, JEM_KEEPS_NOTHING, NULL);

jem_tensor *jem_flatten(jem_ctx *ctx, jem_tensor *x) {
    if (!x || !jem_ok(ctx)) return NULL;
    const jem_shape out = jem__shape(x->n, x->c * x->h * x->w, 1, 1);
    return jem__op1(ctx, &jem__op_flatten, x, out, NULL, 0, 0);
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
    if (!x) return NULL;
    return jem__move(ctx, JEM__DETACH, x, NULL, jem__shape_of(x), 0);
}

/* ---- one number per image -------------------------------------------------------------------- */

static void jem__lse_forward(const jem_call *call) {
    call->ctx->k->logsumexp(call->x[0], call->in[0].c, call->y);
}
static void jem__lse_backward(const jem_call *call) {
    call->ctx->k->logsumexp_back(call->x[0], call->y, call->dy, call->in[0].c, call->dx[0],
                                 call->inner->add[0]);
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
    return jem_sub(ctx, x, jem_logsumexp(ctx, x));
}

/* Computes y = x[label], with a label per lane. */
static void jem__gather_forward(const jem_call *call) {
    const int *label = (const int *)call->user + call->group * JEM_LANES;
    for (int l = 0; l < JEM_LANES; l++) call->y[l] = call->x[0][label[l] * JEM_LANES + l];
}
static void jem__gather_backward(const jem_call *call) {
    const int *label = (const int *)call->user + call->group * JEM_LANES;
    for (int l = 0; l < JEM_LANES; l++) call->dx[0][label[l] * JEM_LANES + l] += call->dy[l];
}
JEM__OP(gather, gather, JEM_KEEPS_NOTHING, NULL);

jem_tensor *jem_gather(jem_ctx *ctx, jem_tensor *x, const int *labels) {
    if (!x || !jem_ok(ctx)) return NULL;
    if (x->h != 1 || x->w != 1)
        return jem__refuse(ctx, JEM_BAD_SHAPE, "gather: x is %s, not (n,c,1,1)",
                           jem__shape_text(x).s);
    if (!jem__labels_good(ctx, "gather", labels, x->n, x->c)) return NULL;
    const ptrdiff_t lanes = (ptrdiff_t)jem__groups(x->n) * JEM_LANES;
    const size_t bytes = (size_t)lanes * sizeof(int);
    jem_tensor *y = jem__op1(ctx, &jem__op_gather, x, jem__shape(x->n, 1, 1, 1), NULL, bytes, 0);
    if (!y) return NULL;
    int *own = (int *)y->node->user;
    for (ptrdiff_t i = 0; i < lanes; i++) own[i] = labels[i < x->n ? i : x->n - 1];
    return y;
}

/* Computes y = sum of x over c, h, w. */
static void jem__sum_image_forward(const jem_call *call) {
    call->ctx->k->dot(1, call->x[0], NULL, call->y, 0, jem__group_floats(call->in[0]));
}
static void jem__sum_image_backward(const jem_call *call) {
    float *dx = call->dx[0];
    call->ctx->k->pair(JEM__PAIR_ADD, dx, call->dy, 1, dx, jem__group_floats(call->in[0]));
}
JEM__OP(sum_image, sum_image, JEM_KEEPS_NOTHING, NULL);

jem_tensor *jem_sum_image(jem_ctx *ctx, jem_tensor *x) {
    if (!x || !jem_ok(ctx)) return NULL;
    return jem__op1(ctx, &jem__op_sum_image, x, jem__shape(x->n, 1, 1, 1), NULL, 0, 0);
}

/* ---- one number ------------------------------------------------------------------------------ */

/* Computes y = factor * sum of all elements of x, in double and in a fixed order. */
static void jem__total_forward(const jem_call *call) {
    const double factor = *(const double *)call->user;
    double sum = 0;
    for (int g = 0; g < jem__groups(call->in[0].n); g++) {
        const jem_call at = jem__at(call, g);
        const int live = jem__live_lanes(call->in[0].n, g);
        for (ptrdiff_t i = 0; i < jem__group_floats(call->in[0]); i += JEM_LANES)
            for (int l = 0; l < live; l++) sum += (double)at.x[0][i + l];
    }
    for (int l = 0; l < JEM_LANES; l++) call->y[l] = (float)(sum * factor);
}
/* Adds factor * dy to dx for every image, but not for padding lanes, which therefore do not
   contribute to weight gradients. */
static void jem__total_backward(const jem_call *call) {
    const double factor = *(const double *)call->user;
    const float each = (float)((double)call->dy[0] * factor);
    for (int g = 0; g < jem__groups(call->in[0].n); g++) {
        const jem_call at = jem__at(call, g);
        const int live = jem__live_lanes(call->in[0].n, g);
        for (ptrdiff_t i = 0; i < jem__group_floats(call->in[0]); i += JEM_LANES)
            for (int l = 0; l < live; l++) at.dx[0][i + l] += each;
    }
}
JEM__OP(mean, total, JEM_KEEPS_NOTHING, &jem__whole);
JEM__OP(sum, total, JEM_KEEPS_NOTHING, &jem__whole);

static jem_tensor *jem__total(jem_ctx *ctx, const jem_op *op, jem_tensor *x, double factor) {
    if (!x || !jem_ok(ctx)) return NULL;
    return jem__op1(ctx, op, x, jem__shape(1, 1, 1, 1), &factor, sizeof factor, 0);
}
jem_tensor *jem_mean(jem_ctx *ctx, jem_tensor *x) {
    if (!x) return NULL;
    return jem__total(ctx, &jem__op_mean, x, 1.0 / ((double)x->n * x->c * x->h * x->w));
}
jem_tensor *jem_sum(jem_ctx *ctx, jem_tensor *x) { return jem__total(ctx, &jem__op_sum, x, 1); }

/* ---- normalisation: y = (x - mean) rstd gamma + beta ----------------------------------------- */
/* All four norms compute this. They differ in where mean and rstd = 1/sqrt(var + 1e-5) come from:
   x itself (instance norm, layer norm, batch norm in training), running statistics (batch norm
   otherwise), or parameters (act norm: mean = -loc, rstd = 1). aux holds mean[c][16], rstd[c][16],
   and two sums for the backward pass: s1 = sum dy and s2 = sum dy xhat, xhat = (x - mean) rstd. */

typedef struct jem__norm_user { jem_norm kind; float momentum; } jem__norm_user;
#define JEM__NORM_EPS 1e-5f

/* A normalisation of (pixels,c). */
typedef struct jem__norm {
    float *mean, *rstd, *s1, *s2;                  /* (c,16) each; s1: sum dy, s2: sum dy xhat */
    const float *gamma, *beta;                     /* (c); beta NULL: 0 */
    ptrdiff_t pixels;
    int c, per_image;                              /* 1: each image has its own statistics */
} jem__norm;

static jem_norm jem__norm_kind(const jem_call *call) {
    return ((const jem__norm_user *)call->user)->kind;
}

/* Returns the arrays and sizes of a normalisation for the group of a call. */
static jem__norm jem__norm_open(const jem_call *call) {
    const jem_norm kind = jem__norm_kind(call);
    jem_param *const *param = call->inner->param;
    const ptrdiff_t n = (ptrdiff_t)call->out.c * JEM_LANES;
    jem__norm norm;
    norm.mean = (float *)call->aux;
    norm.rstd = norm.mean + n;
    norm.s1 = norm.rstd + n;
    norm.s2 = norm.s1 + n;
    norm.gamma = param[0]->value;
    norm.beta = param[1]->value;
    if (kind == JEM_NORM_ACT) {                    /* its parameters are loc, scale */
        norm.gamma = param[1]->value;
        norm.beta = NULL;
    }
    norm.pixels = (ptrdiff_t)call->out.h * call->out.w;
    norm.c = call->out.c;
    norm.per_image = kind == JEM_NORM_INSTANCE || kind == JEM_NORM_LAYER;
    return norm;
}

/* Turns sums[c][16] over pixels into means over pixels, for the layer norm over channels too. */
static void jem__norm_mean(const jem__norm *norm, jem_norm kind, float *sums) {
    for (int l = 0; l < JEM_LANES; l++) {
        float all = 0;
        for (int i = 0; i < norm->c; i++) all += sums[i * JEM_LANES + l];
        for (int i = 0; i < norm->c; i++) {
            float *sum = sums + i * JEM_LANES + l;
            if (kind == JEM_NORM_LAYER) *sum = all / (float)(norm->pixels * norm->c);
            else *sum = *sum / (float)norm->pixels;
        }
    }
}

/* Sets mean and rstd where they do not depend on x: from parameters or running statistics. */
static void jem__norm_given(const jem_call *call, const jem__norm *norm) {
    jem_param *const *param = call->inner->param;
    const int act = jem__norm_kind(call) == JEM_NORM_ACT;
    for (int i = 0; i < norm->c; i++) {
        float mean, rstd;
        if (act) {
            mean = -param[0]->value[i];
            rstd = 1;
        } else {
            mean = param[2]->value[i];
            rstd = 1 / sqrtf(param[3]->value[i] + JEM__NORM_EPS);
        }
        for (int l = 0; l < JEM_LANES; l++) {
            norm->mean[i * JEM_LANES + l] = mean;
            norm->rstd[i * JEM_LANES + l] = rstd;
        }
    }
}

/* Computes mean and rstd of each image of the group. The mean is corrected by the mean of x - mean:
   where x is nearly constant, the rounding error of a sum exceeds the standard deviation. */
static void jem__norm_per_image(const jem_call *call, const jem__norm *norm) {
    const jem_norm kind = jem__norm_kind(call);
    const jem__kernels *k = call->ctx->k;
    const int n = norm->c * JEM_LANES;
    float *correction = norm->rstd;
    memset(norm->mean, 0, 2 * (size_t)n * sizeof(float));    /* and correction */
    k->moment(call->x[0], NULL, 0, norm->pixels, norm->c, norm->mean);
    jem__norm_mean(norm, kind, norm->mean);
    k->moment(call->x[0], norm->mean, 0, norm->pixels, norm->c, correction);
    jem__norm_mean(norm, kind, correction);
    for (int i = 0; i < n; i++) norm->mean[i] += correction[i];
    memset(norm->rstd, 0, (size_t)n * sizeof(float));
    k->moment(call->x[0], norm->mean, 1, norm->pixels, norm->c, norm->rstd);
    jem__norm_mean(norm, kind, norm->rstd);
    for (int i = 0; i < n; i++) norm->rstd[i] = 1 / sqrtf(norm->rstd[i] + JEM__NORM_EPS);
}

static void jem__norm_forward(const jem_call *call) {
    const jem__norm norm = jem__norm_open(call);
    if (norm.per_image) jem__norm_per_image(call, &norm);
    else jem__norm_given(call, &norm);
    call->ctx->k->normalize(&norm, call->x[0], call->y);
}

/* Computes dx = rstd (dy gamma - mean(dy gamma) - xhat mean(dy gamma xhat)); without the two means
   if mean and rstd do not depend on x. */
static void jem__norm_backward(const jem_call *call) {
    const jem_norm kind = jem__norm_kind(call);
    const jem__norm norm = jem__norm_open(call);
    const jem__kernels *k = call->ctx->k;
    if (norm.per_image) {
        const int n = norm.c * JEM_LANES;
        memset(norm.s1, 0, 2 * (size_t)n * sizeof(float));   /* and s2 */
        k->normalize_sums(&norm, call->x[0], call->dy);
        for (int i = 0; i < n; i++) {
            norm.s1[i] *= norm.gamma[i / JEM_LANES];
            norm.s2[i] *= norm.gamma[i / JEM_LANES];
        }
        jem__norm_mean(&norm, kind, norm.s1);
        jem__norm_mean(&norm, kind, norm.s2);
    }
    k->normalize_back(&norm, norm.per_image, call->x[0], call->dy, call->dx[0]);
}

/* Computes s1[c] and s2[c] over the batch, in the first lane of group 0's s1 and s2. Padding lanes
   have dy = 0. jem__norm_batch_backward and jem__norm_param_grad both call it, since either may run
   without the other. */
static void jem__norm_totals(const jem_call *call) {
    const jem__norm total = jem__norm_open(call);
    for (int g = 0; g < jem__groups(call->out.n); g++) {
        const jem_call at = jem__at(call, g);
        const jem__norm norm = jem__norm_open(&at);
        memset(norm.s1, 0, 2 * (size_t)norm.c * JEM_LANES * sizeof(float));
        call->ctx->k->normalize_sums(&norm, at.x[0], at.dy);
        for (int i = 0; i < norm.c; i++) {
            const int first = i * JEM_LANES;
            const float s1 = jem__sum_lanes(norm.s1 + first);
            const float s2 = jem__sum_lanes(norm.s2 + first);
            if (g == 0) {
                total.s1[first] = s1;
                total.s2[first] = s2;
            } else {
                total.s1[first] += s1;
                total.s2[first] += s2;
            }
        }
    }
}

/* Computes dgamma = sum dy xhat, dbeta = sum dy; for an act norm, dscale = sum dy (x + loc), dloc =
   scale sum dy. */
static jem_status jem__norm_param_grad(const jem_call *call) {
    const jem__norm norm = jem__norm_open(call);
    jem_param *const *param = call->inner->param;
    const int act = jem__norm_kind(call) == JEM_NORM_ACT;
    float *dgamma = param[0]->grad;
    float *dbeta = param[1]->grad;
    if (act) {
        dgamma = param[1]->grad;
        dbeta = param[0]->grad;
    }
    jem__norm_totals(call);
    for (int i = 0; i < norm.c; i++) {
        float factor = 1;
        if (act) factor = norm.gamma[i];
        if (dgamma) dgamma[i] += norm.s2[i * JEM_LANES];
        if (dbeta) dbeta[i] = jem__fmaf(norm.s1[i * JEM_LANES], factor, dbeta[i]);
    }
    return JEM_OK;
}

/* Computes the average of x - mean, or of its square, over images and pixels, and stores it in all
   lanes of out[c][16]; mean NULL: 0. Sums over lanes and groups are in double. */
static void jem__norm_batch_moment(const jem_call *call, const float *mean, int squared,
                                   float *out) {
    const int groups = jem__groups(call->out.n);
    const jem__norm first = jem__norm_open(call);
    const double count = (double)call->out.n * (double)first.pixels;
    for (int g = 0; g < groups; g++) {
        const jem_call at = jem__at(call, g);
        const jem__norm norm = jem__norm_open(&at);
        memset(norm.s1, 0, (size_t)norm.c * JEM_LANES * sizeof(float));
        call->ctx->k->moment(at.x[0], mean, squared, norm.pixels, norm.c, norm.s1);
    }
    for (int i = 0; i < first.c; i++) {
        double sum = 0;
        for (int g = 0; g < groups; g++) {
            const jem_call at = jem__at(call, g);
            const float *s1 = jem__norm_open(&at).s1 + i * JEM_LANES;
            for (int l = 0; l < at.live; l++) sum += (double)s1[l];
        }
        for (int l = 0; l < JEM_LANES; l++) out[i * JEM_LANES + l] = (float)(sum / count);
    }
}

/* Returns Bessel's correction count / (count - 1), which makes a sample's variance unbiased; 1 for
   one value. */
static double jem__bessel(double count) {
    if (count > 1) return count / (count - 1);
    return 1;
}

/* Moves the running statistics towards those of the batch. */
static void jem__norm_update_running(const jem_call *call, const jem__norm *norm,
                                     const float *var) {
    const jem__norm_user *user = (const jem__norm_user *)call->user;
    const double momentum = (double)user->momentum;
    const double count = (double)call->out.n * (double)norm->pixels;
    float *running_mean = call->inner->param[2]->value;
    float *running_var = call->inner->param[3]->value;
    for (int i = 0; i < norm->c; i++) {
        const double old_mean = (double)running_mean[i];
        const double old_var = (double)running_var[i];
        const double new_mean = (double)norm->mean[i * JEM_LANES];
        const double new_var = (double)var[i * JEM_LANES];
        running_mean[i] = (float)fma(momentum, new_mean - old_mean, old_mean);
        if (count <= 1) continue;                  /* one number has no variance */
        const double change = fma(new_var, jem__bessel(count), -old_var);
        running_var[i] = (float)fma(momentum, change, old_var);
    }
}

/* Sets an act norm's parameters so that this batch has mean 0 and std 1. */
static void jem__norm_initialise(const jem_call *call, const jem__norm *norm, const float *var) {
    const double count = (double)call->out.n * (double)norm->pixels;
    float *loc = call->inner->param[0]->value;
    float *scale = call->inner->param[1]->value;
    for (int i = 0; i < norm->c; i++) {
        const double unbiased = (double)var[i * JEM_LANES] * jem__bessel(count);
        loc[i] = -norm->mean[i * JEM_LANES];
        scale[i] = (float)(1 / (sqrt(unbiased) + 1e-6));
    }
    call->inner->param[2]->value[0] = 1;
}

/* Computes mean and variance per channel over the batch; returns 0 if they are not finite. Stores
   them in group 0's aux, the variance in place of rstd. Corrects the mean as jem__norm_per_image
   does. */
static int jem__norm_statistics(const jem_call *call, const jem__norm *norm) {
    float *correction = norm->rstd;
    jem__norm_batch_moment(call, NULL, 0, norm->mean);
    jem__norm_batch_moment(call, norm->mean, 0, correction);
    for (int i = 0; i < norm->c * JEM_LANES; i++) norm->mean[i] += correction[i];
    jem__norm_batch_moment(call, norm->mean, 1, norm->rstd);
    return jem__all_finite(norm->mean, norm->c * JEM_LANES) &&
           jem__all_finite(norm->rstd, norm->c * JEM_LANES);
}

/* Computes batch norm in training. Only jem_backward updates the running statistics, and only if
   those of the batch are finite and no op has failed. */
static void jem__norm_batch_forward(const jem_call *call) {
    const jem__norm norm = jem__norm_open(call);
    const int n = norm.c * JEM_LANES;
    const int finite = jem__norm_statistics(call, &norm);
    const int learns = call->inner->run->mode == JEM__BACKWARD && jem_ok(call->ctx);
    if (finite && learns) jem__norm_update_running(call, &norm, norm.rstd);
    for (int i = 0; i < n; i++) norm.rstd[i] = 1 / sqrtf(norm.rstd[i] + JEM__NORM_EPS);
    for (int g = 0; g < jem__groups(call->out.n); g++) {
        const jem_call at = jem__at(call, g);
        const jem__norm copy = jem__norm_open(&at);
        if (g) memcpy(copy.mean, norm.mean, 2 * (size_t)n * sizeof(float));      /* and rstd */
        call->ctx->k->normalize(&norm, at.x[0], at.y);
    }
}

/* Computes an act norm that was recorded in training before its parameters were initialised. Of
   several such nodes with the same parameters, the first one to run initialises them. */
static void jem__norm_act_forward(const jem_call *call) {
    const jem__norm norm = jem__norm_open(call);
    const int initialised = call->inner->param[2]->value[0] != 0;
    if (!initialised && jem_ok(call->ctx) && jem__norm_statistics(call, &norm))
        jem__norm_initialise(call, &norm, norm.rstd);
    for (int g = 0; g < jem__groups(call->out.n); g++) {
        const jem_call at = jem__at(call, g);
        jem__norm_forward(&at);
    }
}

/* Computes dx from the sums over the whole batch; without the means for an act norm. */
static void jem__norm_batch_backward(const jem_call *call) {
    const jem__norm norm = jem__norm_open(call);
    const int from_x = jem__norm_kind(call) == JEM_NORM_BATCH;
    const float count = (float)call->out.n * (float)norm.pixels;
    const ptrdiff_t n = norm.pixels * norm.c * JEM_LANES;
    jem__norm_totals(call);
    for (int i = 0; i < norm.c; i++) {
        const float mean1 = norm.s1[i * JEM_LANES] * norm.gamma[i] / count;
        const float mean2 = norm.s2[i * JEM_LANES] * norm.gamma[i] / count;
        for (int l = 0; l < JEM_LANES; l++) {
            norm.s1[i * JEM_LANES + l] = mean1;
            norm.s2[i * JEM_LANES + l] = mean2;
        }
    }
    for (int g = 0; g < jem__groups(call->out.n); g++) {
        const jem_call at = jem__at(call, g);
        call->ctx->k->normalize_back(&norm, from_x, at.x[0], at.dy, at.dx[0]);
        jem__clear_padding(at.dx[0], n, at.live);
    }
}

/* Traits of ops that are called for each group, or once for a batch that shares statistics. */
static const jem__traits jem__norm_apart = { 0, NULL, jem__norm_param_grad, JEM_KEEPS_INPUT };
static const jem__traits jem__norm_together = { JEM__OP_WHOLE | JEM__OP_LEARNS, NULL,
                                                jem__norm_param_grad, JEM_KEEPS_INPUT };
#define JEM__NORM_OP(name)                                                                         \
    { name, jem__norm_forward, jem__norm_backward, JEM_KEEPS_INPUT, &jem__norm_apart }
static const jem_op jem__norm_ops[] = {            /* in the order of JEM_NORM_NONE, ... */
    JEM__NORM_OP("none"), JEM__NORM_OP("batch_norm"), JEM__NORM_OP("instance_norm"),
    JEM__NORM_OP("layer_norm"), JEM__NORM_OP("act_norm")
};
#undef JEM__NORM_OP
static const jem_op jem__norm_batch_op = { "batch_norm", jem__norm_batch_forward,
    jem__norm_batch_backward, JEM_KEEPS_INPUT, &jem__norm_together };
static const jem_op jem__norm_act_op = { "act_norm", jem__norm_act_forward,
    jem__norm_batch_backward, JEM_KEEPS_INPUT, &jem__norm_together };

/* Records a normalisation of any kind. */
static jem_tensor *jem__norm_record(jem_ctx *ctx, jem_tensor *x, jem_norm kind, int training,
                                    float momentum, jem_param *const *params, int n_params) {
    const jem_op *op = &jem__norm_ops[kind];
    if (!x || !jem_ok(ctx)) return NULL;
    for (int i = 0; i < n_params; i++) {
        ptrdiff_t size = x->c;
        if (kind == JEM_NORM_ACT && i == 2) size = 1;        /* initialized */
        if (!params[i] || params[i]->size != size)
            return jem__refuse(ctx, JEM_BAD_SHAPE, "%s: x %s, parameter %d %s: needs %d numbers",
                               op->name, jem__shape_text(x).s, i,
                               params[i] ? jem__param_text(params[i]).s : "NULL", (int)size);
    }
    if (kind == JEM_NORM_BATCH && training) op = &jem__norm_batch_op;
    if (kind == JEM_NORM_ACT && training && params[2]->value[0] == 0) op = &jem__norm_act_op;
    const jem__norm_user user = { kind, momentum };
    return jem__record(ctx, op, &x, 1, jem__shape_of(x), params, n_params, &user, sizeof user,
                       4 * (size_t)x->c * JEM_LANES * sizeof(float));
}

jem_tensor *jem_instance_norm(jem_ctx *ctx, jem_tensor *x, jem_param *gamma, jem_param *beta) {
    jem_param *params[2] = { gamma, beta };
    return jem__norm_record(ctx, x, JEM_NORM_INSTANCE, 0, 0, params, 2);
}
jem_tensor *jem_layer_norm(jem_ctx *ctx, jem_tensor *x, jem_param *gamma, jem_param *beta) {
    jem_param *params[2] = { gamma, beta };
    return jem__norm_record(ctx, x, JEM_NORM_LAYER, 0, 0, params, 2);
}
jem_tensor *jem_batch_norm(jem_ctx *ctx, jem_tensor *x, jem_param *gamma, jem_param *beta,
                           jem_param *running_mean, jem_param *running_var, float momentum,
                           int training) {
    jem_param *params[4] = { gamma, beta, running_mean, running_var };
    if (x && jem_ok(ctx) && !jem__in_range(ctx, "batch_norm", "momentum", (double)momentum, 0, 1))
        return NULL;
    return jem__norm_record(ctx, x, JEM_NORM_BATCH, training, momentum, params, 4);
}
jem_tensor *jem_act_norm(jem_ctx *ctx, jem_tensor *x, jem_param *loc, jem_param *scale,
                         jem_param *initialized, int training) {
    jem_param *params[3] = { loc, scale, initialized };
    return jem__norm_record(ctx, x, JEM_NORM_ACT, training, 0, params, 3);
}

/* ==== >>text: keys and values, numbers, fields ================================================ */
/* A network's description is a list of keys and values, which is saved with it. The functions here
   read strings from files: they accept any bytes, and numbers do not depend on the locale. */

void jem_mask_controls(char *text, int keep_newlines) {
    if (text) jem__mask_controls(text, keep_newlines);
}

/* ---- keys and values ------------------------------------------------------------------------- */

typedef struct jem__meta { struct jem__meta *next; const char *key, *value; } jem__meta;
#define JEM__MAX_TEXTS 4096                        /* limits the cost of a hostile file */
#define JEM__NET_TEXTS 3840                        /* of a network; its file contains fields, too */

static const char *jem__meta_get(const jem__meta *list, const char *key) {
    while (list && strcmp(list->key, key)) list = list->next;
    if (!list) return NULL;
    return list->value;
}

static void jem__meta_free(jem_ctx *ctx, jem__meta *list) {
    while (list) {
        jem__meta *next = list->next;
        jem__free(ctx, list);
        list = next;
    }
}

static int jem__utf8_valid(const char *text, size_t n) {
    const unsigned char *c = (const unsigned char *)text;
    while (n > 0) {
        uint32_t code;
        const int length = jem__utf8(c, n, &code);
        if (!length) return 0;
        c += length;
        n -= (size_t)length;
    }
    return 1;
}

/* Allocates a list element that holds copies of both strings. */
static jem__meta *jem__meta_create(jem_ctx *ctx, const char *key, const char *value) {
    const size_t key_size = strlen(key) + 1;
    const size_t value_size = strlen(value) + 1;
    jem__meta *meta = (jem__meta *)jem__alloc(ctx, sizeof *meta + key_size + value_size);
    if (!meta) return NULL;
    char *strings = (char *)(meta + 1);
    meta->key = (char *)memcpy(strings, key, key_size);
    meta->value = (char *)memcpy(strings + key_size, value, value_size);
    return meta;
}

/* Replaces the element of the list that has this key, appends the new one, or removes the old one
   (replacement NULL). Cannot fail. */
static void jem__meta_put(jem_ctx *ctx, jem__meta **list, const char *key, jem__meta *replacement) {
    while (*list && strcmp((*list)->key, key)) list = &(*list)->next;
    jem__meta *old = *list;
    if (old) *list = old->next;
    if (replacement) {
        replacement->next = *list;
        *list = replacement;
    }
    jem__free(ctx, old);
}

/* Adds a value at the end of the list, replaces it, or removes it (value NULL). Rejects entries
   that no file may contain. */
static jem_status jem__meta_set(jem_ctx *ctx, jem__meta **list, const char *key,
                                const char *value) {
    if (!key) return jem__fail(ctx, JEM_BAD_ARGUMENT, "metadata: key is NULL");
    if (!jem__utf8_valid(key, strlen(key)) || (value && !jem__utf8_valid(value, strlen(value))))
        return jem__fail(ctx, JEM_BAD_ARGUMENT, "metadata \"%.80s\": key or value is not UTF-8",
                         key);
    int count = 0;
    for (const jem__meta *m = *list; m; m = m->next) count++;
    if (value && count >= JEM__MAX_TEXTS && !jem__meta_get(*list, key))
        return jem__fail(ctx, JEM_BAD_ARGUMENT, "metadata \"%.80s\": already %d entries", key,
                         count);
    jem__meta *replacement = NULL;
    if (value) replacement = jem__meta_create(ctx, key, value);
    if (value && !replacement) return JEM_NO_MEMORY;
    jem__meta_put(ctx, list, key, replacement);
    return JEM_OK;
}

/* ---- numbers --------------------------------------------------------------------------------- */

static int jem__is_digit(char c) { return c >= '0' && c <= '9'; }

/* Reads the exponent of a number, if there is one, such as e-07. Returns its end; without digits
   after the 'e' there is no exponent. */
static const char *jem__scan_exponent(const char *s, int *exponent) {
    *exponent = 0;
    if (*s != 'e') return s;
    const char *start = s;
    s++;
    const int minus = *s == '-';
    if (*s == '-' || *s == '+') s++;
    if (!jem__is_digit(*s)) return start;
    while (jem__is_digit(*s) && *exponent < 100) {
        *exponent = 10 * *exponent + (*s - '0');
        s++;
    }
    if (minus) *exponent = -*exponent;
    return s;
}

/* Reads a decimal number, such as 3, -0.25 or 1.5e-07, in the same way in every locale. Returns
   its end; `text` itself if there is no number, or if it is out of range. */
static const char *jem__scan_number(const char *text, double *x) {
    const char *s = text;
    double digits_value = 0;
    double scale = 1;
    int digits = 0;
    int decimals = 0;
    int after_point = 0;
    int exponent;
    if (*s == '-') s++;
    while (jem__is_digit(*s) || (*s == '.' && digits > 0 && !after_point)) {
        if (*s == '.') after_point = 1;
        else {
            digits_value = fma(10, digits_value, *s - '0');
            digits++;
            decimals += after_point;
        }
        s++;
    }
    s = jem__scan_exponent(s, &exponent);
    if (digits == 0 || digits > 40 || abs(exponent) >= 100) return text;         /* or overflow */
    exponent -= decimals;
    for (int i = 0; i < abs(exponent); i++) scale *= 10;
    if (exponent < 0) *x = digits_value / scale;
    else *x = digits_value * scale;
    if (*text == '-') *x = -*x;
    return s;
}

/* Writes a short text from which jem__scan_number reads the same float (9 digits distinguish any
   two floats) or, below 1e9, the same whole number; x is finite. Returns its length. */
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

/* ---- fields ---------------------------------------------------------------------------------- */
/* Each field of a desc is listed once, with its limits, in a function such as jem__wrn_fields. It
   reads every field from `in`, the strings of a file, if there are any; checks it; and adds it to
   `out`, the strings of a network or a file, if there are any. Creating a network and loading one
   thus apply the same limits. To write only if every field is good, call it twice. */

typedef struct jem__fields {
    jem_ctx *ctx;
    const char *kind;                              /* value of "jem.net"; in jem__arrays "network",
                                                      "optimiser" or "trainer", for messages */
    const char *where;                             /* for messages: the file, or the kind */
    const jem__meta *in;                           /* strings to read, or NULL */
    jem__meta **out;                               /* strings to add to, or NULL */
    jem_status status;
} jem__fields;

static jem__fields jem__fields_open(jem_ctx *ctx, const char *kind) {
    jem__fields f = { ctx, kind, kind, NULL, NULL, JEM_OK };
    return f;
}

/* Returns the name of a field in C: its key without "jem.", except for some older keys. `room` is
   for names that are composed. */
static const char *jem__field_in_c(const char *key, char room[16]) {
    const char *const name = key + strlen("jem.");
    if (!strcmp(name, "slope")) return "leak";
    if (!strcmp(name, "uncond")) return "separate_energy";
    if (strncmp(name, "width", 5) || name[5] < '1' || name[5] > '8') return name;
    snprintf(room, 16, "widths[%c]", name[5] - 1); /* "width1" .. "width8" */
    return room;
}

/* Reports a bad field, unless one has been reported. `text` is the string in the file, or NULL;
   `reason` explains the error. */
static void jem__fields_fail(jem__fields *f, const char *key, const char *text, double value,
                             const char *reason) {
    char number[32];
    char composed[16];
    jem_status status = JEM_BAD_FILE;
    if (f->status) return;
    snprintf(number, sizeof number, "%.9g", value);
    jem__with_point(number);
    if (!text) text = number;
    if (!f->in) {
        key = jem__field_in_c(key, composed);
        status = JEM_BAD_ARGUMENT;
    }
    f->status = jem__fail(f->ctx, status, "%s: %s = %.40s: %s", f->where, key, text, reason);
}

/* Reports a field that is missing, not a number, or out of range. */
static void jem__field_out_of_range(jem__fields *f, const char *key, double value, double lo,
                                    double hi, int whole) {
    char reason[96];
    const char *kind = whole ? "whole number" : "number";
    const char *text = NULL;
    if (f->in) {
        text = jem__meta_get(f->in, key);
        if (!text) text = "(nothing)";
    }
    snprintf(reason, sizeof reason, "must be a %s from %.9g to %.9g", kind, lo, hi);
    jem__with_point(reason);
    jem__fields_fail(f, key, text, value, reason);
}

/* Returns 1 if the whole string is a number, and stores that in *value. */
static int jem__is_number(const char *text, double *value) {
    return text && *text && *jem__scan_number(text, value) == 0;
}

/* Visits a field of the range lo..hi; returns its value, lo after an error. */
static double jem__field(jem__fields *f, const char *key, double value, double lo, double hi,
                         int whole) {
    if (f->status) return lo;
    int good = 1;
    if (f->in) good = jem__is_number(jem__meta_get(f->in, key), &value);
    if (!whole && fabs(value) < 1e30) value = (double)(float)value;
    good = good && jem__finite((float)value) && value >= lo && value <= hi;
    if (whole) good = good && value == floor(value);
    if (!good) {
        jem__field_out_of_range(f, key, value, lo, hi, whole);
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

/* Visits a field that a description (strings with "jem.net") omits if it has its usual value. In
   strings without a description, such as those of a PyTorch file, a missing field leaves the value
   unchanged, so the field is always written there. */
static double jem__optional_field(jem__fields *f, const char *key, double value, double usual,
                                  double lo, double hi, int whole) {
    int visit;
    if (f->in) visit = jem__meta_get(f->in, key) != NULL;
    else visit = value != usual || (f->out && !jem__meta_get(*f->out, "jem.net"));
    if (visit) return jem__field(f, key, value, lo, hi, whole);
    if (f->out && !f->status) f->status = jem__meta_set(f->ctx, f->out, key, NULL);
    if (f->in && jem__meta_get(f->in, "jem.net")) return usual;
    return value;
}
static int jem__optional_int(jem__fields *f, const char *key, int value, int usual, int lo,
                             int hi) {
    return (int)jem__optional_field(f, key, value, usual, lo, hi, 1);
}
static float jem__optional_float(jem__fields *f, const char *key, float value, float usual,
                                 float lo, float hi) {
    return (float)jem__optional_field(f, key, (double)value, (double)usual, (double)lo, (double)hi,
                                      0);
}

/* ==== >>nets: wide-resnet, convnet, MLP, your own ============================================= */
/* A network is a list of parameters and a function that builds its logits. Apart from cutting few
   images into blocks, the three that come with the library use the functions that your own would
   use: jem_net_create, the layers, jem_apply. */

/* ---- strings that are saved with a network --------------------------------------------------- */

/* Frees the parsed form of "jem.statistics" before that text changes. */
static void jem__calibration_forget(jem_net *net) {
    jem__free(net->ctx, net->calibration);
    net->calibration = NULL;
}

/* Moves the elements of `from` into the network's list, or frees them if take = 0. */
static void jem__meta_take(jem_net *net, jem__meta *from, int take) {
    if (!take) {
        jem__meta_free(net->ctx, from);
        return;
    }
    jem__calibration_forget(net);
    while (from) {
        jem__meta *next = from->next;
        jem__meta_put(net->ctx, &net->meta, from->key, from);
        from = next;
    }
}

jem_status jem_net_set_meta(jem_net *net, const char *key, const char *value) {
    if (!net) return JEM_BAD_ARGUMENT;
    if (key && value && !strncmp(key, "jem.", 4))
        return jem__fail(net->ctx, JEM_BAD_ARGUMENT, "metadata \"%.80s\": names that begin with "
                         "jem. are reserved", key);
    int texts = 0;
    for (const jem__meta *m = net->meta; m; m = m->next) texts++;
    if (key && value && texts >= JEM__NET_TEXTS && !jem_net_meta(net, key))
        return jem__fail(net->ctx, JEM_BAD_ARGUMENT, "metadata \"%.80s\": the network already has "
                         "%d texts", key, texts);
    if (key && !strcmp(key, "jem.statistics")) jem__calibration_forget(net);
    return jem__meta_set(net->ctx, &net->meta, key, value);
}
const char *jem_net_meta(const jem_net *net, const char *key) {
    if (!net || !key) return NULL;
    return jem__meta_get(net->meta, key);
}

/* ---- fields of networks (see jem__fields) ---------------------------------------------------- */

/* Visits the fields that every network has. */
static void jem__net_fields(jem__fields *f, jem_net *net) {
    net->scale = jem__optional_float(f, "jem.scale", net->scale, 1, 1e-6f, 1e6f);
    net->noise_lo = jem__optional_float(f, "jem.noise_lo", net->noise_lo, 0, 0, 1e6f);
    net->noise_hi = jem__optional_float(f, "jem.noise_hi", net->noise_hi, 0, 0, 1e6f);
    net->mean = jem__optional_float(f, "jem.mean", net->mean, 0, -1e4f, 1e4f);
    net->guidance = jem__optional_float(f, "jem.guidance", net->guidance, 0, 0, 1e6f);
    net->denoise_steps = jem__optional_int(f, "jem.denoise_steps", net->denoise_steps, 0, 0,
                                           1000000);
    net->denoise_fraction = jem__optional_float(f, "jem.denoise_fraction", net->denoise_fraction, 0,
                                                0, 1);
    net->last_sigma = jem__optional_float(f, "jem.last_sigma", net->last_sigma, 0, 0, 1e6f);
    net->walk_step = jem__optional_float(f, "jem.walk_step", net->walk_step, 0, 0, 1e6f);
    net->walk_noise = jem__optional_float(f, "jem.walk_noise", net->walk_noise, 0, 0, 1e6f);
}

/* Visits the sizes of images and the count of classes. */
static void jem__size_fields(jem__fields *f, int *channels, int *height, int *width, int *classes) {
    *channels = jem__int(f, "jem.channels", *channels, 1, 65536);
    *height = jem__int(f, "jem.height", *height, 1, 65536);
    *width = jem__int(f, "jem.width", *width, 1, 65536);
    *classes = jem__int(f, "jem.classes", *classes, 1, 1 << 24);
}

/* Visits the fields that all descs share. */
static void jem__shared_fields(jem__fields *f, int *channels, int *height, int *width, int *classes,
                               jem_activation *activation, float *leak, int *separate) {
    if (f->out) f->status = jem__meta_set(f->ctx, f->out, "jem.net", f->kind);
    jem__size_fields(f, channels, height, width, classes);
    *activation = (jem_activation)jem__int(f, "jem.activation", (int)*activation, 0,
                                           JEM_ACTIVATION_TANH);
    *leak = jem__float(f, "jem.slope", *leak, -1000, 1000);
    *separate = jem__optional_int(f, "jem.uncond", *separate, 0, 0, 1);
}

/* Returns the number of features entering the linear layers; 0 after an error. */
static int jem__features(jem__fields *f, double features) {
    if (features > 1e9)
        jem__fields_fail(f, "jem.features", NULL, features, "too many inputs for a linear layer");
    if (f->status) return 0;
    return (int)features;
}

/* Returns the side of a wide residual network's features that corresponds to an image's side. Two
   convolutions halve it: 3x3 ones round up; 4x4 ones (JEM_BLOCKS_ZERO) round down. */
static int jem__wrn_side(const jem_wrn_desc *d, int side) {
    side = jem__div_up(side, d->stem_stride);
    if (d->blocks == JEM_BLOCKS_ZERO) return side / 2 / 2;
    return jem__div_up(side, 4);
}

/* Visits the fields of a wide residual network; returns its number of features. */
static int jem__wrn_fields(jem__fields *f, jem_wrn_desc *d) {
    jem__shared_fields(f, &d->channels, &d->height, &d->width, &d->classes, &d->activation,
                       &d->leak, &d->separate_energy);
    d->depth = jem__int(f, "jem.depth", d->depth, 10, 1000);
    d->widen = jem__int(f, "jem.widen", d->widen, 1, 100);
    d->norm = (jem_norm)jem__int(f, "jem.norm", (int)d->norm, 0, JEM_NORM_ACT);
    d->dropout = jem__float(f, "jem.dropout", d->dropout, 0, 0.99999994f);
    d->head = (jem_head)jem__int(f, "jem.head", (int)d->head, 0, JEM_HEAD_FLAT);
    d->stem_stride = jem__int(f, "jem.stem_stride", d->stem_stride, 1, 8);
    d->blocks = (jem_blocks)jem__optional_int(f, "jem.blocks", (int)d->blocks, 0, 0,
                                              JEM_BLOCKS_ZERO);
    d->unet = jem__optional_int(f, "jem.unet", d->unet, 0, 0, 1);
    const int shrink = 4 * d->stem_stride;         /* of the sides, from images to features */
    if ((d->depth - 4) % 6) jem__fields_fail(f, "jem.depth", NULL, d->depth, "must be 6k + 4");
    if (d->unet && d->separate_energy)
        jem__fields_fail(f, "jem.unet", NULL, 1, "cannot be combined with separate_energy");
    if (d->unet && (d->height % shrink || d->width % shrink))
        jem__fields_fail(f, "jem.unet", NULL, 1, "height and width must be multiples of 4 * "
                         "stem_stride");
    if (f->status) return 0;
    const int height = jem__wrn_side(d, d->height);
    const int width = jem__wrn_side(d, d->width);
    double pixels = 1;
    if (d->head == JEM_HEAD_FLAT) pixels = (double)height * width;
    if (height < 1 || width < 1)
        jem__fields_fail(f, "jem.blocks", NULL, d->blocks, "these images are too small for it");
    return jem__features(f, 64.0 * d->widen * pixels);
}

#define JEM__MOST_WHITE 1024       /* largest length of a whitened vector; a message names it */
#define JEM__MAX_LAYERS ((int)(sizeof ((jem_convnet_desc *)NULL)->widths / sizeof(int)))

/* Visits the fields of a convnet or an MLP; returns its number of features. */
static int jem__stack_fields(jem__fields *f, jem_convnet_desc *d) {
    const int convnet = !strcmp(f->kind, "convnet");
    jem__shared_fields(f, &d->channels, &d->height, &d->width, &d->classes, &d->activation,
                       &d->leak, &d->separate_energy);
    d->layers = jem__int(f, "jem.layers", d->layers, 1, JEM__MAX_LAYERS);
    for (int i = 0; i < d->layers && !f->status; i++) {
        char key[32];
        snprintf(key, sizeof key, "jem.width%d", i + 1);
        d->widths[i] = jem__int(f, key, d->widths[i], 1, 65536);
    }
    d->quadratic = jem__optional_float(f, "jem.quadratic", d->quadratic, 0, 0, 1e6f);
    d->student = jem__optional_int(f, "jem.student", d->student, 0, 0, 1000);
    if (d->student &&
        (d->height > 1 || d->width > 1 || d->channels > JEM__MOST_WHITE || convnet))
        jem__fields_fail(f, "jem.student", NULL, d->student,
                         "needs an MLP, of vectors of up to 1024 numbers");
    if (d->student && d->quadratic > 0)
        jem__fields_fail(f, "jem.student", NULL, d->student, "not together with quadratic");
    const int last = d->layers - 1;
    double features = (double)d->channels * d->height * d->width;
    if (convnet)                                   /* layers after the first halve the sides */
        features = (double)d->widths[last] * (d->height >> last) * (d->width >> last);
    if (features < 1)
        jem__fields_fail(f, "jem.layers", NULL, d->layers, "too many: the images are too small");
    return jem__features(f, features);
}

/* ---- networks and parameters ----------------------------------------------------------------- */

/* Returns the network; but if an error has been counted since `errors` was read, frees it, and
   returns NULL. */
static jem_net *jem__net_done(jem_net *net, int errors) {
    if (net->ctx->errors == errors) return net;
    jem_net_free(net);
    return NULL;
}

/* Creates a network without layers. Many parameters: the forward function, its data, and the sizes
   of images and logits. */
jem_net *jem_net_create(jem_ctx *ctx, jem_forward_fn forward, const void *user, size_t user_bytes,
                        int channels, int height, int width, int classes, uint64_t seed) {
    if (!ctx) return NULL;
    if (channels < 1 || height < 1 || width < 1 || classes < 1)
        return jem__refuse(ctx, JEM_BAD_ARGUMENT, "net_create: images (%d,%d,%d) and classes (%d) "
                           "must be 1 or more", channels, height, width, classes);
    if ((double)channels * height * width > JEM__MOST_SIZE)
        return jem__refuse(ctx, JEM_BAD_SHAPE, "net_create: images (%d,%d,%d) have more than 1e8 "
                           "numbers", channels, height, width);
    const int errors = ctx->errors;
    jem_net *net = (jem_net *)jem__alloc(ctx, sizeof *net);
    if (!net) return NULL;
    net->query.net = net;
    net->ctx = ctx;
    net->channels = channels;
    net->height = height;
    net->width = width;
    net->classes = classes;
    net->scale = 1;
    net->rng = jem_rng_seed(seed);
    net->forward = forward;
    if (user_bytes) net->user = jem__alloc(ctx, user_bytes);
    if (net->user && user) memcpy(net->user, user, user_bytes);
    return jem__net_done(net, errors);
}

/* Frees a parameter and its packed copies. */
static void jem__param_free(jem_param *p) {
    jem_ctx *ctx = p->ctx;
    jem__pack *pack = p->packs;
    while (pack) {
        jem__pack *next = pack->next;
        jem__free(ctx, pack->data);
        jem__free(ctx, pack);
        pack = next;
    }
    jem__free(ctx, p->value);
    jem__free(ctx, p->grad);
    jem__free(ctx, (void *)(uintptr_t)p->name);    /* const for users only */
    jem__free(ctx, p);
}

void jem_net_free(jem_net *net) {
    if (!net) return;
    jem_param *p = net->params;
    while (p) {
        jem_param *next = p->next;
        jem__param_free(p);
        p = next;
    }
    jem__meta_free(net->ctx, net->meta);
    jem__free(net->ctx, net->calibration);
    jem__free(net->ctx, net->user);
    jem__free(net->ctx, net);
}

/* Allocates n floats, padded to a multiple of 16, so that the optimiser's kernels have no
   remainder. */
static float *jem__alloc_padded(jem_ctx *ctx, ptrdiff_t n) {
    return jem__alloc_floats(ctx, jem__whole_vectors(n));
}

/* Returns the element count of a parameter's shape; 0 if the shape is not possible. */
static ptrdiff_t jem__param_size(int ndim, const int *shape) {
    double size = 1;
    if (!shape || ndim < 1 || ndim > 4) return 0;
    for (int i = 0; i < ndim; i++) {
        size *= shape[i];
        if (shape[i] < 1 || size > 1e9) return 0;
    }
    return (ptrdiff_t)size;
}

/* Allocates a parameter that belongs to no network yet. */
static jem_param *jem__param_create(jem_ctx *ctx, const char *name, int ndim, const int *shape,
                                    int trainable) {
    jem_param *p = (jem_param *)jem__alloc(ctx, sizeof *p);
    if (!p) return NULL;
    p->ctx = ctx;
    p->ndim = ndim;
    p->size = jem__param_size(ndim, shape);
    for (int i = 0; i < ndim; i++) p->shape[i] = shape[i];
    p->name = jem__strdup(ctx, name);
    p->value = jem__alloc_padded(ctx, p->size);
    if (trainable) p->grad = jem__alloc_padded(ctx, p->size);
    if (p->name && p->value && (p->grad || !trainable)) return p;
    jem__param_free(p);
    return NULL;
}

jem_param *jem_net_param(jem_net *net, const char *name, int ndim, const int *shape,
                         int trainable) {
    if (!net) return NULL;
    jem_ctx *ctx = net->ctx;
    const ptrdiff_t size = jem__param_size(ndim, shape);
    if (!name) return jem__refuse(ctx, JEM_BAD_ARGUMENT, "net_param: the name is NULL");
    if (!jem__utf8_valid(name, strlen(name)) || !strcmp(name, "__metadata__"))
        return jem__refuse(ctx, JEM_BAD_ARGUMENT, "net_param: no file can contain the name %.80s",
                           name);
    if (size == 0)
        return jem__refuse(ctx, JEM_BAD_ARGUMENT, "net_param: %.80s: the shape needs 1 to 4 sizes, "
                           "each 1 or more, and at most 1e9 numbers", name);
    ctx->params_left -= (double)size;
    if (ctx->params_left < 0)
        return jem__refuse(ctx, JEM_BAD_FILE, "%s: describes more parameters than it contains",
                           ctx->loading);
    if (jem_net_find(net, name))
        return jem__refuse(ctx, JEM_BAD_ARGUMENT, "net_param: %.80s already exists", name);
    jem_param *p = jem__param_create(ctx, name, ndim, shape, trainable);
    if (!p) return NULL;
    if (net->last) net->last->next = p;
    else net->params = p;
    net->last = p;
    return p;
}

jem_param *jem_net_find(const jem_net *net, const char *name) {
    if (!net || !name) return NULL;
    jem_param *p = net->params;
    while (p && strcmp(p->name, name)) p = p->next;
    return p;
}

ptrdiff_t jem_net_size(const jem_net *net) {
    ptrdiff_t n = 0;
    if (!net) return 0;
    for (const jem_param *p = net->params; p; p = p->next)
        if (p->grad) n += p->size;
    return n;
}

/* Returns the number of values of all parameters and buffers. */
static ptrdiff_t jem__net_values(const jem_net *net) {
    ptrdiff_t n = 0;
    for (const jem_param *p = net->params; p; p = p->next) n += p->size;
    return n;
}

void jem_zero_grad(jem_net *net) {
    if (!net) return;
    for (jem_param *p = net->params; p; p = p->next)
        if (p->grad) memset(p->grad, 0, (size_t)p->size * sizeof(float));
}

/* ---- layers ---------------------------------------------------------------------------------- */

/* Adds the parameter name.suffix. */
static jem_param *jem__layer_param(jem_net *net, const char *name, const char *suffix,
                                   int ndim, const int *shape, int trainable) {
    char full[128];
    if (name && snprintf(full, sizeof full, "%s.%s", name, suffix) < (int)sizeof full)
        return jem_net_param(net, full, ndim, shape, trainable);
    return jem__refuse(net->ctx, JEM_BAD_ARGUMENT, "layer %.60s...: the name is too long, or NULL",
                       name ? name : "");
}

/* Adds a weight (O,I,k,k) or (O,I), and a bias (O): uniform in +-1/sqrt(fan_in). */
static void jem__layer_weights(jem_net *net, const char *name, int ndim, int in, int out, int k,
                               jem_layer *layer) {
    const int shape[4] = { out, in, k, k };
    const float bound = 1 / sqrtf((float)in * (float)k * (float)k);
    jem_param *weight = jem__layer_param(net, name, "weight", ndim, shape, 1);
    if (!weight) return;
    jem_fill_uniform(net->ctx, &net->rng, weight->value, weight->size, -bound, bound);
    jem_param *bias = jem__layer_param(net, name, "bias", 1, shape, 1);
    if (!bias) return;
    jem_fill_uniform(net->ctx, &net->rng, bias->value, bias->size, -bound, bound);
    layer->weight = weight;
    layer->bias = bias;
}

/* Adds a parameter of one number per channel, all of them `value`. */
static jem_param *jem__layer_numbers(jem_net *net, const char *name, const char *suffix,
                                     int channels, float value, int trainable) {
    jem_param *p = jem__layer_param(net, name, suffix, 1, &channels, trainable);
    for (ptrdiff_t i = 0; p && i < p->size; i++) p->value[i] = value;
    return p;
}

jem_layer jem_conv_layer(jem_net *net, const char *name, int in, int out, int k, int stride,
                         int pad) {
    JEM__ZEROED(jem_layer, layer);
    layer.kind = JEM_LAYER_CONV;
    layer.conv.stride = stride;
    layer.conv.pad = pad;
    if (net) jem__layer_weights(net, name, 4, in, out, k, &layer);
    return layer;
}

jem_layer jem_linear_layer(jem_net *net, const char *name, int in, int out) {
    JEM__ZEROED(jem_layer, layer);
    layer.kind = JEM_LAYER_LINEAR;
    if (net) jem__layer_weights(net, name, 2, in, out, 1, &layer);
    return layer;
}

/* Adds an act norm's parameters, in the shapes of the code of JEM's authors. */
static void jem__layer_act_norm(jem_net *net, const char *name, int channels, jem_layer *layer) {
    const int shape[4] = { 1, channels, 1, 1 };
    layer->bias = jem__layer_param(net, name, "loc", 4, shape, 1);
    layer->weight = jem__layer_param(net, name, "scale", 4, shape, 1);
    for (int i = 0; layer->weight && i < channels; i++) layer->weight->value[i] = 1;
    layer->extra[0] = jem__layer_numbers(net, name, "initialized", 1, 0, 0);
}

jem_layer jem_norm_layer(jem_net *net, const char *name, jem_norm norm, int channels) {
    JEM__ZEROED(jem_layer, layer);
    layer.norm = norm;
    if (norm == JEM_NORM_NONE) return layer;
    layer.kind = JEM_LAYER_NORM;
    if (!net) return layer;
    if ((int)norm < 0 || norm > JEM_NORM_ACT) {
        jem__fail(net->ctx, JEM_BAD_ARGUMENT, "norm_layer: unknown norm %d", (int)norm);
        return layer;
    }
    if (norm == JEM_NORM_ACT) {
        jem__layer_act_norm(net, name, channels, &layer);
        return layer;
    }
    layer.weight = jem__layer_numbers(net, name, "weight", channels, 1, 1);
    layer.bias = jem__layer_numbers(net, name, "bias", channels, 0, 1);
    if (norm == JEM_NORM_BATCH) {
        layer.extra[0] = jem__layer_numbers(net, name, "running_mean", channels, 0, 0);
        layer.extra[1] = jem__layer_numbers(net, name, "running_var", channels, 1, 0);
    }
    return layer;
}

/* Batch norm's momentum in the JEM authors' code: as in PyTorch, the weight of the new batch. */
#define JEM__BATCH_MOMENTUM 0.9f

/* Records the normalisation of a layer. */
static jem_tensor *jem__apply_norm(const jem_layer *layer, jem_tensor *x, int training) {
    jem_param *const *extra = layer->extra;
    switch (layer->norm) {
    case JEM_NORM_BATCH:
        return jem_batch_norm(x->ctx, x, layer->weight, layer->bias, extra[0], extra[1],
                              JEM__BATCH_MOMENTUM, training);
    case JEM_NORM_INSTANCE: return jem_instance_norm(x->ctx, x, layer->weight, layer->bias);
    case JEM_NORM_LAYER: return jem_layer_norm(x->ctx, x, layer->weight, layer->bias);
    case JEM_NORM_ACT:
        return jem_act_norm(x->ctx, x, layer->bias, layer->weight, extra[0], training);
    case JEM_NORM_NONE: return x;
    }
    return jem__refuse(x->ctx, JEM_BAD_ARGUMENT, "apply: unknown norm %d", (int)layer->norm);
}

jem_tensor *jem_apply(const jem_layer *layer, jem_tensor *x, int training) {
    if (!x || !layer) return NULL;
    switch (layer->kind) {
    case JEM_LAYER_CONV: return jem_conv2d(x->ctx, x, layer->weight, layer->bias, layer->conv);
    case JEM_LAYER_LINEAR: return jem_linear(x->ctx, x, layer->weight, layer->bias);
    case JEM_LAYER_NORM: return jem__apply_norm(layer, x, training);
    default: return x;
    }
}

jem_tensor *jem_activate(jem_ctx *ctx, jem_tensor *x, jem_activation activation, float slope) {
    switch (activation) {
    case JEM_ACTIVATION_RELU: return jem_relu(ctx, x);
    case JEM_ACTIVATION_SILU: return jem_silu(ctx, x);
    case JEM_ACTIVATION_TANH: return jem_tanh(ctx, x);
    case JEM_ACTIVATION_LEAKY_RELU: return jem_leaky_relu(ctx, x, slope);
    }
    return jem__refuse(ctx, JEM_BAD_ARGUMENT, "activate: unknown activation %d",
                       (int)activation);
}

/* Returns how many of n images to leave to a batch of their own: those of a last group that is less
   than half full, which takes less time when it is cut into blocks (jem__few_images). */
static int jem__excess(int n) {
    const int excess = n % JEM_LANES;
    if (n <= JEM_LANES || excess >= JEM_LANES / 2) return 0;
    return excess;
}

/* Returns how many images, at the end of x, to cut into blocks, with sides rounded up to `unit`:
   those of a last group that is not full, if that takes less time, otherwise 0. Blocks leave no
   lane idle, but the network takes `surcharge` times as long per pixel, since convolutions read
   neighbouring blocks, and a margin adds pixels. (`make bench`, few images: 1.05 to 1.14 for 3 x 3
   kernels, 1.1 to 1.3 for 4 x 4 with stride 2.) The ops that divide a batch process all of it at
   once, which costs part of the time saved and, from four groups on, more than all of it. */
static int jem__few_images(const jem_tensor *x, int unit, double surcharge) {
    const int few = x->n % JEM_LANES;
    const double divided = x->n > JEM_LANES ? 1.4 : 1;     /* measured with 18 to 54 images */
    if (x->n >= 4 * JEM_LANES) return 0;
    const double h = (double)jem__div_up(x->h, unit) * unit;
    const double w = (double)jem__div_up(x->w, unit) * unit;
    if (divided * surcharge * few * h * w >= (double)JEM_LANES * x->h * x->w) return 0;
    return few;
}
/* Returns the `unit` of image sides whose blocks can be halved `halvings` times. */
static int jem__cut_unit(int halvings) { return JEM__GRID << halvings; }

/* ---- logits ---------------------------------------------------------------------------------- */

/* Checks an optional output of a forward function: NULL, or one number per image. */
static int jem__per_image_good(const jem_net *net, const jem_tensor *t, const char *what, int n) {
    if (!t || (t->n == n && t->c == 1 && t->h == 1 && t->w == 1)) return 1;
    jem__fail(net->ctx, JEM_BAD_SHAPE, "forward: the network returned %s as %s, not (%d,1,1,1)",
              jem__shape_text(t).s, what, n);
    return 0;
}

/* Checks the outputs of a network's function for n images. */
static int jem__outputs_good(const jem_net *net, const jem_tensor *logits, int n) {
    if (!logits) {
        if (jem_ok(net->ctx))
            jem__fail(net->ctx, JEM_BAD_ARGUMENT, "forward: the network's function returned NULL");
        return 0;
    }
    if (logits->n != n || logits->c != net->classes || logits->h != 1 || logits->w != 1) {
        jem__fail(net->ctx, JEM_BAD_SHAPE,
                  "forward: the network returned %s, not logits (%d,%d,1,1)",
                  jem__shape_text(logits).s, n, net->classes);
        return 0;
    }
    if (net->features && net->features->n != n) {
        jem__fail(net->ctx, JEM_BAD_SHAPE, "forward: the network returned features %s, not "
                  "(%d,c,h,w)", jem__shape_text(net->features).s, n);
        return 0;
    }
    return jem__per_image_good(net, net->log_density, "log_density", n) &&
           jem__per_image_good(net, net->shift, "shift", n);
}

static void jem__forget_outputs(jem_net *net) {
    net->log_density = NULL;
    net->shift = NULL;
    net->features = NULL;
}

/* Passes the full groups of x, then its last `few` images, through the network's function. Joins
   their outputs, and returns the logits. */
static jem_tensor *jem__forward_apart(jem_net *net, jem_tensor *x, int few) {
    enum { OUTPUTS = 4 };
    jem_ctx *ctx = net->ctx;
    jem_tensor *part[2][OUTPUTS];
    jem_tensor *all[OUTPUTS] = { NULL };
    for (int i = 0; i < 2; i++) {
        const int full = x->n - few;
        jem_tensor *images = jem__take_images(ctx, x, i * full, i ? few : full);
        if (!images) return NULL;
        jem__forget_outputs(net);
        part[i][0] = net->forward(net, images, 0, net->user);
        part[i][1] = net->log_density;
        part[i][2] = net->shift;
        part[i][3] = net->features;
    }
    for (int k = 0; k < OUTPUTS; k++)
        if (part[0][k] && part[1][k]) all[k] = jem__append_images(ctx, part[0][k], part[1][k]);
    net->log_density = all[1];
    net->shift = all[2];
    net->features = all[3];
    return all[0];
}

jem_tensor *jem_forward(jem_net *net, jem_tensor *x, int training) {
    if (!net || !jem__usable(x, "forward")) return NULL;
    if (x->c != net->channels || x->h != net->height || x->w != net->width)
        return jem__refuse(net->ctx, JEM_BAD_SHAPE, "forward: x is %s, the network expects "
                           "(n,%d,%d,%d)", jem__shape_text(x).s, net->channels, net->height,
                           net->width);
    if (!net->forward)
        return jem__refuse(net->ctx, JEM_BAD_ARGUMENT, "forward: this network was created without "
                           "a function");
    jem__forget_outputs(net);
    const uint64_t outer = jem__protect(net->ctx);
    jem_tensor *logits = net->forward(net, x, training, net->user);
    net->ctx->floor = outer;
    if (jem__outputs_good(net, logits, x->n)) return logits;
    jem__forget_outputs(net);
    return NULL;
}

/* Returns the number of values per image. */
static ptrdiff_t jem__image_size(const jem_net *net) {
    return (ptrdiff_t)net->channels * net->height * net->width;
}

/* Records a leaf of n images x, or of zeros if x is NULL. */
static jem_tensor *jem__images(const jem_net *net, const float *x, int n) {
    if (!x) return jem_zeros(net->ctx, n, net->channels, net->height, net->width);
    return jem_input(net->ctx, x, n, net->channels, net->height, net->width);
}

#define JEM__LARGEST 1e4f  /* larger values do not occur in images */

static const char *const jem__units_key = "jem.units";

/* Rejects values that are not finite, or beyond +-most. */
static jem_status jem__images_within(const jem_net *net, const char *what, const float *x, int n,
                                     float most) {
    const ptrdiff_t size = jem__image_size(net);
    for (ptrdiff_t i = 0; i < n * size; i++) {
        if (jem__finite(x[i]) && fabsf(x[i]) <= most) continue;
        const int pixels = net->height * net->width;
        const int at = (int)(i % size);
        if (pixels == 1)                           /* a row of a table */
            return jem__fail(net->ctx, JEM_BAD_ARGUMENT, "%s: row %d contains %g (column %d); "
                             "values must be from -%g to %g", what, (int)(i / size),
                             (double)x[i], at, (double)most, (double)most);
        return jem__fail(net->ctx, JEM_BAD_ARGUMENT, "%s: image %d contains %g (channel %d, row "
                         "%d, column %d); values must be from -%g to %g", what, (int)(i / size),
                         (double)x[i], at / pixels, at % pixels / net->width, at % net->width,
                         (double)most, (double)most);
    }
    return JEM_OK;
}

/* Rejects values that images cannot have, so that bad data cause an error, not an answer. With
   units, large values are accepted and clamped later: they may be anomalies to be found. */
static jem_status jem__images_check(const jem_net *net, const char *what, const float *x, int n) {
    const int units = jem_net_meta(net, jem__units_key) != NULL;
    return jem__images_within(net, what, x, n, units ? (float)JEM__MOST : JEM__LARGEST);
}

/* ---- units ----------------------------------------------------------------------------------- */

#define JEM__MOST_WRITTEN 1e12                     /* limit of numbers in texts */
/* Reads up to n numbers of a text and returns their count; 0 if the text contains more numbers,
   anything else, or a number beyond the limit. */
static int jem__numbers_parse(const char *s, float *q, int n) {
    int i = 0;
    for (double v; s && *s; i++) {
        const char *end = jem__scan_number(s, &v);
        if (end == s || i == n || fabs(v) > JEM__MOST_WRITTEN) return 0;
        q[i] = (float)v;
        s = end + (*end == ' ');
    }
    return i;
}
/* Stores q[n] in a list, as one text. */
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

/* Parses units[channels][2], the mean and scale of each channel; returns 0 for invalid text. */
static int jem__units_parse(const jem_net *net, const char *text, float *units) {
    if (jem__numbers_parse(text, units, 2 * net->channels) < 2 * net->channels) return 0;
    for (int c = 0; c < net->channels; c++)
        if (!(units[2 * c + 1] > 0)) return 0;
    return 1;
}
/* Reads the network's units onto the tape. Returns NULL without units, or after an error. */
static float *jem__units(const jem_net *net) {
    const char *text = jem_net_meta(net, jem__units_key);
    float *units = text ? jem__push_floats(net->ctx, 2 * net->channels) : NULL;
    if (units && jem__units_parse(net, text, units)) return units;
    return NULL;
}

/* Computes u = (x - mean)/scale or, with back = 1, x from u. Clamps u. */
static void jem__units_apply(const jem_net *net, const float *units, const float *from, int n,
                             float *to, int back) {
    const ptrdiff_t pixels = (ptrdiff_t)net->height * net->width;
    for (ptrdiff_t row = 0; row < (ptrdiff_t)n * net->channels; row++) {
        const float *unit = units + 2 * (row % net->channels);
        for (ptrdiff_t i = row * pixels; i < (row + 1) * pixels; i++) {
            float v = from[i];
            if (!back) v = (v - unit[0]) / unit[1];
            v = fminf(fmaxf(v, -JEM__LARGEST), JEM__LARGEST);      /* v is in the network's units */
            to[i] = v;
            if (back) to[i] = jem__fmaf(v, unit[1], unit[0]);
        }
    }
}

/* Returns n images in the network's units: x itself, or a copy on the tape; NULL after an error. */
static const float *jem__in_units(const jem_net *net, const float *x, int n) {
    const ptrdiff_t size = n * jem__image_size(net);
    const float *units = jem__units(net);
    float *u = units && x ? jem__push_floats(net->ctx, size) : NULL;
    if (!units) return jem_ok(net->ctx) ? x : NULL;
    if (u) jem__units_apply(net, units, x, n, u, 0);
    return u;
}

/* Records a leaf of n images x, which are in the data's units. */
static jem_tensor *jem__images_from_data(const jem_net *net, const float *x, int n) {
    const float *u = jem__in_units(net, x, n);
    return u ? jem__images(net, u, n) : NULL;
}

/* Computes log p(u) - log p(x). */
static float jem__units_log_volume(const jem_net *net) {
    const jem_mark mark = jem_begin(net->ctx);
    const float *units = jem__units(net);
    double sum = 0;
    for (int c = 0; units && c < net->channels; c++) sum += log((double)units[2 * c + 1]);
    jem_end(net->ctx, mark);
    return (float)(sum * net->height * net->width);
}

/* Implements jem_standardize and, with back = 1, jem_unstandardize. */
static jem_status jem__convert(const jem_net *net, const char *what, const float *from, int n,
                               float *to, int back) {
    if (!net) return JEM_BAD_ARGUMENT;
    if (!jem_ok(net->ctx)) return net->ctx->status;
    if (!from || !to || n < 0)
        return jem__fail(net->ctx, JEM_BAD_ARGUMENT, "%s: n = %d is negative, or a pointer is NULL",
                         what, n);
    if (jem__images_check(net, what, from, n) != JEM_OK) return net->ctx->status;
    const jem_mark mark = jem_begin(net->ctx);
    const float *units = jem__units(net);
    if (units) jem__units_apply(net, units, from, n, to, back);
    else if (to != from)
        memcpy(to, from, (size_t)(n * jem__image_size(net)) * sizeof *to);
    jem_end(net->ctx, mark);
    return net->ctx->status;
}
jem_status jem_standardize(const jem_net *net, const float *x, int n, float *u) {
    return jem__convert(net, "standardize", x, n, u, 0);
}
jem_status jem_unstandardize(const jem_net *net, const float *u, int n, float *x) {
    return jem__convert(net, "unstandardize", u, n, x, 1);
}

/* ---- the wide-resnet ------------------------------------------------------------------------- */

enum { JEM__STAGES = 3 };

/* Layers of a block. */
enum { JEM__NORM1, JEM__CONV1, JEM__NORM2, JEM__CONV2, JEM__SHORTCUT, JEM__BLOCK_LAYERS };
typedef jem_layer jem__block_layers[JEM__BLOCK_LAYERS];

typedef struct jem__wrn {
    jem_wrn_desc desc;
    int blocks;                                    /* of all stages */
    jem_layer stem, norm, head, energy;
    jem_layer down[JEM__STAGES - 1];               /* JEM_BLOCKS_ZERO: between stages */
    jem_layer up[JEM__STAGES - 1];                 /* unet: after upsampling to stage i */
    jem_layer skip[JEM__STAGES - 1];               /* unet: 1x1, of the features of stage i */
    jem__block_layers *block;                      /* [blocks], behind the struct */
} jem__wrn;

static jem_tensor *jem__wrn_activate(jem_net *net, const jem__wrn *wrn, jem_tensor *x) {
    return jem_activate(net->ctx, x, wrn->desc.activation, wrn->desc.leak);
}

/* Computes conv2(act(norm2(dropout(conv1(act(norm1(x))))))) + shortcut(x). Each op has its own
   statement, since C does not specify the order in which arguments are evaluated. */
static jem_tensor *jem__wrn_block(jem_net *net, const jem__wrn *wrn, const jem_layer *layer,
                                  jem_tensor *x, int training) {
    const float dropout = wrn->desc.dropout;
    jem_tensor *y = jem_apply(&layer[JEM__NORM1], x, training);
    y = jem__wrn_activate(net, wrn, y);
    y = jem_apply(&layer[JEM__CONV1], y, training);
    if (training && dropout > 0) y = jem_dropout(net->ctx, y, dropout, &net->rng);
    y = jem_apply(&layer[JEM__NORM2], y, training);
    y = jem__wrn_activate(net, wrn, y);
    jem_tensor *shortcut = jem_apply(&layer[JEM__SHORTCUT], x, training);
    y = jem_apply(&layer[JEM__CONV2], y, training);
    return jem_add(net->ctx, y, shortcut);
}

/* Computes e(x) = sum of x U(x). U starts from the features of the last stage. At each larger size
   it adds the upsampled features to those of the stage with that size. Finally it maps them to the
   image's channels. features[i], of stage i: (n, 16 widen 2^i, h/(s 2^i), w/(s 2^i)), where
   s = stem_stride. */
static jem_tensor *jem__wrn_unet(jem_net *net, const jem__wrn *wrn, jem_tensor *x,
                                 jem_tensor *const *features, int training) {
    jem_ctx *ctx = net->ctx;
    jem_tensor *y = features[JEM__STAGES - 1];
    for (int i = JEM__STAGES - 2; i >= 0; i--) {
        jem_tensor *coarse = jem_upsample(ctx, y, 2);
        coarse = jem_apply(&wrn->up[i], coarse, training);
        jem_tensor *fine = jem__wrn_activate(net, wrn, features[i]);
        fine = jem_apply(&wrn->skip[i], fine, training);
        y = jem_add(ctx, coarse, fine);
        y = jem__wrn_activate(net, wrn, y);
    }
    if (wrn->desc.stem_stride > 1) y = jem_upsample(ctx, y, wrn->desc.stem_stride);
    y = jem_apply(&wrn->energy, y, training);
    y = jem__join_blocks(ctx, y);
    return jem_sum_image(ctx, jem_mul(ctx, y, x));
}

/* Returns 1 if few images may be cut into blocks: no op may combine all pixels of an image or of
   the batch before the blocks are joined, and the stem must keep the sides. */
static int jem__wrn_can_cut(const jem_wrn_desc *d, int training) {
    if (training || d->stem_stride != 1) return 0;
    return d->norm != JEM_NORM_INSTANCE && d->norm != JEM_NORM_LAYER;
}

/* Builds the logits: stem, three stages of blocks, activation, head. */
static jem_tensor *jem__wrn_forward(jem_net *net, jem_tensor *x, int training, void *user) {
    const jem__wrn *wrn = (const jem__wrn *)user;
    const jem_wrn_desc *d = &wrn->desc;
    const int per_stage = wrn->blocks / JEM__STAGES;
    const int unit = jem__cut_unit(JEM__STAGES - 1);
    jem_tensor *features[JEM__STAGES] = { NULL };
    jem_tensor *y = x;
    int few = 0;                                   /* images to cut into blocks */
    if (jem__wrn_can_cut(d, training)) few = jem__few_images(x, unit, 1.13);
    if (few && few < x->n) return jem__forward_apart(net, x, few);
    if (few) y = jem__cut_blocks(net->ctx, x, unit);
    y = jem_apply(&wrn->stem, y, training);
    for (int stage = 0; stage < JEM__STAGES; stage++) {
        if (stage > 0 && d->blocks == JEM_BLOCKS_ZERO) {
            y = jem__wrn_activate(net, wrn, y);
            y = jem_apply(&wrn->down[stage - 1], y, training);
        }
        for (int i = 0; i < per_stage; i++)
            y = jem__wrn_block(net, wrn, wrn->block[stage * per_stage + i], y, training);
        features[stage] = y;
    }
    y = jem_apply(&wrn->norm, y, training);
    y = jem__wrn_activate(net, wrn, y);
    features[JEM__STAGES - 1] = y;
    if (d->unet) net->shift = jem__wrn_unet(net, wrn, x, features, training);
    y = jem__join_blocks(net->ctx, y);
    net->features = y;
    if (d->head == JEM_HEAD_FLAT) y = jem_flatten(net->ctx, y);
    else y = jem_global_pool(net->ctx, y);
    if (d->separate_energy) net->log_density = jem_apply(&wrn->energy, y, training);
    return jem_apply(&wrn->head, y, training);
}

jem_wrn_desc jem_wrn_desc_default(void) {
    JEM__ZEROED(jem_wrn_desc, d);
    d.depth = 28;
    d.widen = 10;
    d.channels = 3;
    d.height = 32;
    d.width = 32;
    d.classes = 10;
    d.leak = 0.2f;
    d.stem_stride = 1;
    return d;
}

/* Zeroes the last layer of a block, so that the block begins as the identity. */
static void jem__layer_zero(jem_layer *layer) {
    jem_param *weight = layer->weight;
    jem_param *bias = layer->bias;
    if (weight) memset(weight->value, 0, (size_t)weight->size * sizeof(float));
    if (bias) memset(bias->value, 0, (size_t)bias->size * sizeof(float));
}

/* Adds block i, which reads `in` channels; with JEM_BLOCKS_ZERO, also the convolution between its
   stage and the one before. Returns the block's output channels. */
static int jem__wrn_add_block(jem_net *net, jem__wrn *wrn, int i, int in) {
    static const char *const parts[] = { "bn1", "conv1", "bn2", "conv2", "shortcut.0" };
    const jem_wrn_desc *d = &wrn->desc;
    const int per_stage = wrn->blocks / JEM__STAGES;
    const int stage = i / per_stage;
    const int out = (16 << stage) * d->widen;
    const int zero = d->blocks == JEM_BLOCKS_ZERO;
    const int halves_sides = stage > 0 && i % per_stage == 0;
    const int stride = 1 + (halves_sides && !zero);
    char name[JEM__BLOCK_LAYERS][64];
    for (int k = 0; k < JEM__BLOCK_LAYERS; k++)
        snprintf(name[k], sizeof name[k], "f.layer%d.%d.%s", stage + 1, i % per_stage, parts[k]);
    if (halves_sides && zero) {
        char down[32];
        snprintf(down, sizeof down, "f.down%d", stage);
        wrn->down[stage - 1] = jem_conv_layer(net, down, in, out, 4, 2, 1);
        in = out;
    }
    jem_layer *layer = wrn->block[i];
    layer[JEM__NORM1] = jem_norm_layer(net, name[JEM__NORM1], d->norm, in);
    layer[JEM__CONV1] = jem_conv_layer(net, name[JEM__CONV1], in, out, 3, 1, 1);
    layer[JEM__NORM2] = jem_norm_layer(net, name[JEM__NORM2], d->norm, out);
    layer[JEM__CONV2] = jem_conv_layer(net, name[JEM__CONV2], out, out, 3, stride, 1);
    if (zero) jem__layer_zero(&layer[JEM__CONV2]);
    if (stride != 1 || in != out)
        layer[JEM__SHORTCUT] = jem_conv_layer(net, name[JEM__SHORTCUT], in, out, 1, stride, 0);
    return out;
}

/* Adds the layers of the U-Net's decoder. */
static void jem__wrn_add_unet(jem_net *net, jem__wrn *wrn) {
    const int width = 16 * wrn->desc.widen;
    for (int i = JEM__STAGES - 2; i >= 0; i--) {
        const int channels = width << i;
        char up[32], skip[32];
        snprintf(up, sizeof up, "u.up%d", i + 1);
        snprintf(skip, sizeof skip, "u.skip%d", i + 1);
        wrn->up[i] = jem_conv_layer(net, up, 2 * channels, channels, 3, 1, 1);
        wrn->skip[i] = jem_conv_layer(net, skip, channels, channels, 1, 1, 0);
    }
    wrn->energy = jem_conv_layer(net, "u.energy_output", width, net->channels, 3, 1, 1);
}

/* Adds all layers. Their order decides which random numbers initialise them. */
static void jem__wrn_add_layers(jem_net *net, jem__wrn *wrn, int features) {
    const jem_wrn_desc *d = &wrn->desc;
    int channels = 16;
    if (d->blocks == JEM_BLOCKS_ZERO) channels *= d->widen;
    wrn->stem = jem_conv_layer(net, "f.conv1", d->channels, channels, 3, d->stem_stride, 1);
    for (int i = 0; i < wrn->blocks; i++) channels = jem__wrn_add_block(net, wrn, i, channels);
    wrn->norm = jem_norm_layer(net, "f.bn1", d->norm, channels);
    wrn->head = jem_linear_layer(net, "class_output", features, d->classes);
    if (d->separate_energy) wrn->energy = jem_linear_layer(net, "energy_output", features, 1);
    if (d->unet) jem__wrn_add_unet(net, wrn);
}

jem_net *jem_wrn_create(jem_ctx *ctx, const jem_wrn_desc *desc, uint64_t seed) {
    if (!ctx) return NULL;
    const int errors = ctx->errors;
    jem_wrn_desc d = jem_wrn_desc_default();
    if (desc) d = *desc;
    jem__fields fields = jem__fields_open(ctx, "wrn");
    const int features = jem__wrn_fields(&fields, &d);
    if (fields.status) return NULL;
    const int blocks = (d.depth - 4) / 6 * JEM__STAGES;
    const size_t bytes = sizeof(jem__wrn) + (size_t)blocks * sizeof(jem__block_layers);
    jem_net *net = jem_net_create(ctx, jem__wrn_forward, NULL, bytes, d.channels, d.height, d.width,
                                  d.classes, seed);
    if (!net) return NULL;
    jem__wrn *wrn = (jem__wrn *)net->user;
    wrn->desc = d;
    wrn->blocks = blocks;
    wrn->block = (jem__block_layers *)(wrn + 1);
    jem__wrn_add_layers(net, wrn, features);
    fields.out = &net->meta;
    jem__wrn_fields(&fields, &d);
    return jem__net_done(net, errors);
}

/* ---- the strided convnet and the MLP: one stack of layers ------------------------------------ */

typedef struct jem__stack {
    jem_convnet_desc desc;
    int convs;                                     /* number of convolutions; 0 in an MLP */
    jem_layer layer[JEM__MAX_LAYERS], head, energy;
    jem_param *whiten;                             /* A, (d,d), lower triangular; or NULL */
} jem__stack;

#define JEM__PI 3.141592653589793

/* Returns log gamma(m/2), m > 0. C's lgamma may write a global variable, which threads share. */
static double jem__log_gamma(int m) {
    double sum = m % 2 ? 0.5 * log(JEM__PI) : 0;
    for (int k = m - 2; k > 0; k -= 2) sum += log(k / 2.0);
    return sum;
}

/* Records the log-density of a Student distribution, given z = A u, which has d values: log p(u) =
   constant + log |det A| - (nu + d)/2 log(1 + ||z||^2/nu). */
static jem_tensor *jem__student_logp(jem_net *net, const jem__stack *stack, jem_tensor *z) {
    jem_ctx *ctx = net->ctx;
    const int d = net->channels;
    const int nu = stack->desc.student;
    double constant = jem__log_gamma(nu + d) - jem__log_gamma(nu);
    constant = fma(-d / 2.0, log(nu * JEM__PI), constant);
    for (int i = 0; i < d; i++) constant += log(fabs((double)stack->whiten->value[i * d + i]));
    jem_tensor *square = jem_sum_image(ctx, jem_square(ctx, z));
    jem_tensor *base = jem_add_constant(ctx, jem_scale(ctx, square, (float)(1.0 / nu)), 1);
    jem_tensor *log_power = jem_scale(ctx, jem_log(ctx, base), (float)(-(nu + d) / 2.0));
    return jem_add_constant(ctx, log_power, (float)constant);
}

/* Builds the logits of a convnet or an MLP. */
static jem_tensor *jem__stack_forward(jem_net *net, jem_tensor *x, int training, void *user) {
    const jem__stack *stack = (const jem__stack *)user;
    const jem_convnet_desc *d = &stack->desc;
    const int unit = jem__cut_unit(d->layers - 1);
    int few = 0;                                   /* images to cut into blocks */
    if (stack->convs && !training) few = jem__few_images(x, unit, 1.25);
    if (few && few < x->n) return jem__forward_apart(net, x, few);
    if (d->quadratic > 0) {
        jem_tensor *square = jem_sum_image(net->ctx, jem_square(net->ctx, x));
        net->shift = jem_scale(net->ctx, square, -0.5f * d->quadratic);
    }
    if (stack->whiten) {
        x = jem_linear(net->ctx, x, stack->whiten, NULL);
        net->shift = jem__student_logp(net, stack, x);
    }
    if (few) x = jem__cut_blocks(net->ctx, x, unit);
    if (!stack->convs) x = jem_flatten(net->ctx, x);
    for (int i = 0; i < d->layers; i++) {
        x = jem_apply(&stack->layer[i], x, training);
        x = jem_activate(net->ctx, x, d->activation, d->leak);
    }
    x = jem__join_blocks(net->ctx, x);
    net->features = x;
    if (stack->convs) x = jem_flatten(net->ctx, x);
    if (d->separate_energy) net->log_density = jem_apply(&stack->energy, x, training);
    return jem_apply(&stack->head, x, training);
}

/* Adds layer i, which reads `in` channels or features. */
static jem_layer jem__stack_layer(jem_net *net, const jem__stack *stack, int i, int in) {
    const int out = stack->desc.widths[i];
    const char *kind = stack->convs ? "conv" : "linear";
    char name[32];
    snprintf(name, sizeof name, "%s%d", kind, i + 1);
    if (!stack->convs) return jem_linear_layer(net, name, in, out);
    if (i == 0) return jem_conv_layer(net, name, in, out, 3, 1, 1);
    return jem_conv_layer(net, name, in, out, 4, 2, 1);
}

/* Adds all layers. features: values per image that enter the linear layers. */
static void jem__stack_add_layers(jem_net *net, jem__stack *stack, int features) {
    const jem_convnet_desc *d = &stack->desc;
    int in = features;
    if (stack->convs) in = d->channels;
    for (int i = 0; i < d->layers; i++) {
        stack->layer[i] = jem__stack_layer(net, stack, i, in);
        in = d->widths[i];
    }
    if (stack->convs) in = features;
    stack->head = jem_linear_layer(net, "class_output", in, d->classes);
    if (d->separate_energy) stack->energy = jem_linear_layer(net, "energy_output", in, 1);
}

/* Returns the parts of a network with a Student distribution, or NULL. */
static const jem__stack *jem__student(const jem_net *net) {
    if (net->forward != jem__stack_forward) return NULL;
    const jem__stack *stack = (const jem__stack *)net->user;
    return stack->whiten ? stack : NULL;
}

/* Adds A, which is the identity until jem_net_fit_units replaces it. */
static void jem__stack_add_whiten(jem_net *net, jem__stack *stack) {
    const int d = net->channels;
    const int shape[2] = { d, d };
    if (!stack->desc.student) return;
    stack->whiten = jem_net_param(net, "whiten.weight", 2, shape, 0);
    for (int i = 0; stack->whiten && i < d; i++) stack->whiten->value[i * d + i] = 1;
}

/* Replaces the lower triangle of the matrix cov[d][d] with its Cholesky factor L. */
static void jem__whiten_factor(double *cov, int d) {
    for (int i = 0; i < d; i++)
        for (int k = 0; k <= i; k++) {
            double sum = cov[i * d + k];
            for (int j = 0; j < k; j++) sum = fma(-cov[i * d + j], cov[k * d + j], sum);
            if (k < i) cov[i * d + k] = sum / cov[k * d + k];
            else cov[i * d + i] = sqrt(fmax(sum, 1e-6));
        }
}

/* Computes A from n vectors x, in memory of the tape: the inverse of L, where L L^T is the
   covariance of the vectors in `units`, estimated from at most ROWS of them. Returns NULL if the
   network has no A, or after an error. */
static float *jem__whiten_fit(const jem_net *net, const float *units, const float *x, int n) {
    enum { ROWS = 16384 };                         /* rows that are read, at most */
    if (!jem__student(net)) return NULL;
    jem_rng rng = jem_rng_seed(43);
    const int d = net->channels;
    const int step = jem__div_up(n, ROWS);
    const int rows = jem__div_up(n, step);
    float *a = jem__push_floats(net->ctx, (ptrdiff_t)d * d);
    float *u = jem__push_floats(net->ctx, d);
    double *cov = (double *)jem__push(net->ctx, (size_t)d * (size_t)d * sizeof *cov);
    if (!a || !u || !cov) return NULL;
    for (int i = 0; i < d * d; i++) cov[i] = i % (d + 1) ? 0 : 1e-4;         /* L is invertible */
    for (int i = 0; i < rows; i++) {               /* random rows: labels may alternate with i */
        const int from = i * step;
        const int left = n - from;
        const int row = from + jem_rng_below(&rng, left < step ? left : step);
        jem__units_apply(net, units, x + (ptrdiff_t)row * d, 1, u, 0);
        for (int j = 0; j < d; j++)
            for (int k = 0; k <= j; k++) cov[j * d + k] += (double)u[j] * (double)u[k] / rows;
    }
    jem__whiten_factor(cov, d);
    for (int k = 0; k < d; k++)                    /* column k of the inverse */
        for (int i = 0; i < d; i++) {
            double sum = i == k;
            for (int j = k; j < i; j++) sum = fma(-cov[i * d + j], (double)a[j * d + k], sum);
            a[i * d + k] = i < k ? 0 : (float)(sum / cov[i * d + i]);
        }
    return a;
}

/* Replaces the matrix A of the network. */
static void jem__whiten_set(jem_net *net, const float *a) {
    jem_param *whiten = jem__student(net)->whiten;
    memcpy(whiten->value, a, (size_t)whiten->size * sizeof *a);
    jem_param_changed(whiten);
}

/* Draws n vectors u[n][d] from the network's Student distribution. Solves A u = z sqrt(nu / chi^2)
   by forward substitution, where z is normal and chi^2 the sum of nu squared normal numbers. */
static jem_status jem__student_draw(const jem_net *net, jem_rng *rng, int n, float *u) {
    const jem__stack *stack = jem__student(net);
    const int d = net->channels;
    const int nu = stack->desc.student;
    float *normals = jem__push_floats(net->ctx, (ptrdiff_t)n * nu);
    if (!normals) return JEM_NO_MEMORY;
    jem_fill_normal(net->ctx, rng, u, (ptrdiff_t)n * d, 0, 1);
    jem_fill_normal(net->ctx, rng, normals, (ptrdiff_t)n * nu, 0, 1);
    for (int row = 0; row < n; row++) {
        float *v = u + (ptrdiff_t)row * d;
        const float *normal = normals + (ptrdiff_t)row * nu;
        float sum = 0;
        for (int k = 0; k < nu; k++) sum = jem__fmaf(normal[k], normal[k], sum);
        const float factor = sqrtf((float)nu / fmaxf(sum, 1e-20f));
        for (int i = 0; i < d; i++) {
            const float *a = stack->whiten->value + i * d;
            float rest = v[i] * factor;
            for (int k = 0; k < i; k++) rest = jem__fmaf(-a[k], v[k], rest);
            v[i] = fminf(fmaxf(rest / a[i], -JEM__LARGEST), JEM__LARGEST);
        }
    }
    return JEM_OK;
}

/* Creates a network of the kind "convnet" or "mlp". */
static jem_net *jem__stack_create(jem_ctx *ctx, const jem_convnet_desc *desc, const char *kind,
                                  uint64_t seed) {
    if (!ctx) return NULL;
    const int errors = ctx->errors;
    jem_convnet_desc d = *desc;
    jem__fields fields = jem__fields_open(ctx, kind);
    const int features = jem__stack_fields(&fields, &d);
    if (fields.status) return NULL;
    jem_net *net = jem_net_create(ctx, jem__stack_forward, NULL, sizeof(jem__stack), d.channels,
                                  d.height, d.width, d.classes, seed);
    if (!net) return NULL;
    jem__stack *stack = (jem__stack *)net->user;
    stack->desc = d;
    if (!strcmp(kind, "convnet")) stack->convs = d.layers;
    jem__stack_add_layers(net, stack, features);
    jem__stack_add_whiten(net, stack);
    fields.out = &net->meta;
    jem__stack_fields(&fields, &d);
    return jem__net_done(net, errors);
}

jem_convnet_desc jem_convnet_desc_default(void) {
    JEM__ZEROED(jem_convnet_desc, d);
    d.channels = 1;
    d.height = 28;
    d.width = 28;
    d.classes = 10;
    d.layers = 4;
    d.widths[0] = 16;
    d.widths[1] = 32;
    d.widths[2] = 64;
    d.widths[3] = 64;
    d.activation = JEM_ACTIVATION_SILU;
    d.leak = 0.2f;
    return d;
}
jem_net *jem_convnet_create(jem_ctx *ctx, const jem_convnet_desc *desc, uint64_t seed) {
    const jem_convnet_desc usual = jem_convnet_desc_default();
    return jem__stack_create(ctx, desc ? desc : &usual, "convnet", seed);
}

jem_mlp_desc jem_mlp_desc_default(void) {
    jem_mlp_desc d = jem_convnet_desc_default();
    d.layers = 2;
    d.widths[0] = 128;
    d.widths[1] = 128;
    d.widths[2] = 0;
    d.widths[3] = 0;
    return d;
}
jem_net *jem_mlp_create(jem_ctx *ctx, const jem_mlp_desc *desc, uint64_t seed) {
    const jem_mlp_desc usual = jem_mlp_desc_default();
    return jem__stack_create(ctx, desc ? desc : &usual, "mlp", seed);
}

jem_mlp_desc jem_mlp_desc_vectors(int length, int classes) {
    jem_mlp_desc d = jem_mlp_desc_default();
    d.channels = length;
    d.height = 1;
    d.width = 1;
    d.classes = classes;
    d.layers = 3;
    d.widths[0] = 64;
    d.widths[1] = 64;
    d.widths[2] = 64;
    d.student = 3;
    return d;
}

/* ---- units from data ------------------------------------------------------------------------- */

/* Returns the average of x - mean, or of its square, over channel c of n images. */
static double jem__channel_moment(const jem_net *net, const float *x, int n, int c, double mean,
                                  int squared) {
    const ptrdiff_t pixels = (ptrdiff_t)net->height * net->width;
    double sum = 0;
    for (ptrdiff_t i = 0; i < n * pixels; i++) {
        const ptrdiff_t at = (i / pixels * net->channels + c) * pixels + i % pixels;
        const double d = (double)x[at] - mean;
        if (squared) sum = fma(d, d, sum);
        else sum += d;
    }
    return sum / ((double)n * (double)pixels);
}

/* Computes mean and scale of channel c of n images. */
static void jem__units_fit(const jem_net *net, const float *x, int n, int c, float *unit) {
    const double mean = jem__channel_moment(net, x, n, c, 0, 0);
    double scale = sqrt(jem__channel_moment(net, x, n, c, mean, 1));
    if (!(scale > 1.2e-7 * fabs(mean))) scale = fabs(mean);        /* constant up to rounding */
    unit[0] = (float)mean;
    unit[1] = scale > JEM__TINY ? (float)scale : 1;
}

/* Returns 0, with an error, if there are no images. */
static int jem__has_images(jem_ctx *ctx, const char *what, const float *x, int n) {
    if (x && n >= 1) return 1;
    jem__fail(ctx, JEM_BAD_ARGUMENT, "%s: %d images%s", what, n, x ? "" : ", x is NULL");
    return 0;
}

jem_status jem_net_fit_units(jem_net *net, const float *x, int n) {
    if (!net) return JEM_BAD_ARGUMENT;
    jem_ctx *ctx = net->ctx;
    const float most = (float)JEM__MOST_WRITTEN;
    if (!jem_ok(ctx)) return ctx->status;
    if (!jem__has_images(ctx, "net_fit_units", x, n)) return ctx->status;
    if (jem__images_within(net, "net_fit_units", x, n, most) != JEM_OK) return ctx->status;
    const jem_mark mark = jem_begin(ctx);
    float *units = jem__push_floats(ctx, 2 * net->channels);
    float *whiten = NULL;
    for (int c = 0; units && c < net->channels; c++) jem__units_fit(net, x, n, c, units + 2 * c);
    if (units) whiten = jem__whiten_fit(net, units, x, n);
    if (jem_ok(ctx)) jem__numbers_write(net, &net->meta, jem__units_key, units, 2 * net->channels);
    if (jem_ok(ctx) && whiten) jem__whiten_set(net, whiten);
    jem_end(ctx, mark);
    return ctx->status;
}

/* ---- a network from its description ---------------------------------------------------------- */

/* Creates the network that a file describes, with newly initialised parameters. */
static jem_net *jem__net_from_meta(jem_ctx *ctx, const jem__meta *meta, const char *where) {
    const char *kind = jem__meta_get(meta, "jem.net");
    if (!kind)
        return jem__refuse(ctx, JEM_BAD_FILE, "%s: does not describe its network (jem.net): create "
                           "the network, then call jem_net_load (or, for a network of your own, "
                           "jem_net_set_kind before jem_save)", where);
    jem__fields f = jem__fields_open(ctx, kind);
    f.where = where;
    f.in = meta;
    if (!strcmp(kind, "wrn")) {
        jem_wrn_desc d = jem_wrn_desc_default();
        jem__wrn_fields(&f, &d);
        if (f.status) return NULL;
        return jem_wrn_create(ctx, &d, 0);
    }
    if (!strcmp(kind, "convnet") || !strcmp(kind, "mlp")) {
        JEM__ZEROED(jem_convnet_desc, d);
        jem__stack_fields(&f, &d);
        if (f.status) return NULL;
        return jem__stack_create(ctx, &d, f.kind, 0);
    }
    return jem__refuse(ctx, JEM_BAD_FILE, "%s: this version has no network of that kind (jem.net = "
                       "\"%.40s\"): register its constructor (jem_register_net), or create the "
                       "network first, then call jem_net_load", where, kind);
}

/* ==== >>losses: log-densities, cross-entropy, contrastive divergence, score =================== */

/* C does not specify the order in which arguments are evaluated, and the order of the tape decides
   the order of additions: hence at most one argument of a call records an op. */

/* Records log p(x) + log Z = e(x) + scale * logsumexp f(x), from the logits that the last
   jem_forward recorded. net->log_density, if not NULL, replaces the logsumexp; without net->shift,
   e(x) is 0. Score matching needs a large scale (see jem_net): at low noise, the norm of the slope
   of log p is sqrt(D)/sigma. */
static jem_tensor *jem__logp(jem_net *net, jem_tensor *logits) {
    if (!logits) return NULL;
    jem_tensor *f = net->log_density;
    if (!f) f = jem_logsumexp(net->ctx, logits);
    if (net->scale != 1) f = jem_scale(net->ctx, f, net->scale);
    if (net->shift) f = jem_add(net->ctx, f, net->shift);
    return f;
}

/* Records log p(y|x) = f(x)[y] - logsumexp f(x). */
static jem_tensor *jem__logp_label(jem_net *net, jem_tensor *logits, const int *labels) {
    jem_tensor *all = jem_logsumexp(net->ctx, logits);
    return jem_sub(net->ctx, jem_gather(net->ctx, logits, labels), all);
}

/* Records f(x)[y] - logsumexp of the other logits: adding -1e18 to f(x)[y] excludes it there. */
static jem_tensor *jem__odds(jem_net *net, jem_tensor *logits, const int *labels) {
    jem_ctx *ctx = net->ctx;
    jem_tensor *label_logit = jem_gather(ctx, logits, labels);
    if (!label_logit) return NULL;
    const int n = logits->n;
    const int classes = logits->c;
    float *addend = (float *)jem__push_zero(ctx, (size_t)n * (size_t)classes * sizeof *addend);
    for (int i = 0; addend && i < n; i++) addend[(ptrdiff_t)i * classes + labels[i]] = -1e18f;
    jem_tensor *others = jem_add(ctx, logits, jem_input(ctx, addend, n, classes, 1, 1));
    return jem_sub(ctx, label_logit, jem_logsumexp(ctx, others));
}

/* Records log p(x,y) + log Z = (log p(x) + log Z) + log p(y|x): f(x)[y] if the scale is 1 and there
   is no e(x). */
static jem_tensor *jem__logp_class(jem_net *net, jem_tensor *logits, const int *labels) {
    if (logits && net->log_density)
        return jem__refuse(net->ctx, JEM_BAD_ARGUMENT, "log p(x) is a separate output of this "
                           "network (separate_energy): for log p(x,y), use jem_logp_guided with "
                           "weight 1");
    if (net->scale == 1 && !net->shift) return jem_gather(net->ctx, logits, labels);
    jem_tensor *logp = jem__logp(net, logits);
    return jem_add(net->ctx, logp, jem__logp_label(net, logits, labels));
}

/* Returns `user` as a valid query, or NULL after an error. */
static const jem_query *jem__query(jem_ctx *ctx, const char *what, const void *user, int labelled) {
    const jem_query *query = (const jem_query *)user;
    const char *wrong = NULL;
    if (!query) wrong = "it is NULL";
    else if (!query->net) wrong = "its net is NULL";
    else if (query->net->ctx != ctx) wrong = "its network belongs to another context";
    else if (labelled && !query->labels) wrong = "its labels are NULL";
    if (!wrong) return query;
    return jem__refuse(ctx, JEM_BAD_ARGUMENT, "%s: a jem_query of a network%s is needed: %s", what,
                       labelled ? " and labels" : "", wrong);
}

jem_tensor *jem_logp(jem_ctx *ctx, jem_tensor *x, void *user) {
    const jem_query *query = jem__query(ctx, "logp", user, 0);
    if (!query) return NULL;
    return jem__logp(query->net, jem_forward(query->net, x, 0));
}
jem_tensor *jem_logp_class(jem_ctx *ctx, jem_tensor *x, void *user) {
    const jem_query *query = jem__query(ctx, "logp_class", user, 1);
    if (!query) return NULL;
    return jem__logp_class(query->net, jem_forward(query->net, x, 0), query->labels);
}
jem_tensor *jem_logp_label(jem_ctx *ctx, jem_tensor *x, void *user) {
    const jem_query *query = jem__query(ctx, "logp_label", user, 1);
    if (!query) return NULL;
    return jem__logp_label(query->net, jem_forward(query->net, x, 0), query->labels);
}
jem_tensor *jem_log_odds(jem_ctx *ctx, jem_tensor *x, void *user) {
    const jem_query *query = jem__query(ctx, "log_odds", user, 1);
    if (!query) return NULL;
    return jem__odds(query->net, jem_forward(query->net, x, 0), query->labels);
}
jem_tensor *jem_logp_guided(jem_ctx *ctx, jem_tensor *x, void *user) {
    const jem_query *query = jem__query(ctx, "logp_guided", user, 1);
    if (!query) return NULL;
    jem_tensor *logits = jem_forward(query->net, x, 0);
    jem_tensor *logp = jem__logp(query->net, logits);
    jem_tensor *logp_label = jem__logp_label(query->net, logits, query->labels);
    return jem_add(ctx, logp, jem_scale(ctx, logp_label, query->weight));
}

jem_tensor *jem_cross_entropy(jem_ctx *ctx, jem_tensor *logits, const int *labels) {
    jem_tensor *all = jem_logsumexp(ctx, logits);
    return jem_mean(ctx, jem_sub(ctx, all, jem_gather(ctx, logits, labels)));
}

jem_tensor *jem_contrastive(jem_ctx *ctx, jem_tensor *logp_data, jem_tensor *logp_sample) {
    jem_tensor *f_data = jem_mean(ctx, logp_data);
    return jem_sub(ctx, jem_mean(ctx, logp_sample), f_data);
}

/* Records sum + weight*term; sum and term may be NULL, which counts as 0. */
static jem_tensor *jem__accumulate(jem_ctx *ctx, jem_tensor *sum, float weight, jem_tensor *term) {
    if (!term || weight == 0) return sum;
    if (weight != 1) term = jem_scale(ctx, term, weight);
    if (!sum) return term;
    return jem_add(ctx, sum, term);
}

/* Records all terms *t whose inputs are given; returns the weighted loss, or NULL if it has no
   term. Computes log p(x_data) only if a term needs it, not for the statistic f_data alone. */
static jem_tensor *jem__loss(jem_net *net, const jem_loss_weights *w, jem_tensor *x,
                             const int *labels, jem_tensor *x_data, jem_tensor *x_sample,
                             const int *sample_labels, jem_loss_terms *t) {
    jem_ctx *ctx = net->ctx;
    const int uses_data = x_sample || w->energy_l2 > 0;
    const int by_class = x_sample && labels && sample_labels && w->cd_class != 0;
    jem_tensor *logp_sample = NULL;
    jem_tensor *data_class = NULL;
    jem_tensor *cd_class = NULL;
    t->logits = jem_forward(net, x, 1);
    if (by_class && t->logits)                     /* now: the next pass replaces net->shift */
        data_class = jem__logp_class(net, t->logits, labels);
    if (t->logits && labels) t->ce = jem_cross_entropy(ctx, t->logits, labels);
    jem_tensor *data_logits = t->logits;
    jem_tensor *logp = NULL;
    if (x_data && uses_data) data_logits = jem_forward(net, x_data, 1);
    if (!x_data || uses_data) logp = jem__logp(net, data_logits);
    t->f_data = jem_mean(ctx, logp);
    if (x_sample) {
        jem_tensor *logits = jem_forward(net, x_sample, 1);
        logp_sample = jem__logp(net, logits);
        t->f_sample = jem_mean(ctx, logp_sample);
        if (data_class)
            cd_class = jem_contrastive(ctx, data_class,
                                       jem__logp_class(net, logits, sample_labels));
    }
    jem_tensor *sum = jem__accumulate(ctx, NULL, w->ce, t->ce);
    sum = jem__accumulate(ctx, sum, w->cd, jem_sub(ctx, t->f_sample, t->f_data));
    sum = jem__accumulate(ctx, sum, w->cd_class, cd_class);
    if (!(w->energy_l2 > 0)) return sum;
    sum = jem__accumulate(ctx, sum, w->energy_l2, jem_mean(ctx, jem_square(ctx, logp)));
    return jem__accumulate(ctx, sum, w->energy_l2, jem_mean(ctx, jem_square(ctx, logp_sample)));
}

/* Rejects a loss without terms. */
static jem_tensor *jem__loss_checked(jem_ctx *ctx, jem_tensor *sum) {
    if (jem_ok(ctx) && !sum)
        jem__fail(ctx, JEM_BAD_ARGUMENT, "loss: no term has both a weight and its inputs");
    return jem_ok(ctx) ? sum : NULL;
}

static int jem__loss_weights_good(jem_ctx *ctx, jem_loss_weights d) {
    const char *const what = "loss";
    return JEM__IN(d.ce, 0, JEM__MOST) && JEM__IN(d.cd, 0, JEM__MOST) &&
           JEM__IN(d.cd_class, 0, JEM__MOST) && JEM__IN(d.energy_l2, 0, JEM__MOST);
}

jem_tensor *jem_loss(jem_net *net, const jem_loss_weights *w, jem_tensor *x, const int *labels,
                     jem_tensor *x_data, jem_tensor *x_sample, const int *sample_labels,
                     jem_loss_terms *terms) {
    JEM__ZEROED(jem_loss_terms, t);
    jem_tensor *sum = NULL;
    if (net && w && jem__loss_weights_good(net->ctx, *w))
        sum = jem__loss(net, w, x, labels, x_data, x_sample, sample_labels, &t);
    if (terms) *terms = t;
    if (!net) return NULL;
    const char *missing = NULL;
    if (!sample_labels) missing = "sample_labels";
    if (!labels) missing = "labels";
    if (!x) missing = "x";
    if (w && w->cd_class > 0 && x_sample && missing)
        jem__fail(net->ctx, JEM_BAD_ARGUMENT, "loss: cd_class = %g, but %s is NULL",
                  (double)w->cd_class, missing);
    if (!w) jem__fail(net->ctx, JEM_BAD_ARGUMENT, "loss: weights is NULL");
    return jem__loss_checked(net->ctx, sum);
}

/* ---- noise ----------------------------------------------------------------------------------- */

/* Returns the number of Threefry counters for the noise of one group; groups do not share any. */
static uint64_t jem__group_counters(const jem__node *x) {
    return (uint64_t)(x->group_floats + 31) / 32 * 16;
}
/* Takes counters for all groups of x on all ranks from rng; returns the first of this rank. */
static uint64_t jem__take_counters(const jem__node *x, jem_rng *rng) {
    const uint64_t counters = jem__group_counters(x) * (uint64_t)x->groups;
    const jem_ctx *ctx = x->t.ctx;
    return jem__rng_take(rng, (ptrdiff_t)(counters * 2) * ctx->ranks) +
           counters * (uint64_t)ctx->rank;
}

/* Returns the noise level of an image; in padding lanes, that of the last image. */
static float jem__sigma(const jem__node *x, const float *sigma, int group, int lane) {
    const int i = group * JEM_LANES + lane;
    return sigma[i < x->t.n ? i : x->t.n - 1];
}

/* Checks the inputs of a walk. has_rng: 0 if an rng is required, but missing. */
static int jem__walk_ready(jem_ctx *ctx, const char *what, jem_logp_fn logp, const jem_tensor *x,
                           int has_rng) {
    if (!ctx || ctx->status != JEM_OK) return 0;
    if (x && x->ctx != ctx)
        jem__fail(ctx, JEM_BAD_ARGUMENT, "%s: x is a tensor of another context", what);
    else if (!logp) jem__fail(ctx, JEM_BAD_ARGUMENT, "%s: the log-density is NULL", what);
    else if (!x) jem__fail(ctx, JEM_BAD_ARGUMENT, "%s: x is NULL", what);
    else if (!has_rng) jem__fail(ctx, JEM_BAD_ARGUMENT, "%s: the rng is NULL", what);
    else return jem__need_leaf(x, what);
    return 0;
}

/* Records log p of the images of the leaf x; it must be one number per image. */
static jem_tensor *jem__density(jem_ctx *ctx, const char *what, jem_logp_fn logp, void *user,
                                jem_tensor *x) {
    if (!x) return NULL;
    jem_tensor *y = jem__call_logp(ctx, logp, user, x);
    if (y && y->n == x->n && y->c == 1 && y->h == 1 && y->w == 1) return y;
    return jem__refuse(ctx, JEM_BAD_SHAPE, "%s: the log-density returned %s for x %s", what,
                       y ? jem__shape_text(y).s : "nothing", jem__shape_text(x).s);
}
/* Records log p as jem__density does, and computes d log p/dx; after an error, x has none. */
static jem_tensor *jem__density_and_slope(jem_ctx *ctx, const char *what, jem_logp_fn logp,
                                          void *user, jem_tensor *x) {
    jem_tensor *y = jem__density(ctx, what, logp, user, x);
    if (jem_grad(y, x) == JEM_OK) return y;
    if (x) x->node->grad = NULL;
    return NULL;
}

/* A step of a walk (>>samplers), or noise without a step. */
typedef struct jem__walk_move {
    jem__node *x;
    const float *sigma;                            /* [n]: noise of sigma[i] for image i, without a
                                                      step; NULL: a step */
    jem__langevin d;                               /* the step */
    float sigma_max;                               /* > 0: noise-blind. The step, for sigma = 1, is
                                                      scaled by each image's estimated sigma, which
                                                      is at most sigma_max */
    const jem_rng *rng;                            /* NULL: no noise */
    uint64_t start;                                /* counter of the first group */
} jem__walk_move;

/* Scales a step for sigma = 1 to the noise of each image, estimated from its slope g: sigma =
   sqrt(D)/||g||. */
static void jem__scale_step(const jem__kernels *k, const float *grad, ptrdiff_t n, float sigma_max,
                            jem__langevin *d) {
    float squares[JEM_LANES];
    k->dot(1, grad, grad, squares, 0, n);
    for (int l = 0; l < JEM_LANES; l++) {
        float sigma = sigma_max;
        if (squares[l] > 0) {
            const float estimate = sqrtf((float)(n / JEM_LANES) / squares[l]);
            if (estimate < sigma_max) sigma = estimate;
        }
        d->step[l] *= sigma * sigma;
        d->noise[l] *= sigma;
    }
}

/* Takes the step of one group of 16 images. */
static void jem__walk_group(void *arg, int g) {
    const jem__walk_move *w = (const jem__walk_move *)arg;
    const jem__kernels *k = w->x->t.ctx->k;
    const ptrdiff_t n = w->x->group_floats;
    float *x = w->x->value + g * n;
    const float *grad = w->sigma ? x : w->x->grad + g * n;         /* x: not used, step is 0 */
    const uint32_t *key = w->rng ? w->rng->key : NULL;
    const uint64_t start = w->start + (uint64_t)g * jem__group_counters(w->x);
    jem__langevin d = w->d;
    for (int l = 0; w->sigma && l < JEM_LANES; l++) d.noise[l] = jem__sigma(w->x, w->sigma, g, l);
    if (w->sigma_max > 0) jem__scale_step(k, grad, n, w->sigma_max, &d);
    k->langevin(x, grad, n, &d, key, start);
    jem__fill_padding(x, n, jem__live_lanes(w->x->t.n, g));
}

/* Takes a step of all groups, in parallel. rng may be NULL: no noise. */
static void jem__walk_step(jem__walk_move *w, jem_rng *rng) {
    jem__node *x = w->x;
    w->rng = rng;
    w->start = 0;
    if (rng) w->start = jem__take_counters(x, rng);
    jem__parallel(x->t.ctx, x->groups, 50 * (double)(x->groups * x->group_floats),
                  jem__walk_group, w);
    jem__leaf_changed(x);
}

jem_status jem_add_noise(jem_tensor *leaf, const float *sigma, jem_rng *rng) {
    if (!leaf) return JEM_BAD_ARGUMENT;
    jem_ctx *ctx = leaf->ctx;
    if (!jem__need_leaf(leaf, "add_noise")) return ctx->status;
    if (!sigma || !rng)
        return jem__fail(ctx, JEM_BAD_ARGUMENT, "add_noise: sigma or rng is NULL");
    for (int i = 0; i < leaf->n; i++) {
        if (!jem__finite(sigma[i]))
            return jem__fail(ctx, JEM_BAD_ARGUMENT, "add_noise: sigma[%d] = %g is not finite", i,
                             (double)sigma[i]);
    }
    JEM__ZEROED(jem__walk_move, w);
    w.x = leaf->node;
    w.sigma = sigma;
    jem__walk_step(&w, rng);
    return JEM_OK;
}

/* ---- score matching -------------------------------------------------------------------------- */
/* With g = d log p(x~)/dx~ and r = sigma g + z, the loss of an image is 1/2 ||r||^2. With the
   direction u = r/||r||, held constant, its derivative with respect to a parameter theta is

       d/d theta 1/2 ||r||^2 = r . d(sigma g)/d theta = sigma ||r|| d/d theta (u . g)

   u . g is the slope of log p along u. It is computed as the difference of two ordinary passes, a
   distance h to either side,

       u . g = [log p(x~ + h u) - log p(x~ - h u)] / 2h + O(h^2),
       h = difference * sigma sqrt(D)       (jem_score_desc.difference)

   so the gradient of two batches of n images, weighted by +- sigma ||r||/2h, replaces the second
   derivative. jem_slope_along does the same along any directions.
   The kernel of Langevin steps computes all parts: noise is a step without a slope,
   r = 0 + sigma g + z is a step from 0, and x~ +- h u are steps along r. z is computed twice from
   its counters rather than stored. */

/* Sums over the pixels of 16 images. */
typedef struct jem__score_group { float rr[JEM_LANES], rg[JEM_LANES]; } jem__score_group;

/* Images on either side of given ones, and a weight for each pair: jem__sides_sum records the sum
   of weight (log p(plus) - log p(minus)). */
typedef struct jem__sides { jem_tensor *plus, *minus, *weight; } jem__sides;

/* Arguments of jem__score_sides, which computes the two sides of noisy images from their slopes. */
typedef struct jem__score {
    const jem__node *x;                            /* clean images */
    jem__node *noisy;
    jem__sides sides;
    jem__score_group *group;                       /* r.r and r.g of every image */
    const float *sigma;
    const uint32_t *key;                           /* key and first counter of z */
    uint64_t start;
    float h_per_sigma;
} jem__score;

/* Creates the leaves of the two sides of x. */
static int jem__sides_open(jem__sides *s, const jem_tensor *x, const char *what) {
    s->plus = jem__leaf(x->ctx, what, jem__shape_of(x));
    s->minus = jem__leaf(x->ctx, what, jem__shape_of(x));
    s->weight = jem__leaf(x->ctx, what, jem__shape(x->n, 1, 1, 1));
    return s->plus && s->minus && s->weight;
}

/* Records the sum of weight (log p(plus) - log p(minus)). */
static jem_tensor *jem__sides_sum(jem_ctx *ctx, const char *what, const jem__sides *s,
                                  jem_logp_fn logp, void *user) {
    jem_tensor *plus = jem__density(ctx, what, logp, user, s->plus);
    jem_tensor *minus = jem__density(ctx, what, logp, user, s->minus);
    return jem_sum(ctx, jem_mul(ctx, jem_sub(ctx, plus, minus), s->weight));
}

/* Computes the two sides of one group of 16 images, at distances h[l]: writes x + h r/||r|| over r,
   x - h r/||r|| to minus, and r.r to rr. Overwrites x. */
static void jem__step_aside(const jem__kernels *k, ptrdiff_t n, float *x, float *r, float *minus,
                            const float *h, float *rr) {
    JEM__ZEROED(jem__langevin, d);
    memcpy(minus, x, (size_t)n * sizeof *x);
    k->dot(1, r, r, rr, 0, n);
    for (int l = 0; l < JEM_LANES; l++) {
        if (rr[l] > 0) d.step[l] = -h[l] / sqrtf(rr[l]);
    }
    k->langevin(minus, r, n, &d, NULL, 0);
    for (int l = 0; l < JEM_LANES; l++) d.step[l] = -d.step[l];
    k->langevin(x, r, n, &d, NULL, 0);
    memcpy(r, x, (size_t)n * sizeof *x);
}

/* Computes r = sigma g + z of a group, r.r and r.g, and the two sides. */
static void jem__score_sides(void *arg, int g) {
    const jem__score *s = (const jem__score *)arg;
    const jem__kernels *k = s->x->t.ctx->k;
    const ptrdiff_t n = s->x->group_floats;
    const float *grad = s->noisy->grad + g * n;
    const uint64_t start = s->start + (uint64_t)g * jem__group_counters(s->x);
    float *r = s->sides.plus->node->value + g * n;           /* replaced by that side at the end */
    float *minus = s->sides.minus->node->value + g * n;
    float h[JEM_LANES];
    jem__score_group *sums = s->group + g;
    JEM__ZEROED(jem__langevin, d);
    memset(r, 0, (size_t)n * sizeof *r);
    for (int l = 0; l < JEM_LANES; l++) {
        d.step[l] = jem__sigma(s->x, s->sigma, g, l);
        d.noise[l] = 1;
    }
    k->langevin(r, grad, n, &d, s->key, start);
    k->dot(1, r, grad, sums->rg, 0, n);
    for (int l = 0; l < JEM_LANES; l++) h[l] = s->h_per_sigma * d.step[l];
    jem__step_aside(k, n, s->noisy->value + g * n, r, minus, h, sums->rr);
    jem__fill_padding(r, n, jem__live_lanes(s->x->t.n, g));
    jem__fill_padding(minus, n, jem__live_lanes(s->x->t.n, g));
}

/* Draws each level from its own 1/n of the logarithmic range, so that the loss varies less. */
void jem_noise_levels(jem_rng *rng, int n, float lo, float hi, float *sigma) {
    const double log_range = log((double)hi / (double)lo);
    for (int i = 0; sigma && i < n; i++) {
        const double part = ((double)i + (double)jem_rng_uniform(rng)) / n;
        sigma[i] = (float)((double)lo * exp(log_range * part));
    }
}

/* Sets the weights of the two sides. Returns the constant that turns the value of their weighted
   sum, the mean of weight r . sigma g, into the loss, the mean of weight/2 ||r||^2. *mean_rr
   receives the mean of r.r. */
static double jem__score_weights(const jem__score *s, const float *weights, double *mean_rr) {
    const int n = s->x->t.n;
    double constant = 0;
    *mean_rr = 0;
    for (int i = 0; i < n; i++) {
        const jem__score_group *sums = s->group + i / JEM_LANES;
        const double rr = (double)sums->rr[i % JEM_LANES];
        const double rg = (double)sums->rg[i % JEM_LANES];
        const double weight = (weights ? (double)weights[i] : 1) / n;
        s->sides.weight->node->value[i] = (float)(weight * sqrt(rr) / (2 * (double)s->h_per_sigma));
        constant = fma(weight, fma((double)-s->sigma[i], rg, 0.5 * rr), constant);
        *mean_rr += rr / n;
    }
    return constant;
}

/* Checks the noise levels and weights of n images, and the difference. */
static int jem__score_desc_good(jem_ctx *ctx, const jem_score_desc *d, int n) {
    const char *const what = "score_matching";
    for (int i = 0; d && d->sigma && i < n; i++) {
        const float weight = d->weight ? d->weight[i] : 1;
        if (d->sigma[i] > 0 && d->sigma[i] < 1e6f && weight >= 0 && jem__finite(weight)) continue;
        jem__fail(ctx, JEM_BAD_ARGUMENT, "%s: image %d: sigma = %g, weight = %g: sigma must be "
                  "above 0 and below 1e6, weights finite and at least 0", what, i,
                  (double)d->sigma[i], (double)weight);
        return 0;
    }
    if (d && d->sigma) return jem__in_range(ctx, what, "difference", (double)d->difference, 0, 1e6);
    jem__fail(ctx, JEM_BAD_ARGUMENT, "%s: the desc or its sigma is NULL", what);
    return 0;
}

/* Returns h / sigma. The error of a long step grows with its square; that of a short one is
   rounding. tests/rooms/test_score.c measures both. */
static float jem__score_step(const jem_ctx *ctx, float step, int values) {
    if (!(step > 0)) step = jem_ctx_precision(ctx) == JEM_PRECISION_BF16 ? 0.1f : 0.03f;
    return step * sqrtf((float)values);
}

jem_tensor *jem_score_matching(jem_ctx *ctx, jem_logp_fn logp, void *user, jem_tensor *x,
                               const jem_score_desc *desc, jem_rng *rng, float *residual) {
    const char *const what = "score_matching";
    if (!jem__walk_ready(ctx, what, logp, x, rng != NULL)) return NULL;
    if (!jem__score_desc_good(ctx, desc, x->n)) return NULL;
    const int values = x->c * x->h * x->w;
    const int groups = x->node->groups;
    const ptrdiff_t size = groups * x->node->group_floats;
    jem__score s;
    jem_rng again = *rng;                          /* draws z a second time */
    s.x = x->node;
    s.sigma = desc->sigma;
    s.key = rng->key;
    s.start = jem__take_counters(s.x, &again);
    s.h_per_sigma = jem__score_step(ctx, desc->difference, values);
    s.group = (jem__score_group *)jem__push_zero(ctx, (size_t)groups * sizeof *s.group);
    if (!jem__sides_open(&s.sides, x, what) || !s.group) return NULL;
    const jem_mark mark = jem_begin(ctx);
    jem_tensor *noisy = jem__leaf(ctx, what, jem__shape_of(x));
    if (noisy) memcpy(noisy->node->value, x->node->value, (size_t)size * sizeof(float));
    jem_add_noise(noisy, desc->sigma, rng);
    if (jem__density_and_slope(ctx, what, logp, user, noisy)) {
        s.noisy = noisy->node;
        jem__parallel(ctx, groups, 50 * (double)size, jem__score_sides, &s);
    }
    jem_end(ctx, mark);
    if (ctx->status != JEM_OK) return NULL;
    double mean_rr;
    const double constant = jem__score_weights(&s, desc->weight, &mean_rr);
    if (residual) *residual = (float)(mean_rr / values);
    return jem_add_constant(ctx, jem__sides_sum(ctx, what, &s.sides, logp, user), (float)constant);
}

jem_tensor *jem_slope_along(jem_ctx *ctx, jem_logp_fn logp, void *user, jem_tensor *x,
                            jem_tensor *v, float h) {
    const char *const what = "slope_along";
    if (!jem__walk_ready(ctx, what, logp, x, 1) || !JEM__IN(h, 0, 1e6)) return NULL;
    if (!jem__need_leaf(v, what) || v->ctx != ctx || v->n != x->n || v->c != x->c || v->h != x->h ||
        v->w != x->w)
        return jem__refuse(ctx, JEM_BAD_ARGUMENT, "slope_along: x and v must be leaves of one "
                           "shape and one context");
    const ptrdiff_t n = x->node->group_floats;
    jem__sides s;
    float distance[JEM_LANES], vv[JEM_LANES];
    float *copy = jem__push_floats(ctx, n);
    if (!jem__sides_open(&s, x, what) || !copy) return NULL;
    if (h == 0) {
        h = jem_ctx_precision(ctx) == JEM_PRECISION_BF16 ? 0.01f : 0.003f;
        h *= sqrtf((float)(n / JEM_LANES));
    }
    for (int l = 0; l < JEM_LANES; l++) distance[l] = h;
    for (int g = 0; g < x->node->groups; g++) {
        float *plus = s.plus->node->value + g * n;
        float *minus = s.minus->node->value + g * n;
        float *weight = s.weight->node->value + g * JEM_LANES;
        memcpy(copy, x->node->value + g * n, (size_t)n * sizeof *copy);
        memcpy(plus, v->node->value + g * n, (size_t)n * sizeof *copy);
        jem__step_aside(ctx->k, n, copy, plus, minus, distance, vv);
        jem__fill_padding(plus, n, jem__live_lanes(x->n, g));
        jem__fill_padding(minus, n, jem__live_lanes(x->n, g));
        for (int l = 0; l < JEM_LANES; l++) weight[l] = sqrtf(vv[l]) / (2 * h);
    }
    return jem__sides_sum(ctx, what, &s, logp, user);
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
    const double hot = (double)d->temperature_from;
    const double b = (double)d->decay_b;
    double progress = 1;
    double temperature = 1;
    double decay = 1;
    if (d->steps > 1) progress = step / (d->steps - 1.0);
    if (hot > 0) temperature = hot * pow((double)d->temperature_to / hot, progress);
    if (b > 0) decay = pow(1 + step / b, -(double)d->decay_gamma);
    *size = d->step_size * (float)decay;
    *noise = d->noise_std * (float)sqrt(decay * temperature);
}

/* A walk of jem_sgld or jem_denoise. If sigma_max is above 0, it is noise-blind: the sizes of its
   steps are in units of sigma^2 and their noise in units of sigma, which is estimated for each
   image and is at most sigma_max. */
typedef struct jem__walk {
    const char *what;                              /* name in messages */
    jem_sgld_desc d;
    float sigma_max;
} jem__walk;

/* Takes the steps from..to-1 of a walk. */
static jem_status jem__walk_steps(jem_ctx *ctx, jem_logp_fn logp, void *user, jem_tensor *x,
                                  const jem__walk *walk, int from, int to, jem_rng *rng) {
    const jem_sgld_desc *d = &walk->d;
    const char *const what = walk->what;
    JEM__ZEROED(jem__walk_move, w);
    w.x = x->node;
    w.sigma_max = walk->sigma_max;
    w.d.clamp_grad = d->clamp_grad;
    w.d.lo = d->clamp_lo;
    w.d.hi = d->clamp_hi;
    int step = from;
    for (int stop = 0; step < to && !stop && ctx->status == JEM_OK; step++) {
        jem_mark mark = jem_begin(ctx);
        float size, noise;
        jem__sgld_sizes(d, step, &size, &noise);
        for (int l = 0; l < JEM_LANES; l++) {
            w.d.step[l] = size;
            w.d.noise[l] = noise;
        }
        if (jem__density_and_slope(ctx, what, logp, user, x))
            jem__walk_step(&w, d->noise_std != 0 ? rng : NULL);
        jem_end(ctx, mark);
        if (ctx->status == JEM_OK) stop = jem__watch(d->watch, d->watch_user, step, x);
    }
    if (ctx->status == JEM_OK && !jem__all_finite(w.x->value, w.x->groups * w.x->group_floats))
        jem__fail(ctx, JEM_DIVERGED, "%s: x %s is not finite after %d steps of %g", what,
                  jem__shape_text(x).s, step, (double)d->step_size);
    return ctx->status;
}

/* Checks the desc of a walk: returns 1 if it is valid, otherwise reports the invalid field. */
static int jem__sgld_good(jem_ctx *ctx, const char *what, jem_sgld_desc d) {
    if ((d.decay_b > 0) != (d.decay_gamma > 0)) {
        jem__fail(ctx, JEM_BAD_ARGUMENT, "%s: decay_b = %g, decay_gamma = %g: both must be above "
                  "0, or both 0", what, (double)d.decay_b, (double)d.decay_gamma);
        return 0;
    }
    return JEM__IN(d.steps, 0, INT32_MAX) && JEM__IN(d.step_size, -JEM__MOST, JEM__MOST) &&
           JEM__IN(d.noise_std, 0, JEM__MOST) && JEM__IN(d.clamp_grad, 0, JEM__MOST) &&
           JEM__IN(d.clamp_lo, -JEM__MOST, JEM__MOST) &&
           JEM__IN(d.clamp_hi, d.clamp_lo, JEM__MOST) &&
           JEM__IN(d.temperature_from, 0, JEM__MOST) &&
           JEM__IN(d.decay_b, 0, JEM__MOST) && JEM__IN(d.decay_gamma, 0, JEM__MOST) &&
           JEM__IN(d.temperature_to, d.temperature_from > 0 ? JEM__TINY : 0, JEM__MOST);
}
static int jem__denoise_good(jem_ctx *ctx, const char *what, jem_denoise_desc d) {
    return JEM__IN(d.steps, 0, INT32_MAX) && JEM__IN(d.fraction, JEM__TINY, 1) &&
           JEM__IN(d.beta, 0, 1) && JEM__IN(d.sigma_max, JEM__TINY, JEM__MOST);
}

jem_status jem_sgld(jem_ctx *ctx, jem_logp_fn logp, void *user, jem_tensor *x,
                    const jem_sgld_desc *desc, jem_rng *rng) {
    const jem__walk walk = { "sgld", desc ? *desc : jem_sgld_desc_default(), 0 };
    if (!jem__walk_ready(ctx, walk.what, logp, x, 1) ||
        !jem__sgld_good(ctx, walk.what, walk.d)) return jem_error_status(ctx);
    return jem__walk_steps(ctx, logp, user, x, &walk, 0, walk.d.steps, rng);
}

/* Finds the nearest sample unequal to the one at x->value[own]. Returns its place there, or -1 if
   all are equal; *least receives the squared distance. */
static ptrdiff_t jem__nearest_sample(const jem__node *x, ptrdiff_t own, double *least) {
    ptrdiff_t nearest = -1;
    *least = HUGE_VAL;
    for (int j = 0; j < x->t.n; j++) {
        const ptrdiff_t at = jem__lane_at(x, j, 0, 0, 0);
        double square = 0;
        for (ptrdiff_t k = 0; k < x->group_floats && square < *least; k += JEM_LANES) {
            const double offset = (double)x->value[own + k] - (double)x->value[at + k];
            square = fma(offset, offset, square);
        }
        if (square > 0 && square < *least) {
            *least = square;
            nearest = at;
        }
    }
    return nearest;
}

/* Subtracts `entropy` times dH/dx from v; descent along v then moves each sample and its nearest
   neighbour apart. Returns `entropy` times H, up to a constant. */
static double jem__entropy_gradient(const jem__node *x, double entropy, float *v) {
    const double weight = entropy * (double)(x->group_floats / JEM_LANES) / x->t.n;
    double sum = 0;
    for (int i = 0; i < x->t.n; i++) {
        const ptrdiff_t own = jem__lane_at(x, i, 0, 0, 0);
        double least;
        const ptrdiff_t nearest = jem__nearest_sample(x, own, &least);
        if (nearest < 0) continue;
        const float push = (float)(weight / least);
        sum = fma(weight / 2, log(least), sum);
        for (ptrdiff_t k = 0; k < x->group_floats; k += JEM_LANES) {
            const float offset = x->value[own + k] - x->value[nearest + k];
            v[own + k] = jem__fmaf(-push, offset, v[own + k]);
            v[nearest + k] = jem__fmaf(push, offset, v[nearest + k]);
        }
    }
    return sum;
}

/* Memory of jem_kl_walk, on the tape. */
typedef struct jem__kl {
    jem_tensor *before;                            /* x before the last step */
    jem_tensor *direction;                         /* v = step_size dL_KL/dx */
    float *gradient;                               /* of log p at `before` */
    float *f;                                      /* [n] log p after the last step */
} jem__kl;

/* Allocates this memory and the gradient of x. Returns 0 if memory runs out. */
static int jem__kl_open(jem__kl *kl, jem_tensor *x) {
    jem_ctx *ctx = x->ctx;
    jem__node *node = x->node;
    const ptrdiff_t size = node->groups * node->group_floats;
    if (!node->grad) {                             /* allocated here to outlive the step */
        node->grad = jem__push_floats(ctx, size);
        node->grad_push = ctx->pushes;
    }
    kl->before = jem__leaf(ctx, "kl_walk", jem__shape_of(x));
    kl->direction = jem__leaf(ctx, "kl_walk", jem__shape_of(x));
    kl->gradient = jem__push_floats(ctx, size);
    kl->f = jem__push_floats(ctx, x->n);
    return kl->before && kl->direction && kl->gradient && kl->f;
}

/* Returns 1 if the desc clamps pixel x or its gradient g: x then does not depend on the
   parameters. */
static int jem__is_clamped(const jem_sgld_desc *d, float x, float g) {
    if (d->clamp_grad > 0 && fabsf(g) >= d->clamp_grad) return 1;
    return d->clamp_lo < d->clamp_hi && (x <= d->clamp_lo || x >= d->clamp_hi);
}

/* Computes v after the last step. Returns L_KL minus v . gradient, which jem_slope_along will
   record: by the chain rule, the derivative of L_KL with respect to a parameter is v times that of
   the gradient of log p at `before`. */
static double jem__kl_direction(const jem__kl *kl, const jem__node *x, const jem_sgld_desc *d,
                                float entropy) {
    const int n = x->t.n;
    const ptrdiff_t size = x->groups * x->group_floats;
    float *v = kl->direction->node->value;
    double value = 0;
    for (int i = 0; i < n; i++) value -= (double)kl->f[i] / n;
    for (ptrdiff_t i = 0; i < size; i++) v[i] = -x->grad[i] / (float)n;
    if (entropy > 0) value -= jem__entropy_gradient(x, (double)entropy, v);
    for (ptrdiff_t i = 0; i < size; i++) {
        v[i] *= d->step_size;
        if (jem__is_clamped(d, x->value[i], kl->gradient[i])) v[i] = 0;
        value = fma((double)-v[i], (double)kl->gradient[i], value);
    }
    return value;
}

jem_tensor *jem_kl_walk(jem_ctx *ctx, jem_logp_fn logp, void *user, jem_tensor *x,
                        const jem_sgld_desc *desc, float entropy, jem_rng *rng) {
    const jem_sgld_desc d = desc ? *desc : jem_sgld_desc_default();
    const char *const what = "kl_walk";
    if (!jem__walk_ready(ctx, what, logp, x, 1) || !jem__sgld_good(ctx, what, d) ||
        !JEM__IN(d.steps, 1, INT32_MAX) || !JEM__IN(entropy, 0, JEM__MOST) ||
        !JEM__IN(d.temperature_from, 0, 0) || !JEM__IN(d.decay_b, 0, 0)) return NULL;
    jem__walk walk = { what, d, 0 };
    const int last = d.steps - 1;
    if (jem__walk_steps(ctx, logp, user, x, &walk, 0, last, rng) != JEM_OK) return NULL;
    jem__kl kl;
    if (!jem__kl_open(&kl, x)) return NULL;
    jem__node *node = x->node;
    const size_t bytes = (size_t)(node->groups * node->group_floats) * sizeof(float);
    memcpy(kl.before->node->value, node->value, bytes);
    walk.d.watch = NULL;                           /* it might replace the gradient */
    if (jem__walk_steps(ctx, logp, user, x, &walk, last, d.steps, rng) != JEM_OK) return NULL;
    memcpy(kl.gradient, node->grad, bytes);
    jem__watch(d.watch, d.watch_user, last, x);
    const jem_mark mark = jem_begin(ctx);
    jem_read(jem__density_and_slope(ctx, what, logp, user, x), kl.f);
    jem_end(ctx, mark);
    if (ctx->status != JEM_OK) return NULL;
    const float value = (float)jem__kl_direction(&kl, node, &d, entropy);
    return jem_add_constant(ctx, jem_slope_along(ctx, logp, user, kl.before, kl.direction, 0),
                            value);
}

/* Returns the steps of jem_denoise. A step leaves the fraction `remaining` of the noise, and adds
   noise up to `target`, unless adds_noise is 0. The variance to add is target^2 - remaining^2 =
   (target + remaining)(target - remaining). */
static jem__walk jem__denoise_walk(const jem_denoise_desc *d, int adds_noise) {
    const float remaining = 1 - d->fraction;
    const float target = jem__fmaf(-d->beta, d->fraction, 1);
    JEM__ZEROED(jem__walk, walk);
    walk.what = "denoise";
    walk.d.steps = d->steps;
    walk.d.step_size = d->fraction;
    walk.d.watch = d->watch;
    walk.d.watch_user = d->watch_user;
    if (adds_noise) walk.d.noise_std = sqrtf((target + remaining) * (target - remaining));
    walk.sigma_max = d->sigma_max;
    return walk;
}

jem_status jem_denoise(jem_ctx *ctx, jem_logp_fn logp, void *user, jem_tensor *x,
                       const jem_denoise_desc *desc, jem_rng *rng) {
    const jem_denoise_desc d = desc ? *desc : jem_denoise_desc_default();
    const jem__walk walk = jem__denoise_walk(&d, rng != NULL);
    if (!jem__walk_ready(ctx, walk.what, logp, x, 1) || !jem__denoise_good(ctx, walk.what, d))
        return jem_error_status(ctx);
    return jem__walk_steps(ctx, logp, user, x, &walk, 0, d.steps, rng);
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

/* Checks the noise that the last step of samples removes; 0: there is no such step. */
static int jem__last_sigma_good(jem_ctx *ctx, const char *what, float sigma) {
    if (sigma == 0 || (sigma >= JEM__TINY && sigma <= JEM__MOST)) return 1;
    jem__fail(ctx, JEM_BAD_ARGUMENT, "%s: last_sigma = %g is neither 0 nor in %g..%g", what,
              (double)sigma, (double)JEM__TINY, (double)JEM__MOST);
    return 0;
}
/* Checks a desc; reports the invalid field. */
static int jem__generate_good(jem_ctx *ctx, jem_generate_desc d) {
    const char *const what = "generate";
    return JEM__IN(d.lo, -1e4, 1e4) && JEM__IN(d.hi, d.lo, 1e4) && JEM__IN(d.mean, -1e4, 1e4) &&
           jem__last_sigma_good(ctx, what, d.last_sigma) &&
           jem__denoise_good(ctx, "generate: denoise", d.denoise) &&
           jem__sgld_good(ctx, "generate: walk", d.walk);
}

/* Fills the leaf x with the start of sampling: U(lo,hi), or N(mean, sigma_max^2). */
static jem_status jem__generate_start(jem_tensor *x, const jem_generate_desc *d, jem_rng *rng) {
    jem_ctx *ctx = x->ctx;
    const ptrdiff_t size = jem__tensor_values(x);
    float *values = jem__push_floats(ctx, size);
    float *sigma = jem__push_floats(ctx, x->n);
    if (!values || !sigma) return JEM_NO_MEMORY;
    if (d->lo < d->hi) {
        jem_fill_uniform(ctx, rng, values, size, d->lo, d->hi);
        return jem_write(x, values);
    }
    for (ptrdiff_t i = 0; i < size; i++) values[i] = d->mean;
    for (int i = 0; i < x->n; i++) sigma[i] = d->denoise.sigma_max;
    if (jem_write(x, values) != JEM_OK) return ctx->status;
    return jem_add_noise(x, sigma, rng);
}

enum { JEM__PHASES = 3 };                          /* of jem_generate */
/* Returns phase k of jem_generate: denoising, a walk, and a last step that only removes noise. */
static jem__walk jem__generate_phase(const jem_generate_desc *d, int k) {
    const jem__walk walk = { "sgld", d->walk, 0 };
    const jem_denoise_desc clean = jem_denoise_desc_clean(d->last_sigma);
    jem__walk last = jem__denoise_walk(&clean, 0);
    last.d.steps = d->last_sigma > 0;
    if (k == 0) return jem__denoise_walk(&d->denoise, 1);
    return k == 1 ? walk : last;
}

jem_status jem_generate(jem_ctx *ctx, jem_logp_fn logp, void *user, jem_tensor *x,
                        const jem_generate_desc *desc, jem_rng *rng) {
    const jem_generate_desc d = desc ? *desc : jem_generate_desc_default();
    if (!jem__walk_ready(ctx, "generate", logp, x, rng != NULL) || !jem__generate_good(ctx, d))
        return jem_error_status(ctx);
    const jem_mark mark = jem_begin(ctx);
    jem_status s = jem__generate_start(x, &d, rng);
    for (int k = 0; k < JEM__PHASES && s == JEM_OK; k++) {
        const jem__walk walk = jem__generate_phase(&d, k);
        s = jem__walk_steps(ctx, logp, user, x, &walk, 0, walk.d.steps, rng);
    }
    jem_end(ctx, mark);
    return s;
}

/* ---- generation in pieces -------------------------------------------------------------------- */

/* Takes step s->step of jem_generate. */
static jem_status jem__sampler_one(jem_sampler *s, jem_tensor *x) {
    int k = 0;
    int step = s->step;                            /* of phase k */
    jem__walk walk = jem__generate_phase(&s->desc, k);
    while (k + 1 < JEM__PHASES && step >= walk.d.steps) {
        step -= walk.d.steps;
        walk = jem__generate_phase(&s->desc, ++k);
    }
    return jem__walk_steps(s->ctx, s->logp, s->user, x, &walk, step, step + 1, &s->rng);
}

/* Returns 1 if the budget has room for another step. */
static int jem__sampler_goes_on(const jem_sampler *s, const jem_budget *b, int taken,
                                double elapsed) {
    if (s->step >= s->steps) return 0;
    if (!taken) return 1;
    if (b->microseconds < 0 || (b->steps > 0 && taken >= b->steps)) return 0;
    return !(b->microseconds > 0) || elapsed + s->slowest <= b->microseconds;
}

/* Checks a budget: returns 1 if it is valid, otherwise reports the invalid field. */
static int jem__budget_good(jem_ctx *ctx, jem_budget b) {
    if (b.steps < 0 || !jem__finite((float)b.microseconds))
        jem__fail(ctx, JEM_BAD_ARGUMENT, "sampler_step: a budget of %d steps, %g microseconds: "
                  "steps must be at least 0, microseconds finite", b.steps, b.microseconds);
    else if (b.microseconds > 0 && !b.clock)
        jem__fail(ctx, JEM_BAD_ARGUMENT, "sampler_step: a budget of %g microseconds without a "
                  "clock", b.microseconds);
    else return 1;
    return 0;
}

/* Updates the time that a step may take, after one that took `took` microseconds of a budget. */
static void jem__sampler_timed(jem_sampler *s, double took, double budget) {
    s->slowest += (took - s->slowest) / 8;         /* forgets a slow step gradually */
    if (took > s->slowest) s->slowest = took;
    if (s->slowest > budget) s->slowest = budget;  /* as after a pause */
}

jem_status jem_sampler_step(jem_sampler *s, const jem_budget *budget) {
    if (!s) return JEM_BAD_ARGUMENT;
    jem_ctx *ctx = s->ctx;
    JEM__ZEROED(jem_budget, b);
    if (budget) b = *budget;
    if (!jem__budget_good(ctx, b)) return ctx->status;
    if (ctx->status == JEM_OK &&
        !jem__all_finite(s->x, (ptrdiff_t)s->n * s->channels * s->height * s->width))
        return jem__fail(ctx, JEM_BAD_ARGUMENT, "sampler_step: x contains a number that is not "
                         "finite");
    const jem_sampler before = *s;
    const jem_mark mark = jem_begin(ctx);
    jem_tensor *x = jem_input(ctx, s->x, s->n, s->channels, s->height, s->width);
    const double start = b.microseconds > 0 ? b.clock(b.clock_user) : 0;
    double elapsed = 0;
    jem_status status = ctx->status;
    for (int taken = 0; status == JEM_OK && jem__sampler_goes_on(s, &b, taken, elapsed); taken++) {
        status = jem__sampler_one(s, x);
        s->step++;
        if (!(b.microseconds > 0)) continue;
        const double now = b.clock(b.clock_user) - start;
        if (!(now >= elapsed)) break;              /* the clock went back, or returned NaN */
        jem__sampler_timed(s, now - elapsed, b.microseconds);
        elapsed = now;
    }
    if (status == JEM_OK) status = jem_read(x, s->x);
    if (status != JEM_OK) *s = before;
    jem_end(ctx, mark);
    return status;
}

jem_status jem_sampler_restart(jem_sampler *s) {
    if (!s) return JEM_BAD_ARGUMENT;
    const jem_rng before = s->rng;
    const jem_mark mark = jem_begin(s->ctx);
    jem_tensor *x = jem_zeros(s->ctx, s->n, s->channels, s->height, s->width);
    jem_status status = s->ctx->status;
    if (x) status = jem__generate_start(x, &s->desc, &s->rng);
    if (status == JEM_OK) status = jem_read(x, s->x);
    if (status == JEM_OK) s->step = 0;
    else s->rng = before;
    jem_end(s->ctx, mark);
    return status;
}

jem_sampler *jem_sampler_create(jem_ctx *ctx, jem_logp_fn logp, void *user, jem_shape shape,
                                const jem_generate_desc *desc, const jem_rng *rng) {
    if (!ctx || ctx->status != JEM_OK) return NULL;
    const jem_generate_desc d = desc ? *desc : jem_generate_desc_default();
    const double size = (double)shape.n * shape.c * shape.h * shape.w;
    const double steps = (double)d.denoise.steps + d.walk.steps;
    if (!logp || !rng)
        return jem__refuse(ctx, JEM_BAD_ARGUMENT, "sampler_create: the %s is NULL",
                           logp ? "rng" : "log-density");
    if (shape.n < 1 || shape.c < 1 || shape.h < 1 || shape.w < 1 || size > 1e9)
        return jem__refuse(ctx, JEM_BAD_ARGUMENT, "sampler_create: (%d,%d,%d,%d) is empty, or "
                           "has more than 1e9 values", shape.n, shape.c, shape.h, shape.w);
    if (!jem__generate_good(ctx, d)) return NULL;
    if (steps > 1e9)
        return jem__refuse(ctx, JEM_BAD_ARGUMENT, "sampler_create: %.0f steps are more than 1e9",
                           steps);
    jem_sampler *s = (jem_sampler *)jem__alloc(ctx, sizeof *s);
    if (!s) return NULL;
    s->ctx = ctx;
    s->n = shape.n;
    s->channels = shape.c;
    s->height = shape.h;
    s->width = shape.w;
    s->rng = *rng;
    s->logp = logp;
    s->user = user;
    s->desc = d;
    s->desc.denoise.watch = NULL;
    s->desc.walk.watch = NULL;
    s->steps = d.denoise.steps + d.walk.steps + (d.last_sigma > 0);
    s->x = jem__alloc_floats(ctx, (ptrdiff_t)size);
    if (s->x && jem_sampler_restart(s) == JEM_OK) return s;
    jem_sampler_free(s);
    return NULL;
}

void jem_sampler_free(jem_sampler *s) {
    if (!s) return;
    jem_ctx *ctx = s->ctx;
    jem__free(ctx, s->owned);
    jem__free(ctx, s->x);
    jem__free(ctx, s);
}

/* ---- the replay buffer ----------------------------------------------------------------------- */

static ptrdiff_t jem__buffer_image_size(const jem_buffer *b) {
    return (ptrdiff_t)b->channels * b->height * b->width;
}
static ptrdiff_t jem__buffer_size(const jem_buffer *b) {
    return b->capacity * jem__buffer_image_size(b);
}

jem_buffer *jem_buffer_create(jem_ctx *ctx, int capacity, int channels, int height, int width,
                              int classes, jem_rng *rng) {
    if (!ctx) return NULL;
    if (capacity < 1 || channels < 1 || height < 1 || width < 1 || classes < 0 ||
        (double)capacity * channels * height * width > fmin(1e12, (double)JEM__FLOATS) ||
        (classes > 0 && capacity < classes) || !rng)
        return jem__refuse(ctx, JEM_BAD_ARGUMENT, "buffer_create: capacity %d for %d classes of "
                           "images (%d,%d,%d): %s", capacity, classes, channels, height, width,
                           rng ? "needs sizes of 1 or more, a slot per class, and at most 1e12 "
                                 "numbers" : "rng is NULL");
    jem_buffer *b = (jem_buffer *)jem__alloc(ctx, sizeof *b);
    if (!b) return NULL;
    b->ctx = ctx;
    b->capacity = capacity;
    b->classes = classes;
    b->channels = channels;
    b->height = height;
    b->width = width;
    b->data = jem__alloc_floats(ctx, capacity * jem__buffer_image_size(b));
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
        return jem__fail(b->ctx, JEM_BAD_ARGUMENT, "buffer_restart: U(%g,%g) is not a range%s",
                         (double)lo, (double)hi, rng ? "" : ", or no rng");
    b->lo = lo;
    b->hi = hi;
    jem_fill_uniform(b->ctx, rng, b->data, jem__buffer_size(b), lo, hi);
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

/* Draws chains. visits[i] belongs to chain i, not to its slot: of two chains drawn from one slot,
   one may restart and one continue. */
static void jem__buffer_draw(jem_buffer *b, jem_rng *rng, int n, const int *labels, float reinit,
                             float *x, int *slot, int *visits) {
    const ptrdiff_t size = jem__buffer_image_size(b);
    for (int i = 0; i < n; i++) {
        float *chain = x + i * size;
        int first = 0;
        int count = b->capacity;
        if (labels) {
            count /= b->classes;
            first = labels[i] * count;
        }
        slot[i] = first + jem_rng_below(rng, count);
        const int restart = jem_rng_uniform(rng) < reinit;
        visits[i] = 0;
        if (!restart && b->visits[slot[i]] > 0) visits[i] = b->visits[slot[i]];
        if (restart) jem_fill_uniform(b->ctx, rng, chain, size, b->lo, b->hi);
        else memcpy(chain, b->data + slot[i] * size, (size_t)size * sizeof *chain);
    }
}
jem_status jem_buffer_draw(jem_buffer *b, jem_rng *rng, int n, const int *labels, float reinit,
                           float *x, int *slot) {
    if (!b) return JEM_BAD_ARGUMENT;
    if (!rng || n < 0 || !x || !slot)
        return jem__fail(b->ctx, JEM_BAD_ARGUMENT, "buffer_draw: %d chains, or NULL", n);
    if (!jem__in_range(b->ctx, "buffer_draw", "reinit", (double)reinit, 0, 1))
        return JEM_BAD_ARGUMENT;
    if (labels && !b->classes)
        return jem__fail(b->ctx, JEM_BAD_ARGUMENT, "buffer_draw: labels, but no slots by class");
    if (labels && n && !jem__labels_good(b->ctx, "buffer_draw", labels, n, b->classes))
        return JEM_BAD_ARGUMENT;
    const jem_mark mark = jem_begin(b->ctx);
    int *visits = (int *)jem__push(b->ctx, (size_t)n * sizeof *visits);
    if (visits) jem__buffer_draw(b, rng, n, labels, reinit, x, slot, visits);
    for (int i = 0; visits && i < n; i++) {
        const int is_empty = b->visits[slot[i]] < 0;
        if (!is_empty && !jem__drawn_again(slot, i, n)) b->visits[slot[i]] = visits[i];
    }
    jem_end(b->ctx, mark);
    return visits ? JEM_OK : b->ctx->status;
}

/* Stores chains; of several chains of one slot, the last. visits: as drawn, or NULL to continue the
   counts of the slots. */
static void jem__buffer_put(jem_buffer *b, int n, const int *slot, const int *visits,
                            const float *x) {
    const ptrdiff_t size = jem__buffer_image_size(b);
    for (int i = 0; i < n; i++) {
        if (jem__drawn_again(slot, i, n)) continue;
        memcpy(b->data + slot[i] * size, x + i * size, (size_t)size * sizeof *x);
        if (visits) b->visits[slot[i]] = visits[i];
        else if (b->visits[slot[i]] < 0) b->visits[slot[i]] = 0;
        jem__count(&b->visits[slot[i]]);
    }
}
jem_status jem_buffer_put(jem_buffer *b, int n, const int *slot, const float *x) {
    if (!b) return JEM_BAD_ARGUMENT;
    if (n < 0 || !slot || !x)
        return jem__fail(b->ctx, JEM_BAD_ARGUMENT, "buffer_put: %d chains, or NULL", n);
    for (int i = 0; i < n; i++) {
        if (slot[i] < 0 || slot[i] >= b->capacity)
            return jem__fail(b->ctx, JEM_BAD_ARGUMENT, "buffer_put: slot %d is not in 0..%d",
                             slot[i], b->capacity - 1);
    }
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

/* State of n chains of dim numbers each: their current points, and the proposed ones (new_). */
typedef struct jem__mcmc {
    jem_ctx *ctx;
    jem_logp_fn logp;
    void *user;
    jem_tensor *leaf;
    int n;
    ptrdiff_t dim;
    float *x, *g, *f;                              /* [n][dim] points, gradients; [n] log p */
    float *new_x, *new_g, *new_f;
    float *momentum;                               /* [n][dim] */
    float *coldness;                               /* [n] 1/temperature */
    int proposals;                                 /* proposals per chain so far */
    double *gain;                                  /* [n] logarithms of acceptance ratios */
    double *accepted;                              /* [n] accepted proposals */
    double *swaps;                                 /* [temperatures] swaps with the next one */
} jem__mcmc;

/* Computes log p at x into f, and its gradient into g unless g is NULL. */
static jem_status jem__density_at(jem__mcmc *m, const float *x, float *f, float *g) {
    if (jem_write(m->leaf, x) != JEM_OK) return m->ctx->status;
    const jem_mark mark = jem_begin(m->ctx);
    jem_tensor *y = jem__density(m->ctx, "mcmc", m->logp, m->user, m->leaf);
    if (g && jem_grad(y, m->leaf) == JEM_OK) jem_read_grad(m->leaf, g);
    jem_read(y, f);
    jem_end(m->ctx, mark);
    return m->ctx->status;
}

/* Returns 1/temperature of chain i: hottest^(-k/(temperatures - 1)), k = i % temperatures. */
static float jem__coldness(const jem_mcmc_desc *d, int i) {
    const double k = i % d->temperatures;
    if (d->temperatures == 1) return 1;
    return (float)pow((double)d->hottest, -k / (d->temperatures - 1));
}

/* Allocates the state on the tape, and computes log p and its gradient at the start. */
static jem_status jem__mcmc_open(jem__mcmc *m, jem_ctx *ctx, jem_logp_fn logp, void *user,
                                 jem_tensor *x, const jem_mcmc_desc *d) {
    m->ctx = ctx;
    m->logp = logp;
    m->user = user;
    m->leaf = x;
    m->n = x->n;
    m->dim = (ptrdiff_t)x->c * x->h * x->w;
    const ptrdiff_t size = m->n * m->dim;
    float **const points[5] = { &m->x, &m->g, &m->new_x, &m->new_g, &m->momentum };
    float **const numbers[3] = { &m->f, &m->new_f, &m->coldness };
    for (int i = 0; i < 5; i++) *points[i] = jem__push_floats(ctx, size);
    for (int i = 0; i < 3; i++) *numbers[i] = jem__push_floats(ctx, m->n);
    m->gain = (double *)jem__push(ctx, (size_t)m->n * sizeof *m->gain);
    m->accepted = (double *)jem__push_zero(ctx, (size_t)m->n * sizeof *m->accepted);
    m->swaps = (double *)jem__push_zero(ctx, (size_t)d->temperatures * sizeof *m->swaps);
    if (m->g) memset(m->g, 0, (size_t)size * sizeof *m->g);
    for (int i = 0; m->coldness && i < m->n; i++) m->coldness[i] = jem__coldness(d, i);
    if (ctx->status != JEM_OK || jem_read(x, m->x) != JEM_OK ||
        jem__density_at(m, m->x, m->f, d->leapfrog ? m->g : NULL) != JEM_OK) return ctx->status;
    for (int i = 0; i < m->n; i++) {
        if (!jem__finite(m->f[i]))
            return jem__fail(ctx, JEM_DIVERGED, "mcmc: log p of image %d is not finite", i);
    }
    return JEM_OK;
}

/* Adds sign |momentum|^2/2 of each chain to its gain. */
static void jem__add_kinetic(jem__mcmc *m, double sign) {
    for (ptrdiff_t i = 0; i < m->n; i++) {
        for (ptrdiff_t k = i * m->dim; k < (i + 1) * m->dim; k++) {
            const double v = (double)m->momentum[k];
            m->gain[i] = fma(v, sign * 0.5 * v, m->gain[i]);
        }
    }
}
/* Moves the momentum by half a leapfrog step along the gradient. */
static void jem__half_kick(jem__mcmc *m, float step) {
    for (ptrdiff_t k = 0; k < m->n * m->dim; k++) {
        const float half = step / 2 * sqrtf(m->coldness[k / m->dim]);
        m->momentum[k] = jem__fmaf(half, m->new_g[k], m->momentum[k]);
    }
}

/* Makes a proposal for every chain. With H = |momentum|^2/2 - log p/T, which exact dynamics would
   conserve, its gain is H(old) - H(new). */
static jem_status jem__mcmc_propose(jem__mcmc *m, const jem_mcmc_desc *d, jem_rng *rng) {
    const ptrdiff_t size = m->n * m->dim;
    jem_fill_normal(m->ctx, rng, m->momentum, size, 0, 1);
    memcpy(m->new_x, m->x, (size_t)size * sizeof *m->x);
    memcpy(m->new_g, m->g, (size_t)size * sizeof *m->g);
    for (int i = 0; i < m->n; i++) m->gain[i] = 0;
    jem__add_kinetic(m, 1);
    const int moves = d->leapfrog > 0 ? d->leapfrog : 1;
    for (int step = 0; step < moves; step++) {
        if (d->leapfrog) jem__half_kick(m, d->step_size);
        for (ptrdiff_t k = 0; k < size; k++) {
            const float root = sqrtf(m->coldness[k / m->dim]);
            m->new_x[k] = jem__fmaf(d->step_size / root, m->momentum[k], m->new_x[k]);
        }
        float *gradient = d->leapfrog ? m->new_g : NULL;
        if (jem__density_at(m, m->new_x, m->new_f, gradient) != JEM_OK) return m->ctx->status;
        if (d->leapfrog) jem__half_kick(m, d->step_size);
    }
    jem__add_kinetic(m, -1);
    for (int i = 0; i < m->n; i++) {
        const double rise = (double)m->new_f[i] - (double)m->f[i];
        m->gain[i] = fma((double)m->coldness[i], rise, m->gain[i]);
    }
    return JEM_OK;
}

/* Draws log U(0,1). If a draw of 24 bits is 0, the next draw supplies the following bits, since
   log 0 would accept any proposal. */
static double jem__log_uniform(jem_rng *rng) {
    double unit = 1;
    double u = (double)jem_rng_uniform(rng);
    while (!(u > 0) && unit > 1e-200) {
        unit /= 16777216;
        u = (double)jem_rng_uniform(rng);
    }
    return log(unit * u);
}

/* Decides for every chain whether it moves to its proposal; a gain of NaN rejects it. */
static void jem__mcmc_accept(jem__mcmc *m, jem_rng *rng) {
    const size_t bytes = (size_t)m->dim * sizeof *m->x;
    for (int i = 0; i < m->n; i++) {
        const ptrdiff_t at = i * m->dim;
        const double u = jem__log_uniform(rng);
        if (!(u < m->gain[i]) || !jem__finite(m->new_f[i])) continue;
        memcpy(m->x + at, m->new_x + at, bytes);
        memcpy(m->g + at, m->new_g + at, bytes);
        m->f[i] = m->new_f[i];
        m->accepted[i]++;
    }
    m->proposals++;
}

/* Swaps x[n] with the n numbers that follow it. */
static void jem__swap_next(float *x, ptrdiff_t n) {
    for (ptrdiff_t i = 0; i < n; i++) {
        const float swapped = x[i];
        x[i] = x[i + n];
        x[i + n] = swapped;
    }
}

/* Decides for every second pair of neighbours in temperature whether they swap their points. */
static void jem__mcmc_exchange(jem__mcmc *m, const jem_mcmc_desc *d, int step, jem_rng *rng) {
    for (int i = 0; i + 1 < m->n; i++) {
        const int k = i % d->temperatures;
        if (k % 2 != step % 2 || k == d->temperatures - 1) continue;
        const double u = jem__log_uniform(rng);
        const double gain = ((double)m->coldness[i] - (double)m->coldness[i + 1]) *
                            ((double)m->f[i + 1] - (double)m->f[i]);
        if (!(u < gain)) continue;
        jem__swap_next(m->x + i * m->dim, m->dim);
        jem__swap_next(m->g + i * m->dim, m->dim);
        jem__swap_next(m->f + i, 1);
        m->swaps[k]++;
    }
}

/* Computes the acceptance rates of chains and the swap rates of neighbouring temperatures. */
static void jem__mcmc_rates(const jem__mcmc *m, const jem_mcmc_desc *d, float *accepted) {
    for (int i = 0; accepted && i < m->n; i++)
        accepted[i] = m->proposals ? (float)(m->accepted[i] / m->proposals) : 0;
    for (int k = 0; d->swapped && k + 1 < d->temperatures; k++) {
        const int ladders = m->n / d->temperatures;
        /* Pair k may swap at every second proposal, from the first one if k is even. */
        const int rounds = m->proposals / 2 + (m->proposals % 2 && k % 2 == 0);
        d->swapped[k] = 0;
        if (rounds) d->swapped[k] = (float)(m->swaps[k] / ((double)rounds * ladders));
    }
}

jem_status jem_mcmc(jem_ctx *ctx, jem_logp_fn logp, void *user, jem_tensor *x,
                    const jem_mcmc_desc *desc, jem_rng *rng, float *accepted) {
    const jem_mcmc_desc d = desc ? *desc : jem_mcmc_desc_default();
    const char *const what = "mcmc";
    if (!jem__walk_ready(ctx, what, logp, x, rng != NULL) || !JEM__IN(d.steps, 0, INT32_MAX) ||
        !JEM__IN(d.leapfrog, 0, INT32_MAX) || !JEM__IN(d.step_size, JEM__TINY, JEM__MOST) ||
        !JEM__IN(d.temperatures, 1, INT32_MAX) || !JEM__IN(d.hottest, 1, 1e30))
        return jem_error_status(ctx);
    if (x->n % d.temperatures)
        return jem__fail(ctx, JEM_BAD_ARGUMENT, "mcmc: %d images are not a multiple of "
                         "temperatures = %d", x->n, d.temperatures);
    JEM__ZEROED(jem__mcmc, m);
    const jem_mark mark = jem_begin(ctx);
    jem__mcmc_open(&m, ctx, logp, user, x, &d);
    for (int step = 0; step < d.steps && ctx->status == JEM_OK; step++) {
        if (jem__mcmc_propose(&m, &d, rng) != JEM_OK) break;
        jem__mcmc_accept(&m, rng);
        if (d.temperatures > 1) jem__mcmc_exchange(&m, &d, step, rng);
        if (jem_write(x, m.x) != JEM_OK) break;
        if (jem__watch(d.watch, d.watch_user, step, x)) break;
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

/* Log-density a log q + b log p, with the normalised q = N(mean, std^2 I). */
typedef struct jem__bridge {
    jem_logp_fn logp;
    void *user;
    float a, b;
    float mean, std;
} jem__bridge;

/* Records the log-density of a bridge, which `user` points to. */
static jem_tensor *jem__between(jem_ctx *ctx, jem_tensor *x, void *user) {
    const jem__bridge *s = (const jem__bridge *)user;
    const double log_norm = log((double)s->std * sqrt(2 * JEM__PI));  /* per pixel */
    jem_tensor *p = s->logp(ctx, x, s->user);
    jem_tensor *q = jem_sum_image(ctx, jem_square(ctx, jem_add_constant(ctx, x, -s->mean)));
    q = jem_scale(ctx, q, -0.5f / (s->std * s->std));
    q = jem_add_constant(ctx, q, (float)(-log_norm * x->c * x->h * x->w));
    p = jem_scale(ctx, p, s->b);
    return jem_add(ctx, jem_scale(ctx, q, s->a), p);
}

/* Computes the logarithm of the mean of exp(w[i]), its error, and the effective sample size. */
static void jem__ais_sum(const double *w, int n, jem_ais_result *r) {
    double top = w[0];
    double sum = 0;
    double squares = 0;
    for (int i = 1; i < n; i++) {
        if (w[i] > top) top = w[i];
    }
    for (int i = 0; i < n; i++) {
        const double e = exp(w[i] - top);
        sum += e;
        squares = fma(e, e, squares);
    }
    r->log_z = top + log(sum / n);
    r->effective_chains = sum * sum / squares;
    r->error = HUGE_VAL;                           /* relative error of the mean */
    if (n > 1) r->error = sqrt(fmax((n / r->effective_chains - 1) / (n - 1), 0));
}

/* Raises b from ((k-1)/levels)^2 to (k/levels)^2: adds the increase of b, times (log p - log q),
   to the log weights w[n], then moves the chains to the new density. f: room for n numbers. */
static void jem__ais_level(jem__bridge *s, jem_tensor *x, const jem_ais_desc *d, int k, float *f,
                           double *w, jem_rng *rng) {
    jem_ctx *ctx = x->ctx;
    const double to = (double)k / d->levels;
    const double from = (double)(k - 1) / d->levels;
    const double growth = (to - from) * (to + from);
    s->a = -1;
    s->b = 1;
    const jem_mark mark = jem_begin(ctx);
    const jem_status status = jem_read(jem__density(ctx, "ais", jem__between, s, x), f);
    jem_end(ctx, mark);
    if (status != JEM_OK) return;
    for (int i = 0; i < x->n; i++) w[i] = fma(growth, (double)f[i], w[i]);
    s->b = (float)(to * to);
    s->a = 1 - s->b;
    jem_mcmc(ctx, jem__between, s, x, &d->walk, rng, NULL);
}

jem_status jem_ais(jem_ctx *ctx, jem_logp_fn logp, void *user, jem_tensor *x,
                   const jem_ais_desc *desc, jem_rng *rng, jem_ais_result *result) {
    const jem_ais_desc d = desc ? *desc : jem_ais_desc_default();
    const char *const what = "ais";
    if (!jem__walk_ready(ctx, what, logp, x, rng != NULL) || !JEM__IN(d.levels, 1, INT32_MAX) ||
        !JEM__IN(d.mean, -1e4, 1e4) || !JEM__IN(d.std, 1e-15, 1e15) ||
        !JEM__IN(d.walk.temperatures, 1, 1))
        return jem_error_status(ctx);
    if (!result) return jem__fail(ctx, JEM_BAD_ARGUMENT, "ais: result is NULL");
    JEM__ZEROED(jem_generate_desc, start);
    start.mean = d.mean;
    start.denoise.sigma_max = d.std;
    jem__bridge s = { logp, user, 0, 0, d.mean, d.std };
    const jem_mark mark = jem_begin(ctx);
    double *w = (double *)jem__push_zero(ctx, (size_t)x->n * sizeof *w);
    float *f = jem__push_floats(ctx, x->n);
    if (w && f) jem__generate_start(x, &start, rng);
    for (int k = 1; k <= d.levels && ctx->status == JEM_OK; k++)
        jem__ais_level(&s, x, &d, k, f, w, rng);
    if (ctx->status == JEM_OK) jem__ais_sum(w, x->n, result);
    jem_end(ctx, mark);
    return ctx->status;
}

/* ==== >>optim: Adam, SGD, Muon, schedules ===================================================== */

/* State of one parameter. */
typedef struct jem__moments {
    jem_param *param;
    float *m;                                      /* first moment, or momentum */
    float *v;                                      /* second moment; NULL except for Adam */
    float *average;                                /* NULL: ema is 0. While the network has the
                                                      averages: the trained weights */
    int orthogonal;                                /* 1: the momentum is made orthogonal (Muon) */
} jem__moments;

enum { JEM__OPTIM_STATE = 3 };                     /* updates, whether net has the averages, kind */

struct jem_optim {
    jem_net *net;
    const jem_param *last;                         /* the network's, when this was created */
    jem_optim_desc desc;
    int count;                                     /* of moments */
    int updates;
    jem__update update;                            /* arguments of the kernels */
    float weight;                                  /* of this update in the averages */
    int64_t state[JEM__OPTIM_STATE];               /* for jem_optim_to_archive */
    jem__moments *moments;                         /* of each parameter that is updated */
    float *scratch;                                /* Muon's six matrices, see jem__muon_floats */
};

jem_optim_desc jem_optim_desc_default(void) {
    JEM__ZEROED(jem_optim_desc, d);
    d.beta1 = 0.9f;
    d.beta2 = 0.999f;
    d.eps = 1e-8f;
    d.muon_momentum = 0.95f;
    d.adam_names = "output";
    d.adam_rate = 1;
    return d;
}

void jem_optim_free(jem_optim *o) {
    if (!o) return;
    if (o->net->averaged == o) o->net->averaged = NULL;
    for (int i = 0; o->moments && i < o->count; i++) {
        jem__free(o->net->ctx, o->moments[i].m);
        jem__free(o->net->ctx, o->moments[i].v);
        jem__free(o->net->ctx, o->moments[i].average);
    }
    jem__free(o->net->ctx, o->moments);
    jem__free(o->net->ctx, o->scratch);
    jem__free(o->net->ctx, o);
}

/* The matrix of a weight for Muon: out rows and in*k*k columns, or transposed, so that there are no
   more rows than columns. */
typedef struct jem__muon_shape { int rows, columns, transposed; } jem__muon_shape;
/* Returns the shape of a weight's matrix. */
static jem__muon_shape jem__muon_shape_of(const jem_param *p) {
    const int out = p->shape[0];
    const int in = (int)(p->size / out);
    jem__muon_shape shape = { out, in, 0 };
    if (out > in) {
        shape.rows = in;
        shape.columns = out;
        shape.transposed = 1;
    }
    return shape;
}
static int jem__round_16(int n) { return (int)jem__whole_vectors(n); }
/* Returns the size of Muon's scratch memory: two matrices of the weight's size, and four of its
   smaller side squared. */
static ptrdiff_t jem__muon_floats(const jem_param *p) {
    const jem__muon_shape shape = jem__muon_shape_of(p);
    const ptrdiff_t rows = jem__round_16(shape.rows);
    return 2 * rows * (jem__round_16(shape.columns) + 2 * rows);
}
/* Returns 1 if Muon updates a parameter: it has two or four dimensions, as weights of linear layers
   and convolutions do, more than one row and column, and no adam_names in its name. */
static int jem__is_for_muon(const jem_param *p, const char *adam_names) {
    return (p->ndim == 2 || p->ndim == 4) && p->shape[0] > 1 && p->size > p->shape[0] &&
           !(adam_names && *adam_names && strstr(p->name, adam_names));
}

/* Checks the weight decay of a step at this rate: Muon must not change the signs of matrices. */
static int jem__decay_good(jem_ctx *ctx, const char *what, const jem_optim_desc *d, float lr) {
    const float shrink = lr * d->weight_decay;
    if (d->kind != JEM_OPTIMIZER_MUON || !(shrink > 1)) return 1;
    jem__fail(ctx, JEM_BAD_ARGUMENT, "%s: lr * weight_decay = %g: must be at most 1 with Muon",
              what, (double)shrink);
    return 0;
}

/* Checks a desc; reports the invalid field. */
static int jem__optim_desc_good(jem_ctx *ctx, jem_optim_desc d) {
    const char *const what = "optim";
    const double below_1 = (double)0.99999994f;
    return JEM__IN_ENUM(d.kind, JEM_OPTIMIZER_ADAM, JEM_OPTIMIZER_MUON) &&
           JEM__IN(d.beta1, 0, below_1) && JEM__IN(d.beta2, 0, below_1) &&
           JEM__IN(d.eps, JEM__TINY, JEM__MOST) && JEM__IN(d.momentum, 0, 1) &&
           JEM__IN(d.muon_momentum, 0, below_1) && JEM__IN(d.weight_decay, 0, JEM__MOST) &&
           JEM__IN(d.clip, 0, JEM__MOST) && JEM__IN(d.ema, 0, below_1) &&
           JEM__IN(d.adam_rate, 0, 1e6);
}

/* Adds one parameter, and the arrays that its update needs. */
static void jem__optim_add(jem_optim *o, jem_param *p) {
    jem_ctx *ctx = o->net->ctx;
    const jem_optim_desc *d = &o->desc;
    jem__moments *m = &o->moments[o->count++];
    m->param = p;
    m->orthogonal = d->kind == JEM_OPTIMIZER_MUON && jem__is_for_muon(p, d->adam_names);
    m->m = jem__alloc_padded(ctx, p->size);
    if (d->kind != JEM_OPTIMIZER_SGD && !m->orthogonal) m->v = jem__alloc_padded(ctx, p->size);
    if (d->ema > 0) m->average = jem__alloc_padded(ctx, p->size);
}

/* Adds the trainable parameters whose names begin with desc.only, and Muon's scratch memory for the
   largest of them. desc.only and desc.adam_names are not read after that. */
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
    jem__fail(ctx, JEM_BAD_ARGUMENT, "optim: the network has no parameter to update%s%.80s",
              *only ? " whose name begins with " : "", only);
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
    o->last = net->last;
    o->desc = *desc;
    jem__optim_fill(o);
    if (ctx->errors == errors) return o;
    jem_optim_free(o);
    return NULL;
}

/* Exchanges averages and trained weights. */
static void jem__optim_swap(jem_optim *o) {
    for (int i = 0; i < o->count; i++) {
        jem__moments *m = o->moments + i;
        float *value = m->param->value;
        m->param->value = m->average;
        m->average = value;
        jem_param_changed(m->param);
    }
}

jem_status jem_optim_use_average(jem_optim *o, int on) {
    if (!o) return JEM_BAD_ARGUMENT;
    jem_net *net = o->net;
    jem_optim *wanted = NULL;
    if (on && o->desc.ema > 0) wanted = o;
    if (net->averaged == wanted) return JEM_OK;
    if (net->averaged) jem__optim_swap(net->averaged);
    for (int i = 0; wanted && o->updates == 0 && i < o->count; i++) {
        const jem_param *p = o->moments[i].param;  /* nothing to average yet */
        memcpy(o->moments[i].average, p->value, (size_t)p->size * sizeof *p->value);
    }
    if (wanted) jem__optim_swap(wanted);
    net->averaged = wanted;
    return JEM_OK;
}

/* ---- Muon ------------------------------------------------------------------------------------ */

JEM__COMPILE("O2")                                 /* processes all weights at each update */
/* The row or column of the matrix with the weights of an output: weight j is at start +
   j/16 panel + j%16 lane. */
typedef struct jem__muon_line { ptrdiff_t start, panel, lane; } jem__muon_line;
static jem__muon_line jem__muon_line_of(const jem__muon_shape *shape, int out) {
    const ptrdiff_t panel = (ptrdiff_t)jem__round_16(shape->rows) * JEM_LANES;
    const jem__muon_line row = { (ptrdiff_t)out * JEM_LANES, panel, 1 };
    const jem__muon_line column = { out / JEM_LANES * panel + out % JEM_LANES,
                                    (ptrdiff_t)JEM_LANES * JEM_LANES, JEM_LANES };
    return shape->transposed ? column : row;
}
static ptrdiff_t jem__muon_at(const jem__muon_line *s, int j) {
    return s->start + j / JEM_LANES * s->panel + j % JEM_LANES * s->lane;
}

/* Updates the momentum, m <- b m + (1 - b) g, and writes the look-ahead b m + (1 - b) g to the
   matrix, divided by its norm, so that no singular value is above 1. Returns 0 if it is all 0. A
   product of two floats is exact in double, so fusing it with the addition does not change the
   bits. */
static int jem__muon_load(const jem__moments *m, float momentum, const jem__muon_shape *shape,
                          float *x) {
    const jem_param *p = m->param;
    const double b = (double)momentum;
    const double rest = (double)(1 - momentum);
    const int outs = p->shape[0];
    const int inputs = (int)(p->size / outs);
    double sum = 0;
    for (int out = 0; out < outs; out++) {
        const jem__muon_line line = jem__muon_line_of(shape, out);
        const float *gradient = p->grad + (ptrdiff_t)out * inputs;
        float *momenta = m->m + (ptrdiff_t)out * inputs;
        for (int j = 0; j < inputs; j++) {
            const double g = (double)gradient[j];
            float moved = (float)(b * (double)momenta[j] + rest * g);
            if (fabsf(moved) < JEM__LEAST_MOMENTUM) moved = 0;   /* else it makes a full step */
            const float ahead = (float)(b * (double)moved + rest * g);
            momenta[j] = moved;
            x[jem__muon_at(&line, j)] = ahead;
            sum += (double)ahead * (double)ahead;
        }
    }
    if (!(sum > 0)) return 0;
    const double shrink = 1 / sqrt(sum);
    const ptrdiff_t floats = (ptrdiff_t)jem__round_16(shape->rows) * jem__round_16(shape->columns);
    for (ptrdiff_t i = 0; i < floats; i++) x[i] = (float)((double)x[i] * shrink);
    return 1;
}

/* Product in the Newton-Schulz iteration; its rows or panels are divided among the threads. */
typedef struct jem__newton {
    const jem__kernels *k;
    jem__matrix from;
    const float *factor;                           /* symmetric */
    float alpha, beta;
    float *to;
} jem__newton;
static void jem__newton_rows(void *arg, int i) {
    const jem__newton *s = (const jem__newton *)arg;
    s->k->gram(&s->from, 4 * i, s->to);
}
static void jem__newton_panel(void *arg, int panel) {
    const jem__newton *s = (const jem__newton *)arg;
    s->k->symmetric_product(&s->from, s->factor, s->alpha, s->beta, panel, s->to);
}
/* Computes to = x x^T. */
static void jem__newton_gram(jem_ctx *ctx, jem__matrix x, float *to) {
    jem__newton s = { ctx->k, x, NULL, 0, 0, to };
    const double flops = (double)x.rows * x.rows * x.panels * JEM_LANES;
    jem__parallel(ctx, x.rows / 4, flops, jem__newton_rows, &s);
}
/* Computes to = alpha * factor * from + beta * from. */
static void jem__newton_product(jem_ctx *ctx, jem__matrix factor, jem__matrix from, float alpha,
                                float beta, float *to) {
    jem__newton s = { ctx->k, from, factor.data, alpha, beta, to };
    const double flops = 2 * (double)from.rows * from.rows * from.panels * JEM_LANES;
    jem__parallel(ctx, from.panels, flops, jem__newton_panel, &s);
}

/* Runs `steps` Newton-Schulz steps on x(rows, columns) and writes the resulting x to `result`:
   x <- (a I + F) x, where F = b A + c A^2 and A = x x^T. Coefficients: Jordan et al. 2024. All
   these matrices commute, so the steps run on A alone, A <- (a I + F)^2 A, and x is multiplied
   once, by the product of the factors a I + F. squares: scratch for four (rows, rows) matrices. */
static void jem__newton_steps(jem_ctx *ctx, int steps, jem__matrix x, float *squares,
                              float *result) {
    const float a = 3.4445f;
    const float b = -4.7750f;
    const float c = 2.0315f;
    const int rows = x.rows;
    const ptrdiff_t square = (ptrdiff_t)rows * rows;
    const jem__matrix gram = { rows, rows / JEM_LANES, squares };
    const jem__matrix factor = { rows, rows / JEM_LANES, squares + square };
    jem__matrix product = { rows, rows / JEM_LANES, squares + 2 * square };
    jem__matrix next = { rows, rows / JEM_LANES, squares + 3 * square };
    jem__newton_gram(ctx, x, gram.data);
    for (int step = 0; step < steps; step++) {
        jem__newton_product(ctx, gram, gram, c, b, factor.data);
        if (step + 1 < steps) {
            jem__newton_product(ctx, factor, gram, 1, a, next.data);
            jem__newton_product(ctx, factor, next, 1, a, gram.data);
        }
        if (step > 0) {
            jem__newton_product(ctx, factor, product, 1, a, next.data);
        } else {
            memcpy(next.data, factor.data, (size_t)square * sizeof *next.data);
            for (int i = 0; i < rows; i++)
                next.data[((ptrdiff_t)(i / JEM_LANES) * rows + i) * JEM_LANES + i % JEM_LANES] += a;
        }
        const jem__matrix spare = product;
        product = next;
        next = spare;
    }
    jem__newton_product(ctx, product, x, 1, 0, result);
}
/* Makes the rows of x(rows, columns) nearly orthonormal: singular values of .0015 to 1 become about
   .7 to 1.2. Takes three steps, then two, since each step on A alone magnifies A's rounding errors;
   with 8 times as many columns as rows, five steps on x would need 1.7 times as many operations.
   scratch: x, then room for one more of its size and for four of (rows, rows). Returns the
   result. */
static float *jem__orthogonalize(jem_ctx *ctx, const jem__muon_shape *shape, float *scratch) {
    const int rows = jem__round_16(shape->rows);
    const int panels = jem__round_16(shape->columns) / JEM_LANES;
    const ptrdiff_t size = (ptrdiff_t)rows * panels * JEM_LANES;
    const jem__matrix x = { rows, panels, scratch };
    const jem__matrix halfway = { rows, panels, scratch + size };
    float *squares = halfway.data + size;
    jem__newton_steps(ctx, 3, x, squares, halfway.data);
    jem__newton_steps(ctx, 2, halfway, squares, x.data);
    return x.data;
}

/* Updates one weight: momentum, orthogonal matrix, step. Parameters take turns, since each product
   runs on all threads and they share the scratch memory. */
static void jem__muon(jem_optim *o, const jem__moments *m, float lr) {
    jem_param *p = m->param;
    const jem__muon_shape shape = jem__muon_shape_of(p);
    const ptrdiff_t floats = (ptrdiff_t)jem__round_16(shape.rows) * jem__round_16(shape.columns);
    memset(o->scratch, 0, (size_t)floats * sizeof *o->scratch);        /* the padding of x */
    const float *x = o->scratch;
    if (jem__muon_load(m, o->desc.muon_momentum, &shape, o->scratch))
        x = jem__orthogonalize(o->net->ctx, &shape, o->scratch);
    const double step = (double)(float)((double)lr * .2 * sqrt((double)shape.columns));
    const double keep = (double)(float)(1 - (double)lr * (double)o->desc.weight_decay);
    const int inputs = (int)(p->size / p->shape[0]);
    for (int out = 0; out < p->shape[0]; out++) {
        const jem__muon_line line = jem__muon_line_of(&shape, out);
        float *value = p->value + (ptrdiff_t)out * inputs;
        for (int j = 0; j < inputs; j++) {
            const float kept = (float)((double)value[j] * keep);
            value[j] = (float)((double)kept - step * (double)x[jem__muon_at(&line, j)]);
        }
    }
}

JEM__COMPILE_END

/* ---- a step ---------------------------------------------------------------------------------- */

/* Updates parameter i, unless Muon has updated it, and then its average. */
static void jem__optim_update(void *arg, int i) {
    const jem_optim *o = (const jem_optim *)arg;
    const jem__moments *m = o->moments + i;
    const jem__kernels *k = o->net->ctx->k;
    jem_param *p = m->param;
    if (m->v) k->adam(p->value, p->grad, m->m, m->v, jem__padded(p), &o->update);
    else if (!m->orthogonal) k->sgd(p->value, p->grad, m->m, jem__padded(p), &o->update);
    for (ptrdiff_t j = 0; m->average && j < p->size; j++)
        m->average[j] = jem__fmaf(o->weight, p->value[j] - m->average[j], m->average[j]);
    jem_param_changed(p);
}

static double jem__squares(const float *x, ptrdiff_t n, double sum) {
    for (ptrdiff_t i = 0; i < n; i++) sum += (double)x[i] * (double)x[i];
    return sum;
}
/* Returns the L2 norm of the gradients of an optimiser's parameters. */
static float jem__gradient_norm(const jem_optim *o) {
    double sum = 0;
    for (int i = 0; i < o->count; i++)
        sum = jem__squares(o->moments[i].param->grad, o->moments[i].param->size, sum);
    return (float)sqrt(sum);
}
/* Returns weight_decay times the parameters' L2 norm. */
static float jem__decay_norm(const jem_optim *o) {
    double sum = 0;
    if (o->desc.weight_decay <= 0) return 0;
    for (int i = 0; i < o->count; i++)
        sum = jem__squares(o->moments[i].param->value, o->moments[i].param->size, sum);
    return o->desc.weight_decay * (float)sqrt(sum);
}

/* Scales gradients whose norm exceeds desc.clip. */
static void jem__clip_gradients(const jem_optim *o, float norm) {
    const jem_ctx *ctx = o->net->ctx;
    if (o->desc.clip <= 0 || norm <= o->desc.clip) return;
    for (int i = 0; i < o->count; i++) {
        jem_param *p = o->moments[i].param;
        ctx->k->map(JEM__MAP_SCALE, o->desc.clip / norm, p->grad, p->grad, NULL, jem__padded(p));
    }
}

/* Sets the kernels' arguments for the next update, and counts it. For Adam's bias corrections, the
   n-th update divides lr by 1 - beta1^n, and root2 is 1/sqrt(1 - beta2^n). The weight of an update
   in the averages is 1 - ema; it is larger for the first ones, 10/(n + 9), so that the averages
   forget the initial weights. */
static void jem__optim_prepare(jem_optim *o, float lr) {
    const double t = o->updates;
    double keep = t / (t + 10);
    if ((double)o->desc.ema < keep) keep = (double)o->desc.ema;
    o->weight = (float)(1 - keep);
    jem__count(&o->updates);
    jem__update *u = &o->update;
    u->beta1 = o->desc.beta1;
    u->beta2 = o->desc.beta2;
    u->eps = o->desc.eps;
    u->momentum = o->desc.momentum;
    u->weight_decay = o->desc.kind == JEM_OPTIMIZER_MUON ? 0 : o->desc.weight_decay;
    u->lr = lr;
    u->root2 = 1;
    if (o->desc.kind == JEM_OPTIMIZER_SGD) return;
    double rate = (double)lr;
    if (o->desc.kind == JEM_OPTIMIZER_MUON) rate *= (double)o->desc.adam_rate;
    u->lr = (float)(rate / (1 - pow((double)u->beta1, o->updates)));
    u->root2 = (float)(1 / sqrt(1 - pow((double)u->beta2, o->updates)));
}

jem_status jem_optim_step(jem_optim *o, float lr, float *grad_norm) {
    if (!o) return JEM_BAD_ARGUMENT;
    jem_ctx *ctx = o->net->ctx;
    const char *const what = "optim";
    if (ctx->status != JEM_OK || !JEM__IN(lr, 0, 1e9)) return ctx->status;
    for (const jem_param *p = o->last->next; p; p = p->next) {
        if (p->grad)
            return jem__fail(ctx, JEM_BAD_ARGUMENT, "optim: parameter %.80s was added to the "
                             "network after the optimiser was created", p->name);
    }
    if (!jem__decay_good(ctx, what, &o->desc, lr)) return ctx->status;
    jem_optim_use_average(o, 0);
    const float norm = jem__gradient_norm(o);
    const float decay = jem__decay_norm(o);
    if (grad_norm) *grad_norm = norm;
    if (!jem__finite(norm + decay) || norm + decay > 1e18f)    /* Adam squares it */
        return jem__fail(ctx, JEM_DIVERGED, "optim: the gradient's norm is %g, weight decay's %g",
                         (double)norm, (double)decay);
    jem__clip_gradients(o, norm);
    jem__optim_prepare(o, lr);
    for (int i = 0; i < o->count; i++)
        if (o->moments[i].orthogonal) jem__muon(o, &o->moments[i], lr);
    jem__parallel(ctx, o->count, 20 * (double)jem_net_size(o->net), jem__optim_update, o);
    return JEM_OK;
}

/* Copies moments and averages to `kept`, or back; does not copy if kept is NULL. Returns the number
   of floats. The averages must not be in the network. */
static ptrdiff_t jem__optim_copy(jem_optim *o, float *kept, int back) {
    ptrdiff_t at = 0;
    for (int i = 0; i < o->count; i++) {
        float *const arrays[3] = { o->moments[i].m, o->moments[i].v, o->moments[i].average };
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

/* Checks numbers in the order of jem__optim_copy (NULL: those in use): all are finite, and second
   moments are not negative. */
static int jem__optim_good(const jem_optim *o, const float *kept) {
    for (int i = 0; i < o->count; i++) {
        const float *const arrays[3] = { o->moments[i].m, o->moments[i].v, o->moments[i].average };
        const ptrdiff_t size = o->moments[i].param->size;
        for (int k = 0; k < 3; k++) {
            if (!arrays[k]) continue;
            const float *from = arrays[k];
            if (kept) from = kept;
            for (ptrdiff_t j = 0; j < size; j++)
                if (!jem__finite(from[j]) || (k == 1 && from[j] < 0)) return 0;
            if (kept) kept += size;
        }
    }
    return 1;
}

float jem_learning_rate(const jem_schedule *s, float lr, int update) {
    if (!s) return lr;
    if (update < 0) update = 0;
    double rate = (double)lr;
    int begin = 0;                                 /* begin..end: this update's cosine period */
    int end = s->total;
    for (int i = 0; i < 4 && s->kind != JEM_SCHEDULE_CONSTANT; i++) {
        const int at = s->at[i];
        if (at <= 0) continue;
        if (update >= at) rate *= (double)s->rate;
        if (s->kind == JEM_SCHEDULE_STEPS) continue;
        if (update >= at && at > begin) begin = at;
        if (update < at && at < end) end = at;
    }
    if (s->kind == JEM_SCHEDULE_COSINE && s->total > 0) {
        const double low = (double)s->floor;
        double t = 1;
        if (update < end) t = ((double)update - begin) / (end - begin);
        rate *= fma((1 - low) * 0.5, 1 + cos(JEM__PI * t), low);
    }
    if (update - begin < s->warmup) rate *= ((double)update - begin + 1) / s->warmup;
    return (float)rate;
}

/* ==== >>train: one step at a time ============================================================= */

enum {
    JEM__GUARD_EVERY = 100,                        /* updates between copies of a good state */
    JEM__GUARD_BEGIN = 20,                         /* updates before means are compared */
    JEM__GUARD_COUNTS = 6,
    JEM__GUARD_NUMBERS = 8,
    JEM__GUARD_RESIDUALS = 3,                      /* "guard.residual": older files lack it */
    JEM__STATE_COUNTS = 3,                         /* counts at the start of trainer.state */
    JEM__STATE_SIZE = 9                            /* then key and counter of two generators */
};

/* Numbers of the guard, in the order of checkpoints. Except for gap, a negative number means
   'unknown'. */
typedef struct jem__pulse {
    float gap;                                     /* mean log p(data) - log p(samples) of about 10
                                                      updates; f(x+) - f(x-) in messages */
    float ce, norm;                                /* means over 20: cross-entropy, gradient */
    float least, kept_least;                       /* lowest ce after update 20; the kept state's */
    float lr_factor;                               /* of the learning rate: rollbacks halve it, good
                                                      states double it */
    float step_factor;                             /* of SGLD's step: rollbacks halve it for good */
    float travel_factor;                           /* of SGLD's step, too: below 1 while it would
                                                      otherwise be too wide (JEM__WIDE) */
    float residual;                                /* mean residual of the score over 20 updates */
    float least_residual, kept_least_residual;     /* as `least` */
} jem__pulse;
static const jem__pulse jem__first_pulse = {
    0, -1, -1, -1, -1,                             /* gap; ce, norm, least, kept_least */
    1, 1, 1, -1, -1, -1                            /* the factors; residuals */
};
/* This array's size is negative, an error, unless a checkpoint's numbers are a whole jem__pulse. */
typedef char jem__pulse_is_numbers[sizeof(jem__pulse) == (JEM__GUARD_NUMBERS +
                                   JEM__GUARD_RESIDUALS) * sizeof(float) ? 1 : -1];

/* The guard and its good state, whose floats are in one block: the network's parameters, the
   optimiser's numbers, the chains. */
typedef struct jem__guard {
    float *kept;                                   /* NULL before the first good state */
    int *visits;                                   /* of the chains in `kept` */
    ptrdiff_t size;                                /* of `kept` */
    jem__pulse now;
    float travel;                                  /* last jem__travel; 0: none */
    int good;                                      /* 1: `kept` holds a state */
    int rollbacks;                                 /* made so far */
    int just_rolled_back;                          /* 1 until the next update */
    int guesses;                                   /* rollbacks because of cross-entropy */
    int updates, optim_updates;                    /* of the kept state */
    char why[160];                                 /* reason to roll back the last update, or "" */
    float numbers[JEM__GUARD_NUMBERS + JEM__GUARD_RESIDUALS];  /* copy of `now`, for archives */
    int64_t counts[JEM__GUARD_COUNTS];
} jem__guard;

enum { JEM__MEANS = 10 };                          /* statistics that are means over images */

struct jem_trainer {
    jem_net *net;
    float *flat;                                   /* numbers, gradients, buffers, for jem_sum_fn */
    jem_train_desc desc;
    jem_optim *optim;
    jem_buffer *buffer;                            /* NULL: training needs no chains */
    jem_rng rng;
    int updates;
    int64_t state[JEM__STATE_SIZE];                /* for jem_trainer_to_archive */
    int has_buffers;                               /* 1: the network has buffers */
    int awaits_chains;                             /* 1: the update's chains have not been collected
                                                      from all ranks yet */
    ptrdiff_t values;                              /* number of values in the network's parameters
                                                      and buffers, which may not grow afterwards */
    jem__guard guard;
};

jem_train_desc jem_train_desc_default(void) {
    JEM__ZEROED(jem_train_desc, d);
    d.lr = 1e-4f;
    d.optim = jem_optim_desc_default();
    d.weights.ce = 1;
    d.weights.cd = 1;
    d.kl_entropy = 1;
    d.data_noise = 0.03f;
    d.noise_lo = 0.12f;
    d.noise_hi = 2;
    d.sgld = jem_sgld_desc_default();
    d.negatives = 64;
    d.buffer_size = 10000;
    d.reinit = 0.05f;
    d.restart_lo = -1;
    d.restart_hi = 1;
    d.restart_denoise = jem_denoise_desc_default();
    d.restart_denoise.steps = 0;
    d.max_loss = 1e8f;
    d.max_gap = 100;
    d.max_rollbacks = 20;
    d.seed = 1;
    d.ranks = 1;
    return d;
}

jem_train_desc jem_train_desc_score(int updates) {
    jem_train_desc d = jem_train_desc_default();
    d.optim.kind = JEM_OPTIMIZER_MUON;
    d.lr = 5e-3f;
    d.optim.clip = 20;
    d.optim.ema = 1 - 8 / fminf(fmaxf((float)updates, 80), 8000);    /* an eighth of the run */
    d.schedule.kind = JEM_SCHEDULE_COSINE;
    d.schedule.total = updates;
    d.schedule.floor = 0.02f;
    d.schedule.warmup = updates < 2000 ? updates / 10 : 200;
    d.weights.ce = 2;
    d.w_score = 0.016f;
    d.weights.cd = 0.005f;
    d.cd_from = updates / 5 * 3;
    d.data_noise = d.noise_lo;
    d.label_noise = 0.1f;
    d.label_all_noise = 0.25f;
    d.sgld.steps = 10;
    d.sgld.step_size = 0.01f;
    d.sgld.noise_std = 0.1f;
    d.negatives = 32;
    d.buffer_size = 200;
    d.reinit = 0.025f;
    d.restart_denoise.steps = 200;
    d.least_scale = 2;
    return d;
}

jem_train_desc jem_train_desc_vectors(int updates) {
    jem_train_desc d = jem_train_desc_default();
    d.lr = 0.01f;
    d.optim.ema = 0.99f;
    d.schedule.kind = JEM_SCHEDULE_COSINE;
    d.schedule.total = updates;
    d.schedule.floor = 0.02f;
    d.schedule.warmup = updates / 20;
    d.weights.cd = 0;
    d.w_nce = 1;
    d.data_noise = 0;
    return d;
}

/* ---- creation -------------------------------------------------------------------------------- */

/* Returns 1 if chains have classes. */
static int jem__by_class(const jem_train_desc *d) {
    return d->class_conditional || d->weights.cd_class > 0;
}
/* Returns 1 if training needs chains. */
static int jem__needs_chains(const jem_train_desc *d) {
    return d->weights.cd > 0 || d->weights.cd_class > 0 || d->w_kl > 0;
}

/* Checks each number of the desc against its range. */
static int jem__train_ranges_good(jem_ctx *ctx, jem_train_desc d) {
    const char *const what = "trainer";
    const double most = JEM__MOST;
    return JEM__IN(d.lr, JEM__TINY, 1e9) &&
           JEM__IN_ENUM(d.schedule.kind, JEM_SCHEDULE_CONSTANT, JEM_SCHEDULE_COSINE) &&
           JEM__IN(d.schedule.warmup, 0, INT32_MAX) && JEM__IN(d.schedule.total, 0, INT32_MAX) &&
           JEM__IN(d.schedule.at[0], 0, INT32_MAX) && JEM__IN(d.schedule.at[1], 0, INT32_MAX) &&
           JEM__IN(d.schedule.at[2], 0, INT32_MAX) && JEM__IN(d.schedule.at[3], 0, INT32_MAX) &&
           JEM__IN(d.class_conditional, 0, 1) &&
           JEM__IN(d.schedule.floor, 0, 1e6) && JEM__IN(d.schedule.rate, 0, 1e6) &&
           JEM__IN(d.weights.ce, 0, most) && JEM__IN(d.weights.cd, 0, most) &&
           JEM__IN(d.weights.cd_class, 0, most) && JEM__IN(d.w_score, 0, most) &&
           JEM__IN(d.w_nce, 0, most) && JEM__IN(d.w_kl, 0, most) &&
           JEM__IN(d.kl_entropy, 0, most) && JEM__IN(d.weights.energy_l2, 0, most) &&
           JEM__IN(d.w_term, 0, most) && JEM__IN(d.sam, 0, most) &&
           JEM__IN(d.data_noise, 0, most) && JEM__IN(d.label_noise, 0, most) &&
           JEM__IN(d.label_all_noise, 0, 1) && JEM__IN(d.label_smoothing, 0, 1) &&
           JEM__IN(d.noise_lo, JEM__TINY, 1e5) && JEM__IN(d.noise_hi, d.noise_lo, 1e5) &&
           JEM__IN(d.cd_from, 0, INT32_MAX) && JEM__IN(d.negatives, 0, INT32_MAX) &&
           JEM__IN(d.buffer_size, jem__needs_chains(&d), INT32_MAX) &&
           JEM__IN(d.reinit, 0, 1) && JEM__IN(d.restart_hi, -most, most) &&
           JEM__IN(d.restart_lo, -most, d.restart_hi) && JEM__IN(d.pause_gap, 0, most) &&
           JEM__IN(d.max_loss, JEM__TINY, most) && JEM__IN(d.max_gap, JEM__TINY, most) &&
           JEM__IN(d.max_rollbacks, 0, 1000000) && JEM__IN(d.least_scale, 0, most) &&
           JEM__IN(d.ranks, 1, 1 << 20) && JEM__IN(d.rank, 0, d.ranks - 1) &&
           jem__sgld_good(ctx, "trainer: sgld", d.sgld) &&
           jem__denoise_good(ctx, "trainer: restart_denoise", d.restart_denoise);
}

/* Checks the rules of a schedule whose fields are in their ranges. */
static void jem__schedule_check(jem_ctx *ctx, const jem_schedule *s) {
    if (s->kind == JEM_SCHEDULE_COSINE && s->total < 1)
        jem__fail(ctx, JEM_BAD_ARGUMENT, "trainer: schedule.total = %d: a cosine needs the length "
                  "of the run", s->total);
    for (int i = 0; i < 4; i++) {
        if (s->at[i] == 0) continue;
        if (s->kind == JEM_SCHEDULE_CONSTANT)
            jem__fail(ctx, JEM_BAD_ARGUMENT, "trainer: schedule.at[%d] = %d has no effect without "
                      "schedule.kind: JEM_SCHEDULE_STEPS or _COSINE", i, s->at[i]);
        else if (!(s->rate > 0))
            jem__fail(ctx, JEM_BAD_ARGUMENT, "trainer: schedule.at needs a schedule.rate above 0: "
                      "the learning rate would be 0 from update %d on", s->at[i]);
    }
}

/* Checks the rules that relate several fields; each of them is in its range. */
static int jem__train_rules_good(jem_ctx *ctx, const jem_train_desc *d) {
    const jem_status bad = JEM_BAD_ARGUMENT;
    const jem_loss_weights *w = &d->weights;
    const double sum = (double)w->ce + (double)w->cd + (double)w->cd_class + (double)w->energy_l2 +
                       (double)d->w_score + (double)d->w_nce + (double)d->w_kl + (double)d->w_term;
    const double before = (double)w->ce + (double)w->energy_l2 + (double)d->w_score +
                          (double)d->w_nce + (double)d->w_term;      /* without chains */
    jem__in_range(ctx, "trainer", "the sum of all weights", sum, JEM__TINY, JEM__MOST);
    if (d->sam > 0 && d->w_score > 0)
        jem__fail(ctx, bad, "trainer: sam = %g cannot be combined with w_score = %g",
                  (double)d->sam, (double)d->w_score);
    /* images for log p(x,y) are those of the cross-entropy */
    if (d->weights.cd_class > 0 && (d->label_noise > 0 || d->label_all_noise > 0))
        jem__fail(ctx, bad, "trainer: label_noise = %g and label_all_noise = %g cannot be combined "
                  "with weights.cd_class", (double)d->label_noise, (double)d->label_all_noise);
    if (d->w_kl > 0 && d->sgld.steps < 1)
        jem__fail(ctx, bad, "trainer: w_kl needs a walk, but sgld.steps = %d", d->sgld.steps);
    if (d->w_kl > 0 && (d->sgld.decay_b > 0 || d->sgld.temperature_from > 0))
        jem__fail(ctx, bad, "trainer: w_kl cannot be combined with sgld.decay_b = %g and "
                  "sgld.temperature_from = %g", (double)d->sgld.decay_b,
                  (double)d->sgld.temperature_from);
    if (d->cd_from > 0 && !(before > 0))
        jem__fail(ctx, bad, "trainer: cd_from = %d, but no term without chains has a weight",
                  d->cd_from);
    if (d->pause_gap > 0 && !(d->w_score > 0))
        jem__fail(ctx, bad, "trainer: pause_gap = %g needs w_score: without it, nothing trains log "
                  "p(x) in a pause", (double)d->pause_gap);
    if (d->pause_gap >= d->max_gap)
        jem__fail(ctx, bad, "trainer: pause_gap = %g is not below max_gap = %g",
                  (double)d->pause_gap, (double)d->max_gap);
    jem__schedule_check(ctx, &d->schedule);
    jem__decay_good(ctx, "trainer", &d->optim, d->lr);
    if (d->w_term > 0 && !d->term)
        jem__fail(ctx, bad, "trainer: w_term = %g, but term is NULL", (double)d->w_term);
    if (d->term && !(d->w_term > 0))
        jem__fail(ctx, bad, "trainer: a term needs a weight: w_term is %g", (double)d->w_term);
    if (d->ranks > 1 && !d->sum)
        jem__fail(ctx, bad, "trainer: ranks = %d, but sum is NULL", d->ranks);
    if (d->ranks > 1 && (d->sam > 0 || d->w_kl > 0))
        jem__fail(ctx, bad, "trainer: sam and w_kl need ranks = 1, not %d", d->ranks);
    if (!(d->restart_lo < d->restart_hi))
        jem__fail(ctx, bad, "trainer: restart_lo = %g is not below restart_hi = %g",
                  (double)d->restart_lo, (double)d->restart_hi);
    if (d->negatives % d->ranks)
        jem__fail(ctx, bad, "trainer: negatives = %d is not a multiple of ranks = %d", d->negatives,
                  d->ranks);
    return jem_ok(ctx);
}

/* Checks that log p(x) of the network can be trained with this desc: w_nce needs a Student
   distribution and units; chains by class need p(x,y); a scale below least_scale needs a shift. The
   outputs of a network are known once its forward function has recorded an image; nothing is
   computed. */
static int jem__density_good(jem_net *net, const jem_train_desc *d) {
    jem_ctx *ctx = net->ctx;
    const int too_small = !(fabsf(net->scale) >= d->least_scale);       /* also if it is NaN */
    if (d->w_nce > 0 && !jem__student(net))
        jem__fail(ctx, JEM_BAD_ARGUMENT, "trainer: w_nce = %g needs a network with a Student "
                  "distribution (jem_mlp_desc_vectors)", (double)d->w_nce);
    else if (d->w_nce > 0 && !jem_net_meta(net, jem__units_key))
        jem__fail(ctx, JEM_BAD_ARGUMENT, "trainer: w_nce = %g needs a network with units: call "
                  "jem_net_fit_units with the training data", (double)d->w_nce);
    if (!jem_ok(ctx)) return 0;
    if (!net->forward || !(too_small || jem__by_class(d))) return 1;
    const jem_mark mark = jem_begin(ctx);
    jem_forward(net, jem__images(net, NULL, 1), 0);
    const int has_energy = net->log_density != NULL;
    const int has_shift = net->shift != NULL;
    jem_end(ctx, mark);
    if (!jem_ok(ctx)) return 0;
    if (has_energy && jem__by_class(d)) {
        jem__fail(ctx, JEM_BAD_ARGUMENT, "trainer: class_conditional and weights.cd_class "
                  "need a log p(x) of the logits: here it is a separate output "
                  "(separate_energy)");
        return 0;
    }
    return has_shift ||
           jem__in_range(ctx, "trainer", "the network's scale (net->scale; for a score 10)",
                         (double)fabsf(net->scale), (double)d->least_scale, JEM__MOST);
}

/* Creates the chains. With restart_denoise, all slots are marked as empty, to be filled by
   jem__fill_buffer. */
static void jem__create_chains(jem_trainer *tr) {
    const jem_net *net = tr->net;
    const jem_train_desc *d = &tr->desc;
    int classes = 0;
    if (jem__by_class(d)) classes = net->classes;
    jem_buffer *b = jem_buffer_create(net->ctx, d->buffer_size, net->channels, net->height,
                                      net->width, classes, &tr->rng);
    tr->buffer = b;
    if (!b) return;
    if (d->restart_lo != b->lo || d->restart_hi != b->hi)
        jem_buffer_restart(b, &tr->rng, d->restart_lo, d->restart_hi);
    if (!d->restart_denoise.steps) return;
    for (int i = 0; i < b->capacity; i++) b->visits[i] = -1;
}

/* Returns a trainer's generator, distinct from that of a network with the same seed: otherwise the
   first chains would repeat the random numbers of the network's first weights. */
static jem_rng jem__trainer_rng(uint64_t seed) {
    const jem_rng rng = jem_rng_seed(seed);
    return jem_rng_split(&rng, 0x747261696e);      /* "train" */
}

jem_trainer *jem_trainer_create(jem_net *net, const jem_train_desc *desc) {
    if (!net) return NULL;
    jem_ctx *ctx = net->ctx;
    const jem_train_desc d = desc ? *desc : jem_train_desc_default();
    if (!jem__train_ranges_good(ctx, d) || !jem__train_rules_good(ctx, &d) ||
        !jem__density_good(net, &d)) return NULL;
    jem_trainer *tr = (jem_trainer *)jem__alloc(ctx, sizeof *tr);
    if (!tr) return NULL;
    tr->net = net;
    tr->desc = d;
    tr->rng = jem__trainer_rng(d.seed);
    tr->guard.now = jem__first_pulse;
    tr->optim = jem_optim_create(net, &d.optim);
    if (jem__needs_chains(&d)) jem__create_chains(tr);
    tr->values = jem__net_values(net);
    tr->has_buffers = tr->values > jem_net_size(net);
    if (d.ranks > 1)
        tr->flat = jem__alloc_floats(ctx, JEM__MEANS + tr->values);
    if (jem_ok(ctx)) return tr;
    jem_trainer_free(tr);
    return NULL;
}

void jem_trainer_free(jem_trainer *tr) {
    if (!tr) return;
    jem_ctx *ctx = tr->net->ctx;
    jem_optim_free(tr->optim);
    jem_buffer_free(tr->buffer);
    jem__free(ctx, tr->guard.kept);
    jem__free(ctx, tr->guard.visits);
    jem__free(ctx, tr->flat);
    jem__free(ctx, tr);
}

jem_buffer *jem_trainer_buffer(jem_trainer *tr) { return tr ? tr->buffer : NULL; }
int jem_trainer_updates(const jem_trainer *tr) { return tr ? tr->updates : 0; }

jem_status jem_trainer_use_average(jem_trainer *tr, int on) {
    return tr ? jem_optim_use_average(tr->optim, on) : JEM_BAD_ARGUMENT;
}

/* Continues with other random numbers, also for dropout. */
static void jem__trainer_use(jem_trainer *tr, jem_rng rng) {
    tr->rng = rng;
    tr->net->rng = jem_rng_split(&tr->rng, 1);
}
void jem_trainer_reseed(jem_trainer *tr, uint64_t seed) {
    if (!tr) return;
    jem__trainer_use(tr, jem__trainer_rng(seed));
}

void jem_trainer_set_lr(jem_trainer *tr, float lr) {
    if (!tr || !jem__finite(lr) || !(lr > 0) || lr > 1e9f) return;
    tr->desc.lr = lr;
    tr->guard.now.lr_factor = 1;
}

/* ---- several ranks --------------------------------------------------------------------------- */

/* Returns the index of this rank's first image of n. */
static int jem__rank_first(const jem_trainer *tr, int n) {
    return n / tr->net->ctx->ranks * tr->net->ctx->rank;
}
/* Returns a leaf of this rank's images of x[n]; of zeros if x is NULL. */
static jem_tensor *jem__rank_images(const jem_trainer *tr, const float *x, int n) {
    const jem_net *net = tr->net;
    if (x) x += jem__rank_first(tr, n) * jem__image_size(net);
    return jem__images(net, x, n / net->ctx->ranks);
}

/* Replaces x[n] with its sum over all ranks. */
static void jem__sum_ranks(jem_trainer *tr, float *x, ptrdiff_t n) {
    const uint64_t outer = jem__protect(tr->net->ctx);
    tr->desc.sum(tr->desc.sum_user, x, n);
    tr->net->ctx->floor = outer;
}

/* Collects the samples t of all ranks in x[n]. A rank that failed sends the others an infinity:
   they diverge, and it keeps its own error. */
static jem_status jem__collect_ranks(jem_trainer *tr, jem_tensor *t, int n, float *x) {
    jem_ctx *ctx = tr->net->ctx;
    const ptrdiff_t image = jem__buffer_image_size(tr->buffer);
    const ptrdiff_t size = n * image;
    if (ctx->ranks == 1) return jem_read(t, x);
    memset(x, 0, (size_t)size * sizeof *x);
    if (jem_read(t, x + jem__rank_first(tr, n) * image) != JEM_OK) *x = HUGE_VALF;
    jem__sum_ranks(tr, x, size);
    for (ptrdiff_t i = 0; i < size && jem_ok(ctx); i++) {
        if (!jem__finite(x[i]))
            jem__fail(ctx, JEM_DIVERGED, "train_step: the chains failed on another rank");
    }
    return ctx->status;
}

/* Writes factor * x[n] to `to`; returns the place after it. */
static float *jem__scaled_copy(float *to, const float *x, ptrdiff_t n, float factor) {
    for (ptrdiff_t i = 0; i < n; i++) to[i] = factor * x[i];
    return to + n;
}

/* Fills the message of a rank whose update failed: the others, which wait for it, diverge. */
static void jem__announce_failure(jem_trainer *tr, ptrdiff_t n) {
    for (ptrdiff_t i = 0; i < n; i++) tr->flat[i] = HUGE_VALF;
    jem__sum_ranks(tr, tr->flat, n);
}

/* Finds the statistics that are means over the images of an update. */
static void jem__stats_means(jem_stats *s, float *means[JEM__MEANS]) {
    float *const all[JEM__MEANS] = { &s->loss, &s->ce, &s->accuracy, &s->f_data, &s->f_sample,
                                     &s->score, &s->residual, &s->kl, &s->term, &s->nce };
    memcpy(means, all, sizeof all);
}

/* Replaces gradients and statistics of the update by their means over all ranks, and buffers
   (running statistics) by those of rank 0. */
static jem_status jem__average_ranks(jem_trainer *tr, jem_stats *s) {
    jem_ctx *ctx = tr->net->ctx;
    float *means[JEM__MEANS];
    const float part = 1 / (float)ctx->ranks;
    const float of_first = (float)!ctx->rank;
    float *flat = tr->flat;
    jem__stats_means(s, means);
    if (!jem_ok(ctx)) {
        jem__announce_failure(tr, JEM__MEANS + tr->values);
        return ctx->status;
    }
    for (int i = 0; i < JEM__MEANS; i++) flat = jem__scaled_copy(flat, means[i], 1, part);
    for (const jem_param *p = tr->net->params; p; p = p->next) {
        if (p->grad) flat = jem__scaled_copy(flat, p->grad, p->size, part);
        else flat = jem__scaled_copy(flat, p->value, p->size, of_first);
    }
    jem__sum_ranks(tr, tr->flat, flat - tr->flat);
    if (!jem_ok(ctx)) return ctx->status;
    flat = tr->flat;
    for (int i = 0; i < JEM__MEANS; i++) *means[i] = *flat++;
    for (jem_param *p = tr->net->params; p; p = p->next) {
        float *to = p->grad ? p->grad : p->value;
        memcpy(to, flat, (size_t)p->size * sizeof *to);
        if (!p->grad) jem_param_changed(p);
        flat += p->size;
    }
    return ctx->status;
}

/* ---- images of the loss ---------------------------------------------------------------------- */

/* Returns a leaf of the images plus the noise that data receive (as in the paper). */
static jem_tensor *jem__noisy(jem_trainer *tr, const float *x, int n) {
    if (!(tr->desc.data_noise > 0)) return jem__rank_images(tr, x, n);
    const ptrdiff_t size = n * jem__image_size(tr->net);
    float *sum = jem__push_floats(tr->net->ctx, size);
    if (!sum) return NULL;
    jem_fill_normal(tr->net->ctx, &tr->rng, sum, size, 0, tr->desc.data_noise);
    for (ptrdiff_t i = 0; i < size; i++) sum[i] += x[i];
    return jem__rank_images(tr, sum, n);
}

/* Returns a leaf of images for cross-entropy. A fraction label_all_noise of them has the noise
   levels of score matching, since a classifier that recognises a class in noise leads a sample from
   noise to one class; the others have little noise. */
static jem_tensor *jem__labelled(jem_trainer *tr, const float *x, int n) {
    const jem_train_desc *d = &tr->desc;
    if (!(d->label_noise > 0 || d->label_all_noise > 0)) return jem__noisy(tr, x, n);
    const jem_net *net = tr->net;
    float *sigma = jem__push_floats(net->ctx, n);
    jem_tensor *t = jem__rank_images(tr, x, n);
    const int wide = (int)(d->label_all_noise * (float)n + 0.5f);
    if (!sigma) return NULL;
    jem_noise_levels(&tr->rng, wide, d->noise_lo, d->noise_hi, sigma);
    for (int i = wide; i < n; i++) sigma[i] = d->label_noise * jem_rng_uniform(&tr->rng);
    if (jem_add_noise(t, sigma + jem__rank_first(tr, n), &tr->rng) != JEM_OK) return NULL;
    return t;
}

/* ---- chains ---------------------------------------------------------------------------------- */

/* The density that a walk follows: log p(x), or log p(x,y) of given labels. */
typedef struct jem__target {
    jem_logp_fn logp;
    jem_query query;
} jem__target;

/* Returns the density for this rank's part of n chains; labels[n] may be NULL. */
static jem__target jem__chain_target(const jem_trainer *tr, int n, const int *labels) {
    jem__target t;
    t.logp = jem_logp;
    t.query = tr->net->query;
    if (labels) {
        t.logp = jem_logp_class;
        t.query.labels = labels + jem__rank_first(tr, n);
    }
    return t;
}

/* Draws n new samples x[n][c][h][w], starting from noise, with restart_denoise. labels: their
   classes, or NULL. */
static jem_status jem__generate_chains(jem_trainer *tr, int n, const int *labels, float *x) {
    jem_ctx *ctx = tr->net->ctx;
    jem__target target = jem__chain_target(tr, n, labels);
    jem_generate_desc d = jem_generate_desc_default();
    d.mean = tr->net->mean;
    d.denoise = tr->desc.restart_denoise;
    d.walk.steps = 0;
    d.last_sigma = 0;
    const jem_mark mark = jem_begin(ctx);
    jem_tensor *t = jem__rank_images(tr, NULL, n);
    jem_generate(ctx, target.logp, &target.query, t, &d, &tr->rng);
    jem__collect_ranks(tr, t, n, x);
    jem_end(ctx, mark);
    return ctx->status;
}

/* Returns the number of classes among which the slots are divided; 1 without classes. */
static int jem__slot_classes(const jem_buffer *b) { return b->classes > 0 ? b->classes : 1; }

/* New samples for the buffer, on the tape. */
typedef struct jem__new_chains {
    float *x;                                      /* [m][c][h][w]: m is n rounded up, see below */
    int *labels;                                   /* [m], all 0 without classes */
} jem__new_chains;

/* Draws n new samples, plus as many as fill whole groups on all ranks. Their classes take turns if
   in_turn is 1, and are random otherwise. */
static jem_status jem__draw_new_chains(jem_trainer *tr, int n, int in_turn, jem__new_chains *f) {
    jem_ctx *ctx = tr->net->ctx;
    const jem_buffer *b = tr->buffer;
    const int classes = jem__slot_classes(b);
    int multiple = 1;
    if (ctx->ranks > 1) multiple = ctx->ranks * JEM_LANES;
    const int drawn = jem__div_up(n, multiple) * multiple;
    f->x = jem__push_images(ctx, drawn, jem__buffer_image_size(b));
    f->labels = (int *)jem__push_zero(ctx, (size_t)drawn * sizeof *f->labels);
    if (!f->x || !f->labels) return JEM_NO_MEMORY;
    for (int i = 0; i < n; i++)
        f->labels[i] = in_turn ? i % classes : jem_rng_below(&tr->rng, classes);
    return jem__generate_chains(tr, drawn, b->classes > 0 ? f->labels : NULL, f->x);
}

/* Replaces the chain of a slot. */
static void jem__set_slot(jem_buffer *b, int slot, const float *image) {
    const ptrdiff_t size = jem__buffer_image_size(b);
    memcpy(b->data + slot * size, image, (size_t)size * sizeof *image);
    b->visits[slot] = 0;
}

/* Fills the empty slots of the buffer with copies of about n new samples: at least about 64, at
   least two of each class, equally many of each, and no more than there are slots. Copies of one
   sample soon diverge from each other. */
static jem_status jem__fill_buffer(jem_trainer *tr, int n) {
    jem_buffer *b = tr->buffer;
    const int classes = jem__slot_classes(b);
    const int per_class = b->capacity / classes;
    jem__new_chains f;
    if (n < 64) n = 64;
    if (n < 2 * classes) n = 2 * classes;
    if (n > b->capacity) n = b->capacity;
    n -= n % classes;
    const jem_status s = jem__draw_new_chains(tr, n, 1, &f);
    if (s != JEM_OK) return s;
    for (int slot = 0; slot < b->capacity; slot++) {
        if (b->visits[slot] >= 0) continue;
        const int label = slot / per_class;
        const int sample = (slot % per_class * classes + label) % n;
        jem__set_slot(b, slot, f.x + sample * jem__buffer_image_size(b));
    }
    return JEM_OK;
}

/* Replaces random slots of the buffer with n new samples, each in a slot of its class. */
static jem_status jem__refresh_slots(jem_trainer *tr, int n) {
    jem_buffer *b = tr->buffer;
    const int per_class = b->capacity / jem__slot_classes(b);
    jem__new_chains f;
    if (n > b->capacity) n = b->capacity;
    const jem_status s = jem__draw_new_chains(tr, n, 0, &f);
    if (s != JEM_OK) return s;
    for (int i = 0; i < n; i++) {
        const int slot = f.labels[i] * per_class + jem_rng_below(&tr->rng, per_class);
        jem__set_slot(b, slot, f.x + i * jem__buffer_image_size(b));
    }
    return JEM_OK;
}

/* Replaces chains with new samples if restart_denoise requests it: the empty ones first, then n of
   them every 1/reinit updates; never again if reinit is 1e-6 or less. */
static jem_status jem__renew_chains(jem_trainer *tr, int n) {
    const jem_train_desc *d = &tr->desc;
    int empty = 0;
    if (!d->restart_denoise.steps) return JEM_OK;
    for (int slot = 0; slot < tr->buffer->capacity; slot++) empty += tr->buffer->visits[slot] < 0;
    if (empty) return jem__fill_buffer(tr, n);
    if (!(d->reinit > 1e-6f)) return JEM_OK;
    const int period = (int)(1 / d->reinit + 0.5f);
    if ((tr->updates - d->cd_from) % period) return JEM_OK;
    return jem__refresh_slots(tr, n);
}

/* Returns the desc of a walk, with the guard's shorter steps at the same temperature. */
static jem_sgld_desc jem__guarded_walk(const jem_trainer *tr) {
    const float factor = tr->guard.now.step_factor * tr->guard.now.travel_factor;
    jem_sgld_desc walk = tr->desc.sgld;
    walk.step_size *= factor;
    if (factor < 1) walk.noise_std *= sqrtf(factor);
    return walk;
}

/* Walks n chains x, whose labels may be NULL. Returns this rank's samples; x receives those of all
   ranks. kl: the term of jem_kl_walk if its weight is not 0. */
static jem_tensor *jem__walk_chains(jem_trainer *tr, int n, const int *labels, float *x,
                                    jem_tensor **kl) {
    const jem_train_desc *d = &tr->desc;
    jem_ctx *ctx = tr->net->ctx;
    jem_tensor *t = jem__rank_images(tr, x, n);
    jem__target target = jem__chain_target(tr, n, labels);
    const jem_sgld_desc walk = jem__guarded_walk(tr);
    if (d->w_kl > 0)
        *kl = jem_kl_walk(ctx, target.logp, &target.query, t, &walk, d->kl_entropy, &tr->rng);
    else jem_sgld(ctx, target.logp, &target.query, t, &walk, &tr->rng);
    const jem_status status = jem__collect_ranks(tr, t, n, x);
    tr->awaits_chains = 0;
    return status == JEM_OK ? t : NULL;
}

/* Draws n chains of these classes (NULL: of any) from the buffer, walks them, and stores them
   again. Returns a leaf of this rank's samples, constant for the update. */
static jem_tensor *jem__negatives(jem_trainer *tr, int n, const int *labels, jem_tensor **kl) {
    const jem_train_desc *d = &tr->desc;
    jem_ctx *ctx = tr->net->ctx;
    const ptrdiff_t image = jem__buffer_image_size(tr->buffer);
    if (jem__renew_chains(tr, n) != JEM_OK) return NULL;
    float *x = jem__push_images(ctx, n, image);
    int *slot = (int *)jem__push(ctx, (size_t)n * sizeof *slot);
    int *visits = (int *)jem__push(ctx, (size_t)n * sizeof *visits);
    if (!x || !slot || !visits) return NULL;
    const float reinit = d->restart_denoise.steps ? 0 : d->reinit;
    jem__buffer_draw(tr->buffer, &tr->rng, n, labels, reinit, x, slot, visits);
    const uint64_t outer = jem__protect(ctx);
    for (int i = 0; d->chain && i < n; i++) {
        const int label = labels ? labels[i] : -1;
        d->chain(d->chain_user, &tr->rng, visits[i], label, x + i * image);
    }
    ctx->floor = outer;
    jem_tensor *t = jem__walk_chains(tr, n, labels, x, kl);
    if (t) jem__buffer_put(tr->buffer, n, slot, visits, x);
    return t;
}

/* ---- the loss -------------------------------------------------------------------------------- */

/* Returns the fraction of images whose largest logit is that of their label. */
static float jem__batch_accuracy(const jem_tensor *logits, const int *labels) {
    const jem__node *node = logits->node;
    int correct = 0;
    for (int i = 0; i < logits->n; i++) {
        const float *f = node->value + jem__lane_at(node, i, 0, 0, 0);
        int best = 0;
        for (int c = 1; c < logits->c; c++)
            if (f[(ptrdiff_t)c * JEM_LANES] > f[(ptrdiff_t)best * JEM_LANES]) best = c;
        if (best == labels[i]) correct++;
    }
    return (float)correct / (float)logits->n;
}

/* Stores in the network the noise levels of score matching, and the mean pixel of the first batch,
   rounded to .001, so that its text is short. */
static void jem__store_noise_levels(jem_trainer *tr, const float *x, ptrdiff_t size) {
    jem_net *net = tr->net;
    if (tr->updates > 0 || !(tr->desc.w_score > 0)) return;
    double sum = 0;
    for (ptrdiff_t i = 0; i < size; i++) sum += (double)x[i];
    net->mean = (float)(floor(sum / (double)size * 1000 + 0.5) / 1000);
    net->noise_lo = tr->desc.noise_lo;
    net->noise_hi = tr->desc.noise_hi;
}

/* Stores the steps of the chains with the network, for its samples, once there are chains; with a
   score, they follow from its noise levels. */
static void jem__store_walk(jem_trainer *tr) {
    const jem_train_desc *d = &tr->desc;
    const float most = 1e6f;                       /* in files */
    if (d->w_score > 0 || !jem__needs_chains(d) || tr->updates <= d->cd_from) return;
    if (!(d->sgld.step_size > 0) || d->sgld.step_size > most || d->sgld.noise_std > most) return;
    tr->net->walk_step = d->sgld.step_size;
    tr->net->walk_noise = d->sgld.noise_std;
}

/* Records score matching on n images; it needs no labels. */
static jem_tensor *jem__score_term(jem_trainer *tr, const float *x, int n, jem_stats *s) {
    const jem_net *net = tr->net;
    float *sigma = jem__push_floats(net->ctx, n);
    if (!sigma) return NULL;
    JEM__ZEROED(jem_score_desc, d);
    d.sigma = sigma + jem__rank_first(tr, n);
    jem_noise_levels(&tr->rng, n, tr->desc.noise_lo, tr->desc.noise_hi, sigma);
    return jem_score_matching(net->ctx, jem_logp, tr->net, jem__rank_images(tr, x, n), &d, &tr->rng,
                              &s->residual);
}

/* Records the mean of log(1 + e^(sign g)) for g = log p(x) - log q(x), with q the network's Student
   distribution. */
static jem_tensor *jem__nce_half(jem_net *net, jem_tensor *x, float sign) {
    jem_ctx *ctx = net->ctx;
    jem_tensor *logp = jem__logp(net, jem_forward(net, x, 1));
    if (!logp) return NULL;
    jem_tensor *g = jem_sub(ctx, logp, net->shift);
    return jem_mean(ctx, jem_softplus(ctx, jem_scale(ctx, g, sign)));
}

/* Records noise-contrastive estimation: n images with noise, and as many draws of q. */
static jem_tensor *jem__nce_term(jem_trainer *tr, const float *x, int n) {
    jem_net *net = tr->net;
    float *drawn = jem__push_floats(net->ctx, (ptrdiff_t)n * net->channels);
    if (!drawn || jem__student_draw(net, &tr->rng, n, drawn) != JEM_OK) return NULL;
    jem_tensor *data = jem__nce_half(net, jem__noisy(tr, x, n), -1);
    jem_tensor *draws = jem__nce_half(net, jem__rank_images(tr, drawn, n), 1);
    return jem_add(net->ctx, data, draws);
}

/* Images of an update: labelled ones, and those for p(x), which may be the same. */
typedef struct jem__batch {
    const float *x, *x_data;
    const int *labels;                             /* from the first image of this rank on */
    const int *all_labels;                         /* of the images of all ranks */
    int n, n_data;
    int separate;                                  /* 1: they are not the same */
} jem__batch;

/* Lets act norm set its parameters from the first batch, before chains and the loss use them. Then
   resets the generators, so that those draw the same numbers as without act norm. */
static void jem__set_act_norm(jem_trainer *tr, const jem__batch *b) {
    jem_net *net = tr->net;
    jem_ctx *ctx = net->ctx;
    const jem_rng rng = tr->rng;
    const jem_rng of_dropout = net->rng;
    const jem_mark mark = jem_begin(ctx);
    jem_tensor *x = NULL;
    if (b->n) x = jem__labelled(tr, b->x, b->n);
    else x = jem__noisy(tr, b->x_data, b->n_data);
    jem_item(jem_mean(ctx, jem__logp(net, jem_forward(net, x, 1))));
    jem_end(ctx, mark);
    tr->rng = rng;
    net->rng = of_dropout;
}

/* Terms of the loss; NULL where they are not recorded. */
typedef struct jem__terms {
    jem_loss_terms loss;                           /* those of jem_loss */
    jem_tensor *score, *nce, *kl, *own;            /* own: the user's */
} jem__terms;

/* Samples of an update; both are NULL if it walks no chains. */
typedef struct jem__samples {
    jem_tensor *x;
    int *labels;                                   /* this rank's; NULL unless by class */
} jem__samples;

/* Chooses the classes of n chains: those of the labelled images, from a random one on. If a class
   were less frequent among samples than among data, its logit would grow without limit. */
static void jem__chain_classes(jem_trainer *tr, const jem__batch *b, int n, int *labels) {
    int first = 0;
    if (b->n) first = jem_rng_below(&tr->rng, b->n);
    for (int i = 0; i < n; i++) {
        if (b->n) labels[i] = b->all_labels[(first + i) % b->n];
        else labels[i] = jem_rng_below(&tr->rng, tr->net->classes);
    }
}

/* Draws the samples of an update, and records the term `kl`. Returns 0 if memory runs out. */
static int jem__update_samples(jem_trainer *tr, const jem__batch *b, jem__samples *sample,
                               jem_tensor **kl) {
    const jem_train_desc *d = &tr->desc;
    const int n = d->negatives ? d->negatives : b->n_data;
    int *labels = NULL;
    if (jem__by_class(d)) {
        labels = (int *)jem__push(tr->net->ctx, (size_t)n * sizeof *labels);
        if (!labels) return 0;
        jem__chain_classes(tr, b, n, labels);
    }
    sample->x = jem__negatives(tr, n, labels, kl);
    sample->labels = labels;
    if (labels) sample->labels += jem__rank_first(tr, n);
    return 1;
}

/* Builds the user's term, which must be one number; NULL if it has no weight, or on an error. */
static jem_tensor *jem__own_term(jem_trainer *tr, const jem_term_inputs *in) {
    jem_ctx *ctx = tr->net->ctx;
    if (!(tr->desc.w_term > 0) || !jem_ok(ctx)) return NULL;
    const uint64_t outer = jem__protect(tr->net->ctx);
    jem_tensor *term = tr->desc.term(in, tr->desc.term_user);
    tr->net->ctx->floor = outer;
    if (jem_ok(ctx) && !(term && jem__usable(term, "train_step: term") && jem__one_number(term)))
        jem__fail(ctx, JEM_BAD_SHAPE, "train_step: the term returned %s, not one number%s",
                  jem__shape_text(term).s,
                  in->sample ? "" : " (this update has no samples: in->sample is NULL)");
    if (!jem_ok(ctx)) return NULL;
    return term;
}

/* Records by how much cross-entropy increases if its target is the mean of all classes, not the
   label: the mean of f(x)[y] minus the mean of all logits. */
static jem_tensor *jem__smoothing(jem_ctx *ctx, jem_tensor *logits, const int *labels) {
    if (!logits || !labels) return NULL;
    jem_tensor *mean_logit = jem_mean(ctx, logits);
    return jem_sub(ctx, jem_mean(ctx, jem_gather(ctx, logits, labels)), mean_logit);
}

/* Returns the weights of this update's loss: without contrastive terms in a pause. All ranks have
   the same gap, that of earlier updates, so they decide alike. */
static jem_loss_weights jem__weights_now(const jem_trainer *tr) {
    jem_loss_weights w = tr->desc.weights;
    const float most = tr->desc.pause_gap * fabsf(tr->net->scale);
    if (most > 0 && tr->guard.now.gap > most) {
        w.cd = 0;
        w.cd_class = 0;
    }
    return w;
}

/* Prepares the network and the batch for an update. If the network has buffers, each rank computes
   the whole first update, in which act norm sets its parameters. */
static void jem__prepare_update(jem_trainer *tr, jem__batch *b) {
    jem_ctx *ctx = tr->net->ctx;
    const jem_train_desc *d = &tr->desc;
    const int sets_buffers = tr->has_buffers && !tr->updates;
    if (!sets_buffers) {
        ctx->rank = d->rank;
        ctx->ranks = d->ranks;
    }
    b->all_labels = b->labels;
    if (b->n) b->labels += jem__rank_first(tr, b->n);
    jem__store_noise_levels(tr, b->x_data, b->n_data * jem__image_size(tr->net));
    tr->awaits_chains = jem__needs_chains(d) && tr->updates >= d->cd_from;
    if (sets_buffers) jem__set_act_norm(tr, b);    /* before chains walk through the network */
}

/* Records the whole loss: samples first, then the terms that depend on data. */
static jem_tensor *jem__train_loss(jem_trainer *tr, const jem__batch *b, jem__terms *terms,
                                   jem_stats *s) {
    jem_ctx *ctx = tr->net->ctx;
    const jem_train_desc *d = &tr->desc;
    const int has_samples = tr->awaits_chains;
    const int noisy_labelled = d->label_noise > 0 || d->label_all_noise > 0;
    const int needs_data = has_samples || d->weights.energy_l2 > 0 || d->w_term > 0;
    const jem_loss_weights weights = jem__weights_now(tr);
    jem__samples sample = { NULL, NULL };
    jem_tensor *labelled = NULL;
    jem_tensor *data = NULL;                       /* NULL: the labelled images are the data */
    if (has_samples && !jem__update_samples(tr, b, &sample, &terms->kl)) return NULL;
    if (b->n) labelled = jem__labelled(tr, b->x, b->n);
    if (b->separate || (noisy_labelled && needs_data))
        data = jem__noisy(tr, b->x_data, b->n_data);
    if (d->w_score > 0) terms->score = jem__score_term(tr, b->x_data, b->n_data, s);
    if (d->w_nce > 0) terms->nce = jem__nce_term(tr, b->x_data, b->n_data);
    jem_tensor *loss = jem__loss(tr->net, &weights, labelled, b->labels, data, sample.x,
                                 sample.labels, &terms->loss);
    const int *labels = labelled ? b->labels : NULL;
    if (!data) data = labelled;
    const jem_term_inputs in = { tr->net, labelled, labels, terms->loss.logits, data, sample.x,
                                 &tr->rng };
    terms->own = jem__own_term(tr, &in);
    if (d->label_smoothing > 0)
        loss = jem__accumulate(ctx, loss, d->weights.ce * d->label_smoothing,
                               jem__smoothing(ctx, in.logits, labels));
    loss = jem__accumulate(ctx, loss, d->w_term, terms->own);
    loss = jem__accumulate(ctx, loss, d->w_nce, terms->nce);
    loss = jem__accumulate(ctx, loss, d->w_kl, terms->kl);
    return jem__loss_checked(ctx, jem__accumulate(ctx, loss, d->w_score, terms->score));
}

/* ---- the guard ------------------------------------------------------------------------------- */

/* Returns the number of chains whose visits are kept; at least 1, since no array may be empty. */
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
    ptrdiff_t size = jem__optim_copy(tr->optim, NULL, 0) + tr->values;
    if (b) size += jem__buffer_size(b);
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
    if (back) {
        tr->updates = g->updates;
        tr->optim->updates = g->optim_updates;
    } else {
        g->updates = tr->updates;
        g->optim_updates = tr->optim->updates;
    }
    if (!b) return;
    const size_t chains = (size_t)jem__buffer_size(b) * sizeof *at;
    const size_t visits = (size_t)b->capacity * sizeof *b->visits;
    jem__guard_move(b->data, at, chains, back);
    jem__guard_move(b->visits, g->visits, visits, back);
}

static void jem__guard_save(jem_trainer *tr) { jem__guard_copy(tr, 0); }
static void jem__guard_restore(jem_trainer *tr) { jem__guard_copy(tr, 1); }

/* Checks that all numbers of the guard's copy (NULL: of the trainer) are finite, and that the
   optimiser can continue from them. */
static int jem__guard_sound(const jem_trainer *tr, const jem__guard *copy) {
    const jem_buffer *b = tr->buffer;
    if (copy)
        return jem__all_finite(copy->kept, copy->size) &&
               jem__optim_good(tr->optim, copy->kept + tr->values);
    for (const jem_param *p = tr->net->params; p; p = p->next) {
        if (!jem__all_finite(p->value, p->size)) return 0;
    }
    if (b && !jem__all_finite(b->data, jem__buffer_size(b))) return 0;
    return jem__optim_good(tr->optim, NULL);
}

/* Returns the variance of a value over n images, averaged over all values. */
static double jem__variance(const float *const *image, int n, ptrdiff_t size) {
    double variances = 0;
    for (ptrdiff_t k = 0; k < size; k++) {
        double sum = 0;
        double squares = 0;
        for (int i = 0; i < n; i++) {
            const double x = (double)image[i][k];
            sum += x;
            squares = fma(x, x, squares);
        }
        variances += fma(-sum / n, sum / n, squares / n);
    }
    return variances / (double)size;
}

/* Returns half the width of the range in which chains start: the unit of their distances. */
static double jem__half_range(const jem_train_desc *d) {
    return ((double)d->restart_hi - (double)d->restart_lo) / 2;
}

/* Returns the i-th slot of the buffer in an order in which classes take turns, so that the first
   ones are of all classes. */
static int jem__slot_in_turn(const jem_buffer *b, int i) {
    const int classes = jem__slot_classes(b);
    const int count = b->capacity / classes;
    if (i >= count * classes) return i;            /* of no class */
    return i % classes * count + i / classes;
}

/* Returns the fraction of the values of n chains that are far from the images x[all]: at a clamp
   (up to rounding) that is much wider than the range of images; or, without such a clamp, ten half
   ranges from the middle and twice as far as any image. */
static double jem__fraction_far(const jem_train_desc *d, const float *const *chain, int n,
                                ptrdiff_t size, const float *x, ptrdiff_t all) {
    const double half = jem__half_range(d);
    const double at_clamp = 0.4995 * ((double)d->sgld.clamp_hi - (double)d->sgld.clamp_lo);
    double middle = ((double)d->restart_hi + (double)d->restart_lo) / 2;
    double limit = 10 * half;
    double outside = 0;
    for (ptrdiff_t i = 0; i < all; i++) limit = fmax(limit, 2 * fabs((double)x[i] - middle));
    if (at_clamp > 1.5 * half) {
        limit = at_clamp;
        middle = ((double)d->sgld.clamp_hi + (double)d->sgld.clamp_lo) / 2;
    }
    for (int i = 0; i < n; i++) {
        for (ptrdiff_t k = 0; k < size; k++)
            outside += fabs((double)chain[i][k] - middle) >= limit;
    }
    return outside / ((double)n * (double)size);
}

/* Returns the reason why the chains, whose values are finite, are useless, or NULL. Compares some
   that have walked with some of the n images x. */
static const char *jem__chains_gone(const jem_trainer *tr, const float *x, int n) {
    enum { SOME = 64, FEW = 8 };
    const jem_buffer *b = tr->buffer;
    const float *chains[SOME];
    const float *images[SOME];
    int walked = 0;
    int seen = SOME;
    if (!b || n < FEW) return NULL;
    if (n < seen) seen = n;
    const ptrdiff_t size = jem__buffer_image_size(b);
    for (int i = 0; i < b->capacity && walked < SOME; i++) {
        const int slot = jem__slot_in_turn(b, i);
        if (b->visits[slot] > 0) chains[walked++] = b->data + slot * size;
    }
    if (walked < FEW) return NULL;
    for (int i = 0; i < seen; i++) images[i] = x + i * size;
    if (jem__fraction_far(&tr->desc, chains, walked, size, x, seen * size) > 0.9)
        return "the chains are far from all images";
    const double variance = jem__variance(chains, walked, size);
    const double half = jem__half_range(&tr->desc);
    if (variance >= 0.02 * (half * half)) return NULL;       /* varied enough for any images */
    if (variance < 0.02 * jem__variance(images, seen, size)) return "the chains are nearly equal";
    return NULL;
}

#define JEM__FARTHEST 1e30  /* largest distance, and inverse of the smallest factor of steps */
/* Returns the rms distance by which one step of SGLD would move the values of some chains, without
   noise and without the clamp of x, as a fraction of the range in which chains start. Chains that
   have not walked yet, and are noise, are measured, too. Returns 0, 'not too wide', before the
   first update with chains, or if the gradient is not finite. The context must have no error. */
static float jem__travel(const jem_trainer *tr) {
    const jem_buffer *b = tr->buffer;
    jem_ctx *ctx = tr->net->ctx;
    double sum = 0;
    if (!b || !tr->desc.sgld.steps || tr->updates < tr->desc.cd_from) return 0;
    const int n = b->capacity < JEM_LANES ? b->capacity : JEM_LANES;
    const ptrdiff_t image = jem__buffer_image_size(b);
    const ptrdiff_t size = n * image;
    const float step = jem__guarded_walk(tr).step_size;
    const float clamp = tr->desc.sgld.clamp_grad;
    const jem_mark mark = jem_begin(ctx);
    float *chains = jem__push_floats(ctx, size);
    float *slope = jem__push_floats(ctx, size);
    for (int i = 0; chains && i < n; i++)
        memcpy(chains + i * image, b->data + jem__slot_in_turn(b, i) * image,
               (size_t)image * sizeof *chains);
    jem_tensor *t = NULL;
    if (chains) t = jem_input(ctx, chains, n, b->channels, b->height, b->width);
    if (slope && t && jem_grad(jem_logp(ctx, t, tr->net), t) == JEM_OK &&
        jem_read_grad(t, slope) == JEM_OK) {
        for (ptrdiff_t i = 0; i < size; i++) {
            const int is_number = jem__finite(slope[i]);   /* which fminf does not keep */
            if (clamp > 0 && is_number) slope[i] = fmaxf(fminf(slope[i], clamp), -clamp);
            const double moved = (double)step * (double)slope[i];
            sum = fma(moved, moved, sum);
        }
    }
    jem_end(ctx, mark);
    if (!jem__finite((float)sum)) return 0;
    const double range = 2 * jem__half_range(&tr->desc);
    return (float)fmin(sqrt(sum / (double)size) / range, JEM__FARTHEST);
}

/* Largest jem__travel with which SGLD can find images; the guard shortens wider steps to a tenth of
   this limit. */
#define JEM__WIDE 0.25f
/* Lowest factor of learning rate and SGLD step: many rollbacks must not halve them to 0. */
#define JEM__LEAST_FACTOR 1e-6f

/* Updates a running mean over about 20 updates; below 0: unknown. */
static void jem__follow(float *mean, float value) {
    if (*mean < 0) *mean = value;
    else *mean += (value - *mean) / 20;
}

/* Updates the running mean of a loss and, if it already covers enough updates (begun), the lowest
   mean so far. A single update counts for at most `most`. */
static void jem__follow_least(float *mean, float *least, float value, float most, int begun) {
    jem__follow(mean, fminf(value, most));
    if (begun && (*least < 0 || *mean < *least)) *least = *mean;
}

/* Updates the running means with the values of a successful update. Returns 0 if its gap is not
   finite: in a pause, the loss would not show it. */
static int jem__pulse_follow(jem_trainer *tr, const jem__batch *b, const jem_stats *s, float norm) {
    jem__pulse *now = &tr->guard.now;
    const jem_train_desc *d = &tr->desc;
    const int begun = tr->updates > JEM__GUARD_BEGIN;
    const float gap_change = 0.1f * (-s->cd - now->gap);
    jem__follow(&now->norm, norm);
    if (d->weights.ce > 0 && b->n > 0 && tr->net->classes > 1)
        jem__follow_least(&now->ce, &now->least, s->ce, HUGE_VALF, begun);
    if (d->w_score > 0)
        jem__follow_least(&now->residual, &now->least_residual, s->residual, 2, begun);
    if (!jem__finite(gap_change)) return 0;
    now->gap += gap_change;
    return 1;
}

/* Compares a successful update with earlier ones. If the trainer must roll back, writes the reason
   to g->why. */
static void jem__guard_check(jem_trainer *tr, const jem__batch *b, const jem_stats *s) {
    enum {
        TRAVEL_EVERY = 20,
        MOST_GUESSES = 6                           /* then the labels count as unlearnable */
    };
    const jem_train_desc *d = &tr->desc;
    jem__guard *g = &tr->guard;
    const jem__pulse *now = &g->now;
    const float usual = now->norm;
    const float guess = logf((float)tr->net->classes);
    const int begun = tr->updates > JEM__GUARD_BEGIN;
    float norm = s->grad_norm;
    if (d->optim.clip > 0) norm = fminf(norm, d->optim.clip);
    const int has_gap = jem__pulse_follow(tr, b, s, norm);
    if (!d->max_rollbacks) return;
    const char *gone = jem__chains_gone(tr, b->x_data, b->n_data);
    if (tr->updates % TRAVEL_EVERY == 1) g->travel = jem__travel(tr);
    if (!has_gap) jem__print(g->why, sizeof g->why, "f(x+) - f(x-) is not finite");
    else if (!(fabsf(now->gap) <= d->max_gap * fabsf(tr->net->scale)))
        jem__print(g->why, sizeof g->why, "the mean of f(x+) - f(x-) is %.3g", (double)now->gap);
    else if (gone) jem__print(g->why, sizeof g->why, "%s", gone);
    else if (begun && usual > 0 && norm > 1000 * usual)
        jem__print(g->why, sizeof g->why, "the norm of the gradient is %.3g, and was %.3g",
                 (double)norm, (double)usual);
    else if (g->guesses < MOST_GUESSES && begun && now->least >= 0 &&
             now->least < 0.75f * guess && now->ce > 0.99f * guess) {
        if (g->good) g->guesses++;                 /* otherwise there is no rollback */
        jem__print(g->why, sizeof g->why, "cross-entropy is %.3g, and was %.3g; a guess has %.3g",
                 (double)now->ce, (double)now->least, (double)guess);
    } else if (now->least_residual >= 0 && now->least_residual < 0.5f && now->residual > 0.9f) {
        jem__print(g->why, sizeof g->why, "the residual of the score is %.3g, and was %.3g; a "
                 "constant density has 1", (double)now->residual, (double)now->least_residual);
    }
}

/* Copies the state if it is good: the gap is small, the score is not being forgotten, and all
   numbers are finite. With each copy, a reduced learning rate doubles, and travel_factor grows up
   to fourfold, as far as gradients allow; step_factor remains. All ranks have the same numbers, so
   they decide alike. */
static jem_status jem__guard_keep(jem_trainer *tr) {
    jem__guard *g = &tr->guard;
    const float most = tr->desc.max_gap * fabsf(tr->net->scale) / 20;
    const int forgets = g->now.least_residual >= 0 && g->now.residual > 3 * g->now.least_residual;
    if (!(fabsf(g->now.gap) <= most) || forgets || !jem__guard_sound(tr, NULL)) return JEM_OK;
    if (jem__guard_memory(tr) != JEM_OK) return tr->net->ctx->status;
    jem__guard_save(tr);
    g->now.kept_least = g->now.least;
    g->now.kept_least_residual = g->now.least_residual;
    g->good = 1;
    if (g->now.lr_factor < 1) g->now.lr_factor = fminf(1, 2 * g->now.lr_factor);
    if (g->now.travel_factor >= 1) return JEM_OK;
    const float travel = jem__travel(tr);
    if (travel > 0) {
        const float growth = fminf(4, fmaxf(1, 0.1f * JEM__WIDE / travel));
        g->now.travel_factor = fminf(1, g->now.travel_factor * growth);
    }
    return tr->net->ctx->status;
}

/* Shortens the steps of SGLD if they are too wide; returns 1 if so. */
static int jem__guard_shorten(jem_trainer *tr, float travel) {
    if (!(travel > JEM__WIDE)) return 0;
    const float factor = tr->guard.now.travel_factor * (0.1f * JEM__WIDE / travel);
    tr->guard.now.travel_factor = fmaxf(factor, (float)(1 / JEM__FARTHEST));
    return 1;
}

/* Shortens the steps of SGLD if they are too wide in a state just restored by a rollback. */
static void jem__guard_after_rollback(jem_trainer *tr) {
    if (tr->guard.just_rolled_back) jem__guard_shorten(tr, jem__travel(tr));
    if (jem_ok(tr->net->ctx)) tr->guard.just_rolled_back = 0;
}

/* Rolls back to the good state, for the reason in g->why. */
static void jem__guard_roll_back(jem_trainer *tr, jem_stats *s) {
    jem_ctx *ctx = tr->net->ctx;
    jem__guard *g = &tr->guard;
    float *means[JEM__MEANS];
    char note[360];
    jem_clear_error(ctx);
    jem__guard_restore(tr);
    const int given_up = g->rollbacks >= tr->desc.max_rollbacks;
    if (!given_up) g->rollbacks++;
    g->now.gap = 0;
    g->now.norm = -1;
    /* Means restart at their lowest values: one update must not count as the mean of many. */
    g->now.least = g->now.kept_least;
    g->now.ce = g->now.least;
    g->now.least_residual = g->now.kept_least_residual;
    g->now.residual = g->now.least_residual;
    if (!jem__guard_shorten(tr, g->travel) && g->rollbacks > 1) {
        g->now.lr_factor = fmaxf(0.5f * g->now.lr_factor, JEM__LEAST_FACTOR);
        g->now.step_factor = fmaxf(0.5f * g->now.step_factor, JEM__LEAST_FACTOR);
    }
    g->travel = 0;
    g->just_rolled_back = 1;
    jem__trainer_use(tr, jem_rng_split(&tr->rng, (uint64_t)g->rollbacks));
    jem__stats_means(s, means);
    for (int i = 0; i < JEM__MEANS; i++) {
        if (!jem__finite(*means[i])) *means[i] = 0;
    }
    if (!jem__finite(s->cd)) s->cd = 0;
    if (!jem__finite(s->grad_norm)) s->grad_norm = 0;
    s->reason = g->why;
    if (given_up) {
        s->status = jem__fail(ctx, JEM_DIVERGED, "train_step: update %d: %s; the guard has already "
                              "rolled back %d times: lower lr or sgld.step_size, or set "
                              "weights.energy_l2", s->update, g->why, g->rollbacks);
        return;
    }
    jem__print(note, sizeof note, "train_step: update %d: %s; rollback %d of %d to the last good "
               "state, after %d updates, with %g of the learning rate and %g of the SGLD step",
               s->update, g->why, g->rollbacks, tr->desc.max_rollbacks, tr->updates,
               (double)g->now.lr_factor, (double)(g->now.step_factor * g->now.travel_factor));
    jem__note(ctx, note);
    s->status = JEM_OK;
    s->rolled_back = 1;
}

/* Logs, at every thousandth update, that a rollback would lose a thousand updates or more, since no
   later state was good. */
static void jem__guard_note_age(const jem_trainer *tr) {
    enum { OLD = 1000 };
    const jem_ctx *ctx = tr->net->ctx;
    char note[200];
    const int age = tr->updates - tr->guard.updates;
    if (!tr->guard.good || tr->updates % OLD || age < OLD) return;
    jem__print(note, sizeof note, "train_step: after %d updates, the last good state is the one "
               "after %d: since then the gap (now %.3g) or the residual was too large",
               tr->updates, tr->guard.updates, (double)tr->guard.now.gap);
    jem__note(ctx, note);
}

/* Ends an update: judges it if it succeeded, copies the state if it is good and a copy is due
   (always due before the first one), and rolls back to the copy if the update diverged or was
   judged bad. Without a copy, divergence remains an error, and a bad judgement has no effect. */
static void jem__guard_watch(jem_trainer *tr, const jem__batch *b, jem_stats *s) {
    jem_ctx *ctx = tr->net->ctx;
    jem__guard *g = &tr->guard;
    *g->why = 0;
    if (s->status == JEM_DIVERGED) {
        snprintf(g->why, sizeof g->why, "%.150s", ctx->message);
        jem__mask_controls(g->why, 0);             /* a character may have been cut */
    } else if (s->status == JEM_OK) jem__guard_check(tr, b, s);
    s->gap = g->now.gap;
    if (!tr->desc.max_rollbacks) return;
    const int usable = !*g->why;                   /* as a first copy, even if steps are too wide */
    if (usable && g->travel > JEM__WIDE)
        jem__print(g->why, sizeof g->why, "a step of SGLD moves the chains by %.2g times the range "
                 "of images", (double)g->travel);
    const int due = !*g->why && tr->updates % JEM__GUARD_EVERY == 0;
    if (s->status == JEM_OK && (due || (usable && !g->good))) s->status = jem__guard_keep(tr);
    if (s->status == JEM_OK && due) jem__guard_note_age(tr);
    if (*g->why && g->good && (s->status == JEM_OK || s->status == JEM_DIVERGED))
        jem__guard_roll_back(tr, s);
    if (s->status == JEM_OK) s->status = ctx->status;
    s->rollbacks = g->rollbacks;
}

/* ---- the step -------------------------------------------------------------------------------- */

/* Returns a copy of a network's parameters and buffers, on the tape; NULL if memory runs out. */
static float *jem__keep_params(const jem_net *net) {
    float *kept = jem__push_floats(net->ctx, jem__net_values(net));
    float *at = kept;
    for (const jem_param *p = net->params; kept && p; p = p->next) {
        memcpy(at, p->value, (size_t)p->size * sizeof *at);
        at += p->size;
    }
    return kept;
}
/* Restores all values if all = 1, otherwise only those of buffers. kept may be NULL. */
static void jem__restore_params(jem_net *net, const float *kept, int all) {
    for (jem_param *p = net->params; kept && p; p = p->next) {
        if (all || !p->grad) {
            memcpy(p->value, kept, (size_t)p->size * sizeof *kept);
            jem_param_changed(p);
        }
        kept += p->size;
    }
}

/* Moves v[n] by `distance` in the direction of g[n], whose norm is given. */
static void jem__move_along(float *v, const float *g, ptrdiff_t n, float distance, float norm) {
    const float share = distance / norm;
    const int overflows = !jem__finite(share);     /* a gradient at a minimum may be 1e-40 */
    for (ptrdiff_t i = 0; i < n; i++) {
        if (overflows) v[i] = jem__fmaf(distance, g[i] / norm, v[i]);
        else v[i] = jem__fmaf(share, g[i], v[i]);
    }
}

/* Replaces the gradient g with that of the same loss (images, samples, noise) at w + sam g/||g||,
   the point at this distance from the weights w where the loss is about largest. Weights and
   running statistics are restored; the loss is computed with `before`, the statistics before the
   update. */
static jem_status jem__sam_gradient(jem_trainer *tr, jem_tensor *loss, const float *before) {
    jem_net *net = tr->net;
    const float norm = jem__gradient_norm(tr->optim);
    const float *kept = jem__keep_params(net);
    if (!kept || !(norm > 0) || !jem__finite(norm)) return net->ctx->status;
    for (int i = 0; i < tr->optim->count; i++) {
        jem_param *p = tr->optim->moments[i].param;
        jem__move_along(p->value, p->grad, p->size, tr->desc.sam, norm);
        jem_param_changed(p);
    }
    jem__restore_params(net, before, 0);
    jem_zero_grad(net);
    const jem_status status = jem_backward(loss);
    jem__restore_params(net, kept, 1);
    return status;
}

/* Checks the images and labels of an update, and adds its n unlabelled images x to the batch.
   Returns 0 after an error. */
static int jem__batch_ready(const jem_trainer *tr, jem__batch *b, const float *x, int n) {
    const int missing = (b->n > 0 && (!b->x || !b->labels)) || (n > 0 && !x);
    const int ranks = tr->desc.ranks;
    jem_ctx *ctx = tr->net->ctx;
    const ptrdiff_t values = jem__net_values(tr->net);
    if (values != tr->values)
        jem__fail(ctx, JEM_BAD_ARGUMENT, "train_step: the network has %.0f values, and had %.0f "
                  "when its trainer was created: add parameters before", (double)values,
                  (double)tr->values);
    else if (missing || b->n < 0 || n < 0 || (!b->n && !n))
        jem__fail(ctx, JEM_BAD_ARGUMENT, "train_step: %d labelled, %d unlabelled images: %s", b->n,
                  n, missing ? "data or labels are NULL (without labels: train_step_semi)"
                             : "a count is below 0, or there are no images");
    else if (b->n % ranks || n % ranks)
        jem__fail(ctx, JEM_BAD_ARGUMENT, "train_step: %d labelled, %d unlabelled images: not "
                  "multiples of ranks = %d", b->n, n, ranks);
    if (!jem_ok(ctx)) return 0;
    b->separate = n > 0;
    jem__images_check(tr->net, "train_step", b->x, b->n);
    if (n > 0) {
        b->x_data = x;
        b->n_data = n;
        jem__images_check(tr->net, "train_step, unlabelled", x, n);
    }
    if (b->n > 0 && ctx->status == JEM_OK)
        jem__labels_good(ctx, "train_step", b->labels, b->n, tr->net->classes);
    return ctx->status == JEM_OK;
}

/* Returns the value of a term of the loss; 0 if it is NULL. */
static float jem__term(jem_tensor *t) {
    if (!t) return 0;
    return jem_item(t);
}

/* Fills in the statistics of an update, means over all ranks, and checks that it has not
   diverged. */
static jem_status jem__update_stats(jem_trainer *tr, jem_tensor *loss, const jem__terms *t,
                                    const int *labels, jem_stats *s) {
    jem_ctx *ctx = tr->net->ctx;
    s->loss = jem_item(loss);
    s->ce = jem__term(t->loss.ce);
    if (t->loss.ce && ctx->status == JEM_OK)
        s->accuracy = jem__batch_accuracy(t->loss.logits, labels);
    s->f_data = jem__term(t->loss.f_data);
    s->f_sample = jem__term(t->loss.f_sample);
    s->score = jem__term(t->score);
    s->kl = jem__term(t->kl);
    s->term = jem__term(t->own);
    s->nce = jem__term(t->nce);
    jem_status status = ctx->status;
    if (ctx->ranks > 1) status = jem__average_ranks(tr, s);
    if (t->loss.f_sample) s->cd = s->f_sample - s->f_data;
    if (status != JEM_OK) return status;
    if (jem__finite(s->loss) && fabsf(s->loss) <= tr->desc.max_loss) return JEM_OK;
    return jem__fail(ctx, JEM_DIVERGED, "train_step: diverged at update %d: loss %g, f(x+) %g, "
                     "f(x-) %g", tr->updates, (double)s->loss, (double)s->f_data,
                     (double)s->f_sample);
}

/* Makes an update: loss, gradient, statistics, and a step of the optimiser. */
static jem_status jem__make_update(jem_trainer *tr, jem__batch *b, jem_stats *s) {
    jem_net *net = tr->net;
    jem_ctx *ctx = net->ctx;
    const float *before = NULL;
    JEM__ZEROED(jem__terms, t);
    jem__prepare_update(tr, b);
    jem_tensor *loss = jem__train_loss(tr, b, &t, s);
    if (tr->has_buffers && tr->desc.sam > 0) before = jem__keep_params(net);
    jem_keep(t.loss.logits);
    jem_zero_grad(net);
    jem_status status = ctx->status;
    if (loss) status = jem_backward(loss);
    if (status == JEM_OK) status = jem__update_stats(tr, loss, &t, b->labels, s);
    else if (ctx->ranks > 1 && !tr->awaits_chains) jem__average_ranks(tr, s);
    if (status == JEM_OK && tr->desc.sam > 0) status = jem__sam_gradient(tr, loss, before);
    if (status == JEM_OK && tr->desc.max_rollbacks) status = jem__guard_memory(tr);
    if (status == JEM_OK) status = jem_optim_step(tr->optim, s->lr, &s->grad_norm);
    if (status == JEM_OK) jem__count(&tr->updates);
    return status;
}

jem_stats jem_train_step_semi(jem_trainer *tr, const float *x, const int *labels, int n,
                              const float *x_unlabelled, int n_unlabelled) {
    JEM__ZEROED(jem_stats, s);
    s.status = JEM_BAD_ARGUMENT;
    s.reason = "";
    if (!tr) return s;
    jem_ctx *ctx = tr->net->ctx;
    s.rollbacks = tr->guard.rollbacks;
    jem__batch b = { x, x, labels, labels, n, n, 0 };
    s.update = tr->updates;
    if (!jem__batch_ready(tr, &b, x_unlabelled, n_unlabelled)) {
        s.status = ctx->status;
        return s;
    }
    s.lr = jem_learning_rate(&tr->desc.schedule, tr->desc.lr, tr->updates);
    s.lr *= tr->guard.now.lr_factor;
    jem_optim_use_average(tr->optim, 0);
    jem__guard_after_rollback(tr);
    const jem_mark mark = jem_begin(ctx);
    const float *kept = NULL;                      /* running statistics, and act norm's parameters
                                                      before the first update sets them; restored
                                                      after a failure */
    if (tr->has_buffers) kept = jem__keep_params(tr->net);
    const float noise_lo = tr->net->noise_lo;      /* the first update sets these, too */
    const float noise_hi = tr->net->noise_hi;
    const float mean = tr->net->mean;
    b.x = jem__in_units(tr->net, b.x, b.n);
    b.x_data = jem__in_units(tr->net, b.x_data, b.n_data);
    s.status = ctx->status;
    if (s.status == JEM_OK) s.status = jem__make_update(tr, &b, &s);
    if (s.status != JEM_OK) jem__restore_params(tr->net, kept, !tr->updates);
    if (!tr->updates) {
        tr->net->noise_lo = noise_lo;
        tr->net->noise_hi = noise_hi;
        tr->net->mean = mean;
    }
    if (s.status == JEM_OK) jem__store_walk(tr);
    ctx->rank = 0;
    ctx->ranks = 1;
    jem__guard_watch(tr, &b, &s);
    jem_end(ctx, mark);
    return s;
}

jem_stats jem_train_step(jem_trainer *tr, const float *x, const int *labels, int n) {
    return jem_train_step_semi(tr, x, labels, n, NULL, 0);
}

/* ==== >>familiar: calibration, familiarity, out-of-distribution scores ======================== */

#define JEM__EVAL_BATCH 256
/* Returns the size of the batch that begins at image i of n. */
static int jem__batch_from(int i, int n) {
    return jem__min(n - i, JEM__EVAL_BATCH);
}
#define JEM__QUANTILES 65
static const char *const jem__familiar_key = "jem.familiar";  /* quantiles of log p(x), ascending */
static const char *const jem__usual_key = "jem.usual";             /* see jem__usual_model */
static const char *const jem__statistics_key = "jem.statistics";   /* see jem__calibration */
static const char *const jem__temperature_key = "jem.temperature";

/* ---- lists of numbers as texts --------------------------------------------------------------- */

/* Returns 1 if q[n] is in ascending order, without a NaN. */
static int jem__is_sorted(const float *q, int n) {
    for (int i = 1; i < n; i++) {
        if (!(q[i - 1] <= q[i])) return 0;
    }
    return 1;
}

/* Rounds to five significant digits, so that a list of thousands of numbers stays short. */
static float jem__shorten(float x) {
    double unit = 1;
    const double size = fabs((double)x);
    if (!(size > 1e-30)) return 0;
    while (size / unit >= 1e5) unit *= 10;
    while (size / unit < 1e4 && unit > 1e-30) unit /= 10;
    const double digits = floor((double)x / unit + 0.5);
    if (unit >= 1) return (float)(digits * unit);
    return (float)(digits / floor(1 / unit + 0.5));
}

static int jem__compare_floats(const void *a, const void *b) {
    const float x = *(const float *)a;
    const float y = *(const float *)b;
    return (x > y) - (x < y);
}

/* Returns the fraction of calibration images whose score is not higher, linear between quantiles;
   -1 without quantiles. Many can have the same score, such as those of a machine that is off. */
static float jem__familiarity(const float *q, int n, float score) {
    if (n < 2) return -1;
    int i = 0;
    while (i < n && q[i] <= score) i++;
    if (i == 0) return 0;
    if (i == n) return 1;
    const float part = (score - q[i - 1]) / (q[i] - q[i - 1]);
    return ((float)(i - 1) + part) / (float)(n - 1);
}

/* ---- logits ---------------------------------------------------------------------------------- */

/* Statistics of the logits of an image. */
typedef struct jem__logit_stats {
    int label;                                     /* of the highest logit */
    float logp;                                    /* log p(x) */
    float mean;                                    /* mean logit */
    float log_odds;                                /* of the label, at temperature 1 */
    float p;                                       /* p(label|x), at the network's temperature */
    int fold;                                      /* of a calibration's cross-validation */
} jem__logit_stats;

/* Returns the temperature in a text, 1 without a text, 0 if the text is damaged. */
static float jem__temperature_parse(const char *text) {
    float t = 1;
    if (text && (jem__numbers_parse(text, &t, 1) != 1 || !(t >= 0.0099f && t <= 101))) return 0;
    return t;
}
static float jem__temperature_of(const jem_net *net) {
    const float t = jem__temperature_parse(jem_net_meta(net, jem__temperature_key));
    return t > 0 ? t : 1;
}

/* Computes label, probability, mean logit and log odds from the logits of an image. */
static jem__logit_stats jem__logit_stats_of(const float *f, int classes, float temperature) {
    JEM__ZEROED(jem__logit_stats, s);
    double sum = 0;
    double others = 0;
    double cooled = 0;
    int next = -1;                                 /* the second highest */
    for (int c = 0; c < classes; c++) {
        sum += (double)f[c];
        if (f[c] > f[s.label]) s.label = c;
    }
    for (int c = 0; c < classes; c++) {
        if (c != s.label && (next < 0 || f[c] > f[next])) next = c;
    }
    for (int c = 0; c < classes; c++) {
        if (c == s.label) continue;
        others += exp((double)f[c] - (double)f[next]);
        cooled += exp(((double)f[c] - (double)f[s.label]) / (double)temperature);
    }
    s.mean = (float)(sum / classes);
    s.p = (float)(1 / (1 + cooled));
    s.log_odds = 1e18f;                            /* of a single class */
    if (next >= 0) s.log_odds = (float)((double)f[s.label] - (double)f[next] - log(others));
    return s;
}

/* Computes logits f[n][classes] of n images and their statistics stats[n]; either may be NULL. */
static jem_status jem__compute_logits(jem_net *net, const char *what, const float *x, int n,
                                      float *f, jem__logit_stats *stats) {
    jem_ctx *ctx = net->ctx;
    const ptrdiff_t size = jem__image_size(net);
    const ptrdiff_t k = net->classes;
    if (n == 0) return ctx->status;
    if (!x || n < 0 || (!f && !stats))
        return jem__bad_arrays(ctx, what, n, "x", x, "f", f ? (const void *)f : stats);
    if (jem__images_check(net, what, x, n) != JEM_OK) return ctx->status;
    const float temperature = jem__temperature_of(net);
    int m = 0;
    for (int i = 0; i < n && ctx->status == JEM_OK; i += m) {
        m = jem__batch_from(i, n);
        m -= jem__excess(m);                       /* they form the next batch */
        const jem_mark mark = jem_begin(ctx);
        float *rows = f ? f + i * k : jem__push_floats(ctx, m * k);
        float *p = jem__push_floats(ctx, m);
        jem_tensor *logits = jem_forward(net, jem__images_from_data(net, x + i * size, m), 0);
        jem_tensor *logp = jem__logp(net, logits);
        jem_keep(logits);                          /* or a network of many classes runs twice */
        if (rows && p && jem_read(logits, rows) == JEM_OK && jem_read(logp, p) == JEM_OK) {
            for (int j = 0; stats && j < m; j++) {
                stats[i + j] = jem__logit_stats_of(rows + j * k, net->classes, temperature);
                stats[i + j].logp = p[j];
            }
        }
        if (ctx->status == JEM_OK && !(jem__all_finite(rows, m * k) && jem__all_finite(p, m)))
            jem__fail(ctx, JEM_DIVERGED, "%s: the network's logits or log p(x) are not finite",
                      what);
        jem_end(ctx, mark);
    }
    return ctx->status;
}

/* ---- log p(x) and the mean logit: JEM_OOD_USUAL ---------------------------------------------- */

/* Model of (log p(x), mean logit): the means m[y][2] by predicted label y, and the Cholesky factor
   L = (l[0] 0; l[1] l[2]) of the covariance S = L L' within labels. An image that deviates from the
   means of its label by (a,b) has the Mahalanobis distance d, d^2 = (a,b) S^-1 (a,b)' (of a layer's
   features: Lee et al. 2018); q contains quantiles of -d over the calibration images. The mean
   logit detects images that log p(x) misses: their highest logit may be as high as that of familiar
   images, but their other logits are rarely as low. l, q and m point into one array. */
typedef struct jem__usual_model { float *l, *q, *m; } jem__usual_model;

/* Returns -d of an image. */
static float jem__usual_score(const jem__usual_model *u, jem__logit_stats s) {
    const float *m = u->m + 2 * (ptrdiff_t)s.label;
    const float a = (s.logp - m[0]) / u->l[0];
    const float b = jem__fmaf(-u->l[1], a, s.mean - m[1]) / u->l[2];
    return -sqrtf(jem__fmaf(a, a, b * b));
}
/* Returns the count of numbers of a jem__usual_model: l[3], q[JEM__QUANTILES], m[classes][2]. */
static int jem__usual_size(const jem_net *net) { return 3 + JEM__QUANTILES + 2 * net->classes; }
static jem__usual_model jem__usual_at(float *all) {
    const jem__usual_model u = { all, all + 3, all + 3 + JEM__QUANTILES };
    return u;
}

/* Reads a text into all[jem__usual_size]; returns 0 if it is damaged. */
static int jem__usual_parse(const jem_net *net, const char *text, float *all) {
    const int n = jem__usual_size(net);
    const jem__usual_model u = jem__usual_at(all);
    return jem__numbers_parse(text, all, n) == n && jem__is_sorted(u.q, JEM__QUANTILES) &&
           u.l[0] > 1e-6f && u.l[2] > 1e-6f;
}
/* Reads the network's model onto the tape; returns 0 if it has no valid one. */
static int jem__usual_read(const jem_net *net, jem__usual_model *u) {
    const char *text = jem_net_meta(net, jem__usual_key);
    float *all = text ? jem__push_floats(net->ctx, jem__usual_size(net)) : NULL;
    if (!all || !jem__usual_parse(net, text, all)) return 0;
    *u = jem__usual_at(all);
    return 1;
}
/* Reads two or more ascending quantiles; returns their count, 0 if the text is damaged. */
static int jem__familiar_parse(const char *text, float q[JEM__QUANTILES]) {
    const int n = jem__numbers_parse(text, q, JEM__QUANTILES);
    if (n > 1 && jem__is_sorted(q, n)) return n;
    return 0;
}

/* Sorts x and writes JEM__QUANTILES evenly spaced quantiles to q. */
static void jem__quantiles(float *x, int n, float *q) {
    qsort(x, (size_t)n, sizeof *x, jem__compare_floats);
    for (int i = 0; i < JEM__QUANTILES; i++)
        q[i] = x[(int)((double)i * (n - 1) / (JEM__QUANTILES - 1) + 0.5)];
}

/* Fits means by label and the covariance within labels. The mean of a label is shrunk towards that
   of all images, as if the label had four more images with that mean. sums: scratch, [classes][3]:
   of log p(x) and of the mean logit, and the count of images. */
static void jem__usual_fit(jem__usual_model *u, int classes, const jem__logit_stats *a, int n,
                           double *sums) {
    double all[2] = { 0, 0 };
    double s[3] = { 0, 0, 0 };
    for (int i = 0; i < n; i++) {
        all[0] += (double)a[i].logp / n;
        all[1] += (double)a[i].mean / n;
    }
    for (int c = 0; c < classes; c++) {
        sums[3 * c] = 4 * all[0];
        sums[3 * c + 1] = 4 * all[1];
        sums[3 * c + 2] = 4;
    }
    for (int i = 0; i < n; i++) {
        double *sum = sums + 3 * a[i].label;
        sum[0] += (double)a[i].logp;
        sum[1] += (double)a[i].mean;
        sum[2]++;
    }
    for (int c = 0; c < classes; c++)
        for (int k = 0; k < 2; k++)
            u->m[2 * c + k] = (float)(sums[3 * c + k] / sums[3 * c + 2]);
    for (int i = 0; i < n; i++) {
        const double d = (double)a[i].logp - (double)u->m[2 * a[i].label];
        const double e = (double)a[i].mean - (double)u->m[2 * a[i].label + 1];
        s[0] += d * d / n;
        s[1] += d * e / n;
        s[2] += e * e / n;
    }
    const double l = sqrt(fma(s[0], 1.001, 1e-6)); /* never singular */
    const double down = s[1] / l;
    u->l[0] = (float)l;
    u->l[1] = (float)down;
    u->l[2] = (float)sqrt(fmax(fma(-down, down, s[2] * 1.001), 0) + 1e-6);
}

/* Writes the texts of JEM_OOD_USUAL and of the quantiles of log p(x) to `list`. */
static jem_status jem__usual_calibrate(jem_net *net, const jem__logit_stats *a, int n,
                                       jem__meta **list) {
    jem_ctx *ctx = net->ctx;
    const int numbers = jem__usual_size(net);
    float *v = jem__push_floats(ctx, n);
    float *all = jem__push_floats(ctx, numbers);
    double *sums = (double *)jem__push(ctx, 3 * (size_t)net->classes * sizeof *sums);
    float q[JEM__QUANTILES];
    if (!v || !all || !sums) return JEM_NO_MEMORY;
    jem__usual_model u = jem__usual_at(all);
    for (int i = 0; i < n; i++) v[i] = a[i].logp;
    jem__quantiles(v, n, q);
    jem__usual_fit(&u, net->classes, a, n, sums);
    for (int i = 0; i < n; i++) v[i] = jem__usual_score(&u, a[i]);
    jem__quantiles(v, n, u.q);
    jem_status s = jem__numbers_write(net, list, jem__familiar_key, q, JEM__QUANTILES);
    if (s == JEM_OK) s = jem__numbers_write(net, list, jem__usual_key, all, numbers);
    return s;
}

/* ---- contents of a calibration --------------------------------------------------------------- */
/* An image is described by four vectors, the parts of a calibration:

   SLOPES    the logits; log p(x); the details of the image and of its slope g = d log p(x)/dx; for
             each noise level sigma, at x~ = x + sigma z (z: normal noise), the details of the
             denoiser's error, sigma g + z, and of sigma g; log p(x~). At noisy data the slope
             should be -z/sigma, so the error is small for images like the training images
             (multiscale score matching: Mahmood, Oliva & Styner 2021). z is the same for every
             image, so an image always gets the same answer. For a vector, log p(y|x) replaces the
             logits, and the details of the image are omitted.
   FEATURES  the means over pixels of the last linear layer's inputs; the numbers of SLOPES again,
             without the layout. Empty if the network defines no features.
   IMAGE     the details of the image. Of a vector: its numbers, or the logarithm of their variance
             if there are more than JEM__MOST_VALUES.
   SHADES    the image as a whole: the shares of five shades, from the darkest to the brightest, and
             of flat pixels; the direction of its edges; the mean and the evenness of its border;
             its colourfulness. Empty for a vector.

   Details are the log energies of a Haar pyramid's levels. SLOPES ends with the layout of an image:
   its means over 4 x 4 blocks; its correlations with its mirror images; the directions of its
   edges. A part's distribution gives an image a score (jem__part_raw), the score becomes a p-value
   (jem__part_surprise), and the p-values are combined (jem__join).

   The first number of a calibration is JEM__FORM times the index of its form, plus its gradients;
   the second is its count of features. */

enum {
    JEM__MOST_RATED = 32768, JEM__MOST_FEATURES = 128,
    JEM__MOST_LOGITS = 32,                         /* classes; with more, SLOPES has no logits */
    JEM__MOST_VALUES = 32,                         /* of a vector; with more, IMAGE has no values */
    JEM__MOST_SLOPES = 3,                          /* gradients */
    JEM__MOST_DIMS = 256,                          /* of a part */
    JEM__LEVELS = 3,                               /* of a pyramid */
    JEM__TONES = 5, JEM__SHADE_DIMS = JEM__TONES + 6,
    JEM__BLOCKS = 4,                               /* per side of a layout */
    JEM__PLACES = JEM__BLOCKS * JEM__BLOCKS, JEM__MIRRORS = 3,
    JEM__LAYOUT = JEM__PLACES + JEM__MIRRORS + 4,  /* and 4 of the edges' directions */
    JEM__FOLDS = 10,                               /* of the cross-validation */
    JEM__BLENDS = 8,                               /* Gaussians of a mixture */
    JEM__SHRUNK = 50,                              /* weight of the shared covariance, in images */
    JEM__TAIL = 14,                                /* index of the quantile where the tail begins,
                                                      (14/64)^2 */
    JEM__HEAD = 2,                                 /* numbers that determine how many follow */
    JEM__FORM = 10, JEM__FORMS = 4, JEM__NEWEST = JEM__FORMS - 1
};
#define JEM__FIXED 1e4
enum { JEM__SLOPES = 0, JEM__FEATURES, JEM__IMAGE, JEM__SHADES, JEM__PARTS };  /* as in jem_ood */

/* Contents of the calibrations of a version. */
typedef struct jem__calibration_form {
    int parts;
    int range;                                     /* count of numbers: 2, the darkest and the
                                                      brightest value, or 0 */
    int relative;                                  /* 1: FEATURES has a number `relative` */
    int layout, shades;                            /* for a grey image: counts of numbers of the
                                                      layout, which ends SLOPES, and of SHADES */
    int rim;                                       /* 1: SHADES contains jem__measure_rim */
    int blends;                                    /* Gaussians of SHADES; 0: one per class */
    double least_colour;                           /* a colourfulness too small to matter */
    double weight[JEM__PARTS];                     /* of an image */
} jem__calibration_form;
static const jem__calibration_form jem__calibration_forms[JEM__FORMS] = {
    /* parts, range, relative, layout, shades, rim, blends, least_colour, weight */
    { 3, 0, 0, 0, 0, 0, 0, 0, { 1, 1, 0.5, 0 } },
    { 4, 2, 1, JEM__PLACES, JEM__TONES + 4, 0, 0, 0, { 1, 1.5, 0.5, 0.5 } },
    { 4, 2, 1, JEM__LAYOUT, JEM__TONES + 4, 0, JEM__BLENDS, 1e-4, { 1, 1.5, 0.5, 0.5 } },
    { 4, 2, 1, JEM__LAYOUT, JEM__TONES + 5, 1, JEM__BLENDS, 1e-6, { 1, 1.5, 0.5, 0.5 } }
};

/* Means by class, with one covariance or one per class: deviations from the mean in units of
   `spread` have the correlations L L'. L is stored in whole units of 1/JEM__FIXED, which keeps the
   text short. Of a mixture, the classes are its Gaussians. */
typedef struct jem__gauss {
    int dims, classes, roots;                      /* roots: 1 or `classes` */
    float *log_weight;                             /* NULL, or of a mixture, [classes]: log of the
                                                      weight over the determinant of L */
    float *mean;                                   /* [classes][dims] */
    float *spread;                                 /* [dims] */
    float *root;                                   /* [roots]: lower triangles of L, by rows, in
                                                      1/JEM__FIXED */
    const signed char *side;                       /* NULL, or for each number from index `sided`
                                                      on: 1 if only larger ones are strange, -1 if
                                                      only smaller ones are, else 0 */
    int sided;
    const float *error;                            /* NULL, or for each number from index `inexact`
                                                      on: standard deviation of its error */
    int inexact;
} jem__gauss;

/* One part of a calibration: its fitted distribution, and how scores become p-values. */
typedef struct jem__calibrated_part {
    jem__gauss own, all;                           /* all: of FEATURES, for any label; without dims
                                                      in other parts, and for a single class */
    int mixed;                                     /* 1 if `own` is a mixture */
    int pooled;                                    /* 1: all labels have the same shift and scale */
    int shifts;                                    /* 1: `shift` is the mean score (relative
                                                      distances, log densities); 0: it is 0
                                                      (distances) */
    float *relative;                               /* NULL without `all`, or in older forms; else
                                                      points to 1, or to 0 if all calibration images
                                                      had one label: then `all` is not used */
    int labels;
    float *shift, *scale;                          /* [labels]: of the score */
    float *q;                                      /* [JEM__QUANTILES] of the standardised score */
    float *tail;                                   /* mean excess beyond q[JEM__TAIL] */
} jem__calibrated_part;

/* A calibration: pointers into one array of floats, which is saved as a text. */
typedef struct jem__calibration {
    const jem__calibration_form *form;
    int gradients, features, size;
    float *range;                                  /* darkest and brightest value, or NULL */
    double weight[JEM__PARTS];
    jem__calibrated_part part[JEM__PARTS];
    float *q;                                      /* quantiles of the joint score */
} jem__calibration;

/* Returns the count of levels of a Haar pyramid; 0 for vectors. */
static int jem__levels(const jem_net *net) {
    const int side = net->height < net->width ? net->height : net->width;
    int levels = 0;
    while (levels < JEM__LEVELS && side >> levels >= 2) levels++;
    return levels;
}
static int jem__is_vector(const jem_net *net) { return net->height == 1 && net->width == 1; }

/* Returns the count of numbers of the IMAGE part. */
static int jem__image_dims(const jem_net *net) {
    if (!jem__is_vector(net)) return 2 * jem__levels(net) + 1 + (net->channels > 1);
    if (net->channels <= JEM__MOST_VALUES) return net->channels;
    return 1;
}
static int jem__logit_dims(const jem_net *net) {
    if (net->classes > JEM__MOST_LOGITS) return 2; /* mean logit and log odds take their place */
    return net->classes;
}
/* Returns the count of numbers that SLOPES and FEATURES share. */
static int jem__slope_dims(const jem_net *net, int gradients) {
    const int bands = jem__levels(net) + 1;
    int dims = jem__logit_dims(net) + 1;
    if (!jem__is_vector(net)) dims += jem__image_dims(net);
    if (gradients > 0) dims += bands;
    if (gradients > 1) dims += (gradients - 1) * (2 * bands + 1);
    return dims;
}

/* Returns the place of the next n floats in `all` (NULL if `all` is), and counts them in *used. */
static float *jem__calibration_take(float *all, int *used, int n) {
    float *at = all ? all + *used : NULL;
    *used += n;
    return at;
}
/* Returns the size of the lower triangle of a matrix: row a has a + 1 numbers. */
static int jem__triangle(int dims) { return dims * (dims + 1) / 2; }
/* Returns the index of a triangle's number on the diagonal in row a. */
static int jem__diagonal(int a) { return jem__triangle(a) + a; }
static void jem__gauss_at(jem__gauss *g, int dims, int classes, int roots, float *all, int *used) {
    g->dims = dims;
    g->classes = classes;
    g->roots = roots;
    g->mean = jem__calibration_take(all, used, classes * dims);
    g->spread = jem__calibration_take(all, used, dims);
    g->root = jem__calibration_take(all, used, roots * jem__triangle(dims));
}

/* jem__gauss.side of a vector's slopes part after the logits: log p(x), and the numbers that up to
   JEM__MOST_SLOPES gradients add. At the centre of the data, log p(x) is high and the slope is 0:
   that is not strange. */
static const signed char jem__vector_sides[8] = { -1, 1, 1, 1, -1, 1, 1, -1 };

/* Standard deviations of measurement errors, for pixels scaled to the range 0 to 1. Scans have a
   cleaner background than samples or compressed files. So that this alone does not make an image
   strange, the variances of shades and layout include those of these errors. */
static const float jem__shades_error[JEM__SHADE_DIMS] = {
    0.05f, 0.05f, 0.05f, 0.05f, 0.05f, 0.08f, 0.3f, 0.025f, 0.025f, 1, 0.7f
};
static const float jem__layout_error[JEM__LAYOUT] = {
    0.1f, 0.1f, 0.1f, 0.1f, 0.1f, 0.1f, 0.1f, 0.1f, 0.1f, 0.1f, 0.1f, 0.1f, 0.1f, 0.1f, 0.1f, 0.1f,
    0.05f, 0.05f, 0.05f, 0.05f, 0.05f, 0.05f, 0.05f
};

/* Lays out part i of a zeroed calibration in `all`. All labels share one covariance; in SLOPES (and
   SHADES of older forms) of at most JEM__MOST_LOGITS classes, each has its own. */
static void jem__part_at(const jem_net *net, const jem__calibration_form *form, int i, int dims,
                         jem__calibrated_part *p, float *all, int *used) {
    const int each = net->classes <= JEM__MOST_LOGITS;
    int classes = net->classes;
    int roots = 1;
    if (each && (i == JEM__SLOPES || i == JEM__SHADES)) roots = net->classes;
    p->mixed = i == JEM__SHADES && dims > 0 && form->blends > 0;
    if (p->mixed) {
        classes = form->blends;
        roots = form->blends;
        p->own.log_weight = jem__calibration_take(all, used, classes);
    }
    jem__gauss_at(&p->own, dims, classes, roots, all, used);
    if (i == JEM__FEATURES && net->classes > 1) {
        jem__gauss_at(&p->all, dims, 1, 1, all, used);
        if (form->relative) p->relative = jem__calibration_take(all, used, 1);
    }
    p->pooled = p->mixed;
    p->shifts = p->mixed || p->all.dims > 0;
    p->labels = net->classes;
    p->shift = jem__calibration_take(all, used, net->classes);
    p->scale = jem__calibration_take(all, used, net->classes);
    p->q = jem__calibration_take(all, used, JEM__QUANTILES);
    p->tail = jem__calibration_take(all, used, 1);
}

/* Sets the parts' errors, sides and weights, which are not in the text. */
static void jem__calibration_constants(const jem_net *net, jem__calibration *k, int shared) {
    jem__calibrated_part *slopes = k->part + JEM__SLOPES;
    jem__calibrated_part *features = k->part + JEM__FEATURES;
    jem__calibrated_part *image = k->part + JEM__IMAGE;
    memcpy(k->weight, k->form->weight, sizeof k->weight);
    if (!jem__is_vector(net)) {
        slopes->own.error = jem__layout_error;
        slopes->own.inexact = shared;
        k->part[JEM__SHADES].own.error = jem__shades_error;
        return;
    }
    k->weight[JEM__FEATURES] = 1;
    k->weight[JEM__IMAGE] = 0.25;
    slopes->own.side = jem__vector_sides;
    slopes->own.sided = jem__logit_dims(net);
    features->own.side = jem__vector_sides;
    features->own.sided = k->features + jem__logit_dims(net);
    features->all.side = jem__vector_sides;
    features->all.sided = k->features + jem__logit_dims(net);
    if (net->channels > JEM__MOST_VALUES) image->own.side = jem__vector_sides + 1;
}

/* Lays out a calibration in `all`, which may be NULL. first: its first number. */
static jem__calibration jem__calibration_at(const jem_net *net, int first, int features,
                                            float *all) {
    JEM__ZEROED(jem__calibration, k);
    k.form = jem__calibration_forms + first / JEM__FORM;
    k.gradients = first % JEM__FORM;
    k.features = features;
    k.size = JEM__HEAD;
    const int shared = jem__slope_dims(net, k.gradients);
    int dims[JEM__PARTS] = { shared, 0, jem__image_dims(net), 0 };
    if (features) dims[JEM__FEATURES] = features + shared;
    if (!jem__is_vector(net)) {
        dims[JEM__SLOPES] += k.form->layout;
        dims[JEM__SHADES] = k.form->shades;
        if (k.form->blends > 0) dims[JEM__SHADES] += net->channels > 1;
    }
    if (k.form->range > 0) k.range = jem__calibration_take(all, &k.size, k.form->range);
    for (int i = 0; i < k.form->parts; i++)
        jem__part_at(net, k.form, i, dims[i], k.part + i, all, &k.size);
    k.q = jem__calibration_take(all, &k.size, JEM__QUANTILES);
    jem__calibration_constants(net, &k, shared);
    return k;
}

/* Reads the first numbers of a text, which determine how many follow; returns 0 if they are
   impossible. */
static int jem__calibration_head(const jem_net *net, const char *text, int *first, int *features) {
    double v[JEM__HEAD];
    if (net->classes > JEM__MOST_RATED) return 0;
    const double most[JEM__HEAD] = { JEM__FORM * JEM__NEWEST + JEM__MOST_SLOPES,
                                     JEM__MOST_FEATURES };
    for (int i = 0; i < JEM__HEAD; i++) {
        const char *end = text;
        if (text) end = jem__scan_number(text, &v[i]);
        if (end == text || v[i] != floor(v[i]) || v[i] < 0 || v[i] > most[i]) return 0;
        text = end + (*end == ' ');
    }
    *first = (int)v[0];
    *features = (int)v[1];
    const int gradients = *first % JEM__FORM;
    return gradients <= JEM__MOST_SLOPES && (gradients < 2 || net->noise_lo > 0);
}
static int jem__gauss_good(const jem__gauss *g) {
    int good = 1;
    for (int i = 0; i < g->dims; i++) {
        good &= g->spread[i] > 1e-9f;
        for (int c = 0; c < g->roots; c++)
            good &= g->root[c * jem__triangle(g->dims) + jem__diagonal(i)] >= 1;
    }
    return good;
}
/* Reads a text into *all, which the caller frees. Returns 0 if the text is damaged or of another
   network, -1 if memory runs out. */
static int jem__calibration_parse(const jem_net *net, const char *text, float **all) {
    int first, features;
    *all = NULL;
    if (!jem__calibration_head(net, text, &first, &features)) return 0;
    const int size = jem__calibration_at(net, first, features, NULL).size;
    *all = jem__alloc_floats(net->ctx, size);
    if (!*all) return -1;
    if (jem__numbers_parse(text, *all, size) < size) return 0;
    const jem__calibration k = jem__calibration_at(net, first, features, *all);
    int good = jem__is_sorted(k.q, JEM__QUANTILES);
    if (k.range) good &= k.range[0] < k.range[1];
    for (int i = 0; i < k.form->parts; i++) {
        const jem__calibrated_part *p = k.part + i;
        good &= jem__gauss_good(&p->own) && jem__gauss_good(&p->all);
        good &= jem__is_sorted(p->q, JEM__QUANTILES) && *p->tail > 1e-9f;
        for (int c = 0; c < net->classes; c++) good &= p->scale[c] > 1e-9f;
    }
    return good;
}
/* Finds the network's calibration, parsed at its first use. Returns 0 if there is no valid one, or
   if memory runs out. */
static int jem__calibration_of(jem_net *net, jem__calibration *k) {
    const char *text = jem_net_meta(net, jem__statistics_key);
    if (!text) return 0;
    if (!net->calibration && jem__calibration_parse(net, text, &net->calibration) <= 0) {
        jem__free(net->ctx, net->calibration);
        net->calibration = NULL;
        return 0;
    }
    float *all = net->calibration;
    *k = jem__calibration_at(net, (int)all[0], (int)all[1], all);
    return 1;
}

/* ---- how images look ------------------------------------------------------------------------- */

/* Replaces a plane by its pyramid's next level. Adds the squares and lengths of the details. */
static void jem__haar(float *a, int h, int w, double *square, double *length) {
    for (int i = 0; i < h / 2; i++) {
        for (int j = 0; j < w / 2; j++) {
            const float *at = a + 2 * i * w + 2 * j;
            const float p = at[0];
            const float q = at[1];
            const float r = at[w];
            const float s = at[w + 1];
            const double d = (double)((p - q + r - s) / 2);
            const double e = (double)((p + q - r - s) / 2);
            const double f = (double)((p - q - r + s) / 2);
            const double sum = d * d + (e * e + f * f);      /* exact: see jem__fmaf */
            *square += sum;
            *length += sqrt(sum);
            a[i * (w / 2) + j] = (p + q + r + s) / 2;
        }
    }
}

/* Writes log energies of planes a[channels][h][w], which it overwrites: those of each level's
   details, fine to coarse (if `lengths` is 1, each followed by their log mean length), then that of
   the remainder. Returns the count of numbers. least: an energy too small to matter. */
static int jem__details(const jem_net *net, float *a, double least, int lengths, float *v) {
    int h = net->height;
    int w = net->width;
    int n = 0;
    const ptrdiff_t plane = (ptrdiff_t)h * w;
    const int levels = jem__levels(net);
    for (int level = 0; level < levels; level++) {
        double square = 0;
        double length = 0;
        const double count = (double)net->channels * (h / 2) * (w / 2);
        for (int c = 0; c < net->channels; c++) jem__haar(a + c * plane, h, w, &square, &length);
        v[n++] = (float)log(square / count + least);
        if (lengths) v[n++] = (float)log(length / count + sqrt(least));
        h /= 2;
        w /= 2;
    }
    double square = 0;
    for (int c = 0; c < net->channels; c++) {
        for (int i = 0; i < h * w; i++) {
            const double value = (double)a[c * plane + i];
            square += value * value;               /* exact: see jem__fmaf */
        }
    }
    v[n++] = (float)log(square / ((double)net->channels * h * w) + least);
    return n;
}

/* Returns the mean square of the differences between the channels and their mean. */
static double jem__colour(const jem_net *net, const float *x) {
    const ptrdiff_t size = jem__image_size(net);
    const ptrdiff_t plane = (ptrdiff_t)net->height * net->width;
    double colour = 0;
    for (ptrdiff_t i = 0; i < plane; i++) {
        double grey = 0;
        for (int c = 0; c < net->channels; c++) grey += (double)x[c * plane + i];
        grey /= net->channels;
        for (int c = 0; c < net->channels; c++) {
            const float d = (float)((double)x[c * plane + i] - grey);
            colour += (double)d * (double)d;       /* exact: see jem__fmaf */
        }
    }
    return colour / (double)size;
}

/* Writes the image part of x. work: scratch, an image. */
static void jem__measure_image_part(const jem_net *net, const float *x, double colour, float *work,
                                    float *v) {
    const ptrdiff_t size = jem__image_size(net);
    if (jem__is_vector(net) && net->channels <= JEM__MOST_VALUES) {
        memcpy(v, x, (size_t)size * sizeof *v);
        return;
    }
    double mean = 0;
    for (ptrdiff_t i = 0; i < size; i++) mean += (double)x[i];
    for (ptrdiff_t i = 0; i < size; i++) work[i] = x[i] - (float)(mean / (double)size);
    if (net->channels > 1 && !jem__is_vector(net)) *v++ = (float)log(colour + 1e-3);
    jem__details(net, work, 1e-3, 1, v);
}

/* Divides a pixel of this shade, 0 to 1, between its two nearest tones by a smooth step, so that
   slight noise changes the counts of tones only slightly. */
static void jem__shades_add(double shade, double *tones) {
    const double place = fmin(fmax(shade, 0), 1) * (JEM__TONES - 1);
    int i = (int)place;
    if (i > JEM__TONES - 2) i = JEM__TONES - 2;
    const double t = (double)(float)(place - i);
    const float step = (float)(t * t * (3 - 2 * t));    /* rounded: the same with and without fma */
    tones[i] += 1 - (double)step;
    tones[i + 1] += (double)step;
}

/* Writes the correlations of shades u[h][w] with their mirror images: left and right, up and down,
   both. */
static void jem__measure_symmetry(const float *u, int h, int w, float *v) {
    const double pixels = (double)h * w;
    double mean = 0;
    double square = 0.01 * pixels;
    double mirrored[JEM__MIRRORS] = { 0, 0, 0 };
    for (int i = 0; i < h * w; i++) mean += (double)u[i];
    const float middle = (float)(mean / pixels);
    for (int i = 0; i < h; i++) {
        const float *row = u + (ptrdiff_t)i * w;
        const float *across = u + (ptrdiff_t)(h - 1 - i) * w;
        for (int j = 0; j < w; j++) {
            const double at = (double)(row[j] - middle);
            square += at * at;                     /* exact, as below: see jem__fmaf */
            mirrored[0] += at * (double)(row[w - 1 - j] - middle);
            mirrored[1] += at * (double)(across[j] - middle);
            mirrored[2] += at * (double)(across[w - 1 - j] - middle);
        }
    }
    for (int k = 0; k < JEM__MIRRORS; k++) v[k] = (float)(mirrored[k] / square);
}

/* Returns the border width of an image, in pixels. */
static int jem__rim(int h, int w) {
    const int side = w < h ? w : h;
    if (side < 28) return 1;
    return side / 14;
}

/* Returns the log variance of the border pixels, averaged over the channels; the range of pixels is
   scaled to 1. */
static float jem__measure_rim(const jem_net *net, const float *x, double range) {
    const int h = net->height;
    const int w = net->width;
    const int rim = jem__rim(h, w);
    double variance = 0;
    for (int c = 0; c < net->channels; c++) {
        const float *plane = x + (ptrdiff_t)c * h * w;
        double sum = 0;
        double square = 0;
        int border = 0;
        for (int i = 0; i < h * w; i++) {
            const int row = i / w;
            const int column = i % w;
            if (row >= rim && row < h - rim && column >= rim && column < w - rim) continue;
            const double value = (double)(plane[i] - plane[0]);      /* 0 if all are alike */
            sum += value;
            square += value * value;               /* exact: see jem__fmaf */
            border++;
        }
        const double mean = sum / border;
        variance += fmax(fma(-mean, mean, square / border), 0);
    }
    return (float)log(variance / (net->channels * range * range) + 1e-4);
}

/* Writes the first numbers of the shades part, of shades u[h][w], 0 to 1. Returns their count. */
static int jem__measure_shades(const float *u, int h, int w, float *v) {
    const float *first = v;
    const double soft = 1 / (2 * 0.075 * 0.075);   /* differences below .075 are nearly flat */
    double tones[JEM__TONES] = { 0 };
    double across = 0;
    double down = 0;
    double flat = 0;
    double sum = 0;
    double square = 0;
    const int rim = jem__rim(h, w);
    int border = 0;
    for (int i = 0; i < h; i++) {
        for (int j = 0; j < w; j++) {
            const float *at = u + (ptrdiff_t)i * w + j;
            const double shade = (double)*at;
            double a = 0;
            double b = 0;
            if (j + 1 < w) a = (double)(at[1] - *at);
            if (i + 1 < h) b = (double)(at[w] - *at);
            across += a * a;                       /* exact, as below: see jem__fmaf */
            down += b * b;
            const double steep = (double)(float)(soft * (a * a + b * b));
            flat += 1 / (1 + steep + steep * steep / 2);
            jem__shades_add(shade, tones);
            if (i >= rim && i < h - rim && j >= rim && j < w - rim) continue;
            sum += shade;
            square += shade * shade;
            border++;
        }
    }
    const double pixels = (double)h * w;
    const double mean = sum / border;
    for (int i = 0; i < JEM__TONES; i++) *v++ = (float)sqrt(tones[i] / pixels + 0.003);
    *v++ = (float)(flat / pixels);
    *v++ = (float)(log(across / pixels + 7.5e-4) - log(down / pixels + 7.5e-4));
    *v++ = (float)mean;
    *v++ = (float)sqrt(fmax(fma(-mean, mean, square / border), 0) + 0.0025);
    return (int)(v - first);
}

/* Writes the directions of the edges of shades u[h][w]: the means of cos and sin of twice and four
   times their angle, weighted by their squared steepness. */
static void jem__measure_directions(const float *u, int h, int w, float *v) {
    double all = 1e-3 * h * w;
    double sum[4] = { 0, 0, 0, 0 };
    for (int i = 0; i + 1 < h; i++) {
        for (int j = 0; j + 1 < w; j++) {
            const float *at = u + (ptrdiff_t)i * w + j;
            const double a = (double)(at[1] - *at);
            const double b = (double)(at[w] - *at);
            const double steep = a * a + b * b;    /* exact, as below: see jem__fmaf */
            const double cosine = (double)(float)(a * a - b * b);
            const double sine = (double)(float)(2 * a * b);
            if (steep == 0) continue;
            all += steep;
            sum[0] += cosine;
            sum[1] += sine;
            sum[2] += (cosine * cosine - sine * sine) / steep;
            sum[3] += 2 * cosine * sine / steep;
        }
    }
    for (int k = 0; k < 4; k++) v[k] = (float)(sum[k] / all);
}

/* Writes means of shades u[h][w] over JEM__BLOCKS x JEM__BLOCKS blocks. */
static void jem__measure_places(const float *u, int h, int w, float *v) {
    for (int a = 0; a < JEM__BLOCKS; a++) {
        for (int b = 0; b < JEM__BLOCKS; b++) {
            double sum = 0;
            int count = 0;
            for (int i = a * h / JEM__BLOCKS; i < (a + 1) * h / JEM__BLOCKS; i++) {
                for (int j = b * w / JEM__BLOCKS; j < (b + 1) * w / JEM__BLOCKS; j++) {
                    sum += (double)u[(ptrdiff_t)i * w + j];
                    count++;
                }
            }
            *v++ = (float)(sum / fmax(count, 1));
        }
    }
}

/* Converts an image to shades: means of its channels, 0 to 1 for range[0] to range[1]. */
static void jem__shades_of(const jem_net *net, const float *x, const float *range, float *u) {
    const ptrdiff_t plane = (ptrdiff_t)net->height * net->width;
    const float per = 1 / ((range[1] - range[0]) * (float)net->channels);
    for (ptrdiff_t i = 0; i < plane; i++) {
        float sum = 0;
        for (int c = 0; c < net->channels; c++) sum += x[c * plane + i] - range[0];
        u[i] = sum * per;
    }
}

/* Writes the features: means over pixels of f[channels][pixels]. Each channel c beyond the first
   JEM__MOST_FEATURES is added to number c % JEM__MOST_FEATURES, with a random sign. */
static void jem__measure_features(const float *f, int channels, ptrdiff_t pixels, float *v) {
    jem_rng rng = jem_rng_seed(41);
    for (int c = 0; c < channels; c++) {
        double sum = 0;
        for (ptrdiff_t i = 0; i < pixels; i++) sum += (double)f[c * pixels + i];
        sum /= (double)pixels;
        if (c < JEM__MOST_FEATURES) {
            v[c] = (float)sum;
            continue;
        }
        if (jem_rng_u32(&rng) & 1) sum = -sum;
        v[c % JEM__MOST_FEATURES] += (float)sum;
    }
}

/* Rows of the parts, [n][dims] each, and scratch memory. */
typedef struct jem__rows {
    const char *what;                              /* for messages */
    const jem__calibration_form *form;
    int gradients, features, shared, dims[JEM__PARTS];       /* shared: by SLOPES and FEATURES */
    float range[2];
    float *v[JEM__PARTS];
    float *z, *work;                               /* noise; scratch: an image each */
} jem__rows;

/* Creates rows for a calibration, of which only the form, the sizes and the range are used. */
static int jem__rows_create(jem_net *net, const char *what, int n, const jem__calibration *k,
                            jem__rows *r) {
    jem_ctx *ctx = net->ctx;
    memset(r, 0, sizeof *r);
    r->what = what;
    r->form = k->form;
    r->gradients = k->gradients;
    r->features = k->features;
    r->shared = jem__slope_dims(net, k->gradients);
    if (k->range) memcpy(r->range, k->range, sizeof r->range);
    int good = 1;
    for (int i = 0; i < JEM__PARTS; i++) {
        r->dims[i] = k->part[i].own.dims;
        r->v[i] = jem__push_images(ctx, n, r->dims[i]);
        good = good && r->v[i];
    }
    r->z = jem__push_floats(ctx, jem__image_size(net));
    r->work = jem__push_floats(ctx, jem__image_size(net));
    return good && r->z && r->work;
}
/* Returns the row of image i in a part. */
static float *jem__row(const jem__rows *r, int part, int i) {
    return r->v[part] + (ptrdiff_t)i * r->dims[part];
}
static jem__rows jem__rows_from(const jem__rows *r, int i) {
    jem__rows later = *r;
    for (int k = 0; k < JEM__PARTS; k++) later.v[k] = jem__row(r, k, i);
    return later;
}

/* Returns the count of features that the network defines, at most JEM__MOST_FEATURES, from a
   recording that is never run. */
static int jem__feature_count(jem_net *net) {
    const jem_mark mark = jem_begin(net->ctx);
    int count = 0;
    if (jem_forward(net, jem__images(net, NULL, 1), 0) && net->features) count = net->features->c;
    jem_end(net->ctx, mark);
    if (count > JEM__MOST_FEATURES) count = JEM__MOST_FEATURES;
    return count;
}

static void jem__log_probabilities(const float *f, int classes, float *to) {
    double most = (double)f[0];
    double sum = 0;
    for (int c = 1; c < classes; c++) most = fmax(most, (double)f[c]);
    for (int c = 0; c < classes; c++) sum += exp((double)f[c] - most);
    for (int c = 0; c < classes; c++) to[c] = (float)((double)f[c] - most - log(sum));
}

/* Writes the shades part and the layout of x, whose shades are r->work, as far as the calibration's
   form contains them. */
static void jem__measure_whole(const jem_net *net, const jem__rows *r, const float *x,
                               double colour, float *shades, float *layout) {
    const int h = net->height;
    const int w = net->width;
    const double range = (double)r->range[1] - (double)r->range[0];
    int at = jem__measure_shades(r->work, h, w, shades);
    if (r->form->rim) shades[at++] = jem__measure_rim(net, x, range);
    if (at < r->dims[JEM__SHADES])
        shades[at] = (float)log(colour / (range * range) + r->form->least_colour);
    jem__measure_places(r->work, h, w, layout);
    if (r->dims[JEM__SLOPES] < r->shared + JEM__LAYOUT) return;
    jem__measure_symmetry(r->work, h, w, layout + JEM__PLACES);
    jem__measure_directions(r->work, h, w, layout + JEM__PLACES + JEM__MIRRORS);
}

/* Fills the rows of image i, except slopes and features, from its logits f and their statistics.
   Returns the next column of the slopes part. */
static int jem__measure_one(jem_net *net, const jem__rows *r, int i, const float *x,
                            const float *f, const jem__logit_stats *stats) {
    float *to = jem__row(r, JEM__SLOPES, i);
    float *image = jem__row(r, JEM__IMAGE, i);
    int at = jem__logit_dims(net);
    if (net->classes > JEM__MOST_LOGITS) {
        to[0] = stats->mean;
        to[1] = stats->log_odds;
    } else if (jem__is_vector(net)) {              /* at the centre, all logits may be higher */
        jem__log_probabilities(f, at, to);
    } else {
        memcpy(to, f, (size_t)at * sizeof *to);
    }
    to[at++] = stats->logp;
    const double colour = jem__colour(net, x);
    jem__measure_image_part(net, x, colour, r->work, image);
    if (jem__is_vector(net)) return at;
    if (r->dims[JEM__SHADES] > 0) {
        jem__shades_of(net, x, r->range, r->work);
        jem__measure_whole(net, r, x, colour, jem__row(r, JEM__SHADES, i), to + r->shared);
    }
    memcpy(to + at, image, (size_t)r->dims[JEM__IMAGE] * sizeof *to);
    return at + r->dims[JEM__IMAGE];
}

/* Fills the rows of m images, without noise, in one pass: forward, and backward if a gradient is
   needed. Returns the next column of the slopes part. */
static int jem__measure_clean(jem_net *net, const jem__rows *r, const float *x, int m,
                              jem__logit_stats *stats) {
    jem_ctx *ctx = net->ctx;
    const ptrdiff_t size = jem__image_size(net);
    const int k = net->classes;
    const float temperature = jem__temperature_of(net);
    int at = 0;
    float *f = jem__push_floats(ctx, (ptrdiff_t)m * k);
    float *p = jem__push_floats(ctx, m);
    float *g = NULL;
    float *raw = NULL;
    jem_tensor *t = jem__images(net, x, m);
    jem_tensor *logits = jem_forward(net, t, 0);
    jem_tensor *features = net->features;
    jem_tensor *logp = jem__logp(net, logits);
    ptrdiff_t pixels = 0;
    ptrdiff_t floats = 0;
    if (logits && features && r->features) {
        pixels = (ptrdiff_t)features->h * features->w;
        floats = pixels * features->c;
        raw = jem__push_floats(ctx, m * floats);
        jem_keep(features);
    }
    jem_keep(logits);
    jem_keep(logp);
    if (r->gradients > 0) {
        g = jem__push_floats(ctx, m * size);
        jem_grad(logp, t);
        if (g) jem_read_grad(t, g);
    }
    if (f) jem_read(logits, f);
    if (p) jem_read(logp, p);
    if (raw) jem_read(features, raw);
    for (int i = 0; jem_ok(ctx) && i < m; i++) {
        stats[i] = jem__logit_stats_of(f + (ptrdiff_t)i * k, k, temperature);
        stats[i].logp = p[i];
        at = jem__measure_one(net, r, i, x + i * size, f + (ptrdiff_t)i * k, stats + i);
        float *to = jem__row(r, JEM__FEATURES, i);
        if (g) jem__details(net, g + i * size, 1e-12, 0, jem__row(r, JEM__SLOPES, i) + at);
        if (raw) jem__measure_features(raw + i * floats, features->c, pixels, to);
    }
    if (g) at += jem__levels(net) + 1;
    return at;
}

/* Adds noise to m images, and fills the slopes part from column `at` on. */
static void jem__measure_noisy(jem_net *net, const jem__rows *r, const float *x, int m,
                               float sigma, int at) {
    jem_ctx *ctx = net->ctx;
    const ptrdiff_t size = jem__image_size(net);
    float *noisy = jem__push_floats(ctx, m * size);
    float *g = jem__push_floats(ctx, m * size);
    float *p = jem__push_floats(ctx, m);
    if (!noisy || !g || !p) return;
    for (ptrdiff_t i = 0; i < m * size; i++) noisy[i] = jem__fmaf(sigma, r->z[i % size], x[i]);
    jem_tensor *t = jem__images(net, noisy, m);
    jem_tensor *logp = jem_logp(ctx, t, net);
    jem_keep(logp);
    jem_grad(logp, t);
    if (jem_read_grad(t, g) != JEM_OK || jem_read(logp, p) != JEM_OK) return;
    for (int i = 0; i < m; i++) {
        float *slope = g + i * size;
        float *to = jem__row(r, JEM__SLOPES, i) + at;
        for (ptrdiff_t k = 0; k < size; k++) {
            slope[k] *= sigma;
            r->work[k] = slope[k] + r->z[k];
        }
        to += jem__details(net, r->work, 1e-12, 0, to);
        to += jem__details(net, slope, 1e-12, 0, to);
        *to = p[i];
    }
}

/* Fills the rows of n images, and stats[n], the statistics of their logits. */
static jem_status jem__measure_images(jem_net *net, const jem__rows *all, const float *x, int n,
                                      jem__logit_stats *stats) {
    jem_ctx *ctx = net->ctx;
    const ptrdiff_t size = jem__image_size(net);
    const jem_rng seed = jem_rng_seed(39);
    if (jem__images_check(net, all->what, x, n) != JEM_OK) return ctx->status;
    const int features = all->features;
    if (features != 0 && jem__feature_count(net) != features && ctx->status == JEM_OK)
        jem__fail(ctx, JEM_BAD_ARGUMENT, "%s: the calibration has %d features, which the network "
                  "does not have", all->what, features);
    int m = 0;
    for (int i = 0; i < n && ctx->status == JEM_OK; i += m) {
        m = jem__batch_from(i, n);
        const jem__rows r = jem__rows_from(all, i);
        const jem_mark batch = jem_begin(ctx);
        const float *u = jem__in_units(net, x + i * size, m);
        if (!u) {
            jem_end(ctx, batch);
            break;
        }
        jem_mark mark = jem_begin(ctx);
        int at = jem__measure_clean(net, &r, u, m, stats + i);
        jem_end(ctx, mark);
        for (int level = 1; level < r.gradients && ctx->status == JEM_OK; level++) {
            const float sigma = level == 2 ? 4 * net->noise_lo : net->noise_lo;
            jem_rng rng = jem_rng_split(&seed, (uint64_t)level);
            jem_fill_normal(ctx, &rng, r.z, size, 0, 1);
            mark = jem_begin(ctx);
            jem__measure_noisy(net, &r, u, m, sigma, at);
            jem_end(ctx, mark);
            at += 2 * (jem__levels(net) + 1) + 1;
        }
        jem_end(ctx, batch);
        for (int j = 0; j < m && r.dims[JEM__FEATURES]; j++) {
            memcpy(jem__row(&r, JEM__FEATURES, j + 1) - r.shared, jem__row(&r, JEM__SLOPES, j),
                   (size_t)r.shared * sizeof(float));
        }
        int finite = 1;
        for (int k = 0; ctx->status == JEM_OK && k < JEM__PARTS; k++)
            finite = finite && jem__all_finite(r.v[k], (ptrdiff_t)m * r.dims[k]);
        if (!finite)
            jem__fail(ctx, JEM_DIVERGED, "%s: logits, log p(x) or slopes are not finite",
                      all->what);
    }
    return ctx->status;
}

/* ---- distances, p-values, reasons ------------------------------------------------------------ */

static double jem__deviation(const jem__gauss *g, const float *v, const float *mean, int i) {
    const double d = (double)v[i] - (double)mean[i];
    if (g->side && i >= g->sided && g->side[i - g->sided] * d < 0) return 0;
    return d;
}

/* Returns the squared distance of v from the mean of a class. */
static double jem__gauss_distance(const jem__gauss *g, const float *v, int label) {
    float w[JEM__MOST_DIMS];                       /* floats: exact products, see jem__fmaf */
    const float *mean = g->mean + (ptrdiff_t)label * g->dims;
    const float *row = g->root;
    if (g->roots > 1) row += (ptrdiff_t)label * jem__triangle(g->dims);
    double square = 0;
    for (int i = 0; i < g->dims; i++) {            /* L w = deviation / spread */
        double sum = jem__deviation(g, v, mean, i) / (double)g->spread[i] * JEM__FIXED;
        for (int j = 0; j < i; j++) sum -= (double)row[j] * (double)w[j];
        w[i] = (float)(sum / (double)row[i]);
        square += (double)w[i] * (double)w[i];
        row += i + 1;
    }
    return square;
}

/* Writes the weighted log densities of a mixture's Gaussians at v to `each`. Returns the log
   density of the mixture. */
static double jem__mixture_log(const jem__gauss *g, const float *v, double *each) {
    double most = -1e30;
    double sum = 0;
    for (int k = 0; k < g->classes; k++) {
        each[k] = (double)g->log_weight[k] - jem__gauss_distance(g, v, k) / 2;
        most = fmax(most, each[k]);
    }
    for (int k = 0; k < g->classes; k++) sum += exp(each[k] - most);
    return most + log(sum);
}

/* Returns the score of v before it is standardised: for a mixture, its log density; if the part has
   `all`, the squared distance from `all` minus d^2 (relative Mahalanobis: Ren et al. 2021), or -d^2
   if *relative is 0; otherwise -d. d is the distance from the mean of the label (Mahalanobis: Lee
   et al. 2018). */
static double jem__part_raw(const jem__calibrated_part *p, const float *v, int label) {
    double each[JEM__BLENDS];
    if (p->mixed) return jem__mixture_log(&p->own, v, each);
    const double own = jem__gauss_distance(&p->own, v, label);
    if (!p->all.dims) return -sqrt(own);
    if (p->relative && !(*p->relative > 0)) return -own;
    return jem__gauss_distance(&p->all, v, 0) - own;
}
/* Limit of a standardised score. If the scores of a calibration are all equal, as for a column that
   is constant but for a few rows, their scale is nearly 0. */
#define JEM__MOST_DEVIANT 1e6f

/* Returns a raw score in units of the label's scale, from its shift. */
static float jem__standardised(const jem__calibrated_part *p, float raw, int label) {
    const float score = (raw - p->shift[label]) / p->scale[label];
    return fminf(fmaxf(score, -JEM__MOST_DEVIANT), JEM__MOST_DEVIANT);
}
static float jem__part_score(const jem__calibrated_part *p, const float *v, int label) {
    return jem__standardised(p, (float)jem__part_raw(p, v, label), label);
}
/* Returns the highest of several quantiles that tie with a score; without ties, the score. Equal
   images, such as the readings of a machine that is off, have scores that still differ by up to
   1e-3, since each fold of a calibration has a fit of its own. */
static float jem__highest_tie(const float *q, float score) {
    const float same = 1e-3f;
    float highest = score;
    for (int i = 1; i < JEM__QUANTILES; i++) {
        const int tie = q[i] - q[i - 1] <= same && fabsf(q[i] - score) <= same;
        if (tie && q[i] > highest) highest = q[i];
    }
    return highest;
}
/* Returns the fraction of calibration images whose score is not higher. q[k] is the quantile at
   (k/64)^2, so that most are near the strange end; between two, the root of the fraction is
   linear. */
static float jem__fraction(const float *q, float score) {
    const float root = jem__familiarity(q, JEM__QUANTILES, jem__highest_tie(q, score));
    return root * root;
}
/* Returns -log of the p-value of a part's score; 0 for a part that has no numbers. The p-value is
   the rank of the score among those of the calibration images; for the lowest 5%, an exponential
   tail replaces it. */
static double jem__part_surprise(const jem__calibrated_part *p, float score) {
    const double most = 60;
    if (!p->own.dims) return 0;
    const double edge = (double)JEM__TAIL / (JEM__QUANTILES - 1);
    const double excess = (double)p->q[JEM__TAIL] - (double)jem__highest_tie(p->q, score);
    if (excess > 0) return fmin(excess / (double)*p->tail - 2 * log(edge), most);
    return -log((double)jem__fraction(p->q, score));
}
/* Returns the joint score, the negative of a sum: the weighted sum of the parts' -log p (Fisher;
   tails of several statistics: Morningstar et al. 2021) plus the largest of them (Tippett), since
   one part alone can make an image strange. */
static float jem__join(const jem__calibration *k, const double *surprise) {
    double sum = 0;
    double most = 0;
    for (int part = 0; part < JEM__PARTS; part++) {
        sum = fma(k->weight[part], surprise[part], sum);
        most = fmax(most, surprise[part]);
    }
    return -(float)(sum + most);
}
/* Returns the joint score of image i; writes surprise[JEM__PARTS]. */
static float jem__joint_score(const jem__calibration *k, const jem__rows *r, int i, int label,
                              double *surprise) {
    for (int part = 0; part < JEM__PARTS; part++) {
        surprise[part] = 0;
        if (!r->dims[part]) continue;
        const float score = jem__part_score(k->part + part, jem__row(r, part, i), label);
        surprise[part] = jem__part_surprise(k->part + part, score);
    }
    return jem__join(k, surprise);
}

/* Returns the index of the number of a part that deviates most from the label's mean. */
static int jem__worst(const jem__calibrated_part *p, const float *v, int label) {
    const float *mean = p->own.mean + (ptrdiff_t)label * p->own.dims;
    int worst = 0;
    double most = -1;
    for (int i = 0; i < p->own.dims; i++) {
        const double d = fabs(jem__deviation(&p->own, v, mean, i)) / (double)p->own.spread[i];
        if (d > most) {
            most = d;
            worst = i;
        }
    }
    return worst;
}
/* Returns the reason that number i of the slopes part gives; the layout begins at `shared`. */
static jem_reason jem__slopes_reason(const jem_net *net, int i, int shared) {
    const int logits = jem__logit_dims(net);
    const int image = jem__is_vector(net) ? 0 : jem__image_dims(net);
    if (i < logits) return JEM_REASON_CLASSES;
    if (i == logits) return JEM_REASON_DENSITY;
    if (i >= shared) return JEM_REASON_LAYOUT;
    if (image > 0 && net->channels > 1 && i == logits + 1) return JEM_REASON_SHADES;
    if (i < logits + 1 + image) return JEM_REASON_EDGES;
    return JEM_REASON_SLOPE;
}

/* Returns the reason that unusual details give. image, v: the image part, its numbers. */
static jem_reason jem__details_reason(const jem_net *net, const jem__calibrated_part *image,
                                      const float *v, int label) {
    const int fine = net->channels > 1;            /* index of the finest level; colour is first */
    if (v[fine] < image->own.mean[label * image->own.dims + fine]) return JEM_REASON_SMOOTH;
    return JEM_REASON_EDGES;
}

/* Names the statistic that contributed most to the score of image i. */
static jem_reason jem__reason_for(const jem_net *net, const jem__calibration *k, const jem__rows *r,
                                  int i, int label, const double *surprise) {
    const jem__calibrated_part *image = k->part + JEM__IMAGE;
    const float *v = jem__row(r, JEM__IMAGE, i);
    int most = JEM__SLOPES;
    for (int part = 0; part < JEM__PARTS; part++) {
        if (surprise[part] > surprise[most]) most = part;
    }
    if (most == JEM__SHADES) return JEM_REASON_SHADES;
    if (most == JEM__IMAGE) {
        if (jem__is_vector(net)) return JEM_REASON_VALUES;
        if (net->channels > 1 && jem__worst(image, v, label) == 0) return JEM_REASON_SHADES;
        return jem__details_reason(net, image, v, label);
    }
    int worst = jem__worst(k->part + most, jem__row(r, most, i), label);
    if (most == JEM__FEATURES) worst -= k->features;
    if (worst < 0) return JEM_REASON_FEATURES;
    const jem_reason reason = jem__slopes_reason(net, worst, r->shared);
    if (reason == JEM_REASON_EDGES) return jem__details_reason(net, image, v, label);
    return reason;
}

/* ---- calibration ----------------------------------------------------------------------------- */

/* Deals images to folds in random order, class by class, so that every fold has a share of each
   class however the images are ordered. */
static jem_status jem__deal_folds(jem_ctx *ctx, jem__logit_stats *stats, int n, int classes) {
    jem_rng rng = jem_rng_seed(40);
    int *order = (int *)jem__push(ctx, (size_t)n * sizeof *order);
    int *next = (int *)jem__push(ctx, (size_t)classes * sizeof *next);
    int before = 0;
    if (!order || !next) return JEM_NO_MEMORY;
    memset(next, 0, (size_t)classes * sizeof *next);
    for (int i = 0; i < n; i++) next[stats[i].label]++;
    for (int c = 0; c < classes; c++) {
        const int count = next[c];
        next[c] = before;
        before += count;
    }
    for (int i = 0; i < n; i++) order[i] = i;
    for (int i = n - 1; i > 0; i--) {
        const int k = (int)jem_rng_below(&rng, i + 1);
        const int at = order[i];
        order[i] = order[k];
        order[k] = at;
    }
    for (int i = 0; i < n; i++) {
        jem__logit_stats *s = stats + order[i];
        s->fold = next[s->label]++ % JEM__FOLDS;
    }
    return JEM_OK;
}

/* Rows v[n][dims] of a part, and the statistics of their images. A fit leaves out the images of the
   fold `without` (-1: none). */
typedef struct jem__fit_data {
    const float *v;
    const jem__logit_stats *stats;
    int dims, n, without;
} jem__fit_data;

static const float *jem__fit_row(const jem__fit_data *data, int i) {
    return data->v + (ptrdiff_t)i * data->dims;
}
static int jem__left_out(const jem__fit_data *d, int i) { return d->stats[i].fold == d->without; }
/* Returns the label of image i, or 0 if a single class contains all images. */
static int jem__label_of(const jem__fit_data *data, int i, int classes) {
    return classes > 1 ? data->stats[i].label : 0;
}
/* Sums the rows of each label's images into sum[classes][dims], and counts the images. */
static void jem__gauss_sums(const jem__fit_data *data, int classes, double *sum, double *count) {
    const ptrdiff_t dims = data->dims;
    memset(sum, 0, (size_t)classes * (size_t)dims * sizeof *sum);
    memset(count, 0, (size_t)classes * sizeof *count);
    for (int i = 0; i < data->n; i++) {
        if (jem__left_out(data, i)) continue;
        const int label = jem__label_of(data, i, classes);
        const float *row = jem__fit_row(data, i);
        double *to = sum + label * dims;
        for (ptrdiff_t a = 0; a < dims; a++) to[a] += (double)row[a];
        count[label]++;
    }
}

/* Computes the Cholesky factor of the correlations r into `root`, as whole numbers in units of
   1/JEM__FIXED. Both are lower triangles, by rows. */
static void jem__cholesky(const double *r, int dims, float *root) {
    for (int a = 0; a < dims; a++) {
        const float *rows = root + jem__triangle(a);
        for (int b = 0; b <= a; b++) {
            const float *columns = root + jem__triangle(b);
            double sum = r[jem__triangle(a) + b] * JEM__FIXED * JEM__FIXED;
            for (int j = 0; j < b; j++) sum = fma(-(double)rows[j], (double)columns[j], sum);
            if (a == b) sum = sqrt(fmax(sum, 1e-3 * JEM__FIXED * JEM__FIXED));
            else sum /= (double)columns[b];
            root[jem__triangle(a) + b] = (float)floor(sum + 0.5);
        }
    }
}

/* Writes to `cov` the sums of products of deviations over the images of a fit with label `only`
   (-1: all), plus an error variance per image. Returns the count of these images. away: scratch. */
static int jem__gauss_products(const jem__gauss *g, const jem__fit_data *data, int only,
                               double *away, double *cov) {
    const int dims = g->dims;
    int count = 0;
    memset(cov, 0, (size_t)jem__triangle(dims) * sizeof *cov);
    for (int i = 0; i < data->n; i++) {
        const int label = jem__label_of(data, i, g->classes);
        if (jem__left_out(data, i) || (only >= 0 && label != only)) continue;
        const float *m = g->mean + (ptrdiff_t)label * dims;
        for (int a = 0; a < dims; a++) away[a] = jem__deviation(g, jem__fit_row(data, i), m, a);
        double *to = cov;
        for (int a = 0; a < dims; a++) {
            for (int b = 0; b <= a; b++) to[b] = fma(away[a], away[b], to[b]);
            to += a + 1;
        }
        count++;
    }
    for (int a = g->inexact; g->error && a < dims; a++) {
        const double error = (double)g->error[a - g->inexact];
        cov[jem__diagonal(a)] = fma(count, error * error, cov[jem__diagonal(a)]);
    }
    return count;
}
/* Divides products by spreads and by a count. */
static void jem__gauss_units(const jem__gauss *g, double *cov, double count) {
    for (int a = 0; a < g->dims; a++) {
        for (int b = 0; b <= a; b++)
            *cov++ /= (double)g->spread[a] * (double)g->spread[b] * count;
    }
}

/* Shortens a mean, unless it is so large that five digits may be coarser than its spread. */
static float jem__short_mean(float m) {
    if (fabsf(m) >= 1e4f) return m;
    return jem__shorten(m);
}

/* Fits means and covariances. The mean of a label is shrunk towards that of all images, as if the
   label had four more images with that mean, and its covariance as if it had JEM__SHRUNK more with
   the covariance of all. A ridge reduces the correlations, so that small differences between
   correlated numbers count for little. work: scratch, 2 dims + 2 triangles + classes (dims + 1)
   numbers. */
static void jem__gauss_fit(jem__gauss *g, const jem__fit_data *data, double *work) {
    const int dims = g->dims;
    const int triangle = jem__triangle(dims);
    double *mean = work;
    double *away = mean + dims;
    double *cov = away + dims;
    double *own = cov + 2 * triangle;
    double *sum = own + g->classes;
    double count;
    jem__gauss_sums(data, 1, mean, &count);
    for (int a = 0; a < dims; a++) mean[a] /= count;
    jem__gauss_sums(data, g->classes, sum, own);
    for (int c = 0; c < g->classes; c++) {
        const ptrdiff_t at = (ptrdiff_t)c * dims;
        for (int a = 0; a < dims; a++)
            g->mean[at + a] = jem__short_mean((float)((sum[at + a] + 4 * mean[a]) / (own[c] + 4)));
    }
    jem__gauss_products(g, data, -1, away, cov);
    for (int a = 0; a < dims; a++)
        g->spread[a] = jem__shorten((float)(sqrt(cov[jem__diagonal(a)] / count) + 1e-6));
    jem__gauss_units(g, cov, count);
    const double ridge = 0.01 + 0.1 * dims / count;
    for (int c = 0; c < g->roots; c++) {
        double *to = cov;
        if (g->roots > 1) {
            to = cov + triangle;
            const int images = jem__gauss_products(g, data, c, away, to);
            jem__gauss_units(g, to, 1);
            for (int a = 0; a < triangle; a++)
                to[a] = fma(JEM__SHRUNK, cov[a], to[a]) / (images + JEM__SHRUNK);
        }
        for (int a = 0; a < dims; a++) to[jem__diagonal(a)] += ridge;
        jem__cholesky(to, dims, g->root + (ptrdiff_t)c * triangle);
    }
}

/* Memory for the fit of a mixture. */
typedef struct jem__blend {
    double *mean, *sum;                            /* [dims]: mean of all images; scratch */
    double *cov, *all;                             /* triangles: of each Gaussian; their sum */
    double *belongs;                               /* [n][classes]: responsibilities, of sum 1 */
} jem__blend;

/* Initialises the fit of a mixture: sets the spread, draws an image at random as the mean of each
   Gaussian, and assigns each image to the nearest one. */
static void jem__mixture_begin(jem__gauss *g, const jem__fit_data *data, const jem__blend *b) {
    const int dims = g->dims;
    double *mean = b->mean;
    double *sum = b->sum;
    double count;
    jem__gauss_sums(data, 1, mean, &count);
    for (int a = 0; a < dims; a++) {
        const double error = (double)g->error[a];
        mean[a] /= count;
        sum[a] = error * error * count;
    }
    for (int i = 0; i < data->n; i++) {
        if (jem__left_out(data, i)) continue;
        for (int a = 0; a < dims; a++) {
            const double d = (double)jem__fit_row(data, i)[a] - mean[a];
            sum[a] = fma(d, d, sum[a]);
        }
    }
    for (int a = 0; a < dims; a++)
        g->spread[a] = jem__shorten((float)(sqrt(sum[a] / count) + 1e-6));
    jem_rng rng = jem_rng_seed(42);
    for (int k = 0; k < g->classes; k++) {
        int i = (int)jem_rng_below(&rng, data->n);
        while (jem__left_out(data, i)) i = (i + 1) % data->n;
        memcpy(g->mean + k * dims, jem__fit_row(data, i), (size_t)dims * sizeof *g->mean);
    }
    for (int i = 0; i < data->n; i++) {
        double nearest = 1e300;
        int own = 0;
        for (int k = 0; k < g->classes; k++) {
            double square = 0;
            for (int a = 0; a < dims; a++) {
                const float mean_a = g->mean[k * dims + a];
                const double d = (double)jem__fit_row(data, i)[a] - (double)mean_a;
                square = fma(d / (double)g->spread[a], d / (double)g->spread[a], square);
            }
            if (square < nearest) own = k;
            nearest = fmin(nearest, square);
        }
        for (int k = 0; k < g->classes; k++) b->belongs[(ptrdiff_t)i * g->classes + k] = k == own;
    }
}

/* Sums over the images, weighted by their responsibilities for Gaussian k: sets its mean, as if it
   had four more images with the mean of all, and the products of deviations in units of the spread.
   Returns the sum of the weights. */
static double jem__mixture_sums(jem__gauss *g, int k, const jem__fit_data *data,
                                const jem__blend *b) {
    const int dims = g->dims;
    double *sum = b->sum;
    double *cov = b->cov + k * jem__triangle(dims);
    float z[JEM__SHADE_DIMS];
    double count = 0;
    for (int a = 0; a < dims; a++) sum[a] = 4 * b->mean[a];
    memset(cov, 0, (size_t)jem__triangle(dims) * sizeof *cov);
    for (int i = 0; i < data->n; i++) {
        const double part = (double)(float)b->belongs[(ptrdiff_t)i * g->classes + k];
        if (jem__left_out(data, i) || part == 0) continue;
        for (int a = 0; a < dims; a++) sum[a] += part * (double)jem__fit_row(data, i)[a];
        count += part;
    }
    float *m = g->mean + k * dims;
    for (int a = 0; a < dims; a++) m[a] = jem__shorten((float)(sum[a] / (count + 4)));
    for (int i = 0; i < data->n; i++) {
        const double part = (double)(float)b->belongs[(ptrdiff_t)i * g->classes + k];
        if (jem__left_out(data, i) || part == 0) continue;
        double *to = cov;
        for (int a = 0; a < dims; a++) {
            const double d = (double)jem__fit_row(data, i)[a] - (double)m[a];
            z[a] = (float)(d / (double)g->spread[a]);
            const double own = (double)(float)(part * (double)z[a]);
            for (int c = 0; c <= a; c++) to[c] += own * (double)z[c];    /* see jem__fmaf */
            to += a + 1;
        }
    }
    return count;
}

/* Sets root and log_weight of Gaussian k, whose responsibilities sum to `count`. Its covariance is
   shrunk as in jem__gauss_fit. */
static void jem__mixture_root(jem__gauss *g, int k, double count, double images,
                              const jem__blend *b) {
    const int dims = g->dims;
    const int triangle = jem__triangle(dims);
    const double drawn = JEM__SHRUNK;
    double *own = b->cov + k * triangle;
    double log_root = 0;
    float *root = g->root + k * triangle;
    for (int a = 0; a < triangle; a++)
        own[a] = fma(drawn / images, b->all[a], own[a]) / (count + drawn);
    for (int a = 0; a < dims; a++) {
        const double error = (double)g->error[a] / (double)g->spread[a];
        own[jem__diagonal(a)] += fma(error, error, 0.01 + 0.1 * dims / images);
    }
    jem__cholesky(own, dims, root);
    for (int a = 0; a < dims; a++) log_root += log((double)root[jem__diagonal(a)] / JEM__FIXED);
    const double weight = (count + 1) / (images + g->classes);
    g->log_weight[k] = jem__shorten((float)(log(weight) - log_root));
}

/* Fits a mixture by expectation maximisation (Dempster, Laird & Rubin 1977). Photographs of one
   class have shades of several kinds, and an image between two kinds is strange. Colourfulness and
   evenness are logarithms, which can be very low: images without colour, or with a border of one
   shade, form kinds of their own, and those with both (drawings) are rarer than either. work: two
   numbers per dimension, a triangle per Gaussian and one more, a number per image and Gaussian. */
static void jem__mixture_fit(jem__gauss *g, const jem__fit_data *data, double *work) {
    enum { ROUNDS = 12 };
    const int dims = g->dims;
    const int triangle = jem__triangle(dims);
    const int blends = g->classes;
    double count[JEM__BLENDS], each[JEM__BLENDS];
    jem__blend b;
    b.mean = work;
    b.sum = b.mean + dims;
    b.all = b.sum + dims;
    b.cov = b.all + triangle;
    b.belongs = b.cov + blends * triangle;
    jem__mixture_begin(g, data, &b);
    for (int round = 0; round < ROUNDS; round++) {
        double images = 0;
        memset(b.all, 0, (size_t)triangle * sizeof *b.all);
        for (int k = 0; k < blends; k++) {
            count[k] = jem__mixture_sums(g, k, data, &b);
            images += count[k];
            for (int a = 0; a < triangle; a++) b.all[a] += b.cov[k * triangle + a];
        }
        for (int k = 0; k < blends; k++) jem__mixture_root(g, k, count[k], images, &b);
        for (int i = 0; i < data->n && round + 1 < ROUNDS; i++) {
            const double whole = jem__mixture_log(g, jem__fit_row(data, i), each);
            for (int k = 0; k < blends; k++)
                b.belongs[(ptrdiff_t)i * blends + k] = exp(each[k] - whole);
        }
    }
}

/* Fits a part. If all images have one label, the mean of all is that label's, and a relative
   distance would be 0: then *relative becomes 0. */
static void jem__part_fit(jem__calibrated_part *p, const jem__fit_data *data, double *work) {
    float several_labels = 0;
    if (p->mixed) jem__mixture_fit(&p->own, data, work);
    else jem__gauss_fit(&p->own, data, work);
    if (!p->all.dims) return;
    jem__gauss_fit(&p->all, data, work);
    for (int i = 1; i < data->n; i++) {
        if (data->stats[i].label != data->stats[0].label) several_labels = 1;
    }
    *p->relative = several_labels;
}

/* Sorts scores and interpolates quantiles at (k/64)^2: score j of n is that at (j+1)/(n+1). */
static void jem__strange_quantiles(float *scores, int n, float *q) {
    qsort(scores, (size_t)n, sizeof *scores, jem__compare_floats);
    for (int k = 0; k < JEM__QUANTILES; k++) {
        const double root = (double)k / (JEM__QUANTILES - 1);
        const double at = fmin(fmax(root * root * (n + 1) - 1, 0), n - 1);
        const int low = (int)at;
        const int high = low + (low + 1 < n);
        const double gap = (double)scores[high] - (double)scores[low];
        q[k] = jem__shorten((float)fma(at - low, gap, (double)scores[low]));
    }
}

/* Computes the mean score (shift) and its spread (scale) of each label, over all folds except the
   one left out, so that no class is strange as a whole. Sixteen images with the mean and spread of
   all are added to a label's own, so that a rare label has usable numbers. If the part is pooled,
   every image counts for every label. work: two numbers per label. */
static void jem__part_standardise(jem__calibrated_part *p, const jem__fit_data *data,
                                  const float *scores, double *work) {
    const int labels = p->pooled ? 1 : p->labels;
    double *sum = work;
    double *count = work + labels;
    double mean = 0;
    double square = 0;
    int all = 0;
    for (int i = 0; i < data->n; i++) {
        if (jem__left_out(data, i)) continue;
        mean += p->shifts * (double)scores[i];
        all++;
    }
    mean /= all;
    for (int c = 0; c < labels; c++) {
        sum[c] = 16 * mean;
        count[c] = 16;
    }
    for (int i = 0; i < data->n; i++) {
        if (jem__left_out(data, i)) continue;
        const int c = jem__label_of(data, i, labels);
        const double d = (double)scores[i] - mean;
        square += d * d / all;
        sum[c] += p->shifts * (double)scores[i];
        count[c]++;
    }
    for (int c = 0; c < labels; c++) {
        p->shift[c] = jem__shorten((float)(sum[c] / count[c]));
        sum[c] = 16 * square;
    }
    for (int i = 0; i < data->n; i++) {
        if (jem__left_out(data, i)) continue;
        const int c = jem__label_of(data, i, labels);
        const double d = (double)scores[i] - (double)p->shift[c];
        sum[c] = fma(d, d, sum[c]);
    }
    for (int c = 0; c < labels; c++)
        p->scale[c] = jem__shorten((float)(sqrt(sum[c] / count[c]) + 1e-6));
    for (int c = labels; c < p->labels; c++) {
        p->shift[c] = p->shift[0];
        p->scale[c] = p->scale[0];
    }
}

/* Computes scores[n] by fits that exclude each image's fold, since the final fit has not seen new
   images, either: first raw scores, which are then standardised by those of the other folds.
   Finally sets p's shift and scale from all raw scores. raw[n]: scratch. */
static void jem__part_folds(jem__calibrated_part *p, const jem__fit_data *all, float *scores,
                            float *raw, double *work) {
    const int folds = all->n < JEM__FOLDS ? all->n : JEM__FOLDS;
    jem__fit_data others = *all;
    for (others.without = 0; others.without < folds; others.without++) {
        jem__part_fit(p, &others, work);
        for (int i = 0; i < all->n; i++) {
            if (!jem__left_out(&others, i)) continue;
            raw[i] = (float)jem__part_raw(p, jem__fit_row(all, i), all->stats[i].label);
        }
    }
    for (others.without = 0; others.without < folds; others.without++) {
        jem__part_standardise(p, &others, raw, work);
        for (int i = 0; i < all->n; i++) {
            if (!jem__left_out(&others, i)) continue;
            scores[i] = jem__standardised(p, raw[i], all->stats[i].label);
        }
    }
    jem__part_standardise(p, all, raw, work);
}

/* Fits a part to all images; scores[n] come from fits without each image's fold. */
static jem_status jem__part_calibrate(jem__calibrated_part *p, jem_ctx *ctx,
                                      const jem__fit_data *all, float *scores) {
    const size_t dims = (size_t)all->dims;
    const size_t triangle = (size_t)jem__triangle(all->dims);
    const size_t n = (size_t)all->n;
    size_t numbers = 2 * dims + 2 * triangle + (size_t)p->labels * (dims + 2);
    if (p->mixed) numbers += (size_t)p->own.classes * (n + triangle);
    double *work = (double *)jem__push(ctx, numbers * sizeof *work);
    float *sorted = jem__push_floats(ctx, all->n);
    if (!work || !sorted) return JEM_NO_MEMORY;
    jem__part_folds(p, all, scores, sorted, work);
    jem__part_fit(p, all, work);
    memcpy(sorted, scores, n * sizeof *sorted);
    jem__strange_quantiles(sorted, all->n, p->q);
    double excess = 0;
    int count = 0;
    for (int i = 0; i < all->n && sorted[i] < p->q[JEM__TAIL]; i++) {
        excess += (double)p->q[JEM__TAIL] - (double)sorted[i];
        count++;
    }
    if (count > 0) excess /= count;
    *p->tail = jem__shorten((float)(excess + 1e-6));
    return JEM_OK;
}

/* Writes the text of a calibration by parts to `list`. */
static jem_status jem__calibrate_parts(jem_net *net, const jem__rows *r,
                                       const jem__logit_stats *stats, int n, jem__meta **list) {
    jem_ctx *ctx = net->ctx;
    const int features = r->features;
    const int first = JEM__FORM * JEM__NEWEST + r->gradients;
    const int size = jem__calibration_at(net, first, features, NULL).size;
    float *all = jem__push_floats(ctx, size);
    float *scores = jem__push_floats(ctx, n);
    float *sums = jem__push_floats(ctx, n);
    double *surprise = (double *)jem__push(ctx, (size_t)n * JEM__PARTS * sizeof *surprise);
    if (!all || !scores || !sums || !surprise) return JEM_NO_MEMORY;
    memset(all, 0, (size_t)size * sizeof *all);    /* without features, `relative` is not fitted */
    all[0] = (float)first;
    all[1] = (float)features;
    jem__calibration k = jem__calibration_at(net, first, features, all);
    memcpy(k.range, r->range, sizeof r->range);
    for (int part = 0; part < JEM__PARTS; part++) {
        jem__calibrated_part *p = k.part + part;
        const jem__fit_data data = { r->v[part], stats, r->dims[part], n, -1 };
        if (jem__part_calibrate(p, ctx, &data, scores) != JEM_OK) return JEM_NO_MEMORY;
        for (int i = 0; i < n; i++)
            surprise[(ptrdiff_t)i * JEM__PARTS + part] = jem__part_surprise(p, scores[i]);
    }
    for (int i = 0; i < n; i++) sums[i] = jem__join(&k, surprise + (ptrdiff_t)i * JEM__PARTS);
    jem__strange_quantiles(sums, n, k.q);
    for (int i = 0; i < size; i++) {
        if (fabs((double)all[i]) < JEM__MOST_WRITTEN) continue;
        return jem__fail(ctx, JEM_BAD_ARGUMENT, "calibrate: a statistic is %g, but a file can hold "
                         "at most 1e12: does a feature vary in too few images?", (double)all[i]);
    }
    return jem__numbers_write(net, list, jem__statistics_key, all, size);
}

/* Finds the darkest and the brightest value of calibration images, in the network's units. */
static void jem__range_of(jem_net *net, const float *x, int n, float *range) {
    const ptrdiff_t size = jem__image_size(net);
    range[0] = 0;
    range[1] = 0;
    for (int i = 0; i < n; i++) {
        const jem_mark mark = jem_begin(net->ctx);
        const float *u = jem__in_units(net, x + i * size, 1);
        if (u && i == 0) {
            range[0] = u[0];
            range[1] = u[0];
        }
        for (ptrdiff_t k = 0; u && k < size; k++) {
            range[0] = fminf(range[0], u[k]);
            range[1] = fmaxf(range[1], u[k]);
        }
        jem_end(net->ctx, mark);
    }
    range[0] = jem__shorten(range[0]);
    range[1] = jem__shorten(range[1]);
    if (!(range[1] > range[0])) range[1] = range[0] + fmaxf(1, fabsf(range[0]));
}

jem_status jem_calibrate(jem_net *net, const float *x, int n, int gradients) {
    if (!net) return JEM_BAD_ARGUMENT;
    jem_ctx *ctx = net->ctx;
    const int cost = gradients == JEM_AUTO ? 1 : gradients;      /* 1: it shares the forward pass */
    if (!x) return jem__fail(ctx, JEM_BAD_ARGUMENT, "calibrate: x is NULL");
    if (n < 2)
        return jem__fail(ctx, JEM_BAD_ARGUMENT, "calibrate: needs at least 2 images, not %d", n);
    if (net->classes > JEM__MOST_RATED)
        return jem__fail(ctx, JEM_BAD_SHAPE, "calibrate: %d classes; at most %d", net->classes,
                         (int)JEM__MOST_RATED);
    if (cost < 0 || cost > JEM__MOST_SLOPES)
        return jem__fail(ctx, JEM_BAD_ARGUMENT, "calibrate: %d gradients (0 to %d, or JEM_AUTO)",
                         gradients, (int)JEM__MOST_SLOPES);
    if (cost > 1 && !(net->noise_lo > 0))
        return jem__fail(ctx, JEM_BAD_ARGUMENT, "calibrate: %d gradients: a network without a "
                         "score can use 0 or 1", gradients);
    const jem_mark mark = jem_begin(ctx);
    jem__meta *texts = NULL;
    jem__rows r;
    jem__logit_stats *stats = (jem__logit_stats *)jem__push_array(ctx, n, sizeof *stats);
    jem_status s = JEM_NO_MEMORY;
    const jem__calibration k = jem__calibration_at(net, JEM__FORM * JEM__NEWEST + cost,
                                                   jem__feature_count(net), NULL);
    if (stats && jem__rows_create(net, "calibrate", n, &k, &r)) {
        s = jem__images_check(net, "calibrate", x, n);
        if (s == JEM_OK) jem__range_of(net, x, n, r.range);
        if (s == JEM_OK) s = jem__measure_images(net, &r, x, n, stats);
    }
    for (int i = 0; i < n && s == JEM_OK; i++) {
        if (!(fabsf(stats[i].logp) < 1e8f && fabsf(stats[i].mean) < 1e8f))
            s = jem__fail(ctx, JEM_DIVERGED, "calibrate: log p(x) of image %d is %g, its mean "
                          "logit %g; their size must be below 1e8", i, (double)stats[i].logp,
                          (double)stats[i].mean);
    }
    if (s == JEM_OK) s = jem__usual_calibrate(net, stats, n, &texts);
    if (s == JEM_OK) s = jem__deal_folds(ctx, stats, n, net->classes);
    if (s == JEM_OK) s = jem__calibrate_parts(net, &r, stats, n, &texts);
    if (s == JEM_NO_MEMORY && ctx->status != JEM_OK) s = ctx->status;
    jem__meta_take(net, texts, s == JEM_OK);
    jem_end(ctx, mark);
    return s;
}

int jem_calibrated(const jem_net *net) {
    int first, features;
    const char *text = net ? jem_net_meta(net, jem__statistics_key) : NULL;
    if (text && jem__calibration_head(net, text, &first, &features)) return first % JEM__FORM;
    if (net && jem_net_meta(net, jem__usual_key)) return 0;        /* of an older version */
    if (net && jem_net_meta(net, jem__familiar_key)) return 0;
    return -1;
}

/* ---- verdicts -------------------------------------------------------------------------------- */

jem_verdict jem_judge(float familiarity) {
    if (!(familiarity >= 0)) return JEM_VERDICT_NONE;
    if (familiarity < 0.01f) return JEM_VERDICT_STRANGE;
    if (familiarity < 0.1f) return JEM_VERDICT_ODD;
    return JEM_VERDICT_FAMILIAR;
}

const char *jem_verdict_name(jem_verdict verdict) {
    static const char *const names[] = { "not calibrated", "familiar", "odd", "strange" };
    if ((int)verdict < 0 || verdict > JEM_VERDICT_STRANGE) return "unknown";
    return names[verdict];
}

const char *jem_reason_name(jem_reason reason) {
    static const char *const names[] = {
        "", "outputs unlike any class", "log p(x) unusual for its class",
        "too smooth for its class",
        "edges unlike any training image", "log p(x) too steep or too flat",
        "an unusual combination of features", "an unusual combination of values",
        "shades unlike any training image", "light and dark in unusual places",
        "all of one colour"
    };
    if ((int)reason < 0 || reason > JEM_REASON_BLANK) return "unknown";
    return names[reason];
}

/* ---- scores ---------------------------------------------------------------------------------- */

/* Returns the L2 norm of a - b; b may be NULL. */
static float jem__norm_of(const float *a, const float *b, ptrdiff_t n) {
    double sum = 0;
    for (ptrdiff_t i = 0; i < n; i++) {
        const float d = b ? a[i] - b[i] : a[i];
        sum += (double)d * (double)d;              /* exact: see jem__fmaf */
    }
    return (float)sqrt(sum);
}

/* Computes a score that requires a calibration by parts, for m images. */
static void jem__ood_by_parts(jem_net *net, jem_ood kind, const float *x, int m, float *score) {
    jem_ctx *ctx = net->ctx;
    jem__calibration k;
    jem__rows r;
    if (!jem__calibration_of(net, &k)) {
        jem__fail(ctx, JEM_BAD_ARGUMENT, "ood_score: not calibrated (jem_calibrate)");
        return;
    }
    const int joint = kind == JEM_OOD_FAMILIAR;
    const int part = (int)kind - (int)JEM_OOD_SLOPES;
    if (!joint && !k.part[part].own.dims) {
        if (part == JEM__FEATURES)
            jem__fail(ctx, JEM_BAD_ARGUMENT, "ood_score: the network defines no features");
        else
            jem__fail(ctx, JEM_BAD_ARGUMENT, "ood_score: the calibration has no shades: it is of "
                      "vectors or of an older file");
        return;
    }
    jem__logit_stats stats[JEM__EVAL_BATCH];
    if (!jem__rows_create(net, "ood_score", m, &k, &r) ||
        jem__measure_images(net, &r, x, m, stats) != JEM_OK) return;
    for (int i = 0; i < m; i++) {
        double surprise[JEM__PARTS];
        const int label = stats[i].label;
        if (joint) score[i] = jem__joint_score(&k, &r, i, label, surprise);
        else score[i] = jem__part_score(k.part + part, jem__row(&r, part, i), label);
    }
}

/* Computes a score that requires a gradient (MASS) or a walk (RISE, MOVE), for m images. */
static void jem__ood_walk(jem_net *net, jem_ood kind, const jem_sgld_desc *walk, const float *x,
                          int m, float *score) {
    jem_ctx *ctx = net->ctx;
    const ptrdiff_t size = jem__image_size(net);
    float *after = jem__push_floats(ctx, m * size);
    float *end = jem__push_floats(ctx, m);
    x = jem__in_units(net, x, m);
    jem_tensor *t = x ? jem__images(net, x, m) : NULL;
    jem_tensor *logp = jem_logp(ctx, t, net);
    if (!after || !end || jem_read(logp, score) != JEM_OK) return;
    if (kind == JEM_OOD_MASS) {
        jem_grad(logp, t);
        jem_read_grad(t, after);
    } else {
        jem_sgld(ctx, jem_logp, net, t, walk, NULL);
        jem_read(t, after);
        jem_read(logp, end);
    }
    for (int i = 0; jem_ok(ctx) && i < m; i++) {
        const float *from = kind == JEM_OOD_MOVE ? x + i * size : NULL;
        if (kind == JEM_OOD_RISE) score[i] -= end[i];
        else score[i] = -jem__norm_of(after + i * size, from, size);
    }
}

/* Computes a score that requires only logits, for m images. */
static void jem__ood_logits(jem_net *net, jem_ood kind, const float *x, int m, float *score) {
    jem__logit_stats stats[JEM__EVAL_BATCH];
    JEM__ZEROED(jem__usual_model, u);
    if (kind == JEM_OOD_USUAL && !jem__usual_read(net, &u)) {
        jem__fail(net->ctx, JEM_BAD_ARGUMENT, "ood_score: not calibrated (jem_calibrate)");
        return;
    }
    if (jem__compute_logits(net, "ood_score", x, m, NULL, stats) != JEM_OK) return;
    const float units_log = jem__units_log_volume(net);
    for (int i = 0; i < m; i++) {
        score[i] = stats[i].logp - units_log;
        if (kind == JEM_OOD_MAXP) score[i] = stats[i].log_odds;
        if (kind == JEM_OOD_USUAL) score[i] = jem__usual_score(&u, stats[i]);
    }
}

jem_status jem_ood_score(jem_net *net, jem_ood kind, const jem_sgld_desc *walk, const float *x,
                         int n, float *score) {
    if (!net) return JEM_BAD_ARGUMENT;
    jem_ctx *ctx = net->ctx;
    const ptrdiff_t size = jem__image_size(net);
    jem_sgld_desc d = jem_sgld_desc_default();
    d.steps = 10;
    if (net->noise_lo > 0) d.step_size = net->noise_lo * net->noise_lo;
    if (walk) d = *walk;
    if (kind < JEM_OOD_LOGP || kind > JEM_OOD_FAMILIAR)
        return jem__fail(ctx, JEM_BAD_ARGUMENT, "ood_score: %d is not a jem_ood", (int)kind);
    if (n < 0 || (n > 0 && (!x || !score)))
        return jem__bad_arrays(ctx, "ood_score", n, "x", x, "score", score);
    if (jem__images_check(net, "ood_score", x, n) != JEM_OK) return ctx->status;
    int m = 0;
    for (int i = 0; i < n && ctx->status == JEM_OK; i += m) {
        m = jem__batch_from(i, n);
        const jem_mark mark = jem_begin(ctx);
        if (kind >= JEM_OOD_MASS && kind <= JEM_OOD_MOVE)
            jem__ood_walk(net, kind, &d, x + i * size, m, score + i);
        else if (kind >= JEM_OOD_SLOPES)
            jem__ood_by_parts(net, kind, x + i * size, m, score + i);
        else
            jem__ood_logits(net, kind, x + i * size, m, score + i);
        if (ctx->status == JEM_OK && !jem__all_finite(score + i, m))
            jem__fail(ctx, JEM_DIVERGED, "ood_score: scores are not finite");
        jem_end(ctx, mark);
    }
    return ctx->status;
}

/* ==== >>eval: classify, accuracy, temperature ================================================= */

/* Fills an answer, except its familiarity and reason, from the statistics of an image's logits. */
static void jem__answer(const jem__logit_stats *stats, jem_answer *a) {
    a->label = stats->label;
    a->probability = stats->p;
    a->log_density = stats->logp;
    a->familiarity = -1;
    a->reason = JEM_REASON_NONE;
}

/* Classifies with a calibration by parts. */
static jem_status jem__classify_by_parts(jem_net *net, const jem__calibration *k, const float *x,
                                         int n, jem__logit_stats *stats, jem_answer *answers) {
    const ptrdiff_t size = jem__image_size(net);
    jem_status s = jem__images_check(net, "classify", x, n);
    int m = 0;
    for (int from = 0; from < n && s == JEM_OK; from += m) {
        jem__rows r;
        m = jem__batch_from(from, n);
        const jem_mark mark = jem_begin(net->ctx);
        s = JEM_NO_MEMORY;
        if (jem__rows_create(net, "classify", m, k, &r))
            s = jem__measure_images(net, &r, x + from * size, m, stats + from);
        for (int i = 0; s == JEM_OK && i < m; i++) {
            jem_answer *a = answers + from + i;
            jem__answer(stats + from + i, a);
            double surprise[JEM__PARTS];
            a->familiarity = jem__fraction(k->q, jem__joint_score(k, &r, i, a->label, surprise));
            if (jem_judge(a->familiarity) != JEM_VERDICT_FAMILIAR)
                a->reason = jem__reason_for(net, k, &r, i, a->label, surprise);
        }
        jem_end(net->ctx, mark);
    }
    return s;
}

/* Classifies with the calibration of an older file, if there is one. */
static jem_status jem__classify_usual(jem_net *net, const float *x, int n, jem__logit_stats *stats,
                                      jem_answer *answers) {
    float q[JEM__QUANTILES];
    JEM__ZEROED(jem__usual_model, u);
    const int usual = jem__usual_read(net, &u);
    const int quantiles = jem__familiar_parse(jem_net_meta(net, jem__familiar_key), q);
    const jem_status s = jem__compute_logits(net, "classify", x, n, NULL, stats);
    for (int i = 0; s == JEM_OK && i < n; i++) {
        jem_answer *a = answers + i;
        jem__answer(stats + i, a);
        if (usual)
            a->familiarity = jem__familiarity(u.q, JEM__QUANTILES, jem__usual_score(&u, stats[i]));
        else
            a->familiarity = jem__familiarity(q, quantiles, stats[i].logp);
    }
    return s;
}

jem_status jem_classify(jem_net *net, const float *x, int n, jem_answer *answers) {
    if (!net) return JEM_BAD_ARGUMENT;
    jem_ctx *ctx = net->ctx;
    if (n == 0) return ctx->status;
    if (!answers || !x || n < 0)
        return jem__bad_arrays(ctx, "classify", n, "x", x, "answers", answers);
    const jem_mark mark = jem_begin(ctx);
    jem__calibration calibration;
    jem_status s = JEM_NO_MEMORY;
    jem__logit_stats *stats = (jem__logit_stats *)jem__push_array(ctx, n, sizeof *stats);
    if (stats && jem__calibration_of(net, &calibration))
        s = jem__classify_by_parts(net, &calibration, x, n, stats, answers);
    else if (stats)
        s = jem__classify_usual(net, x, n, stats, answers);
    if (s == JEM_NO_MEMORY && ctx->status != JEM_OK) s = ctx->status;
    jem_end(ctx, mark);
    const float units_log = jem__units_log_volume(net);
    for (int i = 0; s == JEM_OK && i < n; i++) answers[i].log_density -= units_log;
    return s;
}

float jem_accuracy(jem_net *net, const float *x, const int *labels, int n) {
    if (!net || !jem__labels_good(net->ctx, "accuracy", labels, n, net->classes)) return -1;
    const jem_mark mark = jem_begin(net->ctx);
    jem__logit_stats *stats = (jem__logit_stats *)jem__push_array(net->ctx, n, sizeof *stats);
    const int ok = stats && jem__compute_logits(net, "accuracy", x, n, NULL, stats) == JEM_OK;
    int right = 0;
    for (int i = 0; ok && i < n; i++) right += stats[i].label == labels[i];
    jem_end(net->ctx, mark);
    if (!ok) return -1;
    return (float)right / (float)n;
}

jem_status jem_logits(jem_net *net, const float *x, int n, float *f) {
    if (!net) return JEM_BAD_ARGUMENT;
    return jem__compute_logits(net, "logits", x, n, f, NULL);
}

enum { JEM__TRIALS = 64, JEM__BLAMED_AT_ONCE = 16 };

/* Values that replace one value of a vector: from + k * step, k < JEM__TRIALS. */
typedef struct jem__trials { float from, step; } jem__trials;

/* Computes logp[n] of vectors u[n], in the network's units. */
static int jem__blame_logp(jem_net *net, const float *u, int n, float *logp) {
    const jem_mark mark = jem_begin(net->ctx);
    jem_read(jem_logp(net->ctx, jem__images(net, u, n), net), logp);
    jem_end(net->ctx, mark);
    if (jem_ok(net->ctx) && !jem__all_finite(logp, n))
        jem__fail(net->ctx, JEM_DIVERGED, "blame_values: log p(x) is not finite");
    return jem_ok(net->ctx);
}

/* Tries to replace each of `count` values of u, from value `at` on; best[i] and most[i] become the
   most likely trial and its log p, if that is above most[i]. Returns 0 after an error. */
static int jem__blame_some(jem_net *net, const float *u, const jem__trials *trials, int at,
                           int count, float *best, float *most) {
    const int size = net->channels;
    const int n = count * JEM__TRIALS;
    float *copies = jem__push_images(net->ctx, n, size);
    float *logp = jem__push_floats(net->ctx, n);
    for (int k = 0; copies && k < n; k++) {
        const int i = at + k / JEM__TRIALS;
        float *copy = copies + (ptrdiff_t)k * size;
        memcpy(copy, u, (size_t)size * sizeof *u);
        copy[i] = jem__fmaf((float)(k % JEM__TRIALS), trials[i].step, trials[i].from);
    }
    if (!copies || !logp || !jem__blame_logp(net, copies, n, logp)) return 0;
    for (int k = 0; k < n; k++) {
        const int i = at + k / JEM__TRIALS;
        if (!(logp[k] > most[i])) continue;
        most[i] = logp[k];
        best[i] = copies[(ptrdiff_t)k * size + i];
    }
    return 1;
}

/* Implements jem_blame_values for one row: 64 trials per value over the range, then 64 around the
   best of them. Returns 0 after an error. */
static int jem__blame_row(jem_net *net, const float *x, float *gain, float *better) {
    static const float reach = 3;
    jem_ctx *ctx = net->ctx;
    const int size = net->channels;
    float *u = jem__push_floats(ctx, size);
    float *best = jem__push_floats(ctx, size);
    float *most = jem__push_floats(ctx, size);
    jem__trials *trials = (jem__trials *)jem__push(ctx, (size_t)size * sizeof *trials);
    float logp;
    if (!u || !best || !most || !trials || jem_standardize(net, x, 1, u) != JEM_OK) return 0;
    if (!jem__blame_logp(net, u, 1, &logp)) return 0;
    for (int i = 0; i < size; i++) {
        best[i] = u[i];
        most[i] = logp;
        trials[i].from = -reach;
        trials[i].step = 2 * reach / (float)JEM__TRIALS;   /* the middle trial is the mean */
    }
    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; i < size; i += JEM__BLAMED_AT_ONCE) {
            const int left = size - i;
            const int count = left < JEM__BLAMED_AT_ONCE ? left : JEM__BLAMED_AT_ONCE;
            const jem_mark mark = jem_begin(ctx);
            const int done = jem__blame_some(net, u, trials, i, count, best, most);
            jem_end(ctx, mark);
            if (!done) return 0;
        }
        for (int i = 0; i < size; i++) {
            const float around = fminf(fmaxf(best[i], -reach), reach);
            const float from = fmaxf(around - trials[i].step, -reach);
            const float to = fminf(around + trials[i].step, reach);
            trials[i].from = from;
            trials[i].step = (to - from) / (JEM__TRIALS - 1);
        }
    }
    for (int i = 0; i < size; i++) gain[i] = most[i] - logp;
    if (!better) return 1;
    if (jem_unstandardize(net, best, 1, best) != JEM_OK) return 0;
    for (int i = 0; i < size; i++) better[i] = gain[i] > 0 ? best[i] : x[i];
    return 1;
}

jem_status jem_blame_values(jem_net *net, const float *x, int n, float *gain, float *better) {
    if (!net) return JEM_BAD_ARGUMENT;
    if (!x || !gain || n < 0)
        return jem__bad_arrays(net->ctx, "blame_values", n, "x", x, "gain", gain);
    if (net->height * net->width != 1)
        return jem__fail(net->ctx, JEM_BAD_ARGUMENT, "blame_values: needs vectors, not images of "
                         "%d x %d", net->width, net->height);
    if (jem__images_check(net, "blame_values", x, n) != JEM_OK) return net->ctx->status;
    int done = 1;
    for (int i = 0; i < n && done; i++) {
        const ptrdiff_t at = (ptrdiff_t)i * net->channels;
        const jem_mark mark = jem_begin(net->ctx);
        done = jem__blame_row(net, x + at, gain + at, better ? better + at : NULL);
        jem_end(net->ctx, mark);
    }
    return net->ctx->status;
}

/* Computes the derivative of -log p(y|x) with respect to 1/T, summed over n images, where 1/T is
   `inverse`: the sum of E_p[f] - f[y]. */
static double jem__temperature_slope(const float *f, const int *labels, int n, int classes,
                                     double inverse) {
    double slope = 0;
    for (int i = 0; i < n; i++) {
        const float *row = f + (ptrdiff_t)i * classes;
        double sum = 0;
        double above = 0;
        double most = (double)row[0];
        for (int c = 1; c < classes; c++) most = fmax(most, (double)row[c]);
        for (int c = 0; c < classes; c++) {
            const double e = exp(inverse * ((double)row[c] - most));
            sum += e;
            above = fma(e, (double)row[c] - (double)row[labels[i]], above);
        }
        slope += above / sum;
    }
    return slope;
}

/* Bisects: -log p(y|x) is convex in 1/T, so its slope rises with 1/T. */
float jem_fit_temperature(jem_net *net, const float *x, const int *labels, int n) {
    if (!net || !jem__labels_good(net->ctx, "fit_temperature", labels, n, net->classes)) return -1;
    jem_ctx *ctx = net->ctx;
    const jem_mark mark = jem_begin(ctx);
    float *f = jem__push_images(ctx, n, net->classes);
    double lo = log(0.01);                         /* of log(1/T) */
    double hi = log(100);
    int matters = 0;                               /* 1 if logits differ: then T has an effect */
    const int ok = f && jem__compute_logits(net, "fit_temperature", x, n, f, NULL) == JEM_OK;
    for (int round = 0; ok && round < 40; round++) {
        const double middle = (lo + hi) / 2;
        const double slope = jem__temperature_slope(f, labels, n, net->classes, exp(middle));
        if (slope > 0) hi = middle;
        else lo = middle;
        if (slope > 0 || slope < 0) matters = 1;
    }
    jem_end(ctx, mark);
    if (!ok) return -1;
    const float t = matters ? (float)exp(-(lo + hi) / 2) : 1;
    if (jem__numbers_write(net, &net->meta, jem__temperature_key, &t, 1) != JEM_OK) return -1;
    return t;
}

/* ==== >>uses: attack, imputation, pictures ==================================================== */

/* ---- attacks --------------------------------------------------------------------------------- */

jem_attack_desc jem_attack_desc_default(void) {
    JEM__ZEROED(jem_attack_desc, d);
    d.eps = 0.2f;
    d.steps = 40;
    d.restarts = 1;
    d.random_start = 1;
    d.lo = -1;
    d.hi = 1;
    return d;
}

/* Moves v back to within eps of x, and into the range of pixels, extended to x where x exceeds
   it. */
static void jem__attack_hold(const jem_attack_desc *d, const float *x, float *v, ptrdiff_t n) {
    float length = 0;
    if (d->l2 && d->eps < HUGE_VALF) length = jem__norm_of(v, x, n);
    for (ptrdiff_t i = 0; i < n; i++) {
        if (length > d->eps) v[i] = jem__fmaf(v[i] - x[i], d->eps / length, x[i]);
        if (!d->l2) v[i] = fminf(fmaxf(v[i], x[i] - d->eps), x[i] + d->eps);
        v[i] = fminf(fmaxf(v[i], fminf(d->lo, x[i])), fmaxf(d->hi, x[i]));
    }
}

/* Moves v along g: in L2 norm by a vector of length step, otherwise each pixel by step. */
static void jem__attack_move(const jem_attack_desc *d, const float *x, const float *g, float step,
                             float *v, ptrdiff_t n) {
    if (d->l2) {
        const float length = jem__norm_of(g, NULL, n);
        if (length > 0) jem__move_along(v, g, n, step, length);
    } else {
        for (ptrdiff_t i = 0; i < n; i++) {
            if (g[i] > 0) v[i] += step;
            if (g[i] < 0) v[i] -= step;
        }
    }
    jem__attack_hold(d, x, v, n);
}

/* Draws v uniformly from the cube, or (l2) from the ball, as a direction times eps u^(1/n). Without
   a random start or a finite eps, v is x. Overwrites g. */
static void jem__attack_start(jem_ctx *ctx, const jem_attack_desc *d, jem_rng *rng, const float *x,
                              float *g, float *v, ptrdiff_t n) {
    memcpy(v, x, (size_t)n * sizeof *v);
    if (!d->random_start || !(d->eps < HUGE_VALF)) return;
    if (d->l2) {
        jem_fill_normal(ctx, rng, g, n, 0, 1);
        const float radius = d->eps * powf(jem_rng_uniform(rng), 1 / (float)n);
        jem__attack_move(d, x, g, radius, v, n);
        return;
    }
    jem_fill_uniform(ctx, rng, g, n, -d->eps, d->eps);
    for (ptrdiff_t i = 0; i < n; i++) v[i] += g[i];
    jem__attack_hold(d, x, v, n);
}

/* Computes logits, and the gradient of log odds, of the network itself: the default of
   jem_attack_desc.classify. */
static jem_status jem__attack_classify(void *user, const float *x, const int *labels, int n,
                                       float *f, float *g) {
    jem_net *net = (jem_net *)user;
    const jem_mark mark = jem_begin(net->ctx);
    jem_tensor *t = jem__images(net, x, n);
    jem_tensor *logits = jem_forward(net, t, 0);
    jem_tensor *odds = jem__odds(net, logits, labels);
    jem_keep(logits);
    if (g && jem_grad(odds, t) == JEM_OK) jem_read_grad(t, g);
    jem_read(logits, f);
    jem_end(net->ctx, mark);
    return net->ctx->status;
}

/* Returns 1 if an image with these logits has reached the attack's goal. */
static int jem__attack_won(const jem_attack_desc *d, const float *f, int classes, int label,
                           float temperature) {
    const jem__logit_stats s = jem__logit_stats_of(f, classes, temperature);
    if (!d->targeted) return s.label != label;
    return s.label == label && s.p >= d->least_probability;
}

/* Adds the direction of g[n] to momentum times the sum so far, and returns the sum. */
static const float *jem__attack_along(const jem_attack_desc *d, const float *g, float *sum,
                                      ptrdiff_t n) {
    const float length = jem__norm_of(g, NULL, n);
    for (ptrdiff_t i = 0; i < n; i++) {
        const float direction = length > 0 ? g[i] / length : 0;
        sum[i] = jem__fmaf(d->momentum, sum[i], direction);
    }
    return sum;
}

/* Computes logits f and, unless g is NULL, gradients g of m images; returns 0 after an error. */
static int jem__attack_look(jem_net *net, const jem_attack_desc *d, const float *x,
                            const int *labels, int m, float *f, float *g) {
    jem_ctx *ctx = net->ctx;
    const uint64_t outer = jem__protect(ctx);
    const jem_status s = d->classify(d->user, x, labels, m, f, g);
    ctx->floor = outer;
    if (s != JEM_OK) jem__fail(ctx, s, "attack: classify failed");
    if (!jem_ok(ctx)) return 0;
    if (jem__all_finite(f, (ptrdiff_t)m * net->classes) &&
        (!g || jem__all_finite(g, m * jem__image_size(net)))) return 1;
    jem__fail(ctx, JEM_DIVERGED, "attack: the classifier's logits or gradients are not finite");
    return 0;
}

/* Attacks m images once, from x, and writes the last images to `found`. Every pass of the loop
   first classifies and sets done[i] of images at the goal (with all_steps, only the last pass
   does). Pass -1 then moves the others to their start; passes 0 .. steps-1 take a step. */
static void jem__attack_once(jem_net *net, const float *x, const int *labels, int m,
                             const jem_attack_desc *d, jem_rng *rng, float *found, int *done) {
    jem_ctx *ctx = net->ctx;
    const int k = net->classes;
    const ptrdiff_t size = jem__image_size(net);
    const float temperature = d->classify == jem__attack_classify ? jem__temperature_of(net) : 1;
    const float signed_step = d->targeted ? d->step_size : -d->step_size;
    float *g = jem__push_floats(ctx, m * size);
    float *f = jem__push_floats(ctx, (ptrdiff_t)m * k);
    float *sum = NULL;
    if (d->momentum > 0) {
        sum = jem__push_floats(ctx, m * size);
        if (!sum) return;
        memset(sum, 0, (size_t)(m * size) * sizeof *sum);
    }
    int left = m;
    for (int step = -1; g && f && step <= d->steps && left; step++) {
        const int moves = step >= 0 && step < d->steps;
        const int stops = !d->all_steps || step == d->steps;
        if (!jem__attack_look(net, d, found, labels, m, f, moves ? g : NULL)) return;
        left = 0;
        for (int i = 0; i < m; i++) {
            const ptrdiff_t at = i * size;
            const float *logits = f + (ptrdiff_t)i * k;
            if (stops && jem__attack_won(d, logits, k, labels[i], temperature)) done[i] = 1;
            if (done[i]) continue;
            left++;
            if (step < 0) {
                jem__attack_start(ctx, d, rng, x + at, g + at, found + at, size);
            } else if (moves) {
                const float *along = g + at;
                if (sum) along = jem__attack_along(d, g + at, sum + at, size);
                jem__attack_move(d, x + at, along, signed_step, found + at, size);
            }
        }
    }
}

/* Rejects descs with a value out of range. If eps is infinite, step_size must be given. */
static int jem__attack_good(jem_ctx *ctx, const jem_attack_desc d) {
    const char *const what = "attack";
    const int any_distance = jem__float_bits(d.eps) == 0x7f800000u;
    const double least_step = any_distance ? JEM__TINY : 0;
    return (any_distance || JEM__IN(d.eps, 0, JEM__MOST)) && JEM__IN(d.steps, 1, INT32_MAX) &&
           JEM__IN(d.step_size, least_step, JEM__MOST) && JEM__IN(d.restarts, 1, INT32_MAX) &&
           JEM__IN(d.momentum, 0, 1) && JEM__IN(d.least_probability, 0, 1) &&
           JEM__IN(d.l2, 0, 1) && JEM__IN(d.targeted, 0, 1) &&
           JEM__IN(d.lo, -JEM__MOST, JEM__MOST) && JEM__IN(d.hi, d.lo, JEM__MOST);
}

/* Converts `found` from the network's units to those of the data; u is x in the network's units.
   Images that the attack did not change keep every bit of x. */
static void jem__attack_units(jem_net *net, const float *x, const float *u, int m, float *found) {
    const ptrdiff_t size = jem__image_size(net);
    const float *units = jem__units(net);
    const size_t bytes = (size_t)size * sizeof *x;
    for (int i = 0; units && i < m; i++) {
        const ptrdiff_t at = i * size;
        float *image = found + at;
        if (!memcmp(u + at, image, bytes)) memcpy(image, x + at, bytes);
        else jem__units_apply(net, units, image, 1, image, 1);
    }
}

/* Attacks a batch d->restarts times. */
static void jem__attack_batch(jem_net *net, const float *x, const int *labels, int m,
                              const jem_attack_desc *d, jem_rng *rng, float *found, int *done) {
    jem_ctx *ctx = net->ctx;
    const size_t bytes = (size_t)(m * jem__image_size(net)) * sizeof *x;
    const jem_mark batch = jem_begin(ctx);
    float *kept = (float *)jem__push(ctx, bytes);  /* found may be x */
    if (kept) memcpy(kept, x, bytes);
    const float *from = kept ? jem__in_units(net, kept, m) : NULL;
    if (from) memcpy(found, from, bytes);
    for (int r = 0; r < d->restarts && ctx->status == JEM_OK; r++) {
        const jem_mark mark = jem_begin(ctx);
        jem__attack_once(net, from, labels, m, d, rng, found, done);
        jem_end(ctx, mark);
    }
    if (from) jem__attack_units(net, kept, from, m, found);
    jem_end(ctx, batch);
}

jem_status jem_attack(jem_net *net, const float *x, const int *labels, int n,
                      const jem_attack_desc *desc, jem_rng *rng, float *found, int *fooled) {
    if (!net) return JEM_BAD_ARGUMENT;
    jem_ctx *ctx = net->ctx;
    const ptrdiff_t size = jem__image_size(net);
    jem_attack_desc d = jem_attack_desc_default();
    if (desc) d = *desc;
    if (!d.classify) {
        d.classify = jem__attack_classify;
        d.user = net;
    }
    if (!jem__attack_good(ctx, d)) return ctx->status;
    if (d.step_size == 0 && d.steps == 1) d.step_size = d.eps;
    else if (d.step_size == 0) d.step_size = 2.5f * d.eps / (float)d.steps;
    if (!x || !found || n < 0)
        return jem__bad_arrays(ctx, "attack", n, "x", x, "found", found);
    if (!rng && d.random_start)
        return jem__fail(ctx, JEM_BAD_ARGUMENT, "attack: a random start needs an rng");
    if (jem__images_check(net, "attack", x, n) != JEM_OK) return ctx->status;
    if (n > 0 && !jem__labels_good(ctx, "attack", labels, n, net->classes)) return ctx->status;
    if (found != x) memcpy(found, x, (size_t)(n * size) * sizeof *x);
    int m = 0;
    for (int i = 0; i < n && ctx->status == JEM_OK; i += m) {
        m = jem__batch_from(i, n);
        int done[JEM__EVAL_BATCH] = { 0 };
        jem__attack_batch(net, x + i * size, labels + i, m, &d, rng, found + i * size, done);
        if (fooled) memcpy(fooled + i, done, (size_t)m * sizeof *done);
    }
    return ctx->status;
}

/* ---- imputation ------------------------------------------------------------------------------ */

jem_impute_desc jem_impute_desc_default(void) {
    JEM__ZEROED(jem_impute_desc, d);
    d.denoise = jem_denoise_desc_default();
    d.denoise.steps = 0;
    d.denoise.fraction = 0.8f;
    d.denoise.beta = 0.019f;
    d.walk = jem_sgld_desc_default();
    d.walk.steps = 300;
    d.lo = -1;
    d.hi = 1;
    d.last_sigma = 0.25f;
    return d;
}

/* A log-density as a function of the open pixels only; the known ones are constants. */
typedef struct jem__held {
    jem_logp_fn logp;
    void *user;
    jem_tensor *open, *held;                       /* open: 1 for open pixels, else 0; held: known
                                                      pixels, else 0 */
    const jem_impute_desc *desc;
    float *noisy;                                  /* copy of u while a watch runs */
    int stopped;                                   /* by a watch */
} jem__held;

/* Computes log p; known pixels receive no gradient. */
static jem_tensor *jem__logp_held(jem_ctx *ctx, jem_tensor *u, void *user) {
    const jem__held *h = (const jem__held *)user;
    jem_tensor *whole = jem_add(ctx, jem_mul(ctx, u, h->open), h->held);
    if (!whole) return NULL;
    return h->logp(ctx, whole, h->user);
}

/* Restores the known pixels of u, after an error too. */
static void jem__impute_restore(const jem__held *h, jem_tensor *u) {
    const jem__node *to = u->node;
    const jem__node *open = h->open->node;
    const jem__node *held = h->held->node;
    for (ptrdiff_t i = 0; i < to->groups * to->group_floats; i++) {
        if (open->value[i] == 0) to->value[i] = held->value[i];
    }
    jem__leaf_changed(to);
}

/* Shows the watch the known pixels without noise. The walk adds noise to them as to the others, and
   they are restored only after the last step. If they were clean before that step, it would
   underestimate sigma, and samples would stay grainy (measured: examples/models/measured.md). */
static int jem__impute_watch(void *user, int step, jem_tensor *u) {
    jem__held *h = (jem__held *)user;
    jem_read(u, h->noisy);
    jem__impute_restore(h, u);
    h->stopped = jem__watch(h->desc->walk.watch, h->desc->walk.watch_user, step, u);
    jem_write(u, h->noisy);
    return h->stopped;
}

/* Takes noise-blind steps in which known and open pixels of x have the same noise: each step
   multiplies it by 1 - beta * fraction. known, clean, u: [size]; u receives the pixels. */
static void jem__impute_noisy(jem_ctx *ctx, jem__held *h, jem_tensor *x, const float *known,
                              const float *clean, float *u, jem_rng *rng) {
    const ptrdiff_t size = jem__tensor_values(x);
    const jem_denoise_desc *d = &h->desc->denoise;
    jem_denoise_desc one = *d;
    float sigma = d->sigma_max;
    one.steps = 1;
    one.watch = NULL;
    float *noise = jem__push_floats(ctx, size);
    jem_fill_normal(ctx, rng, u, size, 0, sigma);
    for (int step = 0; noise && step < d->steps && !h->stopped && jem_ok(ctx); step++) {
        jem_fill_normal(ctx, rng, noise, size, 0, sigma);
        for (ptrdiff_t i = 0; i < size; i++) {
            if (known[i] != 0) u[i] = clean[i] + noise[i];
        }
        jem_write(x, u);
        jem_denoise(ctx, h->logp, h->user, x, &one, rng);
        jem_read(x, u);
        if (jem_ok(ctx)) h->stopped = jem__watch(d->watch, d->watch_user, step, x);
        sigma *= jem__fmaf(-d->beta, d->fraction, 1);
    }
}

/* Samples the open pixels of x. clean[size]: its pixels, 0 where open; u[size]: its pixels, to be
   overwritten. */
static void jem__impute_all(jem_ctx *ctx, jem__held *h, jem_tensor *x, const float *known,
                            const float *clean, float *u, jem_rng *rng) {
    const jem_impute_desc *d = h->desc;
    const ptrdiff_t size = jem__tensor_values(x);
    jem_sgld_desc walk = d->walk;
    if (walk.watch) {
        walk.watch = jem__impute_watch;
        walk.watch_user = h;
    }
    if (d->denoise.steps > 0) jem__impute_noisy(ctx, h, x, known, clean, u, rng);
    else if (d->lo != d->hi) jem_fill_uniform(ctx, rng, u, size, d->lo, d->hi);
    if (jem_ok(ctx)) jem_write(x, u);
    if (!h->stopped) jem_sgld(ctx, jem__logp_held, h, x, &walk, rng);
    if (d->denoise.steps > 0 && d->last_sigma > 0 && !h->stopped) {
        const jem_denoise_desc last = jem_denoise_desc_clean(d->last_sigma);
        jem_denoise(ctx, h->logp, h->user, x, &last, NULL);
    }
    if (h->open && h->held) jem__impute_restore(h, x);
}

jem_status jem_impute(jem_ctx *ctx, jem_logp_fn logp, void *user, jem_tensor *x, const float *known,
                      const jem_impute_desc *desc, jem_rng *rng) {
    jem_impute_desc d = jem_impute_desc_default();
    if (desc) d = *desc;
    const char *const what = "impute";
    if (!jem__walk_ready(ctx, what, logp, x, rng != NULL)) return jem_error_status(ctx);
    if (!JEM__IN(d.lo, -1e4, 1e4) || !JEM__IN(d.hi, d.lo, 1e4)) return ctx->status;
    if (!jem__last_sigma_good(ctx, what, d.last_sigma)) return ctx->status;
    if (!jem__denoise_good(ctx, "impute: denoise", d.denoise)) return ctx->status;
    if (!jem__sgld_good(ctx, "impute: walk", d.walk)) return ctx->status;
    if (!known) return jem__fail(ctx, JEM_BAD_ARGUMENT, "impute: known is NULL");
    const ptrdiff_t size = jem__tensor_values(x);
    const jem_mark mark = jem_begin(ctx);
    float *clean = jem__push_floats(ctx, size);
    float *u = jem__push_floats(ctx, size);
    float *open = jem__push_floats(ctx, size);
    if (clean && u && open && jem_read(x, clean) == JEM_OK) {
        JEM__ZEROED(jem__held, h);
        h.logp = logp;
        h.user = user;
        h.desc = &d;
        h.noisy = u;
        memcpy(u, clean, (size_t)size * sizeof *u);
        for (ptrdiff_t i = 0; i < size; i++) {
            open[i] = (float)(known[i] == 0);
            if (known[i] == 0) clean[i] = 0;       /* may be NaN */
        }
        h.open = jem_input(ctx, open, x->n, x->c, x->h, x->w);
        h.held = jem_input(ctx, clean, x->n, x->c, x->h, x->w);
        jem__impute_all(ctx, &h, x, known, clean, u, rng);
    }
    jem_end(ctx, mark);
    return ctx->status;
}

/* ---- pictures -------------------------------------------------------------------------------- */

/* Computes the part of the interval from first to end that pixel i of a row of `target` pixels
   covers. A part shorter than a pixel of the picture becomes its nearest pixel. */
static void jem__cover(int i, int target, double first, double end, double *from, double *until) {
    *from = first + i * (end - first) / target;
    *until = first + (i + 1) * (end - first) / target;
    if (*until - *from >= 1) return;
    *from = floor((*from + *until) / 2);
    *until = *from + 1;
}

static const char *const jem__background_key = "jem.background";

/* Parses the text "jem.background"; returns 0 if there is none, or it is invalid. */
static int jem__background_parse(const char *text) {
    float grey = 0;
    if (jem__numbers_parse(text, &grey, 1) < 1 || !(grey >= 1 && grey <= 255)) return 0;
    return (int)grey;
}

/* Rejects pictures that the network cannot take. Copies desc to d with its defaults. */
static jem_status jem__pixels_check(const jem_net *net, int width, int height, int channels,
                                    const jem_pixels_desc *desc, jem_pixels_desc *d) {
    memset(d, 0, sizeof *d);
    if (desc) *d = *desc;
    if (d->lo == 0 && d->hi == 0) {
        d->lo = -1;
        d->hi = 1;
    }
    if (width < 1 || height < 1 || channels < 1 || channels > 4 ||
        (double)width * height * channels > 1e9)
        return jem__fail(net->ctx, JEM_BAD_ARGUMENT,
                         "pixels: a picture of %d x %d pixels of %d bytes: sides must be at least "
                         "1, pixels have 1 to 4 bytes, a picture up to 10^9", width, height,
                         channels);
    if (net->channels != 1 && net->channels != 3)
        return jem__fail(net->ctx, JEM_BAD_SHAPE, "pixels: the network has %d channels, but "
                         "pictures have 1 or 3", net->channels);
    if (!jem__finite(d->lo) || !jem__finite(d->hi) || d->lo >= d->hi)
        return jem__fail(net->ctx, JEM_BAD_ARGUMENT, "pixels: desc.lo is %g and desc.hi is %g, but "
                         "lo must be below hi (or both 0: -1, 1)", (double)d->lo, (double)d->hi);
    const char *trained_over = jem_net_meta(net, jem__background_key);
    if (!d->background) d->background = jem__background_parse(trained_over);
    if (d->background < 0 || d->background > 255)
        return jem__fail(net->ctx, JEM_BAD_ARGUMENT, "pixels: desc.background is %d, not a grey "
                         "0..255", d->background);
    if (d->invert != 0 && d->invert != 1)
        return jem__fail(net->ctx, JEM_BAD_ARGUMENT, "pixels: desc.invert is %d, not 0 or 1",
                         d->invert);
    if (d->frame_all != 0 && d->frame_all != 1)
        return jem__fail(net->ctx, JEM_BAD_ARGUMENT, "pixels: desc.frame_all is %d, not 0 or 1",
                         d->frame_all);
    if (!(d->subject <= 2))
        return jem__fail(net->ctx, JEM_BAD_ARGUMENT, "pixels: desc.subject is %g, more than 2",
                         (double)d->subject);
    const int fit = (int)d->fit;
    if (fit < 0 || fit > JEM_FIT_PAD)
        return jem__fail(net->ctx, JEM_BAD_ARGUMENT, "pixels: desc.fit is %d, not a jem_fit", fit);
    return JEM_OK;
}

/* A picture with its size. */
typedef struct jem__bitmap {
    const unsigned char *pixels;
    int width, height, channels;
} jem__bitmap;

/* Value of white in sums of pixels, which are bytes times alphas, and therefore exact. */
static const double jem__white = 255 * 255;

JEM__COMPILE("O2")                                 /* all pixels of a picture pass here */
/* Sums pixels, blended with the background: grey in sum[0], or three colours. */
static void jem__sum_pixels(const unsigned char *p, int channels, int count, int background,
                            uint64_t sum[3]) {
    const uint64_t opaque = (uint64_t)count * 255;
    uint64_t alpha = opaque;
    uint64_t s[3] = { 0, 0, 0 };
    if (channels == 1) {
        for (int i = 0; i < count; i++) s[0] += p[i];
    } else if (channels == 2) {
        alpha = 0;
        for (int i = 0; i < count; i++, p += 2) {
            s[0] += (unsigned)p[0] * p[1];
            alpha += p[1];
        }
    } else if (channels == 3) {
        for (int i = 0; i < count; i++, p += 3) {
            s[0] += p[0];
            s[1] += p[1];
            s[2] += p[2];
        }
    } else {
        alpha = 0;
        for (int i = 0; i < count; i++, p += 4) {
            s[0] += (unsigned)p[0] * p[3];
            s[1] += (unsigned)p[1] * p[3];
            s[2] += (unsigned)p[2] * p[3];
            alpha += p[3];
        }
    }
    const uint64_t behind = (opaque - alpha) * (uint64_t)background;
    for (int k = 0; k < 3; k++) sum[k] = s[k] * (channels % 2 ? 255 : 1) + behind;
}
JEM__COMPILE_END

/* Adds `share` times the sum of `count` pixels of a row, from column `col` on, to sum[3]. */
static void jem__add_pixels(const jem__bitmap *p, int background, int row, int col, int count,
                            double share, double sum[3]) {
    const ptrdiff_t first = (ptrdiff_t)row * p->width + col;
    uint64_t s[3];
    if (count < 1 || share <= 0) return;
    jem__sum_pixels(p->pixels + first * p->channels, p->channels, count, background, s);
    for (int k = 0; k < 3; k++) sum[k] += share * (double)s[k];
}

/* Rectangle in a picture, in pixels; its sides may cut through pixels. */
typedef struct jem__area { double top, bottom, left, right; } jem__area;

/* Sums the part of a rectangle that is inside the picture. Returns its area. */
static double jem__sum_area(const jem__bitmap *p, int background, const jem__area *a,
                            double sum[3]) {
    const double top = fmax(a->top, 0);
    const double bottom = fmin(a->bottom, p->height);
    const double left = fmax(a->left, 0);
    const double right = fmin(a->right, p->width);
    memset(sum, 0, 3 * sizeof *sum);
    if (top >= bottom || left >= right) return 0;
    const int first = (int)ceil(left);             /* whole pixels: from first until last */
    const int last = (int)floor(right);
    for (int row = (int)top; row < bottom; row++) {
        const double height = fmin(row + 1, bottom) - fmax(row, top);
        if (first > last) {                        /* within one pixel */
            jem__add_pixels(p, background, row, last, 1, height * (right - left), sum);
            continue;
        }
        jem__add_pixels(p, background, row, first - 1, 1, height * (first - left), sum);
        jem__add_pixels(p, background, row, first, last - first, height, sum);
        jem__add_pixels(p, background, row, last, 1, height * (right - last), sum);
    }
    return (bottom - top) * (right - left);
}

/* Converts a sum by jem__sum_area to means 0..1 of 1 or 3 channels: grey as in Rec. 601. */
static void jem__means_of(const jem__bitmap *p, const jem_pixels_desc *d, int channels,
                          const double sum[3], double area, double mean[3]) {
    const int colour = p->channels > 2;
    const double white = area * jem__white;
    for (int k = 0; k < channels; k++) mean[k] = sum[colour ? k : 0] / white;
    if (channels == 1 && colour)
        mean[0] = (0.299 * sum[0] + 0.587 * sum[1] + 0.114 * sum[2]) / white;
    for (int k = 0; d->invert && k < channels; k++) mean[k] = 1 - mean[k];
}

/* ---- framing --------------------------------------------------------------------------------- */

static const char *const jem__framing_key = "jem.framing";

/* Numbers of a framing: the ground, 0 dark or 1 bright; the subject's share of the side; its
   centre, as shares of height and width. Then, unless these are the ends of the pictures' range,
   the values of the ground and of the strongest ink. */
enum {
    JEM__GROUND = 0, JEM__SHARE, JEM__CENTRE_Y, JEM__CENTRE_X,
    JEM__GROUND_VALUE, JEM__INK_VALUE, JEM__FRAMING
};

/* Parses the text "jem.framing"; returns 0 if it is invalid. */
static int jem__framing_parse(const char *text, float *f) {
    f[JEM__GROUND_VALUE] = 0;
    f[JEM__INK_VALUE] = 0;
    const int count = jem__numbers_parse(text, f, JEM__FRAMING);
    if (count != JEM__GROUND_VALUE && count != JEM__FRAMING) return 0;
    if (count == JEM__FRAMING && f[JEM__GROUND] > 0 && !(f[JEM__INK_VALUE] < f[JEM__GROUND_VALUE]))
        return 0;
    if (count == JEM__FRAMING && f[JEM__GROUND] <= 0 && !(f[JEM__INK_VALUE] > f[JEM__GROUND_VALUE]))
        return 0;
    if (f[JEM__GROUND] != 0 && f[JEM__GROUND] != 1) return 0;
    if (!(f[JEM__SHARE] > 0) || f[JEM__SHARE] > 2) return 0;
    return f[JEM__CENTRE_Y] >= 0 && f[JEM__CENTRE_Y] <= 1 && f[JEM__CENTRE_X] >= 0 &&
           f[JEM__CENTRE_X] <= 1;
}

/* Sums of ink: its amount and moments, and its bounding box. */
typedef struct jem__ink { double mass, y, x; int top, bottom, left, right; } jem__ink;

/* Adds a pixel with `ink` from 0 to 1. Ink up to a quarter counts as ground, whose shades would
   outweigh a small subject in a large photo. Only ink above a half extends the bounding box. */
static void jem__ink_add(jem__ink *s, int row, int column, double ink) {
    const double above_ground = ink - 0.25;
    if (above_ground <= 0) return;
    s->mass += above_ground;
    s->y += above_ground * (row + 0.5);
    s->x += above_ground * (column + 0.5);
    if (ink <= 0.5) return;
    if (s->top > row) s->top = row;
    if (s->bottom <= row) s->bottom = row + 1;
    if (s->left > column) s->left = column;
    if (s->right <= column) s->right = column + 1;
}
static jem__ink jem__ink_none(int height, int width) {
    const jem__ink s = { 0, 0, 0, height, 0, width, 0 };
    return s;
}
/* Returns the larger side of the bounding box, 0 without ink. */
static int jem__ink_side(const jem__ink *s) {
    const int height = s->bottom - s->top;
    const int width = s->right - s->left;
    if (height < 1 || width < 1) return 0;
    return height > width ? height : width;
}

/* Sets *ground (0 dark, 1 bright) to the end of lo..hi that has more border values of n images
   within a tenth of the range. Returns 1 if it has at least 95% of them. */
static int jem__plain_border(const jem_net *net, const float *x, int n, float lo, float hi,
                             int *ground) {
    double near_end[2] = { 0, 0 };
    double all = 0;
    for (int i = 0; i < n; i++)
        for (int row = 0; row < net->height; row++)
            for (int col = 0; col < net->width; col++) {
                const int inner = row > 0 && row + 1 < net->height && col > 0 &&
                                  col + 1 < net->width;
                if (inner) continue;
                const float v = x[((ptrdiff_t)i * net->height + row) * net->width + col];
                near_end[0] += v - lo <= 0.1f * (hi - lo);
                near_end[1] += hi - v <= 0.1f * (hi - lo);
                all++;
            }
    *ground = near_end[1] > near_end[0];
    return hi > lo && near_end[*ground] >= 0.95 * all;
}

/* Returns the median of n numbers, n > 0; sorts them. */
static float jem__median_float(float *v, int n) {
    qsort(v, (size_t)n, sizeof *v, jem__compare_floats);
    return v[n / 2];
}

/* Measures n images; returns 0 if they have no framing. scratch[3 * n]. */
static int jem__framing_of_data(const jem_net *net, const float *x, int n, float *scratch,
                                float *f) {
    float *const side = scratch;
    float *const darkest = scratch + n;
    float *const brightest = scratch + 2 * (ptrdiff_t)n;
    const ptrdiff_t size = jem__image_size(net);
    float lo = x[0];
    float hi = x[0];
    double centre_y = 0;
    double centre_x = 0;
    int ground = 0;
    int count = 0;
    for (ptrdiff_t i = 0; i < n * size; i++) {
        lo = fminf(lo, x[i]);
        hi = fmaxf(hi, x[i]);
    }
    if (!jem__plain_border(net, x, n, lo, hi, &ground)) return 0;
    for (int i = 0; i < n; i++) {
        jem__ink s = jem__ink_none(net->height, net->width);
        float least = x[i * size];
        float most = x[i * size];
        for (ptrdiff_t k = 0; k < size; k++) {
            const double part = ((double)x[i * size + k] - (double)lo) / ((double)hi - (double)lo);
            jem__ink_add(&s, (int)(k / net->width), (int)(k % net->width),
                         ground ? 1 - part : part);
            least = fminf(least, x[i * size + k]);
            most = fmaxf(most, x[i * size + k]);
        }
        if (!jem__ink_side(&s)) continue;
        darkest[count] = least;
        brightest[count] = most;
        side[count++] = (float)jem__ink_side(&s);
        centre_y += s.y / s.mass;
        centre_x += s.x / s.mass;
    }
    if (!count) return 0;
    const float dark = jem__median_float(darkest, count);
    const float bright = jem__median_float(brightest, count);
    const float most = (float)JEM__MOST_WRITTEN;
    if (dark >= bright) return 0;                  /* most of these images have a single colour */
    if (dark < -most || bright > most) return 0;
    f[JEM__GROUND_VALUE] = ground ? bright : dark;
    f[JEM__INK_VALUE] = ground ? dark : bright;
    f[JEM__GROUND] = (float)ground;
    f[JEM__SHARE] = jem__median_float(side, count) /
                    (float)(net->height > net->width ? net->height : net->width);
    f[JEM__CENTRE_Y] = (float)(centre_y / count / net->height);
    f[JEM__CENTRE_X] = (float)(centre_x / count / net->width);
    return 1;
}

jem_status jem_net_fit_framing(jem_net *net, const float *x, int n) {
    if (!net) return JEM_BAD_ARGUMENT;
    if (!jem_ok(net->ctx)) return net->ctx->status;
    if (!jem__has_images(net->ctx, "net_fit_framing", x, n)) return net->ctx->status;
    if (jem__images_check(net, "net_fit_framing", x, n) != JEM_OK) return net->ctx->status;
    float f[JEM__FRAMING];
    float *scratch = jem__alloc_floats(net->ctx, 3 * (ptrdiff_t)n);
    if (!scratch) return JEM_NO_MEMORY;
    const int has = net->channels == 1 && jem__framing_of_data(net, x, n, scratch, f);
    jem__free(net->ctx, scratch);
    if (!has) return jem_net_set_meta(net, jem__framing_key, NULL);
    const float ends = fmaxf(fabsf(f[JEM__GROUND_VALUE]), fabsf(f[JEM__INK_VALUE]));
    const float range = fabsf(f[JEM__INK_VALUE] - f[JEM__GROUND_VALUE]);
    const int full = ends <= 1 && range >= 2;      /* -1 and 1, as of pictures by default */
    return jem__numbers_write(net, &net->meta, jem__framing_key, f,
                              full ? JEM__GROUND_VALUE : JEM__FRAMING);
}

/* Returns 1, and writes the framing that a picture gets to f; returns 0 if it gets none. */
static int jem__framing_for(const jem_net *net, const jem__bitmap *p, const jem_pixels_desc *d,
                            float *f) {
    const int same_size = p->width == net->width && p->height == net->height;
    if (net->channels != 1 || d->subject < 0) return 0;
    const int stored = jem__framing_parse(jem_net_meta(net, jem__framing_key), f);
    if (d->subject > 0) {
        if (!stored) {
            f[JEM__GROUND] = 0;
            f[JEM__GROUND_VALUE] = 0;
            f[JEM__INK_VALUE] = 0;
        }
        f[JEM__SHARE] = d->subject;
        f[JEM__CENTRE_Y] = 0.5f;
        f[JEM__CENTRE_X] = 0.5f;
        return 1;
    }
    return stored && (!same_size || d->frame_all);
}

/* A picture's ground, a grey 0..255; contrast: the grey of the strongest ink minus that. `pixel` is
   the side of the area that becomes one pixel of the image; the first area is at (top, left). */
typedef struct jem__view { int ground, contrast; double pixel, top, left; } jem__view;

enum { JEM__RUN = 256 };                           /* pixels that become grey bytes at once */

/* The pixels of a rectangle that are read: in every step-th row, every step-th one. */
typedef struct jem__scan { int top, bottom, left, right, step; } jem__scan;

/* Returns all pixels of a picture; of a large one, if it may be thinned, about 2^18 of them, at
   least 64 in each row and column. */
static jem__scan jem__scan_of(const jem__bitmap *p, int thinned) {
    enum { IN_A_ROW = 64 };
    const double enough = 1 << 18;
    jem__scan scan = { 0, p->height, 0, p->width, 1 };
    const int shorter = p->height < p->width ? p->height : p->width;
    const double pixels = (double)p->width * p->height;
    const int widest = thinned ? shorter / IN_A_ROW : 1;
    while (scan.step < widest && pixels / scan.step / scan.step > enough) scan.step++;
    if (scan.step % 2 == 0 && scan.step < widest) scan.step++;     /* has a middle */
    scan.top = scan.step / 2;
    scan.left = scan.step / 2;
    return scan;
}

/* A run of greys of a scan, within a row. */
typedef struct jem__run_of_greys {
    jem__scan scan;
    int row, col, count;
    unsigned char grey[JEM__RUN];
} jem__run_of_greys;

/* Prepares the runs of a scan; jem__greys_next advances to the first. */
static void jem__greys_begin(jem__run_of_greys *run, jem__scan scan) {
    run->scan = scan;
    run->row = scan.top;
    run->col = scan.left;
    run->count = 0;
}

JEM__COMPILE("O2")
JEM__INLINE void jem__greys_of(const unsigned char *p, int channels, int step,
                               const jem_pixels_desc *d, int count, unsigned char *grey) {
    for (ptrdiff_t i = 0; i < count; i++) {
        const unsigned char *pixel = p + i * channels * step;
        const int colour = channels > 2;
        const unsigned alpha = channels % 2 ? 255u : pixel[channels - 1];
        const unsigned v = colour ? 299u * pixel[0] + 587u * pixel[1] + 114u * pixel[2]
                                  : 1000u * pixel[0];
        const unsigned behind = 1000u * (unsigned)d->background;
        const unsigned level = (v * alpha + behind * (255 - alpha) + 127500) / 255000;
        grey[i] = (unsigned char)(d->invert ? 255 - level : level);
    }
}
/* Advances to the next run of a picture, and converts it, rounded. Returns 0 after the last. */
static int jem__greys_next(const jem__bitmap *p, const jem_pixels_desc *d, jem__run_of_greys *run) {
    const jem__scan *scan = &run->scan;
    run->col += run->count * scan->step;
    if (run->col >= scan->right) {
        run->col = scan->left;
        run->row += scan->step;
    }
    if (run->row >= scan->bottom) return 0;
    run->count = (scan->right - run->col + scan->step - 1) / scan->step;
    if (run->count > JEM__RUN) run->count = JEM__RUN;
    const ptrdiff_t pixel = (ptrdiff_t)run->row * p->width + run->col;
    const unsigned char *from = p->pixels + pixel * p->channels;
    if (p->channels == 1) jem__greys_of(from, 1, scan->step, d, run->count, run->grey);
    else if (p->channels == 2) jem__greys_of(from, 2, scan->step, d, run->count, run->grey);
    else if (p->channels == 3) jem__greys_of(from, 3, scan->step, d, run->count, run->grey);
    else jem__greys_of(from, 4, scan->step, d, run->count, run->grey);
    return 1;
}

/* Returns the median of the greys from lo to hi, of which there are n; lo if n is 0. */
static int jem__median_grey(const ptrdiff_t histogram[256], int lo, int hi, ptrdiff_t n) {
    ptrdiff_t below = histogram[lo];
    int v = lo;
    while (v < hi && 2 * below < n) {
        v++;
        below += histogram[v];
    }
    return v;
}

/* Adds the pixels of a scan to the counts of their greys. Neighbours are counted in different
   arrays: they often have the same grey, and an increment has to wait for the previous one of the
   same counter. */
static void jem__greys_count(const jem__bitmap *p, const jem_pixels_desc *d, jem__scan scan,
                             ptrdiff_t histogram[256]) {
    enum { ARRAYS = 4 };
    ptrdiff_t count[ARRAYS][256];
    jem__run_of_greys run;
    memset(count, 0, sizeof count);
    jem__greys_begin(&run, scan);
    while (jem__greys_next(p, d, &run))
        for (int i = 0; i < run.count; i++) count[i % ARRAYS][run.grey[i]]++;
    for (int v = 0; v < 256; v++)
        for (int k = 0; k < ARRAYS; k++) histogram[v] += count[k][v];
}
/* Counts the greys of the outermost pixels of a picture, each pixel once. */
static void jem__rim_count(const jem__bitmap *p, const jem_pixels_desc *d, ptrdiff_t rim[256]) {
    const int h = p->height;
    const int w = p->width;
    const jem__scan top = { 0, 1, 0, w, 1 };
    const jem__scan left = { 1, h, 0, 1, 1 };
    const jem__scan bottom = { h - 1, h > 1 ? h : 0, 1, w, 1 };
    const jem__scan right = { 1, h - 1, w - 1, w > 1 ? w : 0, 1 };
    memset(rim, 0, 256 * sizeof *rim);
    jem__greys_count(p, d, top, rim);
    jem__greys_count(p, d, left, rim);
    jem__greys_count(p, d, bottom, rim);
    jem__greys_count(p, d, right, rim);
}

enum { JEM__LEAST_CONTRAST = 32 };                 /* least span of greys of a picture with a
                                                      subject */

/* Returns 1 if a colour of an RGBA picture, blended, spans at least JEM__LEAST_CONTRAST. */
static int jem__colours_show(const jem__bitmap *p, int background) {
    const ptrdiff_t pixels = (ptrdiff_t)p->width * p->height;
    unsigned lowest[3] = { 255, 255, 255 };
    unsigned highest[3] = { 0, 0, 0 };
    for (ptrdiff_t i = 0; i < pixels; i++) {
        const unsigned char *pixel = p->pixels + 4 * i;
        const unsigned behind = (unsigned)background * (255u - pixel[3]);
        for (int k = 0; k < 3; k++) {
            const unsigned v = (pixel[k] * (unsigned)pixel[3] + behind + 127) / 255;
            if (lowest[k] > v) lowest[k] = v;
            if (highest[k] < v) highest[k] = v;
            if (highest[k] >= lowest[k] + JEM__LEAST_CONTRAST) return 1;
        }
    }
    return 0;
}
/* Returns 1 if a picture's greys span at least JEM__LEAST_CONTRAST; for an RGBA picture and a
   network of three channels, if one of the colour channels does. */
static int jem__shows(const jem_net *net, const jem__bitmap *p, const jem_pixels_desc *d) {
    if (net->channels == 3 && p->channels == 4) return jem__colours_show(p, d->background);
    jem__run_of_greys run;
    int darkest = 255;
    int brightest = 0;
    jem__greys_begin(&run, jem__scan_of(p, 0));
    while (brightest - darkest < JEM__LEAST_CONTRAST && jem__greys_next(p, d, &run))
        for (int i = 0; i < run.count; i++) {
            if (darkest > run.grey[i]) darkest = run.grey[i];
            if (brightest < run.grey[i]) brightest = run.grey[i];
        }
    return brightest - darkest >= JEM__LEAST_CONTRAST;
}

/* Finds the ground: the median of the greys closer than a quarter of the range to one end of it. At
   least three quarters of the rim are near that end, whatever the subject covers; otherwise half of
   the picture. Returns 0 if neither holds, or the range is below JEM__LEAST_CONTRAST. */
static int jem__view_ground(const jem__bitmap *p, const jem_pixels_desc *d, jem__scan scan,
                            jem__view *view) {
    ptrdiff_t histogram[256];
    ptrdiff_t rim[256];
    int darkest = 0;
    int brightest = 255;
    ptrdiff_t near_end[2] = { 0, 0 };
    ptrdiff_t rim_near[2] = { 0, 0 };
    ptrdiff_t in_picture = 0;
    ptrdiff_t in_rim = 0;
    memset(histogram, 0, sizeof histogram);
    jem__greys_count(p, d, scan, histogram);
    jem__rim_count(p, d, rim);
    for (int v = 0; v < 256; v++) {
        in_picture += histogram[v];
        in_rim += rim[v];
    }
    while (!histogram[darkest]) darkest++;
    while (!histogram[brightest]) brightest--;
    const int contrast = brightest - darkest;
    for (int v = 0; v < 256; v++) {
        for (int k = 0; k < 2; k++) {
            if (4 * (k ? brightest - v : v - darkest) >= contrast) continue;
            near_end[k] += histogram[v];
            rim_near[k] += rim[v];
        }
    }
    const int plain_rim = 4 * rim_near[0] >= 3 * in_rim || 4 * rim_near[1] >= 3 * in_rim;
    int bright = near_end[1] > near_end[0];
    if (plain_rim) bright = rim_near[1] > rim_near[0];
    const int quarter = (contrast - 1) / 4;         /* as in near_end */
    if (bright) view->ground = jem__median_grey(histogram, brightest - quarter, brightest,
                                                near_end[1]);
    else view->ground = jem__median_grey(histogram, darkest, darkest + quarter, near_end[0]);
    view->contrast = (bright ? darkest : brightest) - view->ground;
    return contrast >= JEM__LEAST_CONTRAST &&
           (plain_rim || 2 * near_end[bright] >= in_picture);
}

/* Measures the ink in the pixels of a scan, in a picture with a ground. */
static jem__ink jem__view_ink(const jem__bitmap *p, const jem_pixels_desc *d,
                              const jem__view *view, jem__scan scan) {
    jem__run_of_greys run;
    jem__ink s = jem__ink_none(p->height, p->width);
    jem__greys_begin(&run, scan);
    while (jem__greys_next(p, d, &run))
        for (int i = 0; i < run.count; i++) {
            const int above = run.grey[i] - view->ground;
            if (above)
                jem__ink_add(&s, run.row, run.col + i * scan.step, (double)above / view->contrast);
        }
    return s;
}
/* Returns the larger side of the subject, given the ink that a scan has met; measures a small
   subject again, with all pixels near it. */
static int jem__view_side(const jem__bitmap *p, const jem_pixels_desc *d, const jem__view *view,
                          jem__scan scan, const jem__ink *met) {
    enum { LARGE = 64 };                           /* steps of the scan */
    const int step = scan.step;
    const int side = jem__ink_side(met);
    if (step == 1 || side < 1) return side;
    if (side >= LARGE * step) return side + step - 1;
    const jem__scan all = { met->top < step ? 0 : met->top - step,
                            met->bottom > p->height - step ? p->height : met->bottom + step,
                            met->left < step ? 0 : met->left - step,
                            met->right > p->width - step ? p->width : met->right + step, 1 };
    const jem__ink seen = jem__view_ink(p, d, view, all);
    return jem__ink_side(&seen);
}
JEM__COMPILE_END

/* Returns 1 if a picture with an alpha channel shows only on the opposite background, for instance
   black ink on a transparent canvas. */
static int jem__needs_opposite(const jem_net *net, const jem__bitmap *p, const jem_pixels_desc *d) {
    jem_pixels_desc other = *d;
    other.background = 255 - d->background;
    return p->channels % 2 == 0 && !jem__shows(net, p, d) && jem__shows(net, p, &other);
}

/* Finds the part of a picture that shows its subject with the framing f; returns 0 if there is no
   such part. */
static int jem__view_find(const jem_net *net, const jem__bitmap *p, const jem_pixels_desc *d,
                          const float *f, jem__view *view) {
    jem__scan scan = jem__scan_of(p, 1);
    if (!jem__view_ground(p, d, scan, view)) {
        if (scan.step == 1) return 0;
        scan = jem__scan_of(p, 0);                 /* it may miss a dot */
        if (!jem__view_ground(p, d, scan, view)) return 0;
    }
    const jem__ink s = jem__view_ink(p, d, view, scan);
    const int subject = jem__view_side(p, d, view, scan, &s);
    if (!subject) return 0;
    const int side = net->height > net->width ? net->height : net->width;
    view->pixel = subject / ((double)f[JEM__SHARE] * side);
    view->top = s.y / s.mass - view->pixel * net->height * (double)f[JEM__CENTRE_Y];
    view->left = s.x / s.mass - view->pixel * net->width * (double)f[JEM__CENTRE_X];
    return 1;
}

/* Computes the mean ink, 0 to 1, of the area that pixel (i,j) of the image covers. Outside of the
   picture there is no ink. */
static double jem__view_mean(const jem__bitmap *p, const jem_pixels_desc *d, const jem__view *view,
                             int i, int j) {
    jem__area a;
    double sum[3];
    double mean[3];
    a.top = view->top + i * view->pixel;
    a.left = view->left + j * view->pixel;
    a.bottom = a.top + view->pixel;
    a.right = a.left + view->pixel;
    const double inside = jem__sum_area(p, d->background, &a, sum);
    if (!(inside > 0)) return 0;
    jem__means_of(p, d, 1, sum, inside, mean);
    const double ink = (255 * mean[0] - view->ground) / view->contrast;
    if (ink < 0) return 0;
    return fmin(ink, 1) * inside / (view->pixel * view->pixel);
}

/* Returns the sum of JEM_DID_... for a conversion, without those of framing and fitting. */
static int jem__pixels_did(const jem_net *net, const jem__bitmap *p, int invert) {
    int did = 0;
    if (p->width != net->width || p->height != net->height) did |= JEM_DID_RESIZE;
    if (p->channels > 2 && net->channels == 1) did |= JEM_DID_GREY;
    if (p->channels < 3 && net->channels == 3) did |= JEM_DID_COLOUR;
    if (p->channels % 2 == 0) did |= JEM_DID_BLEND;
    if (invert) did |= JEM_DID_INVERT;
    return did;
}

/* Converts a picture with its framing; returns 0 if it gets none. */
static int jem__pixels_framed(const jem_net *net, const jem__bitmap *p, const jem_pixels_desc *d,
                              float *x, int *did) {
    float f[JEM__FRAMING];
    jem__view view;
    if (!jem__framing_for(net, p, d, f) || !jem__view_find(net, p, d, f, &view)) return 0;
    const int bright = f[JEM__GROUND] > 0;
    double ground = (double)f[JEM__GROUND_VALUE];
    double ink = (double)f[JEM__INK_VALUE];
    if (ground == ink) {                           /* the ends of the range */
        ground = (double)(bright ? d->hi : d->lo);
        ink = (double)(bright ? d->lo : d->hi);
    }
    for (int i = 0; i < net->height; i++)
        for (int j = 0; j < net->width; j++) {
            const double part = jem__view_mean(p, d, &view, i, j);
            x[i * net->width + j] = (float)(ground + (ink - ground) * part);
        }
    const int ground_was_bright = (view.contrast < 0) != (d->invert != 0);
    *did = jem__pixels_did(net, p, ground_was_bright != bright) | JEM_DID_FRAME;
    return 1;
}

/* ---- fitting --------------------------------------------------------------------------------- */

static const char *const jem__fit_key = "jem.fit";
static const char *const jem__fit_names[] = { "", "stretch", "crop", "pad" };

/* Parses the text "jem.fit"; returns JEM_FIT_TRAINED if there is none, or it is invalid. */
static jem_fit jem__fit_parse(const char *text) {
    for (int i = JEM_FIT_STRETCH; text && i <= JEM_FIT_PAD; i++)
        if (!strcmp(text, jem__fit_names[i])) return (jem_fit)i;
    return JEM_FIT_TRAINED;
}

jem_status jem_net_set_fit(jem_net *net, jem_fit fit) {
    if (!net) return JEM_BAD_ARGUMENT;
    const int index = (int)fit;
    if (index < 0 || index > JEM_FIT_PAD)
        return jem__fail(net->ctx, JEM_BAD_ARGUMENT, "net_set_fit: %d is not a jem_fit", index);
    const char *name = index ? jem__fit_names[index] : NULL;
    return jem__meta_set(net->ctx, &net->meta, jem__fit_key, name);
}

jem_status jem_net_set_background(jem_net *net, int background) {
    char text[16];
    if (!net) return JEM_BAD_ARGUMENT;
    if (background < 0 || background > 255)
        return jem__fail(net->ctx, JEM_BAD_ARGUMENT, "net_set_background: %d is not a grey 0..255",
                         background);
    jem__print(text, sizeof text, "%d", background);
    return jem__meta_set(net->ctx, &net->meta, jem__background_key, background ? text : NULL);
}

/* Returns the area of a picture that fills the network's input; outside of the picture, it shows
   the background. Adds the flags of this fit to *did. */
static jem__area jem__fit_area(const jem_net *net, const jem__bitmap *p, jem_fit fit, int *did) {
    jem__area a = { 0, 0, 0, 0 };
    const double by_height = (double)p->width * net->height;
    const double by_width = (double)p->height * net->width;
    const int wide = by_height > by_width;
    a.bottom = p->height;
    a.right = p->width;
    if (fit == JEM_FIT_TRAINED) fit = jem__fit_parse(jem_net_meta(net, jem__fit_key));
    if (!(by_height < by_width) && !wide) return a;
    if (fit != JEM_FIT_CROP && fit != JEM_FIT_PAD) {
        *did |= JEM_DID_STRETCH;
        return a;
    }
    *did |= fit == JEM_FIT_CROP ? JEM_DID_CROP : JEM_DID_PAD;
    const int keeps_height = wide == (fit == JEM_FIT_CROP);
    if (keeps_height) {
        const double width = by_width / net->height;
        a.left = (p->width - width) / 2;
        a.right = a.left + width;
    } else {
        const double height = by_height / net->width;
        a.top = (p->height - height) / 2;
        a.bottom = a.top + height;
    }
    return a;
}

/* Converts an area of a picture to all of the network's input. */
static void jem__pixels_plain(const jem_net *net, const jem__bitmap *p, const jem_pixels_desc *d,
                              const jem__area *area, float *x) {
    const double range = (double)d->hi - (double)d->lo;
    const double behind = 255.0 * d->background;
    for (int i = 0; i < net->height; i++) {
        for (int j = 0; j < net->width; j++) {
            jem__area a;
            double sum[3];
            double mean[3];
            jem__cover(i, net->height, area->top, area->bottom, &a.top, &a.bottom);
            jem__cover(j, net->width, area->left, area->right, &a.left, &a.right);
            const double inside = jem__sum_area(p, d->background, &a, sum);
            const double whole = (a.bottom - a.top) * (a.right - a.left);
            for (int k = 0; k < 3; k++) sum[k] += (whole - inside) * behind;
            jem__means_of(p, d, net->channels, sum, whole, mean);
            for (int k = 0; k < net->channels; k++) {
                const ptrdiff_t row = (ptrdiff_t)k * net->height + i;
                x[row * net->width + j] = (float)((double)d->lo + range * mean[k]);
            }
        }
    }
}

/* Returns 1 if an image of several pixels has only one colour. */
static int jem__is_blank(const jem_net *net, const float *x) {
    const ptrdiff_t pixels = (ptrdiff_t)net->height * net->width;
    if (pixels == 1) return 0;
    for (int c = 0; c < net->channels; c++)
        for (ptrdiff_t i = 1; i < pixels; i++)
            if (x[c * pixels + i] < x[c * pixels] || x[c * pixels + i] > x[c * pixels]) return 0;
    return 1;
}

jem_status jem_pixels_to_floats(const jem_net *net, const unsigned char *pixels, int width,
                                int height, int channels, const jem_pixels_desc *desc, float *x,
                                int *did) {
    if (!net) return JEM_BAD_ARGUMENT;
    jem_pixels_desc d;
    const jem__bitmap picture = { pixels, width, height, channels };
    if (!pixels || !x)
        return jem__fail(net->ctx, JEM_BAD_ARGUMENT, "pixels_to_floats: %s is NULL",
                         pixels ? "x" : "pixels (could the file not be read?)");
    if (jem__pixels_check(net, width, height, channels, desc, &d)) return net->ctx->status;
    int done = 0;
    const int opposite = jem__needs_opposite(net, &picture, &d);
    if (opposite) d.background = 255 - d.background;
    if (!jem__pixels_framed(net, &picture, &d, x, &done)) {
        done = jem__pixels_did(net, &picture, d.invert);
        const jem__area area = jem__fit_area(net, &picture, d.fit, &done);
        jem__pixels_plain(net, &picture, &d, &area, x);
    }
    if (opposite) done |= JEM_DID_OPPOSITE;
    if (jem__is_blank(net, x)) done |= JEM_DID_BLANK;
    if (did) *did = done;
    return JEM_OK;
}

jem_status jem_floats_to_pixels(const jem_net *net, const float *x, int n,
                                const jem_pixels_desc *desc, unsigned char *pixels) {
    if (!net) return JEM_BAD_ARGUMENT;
    jem_pixels_desc d;
    if (!x || !pixels || n < 0)
        return jem__bad_arrays(net->ctx, "floats_to_pixels", n, "x", x, "pixels", pixels);
    if (jem__pixels_check(net, net->width, net->height, 1, desc, &d)) return net->ctx->status;
    const ptrdiff_t size = (ptrdiff_t)net->height * net->width;
    const double range = (double)d.hi - (double)d.lo;
    for (ptrdiff_t i = 0; i < n; i++) {
        const float *image = x + i * net->channels * size;
        for (ptrdiff_t p = 0; p < size; p++) {
            for (int c = 0; c < net->channels; c++) {
                double v = ((double)image[c * size + p] - (double)d.lo) / range;
                if (d.invert) v = 1 - v;
                if (!(v > 0)) v = 0;               /* NaN is black */
                if (v > 1) v = 1;
                *pixels++ = (unsigned char)(255 * v + 0.5);
            }
        }
    }
    return JEM_OK;
}

jem_status jem_classify_pixels(jem_net *net, const unsigned char *pixels, int width, int height,
                               int channels, const jem_pixels_desc *desc, jem_answer *answer,
                               int *did) {
    if (!net) return JEM_BAD_ARGUMENT;
    jem_ctx *ctx = net->ctx;
    if (!jem_ok(ctx)) return ctx->status;
    if (!pixels || !answer)
        return jem__fail(ctx, JEM_BAD_ARGUMENT, "classify_pixels: %s is NULL",
                         pixels ? "answer" : "pixels (could the file not be read?)");
    const jem_mark mark = jem_begin(ctx);
    float *x = jem__push_floats(ctx, jem__image_size(net));
    int done = 0;
    if (!did) did = &done;
    if (x && !jem_pixels_to_floats(net, pixels, width, height, channels, desc, x, did) &&
        !jem_classify(net, x, 1, answer) && (*did & JEM_DID_BLANK) && answer->reason)
        answer->reason = JEM_REASON_BLANK;
    jem_end(ctx, mark);
    return ctx->status;
}

jem_generate_desc jem_net_generate_desc(const jem_net *net) {
    jem_generate_desc d = jem_generate_desc_default();
    if (net && net->noise_hi > 0) {
        d.mean = net->mean;
        d.denoise.sigma_max = net->noise_hi;
        if (net->denoise_steps > 0) d.denoise.steps = net->denoise_steps;
        if (net->denoise_fraction > 0) d.denoise.fraction = net->denoise_fraction;
        d.last_sigma = 2 * net->noise_lo;
        if ((double)net->last_sigma >= JEM__TINY) d.last_sigma = net->last_sigma;
        /* the walk adds no more noise than the last phase removes */
        if (d.last_sigma > 0 && d.walk.noise_std > d.last_sigma) {
            d.walk.noise_std = d.last_sigma;
            d.walk.step_size = d.last_sigma * d.last_sigma;
        }
        return d;
    }
    d.lo = -1;
    d.hi = 1;
    d.denoise.steps = 0;
    d.last_sigma = 0;
    d.walk = jem_sgld_desc_default();
    d.walk.steps = 300;
    if (net && net->walk_step > 0) {
        d.walk.step_size = net->walk_step;
        d.walk.noise_std = net->walk_noise;
    } else if (net && jem__student(net)) {
        d.lo = -2;
        d.hi = 2;
        d.walk = jem_sgld_desc_langevin(0.01f, 1000);
    }
    return d;
}

jem_impute_desc jem_net_impute_desc(const jem_net *net) {
    const jem_generate_desc generate = jem_net_generate_desc(net);
    jem_impute_desc d = jem_impute_desc_default();
    d.walk = generate.walk;
    d.last_sigma = generate.last_sigma;
    if (net && net->noise_hi > 0) {                /* no clamp: the score covers noise beyond +-1 */
        d.denoise.steps = 300;
        d.denoise.sigma_max = net->noise_hi;
        return d;
    }
    d.lo = generate.lo;
    d.hi = generate.hi;
    if (!net || !jem__is_vector(net)) {
        d.walk.clamp_lo = -1;
        d.walk.clamp_hi = 1;
    }
    return d;
}

jem_generate_desc jem_net_draft_desc(const jem_net *net) {
    jem_generate_desc d = jem_net_generate_desc(net);
    if (!d.denoise.steps) return d;
    d.denoise.steps = 15;
    d.denoise.fraction = 0.3f;
    d.walk.steps = 45;
    return d;
}

jem_query jem_net_query(jem_net *net, const int *labels) {
    jem_query query;
    query.net = net;
    query.labels = labels;
    query.weight = 1;
    if (net && net->guidance > 0) query.weight = net->guidance;
    else if (net && net->noise_hi > 0 && net->scale > 1) query.weight = 7;
    return query;
}

jem_sampler *jem_net_sampler(jem_net *net, const int *labels, int n, uint64_t seed,
                             const jem_generate_desc *desc) {
    if (!net) return NULL;
    jem_ctx *ctx = net->ctx;
    if (n < 1)
        return (jem_sampler *)jem__refuse(ctx, JEM_BAD_ARGUMENT, "net_sampler: n is %d, below 1",
                                          n);
    const jem_generate_desc how = desc ? *desc : jem_net_generate_desc(net);
    const jem_shape shape = jem__shape(n, net->channels, net->height, net->width);
    const jem_rng rng = jem_rng_seed(seed);
    if (!labels) return jem_sampler_create(ctx, jem_logp, net, shape, &how, &rng);
    if (!jem__labels_good(ctx, "net_sampler", labels, n, net->classes)) return NULL;
    const size_t bytes = (size_t)n * sizeof *labels;
    jem_query *query = (jem_query *)jem__alloc(ctx, sizeof *query + bytes);
    if (!query) return NULL;
    int *copy = (int *)(void *)(query + 1);
    memcpy(copy, labels, bytes);
    *query = jem_net_query(net, copy);
    jem_sampler *s = jem_sampler_create(ctx, jem_logp_guided, query, shape, &how, &rng);
    if (s) s->owned = query;
    else jem__free(ctx, query);
    return s;
}

jem_status jem_sampler_set_labels(jem_sampler *s, const int *labels) {
    if (!s) return JEM_BAD_ARGUMENT;
    jem_query *query = (jem_query *)s->owned;
    if (!query)
        return jem__fail(s->ctx, JEM_BAD_ARGUMENT, "sampler_set_labels: the sampler was not made "
                         "by net_sampler with labels");
    if (!jem__labels_good(s->ctx, "sampler_set_labels", labels, s->n, query->net->classes))
        return jem_error_status(s->ctx);
    memcpy(query + 1, labels, (size_t)s->n * sizeof *labels);
    return JEM_OK;
}

jem_status jem_sample(jem_net *net, int label, int n, uint64_t seed, const jem_pixels_desc *desc,
                      unsigned char *pixels) {
    if (!net) return JEM_BAD_ARGUMENT;
    jem_ctx *ctx = net->ctx;
    jem_pixels_desc p;
    if (!pixels) return jem__fail(ctx, JEM_BAD_ARGUMENT, "sample: pixels is NULL");
    if (n < 1) return jem__fail(ctx, JEM_BAD_ARGUMENT, "sample: n is %d, below 1", n);
    if (label < -1 || label >= net->classes)
        return jem__fail(ctx, JEM_BAD_ARGUMENT, "sample: label %d is neither -1 (any class) nor in "
                         "0..%d", label, net->classes - 1);
    if (jem__pixels_check(net, net->width, net->height, 1, desc, &p)) return ctx->status;
    const jem_mark mark = jem_begin(ctx);
    int *labels = NULL;
    if (label >= 0) {
        labels = (int *)jem__push_array(ctx, n, sizeof *labels);
        for (int i = 0; labels && i < n; i++) labels[i] = label;
    }
    jem_generate_desc how = jem_net_generate_desc(net);
    const float *units = jem__units(net);
    if (how.lo < how.hi) {
        how.lo = units ? -2 : p.lo;
        how.hi = units ? 2 : p.hi;
    }
    jem_sampler *s = NULL;
    if (ctx->status == JEM_OK) s = jem_net_sampler(net, labels, n, seed, &how);
    if (jem_sampler_step(s, NULL) == JEM_OK) {
        if (units) jem__units_apply(net, units, s->x, n, s->x, 1);
        jem_floats_to_pixels(net, s->x, n, &p, pixels);
    }
    jem_sampler_free(s);
    jem_end(ctx, mark);
    return ctx->status;
}

/* ==== >>io: safetensors ======================================================================= */
/* A file consists of the header's length n (8 bytes, little-endian); n bytes of JSON,

       {"__metadata__": {"key": "text", ...},
        "name": {"dtype": "F32", "shape": [64,3,3,3], "data_offsets": [begin, end]}, ...}

   padded with spaces; then the tensors, row-major, little-endian. Offsets count from the end of the
   header; together the tensors cover the rest of the file, without gap or overlap.

   A file may be hostile, so it is read in three steps: parse a copy of the header, never reading
   outside of it; check it against the size of the file; only then allocate and copy the tensors. */

#include <inttypes.h>

#define JEM__MAX_HEADER 100000000u                 /* as in the reference implementation */

/* Types of numbers in files. The first four are those of jem_dtype, in the same order; the others
   are converted to `becomes` when read. */
typedef struct jem__dtype { const char *name; size_t size; jem_dtype becomes; } jem__dtype;
static const jem__dtype jem__dtypes[] = {
    { "F32", 4, JEM_DTYPE_F32 }, { "I32", 4, JEM_DTYPE_I32 },
    { "I64", 8, JEM_DTYPE_I64 }, { "U8", 1, JEM_DTYPE_U8 },
    { "F64", 8, JEM_DTYPE_F32 }, { "F16", 2, JEM_DTYPE_F32 }, { "BF16", 2, JEM_DTYPE_F32 },
    { "BOOL", 1, JEM_DTYPE_U8 }
};
enum { JEM__F64 = 4, JEM__F16, JEM__BF16, JEM__BOOL, JEM__DTYPES };
#define JEM__READABLE "F32, F64, F16, BF16, I64, I32, U8, BOOL can"

/* A tensor of an archive. */
typedef struct jem__entry {
    jem_entry e;
    void *owned;                                   /* e.data, if it was read from a file */
    int dtype;                                     /* in the file: index into jem__dtypes; -1 if
                                                      it is not one of these */
    size_t begin, end;                             /* data_offsets, in the file that was read or is
                                                      being written */
    int keep_f32;                                  /* 1: never written as BF16 */
} jem__entry;

struct jem_archive {
    jem_ctx *ctx;
    const char *where;                             /* for messages: the path, or "archive" */
    jem__entry **entries;                          /* pointers, so that a jem_entry * stays valid
                                                      when the list grows */
    int count, capacity;
    jem__entry **skipped;                          /* entries of other dtypes, without data */
    int skips;
    int bf16;                                      /* 1: F32 is written as BF16 */
    jem__meta *meta;
};

/* ---- numbers, and system calls for files ----------------------------------------------------- */
#include <errno.h>

/* Copies numbers of `width` bytes, a power of two, between native byte order and the file's, which
   is little-endian. */
static void jem__copy_numbers(void *to, const void *from, size_t bytes, size_t width) {
    const uint16_t one = 1;
    const int little_endian = *(const unsigned char *)&one;
    if (little_endian) {
        if (bytes) memcpy(to, from, bytes);
        return;
    }
    for (size_t i = 0; i < bytes; i++)
        ((unsigned char *)to)[i ^ (width - 1)] = ((const unsigned char *)from)[i];
}

#ifndef JEM_NO_STDIO
#include <fcntl.h>
#include <sys/stat.h>
#include <time.h>
#ifdef _WIN32
#include <io.h>
#include <wchar.h>
#ifdef __cplusplus
extern "C" {
#endif
/* The only functions needed from windows.h. */
__declspec(dllimport) int __stdcall MultiByteToWideChar(unsigned, unsigned long, const char *, int,
                                                        wchar_t *, int);
__declspec(dllimport) int __stdcall MoveFileExW(const wchar_t *, const wchar_t *, unsigned long);
__declspec(dllimport) unsigned long __stdcall GetLastError(void);
__declspec(dllimport) void __stdcall Sleep(unsigned long);
#ifdef __cplusplus
}
#endif
#define JEM__SYS(name) _##name
#define JEM__CREATE(path, mode) jem__create(path)
#define JEM__OPEN(path) jem__open(path)
#define JEM__REMOVE(path) jem__remove(path)
#define JEM__RENAME(from, to) jem__rename(from, to)
#define JEM__FSYNC _commit
#define JEM__SEEK _fseeki64                        /* a long has 32 bits there */
#define JEM__TELL _ftelli64

typedef struct jem__wide { wchar_t path[2048]; } jem__wide;

/* Converts a path from UTF-8 or, if it is not valid UTF-8, from the system's code page. Returns 0,
   with errno, if it is too long. */
static int jem__widen(const char *path, jem__wide *wide) {
    enum { UTF8 = 65001, SYSTEM = 0, ONLY_VALID = 8, NOT_VALID = 1113 };
    const int room = (int)(sizeof wide->path / sizeof *wide->path);
    int n = MultiByteToWideChar(UTF8, ONLY_VALID, path, -1, wide->path, room);
    if (!n && GetLastError() == NOT_VALID)
        n = MultiByteToWideChar(SYSTEM, 0, path, -1, wide->path, room);
    if (!n) errno = ENAMETOOLONG;
    return n;
}

/* Opens a file. Returns -1, with errno, on failure. Child processes do not inherit the file: it
   could not be renamed while they kept it open. */
static int jem__open_wide(const char *path, int flags) {
    jem__wide wide;
    if (!jem__widen(path, &wide)) return -1;
    return _wopen(wide.path, flags | _O_BINARY | _O_NOINHERIT, _S_IREAD | _S_IWRITE);
}
static int jem__create(const char *path) {
    return jem__open_wide(path, _O_WRONLY | _O_CREAT | _O_EXCL);
}
static FILE *jem__open(const char *path) {
    const int fd = jem__open_wide(path, _O_RDONLY);
    FILE *f = NULL;
    if (fd >= 0) f = _fdopen(fd, "rb");
    if (fd >= 0 && !f) _close(fd);
    return f;
}
static void jem__remove(const char *path) {
    jem__wide wide;
    if (jem__widen(path, &wide)) _wremove(wide.path);
}

/* Returns the errno of a Windows error; 0 for the less common ones. */
static int jem__errno_of(unsigned long error) {
    switch (error) {
    case 2: case 3: return ENOENT;
    case 5: case 32: return EACCES;                /* denied; open in another program */
    case 17: return EXDEV;
    case 112: return ENOSPC;
    default: return 0;
    }
}
/* Renames a file over another. Virus scanners open new files for a moment, so it tries again for
   100 ms. Returns -1, with errno, on failure. */
static int jem__rename(const char *from, const char *to) {
    enum { MAY_REPLACE = 1, ON_DISK = 8, TRIES = 6, PAUSE = 20 };
    jem__wide wide_from;
    jem__wide wide_to;
    if (!jem__widen(from, &wide_from) || !jem__widen(to, &wide_to)) return -1;
    for (int i = 0; i < TRIES; i++) {
        if (i > 0) Sleep(PAUSE);
        if (MoveFileExW(wide_from.path, wide_to.path, MAY_REPLACE | ON_DISK)) return 0;
        errno = jem__errno_of(GetLastError());
        if (errno != EACCES) break;
    }
    return -1;
}
#else
#include <unistd.h>
#define JEM__SYS(name) name
#define JEM__CREATE(path, mode) open(path, O_WRONLY | O_CREAT | O_EXCL, mode)
#define JEM__OPEN(path) fopen(path, "rb")
#define JEM__REMOVE(path) remove(path)
#define JEM__RENAME(from, to) rename(from, to)
#define JEM__FSYNC fsync
#define JEM__SEEK fseek
#define JEM__TELL ftell
#if defined(__GLIBC__) && defined(__STRICT_ANSI__) && !defined(__USE_XOPEN2K)
extern ssize_t readlink(const char *, char *, size_t);     /* hidden by -std=c99 */
extern int fchmod(int, mode_t);
#endif
#endif

static int jem__file_put(int fd, const char *bytes, size_t size) {
    const size_t most = (size_t)1 << 30;           /* of a call: its result may be an int */
    while (size > 0) {
        size_t n = size;
        if (n > most) n = most;
        const ptrdiff_t done = JEM__SYS(write)(fd, bytes, (unsigned)n);
        if (done > 0) {
            bytes += done;
            size -= (size_t)done;
        } else if (done == 0 || errno != EINTR) return 0;
    }
    return 1;
}

/* Flushes a file to the disk. Returns 0, with errno, on failure; 1 if the file system does not
   support it. */
static int jem__file_sync(int fd) {
    while (JEM__FSYNC(fd) != 0) {
        if (errno == EINTR) continue;
        return errno == EINVAL || errno == ENOTSUP || errno == ENOSYS;
    }
    return 1;
}
#endif /* JEM_NO_STDIO */

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
    if (!a || i < 0 || i >= a->count) return NULL;
    return &a->entries[i]->e;
}
static jem__entry *jem__archive_find(const jem_archive *a, const char *name) {
    for (int i = 0; a && name && i < a->count; i++) {
        if (!strcmp(a->entries[i]->e.name, name)) return a->entries[i];
    }
    return NULL;
}
const jem_entry *jem_archive_find(const jem_archive *a, const char *name) {
    const jem__entry *entry = jem__archive_find(a, name);
    return entry ? &entry->e : NULL;
}

jem_status jem_archive_set_bf16(jem_archive *a, int on) {
    if (!a) return JEM_BAD_ARGUMENT;
    a->bf16 = on != 0;
    return JEM_OK;
}
jem_status jem_archive_keep_f32(jem_archive *a, const char *name) {
    if (!a) return JEM_BAD_ARGUMENT;
    jem__entry *entry = jem__archive_find(a, name);
    if (!entry)
        return jem__fail(a->ctx, JEM_BAD_ARGUMENT, "archive_keep_f32: the archive has no array "
                         "\"%.80s\"", name ? name : "");
    entry->keep_f32 = 1;
    return JEM_OK;
}

jem_status jem_archive_set_meta(jem_archive *a, const char *key, const char *value) {
    if (!a) return JEM_BAD_ARGUMENT;
    return jem__meta_set(a->ctx, &a->meta, key, value);
}
const char *jem_archive_meta(const jem_archive *a, const char *key) {
    if (!a || !key) return NULL;
    return jem__meta_get(a->meta, key);
}

/* Returns the count of numbers in a tensor of this shape; -1 if a size is negative or there are too
   many to address. */
static ptrdiff_t jem__elements(int ndim, const int64_t *shape) {
    const int64_t most = PTRDIFF_MAX / 16;         /* of at most 8 bytes; half of the addresses
                                                      remain for everything else */
    int64_t n = 1;
    int empty = 0;
    for (int i = 0; i < ndim; i++) {
        if (shape[i] < 0) return -1;
        if (!shape[i]) empty = 1;
    }
    for (int i = 0; i < ndim && !empty; i++) {
        if (n > most / shape[i]) return -1;
        n *= shape[i];
    }
    return empty ? 0 : (ptrdiff_t)n;
}

/* Makes room for one more entry. Returns 0 if memory runs out. */
static int jem__archive_grow(jem_archive *a) {
    if (a->count < a->capacity) return 1;
    const size_t bytes = (size_t)a->count * sizeof *a->entries;
    jem__entry **more = (jem__entry **)jem__alloc(a->ctx, 2 * bytes + 16 * sizeof *more);
    if (!more) return 0;
    if (bytes) memcpy(more, a->entries, bytes);
    jem__free(a->ctx, a->entries);
    a->entries = more;
    a->capacity = 2 * a->count + 16;
    return 1;
}

/* Appends an entry. The caller has checked name, ndim and shape. */
static jem__entry *jem__archive_append(jem_archive *a, const char *name, int dtype, int ndim,
                                       const int64_t *shape) {
    if (!jem__archive_grow(a)) return NULL;
    const size_t length = strlen(name);
    jem__entry *entry = (jem__entry *)jem__alloc(a->ctx, sizeof(jem__entry) + length + 1);
    if (!entry) return NULL;
    memcpy(entry + 1, name, length);
    entry->dtype = dtype;
    entry->e.name = (const char *)(entry + 1);
    entry->e.dtype = JEM_DTYPE_U8;
    if (dtype >= 0) entry->e.dtype = jem__dtypes[dtype].becomes;
    entry->e.ndim = ndim;
    for (int i = 0; i < ndim; i++) entry->e.shape[i] = shape[i];
    entry->e.bytes = (size_t)jem__elements(ndim, shape) * jem__dtypes[entry->e.dtype].size;
    a->entries[a->count++] = entry;
    return entry;
}

/* Returns the reason why a tensor cannot be added; NULL if it can be. */
static const char *jem__entry_refused(const jem_archive *a, const char *name, jem_dtype dtype,
                                      int ndim, const int64_t *shape, const void *data) {
    if (!name) return "the name is NULL";
    if (!jem__utf8_valid(name, strlen(name))) return "the name is not UTF-8";
    if (!strcmp(name, "__metadata__")) return "this name is reserved";
    if (jem_archive_find(a, name)) return "this name already exists";
    if ((int)dtype < 0 || (int)dtype > JEM_DTYPE_U8) return "unknown dtype";
    if (ndim < 0 || ndim > 8) return "must have 0 to 8 dimensions";
    if (ndim && !shape) return "shape is NULL";
    const ptrdiff_t n = jem__elements(ndim, shape);
    if (n < 0) return "a size is negative or too large";
    if (n && !data) return "data is NULL";
    return NULL;
}

jem_status jem_archive_add(jem_archive *a, const char *name, jem_dtype dtype, int ndim,
                           const int64_t *shape, const void *data) {
    if (!a) return JEM_BAD_ARGUMENT;
    const char *wrong = jem__entry_refused(a, name, dtype, ndim, shape, data);
    if (!name) name = "";
    if (wrong)
        return jem__fail(a->ctx, JEM_BAD_ARGUMENT, "archive_add: \"%.80s\": %s", name, wrong);
    jem__entry *entry = jem__archive_append(a, name, (int)dtype, ndim, shape);
    if (!entry) return JEM_NO_MEMORY;
    entry->e.data = data;
    return JEM_OK;
}

/* ---- writing --------------------------------------------------------------------------------- */
/* The header is generated twice by the same code: with out = NULL to measure it, then in place. */

typedef struct jem__text { char *out; size_t n, room; } jem__text;

/* Appends text and whole numbers, which are the same in all locales (others need jem__print). */
JEM__PRINTF(2, 3) static void jem__put(jem__text *t, const char *format, ...) {
    char *to = NULL;
    size_t room = 0;
    if (t->out) {
        to = t->out + t->n;
        room = t->room - t->n;
    }
    va_list list;
    va_start(list, format);
    t->n += (size_t)vsnprintf(to, room, format, list);
    va_end(list);
}

/* Writes `before`, then s as a string of JSON. */
static void jem__put_json(jem__text *t, const char *before, const char *s) {
    jem__put(t, "%s\"", before);
    for (; *s; s++) {
        const unsigned char c = (unsigned char)*s;
        if (c < 0x20) jem__put(t, "\\u%04x", c);
        else if (c == '"' || c == '\\') jem__put(t, "\\%c", c);
        else jem__put(t, "%c", c);
    }
    jem__put(t, "\"");
}

/* Writes numbers in brackets: [64,3,3,3]. */
static void jem__put_list(jem__text *t, const char *brackets, int n, const int64_t *x) {
    jem__put(t, "%c", brackets[0]);
    for (int i = 0; i < n; i++) jem__put(t, "%s%" PRId64, i ? "," : "", x[i]);
    jem__put(t, "%c", brackets[1]);
}

/* Returns the dtype in which an entry is written, as an index into jem__dtypes. */
static int jem__written_as(const jem_archive *a, const jem__entry *entry) {
    if (a->bf16 && entry->e.dtype == JEM_DTYPE_F32 && !entry->keep_f32) return JEM__BF16;
    return (int)entry->e.dtype;
}

/* Writes an entry's numbers as dtype `as`, in the file's byte order. */
static void jem__put_numbers(char *to, const jem_entry *e, int as) {
    const size_t size = jem__dtypes[as].size;
    const size_t count = e->bytes / jem__dtypes[e->dtype].size;
    if (as == (int)e->dtype) {
        jem__copy_numbers(to, e->data, e->bytes, size);
        return;
    }
    for (size_t i = 0; i < count; i++) {
        float x;                                   /* e->data may be unaligned */
        memcpy(&x, (const char *)e->data + sizeof x * i, sizeof x);
        uint16_t bf16 = jem__to_bf16(x);
        if ((bf16 & 0x7fff) == 0x7f80 && jem__finite(x)) bf16--;     /* the largest, not infinity */
        jem__copy_numbers(to + size * i, &bf16, size, size);
    }
}

/* Writes the header, padded so that the data begin at a multiple of 64 bytes. */
static void jem__put_header(jem__text *t, const jem_archive *a) {
    const char *comma = "";
    jem__put(t, "{");
    if (a->meta) {
        jem__put(t, "\"__metadata__\":{");
        for (const jem__meta *m = a->meta; m; m = m->next) {
            jem__put_json(t, comma, m->key);
            jem__put_json(t, ":", m->value);
            comma = ",";
        }
        jem__put(t, "}");
    }
    for (int i = 0; i < a->count; i++) {
        const jem__entry *entry = a->entries[i];
        const int64_t offsets[2] = { (int64_t)entry->begin, (int64_t)entry->end };
        jem__put_json(t, comma, entry->e.name);
        jem__put(t, ":{\"dtype\":\"%s\",\"shape\":",
                 jem__dtypes[jem__written_as(a, entry)].name);
        jem__put_list(t, "[]", entry->e.ndim, entry->e.shape);
        jem__put(t, ",\"data_offsets\":");
        jem__put_list(t, "[]", 2, offsets);
        jem__put(t, "}");
        comma = ",";
    }
    jem__put(t, "}");
    while (t->n % 64 != 56) jem__put(t, " ");
}

/* Places the tensors, wide numbers first, so that all are aligned. Returns the size of the data; -1
   if it is too large. */
static ptrdiff_t jem__archive_layout(const jem_archive *a) {
    size_t total = 0;
    for (size_t width = 8; width; width /= 2) {
        for (int i = 0; i < a->count; i++) {
            jem__entry *entry = a->entries[i];
            const size_t count = entry->e.bytes / jem__dtypes[entry->e.dtype].size;
            if (jem__dtypes[jem__written_as(a, entry)].size != width) continue;
            if (count > (PTRDIFF_MAX / 2 - total) / width) return -1;
            entry->begin = total;
            total += count * width;
            entry->end = total;
        }
    }
    return (ptrdiff_t)total;
}

void *jem_archive_to_memory(const jem_archive *a, size_t *size) {
    if (size) *size = 0;
    if (!a) return NULL;
    const ptrdiff_t total = jem__archive_layout(a);
    if (total < 0)
        return jem__refuse(a->ctx, JEM_NO_MEMORY, "%s: too large to be packed", a->where);
    jem__text text = { NULL, 0, 0 };
    jem__put_header(&text, a);
    const size_t n = text.n;
    const uint64_t length = n;
    if (n > JEM__MAX_HEADER)
        return jem__refuse(a->ctx, JEM_BAD_ARGUMENT, "%s: the header with names and metadata "
                         "has %.0f MB; the maximum is 100", a->where, (double)n / 1e6);
    char *out = (char *)jem__alloc(a->ctx, 8 + n + (size_t)total + 1);     /* 1: vsnprintf's 0 */
    if (!out) return NULL;
    jem__copy_numbers(out, &length, 8, 8);
    text.out = out + 8;
    text.room = n + 1;
    text.n = 0;
    jem__put_header(&text, a);
    for (int i = 0; i < a->count; i++) {
        const jem__entry *entry = a->entries[i];
        jem__put_numbers(out + 8 + n + entry->begin, &entry->e, jem__written_as(a, entry));
    }
    if (size) *size = 8 + n + (size_t)total;
    return out;
}

/* ---- reading --------------------------------------------------------------------------------- */
/* A parser of JSON by recursive descent, only as deep as this format. It reads a copy of the header
   that ends in a 0, which nothing matches, and decodes strings in place. After an error, at = end:
   there every loop ends, and every step fails; the context keeps the first error. */

typedef struct jem__json {
    jem_archive *a;
    char *begin, *at, *end;
    size_t room;           /* bytes of data after the header */
    const char *name;      /* of the current tensor, for messages; NULL outside of tensors */
} jem__json;

/* Reports an error at the current byte of the file; returns 0. */
static int jem__json_fail(jem__json *j, const char *what, const char *detail) {
    const double position = (double)(j->at - j->begin + 8);
    if (j->name)
        jem__fail(j->a->ctx, JEM_BAD_FILE, "%s: tensor \"%.80s\": %s%.80s at byte %.0f",
                  j->a->where, j->name, what, detail, position);
    else
        jem__fail(j->a->ctx, JEM_BAD_FILE, "%s: header: %s%.80s at byte %.0f", j->a->where, what,
                  detail, position);
    j->at = j->end;
    return 0;
}

static void jem__json_space(jem__json *j) { j->at += strspn(j->at, " \n\r\t"); }

/* Takes the character c, after any space, if it is next; otherwise returns 0. */
static int jem__json_accept(jem__json *j, char c) {
    jem__json_space(j);
    if (*j->at != c) return 0;
    j->at++;
    return 1;
}
/* Takes the character c, which is required. */
static int jem__json_expect(jem__json *j, char c) {
    const char what[2] = { c, 0 };
    if (jem__json_accept(j, c)) return 1;
    return jem__json_fail(j, "expected ", what);
}

/* Takes the opening bracket or the comma before item i of a list. Returns 0 at the end of the list,
   after its closing bracket. */
static int jem__json_item(jem__json *j, const char *brackets, int i) {
    if (i == 0) return jem__json_expect(j, brackets[0]) && !jem__json_accept(j, brackets[1]);
    if (jem__json_accept(j, ',')) return 1;
    jem__json_expect(j, brackets[1]);
    return 0;
}

/* Takes \uXXXX, a UTF-16 code unit. Returns 0 on an error, as for the forbidden code 0. */
static uint32_t jem__json_unit(jem__json *j) {
    char hex[5] = "";
    if (strncmp(j->at, "\\u", 2) || strspn(j->at + 2, "0123456789abcdefABCDEF") < 4) return 0;
    memcpy(hex, j->at + 2, 4);
    j->at += 6;
    return (uint32_t)strtoul(hex, NULL, 16);
}

/* Takes one code point: a unit, or two of them (a surrogate pair) above U+FFFF. 0 is an error. */
static uint32_t jem__json_code(jem__json *j) {
    const uint32_t code = jem__json_unit(j);
    if (code < 0xD800 || code >= 0xE000) return code;
    const uint32_t low = jem__json_unit(j);
    if (code >= 0xDC00 || low < 0xDC00 || low >= 0xE000) return 0;
    return 0x10000 + ((code & 0x3FF) << 10 | (low & 0x3FF));
}

/* Writes a code point as UTF-8; returns the place after it. */
static char *jem__put_utf8(char *out, uint32_t code) {
    static const uint32_t lead[4] = { 0, 0xC0, 0xE0, 0xF0 };
    const int more = (code >= 0x80) + (code >= 0x800) + (code >= 0x10000);
    *out++ = (char)(lead[more] | code >> 6 * more);
    for (int i = more - 1; i >= 0; i--) *out++ = (char)(0x80 | (code >> 6 * i & 0x3F));
    return out;
}

/* Decodes an escape to UTF-8, which is never longer. Returns the place after it. */
static char *jem__json_escape(jem__json *j, char *out) {
    static const char from[] = "\"\\/bfnrt";
    static const char to[] = "\"\\/\b\f\n\r\t";
    const char *found = j->at[1] ? strchr(from, j->at[1]) : NULL;
    if (found) {
        *out = to[found - from];
        j->at += 2;
        return out + 1;
    }
    const uint32_t code = jem__json_code(j);
    if (code) return jem__put_utf8(out, code);
    jem__json_fail(j, "bad escape in a string", "");
    return out;
}

/* Takes a string, and decodes it in place. */
static const char *jem__json_string(jem__json *j) {
    jem__json_expect(j, '"');
    char *start = j->at;
    char *out = start;
    while (*j->at != '"' && (unsigned char)*j->at >= 0x20) {
        if (*j->at == '\\') out = jem__json_escape(j, out);
        else *out++ = *j->at++;
    }
    if (*j->at == '"') j->at++;
    else if (j->at < j->end) jem__json_fail(j, "control byte in a string", "");
    else jem__json_fail(j, "unterminated string", "");
    *out = 0;
    return start;
}
/* Takes a string and a colon. */
static const char *jem__json_key(jem__json *j) {
    const char *key = jem__json_string(j);
    jem__json_expect(j, ':');
    return key;
}

/* Takes a whole number, at least 0, that no space precedes; returns 0 after an error. */
static int jem__json_integer(jem__json *j, int64_t *out) {
    const size_t digits = strspn(j->at, "0123456789");
    if (!digits || (digits > 1 && *j->at == '0'))
        return jem__json_fail(j, "expected a whole number", "");
    errno = 0;
    *out = strtoll(j->at, NULL, 10);
    if (errno) return jem__json_fail(j, "number too large", "");
    j->at += digits;
    return 1;
}

/* Takes a list of at most `most` whole numbers; returns their count if there is no error. */
static int jem__json_integers(jem__json *j, int64_t *out, int most) {
    int n = 0;
    for (; jem__json_item(j, "[]", n); n++) {
        jem__json_space(j);
        if (n == most) return jem__json_fail(j, "too many numbers in a list", "");
        if (!jem__json_integer(j, out + n)) return 0;
    }
    return n;
}

/* Takes the object of metadata: keys and values. */
static void jem__json_metadata(jem__json *j) {
    jem_archive *a = j->a;
    for (int i = 0; jem__json_item(j, "{}", i); i++) {
        const char *key = jem__json_key(j);
        const char *value = jem__json_string(j);
        if (jem__meta_get(a->meta, key)) jem__json_fail(j, "repeated key in metadata: ", key);
        else if (i == JEM__MAX_TEXTS) jem__json_fail(j, "more than 4096 strings", "");
        else jem__meta_set(a->ctx, &a->meta, key, value);
    }
}

/* A tensor's description in the header. */
typedef struct jem__described {
    int has_dtype, dtype;                          /* dtype: index into jem__dtypes, or -1 */
    int ndim, n_offsets;                           /* -1 before they are read */
    int64_t shape[8], offsets[2];
} jem__described;

/* Returns the index into jem__dtypes of a name; -1 if it is not there. */
static int jem__dtype_of(const char *name) {
    int dtype = JEM__DTYPES - 1;
    while (dtype >= 0 && strcmp(jem__dtypes[dtype].name, name)) dtype--;
    return dtype;
}

/* Takes one key of a tensor, and its value. */
static void jem__json_field(jem__json *j, jem__described *d) {
    const char *key = jem__json_key(j);
    if (!strcmp(key, "shape") && d->ndim < 0) d->ndim = jem__json_integers(j, d->shape, 8);
    else if (!strcmp(key, "data_offsets") && d->n_offsets < 0)
        d->n_offsets = jem__json_integers(j, d->offsets, 2);
    else if (!strcmp(key, "dtype") && !d->has_dtype) {
        const char *name = jem__json_string(j);
        d->has_dtype = *name != 0;
        d->dtype = jem__dtype_of(name);
    } else jem__json_fail(j, "unknown or repeated key ", key);
}

/* Returns the error in a description, for a file with `room` bytes of data; NULL without one. */
static const char *jem__described_wrong(const jem__described *d, size_t room) {
    if (!d->has_dtype || d->ndim < 0 || d->n_offsets != 2)
        return "dtype, shape and two data_offsets are needed";
    const ptrdiff_t n = jem__elements(d->ndim, d->shape);
    const int64_t bytes = d->offsets[1] - d->offsets[0];
    if (n < 0) return "the shape is too large";
    if (bytes < 0 || (d->dtype >= 0 && bytes != n * (ptrdiff_t)jem__dtypes[d->dtype].size))
        return "data_offsets do not agree with dtype and shape";
    if ((uint64_t)d->offsets[1] > room) return "its data extend beyond the end of the file";
    return NULL;
}

/* Takes the description of a tensor, and adds it to the archive, without data. */
static void jem__json_tensor(jem__json *j) {
    jem__described d = { 0, -1, -1, -1, { 0 }, { 0 } };
    for (int i = 0; jem__json_item(j, "{}", i); i++) jem__json_field(j, &d);
    const char *wrong = jem__described_wrong(&d, j->room);
    if (wrong) {
        jem__json_fail(j, wrong, "");
        return;
    }
    jem__entry *entry = jem__archive_append(j->a, j->name, d.dtype, d.ndim, d.shape);
    if (!entry) {
        jem__json_fail(j, "out of memory", "");
        return;
    }
    entry->begin = (size_t)d.offsets[0];
    entry->end = (size_t)d.offsets[1];
}

/* Takes the whole header. */
static void jem__json_header(jem__json *j) {
    int metadata = 0;
    if (!jem__utf8_valid(j->begin, (size_t)(j->end - j->begin))) jem__json_fail(j, "not UTF-8", "");
    for (int i = 0; jem__json_item(j, "{}", i); i++) {
        const char *name = jem__json_key(j);
        if (!strcmp(name, "__metadata__")) {
            if (metadata) jem__json_fail(j, "repeated key ", name);
            metadata = 1;
            jem__json_metadata(j);
        } else {
            j->name = name;
            jem__json_tensor(j);
            j->name = NULL;
        }
    }
    jem__json_space(j);
    if (j->at < j->end) jem__json_fail(j, "text after the end", "");
}

/* Compare entries for qsort, by name and by place. */
static int jem__by_name(const void *p, const void *q) {
    return strcmp((*(jem__entry *const *)p)->e.name, (*(jem__entry *const *)q)->e.name);
}
static int jem__by_place(const void *p, const void *q) {
    const jem__entry *a = *(jem__entry *const *)p;
    const jem__entry *b = *(jem__entry *const *)q;
    if (a->begin != b->begin) return (a->begin > b->begin) - (a->begin < b->begin);
    return (a->end > b->end) - (a->end < b->end);  /* empty ones first */
}

/* Checks that every name is unique, and that the tensors cover 0 .. size without gap or overlap. */
static void jem__archive_check(const jem_archive *a, size_t size) {
    const size_t count = (size_t)a->count;
    jem__entry **order = (jem__entry **)jem__alloc(a->ctx, count * sizeof *order);
    if (!order) return;
    if (count) memcpy(order, a->entries, count * sizeof *order);
    qsort(order, count, sizeof *order, jem__by_name);
    size_t i = 1;
    while (i < count && strcmp(order[i - 1]->e.name, order[i]->e.name)) i++;
    if (i < count)
        jem__fail(a->ctx, JEM_BAD_FILE, "%s: two tensors are named \"%.80s\"", a->where,
                  order[i]->e.name);
    qsort(order, count, sizeof *order, jem__by_place);
    size_t end = 0;                                /* of the previous tensor */
    for (i = 0; i < count && order[i]->begin == end; i++) end = order[i]->end;
    if (i < count) {
        jem__fail(a->ctx, JEM_BAD_FILE, "%s: tensor \"%.80s\" begins at byte %.0f of the data; "
                  "the one before ends at %.0f", a->where, order[i]->e.name,
                  (double)order[i]->begin, (double)end);
    } else if (end != size) {
        jem__fail(a->ctx, JEM_BAD_FILE, "%s: %.0f bytes of data, the header describes %.0f",
                  a->where, (double)size, (double)end);
    }
    jem__free(a->ctx, order);
}

/* Moves entries whose dtype cannot be read to a list of their own, and logs a note. */
static void jem__archive_skip(jem_archive *a) {
    int kept = 0;
    int skips = 0;
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
    snprintf(note, sizeof note, "%.80s: skipped %d of %d tensors, such as \"%.60s\", whose dtype "
             "cannot be read", a->where, skips, kept + skips, a->skipped[0]->e.name);
    jem__mask_controls(note, 0);
    jem__note(a->ctx, note);
}

/* Converts a binary16, exactly: +-fraction 2^(exponent - 25). Normal numbers have an implicit bit;
   subnormal ones, of exponent 0, do not, and their exponent counts as 1. */
static float jem__from_fp16(int h) {
    int exponent = h >> 10 & 31;
    int fraction = h & 1023;
    float x = (float)INFINITY;
    if (exponent == 31 && fraction) {
        x = (float)NAN;
    } else if (exponent < 31) {
        if (exponent) fraction += 1024;
        else exponent = 1;
        x = ldexpf((float)fraction, exponent - 25);
    }
    return h & 0x8000 ? -x : x;
}

/* Converts one number of any dtype, at any address, to a float. */
static float jem__to_float(int dtype, const unsigned char *p) {
    union { uint32_t u32; uint16_t u16; float f; int32_t i32; int64_t i64; double f64; } n;
    memcpy(&n, p, jem__dtypes[dtype].size);
    switch (dtype) {
    case JEM_DTYPE_I32: return (float)n.i32;
    case JEM_DTYPE_I64: return (float)n.i64;
    case JEM__F64: return (float)n.f64;
    case JEM__F16: return jem__from_fp16(n.u16);
    case JEM__BF16: return jem__from_bf16(n.u16);
    case JEM_DTYPE_U8: case JEM__BOOL: return (float)p[0];
    default: return n.f;
    }
}

/* Copies the data of an entry into memory of its own. F64, F16 and BF16 are converted to floats. */
static void jem__entry_take(jem_ctx *ctx, jem__entry *entry, const unsigned char *data) {
    const size_t size = jem__dtypes[entry->dtype].size;
    const size_t n = (entry->end - entry->begin) / size;
    entry->owned = jem__alloc(ctx, entry->e.bytes);
    entry->e.data = entry->owned;
    if (!entry->owned) return;
    data += entry->begin;
    const int converted = entry->e.dtype == JEM_DTYPE_F32 && entry->dtype != JEM_DTYPE_F32;
    if (!converted) {
        jem__copy_numbers(entry->owned, data, entry->e.bytes, size);
        return;
    }
    float *out = (float *)entry->owned;
    for (size_t i = 0; i < n; i++) {
        unsigned char number[8];
        jem__copy_numbers(number, data + size * i, size, size);
        out[i] = jem__to_float(entry->dtype, number);
    }
}

/* Reads the header, then the data. `errors` is the context's count of errors at the start: a step
   is taken only if the earlier ones have reported no error. */
static void jem__archive_fill(jem_archive *a, const unsigned char *bytes, size_t size, int errors) {
    uint64_t n = 0;
    if (size >= 8) jem__copy_numbers(&n, bytes, 8, 8);
    if (n > JEM__MAX_HEADER) {
        jem__fail(a->ctx, JEM_BAD_FILE, "%s: not a safetensors file", a->where);
        return;
    }
    if (size < 8 || n > size - 8) {
        jem__fail(a->ctx, JEM_BAD_FILE, "%s: not a safetensors file, or cut short: %.0f bytes, "
                  "with a header of %.0f", a->where, (double)size, (double)n);
        return;
    }
    JEM__ZEROED(jem__json, j);
    j.a = a;
    j.room = size - 8 - (size_t)n;
    j.begin = (char *)jem__alloc(a->ctx, (size_t)n + 1);
    if (!j.begin) return;
    memcpy(j.begin, bytes + 8, (size_t)n);
    j.at = j.begin;
    j.end = j.begin + n;
    jem__json_header(&j);
    jem__free(a->ctx, j.begin);
    if (a->ctx->errors == errors) jem__archive_check(a, j.room);
    if (a->ctx->errors == errors) jem__archive_skip(a);
    for (int i = 0; i < a->count && a->ctx->errors == errors; i++)
        jem__entry_take(a->ctx, a->entries[i], bytes + 8 + n);
}

/* Creates an archive from the bytes of a file; an empty one if bytes is NULL. */
static jem_archive *jem__archive_of(jem_ctx *ctx, const char *where, const void *bytes,
                                    size_t size) {
    const int errors = ctx->errors;
    jem_archive *a = (jem_archive *)jem__alloc(ctx, sizeof *a + strlen(where) + 1);
    if (!a) return NULL;
    a->ctx = ctx;
    a->where = (char *)memcpy(a + 1, where, strlen(where));
    if (bytes) jem__archive_fill(a, (const unsigned char *)bytes, size, errors);
    if (ctx->errors == errors) return a;
    jem_archive_free(a);
    return NULL;
}

jem_archive *jem_archive_create(jem_ctx *ctx) {
    return ctx ? jem__archive_of(ctx, "archive", NULL, 0) : NULL;
}
jem_archive *jem_archive_parse(jem_ctx *ctx, const void *bytes, size_t size) {
    if (!ctx) return NULL;
    if (!bytes) return jem__refuse(ctx, JEM_BAD_ARGUMENT, "archive_parse: bytes is NULL");
    return jem__archive_of(ctx, "archive", bytes, size);
}

/* ---- files: read whole, and replaced --------------------------------------------------------- */
#ifndef JEM_NO_STDIO

/* Reports an error of a file, with the system's reason if errno has one. */
static jem_status jem__file_fail(jem_ctx *ctx, const char *path, const char *what) {
    enum { SHOWN = 300 };                          /* bytes of a path: leaves room for a reason */
    const size_t length = strlen(path);
    const char *dots = "";
    const char *reason = "";
    const char *colon = "";
    if (length > SHOWN) {
        path += length - SHOWN;
        dots = "...";
    }
    if (errno) {
        reason = strerror(errno);
        colon = ": ";
    }
    return jem__fail(ctx, JEM_BAD_FILE, "%s%s: %s%s%s", dots, path, what, colon, reason);
}

/* Creates a new file in the folder of `path`, and writes its name to `temp`. With O_EXCL, open
   rejects existing files and links, so no other program uses the new file. old_mode: the mode of
   the file to be replaced, or -1. Returns the file descriptor, or -1 on failure. */
static int jem__file_create(const char *path, int old_mode, char *temp, size_t room) {
    int mode = 0666;                               /* less the umask */
    if (old_mode >= 0) mode = old_mode;            /* a private file's copy is private, too */
    (void)mode;                                    /* unused on Windows */
    jem_rng names = jem_rng_seed((uint64_t)time(NULL) << 32 ^ (uintptr_t)temp);
    int fd = -1;
    for (int i = 0; i < 100; i++) {
        snprintf(temp, room, "%s.%08x.tmp", path, (unsigned)jem_rng_u32(&names));
        fd = JEM__CREATE(temp, mode);
        if (fd >= 0 || errno != EEXIST) break;
    }
#ifdef FD_CLOEXEC
    if (fd >= 0) fcntl(fd, F_SETFD, FD_CLOEXEC);   /* O_CLOEXEC is hidden by -std=c99 */
#endif
    return fd;
}

/* Returns 1 if the path is a pipe, a device or a socket: opening one may block forever. */
static int jem__is_special(const char *path) {
#ifdef _WIN32
    (void)path;
    return 0;
#else
    struct stat s;
    return stat(path, &s) == 0 && !S_ISREG(s.st_mode) && !S_ISDIR(s.st_mode);
#endif
}

/* Returns the reason why the file at `path` will not be replaced, or NULL. *mode receives the mode
   of that file, or -1 if there is no file. */
static const char *jem__file_refused(const char *path, int *mode) {
    *mode = -1;
#ifdef _WIN32
    (void)path;
#else
    struct stat s;
    char target;
    if (readlink(path, &target, 1) >= 0) return "is a symbolic link, and will not be replaced";
    if (stat(path, &s) || S_ISDIR(s.st_mode)) return NULL;       /* rename will report a folder */
    if (!S_ISREG(s.st_mode)) return "is not a regular file, and will not be replaced";
    *mode = (int)(s.st_mode & 03777);                /* not setuid: the owner may change */
#endif
    return NULL;
}

/* Syncs the folder that contains `path`, which it cuts after the last slash. Returns 0, with errno,
   on failure; a folder without read permission cannot be synced, which is not an error. */
static int jem__folder_sync(char *path) {
    int synced = 1;
#ifdef _WIN32
    (void)path;
#else
    const char *folder = ".";
    char *slash = strrchr(path, '/');
    if (slash) {
        slash[1] = 0;
        folder = path;
    }
    const int fd = open(folder, O_RDONLY);
    if (fd < 0) return errno == EACCES;
    synced = jem__file_sync(fd);
    const int error = errno;
    close(fd);
    errno = error;
#endif
    return synced;
}

struct jem_file {
    jem_ctx *ctx;
    char *path;
    char *temp;                                    /* "": does not exist */
    int fd;                                        /* -1: closed */
    int mode;                                      /* of the file at path; -1: no such file */
    int failed;
};

const char *jem_file_temporary(const jem_file *f) { return f ? f->temp : ""; }

/* Closes and removes the temporary file; reports an error unless `what` is NULL. */
static jem_status jem__file_give_up(jem_file *f, const char *what) {
    const int error = errno;
    if (f->fd >= 0) JEM__SYS(close)(f->fd);
    if (*f->temp) JEM__REMOVE(f->temp);
    f->fd = -1;
    *f->temp = 0;
    f->failed = 1;
    errno = error;
    return what ? jem__file_fail(f->ctx, f->path, what) : JEM_BAD_FILE;
}

void jem_file_free(jem_file *f) {
    if (!f) return;
    jem__file_give_up(f, NULL);
    jem__free(f->ctx, f);
}

jem_file *jem_file_create(jem_ctx *ctx, const char *path) {
    if (!ctx) return NULL;
    if (!path) return jem__refuse(ctx, JEM_BAD_ARGUMENT, "a file to write: path is NULL");
    if (!*path) return jem__refuse(ctx, JEM_BAD_FILE, "a file to write: the path is empty");
    const size_t length = strlen(path) + 1;
    const size_t room = length + sizeof ".12345678.tmp";
    jem_file *f = (jem_file *)jem__alloc(ctx, sizeof *f + length + room);
    if (!f) return NULL;
    f->ctx = ctx;
    f->path = (char *)memcpy(f + 1, path, length);
    f->temp = f->path + length;
    f->fd = -1;
    const char *failed = jem__file_refused(path, &f->mode);
    errno = 0;
    if (!failed) {
        f->fd = jem__file_create(path, f->mode, f->temp, room);
        if (f->fd < 0) {
            *f->temp = 0;                          /* not this program's file */
            failed = "cannot be created";
        }
    }
    if (!failed) return f;
    jem__file_give_up(f, failed);
    jem_file_free(f);
    return NULL;
}

/* Returns JEM_OK while the file can be written; reports one that has failed or is complete. */
static jem_status jem__file_is_open(const jem_file *f) {
    errno = 0;
    if (f->fd >= 0) return JEM_OK;
    return jem__file_fail(f->ctx, f->path, f->failed ? "an earlier call has failed"
                                                     : "is already complete");
}

jem_status jem_file_put(jem_file *f, const void *bytes, size_t size) {
    if (!f) return JEM_BAD_ARGUMENT;
    const jem_status status = jem__file_is_open(f);
    if (status != JEM_OK) return status;
    if (!bytes && size) return jem__file_give_up(f, "cannot be written: bytes is NULL");
    if (!jem__file_put(f->fd, (const char *)bytes, size))
        return jem__file_give_up(f, "cannot be written");
    return JEM_OK;
}

jem_status jem_file_commit(jem_file *f) {
    if (!f) return JEM_BAD_ARGUMENT;
    const jem_status status = jem__file_is_open(f);
    if (status != JEM_OK) return status;
#if !defined(_WIN32) && !defined(__wasm__)
    if (f->mode >= 0) (void)fchmod(f->fd, (mode_t)f->mode);  /* not all systems can */
#endif
    if (!jem__file_sync(f->fd)) return jem__file_give_up(f, "cannot be synced");
    const int closed = JEM__SYS(close)(f->fd);
    f->fd = -1;
    if (closed) return jem__file_give_up(f, "cannot be closed");
    if (JEM__RENAME(f->temp, f->path)) return jem__file_give_up(f, "cannot be replaced");
    const int synced = jem__folder_sync(f->temp);
    *f->temp = 0;
    if (synced) return JEM_OK;
    return jem__file_give_up(f, "is written, but its directory cannot be synced");
}

/* Reads an open file whole. Returns a description of the failure, with errno, or NULL; bytes
   belongs to the caller, and is NULL if memory runs out. */
static const char *jem__file_read(jem_ctx *ctx, FILE *f, char **bytes, size_t *size) {
    if (getc(f) == EOF && !ferror(f)) {
        errno = 0;
        return "is empty";
    }
    if (ferror(f) || JEM__SEEK(f, 0, SEEK_END)) return "cannot be read";
    const int64_t n = JEM__TELL(f);
    if (n <= 0 || n > PTRDIFF_MAX || JEM__SEEK(f, 0, SEEK_SET)) return "cannot be read";
    *size = (size_t)n;
    *bytes = (char *)jem__alloc(ctx, *size);
    if (*bytes && fread(*bytes, 1, *size, f) != *size) return "cannot be read completely";
    return NULL;
}

jem_archive *jem_archive_read(jem_ctx *ctx, const char *path) {
    if (!ctx) return NULL;
    if (!path) return jem__refuse(ctx, JEM_BAD_ARGUMENT, "a file to read: path is NULL");
    if (!*path) return jem__refuse(ctx, JEM_BAD_FILE, "a file to read: the path is empty");
    const char *failed = "is not a regular file";
    char *bytes = NULL;
    size_t size = 0;
    FILE *f = NULL;
    errno = 0;
    if (!jem__is_special(path)) {
        failed = "cannot be opened";
        f = JEM__OPEN(path);
    }
    if (f) failed = jem__file_read(ctx, f, &bytes, &size);
    if (failed) jem__file_fail(ctx, path, failed);
    if (f) fclose(f);
    jem_archive *a = NULL;
    if (bytes && !failed) a = jem__archive_of(ctx, path, bytes, size);
    jem__free(ctx, bytes);
    return a;
}

jem_status jem_archive_write(const jem_archive *a, const char *path) {
    if (!a) return JEM_BAD_ARGUMENT;
    jem_ctx *ctx = a->ctx;
    size_t size = 0;
    char *bytes = NULL;
    jem_status status = JEM_BAD_FILE;              /* of a failure whose message is lost, because
                                                      the context keeps an older one */
    const int is_first = jem_ok(ctx);
    jem_file *f = jem_file_create(ctx, path);
    if (f) bytes = (char *)jem_archive_to_memory(a, &size);
    if (is_first) status = ctx->status;
    if (bytes) status = jem_file_put(f, bytes, size);
    if (bytes && status == JEM_OK) status = jem_file_commit(f);
    jem_file_free(f);
    jem__free(ctx, bytes);
    return status;
}

#endif /* JEM_NO_STDIO */

/* ==== >>checkpoint: networks and trainers in files ============================================ */
/* Arrays are listed once, like the fields of a desc (see jem__fields): a network's are its
   parameters, an optimiser's are in jem__optim_arrays, a trainer's also in jem__trainer_arrays and
   jem__guard_arrays. A pass over such a list adds the arrays to an archive (out), checks that a
   file has them (in), or reads them from it (in, with fill). Loading makes both passes: it checks
   everything before it changes anything. */

typedef struct jem__arrays {
    jem__fields f;                                 /* names for messages, status; net's fields */
    const jem_archive *in;                         /* or NULL */
    jem_archive *out;                              /* or NULL */
    int fill;                                      /* 1: reads, 0: checks */
    int moment;                                    /* 1, 2: an array of first, second moments */
} jem__arrays;

/* Returns a pass that writes to an archive. */
static jem__arrays jem__arrays_out(const char *kind, jem_archive *a) {
    JEM__ZEROED(jem__arrays, v);
    v.f.ctx = a->ctx;
    v.f.kind = kind;
    v.f.where = kind;
    v.out = a;
    return v;
}
/* Returns a pass that checks a file, or reads it if fill is set. */
static jem__arrays jem__arrays_in(jem_ctx *ctx, const char *kind, const jem_archive *a) {
    JEM__ZEROED(jem__arrays, v);
    v.f.ctx = ctx;
    v.f.kind = kind;
    v.f.where = a->where;
    v.in = a;
    return v;
}

/* Returns 1 if training could have written the numbers of an array: floats must be finite, first
   moments within +-1e26 (gradients are within 1e18), second ones at least 0, visits from -1 to
   JEM__MANY. dtype: that of the array in memory. */
static int jem__entry_good(const jem_entry *e, jem_dtype dtype, int moment) {
    int good = 1;
    for (size_t i = 0; good && i < e->bytes; i += jem__dtypes[e->dtype].size) {
        const unsigned char *at = (const unsigned char *)e->data + i;
        float x = 0;
        int32_t n = 0;
        if (dtype == JEM_DTYPE_F32) x = jem__to_float((int)e->dtype, at);
        if (dtype == JEM_DTYPE_I32) memcpy(&n, at, 4);
        good = jem__finite(x) && n >= -1 && n <= JEM__MANY;
        if (moment == 1) good = good && fabsf(x) <= 1e26f;
        if (moment == 2) good = good && x >= 0;
    }
    return good;
}

/* Reports an array that a file lacks, or holds in a dtype that cannot be read. */
static void jem__array_missing(jem__arrays *v, const char *name) {
    jem__fields *f = &v->f;
    for (int i = 0; i < v->in->skips; i++) {
        if (strcmp(v->in->skipped[i]->e.name, name)) continue;
        f->status = jem__fail(f->ctx, JEM_BAD_FILE, "%s: \"%.80s\", which the %s needs, has a "
                              "dtype that cannot be read (" JEM__READABLE ")", f->where, name,
                              f->kind);
        return;
    }
    f->status = jem__fail(f->ctx, JEM_BAD_FILE, "%s: lacks \"%.80s\", which the %s needs (the "
                          "file has %d tensors)", f->where, name, f->kind, v->in->count);
}

/* Checks the dtype and the shape of an array in a file. A single float may have any dtype, and the
   shape () or (1) as well: PyTorch stores counts and flags like this. */
static int jem__array_fits(jem__arrays *v, const jem_entry *e, jem_dtype dtype, int ndim,
                           const int64_t *shape) {
    jem__fields *f = &v->f;
    const int same_shape = e->ndim == ndim &&
                           !memcmp(e->shape, shape, (size_t)ndim * sizeof *shape);
    const int single = dtype == JEM_DTYPE_F32 && jem__elements(ndim, shape) == 1;
    if (same_shape && (single || e->dtype == dtype)) return 1;
    if (single && ndim <= 1 && e->ndim <= 1 && jem__elements(e->ndim, e->shape) == 1) return 1;
    char both[384];
    jem__text t = { both, 0, sizeof both };
    jem__put(&t, "%s ", jem__dtypes[e->dtype].name);
    jem__put_list(&t, "()", e->ndim, e->shape);
    jem__put(&t, " in the file, %s ", jem__dtypes[dtype].name);
    jem__put_list(&t, "()", ndim, shape);
    f->status = jem__fail(f->ctx, same_shape ? JEM_BAD_FILE : JEM_BAD_SHAPE, "%s: \"%.80s\" is %s "
                          "in the %s", f->where, e->name, both, f->kind);
    return 0;
}

/* Writes, checks or reads one array, as the pass requires. */
static void jem__array(jem__arrays *v, const char *name, jem_dtype dtype, int ndim,
                       const int64_t *shape, void *data) {
    jem__fields *f = &v->f;
    if (f->status) return;
    if (v->out) {
        f->status = jem_archive_add(v->out, name, dtype, ndim, shape, data);
        return;
    }
    const jem_entry *e = jem_archive_find(v->in, name);
    if (!e) {
        jem__array_missing(v, name);
        return;
    }
    if (!jem__array_fits(v, e, dtype, ndim, shape)) return;
    if (!v->fill) {
        if (!jem__entry_good(e, dtype, v->moment))
            f->status = jem__fail(f->ctx, JEM_BAD_FILE, "%s: \"%.80s\" contains a value that is "
                                  "not finite or out of range", f->where, name);
    } else if (e->dtype != dtype) {
        *(float *)data = jem__to_float((int)e->dtype, (const unsigned char *)e->data);
    } else if (e->bytes) {
        memmove(data, e->data, e->bytes);          /* data may be where the entry points */
    }
}

/* Checks that n counts read from the array `name` are in 0 .. most[i]; reports the first that is
   not. */
static void jem__counts_check(jem__arrays *v, const char *name, const int64_t *count,
                              const int64_t *most, int n) {
    for (int i = 0; i < n && !v->f.status; i++) {
        if (count[i] < 0 || count[i] > most[i])
            v->f.status = jem__fail(v->f.ctx, JEM_BAD_FILE, "%s: \"%s\": number %d is %.0f",
                                    v->f.where, name, i, (double)count[i]);
    }
}

/* Visits an array with the shape of p, named prefix + p's name. data NULL: there is no such
   array. */
static void jem__array_like(jem__arrays *v, const char *prefix, const jem_param *p, float *data) {
    char joined[256];
    const char *name = p->name;
    int64_t shape[4];
    if (!data || v->f.status) return;
    for (int i = 0; i < p->ndim; i++) shape[i] = p->shape[i];
    if (*prefix) {
        const int length = snprintf(joined, sizeof joined, "%s%s", prefix, p->name);
        name = joined;
        if (length >= (int)sizeof joined) {
            v->f.status = jem__fail(v->f.ctx, JEM_BAD_ARGUMENT, "\"%s%.60s...\": the name is too "
                                    "long for a file", prefix, p->name);
            return;
        }
    }
    jem__array(v, name, JEM_DTYPE_F32, p->ndim, shape, data);
}

/* Reports that an argument of the function `what` is NULL: its archive or, if that is not NULL, its
   other argument, which `other` names. ctx: the other argument's context, or NULL. */
static jem_status jem__null_argument(jem_ctx *ctx, const jem_archive *a, const char *what,
                                     const char *other) {
    if (!ctx && a) ctx = a->ctx;
    return jem__fail(ctx, JEM_BAD_ARGUMENT, "%s: the %s is NULL", what, a ? other : "archive");
}

/* ---- networks -------------------------------------------------------------------------------- */

jem_status jem_net_to_archive(const jem_net *net, jem_archive *a) {
    if (!net || !a)
        return jem__null_argument(net ? net->ctx : NULL, a, "net_to_archive", "network");
    jem_net copy = *net;
    jem__arrays v = jem__arrays_out("network", a);
    v.f.out = &a->meta;
    for (const jem__meta *m = net->meta; m && !v.f.status; m = m->next)
        v.f.status = jem_archive_set_meta(a, m->key, m->value);
    jem__net_fields(&v.f, &copy);
    for (const jem_param *p = net->params; p && !v.f.status; p = p->next) {
        if (!jem__all_finite(p->value, p->size))
            v.f.status = jem__fail(net->ctx, JEM_DIVERGED, "net_to_archive: \"%.80s\" contains a "
                                   "number that is not finite", p->name);
        jem__array_like(&v, "", p, p->value);
    }
    return v.f.status;
}

/* A text in metadata that was fitted to data (see jem_net_load). `good` returns 1 if a text is
   valid for this network, 0 if not, -1 if memory runs out. */
typedef struct jem__fitted {
    const char *const *key;
    int (*good)(const jem_net *net, const char *text);
} jem__fitted;

static int jem__familiar_good(const jem_net *net, const char *text) {
    float q[JEM__QUANTILES];
    (void)net;
    return jem__familiar_parse(text, q) > 0;
}
static int jem__usual_good(const jem_net *net, const char *text) {
    float *all = jem__alloc_floats(net->ctx, jem__usual_size(net));
    if (!all) return -1;
    const int good = jem__usual_parse(net, text, all);
    jem__free(net->ctx, all);
    return good;
}
static int jem__temperature_good(const jem_net *net, const char *text) {
    (void)net;
    return jem__temperature_parse(text) > 0;
}
static int jem__calibration_good(const jem_net *net, const char *text) {
    float *all;
    const int good = jem__calibration_parse(net, text, &all);
    jem__free(net->ctx, all);
    return good;
}
static int jem__units_good(const jem_net *net, const char *text) {
    float *units = jem__alloc_floats(net->ctx, 2 * net->channels);
    if (!units) return -1;
    const int good = jem__units_parse(net, text, units);
    jem__free(net->ctx, units);
    return good;
}
static int jem__framing_good(const jem_net *net, const char *text) {
    float framing[JEM__FRAMING];
    (void)net;
    return jem__framing_parse(text, framing);
}
static int jem__fit_good(const jem_net *net, const char *text) {
    (void)net;
    return jem__fit_parse(text) != JEM_FIT_TRAINED;
}
static int jem__background_good(const jem_net *net, const char *text) {
    (void)net;
    return jem__background_parse(text) > 0;
}

static const jem__fitted jem__fitted_texts[] = {
    { &jem__familiar_key, jem__familiar_good }, { &jem__usual_key, jem__usual_good },
    { &jem__temperature_key, jem__temperature_good },
    { &jem__statistics_key, jem__calibration_good },
    { &jem__units_key, jem__units_good }, { &jem__framing_key, jem__framing_good },
    { &jem__fit_key, jem__fit_good }, { &jem__background_key, jem__background_good }
};
enum { JEM__FITTED = sizeof jem__fitted_texts / sizeof *jem__fitted_texts };

/* Checks the fitted texts of a file, and collects them in `list`. */
static jem_status jem__fitted_read(const jem_net *net, const jem_archive *a, jem__meta **list) {
    jem_status s = JEM_OK;
    for (int i = 0; i < JEM__FITTED && s == JEM_OK; i++) {
        const char *key = *jem__fitted_texts[i].key;
        const char *text = jem_archive_meta(a, key);
        if (!text) continue;
        const int good = jem__fitted_texts[i].good(net, text);
        if (good < 0) s = JEM_NO_MEMORY;
        else if (good) s = jem__meta_set(net->ctx, list, key, text);
        else
            s = jem__fail(net->ctx, JEM_BAD_FILE, "%s: its metadata \"%s\" cannot be read",
                          a->where, key);
    }
    return s;
}

jem_status jem_net_load(jem_net *net, const jem_archive *a) {
    if (!net || !a) return jem__null_argument(net ? net->ctx : NULL, a, "net_load", "network");
    jem_net copy = *net;
    jem__arrays v = jem__arrays_in(net->ctx, "network", a);
    v.f.in = a->meta;
    if (a->meta) jem__net_fields(&v.f, &copy);
    for (jem_param *p = net->params; p; p = p->next) jem__array_like(&v, "", p, p->value);
    jem__meta *fitted = NULL;
    if (!v.f.status) v.f.status = jem__fitted_read(&copy, a, &fitted);
    jem__meta_take(net, fitted, !v.f.status);
    if (v.f.status) return v.f.status;             /* from here on nothing can fail */
    v.fill = 1;
    if (net->averaged) jem_optim_use_average(net->averaged, 0);
    for (jem_param *p = net->params; p; p = p->next) {
        jem__array_like(&v, "", p, p->value);
        jem_param_changed(p);
    }
    if (a->meta) jem__net_fields(&v.f, net);
    for (int i = 0; i < JEM__FITTED; i++) {
        if (!jem_archive_meta(a, *jem__fitted_texts[i].key))
            jem_net_set_meta(net, *jem__fitted_texts[i].key, NULL);
    }
    return v.f.status;
}

/* A registered constructor; its name follows it in memory. */
typedef struct jem__kind {
    jem__list list;
    jem_construct_fn construct;
    void *user;
    const char *name;
} jem__kind;

/* Returns the link to the kind of this name, or the link at the end of the list. */
static jem__list **jem__find_kind(jem_ctx *ctx, const char *name) {
    jem__list **at = &ctx->kinds;
    while (*at && strcmp(((jem__kind *)*at)->name, name)) at = &(*at)->next;
    return at;
}

/* Returns 1 if `kind` is a valid name for a user's own kind of network. */
static int jem__kind_good(const char *kind) {
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz" "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                  "0123456789_-";
    if (!kind) return 0;
    const size_t n = strlen(kind);
    return n > 0 && n < 64 && strspn(kind, letters) == n && strcmp(kind, "wrn") &&
           strcmp(kind, "convnet") && strcmp(kind, "mlp");
}
static jem_status jem__kind_refused(jem_ctx *ctx, const char *what, const char *kind) {
    if (!kind) kind = "";
    return jem__fail(ctx, JEM_BAD_ARGUMENT, "%s: \"%.80s\" cannot name a custom kind: 1 to 63 "
                     "letters, digits, _ and -, and not wrn, convnet or mlp", what, kind);
}

jem_status jem_register_net(jem_ctx *ctx, const char *kind, jem_construct_fn construct,
                            void *user) {
    if (!ctx) return JEM_BAD_ARGUMENT;
    if (!jem__kind_good(kind)) return jem__kind_refused(ctx, "register_net", kind);
    jem__kind *made = NULL;
    if (construct) {
        const size_t length = strlen(kind) + 1;
        made = (jem__kind *)jem__alloc(ctx, sizeof *made + length);
        if (!made) return JEM_NO_MEMORY;
        made->construct = construct;
        made->user = user;
        made->name = (char *)memcpy(made + 1, kind, length);
    }
    jem__list **at = jem__find_kind(ctx, kind);
    jem__list *old = *at;
    if (old) *at = old->next;
    jem__free(ctx, old);
    if (!made) return JEM_OK;
    made->list.next = ctx->kinds;
    ctx->kinds = &made->list;
    return JEM_OK;
}

jem_status jem_net_set_kind(jem_net *net, const char *kind) {
    if (!net) return JEM_BAD_ARGUMENT;
    const char *now = jem__meta_get(net->meta, "jem.net");
    if (now && !jem__kind_good(now))
        return jem__fail(net->ctx, JEM_BAD_ARGUMENT, "net_set_kind: the network is of the "
                         "library's kind \"%.40s\"", now);
    if (!jem__kind_good(kind)) return jem__kind_refused(net->ctx, "net_set_kind", kind);
    jem_net copy = *net;
    jem__fields f = { net->ctx, kind, kind, NULL, NULL, JEM_OK };
    jem__size_fields(&f, &copy.channels, &copy.height, &copy.width, &copy.classes);
    f.out = &net->meta;                            /* written only if all are in range */
    if (!f.status)
        jem__size_fields(&f, &copy.channels, &copy.height, &copy.width, &copy.classes);
    if (f.status) return f.status;
    return jem__meta_set(net->ctx, &net->meta, "jem.net", kind);
}

/* Constructs a network of a registered kind, and checks it against the file. The constructor may
   register its kind again, which frees `kind`: messages use the archive's copy of the name. */
static jem_net *jem__net_of_kind(jem_ctx *ctx, const jem__kind *kind, const jem_archive *a) {
    JEM__ZEROED(jem_net, n);
    const char *const name = jem__meta_get(a->meta, "jem.net");
    jem__fields f = { ctx, name, a->where, a->meta, NULL, JEM_OK };
    jem__size_fields(&f, &n.channels, &n.height, &n.width, &n.classes);
    if (f.status) return NULL;
    const int errors = ctx->errors;
    jem_net *net = kind->construct(ctx, a, kind->user);
    const int has_error = ctx->errors != errors && ctx->status != JEM_OK;
    if (!net && !has_error)
        jem__fail(ctx, JEM_BAD_FILE, "%s: the constructor of \"%s\" returned no network", a->where,
                  name);
    if (!net || has_error) {
        jem_net_free(net);
        return NULL;
    }
    if (net->ctx == ctx && net->channels == n.channels && net->height == n.height &&
        net->width == n.width && net->classes == n.classes) return net;
    if (net->ctx != ctx)
        jem__fail(ctx, JEM_BAD_FILE, "%s: the constructor of \"%s\" returned a network of another "
                  "context", a->where, name);
    else
        jem__fail(ctx, JEM_BAD_FILE, "%s: the constructor of \"%s\" returned a network for images "
                  "(%d,%d,%d) and %d classes; the file has (%d,%d,%d) and %d", a->where, name,
                  net->channels, net->height, net->width, net->classes, n.channels, n.height,
                  n.width, n.classes);
    jem_net_free(net);
    return NULL;
}

jem_net *jem_net_from_archive(jem_ctx *ctx, const jem_archive *a) {
    if (!ctx || !a) {
        jem__null_argument(ctx, a, "net_from_archive", "context");
        return NULL;
    }
    const double left = ctx->params_left;          /* a constructor may load another file */
    const char *const loading = ctx->loading;
    ctx->loading = a->where;
    ctx->params_left = 1e7;                        /* a small hostile file must not fill memory */
    for (int i = 0; i < a->count; i++) {
        const jem_entry *e = &a->entries[i]->e;
        ctx->params_left += (double)jem__elements(e->ndim, e->shape);
    }
    const char *name = jem__meta_get(a->meta, "jem.net");
    const jem__kind *kind = NULL;
    if (name) kind = (const jem__kind *)*jem__find_kind(ctx, name);
    jem_net *net = NULL;
    if (kind) net = jem__net_of_kind(ctx, kind, a);
    else net = jem__net_from_meta(ctx, a->meta, a->where);
    ctx->params_left = left;
    ctx->loading = loading;
    if (!net) return NULL;
    const int errors = ctx->errors;                /* a constructor may have cleared some */
    for (const jem__meta *m = a->meta; m; m = m->next)
        jem__meta_set(ctx, &net->meta, m->key, m->value);
    jem_net_load(net, a);
    return jem__net_done(net, errors);
}

/* ---- optimisers ------------------------------------------------------------------------------ */

/* Writes the state of an optimiser, or reads one and checks that its counts are in range, and its
   kind is that of `o`. Files of trainers from before version 0.3 have no such state. */
static void jem__optim_state(jem__arrays *v, const jem_optim *o, int64_t *state) {
    static const int64_t shape[1] = { JEM__OPTIM_STATE };
    static const char *const kinds[] = { "Adam", "SGD", "Muon" };
    const int64_t most[JEM__OPTIM_STATE] = { JEM__MANY, o->desc.ema > 0, JEM_OPTIMIZER_MUON };
    v->fill = 1;
    jem__array(v, "optim.state", JEM_DTYPE_I64, 1, shape, state);
    v->fill = 0;
    if (v->f.status) return;
    const int known = state[2] >= 0 && state[2] <= JEM_OPTIMIZER_MUON;
    if (known && state[2] != (int64_t)o->desc.kind)
        v->f.status = jem__fail(v->f.ctx, JEM_BAD_FILE, "%s: its optimiser is %s, not %s",
                                v->f.where, kinds[state[2]], kinds[o->desc.kind]);
    jem__counts_check(v, "optim.state", state, most, JEM__OPTIM_STATE);
}

/* Lists the arrays of an optimiser. averaged: 1 if the network has the averages, and the optimiser
   the trained weights. */
static void jem__optim_arrays(jem__arrays *v, const jem_optim *o, int averaged) {
    const char *const average = averaged ? "trained." : "average.";
    for (int i = 0; i < o->count; i++) {
        const jem__moments *m = o->moments + i;
        v->moment = 1;
        jem__array_like(v, "optim.m.", m->param, m->m);
        v->moment = 2;
        jem__array_like(v, "optim.v.", m->param, m->v);
        v->moment = 0;
        jem__array_like(v, average, m->param, m->average);
    }
}

/* Writes the state of an optimiser, without its arrays. */
static void jem__optim_state_write(jem__arrays *v, jem_optim *o) {
    o->state[0] = o->updates;
    o->state[1] = o->net->averaged == o;
    o->state[2] = (int64_t)o->desc.kind;
    jem__optim_state(v, o, o->state);
}
/* Sets the counts of an optimiser whose arrays have been read. */
static void jem__optim_restored(jem_optim *o, int64_t updates, int averaged) {
    o->updates = (int)updates;
    if (averaged) o->net->averaged = o;
    else if (o->net->averaged == o) o->net->averaged = NULL;
}

jem_status jem_optim_to_archive(jem_optim *o, jem_archive *a) {
    if (!o || !a)
        return jem__null_argument(o ? o->net->ctx : NULL, a, "optim_to_archive", "optimiser");
    jem__arrays v = jem__arrays_out("optimiser", a);
    jem__optim_state_write(&v, o);
    jem__optim_arrays(&v, o, o->net->averaged == o);
    return v.f.status;
}

jem_status jem_optim_from_archive(jem_optim *o, const jem_archive *a) {
    if (!o || !a)
        return jem__null_argument(o ? o->net->ctx : NULL, a, "optim_from_archive", "optimiser");
    int64_t state[JEM__OPTIM_STATE] = { 0 };
    jem__arrays v = jem__arrays_in(o->net->ctx, "optimiser", a);
    jem__optim_state(&v, o, state);
    const int averaged = state[1] != 0;
    jem__optim_arrays(&v, o, averaged);            /* checks them */
    v.fill = 1;
    jem__optim_arrays(&v, o, averaged);            /* reads them, unless a check failed */
    if (!v.f.status) jem__optim_restored(o, state[0], averaged);
    return v.f.status;
}

/* ---- trainers -------------------------------------------------------------------------------- */

static const int64_t jem__state_shape[1] = { JEM__STATE_SIZE };

/* Convert between generators or trainers and numbers of trainer.state. */
static void jem__rng_pack(const jem_rng *rng, int64_t *s) {
    s[0] = rng->key[0];
    s[1] = rng->key[1];
    s[2] = (int64_t)rng->counter;
}
static void jem__rng_unpack(jem_rng *rng, const int64_t *s) {
    rng->key[0] = (uint32_t)s[0];
    rng->key[1] = (uint32_t)s[1];
    rng->counter = (uint64_t)s[2];
}
static void jem__trainer_pack(const jem_trainer *tr, int64_t *s) {
    s[0] = tr->updates;
    s[1] = tr->optim->updates;
    s[2] = tr->net->averaged == tr->optim;
    jem__rng_pack(&tr->rng, s + 3);
    jem__rng_pack(&tr->net->rng, s + 6);
}
static void jem__trainer_unpack(jem_trainer *tr, const int64_t *s) {
    tr->updates = (int)s[0];
    jem__optim_restored(tr->optim, s[1], s[2] != 0);
    jem__rng_unpack(&tr->rng, s + 3);
    jem__rng_unpack(&tr->net->rng, s + 6);
}

/* Lists the arrays of a trainer, except for its state and its guard. averaged: 1 if the network has
   the averages, and the trainer the trained weights. */
static void jem__trainer_arrays(jem__arrays *v, const jem_trainer *tr, int averaged) {
    const jem_buffer *b = tr->buffer;
    jem__optim_arrays(v, tr->optim, averaged);
    if (!b) return;
    const int64_t shape[4] = { b->capacity, b->channels, b->height, b->width };
    jem__array(v, "replay_buffer", JEM_DTYPE_F32, 4, shape, b->data);
    jem__array(v, "replay_visits", JEM_DTYPE_I32, 1, shape, b->visits);
}

/* Lists the guard's arrays, which are in its own memory. Without a good state, it has only numbers.
   Older files lack guard.residual and guard.travel. */
static void jem__guard_arrays(jem__arrays *v, jem__guard *g, const jem_buffer *b) {
    const int64_t numbers[1] = { JEM__GUARD_NUMBERS };
    const int64_t residuals[1] = { JEM__GUARD_RESIDUALS };
    const int64_t one[1] = { 1 };
    float *const after = g->numbers + JEM__GUARD_NUMBERS;
    const int64_t counts[1] = { JEM__GUARD_COUNTS };
    const int64_t size[1] = { g->size };
    const int64_t slots[1] = { jem__guard_slots(b) };
    jem__array(v, "guard.pulse", JEM_DTYPE_F32, 1, numbers, g->numbers);
    if (!v->in || jem_archive_find(v->in, "guard.residual"))
        jem__array(v, "guard.residual", JEM_DTYPE_F32, 1, residuals, after);
    if (!v->in || jem_archive_find(v->in, "guard.travel"))
        jem__array(v, "guard.travel", JEM_DTYPE_F32, 1, one, &g->travel);
    jem__array(v, "guard.counts", JEM_DTYPE_I64, 1, counts, g->counts);
    if (v->in && !jem_archive_find(v->in, "guard.state")) return;
    if (!v->in && !g->good) return;
    jem__array(v, "guard.state", JEM_DTYPE_F32, 1, size, g->kept);
    jem__array(v, "guard.visits", JEM_DTYPE_I32, 1, slots, g->visits);
}

/* Copies the guard's numbers to the arrays that an archive points at. */
static void jem__guard_pack(jem__guard *g) {
    memcpy(g->numbers, &g->now, sizeof g->numbers);
    g->counts[0] = g->rollbacks;
    g->counts[1] = g->optim_updates;
    g->counts[2] = g->just_rolled_back;
    g->counts[3] = g->good;
    g->counts[4] = g->guesses;
    g->counts[5] = g->updates;
}

/* Copies the guard's numbers back from these arrays. Returns 0 if one is out of range. */
static int jem__guard_unpack(jem__guard *g) {
    const int64_t *c = g->counts;
    const jem__pulse *now = &g->now;
    memcpy(&g->now, g->numbers, sizeof g->now);
    if (!jem__all_finite(g->numbers, JEM__GUARD_NUMBERS + JEM__GUARD_RESIDUALS)) return 0;
    if (!(g->travel >= 0)) return 0;
    if (now->lr_factor < 0 || now->lr_factor > 1) return 0;
    if (now->step_factor < 0 || now->step_factor > 1) return 0;
    if (now->travel_factor < 0 || now->travel_factor > 1) return 0;
    for (int i = 0; i < JEM__GUARD_COUNTS; i++) {
        if (c[i] < 0 || c[i] > JEM__MANY) return 0;
    }
    g->rollbacks = (int)c[0];
    g->optim_updates = (int)c[1];
    g->just_rolled_back = c[2] != 0;
    g->good = g->kept && c[3] != 0;
    g->guesses = (int)c[4];
    g->updates = (int)c[5];
    return 1;
}

/* Reads and checks the guard in a file; if it is missing, makes that of a new trainer. `to` is
   valid even after an error; the caller frees its memory. */
static void jem__guard_read(jem__arrays *v, const jem_trainer *tr, jem__guard *to) {
    memset(to, 0, sizeof *to);
    to->now = jem__first_pulse;
    jem__guard_pack(to);
    if (v->f.status || !jem_archive_find(v->in, "guard.pulse")) return;
    if (jem_archive_find(v->in, "guard.state")) {
        jem_trainer copy = *tr;
        copy.guard = *to;
        v->f.status = jem__guard_memory(&copy);
        if (v->f.status) return;
        *to = copy.guard;
    }
    v->fill = 0;
    jem__guard_arrays(v, to, tr->buffer);
    v->fill = 1;
    jem__guard_arrays(v, to, tr->buffer);
    if (v->f.status) return;
    if (!jem__guard_unpack(to) || (to->good && !jem__guard_sound(tr, to)))
        v->f.status = jem__fail(v->f.ctx, JEM_BAD_FILE, "%s: \"guard\" contains a value that is "
                                "out of range", v->f.where);
}

jem_status jem_trainer_to_archive(jem_trainer *tr, jem_archive *a) {
    if (!tr || !a)
        return jem__null_argument(tr ? tr->net->ctx : NULL, a, "trainer_to_archive", "trainer");
    jem__arrays v = jem__arrays_out("trainer", a);
    jem__trainer_pack(tr, tr->state);
    jem__array(&v, "trainer.state", JEM_DTYPE_I64, 1, jem__state_shape, tr->state);
    jem__optim_state_write(&v, tr->optim);
    jem__trainer_arrays(&v, tr, tr->net->averaged == tr->optim);
    jem__guard_pack(&tr->guard);
    jem__guard_arrays(&v, &tr->guard, tr->buffer);
    return v.f.status;
}

/* Reads trainer.state, and checks its counts. */
static void jem__state_read(jem__arrays *v, const jem_trainer *tr, int64_t *state) {
    const int64_t most[JEM__STATE_COUNTS] = { JEM__MANY, JEM__MANY, tr->optim->desc.ema > 0 };
    v->fill = 1;
    jem__array(v, "trainer.state", JEM_DTYPE_I64, 1, jem__state_shape, state);
    jem__counts_check(v, "trainer.state", state, most, JEM__STATE_COUNTS);
}

/* Replaces the trainer's guard with one that was read. If the trainer's has memory, the state is
   copied to it, since an archive of this trainer may point at it. Otherwise the two guards are
   exchanged. */
static void jem__guard_take(jem_trainer *tr, jem__guard *from) {
    const jem__guard old = tr->guard;
    tr->guard = *from;
    if (!old.kept) {
        *from = old;
        return;
    }
    if (from->kept) {
        const size_t slots = (size_t)jem__guard_slots(tr->buffer);
        memcpy(old.kept, from->kept, (size_t)old.size * sizeof *old.kept);
        memcpy(old.visits, from->visits, slots * sizeof *old.visits);
    }
    tr->guard.kept = old.kept;
    tr->guard.visits = old.visits;
    tr->guard.size = old.size;
}

/* Checks that a file has averaged weights if and only if the trainer has; likewise chains. */
static void jem__parts_check(jem__arrays *v, const jem_trainer *tr) {
    const jem_optim *o = tr->optim;
    const char *first = o->moments[0].param->name;
    char average[256];
    char trained[256];
    if (!jem_archive_find(v->in, "trainer.state")) return;     /* reported by jem__state_read */
    snprintf(average, sizeof average, "average.%s", first);
    snprintf(trained, sizeof trained, "trained.%s", first);
    const int averages = jem_archive_find(v->in, average) || jem_archive_find(v->in, trained);
    const int chains = jem_archive_find(v->in, "replay_buffer") ||
                       jem_archive_find(v->in, "replay_visits");
    const char *wrong = NULL;
    if (averages && !(o->desc.ema > 0)) wrong = "has averaged weights, but optim.ema is 0";
    if (!averages && o->desc.ema > 0) wrong = "lacks averaged weights, but optim.ema is above 0";
    if (chains && !tr->buffer) wrong = "has chains, but no weight of this trainer needs them";
    if (!chains && tr->buffer) wrong = "lacks chains, which this trainer has";
    if (wrong && !v->f.status)
        v->f.status = jem__fail(v->f.ctx, JEM_BAD_FILE, "%s: %s", v->f.where, wrong);
}

jem_status jem_trainer_from_archive(jem_trainer *tr, const jem_archive *a) {
    if (!tr || !a)
        return jem__null_argument(tr ? tr->net->ctx : NULL, a, "trainer_from_archive", "trainer");
    jem_ctx *ctx = tr->net->ctx;
    int64_t state[JEM__STATE_SIZE] = { 0 };
    jem__arrays v = jem__arrays_in(ctx, "trainer", a);
    int64_t optim_state[JEM__OPTIM_STATE] = { 0 }; /* its counts are in trainer.state, too */
    jem__parts_check(&v, tr);
    if (jem_archive_find(a, "optim.state")) jem__optim_state(&v, tr->optim, optim_state);
    jem__state_read(&v, tr, state);
    const int averaged = state[2] != 0;
    v.fill = 0;                                    /* checks the arrays of optimiser and buffer */
    jem__trainer_arrays(&v, tr, averaged);
    jem__guard replaced;                           /* the file's; then the one to be freed */
    jem__guard_read(&v, tr, &replaced);
    v.fill = 1;                                    /* reads them, unless a check failed */
    jem__trainer_arrays(&v, tr, averaged);
    if (!v.f.status) {
        jem__trainer_unpack(tr, state);
        jem__guard_take(tr, &replaced);
    }
    jem__free(ctx, replaced.kept);
    jem__free(ctx, replaced.visits);
    return v.f.status;
}

#ifndef JEM_NO_STDIO
jem_net *jem_load(jem_ctx *ctx, const char *path) {
    jem_archive *a = jem_archive_read(ctx, path);
    if (!a) return NULL;
    jem_net *net = jem_net_from_archive(ctx, a);
    jem_archive_free(a);
    return net;
}

jem_status jem_save(const jem_net *net, const char *path) {
    if (!net) return JEM_BAD_ARGUMENT;
    jem_archive *a = jem_archive_create(net->ctx);
    if (!a) return JEM_NO_MEMORY;
    jem_status status = jem_net_to_archive(net, a);
    if (!status) status = jem_archive_write(a, path);
    jem_archive_free(a);
    return status;
}
#endif

/* ==== >>engine: kernels of the processor ====================================================== */
/* Kernels are compiled once per instruction set: the file includes itself (at 'instances' below)
   with JEM__PASS set. All instances but JEM_ISA_WASM, which has no fma, give the same bits: the
   order of a sum never depends on the instruction set or the number of threads; multiply-adds are
   explicit fmas; no inexact product is an operand of a bare addition, which a compiler may
   contract; and exp, log and sine are implemented here.
   Letters: q is a convolution, from (ci,hi,wi) to (co,ho,wo), s one of its phases, f the operations
   that finish its sums; w is weights, a weight gradient in progress or, in Winograd, one part of a
   phase; o is an output channel, c an input channel, t a tap or a tile, g a group of 16 images, l
   or h the first lane of a vector of VL lanes. In >>bf16, s is also a block or a source. */

/* ---- shared by all instances ----------------------------------------------------------------- */

JEM__COMPILE_END
JEM__COMPILE("O1")
enum {
    JEM__CO = 6,           /* largest number of output channels in a block of a convolution */
#ifdef JEM__WASM
    JEM__FULL_BLOCK = 4,   /* number in most blocks: browsers load all weights of a block at once */
#else
    JEM__FULL_BLOCK = 6,   /* number in most blocks */
#endif
    JEM__OUTS = 4,         /* output channels in a block of a weight gradient */
    JEM__SUMS = 32,        /* room for the sums of a tap, OUTS x INS, in whole vectors */
    JEM__WINO_TILES = 4,   /* Winograd tiles computed together */
    JEM__WINO_POINTS = 36  /* largest number of points: of F(4,3) */
};

/* The pixels of an output that read the same taps, and these taps: ny rows of nx. An input gradient
   has stride*stride phases, each of every stride-th pixel of every stride-th row. */
typedef struct jem__phase {
    int y0, x0, step_out, rows, cols;              /* row r is row y0 + r*step_out of the output;
                                                      columns likewise */
    int step_in, ny, nx;                           /* row r reads r*step_in + down[j], ... */
    int down[JEM__MAX_KERNEL], right[JEM__MAX_KERNEL];
    int ky[JEM__MAX_KERNEL], kx[JEM__MAX_KERNEL];  /* with the weight ky[j], kx[i] */
} jem__phase;

/* Describes a phase; returns 0 if there is no such phase. Pixel y of an input gradient reads pixels
   (y + pad - ky)/stride of dy. */
JEM__ONCE int jem__conv_phase(const jem__conv *q, int phase, jem__phase *s) {
    int stride = 1;
    s->step_in = q->stride;
    if (q->gradient) {
        stride = q->stride;
        s->step_in = 1;
    }
    if (phase >= stride * stride) return 0;
    s->y0 = phase / stride;
    s->x0 = phase % stride;
    s->step_out = stride;
    s->rows = jem__div_up(q->ho - s->y0, stride);
    s->cols = jem__div_up(q->wo - s->x0, stride);
    s->ny = 0;
    s->nx = 0;
    for (int i = 0; i < q->k; i++) {
        const int tap = i - q->pad;
        int down = tap;
        int right = tap;
        if (q->gradient) {
            down = s->y0 - tap;
            right = s->x0 - tap;
        }
        if (down % stride == 0) {
            s->down[s->ny] = down / stride;
            s->ky[s->ny++] = i;
        }
        if (right % stride == 0) {
            s->right[s->nx] = right / stride;
            s->kx[s->nx++] = i;
        }
    }
    return 1;
}

/* Up to 4 pixels of a phase, computed together; or as many strips of lanes of a single pixel. */
typedef struct jem__pixels {
    int count;
    int channels;                                  /* read from each pixel */
    int taps;                                      /* of the phase */
    int live;                                      /* count of taps inside for at least one pixel */
    int index[JEM__MAX_TAPS];                      /* their numbers in the phase */
    const float *tap[JEM__MAX_TAPS][4];            /* where each reads its first channel; NULL: in
                                                      the padding */
    ptrdiff_t at[4];                               /* where the pixels are written */
    int lane[4];                                   /* first lane of each: 0, except for strips */
} jem__pixels;

/* Finds the places and the live taps of `count` pixels of a phase, from number `first` on. A tap
   that is outside for every pixel adds nothing, and is omitted. */
JEM__ONCE void jem__conv_pixels(const jem__conv *q, const jem__phase *s, int first, int count,
                                const float *x, jem__pixels *p) {
    int iy[4], ix[4];
    for (int i = 0; i < count; i++) {
        const int r = (first + i) / s->cols;
        const int c = (first + i) % s->cols;
        iy[i] = r * s->step_in;
        ix[i] = c * s->step_in;
        p->at[i] = ((ptrdiff_t)(s->y0 + r * s->step_out) * q->wo + s->x0 + c * s->step_out) *
                   q->co * JEM_LANES;
    }
    memset(p->lane, 0, sizeof p->lane);
    p->live = 0;
    p->taps = s->ny * s->nx;
    p->channels = q->ci;
    p->count = count;
    for (int t = 0, j = 0; j < s->ny; j++) {
        for (int k = 0; k < s->nx; k++, t++) {
            int inside = 0;
            for (int i = 0; i < count; i++) {
                const int y = iy[i] + s->down[j];
                const int z = ix[i] + s->right[k];
                const int in = (unsigned)y < (unsigned)q->hi && (unsigned)z < (unsigned)q->wi;
                p->tap[p->live][i] = in ? x + ((ptrdiff_t)y * q->wi + z) * q->ci * JEM_LANES : NULL;
                inside |= in;
            }
            if (inside) p->index[p->live++] = t;
        }
    }
}

/* Divides a pixel into `count` strips of `vl` lanes. They are computed together, so that the sum of
   each hides the latency of the others. */
JEM__ONCE void jem__conv_strips(jem__pixels *p, int count, int vl) {
    p->count = count;
    for (int i = 1; i < count; i++) {
        p->at[i] = p->at[0];
        p->lane[i] = i * vl;
        for (int t = 0; t < p->live; t++) p->tap[t][i] = p->tap[t][0] + i * vl;
    }
}

/* Returns the number of channels in the next register block when `left` remain: JEM__FULL_BLOCK,
   then at most 4; 8 are divided evenly. */
JEM__ONCE int jem__conv_channels(int left) {
    if (left >= JEM__FULL_BLOCK && left != 8) return JEM__FULL_BLOCK;
    return jem__min(left, 4);
}

/* Returns the first channel of a part. Parts are whole blocks; in bf16, whole pairs of tiles. */
JEM__ONCE int jem__conv_from(const jem__conv *q, int index, int count) {
    if (q->method->bf16) return jem__part_from(index, count, q->co, 32);
    int whole = q->co / JEM__FULL_BLOCK;           /* blocks, before those of 4 */
    if (q->co >= 8 && (q->co - 8) % JEM__FULL_BLOCK == 0) whole = (q->co - 8) / JEM__FULL_BLOCK;
    const int rest = q->co - whole * JEM__FULL_BLOCK;
    const int block = jem__part_from(index, count, whole + jem__div_up(rest, 4), 1);
    if (block <= whole) return block * JEM__FULL_BLOCK;
    return jem__min(whole * JEM__FULL_BLOCK + 4 * (block - whole), q->co);
}
/* One part of a convolution: units first .. last-1 (pixels, tiles, rows) of channels o0 .. o1-1. */
typedef struct jem__piece { int first, last, o0, o1; } jem__piece;

/* Returns one part of a convolution. A convolution is divided by units (kernels take `step` of them
   at a time) or, if there are too few, by channels. The direct method is also divided by channels
   if the weights are larger than x, since every part by units reads all weights; with the other
   methods, every part by channels would transform x again. */
JEM__ONCE jem__piece jem__conv_piece(const jem__conv *q, jem__part part, int units, int step) {
    const int heavy = (ptrdiff_t)q->co * q->k * q->k > (ptrdiff_t)q->hi * q->wi * JEM_LANES;
    const int direct = !q->tile && !q->method->bf16;
    jem__piece p = { 0, units, 0, q->co };
    if (units <= (part.count - 1) * step || (part.count > 1 && direct && heavy)) {
        p.o0 = jem__conv_from(q, part.index, part.count);
        p.o1 = jem__conv_from(q, part.index + 1, part.count);
    } else {
        p.first = jem__part_from(part.index, part.count, units, step);
        p.last = jem__part_from(part.index + 1, part.count, units, step);
    }
    return p;
}

/* Returns r: Winograd computes kernels of r x r with stride 1. A kernel of s r x s r with stride s
   is divided into s*s of these, its phases: each reads the pixels of its own phase of x. */
static int jem__wino_kernel(const jem__conv *q) { return q->k / q->stride; }
/* Returns the rows of a tile of inputs: M + r - 1. */
static int jem__wino_rows(const jem__conv *q) { return q->tile + jem__wino_kernel(q) - 1; }
static int jem__wino_points(const jem__conv *q) { return jem__wino_rows(q) * jem__wino_rows(q); }
/* Returns the number of channels that a phase of the output sums over: those of all phases of x,
   or, for an input gradient, those of dy. */
static int jem__wino_channels(const jem__conv *q) {
    if (q->gradient) return q->ci;
    return q->ci * q->stride * q->stride;
}

/* Returns the size of packed weights, in floats, for the direct method and for Winograd. The last
   block may compute JEM__CO channels although fewer are left (see conv_block); their weights, up to
   JEM__CO floats apart, may be beyond the end. */
static ptrdiff_t jem__pack_size(const jem__conv *q) {
    int points = q->k * q->k;
    if (q->tile) points = jem__wino_points(q) * q->stride * q->stride;
    return (ptrdiff_t)q->co * q->ci * points + JEM__CO * JEM__CO;
}
/* Returns the place, in weights (O,I,k,k), of the kernel from channel c to channel o. An input
   gradient computes I from O. */
static ptrdiff_t jem__kernel_at(const jem__conv *q, int o, int c) {
    const ptrdiff_t pair = q->gradient ? (ptrdiff_t)c * q->co + o : (ptrdiff_t)o * q->ci + c;
    return pair * q->k * q->k;
}
/* Packs weights in the order in which blocks read them, phase by phase. */
static void jem__direct_pack(void *packing, int part) {
    const jem__packing *p = (const jem__packing *)packing;
    const jem__conv *q = p->q;
    const int o1 = jem__conv_from(q, part + 1, p->parts);
    float *phase_out = p->out;
    jem__phase s;
    for (int phase = 0; jem__conv_phase(q, phase, &s); phase++) {
        const int taps = s.ny * s.nx;
        for (int o0 = jem__conv_from(q, part, p->parts), co; o0 < o1; o0 += co) {
            float *out = phase_out + (ptrdiff_t)o0 * q->ci * taps;
            co = jem__conv_channels(q->co - o0);
            for (int c0 = 0; c0 < q->ci; c0 += 16) {
                for (int t = 0; t < taps; t++) {
                    const float *w = p->w + s.ky[t / s.nx] * q->k + s.kx[t % s.nx];
                    for (int c = c0; c < q->ci && c < c0 + 16; c++) {
                        for (int o = o0; o < o0 + co; o++) *out++ = w[jem__kernel_at(q, o, c)];
                    }
                }
            }
        }
        phase_out += (ptrdiff_t)q->co * q->ci * taps;
    }
}

/* Returns the convolution between the operands of a weight gradient after they have been dealt,
   that is, copied into the order in which the kernel reads them. For a kernel of one pixel without
   padding, the dealt x has only the pixels that the kernel reads. */
static jem__conv jem__conv_dealt(const jem__conv *q) {
    jem__conv d = *q;
    if (q->k == 1 && q->pad == 0) {
        d.hi = q->ho;
        d.wi = q->wo;
        d.stride = 1;
    }
    return d;
}

/* An operand of a weight gradient, x or dy, and its dealt copy: pixels that are `step` apart become
   rows x cols, and channels are stored in blocks of `block`. */
typedef struct jem__dealt {
    int channels, block, h, w;
    int step, rows, cols;
    float *out;
    ptrdiff_t plane;                               /* from group to group, or from point to point */
} jem__dealt;
static jem__dealt jem__dealt_x(const jem__weight_grad *w) {
    const jem__conv *q = w->q;
    const jem__conv d = jem__conv_dealt(q);
    const jem__dealt x = { q->ci, w->ctx->k->ins, q->hi, q->wi, q->stride / d.stride, d.hi, d.wi,
                           w->x, w->x_plane };
    return x;
}
static jem__dealt jem__dealt_dy(const jem__weight_grad *w) {
    const jem__conv *q = w->q;
    const jem__dealt dy = { q->co, JEM__OUTS, q->ho, q->wo, 1, q->ho, q->wo, w->y, w->y_plane };
    return dy;
}

/* Returns 1 if x has more pixels than dy, and at least one block per thread. A product of the
   direct method then combines one block of input channels with all blocks of output channels, so
   that only one task reads that block of x; otherwise, one block of output channels with all blocks
   of input channels. A task divides these blocks into panels, and computes all of a panel's blocks
   while a group is in the cache. The sums need no finishing task. */
static int jem__direct_by_x(const jem__weight_grad *w, const jem__conv *dealt) {
    return dealt->hi * dealt->wi > dealt->ho * dealt->wo &&
           dealt->ci >= w->ctx->threads * w->ctx->k->ins;
}
/* Returns the number of blocks of a panel. */
static int jem__direct_panel(const jem__weight_grad *w) {
    const int fit = 56 / (w->q->k * w->q->k);      /* 56 KB of sums: 1 KB per tap (AVX-512) */
    if (w->groups == 1 || fit < 1) return 1;
    return fit;
}
/* Sets the sizes and tasks of a weight gradient by the direct method. */
static void jem__direct_plan(jem__weight_grad *w) {
    const jem__kernels *k = w->ctx->k;
    const jem__conv d = jem__conv_dealt(w->q);
    const jem__conv *q = &d;
    const int oblocks = jem__div_up(q->co, JEM__OUTS);
    const int iblocks = jem__div_up(q->ci, k->ins);
    w->products = oblocks;
    if (jem__direct_by_x(w, q)) w->products = iblocks;
    w->planes = w->groups;
    w->x_plane = (ptrdiff_t)iblocks * k->ins * q->hi * q->wi * JEM_LANES;
    w->y_plane = (ptrdiff_t)oblocks * JEM__OUTS * q->ho * q->wo * JEM_LANES;
    const int block = JEM__OUTS * k->ins * JEM_LANES;
    w->product_step = (ptrdiff_t)jem__direct_panel(w) * q->k * q->k * block;
    w->product_size = w->products * w->product_step;
}
static ptrdiff_t jem__direct_work(const jem__conv *q) {
    (void)q;
    return 0;
}

/* Sums dy of a group over its pixels, per channel and lane, for the bias gradient. */
static void jem__bias_sum(const jem__weight_grad *w, int g, const float *dy) {
    w->ctx->k->moment(dy, NULL, 0, (ptrdiff_t)w->q->ho * w->q->wo, w->q->co,
                      w->sums + (ptrdiff_t)g * w->q->co * JEM_LANES);
}
/* Adds the sums of all groups to the bias gradient of channel o. */
static void jem__bias_finish(const jem__weight_grad *w, int o) {
    for (int g = 0; w->db && g < w->groups; g++)
        w->db[o] += jem__sum_lanes(w->sums + ((ptrdiff_t)g * w->q->co + o) * JEM_LANES);
}

/* Returns the distance between planes, each of one point; 48 keeps it from being a power of two. */
static ptrdiff_t jem__wino_plane(int channels) {
    return (ptrdiff_t)channels * JEM__WINO_TILES * JEM_LANES + 48;
}
/* Returns the size of scratch memory, in floats. */
static ptrdiff_t jem__wino_work(const jem__conv *q) {
    const ptrdiff_t planes = jem__wino_plane(jem__wino_channels(q)) + jem__wino_plane(q->co);
    return jem__wino_points(q) * planes + (ptrdiff_t)q->tile * q->tile * (q->co + 1) * JEM_LANES +
           (ptrdiff_t)q->ci * JEM_LANES;
}

/* One part of a phase of a convolution by Winograd, and its scratch memory. */
typedef struct jem__wino {
    const jem__phase *phase;
    int top, left;                                 /* first pixel that tile 0 reads */
    int across;                                    /* tiles in a row */
    jem__piece to;
    float *v;                                      /* transformed inputs */
    float *p;                                      /* products */
    float *out;                                    /* outputs of a tile */
    float *zero;                                   /* a pixel of zeros */
    ptrdiff_t vplane, pplane, pixel;               /* from point to point, from pixel to pixel */
} jem__wino;

/* Prepares one part of a phase in scratch memory `work`. An input gradient reads its taps
   backwards: the last tap reads the first pixel. */
JEM__ONCE void jem__wino_open(const jem__conv *q, const jem__phase *phase, jem__part part,
                              float *work, jem__wino *w) {
    const int m = q->tile;
    const int points = jem__wino_points(q);
    const int down = jem__div_up(phase->rows, m);
    w->phase = phase;
    w->top = phase->down[0];
    w->left = phase->right[0];
    if (q->gradient) {
        w->top = phase->down[phase->ny - 1];
        w->left = phase->right[phase->nx - 1];
    }
    w->across = jem__div_up(phase->cols, m);
    w->to = jem__conv_piece(q, part, w->across * down, JEM__WINO_TILES);
    w->vplane = jem__wino_plane(jem__wino_channels(q));
    w->pplane = jem__wino_plane(q->co);
    w->pixel = (ptrdiff_t)q->co * JEM_LANES + JEM_LANES;     /* rarely a power of two */
    w->v = work;
    w->p = w->v + points * w->vplane;
    w->out = w->p + points * w->pplane;
    w->zero = w->out + m * m * w->pixel;
    memset(w->zero, 0, (size_t)(q->ci * JEM_LANES) * sizeof *w->zero);
}

/* The transformation of one tile, channel by channel. */
typedef struct jem__wino_move {
    const float *in[JEM__WINO_POINTS];             /* first channel of each number of the tile */
    float *out;                                    /* first channel of the first number */
    ptrdiff_t in_step, out_step;                   /* to the next channel */
    ptrdiff_t point;                               /* to the next number of the output */
    ptrdiff_t strip;                               /* to the next of 16/VL strips of lanes */
} jem__wino_move;

/* A group of images that tiles are read from; reversed: 1 reverses the order of a tile's pixels. */
typedef struct jem__tile_source { const float *x, *zero; int c, h, w, reversed; } jem__tile_source;

/* Finds the size x size pixels from (y,z) on, `step` apart. */
JEM__ONCE void jem__wino_read(jem__wino_move *t, const jem__tile_source *p, int size, int step,
                              int y, int z) {
    for (int i = 0; i < size * size; i++) {
        const int iy = y + i / size * step;
        const int ix = z + i % size * step;
        const float *pixel = p->zero;
        if ((unsigned)iy < (unsigned)p->h && (unsigned)ix < (unsigned)p->w)
            pixel = p->x + ((ptrdiff_t)iy * p->w + ix) * p->c * JEM_LANES;
        t->in[p->reversed ? size * size - 1 - i : i] = pixel;
    }
}

/* Returns the distance between two points of the sums; 80 keeps it from being a power of two. */
static ptrdiff_t jem__wino_sums_step(const jem__conv *q) { return (ptrdiff_t)q->co * q->ci + 80; }
/* Sets the sizes and tasks of a weight gradient by Winograd, F(4,3). A product task computes one
   point for one block of output channels; a finishing task computes one output channel. A pixel of
   zeros follows the bias sums. */
static void jem__wino_plan(jem__weight_grad *w) {
    const jem__kernels *k = w->ctx->k;
    const jem__conv *q = w->q;
    const int oblocks = jem__div_up(q->co, JEM__OUTS);
    const int iblocks = jem__div_up(q->ci, k->ins);
    const ptrdiff_t all = (ptrdiff_t)w->groups * jem__div_up(q->ho, 4) * jem__div_up(q->wo, 4);
    w->x_plane = all * iblocks * k->ins * JEM_LANES + 80;
    w->y_plane = all * oblocks * JEM__OUTS * JEM_LANES + 80;
    w->tiles = all;
    w->planes = JEM__WINO_POINTS;
    w->products = JEM__WINO_POINTS * oblocks;
    w->finishes = q->co;
    w->product_size = JEM__WINO_POINTS * jem__wino_sums_step(q);
    w->sums_size = ((ptrdiff_t)w->groups * q->co + q->ci + q->co) * JEM_LANES;
}

JEM__COMPILE_END
#ifdef _MSC_VER
#pragma warning(pop)
#endif
#endif /* JEM_IMPLEMENTATION: the rooms */

/* The file includes itself at 'instances' below, once for each JEM__PASS, the value of a jem_isa
   (the preprocessor cannot read enumerators). Only the lines from here to #elif are compiled. */
#ifdef JEM__PASS
#if JEM__PASS == 2                                 /* JEM_ISA_AVX2 */
#define JEM__TARGET __attribute__((target("avx2,fma")))
#define JEM__FN(name) jem__##name##_avx2
#define JEM__VL 8
#define JEM__MM(name) _mm256_##name
#define JEM__PX 2                                  /* vectors of a channel in a block: CO x PX sums
                                                      fill the registers */
#define JEM__INS 3                                 /* input channels of a weight gradient's block:
                                                      OUTS x INS sums fill the registers, too */
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
#define JEM__INS 4
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
#define JEM__INS 4
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
#define JEM__INS 2
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
#define JEM__INS 4
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

#ifdef JEM__MM                                     /* the same for AVX2 and AVX-512 */
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

/* Vectors of floats (JEM__V) and words (JEM__I), of JEM__VL lanes. The compiler adds and
   multiplies them; the macros above do the rest. JEM__LESS(a, b, x, y) is x in lanes where a < b,
   else y. JEM__BITS(a) has bit l set if lane l is negative. JEM__PICK(bits, x, y) is x in lanes
   whose bit is set, else y. JEM__FMA is a b + c, JEM__FNMA c - a b. JEM__IOTA is 0, 1, 2, ...
   JEM__TO_V converts signed words. JEM__FOLDn(a, b) adds the lanes of a, and of b, that are n
   apart. The scalar instance is the reference: plain loops, which the compiler may optimise. */
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
/* Pixels or tiles in a block: one if a group has several vectors; with AVX2 and NEON, a block then
   reads whole cache lines. */
#define JEM__PIXELS (JEM_LANES > JEM__VL ? 1 : JEM__PX)
#define JEM__EACH(i, n) for (ptrdiff_t i = 0; i < (n); i += JEM__VL)

/* ---- elementary functions -------------------------------------------------------------------- */

/* Computes c[0] x^(n-1) + ... + c[n-1]. */
JEM__VINLINE JEM__V JEM__FN(poly)(const int n, const float *c, JEM__V x) {
    JEM__V y = JEM__SET(c[0]);
    JEM__REPEAT(i, n - 1) y = JEM__FMA(y, x, JEM__SET(c[i + 1]));
    return y;
}

/* Computes e^x = 2^n (1 + r + r^2 c(r)), |r| <= ln(2)/2, for x limited to [-87, 88]. The relative
   error is 1e-7. */
JEM__VINLINE JEM__V JEM__FN(exp)(JEM__V x) {
    static const float c[] = { 1.39411096e-3f, 8.36317982e-3f, 4.16663753e-2f, 0.16666577f, 0.5f };
    const JEM__V lo = JEM__SET(-87.0f);
    const JEM__V hi = JEM__SET(88.0f);
    const JEM__V round = JEM__SET(12582912.0f);    /* 1.5 * 2^23: adding it rounds to an integer */
    x = JEM__LESS(x, lo, lo, x);
    x = JEM__LESS(hi, x, hi, x);
    const JEM__V t = JEM__FMA(x, JEM__SET(1.44269504f), round);
    const JEM__V n = JEM__TO_V(JEM__AS_I(t) - JEM__AS_I(round));  /* -ffast-math cannot cancel it */
    JEM__V r = JEM__FNMA(n, JEM__SET(0.693359375f), x);
    r = JEM__FNMA(n, JEM__SET(-2.12194440e-4f), r);
    const JEM__V q = JEM__FMA(r * r, JEM__FN(poly)(5, c, r), r) + JEM__SET(1.0f);
    const JEM__V y = JEM__AS_V(JEM__AS_I(q) + (JEM__AS_I(t) << 23));
    return JEM__FMA(x, JEM__SET(0.0f), y);         /* a NaN stays a NaN */
}

/* Computes ln x = e ln2 + 2 atanh(s), where x = 2^e m, m in [sqrt(1/2), sqrt(2)), and
   s = (m-1)/(m+1), for normal x > 0; infinity and NaN give NaN. */
JEM__VINLINE JEM__V JEM__FN(log)(JEM__V x) {
    static const float c[] = { 0.233327598f, 0.285507233f, 0.400001229f, 0.666666666f };
    const JEM__I low = JEM__ISET(0x3f3504f3u);     /* bits of sqrt(1/2) */
    JEM__I u = JEM__AS_I(x) + JEM__ISET(0x3f800000u - 0x3f3504f3u);
    JEM__V e = JEM__TO_V(u >> 23) - JEM__SET(127.0f);
    JEM__V m = JEM__AS_V((u & JEM__ISET(0x007fffffu)) + low);
    const JEM__V one = JEM__SET(1.0f);
    const JEM__V s = (m - one) / (m + one);
    const JEM__V z = s * s;
    JEM__V q = JEM__FN(poly)(4, c, z);
    q = JEM__FMA(s * z, q, JEM__FMA(e, JEM__SET(-2.12194440e-4f), s + s));
    q = JEM__FMA(e, JEM__SET(0.693359375f), q);
    return JEM__FMA(x, JEM__SET(0.0f), q);
}

/* Computes 1/(1 + e^-x). */
JEM__VINLINE JEM__V JEM__FN(sigmoid)(JEM__V x) {
    const JEM__V one = JEM__SET(1.0f);
    return one / (one + JEM__FN(exp)(JEM__SET(0.0f) - x));
}

/* Computes tanh x = 2 sigmoid(2x) - 1. The absolute error is 1e-7, so the relative error grows near
   0. */
JEM__VINLINE JEM__V JEM__FN(tanh)(JEM__V x) {
    return JEM__FMA(JEM__SET(2.0f), JEM__FN(sigmoid)(x + x), JEM__SET(-1.0f));
}

/* Computes log(1 + e^x) = max(x, 0) + log(1 + e^-|x|). u is 1 + e^-|x| rounded; the factor
   e^-|x|/(u - 1) corrects the rounding. */
JEM__VINLINE JEM__V JEM__FN(softplus)(JEM__V x) {
    const JEM__V zero = JEM__SET(0.0f);
    const JEM__V one = JEM__SET(1.0f);
    const JEM__V minus = zero - x;
    const JEM__V e = JEM__FN(exp)(JEM__LESS(x, zero, x, minus));
    const JEM__V u = one + e;
    const JEM__V positive = JEM__LESS(x, zero, zero, x);
    const JEM__V correction = e / JEM__LESS(one, u, u - one, one);     /* no 0/0 where u is 1 */
    return JEM__LESS(one, u, JEM__FMA(JEM__FN(log)(u), correction, positive), e + positive);
}

/* ---- random numbers: block b of 32 floats is drawn from counters start+16b .. start+16b+15 --- */

/* Computes two words from key and counter by Threefry-2x32-20 (Salmon et al. 2011): 20 rounds of
   add, rotate, xor; the key is added after every 4. */
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

/* Converts the upper 24 bits of a word to [0,1). */
JEM__VINLINE JEM__V JEM__FN(unit)(JEM__I u) {
    return JEM__TO_V(u >> 8) * JEM__SET(1.0f / 16777216.0f);
}

/* Computes two samples of N(0,1) from two words (Box & Muller 1958): sqrt(-2 ln u) times sine and
   cosine of 2 pi t, which are polynomials in t^2 for t in [-1/2, 1/2). */
JEM__VINLINE void JEM__FN(normal2)(JEM__I a, JEM__I b, JEM__V *p, JEM__V *q) {
    static const float sine[] = {
        -0.620820359f, 3.78135533f, -15.0865778f, 42.0577562f, -76.7058004f, 81.6052474f,
        -41.3417022f, 6.28318531f
    };
    static const float cosine[] = {
        -1.45323693f, 7.80024045f, -26.4047057f, 60.2421377f, -85.4566589f, 64.9393891f,
        -19.7392087f, 1.0f
    };
    const JEM__V u = JEM__SET(1.0f) - JEM__FN(unit)(a);       /* (0,1] */
    const JEM__V t = JEM__FN(unit)(b) - JEM__SET(0.5f);
    const JEM__V z = t * t;
    const JEM__V r = JEM__SQRT(JEM__SET(-2.0f) * JEM__FN(log)(u));
    *p = r * (JEM__FN(poly)(8, sine, z) * t);
    *q = r * JEM__FN(poly)(8, cosine, z);
}

/* Draws two vectors of a kind, JEM__UNIFORM or JEM__NORMAL, from VL counters: the two words of each
   counter give one lane of p[0] and of p[1]. */
JEM__KERNEL void JEM__FN(draw)(int kind, const uint32_t *key, uint64_t counter, JEM__V *p) {
    JEM__I a, b;
    JEM__FN(threefry)(key, counter, &a, &b);
    if (kind == JEM__UNIFORM) {
        p[0] = JEM__FN(unit)(a);
        p[1] = JEM__FN(unit)(b);
    } else {
        JEM__FN(normal2)(a, b, &p[0], &p[1]);
    }
}

/* Fills out[n], n a multiple of 16, with a + b U[0,1) (JEM__UNIFORM) or a + b N(0,1). */
JEM__KERNEL void JEM__FN(fill)(int kind, const uint32_t *key, uint64_t start, float *out,
                               ptrdiff_t n, float a, float b) {
    const JEM__V va = JEM__SET(a);
    const JEM__V vb = JEM__SET(b);
    for (ptrdiff_t i = 0; i < n; i += 32) {
        for (int l = 0; l < 16; l += JEM__VL) {
            JEM__V p[2];
            JEM__FN(draw)(kind, key, start + (uint64_t)(i / 2 + l), p);
            JEM__STORE(out + i + l, JEM__FMA(vb, p[0], va));
            if (i + 16 < n) JEM__STORE(out + i + 16 + l, JEM__FMA(vb, p[1], va));
        }
    }
}

/* Computes a leaky ReLU or SiLU of the vector v, from lane l on. Stores the input of its backward,
   unless NULL: for leaky ReLU the signs, in `bits`; for SiLU the slopes s + x s (1-s), where s =
   sigmoid(x), or 0 if x < -30: there |x s| is below 3e-12, but products of several such values and
   slopes become subnormal, with which Intel's processors compute convolutions several times more
   slowly. */
JEM__VINLINE JEM__V JEM__FN(activate)(int kind, float slope, JEM__V v, int l, uint16_t *bits,
                                      float *slopes) {
    if (kind == JEM__MAP_SILU) {
        const JEM__V zero = JEM__SET(0.0f);
        const JEM__V s = JEM__LESS(v, JEM__SET(-30.0f), zero, JEM__FN(sigmoid)(v));
        const JEM__V r = v * s;
        if (slopes) JEM__STORE(slopes, JEM__FMA(r, JEM__SET(1.0f) - s, s));
        return r;
    }
    if (bits) *bits = (uint16_t)((l ? *bits : 0u) | JEM__BITS(v) << l);
    /* The addition of 0 turns the -0 of a negative number times 0 into 0. */
    return JEM__FMA(v, JEM__LESS(v, JEM__SET(0.0f), JEM__SET(slope), JEM__SET(1.0f)),
                    JEM__SET(0.0f));
}

/* ---- convolution: output, and input gradient ------------------------------------------------- */

/* Finishes a sum v of channel o as f describes (see jem__finish), for a vector from lane l on; at:
   its place in the tensor, including l. Returns the result. A mask followed by an addition is one
   fma, as in put_product: fusion does not change the bits. */
JEM__VINLINE JEM__V JEM__FN(finish_one)(const jem__finish *f, JEM__V v, int o, ptrdiff_t at,
                                        int l) {
    const ptrdiff_t bit = at / JEM_LANES;
    if (f->bias) v = v + JEM__SET(f->bias[o]);
    if (f->bits || f->slopes) {
        const JEM__V m = f->slopes ? JEM__LOAD(f->slopes + at)
                                   : JEM__PICK((unsigned)f->bits[bit] >> l, JEM__SET(f->slope),
                                               JEM__SET(1.0f));
        v = f->add ? JEM__FMA(v, m, JEM__LOAD(f->add + at)) : v * m;
    } else if (f->add) {
        v = v + JEM__LOAD(f->add + at);
    }
    if (f->y) JEM__STORE(f->y + at, v);
    if (f->kind) {
        uint16_t *bits = f->keep_bits ? f->keep_bits + bit : NULL;
        float *slopes = f->keep_slopes ? f->keep_slopes + at : NULL;
        v = JEM__FN(activate)(f->kind, f->slope, v, l, bits, slopes);
        if (f->act) JEM__STORE(f->act + at, v);
    }
    return v;
}
/* Finishes n channels of one pixel from o on, whose sums are `step` floats apart; at: the place of
   channel 0. */
JEM__KERNEL void JEM__FN(finish)(const jem__finish *f, const float *sum, ptrdiff_t step, int o,
                                 int n, ptrdiff_t at, int l) {
    at += (ptrdiff_t)o * JEM_LANES + l;
    for (int end = o + n; o < end; o++, sum += step, at += JEM_LANES)
        (void)JEM__FN(finish_one)(f, JEM__LOAD(sum), o, at, l);
}

/* Adds w[o] x[i] to acc[o][i], over n input channels of PX pixels, tiles or strips x[i]. Channels
   of x are `step` floats apart, weights of neighbouring o `apart`; w advances by `next` per
   channel. With a single x, reading w takes most of the time: consecutive weights are prefetched 3
   KB ahead, since the hardware prefetcher is too late, and stops at page boundaries.
   Many parameters: they cost nothing, as the function is inlined and most are constants. */
JEM__VINLINE void JEM__FN(multiply)(const int rows, const int px, const float *w, int apart,
                                    int next, const float *const *x, int step, int n,
                                    JEM__V (*acc)[JEM__PX]) {
    for (int c = 0; c < n; c++, w += next) {
        JEM__V v[JEM__PX];
        if (px == 1 && apart == 1) jem__prefetch(w, 768);
        JEM__REPEAT(i, px) v[i] = JEM__LOAD(x[i] + c * step);
        JEM__REPEAT(o, rows) {
            const JEM__V wo = JEM__SET(w[o * apart]);
            JEM__REPEAT(i, px) acc[o][i] = JEM__FMA(wo, v[i], acc[o][i]);
        }
    }
}

/* Computes a block of output channels x pixels or strips (CO x PX), accumulated in registers over
   taps and input channels. Weights are packed [block of CO][16 input channels][tap][input
   channel][CO]. It computes `most` channels, of which co are used: the others read the weights that
   follow, and are not stored. */
JEM__VINLINE void JEM__FN(conv_block)(const int most, const int px, const jem__pixels *p,
                                      const float *w, int co, const jem__finish *f, int o0, int l) {
    static const float zero[16 * JEM_LANES] = { 0 };
    const int rows = JEM__VL == 1 ? co : most;
    const int ci = p->channels;
    JEM__V acc[JEM__CO][JEM__PX], sum[JEM__PX][JEM__CO];
    JEM__REPEAT(o, rows) JEM__REPEAT(i, px) acc[o][i] = JEM__SET(0.0f);
    for (int c0 = 0; c0 < ci; c0 += 16) {
        const int nc = jem__min(ci - c0, 16);
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
    if (!f->bits && !f->slopes && !f->add && !f->kind) {     /* only a bias: stored directly */
        float *y = f->y + (ptrdiff_t)o0 * JEM_LANES + l;
        JEM__REPEAT(o, rows) {
            if (o >= co) continue;
            if (f->bias) JEM__REPEAT(i, px) acc[o][i] = acc[o][i] + JEM__SET(f->bias[o0 + o]);
            JEM__REPEAT(i, px) JEM__STORE(y + p->at[i] + p->lane[i] + o * JEM_LANES, acc[o][i]);
        }
        return;
    }
    JEM__REPEAT(i, px) JEM__REPEAT(o, rows) sum[i][o] = acc[o][i];
    for (int i = 0; i < px; i++)
        JEM__FN(finish)(f, (const float *)sum[i], JEM__VL, o0, co, p->at[i],
                        l + p->lane[i]);
}
/* Computes a block of co channels by one of five variants of conv_block: only five, since each is
   compiled for every instruction set. A single pixel always computes JEM__CO channels, which take
   no longer than one. */
JEM__TARGET JEM__ONCE void JEM__FN(conv_blocks)(const jem__pixels *p, const float *w, int co,
                                                const jem__finish *f, int o, int l) {
    if (p->count != JEM__PX) {
        JEM__FN(conv_block)(JEM__CO, 1, p, w, co, f, o, l);
        return;
    }
    switch (co) {
    case 1: JEM__FN(conv_block)(1, JEM__PX, p, w, 1, f, o, l); break;
    case 4: JEM__FN(conv_block)(4, JEM__PX, p, w, 4, f, o, l); break;
    case JEM__CO: JEM__FN(conv_block)(JEM__CO, JEM__PX, p, w, JEM__CO, f, o, l); break;
    default: JEM__FN(conv_block)(3, JEM__PX, p, w, co, f, o, l);
    }
}

/* Computes one part of the direct convolution of one group of 16 images, x (hi,wi,ci,16) to
   (ho,wo,co,16), finished as f describes. */
JEM__KERNEL void JEM__FN(conv)(const jem__conv *q, const jem__operands *in, const jem__finish *f) {
    const float *pack = in->packed;
    jem__phase s;
    jem__pixels p;
    for (int phase = 0; jem__conv_phase(q, phase, &s); phase++) {
        const jem__piece to = jem__conv_piece(q, in->part, s.rows * s.cols, JEM__PIXELS);
        for (int i = to.first, n; i < to.last; i += n) {
            n = to.last - i >= JEM__PIXELS ? JEM__PIXELS : 1;
            jem__conv_pixels(q, &s, i, n, in->x, &p);
            if (JEM__PIXELS == 1) jem__conv_strips(&p, JEM__PX, JEM__VL);
            const int step = JEM__VL + p.lane[JEM__PX - 1];
            const float *w = pack + (ptrdiff_t)to.o0 * q->ci * p.taps;
            for (int o = to.o0, co; o < to.o1; o += co) {
                co = jem__conv_channels(q->co - o);
                for (int l = 0; l < JEM_LANES; l += step)
                    JEM__FN(conv_blocks)(&p, w, co, f, o, l);
                w += (ptrdiff_t)co * q->ci * p.taps;
            }
        }
        pack += (ptrdiff_t)q->co * q->ci * s.ny * s.nx;
    }
}

/* ---- Winograd: convolutions with fewer multiplications --------------------------------------- */
/* Lavin & Gray 2015 (arXiv:1509.09308), F(M,r): a tile of M x M outputs of an r x r kernel g is
   A'[(G g G') . (B' d B)]A, with ' for transposed and d the a x a inputs under it, a = M+r-1. The
   product ., at each of a*a points, is a matrix product over channels. For r = 3, M = 2 takes 2.25
   times fewer multiplications than the direct sum, and M = 4 takes 4 times fewer; for r = 2, the
   factors are 1.78 and 2.56.
   Interpolation points are the first of 0, 1, -1, 2, -2 that are needed, and infinity: F(4,3) has
   all six, F(2,2) has 0, 1, and infinity. A convolution of stride s is the sum of s*s convolutions
   of stride 1, each of a phase of x (every s-th row and column): their channels are summed at each
   point. An input gradient computes each phase of dx from dy. Its kernels are those of the output,
   rotated by 180 degrees. Instead of the kernels, it rotates each tile, before and after, so that
   it can read the packed weights of the output: these are most of the memory of a wide network. */

/* Computes o = B' d, F(2,2). */
JEM__VINLINE void JEM__FN(wino_b22)(const JEM__V *d, JEM__V *o) {
    o[0] = d[0] - d[1];
    o[1] = d[1];
    o[2] = d[2] - d[1];
}
/* Computes o = B' d, F(4,2). */
JEM__VINLINE void JEM__FN(wino_b42)(const JEM__V *d, JEM__V *o) {
    const JEM__V two = JEM__SET(2.0f);
    const JEM__V three = JEM__SET(3.0f);
    const JEM__V p = d[3] - d[1];
    const JEM__V q = JEM__FNMA(three, d[2], d[3]);
    const JEM__V r = d[3] - d[2];
    o[0] = JEM__FMA(two, d[0] - d[2], p);
    o[1] = JEM__FNMA(two, d[1], r);
    o[2] = JEM__FMA(two, d[1], q);
    o[3] = p;
    o[4] = JEM__FNMA(two, p, d[4] - d[2]);
}
/* Computes o = B' d, F(2,3). */
JEM__VINLINE void JEM__FN(wino_b23)(const JEM__V *d, JEM__V *o) {
    o[0] = d[0] - d[2];
    o[1] = d[1] + d[2];
    o[2] = d[2] - d[1];
    o[3] = d[1] - d[3];
}
/* Computes o = B' d, F(4,3). */
JEM__VINLINE void JEM__FN(wino_b43)(const JEM__V *d, JEM__V *o) {
    const JEM__V two = JEM__SET(2.0f);
    const JEM__V four = JEM__SET(4.0f);
    const JEM__V five = JEM__SET(5.0f);
    const JEM__V p = JEM__FNMA(four, d[2], d[4]);
    const JEM__V q = JEM__FNMA(four, d[1], d[3]);
    const JEM__V r = d[4] - d[2];
    const JEM__V s = d[3] - d[1];
    o[0] = JEM__FMA(four, d[0], JEM__FNMA(five, d[2], d[4]));
    o[1] = p + q;
    o[2] = p - q;
    o[3] = JEM__FMA(two, s, r);
    o[4] = JEM__FNMA(two, s, r);
    o[5] = JEM__FMA(four, d[1], JEM__FNMA(five, d[3], d[5]));
}
/* Computes o = A' d, F(2,2). */
JEM__VINLINE void JEM__FN(wino_a22)(const JEM__V *d, JEM__V *o) {
    o[0] = d[0] + d[1];
    o[1] = d[1] + d[2];
}
/* Computes o = A' d, F(4,2). */
JEM__VINLINE void JEM__FN(wino_a42)(const JEM__V *d, JEM__V *o) {
    const JEM__V p = d[1] + d[2];
    const JEM__V q = d[1] - d[2];
    o[0] = d[0] + p + d[3];
    o[1] = JEM__FMA(JEM__SET(2.0f), d[3], q);
    o[2] = JEM__FMA(JEM__SET(4.0f), d[3], p);
    o[3] = JEM__FMA(JEM__SET(8.0f), d[3], q) + d[4];
}
/* Computes o = A' d, F(2,3). */
JEM__VINLINE void JEM__FN(wino_a23)(const JEM__V *d, JEM__V *o) {
    o[0] = d[0] + (d[1] + d[2]);
    o[1] = d[1] - d[2] - d[3];
}
/* Computes o = A' d, F(4,3). */
JEM__VINLINE void JEM__FN(wino_a43)(const JEM__V *d, JEM__V *o) {
    const JEM__V p = d[1] + d[2];
    const JEM__V q = d[1] - d[2];
    const JEM__V r = d[3] + d[4];
    const JEM__V s = d[3] - d[4];
    o[0] = d[0] + p + r;
    o[1] = JEM__FMA(JEM__SET(2.0f), s, q);
    o[2] = JEM__FMA(JEM__SET(4.0f), r, p);
    o[3] = JEM__FMA(JEM__SET(8.0f), s, q) + d[5];
}
/* Computes o = A d, F(4,3), for dy of weight gradients. */
JEM__VINLINE void JEM__FN(wino_dy_line)(const JEM__V *d, JEM__V *o) {
    const JEM__V s = d[0] + d[2];
    const JEM__V r = d[1] + d[3];
    const JEM__V s2 = JEM__FMA(JEM__SET(4.0f), d[2], d[0]);
    const JEM__V r2 = JEM__FMA(JEM__SET(8.0f), d[3], d[1] + d[1]);
    o[0] = d[0];
    o[1] = s + r;
    o[2] = s - r;
    o[3] = s2 + r2;
    o[4] = s2 - r2;
    o[5] = d[3];
}

/* Defines a kernel that applies `line` to all columns, then to all rows of a tile: from * from
   numbers become to * to. Transformations into Winograd's domain prefetch the next channel: no
   processor predicts accesses in this many places. */
#define JEM__WINO(name, line, from, to)                                                            \
    JEM__KERNEL void JEM__FN(name)(const jem__wino_move *w, int channels) {                        \
        for (int c = 0; c < channels; c++) {                                                       \
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
        }                                                                                          \
    }
JEM__WINO(wino_in22, wino_b22, 3, 3)
JEM__WINO(wino_in42, wino_b42, 5, 5)
JEM__WINO(wino_in23, wino_b23, 4, 4)
JEM__WINO(wino_in43, wino_b43, 6, 6)
JEM__WINO(wino_out22, wino_a22, 3, 2)
JEM__WINO(wino_out42, wino_a42, 5, 4)
JEM__WINO(wino_out23, wino_a23, 4, 2)
JEM__WINO(wino_out43, wino_a43, 6, 4)
JEM__WINO(wino_dy, wino_dy_line, 4, 6)
#undef JEM__WINO

/* The transformations of F(M,r): [r - 2][M/2 - 1]. */
static void (*const JEM__FN(wino_in)[2][2])(const jem__wino_move *w, int channels) = {
    { JEM__FN(wino_in22), JEM__FN(wino_in42) }, { JEM__FN(wino_in23), JEM__FN(wino_in43) }
};
static void (*const JEM__FN(wino_out)[2][2])(const jem__wino_move *w, int channels) = {
    { JEM__FN(wino_out22), JEM__FN(wino_out42) }, { JEM__FN(wino_out23), JEM__FN(wino_out43) }
};

/* Computes p[o][tile] = sum over channels of u[channel][o] v[channel][tile], for px tiles or strips
   of one, `apart` floats apart, and the block of co channels whose weights begin at o0; `most` is
   as in conv_block. u is packed in blocks of the output's channels. An input gradient sums over
   these: over `whole` blocks of JEM__FULL_BLOCK, prefetching the weights of its next o, then over
   the smaller blocks. Many parameters: as in multiply. */
JEM__VINLINE void JEM__FN(wino_block)(const int most, const int px, const jem__conv *q, int whole,
                                      const float *u, int o0, int co, const float *v, float *p,
                                      int apart) {
    enum { FULL = JEM__FULL_BLOCK };
    const int all = jem__wino_channels(q);
    const ptrdiff_t block = (ptrdiff_t)q->co * q->stride * q->stride;
    const int rows = JEM__VL == 1 ? co : most;
    const int step = JEM__WINO_TILES * JEM_LANES;
    const float *x[JEM__PX];
    JEM__V acc[JEM__CO][JEM__PX];
    JEM__REPEAT(t, px) x[t] = v + t * apart;
    JEM__REPEAT(o, rows) JEM__REPEAT(t, px) acc[o][t] = JEM__SET(0.0f);
    if (!q->gradient) {
        JEM__FN(multiply)(rows, px, u + (ptrdiff_t)o0 * all, 1, co, x, step, all, acc);
    } else {
        for (int b = 0; b < whole; b++, u += FULL * block) {
            JEM__REPEAT(i, 3) jem__prefetch(u, (o0 + FULL) * FULL + i * 16);
            JEM__FN(multiply)(rows, px, u + o0 * FULL, FULL, 1, x, step, FULL, acc);
            JEM__REPEAT(t, px) x[t] += FULL * step;
        }
        for (int left = all - FULL * whole, n; left > 0; left -= n, u += n * block) {
            n = jem__min(left, 4);
            JEM__FN(multiply)(rows, px, u + o0 * n, n, 1, x, step, n, acc);
            JEM__REPEAT(t, px) x[t] += n * step;
        }
    }
    JEM__REPEAT(o, rows) {
        if (o >= co) continue;
        JEM__REPEAT(t, px) JEM__STORE(p + o * JEM__WINO_TILES * JEM_LANES + t * apart, acc[o][t]);
    }
}
/* Computes a block of co channels by one of five variants, as conv_blocks does. apart = 0: one
   tile. The parameters are those of wino_block. */
JEM__TARGET JEM__ONCE void JEM__FN(wino_blocks)(const jem__conv *q, int whole, const float *u,
                                                int o, int co, const float *v, float *p,
                                                int apart) {
    if (apart == 0) {
        JEM__FN(wino_block)(JEM__CO, 1, q, whole, u, o, co, v, p, 0);
        return;
    }
    switch (co) {
    case 1: JEM__FN(wino_block)(1, JEM__PX, q, whole, u, o, 1, v, p, apart); break;
    case 4: JEM__FN(wino_block)(4, JEM__PX, q, whole, u, o, 4, v, p, apart); break;
    case JEM__CO:
        JEM__FN(wino_block)(JEM__CO, JEM__PX, q, whole, u, o, JEM__CO, v, p, apart);
        break;
    default: JEM__FN(wino_block)(3, JEM__PX, q, whole, u, o, co, v, p, apart);
    }
}

/* Computes the products of n tiles, point by point. Of each block, an input gradient reads the
   weights of its phase. */
JEM__KERNEL void JEM__FN(wino_products)(const jem__conv *q, const jem__wino *w, const float *u,
                                        int n) {
    const ptrdiff_t plane = (ptrdiff_t)q->co * q->ci * q->stride * q->stride;
    int whole = 0;
    int first = 0;
    if (q->gradient) first = (w->phase->ky[0] * q->stride + w->phase->kx[0]) * q->co;
    while (jem__conv_channels(q->ci - JEM__FULL_BLOCK * whole) == JEM__FULL_BLOCK) whole++;
    for (int i = 0; i < jem__wino_points(q); i++, u += plane) {
        const float *v = w->v + i * w->vplane;
        for (int o = w->to.o0, co; o < w->to.o1; o += co) {
            float *p = w->p + i * w->pplane + (ptrdiff_t)o * JEM__WINO_TILES * JEM_LANES;
            co = jem__conv_channels(q->co - o);
            for (int t = 0; t < n; t += JEM__PIXELS) {
                int apart = n - t == 1 ? 0 : JEM_LANES;
                int step = JEM__VL;
                if (JEM__PIXELS == 1) {
                    apart = JEM__VL;
                    step = JEM__VL * JEM__PX;
                }
                for (int l = t * JEM_LANES; l < (t + 1) * JEM_LANES; l += step)
                    JEM__FN(wino_blocks)(q, whole, u, first + o, co, v + l, p + l, apart);
            }
        }
    }
}

/* Transforms the inputs of n tiles from t0 on: for an output, of every phase of x. */
JEM__KERNEL void JEM__FN(wino_inputs)(const jem__conv *q, const jem__wino *w, const float *x,
                                      int t0, int n) {
    const int m = q->tile;
    const int step = w->phase->step_in;
    const int kind = jem__wino_kernel(q) - 2;
    const jem__tile_source image = { x, w->zero, q->ci, q->hi, q->wi, q->gradient };
    jem__wino_move in;
    in.in_step = JEM_LANES;
    in.out_step = JEM__WINO_TILES * JEM_LANES;
    in.point = w->vplane;
    in.strip = JEM__VL;
    for (int t = 0; t < n; t++) {
        const int y = (t0 + t) / w->across * m * step + w->top;
        const int z = (t0 + t) % w->across * m * step + w->left;
        for (int phase = 0; phase < step * step; phase++) {
            jem__wino_read(&in, &image, jem__wino_rows(q), step, y + phase / step,
                           z + phase % step);
            in.out = w->v + ((ptrdiff_t)phase * q->ci * JEM__WINO_TILES + t) * JEM_LANES;
            JEM__FN(wino_in)[kind][m / 2 - 1](&in, q->ci);
        }
    }
}

/* Transforms the products of n tiles from t0 on to outputs, and finishes these. */
JEM__KERNEL void JEM__FN(wino_outputs)(const jem__conv *q, const jem__wino *w,
                                       const jem__finish *f, int t0, int n) {
    const int m = q->tile;
    const int kind = jem__wino_kernel(q) - 2;
    const int o0 = w->to.o0;
    const int channels = w->to.o1 - o0;
    const jem__phase *s = w->phase;
    jem__wino_move out;
    out.out = w->out;
    out.in_step = JEM__WINO_TILES * JEM_LANES;
    out.out_step = JEM_LANES;
    out.point = w->pixel;
    out.strip = JEM__VL;
    for (int t = 0; t < n; t++) {
        const int y = (t0 + t) / w->across * m;
        const int z = (t0 + t) % w->across * m;
        const float *sums = w->p + ((ptrdiff_t)o0 * JEM__WINO_TILES + t) * JEM_LANES;
        for (int i = 0; i < jem__wino_points(q); i++) out.in[i] = sums + i * w->pplane;
        JEM__FN(wino_out)[kind][m / 2 - 1](&out, channels);
        for (int i = 0; i < m * m; i++) {
            const int at = q->gradient ? m * m - 1 - i : i;
            const int row = s->y0 + (y + at / m) * s->step_out;
            const int col = s->x0 + (z + at % m) * s->step_out;
            if (row >= q->ho || col >= q->wo) continue;
            for (int l = 0; l < JEM_LANES; l += JEM__VL)
                JEM__FN(finish)(f, w->out + i * w->pixel + l, JEM_LANES, o0, channels,
                                ((ptrdiff_t)row * q->wo + col) * q->co * JEM_LANES, l);
        }
    }
}

/* Computes one part of a convolution of one group, like conv, if k is 2 or 3 times the stride. */
JEM__KERNEL void JEM__FN(wino_conv)(const jem__conv *q, const jem__operands *from,
                                    const jem__finish *f) {
    jem__phase s;
    jem__wino w;
    for (int phase = 0; jem__conv_phase(q, phase, &s); phase++) {
        jem__wino_open(q, &s, from->part, from->work, &w);
        for (int t0 = w.to.first; t0 < w.to.last; t0 += JEM__WINO_TILES) {
            const int n = jem__min(w.to.last - t0, JEM__WINO_TILES);
            JEM__FN(wino_inputs)(q, &w, from->x, t0, n);
            JEM__FN(wino_products)(q, &w, from->packed, n);
            JEM__FN(wino_outputs)(q, &w, f, t0, n);
        }
    }
}

/* ---- convolution: weight gradient ------------------------------------------------------------ */
/* dW[o][i][t] = sum over images and pixels of dy[o][pixel] x[i][pixel at tap t]. A block of OUTS x
   INS weights is accumulated in registers, a tap at a time, over rows that fit into the L1 cache.
   Operands are first copied ('dealt') to [strip of VL lanes][block of B channels][pixel][B][VL], so
   that they are read consecutively, without power-of-two strides. */

/* Deals one group of x (side 0) or dy (1): 8 pixels at a time, so that neighbours are read
   together. */
JEM__KERNEL void JEM__FN(deal)(const jem__weight_grad *w, int g, int side,
                               const jem__operands *in) {
    const jem__dealt p = side ? jem__dealt_dy(w) : jem__dealt_x(w);
    const int blocks = jem__div_up(p.channels, p.block);
    const int pixels = p.rows * p.cols;
    float *out = p.out + g * p.plane;
    for (int i0 = 0; i0 < pixels; i0 += 8) {
        for (int c0 = 0; c0 < p.channels; c0 += p.block) {
            for (int l = 0; l < JEM_LANES; l += JEM__VL) {
                float *to = out + ((ptrdiff_t)(l / JEM__VL * blocks + c0 / p.block) * pixels + i0) *
                                  p.block * JEM__VL;
                for (int i = i0; i < pixels && i < i0 + 8; i++) {
                    const ptrdiff_t pixel = (ptrdiff_t)(i / p.cols * p.w + i % p.cols) * p.step;
                    const float *from = in->x + (pixel * p.channels + c0) * JEM_LANES + l;
                    for (int c = c0; c < c0 + p.block; c++, to += JEM__VL, from += JEM_LANES) {
                        JEM__V v = JEM__SET(0.0f);
                        if (c < p.channels) v = JEM__LOAD(from);
                        JEM__STORE(to, v);
                    }
                }
            }
        }
    }
}

/* Adds the 16 lanes of each of OUTS x INS sums, [strip][cell][VL], in the order of jem__sum_lanes:
   lanes at distances 8, 4, 2, 1. A fold does this for two registers at once, and leaves one, so
   VL sums end as the VL lanes of one register. Nothing is stored in between: Intel's processors
   stall on a wide load from memory that has just been written in pieces. */
JEM__KERNEL void JEM__FN(sums)(const float *acc, ptrdiff_t strip, float *out) {
    for (int c0 = 0; c0 < JEM__OUTS * JEM__INS; c0 += JEM__VL) {
        JEM__V v[JEM__VL];
        JEM__REPEAT(i, JEM__VL) {                  /* cells in the order in which folds take them */
            int cell = c0;
            if (JEM__VL >= 4) cell += i * 4 % JEM__VL + i * 4 / JEM__VL;
            if (cell >= JEM__OUTS * JEM__INS) cell = JEM__OUTS * JEM__INS - 1;
            JEM__V s[JEM_LANES / JEM__VL];
            JEM__REPEAT(j, JEM_LANES / JEM__VL)
                s[j] = JEM__LOAD(acc + j * strip + (ptrdiff_t)cell * JEM__VL);
            for (int n = JEM_LANES / JEM__VL / 2; n > 0; n /= 2) {
                for (int j = 0; j < n; j++) s[j] = s[j] + s[j + n];
            }
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

/* Adds dy x to a[OUTS][INS], n times: dy advances by OUTS vectors, x by `step`. Prefetches n cache
   lines from from[ahead] on, unless `from` is NULL. */
JEM__VINLINE void JEM__FN(correlate)(const float *dy, const float *x, ptrdiff_t n, int step,
                                     const float *from, ptrdiff_t ahead,
                                     JEM__V (*a)[JEM__INS]) {
    for (ptrdiff_t t = 0; t < n; t++, dy += JEM__OUTS * JEM__VL, x += step * JEM__VL) {
        JEM__V v[JEM__INS];
        if (from) jem__prefetch(from, ahead + t * 16);
        JEM__REPEAT(i, JEM__INS) v[i] = JEM__LOAD(x + i * JEM__VL);
        JEM__REPEAT(o, JEM__OUTS) {
            const JEM__V g = JEM__LOAD(dy + o * JEM__VL);
            JEM__REPEAT(i, JEM__INS) a[o][i] = JEM__FMA(g, v[i], a[o][i]);
        }
    }
}

/* Adds rows y0 .. y1-1 of dy times x to acc[tap][OUTS][INS][VL]. The first half of the taps
   prefetches the next rows of x, the other half those of dy. */
JEM__KERNEL void JEM__FN(weight_block)(const jem__conv *q, const float *x, const float *dy,
                                       float *acc, int y0, int y1) {
    const int s = q->stride;
    const int half = (q->k * q->k + 1) / 2;
    const ptrdiff_t next_x = ((ptrdiff_t)y1 * s + q->k - s - q->pad) * q->wi * JEM__INS * JEM__VL;
    const ptrdiff_t next_dy = (ptrdiff_t)y1 * q->wo * JEM__OUTS * JEM__VL;
    for (int ky = 0; ky < q->k; ky++)
        for (int kx = 0; kx < q->k; kx++, acc += JEM__OUTS * JEM__INS * JEM__VL) {
            JEM__V a[JEM__OUTS][JEM__INS];
            JEM__REPEAT(o, JEM__OUTS)
                JEM__REPEAT(i, JEM__INS) a[o][i] = JEM__LOAD(acc + (o * JEM__INS + i) * JEM__VL);
            const int right = kx - q->pad;
            int lo = 0;                            /* columns whose tap is inside */
            int hi = q->wo;
            while (lo < hi && lo * s + right < 0) lo++;
            while (hi > lo && (hi - 1) * s + right >= q->wi) hi--;
            const ptrdiff_t lines = (ptrdiff_t)(hi - lo) * 16;
            const ptrdiff_t tap = ky * q->k + kx;
            const float *from = x;
            ptrdiff_t ahead = next_x + tap * (y1 - y0) * lines;
            if (tap >= half) {
                from = dy;
                ahead = next_dy + (tap - half) * (y1 - y0) * lines;
            }
            for (int oy = y0; oy < y1; oy++, ahead += lines) {
                const int iy = oy * s + ky - q->pad;
                if ((unsigned)iy >= (unsigned)q->hi) continue;
                const float *g = dy + ((ptrdiff_t)oy * q->wo + lo) * JEM__OUTS * JEM__VL;
                const float *v = x + ((ptrdiff_t)iy * q->wi + lo * s + right) * JEM__INS * JEM__VL;
                JEM__FN(correlate)(g, v, hi - lo, s * JEM__INS, from, ahead, a);
            }
            JEM__REPEAT(o, JEM__OUTS)
                JEM__REPEAT(i, JEM__INS) JEM__STORE(acc + (o * JEM__INS + i) * JEM__VL, a[o][i]);
        }
}

/* Adds the sum of the dealt dy over groups and pixels to db, for the OUTS channels from o0 on. */
JEM__KERNEL void JEM__FN(bias_gradient)(const jem__weight_grad *w, int o0, const float *dy,
                                        ptrdiff_t strip) {
    const ptrdiff_t pixels = (ptrdiff_t)w->q->ho * w->q->wo;
    float lane[JEM__OUTS][JEM_LANES];
    for (int l = 0; l < JEM_LANES; l += JEM__VL, dy += strip) {
        JEM__V s[JEM__OUTS];
        JEM__REPEAT(o, JEM__OUTS) s[o] = JEM__SET(0.0f);
        for (int g = 0; g < w->groups; g++) {
            for (ptrdiff_t p = 0; p < pixels; p++) {
                const float *at = dy + g * w->y_plane + p * JEM__OUTS * JEM__VL;
                JEM__REPEAT(o, JEM__OUTS) s[o] = s[o] + JEM__LOAD(at + o * JEM__VL);
            }
        }
        JEM__REPEAT(o, JEM__OUTS) JEM__STORE(lane[o] + l, s[o]);
    }
    for (int o = 0; o < JEM__OUTS && o0 + o < w->q->co; o++)
        w->db[o0 + o] += jem__sum_lanes(lane[o]);
}

/* Adds to dw the sums of a block: output channels from o0 on, input channels from i0 on. */
JEM__KERNEL void JEM__FN(weight_sums)(const jem__weight_grad *w, const float *acc, int o0, int i0) {
    const int taps = w->q->k * w->q->k;
    const int cells = JEM__OUTS * JEM__INS;
    const int ci = w->q->ci;
    const int out = jem__min(w->q->co - o0, JEM__OUTS);
    const int in = jem__min(ci - i0, JEM__INS);
    float sum[JEM__SUMS];
    float *dw = w->dw + ((ptrdiff_t)o0 * ci + i0) * taps;
    for (int t = 0; t < taps; t++, dw++) {
        JEM__FN(sums)(acc + (ptrdiff_t)t * cells * JEM__VL, (ptrdiff_t)taps * cells * JEM__VL, sum);
        for (int o = 0; o < out; o++) {
            for (int i = 0; i < in; i++)
                dw[((ptrdiff_t)o * ci + i) * taps] += sum[o * JEM__INS + i];
        }
    }
}

/* Computes one product over all groups: of one block of an operand with all blocks of the other
   (see jem__direct_by_x). */
JEM__KERNEL void JEM__FN(weight_gradient)(const jem__weight_grad *w, int block) {
    enum { CACHED = 20480 };                       /* bytes of rows of x and dy that a block reads
                                                      again while the first-level cache has them */
    const jem__conv d = jem__conv_dealt(w->q);
    const jem__conv *q = &d;
    const int taps = q->k * q->k;
    const int cells = JEM__OUTS * JEM__INS;
    const int panel = jem__direct_panel(w);
    const int oblocks = jem__div_up(q->co, JEM__OUTS);
    const int iblocks = jem__div_up(q->ci, JEM__INS);
    const int by_x = jem__direct_by_x(w, q);
    const int others = by_x ? oblocks : iblocks;
    const ptrdiff_t px = (ptrdiff_t)q->hi * q->wi * JEM__INS * JEM__VL;       /* of a block */
    const ptrdiff_t py = (ptrdiff_t)q->ho * q->wo * JEM__OUTS * JEM__VL;
    const ptrdiff_t strip = (ptrdiff_t)taps * cells * JEM__VL;
    const ptrdiff_t all = (ptrdiff_t)taps * cells * 16;
    const ptrdiff_t row = (ptrdiff_t)q->wi * q->stride * JEM__INS + (ptrdiff_t)q->wo * JEM__OUTS;
    float *acc = w->product + block * w->product_step;
    int rows = (int)(CACHED / (row * JEM__VL * (ptrdiff_t)sizeof *acc));
    if (rows < 1) rows = 1;
    for (int b0 = 0; b0 < others; b0 += panel) {
        const int n = jem__min(others - b0, panel);
        memset(acc, 0, (size_t)(n * all) * sizeof *acc);
        for (int s = 0; s < JEM_LANES / JEM__VL; s++) {
            for (int g = 0; g < w->groups; g++) {
                for (int b = 0; b < n; b++) {
                    const int ob = by_x ? b0 + b : block;
                    const int ib = by_x ? block : b0 + b;
                    const float *x = w->x + g * w->x_plane + (s * iblocks + ib) * px;
                    const float *dy = w->y + g * w->y_plane + (s * oblocks + ob) * py;
                    for (int y0 = 0; y0 < q->ho; y0 += rows)
                        JEM__FN(weight_block)(q, x, dy, acc + b * all + s * strip, y0,
                                              jem__min(y0 + rows, q->ho));
                }
            }
        }
        for (int b = 0; b < n; b++) {
            const int ob = by_x ? b0 + b : block;
            const int ib = by_x ? block : b0 + b;
            JEM__FN(weight_sums)(w, acc + b * all, ob * JEM__OUTS, ib * JEM__INS);
        }
    }
    for (int ob = block; w->db && ob < oblocks; ob += w->products)
        JEM__FN(bias_gradient)(w, ob * JEM__OUTS, w->y + ob * py, oblocks * py);
}

static const jem__method JEM__FN(direct) = { 0, jem__pack_size, jem__direct_pack,
    jem__direct_work, JEM__FN(conv), jem__direct_plan, JEM__FN(deal), JEM__FN(weight_gradient),
    NULL };

/* ---- weight gradient by Winograd ------------------------------------------------------------- */
/* The gradient of A'[(G g G') . (B' d B)]A with respect to g is dg = G'[(A dy A') . (B' d B)]G: the
   same matrices, transposed. Both factors are computed for all tiles, point by point; the sum over
   tiles and images is a matrix product per point; G' is applied last. Operands are stored as
   [point][strip of VL lanes][block of B channels][tile][B][VL], with the tiles of all groups
   numbered consecutively. The method is used for M = 4 and more than 32 channels: with fewer, the
   direct sum was as fast in measurements. */

/* Transforms the tiles of one group of x (side 0) or dy (1). */
JEM__KERNEL void JEM__FN(wino_deal)(const jem__weight_grad *w, int group, int side,
                                    const jem__operands *in) {
    const jem__conv *q = w->q;
    const jem__dealt p = side ? jem__dealt_dy(w) : jem__dealt_x(w);
    const int across = jem__div_up(q->wo, 4);
    const int tiles = across * jem__div_up(q->ho, 4);
    const int size = side ? 4 : 6;
    const int from = side ? 0 : -q->pad;
    const float *zero = w->sums + (ptrdiff_t)w->groups * q->co * JEM_LANES;
    const jem__tile_source image = { in->x, zero, p.channels, p.h, p.w, 0 };
    const ptrdiff_t all = w->tiles;
    const ptrdiff_t cell = (ptrdiff_t)p.block * JEM__VL;
    jem__wino_move tile;
    tile.in_step = JEM_LANES;
    tile.out_step = JEM__VL;
    tile.point = p.plane;
    tile.strip = jem__div_up(p.channels, p.block) * all * cell;
    for (int t = 0; t < tiles; t++) {
        jem__wino_read(&tile, &image, size, 1, t / across * 4 + from, t % across * 4 + from);
        tile.out = p.out + (group * tiles + t) * cell;
        for (int c = 0; c < p.channels; c += p.block, tile.out += all * cell) {
            const int n = jem__min(p.channels - c, p.block);
            const size_t padding = (size_t)((p.block - n) * JEM__VL) * sizeof(float);
            if (side) JEM__FN(wino_dy)(&tile, n);
            else JEM__FN(wino_in43)(&tile, n);
            for (int i = 0; i < size * size; i++) tile.in[i] += n * JEM_LANES;
            for (int i = 0; padding && i < JEM__WINO_POINTS; i++) {    /* fill the last block */
                for (int s = 0; s < JEM_LANES / JEM__VL; s++)
                    memset(tile.out + i * tile.point + s * tile.strip + n * JEM__VL, 0, padding);
            }
        }
    }
    if (side) jem__bias_sum(w, group, in->x);
}

/* Computes product i, one point of one block of OUTS output channels: the sums over all tiles and
   lanes, in [point][o][c]. */
JEM__KERNEL void JEM__FN(wino_weights)(const jem__weight_grad *w, int i) {
    const jem__conv *q = w->q;
    const int iblocks = jem__div_up(q->ci, JEM__INS);
    const int oblocks = jem__div_up(q->co, JEM__OUTS);
    const int point = i / oblocks;
    const int ob = i % oblocks;
    const int cells = JEM__OUTS * JEM__INS;
    const ptrdiff_t all = w->tiles;
    float *to = w->product + point * jem__wino_sums_step(q) + (ptrdiff_t)ob * JEM__OUTS * q->ci;
    for (int ib = 0; ib < iblocks; ib++) {
        float lanes[JEM__OUTS * JEM__INS * JEM_LANES], sum[JEM__SUMS];
        for (int s = 0; s < JEM_LANES / JEM__VL; s++) {
            const float *v = w->x + point * w->x_plane +
                             ((ptrdiff_t)s * iblocks + ib) * all * JEM__INS * JEM__VL;
            const float *g = w->y + point * w->y_plane +
                             ((ptrdiff_t)s * oblocks + ob) * all * JEM__OUTS * JEM__VL;
            JEM__V acc[JEM__OUTS][JEM__INS];
            JEM__REPEAT(o, JEM__OUTS) JEM__REPEAT(c, JEM__INS) acc[o][c] = JEM__SET(0.0f);
            JEM__FN(correlate)(g, v, all, JEM__INS, NULL, 0, acc);
            JEM__REPEAT(o, JEM__OUTS)
                JEM__REPEAT(c, JEM__INS)
                    JEM__STORE(lanes + (s * cells + o * JEM__INS + c) * JEM__VL, acc[o][c]);
        }
        JEM__FN(sums)(lanes, cells * JEM__VL, sum);
        const int in = q->ci - ib * JEM__INS;
        for (int o = 0; o < JEM__OUTS && ob * JEM__OUTS + o < q->co; o++) {
            float *row = to + (ptrdiff_t)o * q->ci + ib * JEM__INS;
            const float *from = sum + o * JEM__INS;
            if (in >= JEM__INS) memcpy(row, from, JEM__INS * sizeof *row);     /* one move */
            else memcpy(row, from, (size_t)in * sizeof *row);
        }
    }
}

JEM__COMPILE("tree-vectorize")                     /* for doubles there is no JEM__V */
/* Computes o[3] = G' p[6], for 16 input channels. */
JEM__VINLINE void JEM__FN(wino_dg_line)(double (*p)[16], double (*o)[16]) {
    for (int l = 0; l < 16; l++) {                 /* divisions by 2 and 4 are exact */
        const double add = (p[1][l] + p[2][l]) / 6;
        const double sub = (p[1][l] - p[2][l]) / 6;
        const double add2 = (p[3][l] + p[4][l]) / 6;
        const double sub2 = (p[3][l] - p[4][l]) / 6;
        o[0][l] = p[0][l] / 4 - add + add2 / 4;
        o[1][l] = sub2 / 2 - sub;
        o[2][l] = add2 - add + p[5][l];
    }
}
/* Applies G' and G to the products of an output channel, in double, and adds the result to dw. Also
   adds the bias gradient of that channel. */
JEM__KERNEL void JEM__FN(wino_finish)(const jem__weight_grad *w, int o) {
    const int ci = w->q->ci;
    jem__bias_finish(w, o);
    for (int c0 = 0; c0 < ci; c0 += 16) {
        const float *p = w->product + (ptrdiff_t)o * ci + c0;
        const int n = jem__min(ci - c0, 16);
        float *dw = w->dw + ((ptrdiff_t)o * ci + c0) * 9;
        double line[6][16], t[6][3][16], r[3][16];
        for (int y = 0; y < 6; y++) {
            for (int x = 0; x < 6; x++, p += jem__wino_sums_step(w->q)) {   /* from n on: unused */
                for (int l = 0; l < 16; l++) line[x][l] = (double)p[l];
            }
            JEM__FN(wino_dg_line)(line, t[y]);
        }
        for (int x = 0; x < 3; x++) {
            for (int y = 0; y < 6; y++) memcpy(line[y], t[y][x], sizeof line[y]);
            JEM__FN(wino_dg_line)(line, r);
            for (int l = 0; l < n; l++) {
                for (int y = 0; y < 3; y++) dw[l * 9 + y * 3 + x] += (float)r[y][l];
            }
        }
    }
}

/* Computes o = G g for 16 kernels, F(2,2). Products are exact and divisions come last, here and in
   the next three functions, so the bits do not depend on the compiler. */
JEM__VINLINE void JEM__FN(wino_g22)(double (*g)[16], double (*o)[16]) {
    for (int l = 0; l < 16; l++) {
        o[0][l] = g[0][l];
        o[1][l] = g[0][l] + g[1][l];
        o[2][l] = g[1][l];
    }
}
/* Computes o = G g for 16 kernels, F(4,2). */
JEM__VINLINE void JEM__FN(wino_g42)(double (*g)[16], double (*o)[16]) {
    for (int l = 0; l < 16; l++) {
        o[0][l] = g[0][l] / 2;
        o[1][l] = (g[0][l] + g[1][l]) / -2;
        o[2][l] = (g[0][l] - g[1][l]) / -6;
        o[3][l] = (g[0][l] + 2 * g[1][l]) / 6;
        o[4][l] = g[1][l];
    }
}
/* Computes o = G g for 16 kernels, F(2,3). */
JEM__VINLINE void JEM__FN(wino_g23)(double (*g)[16], double (*o)[16]) {
    for (int l = 0; l < 16; l++) {
        const double s = g[0][l] + g[2][l];
        o[0][l] = g[0][l];
        o[1][l] = (s + g[1][l]) / 2;
        o[2][l] = (s - g[1][l]) / 2;
        o[3][l] = g[2][l];
    }
}
/* Computes o = G g for 16 kernels, F(4,3). */
JEM__VINLINE void JEM__FN(wino_g43)(double (*g)[16], double (*o)[16]) {
    for (int l = 0; l < 16; l++) {
        const double s = g[0][l] + g[2][l];
        const double r = g[0][l] + 4 * g[2][l];
        const double d = 2 * g[1][l];
        o[0][l] = g[0][l] / 4;
        o[1][l] = (s + g[1][l]) / -6;
        o[2][l] = (s - g[1][l]) / -6;
        o[3][l] = (r + d) / 24;
        o[4][l] = (r - d) / 24;
        o[5][l] = g[2][l];
    }
}
/* Computes G g of one line of 16 kernels, for the tile and the kernel of q. */
JEM__VINLINE void JEM__FN(wino_g)(const jem__conv *q, double (*g)[16], double (*o)[16]) {
    if (jem__wino_kernel(q) == 2) {
        if (q->tile == 2) JEM__FN(wino_g22)(g, o);
        else JEM__FN(wino_g42)(g, o);
    } else {
        if (q->tile == 2) JEM__FN(wino_g23)(g, o);
        else JEM__FN(wino_g43)(g, o);
    }
}
/* Packs weights w (O,I,k,k) as [point][block of CO][phase][input channel][CO]: the block of `co`
   channels from o0 on, 16 numbers of each point at a time. */
JEM__KERNEL void JEM__FN(wino_pack_block)(const jem__conv *q, const float *w, int o0, int co,
                                          float *out) {
    const int stride = q->stride;
    const int r = jem__wino_kernel(q);
    const int a = jem__wino_rows(q);
    const int channels = q->ci * stride * stride;
    const int all = channels * co;
    const ptrdiff_t plane = (ptrdiff_t)channels * q->co;
    out += (ptrdiff_t)o0 * channels;
    for (int at = 0; at < all; at += 16) {
        const int n = jem__min(all - at, 16);
        double g[3][3][16], t[6][3][16], u[6][16];
        float line[16];
        memset(g, 0, sizeof g);
        for (int l = 0; l < n; l++) {
            const int c = (at + l) / co % q->ci;
            const int phase = (at + l) / co / q->ci;
            const int o = o0 + (at + l) % co;
            const float *k = w + ((ptrdiff_t)o * q->ci + c) * q->k * q->k;
            for (int i = 0; i < r * r; i++) {
                const int ky = i / r * stride + phase / stride;
                const int kx = i % r * stride + phase % stride;
                g[i % r][i / r][l] = (double)k[ky * q->k + kx];
            }
        }
        for (int j = 0; j < r; j++) {
            JEM__FN(wino_g)(q, g[j], u);
            for (int i = 0; i < a; i++) memcpy(t[i][j], u[i], sizeof u[i]);
        }
        for (int i = 0; i < a; i++) {
            JEM__FN(wino_g)(q, t[i], u);
            for (int j = 0; j < a; j++) {
                for (int l = 0; l < 16; l++) line[l] = (float)u[j][l];
                memcpy(out + (i * a + j) * plane + at, line, (size_t)n * sizeof *line);
            }
        }
    }
}
JEM__COMPILE_END
/* Packs the weights of one part. */
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

/* ---- elementwise: n floats, a multiple of 16 ------------------------------------------------- */

/* Stores g d, or adds it to the stored value. */
JEM__VINLINE void JEM__FN(put_product)(float *to, JEM__V g, JEM__V d, int add) {
    if (add) JEM__STORE(to, JEM__FMA(g, d, JEM__LOAD(to)));
    else JEM__STORE(to, g * d);
}

/* The functions of JEM__MAPS: map_NAME computes f(x), and slope_NAME its derivative from the value
   that the op keeps, x or y. */
JEM__VINLINE JEM__V JEM__FN(map_scale)(JEM__V x, JEM__V a) { return x * a; }
JEM__VINLINE JEM__V JEM__FN(map_shift)(JEM__V x, JEM__V a) { return x + a; }
JEM__VINLINE JEM__V JEM__FN(map_square)(JEM__V x, JEM__V a) { (void)a; return x * x; }
JEM__VINLINE JEM__V JEM__FN(map_exp)(JEM__V x, JEM__V a) { (void)a; return JEM__FN(exp)(x); }
JEM__VINLINE JEM__V JEM__FN(map_log)(JEM__V x, JEM__V a) { (void)a; return JEM__FN(log)(x); }
JEM__VINLINE JEM__V JEM__FN(map_tanh)(JEM__V x, JEM__V a) { (void)a; return JEM__FN(tanh)(x); }
JEM__VINLINE JEM__V JEM__FN(map_sigmoid)(JEM__V x, JEM__V a) {
    (void)a;
    return JEM__FN(sigmoid)(x);
}
JEM__VINLINE JEM__V JEM__FN(map_softplus)(JEM__V x, JEM__V a) {
    (void)a;
    return JEM__FN(softplus)(x);
}
JEM__VINLINE JEM__V JEM__FN(map_at_least)(JEM__V x, JEM__V a) { return JEM__LESS(x, a, a, x); }
JEM__VINLINE JEM__V JEM__FN(map_at_most)(JEM__V x, JEM__V a) { return JEM__LESS(a, x, a, x); }

JEM__VINLINE JEM__V JEM__FN(slope_scale)(JEM__V x, JEM__V a) { (void)x; return a; }
JEM__VINLINE JEM__V JEM__FN(slope_shift)(JEM__V x, JEM__V a) {
    (void)x;
    (void)a;
    return JEM__SET(1.0f);
}
JEM__VINLINE JEM__V JEM__FN(slope_square)(JEM__V x, JEM__V a) { (void)a; return x + x; }
JEM__VINLINE JEM__V JEM__FN(slope_exp)(JEM__V y, JEM__V a) { (void)a; return y; }
JEM__VINLINE JEM__V JEM__FN(slope_log)(JEM__V x, JEM__V a) { (void)a; return JEM__SET(1.0f) / x; }
JEM__VINLINE JEM__V JEM__FN(slope_tanh)(JEM__V y, JEM__V a) {
    (void)a;
    return JEM__FNMA(y, y, JEM__SET(1.0f));
}
JEM__VINLINE JEM__V JEM__FN(slope_sigmoid)(JEM__V y, JEM__V a) {
    (void)a;
    return JEM__FNMA(y, y, y);
}
JEM__VINLINE JEM__V JEM__FN(slope_softplus)(JEM__V x, JEM__V a) {
    (void)a;
    return JEM__FN(sigmoid)(x);
}
JEM__VINLINE JEM__V JEM__FN(slope_at_least)(JEM__V x, JEM__V a) {
    return JEM__LESS(x, a, JEM__SET(0.0f), JEM__SET(1.0f));
}
JEM__VINLINE JEM__V JEM__FN(slope_at_most)(JEM__V x, JEM__V a) {
    return JEM__LESS(a, x, JEM__SET(0.0f), JEM__SET(1.0f));
}

/* Computes y = f(x). aux: NULL, or receives the bits or slopes that the backward of an activation
   reads. */
JEM__KERNEL void JEM__FN(map)(int kind, float a, const float *x, float *y, void *aux, ptrdiff_t n) {
    uint16_t *bits = (uint16_t *)aux;
    float *slopes = (float *)aux;
#define JEM__ROW(KIND, name, op, kept)                                                             \
    case JEM__MAP_##KIND:                                                                          \
        JEM__EACH(i, n) JEM__STORE(y + i, JEM__FN(map_##name)(JEM__LOAD(x + i), JEM__SET(a)));     \
        break;
    switch (kind) {
        JEM__MAPS(JEM__ROW)
    case JEM__MAP_LEAKY:
        JEM__EACH(i, n) {
            uint16_t *bit = bits ? bits + i / JEM_LANES : NULL;
            const int lane = (int)(i % JEM_LANES);
            JEM__STORE(y + i, JEM__FN(activate)(kind, a, JEM__LOAD(x + i), lane, bit, NULL));
        }
        break;
    case JEM__MAP_SILU:
        JEM__EACH(i, n) {
            float *slope = slopes ? slopes + i : NULL;
            JEM__STORE(y + i, JEM__FN(activate)(kind, a, JEM__LOAD(x + i), 0, NULL, slope));
        }
        break;
    default: break;
    }
#undef JEM__ROW
}

/* Computes dx = dy f'(x), or adds it to dx. kept: the input or the output, as in JEM__MAPS. */
JEM__KERNEL void JEM__FN(map_back)(int kind, float a, const float *kept, const void *aux,
                                   const float *dy, float *dx, int add, ptrdiff_t n) {
    const uint16_t *bits = (const uint16_t *)aux;
    const float *slopes = (const float *)aux;
    if (!kept) kept = dy;      /* scale and shift keep nothing, and their slopes use no value */
#define JEM__BIT(i) ((unsigned)bits[(i) / JEM_LANES] >> ((i) % JEM_LANES))
#define JEM__ROW(KIND, name, op, kept_array)                                                       \
    case JEM__MAP_##KIND:                                                                          \
        JEM__EACH(i, n) {                                                                          \
            const JEM__V slope = JEM__FN(slope_##name)(JEM__LOAD(kept + i), JEM__SET(a));          \
            JEM__FN(put_product)(dx + i, JEM__LOAD(dy + i), slope, add);                           \
        }                                                                                          \
        break;
    switch (kind) {
        JEM__MAPS(JEM__ROW)
    case JEM__MAP_LEAKY:
        JEM__EACH(i, n) {
            const JEM__V slope = JEM__PICK(JEM__BIT(i), JEM__SET(a), JEM__SET(1.0f));
            JEM__FN(put_product)(dx + i, JEM__LOAD(dy + i), slope, add);
        }
        break;
    case JEM__MAP_SILU:
        JEM__EACH(i, n)
            JEM__FN(put_product)(dx + i, JEM__LOAD(dy + i), JEM__LOAD(slopes + i), add);
        break;
    case JEM__MAP_DROP:
        JEM__EACH(i, n) {
            const JEM__V slope = JEM__PICK(JEM__BIT(i), JEM__SET(0.0f), JEM__SET(a));
            JEM__FN(put_product)(dx + i, JEM__LOAD(dy + i), slope, add);
        }
        break;
    default: break;
    }
#undef JEM__ROW
#undef JEM__BIT
}

/* Computes dropout: y = 0 where u < p, x a elsewhere; y holds the uniform numbers u on entry. bits:
   NULL, or receives a bit for each number: 1 if it was dropped. */
JEM__KERNEL void JEM__FN(drop)(float p, float a, const float *x, float *y, uint16_t *bits,
                               ptrdiff_t n) {
    const JEM__V va = JEM__SET(a);
    const JEM__V vp = JEM__SET(p);
    const JEM__V zero = JEM__SET(0.0f);
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

/* Computes y = a op b, where op is + - or *. broadcast: b is one number per lane. */
JEM__KERNEL void JEM__FN(pair)(int kind, const float *a, const float *b, int broadcast, float *y,
                               ptrdiff_t n) {
#define JEM__PAIR(op)                                                                              \
    JEM__EACH(i, n)                                                                                \
        JEM__STORE(y + i, JEM__LOAD(a + i) op JEM__LOAD(b + (broadcast ? i % JEM_LANES : i)))
    if (kind == JEM__PAIR_ADD) JEM__PAIR(+);
    if (kind == JEM__PAIR_SUB) JEM__PAIR(-);
    if (kind == JEM__PAIR_MUL) JEM__PAIR(*);
#undef JEM__PAIR
}

/* Computes dx = s dy v, or adds it to dx; v NULL: 1. broadcast: v is one number per lane. */
JEM__KERNEL void JEM__FN(pair_back)(float s, const float *dy, const float *v, int broadcast,
                                    float *dx, int add, ptrdiff_t n) {
    const JEM__V vs = JEM__SET(s);
    JEM__EACH(i, n) {
        JEM__V d = vs;
        if (v) d = vs * JEM__LOAD(v + (broadcast ? i % JEM_LANES : i));
        JEM__FN(put_product)(dx + i, JEM__LOAD(dy + i), d, add);
    }
}

/* Computes y[lane] = x[lane + by] for lanes whose bit in `lanes` is set, 0 for the others. */
JEM__KERNEL void JEM__FN(shift)(const float *x, int by, unsigned lanes, float *y, ptrdiff_t n) {
    for (ptrdiff_t i = 0; i < n; i += JEM_LANES) {
        float edge[3 * JEM_LANES];
        const float *from = x + i;
        if (i == 0 || i + JEM_LANES == n) {        /* nothing beyond x may be read */
            memset(edge, 0, sizeof edge);
            from = (const float *)memcpy(edge + JEM_LANES, from, JEM_LANES * sizeof *x);
        }
        for (int h = 0; h < JEM_LANES; h += JEM__VL)
            JEM__STORE(y + i + h, JEM__PICK(lanes >> h, JEM__LOAD(from + h + by), JEM__SET(0.0f)));
    }
}

/* Computes out[lane] = s times the sum of a b over n/16 vectors, or adds it to out; b NULL: 1. */
JEM__KERNEL void JEM__FN(dot)(float s, const float *a, const float *b, float *out, int add,
                              ptrdiff_t n) {
    for (int h = 0; h < JEM_LANES; h += JEM__VL) {
        JEM__V t = JEM__SET(0.0f);
        for (ptrdiff_t i = h; i < n; i += JEM_LANES) {
            if (b) t = JEM__FMA(JEM__LOAD(a + i), JEM__LOAD(b + i), t);
            else t = t + JEM__LOAD(a + i);
        }
        JEM__FN(put_product)(out + h, JEM__SET(s), t, add);
    }
}

/* ---- over channels: x[c][16] -> a number per lane -------------------------------------------- */

/* Computes y = log sum exp x over channels; the largest is subtracted first. */
JEM__KERNEL void JEM__FN(logsumexp)(const float *x, int c, float *y) {
    for (int h = 0; h < JEM_LANES; h += JEM__VL) {
        JEM__V m = JEM__LOAD(x + h);
        JEM__V s = JEM__SET(0.0f);
        for (int i = 1; i < c; i++) {
            const JEM__V v = JEM__LOAD(x + i * JEM_LANES + h);
            m = JEM__LESS(m, v, v, m);
        }
        for (int i = 0; i < c; i++)
            s = s + JEM__FN(exp)(JEM__LOAD(x + i * JEM_LANES + h) - m);
        JEM__STORE(y + h, m + JEM__FN(log)(s));
    }
}

/* Computes dx[i] = dy softmax(x)[i], or adds it to dx. softmax = exp(x - y), but 0 below e^-50: so
   small a value is negligible in sums, and its products with weights could be subnormal. */
JEM__KERNEL void JEM__FN(logsumexp_back)(const float *x, const float *y, const float *dy, int c,
                                         float *dx, int add) {
    for (int i = 0; i < c; i++) {
        for (int h = 0; h < JEM_LANES; h += JEM__VL) {
            const ptrdiff_t at = (ptrdiff_t)i * JEM_LANES + h;
            const JEM__V logp = JEM__LOAD(x + at) - JEM__LOAD(y + h);
            JEM__V p = JEM__FN(exp)(logp);
            p = JEM__LESS(logp, JEM__SET(-50.0f), JEM__SET(0.0f), p);
            JEM__FN(put_product)(dx + at, JEM__LOAD(dy + h), p, add);
        }
    }
}

/* ---- average pooling ------------------------------------------------------------------------- */

/* Computes y, the means of the windows of x. */
JEM__KERNEL void JEM__FN(pool)(const jem__pool *p, const float *x, float *y) {
    const ptrdiff_t n = (ptrdiff_t)p->c * JEM_LANES;
    for (int o = 0; o < p->ho * p->wo; o++, y += n) {
        const float *from = x + jem__pool_at(p, o, 0);
        JEM__EACH(i, n) {
            JEM__V t = JEM__SET(0.0f);
            for (int ky = 0; ky < p->kh; ky++) {
                for (int kx = 0; kx < p->kw; kx++)
                    t = t + JEM__LOAD(from + ((ptrdiff_t)ky * p->w + kx) * n + i);
            }
            JEM__STORE(y + i, t * JEM__SET(p->scale));
        }
    }
}
/* Adds scale dy to each window of dx. */
JEM__KERNEL void JEM__FN(pool_back)(const jem__pool *p, const float *dy, float *dx) {
    const JEM__V s = JEM__SET(p->scale);
    const ptrdiff_t n = (ptrdiff_t)p->c * JEM_LANES;
    for (int o = 0; o < p->ho * p->wo; o++, dy += n) {
        for (int t = 0; t < p->kh * p->kw; t++) {
            float *at = dx + jem__pool_at(p, o, t);
            JEM__EACH(i, n)
                JEM__STORE(at + i, JEM__FMA(JEM__LOAD(dy + i), s, JEM__LOAD(at + i)));
        }
    }
}

/* ---- normalisation: per channel and lane; arrays mean, rstd (c,16), gamma, beta (c) ---------- */

/* Adds x - mean, or its square, to sum[c][16], over pixels; mean NULL: 0. */
JEM__KERNEL void JEM__FN(moment)(const float *x, const float *mean, int squared, ptrdiff_t pixels,
                                 int c, float *sum) {
    const ptrdiff_t n = (ptrdiff_t)c * JEM_LANES;
    for (ptrdiff_t p = 0; p < pixels; p++, x += n) {
        JEM__EACH(i, n) {
            const JEM__V s = JEM__LOAD(sum + i);
            JEM__V v = JEM__LOAD(x + i);
            if (mean) v = v - JEM__LOAD(mean + i);
            JEM__STORE(sum + i, squared ? JEM__FMA(v, v, s) : s + v);
        }
    }
}

/* Computes y = (x - mean) rstd gamma + beta; beta NULL: 0. */
JEM__KERNEL void JEM__FN(normalize)(const jem__norm *norm, const float *x, float *y) {
    const jem__norm p = *norm;                     /* a copy, which stores cannot alias */
    for (ptrdiff_t t = 0; t < p.pixels; t++) {
        for (int i = 0; i < p.c; i++, x += JEM_LANES, y += JEM_LANES) {
            const JEM__V g = JEM__SET(p.gamma[i]);
            const JEM__V b = JEM__SET(p.beta ? p.beta[i] : 0.0f);
            for (int h = 0; h < JEM_LANES; h += JEM__VL) {
                const ptrdiff_t at = (ptrdiff_t)i * JEM_LANES + h;
                JEM__V v = JEM__LOAD(x + h) - JEM__LOAD(p.mean + at);
                v = v * JEM__LOAD(p.rstd + at);
                JEM__STORE(y + h, JEM__FMA(v, g, b));
            }
        }
    }
}

/* Adds dy to s1[c][16] and dy xhat to s2[c][16], over pixels; xhat = (x - mean) rstd. */
JEM__KERNEL void JEM__FN(normalize_sums)(const jem__norm *norm, const float *x, const float *dy) {
    const jem__norm p = *norm;                     /* a copy, which stores cannot alias */
    const ptrdiff_t n = (ptrdiff_t)p.c * JEM_LANES;
    for (ptrdiff_t t = 0; t < p.pixels; t++, x += n, dy += n) {
        JEM__EACH(i, n) {
            const JEM__V g = JEM__LOAD(dy + i);
            const JEM__V m = JEM__LOAD(p.mean + i);
            const JEM__V v = (JEM__LOAD(x + i) - m) * JEM__LOAD(p.rstd + i);
            JEM__STORE(p.s1 + i, JEM__LOAD(p.s1 + i) + g);
            JEM__STORE(p.s2 + i, JEM__FMA(g, v, JEM__LOAD(p.s2 + i)));
        }
    }
}

/* Adds rstd (dy gamma - s1 - xhat s2) to dx, where s1 and s2 are now the means of dy gamma and
   dy gamma xhat; or adds rstd dy gamma if from_x is 0: then the statistics do not depend on x. */
JEM__KERNEL void JEM__FN(normalize_back)(const jem__norm *norm, int from_x, const float *x,
                                         const float *dy, float *dx) {
    const jem__norm p = *norm;                     /* a copy, which stores cannot alias */
    for (ptrdiff_t t = 0; t < p.pixels; t++) {
        for (int i = 0; i < p.c; i++, x += JEM_LANES, dy += JEM_LANES, dx += JEM_LANES) {
            for (int h = 0; h < JEM_LANES; h += JEM__VL) {
                const ptrdiff_t at = (ptrdiff_t)i * JEM_LANES + h;
                const JEM__V r = JEM__LOAD(p.rstd + at);
                const JEM__V g = JEM__LOAD(dy + h);
                const JEM__V gm = JEM__SET(p.gamma[i]);
                JEM__V d = g * gm;
                if (from_x) {
                    const JEM__V v = (JEM__LOAD(x + h) - JEM__LOAD(p.mean + at)) * r;
                    d = JEM__FMA(g, gm, JEM__SET(0.0f) - JEM__LOAD(p.s1 + at));
                    d = JEM__FNMA(v, JEM__LOAD(p.s2 + at), d);
                }
                JEM__STORE(dx + h, JEM__FMA(r, d, JEM__LOAD(dx + h)));
            }
        }
    }
}

/* ---- sampling and learning ------------------------------------------------------------------- */

/* Makes a Langevin step x <- clamp(x + step clamp(g) + noise N(0,1)); key NULL: no noise. */
JEM__KERNEL void JEM__FN(langevin)(float *x, const float *g, ptrdiff_t n, const jem__langevin *d,
                                   const uint32_t *key, uint64_t start) {
    const JEM__V gmax = JEM__SET(d->clamp_grad);
    const JEM__V gmin = JEM__SET(-d->clamp_grad);
    const JEM__V lo = JEM__SET(d->lo);
    const JEM__V hi = JEM__SET(d->hi);
    const int clamp_x = d->lo < d->hi;
    const int clamp_g = d->clamp_grad > 0;
    for (ptrdiff_t i = 0; i < n; i += 32) {
        for (int l = 0; l < 16; l += JEM__VL) {
            JEM__V z[2] = { JEM__SET(0.0f), JEM__SET(0.0f) };
            if (key) JEM__FN(draw)(JEM__NORMAL, key, start + (uint64_t)(i / 2 + l), z);
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
}

/* Returns 0 for a moment m below `least` in magnitude, else m. Without gradients, moments would
   otherwise become subnormal and remain so (.9 times the smallest float is rounded to the same),
   which makes updates slow. */
JEM__VINLINE JEM__V JEM__FN(moment_from)(JEM__V least, JEM__V m) {
    const JEM__V at_least = JEM__LESS(m, least, JEM__SET(0.0f), m);
    return JEM__LESS(JEM__SET(0.0f) - least, m, at_least, m);
}

/* Updates parameters by Adam (Kingma & Ba 2015, algorithm 1). lr and root2 hold the two bias
   corrections: p -= lr m/(sqrt(v) root2 + eps), lr = rate/(1 - b1^t), root2 = 1/sqrt(1 - b2^t). The
   quotient is limited to +-1e18, as gradients are: no finite moments give infinite parameters. */
JEM__KERNEL void JEM__FN(adam)(float *p, const float *grad, float *m, float *v, ptrdiff_t n,
                               const jem__update *d) {
    const JEM__V decay = JEM__SET(d->weight_decay);
    const JEM__V eps = JEM__SET(d->eps);
    const JEM__V b1 = JEM__SET(d->beta1);
    const JEM__V b2 = JEM__SET(d->beta2);
    const JEM__V c1 = JEM__SET(1.0f - d->beta1);
    const JEM__V c2 = JEM__SET(1.0f - d->beta2);
    const JEM__V rate = JEM__SET(d->lr);
    const JEM__V root = JEM__SET(d->root2);
    const JEM__V hi = JEM__SET(1e18f);
    const JEM__V lo = JEM__SET(-1e18f);
    const JEM__V least = JEM__SET(JEM__LEAST_MOMENTUM);
    const JEM__V normal = JEM__SET(1.2e-38f);      /* the smallest normal float, rounded up */
    JEM__EACH(i, n) {
        const JEM__V w = JEM__LOAD(p + i);
        const JEM__V g = JEM__FMA(decay, w, JEM__LOAD(grad + i));
        const JEM__V mi = JEM__FN(moment_from)(least, JEM__FMA(c1, g, b1 * JEM__LOAD(m + i)));
        const JEM__V square = JEM__FMA(c2 * g, g, b2 * JEM__LOAD(v + i));
        const JEM__V vi = JEM__FN(moment_from)(normal, square);
        JEM__STORE(m + i, mi);
        JEM__STORE(v + i, vi);
        JEM__V q = mi / JEM__FMA(JEM__SQRT(vi), root, eps);
        q = JEM__LESS(q, lo, lo, q);
        q = JEM__LESS(hi, q, hi, q);
        JEM__STORE(p + i, JEM__FNMA(rate, q, w));
    }
}

/* Updates parameters by gradient descent: m = momentum m + g, p -= lr m (PyTorch's convention). */
JEM__KERNEL void JEM__FN(sgd)(float *p, const float *grad, float *m, ptrdiff_t n,
                              const jem__update *d) {
    const JEM__V decay = JEM__SET(d->weight_decay);
    const JEM__V mu = JEM__SET(d->momentum);
    const JEM__V rate = JEM__SET(d->lr);
    const JEM__V least = JEM__SET(JEM__LEAST_MOMENTUM);
    JEM__EACH(i, n) {
        const JEM__V w = JEM__LOAD(p + i);
        const JEM__V g = JEM__FMA(decay, w, JEM__LOAD(grad + i));
        const JEM__V mi = JEM__FN(moment_from)(least, JEM__FMA(mu, JEM__LOAD(m + i), g));
        JEM__STORE(m + i, mi);
        JEM__STORE(p + i, JEM__FNMA(rate, mi, w));
    }
}

/* Computes rows first .. first+3 of x x^T from column `first` on, and mirrors them: out(i,j) = sum
   over k of x(i,k) x(j,k), in panels as x. Each lane sums its own columns, panel by panel. */
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

/* Computes one panel of alpha a x + beta x for a symmetric matrix a, with as many rows as x, and in
   panels like x. It reads a(k,i) for a(i,k), so that 8 rows of the result read 8 neighbours. */
JEM__KERNEL void JEM__FN(symmetric_product)(const jem__matrix *x, const float *a, float alpha,
                                            float beta, int panel, float *out) {
    const ptrdiff_t rows = x->rows;
    const ptrdiff_t at = panel * rows * JEM_LANES;
    const JEM__V va = JEM__SET(alpha);
    const JEM__V vb = JEM__SET(beta);
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
    (jem_isa)JEM__PASS, JEM__INS, &JEM__FN(direct), &JEM__FN(winograd), JEM__FN(fill),
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
#undef JEM__INS
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
JEM__COMPILE("Og")                                 /* for tests, and x86 without AVX2 */
#else
JEM__COMPILE("O1")
#endif
#define JEM__PASS 1
#include JEM_FILE
JEM__COMPILE_END
JEM__COMPILE("no-tree-vectorize")                  /* kernels are vectorised by hand */
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

/* ==== >>bf16: convolutions in bf16, and the choice of methods ================================= */
/* bf16 has the exponent of fp32 and 8 significant bits. Operands of convolutions are rounded to it;
   sums are fp32. All kernels are built on one operation on a tile of 16 x 16 sums, C += A B, where
   A has 16 rows of pairs, B has 16 columns of pairs, and a pair is two neighbouring bf16. One
   instruction of AMX adds 16 pairs; AVX-512 BF16 needs 16 instructions for each pair.

     output, input gradient   A: weights of 16 channels   B: 16 images          pairs of channels
     weight gradient          A: dy of 16 channels        B: x of 16 channels   pairs of images

   B is read from consecutive memory for a whole row of taps (a run): a group of images is
   [row][column][pair of channels][16 images][2], with columns of zeros at both ends of every row.
   No column is tested against the edges, and sums are long even with few channels. In bf16, the
   bits depend on the instruction set: AMX adds even and odd elements separately. */

enum {
    JEM__BF16_TILE = 256,                          /* floats of C */
    JEM__BF16_PAIR = 32,                           /* bf16 of one pair of B */
    JEM__BF16_EDGE = 2,                            /* columns of zeros at each end of a row */
    JEM__BF16_RUNS = JEM__MAX_KERNEL,              /* largest number of runs of one block */
    JEM__BF16_KERNEL = 8                           /* largest kernel */
};

/* A block of sums: c[n][m] = the sum over runs and pairs of a[run] b[run][n], added to c if `add`
   is set. The m tiles of a are a2 apart. m is 1 or 2, m n at most 4. Groups of 16 pairs of a follow
   each other, the last padded with zeros. */
typedef struct jem__bf16_block {
    int m, n, add, runs, pairs;
    ptrdiff_t a2;
    const uint16_t *a[JEM__BF16_RUNS], *b[JEM__BF16_RUNS][4];
    float *c;
    /* Of a convolution: sums of n pixels from (y,x) on, `step` apart, of channels from 16*o on. */
    int o, y, x, step;
    int done;                                      /* tiles finished so far */
    const struct jem__bf16 *k;
    const jem__conv *q;
    const jem__finish *f;
} jem__bf16_block;

/* Kernels for an instruction set. */
typedef struct jem__bf16 {
    jem_isa isa;
    int tiled;                                     /* 0: A is [16 pairs][16 rows]; 1: transposed */
    int twice;                                     /* 1: only twice as fast as fp32, so fp32 is used
                                                      where Winograd with r = 3 applies, and for
                                                      fewer than 8 channels, which would leave more
                                                      than half of a tile empty */
    /* Computes a block. Meanwhile it may finish tiles of `previous`, which may be NULL. */
    void (*block)(const jem__bf16_block *, jem__bf16_block *previous);
    /* Finishes n channels of one pixel from o on; at, at16: the place of channel 0, in floats and
       in bf16 (f->y16). */
    void (*finish)(const jem__finish *f, const float *c, int o, int n, ptrdiff_t at,
                   ptrdiff_t at16);
    /* Converts the channels of one pixel to pairs, x[c][16] -> out[(c + 1)/2][16][2]. */
    void (*pairs)(const float *x, int c, uint16_t *out);
    /* Converts pairs of channels to pairs of images: c <= 16 channels of one pixel, x[8][16][2] ->
       out[8][16][2] or, with rows, the first 16 columns of out[16][32]. Adds them to sums[c][16],
       unless it is NULL. */
    void (*turn)(const uint16_t *x, int c, int rows, uint16_t *out, float *sums);
    void (*begin)(void);                           /* called before and after blocks; may be NULL */
    void (*end)(void);
} jem__bf16;

static int jem__bf16_pairs_of(int channels) { return jem__div_up(channels, 2); }
/* Return the distance between pixels, and between rows, in bf16. */
static ptrdiff_t jem__bf16_pixel(int c) {
    return (ptrdiff_t)jem__bf16_pairs_of(c) * JEM__BF16_PAIR;
}
static ptrdiff_t jem__bf16_row(int c, int w) {
    return (w + 2 * JEM__BF16_EDGE) * jem__bf16_pixel(c);
}
/* Finishes the next tile of a block. Returns 0 if all were finished before. */
static int jem__bf16_finish_tile(jem__bf16_block *d) {
    if (d->done == d->m * d->n) return 0;
    const int co = d->q->co;
    const int w = d->q->wo;
    const int t = d->done++;
    const int o = (d->o + t % d->m) * 16;
    const int x = d->x + t / d->m * d->step;
    const ptrdiff_t at = ((ptrdiff_t)d->y * w + x) * co * JEM_LANES;
    const ptrdiff_t at16 = d->y * jem__bf16_row(co, w) + (x + JEM__BF16_EDGE) * jem__bf16_pixel(co);
    d->k->finish(d->f, d->c + t * JEM__BF16_TILE, o, jem__min(co - o, 16), at, at16);
    return 1;
}
static void jem__bf16_finish_all(jem__bf16_block *d) {
    while (jem__bf16_finish_tile(d)) continue;
}

/* ---- in plain C: the reference for the others ------------------------------------------------ */

/* The functions of jem__bf16. Within a pair the odd element is added first. */
static void jem__bf16_block_scalar(const jem__bf16_block *s, jem__bf16_block *previous) {
    (void)previous;
    for (int t = 0; t < s->m * s->n; t++) {
        float *c = s->c + t * JEM__BF16_TILE;
        if (!s->add) memset(c, 0, JEM__BF16_TILE * sizeof *c);
        for (int r = 0; r < s->runs; r++) {
            const uint16_t *w = s->a[r] + t % s->m * s->a2;
            const uint16_t *x = s->b[r][t / s->m];
            for (int k = 0; k < s->pairs; k++, w += JEM__BF16_PAIR, x += JEM__BF16_PAIR) {
                for (int i = 0; i < JEM__BF16_TILE; i++) {
                    for (int odd = 1; odd >= 0; odd--)
                        c[i] = jem__fmaf(jem__from_bf16(w[i / 16 * 2 + odd]),
                                         jem__from_bf16(x[i % 16 * 2 + odd]), c[i]);
                }
            }
        }
    }
}
static void jem__bf16_pairs_scalar(const float *x, int c, uint16_t *out) {
    for (int i = 0; i < c + c % 2; i++) {
        for (int l = 0; l < JEM_LANES; l++) {
            uint16_t v = 0;
            if (i < c) v = jem__to_bf16(x[i * JEM_LANES + l]);
            out[i / 2 * JEM__BF16_PAIR + 2 * l + i % 2] = v;
        }
    }
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
    for (int i = 0; i < 16; i++) {
        for (int l = 0; l < JEM_LANES; l++) {
            uint16_t v = 0;
            if (i < c) v = x[i / 2 * JEM__BF16_PAIR + 2 * l + i % 2];
            out[rows ? i * 32 + l : l / 2 * JEM__BF16_PAIR + 2 * i + l % 2] = v;
            if (sums && i < c) sums[i * JEM_LANES + l] += jem__from_bf16(v);
        }
    }
}
static const jem__bf16 jem__bf16_scalar = { JEM_ISA_SCALAR, 0, 1, jem__bf16_block_scalar,
    jem__bf16_finish_scalar, jem__bf16_pairs_scalar, jem__bf16_turn_scalar, NULL, NULL };

/* ---- AVX-512 BF16 ---------------------------------------------------------------------------- */

#ifdef JEM__X86_BF16
#define JEM__TARGET                                                                                \
    __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma")))

/* Converts to bf16 and interleaves: a0 b0 a1 b1 ... */
JEM__TARGET JEM__INLINE __m512i jem__bf16_zip(__m512 a, __m512 b) {
    const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9,
        24, 8, 23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    return _mm512_permutexvar_epi16(order, (__m512i)_mm512_cvtne2ps_pbh(b, a));
}
/* Keeps the 16 rows of a tile in 16 registers. */
JEM__TARGET static void jem__bf16_block_avx512(const jem__bf16_block *s,
                                               jem__bf16_block *previous) {
    (void)previous;                                /* no latency to hide */
    for (int t = 0; t < s->m * s->n; t++) {
        float *c = s->c + t * JEM__BF16_TILE;
        __m512 acc[16];
        JEM__UNROLL for (int i = 0; i < 16; i++)
            acc[i] = s->add ? _mm512_loadu_ps(c + i * 16) : _mm512_setzero_ps();
        for (int r = 0; r < s->runs; r++) {
            const uint16_t *w = s->a[r] + t % s->m * s->a2;
            const uint16_t *x = s->b[r][t / s->m];
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
   specialises jem__bf16_finish_as for each, so that no condition is tested per sum. _ADD: with an
   addition, whose sum is stored. */
typedef enum jem__epilogue {
    JEM__EPILOGUE_ANY = 0,                         /* every case: all conditions are tested */
    JEM__EPILOGUE_LEAKY,
    JEM__EPILOGUE_LEAKY_ADD,
    JEM__EPILOGUE_LEAKY_BACK,
    JEM__EPILOGUE_LEAKY_BACK_ADD,
    JEM__EPILOGUE_SILU,
    JEM__EPILOGUE_SILU_BACK
} jem__epilogue;

/* Finishes the sums c of n channels as `f` describes. The epilogue, a compile-time constant,
   determines which fields of f are used. */
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
/* Finishes channels by the epilogue that applies. */
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
    for (int i = 0; i < c; i += 2, x += 2 * JEM_LANES, out += JEM__BF16_PAIR) {
        __m512 second = _mm512_setzero_ps();
        if (i + 1 < c) second = _mm512_loadu_ps(x + JEM_LANES);
        _mm512_storeu_si512(out, jem__bf16_zip(_mm512_loadu_ps(x), second));
    }
}
/* Transposes 16 x 16 numbers in eight registers. */
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
    /* Transposes 2 x 2 numbers (2 images of 2 channels) within 64 bits, then 8 x 8 of these. */
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

/* ---- AMX ------------------------------------------------------------------------------------- */

/* Only Linux grants tiles on request; gcc's intrinsics need a long of 64 bits. */
#if (defined(__linux__) && defined(__LP64__)) || defined(JEM__TILE_LOAD)
#define JEM__AMX 1

/* AMX has 8 tiles of 16 rows of 64 bytes. Tiles 0..3 hold C, tile 4 A, tile 5 B. Two are unused: on
   a core shared by two threads, a loop of these products reaches 820 GFLOP/s with 6 tiles in use
   and 550 with 8, perhaps because renaming needs free tiles (on a core of its own, it reaches 2,200
   with either). For processors without tiles, tests define the macros below. */
#ifndef JEM__TILE_LOAD
#define JEM__TILE_TARGET __attribute__((target("amx-tile,amx-bf16")))
#define JEM__TILE_LOAD(t, p) _tile_loadd(t, p, 64)
#define JEM__TILE_STORE(t, p) _tile_stored(t, p, 64)
#define JEM__TILE_ZERO(t) _tile_zero(t)
#define JEM__TILE_DOT(c, a, b) _tile_dpbf16ps(c, a, b)
JEM__TILE_TARGET static void jem__tile_begin(void) {
    struct { uint8_t palette, start, reserved[14]; uint16_t bytes[16]; uint8_t rows[16]; } c;
    memset(&c, 0, sizeof c);
    c.palette = 1;
    for (int i = 0; i < 8; i++) {
        c.bytes[i] = 64;
        c.rows[i] = 16;
    }
    __asm__ volatile("" : : "r"(&c) : "memory");   /* gcc 12 would omit the stores */
    _tile_loadconfig(&c);
}
JEM__TILE_TARGET static void jem__tile_end(void) { _tile_release(); }
#else
#define JEM__TILE_TARGET
static void jem__tile_begin(void) {}
static void jem__tile_end(void) {}
#endif

/* Computes a block of m x n tiles. It is compiled for each size, so that neither m nor n is tested
   between two tile instructions. */
#define JEM__TILE_SUMS(DO)                                                                         \
    DO(0);                                                                                         \
    if (m * n > 1) DO(1);                                                                          \
    if (m * n > 2) DO(2);                                                                          \
    if (m * n > 3) DO(3)
#define JEM__TILE_LOAD_SUM(t) JEM__TILE_LOAD(t, c + (t) * JEM__BF16_TILE)
#define JEM__TILE_STORE_SUM(t) JEM__TILE_STORE(t, c + (t) * JEM__BF16_TILE)
JEM__TILE_TARGET JEM__INLINE void jem__bf16_tiles(const int m, const int n,
                                                  const jem__bf16_block *s,
                                                  jem__bf16_block *previous) {
    float *c = s->c;
    __asm__ volatile("" : : "r"(s), "r"(c) : "memory");                /* see jem__tile_begin */
    if (s->add) {
        JEM__TILE_SUMS(JEM__TILE_LOAD_SUM);
    } else {
        JEM__TILE_SUMS(JEM__TILE_ZERO);
    }
    for (int r = 0; r < s->runs; r++) {
        const uint16_t *a = s->a[r];
        const uint16_t *const *b = s->b[r];
        const ptrdiff_t a2 = s->a2;
        const ptrdiff_t end = (ptrdiff_t)s->pairs * JEM__BF16_PAIR;
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
            if (previous) jem__bf16_finish_tile(previous);
        }
    }
    JEM__TILE_SUMS(JEM__TILE_STORE_SUM);
}
JEM__TILE_TARGET static void jem__bf16_block_amx(const jem__bf16_block *s,
                                                 jem__bf16_block *previous) {
    switch (s->m * 10 + s->n) {
    case 11: jem__bf16_tiles(1, 1, s, previous); return;
    case 12: jem__bf16_tiles(1, 2, s, previous); return;
    case 13: jem__bf16_tiles(1, 3, s, previous); return;
    case 14: jem__bf16_tiles(1, 4, s, previous); return;
    case 21: jem__bf16_tiles(2, 1, s, previous); return;
    default: jem__bf16_tiles(2, 2, s, previous);
    }
}
static const jem__bf16 jem__bf16_amx = { JEM_ISA_AMX, 1, 0, jem__bf16_block_amx,
    jem__bf16_finish_avx512, jem__bf16_pairs_avx512, jem__bf16_turn_avx512, jem__tile_begin,
    jem__tile_end };
#endif /* tiles */
#endif

#ifdef JEM__AMX
/* Multiplies small whole numbers with tiles and in plain C; returns 1 if the results agree. */
static int jem__tiles_work(void) {
    uint16_t a[16 * JEM__BF16_PAIR], b[16 * JEM__BF16_PAIR];
    float c[2][JEM__BF16_TILE];
    JEM__ZEROED(jem__bf16_block, one);
    one.m = 1;
    one.n = 1;
    one.runs = 1;
    one.pairs = 16;
    one.a[0] = a;
    one.b[0][0] = b;
    one.c = c[0];
    for (int i = 0; i < 16 * JEM__BF16_PAIR; i++) {          /* a equals its transpose */
        a[i] = jem__to_bf16((float)((i / 32 + i / 2 % 16 + i % 2) % 7));
        b[i] = jem__to_bf16((float)(i % 5));
    }
    jem__tile_begin();
    jem__bf16_block_amx(&one, NULL);
    jem__tile_end();
    one.c = c[1];
    jem__bf16_block_scalar(&one, NULL);
    return !memcmp(c[0], c[1], sizeof c[0]);
}
#endif

#ifdef JEM__X86_BF16
/* Returns 1 if AVX-512 BF16 is faster than fp32 with Winograd's method. On Intel's processors it
   is slower (measured on one: tools/BENCHMARKS.md). */
static int jem__bf16_pays(void) {
    unsigned a, b, c, d;
    const unsigned intel = 0x756e6547;             /* "Genu", of "GenuineIntel" */
    return __get_cpuid(0, &a, &b, &c, &d) && b != intel;
}
#endif

/* Returns the kernels for an instruction set, or for the best one that has bf16; NULL if this build
   or processor does not have it, or if fp32 is faster than the best one. */
static const jem__bf16 *jem__bf16_for(jem_isa isa) {
#ifdef JEM__X86_BF16
    const int best = isa == JEM_ISA_BEST;
#ifdef JEM__AMX
    if ((best || isa == JEM_ISA_AMX) && jem_isa_available(JEM_ISA_AMX) && jem__tiles_work())
        return &jem__bf16_amx;
#endif
    if (isa == JEM_ISA_AVX512_BF16 || (best && jem__bf16_pays()))
        return jem_isa_available(JEM_ISA_AVX512_BF16) ? &jem__bf16_avx512 : NULL;
#endif
    return isa == JEM_ISA_SCALAR ? &jem__bf16_scalar : NULL;
}

JEM__COMPILE_END
JEM__COMPILE("O1")
/* ---- output and input gradient, in plain C over those kernels -------------------------------- */

/* Returns the size, in floats, of a group of images (c,h,w), and of 16 pairs after it, which AMX
   may read. */
static ptrdiff_t jem__bf16_floats(int c, int h, int w) {
    return (h * jem__bf16_row(c, w) + 16 * JEM__BF16_PAIR) / 2;
}
/* Converts row y of a group, and writes the zeros around it. Since these overlap row y + 1, rows
   must be converted in ascending order. */
static void jem__bf16_convert(const jem__bf16 *k, const float *x, int c, int w, int y,
                              uint16_t *out) {
    const ptrdiff_t pixel = jem__bf16_pixel(c);
    const ptrdiff_t edge = JEM__BF16_EDGE * pixel;
    out += y * jem__bf16_row(c, w);
    memset(out, 0, (size_t)edge * sizeof *out);
    for (int i = 0; i < w; i++)
        k->pairs(x + ((ptrdiff_t)y * w + i) * c * JEM_LANES, c, out + edge + i * pixel);
    memset(out + edge + w * pixel, 0, (size_t)(edge + 16 * JEM__BF16_PAIR) * sizeof *out);
}

/* Returns the column, relative to the pixel, that a row of taps reads first: its taps read
   neighbours, those of an input gradient in reverse order. */
static int jem__bf16_first(const jem__conv *q, const jem__phase *s) {
    if (s->nx == 0) return 0;
    return q->gradient ? s->right[s->nx - 1] : s->right[0];
}
/* Returns 1 if bf16 can compute a convolution: k is at most JEM__BF16_KERNEL, and no tap reads
   further than the zeros at the edges. */
static int jem__bf16_fits(const jem__conv *q) {
    jem__phase s;
    if (q->k > JEM__BF16_KERNEL) return 0;
    for (int phase = 0; jem__conv_phase(q, phase, &s); phase++) {
        const int first = jem__bf16_first(q, &s);
        const int last = (s.cols - 1) * s.step_in + first + s.nx;
        if (first < -JEM__BF16_EDGE || last > q->wi + JEM__BF16_EDGE) return 0;
    }
    return 1;
}
/* Returns the size of A for one row of taps, in bf16. */
static ptrdiff_t jem__bf16_span(const jem__conv *q, const jem__phase *s) {
    const ptrdiff_t pairs = (ptrdiff_t)s->nx * jem__bf16_pairs_of(q->ci);
    return (pairs + 15) / 16 * 16 * JEM__BF16_PAIR;
}
/* Returns the size of all packed weights, in floats. */
static ptrdiff_t jem__bf16_pack_size(const jem__conv *q) {
    ptrdiff_t size = 0;
    jem__phase s;
    for (int phase = 0; jem__conv_phase(q, phase, &s); phase++)
        size += jem__channel_blocks(q->co) * s.ny * jem__bf16_span(q, &s);
    return size / 2;
}
/* Packs the weights w of one tap, of 16 outputs from o on and 16 inputs from c on, as pairs of A
   from pair k on. */
static void jem__bf16_pack_tap(const jem__packing *p, const float *w, int o, int c, int k,
                               uint16_t *out) {
    const jem__conv *q = p->q;
    const jem__bf16 *kernels = p->ctx->bf16;
    const int ni = jem__min(q->ci - c, 16);
    const int no = jem__min(q->co - o, 16);
    float v[16][16] = { { 0 } };
    uint16_t pairs[8 * JEM__BF16_PAIR];
    for (int j = 0; j < no; j++) {
        for (int i = 0; i < ni; i++) v[i][j] = w[jem__kernel_at(q, o + j, c + i)];
    }
    kernels->pairs(v[0], ni, pairs);
    for (int i = 0; 2 * i < ni; i++, k++) {
        for (int j = 0; j < no; j++) {             /* row j of pair k */
            const int at = kernels->tiled ? j * 32 + k % 16 * 2 : k % 16 * 32 + j * 2;
            memcpy(out + k / 16 * 512 + at, pairs + i * JEM__BF16_PAIR + 2 * j, 2 * sizeof *pairs);
        }
    }
}
/* Packs a tile of the weights [phase][tile of 16 outputs][row of taps][pairs: column, channels].
   The taps of a channel are neighbours in w, so 16 channels of 16 outputs stay in the cache. */
static void jem__bf16_pack(void *packing, int tile) {
    const jem__packing *p = (const jem__packing *)packing;
    const jem__conv *q = p->q;
    uint16_t *out = (uint16_t *)(void *)p->out;
    jem__phase s;
    for (int phase = 0; jem__conv_phase(q, phase, &s); phase++) {
        const ptrdiff_t run = jem__bf16_span(q, &s);
        const ptrdiff_t size = s.ny * run;
        uint16_t *to = out + tile * size;
        memset(to, 0, (size_t)size * sizeof *to);
        for (int c = 0; c < q->ci; c += 16) {
            for (int j = 0; j < s.ny; j++) {
                for (int x = 0; x < s.nx; x++) {
                    const float *w = p->w + s.ky[j] * q->k + s.kx[q->gradient ? s.nx - 1 - x : x];
                    jem__bf16_pack_tap(p, w, tile * 16, c, x * jem__bf16_pairs_of(q->ci) + c / 2,
                                       to + j * run);
                }
            }
        }
        out += p->parts * size;
    }
}

/* Writes the zeros at both ends of some rows of the output in bf16. */
static void jem__bf16_edges(const jem__conv *q, uint16_t *y16, int y, int rows) {
    const ptrdiff_t edge = JEM__BF16_EDGE * jem__bf16_pixel(q->co);
    const ptrdiff_t row = jem__bf16_row(q->co, q->wo);
    for (; rows > 0 && y < q->ho; rows--, y++) {
        memset(y16 + y * row, 0, (size_t)edge * sizeof *y16);
        memset(y16 + (y + 1) * row - edge, 0, (size_t)edge * sizeof *y16);
    }
}

/* Returns the size of scratch memory, for x in bf16. */
static ptrdiff_t jem__bf16_work(const jem__conv *q) {
    return jem__bf16_floats(q->ci, q->hi, q->wi);
}
/* Computes row r of a phase, for the channels of a part. b[0] is the block to compute next, b[1]
   the previous one, whose tiles have yet to be finished. */
static void jem__bf16_conv_row(const jem__phase *s, int r, const jem__piece *part,
                               const uint16_t *pack, const uint16_t *from, jem__bf16_block **b) {
    const jem__conv *q = b[0]->q;
    const int tiles = jem__channel_blocks(part->o1);
    const int most = q->co > 16 ? 2 : 4;
    const ptrdiff_t pixel = jem__bf16_pixel(q->ci);
    const ptrdiff_t row = jem__bf16_row(q->ci, q->wi);
    const ptrdiff_t run = jem__bf16_span(q, s);
    int row_of[JEM__BF16_RUNS], tap_row[JEM__BF16_RUNS];
    int runs = 0;
    for (int j = 0; j < s->ny; j++) {              /* the rows of taps that are inside */
        const int iy = r * s->step_in + s->down[j];
        if ((unsigned)iy < (unsigned)q->hi) {
            tap_row[runs] = j;
            row_of[runs++] = iy;
        }
    }
    from += (JEM__BF16_EDGE + jem__bf16_first(q, s)) * pixel;
    for (int o = part->o0 / 16, m; o < tiles; o += m) {
        m = jem__min(tiles - o, 2);
        for (int x = 0, n; x < s->cols; x += n) {
            jem__bf16_block *now = b[0];
            jem__bf16_block *previous = b[1];
            n = jem__min(s->cols - x, most);
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
            now->k->block(now, previous);
            jem__bf16_finish_all(previous);
            now->o = o;
            now->y = s->y0 + r * s->step_out;
            now->x = s->x0 + x * s->step_out;
            now->step = s->step_out;
            now->done = 0;
            b[0] = previous;
            b[1] = now;
        }
    }
}
/* Rows of x that have been converted to bf16, from .. until-1; -1, -1: no rows yet. */
typedef struct jem__bf16_rows { int from, until; } jem__bf16_rows;

/* Converts to `work` the rows of x that row r of a phase reads, unless this has been done. */
static void jem__bf16_convert_rows(const jem__conv *q, const jem__operands *in,
                                   const jem__phase *s, int r, jem__bf16_rows *rows) {
    uint16_t *work = (uint16_t *)(void *)in->work;
    if (in->x16 || s->ny == 0) return;
    const int last = r * s->step_in + s->down[q->gradient ? 0 : s->ny - 1];
    for (; rows->until <= last && rows->until < q->hi; rows->until++)
        jem__bf16_convert(in->ctx->bf16, in->x, q->ci, q->wi, rows->until, work);
}

/* Computes one part of the output or of the input gradient of one group, like conv of the engine.
   Two blocks alternate: while one is multiplied, the other is finished. Without in->x16, rows of x
   are converted as soon as a tap reads them. */
static void jem__bf16_conv(const jem__conv *q, const jem__operands *in, const jem__finish *f) {
    const jem__bf16 *k = in->ctx->bf16;
    const uint16_t *pack = (const uint16_t *)(const void *)in->packed;
    const uint16_t *x16 = in->x16 ? in->x16 : (const uint16_t *)(const void *)in->work;
    float c[2][4 * JEM__BF16_TILE];
    jem__bf16_block two[2];
    jem__bf16_block *blocks[2] = { two, two + 1 };
    jem__bf16_rows rows = { -1, -1 };
    jem__phase s;
    memset(two, 0, sizeof two);
    for (int i = 0; i < 2; i++) {
        two[i].k = k;
        two[i].q = q;
        two[i].f = f;
        two[i].c = c[i];
    }
    if (k->begin) k->begin();
    for (int phase = 0; jem__conv_phase(q, phase, &s); phase++) {
        const jem__piece to = jem__conv_piece(q, in->part, s.rows, 1);        /* rows or channels */
        int top = to.first * s.step_in - q->k - q->pad;      /* no tap reads a row above */
        if (top < 0) top = 0;
        if (rows.until < 0 || top < rows.from) {
            rows.from = top;
            rows.until = top;
        }
        for (int r = to.first; r < to.last; r++) {
            jem__bf16_convert_rows(q, in, &s, r, &rows);
            jem__bf16_conv_row(&s, r, &to, pack, x16, blocks);
            if (f->y16 && phase == 0 && to.o1 == q->co)      /* one part of a row writes them */
                jem__bf16_edges(q, f->y16, s.y0 + r * s.step_out, s.step_out);
        }
        pack += jem__channel_blocks(q->co) * s.ny * jem__bf16_span(q, &s);
    }
    jem__bf16_finish_all(blocks[1]);
    if (f->y16 && in->part.index == 0)
        memset(f->y16 + q->ho * jem__bf16_row(q->co, q->wo), 0,
               16 * JEM__BF16_PAIR * sizeof *f->y16);
    if (k->end) k->end();
}

/* ---- weight gradient ------------------------------------------------------------------------- */
/* Operands are first converted to pairs of images, group by group: x to [row][tile of 16 channels]
   [column mod stride][column / stride][8 pairs][16][2], with the columns of the padding; dy to the
   order of A, [row][tile of 16 channels][column][..]. */

/* Returns the count of columns of x per column mod stride. The last is for AMX, which reads two
   columns at a time. */
static int jem__bf16_columns(const jem__conv *q) { return q->wo + 1 + (q->k - 1) / q->stride; }
/* Return the sizes of one row of 16 channels of x and of dy, in bf16. */
static ptrdiff_t jem__bf16_x_tile(const jem__conv *q) {
    return (ptrdiff_t)q->stride * jem__bf16_columns(q) * 256;
}
static ptrdiff_t jem__bf16_y_tile(const jem__conv *q) { return (ptrdiff_t)(q->wo + 1) / 2 * 512; }

/* An operand whose pixels are converted. */
typedef struct jem__bf16_source {
    const jem__bf16 *k;
    const jem__operands *in;
    int channels, width;
} jem__bf16_source;

/* Converts up to 16 channels from c on of pixel (y,x) to pairs of images; in the padding, writes
   zeros. rows, sums: see jem__bf16. */
static void jem__bf16_turn(const jem__bf16_source *s, int c, int y, int x, int rows, uint16_t *out,
                           float *sums) {
    const jem__operands *in = s->in;
    uint16_t own[8 * JEM__BF16_PAIR];
    const uint16_t *from = own;
    int n = 0;
    if ((unsigned)x < (unsigned)s->width) n = jem__min(s->channels - c, 16);
    if (n && in->x16)
        from = in->x16 + y * jem__bf16_row(s->channels, s->width) +
               (x + JEM__BF16_EDGE) * jem__bf16_pixel(s->channels) + c / 2 * JEM__BF16_PAIR;
    else if (n)
        s->k->pairs(in->x + (((ptrdiff_t)y * s->width + x) * s->channels + c) * JEM_LANES, n, own);
    s->k->turn(from, n, rows, out, sums);
}

/* Converts x of one group to pairs of images. */
static void jem__bf16_deal_x(const jem__weight_grad *w, int g, const jem__operands *in) {
    const jem__conv *q = w->q;
    const jem__bf16_source x = { w->ctx->bf16, in, q->ci, q->wi };
    const int stride = q->stride;
    const int columns = jem__bf16_columns(q);
    uint16_t *out = (uint16_t *)(void *)w->x + 2 * g * w->x_plane;
    for (int y = 0; y < q->hi; y++) {
        for (int c = 0; c < q->ci; c += 16, out += jem__bf16_x_tile(q)) {
            for (int i = 0; i < columns * stride; i++)
                jem__bf16_turn(&x, c, y, i - q->pad, 0,
                               out + ((ptrdiff_t)(i % stride) * columns + i / stride) * 256, NULL);
        }
    }
}
/* Converts dy of one group to pairs of images, in the order of A, and sums it for the biases. */
static void jem__bf16_deal_dy(const jem__weight_grad *w, int g, const jem__operands *in) {
    const jem__conv *q = w->q;
    const jem__bf16_source dy = { w->ctx->bf16, in, q->co, q->wo };
    const int tiled = dy.k->tiled;
    uint16_t *out = (uint16_t *)(void *)w->y + 2 * g * w->y_plane;
    for (int y = 0; y < q->ho; y++) {
        for (int c = 0; c < q->co; c += 16, out += jem__bf16_y_tile(q)) {
            float *sums = w->sums + ((ptrdiff_t)g * q->co + c) * JEM_LANES;
            for (int i = 0; i < (q->wo + 1) / 2 * 2; i++) {
                ptrdiff_t at = (ptrdiff_t)i * 256;
                if (tiled) at = (ptrdiff_t)(i / 2) * 512 + i % 2 * 16;
                jem__bf16_turn(&dy, c, y, i, tiled, out + at, sums);
            }
        }
    }
}
static void jem__bf16_deal(const jem__weight_grad *w, int g, int side, const jem__operands *in) {
    if (side) jem__bf16_deal_dy(w, g, in);
    else jem__bf16_deal_x(w, g, in);
}

/* Returns the number of pairs of output tiles times that of input tiles. Each combination is one
   product, or one per row of the kernel if there are fewer combinations than threads. */
static int jem__bf16_pairs_of_tiles(const jem__conv *q) {
    return jem__div_up(jem__channel_blocks(q->co), 2) * jem__channel_blocks(q->ci);
}
/* Sets the sizes and tasks of a weight gradient in bf16. */
static void jem__bf16_plan(jem__weight_grad *w) {
    const jem__conv *q = w->q;
    const int pairs = jem__bf16_pairs_of_tiles(q);
    w->products = pairs * (pairs < w->ctx->threads ? q->k : 1);
    w->finishes = q->co;
    w->product_step = (ptrdiff_t)2 * q->k * q->k * JEM__BF16_TILE;
    w->planes = w->groups;
    w->x_plane = (ptrdiff_t)q->hi * jem__channel_blocks(q->ci) * jem__bf16_x_tile(q) / 2;
    w->y_plane = (ptrdiff_t)q->ho * jem__channel_blocks(q->co) * jem__bf16_y_tile(q) / 2;
    w->product_size = w->products * w->product_step;
    w->sums_size = (ptrdiff_t)w->groups * q->co * JEM_LANES;
}
/* Adds the products of up to two tiles of outputs, from tile o on, with input tile i to w->dw, for
   the rows ky0 .. ky1 - 1 of the kernel. */
static void jem__bf16_add_tiles(const jem__weight_grad *w, const float *acc, int o, int i, int ky0,
                                int ky1) {
    const jem__conv *q = w->q;
    const int taps = q->k * q->k;
    const int inputs = jem__min(q->ci - i * 16, 16);
    for (int r = 0; r < 32 && o * 16 + r < q->co; r++) {
        const float *sum = acc + r / 16 * taps * JEM__BF16_TILE + r % 16 * 16;
        float *dw = w->dw + ((ptrdiff_t)(o * 16 + r) * q->ci + i * 16) * taps;
        for (int c = 0; c < inputs; c++, dw += taps) {
            for (int t = ky0 * q->k; t < ky1 * q->k; t++) dw[t] += sum[t * JEM__BF16_TILE + c];
        }
    }
}

/* n taps of the kernel, from (ky,kx) on, between tile o of outputs and tile i of inputs. */
typedef struct jem__bf16_taps { int o, i, ky, kx, n; } jem__bf16_taps;

/* Sets the runs of a block: rows y0 .. y1-1 of dy of group g, and the rows of x that they meet. */
static void jem__bf16_set_runs(const jem__weight_grad *w, const jem__bf16_taps *t, int g, int y0,
                               int y1, jem__bf16_block *s) {
    const jem__conv *q = w->q;
    const uint16_t *x = (const uint16_t *)(const void *)w->x + 2 * g * w->x_plane;
    const uint16_t *dy = (const uint16_t *)(const void *)w->y + 2 * g * w->y_plane;
    const ptrdiff_t x_tile = jem__bf16_x_tile(q);
    const ptrdiff_t y_tile = jem__bf16_y_tile(q);
    const ptrdiff_t x_row = jem__channel_blocks(q->ci) * x_tile;
    const ptrdiff_t y_row = jem__channel_blocks(q->co) * y_tile;
    const int columns = jem__bf16_columns(q);
    s->n = t->n;
    s->runs = 0;
    for (int y = y0; y < y1; y++) {
        const int iy = y * q->stride + t->ky - q->pad;
        if ((unsigned)iy >= (unsigned)q->hi) continue;
        s->a[s->runs] = dy + y * y_row + t->o * y_tile;
        for (int p = 0; p < t->n; p++) {
            const int kx = t->kx + p;
            const ptrdiff_t at = (ptrdiff_t)(kx % q->stride) * columns + kx / q->stride;
            s->b[s->runs][p] = x + iy * x_row + t->i * x_tile + at * 256;
        }
        s->runs++;
    }
}

/* Computes a product in m*k*k tiles of scratch memory, and adds it to dw (O,I,k,k). */
static void jem__bf16_product(const jem__weight_grad *w, int task) {
    const jem__bf16 *k = w->ctx->bf16;
    const jem__conv *q = w->q;
    const int split = w->products / jem__bf16_pairs_of_tiles(q);
    const int in = jem__channel_blocks(q->ci);
    const int o = task / split / in * 2;
    const int i = task / split % in;
    const int m = jem__min(jem__channel_blocks(q->co) - o, 2);
    const int ky0 = q->k * (task % split) / split;
    const int ky1 = q->k * (task % split + 1) / split;
    const int taps = q->k * q->k;
    float *acc = w->product + task * w->product_step;
    JEM__ZEROED(jem__bf16_block, s);
    int rows = 128 / q->wo;                        /* 128 pixels stay in the cache for all taps */
    if (rows < 1) rows = 1;
    rows = jem__min(rows, JEM__BF16_RUNS);
    memset(acc, 0, (size_t)(m * taps * JEM__BF16_TILE) * sizeof *acc);
    s.add = 1;
    s.m = 1;
    s.pairs = q->wo * 8;
    if (k->begin) k->begin();
    for (int g = 0; g < w->groups; g++) {
        for (int y0 = 0; y0 < q->ho; y0 += rows) {
            for (int ky = ky0; ky < ky1; ky++) {
                for (int j = 0, n; j < m * q->k; j += n) {   /* columns, for each tile of outputs */
                    const int tile = j / q->k;
                    const int kx = j % q->k;
                    n = jem__min(q->k - kx, 4);
                    const jem__bf16_taps t = { o + tile, i, ky, kx, n };
                    jem__bf16_set_runs(w, &t, g, y0, jem__min(y0 + rows, q->ho), &s);
                    s.c = acc + (tile * taps + ky * q->k + kx) * JEM__BF16_TILE;
                    k->block(&s, NULL);
                }
            }
        }
    }
    if (k->end) k->end();
    jem__bf16_add_tiles(w, acc, o, i, ky0, ky1);
}
static const jem__method jem__bf16_method = { 1, jem__bf16_pack_size, jem__bf16_pack,
    jem__bf16_work, jem__bf16_conv, jem__bf16_plan, jem__bf16_deal, jem__bf16_product,
    jem__bias_finish };

/* ---- the choice of methods and kernels ------------------------------------------------------- */

/* Counts the rows of x that the taps of all rows of y read: each as often as it is read, without
   the padding. */
static int jem__rows_read(int rows_x, int rows_y, const jem__conv *q) {
    int rows = 0;
    for (int i = 0; i < rows_y * q->k; i++)
        rows += (unsigned)(i / q->k * q->stride + i % q->k - q->pad) < (unsigned)rows_x;
    return rows;
}
/* Returns the cost of reading `weights` weights for each pair of channels, in multiplications:
   measured as 0 while they fit into the second-level cache of 1 MB. `units` is the number of pixels
   or tiles: the weights of a single one are prefetched. */
static double jem__reading_cost(const jem__conv *q, int weights, int units) {
    const double all = (double)weights * q->ci * q->co;
    if (all * sizeof(float) <= 1 << 20) return 0;
    return units == 1 ? all : 1.5 * all;
}
/* Returns the cost of Winograd with M = m, in multiplications, as the mean of output and input
   gradient. Four tiles are computed together, or a last one alone. With AVX-512, transforming one
   channel of a tile of a x a inputs was measured to cost 2.5 a^3; for outputs, half of that. All
   numbers are exact, so every processor makes the same choice. */
static double jem__wino_cost(const jem__conv *q, int m) {
    const int a = m + jem__wino_kernel(q) - 1;
    const int tiles = jem__div_up(q->ho, m) * jem__div_up(q->wo, m);
    const int computed = tiles % 4 == 1 ? tiles : jem__div_up(tiles, 4) * 4;
    const int phases = q->stride * q->stride;
    const double inputs = phases * (q->ci + q->co);
    const double outputs = phases * q->ci + q->co;
    const double products = (double)computed * a * a * phases * q->ci * q->co;
    const double transformations = 1.25 * tiles * a * a * a * (inputs + outputs / 2);
    return products + transformations + jem__reading_cost(q, a * a * phases, tiles);
}
/* Returns the same cost for the direct sum. */
static double jem__direct_cost(const jem__conv *q) {
    const double down = jem__rows_read(q->hi, q->ho, q);
    const double right = jem__rows_read(q->wi, q->wo, q);
    return down * right * q->ci * q->co + jem__reading_cost(q, q->k * q->k, q->ho * q->wo);
}
/* Returns Winograd's M, or 0 for the direct sum: whichever costs least. */
static int jem__wino_tile(const jem_ctx *ctx, const jem__conv *q) {
    const jem_precision precision = ctx->desc.precision;
    const int fast = precision == JEM_PRECISION_FAST || precision == JEM_PRECISION_BF16;
    const int largest = fast ? 4 : 2;
    int tile = 0;
    double least = jem__direct_cost(q);
    for (int m = 2; m <= largest; m += 2) {
        const double cost = jem__wino_cost(q, m);
        if (cost <= least) {
            tile = m;
            least = cost;
        }
    }
    return tile;
}

/* Returns 1 if Winograd can compute a convolution, with enough channels for the transformations to
   pay off. */
static int jem__wino_fits(const jem__conv *q) {
    const int r = jem__wino_kernel(q);
    return q->k % q->stride == 0 && (r == 2 || r == 3) && q->pad < q->k && q->ci >= 8 && q->co >= 8;
}

/* Chooses the methods. Where bf16 is only twice as fast as fp32, Winograd is at least as fast for r
   = 3. Linear layers of vectors are not computed in bf16: they do too little work to repay rounding
   the operands. */
static void jem__conv_choose(const jem_ctx *ctx, jem__conv *q) {
    const jem__bf16 *bf16 = ctx->bf16;
    const jem__method *direct = ctx->k->direct;
    const jem__method *winograd = ctx->k->winograd;
    const int vectors = q->k == 1 && q->hi == 1 && q->wi == 1;
    const int least = bf16 && bf16->twice ? 8 : 1; /* fewest channels for which bf16 is faster */
    int tile = 0;
    if (ctx->desc.precision != JEM_PRECISION_DIRECT && jem__wino_fits(q) &&
        (!bf16 || (bf16->twice && jem__wino_kernel(q) == 3)))
        tile = jem__wino_tile(ctx, q);
    if (vectors) bf16 = NULL;
    for (int i = 0; i < 2; i++) {
        q[i].tile = tile;
        q[i].method = direct;
        if (tile) q[i].method = winograd;
        else if (bf16 && q[i].co >= least && jem__bf16_fits(q + i)) q[i].method = &jem__bf16_method;
    }
    q[2].method = direct;
    if (bf16 && q->ci >= least && q->co >= least && q->k <= JEM__BF16_KERNEL)
        q[2].method = &jem__bf16_method;
    else if (tile == 4 && q->k == 3 && q->ci > 32 && q->co > 32) q[2].method = winograd;
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
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        if (isa == all[i]->isa) return all[i];
        if (isa == JEM_ISA_BEST && jem_isa_available(all[i]->isa)) return all[i];
    }
    return NULL;
}

static int jem__engine_open(jem_ctx *ctx) {
    if (!jem__kernels_for(ctx->desc.isa)) return 0;
    if (ctx->desc.precision == JEM_PRECISION_BF16) {
        ctx->bf16 = jem__bf16_for(ctx->desc.isa);
        if (!ctx->bf16) {
            ctx->desc.precision = JEM_PRECISION_FAST;
            const char *note = "bf16: needs AMX or AVX-512 BF16; using JEM_PRECISION_FAST instead";
            if (jem_isa_available(JEM_ISA_AVX512_BF16) && ctx->desc.isa == JEM_ISA_BEST)
                note = "bf16: without AMX, fp32 is faster on this processor; using "
                       "JEM_PRECISION_FAST instead";
            jem__note(ctx, note);
        }
    }
    ctx->isa = ctx->bf16 ? ctx->bf16->isa : ctx->desc.isa;
    ctx->k = jem__kernels_for(ctx->isa);
    if (ctx->k && ctx->isa == JEM_ISA_BEST) ctx->isa = ctx->k->isa;
    return ctx->k != NULL;
}

JEM__COMPILE_END
#endif /* JEM_IMPLEMENTATION */

/* ==== >>changelog ============================================================================= */
/* 0.3  2026-11
   New       Residual networks without norms (jem_blocks), a U-Net's energy (jem_wrn_desc.unet).
             Muon (jem_optim_desc), with a rate of its own for Adam's parameters (adam_rate).
             A trainer's guard checks chains, gradients, cross-entropy, the residual and the step of
               SGLD; a rollback also restores the count of updates; jem_stats.reason is its cause.
             Contrastive terms pause until chains catch up (jem_train_desc.pause_gap).
             The loss can have a term of your own (jem_train_desc.term).
             Labels can be smoothed (jem_train_desc.label_smoothing).
             Answers have a verdict and its reason (jem_judge, jem_answer.reason).
             jem_calibrated says whether a network is calibrated, and what an answer costs.
             Vectors: jem_mlp_desc_vectors, jem_net_fit_units, jem_train_desc_vectors;
               jem_blame_values finds the value that makes one unlikely.
             Pictures are framed as the training images were (jem_net_fit_framing), fitted as they
               were (jem_fit, jem_net_set_fit, jem_pixels_desc.fit) and blended with the same grey
               (jem_net_set_background) or its opposite (JEM_DID_OPPOSITE); pictures of one colour
               are recognised (JEM_DID_BLANK, JEM_REASON_BLANK). Large ones take 2 to 3 ms;
               jem_pixels_desc.frame_all frames those of the network's size.
             A network stores how it is sampled: jem_net.guidance, denoise_steps, denoise_fraction,
               last_sigma, walk_step, walk_noise; jem_net_impute_desc: how its pixels are imputed.
             jem_sampler takes as many steps as a frame has time for, and one if the frame is late;
               jem_sampler_set_labels: other classes; jem_net_draft_desc: few steps.
             Attacks on classifiers with random answers (jem_attack_desc.all_steps, .momentum).
             Files can hold networks of your own (jem_register_net), archives bf16
               (jem_archive_set_bf16, jem_archive_keep_f32); jem_file writes files of your own.
             The optimiser of your own training loop can be stored (jem_optim_to_archive).
             jem_compute_exp, _tanh and _sigmoid; jem_mask_controls.
             JEM_VERSION; jem_status_name; the log receives why jem_ctx_create failed.
             jem_trim returns the tape's unused memory; JEM_API and JEM_CHUNK_BYTES can be defined
               by the user.
   Changed   jem_train_desc_score trains with Muon.
             JEM_ISA_BEST computes bf16 in fp32 on Intel's processors without AMX, which is faster.
             Vectors with a Student distribution are sampled by small Langevin steps.
             Muon refuses lr * weight_decay above 1.
             Settings without effect are errors: schedule.at with a constant rate, decay_b without
               decay_gamma, cd_class without labels of samples or without x.
             A trainer refuses a file with averaged weights or chains that it does not have.
             jem_file reports each call after a failure. The log cannot clear the error it receives.
             Chunks of the tape that are too small for a request are freed, not kept.
             Images most of which have one colour, or numbers above 1e12, have no framing.
             Calibration images with equal scores do not count as stranger than each other.
             A cosine schedule starts again at jem_schedule.at, which it ignored before, and which
               needs a rate.
             With noise_lo below .05, the walk of samples has less noise.
             Transparent pixels are blended with black by default, in examples/hello.c as well.
             If p(x) has images of its own, jem_stats.f_data and jem_loss_terms.f_data are only
               computed if a term uses them.
             A network without a score is sampled with the steps of its chains in training.
             Chains by class have the classes of the update's labelled images, not uniform ones.
             Few images are cut into blocks at any image size, also a few after one to three full
               groups of 16: a single image of 28 x 28 takes a tenth of the time, 17 take half.
             Winograd for 4x4 with stride 2: convnets are up to twice as fast in fp32. Their
               results, and those of 3x3 with 8 to 12 channels, are rounded differently.
             Without AVX-512, a block of a convolution is one pixel, not two: the direct sum takes 4
               to 20% less time.
             Weights are prefetched: a single chain of wide layers is up to a third faster.
             jem_rng_normal computes one number, not sixteen: it takes a tenth of the time.
             jem_impute draws the noise of known pixels at once: the same seed gives other samples.
             A Student network's A is fitted to 16,384 random rows if there are more.
             gcc for Windows compiles the scalar kernels, unless JEM_WINDOWS_SIMD is defined: its
               AVX2 code can crash.
             A network with a parameter that is not finite cannot be written.
             A function that the library calls may not free older tensors (an error, not a crash);
               an optimiser reports parameters that were added after it.
             jem_custom refuses a `keeps` of inputs that an op does not have.
             Training no longer slows down when classes are separated, or gradients are 0: softmax
               below e^-50 has no gradient, and momenta below 1e-30 are 0.
             A replaced file keeps its mode, except for setuid; exec closes a jem_file.
             jem_grad of a computed tensor is JEM_BAD_ARGUMENT; jem_classify of 0 images accepts
               NULL; jem_archive_read refuses pipes and devices. JEM_MAX_PARAMS is private.
   Fixed     Convolutions that share a weight but not the stride were wrong with Winograd.
             Norms computed wrong means where values are nearly equal (all norms have new bits).
             A checkpoint always holds the guard's numbers; a run resumed without them could differ.
             A term of your own gets images of p(x) without cross-entropy's noise.
             Chains by class made logits diverge if classes differ in frequency.
             Contrastive divergence of p(x,y) uses e(x) of the data, not of the samples.
             Act norm is set before the first chains walk.
             Padding lanes of custom ops have no effect. Files above 2 GB on Windows.
             On Windows: paths are UTF-8; a child process no longer keeps a jem_file open; jem.h
               compiles after windows.h.
             The guess of jem_sampler.slowest is limited by the budget.
             Framing finds the ground on shaded paper and behind subjects that cover most of it.
             Adam's step and restored moments are limited: they could make parameters infinite.
             SiLU is 0 below -30: its tail made products subnormal, and fp32 several times slower.
   Renamed   JEM_EXACT, _FAST, _DIRECT, _BF16              JEM_PRECISION_EXACT, ...
             JEM_ADAM, _SGD, _MUON                         JEM_OPTIMIZER_ADAM, ...
             JEM_CONSTANT, _STEPS, _COSINE                 JEM_SCHEDULE_CONSTANT, ...
             JEM_LEAKY_RELU, _RELU, _SILU, _TANH           JEM_ACTIVATION_LEAKY_RELU, ...
             JEM_F32, _I32, _I64, _U8                      JEM_DTYPE_F32, ...
             jem_fn                                        jem_logp_fn
             jem_class_of, jem_guide                       jem_query
             jem_net_guide                                 jem_net_query
             jem_net.energy                                log_density
             jem_shift, jem_slope                          jem_add_constant, jem_slope_along
             jem_fresh, jem_fresh_desc                     jem_generate, jem_generate_desc
             jem_net_fresh                                 jem_net_generate_desc
             jem_langevin_desc, jem_clean_desc             jem_sgld_desc_langevin,
                                                           jem_denoise_desc_clean
             jem_optim_average, jem_trainer_average        jem_optim_use_average,
                                                           jem_trainer_use_average
             jem_ctx_desc.plain                            plain_tape
             descs of networks: uncond, slope              separate_energy, leak
             jem_sgld_desc.hot, .cold                      temperature_from, temperature_to
             jem_denoise_desc.step                         fraction
             jem_mcmc_desc.step, jem_attack_desc.step      step_size
             jem_attack_desc.sure                          least_probability
             jem_score_desc.step                           difference
             jem_fresh_desc.clean                          jem_generate_desc.last_sigma
             jem_train_desc: diverged                      max_loss
             jem_train_desc: entropy, input_noise          kl_entropy, data_noise
             jem_train_desc: label_wide, fresh             label_all_noise, restart_denoise
             jem_train_desc: w_ce, w_cd, w_cd_class        weights.ce, weights.cd, weights.cd_class
             jem_train_desc: energy_l2                     weights.energy_l2
             jem_calibrate_slopes                          jem_calibrate, with `gradients`
   0.2  2026-11  New order: the plain tape, then its plan, the engine last. Score matching,
                 noise-blind sampling, a scale of log p(x). Pictures (jem_classify_pixels,
                 jem_sample). Metropolis, MALA, HMC, tempering, annealing. Calibration,
                 out-of-distribution scores, attacks, imputation. max_pool, upsample, concat,
                 detach, sigmoid, softplus, clamp. WebAssembly's simd128. The full loss of
                 contrastive divergence, sharpness-aware steps, a hook for chains. Files are written
                 under names of their own; descs are saved bit for bit. Training on several machines
                 (jem_sum_fn).
                 Fixed: jem_add(h, conv(h)) in jem_grad and jem_read; gradients of detached ends;
                 NaN gradients of log behind gather or dropout; training by score matching alone.
                 Changed: jem_loss takes jem_loss_weights; jem_op and jem_call have only the fields
                 that authors of ops need; jem_archive_write refuses symbolic links; images with NaN
                 or absurd numbers are errors; JEM_FAST, JEM_BF16 and score matching have new bits.
   0.1  2026-11  First version: autograd, kernels for AVX2, AVX-512, NEON, AMX, wide-resnet, JEM,
                 safetensors, checkpoints of training, averaged weights; the jem command line. */

/* ----------------------------------------------------------------------------------------------
   This software is available under two licences: choose the one you prefer. LICENSE has the text.
   A - MIT No Attribution (MIT-0). Copyright (c) 2026 the jem.h authors.
   B - Public domain (unlicense.org).
   ---------------------------------------------------------------------------------------------- */
