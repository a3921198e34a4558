"""A trainer with pitstop.Engine whose tensors are in the memory of a GPU in software, in a process of its own. Commands
are lines of JSON on its input, answers lines on its output.

There is no PyTorch with CUDA here: what stands in for it is the module `torch` below, as far as the engine looks at it.
Its tensors' memory, copies and IPC handles are the GPU in software's; its reference counters are a list.
Source: torch/storage.py; torch/multiprocessing/reductions.py.
"""

import json
import pathlib
import subprocess
import sys
import types

import numpy

TESTS = pathlib.Path(__file__).resolve().parents[1]
ROOT = TESTS.parent
TO_HOST, TO_DEVICE = 2, 1
ALIGNMENT = 256


class Trainer:
    """The parent's end. `uuids`: of the GPUs that it sees, in their order."""

    def __init__(self, build, run_dir, model, uuids):
        library = next(pathlib.Path(build).rglob("libpitstop_emulated_cuda.so"))
        command = [sys.executable, __file__, library, run_dir, model, json.dumps(uuids)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, do, **fields):
        self._process.stdin.write(json.dumps({"do": do, **fields}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "the trainer has ended"
        return json.loads(line)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()


# ---- the child ----


class Dtype:
    def __init__(self, name, size):
        self.name, self.size = name, size

    def __str__(self):
        return f"torch.{self.name}"


class UntypedStorage:
    """A piece of an allocation, as PyTorch's allocator cuts them."""

    references = []  # of each handle that was given out: 1 until it is given back
    kind = b"\x02c"  # of a handle; expandable segments' is another
    lie = b""  # in place of the handle

    def __init__(self, gpu, index, base, offset, num_bytes):
        self.gpu, self.index, self.base, self.offset, self.num_bytes = gpu, index, base, offset, num_bytes

    def data_ptr(self):
        return self.base.value + self.offset

    def _share_cuda_(self):
        self.references.append(1)
        counter = len(self.references) - 1
        handle = self.kind + (self.lie or self.gpu.handle(self.base))
        return self.index, handle, self.num_bytes, self.offset, b"/torch_counters", counter, b"", True

    @classmethod
    def _release_ipc_counter(cls, counter_handle, counter, *, device):
        assert counter_handle == b"/torch_counters"
        cls.references[counter] -= 1


class Tensor:
    """Contiguous, in a GPU's memory."""

    is_cuda = True
    num_to_host = 0
    num_copied = 0

    def __init__(self, storage, at, shape, dtype):
        self._storage, self._at, self.shape, self.dtype = storage, at, tuple(shape), dtype

    def detach(self):
        return self

    contiguous = detach

    def numel(self):
        return int(numpy.prod(self.shape, dtype=numpy.int64))

    def element_size(self):
        return self.dtype.size

    def untyped_storage(self):
        return self._storage

    def storage_offset(self):
        return self._at // self.dtype.size

    def _data(self):
        size = self.numel() * self.dtype.size
        return self._storage.gpu.read(self._storage.data_ptr() + self._at, size)

    def to(self, device):
        index = int(device.removeprefix("cuda:"))
        if index == self._storage.index:
            return self
        Tensor.num_copied += 1
        return self._storage.gpu.tensors({"": self._data()}, {"": self.shape}, self.dtype, index)[""]

    def cpu(self):
        Tensor.num_to_host += 1
        return HostTensor(numpy.frombuffer(self._data(), dtype=numpy.uint16).reshape(self.shape), self.dtype)


class HostTensor:
    def __init__(self, array, dtype):
        self._array, self.dtype = array, dtype

    def contiguous(self):
        return self

    def view(self, dtype):
        return HostTensor(self._array.view(numpy.int16), dtype)

    def numpy(self):
        return self._array


class Gpus:
    """All of them, and tensors in them."""

    def __init__(self, library):
        from cuda_sender import Cuda

        self._cuda = Cuda(library)
        self.handle = self._cuda.handle

    def synchronize(self, index):
        """A copy from pageable memory returns once it is staged: what another process reads is there only after this."""
        self._cuda.call("cudaSetDevice", index)
        self._cuda.call("cudaDeviceSynchronize")

    def read(self, address, num_bytes):
        import ctypes

        data = ctypes.create_string_buffer(num_bytes)
        self._cuda.call("cudaMemcpy", data, ctypes.c_void_p(address), ctypes.c_size_t(num_bytes), TO_HOST)
        return data.raw

    def tensors(self, data, shapes, dtype, index=0, per_storage=4):
        """One allocation: storages in it, and some tensors to a storage."""
        self._cuda.call("cudaSetDevice", index)
        packed, places = bytearray(), {}
        for name, each in data.items():
            places[name] = len(packed)
            packed += each + bytes(-len(each) % ALIGNMENT)
        base = self._cuda.allocate(bytes(packed))
        tensors, storage = {}, None
        for number, (name, at) in enumerate(places.items()):
            if number % per_storage == 0:
                storage = UntypedStorage(self, index, base, at, len(packed) - at)
            tensors[name] = Tensor(storage, at - storage.offset, shapes[name], dtype)
        return tensors


def make_torch(uuids, gpus):
    torch = types.ModuleType("torch")
    for kind in (Tensor, HostTensor, UntypedStorage):
        kind.__module__ = "torch"
    torch.bfloat16, torch.float32 = Dtype("bfloat16", 2), Dtype("float32", 4)
    torch.int16, torch.int64 = Dtype("int16", 2), Dtype("int64", 8)
    torch.cuda = types.SimpleNamespace(
        device_count=lambda: len(uuids),
        get_device_properties=lambda index: types.SimpleNamespace(uuid=uuids[index].removeprefix("GPU-")),
        synchronize=gpus.synchronize,
    )
    sys.modules["torch"] = torch
    return torch


def main(library, run_dir, model, uuids):
    sys.path[:0] = [str(ROOT / "client" / "python"), str(TESTS / "tree")]
    gpus = Gpus(library)
    torch = make_torch(json.loads(uuids), gpus)
    import pitstop
    from push_once import load

    arrays = load(model)

    def tensors_of(dtype):
        shapes = {name: array.shape for name, array in arrays.items()}
        wide = {name: (array.astype(numpy.uint32) << 16).tobytes() for name, array in arrays.items()}
        plain = {name: array.tobytes() for name, array in arrays.items()}
        return gpus.tensors(wide if dtype is torch.float32 else plain, shapes, dtype)

    with pitstop.Engine(run_dir=run_dir) as engine:
        for line in sys.stdin:
            command = json.loads(line)
            tensors = tensors_of(getattr(torch, command.get("dtype", "bfloat16")))
            UntypedStorage.kind = bytes.fromhex(command.get("kind", "0263"))
            UntypedStorage.lie = bytes.fromhex(command.get("lie", ""))
            Tensor.num_to_host = Tensor.num_copied = 0
            UntypedStorage.references.clear()
            try:
                if command["do"] == "update":
                    update = engine.update_weights(tensors, label="lent", digests=False)
                else:  # in two calls of a paused tree, one of them in the host's memory
                    engine.pause()
                    first, *others = tensors.items()
                    name = first[0]
                    assert not engine.update_weights_from_tensor({name: arrays[name]}).is_in_effect
                    engine.update_weights_from_tensor(others)
                    engine.resume()
                    update = engine.weight_digests()
                answer = {"digest": update.digest}
            except pitstop.PitstopError as error:
                answer = {"code": error.code, "message": str(error)}
            answer.update(references=UntypedStorage.references, num_to_host=Tensor.num_to_host)
            answer.update(num_copied=Tensor.num_copied, num_tensors=len(arrays))
            print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
