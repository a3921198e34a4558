"""Weight updates of trees on the GPU in software: the promises of test_updates.py, during generation, and properties
that only a GPU has: full memory, failing calls, late work."""

import json
import re
import signal
import subprocess
import sys

import pytest

from cuda_sender import Sender
from gpu_tree import BUILD, CUDA, gpu, needs_gpu  # noqa: F401
from process_tree import ROOT, ProcessTree, run, wait_until
from test_updates import BARD, DIGESTS, GREEDY, ended_after, joined, start, update

sys.path.insert(0, str(ROOT / "client" / "python"))
import pitstop  # noqa: E402  (after the path)

pytestmark = needs_gpu
NUM = 8  # tokens: one takes some tenths of a second


def greedy(door, reference, model):
    """Whether the output is now that of a fresh start on `model`."""
    case = reference[model]["greedy"][0]
    output = door.generate(case["prompt"], max_new_tokens=NUM, skip_special_tokens=False, **GREEDY)
    return output.tokens == case["continuation"][:NUM]


def push(tree, model, *flags):
    return run("push", model, "--run-dir", tree.run_dir, "--json", *flags)


@pytest.mark.parametrize("policy", ["late", "random"])
def test_P1_P2_P3_P10_versions_change_between_two_passes_and_back(gpu, start_tree, reference, policy):
    gpu(policy=policy)
    tree = start_tree(*CUDA)
    door, admin = tree.door(), tree.door("admin")
    assert greedy(door, reference, "stories")
    rid = start(door, tokens=3, max_new_tokens=300)
    reply = update(admin, BARD, kv_policy="keep", label="bard")
    assert reply["ok"] and reply["digest"] == DIGESTS["bard"]["digest"], reply
    assert [rank["phase"] for rank in reply["replicas"][0]["ranks"]] == ["committed"]
    assert reply["bytes"] > 2_800_000
    output = ended_after(door, rid, epoch=2)
    spans = joined(output.spans)
    assert [span["epoch"] for span in spans] == [1, 2] and spans[1]["label"] == "bard"
    assert (spans[1]["kv_min_epoch"], spans[1]["kv_max_epoch"]) == (1, 2)
    assert greedy(door, reference, "bard")
    assert admin.call("weight_digests")["digest"] == DIGESTS["bard"]["digest"]
    back = admin.call("rollback_weights")
    assert back["ok"] and back["digest"] == DIGESTS["stories"]["digest"]
    assert greedy(door, reference, "stories")
    direct = update(admin, BARD, mode="direct", kv_policy="recompute")
    assert direct["ok"] and direct["digest"] == DIGESTS["bard"]["digest"], direct
    assert greedy(door, reference, "bard")


def test_status_reports_the_update_mode_and_an_answer_its_cost(gpu, start_tree):
    gpu(memory=168 << 20)
    tree = start_tree("--device", "cuda", "--tuning-dir", "none")
    door, admin = tree.door(), tree.door("admin")
    worker = admin.call("status")["replicas"][0]["workers"][0]
    assert worker["update_mode"] == "staged", worker
    assert re.match(
        r"auto: a second copy of the weights fits beside KV; \d+ bytes were free", worker["update_mode_why"]
    )
    rid = start(door, tokens=3, max_new_tokens=300)
    (outcome,) = update(admin, BARD, kv_policy="keep")["replicas"]
    assert outcome["num_steps"] >= 1 and outcome["step_s_before"] > 0, outcome
    assert outcome["gap_s"] >= outcome["step_s"] > 0, outcome
    ended_after(door, rid, epoch=2)
    assert admin.call("flush_cache", wait_idle=True)["ok"]  # afterwards no step of the request is in flight
    (outcome,) = update(admin, BARD)["replicas"]
    assert outcome["num_steps"] == 0 and outcome["step_s"] == 0 and outcome["step_s_before"] > 0, outcome


