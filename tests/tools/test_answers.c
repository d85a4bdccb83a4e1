/* The answers in examples/README.md: each number that proves one is computed again here, and has to
   be in the text. Answers that quote a lesson's output are checked by tests/run.sh (claims). */
#define JEM_IMPLEMENTATION
#include "jem.h"
#include "tests/support/test.h"
#include "tests/support/common.h"

#define main samplers_main
#include "examples/samplers.c"
#undef main

static char course[1 << 17];

/* Checks that the page contains a text, whose words may be on different lines. */
static void quoted(const char *words) {
    CHECK(strstr(course, words) != NULL, "the course says: %s", words);
}

static int read_course(void) {
    FILE *file = fopen("examples/README.md", "rb");
    size_t size = 0;
    if (file) {
        size = fread(course, 1, sizeof course - 1, file);
        fclose(file);
    }
    for (size_t i = 0; i < size; i++) {
        if (course[i] == '\n') course[i] = ' ';
    }
    return size > 1000;
}

static void test_folded(void) {
    int questions = 0;
    int answers = 0;
    for (const char *at = course; (at = strstr(at, "*Question:*")) != NULL; at++) questions++;
    for (const char *at = course; (at = strstr(at, "<summary>Answer</summary>")) != NULL; at++) {
        answers++;
    }
    CHECK(questions >= 15 && questions == answers, "%d questions, %d answers", questions, answers);
}

/* Films have at most 500 kB, and the course links to each. */
static void test_films(void) {
    static const char *const film[] = { "films_chain", "films_bowl", "films_cross", "films_push",
                                        "film", "films_digit", "films_both", "films_diverge",
                                        "films_turn" };
    for (size_t k = 0; k < sizeof film / sizeof *film; k++) {
        char path[64];
        snprintf(path, sizeof path, "examples/gallery/%s.png", film[k]);
        FILE *file = fopen(path, "rb");
        if (!CHECK(file != NULL, "%s", path)) continue;
        fseek(file, 0, SEEK_END);
        CHECK(ftell(file) <= 500000, "%s has %ld bytes", path, ftell(file));
        fclose(file);
        quoted(path + 9);
    }
}

/* A wave sin(w x) at WAVE_POINTS points, fitted by gradient descent. */
enum { WAVE_POINTS = 64, WAVE_HIDDEN = 32 };
static jem_tensor *wave_forward(jem_net *net, jem_tensor *x, int training, void *user) {
    const jem_layer *layer = (const jem_layer *)user;
    for (int k = 0; k < 3; k++) {
        x = jem_apply(layer + k, x, training);
        if (k < 2) x = jem_tanh(net->ctx, x);
    }
    return x;
}

/* Returns the fraction of a wave's mean square that is not learned after some steps. */
static double wave_left(jem_ctx *ctx, float frequency, int steps) {
    static const int size[4] = { 1, WAVE_HIDDEN, WAVE_HIDDEN, 1 };
    static const char *const name[3] = { "a", "b", "c" };
    float x[WAVE_POINTS], y[WAVE_POINTS];
    double left = 0;
    double square = 0;
    jem_net *net = jem_net_create(ctx, wave_forward, NULL, 3 * sizeof(jem_layer), 1, 1, 1, 1, 1);
    if (!CHECK(net != NULL, "%s", jem_error(ctx))) return 1;
    for (int k = 0; k < 3; k++) {
        ((jem_layer *)net->user)[k] = jem_linear_layer(net, name[k], size[k], size[k + 1]);
    }
    for (int i = 0; i < WAVE_POINTS; i++) {
        x[i] = 2 * ((float)i + 0.5f) / WAVE_POINTS - 1;
        y[i] = sinf(frequency * x[i]);
        square += (double)(y[i] * y[i]) / WAVE_POINTS;
    }
    for (int step = 0; step <= steps; step++) {
        const jem_mark mark = jem_begin(ctx);
        jem_tensor *in = jem_input(ctx, x, WAVE_POINTS, 1, 1, 1);
        jem_tensor *wanted = jem_input(ctx, y, WAVE_POINTS, 1, 1, 1);
        jem_tensor *off = jem_sub(ctx, jem_forward(net, in, 1), wanted);
        jem_tensor *loss = jem_mean(ctx, jem_square(ctx, off));
        left = (double)jem_item(loss) / square;
        jem_zero_grad(net);
        jem_backward(loss);
        for (jem_param *p = net->params; p; p = p->next) {
            for (ptrdiff_t i = 0; i < p->size; i++) p->value[i] -= 0.1f * p->grad[i];
            jem_param_changed(p);
        }
        jem_end(ctx, mark);
    }
    jem_net_free(net);
    return left;
}

