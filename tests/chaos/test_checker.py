"""The checker finds the faults that it exists for: mutations of a correct record are refused."""

import dataclasses
import itertools
import json

import numpy
import pytest

from chaos import weights
from chaos.oracle import Oracle, Rounding, Sequence, log_softmax, tolerance
from chaos.replay import Record, Replay
from chaos.versions import EpochBook, ScoreBook, VersionBook, load_version

GOLDEN = weights.ROOT / "tests/data/golden"
CONFIGS = {"dense": weights.tiny_config(vocab_size=256), "hybrid": weights.tiny_hybrid_config(vocab_size=256)}
PAGE = 8
PROMPT_LEN, NUM_TOKENS = 13, 24


class Versions(dict):
    """{epoch: tensors}"""

    def __init__(self, config, tensors):
        super().__init__(tensors)
        self.config = config


@pytest.fixture(scope="module", params=CONFIGS.values(), ids=CONFIGS)
def versions(request):
    """Random weights of epochs 1, 2 and 3."""
    rng = numpy.random.default_rng(5)
    return Versions(request.param, {epoch: weights.random_tensors(request.param, rng) for epoch in (1, 2, 3)})


@pytest.fixture(scope="module")
def checker(versions):
    oracle = Oracle(versions.config, Rounding.FP32)
    ready = {f"d{epoch}": oracle.weights(tensors) for epoch, tensors in versions.items()}
    return Replay(oracle, ready.__getitem__, tolerance(versions.config, versions.values(), Rounding.FP32), PAGE)


def kv_digests(epochs):
    return {epoch: f"d{epoch}" for epoch in epochs}


def generated(versions, history, is_greedy=True, reset_at=None):
    """A record of a request as a correct engine would serve it, in float64. `history`: the epoch of
    each pass, the prompt's first, then one per further token. With `reset_at` the passes before
    that token are computed again under its epoch.
    """
    oracle = Oracle(versions.config, Rounding.EXACT)
    ready = {epoch: oracle.weights(tensors) for epoch, tensors in versions.items()}
    rng = numpy.random.default_rng(9)
    prompt = [int(each) for each in rng.integers(0, versions.config["vocab_size"], PROMPT_LEN)]
    record = Record("r", prompt, [], [], [], is_greedy=is_greedy, retractions=0 if reset_at is None else 1)
    sequence, kv = Sequence(oracle), []
    for number, epoch in enumerate(history):
        ids = (prompt + record.tokens)[sequence.length :]
        if number == reset_at:
            sequence, kv, ids = Sequence(oracle), [], prompt + record.tokens
        logprobs = log_softmax(oracle.forward(sequence, ready[epoch], ids, len(ids) - 1))[0]
        kv += [epoch] * len(ids)
        chosen = int(logprobs.argmax()) if is_greedy else int(rng.choice(len(logprobs), p=numpy.exp(logprobs)))
        record.tokens.append(chosen)
        record.logprobs.append(float(numpy.float32(logprobs[chosen])))
        span = (epoch, f"d{epoch}", 1, min(kv), max(kv))
        record.spans.append(span)
    record.spans = [(*key[:2], len(list(run)), *key[3:]) for key, run in itertools.groupby(record.spans)]
    return record


KEPT = [1] * 10 + [2] * 14  # an update in mid-request, the KV is kept


@pytest.mark.parametrize("name", ["qwen3_tied", "qwen3_moe_every_other", "qwen3_5"])
def test_the_oracle_computes_what_transformers_computes(name):
    config = json.loads((GOLDEN / name / "config.json").read_text())
    golden = json.loads((GOLDEN / name / "golden.json").read_text())
    oracle = Oracle(config, Rounding.FP32)
    ready = oracle.weights(weights.read_checkpoint(GOLDEN / name))
    for prompt in golden["prompts"]:
        logits = oracle.forward(Sequence(oracle), ready, prompt["ids"], 0)
        assert numpy.abs(logits[-1] - prompt["logits"][-1]).max() < 5e-5


def test_the_oracles_digests_are_those_of_the_definition():
    golden = json.loads((GOLDEN / "digests.json").read_text())["models"]
    for name in golden:
        tensors = weights.read_checkpoint(weights.MODELS / name)
        digests = {each: weights.tensor_digest(each, bits) for each, bits in tensors.items()}
        assert digests == golden[name]["tensors"]
        shapes = {each: bits.shape for each, bits in tensors.items()}
        assert weights.version_digest(shapes, digests) == golden[name]["digest"]


