/* The guard of a trainer: a diverging run rolls back to a good state and continues, also across a
   checkpoint; a healthy run has the same bits with and without the guard.

       build/test_guard           with long runs of 6,000 updates
       build/test_guard long      of 20,000 (make diverge) */
#define JEM_IMPLEMENTATION
#include "jem.h"
#include "tests/support/test.h"
#include "tests/support/common.h"

enum { BATCH = 64 };
static int long_run = 6000;                        /* updates */

typedef struct moons {
    jem_ctx *ctx;
    jem_net *net;
    jem_trainer *tr;
    jem_rng rng;
    int flipped;                                   /* 1: labels are wrong */
    int period;                                    /* every period-th image is of moon 1 */
} moons;

/* The network, the trainer and the data of the first program in jem.h, which has a data_noise of
   .15 and an energy_l2 of .03; with .03 and 0, the run diverges again and again. */
static void begin_by(moons *m, int max_rollbacks, float data_noise, float energy_l2, float cd,
                     float cd_class) {
    jem_ctx_desc one;                              /* so small a batch gains nothing from more */
    memset(&one, 0, sizeof one);
    one.threads = 1;
    m->ctx = jem_ctx_create(&one);
    jem_mlp_desc shape = jem_mlp_desc_default();
    shape.channels = 2;
    shape.height = shape.width = 1;
    shape.classes = 2;
    m->net = jem_mlp_create(m->ctx, &shape, 1);
    jem_train_desc how = jem_train_desc_default();
    how.lr = 3e-3f;
    how.data_noise = data_noise;
    how.weights.energy_l2 = energy_l2;
    how.weights.cd = cd;
    how.weights.cd_class = cd_class;
    how.sgld = jem_sgld_desc_langevin(0.02f, 20);
    if (max_rollbacks >= 0) how.max_rollbacks = max_rollbacks;
    m->tr = jem_trainer_create(m->net, &how);
    m->rng = jem_rng_seed(7);
    m->flipped = 0;
    m->period = 2;
}

static void begin_with(moons *m, int max_rollbacks, float data_noise, float energy_l2) {
    begin_by(m, max_rollbacks, data_noise, energy_l2, 1, 0);
}

static void begin(moons *m, int max_rollbacks) { begin_with(m, max_rollbacks, .03f, 0); }

static void end(moons *m) {
    jem_trainer_free(m->tr);
    jem_net_free(m->net);
    jem_ctx_free(m->ctx);
}

static jem_stats step(moons *m) {
    float x[2 * BATCH];
    int y[BATCH];
    for (int k = 0; k < BATCH; k++) {
        const float a = 3.14159f * jem_rng_uniform(&m->rng);
        y[k] = k % m->period == m->period - 1;
        x[2 * k] = (y[k] ? 0.5f - cosf(a) : cosf(a) - 0.5f) * 0.5f;
        x[2 * k + 1] = (y[k] ? 0.25f - sinf(a) : sinf(a) - 0.25f) * 0.5f;
        y[k] ^= m->flipped;
    }
    return jem_train_step(m->tr, x, y, BATCH);
}

static int same_weights(const jem_net *a, const jem_net *b) {
    const jem_param *p = a->params;
    const jem_param *q = b->params;
    for (; p && q; p = p->next, q = q->next)
        if (memcmp(p->value, q->value, (size_t)p->size * sizeof *p->value)) return 0;
    return !p && !q;
}

static int finite_weights(const jem_net *net) {
    for (const jem_param *p = net->params; p; p = p->next)
        for (ptrdiff_t i = 0; i < p->size; i++)
            if (!isfinite(p->value[i])) return 0;
    return 1;
}

static void poison(jem_net *net) {
    net->params->value[0] = NAN;
    jem_param_changed(net->params);
}

/* The program in the header's first comment is the one that runs here. */
static void test_same_program(void) {
    static char head[20000];
    FILE *f = fopen("jem.h", "r");
    const size_t n = f ? fread(head, 1, sizeof head - 1, f) : 0;
    if (f) fclose(f);
    head[n] = 0;
    CHECK(strstr(head, "how.lr = 3e-3f;") != NULL, "the rate of the first program");
    CHECK(strstr(head, "how.data_noise = 0.15f;") != NULL, "what keeps it stable");
    CHECK(strstr(head, "how.weights.energy_l2 = 0.03f;") != NULL, "what keeps it stable");
    CHECK(strstr(head, "how.sgld = jem_sgld_desc_langevin(0.02f, 20);") != NULL, "its walk");
    CHECK(strstr(head, "jem_mlp_create(ctx, &shape, 1);") != NULL, "its network");
    CHECK(strstr(head, "jem_train_step(trainer, x[0], y, 64);") != NULL, "its update");
}

