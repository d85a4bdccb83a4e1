/* A JEM from scratch, without jem.h: a classifier whose logits also define a density.

       L = -log p(y|x)  -  W log p(x)          p(x,y) = exp f(x)[y] / Z,   p(x) = sum over y

   The first term is a classifier's cross-entropy. The second contains Z, which is intractable; but
   its gradient needs only samples of the model (contrastive divergence, Hinton 2002):

       grad -log p(x) = grad [f(x') - f(x)]     x' from the model,  f(x) = log-sum-exp over y
       f(x)[y]

   and Langevin dynamics draws them. (JEM: Grathwohl and others, ICLR 2020, arXiv:1912.03263.) First
   the densities, then learning, then the network with its gradients by hand, then files.
   tests/tools/test_tiny.c checks that jem.h computes the same numbers.

       make build/tiny_jem && build/tiny_jem        (half a minute on one core)

   EXPECTED OUTPUT (other compilers round differently, and the chains then take other paths)
       update   50  cross-entropy 0.808  f(x): data  +44.80, samples  +44.79  accuracy  81%
       update  100  cross-entropy 0.945  f(x): data  +32.79, samples  +33.03  accuracy  72%
       update  200  cross-entropy 0.423  f(x): data  +46.41, samples  +43.28  accuracy  89%
       update  300  cross-entropy 0.258  f(x): data  +59.47, samples  +58.91  accuracy  89%
       update  400  cross-entropy 0.341  f(x): data  +65.82, samples  +68.08  accuracy  91%
       90.3% of the held-out digits are classified correctly
   and build/pictures/tiny_jem.png: a row of samples per class, all started from noise, mostly
   legible.

   What to look for: f of data and of samples rise together; only their difference has a meaning,
   since f = log p + log Z, and Z changes at every update. If the samples stay far below, the chains
   are too short to find the maxima of f; if they stay far above, these maxima are not digits.
   What to try: more updates (`build/tiny_jem 2000`); CD_WEIGHT 0: a better classifier, whose
   samples are blotches, similar within a class; STEPS 2; chains that always restart. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#ifdef _WIN32
#include <direct.h>
#endif

#include "count.h"
#include "tools/support/stb.h"

/* N images at a time: value i of image n is at [i * N + n], so that the innermost loop is always
   'for each image', which compilers turn into vector instructions. */
enum { N = 16, SIDE = 28, PIXELS = SIDE * SIDE, CLASSES = 10 };

/* The network, implemented below. forward: the logits f[class][image]. backward, of the last
   forward: from df to dx (if not NULL) and, if `update`, added to the gradient of the weights. */
static const float *forward(const float *x);
static void backward(const float *x, const float *df, float *dx, int update);

static uint64_t seed = 1;
static float uniform(void) {                       /* (0,1): xorshift* */
    seed ^= seed >> 12;
    seed ^= seed << 25;
    seed ^= seed >> 27;
    return ((float)(seed * 2685821657736338717u >> 41) + 0.5f) / 8388608.0f;
}
static float normal(void) {                        /* Box-Muller, the simplest half */
    return sqrtf(-2 * logf(uniform())) * cosf(6.2831853f * uniform());
}
static void load(float *x, int n, const float *image, float noise) {
    for (int i = 0; i < PIXELS; i++) x[i * N + n] = image[i] + (noise > 0 ? noise * normal() : 0);
}
static void store(const float *x, int n, float *image) {
    for (int i = 0; i < PIXELS; i++) image[i] = x[i * N + n];
}

/* ==== the densities =========================================================================== */

/* Computes total = log-sum-exp of the logits = log p(x) + log Z, and its gradient p = softmax =
   p(y|x). */
static void density(const float *f, float *total, float *p) {
    for (int n = 0; n < N; n++) {
        float top = f[n], sum = 0;
        for (int c = 1; c < CLASSES; c++) top = fmaxf(top, f[c * N + n]);
        for (int c = 0; c < CLASSES; c++) sum += p[c * N + n] = expf(f[c * N + n] - top);
        for (int c = 0; c < CLASSES; c++) p[c * N + n] /= sum;
        total[n] = top + logf(sum);
    }
}

/* Runs Langevin dynamics: uphill in f, and noise. With labels, uphill in f[label]: log p(x,y).
   Langevin's equation has the step a/2 and noise sqrt(a); a step of s with noise t samples p^(1/T),
   T = t^2/2s. The paper's 1 and .01 have T = 5e-5: nearly gradient ascent. */
