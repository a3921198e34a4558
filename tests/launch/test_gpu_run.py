"""tests/gpu/run on a machine without a GPU: what it does with programs that crash, hang or lie."""

import json
import os
import pathlib
import signal
import stat
import subprocess
import sys
import textwrap
import time

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "gpu"))

import timed_call  # noqa: E402  (after the path)
import gtest_program  # noqa: E402
import peers  # noqa: E402
import profilers  # noqa: E402
import report as gpu_report  # noqa: E402
import sanitizers  # noqa: E402
import targets  # noqa: E402


@pytest.fixture
def program(tmp_path):
    """Writes a program of GoogleTest's manners: suites and tests, of which some misbehave."""

    def write(body):
        path = tmp_path / "program"
        path.write_text(f"#!{sys.executable}\n" + HEAD + textwrap.dedent(body))
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return path

    return write


HEAD = """
import json, os, sys, time
TESTS = {"Good": ["A", "B"], "Bad": ["First", "Crashes", "Hangs", "Last"], "After": ["C"]}
if "--gtest_list_tests" in sys.argv:
    for suite, tests in TESTS.items():
        print(suite + ".")
        for test in tests: print("  " + test)
    sys.exit(0)
def argument(name):
    return next(a.split("=", 1)[1] for a in sys.argv if a.startswith(name + "="))
names = argument("--gtest_filter").split(":")
results = []
def run(name, act=lambda: None, **properties):
    if name not in names: return
    print("[ RUN      ] " + name, flush=True)
    act()
    print("[       OK ] " + name + " (0 ms)", flush=True)
    results.append({"name": name.split(".")[1], "result": "COMPLETED", **properties})
def finish():
    path = argument("--gtest_output").split(":", 1)[1]
    suite = names[0].split(".")[0]
    json.dump({"testsuites": [{"name": suite, "testsuite": results}]}, open(path, "w"))
"""

MISBEHAVES = """
run("Good.A", worst_error="0.5", worst_error_over_bound="0.25")
run("Good.B", worst_error="0.1", worst_error_over_bound="0.75")
run("Bad.First")
run("Bad.Crashes", os.abort)
run("Bad.Hangs", lambda: time.sleep(600))
run("Bad.Last")
run("After.C")
finish()
"""


def test_a_crash_and_a_hang_cost_themselves_alone(program):
    counts = gtest_program.run(program(MISBEHAVES), dict(os.environ), timed_call.Budget(60), 60, test_s=1.0)
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
    assert len(counts.failed) == 1 and counts.failed[0].startswith("Good: after its tests") and "SIGABRT" in counts.failed[0]


def test_what_has_no_time_left_is_named(program):
    body = """
    run("Good.A", lambda: time.sleep(600))
    finish()
    """
    begin = time.monotonic()
    counts = gtest_program.run(program(body), dict(os.environ), timed_call.Budget(60), 2.0, test_s=45.0)
    assert time.monotonic() - begin < 20
    assert [line.split(":")[0] for line in counts.failed] == ["Good.A"]
    assert "Bad.First" in counts.not_run and "After.C" in counts.not_run


def test_a_program_that_does_not_start_is_a_failure(tmp_path):
    counts = gtest_program.run(tmp_path / "none", dict(os.environ), timed_call.Budget(60), 10, test_s=45.0)
    assert len(counts.failed) == 1 and "none" in counts.failed[0]


def commands():
    """Command lines of all processes."""
    for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            yield path.read_bytes()
        except OSError:
            pass  # it has ended meanwhile


def test_what_a_stopped_program_started_is_stopped_too(tmp_path):
    script = f"import subprocess, time; subprocess.Popen(['sleep', '600.25']); print('up', flush=True); time.sleep(600)"
    ended = timed_call.call([sys.executable, "-c", script], dict(os.environ), 1.0)
    assert ended.code is None and "up" in ended.output
    deadline = time.monotonic() + 5  # what is killed takes a moment to be gone
    while any(command.startswith(b"sleep") and b"600.25" in command for command in commands()):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_what_left_its_session_is_stopped_too(tmp_path):
    """As a benchmark's launcher does: it would keep the GPU's memory."""
    script = (
        "import subprocess, time; subprocess.Popen(['sleep', '600.75'], start_new_session=True);"
        "print('up', flush=True); time.sleep(600)"
    )
    ended = timed_call.call([sys.executable, "-c", script], dict(os.environ), 1.0)
    assert ended.code is None and "up" in ended.output
    assert not any(command.startswith(b"sleep") and b"600.75" in command for command in commands())


