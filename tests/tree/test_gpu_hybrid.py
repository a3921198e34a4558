"""A hybrid model on the GPU in software: the same tokens as on the CPU, and the promises that recurrent state
could break."""

import random
import sys

import numpy
import pytest

from gpu_tree import CUDA, gpu, needs_gpu  # noqa: F401
from hybrid_model import DECAY, VOCAB, as_published, tensors, write_hybrid
from process_tree import ROOT
from weights_sources import digest_of, raw_source, refused

sys.path.insert(0, str(ROOT / "client/python"))

import pitstop  # noqa: E402  (after the path)

pytestmark = needs_gpu
PAGE = 16
NUM = 10  # tokens
FIELDS = {"ignore_eos": True, "logprobs": {"enabled": True}, "skip_special_tokens": False, "max_new_tokens": NUM}
GREEDY = {"temperature": 0.0, **FIELDS}
ERROR = 2e-3  # of logprobs in fp32, as in gpu_engine_test.cpp
FLAGS = ("--page-size", PAGE, "--chunked-prefill-size", 32, "--deterministic")


@pytest.fixture(scope="module")
def old(tmp_path_factory):
    return write_hybrid(tmp_path_factory.mktemp("models") / "old", tensors(1))


def words(seed, num):
    drawn = random.Random(seed)
    return [drawn.randrange(3, VOCAB - 3) for _ in range(num)]


PROMPTS = [words(1, 5), words(2, 40), words(3, 17), words(4, 1), words(5, 70)]


def bits(output):
    return output.tokens, output.logprobs


@pytest.fixture(params=[("fp32", 1, "random"), ("bf16", 1, "late"), ("bf16", 2, "random")], ids=["fp32", "bf16", "tp2"])
def tree(request, gpu, start_tree, old):
    compute, tp, policy = request.param
    gpu(policy=policy)
    return start_tree(*CUDA, "--model", old, "--compute", compute, "--tp", tp, "--all-reduce", "own", *FLAGS)


@pytest.fixture
def client(tree):
    with pitstop.Client(tree.run_dir) as client:
        yield client


@pytest.mark.parametrize("tp", [1, 2])
def test_fp32_gives_the_cpus_tokens(gpu, start_tree, old, tp):
    outputs = []
    for flags in (("--device", "cpu"), (*CUDA, "--tp", tp, "--all-reduce", "own")):
        tree = start_tree("--model", old, "--compute", "fp32", "--page-size", PAGE, *flags)
        with tree.door() as door:
            outputs.append(door.finish([door.start(prompt, **GREEDY) for prompt in PROMPTS]))
        tree.stop()
    for on_cpu, on_gpu in zip(*outputs):
        assert on_gpu.tokens == on_cpu.tokens
        assert numpy.abs(numpy.array(on_gpu.logprobs) - on_cpu.logprobs).max() < ERROR


def test_P6_batches_chunks_turns_and_scores_change_nothing(tree, client):
    with tree.door() as door:
        alone = []
        for prompt in PROMPTS:
            client.flush_cache()
            alone.append(door.generate(prompt, **GREEDY))
        assert len({tuple(output.tokens) for output in alone}) == len(PROMPTS)
        client.flush_cache()
        together = door.finish([door.start(prompt, **GREEDY) for prompt in PROMPTS])
        assert list(map(bits, together)) == list(map(bits, alone))

        # The same prompt, and the next turn, continue from a checkpoint.
        again = door.generate(PROMPTS[-1], **GREEDY)
        assert bits(again) == bits(alone[-1]) and again.counts["cached_tokens"] == 64
        turn = PROMPTS[-1] + again.tokens + words(6, 20)
        continued = door.generate(turn, **GREEDY)
        client.flush_cache()
        anew = door.generate(turn, **GREEDY)
        assert bits(continued) == bits(anew)
        assert continued.counts["cached_tokens"] > anew.counts["cached_tokens"] == 0
    score = {"logprobs": {"enabled": True, "prompt_start": 0}, "max_new_tokens": 0, "temperature": 0.0}
    client.flush_cache()
    scored = client.generate(turn + anew.tokens, **score).result()
    assert scored.prompt.logprobs[-NUM:] == anew.logprobs


