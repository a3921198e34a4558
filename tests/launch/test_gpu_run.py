"""tests/gpu/run on a machine without a GPU, with programs that crash, hang or lie."""

import os
import pathlib
import signal
import stat
import subprocess
import sys
import textwrap
import time

import pytest

from gtest_doubles import HEAD, MISBEHAVES, commands

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "gpu"))

import gtest_program  # noqa: E402
import peers  # noqa: E402
import profilers  # noqa: E402
import report as gpu_report  # noqa: E402
import sanitizers  # noqa: E402
import targets  # noqa: E402
import timed_call  # noqa: E402  (after the path)


@pytest.fixture
def program(tmp_path):
    """Writes a program that behaves like GoogleTest's: suites and tests, some of which misbehave."""

    def write(body):
        path = tmp_path / "program"
        path.write_text(f"#!{sys.executable}\n" + HEAD + textwrap.dedent(body))
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return path

    return write


def test_a_crash_and_a_hang_cost_themselves_alone(program):
    counts = gtest_program.run(program(MISBEHAVES), dict(os.environ), timed_call.Budget(60), 60, test_s=4.0)
    assert [line.split(":")[0] for line in counts.failed] == ["Bad.Crashes", "Bad.Hangs"]
    assert "SIGABRT" in counts.failed[0]
    assert "silence" in counts.failed[1]
    assert counts.passed == 5 and not counts.not_run
    assert counts.suites["Good"] == {"worst_error": 0.5, "worst_error_over_bound": 0.75}


def test_a_crash_behind_the_last_test_is_a_failure(program):
    body = """
    run("Good.A")
    run("Good.B")
    run("After.C")
    finish()
    if "Good" in names[0]: os.abort()
    """
    counts = gtest_program.run(program(body), dict(os.environ), timed_call.Budget(60), 10, test_s=5.0)
    assert (
        len(counts.failed) == 1
        and counts.failed[0].startswith("Good: after its tests")
        and "SIGABRT" in counts.failed[0]
    )


def test_tests_without_time_left_are_named(program):
    body = """
    run("Good.A", lambda: time.sleep(600))
    finish()
    """
    begin = time.monotonic()
    counts = gtest_program.run(program(body), dict(os.environ), timed_call.Budget(60), 5.0, test_s=45.0)
    assert time.monotonic() - begin < 60
    assert [line.split(":")[0] for line in counts.failed] == ["Good.A"]
    assert "Bad.First" in counts.not_run and "After.C" in counts.not_run


def test_a_program_that_does_not_start_is_a_failure(tmp_path):
    counts = gtest_program.run(tmp_path / "none", dict(os.environ), timed_call.Budget(60), 10, test_s=45.0)
    assert len(counts.failed) == 1 and "none" in counts.failed[0]


def test_what_a_stopped_program_started_is_stopped_too(tmp_path):
    script = "import subprocess, time; subprocess.Popen(['sleep', '600.25']); print('up', flush=True); time.sleep(600)"
    ended = timed_call.call([sys.executable, "-c", script], dict(os.environ), 4.0)
    assert ended.code is None and "up" in ended.output
    deadline = time.monotonic() + 60  # a killed process takes a moment to disappear
    while any(command.startswith(b"sleep") and b"600.25" in command for command in commands()):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_what_left_its_session_is_stopped_too(tmp_path):
    """A benchmark's launcher starts a session of its own. A remaining child would keep the GPU's memory."""
    script = (
        "import subprocess, time; subprocess.Popen(['sleep', '600.75'], start_new_session=True);"
        "print('up', flush=True); time.sleep(600)"
    )
    ended = timed_call.call([sys.executable, "-c", script], dict(os.environ), 4.0)
    assert ended.code is None and "up" in ended.output
    assert not any(command.startswith(b"sleep") and b"600.75" in command for command in commands())


