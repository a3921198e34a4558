"""Pause, continue, abort and flush on a real tree: the table of pause states in docs/design.md."""

import pytest

from amid import paused_amid, running_amid, turns
from pairs import pair, shared_tree  # noqa: F401
from process_tree import wait_until
from wire import Refused

GREEDY = {"temperature": 0.0, "ignore_eos": True}
SEEDED = {"temperature": 1.0, "seed": 5, "ignore_eos": True}
LONG = 600
TREE_FLAGS = ("--tp", 2)


@pytest.fixture
def admin(shared_tree):
    with shared_tree.door("admin") as admin:
        yield admin
        admin.call("continue_generation")
        admin.call("abort", all=True)
        admin.call("flush_cache", wait_idle=True)


def status(admin):
    return admin.call("status")["replicas"][0]


def begin(door, *rids, **fields):
    """Returns a begin() for amid.py, which starts these requests."""
    fields = {"max_new_tokens": LONG, **(fields or GREEDY)}
    return lambda: [door.start("Once upon a time", rid=rid, **fields) for rid in rids]


class Pause:
    """A call that pauses the tree. `said` is its last answer."""

    def __init__(self, admin, mode):
        self.admin, self.mode = admin, mode

    def __call__(self):
        self.said = self.admin.call("pause_generation", mode=self.mode)


def drain(door):
    """Reads messages that are on their way."""
    while not door.is_quiet(0.2):
        door.step()


def test_P4_in_place_freezes_and_goes_on_from_the_very_next_token(door, admin):
    undisturbed = door.generate("Once upon a time", max_new_tokens=LONG, logprobs={"enabled": True}, **SEEDED)
    pause = Pause(admin, "in_place")
    (rid,) = paused_amid(admin, begin(door, "i1", logprobs={"enabled": True}, **SEEDED), door.finish, pause=pause)
    assert pause.said["ok"] and pause.said["parts"][0]["num_frozen"] == 1
    drain(door)
    num_before = len(door.outputs[rid].tokens)
    assert num_before < LONG
    assert status(admin)["state"] == "paused"
    assert status(admin)["num_running"] == 1
    late = door.start("The king", max_new_tokens=5, **GREEDY)
    wait_until(lambda: status(admin)["num_waiting"] == 1, "the new request to be queued")
    with_pages = admin.call("flush_cache")
    assert not with_pages["ok"] and with_pages["code"] == "failed_precondition"
    assert door.is_quiet(0.2)
    went_on = admin.call("continue_generation")
    assert went_on["parts"][0]["was_paused"] and went_on["parts"][0]["paused_s"] > 0
    output, other = door.finish([rid, late])
    assert output.tokens == undisturbed.tokens
    assert output.logprobs == undisturbed.logprobs
    assert output.counts["retractions"] == 0
    assert len(other.tokens) == 5


def test_P6_retract_loses_no_token_and_changes_none(door, admin):
    undisturbed = door.generate("Once upon a time", max_new_tokens=LONG, logprobs={"enabled": True}, **SEEDED)
    (rid,) = paused_amid(admin, begin(door, "r1", logprobs={"enabled": True}, **SEEDED), door.finish)
    tokens = status(admin)["output_tokens_total"]
    for num_new in (0, 50, 90):
        tokens += num_new
        turns(admin, lambda: status(admin)["output_tokens_total"] > tokens, "more tokens")
        admin.call("continue_generation")
        paused = admin.call("pause_generation", mode="retract")
        assert paused["ok"] and paused["parts"][0]["num_retracted"] == 1
        assert status(admin)["num_running"] == 0
        flushed = admin.call("flush_cache")
        assert flushed["ok"], flushed
        now = status(admin)
        assert now["pages_free"] == now["pages_total"]
    admin.call("continue_generation")
    (output,) = door.finish([rid])
    assert output.tokens == undisturbed.tokens
    assert output.logprobs == undisturbed.logprobs
    assert output.counts["retractions"] == 3


def test_P4_abort_returns_what_was_sampled_and_queues_newcomers(door, admin):
    running_amid(admin, begin(door, "a1", "a2"), door.finish, 2)
    paused = admin.call("pause_generation", mode="abort")
    assert paused["ok"] and paused["parts"][0]["num_aborted"] == 2
    outputs = door.finish(["a1", "a2"])
    for output in outputs:
        assert output.finish["reason"] == "abort"
        assert 0 < len(output.tokens) < LONG
        assert sum(span["tokens"] for span in output.spans) == len(output.tokens)
        assert output.counts["completion_tokens"] == len(output.tokens)
    late = door.start("The king", max_new_tokens=5, **GREEDY)
    assert door.is_quiet(0.3)
    admin.call("continue_generation")
    assert len(door.finish([late])[0].tokens) == 5


