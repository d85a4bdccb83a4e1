"""A machine's twelve sensors in three regimes, with four kinds of anomaly: build/vectors beside
scikit-learn's isolation forest and Gaussian mixture (the number of components with the least BIC),
in standardised units.

    python3 tests/tools/sklearn_sensors.py build/vectors [SEEDS]

The recipe is that of jem_mlp_desc_vectors in jem.h, without labels and without any adjustment.
AUROC of log p(x) and of familiarity must be above that of the isolation forest for each kind. The
data are a Gaussian mixture, so the fitted one is nearly the best detector there can be; log p(x) may
be .03 below it. The fraction of usual readings whose familiarity is below .01, .05 and .1 must be
within 3.5 standard errors of these. Prints a table; the last line is: N passed, N failed.
"""
import os
import subprocess
import sys
import tempfile

import numpy as np
from sklearn.ensemble import IsolationForest
from sklearn.metrics import roc_auc_score
from sklearn.mixture import GaussianMixture
from sklearn.preprocessing import StandardScaler

SENSORS, REGIMES, TRAIN, TEST, MARGIN = 12, 3, 2500, 1000, .03
HELD_OUT = TRAIN // 5                              # calibrate, in build/vectors
KINDS = ["twice the noise", "a stuck sensor", "an offset", "two regimes mixed"]
LEVELS = [.01, .05, .1]


def machine(rng):
    """In each regime, the sensors follow two hidden causes; each has a unit and an offset."""
    return {"mean": 2 * rng.normal(size=(REGIMES, SENSORS)),
            "gain": rng.normal(size=(REGIMES, 2, SENSORS)),
            "unit": 10. ** rng.integers(-3, 4, SENSORS), "offset": 20 * rng.normal(size=SENSORS)}


def readings(rng, m, n, kind=None):
    regime, failing = rng.integers(0, REGIMES, n), rng.integers(0, SENSORS, n)
    rows, cause = np.arange(n), rng.normal(size=(n, 2))
    other = (regime + rng.integers(1, REGIMES, n)) % REGIMES
    of = np.repeat(regime[:, None], SENSORS, 1)
    if kind == "two regimes mixed":
        of[:, 1::2] = other[:, None]
    sensor = np.arange(SENSORS)[None]
    x = m["mean"][of, sensor] + sum(cause[:, c, None] * m["gain"][of, c, sensor] for c in (0, 1))
    x += (.5 if kind == "twice the noise" else .25) * rng.normal(size=x.shape)
    if kind == "a stuck sensor":
        x[rows, failing] = m["mean"][0, failing]
    if kind == "an offset":
        x[rows, failing] += 1.5
    return (x + m["offset"]) * m["unit"]


def ours(program, train, test):
    """log p(x) and familiarity of each row of test."""
    with tempfile.TemporaryDirectory() as folder:
        names = [os.path.join(folder, name) for name in ("train.csv", "test.csv")]
        for name, x in zip(names, (train, test)):
            np.savetxt(name, x, delimiter=",", fmt="%.7g")
        done = subprocess.run([program] + names, capture_output=True, text=True,
                              env=dict(os.environ, OMP_NUM_THREADS="1"))
    if done.returncode:
        sys.exit(done.stderr)
    rows = [line.split(",") for line in done.stdout.splitlines()]
    return np.array([[float(v) for v in row[:2]] for row in rows]).T


def peers(train, test):
    """Scores of each row of test, higher for usual ones."""
    scale = StandardScaler().fit(train)
    x, t = scale.transform(train), scale.transform(test)
    mixtures = [GaussianMixture(k, random_state=0, reg_covar=1e-5).fit(x) for k in (1, 3, 5, 10)]
    return [IsolationForest(random_state=0).fit(x).score_samples(t),
            min(mixtures, key=lambda m: m.bic(x)).score_samples(t)]


def main():
    program, seeds = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 1
    passed = failed = 0
    print("seed  kind                forest  mixture   log p(x)  familiarity")
    for seed in range(1, seeds + 1):
        rng = np.random.default_rng(39 + seed)
        m = machine(rng)
        train = readings(rng, m, TRAIN)
        test = np.concatenate([readings(rng, m, TEST, kind) for kind in [None] + KINDS])
        scores = peers(train, test) + list(ours(program, train, test))
        for k, kind in enumerate(KINDS, 1):
            labels = np.r_[np.zeros(TEST), np.ones(TEST)]
            forest, mixture, density, familiarity = [
                roc_auc_score(labels, -np.r_[s[:TEST], s[k * TEST:(k + 1) * TEST]]) for s in scores]
            good = min(density, familiarity) > forest and density > mixture - MARGIN
            passed, failed = passed + good, failed + (not good)
            print("%4d  %-18s  %.4f   %.4f    %.4f       %.4f%s" % (
                seed, kind, forest, mixture, density, familiarity, "" if good else "   FAILED"))
        for level in LEVELS:
            share = np.mean(scores[3][:TEST] < level)
            error = np.sqrt(level * (1 - level) * (1 / HELD_OUT + 1 / TEST))
            good = abs(share - level) < 3.5 * error
            passed, failed = passed + good, failed + (not good)
            print("%4d  familiarity below %.2f: %.1f%% of usual readings%s" % (
                seed, level, 100 * share, "" if good else "   FAILED"), flush=True)
    print("%d passed, %d failed" % (passed, failed))
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
