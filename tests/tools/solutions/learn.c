/* A solution of assignment 2. */
enum { WEIGHTS = 4 };

static void gradient(const double *data, int n, const double *samples, int m, double *g) {
    for (int k = 0; k < WEIGHTS; k++) {
        g[k] = 0;
        for (int i = 0; i < n; i++) g[k] += pow(data[i], k + 1) / n;
        for (int i = 0; i < m; i++) g[k] -= pow(samples[i], k + 1) / m;
    }
}

static void walk(const double *w, double *x, int n, int steps, double a, jem_rng *rng) {
    for (int i = 0; i < n; i++) {
        for (int t = 0; t < steps; t++) {
            const double slope = w[0] + x[i] * (2 * w[1] + x[i] * (3 * w[2] + x[i] * 4 * w[3]));
            x[i] += a / 2 * slope + sqrt(a) * (double)jem_rng_normal(rng);
            if (x[i] > 4) x[i] = 4;
            if (x[i] < -4) x[i] = -4;
        }
    }
}

static void learn(const double *data, int n, double *w, jem_rng *rng) {
    enum { CHAINS = 200, UPDATES = 400 };
    static double x[CHAINS];
    double g[WEIGHTS];
    double mean[WEIGHTS] = { 0, 0, 0, 0 };
    double none[WEIGHTS];
    gradient(data, n, data, 0, mean);              /* the means of the data do not change */
    for (int i = 0; i < CHAINS; i++) x[i] = data[i % n];
    for (int u = 0; u < UPDATES; u++) {
        walk(w, x, CHAINS, 10, 0.04, rng);
        gradient(x, 0, x, CHAINS, none);
        for (int k = 0; k < WEIGHTS; k++) {
            g[k] = mean[k] + none[k];
            w[k] += 0.1 * (1 - (double)u / UPDATES) * g[k] / (1 + fabs(g[k]));
        }
    }
}