static void test_long_run(float data_noise, float energy_l2, int most_rollbacks, float most_gap,
                          float least_accuracy) {
    printf("%d updates with a data_noise of %g and an energy_l2 of %g\n", long_run,
           (double)data_noise, (double)energy_l2);
    moons m;
    begin_with(&m, -1, data_noise, energy_l2);
    int failed = 0;
    int rollbacks = 0;
    float gap = 0;
    float worst = 0;
    float right = 0;
    for (int i = 0; i < long_run; i++) {
        const jem_stats s = step(&m);
        failed += s.status != JEM_OK;
        rollbacks += s.rolled_back;
        CHECK(s.rollbacks == rollbacks, "update %d: %d rollbacks, %d counted", s.update,
              s.rollbacks, rollbacks);
        CHECK(rollbacks > 0 || s.update == i, "update %d is number %d", i, s.update);
        gap += 0.1f * (-s.cd - gap);
        if (s.rolled_back) gap = 0;
        worst = fmaxf(worst, fabsf(gap));
        if (i >= long_run - 1000) right += s.accuracy / 1000;
    }
    CHECK(failed == 0, "%d updates failed: %s", failed, jem_error(m.ctx));
    CHECK(worst <= most_gap, "f(x+) - f(x-) reached %g in the mean", (double)worst);
    CHECK(rollbacks <= most_rollbacks, "%d rollbacks", rollbacks);
    CHECK(right > least_accuracy, "accuracy over the last 1,000 updates: %.3f", (double)right);
    const jem_buffer *b = jem_trainer_buffer(m.tr);
    int old = 0, away = 0;                         /* chains of more than three walks; far ones */
    for (int i = 0; i < b->capacity; i++) {
        if (b->visits[i] <= 3) continue;
        old++;
        away += fabsf(b->data[2 * i]) > 1.2f || fabsf(b->data[2 * i + 1]) > 1.2f;
    }
    CHECK(old > 1000 && away < old / 50, "%d of %d chains are far from the moons", away, old);
    const float ask[6] = { -.25f, .35f, .25f, -.35f, .9f, .9f };
    jem_answer a[3];
    CHECK(jem_classify(m.net, ask, 3, a) == JEM_OK, "%s", jem_error(m.ctx));
    CHECK(a[0].label == 0 && a[1].label == 1, "the moons: %d, %d", a[0].label, a[1].label);
    CHECK(a[2].log_density < a[0].log_density - 5 && a[2].log_density < a[1].log_density - 5,
          "a point far from both has a log p of %g, the moons %g, %g", (double)a[2].log_density,
          (double)a[0].log_density, (double)a[1].log_density);
    printf("%d rollbacks, |mean gap| at most %.1f, accuracy %.3f\n", rollbacks, (double)worst,
           (double)right);
    end(&m);
}

static void test_first_program(void) { test_long_run(.15f, .03f, 0, 2, .88f); }
static void test_unstable(void) { test_long_run(.03f, 0, 15, 101, .95f); }

static void test_without(void) {
    printf("without the guard: the same bits until the first return, then it runs away\n");
    moons with, without;
    begin(&with, -1);
    begin(&without, 0);
    int at = -1;
    int different = 0;
    float gap = 0;
    for (int i = 0; i < 600; i++) {
        const jem_stats s = step(&without);
        gap = fmaxf(gap, -s.cd);
        CHECK(!s.rolled_back && !s.rollbacks, "a rollback without a guard");
        if (at >= 0) continue;
        if (step(&with).rolled_back) at = i;
        else different += !same_weights(with.net, without.net);
    }
    CHECK(at > 300 && at < 600, "the first return: %d", at);
    CHECK(different == 0, "%d of %d updates have other bits", different, at);
    CHECK(gap > 1e4f, "without the guard the gap reaches %g", (double)gap);
    end(&with);
    end(&without);
}

/* A copy of a checkpoint as it was before the guard watched the residual of the score. */
static jem_archive *before_residuals(const jem_archive *a, jem_ctx *ctx) {
    jem_archive *old = jem_archive_create(ctx);
    int left_out = 0;
    for (int i = 0; i < jem_archive_count(a); i++) {
        const jem_entry *e = jem_archive_at(a, i);
        if (!strcmp(e->name, "guard.residual")) left_out++;
        else jem_archive_add(old, e->name, e->dtype, e->ndim, e->shape, e->data);
    }
    CHECK(left_out == 1, "a checkpoint has residuals");
    return old;
}

