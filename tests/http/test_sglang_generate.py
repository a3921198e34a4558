"""SGLang's /generate on a live tree: shapes, framing, semantics. The bus gives the expected
outputs.
"""

import pytest

PROMPT = "Once upon a time"


def logprob_options(**options):
    return {"enabled": True, "mode": "scaled", **options}


def test_a_prompt_gives_an_object(http, door):
    answer = http.generate(text=PROMPT, max_new_tokens=8, temperature=0, rid="one")
    expected = door.generate(PROMPT, max_new_tokens=8, temperature=0)
    assert answer["output_ids"] == expected.tokens
    assert answer["text"] == expected.text
    meta = answer["meta_info"]
    assert meta["id"] == "one"
    assert meta["finish_reason"] == {"type": "length", "length": 8}
    assert (meta["prompt_tokens"], meta["completion_tokens"]) == (4, 8)
    assert meta["weight_version"] == "epoch 1"
    assert meta["e2e_latency"] > 0
    assert "output_token_logprobs" not in meta


def test_input_ids_are_the_same_prompt(http):
    ids = http.generate(text=PROMPT, max_new_tokens=0, return_prompt_token_ids=True)
    assert ids["output_ids"] == [] and ids["meta_info"]["completion_tokens"] == 0
    ids = ids["prompt_token_ids"]
    by_text = http.generate(text=PROMPT, max_new_tokens=5, temperature=0)
    assert http.generate(input_ids=ids, max_new_tokens=5, temperature=0)["text"] == by_text["text"]


def test_any_list_gives_an_array_in_order(http):
    one = http.generate(text=[PROMPT], max_new_tokens=2)
    assert isinstance(one, list) and len(one) == 1
    prompts = [PROMPT, "The dog", "A little girl"]
    batch = http.generate(text=prompts, max_new_tokens=4, temperature=0, rid="b")
    assert [item["meta_info"]["id"] for item in batch] == ["b_0", "b_1", "b_2"]
    for prompt, item in zip(prompts, batch):
        assert item["text"] == http.generate(text=prompt, max_new_tokens=4, temperature=0)["text"]


def test_samples_are_grouped_by_prompt_and_have_ids_of_their_own(http):
    items = http.generate(text=[PROMPT, "The"], max_new_tokens=3, n=3, rid=["x", "y"])
    assert [item["meta_info"]["prompt_tokens"] for item in items] == [4, 4, 4, 1, 1, 1]
    assert [item["meta_info"]["id"] for item in items] == ["x_0", "x_1", "x_2", "y_0", "y_1", "y_2"]
    assert len({item["meta_info"]["id"] for item in http.generate(text="The", max_new_tokens=1, n=3)}) == 3


def test_samples_compute_their_prompt_once(http, door):
    """SGLang computes the prompt in a first request, with the same result."""
    prompt = list(range(300, 700))
    items = http.generate(input_ids=prompt, max_new_tokens=2, n=4)
    cached = sorted(item["meta_info"]["cached_tokens"] for item in items)
    assert cached[0] == 0 and all(num > 300 for num in cached[1:]), cached


def test_samples_with_a_seed_differ_and_come_again(http):
    ask = {"text": PROMPT, "max_new_tokens": 20, "n": 4, "sampling_seed": 5, "temperature": 1.5}
    first = [item["output_ids"] for item in http.generate(**ask)]
    assert len({tuple(ids) for ids in first}) == 4
    assert [item["output_ids"] for item in http.generate(**ask)] == first


def test_max_new_tokens_is_128_by_default_and_null_is_as_many_as_fit(http):
    assert http.generate(text=PROMPT, ignore_eos=True)["meta_info"]["completion_tokens"] == 128
    answer = http.generate(text=PROMPT, max_new_tokens=None, ignore_eos=True)
    assert answer["meta_info"]["completion_tokens"] == 1024 - 4


def test_logprobs_are_triples_of_what_was_sampled_from(http, door):
    answer = http.generate(
        text=PROMPT, max_new_tokens=5, temperature=0.5, sampling_seed=3, return_logprob=True,
        top_logprobs_num=3, token_ids_logprob=[11, 7],
    )  # fmt: skip
    expected = door.generate(
        PROMPT, max_new_tokens=5, temperature=0.5, seed=3,
        logprobs=logprob_options(top=3, ids=[11, 7]),
    )  # fmt: skip
    meta = answer["meta_info"]
    assert [entry[1] for entry in meta["output_token_logprobs"]] == expected.tokens
    got = [entry[0] for entry in meta["output_token_logprobs"]]
    assert got == pytest.approx(expected.logprobs, rel=1e-6)
    assert all(entry[2] is None for entry in meta["output_token_logprobs"])
    assert meta["output_token_logprobs_length"] == 5
    assert meta["input_token_logprobs"] == []
    top = meta["output_top_logprobs"]
    assert [len(position) for position in top] == [3] * 5
    assert [e[1] for position in top for e in position] == expected._joined("top_ids")
    of_ids = meta["output_token_ids_logprobs"]
    assert [[entry[1] for entry in position] for position in of_ids] == [[11, 7]] * 5


