"""Drafts over HTTP: fields of each dialect, what answers and /metrics count, and what is refused by name."""

import re

import pytest

TREE_FLAGS = ("--speculate", "4")
PROMPT = "Once upon a time"
GREEDY = {"temperature": 0, "max_new_tokens": 60, "ignore_eos": True}


def generated(http, **body):
    answer = http.post("/generate", {"text": PROMPT, "sampling_params": GREEDY, **body})
    assert answer.status == 200, answer
    return answer.json


def counter(http, name):
    found = re.findall(rf"^{re.escape(name)}\{{.*?\}} (\S+)$", http.get("/metrics").body.decode(), re.MULTILINE)
    assert found, name
    return sum(map(float, found))


def test_an_answer_that_is_drafted_takes_few_passes_and_is_the_same(http):
    first = generated(http, draft_key="first")
    again = generated(http, draft_key="again", draft_ids=first["output_ids"])
    assert again["output_ids"] == first["output_ids"] and again["text"] == first["text"]
    told = again["meta_info"]
    assert told["spec_verify_ct"] < first["meta_info"]["spec_verify_ct"] <= 60
    assert told["spec_accept_length"] == pytest.approx(60 / told["spec_verify_ct"])
    assert told["spec_accept_length"] > 3
    assert told["spec_num_correct_drafts"] == 60 - told["spec_verify_ct"]
    assert told["spec_num_proposed_drafts"] >= told["spec_num_correct_drafts"]


def test_each_prompt_of_a_batch_brings_its_own_draft(http):
    first = generated(http, draft_key="first")
    answers = generated(http, text=[PROMPT, "The dog"], draft_ids=[first["output_ids"], None], draft_key="batch")
    assert answers[0]["output_ids"] == first["output_ids"]
    assert answers[0]["meta_info"]["spec_accept_length"] > 3
    assert "spec_verify_ct" in answers[1]["meta_info"]


def test_completions_draft_too(http):
    ids = generated(http, draft_key="first")["output_ids"]
    before = counter(http, "pitstop_draft_tokens_accepted_total")
    body = {"prompt": PROMPT, "max_tokens": 60, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
    answer = http.post("/v1/completions", {**body, "draft_ids": ids, "draft_key": "completions"})
    assert answer.status == 200, answer
    assert answer.json["choices"][0]["token_ids"] == ids
    assert counter(http, "pitstop_draft_tokens_accepted_total") > before + 30


def test_metrics_count_by_both_engines_names(http):
    generated(http)
    for own, vllm in (
        ("draft_rows", "num_drafts"),
        ("draft_tokens", "num_draft_tokens"),
        ("draft_tokens_accepted", "num_accepted_tokens"),
    ):
        assert counter(http, f"pitstop_{own}_total") == counter(http, f"vllm:spec_decode_{vllm}_total") > 0
    assert counter(http, "pitstop_sampling_passes_total") > counter(http, "pitstop_draft_rows_total")


@pytest.mark.parametrize(
    "body, why",
    [
        ({"draft_ids": [5, 2048]}, "draft_ids[1] is token 2048"),
        ({"draft_ids": [-1]}, "draft_ids is [-1]; accepted is a list of token ids"),
        ({"draft_ids": "a text"}, "draft_ids"),
        ({"draft_ids": [1] * 131_073}, "draft_ids has 131073 tokens; at most 131072"),
        ({"draft_key": "k" * 257}, "draft_key has 257 bytes"),
        ({"draft_key": 5}, "draft_key"),
        ({"text": [PROMPT, PROMPT], "draft_ids": [1, 2]}, "draft_ids"),
    ],
)
def test_wrong_drafts_are_refused_by_name(http, body, why):
    answer = http.post("/generate", {"text": PROMPT, "sampling_params": GREEDY, **body})
    assert answer.status == 400 and why in answer.json["error"]["message"], answer
