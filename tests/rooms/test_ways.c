/* Ways to learn a density that are not in test_score.c: the full loss of contrastive divergence
   compared with double precision, the sharpness-aware step computed by hand, the tricks of
   tricks.h, and the losses of examples/losses.h on known densities. */
#define JEM_IMPLEMENTATION
#include "jem.h"
#include "tests/support/test.h"
#include "tests/support/common.h"
#include "tests/support/dual.h"

#include "examples/losses.h"
#include "tools/support/tricks.h"

enum { MOST_PARAMS = 8, DIRECTIONS = 3, MOST_DIMS = 36, MOST_IMAGES = 37 };

/* Random directions of all parameters; to be given back. */
static void directions(jem_net *net, jem_rng *rng, float *moves[DIRECTIONS][MOST_PARAMS]) {
    for (int k = 0; k < DIRECTIONS; k++) {
        int at = 0;
        for (const jem_param *p = net->params; p; p = p->next)
            moves[k][at++] = random_floats(rng, p->size, -1, 1);
        while (at < MOST_PARAMS) moves[k][at++] = NULL;
    }
}
static void directions_free(float *moves[DIRECTIONS][MOST_PARAMS]) {
    for (int k = 0; k < DIRECTIONS; k++)
        for (int at = 0; at < MOST_PARAMS; at++) free(moves[k][at]);
}
/* The net's gradient along a direction. */
static double along(const jem_net *net, float *const *move) {
    double sum = 0;
    for (const jem_param *p = net->params; p; p = p->next, move++)
        for (ptrdiff_t i = 0; i < p->size; i++) sum += (double)(*move)[i] * (double)p->grad[i];
    return sum;
}

/* df/dx of one image in double precision. */
static void exact_slope(const jem_net *net, const double *x, double *g) {
    const int d = net->channels * net->height * net->width;
    double one[MOST_DIMS] = { 0 };
    for (int k = 0; k < d; k++) {
        one[k] = 1;
        g[k] = dual_logp(net, x, one, NULL).a;
        one[k] = 0;
    }
}

/* Adds the slopes of n images along v, in double precision, to *value, their magnitudes to *scale,
   and the derivatives along each direction of the parameters to want. */
static void exact_slopes(const jem_net *net, const float *x, const float *v, int n,
                         float *moves[DIRECTIONS][MOST_PARAMS], double *value, double *scale,
                         double *want) {
    const int d = net->channels * net->height * net->width;
    for (int i = 0; i < n; i++) {
        double here[MOST_DIMS], there[MOST_DIMS];
        for (int k = 0; k < d; k++) {
            here[k] = (double)x[i * d + k];
            there[k] = (double)v[i * d + k];
        }
        const double one = dual_logp(net, here, there, NULL).a;
        *value += one;
        *scale += fabs(one);
        for (int k = 0; k < DIRECTIONS; k++) want[k] += dual_logp(net, here, there, moves[k]).c;
    }
}

static void test_slope(jem_ctx *ctx) {
    printf("slopes along directions, and their gradients, in double precision\n");
    for (int how = 0; how < 4; how++) {
        static const int images[4] = { 20, 3, 16, 37 };
        jem_net *net = smooth_net(ctx, how & 1);
        const int d = net->channels * net->height * net->width;
        const int n = images[how];
        net->scale = how & 2 ? 10 : 1;
        jem_rng rng = jem_rng_seed(5 + (uint64_t)how);
        float *x = random_floats(&rng, n * d, -1, 1);
        float *v = random_floats(&rng, n * d, -1, 1);
        float *moves[DIRECTIONS][MOST_PARAMS];
        directions(net, &rng, moves);
        if (how == 2) memset(v, 0, (size_t)d * sizeof *v);             /* one that goes nowhere */
        jem_tensor *at = jem_input(ctx, x, n, net->channels, net->height, net->width);
        jem_tensor *to = jem_input(ctx, v, n, net->channels, net->height, net->width);
        jem_tensor *slope = jem_slope_along(ctx, jem_logp, net, at, to, 0);
        jem_zero_grad(net);
        CHECK(jem_backward(slope) == JEM_OK, "%s", jem_error(ctx));
        double value = 0;
        double want[DIRECTIONS] = { 0 };
        double error = 0;
        double length = 0;
        double scale = 0;
        exact_slopes(net, x, v, n, moves, &value, &scale, want);
        CHECK_CLOSE(jem_item(slope), value, 1e-3 * scale, "value, case %d", how);
        for (int k = 0; k < DIRECTIONS; k++) {
            const double off = along(net, moves[k]) - want[k];
            error += off * off;
            length += want[k] * want[k];
        }
        CHECK(sqrt(error / length) < 1e-3, "gradient, case %d: off by %g", how,
              sqrt(error / length));
        CHECK(!jem_slope_along(ctx, jem_logp, net, at, jem_exp(ctx, at), 0) &&
              says(ctx, "is computed (by exp), not a leaf"),
              "a direction that is no leaf");
        CHECK(!jem_slope_along(ctx, jem_logp, net, at, to, NAN) && says(ctx, "slope"), "h = NaN");
        directions_free(moves);
        free(x);
        free(v);
        jem_reset(ctx);
        jem_net_free(net);
    }
    jem_tensor *x = jem_zeros(ctx, 1, 3, 1, 2);    /* as many numbers, but others */
    CHECK(!jem_slope_along(ctx, jem_logp, NULL, x, jem_zeros(ctx, 1, 1, 2, 3), 0) &&
          says(ctx, "one shape"), "x and v of different shapes");
    jem_reset(ctx);
}