/* Lesson 1: fast waves are learned later than slow ones. */
static void test_waves(void) {
    jem_ctx *ctx = jem_ctx_create(NULL);
    const double slow = wave_left(ctx, 2, 400);
    const double fast = wave_left(ctx, 8, 400);
    const double later = wave_left(ctx, 8, 3000);
    printf("    after 400 steps %.0f%% of the slow wave is left, %.0f%% of the fast one; "
           "after 3000 %.0f%%\n", 100 * slow, 100 * fast, 100 * later);
    CHECK(slow < 0.1 && fast > 0.5, "%g, %g", slow, fast);
    CHECK(later < fast / 2, "it is learned later: %g", later);
    quoted("fast waves are learned later than slow ones");
    jem_ctx_free(ctx);
}

/* Lessons 2 and 8: g(x), added to all logits, cancels in the softmax and moves p(x). */
static void test_added(void) {
    double mean[2] = { 0, 0 };
    for (int added = 0; added < 2; added++) {
        double z = 0;
        double first = 0;
        for (int i = 0; i <= 800; i++) {
            const double x = (i - 400) / 100.0;
            const double g = added ? -x * x : 0;
            const double a = exp(x - x * x / 4 + g);
            const double b = exp(-x - x * x / 4 + 1 + g);
            z += a + b;
            first += fabs(x) * (a + b);
            CHECK_CLOSE(a / (a + b), 1 / (1 + exp(1 - 2 * x)), 1e-12, "softmax at %g", x);
        }
        mean[added] = first / z;
    }
    CHECK(mean[1] < 0.6 * mean[0], "p(x) moves to the origin: |x| is %g, %g", mean[0], mean[1]);
    quoted("With g(x) = −|x|², p(x) moves towards the origin");
}

/* Lesson 2: Z of the logits 1.2 x and 0.6 - 1.2 x, in a box; on the whole line with a bowl. */
static void test_bowl(void) {
    const double both = 1 + exp(0.6);
    const double pi = acos(-1.0);
    CHECK_CLOSE((exp(1.2) - exp(-1.2)) / 1.2 * both, 7.1, 0.05, "Z in [-1,1]");
    CHECK_CLOSE((exp(7.2) - exp(-7.2)) / 1.2 * both, 3150, 0.5, "Z in [-6,6]");
    CHECK_CLOSE(sqrt(4 * pi) * exp(1.44) * both, 42.2, 0.05, "Z with -x^2/4");
    quoted("Z is 7.1 over [−1,1] and 3,150 over [−6,6]");
    quoted("Z converges to 42.2");
}

/* Returns the variance of x <- (1 - s) x + sigma z on N(0,1) after many steps. */
static double settled(double s, double sigma) {
    double variance = 0;
    for (int i = 0; i < 100000; i++) variance = (1 - s) * (1 - s) * variance + sigma * sigma;
    return variance;
}

/* Lessons 3 and 6: the bias of a step of a; the temperature of s and sigma. */
static void test_step(void) {
    static const double a[] = { 0.01, 0.1, 2 };
    static const char *const printed[] = { "1.0025 for a = 0.01", "1.0256 for 0.1", "and 2 for 2" };
    for (int k = 0; k < 3; k++) {
        char text[32];
        const double variance = settled(a[k] / 2, sqrt(a[k]));
        CHECK_CLOSE(variance, 1 / (1 - a[k] / 4), 1e-9, "1/(1 - a/4) for a = %g", a[k]);
        snprintf(text, sizeof text, "%.4f", variance);
        CHECK(k == 2 || !strncmp(text, printed[k], 6), "%s, not %s", text, printed[k]);
        quoted(printed[k]);
    }
    CHECK_CLOSE(settled(1e-3, sqrt(2e-3)), 1, 1e-3, "T = 1");
    CHECK_CLOSE(settled(1e-3, 0.03), 0.03 * 0.03 / 2e-3, 1e-3, "T = sigma^2/2s");
    CHECK_CLOSE(0.01 * 0.01 / 2, 5e-5, 1e-12, "the paper's temperature");
    quoted("T = σ²/2s = 5·10⁻⁵");
}

