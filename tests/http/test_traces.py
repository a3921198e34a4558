"""vLLM's trace_decode_token_ids: an output whose tokens the request gives, with the logprobs that they would have had."""

import pytest

PATH = "/inference/v1/generate"
PROMPT = list(range(300, 340))
ELSEWHERE = {
    "/generate": {"input_ids": PROMPT, "sampling_params": {"max_new_tokens": 2}},
    "/v1/completions": {"prompt": PROMPT, "max_tokens": 2},
    "/v1/chat/completions": {"messages": [], "input_ids": PROMPT, "max_tokens": 2},
}
NOT_WITH = {
    "stream": {"stream": True},
    "return_sampling_mask": {"return_sampling_mask": True},
    "output_mode text": {"output_mode": "text"},
    "logprobs_mode": {"logprobs_mode": "truncated"},
    "n": {"sampling": {"n": 2}},
    "structured_outputs": {"sampling": {"structured_outputs": {"regex": "a+"}}},
}


def ask(http, sampling, **fields):
    answer = http.post(PATH, {"token_ids": PROMPT, "sampling_params": sampling, **fields})
    assert answer.status == 200, answer
    return answer.json


@pytest.fixture
def sampled(http):
    """An output of 12 tokens that was drawn, with every logprob field that an answer has."""
    drawing = {"max_tokens": 12, "temperature": 1.0, "seed": 7, "ignore_eos": True}
    return ask(http, {**drawing, "logprobs": 3, "logprob_token_ids": [7, 11]})


def test_a_trace_has_the_bits_of_the_output_that_it_repeats(http, sampled):
    (drawn,) = sampled["choices"]
    trace = {"trace_decode_token_ids": drawn["token_ids"], "logprobs": 3, "logprob_token_ids": [7, 11]}
    answer = ask(http, trace)
    (choice,) = answer["choices"]
    for name in ("token_ids", "logprobs", "finish_reason", "stop_reason"):
        assert choice[name] == drawn[name], name
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert answer["usage"][name] == sampled["usage"][name], name
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] <= len(PROMPT)


def test_nothing_that_shapes_a_draw_changes_it(http, sampled):
    """Lengths, stops and truncations apply to drawn outputs only."""
    trace = [5, 2, sampled["choices"][0]["token_ids"][0], 5]
    plain = ask(http, {"trace_decode_token_ids": trace, "logprobs": 0})
    shaped = {"max_tokens": 2, "temperature": 0.3, "top_k": 2, "stop": ["a"], "stop_token_ids": [5]}
    other = ask(http, {"trace_decode_token_ids": trace, "logprobs": 0, **shaped})
    assert plain["choices"][0]["token_ids"] == trace == other["choices"][0]["token_ids"]
    assert plain["choices"][0]["logprobs"] == other["choices"][0]["logprobs"]
    assert plain["choices"][0]["finish_reason"] == other["choices"][0]["finish_reason"] == "length"


def test_prompt_logprobs_stay_the_prompts(http, sampled):
    trace = sampled["choices"][0]["token_ids"]
    wanted = ask(http, {"max_tokens": 1, "temperature": 0, "prompt_logprobs": 2})["prompt_logprobs"]
    answer = ask(http, {"trace_decode_token_ids": trace, "prompt_logprobs": 2, "logprobs": 3})
    assert answer["prompt_logprobs"] == wanted and len(wanted) == len(PROMPT)
    shown, drawn = ([each["logprob"] for each in one["choices"][0]["logprobs"]["content"]] for one in (answer, sampled))
    assert shown == drawn
    bare = ask(http, {"trace_decode_token_ids": trace})
    assert bare["choices"][0]["token_ids"] == trace and bare["choices"][0]["logprobs"] is None
    assert bare["usage"]["completion_tokens"] == len(trace) and bare["prompt_logprobs"] is None


def test_versions_are_told_of_a_traces_tokens(http, sampled):
    answer = ask(http, {"trace_decode_token_ids": [5, 6, 7], "logprobs": 0})
    (version,) = answer["choices"][0]["weight_versions"]
    (other,) = sampled["choices"][0]["weight_versions"]
    assert version == {**other, "end": 3}


@pytest.mark.parametrize("name", NOT_WITH)
def test_what_a_trace_cannot_have_is_refused_by_name(http, name):
    fields = dict(NOT_WITH[name])
    sampling = {"trace_decode_token_ids": [5, 6], "logprobs": 0, **fields.pop("sampling", {})}
    refused = http.post(PATH, {"token_ids": PROMPT, "sampling_params": sampling, **fields})
    assert refused.status == 400 and name in refused.message and "trace_decode_token_ids" in refused.message, refused


def test_a_trace_is_refused_elsewhere_and_without_sense(http):
    for path, body in ELSEWHERE.items():
        refused = http.post(path, {**body, "trace_decode_token_ids": [5, 6]})
        assert refused.status == 400 and "trace_decode_token_ids" in refused.message, refused
        assert http.post(path, {**body, "trace_decode_token_ids": None}).status == 200
    body = {"token_ids": PROMPT, "sampling_params": {"max_tokens": 2}}
    outside = http.post(PATH, {**body, "trace_decode_token_ids": [5]})
    assert outside.status == 400 and "trace_decode_token_ids" in outside.message, outside
    for wrong in ([99999], [-1], "five", [5.5]):
        refused = http.post(PATH, {"token_ids": PROMPT, "sampling_params": {"trace_decode_token_ids": wrong}})
        assert refused.status == 400 and "trace_decode_token_ids" in refused.message, (wrong, refused)
