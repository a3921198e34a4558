"""Which refusals of a trainer are by design, and which are findings."""

import random
import sys
import types

import pytest

from .weights import ROOT

sys.path.insert(0, str(ROOT / "client" / "python"))

from .episode import World  # noqa: E402  (after the path)
from .trainers import TrainerThread  # noqa: E402
from .tree import tells_of_a_lost_version  # noqa: E402


class Report:
    def __init__(self):
        self.problems, self.counts = [], []

    def count(self, group, name, number=1):
        self.counts.append((group, name))

    def problem(self, text):
        self.problems.append(text)


def judged(spec, result, has_lost_weights=True):
    report = Report()
    world = types.SimpleNamespace(report=report, has_lost_weights=lambda: has_lost_weights)
    TrainerThread(0, random.Random(1), world)._judge("push partial", spec, None, {"ok": False, **result})
    return report.problems


LOST = "the committed version 'a' (epoch 8, digest 9b3f) cannot be brought back: it lies whole in no directory"
MISSING = {"code": "invalid_argument", "message": "replica 0 rank 0: 'model.norm.weight' is missing"}
PUSH = {"kind": "push", "partial": True}


def test_a_part_that_a_tree_without_weights_refuses_is_by_design():
    assert judged(PUSH, MISSING) == []
    assert judged({**PUSH, "kind": "session"}, MISSING) == []


@pytest.mark.parametrize(
    "spec, result, has_lost_weights",
    [
        (PUSH, MISSING, False),
        ({"kind": "push"}, MISSING, True),
        ({**PUSH, "kind": "tensors_call"}, MISSING, True),
        (PUSH, {**MISSING, "message": "'model.norm.weight' has another shape"}, True),
        (PUSH, {**MISSING, "code": "internal"}, True),
    ],
)
def test_the_same_refusal_in_any_other_case_is_a_finding(spec, result, has_lost_weights):
    assert len(judged(spec, result, has_lost_weights)) == 1


@pytest.mark.parametrize("line, is_lost", [("restart 1 of at most 5 in 0.5 s", False), (LOST, True)])
def test_an_answer_before_the_wardens_next_look_finds_the_weights_lost(line, is_lost):
    log = f"pitstop: {line}\n"
    tree = types.SimpleNamespace(has_lost_version=lambda: tells_of_a_lost_version(log))
    world = types.SimpleNamespace(
        released_at=-float("inf"), warden=types.SimpleNamespace(has_lost_weights=False), tree=tree
    )
    assert World.has_lost_weights(world) == is_lost


TWICE = {"code": "invalid_argument", "message": "rank 0: 'a' arrived before in this update, with other bytes"}


def test_two_trainers_may_contradict_each_other_in_one_collection_and_nowhere_else():
    for spec in ({"kind": "collect"}, {"kind": "tensors_call", "partial": True}):
        assert judged(spec, TWICE) == []
        assert len(judged(spec, {**TWICE, "code": "data_loss"})) == 1
    for spec in ({"kind": "tensors_call"}, {"kind": "session", "partial": True}, {"kind": "push"}):
        assert len(judged(spec, TWICE)) == 1