def test_P4_P8_pauses_and_released_memory_change_nothing(tree, client):
    with tree.door() as door, tree.door("admin") as admin:
        undisturbed = door.generate(PROMPTS[1], **GREEDY)
        for mode in ("in_place", "retract"):
            client.flush_cache()
            rid = door.start(PROMPTS[1], **GREEDY)
            while len(door.outputs[rid].tokens) < 3:
                door.step()
            assert admin.call("pause_generation", mode=mode)["ok"]
            if mode == "retract":
                released = admin.call("release_memory", keep_weights=True)
                assert released["ok"] and admin.call("resume_memory")["ok"], released
            assert admin.call("continue_generation")["ok"]
            assert bits(door.finish([rid])[0]) == bits(undisturbed), mode


@pytest.mark.parametrize("kv", ["recompute", "keep"])
def test_P3_updates_under_load(gpu, start_tree, old, place, kv):
    gpu(policy="random")
    new = write_hybrid(place / "new", tensors(2))
    tree = start_tree(*CUDA, "--model", old, *FLAGS)
    with pitstop.Client(tree.run_dir) as client, tree.door() as door:
        before = door.generate(PROMPTS[1], **GREEDY)
        rid = door.start(PROMPTS[1], **{**GREEDY, "max_new_tokens": 40})
        while len(door.outputs[rid].tokens) < 3:
            door.step()
        client.update_weights(str(new), kv_policy=kv)
        (output,) = door.finish([rid])
        versions = [(span["epoch"], span["kv_min_epoch"]) for span in output.spans for _ in range(span["tokens"])]
        num_old = versions.count((1, 1))
        expected = (2, 1 if kv == "keep" else 2)
        assert len(output.tokens) == 40 and versions == [(1, 1)] * num_old + [expected] * (40 - num_old), versions
        assert 3 <= num_old < 40
        after = door.generate(PROMPTS[1], **GREEDY)
        assert after.tokens != before.tokens
        if kv == "keep":  # no KV of the old weights is shared; recomputed KV is
            assert after.counts["cached_tokens"] == 0
        client.flush_cache()
        assert bits(door.generate(PROMPTS[1], **GREEDY)) == bits(after)
        if kv == "recompute":  # the rest is what the new weights generate after the tokens so far
            whole = PROMPTS[1] + output.tokens[:num_old]
            rest = door.generate(whole, **{**GREEDY, "max_new_tokens": 40 - num_old})
            assert bits(rest) == (output.tokens[num_old:], output.logprobs[num_old:])
        client.rollback_weights()
        assert bits(door.generate(PROMPTS[1], **GREEDY)) == bits(before)


def test_P10_digests_are_the_cpus_however_weights_come(gpu, start_tree, old, place):
    gpu(policy="random")
    new = write_hybrid(place / "new", tensors(2))
    decay = {DECAY: numpy.float32([-1, -2, -3, -4])}
    digests = []
    for flags in (("--device", "cpu"), CUDA):
        tree = start_tree("--model", old, *flags)
        with pitstop.Client(tree.run_dir) as client:
            found = [digest_of(client), client.update_weights(str(new))["digest"]]
            client.rollback_weights()
            found.append(client.update_weights(source=raw_source(as_published(tensors(2))))["digest"])
            found.append(client.update_weights(source=raw_source(decay), partial=True)["digest"])
            bad = {DECAY: numpy.float32([-1, numpy.inf, -3, -4])}
            assert "A_log" in refused(client.update_weights, source=raw_source(bad), partial=True).message
            digests.append(found)
        tree.stop()
    assert digests[0] == digests[1] and digests[0][1] == digests[0][2]
