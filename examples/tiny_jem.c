/* A JEM from scratch, without jem.h: everything that the big header does, in its smallest form.
   A convolutional network for digits, its gradients written by hand, and one loss for two tasks:

       L = -log p(y|x)  -  W log p(x)          p(x,y) = exp f(x)[y] / Z,   p(x) = sum over y

   The first term is a classifier's cross-entropy. The second cannot be computed, for nobody knows
   Z; but its gradient can be estimated (contrastive divergence, Hinton 2002):

       grad -log p(x) = grad of  [log-sum-exp f(dream) - log-sum-exp f(data)]

   with dreams drawn from the model itself by Langevin dynamics. (JEM: Grathwohl and others, ICLR
   2020, arXiv:1912.03263.) Read it from top to bottom; tests/test_tiny.c shows that jem.h computes
   the same numbers.

       make build/tiny_jem && build/tiny_jem        (half a minute on one core)

   EXPECTED OUTPUT (another compiler rounds differently, and chains then go other ways)
       update   50  cross-entropy 0.808  log p: data  +44.80, dreams  +44.79  accuracy  81%
       update  100  cross-entropy 0.945  log p: data  +32.79, dreams  +33.03  accuracy  72%
       update  200  cross-entropy 0.423  log p: data  +46.41, dreams  +43.28  accuracy  89%
       update  300  cross-entropy 0.258  log p: data  +59.47, dreams  +58.91  accuracy  89%
       update  400  cross-entropy 0.341  log p: data  +65.82, dreams  +68.08  accuracy  91%
       90.3% of the held-out digits are classified rightly
   and build/pictures/tiny_jem.png: a row of dreams per class, all begun in noise, mostly legible.

   What to look for: log p of data and of dreams rise together. If dreams stay far below, the chains
   are too short to find what the model likes; if they stay far above, it likes what is no digit.
   What to try: more updates (`build/tiny_jem 2000`); CD_WEIGHT 0: a better classifier, whose dreams
   are blotches, alike within a class; STEPS 2; a buffer that forgets (restart always). */
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
#include "stb.h"

/* ==== the network ============================================================================= */
/* Four convolutions; the last one's window is the whole image, which makes it a linear layer.

   16 images are computed at once. They are interleaved: number (row i, column j, channel c) of
   image l lies at [((i * size + j) * channels + c) * N + l]. So the innermost loop of everything is
   'for each of 16 images', which the compiler turns into vector instructions by itself. */
enum { N = 16, SIDE = 28, PIXELS = SIDE * SIDE, CLASSES = 10, LAYERS = 4 };

typedef struct layer { int in, out, k, stride, pad, size, out_size; } layer;
static const layer net[LAYERS] = {     /* channels, window, stride, padding, size before, after */
    {  1,  8, 4, 2, 1, SIDE, 14 },
    {  8, 16, 4, 2, 1,   14,  7 },
    { 16, 32, 3, 2, 1,    7,  4 },
    { 32, CLASSES, 4, 1, 0, 4, 1 }
};
enum {
    WEIGHTS = 8 * 1 * 16 + 16 * 8 * 16 + 32 * 16 * 9 + CLASSES * 32 * 16,
    PARAMS = WEIGHTS + 8 + 16 + 32 + CLASSES,
    LARGEST = 14 * 14 * 8 * N                      /* numbers of the largest layer's output */
};
/* All parameters in one array: of each layer the weights [out][in][k][k], then the biases [out]. */
static float param[PARAMS], grad[PARAMS];
/* What the backward pass needs: every layer's output before and after the activation function. */
static float before[LAYERS][LARGEST], after[LAYERS][LARGEST];

static int layer_weights(const layer *L) { return L->out * L->in * L->k * L->k; }

/* y[o] = b[o] + sum over c, u, v of w[o][c][u][v] x[c][i * stride + u - pad][...] */
static void conv(const layer *L, const float *w, const float *x, float *y) {
    const float *b = w + layer_weights(L);
    for (int i = 0; i < L->out_size; i++)
        for (int j = 0; j < L->out_size; j++)
            for (int o = 0; o < L->out; o++, y += N) {
                float sum[N];
                for (int l = 0; l < N; l++) sum[l] = b[o];
                for (int u = 0; u < L->k; u++)
                    for (int v = 0; v < L->k; v++) {
                        const int row = i * L->stride + u - L->pad;
                        const int column = j * L->stride + v - L->pad;
                        if (row < 0 || row >= L->size || column < 0 || column >= L->size) continue;
                        const float *from = x + (row * L->size + column) * L->in * N;
                        const float *weight = w + (o * L->in * L->k + u) * L->k + v;
                        for (int c = 0; c < L->in; c++, from += N, weight += L->k * L->k)
                            for (int l = 0; l < N; l++) sum[l] += *weight * from[l];
                    }
                memcpy(y, sum, sizeof sum);
            }
}

