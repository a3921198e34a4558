"""A trainer on the GPU in software: a process of its own with a model's tensors in device memory,
which it shares as PyTorch does, by CUDA IPC handles in pickles. Commands are lines of JSON on its
input, answers lines on its output.

torch's work is done by hand, so that neither torch nor a GPU is needed: the tuple of reduce_tensor,
the file of reference counters, the event. Source: torch/multiprocessing/reductions.py;
torch/csrc/StorageSharing.cpp."""

import base64
import ctypes
import json
import os
import pathlib
import pickle
import struct
import subprocess
import sys
import types

HANDLE_BYTES = 64
ALIGNMENT = 256
COUNTERS = 10_000
HEADER_BYTES = 64
TO_DEVICE = 1
INTERPROCESS = 0x04 | 0x02  # an event for other processes, without timing
# A chunk of PyTorch's pool of small tensors, and the kinds of handles that its headers name from version 3 on.
CHUNK_BYTES = 2 << 20
POSIX_FD, FABRIC = 1, 2
READ_WRITE = 3
FABRIC_HANDLE_BYTES = 64


class Sender:
    """Controls the trainer process from the test."""

    def __init__(self, build, model):
        library = next(pathlib.Path(build).rglob("libpitstop_emulated_cuda.so"))
        self.process = subprocess.Popen(
            [sys.executable, __file__, library, model],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, do, **fields):
        self.tell(do, **fields)
        return self.answer()

    def tell(self, do, **fields):
        self.process.stdin.write(json.dumps({"do": do, **fields}) + "\n")
        self.process.stdin.flush()

    def answer(self):
        line = self.process.stdout.readline()
        assert line, "the sender has ended"
        return json.loads(line)

    def payload(self, **fields):
        return base64.b64decode(self.ask("share", **fields)["payload"])

    def kill(self):
        self.process.kill()
        self.process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()
        self.process.stdin.close()
        self.process.stdout.close()


# ---- the child ----


def torch_names():
    """Classes and functions that pickle like torch's and SGLang's."""

    def module(name):
        return sys.modules.setdefault(name, types.ModuleType(name))

    def put(name, thing, attribute):
        thing.__module__ = name
        setattr(module(name), attribute, thing)
        return thing

    class Size(tuple):
        def __reduce__(self):
            return Size, (tuple(self),)

    class Dtype:
        def __reduce__(self):
            return self.name

    def rebuild_cuda_tensor(*_):
        raise AssertionError("never called")

    class Named(type):
        pass

    names = types.SimpleNamespace()
    for class_module, name in (("torch", "Tensor"), ("torch.storage", "TypedStorage")):
        made = Named(name, (), {})
        setattr(names, name, put(class_module, made, name))
    Size.__qualname__ = "Size"
    names.Size = put("torch", Size, "Size")
    for name in ("bfloat16", "uint8"):
        dtype = Dtype()
        dtype.name = name
        setattr(names, name, put("torch", dtype, name))
    rebuild_cuda_tensor.__qualname__ = "rebuild_cuda_tensor"
    module("torch.multiprocessing")
    names.rebuild = put("torch.multiprocessing.reductions", rebuild_cuda_tensor, "rebuild_cuda_tensor")

    class FlattenedTensorMetadata:
        def __init__(self, **fields):
            self.__dict__.update(fields)

    FlattenedTensorMetadata.__qualname__ = "FlattenedTensorMetadata"
    for parent in ("sglang", "sglang.srt", "sglang.srt.weight_sync"):
        module(parent)
    names.Metadata = put("sglang.srt.weight_sync.tensor_bucket", FlattenedTensorMetadata, "FlattenedTensorMetadata")
    return names


