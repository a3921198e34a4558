"""The dtype's name and the digest of a weight, as the tree calls and computes them."""

from __future__ import annotations

from typing import Protocol, Union

import numpy

MIX_STEP = numpy.uint64(0x9E3779B97F4A7C15)
DTYPES = {"float32": "F32", "float16": "F16", "uint16": "BF16", "bfloat16": "BF16"}


class GpuWeight(Protocol):
    """A weight in a GPU's memory: arrays.OnGpu."""

    @property
    def dtype_name(self) -> str: ...

    def digest(self) -> str: ...


def dtype_name(array: Union[numpy.ndarray, GpuWeight]) -> str:
    """The tree's name of a dtype. TypeError: not the dtype of a weight."""
    if not isinstance(array, numpy.ndarray):
        return array.dtype_name
    name = array.dtype.name
    if name not in DTYPES:
        raise TypeError(f"dtype {name}; accepted are float32, float16 and bfloat16 (as uint16)")
    return DTYPES[name]


def tensor_digest(array: Union[numpy.ndarray, GpuWeight]) -> str:
    """The digest of a bfloat16 or float32 tensor, 32 hex digits (docs/design.md, section 5)."""
    if not isinstance(array, numpy.ndarray):
        return array.digest()
    words = array.view(numpy.uint16)
    rows = words.reshape(-1, words.shape[-1]) if words.ndim else words.reshape(1, 1)
    padding = -rows.shape[1] % 4
    if padding:
        rows = numpy.pad(rows, ((0, 0), (0, padding)))
    word = numpy.ascontiguousarray(rows).view(numpy.uint64).ravel()
    with numpy.errstate(over="ignore"):
        z = word + numpy.arange(1, len(word) + 1, dtype=numpy.uint64) * MIX_STEP
        z = (z ^ (z >> numpy.uint64(30))) * numpy.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> numpy.uint64(27))) * numpy.uint64(0x94D049BB133111EB)
        z = z ^ (z >> numpy.uint64(31))
        lane0 = int(z.sum(dtype=numpy.uint64))
        lane1 = int(((z >> numpy.uint64(32)) * (z & numpy.uint64(0xFFFFFFFF))).sum(dtype=numpy.uint64))
    return f"{lane0:016x}{lane1:016x}"


def text_digest(text: bytes) -> str:
    """The digest of a text, such as an adapter's configuration, 32 hex digits (base/digest.h)."""
    if not text:
        return "0" * 32
    return tensor_digest(numpy.frombuffer(text + b"\0" * (-len(text) % 8), numpy.uint16))
