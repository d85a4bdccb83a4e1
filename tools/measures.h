/* Measures of predictions and scores, as scikit-learn defines them: how far probabilities can be
   trusted, how well a score tells two sorts of images apart. For programs of one .c file. */
#ifndef TOOLS_MEASURES_H
#define TOOLS_MEASURES_H

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- probabilities --------------------------------------------------------------------------- */

typedef struct predictions {
    const float *f;                                /* logits f[n][classes] */
    const int *labels;                             /* what is right, 0..classes-1 */
    int n, classes;
    double temperature;                            /* logits are divided by it; 0: 1 */
} predictions;

/* Bin k has the images whose highest p(y|x) is in (k/bins, (k+1)/bins]; means over them. */
typedef struct reliability_bin { int count; double confidence, accuracy; } reliability_bin;

typedef struct reliability {
    double accuracy, confidence;                   /* confidence: the highest p(y|x) */
    double nll, brier;                             /* -log p(y|x); sum_y (p(y|x) - [y right])^2 */
    double ece, mce;                               /* |confidence - accuracy| of bins: mean over
                                                      images, and largest (Guo et al. 2017) */
} reliability;

/* log sum_c exp(cold f[c]) */
static inline double measure__log_sum(const float *f, int classes, double cold) {
    double most = (double)f[0], sum = 0;
    for (int c = 1; c < classes; c++) most = fmax(most, (double)f[c]);
    for (int c = 0; c < classes; c++) sum += exp(cold * ((double)f[c] - most));
    return cold * most + log(sum);
}

/* Of n >= 1 images; fills bin[bins]. */
static inline reliability measure_reliability(const predictions *p, int bins,
                                              reliability_bin *bin) {
    reliability s = { 0, 0, 0, 0, 0, 0 };
    const double cold = p->temperature > 0 ? 1 / p->temperature : 1;
    memset(bin, 0, (size_t)bins * sizeof *bin);
    for (int i = 0; i < p->n; i++) {
        const float *f = p->f + (size_t)i * (size_t)p->classes;
        const double all = measure__log_sum(f, p->classes, cold);
        int best = 0;
        for (int c = 0; c < p->classes; c++) {
            const double q = exp(cold * (double)f[c] - all) - (c == p->labels[i]);
            s.brier += q * q / p->n;
            if (f[c] > f[best]) best = c;
        }
        const double sure = fmin(exp(cold * (double)f[best] - all), 1);
        const int right = best == p->labels[i], k = (int)ceil(sure * bins) - 1;
        reliability_bin *b = bin + (k < 0 ? 0 : k < bins ? k : bins - 1);
        b->count++, b->confidence += sure, b->accuracy += right;
        s.accuracy += (double)right / p->n, s.confidence += sure / p->n;
        s.nll += (all - cold * (double)f[p->labels[i]]) / p->n;
    }
    for (int k = 0; k < bins; k++) {
        if (!bin[k].count) continue;
        bin[k].confidence /= bin[k].count, bin[k].accuracy /= bin[k].count;
        const double gap = fabs(bin[k].confidence - bin[k].accuracy);
        s.ece += gap * bin[k].count / p->n, s.mce = fmax(s.mce, gap);
    }
    return s;
}

/* ---- two sorts of images --------------------------------------------------------------------- */

typedef struct detection {
    double auroc;                                  /* chance that a usual image has a higher score
                                                      than another; a tie counts half */
    double aupr;                                   /* average precision in looking for usual ones */
    double fpr95;                                  /* share of others let in with 95% of them */
} detection;

typedef struct measure__scored { float score; int usual; } measure__scored;
static inline int measure__compare(const void *a, const void *b) {     /* highest first */
    const float x = ((const measure__scored *)a)->score, y = ((const measure__scored *)b)->score;
    return (x < y) - (x > y);
}

/* From scores, higher for more usual images. 0: no memory, none of a sort, or a score is not
   finite. Thresholds go from the highest score down; images of one score come in together. */
static inline int measure_detection(const float *usual, int n_usual, const float *other,
                                    int n_other, detection *d) {
    const int n = n_usual + n_other;
    measure__scored *all = (measure__scored *)malloc((size_t)(n + 1) * sizeof *all);
    int ok = all && n_usual > 0 && n_other > 0;
    for (int i = 0; ok && i < n; i++) {
        all[i].usual = i < n_usual, all[i].score = i < n_usual ? usual[i] : other[i - n_usual];
        ok = isfinite(all[i].score) != 0;
    }
    if (ok) qsort(all, (size_t)n, sizeof *all, measure__compare);
    double in = 0, out = 0, area = 0, precision = 0;
    d->fpr95 = -1;
    for (int i = 0, next; ok && i < n; i = next) {
        double more = 0;
        for (next = i; next < n && !(all[next].score < all[i].score); next++)
            more += all[next].usual;
        const double more_out = next - i - more;
        area += more_out * (in + more / 2), in += more, out += more_out;
        precision += more * in / (in + out);
        if (d->fpr95 < 0 && in >= 0.95 * n_usual) d->fpr95 = out / n_other;
    }
    if (ok) d->auroc = area / ((double)n_usual * n_other), d->aupr = precision / n_usual;
    free(all);
    return ok;
}

#endif
