#!/usr/bin/env python3
"""tools/pt2safetensors.py, and the reader of tools/README.md: with Python's library alone.

Checkpoints are pickled by Python's own pickle, with stand-ins under PyTorch's names, which gives
the bytes that torch.save gives (make check-torch does it with the real one). Then the hostile ones:
pickles that call something, refer to what is not there, are cut short, claim more than they hold.
The last line is for tests/run.sh: N passed, N failed.
"""
import array
import collections
import contextlib
import importlib.util
import io
import json
import os
import pickle
import random
import re
import struct
import subprocess
import sys
import tempfile
import types
import zipfile

try:
    import resource
except ImportError:                             # Windows
    resource = None

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TOOL = os.path.join(ROOT, "tools", "pt2safetensors.py")
sys.path.insert(0, os.path.join(ROOT, "tests", "support"))
from checks import check, finish  # noqa: E402

random.seed(1)


# --------------------------------------------------------- what torch.save does, without torch ----

torch, utils = types.ModuleType("torch"), types.ModuleType("torch._utils")
sys.modules["torch"], sys.modules["torch._utils"] = torch, utils


def stand_in(module, name):
    made = type(name, (), {"__module__": module.__name__})
    setattr(module, name, made)
    return made


CODES = {"FloatStorage": "f", "DoubleStorage": "d", "HalfStorage": "e", "BFloat16Storage": "H",
         "LongStorage": "q", "IntStorage": "i", "ByteStorage": "B", "CharStorage": "b",
         "ShortStorage": "h"}
KINDS = {name: stand_in(torch, name) for name in CODES}


def rebuild(*arguments):
    return None


rebuild.__module__ = "torch._utils"
rebuild.__name__ = rebuild.__qualname__ = "_rebuild_tensor_v2"
utils._rebuild_tensor_v2 = rebuild


class Storage:
    def __init__(self, kind, values):
        self.kind, self.values, self.key = kind, list(values), None

    def bytes(self):
        return struct.pack("<%d%s" % (len(self.values), CODES[self.kind]), *self.values)


class Tensor:
    def __init__(self, storage, size, stride=None, offset=0):
        if stride is None:
            stride, n = [], 1
            for s in reversed(size):
                stride.insert(0, n)
                n *= s
        self.arguments = (storage, offset, tuple(size), tuple(stride), False,
                          collections.OrderedDict())
        self.size, self.stride, self.offset, self.storage = size, stride, offset, storage

    def __reduce__(self):
        return rebuild, self.arguments

    def list(self):
        out = [self.offset]
        for n, s in zip(self.size, self.stride):
            out = [at + i * s for at in out for i in range(n)]
        return [self.storage.values[at] for at in out]


class Pickler(pickle._Pickler):
    """Pickles storages by reference, and keeps them."""

    def __init__(self, file, view):
        super().__init__(file, protocol=2)
        self.storages, self.view = [], view

    def persistent_id(self, thing):
        if not isinstance(thing, Storage):
            return None
        if thing not in self.storages:
            thing.key = str(len(self.storages) + 17)
            self.storages.append(thing)
        told = ("storage", KINDS[thing.kind], thing.key, "cpu", len(thing.values))
        return told + (None,) if self.view else told


def pickled(value, view=False):
    file = io.BytesIO()
    pickler = Pickler(file, view)
    pickler.dump(value)
    return file.getvalue(), pickler.storages


def as_zip(value, data=None, storages=(), drop=None, compress=zipfile.ZIP_STORED, extra=()):
    if data is None:
        data, storages = pickled(value)
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compress) as archive:
        archive.writestr("archive/data.pkl", data)
        for s in storages:
            if s.key != drop:
                archive.writestr("archive/data/" + s.key, s.bytes())
        for name, content in extra:
            archive.writestr(name, content)
    return file.getvalue()


SYSTEM = {"protocol_version": 1001, "little_endian": True,
          "type_sizes": {"short": 2, "int": 4, "long": 4}}


