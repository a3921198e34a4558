"""A trainer's side of weight updates over HTTP: broadcasts over TCP, tensors in shared memory."""

import base64
import contextlib
import json
import pathlib
import shutil
import struct
import sys

import numpy

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "client" / "python"))
sys.path.insert(0, str(ROOT / "tests" / "tree"))

import torch_sender  # noqa: E402  (after the path)
from pitstop.broadcast import HostBroadcast  # noqa: E402
from push_once import load  # noqa: E402, F401

NUM_WORKERS = 2


@contextlib.contextmanager
def sglang_group(http, survives=True):
    """A host group that the workers join through SGLang's route. At the end they leave it, unless they have left
    before."""
    with HostBroadcast("weight_update_group", num_workers=NUM_WORKERS) as group:
        spec = {
            "master_address": group.host,
            "master_port": str(group.port),  # a text, as trainers send it
            "rank_offset": 1,
            "world_size": NUM_WORKERS + 1,
            "backend": "host",
        }
        joined = http.in_background(http.post, "/init_weights_update_group", spec)
        group.accept(20)
        assert joined.result().json()["success"], joined.result()
        yield group
        if not survives:
            return
        destroyed = http.post("/destroy_weights_update_group", {})
        assert destroyed.status == 200 and destroyed.json()["success"], destroyed


def broadcast(http, group, tensors, load_format=None, **fields):
    """Updates with these arrays (bfloat16 as uint16); returns the answer."""
    body = {
        "names": list(tensors),
        "dtypes": ["bfloat16"] * len(tensors),
        "shapes": [list(array.shape) for array in tensors.values()],
        "load_format": load_format,
        **fields,
    }
    update = http.in_background(http.post, "/update_weights_from_distributed", body)
    arrays = list(tensors.values())
    if load_format == "flattened_bucket":
        arrays = [numpy.concatenate([array.reshape(-1) for array in arrays])]
    for array in arrays:
        group.broadcast(array)
    return update.result()


@contextlib.contextmanager
def vllm_group(http, **packing):
    """A host group that the workers join through vLLM's route; the caller's `admin` door ends it."""
    with HostBroadcast("vllm_weight_transfer", num_workers=NUM_WORKERS) as group:
        info = {
            "master_address": group.host,
            "master_port": group.port,
            "rank_offset": 1,
            "world_size": NUM_WORKERS + 1,
            "backend": "host",
            **packing,
        }
        joined = http.in_background(http.post, "/init_weight_transfer_engine", {"init_info": info})
        group.accept(20)
        assert joined.result().status == 200, joined.result()
        yield group


def vllm_chunks(arrays, size_max):
    """Packs as vLLM's NCCL trainers do: a chunk closes once it has grown beyond the size."""
    chunks, chunk, size = [], [], 0
    for array in arrays:
        chunk.append(array.reshape(-1))
        size += array.nbytes
        if size > size_max:
            chunks.append(numpy.concatenate(chunk))
            chunk, size = [], 0
    return chunks + ([numpy.concatenate(chunk)] if chunk else [])


def serialized(payloads):
    """serialized_named_tensors: a pickle per rank."""
    return [base64.b64encode(payload).decode() for payload in payloads]


def tensors_body(tensors, load_format=None, **fields):
    """/update_weights_from_tensor's body for torch's tensors, and the objects that must live until
    the answer.
    """
    if load_format == "flattened_bucket":
        made = [torch_sender.flattened_bucket(tensors) for _ in range(NUM_WORKERS)]
        payloads, kept = [payload for payload, _ in made], made
    else:
        kept = [
            [(name, tensor.clone().share_memory_()) for name, tensor in tensors.items()] for _ in range(NUM_WORKERS)
        ]
        payloads = [bytes(torch_sender.ForkingPickler.dumps(own)) for own in kept]
    return {"serialized_named_tensors": serialized(payloads), "load_format": load_format, **fields}, kept


def write_checkpoint(directory, model, tensors, **config):
    """Copies the model's directory, with these arrays (bfloat16 as uint16) as its weights."""
    shutil.copytree(model, directory)
    header, data = {}, b""
    for name, array in tensors.items():
        end = len(data) + array.nbytes
        header[name] = {
            "dtype": "BF16",
            "shape": list(array.shape),
            "data_offsets": [len(data), end],
        }
        data += numpy.ascontiguousarray(array).tobytes()
    text = json.dumps(header).encode()
    (directory / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    path = directory / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **config}))
    return str(directory)