/* Interrupted at update `at`, then continued for 200 updates: the bits of the whole run. */
static void test_resumed(int at, int from_older_file) {
    printf("interrupted at update %d%s\n", at, from_older_file ? ", from an older file" : "");
    moons whole, again;
    begin(&whole, -1);
    begin(&again, -1);
    for (int i = 0; i < at; i++) step(&whole);
    size_t size = 0;
    jem_archive *a = jem_archive_create(whole.ctx);
    jem_net_to_archive(whole.net, a);
    jem_trainer_to_archive(whole.tr, a);
    char *bytes = (char *)jem_archive_to_memory(a, &size);
    CHECK(bytes != NULL, "%s", jem_error(whole.ctx));
    jem_archive *b = bytes ? jem_archive_parse(again.ctx, bytes, size) : NULL;
    CHECK(b && jem_net_load(again.net, b) == JEM_OK, "%s", jem_error(again.ctx));
    jem_archive *old = from_older_file && b ? before_residuals(b, again.ctx) : NULL;
    CHECK(jem_trainer_from_archive(again.tr, old ? old : b) == JEM_OK, "%s", jem_error(again.ctx));
    jem_archive_free(old);
    again.rng = whole.rng;
    int different = 0;
    int rolled_back = 0;
    jem_stats s, t;
    for (int i = 0; i < 200; i++) {
        s = step(&whole);
        t = step(&again);
        rolled_back += s.rolled_back;
        different += s.rollbacks != t.rollbacks || s.lr != t.lr ||
                     !same_weights(whole.net, again.net);
    }
    CHECK(rolled_back > 0, "the guard rolls back in between");
    CHECK(different == 0, "%d updates differ", different);
    jem_archive_free(b);
    jem_archive_free(a);
    jem_release(whole.ctx, bytes);
    end(&whole);
    end(&again);
}

static void test_poisoned(void) {
    printf("a weight that is not finite; as many rollbacks as are allowed\n");
    moons m;
    begin(&m, 2);
    poison(m.net);
    CHECK(step(&m).status == JEM_DIVERGED, "without a good state it is an error");
    end(&m);
    begin(&m, 2);
    for (int i = 0; i < 110; i++) step(&m);
    for (int k = 1; k <= 2; k++) {
        poison(m.net);
        const jem_stats s = step(&m);
        CHECK(s.status == JEM_OK && s.rolled_back && s.rollbacks == k, "return %d: %s", k,
              jem_error(m.ctx));
        CHECK(finite_weights(m.net) && jem_ok(m.ctx), "return %d: what is left is sound", k);
        CHECK(isfinite(s.loss) && isfinite(s.grad_norm), "its numbers are finite");
        CHECK(s.update == (k == 1 ? 110 : 101), "its number: %d", s.update);
        CHECK(jem_trainer_updates(m.tr) == 100, "the count goes back with the state: %d",
              jem_trainer_updates(m.tr));
        CHECK_CLOSE(step(&m).lr, 3e-3 * pow(.5, k - 1), 1e-8, "half the rate from the second on");
    }
    poison(m.net);
    const jem_stats s = step(&m);
    CHECK(s.status == JEM_DIVERGED && !s.rolled_back && s.rollbacks == 2, "the third is an error");
    CHECK(strstr(jem_error(m.ctx), "rolled back 2 times") != NULL, "%s", jem_error(m.ctx));
    CHECK(finite_weights(m.net), "its weights are sound");
    jem_clear_error(m.ctx);
    end(&m);
}

/* Adds a term to the loss whose gradient is `factor` times that of the logits' squares. */
static jem_tensor *square_term(const jem_term_inputs *in, void *user) {
    const float *factor = (const float *)user;
    jem_ctx *ctx = in->net->ctx;
    jem_tensor *squares = jem_mul(ctx, in->logits, in->logits);
    return jem_mean(ctx, jem_scale(ctx, squares, *factor));
}

/* Makes the updates that follow return because of one check, whose reason contains `part`. */
static void check_reason(moons *m, const char *part) {
    int found = 0;
    for (int i = 0; i < 60 && !found; i++) {
        const jem_stats s = step(m);
        CHECK(s.status == JEM_OK, "%s", jem_error(m->ctx));
        CHECK(s.rolled_back == (*s.reason != 0), "a rollback has a reason: '%s'", s.reason);
        found = s.rolled_back;
        if (found) CHECK(strstr(s.reason, part) != NULL, "'%s', not '%s'", s.reason, part);
    }
    CHECK(found, "no return because '%s'", part);
    for (int i = 0; i < 30; i++)
        CHECK(!step(m).rolled_back, "'%s': another rollback", part);
    CHECK(finite_weights(m->net), "'%s': weights are finite", part);
}

static void fill_chains(moons *m, float value) {
    jem_buffer *b = jem_trainer_buffer(m->tr);
    const ptrdiff_t size = (ptrdiff_t)b->capacity * b->channels * b->height * b->width;
    for (ptrdiff_t i = 0; i < size; i++) b->data[i] = value;
    for (int i = 0; i < b->capacity; i++) b->visits[i] = 1;
}

