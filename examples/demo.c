/* demo: a classifier of real handwritten digits learns to generate digits from noise.

       make demo          one to two minutes on two cores
       make demo-long     a longer recipe, for better digits and fewer errors

   It trains a JEM (see jem.h) on 9,000 MNIST digits, tests it on 1,000 by other writers, saves
   build/digits.safetensors for the other examples, and writes three pictures:

       build/pictures/dreams.png   ten samples of each class, all started from pure noise
       build/pictures/chains.png   one chain per class, from noise to digit
       build/pictures/buffer.png   the replay buffer: the current state of the chains of training */
#if !defined(_WIN32) && !defined(_POSIX_C_SOURCE)
#define _POSIX_C_SOURCE 200112L                    /* clock_gettime, isatty */
#endif
#define JEM_IMPLEMENTATION
#include "jem.h"
#include "count.h"
#include "tools/support/pictures.h"

#include <time.h>
#ifdef _WIN32
#define isatty(file) 0
#else
#include <unistd.h>
#endif

#define DREAMS_PATH "build/pictures/dreams.png"
#define CHAINS_PATH "build/pictures/chains.png"
#define BUFFER_PATH "build/pictures/buffer.png"

enum { BATCH = 64, FOR_DENSITY = 32, CLASSES = 10, PER_CLASS = 10, DREAMS = CLASSES * PER_CLASS };
enum { FROM_NOISE = 150, WALK = 300, SHOTS = 12 };

static double seconds(void) {
#ifdef _WIN32
    return (double)clock() / CLOCKS_PER_SEC;
#else
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
#endif
}

/* ---- training -------------------------------------------------------------------------------- */

/* Running averages over some dozen updates: the values of single batches fluctuate too much. */
typedef struct progress { double start, shown; float ce, accuracy, residual, gap; } progress;

static void show(progress *p, const jem_stats *s, int updates) {
    const float keep = s->update ? .95f : 0;
    p->ce = keep * p->ce + (1 - keep) * s->ce;
    p->accuracy = keep * p->accuracy + (1 - keep) * s->accuracy;
    p->residual = keep * p->residual + (1 - keep) * s->residual;
    p->gap = keep * p->gap - (1 - keep) * s->cd;
    const int done = s->update + 1;
    const int bar = isatty(1);
    const int last = done == updates;
    const double now = seconds();
    const double left = (now - p->start) * (updates - done) / done;
    const int every = updates / 20 ? updates / 20 : 1;
    if (!last && (bar ? now - p->shown < .1 : done % every)) return;
    p->shown = now;
    char filled[21] = "....................";
    char chains[40] = "no chains yet";
    for (int i = 0; i < 20 * done / updates; i++) filled[i] = '#';
    if (s->f_sample != 0) snprintf(chains, sizeof chains, "f(x+) - f(x-) %5.1f", (double)p->gap);
    printf("%s%5d/%d [%s] CE %.3f  accuracy %.1f%%  score error %.3f  %s  %.0f s left  %s",
           bar ? "\r" : "", done, updates, filled, (double)p->ce, 100 * (double)p->accuracy,
           (double)p->residual, chains, left, bar && !last ? "" : "\n");
    fflush(stdout);
}

/* Moves a digit by up to one pixel in each direction, to augment the 9,000 digits. */
static void shift(jem_rng *rng, float *x) {
    const int dy = jem_rng_below(rng, 3) - 1;
    const int dx = jem_rng_below(rng, 3) - 1;
    float from[DIGIT_PIXELS];
    memcpy(from, x, sizeof from);
    for (int i = 0; i < DIGIT; i++)
        for (int j = 0; j < DIGIT; j++) {
            const int y = i + dy;
            const int c = j + dx;
            const int in = y >= 0 && y < DIGIT && c >= 0 && c < DIGIT;
            x[i * DIGIT + j] = in ? from[y * DIGIT + c] : -1;
        }
}

/* Learns classes from all images of a batch, and log p(x) from half of them: its loss takes several
   times as long as cross-entropy. */