def test_logprobs_mode_selects_the_distribution(http):
    ask = {"text": PROMPT, "max_new_tokens": 3, "temperature": 0.5, "top_k": 1, "return_logprob": True}

    def logprobs(**more):
        return [e[0] for e in http.generate(**ask, **more)["meta_info"]["output_token_logprobs"]]

    assert logprobs(logprobs_mode="truncated") == [0.0] * 3  # only one token was left to draw from
    assert logprobs(logprobs_mode="processed_logprobs") == [0.0] * 3
    raw, scaled = logprobs(logprobs_mode="raw"), logprobs(logprobs_mode="scaled")
    assert all(a < b for a, b in zip(raw, scaled))  # the temperature of 0.5 makes the likeliest token likelier
    assert logprobs() == scaled


def test_the_prompt_is_scored_from_logprob_start_len(http):
    whole = http.generate(
        text=PROMPT, max_new_tokens=1, temperature=0, return_logprob=True, logprob_start_len=0,
        top_logprobs_num=2, return_text_in_logprobs=True,
    )["meta_info"]  # fmt: skip
    entries = whole["input_token_logprobs"]
    assert [entry[2] for entry in entries] == ["Once", " upon", " a", " time"]
    assert entries[0][0] is None and all(entry[0] < 0 for entry in entries[1:])
    assert whole["input_top_logprobs"][0] is None
    assert [len(position) for position in whole["input_top_logprobs"][1:]] == [2, 2, 2]
    part = http.generate(text=PROMPT, max_new_tokens=1, temperature=0, return_logprob=True, logprob_start_len=2)[
        "meta_info"
    ]
    assert [e[:2] for e in part["input_token_logprobs"]] == [e[:2] for e in entries[2:]]
    assert http.post("/generate", {"text": PROMPT, "return_logprob": True,
                                   "logprob_start_len": 5}).status == 400  # fmt: skip


def test_logprob_options_may_differ_in_a_batch(http):
    batch = http.generate(
        text=[PROMPT, PROMPT], max_new_tokens=2, return_logprob=[True, False],
        top_logprobs_num=[2, 0], token_ids_logprob=[[1, 2], None],
    )  # fmt: skip
    assert len(batch[0]["meta_info"]["output_top_logprobs"]) == 2
    assert "output_token_logprobs" not in batch[1]["meta_info"]


def test_scoring_gives_the_logprobs_that_sampling_gave_P6(http):
    ask = {"return_logprob": True, "logprobs_mode": "raw"}
    sampled = http.generate(text=PROMPT, max_new_tokens=20, return_prompt_token_ids=True, **ask)
    ids = sampled["prompt_token_ids"] + sampled["output_ids"]
    scored = http.generate(input_ids=ids, max_new_tokens=0, logprob_start_len=4, **ask)
    assert [e[:2] for e in scored["meta_info"]["input_token_logprobs"]] == [
        e[:2] for e in sampled["meta_info"]["output_token_logprobs"]
    ]


@pytest.mark.parametrize("trim", [False, True])
def test_a_stop_text_is_matched_and_trimmed_unless_asked(http, trim):
    answer = http.generate(text=PROMPT, max_new_tokens=50, temperature=0, stop=["was"], no_stop_trim=not trim)
    assert answer["meta_info"]["finish_reason"] == {"type": "stop", "matched": "was"}
    assert answer["text"].endswith("was") != trim


def test_a_stop_token_is_matched_and_kept_in_the_ids(http):
    ids = http.generate(text=PROMPT, max_new_tokens=3, temperature=0)["output_ids"]
    answer = http.generate(text=PROMPT, max_new_tokens=9, temperature=0, stop_token_ids=[ids[2]])
    assert answer["output_ids"] == ids
    assert answer["meta_info"]["finish_reason"] == {"type": "stop", "matched": ids[2]}
    assert answer["meta_info"]["completion_tokens"] == 3
    # SGLang's ignore_eos disables stop_token_ids, too.
    going = http.generate(text=PROMPT, max_new_tokens=9, temperature=0, stop_token_ids=[ids[2]], ignore_eos=True)
    assert going["meta_info"]["completion_tokens"] == 9


