/* ASSIGNMENT 1: sampling (lesson 3). Fill in the three functions. `make grade` checks them. */

/* Makes one step of Langevin dynamics: *x moves uphill by a/2 times the slope d log p/dx, plus
   noise of variance a. `noise` is a random number from N(0,1). */
static void langevin_step(double *x, double slope, double a, double noise) {
    (void)x;
    (void)slope;
    (void)a;
    (void)noise;
}

/* Returns the logarithm of the Metropolis-Hastings ratio of MALA, which accepts the step if it
   exceeds the logarithm of a uniform number:
       log p(to) - log p(from) + log q(from | to) - log q(to | from)
   where q(to | from) is the density of a Langevin step from `from`: N(from + a/2 slope, a). */
static double mala_log_ratio(double from, double logp_from, double slope_from, double to,
                             double logp_to, double slope_to, double a) {
    (void)from;
    (void)logp_from;
    (void)slope_from;
    (void)to;
    (void)logp_to;
    (void)slope_to;
    (void)a;
    return -1e9;
}

/* Returns the autocorrelation time 1 + 2 (rho_1 + rho_2 + ...) of a chain of n values. rho_k is
   the correlation of x[i] and x[i + k]; stop at the first rho_k below 0.02. */
static double autocorrelation_time(const double *x, int n) {
    (void)x;
    (void)n;
    return 0;
}
