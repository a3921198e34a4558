"""/v1/completions and vLLM's /inference/v1/generate on a live tree."""

import threading

import pytest

PROMPT = "Once upon a time"
GREEDY = {"prompt": PROMPT, "max_tokens": 6, "temperature": 0}


def complete(http, **body):
    answer = http.post("/v1/completions", {**GREEDY, **body})
    assert answer.status == 200, answer
    return answer.json


def test_the_models_are_one(http):
    listed = http.get("/v1/models").json
    (model,) = listed["data"]
    assert model["id"] == "stories" and model["object"] == "model" and model["max_model_len"] == 1024
    assert http.get("/v1/models/stories").json == model
    missing = http.get("/v1/models/other")
    assert missing.status == 404 and missing.json["error"]["type"] == "not_found_error"


def test_a_completion_has_openais_shape(http, door):
    expected = door.generate(PROMPT, max_new_tokens=6, temperature=0)
    answer = complete(http, model="stories")
    assert answer["id"].startswith("cmpl-") and answer["object"] == "text_completion"
    assert answer["model"] == "stories"
    (choice,) = answer["choices"]
    assert choice["text"] == expected.text and choice["finish_reason"] == "length"
    assert choice["logprobs"] is None and choice["stop_reason"] is None
    usage = answer["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (4, 6, 10)
    assert answer["metadata"] == {"weight_version": "epoch 1"}
    assert answer["weight_version"] == "epoch 1"
    assert answer["weight_version_spans"][0]["end"] == 6
    assert choice["weight_versions"] == [{"version": "epoch 1", "start": 0, "end": 6}]


def test_max_tokens_is_16_by_default(http):
    answer = http.post("/v1/completions", {"prompt": PROMPT, "ignore_eos": True})
    assert answer.json["usage"]["completion_tokens"] == 16


@pytest.mark.parametrize("prompt", [[740, 543, 258, 498], [[740, 543, 258, 498]], [PROMPT]])
def test_a_prompt_may_be_tokens_or_a_list(http, prompt):
    assert complete(http, prompt=prompt)["choices"][0]["text"] == complete(http)["choices"][0]["text"]


def test_choices_are_prompts_times_samples(http):
    answer = complete(http, prompt=[PROMPT, "The"], n=2, temperature=1.5, seed=3)
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert answer["usage"]["prompt_tokens"] == 5  # each prompt is counted once
    again = complete(http, prompt=[PROMPT, "The"], n=2, temperature=1.5, seed=3)
    assert [c["text"] for c in again["choices"]] == [c["text"] for c in answer["choices"]]
    assert answer["choices"][0]["text"] != answer["choices"][1]["text"]


def test_logprobs_are_raw_and_hold_the_sampled_token(http, door):
    expected = door.generate(
        PROMPT, max_new_tokens=6, temperature=0.7, seed=1,
        logprobs={"enabled": True, "mode": "raw", "top": 2},
    )  # fmt: skip
    answer = complete(http, temperature=0.7, seed=1, logprobs=2)
    logprobs = answer["choices"][0]["logprobs"]
    assert logprobs["token_logprobs"] == pytest.approx(expected.logprobs, rel=1e-6)
    assert "".join(logprobs["tokens"]) == answer["choices"][0]["text"]
    assert logprobs["text_offset"][0] == 0
    for token, offset in zip(logprobs["tokens"], logprobs["text_offset"]):
        assert answer["choices"][0]["text"][offset:].startswith(token)
    for token, value, top in zip(logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"]):
        assert top[token] == value and 2 <= len(top) <= 3
    none = complete(http, logprobs=0)["choices"][0]["logprobs"]
    assert [len(top) for top in none["top_logprobs"]] == [1] * 6


def test_echo_puts_the_prompt_first_with_its_logprobs(http):
    answer = complete(http, echo=True, logprobs=1)
    choice = answer["choices"][0]
    assert choice["text"].startswith(PROMPT)
    assert choice["logprobs"]["tokens"][:4] == ["Once", " upon", " a", " time"]
    assert choice["logprobs"]["token_logprobs"][0] is None
    assert len(choice["logprobs"]["tokens"]) == 10
    by_ids = complete(http, prompt=[740, 543, 258, 498], echo=True, max_tokens=0)
    assert by_ids["choices"][0]["text"] == PROMPT


PARTS = "日本 🙂 x<é>🙂zz"


@pytest.mark.parametrize("as_ids", [False, True])
def test_text_offsets_are_characters_of_the_text(http, as_ids):
    choice = complete(
        http, prompt=PARTS, echo=True, logprobs=1, max_tokens=0, return_token_ids=True,
        return_tokens_as_token_ids=as_ids,
    )["choices"][0]  # fmt: skip
    assert choice["text"] == PARTS
    offsets = choice["logprobs"]["text_offset"]
    assert offsets[-1] == PARTS.index("zz") or PARTS[offsets[-1] :] == "z"
    texts = http.post("/tokenize", {"prompt": PARTS, "return_token_strs": True}).json["token_strs"]
    assert len(texts) == len(offsets) > len(PARTS)
    for i, text in enumerate(texts):
        whole = PARTS[offsets[i] :].startswith(text)
        assert whole or text == "\ufffd" and ord(PARTS[offsets[i]]) >= 128, (i, text)
    assert sorted(set(offsets)) == offsets if "\ufffd" not in texts else offsets == sorted(offsets)
    assert len(set(offsets)) <= len(PARTS)


def test_text_offsets_go_on_in_the_output(http):
    told = http.post("/tokenize", {"prompt": PARTS, "return_token_strs": True}).json
    ids = [i for i, token in zip(told["tokens"], told["token_strs"]) if token == "\ufffd"]
    body = {"prompt": "日", "logprobs": 1, "max_tokens": 30, "allowed_token_ids": ids, "temperature": 2.0, "seed": 3}
    for echo in (False, True):
        choice = complete(http, **body, echo=echo)["choices"][0]
        text, logprobs = choice["text"], choice["logprobs"]
        assert logprobs["tokens"].count("\ufffd") > 3
        for token, offset in zip(logprobs["tokens"], logprobs["text_offset"]):
            assert text[offset:].startswith(token) or token == "\ufffd" and offset <= len(text)
        assert max(logprobs["text_offset"]) <= len(text)
        stream = [
            e["choices"][0] for e in http.events("/v1/completions", {**GREEDY, **body, "echo": echo, "stream": True})
        ]
        assert sum((c["logprobs"]["text_offset"] for c in stream), []) == logprobs["text_offset"]


def test_a_token_that_is_left_out_takes_no_place(http):
    body = {"prompt": PROMPT, "logprobs": 0, "max_tokens": 3, "allowed_token_ids": [2046, 740], "temperature": 1.0,
            "ignore_eos": True, "n": 8, "seed": 1}  # fmt: skip
    special = http.post("/detokenize", {"tokens": [2046]}).json["text"]
    for skips in (True, False):
        for choice in complete(http, **body, skip_special_tokens=skips)["choices"]:
            logprobs, before = choice["logprobs"], 0
            for token, offset in zip(logprobs["tokens"], logprobs["text_offset"]):
                assert offset == before
                before += 0 if token == special and skips else len(token)
            assert before == len(choice["text"])


def test_a_stream_that_echoes_has_the_logprobs_of_the_prompt(http):
    body = {**GREEDY, "echo": True, "logprobs": 2}
    whole = complete(http, **body)["choices"][0]
    parts = [event["choices"][0] for event in http.events("/v1/completions", {**body, "stream": True})]
    assert "".join(part["text"] for part in parts) == whole["text"]
    for name in ("tokens", "token_logprobs", "text_offset", "top_logprobs"):
        assert sum((part["logprobs"][name] for part in parts), []) == whole["logprobs"][name]


def test_the_whole_vocabulary_by_ids_has_an_entry_per_token(http):
    def num_shown(**more):
        return len(complete(http, max_tokens=1, logprobs=-1, **more)["choices"][0]["logprobs"]["top_logprobs"][0])

    assert num_shown(return_tokens_as_token_ids=True) == 2048
    assert num_shown() < 2048  # tokens of the same text are one entry


def test_tokens_can_be_shown_as_ids(http):
    choice = complete(http, return_token_ids=True, logprobs=0, return_tokens_as_token_ids=True)["choices"][0]
    assert choice["prompt_token_ids"] == [740, 543, 258, 498]
    assert choice["logprobs"]["tokens"] == [f"token_id:{i}" for i in choice["token_ids"]]


def test_prompt_logprobs_are_maps_by_token(http):
    choice = complete(http, prompt_logprobs=2, max_tokens=1)["choices"][0]
    first, *rest = choice["prompt_logprobs"]
    assert first is None and len(rest) == 3
    assert rest[0]["543"]["decoded_token"] == " upon" and rest[0]["543"]["rank"] == 1
    assert all(len(entry) >= 2 for entry in rest)


def test_a_stop_is_said_in_each_engines_word(http):
    choice = complete(http, max_tokens=50, stop=["was"])["choices"][0]
    assert choice["finish_reason"] == "stop"
    assert choice["stop_reason"] == choice["matched_stop"] == "was"
    assert not choice["text"].endswith("was")
    kept = complete(http, max_tokens=50, stop="was", include_stop_str_in_output=True)["choices"][0]
    assert kept["text"].endswith("was")


def test_a_stream_is_deltas_and_the_usage_comes_last(http):
    whole = complete(http, logprobs=1, return_token_ids=True)
    body = {**GREEDY, "logprobs": 1, "return_token_ids": True, "stream": True,
            "stream_options": {"include_usage": True}}  # fmt: skip
    *events, usage = http.events("/v1/completions", body)
    choices = [event["choices"][0] for event in events]
    wanted = whole["choices"][0]
    assert "".join(choice["text"] for choice in choices) == wanted["text"]
    assert sum((choice["token_ids"] for choice in choices), []) == wanted["token_ids"]
    for part in ("tokens", "token_logprobs", "text_offset", "top_logprobs"):
        assert sum((choice["logprobs"][part] for choice in choices), []) == wanted["logprobs"][part]
    assert ["prompt_token_ids" in choice for choice in choices] == [True] + [False] * (len(choices) - 1)
    assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + ["length"]
    assert len({event["id"] for event in events}) == 1
    assert all(event["usage"] is None for event in events)
    assert usage["choices"] == [] and usage["usage"] == whole["usage"] | {
        "prompt_tokens_details": usage["usage"]["prompt_tokens_details"]
    }


def test_a_stream_of_several_choices_keeps_them_apart(http):
    body = {**GREEDY, "prompt": [PROMPT, "The dog"], "stream": True}
    texts = ["", ""]
    for event in http.events("/v1/completions", body):
        for choice in event["choices"]:
            texts[choice["index"]] += choice["text"]
    assert texts == [c["text"] for c in complete(http, prompt=[PROMPT, "The dog"])["choices"]]


REFUSED = {
    "no prompt": ({"prompt": None}, "prompt"),
    "a word for logprobs": ({"logprobs": "many"}, "logprobs"),
    "n 0": ({"n": 0}, "n is 0"),
    "two grammars": ({"regex": "a*", "response_format": {"type": "json_object"}}, "at most one grammar"),
    "a format of no kind": ({"response_format": {"type": "json"}}, "response_format"),
    "an option of a grammar": ({"structured_outputs": {"json": {}, "whitespace_pattern": " "}}, "whitespace_pattern"),
    "a token of no logprobs out of range": ({"logprob_token_ids": [99999]}, "logprob_token_ids[0] is token 99999"),
    "a seed that no integer of 64 bits holds": ({"seed": 2**64}, "from -2^63 to 2^64 - 1"),
    "best_of": ({"best_of": 3}, "best_of"),
    "a suffix": ({"suffix": "x"}, "suffix"),
    "stream options without a stream": ({"stream_options": {"include_usage": True}}, "stream"),
    "prompt logprobs in a stream": ({"stream": True, "prompt_logprobs": 1}, "prompt_logprobs"),
    "more tokens than fit": ({"max_tokens": 5000}, "This model's maximum context length is 1024 tokens. However, "),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_has_openais_shape(http, name):
    body, part = REFUSED[name]
    answer = http.post("/v1/completions", {**GREEDY, **body})
    assert answer.status == 400, answer
    error = answer.json["error"]
    assert part in error["message"] and error["type"] == "invalid_request_error"
    assert set(error) == {"message", "type", "param", "code"}


def test_the_bad_one_of_several_prompts_is_named(http):
    answer = http.post("/v1/completions", {**GREEDY, "prompt": [[1, 2], [1, 99999]]})
    assert answer.status == 400 and "prompt 1 of 2 (the first is 0): " in answer.message, answer


def test_a_content_type_other_than_json_is_refused(http):
    answer = http.post("/v1/completions", b'{"prompt": "x"}', headers={"Content-Type": "text/plain"})
    assert answer.status == 400 and "application/json" in answer.message


# ---- vLLM's tokens in, tokens out ----


def infer(http, **body):
    sampling = {"max_tokens": 6, "temperature": 0, **body.pop("sampling", {})}
    answer = http.post(
        "/inference/v1/generate",
        {"token_ids": [740, 543, 258, 498], "sampling_params": sampling, **body},
    )
    assert answer.status == 200, answer
    return answer.json


def test_tokens_go_in_and_tokens_come_out(http, door):
    expected = door.generate(PROMPT, max_new_tokens=6, temperature=0)
    answer = infer(http, request_id="mine", return_token_ids=True)
    assert answer["request_id"] == "generate-tokens-mine"
    (choice,) = answer["choices"]
    assert choice["token_ids"] == expected.tokens and choice["finish_reason"] == "length"
    assert choice["logprobs"] is None and "text" not in choice
    assert choice["weight_versions"] == [{"version": "epoch 1", "start": 0, "end": 6}]
    assert answer["prompt_token_ids"] == [740, 543, 258, 498]
    assert answer["usage"]["total_tokens"] == 10


def test_logprob_entries_satisfy_older_and_newer_clients(http):
    choice = infer(http, sampling={"logprobs": 2})["choices"][0]
    for token, entry in zip(choice["token_ids"], choice["logprobs"]["content"]):
        assert entry["token_id"] == token and entry["token"] == f"token_id:{token}"
        assert entry["logprob"] <= 0 and entry["rank"] == 1
        assert entry["top_logprobs"][0]["token_id"] == token  # the sampled token comes first
        assert len(entry["top_logprobs"]) == 2


def test_without_max_tokens_the_context_is_the_limit(http):
    answer = http.post("/inference/v1/generate", {"token_ids": [740], "sampling_params": {"ignore_eos": True}})
    assert answer.json["usage"]["completion_tokens"] == 1023


def test_scoring_with_prompt_logprobs(http):
    answer = infer(http, sampling={"prompt_logprobs": 1, "max_tokens": 1})
    first, *rest = answer["prompt_logprobs"]
    assert first is None and [list(entry)[0] for entry in rest] == ["543", "258", "498"]


def test_text_mode_adds_the_text(http):
    answer = infer(http, output_mode="text")
    assert answer["choices"][0]["text"] == complete(http)["choices"][0]["text"]


def test_a_stream_of_tokens_is_deltas(http):
    whole = infer(http)["choices"][0]["token_ids"]
    body = {"token_ids": [740, 543, 258, 498], "stream": True,
            "sampling_params": {"max_tokens": 6, "temperature": 0}}  # fmt: skip
    events = list(http.events("/inference/v1/generate", body))
    assert sum((event["choices"][0]["token_ids"] for event in events), []) == whole
    assert events[-1]["choices"][0]["finish_reason"] == "length"


def test_the_first_event_of_a_stream_of_tokens_has_what_is_asked_of_the_prompt(http):
    sampling = {"max_tokens": 6, "temperature": 0, "n": 2, "prompt_logprobs": 0}
    whole = infer(http, sampling=sampling, return_token_ids=True)
    body = {"token_ids": [740, 543, 258, 498], "stream": True, "return_token_ids": True, "sampling_params": sampling}
    events = list(http.events("/inference/v1/generate", body))
    (told,) = [event for event in events if "prompt_token_ids" in event]
    assert told is next(event for event in events if event["choices"][0]["index"] == 0)
    assert told["prompt_token_ids"] == whole["prompt_token_ids"] == [740, 543, 258, 498]
    assert told["prompt_logprobs"] == whole["prompt_logprobs"] and len(told["prompt_logprobs"]) == 4


def test_sampling_params_are_required(http):
    answer = http.post("/inference/v1/generate", {"token_ids": [1]})
    assert answer.status == 400 and answer.json["error"]["type"] == "Bad Request"


def test_an_answers_id_aborts_it_prefixed_and_bare(http, wait_for_open, paused):
    answers = []

    def call(path, body, name):
        answers.append(http.post(path, body, headers={"X-Request-Id": name}).json)

    body = {"prompt": PROMPT, "max_tokens": 1000, "ignore_eos": True}
    tokens = {"token_ids": [740], "sampling_params": {"max_tokens": 1000, "ignore_eos": True}}
    threads = [
        threading.Thread(target=call, args=("/v1/completions", body, "a")),
        threading.Thread(target=call, args=("/v1/completions", body, "b")),
        threading.Thread(target=call, args=("/inference/v1/generate", tokens, "c")),
    ]
    with paused():
        for thread in threads:
            thread.start()
        wait_for_open(3)
        for rid in ("cmpl-a", "b", "generate-tokens-c"):
            http.post("/abort_request", {"rid": rid})
        for thread in threads:
            thread.join()
    assert [answer["choices"][0]["finish_reason"] for answer in answers] == ["abort"] * 3
