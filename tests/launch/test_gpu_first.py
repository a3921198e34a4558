"""tests/gpu/first with programs that print the same as on a GPU, or that crash, hang or lie."""

import json
import os
import pathlib
import re
import stat
import subprocess
import sys
import textwrap

import pytest

from gtest_doubles import HEAD
from test_gpu_run_whole import FAKES

ROOT = pathlib.Path(__file__).resolve().parents[2]
FIRST = ROOT / "tests" / "gpu" / "first"
PROBE = """
    import json, os, sys, time
    if "--list" in sys.argv:
        print("memory"); print("captures"); print("crashes")
    elif "crashes" in sys.argv[1]:
        print("before it went", flush=True); os.abort()
    else:
        print(json.dumps({"what": sys.argv[1], "ok": "captures" not in sys.argv[1], "call": "cudaErrorUnknown"}))
    """
SENDER = """
    import json, sys
    print(json.dumps({"device_uuid": "GPU-1"}), flush=True)
    for line in sys.stdin:
        print(json.dumps({"free_bytes": 70e9, "total_bytes": 80e9}), flush=True)
    """
MOST_S = 14 * 60  # seconds of a quarter of an hour, less a minute for the machine's start


@pytest.fixture
def build(tmp_path):
    place = tmp_path / "build" / "bin"
    place.mkdir(parents=True)
    fakes = {**FAKES, "pitstop_gpu_probe": PROBE, "pitstop_gpu_sender": SENDER}
    for name, body in fakes.items():
        head = HEAD if name.endswith("gpu_test") else ""
        path = place / name
        path.write_text(f"#!{sys.executable}\n{head}{textwrap.dedent(body)}")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return place.parent


def first(build, out, *flags, timeout=400):
    done = subprocess.run(
        [sys.executable, FIRST, f"--out={out}", *flags],
        env={**os.environ, "PITSTOP_BUILD": str(build)},
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    return done, json.loads((out / "report.json").read_text())


def test_all_limits_together_are_under_a_lease():
    listed = subprocess.run([sys.executable, FIRST, "--list"], capture_output=True, text=True, check=True).stdout
    limits = [int(line.split()[0]) for line in listed.splitlines()]
    assert len(limits) == 15 and sum(limits) <= MOST_S, listed


def test_a_program_that_crashes_costs_itself_alone_and_its_words_are_kept(build, tmp_path):
    done, report = first(build, tmp_path / "out", "--step=a context that stays", "--step=probe", "--step=kernel tests")
    steps = report["steps"]
    assert (
        steps["facts"]["status"] == "failed"
        and "client" in steps["facts"]["why"]
        or steps["facts"]["status"] == "passed"
    )
    assert steps["a context that stays"] == {
        "status": "passed",
        "why": "",
        "seconds": steps["a context that stays"]["seconds"],
        "limit_s": 15,
        "free_gb": 70.0,
    }
    assert steps["probe"]["status"] == "failed" and "SIGABRT" in steps["probe"]["why"]
    assert "captures: not as relied on" in steps["probe"]["why"]
    counts = steps["kernel tests"]
    assert (counts["status"], counts["passed"], counts["failed"]) == ("failed", 5, 2), counts
    assert done.returncode == 1
    log = (tmp_path / "out" / "log.txt").read_text()
    assert "before it went" in log and log.count("==== ") == 4 and "[ RUN      ] Bad.Crashes" in log
    assert (tmp_path / "out" / "report.md").read_text().startswith("# First report: NVIDIA H200")


def test_a_hang_costs_its_silence(build, tmp_path):
    """A hang costs only the time without output, and the tests after it run in another process."""
    path = build / "bin" / "kernels_gpu_test"
    path.write_text(path.read_text().replace('run("Bad.Hangs", os.abort)', 'run("Bad.Hangs", lambda: time.sleep(600))'))
    _, report = first(build, tmp_path / "out", "--step=kernel tests")
    counts = report["steps"]["kernel tests"]
    assert (counts["passed"], counts["failed"]) == (5, 2) and "silence" in counts["why"], counts
    assert counts["seconds"] < 300


def test_a_second_call_goes_on_where_the_first_ended(build, tmp_path):
    """A call without time for any step reads the facts, repeats no step that passed, and names what is left."""
    _, report = first(build, tmp_path / "out", "--step=engine tests")
    passed = report["steps"]["engine tests"]
    assert passed["status"] == "passed"
    _, report = first(build, tmp_path / "out", "--budget=0")
    steps = report["steps"]
    assert steps["engine tests"] == passed and steps["facts"]["status"] != "skipped"
    left = {step for step, found in steps.items() if found["status"] == "skipped"}
    assert left == set(steps) - {"facts", "engine tests"} and "8B: updates" in left
    assert any(line.startswith("not run: ") for line in report["next"])


def test_figures_stand_beside_limits_and_the_largest_gain_is_first(tmp_path):
    sys.path.insert(0, str(ROOT / "tests" / "gpu"))
    from first_report import FirstReport

    report = FirstReport(tmp_path)
    report.device = {"name": "NVIDIA H200", "uuid": "GPU-1"}
    report.add("probe", "failed", "it hung")
    report.figure("a rate", 30.0, "GB/s", 40.0, "bus", 0.80)
    report.figure("a step", 5.0, "ms", 3.0, "bytes at the copy rate", 0.75, "the merge")
    report.figure("what holds", 39.0, "GB/s", 40.0, "bus", 0.80)
    assert report.figures["a step"]["share"] == 0.6
    lines = report.next_steps()
    assert lines[0] == "`probe` failed: it hung"
    assert lines[1].startswith("20% of its time goes if a step reaches 75%") and lines[1].endswith(": the merge")
    assert lines[2].startswith("6% of its time goes if a rate") and len(lines) == 3
    text = (tmp_path / "report.md").read_text()
    assert re.search(r"\| a rate \| 30 GB/s \| 40 GB/s \(bus\) \| 75% \| 80% \| \*\*no\*\* \|", text)


def test_a_call_that_ends_in_its_first_step_keeps_what_an_earlier_one_found(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(FIRST.parent))
    from first_report import FirstReport

    for steps in (["facts", "probe"], ["facts"]):  # the second call takes over the first call's steps and ends
        report = FirstReport(tmp_path)
        report.open_log()
        report.device = {"uuid": "GPU-1", "name": "a GPU"}
        for step in steps:
            report.add(step, "passed")
        report.take_earlier()
    assert list(json.loads((tmp_path / "report.json").read_text())["steps"]) == ["facts", "probe"]


def test_without_a_gpu_it_says_why(build, tmp_path):
    path = build / "bin" / "pitstop_gpu_bench"
    path.write_text(
        path.read_text().replace(
            '"status": "run", "device": {"name": "NVIDIA H200"}', '"status": "none", "why": "no driver"'
        )
    )
    done, report = first(build, tmp_path / "out")
    assert done.returncode == 1 and "NOT RUN: no driver" in done.stderr
    assert report["why"] == "no driver" and list(report["steps"]) == ["facts"]