/* Checks that wrong labels make it return. */
static void check_flipped(void) {
    moons m;
    begin_with(&m, -1, .03f, .1f);
    for (int i = 0; i < 130; i++) step(&m);
    m.flipped = 1;
    for (int i = 0; i < 60 && m.flipped; i++) {
        const jem_stats s = step(&m);
        if (!s.rolled_back) continue;
        m.flipped = 0;
        CHECK(strstr(s.reason, "a guess has 0.693") != NULL, "cross-entropy: '%s'", s.reason);
    }
    CHECK(!m.flipped, "labels that are wrong do not make it return");
    m.flipped = 1;                                 /* a single update does not */
    const jem_stats s = step(&m);
    m.flipped = 0;
    CHECK(s.status == JEM_OK && !s.rolled_back && s.ce > .7f, "%g: '%s'", (double)s.ce, s.reason);
    end(&m);
}

/* Compares steps of SGLD with a range in which chains start of almost 0. */
static void test_narrow_range(void) {
    printf("steps that are wide compared with the range of restarts\n");
    moons m;
    begin(&m, -1);
    jem_train_desc how = jem_train_desc_default();
    how.restart_lo = 0;
    how.restart_hi = 1e-36f;
    how.max_gap = 1e9f;
    how.sgld.step_size = 1e4f;
    how.sgld.clamp_lo = -1;
    how.sgld.clamp_hi = 1;
    jem_trainer_free(m.tr);
    m.tr = jem_trainer_create(m.net, &how);
    for (int i = 0; i < 45; i++) CHECK(step(&m).status == JEM_OK, "%s", jem_error(m.ctx));
    jem_archive *a = jem_archive_create(m.ctx);
    size_t bytes = 0;
    jem_trainer_to_archive(m.tr, a);
    void *file = jem_archive_to_memory(a, &bytes);
    jem_archive_free(a);
    a = jem_archive_parse(m.ctx, file, bytes);
    CHECK(m.tr->guard.now.travel_factor > 0, "the step never becomes 0");
    CHECK(jem_trainer_from_archive(m.tr, a) == JEM_OK, "it resumes: %s", jem_error(m.ctx));
    jem_archive_free(a);
    jem_release(m.ctx, file);
    end(&m);
}

static void test_reasons(void) {
    printf("each check of the guard makes it return, once\n");
    moons m;
    const float places[2] = { 12, .3f };
    const char *const parts[2] = { "far from all images", "nearly equal" };
    for (int way = 0; way < 2; way++) {
        begin_with(&m, -1, .03f, .1f);
        for (int i = 0; i < 30; i++) step(&m);
        fill_chains(&m, places[way]);
        check_reason(&m, parts[way]);
        end(&m);
    }
    check_flipped();

    begin_with(&m, -1, .03f, .1f);
    jem_train_desc how = jem_train_desc_default();
    how.sgld = jem_sgld_desc_langevin(.02f, 20);
    how.sgld.step_size *= 1e4f;
    how.sgld.clamp_lo = -1;
    how.sgld.clamp_hi = 1;
    jem_trainer_free(m.tr);
    m.tr = jem_trainer_create(m.net, &how);
    check_reason(&m, "a step of SGLD moves the chains");
    end(&m);

    float factor = 0;
    begin_with(&m, -1, .03f, .1f);
    how = jem_train_desc_default();
    how.weights.cd = 0;
    how.w_term = 1;
    how.term = square_term;
    how.term_user = &factor;
    jem_trainer_free(m.tr);
    m.tr = jem_trainer_create(m.net, &how);
    for (int i = 0; i < 30; i++) step(&m);
    factor = 1e6f;
    const jem_stats s = step(&m);
    CHECK(s.rolled_back && strstr(s.reason, "the norm of the gradient is") != NULL, "'%s'",
          s.reason);
    factor = 0;
    for (int i = 0; i < 30; i++) CHECK(!step(&m).rolled_back, "another rollback");
    end(&m);
}

/* Returns the logits of classes that are alike, by weights that make log p(x) 2 x[0] + constant. */
static jem_tensor *slanted(jem_net *net, jem_tensor *x, int training, void *user) {
    (void)training;
    (void)user;
    return jem_linear(net->ctx, x, net->params, NULL);
}

