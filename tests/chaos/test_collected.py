"""Which sets of calls may take effect together, given the lines that trainers write: whole sets are accepted, halves
are not."""

import json

import pytest

from .collected import CallBook

A, B, C, X = {"a": "1"}, {"b": "2"}, {"c": "3"}, {"x": "9"}


class Log:
    """A CallBook, and lines of its trainers with given times."""

    def __init__(self, path, **trainers):
        self.book = CallBook(path)
        for who, calls in trainers.items():
            self.book.register(who, calls)

    def add(self, at, who, what, **fields):
        with open(self.book.path, "a") as file:
            file.write(json.dumps({"at": at, "who": who, "what": what, **fields}) + "\n")

    def collected(self, at, who, call):
        self.add(at - 0.5, who, "sent", call=call)
        self.add(at, who, "collected", call=call)

    def publish(self, at, who, end=None):
        self.add(at, who, "publishes")
        if end:
            self.add(end, who, "published", is_continue=True)

    def has(self, *calls):
        union = {name: key for call in calls for name, key in call.items()}
        return union in self.book.candidates()


@pytest.fixture
def log(tmp_path):
    return Log(tmp_path / "calls.log", t=[A, B, C], u=[X])


def test_calls_that_nobody_published_are_in_no_version(log):
    log.collected(1, "t", 0)
    log.collected(2, "t", 1)
    assert log.book.candidates() == []


def test_a_continue_publishes_all_that_was_collected_and_not_a_half(log):
    log.collected(1, "t", 0)
    log.collected(2, "t", 1)
    log.publish(3, "warden", 4)
    assert log.has(A, B) and not log.has(A) and not log.has(B)


def test_a_trainer_that_died_in_its_continue_may_have_published(log):
    log.collected(1, "t", 0)
    log.publish(3, "t")
    assert log.has(A)


def test_a_call_under_way_may_be_in_the_version_or_not(log):
    log.collected(1, "t", 0)
    log.add(2.5, "t", "sent", call=1)
    log.publish(3, "warden", 4)
    log.add(5, "t", "collected", call=1)
    assert log.has(A) and log.has(A, B) and not log.has(B)


def test_first_calls_answered_after_anothers_continue_may_be_in_its_version(log):
    log.add(1, "t", "sent", call=0)
    log.add(1.1, "t", "sent", call=1)
    log.publish(2, "warden", 2.5)
    log.add(2.6, "t", "sent", call=2)
    for number in range(3):
        log.add(3 + number / 10, "t", "collected", call=number)
    assert log.has(A) and log.has(B) and log.has(A, B)
    assert not log.has(C) and not log.has(A, C), "it was sent when the continue had been answered"


def test_a_call_that_was_refused_is_in_no_version(log):
    log.collected(1, "t", 0)
    log.add(2.5, "t", "sent", call=1)
    log.add(2.7, "t", "refused", call=1)
    log.publish(3, "warden", 4)
    assert log.has(A) and not log.has(A, B)


def test_a_call_made_twice_is_in_the_version_of_its_first_sending(log):
    log.add(1, "t", "sent", call=0)
    log.publish(1.2, "warden")  # the warden's continue waits until the call is answered
    log.add(1.5, "t", "collected", call=0)
    assert log.has(A)
    log.add(1.6, "t", "sent", call=0)
    log.add(1.7, "t", "refused", call=0)
    assert log.has(A) and not log.has(A, B)


def test_a_refused_call_that_is_made_again_may_take_effect(log):
    log.add(1, "t", "sent", call=0)
    log.add(1.5, "t", "refused", call=0)
    assert not log.has(A)
    log.add(1.6, "t", "sent", call=0)
    assert log.has(A), "it is under way again"
    log.add(1.7, "t", "refused", call=0)
    assert not log.has(A)


