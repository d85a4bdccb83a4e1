/* ASSIGNMENT 2: learning (lesson 4). The density is p(x) = exp f(x) / Z on [-4, 4], with
       f(x) = w[0] x + w[1] x^2 + w[2] x^3 + w[3] x^4
   Fill in the three functions. `make grade` checks them. */
enum { WEIGHTS = 4 };

/* Writes the gradient of the mean of log p(data) with respect to the weights. Its second term,
   E[grad f(x')], is the mean over the samples. */
static void gradient(const double *data, int n, const double *samples, int m, double *g) {
    (void)data;
    (void)n;
    (void)samples;
    (void)m;
    for (int k = 0; k < WEIGHTS; k++) g[k] = 0;
}

/* Moves each of n chains by `steps` steps of Langevin dynamics on f, and keeps them in [-4, 4]:
   while w[3] is above 0, f rises without limit outside. For a random number from N(0,1), call
   jem_rng_normal(rng). */
static void walk(const double *w, double *x, int n, int steps, double a, jem_rng *rng) {
    (void)w;
    (void)x;
    (void)n;
    (void)steps;
    (void)a;
    (void)rng;
}

/* Learns w from n data by persistent contrastive divergence: chains continue from update to update,
   and w moves along the gradient. At the start w is { 0, -1, 0, 0 }. You choose the number of
   chains, of updates, and the rates; a few seconds of computing time are enough, and 60 are the
   limit. */
static void learn(const double *data, int n, double *w, jem_rng *rng) {
    (void)data;
    (void)n;
    (void)w;
    (void)rng;
}
