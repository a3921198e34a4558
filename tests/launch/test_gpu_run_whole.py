"""The whole of tests/gpu/run, with programs that print the same as on a GPU."""

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

from gtest_doubles import HEAD, MISBEHAVES, commands

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "gpu"))

import targets  # noqa: E402  (after the path)

FAKES = {
    "pitstop_tp_worker": "",
    "pitstop_gpu_bench": """
        import json, os, sys
        flags = dict(word[2:].split("=", 1) for word in sys.argv[1:] if "=" in word)
        def write(report): open(flags["json"], "w").write(json.dumps(report))
        if "--device-only" in sys.argv:
            write({"status": "run", "device": {"name": "NVIDIA H200"}})
        elif "--gaps" in sys.argv:
            op = {"what": "rope", "least_us": 1.0, "in_step_us": 4.0, "in_graph_us": 3.0, "alone_us": 2.0}
            write({"gaps": [{"step": "tiny, 1 request", "launches": 9, "step_us": 50.0, "graph_us": 46.0, "early_us": 44.0, "alone_us": 40.0,
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
    "kernels_gpu_test": MISBEHAVES.replace("lambda: time.sleep(600)", "os.abort"),
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
        timeout=400,
    )


def test_with_a_gpu_every_part_is_run_and_reported(build, tmp_path):
    done = run_all(build, tmp_path / "out")
    assert done.returncode == 1, done.stderr  # tests failed
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["status"] == "run" and report["device"]["name"] == "NVIDIA H200"
    parts = report["parts"]
    assert parts["kernel tests"]["status"] == "failed" and parts["kernel tests"]["passed"] == 5
    assert parts["engine tests"]["status"] == "passed"
    assert "crashes" in parts["kernel benchmarks"]["why"]  # although the family after it has run
    assert [row["family"] for row in report["kernels"]["kernels"]] == ["rmsnorm", "crashes", "linear"]
    assert parts["generate on the GPU"]["status"] == "failed"  # the programs of a tree do not exist
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
    assert run_all(build, out, "--part=limits").returncode == 0  # failures of an earlier call do not count
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
    for _ in range(2):  # the second run has no results to put aside
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
    path.write_text(
        path.read_text().replace(
            'elif "--gaps" in sys.argv:', 'elif "--gaps" in sys.argv:\n    open(flags["json"], "w").write("{")\nelif 0:'
        )
    )
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
    deadline = time.monotonic() + 120
    while not is_up():
        assert time.monotonic() < deadline and run.poll() is None
        time.sleep(0.05)
    run.terminate()
    assert run.wait(timeout=120) == 128 + signal.SIGTERM
    assert not is_up() and models() <= before


def test_models_are_made_once(build, tmp_path):
    made = tmp_path / "models"
    assert run_all(build, tmp_path / "out", "--part=engine", f"--models={made}").returncode == 0
    (build / "bin" / "pitstop_make_model").write_text(f"#!{sys.executable}\nraise SystemExit(1)\n")
    assert run_all(build, tmp_path / "out", "--part=engine", f"--models={made}").returncode == 0
    assert sorted(path.name for path in made.iterdir()) == ["qwen3-0.6b", "qwen3-8b"]


def test_without_a_gpu_nothing_is_green_that_must_have_one(build, tmp_path):
    (build / "bin" / "pitstop_gpu_bench").write_text(
        f"#!{sys.executable}\n"
        + textwrap.dedent("""
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
    before = models()  # models of an earlier run that was killed, if any
    run_all(build, tmp_path / "out", "--part=engine", "--part=updates", "--part=profile", "--part=peers")
    assert sorted((build / "bin" / "made").read_text().split()) == ["qwen3-0.6b", "qwen3-8b"]
    assert models() <= before, "a model is left"


def test_a_profile_without_profilers_has_the_gaps(build, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    assert run_all(build, tmp_path / "out", "--part=profile").returncode == 0
    parts = json.loads((tmp_path / "out" / "report.json").read_text())["parts"]
    assert parts["launch gaps"]["tiny, 1 request"] == "20% lost"
    text = (tmp_path / "out" / "report.md").read_text()
    assert "tiny, 1 request: 9 launches in 50.0 us" in text and "| rope | 1.00 | 2.00 | 4.00 | 3.00 |" in text


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
