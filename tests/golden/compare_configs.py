#!/usr/bin/env python3
"""Random configurations of the families, the odd ones included: read as transformers reads them, or refused.

For each, a tiny model of random weights is written as a checkpoint directory, its config.json is changed, and both
transformers and the engine load it and compute in fp32. Either the logits agree within 1e-4, or one of the two refuses.
The engine's refusal names a key that was changed. Runs nightly. The reference's packages are not among the tests'
requirements:

    python3 -m venv /tmp/golden && /tmp/golden/bin/pip install torch transformers
    ninja -C build/cpu pitstop_config_logits
    /tmp/golden/bin/python tests/golden/compare_configs.py [--num 300] [--seed 1] [--list]

Exits with 1 if logits differ, or a refusal names nothing of what was changed; a line of JSON for each such case says
how to make it again. --list prints every case with what transformers did.

Where the two differ by more than 1e-4, both are compared with double precision, by the root of the mean square over all
logits (the largest error is one token's chance). The engine's distance may be twice transformers' in one case, and no
larger in the mean of all such cases. transformers' own logits of hybrid models are up to 1e-3 off: the norm behind a
recurrence divides by a sum that may cancel. Over 40 such configurations the ratio of the engine's distance to
transformers' was 0.59, and 0.85 in the third worst. Of 1,500 configurations with experts, one needed this comparison:
0.51.
"""

import argparse
import collections
import json
import math
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import warnings

os.environ["TRANSFORMERS_VERBOSITY"] = "critical"
os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
warnings.simplefilter("ignore")
import torch  # noqa: E402
import transformers  # noqa: E402
from safetensors.torch import save_file  # noqa: E402

from hybrid_configs import HYBRIDS, exact_logits, hybrid, odd_hybrids, wrapped  # noqa: E402
from make_golden import randomize  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
LOGIT_ERROR = 1e-4  # as in tests/tp_worker/model/golden_test.cpp
LONG = 2000  # tokens of a prompt, for hybrids whose context has room for it
RATIO_MAX = 2.0  # limit of the engine's distance from double precision over transformers', in one case
ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen2_moe": "Qwen2MoeForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "qwen3_next": "Qwen3NextForCausalLM",
    "qwen3_5_text": "Qwen3_5ForCausalLM",
    "qwen3_5_moe_text": "Qwen3_5MoeForCausalLM",
}
OF_EXPERTS = ("qwen2_moe", "qwen3_moe", "mixtral", "qwen3_next", "qwen3_5_moe_text")
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


def clean(rng, families):
    """A valid configuration of a random family, in one of the ways to write it."""
    family = rng.choice(families)
    if family in HYBRIDS:
        return hybrid(rng, family, ARCHITECTURES[family], rope(rng), experts)
    heads = rng.choice([2, 4, 6])
    kv_heads = rng.choice([k for k in (1, 2, 3, heads) if heads % k == 0])
    head_dim = rng.choice([8, 10, 16, 24, 32, 64])
    layers = rng.choice([1, 2, 3])
    config = {
        "architectures": [ARCHITECTURES[family]],
        "model_type": family,
        "vocab_size": rng.choice([61, 67, 96]),
        "hidden_size": heads * rng.choice([8, 12, 20]),
        "intermediate_size": rng.choice([24, 56, 100]),
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "max_position_embeddings": rng.choice([128, 256]),  # the prompts fit
        "rms_norm_eps": rng.choice([1e-5, 1e-6]),
        "tie_word_embeddings": rng.random() < 0.4,
        "hidden_act": rng.choice(["silu", "silu", "swish"]),
        "bos_token_id": 1,
        "eos_token_id": rng.choice([2, [2, 3], None]),
    }
    if family == "llama":
        config["attention_bias"], config["mlp_bias"] = rng.random() < 0.3, rng.random() < 0.3
    if family in ("qwen3", "qwen3_moe"):
        config["attention_bias"] = rng.random() < 0.3
    if family in ("mistral", "mixtral"):
        config["sliding_window"] = rng.choice([None, 4, 9, 4096])
    if family.startswith("qwen"):
        config["use_sliding_window"] = rng.random() < 0.5
        config["sliding_window"] = rng.choice([None, 3, 8, 4096])
        config["max_window_layers"] = rng.choice([0, 1, 2, 28])
    if family in OF_EXPERTS:
        config.update(experts(rng, family, layers))
    if family not in ("mistral", "mixtral", "qwen3_moe"):  # with layer_types, these would become another model
        if rng.random() < 0.3 and config.get("sliding_window") and config.get("use_sliding_window"):
            config["layer_types"] = [rng.choice(["full_attention", "sliding_attention"]) for _ in range(layers)]
    if family not in ("qwen3", "mixtral") and rng.random() < 0.3:  # Mixtral's YaRN multiplies by head_dim
        del config["head_dim"]
    config.update(rope(rng))
    return config


