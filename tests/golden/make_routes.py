#!/usr/bin/env python3
"""Makes routes.json of the models of experts in tests/data/golden: which experts transformers' routers choose.

This script reads the models that make_golden.py wrote, and golden.json's prompts. The packages' versions are the same,
and all is fp32:

    /tmp/golden/bin/python tests/golden/make_routes.py

For each prompt: "routes" [token][layer][k], the router's first choice first, zeros in a layer without experts; "gaps"
[token][layer], the smallest difference between the logits of two experts that are neighbors in the router's order, from
the first choice to the first expert that is not chosen. Where a gap is within the error of logits, another choice is
right as well.
"""

import json
import pathlib

import torch
import transformers
from transformers import AutoModelForCausalLM

OUT = pathlib.Path(__file__).resolve().parent.parent / "data" / "golden"
NO_GAP = 1000.0  # the gap in a layer without experts


def layer_of(name):
    return int(name.split("layers.")[1].split(".")[0])


def routers(model):
    return {layer_of(name): each for name, each in model.named_modules() if type(each).__name__.endswith("TopKRouter")}


def routes_of(model, ids):
    """(routes, gaps)"""
    num_layers, k = model.config.num_hidden_layers, model.config.num_experts_per_tok
    routes = torch.zeros(len(ids), num_layers, k, dtype=torch.int64)
    gaps = torch.full((len(ids), num_layers), NO_GAP)

    def keep(layer):
        def hook(router, inputs, outputs):
            (chosen,) = [each for each in outputs if each.dtype == torch.int64]
            routes[:, layer] = chosen.reshape(len(ids), k)
            logits = torch.nn.functional.linear(inputs[0].reshape(len(ids), -1), router.weight)
            order = torch.sort(logits, descending=True).values[:, : k + 1]
            gaps[:, layer] = (order[:, :-1] - order[:, 1:]).min(dim=1).values

        return hook

    hooks = [router.register_forward_hook(keep(layer)) for layer, router in routers(model).items()]
    with torch.no_grad():
        model(torch.tensor([ids]), use_cache=False)
    for hook in hooks:
        hook.remove()
    return routes.tolist(), [[round(gap, 5) for gap in row] for row in gaps.tolist()]


def make(folder):
    eager = {"attn_implementation": "eager", "experts_implementation": "eager"}
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **eager).eval()
    prompts = []
    for prompt in json.loads((folder / "golden.json").read_text())["prompts"]:
        routes, gaps = routes_of(model, prompt["ids"])
        prompts.append({"ids": prompt["ids"], "routes": routes, "gaps": gaps})
    golden = {"transformers": transformers.__version__, "torch": torch.__version__, "prompts": prompts}
    (folder / "routes.json").write_text(json.dumps(golden, separators=(",", ":")) + "\n")
    smallest = min(gap for prompt in prompts for row in prompt["gaps"] for gap in row)
    print(f"{folder.name}: {len(routers(model))} routers, smallest gap {smallest}")


if __name__ == "__main__":
    for path in sorted(OUT.iterdir()):
        config = json.loads((path / "config.json").read_text()) if path.is_dir() else {}
        if "num_experts_per_tok" in config:
            make(path)