def as_legacy(value, system=SYSTEM, magic=0x1950a86a20f9469cfc6c, key=lambda k: k):
    data, storages = pickled(value, view=True)
    out = b"".join(pickle.dumps(x, 2) for x in (magic, 1001, system)) + data
    out += pickle.dumps([key(s.key) for s in storages], 2)
    for s in storages:
        out += struct.pack("<q", len(s.values)) + s.bytes()
    return out


# ----------------------------------------------------------------------------- checkpoints ----

def numbers(count, kind="FloatStorage"):
    if CODES[kind] in "qiBH":
        return Storage(kind, [random.randrange(200) for _ in range(count)])
    return Storage(kind, [random.randrange(-64, 64) / 32 for _ in range(count)])   # exact in half


def shape(*size, kind="FloatStorage"):
    count = 1
    for n in size:
        count *= n
    return Tensor(numbers(count, kind), size)


def wrn(widen=1, norm="none", unused=True, depth=10, channels=3, classes=10):
    """A state dict as the reference's class has it, written down here a second time."""
    state = collections.OrderedDict()

    def conv(name, o, i, k):
        state[name + ".weight"], state[name + ".bias"] = shape(o, i, k, k), shape(o)

    def bn(name, c):
        if norm in ("batch", "instance", "layer"):
            state[name + ".weight"], state[name + ".bias"] = shape(c), shape(c)
        if norm == "batch":
            state[name + ".running_mean"], state[name + ".running_var"] = shape(c), shape(c)
            state[name + ".num_batches_tracked"] = shape(kind="LongStorage")
        if norm == "act":
            state[name + ".loc"], state[name + ".scale"] = shape(1, c, 1, 1), shape(1, c, 1, 1)
            state[name + ".initialized"] = shape(kind="ByteStorage")

    conv("f.conv1", 16, channels, 3)
    inside = 16
    for layer, c in ((1, 16 * widen), (2, 32 * widen), (3, 64 * widen)):
        for block in range((depth - 4) // 6):
            name = "f.layer%d.%d." % (layer, block)
            bn(name + "bn1", inside), conv(name + "conv1", c, inside, 3)
            bn(name + "bn2", c), conv(name + "conv2", c, c, 3)
            if inside != c or (layer > 1 and block == 0):
                conv(name + "shortcut.0", c, inside, 1)
            inside = c
    bn("f.bn1", inside)
    if unused:
        state["f.linear.weight"], state["f.linear.bias"] = shape(10, inside), shape(10)
        state["energy_output.weight"], state["energy_output.bias"] = shape(1, inside), shape(1)
    state["class_output.weight"] = shape(classes, inside)
    state["class_output.bias"] = shape(classes)
    state._metadata = collections.OrderedDict([("", {"version": 1})])
    return state


# ------------------------------------------------------------------------------ running it ----

folder = tempfile.TemporaryDirectory()


def path(name):
    return os.path.join(folder.name, name)


spec = importlib.util.spec_from_file_location("tool", TOOL)
tool = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tool)
Result = collections.namedtuple("Result", "returncode stderr stdout", defaults=("",))


def run(data, *options, out="out.safetensors", name="in.pt"):
    """The tool's main, here: a process for each of a thousand would take minutes."""
    with open(path(name), "wb") as file:
        file.write(data)
    said, told = io.StringIO(), io.StringIO()
    sys.argv = [TOOL, path(name), path(out), *options]
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(told):
            tool.main()
        return Result(0, said.getvalue(), told.getvalue())
    except SystemExit as end:
        return Result(end.code, said.getvalue()) if isinstance(end.code, int) else \
            Result(1, end.code + "\n")


def parse(name="out.safetensors"):
    """name -> (dtype, shape, values); the file must have no gaps, and aligned data."""
    with open(path(name), "rb") as file:
        size, = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(size))
        data = file.read()
    meta, out, ends = header.pop("__metadata__"), {}, [0]
    for name, e in header.items():
        begin, end = e["data_offsets"]
        values = array.array({"F32": "f", "I32": "i", "I64": "q", "U8": "B"}[e["dtype"]])
        check(begin == ends[-1] and (8 + size + begin) % values.itemsize == 0, name + " lies well")
        ends.append(end)
        values.frombytes(data[begin:end])
        out[name] = (e["dtype"], e["shape"], values.tolist())
    check(ends[-1] == len(data) and size % 8 == 0, "the file is as long as it should be")
    return meta, out


