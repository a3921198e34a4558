"""The support of each draw, in the forms of SGLang, vLLM and SkyRL: which tokens top-k, top-p, min-p
and a grammar left. Expected supports come from the logprobs of the most probable tokens.
"""

import base64
import math

import numpy
import pytest

from http_client import Http

PROMPT = "Once upon a time"
TREE_FLAGS = ("--tp", "2", "--speculate", "4")
DRAWN = {"max_new_tokens": 24, "temperature": 0.8, "sampling_seed": 5, "ignore_eos": True}
VLLM = {"max_tokens": 24, "temperature": 0.8, "seed": 5, "ignore_eos": True}
PLAIN = "output_token_sampling_mask"
ENDS = [2045, 2047]  # the ids that end an output of the model


def kept(position, top_k=None, top_p=1.0, min_p=0.0):
    """The ids that remain of [logprob, id, text] triples, the most probable first, by the definitions of top-k, top-p
    and min-p."""
    left = [(logprob, token) for logprob, token, _ in position]
    if min_p:
        left = [each for each in left if each[0] >= left[0][0] + math.log(min_p)]
    if top_k:
        left = [each for each in left if each[0] >= left[min(top_k, len(left)) - 1][0]]
    total, sum_so_far, ids = sum(math.exp(logprob) for logprob, _ in left), 0.0, []
    for logprob, token in left:
        if sum_so_far >= top_p * total:
            break
        sum_so_far += math.exp(logprob)
        ids.append(token)
    return sorted(ids)


@pytest.fixture(scope="module")
def prompt_ids(tree):
    answer = Http(tree.url).generate(text=PROMPT, max_new_tokens=0, return_prompt_token_ids=True)
    return answer["prompt_token_ids"]


@pytest.mark.parametrize(
    "truncation", [{"top_k": 5}, {"top_p": 0.7}, {"min_p": 0.1}, {"top_k": 8, "top_p": 0.8, "min_p": 0.05}]
)
def test_a_mask_has_the_tokens_that_truncation_left(http, truncation):
    ask = {"text": PROMPT, **DRAWN, **truncation}
    meta = http.generate(**ask, return_sampling_mask=True, return_logprob=True, top_logprobs_num=400)["meta_info"]
    masks, logprobs = meta[PLAIN], meta["output_token_sampling_logprobs"]
    assert meta["output_token_sampling_mask_length"] == len(masks) == len(logprobs) == 24
    assert masks == [kept(position, **truncation) for position in meta["output_top_logprobs"]]
    for mask, logprob, position, drawn in zip(
        masks, logprobs, meta["output_top_logprobs"], meta["output_token_logprobs"], strict=True
    ):
        assert drawn[1] in mask
        total = sum(math.exp(each[0]) for each in position if each[1] in mask)
        assert logprob == pytest.approx(drawn[0] - math.log(total), abs=1e-4)


def test_asking_changes_no_token_and_no_logprob(http):
    ask = {"text": PROMPT, **DRAWN, "top_p": 0.9, "top_k": 30, "return_logprob": True, "logprobs_mode": "truncated"}
    plain, masked = http.generate(**ask), http.generate(**ask, return_sampling_mask=True)
    assert masked["output_ids"] == plain["output_ids"] and PLAIN not in plain["meta_info"]
    for name in ("output_token_logprobs", "completion_tokens"):
        assert masked["meta_info"][name] == plain["meta_info"][name]
    within = masked["meta_info"]["output_token_sampling_logprobs"]
    assert within == pytest.approx([each[0] for each in plain["meta_info"]["output_token_logprobs"]], abs=4e-5)


def test_a_mask_is_of_what_penalties_bias_and_bans_left(http):
    answer = http.generate(
        text=PROMPT, **DRAWN, top_k=4, return_sampling_mask=True, logit_bias={"7": 60.0}, frequency_penalty=2.0
    )
    assert all(7 in mask and len(mask) == 4 for mask in answer["meta_info"][PLAIN])
    allowed = [5, 11, 300]
    body = {"text": PROMPT, "sampling_params": {**DRAWN, "allowed_token_ids": allowed}, "return_sampling_mask": True}
    assert http.post("/generate", body).json["meta_info"][PLAIN] == [allowed] * 24


def test_a_grammar_is_a_part_of_the_mask(http):
    drawing = {"regex": "(yes|no)", "max_new_tokens": 8, "sampling_seed": 5, "top_k": 30}
    answer = http.post("/generate", {"text": PROMPT, "sampling_params": drawing, "return_sampling_mask": True})
    if answer.status != 200 and "no xgrammar" in answer.message:
        pytest.skip(answer.message)
    answer = answer.json
    masks = answer["meta_info"][PLAIN]
    texts = http.post("/detokenize", {"tokens": [[token] for token in masks[0]]}).json["text"]
    assert all("yes".startswith(text) or "no".startswith(text) for text in texts), texts
    assert all(token in mask for token, mask in zip(answer["output_ids"], masks, strict=True))
    assert masks[-1] == ENDS  # only the end tokens remain


def test_greed_has_one_choice(http):
    answer = http.generate(text=PROMPT, max_new_tokens=5, temperature=0, return_sampling_mask=True)
    assert answer["meta_info"][PLAIN] == [[token] for token in answer["output_ids"]]
    assert answer["meta_info"]["output_token_sampling_logprobs"] == [0.0] * 5


