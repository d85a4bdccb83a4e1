"""Reads an ONNX file without any library for it, and computes its graph in numpy: a reference for
`jem export --onnx`, for the ops that it writes."""
import struct

import numpy as np


# ---- protocol buffers ----

def fields(data):
    """(number, value) of each field: an int, or bytes."""
    at = 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(data):
        key = varint()
        wire = key & 7
        if wire == 0:
            yield key >> 3, varint()
            continue
        if wire == 5:
            size = 4
        elif wire == 2:
            size = varint()
        else:
            raise ValueError("wire type %d" % wire)
        if at + size > len(data):
            raise ValueError("a field ends after the file")
        yield key >> 3, data[at:at + size]
        at += size


def all_of(data, number):
    return [value for n, value in fields(data) if n == number]


def first(data, number, missing=None):
    return next(iter(all_of(data, number)), missing)


def signed(value):
    return value - (1 << 64) if value >> 63 else value


def text(data):
    return bytes(data).decode("utf-8")


# ---- what a file contains ----

class Node:
    def __init__(self, data):
        self.inputs = [text(t) for t in all_of(data, 1)]
        self.outputs = [text(t) for t in all_of(data, 2)]
        self.op = text(first(data, 4))
        self.attributes = {}
        for attribute in all_of(data, 5):
            kind = first(attribute, 20)
            if kind == 1:
                value = struct.unpack("<f", first(attribute, 2))[0]
            elif kind == 2:
                value = signed(first(attribute, 3))
            elif kind == 3:
                value = text(first(attribute, 4))
            elif kind == 7:
                value = [signed(v) for v in all_of(attribute, 8)]
            else:
                raise ValueError("an attribute of type %r" % kind)
            self.attributes[text(first(attribute, 1))] = value


def tensor(data):
    dims = [signed(d) for d in all_of(data, 1)]
    kind = {1: "<f4", 7: "<i8"}[first(data, 2)]
    return text(first(data, 8)), np.frombuffer(first(data, 9), kind).reshape(dims)


def shape_of(info):
    """Name and sizes of an input or output; a text is the name of a size."""
    dims = all_of(first(first(first(info, 2), 1), 2), 1)
    return text(first(info, 1)), [text(first(d, 2)) if first(d, 2) else first(d, 1) for d in dims]


class Model:
    def __init__(self, path):
        with open(path, "rb") as file:
            data = file.read()
        graph = first(data, 7)
        self.opset = first(first(data, 8), 2)
        self.format = first(data, 1)
        self.nodes = [Node(n) for n in all_of(graph, 1)]
        self.constants = dict(tensor(t) for t in all_of(graph, 5))
        self.constant_count = len(all_of(graph, 5))
        self.inputs = [shape_of(i) for i in all_of(graph, 11)]
        self.outputs = [shape_of(o) for o in all_of(graph, 12)]
        self.properties = {text(first(p, 1)): text(first(p, 2)) for p in all_of(data, 14)}

    def run(self, x):
        """The outputs, in a dict."""
        values = dict(self.constants, x=np.asarray(x, np.float32))
        for node in self.nodes:
            inputs = [values[name] if name else None for name in node.inputs]
            values[node.outputs[0]] = OPS[node.op](*inputs, **node.attributes)
        return {name: values[name] for name, _ in self.outputs}


# ---- ops ----

def conv(x, w, b=None, kernel_shape=None, strides=None, pads=None):
    k, s, p = kernel_shape[0], strides[0], pads[0]
    x = np.pad(x, ((0, 0), (0, 0), (p, p), (p, p)))
    h, wide = (x.shape[2] - k) // s + 1, (x.shape[3] - k) // s + 1
    y = np.zeros((x.shape[0], w.shape[0], h, wide), np.float64)
    for i in range(k):
        for j in range(k):
            window = x[:, :, i:i + s * (h - 1) + 1:s, j:j + s * (wide - 1) + 1:s]
            y += np.einsum("nchw,oc->nohw", window, w[:, :, i, j], optimize=True)
    if b is not None:
        y += b.reshape(1, -1, 1, 1)
    return y.astype(np.float32)


def conv_transpose(x, w, kernel_shape=None, strides=None, pads=None, output_padding=None):
    k, s, p = kernel_shape[0], strides[0], pads[0]
    h = (x.shape[2] - 1) * s + k + output_padding[0]
    wide = (x.shape[3] - 1) * s + k + output_padding[1]
    y = np.zeros((x.shape[0], w.shape[1], h, wide), np.float64)
    for i in range(k):
        for j in range(k):
            y[:, :, i:i + s * x.shape[2]:s, j:j + s * x.shape[3]:s] += np.einsum(
                "nohw,oc->nchw", x, w[:, :, i, j], optimize=True)
    return y[:, :, p:h - p, p:wide - p].astype(np.float32)


def reshape(x, shape):
    return x.reshape([x.shape[i] if d == 0 else d for i, d in enumerate(shape)])


def average_pool(x, kernel_shape=None, strides=None):
    k = kernel_shape[0]
    n, c, h, w = x.shape
    return x.reshape(n, c, h // k, k, w // k, k).mean((3, 5))


def resize(x, _, scales, **how):
    assert how == {"mode": "nearest", "coordinate_transformation_mode": "asymmetric",
                   "nearest_mode": "floor"}
    return x.repeat(int(scales[2]), 2).repeat(int(scales[3]), 3)


def logsumexp(x, axes, keepdims):
    most = x.max(tuple(axes), keepdims=True)
    return most + np.log(np.exp(x - most).sum(tuple(axes), keepdims=True))


def softmax(x, axis):
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def gemm(x, w, b=0, transB=0):
    return x @ (w.T if transB else w) + b


OPS = {
    "Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide, "Log": np.log,
    "Tanh": np.tanh, "Less": np.less, "Where": np.where, "MatMul": np.matmul,
    "Identity": lambda x: x, "Relu": lambda x: np.maximum(x, np.float32(0)),
    "Sigmoid": lambda x: 1 / (1 + np.exp(-x)), "Clip": np.clip,
    "LeakyRelu": lambda x, alpha: np.where(x < 0, np.float32(alpha) * x, x),
    "Conv": conv, "ConvTranspose": conv_transpose, "Gemm": gemm, "Reshape": reshape,
    "AveragePool": average_pool, "Resize": resize, "ReduceLogSumExp": logsumexp,
    "Softmax": softmax, "Shape": lambda x: np.array(x.shape), "Expand": np.broadcast_to,
    "GlobalAveragePool": lambda x: x.mean((2, 3), keepdims=True),
    "ReduceSum": lambda x, axes, keepdims: x.sum(tuple(axes), keepdims=True),
}
