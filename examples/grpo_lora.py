#!/usr/bin/env python3
"""GRPO with an adapter (LoRA): PEFT trains it, and each step replaces it while requests run.

    pip install torch transformers peft matplotlib            as well as pitstop
    python examples/grpo_lora.py --out reward.png

A request keeps the version of the adapter that it began with. Part of each batch is in flight while the next version is
loaded. Each output names its version. Its logprobs are checked here against PEFT's own model of that version, token by token.
"""

import argparse
import copy
import json
import pathlib
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import peft
import torch
import transformers
from torch import nn

import pitstop
from grpo import BEGINNINGS, padded, train

NAME = "policy"


class Policy(nn.Module):
    """The bundled model with an adapter. Returns logprobs [B, T - 1] of ids [B, T] without the first token of each row."""

    def __init__(self, directory, config):
        super().__init__()
        base = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
        self.adapted = peft.get_peft_model(base, config)

    def forward(self, ids):
        logits = self.adapted(ids[:, :-1]).logits
        return logits.log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]

    def tensors(self):
        return {name: each.detach().clone() for name, each in peft.get_peft_model_state_dict(self.adapted).items()}


def check_versions(rows, versions, checker):
    """Compares each output's logprobs with PEFT's model of the version that the output names. Returns the largest error."""
    worst = 0.0
    for number in {out.adapter.version for _, out in rows}:
        assert number in versions, f"an output of version {number}; versions {sorted(versions)} were loaded last"
        digest, tensors = versions[number]
        of_version = [(prompt, out) for prompt, out in rows if out.adapter.version == number]
        assert all(out.adapter.digest == digest for _, out in of_version)
        peft.set_peft_model_state_dict(checker.adapted, tensors)
        ids, theirs = padded(of_version, lambda out: out.logprobs)
        with torch.no_grad():
            worst = max(worst, float((checker(ids) - theirs).abs().nan_to_num(0).max()))
    assert worst < 1e-3, f"a logprob is off by {worst}: another version made that token"
    return worst


def write_report(path, report):
    """Writes the plot, and its numbers as JSON."""
    pathlib.Path(path).with_suffix(".json").write_text(json.dumps(report) + "\n")
    import matplotlib.pyplot as plt

    plt.switch_backend("Agg")
    plt.plot(report["rewards"])
    (
        plt.xlabel("step"),
        plt.ylabel("mean reward"),
        plt.title(f"{report['in_flight']} outputs ran while their adapter was replaced"),
    )
    plt.savefig(path)


def read_flags():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--group", type=int, default=12, help="samples per beginning")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--out", default="reward.png", help="the plot; a .json file is written next to it")
    return parser.parse_args()


def main():
    options = read_flags()
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)  # the engine has the other core
    begin = time.monotonic()
    config = peft.LoraConfig(
        r=options.rank, lora_alpha=2 * options.rank, target_modules="all-linear", task_type="CAUSAL_LM"
    )

    with pitstop.Engine("stories", threads=1, compute="fp32") as engine, ThreadPoolExecutor(3) as pool:
        model = Policy(engine.get_server_info()["model_path"], config)
        checker = copy.deepcopy(model)
        trained = [each for each in model.parameters() if each.requires_grad]
        optimizer = torch.optim.AdamW(trained, lr=3e-3, weight_decay=0.0)
        versions = {}

        def load(label):
            tensors = model.tensors()
            engine.load_adapter(NAME, tensors, config, label=label)
            loaded = next(each for each in engine.adapters() if each.name == NAME)
            versions[loaded.version] = loaded.digest, tensors
            for old in sorted(versions)[:-2]:
                del versions[old]
            return loaded.version

        prompts = [engine.tokenize(text) for text in BEGINNINGS for _ in range(options.group)]
        # Most of each batch is sampled while the previous batch is used for training, one group while the next version
        # is loaded, and one group after that.
        during, after = len(prompts) - 2 * options.group, len(prompts) - options.group

        def sample(step, first, end, is_begun=threading.Event()):
            ids, latest = prompts[first:end], {}
            how = [{"max_new_tokens": 80, "seed": 1000003 * options.seed + 1009 * step + i} for i in range(first, end)]
            stream = engine.generate(input_ids=ids, sampling_params=how, return_logprob=True, stream=True, adapter=NAME)
            for out in stream:
                latest[out.index] = out
                is_begun.set()
            return [(prompt, latest[i]) for i, prompt in enumerate(ids)]

        newest = load("start")
        parts = [pool.submit(sample, 0, *part) for part in ((0, during), (during, after), (after, len(prompts)))]
        rewards, in_flight, worst = [], 0, 0.0
        for step in range(options.steps):
            rows = [row for part in parts for row in part.result()]
            worst = max(worst, check_versions(rows, versions, checker))
            assert all(out.adapter.version == newest for _, out in rows[after:]), (
                "an output begun after a load has the old version"
            )
            mean, ahead = train(model, optimizer, rows, options.group, lambda: pool.submit(sample, step + 1, 0, during))
            rewards.append(mean)
            is_begun = threading.Event()
            beside = pool.submit(sample, step + 1, during, after, is_begun)
            is_begun.wait(60)
            newest = load(f"step {step}")
            in_flight += options.group if not beside.done() else 0
            parts = [ahead, beside, pool.submit(sample, step + 1, after, len(prompts))]
            print(f"step {step:2}  reward {mean:.3f}  version {newest}  {time.monotonic() - begin:.0f} s", flush=True)
        check_versions([row for part in parts for row in part.result()], versions, checker)

    report = {
        "rewards": rewards,
        "in_flight": in_flight,
        "logprob_error_max": worst,
        "seconds": time.monotonic() - begin,
    }
    write_report(options.out, report)


if __name__ == "__main__":
    main()