/* ---- the full loss --------------------------------------------------------------------------- */

typedef struct trail { float x[2][MOST_IMAGES * MOST_DIMS]; int step; } trail;

static int keep_trail(void *user, int step, jem_tensor *x) {
    trail *t = (trail *)user;
    t->step = step;
    jem_read(x, t->x[step & 1]);
    return 0;
}

/* mean E - entropy H at n points x, with the network held. */
static double exact_kl(const jem_net *net, const double *x, int n, int d, double entropy) {
    const double zero[MOST_DIMS] = { 0 };
    double sum = 0;
    for (int i = 0; i < n; i++) {
        double least = INFINITY;
        for (int j = 0; j < n; j++) {
            double square = 0;
            for (int k = 0; k < d; k++) square += pow(x[i * d + k] - x[j * d + k], 2);
            if (j != i && square < least) least = square;
        }
        sum -= dual_logp(net, x + i * d, zero, NULL).v + entropy * d * 0.5 * log(least);
    }
    return sum / n;
}

/* A walk of n images of d numbers: case number `how`, and the images around its last step. */
typedef struct kl_case {
    const jem_net *net;
    int how, n, d;
    double entropy, step_size;
    const float *before, *after;
} kl_case;

/* Returns the slope of the loss as a function of the last step's parameters alone, moved along a
   direction: by analytic second derivatives through the step and a small difference in x. Sets its
   value. Checks that a limit holds some of the numbers, in the cases that have one. */
static double kl_slope(const kl_case *c, float *const *move, double *value) {
    enum { MOST = MOST_IMAGES * MOST_DIMS };
    static double up[MOST], down[MOST], at[MOST];
    const int n = c->n;
    const int d = c->d;
    const double h = 1e-5;
    int held = 0;
    for (int i = 0; i < n; i++) {
        double here[MOST_DIMS];
        double one[MOST_DIMS] = { 0 };
        double g[MOST_DIMS];
        for (int j = 0; j < d; j++) here[j] = (double)c->before[i * d + j];
        exact_slope(c->net, here, g);
        for (int j = 0; j < d; j++) {
            const int to = i * d + j;
            const int limit = (c->how == 5 && fabs(g[j]) >= 0.05) ||
                (c->how == 4 && (c->after[to] <= -0.9f || c->after[to] >= 0.8f));
            double moves_by = 0;
            one[j] = 1;
            if (!limit) moves_by = c->step_size * dual_logp(c->net, here, one, move).c;
            one[j] = 0;
            held += limit;
            at[to] = (double)c->after[to];
            up[to] = at[to] + h * moves_by;
            down[to] = at[to] - h * moves_by;
        }
    }
    if (c->how > 3) CHECK(held > n / 2 && held < n * d / 2, "%d of %d are held", held, n * d);
    *value = exact_kl(c->net, at, n, d, c->entropy);
    return (exact_kl(c->net, up, n, d, c->entropy) - exact_kl(c->net, down, n, d, c->entropy)) /
           (2 * h);
}

static void check_kl_refused(jem_net *net, jem_tensor *leaf, jem_sgld_desc walk, jem_rng *rng) {
    jem_ctx *ctx = net->ctx;
    walk.steps = 0;
    CHECK(!jem_kl_walk(ctx, jem_logp, net, leaf, &walk, 1, rng) && says(ctx, "steps"), "0");
    walk.steps = 1;
    CHECK(!jem_kl_walk(ctx, jem_logp, net, leaf, &walk, NAN, rng) && says(ctx, "entropy"), "NaN");
    walk.temperature_from = walk.temperature_to = 2;
    CHECK(!jem_kl_walk(ctx, jem_logp, net, leaf, &walk, 1, rng) &&
              says(ctx, "temperature_from = 2"), "T");
}

static jem_sgld_desc kl_desc(int how) {
    jem_sgld_desc walk = jem_sgld_desc_langevin(0.05f, how == 3 ? 1 : 4);
    if (how == 4) {
        walk.clamp_lo = -0.9f;
        walk.clamp_hi = 0.8f;
    }
    if (how == 5) walk.clamp_grad = 0.05f;
    return walk;
}

