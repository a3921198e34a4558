"""Weights as NumPy arrays, from NumPy, PyTorch, or objects with the CUDA array interface. Tensors in host
memory are not copied."""

from __future__ import annotations

from typing import Any, Callable, Iterable, Mapping, Union

import numpy

from .cuda_arrays import CudaArray
from .cuda_tensors import CudaTensor, host_array

OnGpu = (CudaArray, CudaTensor)
Weight = Union[numpy.ndarray, CudaArray, CudaTensor]
NamedTensors = Union[Mapping[str, Any], Iterable["tuple[str, Any]"]]


def _is_torch(tensor: Any) -> bool:
    return any(kind.__module__.partition(".")[0] == "torch" for kind in type(tensor).__mro__)


def array_of(name: str, tensor: Any) -> numpy.ndarray:
    """The tensor as an array; bfloat16 as uint16. TypeError: another kind of object, or a dtype that no weight has."""
    if isinstance(tensor, numpy.ndarray):
        array = tensor
    elif _is_torch(tensor):
        dtype = str(tensor.dtype).removeprefix("torch.")
        if dtype not in ("float32", "float16", "bfloat16"):
            raise TypeError(f"{name}: dtype {dtype}; accepted are float32, float16 and bfloat16")
        array = host_array(tensor)
    elif hasattr(tensor, "__cuda_array_interface__"):
        array = CudaArray.of(name, tensor).in_host()
    else:
        kinds = "a NumPy array, a torch tensor or an object with the CUDA array interface"
        raise TypeError(f"{name} must be {kinds}, not {type(tensor).__name__}")
    if array.dtype.name not in ("float32", "float16", "uint16", "bfloat16"):
        raise TypeError(f"{name}: dtype {array.dtype.name}; accepted are float32, float16 and bfloat16")
    return array


def _by_name(tensors: NamedTensors, take: Callable[[str, Any], Any]) -> dict[str, Any]:
    if isinstance(tensors, (str, bytes)) or hasattr(tensors, "__fspath__"):
        raise TypeError("named_tensors: (name, tensor) pairs or a dict; for a directory call update_weights_from_disk")
    if hasattr(tensors, "named_parameters"):
        raise TypeError("named_tensors: (name, tensor) pairs or a dict; for a model send model.named_parameters()")
    pairs = tensors.items() if isinstance(tensors, Mapping) else tensors
    taken: dict[str, Any] = {}
    for pair in pairs:
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise TypeError(f"named_tensors: (name, tensor) pairs or a dict, not {type(pair).__name__}")
        name, tensor = pair
        if name in taken:
            raise TypeError(f"{name} appears twice")
        taken[name] = take(name, tensor)
    return taken


def arrays_of(tensors: NamedTensors) -> dict[str, numpy.ndarray]:
    """Arrays by checkpoint name. TypeError: as array_of, or a name appears twice."""
    return _by_name(tensors, array_of)


def weights_of(tensors: NamedTensors) -> dict[str, Weight]:
    """Weights by checkpoint name; tensors in a GPU's memory stay there. TypeError: as arrays_of."""

    def weight_of(name: str, tensor: Any) -> Weight:
        if _is_torch(tensor):
            return CudaTensor.of(name, tensor) if tensor.is_cuda else array_of(name, tensor)
        return CudaArray.of(name, tensor) if hasattr(tensor, "__cuda_array_interface__") else array_of(name, tensor)

    return _by_name(tensors, weight_of)


def in_host(weights: Mapping[str, Weight]) -> dict[str, numpy.ndarray]:
    """All tensors in host memory."""
    return {name: each.in_host() if isinstance(each, OnGpu) else each for name, each in weights.items()}


def grouped(sizes: Iterable[tuple[str, int]], most: int) -> list[list[str]]:
    """Groups of names, in order, of at most `most` bytes each. A larger tensor forms a group alone. There is at
    least one group."""
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