def experts(rng, family, layers):
    num = rng.choice([1, 2, 5, 8, 33])
    keys = {"num_experts_per_tok": rng.randint(1, min(num, 6))}
    if family == "mixtral":
        keys["num_local_experts"] = num
        if rng.random() < 0.2:
            keys["router_jitter_noise"] = 0.1
        return keys
    keys[
        rng.choice(["num_experts", "num_experts", "num_local_experts"] if family == "qwen3_moe" else ["num_experts"])
    ] = num
    keys["moe_intermediate_size"] = rng.choice([8, 24, 50])
    keys["output_router_logits"] = rng.random() < 0.2
    if rng.random() < 0.7:
        keys["norm_topk_prob"] = rng.random() < 0.6
    if rng.random() < 0.5:
        keys["decoder_sparse_step"] = rng.choice([1, 1, 2, 3])
    if rng.random() < 0.5:
        keys["mlp_only_layers"] = rng.choice([[], [0], [layers - 1], None, [2, 0], [7]])
    if family == "qwen2_moe":
        keys["shared_expert_intermediate_size"] = rng.choice([8, 24, 60])
        if rng.random() < 0.5:
            keys["qkv_bias"] = rng.random() < 0.5
    return keys


def rope(rng):
    theta = rng.choice([10000.0, 500000.0, 1e6, 10000])
    original = rng.choice([16, 32, 64])
    llama3 = {"factor": rng.choice([2.0, 8.0]), "low_freq_factor": rng.choice([1.0, 1.5]),
              "high_freq_factor": rng.choice([2.0, 4.0])}  # fmt: skip
    yarn = {"factor": rng.choice([1.0, 2, 4.0, 7.5])}
    for key, values in (
        ("beta_fast", [32, 16.0, 4, 0, None]), ("beta_slow", [1, 0.5, 2, None]),
        ("attention_factor", [1.25, 0.9, None]), ("mscale", [1.0, 0.7, 0]), ("mscale_all_dim", [1.0, 0.8, 0]),
        ("truncate", [True, False, None]),
    ):  # fmt: skip
        if rng.random() < 0.3:
            yarn[key] = rng.choice(values)
    kind = rng.choice(["default", "default", "linear", "llama3", "yarn", "yarn"])
    scaling = {"linear": {"factor": rng.choice([2.0, 3])}, "llama3": llama3, "yarn": yarn}.get(kind, {})
    if kind in ("llama3", "yarn") and rng.random() < 0.7:
        scaling["original_max_position_embeddings"] = original
    if kind == "yarn" and "original_max_position_embeddings" in scaling and rng.random() < 0.2:
        scaling["factor"] = None
    scaling[rng.choice(["rope_type", "rope_type", "type"])] = kind
    form = rng.choice(["scaling", "parameters", "parameters with theta", "both", "none"])
    if form == "none":
        return {"rope_theta": theta}
    if form == "scaling":
        return {"rope_theta": theta, "rope_scaling": scaling}
    if form == "parameters":
        return {"rope_theta": theta, "rope_parameters": scaling}
    if form == "parameters with theta":
        return {"rope_parameters": {**scaling, "rope_theta": theta}}
    inner = {"rope_theta": theta} if rng.random() < 0.5 else {}
    return {"rope_scaling": {**scaling, **inner},
            "rope_parameters": {"rope_type": "default", "rope_theta": 777.0}}  # fmt: skip


DELETED = object()