def test_calls_of_two_trainers_are_never_one_version(log):
    log.collected(1, "t", 0)
    log.collected(1.5, "t", 1)
    log.collected(2, "u", 0)
    log.publish(3, "warden", 4)
    assert log.has(A, B) and log.has(X) and not log.has(A, B, X)


def test_a_label_is_one_version_unless_its_trainer_was_told_of_several(log):
    log.collected(1, "t", 0)
    log.collected(2, "t", 1)
    log.publish(3, "t", 4)
    assert not log.book.may_name_several("t")
    log.publish(1.5, "u", 1.7)  # publishes the earlier calls
    assert log.book.may_name_several("t") and not log.book.may_name_several("nobody")


def test_calls_that_met_a_tree_that_generated_are_several_versions_of_one_label(log):
    log.add(1, "t", "sent", call=0)
    log.add(2, "t", "alone", call=0)
    log.add(3, "t", "sent", call=1)
    log.add(4, "t", "alone", call=1)
    assert log.book.may_name_several("t")


def test_calls_that_a_restart_has_lost_are_in_no_version(log):
    log.collected(1, "t", 0)
    log.book.begin_life(2)
    log.collected(3, "t", 1)
    log.publish(4, "warden", 5)
    assert log.has(B) and not log.has(A, B) and not log.has(A)


def test_after_somebody_was_told_of_a_loss_earlier_calls_may_be_missing(log):
    log.collected(1, "t", 0)
    log.add(2, "u", "paused")
    log.collected(3, "t", 1)
    log.publish(4, "u", 5)
    assert log.has(A, B) and log.has(B) and not log.has(A)


def test_calls_that_an_earlier_continue_published_need_not_come_again(log):
    log.collected(1, "t", 0)
    log.publish(2, "warden", 3)
    log.collected(4, "t", 1)
    log.publish(5, "t", 6)
    assert log.has(A) and log.has(B)


def test_a_call_that_was_in_effect_when_it_was_answered_stands_alone(log):
    log.add(1, "t", "sent", call=0)
    log.add(2, "t", "alone", call=0)
    assert log.has(A) and not log.has(B)


@pytest.mark.parametrize("missing", [A, B])
def test_a_continue_that_lacks_a_call_of_its_own_trainer_is_found(log, missing):
    log.collected(1, "t", 0)
    log.collected(2, "t", 1)
    log.publish(3, "t", 4)
    whole = {**A, **B, "d": "0"}
    assert log.book.problem_of("t", whole) is None
    half = {**whole, **dict.fromkeys(missing, "0")}
    assert "lacks 1 of 2 collected calls" in log.book.problem_of("t", half)
    log.add(2.5, "u", "paused")  # another trainer was told of the loss
    assert log.book.problem_of("t", half) is None


def test_a_version_of_a_collection_of_which_a_call_was_refused_is_found(log):
    log.collected(1, "t", 0)
    log.add(1.5, "t", "spoilt")
    log.collected(2, "t", 1)
    log.publish(3, "t", 4)
    whole = {**A, **B, "d": "0"}
    assert "of which a call was refused" in log.book.problem_of("t", whole)
    assert "lacks 1 of 2 collected calls" in log.book.problem_of("t", {**whole, **dict.fromkeys(A, "0")})
    log.add(2.5, "u", "paused")
    assert log.book.problem_of("t", whole) is None


def test_many_trainers_that_died_leave_few_candidates(tmp_path):
    names = [f"t{number}" for number in range(40)]
    log = Log(tmp_path / "log", **{name: [{name: "1"}, {name + "b": "1"}] for name in names})
    for number, name in enumerate(names):
        log.collected(number, name, 0)
        log.add(number + 0.1, name, "sent", call=1)
        log.publish(number + 0.5, "warden", number + 0.6)
    last = names[-1]
    assert {last: "1"} in log.book.candidates() and {last: "1", last + "b": "1"} in log.book.candidates()
    assert len(log.book.candidates()) < 1000
