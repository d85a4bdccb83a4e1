#!/usr/bin/python3
"""jem.h beside onnxruntime and PyTorch: the same networks, weights and images, in turns.

    make bench-peers        or only some: NETS="wrn-16-2 mnist" THREADS="1" make bench-peers

Prints a table in Markdown and writes build/bench-peers.csv. Ours is build/bench_torch; onnxruntime's
side is tools/bench_onnx.js, with the graphs that `jem export --onnx` writes; PyTorch's is this
program. In a round every rival is timed once, in an order that turns round from round to round; the
table has medians over the rounds, of times and of ratios (their time over ours, in one round).

    forward   logits of n images
    sgld      one SGLD step of n chains: forward, slope of log p(x), and the step with its noise.
              onnxruntime computes the slope alone, without step and noise, which is less work

Before anything is timed, all three compute logits and slopes of the same images, and must agree.
Environment: NETS; THREADS, "1 2"; BATCHES, "1 64"; SECONDS, for a row (8). On a busy machine,
PROCESSOR_TIME=1 counts processor time, of one thread: THREADS=1.
"""
import contextlib
import csv
import math
import os
import statistics
import subprocess
import sys
import time

import numpy as np

import bench_torch
import torch
import torch.nn as nn

BUILD = bench_torch.BUILD
MODELS = "examples/models/%s.safetensors"
NETS = ["wrn-16-2", "mnist", "fashion-mnist", "cifar10"]
AGREE = 1e-3        # relative difference of fp32: few activations lie near the kink of leaky relu
AGREE_BF16 = 0.3


class Convnet(nn.Module):
    """The networks that ship: convolutions, SiLU, a linear layer; weights from their file."""

    def __init__(self, weights):
        super().__init__()
        self.layers = nn.ModuleList()
        while "conv%d.weight" % (len(self.layers) + 1) in weights:
            i = len(self.layers) + 1
            w = weights["conv%d.weight" % i]
            layer = nn.Conv2d(w.shape[1], w.shape[0], w.shape[2], stride=1 if i == 1 else 2,
                              padding=1)
            layer.weight.data = w
            layer.bias.data = weights["conv%d.bias" % i]
            self.layers.append(layer)
        self.head = nn.Linear(*reversed(weights["class_output.weight"].shape))
        self.head.weight.data = weights["class_output.weight"]
        self.head.bias.data = weights["class_output.bias"]

    def forward(self, x):
        for layer in self.layers:
            x = nn.functional.silu(layer(x))
        return self.head(x.flatten(1))


class Peer:
    """A program that is asked by lines."""

    def __init__(self, command):
        self.child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                      text=True, bufsize=1)

    def line(self, question):
        self.child.stdin.write(question + "\n")
        self.child.stdin.flush()
        answer = self.child.stdout.readline().split()
        if not answer or answer[0] != "ok":
            sys.exit("%s: '%s'" % (question, " ".join(answer) or "it ended"))
        return answer[1:]

    def end(self):
        self.child.stdin.close()
        self.child.wait()


def relative(a, b):
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


