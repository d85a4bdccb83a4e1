/* Sampling in pieces has the bits of sampling at once, for any division of the steps. */
#include "jem.h"
#include "tests/support/test.h"
#include "tests/support/common.h"

enum { N = 3, SIDE = 8, SIZE = N * SIDE * SIDE };

static jem_net *small_net(jem_ctx *ctx) {
    const small_shape s = { 1, SIDE, SIDE, 4, 0 };
    jem_net *net = small_convnet(ctx, s, 8, 8, 3);
    if (!net) return NULL;
    net->scale = 10;
    net->noise_lo = 0.12f;
    net->noise_hi = 2;
    net->mean = -0.5f;
    return net;
}

/* Few steps of each kind; those of the walk differ by their number. */
static jem_generate_desc few_steps(int denoise, int walk, float last_sigma) {
    jem_generate_desc d = jem_generate_desc_default();
    d.denoise.steps = denoise;
    d.walk.steps = walk;
    d.walk.decay_b = 3;
    d.walk.decay_gamma = 0.6f;
    d.walk.temperature_from = 4;
    d.walk.temperature_to = 0.5f;
    d.last_sigma = last_sigma;
    return d;
}

static void at_once(jem_net *net, const int *labels, const jem_generate_desc *d, float *x) {
    jem_ctx *ctx = net->ctx;
    jem_rng rng = jem_rng_seed(11);
    jem_query query = jem_net_query(net, labels);
    const jem_mark mark = jem_begin(ctx);
    jem_tensor *t = jem_zeros(ctx, N, 1, SIDE, SIDE);
    if (labels) jem_generate(ctx, jem_logp_guided, &query, t, d, &rng);
    else jem_generate(ctx, jem_logp, net, t, d, &rng);
    CHECK(jem_read(t, x) == JEM_OK, "%s", jem_error(ctx));
    jem_end(ctx, mark);
}

static void test_pieces(jem_net *net) {
    printf("pieces of any size\n");
    static const int phases[5][2] = { { 5, 6 }, { 5, 0 }, { 0, 6 }, { 0, 0 }, { 1, 1 } };
    const int labels[N] = { 2, 0, 3 };
    float wanted[SIZE];
    for (int k = 0; k < 5; k++)
        for (int piece = 0; piece < 8; piece++)
            for (int by_class = 0; by_class < 2; by_class++) {
                const jem_generate_desc d = few_steps(phases[k][0], phases[k][1], k ? 0.24f : 0);
                const int all = phases[k][0] + phases[k][1] + (k > 0);
                jem_budget b = { piece, 0, NULL, NULL };
                int calls = 0;
                at_once(net, by_class ? labels : NULL, &d, wanted);
                jem_sampler *s = jem_net_sampler(net, by_class ? labels : NULL, N, 11, &d);
                if (!CHECK(s != NULL, "%s", jem_error(net->ctx))) return;
                CHECK(s->step == 0 && s->steps == all, "%d of %d steps", s->step, s->steps);
                for (; s->step < s->steps && calls < 100; calls++) {
                    const int before = s->step;
                    CHECK(jem_sampler_step(s, &b) == JEM_OK, "%s", jem_error(net->ctx));
                    CHECK(!piece || s->step - before <= piece, "%d steps", s->step - before);
                }
                CHECK(calls == (piece ? (all + piece - 1) / piece : all > 0), "%d calls", calls);
                CHECK(same_bits(s->x, wanted, SIZE), "pieces of %d of (%d,%d)", piece, phases[k][0],
                      phases[k][1]);
                CHECK(jem_sampler_step(s, NULL) == JEM_OK && same_bits(s->x, wanted, SIZE),
                      "after the end nothing changes");
                jem_sampler_free(s);
            }
}

/* jem_sample is a sampler run to its end, and both are jem_generate. */
static void test_sample(jem_net *net) {
    printf("jem_sample\n");
    const int labels[N] = { 2, 2, 2 };
    const jem_generate_desc d = jem_net_generate_desc(net);
    unsigned char pixels[SIZE], wanted[SIZE];
    float x[SIZE];
    for (int by_class = 0; by_class < 2; by_class++) {
        at_once(net, by_class ? labels : NULL, &d, x);
        CHECK(jem_floats_to_pixels(net, x, N, NULL, wanted) == JEM_OK &&
              jem_sample(net, by_class ? 2 : -1, N, 11, NULL, pixels) == JEM_OK, "%s",
              jem_error(net->ctx));
        CHECK(!memcmp(pixels, wanted, sizeof wanted), "its pixels, by class: %d", by_class);
    }
}

