/* A JEM from scratch: a classifier whose logits also define a density. Nothing below calls jem.h;
   it is included for the project's shared code, which reads the digits and writes the picture.

       L = -log p(y|x)  -  W log p(x)          p(x,y) = exp f(x)[y] / Z,   p(x) = sum over y
       W = 0.1, the weight of the second term (CD_WEIGHT)

   The first term is a classifier's cross-entropy. The second contains Z, which is intractable; but
   its gradient needs only samples of the model (contrastive divergence, Hinton 2002):

       grad log p(x) = grad [f(x) - f(x')]      x' from the model
       f(x) = log-sum-exp over y of f(x)[y]

   and Langevin dynamics draws them. (JEM: Grathwohl and others, ICLR 2020, arXiv:1912.03263.) First
   the densities, then learning, then the network with its gradients by hand.
   tests/tools/test_tiny.c checks that jem.h computes the same numbers.

       make build/tiny_jem && build/tiny_jem        (half a minute on one core)

   EXPECTED OUTPUT (other compilers round differently, and the chains then take other paths)
       update   50  cross-entropy 1.329  f(x): data  +35.82, samples  +29.91  accuracy  75%
       update  100  cross-entropy 0.480  f(x): data  +27.30, samples  +25.50  accuracy  91%
       update  200  cross-entropy 0.968  f(x): data  +46.40, samples  +45.96  accuracy  81%
       update  300  cross-entropy 0.295  f(x): data  +60.21, samples  +59.20  accuracy  94%
       update  400  cross-entropy 0.177  f(x): data  +65.10, samples  +58.34  accuracy  91%
       89.6% of the held-out digits are classified correctly
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
static float uniform(void) {                       /* (0,1): a linear congruence (Knuth) */
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return ((float)(seed >> 41) + 0.5f) / 8388608.0f;
}
static float normal(void) {                        /* Box-Muller, the simplest half */
    const float length = sqrtf(-2 * logf(uniform()));
    return length * cosf(6.2831853f * uniform());
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
        for (int c = 0; c < CLASSES; c++) {
            p[c][n] = expf(f[c][n] - top);
            sum += p[c][n];
        }
        for (int c = 0; c < CLASSES; c++) p[c][n] /= sum;
        total[n] = top + logf(sum);
    }
}

/* Returns the likeliest class of image n. */
static int best_class(batch *f, int n) {
    int best = 0;
    for (int c = 1; c < CLASSES; c++)
        if (f[c][n] > f[best][n]) best = c;
    return best;
}

/* Runs Langevin dynamics: uphill in f, and noise. With labels, uphill in f[label]: log p(x,y).
   Langevin's equation has the step a/2 and noise sqrt(a); a step of s with noise sigma samples
   p^(1/T), T = sigma^2/2s. The paper's 1 and .01 have T = 5e-5: nearly gradient ascent. */
static void langevin(batch *x, const int *labels, int steps) {
    static batch dx[PIXELS], p[CLASSES];
    float total[N];
    for (int step = 0; step < steps; step++) {
        density(forward(x), total, p);
        for (int c = 0; labels && c < CLASSES; c++)
            for (int n = 0; n < N; n++) p[c][n] = labels[n] == c;
        backward(x, p, dx, 0);
        for (int i = 0; i < PIXELS; i++)
            for (int n = 0; n < N; n++)
                x[i][n] = fmaxf(-1, fminf(1, x[i][n] + 1.0f * dx[i][n] + 0.01f * normal()));
    }
}

/* ==== learning ================================================================================ */

enum { BLOCKS = 20, STEPS = 10 };
#define CD_WEIGHT 0.1f
static batch chains[BLOCKS][PIXELS];               /* N persistent chains each */

static void restart(batch *x, int n) {
    for (int i = 0; i < PIXELS; i++) x[i][n] = 2 * uniform() - 1;
}