static void langevin(float *x, const int *labels, int steps) {
    static float dx[PIXELS * N];
    float p[CLASSES * N], total[N];
    for (int step = 0; step < steps; step++) {
        density(forward(x), total, p);
        for (int i = 0; labels && i < CLASSES * N; i++) p[i] = labels[i % N] == i / N ? 1.0f : 0.0f;
        backward(x, p, dx, 0);
        for (int i = 0; i < PIXELS * N; i++)
            x[i] = fmaxf(-1, fminf(1, x[i] + 1.0f * dx[i] + 0.01f * normal()));
    }
}

/* ==== learning ================================================================================ */

enum { GROUPS = 4, BATCH = GROUPS * N, BUFFER = 640, STEPS = 10 };
#define CD_WEIGHT 0.1f
static float buffer[BUFFER][PIXELS];               /* persistent chains */

static void restart(float *image) {
    for (int i = 0; i < PIXELS; i++) image[i] = 2 * uniform() - 1;
}

typedef struct stats { float ce, data, sample; int right; } stats;     /* sums over a batch */

/* Lowers the cross-entropy of N labelled digits, and raises f at them. */
static void learn_data(const float *images, const int *labels, int count, stats *s) {
    static float x[PIXELS * N];
    float p[CLASSES * N], df[CLASSES * N], total[N];
    int y[N];
    for (int n = 0; n < N; n++) {
        const int pick = (int)(uniform() * (float)count);
        load(x, n, images + (size_t)pick * PIXELS, 0.03f);
        y[n] = labels[pick];
    }
    const float *f = forward(x);
    density(f, total, p);
    for (int i = 0; i < CLASSES * N; i++)          /* d CE/df = p - [y], d f(x)/df = p */
        df[i] = (p[i] - (i / N == y[i % N]) - CD_WEIGHT * p[i]) / BATCH;
    for (int n = 0; n < N; n++) {
        int best = 0;
        for (int c = 1; c < CLASSES; c++)
            if (p[c * N + n] > p[best * N + n]) best = c;
        s->right += best == y[n];
        s->ce += total[n] - f[y[n] * N + n];
        s->data += total[n];
    }
    backward(x, df, NULL, 1);
}

/* Continues N chains, and lowers f at their ends. */
static void learn_samples(stats *s) {
    static float x[PIXELS * N];
    float p[CLASSES * N], df[CLASSES * N], total[N];
    int slot[N];
    for (int n = 0; n < N; n++) {
        slot[n] = (int)(uniform() * BUFFER);
        if (uniform() < 0.05f) restart(buffer[slot[n]]);
        load(x, n, buffer[slot[n]], 0);
    }
    langevin(x, NULL, STEPS);
    density(forward(x), total, p);
    for (int i = 0; i < CLASSES * N; i++) df[i] = CD_WEIGHT * p[i] / BATCH;
    backward(x, df, NULL, 1);
    for (int n = 0; n < N; n++) {
        store(x, n, buffer[slot[n]]);
        s->sample += total[n];
    }
}

/* ==== the network ============================================================================= */
/* Four convolutions; the last one's window is the whole image, which makes it a linear layer. */

typedef struct layer { int in, out, k, stride, pad, size, out_size; } layer;
enum { LAYERS = 4 };
static const layer layers[LAYERS] = {  /* channels, window, stride, padding, size before, after */
    {  1,  8, 4, 2, 1, SIDE, 14 },
    {  8, 16, 4, 2, 1,   14,  7 },
    { 16, 32, 3, 2, 1,    7,  4 },
    { 32, CLASSES, 4, 1, 0, 4, 1 }
};
enum {
    PARAMS = 8 * 16 + 8 + 16 * 8 * 16 + 16 + 32 * 16 * 9 + 32 + CLASSES * 32 * 16 + CLASSES,
    LARGEST = 8 * 14 * 14 * N                      /* values of the largest layer's output */
};
/* All parameters in one array: of each layer the weights [out][in][k][k], then the biases [out]. */
static float param[PARAMS], grad[PARAMS];
/* Outputs of every layer before and after the activation function, for the backward pass. */
static float before[LAYERS][LARGEST], after[LAYERS][LARGEST];

static int weights(const layer *L) { return L->out * L->in * L->k * L->k; }
static int outputs(const layer *L) { return L->out * L->out_size * L->out_size; }

/* Visits all connections of a layer: y[b] receives w times x[a]. By the chain rule both gradients
   follow the same connections: x[a] receives w times y[b], and w receives x[a] times y[b]. */
