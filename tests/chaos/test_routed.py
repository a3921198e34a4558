"""The checker and experts: correct records are verified, with and without routes; a wrong row, and
a token of a wrong expert, are found.
"""

import dataclasses

import numpy
import pytest

from chaos import weights
from chaos.oracle import Oracle, Rounding, Sequence, log_softmax, routes_of, tolerances
from chaos.replay import Record, Replay

CONFIG = weights.tiny_experts_config(vocab_size=256)
LAYERS, NUM_EXPERTS, PER_TOKEN = CONFIG["num_hidden_layers"], CONFIG["num_experts"], CONFIG["num_experts_per_tok"]
DENSE = 1
PAGE = 8
PROMPT_LEN, NUM_TOKENS = 13, 24
KEPT = [1] * 10 + [2] * 14  # an update in mid-request, the KV is kept


@pytest.fixture(scope="module")
def versions():
    """{epoch: tensors}: of epochs 1, 2 and 3."""
    rng = numpy.random.default_rng(5)
    return {epoch: weights.random_tensors(CONFIG, rng) for epoch in (1, 2, 3)}


def checker_of(versions, rounding):
    oracle = Oracle(CONFIG, rounding)
    ready = {f"d{epoch}": oracle.weights(tensors) for epoch, tensors in versions.items()}
    allowed = tolerances(CONFIG, versions.values(), rounding)
    return Replay(oracle, ready.__getitem__, allowed[0], PAGE, allowed[1])


@pytest.fixture(scope="module")
def checker(versions):
    return checker_of(versions, Rounding.FP32)


EPOCHS = {epoch: f"d{epoch}" for epoch in (1, 2, 3)}


class Engine:
    """A correct engine, or one with a fault that a test gives. Keeps the routes of its passes."""

    def __init__(self, versions, rounding=Rounding.EXACT):
        self.oracle = Oracle(CONFIG, rounding)
        self.ready = {epoch: self.oracle.weights(tensors) for epoch, tensors in versions.items()}

    def run(self, sequence, epoch, ids, routes=None):
        """(logprobs after the last token, rows)"""
        logits = self.oracle.forward(sequence, self.ready[epoch], ids, len(ids) - 1, routes)
        return log_softmax(logits)[0], routes_of(CONFIG, sequence)

    def generated(self, history, reset_at=None, is_told=True):
        """As in test_checker: `history` is the epoch of each pass; before the token `reset_at` all is computed again."""
        rng = numpy.random.default_rng(9)
        prompt = [int(each) for each in rng.integers(0, CONFIG["vocab_size"], PROMPT_LEN)]
        record = Record("r", prompt, [], [], [], is_greedy=True, retractions=0 if reset_at is None else 1)
        sequence, kv, all_rows = Sequence(self.oracle), [], []
        for number, epoch in enumerate(history):
            ids = (prompt + record.tokens)[sequence.length :]
            if number == reset_at:
                sequence, kv, ids = Sequence(self.oracle), [], prompt + record.tokens
            logprobs, rows = self.run(sequence, epoch, ids)
            told = rows if not number else rows[-1:]
            all_rows.append(told)
            record.route_epochs += [epoch] * len(told)
            kv += [epoch] * len(ids)
            record.tokens.append(int(logprobs.argmax()))
            record.logprobs.append(float(numpy.float32(logprobs.max())))
            record.spans.append((epoch, f"d{epoch}", 1, min(kv), max(kv)))
        record.routes = numpy.concatenate(all_rows)
        if not is_told:
            record.routes, record.route_epochs = None, []
        return record


HISTORIES = [([1] * 24, None), (KEPT, None), (KEPT, 10), (KEPT, 17), ([1] * 5 + [2] * 9 + [3] * 10, None)]


@pytest.mark.parametrize("is_told", [True, False])
@pytest.mark.parametrize("history, reset_at", HISTORIES)
def test_the_records_of_a_right_engine_are_verified(versions, checker, history, reset_at, is_told):
    record = Engine(versions).generated(history, reset_at, is_told)
    verdict = checker.verify(record, EPOCHS)
    assert verdict.problem is None and not verdict.is_undecided, verdict
    assert verdict.num_verified == NUM_TOKENS
    assert verdict.num_rows == (PROMPT_LEN - 1 + NUM_TOKENS if is_told else 0)


@pytest.mark.parametrize("history, reset_at", HISTORIES)
def test_the_records_of_a_right_engine_in_bf16_are_verified_along_their_routes(versions, history, reset_at):
    record = Engine(versions, Rounding.BF16).generated(history, reset_at)
    verdict = checker_of(versions, Rounding.BF16).verify(record, EPOCHS)
    assert verdict.problem is None, verdict


def another_expert(row):
    """The last of a layer's experts is replaced by one with a lower logit."""
    row = row.copy()
    row[0, -1] = next(each for each in range(NUM_EXPERTS) if each not in row[0])
    return row


def another_order(row):
    row = row.copy()
    row[2] = row[2, ::-1]
    return row


@pytest.mark.parametrize("at", [0, 5, PROMPT_LEN - 1, PROMPT_LEN + 6, PROMPT_LEN + 20])
@pytest.mark.parametrize("change", [another_expert, another_order])
def test_a_row_that_the_pass_did_not_choose_is_found(versions, checker, change, at):
    record = Engine(versions).generated(KEPT)
    record.routes[at] = change(record.routes[at])
    problem = checker.verify(record, EPOCHS).problem
    assert problem is not None and ("prefers other" in problem or "logprob is off" in problem), problem