static void check_kl(jem_ctx *ctx, int how) {
    static const int images[6] = { 20, 5, 37, 16, 20, 20 };
    static const double entropies[6] = { 1, 1, 0, 0.3, 1, 1 };
    jem_net *net = smooth_net(ctx, how & 1);
    const int d = net->channels * net->height * net->width;
    const int n = images[how];
    const double entropy = entropies[how];
    net->scale = 10;
    jem_rng rng = jem_rng_seed(5 + (uint64_t)how);
    float *x = random_floats(&rng, n * d, -1, 1);
    float *moves[DIRECTIONS][MOST_PARAMS];
    directions(net, &rng, moves);
    jem_rng same = rng;
    float *end = floats(n * d);
    trail t;
    jem_sgld_desc walk = kl_desc(how);
    jem_tensor *other = jem_input(ctx, x, n, net->channels, net->height, net->width);
    jem_sgld(ctx, jem_logp, net, other, &walk, &same);
    jem_read(other, end);
    walk.watch = keep_trail;
    walk.watch_user = &t;
    memcpy(t.x[(walk.steps - 2) & 1], x, (size_t)(n * d) * sizeof *x);
    jem_tensor *leaf = jem_input(ctx, x, n, net->channels, net->height, net->width);
    jem_tensor *kl = jem_kl_walk(ctx, jem_logp, net, leaf, &walk, (float)entropy, &rng);
    jem_zero_grad(net);
    CHECK(jem_backward(kl) == JEM_OK, "%s", jem_error(ctx));
    const kl_case c = { net, how, n, d, entropy, (double)walk.step_size, t.x[(t.step + 1) & 1],
                        t.x[t.step & 1] };
    CHECK(t.step == walk.steps - 1 && same_bits(c.after, end, n * d) && rng.counter ==
          same.counter, "it walks as jem_sgld does");
    double error = 0;
    double length = 0;
    double value = 0;
    for (int k = 0; k < DIRECTIONS; k++) {
        const double want = kl_slope(&c, moves[k], &value);
        const double off = along(net, moves[k]) - want;
        error += off * off;
        length += want * want;
    }
    CHECK(sqrt(error / length) < 2e-3, "gradient, case %d: off by %g", how, sqrt(error / length));
    CHECK_CLOSE(jem_item(kl), value, 1e-4 * fabs(value) + 1e-3, "value, case %d", how);
    printf("  case %d: L_KL %.4f (%.4f), gradient off by %.1e\n", how, (double)jem_item(kl), value,
           sqrt(error / length));
    check_kl_refused(net, leaf, walk, &rng);
    directions_free(moves);
    free(x);
    free(end);
    jem_reset(ctx);
    jem_net_free(net);
}

static void test_kl(jem_ctx *ctx) {
    printf("L_KL and its gradient through the last step\n");
    for (int how = 0; how < 6; how++) check_kl(ctx, how);
}

/* ---- options of training --------------------------------------------------------------------- */

enum { SIDE = 8, SMALL = SIDE * SIDE, IMAGES = 21, CLASSES = 3, SLOTS = 40, UPDATES = 8 };
typedef enum option { PLAIN, FULL, SHARP, BOTH, BY_CLASS, MOVED, OPTIONS } option;

static void mirror(void *user, jem_rng *rng, int visits, int label, float *x) {
    int *calls = (int *)user;
    calls[visits == 0]++;
    calls[2] += label >= 0;
    if (!visits) jem_fill_normal(NULL, rng, x, SMALL, 0, 0.5f);
    for (int k = 0; visits && jem_rng_uniform(rng) < 0.5f && k < SMALL / 2; k++) {
        const float kept = x[k];
        x[k] = x[SMALL - 1 - k];
        x[SMALL - 1 - k] = kept;
    }
}

static jem_train_desc training_of(option o, int *calls) {
    jem_train_desc d = jem_train_desc_default();
    d.lr = 1e-3f;
    d.sgld = jem_sgld_desc_langevin(0.01f, 3);
    d.negatives = 18;
    d.buffer_size = SLOTS;
    d.reinit = 0.25f;
    if (o == FULL || o == BOTH || o == BY_CLASS) d.w_kl = 0.3f;
    if (o == SHARP || o == BOTH) d.sam = 0.2f;
    if (o == BY_CLASS) d.class_conditional = 1;
    if (o == MOVED) {
        d.chain = mirror;
        d.chain_user = calls;
    }
    return d;
}

static jem_net *digit_net(jem_ctx *ctx) {
    jem_convnet_desc s = jem_convnet_desc_default();
    s.height = s.width = SIDE;
    s.classes = CLASSES;
    s.layers = 2;
    s.widths[0] = 5;
    s.widths[1] = 6;
    return jem_convnet_create(ctx, &s, 3);
}

static void images_of(int step, float *x, int *labels) {
    jem_rng rng = jem_rng_seed(100 + (uint64_t)step);
    for (int i = 0; i < IMAGES; i++) {
        labels[i] = jem_rng_below(&rng, CLASSES);
        for (int k = 0; k < SMALL; k++)
            x[i * SMALL + k] = k % CLASSES == labels[i] ? 1.f : -1 + 0.1f * jem_rng_uniform(&rng);
    }
}

/* All bits after some updates, with a checkpoint after `stop` of them (0: none). */
static uint64_t train_bits(jem_ctx *ctx, option o, int stop, size_t *allocations) {
    int calls[3] = { 0 };
    int labels[IMAGES];
    const jem_train_desc d = training_of(o, calls);
    jem_net *net = digit_net(ctx);
    jem_trainer *tr = jem_trainer_create(net, &d);
    float x[IMAGES * SMALL];
    for (int i = 0; i < UPDATES; i++) {
        if (stop && i == stop) {
            jem_archive *a = jem_archive_create(ctx);
            CHECK(jem_net_to_archive(net, a) == JEM_OK && jem_trainer_to_archive(tr, a) == JEM_OK,
                  "%s", jem_error(ctx));
            size_t size;
            void *file = jem_archive_to_memory(a, &size);
            jem_archive_free(a);
            jem_trainer_free(tr);
            jem_net_free(net);
            a = jem_archive_parse(ctx, file, size);
            net = jem_net_from_archive(ctx, a);
            tr = jem_trainer_create(net, &d);
            CHECK(tr && jem_trainer_from_archive(tr, a) == JEM_OK, "%s", jem_error(ctx));
            jem_archive_free(a);
            jem_release(ctx, file);
        }
        images_of(i, x, labels);
        const jem_stats s = jem_train_step(tr, x, labels, IMAGES);
        CHECK(s.status == JEM_OK, "%s", jem_error(ctx));
        CHECK((s.kl != 0) == (d.w_kl > 0), "L_KL is %g", (double)s.kl);
        CHECK_CLOSE(s.loss, s.ce + s.cd + d.w_kl * s.kl, 1e-3, "the terms");
        if (allocations && i == 5) *allocations = jem_memory(ctx).allocations;
    }
    if (allocations) *allocations = jem_memory(ctx).allocations - *allocations;
    CHECK(calls[0] + calls[1] == (o == MOVED ? UPDATES * 18 : 0) && calls[2] == 0 &&
          (o != MOVED || (calls[0] > 30 && calls[1] > 30)), "%d old chains, %d new ones", calls[0],
          calls[1]);
    const uint64_t h = fnv(net_hash(net), jem_trainer_buffer(tr)->data, SLOTS * SMALL);
    jem_trainer_free(tr);
    jem_net_free(net);
    return h;
}

