"""Routes on the GPU in software, where two steps are under way and the second writes where the first one's choices were:
each request's rows are those that a prefill of its tokens has."""

import json
import shutil

import pytest

from gpu_tree import CUDA, gpu, needs_gpu  # noqa: F401
from process_tree import ROOT

pytestmark = needs_gpu
GOLDEN = ROOT / "tests/data/golden/qwen3_moe_every_other"
STORIES = ROOT / "launch/models/stories"
NUM = 12  # tokens
PROMPTS = [[5, 9, 33, 41], [7, 12, 60, 3, 18, 22, 54], [50, 1, 1, 30, 29, 28, 27, 26, 25, 24, 23]]


@pytest.mark.parametrize("policy", ["late", "random"])
def test_P6_rows_are_of_their_own_step(gpu, start_tree, tmp_path, policy):
    gpu(policy=policy)
    model = tmp_path / "model"
    shutil.copytree(GOLDEN, model)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(STORIES / name, model)
    config = json.loads((model / "config.json").read_text())
    row_bytes = config["num_hidden_layers"] * config["num_experts_per_tok"]
    door = start_tree(*CUDA, "--model", model, "--deterministic").door()
    asked = {"routed_experts_start": 0, "temperature": 0.0, "ignore_eos": True}
    together = door.finish([door.start(prompt, max_new_tokens=NUM, **asked) for prompt in PROMPTS])
    assert len({output.routes[0] for output in together}) == len(PROMPTS)
    for prompt, output in zip(PROMPTS, together):
        rows, spans, first = output.routes
        whole = prompt + output.tokens
        assert len(rows) == (len(whole) - 1) * row_bytes and spans and first["start"] == 0
        assert door.generate(whole, max_new_tokens=0, **asked).routes[0] == rows
