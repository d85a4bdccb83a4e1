#!/usr/bin/env python3
"""Hostile checkpoints for tools/pt2safetensors.py, which has no coverage to steer by: so mutations
know what a pickle is. A run is decided by its seed.

    pickles.py --seconds 10               seed 1
    pickles.py --seconds 600 --new        another seed each time, which is printed
    pickles.py --seed 7 --inputs 100      as it was
    --keep DIR                                      where an input goes that breaks it

Every input must be converted or refused in a line: no other exception, no name outside of what a
checkpoint needs, no file of more than the tool allows, no time without end.
"""
import argparse
import contextlib
import importlib.util
import io
import os
import pickletools
import random
import struct
import sys
import time

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", ".."))


def load(name, *path):
    spec = importlib.util.spec_from_file_location(name, os.path.join(ROOT, *path))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


suite = load("suite", "tests", "tools", "test_pt2safetensors.py")      # it makes the checkpoints
tool = suite.tool
WORDS = [b"os", b"system", b"builtins", b"eval", b"torch", b"torch._utils", b"collections",
         b"OrderedDict", b"_rebuild_tensor_v2", b"_rebuild_parameter", b"FloatStorage",
         b"LongStorage", b"storage", b"cpu", b"17", b"f.conv1.weight", b"class_output.weight",
         b"replay_buffer", b"model_state_dict", b"\xff", b"\x1b[2J\n", b""]
NUMBERS = [0, 1, 2, 16, 127, 128, 255, 256, 65535, 65536, 1 << 31, (1 << 31) - 1, 1 << 47, 1 << 48,
           (1 << 63) - 1, 1 << 64]


def pieces(data):
    """The pickle's instructions, as bytes."""
    at = [position for _, _, position in pickletools.genops(data)] + [len(data)]
    return [data[a:b] for a, b in zip(at, at[1:])]


def an_instruction(rng):
    n, word = rng.choice(NUMBERS), rng.choice(WORDS)
    return rng.choice((
        b"(", b"}", b"]", b")", b"N", b"\x88", b"\x89", b"t", b"\x85", b"\x86", b"\x87", b"e", b"a",
        b"u", b"s", b"R", b"Q", b"b", b"0", b"1", b"2", b".", b"K" + bytes([n & 255]),
        b"M" + struct.pack("<H", n & 65535), b"J" + struct.pack("<i", (n & 0x7fffffff)),
        b"J" + struct.pack("<i", -1), b"\x8a\x08" + struct.pack("<Q", n & (1 << 64) - 1),
        b"\x8a" + bytes([n & 255]) + bytes(n & 15), b"G" + struct.pack(">d", float(n)),
        b"X" + struct.pack("<I", len(word)) + word, b"X" + struct.pack("<I", n & 0xffffffff),
        b"c" + word + b"\n" + rng.choice(WORDS) + b"\n", b"i" + word + b"\n" + word + b"\n",
        b"q" + bytes([n & 255]), b"r" + struct.pack("<I", n & 0xffffffff), b"h" + bytes([n & 255]),
        b"j" + struct.pack("<I", n & 0xffffffff), bytes([rng.randrange(256)])))


def mutate_pickle(rng, data):
    parts = pieces(data)
    for _ in range(rng.randrange(1, 5)):
        if not parts:
            break
        i, k = rng.randrange(len(parts)), rng.randrange(len(parts))
        how = rng.randrange(8)
        if how == 0:
            del parts[i:i + rng.randrange(1, 4)]
        elif how == 1:
            parts.insert(i, an_instruction(rng))
        elif how == 2:
            parts[i] = an_instruction(rng)
        elif how == 3:
            parts[i], parts[k] = parts[k], parts[i]
        elif how == 4:
            parts[i:i] = parts[k:k + rng.randrange(1, 20)]
        elif how == 5:
            parts[i] = mutate_bytes(rng, parts[i])
        elif how == 6:                          # over and over: depth and size
            parts[i:i] = [rng.choice((b"(", b"]", b"}", b"\x85", parts[k]))] * rng.randrange(1, 5000)
        else:                                   # a number for another one of its kind
            if parts[i][:1] == b"K":
                parts[i] = b"K" + bytes([rng.randrange(256)])
            elif parts[i][:1] == b"M":
                parts[i] = b"M" + struct.pack("<H", rng.choice(NUMBERS) & 65535)
            elif parts[i][:1] == b"X":
                word = rng.choice(WORDS)
                parts[i] = b"X" + struct.pack("<I", len(word)) + word
            else:
                parts[i] = parts[k]
    return b"".join(parts)


