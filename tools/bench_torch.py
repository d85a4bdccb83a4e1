#!/usr/bin/python3
"""jem.h against PyTorch: the same networks, batches, threads and steps, in turns.

    make bench-torch        or, on a quiet machine, only some: NETS="wrn-10-1 wrn-16-2" ...

Writes build/bench-torch.csv and draws build/bench-torch.png. This program is PyTorch's half; ours
is build/bench_torch (tools/bench_torch.c), asked over a pipe, a line for a timing. In a round every
rival is timed once; the order turns round from round to round. A ratio is PyTorch's time over ours
in the same round, and what is printed is the median over the rounds.

    sgld            one SGLD step of all chains: forward, input gradient of log p(x), walk
    update          CE and CD of one batch of images and one of chains, backward, Adam
    iteration       20 SGLD steps and an update
    one-image       label, probability and log p(x) of one image
    one-image-sgld  one SGLD step of one chain
    memory          MB: the peak of an SGLD chain (columns that say ms hold MB)

PyTorch runs in fp32 and in bf16 autocast, each in the better of its two layouts, found out for each
measure. Before anything is timed, both sides compute from the same weights, and must agree.

Environment: NETS; OURS, a list of ISA:PRECISION; THREADS; BUDGET, seconds per network;
MEMORY_BATCH, chains for `memory`, if not as many as for the rest.
"""
import contextlib
import copy
import csv
import json
import math
import os
import statistics
import struct
import subprocess
import sys
import time

# Both sides spin for about a millisecond after their work: long enough for the next op to find
# its threads awake (PyTorch's small ops are slower without), too short to disturb the other side.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "20000")

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

BUILD = os.environ.get("BUILD", "build")
CHAIN = 20
LAYOUTS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}
NETS = {"wrn-10-1": 64, "wrn-16-2": 64, "wrn-16-4": 64, "wrn-28-10": 16}        # and their batch
# In this order, each up to which share of the time; the longest gets what is left.
MEASURES = {"sgld": .35, "update": .55, "one-image": .65, "one-image-sgld": .75, "iteration": 1}
COLUMNS = "what,net,batch,threads,isa,precision,ours_ms,torch,torch_ms,ratio".split(",")


# ------------------------------------------------------------------- the network, in PyTorch ----

class Block(nn.Module):
    """x + conv2(act(conv1(act(x)))); conv2 carries the stride."""

    def __init__(self, channels_in, channels, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, padding=1)
        self.conv2 = nn.Conv2d(channels, channels, 3, stride=stride, padding=1)
        self.shortcut = nn.Sequential()
        if stride != 1 or channels_in != channels:
            self.shortcut = nn.Sequential(nn.Conv2d(channels_in, channels, 1, stride=stride))

    def forward(self, x):
        h = self.conv1(F.leaky_relu(x, 0.2))
        return self.conv2(F.leaky_relu(h, 0.2)) + self.shortcut(x)


class Body(nn.Module):
    def __init__(self, depth, widen):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1)
        blocks, channels = (depth - 4) // 6, 16
        for stage in range(3):
            layers = []
            for i in range(blocks):
                out = (16 << stage) * widen
                layers.append(Block(channels, out, 2 if stage and i == 0 else 1))
                channels = out
            setattr(self, "layer%d" % (stage + 1), nn.Sequential(*layers))

    def forward(self, x):
        h = self.layer3(self.layer2(self.layer1(self.conv1(x))))
        return F.avg_pool2d(F.leaky_relu(h, 0.2), 8).flatten(1)


class WideResNet(nn.Module):
    def __init__(self, name):
        super().__init__()
        depth, widen = map(int, name.split("-")[1:])
        self.f = Body(depth, widen)
        self.class_output = nn.Linear(64 * widen, 10)

    def forward(self, x):
        return self.class_output(self.f(x)).float()


def cast(precision):
    if precision == "bf16":
        return torch.autocast("cpu", dtype=torch.bfloat16)
    return contextlib.nullcontext()