@pytest.mark.parametrize("is_incremental", [False, True])
def test_streams_batches_and_samples_have_masks_of_their_own(http, is_incremental):
    names = (PLAIN, "output_token_sampling_logprobs")
    drawing = {**DRAWN, "top_k": 6, "n": 2}
    body = {"text": [PROMPT, "The dog"], "sampling_params": drawing, "return_sampling_mask": True}
    whole = http.post("/generate", body).json
    got = [{name: [] for name in names} for _ in whole]
    stream = {**body, "stream": True, "incremental_streaming_output": is_incremental}
    for event in http.events("/generate", stream):
        for name in names:
            new = event["meta_info"][name]
            got[event["index"]][name] = got[event["index"]][name] + new if is_incremental else new
    for index, each in enumerate(whole):
        assert {name: each["meta_info"][name] for name in names} == got[index]
        assert len(got[index][PLAIN]) == 24
    assert whole[0]["meta_info"][PLAIN] != whole[1]["meta_info"][PLAIN]
    part = http.post(
        "/generate", {**body, "sampling_params": {**DRAWN, "top_k": 6}, "return_sampling_mask": [True, None]}
    )
    assert [PLAIN in each["meta_info"] for each in part.json] == [True, False]


def vllm_body(prompt_ids, sampling, **more):
    return {"token_ids": prompt_ids, "sampling_params": {**VLLM, **sampling}, **more}


def test_vllm_s_choices_have_the_same_lists(http, prompt_ids):
    wanted = http.generate(text=PROMPT, **DRAWN, top_k=9, return_sampling_mask=True)
    body = vllm_body(prompt_ids, {"top_k": 9}, return_sampling_mask=True)
    choice = http.post("/inference/v1/generate", body).json["choices"][0]
    assert choice["token_ids"] == wanted["output_ids"]
    assert choice["sampling_mask"] == wanted["meta_info"][PLAIN]
    plain = http.post("/inference/v1/generate", vllm_body(prompt_ids, {"top_k": 9})).json["choices"][0]
    assert plain["sampling_mask"] is None and plain["token_ids"] == choice["token_ids"]
    masks = []
    for event in http.events("/inference/v1/generate", {**body, "stream": True}):
        part = event["choices"][0]
        assert len(part["sampling_mask"]) == len(part["token_ids"])
        masks += part["sampling_mask"]
    assert masks == choice["sampling_mask"]


def test_with_vllm_s_flag_requests_that_truncate_have_masks_without_a_field(front_end, prompt_ids):
    http = front_end("--return-sampling-mask").http
    choice = http.post("/inference/v1/generate", vllm_body(prompt_ids, {"top_k": 3})).json["choices"][0]
    assert all(3 <= len(mask) < 6 for mask in choice["sampling_mask"])
    whole = http.post("/inference/v1/generate", vllm_body(prompt_ids, {})).json["choices"][0]
    assert whole["sampling_mask"] is None


def test_skyrl_s_support_is_packed_and_padded(http, prompt_ids):
    wanted = http.generate(text=PROMPT, **DRAWN, top_k=9, top_p=0.6, return_sampling_mask=True)["meta_info"][PLAIN]
    body = vllm_body(prompt_ids, {"top_k": 9, "top_p": 0.6}, return_sample_support=True)
    packed = http.post("/skyrl/v1/generate", body).json["choices"][0]["rollout_sample_support"]
    rows = numpy.frombuffer(base64.b64decode(packed["data"]), dtype=packed["dtype"]).reshape(packed["shape"])
    assert rows.shape == (24, 9) and list(packed) == ["data", "shape", "dtype"]
    assert [[token for token in row if token >= 0] for row in rows.tolist()] == wanted
    for sampling in ({}, {"top_k": 1}, {"top_k": 5, "temperature": 0}):
        refused = http.post("/skyrl/v1/generate", {**body, "sampling_params": {**VLLM, **sampling}})
        assert refused.status == 400 and "top_k" in refused.message, refused


def test_rows_of_top_k_tokens_have_no_room_for_more_that_are_tied(http, prompt_ids):
    """SkyRL's client reshapes the rows to [-1, top_k]: wider ones would be read as other tokens."""
    tied = {"top_k": 2, "temperature": 1e300, "allowed_token_ids": [300, 400, 500]}
    body = vllm_body(prompt_ids, tied, return_sampling_mask=True)
    choice = http.post("/inference/v1/generate", body).json["choices"][0]
    assert choice["sampling_mask"] == [[300, 400, 500]] * len(choice["token_ids"])
    body = vllm_body(prompt_ids, tied, return_sample_support=True)
    refused = http.post("/skyrl/v1/generate", body)
    assert refused.status == 400 and "drawn among 3 tokens" in refused.message, refused
    refused = http.post("/skyrl/v1/generate", {**body, "stream": True})
    assert refused.status == 400 and "top 2 are kept" in refused.message, refused
    body["sampling_params"]["top_k"] = 3
    packed = http.post("/skyrl/v1/generate", body).json["choices"][0]["rollout_sample_support"]
    assert packed["shape"] == [24, 3]


def test_a_request_that_can_have_no_mask_is_refused_by_name(http):
    def refused(path, body, *words):
        answer = http.post(path, body)
        assert answer.status == 400 and all(word in answer.message for word in words), answer

    whole = {"text": PROMPT, "return_sampling_mask": True}
    refused("/generate", whole, "drawn among all 2048", "top_k")
    refused("/generate", {**whole, "return_sampling_mask": 3}, "return_sampling_mask")
    for path, body in (
        ("/v1/completions", {"prompt": "a"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 2}),
        ("/v1/responses", {"input": "a"}),
    ):
        refused(path, {**body, "return_sampling_mask": True}, "return_sampling_mask", "/generate")
        assert http.post(path, {**body, "return_sampling_mask": False}).status == 200
