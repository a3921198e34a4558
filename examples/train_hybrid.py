#!/usr/bin/env python3
"""Makes a bundled hybrid model out of a bundled dense one: stories-hybrid of stories, bard-hybrid of bard.

    pip install torch transformers          besides pitstop; transformers 5.24
    python examples/train_hybrid.py stories --out launch/models/stories-hybrid

The dense model is the teacher. pitstop samples texts from it. Two layers keep their attention, which gets gates and
rotates half of each head's dimensions. In the other layers a gated delta net replaces attention, and begins with
attention's projections. The model learns to give the teacher's probabilities for each token of the texts, and at first
also the outputs of the teacher's layers. transformers computes both models.

Gated delta nets: Yang et al. 2024 (arXiv:2412.06464). Projections of attention in a recurrence: Wang et al. 2024
(arXiv:2408.15237). Learning from probabilities: Hinton et al. 2015 (arXiv:1503.02531).
"""

import argparse
import json
import math
import pathlib
import shutil
import time

import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM, Qwen3_5ForCausalLM, Qwen3_5TextConfig

from train_experts import texts_of, write

ROOT = pathlib.Path(__file__).resolve().parents[1]
LAYERS = ["linear_attention", "linear_attention", "full_attention"] * 2
BATCH = 8  # texts of a step
NUM_HELD_OUT = 64  # texts


def config_of(dense):
    """Converts a dense Qwen3's configuration to that of a Qwen3.5's text model."""
    kept = (
        "bos_token_id",
        "eos_token_id",
        "head_dim",
        "hidden_act",
        "hidden_size",
        "initializer_range",
        "intermediate_size",
        "max_position_embeddings",
        "num_attention_heads",
        "num_hidden_layers",
        "num_key_value_heads",
        "pad_token_id",
        "rms_norm_eps",
        "tie_word_embeddings",
        "use_cache",
        "vocab_size",
    )
    added = {
        "architectures": ["Qwen3_5ForCausalLM"],
        "model_type": "qwen3_5_text",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "attn_output_gate": True,
        "full_attention_interval": 3,
        "layer_types": LAYERS,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 32,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_value_head_dim": 32,
        "mamba_ssm_dtype": "float32",
        "torch_dtype": "bfloat16",
        "rope_parameters": {
            "mrope_interleaved": True,
            "mrope_section": [3, 3, 2],
            "partial_rotary_factor": 0.5,
            "rope_theta": dense["rope_theta"],
            "rope_type": "default",
        },
        "transformers_version": "5.24.0",
    }
    return dict(sorted({**{key: dense[key] for key in kept}, **added}.items()))


def begin_as(model, teacher):
    """Copies what both models have. Norms are stored minus 1. Gates of attention begin half open. A
    delta net's keys and values are those of attention, its queries those of each group's first
    head; its convolution begins as the identity.
    """
    dense, config = teacher.state_dict(), model.config
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("q_proj.weight"):
                heads = dense[name].unflatten(0, (config.num_attention_heads, -1))
                parameter.copy_(torch.cat([heads, torch.zeros_like(heads)], 1).flatten(0, 1))
            elif name.endswith("o_proj.weight"):
                parameter.copy_(2.0 * dense[name])
            elif name in dense:
                parameter.copy_(dense[name] - 1.0 if "norm" in name else dense[name])
        for number, kind in enumerate(config.layer_types):
            if kind != "linear_attention":
                continue
            net, prefix = model.model.layers[number].linear_attn, f"model.layers.{number}.self_attn"
            queries, keys, values = (
                dense[f"{prefix}.{each}_proj.weight"].unflatten(0, (-1, config.head_dim)) for each in "qkv"
            )
            group = len(queries) // len(keys)
            heads = torch.cat([queries[::group], keys, values.repeat_interleave(group, 0)])
            net.in_proj_qkv.weight.copy_(heads.flatten(0, 1))
            net.out_proj.weight.copy_(dense[f"{prefix}.o_proj.weight"])
            net.conv1d.weight.mul_(0.1)
            net.conv1d.weight[..., -1] = 1.0


def losses(model, teacher, ids):
    """Nats per token: KL(teacher, model), the teacher's loss, the model's; and the distance between
    the layers' outputs.
    """
    with torch.no_grad():
        right = teacher(ids[:, :-1], use_cache=False, output_hidden_states=True)
    ours = model(ids[:, :-1], use_cache=False, output_hidden_states=True)
    logprobs = [each.logits.log_softmax(-1) for each in (right, ours)]
    of_tokens = [each.gather(-1, ids[:, 1:, None]).mean().neg() for each in logprobs]
    kl = F.kl_div(logprobs[1], logprobs[0], log_target=True, reduction="none").sum(-1).mean()
    pairs = zip(right.hidden_states[1:], ours.hidden_states[1:])
    return kl, *of_tokens, sum(((a - b).square().sum(-1) / a.square().sum(-1)).mean() for a, b in pairs)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("teacher", choices=["bard", "stories"])
    parser.add_argument("--out", required=True, type=pathlib.Path, help="the directory to write")
    parser.add_argument("--steps", type=int, default=320)
    parser.add_argument("--texts", type=int, default=1000)
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)
    begin = time.monotonic()
    source = ROOT / "launch" / "models" / options.teacher
    teacher = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32).eval()
    config = config_of(json.loads((source / "config.json").read_text()))
    model = Qwen3_5ForCausalLM(Qwen3_5TextConfig(**{key: each for key, each in config.items() if key != "torch_dtype"}))
    begin_as(model, teacher)
    print(f"{sum(each.numel() for each in model.parameters())} parameters", flush=True)
    texts = texts_of(options.teacher, options.texts + NUM_HELD_OUT, options.seed)
    held_out, texts = texts[:NUM_HELD_OUT], texts[NUM_HELD_OUT:]
    print(f"{texts.numel()} tokens after {time.monotonic() - begin:.0f} s", flush=True)

    optimizer = torch.optim.AdamW(model.parameters(), lr=options.rate, betas=(0.9, 0.95), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / 20, 0.5 + 0.5 * math.cos(math.pi * step / options.steps))
    )
    order = torch.cat([torch.randperm(len(texts)) for _ in range(-(-options.steps * BATCH // len(texts)))])
    for step in range(options.steps):
        kl, _, nll, far = losses(model, teacher, texts[order[step * BATCH : (step + 1) * BATCH]])
        optimizer.zero_grad()
        (kl + (1.0 - step / options.steps) * far).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 20 == 0 or step + 1 == options.steps:
            print(
                f"{time.monotonic() - begin:4.0f} s  step {step:4}  kl {kl:.4f}  loss {nll:.4f}  layers {far:.3f}",
                flush=True,
            )

    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.bfloat16())
        kl, theirs, ours, _ = losses(model.eval(), teacher, held_out)
    print(f"held out, bf16: kl {kl:.4f}  the teacher's loss {theirs:.4f}  ours {ours:.4f}")
    options.out.mkdir(parents=True, exist_ok=True)
    write(options.out, dict(model.named_parameters()))
    (options.out / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    for name in ("generation_config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(source / name, options.out / name)


if __name__ == "__main__":
    main()
