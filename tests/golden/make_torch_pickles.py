#!/usr/bin/env python3
"""Writes tests/data/torch_pickles: what a current PyTorch sends, and the values that readers must get.

    python3 -m venv /tmp/torch && /tmp/torch/bin/pip install torch numpy pyzmq
    /tmp/torch/bin/python tests/golden/make_torch_pickles.py

The samples in tests/data/pickle are of PyTorch 1.13, which has no 8-bit floats and no unsigned
integers but uint8. Expected values are the tensors' own, as PyTorch tells them: a record is the
list of its arguments, a class or dtype its name, bytes are {"hex": ...}.
"""

import json
import pathlib
import pickle
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "tree"))

from torch_sender import ForkingPickler, flattened_bucket, torch  # noqa: E402  (after the path)

FOLDER = ROOT / "tests" / "data" / "torch_pickles"
DTYPES = [
    "bfloat16", "float16", "float32", "float64", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2",
    "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn_x2", "int8", "int16", "int32", "int64",
    "uint8", "uint16", "uint32", "uint64", "bool", "complex64",
]  # fmt: skip


def name_of(dtype):
    return str(dtype).removeprefix("torch.")


def expected_tensor(tensor):
    manager, handle, num_bytes = tensor.untyped_storage()._share_filename_cpu_()
    return [
        type(tensor).__name__,
        [
            ["UntypedStorage", {"hex": manager.hex()}, {"hex": handle.hex()}, num_bytes],
            name_of(tensor.dtype),
        ],
        [
            tensor.storage_offset(),
            list(tensor.size()),
            list(tensor.stride()),
            tensor.requires_grad,
        ],
    ]


def shared(dtype):
    return torch.zeros(32, dtype=torch.uint8).view(getattr(torch, dtype)).share_memory_()


def handles():
    tensors = [(f"a.{dtype}", shared(dtype)) for dtype in DTYPES if dtype != "bool"]
    whole = torch.arange(24, dtype=torch.bfloat16).reshape(2, 3, 4).share_memory_()
    tensors += [("a.part", whole[1, 1:]), ("a.turned", whole.permute(2, 0, 1))]
    tensors += [("a.scalar", whole[0, 0, 0]), ("a.parameter", torch.nn.Parameter(whole))]
    return ForkingPickler.dumps(tensors), [[n, expected_tensor(t)] for n, t in tensors], tensors


def bucket():
    entries = [
        {"name": f"a.{n}", "dtype": getattr(torch, n), "shape": torch.Size([2, i]), "offset": i << 30}
        for i, n in enumerate(DTYPES)
    ]
    expected = [{**e, "dtype": name_of(e["dtype"]), "shape": list(e["shape"])} for e in entries]
    return pickle.dumps(entries), expected, None


def flattened():
    tensors = {"a.weight": torch.ones(2, 3, dtype=torch.bfloat16), "a.norm": torch.ones(3)}
    data, flat = flattened_bucket(tensors)
    metadata, at = [], 0
    for name, tensor in tensors.items():
        size = tensor.numel() * tensor.element_size()
        metadata.append({"name": name, "shape": list(tensor.shape), "dtype": name_of(tensor.dtype)})
        metadata[-1] |= {"start_idx": at, "end_idx": at + size, "numel": size}
        at += size
    return data, {"flattened_tensor": expected_tensor(flat), "metadata": metadata}, flat


def main():
    FOLDER.mkdir(exist_ok=True)
    expected = {"torch": torch.__version__}
    for make in (handles, bucket, flattened):
        data, expected[make.__name__], _alive = make()
        (FOLDER / f"{make.__name__}.pkl").write_bytes(data)
    (FOLDER / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    main()
