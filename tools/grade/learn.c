/* Checks assignment 2: against a density with two modes whose Z is a sum over a grid. */
#include "grade.h"
#include ANSWER

enum { DATA = 4000, CHAINS = 1000, GRID = 4001 };
static const double truth[WEIGHTS] = { 0.3, 1.5, 0, -0.5 };
static double data[DATA], fresh[DATA], chains[CHAINS];

static double value(const double *w, double x) {
    return x * (w[0] + x * (w[1] + x * (w[2] + x * w[3])));
}

/* Returns log Z over [-4, 4]. */
static double log_z(const double *w) {
    double sum = 0;
    for (int i = 0; i < GRID; i++) sum += exp(value(w, 8.0 * i / (GRID - 1) - 4));
    return log(sum * 8 / (GRID - 1));
}

static double mean_log_p(const double *w, const double *x) {
    double sum = 0;
    for (int i = 0; i < DATA; i++) sum += value(w, x[i]) / DATA;
    return sum - log_z(w);
}

/* Draws from the true density by rejection; its highest value is below e^1.7. */
static void draw(double *x, int n, unsigned seed) {
    jem_rng rng = jem_rng_seed(seed);
    for (int i = 0; i < n;) {
        const double at = 6 * (double)jem_rng_uniform(&rng) - 3;
        if (log((double)jem_rng_uniform(&rng) + 1e-12) + 1.7 < value(truth, at)) x[i++] = at;
    }
}

static void check_gradient(void) {
    static const double a[] = { 1, 2 }, b[] = { 0, -1, 2, 1 };
    double g[WEIGHTS] = { 9, 9, 9, 9 };
    gradient(a, 2, b, 4, g);
    points(3, near(g[0], 1, 1e-9) && near(g[1], 1, 1e-9) && near(g[2], 2.5, 1e-9) &&
              near(g[3], 4, 1e-9), "the gradient: data raise f, samples lower it");
}

static void check_walk(void) {
    static const double w[WEIGHTS] = { 2, -1, 0, 0 };          /* N(1, 1/2) */
    jem_rng rng = jem_rng_seed(4);
    double mean = 0, square = 0;
    for (int i = 0; i < CHAINS; i++) chains[i] = 0;
    walk(w, chains, CHAINS, 300, 0.02, &rng);
    for (int i = 0; i < CHAINS; i++) {
        mean += chains[i] / CHAINS;
        square += chains[i] * chains[i] / CHAINS;
    }
    points(3, near(mean, 1, 0.07) && near(square - mean * mean, 0.5, 0.07),
           "chains on f = 2 x - x^2 have a mean of 1 and a variance of 0.5");
}

static void check_learn(void) {
    double w[WEIGHTS] = { 0, -1, 0, 0 };
    jem_rng rng = jem_rng_seed(5);
    draw(data, DATA, 6);
    draw(fresh, DATA, 7);
    learn(data, DATA, w, &rng);
    const double best = mean_log_p(truth, fresh), found = mean_log_p(w, fresh);
    printf("  mean log p of new data: %.3f; of the true density: %.3f\n", found, best);
    points(2, found > best - 0.2, "the density is learned within 0.2 nats");
    points(2, found > best - 0.03, "and within 0.03");
}

int main(void) {
    check_gradient();
    check_walk();
    check_learn();
    return total("learn");
}
