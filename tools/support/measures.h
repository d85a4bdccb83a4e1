/* Measures of predictions and scores, as scikit-learn defines them: reliability of probabilities,
   separation of two kinds of images by a score; distances of two sets of points; quality of chains
   of samples. For programs of one .c file. */
#ifndef TOOLS_MEASURES_H
#define TOOLS_MEASURES_H

#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* ---- probabilities --------------------------------------------------------------------------- */

typedef struct predictions {
    const float *f;                                /* logits f[n][classes] */
    const int *labels;                             /* the right class, 0..classes-1 */
    int n, classes;
    double temperature;                            /* divisor of the logits; 0: 1 */
} predictions;

/* Bin k has the images whose highest p(y|x) is in (k/bins, (k+1)/bins]; means over them. */
typedef struct reliability_bin { int count; double confidence, accuracy; } reliability_bin;

typedef struct reliability {
    double accuracy, confidence;                   /* confidence: the highest p(y|x) */
    double nll, brier;                             /* -log p(y|x); sum_y (p(y|x) - [y right])^2 */
    double ece, mce;                               /* |confidence - accuracy| of bins: mean over
                                                      images, and largest (Guo et al. 2017) */
} reliability;

/* Returns log sum_c exp(cold (f[c] - most)), most: the highest. For large logits the result is
   exact. */
static inline double measure__log_sum(const float *f, int classes, double cold, double most) {
    double sum = 0;
    for (int c = 0; c < classes; c++) sum += exp(cold * ((double)f[c] - most));
    return log(sum);
}

/* Measures n >= 1 images; fills bin[bins]. */
static inline reliability measure_reliability(const predictions *p, int bins,
                                              reliability_bin *bin) {
    reliability s = { 0, 0, 0, 0, 0, 0 };
    const double cold = p->temperature > 0 ? 1 / p->temperature : 1;
    memset(bin, 0, (size_t)bins * sizeof *bin);
    for (int i = 0; i < p->n; i++) {
        const float *f = p->f + (size_t)i * (size_t)p->classes;
        int best = 0;
        for (int c = 1; c < p->classes; c++) if (f[c] > f[best]) best = c;
        const double most = (double)f[best];
        const double all = measure__log_sum(f, p->classes, cold, most);
        for (int c = 0; c < p->classes; c++) {
            const double q = exp(cold * ((double)f[c] - most) - all) - (c == p->labels[i]);
            s.brier += q * q / p->n;
        }
        const double sure = exp(-all);
        const int right = best == p->labels[i];
        int k = (int)ceil(sure * bins) - 1;
        if (k < 0) k = 0;
        if (k > bins - 1) k = bins - 1;
        reliability_bin *b = bin + k;
        b->count++;
        b->confidence += sure;
        b->accuracy += right;
        s.accuracy += (double)right / p->n;
        s.confidence += sure / p->n;
        s.nll += (all + cold * (most - (double)f[p->labels[i]])) / p->n;
    }
    for (int k = 0; k < bins; k++) {
        if (!bin[k].count) continue;
        bin[k].confidence /= bin[k].count;
        bin[k].accuracy /= bin[k].count;
        const double gap = fabs(bin[k].confidence - bin[k].accuracy);
        s.ece += gap * bin[k].count / p->n;
        s.mce = fmax(s.mce, gap);
    }
    return s;
}

/* Returns the bar of v among `bins` bars between lo and hi; values beyond an end are in the end
   bar. */
static inline int measure_bin(double v, double lo, double hi, int bins) {
    const double k = (v - lo) / (hi - lo) * bins;              /* may exceed the range of int */
    if (k >= bins) return bins - 1;
    return k > 0 ? (int)k : 0;
}

/* ---- two sorts of images --------------------------------------------------------------------- */

typedef struct detection {
    double auroc;                                  /* probability that a usual image has a higher
                                                      score than another; a tie counts half */
    double aupr;                                   /* average precision in retrieving usual ones */
    double fpr95;                                 /* fraction of others accepted if 95% of the
                                                      usual ones are */
    double flagged;                              /* fraction of others rejected with 99% accepted */
} detection;

typedef struct measure__scored { float score; int usual; } measure__scored;
static inline int measure__compare(const void *a, const void *b) {     /* highest first */
    const float x = ((const measure__scored *)a)->score;
    const float y = ((const measure__scored *)b)->score;
    return (x < y) - (x > y);
}

