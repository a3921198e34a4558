"""Fuzz targets for half a minute each (or PITSTOP_FUZZ_SECONDS), where clang is installed: at night
all of them (launch/test --fuzz), otherwise those whose parser changed, and at least one.
"""

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

import long_run
import seeds

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tidy"))
from project import changed_files  # noqa: E402  (after the path)

SECONDS = int(os.environ.get("PITSTOP_FUZZ_SECONDS", "30"))
CLANG = shutil.which("clang++-14") or shutil.which("clang++")
ALWAYS = "pickle"  # reads strangers' bytes (P7), and compiles fast
PARSERS = {
    "config": ("tp_worker/config/",),
    "http_requests": ("http_proc/",),
    "messages": ("messages/",),
    "pickle": ("pickle/",),
    "safetensors": ("checkpoint/",),
    "template": ("jinja/",),
    "tokenizer": ("text/",),
    "torch_file": ("checkpoint/",),
}


def targets_for(changed, is_night):
    """The targets to fuzz. One skipped test has the number of the others."""
    if is_night or any(
        path in changed for path in ("tests/fuzz/CMakeLists.txt", "tests/fuzz/long_run.py", "tests/fuzz/seeds.py")
    ):
        return list(PARSERS)
    own = {target: (*parsers, f"tests/fuzz/{target}_fuzz.cpp") for target, parsers in PARSERS.items()}
    chosen = [
        target
        for target, prefixes in own.items()
        if target == ALWAYS or any(path.startswith(prefixes) for path in changed)
    ]
    left = len(PARSERS) - len(chosen)
    if not left:
        return chosen
    reason = f"{left} more targets, whose parsers did not change: launch/test --fuzz runs each"
    return [*chosen, pytest.param(None, marks=pytest.mark.skip(reason=reason), id="others")]


@pytest.mark.skipif(CLANG is None, reason="no clang++")
@pytest.mark.parametrize("target", targets_for(changed_files(), "PITSTOP_FUZZ_ALL" in os.environ))
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


def test_every_target_is_fuzzed_where_its_parser_changed():
    assert sorted(PARSERS) == sorted(long_run.TARGETS)
    for target, (folder,) in PARSERS.items():
        assert (long_run.ROOT / folder).is_dir()
        assert target in targets_for({f"{folder}any.cpp"}, is_night=False)
    assert targets_for({"docs/testing.md"}, is_night=False)[0] == ALWAYS
    assert targets_for(set(), is_night=True) == list(PARSERS)
