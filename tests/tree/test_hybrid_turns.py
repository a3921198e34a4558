"""A hybrid model on real trees continues from checkpoints of its state. Turns of a conversation and
samples of a prompt are computed once, with the bits of a tree with an empty cache; and scoring
gives the bits of sampling.
"""

import random
import sys

import pytest

from hybrid_model import VOCAB, tensors, write_hybrid
from process_tree import ROOT

sys.path.insert(0, str(ROOT / "client" / "python"))
import pitstop  # noqa: E402  (after the path)

PAGE = 16
NUM_NEW = 40
ENDLESS = {"ignore_eos": True, "logprobs": {"enabled": True}, "skip_special_tokens": False}
GREEDY = {"temperature": 0.0, "max_new_tokens": NUM_NEW, **ENDLESS}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_hybrid(tmp_path_factory.mktemp("models") / "hybrid", tensors(1))


@pytest.fixture(params=[1, 2], ids=["tp1", "tp2"])
def tree(request, start_tree, model):
    flags = ("--compute", "fp32", "--chunked-prefill-size", 64, "--page-size", PAGE)
    return start_tree("--model", model, "--tp", request.param, *flags)


@pytest.fixture
def client(tree):
    with pitstop.Client(tree.run_dir) as client:
        yield client


def words(seed, num):
    drawn = random.Random(seed)
    return [drawn.randrange(3, VOCAB - 3) for _ in range(num)]


def checkpoints(client):
    return client.status()["replicas"][0]["checkpoints"]


def converse(tree, before_turn):
    """(length of the history, output) of each turn."""
    history, turns = [], []
    for turn in range(7):
        before_turn()
        prompt = history + words(turn, 50 + 9 * turn)
        with tree.door() as door:
            output = door.generate(prompt, **GREEDY)
        turns.append((len(history), output))
        history = prompt + output.tokens
    return turns


def bits(outputs):
    return [(output.tokens, output.logprobs) for output in outputs]


def test_P6_a_turn_continues_from_the_state_after_the_turn_before(tree, client):
    anew = converse(tree, before_turn=client.flush_cache)
    assert all(output.counts["cached_tokens"] == 0 for _, output in anew)
    client.flush_cache()
    turns = converse(tree, before_turn=lambda: None)
    assert bits(output for _, output in turns) == bits(output for _, output in anew)
    for num_before, output in turns[1:]:
        assert output.counts["cached_tokens"] == (num_before - 1) // PAGE * PAGE, "up to the page of the last token"
        assert output.counts.get("replayed_tokens", 0) == 0
    assert checkpoints(client)["restored_total"] == len(turns) - 1


