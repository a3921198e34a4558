"""examples/grpo.py: each token's version is checked by itself; the reward rises where it runs to its end."""

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


@pytest.fixture(scope="module")
def python():
    """This interpreter where it has what the example needs, else that of an environment of its own."""
    has_all = all(importlib.util.find_spec(name) for name in ("torch", "matplotlib"))
    return sys.executable if has_all else python_of("grpo")


def run(python, place, *flags):
    plot = place / "reward.png"
    done = subprocess.run(
        [python, ROOT / "examples" / "grpo.py", "--out", plot, *map(str, flags)],
        env={**os.environ, "PYTHONPATH": str(ROOT / "client" / "python"),
             "PITSTOP_BUILD": os.environ.get("PITSTOP_BUILD", str(ROOT / "build/cpu"))},
        capture_output=True,
        text=True,
        timeout=800,
    )
    assert done.returncode == 0, done.stderr
    assert plot.read_bytes().startswith(b"\x89PNG")
    return json.loads(plot.with_suffix(".json").read_text())


def test_a_few_steps(python, tmp_path):
    report = run(python, tmp_path, "--steps=3", "--group=4")
    assert len(report["rewards"]) == 3


@pytest.mark.parametrize("seed", range(1, NUM_SEEDS + 1))
def test_the_reward_rises(python, tmp_path, seed):
    report = run(python, tmp_path, f"--seed={seed}")
    rewards = report["rewards"]
    fifth = len(rewards) // 5
    assert sum(rewards[-fifth:]) > 1.5 * sum(rewards[:fifth])
    assert report["spanning"] > 0