/* The same sum seen from x: where y took w x, dx takes w dy. */
static void conv_input_gradient(const layer *L, const float *w, const float *dy, float *dx) {
    const int step = L->in * L->k * L->k;          /* to the next output channel */
    for (int row = 0; row < L->size; row++)
        for (int column = 0; column < L->size; column++)
            for (int c = 0; c < L->in; c++, dx += N) {
                float sum[N] = { 0 };
                for (int u = (row + L->pad) % L->stride; u < L->k; u += L->stride)
                    for (int v = (column + L->pad) % L->stride; v < L->k; v += L->stride) {
                        const int i = (row + L->pad - u) / L->stride;
                        const int j = (column + L->pad - v) / L->stride;
                        if (row + L->pad < u || column + L->pad < v || i >= L->out_size ||
                            j >= L->out_size) continue;
                        const float *from = dy + (i * L->out_size + j) * L->out * N;
                        const float *weight = w + (c * L->k + u) * L->k + v;
                        for (int o = 0; o < L->out; o++, from += N, weight += step)
                            for (int l = 0; l < N; l++) sum[l] += *weight * from[l];
                    }
                memcpy(dx, sum, sizeof sum);
            }
}

/* And seen from w: dw takes x dy, summed over all places and images. */
static void conv_weight_gradient(const layer *L, const float *x, const float *dy, float *dw) {
    float *db = dw + layer_weights(L);
    for (int o = 0; o < L->out; o++)
        for (int i = 0; i < L->out_size * L->out_size * N; i++)
            db[o] += dy[(i / N * L->out + o) * N + i % N];
    for (int o = 0; o < L->out; o++)
        for (int c = 0; c < L->in; c++)
            for (int u = 0; u < L->k; u++)
                for (int v = 0; v < L->k; v++, dw++) {
                    float sum[N] = { 0 };
                    for (int i = 0; i < L->out_size; i++)
                        for (int j = 0; j < L->out_size; j++) {
                            const int row = i * L->stride + u - L->pad;
                            const int column = j * L->stride + v - L->pad;
                            if (row < 0 || row >= L->size || column < 0 || column >= L->size)
                                continue;
                            const float *p = x + ((row * L->size + column) * L->in + c) * N;
                            const float *q = dy + ((i * L->out_size + j) * L->out + o) * N;
                            for (int l = 0; l < N; l++) sum[l] += p[l] * q[l];
                        }
                    for (int l = 0; l < N; l++) *dw += sum[l];
                }
}

/* SiLU, x sigmoid(x): smooth, so that the slope of log p is smooth too. */
static void silu(const float *x, float *y, int n) {
    for (int i = 0; i < n; i++) y[i] = x[i] / (1 + expf(-x[i]));
}
/* dy -> dx, in place. */
static void silu_gradient(const float *x, float *d, int n) {
    for (int i = 0; i < n; i++) {
        const float s = 1 / (1 + expf(-x[i]));
        d[i] *= s * (1 + x[i] * (1 - s));
    }
}

/* x: 16 images. Returns their logits f[class][image]. */
static const float *forward(const float *x) {
    const float *w = param;
    for (int k = 0; k < LAYERS; k++) {
        const layer *L = net + k;
        conv(L, w, k ? after[k - 1] : x, before[k]);
        silu(before[k], after[k], L->out_size * L->out_size * L->out * N);
        w += layer_weights(L) + L->out;
    }
    return before[LAYERS - 1];                     /* no activation after the last one */
}

/* From the gradient of the logits to that of the images (dx, if not NULL) and, added to grad, of
   the parameters (if update). For the images of the last forward. */
static void backward(const float *x, const float *df, float *dx, int update) {
    static float d[2][LARGEST];
    int at = PARAMS;
    memcpy(d[(LAYERS - 1) % 2], df, CLASSES * N * sizeof *df);
    for (int k = LAYERS - 1; k >= 0; k--) {
        const layer *L = net + k;
        float *dy = d[k % 2], *to = k ? d[1 - k % 2] : dx;
        at -= layer_weights(L) + L->out;
        if (k < LAYERS - 1) silu_gradient(before[k], dy, L->out_size * L->out_size * L->out * N);
        if (update) conv_weight_gradient(L, k ? after[k - 1] : x, dy, grad + at);
        if (to) conv_input_gradient(L, param + at, dy, to);
    }
}

/* ==== the densities =========================================================================== */

