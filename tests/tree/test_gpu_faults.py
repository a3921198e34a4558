"""Faults in updates of a tree on the GPU in software: the matrix of test_faults.py over sender,
worker, phase and mode, and a CUDA call that fails in each. Afterwards the old version serves, bit
for bit; or the tree is torn and a complete update mends it; or the tree has ended with an answer.
The answer names the rank and the phase.

A part of it runs always, all of it with launch/test --emulated-gpu-all."""

import itertools
import os
import signal

import pytest

from cuda_sender import Sender
from gpu_tree import BUILD, CUDA, gpu, needs_gpu  # noqa: F401
from process_tree import ProcessTree, wait_until
from test_deaths import reasons
from test_gpu_updates import greedy, start_held  # noqa: F401
from test_updates import BARD, DIGESTS, start, update
from wire import Door

pytestmark = needs_gpu
ALL = "PITSTOP_EMULATED_GPU_ALL" in os.environ
WORKER = "tp_worker[0.0]"
MODES = ("staged", "direct", "host", "lend")
PHASES = ("stage_begin", "stage_half", "commit_begin", "commit_done")
SOURCES = ("disk", "ipc")


def some(product, always):
    """All cases at night, otherwise those in `always`."""
    return [case for case in product if ALL or case in always]


def flags(mode):
    return ("--update-mode", mode) if mode in ("host", "lend") else ()


def begin(admin, source, mode, sender=None, timeout_ms=60_000):
    """Orders an update, and does not wait for the answer."""
    spec = {"kind": "disk", "path": BARD}
    if source == "ipc":
        endpoint = f"ipc://@pitstop-test-{os.getpid()}-{next(Door.numbers)}.sock"
        sender.tell("serve", endpoint=endpoint)
        assert sender.answer()["bound"]
        uuid = admin.call("status")["replicas"][0]["workers"][0]["device_uuid"]
        spec = {"kind": "ipc", "handles": {uuid: endpoint}, "stall_ms": 3000}
    asked = "direct" if mode == "direct" else "staged"
    admin.send("update_weights", call=1, timeout_ms=timeout_ms, update={"source": spec, "mode": asked})


def check_afterwards(tree, admin, mode, reference):
    """An update that failed before its commit leaves nothing, and the next one works."""
    door = tree.door()
    if mode == "direct":
        wait_until(lambda: admin.call("status")["replicas"][0]["state"] == "torn", "the tree to be torn")
        refused = door.generate("Once", max_new_tokens=1).finish
        assert refused["code"] == "failed_precondition" and "torn" in refused["message"], refused
    else:
        wait_until(lambda: admin.call("status")["replicas"][0]["state"] == "running", "the stage to be dropped")
        assert admin.call("weight_digests")["digest"] == DIGESTS["stories"]["digest"]
        assert greedy(door, reference, "stories")

    def is_mended():
        """Whether an update works again. A failure is answered before its drop has ended; until then the next update is
        refused."""
        reply = update(admin, BARD)
        assert reply["ok"] or reply["state"] == "drop", reply
        return reply["ok"]

    wait_until(is_mended, "an update to be taken")
    assert admin.call("weight_digests")["digest"] == DIGESTS["bard"]["digest"]
    assert greedy(door, reference, "bard")


@pytest.mark.parametrize(
    "mode, phase, source",
    some(
        itertools.product(MODES, PHASES, SOURCES),
        [
            ("direct", "stage_half", "disk"),
            ("host", "commit_begin", "ipc"),
            ("host", "commit_done", "disk"),
            ("lend", "stage_half", "ipc"),
        ],
    ),
)
def test_P2_a_worker_killed_in_an_update_is_named(start_held, mode, phase, source):
    tree = start_held(phase, *flags(mode))
    admin = tree.door("admin")
    with Sender(BUILD, BARD) as sender:
        begin(admin, source, mode, sender)
        tree.wait_stopped(WORKER)
        tree.kill(WORKER)
        kind, reply = admin.receive(60)
        assert kind == "update_reply" and reply["code"] == "unavailable", reply
        assert reply["message"].startswith(f"phase {phase.partition('_')[0]}: {WORKER} died (signal 9"), reply
        assert tree.wait_exit(60) != 0
        assert WORKER in tree.log()


