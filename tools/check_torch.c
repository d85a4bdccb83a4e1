/* jem.h's side of `make check-torch`; tools/check_torch.py is the other side, which calls it.

       check_torch make NET NORM SEED UPDATES OUT      a network of random weights and statistics,
                                                       trained for UPDATES updates on the digits
       check_torch ask MODEL IN OUT                    logits, log p(x), d log p(x)/dx of IN's "x"
       check_torch walk START UPDATES RATE OUT         a training run without noise, and its data
       check_torch draw IN OUT.png                     two runs, and their difference

   NET is wrn-DEPTH-WIDEN, for images of 3 x 32 x 32: the digits are framed, and converted to
   colour. */
#if !defined(_POSIX_C_SOURCE)
#define _POSIX_C_SOURCE 200112L                    /* clock_gettime, for bench.h */
#endif
#define JEM_IMPLEMENTATION
#include "jem.h"
#include "tools/support/bench.h"
#include "tools/support/chart.h"
#include "tools/support/data.h"

enum { SIDE = 32, FRAME = 2, IMAGE = 3 * SIDE * SIDE };
enum { BATCH = 32, CHAIN = 5 };                    /* of `walk` */

static int complain(const char *what) {
    fprintf(stderr, "check_torch: %s\n", what);
    return 0;
}
static void *need(size_t count, size_t size) {
    void *p = calloc(count, size);
    if (!p) {
        fprintf(stderr, "check_torch: no memory\n");
        exit(1);
    }
    return p;
}

/* Copies digit k % n to x[3][32][32] in [-1,1]. */
static void show_digit(const data_set *d, int k, float *x) {
    const unsigned char *from = d->pixels + (ptrdiff_t)(k % d->n) * d->h * d->w;
    for (int i = 0; i < IMAGE; i++) {
        const int y = i / SIDE % SIDE - FRAME;
        const int c = i % SIDE - FRAME;
        const int in = y >= 0 && y < d->h && c >= 0 && c < d->w;
        x[i] = in ? (float)from[y * d->w + c] / 127.5f - 1 : -1;
    }
}
static int digits_open(data_set *d) {
    char error[512];
    return data_load(d, "digits", "train", NULL, error, sizeof error) || complain(error);
}

/* ---- make ------------------------------------------------------------------------------------ */

/* Randomises norms, which begin as the identity: that would hide a wrong one. */
static void stir_norms(jem_net *net, jem_rng *rng) {
    for (jem_param *p = net->params; p; p = p->next) {
        const char *leaf = strrchr(p->name, '.') + 1;
        if (!strstr(p->name, ".bn")) continue;
        const int around_one = !strcmp(leaf, "weight") || !strcmp(leaf, "scale") ||
                               !strcmp(leaf, "running_var");
        const float spread = strcmp(leaf, "initialized") ? .1f : 0;
        for (ptrdiff_t i = 0; i < p->size; i++)
            p->value[i] = (around_one || spread == 0 ? 1 : 0) +
                          spread * (2 * jem_rng_uniform(rng) - 1);
        jem_param_changed(p);
    }
}

static int make(jem_ctx *ctx, const char *name, const char *norm, int seed, int updates,
                const char *out) {
    static const char *const norms[] = { "none", "batch", "instance", "layer", "act", NULL };
    jem_wrn_desc shape = jem_wrn_desc_default();
    data_set d;
    int which = 0;
    while (norms[which] && strcmp(norms[which], norm)) which++;
    if (!norms[which] || sscanf(name, "wrn-%d-%d", &shape.depth, &shape.widen) != 2)
        return complain("unknown network or norm");
    shape.norm = (jem_norm)which;
    if (!digits_open(&d)) return 0;
    jem_net *net = jem_wrn_create(ctx, &shape, (uint64_t)seed);
    jem_rng rng = jem_rng_seed((uint64_t)seed + 1);
    if (net) stir_norms(net, &rng);
    jem_train_desc how = jem_train_desc_default();
    const int n = 16;
    how.lr = 2e-4f;
    how.sgld.steps = 1;
    how.negatives = n;
    how.buffer_size = 100;
    how.weights.cd = .1f;
    how.optim.clip = 10;
    jem_trainer *tr = updates > 0 ? jem_trainer_create(net, &how) : NULL;
    float *x = (float *)need((size_t)n * IMAGE, sizeof *x);
    for (int i = 0; i < updates && jem_ok(ctx); i++) {
        int y[16];
        for (int k = 0; k < n; k++) {
            const int pick = jem_rng_below(&rng, d.n);
            show_digit(&d, pick, x + k * IMAGE);
            y[k] = d.labels[pick];
        }
        jem_train_step(tr, x, y, n);
    }
    if (net) jem_save(net, out);
    free(x);
    jem_trainer_free(tr);
    jem_net_free(net);
    data_free(&d);
    return jem_ok(ctx);
}

/* ---- ask ------------------------------------------------------------------------------------- */

