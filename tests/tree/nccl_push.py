"""A trainer that broadcasts a model to a tree by pitstop.nccl_broadcast, in a process of its own on
a given GPU. Its order is one line of JSON, and so is its answer.

Neither torch nor a GPU is needed: CUDA's runtime and NCCL are the emulated libraries, under the
names of the real ones.
"""

import json
import os
import pathlib
import struct
import subprocess
import sys
import threading

import numpy

CLIENT = pathlib.Path(__file__).resolve().parents[2] / "client" / "python"


def libraries(build, place):
    """The environment variables with which a program finds the emulated libraries."""
    for name, library in (("libcudart.so.13", "libpitstop_emulated_cuda.so"), ("libnccl.so.2", "libnccl.so.2")):
        if not (place / name).exists():
            (place / name).symlink_to(next(pathlib.Path(build).rglob(library)))
    return {"LD_LIBRARY_PATH": str(place)}


def push(build, place, **order):
    """Runs the trainer process for one order. Returns its answers."""
    there = libraries(build, place) if build else {"CUDA_VISIBLE_DEVICES": ""}
    environment = {**os.environ, "PYTHONPATH": str(CLIENT), **there}
    done = subprocess.run(
        [sys.executable, __file__],
        env=environment,
        input=json.dumps(order),
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


# ---- the child ----


class OnGpu:
    """A copy of an array on a GPU, as CuPy would present it."""

    def __init__(self, cuda, device, array):
        cuda.enter(device)
        self.pointer = cuda.allocate(array.nbytes)
        cuda.copy(self.pointer, array.ctypes.data, array.nbytes)
        self.__cuda_array_interface__ = {
            "shape": array.shape,
            "typestr": array.dtype.str,
            "data": (self.pointer, False),
            "strides": None,
            "version": 3,
        }


def tensors_of(model):
    data = (pathlib.Path(model) / "model.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    return {
        name: numpy.frombuffer(data, numpy.uint16, (end - begin) // 2, 8 + length + begin).reshape(entry["shape"])
        for name, entry in header.items()
        for begin, end in [entry["data_offsets"]]
    }


def in_thread(call, **arguments):
    said = {}
    thread = threading.Thread(target=lambda: said.update(call(**arguments)))
    thread.start()
    return thread, said


def run(run_dir, model, device, num_workers, bucket_bytes, on_gpu=False, times=1, join_s=60.0):
    import pitstop
    from pitstop.arrays import weights_of
    from pitstop.cuda_runtime import cuda_runtime
    from pitstop.nccl_broadcast import NcclBroadcast
    from pitstop.push import manifest_of

    arrays = tensors_of(model)
    with NcclBroadcast("w", num_workers, device, bucket_bytes) as group, pitstop.Client(run_dir) as client:
        given = {name: OnGpu(cuda_runtime(), device, array) for name, array in arrays.items()} if on_gpu else arrays
        weights = weights_of(given)
        joining, _ = in_thread(client.init_group, timeout=join_s, **group.spec())
        group.accept(join_s)
        joining.join()
        for _ in range(times):
            spec = {"source": group.source(weights), "manifest": manifest_of(weights)}
            updating, reply = in_thread(client.update_weights, **spec)
            group.send(weights)
            updating.join()
        leaving, _ = in_thread(client.destroy_group, group="w")
        group.close()
        leaving.join()
        return {"digest": reply["digest"], "broadcasts": group.num_broadcasts, "bytes": group.num_bytes}


def main():
    from pitstop import PitstopError

    try:
        said = run(**json.load(sys.stdin))
    except PitstopError as error:
        said = {"code": error.code, "message": error.message}
    print(json.dumps(said))


if __name__ == "__main__":
    main()
