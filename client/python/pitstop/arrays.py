"""Weights as NumPy arrays, from whatever holds them: NumPy's, PyTorch's. What is in host memory is not copied."""

from __future__ import annotations

from typing import Any, Callable, Iterable, Mapping, Union

import numpy

from .cuda_tensors import CudaTensor, host_array

NamedTensors = Union[Mapping[str, Any], Iterable["tuple[str, Any]"]]


def _is_torch(tensor: Any) -> bool:
    return any(kind.__module__.partition(".")[0] == "torch" for kind in type(tensor).__mro__)


def array_of(name: str, tensor: Any) -> numpy.ndarray:
    """bfloat16 comes as uint16. TypeError: it is neither, or of a dtype that no weight has."""
    if isinstance(tensor, numpy.ndarray):
        array = tensor
    elif _is_torch(tensor):
        array = host_array(tensor)
    else:
        raise TypeError(f"{name}: a NumPy array or a torch tensor, not {type(tensor).__name__}")
    if array.dtype.name not in ("float32", "float16", "uint16", "bfloat16"):
        raise TypeError(f"{name}: dtype {array.dtype.name}; accepted are float32, float16 and bfloat16")
    return array


def _by_name(tensors: NamedTensors, take: Callable[[str, Any], Any]) -> dict[str, Any]:
    pairs = tensors.items() if isinstance(tensors, Mapping) else tensors
    taken: dict[str, Any] = {}
    for name, tensor in pairs:
        if name in taken:
            raise TypeError(f"{name} comes twice")
        taken[name] = take(name, tensor)
    return taken


def arrays_of(tensors: NamedTensors) -> dict[str, numpy.ndarray]:
    """By their checkpoint names. TypeError: a name that comes twice, too."""
    return _by_name(tensors, array_of)


def weights_of(tensors: NamedTensors) -> dict[str, Union[numpy.ndarray, CudaTensor]]:
    """The same, but what is in a GPU's memory stays there."""

    def take(name: str, tensor: Any) -> Union[numpy.ndarray, CudaTensor]:
        is_on_gpu = _is_torch(tensor) and tensor.is_cuda
        return CudaTensor.of(name, tensor) if is_on_gpu else array_of(name, tensor)

    return _by_name(tensors, take)


def grouped(sizes: Iterable[tuple[str, int]], most: int) -> list[list[str]]:
    """Names, of so many bytes each, in order: groups of at most `most` bytes, or of one that has more. One at least."""
    groups: list[list[str]] = [[]]
    in_group = 0
    for name, size in sizes:
        if groups[-1] and in_group + size > most:
            groups.append([])
            in_group = 0
        groups[-1].append(name)
        in_group += size
    return groups


def unflattened(bucket: Mapping[str, Any]) -> dict[str, Any]:
    """The tensors of SGLang's flattened bucket: {"flattened_tensor", "metadata"}."""
    flat = bucket["flattened_tensor"]
    tensors = {}
    for each in bucket["metadata"]:
        piece = flat[each.start_idx : each.end_idx]
        tensors[each.name] = piece.view(each.dtype).reshape(each.shape)
    return tensors