static void test_training(void) {
    printf("options of training: each does something; bits, memory, resuming\n");
    uint64_t first[OPTIONS] = { 0 };
    for (int o = 0; o < OPTIONS; o++) {
        for (int isa = JEM_ISA_SCALAR; isa <= JEM_ISA_NEON; isa++)
            for (int threads = 1; threads <= 3 && jem_isa_available((jem_isa)isa); threads++) {
                jem_ctx *ctx = isa_ctx((jem_isa)isa, threads);
                size_t allocations = 0;
                const uint64_t h = train_bits(ctx, (option)o, 0, &allocations);
                if (!first[o]) first[o] = h;
                CHECK(h == first[o], "option %d on %s, %d threads: the same bits", o,
                      jem_isa_name((jem_isa)isa), threads);
                CHECK(allocations == 0, "%d allocations when all is running", (int)allocations);
                jem_ctx_free(ctx);
            }
        for (int i = 0; i < o; i++) CHECK(first[i] != first[o], "options %d and %d differ", i, o);
        counter count;
        jem_ctx *ctx = open_ctx(&count);
        for (int stop = 1; stop < UPDATES; stop += 3)
            CHECK(train_bits(ctx, (option)o, stop, NULL) == first[o], "option %d, resumed after "
                  "%d", o, stop);
        close_ctx(ctx, &count, "training");
    }
}

/* The gradient of cross-entropy and contrastive divergence, where the weights are now. */
static void gradient_by_hand(jem_net *net, const float *x, const int *labels, const float *sample,
                             int n) {
    const jem_mark mark = jem_begin(net->ctx);
    const jem_loss_weights w = { 1, 1, 0, 0 };
    jem_zero_grad(net);
    jem_backward(jem_loss(net, &w, jem_input(net->ctx, x, IMAGES, 1, SIDE, SIDE), labels, NULL,
                          jem_input(net->ctx, sample, n, 1, SIDE, SIDE), NULL, NULL));
    jem_end(net->ctx, mark);
}

/* Moves the parameters by `length` along their gradient. Returns the gradient, to be freed. */
static float *climb(jem_net *net, double length) {
    double norm = 0;
    for (const jem_param *p = net->params; p; p = p->next)
        for (ptrdiff_t i = 0; i < p->size; i++) norm += pow((double)p->grad[i], 2);
    norm = sqrt(norm);
    for (jem_param *p = net->params; p; p = p->next) {
        for (ptrdiff_t i = 0; i < p->size; i++)
            p->value[i] += (float)(length * (double)p->grad[i] / norm);
        jem_param_changed(p);
    }
    float *first = floats(jem_net_size(net));
    float *at = first;
    for (const jem_param *p = net->params; p; at += p->size, p = p->next)
        memcpy(at, p->grad, (size_t)p->size * sizeof *at);
    return first;
}

/* Checks that the net moved from its start by the rate .1 times the gradient in `hand`, not by that
   of the first pass. */
static void check_step(const jem_net *net, const jem_net *start, const jem_net *hand,
                       const float *first) {
    double moved_by = 0;
    double worst = 0;
    double plain = 0;
    const jem_param *p = net->params;
    const jem_param *q = hand->params;
    const jem_param *o = start->params;
    for (const float *at = first; p; at += p->size, p = p->next, q = q->next, o = o->next)
        for (ptrdiff_t i = 0; i < p->size; i++) {
            const double got = ((double)o->value[i] - (double)p->value[i]) / 0.1;
            worst = most_of(worst, fabs(got - (double)q->grad[i]));
            plain = most_of(plain, fabs(got - (double)at[i]));
            moved_by = most_of(moved_by, fabs(got));
        }
    CHECK(worst < 1e-4 * moved_by + 1e-5, "off by %g of %g", worst, moved_by);
    CHECK(plain > 0.02 * moved_by, "it is not the plain gradient: %g from that", plain);
    printf("  off by %.1e of %.2f; the plain gradient is %.2f from it\n", worst, moved_by, plain);
}