def test_P6_samples_of_a_prompt_compute_it_once(tree, client):
    prompt = words(11, 403)
    draws = [{"temperature": 1.0, "seed": seed, "max_new_tokens": NUM_NEW, **ENDLESS} for seed in range(16)]
    with tree.door() as door:
        alone = []
        for draw in draws:
            client.flush_cache()
            alone.append(door.generate(prompt, **draw))
        assert len({tuple(output.tokens) for output in alone}) == len(draws)
        client.flush_cache()
        together = door.finish([door.start(prompt, **draw) for draw in draws])
    assert bits(together) == bits(alone)
    cached = sorted(output.counts["cached_tokens"] for output in together)
    assert cached == [0] + 15 * [(len(prompt) - 1) // PAGE * PAGE]


def test_P6_requests_that_branch_off_replay_what_they_share_once(tree, client):
    stem = words(21, 200)
    prompts = [stem + words(30 + i, 40) for i in range(6)]
    with tree.door() as door:
        alone = []
        for prompt in prompts:
            client.flush_cache()
            alone.append(door.generate(prompt, **GREEDY))
        client.flush_cache()
        outputs = [door.generate(prompt, **GREEDY) for prompt in prompts]
    assert bits(outputs) == bits(alone)
    shared = len(stem) // PAGE * PAGE
    assert [output.counts["cached_tokens"] for output in outputs] == [0, 0] + 4 * [shared]
    assert [output.counts.get("replayed_tokens", 0) for output in outputs] == [0, shared, 0, 0, 0, 0]
    assert checkpoints(client)["replayed_tokens_total"] == shared


def test_P9_a_state_is_not_restored_after_an_update(tree, client, place):
    prompt = words(41, 200)
    with tree.door() as door:
        old = door.generate(prompt, **GREEDY)
        client.update_weights(str(write_hybrid(place / "new", tensors(2))))
        new = door.generate(prompt, **GREEDY)
        assert new.counts["cached_tokens"] == 0
        assert bits([door.generate(prompt, **GREEDY)]) == bits([new]) != bits([old])
        client.rollback_weights()
        assert bits([door.generate(prompt, **GREEDY)]) == bits([old])


def test_P8_released_memory_takes_the_checkpoints_with_it(tree, client):
    prompt = words(51, 200)
    ask = lambda door: door.generate(prompt, **GREEDY)
    with tree.door() as door:
        first, again = ask(door), ask(door)
        assert first.counts["cached_tokens"] == 0 and again.counts["cached_tokens"] == (len(prompt) - 1) // PAGE * PAGE
        client.release_memory(["kv_cache"])
        client.resume_memory(["kv_cache"])
        fresh = ask(door)
        assert fresh.counts["cached_tokens"] == 0
    assert bits([first]) == bits([again]) == bits([fresh])


def scores(door, tokens):
    """The logprob of each token but the first."""
    output = door.generate(tokens, max_new_tokens=0, logprobs={"enabled": True, "prompt_start": 1}, temperature=0.0)
    return next(chunk["prompt"]["logprobs"] for chunk in output.chunks if "prompt" in chunk)


@pytest.mark.parametrize("chunk", [7, 512])
def test_P6_scoring_gives_the_logprobs_of_sampling(tree, client, start_tree, model, chunk):
    """Sampling may begin with a whole prompt, in chunks, after a checkpoint, next to other requests, or be retracted."""
    draws = [GREEDY] + [{"temperature": 1.0, "seed": seed, "max_new_tokens": NUM_NEW, **ENDLESS} for seed in range(5)]
    stem = words(61, 180)
    prompts = [stem + words(70 + number, 3 + 17 * number) for number in range(len(draws))]
    sampled = []  # (tokens of prompt and output, logprobs of the output)
    with tree.door() as door:
        first = door.finish([door.start(prompt, **draw) for prompt, draw in zip(prompts, draws)])
        turns = [prompt + output.tokens + words(5, 20) for prompt, output in zip(prompts, first)]
        rids = [door.start(turn, **draw) for turn, draw in zip(turns, draws)]
        while not door.outputs[rids[0]].tokens:
            door.step()
        client.pause("retract")
        client.continue_generation()
        second = door.finish(rids)
        assert all(output.counts["cached_tokens"] > 0 for output in second)
        for prompt, output in [*zip(prompts, first), *zip(turns, second)]:
            sampled.append((prompt + output.tokens, output.logprobs))
        here = [scores(door, tokens) for tokens, _ in sampled]
    tp = len(client.status()["replicas"][0]["workers"])
    flags = ("--compute", "fp32", "--chunked-prefill-size", chunk, "--page-size", 8)
    other = start_tree("--model", model, "--tp", tp, *flags)
    with other.door() as door:
        there = [scores(door, tokens) for tokens, _ in sampled]
    for (_, logprobs), mine, theirs in zip(sampled, here, there):
        assert mine[-len(logprobs) :] == logprobs, "the same tree"
        assert theirs == mine, "another one, with other chunks and pages"


def test_checkpoints_are_as_many_and_as_close_as_flags_say(start_tree, model):
    stem = words(81, 300)
    ends = [words(90 + number, 20) for number in range(6)]
    flags = ("--model", model, "--compute", "fp32", "--page-size", PAGE, "--chunked-prefill-size", 64)
    few = start_tree(*flags, "--state-checkpoints", 5, "--state-checkpoint-tokens", 64)
    with pitstop.Client(few.run_dir) as client, few.door() as door:
        assert checkpoints(client)["places_total"] == 5
        door.generate(stem, **GREEDY)
        branch = door.generate(stem[:250] + ends[0], **GREEDY)
        assert branch.counts["cached_tokens"] == 192, "of the states after 64, 128, 192, ... tokens"
        for end in ends:
            door.generate(stem[:250] + end, **GREEDY)
        assert checkpoints(client)["evicted_total"] > 0
    many = start_tree(*flags)
    with pitstop.Client(many.run_dir) as client, many.door() as door:
        assert checkpoints(client)["places_total"] > 5
        door.generate(stem, **GREEDY)
        branch = door.generate(stem[:250] + ends[0], **GREEDY)
        assert branch.counts["cached_tokens"] == 0 and branch.counts["replayed_tokens"] == 240
