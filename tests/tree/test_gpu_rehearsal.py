"""tests/gpu/run on the GPU in software: it must behave as on a machine with a GPU. Sizes are small, and figures are
discarded. A few parts in each build; all of them in one call, from inside a bundle and with faults, at night."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile

import pytest

from gpu_tree import BUILD
from process_tree import ROOT
from test_emulated_gpu import ALL

sys.path.insert(0, str(ROOT / "tests" / "gpu"))
sys.path.append(str(ROOT / "launch" / "lib"))
import sanitizers  # noqa: E402  (after the path)
import targets  # noqa: E402
from first_steps import STEPS  # noqa: E402

pytestmark = pytest.mark.skipif(not (BUILD / "bin/pitstop_gpu_bench").exists(), reason=f"{BUILD} is not built")
nightly = pytest.mark.skipif(not ALL, reason="takes minutes: launch/test --emulated-gpu-all")
WHOLE_S = 2700  # of a call without --part, on a busy machine
FIRST_S = 2700  # of tests/gpu/first, on a busy machine
NOT_IN_SOFTWARE = {"compute-sanitizer", "ncu", "PyTorch"}  # steps that are skipped on a GPU in software without PyTorch
# {line of the report: its result here}; lines that are not listed must pass.
EXPECTED = {
    **{f"compute-sanitizer {tool}": "skipped" for tool in sanitizers.TOOLS},
    "nsys": "skipped",
    "ncu": "skipped",
    "PyTorch and transformers": "skipped",
}
TORCH = pathlib.Path(os.environ.get("PITSTOP_TRAINERS", ROOT / "build" / "trainers")) / "trl" / "bin"
EMULATED = ("libcublasLt.so.13", "libnccl.so.2")  # replacements of libraries that a user must provide


def rehearse(place, *flags, source=ROOT, timeout=900, **environment):
    """tests/gpu/run with these flags: (how it ended, its report)."""
    out = place / "out"
    inherited = {name: value for name, value in os.environ.items() if name != "PITSTOP_BUILD"}  # a bundle has its own
    done = subprocess.run(
        [sys.executable, source / "tests/gpu/run", f"--out={out}", "--require-gpu", *flags],
        env={
            **inherited,
            "PITSTOP_EMULATED_MACHINE": str(place / "machine"),
            "PITSTOP_EMULATED_POLICY": "early",
            "PITSTOP_EMULATED_GPUS": "2",  # one to broadcast from
            **({"PITSTOP_BUILD": str(BUILD)} if source == ROOT else {}),
            **environment,
        },
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert (out / "report.json").exists(), done.stdout[-2000:] + done.stderr[-2000:]
    assert (out / "report.md").read_text().startswith("# GPU report: EMULATED")
    assert len(list(out.iterdir())) <= 8
    return done, json.loads((out / "report.json").read_text())


def check_all_ran(done, report, expected):
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    ended = {name: part["status"] for name, part in report["parts"].items()}
    assert ended == {name: expected.get(name, "passed") for name in ended}, report["parts"]
    assert set(expected) <= set(ended)
    assert set(report["times"]) == {
        "limits",
        "correctness",
        "kernels",
        "engine",
        "updates",
        "profile",
        "peers",
        "sanitizer",
    }
    assert max(report["times"].values()) < 540, report["times"]  # seconds; each part must stay under nine minutes
    assert report["device"]["cublas_lt_path"] and report["device"]["nccl_path"]
    assert report["kernels"]["kernels"] and report["gaps"] and report["errors"]
    assert all(target["measured"] is not None for target in report["targets"]), report["targets"]


def test_limits_memory_and_gaps_are_measured(place):
    done, report = rehearse(place, "--part=limits", "--part=updates", "--part=profile")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    parts = report["parts"]
    memory = parts[targets.UPDATES_PART]
    assert parts["limits"]["copy_gb_s"] > 0 and memory["again"]["freed_bytes"]["weights"] > 0
    assert memory["again"]["back_of_said"] == 1, "the driver has what was said to be freed"
    size = memory["disk"]["gb"]
    assert all(memory[way]["gb"] == size > 0 and memory[way]["gb_s"] > 0 for way in ("push", "lent")), memory
    assert memory["lent"]["num_steps"] > 0 and memory["lent"]["gap_steps"] > 0, memory["lent"]
    assert parts[targets.HOST_PART]["again"]["up_gb_s"] > 0, parts[targets.HOST_PART]
    nccl = parts["flattened buckets of qwen3-0.6b over NCCL"]
    assert nccl["broadcasts"] == nccl["buckets"] > 1, nccl
    judged = {target["what"]: target["measured"] for target in report["targets"]}
    for what, *_ in targets.UPDATES:
        assert judged[what] > 0, judged
    assert all(
        share > 0 for what, share in judged.items() if what.startswith((targets.LENT, "weights kept", "resume"))
    ), judged
    assert [step["launches"] > 0 for step in report["gaps"]] == [True, True]


def test_a_lost_gpu_is_a_failure_with_a_report(place):
    done, report = rehearse(
        place, "--part=limits", PITSTOP_EMULATED_FAULTS="cudaEventRecord:3=cudaErrorECCUncorrectable"
    )
    assert done.returncode == 1, done.stdout
    assert report["parts"]["limits"]["status"] == "failed"
    assert "cudaErrorECCUncorrectable" in report["parts"]["limits"]["why"]


def test_every_group_of_a_sanitizers_families_has_tests():
    """A group whose filter matches nothing would waste a minute of a GPU's time."""
    for families in sanitizers.FAMILIES:
        command = [BUILD / "bin" / "kernels_gpu_test", "--gtest_list_tests", f"--gtest_filter={families}"]
        listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        assert listed.count("\n  ") > 0, families
        assert "DeathTest" not in listed, families