/* Plain gradient descent, so that a step shows the gradient; samples from the trainer's buffer. */
static void test_sharpness(jem_ctx *ctx) {
    printf("the sharpness-aware step, by hand\n");
    enum { NEGATIVES = 8 };
    jem_train_desc d = jem_train_desc_default();
    d.optim.kind = JEM_OPTIMIZER_SGD;
    d.lr = 0.1f;
    d.data_noise = 0;
    d.sam = 0.5f;
    d.sgld = jem_sgld_desc_langevin(0.01f, 3);
    d.negatives = NEGATIVES;
    d.buffer_size = 5000;
    float x[IMAGES * SMALL], sample[NEGATIVES * SMALL];
    int labels[IMAGES];
    int n = 0;
    images_of(0, x, labels);
    jem_net *net = digit_net(ctx);
    jem_net *hand = digit_net(ctx);
    jem_trainer *tr = jem_trainer_create(net, &d);
    const jem_stats s = jem_train_step(tr, x, labels, IMAGES);
    CHECK(s.status == JEM_OK, "%s", jem_error(ctx));
    const jem_buffer *b = jem_trainer_buffer(tr);
    for (int i = 0; i < b->capacity; i++)
        if (b->visits[i] && n < NEGATIVES) memcpy(sample + SMALL * n++, b->data + i * SMALL,
                                                  SMALL * sizeof *sample);
    CHECK(n == NEGATIVES, "%d samples", n);
    gradient_by_hand(hand, x, labels, sample, n);
    float *first = climb(hand, 0.5);
    gradient_by_hand(hand, x, labels, sample, n);
    jem_net *start = digit_net(ctx);
    check_step(net, start, hand, first);
    free(first);
    jem_trainer_free(tr);
    jem_net_free(net);
    jem_net_free(hand);
    jem_net_free(start);
}

/* Running statistics are of one pass, not of two. */
static void test_sharp_statistics(jem_ctx *ctx) {
    printf("the sharpness-aware step and running statistics\n");
    float x[IMAGES * SMALL];
    int labels[IMAGES];
    images_of(0, x, labels);
    jem_wrn_desc wrn = jem_wrn_desc_default();
    wrn.depth = 10;
    wrn.widen = 1;
    wrn.channels = 1;
    wrn.height = wrn.width = SIDE;
    wrn.classes = CLASSES;
    wrn.norm = JEM_NORM_BATCH;
    wrn.dropout = 0.2f;
    float kept[2] = { 0, 0 };
    for (int how = 0; how < 2; how++) {
        jem_train_desc plain_ce = jem_train_desc_default();
        plain_ce.weights.cd = 0;
        plain_ce.sam = how ? 0.5f : 0;
        jem_net *net = jem_wrn_create(ctx, &wrn, 1);
        jem_trainer *tr = jem_trainer_create(net, &plain_ce);
        CHECK(tr && jem_train_step(tr, x, labels, IMAGES).status == JEM_OK, "%s", jem_error(ctx));
        for (const jem_param *r = net ? net->params : NULL; r; r = r->next)
            for (ptrdiff_t i = 0; !r->grad && i < r->size; i++) kept[how] += r->value[i];
        jem_trainer_free(tr);
        jem_net_free(net);
    }
    CHECK(kept[0] != 0 && kept[0] == kept[1], "running statistics: %g, %g", (double)kept[0],
          (double)kept[1]);
}

/* Returns the gradient of training after `updates` updates with a negligible rate. */
static double *gradient_of(jem_ctx *ctx, jem_norm norm, jem_train_desc d, int updates,
                           ptrdiff_t *n) {
    jem_wrn_desc wrn = jem_wrn_desc_default();
    wrn.depth = 10;
    wrn.widen = 1;
    wrn.channels = 1;
    wrn.height = wrn.width = SIDE;
    wrn.classes = CLASSES;
    wrn.norm = norm;
    wrn.activation = JEM_ACTIVATION_SILU;
    wrn.head = JEM_HEAD_FLAT;
    d.lr = 1e-9f;
    d.optim.kind = JEM_OPTIMIZER_SGD;
    d.data_noise = 0;
    d.buffer_size = SLOTS;
    d.sgld = jem_sgld_desc_langevin(0.01f, 3);
    d.negatives = 18;
    float x[IMAGES * SMALL];
    int labels[IMAGES];
    jem_net *net = jem_wrn_create(ctx, &wrn, 7);
    net->scale = 10;
    jem_trainer *tr = jem_trainer_create(net, &d);
    for (int i = 0; i <= updates; i++) {
        images_of(i, x, labels);
        CHECK(jem_train_step(tr, x, labels, IMAGES).status == JEM_OK, "%s", jem_error(ctx));
    }
    *n = 0;
    for (const jem_param *p = net->params; p; p = p->next) *n += p->grad ? p->size : 0;
    double *g = (double *)malloc((size_t)*n * sizeof *g);
    double *at = g;
    for (const jem_param *p = net->params; p; p = p->next)
        for (ptrdiff_t i = 0; p->grad && i < p->size; i++) *at++ = (double)p->grad[i];
    jem_trainer_free(tr);
    jem_net_free(net);
    return g;
}

/* Where norms remember a batch, all terms of a loss are of one network, and so are both gradients
   of a sharpness-aware step. */