/* Lesson 3: all chains start in the left mode, agree, and are wrong. */
static void test_r_hat(void) {
    static trace t;
    jem_ctx *ctx = jem_ctx_create(NULL);
    jem_rng rng = jem_rng_seed(1);
    jem_mcmc_desc how = jem_mcmc_desc_default();
    t.which = MODES;
    t.ladder = 1;
    how.step_size = STEP;
    how.leapfrog = 1;
    how.steps = 2000;
    how.watch = record;
    how.watch_user = &t;
    jem_fill_uniform(ctx, &rng, t.now, 2 * CHAINS, -2.5f, 0);
    jem_tensor *x = jem_input(ctx, t.now, CHAINS, 2, 1, 1);
    CHECK(jem_mcmc(ctx, density, &t.which, x, &how, &rng, NULL) == JEM_OK, "%s", jem_error(ctx));
    const int from = t.steps / 8;
    const chain_stats c = measure_chains(t.value + from * CHAINS, t.steps - from, CHAINS);
    printf("    E u is %.3f, R-hat %.4f\n", c.mean, c.rhat);
    CHECK(c.rhat < 1.005, "R-hat is %g", c.rhat);
    CHECK_CLOSE(c.mean, -1.8, 0.05, "E u");
    quoted("R-hat of 1.00, although the mean of the first coordinate is −1.8 instead of 0.72");
    jem_ctx_free(ctx);
}

/* Lesson 4: d log Z/dw = E[df/dw], on a grid, for f(x) = w x - x^4/4 + sin(w x). */
static void test_log_z(void) {
    double log_z[3];
    double mean = 0;
    for (int k = 0; k < 3; k++) {
        const double w = 0.7 + 1e-4 * (k - 1);
        double z = 0;
        double sum = 0;
        for (int i = 0; i <= 2000; i++) {
            const double x = (i - 1000) / 200.0;
            const double p = exp(w * x - x * x * x * x / 4 + sin(w * x));
            z += p;
            sum += p * (x + x * cos(w * x));
        }
        log_z[k] = log(z);
        if (k == 1) mean = sum / z;
    }
    CHECK_CLOSE((log_z[2] - log_z[0]) / 2e-4, mean, 1e-6, "d log Z/dw is the mean of df/dw");
    quoted("equals the mean of ∂f/∂w over the grid, weighted by p");
}

/* Lesson 4: chains that always start from noise make samples of a wrong density: with more steps
   they get worse. */
static void test_short_run(void) {
    enum { UPDATES = 500, BATCH = 256, AT_ONCE = 500 };
    static float x[2 * AT_ONCE], logp[AT_ONCE];
    int y[BATCH];
    double mean[2] = { 0, 0 };
    jem_ctx *ctx = jem_ctx_create(NULL);
    jem_net *net = density_net(ctx, 64, 1);
    jem_train_desc how = jem_train_desc_default();
    how.lr = 3e-3f;
    how.schedule.kind = JEM_SCHEDULE_COSINE;
    how.schedule.total = UPDATES;
    how.weights.ce = how.data_noise = 0;
    how.negatives = BATCH;
    how.reinit = 1;
    how.sgld = jem_sgld_desc_langevin(0.01f, 20);
    how.sgld.clamp_grad = 30;
    how.restart_lo = how.sgld.clamp_lo = -WORLD_BOX;
    how.restart_hi = how.sgld.clamp_hi = WORLD_BOX;
    jem_trainer *trainer = jem_trainer_create(net, &how);
    jem_rng rng = jem_rng_seed(1);
    for (int i = 0; trainer && i < UPDATES && jem_ok(ctx); i++) {
        world_sample(CIRCLES, &rng, BATCH, x, y);
        jem_train_step_semi(trainer, NULL, NULL, 0, x, BATCH);
    }
    for (int k = 0; k < 2; k++) {
        jem_sgld_desc walk = how.sgld;
        walk.steps = k ? 500 : 20;
        jem_fill_uniform(ctx, &rng, x, 2 * AT_ONCE, -WORLD_BOX, WORLD_BOX);
        jem_tensor *t = jem_input(ctx, x, AT_ONCE, 2, 1, 1);
        jem_sgld(ctx, jem_logp, net, t, &walk, &rng);
        jem_read(t, x);
        jem_reset(ctx);
        world_truth(CIRCLES, AT_ONCE, x, logp);
        mean[k] = mean_of(logp, AT_ONCE);
    }
    printf("    true mean log p of samples: %.2f after 20 steps, %.2f after 500\n", mean[0],
           mean[1]);
    CHECK(jem_ok(ctx) && mean[1] < mean[0] - 0.5, "%s", jem_error(ctx));
    quoted("if the samples get worse with more steps, they are not samples of p");
    jem_trainer_free(trainer);
    jem_net_free(net);
    jem_ctx_free(ctx);
}