@nightly
@pytest.mark.timeout(WHOLE_S + 60)
def test_every_part_is_rehearsed_in_one_call(place):
    """With PyTorch's own kernels on the CPU as peers, if the trainers' environment was made."""
    expected = dict(EXPECTED)
    environment = {}
    if (TORCH / "python3").exists():
        expected["PyTorch and transformers"] = "passed"
        environment["PATH"] = f"{TORCH}:{os.environ['PATH']}"
    done, report = rehearse(place, f"--budget={WHOLE_S}", timeout=WHOLE_S, **environment)
    check_all_ran(done, report, expected)


def unpacked_bundle(place):
    """A bundle of this build with the libraries of the GPU in software, unpacked; the directory that it was packed from
    is gone."""
    made = place / "pitstop"
    subprocess.run(
        [ROOT / "launch" / "bundle", made, "--archive"], env={**os.environ, "PITSTOP_BUILD": str(BUILD)}, check=True
    )
    elsewhere = place / "elsewhere"
    with tarfile.open(made.with_name("pitstop.tar.xz")) as file:
        file.extractall(elsewhere)
    shutil.rmtree(made)
    for name in EMULATED:
        shutil.copy(BUILD / "bin" / name, elsewhere / "pitstop" / "lib")
    return elsewhere / "pitstop"


@nightly
@pytest.mark.timeout(WHOLE_S + 300)
def test_a_bundle_elsewhere_rehearses_every_part(place):
    bundle = unpacked_bundle(place)
    done, report = rehearse(place, f"--budget={WHOLE_S}", source=bundle, timeout=WHOLE_S, PATH="/usr/bin:/bin")
    check_all_ran(done, report, EXPECTED)
    assert report["device"]["nccl_path"].startswith(str(bundle.parent))


@nightly
@pytest.mark.timeout(FIRST_S + 300)
def test_the_first_quarter_of_an_hour_is_rehearsed_from_a_bundle_elsewhere(place):
    """Runs under the Python that PITSTOP_OTHER_PYTHON names, by default this machine's. That Python should be of another
    version than the one that made the bundle. It needs NumPy, but not pyzmq."""
    bundle, out = unpacked_bundle(place), place / "out"
    python = pathlib.Path(os.environ.get("PITSTOP_OTHER_PYTHON", "/usr/bin/python3"))
    inherited = {name: value for name, value in os.environ.items() if name not in ("PITSTOP_BUILD", "PYTHONPATH")}
    done = subprocess.run(
        [python, bundle / "tests/gpu/first", f"--out={out}", f"--budget={FIRST_S}"],
        env={
            **inherited,
            "PATH": f"{python.parent}:/usr/bin:/bin",
            "PITSTOP_EMULATED_MACHINE": str(place / "machine"),
            "PITSTOP_EMULATED_POLICY": "early",
        },
        capture_output=True,
        text=True,
        timeout=FIRST_S + 60,
    )
    report = json.loads((out / "report.json").read_text())
    ended = {name: (step["status"], step["why"]) for name, step in report["steps"].items()}
    not_passed = {name: why for name, (status, why) in ended.items() if status != "passed"}
    assert set(not_passed) == NOT_IN_SOFTWARE, not_passed
    assert done.returncode == 0 and list(ended) == [step.name for step in STEPS], (
        done.stdout[-3000:] + done.stderr[-1000:]
    )
    asked = subprocess.run(
        [python, "-c", "import platform; print(platform.python_version())"], capture_output=True, text=True
    )
    assert report["machine"]["python"] == asked.stdout.strip()
    assert (out / "report.md").read_text().startswith("# First report: EMULATED")
    assert report["figures"] and all(fact["ok"] for fact in report["facts"]), report["facts"]


@nightly
def test_a_gpu_that_hangs_costs_its_part_a_minute(place):
    done, report = rehearse(place, "--part=limits", PITSTOP_EMULATED_FAULTS="copy:2=hang")
    assert done.returncode == 1
    assert "stopped after 60 s" in report["parts"]["limits"]["why"] and report["times"]["limits"] < 120