# Moments at which a signal or a child process could be lost: after a child has started and before it is registered; and
# between the last check for signals and a wait for a lock. A signal to another
# thread simulates the latter.
AS_IT_STARTS = """
class Popen(subprocess.Popen):
    def __init__(self, *arguments, **flags):
        super().__init__(*arguments, **flags)
        os.kill(os.getpid(), signal.SIGTERM)
subprocess.Popen = Popen
"""
BEFORE_IT_WAITS = """
def end():
    time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGTERM)
threading.Thread(target=end, daemon=True).start()
start = timed_call.start
def start_and_block(*arguments, **flags):
    process = start(*arguments, **flags)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    return process
timed_call.start = start_and_block
"""


@pytest.mark.parametrize("moment", [AS_IT_STARTS, BEFORE_IT_WAITS], ids=["as it starts", "before it waits"])
def test_a_signal_ends_a_run_whenever_it_comes_and_what_was_started(moment):
    script = f"""
import os, signal, subprocess, sys, threading, time
sys.path.insert(0, {str(ROOT / "tests" / "gpu")!r})
import timed_call
{moment}
with timed_call.ended_by_signals():
    timed_call.call(["sleep", "300.5"], dict(os.environ), 30)
"""
    done = subprocess.run([sys.executable, "-c", script], timeout=120, capture_output=True, text=True)
    assert done.returncode == 128 + signal.SIGTERM, done.stderr
    assert not any(command.startswith(b"sleep") and b"300.5" in command for command in commands())


def test_a_deadline_ends_whatever_is_waited_for_and_what_was_started():
    begin = time.monotonic()
    with pytest.raises(timed_call.Overdue), timed_call.deadline(0.5):
        timed_call.call(["sleep", "600.5"], dict(os.environ), 600)
    assert time.monotonic() - begin < 30
    assert not any(command.startswith(b"sleep") and b"600.5" in command for command in commands())
    with timed_call.deadline(2.0):
        pass
    time.sleep(2.1)  # the deadline is cancelled when its body ends


@pytest.mark.parametrize(
    "code, output, seen",
    [
        (0, "========= ERROR SUMMARY: 0 errors\n", ""),
        (0, "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)\n", ""),
        (1, "a test failed\n========= ERROR SUMMARY: 0 errors\n", ""),  # a test failed, and the sanitizer found nothing
        (9, "========= Invalid __global__ read of size 4 bytes\n========= ERROR SUMMARY: 3 errors\n", "3 errors"),
        (9, "========= RACECHECK SUMMARY: 2 hazards displayed (2 errors, 0 warnings)\n", "2 errors"),
        (None, "========= Uninitialized __global__ memory read\n", "Uninitialized __global__ memory read"),
        (None, "========= COMPUTE-SANITIZER\n", ""),
        (255, "========= Error: Target application terminated before first instrumented API call\n", ""),
    ],
)
def test_a_sanitizers_findings_are_read_from_its_output(code, output, seen):
    assert sanitizers.found_in(timed_call.Ended(code, output)) == seen


def test_the_report_is_whole_after_each_part(tmp_path):
    report = gpu_report.Report(tmp_path)
    report.device = {"name": "NVIDIA H200"}
    report.add("kernel tests", "failed", "Bad.Crashes: ended by SIGABRT")
    text = (tmp_path / "report.md").read_text()
    assert "Bad.Crashes" in text and "NVIDIA H200" in text
    assert (tmp_path / "report.json").exists() and report.has_failed(["kernel tests"])


def test_a_rehearsal_says_so(tmp_path):
    report = gpu_report.Report(tmp_path)
    report.device = {"name": "emulated GPU"}
    report.add("kernel tests", "passed")
    assert (tmp_path / "report.md").read_text().startswith("# GPU report: EMULATED")


def row(family, what, fraction, target):
    return {"family": family, "what": what, "fraction": fraction, "target": target}


