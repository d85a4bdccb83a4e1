#!/usr/bin/env python3
"""Turns a checkpoint of the reference implementation (PyTorch) into a file that jem_load opens.

    tools/pt2safetensors.py CHECKPOINT.pt [OUT.safetensors]
        --norm instance|layer    which of the two it was: their weights look the same
        --uncond                 it was trained with --uncond: its log p(x) is energy_output
        --activation NAME        leaky-relu (the reference's), relu, silu, tanh
        --slope S                of leaky-relu: 0.2
        --dropout P              0; shapes do not tell
        --size HxW               of the images, if there is no replay buffer to tell: 32x32
        --no-buffer              leave the replay buffer out
        --keep-unused            keep f.linear.* and energy_output.*, which no JEM uses

Depth, width, norm, channels and classes are found from names and shapes. It reads what torch.save
writes: a zip file (since PyTorch 1.6), or pickles in a row (before), of a dict with
`model_state_dict` and perhaps `replay_buffer`, or of a state dict alone. Needs no PyTorch.

Nothing of the file is executed. A pickle is a program for a small machine that may call anything;
here it runs on a machine that knows some thirty instructions and three things to call, all of them
below. Whatever else occurs is an error that names it.
"""
import argparse
import array
import itertools
import json
import math
import mmap
import os
import struct
import sys
import zipfile


class Bad(Exception):
    """An error of the file, in a line."""


def shown(text):
    """Names from the file may hold anything: printable, and not too long."""
    text = "".join(c if c.isprintable() else "?" for c in str(text))
    return text if len(text) <= 80 else text[:77] + "..."


# ------------------------------------------------------------------------ tensors, unread yet ----

# PyTorch's name -> bytes of a number, what it becomes
STORAGES = {
    "FloatStorage": (4, "F32"), "DoubleStorage": (8, "F32"), "HalfStorage": (2, "F32"),
    "BFloat16Storage": (2, "F32"), "LongStorage": (8, "I64"), "IntStorage": (4, "I32"),
    "ByteStorage": (1, "U8"), "BoolStorage": (1, "U8"),
    # read, but not written: a network needs no such tensor
    "CharStorage": (1, None), "ShortStorage": (2, None),
}
SIZES = {"F32": 4, "I32": 4, "I64": 8, "U8": 1, None: 0}


class Storage:
    def __init__(self, kind, key, count):
        self.kind, self.key, self.count = kind, key, count
        self.bytes, self.becomes = STORAGES[kind]
        self.data = None            # a memoryview, once its place is known


class Tensor:
    """Numbers at storage[offset + sum(index * stride)]."""

    def __init__(self, storage, offset, size, stride):
        if not isinstance(storage, Storage):
            raise Bad("a tensor has no storage")
        for numbers in (size, stride):
            if not isinstance(numbers, tuple) or len(numbers) > 8 or not all(map(whole, numbers)):
                raise Bad("a tensor's sizes or strides are not whole numbers")
        if len(size) != len(stride) or not whole(offset):
            raise Bad("a tensor's sizes, strides and offset do not fit together")
        self.count = math.prod(size)
        last = offset + sum((n - 1) * s for n, s in zip(size, stride))
        if self.count and last >= storage.count:
            raise Bad("a tensor of shape %s reaches beyond its storage" % shown(list(size)))
        if self.count > storage.count:
            raise Bad("a tensor of shape %s repeats its storage" % shown(list(size)))
        self.storage, self.offset, self.size, self.stride = storage, offset, size, stride

    def __len__(self):
        return self.count * SIZES[self.storage.becomes]

    def raw(self):
        """Its numbers in order, as bytes in PyTorch's format."""
        if not self.count:
            return b""
        step, expected = self.storage.bytes, 1
        contiguous = True
        for n, s in zip(reversed(self.size), reversed(self.stride)):
            contiguous = contiguous and (n == 1 or s == expected)
            expected *= n
        if contiguous:
            return self.storage.data[self.offset * step:(self.offset + self.count) * step]
        all_numbers = self.storage.data.cast({1: "B", 2: "H", 4: "I", 8: "Q"}[step])
        n, s = self.size[-1], self.stride[-1]
        rows = bytearray()
        for index in itertools.product(*map(range, self.size[:-1])):
            at = self.offset + sum(i * k for i, k in zip(index, self.stride))
            row = all_numbers[at:at + (n - 1) * s + 1:s or 1].tobytes()
            rows += row if s else row * n
        return rows

    def converted(self):
        """The same as 4-byte floats, or as it is if it holds whole numbers."""
        raw, kind = self.raw(), self.storage.kind
        if kind == "DoubleStorage":
            return array.array("f", array.array("d", bytes(raw))).tobytes()
        if kind == "HalfStorage":
            return array.array("f", struct.unpack("<%de" % self.count, raw)).tobytes()
        if kind == "BFloat16Storage":           # the upper half of a float
            out = bytearray(4 * self.count)
            out[2::4], out[3::4] = raw[0::2], raw[1::2]
            return out
        return raw


