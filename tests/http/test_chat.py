"""/v1/chat/completions, /tokenize and /detokenize on a live tree."""

import json
import pathlib

import pytest

from control_tree import STORIES

MESSAGES = [{"role": "user", "content": "Once upon a time"}]
GREEDY = {"messages": MESSAGES, "max_tokens": 6, "temperature": 0}
# MESSAGES as the bundled model's template renders them (tests/data/jinja has the reference's renderings).
PROMPT = "<|im_start|>user\nOnce upon a time<|im_end|>\n<|im_start|>assistant\n"


def chat(http, **body):
    answer = http.post("/v1/chat/completions", {**GREEDY, **body})
    assert answer.status == 200, answer
    return answer.json


def events(answer):
    lines = [line for line in answer.body.decode().split("\n\n") if line]
    assert all(line.startswith("data: ") for line in lines) and lines[-1] == "data: [DONE]"
    return [json.loads(line[6:]) for line in lines[:-1]]


def test_a_chat_is_the_templates_prompt(http, door):
    expected = door.generate(PROMPT, max_new_tokens=6, temperature=0)
    answer = chat(http, return_token_ids=True)
    assert answer["id"].startswith("chatcmpl-") and answer["object"] == "chat.completion"
    (choice,) = answer["choices"]
    assert choice["message"] == {"role": "assistant", "content": expected.text, "refusal": None}
    assert choice["finish_reason"] == "length" and choice["logprobs"] is None
    assert choice["token_ids"] == expected.tokens
    prompt = http.post("/detokenize", {"tokens": answer["prompt_token_ids"]}).json["prompt"]
    assert prompt == PROMPT
    assert answer["usage"]["completion_tokens"] == 6
    assert answer["usage"]["prompt_tokens"] == len(answer["prompt_token_ids"])
    assert choice["weight_versions"] == [{"version": "epoch 1", "start": 0, "end": 6}]
    assert answer["metadata"] == {"weight_version": "epoch 1"}
    assert answer["weight_versions"] == choice["weight_versions"]
    assert answer["weight_version_spans"][0]["end"] == 6


def test_without_a_limit_a_chat_may_fill_the_context(http):
    answer = chat(http, max_tokens=None, stop=["."], seed=1)
    assert answer["usage"]["completion_tokens"] > 6
    assert answer["choices"][0]["stop_reason"] in (".", None)


def test_max_completion_tokens_is_the_newer_name(http):
    assert chat(http, max_tokens=None, max_completion_tokens=3)["usage"]["completion_tokens"] == 3


def test_samples_of_one_chat_differ_and_repeat(http):
    answer = chat(http, n=3, temperature=1.5, seed=5)
    texts = [choice["message"]["content"] for choice in answer["choices"]]
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2] and len(set(texts)) > 1
    again = chat(http, n=3, temperature=1.5, seed=5)
    assert [choice["message"]["content"] for choice in again["choices"]] == texts
    assert answer["usage"]["completion_tokens"] == 18


def test_logprobs_have_tokens_and_their_bytes(http):
    answer = chat(http, logprobs=True, top_logprobs=2)
    content = answer["choices"][0]["logprobs"]["content"]
    assert "".join(entry["token"] for entry in content) == answer["choices"][0]["message"]["content"]
    for entry in content:
        assert bytes(entry["bytes"]).decode() == entry["token"] and entry["logprob"] <= 0
        assert len(entry["top_logprobs"]) == 2
        assert entry["top_logprobs"][0]["logprob"] == pytest.approx(entry["logprob"])  # greedy
    named = chat(http, logprobs=True, return_tokens_as_token_ids=True)
    assert named["choices"][0]["logprobs"]["content"][0]["token"].startswith("token_id:")


def test_the_bytes_of_logprobs_join_to_the_text(http):
    text = "日本 🙂é"
    told = http.post("/tokenize", {"prompt": text, "return_token_strs": True}).json
    ids = [i for i, token in zip(told["tokens"], told["token_strs"]) if token == "\ufffd"]
    answer = chat(http, logprobs=True, top_logprobs=1, max_tokens=24, temperature=2.0, seed=4, allowed_token_ids=ids)
    (choice,) = answer["choices"]
    entries = choice["logprobs"]["content"]
    assert any(entry["token"] == "\ufffd" for entry in entries)
    joined = b"".join(bytes(entry["bytes"]) for entry in entries)
    assert joined.decode(errors="replace") == choice["message"]["content"]
    for entry in entries:
        assert entry["token"] != "\ufffd" or (len(entry["bytes"]) == 1 and entry["bytes"][0] >= 128)
        for top in entry["top_logprobs"]:
            assert bytes(top["bytes"]).decode(errors="replace") == top["token"]


