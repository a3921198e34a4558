"""checkpoint-engine's ParameterServer: registers a checkpoint, gathers metas, and updates the tree over its sockets.

Replacements of a GPU, by line:
"""

import json
import os
import pathlib
import socket
import sys
import types

import requests
import torch
import zmq

from payloads import pickled
from weights import NUM_TOKENS, PROMPT

# shim: on a CPU a plain pickle has the bytes; torch's own has a name of shared memory
zmq.Socket.send_pyobj = lambda zmq_socket, value, flags=0, **_: zmq_socket.send(pickled(value), flags)
with socket.socket() as probe:
    probe.bind(("127.0.0.1", 0))
    port = probe.getsockname()[1]
os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))

import checkpoint_engine.ps as server  # noqa: E402

DEVICE = types.SimpleNamespace(  # shim: torch.cuda
    device_count=lambda: 1,
    set_device=lambda _: None,
    synchronize=lambda: None,
    ipc_collect=lambda: None,
    empty_cache=lambda: None,
    mem_get_info=lambda: (1 << 30, 1 << 31),
    memory_allocated=lambda: 0,
    memory_reserved=lambda: 0,
)
MANAGER = types.SimpleNamespace(device_type="cpu", backend="gloo", device_module=DEVICE)
server.DeviceManager = lambda: MANAGER  # shim: of CUDA
server._get_physical_gpu_id = lambda *_: "CPU-0-0"  # shim: the worker's name in `status`
server.P2PStore = lambda _: None  # shim: RDMA
torch.Tensor.pin_memory = lambda tensor, *_: tensor  # shim: pinned memory needs CUDA
empty = torch.empty
torch.empty = lambda *size, pin_memory=False, **options: empty(*size, **options)  # shim: the same


def main(url, other):
    def post(route, body=None):
        answer = requests.post(f"{url}{route}", json=body or {}, timeout=60)
        answer.raise_for_status()
        return answer

    def sample():
        params = {"max_new_tokens": NUM_TOKENS, "temperature": 0}
        return post("/generate", {"text": PROMPT, "sampling_params": params}).json()["output_ids"]

    answers = []

    def request(socket_paths):
        answers.append(post("/update_weights_from_ipc", {"zmq_handles": dict(socket_paths)}).json())

    said = {"before": sample()}
    parameters = server.ParameterServer(rank=0, world_size=1, gpu_count=1, mem_fraction=0.5)
    parameters.register_checkpoint("bard", files=[str(pathlib.Path(other, "model.safetensors"))])
    parameters.gather_metas("bard")
    post("/pause_generation", {"mode": "in_place"})
    parameters.update("bard", request)
    post("/continue_generation")
    said["after"] = sample()
    post("/release_memory_occupation", {"tags": ["kv_cache", "weights"]})
    post("/resume_memory_occupation", {"tags": ["weights"]})
    parameters.update("bard", request)
    post("/resume_memory_occupation", {"tags": ["kv_cache"]})
    said["colocated"] = sample()
    assert all(answer["success"] for answer in answers), answers
    print(json.dumps(said))


main(*sys.argv[1:3])