/* Lesson 5: sqrt(d)/|grad f| where the gradient is that of noise, -z/sigma. */
static void test_noise_level(void) {
    enum { TRIES = 4000 };
    jem_rng rng = jem_rng_seed(3);
    double square = 0;
    int within = 0;
    for (int i = 0; i < TRIES; i++) {
        double sum = 0;
        for (int k = 0; k < 784; k++) {
            const double z = (double)jem_rng_normal(&rng);
            sum += z * z;
            if (k == 1) within += sum > 0.5 && sum < 8;        /* sqrt(2/sum) from 1/2 to 2 */
        }
        square += (sqrt(784 / sum) - 1) * (sqrt(784 / sum) - 1) / TRIES;
    }
    const double share = (double)within / TRIES;
    const double error = sqrt(square);
    printf("    in the plane within a factor of two: %.0f%%; 784 dimensions: an error of %.2f%%\n",
           100 * share, 100 * error);
    CHECK_CLOSE(share, exp(-0.25) - exp(-4.0), 0.03, "chi squared");
    CHECK(share > 0.7, "%g", share);
    CHECK_CLOSE(error, 1 / sqrt(2 * 784.0), 0.002, "1/sqrt(2 784)");
    quoted("1/√(2·784) = 2.5%");
}

/* Lessons 6 and 7: the density of a uniform distribution in the box of the worlds, and the true one
   of the two circles. The learned ones are outputs of mend_it (run.sh: claims). */
static void test_uniform(void) {
    CHECK_CLOSE(-log(36.0), -3.58, 0.005, "-log 36");
    quoted("−log 36 = −3.58");
    CHECK_CLOSE(world_mean_logp(CIRCLES, NULL), -2.21, 0.005, "log p of new points");
    quoted("the true density has −2.21");
    quoted("mean log p of −7.04 for new points");
    quoted("reach −2.23");
    quoted("broad noise reaches −3.01");
}

/* Lesson 7: exchanges between temperatures 1 and T keep the density of both: five states each. */
static void test_swaps(void) {
    static const double f[5] = { 0, 2, -1, 3, 0.5 };
    const double cold = 1, hot = 0.25;             /* 1/T */
    double joint[5][5];
    double after[5][5];
    double z = 0;
    memset(after, 0, sizeof after);
    for (int i = 0; i < 5; i++) {
        for (int j = 0; j < 5; j++) {
            joint[i][j] = exp(cold * f[i] + hot * f[j]);
            z += joint[i][j];
        }
    }
    for (int i = 0; i < 5; i++) {
        for (int j = 0; j < 5; j++) {
            const double swap = fmin(1, exp((cold - hot) * (f[j] - f[i])));
            after[j][i] += joint[i][j] * swap / z;
            after[i][j] += joint[i][j] * (1 - swap) / z;
        }
    }
    for (int k = 0; k < 25; k++) {
        CHECK_CLOSE(after[k / 5][k % 5], joint[k / 5][k % 5] / z, 1e-12, "states %d", k);
    }
    quoted("swap points with a probability that preserves the density of each");
}

/* Appendix: (A or B) and not (A and B), with floors: bounded, and high where one of them is. */
static void test_exactly_one(void) {
    const double bound = 1e-3;
    double peak = 0;
    double both = 0;
    double far = 0;
    for (int i = 0; i <= 400; i++) {
        const double x = (i - 200) / 20.0;
        const double a = exp(-(x + 1) * (x + 1) / 2) + bound;
        const double b = exp(-(x - 1) * (x - 1) / 2) + bound;
        const double value = log(a + b) - log(a * b);
        CHECK(-log(a * b) <= -2 * log(bound), "bounded at %g", x);
        if (fabs(x) < 1e-9) both = value;
        if (fabs(x - 3) < 1e-9) peak = value;
        if (i == 0) far = -log(a * b);
    }
    CHECK(peak > both + 1, "one of the two is likelier than both: %g, %g", peak, both);
    CHECK(far > 13, "without a floor, -log p would grow without bound: here %g", far);
    quoted("(A or B) and not (A and B)");
}

int main(int argc, char **argv) {
    static const test_case all[] = {
        TEST(test_folded), TEST(test_films), TEST(test_waves), TEST(test_added), TEST(test_bowl),
        TEST(test_step), TEST(test_r_hat), TEST(test_log_z),
        TEST(test_short_run), TEST(test_noise_level), TEST(test_uniform), TEST(test_swaps),
        TEST(test_exactly_one)
    };
    test_begin(argc, argv);
    if (!CHECK(read_course(), "no examples/README.md: run this in the project's directory")) {
        return test_report();
    }
    test_run(all, TEST_COUNT(all), NULL);
    return test_report();
}
