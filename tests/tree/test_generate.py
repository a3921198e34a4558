"""Text for a prompt: against the reference, in pieces and whole."""

import pytest

from wire import Refused

TREE_FLAGS = ("--compute", "fp32")
GREEDY = {"temperature": 0.0, "ignore_eos": True, "skip_special_tokens": False}


def test_greedy_output_is_the_references(door, reference):
    for case in reference["stories"]["greedy"]:
        output = door.generate(case["prompt"], max_new_tokens=64, **GREEDY)
        assert output.tokens == case["continuation"], case["prompt"]
        assert output.text == case["text"]
        assert output.finish["reason"] == "length"
        counts = output.counts
        assert counts["prompt_tokens"] == len(case["ids"])
        assert counts["completion_tokens"] == 64


def test_a_prompt_of_tokens_is_the_same_as_its_text(door, reference):
    case = reference["stories"]["greedy"][0]
    output = door.generate(case["ids"], max_new_tokens=64, **GREEDY)
    assert output.tokens == case["continuation"]


def test_logprobs_are_the_references(door, reference):
    case = reference["stories"]["greedy"][0]
    output = door.generate(case["prompt"], max_new_tokens=64, logprobs={"enabled": True, "top": 3}, **GREEDY)
    assert output.logprobs == pytest.approx(case["logprobs"], abs=2e-3)
    top = [entry for chunk in output.chunks for entry in chunk["top_ids"]]
    assert top[::3] == case["continuation"], "the likeliest token is the greedy one"


def test_pieces_join_to_the_whole(door, reference):
    case = reference["stories"]["greedy"][1]
    for _ in range(100):  # until the text came in pieces: unread pieces are joined
        pieces = door.generate(case["prompt"], max_new_tokens=64, **GREEDY)
        assert pieces.text == case["text"]
        if len(pieces.chunks) > 10:
            break
    whole = door.generate(case["prompt"], max_new_tokens=64, stream=False, **GREEDY)
    assert len(pieces.chunks) > 10
    assert len(whole.chunks) == 1
    assert pieces.text == whole.text == case["text"]
    assert pieces.tokens == whole.tokens


def test_P3_every_token_has_its_version(door):
    output = door.generate("The king", max_new_tokens=20, logprobs={"enabled": True}, **GREEDY)
    assert len(output.tokens) == len(output.logprobs) == 20
    assert sum(span["tokens"] for span in output.spans) == 20
    for chunk in output.chunks:
        assert sum(span["tokens"] for span in chunk.get("spans", [])) == len(chunk["tokens"])
    for span in output.spans:
        assert span["kv_min_epoch"] <= span["kv_max_epoch"] <= span["epoch"]


def test_without_text_output_there_are_tokens_only(door, reference):
    case = reference["stories"]["greedy"][0]
    output = door.generate(case["prompt"], max_new_tokens=8, text_output=False, **GREEDY)
    assert output.tokens == case["continuation"][:8]
    assert output.text == ""


def test_a_stop_text_ends_the_output_before_it(door, reference):
    case = reference["stories"]["greedy"][0]
    stop = "outside and play"  # several tokens
    assert stop in case["text"]
    output = door.generate(case["prompt"], max_new_tokens=64, stop=[stop], **GREEDY)
    assert output.text == case["text"].split(stop)[0]
    assert output.finish["reason"] == "stop"
    assert output.finish["matched_text"] == stop
    kept = door.generate(case["prompt"], max_new_tokens=64, stop=[stop], no_stop_trim=True, **GREEDY)
    assert kept.text == case["text"].split(stop)[0] + stop


def test_a_stop_token_ends_the_output(door, reference):
    case = reference["stories"]["greedy"][0]
    token = case["continuation"][6]
    output = door.generate(case["prompt"], max_new_tokens=64, stop_token_ids=[token], **GREEDY)
    first = case["continuation"].index(token)
    assert output.tokens[:first] == case["continuation"][:first]
    assert output.finish["reason"] == "stop"
    assert output.finish["matched_token"] == token


def test_the_same_seed_draws_the_same_and_another_does_not(door):
    def draw(seed):
        return door.generate("Once", max_new_tokens=32, temperature=1.0, seed=seed).tokens

    assert draw(7) == draw(7)
    assert draw(7) != draw(8)


def test_prompt_logprobs_are_those_of_sampling(door, reference):
    """P6: scoring gives the bits of sampling."""
    case = reference["stories"]["greedy"][2]
    sampled = door.generate(case["prompt"], max_new_tokens=32, logprobs={"enabled": True}, **GREEDY)
    ids = case["ids"] + sampled.tokens
    scored = door.generate(
        ids,
        max_new_tokens=1,
        logprobs={"enabled": True, "prompt_start": len(case["ids"])},
        **GREEDY,
    )
    prompt = next(chunk["prompt"] for chunk in scored.chunks if "prompt" in chunk)
    assert prompt["start"] == len(case["ids"])
    assert prompt["logprobs"] == sampled.logprobs


def test_a_prompt_longer_than_the_context_is_refused_at_once(door):
    limit = door.hello["context_len"]
    with pytest.raises(Refused, match=str(limit)) as refused:
        door.generate([1] * (limit + 1), max_new_tokens=1)
    assert refused.value.code == "invalid_argument" or refused.value.code == "too_large"
    assert door.generate([1] * 8, max_new_tokens=1).finish["reason"] == "length"


def test_text_without_a_limit_ends_by_itself_or_at_the_context(door):
    output = door.generate("The end", temperature=0.0)
    assert output.finish["reason"] in ("stop", "length")
    assert len(output.tokens) <= door.hello["context_len"]


def test_tokenize_and_back(door, reference):
    case = reference["stories"]["greedy"][4]
    reply = door.call("tokenize", text=case["prompt"])
    assert reply["ids"] == case["ids"]
    assert door.call("tokenize", ids=case["ids"])["text"] == case["prompt"]


def test_status_counts_what_was_done(shared_tree, door):
    with shared_tree.door("admin") as admin:
        before = admin.call("status")
        door.generate("Once", max_new_tokens=5, **GREEDY)
        after = admin.call("status")
    (old,), (new,) = before["replicas"], after["replicas"]
    assert new["requests_total"] == old["requests_total"] + 1
    assert new["output_tokens_total"] == old["output_tokens_total"] + 5
    assert new["num_running"] == new["num_waiting"] == 0
    assert new["workers"][0]["pid"] in shared_tree.pids("tp_worker")
    assert new["pages_free"] + new["pages_cached"] == new["pages_total"]
