"""Trees with --device cuda on the GPU in software (tests/emulated_gpu): the product's CUDA sources,
streams that run late or early, and device memory that the host cannot touch. Skips if the emulated
preset is not built.
"""

import os
import re
import subprocess

import pytest

from gpu_tree import CUDA, gpu, needs_gpu  # noqa: F401
from process_tree import ROOT, ProcessTree, run, wait_until
from wire import Refused

pytestmark = needs_gpu
MUTATIONS = ROOT / "tests" / "emulated_gpu" / "mutations.py"
GREEDY = {"temperature": 0.0, "ignore_eos": True}
SEEDED = {"temperature": 1.0, "seed": 5, "ignore_eos": True, "logprobs": {"enabled": True}}
ALL = "PITSTOP_EMULATED_GPU_ALL" in os.environ  # launch/test --emulated-gpu-all
SCHEDULES = 20 if ALL else 4
NUM = 12  # tokens: one takes some tenths of a second


def start_long(door, rid, **fields):
    door.start("Once upon a time", rid=rid, max_new_tokens=400, **{**GREEDY, **fields})
    while len(door.outputs[rid].tokens) < 3:
        door.step()


@pytest.mark.parametrize("policy", ["late", "early", "random"])
@pytest.mark.parametrize("model", ["stories", "bard"])
def test_greedy_output_is_the_references(gpu, start_tree, reference, model, policy):
    gpu(policy=policy)
    tree = start_tree(*CUDA, "--model", model)
    door = tree.door()
    case = reference[model]["greedy"][0]
    output = door.generate(case["prompt"], max_new_tokens=NUM, skip_special_tokens=False, **GREEDY)
    assert output.tokens == case["continuation"][:NUM]


def test_P6_the_order_of_work_changes_no_bit(gpu, start_tree):
    """In --deterministic mode, over several schedules, next to another request and alone."""
    outputs = []
    for seed in range(SCHEDULES):
        gpu(seed=seed, policy="late" if seed % 2 else "random")
        tree = start_tree(*CUDA, "--deterministic")
        door = tree.door()
        rids = [door.start("Once upon a time", max_new_tokens=NUM, **SEEDED)]
        if seed % 2:
            rids.append(door.start("The king", max_new_tokens=NUM, **SEEDED))
        output = door.finish(rids)[0]
        outputs.append((output.tokens, output.logprobs))
        tree.stop()
    assert outputs == outputs[:1] * SCHEDULES


def test_P4_pauses_of_all_modes(gpu, start_tree):
    tree = start_tree(*CUDA, "--deterministic")
    door, admin = tree.door(), tree.door("admin")
    undisturbed = door.generate("Once upon a time", max_new_tokens=NUM, **SEEDED)
    for mode in ("in_place", "retract"):
        rid = door.start("Once upon a time", max_new_tokens=NUM, **SEEDED)
        while len(door.outputs[rid].tokens) < 3:
            door.step()
        assert admin.call("pause_generation", mode=mode)["ok"]
        assert admin.call("status")["replicas"][0]["state"] == "paused"
        assert admin.call("continue_generation")["ok"]
        (output,) = door.finish([rid])
        assert (output.tokens, output.logprobs) == (undisturbed.tokens, undisturbed.logprobs), mode
    start_long(door, "aborted")
    assert admin.call("pause_generation", mode="abort")["ok"]
    (output,) = door.finish(["aborted"])
    assert output.finish["reason"] == "abort" and len(output.tokens) >= 3
    assert admin.call("continue_generation")["ok"]
    rid = door.start("Once upon a time", max_new_tokens=NUM, **SEEDED)
    while not door.outputs[rid].tokens:
        door.step()
    assert admin.call("pause_generation", mode="wait")["ok"]
    assert door.finish([rid])[0].tokens == undisturbed.tokens
    assert admin.call("continue_generation")["ok"]


@pytest.mark.parametrize("policy", ["late", "random"])
def test_P8_memory_goes_back_to_the_driver_and_comes_again(gpu, start_tree, policy):
    gpu(policy=policy)
    tree = start_tree(*CUDA)
    door, admin = tree.door(), tree.door("admin")
    before = door.generate("Once upon a time", max_new_tokens=NUM, **GREEDY)
    for _ in range(2):
        released = admin.call("release_memory", keep_weights=True)
        assert released["ok"], released
        freed = {tag["tag"]: tag["freed_bytes"] for tag in released["parts"][0]["tags"]}
        assert freed["weights"] > 0 and freed["kv_cache"] > 0
        assert admin.call("resume_memory", tags=["weights"])["ok"]
        assert admin.call("resume_memory", tags=["kv_cache"])["ok"]
        after = door.generate("Once upon a time", max_new_tokens=NUM, **GREEDY)
        assert after.tokens == before.tokens
    discarded = admin.call("release_memory", keep_weights=False)
    assert discarded["ok"] and admin.call("resume_memory")["ok"]
    with pytest.raises(Refused, match="no weights"):
        finish = door.generate("Once", max_new_tokens=1).finish
        raise Refused({"code": finish["code"], "message": finish["message"]})


