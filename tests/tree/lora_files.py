"""Adapters (LoRA) for tests, written as PEFT writes them. Some can be merged exactly: in each
module they change a few single elements by numbers that leave them bf16, so that the model with the
adapter is another checkpoint.
"""

import json
import shutil
import struct

import numpy

from expert_model import floats, rounded
from overflowing import STORIES, read_tensors, write_model

MODULES = (
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.o_proj",
    "mlp.gate_proj",
    "mlp.up_proj",
    "mlp.down_proj",
)
RANK, ALPHA = 4, 8
SCALE = ALPHA / RANK


def config_of(**more):
    targets = sorted({module.rpartition(".")[2] for module in MODULES})
    return {"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "target_modules": targets, "bias": "none", **more}


def exact_adapter(seed, size=0.5, base=None, modules=MODULES):
    """({name: float32}, {name: bf16 bits} of the model that the adapter makes). `base`: its
    tensors; None: stories.
    """
    random = numpy.random.default_rng(seed)
    whole, adapter = dict(read_tensors() if base is None else base), {}
    num_layers = 1 + max(int(name.split(".")[2]) for name in whole if name.startswith("model.layers."))
    for layer in range(num_layers):
        for module in modules:
            name = f"model.layers.{layer}.{module}"
            if f"{name}.weight" not in whole:
                continue
            weight = floats(whole[f"{name}.weight"]).copy()
            out, of = weight.shape
            a, b = numpy.zeros((RANK, of), numpy.float32), numpy.zeros((out, RANK), numpy.float32)
            rows, cols = random.choice(out, RANK, replace=False), random.choice(of, RANK, replace=False)
            for j, (row, col) in enumerate(zip(rows, cols)):
                target = floats(rounded([weight[row, col] + random.choice([-size, size])]))[0]
                a[j, col] = (target - weight[row, col]) / SCALE
                b[row, j] = 1.0
                weight[row, col] = target
            whole[f"{name}.weight"] = rounded(weight)
            adapter[f"{name}.lora_A.weight"], adapter[f"{name}.lora_B.weight"] = a, b
    return adapter, whole


def write_merged(directory, whole):
    """Writes the bundled model with these tensors in place of its own; its head stays tied."""
    shutil.copytree(STORIES, directory)
    write_model(directory, {name: bits for name, bits in whole.items() if name != "lm_head.weight"})
    return directory


def write_adapter(directory, adapter, config=None, prefix="base_model.model."):
    """A directory as PEFT's save_pretrained leaves it."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "adapter_config.json").write_text(json.dumps(config or config_of()))
    header, data = {}, b""
    for name, tensor in adapter.items():
        raw = numpy.ascontiguousarray(tensor, numpy.float32).tobytes()
        header[prefix + name] = {
            "dtype": "F32",
            "shape": list(tensor.shape),
            "data_offsets": [len(data), len(data) + len(raw)],
        }
        data += raw
    text = json.dumps(header).encode()
    (directory / "adapter_model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    return directory
