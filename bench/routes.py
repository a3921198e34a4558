#!/usr/bin/env python3
"""The cost of returning routes in decode, and of sending routes in scoring.

    bench/routes.py --build build/cpu [--pairs 15] [--streams 8] [--tokens 96] [--json out.json]

Writes a model of experts with random weights (24 layers, 8 of 64 experts a token) and starts one tree. Each pair
decodes the same requests with and without routes, in alternating order. A pair's ratios compare the CPU seconds of the
tree's processes (hardly affected by other programs) and wall seconds. The result is the median ratio. Scoring with and
without sent routes is measured in the same way.
"""

import argparse
import json
import os
import pathlib
import re
import statistics
import struct
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "client" / "python"))

import numpy  # noqa: E402  (after the path)

import pitstop  # noqa: E402

SHAPE = {
    "hidden": 512,
    "width": 192,
    "layers": 24,
    "experts": 64,
    "chosen": 8,
    "heads": 8,
    "kv": 2,
    "head": 64,
    "vocab": 2048,
}
PROMPT_LEN = 32
TICKS = os.sysconf("SC_CLK_TCK")


def weights(shape):
    """Yields (name, shape) of a Qwen3-MoE's tensors."""
    H, W, D = shape["hidden"], shape["width"], shape["head"]
    yield "model.embed_tokens.weight", (shape["vocab"], H)
    for layer in range(shape["layers"]):
        at = f"model.layers.{layer}"
        yield f"{at}.input_layernorm.weight", (H,)
        yield f"{at}.post_attention_layernorm.weight", (H,)
        for name, rows in ("q", shape["heads"]), ("k", shape["kv"]), ("v", shape["kv"]):
            yield f"{at}.self_attn.{name}_proj.weight", (rows * D, H)
        yield f"{at}.self_attn.o_proj.weight", (H, shape["heads"] * D)
        yield f"{at}.self_attn.q_norm.weight", (D,)
        yield f"{at}.self_attn.k_norm.weight", (D,)
        yield f"{at}.mlp.gate.weight", (shape["experts"], H)
        for expert in range(shape["experts"]):
            yield f"{at}.mlp.experts.{expert}.gate_proj.weight", (W, H)
            yield f"{at}.mlp.experts.{expert}.up_proj.weight", (W, H)
            yield f"{at}.mlp.experts.{expert}.down_proj.weight", (H, W)
    yield "model.norm.weight", (H,)
    yield "lm_head.weight", (shape["vocab"], H)


