#!/usr/bin/python3
"""Does jem.h compute what PyTorch computes? Ends with status 1 if a tolerance is exceeded.

    make check-torch        or a part: NETS="wrn-10-1" NORMS="none batch" (the curves: NETS=curve)

1. Answers. For every network and norm, with random weights and after UPDATES training steps here:
   logits, log p(x) = logsumexp of them (minus the energy), and d log p(x)/dx, of a few images and
   of one. Ours (fp32, JEM_PRECISION_EXACT) and PyTorch's float32 are each compared with PyTorch's float64, as

       rms   the root of the mean square of the difference, over that of the tensor
       max   the largest difference, over the same

   Allowed for ours: rms 1e-5, in WRN-28-10 1e-4, for all three tensors, and the same for max of
   logits and log p(x); the largest difference of a gradient is printed.
   Leaky relu has a kink, and of millions of activations now and then one lies so near to it that
   float32 takes the other side than float64: both slopes are right there. Which ones those are is
   seen in PyTorch alone: within four times its float32's error in that layer. A gradient (ours, and
   PyTorch's) is compared with the float64 gradient that has, of the two slopes of each of these few
   activations, the one that fits. The table says how many there were.
2. Files. Checkpoints of the reference's form, written by torch.save in both its formats, go through
   tools/pt2safetensors.py; ours must give the answers that PyTorch gives from the original.
3. A run. A hundred updates of a JEM without noise, SGLD included, from the same weights, on the
   same digits: ours in C and the same in PyTorch. The losses must agree to 1e-3 over the first 50.
   Draws build/check-torch.png.

The network in PyTorch is tests/support/make_golden.py's. Our files are read by the reader that
tools/README.md gives.
"""
import copy
import os
import re
import subprocess
import sys
import time

import numpy as np
import torch

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "support"))
import make_golden as golden  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
BUILD = os.environ.get("BUILD", "build")
NORMS = os.environ.get("NORMS", "none batch instance layer act").split()
# Network: images asked for, updates of the trained one, allowed difference.
NETS = {"wrn-10-1": (17, 100, 1e-5), "wrn-16-2": (5, 100, 1e-5), "wrn-28-10": (2, 10, 1e-4)}
UPDATES, RATE, STEPS, SAME = 100, 1e-4, 5, 50   # of the run; STEPS is CHAIN in check_torch.c
ALLOWED_LOSS = 1e-3

with open(os.path.join(HERE, "README.md")) as file:
    code = [block for block in re.findall(r"```python\n(.*?)```", file.read(), re.S)
            if "def read_safetensors" in block]
exec(code[0])                   # read_safetensors, as a reader of the documentation has it
bad = []


def path(name):
    return os.path.join(BUILD, "check_torch_" + name)


def ours(*words):
    result = subprocess.run([os.path.join(BUILD, "check_torch"), *map(str, words)])
    if result.returncode:
        sys.exit("check_torch %s: status %d" % (words[0], result.returncode))


def shape_of(net):
    return tuple(map(int, net.split("-")[1:]))


def load(net, norm, file):
    """Our file in PyTorch's network: every parameter must be in it, with its shape."""
    made = golden.WideResNet(norm, golden.leaky_relu, *shape_of(net))
    state = read_safetensors(file)
    told = made.load_state_dict(state, strict=False)
    missing = [name for name in told.missing_keys if not name.endswith("num_batches_tracked")]
    unknown = [name for name in told.unexpected_keys if name != "replay_buffer"]
    if missing or unknown:
        sys.exit("%s: missing %s, unknown %s" % (file, missing, unknown))
    return made.eval()


def answers(net, x):
    x = x.detach().clone().to(next(net.parameters()).dtype).requires_grad_()
    logits = net(x)
    logp = logits.logsumexp(1)
    gradient, = torch.autograd.grad(logp.sum(), x)
    return {"logits": logits.detach(), "logp": logp.detach(), "gradient": gradient}


def apart(told, exact):
    difference, scale = told.double() - exact, exact.square().mean().sqrt()
    return ((difference.square().mean().sqrt() / scale).item(),
            (difference.abs().max() / scale).item())


def images(n):
    return golden.made("check.x", (n, 3, 32, 32))


class Watched:
    """Leaky relu, which keeps what goes into it, and takes the side it is told to."""

    def __init__(self):
        self.seen, self.sides = [], None

    def __call__(self, x):
        layer = len(self.seen)
        self.seen.append(x.detach())
        if self.sides is None:
            return golden.leaky_relu(x)
        return torch.where(self.sides[layer], x, 0.2 * x)