def test_a_target_is_the_worst_of_its_figures_and_not_run_without_all_of_them():
    kernels = {
        "limits": {"copy_gb_s": 4000.0, "matrix_tflop_s": 700.0},
        "kernels": [
            row("linear", "qkv, M = 1", 0.9, 0.8),
            row("linear", "down, M = 1", 0.7, 0.8),
            row("linear", "down, M = 1, deterministic", 0.2, 0),
            row("attention", "prefill, 8192, causal, mma", 0.5, 0.45),
            row("rmsnorm", "8192 x 4096, residual added", 0.9, 0.85),
        ],
    }
    decode = {"decode_1": {"decode.tokens_per_s": 200.0, "weight_bytes_per_step": 15e9}}
    found = {t["what"]: t for t in targets.evaluate(kernels, {targets.DECODE_PART: decode})}
    assert found["GEMMs of qwen3-8b, M = 1"]["measured"] == 0.7
    assert found["GEMMs of qwen3-8b, M = 1"]["holds"] is False
    assert found["prefill attention, 8k, causal, mma"]["holds"] is True
    assert found["norms, rope + KV write, silu_mul, digest, scatter"]["holds"] is None  # one of several families ran
    assert found[targets.DECODE[0]]["measured"] == pytest.approx(0.75)
    assert found[targets.DECODE[0]]["holds"] is True


def test_updates_are_held_against_the_bus_and_the_times_of_this_gpu():
    lent = {"gb": 16.0, "total_ms": 125.0, "pause_ms": 0.5, "slowdown": 0.25, "gap_steps": 1.0}
    again = {"freed_bytes": {"weights": 16e9, "kv_cache": 30e9}, "resume_kv_s": 0.125, "back_of_said": 0.98}
    again.update(gb_s_to_host=50.0, gb_s_to_gpu=20.0)
    part = {"lent": lent, "again": again, "push": {"of_h2d": 0.8}, "disk": {"of_h2d": None}}

    def judged(device_name):
        rows = targets.evaluate(None, {targets.UPDATES_PART: part}, device_name)
        return {row["what"]: (row["measured"], row["holds"]) for row in rows}

    found = judged("NVIDIA H100 80GB HBM3")
    assert found[f"{targets.LENT}: the whole, verified"] == (pytest.approx(128 / 107), True)
    assert judged("NVIDIA H200")[f"{targets.LENT}: the whole, verified"] == (pytest.approx(0.8), False)
    assert found[f"{targets.LENT}: pause of 1 ms"] == (2.0, True)
    assert found[f"{targets.LENT}: steps meanwhile"] == (0.8, False)
    assert found[f"{targets.LENT}: gap of 2 steps"] == (2.0, True)
    assert found["host memory to the second copy (push), verified"] == (0.8, True)
    assert found["page cache to the second copy (disk), verified"] == (None, None)
    assert found["memory that a release gives back, as the driver counts"] == (0.98, False)
    assert found["weights kept in host memory, each way"] == (0.5, False)
    assert found["resume, 0.5 s for 60 GB"] == (2.0, True)


def test_without_a_gpu_every_target_says_not_run(tmp_path):
    report = gpu_report.Report(tmp_path)
    report.why_not = "no driver"
    report.add("kernel tests", "skipped", "no driver")
    assert all(t["holds"] is None for t in targets.evaluate(None, report.parts))
    lines = (tmp_path / "report.md").read_text().splitlines()
    assert sum("not run |" in line for line in lines) == len(targets.evaluate(None, {}))


# The benchmarks of bench/gpu_bench, by family, of all its files.
BENCHMARKS = "".join((ROOT / "bench" / f"gpu_{name}.cpp").read_text() for name in ("experts", "families", "logits"))


def test_every_target_names_benchmarks_that_there_are():
    """A target that names no existing benchmark would stay `not run` for ever."""
    for _, _, _, names in targets.KERNELS:
        for family, name in names.items():
            assert f'"{family}"' in BENCHMARKS
            assert family in ("linear", "expert_linear") or name in BENCHMARKS


