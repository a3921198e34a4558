"""Random hybrid models: gated delta nets in most layers, gated attention in the others. Their outputs
differ, and are nonsense."""

import json
import shutil
import struct

import numpy

from expert_model import rounded
from overflowing import STORIES

LAYERS = ["linear_attention", "full_attention", "linear_attention"]
HIDDEN, FFN, VOCAB = 64, 96, 2048
HEADS, KV_HEADS, HEAD_DIM = 4, 2, 32
KEY_HEADS, VALUE_HEADS, KEY_DIM, VALUE_DIM, KERNEL = 2, 4, 16, 24, 4
CHANNELS = 2 * KEY_HEADS * KEY_DIM + VALUE_HEADS * VALUE_DIM
DECAY = "model.layers.0.linear_attn.A_log"


def shapes():
    """{name: shape} of a Qwen3.5."""
    values = VALUE_HEADS * VALUE_DIM
    delta = {
        "in_proj_qkv.weight": (CHANNELS, HIDDEN), "in_proj_z.weight": (values, HIDDEN),
        "in_proj_b.weight": (VALUE_HEADS, HIDDEN), "in_proj_a.weight": (VALUE_HEADS, HIDDEN),
        "conv1d.weight": (CHANNELS, 1, KERNEL), "out_proj.weight": (HIDDEN, values), "norm.weight": (VALUE_DIM,),
        "A_log": (VALUE_HEADS,), "dt_bias": (VALUE_HEADS,),
    }  # fmt: skip
    attention = {
        "q_proj.weight": (2 * HEADS * HEAD_DIM, HIDDEN), "k_proj.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
        "v_proj.weight": (KV_HEADS * HEAD_DIM, HIDDEN), "o_proj.weight": (HIDDEN, HEADS * HEAD_DIM),
        "q_norm.weight": (HEAD_DIM,), "k_norm.weight": (HEAD_DIM,),
    }  # fmt: skip
    of = {"model.embed_tokens.weight": (VOCAB, HIDDEN), "model.norm.weight": (HIDDEN,)}
    for number, kind in enumerate(LAYERS):
        mixer, parts = ("linear_attn", delta) if kind == "linear_attention" else ("self_attn", attention)
        layer = {f"{mixer}.{name}": shape for name, shape in parts.items()}
        layer |= {"input_layernorm.weight": (HIDDEN,), "post_attention_layernorm.weight": (HIDDEN,)}
        layer |= {f"mlp.{kind}_proj.weight": (FFN, HIDDEN) for kind in ("gate", "up")}
        layer |= {"mlp.down_proj.weight": (HIDDEN, FFN)}
        of |= {f"model.layers.{number}.{name}": shape for name, shape in layer.items()}
    return of


def tensors(seed=1):
    """{name: bf16 bits, A_log in fp32}."""
    random = numpy.random.default_rng(seed)
    made = {}
    for name, shape in shapes().items():
        values = random.normal(0, 1, shape)
        if name.endswith("A_log"):
            made[name] = (values - 2).astype(numpy.float32)
            continue
        is_norm = len(shape) == 1
        made[name] = rounded(0.1 * values if is_norm else values / shape[-1] ** 0.5)
    return made


def as_published(made):
    """The same tensors by the names of a model with vision, together with some of its vision
    tensors and of MTP.
    """
    named = {name.replace("model.", "model.language_model.", 1): array for name, array in made.items()}
    named["model.visual.patch_embed.proj.weight"] = rounded(numpy.zeros((4, 4)))
    named["mtp.norm.weight"] = rounded(numpy.zeros(HIDDEN))
    return named


def write_hybrid(directory, made, is_wrapped=False):
    directory.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(STORIES / name, directory)
    config = {
        "architectures": ["Qwen3_5ForCausalLM"], "model_type": "qwen3_5_text", "tie_word_embeddings": True,
        "hidden_size": HIDDEN, "intermediate_size": FFN, "vocab_size": VOCAB, "num_hidden_layers": len(LAYERS),
        "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM, "layer_types": LAYERS,
        "linear_num_key_heads": KEY_HEADS, "linear_num_value_heads": VALUE_HEADS, "linear_key_head_dim": KEY_DIM,
        "linear_value_head_dim": VALUE_DIM, "linear_conv_kernel_dim": KERNEL, "max_position_embeddings": 1024,
        "eos_token_id": 2047, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1]},
    }  # fmt: skip
    if is_wrapped:
        outer = {
            "architectures": ["Qwen3_5ForConditionalGeneration"],
            "model_type": "qwen3_5",
            "tie_word_embeddings": True,
        }
        del config["architectures"], config["tie_word_embeddings"]
        config = outer | {"text_config": config, "vision_config": {"depth": 1}}
    (directory / "config.json").write_text(json.dumps(config))
    header, parts, end = {}, [], 0
    for name, array in made.items():
        begin, end = end, end + array.nbytes
        dtype = "F32" if array.dtype == numpy.float32 else "BF16"
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [begin, end]}
        parts.append(array.tobytes())
    text = json.dumps(header).encode()
    (directory / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + b"".join(parts))
    return directory
