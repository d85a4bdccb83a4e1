/* Checks assignment 3: by finite differences, and where numbers get large. */
#include "grade.h"
#include ANSWER

enum { CLASSES = 5, KNOWN = 999 };

/* Returns logsumexp as it is in the textbooks: right for small logits. */
static double plain(const double *logits) {
    double sum = 0;
    for (int k = 0; k < CLASSES; k++) sum += exp(logits[k]);
    return log(sum);
}

static double loss(const double *data, int y, const double *sample) {
    return -(data[y] - plain(data)) - (plain(data) - plain(sample));
}

/* Returns the slope of the loss along logit k of `what`, which is one of the two. */
static double slope(double *what, int k, const double *data, int y, const double *sample) {
    const double kept = what[k], h = 1e-5;
    what[k] = kept + h;
    const double up = loss(data, y, sample);
    what[k] = kept - h;
    const double down = loss(data, y, sample);
    what[k] = kept;
    return (up - down) / (2 * h);
}

static void check_logits(void) {
    static const double small[] = { 0.5, -1, 2, 0, 1 };
    static const double large[] = { 1000, 1000, 0, -1000, 999 };
    double p[CLASSES], sum = 0;
    points(1, near(logsumexp(small, CLASSES), plain(small), 1e-9), "logsumexp");
    points(1, near(logsumexp(large, CLASSES), 1000 + log(2 + exp(-1)), 1e-9),
           "logsumexp of logits of 1000");
    softmax(small, CLASSES, p);
    int right = 1;
    for (int k = 0; k < CLASSES; k++) {
        right = right && near(p[k], exp(small[k] - plain(small)), 1e-9);
    }
    points(1, right, "softmax");
    softmax(large, CLASSES, p);
    for (int k = 0; k < CLASSES; k++) sum += p[k];
    points(1, near(sum, 1, 1e-9) && near(p[0], 1 / (2 + exp(-1)), 1e-9),
           "softmax of logits of 1000");
}

static void check_loss(void) {
    double data[] = { 0.3, -0.7, 1.1, 0, 0.4 }, sample[] = { -0.2, 0.9, 0.1, 1.5, -1 };
    double g_data[CLASSES], g_sample[CLASSES];
    const int y = 2;
    int right_data = 1, right_sample = 1;
    loss_gradient(data, y, sample, CLASSES, g_data, g_sample);
    for (int k = 0; k < CLASSES; k++) {
        right_data = right_data && near(g_data[k], slope(data, k, data, y, sample), 1e-6);
        right_sample = right_sample && near(g_sample[k], slope(sample, k, data, y, sample), 1e-6);
    }
    points(2, right_data, "the gradient by the logits of the data");
    points(1, right_sample, "the gradient by the logits of the sample");
}

static void check_rest(void) {
    static double known[KNOWN];
    jem_rng rng = jem_rng_seed(1);
    points(1, near(temperature(1, 0.01), 5e-5, 1e-12) && near(temperature(0.5, 1), 1, 1e-12),
           "the temperature of the paper's walk is 0.00005");
    for (int i = 0; i < KNOWN; i++) known[i] = (double)jem_rng_normal(&rng);
    int below = 0;
    for (int i = 0; i < 20000; i++) {
        below += familiarity((double)jem_rng_normal(&rng), known, KNOWN) <= 0.1;
    }
    points(2, near(familiarity(-9, known, KNOWN), 0.001, 1e-9) &&
              near(familiarity(9, known, KNOWN), 1, 1e-9) && near(below / 20000.0, 0.1, 0.03),
           "a tenth of new images has a familiarity of at most 0.1");
}

int main(void) {
    check_logits();
    check_loss();
    check_rest();
    return total("jem");
}
