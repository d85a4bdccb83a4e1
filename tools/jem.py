"""C models of jem.h from Python: load, classify, sample, log p(x) and its slope.

    from jem import Net
    net = Net("examples/models/mnist.safetensors")
    net.classify(images)     # images: float array (n, channels, height, width), usually -1..1;
                             # rows of a table: (n, columns), in their own units
    net.classify_pixels(p)   # a picture of any size, as bytes (height, width[, 1 to 4])
    net.sample(7, n=4)       # bytes (4, height, width, channels)
    logp, slope = net.logp(images, slope=True)

One file on ctypes and numpy. It needs the shared library: `make build/libjem.so`, or tools/cmake
with -DBUILD_SHARED_LIBS=ON; JEM_LIBRARY names another place. A Net has a context of its own: use it
from one thread at a time. It computes with OpenMP's threads, which do not survive a fork: in
workers of multiprocessing or of a DataLoader, use the start method "spawn", or one thread per Net.
Errors of the library are JemError, with the library's message.
"""
import ctypes
import ctypes.util
import operator
import os
from ctypes import (POINTER, Structure, c_char_p, c_float, c_int, c_size_t, c_ubyte, c_uint64,
                    c_void_p)

import numpy

__all__ = ["JemError", "Net"]


class JemError(Exception):
    """An error that the library reports."""


# ---- declarations: tests/tools/test_jem_py.py compares them with jem.h ----


class Mark(Structure):
    _fields_ = [("ctx", c_void_p), ("chunk", c_void_p), ("used", c_size_t), ("nodes", c_int),
                ("pushes", c_uint64)]


class CtxDesc(Structure):
    _fields_ = [("allocate", c_void_p), ("release", c_void_p), ("log", c_void_p),
                ("parallel_for", c_void_p), ("user", c_void_p), ("threads", c_int),
                ("precision", c_int), ("isa", c_int), ("plain_tape", c_int)]


class Answer(Structure):
    _fields_ = [("label", c_int), ("probability", c_float), ("log_density", c_float),
                ("familiarity", c_float), ("reason", c_int)]


class PixelsDesc(Structure):
    _fields_ = [("lo", c_float), ("hi", c_float), ("background", c_int), ("invert", c_int),
                ("subject", c_float), ("fit", c_int), ("frame_all", c_int)]


class Query(Structure):
    _fields_ = [("net", c_void_p), ("labels", POINTER(c_int)), ("weight", c_float)]


class NetHead(Structure):
    """The first fields of jem_net, of which a Net reads the sizes."""
    _fields_ = [("query", Query), ("ctx", c_void_p), ("channels", c_int), ("height", c_int),
                ("width", c_int), ("classes", c_int), ("scale", c_float), ("noise_lo", c_float),
                ("noise_hi", c_float), ("mean", c_float), ("guidance", c_float)]


# C's names of the structures above.
STRUCTS = {"jem_mark": Mark, "jem_ctx_desc": CtxDesc, "jem_answer": Answer,
           "jem_pixels_desc": PixelsDesc, "jem_query": Query, "jem_net": NetHead}