def oddities(rng, config):
    """(the keys that change, how): ways to make a configuration strange."""
    null = None
    other = rng.choice([a for a in ARCHITECTURES if a != config["model_type"]])
    nullable = ["head_dim", "num_key_value_heads", "sliding_window", "max_window_layers", "rope_theta",
                "use_sliding_window", "tie_word_embeddings", "attention_bias", "mlp_bias", "rms_norm_eps",
                "hidden_act", "max_position_embeddings", "layer_types", "is_causal", "rope_scaling",
                "rope_parameters", "eos_token_id", "architectures"]  # fmt: skip
    missing = ["head_dim", "num_key_value_heads", "sliding_window", "max_window_layers", "rope_theta",
               "use_sliding_window", "tie_word_embeddings", "rms_norm_eps", "hidden_act", "architectures",
               "model_type", "rope_parameters", "rope_scaling"]  # fmt: skip
    values = [
        {"is_causal": False}, {"is_causal": True}, {"is_causal": 0},
        {"model_type": other}, {"architectures": [ARCHITECTURES[other]]}, {"architectures": []},
        {"architectures": ["GPT2LMHeadModel"]},
        {"use_sliding_window": True, "sliding_window": DELETED, "max_window_layers": 0},
        {"use_sliding_window": True, "sliding_window": null, "max_window_layers": 0},
        {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": -1},
        {"max_window_layers": "1"}, {"max_window_layers": 1.0}, {"max_window_layers": True},
        {"sliding_window": 0}, {"sliding_window": -3}, {"sliding_window": "7"},
        {"use_sliding_window": False, "sliding_window": 0},
        {"layer_types": ["full_attention"] * config["num_hidden_layers"]},
        {"layer_types": ["attention"] * config["num_hidden_layers"]},
        {"layer_types": ["sliding_attention"] * config["num_hidden_layers"], "sliding_window": 6,
         "use_sliding_window": True},
        {"layer_types": ["sliding_attention"] * config["num_hidden_layers"], "sliding_window": null},
        {"layer_types": ["full_attention"] * (config["num_hidden_layers"] + 1)},
        {"partial_rotary_factor": 0.5}, {"partial_rotary_factor": 1.0},
        {"rope_scaling": {}}, {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}},
        {"rope_scaling": {"rope_type": null}}, {"rope_scaling": {"type": "linear"}},
        {"rope_scaling": {"type": "yarn", "original_max_position_embeddings": 16}},
        {"rope_scaling": {"type": "linear", "rope_type": "default", "factor": 2.0}},
        {"rope_scaling": {"type": "yarn", "factor": 4.0, "truncate": null}},
        {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}, "original_max_position_embeddings": 20},
        {"rope_scaling": {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0,
                          "high_freq_factor": 4.0}},
        {"rope_scaling": {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0,
                          "high_freq_factor": 4.0}, "original_max_position_embeddings": 24},
        {"rope_scaling": {"rope_type": "yarn", "factor": 4.0,
                          "original_max_position_embeddings": 16},
         "rope_parameters": {"rope_type": "linear", "factor": 3.0, "rope_theta": 5e5}},
        {"rope_theta": "10000"}, {"rope_parameters": {"full_attention": {"rope_type": "default"}}},
        {"hidden_size": float(config["hidden_size"])}, {"hidden_act": "gelu"}, {"tie_word_embeddings": 1},
        {"attention_bias": 0}, {"quantization_config": {"bits": 4}}, {"unheard_of": {"a": [1]}},
        {"torch_dtype": "float16"}, {"use_cache": False}, {"pretraining_tp": 2},
    ]  # fmt: skip
    if config["model_type"] in HYBRIDS and rng.random() < 0.5:
        return rng.choice(odd_hybrids(config, DELETED))
    if config["model_type"] in OF_EXPERTS:
        values = [*values, *odd_experts(config)] if rng.random() < 0.3 else odd_experts(config)
    kind = rng.random()
    if kind < 0.2:
        return {rng.choice(nullable): null}
    if kind < 0.35:
        return {rng.choice(missing): DELETED}
    return rng.choice(values)


def odd_experts(config):
    return [
        {"num_experts_per_tok": 0}, {"num_experts_per_tok": 40}, {"num_experts_per_tok": DELETED},
        {"num_experts": 0}, {"num_experts": 3}, {"num_local_experts": 3}, {"num_experts": None},
        {"moe_intermediate_size": 16}, {"moe_intermediate_size": DELETED}, {"moe_intermediate_size": None},
        {"norm_topk_prob": DELETED}, {"norm_topk_prob": None}, {"norm_topk_prob": 1},
        {"decoder_sparse_step": 0}, {"decoder_sparse_step": -1}, {"decoder_sparse_step": None},
        {"mlp_only_layers": [0, 0]}, {"mlp_only_layers": [-1]}, {"mlp_only_layers": 0}, {"mlp_only_layers": ["0"]},
        {"qkv_bias": None}, {"qkv_bias": DELETED}, {"shared_expert_intermediate_size": DELETED},
        {"layer_types": ["full_attention"] * config["num_hidden_layers"]}, {"router_aux_loss_coef": 0.5},
        {"n_shared_experts": 2}, {"shared_expert_intermediate_size": 16}, {"intermediate_size": 24},
    ]  # fmt: skip


def changed(config, changes):
    merged = {**config, **changes}
    return {key: value for key, value in merged.items() if value is not DELETED}


