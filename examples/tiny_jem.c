/* A JEM from scratch: a classifier whose logits also define a density. jem.h computes nothing here;
   the project's shared code only reads the digits and writes the picture.

       L = -log p(y|x)  -  W log p(x)          p(x,y) = exp f(x)[y] / Z,   p(x) = sum over y

   The first term is a classifier's cross-entropy. The second contains Z, which is intractable; but
   its gradient needs only samples of the model (contrastive divergence, Hinton 2002):

       grad -log p(x) = grad [f(x') - f(x)]     x' from the model,  f(x) = log-sum-exp over y
       f(x)[y]

   and Langevin dynamics draws them. (JEM: Grathwohl and others, ICLR 2020, arXiv:1912.03263.) First
   the densities, then learning, then the network with its gradients by hand.
   tests/tools/test_tiny.c checks that jem.h computes the same numbers.

       make build/tiny_jem && build/tiny_jem        (half a minute on one core)

   EXPECTED OUTPUT (other compilers round differently, and the chains then take other paths)
       update   50  cross-entropy 0.717  f(x): data  +39.16, samples  +33.28  accuracy  66%
       update  100  cross-entropy 0.488  f(x): data  +56.96, samples  +54.23  accuracy  81%
       update  200  cross-entropy 0.212  f(x): data  +47.98, samples  +49.77  accuracy  94%
       update  300  cross-entropy 0.458  f(x): data  +54.99, samples  +53.10  accuracy  88%
       update  400  cross-entropy 0.479  f(x): data  +59.93, samples  +61.72  accuracy  91%
       88.0% of the held-out digits are classified correctly
   and build/pictures/tiny_jem.png: a row of samples per class, all started from noise, mostly
   legible.

   What to look for: f of data and of samples rise together; only their difference has a meaning,
   since f = log p + log Z, and Z changes at every update. If the samples stay far below, the chains
   are too short to find the maxima of f; if they stay far above, these maxima are not digits.
   What to try: more updates (`build/tiny_jem 2000`); CD_WEIGHT 0: a better classifier, whose
   samples are blotches, similar within a class; STEPS 2; chains that always restart. */
#define JEM_IMPLEMENTATION
#include "tools/support/pictures.h"
#include "count.h"

/* N images at a time: x[i][n] is value i of image n, so that the innermost loop is always 'for each
   image', which compilers turn into vector instructions. */
enum { N = 32, SIDE = DIGIT, PIXELS = SIDE * SIDE, CLASSES = 10 };
typedef float batch[N];

/* The network, implemented below. forward: the logits f[class][image]. backward, of the last
   forward: from df to dx (if not NULL) and, if `update`, added to the gradient of the weights. */
static batch *forward(batch *x);
static void backward(batch *x, batch *df, batch *dx, int update);

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
static void load(batch *x, int n, const float *image, float noise) {
    for (int i = 0; i < PIXELS; i++) x[i][n] = image[i] + (noise > 0 ? noise * normal() : 0);
}
static void store(batch *x, int n, float *image) {
    for (int i = 0; i < PIXELS; i++) image[i] = x[i][n];
}

/* ==== the densities =========================================================================== */

/* Computes total = log-sum-exp of the logits = log p(x) + log Z, and its gradient p = softmax =
   p(y|x). */
static void density(batch *f, float *total, batch *p) {
    for (int n = 0; n < N; n++) {
        float top = f[0][n], sum = 0;
        for (int c = 1; c < CLASSES; c++) top = fmaxf(top, f[c][n]);
        for (int c = 0; c < CLASSES; c++) sum += p[c][n] = expf(f[c][n] - top);
        for (int c = 0; c < CLASSES; c++) p[c][n] /= sum;
        total[n] = top + logf(sum);
    }
}

/* Runs Langevin dynamics: uphill in f, and noise. With labels, uphill in f[label]: log p(x,y).
   Langevin's equation has the step a/2 and noise sqrt(a); a step of s with noise t samples p^(1/T),
   T = t^2/2s. The paper's 1 and .01 have T = 5e-5: nearly gradient ascent. */
static void langevin(batch *x, const int *labels, int steps) {
    static batch dx[PIXELS], p[CLASSES];
    float total[N];
    for (int step = 0; step < steps; step++) {
        density(forward(x), total, p);
        for (int i = 0; labels && i < CLASSES * N; i++) p[i / N][i % N] = labels[i % N] == i / N;
        backward(x, p, dx, 0);
        for (int i = 0; i < PIXELS; i++) {
            for (int n = 0; n < N; n++)
                x[i][n] = fmaxf(-1, fminf(1, x[i][n] + 1.0f * dx[i][n] + 0.01f * normal()));
        }
    }
}

/* ==== learning ================================================================================ */

