#!/usr/bin/env python3
"""Writes tests/data/torch_files/VERSION: files of torch.save of this PyTorch, and the tensors that readers must get.

    python3 -m venv /tmp/torch && /tmp/torch/bin/pip install torch numpy
    /tmp/torch/bin/python tests/golden/make_torch_files.py

Expected values are the tensors' own, as PyTorch tells them. adapter.bin has the tensors of a golden adapter.
"""

import collections
import json
import pathlib
import struct

import torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDER = ROOT / "tests" / "data" / "torch_files" / ".".join(torch.__version__.split(".")[:2])
ADAPTER = ROOT / "tests" / "data" / "golden" / "qwen3_tied" / "adapters" / "bf16" / "adapter_model.safetensors"
NAMES = {
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.float32: "F32",
    torch.float64: "F64",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.int16: "I16",
    torch.int32: "I32",
    torch.int64: "I64",
    torch.bool: "BOOL",
    torch.complex64: "C64",
}


def bytes_of(tensor):
    return bytes(tensor.detach().contiguous().reshape(-1).view(torch.uint8).tolist())


def kinds():
    """Every dtype, a scalar, none at all, parts of a storage, two tensors with one storage, a parameter."""
    base = torch.arange(24, dtype=torch.float32).reshape(2, 3, 4)
    tensors = {f"dtype.{name}": torch.arange(6).reshape(2, 3).to(dtype) for dtype, name in NAMES.items()}
    tensors["scalar"] = torch.tensor(1.5)
    tensors["none"] = torch.empty(0, 4)
    tensors["part"] = base[1, 1:]
    tensors["same"] = base
    tensors["of one row"] = base[:1].permute(1, 0, 2)  # contiguous but for a dimension of 1
    tensors["parameter"] = torch.nn.Parameter(base.to(torch.bfloat16))
    return tensors


def state_dict():
    """Of a module: an OrderedDict with a state of its own."""
    module = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 1, bias=False))
    torch.nn.init.constant_(module[0].weight, 0.25)
    torch.nn.init.constant_(module[0].bias, -1)
    torch.nn.init.constant_(module[1].weight, 3)
    return module.state_dict()


def tensors_of(path):
    data = path.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + size])
    header.pop("__metadata__", None)
    dtypes = {name: dtype for dtype, name in NAMES.items()}
    return {
        name: torch.frombuffer(bytearray(data[8 + size + begin : 8 + size + end]), dtype=dtypes[entry["dtype"]])
        .reshape(entry["shape"])
        .clone()
        for name, entry in header.items()
        for begin, end in [entry["data_offsets"]]
    }


def main():
    FOLDER.mkdir(parents=True, exist_ok=True)
    saved = {"kinds": kinds(), "module": state_dict(), "ordered": collections.OrderedDict(a=torch.ones(2))}
    expected = {}
    for file, tensors in saved.items():
        torch.save(tensors, FOLDER / f"{file}.bin")
        expected[file] = [
            {"name": name, "dtype": NAMES[t.dtype], "shape": list(t.shape), "hex": bytes_of(t).hex()}
            for name, t in tensors.items()
        ]
    torch.save(tensors_of(ADAPTER), FOLDER / "adapter.bin")
    torch.save({"turned": torch.arange(6).reshape(2, 3).t()}, FOLDER / "refused_turned.bin")
    torch.save({"a": torch.ones(2), "step": 3}, FOLDER / "refused_number.bin")
    torch.save([torch.ones(2)], FOLDER / "refused_list.bin")
    torch.save({"a": torch.ones(2)}, FOLDER / "refused_old_format.bin", _use_new_zipfile_serialization=False)
    torch.save(torch.nn.Linear(2, 2), FOLDER / "refused_module.bin")
    (FOLDER / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    main()