def watch(net):
    """A copy that watches, and its watcher."""
    copied, watched = copy.deepcopy(net), Watched()
    for module in copied.modules():
        if hasattr(module, "act"):
            module.act = watched
    return copied, watched


def at_the_kink(net, x):
    """For every image, how d log p(x)/dx changes in float64 where an activation at the kink takes
    the other side: [activations][pixels]."""
    rough, rough_watch = watch(net)
    exact, exact_watch = watch(net)
    exact.double()
    changes = []
    for image in x.split(1):
        rough_watch.seen, exact_watch.seen, exact_watch.sides = [], [], None
        with torch.no_grad():
            rough(image), exact(image.double())
        layers, units = exact_watch.seen, []
        for layer, (a, b) in enumerate(zip(rough_watch.seen, layers)):
            error = (a.double() - b).square().mean().sqrt()
            units += [(layer, i) for i in (b.abs() <= 4 * error).flatten().nonzero().flatten()]
        if len(units) > 60:
            sys.exit("check_torch: %d activations of an image are at the kink" % len(units))
        gradients = []
        for flips in [None, *units]:
            exact_watch.seen, exact_watch.sides = [], [b >= 0 for b in layers]
            if flips:
                layer, i = flips
                exact_watch.sides[layer].view(-1)[i] ^= True
            gradients.append(answers(exact, image)["gradient"].flatten())
        changes.append(torch.stack(gradients[1:]) - gradients[0] if units else None)
    return changes


def fitting(told, exact, changes):
    """The float64 gradients with the slopes, at the kink, that fit `told` best."""
    fits = exact.clone()
    for i, change in enumerate(changes):
        if change is not None:
            off = (told[i].double() - exact[i]).flatten()
            taken = torch.linalg.lstsq(change.T, off[:, None]).solution.flatten()
            fits[i] += (taken.round().clamp(0, 1) @ change).view_as(fits[i])
    return fits


def compare(title, net, model, x, allowed):
    """A line of the table; what is beyond `allowed` is remembered."""
    golden.write_safetensors(path("x.safetensors"), {"x": x.numpy()})
    ours("ask", model, path("x.safetensors"), path("answers.safetensors"))
    told = read_safetensors(path("answers.safetensors"))
    exact = answers(copy.deepcopy(net).double(), x)
    rough = answers(net, x)
    changes = at_the_kink(net, x)
    line = "%-30s%4d%4d" % (title, len(x), sum(len(c) for c in changes if c is not None))
    for name in ("logits", "logp", "gradient"):
        right = [exact[name]] * 2
        if name == "gradient":
            right = [fitting(side[name], exact[name], changes) for side in (told, rough)]
        mine, theirs = apart(told[name], right[0]), apart(rough[name], right[1])
        judged = mine if name != "gradient" else mine[:1]
        wrong = not all(d <= allowed for d in judged)
        line += "  %.1e %.1e |%.1e %.1e%s" % (*mine, *theirs, "!" if wrong else " ")
        if wrong:
            bad.append("%s: %s is off by %.1e (rms), %.1e (max), allowed %.0e"
                       % (title, name, *mine, allowed))
    print(line, flush=True)


def check_answers(nets):
    print("%-38s" % "differences from float64" + "".join("  %-34s" % name for name in (
        "logits", "log p(x)", "d log p(x)/dx")))
    print("%-38s" % "" + "       ours       |     PyTorch     " * 3)
    print("%-38s" % "network, images, activations at kink"
          + "    rms     max   |  rms     max   " * 3)
    for net in nets:
        n, updates, allowed = NETS[net]
        for norm in NORMS:
            for trained in (0, updates):
                model = path("model.safetensors")
                ours("make", net, norm, 11, trained, model)
                made = load(net, norm, model)
                title = "%s %s, %s" % (net, norm, "trained" if trained else "random")
                for count in (n, 1):
                    compare(title, made, model, images(count), allowed)


