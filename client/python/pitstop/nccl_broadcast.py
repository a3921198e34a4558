"""The trainer's side of an `nccl` group: rank 0, which broadcasts to the workers of one tree or several at once.

    with NcclBroadcast("w", num_workers=2) as group:
        joined = executor.submit(client.init_group, **group.spec())          # workers join meanwhile
        group.accept(); joined.result()
        update = executor.submit(client.update_weights, source=group.source(tensors))
        group.send(tensors)
        print(update.result()["digest"])

Tensors are those of arrays.weights_of: NumPy's, PyTorch's, or with the CUDA array interface. A bucket of them is packed
in this GPU's memory and broadcast once, however many workers there are. No worker may use this GPU.

Source: NCCL documentation, "Creating a communicator with options", "Fault Tolerance", ncclCommGetAsyncError.
"""

from __future__ import annotations

import ctypes
import functools
import threading
import time
from typing import Any, Callable, Mapping, Optional, Sequence

import numpy

from .arrays import OnGpu, Weight
from .cuda_runtime import cuda_runtime, open_library
from .digests import dtype_name
from .errors import PitstopError

BUCKET_BYTES = 64 << 20  # a bucket ends with the tensor that exceeds this
ID_BYTES = 128
SUCCESS, INVALID_ARGUMENT, INVALID_USAGE, IN_PROGRESS = 0, 4, 5, 7
CODES = {INVALID_ARGUMENT: "invalid_argument", INVALID_USAGE: "failed_precondition"}  # others: a peer or network failed
UINT8 = 1
VERSION_MIN = 21800  # the first version with Config's fields
UNDEFINED = -(1 << 31)
CTAS_MAX = 8  # the same as in the workers
LOOK_S = 0.0005
FAREWELL_S = 2.0


class _Id(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_char * ID_BYTES)]


class _Config(ctypes.Structure):
    """The ncclConfig_t of NCCL 2.18. A newer library uses defaults for later fields."""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("magic", ctypes.c_uint),
        ("version", ctypes.c_uint),
        ("blocking", ctypes.c_int),
        ("cga_cluster_size", ctypes.c_int),
        ("min_ctas", ctypes.c_int),
        ("max_ctas", ctypes.c_int),
        ("net_name", ctypes.c_char_p),
        ("split_share", ctypes.c_int),
    ]

    def __init__(self) -> None:
        # The size without the padding at the end, where later versions have a field.
        size = _Config.split_share.offset + ctypes.sizeof(ctypes.c_int)
        super().__init__(size, 0xCAFEBEEF, VERSION_MIN, 0, UNDEFINED, UNDEFINED, CTAS_MAX, None, UNDEFINED)


class NcclLibrary:
    def __init__(self) -> None:
        """PitstopError: NCCL is missing ("not_found") or too old ("unsupported")."""
        self.library = open_library(["libnccl.so.2"], "nvidia-nccl")
        for name in ("ncclGetErrorString", "ncclGetLastError"):
            getattr(self.library, name).restype = ctypes.c_char_p
        code = ctypes.c_int()
        self.library.ncclGetVersion(ctypes.byref(code))
        self.version = f"{code.value // 10000}.{code.value // 100 % 100}.{code.value % 100}"
        if code.value < VERSION_MIN:
            raise PitstopError("unsupported", f"NCCL {self.version}: 2.18 and newer are accepted")

    def check(self, result: int, what: str, comm: ctypes.c_void_p) -> None:
        if result not in (SUCCESS, IN_PROGRESS):
            said = self.library.ncclGetErrorString(result).decode()
            more = (self.library.ncclGetLastError(comm) or b"").decode("utf-8", "replace")
            text = ": ".join(filter(None, (f"NCCL {self.version}", what, said, more)))
            raise PitstopError(CODES.get(result, "unavailable"), text)


@functools.lru_cache(maxsize=None)
def nccl_library() -> NcclLibrary:
    """The NCCL of this program, opened once."""
    return NcclLibrary()


def packs(sizes: Sequence[int], packed_bytes: int) -> list[range]:
    """Divides tensors of these sizes, in bytes, into broadcasts, by the same rule as the workers (docs/protocol.md)."""
    made, begin, in_pack = [], 0, 0
    for index, size in enumerate(sizes):
        in_pack += size
        if in_pack > packed_bytes or index == len(sizes) - 1:
            made.append(range(begin, index + 1))
            begin, in_pack = index + 1, 0
    return made