def test_P1_P2_P3_P10_a_version_staged_in_host_memory_is_uploaded_by_its_commit(gpu, start_tree, reference):
    gpu(memory=148 << 20)
    tree = start_tree(*FULL, "host", "--mem-fraction", 0.97)  # no room for two copies: KV has the memory
    door, admin = tree.door(), tree.door("admin")
    worker = admin.call("status")["replicas"][0]["workers"][0]
    assert worker["update_mode"] == "host" and "in host memory" in worker["update_mode_why"], worker
    rid = start(door, tokens=3, max_new_tokens=300)
    reply = update(admin, BARD, kv_policy="keep", label="bard")
    assert reply["ok"] and reply["digest"] == DIGESTS["bard"]["digest"], reply
    assert reply["commit_s"] > 0 and reply["pause_s"] > 0, reply
    output = ended_after(door, rid, epoch=2)
    assert [span["epoch"] for span in joined(output.spans)] == [1, 2]
    assert admin.call("weight_digests")["digest"] == DIGESTS["bard"]["digest"]
    back = admin.call("rollback_weights")
    assert back["ok"] and back["digest"] == DIGESTS["stories"]["digest"]
    assert greedy(door, reference, "stories")
    done = push(tree, "bard", "--adopt")
    assert done.returncode == 0, done.stderr
    assert greedy(door, reference, "bard")


def test_P10_tensors_in_the_gpus_memory_come_to_host_memory_and_their_references_back(gpu, start_tree):
    tree = start_tree(*CUDA, "--update-mode", "host")
    admin = tree.door("admin")
    with Sender(BUILD, BARD) as sender:
        source = {"kind": "tensors", "format": "pickle", "payloads": [{"data": sender.payload()}]}
        with pitstop.Client(tree.run_dir) as client:
            assert client.update_weights(source=source)["digest"] == DIGESTS["bard"]["digest"]
        assert not any(sender.ask("references")["references"])
    assert admin.call("weight_digests")["digest"] == DIGESTS["bard"]["digest"]


def test_P10_push_and_adopt(gpu, start_tree, reference):
    tree = start_tree(*CUDA)
    door, admin = tree.door(), tree.door("admin")
    for model, flags in (("bard", ["--bucket-size", "1"]), ("stories", ["--adopt"]), ("bard", ["--adopt"])):
        done = push(tree, model, *flags)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["digest"] == DIGESTS[model]["digest"]
        assert admin.call("weight_digests")["digest"] == DIGESTS[model]["digest"]
    assert greedy(door, reference, "bard")


@pytest.mark.parametrize("dtype", ["bf16", "f32"])
def test_P10_threads_that_share_large_tensors_put_every_byte_in_its_place(gpu, start_tree, place, dtype):
    """Ranks cut the tensors by rows and by columns. The expected digest is that of a CPU tree started on the same files."""
    for seed in (1, 2):
        shape = (
            "--vocab",
            2048,
            "--hidden",
            1024,
            "--ffn",
            1536,
            "--layers",
            1,
            "--heads",
            4,
            "--kv-heads",
            2,
            "--head-dim",
            16,
        )
        command = [
            BUILD / "bin/pitstop_make_model",
            "tiny",
            place / f"model-{seed}",
            "--seed",
            seed,
            "--dtype",
            dtype,
            *shape,
        ]
        subprocess.run([str(word) for word in command], check=True, capture_output=True)
    cpu = start_tree("--model", place / "model-2", "--device", "cpu")
    expected = cpu.door("admin").call("weight_digests")["digest"]
    cpu.stop()
    tree = start_tree("--model", place / "model-1", *CUDA, "--tp", 2, "--threads", 3)
    admin = tree.door("admin")
    first = admin.call("weight_digests")["digest"]
    assert first != expected
    assert update(admin, str(place / "model-2"))["digest"] == expected
    assert admin.call("release_memory", keep_weights=True)["ok"]
    assert admin.call("resume_memory")["ok"]
    assert admin.call("weight_digests")["digest"] == expected
    # Most tensors are larger than a bucket: they are sent by their rows.
    done = push(tree, place / "model-1", "--bucket-size", 1, "--workers", 3)
    assert done.returncode == 0, done.stderr
    pushed = json.loads(done.stdout)
    assert pushed["bytes"] <= pushed["num_buckets"] << 20
    assert pushed["reply"]["digest"] == first
    assert admin.call("weight_digests")["digest"] == first