static int ask(jem_ctx *ctx, const char *model, const char *in, const char *out) {
    jem_net *net = jem_load(ctx, model);
    jem_archive *a = jem_archive_read(ctx, in);
    jem_archive *b = jem_archive_create(ctx);
    const jem_entry *x = a ? jem_archive_find(a, "x") : NULL;
    int ok = net && b && x && x->dtype == JEM_DTYPE_F32 && x->ndim == 4 &&
             x->shape[1] == net->channels && x->shape[2] == net->height &&
             x->shape[3] == net->width;
    if (ok) {
        const int n = (int)x->shape[0];
        const int64_t table[2] = { n, net->classes };
        float *logits = (float *)need((size_t)(n * net->classes), sizeof *logits);
        float *logp = (float *)need((size_t)n, sizeof *logp);
        float *gradient = (float *)need(x->bytes, 1);
        const jem_mark mark = jem_begin(ctx);
        jem_tensor *leaf = jem_input(ctx, (const float *)x->data, n, net->channels, net->height,
                                     net->width);
        jem_tensor *y = jem_forward(net, leaf, 0);
        jem_tensor *p = jem_logsumexp(ctx, y);
        jem_read(y, logits);
        jem_read(p, logp);
        jem_grad(p, leaf);
        jem_read_grad(leaf, gradient);
        jem_end(ctx, mark);
        jem_archive_add(b, "logits", JEM_DTYPE_F32, 2, table, logits);
        jem_archive_add(b, "logp", JEM_DTYPE_F32, 1, table, logp);
        jem_archive_add(b, "gradient", JEM_DTYPE_F32, 4, x->shape, gradient);
        ok = jem_archive_write(b, out) == JEM_OK;
        free(logits);
        free(logp);
        free(gradient);
    } else if (jem_ok(ctx)) complain("there is no x of the network's shape");
    jem_archive_free(b);
    jem_archive_free(a);
    jem_net_free(net);
    return ok;
}

/* ---- walk ------------------------------------------------------------------------------------ */

/* Makes an update without noise from BATCH images x, at a learning rate: moves the chains, and
   notes the terms of the loss: total, CE, f(x+), f(x-). */
static void walk_update(jem_net *net, jem_optim *optim, const float *x, const int *labels,
                        float *chains, float rate, float terms_of[4]) {
    const jem_loss_weights how = { 1, 1, 0, 0 };
    jem_ctx *ctx = net->ctx;
    jem_sgld_desc sgld = jem_sgld_desc_default();
    jem_loss_terms terms;
    sgld.steps = CHAIN;
    sgld.noise_std = 0;
    const jem_mark mark = jem_begin(ctx);
    jem_tensor *sample = jem_input(ctx, chains, BATCH, 3, SIDE, SIDE);
    jem_sgld(ctx, jem_logp, net, sample, &sgld, NULL);
    jem_read(sample, chains);
    jem_tensor *data = jem_input(ctx, x, BATCH, 3, SIDE, SIDE);
    jem_tensor *loss = jem_loss(net, &how, data, labels, NULL, sample, NULL, &terms);
    jem_keep(terms.f_data);
    jem_keep(terms.f_sample);
    jem_zero_grad(net);
    jem_backward(loss);
    terms_of[0] = jem_item(loss);
    terms_of[1] = jem_item(terms.ce);
    terms_of[2] = jem_item(terms.f_data);
    terms_of[3] = jem_item(terms.f_sample);
    jem_optim_step(optim, rate, NULL);
    jem_end(ctx, mark);
}

/* Trains a JEM without noise: the same chains continue in every update. "x" and "labels" are all
   batches in a row, "chains" the start, "losses" the terms of the loss of every update. */
static int walk(jem_ctx *ctx, const char *start, int updates, float rate, const char *out) {
    data_set d;
    if (!digits_open(&d)) return 0;
    jem_net *net = jem_load(ctx, start);
    jem_optim *optim = net ? jem_optim_create(net, NULL) : NULL;
    const size_t n = (size_t)updates * BATCH;
    float *x = (float *)need(n * IMAGE, sizeof *x);
    float *losses = (float *)need((size_t)updates, 4 * sizeof *losses);
    float *first = (float *)need(BATCH * IMAGE, sizeof *first);
    float *chains = (float *)need(BATCH * IMAGE, sizeof *chains);
    int *labels = (int *)need(n, sizeof *labels);
    jem_rng rng = jem_rng_seed(5);
    jem_fill_uniform(ctx, &rng, first, BATCH * IMAGE, -1, 1);
    memcpy(chains, first, BATCH * IMAGE * sizeof *chains);
    for (size_t k = 0; k < n; k++) {
        show_digit(&d, (int)k, x + k * IMAGE);
        labels[k] = d.labels[k % (size_t)d.n];
    }
    for (int i = 0; i < updates && jem_ok(ctx); i++)
        walk_update(net, optim, x + (ptrdiff_t)i * BATCH * IMAGE, labels + i * BATCH, chains, rate,
                    losses + 4 * i);
    const int64_t images[4] = { (int64_t)n, 3, SIDE, SIDE };
    const int64_t starts[4] = { BATCH, 3, SIDE, SIDE };
    const int64_t table[2] = { updates, 4 };
    jem_archive *a = jem_archive_create(ctx);
    if (a) {
        jem_archive_add(a, "x", JEM_DTYPE_F32, 4, images, x);
        jem_archive_add(a, "labels", JEM_DTYPE_I32, 1, images, labels);
        jem_archive_add(a, "chains", JEM_DTYPE_F32, 4, starts, first);
        jem_archive_add(a, "losses", JEM_DTYPE_F32, 2, table, losses);
        jem_archive_write(a, out);
    }
    jem_archive_free(a);
    free(x);
    free(losses);
    free(first);
    free(chains);
    free(labels);
    jem_optim_free(optim);
    jem_net_free(net);
    data_free(&d);
    return jem_ok(ctx);
}

