"""Each fuzz target for a minute (PITSTOP_FUZZ_SECONDS says otherwise), where clang is there."""

import os
import pathlib
import re
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "fuzz"
SEEDS = {
    "template": "jinja/templates",
    "http_requests": "fuzz/http_requests",
    "pickle": "pickle",
}  # in tests/data
SECONDS = int(os.environ.get("PITSTOP_FUZZ_SECONDS", "60"))
CLANG = shutil.which("clang++-14") or shutil.which("clang++")
TARGETS = re.findall(r"(?m)^pitstop_fuzz\((\w+)", (ROOT / "tests/fuzz/CMakeLists.txt").read_text())


@pytest.mark.skipif(CLANG is None, reason="no clang++")
@pytest.mark.parametrize("target", TARGETS)
def test_a_fuzzed_parser_finds_nothing(target, tmp_path):
    seeds = ROOT / "tests" / "data" / SEEDS[target]
    for command in (
        ["cmake", "-S", ROOT, "-B", BUILD, "-G", "Ninja", f"-DCMAKE_CXX_COMPILER={CLANG}",
         "-DPITSTOP_CUDA=OFF", "-DPITSTOP_BENCH=OFF", "-DPITSTOP_SANITIZE=address",
         "-DPITSTOP_FUZZ=ON", "-DCMAKE_CXX_FLAGS=-fsanitize=fuzzer-no-link"],
        ["ninja", "-C", BUILD, f"fuzz_{target}"],
    ):  # fmt: skip
        built = subprocess.run(command, capture_output=True, text=True)
        assert built.returncode == 0, built.stdout[-4000:] + built.stderr[-4000:]
    fuzzed = subprocess.run(
        [BUILD / "bin" / f"fuzz_{target}", f"-max_total_time={SECONDS}", "-max_len=4096",
         f"-artifact_prefix={BUILD}/", tmp_path, seeds],
        capture_output=True,
        text=True,
    )  # fmt: skip
    assert fuzzed.returncode == 0, fuzzed.stderr[-4000:]
    num_seeds = sum(path.stat().st_size > 0 for path in seeds.iterdir())
    assert f"seed corpus: files: {num_seeds} " in fuzzed.stderr
