"""A trainer on the worker's GPU: pitstop_gpu_sender has the tensors there, and this module lends
them as pitstop's client lends PyTorch's.

PyTorch is not needed: a module `torch` replaces the part of it that the client uses
(client/python/pitstop/cuda_tensors.py).
"""

import contextlib
import json
import math
import queue
import subprocess
import sys
import types
from unittest import mock

import programs
from timed_call import lines_of, next_line, start, stop

ANSWER_S = 120.0
DTYPES = {"BF16": ("torch.bfloat16", 2), "F16": ("torch.float16", 2), "F32": ("torch.float32", 4)}


class NoSender(Exception):
    """The sender does not exist, or has answered with an error; the text has the reason."""


class Sender:
    """with Sender(environment, gpu) as sender: sender.ask("load", dir=...)"""

    def __init__(self, environment, gpu=0):
        self._environment = environment
        self._gpu = gpu
        self._process = None
        self._lines = None
        self.device_uuid = None

    def __enter__(self):
        command = [programs.program("gpu_sender"), f"--gpu={self._gpu}"]
        self._process = start(command, self._environment, stderr=subprocess.STDOUT, stdin=subprocess.PIPE)
        self._lines = lines_of(self._process)
        try:
            self.device_uuid = self._answer()["device_uuid"]
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        stop(self._process)

    def ask(self, do, **fields):
        """Returns the sender's answer. NoSender: the error that the sender named, or its last output."""
        try:
            self._process.stdin.write(json.dumps({"do": do, **fields}) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # the sender's last line has the reason
        return self._answer()

    def _answer(self):
        try:
            line = next_line(self._lines, ANSWER_S)
        except queue.Empty:
            raise NoSender(f"no answer within {ANSWER_S:.0f} s") from None
        try:
            answer = json.loads(line or "")
        except ValueError:
            raise NoSender((line or "it ended without a word").strip()) from None
        if "error" in answer:
            raise NoSender(answer["error"])
        return answer


class Tensor:
    """A contiguous tensor in the sender's memory on the GPU. Its address is an offset in the
    sender's allocation.
    """

    def __init__(self, dtype, shape, offset):
        self._offset, self.shape = offset, tuple(shape)
        self.dtype, self._size = DTYPES[dtype]

    def detach(self):
        return self

    contiguous = detach

    def numel(self):
        return math.prod(self.shape)

    def element_size(self):
        return self._size

    def data_ptr(self):
        return self._offset

    def get_device(self):
        return 0


def torch_of(device_uuid):
    """The module `torch`: one GPU, whose work counts as done at any time."""
    torch = types.ModuleType("torch")
    properties = types.SimpleNamespace(uuid=device_uuid.removeprefix("GPU-"))
    torch.cuda = types.SimpleNamespace(
        device_count=lambda: 1, get_device_properties=lambda _: properties, synchronize=lambda _: None
    )
    return torch


def push_lent(client, loaded, device_uuid):
    """Returns the commit's reply to a push of all tensors that the sender has loaded. PitstopError:
    the push failed.
    """
    from pitstop import cuda_driver
    from pitstop.cuda_tensors import CudaTensor
    from pitstop.push import WeightPusher

    # The memory belongs to another process: its handle is the answer of that process's driver.
    allocation = cuda_driver.Allocation(bytes.fromhex(loaded["handle"]), 0)
    tensors = {
        each["name"]: CudaTensor.of(each["name"], Tensor(each["dtype"], each["shape"], each["offset"]))
        for each in loaded["tensors"]
    }
    before = sys.modules.get("torch")
    sys.modules["torch"] = torch_of(device_uuid)
    try:
        with mock.patch.object(cuda_driver, "allocation_of", lambda address, index: allocation):
            return WeightPusher(client).push(tensors, digests=False)
    finally:
        sys.modules.pop("torch")
        if before is not None:
            sys.modules["torch"] = before
