"""Weights in a GPU's memory from any library with the CUDA array interface (CuPy, Numba, JAX).

Source: Numba, "CUDA Array Interface (Version 3)".
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy

from .cuda_runtime import cuda_runtime
from .digests import tensor_digest

BF16 = ("BF16", "uint16")
# NumPy has no bfloat16: such arrays have 16-bit elements of any kind.
KINDS = {"<f4": ("F32", "float32"), "<f2": ("F16", "float16"), "<u2": BF16, "<V2": BF16, "|V2": BF16}


@dataclasses.dataclass(frozen=True)
class CudaArray:
    """A weight in a GPU's memory, with the interface of cuda_tensors.CudaTensor."""

    owner: Any  # keeps the memory alive
    pointer: int
    shape: tuple[int, ...]
    kind: str

    @classmethod
    def of(cls, name: str, array: Any) -> CudaArray:
        """TypeError: a dtype that no weight has, or rows with gaps."""
        face = array.__cuda_array_interface__
        kind, shape, strides = face["typestr"], tuple(face["shape"]), face.get("strides")
        if kind not in KINDS:
            raise TypeError(f"{name}: dtype {kind}; accepted are float32, float16 and bfloat16 (as uint16)")
        itemsize = int(kind[2:])
        dense = tuple(itemsize * math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
        if strides is not None and tuple(strides) != dense:
            raise TypeError(f"{name}: the array must be contiguous")
        return cls(array, face["data"][0], shape, kind)

    @property
    def dtype_name(self) -> str:
        return KINDS[self.kind][0]

    @property
    def nbytes(self) -> int:
        return int(self.kind[2:]) * math.prod(self.shape)

    def digest(self) -> str:
        return tensor_digest(self.in_host())

    def in_host(self) -> numpy.ndarray:
        cuda = cuda_runtime()
        copy = numpy.empty(self.shape, KINDS[self.kind][1])
        cuda.finish(cuda.device_of(self.pointer))  # waits for the code that fills the memory
        cuda.copy(copy.ctypes.data, self.pointer, self.nbytes)
        return copy
