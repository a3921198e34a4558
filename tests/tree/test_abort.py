"""cancel ends the requests that it names, in any state, and no other."""

import pytest

from amid import paused_amid, running_amid, turns
from wire import Refused

GREEDY = {"temperature": 0.0, "ignore_eos": True}
LONG = 500
TREE_FLAGS = ("--max-running-requests", 2, "--chunked-prefill-size", 32)


def cancel(door, *rids):
    door.send("cancel", rids=list(rids))


def pause(admin):
    assert admin.call("pause_generation", mode="in_place")["ok"]


def go_on(admin):
    assert admin.call("continue_generation")["ok"]


def test_P4_a_decoding_request_gives_back_every_token_so_far(door, admin):
    whole = door.generate("Once upon a time", max_new_tokens=LONG, **GREEDY)
    begin = lambda: [door.start("Once upon a time", max_new_tokens=LONG, **GREEDY)]
    (rid,) = running_amid(admin, begin, door.finish)
    cancel(door, rid)
    (output,) = door.finish([rid])
    assert output.finish["reason"] == "abort"
    assert 0 < len(output.tokens) < LONG
    assert output.tokens == whole.tokens[: len(output.tokens)]
    assert whole.text.startswith(output.text)
    assert sum(span["tokens"] for span in output.spans) == len(output.tokens)
    assert output.counts["completion_tokens"] == len(output.tokens)


def test_P4_a_queued_request_ends_and_those_that_run_do_not(door, admin):
    begin = lambda: [door.start(f"The king {i}", max_new_tokens=150, **GREEDY) for i in range(2)]
    running = paused_amid(admin, begin, door.finish, 2)
    queued = [door.start(f"The queen {i}", max_new_tokens=20, **GREEDY) for i in range(4)]
    cancel(door, *queued[1:3])
    go_on(admin)
    outputs = door.finish(queued)
    assert [output.finish["reason"] for output in outputs] == ["length", "abort", "abort", "length"]
    assert outputs[1].tokens == []
    assert [len(output.tokens) for output in door.finish(running)] == [150, 150]


def test_P4_a_request_in_prefill_ends(door, admin):
    pause(admin)
    rid = door.start([5] * 900, max_new_tokens=50, **GREEDY)  # 29 chunks of prefill
    turns(admin, lambda: admin.call("status")["replicas"][0]["num_running"] == 1, "its first chunk")
    cancel(door, rid)
    (output,) = door.finish([rid])
    go_on(admin)
    assert output.finish["reason"] == "abort"


def test_an_abort_is_by_exact_id(door, admin):
    pause(admin)
    rids = [door.start("Once", rid=rid, max_new_tokens=LONG, **GREEDY) for rid in ("a", "a1", "A", "aa")]
    cancel(door, "a")
    go_on(admin)
    outputs = door.finish(rids)
    assert [output.finish["reason"] for output in outputs] == ["abort"] + ["length"] * 3


def test_ids_that_are_not_open_and_clients_that_do_not_own_them_change_nothing(shared_tree, door):
    rid = door.start("Once", rid="owned", max_new_tokens=60, **GREEDY)
    with shared_tree.door() as stranger:
        cancel(stranger, "owned", "nobody")
        assert len(stranger.generate("One", max_new_tokens=3, **GREEDY).tokens) == 3
    assert door.finish([rid])[0].finish["reason"] == "length"
    cancel(door, "owned")  # has finished
    assert len(door.generate("One", max_new_tokens=3, **GREEDY).tokens) == 3


def test_an_id_is_free_again_after_its_request_has_ended(door, admin):
    begin = lambda: [door.start("Once", rid="again", max_new_tokens=LONG, **GREEDY)]
    for _ in range(3):
        (rid,) = running_amid(admin, begin, door.finish)
        cancel(door, rid)
        assert door.finish([rid])[0].finish["reason"] == "abort"


def test_a_cancel_right_behind_its_request_always_finds_it(door, admin):
    pause(admin)  # otherwise a request may end before its cancel
    for _ in range(30):
        rid = door.start("Once", max_new_tokens=LONG, **GREEDY)
        cancel(door, rid)
        (output,) = door.finish([rid])
        assert output.finish["reason"] == "abort", output.finish


def test_an_abort_finds_every_request_that_came_before_an_answered_fence(shared_tree, door):
    with shared_tree.door("admin") as admin:
        assert admin.call("pause_generation", mode="in_place")["ok"]  # otherwise a request may end before its cancel
        try:
            for _ in range(30):
                rid = door.start("Once", max_new_tokens=LONG, **GREEDY)
                door.call("fence")
                reply = admin.call("abort", rids=[rid])
                assert [entry["outcome"] for entry in reply["results"]] == ["aborted"]
                (output,) = door.finish([rid])
                assert output.finish["reason"] == "abort"
        finally:
            assert admin.call("continue_generation")["ok"]


def test_a_cancel_of_nothing_is_refused(door):
    cancel(door)
    with pytest.raises(Refused) as refused:
        door.step()
    assert refused.value.code == "invalid_argument"