static void test_norms_remember(jem_ctx *ctx) {
    printf("batch norm and act norm with every term\n");
    enum { KL, KL_SHARP, CE, SCORE, CE_SCORE, LOSSES };
    for (int k = 0; k < 4; k++) {
        const jem_norm norm = k & 1 ? JEM_NORM_ACT : JEM_NORM_BATCH;
        const int updates = k & 2 ? 4 : 0;
        double *g[LOSSES];
        double sharp = 0;
        double kl = 0;
        double rest = 0;
        double score = 0;
        ptrdiff_t n = 0;
        for (int i = 0; i < LOSSES; i++) {
            jem_train_desc d = jem_train_desc_default();
            d.weights.ce = i != SCORE;
            d.weights.cd = i <= KL_SHARP ? 0.1f : 0;
            d.w_kl = i <= KL_SHARP;
            d.sam = i == KL_SHARP ? 1e-5f : 0;
            d.w_score = i >= SCORE ? 0.01f : 0;
            g[i] = gradient_of(ctx, norm, d, updates, &n);
        }
        for (ptrdiff_t i = 0; i < n; i++) {
            sharp += pow(g[KL_SHARP][i] - g[KL][i], 2);
            kl += pow(g[KL][i], 2);
            rest += pow(g[CE_SCORE][i] - g[CE][i] - g[SCORE][i], 2);
            score += pow(g[SCORE][i], 2);
        }
        CHECK(sqrt(sharp / kl) < 0.01, "norm %d, update %d: hardly any sharpness, off by %g",
              (int)norm, updates, sqrt(sharp / kl));
        /* running statistics follow cross-entropy's passes: later they differ */
        CHECK(sqrt(rest / score) < 1e-3 || (updates && norm == JEM_NORM_BATCH),
              "norm %d, update %d: a sum of terms, off by %g", (int)norm, updates,
              sqrt(rest / score));
        for (int i = 0; i < LOSSES; i++) free(g[i]);
    }
}

/* ---- tricks ---------------------------------------------------------------------------------- */

/* The largest singular value, by Jacobi rotations of the columns of W': no power iteration. */
static double jacobi_norm(const jem_param *p) {
    const ptrdiff_t rows = p->shape[0];
    const ptrdiff_t columns = p->size / rows;
    double *a = (double *)malloc((size_t)p->size * sizeof *a);
    double most = 0;
    for (ptrdiff_t i = 0; i < p->size; i++) a[i] = (double)p->value[i];
    for (int sweep = 0; sweep < 30; sweep++)
        for (ptrdiff_t i = 0; i < rows; i++)
            for (ptrdiff_t j = i + 1; j < rows; j++) {
                double *u = a + i * columns;
                double *v = a + j * columns;
                double uu = 0;
                double vv = 0;
                double uv = 0;
                for (ptrdiff_t k = 0; k < columns; k++) {
                    uu += u[k] * u[k];
                    vv += v[k] * v[k];
                    uv += u[k] * v[k];
                }
                if (fabs(uv) < 1e-14 * sqrt(uu * vv)) continue;
                const double z = (vv - uu) / (2 * uv);
                const double t = (z < 0 ? -1 : 1) / (fabs(z) + sqrt(1 + z * z));
                const double c = 1 / sqrt(1 + t * t);
                const double s = c * t;
                for (ptrdiff_t k = 0; k < columns; k++) {
                    const double old = u[k];
                    u[k] = c * old - s * v[k];
                    v[k] = s * old + c * v[k];
                }
            }
    for (ptrdiff_t i = 0; i < rows; i++) {
        double square = 0;
        for (ptrdiff_t k = 0; k < columns; k++) square += a[i * columns + k] * a[i * columns + k];
        most = most_of(most, sqrt(square));
    }
    free(a);
    return most;
}

static void test_spectral(jem_ctx *ctx) {
    printf("spectral norms, by another algorithm\n");
    jem_net *net = digit_net(ctx);
    double v[2 * 400];
    int scaled = 0;
    for (jem_param *p = net->params; p; p = p->next) {
        if (p->ndim < 2) continue;
        for (ptrdiff_t i = 0; i < p->size; i++) p->value[i] *= p->shape[0] == CLASSES ? 0.1f : 3;
        const double norm = jacobi_norm(p);
        CHECK_CLOSE(spectral_norm(p, v), norm, 1e-4 * norm, "%s", p->name);
        scaled += norm > 1;
    }
    CHECK(scaled == 2, "%d are above 1", scaled);
    CHECK(spectral_limit(net, 1), "memory");
    for (const jem_param *p = net->params; p; p = p->next) {
        if (p->ndim < 2) continue;
        const double norm = jacobi_norm(p);
        if (p->shape[0] == CLASSES) CHECK(norm < 0.9, "%s, %g, is left as it is", p->name, norm);
        else CHECK_CLOSE(norm, 1, 1e-4, "%s is 1 now", p->name);
    }
    jem_param *p = net->params;
    memset(p->value, 0, (size_t)p->size * sizeof *p->value);
    CHECK(spectral_norm(p, v) == 0 && spectral_limit(net, 1), "nothing");
    jem_net_free(net);
}

