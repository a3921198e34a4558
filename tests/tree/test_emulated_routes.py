"""Routes on the GPU in software. Two steps are in progress there, and the second overwrites the routers' choices of the
first: each request's rows must be those of a prefill of its tokens."""

import json
import shutil
import sys

import numpy
import pytest

from gpu_tree import CUDA, gpu, needs_gpu  # noqa: F401
from process_tree import ROOT, wait_until

sys.path.insert(0, str(ROOT / "client/python"))

import pitstop  # noqa: E402  (after the path)

pytestmark = needs_gpu
GOLDEN = ROOT / "tests/data/golden/qwen3_moe_every_other"
STORIES = ROOT / "launch/models/stories"
NUM = 12  # tokens
PROMPTS = [[5, 9, 33, 41], [7, 12, 60, 3, 18, 22, 54], [50, 1, 1, 30, 29, 28, 27, 26, 25, 24, 23]]


def golden_model(tmp_path):
    """(directory, configuration)"""
    model = tmp_path / "model"
    shutil.copytree(GOLDEN, model)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(STORIES / name, model)
    return model, json.loads((model / "config.json").read_text())


GROUPS = ("--tp", 2, "--ep", 2, "--all-reduce", "own")  # each expert is on one GPU


@pytest.mark.parametrize(
    "policy, flags", [("late", ()), ("random", ()), ("random", GROUPS)], ids=["late", "random", "ep"]
)
def test_P6_rows_are_of_their_own_step(gpu, start_tree, tmp_path, policy, flags):
    gpu(policy=policy)
    model, config = golden_model(tmp_path)
    row_bytes = config["num_hidden_layers"] * config["num_experts_per_tok"]
    door = start_tree(*CUDA, "--model", model, "--deterministic", *flags).door()
    asked = {"routed_experts_start": 0, "temperature": 0.0, "ignore_eos": True}
    together = door.finish([door.start(prompt, max_new_tokens=NUM, **asked) for prompt in PROMPTS])
    assert len({output.routes[0] for output in together}) == len(PROMPTS)
    for prompt, output in zip(PROMPTS, together):
        rows, spans, first = output.routes
        whole = prompt + output.tokens
        assert len(rows) == (len(whole) - 1) * row_bytes and spans and first["start"] == 0
        assert door.generate(whole, max_new_tokens=0, **asked).routes[0] == rows


@pytest.mark.parametrize("policy", ["late", "random"])
def test_the_load_counts_the_choices_of_each_step(gpu, start_tree, tmp_path, policy):
    gpu(policy=policy)
    model, config = golden_model(tmp_path)
    layers, k = config["num_hidden_layers"], config["num_experts_per_tok"]
    tree = start_tree(*CUDA, "--model", model)
    door = tree.door()
    expected = numpy.zeros((layers, config["num_local_experts"]), numpy.int64)

    def run(prompts, **asked):
        jobs = [door.start(prompt, **asked, routed_experts_start=0, ignore_eos=True) for prompt in prompts]
        for output in door.finish(jobs):
            for row in numpy.frombuffer(output.routes[0], numpy.uint8).reshape(-1, layers, k):
                for layer, experts in enumerate(row):
                    if len(set(experts)) == k:  # a layer without experts has zeros
                        expected[layer, experts] += 1

    run(PROMPTS, max_new_tokens=NUM)
    with pitstop.Client(tree.run_dir) as client:

        def is_reported():
            client.flush_cache()
            run([[5, 9, 33]], max_new_tokens=1)
            return client.status()["expert_load"]["tokens"] == expected.tolist()

        wait_until(is_reported, "the counts of all routes")
    assert expected.sum() > 0


def test_P6_brought_routes_are_followed(gpu, start_tree, tmp_path):
    """Scoring gives the logprobs of sampling, next to requests without routes, whose steps of decodes are graphs."""
    gpu(policy="random")
    model, _ = golden_model(tmp_path)
    tree = start_tree(*CUDA, "--model", model, "--deterministic")
    greedy = {"routed_experts_start": 0, "temperature": 0.0, "ignore_eos": True}
    score = {"logprobs": {"enabled": True, "prompt_start": 0}, "max_new_tokens": 0, **greedy}
    with pitstop.Client(tree.run_dir) as client:
        streams = [client.generate(prompt, max_new_tokens=NUM, logprobs=True, **greedy) for prompt in PROMPTS]
        for prompt, output in zip(PROMPTS, [stream.result() for stream in streams]):
            whole, routes = prompt + output.tokens, output.routes
            scoring = client.generate(whole, routed_experts=routes, **score)
            other = client.generate(prompt, max_new_tokens=NUM, **greedy)
            scored = scoring.result()
            assert other.result().tokens == output.tokens
            assert scored.prompt.logprobs[-NUM:] == output.logprobs
            assert scored.routes.experts == routes.experts
            # Other routes are followed, too; a layer without experts has zeros.
            rows = routes.array()
            is_sparse = rows.any(axis=(0, 2))[None, :, None]
            turned = numpy.where(is_sparse, routes.num_experts - 1 - rows, rows)
            moved = client.generate(
                whole, routed_experts=pitstop.Routes.of(turned, routes.num_experts), **score
            ).result()
            assert (moved.routes.array() == turned).all() and moved.prompt.logprobs != scored.prompt.logprobs