/* Computes them from scores, higher for more usual images. Returns 0 without memory, for an empty
   kind, or for a score that is not finite. Thresholds decrease from the highest score; images of
   equal scores are accepted together. */
static inline int measure_detection(const float *usual, int n_usual, const float *other,
                                    int n_other, detection *d) {
    const int n = n_usual + n_other;
    measure__scored *all = (measure__scored *)malloc((size_t)(n + 1) * sizeof *all);
    int ok = all && n_usual > 0 && n_other > 0;
    for (int i = 0; ok && i < n; i++) {
        all[i].usual = i < n_usual;
        all[i].score = i < n_usual ? usual[i] : other[i - n_usual];
        ok = isfinite(all[i].score) != 0;
    }
    if (ok) qsort(all, (size_t)n, sizeof *all, measure__compare);
    double in = 0;
    double out = 0;
    double area = 0;
    double precision = 0;
    d->fpr95 = d->flagged = -1;
    for (int i = 0, next; ok && i < n; i = next) {
        double more = 0;
        for (next = i; next < n && !(all[next].score < all[i].score); next++)
            more += all[next].usual;
        const double more_out = next - i - more;
        area += more_out * (in + more / 2);
        in += more;
        out += more_out;
        precision += more * in / (in + out);
        if (d->fpr95 < 0 && in >= 0.95 * n_usual) d->fpr95 = out / n_other;
        if (d->flagged < 0 && in >= 0.99 * n_usual) d->flagged = 1 - out / n_other;
    }
    if (ok) {
        d->auroc = area / ((double)n_usual * n_other);
        d->aupr = precision / n_usual;
    }
    free(all);
    return ok;
}

/* Computes them from n scores, of which those with the label `usual` are of usual images; those
   with a label below 0 do not count. Returns 0 as measure_detection does. */
static inline int measure_labelled(const float *scores, const int *labels, int n, int usual,
                                   detection *d) {
    float *sorted = (float *)malloc(((size_t)n + 1) * sizeof *sorted);
    int n_usual = 0;
    int all = 0;
    if (!sorted) return 0;
    for (int i = 0; i < n; i++)
        if (labels[i] == usual) sorted[n_usual++] = scores[i];
    all = n_usual;
    for (int i = 0; i < n; i++)
        if (labels[i] >= 0 && labels[i] != usual) sorted[all++] = scores[i];
    const int ok = measure_detection(sorted, n_usual, sorted + n_usual, all - n_usual, d);
    free(sorted);
    return ok;
}

/* ---- two sets of points ---------------------------------------------------------------------- */

/* Rotates d pairs of numbers, which are `stride` apart, by an angle of cosine c and sine s. */
static inline void measure__rotate(double *x, double *y, int stride, int d, double c, double s) {
    for (int k = 0; k < d; k++) {
        const double u = x[k * stride];
        const double v = y[k * stride];
        x[k * stride] = c * u - s * v;
        y[k * stride] = s * u + c * v;
    }
}

/* Computes eigenvalues of the symmetric a[d][d] in its diagonal, eigenvectors in the columns of v
   (may be NULL): Jacobi's rotations (Golub & Van Loan, 8.5), until the off-diagonal is rounding
   error. */
static inline void measure__eigen(double *a, double *v, int d) {
    for (int i = 0; v && i < d * d; i++) v[i] = i % (d + 1) == 0;
    for (int sweep = 0; sweep < 60; sweep++) {
        double off = 0;
        double all = 0;
        for (int i = 0; i < d * d; i++) {
            all += a[i] * a[i];
            off += i % (d + 1) ? a[i] * a[i] : 0;
        }
        if (off <= 1e-28 * all) return;
        for (int p = 0; p < d; p++)
            for (int q = p + 1; q < d; q++) {
                const double apq = a[p * d + q];
                if (fabs(apq) < 1e-300) continue;
                const double theta = (a[q * d + q] - a[p * d + p]) / (2 * apq);
                const double t = (theta < 0 ? -1 : 1) / (fabs(theta) + sqrt(theta * theta + 1));
                const double c = 1 / sqrt(t * t + 1);
                const double s = t * c;
                measure__rotate(a + p, a + q, d, d, c, s);
                measure__rotate(a + p * d, a + q * d, 1, d, c, s);
                if (v) measure__rotate(v + p, v + q, d, d, c, s);
            }
    }
}