class Cuda:
    def __init__(self, library):
        self.library = ctypes.CDLL(library)
        self.taken = []

    def call(self, name, *arguments):
        error = getattr(self.library, name)(*arguments)
        if error != 0:
            raise RuntimeError(f"{name}: {error}")

    def allocate(self, data):
        pointer = ctypes.c_void_p()
        self.call("cudaMalloc", ctypes.byref(pointer), ctypes.c_size_t(len(data)))
        self.call("cudaMemcpy", pointer, data, ctypes.c_size_t(len(data)), TO_DEVICE)
        return pointer

    def allocate_segment(self, data):
        """An expandable segment: chunks that are mapped one after another, and a descriptor of each."""

        class Properties(ctypes.Structure):  # CUmemAllocationProp, the part that the GPU in software has
            _fields_ = [(name, ctypes.c_int) for name in ("type", "handle_types", "location_type", "location")]

        num = -(-len(data) // CHUNK_BYTES)
        size, address = ctypes.c_size_t(num * CHUNK_BYTES), ctypes.c_ulonglong()
        self.call(
            "cuMemAddressReserve",
            ctypes.byref(address),
            size,
            ctypes.c_size_t(0),
            ctypes.c_ulonglong(0),
            ctypes.c_ulonglong(0),
        )
        properties, fds = Properties(1, POSIX_FD, 1, 0), []
        for i in range(num):
            handle, fd, none = ctypes.c_ulonglong(), ctypes.c_int(), ctypes.c_ulonglong(0)
            self.call("cuMemCreate", ctypes.byref(handle), ctypes.c_size_t(CHUNK_BYTES), ctypes.byref(properties), none)
            place = ctypes.c_ulonglong(address.value + i * CHUNK_BYTES)
            self.call("cuMemMap", place, ctypes.c_size_t(CHUNK_BYTES), ctypes.c_size_t(0), handle, none)
            self.call("cuMemExportToShareableHandle", ctypes.byref(fd), handle, POSIX_FD, none)
            fds.append(fd.value)
        access = (ctypes.c_int * 3)(1, 0, READ_WRITE)
        self.call("cuMemSetAccess", address, size, access, ctypes.c_size_t(1))
        pointer = ctypes.c_void_p(address.value)
        self.call("cudaMemcpy", pointer, data, ctypes.c_size_t(len(data)), TO_DEVICE)
        return pointer, fds

    def take_all(self, piece=1 << 20):
        num_before = len(self.taken)
        while True:
            pointer = ctypes.c_void_p()
            if self.library.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(piece)) != 0:
                return (len(self.taken) - num_before) * piece
            self.taken.append(pointer)

    def give_all(self):
        while self.taken:
            self.call("cudaFree", self.taken.pop())

    def handle(self, pointer):
        handle = ctypes.create_string_buffer(HANDLE_BYTES)
        self.call("cudaIpcGetMemHandle", handle, pointer)
        return handle.raw

    def event(self):
        event = ctypes.c_void_p()
        self.call("cudaEventCreateWithFlags", ctypes.byref(event), INTERPROCESS)
        self.call("cudaEventRecord", event, None)
        handle = ctypes.create_string_buffer(HANDLE_BYTES)
        self.call("cudaIpcGetEventHandle", handle, event)
        return handle.raw


