/* Attacks on classifiers that refine their images, and with labels alone. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/support/robust.h"

int robust_best(const float *f, int classes) {
    int best = 0;
    for (int k = 1; k < classes; k++) if (f[k] > f[best]) best = k;
    return best;
}

/* ---- a classifier that refines first --------------------------------------------------------- */

void refined_free(refined *r) {
    free(r->path);
    free(r->slope);
    free(r->logp);
    free(r->work);
}

double refined_bytes(const jem_net *net, int steps, int chains) {
    const double size = (double)net->channels * net->height * net->width;
    return sizeof(float) * REFINED_MOST * (size * ((double)steps + 4 + chains) +
                                           (double)net->classes * chains);
}

int refined_create(refined *r, jem_net *net, jem_sgld_desc walk, int chains, int through,
                   uint64_t seed) {
    const size_t size = (size_t)(net->channels * net->height * net->width) * REFINED_MOST;
    const size_t classes = (size_t)net->classes * REFINED_MOST;
    r->net = net;
    r->walk = walk;
    r->chains = chains;
    r->through = through;
    r->rng = jem_rng_seed(seed);
    r->path = (float *)malloc(((size_t)walk.steps + 1) * size * sizeof(float));
    r->slope = (float *)malloc((size_t)chains * size * sizeof(float));
    r->logp = (float *)malloc((size_t)chains * classes * sizeof(float));
    r->work = (float *)malloc(3 * size * sizeof(float));
    if (r->path && r->slope && r->logp && r->work) return 1;
    refined_free(r);
    return 0;
}

/* Computes the gradient of a log-density at x[n][size]. */
static int refined_slope(refined *r, jem_logp_fn logp, void *user, const float *x, int n,
                         float *g) {
    jem_ctx *ctx = r->net->ctx;
    const jem_mark mark = jem_begin(ctx);
    jem_tensor *t = jem_input(ctx, x, n, r->net->channels, r->net->height, r->net->width);
    if (jem_grad(logp(ctx, t, user), t) == JEM_OK) jem_read_grad(t, g);
    jem_end(ctx, mark);
    return jem_ok(ctx);
}

/* Adds a H(x) g to g[n][size], by the difference of gradients at x +- h u, u = g/|g|. */
static int refined_back(refined *r, const float *x, int n, ptrdiff_t size, float *g) {
    const float h = .003f * sqrtf((float)size);
    float *moved = r->work;
    float *here = moved + n * size;
    float *there = here + n * size;
    float length[REFINED_MOST];
    for (int i = 0; i < n; i++) {
        double sum = 0;
        for (ptrdiff_t k = i * size; k < (i + 1) * size; k++) sum += (double)g[k] * (double)g[k];
        length[i] = (float)sqrt(sum);
    }
    for (int side = 0; side < 2; side++) {
        const float by = side ? -h : h;
        for (ptrdiff_t k = 0; k < n * size; k++) {
            const float l = length[k / size];
            moved[k] = l > 0 ? x[k] + by / l * g[k] : x[k];
        }
        if (!refined_slope(r, jem_logp, r->net, moved, n, side ? there : here)) return 0;
    }
    for (ptrdiff_t k = 0; k < n * size; k++)
        g[k] += r->walk.step_size * length[k / size] / (2 * h) * (here[k] - there[k]);
    return 1;
}

/* Runs one chain per image: log p(y|x_n) to logp[n][classes]; the gradient of the label's log-odds
   to g (not if NULL). */
static int refined_chain(refined *r, const float *x, const int *labels, int n, float *logp,
                         float *g) {
    jem_net *net = r->net;
    jem_ctx *ctx = net->ctx;
    const ptrdiff_t size = (ptrdiff_t)net->channels * net->height * net->width;
    float *path = r->path;
    jem_sgld_desc one = r->walk;
    jem_query query;
    one.steps = 1;
    query.net = net;
    query.labels = labels;
    const jem_mark mark = jem_begin(ctx);
    jem_tensor *t = jem_input(ctx, x, n, net->channels, net->height, net->width);
    jem_read(t, path);
    for (int k = 0; k < r->walk.steps && jem_ok(ctx); k++, path += n * size) {
        jem_sgld(ctx, jem_logp, net, t, &one, &r->rng);
        jem_read(t, path + n * size);
    }
    jem_read(jem_log_softmax(ctx, jem_forward(net, t, 0)), logp);
    jem_end(ctx, mark);
    if (!g || !jem_ok(ctx)) return jem_ok(ctx);
    int ok = refined_slope(r, jem_log_odds, &query, path, n, g);
    while (ok && r->through && path > r->path) {
        path -= n * size;
        ok = refined_back(r, path, n, size, g);
    }
    return ok;
}