/* A bad state is not kept, also if there is no other; training goes on. */
static void test_bad_first(void) {
    printf("the first update leaves chains far from all images\n");
    moons m;
    begin_with(&m, -1, .03f, .1f);
    fill_chains(&m, 12);
    const jem_stats s = step(&m);
    jem_archive *a = jem_archive_create(m.ctx);
    CHECK(s.status == JEM_OK && !s.rolled_back, "'%s'", s.reason);
    CHECK(jem_trainer_to_archive(m.tr, a) == JEM_OK, "%s", jem_error(m.ctx));
    CHECK(!jem_archive_find(a, "guard.state"), "it is not kept");
    jem_archive_free(a);
    fill_chains(&m, 0);
    step(&m);
    a = jem_archive_create(m.ctx);
    CHECK(jem_trainer_to_archive(m.tr, a) == JEM_OK && jem_archive_find(a, "guard.state"),
          "a later one is");
    jem_archive_free(a);
    end(&m);
}

/* A trainer whose chains do not walk, so that a test places them. */
static void begin_still(moons *m, int by_class) {
    begin_with(m, -1, .03f, .1f);
    jem_train_desc how = jem_train_desc_default();
    how.sgld.steps = 0;
    how.reinit = 0;
    how.class_conditional = by_class;
    jem_trainer_free(m->tr);
    m->tr = jem_trainer_create(m->net, &how);
}

/* With one image in eight of moon 1, chains by class need the same share: with half of them, the
   logit of moon 1 falls without limit. */
static void test_rare_class(void) {
    printf("chains by class, with a rare class\n");
    moons m;
    begin_by(&m, -1, .15f, .03f, 0, 1);
    m.period = 8;
    double ce = 0;
    for (int i = 0; i < 1000; i++) {
        const jem_stats s = step(&m);
        CHECK(s.status == JEM_OK && s.rollbacks == 0, "update %d: %s", i, s.reason);
        if (i >= 800) ce += (double)s.ce / 200;
    }
    CHECK(ce < .377 / 2, "cross-entropy %g, and .377 of a guess", ce);
    end(&m);
}

/* Chains of the first class may be equal, as those of a class without variance. */
static void test_classes(void) {
    printf("chains of all classes are judged\n");
    moons m;
    begin_still(&m, 1);
    fill_chains(&m, .3f);
    jem_buffer *b = jem_trainer_buffer(m.tr);
    CHECK(b->classes == 2, "slots by class");
    for (int i = b->capacity / 2; i < b->capacity; i++) b->data[2 * i] = i % 2 ? .9f : -.9f;
    for (int i = 0; i < 5; i++) {
        const jem_stats s = step(&m);
        CHECK(s.status == JEM_OK && !s.rolled_back, "one class is equal: '%s'", s.reason);
    }
    fill_chains(&m, .3f);
    const jem_stats s = step(&m);
    CHECK(s.rolled_back && strstr(s.reason, "nearly equal"), "both are equal: '%s'", s.reason);
    end(&m);
}

/* Chains are not far from images if these are far from where chains start. */
static void test_offset(void) {
    printf("images far from the range in which chains start\n");
    moons m;
    begin_still(&m, 0);
    for (int place = 0; place < 2; place++) {
        fill_chains(&m, place ? 150.0f : 50.0f);
        for (int i = 0; i < 4; i++) {
            float x[BATCH][2];
            int y[BATCH];
            for (int k = 0; k < BATCH; k++) {
                y[k] = k % 2;
                x[k][0] = 50 + jem_rng_normal(&m.rng);
                x[k][1] = 50 + jem_rng_normal(&m.rng);
            }
            jem_buffer *b = jem_trainer_buffer(m.tr);
            for (int k = 0; k < b->capacity; k++) b->data[2 * k] += jem_rng_normal(&m.rng);
            const jem_stats s = jem_train_step(m.tr, x[0], y, BATCH);
            CHECK(place || (s.status == JEM_OK && !s.rolled_back), "at the images: '%s'", s.reason);
            if (!place) continue;
            CHECK(s.rolled_back && strstr(s.reason, "far from all images"), "far: '%s'", s.reason);
            break;
        }
    }
    end(&m);
}

/* Puts all chains at x[0] = place; x[1] varies. */
static void fill_line(moons *m, float place) {
    jem_buffer *b = jem_trainer_buffer(m->tr);
    for (int i = 0; i < b->capacity; i++) {
        b->data[2 * i] = place;
        b->data[2 * i + 1] = i % 2 ? .5f : -.5f;
        b->visits[i] = 1;
    }
}

/* Makes a network whose log p(x) is 2 x[0] + constant at this scale. */
static void begin_slanted(moons *m, float scale) {
    const int shape[2] = { 2, 2 };
    jem_ctx_desc one;
    memset(&one, 0, sizeof one);
    one.threads = 1;
    m->ctx = jem_ctx_create(&one);
    m->net = jem_net_create(m->ctx, slanted, NULL, 0, 2, 1, 1, 2, 1);
    m->rng = jem_rng_seed(7);
    m->flipped = 0;
    m->period = 2;
    m->net->scale = scale;
    jem_param *w = jem_net_param(m->net, "w", 2, shape, 1);
    w->value[0] = w->value[2] = 2 / scale;
    jem_param_changed(w);
}