enum { BUFFER = 640, STEPS = 10 };
#define CD_WEIGHT 0.1f
static float buffer[BUFFER][PIXELS];               /* persistent chains */

static void restart(float *image) {
    for (int i = 0; i < PIXELS; i++) image[i] = 2 * uniform() - 1;
}

/* Lowers the cross-entropy of N labelled digits, and raises f at them; then continues N chains, and
   lowers f at their ends. Returns means: cross-entropy, f of data and samples, accuracy. */
typedef struct stats { float ce, data, sample, right; } stats;
static stats learn(const float *images, const int *labels, int count) {
    static batch x[PIXELS], p[CLASSES], df[CLASSES];
    float total[N];
    int y[N], slot[N];
    stats s = { 0, 0, 0, 0 };
    for (int n = 0; n < N; n++) {
        const int pick = (int)(uniform() * (float)count);
        load(x, n, images + (size_t)pick * PIXELS, 0.03f);
        y[n] = labels[pick];
    }
    batch *f = forward(x);
    density(f, total, p);
    for (int n = 0; n < N; n++) {
        int best = 0;
        for (int c = 0; c < CLASSES; c++) {        /* d CE/df = p - [y], d f(x)/df = p */
            df[c][n] = (p[c][n] - (c == y[n]) - CD_WEIGHT * p[c][n]) / N;
            if (p[c][n] > p[best][n]) best = c;
        }
        s.right += (float)(best == y[n]) / N;
        s.ce += (total[n] - f[y[n]][n]) / N;
        s.data += total[n] / N;
    }
    backward(x, df, NULL, 1);

    for (int n = 0; n < N; n++) {
        slot[n] = (int)(uniform() * BUFFER);
        if (uniform() < 0.05f) restart(buffer[slot[n]]);
        load(x, n, buffer[slot[n]], 0);
    }
    langevin(x, NULL, STEPS);
    density(forward(x), total, p);
    for (int i = 0; i < CLASSES * N; i++) df[i / N][i % N] = CD_WEIGHT * p[i / N][i % N] / N;
    backward(x, df, NULL, 1);
    for (int n = 0; n < N; n++) {
        store(x, n, buffer[slot[n]]);
        s.sample += total[n] / N;
    }
    return s;
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
    LARGEST = 8 * 14 * 14                          /* values of the largest layer's output */
};
/* All parameters in one array: of each layer the weights [out][in][k][k], then the biases [out]. */
static float param[PARAMS], grad[PARAMS];
/* Outputs of every layer, and the slope of the activation function there, for the backward pass. */
static batch out[LAYERS][LARGEST], slope[LAYERS][LARGEST];

static int weights(const layer *L) { return L->out * L->in * L->k * L->k; }
static int outputs(const layer *L) { return L->out * L->out_size * L->out_size; }
static batch *input(int k, batch *x) { return k ? out[k - 1] : x; }

static void add(float *restrict to, float w, const float *restrict from) {
    for (int n = 0; n < N; n++) to[n] += w * from[n];
}
static void add_product(float *restrict to, const float *restrict a, const float *restrict b) {
    for (int n = 0; n < N; n++) to[n] += a[n] * b[n];
}

/* Visits all connections of a layer: y[b] receives w times x[a]. By the chain rule both gradients
   follow the same connections: x[a] receives w times y[b], and w receives x[a] times y[b]. */
enum { FORWARD, TO_INPUT, TO_WEIGHTS };
static void connect(const layer *L, int way, float *w, batch *x, batch *y) {
    const int high = L->out_size, all = weights(L);
    for (int k = 0; k < all; k++) {
        const int u = k / L->k % L->k - L->pad, v = k % L->k - L->pad;
        batch *from = x + k / (L->k * L->k) % L->in * L->size * L->size;
        batch *to = y + k / (L->k * L->k * L->in) * high * high;
        batch product = { 0 };
        for (int i = 0; i < high; i++) {
            for (int j = 0; j < high; j++) {
                const int row = i * L->stride + u, column = j * L->stride + v;
                if (row < 0 || row >= L->size || column < 0 || column >= L->size) continue;
                float *a = from[row * L->size + column], *b = to[i * high + j];
                if (way == FORWARD) add(b, w[k], a);
                else if (way == TO_INPUT) add(a, w[k], b);
                else add_product(product, a, b);
            }
        }
        for (int n = 0; way == TO_WEIGHTS && n < N; n++) w[k] += product[n];
    }
}

static batch *forward(batch *x) {
    float *w = param;
    for (int k = 0; k < LAYERS; k++) {
        const layer *L = layers + k;
        for (int i = 0; i < outputs(L) * N; i++)
            out[k][i / N][i % N] = w[weights(L) + i / N / (L->out_size * L->out_size)];
        connect(L, FORWARD, w, input(k, x), out[k]);
        for (int i = 0; k < LAYERS - 1 && i < outputs(L) * N; i++) {
            float *v = out[k][i / N] + i % N;      /* SiLU: smooth, so f is smooth */
            const float s = 1 / (1 + expf(-*v));
            slope[k][i / N][i % N] = s * (1 + *v * (1 - s));
            *v *= s;
        }
        w += weights(L) + L->out;
    }
    return out[LAYERS - 1];
}

