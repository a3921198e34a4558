"""PyTorch's side of weight transfers, with real tensors, real pickles and real shared memory.

ParameterServer treats the workers of one engine as checkpoint-engine's does, on a CPU. Its buffer
is a tensor shared by torch's file_system strategy in place of CUDA IPC. Pickles, sockets, order
and errors both ways are the same. Each worker has a buffer of its own, as each GPU has.
"""

import ctypes
import json
import os
import pathlib
import pickle
import struct
import sys
import types
import unittest.mock
import uuid
from multiprocessing.reduction import ForkingPickler  # torch registers its reductions there

import zmq

try:
    import torch
except ImportError:
    torch = None
else:
    torch.multiprocessing.set_sharing_strategy("file_system")
    # The first shared tensor starts torch_shm_manager, which ends after this process. It aborts
    # ("terminate called ...", a core) if its socket under TMPDIR is gone by then, as when the
    # tests' runner removes a TMPDIR of its own (PyTorch 2.15, libshm/socket.h:128).
    with unittest.mock.patch.dict(os.environ, TMPDIR="/tmp"):
        torch.empty(1).share_memory_()

REASON = "PyTorch is not installed (Debian: python3-torch)"
DEADLINE_MS = 60_000


def load(directory):
    """The checkpoint's tensors by name, as torch's; bytes unchanged."""
    data = (pathlib.Path(directory) / "model.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        begin, end = (8 + length + offset for offset in entry["data_offsets"])
        assert entry["dtype"] == "BF16"
        flat = torch.frombuffer(bytearray(data[begin:end]), dtype=torch.uint8)
        tensors[name] = flat.view(torch.bfloat16).reshape(entry["shape"])
    return tensors


def as_bytes(tensor):
    """A flat uint8 view of a contiguous tensor."""
    return tensor.contiguous().flatten().view(torch.uint8)


def shared(tensor):
    """A tensor in shared memory, pickled with torch's own reductions, as trainers send it."""
    return bytes(ForkingPickler.dumps(tensor.share_memory_()))


def torch_segments():
    """The segments of shared memory of this process's torch."""
    return {path.name for path in pathlib.Path("/dev/shm").iterdir() if path.name.startswith(f"torch_{os.getpid()}_")}


def bucket_class():
    """FlattenedTensorMetadata, under its module's name in SGLang."""
    name = "sglang.srt.weight_sync.tensor_bucket"
    if name not in sys.modules:
        parents = name.split(".")
        for i in range(1, len(parents) + 1):
            sys.modules.setdefault(".".join(parents[:i]), types.ModuleType(".".join(parents[:i])))

        class FlattenedTensorMetadata:
            pass

        FlattenedTensorMetadata.__module__ = name
        FlattenedTensorMetadata.__qualname__ = "FlattenedTensorMetadata"
        sys.modules[name].FlattenedTensorMetadata = FlattenedTensorMetadata
    return sys.modules[name].FlattenedTensorMetadata


def flattened_bucket(tensors):
    """SGLang's FlattenedTensorBucket: bytes back to back, offsets in bytes."""
    kind = bucket_class()
    metadata, at = [], 0
    for name, tensor in tensors.items():
        size = tensor.numel() * tensor.element_size()
        entry = kind()
        entry.name, entry.shape, entry.dtype = name, tensor.shape, tensor.dtype
        entry.start_idx, entry.end_idx, entry.numel = at, at + size, size
        metadata.append(entry)
        at += size
    flat = torch.cat([as_bytes(tensor) for tensor in tensors.values()]).share_memory_()
    return bytes(ForkingPickler.dumps({"flattened_tensor": flat, "metadata": metadata})), flat


def unique_id_class():
    """ctypes' ncclUniqueId, under its module's name in vLLM."""
    name = "vllm.distributed.device_communicators.pynccl_wrapper"
    if name not in sys.modules:
        parents = name.split(".")
        for i in range(1, len(parents) + 1):
            sys.modules.setdefault(".".join(parents[:i]), types.ModuleType(".".join(parents[:i])))

        class ncclUniqueId(ctypes.Structure):
            _fields_ = [("internal", ctypes.c_byte * 128)]

        ncclUniqueId.__module__ = name
        ncclUniqueId.__qualname__ = "ncclUniqueId"
        sys.modules[name].ncclUniqueId = ncclUniqueId
    return sys.modules[name].ncclUniqueId


class Failed(Exception):
    """A worker answered with an error's text."""


class Exported:
    """A buffer per device, made and pickled once, for as many updates as its owner likes."""

    def __init__(self, devices, num_bytes):
        self.tensors = {device: torch.zeros(num_bytes, dtype=torch.uint8).share_memory_() for device in devices}
        self.pickles = {device: bytes(ForkingPickler.dumps(tensor)) for device, tensor in self.tensors.items()}


class ParameterServer:
    """Owns: the sockets and the shared buffers, unless it is given exported ones."""

    def __init__(self, devices, bucket_bytes=1 << 20, num_nones=2, exported=None, is_reduced=False):
        self.context = zmq.Context()
        self.is_reduced = is_reduced  # the handle is reduce_tensor's pair, as in checkpoint-engine
        self.exported = exported
        self.bucket_bytes = bucket_bytes
        self.num_nones = num_nones
        self.sockets, self.handles, self.buffers = {}, {}, {}
        for device in devices:
            socket = self.context.socket(zmq.REQ)
            socket.linger = 0
            socket.sndtimeo = DEADLINE_MS  # for a worker that never joins
            endpoint = f"ipc://@checkpoint-engine-{device}-{uuid.uuid4().hex}.sock"
            socket.bind(endpoint)
            self.sockets[device] = socket
            self.handles[device] = endpoint
            self.buffers[device] = (
                exported.tensors[device]
                if exported
                else torch.zeros(2 * bucket_bytes, dtype=torch.uint8).share_memory_()
            )

    def send(self, message):
        """Sends the same message to every worker."""
        for socket in self.sockets.values():
            socket.send(message)

    def answers(self):
        """Each worker's answer to the last message, by device."""
        texts = {}
        for device, socket in self.sockets.items():
            assert socket.poll(DEADLINE_MS), f"{device} does not answer"
            texts[device] = socket.recv().decode()  # strictly UTF-8, as the real one does
        return texts

    def check_answers(self):
        failed = {device: text for device, text in self.answers().items() if text}
        if failed:
            raise Failed(str(failed))

    def open(self):
        for device, socket in self.sockets.items():
            handle = (
                self.exported.pickles[device]
                if self.exported
                else bytes(ForkingPickler.dumps(self.handle(self.buffers[device])))
            )
            socket.send(handle)

    def handle(self, buffer):
        return torch.multiprocessing.reductions.reduce_tensor(buffer) if self.is_reduced else buffer

    def buckets(self, tensors):
        """Lists of (name, tensor, offset in its half); each list fits half of the buffer."""
        bucket, at = [], 0
        for name, tensor in tensors.items():
            size = (tensor.numel() * tensor.element_size() + 255) // 256 * 256
            assert size <= self.bucket_bytes
            if at + size > self.bucket_bytes:
                yield bucket
                bucket, at = [], 0
            bucket.append((name, tensor, at))
            at += size
        yield bucket

    def fill(self, bucket, half):
        """Copies a bucket into its half of every buffer; returns its description."""
        metadata = []
        for name, tensor, at in bucket:
            offset = half * self.bucket_bytes + at
            flat = as_bytes(tensor)
            for buffer in self.buffers.values():
                buffer[offset : offset + len(flat)] = flat
            metadata.append({"name": name, "dtype": tensor.dtype, "shape": tensor.shape, "offset": offset})
        return metadata

    def update(self, tensors, tamper=lambda index, metadata: metadata):
        """Sends all tensors. Raises Failed after telling every worker, as the real one does."""
        self.open()
        for index, bucket in enumerate(self.buckets(tensors)):
            metadata = tamper(index, self.fill(bucket, index % 2))
            try:
                self.check_answers()
            except Failed:
                self.send(pickle.dumps(RuntimeError("Some workers failed to update weights")))
                raise
            self.send(pickle.dumps(metadata))
        self.answers()  # the answers about the last bucket: received and ignored, as by the real one
        for _ in range(self.num_nones):
            self.send(pickle.dumps(None))
            self.answers()
        self.close()

    def close(self):
        self.buffers.clear()
        self.context.destroy(linger=0)
