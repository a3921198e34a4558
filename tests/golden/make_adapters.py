#!/usr/bin/env python3
"""Makes tests/data/golden/MODEL/adapters: adapters of random numbers, and what PEFT computes with them.
make_expert_adapters.py makes those of experts.

Each adapter is written as PEFT writes it (adapter_config.json, adapter_model.safetensors) and run
unmerged, in fp32 on the model's bf16 weights. golden.json beside it holds the logits of every
position of a few random prompts, a greedy continuation, and the versions of the packages.

    python3 -m venv /tmp/golden && /tmp/golden/bin/pip install torch transformers peft
    /tmp/golden/bin/python tests/golden/make_adapters.py [NAME ...]
"""

import json
import pathlib
import shutil
import sys

import peft
import torch
import transformers
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

GOLDEN = pathlib.Path(__file__).resolve().parent.parent / "data" / "golden"
GREEDY_LEN = 8
PROMPT_LENS = (1, 5, 17)
ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]

# (model, adapter) -> (LoraConfig's settings, dtype of the file)
ADAPTERS = {
    ("qwen3_tied", "all"): (dict(r=4, lora_alpha=8, target_modules=ALL), torch.float32),
    ("qwen3_tied", "bf16"): (dict(r=8, lora_alpha=16, target_modules=["q_proj", "v_proj"]), torch.bfloat16),
    ("qwen3_tied", "rank_stabilized"): (
        dict(r=9, lora_alpha=6, use_rslora=True, target_modules=["o_proj", "down_proj"]),
        torch.float32,
    ),
    ("qwen3_three_kv_heads", "patterns"): (
        dict(
            r=4,
            lora_alpha=8,
            target_modules=ALL,
            exclude_modules=["layers.0.self_attn.k_proj"],
            rank_pattern={"layers.1.mlp.up_proj": 7, r".*\.0\..*down_proj": 3, "q_proj": 1},
            alpha_pattern={"v_proj": 3, r".*\.1\.mlp\..*": 5},
        ),
        torch.float32,
    ),
    ("qwen3_untied_biased", "one_layer"): (
        dict(r=16, lora_alpha=4, target_modules=["k_proj", "gate_proj"], layers_to_transform=[1]),
        torch.float32,
    ),
    ("llama_biased", "expression"): (
        dict(r=5, lora_alpha=10, target_modules=r".*\.(0\.self_attn\.(q|o)_proj|1\.mlp\.(gate|down)_proj)"),
        torch.float32,
    ),
    # Experts, which transformers 5 packs; and as PEFT converts the names that they have in transformers 4.
    ("qwen3_moe_all", "packed"): (
        dict(
            r=2,
            lora_alpha=5,
            target_modules=["q_proj"],
            target_parameters=["mlp.experts.gate_up_proj", "experts.down_proj", "gate.weight"],
            rank_pattern={"mlp.experts.down_proj": 3},
            alpha_pattern={r".*\.1\.mlp\.experts\.gate_up_proj": 2},
        ),
        torch.bfloat16,
    ),
    ("qwen2_moe_shared", "packed_down"): (
        dict(
            r=4,
            lora_alpha=6,
            use_rslora=True,
            target_modules=["shared_expert.up_proj"],
            target_parameters=["layers.1.mlp.experts.down_proj", "layers.2.mlp.experts.gate_up_proj"],
        ),
        torch.float32,
    ),
    ("mixtral", "converted"): (
        dict(r=3, lora_alpha=4, target_modules=["w1", "w2", "w3", "gate", "o_proj"]),
        torch.float32,
    ),
    ("qwen3_5_moe", "packed"): (
        dict(
            r=4,
            lora_alpha=3,
            target_modules=["shared_expert_gate", "in_proj_qkv", "down_proj"],
            target_parameters=["gate_up_proj", "mlp.experts.down_proj"],
        ),
        torch.float32,
    ),
    ("qwen2_seven_to_one", "one_module"): (
        dict(r=64, lora_alpha=32, target_modules=["model.layers.1.mlp.up_proj"]),
        torch.float32,
    ),
}


def make(model_name, name):
    settings, dtype = ADAPTERS[model_name, name]
    out = GOLDEN / model_name / "adapters" / name
    shutil.rmtree(out, ignore_errors=True)
    torch.manual_seed(sum(map(ord, model_name + name)))
    base = AutoModelForCausalLM.from_pretrained(GOLDEN / model_name, dtype=torch.bfloat16).float().eval()
    model = get_peft_model(base, LoraConfig(**settings)).eval()
    with torch.no_grad():
        for key, tensor in model.named_parameters():
            if "lora_" in key:
                tensor.copy_((torch.randn_like(tensor) * 0.3).to(dtype).float())
    model.save_pretrained(out)
    if dtype is not torch.float32:
        from safetensors.torch import load_file, save_file

        path = out / "adapter_model.safetensors"
        save_file({key: tensor.to(dtype) for key, tensor in load_file(path).items()}, path)
    write_settings(out, model_name)
    write_golden(out, model)


def write_settings(out, model_name):
    """Makes what PEFT wrote about the adapter independent of the machine."""
    (out / "README.md").unlink(missing_ok=True)
    config = json.loads((out / "adapter_config.json").read_text())
    config["base_model_name_or_path"] = model_name  # no machine's path
    for key in ("target_modules", "target_parameters"):
        if isinstance(config[key], list):
            config[key].sort()
    (out / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n")


def write_golden(out, model):
    prompts = []
    with torch.no_grad():
        for length in PROMPT_LENS:
            ids = torch.randint(3, model.config.vocab_size, (1, length))
            logits = model(ids).logits[0]
            greedy = ids
            for _ in range(GREEDY_LEN):
                last = model(greedy).logits[0, -1]
                greedy = torch.cat([greedy, last.argmax().view(1, 1)], dim=1)
            plain = base_logits(model, ids)
            assert (logits - plain).abs().max() > 0.1, "the adapter changes nothing"
            prompts.append(
                {
                    "ids": ids[0].tolist(),
                    "greedy": greedy[0, length:].tolist(),
                    "logits": [[round(value, 5) for value in row] for row in logits.tolist()],
                }
            )
    versions = {"transformers": transformers.__version__, "torch": torch.__version__, "peft": peft.__version__}
    (out / "golden.json").write_text(json.dumps({"versions": versions, "prompts": prompts}) + "\n")
    print(out.relative_to(GOLDEN), sum(path.stat().st_size for path in out.iterdir()), "bytes")


def base_logits(model, ids):
    with model.disable_adapter():
        return model(ids).logits[0]


if __name__ == "__main__":
    for model_name, name in ADAPTERS:
        if not sys.argv[1:] or name in sys.argv[1:]:
            make(model_name, name)
