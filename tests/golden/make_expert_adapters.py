#!/usr/bin/env python3
"""Makes adapters of experts in tests/data/golden/MODEL/adapters, as make_adapters.py makes the others.

PEFT adapts the matrices of single experts only if they are modules. They are modules in transformers 4, and
three-dimensional parameters in transformers 5. So this script needs transformers 4, and loads the checkpoints by code
of its own. It checks that the model without an adapter has the logits that transformers 5 computed (golden.json).

    python3 -m venv /tmp/golden4 && /tmp/golden4/bin/pip install torch transformers==4.57.1 peft
    /tmp/golden4/bin/python tests/golden/make_expert_adapters.py [NAME ...]
"""

import json
import shutil
import sys

import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from make_adapters import GOLDEN, write_golden, write_settings

LOGIT_ERROR = 1e-4
SIZE = 0.3  # of random numbers
MATRICES = ["gate_proj", "up_proj", "down_proj"]

# (model, adapter) -> (LoraConfig's settings, dtype of the file, parts of names: the file lacks these pairs)
ADAPTERS = {
    ("qwen3_moe_all", "experts"): (dict(r=3, lora_alpha=6, target_modules=["q_proj", *MATRICES]), torch.bfloat16, ()),
    ("qwen2_moe_shared", "experts_and_gates"): (
        dict(r=4, lora_alpha=6, target_modules=[*MATRICES, "gate", "shared_expert_gate"]),
        torch.float32,
        (),
    ),
    ("qwen2_moe_shared", "some_experts"): (
        dict(
            r=8,
            lora_alpha=10,
            target_modules=MATRICES,
            rank_pattern={r"experts.3.up_proj": 2, r".*\.0\.mlp\.experts\.\d+\.down_proj": 5},
            exclude_modules=["shared_expert.up_proj"],
        ),
        torch.float32,
        (".experts.1.", ".experts.4.gate_proj."),
    ),
    ("mixtral", "experts"): (
        dict(
            r=6,
            lora_alpha=5,
            use_rslora=True,
            target_modules=["w1", "w2", "w3", "v_proj", "block_sparse_moe.gate"],
            alpha_pattern={r"experts.2.w1": 9},
        ),
        torch.float32,
        (),
    ),
}


def windowed(window):
    """A hook that limits a layer's attention: transformers 4 has one mask for all layers of this family."""

    def hook(layer, args, kwargs):
        mask = kwargs["attention_mask"]
        distance = torch.arange(mask.shape[-2])[:, None] - torch.arange(mask.shape[-1])[None, :]
        kwargs["attention_mask"] = mask.masked_fill(distance >= window, torch.finfo(mask.dtype).min)
        return args, kwargs

    return hook


def base_of(model_name):
    """The model as transformers 4 has it, in fp32; its logits are those of transformers 5."""
    config = json.loads((GOLDEN / model_name / "config.json").read_text())
    config["rope_theta"] = config.pop("rope_parameters")["rope_theta"]
    if config["model_type"] == "qwen3_moe":
        config["num_experts"] = config.pop("num_local_experts")
    config["use_cache"] = False
    if config.get("use_sliding_window"):
        config["use_sliding_window"] = False
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config), attn_implementation="eager").float().eval()
    tensors = load_file(GOLDEN / model_name / "model.safetensors")
    model.load_state_dict({name: tensor.float() for name, tensor in tensors.items()}, strict=True)
    for layer, kind in zip(model.model.layers, config.get("layer_types", [])):
        if kind == "sliding_attention":
            layer.register_forward_pre_hook(windowed(config["sliding_window"]), with_kwargs=True)
    for prompt in json.loads((GOLDEN / model_name / "golden.json").read_text())["prompts"]:
        with torch.no_grad():
            logits = model(torch.tensor([prompt["ids"]])).logits[0]
        whole = [t for t, row in enumerate(prompt["logits"]) if len(row) == config["vocab_size"]]
        error = (logits[whole] - torch.tensor([prompt["logits"][t] for t in whole])).abs().max()
        assert error < LOGIT_ERROR, f"{model_name}: transformers 4 computes other logits, by {error}"
    return model


def make(model_name, name):
    settings, dtype, without = ADAPTERS[model_name, name]
    out = GOLDEN / model_name / "adapters" / name
    shutil.rmtree(out, ignore_errors=True)
    torch.manual_seed(sum(map(ord, model_name + name)))
    model = get_peft_model(base_of(model_name), LoraConfig(**settings)).eval()
    lacks = [key for key, _ in model.named_parameters() if "lora_" in key and any(part in key for part in without)]
    with torch.no_grad():
        for key, tensor in model.named_parameters():
            if "lora_" in key:
                tensor.copy_((torch.randn_like(tensor) * SIZE).to(dtype).float() * (key not in lacks))
    model.save_pretrained(out)
    path = out / "adapter_model.safetensors"
    left_out = {key.replace(".default", "") for key in lacks}
    tensors = {key: tensor.to(dtype) for key, tensor in load_file(path).items() if key not in left_out}
    assert len(tensors) == len(load_file(path)) - len(left_out), "some name is another in the file"
    save_file(tensors, path)
    write_settings(out, model_name)
    write_golden(out, model)


if __name__ == "__main__":
    for model_name, name in ADAPTERS:
        if not sys.argv[1:] or name in sys.argv[1:]:
            make(model_name, name)