class Subject:
    """A network on all three sides."""

    def __init__(self, name, ours, onnx, configs):
        self.name, self.ours, self.onnx = name, ours, onnx
        self.file = MODELS % name
        self.key = self.file
        self.threads = None
        if name.startswith("wrn-"):
            self.key = name
            self.file = os.path.join(BUILD, "peers-%s.safetensors" % name)
            isa, precision = configs[0]
            ours.line("weights %s 8 1 %s %s %s" % (name, isa, precision, self.file))
        weights = bench_torch.safetensors(self.file)
        self.scale = self.number("jem.scale", 1)
        if name.startswith("wrn-"):
            self.net = bench_torch.WideResNet(name)
            self.net.load_state_dict(weights)
        else:
            self.net = Convnet(weights)
        self.net.eval()
        self.graphs = {}
        for what, option in (("forward", "--no-slope"), ("sgld", "--slope")):
            self.graphs[what] = os.path.join(BUILD, "peers-%s-%s.onnx" % (name, what))
            subprocess.run([os.path.join(BUILD, "jem"), "export", self.file, self.graphs[what],
                            "--onnx", option], check=True, stdout=subprocess.DEVNULL)
        for config in configs:
            self.agree(config)

    def number(self, key, missing):
        """A number of the file's description."""
        import json
        import struct
        with open(self.file, "rb") as file:
            size, = struct.unpack("<Q", file.read(8))
            return float(json.loads(file.read(size)).get("__metadata__", {}).get(key, missing))

    def slope(self, x):
        x.requires_grad_()
        gradient, = torch.autograd.grad(self.scale * self.net(x).logsumexp(1).sum(), x)
        return gradient

    def agree(self, config):
        """Logits and slope of 12 images: ours, PyTorch's, onnxruntime's."""
        told_path = os.path.join(BUILD, "peers-answers.safetensors")
        self.ours.line("answers %s 12 1 %s %s %s" % (self.key, *config, told_path))
        told = bench_torch.safetensors(told_path)
        x = told["x"]
        source, result = os.path.join(BUILD, "peers-x.f32"), os.path.join(BUILD, "peers-y.f32")
        x.numpy().tofile(source)
        self.onnx.line("open %s 1" % self.graphs["sgld"])
        self.onnx.line("answers 12 %s %s" % (source, result))
        floats = np.fromfile(result, np.float32)
        classes = told["logits"].numel()
        theirs = {"logits": (floats[:classes], self.net(x).detach()),
                  "gradient": (floats[classes + 12:], self.slope(x.clone()))}
        off = [relative(np.ravel(other), np.ravel(told[what]))
               for what, others in theirs.items() for other in others]
        print("  %s %s: relative differences: logits %.0e (onnxruntime), %.0e (PyTorch), slope "
              "%.0e, %.0e" % (self.name, config[1], *off))
        if not max(off) <= (AGREE_BF16 if config[1] == "bf16" else AGREE):
            sys.exit("they do not compute the same")
        for path in (told_path, source, result):
            os.remove(path)

    def open(self, what, threads):
        self.onnx.line("open %s %d" % (self.graphs[what], threads))
        torch.set_num_threads(threads)
        self.threads = threads

    def torch_time(self, what, n, runs):
        x = torch.rand(n, self.channels(), *self.sides()) * 2 - 1
        clock = time.process_time if os.environ.get("PROCESSOR_TIME") else time.perf_counter

        def once(x):
            if what == "forward":
                with torch.no_grad():
                    self.net(x)
                return x
            gradient = self.slope(x)
            x = x.detach()
            return x.add_(gradient, alpha=1e-3).add_(torch.randn_like(x), alpha=0.01)

        if runs > 1:                               # untimed, like the others' first
            x = once(x)
        start = clock()
        for _ in range(runs):
            x = once(x)
        return 1e3 * (clock() - start) / runs

    def channels(self):
        return 3 if self.name.startswith("wrn-") or self.name == "cifar10" else 1

    def sides(self):
        return (32, 32) if self.channels() == 3 else (28, 28)

    def rivals(self, what, n, configs):
        rivals = {}
        for config in configs:
            rivals[config] = lambda runs, c=config: float(self.ours.line(
                "%s %s %d %d %s %s %d" % (what, self.key, n, self.threads, *c, runs))[0])
        rivals["onnxruntime"] = lambda runs: float(self.onnx.line("time %d %d" % (n, runs))[0])
        rivals["PyTorch"] = lambda runs: self.torch_time(what, n, runs)
        return rivals