def refused(data, text, what, *options):
    """Fails with one line that holds the text, and leaves no file."""
    result = run(data, *options, out="refused.safetensors")
    lines = result.stderr.strip().split("\n")
    check(result.returncode == 1 and len(lines) == 1 and text in lines[0],
          "%s: '%s' wanted, status %d: %s" % (what, text, result.returncode, result.stderr))
    left = [name for name in os.listdir(folder.name) if name.startswith("refused")]
    check(not left, "%s: leaves %s" % (what, left))


def same(state, tensors, keep_unused=False):
    for name, t in state.items():
        unused = name.startswith(("f.linear", "energy_output"))
        if unused and not keep_unused:
            check(name not in tensors, name + " is left out")
        elif check(name in tensors, name + " is there"):
            kind, size, values = tensors[name]
            check(size == list(t.size) and values == t.list(), name + " is the same")


def test_formats():
    for norm in ("none", "batch", "instance", "layer", "act"):
        state = wrn(2 if norm == "act" else 1, norm)
        buffer = shape(5, 3, 7, 9)
        checkpoint = {"model_state_dict": state, "replay_buffer": buffer}
        options = ["--norm", norm] if norm in ("instance", "layer") else []
        for made in (as_zip, as_legacy):
            result = run(made(checkpoint), *options)
            if not check(result.returncode == 0, "%s: %s" % (norm, result.stderr)):
                continue
            meta, tensors = parse()
            same(state, tensors)
            kind, size, values = tensors["replay_buffer"]
            check(kind == "F32" and size == [5, 3, 7, 9] and values == buffer.list(), "the buffer")
            wanted = {"jem.net": "wrn", "jem.depth": "10", "jem.height": "7", "jem.width": "9",
                      "jem.widen": "2" if norm == "act" else "1", "jem.classes": "10",
                      "jem.slope": "0.2", "jem.activation": "0", "jem.dropout": "0",
                      "jem.channels": "3", "jem.head": "0", "jem.stem_stride": "1",
                      "jem.norm": str(("none", "batch", "instance", "layer", "act").index(norm))}
            check({k: v for k, v in meta.items() if k in wanted} == wanted, "%s: %s" % (norm, meta))
        if options:
            refused(as_zip(checkpoint), "--norm instance or --norm layer", norm)
    state = wrn(1, depth=16, channels=1, classes=7)
    result = run(as_zip(state), "--keep-unused", "--activation", "silu", "--size", "28x28")
    if check(result.returncode == 0, "a state dict alone: " + result.stderr):
        meta, tensors = parse()
        same(state, tensors, keep_unused=True)
        told = [meta["jem." + key] for key in ("depth", "classes", "height", "channels",
                                               "activation")]
        check(told == ["16", "7", "28", "1", "2"], str(meta))
    state = wrn()
    result = run(as_zip(state), "--uncond")
    if check(result.returncode == 0, "--uncond: " + result.stderr):
        meta, tensors = parse()
        check(meta["jem.uncond"] == "1" and "f.linear.weight" not in tensors and
              tensors["energy_output.bias"][2] == state["energy_output.bias"].list(), "an energy")
    refused(as_zip(wrn(unused=False)), "energy_output.weight", "no energy", "--uncond")
    for prefix in ("module.", "_orig_mod.", "_orig_mod.module.", "module._orig_mod."):
        longer = collections.OrderedDict((prefix + k, v) for k, v in wrn().items())
        result = run(as_zip(longer))
        check(result.returncode == 0, "names with " + prefix)
        check("images are taken to be 32x32" in result.stdout, "the size is unknown")


