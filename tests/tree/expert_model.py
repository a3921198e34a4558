"""A model of experts made of a bundled dense one: each expert has its MLP with noise of its own (sparse upcycling,
arXiv:2212.05055), so that the text stays one, and every expert counts."""

import json
import shutil

import numpy

from overflowing import STORIES, read_tensors, write_model

NUM_EXPERTS = 5
PER_TOKEN = 2
ROUTER_SCALE = 0.5
NOISE = 0.02


def rounded(values):
    """To bf16, towards zero: any number will do."""
    return (numpy.asarray(values, numpy.float32).view(numpy.uint32) >> 16).astype(numpy.uint16)


def floats(bits):
    return (bits.astype(numpy.uint32) << 16).view(numpy.float32)


def upcycled(seed=1):
    """{name: bf16 bits} of a Qwen3-MoE."""
    random = numpy.random.default_rng(seed)
    tensors = read_tensors()
    tensors.pop("lm_head.weight")
    for name in [name for name in tensors if ".mlp." in name]:
        dense = floats(tensors.pop(name))
        layer, _, tail = name.partition(".mlp.")
        for expert in range(NUM_EXPERTS):
            noise = random.normal(0, NOISE, dense.shape)
            tensors[f"{layer}.mlp.experts.{expert}.{tail}"] = rounded(dense + noise)
        if tail == "gate_proj.weight":
            router = random.normal(0, ROUTER_SCALE, (NUM_EXPERTS, dense.shape[1]))
            tensors[f"{layer}.mlp.gate.weight"] = rounded(router)
    return tensors


def write_experts(directory, tensors):
    directory.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(STORIES / name, directory)
    config = json.loads((STORIES / "config.json").read_text())
    config |= {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "num_experts": NUM_EXPERTS,
        "num_experts_per_tok": PER_TOKEN,
        "moe_intermediate_size": config["intermediate_size"],
        "norm_topk_prob": True,
    }
    (directory / "config.json").write_text(json.dumps(config))
    write_model(directory, tensors)
    return directory
