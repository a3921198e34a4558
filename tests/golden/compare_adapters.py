#!/usr/bin/env python3
"""Random adapters over random dense models: computed as PEFT computes them, or refused where PEFT refuses.

For each, a tiny model of random weights (compare_configs.py) gets an adapter by a random LoraConfig: ranks 1 to 64,
patterns of ranks and alphas, rsLoRA, modules by name, by path, by expression or all, some excluded, some layers alone,
files of fp32, bf16 and fp16, safetensors or, one in four, of torch.save. PEFT runs it unmerged in fp32, and so does the engine from PEFT's files, with one rank or
two. All logits must agree within 1e-4, and greedy tokens must be the same. Runs nightly, in long. The reference's
packages are not among the tests' requirements:

    python3 -m venv /tmp/golden && /tmp/golden/bin/pip install torch transformers peft
    ninja -C build/cpu pitstop_config_logits
    /tmp/golden/bin/python tests/golden/compare_adapters.py [--num 300] [--seed 1] [--list]

Exits with 1 if a case differs or if only one of the two refuses it; a line of JSON for each such case says how to make
it again.
"""

import argparse
import collections
import json
import pathlib
import random
import shutil
import sys
import tempfile

import peft
import torch
import transformers
from safetensors.torch import load_file, save_file

from compare_configs import ARCHITECTURES, HYBRIDS, LOGIT_ERROR, OF_EXPERTS, ROOT, Engine, clean, randomize, worst

DENSE = [family for family in ARCHITECTURES if family not in (*HYBRIDS, *OF_EXPERTS)]
MODULES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
GREEDY_LEN = 6
SIZE = 0.5  # of an adapter's change, as a share of the deviation of the model's own weights


def path_of(rng, num_layers):
    """A module's path, or the end of it."""
    name = rng.choice(MODULES)
    block = "self_attn" if name[0] in "qkvo" else "mlp"
    layer = rng.randrange(num_layers)
    return rng.choice([name, f"{block}.{name}", f"{layer}.{block}.{name}", f"model.layers.{layer}.{block}.{name}"])


def expression(rng, num_layers):
    some = "|".join(rng.sample(MODULES, rng.randint(1, 4)))
    layer = rng.randrange(num_layers)
    return rng.choice([rf".*\.({some})", rf".*\.{layer}\..*\.({some})", rf"model\.layers\.\d+\.(self_attn|mlp)\.({some})",
                       rf"^(?!.*\.{layer}\.).*_proj$", rf".*layers\.[0-{layer}]\.[a-z_]+\.({some})"])  # fmt: skip


def pattern(rng, num_layers, values):
    """{key: value} of modules. The first match counts. PEFT's files have the keys sorted, so these
    are sorted, too: otherwise PEFT's own model would differ from its file.
    """
    keys = [rng.choice([path_of(rng, num_layers), rf".*\.{rng.randrange(num_layers)}\..*", rf"{rng.choice('qkv')}_proj"])
            for _ in range(rng.randint(1, 3))]  # fmt: skip
    return {key: values() for key in sorted(keys)}


def lora_config(rng, num_layers):
    def rank():
        return rng.choice([1, 2, 3, 4, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64])

    def alpha():
        return rng.choice([1, 2, 8, 16, 5, 100])

    settings = {"r": rank(), "lora_alpha": alpha(), "use_rslora": rng.random() < 0.3}
    kind = rng.choice(["names", "names", "paths", "expression", "all-linear"])
    if kind == "names":
        settings["target_modules"] = rng.sample(MODULES, rng.randint(1, len(MODULES)))
    elif kind == "paths":
        settings["target_modules"] = [path_of(rng, num_layers) for _ in range(rng.randint(1, 5))]
    else:
        settings["target_modules"] = expression(rng, num_layers) if kind == "expression" else kind
    if rng.random() < 0.3:
        settings["exclude_modules"] = rng.choice([expression(rng, num_layers), [path_of(rng, num_layers)]])
    if rng.random() < 0.4:
        settings["rank_pattern"] = pattern(rng, num_layers, rank)
    if rng.random() < 0.4:
        settings["alpha_pattern"] = pattern(rng, num_layers, alpha)
    if rng.random() < 0.25 and not isinstance(settings["target_modules"], str):
        settings["layers_to_transform"] = rng.choice([0, [num_layers - 1], list(range(num_layers))])
        if rng.random() < 0.4:
            settings["layers_pattern"] = rng.choice(["layers", ["layers"], ["blocks", "layers"]])
    return settings


def adapted(model, settings, dtype, directory, is_safe):
    """PEFT's model, whose files are written into the directory, tensors as safetensors or by torch.save; or None, and
    the reason.
    """
    try:
        model = peft.get_peft_model(model, peft.LoraConfig(**settings)).eval()
    except (ValueError, KeyError, TypeError) as error:
        return None, f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, peft.tuners.lora.LoraLayer)}
    with torch.no_grad():
        for layer in layers.values():
            a, b = layer.lora_A["default"].weight, layer.lora_B["default"].weight
            size = SIZE * layer.get_base_layer().weight.std() / (layer.scaling["default"] * a.shape[0] ** 0.5)
            a.copy_(torch.randn_like(a).to(dtype).float())
            b.copy_((torch.randn_like(b) * size).to(dtype).float())
    model.save_pretrained(directory, safe_serialization=is_safe)
    path = directory / ("adapter_model.safetensors" if is_safe else "adapter_model.bin")
    load, save = (load_file, save_file) if is_safe else (torch.load, torch.save)
    save({name: tensor.to(dtype) for name, tensor in load(path).items()}, path)
    return model, None


