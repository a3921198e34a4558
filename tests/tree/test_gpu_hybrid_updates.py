"""Updates of a hybrid model on the GPU in software: each kv_policy and each --update-mode, a restart with the committed
version, and the families with experts. No state of other weights is continued.
"""

import json
import shutil
import sys

import numpy
import pytest

from expert_model import rounded
from gpu_tree import CUDA, gpu, needs_gpu  # noqa: F401
from hybrid_model import VOCAB
from pairs import hybrid_pair
from process_tree import ROOT
from test_bad_models import header_of, write_safetensors
from test_gpu_hybrid import FLAGS, GREEDY, PAGE, PROMPTS, bits, words
from test_keep_committed import wait_kept
from test_restart import crash, serving
from weights_sources import digest_of

sys.path.insert(0, str(ROOT / "client/python"))

import pitstop  # noqa: E402  (after the path)

pytestmark = needs_gpu
LONG = {**GREEDY, "max_new_tokens": 40}
ERROR = 2e-3  # of logprobs in fp32, as in gpu_engine_test.cpp


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    return hybrid_pair(tmp_path_factory.mktemp("models"))


def begun(door, prompt=PROMPTS[1]):
    """A request that has some tokens."""
    rid = door.start(prompt, **LONG)
    while len(door.outputs[rid].tokens) < 3:
        door.step()
    return rid


@pytest.mark.parametrize("policy", ["drain", "abort"])
def test_P3_P4_P9_running_requests_end_before_an_update_that_drains_or_aborts(gpu, start_tree, models, policy):
    tree = start_tree(*CUDA, "--model", models.old, *FLAGS)
    with pitstop.Client(tree.run_dir) as client, tree.door() as door:
        whole = door.generate(PROMPTS[1], **LONG)
        rid = begun(door)
        assert client.update_weights(models.new, kv_policy=policy)["ok"]
        (output,) = door.finish([rid])
        assert {span["epoch"] for span in output.spans} == {1}
        if policy == "drain":
            assert bits(output) == bits(whole)
        else:
            num = len(output.tokens)
            assert output.finish["reason"] == "abort" and 3 <= num < 40
            assert output.tokens == whole.tokens[:num] and output.logprobs == whole.logprobs[:num]
        after = door.generate(PROMPTS[1], **LONG)
        assert after.counts["cached_tokens"] == 0 and after.tokens != whole.tokens
        again = door.generate(PROMPTS[1], **LONG)
        assert bits(again) == bits(after) and again.counts["cached_tokens"] == (len(PROMPTS[1]) - 1) // PAGE * PAGE
        client.rollback_weights()
        assert bits(door.generate(PROMPTS[1], **LONG)) == bits(whole)


@pytest.mark.parametrize("mode", ["host", "lend", "direct"])
def test_P1_P2_P3_P10_each_update_mode_beside_a_running_request(gpu, start_tree, models, mode):
    flags = () if mode == "direct" else ("--update-mode", mode)
    tree = start_tree(*CUDA, "--model", models.old, *FLAGS, *flags)
    spec = {"kv_policy": "recompute"} | ({"mode": "direct"} if mode == "direct" else {})
    with pitstop.Client(tree.run_dir) as client, tree.door() as door:
        if flags:
            assert client.status()["replicas"][0]["workers"][0]["update_mode"] == mode
        before = door.generate(PROMPTS[1], **LONG)
        rid = begun(door)
        reply = client.update_weights(models.new, **spec)
        assert reply["digest"] == models.new_digest == digest_of(client)
        (output,) = door.finish([rid])
        versions = [(span["epoch"], span["kv_min_epoch"]) for span in output.spans for _ in range(span["tokens"])]
        num_old = versions.count((1, 1))
        assert versions == [(1, 1)] * num_old + [(2, 2)] * (40 - num_old) and 3 <= num_old < 40, versions
        after = door.generate(PROMPTS[1], **LONG)
        assert after.tokens != before.tokens
        client.flush_cache()
        # The rest is what the new weights generate after the tokens so far.
        rest = door.generate(PROMPTS[1] + output.tokens[:num_old], **{**LONG, "max_new_tokens": 40 - num_old})
        assert bits(rest) == (output.tokens[num_old:], output.logprobs[num_old:])
        assert client.update_weights(models.old, **spec)["digest"] == models.old_digest
        assert bits(door.generate(PROMPTS[1], **LONG)) == bits(before)


