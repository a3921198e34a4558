"""Random adapters are computed as PEFT computes them (tests/golden/compare_adapters.py); at night, many more."""

import importlib.util
import os
import pathlib
import subprocess
import sys

import pytest

from environments import python_of

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("PITSTOP_BUILD", ROOT / "build" / "cpu"))
NUM = int(os.environ.get("PITSTOP_PEFT_ADAPTERS", "12"))
RUN_S = 120 + 10 * NUM


def test_random_adapters_have_the_logits_and_greedy_tokens_of_peft():
    program = BUILD / "bin" / "pitstop_config_logits"
    if not program.exists():
        pytest.skip(f"{program} is not built")
    has_all = all(importlib.util.find_spec(name) for name in ("torch", "transformers", "peft"))
    python = sys.executable if has_all else python_of("grpo_lora")
    done = subprocess.run(
        [python, ROOT / "tests/golden/compare_adapters.py", "--num", str(NUM), "--program", program],
        capture_output=True,
        text=True,
        timeout=RUN_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f": {NUM} adapters, " in done.stdout and "the same: " in done.stdout, done.stdout