def check_files():
    """The reference's form: two heads too many, a replay buffer, and a wrapper around the state."""
    for norm in NORMS:
        torch.manual_seed(3)
        net = golden.WideResNet(norm, golden.leaky_relu, 10, 2)
        net.train()
        net(images(8))          # moves the running statistics, sets ActNorm
        net.eval()
        whole = copy.deepcopy(net)
        whole.energy_output = torch.nn.Linear(128, 1)
        whole.f.linear = torch.nn.Linear(128, 10)
        buffer = torch.rand(12, 3, 32, 32) * 2 - 1
        for zipped in (True, False):
            torch.save({"model_state_dict": whole.state_dict(), "replay_buffer": buffer},
                       path("reference.pt"), _use_new_zipfile_serialization=zipped)
            told = subprocess.run([sys.executable, os.path.join(HERE, "pt2safetensors.py"),
                                   path("reference.pt"), path("model.safetensors"), "--norm", norm],
                                  stdout=subprocess.DEVNULL)
            if told.returncode:
                bad.append("pt2safetensors, norm %s: status %d" % (norm, told.returncode))
                continue
            state = read_safetensors(path("model.safetensors"))
            if not torch.equal(state["replay_buffer"], buffer):
                bad.append("pt2safetensors, norm %s: not the same replay buffer" % norm)
            compare("torch.save %s, norm %s" % ("(zip)" if zipped else "(old)", norm), net,
                    path("model.safetensors"), images(5), 1e-5)


def run(net, told, updates):
    """The training loop of `walk` in check_torch.c; [updates][4] losses."""
    dtype = next(net.parameters()).dtype
    x, chains = told["x"].to(dtype), told["chains"].to(dtype)
    labels, losses, n = told["labels"].long(), [], len(told["chains"])
    adam = torch.optim.Adam(net.parameters(), lr=RATE, betas=(0.9, 0.999), eps=1e-8)
    for i in range(updates):
        for _ in range(STEPS):
            chains = chains + answers(net.eval(), chains)["gradient"]
        batch = slice(i * n, (i + 1) * n)
        adam.zero_grad()
        terms = golden.jem_loss(net.train(), x[batch], labels[batch], chains.detach())
        terms[0].backward()
        adam.step()
        losses.append(terms.detach())
    return torch.stack(losses).double()


def check_run():
    start = path("model.safetensors")
    ours("make", "wrn-10-1", "none", 21, 0, start)
    net = load("wrn-10-1", "none", start)
    ours("walk", start, UPDATES, RATE, path("run.safetensors"))
    told = read_safetensors(path("run.safetensors"))
    mine = told["losses"].double()
    theirs = run(copy.deepcopy(net), told, UPDATES)
    exact = run(copy.deepcopy(net).double(), told, UPDATES)
    print("\n%d updates of WRN-10-1 without noise, %d SGLD steps each: largest |difference| in"
          " updates 0-%d and 0-%d" % (UPDATES, STEPS, SAME - 1, UPDATES - 1))
    for name, a, b in (("ours and PyTorch", mine, theirs), ("ours and float64", mine, exact),
                       ("PyTorch and its float64", theirs, exact)):
        d = (a - b).abs()
        print("  %-24s" % name + "".join("   %s %.1e %.1e" % (
            what, d[:SAME, k].max(), d[:, k].max()) for k, what in enumerate(
            ("loss", "CE", "f(x+)", "f(x-)"))))
    print("  loss %.4f at the start, %.4f at the end" % (mine[0, 0], mine[-1, 0]))
    worst = (mine - theirs)[:SAME, 0].abs().max().item()
    if not worst <= ALLOWED_LOSS:
        bad.append("the losses differ by %.1e within %d updates, allowed %.0e"
                   % (worst, SAME, ALLOWED_LOSS))
    golden.write_safetensors(path("curves.safetensors"), {
        name: losses[:, 0].float().numpy() for name, losses in
        (("ours", mine), ("torch", theirs), ("torch64", exact))})
    ours("draw", path("curves.safetensors"), os.path.join(BUILD, "check-torch.png"))
    print("  drawn in " + os.path.join(BUILD, "check-torch.png"))


def main():
    began = time.time()
    wanted = os.environ.get("NETS", " ".join([*NETS, "files", "curve"])).split()
    unknown = [name for name in wanted if name not in (*NETS, "files", "curve")]
    if unknown:
        sys.exit("check_torch: no network %s" % unknown[0])
    if "OMP_NUM_THREADS" in os.environ:
        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    check_answers([net for net in NETS if net in wanted])
    if "files" in wanted:
        check_files()
    if "curve" in wanted:
        check_run()
    for name in os.listdir(BUILD):
        if name.startswith("check_torch_"):
            os.remove(os.path.join(BUILD, name))
    print("\n%s; PyTorch %s, %.0f s" % ("all within their tolerances" if not bad else
                                        "BEYOND THEIR TOLERANCES:", torch.__version__,
                                        time.time() - began))
    for line in bad:
        print("  " + line)
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