def test_a_deadline_ends_whatever_is_waited_for_and_what_was_started():
    begin = time.monotonic()
    with pytest.raises(timed_call.Overdue), timed_call.deadline(0.5):
        timed_call.call(["sleep", "600.5"], dict(os.environ), 600)
    assert time.monotonic() - begin < 30
    assert not any(command.startswith(b"sleep") and b"600.5" in command for command in commands())
    with timed_call.deadline(0.05):
        pass
    time.sleep(0.1)  # it is over with its body


@pytest.mark.parametrize(
    "code, output, seen",
    [
        (0, "========= ERROR SUMMARY: 0 errors\n", ""),
        (0, "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)\n", ""),
        (1, "a test failed\n========= ERROR SUMMARY: 0 errors\n", ""),  # a trouble, and none of its own
        (9, "========= Invalid __global__ read of size 4 bytes\n========= ERROR SUMMARY: 3 errors\n", "3 errors"),
        (9, "========= RACECHECK SUMMARY: 2 hazards displayed (2 errors, 0 warnings)\n", "2 errors"),
        (None, "========= Uninitialized __global__ memory read\n", "Uninitialized __global__ memory read"),
        (None, "========= COMPUTE-SANITIZER\n", ""),
        (255, "========= Error: Target application terminated before first instrumented API call\n", ""),
    ],
)
def test_what_a_sanitizer_saw(code, output, seen):
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
    assert found["norms, rope + KV write, silu_mul, digest, scatter"]["holds"] is None  # only one of five
    assert found[targets.DECODE[0]]["measured"] == pytest.approx(0.75)
    assert found[targets.DECODE[0]]["holds"] is True


def test_without_a_gpu_every_target_says_not_run(tmp_path):
    report = gpu_report.Report(tmp_path)
    report.why_not = "no driver"
    report.add("kernel tests", "skipped", "no driver")
    assert all(t["holds"] is None for t in targets.evaluate(None, report.parts))
    lines = (tmp_path / "report.md").read_text().splitlines()
    assert sum("not run |" in line for line in lines) == len(targets.evaluate(None, {}))


def test_every_target_names_benchmarks_that_there_are():
    """The names are gpu_families.cpp's: a target that no row answers to would stay `not run` for ever."""
    source = (ROOT / "bench" / "gpu_families.cpp").read_text()
    for _, _, _, names in targets.KERNELS:
        for family, name in names.items():
            assert f'"{family}"' in source
            assert family == "linear" or name in source


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
    """What peers_torch.py names is what gpu_families.cpp names: a row without a partner says nothing."""
    ours = (ROOT / "bench" / "gpu_families.cpp").read_text()
    theirs = (ROOT / "tests" / "gpu" / "peers_torch.py").read_text()
    for name in ("64 x 151936, plain draw", "64 x 151936, top-p 0.95", "64 x 151936, greedy", "top 20 of 64 x 151936",
                 "decode, 64 requests x 4096, GQA 4:1", "prefill, 8192, causal, wgmma", "qkv", "gate, up", "head"):
        assert f'"{name}"' in ours and f'"{name}"' in theirs, name


def test_the_table_in_what_nsys_prints_is_found():
    printed = "Processing [timeline.sqlite]\n\nTime (%),Total Time (ns),Instances,Avg (ns),Name\n60.0,120,3,40,a|b\n"
    rows = profilers.csv_rows(printed)
    assert rows == [["Time (%)", "Total Time (ns)", "Instances", "Avg (ns)", "Name"], ["60.0", "120", "3", "40", "a|b"]]
    assert profilers.as_table(rows)[-1] == "| 60.0 | 120 | 3 | 40 | a/b |"
    assert profilers.csv_rows("no data here\n") == []


# ---- the whole of tests/gpu/run, with programs that say what they would on a GPU ----

