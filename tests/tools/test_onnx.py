"""jem export --onnx: the file is a complete ONNX graph, whose logits, log p(x) and slope are the
library's, in a numpy interpreter, and in onnxruntime if it is in build/onnxruntime
(tools/get_package.sh onnxruntime).

Needs numpy; the arguments are build/jem and build/libjem.so.
"""
import json
import os
import subprocess
import sys
import tempfile

import numpy as np

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tools"))
sys.path.insert(0, os.path.join(ROOT, "tests", "support"))
JEM = os.path.abspath(sys.argv[1])
os.environ["JEM_LIBRARY"] = os.path.abspath(sys.argv[2])
BUILD = os.environ.get("BUILD", "build")
import jem        # noqa: E402
import onnx_file  # noqa: E402
from checks import check, finish  # noqa: E402

# Rounding in fp32: largest difference divided by the largest value.
TOLERANCE = 1e-4
# Graphs of onnxruntime may use the kernels of another order of sums.
RUNTIME_TOLERANCE = 2e-4
def command(*words):
    result = subprocess.run([JEM, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            universal_newlines=True)
    return result.returncode, result.stdout, result.stderr


def off(a, b):
    return float(np.abs(a - b).max() / np.abs(b).max())


# ---- networks ----

SHIPPED = ["mnist", "mnist-wide", "mnist-plain", "fashion-mnist", "fashion-mnist-unet",
           "fashion-mnist-wide", "cifar10", "cifar10-unet", "cifar10-wrn", "cifar10-wide",
           "cifar10-deep", "cifar10-large"]
WRN = ["--net", "wrn", "--depth", "10", "--width", "1"]
TRAINED = {
    "wrn": WRN,
    "wrn-batch": WRN + ["--norm", "batch", "--activation", "relu"],
    "wrn-act": WRN + ["--norm", "act", "--head", "flat", "--activation", "tanh"],
    "wrn-zero": WRN + ["--blocks", "zero", "--activation", "silu", "--stem-stride", "2"],
    "wrn-unet": WRN + ["--blocks", "zero", "--activation", "silu", "--unet"],
    "wrn-uncond": WRN + ["--uncond"],
    "wrn-sam": ["--net", "wrn", "--depth", "16", "--width", "2", "--stem-stride", "2"],
    "mlp": ["--net", "mlp", "--widths", "32", "24"],
    "convnet": ["--net", "convnet", "--widths", "8", "16", "--uncond", "--activation", "relu"],
}


def trained(folder):
    """A network of each kind after two updates, and one of a table, which has units."""
    for name, options in TRAINED.items():
        out = os.path.join(folder, name)
        code, _, error = command("train", "--dataset", "digits", "--iters", "2", "--batch-size",
                                 "16", "--p-x-weight", "0", "--score-weight", "0", "--threads", "1",
                                 "--out", out, *options)
        check(code == 0, "train %s: %s" % (name, error))
        yield name, os.path.join(out, "last.safetensors")
    rows = np.random.default_rng(3).normal(size=(300, 5)) * [1, 10, .1, 1000, 1] + [0, 5, 3, 0, 1]
    table = os.path.join(folder, "rows.csv")
    np.savetxt(table, rows, delimiter=",", header="a,b,c,d,e", comments="")
    out = os.path.join(folder, "rows")
    code, _, error = command("train", table, "--iters", "20", "--out", out)
    check(code == 0, "train a table: %s" % error)
    yield "table", os.path.join(out, "last.safetensors")


# ---- one network ----

def structure(name, model, net):
    """A graph in order: each name is written once, and before it is read."""
    check(model.opset == 13 and model.format == 7, name + ": versions")
    check(len(model.constants) == model.constant_count, name + ": names of constants are unique")
    known = set(model.constants) | {"x"}
    for node in model.nodes:
        check(all(i in known or i == "" for i in node.inputs), "%s: %s reads %s" % (
            name, node.op, node.inputs))
        check(len(node.outputs) == 1 and node.outputs[0] not in known,
              "%s: %s writes %s" % (name, node.op, node.outputs))
        known.update(node.outputs)
    image = ["n", net.channels, net.height, net.width]
    check(model.inputs == [("x", image)], name + ": input")
    check(model.outputs == [("logits", ["n", net.classes]), ("logp", ["n"]), ("slope", image)],
          name + ": outputs")


def expected(net, x):
    logp, slope = net.logp(x, slope=True)
    return {"logits": net.logits(x), "logp": logp, "slope": slope}


def data_for(net, n):
    x = np.random.default_rng(n).uniform(-1, 1, (n, net.channels, net.height, net.width))
    units = net.meta("jem.units")
    if units is not None:
        mean, scale = np.array(units.split(), np.float32).reshape(-1, 2).T.reshape(2, 1, -1, 1, 1)
        x = 2 * x * scale + mean
    return x.astype(np.float32)


def compare(name, results, truth, tolerance):
    for output, values in truth.items():
        if output not in results:
            continue
        check(results[output].shape == values.shape, "%s: shape of %s" % (name, output))
        difference = off(results[output].reshape(values.shape), values)
        check(difference <= tolerance, "%s: %s differs by %.1e" % (name, output, difference))


class Runtime:
    """onnxruntime in a process of node."""

    def __init__(self):
        self.child = subprocess.Popen(["node", os.path.join(ROOT, "tools/bench_onnx.js")],
                                      stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=1,
                                      universal_newlines=True)

    def ask(self, line):
        self.child.stdin.write(line + "\n")
        self.child.stdin.flush()
        answer = self.child.stdout.readline()
        check(answer.startswith("ok"), "onnxruntime: %s: %s" % (line, answer))

    def run(self, path, x, truth, folder):
        """The outputs: one file of floats, in the order of the graph's outputs."""
        source, result = os.path.join(folder, "x.f32"), os.path.join(folder, "y.f32")
        x.tofile(source)
        self.ask("open %s 1" % path)
        self.ask("answers %d %s %s" % (len(x), source, result))
        floats = np.fromfile(result, np.float32)
        results, at = {}, 0
        for name, values in truth.items():
            results[name] = floats[at:at + values.size].reshape(values.shape)
            at += values.size
        check(at == floats.size, "onnxruntime: %d floats for %d" % (floats.size, at))
        return results

    def end(self):
        self.child.stdin.close()
        self.child.wait()


def network(name, path, folder, runtime):
    graph = os.path.join(folder, name + ".onnx")
    code, out, error = command("export", path, graph, "--onnx")
    check(code == 0, "export %s: %s" % (name, error))
    model = onnx_file.Model(graph)
    with jem.Net(path) as net:
        structure(name, model, net)
        for n in (3, 1):
            x = data_for(net, n)
            truth = expected(net, x)
            with np.errstate(over="ignore"):
                compare(name, model.run(x), truth, TOLERANCE)
            if runtime:
                compare(name + " in onnxruntime", runtime.run(graph, x, truth, folder), truth,
                        RUNTIME_TOLERANCE)


def quadratic(folder):
    """Writes the digits' convnet with a quadratic term in log p(x), which `jem train` does not offer."""
    with open(os.path.join(ROOT, "examples/models/mnist.safetensors"), "rb") as f:
        size = int.from_bytes(f.read(8), "little")
        header, data = json.loads(f.read(size)), f.read()
    header["__metadata__"]["jem.quadratic"] = "0.25"
    text = json.dumps(header).encode()
    path = os.path.join(folder, "quadratic.safetensors")
    with open(path, "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text + data)
    return path


def refusals(folder):
    model = os.path.join(ROOT, "examples/models/mnist.safetensors")
    graph = os.path.join(folder, "forward.onnx")
    code, _, _ = command("export", model, graph, "--onnx", "--no-slope")
    outputs = [name for name, _ in onnx_file.Model(graph).outputs]
    check(code == 0 and outputs == ["logits", "logp"], "--no-slope: %s" % outputs)
    properties = onnx_file.Model(graph).properties
    check(properties.get("jem.net") == "convnet", "properties: %s" % properties)
    out = os.path.join(folder, "layer")
    command("train", "--dataset", "digits", "--iters", "1", "--batch-size", "16", "--p-x-weight",
            "0", "--score-weight", "0", "--out", out, *WRN, "--norm", "layer")
    path = os.path.join(folder, "not.onnx")
    code, _, error = command("export", os.path.join(out, "last.safetensors"), path, "--onnx")
    check(code == 1 and "layer norm" in error, "a layer norm: %s" % error)
    code, _, error = command("export", model, path, "--onnx", "--dtype", "bf16")
    check(code == 2 and "--dtype" in error, "bf16: %s" % error)
    check(not os.path.exists(path), "a refused file exists")
    code, _, error = command("export", model, folder, "--onnx")
    check(code == 1 and folder in error, "onto a folder: %s" % error)


def main():
    there = os.path.exists(os.path.join(BUILD, "onnxruntime/node_modules/onnxruntime-node"))
    runtime = Runtime() if there else None
    with tempfile.TemporaryDirectory() as folder:
        for name in SHIPPED:
            network(name, os.path.join(ROOT, "examples/models/%s.safetensors" % name), folder,
                    runtime)
        for name, path in trained(folder):
            network(name, path, folder, runtime)
        network("quadratic", quadratic(folder), folder, runtime)
        refusals(folder)
    if runtime:
        runtime.end()
    else:
        print("onnxruntime: SKIPPED, needs tools/get_package.sh onnxruntime")
    finish()


main()