def write_model(directory, shape):
    """Writes the model; returns the bytes of its weights."""
    directory.mkdir()
    stories = ROOT / "launch/models/stories"
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (directory / name).write_bytes((stories / name).read_bytes())
    config = {
        "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "vocab_size": shape["vocab"],
        "hidden_size": shape["hidden"], "intermediate_size": shape["width"], "moe_intermediate_size": shape["width"],
        "num_hidden_layers": shape["layers"], "num_experts": shape["experts"], "num_experts_per_tok": shape["chosen"],
        "num_attention_heads": shape["heads"], "num_key_value_heads": shape["kv"], "head_dim": shape["head"],
        "norm_topk_prob": True, "rms_norm_eps": 1e-6, "rope_theta": 1e6, "max_position_embeddings": 4096,
        "tie_word_embeddings": False, "eos_token_id": 2047, "torch_dtype": "bfloat16",
    }  # fmt: skip
    (directory / "config.json").write_text(json.dumps(config))
    random = numpy.random.default_rng(1)
    header, end = {}, 0
    for name, dims in weights(shape):
        begin, end = end, end + 2 * int(numpy.prod(dims))
        header[name] = {"dtype": "BF16", "shape": list(dims), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    with open(directory / "model.safetensors", "wb", buffering=64 << 20) as file:  # gets large folios in the page cache
        file.write(struct.pack("<Q", len(text)) + text)
        for _, dims in weights(shape):
            is_norm = len(dims) == 1
            values = numpy.ones(dims) if is_norm else random.standard_normal(dims) / numpy.sqrt(dims[-1])
            file.write((values.astype(numpy.float32).view(numpy.uint32) >> 16).astype(numpy.uint16).tobytes())
    return end


def machine():
    model = re.search(r"model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text())
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=12"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return {
        "command": "bench/routes.py " + " ".join(sys.argv[1:]),
        "commit": commit.stdout.strip(),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "cpu": model.group(1) if model else "",
        "cores": os.cpu_count(),
    }


def cpu_seconds(root):
    """The CPU seconds so far of a process and all its descendants."""
    children, ticks = {}, {}
    for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        pid = int(path.parent.name)
        children.setdefault(int(fields[1]), []).append(pid)
        ticks[pid] = int(fields[11]) + int(fields[12])
    total, left = 0, [root]
    while left:
        pid = left.pop()
        total += ticks.get(pid, 0)
        left += children.get(pid, [])
    return total / TICKS


class Meter:
    """Measures the CPU time of this process's tree."""

    def __init__(self, pid):
        self.pid = pid

    def run(self, work):
        """Runs `work`; returns (CPU seconds, wall seconds, its result)."""
        cpu, begin = cpu_seconds(self.pid), time.perf_counter()
        result = work()
        return cpu_seconds(self.pid) - cpu, time.perf_counter() - begin, result


def pairs_of(meter, num, plain, other):
    """Ratios of `other` to `plain` from `num` pairs, with alternating order."""
    ratios = {"cpu": [], "wall": []}
    loads = []
    for pair in range(num + 1):
        order = [plain, other] if pair % 2 == 0 else [other, plain]
        taken = {work: meter.run(work)[:2] for work in order}
        loads.append(os.getloadavg()[0])
        if pair == 0:
            continue  # the first pair only touches memory
        ratios["cpu"].append(taken[other][0] / taken[plain][0])
        ratios["wall"].append(taken[other][1] / taken[plain][1])
    shown = {"pairs": num, "load": f"{min(loads):.1f} to {max(loads):.1f}"}
    for name, values in ratios.items():
        values.sort()
        middle = statistics.median(values)
        quarter = len(values) // 4
        shown[f"{name}_ratio"] = round(middle, 4)
        shown[f"{name}_quartiles"] = [round(values[quarter], 4), round(values[-1 - quarter], 4)]
    return shown


def measure(options, client, meter):
    random = numpy.random.default_rng(2)
    prompts = [random.integers(0, SHAPE["vocab"] - 1, PROMPT_LEN).tolist() for _ in range(options.streams)]

    def decode(**more):
        streams = [
            client.generate(
                prompt, max_new_tokens=options.tokens, temperature=0, ignore_eos=True, text_output=False, **more
            )
            for prompt in prompts
        ]
        return [stream.result() for stream in streams]

    # With routes the prefix cache is not used, so requests without routes must not use it either.
    def plain():
        client.flush_cache()
        return decode()

    def routed():
        client.flush_cache()
        return decode(routed_experts_start=0)

    told = routed()
    tokens = [prompt + chunk.tokens for prompt, chunk in zip(prompts, told)]
    assert [chunk.tokens for chunk in plain()] == [chunk.tokens for chunk in told]
    row_bytes = len(told[0].routes.experts) // (len(tokens[0]) - 1)

    def score(**more):
        client.flush_cache()
        asked = {
            "logprobs": {"enabled": True, "prompt_start": 0},
            "max_new_tokens": 0,
            "stream": False,
            "text_output": False,
        }
        brought = more.get("brought", [None] * len(tokens))
        streams = [client.generate(each, routed_experts=rows, **asked) for each, rows in zip(tokens, brought)]
        return [stream.result().prompt.logprobs for stream in streams]

    with_routes = [chunk.routes for chunk in told]
    assert score() == score(brought=with_routes), "P6"
    return {
        "bytes of a row": row_bytes,
        "decode, routes returned": pairs_of(meter, options.pairs, plain, routed),
        "decode, without both times": pairs_of(meter, options.pairs, plain, decode_again(plain)),
        "scoring, routes brought": pairs_of(meter, options.pairs, score, lambda: score(brought=with_routes)),
    }


def decode_again(plain):
    """A second function that does the same: its ratio is the noise of the measurement."""
    return lambda: plain()


def show(results):
    for name, value in results.items():
        if isinstance(value, dict):
            print(name)
            for key, entry in value.items():
                print(f"  {key:<28} {entry}")
        else:
            print(f"{name:<30} {value}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=lambda path: pathlib.Path(path).resolve(), default=ROOT / "build/cpu")
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        place = pathlib.Path(directory)
        results = machine() | {"model": SHAPE | {"bytes": write_model(place / "model", SHAPE)}}
        results |= {"streams": options.streams, "tokens of each": options.tokens}
        launcher = subprocess.Popen(
            [ROOT / "launch/pitstop", "serve", "--run-dir", place / "tree", "--model", place / "model", "--no-http"]
            + ["--max-total-tokens", "4096"],
            env={**os.environ, "PITSTOP_BUILD": str(options.build)},
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            if not launcher.stdout.readline():
                raise SystemExit("the tree did not start")
            with pitstop.Client(str(place / "tree")) as client:
                results |= measure(options, client, Meter(launcher.pid))
        finally:
            launcher.terminate()
            launcher.wait(30)
    show(results)
    if options.json:
        options.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