def test_a_stream_adds_up_to_the_whole(http):
    whole = chat(http)
    answer = http.post(
        "/v1/chat/completions",
        {**GREEDY, "stream": True, "stream_options": {"include_usage": True}, "return_token_ids": True},
    )
    chunks = events(answer)
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert all(chunk["object"] == "chat.completion.chunk" for chunk in chunks)
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert len(chunks[0]["prompt_token_ids"]) == whole["usage"]["prompt_tokens"]
    middle = [chunk["choices"][0] for chunk in chunks[1:-1]]
    text = "".join(choice["delta"]["content"] for choice in middle)
    assert text == whole["choices"][0]["message"]["content"]
    assert sum(len(choice["token_ids"]) for choice in middle) == 6
    assert [c["finish_reason"] for c in middle] == [None] * (len(middle) - 1) + ["length"]
    assert chunks[-1]["choices"] == [] and chunks[-1]["usage"] == whole["usage"]


def test_a_streams_first_event_has_the_prompts_logprobs(http):
    whole = chat(http, prompt_logprobs=0)["prompt_logprobs"]
    assert whole[0] is None and None not in whole[1:]
    body = {**GREEDY, "stream": True, "prompt_logprobs": 0}
    first, *rest = events(http.post("/v1/chat/completions", body))
    assert first["prompt_logprobs"] == whole
    assert all("prompt_logprobs" not in event for event in rest)


def test_a_stream_of_several_samples_says_whose_each_delta_is(http):
    whole = chat(http, n=2, temperature=1.0, seed=9)
    chunks = events(
        http.post("/v1/chat/completions", {**GREEDY, "n": 2, "temperature": 1.0, "seed": 9, "stream": True})
    )
    texts = {0: "", 1: ""}
    for chunk in chunks:
        for choice in chunk["choices"]:
            texts[choice["index"]] += choice["delta"]["content"]
    assert texts == {c["index"]: c["message"]["content"] for c in whole["choices"]}


def test_variables_reach_the_template(http):
    template = "{{ messages[0].role }} {{ tools | tojson }} {{ mood }} {{ add_generation_prompt }}"
    body = {
        "messages": MESSAGES,
        "chat_template": template,
        "tools": [{"type": "function", "function": {"name": "f", "b": 1, "a": 2}}],
        "chat_template_kwargs": {"mood": "gay"},
    }
    prompt = http.post("/tokenize", body).json["prompt"]
    tools = '[{"type": "function", "function": {"name": "f", "b": 1, "a": 2}}]'
    assert prompt == f"user {tools} gay True"
    none = http.post("/tokenize", {**body, "tool_choice": "none"}).json["prompt"]
    assert none == "user null gay True"


def test_the_prompts_text_is_shown_where_asked_for(http):
    asked = {**GREEDY, "max_tokens": 1, "return_prompt_text": True}
    text = http.post("/tokenize", {"messages": GREEDY["messages"]}).json["prompt"]
    answer = http.post("/v1/chat/completions", asked).json
    assert answer["prompt_text"] == text and "prompt_token_ids" not in answer
    first, *rest = events(http.post("/v1/chat/completions", {**asked, "stream": True}))
    assert first["prompt_text"] == text and not any("prompt_text" in event for event in rest)
    assert "prompt_text" not in http.post("/v1/chat/completions", {**asked, "return_prompt_text": False}).json
    tokens = {"input_ids": [5], "max_tokens": 1, "return_prompt_text": True}
    refused = http.post("/v1/chat/completions", tokens)
    assert refused.status == 400 and "return_prompt_text" in refused.message


def test_the_final_message_is_continued(http):
    messages = MESSAGES + [{"role": "assistant", "content": "There was"}]
    body = {"messages": messages, "continue_final_message": True, "add_generation_prompt": False}
    prompt = http.post("/tokenize", body).json["prompt"]
    assert prompt == PROMPT + "There was"
    assert chat(http, messages=messages, continue_final_message=True)["usage"]["completion_tokens"] == 6


@pytest.mark.parametrize("prefill", ["<", "e", ">", "im", "\n", " ", "", "A ", "a\n\nb\n", "日", "<|im_end|>\n"])
def test_a_prefill_that_the_template_writes_itself_is_continued_in_its_place(http, prefill):
    messages = MESSAGES + [{"role": "assistant", "content": prefill}]
    body = {"messages": messages, "continue_final_message": True, "add_generation_prompt": False}
    answer = http.post("/tokenize", body).json
    assert answer["prompt"] == PROMPT + prefill
    shown = chat(http, messages=messages, continue_final_message=True, return_token_ids=True)
    assert shown["prompt_token_ids"] == answer["tokens"]
    same = {"messages": messages, "max_tokens": 1, "return_token_ids": True}
    assert http.post("/v1/messages", same).json["prompt_token_ids"] == answer["tokens"]


