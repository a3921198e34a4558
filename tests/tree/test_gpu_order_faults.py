"""Faults of a rollback, a release and a resume of a tree on the GPU in software, like those of updates in
test_gpu_faults.py. The worker is killed or stopped before or after it executes the order; or a trainer that has the
memory is stopped, or dies. Afterwards the order is executed and the output is right bit for bit, or the tree has ended
and every call was answered."""

import os
import signal

import pytest

from cuda_sender import Sender
from gpu_tree import BUILD, CUDA, gpu, needs_gpu  # noqa: F401
from process_tree import wait_until
from test_deaths import reasons
from test_gpu_updates import greedy
from test_updates import BARD, DIGESTS, GREEDY, update
from wire import Refused

pytestmark = needs_gpu
ALL = "PITSTOP_EMULATED_GPU_ALL" in os.environ
WORKER = "tp_worker[0.0]"
DONE = {
    "rollback_weights": "worker_committed",
    "release_memory": "worker_memory_done",
    "resume_memory": "worker_memory_done",
}
PHASES = [
    ("rollback_weights", "commit_begin"),
    ("rollback_weights", "commit_done"),
    ("rollback_weights", "send worker_committed"),
    ("release_memory", "memory_begin"),
    ("release_memory", "send worker_memory_done"),
    ("resume_memory", "memory_begin"),
    ("resume_memory", "send worker_memory_done"),
]
SOME = [phase for phase in PHASES if ALL or not phase[1].endswith(("_done",))]
MODES = ("staged", "host") if ALL else ("staged",)


@pytest.fixture
def order(gpu, start_tree, place, monkeypatch, reference):
    """order(what, phase, how, mode): a tree that has served stories, then bard, and gets the order
    while a request waits; its worker does `how` at the phase. Returns tree, door and admin door;
    the answer is still to come.
    """
    faults = place / "faults"
    faults.mkdir()
    monkeypatch.setenv("PITSTOP_FAULT_DIR", str(faults))

    def give(what, phase, how, mode="staged"):
        tree = start_tree(*CUDA, "--update-mode", mode)
        door, admin = tree.door(), tree.door("admin")
        assert update(admin, BARD)["ok"]
        assert admin.call("pause_generation", mode="retract")["ok"]
        if what == "resume_memory":
            assert admin.call("release_memory", keep_weights=True)["ok"]
        rid = door.start("Once upon a time", max_new_tokens=4, **GREEDY)
        wait_until(lambda: admin.call("status")["replicas"][0]["num_waiting"] > 0, "the request to wait")
        (faults / f"{WORKER}@{phase}").write_text(how)
        fields = {"keep_weights": True} if what == "release_memory" else {}
        admin.send(what, call=1, timeout_ms=4000 if how == "stop" else 60_000, **fields)
        return tree, door, admin, rid

    return give


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("what, phase", SOME)
def test_P5_a_worker_killed_in_an_order_ends_the_tree_with_every_answer(order, what, phase, mode):
    tree, door, admin, rid = order(what, phase, "kill", mode)
    kind, reply = admin.receive(60)
    assert kind in ("update_reply", "memory_reply", "error") and reply["code"] == "unavailable", reply
    assert WORKER in reply["message"], reply
    assert reasons(door, [rid])[rid].startswith("unavailable: ")
    assert tree.wait_exit(60) != 0
    assert WORKER in tree.log()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("what, phase", SOME)
def test_P5_a_worker_that_stands_still_in_an_order_is_named_and_carries_it_out(order, reference, what, phase, mode):
    tree, door, admin, rid = order(what, phase, "stop", mode)
    tree.wait_stopped(WORKER)
    kind, reply = admin.receive(60)
    assert kind in ("update_reply", "memory_reply") and reply["code"] == "deadline_exceeded", reply
    assert "rank 0" in reply["message"], reply
    tree.kill(WORKER, signal.SIGCONT)

    def memory():
        return {tag["state"] for tag in admin.call("status")["replicas"][0]["memory"]}

    if what == "release_memory":
        wait_until(lambda: memory() == {"released"}, "the release to be carried out")
        assert admin.call("resume_memory")["ok"]
    else:
        wait_until(lambda: memory() == {"resident"}, "the memory to be there")
    model = "stories" if what == "rollback_weights" else "bard"

    def serves():
        try:
            return admin.call("weight_digests")["digest"] == DIGESTS[model]["digest"]
        except Refused as refused:  # the order is in progress
            assert refused.code == "failed_precondition", refused
            return False

    wait_until(serves, "the order to be carried out")
    assert admin.call("continue_generation")["ok"]
    assert len(door.finish([rid])[0].tokens) == 4
    assert greedy(door, reference, model)


def test_P8_a_trainer_that_has_the_memory_and_stands_still_is_named_and_its_death_gives_it_back(
    gpu, start_tree, reference
):
    gpu(memory=160 << 20)
    tree = start_tree(*CUDA)
    door, admin = tree.door(), tree.door("admin")
    assert admin.call("release_memory", keep_weights=True)["ok"]
    with Sender(BUILD, BARD) as trainer:
        assert trainer.ask("take")["bytes"] > 0
        trainer.process.send_signal(signal.SIGSTOP)
        for _ in range(2):
            refused = admin.call("resume_memory")
            assert refused["code"] == "resource_exhausted", refused
            assert f"process {trainer.process.pid} " in refused["message"], refused
        trainer.kill()
        assert admin.call("resume_memory")["ok"]
    assert admin.call("weight_digests")["digest"] == DIGESTS["stories"]["digest"]
    assert greedy(door, reference, "stories")
