"""tests/gpu/run from end to end on the GPU in software: all parts, small, their figures thrown away."""

import json
import os
import subprocess
import sys

import pytest

from gpu_tree import BUILD
from process_tree import ROOT
from test_emulated_gpu import ALL

pytestmark = [
    pytest.mark.skipif(not (BUILD / "bin/pitstop_gpu_bench").exists(), reason=f"{BUILD} is not built"),
    pytest.mark.skipif(not ALL, reason="takes minutes: launch/test --emulated-gpu-all"),
]
PARTS = ("limits", "kernels", "engine", "updates", "profile", "peers", "sanitizer", "correctness")


def test_every_part_of_a_gpu_run_is_rehearsed(place):
    out = place / "out"
    environment = {
        **os.environ,
        "PITSTOP_BUILD": str(BUILD),
        "PITSTOP_EMULATED_MACHINE": str(place / "machine"),
        "PITSTOP_EMULATED_POLICY": "early",
    }
    for part in PARTS:
        done = subprocess.run(
            [sys.executable, ROOT / "tests/gpu/run", f"--out={out}", f"--part={part}", "--require-gpu"],
            env=environment,
            capture_output=True,
            text=True,
            timeout=600,
        )
        is_skipped = part in ("sanitizer", "peers")  # where there is nothing to run, --require-gpu says so
        assert done.returncode == 0 or is_skipped, f"{part}: {done.stdout[-3000:]}{done.stderr[-1000:]}"
    report = json.loads((out / "report.json").read_text())
    troubles = {name: found["why"] for name, found in report["parts"].items() if found["status"] == "failed"}
    assert not troubles, troubles
    passed = {name for name, found in report["parts"].items() if found["status"] == "passed"}
    assert {"limits", "kernel benchmarks", "kernel tests", "engine tests", "launch gaps"} <= passed, report["parts"]
    assert (out / "report.md").read_text().startswith("# GPU report: EMULATED")
    assert report["device"]["cublas_lt_path"] and report["device"]["nccl_path"]
    assert len(list(out.iterdir())) <= 8
