"""--device auto, the default: GPUs if enough of them are usable, otherwise the CPU; status says
which, and why.
"""

import pathlib

import pytest

from gpu_tree import gpu, needs_gpu  # noqa: F401
from process_tree import run
from test_updates import BARD, DIGESTS, GREEDY, update

STUBS = pathlib.Path("/usr/local/cuda/lib64/stubs/libcuda.so")  # of the toolkit, for machines without a driver
SMALL = ("--max-total-tokens", 2048)


def workers_of(tree):
    with tree.door("admin") as admin:
        return [worker for replica in admin.call("status")["replicas"] for worker in replica["workers"]]


def why(worker):
    return worker["device_why"]


def serves_on_the_cpu(tree):
    """Checks that all ranks are on the CPU for one reason, and returns it."""
    workers = workers_of(tree)
    assert all(
        worker["device"].startswith("cpu ") and worker["device_uuid"].startswith("CPU-") for worker in workers
    ), workers
    assert len(tree.door().generate("Once upon a time", max_new_tokens=3, **GREEDY).tokens) == 3
    with tree.door("admin") as admin:
        assert update(admin, BARD)["digest"] == DIGESTS["bard"]["digest"]
    (reason,) = {why(worker) for worker in workers}
    return reason


def test_where_no_gpu_may_be_seen_a_tree_serves_on_the_cpu(start_tree, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    tree = start_tree("--tp", 2, *SMALL)
    reason = serves_on_the_cpu(tree)
    assert reason.startswith(("no CUDA device", "no GPU", "this build has no CUDA")), reason
    assert "auto" not in tree.log(), "nothing to be warned of"


@pytest.mark.skipif(not STUBS.exists(), reason=f"there is no {STUBS}")
def test_where_the_driver_is_a_stub_a_tree_serves_on_the_cpu(start_tree, monkeypatch, place):
    (place / "libcuda.so.1").symlink_to(STUBS)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(place))
    reason = serves_on_the_cpu(start_tree(*SMALL))
    assert reason.startswith(("no CUDA device", "this build has no CUDA")), reason


def test_a_device_that_is_asked_for_by_its_name_has_no_reason(start_tree):
    (worker,) = workers_of(start_tree("--device", "cpu", *SMALL))
    assert worker["device"].startswith("cpu ") and "device_why" not in worker, worker


def test_help_names_the_default():
    assert "otherwise the CPU (default auto)" in " ".join(run("serve", "--help").stdout.split())


@needs_gpu
def test_a_gpu_that_can_be_used_is(gpu, start_tree):
    gpu(gpus=1)
    tree = start_tree("--tuning-dir", "none", *SMALL)
    (worker,) = workers_of(tree)
    assert worker["device_uuid"].startswith("GPU-") and not worker["device"].startswith("cpu"), worker
    assert why(worker) == "GPU 0 can be used"
    assert len(tree.door().generate("Once upon a time", max_new_tokens=2, **GREEDY).tokens) == 2


@needs_gpu
@pytest.mark.parametrize(
    "settings, flags, reason",
    [
        ({"gpus": 0}, (), "the driver shows no GPU"),
        ({"gpus": 1}, ("--tp", 2), "too few GPUs: the driver shows 1, the ranks need 2"),
        ({"gpus": 1}, ("--dp", 2), "too few GPUs: the driver shows 1, the ranks need 2"),
        ({"gpus": 1, "faults": "cudaGetDeviceCount:1=cudaErrorInsufficientDriver"}, (), "no CUDA device"),
        ({"gpus": 1, "faults": "cudaGetDeviceCount:1=cudaErrorInitializationError"}, (), "no CUDA device"),
        ({"gpus": 1, "faults": "cudaGetDeviceProperties:1=cudaErrorUnknown"}, (), "GPU 0"),
    ],
)
def test_where_there_are_not_enough_gpus_all_ranks_go_to_the_cpu(gpu, start_tree, settings, flags, reason):
    gpu(**settings)
    assert serves_on_the_cpu(start_tree(*SMALL, *flags)).startswith(reason)


@needs_gpu
@pytest.mark.parametrize("error", ["cudaErrorMemoryAllocation", "cudaErrorDevicesUnavailable"])
def test_beside_a_gpu_that_others_have_the_start_ends(gpu, place, error):
    """Another program has all of the GPU's memory, or uses the GPU exclusively. A CPU would serve too slowly, and
    without a warning."""
    gpu(gpus=1, faults=f"cudaSetDevice:1={error}")
    done = run("serve", "--no-http", "--run-dir", place / "tree", "--tuning-dir", "none", *SMALL)
    assert done.returncode == 3, done
    assert "GPU 0 is in use by other processes" in done.stderr and error in done.stderr, done.stderr