def finite(data):
    """Of the bytes of 4-byte floats."""
    return all(map(math.isfinite, array.array("f", bytes(data))))


def whole(n):
    return type(n) is int and 0 <= n < 1 << 48


# ------------------------------------------------------------------------- the small machine ----

class Called:
    """Something that a pickle may name."""

    def __init__(self, name, call):
        self.name, self.call = name, call


class Ordered(dict):
    """An OrderedDict. Its pickle sets an attribute (_metadata), which is dropped."""


def rebuild_tensor(storage=None, offset=None, size=None, stride=None, grad=None, hooks=None,
                   metadata=None):
    return Tensor(storage, offset, size, stride)


def rebuild_parameter(data=None, grad=None, hooks=None):
    if not isinstance(data, Tensor):
        raise Bad("a parameter is not a tensor")
    return data


def ordered(*items):
    if items:
        raise Bad("an OrderedDict made of something")
    return Ordered()


CALLABLE = {
    "collections OrderedDict": Called("OrderedDict", ordered),
    "torch._utils _rebuild_tensor_v2": Called("_rebuild_tensor_v2", rebuild_tensor),
    "torch._utils _rebuild_parameter": Called("_rebuild_parameter", rebuild_parameter),
}
MARK = object()


class Machine:
    """Runs one pickle of protocol 2, which is what torch.save writes."""

    def __init__(self, data, at, storages):
        self.data, self.at, self.storages = data, at, storages
        self.stack, self.memo = [], {}

    def take(self, n):
        piece = self.data[self.at:self.at + n]
        if len(piece) < n:
            raise Bad("the pickle is cut short")
        self.at += n
        return bytes(piece)

    def number(self, form):
        return struct.unpack("<" + form, self.take(struct.calcsize("<" + form)))[0]

    def line(self):
        end = self.data.find(b"\n", self.at, self.at + 200)
        if end < 0:
            raise Bad("the pickle is cut short")
        text = self.take(end + 1 - self.at)[:-1]
        return text.decode("ascii", "replace")

    def pop(self):
        if not self.stack or self.stack[-1] is MARK:
            raise Bad("the pickle takes more than it has put")
        return self.stack.pop()

    def pop_to_mark(self):
        items = []
        while True:
            if not self.stack:
                raise Bad("the pickle looks for a missing mark")
            item = self.stack.pop()
            if item is MARK:
                return items[::-1]
            items.append(item)

    def top(self, kind):
        if not self.stack or not isinstance(self.stack[-1], kind):
            raise Bad("the pickle fills something that is not a %s" % kind.__name__)
        return self.stack[-1]

    def put_items(self, items):
        into = self.top(dict)
        if len(items) % 2:
            raise Bad("the pickle has a key without a value")
        for key, value in zip(items[::2], items[1::2]):
            if type(key) not in (str, int):
                raise Bad("the pickle has a key that is neither text nor number")
            into[key] = value

    def reduce(self):
        arguments, function = self.pop(), self.pop()
        if not isinstance(function, Called) or not isinstance(arguments, tuple):
            raise Bad("the pickle calls something that cannot be called")
        try:
            self.stack.append(function.call(*arguments))
        except TypeError:
            raise Bad("the pickle calls %s with %d arguments" % (function.name, len(arguments)))

    def persistent(self):
        """('storage', kind, key, device, count) and, in old files, a view (none is made today)."""
        told = self.pop()
        if (not isinstance(told, tuple) or len(told) not in (5, 6) or told[0] != "storage"
                or not isinstance(told[1], str) or told[1] not in STORAGES
                or type(told[2]) is not str or not whole(told[4])):
            raise Bad("the pickle refers to something that is not a storage of a known kind")
        if len(told) == 6 and told[5] is not None:
            raise Bad("a storage is a view of another, which only very old files have")
        storage = self.storages.setdefault(told[2], Storage(told[1], told[2], told[4]))
        if (storage.kind, storage.count) != (told[1], told[4]):
            raise Bad("storage %s is said to be two different things" % shown(told[2]))
        return storage

    def name(self):
        module, name = self.line(), self.line()
        if module == "torch" and name in STORAGES:
            return name
        if module + " " + name not in CALLABLE:
            raise Bad("the pickle asks for %s.%s, which no checkpoint needs: refused (save "
                      "model.state_dict(), not the model)" % (shown(module), shown(name)))
        return CALLABLE[module + " " + name]

    def long(self):
        return int.from_bytes(self.take(self.number("B")), "little", signed=True)

    def text(self, n):
        try:
            return self.take(n).decode("utf-8")
        except UnicodeDecodeError:
            raise Bad("the pickle contains invalid text")

    def get(self, key):
        if key not in self.memo:
            raise Bad("the pickle recalls a value that it has not stored")
        return self.memo[key]

    def remember(self, key):
        value = self.pop()
        self.memo[key] = value
        self.stack.append(value)

    def run(self):
        """What the pickle makes."""
        push = self.stack.append
        if self.take(1) != b"\x80" or self.number("B") != 2:
            raise Bad("a pickle of protocol 2, the default of torch.save, is missing")
        while True:
            at = self.at
            op = self.take(1)
            if op == b".":
                break
            elif op == b"(": push(MARK)
            elif op == b"}": push({})
            elif op == b"]": push([])
            elif op == b")": push(())
            elif op == b"N": push(None)
            elif op == b"\x88": push(True)
            elif op == b"\x89": push(False)
            elif op == b"K": push(self.number("B"))
            elif op == b"M": push(self.number("H"))
            elif op == b"J": push(self.number("i"))
            elif op == b"\x8a": push(self.long())
            elif op == b"G": push(struct.unpack(">d", self.take(8))[0])
            elif op == b"X": push(self.text(self.number("I")))
            elif op == b"c": push(self.name())
            elif op == b"q": self.remember(self.number("B"))
            elif op == b"r": self.remember(self.number("I"))
            elif op == b"h": push(self.get(self.number("B")))
            elif op == b"j": push(self.get(self.number("I")))
            elif op == b"t": push(tuple(self.pop_to_mark()))
            elif op == b"\x85": push((self.pop(),))
            elif op == b"\x86": push((self.pop(), self.pop())[::-1])
            elif op == b"\x87": push((self.pop(), self.pop(), self.pop())[::-1])
            elif op == b"e": items = self.pop_to_mark(); self.top(list).extend(items)
            elif op == b"a": item = self.pop(); self.top(list).append(item)
            elif op == b"u": items = self.pop_to_mark(); self.put_items(items)
            elif op == b"s": value, key = self.pop(), self.pop(); self.put_items([key, value])
            elif op == b"R": self.reduce()
            elif op == b"Q": push(self.persistent())
            elif op == b"b":
                self.pop()
                self.top(Ordered)
            else:
                raise Bad("the pickle has instruction 0x%02x at byte %d, which no checkpoint "
                          "needs: refused" % (op[0], at))
        value = self.pop()
        if self.stack:
            raise Bad("the pickle leaves extra values")
        return value


