"""Tests amid.py, on which many tests rely."""

from amid import paused_amid

GREEDY = {"temperature": 0.0, "ignore_eos": True}


def test_requests_that_end_before_the_pause_are_begun_anew(door, admin):
    lengths = [1, 2, 500]
    begun = []

    def begin():
        begun.append(door.start("Once upon a time", max_new_tokens=lengths[len(begun)], **GREEDY))
        return begun[-1:]

    def pause():
        assert admin.call("pause_generation", mode="retract")["ok"]

    (rid,) = paused_amid(admin, begin, door.finish, pause=pause)
    assert len(begun) == 3 and rid == begun[-1]
    (replica,) = admin.call("status")["replicas"]
    assert replica["pause_mode"] == "retract" and replica["num_retracted"] == 1
    assert admin.call("continue_generation")["ok"]
    (output,) = door.finish([rid])
    assert len(output.tokens) == 500 and output.counts["retractions"] == 1
