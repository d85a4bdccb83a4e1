/* Elementwise ops of one input without a number of their own. Each row is checked by test_ops (the
   gradient, NULL, kept errors) and by test_details (the values). Include it after common.h. */
#ifndef ELEMENTWISE_H
#define ELEMENTWISE_H

#include <math.h>

static inline double true_exp(double x) { return exp(fmin(fmax(x, -87), 88)); }
static inline double true_sigmoid(double x) { return 1 / (1 + exp(-x)); }
static inline double true_softplus(double x) { return x > 0 ? x + log1p(exp(-x)) : log1p(exp(x)); }
static inline double true_silu(double x) { return x < -30 ? 0 : x * true_sigmoid(x); }
static inline double true_square(double x) { return x * x; }
static inline double true_relu(double x) { return fmax(x, 0); }

/* f: the function in double precision; absolute: permitted error beside a relative one of 3e-7,
   where e^x leaves its range, or near 0 for tanh, a difference. The gradient is checked in [lo,hi],
   at least `gap` from 0, by differences of `step`. */
static const struct elementwise {
    const char *name;
    jem_tensor *(*op)(jem_ctx *ctx, jem_tensor *x);
    double (*f)(double x);
    double absolute;
    float lo, hi, gap, step;
} elementwise[] = {
    { "square", jem_square, true_square, 1.2e-38, -2, 2, 0, 0.1f },
    { "exp", jem_exp, true_exp, 0, -2, 2, 0, 0.03f },
    { "log", jem_log, log, 0, 0.5f, 3, 0, 0.02f },
    { "tanh", jem_tanh, tanh, 2e-7, -2, 2, 0, 0.03f },
    { "sigmoid", jem_sigmoid, true_sigmoid, 6.1e-39, -3, 3, 0, 0.05f },
    { "softplus", jem_softplus, true_softplus, 1.7e-38, -3, 3, 0, 0.05f },
    { "relu", jem_relu, true_relu, 0, -1, 1, 0.1f, 0.04f },
    { "silu", jem_silu, true_silu, 6.1e-37, -3, 3, 0, 0.05f }
};
enum { ELEMENTWISE = sizeof elementwise / sizeof elementwise[0] };

#endif