/* Checks that the caller's labels may change afterwards. */
static void test_labels(jem_net *net) {
    printf("labels are copied\n");
    const int labels[N] = { 2, 0, 3 };
    int given[N] = { 2, 0, 3 };
    const jem_generate_desc d = few_steps(3, 2, 0.24f);
    float wanted[SIZE];
    at_once(net, labels, &d, wanted);
    jem_sampler *s = jem_net_sampler(net, given, N, 11, &d);
    for (int i = 0; i < N; i++) given[i] = i ? 1 : -1000;
    CHECK(jem_sampler_step(s, NULL) == JEM_OK, "%s", jem_error(net->ctx));
    CHECK(s && same_bits(s->x, wanted, SIZE), "samples of the labels that were given");
    jem_sampler_free(s);
}

/* Returns log p = -|x|^2 / 2. Counts its calls in calls[0]; that of number calls[1] fails. */
static jem_tensor *failing(jem_ctx *ctx, jem_tensor *x, void *user) {
    int *calls = (int *)user;
    if (++calls[0] == calls[1]) {
        jem_fail(ctx, JEM_BAD_ARGUMENT, "not this time");
        return NULL;
    }
    return gauss(ctx, x, NULL);
}

/* Checks that a call that fails after some steps leaves the state from before, and that the next
   call has the bits of a sampler that never failed. */
static void test_failure(jem_net *net) {
    printf("a step that fails\n");
    jem_ctx *ctx = net->ctx;
    const jem_shape shape = { N, 1, SIDE, SIDE };
    const jem_generate_desc d = few_steps(4, 4, 0);
    const jem_rng rng = jem_rng_seed(8);
    jem_budget two = { 2, 0, NULL, NULL };
    for (int at = 4; at <= 6; at++) {              /* the last step of denoising, then the walk */
        int calls[2] = { 0, at };
        int none[2] = { 0, 0 };
        float before[SIZE];
        jem_sampler *s = jem_sampler_create(ctx, failing, calls, shape, &d, &rng);
        jem_sampler *sound = jem_sampler_create(ctx, failing, none, shape, &d, &rng);
        CHECK(jem_sampler_step(s, &two) == JEM_OK && s->step == 2, "%s", jem_error(ctx));
        memcpy(before, s->x, sizeof before);
        CHECK(jem_sampler_step(s, NULL) == JEM_BAD_ARGUMENT && says(ctx, "not this time"),
              "call %d fails", at);
        CHECK(calls[0] == at, "%d calls", calls[0]);
        CHECK(s->step == 2 && same_bits(s->x, before, SIZE), "after an error it is as before");
        CHECK(jem_sampler_step(s, NULL) == JEM_OK && jem_sampler_step(sound, NULL) == JEM_OK, "%s",
              jem_error(ctx));
        CHECK(s->step == 8 && same_bits(s->x, sound->x, SIZE), "then it continues from there");
        jem_sampler_free(s);
        jem_sampler_free(sound);
    }
}

/* Every look at it takes so long. */
typedef struct fake_clock { double now, each; } fake_clock;
static double look(void *user) {
    fake_clock *c = (fake_clock *)user;
    c->now += c->each;
    return c->now;
}

static void test_time(jem_net *net) {
    printf("a budget of time\n");
    const jem_generate_desc d = few_steps(20, 20, 0);
    fake_clock c = { 1e9, 100 };                   /* a step takes 100 microseconds */
    jem_budget b = { 0, 450, look, &c };
    jem_sampler *s = jem_net_sampler(net, NULL, N, 1, &d);
    CHECK(jem_sampler_step(s, &b) == JEM_OK && s->step == 4 && s->slowest == 100,
          "four steps fit: %d of %g", s->step, s->slowest);
    c.each = 300;
    jem_sampler_step(s, &b);
    CHECK(s->step == 5 && s->slowest == 300, "a second one does not fit: %d", s->step);
    c.each = 100;
    jem_sampler_step(s, &b);
    CHECK(s->step == 7, "after 200 of 450, 300 do not fit: %d", s->step);
    b.microseconds = 1;
    jem_sampler_step(s, &b);
    CHECK(s->step == 8, "one is taken always: %d", s->step);
    b.microseconds = 1e9;
    b.steps = 3;
    jem_sampler_step(s, &b);
    CHECK(s->step == 11, "the first limit that is met: %d", s->step);
    const jem_budget late = { 0, -100, NULL, NULL };
    CHECK(jem_sampler_step(s, &late) == JEM_OK && s->step == 12, "a late frame: %d", s->step);
    jem_sampler_free(s);
}