def test_views_and_types():
    """Tensors that are a part of a storage, in another order, of another type."""
    state = wrn()
    shared = numbers(3 * 64 + 10)
    state["f.layer3.0.conv1.bias"] = Tensor(shared, (64,), (3,), 7)             # every third number
    state["f.layer3.0.conv2.bias"] = Tensor(shared, (64,), (1,), 100)
    weight = numbers(16 * 3 * 3 * 3)
    state["f.conv1.weight"] = Tensor(weight, (16, 3, 3, 3), (27, 1, 9, 3))      # channels last
    state["class_output.weight"] = Tensor(numbers(640), (10, 64), (1, 10))      # transposed
    state["class_output.bias"] = shape(10, kind="DoubleStorage")
    state["f.conv1.bias"] = shape(16, kind="HalfStorage")
    for made in (as_zip, as_legacy):
        if check(run(made(state)).returncode == 0, "views"):
            same(state, parse()[1])
    half = Storage("BFloat16Storage", [0x3f80, 0xc000, 0x3e20, 0x0001] * 4)
    state["f.conv1.bias"] = Tensor(half, (16,))
    if check(run(as_zip(state)).returncode == 0, "bfloat16"):
        values = parse()[1]["f.conv1.bias"][2]
        check(values[:4] == [1, -2, 0.15625, 2.0 ** -133], "bfloat16: %s" % values[:4])


def test_whole_numbers():
    """Tensors of whole numbers that no network needs are left out, with a note."""
    state = wrn()
    extra = {"steps": "LongStorage", "quantised": "CharStorage", "f.codes": "ShortStorage"}
    for name, kind in extra.items():
        state[name] = Tensor(Storage(kind, [3, -2, 1]), (3,))
    for made in (as_zip, as_legacy):
        done = run(made(state))
        check(done.returncode == 0, "whole numbers: " + str(done.stderr))
        note = "left out, as no network needs these whole numbers: " + ", ".join(extra)
        check(note in done.stdout, "a note: " + done.stdout)
        check(not any(name in parse()[1] for name in extra), "they are left out")
    state = wrn()
    state["f.conv1.bias"] = Tensor(Storage("CharStorage", [1] * 16), (16,))
    done = run(as_zip(state))
    check(done.returncode == 1 and "f.conv1.bias has type CharStorage" in str(done.stderr),
          "what a network needs: " + str(done.stderr))
    state = wrn()
    state["f.conv9.weight"] = Tensor(Storage("LongStorage", [1] * 16), (16,))
    check(run(as_zip(state)).returncode == 1, "a weight that a WRN has not")


# ------------------------------------------------------------------------------- hostile ones ----

class Calls:
    def __init__(self, function, *arguments):
        self.told = function, arguments

    def __reduce__(self):
        return self.told