class Torch:
    """A network in one layout, its optimiser, a batch of images and one of chains."""

    def __init__(self, net, batch, layout):
        self.layout = layout
        self.net = copy.deepcopy(net).to(memory_format=LAYOUTS[layout])
        self.optimiser = None                   # Adam's memory comes with the first update
        self.data = self.images(batch)
        self.chains = self.images(batch)
        self.one = self.images(1)
        self.labels = torch.arange(batch) % 10

    def images(self, n):
        return (torch.rand(n, 3, 32, 32) * 2 - 1).contiguous(memory_format=LAYOUTS[self.layout])

    def sgld(self, x, steps=1):
        for _ in range(steps):
            x = x.detach().requires_grad_()        # the caller's needs no gradient later
            gradient, = torch.autograd.grad(self.net(x).logsumexp(1).sum(), x)
            x = x.detach()
            x.add_(gradient).add_(torch.randn_like(x), alpha=0.01)

    def loss(self, data, chains):
        """One pass for both batches: nothing in this network couples images."""
        logits = self.net(torch.cat([data, chains]))
        logp = logits.logsumexp(1)
        n = len(data)
        return F.cross_entropy(logits[:n], self.labels[:n]) + logp[n:].mean() - logp[:n].mean()

    def update(self, precision):
        if self.optimiser is None:
            self.optimiser = torch.optim.Adam(self.net.parameters(), lr=1e-6, betas=(0.9, 0.999))
        self.optimiser.zero_grad()
        with cast(precision):
            loss = self.loss(self.data, self.chains)
        loss.backward()
        self.optimiser.step()
        return loss.item()

    def classify(self):
        with torch.inference_mode():
            logits = self.net(self.one)
            logp = logits.logsumexp(1)
            best = logits.argmax(1)
            return best.item(), (logits[0, best] - logp).exp().item(), logp.item()

    def run(self, what, precision):
        if what == "update":
            return self.update(precision)
        with cast(precision):                   # its copies of the weights last as long as it does
            if what == "one-image":
                return self.classify()
            self.sgld(self.one if what == "one-image-sgld" else self.chains,
                      CHAIN if what == "iteration" else 1)
        if what == "iteration":
            self.update(precision)

    def milliseconds(self, what, precision, runs):
        """As `milliseconds` in bench_torch.c."""
        if runs > 1:
            self.run(what, precision)
        start = time.perf_counter()
        for _ in range(runs):
            self.run(what, precision)
        return 1e3 * (time.perf_counter() - start) / runs


# ---------------------------------------------------------------------------- the other side ----

class Ours:
    def __init__(self, threads):
        self.threads = threads
        self.child = subprocess.Popen([os.path.join(BUILD, "bench_torch")], stdin=subprocess.PIPE,
                                      stdout=subprocess.PIPE, text=True, bufsize=1)

    def line(self, question):
        self.child.stdin.write(question + "\n")
        self.child.stdin.flush()
        answer = self.child.stdout.readline().split()
        if not answer or answer[0] != "ok":
            sys.exit("bench_torch: '%s': %s" % (question, " ".join(answer) or "it ended"))
        return answer[1:]

    def end(self):
        self.child.stdin.close()
        self.child.wait()

    def ask(self, what, net, batch, isa, precision, argument):
        return float(self.line("%s %s %d %d %s %s %s" % (what, net, batch, self.threads, isa,
                                                         precision, argument))[0])


def safetensors(path):
    with open(path, "rb") as file:
        size, = struct.unpack("<Q", file.read(8))
        head = json.loads(file.read(size))
        data = file.read()
    types = {"F32": np.float32, "I32": np.int32}
    return {name: torch.from_numpy(np.frombuffer(data[e["data_offsets"][0]:e["data_offsets"][1]],
                                                 types[e["dtype"]]).reshape(e["shape"]).copy())
            for name, e in head.items() if name != "__metadata__"}


