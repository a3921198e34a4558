"""The checker finds a request that got another adapter than it says, or KV of another one."""

import dataclasses
import json

import numpy
import pytest

from chaos import adapters, weights
from chaos.oracle import Oracle, Rounding, Sequence, log_softmax, tolerance
from chaos.replay import Record, Replay

CONFIGS = {"dense": weights.tiny_config(vocab_size=256), "hybrid": weights.tiny_hybrid_config(vocab_size=256)}
GOLDEN = weights.ROOT / "tests/data/golden"
NUM_TOKENS = 16


@pytest.fixture(scope="module", params=CONFIGS.values(), ids=CONFIGS)
def world(request, tmp_path_factory):
    """(config, tensors, the book of adapters)"""
    rng = numpy.random.default_rng(5)
    tensors = weights.random_tensors(request.param, rng)
    directory = tmp_path_factory.mktemp("adapters") / "book"
    return request.param, tensors, adapters.AdapterBook(directory, request.param, tensors, rng)


@pytest.fixture(scope="module")
def checker(world):
    config, tensors, book = world
    oracle = Oracle(config, Rounding.FP32)
    ready = {("d1",): oracle.weights(tensors)}
    for digest, whole in zip([digest for _, digest in book.contents], book.whole):
        ready["d1", digest] = oracle.adapted(ready["d1",], *whole)
    return Replay(oracle, lambda *digests: ready[digests], tolerance(config, [tensors], Rounding.FP32), 8)


def generated(world, passes, told=0):
    """A record as an engine would serve it in float64. `passes`: the content of each pass, the
    prompt's first; None: the model alone. `told`: the adapter that the answer names.
    """
    config, tensors, book = world
    oracle = Oracle(config, Rounding.EXACT)
    ready = {None: oracle.weights(tensors)}
    ready.update({number: oracle.adapted(ready[None], *whole) for number, whole in enumerate(book.whole)})
    prompt = [int(each) for each in numpy.random.default_rng(9).integers(0, config["vocab_size"], 13)]
    record = Record("r", prompt, [], [(1, "d1", NUM_TOKENS, 1, 1)], [], is_greedy=True)
    if told is not None:
        record.adapter_name, record.adapter = "policy", ("policy", 7, book.contents[told][1])
    sequence = Sequence(oracle)
    for content in passes:
        ids = (prompt + record.tokens)[sequence.length :]
        logprobs = log_softmax(oracle.forward(sequence, ready[content], ids, len(ids) - 1))[0]
        record.tokens.append(int(logprobs.argmax()))
        record.logprobs.append(float(numpy.float32(logprobs.max())))
    return record


@pytest.mark.parametrize("content", [0, 1, 2, None])
def test_the_records_of_a_right_engine_are_verified(world, checker, content):
    verdict = checker.verify(generated(world, [content] * NUM_TOKENS, content), {1: "d1"})
    assert verdict.problem is None and verdict.num_verified == NUM_TOKENS, verdict


@pytest.mark.parametrize(
    "passes",
    [
        [None] * NUM_TOKENS,  # the model alone, though an adapter was asked for
        [1] * NUM_TOKENS,  # the version before
        [1] + [0] * (NUM_TOKENS - 1),  # a prompt from another version's cached pages
        [None] + [0] * (NUM_TOKENS - 1),
        [0] * 9 + [2] * (NUM_TOKENS - 9),  # replaced in mid-request
        [0] * (NUM_TOKENS - 1) + [None],  # a row that was computed without its adapter
    ],
)
def test_a_pass_with_another_adapter_is_found(world, checker, passes):
    assert checker.verify(generated(world, passes), {1: "d1"}).problem is not None


@pytest.mark.parametrize("content", [0, 1, 2])
def test_an_adapter_in_an_answer_of_the_model_alone_is_found(world, checker, content):
    assert checker.verify(generated(world, [content] * NUM_TOKENS, None), {1: "d1"}).problem is not None


def test_the_adapter_in_an_answer_must_be_the_one_that_was_asked_for(world):
    _, _, book = world
    digest, other = book.contents[0][1], book.contents[1][1]
    record = Record("r", [1], [2], [], adapter_name="policy", adapter=("policy", 10, digest))
    assert book.problem_of(record) is None
    book.loaded("policy", 10)
    record.adapter_floor = book.floor("policy")
    assert book.problem_of(record) is None
    for wrong, why in (
        (dict(adapter=None), "and says that it had None"),
        (dict(adapter_name=""), "it asked for adapter ''"),
        (dict(adapter=("critic", 10, digest)), "it asked for adapter 'policy'"),
        (dict(adapter=("policy", 9, other)), "10 was the oldest for new requests"),
        (dict(adapter=("policy", 10, other)), "version 10 was"),
        (dict(adapter=("policy", 11, "0" * 32)), "which nobody sent"),
    ):
        assert why in book.problem_of(dataclasses.replace(record, **wrong))
    book.unloaded("policy", 10)
    record.adapter_floor = book.floor("policy")
    assert "11 was the oldest" in book.problem_of(record)
    record.adapter = ("policy", 10 + 2 * adapters.ONE_LIFE, digest)  # another life, with other version numbers
    assert book.problem_of(record) is None


@pytest.mark.parametrize("name", ["all", "rank_stabilized"])
def test_the_oracle_computes_what_peft_computes(name):
    model, directory = GOLDEN / "qwen3_tied", GOLDEN / "qwen3_tied" / "adapters" / name
    golden = json.loads((directory / "golden.json").read_text())
    described = json.loads((directory / "adapter_config.json").read_text())
    oracle = Oracle(json.loads((model / "config.json").read_text()), Rounding.FP32)
    ready = oracle.adapted(oracle.weights(weights.read_checkpoint(model)), described, weights.read_adapter(directory))
    for prompt in golden["prompts"]:
        logits = oracle.forward(Sequence(oracle), ready, prompt["ids"], 0)
        assert numpy.abs(logits - prompt["logits"]).max() < 1e-4
