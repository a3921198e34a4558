"""A build without CUDA: its worker links, serves on the CPU, and reports what is missing."""

import pathlib
import re
import subprocess

import pytest

from process_tree import environment, run
from test_updates import BARD, DIGESTS, GREEDY, update

BIN = pathlib.Path(environment()["PITSTOP_BUILD"]).resolve() / "bin"
WORKER = BIN / "pitstop_tp_worker_without_cuda"
SMALL = ("--max-total-tokens", 2048)
WHY = "this build has no CUDA"

pytestmark = pytest.mark.skipif(
    not WORKER.exists() or "/emulated" in str(BIN),
    reason="the build has no CUDA, or a GPU in software: its worker is the only one",
)


@pytest.fixture
def without_cuda(tmp_path, monkeypatch):
    """A build's programs, with the worker without CUDA in place of the usual one."""
    (tmp_path / "bin").mkdir()
    for program in BIN.glob("pitstop_*"):
        (tmp_path / "bin" / program.name).symlink_to(WORKER if program.name == "pitstop_tp_worker" else program)
    monkeypatch.setenv("PITSTOP_BUILD", str(tmp_path))


def symbols(program):
    listed = subprocess.run(["nm", "--demangle", program], check=True, capture_output=True, text=True)
    return set(re.findall(r"(?m) [TtWV] (cuda[A-Z]\w+|pitstop::kernels::\w*open_cuda_device)", listed.stdout))


def test_nothing_of_cuda_is_linked():
    assert symbols(WORKER) == {"pitstop::kernels::open_cuda_device"}
    assert "cudaMalloc" in symbols(BIN / "pitstop_tp_worker"), "where it is, the symbols are found"


def test_a_build_without_cuda_serves_and_updates_on_the_cpu(without_cuda, start_tree):
    tree = start_tree("--tp", 2, *SMALL)
    with tree.door("admin") as admin:
        workers = [worker for replica in admin.call("status")["replicas"] for worker in replica["workers"]]
        assert [worker["device_why"].startswith(WHY) for worker in workers] == [True, True], workers
        assert len(tree.door().generate("Once upon a time", max_new_tokens=3, **GREEDY).tokens) == 3
        assert update(admin, BARD)["digest"] == DIGESTS["bard"]["digest"]


def test_a_gpu_that_is_asked_for_is_refused_by_name(without_cuda, tmp_path):
    done = run("serve", "--run-dir", tmp_path / "run", "--no-http", "--device", "cuda", *SMALL)
    assert done.returncode != 0 and WHY in done.stderr, done.stderr