def agreement(ours, net, net_name, config, n, path):
    """How far apart n images' logits, d log p/dx, and (loss, norm of the gradient) are."""
    ours.ask("answers", net_name, n, *config, path)
    told = safetensors(path)
    side = Torch(net, n, "contiguous")
    side.labels = told["labels"].long()
    x = told["x"].requires_grad_()
    logits = side.net(x)
    gradient, = torch.autograd.grad(logits.logsumexp(1).sum(), x)
    loss = side.loss(told["data"], told["x"].detach())
    loss.backward()
    norm = torch.stack([p.grad.norm() for p in side.net.parameters()]).norm()
    return [((a - b).norm() / b.norm()).item() for a, b in (
        (told["logits"], logits), (told["gradient"], gradient),
        (told["update"], torch.stack([loss, norm])))]


def same(ours, net_name, configs):
    """The network with our weights, once it is known to compute what ours does."""
    path = os.path.join(BUILD, "bench.safetensors")
    net = WideResNet(net_name)
    parameters = ours.ask("weights", net_name, 8, *configs[0], path)
    net.load_state_dict(safetensors(path))      # every name and shape, none missing, none left
    here = sum(p.numel() for p in net.parameters())
    print("%s: %d parameters here, %d there" % (net_name, here, parameters))
    if here != parameters:
        sys.exit("not the same network")
    took = {}                                   # seconds, per precision
    for config in configs:
        if took.get(config[1], 0) > 2:
            continue                            # ISAs give the same bits, says test_kernels.c
        start = time.perf_counter()
        off = [agreement(ours, net, net_name, config, n, path) for n in (12, 1)]
        took[config[1]] = time.perf_counter() - start
        off = [max(pair) for pair in zip(*off)]
        print("  %s %s: relative differences: logits %.0e, d log p/dx %.0e, loss and gradient's "
              "norm %.0e" % (*config, *off))
        # Of millions of activations some lie so near to leaky relu's kink that the two sides take
        # different slopes: gradients of deep networks agree less well than logits.
        logits_off, others_off = (0.1, 0.3) if config[1] == "bf16" else (1e-4, 3e-3)
        if not off[0] <= logits_off or not max(off) <= others_off:
            sys.exit("they do not compute the same")
    os.remove(path)
    ours.line("close")
    return net


def torch_memory(net, batch, steps, threads, precision, layout):
    """In a process of its own: how far its resident memory's peak grows. What PyTorch loads when
    it is first used does not count: a small network goes before."""
    def resident(key):                          # not getrusage: that begins at the parent's peak
        with open("/proc/self/status") as file:
            return next(int(line.split()[1]) for line in file if line.startswith(key)) / 1024

    torch.set_num_threads(threads)
    with cast(precision):
        Torch(WideResNet("wrn-10-1"), 1, layout).sgld(torch.zeros(1, 3, 32, 32), 1)
    with contextlib.suppress(OSError), open("/proc/self/clear_refs", "w") as file:
        file.write("5")                         # the peak starts here
    before = resident("VmRSS:")
    side = Torch(WideResNet(net), 1, layout)
    chains = side.images(batch)
    with cast(precision):
        side.sgld(chains, steps)
    print(resident("VmHWM:") - before)


def memory(ours, net, batch, config, precision, layout):
    if config:
        alone = Ours(ours.threads)              # what was freed may be resident still
        megabytes = alone.ask("memory", net, batch, *config, 2)
        alone.end()
        return megabytes
    command = [sys.executable, __file__, "--memory", net, batch, 2, ours.threads, precision, layout]
    return float(subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, check=True).stdout)


# --------------------------------------------------------------------------------- measuring ----