def by_expert(tensors, is_mixtral):
    """In the published form, a tensor per expert: transformers' own modules join a layer's experts in two tensors."""
    apart = {}
    block = ".block_sparse_moe." if is_mixtral else ".mlp."
    gate, up, down = ("w1", "w3", "w2") if is_mixtral else ("gate_proj", "up_proj", "down_proj")
    for name, value in tensors.items():
        layer, is_experts, kind = name.partition(".mlp.experts.")
        if not is_experts:
            apart[name.replace(".mlp.", block)] = value
            continue
        for number, expert in enumerate(value):
            prefix = f"{layer}{block}experts.{number}"
            if kind == "gate_up_proj":
                apart[f"{prefix}.{gate}.weight"], apart[f"{prefix}.{up}.weight"] = expert.chunk(2)
            else:
                apart[f"{prefix}.{down}.weight"] = expert
    return apart


def stored_weights(rng, config, model):
    """The file's content, and how it was made odd: the names that a refusal may give."""
    tensors = {name: value.to(torch.bfloat16) for name, value in model.state_dict().items()}
    if config["model_type"] in OF_EXPERTS and rng.random() < 0.7:  # otherwise in the form of transformers' modules
        tensors = by_expert(tensors, config["model_type"] == "mixtral")
    odd = []
    if config.get("tie_word_embeddings") is True:
        tensors.pop(HEAD, None)
        kind = rng.random()
        if kind < 0.15:
            tensors[HEAD] = tensors[EMBEDDING].clone()
        elif kind < 0.3:
            tensors[HEAD] = tensors.pop(EMBEDDING)
        elif kind < 0.4:
            tensors[HEAD] = tensors[EMBEDDING].flip(0).contiguous()
            odd.append("tie_word_embeddings")
    if config["model_type"] in HYBRIDS and rng.random() < 0.5:
        tensors["mtp.norm.weight"] = torch.zeros(4)
        tensors["mtp.layers.0.mlp.down_proj.weight"] = torch.zeros(4, 4)
    if rng.random() < 0.1:
        tensors["v_head.summary.weight"] = torch.zeros(3)
    if rng.random() < 0.1:
        name = f"model.layers.{config['num_hidden_layers']}.input_layernorm.weight"
        tensors[name] = torch.ones(4)
        odd.append(name)
    dtype = rng.choice([torch.bfloat16] * 4 + [torch.float32])  # the numbers stay the same
    return {name: value.to(dtype).contiguous() for name, value in tensors.items()}, odd


def reference(directory, prompts, of_experts):
    """transformers' logits, or the reason why there are none."""
    # transformers' other implementations of experts accept no odd sizes.
    eager = {"experts_implementation": "eager"} if of_experts else {}
    try:
        model, info = transformers.AutoModelForCausalLM.from_pretrained(
            directory, dtype=torch.float32, attn_implementation="eager", output_loading_info=True, **eager
        )
        lacking = sorted(info["missing_keys"]) + sorted(map(str, info["mismatched_keys"]))
        if lacking:
            return None, f"lacks {lacking[0]}"
        with torch.no_grad():
            ids = [torch.tensor([prompt]) for prompt in prompts]
            return [model.eval()(one, use_cache=False).logits[0].double() for one in ids], None
    except Exception as error:  # any exception is a refusal by transformers
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        return None, f"{type(error).__name__}: {' '.join(lines)[:160]}"


class Engine:
    def __init__(self, program):
        self.process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, question):
        self.process.stdin.write(json.dumps(question) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"the engine died on {question['dir']}")
        return json.loads(line)

    def logits(self, directory, tp, ep, prompts):
        num = max(300, max(map(len, prompts)) + 20)
        answer = self.ask({"dir": str(directory), "tp": tp, "ep": ep, "tokens": num, "prompts": prompts})
        return answer.get("logits"), answer.get("error")

    def close(self):
        self.process.stdin.close()
        self.process.wait(10)


def worst(logits, expected):
    pairs = zip(logits, expected)
    return max(float((torch.as_tensor(mine).double() - theirs).abs().max()) for mine, theirs in pairs)


def distance(logits, exact):
    """The root of the mean square over all logits."""
    squares = [(torch.as_tensor(mine).double() - right).square().flatten() for mine, right in zip(logits, exact)]
    return float(torch.cat(squares).mean().sqrt())