def test_a_message_that_the_template_changes_cannot_be_continued(http):
    messages = MESSAGES + [{"role": "assistant", "content": "There was"}]
    for template in ("no message", "{{ messages[0].content }}", "{{ messages[-1].content | replace('w', 'v') }}"):
        refused = http.post(
            "/v1/chat/completions",
            {**GREEDY, "messages": messages, "continue_final_message": True, "chat_template": template},
        )
        assert refused.status == 400 and "continue_final_message" in refused.message, template


@pytest.mark.parametrize(
    "body, named",
    [
        ({}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [{"content": "hi"}]}, "messages[0]"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "content[0]"),
        ({"messages": MESSAGES, "n": 0}, "n"),
        ({"messages": MESSAGES, "top_logprobs": 2}, "top_logprobs"),
        ({"messages": MESSAGES, "tool_choice": "required"}, "tool_choice"),
        ({"messages": MESSAGES, "temperature": -1}, "temperature"),
        ({"messages": MESSAGES, "max_tokens": 100000}, "context"),
        ({"messages": MESSAGES, "chat_template": "{% include 'x' %}"}, "include"),
        ({"messages": MESSAGES, "chat_template": "{{ raise_exception('no way') }}"}, "no way"),
        ({"messages": MESSAGES, "chat_template": "{{ 1" + " if 1" * 40_000 + " }}"}, "nested"),
        ({"messages": MESSAGES, "chat_template": "{{ 1" + " if 1" * 200_000 + " }}"}, "at most 262144"),
        ({"messages": MESSAGES, "chat_template": "{{ 'a'.center(999999999) }}"}, "builds more than"),
        ({"messages": MESSAGES, "response_format": {"type": "json"}}, "response_format"),
        ({"messages": MESSAGES, "continue_final_message": True, "add_generation_prompt": True}, "continue_final"),
    ],
)
def test_a_bad_chat_is_a_400_in_openais_shape(http, body, named):
    answer = http.post("/v1/chat/completions", body)
    assert answer.status == 400, answer
    assert answer.json["error"]["type"] == "invalid_request_error" and named in answer.message


def test_only_json_is_taken(http):
    answer = http.post("/v1/chat/completions", json.dumps(GREEDY), headers={"Content-Type": "text/plain"})
    assert answer.status == 400 and "application/json" in answer.message


def test_token_ids_go_past_the_template(http, door):
    ids = door.call("tokenize", text="The")["ids"]
    answer = http.post("/v1/chat/completions", {"input_ids": ids, "max_tokens": 4, "temperature": 0})
    expected = door.generate("The", max_new_tokens=4, temperature=0)
    assert answer.json["choices"][0]["message"]["content"] == expected.text


def test_tokenize_and_detokenize_are_inverses(http):
    text = "Once upon a time, Straße 中"
    answer = http.post("/tokenize", {"model": "stories", "prompt": text, "return_token_strs": True}).json
    assert answer["count"] == len(answer["tokens"]) == len(answer["token_strs"])
    assert answer["max_model_len"] == 1024
    back = http.post("/detokenize", {"model": "stories", "tokens": answer["tokens"]}).json
    assert back == {"prompt": text, "text": text}


def test_the_tokenizer_is_told_as_its_files_have_it(http):
    info = http.get("/tokenizer_info").json
    own = json.loads(pathlib.Path(STORIES, "tokenizer_config.json").read_text())
    assert {name: info.get(name) for name in ("eos_token", "bos_token", "pad_token")} == {
        name: own.get(name) for name in ("eos_token", "bos_token", "pad_token")
    }
    assert info["tokenizer_class"] == own.get("tokenizer_class", "PreTrainedTokenizerFast")
    rendered = http.post("/tokenize", {"messages": MESSAGES, "chat_template": info["chat_template"]}).json["prompt"]
    assert rendered == PROMPT


def test_several_texts_at_once(http):
    answer = http.post("/tokenize", {"prompt": ["Once", "upon a time"]}).json
    assert answer["count"] == [len(tokens) for tokens in answer["tokens"]]
    back = http.post("/detokenize", {"tokens": answer["tokens"]}).json
    assert back["text"] == ["Once", "upon a time"]


@pytest.mark.parametrize(
    "path, body",
    [
        ("/tokenize", {}),
        ("/tokenize", {"prompt": 5}),
        ("/detokenize", {}),
        ("/detokenize", {"tokens": ["x"]}),
        ("/detokenize", {"tokens": [[1], ["x"]]}),
    ],
)
def test_bad_input_is_a_400(http, path, body):
    answer = http.post(path, body)
    assert answer.status == 400 and answer.message


def test_the_bus_renders_chats_too(door):
    reply = door.call("render_chat", variables=json.dumps({"messages": MESSAGES, "add_generation_prompt": True}))
    assert reply["text"] == PROMPT