/* Means of an update: cross-entropy, accuracy, f of data and of samples. */
typedef struct stats { float ce, right, data, sample; } stats;

/* Adds the gradient of sign * CD_WEIGHT * mean f(x) and, with labels, of the cross-entropy. Returns
   the mean of f(x). */
static float push(batch *x, const int *labels, float sign, stats *s) {
    static batch p[CLASSES], df[CLASSES];
    float total[N], mean = 0;
    batch *f = forward(x);
    density(f, total, p);
    for (int c = 0; c < CLASSES; c++)
        for (int n = 0; n < N; n++) df[c][n] = sign * CD_WEIGHT * p[c][n] / N;
    for (int n = 0; n < N; n++) {
        mean += total[n] / N;
        if (!labels) continue;
        for (int c = 0; c < CLASSES; c++) df[c][n] += (p[c][n] - (c == labels[n])) / N;
        s->ce += (total[n] - f[labels[n]][n]) / N;
        s->right += (float)(best_class(f, n) == labels[n]) / N;
    }
    backward(x, df, NULL, 1);
    return mean;
}

/* Raises f at N labelled digits; then continues a block of chains, and lowers f at their ends. */
static stats learn(const float *images, const int *labels, int count) {
    static batch x[PIXELS];
    int y[N];
    stats s = { 0, 0, 0, 0 };
    for (int n = 0; n < N; n++) {
        const int pick = (int)(uniform() * (float)count);
        load(x, n, images + (size_t)pick * PIXELS, 0.03f);
        y[n] = labels[pick];
    }
    s.data = push(x, y, -1, &s);
    batch *block = chains[(int)(uniform() * BLOCKS)];
    for (int n = 0; n < N; n++)
        if (uniform() < 0.05f) restart(block, n);
    langevin(block, NULL, STEPS);
    s.sample = push(block, NULL, 1, &s);
    return s;
}

/* ==== the network ============================================================================= */
/* Four convolutions; the last one's window is the whole image, which makes it a linear layer. */

typedef struct layer { int in, out, k, stride, pad, size, high; } layer;
enum { LAYERS = 4 };
static const layer layers[LAYERS] = {  /* channels, window, stride, padding, size before, after */
    {  1,  8, 4, 2, 1, SIDE, 14 },
    {  8, 16, 4, 2, 1,   14,  7 },
    { 16, 32, 3, 2, 1,    7,  4 },
    { 32, CLASSES, 4, 1, 0, 4, 1 }
};
/* PARAMS: weights and biases of all layers. LARGEST: values of the largest layer's output. */
enum { PARAMS = 136 + 2064 + 4640 + 5130, LARGEST = 8 * 14 * 14 };
/* All parameters in one array: of each layer the weights [out][in][k][k], then the biases [out]. */
static float param[PARAMS], grad[PARAMS];
/* Outputs of every layer, and the slope of the activation function there, for the backward pass. */
static batch out[LAYERS][LARGEST], slope[LAYERS][LARGEST];

static int weights(const layer *L) { return L->out * L->in * L->k * L->k; }
static int outputs(const layer *L) { return L->out * L->high * L->high; }

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
    for (int k = 0; k < weights(L); k++) {
        const int window_row = k / L->k % L->k;
        const int window_column = k % L->k;
        const int input_channel = k / (L->k * L->k) % L->in;
        const int output_channel = k / (L->k * L->k * L->in);
        batch *from = x + input_channel * L->size * L->size;
        batch *to = y + output_channel * L->high * L->high;
        batch product = { 0 };
        for (int i = 0; i < L->high * L->high; i++) {
            const int row = i / L->high * L->stride + window_row - L->pad;
            const int column = i % L->high * L->stride + window_column - L->pad;
            if (row < 0 || row >= L->size || column < 0 || column >= L->size) continue;
            float *a = from[row * L->size + column];
            if (way == FORWARD) add(to[i], w[k], a);
            else if (way == TO_INPUT) add(a, w[k], to[i]);
            else add_product(product, a, to[i]);
        }
        for (int n = 0; way == TO_WEIGHTS && n < N; n++) w[k] += product[n];
    }
}

