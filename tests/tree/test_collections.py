"""Calls without a session: which calls publish them, which lose them, and which callers are told
(docs/weights.md).
"""

import threading
import time

import pytest

import pitstop
from process_tree import wait_until
from weights_sources import BARD_TENSORS, DIGESTS, STORIES, client, digest_of, halves, raw_source, refused  # noqa: F401  (the fixture)

TREE_FLAGS = ("--tp", 2)
OLD, NEW = DIGESTS["stories"]["digest"], DIGESTS["bard"]["digest"]


def send(client, tensors, **fields):
    reply = client.update_weights(source=raw_source(tensors), partial=True, **fields)
    assert reply["state"] == "collecting", reply
    return reply


def parts(num):
    items = list(BARD_TENSORS.items())
    return [dict(items[i::num]) for i in range(num)]


def go_on(client):
    return client.continue_generation()


@pytest.fixture(autouse=True)
def runs_again(client):
    """After each test, restores what the next one expects: stories, running."""
    yield
    status = client.status()
    if status.get("collecting"):
        client.drop_stage()
    for _ in range(2):
        try:
            go_on(client)
            break
        except Exception:  # noqa: BLE001  (it was told of a loss)
            continue
    client.update_weights(str(STORIES))


def test_P2_a_pause_that_ends_by_itself_publishes_nothing_of_a_dead_trainer(client):
    client.pause(mode="in_place", max_pause_s=600)
    for tensors in parts(3)[:2]:
        send(client, tensors, label="half")
    client.pause(mode="in_place", max_pause_s=0.5)  # the latest pause sets the time limit
    wait_until(lambda: "collecting" not in client.status(), "the pause to end")
    wait_until(lambda: client.status()["replicas"][0]["state"] == "running", "the version before to serve")
    assert digest_of(client) == OLD
    lost = client.status()["lost_calls"]
    assert lost["calls"] == 2 and "max_pause_s" in lost["why"], lost
    for _ in range(3):  # a slow trainer that ignores answers
        told = refused(client.update_weights, source=raw_source(parts(3)[2]), partial=True)
        assert told.code == "aborted" and "2 calls" in told.message, told
    assert "2 calls" in client.pause(mode="in_place")["message"]
    assert "lost_calls" not in client.status() and digest_of(client) == OLD


@pytest.mark.parametrize("label", ["", "step 2"])
def test_P2_a_slow_trainer_that_pauses_again_publishes_no_rest(client, label):
    """The trainer's pause has ended by itself, and the trainer ignores the answer to its next pause."""
    client.pause(mode="in_place", max_pause_s=600)
    send(client, parts(3)[0], label=label)
    client.pause(mode="in_place", max_pause_s=0.5)
    wait_until(lambda: "collecting" not in client.status(), "the pause to end")
    wait_until(lambda: client.status()["replicas"][0]["state"] == "running", "the version before to serve")
    client.pause(mode="in_place")
    for tensors in parts(3)[1:]:
        send(client, tensors, label=label)
    told = refused(go_on, client)
    assert told.code == "aborted" and "1 calls" in told.message, told
    go_on(client)
    assert digest_of(client) == OLD


def test_P2_a_pause_that_ends_by_itself_before_the_first_call_is_told(client):
    """Without the refusal, each part would become a version while the tree generates."""
    client.pause(mode="in_place", max_pause_s=0.2)
    wait_until(lambda: client.status()["replicas"][0]["state"] == "running", "the pause to end")
    for tensors in parts(3):
        told = refused(client.update_weights, source=raw_source(tensors), partial=True)
        assert told.code == "aborted" and "max_pause_s ended the pause" in told.message, told
    go_on(client)
    assert digest_of(client) == OLD and "lost_calls" not in client.status()