/* Describes contrastive training that changes nothing, with chains that stay. */
static jem_train_desc slanted_desc(void) {
    jem_train_desc how = jem_train_desc_default();
    how.lr = 1e-20f;
    how.weights.ce = 0;
    how.data_noise = 0;
    how.sgld.steps = 0;
    how.sgld.step_size = .01f;
    how.negatives = how.buffer_size = BATCH;
    how.reinit = 0;
    return how;
}

/* Checks when it rolls back if log p(x) is 2 higher or lower for data than for chains: as soon as
   the mean gap is above half of the scale, and for no other reason. */
static void check_gap(float scale, float side, int returns_at) {
    enum { UPDATES = 18 };
    moons m;
    jem_train_desc how = slanted_desc();
    begin_slanted(&m, scale);
    how.max_gap = .5f;
    m.tr = jem_trainer_create(m.net, &how);
    if (!CHECK(m.tr != NULL, "%s", jem_error(m.ctx))) return;
    int first = 0;
    jem_stats s;
    for (int i = 0; i < UPDATES; i++) {
        fill_line(&m, i ? side : 0);               /* the first update is good, and is kept */
        s = step(&m);
        CHECK(s.status == JEM_OK, "%s", jem_error(m.ctx));
        const int above = fabsf(s.gap) > .5f * scale;
        CHECK(s.rolled_back == above, "scale %g: a gap of %g, update %d: %s", (double)scale,
              (double)s.gap, i, s.reason);
        if (!s.rolled_back) continue;
        CHECK(strstr(s.reason, "the mean of f(x+) - f(x-) is") != NULL, "'%s'", s.reason);
        if (!first) first = i;
    }
    CHECK(first == returns_at, "scale %g: the first return is at %d", (double)scale, first);
    if (!returns_at)
        CHECK_CLOSE(s.gap, -2 * side * (1 - powf(.9f, UPDATES - 1)), .2, "the mean gap");
    end(&m);
}

/* A step that no chain takes cannot be too wide. */
static void test_no_steps(void) {
    printf("chains that do not walk\n");
    moons m;
    jem_train_desc how = slanted_desc();
    begin_slanted(&m, 1);
    how.sgld.step_size = 1e4f;
    m.tr = jem_trainer_create(m.net, &how);
    if (!CHECK(m.tr != NULL, "%s", jem_error(m.ctx))) return;
    for (int i = 0; i < 45; i++) {
        fill_line(&m, 0);
        const jem_stats s = step(&m);
        CHECK(s.status == JEM_OK && !s.rolled_back, "update %d: '%s'", i, s.reason);
    }
    end(&m);
}

/* Checks networks of several scales: the mean of a gap of 2 is 2 - 2 * .9^k after k updates. */
static void test_gap(void) {
    printf("a mean gap above max_gap, in units of the network's scale\n");
    for (int side = -1; side <= 1; side += 2) {
        check_gap(1, (float)side, 3);
        check_gap(2, (float)side, 7);
        check_gap(10, (float)side, 0);
    }
}

/* Contrastive terms have no weight while the mean gap before the update is above pause_gap times
   the scale; chains walk on, and their statistics are there. The gap is 2 from update 1 on, and -2
   in the second half, where chains have caught up. */
static void check_pause(float scale, float pause_gap, int pauses_at) {
    enum { UPDATES = 24 };
    moons m;
    jem_train_desc how = slanted_desc();
    begin_slanted(&m, scale);
    how.w_score = 1e-9f;                           /* too little to change the loss */
    how.noise_lo = how.noise_hi = .1f;
    how.pause_gap = pause_gap;
    m.tr = jem_trainer_create(m.net, &how);
    if (!CHECK(m.tr != NULL, "%s", jem_error(m.ctx))) return;
    int first = 0;
    int last_paused = 0;
    float gap = 0;                                 /* before this update */
    for (int i = 0; i < UPDATES; i++) {
        const int caught_up = i >= UPDATES / 2;
        float place = caught_up ? 1.f : -1.f;
        if (!i) place = 0;
        fill_line(&m, place);
        const jem_stats s = step(&m);
        const int paused = pause_gap > 0 && gap > pause_gap * scale;
        CHECK(s.status == JEM_OK && !s.rolled_back, "%s%s", jem_error(m.ctx), s.reason);
        CHECK_CLOSE(s.loss, paused ? 0 : s.cd, 1e-4, "scale %g, update %d: the loss", (double)scale,
                    i);
        if (i) CHECK((caught_up ? s.cd : -s.cd) > 1, "update %d: cd %g", i, (double)s.cd);
        CHECK_CLOSE(s.cd, s.f_sample - s.f_data, 1e-4, "update %d: cd", i);
        int walked = 0;
        for (int k = 0; k < BATCH; k++) walked += jem_trainer_buffer(m.tr)->visits[k] == 2;
        CHECK(walked > BATCH / 4, "update %d: %d chains have walked", i, walked);
        if (paused && !first) first = i;
        last_paused = paused;
        gap = s.gap;
    }
    CHECK(first == pauses_at && !last_paused, "scale %g: the first pause is at %d%s", (double)scale,
          first, last_paused ? ", the last does not end" : "");
    end(&m);
}