def run_case(seed, engine, place, families):
    rng = random.Random(seed)
    torch.manual_seed(seed)
    config = clean(rng, families)
    changes = oddities(rng, config) if rng.random() < 0.6 else {}
    auto = transformers.AutoConfig.for_model(**config)
    model = transformers.AutoModelForCausalLM.from_config(auto)
    randomize(model, seed)
    tensors, odd = stored_weights(rng, config, model)
    directory = pathlib.Path(place) / str(seed)
    directory.mkdir()
    written, is_wrapped = wrapped(rng, changed(config, changes))
    if is_wrapped:
        tensors = {name.replace("model.", "model.language_model.", 1) if name.startswith("model.") else name: value
                   for name, value in tensors.items()}  # fmt: skip
        tensors["model.visual.patch_embed.proj.weight"] = torch.zeros(2, 2)
    (directory / "config.json").write_text(json.dumps(written))
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    lengths = (1, rng.choice([19, 63, 64, 65]), 200) if config["model_type"] in HYBRIDS else (1, 19, 90)
    if config["max_position_embeddings"] > LONG:
        lengths = (*lengths, LONG)
    prompts = [[rng.randrange(config["vocab_size"]) for _ in range(n)] for n in lengths]
    expected, why = reference(directory, prompts, config["model_type"] in OF_EXPERTS)
    splits = config["num_attention_heads"] % 2 == 0 and config.get("linear_num_key_heads", 2) % 2 == 0
    tp = 2 if splits and rng.random() < 0.3 else 1
    has_experts = (
        config["model_type"] in OF_EXPERTS and (config.get("num_experts") or config.get("num_local_experts") or 0) > 1
    )
    ep = rng.choice([1, tp]) if has_experts else 1
    logits, error = engine.logits(directory, tp, ep, prompts)
    case = {"seed": seed, "family": config["model_type"], "tp": tp, "ep": ep,
            "changes": {k: "deleted" if v is DELETED else v for k, v in changes.items()},
            "odd": odd, "transformers": why, "engine": error}  # fmt: skip
    if logits is None:
        keys = [*changes, *odd]
        inner = [k for v in changes.values() if isinstance(v, dict) for k in v]
        # A changed size is named by the shapes of the tensors that contradict it.
        is_of_shape = "does not hold this model's weights" in error
        is_named = any(key in error for key in keys + inner) or is_of_shape or "split over tp" in error
        case["outcome"] = "both refuse" if expected is None else "the engine refuses"
        if not is_named:
            case["outcome"] = "REFUSED WITHOUT A NAME"
        return case
    if expected is None:
        case["outcome"] = "transformers refuses"
        return case
    case["error"] = worst(logits, expected)
    case["outcome"] = "the same" if case["error"] <= LOGIT_ERROR else "DIFFERENT"
    if case["outcome"] == "DIFFERENT":
        eager = {"experts_implementation": "eager"} if config["model_type"] in OF_EXPERTS else {}
        exact = exact_logits(directory, prompts, **eager)
        mine, theirs = distance(logits, exact), distance(expected, exact)
        case.update(distance=mine, distance_of_transformers=theirs)
        if mine <= RATIO_MAX * theirs:
            case["outcome"] = "judged in double precision"
    return case


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--num", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1, help="of the first case")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--family", action="append", choices=ARCHITECTURES, help="this one alone; again for another")
    parser.add_argument("--program", default=ROOT / "build" / "cpu" / "bin" / "pitstop_config_logits")
    options = parser.parse_args()
    engine = Engine(options.program)
    counts, worst, bad, ratios = collections.Counter(), 0.0, [], []
    with tempfile.TemporaryDirectory() as place:
        for seed in range(options.seed, options.seed + options.num):
            case = run_case(seed, engine, place, options.family or list(ARCHITECTURES))
            shutil.rmtree(pathlib.Path(place) / str(seed))
            counts[case["outcome"]] += 1
            worst = max(worst, case.get("error", 0.0)) if case["outcome"] == "the same" else worst
            if case["outcome"] == "judged in double precision":
                ratios.append(case["distance"] / case["distance_of_transformers"])
            if case["outcome"].isupper():
                bad.append(case)
            if options.list:
                print(json.dumps(case))
    engine.close()
    for case in bad:
        print(json.dumps(case))
    print(f"transformers {transformers.__version__}, torch {torch.__version__}: {options.num} configurations, "
          + ", ".join(f"{outcome}: {num}" for outcome, num in sorted(counts.items()))
          + f"; largest difference of a logit where they are the same: {worst:.2g}")  # fmt: skip
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else 0.0
    if ratios:
        print(
            f"judged in double precision: the engine's distance is {mean:.2f} of transformers', {max(ratios):.2f} at most"
        )
    return 1 if bad or mean > 1 else 0


if __name__ == "__main__":
    sys.exit(main())
