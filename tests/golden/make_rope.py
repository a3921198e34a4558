#!/usr/bin/env python3
"""Makes tests/data/golden/rope.json: rotary frequencies as transformers computes them, bit for bit.

Each case is the rotary part of a config.json; next to it are the bits of inv_freq, and the factor that cosines and
sines are multiplied by. The powers come from PyTorch's vector loop (torch_pow.h says which), on a machine with AVX-512.

    python3 -m venv /tmp/golden && /tmp/golden/bin/pip install torch transformers
    /tmp/golden/bin/python tests/golden/make_rope.py
"""

import json
import pathlib

import numpy
import torch
import transformers

OUT = pathlib.Path(__file__).resolve().parent.parent / "data" / "golden" / "rope.json"

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
# As in the model cards of Qwen2.5 and Qwen3.
QWEN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
YARN = {"rope_type": "yarn", "factor": 4.0}

# (head_dim, max_position_embeddings, rotary keys of config.json)
CASES = [
    *((dim, 32768, {"rope_theta": theta})
      for dim in (12, 64, 80, 128, 256) for theta in (10000.0, 500000.0, 1000000, 5e6)),
    *((dim, 4096, {"rope_theta": 10000.0, "rope_scaling": {"type": "linear", "factor": factor}})
      for dim in (20, 128) for factor in (2.0, 3.7)),
    *((dim, 131072, {"rope_theta": 500000.0, "rope_scaling": LLAMA3}) for dim in (14, 64, 128)),
    (128, 131072, {"rope_theta": 500000.0, "rope_scaling": {**LLAMA3, "factor": 32.0,
                                                            "low_freq_factor": 1.5}}),
    (128, 8192, {"rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0,
                                     "low_freq_factor": 1.0, "high_freq_factor": 4.0}}),
    (64, 131072, {"rope_theta": 5e5, "original_max_position_embeddings": 4096,
                  "rope_scaling": LLAMA3}),
    *((dim, 40960, {"rope_theta": 1000000, "rope_scaling": QWEN}) for dim in (64, 80, 128)),
    (128, 32768, {"rope_theta": 1000000.0, "rope_scaling": {"type": "yarn", "factor": 4.0,
                                                            "original_max_position_embeddings": 32768}}),
    (128, 40960, {"rope_parameters": {**QWEN, "rope_theta": 1000000}}),
    # YaRN settings of a model card, besides the rope_parameters that transformers 5 saves.
    (128, 40960, {"rope_scaling": QWEN,
                  "rope_parameters": {"rope_type": "default", "rope_theta": 1000000}}),
    (128, 40960, {"rope_scaling": {**QWEN, "rope_theta": 1000000},
                  "rope_parameters": {"rope_type": "default", "rope_theta": 1000000}}),
    (128, 40960, {"rope_scaling": {}, "rope_parameters": {**QWEN, "rope_theta": 1000000}}),
    (128, 131072, {"rope_theta": 1e6, "rope_scaling": {**YARN, "factor": None,
                                                       "original_max_position_embeddings": 8192}}),
    *((128, 32768, {"rope_theta": 1e6, "rope_scaling": {**YARN, **extra}})
      for extra in ({}, {"factor": 0.5}, {"factor": 2}, {"attention_factor": 1.25}, {"attention_factor": None},
                    {"mscale": 1.0, "mscale_all_dim": 0.707}, {"mscale": 0, "mscale_all_dim": 0.7},
                    {"mscale": 1.0}, {"truncate": False}, {"truncate": None}, {"truncate": True},
                    {"beta_fast": 16, "beta_slow": 2.5}, {"beta_fast": 0, "beta_slow": None},
                    {"beta_fast": 1, "beta_slow": 1}, {"beta_fast": 1, "beta_slow": 32},
                    {"beta_fast": 1e6, "beta_slow": 1e-6, "truncate": False})),
    (24, 512, {"rope_scaling": {**YARN, "original_max_position_embeddings": 64}}),
]  # fmt: skip


def bits(tensor):
    return numpy.asarray(tensor, dtype=numpy.float32).view(numpy.uint32).tolist()


def case(dim, max_positions, keys):
    config = transformers.LlamaConfig(
        hidden_size=dim, num_attention_heads=1, max_position_embeddings=max_positions,
        **json.loads(json.dumps(keys)),
    )  # fmt: skip
    rotary = transformers.models.llama.modeling_llama.LlamaRotaryEmbedding(config)
    return {
        "config": {"max_position_embeddings": max_positions, **keys},
        "head_dim": dim,
        "inv_freq_bits": bits(rotary.inv_freq),
        "attention_scaling": float(rotary.attention_scaling),
    }


if __name__ == "__main__":
    golden = {
        "about": "the bits of inv_freq as transformers computes it",
        "transformers": transformers.__version__,
        "torch": torch.__version__,
        "capability": torch.backends.cpu.get_cpu_capability(),
        "cases": [case(*row) for row in CASES],
    }
    OUT.write_text(json.dumps(golden, separators=(",", ":")) + "\n")
    print(f"{len(CASES)} cases, {OUT.stat().st_size} bytes")