static void backward(batch *x, batch *df, batch *dx, int update) {
    static batch d[LAYERS][LARGEST];               /* of each layer's output */
    int at = PARAMS;
    memcpy(d[LAYERS - 1], df, CLASSES * sizeof *df);
    for (int k = LAYERS - 1; k >= 0; k--) {
        const layer *L = layers + k;
        batch *to = k ? d[k - 1] : dx;
        at -= weights(L) + L->out;
        for (int i = 0; k < LAYERS - 1 && i < outputs(L) * N; i++)
            d[k][i / N][i % N] *= slope[k][i / N][i % N];
        if (update) {
            float *bias = grad + at + weights(L);
            connect(L, TO_WEIGHTS, grad + at, input(k, x), d[k]);
            for (int i = 0; i < outputs(L) * N; i++)
                bias[i / N / (L->out_size * L->out_size)] += d[k][i / N][i % N];
        }
        if (!to) continue;
        memset(to, 0, (size_t)(L->in * L->size * L->size) * sizeof *to);
        connect(L, TO_INPUT, param + at, to, d[k]);
    }
}

/* ==== training ================================================================================ */

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
    float *w = param;
    for (int i = 0; i < BUFFER; i++) restart(buffer[i]);
    for (int k = 0; k < LAYERS; k++) {             /* as in PyTorch: U(-1,1) / sqrt(inputs) */
        const float scale = 1 / sqrtf((float)(layers[k].in * layers[k].k * layers[k].k));
        for (int i = weights(layers + k) + layers[k].out; i > 0; i--)
            *w++ = scale * (2 * uniform() - 1);
    }
    for (int i = 0; i < updates; i++) {
        memset(grad, 0, sizeof grad);
        const stats s = learn(images, labels, count);
        adam(i, 2e-3f * (1 - (float)i / (float)updates));
        if ((i + 1) % (updates < 200 ? 50 : 100) && i != 49) continue;
        printf("update %4d  cross-entropy %.3f  f(x): data %+7.2f, samples %+7.2f  "
               "accuracy %3.0f%%\n", i + 1, (double)s.ce, (double)s.data, (double)s.sample,
               100 * (double)s.right);
        fflush(stdout);
    }
}

static float accuracy(const digits *d) {
    static batch x[PIXELS];
    int right = 0;
    for (int i = 0; i < DIGITS_TEST; i++) {
        load(x, i % N, d->test_x + i * PIXELS, 0);
        if (i % N < N - 1 && i + 1 < DIGITS_TEST) continue;
        batch *f = forward(x);
        for (int n = 0; n <= i % N; n++) {
            int best = 0;
            for (int c = 1; c < CLASSES; c++)
                if (f[c][n] > f[best][n]) best = c;
            right += best == d->test_y[i / N * N + n];
        }
    }
    return (float)right / DIGITS_TEST;
}

/* Draws a row of N/2 samples per class: from noise by Langevin dynamics in log p(x,y). */
static int draw_samples(const char *path, int steps) {
    static batch x[PIXELS];
    static float image[CLASSES * N / 2][PIXELS];
    int y[N];
    for (int i = 0; i < CLASSES * N / 2; i += N) {
        for (int n = 0; n < N; n++) {
            y[n] = (i + n) / (N / 2);
            restart(image[i + n]);
            load(x, n, image[i + n], 0);
        }
        langevin(x, y, steps);
        for (int n = 0; n < N; n++) store(x, n, image[i + n]);
    }
    return picture_grid(path, image[0], CLASSES * N / 2, N / 2, 1, SIDE, SIDE, 2);
}

int main(int argc, char **argv) {
    const int quick = argc > 1 && !strcmp(argv[1], "--quick");
    int updates = argc > 1 ? count_of(argv[1]) : 400;
    digits d;
    if (quick) updates = 10;
    if (updates < 1 || argc > 2) {
        fprintf(stderr, "usage: %s [updates], " COUNT_RANGE "\n", argv[0]);
        return 1;
    }
    if (!digits_load(DIGITS_PATH, &d)) return 1;
    train(d.x, d.y, DIGITS_TRAIN, updates);
    printf("%.1f%% of the held-out digits are classified correctly\n", 100 * (double)accuracy(&d));
    digits_free(&d);
    const char *path = "build/pictures/tiny_jem.png";
    const int ok = draw_samples(path, quick ? 5 : 80);
    if (ok) printf("picture: %s\n", path);
    return !ok;
}