def test_P9_a_prefix_of_older_weights_is_computed_anew(gpu, start_tree):
    tree = start_tree(*CUDA)
    door, admin = tree.door(), tree.door("admin")
    prompt = "Once upon a time there was a little girl who liked to play in the park every day. " * 2
    door.generate(prompt, max_new_tokens=1, **GREEDY)
    assert door.generate(prompt, max_new_tokens=1, **GREEDY).counts["cached_tokens"] > 0
    assert update(admin, BARD)["ok"]
    fresh = door.generate(prompt, max_new_tokens=1, **GREEDY)
    assert fresh.counts["cached_tokens"] == 0 and fresh.spans[0]["kv_min_epoch"] == 2
    kept = door.generate(prompt, max_new_tokens=1, kv_tolerance="keep", **GREEDY)
    assert kept.counts["cached_tokens"] > 0


FULL = ("--device", "cuda", "--tuning-dir", "none", "--update-mode")


def test_P2_a_second_copy_that_does_not_fit_is_refused_with_the_numbers(gpu, start_tree, reference):
    gpu(memory=144 << 20)
    tree = start_tree(*FULL, "direct", "--mem-fraction", 1)  # KV has all remaining memory
    door, admin = tree.door(), tree.door("admin")
    assert admin.call("status")["replicas"][0]["workers"][0]["update_mode"] == "direct"
    with Sender(BUILD, BARD) as other:
        other.ask("take")  # also takes the memory that the worker reserves for adapters and does not use yet
        reply = update(admin, BARD)
    assert reply["code"] == "resource_exhausted" and "are free" in reply["message"], reply
    assert greedy(door, reference, "stories")
    assert update(admin, BARD, mode="direct")["ok"]
    assert greedy(door, reference, "bard")


def test_room_for_a_second_copy_is_left_or_the_start_refused(gpu, start_tree, place):
    gpu(memory=168 << 20)
    tree = start_tree(*FULL, "staged")
    admin = tree.door("admin")
    assert update(admin, BARD)["ok"]
    tree.stop()
    gpu(memory=144 << 20)
    done = run("serve", "--no-http", "--run-dir", place / "small", *FULL, "staged", "--mem-fraction", 0.93)
    assert done.returncode != 0 and "--update-mode staged" in done.stderr, done.stderr
    assert re.search(r"a second copy \d+, \d+ pages of KV \d+; in host memory \d+ are free", done.stderr), done.stderr


def test_a_tree_may_wait_for_its_first_weights(gpu, start_tree, reference):
    tree = start_tree(*CUDA, "--wait-for-initial-weights")
    door, admin = tree.door(), tree.door("admin")
    assert admin.call("status")["replicas"][0]["state"] == "awaiting_weights"
    assert door.generate("Once", max_new_tokens=1).finish["code"] == "failed_precondition"
    assert update(admin, BARD, label="first")["digest"] == DIGESTS["bard"]["digest"]
    assert admin.call("status")["is_ready"] is True
    assert greedy(door, reference, "bard")


def test_P8_released_weights_come_by_an_update(gpu, start_tree, reference):
    tree = start_tree(*CUDA)
    door, admin = tree.door(), tree.door("admin")
    assert admin.call("release_memory", keep_weights=False)["ok"]
    assert admin.call("resume_memory", tags=["weights"])["ok"]
    assert update(admin, BARD)["ok"]
    assert admin.call("resume_memory", tags=["kv_cache"])["ok"]
    assert greedy(door, reference, "bard")


def test_P8_a_resume_that_finds_the_memory_taken_says_so_and_may_be_tried_again(gpu, start_tree, reference):
    gpu(memory=168 << 20)
    tree = start_tree(*CUDA)
    door, admin = tree.door(), tree.door("admin")
    assert admin.call("release_memory", keep_weights=True)["ok"]
    with Sender(BUILD, BARD) as other:
        taken = other.ask("take")["bytes"]
        refused = admin.call("resume_memory")
        assert refused["code"] == "resource_exhausted" and "are free" in refused["message"], refused
        # The error names the processes on the GPU, as the driver's management library lists them.
        holder = re.search(rf"process {other.process.pid} \(python[^)]*\) uses (\d+) bytes", refused["message"])
        assert holder and int(holder.group(1)) >= taken > 0 and "are missing" in refused["message"], refused
    assert admin.call("resume_memory")["ok"]
    assert greedy(door, reference, "stories")
    assert admin.call("weight_digests")["digest"] == DIGESTS["stories"]["digest"]


