/* A solution of assignment 1. */
static void langevin_step(double *x, double slope, double a, double noise) {
    *x += a / 2 * slope + sqrt(a) * noise;
}

static double log_q(double to, double from, double slope, double a) {
    const double off = to - from - a / 2 * slope;
    return -off * off / (2 * a);
}

static double mala_log_ratio(double from, double logp_from, double slope_from, double to,
                             double logp_to, double slope_to, double a) {
    return logp_to - logp_from + log_q(from, to, slope_to, a) - log_q(to, from, slope_from, a);
}

static double autocorrelation_time(const double *x, int n) {
    double mean = 0;
    double variance = 0;
    double sum = 1;
    for (int i = 0; i < n; i++) mean += x[i] / n;
    for (int i = 0; i < n; i++) variance += (x[i] - mean) * (x[i] - mean) / n;
    for (int k = 1; k < n; k++) {
        double rho = 0;
        for (int i = 0; i + k < n; i++) rho += (x[i] - mean) * (x[i + k] - mean) / n / variance;
        if (rho < 0.02) break;
        sum += 2 * rho;
    }
    return sum;
}
