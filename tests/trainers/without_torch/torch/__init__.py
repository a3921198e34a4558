"""shim: replaces PyTorch where it is not installed.

For trainers' clients that hold tensors and compute nothing: NumPy's tensors, which pickle like
PyTorch's that are shared by files. Every other name of PyTorch's can be imported, and is a class
that does nothing.

Source: torch/multiprocessing/reductions.py.
"""

import math

import numpy

from .multiprocessing.reductions import rebuild_tensor
from .nn import Module, Parameter  # noqa: F401
from .nothing import Nothing, provide
from .storage import TypedStorage, UntypedStorage

__version__ = "2.15.0"


class Size(tuple):
    def numel(self):
        return math.prod(self)

    def __reduce__(self):
        return Size, (tuple(self),)


class dtype:  # noqa: N801 (as PyTorch has it)
    def __init__(self, name, array):
        self.name, self.array, self.itemsize = name, numpy.dtype(array), numpy.dtype(array).itemsize

    def __repr__(self):
        return f"torch.{self.name}"

    def __reduce__(self):
        return self.name


DTYPES = {"bfloat16": "u2", "float16": "f2", "float32": "f4", "uint8": "u1", "int64": "i8", "int32": "i4", "bool": "?"}
globals().update({name: dtype(name, array) for name, array in DTYPES.items()})


class device:  # noqa: N801 (as PyTorch has it)
    def __init__(self, name):
        self.type, _, index = str(name).partition(":")
        self.index = int(index) if index else None

    def __str__(self):
        return self.type if self.index is None else f"{self.type}:{self.index}"


class Tensor:
    """A contiguous tensor."""

    is_cuda = False
    requires_grad = False

    def __init__(self, array, kind, storage=None):
        self.array, self.dtype = array, kind
        self._storage = storage or UntypedStorage(array.reshape(-1).view(numpy.uint8))

    shape = property(lambda self: Size(self.array.shape))
    ndim = property(lambda self: self.array.ndim)
    data = property(lambda self: self)

    def numel(self):
        return self.array.size

    def detach(self):
        return self

    contiguous = cpu = detach

    def clone(self):
        return Tensor(self.array.copy(), self.dtype)

    def share_memory_(self):
        self._storage.share()
        return self

    def reshape(self, *shape):
        return Tensor(self.array.reshape(*shape), self.dtype, self._storage)

    def flatten(self):
        return self.reshape(-1)

    def view(self, kind):
        return Tensor(self.array.view(kind.array), kind, self._storage)

    def numpy(self):
        return self.array

    def __getitem__(self, where):
        return Tensor(numpy.ascontiguousarray(self.array[where]), self.dtype)

    def __reduce__(self):
        stride = tuple(each // self.array.itemsize for each in self.array.strides)
        return rebuild_tensor, (Tensor, TypedStorage(self._storage, self.dtype), (0, self.shape, stride, False))


def frombuffer(buffer, dtype):  # noqa: A002 (as PyTorch has it)
    return Tensor(numpy.frombuffer(buffer, dtype.array), dtype)


def from_numpy(array):
    return Tensor(array, next(globals()[name] for name, kind in DTYPES.items() if array.dtype == numpy.dtype(kind)))


def as_tensor(value, dtype=None):  # noqa: A002 (as PyTorch has it)
    return value if is_tensor(value) else from_numpy(numpy.asarray(value, dtype and dtype.array))


def is_tensor(value):
    return isinstance(value, Tensor)


def count_nonzero(tensor):
    return int(numpy.count_nonzero(tensor.array))


def cat(tensors, dim=0):
    return Tensor(numpy.concatenate([each.array for each in tensors], dim), tensors[0].dtype)


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return Nothing


provide(  # shim: packages of which these clients use only names
    "torch",
    "torchdata",
    "triton",
    "ray",
    "datasets",
    "accelerate",
    "numba",
    "h5py",
    "pandas",
    "flask",
    "werkzeug",
    "redis",
    "pebble",
    "zstandard",
    "blosc",
)
