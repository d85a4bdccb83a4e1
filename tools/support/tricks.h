/* Tricks of training energy-based models that only use jem.h's API: weights of bounded spectral
   norm, chains that start as Gaussians of the classes. For programs of one file. */
#ifndef TOOLS_TRICKS_H
#define TOOLS_TRICKS_H

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "jem.h"

/* Returns the largest singular value of a weight (O, ..) as a matrix of O rows, by power iteration
   from a random vector: v <- W'W v. v: twice the length of a row. */
static inline double spectral_norm(const jem_param *p, double *v) {
    const ptrdiff_t rows = p->shape[0];
    const ptrdiff_t columns = p->size / rows;
    double *next = v + columns;
    double norm = 0;
    double last = -1;
    double length = 0;
    jem_rng rng = jem_rng_seed(1);
    for (ptrdiff_t k = 0; k < columns; k++) {
        v[k] = (double)jem_rng_normal(&rng);
        length = fma(v[k], v[k], length);
    }
    for (int step = 0; step < 500 && length > 0 && !(fabs(norm - last) <= 1e-7 * norm); step++) {
        const double scale = 1 / sqrt(length);
        last = norm;
        norm = length = 0;
        for (ptrdiff_t k = 0; k < columns; k++) {
            v[k] *= scale;
            next[k] = 0;
        }
        for (ptrdiff_t i = 0; i < rows; i++) {
            const float *w = p->value + i * columns;
            double dot = 0;
            for (ptrdiff_t k = 0; k < columns; k++) dot = fma(v[k], (double)w[k], dot);
            for (ptrdiff_t k = 0; k < columns; k++) next[k] = fma(dot, (double)w[k], next[k]);
            norm = fma(dot, dot, norm);
        }
        norm = sqrt(norm);
        for (ptrdiff_t k = 0; k < columns; k++) {
            v[k] = next[k];
            length = fma(v[k], v[k], length);
        }
    }
    return norm;
}

/* Scales every weight matrix whose spectral norm is above `most` down to it: after each update, to
   bound the gradient of log p(x) (Miyato & others 2018; Du & Mordatch 2019; after updates, as here:
   Gouk & others 2021). Biases and norms do not change. Returns 0 without memory. */
static inline int spectral_limit(jem_net *net, float most) {
    ptrdiff_t longest = 0;
    for (const jem_param *p = net->params; p; p = p->next)
        if (p->ndim > 1 && p->size / p->shape[0] > longest) longest = p->size / p->shape[0];
    double *v = (double *)malloc((size_t)(2 * longest + 1) * sizeof *v);
    for (jem_param *p = net->params; v && p; p = p->next) {
        if (!p->grad || p->ndim < 2) continue;
        const double norm = spectral_norm(p, v);
        if (!(norm > (double)most)) continue;
        const float factor = (float)((double)most / norm);
        for (ptrdiff_t k = 0; k < p->size; k++) p->value[k] *= factor;
        jem_param_changed(p);
    }
    free(v);
    return v != NULL;
}

/* Samples N(mean, covariance) of the m images x[n][size] with this label; label < 0: that of a
   random image. The sample is their mean plus the sum of N(0,1) (image - mean) / sqrt(m - 1), so
   no matrix is needed. Such chains start close to the data (Yang & Ji 2021: 'informative'). */
static inline void class_gaussian(const float *x, const int *labels, int n, ptrdiff_t size,
                                  int label, jem_rng *rng, float *sample) {
    if (label < 0) label = labels[jem_rng_below(rng, n)];
    const jem_rng first = *rng;
    float sum = 0;
    float m = 0;
    for (int i = 0; i < n; i++) {
        if (labels[i] != label) continue;
        sum += jem_rng_normal(rng);
        m++;
    }
    memset(sample, 0, (size_t)size * sizeof *sample);
    *rng = first;                                  /* the same numbers again, minus their mean */
    for (int i = 0; i < n; i++) {
        if (labels[i] != label) continue;
        const float w = 1 / m + (jem_rng_normal(rng) - sum / m) / sqrtf(m > 1 ? m - 1 : 1);
        for (ptrdiff_t k = 0; k < size; k++) sample[k] = fmaf(w, x[i * size + k], sample[k]);
    }
}

#endif