@pytest.mark.parametrize("is_greedy", [True, False])
@pytest.mark.parametrize(
    "history, reset_at",
    [([1] * 24, None), (KEPT, None), (KEPT, 10), (KEPT, 17), ([1] * 5 + [2] * 9 + [3] * 10, None)],
)
def test_the_records_of_a_right_engine_are_verified(versions, checker, is_greedy, history, reset_at):
    record = generated(versions, history, is_greedy, reset_at)
    verdict = checker.verify(record, kv_digests(versions))
    assert verdict.problem is None and not verdict.is_undecided, verdict
    assert verdict.num_verified == NUM_TOKENS


def test_a_prompt_whose_chunks_lie_on_both_sides_of_an_update_is_verified(versions, checker):
    oracle = Oracle(versions.config, Rounding.EXACT)
    record = generated(versions, [1] * NUM_TOKENS)
    sequence, logprobs = Sequence(oracle), []
    ids = record.prompt + record.tokens[:-1]
    oracle.forward(sequence, oracle.weights(versions[1]), ids[:9], 8)
    logits = oracle.forward(sequence, oracle.weights(versions[2]), ids[9:], PROMPT_LEN - 10)
    logprobs = log_softmax(logits)[numpy.arange(NUM_TOKENS), record.tokens]
    record = dataclasses.replace(record, logprobs=list(logprobs), is_greedy=False, spans=[(2, "d2", NUM_TOKENS, 1, 2)])
    verdict = checker.verify(record, kv_digests(versions))
    assert verdict.problem is None and verdict.num_verified == NUM_TOKENS, verdict


@pytest.mark.parametrize("is_seen", [True, False])
def test_a_version_that_nobody_saw_between_two_may_have_computed_a_chunk(versions, checker, is_seen):
    """The version's trainer died, and no token was sampled under it: only a gap in the epochs shows that it existed."""
    oracle = Oracle(versions.config, Rounding.EXACT)
    record = generated(versions, [1] * NUM_TOKENS)
    sequence, ids = Sequence(oracle), record.prompt + record.tokens[:-1]
    oracle.forward(sequence, oracle.weights(versions[1]), ids[:5], 4)
    oracle.forward(sequence, oracle.weights(versions[2]), ids[5:9], 3)
    logits = oracle.forward(sequence, oracle.weights(versions[3]), ids[9:], PROMPT_LEN - 10)
    logprobs = log_softmax(logits)[numpy.arange(NUM_TOKENS), record.tokens]
    record = dataclasses.replace(record, logprobs=list(logprobs), is_greedy=False, spans=[(3, "d3", NUM_TOKENS, 1, 3)])
    verdict = checker.verify(record, kv_digests((1, 2, 3) if is_seen else (1, 3)))
    assert verdict.problem is None and verdict.is_undecided != is_seen, verdict
    wrong = another_logprob(record)
    assert checker.verify(wrong, kv_digests(versions)).problem is not None
    assert checker.verify(wrong, kv_digests((1, 3))).is_undecided


def test_a_retraction_in_mid_run_is_found_however_many_there_may_be(versions, checker):
    record = generated(versions, [1] * 8 + [2] * 16, reset_at=15)
    assert checker.verify(record, kv_digests(versions)).problem is None
    record.retractions = 4  # as with a dialect that does not report retractions
    verdict = checker.verify(record, kv_digests(versions))
    assert verdict.problem is None and verdict.num_verified == NUM_TOKENS, verdict


def dropped_token(record):
    tokens, logprobs = list(record.tokens), list(record.logprobs)
    del tokens[6], logprobs[6]
    spans = [list(span) for span in record.spans]
    spans[0][2] -= 1
    return dataclasses.replace(record, tokens=tokens, logprobs=logprobs, spans=spans)


def one_more_under_the_old_version(record):
    first, second = record.spans
    return dataclasses.replace(
        record, spans=[(*first[:2], first[2] + 1, *first[3:]), (*second[:2], second[2] - 1, *second[3:])]
    )


def swapped_digest(record):
    return dataclasses.replace(record, spans=[(1, "d3", *record.spans[0][2:]), record.spans[1]])


def hidden_old_kv(record):
    """An engine that claims to have computed everything again, and has not."""
    second = record.spans[1]
    return dataclasses.replace(record, retractions=1, spans=[record.spans[0], (*second[:3], 2, 2)])


