#!/usr/bin/env python3
"""Writes tests/golden_uses.h: what numpy, scipy and scikit-learn say of the measures in
tools/measures.h and of jem_fit_temperature, for tests/test_uses.c to compare with.

    python3 tools/make_golden_uses.py            (needs python3-sklearn)

The logits, labels and scores themselves are not stored: both sides make them from their names, as
in make_golden.py.
"""
import os

import numpy as np
import scipy
import sklearn
from scipy.optimize import minimize_scalar
from sklearn.metrics import average_precision_score, log_loss, roc_auc_score, roc_curve

N, CLASSES = 400, 7


def noise(name, n):
    """n numbers in [-1,1): xorshift32, whose seed is the name's FNV-1a hash."""
    h = 2166136261
    for c in name.encode():
        h = (h ^ c) * 16777619 & 0xFFFFFFFF
    h |= 1
    out = []
    for _ in range(n):
        h ^= h << 13 & 0xFFFFFFFF
        h ^= h >> 17
        h ^= h << 5 & 0xFFFFFFFF
        out.append((h >> 8) / 8388608.0 - 1.0)
    return np.array(out)


def predictions(scale):
    """Logits, and labels that they are often, but not always, right about."""
    f = (scale * noise("logits", N * CLASSES)).astype(np.float32).astype(np.float64)
    f = f.reshape(N, CLASSES)
    return f, np.argmax(f + 3.0 * noise("labels", N * CLASSES).reshape(N, CLASSES), axis=1)


def softmax(f):
    e = np.exp(f - f.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def reliability(f, y, bins):
    p = softmax(f)
    sure, right = p.max(1), p.argmax(1) == y
    edges = np.linspace(0, 1, bins + 1)
    ece = mce = 0.0
    for lo, hi in zip(edges[:-1], edges[1:]):
        inside = (sure > lo) & (sure <= hi)
        if inside.any():
            gap = abs(sure[inside].mean() - right[inside].mean())
            ece, mce = ece + gap * inside.mean(), max(mce, gap)
    brier = ((p - np.eye(CLASSES)[y]) ** 2).sum(1).mean()
    return [right.mean(), sure.mean(), log_loss(y, p, labels=range(CLASSES)), brier, ece, mce]


def temperature(f, y):
    def nll(log_t):
        return log_loss(y, softmax(f / np.exp(log_t)), labels=range(CLASSES))
    return np.exp(minimize_scalar(nll, bounds=(-3, 3), method="bounded",
                                  options={"xatol": 1e-9}).x)


def scores(step):
    """Two overlapping sorts; step > 0: rounded to its multiples, so that many are equal."""
    usual, other = 0.4 + noise("usual", 300), noise("other", 200)
    if step:
        usual, other = np.floor(usual / step) * step, np.floor(other / step) * step
    return usual.astype(np.float32), other.astype(np.float32)


def detection(usual, other):
    truth = np.r_[np.ones(len(usual)), np.zeros(len(other))]
    score = np.r_[usual, other]
    fpr, tpr, _ = roc_curve(truth, score, drop_intermediate=False)
    return [roc_auc_score(truth, score), average_precision_score(truth, score),
            fpr[np.argmax(tpr >= 0.95)]]


def row(key, values):
    return "    { %s,\n      { %s } }" % (key, ", ".join("%.12g" % v for v in values))


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    rows = []
    for scale, t, bins in ((2, 1, 15), (2, 1, 20), (2, 2.5, 15), (6, 1, 10), (6, 0.5, 1),
                           (2, 1, 97)):
        f, y = predictions(scale)
        rows.append(row("%g, %g, %d" % (scale, t, bins), reliability(f / t, y, bins)))
    temperatures = [row("%g, 1, 0" % scale, [temperature(*predictions(scale))])
                    for scale in (1, 2, 6)]
    detections = [row("%g, 1, 0" % step, detection(*scores(step))) for step in (0, 0.125, 0.5, 2)]
    with open(os.path.join(here, "..", "tests", "golden_uses.h"), "w") as out:
        out.write("/* Made by tools/make_golden_uses.py: numpy %s, scipy %s, scikit-learn %s. */\n"
                  % (np.__version__, scipy.__version__, sklearn.__version__))
        out.write("typedef struct golden { double scale, temperature; int bins; double v[6]; } "
                  "golden;\n")
        for name, what, table in (
                ("reliability", "accuracy, confidence, nll, brier, ece, mce", rows),
                ("temperature", "the best temperature", temperatures),
                ("detection", "scale: the step of scores; auroc, aupr, fpr95", detections)):
            out.write("/* %s */\nstatic const golden golden_%s[] = {\n%s\n};\n"
                      % (what, name, ",\n".join(table)))


if __name__ == "__main__":
    main()