def continued(model, ids):
    """Greedy tokens, and the smallest gap between the two best logits of any of them."""
    ids, gap = list(ids), float("inf")
    for _ in range(GREEDY_LEN):
        best = model(torch.tensor([ids]), use_cache=False).logits[0, -1].topk(2)
        gap = min(gap, float(best.values[0] - best.values[1]))
        ids.append(int(best.indices[0]))
    return ids[-GREEDY_LEN:], gap


def run_case(seed, engine, place):
    rng = random.Random(seed)
    torch.manual_seed(seed)
    config = clean(rng, DENSE)
    model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(**config))
    randomize(model, seed)
    directory = pathlib.Path(place) / str(seed)
    directory.mkdir()
    tensors = {name: value.to(torch.bfloat16).contiguous() for name, value in model.state_dict().items()}
    if config["tie_word_embeddings"]:
        tensors.pop("lm_head.weight", None)
    (directory / "config.json").write_text(json.dumps(config))
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    model = transformers.AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.float32, attn_implementation="eager"
    )
    settings = lora_config(rng, config["num_hidden_layers"])
    dtype = rng.choice([torch.float32, torch.bfloat16, torch.float16])
    case = {"seed": seed, "family": config["model_type"], "settings": settings, "dtype": str(dtype)}
    case["tp"] = tp = rng.choice([1, 2]) if config["num_attention_heads"] % 2 == 0 else 1
    model, case["peft"] = adapted(model.eval(), settings, dtype, directory / "adapter", is_safe=rng.random() < 0.75)
    if model is None:  # writes the files that PEFT would have written
        (directory / "adapter").mkdir(exist_ok=True)
        described = {
            **peft.LoraConfig(**{**settings, "exclude_modules": None}).to_dict(),
            **settings,
            "peft_type": "LORA",
        }
        (directory / "adapter" / "adapter_config.json").write_text(json.dumps(described, default=list))
        save_file({}, directory / "adapter" / "adapter_model.safetensors")
    prompts = [[rng.randrange(config["vocab_size"]) for _ in range(n)] for n in (1, 19, 70)]
    question = {
        "dir": str(directory),
        "tp": tp,
        "prompts": prompts,
        "adapter": str(directory / "adapter"),
        "greedy": GREEDY_LEN,
    }
    answer = engine.ask(question)
    case["engine"] = answer.get("error")
    if model is None:
        case["outcome"] = "both refuse" if case["engine"] else "PEFT REFUSES"
        return case
    if case["engine"]:
        case["outcome"] = "too many ranks" if "split over tp" in case["engine"] else "THE ENGINE REFUSES"
        return case
    with torch.no_grad():
        expected = [model(torch.tensor([prompt]), use_cache=False).logits[0].double() for prompt in prompts]
        continuations = [continued(model, prompt) for prompt in prompts]
        with model.disable_adapter():
            plain = model(torch.tensor([prompts[1]]), use_cache=False).logits[0].double()
    case["added"] = float((expected[1] - plain).abs().max())
    case["error"] = worst(answer["logits"], expected)
    wrong = [ids for (ids, gap), mine in zip(continuations, answer["greedy"]) if mine != ids and gap > 2 * LOGIT_ERROR]
    case["outcome"] = "the same" if case["error"] <= LOGIT_ERROR and not wrong else "DIFFERENT"
    return case


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--num", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1, help="of the first case")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--program", default=ROOT / "build" / "cpu" / "bin" / "pitstop_config_logits")
    options = parser.parse_args()
    torch.set_num_threads(1)
    engine = Engine(options.program)
    counts, largest, least, bad = collections.Counter(), 0.0, float("inf"), []
    with tempfile.TemporaryDirectory() as place:
        for seed in range(options.seed, options.seed + options.num):
            case = run_case(seed, engine, place)
            shutil.rmtree(pathlib.Path(place) / str(seed))
            counts[case["outcome"]] += 1
            if case["outcome"] == "the same":
                largest, least = max(largest, case["error"]), min(least, case["added"])
            if case["outcome"].isupper():
                bad.append(case)
            if options.list:
                print(json.dumps(case), flush=True)
    engine.close()
    for case in bad:
        print(json.dumps(case))
    print(
        f"peft {peft.__version__}, torch {torch.__version__}: {options.num} adapters, "
        + ", ".join(f"{outcome}: {num}" for outcome, num in sorted(counts.items()))
        + f"; largest difference of a logit where they are the same: {largest:.2g}, least that an adapter adds: {least:.2g}"
    )
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
