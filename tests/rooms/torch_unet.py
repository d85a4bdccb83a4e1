#!/usr/bin/python3
"""Computes in PyTorch, in float64, what build/test_unet wrote: the residual network without norms,
its U-Net energy, the slope of log p(x), the gradient of cross-entropy, and two steps of Muon.

    build/test_unet FILE && python3 tests/rooms/torch_unet.py FILE
"""
import json
import struct
import sys

import numpy as np
import torch
import torch.nn.functional as F


def read(path):
    """Reads the float32 tensors of a safetensors file, as float64."""
    raw = open(path, "rb").read()
    size, = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8:8 + size])
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        start, end = entry["data_offsets"]
        data = np.frombuffer(raw[8 + size + start:8 + size + end], dtype="<f4")
        tensors[name] = torch.tensor(data.astype(np.float64).reshape(entry["shape"]))
    return tensors


def conv(w, name, x, stride=1, pad=1):
    return F.conv2d(x, w[name + ".weight"], w[name + ".bias"], stride, pad)


def network(w, x):
    """Returns the logits and e(x) of a network of depth 10."""
    h = conv(w, "f.conv1", x)
    features = []
    for stage in (1, 2, 3):
        if stage > 1:
            h = conv(w, f"f.down{stage - 1}", F.silu(h), 2)
        block = f"f.layer{stage}.0."
        h = h + conv(w, block + "conv2", F.silu(conv(w, block + "conv1", F.silu(h))))
        features.append(h)
    h = F.silu(h)
    logits = F.linear(h.mean((2, 3)), w["class_output.weight"], w["class_output.bias"])
    for i in (2, 1):
        up = conv(w, f"u.up{i}", F.interpolate(h, scale_factor=2, mode="nearest"))
        h = F.silu(up + conv(w, f"u.skip{i}", F.silu(features[i - 1]), 1, 0))
    return logits, (x * conv(w, "u.energy_output", h)).sum((1, 2, 3))


def orthogonal(m):
    """Newton-Schulz, five steps with Muon's coefficients."""
    x = m / m.norm()
    if x.shape[0] > x.shape[1]:
        x = x.T
    for _ in range(5):
        a = x @ x.T
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x if m.shape[0] <= m.shape[1] else x.T


def updated(name, value, grad, lr, steps):
    """Muon for weight matrices, Adam for the rest; the same gradient at every step."""
    if value.dim() == 1 or "output" in name:
        p = value.clone().requires_grad_()
        adam = torch.optim.Adam([p], lr=lr)
        for _ in range(steps):
            p.grad = grad.clone()
            adam.step()
        return p.detach()
    p, m = value.reshape(value.shape[0], -1).clone(), 0
    g = grad.reshape(p.shape)
    for _ in range(steps):
        m = .95 * m + .05 * g
        p -= lr * .2 * max(p.shape) ** .5 * orthogonal(.95 * m + .05 * g)
    return p.reshape(value.shape)


def main():
    passed = failed = 0

    def close(what, ours, theirs, tolerance):
        nonlocal passed, failed
        ours = ours.reshape(theirs.shape)
        gap = float((ours - theirs).abs().max() / theirs.abs().max().clamp_min(1e-30))
        if gap <= tolerance:
            passed += 1
        else:
            failed += 1
            print(f"FAILED {what}: off by {gap:.3g}")

    t = read(sys.argv[1])
    w = {k: v.requires_grad_() for k, v in t.items() if k.startswith(("f.", "u.", "class_output"))}
    n = t["x"].shape[0]
    x = t["x"].reshape(n, w["f.conv1.weight"].shape[1], 8, 8).requires_grad_()
    logits, e = network(w, x)
    logp = e + torch.logsumexp(logits, 1)
    close("logits", t["logits"], logits.detach(), 1e-5)
    close("log p(x)", t["logp"], logp.detach(), 1e-5)
    slope, = torch.autograd.grad(logp.sum(), x, retain_graph=True)
    close("slope of log p(x)", t["slope"], slope, 1e-4)
    ce = F.cross_entropy(logits, t["labels"].reshape(-1).long())
    grads = torch.autograd.grad(ce, list(w.values()), allow_unused=True)
    for (name, value), grad in zip(w.items(), grads):
        if grad is None:
            grad = torch.zeros_like(value)
        close("gradient of " + name, t["grad/" + name], grad, 1e-4)
        if float(grad.abs().max()) > 0:
            # from our gradient, so that what is compared is the optimiser
            ours = t["grad/" + name].reshape(value.shape)
            close(name + " after two steps", t["after/" + name],
                  updated(name, value.detach(), ours, .01, 2), 1e-5)
    print(f"{passed} passed, {failed} failed")
    return failed > 0 or passed < 20


sys.exit(main())