def test_rows_of_the_next_token_are_found(versions, checker):
    record = Engine(versions).generated([1] * NUM_TOKENS)
    late = dataclasses.replace(record, routes=numpy.roll(record.routes, 1, axis=0))
    assert checker.verify(late, EPOCHS).problem is not None


def dropped(record):
    return dataclasses.replace(record, routes=record.routes[1:], route_epochs=record.route_epochs[1:])


def of_another_epoch(record):
    return dataclasses.replace(record, route_epochs=[1] * len(record.route_epochs))


def twice(record):
    record.routes[3, 0, 1] = record.routes[3, 0, 0]
    return record


def no_expert(record):
    record.routes[3, 0, 1] = NUM_EXPERTS
    return record


def in_a_dense_layer(record):
    record.routes[3, DENSE, 1] = 1
    return record


@pytest.mark.parametrize("change, told", [
    (dropped, "35 rows of routes"), (of_another_epoch, "rows of epochs"), (twice, "an expert twice"),
    (no_expert, "routes with experts"), (in_a_dense_layer, "a layer without experts"),
])  # fmt: skip
def test_rows_that_are_no_routes_are_found(versions, checker, change, told):
    record = change(Engine(versions).generated(KEPT))
    assert told in checker.verify(record, EPOCHS).problem


@pytest.mark.parametrize("is_told", [True, False])
def test_a_pass_whose_router_is_of_another_version_is_found(versions, checker, is_told):
    """The update has skipped a layer's router."""
    name = "model.layers.2.mlp.gate.weight"
    mixed = {**versions, 2: {**versions[2], name: versions[1][name]}}
    record = Engine(mixed).generated(KEPT, is_told=is_told)
    assert checker.verify(record, EPOCHS).problem is not None


@pytest.mark.parametrize("part", ["gate_proj", "up_proj", "down_proj"])
@pytest.mark.parametrize("expert", [0, NUM_EXPERTS - 1])
def test_a_pass_with_one_tensor_of_one_expert_of_another_version_is_found(versions, checker, expert, part):
    name = f"model.layers.0.mlp.experts.{expert}.{part}.weight"
    mixed = {**versions, 2: {**versions[2], name: versions[1][name]}}
    record = Engine(mixed).generated(KEPT)
    assert expert in record.routes[PROMPT_LEN + 9 :, 0], "it is used"
    assert checker.verify(record, EPOCHS).problem is not None


def scored(versions, brought, epoch=2):
    """A prompt scored along routes; and the routes of another version's own choice."""
    engine = Engine(versions)
    prompt = [int(each) for each in numpy.random.default_rng(3).integers(0, CONFIG["vocab_size"], 40)]
    engine.run(other := Sequence(engine.oracle), 1, prompt[:-1])
    rows = routes_of(CONFIG, other)
    sequence = Sequence(engine.oracle)
    logits = engine.oracle.forward(sequence, engine.ready[epoch], prompt[:-1], 0, rows if brought else None)
    record = Record("s", prompt, [], [(epoch, f"d{epoch}", 0, epoch, epoch)])
    record.scores = [float(row[token]) for row, token in zip(log_softmax(logits), prompt[1:])]
    record.brought, record.routes, record.route_epochs = rows, rows, [epoch] * 39
    return record


def test_scores_along_brought_routes_are_verified_and_those_of_the_routers_choice_are_not(versions, checker):
    for is_told in (True, False):
        record = scored(versions, brought=True)
        if not is_told:
            record.routes, record.route_epochs = None, []
        verdict = checker.verify(record, EPOCHS)
        assert verdict.problem is None and verdict.num_scored == 39, verdict
    assert "the score of prompt token" in checker.verify(scored(versions, brought=False), EPOCHS).problem
    unlike = scored(versions, brought=True)
    unlike.routes = numpy.roll(unlike.routes, 1, axis=0)
    assert "not those that were brought" in checker.verify(unlike, EPOCHS).problem


def test_two_experts_that_a_router_likes_alike_leave_it_open_which_one_it_was(versions, checker):
    """Without rows the record is undecided; with rows both choices are accepted."""
    name = "model.layers.0.mlp.gate.weight"
    router = versions[1][name].copy()
    router[:] = router[0]
    alike = {1: {**versions[1], name: router}}
    engine = Engine(alike)
    prompt = [7, 8, 9, 10]
    engine.run(own := Sequence(engine.oracle), 1, prompt[:-1])
    swapped = routes_of(CONFIG, own)
    assert (swapped[:, 0] == [0, 1, 2]).all()
    swapped[:, 0] = [6, 4, 5]
    logits = engine.oracle.forward(Sequence(engine.oracle), engine.ready[1], prompt[:-1], 0, swapped)
    record = Record("a", prompt, [], [(1, "d1", 0, 1, 1)])
    record.scores = [float(row[token]) for row, token in zip(log_softmax(logits), prompt[1:])]
    replay = Replay(checker.oracle, lambda _: checker.oracle.weights(alike[1]), checker.tolerance, PAGE, 1e-5)
    assert replay.verify(record, EPOCHS).is_undecided
    record.routes, record.route_epochs = swapped, [1] * 3
    verdict = replay.verify(record, EPOCHS)
    assert verdict.problem is None and not verdict.is_undecided and verdict.num_scored == 3, verdict
