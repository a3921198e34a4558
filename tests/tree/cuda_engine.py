"""A trainer with pitstop.Engine whose tensors are in the memory of a GPU in software, in a process of its own. Commands
are lines of JSON on its input, answers lines on its output.

There is no PyTorch with CUDA here: the module `torch` below replaces the parts of it that the
engine uses. Its tensors' memory and copies are on the GPU in software; the client asks that GPU's
driver for handles.
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
SEGMENT_BYTES = 2 << 20


class Trainer:
    """Controls the trainer process from the test. `uuids`: of the GPUs that the trainer sees, in order."""

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


class Tensor:
    """A contiguous tensor in a GPU's memory."""

    is_cuda = True
    num_to_host = 0
    num_copied = 0

    def __init__(self, gpus, index, address, shape, dtype):
        self._gpus, self._index, self._address = gpus, index, address
        self.shape, self.dtype = tuple(shape), dtype

    def detach(self):
        return self

    contiguous = detach

    def numel(self):
        return int(numpy.prod(self.shape, dtype=numpy.int64))

    def element_size(self):
        return self.dtype.size

    def data_ptr(self):
        return self._address

    def get_device(self):
        return self._index

    def data(self):
        return self._gpus.read(self._address, self.numel() * self.dtype.size)

    def reshape(self, extent):
        assert extent == -1
        return Tensor(self._gpus, self._index, self._address, [self.numel()], self.dtype)

    def narrow(self, dim, start, length):
        assert dim == 0 and len(self.shape) == 1 and start + length <= self.shape[0]
        return Tensor(self._gpus, self._index, self._address + start * self.dtype.size, [length], self.dtype)

    def view(self, dtype):
        size = self.numel() * self.dtype.size
        assert len(self.shape) == 1 and size % dtype.size == 0
        return Tensor(self._gpus, self._index, self._address, [size // dtype.size], dtype)

    def copy_(self, other):
        assert self.shape == other.shape and self.dtype is other.dtype
        Tensor.num_copied += 1
        self._gpus.write(self._index, self._address, other.data())

    def cpu(self):
        Tensor.num_to_host += 1
        return HostTensor(numpy.frombuffer(self.data(), dtype=numpy.uint16).reshape(self.shape), self.dtype)


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
    """All GPUs, and tensors in them."""

    def __init__(self, library):
        from cuda_sender import Cuda

        self._cuda = Cuda(library)

    def synchronize(self, index):
        """Waits for the GPU's work: a copy from pageable memory returns once it is staged, before another process can
        read the bytes.
        """
        self._cuda.call("cudaSetDevice", index)
        self._cuda.call("cudaDeviceSynchronize")

    def read(self, address, num_bytes):
        import ctypes

        data = ctypes.create_string_buffer(num_bytes)
        self._cuda.call("cudaMemcpy", data, ctypes.c_void_p(address), ctypes.c_size_t(num_bytes), TO_HOST)
        return data.raw

    def write(self, index, address, data):
        """Writes in a stream of GPU `index`, as PyTorch copies between GPUs: synchronizing that GPU waits for the write."""
        import ctypes

        self._cuda.call("cudaSetDevice", index)
        self._cuda.call("cudaMemcpy", ctypes.c_void_p(address), data, ctypes.c_size_t(len(data)), TO_DEVICE)

    def empty(self, size, dtype, device):
        index = int(device.removeprefix("cuda:"))
        self._cuda.call("cudaSetDevice", index)
        pointer = self._cuda.allocate(bytes(size * dtype.size))
        return Tensor(self, index, pointer.value, [size], dtype)

    def tensors(self, data, shapes, dtype, index=0, memory="plain"):
        """Makes all tensors in one allocation of PyTorch's least size, or in an expandable segment."""
        self._cuda.call("cudaSetDevice", index)
        packed, places = bytearray(), {}
        for name, each in data.items():
            places[name] = len(packed)
            packed += each + bytes(-len(each) % ALIGNMENT)
        packed += bytes(-len(packed) % SEGMENT_BYTES)
        if memory == "plain":
            pointer = self._cuda.allocate(bytes(packed))
        else:
            pointer, _ = self._cuda.allocate_segment(bytes(packed))
        return {name: Tensor(self, index, pointer.value + at, shapes[name], dtype) for name, at in places.items()}


def make_torch(uuids, gpus):
    torch = types.ModuleType("torch")
    for kind in (Tensor, HostTensor):
        kind.__module__ = "torch"
    torch.bfloat16, torch.float32 = Dtype("bfloat16", 2), Dtype("float32", 4)
    torch.int16, torch.int64, torch.uint8 = Dtype("int16", 2), Dtype("int64", 8), Dtype("uint8", 1)
    torch.empty = gpus.empty
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
    from pitstop import cuda_driver, cuda_tensors
    from push_once import load

    cuda_driver.LIBRARY = str(library)
    allocation_of = cuda_driver.allocation_of
    arrays = load(model)

    def tensors_of(dtype, memory):
        shapes = {name: array.shape for name, array in arrays.items()}
        wide = {name: (array.astype(numpy.uint32) << 16).tobytes() for name, array in arrays.items()}
        plain = {name: array.tobytes() for name, array in arrays.items()}
        return gpus.tensors(wide if dtype is torch.float32 else plain, shapes, dtype, memory=memory)

    def in_calls(engine, tensors):
        """Sends the tensors to a paused tree in three calls. One of them has a tensor in the host's memory."""
        engine.pause()
        first, second, *others = tensors.items()
        name = first[0]
        assert not engine.update_weights_from_tensor({name: arrays[name]}).is_in_effect
        assert not engine.update_weights_from_tensor([second]).is_in_effect
        engine.update_weights_from_tensor(others)
        engine.resume()
        return engine.weight_digests()

    with pitstop.Engine(run_dir=run_dir) as engine:
        for line in sys.stdin:
            command = json.loads(line)
            tensors = tensors_of(getattr(torch, command.get("dtype", "bfloat16")), command.get("memory", "plain"))
            lie = bytes.fromhex(command.get("lie", ""))
            cuda_tensors.BUCKET_BYTES = command.get("bucket_bytes", 256 << 20)
            cuda_driver.allocation_of = (
                allocation_of if not lie else lambda *place: cuda_driver.Allocation(lie, allocation_of(*place).begin)
            )
            Tensor.num_to_host = Tensor.num_copied = 0
            try:
                if command["do"] == "update":
                    update = engine.update_weights(tensors, label="lent", digests=False)
                elif command["do"] == "load_adapter":
                    update = engine.load_adapter(command["name"], tensors, json.loads(command["config"]))
                else:
                    update = in_calls(engine, tensors)
                answer = {"digest": update.digest}
            except pitstop.PitstopError as error:
                answer = {"code": error.code, "message": str(error)}
            answer.update(num_to_host=Tensor.num_to_host, num_copied=Tensor.num_copied, num_tensors=len(arrays))
            print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