/* Computes mean[d] and covariance[d][d] (divided by n - 1) of x[n][d]. */
static inline void measure__moments(const float *x, int n, int d, double *mean, double *cov) {
    memset(mean, 0, (size_t)d * sizeof *mean);
    memset(cov, 0, (size_t)(d * d) * sizeof *cov);
    for (int i = 0; i < n; i++)
        for (int k = 0; k < d; k++) mean[k] += (double)x[(ptrdiff_t)i * d + k] / n;
    for (int i = 0; i < n; i++)
        for (int k = 0; k < d; k++) {
            const double off = ((double)x[(ptrdiff_t)i * d + k] - mean[k]) / (n > 1 ? n - 1 : 1);
            for (int l = 0; l < d; l++)
                cov[k * d + l] += off * ((double)x[(ptrdiff_t)i * d + l] - mean[l]);
        }
}

/* Computes the squared Frechet distance of Gaussians with the moments of x[n][d], y[m][d] (Dowson &
   Landau 1982): |mean - mean'|^2 + tr(S + S' - 2 (S^1/2 S' S^1/2)^1/2). Returns 0 without
   memory. */
static inline int measure_frechet(const float *x, int n, const float *y, int m, int d,
                                  double *distance) {
    const size_t square = (size_t)d * (size_t)d;
    double *all = (double *)malloc((5 * square + 2 * (size_t)d) * sizeof *all);
    if (!all) return 0;
    double *a = all;
    double *b = a + square;
    double *v = b + square;
    double *root = v + square;
    double *c = root + square;
    double *mean = c + square;
    double *other = mean + d;
    double sum = 0;
    measure__moments(x, n, d, mean, a);
    measure__moments(y, m, d, other, b);
    for (int k = 0; k < d; k++) {
        sum += (mean[k] - other[k]) * (mean[k] - other[k]);
        sum += a[k * d + k] + b[k * d + k];
    }
    measure__eigen(a, v, d);
    for (int i = 0; i < d; i++)                    /* root = v sqrt(eigenvalues) v' */
        for (int k = 0; k < d; k++) {
            double r = 0;
            for (int l = 0; l < d; l++)
                r += v[i * d + l] * sqrt(fmax(a[l * d + l], 0)) * v[k * d + l];
            root[i * d + k] = r;
        }
    for (int pass = 0; pass < 2; pass++)           /* c = root b, then a = c root */
        for (int i = 0; i < d; i++)
            for (int k = 0; k < d; k++) {
                const double *left = pass ? c : root;
                const double *right = pass ? root : b;
                double r = 0;
                for (int l = 0; l < d; l++) r += left[i * d + l] * right[l * d + k];
                (pass ? a : c)[i * d + k] = r;
            }
    measure__eigen(a, NULL, d);
    for (int k = 0; k < d; k++) sum -= 2 * sqrt(fmax(a[k * d + k], 0));
    *distance = fmax(sum, 0);
    free(all);
    return 1;
}

/* Returns the squared distance of two points: eight partial sums, for vector instructions. */
static inline float measure__apart(const float *x, const float *y, int d) {
    float sum[8] = { 0, 0, 0, 0, 0, 0, 0, 0 };
    int k = 0;
    for (; k + 8 <= d; k += 8)
        for (int i = 0; i < 8; i++) sum[i] += (x[k + i] - y[k + i]) * (x[k + i] - y[k + i]);
    for (; k < d; k++) sum[0] += (x[k] - y[k]) * (x[k] - y[k]);
    return ((sum[0] + sum[4]) + (sum[1] + sum[5])) + ((sum[2] + sum[6]) + (sum[3] + sum[7]));
}

/* Returns the fraction of the n points `from` inside a ball around one of the n points `of`, whose
   radius is the distance to its k-th nearest of the others; k <= 8. */
static inline double measure__inside(const float *from, const float *of, int n, int d, int k,
                                     float *radius) {
    int inside = 0;
    for (int i = 0; i < n; i++) {
        float near[8];
        int held = 0;
        for (int j = 0; j < n; j++) {
            if (i == j) continue;
            const float r = measure__apart(of + (ptrdiff_t)i * d, of + (ptrdiff_t)j * d, d);
            if (held == k && r >= near[k - 1]) continue;
            int at = held < k ? held++ : k - 1;
            for (; at > 0 && near[at - 1] > r; at--) near[at] = near[at - 1];
            near[at] = r;
        }
        radius[i] = near[held - 1];
    }
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++)
            if (measure__apart(from + (ptrdiff_t)i * d, of + (ptrdiff_t)j * d, d) <= radius[j]) {
                inside++;
                break;
            }
    return (double)inside / n;
}