class Table:
    """Prints a line per rival of ours, writes one per pair."""

    def __init__(self, file):
        self.csv = csv.writer(file, lineterminator="\n")
        self.csv.writerow(COLUMNS)
        self.file = file

    @staticmethod
    def head(precisions):
        print("  %-15s %5s  %-11s %-7s %10s" % ("", "batch", "ISA", "", "ours") + "".join(
            "   %12s %6s" % ("PyTorch " + p, "ratio") for p in precisions))

    def add(self, what, net, batch, threads, config, ours, rivals, note=""):
        """rivals: (precision, time, ratio)"""
        unit = "MB" if what == "memory" else "ms"
        print("  %-15s %5d  %-11s %-7s %7.2f %s" % (what, batch, *config, ours, unit) + "".join(
            "   %9.2f %s %6.2f" % (t, unit, r) for _, t, r in rivals) + "  " * bool(note) + note,
              flush=True)
        for precision, t, ratio in rivals:
            self.csv.writerow([what, net, batch, threads, *config, "%.4f" % ours, precision,
                               "%.4f" % t, "%.4f" % ratio])
        self.file.flush()


def runs_for(ms):
    """Short work is timed several times in a row."""
    return max(1, min(50, math.ceil(100 / ms))) if ms < 100 else 1


def calibrate(time_of):
    """One run to get ready, one to see how long it takes; for slow work, the first run is enough."""
    ms = time_of(1)
    return ms if ms > 500 else time_of(1)