/* Computes p of the label, and of all others: not 1 minus the first, which would round to 0. */
static void refined_split(const float *logp, int classes, int label, double p[2]) {
    p[0] = p[1] = 1e-300;
    for (int k = 0; k < classes; k++) p[k != label] += exp((double)logp[k]);
}

jem_status refined_classify(void *user, const float *x, const int *labels, int n, float *f,
                            float *g) {
    refined *r = (refined *)user;
    const int classes = r->net->classes;
    const ptrdiff_t size = (ptrdiff_t)r->net->channels * r->net->height * r->net->width;
    for (int i = 0; i < n; i += REFINED_MOST) {
        const int m = n - i < REFINED_MOST ? n - i : REFINED_MOST;
        const int numbers = m * classes;
        for (int c = 0; c < r->chains; c++)
            if (!refined_chain(r, x + i * size, labels + i, m, r->logp + c * numbers,
                               g ? r->slope + c * m * size : NULL))
                return JEM_BAD_ARGUMENT;       /* the context has the error */
        for (int k = 0; k < numbers; k++) {
            double mean = 0;
            for (int c = 0; c < r->chains; c++) mean += exp((double)r->logp[c * numbers + k]);
            f[i * classes + k] = (float)log(fmax(mean / r->chains, 1e-300));
        }
        if (g) memset(g + i * size, 0, (size_t)(m * size) * sizeof *g);
        for (int j = 0; g && j < m; j++) {
            double p[2], mean[2];                  /* of the label, and of all others */
            refined_split(f + (i + j) * classes, classes, labels[i + j], mean);
            for (int c = 0; c < r->chains; c++) {
                refined_split(r->logp + c * numbers + j * classes, classes, labels[i + j], p);
                const double share = p[0] / mean[0] * (p[1] / mean[1]) / r->chains;
                const float *slope = r->slope + (c * m + j) * size;
                for (ptrdiff_t k = 0; k < size; k++)
                    g[(i + j) * size + k] += (float)share * slope[k];
            }
        }
    }
    return JEM_OK;
}

/* ---- labels only ----------------------------------------------------------------------------- */

/* The boundary attack (Brendel et al. 2018): from an image with another label, random steps along
   the boundary towards the original, kept if the label stays different. */
enum { BISECT = 16 };                              /* queries on the straight line, first */

typedef struct decision { float side, nearer; int tried[2], kept[2]; } decision;

static double robust_apart(const float *a, const float *b, ptrdiff_t n) {
    double sum = 0;
    for (ptrdiff_t k = 0; k < n; k++)
        sum += ((double)a[k] - (double)b[k]) * ((double)a[k] - (double)b[k]);
    return sqrt(sum);
}

/* Moves from a, along the sphere around x by `side` radii in a random direction, then closer to x.
   */
static void decision_propose(const decision *d, const float *x, const float *a, jem_rng *rng,
                             jem_ctx *ctx, ptrdiff_t n, float *to) {
    const double radius = robust_apart(a, x, n);
    double dot = 0;
    double length = 0;
    jem_fill_normal(ctx, rng, to, n, 0, 1);
    for (ptrdiff_t k = 0; k < n; k++) dot += (double)to[k] * ((double)a[k] - (double)x[k]);
    for (ptrdiff_t k = 0; k < n; k++) {            /* what is across the radius only */
        to[k] -= (float)(dot / fmax(radius * radius, 1e-12) * ((double)a[k] - (double)x[k]));
        length += (double)to[k] * (double)to[k];
    }
    const double side = (double)d->side * radius / fmax(sqrt(length), 1e-12);
    for (ptrdiff_t k = 0; k < n; k++) to[k] = a[k] + (float)side * to[k];
    const double shrink = (1 - (double)d->nearer) * radius / fmax(robust_apart(to, x, n), 1e-12);
    for (ptrdiff_t k = 0; k < n; k++)
        to[k] = fminf(fmaxf(x[k] + (float)shrink * (to[k] - x[k]), -1), 1);
}

/* Adapts the steps: half of the proposals without a step towards x should succeed, and a quarter of
   those with one. */
static void decision_adapt(decision *d) {
    if (d->tried[0] + d->tried[1] < 20) return;
    if (d->tried[0]) d->side *= 2 * d->kept[0] > d->tried[0] ? 1.1f : .9f;
    if (d->tried[1]) d->nearer *= 4 * d->kept[1] > d->tried[1] ? 1.1f : .9f;
    d->side = fminf(d->side, 1);
    d->nearer = fminf(d->nearer, .5f);
    d->tried[0] = d->tried[1] = d->kept[0] = d->kept[1] = 0;
}

