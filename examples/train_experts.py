#!/usr/bin/env python3
"""Makes a bundled model of experts out of a bundled dense one: stories-moe of stories, bard-moe of bard.

    pip install torch                       besides pitstop
    python examples/train_experts.py stories --out launch/models/stories-moe

The dense model is the teacher. pitstop samples texts from it. Each MLP but the first layer's is cut into experts, and the
model learns to give the teacher's probabilities for each token of the texts.

Cutting an MLP into experts: Komatsuzaki et al. 2022 (arXiv:2212.05055). The loss that spreads tokens over the experts:
Fedus et al. 2021 (arXiv:2101.03961), eq. 4. Learning from probabilities: Hinton et al. 2015 (arXiv:1503.02531).
"""

import argparse
import json
import math
import pathlib
import shutil
import struct
import time

import torch
import torch.nn.functional as F

import pitstop
from grpo import Qwen3

ROOT = pathlib.Path(__file__).resolve().parents[1]
NUM_EXPERTS, PER_TOKEN, WIDTH = 8, 4, 64
WINDOW = 256  # tokens of a text in training
BATCH = 16  # texts of a step
NUM_HELD_OUT = 64  # texts
SPREAD = 0.01  # the weight of the loss that spreads tokens over experts
CHATS = {
    "stories": [f"Tell me a story about a {what}." for what in ("cat", "dog", "king", "girl", "bird", "tree")],
    "bard": [f"Speak as {who}." for who in ("ROMEO", "JULIET", "KING RICHARD III", "GLOUCESTER", "LUCIO")],
}