enum { FORWARD, TO_INPUT, TO_WEIGHTS };
static void connect(const layer *L, int way, float *w, float *x, float *y) {
    const int all = weights(L), square = L->k * L->k;
    for (int k = 0; k < all; k++, w++) {
        const int o = k / (L->in * square), c = k / square % L->in;
        const int u = k / L->k % L->k - L->pad, v = k % L->k - L->pad;
        for (int at = 0; at < L->out_size * L->out_size; at++) {
            const int row = at / L->out_size * L->stride + u;
            const int column = at % L->out_size * L->stride + v;
            if (row < 0 || row >= L->size || column < 0 || column >= L->size) continue;
            float *a = x + ((c * L->size + row) * L->size + column) * N;
            float *b = y + (o * L->out_size * L->out_size + at) * N;
            if (way == FORWARD) for (int n = 0; n < N; n++) b[n] += *w * a[n];
            if (way == TO_INPUT) for (int n = 0; n < N; n++) a[n] += *w * b[n];
            if (way == TO_WEIGHTS) for (int n = 0; n < N; n++) *w += a[n] * b[n];
        }
    }
}

/* Returns the input of layer k, which connect reads or writes. */
static float *input(int k, const float *x) { return k ? after[k - 1] : (float *)(uintptr_t)x; }

static const float *forward(const float *x) {
    float *w = param;
    for (int k = 0; k < LAYERS; k++) {
        const layer *L = layers + k;
        const float *bias = w + weights(L);
        for (int i = 0; i < outputs(L) * N; i++)
            before[k][i] = bias[i / N / L->out_size / L->out_size];
        connect(L, FORWARD, w, input(k, x), before[k]);
        for (int i = 0; i < outputs(L) * N; i++)   /* SiLU: smooth, so f is smooth */
            after[k][i] = before[k][i] / (1 + expf(-before[k][i]));
        w += weights(L) + L->out;
    }
    return before[LAYERS - 1];                     /* no activation after the last one */
}

static void backward(const float *x, const float *df, float *dx, int update) {
    static float d[LAYERS + 1][LARGEST];           /* of each layer's output; of the image */
    int at = PARAMS;
    memcpy(d[LAYERS], df, CLASSES * N * sizeof *df);
    for (int k = LAYERS - 1; k >= 0; k--) {
        const layer *L = layers + k;
        float *dy = d[k + 1], *to = k ? d[k] : dx;
        at -= weights(L) + L->out;
        for (int i = 0; k < LAYERS - 1 && i < outputs(L) * N; i++) {
            const float s = 1 / (1 + expf(-before[k][i]));
            dy[i] *= s * (1 + before[k][i] * (1 - s));
        }
        if (update) {
            connect(L, TO_WEIGHTS, grad + at, input(k, x), dy);
            for (int i = 0; i < outputs(L) * N; i++)
                grad[at + weights(L) + i / N / L->out_size / L->out_size] += dy[i];
        }
        if (!to) continue;
        memset(to, 0, (size_t)(L->in * L->size * L->size * N) * sizeof *to);
        connect(L, TO_INPUT, param + at, to, dy);
    }
}

/* ==== training, files ========================================================================= */

static void adam(int update, float rate) {         /* Kingma and Ba 2015 */
    static float m[PARAMS], v[PARAMS];
    const float m_scale = 1 / (1 - powf(0.9f, (float)update + 1));
    const float v_scale = 1 / (1 - powf(0.999f, (float)update + 1));
    for (int i = 0; i < PARAMS; i++) {
        m[i] = 0.9f * m[i] + 0.1f * grad[i];
        v[i] = 0.999f * v[i] + 0.001f * grad[i] * grad[i];
        param[i] -= rate * m[i] * m_scale / (sqrtf(v[i] * v_scale) + 1e-8f);
    }
}

static void train(const float *images, const int *labels, int count, int updates) {
    for (int i = 0; i < BUFFER; i++) restart(buffer[i]);
    float *w = param;
    for (int k = 0; k < LAYERS; k++) {             /* as in PyTorch: U(-1,1) / sqrt(inputs) */
        const float scale = 1 / sqrtf((float)(layers[k].in * layers[k].k * layers[k].k));
        for (int i = weights(layers + k) + layers[k].out; i > 0; i--)
            *w++ = scale * (2 * uniform() - 1);
    }
    for (int update = 0; update < updates; update++) {
        stats s = { 0, 0, 0, 0 };
        memset(grad, 0, sizeof grad);
        for (int g = 0; g < GROUPS; g++) {
            learn_data(images, labels, count, &s);
            learn_samples(&s);
        }
        adam(update, 2e-3f * (1 - (float)update / (float)updates));
        if ((update + 1) % (updates < 200 ? 50 : 100) && update != 49) continue;
        printf("update %4d  cross-entropy %.3f  f(x): data %+7.2f, samples %+7.2f  "
               "accuracy %3.0f%%\n",
               update + 1, (double)(s.ce / BATCH), (double)(s.data / BATCH),
               (double)(s.sample / BATCH), 100.0 * s.right / BATCH);
        fflush(stdout);
    }
}