static int train(jem_trainer *tr, const digits *d, int updates, uint64_t seed, int *rollbacks) {
    float *x = (float *)malloc(sizeof *x * BATCH * DIGIT_PIXELS);
    int y[BATCH];
    jem_rng rng = jem_rng_seed(seed);
    progress p = { seconds(), 0, 0, 0, 0, 0 };
    jem_stats s;
    memset(&s, 0, sizeof s);
    s.status = JEM_NO_MEMORY;
    for (int i = 0; x && i < updates; i++) {
        digits_batch(d, &rng, BATCH, x, y);
        for (int k = 0; k < BATCH; k++) shift(&rng, x + k * DIGIT_PIXELS);
        s = jem_train_step_semi(tr, x, y, BATCH, x, FOR_DENSITY);
        if (s.status != JEM_OK) break;
        show(&p, &s, updates);
    }
    free(x);
    *rollbacks = s.rollbacks;
    return s.status == JEM_OK;
}

/* ---- sampling -------------------------------------------------------------------------------- */

/* Steps at which the first chain of each class is recorded: the first step, ten later ones, and the
   final image, which is recorded separately: no watch function is called after the last phase. */
static const int moments[SHOTS] = { 1, 5, 9, 13, 17, 22, 28, 40, 70, FROM_NOISE,
                                    FROM_NOISE + WALK, FROM_NOISE + WALK + 1 };

/* Samples ten images per class: chains from noise follow log p(x) + 7 log p(y|x) (jem_net_query
   chooses the 7). */
static int dream(jem_net *net, uint64_t seed) {
    jem_ctx *ctx = net->ctx;
    jem_rng rng = jem_rng_seed(seed);
    int labels[DREAMS];
    for (int i = 0; i < DREAMS; i++) labels[i] = i / PER_CLASS;
    chains_film f = { moments, SHOTS, CLASSES, PER_CLASS,
                      (float *)malloc(sizeof(float) * DREAMS * DIGIT_PIXELS),
                      (float *)malloc(sizeof(float) * CLASSES * SHOTS * DIGIT_PIXELS), 0, 0 };
    int ok = f.all && f.x;
    if (ok) {
        jem_mark mark = jem_begin(ctx);
        jem_tensor *x = jem_zeros(ctx, DREAMS, 1, DIGIT, DIGIT);
        jem_query query = jem_net_query(net, labels);
        jem_generate_desc how = jem_net_generate_desc(net);
        how.walk.steps = WALK;
        how.denoise.watch = how.walk.watch = chains_film_watch;
        how.denoise.watch_user = how.walk.watch_user = &f;
        ok = jem_generate(ctx, jem_logp_guided, &query, x, &how, &rng) == JEM_OK;
        ok = ok && !chains_film_take(&f, x) &&     /* without its last noise */
             picture_grid(DREAMS_PATH, f.all, DREAMS, PER_CLASS, 1, DIGIT, DIGIT, 2) &&
             picture_grid(CHAINS_PATH, f.x, CLASSES * SHOTS, SHOTS, 1, DIGIT, DIGIT, 2);
        jem_end(ctx, mark);
    }
    free(f.all);
    free(f.x);
    return ok;
}

/* ---- the complete demo ----------------------------------------------------------------------- */

/* Prints the mean log p(x) and the familiarity of held-out digits and of other images. One half of
   the held-out digits calibrates, the other half is tested. */
static int compare_densities(jem_net *net, const digits *d) {
    enum { HALF = DIGITS_TEST / 2 };
    static const char *const name[4] = {
        "held-out digits", "  black for white", "  pixels shuffled", "  uniform noise"
    };
    const float *asked = d->test_x + HALF * DIGIT_PIXELS;
    float *x = (float *)malloc(sizeof *x * HALF * DIGIT_PIXELS);
    jem_answer *a = (jem_answer *)malloc(sizeof *a * HALF);
    jem_rng rng = jem_rng_seed(3);
    int ok = x && a && jem_calibrate(net, d->test_x, HALF, JEM_AUTO) == JEM_OK;
    for (int kind = 0; ok && kind < 4; kind++) {
        for (int i = 0; i < HALF * DIGIT_PIXELS; i++) {
            const float *digit = asked + i / DIGIT_PIXELS * DIGIT_PIXELS;
            if (kind == 0) x[i] = asked[i];
            if (kind == 1) x[i] = -asked[i];
            if (kind == 2) x[i] = digit[jem_rng_below(&rng, DIGIT_PIXELS)];
            if (kind == 3) x[i] = 2 * jem_rng_uniform(&rng) - 1;
        }
        ok = jem_classify(net, x, HALF, a) == JEM_OK;
        double logp = 0;
        double unstrange = 0;
        for (int i = 0; ok && i < HALF; i++) {
            logp += (double)a[i].log_density / HALF;
            unstrange += jem_judge(a[i].familiarity) != JEM_VERDICT_STRANGE;
        }
        if (ok) printf("  %-18s mean log p(x) %8.1f   not strange: %5.1f%%\n", name[kind], logp,
                       100 * unstrange / HALF);
    }
    free(x);
    free(a);
    return ok;
}

