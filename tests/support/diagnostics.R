# Makes the golden numbers of test_exact_samplers.c (the table `posterior`), with Stan's own R
# package. Debian: apt-get install r-cran-posterior. Run: Rscript tests/support/diagnostics.R
library(posterior)
for (case in list(c(200, 4, 0), c(1000, 2, 0.5), c(501, 3, 0), c(64, 1, 0),
               c(20, 2, 0))) {
    steps <- case[1]; chains <- case[2]; drift <- case[3]
    v <- matrix(0, steps, chains)
    s <- 1
    for (c in 1:chains) {
        at <- 0
        for (i in 1:steps) {
            s <- (s * 16807) %% 2147483647
            at <- 0.75 * at + s / 2147483648 - 0.5
            v[i, c] <- at + drift * (i - 1) * (c - 1) / steps
        }
    }
    cat(sprintf("    { %d, %d, %g, %.9g, %.9g, %.9g },\n", steps, chains, drift, ess_basic(v),
                rhat_basic(v), mean(v)))
}