enum { TRAIN = 9000, TEST = 1000 };
static float images[TRAIN + TEST][PIXELS];         /* the last 1000 are held out */
static int labels[TRAIN + TEST];

/* Reads the sheet of 100 x 100 digits; examples/data/README.md describes its layout. */
static int load_digits(const char *path) {
    int w, h, channels, train = 0, test = TRAIN;
    unsigned char *sheet = stbi_load(path, &w, &h, &channels, 1);
    if (!sheet || w != 100 * SIDE || h != 100 * SIDE) {
        fprintf(stderr, "%s: cannot be read (run this in the project's directory)\n", path);
        stbi_image_free(sheet);
        return 0;
    }
    for (int k = 0; k < TRAIN + TEST; k++) {
        const int row = k / 100, to = row % 10 == 9 ? test++ : train++;
        const unsigned char *from = sheet + (row * 100 * SIDE + k % 100) * SIDE;
        labels[to] = row / 10;
        for (int i = 0; i < PIXELS; i++)
            images[to][i] = (float)from[i / SIDE * 100 * SIDE + i % SIDE] / 127.5f - 1;
    }
    stbi_image_free(sheet);
    return 1;
}

static float accuracy(void) {
    static float x[PIXELS * N];
    int right = 0;
    for (int i = 0; i < TEST; i++) {
        load(x, i % N, images[TRAIN + i], 0);
        if (i % N < N - 1 && i + 1 < TEST) continue;
        const float *f = forward(x);
        for (int n = 0; n <= i % N; n++) {
            int best = 0;
            for (int c = 1; c < CLASSES; c++)
                if (f[c * N + n] > f[best * N + n]) best = c;
            right += best == labels[TRAIN + i / N * N + n];
        }
    }
    return (float)right / TEST;
}

/* Draws a row per class: from noise by Langevin dynamics in log p(x,y). */
static int draw_samples(const char *path, int steps) {
    enum { ZOOM = 2, CELL = SIDE * ZOOM + 2, WIDE = N * CELL, HIGH = CLASSES * CELL };
    static unsigned char picture[HIGH][WIDE];
    static float x[PIXELS * N], image[PIXELS];
    for (int c = 0; c < CLASSES; c++) {
        int y[N];
        for (int n = 0; n < N; n++) {
            y[n] = c;
            restart(image);
            load(x, n, image, 0);
        }
        langevin(x, y, steps);
        for (int k = 0; k < SIDE * ZOOM * SIDE * ZOOM * N; k++) {
            const int n = k % N, i = k / N / (SIDE * ZOOM), j = k / N % (SIDE * ZOOM);
            picture[c * CELL + i][n * CELL + j] = (unsigned char)
                (127.5f * (1 + x[(i / ZOOM * SIDE + j / ZOOM) * N + n]));
        }
    }
#ifdef _WIN32
    _mkdir("build/pictures");
#else
    mkdir("build/pictures", 0777);
#endif
    const int ok = stbi_write_png(path, WIDE, HIGH, 1, picture, WIDE);
    if (ok) printf("picture: %s\n", path);
    else fprintf(stderr, "%s: cannot be written\n", path);
    return ok;
}

int main(int argc, char **argv) {
    const int quick = argc > 1 && !strcmp(argv[1], "--quick");
    int updates = argc > 1 ? count_of(argv[1]) : 400;
    if (quick) updates = 10;
    if (updates < 1 || argc > 2) {
        fprintf(stderr, "usage: %s [updates], " COUNT_RANGE "\n", argv[0]);
        return 1;
    }
    if (!load_digits("examples/data/digits.png")) return 1;
    train(images[0], labels, TRAIN, updates);
    printf("%.1f%% of the held-out digits are classified correctly\n", 100 * (double)accuracy());
    return !draw_samples("build/pictures/tiny_jem.png", quick ? 5 : 80);
}