def old_kv_that_is_not_there(record):
    return dataclasses.replace(record, spans=[record.spans[0], (*record.spans[1][:3], 1, 2)])


def another_token(record):
    return dataclasses.replace(record, tokens=[*record.tokens[:9], (record.tokens[9] + 1) % 256, *record.tokens[10:]])


def another_logprob(record):
    return dataclasses.replace(
        record, logprobs=[*record.logprobs[:9], record.logprobs[9] + 0.001, *record.logprobs[10:]]
    )


def a_token_twice(record):
    first, second = record.spans
    return dataclasses.replace(
        record,
        tokens=[record.tokens[0], *record.tokens],
        logprobs=[record.logprobs[0], *record.logprobs],
        spans=[(*first[:2], first[2] + 1, *first[3:]), second],
    )


def an_older_epoch_after_a_newer(record):
    return dataclasses.replace(record, spans=record.spans[::-1])


@pytest.mark.parametrize(
    "mutation",
    [
        dropped_token,
        one_more_under_the_old_version,
        swapped_digest,
        hidden_old_kv,
        another_token,
        another_logprob,
        a_token_twice,
        an_older_epoch_after_a_newer,
    ],
)
def test_a_mutation_of_a_right_record_is_found(versions, checker, mutation):
    record = mutation(generated(versions, KEPT))
    verdict = checker.verify(record, kv_digests(versions))
    assert verdict.problem is not None, verdict


def test_old_kv_that_was_computed_again_is_found(versions, checker):
    record = old_kv_that_is_not_there(generated(versions, KEPT, reset_at=10))
    assert checker.verify(record, kv_digests(versions)).problem is not None


def scored(versions, cut=None, score_start=1, ids=()):
    """A prompt's scores under version 2; its first `cut` positions were computed under version 1."""
    oracle = Oracle(versions.config, Rounding.EXACT)
    prompt = [int(each) for each in numpy.random.default_rng(3).integers(0, versions.config["vocab_size"], 40)]
    sequence, logits = Sequence(oracle), []
    for epoch, part in ((1, prompt[:cut] if cut else []), (2, prompt[cut or 0 : -1])):
        if part:
            logits.append(oracle.forward(sequence, oracle.weights(versions[epoch]), part, 0))
    logprobs = log_softmax(numpy.concatenate(logits))[score_start - 1 :]
    record = Record("s", prompt, [], [(2, "d2", 0, 2, 2)], score_start=score_start, score_ids=list(ids))
    record.scores = [float(row[token]) for row, token in zip(logprobs, prompt[score_start:])]
    record.ids_scores = [float(row[token]) for row in logprobs for token in ids]
    return record


@pytest.mark.parametrize("ids", [(), (3, 9)])
@pytest.mark.parametrize("score_start", [1, 17, 39, 40])
def test_the_scores_of_a_right_engine_are_verified(versions, checker, score_start, ids):
    verdict = checker.verify(scored(versions, score_start=score_start, ids=ids), kv_digests(versions))
    assert verdict.problem is None and verdict.num_scored == 40 - score_start, verdict


@pytest.mark.parametrize("score_start", [1, 30])
@pytest.mark.parametrize("cut", [1, 20, 38])
def test_scores_of_two_versions_that_are_told_as_one_are_found(versions, checker, cut, score_start):
    verdict = checker.verify(scored(versions, cut, score_start), kv_digests(versions))
    assert "the score of prompt token" in verdict.problem, verdict


def test_scores_over_older_kv_are_found_by_their_span(versions, checker):
    record = dataclasses.replace(scored(versions, 20), spans=[(2, "d2", 0, 1, 2)])
    assert "over KV of [1, 2]" in checker.verify(record, kv_digests(versions)).problem


def test_scores_that_are_missing_or_of_no_version_are_found(versions, checker):
    record = scored(versions)
    few = dataclasses.replace(record, scores=record.scores[1:])
    assert "38 scores of 39" in checker.verify(few, kv_digests(versions)).problem
    unnamed = dataclasses.replace(record, spans=[])
    assert "no version" in checker.verify(unnamed, kv_digests(versions)).problem


def test_a_bit_that_differs_between_two_scorings_is_found(versions):
    book, record = ScoreBook(), scored(versions)
    assert book.see(record) is None and book.see(scored(versions, score_start=30)) is None
    assert book.num_compared == 10
    other = dataclasses.replace(record, scores=list(record.scores))
    other.scores[12] = float(numpy.nextafter(numpy.float32(other.scores[12]), numpy.float32(0)))
    assert "prompt token 13 " in book.see(other)
    elsewhere = dataclasses.replace(other, spans=[(3, "d3", 0, 3, 3)])
    assert book.see(elsewhere) is None and book.prompts_of("d3", 4) == [record.prompt]


