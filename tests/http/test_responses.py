"""OpenAI's /v1/responses on a live tree, through OpenAI's own client and without it."""

import json
import threading

import pytest

GREEDY = {"model": "stories", "input": "Once upon a time", "max_output_tokens": 6, "temperature": 0}
TOOL = {"type": "function", "name": "weather", "description": "Says it.", "strict": True,
        "parameters": {"type": "object", "b": 1, "a": 2}}  # fmt: skip
LOGPROBS = "message.output_text.logprobs"
AS_CHAT = {"type": "function", "function": {
    "name": "weather", "description": "Says it.", "parameters": {"type": "object", "b": 1, "a": 2}}}  # fmt: skip


def post(http, **body):
    answer = http.post("/v1/responses", {**GREEDY, **body})
    assert answer.status == 200, answer
    return answer.json


def prompt_of(http, **chat):
    """The token ids of the chat that the items must become."""
    return http.post("/tokenize", chat).json["tokens"]


@pytest.fixture
def client(http):
    openai = pytest.importorskip("openai", reason="the package index could not be reached")
    with openai.OpenAI(base_url=http.url + "/v1", api_key="any", max_retries=0) as client:
        yield client


def test_a_response_is_the_assistants_turn(http):
    messages = [{"role": "user", "content": "Once upon a time"}]
    chat = http.post("/v1/chat/completions", {
        "messages": messages, "max_tokens": 6, "temperature": 0, "return_token_ids": True}).json  # fmt: skip
    answer = post(http, return_token_ids=True, metadata={"run": "7"}, user="me")
    assert answer["id"].startswith("resp_") and answer["object"] == "response"
    assert answer["model"] == "stories" and answer["error"] is None
    (item,) = answer["output"]
    assert item["type"] == "message" and item["role"] == "assistant" and item["id"].startswith("msg_")
    text = chat["choices"][0]["message"]["content"]
    assert item["content"] == [{"type": "output_text", "text": text, "annotations": [], "logprobs": []}]
    assert answer["status"] == item["status"] == "incomplete"
    assert answer["incomplete_details"] == {"reason": "max_output_tokens"}
    assert answer["prompt_token_ids"] == chat["prompt_token_ids"]
    assert answer["token_ids"] == chat["choices"][0]["token_ids"]
    usage = answer["usage"]
    assert (usage["input_tokens"], usage["output_tokens"]) == (len(answer["prompt_token_ids"]), 6)
    assert usage["total_tokens"] == usage["input_tokens"] + 6
    version = http.get("/weight_version").json
    (span,) = answer["weight_version_spans"]
    assert (span["epoch"], span["digest"], span["end"]) == (version["weight_epoch"], version["weight_digest"], 6)
    # The answer repeats the request's fields with the values that are served.
    assert answer["metadata"] == {"run": "7"} and answer["user"] == "me"
    assert answer["store"] is False and answer["previous_response_id"] is None
    assert answer["temperature"] == 0 and answer["tools"] == [] and answer["max_output_tokens"] == 6


def test_openais_client_reads_it(client):
    response = client.responses.create(**{**GREEDY, "instructions": "Be brief.", "tools": [TOOL]})
    assert response.output_text and response.status == "incomplete"
    assert response.instructions == "Be brief." and response.tools[0].name == "weather"
    assert response.tools[0].strict is False  # arguments are not held to a schema
    assert response.usage.output_tokens == 6
    assert response.weight_version_spans[0]["end"] == 6


# The output ends by itself: OpenAI's helper returns no final response for one that is cut.
WHOLE = {**GREEDY, "max_output_tokens": 60, "extra_body": {"stop": ["."]}}


def test_openais_client_streams_the_same(client):
    whole = client.responses.create(**WHOLE)
    assert whole.status == "completed" and whole.incomplete_details is None
    with client.responses.stream(**WHOLE) as stream:
        events = list(stream)
        response = stream.get_final_response()
    assert response.output_text == whole.output_text != ""
    assert response.status == "completed" and response.usage.output_tokens == whole.usage.output_tokens
    assert [event.sequence_number for event in events] == list(range(len(events)))
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == whole.output_text


def test_a_stream_is_the_events_of_the_api(http):
    events = http.named_events("/v1/responses", {**GREEDY, "stream": True, "return_token_ids": True})
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    types = [event["type"].removeprefix("response.") for event in events]
    num_deltas = types.count("output_text.delta")
    assert types == (
        ["created", "in_progress", "output_item.added", "content_part.added"]
        + ["output_text.delta"] * num_deltas
        + ["output_text.done", "content_part.done", "output_item.done", "incomplete"]
    )
    assert num_deltas > 0  # events are joined while a reader is slow
    created, added, part = events[0]["response"], events[2]["item"], events[3]["part"]
    assert created["status"] == "in_progress" and created["output"] == [] and created["usage"] is None
    assert added["status"] == "in_progress" and added["content"] == [] and part["text"] == ""
    final, whole = events[-1]["response"], post(http, return_token_ids=True)
    (item,) = final["output"]
    assert item == events[-2]["item"] and item["id"] == added["id"] == events[4]["item_id"]
    assert item["content"] == whole["output"][0]["content"] == [events[-3]["part"]]
    assert events[-4]["text"] == item["content"][0]["text"]
    assert final["token_ids"] == whole["token_ids"] and final["id"] == created["id"]
    assert final["weight_version_spans"] == whole["weight_version_spans"]


