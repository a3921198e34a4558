"""Nights of fuzzing that add up, with programs that stand in for the targets."""

import os
import stat

import pytest

import long_run

# Prints libFuzzer's count, and reports a crash while a file `is_bad` exists; a merge keeps one file.
PROGRAM = """#!/usr/bin/env python3
import pathlib, sys
flags = dict(each[1:].split("=", 1) for each in sys.argv[1:] if each.startswith("-"))
places = [pathlib.Path(each) for each in sys.argv[1:] if not each.startswith("-")]
bad = pathlib.Path(__file__).with_name("is_bad")
if flags.get("merge"):
    (places[0] / "kept").write_text("x")
    sys.exit(0)
if "max_total_time" not in flags:
    sys.exit(1 if bad.exists() else 0)
for name in ("first", "second"):
    (places[0] / name).write_text("x")
print("stat::number_of_executed_units: 1000", file=sys.stderr)
if bad.exists():
    pathlib.Path(flags["artifact_prefix"] + "crash-1").write_text("x")
    sys.exit(77)
"""


@pytest.fixture
def bin_of(tmp_path, monkeypatch):
    """The directory of both builds' stand-ins of `pickle` and `config`."""
    made = tmp_path / "build/bin"
    made.mkdir(parents=True)
    for target in ("pickle", "config"):
        path = made / f"fuzz_{target}"
        path.write_text(PROGRAM)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(long_run, "directory_of", lambda kind: tmp_path / "build")
    monkeypatch.setattr(long_run, "build", lambda kind, targets: None)
    monkeypatch.setattr(long_run, "BUILD", tmp_path / "build")
    monkeypatch.setattr(long_run.seeds, "write", lambda target, path: 0)
    monkeypatch.setattr(os, "nice", lambda step: 0)
    return made


@pytest.fixture
def night(tmp_path, bin_of, monkeypatch, capsys):
    """night(*flags): the exit code and the last line of one night."""

    def run(*flags, targets=("pickle", "config")):
        monkeypatch.setattr("sys.argv", ["long_run.py", "--keep", str(tmp_path / "kept"), *flags, *targets])
        return long_run.main(), capsys.readouterr().out.splitlines()[-1]

    return run


def test_nights_add_up_and_each_makes_its_share(night, tmp_path, monkeypatch):
    monkeypatch.setattr(long_run, "COUNTED_BEFORE", 500)
    monkeypatch.setattr(long_run, "EXECUTIONS", 12_500)
    assert night("--total") == (0, "500 of 12,500 executions (4.0%), 500 of them before")
    assert night("--nights", "3") == (0, "4,500 of 12,500 executions (36.0%), 500 of them before")
    assert night("--nights", "2") == (0, "8,500 of 12,500 executions (68.0%), 500 of them before")
    assert night("--nights", "1") == (0, "12,500 of 12,500 executions (100.0%), 500 of them before")
    assert night("--nights", "1") == (0, "12,500 of 12,500 executions (100.0%), 500 of them before")
    totals = long_run.Place(tmp_path / "kept").totals()
    assert {target: total["plain"] + total["sanitized"] for target, total in totals.items()} == {
        "pickle": 6000,
        "config": 6000,
    }


def test_a_corpus_is_small_after_a_night(night, tmp_path, monkeypatch):
    monkeypatch.setattr(long_run, "EXECUTIONS", long_run.COUNTED_BEFORE + 1)
    night("--nights", "1", targets=("pickle",))
    assert [path.name for path in (tmp_path / "kept/corpus/pickle").iterdir()] == ["kept"]


def test_an_input_that_failed_is_kept_and_tried_first_until_it_fails_no_more(night, tmp_path, bin_of, monkeypatch):
    monkeypatch.setattr(long_run, "EXECUTIONS", long_run.COUNTED_BEFORE + 5000)
    (bin_of / "is_bad").touch()
    failure = tmp_path / "kept/failures/pickle-crash-1"
    code, said = night("--nights", "1", targets=("pickle",))
    assert code == 1 and failure.exists() and "47,205,067 of" in said
    code, said = night("--nights", "1", targets=("pickle",))
    assert code == 1 and "47,205,067 of" in said, "it was fuzzed before it was mended"
    (bin_of / "is_bad").unlink()
    code, said = night("--nights", "1", targets=("pickle",))
    assert code == 0 and not failure.exists() and "(100.0%)" in said


def test_two_runs_in_one_place_are_refused(night, tmp_path):
    held = long_run.Place(tmp_path / "kept").lock()
    with pytest.raises(SystemExit) as ended:
        night("--nights", "1")
    held.close()
    assert ended.value.code == 2