def test_P2_P10_a_restart_serves_the_version_that_was_committed_last(gpu, start_tree, models, place):
    tree = start_tree(*CUDA, "--model", models.old, *FLAGS, "--restart", "--keep-committed", place / "kept")
    with pitstop.Client(tree.run_dir) as client, tree.door() as door:
        before = door.generate(PROMPTS[1], **GREEDY)
        assert client.update_weights(models.new)["digest"] == models.new_digest
        after = door.generate(PROMPTS[1], **GREEDY)
        assert after.tokens != before.tokens
    path = wait_kept(tree.door("admin"), 2)
    assert header_of(path / "model.safetensors")[0]["model.layers.0.linear_attn.A_log"]["dtype"] == "F32"
    _, door, admin = crash(tree)
    assert serving(admin)["digest"] == models.new_digest
    assert bits(door.generate(PROMPTS[1], **GREEDY)) == bits(after)


def widened(golden, place):
    """A golden model with a vocabulary as long as the bundled tokenizer's, of random rows."""
    model = shutil.copytree(ROOT / "tests/data/golden" / golden, place / golden)
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(ROOT / "launch/models/stories" / name, model)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "vocab_size": VOCAB, "eos_token_id": VOCAB - 1}))
    header, body = header_of(model / "model.safetensors")
    random = numpy.random.default_rng(3)
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        if name not in header:
            continue
        begin = len(body)
        body += rounded(random.normal(0, 1, (VOCAB, config["hidden_size"]))).tobytes()
        header[name] |= {"shape": [VOCAB, config["hidden_size"]], "data_offsets": [begin, len(body)]}
    write_safetensors(model / "model.safetensors", *packed(header, body))
    return model


def packed(header, body):
    """Packs the tensors without gaps."""
    made, parts, end = {}, [], 0
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        part = body[slice(*entry["data_offsets"])]
        made[name] = {**entry, "data_offsets": [end, end + len(part)]}
        parts.append(part)
        end += len(part)
    return made, b"".join(parts)


@pytest.mark.parametrize("golden", ["qwen3_next", "qwen3_5_moe"])
def test_P6_hybrids_with_experts_give_the_cpus_tokens_in_any_batch(gpu, start_tree, place, golden):
    model = widened(golden, place)
    fields = {**GREEDY, "logprobs": {"enabled": True}}
    outputs = []
    for flags in (("--device", "cpu", "--page-size", PAGE), (*CUDA, *FLAGS)):
        tree = start_tree("--model", model, "--compute", "fp32", *flags)
        with pitstop.Client(tree.run_dir) as client, tree.door() as door:
            together = door.finish([door.start(prompt, **fields) for prompt in PROMPTS])
            client.flush_cache()
            assert bits(door.generate(PROMPTS[-1], **fields)) == bits(together[-1])
            turn = PROMPTS[-1] + together[-1].tokens + words(6, 20)
            continued = door.generate(turn, **fields)
            client.flush_cache()
            anew = door.generate(turn, **fields)
            assert (
                bits(continued) == bits(anew) and continued.counts["cached_tokens"] > anew.counts["cached_tokens"] == 0
            )
            outputs.append([*together, anew])
        tree.stop()
    for on_cpu, on_gpu in zip(*outputs):
        assert on_gpu.tokens == on_cpu.tokens
        assert numpy.abs(numpy.array(on_gpu.logprobs) - on_cpu.logprobs).max() < ERROR