FAKES = {
    "pitstop_tp_worker": "",
    "pitstop_gpu_bench": """
        import json, os, sys
        flags = dict(word[2:].split("=", 1) for word in sys.argv[1:] if "=" in word)
        def write(report): open(flags["json"], "w").write(json.dumps(report))
        if "--device-only" in sys.argv:
            write({"status": "run", "device": {"name": "NVIDIA H200"}})
        elif "--gaps" in sys.argv:
            op = {"what": "rope", "in_step_us": 4.0, "alone_us": 2.0}
            write({"gaps": [{"step": "tiny, 1 request", "launches": 9, "step_us": 50.0, "alone_us": 40.0,
                             "least_us": 30.0, "ops": [op]}]})
        elif "--list" in sys.argv:
            print("rmsnorm"); print("crashes"); print("linear")
        else:
            family = flags["family"]
            assert (family == "limits") == ("copy-gb-s" not in flags)
            row = {"family": family, "what": "qkv, M = 1", "us": 10.0, "bytes": 4e7, "flops": 1e9,
                   "fraction": 0.9, "of": "copy bandwidth", "target": 0.8, "met": True}
            rows = [] if family == "limits" else [row]
            write({"limits": {"copy_gb_s": 4000.0, "matrix_tflop_s": 700.0}, "kernels": rows})
            if family == "crashes": os.abort()
        """,
    "kernels_gpu_test": MISBEHAVES.replace('lambda: time.sleep(600)', 'os.abort'),
    "tp_worker_gpu_test": 'run("Good.A")\nrun("Good.B")\nfinish()\n',
    "pitstop_make_model": """
        import os, pathlib, sys
        os.makedirs(sys.argv[-1])
        with open(pathlib.Path(__file__).with_name("made"), "a") as file: file.write(sys.argv[1] + "\\n")
        """,
    "pitstop_bench": """
        import json, sys
        flags = dict(word[2:].split("=", 1) for word in sys.argv[1:] if "=" in word)
        json.dump({"figures": {"decode": {"tokens_per_s": 190.0}}, "start_up": {"ready_s": 3.5},
                   "model": {"weight_bytes_per_step": 15e9}}, open(flags["json"], "w"))
        """,
}


@pytest.fixture
def build(tmp_path):
    place = tmp_path / "build" / "bin"
    place.mkdir(parents=True)
    for name, body in FAKES.items():
        head = HEAD if name.endswith("gpu_test") else ""
        path = place / name
        path.write_text(f"#!{sys.executable}\n{head}{textwrap.dedent(body)}")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return place.parent


