"""examples/grpo.py and examples/grpo_lora.py check the version of each token themselves. In a whole run the reward rises."""

import importlib.util
import json
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "trainers"))

from environments import python_of  # noqa: E402

NUM_SEEDS = int(os.environ.get("PITSTOP_GRPO_SEEDS", "0"))


NEEDS = {"grpo": ("torch", "matplotlib"), "grpo_lora": ("torch", "matplotlib", "transformers", "peft")}


@pytest.fixture(scope="module", params=NEEDS)
def example(request):
    """(interpreter, script): this interpreter if it has the example's packages, or one of a
    separate environment.
    """
    has_all = all(importlib.util.find_spec(name) for name in NEEDS[request.param])
    python = sys.executable if has_all else python_of(request.param)
    return python, ROOT / "examples" / f"{request.param}.py"


def run(example, place, *flags):
    plot = place / "reward.png"
    done = subprocess.run(
        [*example, "--out", plot, *map(str, flags)],
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT / "client" / "python"),
            "PITSTOP_BUILD": os.environ.get("PITSTOP_BUILD", str(ROOT / "build/cpu")),
        },
        capture_output=True,
        text=True,
        timeout=800,
    )
    assert done.returncode == 0, done.stderr
    assert plot.read_bytes().startswith(b"\x89PNG")
    return json.loads(plot.with_suffix(".json").read_text())


def test_a_few_steps(example, tmp_path):
    report = run(example, tmp_path, "--steps=3", "--group=4")
    assert len(report["rewards"]) == 3


def test_a_few_steps_of_experts(example, tmp_path):
    if example[1].stem != "grpo":
        pytest.skip("an adapter needs a dense model")
    report = run(example, tmp_path, "--model=stories-moe", "--steps=3", "--group=4")
    assert len(report["rewards"]) == 3


@pytest.mark.parametrize("seed", range(1, NUM_SEEDS + 1))
def test_the_reward_rises(example, tmp_path, seed):
    report = run(example, tmp_path, f"--seed={seed}")
    rewards = report["rewards"]
    fifth = len(rewards) // 5
    assert sum(rewards[-fifth:]) > 1.5 * sum(rewards[:fifth])
    assert report.get("spanning", report.get("in_flight")) > 0
