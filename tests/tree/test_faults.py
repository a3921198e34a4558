"""A process is killed, or stopped for good, at each phase of an update.

A worker is stopped at a named place of the update (base/fault_point.h); then a process is killed,
or stopped, or the worker goes on. Afterwards either the old version serves on, bit-exact, or the
tree is down and every open request has been answered. There are never two versions in one pass, and
never a hang.
"""

import signal

import pytest

from process_tree import ProcessTree, wait_until
from test_deaths import EXIT_CODES, reasons, start_long
from test_updates import BARD, DIGESTS, GREEDY, joined, start
from wire import Refused

PHASES = ("stage_begin", "stage_half", "commit_begin", "commit_done")
PROCESSES = ("tokenizer_proc", "scheduler_proc[0]", "detokenizer_proc", "tp_worker[0.0]", "tp_worker[0.1]")


@pytest.fixture
def start_held(place, monkeypatch):
    """start_held(phase, *flags): a tree whose worker [0.1] stops at that phase of an update."""
    trees = []

    def start_tree(phase, *flags):
        monkeypatch.setenv("PITSTOP_FAULT_POINT", f"tp_worker[0.1]/{phase}")
        trees.append(ProcessTree(place / "tree", "--tp", 2, *flags))
        return trees[-1]

    yield start_tree
    try:
        for tree in trees:
            tree.stop() if tree.launcher.poll() is None else tree.check_gone()
    finally:
        for tree in trees:
            tree.abandon()


def begin_update(tree, timeout_ms=60_000):
    """Sends an update and waits until the worker has stopped at the phase."""
    admin = tree.door("admin")
    spec = {"source": {"kind": "disk", "path": BARD}, "label": "bard"}
    admin.send("update_weights", call=1, timeout_ms=timeout_ms, update=spec)
    tree.wait_stopped("tp_worker[0.1]")
    return admin


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("name", PROCESSES)
def test_P2_a_process_killed_in_an_update_ends_the_tree_with_every_answer(start_held, phase, name):
    tree = start_held(phase)
    door = tree.door()
    rids = start_long(door)
    admin = begin_update(tree)
    tree.kill(name)
    if name != "tokenizer_proc":  # otherwise no process is left to answer: the client's library reports it
        for rid, reason in reasons(door, rids).items():
            assert reason.startswith("unavailable: "), (rid, reason)
        kind, reply = admin.receive()
        assert kind in ("update_reply", "error") and reply["code"] == "unavailable", reply
    assert tree.wait_exit() == EXIT_CODES.get(name, 13)
    for rid in rids:  # one version per token, and never back to an older one
        epochs = [span["epoch"] for span in joined(door.outputs[rid].spans)]
        assert epochs in ([], [1], [1, 2], [2]), epochs


@pytest.mark.parametrize("phase", ("stage_begin", "stage_half"))
def test_P5_a_worker_that_stands_still_in_a_stage_is_named_by_the_deadline(start_held, phase):
    tree = start_held(phase)
    admin = begin_update(tree, timeout_ms=4000)
    kind, reply = admin.receive()
    assert kind == "update_reply" and not reply["ok"], reply
    assert reply["code"] == "deadline_exceeded", reply
    assert "rank 1" in reply["message"] and "stage" in reply["message"], reply["message"]
    # The worker goes on: the stage is dropped, and the old version serves on.
    tree.kill("tp_worker[0.1]", signal.SIGCONT)
    wait_until(lambda: admin.call("status")["replicas"][0]["state"] == "running", "the stage to be dropped")
    assert admin.call("weight_digests")["digest"] == DIGESTS["stories"]["digest"]
    assert len(tree.door().generate("Once", max_new_tokens=5, **GREEDY).tokens) == 5


def test_P5_a_worker_that_stands_still_in_a_commit_is_named_by_the_deadline(start_held):
    tree = start_held("commit_begin")
    admin = begin_update(tree, timeout_ms=6000)
    kind, reply = admin.receive()
    assert kind == "update_reply" and reply["code"] == "deadline_exceeded", reply
    assert reply["message"] == "phase commit: no answer from replica 0 (rank 1)"
    with pytest.raises(Refused) as late:
        admin.call("get_weights", name="model.layers.0.mlp.down_proj.weight", timeout_ms=500)
    assert late.value.code == "deadline_exceeded"
    assert late.value.message.endswith("no answer in time from replica 0 (rank 1)")
    # The order remains in force: the worker executes it when it continues.
    tree.kill("tp_worker[0.1]", signal.SIGCONT)
    wait_until(lambda: admin.call("status")["replicas"][0]["state"] == "running", "the commit to be done")
    assert admin.call("weight_digests")["digest"] == DIGESTS["bard"]["digest"]


@pytest.mark.parametrize("phase", PHASES)
def test_P4_a_worker_that_goes_on_completes_the_update(start_held, phase):
    tree = start_held(phase)
    door = tree.door()
    rid = start(door)
    admin = begin_update(tree)
    tree.kill("tp_worker[0.1]", signal.SIGCONT)
    kind, reply = admin.receive()
    assert kind == "update_reply" and reply["ok"], reply
    (output,) = door.finish([rid])
    epochs = [span["epoch"] for span in joined(output.spans)]
    assert epochs in ([1, 2], [1]), epochs
    assert admin.call("weight_digests")["digest"] == DIGESTS["bard"]["digest"]


@pytest.mark.parametrize("name", PROCESSES)
def test_P5_a_process_that_is_stopped_for_good_ends_the_tree(start_held, name):
    tree = start_held("stage_half", "--stall-timeout", 4)
    door = tree.door()
    rids = start_long(door)
    begin_update(tree)
    if name != "tp_worker[0.1]":
        tree.kill("tp_worker[0.1]", signal.SIGCONT)
        tree.kill(name, signal.SIGSTOP)
    if name != "tokenizer_proc":
        ended = reasons_or_outputs(door, rids)
        assert set(ended) == set(rids)
    assert tree.wait_exit() == EXIT_CODES.get(name, 13)


def reasons_or_outputs(door, rids):
    """Checks that every request ends: with its whole output if it was done before, otherwise with an error."""
    ended = set()
    while len(ended) < len(rids):
        try:
            door.step()
        except Refused as refused:
            ended.add(refused.rid)
        ended |= {rid for rid in rids if door.outputs[rid].finish is not None}
    return ended


def test_the_step_timeout_ends_a_tree_whose_worker_never_answers(place):
    tree = ProcessTree(place / "tree", "--step-timeout", 4, "--stall-timeout", 600)
    try:
        door = tree.door()
        rids = start_long(door)
        tree.kill("tp_worker[0.0]", signal.SIGSTOP)
        for rid, reason in reasons(door, rids).items():
            assert reason.startswith("unavailable: "), (rid, reason)
            assert "rank 0" in reason
        assert tree.wait_exit() == EXIT_CODES["scheduler_proc[0]"]
        tree.check_gone()
    finally:
        tree.abandon()
