"""NVIDIA's libraries in this program, through ctypes: opened on demand, never linked.

Source: CUDA Runtime API, "Device Management", "Memory Management", "Stream Management", "Unified Addressing"; CUDA Driver
API, cuDevicePrimaryCtxGetState.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import glob
import os
import sys
import uuid
from typing import Any, Iterator, Sequence

from .errors import PitstopError

ANY_DIRECTION = 4  # cudaMemcpyDefault: the driver finds out which memory an address belongs to
NON_BLOCKING = 1  # a stream that does not wait for the default one
DEVICE_MEMORY = (2, 3)  # cudaMemoryTypeDevice, Managed
NOT_READY = 600  # cudaErrorNotReady
PROPERTIES_BYTES = 8192  # cudaDeviceProp has some 1,000, and may grow
UUID_AT = 256  # the offset of the UUID, which follows the name
ATTRIBUTES_BYTES = 256  # cudaPointerAttributes has 24, and may grow


def _mapped(stem: str) -> Iterator[str]:
    """Libraries that this program has already opened: PyTorch has its own."""
    with open("/proc/self/maps") as maps:
        for path in dict.fromkeys(line.split(maxsplit=5)[-1].strip() for line in maps if stem in line):
            if os.path.basename(path).startswith(stem):
                yield path


def _installed(name: str) -> Iterator[str]:
    """Libraries of the toolkit, or installed by pip on this program's path."""
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    patterns = [f"{home}/lib*/{name}" for home in homes if home] + [
        f"{place}/nvidia/*/lib/{name}" for place in sys.path
    ]
    for pattern in patterns:
        yield from sorted(glob.glob(pattern))


def open_library(names: Sequence[str], package: str) -> ctypes.CDLL:
    """Opens the first of these file names that is found. PitstopError "not_found"."""
    stem = names[0].partition(".so")[0] + ".so"
    for place in (*_mapped(stem), *names, *(path for name in names for path in _installed(name))):
        try:
            return ctypes.CDLL(place)
        except OSError:
            pass
    raise PitstopError(
        "not_found",
        f"{' or '.join(names)} was not found: neither open in this program (as PyTorch has it), nor where the "
        f"loader looks (LD_LIBRARY_PATH), nor under CUDA_HOME, nor installed by pip ({package})",
    )


class CudaRuntime:
    """CUDA's runtime, and the GPUs of this program. Thread: any; a thread enters a GPU (on) before it uses it."""

    def __init__(self) -> None:
        """PitstopError: the library is missing ("not_found"), or there is no GPU ("failed_precondition")."""
        names = ("libcudart.so.13", "libcudart.so.12", "libcudart.so")
        self._library = open_library(names, "nvidia-cuda-runtime")
        self._library.cudaGetErrorName.restype = ctypes.c_char_p
        num = ctypes.c_int()
        error = self._library.cudaGetDeviceCount(ctypes.byref(num))
        if error or not num.value:
            why = f" (cudaGetDeviceCount: {self._name_of(error)})" if error else ""
            raise PitstopError("failed_precondition", f"this program sees no GPU{why}")

    def _name_of(self, error: int) -> str:
        return self._library.cudaGetErrorName(error).decode()

    def call(self, name: str, *arguments: Any) -> None:
        error = getattr(self._library, name)(*arguments)
        if error:
            code = "resource_exhausted" if name == "cudaMalloc" else "internal"
            raise PitstopError(code, f"{name}: {self._name_of(error)}")

    def current(self) -> int:
        """The calling thread's GPU."""
        device = ctypes.c_int()
        self.call("cudaGetDevice", ctypes.byref(device))
        return device.value

    def enter(self, device: int) -> None:
        self.call("cudaSetDevice", ctypes.c_int(device))

    @contextlib.contextmanager
    def on(self, device: int) -> Iterator[None]:
        """A context in which the calling thread uses that GPU."""
        before = self.current()
        if device == before:
            yield
            return
        try:
            self.enter(device)
            yield
        finally:
            if self._is_in_use(before):
                self.enter(before)

    def _is_in_use(self, device: int) -> bool:
        """Whether this program uses the GPU already. Entering a GPU takes some of its memory since CUDA 12, and a
        thread's default GPU may belong to another program."""
        try:
            driver = ctypes.CDLL("libcuda.so.1")
        except OSError:
            return True
        flags, is_active = ctypes.c_uint(), ctypes.c_int(1)
        driver.cuDevicePrimaryCtxGetState(ctypes.c_int(device), ctypes.byref(flags), ctypes.byref(is_active))
        return bool(is_active.value)

    def finish(self, device: int) -> None:
        """Waits for all work that has been started on that GPU."""
        with self.on(device):
            self.call("cudaDeviceSynchronize")

    def uuid_of(self, device: int) -> str:
        """The GPU's UUID, as nvidia-smi and a worker's status print it."""
        properties = (ctypes.c_ubyte * PROPERTIES_BYTES)()
        self.call("cudaGetDeviceProperties", properties, ctypes.c_int(device))
        return f"GPU-{uuid.UUID(bytes=bytes(properties[UUID_AT : UUID_AT + 16]))}"

    def device_of(self, pointer: int) -> int:
        """The GPU that has this address. PitstopError: none has."""
        attributes = (ctypes.c_int * (ATTRIBUTES_BYTES // 4))()
        self.call("cudaPointerGetAttributes", ctypes.byref(attributes), ctypes.c_void_p(pointer))
        if attributes[0] not in DEVICE_MEMORY:
            raise PitstopError("invalid_argument", f"address {pointer:#x} is in no GPU's memory")
        return attributes[1]

    def allocate(self, num_bytes: int) -> int:
        pointer = ctypes.c_void_p()
        self.call("cudaMalloc", ctypes.byref(pointer), ctypes.c_size_t(num_bytes))
        return pointer.value or 0

    def free(self, pointer: int) -> None:
        self.call("cudaFree", ctypes.c_void_p(pointer))

    def copy(self, to: int, source: int, num_bytes: int) -> None:
        """Copies from and to any memory; done when this returns."""
        self.call("cudaMemcpy", ctypes.c_void_p(to), ctypes.c_void_p(source), ctypes.c_size_t(num_bytes), ANY_DIRECTION)

    def copy_on(self, stream: ctypes.c_void_p, to: int, source: int, num_bytes: int) -> None:
        """Copies in the stream's order. Change neither memory until the stream is done."""
        arguments = (ctypes.c_void_p(to), ctypes.c_void_p(source), ctypes.c_size_t(num_bytes), ANY_DIRECTION, stream)
        self.call("cudaMemcpyAsync", *arguments)

    def stream(self) -> ctypes.c_void_p:
        stream = ctypes.c_void_p()
        self.call("cudaStreamCreateWithPriority", ctypes.byref(stream), NON_BLOCKING, 0)
        return stream

    def destroy(self, stream: ctypes.c_void_p) -> None:
        self.call("cudaStreamDestroy", stream)

    def is_done(self, stream: ctypes.c_void_p) -> bool:
        error = self._library.cudaStreamQuery(stream)
        if error not in (0, NOT_READY):
            raise PitstopError("internal", f"cudaStreamQuery: {self._name_of(error)}")
        return not error


@functools.lru_cache(maxsize=None)
def cuda_runtime() -> CudaRuntime:
    """The runtime of this program, opened once."""
    return CudaRuntime()