@pytest.mark.parametrize(
    "mode, source, how",
    some(
        itertools.product(MODES, ("ipc",), ("SIGKILL", "SIGSTOP")),
        [
            ("staged", "ipc", "SIGKILL"),
            ("direct", "ipc", "SIGSTOP"),
            ("host", "ipc", "SIGKILL"),
            ("lend", "ipc", "SIGKILL"),
        ],
    ),
)
def test_P2_a_sender_that_dies_or_stands_still_costs_the_stage_alone(start_held, reference, mode, source, how):
    tree = start_held("stage_half", *flags(mode))
    admin = tree.door("admin")
    with Sender(BUILD, BARD) as sender:
        begin(admin, source, mode, sender)
        tree.wait_stopped(WORKER)
        sender.process.send_signal(getattr(signal, how))
        tree.kill(WORKER, signal.SIGCONT)
        kind, reply = admin.receive(60)
    assert kind == "update_reply" and not reply["ok"], reply
    assert reply["code"] in ("unavailable", "aborted", "deadline_exceeded"), reply
    assert "rank 0 in phase stage" in reply["message"], reply
    assert reply["state"] == ("torn" if mode == "direct" else "serving"), reply
    check_afterwards(tree, admin, mode, reference)


@pytest.mark.parametrize(
    "mode, phase",
    some(
        itertools.product(MODES, ("stage_begin", "stage_half")),
        [("direct", "stage_half"), ("host", "stage_half"), ("lend", "stage_half")],
    ),
)
def test_P5_a_worker_that_stands_still_in_a_stage_is_named(start_held, reference, mode, phase):
    tree = start_held(phase, *flags(mode))
    admin = tree.door("admin")
    begin(admin, "disk", mode, timeout_ms=6000)
    tree.wait_stopped(WORKER)
    kind, reply = admin.receive(60)
    assert kind == "update_reply" and reply["code"] == "deadline_exceeded", reply
    assert "rank 0" in reply["message"] and "stage" in reply["message"], reply
    tree.kill(WORKER, signal.SIGCONT)
    check_afterwards(tree, admin, mode, reference)


@pytest.mark.parametrize("mode", [mode for mode in MODES if ALL or mode == "host"])
def test_P5_a_worker_that_stands_still_in_a_commit_is_named(start_held, reference, mode):
    tree = start_held("commit_begin", *flags(mode))
    admin = tree.door("admin")
    begin(admin, "disk", mode, timeout_ms=10_000)
    tree.wait_stopped(WORKER)
    kind, reply = admin.receive(60)
    assert kind == "update_reply" and reply["code"] == "deadline_exceeded", reply
    assert reply["message"] == "phase commit: no answer from replica 0 (rank 0)"
    tree.kill(WORKER, signal.SIGCONT)  # the order remains in force
    wait_until(lambda: admin.call("status")["replicas"][0]["state"] == "running", "the commit to be done")
    assert admin.call("weight_digests")["digest"] == DIGESTS["bard"]["digest"]
    assert greedy(tree.door(), reference, "bard")


# A stage makes one stream wait for another once, at its start. An upload does so twice at its start, then twice per
# chunk.
@pytest.mark.parametrize(
    "mode, fault",
    some(
        [
            ("direct", "cudaStreamWaitEvent:1=cudaErrorUnknown"),
            ("direct", "cudaMemcpyAsync:102=cudaErrorLaunchFailure"),
            ("host", "cudaStreamWaitEvent:2=cudaErrorUnknown"),
            ("host", "cudaStreamWaitEvent:9=cudaErrorLaunchFailure"),
            ("lend", "cudaStreamWaitEvent:1=cudaErrorUnknown"),
            ("lend", "cudaMemcpyAsync:102=cudaErrorLaunchFailure"),
        ],
        [
            ("direct", "cudaStreamWaitEvent:1=cudaErrorUnknown"),
            ("host", "cudaStreamWaitEvent:9=cudaErrorLaunchFailure"),
            ("lend", "cudaMemcpyAsync:102=cudaErrorLaunchFailure"),
        ],
    ),
)
def test_P5_a_cuda_error_ends_the_tree_and_the_answer_says_rank_phase_and_error(gpu, place, mode, fault):
    gpu(faults=fault, policy="early")
    tree = ProcessTree(place / "tree", *CUDA, *flags(mode))
    try:
        admin, door = tree.door("admin"), tree.door()
        # Steps copy, too: a request runs only if none of its steps makes the failing call.
        rids = [start(door, tokens=2, max_new_tokens=900)] if "WaitEvent" in fault else []
        begin(admin, "disk", mode)
        kind, reply = admin.receive(60)
        assert kind == "update_reply" and reply["code"] == "unavailable", reply
        phase = "commit" if "host" in mode else "stage"
        assert reply["message"].startswith(f"phase {phase}: {WORKER} died (exit 1: "), reply
        assert fault.partition("=")[2] in reply["message"], reply
        for reason in reasons(door, rids).values():
            assert reason.startswith(f"unavailable: {WORKER} died"), reason
        assert tree.wait_exit() != 0
        assert fault.partition("=")[2] in tree.log() and WORKER in tree.log()
        tree.check_gone()
    finally:
        tree.abandon()
