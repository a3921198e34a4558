"""A checkpoint's tensors, as a trainer has them."""

import json
import pathlib
import struct

PROMPT = "ROMEO:\n"
NUM_TOKENS = 24


def load(directory):
    """{name: torch's bfloat16 tensor}."""
    import torch

    data = bytearray((pathlib.Path(directory) / "model.safetensors").read_bytes())
    (length,) = struct.unpack("<Q", data[:8])
    tensors = {}
    for name, entry in json.loads(data[8 : 8 + length]).items():
        if name != "__metadata__":
            begin, end = (8 + length + offset for offset in entry["data_offsets"])
            tensors[name] = torch.frombuffer(data[begin:end], dtype=torch.bfloat16).reshape(entry["shape"])
    return tensors


def load_floats(directory):
    """{name: torch's float32 tensor} of an adapter's directory."""
    import torch

    data = bytearray((pathlib.Path(directory) / "adapter_model.safetensors").read_bytes())
    (length,) = struct.unpack("<Q", data[:8])
    tensors = {}
    for name, entry in json.loads(data[8 : 8 + length]).items():
        begin, end = (8 + length + offset for offset in entry["data_offsets"])
        tensors[name] = torch.frombuffer(data[begin:end], dtype=torch.float32).reshape(entry["shape"])
    return tensors


def chunks(tensors, num):
    """The (name, tensor) pairs in this many calls."""
    pairs = list(tensors.items())
    size = -(-len(pairs) // num)
    return [pairs[i : i + size] for i in range(0, len(pairs), size)]