/* Samples of a class have its mean and covariance. */
static void test_class_gaussian(void) {
    printf("chains that begin as Gaussians of the classes\n");
    enum { N = 60, D = 3, SAMPLES = 20000 };
    float x[N * D], s[D];
    int labels[N];
    jem_rng rng = jem_rng_seed(3);
    for (int i = 0; i < N; i++) {
        const float a = jem_rng_normal(&rng);
        const float b = jem_rng_uniform(&rng);
        labels[i] = i % 3 == 0;
        x[i * D] = a;
        x[i * D + 1] = labels[i] ? 2 * a + b : b;
        x[i * D + 2] = (float)labels[i];
    }
    double want[9] = { 0 }, got[9] = { 0 };       /* means, then products */
    int count = 0;
    for (int i = 0; i < N; i++) count += labels[i];
    for (int i = 0; i < N + SAMPLES; i++) {
        const float *at = i < N ? x + i * D : s;
        if (i < N && !labels[i]) continue;
        if (i >= N) class_gaussian(x, labels, N, D, 1, &rng, s);
        double *to = i < N ? want : got;
        const double share = 1.0 / (i < N ? count : SAMPLES);
        for (int k = 0, m = D; k < D; k++) {
            to[k] += share * (double)at[k];
            for (int l = 0; l <= k; l++) to[m++] += share * (double)at[k] * (double)at[l];
        }
    }
    for (int k = 0, m = D; k < D; k++) {
        CHECK_CLOSE(got[k], want[k], 0.05, "mean of %d", k);
        for (int l = 0; l <= k; l++, m++)          /* the images' own covariance, with m - 1 */
            CHECK_CLOSE(got[m] - got[k] * got[l], (want[m] - want[k] * want[l]) * count /
                        (count - 1), 0.15, "covariance of %d and %d", k, l);
    }
    int other = 0;
    for (int i = 0; i < 3000; i++) {               /* a third of the images have label 1 */
        class_gaussian(x, labels, N, D, -1, &rng, s);
        other += s[2] > 0.5f;
    }
    CHECK(abs(other - 1000) < 120, "%d of 3000 are of the rarer class", other);
}

/* A clipped step moves no coordinate further than step_size times the limit. */
static void test_proximal(jem_ctx *ctx) {
    printf("clipped steps\n");
    jem_net *net = smooth_net(ctx, 0);
    net->scale = 100;
    jem_rng rng = jem_rng_seed(2);
    float *x = random_floats(&rng, 20 * 12, -1, 1);
    float y[240];
    float most = 0;
    jem_sgld_desc walk = jem_sgld_desc_default();
    walk.steps = 1;
    walk.step_size = 0.5f;
    walk.noise_std = 0;
    walk.clamp_grad = 0.1f;
    jem_tensor *t = jem_input(ctx, x, 20, 3, 2, 2);
    CHECK(jem_sgld(ctx, jem_logp, net, t, &walk, NULL) == JEM_OK, "%s", jem_error(ctx));
    jem_read(t, y);
    for (int k = 0; k < 240; k++) most = fmaxf(most, fabsf(y[k] - x[k]));
    CHECK(most > 0.0499f && most < 0.05001f, "the longest is %g", (double)most);
    free(x);
    jem_reset(ctx);
    jem_net_free(net);
}

/* ---- losses without chains ------------------------------------------------------------------- */
/* f = -|A x + b|^2 / 2: a Gaussian of precision A'A and mean -A^-1 b, whose log Z is log 2 pi - log
   |det A|. Learned from samples of one that is known. */
typedef struct gaussian { jem_layer map, log_z; } gaussian;

static jem_tensor *gaussian_logp(jem_ctx *ctx, jem_tensor *x, void *user) {
    const gaussian *g = (const gaussian *)user;
    return gauss(ctx, jem_apply(&g->map, x, 1), NULL);
}

/* The data of test_losses: x = mean + L z. */
static const double known_l[3] = { 0.6, 0.3, 0.4 }, known_mean[2] = { 0.5, -0.3 };

/* Trains a Gaussian with loss number `how`; the net has its average afterwards. */
static void fit_gaussian(jem_net *net, gaussian *g, int how) {
    enum { N = 512, STEPS = 1500 };
    jem_ctx *ctx = net->ctx;
    jem_optim_desc d = jem_optim_desc_default();
    d.ema = 0.99f;
    jem_optim *opt = jem_optim_create(net, &d);
    const jem_schedule cosine = { JEM_SCHEDULE_COSINE, 0, STEPS, 0.01f, 0, { 0 } };
    jem_rng rng = jem_rng_seed(4);
    float x[2 * N];
    for (int i = 0; i < STEPS; i++) {
        for (int k = 0; k < N; k++) {
            const double a = (double)jem_rng_normal(&rng);
            const double b = (double)jem_rng_normal(&rng);
            x[2 * k] = (float)(known_mean[0] + known_l[0] * a);
            x[2 * k + 1] = (float)(known_mean[1] + known_l[1] * a + known_l[2] * b);
        }
        const jem_mark mark = jem_begin(ctx);
        jem_zero_grad(net);
        jem_tensor *loss;
        if (how == 2) loss = loss_nce(ctx, gaussian_logp, g, &g->log_z, N, x, 3, &rng);
        else loss = loss_score(ctx, gaussian_logp, g, N, x, 0.1f, how ? &rng : NULL);
        jem_backward(loss);
        jem_optim_step(opt, jem_learning_rate(&cosine, 0.01f, i), NULL);
        jem_end(ctx, mark);
    }
    CHECK(jem_ok(ctx), "%s", jem_error(ctx));
    jem_optim_use_average(opt, 1);
    jem_optim_free(opt);
}

