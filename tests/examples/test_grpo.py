"""examples/grpo.py: each token's version is checked by itself; the reward rises where it runs to its end."""

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed (Debian: python3-torch)")
pytest.importorskip("matplotlib", reason="matplotlib is not installed (Debian: python3-matplotlib)")

import pathlib  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
NUM_SEEDS = int(os.environ.get("PITSTOP_GRPO_SEEDS", "0"))


def run(place, *flags):
    plot = place / "reward.png"
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "grpo.py", "--out", plot, *map(str, flags)],
        env={**os.environ, "PYTHONPATH": str(ROOT / "client" / "python"),
             "PITSTOP_BUILD": os.environ.get("PITSTOP_BUILD", str(ROOT / "build/cpu"))},
        capture_output=True,
        text=True,
        timeout=800,
    )
    assert done.returncode == 0, done.stderr
    assert plot.read_bytes().startswith(b"\x89PNG")
    return json.loads(plot.with_suffix(".json").read_text())


def test_a_few_steps(tmp_path):
    report = run(tmp_path, "--steps=3", "--group=4")
    assert len(report["rewards"]) == 3


@pytest.mark.parametrize("seed", range(1, NUM_SEEDS + 1))
def test_the_reward_rises(tmp_path, seed):
    report = run(tmp_path, f"--seed={seed}")
    rewards = report["rewards"]
    fifth = len(rewards) // 5
    assert sum(rewards[-fifth:]) > 1.5 * sum(rewards[:fifth])
    assert report["spanning"] > 0
