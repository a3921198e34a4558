#!/usr/bin/env python3
"""Makes tests/data/golden: tiny models of random weights, and what transformers computes on them.

Each model is written as transformers writes it (config.json, model.safetensors in bf16), then read
back and run in fp32 on the bf16 weights; golden.json holds the logits of every position of a few
random prompts, a greedy continuation, and the versions of transformers and torch. A hybrid model's logits are of double
precision: the norms behind its recurrences turn fp32's roundings into differences of up to 1e-4.

    python3 -m venv /tmp/golden && /tmp/golden/bin/pip install torch transformers
    /tmp/golden/bin/python tests/golden/make_golden.py [NAME ...]
"""

import json
import pathlib
import shutil
import sys

import torch
import transformers
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen2MoeConfig,
    Qwen2MoeForCausalLM,
    Qwen3_5ForCausalLM,
    Qwen3_5MoeForCausalLM,
    Qwen3_5MoeTextConfig,
    Qwen3_5TextConfig,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
    Qwen3NextConfig,
    Qwen3NextForCausalLM,
)

from hybrid_configs import HYBRIDS, exact_logits

OUT = pathlib.Path(__file__).resolve().parent.parent / "data" / "golden"
GREEDY_LEN = 12
PROMPT_LENS = (1, 7, 23)

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
# The settings that Qwen's model cards give, for a model that was pretrained on 32 positions.
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}


# The sizes of a hybrid's layers without attention: more value heads than key heads, and another
# head size.
DELTA = {
    "head_dim": 16,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 12,
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 8,
    "linear_value_head_dim": 10,
    "num_hidden_layers": 3,
    "rms_norm_eps": 1e-3,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
}


def shape(**changes):
    """A small odd shape; every model changes some of it."""
    base = dict(
        vocab_size=67,
        hidden_size=40,
        intermediate_size=56,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        rms_norm_eps=1e-6,
        tie_word_embeddings=False,
        bos_token_id=1,
        eos_token_id=2,
    )
    base.update(changes)
    return base