def test_every_planted_bug_still_fits_the_sources():
    done = subprocess.run([MUTATIONS, "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.skipif(not ALL, reason="takes a quarter of an hour: launch/test --emulated-gpu-all")
def test_every_planted_bug_is_found():
    done = subprocess.run([MUTATIONS], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout


def test_replicas_have_a_gpu_each(gpu, start_tree):
    tree = start_tree(*CUDA, "--dp", 2)
    door = tree.door()
    outputs = door.finish([door.start("Once upon a time", max_new_tokens=4, replica=i, **GREEDY) for i in range(2)])
    assert outputs[0].tokens == outputs[1].tokens
    workers = [worker for replica in tree.door("admin").call("status")["replicas"] for worker in replica["workers"]]
    uuids = {worker["device_uuid"] for worker in workers}
    assert len(uuids) == 2 and all(re.fullmatch("GPU(-[0-9a-f]+){5}", uuid) for uuid in uuids), uuids
    for worker in workers:  # versions and paths of the libraries
        cublas, nccl = worker["libraries"]
        assert cublas.startswith("cuBLASLt 1") and cublas.endswith("libcublasLt.so.13"), cublas
        assert nccl.startswith("NCCL 2.28.9: /") and nccl.endswith("libnccl.so.2"), nccl
    tree.stop()
    missing = run("serve", "--no-http", "--run-dir", tree.run_dir, *CUDA, "--dp", 3)
    assert missing.returncode != 0 and "there is no GPU 2" in missing.stderr, missing.stderr


def test_a_model_that_does_not_fit_is_refused_with_the_numbers(gpu, place):
    gpu(memory=4 << 20)
    done = run("serve", "--no-http", "--run-dir", place / "small", *CUDA)
    assert done.returncode != 0 and "are free" in done.stderr, done.stderr


def test_a_killed_worker_ends_the_tree_and_gives_its_gpu_back(gpu, start_tree):
    tree = start_tree(*CUDA)
    door = tree.door()
    start_long(door, "open")
    tree.kill("tp_worker[0.0]")
    (output,) = door.finish(["open"])
    assert output.finish["reason"] == "error"
    assert tree.wait_exit() != 0
    tree.check_gone()
    start_tree(*CUDA, "--mem-fraction", 0.95).stop()


@pytest.mark.parametrize(
    "fault, line",
    [
        ("kernel:400=cudaErrorECCUncorrectable", "cudaErrorECCUncorrectable"),
        ("cudaMemcpyAsync:200=cudaErrorIllegalAddress", "cudaMemcpyAsync"),
        ("cudaLaunchKernelEx:300=cudaErrorLaunchFailure", "cudaErrorLaunchFailure"),
    ],
)
def test_P5_a_cuda_error_ends_the_tree_and_is_named(gpu, place, fault, line):
    gpu(faults=fault)
    tree = ProcessTree(place / "tree", *CUDA)
    try:
        door = tree.door()
        rid = door.start("Once upon a time", max_new_tokens=400, **GREEDY)
        (output,) = door.finish([rid])
        assert output.finish["reason"] == "error"
        assert tree.wait_exit() != 0
        assert line in tree.log()
        tree.check_gone()
    finally:
        tree.abandon()


def test_P5_a_kernel_without_end_is_over_at_the_step_timeout(gpu, place):
    gpu(faults="kernel:400=hang")
    tree = ProcessTree(place / "tree", *CUDA, "--step-timeout", 15)
    try:
        door, admin = tree.door(), tree.door("admin")
        rid = door.start("Once upon a time", max_new_tokens=400, **GREEDY)
        wait_until(lambda: door.is_quiet(1.0) or door.step() is None and False, "the GPU to stand still")
        assert admin.call("status")["replicas"][0]["num_running"] == 1
        (output,) = door.finish([rid])
        assert output.finish["reason"] == "error"
        assert tree.wait_exit() != 0
        assert "tp_worker[0.0]" in tree.log() and "a step did not end on the GPU within 12.0 s" in tree.log()
        tree.check_gone()
    finally:
        tree.abandon()