PEER_ROWS = [
    {"what": "qkv, M = 1", "peer": "torch (cuBLAS)", "us": 12.0},
    {"what": "decode, 64 requests x 4096, GQA 4:1", "peer": "SDPA cuDNN", "why": "no kernel | for it"},
]


def test_peers_stand_beside_ours_by_the_benchmarks_name():
    found = {"torch": "2.9", "cuda": "13.0", "cudnn": 9, "rows": PEER_ROWS, "generation": {"tokens_per_s_1": 50.0}}
    ours = {"kernels": [{"what": "qkv, M = 1", "us": 9.0}]}
    parts = {"qwen3-0.6b, random weights": {"decode_1": {"decode.tokens_per_s": 190.0}}}
    lines = peers.as_lines(found, ours, parts)
    assert "| qkv, M = 1 | torch (cuBLAS) | 12.0 | 9.0 | 0.75 |" in lines
    assert "| decode, 64 requests x 4096, GQA 4:1 | SDPA cuDNN | no kernel / for it | not measured | |" in lines
    assert "| 1 requests | 50.0 | 190.0 |" in lines


def test_every_peer_is_of_a_benchmark_that_there_is():
    """peers_torch.py and the benchmarks must use the same names: a row without a partner compares nothing."""
    theirs = (ROOT / "tests" / "gpu" / "peers_torch.py").read_text()
    for name in (
        "64 x 151936, plain draw",
        "64 x 151936, top-p 0.95",
        "64 x 151936, greedy",
        "top 20 of 64 x 151936",
        "decode, 64 requests x 4096, GQA 4:1",
        "prefill, 8192, causal, wgmma",
        "qkv",
        "gate, up",
        "head",
    ):
        assert f'"{name}"' in BENCHMARKS and f'"{name}"' in theirs, name


def test_the_table_in_what_nsys_prints_is_found():
    printed = "Processing [timeline.sqlite]\n\nTime (%),Total Time (ns),Instances,Avg (ns),Name\n60.0,120,3,40,a|b\n"
    rows = profilers.csv_rows(printed)
    assert rows == [["Time (%)", "Total Time (ns)", "Instances", "Avg (ns)", "Name"], ["60.0", "120", "3", "40", "a|b"]]
    assert profilers.as_table(rows)[-1] == "| 60.0 | 120 | 3 | 40 | a/b |"
    assert profilers.csv_rows("no data here\n") == []


NCU = """==PROF== Connected to process 7
[7] pitstop_gpu_bench@127.0.0.1
  void pitstop::kernels::<unnamed>::rope_kernel<__nv_bfloat16, 128>(RopeParams) (64, 1, 1)x(256, 1, 1), Context 1, Stream 13, Device 0, CC 9.0
    Section: Launch Statistics
    -------------------------------- ----------- ------------
    Shared Memory Configuration Size       Kbyte        32.77
    -------------------------------- ----------- ------------

  void pitstop::kernels::<unnamed>::decode_kernel<(int)128>(AttentionParams) (792, 1, 1)x(32, 1, 1), Context 1, Stream 13, Device 0, CC 9.0
    Section: Launch Statistics
    -------------------------------- ----------- ------------
    Driver Shared Memory Per Block   Kbyte/block         1.02
    Shared Memory Configuration Size       Kbyte       SIZE
    -------------------------------- ----------- ------------
"""


@pytest.mark.parametrize("size, ok", [("233.47", True), ("200.70", False)])
def test_the_memory_that_an_sm_shares_is_found_in_what_ncu_prints(size, ok):
    fact = profilers.decode_shares(NCU.replace("SIZE", size))
    assert fact["ok"] == ok and fact["kb"] == float(size), fact
    assert profilers.decode_shares(NCU.replace("decode_kernel", "other_kernel")) is None