static double backwards(void *user) {
    double *t = (double *)user;
    *t -= 1;
    return *t;
}
static double no_time(void *user) {
    double *t = (double *)user;
    return (*t)++ > 0 ? (double)NAN : 0;
}

/* Checks clocks that fail, and a pause in which the machine was suspended. */
static void test_bad_clock(jem_net *net) {
    printf("clocks that go back, return NaN, or were suspended\n");
    const jem_generate_desc d = few_steps(30, 30, 0);
    double t = 0;
    jem_budget b = { 0, 1e6, backwards, &t };
    jem_sampler *s = jem_net_sampler(net, NULL, N, 1, &d);
    CHECK(jem_sampler_step(s, &b) == JEM_OK && s->step == 1, "back: %d steps", s->step);
    b.clock = no_time;
    t = 0;
    CHECK(jem_sampler_step(s, &b) == JEM_OK && s->step == 2, "NaN: %d steps", s->step);
    CHECK(s->slowest == 0, "neither is a time: %g", s->slowest);
    fake_clock c = { 0, 1e9 };
    b.clock = look;
    b.clock_user = &c;
    b.microseconds = 1000;
    CHECK(jem_sampler_step(s, &b) == JEM_OK && s->step == 3 && s->slowest == 1000,
          "after a suspension: %g", s->slowest);
    c.each = 100;
    jem_sampler_step(s, &b);
    jem_sampler_step(s, &b);
    CHECK(s->step > 5, "soon several steps a call again: %d", s->step);
    s->x[3] = NAN;
    CHECK(jem_sampler_step(s, NULL) == JEM_BAD_ARGUMENT && says(net->ctx, "x contains"), "NaN");
    jem_sampler_free(s);
}

static void test_restart(jem_net *net) {
    printf("begun again\n");
    const jem_generate_desc d = few_steps(3, 2, 0.24f);
    float first[SIZE];
    jem_sampler *s = jem_net_sampler(net, NULL, N, 5, &d);
    jem_sampler_step(s, NULL);
    memcpy(first, s->x, sizeof first);
    CHECK(jem_sampler_restart(s) == JEM_OK && s->step == 0, "%s", jem_error(net->ctx));
    CHECK(jem_sampler_step(s, NULL) == JEM_OK && !same_bits(first, s->x, SIZE), "other samples");
    jem_sampler_free(s);
    s = jem_net_sampler(net, NULL, N, 5, &d);
    jem_sampler_step(s, NULL);
    CHECK(same_bits(first, s->x, SIZE), "the same seed, the same samples");
    jem_sampler_free(s);
}

static void test_other_classes(jem_net *net) {
    printf("other classes\n");
    const jem_generate_desc d = few_steps(3, 2, 0.24f);
    const int first[N] = { 0, 1, 2 };
    const int second[N] = { 2, 2, 1 };
    const int bad[N] = { 0, -1, 0 };
    jem_sampler *s = jem_net_sampler(net, first, N, 5, &d);
    jem_sampler *fresh = jem_net_sampler(net, second, N, 5, &d);
    jem_sampler *any = jem_net_sampler(net, NULL, N, 5, &d);
    jem_sampler_step(s, NULL);
    s->rng = jem_rng_seed(5);
    CHECK(jem_sampler_set_labels(s, second) == JEM_OK, "%s", jem_error(net->ctx));
    CHECK(jem_sampler_restart(s) == JEM_OK && same_bits(s->x, fresh->x, SIZE), "the same noise");
    CHECK(jem_sampler_set_labels(s, bad) == JEM_BAD_ARGUMENT &&
          says(net->ctx, "set_labels: label -1"), "a label");
    CHECK(jem_sampler_set_labels(s, NULL) == JEM_BAD_ARGUMENT && says(net->ctx, "NULL"), "NULL");
    CHECK(jem_sampler_set_labels(any, first) == JEM_BAD_ARGUMENT &&
          says(net->ctx, "was not made by"), "a sampler of any class");
    jem_sampler_step(s, NULL);
    jem_sampler_step(fresh, NULL);
    CHECK(same_bits(s->x, fresh->x, SIZE), "samples of the second classes, also after errors");
    jem_sampler_free(any);
    jem_sampler_free(fresh);
    jem_sampler_free(s);
}