def measure(rivals, seconds):
    """Medians of times and, for each of ours, of the ratios."""
    runs = {}
    for name, time_of in rivals.items():
        time_of(1)
        runs[name] = bench_torch.runs_for(max(time_of(1), 1e-3))
    taken = {name: [] for name in rivals}
    end = time.perf_counter() + seconds
    order = list(rivals)
    while len(taken[order[0]]) < 3 or (time.perf_counter() < end and len(taken[order[0]]) < 25):
        for name in order if len(taken[order[0]]) % 2 == 0 else order[::-1]:
            taken[name].append(rivals[name](runs[name]))
    result = {name: statistics.median(times) for name, times in taken.items()}
    for peer in ("onnxruntime", "PyTorch"):
        for name in order[:-2]:
            result[name, peer] = statistics.median(
                p / o for p, o in zip(taken[peer], taken[name]))
    return result, len(taken[order[0]])


def main():
    ours = Peer([os.path.join(BUILD, "bench_torch")])
    onnx = Peer(["node", "tools/bench_onnx.js"])
    best, _, *known = ours.line("hello")
    configs = [(best, "exact"), (best, "fast")]
    configs += [(p.split("=")[1], "bf16") for p in known if p.startswith("bf16=")]
    seconds = float(os.environ.get("SECONDS") or 8)
    peers = "onnxruntime %s (%s), PyTorch %s" % (onnx.line("hello")[0], "node", torch.__version__)
    print("%s, %s; %s" % (bench_torch.processor()[0], best, peers))
    with contextlib.suppress(OSError):
        print("load before the run: %.1f %.1f %.1f" % os.getloadavg())
    rows = []
    for name in (os.environ.get("NETS") or " ".join(NETS)).split():
        subject = Subject(name, ours, onnx, configs)
        for what in ("forward", "sgld"):
            for threads in map(int, (os.environ.get("THREADS") or "1 2").split()):
                subject.open(what, threads)
                for n in map(int, (os.environ.get("BATCHES") or "1 64").split()):
                    result, rounds = measure(subject.rivals(what, n, configs), seconds)
                    rows.append((name, what, n, threads, result))
                    print("  %s %s %d, %d threads: %d rounds" % (name, what, n, threads, rounds),
                          flush=True)
        ours.line("close")
    table(rows, configs)
    with contextlib.suppress(OSError):
        print("load after the run: %.1f %.1f %.1f" % os.getloadavg())
    ours.end()
    onnx.end()


def number(value):
    return "%.*f" % (0 if value >= 100 else 1 if value >= 10 else 2, value)


def table(rows, configs):
    """Milliseconds; in brackets the time of onnxruntime and PyTorch in fp32, divided by ours."""
    heads = ["`%s`" % c[1] + (" (peers: fp32)" if c[1] == "bf16" else "") for c in configs]
    print("\n| network | | n | threads | onnxruntime | PyTorch | %s |" % " | ".join(heads))
    print("| --- | --- | --: | --: | --: | --: |%s" % (" --: |" * len(configs)))
    with open(os.path.join(BUILD, "bench-peers.csv"), "w", newline="") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(["net", "what", "n", "threads", "side", "ms", "onnxruntime_ratio",
                      "torch_ratio"])
        for name, what, n, threads, result in rows:
            cells = ["%s (%s× %s×)" % (number(result[c]), number(result[c, "onnxruntime"]),
                                       number(result[c, "PyTorch"])) for c in configs]
            print("| %s | %s | %d | %d | %s | %s | %s |" % (
                name, what, n, threads, number(result["onnxruntime"]), number(result["PyTorch"]),
                " | ".join(cells)))
            for side in ("onnxruntime", "PyTorch"):
                out.writerow([name, what, n, threads, side, "%.4f" % result[side], "", ""])
            for c in configs:
                out.writerow([name, what, n, threads, c[1], "%.4f" % result[c],
                              "%.3f" % result[c, "onnxruntime"], "%.3f" % result[c, "PyTorch"]])
    if not all(math.isfinite(r["onnxruntime"]) for *_, r in rows):
        sys.exit("a time is missing")


if __name__ == "__main__":
    main()