static void test_pause(void) {
    printf("pauses while the mean gap is above pause_gap, in units of the network's scale\n");
    check_pause(1, 0, 0);
    check_pause(1, .1f, 2);
    check_pause(1, .5f, 4);
    check_pause(2, .25f, 4);
    check_pause(1, 3, 0);
}

/* A score that is forgotten: the residual is 1 again. */
static void test_forgotten(void) {
    printf("a score that is forgotten\n");
    moons m;
    jem_train_desc how = jem_train_desc_default();
    int forgets = 1;
    jem_stats s;
    begin_with(&m, -1, .03f, .1f);
    how.lr = 3e-3f;
    how.weights.ce = 0;
    how.weights.cd = 0;
    how.w_score = 1;
    how.noise_lo = 1;
    m.net->scale = 10;
    jem_trainer_free(m.tr);
    m.tr = jem_trainer_create(m.net, &how);
    for (int i = 0; i < 575; i++) {                /* update 600 must not keep what is forgotten */
        s = step(&m);
        CHECK(!s.rolled_back, "update %d: %s", i, s.reason);
    }
    CHECK(s.residual < .5f, "residual %g", (double)s.residual);
    for (int i = 0; i < 100 && forgets; i++) {
        for (jem_param *p = m.net->params; p; p = p->next) {
            memset(p->value, 0, (size_t)p->size * sizeof *p->value);
            jem_param_changed(p);
        }
        s = step(&m);
        if (!s.rolled_back) continue;
        forgets = 0;
        CHECK(strstr(s.reason, "the residual of the score is") != NULL, "'%s'", s.reason);
        CHECK(i > 20 && i < 80, "after %d updates", i);
    }
    CHECK(!forgets, "it does not return");
    for (int i = 0; i < 60; i++) {
        s = step(&m);
        CHECK(!s.rolled_back && s.residual < .5f, "afterwards: %g", (double)s.residual);
    }
    end(&m);
}

/* A file's guard with a number that cannot be there is refused, and nothing changes. */
static void test_hostile_file(void) {
    printf("files with a guard that cannot be\n");
    static const char *const part[4] = { "guard.pulse", "guard.counts", "guard.state",
                                         "guard.state" };
    for (int way = 0; way < 4; way++) {
        moons m, n;
        begin(&m, -1);
        begin(&n, -1);
        for (int i = 0; i < 105; i++) step(&m);
        jem_archive *a = jem_archive_create(m.ctx);
        jem_trainer_to_archive(m.tr, a);
        const jem_entry *e = jem_archive_find(a, part[way]);
        if (!CHECK(e != NULL, "the guard is in the checkpoint")) return;
        float *f = (float *)(uintptr_t)e->data;
        ptrdiff_t weights = jem_net_size(m.net);
        if (way == 0) f[5] = 7;
        else if (way == 1) ((int64_t *)(uintptr_t)e->data)[0] = -1;
        else if (way == 2) f[3] = NAN;
        else f[weights + m.net->params->size] = -1;    /* the first second moment */
        size_t size = 0;
        char *bytes = (char *)jem_archive_to_memory(a, &size);
        jem_archive *b = jem_archive_parse(n.ctx, bytes, size);
        CHECK(b && jem_trainer_from_archive(n.tr, b) == JEM_BAD_FILE, "way %d: %s", way,
              jem_error(n.ctx));
        CHECK(jem_trainer_updates(n.tr) == 0, "way %d: nothing changed", way);
        jem_clear_error(n.ctx);
        jem_archive_free(a);
        jem_archive_free(b);
        jem_release(m.ctx, bytes);
        end(&m);
        end(&n);
    }
}

/* Checks that archives of a trainer stay valid when it reads one of them, with or without a state
   of the guard. */
