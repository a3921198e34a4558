"""An update's times: the answer has a field for every part."""

import time

import pytest

import pitstop
from push_once import infos, load
from test_updates import BARD, STORIES, start

STAGE_PARTS = ("open_s", "wait_s", "receive_s", "verify_s", "rest_s")
NAMES = (*STAGE_PARTS, "stage_s", "vote_s", "commit_s", "total_s")
PAUSE_S = 0.3


def check_sums(reply):
    """Checks that the stage's parts take no longer than the stage, and are the slowest rank's."""
    parts = sum(reply[name] for name in STAGE_PARTS)
    assert 0 < parts <= reply["stage_s"], reply
    ranks = [rank for replica in reply["replicas"] for rank in replica["ranks"]]
    slowest = max(ranks, key=lambda rank: sum(rank[name] for name in STAGE_PARTS))
    assert [reply[name] for name in STAGE_PARTS] == [slowest[name] for name in STAGE_PARTS]


@pytest.mark.parametrize("tp", (1, 2))
def test_a_slow_sender_is_what_was_waited_for(start_tree, tp):
    tree = start_tree("--tp", tp)
    with pitstop.Client(tree.run_dir) as client:
        number = client.begin_update()["session"]
        items = list(load(BARD).items())
        for half in (items[: len(items) // 2], items[len(items) // 2 :]):
            time.sleep(PAUSE_S)
            source = {"kind": "tensors", "format": "flattened", "tensors": infos(dict(half))}
            data = b"".join(array.tobytes() for _, array in half)
            client.update_bucket({**source, "payloads": [{"data": data}]}, session=number)
        reply = client.commit_weights(session=number)
    check_sums(reply)
    assert reply["wait_s"] >= 2 * PAUSE_S, reply
    assert reply["rest_s"] == 0, reply  # no request ran


def test_rests_beside_running_requests_are_told_apart(start_tree):
    tree = start_tree("--stage-share", 0.05)
    with tree.door() as door, tree.door("admin") as admin:
        for path in (BARD, STORIES) * 10:  # repeated until a step ran while a piece was staged
            rid = start(door)
            reply = admin.call("update_weights", update={"source": {"kind": "disk", "path": path}})
            door.finish([rid])
            check_sums(reply)
            assert reply["stage_s"] + reply["vote_s"] + reply["commit_s"] <= reply["total_s"], reply
            record = admin.call("status")["updates"][-1]
            assert {name: record[name] for name in NAMES} == {name: reply[name] for name in NAMES}
            if reply["rest_s"] > 0:
                return
    raise AssertionError("no update rested")