/* log p(x) + log Z = log-sum-exp of the logits, and its gradient, which is p(y|x) = softmax. */
static void log_density(const float *f, float *logp, float *p) {
    for (int l = 0; l < N; l++) {
        float top = f[l], sum = 0;
        for (int c = 1; c < CLASSES; c++) top = fmaxf(top, f[c * N + l]);
        for (int c = 0; c < CLASSES; c++) sum += p[c * N + l] = expf(f[c * N + l] - top);
        for (int c = 0; c < CLASSES; c++) p[c * N + l] /= sum;
        logp[l] = top + logf(sum);
    }
}

static uint64_t seed = 1;
static float uniform(void) {                       /* (0,1): xorshift* */
    seed ^= seed >> 12, seed ^= seed << 25, seed ^= seed >> 27;
    return ((float)(seed * 2685821657736338717u >> 41) + 0.5f) / 8388608.0f;
}
static float normal(void) {                        /* Box-Muller, the half that is simplest */
    return sqrtf(-2 * logf(uniform())) * cosf(6.2831853f * uniform());
}

/* Langevin dynamics: uphill in log p, and a little noise, so as not to end on a summit but to
   wander where p is high. With labels, uphill in f[label]: log p(x,y). */
static void langevin(float *x, const int *labels, int steps) {
    static float dx[PIXELS * N];
    float p[CLASSES * N], logp[N];
    for (int step = 0; step < steps; step++) {
        log_density(forward(x), logp, p);
        for (int i = 0; labels && i < CLASSES * N; i++) p[i] = labels[i % N] == i / N ? 1.0f : 0.0f;
        backward(x, p, dx, 0);
        for (int i = 0; i < PIXELS * N; i++) {
            x[i] += 1.0f * dx[i] + 0.01f * normal();           /* the paper's step and noise */
            x[i] = fmaxf(-1, fminf(1, x[i]));
        }
    }
}

/* ==== learning ================================================================================ */

enum { GROUPS = 4, BATCH = GROUPS * N, BUFFER = 640, STEPS = 10 };
#define CD_WEIGHT 0.1f
static float buffer[BUFFER][PIXELS];               /* dreams to go on with: persistent chains */

/* Between an image, its pixels in a row, and lane l of 16. */
static void put(float *x, int l, const float *image, float noise) {
    for (int i = 0; i < PIXELS; i++) x[i * N + l] = image[i] + (noise > 0 ? noise * normal() : 0);
}
static void get(const float *x, int l, float *image) {
    for (int i = 0; i < PIXELS; i++) image[i] = x[i * N + l];
}
static void restart(float *image) {
    for (int i = 0; i < PIXELS; i++) image[i] = 2 * uniform() - 1;
}

/* Adam (Kingma and Ba 2015). */
static void adam(int update, float rate) {
    static float m[PARAMS], v[PARAMS];
    const float m_scale = 1 / (1 - powf(0.9f, (float)update + 1));
    const float v_scale = 1 / (1 - powf(0.999f, (float)update + 1));
    for (int i = 0; i < PARAMS; i++) {
        m[i] = 0.9f * m[i] + 0.1f * grad[i], v[i] = 0.999f * v[i] + 0.001f * grad[i] * grad[i];
        param[i] -= rate * m[i] * m_scale / (sqrtf(v[i] * v_scale) + 1e-8f);
    }
}

typedef struct stats { float ce, data, dream; int right; } stats;      /* sums over a batch */

/* 16 labelled digits: lowers the cross-entropy, and pulls log p up where data are. */
static void learn_data(const float *images, const int *labels, int count, stats *s) {
    static float x[PIXELS * N];
    float p[CLASSES * N], df[CLASSES * N], logp[N];
    int y[N];
    for (int l = 0; l < N; l++) {
        const int pick = (int)(uniform() * (float)count);
        put(x, l, images + (size_t)pick * PIXELS, 0.03f), y[l] = labels[pick];
    }
    const float *f = forward(x);
    log_density(f, logp, p);
    for (int c = 0; c < CLASSES; c++)              /* d CE/df = p - [y], d logp/df = p */
        for (int l = 0; l < N; l++)
            df[c * N + l] = (p[c * N + l] - (c == y[l]) - CD_WEIGHT * p[c * N + l]) / BATCH;
    for (int l = 0; l < N; l++) {
        int best = 0;
        for (int c = 1; c < CLASSES; c++) if (p[c * N + l] > p[best * N + l]) best = c;
        s->right += best == y[l], s->ce += logp[l] - f[y[l] * N + l], s->data += logp[l];
    }
    backward(x, df, NULL, 1);
}

