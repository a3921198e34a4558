"""The part of CUDA's driver that a push needs: the allocation behind an address in a GPU's memory, and the handle by
which another process opens this allocation (cudaIpcOpenMemHandle).

PyTorch's own call (Storage._share_cuda_) raises an error for memory without a handle. Each call also adds a record that
stays until the storage is freed. The driver keeps no record.
Source: CUDA Driver API, cuMemGetAddressRange, cuIpcGetMemHandle, "Primary Context Management".
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
from typing import Optional

LIBRARY = "libcuda.so.1"
HANDLE_BYTES = 64  # CUipcMemHandle
# cudaMalloc cuts smaller allocations out of a block of this size, and a handle opens the whole block.
BLOCK_BYTES = 2 << 20


@dataclasses.dataclass(frozen=True)
class Allocation:
    handle: bytes
    begin: int  # address


class _Refused(Exception):
    """A call of the driver failed."""


def allocation_of(address: int, index: int) -> Optional[Allocation]:
    """Returns the allocation of an address in the memory of GPU `index`, which is PyTorch's number. None if no other
    process can open it, for example because it is in an expandable segment or a pool."""
    try:
        return _find(_library(LIBRARY), address, index)
    except (OSError, _Refused):  # OSError: there is no driver
        return None


@functools.lru_cache(maxsize=None)
def _library(name: str) -> ctypes.CDLL:
    return ctypes.CDLL(name)


def _find(library: ctypes.CDLL, address: int, index: int) -> Optional[Allocation]:
    def call(name: str, *arguments) -> None:
        if getattr(library, name)(*arguments) != 0:
            raise _Refused(name)

    device, context = ctypes.c_int(), ctypes.c_void_p()
    begin, size = ctypes.c_uint64(), ctypes.c_size_t()
    handle = ctypes.create_string_buffer(HANDLE_BYTES)
    call("cuInit", 0)
    call("cuDeviceGet", ctypes.byref(device), index)
    # PyTorch's context; this thread may not have one yet
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    try:
        call("cuCtxPushCurrent_v2", context)
        try:
            call("cuMemGetAddressRange_v2", ctypes.byref(begin), ctypes.byref(size), ctypes.c_uint64(address))
            if size.value < BLOCK_BYTES:
                return None
            call("cuIpcGetMemHandle", handle, begin)
        finally:
            call("cuCtxPopCurrent_v2", ctypes.byref(context))
    finally:
        call("cuDevicePrimaryCtxRelease_v2", device)
    return Allocation(handle.raw, begin.value)
