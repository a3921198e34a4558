#!/usr/bin/env python3
"""Digests of the bundled models, computed from the definition in base/digest.h with NumPy alone.

    python3 tests/golden/make_digests.py > tests/data/golden/digests.json

Resident weights are bf16, as the bundled checkpoints are, so their bytes are digested as they are. Only the decay rates
of hybrid models are resident in fp32.
"""

import json
import pathlib
import struct

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[2]
STEP = np.uint64(0x9E3779B97F4A7C15)


def mix64(z):
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def digest(rows, row_bytes, data):
    """`data`: rows * row_bytes bytes, row-major. Returns 32 hex digits."""
    words_per_row = (row_bytes + 7) // 8
    padded = np.zeros((rows, words_per_row * 8), np.uint8)
    padded[:, :row_bytes] = np.frombuffer(data, np.uint8).reshape(rows, row_bytes)
    words = padded.view("<u8").reshape(-1)
    with np.errstate(over="ignore"):
        index = np.arange(1, len(words) + 1, dtype=np.uint64)
        h = mix64(words + index * STEP)
        lane0 = h.sum(dtype=np.uint64)
        lane1 = ((h >> np.uint64(32)) * (h & np.uint64(0xFFFFFFFF))).sum(dtype=np.uint64)
    return f"{int(lane0):016x}{int(lane1):016x}"


def model(directory):
    blob = (directory / "model.safetensors").read_bytes()
    (header_len,) = struct.unpack("<Q", blob[:8])
    header = json.loads(blob[8 : 8 + header_len])
    header.pop("__metadata__", None)
    tied = json.loads((directory / "config.json").read_text())["tie_word_embeddings"]
    tensors, text = {}, ""
    for name in sorted(header):
        if tied and name == "lm_head.weight":
            continue
        begin, end = header[name]["data_offsets"]
        shape = header[name]["shape"]
        assert header[name]["dtype"] == "BF16"
        rows = int(np.prod(shape[:-1], dtype=np.int64)) if len(shape) > 1 else 1
        data, dtype = blob[8 + header_len + begin : 8 + header_len + end], "BF16"
        if name.endswith(".A_log"):
            data, dtype = (np.frombuffer(data, np.uint16).astype("<u4") << 16).tobytes(), "F32"
        tensors[name] = digest(rows, len(data) // rows, data)
        text += f"{name} {dtype} {'x'.join(map(str, shape))} {tensors[name]}\n"
    raw = text.encode()
    return {"digest": digest(1, len(raw), raw), "tensors": tensors}


NAMES = ("stories", "bard", "stories-moe", "bard-moe", "stories-hybrid", "bard-hybrid")


if __name__ == "__main__":
    models = {name: model(ROOT / "launch" / "models" / name) for name in NAMES}
    print(json.dumps({"numpy": np.__version__, "models": models}, indent=1))