def test_wait_lets_running_requests_end_and_keeps_newcomers_out(shared_tree, door, admin):
    paused_amid(admin, begin(door, "w1"), door.finish)
    with shared_tree.door("admin") as pauser:
        with shared_tree.frozen("tp_worker[0.0]"):  # the worker is stopped, so that the request does not end
            admin.call("continue_generation")
            pauser.send("pause_generation", call=1, mode="wait")
            wait_until(lambda: status(admin)["state"] == "pausing", "the drain to begin")
            late = door.start("The king", max_new_tokens=5, **GREEDY)
            wait_until(lambda: status(admin)["num_waiting"] == 1, "the newcomer to be queued")
        kind, reply = pauser.receive()
        assert kind == "pause_reply" and reply["ok"], reply
    (output,) = door.finish(["w1"])
    assert output.finish["reason"] == "length" and len(output.tokens) == LONG
    assert door.outputs[late].tokens == []
    assert door.is_quiet(0.2)
    admin.call("continue_generation")
    assert len(door.finish([late])[0].tokens) == 5


def test_a_pause_ends_by_itself_after_max_pause_s(door, admin):
    running_amid(admin, begin(door, "m1"), door.finish)
    assert admin.call("pause_generation", mode="in_place", max_pause_s=0.3)["ok"]
    (output,) = door.finish(["m1"])
    assert len(output.tokens) == LONG
    assert status(admin)["state"] == "running"


def test_pausing_twice_and_continuing_twice_are_harmless_and_say_so(admin):
    assert not admin.call("pause_generation", mode="in_place")["parts"][0]["was_paused"]
    again = admin.call("pause_generation", mode="retract")
    assert again["ok"] and again["parts"][0]["was_paused"]
    assert admin.call("continue_generation")["parts"][0]["was_paused"]
    not_paused = admin.call("continue_generation")
    assert not_paused["ok"] and not not_paused["parts"][0]["was_paused"]


def test_P4_a_pause_that_is_overdue_waits_for_released_memory(door, admin):
    rid = door.start("Once upon a time", max_new_tokens=LONG, **GREEDY)
    assert admin.call("pause_generation", mode="retract")["ok"]
    assert admin.call("release_memory", keep_weights=True)["ok"]
    assert admin.call("pause_generation", mode="retract", max_pause_s=0.5)["ok"]  # the latest pause sets the time limit
    wait_until(lambda: "pause_expiry" in status(admin), "max_pause_s to run out")
    now = status(admin)
    assert now["pause_mode"] == "retract" and now["state"] == "released"
    assert now["pause_expiry"].startswith("stays paused: weights is released, kv_cache is released")
    assert admin.call("resume_memory")["ok"]
    assert len(door.finish([rid])[0].tokens) == LONG, "nobody had to continue it"
    now = status(admin)
    assert "pause_mode" not in now and now["pause_expiry"].startswith("continued by itself after ")


def test_P4_aborts_while_paused_come_back_at_once(door, admin):
    paused_amid(admin, begin(door, "p1", "p2"), door.finish, 2)
    reply = admin.call("abort", rids=["p1", "nobody"])
    assert [result["outcome"] for result in reply["results"]] == ["aborted", "unknown"]
    (output,) = door.finish(["p1"])
    assert output.finish["reason"] == "abort" and output.tokens
    assert admin.call("abort", rids=["p1"])["results"][0]["outcome"] == "already_done"
    admin.call("continue_generation")
    assert len(door.finish(["p2"])[0].tokens) == LONG


def test_P5_status_is_answered_while_paused_and_bad_calls_are_refused(admin):
    admin.call("pause_generation", mode="in_place")
    assert status(admin)["state"] == "paused"
    for fields in ({"mode": "sideways"}, {"max_pause_s": -1.0}, {"mod": "abort"}, {"mode": 3}):
        with pytest.raises(Refused) as refused:
            admin.call("pause_generation", **fields)
        assert refused.value.code == "invalid_argument"
    with pytest.raises(Refused):
        admin.call("abort")
    assert status(admin)["state"] == "paused"


def test_the_admin_door_is_a_door_of_its_own(door):
    with pytest.raises(Refused) as refused:
        door.call("pause_generation", mode="abort")
    assert refused.value.code == "permission_denied"