def stream_body(**body):
    from http_client import native

    return native({"text": PROMPT, "max_new_tokens": 200, "temperature": 0, "stream": True, "ignore_eos": True, **body})


def test_events_are_cumulative(http):
    whole = http.generate(text=PROMPT, max_new_tokens=200, temperature=0, ignore_eos=True, return_logprob=True)
    events = list(http.events("/generate", stream_body(return_logprob=True)))
    assert events  # the number depends on the reader's speed
    for event in events:
        count = event["meta_info"]["completion_tokens"]
        assert event["output_ids"] == whole["output_ids"][:count]
        assert whole["text"].startswith(event["text"])
        assert len(event["meta_info"]["output_token_logprobs"]) == count
    assert [e["meta_info"]["finish_reason"] is None for e in events] == [True] * (len(events) - 1) + [False]
    assert events[-1]["text"] == whole["text"]
    assert "index" not in events[0]


def test_events_are_deltas_where_asked(http, front_end):
    whole = http.generate(text=PROMPT, max_new_tokens=200, temperature=0, ignore_eos=True, return_logprob=True)
    by_body = http.events("/generate", stream_body(return_logprob=True, incremental_streaming_output=True))
    by_flag = front_end("--incremental-streaming-output").http.events("/generate", stream_body(return_logprob=True))
    for events in (list(by_body), list(by_flag)):
        assert "".join(event["text"] for event in events) == whole["text"]
        assert sum((event["output_ids"] for event in events), []) == whole["output_ids"]
        logprobs = sum((e["meta_info"]["output_token_logprobs"] for e in events), [])
        assert logprobs == whole["meta_info"]["output_token_logprobs"]
        assert events[-1]["meta_info"]["completion_tokens"] == 200  # counts are totals, never deltas


def test_a_batch_streams_with_indices(http):
    events = list(http.events("/generate", stream_body(text=[PROMPT, "The dog"])))
    last = {event["index"]: event for event in events}
    assert sorted(last) == [0, 1]
    for index, prompt in enumerate([PROMPT, "The dog"]):
        assert (
            last[index]["text"]
            == http.generate(text=prompt, max_new_tokens=200, temperature=0, ignore_eos=True)["text"]
        )


def test_stream_interval_leaves_events_out(http):
    events = list(http.events("/generate", stream_body(stream_interval=5, max_new_tokens=40)))
    assert 1 <= len(events) <= 10  # events that are ready together are joined
    assert events[-1]["meta_info"]["completion_tokens"] == 40


def test_what_is_refused_before_the_first_token_has_a_status_also_in_a_stream(http):
    answer = http.post("/generate", stream_body(max_new_tokens=5000))
    assert answer.status == 400 and "context" in answer.message


BAD_PROMPTS = {
    "a token out of range": {"input_ids": [[1, 2], [1, 99999]], "sampling_params": {"max_new_tokens": 900}},
    "too many tokens": {"text": ["x", "y"], "sampling_params": [{}, {"max_new_tokens": 9999}]},
    "two samples of each": {"input_ids": [[1, 2], [1, 99999]], "sampling_params": {"n": 2}},
    "a parameter out of range": {"text": ["x", "y"], "sampling_params": [{}, {"top_p": 0}]},
    "an unknown parameter": {"text": ["x", "y"], "sampling_params": [{}, {"top_q": 0}]},
}


@pytest.mark.parametrize("body", BAD_PROMPTS.values(), ids=BAD_PROMPTS)
def test_one_bad_prompt_refuses_the_batch_and_is_named(http, wait_for_open, body):
    answer = http.post("/generate", body)
    assert answer.status == 400 and "prompt 1 of 2 (the first is 0): " in answer.message, answer
    wait_for_open(0)


@pytest.mark.parametrize("body", BAD_PROMPTS.values(), ids=BAD_PROMPTS)
def test_one_bad_prompt_ends_a_stream_of_the_batch_and_is_named(http, wait_for_open, body):
    """The good prompt may have tokens before the tree has refused the bad one. In that case the error comes as an
    event."""
    answer = http.post("/generate", {**body, "stream": True})
    assert answer.status in (200, 400) and b"prompt 1 of 2 (the first is 0): " in answer.body, answer
    wait_for_open(0)


def test_an_error_of_the_only_prompt_numbers_none(http):
    answer = http.post("/generate", {"input_ids": [[1, 99999]]})
    assert answer.status == 400 and "(the first is 0)" not in answer.message, answer


