"""Replaces the parts of a trainer's NCCL group that need a GPU: ProcessGroupNCCL and
PyNcclCommunicator take the same steps with the emulated NCCL (tests/tree/nccl_trainer.py). All
other code is PyTorch's own, or single functions from files of other packages, which are not imported
whole.
"""

import __future__

import ast
import dataclasses
import os
import pathlib
import pickle
import socket
import sys
import time
import types
import typing
from collections import deque

import torch
import torch.distributed as dist

sys.path.insert(0, os.environ["PITSTOP_TREE_TESTS"])
import nccl_trainer  # noqa: E402  (after the path)

IS_TORCH_1 = torch.__version__.startswith("1.")
STORE_VERSION = 1 if IS_TORCH_1 else 2
RANK_0 = None


def become_rank_0(cuda, nccl, model, gpu):
    """Makes this process rank 0, the trainer, on that GPU."""
    global RANK_0
    RANK_0 = nccl_trainer.Rank0(cuda, nccl, model, int(gpu))
    return RANK_0


def taken_from(package, file, *wanted, **names):
    """A namespace with the wanted functions, classes and constants of a module that is not imported; `Class.method`
    becomes a function. `names`: the globals that they use."""
    path = pathlib.Path(package) / file
    tree = ast.parse(path.read_text())
    parts = {**_definitions(tree.body)}
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            parts.update({f"{node.name}.{name}": part for name, part in _definitions(node.body).items()})
    module = ast.Module([parts[name] for name in wanted], [])
    exec(compile(module, str(path), "exec", __future__.annotations.compiler_flag, True), names)
    return types.SimpleNamespace(**{name.split(".")[-1]: names[name.split(".")[-1]] for name in wanted})


def _definitions(body):
    named = {
        node.targets[0].id: node for node in body if isinstance(node, ast.Assign) and hasattr(node.targets[0], "id")
    }
    return {**named, **{node.name: node for node in body if hasattr(node, "name")}}


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


class Done(dist._Work if hasattr(dist, "_Work") else dist.Work):
    def wait(self, timeout=None):
        return True


class Nccl(dist.ProcessGroup):  # shim: ProcessGroupNCCL, which needs a GPU
    """Replaces ProcessGroupNCCL: the unique id comes with the first collective. Source:
    torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp, broadcastUniqueNCCLID, broadcast.
    """

    def __init__(self, store, rank, size):
        super().__init__(rank, size)
        self.store, self.num_ranks, self.has_joined = store, size, False

    def broadcast(self, tensors, options):
        (tensor,) = tensors
        if not self.has_joined:
            RANK_0.make_id()
            self.store.set("0", bytes(RANK_0.id))
            RANK_0.join(self.num_ranks)
            self.has_joined = True
        send(tensor)
        return Done()

    def leave(self):
        RANK_0.leave()


def create(store, rank, size, timeout):
    # PyTorch 1 does not report a group's device.
    return Nccl(dist.PrefixStore("/cuda/", store) if IS_TORCH_1 else store, rank, size)  # shim: PyTorch 2 does


def send(tensor):
    kind = {torch.bfloat16: nccl_trainer.BFLOAT16, torch.uint8: nccl_trainer.UINT8}[tensor.dtype]
    data = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    RANK_0.send(data, kind, tensor.numel())


def register_backend():
    options = {} if IS_TORCH_1 else {"devices": ["cuda"]}
    dist.Backend.register_backend("emulated", create, **options)  # shim: in place of nccl


def custom_process_group(package):
    """SGLang's function, with the arguments that slime gives."""
    from torch.distributed import distributed_c10d

    if IS_TORCH_1:
        make = distributed_c10d._new_process_group_helper
        world = {"pg_group_ranks": distributed_c10d._pg_group_ranks}
        distributed_c10d._world = type("World", (), world)  # shim: PyTorch 2 has it
        distributed_c10d._new_process_group_helper = lambda *all, device_id=None, **more: (make(*all, **more), None)
    register_backend()
    release = tuple(int(number) for number in torch.__version__.split(".")[:2])
    taken = taken_from(package, "srt/utils/common.py", "init_custom_process_group", torch_release=release)
    return taken.init_custom_process_group


def stateless_process_group(package):
    taken = taken_from(
        package,
        "srt/distributed/utils.py",
        "StatelessProcessGroup",
        dataclasses=dataclasses,
        deque=deque,
        pickle=pickle,
        time=time,
        torch=torch,
        TCPStore=dist.TCPStore,
        Any=typing.Any,
        Deque=typing.Deque,
        Dict=typing.Dict,
        Optional=typing.Optional,
        Tuple=typing.Tuple,
    )
    return taken.StatelessProcessGroup


class PyNccl:  # shim: PyNcclCommunicator, which needs a GPU
    """Source: vLLM, distributed/device_communicators/pynccl.py: the id from the group's store, an
    all-reduce, broadcasts.
    """

    def __init__(self, group, world_size):
        self.group = group
        RANK_0.make_id()
        group.broadcast_obj(pickle.loads(nccl_trainer.pickled(bytes(RANK_0.id))), src=0)
        RANK_0.join(world_size, warm_up=True)

    def broadcast(self, tensor, src, stream=None):
        send(tensor)