/* Computes precision, the fraction of samples near real points, and recall, of real points near
   samples (Kynkaanniemi et al. 2019). n > k of each. Returns 0 without memory, or for invalid n or
   k. */
static inline int measure_precision(const float *samples, const float *real, int n, int d, int k,
                                    double *precision, double *recall) {
    float *radius = k > 0 && k <= 8 && n > k ? (float *)malloc((size_t)n * sizeof *radius) : NULL;
    if (!radius) return 0;
    *precision = measure__inside(samples, real, n, d, k, radius);
    *recall = measure__inside(real, samples, n, d, k, radius);
    free(radius);
    return 1;
}

/* ---- chains ---------------------------------------------------------------------------------- */

/* Quality of values[step][chain] of a statistic: effective sample size and split R-hat as in Stan
   (Gelman & others 2013, section 11.4-5; Geyer's initial monotone sequence). */
typedef struct chain_stats {
    double mean, std;                              /* of the statistic */
    double tau;                                    /* autocorrelation time: steps per independent
                                                      sample */
    double ess, error;                             /* effective sample size; standard error */
    double rhat;                                   /* 1: chains agree; above 1.01 they do not */
} chain_stats;
/* Returns the mean over all halves of chains of their autocovariance at a lag. mean, spread: mean
   and variance of the halves' means (by Welford's recursion). */
static inline double measure__autocovariance(const float *values, int steps, int chains, int lag,
                                             double *mean, double *spread) {
    const ptrdiff_t n = steps / 2;
    const ptrdiff_t next = chains;
    double all = 0;
    double squares = 0;
    *mean = 0;
    for (int half = 0; half < 2 * chains; half++) {
        const float *v = values + half / 2 + (half & 1 ? (steps - n) * next : 0);
        double m = 0;
        double sum = 0;
        for (ptrdiff_t i = 0; i < n; i++) m += (double)v[i * next] / (double)n;
        for (ptrdiff_t i = 0; i + lag < n; i++)
            sum = fma((double)v[i * next] - m, (double)v[(i + lag) * next] - m, sum);
        const double off = m - *mean;
        all += sum / (double)n;
        *mean += off / (half + 1);
        squares = fma(off, m - *mean, squares);
    }
    *spread = squares / (2 * chains - 1);
    return all / (2 * chains);
}

/* Computes the statistics: NaN in all fields if steps < 8 or chains < 1. Omits the middle step of
   an odd number. For constant values: mean and std, and NaN in the others. */
static inline chain_stats measure_chains(const float *values, int steps, int chains) {
    chain_stats s = { NAN, NAN, NAN, NAN, NAN, NAN };
    if (!values || steps < 8 || chains < 1) return s;
    const int n = steps / 2;
    double spread, unused;
    const double within = measure__autocovariance(values, steps, chains, 0, &s.mean, &spread) * n /
                          (n - 1.0);
    const double total = fma(within, (n - 1.0) / n, spread);
    if (!(total > 1e-24 * s.mean * s.mean)) {      /* constant chains: the rest is rounding */
        s.std = 0;
        return s;
    }
    s.std = sqrt(total);
    s.rhat = sqrt(total / within);
    /* rho(0) = 1, rho(1), ... in pairs, whose sums are positive and decrease: until one is
       negative */
    double sum = 0;
    double least = INFINITY;
    double even = 1;
    double odd;
    for (int lag = 0;; lag += 2) {
        const double c = measure__autocovariance(values, steps, chains, lag + 1, &s.mean, &unused);
        const double b = measure__autocovariance(values, steps, chains, lag, &s.mean, &unused);
        if (lag) even = 1 - (within - b) / total;
        odd = 1 - (within - c) / total;
        if (!(even + odd > 0) || lag + 5 >= n) break;
        least = fmin(least, even + odd);
        sum += least;
    }
    const double count = 2.0 * n * chains;
    s.tau = fmax(fma(2, sum, -1) + fmax(even, 0), 1 / log10(count));
    s.ess = count / s.tau;
    s.error = s.std / sqrt(s.ess);
    return s;
}

#endif