static void test_losses(jem_ctx *ctx) {
    printf("losses without chains: a Gaussian's mean, precision and log Z\n");
    static const char *const names[] = { "implicit", "sliced", "NCE" };
    const double *l = known_l;
    const double *mean = known_mean;
    const double det = pow(l[0] * l[2], 2);
    const double want[3] = { (l[1] * l[1] + l[2] * l[2]) / det, -l[0] * l[1] / det,
                             l[0] * l[0] / det };  /* precision: (L L')^-1 */
    for (int how = 0; how < 3; how++) {
        jem_net *net = bag_create(ctx);
        gaussian g;
        g.map = jem_linear_layer(net, "map", 2, 2);
        g.log_z = loss_log_z(net);
        static const float first[4] = { 1, 0.2f, -0.1f, 1.2f };
        memcpy(g.map.weight->value, first, sizeof first);
        jem_param_changed(g.map.weight);
        fit_gaussian(net, &g, how);
        const float *a = g.map.weight->value;
        const float *b = g.map.bias->value;
        double p[3], at[2];
        for (int k = 0; k < 3; k++) {
            const int i = k > 1;                   /* (A'A)[i][j] */
            const int j = k > 0;
            p[k] = (double)a[i] * (double)a[j] + (double)a[2 + i] * (double)a[2 + j];
            CHECK_CLOSE(p[k], want[k], 0.04 * (want[0] + want[2]), "%s: precision", names[how]);
        }
        const double det_a = (double)a[0] * (double)a[3] - (double)a[1] * (double)a[2];
        at[0] = -((double)a[3] * (double)b[0] - (double)a[1] * (double)b[1]) / det_a;
        at[1] = -((double)a[0] * (double)b[1] - (double)a[2] * (double)b[0]) / det_a;
        for (int k = 0; k < 2; k++) CHECK_CLOSE(at[k], mean[k], 0.03, "%s: mean", names[how]);
        const double log_z = log(6.283185307179586) - log(fabs(det_a));
        const double learned = -(double)g.log_z.bias->value[0];
        if (how == 2) CHECK_CLOSE(learned, log_z, 0.05, "log Z");
        else CHECK(learned == 0, "no log Z is learned");
        printf("  %-8s  precision %.2f %.2f %.2f (%.2f %.2f %.2f), mean %.3f %.3f (%g %g)\n",
               names[how], p[0], p[1], p[2], want[0], want[1], want[2], at[0], at[1], mean[0],
               mean[1]);
        if (how == 2) printf("            log Z %.3f (%.3f)\n", learned, log_z);
        jem_net_free(net);
    }
}

/* Returns the expected loss at a point of a MLP: its Laplacian and half its slope squared, in
   double precision. */
static double exact_score_loss(const jem_net *net, const double here[2]) {
    const double h = 1e-4;
    double g[2];
    double bend = 0;
    exact_slope(net, here, g);
    for (int k = 0; k < 2; k++) {                  /* of exact slopes */
        double up[2] = { here[0], here[1] };
        double down[2] = { here[0], here[1] };
        double gu[2];
        double gd[2];
        up[k] += h;
        down[k] -= h;
        exact_slope(net, up, gu);
        exact_slope(net, down, gd);
        bend += (gu[k] - gd[k]) / (2 * h);
    }
    return bend + (g[0] * g[0] + g[1] * g[1]) / 2;
}

static void test_score_losses(jem_ctx *ctx) {
    printf("implicit and sliced score matching, by exact second derivatives\n");
    enum { N = 20, MANY = 1000 };
    jem_mlp_desc m = jem_mlp_desc_default();
    m.channels = 2;
    m.height = m.width = 1;
    m.classes = 3;
    m.widths[0] = 8;
    m.widths[1] = 5;
    jem_net *net = jem_mlp_create(ctx, &m, 3);
    net->scale = 10;
    jem_rng rng = jem_rng_seed(7);
    float *x = random_floats(&rng, 2 * N, -1, 1);
    float *same = floats(2 * MANY);
    double want = 0;
    double one_point = 0;
    for (int i = 0; i < N; i++) {
        const double here[2] = { (double)x[2 * i], (double)x[2 * i + 1] };
        const double loss = exact_score_loss(net, here);
        want += loss / N;
        if (!i) one_point = loss;
    }
    const double got = (double)jem_item(loss_score(ctx, jem_logp, net, N, x, 0.05f, NULL));
    CHECK_CLOSE(got, want, 0.01 * fabs(want), "implicit");
    double mean = 0;
    for (int k = 0; k < 2 * MANY; k++) same[k] = x[k & 1];             /* one point, many slices */
    for (int k = 0; k < 20; k++) {
        mean += (double)jem_item(loss_score(ctx, jem_logp, net, MANY, same, 0.05f, &rng)) / 20;
        jem_reset(ctx);
    }
    CHECK_CLOSE(mean, one_point, 0.03 * fabs(one_point) + 0.02, "sliced");
    printf("  implicit %.4f (%.4f), sliced %.4f (%.4f)\n", got, want, mean, one_point);
    CHECK(!loss_score(ctx, jem_logp, net, LOSS_MOST + 1, same, 0.05f, NULL) &&
          says(ctx, "too many"), "too many");
    free(x);
    free(same);
    jem_net_free(net);
}

int main(int argc, char **argv) {
    static const test_case all[] = {
        TEST_IN(test_slope), TEST_IN(test_kl), TEST_IN(test_sharpness),
        TEST_IN(test_sharp_statistics), TEST_IN(test_norms_remember), TEST_IN(test_spectral),
        TEST(test_class_gaussian), TEST_IN(test_proximal), TEST_IN(test_score_losses),
        TEST_IN(test_losses), TEST(test_training)
    };
    return run_in_ctx(argc, argv, all, TEST_COUNT(all), NULL);
}