# ------------------------------------------------------------------------------- both formats ----

def attach(storage, data, what):
    if len(data) != storage.count * storage.bytes:
        raise Bad("%s is %d bytes, not the %d of %s numbers" % (
            what, len(data), storage.count * storage.bytes, storage.count))
    storage.data = memoryview(data)


def read_zip(path):
    """NAME/data.pkl, and NAME/data/KEY for every storage; nothing packed."""
    with zipfile.ZipFile(path) as archive:
        entries = {}
        for info in archive.infolist():
            if info.filename in entries:
                raise Bad("%s occurs twice" % shown(info.filename))
            if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1:
                raise Bad("%s is packed, which torch.save never does (TorchScript cannot be read)"
                          % shown(info.filename))
            entries[info.filename] = info
        if sum(info.file_size for info in entries.values()) > os.path.getsize(path):
            raise Bad("its headers claim more data than it has")
        pickles = [name for name in entries if name.split("/")[1:] == ["data.pkl"]]
        if len(pickles) != 1:
            raise Bad("is a zip file, but not a checkpoint: it has no data.pkl")
        root = pickles[0].split("/")[0]
        order = entries.get(root + "/byteorder")
        if order and archive.read(order) != b"little":
            raise Bad("it was written by a big-endian machine")
        storages = {}
        value = Machine(archive.read(pickles[0]), 0, storages).run()
        for key, storage in storages.items():
            name = "%s/data/%s" % (root, key)
            if name not in entries:
                raise Bad("storage %s is missing" % shown(key))
            attach(storage, archive.read(name), "storage " + shown(key))
    return value


