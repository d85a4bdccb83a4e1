"""Vectors, beside scikit-learn: build/vectors on six kinds of data, and the best of isolation
forest, local outlier factor and Gaussian mixture (the number of components with the least BIC),
all in standardised units.

    python3 tests/tools/sklearn_vectors.py build/vectors [SEEDS]

AUROC of log p(x) may be .01 below that best one. Anomalies are of two sorts, half of each: points
spread evenly over the box of the data, and usual rows some of whose columns were exchanged with
those of other rows. Prints a table; seconds of processor time are only shown, since a busy machine
must not fail. The last line is: N passed, N failed.
"""
import os
import subprocess
import sys
import tempfile

import numpy as np
from sklearn.ensemble import IsolationForest
from sklearn.metrics import roc_auc_score
from sklearn.mixture import GaussianMixture
from sklearn.neighbors import LocalOutlierFactor
from sklearn.preprocessing import StandardScaler

TRAIN, TEST, MARGIN = 3000, 1000, .01


def blobs(rng, n, world):
    k = rng.integers(0, 5, n)
    return world["centre"][k] + world["size"][k][:, None] * rng.normal(size=(n, 4))


def sheet(rng, n, world):
    t, height = 1.5 * np.pi * (1 + 2 * rng.random(n)), 21 * rng.random(n)
    return np.stack([t * np.cos(t), height, t * np.sin(t)], 1) + .3 * rng.normal(size=(n, 3))


def rings(rng, n, world):
    radius, angle = rng.integers(1, 4, n)[:, None], 2 * np.pi * rng.random(n)
    return radius * np.stack([np.cos(angle), np.sin(angle)], 1) + .08 * rng.normal(size=(n, 2))


def regimes(rng, n, world):
    """Four switches and eight sensors in units of their own."""
    k, cause = rng.integers(0, 4, n), rng.normal(size=(n, 2))
    sensors = world["mean"][k] + np.einsum("ni,nij->nj", cause, world["gain"][k])
    sensors = (sensors + .2 * rng.normal(size=(n, 8))) * world["unit"]
    return np.concatenate([world["on"][k], sensors], 1)


def tails(rng, n, world):
    """Student's distribution of three degrees of freedom."""
    return rng.normal(size=(n, 6)) @ world["mix"].T * np.sqrt(3 / rng.chisquare(3, n))[:, None]


def fifty(rng, n, world):
    return rng.normal(size=(n, 5)) @ world["factors"] + .3 * rng.normal(size=(n, 50))


KINDS = [blobs, sheet, rings, regimes, tails, fifty]


def world_of(rng):
    mix = rng.normal(size=(6, 6)) @ np.diag([2, 1, 1, .5, .3, .2])
    return {"centre": 4 * rng.normal(size=(5, 4)), "size": rng.uniform(.3, 1.2, 5),
            "on": rng.integers(0, 2, (4, 4)).astype(float), "mean": 2 * rng.normal(size=(4, 8)),
            "gain": rng.normal(size=(4, 2, 8)), "unit": 10. ** rng.integers(-3, 4, 8), "mix": mix,
            "factors": rng.normal(size=(5, 50))}


def odd(rng, kind, n, world, train):
    lo, hi = np.percentile(train, 1, 0), np.percentile(train, 99, 0)
    box = lo + (hi - lo) * rng.random((n // 2, train.shape[1]))
    mixed = kind(rng, n - n // 2, world)
    for column in range(mixed.shape[1]):
        if mixed.shape[1] <= 3 or rng.random() < .5:
            mixed[:, column] = rng.permutation(mixed[:, column])
    return np.concatenate([box, mixed])


def peers(train, test, labels):
    """AUROC of each."""
    scale = StandardScaler().fit(train)
    x, t = scale.transform(train), scale.transform(test)
    mixtures = [GaussianMixture(k, random_state=0, reg_covar=1e-5).fit(x) for k in (1, 3, 5, 10, 20)]
    fits = {"forest": IsolationForest(random_state=0).fit(x),
            "LOF": LocalOutlierFactor(n_neighbors=20, novelty=True).fit(x),
            "mixture": min(mixtures, key=lambda m: m.bic(x))}
    return {name: roc_auc_score(labels, -fit.score_samples(t)) for name, fit in fits.items()}


def ours(program, train, test, labels):
    """AUROC of log p(x) and of familiarity, and the seconds of processor time."""
    with tempfile.TemporaryDirectory() as folder:
        names = [os.path.join(folder, name) for name in ("train.csv", "test.csv")]
        for name, x in zip(names, (train, test)):
            np.savetxt(name, x, delimiter=",", fmt="%.7g")
        start = os.times()
        done = subprocess.run([program] + names, capture_output=True, text=True,
                              env=dict(os.environ, OMP_NUM_THREADS="1"))
        end = os.times()
    if done.returncode:
        sys.exit(done.stderr)
    rows = [line.split(",") for line in done.stdout.splitlines()]
    score = np.array([[float(v) for v in row[:2]] for row in rows])
    spent = end.children_user - start.children_user
    return [roc_auc_score(labels, -score[:, k]) for k in (0, 1)] + [spent]


def main():
    program, seeds = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 1
    passed = failed = 0
    print("kind     seed  forest   LOF  mixture   log p(x)  familiarity  seconds")
    for kind in KINDS:
        for seed in range(1, seeds + 1):
            rng = np.random.default_rng(1000 * KINDS.index(kind) + seed)
            world = world_of(rng)
            train, usual = kind(rng, TRAIN, world), kind(rng, TEST, world)
            test = np.concatenate([usual, odd(rng, kind, TEST, world, train)])
            labels = np.r_[np.zeros(TEST), np.ones(TEST)]
            density, familiarity, seconds = ours(program, train, test, labels)
            other = peers(train, test, labels)
            good = density >= max(other.values()) - MARGIN
            passed, failed = passed + good, failed + (not good)
            print("%-8s %4d   %.4f %.4f %.4f   %.4f    %.4f      %5.1f%s" % (
                kind.__name__, seed, other["forest"], other["LOF"], other["mixture"], density,
                familiarity, seconds, "" if good else "   FAILED"), flush=True)
    print("%d passed, %d failed" % (passed, failed))
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
