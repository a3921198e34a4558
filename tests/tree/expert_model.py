"""A model with experts made from a bundled dense one: each expert has its MLP with noise of its own
(sparse upcycling, arXiv:2212.05055), so that the text makes sense, and every expert counts.
"""

import json
import shutil

import numpy

from overflowing import STORIES, read_tensors, write_model

NUM_EXPERTS = 5
PER_TOKEN = 2
ROUTER_SCALE = 0.5
NOISE = 0.02


def rounded(values):
    """Rounds to bf16, towards zero; which way does not matter here."""
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


# The names and counts of Qwen3-30B-A3B; everything else is narrow.
REAL = {"num_hidden_layers": 48, "num_experts": 128, "num_experts_per_tok": 8}
NARROW = {
    "hidden_size": 32,
    "moe_intermediate_size": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
}
NUM_REAL_TENSORS = 18_867


def real_names(seed):
    """{name: bf16 bits} of 18,867 small tensors."""
    random = numpy.random.default_rng(seed)
    hidden, width, heads = NARROW["hidden_size"], NARROW["moe_intermediate_size"], NARROW["head_dim"]
    q, kv = NARROW["num_attention_heads"] * heads, NARROW["num_key_value_heads"] * heads
    of_layer = {
        "input_layernorm": (hidden,),
        "post_attention_layernorm": (hidden,),
        "mlp.gate": (REAL["num_experts"], hidden),
    }
    of_layer |= {"self_attn.q_proj": (q, hidden), "self_attn.k_proj": (kv, hidden), "self_attn.v_proj": (kv, hidden)}
    of_layer |= {"self_attn.o_proj": (hidden, q), "self_attn.q_norm": (heads,), "self_attn.k_norm": (heads,)}
    for expert in range(REAL["num_experts"]):
        for kind, shape in ("gate_proj", (width, hidden)), ("up_proj", (width, hidden)), ("down_proj", (hidden, width)):
            of_layer[f"mlp.experts.{expert}.{kind}"] = shape
    shapes = {"model.embed_tokens": (2048, hidden), "lm_head": (2048, hidden), "model.norm": (hidden,)}
    for layer in range(REAL["num_hidden_layers"]):
        shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in of_layer.items()}
    return {f"{name}.weight": rounded(random.normal(0, 0.1, shape)) for name, shape in shapes.items()}


def write_experts(directory, tensors, **changes):
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
    } | changes
    (directory / "config.json").write_text(json.dumps(config))
    write_model(directory, tensors)
    return directory