@pytest.mark.parametrize("num_top", (0, 2))
def test_the_texts_logprobs_are_the_chats(http, num_top):
    messages = [{"role": "user", "content": GREEDY["input"]}]
    chat = http.post("/v1/chat/completions", {
        "messages": messages, "max_tokens": 6, "temperature": 0, "logprobs": True, "top_logprobs": num_top}).json  # fmt: skip
    expected = chat["choices"][0]["logprobs"]["content"]
    assert [len(entry["top_logprobs"]) for entry in expected] == [num_top] * 6
    asked = {"include": [LOGPROBS], "top_logprobs": num_top}
    answer = post(http, **asked)
    assert answer["output"][0]["content"][0]["logprobs"] == expected and answer["top_logprobs"] == num_top
    events = http.named_events("/v1/responses", {**GREEDY, **asked, "stream": True})
    deltas = [event["logprobs"] for event in events if event["type"] == "response.output_text.delta"]
    (done,) = [event["logprobs"] for event in events if event["type"] == "response.output_text.done"]
    assert done == events[-1]["response"]["output"][0]["content"][0]["logprobs"] == expected
    told = sum(deltas, [])
    assert told == expected[: len(told)] and len(told) >= 1  # a last token without text comes with the end event


def test_openais_client_reads_logprobs(client):
    response = client.responses.create(**GREEDY, include=[LOGPROBS], top_logprobs=1)
    entries = response.output[0].content[0].logprobs
    assert "".join(entry.token for entry in entries).strip() == response.output_text.strip()
    assert all(entry.top_logprobs[0].logprob >= entry.logprob for entry in entries)


def test_the_conversation_is_the_templates(http):
    """Instructions, items of each kind, a call and its output have the prompt of the same chat."""
    items = [
        {"role": "developer", "content": "In English."},
        {"role": "user", "content": "How is it?"},
        {"type": "message", "role": "user", "content": [
            {"type": "input_text", "text": "In"}, {"type": "input_text", "text": "Paris?"}]},
        {"type": "message", "id": "msg_1", "status": "completed", "role": "assistant", "content": [
            {"type": "output_text", "text": "Let me look.", "annotations": []}]},
        {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "weather", "arguments": '{"z": 1}'},
        {"type": "function_call", "call_id": "call_2", "name": "time", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "call_1", "output": "21"},
        {"type": "function_call_output", "call_id": "call_2", "output": [{"type": "input_text", "text": "noon"}]},
    ]  # fmt: skip
    calls = [
        {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"z": 1}'}},
        {"id": "call_2", "type": "function", "function": {"name": "time", "arguments": "{}"}},
    ]
    expected = prompt_of(
        http,
        tools=[AS_CHAT],
        messages=[
            {"role": "system", "content": "Be brief.\nIn English."},
            {"role": "user", "content": "How is it?"},
            {"role": "user", "content": "In\nParis?"},
            {"role": "assistant", "content": "Let me look.", "tool_calls": calls},
            {"role": "tool", "tool_call_id": "call_1", "content": "21"},
            {"role": "tool", "tool_call_id": "call_2", "content": "noon"},
        ],
    )
    body = {"instructions": "Be brief.", "input": items, "tools": [TOOL]}
    assert post(http, return_token_ids=True, **body)["prompt_token_ids"] == expected
    counted = http.post("/v1/responses/input_tokens", {"model": "stories", **body})
    assert counted.json == {"object": "response.input_tokens", "input_tokens": len(expected)}


def test_the_variables_that_a_template_gets(http):
    template = "{{ reasoning_effort }} {{ tools }} {{ messages | tojson }}"
    items = [
        {"role": "user", "content": "?"},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
        {"role": "user", "content": "!"},
    ]
    shown = post(http, chat_template=template, return_token_ids=True, input=items, tools=[TOOL],
                 tool_choice="none", reasoning={"effort": "low", "summary": "auto"})  # fmt: skip
    text = http.post("/detokenize", {"tokens": shown["prompt_token_ids"]}).json["prompt"]
    effort, tools, messages = text.split(" ", 2)
    assert (effort, tools) == ("low", "None")
    assert json.loads(messages)[1] == {"role": "assistant", "content": "No.", "reasoning_content": "hm"}
    assert shown["reasoning"] == {"effort": "low", "summary": None}


def message_of(*parts):
    return {"input": [{"role": "user", "content": list(parts)}]}


