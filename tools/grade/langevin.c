/* Checks assignment 1 on N(0,1), where everything is known. */
#include "grade.h"
#include ANSWER

enum { STEPS = 100000 };
static double chain[STEPS];

/* The variance of Langevin's chain is 1/(1 - a/4): x <- (1 - a/2) x + sqrt(a) z. */
static void check_langevin(void) {
    jem_rng rng = jem_rng_seed(1);
    double x = 0, y = 3, sum = 0, square = 0;
    langevin_step(&y, -3, 0.5, 0);
    points(1, near(y, 2.25, 1e-12), "a step without noise goes uphill by a/2 times the slope");
    for (int i = 0; i < STEPS; i++) {
        langevin_step(&x, -x, 1, (double)jem_rng_normal(&rng));
        sum += x / STEPS;
        square += x * x / STEPS;
    }
    points(2, near(sum, 0, 0.02) && near(square, 4 / 3.0, 0.03),
           "with a = 1 the variance on N(0,1) is 1.333, not 1");
}

static void check_mala(void) {
    jem_rng rng = jem_rng_seed(2);
    double x = 0, square = 0;
    int accepted = 0;
    const double ratio = mala_log_ratio(1, -0.5, -1, 2, -2, -2, 1);
    /* log q(1|2) = -(1 - 1)^2/2, log q(2|1) = -(2 - 0.5)^2/2 */
    points(2, near(ratio, -1.5 + 1.125, 1e-9), "the ratio of a step from 1 to 2 is -0.375");
    for (int i = 0; i < STEPS; i++) {
        const double to = x / 2 + (double)jem_rng_normal(&rng);
        const double log_ratio = mala_log_ratio(x, -x * x / 2, -x, to, -to * to / 2, -to, 1);
        if (log((double)jem_rng_uniform(&rng) + 1e-12) < log_ratio) {
            x = to;
            accepted++;
        }
        square += x * x / STEPS;
    }
    points(2, near(square, 1, 0.03) && accepted > STEPS / 2,
           "with these rejections, the variance is 1");
}

/* The autocorrelation of x <- phi x + z is phi^k, its time (1 + phi)/(1 - phi). */
static void check_time(void) {
    static const double phi[] = { 0, 0.5, 0.9 };
    int right = 0;
    for (int k = 0; k < 3; k++) {
        jem_rng rng = jem_rng_seed(3);
        double x = 0;
        for (int i = 0; i < STEPS; i++) {
            x = phi[k] * x + (double)jem_rng_normal(&rng);
            chain[i] = 5 + x;
        }
        const double known = (1 + phi[k]) / (1 - phi[k]);
        right += near(autocorrelation_time(chain, STEPS), known, 0.08 * known);
    }
    points(3, right == 3, "autocorrelation times of 1, 3 and 19 are found");
}

int main(void) {
    check_langevin();
    check_mala();
    check_time();
    return total("langevin");
}