def run_all(build, out, *flags):
    return subprocess.run(
        [sys.executable, ROOT / "tests" / "gpu" / "run", f"--out={out}", *flags],
        env={**os.environ, "PITSTOP_BUILD": str(build)},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_with_a_gpu_every_part_is_run_and_reported(build, tmp_path):
    done = run_all(build, tmp_path / "out")
    assert done.returncode == 1, done.stderr  # tests failed
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["status"] == "run" and report["device"]["name"] == "NVIDIA H200"
    parts = report["parts"]
    assert parts["kernel tests"]["status"] == "failed" and parts["kernel tests"]["passed"] == 5
    assert parts["engine tests"]["status"] == "passed"
    assert "crashes" in parts["kernel benchmarks"]["why"]  # and the family after it is there
    assert [row["family"] for row in report["kernels"]["kernels"]] == ["rmsnorm", "crashes", "linear"]
    assert parts["generate on the GPU"]["status"] == "failed"  # no program of the tree is there
    assert parts["qwen3-8b, random weights"]["prefill_8k"]["decode.tokens_per_s"] == 190.0
    assert report["errors"]["Good"]["worst_error"] == 0.5
    holds = {target["what"]: target["holds"] for target in report["targets"]}
    assert holds["GEMMs of qwen3-8b, M = 1"] is True
    assert holds[targets.DECODE[0]] is True
    text = (tmp_path / "out" / "report.md").read_text()
    assert "Copy 4000 GB/s" in text and "Bad.Crashes" in text


def test_without_time_every_part_says_so(build, tmp_path):
    done = run_all(build, tmp_path / "out", "--budget=4")
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert {part["why"] for part in report["parts"].values()} == {"no time left"}
    assert (tmp_path / "out" / "report.md").read_text().startswith("# GPU report: NOT RUN")
    assert done.stdout.splitlines()[-1].startswith("NOT RUN")


def test_a_driver_that_hangs_leaves_a_report(build, tmp_path):
    (build / "bin" / "pitstop_gpu_bench").write_text(f"#!{sys.executable}\nimport time; time.sleep(600)\n")
    done = run_all(build, tmp_path / "out", "--budget=3")
    assert done.returncode == 1, done.stderr
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["status"] == "not run" and "stopped after" in report["why"]


def test_a_part_joins_what_others_found(build, tmp_path):
    out = tmp_path / "out"
    assert run_all(build, out, "--part=limits").returncode == 0
    assert run_all(build, out, "--part=kernels").returncode == 1
    report = json.loads((out / "report.json").read_text())
    assert report["parts"]["limits"]["status"] == "passed"
    assert report["parts"]["kernel benchmarks"]["status"] == "failed"  # a family crashed
    assert report["kernels"]["limits"]["copy_gb_s"] == 4000.0
    assert run_all(build, out, "--part=limits").returncode == 0  # what failed before is not its own
    assert len(list(out.iterdir())) <= 8


NO_GPU = f"""#!{sys.executable}
import json, sys
path = next(word[7:] for word in sys.argv if word.startswith("--json="))
json.dump({{"status": "not run", "why": "no driver"}}, open(path, "w"))
"""


@pytest.mark.parametrize("bench", [NO_GPU, f"#!{sys.executable}\nraise SystemExit(3)\n"])
def test_a_gpu_that_is_gone_takes_no_earlier_figures_with_it(build, tmp_path, bench):
    out = tmp_path / "out"
    assert run_all(build, out, "--part=limits").returncode == 0
    program = build / "bin" / "pitstop_gpu_bench"
    there = program.read_text()
    for _ in range(2):  # the second has nothing to put aside
        program.write_text(bench)
        run_all(build, out, "--part=kernels")
        assert (out / "report.md").read_text().startswith("# GPU report: NOT RUN")
        assert json.loads((out / "earlier.json").read_text())["parts"]["limits"]["status"] == "passed"
    program.write_text(there)
    run_all(build, out, "--part=profile")
    parts = json.loads((out / "report.json").read_text())["parts"]
    assert parts["limits"]["status"] == parts["launch gaps"]["status"] == "passed"


def test_a_place_that_cannot_be_written_to_is_named_before_anything_runs(build, tmp_path):
    (tmp_path / "out").write_text("a file")
    done = run_all(build, tmp_path / "out")
    assert done.returncode == 4 and len(done.stderr.splitlines()) == 1
    assert str(tmp_path / "out") in done.stderr and not done.stdout
    full = run_all(build, tmp_path / "new", f"--models={tmp_path / 'out'}")
    assert full.returncode == 4 and len(full.stderr.splitlines()) == 1


def test_figures_that_are_cut_off_cost_their_line_alone(build, tmp_path):
    path = build / "bin" / "pitstop_gpu_bench"
    path.write_text(path.read_text().replace('elif "--gaps" in sys.argv:', 'elif "--gaps" in sys.argv:\n    open(flags["json"], "w").write("{")\nelif 0:'))
    assert run_all(build, tmp_path / "out", "--part=profile", "--part=limits").returncode == 1
    parts = json.loads((tmp_path / "out" / "report.json").read_text())["parts"]
    assert parts["launch gaps"]["status"] == "failed" and parts["limits"]["status"] == "passed"


def test_a_run_that_is_told_to_end_leaves_nobody_and_no_model(build, tmp_path):
    (build / "bin" / "pitstop_bench").write_text("#!/bin/sh\nexec sleep 600.125\n")
    models = lambda: set(pathlib.Path("/dev/shm").glob("pitstop-models-*"))  # noqa: E731
    before = models()
    run = subprocess.Popen(
        [sys.executable, ROOT / "tests" / "gpu" / "run", f"--out={tmp_path / 'out'}", "--part=engine"],
        env={**os.environ, "PITSTOP_BUILD": str(build)},
        stdout=subprocess.DEVNULL,
    )
    is_up = lambda: any(line.startswith(b"sleep") and b"600.125" in line for line in commands())  # noqa: E731
    deadline = time.monotonic() + 30
    while not is_up():
        assert time.monotonic() < deadline and run.poll() is None
        time.sleep(0.05)
    run.terminate()
    assert run.wait(timeout=60) == 128 + signal.SIGTERM
    assert not is_up() and models() <= before


def test_models_are_made_once(build, tmp_path):
    made = tmp_path / "models"
    assert run_all(build, tmp_path / "out", "--part=engine", f"--models={made}").returncode == 0
    (build / "bin" / "pitstop_make_model").write_text(f"#!{sys.executable}\nraise SystemExit(1)\n")
    assert run_all(build, tmp_path / "out", "--part=engine", f"--models={made}").returncode == 0
    assert sorted(path.name for path in made.iterdir()) == ["qwen3-0.6b", "qwen3-8b"]


def test_without_a_gpu_nothing_is_green_that_must_have_one(build, tmp_path):
    (build / "bin" / "pitstop_gpu_bench").write_text(
        f"#!{sys.executable}\n" + textwrap.dedent("""
        import json, sys
        path = next(word[7:] for word in sys.argv if word.startswith("--json="))
        json.dump({"status": "not run", "why": "no driver"}, open(path, "w"))
        """)
    )
    done = run_all(build, tmp_path / "out")
    assert done.returncode == 0 and done.stdout.splitlines()[0] == "NOT RUN: no driver"
    first = (tmp_path / "out" / "report.md").read_text().splitlines()[0]
    assert first == "# GPU report: NOT RUN: no driver"
    assert run_all(build, tmp_path / "out", "--require-gpu").returncode == 1


def test_tests_that_all_skip_are_not_green(build, tmp_path):
    (build / "bin" / "kernels_gpu_test").write_text(
        f"#!{sys.executable}\n" + HEAD + 'results = [{"name": n, "result": "SKIPPED"} for n in names]\nfinish()\n'
    )
    (build / "bin" / "tp_worker_gpu_test").unlink()
    done = run_all(build, tmp_path / "out", "--part=correctness", "--require-gpu")
    parts = json.loads((tmp_path / "out" / "report.json").read_text())["parts"]
    assert done.returncode == 1
    assert parts["kernel tests"]["status"] == "skipped" and "no test ran" in parts["kernel tests"]["why"]
    assert parts["engine tests"]["status"] == "failed" and "is not there" in parts["engine tests"]["why"]


def test_models_are_made_once_in_a_run_and_go_with_it(build, tmp_path):
    models = lambda: set(pathlib.Path("/dev/shm").glob("pitstop-models-*/qwen3-8b"))  # noqa: E731
    before = models()  # of a run that was killed, perhaps
    run_all(build, tmp_path / "out", "--part=engine", "--part=updates", "--part=profile", "--part=peers")
    assert sorted((build / "bin" / "made").read_text().split()) == ["qwen3-0.6b", "qwen3-8b"]
    assert models() <= before, "a model is left"


def test_a_profile_without_profilers_has_the_gaps(build, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    assert run_all(build, tmp_path / "out", "--part=profile").returncode == 0
    parts = json.loads((tmp_path / "out" / "report.json").read_text())["parts"]
    assert parts["launch gaps"]["tiny, 1 request"] == "20% lost"
    text = (tmp_path / "out" / "report.md").read_text()
    assert "tiny, 1 request: 9 launches in 50.0 us" in text and "| rope | 4.00 | 2.00 |" in text


SANITIZER = """
    import sys
    tool = sys.argv[sys.argv.index("--tool") + 1]
    if "--device-only" in sys.argv:
        sys.exit(0)
    assert sys.argv[-1].startswith("--gtest_filter=")
    is_found = tool == "racecheck" and "Linear*-" in sys.argv[-1]
    print("========= ERROR SUMMARY: 0 errors" if tool != "racecheck" else
          f"========= RACECHECK SUMMARY: {2 if is_found else 0} hazards displayed (0 errors, 0 warnings)")
    if tool == "initcheck" and sys.argv[-1] == "--gtest_filter=*Sampl*":
        print("nothing was run"); sys.exit(3)
    sys.exit(9 if is_found else 0)
    """


def put_on_path(monkeypatch, place, name, text):
    place.mkdir(exist_ok=True)
    (place / name).write_text(f"#!{sys.executable}\n{textwrap.dedent(text)}")
    (place / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{place}:{os.environ['PATH']}")


def test_a_sanitizer_looks_at_every_family(build, tmp_path, monkeypatch):
    put_on_path(monkeypatch, tmp_path / "path", "compute-sanitizer", SANITIZER)
    assert run_all(build, tmp_path / "out", "--part=sanitizer").returncode == 1
    parts = json.loads((tmp_path / "out" / "report.json").read_text())["parts"]
    ended = {name.split()[-1]: (part["status"], part["why"]) for name, part in parts.items()}
    assert ended["memcheck"] == ended["synccheck"] == ("passed", "")
    assert ended["racecheck"] == ("failed", "*Linear*-*DeathTest*: 2 errors")
    assert ended["initcheck"][0] == "skipped" and "nothing was run" in ended["initcheck"][1]


def test_a_sanitizer_that_looked_at_nothing_is_not_green(build, tmp_path, monkeypatch):
    silent = "import sys\nif '--device-only' in sys.argv: sys.exit(0)\n" + (
        "tool = sys.argv[sys.argv.index('--tool') + 1]\n"
        "if tool == 'memcheck': sys.exit(0)\n"
        "print('[  FAILED  ] CudaLinear.NoRowsIsNoWork (3 ms)\\n========= ERROR SUMMARY: 0 errors'); sys.exit(1)\n"
    )
    put_on_path(monkeypatch, tmp_path / "path", "compute-sanitizer", silent)
    assert run_all(build, tmp_path / "out", "--part=sanitizer").returncode == 1
    parts = json.loads((tmp_path / "out" / "report.json").read_text())["parts"]
    assert parts["compute-sanitizer memcheck"]["status"] == "skipped"
    assert parts["compute-sanitizer racecheck"]["status"] == "failed"
    assert "CudaLinear.NoRowsIsNoWork failed" in parts["compute-sanitizer racecheck"]["why"]


def test_a_sanitizer_that_sees_no_gpu_says_so(build, tmp_path, monkeypatch):
    put_on_path(monkeypatch, tmp_path / "path", "compute-sanitizer", "print('no device'); raise SystemExit(255)")
    assert run_all(build, tmp_path / "out", "--part=sanitizer").returncode == 0
    parts = json.loads((tmp_path / "out" / "report.json").read_text())["parts"]
    assert all(part["status"] == "skipped" and "no device" in part["why"] for part in parts.values())


TORCH = """
    import json, sys
    if "-c" in sys.argv:
        print("cuda True")
    else:
        path = next(word[7:] for word in sys.argv if word.startswith("--json="))
        assert "--sizes=real" in sys.argv and any(word.startswith("--model=") for word in sys.argv)
        row = {"what": "qkv, M = 1", "peer": "torch (cuBLAS)", "us": 20.0}
        json.dump({"torch": "2.9", "cuda": "13.0", "cudnn": 9, "rows": [row]}, open(path, "w"))
    """


def test_peers_are_measured_where_python_has_torch(build, tmp_path, monkeypatch):
    put_on_path(monkeypatch, tmp_path / "path", "python3", TORCH)
    out = tmp_path / "out"
    assert run_all(build, out, "--part=limits", "--part=peers").returncode == 0
    run_all(build, out, "--part=kernels")
    assert "| qkv, M = 1 | torch (cuBLAS) | 20.0 | 10.0 | 0.50 |" in (out / "report.md").read_text()


def test_peers_without_a_figure_are_not_green(build, tmp_path, monkeypatch):
    put_on_path(monkeypatch, tmp_path / "path", "python3", TORCH.replace('"us": 20.0', '"why": "no kernel"'))
    assert run_all(build, tmp_path / "out", "--part=peers").returncode == 1
    part = json.loads((tmp_path / "out" / "report.json").read_text())["parts"]["PyTorch and transformers"]
    assert part["status"] == "failed" and part["why"] == "nothing was measured"


def test_without_torch_the_peers_say_so(build, tmp_path, monkeypatch):
    (tmp_path / "python3").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "python3").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert run_all(build, tmp_path / "out", "--part=peers").returncode == 0
    part = json.loads((tmp_path / "out" / "report.json").read_text())["parts"]["PyTorch and transformers"]
    assert part["status"] == "skipped" and "no PyTorch" in part["why"]
