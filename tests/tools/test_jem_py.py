"""tools/jem.py: its declarations are those of jem.h, and what it computes is what the library does.

Needs numpy, a C compiler (CC), the shared library and the jem command, whose paths are the
arguments.
"""
import copy
import csv
import ctypes
import json
import os
import pickle
import re
import signal
import struct
import subprocess
import sys
import tempfile
import zlib

import numpy

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tools"))
sys.path.insert(0, os.path.join(ROOT, "tests", "support"))
os.environ["JEM_LIBRARY"] = sys.argv[1]
import jem  # noqa: E402
from checks import check, finish  # noqa: E402


def raises(error, part, function, *arguments):
    try:
        function(*arguments)
    except error as e:
        check(part in str(e), "%s: '%s' says '%s'" % (function.__name__, part, e))
    else:
        check(False, "%s raises no %s" % (function.__name__, error.__name__))


# ---- declarations ----

HEADER = open(os.path.join(ROOT, "jem.h"), encoding="utf-8").read()
SCALARS = {"int": ctypes.c_int, "float": ctypes.c_float, "unsigned char": ctypes.c_ubyte,
           "uint64_t": ctypes.c_uint64, "size_t": ctypes.c_size_t, "jem_status": ctypes.c_int,
           "void": None}


def agree(c, py):
    """Can a C type, as a declaration spells it, be passed as this ctypes type?"""
    c = re.sub(r"\bconst\b", "", c)
    stars = c.count("*")
    name = " ".join(c.replace("*", " ").split())
    if stars == 0:
        return py is SCALARS.get(name, jem.STRUCTS.get(name, "unknown"))
    if stars > 1:
        return False
    if py is ctypes.c_char_p:
        return name == "char"
    if py is ctypes.c_void_p:
        return name == "void" or name.startswith("jem_")
    wanted = SCALARS.get(name) or jem.STRUCTS.get(name)
    return wanted is not None and py is ctypes.POINTER(wanted)


def test_functions():
    print("declarations of functions")
    check(len(jem.FUNCTIONS) > 15, "there are some")
    for name, (result, arguments) in jem.FUNCTIONS.items():
        found = re.search(r"JEM_API ([\w *]*?)\b%s\(([^)]*)\);" % name, HEADER)
        check(found is not None, "%s is in jem.h" % name)
        if not found:
            continue
        check(agree(found.group(1), result), "%s: result %s" % (name, found.group(1)))
        arguments_c = re.sub(r"\s+", " ", found.group(2)).split(",")
        declared = [a for a in arguments_c if a.strip() != "void"]
        check(len(declared) == len(arguments), "%s: %d arguments" % (name, len(declared)))
        for c, py in zip(declared, arguments):
            kind = re.match(r"(.*?)\w+$", c.strip()).group(1)      # without the parameter's name
            check(agree(kind, py), "%s: '%s' is %s" % (name, c.strip(), py))
    check(not agree("const float *", jem.INTS) and not agree("int", ctypes.c_float) and
          not agree("float **", jem.FLOATS) and not agree("size_t", ctypes.c_int),
          "a wrong declaration is found")


def test_structs():
    print("structures: offsets and sizes as the C compiler has them")
    lines = []
    for c_name, structure in jem.STRUCTS.items():
        for field, kind in structure._fields_:
            lines.append('printf("%s %s %%d %%d\\n", (int)offsetof(%s, %s), '
                         '(int)sizeof(((%s *)0)->%s));' % (c_name, field, c_name, field, c_name,
                                                           field))
        lines.append('printf("%s - 0 %%d\\n", (int)sizeof(%s));' % (c_name, c_name))
    program = '#include "jem.h"\n#include <stdio.h>\nint main(void) { %s return 0; }'
    program %= "\n".join(lines)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "offsets")
        with open(path + ".c", "w") as f:
            f.write(program)
        subprocess.run(os.environ.get("CC", "cc").split() + ["-I", ROOT, path + ".c", "-o", path],
                       check=True)
        told = subprocess.run([path], check=True, stdout=subprocess.PIPE, text=True).stdout
    for line in told.splitlines():
        c_name, field, offset, size = line.split()
        structure = jem.STRUCTS[c_name]
        if field == "-":
            is_head = structure is jem.NetHead     # of which the rest is not declared
            check(is_head or ctypes.sizeof(structure) == int(size),
                  "%s has %s bytes" % (c_name, size))
            continue
        own = getattr(structure, field)
        check((own.offset, own.size) == (int(offset), int(size)),
              "%s.%s: %d, %d" % (c_name, field, own.offset, own.size))


# ---- numbers ----