/* 16 chains walk on, and log p is pushed down where they arrive. */
static void learn_dreams(stats *s) {
    static float x[PIXELS * N];
    float p[CLASSES * N], df[CLASSES * N], logp[N];
    int slot[N];
    for (int l = 0; l < N; l++) {
        slot[l] = (int)(uniform() * BUFFER);
        if (uniform() < 0.05f) restart(buffer[slot[l]]);
        put(x, l, buffer[slot[l]], 0);
    }
    langevin(x, NULL, STEPS);
    log_density(forward(x), logp, p);
    for (int i = 0; i < CLASSES * N; i++) df[i] = CD_WEIGHT * p[i] / BATCH;
    backward(x, df, NULL, 1);
    for (int l = 0; l < N; l++) get(x, l, buffer[slot[l]]), s->dream += logp[l];
}

static void train(const float *images, const int *labels, int count, int updates) {
    for (int i = 0; i < BUFFER; i++) restart(buffer[i]);
    float *w = param;
    for (int k = 0; k < LAYERS; k++) {             /* PyTorch's way: U(-1,1) / sqrt(inputs) */
        const int n = layer_weights(net + k) + net[k].out;
        const float scale = 1 / sqrtf((float)(net[k].in * net[k].k * net[k].k));
        for (int i = 0; i < n; i++) *w++ = scale * (2 * uniform() - 1);
    }
    for (int update = 0; update < updates; update++) {
        stats s = { 0, 0, 0, 0 };
        memset(grad, 0, sizeof grad);
        for (int g = 0; g < GROUPS; g++)
            learn_data(images, labels, count, &s), learn_dreams(&s);
        adam(update, 2e-3f * (1 - (float)update / (float)updates));
        if ((update + 1) % (updates < 200 ? 50 : 100) == 0 || update == 49)
            printf("update %4d  cross-entropy %.3f  log p: data %+7.2f, dreams %+7.2f  "
                   "accuracy %3.0f%%\n", update + 1, (double)(s.ce / BATCH),
                   (double)(s.data / BATCH), (double)(s.dream / BATCH), 100.0 * s.right / BATCH);
        fflush(stdout);
    }
}

/* ==== data, pictures, main ==================================================================== */

enum { TRAIN = 9000, TEST = 1000 };
static float images[TRAIN + TEST][PIXELS];         /* the last 1000 are held out */
static int labels[TRAIN + TEST];

/* The sheet of 100 x 100 digits; examples/data/README.md says which row is what. */
static int load(const char *path) {
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
        put(x, i % N, images[TRAIN + i], 0);
        if (i % N < N - 1 && i + 1 < TEST) continue;
        const float *f = forward(x);
        for (int l = 0; l <= i % N; l++) {
            int best = 0;
            for (int c = 1; c < CLASSES; c++) if (f[c * N + l] > f[best * N + l]) best = c;
            right += best == labels[TRAIN + i / N * N + l];
        }
    }
    return (float)right / TEST;
}

/* A row per class: from noise by Langevin dynamics in log p(x,y). */
static int draw_dreams(const char *path, int steps) {
    enum { ZOOM = 2, CELL = SIDE * ZOOM + 2, WIDE = N * CELL, HIGH = CLASSES * CELL };
    static unsigned char picture[HIGH][WIDE];
    static float x[PIXELS * N], image[PIXELS];
    for (int c = 0; c < CLASSES; c++) {
        int y[N];
        for (int l = 0; l < N; l++) y[l] = c, restart(image), put(x, l, image, 0);
        langevin(x, y, steps);
        for (int i = 0; i < SIDE * ZOOM; i++)
            for (int j = 0; j < SIDE * ZOOM; j++)
                for (int l = 0; l < N; l++)
                    picture[c * CELL + i][l * CELL + j] = (unsigned char)
                        (127.5f * (1 + x[(i / ZOOM * SIDE + j / ZOOM) * N + l]));
    }
#ifdef _WIN32
    _mkdir("build"), _mkdir("build/pictures");
#else
    mkdir("build", 0777), mkdir("build/pictures", 0777);
#endif
    const int ok = stbi_write_png(path, WIDE, HIGH, 1, picture, WIDE);
    if (ok) printf("picture: %s\n", path);
    else fprintf(stderr, "%s: cannot be written\n", path);
    return ok;
}

int main(int argc, char **argv) {
    const int quick = argc > 1 && !strcmp(argv[1], "--quick");
    const int updates = quick ? 10 : argc > 1 ? count_of(argv[1]) : 400;
    if (updates < 1 || argc > 2) {
        fprintf(stderr, "usage: %s [updates], " COUNT_RANGE "\n", argv[0]);
        return 1;
    }
    if (!load("examples/data/digits.png")) return 1;
    train(images[0], labels, TRAIN, updates);
    printf("%.1f%% of the held-out digits are classified rightly\n", 100 * (double)accuracy());
    return !draw_dreams("build/pictures/tiny_jem.png", quick ? 5 : 80);
}
