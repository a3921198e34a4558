"""A client's calls to a tree that ended reach no later tree, and fail at once."""

import signal
import sys
import threading

import msgpack
import pytest

from process_tree import ROOT, ProcessTree, wait_until
from wire import DEADLINE_S, Door

sys.path.insert(0, str(ROOT / "client" / "python"))

import pitstop  # noqa: E402

GREEDY = {"temperature": 0.0, "ignore_eos": True}
BARD = str(ROOT / "launch/models/bard")


def wait_lost(client):
    """Waits until the client knows that its tree is gone."""

    def is_lost():
        try:
            client.status(timeout=1.0)
            return False
        except pitstop.PitstopError as error:
            return error.code == "unavailable"

    wait_until(is_lost, "the loss of the tree to be noticed")


def wait_found(client):
    """Waits until the client is connected to a tree, at both doors; returns the tree's status."""
    wait_until(lambda: client.is_connected, "the next tree to be found")
    return client.status(timeout=DEADLINE_S)


def test_a_call_in_the_gap_of_a_restart_fails_at_once_and_does_not_reach_the_next_tree(start_tree):
    tree = start_tree("--restart")
    with pitstop.Client(tree.run_dir) as client:
        first = client.info.tree
        tree.go_away()
        wait_lost(client)
        calls = (
            lambda: client.pause("in_place", timeout=0.1),
            lambda: client.update_weights(BARD),  # its own time limit is ten minutes
            lambda: client.abort(all=True),
            lambda: client.set_weight_label("stale"),
            lambda: client.generate("Once", max_new_tokens=1).result(),
        )
        for call in calls:
            with pytest.raises(pitstop.PitstopError) as error:
                call()
            assert error.value.code == "unavailable", error.value
        tree.come_back()
        status = wait_found(client)
        assert client.info.tree not in ("", first)
        (replica,) = status["replicas"]
        assert replica["state"] == "running" and "pause_mode" not in replica, "nobody froze it"
        assert (replica["epoch"], replica.get("label", "")) == (1, "")
        assert len(client.generate("Once", max_new_tokens=5, **GREEDY).result().tokens) == 5
        assert client.pause("in_place")["ok"], "calls for this tree are taken"
    tree.stop()


def test_calls_and_requests_that_are_open_end_when_the_tree_dies(start_tree):
    tree = start_tree("--restart")
    with pitstop.Client(tree.run_dir) as client:
        tree.kill("tp_worker[0.0]", signal.SIGSTOP)  # so that the tree runs no request
        tree.wait_stopped("tp_worker[0.0]")
        stream = client.generate("Once", max_new_tokens=5)
        errors = []

        def digest():
            try:
                client.weight_digests(timeout=3600.0)
            except pitstop.PitstopError as error:
                errors.append(error.code)

        call = threading.Thread(target=digest)
        call.start()
        wait_until(lambda: client.status()["open_requests"] == 1, "the request to be open")
        tree.kill("tokenizer_proc")  # the process that would answer is gone
        call.join(DEADLINE_S)
        assert errors == ["unavailable"]
        with pytest.raises(pitstop.PitstopError) as error:
            stream.result(DEADLINE_S)
        assert error.value.code == "unavailable"
    tree.come_back()
    tree.stop()


def test_a_message_that_a_socket_kept_for_the_next_tree_is_refused(place):
    """A new launcher starts in the same place, and the client's socket notices no loss."""
    run_dir = place / "tree"
    first = ProcessTree(run_dir)
    admin, data = Door(run_dir, "admin"), Door(run_dir)
    try:
        first.stop()
        stale = admin.tree
        admin.send("update_weights", call=7, update={"source": {"kind": "disk", "path": BARD}})
        admin.send("pause_generation", call=8, mode="in_place")
        data.send("generate", rid="old", text="Once", sampling={"max_new_tokens": 5})
        data.send("cancel", rids=["old"])
        second = ProcessTree(run_dir)
        try:
            for call in (7, 8):
                kind, error = admin.receive()
                assert (kind, error["call"], error["code"]) == ("error", call, "unavailable"), error
                # A client that comes while the tree is still starting also learns its identity.
                assert error["tree"] not in ("", stale), error
            kind, refused = data.receive()
            assert (kind, refused["rid"], refused["code"]) == ("error", "old", "unavailable")
            kind, refused = data.receive()
            assert (kind, refused["code"]) == ("error", "unavailable"), "the cancel"
            admin.greet()
            assert admin.tree == error["tree"] == refused["tree"]
            status = admin.call("status")
            assert status["replicas"][0]["epoch"] == 1
            assert status["replicas"][0]["state"] == "running"
            assert status["open_requests"] == 0
            data.greet()
            assert len(data.generate("Once", max_new_tokens=5, **GREEDY).tokens) == 5
        finally:
            second.stop()
            second.abandon()
    finally:
        admin.close()
        data.close()
        first.abandon()