REFUSED = {
    "an empty prompt of tokens": ({"input_ids": []}, "input_ids cannot be empty."),
    "an unknown sampling parameter": ({"text": "x", "sampling_params": {"top_q": 1}}, "top_q"),
    "an earlier name of a grammar": ({"text": "x", "sampling_params": {"guided_regex": "a*"}}, "guided_regex"),
    "two grammars": ({"text": "x", "sampling_params": {"regex": "a*", "ebnf": 'root ::= "a"'}}, "at most one grammar"),
    "a grammar of OpenAI's": ({"text": "x", "response_format": {"type": "json_object"}}, "json_schema"),
    "a temperature below 0": ({"text": "x", "sampling_params": {"temperature": -1}}, "temperature"),
    "top_p 0": ({"text": "x", "sampling_params": {"top_p": 0}}, "top_p"),
    "top_k 0": ({"text": "x", "sampling_params": {"top_k": 0}}, "top_k"),
    "min over max": (
        {"text": "x", "sampling_params": {"max_new_tokens": 1, "min_new_tokens": 2}},
        "min_new_tokens",
    ),
    "too many tokens": ({"text": "x", "sampling_params": {"max_new_tokens": 9999}}, "context"),
    "an adapter that is not loaded": ({"text": "x", "lora_path": "a"}, "no adapter 'a' is loaded"),
    "adapters of other prompts": ({"text": ["x", "y"], "lora_path": ["a"]}, "lora_path"),
    "hidden states": ({"text": "x", "return_hidden_states": True}, "return_hidden_states"),
    "rids that do not match": ({"text": ["x", "y"], "rid": ["a"]}, "rid"),
    "a replica that is not there": ({"text": "x", "routed_dp_rank": 7}, "replica"),
    "a list of options with n": (
        {"text": ["x", "y"], "sampling_params": {"n": 2}, "return_logprob": [True, True]},
        "return_logprob",
    ),
    "a stop token out of range, to no effect": (
        {"text": "x", "sampling_params": {"ignore_eos": True, "stop_token_ids": [2, 99999]}},
        "sampling_params.stop_token_ids[1] is token 99999",
    ),
    "a token of no logprobs out of range": (
        {"text": "x", "token_ids_logprob": [99999]},
        "token_ids_logprob[0] is token 99999",
    ),
    "a token of logprobs out of range": (
        {"text": "x", "return_logprob": True, "token_ids_logprob": [99999]},
        "99999",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_says_why_in_both_shapes(http, name):
    body, part = REFUSED[name]
    answer = http.post("/generate", body)
    assert answer.status == 400, answer
    assert part in answer.json["error"]["message"]
    assert answer.json["message"] == answer.json["error"]["message"]
    assert answer.json["object"] == "error" and answer.json["code"] == 400


def test_unknown_members_and_odd_types_are_taken_as_sglang_takes_them(http):
    answer = http.post(
        "/generate",
        {"text": PROMPT, "stream": "false", "no_such": 1,
         "sampling_params": {"max_new_tokens": "2", "temperature": "0", "top_p": None}},
    )  # fmt: skip
    assert answer.status == 200 and answer.json["meta_info"]["completion_tokens"] == 2


def test_events_that_are_joined_lose_nothing(http):
    """The number of joined events depends on the machine; tests/http_proc/event_pace_test.cpp tests the joining."""
    events = list(http.events("/generate", stream_body(max_new_tokens=900)))
    counts = [event["meta_info"]["completion_tokens"] for event in events]
    assert counts == sorted(set(counts)) and counts[-1] == 900
    assert [event["meta_info"]["finish_reason"] for event in events[:-1]] == [None] * (len(events) - 1)
    whole = http.post("/generate", stream_body(max_new_tokens=900, stream=False)).json
    assert events[-1]["text"] == whole["text"]


def test_a_stop_with_the_last_token_is_a_length(http):
    """SGLang checks for the length before it checks for a stop."""
    params = {"max_new_tokens": 4, "temperature": 0, "ignore_eos": True}
    body = {"input_ids": [740, 543, 258], "sampling_params": params}
    ids = http.post("/generate", body).json["output_ids"]
    stop = {"temperature": 0, "stop_token_ids": [ids[3]]}
    assert ids[3] not in ids[:3]
    last = http.post("/generate", {**body, "sampling_params": {**stop, "max_new_tokens": 4}}).json
    assert last["meta_info"]["finish_reason"] == {"type": "length", "length": 4}
    earlier = http.post("/generate", {**body, "sampling_params": {**stop, "max_new_tokens": 5}}).json
    assert earlier["meta_info"]["finish_reason"] == {"type": "stop", "matched": ids[3]}