# name -> (config class, model class, settings, longest prompt)
MODELS = {
    "qwen3_tied": (Qwen3Config, Qwen3ForCausalLM, shape(head_dim=12, tie_word_embeddings=True), 23),
    "qwen3_untied_biased": (
        Qwen3Config,
        Qwen3ForCausalLM,
        shape(head_dim=20, attention_bias=True, num_attention_heads=8, num_key_value_heads=8),
        23,
    ),
    # 12 query heads on 3 KV heads: no tp but 1 and 3 divides the KV heads.
    "qwen3_three_kv_heads": (
        Qwen3Config,
        Qwen3ForCausalLM,
        shape(head_dim=10, num_attention_heads=12, num_key_value_heads=3, vocab_size=66),
        23,
    ),
    "qwen3_window": (
        Qwen3Config,
        Qwen3ForCausalLM,
        shape(
            head_dim=16,
            use_sliding_window=True,
            sliding_window=9,
            max_window_layers=1,
            num_hidden_layers=3,
        ),
        40,
    ),
    "qwen2_tied": (
        Qwen2Config,
        Qwen2ForCausalLM,
        shape(hidden_size=48, tie_word_embeddings=True),
        23,
    ),
    "qwen2_seven_to_one": (
        Qwen2Config,
        Qwen2ForCausalLM,
        shape(hidden_size=84, num_attention_heads=14, num_key_value_heads=2, vocab_size=61),
        23,
    ),
    "llama_default": (LlamaConfig, LlamaForCausalLM, shape(rms_norm_eps=1e-5), 23),
    "llama_biased": (
        LlamaConfig,
        LlamaForCausalLM,
        shape(attention_bias=True, mlp_bias=True, head_dim=14, num_key_value_heads=1),
        23,
    ),
    "llama_rope_llama3": (
        LlamaConfig,
        LlamaForCausalLM,
        shape(rope_parameters=LLAMA3, hidden_size=64, tie_word_embeddings=True),
        90,
    ),
    "llama_rope_linear": (
        LlamaConfig,
        LlamaForCausalLM,
        shape(
            rope_parameters={"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
            hidden_size=56,
        ),
        40,
    ),
    "qwen3_yarn": (
        Qwen3Config,
        Qwen3ForCausalLM,
        shape(
            head_dim=32,
            max_position_embeddings=40,
            rope_parameters={**YARN, "rope_theta": 1000000.0},
        ),
        110,
    ),
    "qwen2_yarn_beside": (
        Qwen2Config,
        Qwen2ForCausalLM,
        shape(
            hidden_size=64,
            max_position_embeddings=32,
            rope_parameters={"rope_type": "default", "rope_theta": 1000000.0},
        ),
        110,
    ),
    "llama_yarn_all": (
        LlamaConfig,
        LlamaForCausalLM,
        shape(
            hidden_size=56,
            rope_parameters={
                **YARN,
                "rope_theta": 10000.0,
                "factor": 7.5,
                "beta_fast": 4,
                "beta_slow": 0.5,
                "mscale": 1.3,
                "mscale_all_dim": 0.8,
                "truncate": False,
            },
        ),
        120,
    ),
    "mistral_window": (
        MistralConfig,
        MistralForCausalLM,
        shape(
            sliding_window=6, num_key_value_heads=1, rope_parameters={"rope_type": "default", "rope_theta": 1000000.0}
        ),
        40,
    ),
    "mixtral": (MixtralConfig, MixtralForCausalLM, shape(num_local_experts=4, intermediate_size=36), 23),
    # Layers with experts and without, by number and by decoder_sparse_step.
    "qwen3_moe_every_other": (
        Qwen3MoeConfig,
        Qwen3MoeForCausalLM,
        shape(
            head_dim=12,
            num_hidden_layers=5,
            num_experts=7,
            num_experts_per_tok=3,
            moe_intermediate_size=20,
            norm_topk_prob=True,
            decoder_sparse_step=2,
            mlp_only_layers=[3],
        ),
        23,
    ),
    "qwen3_moe_all": (
        Qwen3MoeConfig,
        Qwen3MoeForCausalLM,
        shape(head_dim=16, num_experts=40, num_experts_per_tok=8, moe_intermediate_size=16, attention_bias=True),
        40,
    ),
    "qwen2_moe_shared": (
        Qwen2MoeConfig,
        Qwen2MoeForCausalLM,
        shape(
            num_experts=6,
            num_experts_per_tok=2,
            moe_intermediate_size=20,
            shared_expert_intermediate_size=28,
            use_sliding_window=True,
            sliding_window=7,
            max_window_layers=2,
            num_hidden_layers=3,
        ),
        40,
    ),
    "qwen3_5": (Qwen3_5TextConfig, Qwen3_5ForCausalLM, shape(**DELTA, tie_word_embeddings=True), 70),
    # The projections of qwen3_next are grouped by key head.
    "qwen3_next": (
        Qwen3NextConfig,
        Qwen3NextForCausalLM,
        shape(
            **{**DELTA, "linear_conv_kernel_dim": 2, "linear_num_value_heads": 12},
            num_experts=6,
            num_experts_per_tok=2,
            moe_intermediate_size=20,
            shared_expert_intermediate_size=28,
            mlp_only_layers=[1],
        ),
        70,
    ),
    "qwen3_5_moe": (
        Qwen3_5MoeTextConfig,
        Qwen3_5MoeForCausalLM,
        shape(
            **{**DELTA, "linear_num_value_heads": 4},
            num_experts=7,
            num_experts_per_tok=3,
            moe_intermediate_size=20,
            shared_expert_intermediate_size=24,
        ),
        70,
    ),
    "mistral_no_window": (
        MistralConfig,
        MistralForCausalLM,
        shape(sliding_window=None, head_dim=18),
        23,
    ),
}

# Additions to the config.json that transformers saved, as a user makes them.
EDITS = {"qwen2_yarn_beside": {"rope_scaling": {**YARN, "rope_theta": 1000000.0}}}


def randomize(model, seed):
    """Weights large enough that attention is not uniform and logits differ; norms near 1. Hybrids store norms minus 1,
    except those of delta nets.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if "norm" in name:
                is_around_zero = model.config.model_type in HYBRIDS and ".linear_attn." not in name
                parameter.copy_(0.2 * noise + (0.0 if is_around_zero else 1.0))
            elif name.endswith("bias"):
                parameter.copy_(0.3 * noise)
            elif "embed" in name or "lm_head" in name:
                parameter.copy_(0.5 * noise)
            else:
                parameter.copy_(1.4 * noise / parameter.shape[-1] ** 0.5)


def numbers(row):
    return [round(float(x), 5) for x in row]


def greedy(model, ids):
    """Greedy tokens without a KV cache, each with the gap between the two best logits."""
    ids, out, gaps = list(ids), [], []
    for _ in range(GREEDY_LEN):
        with torch.no_grad():
            logits = model(torch.tensor([ids]), use_cache=False).logits[0, -1]
        best = torch.topk(logits, 2)
        out.append(int(best.indices[0]))
        gaps.append(round(float(best.values[0] - best.values[1]), 5))
        ids.append(out[-1])
    return out, gaps


def make(name):
    config_class, model_class, settings, longest = MODELS[name]
    seed = sum(name.encode())
    torch.manual_seed(seed)
    model = model_class(config_class(**settings))
    randomize(model, seed)
    folder = OUT / name
    shutil.rmtree(folder, ignore_errors=True)
    model.to(torch.bfloat16).save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text()) | EDITS.get(name, {})
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")

    eager = {"attn_implementation": "eager"}
    if hasattr(model.config, "num_experts"):
        eager["experts_implementation"] = "eager"  # the other implementations accept no odd sizes
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **eager).eval()
    generator = torch.Generator().manual_seed(seed + 1)
    prompts = []
    for length in (*PROMPT_LENS[:-1], longest):
        ids = torch.randint(0, settings["vocab_size"], (length,), generator=generator).tolist()
        if model.config.model_type in HYBRIDS:
            (logits,) = exact_logits(folder, [ids], **eager)
        else:
            with torch.no_grad():
                logits = model(torch.tensor([ids]), use_cache=False).logits[0]
        tokens, gaps = greedy(model, ids)
        # The whole row at the last few positions, an eighth of it elsewhere: small files.
        rows = [numbers(row if t >= length - 3 else row[::8]) for t, row in enumerate(logits.double())]
        prompts.append({"ids": ids, "logits": rows, "greedy": tokens, "gaps": gaps})
    precision = "double precision" if model.config.model_type in HYBRIDS else "fp32"
    golden = {
        "about": f"{precision} on the stored bf16 weights; logits: the last 3 positions whole, every 8th id before",
        "transformers": transformers.__version__,
        "torch": torch.__version__,
        "prompts": prompts,
    }
    (folder / "golden.json").write_text(json.dumps(golden, separators=(",", ":")) + "\n")
    size = sum(path.stat().st_size for path in folder.iterdir())
    print(f"{name}: {size} bytes, smallest gap {min(min(p['gaps']) for p in prompts)}")


if __name__ == "__main__":
    for wanted in sys.argv[1:] or MODELS:
        make(wanted)