static int run(jem_ctx *ctx, int updates, uint64_t seed) {
    const double start = seconds();
    digits d;
    if (!digits_load(DIGITS_PATH, &d)) return 0;
    jem_net *net = jem_convnet_create(ctx, NULL, seed);
    if (!net) {
        digits_free(&d);
        return 0;
    }
    /* First learn the score, without chains: the direction from a noisy digit back to the digit.
       Then chains, started from samples of that density, reveal its errors. */
    jem_train_desc how = jem_train_desc_score(updates);
    how.restart_denoise.steps = 100;               /* the walk soon corrects such drafts */
    how.seed = seed;
    net->scale = 10;                               /* log p(x) = 10 f(x) - log Z */
    net->denoise_steps = FROM_NOISE;               /* of its samples: see jem_net_generate_desc */
    net->denoise_fraction = .4f;                   /* .05, the default, leaves gaps in strokes */
    jem_trainer *tr = jem_trainer_create(net, &how);
    if (tr)
        printf("%d digits, %ld parameters, %d updates of %d images, %d chains after %d, %s x %d\n",
               DIGITS_TRAIN, (long)jem_net_size(net), updates, BATCH, how.negatives, how.cd_from,
               jem_isa_name(jem_ctx_isa(ctx)), jem_ctx_threads(ctx));
    int rollbacks = 0;                             /* of the guard to a good state */
    int ok = tr && train(tr, &d, updates, seed, &rollbacks);
    if (ok) {
        jem_trainer_use_average(tr, 1);
        printf("trained in %.0f s, rollbacks: %d; held-out accuracy %.1f%%\n", seconds() - start,
               rollbacks, 100 * (double)jem_accuracy(net, d.test_x, d.test_y, DIGITS_TEST));
        jem_net_fit_framing(net, d.x, DIGITS_TRAIN);       /* for pictures of other sizes */
        ok = compare_densities(net, &d) && jem_save(net, MODEL_PATH) == JEM_OK &&
             picture_grid(BUFFER_PATH, jem_trainer_buffer(tr)->data, 200, 20, 1, DIGIT, DIGIT, 1) &&
             dream(net, seed);
    }
    if (ok)
        printf("sampled for %d steps from noise; total time %.0f s. Pictures:\n  %s\n  %s\n  %s\n"
               "Next: build/hello, build/sample 7 (make examples)\n", FROM_NOISE + WALK,
               seconds() - start, DREAMS_PATH, CHAINS_PATH, BUFFER_PATH);
    jem_trainer_free(tr);
    jem_net_free(net);
    digits_free(&d);
    return ok;
}

int main(int argc, char **argv) {
    int updates = -1;
    int longer = 0;
    int seed = 1;
    int wrong = 0;
    for (int i = 1; i < argc; i++) {
        const int value = i + 1 < argc;
        if (!strcmp(argv[i], "--long")) longer = 1;
        else if (!strcmp(argv[i], "--updates") && value) updates = count_of(argv[++i]);
        else if (!strcmp(argv[i], "--seed") && value) seed = count_of(argv[++i]);
        else wrong = 1;
    }
    if (wrong || !updates || !seed) {
        fprintf(stderr, "usage: demo [--long] [--updates N] [--seed N], " COUNT_RANGE "\n");
        return 2;
    }
    if (updates < 0) updates = longer ? 4000 : 800;
    jem_ctx *ctx = jem_ctx_create(NULL);
    const int ok = ctx && run(ctx, updates, (uint64_t)seed);
    const int status = report(ctx) || !ok;
    jem_ctx_free(ctx);
    return status;
}
