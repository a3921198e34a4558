"""A PyTorch trainer's side of an NCCL weight group on the GPU in software: rank 0 in a process of its own, with a
TCPStore, a unique id and ncclBroadcast on the GPU that it is given. Commands are lines of JSON on its input, answers
lines on its output.

Neither torch nor a GPU is needed: the store speaks torch's bytes, NCCL and CUDA are the emulated libraries, by ctypes.
Source: torch/csrc/distributed/c10d/TCPStoreBackend.cpp, ProcessGroupNCCL.cpp (broadcastUniqueNCCLID, broadcast); vLLM,
PyNcclCommunicator (its first all-reduce)."""

import ctypes
import json
import os
import pathlib
import pickle
import socketserver
import struct
import sys
import threading
import types

from cuda_sender import Cuda, Sender

ID_BYTES = 128
UINT8, FLOAT32, BFLOAT16, INT32 = 1, 7, 9, 2
SUM = 0
BLOCKING = 0  # a stream that waits for the default stream, as cudaMemcpy needs it
VALIDATE, SET, GET, ADD, WAIT, PING = 0, 1, 3, 4, 6, 13
MAGIC = 0x3C85F7CE


class Trainer(Sender):
    """Controls the trainer process from the test."""

    def __init__(self, build, model, gpu=1):
        import subprocess

        libraries = [next(pathlib.Path(build).rglob(name)) for name in ("libpitstop_emulated_cuda.so", "libnccl.so.2")]
        self.process = subprocess.Popen(
            [sys.executable, __file__, *libraries, model, str(gpu)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.port = self.answer()["port"]


# ---- the child ----


class Id(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_byte * ID_BYTES)]


class Store(socketserver.ThreadingTCPServer):
    """torch's TCPStore, the part that a foreign member of a group uses."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Dialogue)
        self.changed = threading.Condition()
        self.values = {}
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def put(self, key, value):
        with self.changed:
            self.values[key] = value
            self.changed.notify_all()

    def wait(self, key, is_enough=lambda value: True):
        with self.changed:
            self.changed.wait_for(lambda: key in self.values and is_enough(self.values[key]))
            return self.values[key]


class Dialogue(socketserver.StreamRequestHandler):
    def number(self, format):
        (number,) = struct.unpack(format, self.rfile.read(struct.calcsize(format)))
        return number

    def text(self):
        return self.rfile.read(self.number("<Q"))

    def handle(self):
        store = self.server
        while True:
            code = self.rfile.read(1)
            if not code:
                return
            query = code[0]
            if query == VALIDATE:
                assert self.number("<I") == MAGIC
            elif query == PING:
                self.wfile.write(struct.pack("<I", self.number("<I")))
            elif query == ADD:
                key = self.text()
                with store.changed:
                    count = int(store.values.get(key, b"0")) + self.number("<q")
                    store.values[key] = str(count).encode()
                    store.changed.notify_all()
                self.wfile.write(struct.pack("<q", count))
            elif query == WAIT:
                for _ in range(self.number("<Q")):
                    store.wait(self.text())
                self.wfile.write(b"\0")
            elif query == GET:
                value = store.values[self.text()]
                self.wfile.write(struct.pack("<Q", len(value)) + value)
            else:
                raise AssertionError(f"query {query}")


def pickled(unique_id):
    """The id in the form in which vLLM's StatelessProcessGroup stores it."""
    name = "vllm.distributed.device_communicators.pynccl_wrapper"
    parts = name.split(".")
    for i in range(1, len(parts) + 1):
        sys.modules.setdefault(".".join(parts[:i]), types.ModuleType(".".join(parts[:i])))
    named = type("ncclUniqueId", (ctypes.Structure,), {"_fields_": [("internal", ctypes.c_byte * ID_BYTES)]})
    named.__module__ = name
    sys.modules[name].ncclUniqueId = named
    return pickle.dumps(named.from_buffer_copy(unique_id))


class Rank0:
    def __init__(self, cuda, nccl, model, gpu):
        self.cuda, self.nccl, self.model, self.gpu = Cuda(cuda), ctypes.CDLL(nccl), pathlib.Path(model), gpu
        self.store = Store()
        self.comm, self.stream = ctypes.c_void_p(), ctypes.c_void_p()
        self.num_broadcasts = 0
        self.enter()
        self.cuda.call("cudaStreamCreateWithPriority", ctypes.byref(self.stream), BLOCKING, 0)

    def enter(self):
        self.cuda.call("cudaSetDevice", ctypes.c_int(self.gpu))

    def call(self, name, *arguments):
        error = getattr(self.nccl, name)(*arguments)
        if error != 0:
            raise RuntimeError(f"{name}: {error}")

    def counted_in(self, world_size):
        """Waits as TCPStore's constructor does; the trainer counts as one member."""
        self.store.wait(b"init/", lambda count: int(count) >= world_size - 1)
        return {}

    def make_id(self):
        self.id = Id()
        self.call("ncclGetUniqueId", ctypes.byref(self.id))
        return {"id": bytes(self.id).hex()}

    def publish(self, group=None):
        """Publishes the id: for a group, as torch does before its first collective; without one at once, as vLLM does."""
        if group is None:
            self.store.put(b"/broadcast_from/0/0", pickled(bytes(self.id)))
        else:
            self.store.put(f"/{group}/{group}//cuda//0".encode(), bytes(self.id))
        return {}

    def join(self, world_size, warm_up=False):
        self.call("ncclCommInitRank", ctypes.byref(self.comm), ctypes.c_int(world_size), self.id, ctypes.c_int(0))
        if warm_up:
            one = self.cuda.allocate(struct.pack("<f", 1.0))
            self.call("ncclAllReduce", one, one, ctypes.c_size_t(1), FLOAT32, SUM, self.comm, self.stream)
            self.synchronize()
        return {}

    def synchronize(self):
        self.cuda.call("cudaStreamSynchronize", self.stream)

    def send(self, data, type, num):
        memory = self.cuda.allocate(data)
        self.call("ncclBroadcast", memory, memory, ctypes.c_size_t(num), type, 0, self.comm, self.stream)
        self.synchronize()
        self.cuda.call("cudaFree", memory)
        self.num_broadcasts += 1

    def tensors(self, names):
        data = (self.model / "model.safetensors").read_bytes()
        (length,) = struct.unpack("<Q", data[:8])
        header = json.loads(data[8 : 8 + length])
        for name in names:
            begin, end = (8 + length + at for at in header[name]["data_offsets"])
            yield data[begin:end]

    def broadcast(self, names, packs=None, die_before=None):
        """Sends one broadcast per tensor, or per pack: pack i ends before the tensor with number packs[i]."""
        tensors = list(self.tensors(names))
        if packs is None:
            pieces = [(tensor, BFLOAT16, len(tensor) // 2) for tensor in tensors]
        else:
            joined = [b"".join(tensors[begin:end]) for begin, end in zip([0, *packs], packs)]
            pieces = [(piece, UINT8, len(piece)) for piece in joined]
        for number, piece in enumerate(pieces):
            if number == die_before:
                os._exit(9)
            self.send(*piece)
        return {"num_broadcasts": self.num_broadcasts}

    def broadcast_bytes(self, parts):
        """Broadcasts [[hex, type], ...], with 4 or 2 bytes per element."""
        for text, type in parts:
            data = bytes.fromhex(text)
            self.send(data, type, len(data) // (4 if type == INT32 else 2))
        return {}

    def leave(self):
        self.call("ncclCommDestroy", self.comm)
        return {}

    def close_store(self):
        self.store.shutdown()
        self.store.server_close()
        return {}


def main():
    cuda, nccl, model, gpu = sys.argv[1:]
    rank = Rank0(cuda, nccl, model, int(gpu))
    print(json.dumps({"port": rank.store.server_address[1]}), flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        rank.enter()
        try:
            answer = getattr(rank, command.pop("do"))(**command)
        except RuntimeError as error:
            answer = {"error": str(error)}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