def test_an_identity_is_another_one_after_every_start(start_tree):
    tree = start_tree("--restart")
    seen = {tree.door().tree, tree.door("admin").tree}
    assert len(seen) == 1, "both doors are one tree's"
    tree.go_away()
    tree.come_back()
    seen.add(tree.door().tree)
    assert len(seen) == 2 and all(len(identity) == 32 for identity in seen)
    tree.stop()


WRONG = {
    "none": ({}, "invalid_argument", "tree is missing"),
    "an empty one": ({"tree": ""}, "invalid_argument", "tree is missing"),
    "nil": ({"tree": None}, "invalid_argument", "tree"),
    "a number": ({"tree": 5}, "invalid_argument", "tree: expected a string"),
    "a list": ({"tree": ["x"]}, "invalid_argument", "tree: expected a string"),
    "a map": ({"tree": {"id": "x"}}, "invalid_argument", "tree: expected a string"),
    "bytes": ({"tree": b"\x00" * 16}, "invalid_argument", "tree"),
    "another one": ({"tree": "0" * 32}, "unavailable", "0" * 32),
    "a huge one": ({"tree": "x" * (1 << 20)}, "unavailable", "x" * 64),
    "a line feed": ({"tree": "x\ny"}, "unavailable", "x"),
}


@pytest.mark.parametrize("case", WRONG, ids=lambda case: case.replace(" ", "_"))
def test_a_message_whose_tree_is(case, shared_tree):
    fields, code, expected = WRONG[case]
    with shared_tree.door() as door, shared_tree.door("admin") as admin:
        messages = (
            (door, "generate", {"rid": "bad", "text": "Once"}),
            (door, "cancel", {"rids": ["bad"]}),
            (door, "tokenize", {"call": 1, "text": "Once"}),
            (door, "render_chat", {"call": 1, "variables": "{}"}),
            (admin, "pause_generation", {"call": 1}),
            (admin, "update_weights", {"call": 1, "update": {"source": {"kind": "disk", "path": BARD}}}),
            (admin, "abort", {"call": 1, "all": True}),
            (admin, "shutdown", {"call": 1}),
            (admin, "status", {"call": 1}),
        )
        for where, kind, body in messages:
            where.send_raw(kind.encode(), msgpack.packb({**body, **fields}))
            got, error = where.receive()
            assert (got, error["code"]) == ("error", code), (kind, error)
            assert expected in error["message"] and len(error["message"]) < 1000
            assert error.get("call", 0) == body.get("call", 0) and error.get("rid", "") == body.get("rid", "")
        status = admin.call("status")
        assert (status["replicas"][0]["state"], status["replicas"][0]["epoch"]) == ("running", 1)
        assert len(door.generate("Once", max_new_tokens=2, **GREEDY).tokens) == 2


def test_a_tree_that_stands_still_for_a_while_is_not_taken_for_a_dead_one(start_tree):
    tree = start_tree()
    with pitstop.Client(tree.run_dir) as client:
        identity = client.info.tree
        expected = client.generate("Once", max_new_tokens=60, **GREEDY).result().tokens
        stream = client.generate("Once", max_new_tokens=60, **GREEDY)
        chunk = next(stream)  # the last chunk already, if this process waited for a core
        tree.kill("tokenizer_proc", signal.SIGSTOP)
        tree.wait_stopped("tokenizer_proc")
        late = []
        call = threading.Thread(target=lambda: late.append(client.status(timeout=DEADLINE_S)))
        call.start()
        with pytest.raises(pitstop.PitstopError) as error:  # only the call's own time limit ends it
            client.status(timeout=2.0)
        assert error.value.code == "deadline_exceeded"
        tree.kill("tokenizer_proc", signal.SIGCONT)
        call.join(DEADLINE_S)
        assert late and late[0]["replicas"], "an open call is answered after all"
        assert chunk.tokens + [token for later in stream for token in later.tokens] == expected
        assert client.info.tree == identity
    tree.stop()
