"""Which requests may end with not_finite: those whose error names an overflowing token under a
diverged version.
"""

import dataclasses
import types

import numpy
import pytest

from . import diverged, weights
from .oracle import Oracle, Rounding, Sequence, log_softmax
from .replay import Record, Replay
from .versions import EpochBook, VersionBook

CONFIG = weights.tiny_config(512)
BAD, GOOD = 7 + diverged.OVERFLOWS_ONE_IN, 8
STATE, LOGITS = "the hidden state was not finite", "the logits were not finite"


def says(what, token, epoch=2, where="for"):
    return f"{what} {where} {token}, in step 5 under weight epoch {epoch}"


class Report:
    def __init__(self):
        self.problems = []

    def count(self, *_):
        pass

    def problem(self, text):
        self.problems.append(text)


@pytest.fixture
def world(tmp_path):
    healthy = weights.random_tensors(CONFIG, numpy.random.default_rng(5))
    directory = tmp_path / "checkpoint"
    directory.mkdir()
    (directory / "config.json").write_text("{}")
    book = VersionBook(tmp_path / "versions")
    checkpoints = [(directory, book.add(healthy), healthy)]
    return types.SimpleNamespace(
        config=CONFIG, book=book, epochs=EpochBook(), checkpoints=checkpoints, directory=tmp_path, report=Report()
    )


def judged(world, message, prompt, tokens=(), epochs=True):
    overflows = diverged.Overflows(world)
    if epochs:
        world.epochs.see(1, world.checkpoints[0][1])
        world.epochs.see(2, world.diverged[1])
    overflows.judge(Record("bus-0-1", list(prompt), list(tokens), []), message)
    overflows.judge_late()
    return world.report.problems


@pytest.mark.parametrize(
    "message, prompt, tokens",
    [
        (says(STATE, "prompt token 1"), [GOOD, BAD, GOOD], []),
        (says(LOGITS, "prompt token 2"), [GOOD, BAD, GOOD], []),
        (says(LOGITS, "output token 0"), [GOOD, BAD], []),
        (says(LOGITS, "output token 2"), [GOOD], [GOOD, BAD]),
        (says(STATE, "output token 0"), [GOOD], [BAD, GOOD]),
        (says(STATE, "prompt token 2", where="at or before"), [GOOD, BAD, GOOD], []),
        (says(LOGITS, "output token 3"), [GOOD], []),  # a failed answer without a stream has no tokens
        (says(STATE, "prompt token 1"), [], []),  # a text prompt, whose token ids no error names
    ],
)
def test_an_error_that_names_a_token_that_overflows_is_right(world, message, prompt, tokens):
    assert judged(world, message, prompt, tokens) == []


@pytest.mark.parametrize(
    "message, prompt, tokens, wrong",
    [
        (says(STATE, "prompt token 0"), [GOOD, BAD, GOOD], [], "token 8 does not overflow"),
        (says(STATE, "prompt token 2"), [GOOD, BAD, GOOD], [], "token 8 does not overflow"),
        (says(LOGITS, "prompt token 1"), [GOOD, BAD, GOOD], [], "token 8 does not overflow"),
        (says(LOGITS, "output token 1"), [GOOD], [GOOD, BAD], "token 8 does not overflow"),
        (says(LOGITS, "prompt token 4"), [GOOD, BAD], [], "no token has that place"),
        (says(STATE, "prompt token 0", where="at or before"), [GOOD, BAD], [], "does not overflow"),
        (says(STATE, "prompt token 1", epoch=1), [GOOD, BAD], [], "which is healthy"),
        ("the model is ill", [GOOD, BAD], [], "does not say what was not finite"),
    ],
)
def test_an_error_at_another_token_or_of_a_healthy_version_is_found(world, message, prompt, tokens, wrong):
    assert any(wrong in each for each in judged(world, message, prompt, tokens)), world.report.problems


def test_an_epoch_that_is_seen_later_is_judged_then(world):
    overflows = diverged.Overflows(world)
    for epoch in (2, 3, 4):
        record = Record("bus-0-1", [GOOD, BAD], [], [])
        overflows.judge(record, says(STATE, "prompt token 1", epoch))
    assert world.report.problems == []
    world.epochs.see(2, world.diverged[1])
    world.epochs.see(3, world.checkpoints[0][1])
    overflows.judge_late()
    (problem,) = world.report.problems
    assert "epoch 3" in problem and "healthy" in problem


def test_a_partial_update_may_leave_a_version_diverged_or_heal_it(world):
    overflows = diverged.Overflows(world)
    healthy, bad = world.checkpoints[0][2], world.diverged[2]
    other = {**bad, "model.norm.weight": healthy["model.norm.weight"] + 1}
    healed = {**other, overflows._name: healthy[overflows._name]}
    assert overflows.is_diverged(world.book.add(other))
    assert not overflows.is_diverged(world.book.add(healed))


@pytest.mark.parametrize("rounding", [Rounding.FP32, Rounding.BF16])
@pytest.mark.parametrize("is_tied", [False, True])
def test_tokens_and_scores_of_what_is_not_finite_are_found_and_others_are_right(world, rounding, is_tied):
    tensors, _ = diverged.diverge(world.checkpoints[0][2], is_tied)
    with numpy.errstate(all="ignore"):
        oracle = Oracle(CONFIG, rounding)
        replay = Replay(oracle, lambda digest: oracle.weights(tensors), 1e-4, 8)
        for prompt, is_finite in (([3, 4, 5, 6], not is_tied), ([3, BAD, 5, 6], False)):
            logits = oracle.forward(Sequence(oracle), oracle.weights(tensors), prompt, 0)
            logprobs = log_softmax(logits)
            assert numpy.isfinite(logprobs[-1]).all() == is_finite
            told = numpy.nan_to_num(logprobs, nan=0.0)
            token = int(told[-1].argmax())
            sampled = Record("r", prompt, [token], [(2, "d", 1, 2, 2)], [float(told[-1][token])], is_greedy=True)
            for each in (sampled, dataclasses.replace(sampled, logprobs=None)):
                verdict = replay.verify(each, {2: "d"})
                assert (verdict.problem is None) == is_finite, verdict
            scored = Record("s", prompt, [], [(2, "d", 0, 2, 2)])
            scored.scores = [float(told[at][prompt[at + 1]]) for at in range(len(prompt) - 1)]
            verdict = replay.verify(scored, {2: "d"})
            assert (verdict.problem is None) == is_finite, verdict