MAGIC, PROTOCOL = 0x1950a86a20f9469cfc6c, 1001


def read_legacy(data):
    """Pickles in a row: a number, a version, the system, the value, the storages' keys; then each
    storage as its count and its numbers."""
    at, told = 0, []
    storages = {}
    for number in range(5):
        machine = Machine(data, at, storages if number == 3 else {})
        told.append(machine.run())
        at = machine.at
        if number == 0 and told[0] != MAGIC:
            raise Bad("is not a file of torch.save")
    _, protocol, system, value, keys = told
    if protocol != PROTOCOL or not isinstance(system, dict):
        raise Bad("is of an unknown version of torch.save")
    if system.get("little_endian") is not True:
        raise Bad("it was written by a big-endian machine")
    if not isinstance(keys, list) or not all(type(key) is str for key in keys) or (
            sorted(keys) != sorted(storages)):
        raise Bad("the list of storages differs from those in use")
    for key in keys:
        storage = storages[key]
        count, = struct.unpack("<Q", data[at:at + 8].ljust(8, b"\xff"))
        if count != storage.count:
            raise Bad("storage %s is cut short, or has the wrong size" % shown(key))
        at += 8
        attach(storage, data[at:at + count * storage.bytes], "storage " + shown(key))
        at += count * storage.bytes
    if at != len(data):
        raise Bad("%d bytes are left over at its end" % (len(data) - at))
    return value


def read(path):
    with open(path, "rb") as file:
        start = file.read(8)
        if start[:4] == b"PK\x03\x04":
            try:
                return read_zip(path)
            except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError,
                    ValueError, OverflowError) as wrong:
                raise Bad("is a damaged zip file: %s" % shown(wrong))
        if start[:2] != b"\x80\x02":
            raise Bad("is not a file of torch.save")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            return read_legacy(mapped)


# ---------------------------------------------------------------- which network is it? ----

UNUSED = ("f.linear.", "energy_output.")        # the second is used after --uncond
# Of whole numbers, or else needed by a network: never left out.
USED_WHOLE = (".weight", ".bias", ".loc", ".scale", ".initialized", ".running_mean",
              ".running_var", ".num_batches_tracked")
NORMS = ("none", "batch", "instance", "layer", "act")
ACTIVATIONS = ("leaky-relu", "relu", "silu", "tanh")