/* ---- draw ------------------------------------------------------------------------------------ */

/* Finds "ours", "torch", "torch64", the total losses of as many updates; returns their number, or
   -1. */
static int find_runs(const jem_archive *a, const jem_entry *e[3]) {
    static const char *const names[3] = { "ours", "torch", "torch64" };
    int n = -1;
    for (int k = 0; a && k < 3; k++) {
        e[k] = jem_archive_find(a, names[k]);
        if (!e[k] || e[k]->dtype != JEM_DTYPE_F32 || e[k]->ndim != 1) return -1;
        if (k && e[k]->shape[0] != e[0]->shape[0]) return -1;
        n = (int)e[k]->shape[0];
    }
    return n;
}

/* Writes log10 |a[i] - b[i]|. */
static void log_difference(const float *a, const float *b, int n, float *to) {
    for (int i = 0; i < n; i++) to[i] = log10f(fmaxf(fabsf(a[i] - b[i]), 1e-8f));
}

static int draw(jem_ctx *ctx, const char *in, const char *out) {
    jem_archive *a = jem_archive_read(ctx, in);
    const jem_entry *e[3];
    const int n = find_runs(a, e);
    if (n < 0) {
        jem_archive_free(a);
        return complain("no runs to draw");
    }
    const float *ours = (const float *)e[0]->data;
    const float *torch = (const float *)e[1]->data;
    const float *exact = (const float *)e[2]->data;
    float *memory = (float *)need((size_t)(5 * n), sizeof *memory);
    float *x = memory;
    float *here = x + n;
    float *between = x + 2 * n;
    float *there = x + 3 * n;
    float *line = x + 4 * n;
    for (int i = 0; i < n; i++) {
        x[i] = (float)i;
        line[i] = -3;
    }
    log_difference(ours, exact, n, here);
    log_difference(torch, exact, n, there);
    log_difference(ours, torch, n, between);
    const curve losses[2] = {              /* a thick line shows under a thin one */
        { "PyTorch", 0xf0b27a, x, torch, n, 7 }, { "jem.h", 0x1f5fa8, x, ours, n, 1.8f }
    };
    const curve apart[4] = {
        { "allowed, first 50", 0x2e8b57, x, line, n < 50 ? n : 50, 1.8f },
        { "PyTorch - its float64", 0xd2691e, x, there, n, 1.8f },
        { "jem.h - float64", 0x8ab6e0, x, here, n, 1.8f },
        { "jem.h - PyTorch", 0x1f5fa8, x, between, n, 1.8f }
    };
    const panel panels[2] = {
        { "loss (CE + CD)", NULL, 90, 60, 1060, 330, 0, 0, losses, 2 },
        { "log10 of the difference", "update", 90, 410, 1060, 600, -8.2f, 0, apart, 4 }
    };
    plot p;
    int ok = plot_create(&p, 1100, 660, 0, 1100, 660, 0);
    if (ok) {
        draw_panel(&p, panels);
        draw_panel(&p, panels + 1);
        ok = plot_write(&p, out);
        plot_free(&p);
    }
    free(memory);
    jem_archive_free(a);
    return ok;
}

int main(int argc, char **argv) {
    jem_ctx_desc how;
    memset(&how, 0, sizeof how);
    how.precision = JEM_PRECISION_EXACT;
    jem_ctx *ctx = jem_ctx_create(&how);
    const char *what = argc > 1 ? argv[1] : "";
    int ok = 0;
    if (!ctx) return !complain("no memory");
    if (argc == 7 && !strcmp(what, "make"))
        ok = make(ctx, argv[2], argv[3], atoi(argv[4]), atoi(argv[5]), argv[6]);
    else if (argc == 5 && !strcmp(what, "ask")) ok = ask(ctx, argv[2], argv[3], argv[4]);
    else if (argc == 6 && !strcmp(what, "walk") && atoi(argv[3]) > 0)
        ok = walk(ctx, argv[2], atoi(argv[3]), (float)atof(argv[4]), argv[5]);
    else if (argc == 4 && !strcmp(what, "draw")) ok = draw(ctx, argv[2], argv[3]);
    else {
        fprintf(stderr, "make check-torch runs this; see tools/check_torch.c\n");
        jem_ctx_free(ctx);
        return 2;
    }
    if (!jem_ok(ctx)) ok = complain(jem_error(ctx));
    jem_ctx_free(ctx);
    return !ok;
}