def test_hostile():
    marker = path("executed")
    for call in (Calls(os.system, "touch " + marker), Calls(eval, "open(%r, 'w')" % marker),
                 Calls(subprocess.Popen, ["touch", marker]), Calls(getattr, "os", "system"),
                 Calls(__import__, "os"), Calls(io.open, marker, "w")):
        name = call.told[0].__name__
        for inside in (call, [call], {"a": {"b": call}}, {"model_state_dict": wrn(), "x": call}):
            refused(as_zip(inside), "refused", name)
            refused(as_legacy(inside), "refused", name)
        refused(pickle.dumps(call, 2), "refused", "a bare pickle of " + name)
        for protocol in (0, 1, 3, 4, 5):
            refused(as_zip(None, pickle.dumps(call, protocol)), "", "protocol %d" % protocol)
    # By hand: INST, OBJ, NEWOBJ, EXT, BINBYTES, EMPTY_SET, STACK_GLOBAL, a persistent text.
    for op in (b"ios\nsystem\n(", b"(cos\nsystem\no.", b"ccollections\nOrderedDict\n)\x81.",
               b"\x82\x01.", b"B\x01\0\0\0a.", b"\x8f.", b"\x8c\x02os\x8c\x06system\x93.",
               b"Pstorage\n.", b"I1\n.", b"Vtext\n.", b"d.", b"l.", b"0.", b"2.", b"F1\n."):
        refused(as_zip(None, b"\x80\x02" + op), "refused", "instruction %r" % op)
    # Machinery used wrongly.
    order, tensor = b"ccollections\nOrderedDict\n", b"ctorch._utils\n_rebuild_tensor_v2\n"
    for op, text in ((b"R.", "than it has put"), (b"}NR.", "cannot be called"),
                     (b"h\x05.", "recalls"), (b"t.", "mark"), (b"(", "cut short"), (b"X\xff\xff\xff\xffa", "cut short"),
                     (b"X\x01\0\0\0\xff.", "invalid text"), (order + b"K\x01\x85R.", "made of"),
                     (b"}}Ns.", "neither text"), (b"NN\x86Q.", "not a storage"), (b"KQ.", ""),
 (b"}}b.", "not a Ordered"), (b"NKa.", ""),
                     (b"}(K\x01u.", "without a value"), (b"NN.", "leaves extra"),
                     (tensor + b")R.", "no storage"), (tensor + b"(NNNNNNNNNtR.", "9 arguments"),
                     (b"c" + b"a" * 1000, "cut short"), (b".", "than it has put"), (b"", "cut short")):
        refused(as_zip(None, b"\x80\x02" + op), text, repr(op))
    # A laugh in a few lines: nothing walks through what is nested.
    laugh = b"\x80\x02(NNtq\0"
    for i in range(60):
        laugh += b"(h%ch%ctq%c" % (i, i, i + 1)
    refused(as_zip(None, laugh + b"0."), "refused", "tuples of tuples")
    refused(as_zip(None, laugh + b"}h\x3cNs."), "neither text", "a tuple as a key")
    check(not os.path.exists(marker), "something of a checkpoint was executed")


def test_wrong_tensors():
    state = wrn()

    def with_(name, tensor, text):
        changed = collections.OrderedDict(state)
        changed[name] = tensor
        for made in (as_zip, as_legacy):
            refused(made({"model_state_dict": changed}), text, name + " wrong")

    small = numbers(10)
    with_("f.conv1.bias", Tensor(small, (16,)), "beyond its storage")
    with_("f.conv1.bias", Tensor(numbers(16), (16,), (1,), 1), "beyond its storage")
    with_("f.conv1.bias", Tensor(small, (16,), (0,)), "repeats its storage")
    with_("f.conv1.bias", Tensor(numbers(16), (16,), (-1,), 15), "not whole numbers")
    with_("f.conv1.bias", Tensor(numbers(16), (16,), (1, 1)), "do not fit together")
    with_("f.conv1.bias", Tensor(numbers(16), (16.0,), (1,)), "not whole numbers")
    with_("f.conv1.bias", Tensor(numbers(16), (1 << 60,), (0,)), "not whole numbers")
    with_("f.conv1.bias", Tensor(numbers(16), (1 << 30, 1 << 30), (0, 0)), "repeats its storage")
    with_("f.conv1.bias", Tensor(numbers(16), (True,) * 9, (1,) * 9), "not whole numbers")
    for kind, values in (("DoubleStorage", [1e300] * 16), ("FloatStorage", [float("nan")] * 16),
                         ("BFloat16Storage", [0x7f80] * 16)):
        with_("f.conv1.bias", Tensor(Storage(kind, values), (16,)), "f.conv1.bias holds a number that")
    with_("f.conv1.bias", shape(17), "f.conv1.bias is [17]")
    with_("f.layer2.0.conv1.weight", shape(32, 16, 5, 5), "conv1.weight is [32, 16, 5, 5]")
    with_("f.extra", shape(3), "f.extra")
    with_("f.conv1.weight", shape(16, 3, 3), "f.conv1.weight has shape")
    with_("f.conv1.weight", [1, 2], "not a tensor: f.conv1.weight")
    with_("class_output.weight", shape(10, 63), "class_output.weight")
    for name in ("f.conv1.weight", "class_output.bias", "f.layer3.0.conv2.bias"):
        changed = collections.OrderedDict(state)
        del changed[name]
        refused(as_zip(changed), name, "without " + name)
    for buffer, text in ((shape(5, 3, 32), "not a tensor of images"), (3, "not a tensor of images"),
                         (shape(5, 1, 32, 32), "not of the network's images"),
                         (shape(5, 3, 4, 4, kind="LongStorage"), "not a tensor of images")):
        refused(as_zip({"model_state_dict": state, "replay_buffer": buffer}), text, "a buffer")
    refused(as_zip({"model_state_dict": state}), "its norm is none", "a norm", "--norm", "act")
    refused(as_zip({}), "no model_state_dict", "an empty dict")
    refused(as_zip({"epoch": 3}), "not a tensor: epoch", "a dict of something else")
    many = collections.OrderedDict(state)          # one storage as a thousand tensors
    big = numbers(20000)
    for i in range(1000):
        many["energy_output.%d" % i] = Tensor(big, (20000,))
    refused(as_zip(many), "share their numbers", "a thousand views", "--keep-unused")


