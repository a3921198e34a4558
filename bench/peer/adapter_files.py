"""A PEFT adapter with random weights for all modules of a model: adapter_files MODEL DIR RANK."""

from __future__ import annotations

import json
import pathlib
import struct
import sys
from typing import Any

import numpy
from bench.peer.gguf_model import tensors_of

MODULES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
DTYPES = ("F32", "BF16")
SIZE = 0.01  # standard deviation of a weight


def bf16_bits(values: Any) -> Any:
    """The upper halves of float32 values."""
    return (values.view(numpy.uint32) >> 16).astype(numpy.uint16)


def write_adapter(directory: pathlib.Path, model: pathlib.Path, rank: int, seed: int, dtype: str = "F32") -> int:
    """Writes adapter_config.json and adapter_model.safetensors, with weights of one of DTYPES; returns the weights'
    number of bytes. The scale of the adapter is 2."""
    random = numpy.random.default_rng(seed)
    header: dict[str, Any] = {}
    data: list[bytes] = []
    at = 0
    for name, tensor in tensors_of(model / "model.safetensors"):
        module = name.removesuffix(".weight")
        if module.rpartition(".")[2] not in MODULES:
            continue
        num_out, num_in = tensor.shape
        for part, shape in (("A", (rank, num_in)), ("B", (num_out, rank))):
            values = numpy.float32(SIZE) * random.standard_normal(shape, numpy.float32)
            stored = bf16_bits(values) if dtype == "BF16" else values
            full_name = f"base_model.model.{module}.lora_{part}.weight"
            header[full_name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + stored.nbytes]}
            at += stored.nbytes
            data.append(stored.tobytes())
    directory.mkdir()
    described = {"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, "target_modules": list(MODULES)}
    (directory / "adapter_config.json").write_text(json.dumps(described))
    text = json.dumps(header).encode()
    (directory / "adapter_model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + b"".join(data))
    return at


if __name__ == "__main__":
    write_adapter(pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[1]), int(sys.argv[3]), 1, "BF16")
