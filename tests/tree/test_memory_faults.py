"""A worker dies or stops while memory is released or resumed. A stopped worker is named when the time limit is over,
and executes the order when it continues. After a death the tree ends, and every request is answered."""

import signal

import pytest

from amid import paused_amid
from process_tree import wait_until
from test_deaths import EXIT_CODES, reasons
from test_faults import start_held  # noqa: F401
from test_updates import GREEDY

LONG = 600


def begin_release(tree):
    """Releases memory while a request waits under a pause. Returns once worker [0.1] has stopped during the release."""
    door, admin = tree.door(), tree.door("admin")
    pause = lambda: admin.call("pause_generation", mode="retract")
    begin = lambda: [door.start("Once upon a time", max_new_tokens=LONG, **GREEDY)]
    (rid,) = paused_amid(admin, begin, door.finish, pause=pause)
    admin.send("release_memory", call=1, timeout_ms=1500, keep_weights=True)
    tree.wait_stopped("tp_worker[0.1]")
    return door, admin, rid


def states(admin):
    return {tag["tag"]: tag["state"] for tag in admin.call("status")["replicas"][0]["memory"]}


def test_P5_a_rank_that_stands_still_is_named_and_the_release_is_carried_out_later(start_held):  # noqa: F811
    tree = start_held("memory_begin")
    door, admin, rid = begin_release(tree)
    assert set(states(admin).values()) == {"releasing"}, "status is answered meanwhile"
    kind, reply = admin.receive()
    assert kind == "memory_reply" and reply["code"] == "deadline_exceeded", reply
    assert "rank 1" in reply["message"] and "rank 0" not in reply["message"]
    refused = admin.call("resume_memory")
    assert not refused["ok"] and "under way" in refused["message"]
    tree.kill("tp_worker[0.1]", signal.SIGCONT)
    wait_until(lambda: set(states(admin).values()) == {"released"}, "the release to be carried out")
    assert admin.call("resume_memory")["ok"]
    assert admin.call("continue_generation")["ok"]
    assert len(door.finish([rid])[0].tokens) == LONG


@pytest.mark.parametrize("name", ("tp_worker[0.1]", "tp_worker[0.0]", "scheduler_proc[0]"))
def test_P5_a_process_killed_in_a_release_ends_the_tree_with_every_answer(start_held, name):  # noqa: F811
    tree = start_held("memory_begin")
    door, admin, rid = begin_release(tree)
    tree.kill(name)
    assert reasons(door, [rid])[rid].startswith("unavailable: ")
    kind, reply = admin.receive()
    assert kind in ("memory_reply", "error") and reply["code"] in ("unavailable", "deadline_exceeded"), reply
    assert tree.wait_exit() == EXIT_CODES.get(name, 13)