def state_dict(value):
    """The state dict and the replay buffer (or None) of a checkpoint."""
    if isinstance(value, dict) and isinstance(value.get("model_state_dict"), dict):
        state, buffer = value["model_state_dict"], value.get("replay_buffer")
        others = [shown(k) for k in value if k not in ("model_state_dict", "replay_buffer")]
        if others:
            print("left out: " + ", ".join(others))
    else:
        state, buffer = value, None
    if not isinstance(state, dict) or not state:
        raise Bad("has no model_state_dict")
    for name, tensor in state.items():
        if type(name) is not str or not isinstance(tensor, Tensor):
            raise Bad("its state dict contains something that is not a tensor: %s (a checkpoint "
                      "has its state dict under model_state_dict)" % shown(name))
    for prefix in ("_orig_mod.", "module.", "_orig_mod."):     # torch.compile, nn.DataParallel
        if all(name.startswith(prefix) for name in state):
            state = {name[len(prefix):]: tensor for name, tensor in state.items()}
    whole_ones = [name for name, tensor in state.items() if tensor.storage.becomes != "F32"
                  and not name.endswith(USED_WHOLE)]
    if whole_ones:
        print("left out, as no network needs these whole numbers: "
              + ", ".join(map(shown, whole_ones)))
        state = {name: tensor for name, tensor in state.items() if name not in whole_ones}
    if isinstance(buffer, list) and not buffer:
        buffer = None
    if buffer is not None and (not isinstance(buffer, Tensor) or len(buffer.size) != 4
                               or buffer.storage.becomes != "F32" or not buffer.count):
        raise Bad("its replay_buffer is not a tensor of images")
    return state, buffer


def find_norm(state, told):
    names = {name for name in state if ".bn" in name}
    if not names:
        found = "none"
    elif "f.bn1.running_mean" in names:
        found = "batch"
    elif "f.bn1.loc" in names:
        found = "act"
    elif told in ("instance", "layer"):
        return told
    else:
        raise Bad("its norm is instance or layer, which look the same here: use --norm instance "
                  "or --norm layer")
    if told not in (None, found):
        raise Bad("its norm is %s, not %s" % (found, told))
    return found


def norm_shapes(norm, name, channels):
    if norm == "act":
        return {name + ".loc": (1, channels, 1, 1), name + ".scale": (1, channels, 1, 1),
                name + ".initialized": ()}
    leaves = {"none": (), "batch": ("weight", "bias", "running_mean", "running_var")}
    return {name + "." + leaf: (channels,) for leaf in leaves.get(norm, ("weight", "bias"))}