/* The random numbers used up are those of jem_generate, also where noise becomes 0 in float. */
static void test_next_numbers(jem_net *net) {
    printf("random numbers after the last step\n");
    jem_ctx *ctx = net->ctx;
    for (int vanishes = 0; vanishes < 2; vanishes++) {
        jem_generate_desc d = few_steps(2, 40, 0.24f);
        float second[SIZE];
        if (vanishes) d.walk.decay_gamma = 80;
        jem_rng rng = jem_rng_seed(11);
        const jem_mark mark = jem_begin(ctx);
        jem_tensor *t = jem_zeros(ctx, N, 1, SIDE, SIDE);
        for (int k = 0; k < 2; k++) jem_generate(ctx, jem_logp, net, t, &d, &rng);
        jem_sampler *s = jem_net_sampler(net, NULL, N, 11, &d);
        jem_sampler_step(s, NULL);
        jem_sampler_restart(s);
        jem_sampler_step(s, NULL);
        CHECK(jem_read(t, second) == JEM_OK, "%s", jem_error(ctx));
        CHECK(same_bits(s->x, second, SIZE), "the second samples, vanishing: %d", vanishes);
        jem_sampler_free(s);
        jem_end(ctx, mark);
    }
}

static void test_wrong(jem_net *net) {
    printf("what is refused\n");
    jem_ctx *ctx = net->ctx;
    const jem_shape shape = { N, 1, SIDE, SIDE };
    const jem_shape none = { 0, 1, SIDE, SIDE };
    const jem_rng rng = jem_rng_seed(1);
    const int bad[N] = { 0, 4, 0 };
    jem_generate_desc d = few_steps(2, 2, 0);
    jem_budget b = { 0, 100, NULL, NULL };
    CHECK(!jem_sampler_create(ctx, NULL, net, shape, &d, &rng) && says(ctx, "log-density is NULL"),
          "no f");
    CHECK(!jem_sampler_create(ctx, jem_logp, net, shape, &d, NULL) && says(ctx, "the rng is NULL"),
          "no rng");
    CHECK(!jem_sampler_create(ctx, jem_logp, net, none, &d, &rng) && says(ctx, "(0,1,8,8)"), "n");
    CHECK(!jem_net_sampler(net, bad, N, 1, &d) && says(ctx, "label 4"), "a label");
    d.walk.steps = -1;
    CHECK(!jem_net_sampler(net, NULL, N, 1, &d) && says(ctx, "steps = -1"), "steps");
    d.walk.steps = INT32_MAX;
    CHECK(!jem_net_sampler(net, NULL, N, 1, &d) && says(ctx, "create: 2147483649 steps are"),
          "too many steps");
    d.walk.steps = 2;
    jem_sampler *s = jem_net_sampler(net, NULL, N, 1, &d);
    float before[SIZE];
    memcpy(before, s->x, sizeof before);
    CHECK(jem_sampler_step(s, &b) == JEM_BAD_ARGUMENT && says(ctx, "without a clock"), "no clock");
    b.microseconds = (double)NAN;
    CHECK(jem_sampler_step(s, &b) == JEM_BAD_ARGUMENT && says(ctx, "finite"), "NaN");
    b.microseconds = 0;
    b.steps = -1;
    CHECK(jem_sampler_step(s, &b) == JEM_BAD_ARGUMENT && says(ctx, "-1 steps"), "steps");
    CHECK(jem_sampler_step(NULL, NULL) == JEM_BAD_ARGUMENT && jem_ok(ctx), "NULL");
    net->params->value[0] = NAN;
    jem_param_changed(net->params);
    CHECK(jem_sampler_step(s, NULL) == JEM_DIVERGED && says(ctx, "not finite"), "a NaN");
    CHECK(s->step == 0 && same_bits(s->x, before, SIZE), "after an error it is as before");
    jem_sampler_free(s);
    jem_sampler_free(NULL);
}

int main(int argc, char **argv) {
    static const struct { const char *name; void (*run)(jem_net *net); } all[] = {
        { "test_pieces", test_pieces }, { "test_sample", test_sample }, { "test_time", test_time },
        { "test_bad_clock", test_bad_clock },
        { "test_labels", test_labels }, { "test_failure", test_failure },
        { "test_restart", test_restart }, { "test_other_classes", test_other_classes },
        { "test_next_numbers", test_next_numbers },
        { "test_wrong", test_wrong }
    };
    counter count;
    test_begin(argc, argv);
    jem_ctx *ctx = open_ctx(&count);
    jem_net *net = small_net(ctx);
    for (size_t i = 0; i < TEST_COUNT(all); i++) {
        if (test_wants(all[i].name)) all[i].run(net);
    }
    jem_net_free(net);
    close_ctx(ctx, &count, "all of the above");
    return test_report();
}