def mutate_bytes(rng, data):
    data = bytearray(data)
    for _ in range(rng.randrange(1, 4)):
        at, how = rng.randrange(len(data) + 1), rng.randrange(5)
        if how == 0 and at < len(data):
            data[at] ^= 1 << rng.randrange(8)
        elif how == 1 and at < len(data):
            data[at] = rng.randrange(256)
        elif how == 2:
            del data[at:at + rng.randrange(1, 40)]
        elif how == 3:
            data[at:at] = bytes(rng.randrange(256) for _ in range(rng.randrange(1, 9)))
        else:
            data[at:at] = data[at:at + rng.randrange(1, 40)]
    return bytes(data)


class Base:
    """What inputs begin with: small networks, with and without what else a checkpoint may hold."""

    def __init__(self):
        plain = suite.wrn(1)
        both = {"model_state_dict": suite.wrn(1, "batch"), "replay_buffer": suite.shape(2, 3, 8, 8)}
        odd = suite.wrn(1, "act", unused=False)
        odd["f.conv1.weight"] = suite.Tensor(suite.Storage("DoubleStorage", [0.5] * 500),
                                             (16, 3, 3, 3), (27, 9, 3, 1), 10)
        self.values = [plain, both, odd]
        self.pickled = [suite.pickled(value) for value in self.values]
        self.files = [make(value) for value in self.values for make in
                      (suite.as_zip, suite.as_legacy)]

    def input(self, rng):
        if rng.randrange(4) == 0:
            return self.near(rng, rng.choice(self.files))
        data, storages = rng.choice(self.pickled)
        return suite.as_zip(None, mutate_pickle(rng, data), storages)

    @staticmethod
    def near(rng, content):
        """Damages the most relevant places: the first and the last thousands of bytes."""
        ends = 6000
        where = rng.randrange(4)
        if where == 0:
            return mutate_bytes(rng, content[:ends]) + content[ends:]
        if where == 1:
            return content[:-ends] + mutate_bytes(rng, content[-ends:])
        if where == 2:
            return content[:rng.randrange(len(content))]
        return mutate_bytes(rng, content)


def survives(content, name):
    """True: converted, False: refused. Anything else is raised."""
    with open(suite.path(name), "wb") as file:
        file.write(content)
    out = suite.path("out.safetensors")
    sys.argv = ["tool", suite.path(name), out]
    said = io.StringIO()
    if os.path.exists(out):
        os.remove(out)
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
            tool.main()
    except SystemExit as end:
        if not isinstance(end.code, str) or not end.code or not end.code.isprintable():
            raise AssertionError("it ends with %r, and says %r" % (end.code, said.getvalue()))
        if os.path.exists(out):
            raise AssertionError("refused, and written")
        return False
    if os.path.getsize(out) > 4 * len(content) + 100000:
        raise AssertionError("%d bytes became %d" % (len(content), os.path.getsize(out)))
    return True


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--inputs", type=int, default=1 << 60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--new", action="store_true")
    parser.add_argument("--keep", default=".")
    options = parser.parse_args()
    seed = random.SystemRandom().randrange(1 << 31) if options.new else options.seed
    print("seed %d" % seed)
    sys.stdout.flush()
    rng, base, end, count, converted = random.Random(seed), Base(), 0, 0, 0
    for content in base.files[:2]:
        if not survives(content, "in.pt"):
            sys.exit("what is whole is refused")
    end = time.monotonic() + options.seconds
    while time.monotonic() < end and count < options.inputs:
        content, start = base.input(rng), time.monotonic()
        try:
            converted += survives(content, "in.pt")
            if time.monotonic() - start > 20:
                raise AssertionError("it took %.0f seconds" % (time.monotonic() - start))
        except BaseException:
            kept = os.path.join(options.keep, "pickle-crash-%d-%d.pt" % (seed, count))
            with open(kept, "wb") as file:
                file.write(content)
            print("input %d of seed %d, kept as %s" % (count, seed, kept))
            raise
        count += 1
    suite.folder.cleanup()
    print("%d inputs in %.0f seconds, %d of them converted" % (count, options.seconds, converted))
    if not count:
        sys.exit(1)


if __name__ == "__main__":
    main()