static batch *forward(batch *x) {
    float *w = param;
    for (int k = 0; k < LAYERS; k++) {
        const layer *L = layers + k;
        for (int i = 0; i < outputs(L) * N; i++)
            out[k][i / N][i % N] = w[weights(L) + i / N / (L->high * L->high)];
        connect(L, FORWARD, w, k ? out[k - 1] : x, out[k]);
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
        for (int i = 0; i < outputs(L) * N; i++) {
            float *v = d[k][i / N] + i % N;
            if (k < LAYERS - 1) *v *= slope[k][i / N][i % N];
            if (update) grad[at + weights(L) + i / N / (L->high * L->high)] += *v;
        }
        if (update) connect(L, TO_WEIGHTS, grad + at, k ? out[k - 1] : x, d[k]);
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
    for (int i = 0; i < BLOCKS * N; i++) restart(chains[i / N], i % N);
    for (int k = 0; k < LAYERS; k++) {             /* as in PyTorch: U(-1,1) / sqrt(inputs) */
        const float scale = 1 / sqrtf((float)(layers[k].in * layers[k].k * layers[k].k));
        for (int i = weights(layers + k) + layers[k].out; i > 0; i--)
            *w++ = scale * (2 * uniform() - 1);
    }
    for (int i = 0; i < updates; i++) {
        memset(grad, 0, sizeof grad);
        const stats s = learn(images, labels, count);
        adam(i, 2e-3f * (1 - (float)i / (float)updates));
        const int every = updates < 200 ? 50 : 100;
        if ((i + 1) % every && i != 49) continue;
        printf("update %4d  cross-entropy %.3f  f(x): data %+7.2f, samples %+7.2f  "
               "accuracy %3.0f%%\n", i + 1, (double)s.ce, (double)s.data, (double)s.sample,
               100 * (double)s.right);
    }
}

static float accuracy(const digits *d) {
    static batch x[PIXELS];
    int right = 0;
    for (int i = 0; i < DIGITS_TEST; i += N) {
        for (int n = 0; n < N; n++) load(x, n, d->test_x + (i + n) % DIGITS_TEST * PIXELS, 0);
        batch *f = forward(x);
        for (int n = 0; n < N && i + n < DIGITS_TEST; n++)
            right += best_class(f, n) == d->test_y[i + n];
    }
    return (float)right / DIGITS_TEST;
}

/* Draws a row of N/2 samples per class: from noise by Langevin dynamics in log p(x,y). */
static int draw_samples(const char *path) {
    static batch x[PIXELS];
    static float image[CLASSES * N / 2][PIXELS];
    int y[N];
    for (int i = 0; i < CLASSES * N / 2; i += N) {
        for (int n = 0; n < N; n++) {
            y[n] = (i + n) / (N / 2);
            restart(x, n);
        }
        langevin(x, y, 80);
        for (int n = 0; n < N; n++) store(x, n, image[i + n]);
    }
    return picture_grid(path, image[0], CLASSES * N / 2, N / 2, 1, SIDE, SIDE, 2);
}

int main(int argc, char **argv) {
    const int updates = argc > 1 ? count_of(argv[1]) : 400;
    digits d;
    if (updates < 1 || argc > 2) {
        fprintf(stderr, "usage: %s [updates], " COUNT_RANGE "\n", argv[0]);
        return 1;
    }
    if (!digits_load(DIGITS_PATH, &d)) return 1;
    train(d.x, d.y, DIGITS_TRAIN, updates);
    printf("%.1f%% of the held-out digits are classified correctly\n", 100 * (double)accuracy(&d));
    digits_free(&d);
    if (!draw_samples("build/pictures/tiny_jem.png")) return 1;
    printf("picture: build/pictures/tiny_jem.png\n");
    return 0;
}
