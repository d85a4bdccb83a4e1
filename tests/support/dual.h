/* Second derivatives in double precision, for tests: log p(x) of a SiLU convnet or MLP of the
   library, with numbers that have two infinitesimal parts. Include it after jem.h. */
#ifndef DUAL_H
#define DUAL_H

/* v + a e1 + b e2 + c e1 e2, with e1^2 = e2^2 = 0: of a function of several variables, moved along
   one direction by e1 and along another by e2, c is the second derivative along both, exactly. */
typedef struct dual { double v, a, b, c; } dual;

static inline dual dual_of(double v, double a, double b) {
    const dual r = { v, a, b, 0 };
    return r;
}
static inline dual dual_fma(dual x, dual y, dual s) {
    s.v += x.v * y.v;
    s.a += x.v * y.a + x.a * y.v;
    s.b += x.v * y.b + x.b * y.v;
    s.c += x.v * y.c + x.a * y.b + x.b * y.a + x.c * y.v;
    return s;
}
/* f(x), given f, f', f'' at x.v */
static inline dual dual_chain(dual x, double f, double f1, double f2) {
    const dual r = { f, f1 * x.a, f1 * x.b, f1 * x.c + f2 * x.a * x.b };
    return r;
}
static inline dual dual_silu(dual x) {
    const double s = 1 / (1 + exp(-x.v));
    const double s1 = s * (1 - s);
    const double s2 = s1 * (1 - 2 * s);
    return dual_chain(x, x.v * s, s + x.v * s1, 2 * s1 + x.v * s2);
}

/* A parameter moved by e2 along `move` (NULL: not at all). */
static inline dual moved(const jem_param *p, const float *move, ptrdiff_t i) {
    return dual_of((double)p->value[i], 0, move ? (double)move[i] : 0);
}

/* A convolution, or a linear layer: weights and biases, moved along dw and db. */
typedef struct dual_layer {
    const jem_param *weight, *bias;
    const float *dw, *db;
    int stride, pad;
} dual_layer;

/* Computes y[co][ho][wo] of x[ci][h][w]; returns co * ho * wo. */
static inline int dual_conv(const dual_layer *l, int *h, int *w, const dual *x, dual *y) {
    const int co = l->weight->shape[0];
    const int ci = l->weight->shape[1];
    const int k = l->weight->ndim == 4 ? l->weight->shape[2] : 1;
    const int ho = (*h + 2 * l->pad - k) / l->stride + 1;
    const int wo = (*w + 2 * l->pad - k) / l->stride + 1;
    for (int o = 0; o < co; o++)
        for (int i = 0; i < ho; i++)
            for (int j = 0; j < wo; j++) {
                dual s = moved(l->bias, l->db, o);
                for (int c = 0; c < ci; c++)
                    for (int ky = 0; ky < k; ky++)
                        for (int kx = 0; kx < k; kx++) {
                            const int r = i * l->stride + ky - l->pad;
                            const int q = j * l->stride + kx - l->pad;
                            const int tap = ((o * ci + c) * k + ky) * k + kx;
                            if (r < 0 || r >= *h || q < 0 || q >= *w) continue;
                            s = dual_fma(moved(l->weight, l->dw, tap), x[(c * *h + r) * *w + q], s);
                        }
                y[(o * ho + i) * wo + j] = s;
            }
    *h = ho;
    *w = wo;
    return co * ho * wo;
}

/* log p(x) of a SiLU convnet or MLP of the library; x moved along dx by e1, the parameters along
   moves[number of the parameter] by e2. */
static inline dual dual_logp(const jem_net *net, const double *x, const double *dx,
                             float *const *moves) {
    enum { MOST = 16 * 28 * 28 };
    static dual in[MOST], out[MOST];
    int h = net->height;
    int w = net->width;
    int size = net->channels * h * w;
    int at = 0;
    for (int i = 0; i < size; i++) in[i] = dual_of(x[i], dx[i], 0);
    for (const jem_param *p = net->params; p; p = p->next->next, at += 2) {
        const jem_param *bias = p->next;
        const int conv = p->ndim == 4;
        const int last = !bias->next;
        if (!conv) h = w = 1;
        dual_layer l = { p, bias, NULL, NULL, 1, conv };
        if (conv && at) l.stride = 2;
        if (moves) {
            l.dw = moves[at];
            l.db = moves[at + 1];
        }
        size = dual_conv(&l, &h, &w, in, out);
        for (int i = 0; i < size; i++) in[i] = last ? out[i] : dual_silu(out[i]);
    }
    double sum = 0;
    double most = -1e300;
    for (int i = 0; i < size; i++) if (in[i].v > most) most = in[i].v;
    for (int i = 0; i < size; i++) sum += exp(in[i].v - most);
    dual y = dual_of(most + log(sum), 0, 0);
    for (int i = 0; i < size; i++) {               /* softmax p: grad p, Hessian diag p - p p' */
        const double p = exp(in[i].v - y.v);
        y.a += p * in[i].a;
        y.b += p * in[i].b;
        y.c += p * (in[i].c + in[i].a * in[i].b);
    }
    y.c -= y.a * y.b;
    const double k = (double)net->scale;
    return dual_chain(y, k * y.v, k, 0);
}

#endif