def test_a_version_that_nobody_sent_is_found(versions, checker):
    record = generated(versions, [1] * NUM_TOKENS)
    record.spans = [(1, "unknown", *record.spans[0][2:])]
    assert "nobody sent" in checker.verify(record, {}).problem


@pytest.mark.parametrize("layer", range(3))
def test_a_pass_with_one_tensor_of_another_version_is_found(versions, checker, layer):
    """A mixed pass: the smallest tensor of a layer is still the old version's."""
    name = f"model.layers.{layer}.self_attn.q_norm.weight"
    if weights.is_linear(versions.config, layer):
        name = f"model.layers.{layer}.linear_attn.dt_bias"
    mixed = Versions(versions.config, {**versions, 2: {**versions[2], name: versions[1][name]}})
    record = generated(mixed, KEPT)
    assert checker.verify(record, kv_digests(versions)).problem is not None


def test_an_epoch_is_one_version_for_ever():
    epochs = EpochBook()
    assert epochs.see(2, "a") is None and epochs.see(2, "a") is None
    assert "was a and is now b" in epochs.see(2, "b")


def test_the_version_of_a_partial_update_is_found_by_its_digest(tmp_path, versions):
    book = VersionBook(tmp_path)
    base = book.add(versions[1])
    assert book.knows(base) and not book.knows("0" * 32)
    changes = {name: versions[2][name] for name in list(versions[2])[:4]}
    book.add_partial(changes)
    whole = {**versions[1], **changes}
    digests = {name: weights.tensor_digest(name, bits) for name, bits in whole.items()}
    digest = weights.version_digest({name: bits.shape for name, bits in whole.items()}, digests)
    assert book.knows(digest)
    loaded = load_version(tmp_path, digest)
    assert all((loaded[name] == bits).all() for name, bits in whole.items())


def test_the_version_of_calls_without_a_session_is_found_by_its_digest_and_a_half_is_not(tmp_path, versions):
    book = VersionBook(tmp_path)
    base, names = book.add(versions[1]), list(versions[2])[:4]
    assert book.knows(base)
    parts = [{name: versions[2][name]} for name in names]
    book.calls.register("t", [book.keys_of(part) for part in parts])

    def write(at, what, **event):
        with open(book.calls.path, "a") as file:
            file.write(json.dumps({"at": at, "who": "t", "what": what, **event}) + "\n")

    def digest_of(*numbers):
        whole = {**versions[1], **{name: versions[2][name] for name in (names[each] for each in numbers)}}
        digests = {name: weights.tensor_digest(name, bits) for name, bits in whole.items()}
        return weights.version_digest({name: bits.shape for name, bits in whole.items()}, digests)

    for number in (0, 1):
        write(number, "sent", call=number)
        write(number + 0.5, "collected", call=number)
    assert not book.knows(digest_of(0, 1)), "nobody has published it"
    write(2, "publishes")
    write(3, "published", is_continue=True)
    for number in (2, 3):  # two updates; the result of the first was never seen
        write(3 + number, "sent", call=number)
        write(3.5 + number, "alone", call=number)
    assert not book.knows(digest_of(0)) and not book.knows(digest_of(1))
    assert not book.knows(digest_of(0, 2))
    assert book.knows(digest_of(0, 1, 2)) and book.knows(digest_of(0, 1, 2, 3))


def test_two_partial_updates_of_which_nobody_saw_the_first_are_known(versions, tmp_path):
    book = VersionBook(tmp_path / "versions")
    base = book.add(versions[1])
    assert book.knows(base)
    names = sorted(versions[1])[:4]

    def digest_of(*changed):
        whole = {**versions[1], **{name: versions[2][name] for name in changed}}
        digests = {name: weights.tensor_digest(name, bits) for name, bits in whole.items()}
        return weights.version_digest({name: bits.shape for name, bits in whole.items()}, digests)

    for part in (names[:2], names[2:]):
        book.add_partial({name: versions[2][name] for name in part})
    assert not book.knows(digest_of(names[0])), "half an update"
    assert not book.knows(digest_of(*names[1:]))
    assert book.knows(digest_of(*names)) and book.knows(digest_of(*names[:2]))