def expected(depth, widen, norm, channels, classes, uncond):
    """Names and shapes of the reference's network, and so of ours, without those it never uses."""
    def conv(name, inputs, outputs, k):
        return {name + ".weight": (outputs, inputs, k, k), name + ".bias": (outputs,)}

    shapes = conv("f.conv1", channels, 16, 3)
    inputs = 16
    for stage in (1, 2, 3):
        outputs = (8 << stage) * widen
        for block in range((depth - 4) // 6):
            name = "f.layer%d.%d." % (stage, block)
            shapes.update(norm_shapes(norm, name + "bn1", inputs))
            shapes.update(conv(name + "conv1", inputs, outputs, 3))
            shapes.update(norm_shapes(norm, name + "bn2", outputs))
            shapes.update(conv(name + "conv2", outputs, outputs, 3))
            if block == 0 and (stage > 1 or inputs != outputs):
                shapes.update(conv(name + "shortcut.0", inputs, outputs, 1))
            inputs = outputs
    shapes.update(norm_shapes(norm, "f.bn1", inputs))
    shapes["class_output.weight"] = (classes, inputs)
    shapes["class_output.bias"] = (classes,)
    if uncond:
        shapes["energy_output.weight"], shapes["energy_output.bias"] = (1, inputs), (1,)
    return shapes


def describe(state, buffer, options):
    """Returns the description for jem.h, after checking every tensor."""
    def size(name, dimensions):
        if name not in state:
            raise Bad("holds no %s: not the reference's wide-resnet" % name)
        if len(state[name].size) != dimensions or not state[name].count:
            raise Bad("%s has shape %s" % (name, shown(list(state[name].size))))
        return state[name].size

    channels = size("f.conv1.weight", 4)[1]
    classes = size("class_output.weight", 2)[0]
    blocks = 0
    while "f.layer1.%d.conv1.weight" % blocks in state:
        blocks += 1
    depth, widen = 6 * blocks + 4, size("f.layer1.0.conv2.weight", 4)[0] // 16
    norm = find_norm(state, options.norm)
    if not (1 <= widen <= 100 and depth <= 1000):
        raise Bad("is not a WRN of a possible depth and width")
    shapes = expected(depth, widen, norm, channels, classes, options.uncond)
    for name, shape in shapes.items():
        if name not in state:
            raise Bad("is a WRN-%d-%d, but holds no %s" % (depth, widen, name))
        if state[name].size != shape:
            raise Bad("%s is %s, in a WRN-%d-%d %s" % (name, list(state[name].size), depth, widen,
                                                       list(shape)))
    for name in shapes:
        if state[name].storage.becomes is None:
            raise Bad("%s has type %s, which cannot be used in a network" % (
                name, state[name].storage.kind))
    for name in state:
        extra = name.startswith(UNUSED) or name.endswith(".num_batches_tracked")
        if name not in shapes and not extra:
            raise Bad("contains %s, which a WRN-%d-%d with norm %s does not have" % (
                shown(name), depth, widen, norm))
    if buffer is None and not options.size:
        print("no replay buffer: images are taken to be 32x32 (--size HxW for others)")
    height, width = options.size or (32, 32)
    if buffer is not None:
        if buffer.size[1] != channels or (options.size and options.size != buffer.size[2:]):
            raise Bad("its replay buffer is %s: not of the network's images" % list(buffer.size))
        height, width = buffer.size[2:]
    meta = {"jem.net": "wrn", "jem.channels": channels, "jem.height": height, "jem.width": width,
            "jem.classes": classes, "jem.depth": depth, "jem.widen": widen,
            "jem.activation": ACTIVATIONS.index(options.activation), "jem.slope": options.slope,
            "jem.norm": NORMS.index(norm), "jem.dropout": options.dropout, "jem.head": 0,
            "jem.stem_stride": 1, "made_by": "pt2safetensors"}
    if options.uncond:
        meta["jem.uncond"] = 1
    return meta


# ------------------------------------------------------------------------------------ writing ----

def number(v):
    """As jem.h reads it: no exponent."""
    return v if isinstance(v, str) else ("%.9f" % v).rstrip("0").rstrip(".") if v else "0"


def new_file(path):
    """A file of our own beside path, path.XXXXXXXX.tmp: O_EXCL opens nothing that is there, and
    follows no link. Like jem.h, it replaces regular files only, and keeps their mode."""
    if os.path.islink(path):
        raise OSError(0, "is a symbolic link, and will not be replaced", path)
    mode = 0o666                                # less the umask
    if os.path.lexists(path) and not os.path.isdir(path):      # os.replace speaks of a folder
        if not os.path.isfile(path):
            raise OSError(0, "is not a regular file, and will not be replaced", path)
        mode = os.stat(path).st_mode & 0o777
    for _ in range(100):
        temporary = "%s.%s.tmp" % (path, os.urandom(4).hex())
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
        try:
            return os.fdopen(os.open(temporary, flags, mode), "wb"), temporary
        except FileExistsError:
            pass
    raise OSError(0, "no name is free beside it", path)


def write(path, tensors, meta):
    """safetensors: 8 bytes with the header's length, the header (JSON), the data. To a new file,
    synced, renamed: what was at path stays whole until that is."""
    order = sorted(tensors, key=lambda name: (-SIZES[tensors[name].storage.becomes], name))
    header, at = {"__metadata__": {key: number(value) for key, value in meta.items()}}, 0
    for name in order:                          # wide numbers first: all are aligned
        tensor = tensors[name]
        header[name] = {"dtype": tensor.storage.becomes, "shape": list(tensor.size),
                        "data_offsets": [at, at + len(tensor)]}
        at += len(tensor)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    file, temporary = new_file(path)
    try:
        with file:
            file.write(struct.pack("<Q", len(text)) + text)
            for name in order:
                data = tensors[name].converted()
                if len(data) != len(tensors[name]):
                    raise Bad("%s has the wrong size" % shown(name))
                if tensors[name].storage.becomes == "F32" and not finite(data):
                    raise Bad("%s holds a number that is not finite, which nothing opens"
                              % shown(name))
                file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        try:
            os.remove(temporary)
        except OSError:
            pass
        raise
    if os.name == "nt":                         # there, folders are not opened
        return
    folder = os.open(os.path.dirname(os.path.abspath(path)), os.O_RDONLY)
    try:
        os.fsync(folder)                        # the new name, too
    finally:
        os.close(folder)


def convert(options):
    if os.path.exists(options.out) and os.path.samefile(options.checkpoint, options.out):
        raise Bad("the result would replace it: name another file")
    state, buffer = state_dict(read(options.checkpoint))
    if options.no_buffer:
        buffer = None
    meta = describe(state, buffer, options)
    unused = [name for name in state if name.startswith(UNUSED[:1] if options.uncond else UNUSED)]
    if unused and not options.keep_unused:
        print("left out, as no JEM uses it: " + ", ".join(map(shown, unused)))
        state = {name: tensor for name, tensor in state.items() if name not in unused}
    tensors = dict(state)
    if buffer is not None:
        tensors["replay_buffer"] = buffer
    total, allowed = sum(map(len, tensors.values())), 4 * os.path.getsize(options.checkpoint)
    if total > allowed:
        raise Bad("its tensors share their numbers so often that they would take %d bytes" % total)
    write(options.out, tensors, meta)
    parameters = sum(t.count for name, t in state.items() if name not in unused
                     and not name.endswith((".running_mean", ".running_var", ".initialized",
                                            ".num_batches_tracked")))
    print("%s: WRN-%s-%s, norm %s, %s classes, images (%s,%s,%s), %d parameters, %s" % (
        options.out, meta["jem.depth"], meta["jem.widen"], NORMS[meta["jem.norm"]],
        meta["jem.classes"], meta["jem.channels"], meta["jem.height"], meta["jem.width"],
        parameters, "replay buffer of %d" % buffer.size[0] if buffer else "no replay buffer"))


def image_size(text):
    height, x, width = text.partition("x")
    if not (x and height.isdigit() and width.isdigit() and 0 < int(height) <= 65536
            and 0 < int(width) <= 65536):
        raise argparse.ArgumentTypeError("must be HEIGHTxWIDTH, such as 32x32")
    return int(height), int(width)


def fraction(text):
    try:
        value = float(text)
    except ValueError:
        value = -1
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError("must be a number from 0 to below 1")
    return value


def main():
    parser = argparse.ArgumentParser(usage="pt2safetensors.py CHECKPOINT.pt [OUT.safetensors] ...",
                                     description=__doc__, add_help=True,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint")
    parser.add_argument("out", nargs="?")
    parser.add_argument("--norm", choices=NORMS)
    parser.add_argument("--uncond", action="store_true")
    parser.add_argument("--activation", choices=ACTIVATIONS, default="leaky-relu")
    parser.add_argument("--slope", type=fraction, default=0.2)
    parser.add_argument("--dropout", type=fraction, default=0.0)
    parser.add_argument("--size", type=image_size)
    parser.add_argument("--no-buffer", action="store_true")
    parser.add_argument("--keep-unused", action="store_true")
    options = parser.parse_args()
    if sys.byteorder != "little":
        sys.exit("pt2safetensors: needs a little-endian machine")
    if not options.out:
        options.out = os.path.splitext(options.checkpoint)[0] + ".safetensors"
    try:
        convert(options)
    except Bad as wrong:
        sys.exit("%s: %s" % (options.checkpoint, wrong))
    except OSError as wrong:
        sys.exit("%s: %s" % (wrong.filename or options.out, wrong.strerror))
    except (MemoryError, RecursionError):
        sys.exit("%s: too large for the available memory" % options.checkpoint)


if __name__ == "__main__":
    main()