static void test_own_archive(void) {
    printf("a trainer reads its own archive, twice\n");
    moons m;
    begin(&m, -1);
    jem_archive *first = jem_archive_create(m.ctx);
    CHECK(jem_trainer_to_archive(m.tr, first) == JEM_OK, "%s", jem_error(m.ctx));
    size_t bytes_before = 0;
    char *before = (char *)jem_archive_to_memory(first, &bytes_before);
    jem_archive_free(first);
    for (int i = 0; i < 105; i++) step(&m);
    jem_archive *a = jem_archive_create(m.ctx);
    CHECK(jem_trainer_to_archive(m.tr, a) == JEM_OK, "%s", jem_error(m.ctx));
    size_t size[2] = { 0, 0 };
    char *bytes[2];
    bytes[0] = (char *)jem_archive_to_memory(a, &size[0]);
    for (int i = 0; i < 2; i++)
        CHECK(jem_trainer_from_archive(m.tr, a) == JEM_OK, "%s", jem_error(m.ctx));
    bytes[1] = (char *)jem_archive_to_memory(a, &size[1]);
    CHECK(size[0] == size[1] && bytes[0] && bytes[1] && !memcmp(bytes[0], bytes[1], size[0]),
          "nothing has changed");
    CHECK(step(&m).status == JEM_OK, "%s", jem_error(m.ctx));
    first = jem_archive_parse(m.ctx, before, bytes_before);
    CHECK(first && jem_trainer_from_archive(m.tr, first) == JEM_OK, "%s", jem_error(m.ctx));
    jem_release(m.ctx, jem_archive_to_memory(a, &size[1]));            /* reads all that a holds */
    CHECK(jem_trainer_updates(m.tr) == 0 && step(&m).status == JEM_OK, "%s", jem_error(m.ctx));
    jem_archive_free(first);
    jem_release(m.ctx, before);
    for (int i = 0; i < 2; i++) jem_release(m.ctx, bytes[i]);
    jem_archive_free(a);
    end(&m);
}

static void test_scale(void) {
    printf("jem_train_desc_score and a network of scale 1\n");
    moons m;
    begin(&m, -1);
    const jem_train_desc d = jem_train_desc_score(100);
    CHECK(jem_trainer_create(m.net, &d) == NULL && strstr(jem_error(m.ctx), "scale") != NULL,
          "scale 1: %s", jem_error(m.ctx));
    jem_clear_error(m.ctx);
    m.net->scale = 10;
    jem_trainer *tr = jem_trainer_create(m.net, &d);
    CHECK(tr != NULL, "scale 10: %s", jem_error(m.ctx));
    jem_trainer_free(tr);
    end(&m);
}

static char logged[400];
static int logs;
static void keep_log(void *user, const char *message) {
    (void)user;
    logs++;
    snprintf(logged, sizeof logged, "%s", message);
}

/* Checks the note about a copy that has been old for 1,000 updates, and that a rollback names its
   state. */
static void test_old_copy(void) {
    printf("a good state that is old\n");
    moons m;
    begin(&m, 2);
    m.ctx->desc.log = keep_log;
    for (int i = 0; i < 100; i++) step(&m);
    CHECK(m.tr->guard.updates == 100, "a good state after %d", m.tr->guard.updates);
    logs = 0;
    for (int k = 1; k <= 2; k++) {
        m.tr->updates = 1000 * k;                  /* the first is only 900 later */
        jem__guard_note_age(m.tr);
        CHECK(logs == k - 1, "after %d updates: %d notes", m.tr->updates, logs);
    }
    m.tr->updates = 2999;
    m.tr->desc.max_gap = 0.2f;                     /* too large to keep, but no rollback */
    step(&m);
    CHECK(logs == 2 && strstr(logged, "after 3000 updates"), "%d notes: %s", logs, logged);
    m.tr->desc.max_gap = 100;
    CHECK(strstr(logged, "after 3000 updates") && strstr(logged, "after 100:"), "%s", logged);
    poison(m.net);
    const jem_stats s = step(&m);
    CHECK(s.rolled_back && strstr(logged, "state, after 100 updates"), "%s", logged);
    end(&m);
}

static void test_resumed_late(void) { test_resumed(470, 0); }
static void test_resumed_early(void) { test_resumed(410, 0); }
static void test_resumed_older(void) { test_resumed(410, 1); }

int main(int argc, char **argv) {
    static const test_case all[] = {
        TEST(test_same_program), TEST(test_without), TEST(test_resumed_late),
        TEST(test_resumed_early), TEST(test_resumed_older), TEST(test_poisoned),
        TEST(test_reasons), TEST(test_bad_first), TEST(test_no_steps), TEST(test_gap),
        TEST(test_pause), TEST(test_forgotten), TEST(test_classes), TEST(test_rare_class),
        TEST(test_offset),
        TEST(test_hostile_file), TEST(test_own_archive), TEST(test_scale),
        TEST(test_first_program), TEST(test_unstable), TEST(test_old_copy), TEST(test_narrow_range)
    };
    if (argc == 2 && !strcmp(argv[1], "long")) {
        long_run = 20000;
        argc = 1;                                  /* no name of a test */
    }
    return test_main(argc, argv, all, TEST_COUNT(all));
}
