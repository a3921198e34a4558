"""--restart: an unfinished update is lost when a process dies, and the refusal of the trainer's next
call reports the loss.

A process is killed and the tree comes back with its weights; a trainer that has not noticed sends
its remaining calls."""

import json
import pathlib
import sys

import pytest

from process_tree import ROOT, wait_until
from weights_sources import BARD_TENSORS, DIGESTS, halves, raw_source, refused

sys.path.insert(0, str(ROOT / "tests" / "http"))
import pitstop
from http_calls import Http  # noqa: E402  (after the path)
from trainers import broadcast, sglang_group  # noqa: E402

FIRST, SECOND = halves(BARD_TENSORS)
OLD, NEW = DIGESTS["stories"]["digest"], DIGESTS["bard"]["digest"]


@pytest.fixture
def tree(start_tree):
    return start_tree("--restart", "--tp", 2)


def crash(tree, name="tp_worker[0.1]"):
    """Returns once the tree is back, with a client of it."""
    tree.kill(name)
    assert tree.launcher.stdout.readline(), tree.log()
    tree.processes = json.loads((tree.run_dir / "tree.json").read_text())["processes"]
    return pitstop.Client(tree.run_dir)


def send(client, tensors, **fields):
    return client.update_weights(source=raw_source(tensors), partial=True, **fields)


def send_unnamed(client, tensors):
    """Sends a call as http_proc does for a trainer that names no session."""
    return client.call("admin", "update_weights", unnamed=True, update={"source": raw_source(tensors), "partial": True})


def epoch_of(client):
    return client.status()["replicas"][0]["epoch"]


def check_told(error, *words):
    assert error.code == "aborted", error
    for word in ("the tree restarted at", *words):
        assert word in error.message, error.message


@pytest.mark.parametrize("dead", ["tp_worker[0.1]", "scheduler_proc[0]", "tokenizer_proc"])
def test_P2_the_rest_of_a_collection_is_refused_after_a_restart(tree, dead):
    """Otherwise the remaining calls would become a version, half an update, while the tree generates."""
    with pitstop.Client(tree.run_dir) as client:
        client.pause(mode="in_place")
        assert send(client, FIRST)["state"] == "collecting"
    with crash(tree, dead) as client:
        for _ in range(2):  # a trainer that ignores answers
            check_told(refused(send, client, SECOND), f"as {dead} died", "signal 9")
        assert "the tree restarted" in client.status()["lost_calls"]["why"]
        check_told(refused(client.continue_generation))
        assert epoch_of(client) == 1 and client.weight_digests()["digest"] == OLD
        assert client.continue_generation()["ok"]
        assert "lost_calls" not in client.status()


def test_P2_a_loss_outlives_a_second_restart(tree):
    with pitstop.Client(tree.run_dir) as client:
        client.pause(mode="in_place")
        send(client, FIRST)
    crash(tree).close()
    with crash(tree, "scheduler_proc[0]") as client:
        check_told(refused(send, client, SECOND))
        assert "take no effect" in client.pause(mode="in_place")["message"]
        for tensors in (FIRST, SECOND):
            assert send(client, tensors)["state"] == "collecting"
        assert client.continue_generation()["update"]["digest"] == NEW


def test_P2_a_pause_that_a_restart_has_ended_is_told_before_a_part_takes_effect(tree):
    """The trainer has sent nothing yet, and believes that generation is paused."""
    with pitstop.Client(tree.run_dir) as client:
        client.pause(mode="in_place")
    with crash(tree) as client:
        check_told(refused(send, client, FIRST), "no longer stands still")
        assert client.continue_generation()["ok"], "nothing of it was lost"
        assert send(client, FIRST)["state"] == "serving"


def test_a_restart_refuses_no_call_of_a_trainer_without_an_open_update(tree):
    with pitstop.Client(tree.run_dir) as client:
        client.pause(mode="in_place")
        send(client, FIRST)
        client.continue_generation()
        client.update_weights(str(ROOT / "launch/models/stories"))
    with crash(tree) as client:
        assert "lost_calls" not in client.status()
        assert send(client, FIRST)["state"] == "serving"
        assert client.update_weights(str(ROOT / "launch/models/bard"))["digest"] == NEW


def test_whole_updates_and_a_pause_are_taken_after_a_loss(tree):
    with pitstop.Client(tree.run_dir) as client:
        client.pause(mode="in_place")
        send(client, FIRST)
    with crash(tree) as client:
        assert client.update_weights(str(ROOT / "launch/models/bard"))["digest"] == NEW
        check_told(refused(send, client, SECOND))


def test_P2_the_rest_of_a_session_without_a_number_is_refused_after_a_restart(tree):
    with pitstop.Client(tree.run_dir) as client:
        number = client.call(
            "admin", "begin_update", unnamed=True, holder="trainer A", idle_timeout_ms=60_000,
            update={"source": {"kind": "buckets"}, "partial": True},
        )["session"]  # fmt: skip
        assert send_unnamed(client, FIRST)["state"] == "open"
    with crash(tree) as client:
        for _ in range(2):
            told = refused(send_unnamed, client, SECOND)
            for word in (f"session {number}", "trainer A", "the tree restarted at", "begin one first"):
                assert word in told.message, told.message
        assert send(client, SECOND)["state"] == "serving", "a call that is not of such a trainer"
        told = refused(client.update_bucket, raw_source(SECOND), session=number)
        assert f"session {number}" in told.message and "the tree restarted at" in told.message


@pytest.mark.parametrize("way", ["pause", "session"])
def test_P2_http_the_rest_is_refused_after_a_restart(start_tree, way):
    """A trainer that uses SGLang's HTTP routes: its calls name no session."""
    tree = start_tree("--restart", "--tp", 2, "--port", 0)
    http = Http(tree.url)
    with sglang_group(http, survives=False) as group:
        begin = "/pause_generation" if way == "pause" else "/begin_weight_update"
        http.ok("POST", begin, {"mode": "in_place"} if way == "pause" else {"idle_timeout_s": 60})
        assert broadcast(http, group, FIRST).json()["success"]
    crash(tree).close()
    http = Http(json.loads((pathlib.Path(tree.run_dir) / "tree.json").read_text())["url"])
    wait_until(lambda: http.get("/health").status == 200, "the server")
    with sglang_group(http) as group:
        body = {
            "names": list(SECOND),
            "dtypes": ["bfloat16"] * len(SECOND),
            "shapes": [list(array.shape) for array in SECOND.values()],
        }
        for _ in range(2):
            answer = http.post("/update_weights_from_distributed", body)
            assert answer.status in (400, 409) and "the tree restarted at" in answer.json()["message"], answer
        end = "/continue_generation" if way == "pause" else "/end_weight_update"
        answer = http.post(end)
        assert answer.status in (400, 409) and "the tree restarted at" in str(answer.json()), answer
        assert http.ok("GET", "/get_weight_version").json()["weight_digest"] == OLD
        # The next attempt sends everything, and is accepted.
        http.ok("POST", begin, {"mode": "in_place"} if way == "pause" else {})
        for tensors in (FIRST, SECOND):
            assert broadcast(http, group, tensors).json()["success"]
        http.ok("POST", end)
        assert http.ok("GET", "/get_weight_version").json()["weight_digest"] == NEW
