"""pitstop_bench and pitstop_stall on real trees: their counts equal what was requested."""

import json
import subprocess

import pytest

from bench_programs import program

BENCH = program("bench")
STALL = program("stall")
MAKE_MODEL = program("make_model")
TIMEOUT_S = 400


def run(command, *args):
    return subprocess.run([command, *args], capture_output=True, text=True, timeout=TIMEOUT_S, check=False)


@pytest.fixture
def bench(tmp_path):
    """bench(args...): its JSON, after an end without errors."""

    def run_bench(*args):
        path = tmp_path / "figures.json"
        done = run(BENCH, *args, "--json", str(path))
        assert done.returncode == 0, done.stdout + done.stderr
        report = json.loads(path.read_text())
        assert report["figures"]["errors"] == {}
        return report

    return run_bench


@pytest.mark.parametrize("load_format", ["auto", "null"])
def test_an_offline_run_counts_every_token(bench, load_format):
    report = bench(
        "offline", "--num-requests", "12", "--prompt-len", "20", "--output-len", "uniform:5:15",
        "--shared-prefix", "32", "--clients", "3", "--load-format", load_format,
    )  # fmt: skip
    figures = report["figures"]
    assert figures["requests_ok"] == 12
    assert figures["prompt_tokens"] == 12 * (32 + 20)
    assert 12 * 5 <= figures["output_tokens"] <= 12 * 15
    assert figures["first_token_ms"]["count"] == 12
    # A first chunk may bring more than one token, or all, if the tree was faster than its door.
    assert figures["inter_token_ms"]["count"] <= figures["output_tokens"] - 12
    assert figures["steps"] > 0
    if load_format == "auto":
        assert report["limits"]["read_bytes_per_s"] > 1e8
    names = [process["name"] for process in report["processes"]]
    assert names[0] == "launcher" and "tp_worker[0.0]" in names
    assert all(process["peak_bytes"] > 1 << 20 for process in report["processes"])
    assert 0 < report["start_up"]["ready_s"] < report["start_up"]["first_token_s"]


def test_a_shared_prefix_is_found_in_the_cache(bench):
    report = bench(
        "stream", "--num-requests", "3", "--prompt-len", "4", "--output-len", "4",
        "--shared-prefix", "64",
    )  # fmt: skip
    # The warm-up has another prefix. The first request computes the shared prefix; the other two find it cached.
    assert report["figures"]["cached_tokens"] == 2 * 64


def test_a_serving_run_keeps_its_rate(bench):
    report = bench("serving", "--num-requests", "40", "--rate", "100", "--prompt-len", "8", "--output-len", "4")
    # 40 exponential gaps of 10 ms: 0.4 s in the mean, and at this seed never under half of it.
    assert report["figures"]["seconds"] > 0.2
    assert report["figures"]["requests_ok"] == 40


@pytest.mark.parametrize(
    ("args", "what"),
    [
        ((), "offline, serving or stream"),
        (("batch",), "mode 'batch'"),
        (("serving",), "--rate"),
        (("offline", "--rate", "3"), "--rate"),
        (("offline", "--clients", "0"), "--clients"),
        (("offline", "--run-dir", "/tmp/x", "--", "--tp", "2"), "--run-dir"),
    ],
)
def test_a_wrong_flag_is_refused_before_anything_starts(args, what):
    done = run(BENCH, *args)
    assert done.returncode == 2
    assert what in done.stderr


@pytest.mark.parametrize(
    ("args", "what"),
    [
        (("offline", "--prompt-len", "many"), "not a length distribution"),
        (("offline", "--num-requests", "-1"), "-1 requests"),
        (("offline", "--model", "/nonexistent"), "launcher ended with status 2"),
        (("offline", "--launcher", "/nonexistent"), "launcher ended with status 127"),
        (("stream", "--shared-prefix", "2000"), "leaves no room"),
    ],
)
def test_a_run_that_cannot_work_says_why(args, what):
    done = run(BENCH, *args)
    assert done.returncode == 1
    assert what in done.stderr


def test_stall_prints_every_target(tmp_path):
    path = tmp_path / "stall.json"
    done = run(
        STALL, "--shape", "tiny", "--streams", "2", "--updates", "2", "--pauses", "3",
        "--quiet-tokens", "16", "--json", str(path),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(path.read_text())
    assert len(report["targets"]) == 7
    assert len(report["updates"]) == len(report["idle_updates"]) == 2
    assert len({update["bytes"] for update in report["updates"]}) == 1
    assert report["pause_continue_idle_ms"]["count"] == 3
    assert report["long_pass_s"] > 0
    assert all(target["name"] in done.stdout for target in report["targets"])


def test_stall_takes_two_checkpoints(tmp_path):
    for name, perturb in (("a", ()), ("b", ("--perturb", "1:0.1"))):
        made = run(MAKE_MODEL, "tiny", str(tmp_path / name), *perturb)
        assert made.returncode == 0, made.stderr
    done = run(
        STALL, "--model", str(tmp_path / "a"), "--next", str(tmp_path / "b"), "--streams", "1",
        "--updates", "1", "--pauses", "1", "--quiet-tokens", "8",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert run(STALL, "--model", str(tmp_path / "a")).returncode == 2
