"""Each fuzz target for half a minute (PITSTOP_FUZZ_SECONDS says otherwise), where clang is there."""

import os
import shutil
import subprocess

import long_run
import pytest
import seeds

SECONDS = int(os.environ.get("PITSTOP_FUZZ_SECONDS", "30"))
CLANG = shutil.which("clang++-14") or shutil.which("clang++")


@pytest.mark.skipif(CLANG is None, reason="no clang++")
@pytest.mark.parametrize("target", long_run.TARGETS)
def test_a_fuzzed_parser_finds_nothing(target, tmp_path):
    num_seeds = seeds.write(target, tmp_path / "seeds")
    (tmp_path / "corpus").mkdir()
    long_run.build("sanitized", [target], CLANG)
    fuzzed = subprocess.run(
        [long_run.BUILD / "bin" / f"fuzz_{target}", f"-max_total_time={SECONDS}", "-max_len=4096",
         f"-artifact_prefix={long_run.BUILD}/", tmp_path / "corpus", tmp_path / "seeds"],
        capture_output=True,
        text=True,
        errors="replace",
    )  # fmt: skip
    assert fuzzed.returncode == 0, fuzzed.stderr[-4000:]
    assert f"seed corpus: files: {num_seeds} " in fuzzed.stderr