def grey_png(path):
    """The pixels of a grey PNG of 8 bits: its rows are differences to the left and above."""
    data = open(path, "rb").read()
    width, height = (int.from_bytes(data[i:i + 4], "big") for i in (16, 20))
    packed, at = b"", 8
    while at < len(data):
        size = int.from_bytes(data[at:at + 4], "big")
        if data[at + 4:at + 8] == b"IDAT":
            packed += data[at + 8:at + 8 + size]
        at += size + 12
    rows = numpy.frombuffer(zlib.decompress(packed), numpy.uint8).reshape(height, width + 1)
    pixels = numpy.zeros((height, width), numpy.uint8)
    above = numpy.zeros(width, numpy.uint8)
    for i, row in enumerate(rows):
        kind, line = row[0], row[1:].astype(int)
        if kind == 2:
            line = line + above
        elif kind == 1:
            line = numpy.cumsum(line)
        elif kind:
            left = corner = 0
            for j in range(width):
                up = int(above[j])
                guess = left + up - corner
                nearest = min((abs(guess - left), 0, left), (abs(guess - up), 1, up),
                              (abs(guess - corner), 2, corner))[2]
                line[j] = left = (line[j] + (nearest if kind == 4 else (left + up) // 2)) & 255
                corner = up
        pixels[i] = above = (line & 255).astype(numpy.uint8)
    return pixels


def digits(each):
    """Held-out digits of the sheet, `each` of a class, as the network takes them; their labels."""
    sheet = grey_png(os.path.join(ROOT, "examples", "data", "digits.png"))
    rows = [sheet[28 * (10 * y + 9):28 * (10 * y + 10), :28 * each] for y in range(10)]
    x = numpy.concatenate([r.reshape(28, each, 28).transpose(1, 0, 2) for r in rows])
    y = numpy.repeat(numpy.arange(10, dtype=numpy.intc), each)
    return (x[:, None] / 127.5 - 1).astype(numpy.float32), y


def test_numbers(net, x, y):
    print("classes, densities and slopes")
    f = net.logits(x)
    a = net.classify(x)
    check(f.shape == (len(x), 10) and f.dtype == numpy.float32, "shape of logits")
    check((a["label"] == f.argmax(1)).all(), "the label has the largest logit")
    check((a["label"] == y).mean() > 0.9, "%.2f are right" % (a["label"] == y).mean())
    check(((a["probability"] > 0) & (a["probability"] <= 1)).all(), "probabilities")
    logp = net.logp(x)
    check(numpy.abs(logp - a["log_density"]).max() < 1e-3 * numpy.abs(logp).max(), "log p(x) twice")
    both, slope = net.logp(x, slope=True)
    check(numpy.abs(both - logp).max() < 1e-3 * numpy.abs(logp).max() and
          slope.shape == x.shape, "log p(x) with its slope")
    direction = slope[:4] / numpy.sqrt((slope[:4] ** 2).sum((1, 2, 3), keepdims=True))
    h = 0.02
    rise = (net.logp(x[:4] + h * direction) - net.logp(x[:4] - h * direction)) / (2 * h)
    along = (slope[:4] * direction).sum((1, 2, 3))
    check(numpy.abs(rise / along - 1).max() < 0.05, "slope %s, by difference %s" % (along, rise))
    joint = net.logp(x, y)
    own = f - numpy.log(numpy.exp(f - f.max(1, keepdims=True)).sum(1, keepdims=True)) - \
        f.max(1, keepdims=True)
    by_hand = logp + own[numpy.arange(len(x)), y]
    check(numpy.abs(joint - by_hand).max() < 2e-3 * numpy.abs(by_hand).max(), "log p(x,y)")
    check(numpy.array_equal(net.logp(x[0]), net.logp(x[:1])), "an image without n")
    check(net.logits(x[:0]).shape == (0, 10) and len(net.classify(x[:0])) == 0, "no images")
    check(numpy.array_equal(net.logits(x.astype(numpy.float64)), f), "doubles")


def test_samples(net):
    print("samples")
    pixels = net.sample(7, n=1, seed=3)
    check(pixels.shape == (1, 28, 28, 1) and pixels.dtype == numpy.uint8, "their shape")
    x = pixels.transpose(0, 3, 1, 2) / 127.5 - 1
    check(net.classify(x)["label"][0] == 7, "a seven is one")


def test_pixels(net, model):
    print("a picture, as jem classify answers")
    check(net.columns() == [], "no columns")
    path = os.path.join(ROOT, "examples", "data", "seven.png")
    picture = grey_png(path)
    with tempfile.TemporaryDirectory() as folder:
        table = os.path.join(folder, "answers.csv")
        subprocess.run([sys.argv[2], "classify", model, path, "--out", table], check=True,
                       stdout=subprocess.DEVNULL)
        with open(table, newline="") as lines:
            row = next(csv.DictReader(lines))
    a = net.classify_pixels(picture)
    check(a["label"] == 7 and row["label"] == "7", "a seven: %s, %s" % (a["label"], row["label"]))
    check(abs(a["log_density"] - float(row["log_p"])) < 1e-4 * abs(a["log_density"]), "log p(x)")
    check(0 <= a["familiarity"] - float(row["familiarity"]) <= 1.01e-4, "familiarity")
    colour = numpy.repeat(picture[:, :, None], 3, 2)
    check(numpy.array_equal(net.pixels(colour), net.pixels(picture)), "grey in three channels")
    raises(ValueError, "must be bytes", net.pixels, picture.astype(float))
    raises(ValueError, "bytes: pass x / 127.5 - 1", net.classify, picture[None, None])
    raises(ValueError, "must be (height, width", net.pixels, picture[None, :, :, None])
    raises(jem.JemError, "1 to 4", net.pixels, picture[:, :, None].repeat(5, 2))


def test_errors(net, x):
    print("errors")
    raises(jem.JemError, "nowhere.safetensors", jem.Net, "nowhere.safetensors")
    raises(ValueError, "must be (n, 1, 28, 28)", net.logits, numpy.zeros((1, 3, 28, 28)))
    raises(ValueError, "labels of shape", net.logp, x[:2], [1])
    raises(jem.JemError, "label 11", net.logp, x[:1], [11])
    raises(jem.JemError, "label 10 is neither", net.sample, 10)
    raises(ValueError, "label = 4294967297", net.logp, x[:1], [2**32 + 1])
    raises(ValueError, "labels of float64", net.logp, x[:2], [1.9, 2.7])
    raises(ValueError, "label = 4294967303", net.sample, 2**32 + 7)
    raises(ValueError, "seed = -1", net.sample, 7, 1, -1)
    raises(ValueError, "n = 0 is not in", net.sample, 7, 0)
    raises(ValueError, "contains a character 0", net.meta, "class.0\0x")
    raises(ValueError, "contains a character 0", jem.Net, "model\0.bak")
    raises(TypeError, "cannot be copied", copy.copy, net)
    raises(TypeError, "cannot be copied", pickle.dumps, net)
    nan = x[:1].copy()
    nan[0, 0, 0, 0] = numpy.nan
    raises(jem.JemError, "image 0", net.classify, nan)
    check(len(net.logp(x[:1])) == 1, "it goes on after errors")
    check(net.meta("jem.net") == "convnet" and net.meta("nothing") is None, "texts")
    with jem.Net(os.path.join(ROOT, "examples", "models", "mnist.safetensors")) as other:
        check(other.classes == 10, "classes")
    raises(ValueError, "closed", other.logits, x)


def test_units():
    print("a table in its own units")
    rng = numpy.random.default_rng(5)
    units = numpy.array([1e-3, 20.0, 3e4])
    rows = (rng.normal(size=(600, 3)) @ [[1, .5, 0], [0, 1, .5], [0, 0, 1]] + [0, 5, 3]) * units
    with tempfile.TemporaryDirectory() as folder:
        table = os.path.join(folder, "rows.csv")
        numpy.savetxt(table, rows, delimiter=",", header="a,b,c", comments="")
        command = [sys.argv[2], "train", table, "--iters", "300", "--threads", "1", "--out",
                   os.path.join(folder, "run")]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        with jem.Net(os.path.join(folder, "run", "last.safetensors")) as net:
            logp, slope = net.logp(rows[:50], slope=True)
            answers = net.classify(rows[:50])
            check(slope.shape == (50, 3) and len(answers) == 50, "rows without height and width")
            check(numpy.abs(logp - answers["log_density"]).max() < 1e-3, "log p(x) as in classify")
            check(net.columns() == ["a", "b", "c"], "columns %s" % net.columns())
            one, of_one = net.logp(rows[0], slope=True)
            check(one[0] == logp[0] and (of_one == slope[0]).all(), "one row")
            raises(ValueError, "shape (2, 4): must be (n, 3)", net.logp, numpy.zeros((2, 4)))
            raises(ValueError, "of rows of 3 numbers, which are no pictures", net.sample)
            raises(ValueError, "no pictures", net.pixels, numpy.zeros((2, 2), numpy.uint8))
            odd = rows[:20] + [0, 0, 9 * units[2]]
            gain, better = net.blame(odd)
            check(gain.shape == (20, 3) and (gain.argmax(1) == 2).all(), "c is to blame: %s" % gain)
            check((better[:, 2] < odd[:, 2]).all(), "by its size: %s" % better[:, 2])
            check((net.blame(odd[0])[0] == gain[0]).all(), "one row to blame")
            for column in range(3):
                step = numpy.zeros(3)
                step[column] = 0.01 * units[column]
                rise = net.logp(rows[:50] + step) - net.logp(rows[:50] - step)
                error = numpy.abs(rise / 0.02 - slope[:, column] * units[column]).max()
                check(error < 0.05, "slope of column %d: off by %g" % (column, error))


def convolved(x, w, b, stride):
    """A convolution with a padding of 1."""
    x = numpy.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    side = w.shape[2]
    h, width = ((s - side) // stride + 1 for s in x.shape[2:])
    return b[:, None, None] + sum(
        numpy.einsum("oc,nchw->nohw", w[:, :, i, j],
                     x[:, :, i:i + stride * h:stride, j:j + stride * width:stride])
        for i in range(side) for j in range(side))


def test_own_convnet():
    """A convnet with the description of tools/README.md has the logits of numpy."""
    with open(os.path.join(ROOT, "tools", "README.md"), encoding="utf-8") as file_:
        found = re.search(r"^(description = .*?\})$", file_.read(), re.M | re.S)
    if not check(found is not None, "tools/README.md describes a convnet"):
        return
    names = {}
    exec(found.group(1), names)
    random = numpy.random.default_rng(5)
    arrays, inputs, side = {}, 1, 28
    for i, width in enumerate((16, 32, 64, 64)):
        k = 4 if i else 3
        arrays["conv%d.weight" % (i + 1)] = random.normal(size=(width, inputs, k, k)) * (
            2 / (inputs * k * k)) ** .5
        arrays["conv%d.bias" % (i + 1)] = random.normal(size=width)
        inputs, side = width, side // 2 if i else side
    arrays["class_output.weight"] = random.normal(size=(10, inputs * side * side)) / 24
    arrays["class_output.bias"] = random.normal(size=10)
    x = random.normal(size=(3, 1, 28, 28))
    h = x
    for i in range(4):
        h = convolved(h, arrays["conv%d.weight" % (i + 1)], arrays["conv%d.bias" % (i + 1)],
                      2 if i else 1)
        h = h / (1 + numpy.exp(-h))
    truth = h.reshape(3, -1) @ arrays["class_output.weight"].T + arrays["class_output.bias"]
    entries, data = {"__metadata__": names["description"]}, b""
    for name, array in arrays.items():
        some_bytes = array.astype("<f4").tobytes()
        entries[name] = {"dtype": "F32", "shape": list(array.shape),
                         "data_offsets": [len(data), len(data) + len(some_bytes)]}
        data += some_bytes
    text = json.dumps(entries).encode()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "own.safetensors")
        with open(path, "wb") as file_:
            file_.write(struct.pack("<Q", len(text)) + text + data)
        with jem.Net(path) as net:
            error = numpy.abs(net.logits(x) - truth).max()
    check(error < 1e-4 * numpy.abs(truth).max(), "logits differ by %g" % error)


def test_parts(net, images):
    """log p(x) and slopes of many images are computed in parts."""
    logp, slope = net.logp(images, slope=True)
    batch, jem.BATCH = jem.BATCH, 4
    parts, slopes = net.logp(images, slope=True)
    jem.BATCH = batch
    check(numpy.abs(parts - logp).max() < 1e-2, "log p(x) in parts")
    check(numpy.abs(slopes - slope).max() < 1e-3 * numpy.abs(slope).max(), "slopes in parts")


def test_threads(path, images, logp):
    """One thread computes the same, also in a child of a process whose threads it lacks."""
    print("threads")
    raises(ValueError, "threads = -1 is not in", jem.Net, path, -1)
    child = os.fork()
    if child == 0:
        signal.alarm(60)                           # rather than wait for a thread forever
        with jem.Net(path, threads=1) as net:
            os._exit(0 if (net.logp(images) == logp).all() else 1)
    check(os.waitpid(child, 0)[1] == 0, "one thread, after a fork")


def test_no_library():
    """A library that is not one is named."""
    loaded, jem._library = jem._library, None
    os.environ["JEM_LIBRARY"] = file
    raises(jem.JemError, "the library cannot be loaded: ", jem.library)
    jem._library = loaded


test_functions()
test_structs()
test_units()
file = os.path.join(ROOT, "examples", "models", "mnist.safetensors")
model = jem.Net(file)
some, labels = digits(10)
test_numbers(model, some, labels)
test_samples(model)
test_pixels(model, file)
test_errors(model, some)
test_parts(model, some)
test_threads(file, some[:3], model.logp(some[:3]))
model.close()
test_own_convnet()
test_no_library()
finish()