def test_kept_versions_are_what_serves(gpu, start_tree, place):
    tree = start_tree(*CUDA, "--keep-committed", place / "kept")
    admin = tree.door("admin")
    assert update(admin, BARD)["ok"]

    def kept():
        return list((place / "kept").glob("**/model.safetensors"))

    wait_until(lambda: any("writing" not in str(path) for path in kept()), "the version to be on the disk")


PHASES = ("stage_begin", "stage_half", "commit_begin", "commit_done")


@pytest.fixture
def start_held(place, monkeypatch, gpu):
    """start_held(phase): a tree whose worker stops at that phase of an update."""
    trees = []

    def start_tree(phase, *flags):
        monkeypatch.setenv("PITSTOP_FAULT_POINT", f"tp_worker[0.0]/{phase}")
        trees.append(ProcessTree(place / "tree", *CUDA, *flags))
        return trees[-1]

    yield start_tree
    try:
        for tree in trees:
            tree.stop() if tree.launcher.poll() is None else tree.check_gone()
    finally:
        for tree in trees:
            tree.abandon()


@pytest.mark.parametrize("phase", PHASES)
def test_P5_a_worker_killed_in_an_update_is_named(start_held, phase):
    tree = start_held(phase)
    admin = tree.door("admin")
    admin.send("update_weights", call=1, timeout_ms=60_000, update={"source": {"kind": "disk", "path": BARD}})
    tree.wait_stopped("tp_worker[0.0]")
    tree.kill("tp_worker[0.0]")
    kind, reply = admin.receive()
    assert kind in ("update_reply", "error") and reply["code"] == "unavailable", reply
    assert tree.wait_exit() != 0
    assert "tp_worker[0.0]" in tree.log()


def test_P5_a_worker_that_stands_still_in_a_stage_is_named_by_the_deadline(start_held):
    tree = start_held("stage_half")
    admin = tree.door("admin")
    admin.send("update_weights", call=1, timeout_ms=6000, update={"source": {"kind": "disk", "path": BARD}})
    tree.wait_stopped("tp_worker[0.0]")
    kind, reply = admin.receive()
    assert kind == "update_reply" and reply["code"] == "deadline_exceeded", reply
    assert "rank 0" in reply["message"] and "stage" in reply["message"], reply
    tree.kill("tp_worker[0.0]", signal.SIGCONT)
    wait_until(lambda: admin.call("status")["replicas"][0]["state"] == "running", "the stage to be dropped")
    assert admin.call("weight_digests")["digest"] == DIGESTS["stories"]["digest"]


def num_tensors(model):
    data = (ROOT / "launch/models" / model / "model.safetensors").read_bytes()
    return len(set(json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])) - {"__metadata__"})


@pytest.mark.parametrize(
    "call, error",
    [
        ("cudaStreamWaitEvent", "cudaErrorUnknown"),  # called by stages only: the first call fails
        ("cudaMemcpyAsync", "cudaErrorUnknown"),  # one per tensor at the start, one per tensor of a stage
        ("cudaLaunchKernelEx", "cudaErrorLaunchFailure"),  # digests: one per tensor at the start and of a stage
        ("kernel", "cudaErrorIllegalAddress"),
    ],
)
def test_P5_a_cuda_error_in_a_stage_ends_the_tree_and_is_named(gpu, place, call, error):
    at = 1 if call == "cudaStreamWaitEvent" else 3 * num_tensors("stories") // 2
    gpu(faults=f"{call}:{at}={error}", policy="early")
    tree = ProcessTree(place / "tree", *CUDA)
    try:
        admin = tree.door("admin")
        admin.send("update_weights", call=1, timeout_ms=60_000, update={"source": {"kind": "disk", "path": BARD}})
        kind, reply = admin.receive()
        assert kind in ("update_reply", "error") and reply["code"] == "unavailable", reply
        assert tree.wait_exit() != 0
        assert error in tree.log() and "tp_worker[0.0]" in tree.log()
        tree.check_gone()
    finally:
        tree.abandon()