def texts_of(teacher, count, seed):
    """Token ids [count, WINDOW] of `count` texts that the teacher generated; every eighth is a chat's answer."""
    with pitstop.Engine(teacher, threads=1, compute="fp32") as engine:
        separator = engine.tokenize("<|endoftext|>")
        chats = [
            engine.tokenize(f"<|im_start|>user\n{each}<|im_end|>\n<|im_start|>assistant\n") for each in CHATS[teacher]
        ]
        prompts = [chats[i // 8 % len(chats)] if i % 8 == 0 else separator for i in range(count)]
        how = [
            {
                "max_new_tokens": WINDOW - len(prompt),
                "seed": 1000003 * seed + i,
                "temperature": 1.0,
                "top_k": -1,
                "top_p": 1.0,
                "ignore_eos": True,
            }
            for i, prompt in enumerate(prompts)
        ]
        outputs = engine.generate(input_ids=prompts, sampling_params=how)
    return torch.tensor([prompt + out.output_ids for prompt, out in zip(prompts, outputs)])


def read(directory):
    """{name: tensor} of a directory's model.safetensors, in bf16."""
    blob = bytearray((directory / "model.safetensors").read_bytes())
    (length,) = struct.unpack("<Q", blob[:8])
    header = json.loads(blob[8 : 8 + length])
    header.pop("__metadata__", None)
    return {
        name: torch.frombuffer(
            blob, dtype=torch.bfloat16, count=math.prod(each["shape"]), offset=8 + length + each["data_offsets"][0]
        ).view(each["shape"])
        for name, each in header.items()
    }


def write(directory, tensors):
    header, at = {}, 0
    for name, each in tensors.items():
        header[name] = {"dtype": "BF16", "shape": list(each.shape), "data_offsets": [at, at + 2 * each.numel()]}
        at += 2 * each.numel()
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    data = b"".join(
        each.detach().bfloat16().contiguous().view(torch.int16).numpy().tobytes() for each in tensors.values()
    )
    (directory / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)


def config_of(dense):
    """Converts a dense Qwen3's configuration to a Qwen3-MoE's. The first layer keeps its MLP."""
    added = {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "decoder_sparse_step": 1,
        "mlp_only_layers": [0],
        "moe_intermediate_size": WIDTH,
        "norm_topk_prob": True,
        "num_experts": NUM_EXPERTS,
        "num_experts_per_tok": PER_TOKEN,
        "output_router_logits": False,
        "router_aux_loss_coef": SPREAD,
    }
    return dict(sorted({**dense, **added}.items()))


def cut_into_experts(model, dense):
    """Copies the dense model's tensors. An expert begins as WIDTH neurons of its layer's MLP, chosen at random. The
    output is scaled to make up for the neurons of experts that a token does not choose."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name in dense:
                parameter.copy_(dense[name])
        for number, layer in enumerate(model.model["layers"]):
            if not layer.has_experts:
                continue
            gate, up, down = (
                dense[f"model.layers.{number}.mlp.{part}_proj.weight"].float() for part in ("gate", "up", "down")
            )
            torch.nn.init.normal_(layer.mlp.gate.weight, std=0.05)
            neurons = torch.cat([torch.randperm(len(gate)) for _ in range(-(-NUM_EXPERTS * WIDTH // len(gate)))])
            for index, expert in enumerate(layer.mlp.experts):
                mine = neurons[index * WIDTH : (index + 1) * WIDTH]
                expert["gate_proj"].weight.copy_(gate[mine])
                expert["up_proj"].weight.copy_(up[mine])
                expert["down_proj"].weight.copy_(down[:, mine] * (len(gate) / WIDTH))


class Router:
    """Records the choices of a model's routers in its last pass."""

    def __init__(self, model):
        self.logits = []
        for layer in model.model["layers"]:
            if layer.has_experts:
                layer.mlp.gate.register_forward_hook(lambda module, args, out: self.logits.append(out))

    def loads(self):
        """Per layer: the share of tokens that chose each expert, and the mean probability of each."""
        result = []
        for logits in self.logits:
            probabilities = logits.flatten(0, -2).softmax(-1)
            chosen = torch.zeros_like(probabilities).scatter(-1, probabilities.topk(PER_TOKEN).indices, 1.0 / PER_TOKEN)
            result.append((chosen.mean(0), probabilities.mean(0)))
        self.logits.clear()
        return result


def losses(model, teacher, ids, router=None):
    """Nats per token: KL(teacher, model), the teacher's loss, the model's; and the spread of tokens."""
    with torch.no_grad():
        right = teacher.logits(ids[:, :-1]).log_softmax(-1)
    ours = model.logits(ids[:, :-1]).log_softmax(-1)
    of_tokens = [each.gather(-1, ids[:, 1:, None]).mean().neg() for each in (right, ours)]
    spread = sum(NUM_EXPERTS * (share * mean).sum() for share, mean in router.loads()) if router else 0.0
    return F.kl_div(ours, right, log_target=True, reduction="none").sum(-1).mean(), *of_tokens, spread


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("teacher", choices=sorted(CHATS))
    parser.add_argument("--out", required=True, type=pathlib.Path, help="the directory to write")
    parser.add_argument("--steps", type=int, default=240)
    parser.add_argument("--texts", type=int, default=3000)
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)
    begin = time.monotonic()
    source = ROOT / "launch" / "models" / options.teacher
    dense, dense_config = read(source), json.loads((source / "config.json").read_text())
    teacher, config = Qwen3(dense_config), config_of(dense_config)
    teacher.load_state_dict(dense)
    model = Qwen3(config)
    cut_into_experts(model, dense)
    texts = texts_of(options.teacher, options.texts + NUM_HELD_OUT, options.seed)
    held_out, texts = texts[:NUM_HELD_OUT], texts[NUM_HELD_OUT:]
    print(f"{texts.numel()} tokens after {time.monotonic() - begin:.0f} s", flush=True)

    router = Router(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.rate, betas=(0.9, 0.95), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / 20, 0.5 + 0.5 * math.cos(math.pi * step / options.steps))
    )
    order = torch.cat([torch.randperm(len(texts)) for _ in range(-(-options.steps * BATCH // len(texts)))])
    for step in range(options.steps):
        kl, _, nll, spread = losses(model, teacher, texts[order[step * BATCH : (step + 1) * BATCH]], router)
        optimizer.zero_grad()
        (kl + SPREAD * spread).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 20 == 0 or step + 1 == options.steps:
            print(
                f"{time.monotonic() - begin:4.0f} s  step {step:4}  kl {kl:.4f}  loss {nll:.4f}  spread {spread:.3f}",
                flush=True,
            )

    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.bfloat16())
        kl, theirs, ours, _ = losses(model, teacher, held_out, router)
        model.logits(held_out[:, :-1])
    print(f"held out, bf16: kl {kl:.4f}  the teacher's loss {theirs:.4f}  ours {ours:.4f}")
    for number, (share, _) in enumerate(router.loads(), start=1):
        print(f"layer {number}:", *(f"{100 * each:.0f} %" for each in share.tolist()))
    options.out.mkdir(parents=True, exist_ok=True)
    write(options.out, dict(model.named_parameters()))
    (options.out / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    for name in ("generation_config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(source / name, options.out / name)


if __name__ == "__main__":
    main()