/* The search for all images at once. */
typedef struct decision_search {
    jem_net *net;
    const jem_attack_desc *how;
    const float *x;
    const int *labels;
    int n;
    ptrdiff_t size;                                /* of an image */
    float *found;                                  /* [n][size]: the nearest so far */
    decision *d;                                   /* [n] */
    float *f;                                      /* [n][classes]: the last classification */
    float *to;                                     /* [n][size]: the proposals */
    int *right;                                    /* [n]: 1 if an image is attacked */
    jem_rng rng;
} decision_search;

/* Classifies n images. Returns 0 after an error. */
static int decision_ask(decision_search *s, const float *x) {
    if (s->how->classify)
        return s->how->classify(s->how->user, x, s->labels, s->n, s->f, NULL) == JEM_OK;
    return jem_logits(s->net, x, s->n, s->f) == JEM_OK;
}

/* Returns 1 if the last classification gives image i another label than its own. */
static int decision_fools(const decision_search *s, int i) {
    return robust_best(s->f + i * s->net->classes, s->net->classes) != s->labels[i];
}

/* Starts each search at another image, of another label. */
static int decision_begin(decision_search *s) {
    const int n = s->n;
    if (!decision_ask(s, s->x)) return 0;
    for (int i = 0; i < n; i++) {
        s->d[i].side = .1f;
        s->d[i].nearer = .5f;
        int other = (i + 1) % n;
        while (other != i && s->labels[other] == s->labels[i]) other = (other + 1) % n;
        memcpy(s->found + i * s->size, s->x + other * s->size, (size_t)s->size * sizeof *s->x);
        s->right[i] = !decision_fools(s, i) && other != i;
    }
    if (!decision_ask(s, s->found)) return 0;      /* is its classification different? */
    for (int i = 0; i < n; i++) s->right[i] = s->right[i] && decision_fools(s, i);
    return 1;
}

/* Makes the proposals of query q: first on the straight line, then at random, every other without
   a step towards the image. */
static void decision_try(decision_search *s, int q) {
    for (int i = 0; i < s->n; i++) {
        const float *a = s->found + i * s->size;
        const float *at = s->x + i * s->size;
        float *to = s->to + i * s->size;
        decision one = s->d[i];
        if (q < BISECT) {
            for (ptrdiff_t p = 0; p < s->size; p++) to[p] = a[p] + one.nearer * (at[p] - a[p]);
            continue;
        }
        if (q % 2 == 0) one.nearer = 0;
        decision_propose(&one, at, a, &s->rng, s->net->ctx, s->size, to);
    }
}

/* Keeps the proposals of query q with another label, and adapts the steps. */
static void decision_keep(decision_search *s, int q) {
    for (int i = 0; i < s->n; i++) {
        decision *d = &s->d[i];
        const int fools = decision_fools(s, i);
        if (fools)
            memcpy(s->found + i * s->size, s->to + i * s->size, (size_t)s->size * sizeof *s->to);
        if (q < BISECT) {
            if (!fools) d->nearer /= 2;
            if (q + 1 == BISECT) d->nearer = .05f;
            continue;
        }
        d->tried[q % 2]++;
        d->kept[q % 2] += fools;
        decision_adapt(d);
    }
}

/* Many parameters: as jem_attack. */
int robust_decision(jem_net *net, const jem_attack_desc *how, const float *x,
                    const int *labels, int n, int queries, uint64_t seed, float *found,
                    float *far) {
    decision_search s;
    int count = 0;
    s.net = net;
    s.how = how;
    s.x = x;
    s.labels = labels;
    s.n = n;
    s.size = (ptrdiff_t)net->channels * net->height * net->width;
    s.found = found;
    s.rng = jem_rng_seed(seed);
    s.d = (decision *)calloc((size_t)n, sizeof *s.d);
    s.f = (float *)malloc((size_t)(n * net->classes) * sizeof *s.f);
    s.to = (float *)malloc((size_t)(n * s.size) * sizeof *s.to);
    s.right = (int *)malloc((size_t)n * sizeof *s.right);
    int ok = s.d && s.f && s.to && s.right && decision_begin(&s);
    for (int q = 0; ok && q < queries; q++) {
        decision_try(&s, q);
        ok = decision_ask(&s, s.to);
        if (ok) decision_keep(&s, q);
    }
    for (int i = 0; ok && i < n; i++)
        if (s.right[i])
            far[count++] = (float)robust_apart(found + i * s.size, x + i * s.size, s.size);
    free(s.d);
    free(s.f);
    free(s.to);
    free(s.right);
    return ok ? count : -1;
}