def test_P2_an_earlier_pause_has_no_say(client):
    client.pause(mode="retract", max_pause_s=1)
    go_on(client)
    client.release_memory(["kv_cache"])
    first, second = halves(BARD_TENSORS)
    send(client, first)
    time.sleep(1.5)  # until the time limit of the ended pause is over
    assert client.status()["collecting"]["calls"] == 1 and digest_of(client) == OLD
    send(client, second)
    resumed = client.resume_memory(["kv_cache"])
    assert resumed["update"]["calls"] == 2 and resumed["update"]["digest"] == NEW
    assert digest_of(client) == NEW


def test_P2_the_same_call_again_is_no_error(client):
    client.pause(mode="in_place")
    for tensors in parts(4):
        send(client, tensors)
        send(client, tensors)  # sent again, as if its answer was lost
    went_on = go_on(client)
    assert went_on["update"]["digest"] == NEW and went_on["update"]["calls"] == 8
    assert digest_of(client) == NEW


def test_P2_a_call_that_fails_in_the_middle_loses_all_and_the_continue_says_so_once(client):
    client.pause(mode="in_place")
    calls = parts(4)
    for tensors in calls[:2]:
        send(client, tensors)
    other = {name: array + 1 for name, array in calls[0].items()}
    assert "with other bytes" in refused(client.update_weights, source=raw_source(other), partial=True).message
    for tensors in calls[2:]:  # a trainer that ignores answers
        reply = client.update_weights(source=raw_source(tensors), partial=True)
        assert "missing tensors" in reply["message"], reply
    told = refused(go_on, client)
    assert told.code == "aborted" and "take no effect" in told.message, told
    assert digest_of(client) == OLD
    assert "update" not in go_on(client) and digest_of(client) == OLD


def test_P2_after_a_loss_a_whole_model_takes_effect(client):
    client.pause(mode="in_place")
    calls = parts(3)
    send(client, calls[0])
    refused(client.update_weights, source=raw_source({"no.such": calls[0][list(calls[0])[0]]}), partial=True)
    for tensors in calls[:2]:
        send(client, tensors)
    last = client.update_weights(source=raw_source(calls[2]), partial=True, label="again")
    assert last["state"] == "serving" and last["digest"] == NEW, last
    go_on(client)
    assert client.status()["replicas"][0]["label"] == "again"


@pytest.mark.parametrize(
    "what",
    [
        lambda c: refused(c.update_weights, "/no/such/directory"),
        lambda c: refused(c.update_weights, str(STORIES), epoch=1),
        lambda c: refused(c.update_weights, str(STORIES), digest="0" * 32),
        lambda c: refused(c.rollback_weights),
        lambda c: refused(c.begin_update),
        lambda c: refused(c.resume_memory, ["kv_cache"]),
        lambda c: refused(c.release_memory, ["weights"]),
        lambda c: refused(c.get_weights, "no.such.tensor"),
        lambda c: c.weight_digests(),
        lambda c: c.flush_cache(),
        lambda c: c.status(),
        lambda c: c.pause(mode="in_place"),
    ],
)
def test_P2_refused_calls_and_readers_publish_nothing(client, what):
    client.pause(mode="retract")
    first, second = halves(BARD_TENSORS)
    send(client, first)
    what(client)
    assert digest_of(client) == OLD and client.status()["collecting"]["calls"] == 1
    send(client, second)
    assert go_on(client)["update"]["digest"] == NEW


def test_calls_in_parallel_wait_for_their_turn(client, shared_tree):
    client.pause(mode="in_place")
    replies = []

    def one(tensors):
        with pitstop.Client(shared_tree.run_dir) as other:
            replies.append(other.update_weights(source=raw_source(tensors), partial=True))

    threads = [threading.Thread(target=one, args=(tensors,)) for tensors in parts(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [reply["state"] for reply in replies] == ["collecting"] * 8
    assert go_on(client)["update"]["calls"] == 8
    assert digest_of(client) == NEW


def test_a_label_meanwhile_is_the_new_versions(client):
    client.pause(mode="in_place")
    send(client, BARD_TENSORS)
    client.set_weight_label("step-9")
    assert "label" not in client.status()["replicas"][0]
    assert go_on(client)["update"]["label"] == "step-9"
    assert client.status()["replicas"][0]["label"] == "step-9"
