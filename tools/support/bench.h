/* Shared code of the benchmarks and of check_torch.c: a clock, networks by name, and the main
   operations of a JEM. Define JEM_IMPLEMENTATION and include jem.h before. */
#ifndef BENCH_H
#define BENCH_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* All precisions: a new one is a line here. */
static const struct bench_precision { const char *name; jem_precision precision; }
bench_precisions[] = {
    { "direct", JEM_PRECISION_DIRECT }, { "exact", JEM_PRECISION_EXACT },
    { "fast", JEM_PRECISION_FAST }, { "bf16", JEM_PRECISION_BF16 },
    { NULL, JEM_PRECISION_EXACT }
};

static inline double bench_now(void) {             /* seconds */
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Returns the instruction set of JEM_PRECISION_BF16 where fp32 uses isa; JEM_ISA_BEST: there is no
   such set. */
static inline jem_isa bench_bf16(jem_isa isa) {
    if (isa == JEM_ISA_AVX512 && jem_isa_available(JEM_ISA_AMX)) return JEM_ISA_AMX;
    if (isa == JEM_ISA_AVX512 && jem_isa_available(JEM_ISA_AVX512_BF16)) return JEM_ISA_AVX512_BF16;
    return JEM_ISA_BEST;
}

/* Returns the instruction set of that name; JEM_ISA_WASM + 1 if it is unknown. */
static inline jem_isa bench_isa(const char *name) {
    int isa = JEM_ISA_BEST;
    while (isa <= JEM_ISA_WASM && strcmp(name, jem_isa_name((jem_isa)isa))) isa++;
    return (jem_isa)isa;
}

/* A network and its training data: random images, since time does not depend on them. */
typedef struct subject {
    char name[160];                                /* of all that follows */
    jem_ctx *ctx;
    jem_net *net;
    jem_optim *optim;                              /* created by the first update */
    jem_tensor *x;                                 /* n chains, a leaf */
    int n, *labels;
    float *data, *sigma;                           /* n images, and their noise */
    float *logits;                                 /* [n][classes] */
    jem_rng rng;
} subject;

static inline void subject_close(subject *s) {
    jem_optim_free(s->optim);
    jem_net_free(s->net);
    jem_ctx_free(s->ctx);
    free(s->labels);
    free(s->data);
    free(s->sigma);
    free(s->logits);
    memset(s, 0, sizeof *s);
}

/* Creates a network, wrn-DEPTH-WIDEN, or loads it, NAME.safetensors. Returns an error, or NULL. */
static inline const char *subject_open(subject *s, const char *net, int threads, jem_isa isa,
                                       jem_precision precision) {
    jem_wrn_desc shape = jem_wrn_desc_default();
    jem_ctx_desc how;
    char end;
    memset(s, 0, sizeof *s);
    memset(&how, 0, sizeof how);
    const int is_file = strstr(net, ".safetensors") != NULL;
    if (!is_file && sscanf(net, "wrn-%d-%d%c", &shape.depth, &shape.widen, &end) != 2)
        return "a network is called wrn-DEPTH-WIDEN, or NAME.safetensors";
    how.threads = threads;
    how.isa = isa;
    how.precision = precision;
    s->ctx = jem_ctx_create(&how);
    if (!s->ctx) return "no context with these instructions";
    if (is_file) s->net = jem_load(s->ctx, net);
    else s->net = jem_wrn_create(s->ctx, &shape, 1);
    if (!s->net) return jem_error(s->ctx);
    s->rng = jem_rng_seed(2);
    return NULL;
}

/* Sets n images and n chains; does nothing if there are n already. Clears the tape. */
static inline const char *subject_batch(subject *s, int n) {
    if (n == s->n) return NULL;
    const int c = s->net->channels;
    const int h = s->net->height;
    const int w = s->net->width;
    const ptrdiff_t size = (ptrdiff_t)n * c * h * w;
    free(s->data);
    free(s->labels);
    free(s->sigma);
    free(s->logits);
    s->n = 0;
    s->data = (float *)malloc((size_t)size * sizeof *s->data);
    s->labels = (int *)malloc((size_t)n * sizeof *s->labels);
    s->sigma = (float *)malloc((size_t)n * sizeof *s->sigma);
    s->logits = (float *)malloc((size_t)(n * s->net->classes) * sizeof *s->logits);
    if (!s->data || !s->labels || !s->sigma || !s->logits) return "no memory";
    jem_reset(s->ctx);
    jem_fill_uniform(s->ctx, &s->rng, s->data, size, -1, 1);
    s->x = jem_input(s->ctx, s->data, n, c, h, w);
    jem_fill_uniform(s->ctx, &s->rng, s->data, size, -1, 1);
    for (int i = 0; i < n; i++) s->labels[i] = i % s->net->classes;
    s->n = n;
    return jem_ok(s->ctx) ? NULL : jem_error(s->ctx);
}

static inline void subject_sgld(subject *s, int steps) {
    jem_sgld_desc walk = jem_sgld_desc_default();
    walk.steps = steps;
    jem_sgld(s->ctx, jem_logp, s->net, s->x, &walk, &s->rng);
}

/* Makes an update: cross-entropy of the images, Adam, and contrastive divergence between them and
   the chains, or score matching instead. Returns the loss and the norm of its gradient. The
   learning rate is small, so that any number of updates stays stable. */
static inline void subject_update(subject *s, int score, float *loss, float *norm) {
    const jem_loss_weights how = { 1, score ? 0.0f : 1.0f, 0, 0 };
    const jem_net *net = s->net;
    jem_score_desc noise;
    jem_loss_terms terms;
    memset(&noise, 0, sizeof noise);
    noise.sigma = s->sigma;
    if (!s->optim) s->optim = jem_optim_create(s->net, NULL);
    const jem_mark mark = jem_begin(s->ctx);
    jem_tensor *x = jem_input(s->ctx, s->data, s->n, net->channels, net->height, net->width);
    jem_tensor *l = jem_loss(s->net, &how, x, s->labels, NULL, score ? NULL : s->x, NULL, &terms);
    if (score) {
        jem_noise_levels(&s->rng, s->n, 0.12f, 2, s->sigma);
        l = jem_add(s->ctx, l, jem_score_matching(s->ctx, jem_logp, s->net, x, &noise, &s->rng,
                                                  NULL));
    }
    jem_zero_grad(s->net);
    jem_backward(l);
    *loss = l ? jem_item(l) : 0;
    jem_optim_step(s->optim, 1e-6f, norm);
    jem_end(s->ctx, mark);
}

#endif
