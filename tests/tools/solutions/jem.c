/* A solution of assignment 3. */
static double logsumexp(const double *logits, int classes) {
    double most = logits[0];
    double sum = 0;
    for (int k = 1; k < classes; k++) most = fmax(most, logits[k]);
    for (int k = 0; k < classes; k++) sum += exp(logits[k] - most);
    return most + log(sum);
}

static void softmax(const double *logits, int classes, double *p) {
    const double f = logsumexp(logits, classes);
    for (int k = 0; k < classes; k++) p[k] = exp(logits[k] - f);
}

/* For the data, the softmax of cross-entropy cancels that of f. */
static void loss_gradient(const double *data, int y, const double *sample, int classes,
                          double *g_data, double *g_sample) {
    (void)data;
    for (int k = 0; k < classes; k++) g_data[k] = k == y ? -1 : 0;
    softmax(sample, classes, g_sample);
}

static double temperature(double s, double sigma) { return sigma * sigma / (2 * s); }

static double familiarity(double f, const double *known, int n) {
    int below = 0;
    for (int i = 0; i < n; i++) below += known[i] <= f;
    return (1.0 + below) / (1 + n);
}