class NcclBroadcast:
    """Owns: a communicator, a stream, and memory for a bucket, on one GPU.

    Thread: any, one call at a time; close() cancels another thread's wait. After an error, only close() works.
    device        the GPU's number in this program; None: the calling thread's GPU
    bucket_bytes  a broadcast ends with the tensor that makes it longer than this, so each GPU needs this much memory
                  and one tensor more; None: 64 MiB
    """

    def __init__(self, group: str, num_workers: int, device: Optional[int] = None, bucket_bytes: Optional[int] = None):
        """PitstopError names what is missing: NCCL or CUDA's library ("not_found"), a GPU ("failed_precondition")."""
        bucket_bytes = BUCKET_BYTES if bucket_bytes is None else bucket_bytes
        if num_workers < 1 or bucket_bytes < 1:
            given = f"{num_workers}, {bucket_bytes}"
            raise PitstopError("invalid_argument", f"num_workers and bucket_bytes must be 1 or more, not {given}")
        self.group = group
        self.num_workers = num_workers
        self.num_broadcasts = 0
        self.num_bytes = 0  # bytes broadcast so far
        self._bucket_bytes = bucket_bytes
        self._cuda = cuda_runtime()
        self._nccl = nccl_library()
        self._device = self._cuda.current() if device is None else device
        self._comm = ctypes.c_void_p()
        self._stream: Optional[ctypes.c_void_p] = None
        self._bucket, self._room = 0, 0
        self._is_whole = False  # all have joined, and nothing has failed
        self._is_closing = False
        self._turn = threading.Lock()
        self._id = _Id()
        with self._cuda.on(self._device):
            self._call("ncclGetUniqueId", ctypes.byref(self._id))

    @property
    def version(self) -> str:
        """The version of NCCL; the workers must have the same, to the patch."""
        return self._nccl.version

    @property
    def is_whole(self) -> bool:
        """True if all workers have joined and nothing has failed: the group can send."""
        return self._is_whole

    def spec(self, rank_offset: int = 1) -> dict[str, Any]:
        """The arguments of init_group for a tree whose first worker has this rank."""
        return {
            "group": self.group,
            "backend": "nccl",
            "rendezvous": "direct",
            "rank_offset": rank_offset,
            "world_size": self.num_workers + 1,
            "unique_id": bytes(self._id),
        }

    def source(self, tensors: Mapping[str, Weight], stall_ms: int = 60_000) -> dict[str, Any]:
        """The `source` of an update that receives what send() broadcasts."""
        infos = [{"name": name, "dtype": dtype_name(each), "shape": list(each.shape)} for name, each in tensors.items()]
        packed = {"format": "flattened", "packed_bytes": self._bucket_bytes, "stall_ms": stall_ms}
        return {"kind": "distributed", "group": self.group, "tensors": infos, **packed}

    def accept(self, timeout: float = 60.0, is_called_off: Callable[[], bool] = lambda: False) -> None:
        """Waits until all workers have joined. PitstopError: not in time, or a rank cannot (two ranks on one GPU, say)."""
        deadline = time.monotonic() + timeout
        with self._turn, self._cuda.on(self._device):
            config = _Config()
            rank, world_size = ctypes.c_int(0), ctypes.c_int(self.num_workers + 1)
            self._call(
                "ncclCommInitRankConfig", ctypes.byref(self._comm), world_size, self._id, rank, ctypes.byref(config)
            )
            self._wait(f"{self.num_workers} workers to join", self._is_ready, deadline, is_called_off)
            self._stream = self._cuda.stream()
            self._is_whole = True

    def send(
        self, tensors: Mapping[str, Weight], timeout: float = 600.0, is_called_off: Callable[[], bool] = lambda: False
    ) -> None:
        """Sends one broadcast per bucket. PitstopError "deadline_exceeded": a worker does not receive; "unavailable": a
        worker is gone; "aborted": close() cancelled it."""
        deadline = time.monotonic() + timeout
        weights = list(tensors.values())
        with self._turn:
            if not self._is_whole:
                raise PitstopError(
                    "failed_precondition", f"group '{self.group}' has ended, or not all workers have joined"
                )
            self._is_whole = False
            for device in {
                self._cuda.device_of(each.pointer) for each in weights if isinstance(each, OnGpu) and each.nbytes
            }:
                self._cuda.finish(device)  # waits for the code that fills the tensors
            with self._cuda.on(self._device):
                self._send(weights, deadline, is_called_off)
            self._is_whole = True

    def make_room(self, tensors: Mapping[str, Weight]) -> None:
        """Allocates memory for the largest bucket now, instead of in send(). PitstopError "resource_exhausted"."""
        with self._turn, self._cuda.on(self._device):
            self._room_for(list(tensors.values()))

    def _send(self, weights: Sequence[Weight], deadline: float, is_called_off: Callable[[], bool]) -> None:
        for bucket in self._room_for(weights):
            self._send_bucket([weights[index] for index in bucket], deadline, is_called_off)

    def _room_for(self, weights: Sequence[Weight]) -> list[range]:
        """Allocates memory for the largest bucket, and returns the buckets."""
        sizes = [each.nbytes for each in weights]
        buckets = packs(sizes, self._bucket_bytes)
        num_bytes = max((sum(sizes[index] for index in bucket) for bucket in buckets), default=0)
        if num_bytes > self._room:
            if self._bucket:
                self._cuda.free(self._bucket)
            self._bucket, self._room = 0, 0
            self._bucket, self._room = self._cuda.allocate(num_bytes), num_bytes
        return buckets

    def _send_bucket(self, weights: Sequence[Weight], deadline: float, is_called_off: Callable[[], bool]) -> None:
        kept, at = [], 0
        for each in weights:
            if not isinstance(each, OnGpu):
                each = numpy.ascontiguousarray(each)
                kept.append(each)  # keeps the arrays until the stream is done
            pointer = each.pointer if isinstance(each, OnGpu) else each.ctypes.data
            if each.nbytes:
                self._cuda.copy_on(self._stream, self._bucket + at, pointer, each.nbytes)
            at += each.nbytes
        if not at:
            return
        memory = ctypes.c_void_p(self._bucket)
        self._call("ncclBroadcast", memory, memory, ctypes.c_size_t(at), UINT8, 0, self._comm, self._stream)
        what = f"broadcast {self.num_broadcasts + 1} ({at} bytes)"
        self._wait(what, lambda: self._is_ready() and self._cuda.is_done(self._stream), deadline, is_called_off)
        self.num_broadcasts += 1
        self.num_bytes += at

    def close(self) -> None:
        """Leaves the group together with the workers (destroy_group). After a failure, leaves at once."""
        self._is_closing = True
        with self._turn:
            try:
                if self._is_whole:
                    self._is_whole = False
                    with self._cuda.on(self._device):
                        self._take_leave()
            except PitstopError:
                pass  # some have already left
            self._free()

    def _take_leave(self) -> None:
        self._call("ncclCommFinalize", self._comm)
        self._until(self._is_ready, time.monotonic() + FAREWELL_S)
        comm, self._comm = self._comm, ctypes.c_void_p()
        self._nccl.library.ncclCommDestroy(comm)

    def _free(self) -> None:
        comm, self._comm = self._comm, ctypes.c_void_p()
        if comm:
            self._nccl.library.ncclCommAbort(comm)
        stream, self._stream = self._stream, None
        bucket, self._bucket, self._room = self._bucket, 0, 0
        try:
            with self._cuda.on(self._device):
                if stream is not None:  # its work ends soon after the abort
                    self._until(lambda: self._cuda.is_done(stream), time.monotonic() + FAREWELL_S)
                if bucket:
                    self._cuda.free(bucket)
                if stream is not None:
                    self._cuda.destroy(stream)
        except PitstopError:
            pass  # the GPU is lost, or its work did not end in time

    def _call(self, name: str, *arguments: Any) -> None:
        self._nccl.check(getattr(self._nccl.library, name)(*arguments), name, self._comm)

    def _is_ready(self) -> bool:
        """Whether NCCL has finished the latest call: joined, or enqueued."""
        state = ctypes.c_int()
        self._call("ncclCommGetAsyncError", self._comm, ctypes.byref(state))
        self._nccl.check(state.value, f"group '{self.group}'", self._comm)
        return state.value == SUCCESS

    def _wait(self, what: str, is_done: Callable[[], bool], deadline: float, is_called_off: Callable[[], bool]) -> None:
        while not is_done():
            if self._is_closing or is_called_off():
                if is_done():
                    return  # the group was closed while this thread waited for a core
                raise PitstopError("aborted", f"group '{self.group}': cancelled while waiting for {what}")
            if time.monotonic() >= deadline:
                raise PitstopError("deadline_exceeded", f"group '{self.group}': timed out waiting for {what}")
            time.sleep(LOOK_S)

    def _until(self, is_done: Callable[[], bool], deadline: float) -> None:
        while not is_done():
            if time.monotonic() >= deadline:
                raise PitstopError("deadline_exceeded", f"group '{self.group}' did not end in time")
            time.sleep(LOOK_S)

    def __enter__(self) -> NcclBroadcast:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()