FLOATS, INTS, BYTES, NET = POINTER(c_float), POINTER(c_int), POINTER(c_ubyte), POINTER(NetHead)
# name: result, arguments. Contexts, tensors and descs that are always NULL are plain pointers.
FUNCTIONS = {
    "jem_ctx_create": (c_void_p, [POINTER(CtxDesc)]),
    "jem_ctx_free": (None, [c_void_p]),
    "jem_error": (c_char_p, [c_void_p]),
    "jem_clear_error": (None, [c_void_p]),
    "jem_begin": (Mark, [c_void_p]),
    "jem_end": (None, [c_void_p, Mark]),
    "jem_input": (c_void_p, [c_void_p, FLOATS, c_int, c_int, c_int, c_int]),
    "jem_read": (c_int, [c_void_p, FLOATS]),
    "jem_grad": (c_int, [c_void_p, c_void_p]),
    "jem_read_grad": (c_int, [c_void_p, FLOATS]),
    "jem_load": (NET, [c_void_p, c_char_p]),
    "jem_net_free": (None, [NET]),
    "jem_net_meta": (c_char_p, [NET, c_char_p]),
    "jem_standardize": (c_int, [NET, FLOATS, c_int, FLOATS]),
    "jem_logp": (c_void_p, [c_void_p, c_void_p, c_void_p]),
    "jem_logp_class": (c_void_p, [c_void_p, c_void_p, c_void_p]),
    "jem_logits": (c_int, [NET, FLOATS, c_int, FLOATS]),
    "jem_classify": (c_int, [NET, FLOATS, c_int, POINTER(Answer)]),
    "jem_blame_values": (c_int, [NET, FLOATS, c_int, FLOATS, FLOATS]),
    "jem_pixels_to_floats": (c_int, [NET, BYTES, c_int, c_int, c_int, POINTER(PixelsDesc), FLOATS,
                                     INTS]),
    "jem_sample": (c_int, [NET, c_int, c_int, c_uint64, POINTER(PixelsDesc), BYTES]),
}


def _find():
    """The shared library: JEM_LIBRARY, beside this file, in the build folder, or the system's."""
    here = os.path.dirname(os.path.abspath(__file__))
    names = ["libjem.so", "libjem.dylib", "libjem.dll", "jem.dll"]
    places = [os.path.join(folder, name) for folder in (here, os.path.join(here, "..", "build"))
              for name in names]
    found = os.environ.get("JEM_LIBRARY") or next(filter(os.path.exists, places), None)
    found = found or ctypes.util.find_library("jem")
    if not found:
        raise JemError("no libjem.so: make build/libjem.so, or set JEM_LIBRARY")
    return found


_library = None


def library():
    """The library, loaded once."""
    global _library
    if _library is None:
        try:
            lib = ctypes.CDLL(_find())
        except OSError as error:
            raise JemError("the library cannot be loaded: %s" % error) from None
        for name, (result, arguments) in FUNCTIONS.items():
            function = getattr(lib, name)
            function.restype, function.argtypes = result, arguments
        _library = lib
    return _library


def _text(text):
    """A string for C, where a 0 would end it."""
    if b"\0" in text:
        raise ValueError("%r contains a character 0" % text)
    return text


BATCH = 256         # images that are copied at once
C_INT = -2**31, 2**31 - 1


def _whole(name, value, lo, hi):
    """A whole number in lo..hi; C would wrap others."""
    value = operator.index(value)
    if not lo <= value <= hi:
        raise ValueError("%s = %d is not in %d..%d" % (name, value, lo, hi))
    return value


def _pointer(array, kind):
    return array.ctypes.data_as(kind)