@pytest.mark.parametrize(
    "body, named",
    [
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": 7}, "input"),
        ({"input": ["x"]}, "input[0]"),
        ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user"}]}, "input[0]"),
        ({"input": [{"role": "user", "content": 7}]}, "input[0].content"),
        (message_of({"type": "input_text"}), "input[0].content[0]"),
        (message_of({"type": "input_text", "text": "x"}, {"type": "input_image"}), 'content[1]: "input_image"'),
        (message_of({"type": "input_file"}), '"input_file"'),
        ({"input": [{"type": "function_call", "name": "f"}]}, "input[0]"),
        ({"input": [{"type": "function_call_output", "call_id": "1"}]}, "input[0]"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "item_reference"),
        ({"input": [{"type": "web_search_call", "id": "x"}]}, "web_search_call"),
        ({"input": [{"type": "reasoning", "encrypted_content": "x"}]}, "encrypted_content"),
        ({"instructions": 7}, "instructions"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"store": True}, "store"),
        ({"background": True}, "background"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt"),
        ({"truncation": "auto"}, "truncation"),
        ({"include": [LOGPROBS], "tools": [TOOL]}, "include"),
        ({"include": [LOGPROBS], "top_logprobs": -2}, "top_logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "text"),
        ({"text": {"verbosity": "low"}}, "text"),
        ({"reasoning": {"effort": 7}}, "reasoning"),
        ({"metadata": {"a": 1}}, "metadata"),
        ({"tools": 7}, "tools"),
        ({"tools": [{"type": "web_search"}]}, "tools[0]"),
        ({"tools": [TOOL, {"type": "function"}]}, "tools[1]"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "name": "weather"}}, "tool_choice"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_output_tokens": 100000}, "context"),
        ({"max_tokens": 5}, "max_output_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"parallel_tool_calls": "some"}, "parallel_tool_calls"),
        ({"n": 2}, "n"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"bad_words": ["no", " "]}, "bad_words"),
        ({"chat_template": "{{ raise_exception('no way') }}"}, "no way"),
    ],
)
def test_a_field_that_is_not_served_is_refused_by_name(http, body, named):
    refused = http.post("/v1/responses", {**GREEDY, **body})
    assert refused.status == 400 and named in refused.message, refused
    assert refused.json["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    "body",
    [
        {"store": False, "include": ["reasoning.encrypted_content"], "prompt_cache_key": "k"},
        {"store": None, "previous_response_id": None, "truncation": "disabled", "background": False},
        {"text": {"format": {"type": "text"}, "verbosity": "medium"}, "service_tier": "auto"},
        {"tools": [], "tool_choice": "auto", "parallel_tool_calls": False, "max_tool_calls": 3},
        {"max_output_tokens": None, "stop": ["."], "seed": 1},
        {"stream_options": {"include_obfuscation": False}},
    ],
)
def test_fields_that_change_nothing_are_taken(http, body):
    post(http, **body)


def test_openais_client_knows_our_errors_by_their_type(client, http):
    openai = pytest.importorskip("openai")
    with pytest.raises(openai.NotFoundError, match="gpt"):
        client.responses.create(**{**GREEDY, "model": "gpt"})
    with pytest.raises(openai.BadRequestError, match="previous_response_id"):
        client.responses.create(**GREEDY, previous_response_id="resp_1")
    with pytest.raises(openai.BadRequestError, match="input_image"):
        client.responses.create(**{**GREEDY, **message_of({"type": "input_image", "image_url": "data:"})})
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve("resp_1")
    assert client.responses.input_tokens.count(model="stories", input="Once").input_tokens > 1
    assert http.post("/v1/responses", json.dumps(GREEDY), headers={"Content-Type": "text/plain"}).status == 400


@pytest.mark.parametrize("bytes_", [b"{", b"[]", b"\xff", b"[" * 5000, b'{"input": ' + b"[" * 90])
def test_a_body_that_is_no_json_is_refused_cheaply(http, bytes_):
    refused = http.call("POST", "/v1/responses", bytes_, {"Content-Type": "application/json"})
    assert refused.status == 400 and "error" in refused.json, refused


def test_a_client_that_leaves_a_stream_ends_it(client, wait_for_open):
    # Enough tokens that the answer does not end by itself during the test.
    asked = {**GREEDY, "max_output_tokens": 900, "extra_body": {"ignore_eos": True}}
    with client.responses.stream(**asked) as stream:
        for event in stream:
            if event.type == "response.output_text.delta":
                break
    wait_for_open(0)


def test_an_abort_is_told(http, paused, wait_for_open):
    got = []
    body = {**GREEDY, "max_output_tokens": 800, "ignore_eos": True}
    with paused():
        thread = threading.Thread(
            target=lambda: got.append(http.post("/v1/responses", body, headers={"X-Request-Id": "mine"}))
        )
        thread.start()
        wait_for_open(1)
        assert http.post("/abort_requests", {"request_ids": ["mine"]}).json["aborted"] == 1
        thread.join()
    answer = got[0].json
    assert answer["id"] == "resp_mine" and answer["status"] == "incomplete"
    assert answer["incomplete_details"] == {"reason": "abort"}
