#!/usr/bin/env python3
"""Writes golden_uses.h: what numpy, scipy and scikit-learn say of the measures in
measures.h and of jem_fit_temperature, and where PyTorch's gradients take the attacks, for
test_uses.c to compare with.

    python3 tests/support/make_golden_uses.py            (needs python3-sklearn, python3-torch)

The logits, labels and scores themselves are not stored: both sides make them from their names, as
in make_golden.py.
"""
import os

import numpy as np
import scipy
import sklearn
import torch
from scipy.linalg import sqrtm
from scipy.optimize import minimize_scalar
from sklearn.metrics import average_precision_score, log_loss, roc_auc_score, roc_curve
from sklearn.neighbors import NearestNeighbors

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


POINTS, DIMS = 80, 5


def points(name, shift, scale):
    """POINTS points, correlated, moved and stretched."""
    x = noise(name, POINTS * DIMS).reshape(POINTS, DIMS)
    mix = noise("mix", DIMS * DIMS).reshape(DIMS, DIMS) + np.eye(DIMS)
    return (scale * x @ mix + shift).astype(np.float32).astype(np.float64)


def frechet(x, y):
    a, b = np.cov(x.T), np.cov(y.T)
    return (((x.mean(0) - y.mean(0)) ** 2).sum() + np.trace(a) + np.trace(b)
            - 2 * np.trace(sqrtm(a @ b).real))


def precision(samples, real, k=3):
    """By scikit-learn's neighbours; the first one of a point among its own is itself."""
    radius = NearestNeighbors(n_neighbors=k + 1).fit(real).kneighbors(real)[0][:, k]
    return (np.linalg.norm(samples[:, None] - real[None], axis=2) <= radius).any(1).mean()


PIXELS, HIDDEN, KINDS, IMAGES = 12, 16, 3, 6


def attack(l2, eps, steps):
    """PGD on a tanh network, from the images themselves; those that are fooled stay. The images
    that come out, and how many steps each took."""
    def made(name, *shape):
        return torch.tensor(noise(name, int(np.prod(shape))).astype(np.float32)
                            .astype(np.float64).reshape(shape))
    w1, b1, w2 = made("w1", HIDDEN, PIXELS), made("b1", HIDDEN), made("w2", KINDS, HIDDEN)

    def logits(v):
        return torch.tanh(v @ w1.T + b1) @ w2.T
    x = made("images", IMAGES, PIXELS)
    y, v, taken = logits(x).argmax(1), x.clone(), torch.zeros(IMAGES)
    for _ in range(steps):
        v = v.detach().requires_grad_()
        f = logits(v)
        going = (f.argmax(1) == y)[:, None]
        torch.nn.functional.cross_entropy(f, y, reduction="sum").backward()
        g = v.grad
        step = 2.5 * eps / steps * (g / g.norm(dim=1, keepdim=True) if l2 else g.sign())
        off = v.detach() + step - x
        if l2:
            off = off * torch.clamp(eps / off.norm(dim=1, keepdim=True), max=1)
        new = torch.clamp(x + torch.clamp(off, -eps, eps) if not l2 else x + off, -1, 1)
        v, taken = torch.where(going, new, v.detach()), taken + going[:, 0]
    return v.numpy(), taken.numpy()


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
    sets = []
    for shift, scale in ((0, 1), (0.3, 1), (0, 0.5), (2, 1.5)):
        x, y = points("here", shift, scale), points("there", 0, 1)
        sets.append(row("%g, %g, 3" % (shift, scale),
                        [frechet(x, y), precision(x, y), precision(y, x)]))
    with open(os.path.join(here, "golden_uses.h"), "w") as out:
        out.write("/* Made by make_golden_uses.py: numpy %s, scipy %s, scikit-learn %s. */\n"
                  % (np.__version__, scipy.__version__, sklearn.__version__))
        out.write("/* Attacks: PyTorch %s in double. */\n" % torch.__version__)
        out.write("typedef struct golden { double scale, temperature; int bins; double v[6]; } "
                  "golden;\n")
        for name, what, table in (
                ("reliability", "accuracy, confidence, nll, brier, ece, mce", rows),
                ("temperature", "the best temperature", temperatures),
                ("detection", "scale: the step of scores; auroc, aupr, fpr95", detections),
                ("sets", "moved, stretched, k; Frechet distance, precision, recall", sets)):
            out.write("/* %s */\nstatic const golden golden_%s[] = {\n%s\n};\n"
                      % (what, name, ",\n".join(table)))
        for name, l2, eps in (("linf", False, 0.15), ("l2", True, 0.4)):
            found, taken = attack(l2, eps, 40)
            out.write("/* steps of an image, and what came out */\n"
                      "static const double golden_%s[%d][%d] = {\n" % (name, IMAGES, PIXELS + 1))
            for steps, image in zip(taken, found):
                values = ["%d" % steps] + ["%.7f" % v for v in image]
                out.write("    { %s,\n      %s },\n" % (", ".join(values[:7]),
                                                      ", ".join(values[7:])))
            out.write("};\n")


if __name__ == "__main__":
    main()