def measure(what, net, batch, ours, sides, layouts, configs, precisions, end, known=None):
    """Medians {config: ms, precision: ms, (config, precision): ratio}, and the number of rounds.
    Chooses layouts[what, precision]. known: about how long each takes, if all of it is warm."""
    rivals = {}                                 # name -> a function of the number of runs
    cost = {}
    for config in configs:
        rivals[config] = lambda runs, c=config: ours.ask(what, net, batch, *c, runs)
        cost[config] = known[config] if known else calibrate(rivals[config])
    for precision in precisions:
        # Slow work does not try both again: what is best for a chain will do.
        before = layouts.get(("sgld", precision))
        best = None
        for layout in [before] if before and cost[configs[0]] > 1000 or known else LAYOUTS:
            def time_of(runs, s=sides[layout], p=precision):
                return s.milliseconds(what, p, runs)
            ms = known[precision] if known else calibrate(time_of)
            if ms < 200:                        # a second look: these are close
                ms = min(ms, time_of(runs_for(ms)))
            if best is None or ms < best:
                best, rivals[precision], layouts[what, precision] = ms, time_of, layout
        cost[precision] = best

    runs = {name: runs_for(ms) for name, ms in cost.items()}
    order = []                                  # PyTorch's turns spread among ours
    for i, config in enumerate(configs):
        order += [config] + [p for j, p in enumerate(precisions)
                             if j * len(configs) // len(precisions) == i]
    taken = {name: [] for name in order}
    rounds = 0
    while rounds < 25:
        start = time.perf_counter()
        for name in order if rounds % 2 == 0 else order[::-1]:
            taken[name].append(rivals[name](runs[name]))
        rounds += 1
        now = time.perf_counter()
        # A single round says little, but if it takes minutes, it must do.
        if now + (now - start) > end and (rounds >= 3 or now - start > 4):
            break
    result = {name: statistics.median(t) for name, t in taken.items()}
    for config in configs:
        for precision in precisions:
            result[config, precision] = statistics.median(
                t / o for t, o in zip(taken[precision], taken[config]))
    return result, rounds


def compare(net_name, table, ours, configs, precisions, budget):
    start = time.perf_counter()
    batch = NETS.get(net_name, 64)
    net = same(ours, net_name, configs)
    sides = {layout: Torch(net, batch, layout) for layout in LAYOUTS}
    layouts, results = {}, {}
    Table.head(precisions)

    def add(what, n, result, note=""):
        for c in configs:
            table.add(what, net_name, n, ours.threads, c, result[c],
                      [(p, result[p], result[c, p]) for p in precisions],
                      note if c == configs[0] else "")

    for what, share in MEASURES.items():
        one = what.startswith("one-image")
        if what == "iteration":
            parts = {key: CHAIN * results["sgld"][key] + results["update"][key]
                     for key in [*configs, *precisions]}
            if time.perf_counter() + sum(parts.values()) / 1000 > start + share * budget:
                for c in configs:
                    for p in precisions:
                        parts[c, p] = parts[p] / parts[c]
                add(what, batch, parts, "20 sgld + update")
                continue
        else:
            parts = None
        results[what], rounds = measure(what, net_name, batch, ours, sides, layouts, configs,
                                        precisions, start + share * budget, parts)
        add(what, 1 if one else batch, results[what], "%d round%s, %s" % (
            rounds, "s" * (rounds > 1), " / ".join(layouts[what, p] for p in precisions)))
    ours.line("close")
    sides.clear()

    n = int(os.environ.get("MEMORY_BATCH", batch))
    peak = {c[1]: memory(ours, net_name, n, c, None, None) for c in configs[::-1]}
    peak = {c: peak[c[1]] for c in configs}     # it depends on the precision alone
    for p in precisions:
        peak[p] = memory(ours, net_name, n, None, p, layouts["sgld", p])
        for c in configs:
            peak[c, p] = peak[p] / peak[c]
    add("memory", n, peak)


def slow_matrices():
    """Debian's PyTorch takes whatever BLAS there is, and the reference BLAS, which it comes with,
    is 15 times slower than a good one. PyTorch uses it for one image."""
    with contextlib.suppress(OSError), open("/proc/self/maps") as file:
        return "/blas/libblas.so" in file.read()
    return False


def processor():
    name, flags = "", []
    try:
        with open("/proc/cpuinfo") as file:
            for line in file:
                key, _, value = line.partition(":")
                if key.strip() == "model name":
                    name = value.strip()
                elif key.strip() in ("flags", "Features"):
                    flags = value.split()
    except OSError:
        pass
    import platform
    bf16 = [f for f in ("amx_bf16", "avx512_bf16", "bf16") if f in flags]
    return name or platform.processor() or platform.machine(), ", ".join(bf16) or "none"


def main():
    threads = int(os.environ.get("THREADS") or len(os.sched_getaffinity(0)))
    torch.set_num_threads(threads)
    torch.manual_seed(1)
    ours = Ours(threads)
    best, threaded, *known = ours.line("hello")
    if threaded != "threads":
        print("bench_torch was built without OpenMP: one thread on both sides")
        ours.threads = threads = 1
        torch.set_num_threads(1)
    isas = [best] + (["avx2"] if best == "avx512" else [])
    configs = [(p.split("=")[1], "bf16") for p in known if p.startswith("bf16=")]
    configs += [(isa, p) for isa in isas for p in ("fast", "exact")]
    if os.environ.get("OURS"):
        configs = [tuple(c.split(":")) for c in os.environ["OURS"].split()]
    precisions = ["fp32", "bf16"]

    name, bf16 = processor()
    title = "jem.h against PyTorch %s" % torch.__version__
    where = "%s, %d thread%s, %s (bf16 in hardware: %s)" % (name, threads, "s" * (threads > 1),
                                                           best, bf16)
    print("%s\n%s" % (title, where))
    if slow_matrices():
        print("WARNING: this PyTorch multiplies matrices with a slow BLAS: its one-image in fp32 is"
              "\n         slow for it. On Debian: apt-get install libopenblas0-openmp")
        where += "; slow BLAS!"
    path = os.path.join(BUILD, "bench-torch")
    with open(path + ".csv", "w", newline="") as file:
        table = Table(file)
        for net in (os.environ.get("NETS") or " ".join(NETS)).split():
            start = time.perf_counter()
            compare(net, table, ours, configs, precisions, float(os.environ.get("BUDGET") or 45))
            print("  %.0f seconds\n" % (time.perf_counter() - start))
    ours.end()
    print("ratio: PyTorch's time divided by ours; bf16 is PyTorch's autocast")
    subprocess.run([os.path.join(BUILD, "bench_chart"), path + ".csv", path + ".png", title, where],
                   check=True)
    print("%s.csv %s.png" % (path, path))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--check"]:            # is all here that this needs?
        sys.exit(slow_matrices())
    elif sys.argv[1:2] == ["--memory"]:
        torch_memory(sys.argv[2], *map(int, sys.argv[3:6]), *sys.argv[6:8])
    else:
        main()