def test_wrong_files():
    state = {"model_state_dict": wrn()}
    data, storages = pickled(state)
    good, legacy = as_zip(state), as_legacy(state)
    refused(as_zip(None, data, storages, drop=storages[3].key), "missing", "a missing storage")
    refused(as_zip(None, data, storages, compress=zipfile.ZIP_DEFLATED), "packed", "packed entries")
    for name, content, text in (("archive/byteorder", b"big", "big-endian"),
                                ("other/data.pkl", data, "not a checkpoint")):
        refused(as_zip(None, data, storages, extra=[(name, content)]), text, name)
    refused(as_legacy(state, dict(SYSTEM, little_endian=False)), "big-endian", "legacy")
    refused(as_legacy(state, magic=5), "not a file of torch.save", "another number")
    refused(as_legacy(state, key=int), "list of storages", "keys that are numbers")
    refused(legacy + b"x", "left over", "a byte more")
    storages[2].values.append(1.0)
    refused(as_zip(None, data, storages), "not the", "a storage that is too long")
    bomb = io.BytesIO()
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", bytes(100 << 20))
    refused(bomb.getvalue(), "packed", "100 MB in 100 kB")
    empty = io.BytesIO()
    zipfile.ZipFile(empty, "w").close()
    refused(empty.getvalue(), "not a file of torch.save", "an empty zip")
    for content in (b"", b"P", b"PK\x03\x04", b"hello, I am a text", b"\x80\x02", bytes(1000)):
        refused(content, "", "a file of %d bytes" % len(content))
    def survives(content):
        with open(path("x.pt"), "wb") as file:
            file.write(content)
        try:
            tool.state_dict(tool.read(path("x.pt")))
            return True
        except tool.Bad as wrong:
            check("\n" not in str(wrong) and str(wrong) != "", "a message of one line")
            return False

    check(survives(good) and survives(legacy), "the good ones")
    for content in (good, legacy):
        cut = sorted(set(range(0, len(content), len(content) // 300)) | set(range(300)) |
                     set(range(len(content) - 300, len(content))))
        loads = sum(survives(content[:n]) for n in cut)
        check(loads == 0, "%d cut files load" % loads)
        for i in range(1500):
            bad = bytearray(content)
            for _ in range(random.randrange(1, 4)):
                at = random.randrange(len(bad) if i % 3 == 0 else 4000)
                bad[at] = random.choice((bad[at] ^ 1 << random.randrange(8), random.randrange(256)))
            survives(bytes(bad))
    check(not os.path.exists(path("executed")), "something was executed")


def test_command():
    good = as_zip(wrn())
    check(run(good, "--norm", "nonsense").returncode == 2, "an unknown norm")
    check(run(good, "--size", "32").returncode == 2, "a size that is none")
    check(run(good, "--dropout", "1").returncode == 2, "a rate that is none")
    check(run(good, "--faster").returncode == 2, "an unknown option")
    result = run(good, out="no/folder/out.safetensors")
    check(result.returncode == 1 and "no/folder" in result.stderr, "a folder that is not there")
    if resource:                                # a disk that is full after 3000 bytes
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        with open(path("in.pt"), "wb") as file:
            file.write(good)
        full = subprocess.run([sys.executable, TOOL, path("in.pt"), path("full.safetensors")],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=lambda:
                              resource.setrlimit(resource.RLIMIT_FSIZE, (3000, hard)))
        check(full.returncode == 1 and b"File too large" in full.stderr and
              not [name for name in os.listdir(folder.name) if name.startswith("full")],
              "a full disk: %r" % full.stderr)
    with open(path("victim"), "w") as file:     # nothing that someone planted is followed
        file.write("untouched")
    os.symlink(path("victim"), path("planted.safetensors.tmp"))
    os.symlink(path("victim"), path("link.safetensors"))
    check(run(good, out="planted.safetensors").returncode == 0, "a planted link")
    result = run(good, out="link.safetensors")
    check(result.returncode == 1 and "is a symbolic link" in result.stderr, result.stderr)
    with open(path("victim")) as file:
        check(file.read() == "untouched", "a link was followed")
    os.remove(path("planted.safetensors.tmp"))
    os.chmod(path("planted.safetensors"), 0o640)
    check(run(good, out="planted.safetensors").returncode == 0 and
          os.stat(path("planted.safetensors")).st_mode & 0o777 == 0o640, "its mode is kept")
    check(not [name for name in os.listdir(folder.name) if name.endswith(".tmp")], "a file is left")
    for name, status, text in (("nothing.pt", 1, b"nothing.pt"), ("in.pt", 0, b"")):
        alone = subprocess.run([sys.executable, TOOL, path(name)], stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE)
        check(alone.returncode == status and text in alone.stderr, "as a program, on " + name)
    check(os.path.exists(path("in.safetensors")), "the name of the file it writes")
    result = run(good, out="in.pt")
    check(result.returncode == 1 and "would replace it" in result.stderr and
          open(path("in.pt"), "rb").read() == good, "the checkpoint itself: " + result.stderr)
    run(good, out="kept.safetensors")
    before = open(path("kept.safetensors"), "rb").read()
    run(good[:-10], out="kept.safetensors")
    check(open(path("kept.safetensors"), "rb").read() == before, "an older file stays whole")


# --------------------------------------------------------------------------- the documentation ----

def test_reader():
    """The reader in tools/README.md, run on a converted file and on one of jem.h's own. Where
    there is no PyTorch, what it needs of it stands in."""
    with open(os.path.join(ROOT, "tools", "README.md")) as file:
        blocks = [b for b in re.findall(r"```python\n(.*?)```", file.read(), re.S)
                  if "def read_safetensors" in b]
    if not check(len(blocks) == 1, "the reader is in tools/README.md once"):
        return

    class Fake:
        def __init__(self, values):
            self.values, self.shape = values, [len(values)]

        def reshape(self, shape):
            self.shape = list(shape)
            return self

    def frombuffer(buffer, dtype):
        return Fake(array.array(dtype, bytes(buffer)))

    class FakeModule(types.ModuleType):
        float32, int32, int64, uint8 = "f", "i", "q", "B"
        float16, bfloat16 = "H", "H"               # their bits

    fake = FakeModule("torch")
    fake.frombuffer = frombuffer
    here = {}
    sys.modules["torch"] = fake
    try:
        exec(blocks[0], here)
    finally:
        sys.modules["torch"] = torch
    state = wrn(1, "act")
    check(run(as_zip(state)).returncode == 0, "a file to read")
    told = here["read_safetensors"](path("out.safetensors"))
    for name, t in state.items():
        if not name.startswith(("f.linear", "energy_output")):
            check(told[name].shape == list(t.size) and told[name].values.tolist() == t.list(), name)
    own = here["read_safetensors"](os.path.join(ROOT, "tests", "support", "golden.safetensors"))
    check(own["none/logits_eval"].shape == [3, 10], "a file of this repository")


if __name__ == "__main__":
    for test in (test_formats, test_views_and_types, test_whole_numbers, test_hostile, test_wrong_tensors,
                 test_wrong_files, test_command, test_reader):
        test()
    folder.cleanup()
    finish()