class Net:
    """A network from a safetensors file that jem.h or the jem command wrote. threads: how many to
    compute with; 0: OpenMP's default."""

    def __init__(self, path, threads=0):
        self._lib = lib = library()
        self._net = self._ctx = None
        settings = CtxDesc(threads=_whole("threads", threads, 0, 4096))
        self._ctx = lib.jem_ctx_create(ctypes.byref(settings))
        if not self._ctx:
            raise JemError("no memory for a context")
        net = lib.jem_load(self._ctx, _text(os.fsencode(path)))
        if not net:
            message = lib.jem_error(self._ctx).decode("utf-8", "replace")
            self.close()
            raise JemError(message)
        self._net = net
        head = net.contents
        self.channels, self.height, self.width = head.channels, head.height, head.width
        self.classes = head.classes

    def close(self):
        """Frees the network; it cannot be used afterwards."""
        if self._net:
            self._lib.jem_net_free(self._net)
        if self._ctx:
            self._lib.jem_ctx_free(self._ctx)
        self._net = self._ctx = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __copy__(self):
        raise TypeError("a Net cannot be copied: load its file again")

    def __reduce__(self):
        return self.__copy__()

    def __del__(self):
        if getattr(self, "_ctx", None):
            self.close()

    # ---- what it knows ----

    def meta(self, key):
        """A text that was saved with the network, or None."""
        self._open()
        text = self._lib.jem_net_meta(self._net, _text(key.encode()))
        return None if text is None else text.decode("utf-8")

    def logits(self, x):
        """f(x): floats (n, classes)."""
        x = self._images(x)
        f = numpy.empty((len(x), self.classes), numpy.float32)
        if len(x):
            self._check(self._lib.jem_logits(self._net, _pointer(x, FLOATS), len(x),
                                             _pointer(f, FLOATS)))
        return f

    def classify(self, x):
        """Labels, their probabilities, log p(x) up to a constant, familiarity (-1: the network was
        not calibrated) and the number of a jem_reason: a record per image."""
        x = self._images(x)
        answers = numpy.empty(len(x), [("label", numpy.intc), ("probability", numpy.float32),
                                       ("log_density", numpy.float32),
                                       ("familiarity", numpy.float32), ("reason", numpy.intc)])
        if len(x):
            self._check(self._lib.jem_classify(self._net, _pointer(x, FLOATS), len(x),
                                               _pointer(answers, POINTER(Answer))))
        return answers

    def columns(self):
        """The names of the columns, in the order that all methods expect, of a model of a table; []
        if it has none."""
        names = [self.meta("column.%d" % i) for i in range(self.channels)]
        return names if None not in names else []

    def blame(self, x):
        """The increase of log p(x) if a value alone is replaced, and its most likely value: two
        arrays in the shape of x. The column with the largest increase is to blame for a row."""
        shape = numpy.shape(x)
        x = self._images(x)
        gain, better = numpy.empty_like(x), numpy.empty_like(x)
        if len(x):
            self._check(self._lib.jem_blame_values(self._net, _pointer(x, FLOATS), len(x),
                                                   _pointer(gain, FLOATS),
                                                   _pointer(better, FLOATS)))
        return gain.reshape(shape), better.reshape(shape)

    def pixels(self, picture):
        """A picture of any size, bytes (height, width) or (height, width, 1 to 4: grey or colour,
        with alpha), as the network takes it: floats (1, channels, height, width). It is resized,
        framed and blended as the training pictures were."""
        self._of_pictures()
        picture = numpy.ascontiguousarray(picture)
        if picture.dtype != numpy.uint8:
            raise ValueError("a picture of %s: must be bytes (numpy.uint8)" % picture.dtype)
        if picture.ndim == 2:
            picture = picture[:, :, None]
        if picture.ndim != 3:
            raise ValueError("a picture of shape %s: must be (height, width, 1 to 4)" %
                             (picture.shape,))
        x = numpy.empty((1, self.channels, self.height, self.width), numpy.float32)
        height, width, channels = picture.shape
        self._check(self._lib.jem_pixels_to_floats(self._net, _pointer(picture, BYTES), width,
                                                   height, channels, None, _pointer(x, FLOATS),
                                                   None))
        return x

    def classify_pixels(self, picture):
        """The answer for a picture of any size (see pixels), as in jem classify."""
        return self.classify(self.pixels(picture))[0]

    def logp(self, x, labels=None, slope=False):
        """log p(x), or log p(x, label) with labels, up to a constant: floats (n). slope: also its
        derivative by x, in the shape of x. Both are in the units of x."""
        shape = numpy.shape(x)
        x = self._images(x)
        logp, gradient = numpy.empty(len(x), numpy.float32), numpy.empty_like(x)
        labels = self._labels(labels, len(x))
        for at in range(0, len(x), BATCH):
            part = slice(at, at + BATCH)
            self._density(x[part], None if labels is None else labels[part], logp[part],
                          gradient[part] if slope else None)
        return (logp, gradient.reshape(shape)) if slope else logp

    def sample(self, label=-1, n=1, seed=1, lo=-1.0, hi=1.0, invert=False):
        """n samples of a class (-1: of any) as bytes (n, height, width, channels). lo, hi: what 0
        and 255 are to the network. A model of a table has none: its rows are no pictures."""
        self._of_pictures()
        n = _whole("n", n, 1, C_INT[1])
        label = _whole("label", label, *C_INT)
        seed = _whole("seed", seed, 0, 2**64 - 1)
        pixels = numpy.empty((n, self.height, self.width, self.channels), numpy.uint8)
        desc = PixelsDesc(lo, hi, 0, int(invert), 0.0, 0)
        self._check(self._lib.jem_sample(self._net, label, n, seed, ctypes.byref(desc),
                                         _pointer(pixels, BYTES)))
        return pixels

    # ---- between numpy and C ----

    def _open(self):
        if not self._net:
            raise ValueError("the network is closed")

    def _of_pictures(self):
        self._open()
        if self.height == self.width == 1:
            raise ValueError("the model is of rows of %d numbers, which are no pictures" %
                             self.channels)

    def _check(self, status):
        if status:
            message = self._lib.jem_error(self._ctx).decode("utf-8", "replace")
            self._lib.jem_clear_error(self._ctx)
            raise JemError(message)

    def _images(self, x):
        self._open()
        x = numpy.asarray(x)
        if x.dtype == numpy.uint8 and self.height * self.width > 1:
            raise ValueError("bytes: pass x / 127.5 - 1 if the network takes pixels in -1..1, or "
                             "use pixels or classify_pixels")
        x = numpy.ascontiguousarray(x, numpy.float32)
        given = x.shape
        shape = (self.channels, self.height, self.width)
        if shape[1:] == (1, 1) and x.ndim in (1, 2):
            x = x[..., None, None]
        if x.shape == shape:
            x = x[None]
        if x.ndim != 4 or x.shape[1:] != shape:
            needed = "(n, %d)" % shape[:1] if shape[1:] == (1, 1) else "(n, %d, %d, %d)" % shape
            raise ValueError("an array of shape %s: must be %s" % (given, needed))
        return x

    def _labels(self, labels, n):
        if labels is None:
            return None
        labels = numpy.asarray(labels)
        if labels.shape != (n,):
            raise ValueError("labels of shape %s for %d images" % (labels.shape, n))
        if n and not numpy.issubdtype(labels.dtype, numpy.integer):
            raise ValueError("labels of %s: must be whole numbers" % labels.dtype)
        for label in labels:
            _whole("label", label, *C_INT)
        return numpy.ascontiguousarray(labels, numpy.intc)

    def _scale(self):
        """The scale of each channel's units; a model without units has 1."""
        units = self.meta("jem.units")
        if units is None:
            return numpy.ones(self.channels)
        return numpy.array(units.split(), float)[1::2]      # mean and scale of each channel

    def _density(self, x, labels, logp, gradient):
        """Tensors are in the network's units, u = (x - mean) / scale."""
        lib, ctx = self._lib, self._ctx
        net = ctypes.cast(self._net, c_void_p)
        scale = self._scale()
        u = numpy.empty_like(x)
        self._check(lib.jem_standardize(self._net, _pointer(x, FLOATS), len(x),
                                        _pointer(u, FLOATS)))
        mark = lib.jem_begin(ctx)
        try:
            leaf = lib.jem_input(ctx, _pointer(u, FLOATS), *u.shape)
            if labels is None:
                y = lib.jem_logp(ctx, leaf, net)
            else:
                query = Query(net, _pointer(labels, INTS))
                y = lib.jem_logp_class(ctx, leaf, ctypes.addressof(query))
            if not y:
                self._check(1)
            if gradient is not None:
                self._check(lib.jem_grad(y, leaf))
                self._check(lib.jem_read_grad(leaf, _pointer(gradient, FLOATS)))
            self._check(lib.jem_read(y, _pointer(logp, FLOATS)))
        finally:
            lib.jem_end(ctx, mark)
        logp -= self.height * self.width * numpy.log(scale).sum()
        if gradient is not None:
            gradient /= scale[:, None, None]