class Shared:
    """A model in one allocation on the GPU, with tensors at multiples of 256 bytes."""

    def __init__(self, library, model):
        self.cuda = Cuda(library)
        self.names = torch_names()
        data = (pathlib.Path(model) / "model.safetensors").read_bytes()
        (length,) = struct.unpack("<Q", data[:8])
        header = json.loads(data[8 : 8 + length])
        header.pop("__metadata__", None)
        self.places, packed = {}, bytearray()
        for name, entry in header.items():
            begin, end = (8 + length + at for at in entry["data_offsets"])
            self.places[name] = (len(packed), end - begin, entry["shape"])
            packed += data[begin:end]
            packed += bytes(-len(packed) % ALIGNMENT)
        self.num_bytes = len(packed)
        self.pointer = self.cuda.allocate(bytes(packed))
        self.handle = b"\x02c" + self.cuda.handle(self.pointer)
        self.packed, self.fds = bytes(packed), None
        self.event = self.cuda.event()
        self.counter = f"/torch_{os.getpid()}_4242_0"
        self.counters = pathlib.Path("/dev/shm" + self.counter)
        self.counters.write_bytes(bytes(HEADER_BYTES + 8 * COUNTERS))
        self.num_lent = 0

    def expand(self, version=3, pid=None, chunk_bytes=CHUNK_BYTES, kind=POSIX_FD, only=None):
        """Moves the model to an expandable segment; returns its handle. Source:
        c10/cuda/CUDACachingAllocator.cpp, ExpandableSegment::share; `only`: this many chunks of
        it.
        """
        if self.fds is None:
            self.pointer, self.fds = self.cuda.allocate_segment(self.packed)
            self.event = self.cuda.event()  # recorded after the bytes are written
        fds = self.fds[:only]
        header = struct.pack("<i4xQQ", os.getpid() if pid is None else pid, chunk_bytes, len(fds))
        if version > 2:
            header += struct.pack("<i4x", kind)
        handles = [struct.pack("<i", fd) if kind == POSIX_FD else bytes(FABRIC_HANDLE_BYTES) for fd in fds]
        self.handle = bytes([version]) + b"e" + header + b"".join(handles)

    def lend(self):
        """Makes a new reference counter of 1. Returns its index."""
        index, self.num_lent = self.num_lent, self.num_lent + 1
        with open(self.counters, "r+b") as file:
            file.seek(HEADER_BYTES + 8 * index)
            file.write(struct.pack("<q", 1))
        return index

    def references(self):
        data = self.counters.read_bytes()[HEADER_BYTES:]
        return list(struct.unpack_from(f"<{self.num_lent}q", data))

    def arguments(self, offset, num_bytes, shape=None, device=0, **lie):
        """The arguments of rebuild_cuda_tensor: with a shape a bfloat16 tensor, without one a flat uint8 tensor."""
        names = self.names
        extents = tuple(shape) if shape is not None else (num_bytes,)
        stride, strides = 1, []
        for extent in reversed(extents):
            strides.insert(0, stride)
            stride *= extent
        strides = lie.get("strides", strides)
        dtype = names.bfloat16 if shape is not None else names.uint8
        return (
            names.Tensor,
            names.Size(extents),
            tuple(strides),
            0,
            names.TypedStorage,
            dtype,
            device,
            lie.get("handle", self.handle),
            lie.get("storage_bytes", num_bytes),
            offset,
            False,
            self.counter.encode(),
            self.lend(),
            lie.get("event", self.event),
            True,
        )

    def tensor(self, *arguments, **fields):
        made, names = self.arguments(*arguments, **fields), self.names

        class Reduced:
            def __reduce__(self):
                return names.rebuild, made

        return Reduced()

    def transpose(self, name):
        """Stores the matrix transposed; a transposed view of that memory is the same matrix."""
        at, size, (rows, columns) = self.places[name]
        elements = memoryview(self.packed[at : at + size]).cast("H")
        turned = b"".join(elements[column::columns].tobytes() for column in range(columns))
        self.packed = self.packed[:at] + turned + self.packed[at + size :]
        self.pointer, self.fds = self.cuda.allocate(self.packed), None
        self.handle = b"\x02c" + self.cuda.handle(self.pointer)
        self.event = self.cuda.event()
        return [1, rows]

    def share(self, only=None, flattened=False, device=0, about=None, **lie):
        """`lie` falsifies handles: that of the tensor `about`, or all of them."""
        if "handle" in lie:
            lie["handle"] = b"\x02c" + bytes.fromhex(lie["handle"])
        places = {n: p for n, p in self.places.items() if only is None or n in only}
        if not flattened:
            tensors = [
                (n, self.tensor(at, size, shape, device, **(lie if about in (None, n) else {})))
                for n, (at, size, shape) in places.items()
            ]
            return pickle.dumps(tensors, protocol=4)
        metadata = [
            self.names.Metadata(
                name=n,
                shape=self.names.Size(shape),
                dtype=self.names.bfloat16,
                start_idx=at,
                end_idx=at + size,
                numel=size // 2,
            )
            for n, (at, size, shape) in places.items()
        ]
        bucket = {"flattened_tensor": self.tensor(0, self.num_bytes, None, device, **lie), "metadata": metadata}
        return pickle.dumps(bucket, protocol=4)

    def tensors(self):
        return [{"name": n, "dtype": "BF16", "shape": shape} for n, (_, _, shape) in self.places.items()]

    def handles_by_device(self, uuid):
        """vLLM's payload: for each tensor, the result of reduce_tensor by its device."""
        handles = [
            {uuid: (self.names.rebuild, self.arguments(at, size, shape))} for at, size, shape in self.places.values()
        ]
        return pickle.dumps(handles, protocol=4)

    def serve(self, endpoint, num_buckets=3, die_before=None, **lie):
        """checkpoint-engine's conversation over one update; returns the worker's answers."""
        import zmq

        socket = zmq.Context().socket(zmq.REQ)
        socket.bind(endpoint)
        print(json.dumps({"bound": True}), flush=True)
        items = list(self.places.items())
        buckets = [items[i::num_buckets] for i in range(num_buckets)]
        first = (self.names.rebuild, self.arguments(0, self.num_bytes, None, **lie))
        lists = [
            [
                {"name": n, "dtype": self.names.bfloat16, "shape": self.names.Size(shape), "offset": at}
                for n, (at, _, shape) in bucket
            ]
            for bucket in buckets
        ]
        answers = []
        for number, message in enumerate([first, *lists, None, None]):
            if number == die_before:
                os._exit(9)
            socket.send(pickle.dumps(message, protocol=4))
            answers.append(socket.recv().decode())
        socket.close()
        return answers


def main():
    shared = Shared(*sys.argv[1:])
    for line in sys.stdin:
        command = json.loads(line)
        do = command.pop("do")
        if do == "share":
            answer = {"payload": base64.b64encode(shared.share(**command)).decode()}
        elif do == "tensors":
            answer = {"tensors": shared.tensors()}
        elif do == "handles_by_device":
            answer = {"payload": base64.b64encode(shared.handles_by_device(**command)).decode()}
        elif do == "serve":
            answer = {"answers": shared.serve(**command)}
        elif do == "take":  # allocates the free memory of the GPU
            answer = {"bytes": shared.cuda.take_all(**command)}
        elif do == "give":  # frees that memory
            shared.cuda.give_all()
            answer = {}
        elif do == "transpose":
            answer = {"strides": shared.transpose(**command)}
        elif do == "expand":
            shared.expand(**command)
            answer = {"chunks": len(shared.fds)}
        elif do == "close":  # closes the descriptors; memory that others map remains
            for fd in shared.fds:
                os.close(fd)
            answer = {}
        elif do == "free":
            shared.cuda.call("cudaFree", shared.pointer)
            answer = {}
        else:
            answer = {"references": shared.references()}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
