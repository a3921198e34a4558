"""A trainer's NCCL group with PyTorch's own store, on the GPU in software. There are two styles of groups:

torch   SGLang's init_custom_process_group and torch.distributed.broadcast, as slime, OpenRLHF's copies and
        SGLang's tools use them
vllm    vLLM's StatelessProcessGroup, as OpenRLHF and TRL use it; SGLang has a copy

The code of both styles comes from SGLang's package.

    nccl_groups_step.py STYLE URL MODEL SGLANG CUDA NCCL GPU WORLD_SIZE     STYLE: torch or vllm
"""

import datetime
import json
import os
import pathlib
import subprocess
import sys

import torch
import torch.distributed as dist

import emulated_nccl
from emulated_nccl import STORE_VERSION, PyNccl, become_rank_0, custom_process_group, free_port, stateless_process_group

GROUP = "slime-pp_0"
POST = """
import sys, urllib.request
request = urllib.request.Request(sys.argv[1], sys.argv[2].encode(), {"Content-Type": "application/json"})
print(urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=120).read().decode())
"""


def begin_post(url, path, **body):
    """Runs in a process of its own, like another actor: PyTorch 1's store waits with the
    interpreter's lock. Returns a function that waits for the answer.
    """
    command = [sys.executable, "-c", POST, url + path, json.dumps(body)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def answer():
        said, _ = child.communicate()
        assert child.returncode == 0, (path, said)
        return json.loads(said or "{}")

    return answer


def as_slime(url, package, names, tensors, port, world_size):
    init = custom_process_group(package)
    joined = begin_post(
        url,
        "/init_weights_update_group",
        master_address="127.0.0.1",
        master_port=port,
        rank_offset=1,
        world_size=world_size,
        group_name=GROUP,
        backend="nccl",
        store_version=STORE_VERSION,
    )
    group = init(
        backend="emulated",
        init_method=f"tcp://127.0.0.1:{port}",
        world_size=world_size,
        rank=0,
        group_name=GROUP,
        timeout=datetime.timedelta(seconds=60),
    )
    joined()
    updated = begin_post(
        url,
        "/update_weights_from_distributed",
        names=names,
        dtypes=["bfloat16"] * len(names),
        shapes=[list(tensor.shape) for tensor in tensors],
        group_name=GROUP,
        weight_version="7",
    )
    for tensor in tensors:
        dist.broadcast(tensor, 0, group=group)
    assert updated()["success"]
    left = begin_post(url, "/destroy_weights_update_group", group_name=GROUP)
    emulated_nccl.RANK_0.leave()
    left()


def as_vllm(url, package, names, tensors, port, world_size):
    """OpenRLHF's stateless_init_process_group and TRL's init_communicator."""
    create_group = stateless_process_group(package).create
    info = {"master_address": "127.0.0.1", "master_port": port, "rank_offset": 1, "world_size": world_size}
    joined = begin_post(url, "/init_weight_transfer_engine", init_info={**info, "store_version": STORE_VERSION})
    group = create_group(host="127.0.0.1", port=port, rank=0, world_size=world_size)
    communicator = PyNccl(group, world_size)
    joined()
    begin_post(url, "/start_weight_update")()
    shapes = [list(tensor.shape) for tensor in tensors]
    update = {"names": names, "dtype_names": ["bfloat16"] * len(names), "shapes": shapes}
    updated = begin_post(url, "/update_weights", update_info=update)
    for tensor in tensors:
        communicator.broadcast(tensor, src=0)
    updated()
    begin_post(url, "/finish_weight_update")()


def main(style, url, model, package, cuda, nccl, gpu, world_size):
    trainer = become_rank_0(cuda, nccl, model, gpu)
    with open(pathlib.Path(model) / "model.safetensors", "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    header.pop("__metadata__", None)
    names = list(header)
    tensors = [
        torch.frombuffer(bytearray(data), dtype=torch.bfloat16).reshape(header[name]["shape"])
        for name, data in zip(names, trainer.tensors(names))
    ]
    {"torch": as_slime, "vllm": as_vllm}[style](url, package, names, tensors, free_port(), int(world_size))
    print(json.dumps({"broadcasts": trainer.num_broadcasts, "torch": torch.__version__}), flush=True)
    os._exit(0)  # skips the clean-up of other packages' objects


main(*sys.argv[1:])
