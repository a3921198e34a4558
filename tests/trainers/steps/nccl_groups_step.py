"""A trainer's NCCL group by PyTorch's own store, on the GPU in software: as slime, OpenRLHF's copies and SGLang's tools
make theirs, with SGLang's init_custom_process_group and torch.distributed.broadcast; and as OpenRLHF and TRL make theirs,
with vLLM's StatelessProcessGroup, of which SGLang has a copy. Both are taken from SGLang's package, function by function:
what its modules import besides is not needed.

What is put in place of what needs a GPU: ProcessGroupNCCL and PyNcclCommunicator, which take the same steps with the
emulated NCCL.

    nccl_groups_step.py STYLE URL MODEL SGLANG CUDA NCCL GPU WORLD_SIZE     STYLE: torch or vllm
"""

import ast
import dataclasses
import datetime
import json
import os
import pathlib
import pickle
import socket
import subprocess
import sys
import time
import typing
from collections import deque

import torch
import torch.distributed as dist

sys.path.insert(0, os.environ["PITSTOP_TREE_TESTS"])
import nccl_trainer  # noqa: E402  (after the path)

GROUP = "slime-pp_0"
IS_TORCH_1 = torch.__version__.startswith("1.")
STORE_VERSION = 1 if IS_TORCH_1 else 2


def taken_from(package, file, name, **names):
    """A function or class of a module that is not imported."""
    path = pathlib.Path(package) / file
    (node,) = [node for node in ast.parse(path.read_text()).body if getattr(node, "name", None) == name]
    exec(compile(ast.Module([node], []), str(path), "exec"), names)
    return names[name]


POST = """
import sys, urllib.request
request = urllib.request.Request(sys.argv[1], sys.argv[2].encode(), {"Content-Type": "application/json"})
print(urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=120).read().decode())
"""


def begin_post(url, path, **body):
    """In a process of its own, as from another actor: PyTorch 1's store waits with the interpreter's lock. Returns what
    waits for the answer."""
    command = [sys.executable, "-c", POST, url + path, json.dumps(body)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def answer():
        said, _ = child.communicate()
        assert child.returncode == 0, (path, said)
        return json.loads(said or "{}")

    return answer


class Done(dist._Work if hasattr(dist, "_Work") else dist.Work):
    def wait(self, timeout=None):
        return True


class Nccl(dist.ProcessGroup):  # shim: ProcessGroupNCCL, which needs a GPU
    """Its place: the unique id comes with the first collective.
    Source: torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp, broadcastUniqueNCCLID, broadcast."""

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


def create(store, rank, size, timeout):
    # PyTorch 1 does not say of which device a group is.
    return Nccl(dist.PrefixStore("/cuda/", store) if IS_TORCH_1 else store, rank, size)  # shim: PyTorch 2 does


def send(tensor):
    assert tensor.dtype == torch.bfloat16
    data = tensor.detach().contiguous().view(torch.int16).numpy().tobytes()
    RANK_0.send(data, nccl_trainer.BFLOAT16, len(data) // 2)


def custom_process_group(package):
    """SGLang's function, as slime calls it."""
    from torch.distributed import distributed_c10d

    if IS_TORCH_1:
        make = distributed_c10d._new_process_group_helper
        world = {"pg_group_ranks": distributed_c10d._pg_group_ranks}
        distributed_c10d._world = type("World", (), world)  # shim: PyTorch 2 has it
        distributed_c10d._new_process_group_helper = lambda *all, device_id=None, **more: (make(*all, **more), None)
    options = {} if IS_TORCH_1 else {"devices": ["cuda"]}
    dist.Backend.register_backend("emulated", create, **options)  # shim: in place of nccl
    release = tuple(int(number) for number in torch.__version__.split(".")[:2])
    return taken_from(package, "srt/utils/common.py", "init_custom_process_group", torch_release=release)


def stateless_process_group(package):
    return taken_from(
        package, "srt/distributed/utils.py", "StatelessProcessGroup", dataclasses=dataclasses, deque=deque,
        pickle=pickle, time=time, torch=torch, TCPStore=dist.TCPStore, Any=typing.Any, Deque=typing.Deque,
        Dict=typing.Dict, Optional=typing.Optional, Tuple=typing.Tuple,
    )


def as_slime(url, package, names, tensors, port, world_size):
    init = custom_process_group(package)
    joined = begin_post(
        url, "/init_weights_update_group", master_address="127.0.0.1", master_port=port, rank_offset=1,
        world_size=world_size, group_name=GROUP, backend="nccl", store_version=STORE_VERSION,
    )
    group = init(
        backend="emulated", init_method=f"tcp://127.0.0.1:{port}", world_size=world_size, rank=0, group_name=GROUP,
        timeout=datetime.timedelta(seconds=60),
    )
    joined()
    updated = begin_post(
        url, "/update_weights_from_distributed", names=names, dtypes=["bfloat16"] * len(names),
        shapes=[list(tensor.shape) for tensor in tensors], group_name=GROUP, weight_version="7",
    )
    for tensor in tensors:
        dist.broadcast(tensor, 0, group=group)
    assert updated()["success"]
    left = begin_post(url, "/destroy_weights_update_group", group_name=GROUP)
    RANK_0.leave()
    left()


def as_vllm(url, package, names, tensors, port, world_size):
    """OpenRLHF's stateless_init_process_group and TRL's init_communicator."""
    create_group = stateless_process_group(package).create
    info = {"master_address": "127.0.0.1", "master_port": port, "rank_offset": 1, "world_size": world_size}
    joined = begin_post(url, "/init_weight_transfer_engine", init_info={**info, "store_version": STORE_VERSION})
    group = create_group(host="127.0.0.1", port=port, rank=0, world_size=world_size)
    RANK_0.make_id()
    group.broadcast_obj(pickle.loads(nccl_trainer.pickled(bytes(RANK_0.id))), src=0)
    RANK_0.join(world_size, warm_up=True)  # shim: PyNcclCommunicator, which needs a GPU
    joined()
    begin_post(url, "/start_weight_update")()
    shapes = [list(tensor.shape) for tensor in tensors]
    update = {"names": names, "dtype_names": ["bfloat16"] * len(names), "shapes": shapes}
    updated = begin_post(url, "/update_weights", update_info=update)
    for tensor in tensors:
        send(tensor)
    updated()
    begin_post(url, "/finish_weight_update")()


def main(style, url, model, package, cuda, nccl, gpu, world_size):
    global RANK_0
    RANK_0 = nccl_trainer.Rank0(cuda, nccl, model, int(gpu))
    with open(pathlib.Path(model) / "model.safetensors", "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    header.pop("__metadata__", None)
    names = list(header)
    tensors = [
        torch.frombuffer(bytearray(data), dtype=torch.bfloat16).reshape(header[name]["shape"])
        for name, data in zip(names, RANK_0.tensors(names))
    ]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    {"torch": as_slime, "vllm": as_vllm}[style](url, package, names, tensors, port, int(world_size))
    print(json.dumps({"broadcasts": RANK_0.num_broadcasts, "torch": torch.__version__}), flush=True)
    os._exit(0)  # nothing is torn down that is another's


main(*sys.argv[1:])
