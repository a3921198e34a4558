"""Anthropic's /v1/messages on a live tree, through Anthropic's own client and without it."""

import json

import pytest

from process_tree import wait_until

ASKED = [{"role": "user", "content": "Once upon a time"}]
GREEDY = {"model": "stories", "max_tokens": 6, "temperature": 0, "messages": ASKED}
TOOL = {"name": "weather", "description": "Says it.", "input_schema": {"type": "object", "b": 1, "a": 2}}
AS_OPENAI = {"type": "function", "function": {
    "name": "weather", "description": "Says it.", "parameters": {"type": "object", "b": 1, "a": 2}}}  # fmt: skip


def post(http, body, path="/v1/messages"):
    answer = http.post(path, {**GREEDY, **body})
    assert answer.status == 200, answer
    return answer.json


def prompt_of(http, **chat):
    """The token ids of the chat that a conversation must become."""
    return http.post("/tokenize", chat).json["tokens"]


@pytest.fixture
def client(http):
    anthropic = pytest.importorskip("anthropic", reason="the package index could not be reached")
    with anthropic.Anthropic(base_url=http.url, api_key="any", max_retries=0) as client:
        yield client


# Fields that a client sends in extra_body, as its newer versions have no parameters of these names.
def asked(**more):
    body = {"model": "stories", "max_tokens": 6, "messages": ASKED, "extra_body": {"temperature": 0}}
    return {**body, **more}


def test_a_message_is_the_assistants_turn(http):
    chat = http.post("/v1/chat/completions", {**GREEDY, "return_token_ids": True}).json
    answer = post(http, {"return_token_ids": True})
    text = chat["choices"][0]["message"]["content"]
    assert answer["id"].startswith("msg_") and answer["type"] == "message"
    assert answer["role"] == "assistant" and answer["model"] == "stories"
    assert answer["content"] == [{"type": "text", "text": text, "citations": None}]
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("max_tokens", None)
    assert answer["prompt_token_ids"] == chat["prompt_token_ids"]
    assert answer["token_ids"] == chat["choices"][0]["token_ids"]
    usage = answer["usage"]
    assert usage["output_tokens"] == 6 and usage["cache_creation_input_tokens"] == 0
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == len(answer["prompt_token_ids"])
    (span,) = answer["weight_version_spans"]
    assert (span["start"], span["end"]) == (0, 6)
    version = http.get("/weight_version").json
    assert (span["epoch"], span["digest"]) == (version["weight_epoch"], version["weight_digest"])
    assert answer["weight_versions"] == [{"version": "epoch 1", "start": 0, "end": 6}]


def test_cached_tokens_are_counted_apart(http):
    messages = [{"role": "user", "content": "Once there was a little dog who saw a big cat. " * 8}]
    post(http, {"messages": messages})
    usage = post(http, {"messages": messages})["usage"]
    count = http.post("/v1/messages/count_tokens", {"messages": messages}).json["input_tokens"]
    assert usage["cache_read_input_tokens"] > 0
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == count


def test_anthropics_client_reads_a_message(client):
    message = client.messages.create(**asked())
    assert message.type == "message" and message.content[0].type == "text"
    assert message.stop_reason == "max_tokens" and message.usage.output_tokens == 6
    assert message.weight_version_spans[0]["end"] == 6


def test_anthropics_client_streams_the_same(client):
    whole = client.messages.create(**asked(max_tokens=20))
    with client.messages.stream(**asked(max_tokens=20)) as stream:
        types = [event.type for event in stream]
        message = stream.get_final_message()
    assert types[0] == "message_start" and types[-2:] == ["message_delta", "message_stop"]
    (block,) = message.content
    assert block.text == whole.content[0].text and message.stop_reason == whole.stop_reason
    assert message.usage.output_tokens == 20
    assert types.count("content_block_start") == types.count("content_block_stop") == 1


def test_a_stream_is_the_events_of_the_api(http):
    body = {**GREEDY, "stream": True, "return_token_ids": True}
    start, block, *deltas, stop, delta, end = http.named_events("/v1/messages", body)
    message = start["message"]
    assert message["content"] == [] and message["stop_reason"] is None and message["role"] == "assistant"
    assert message["usage"]["input_tokens"] + message["usage"]["cache_read_input_tokens"] > 0
    assert block["content_block"] == {"type": "text", "text": "", "citations": None}
    assert {event["type"] for event in deltas} == {"content_block_delta"}
    assert {event["index"] for event in (block, *deltas, stop)} == {0}
    whole = post(http, {"return_token_ids": True})
    assert "".join(event["delta"]["text"] for event in deltas) == whole["content"][0]["text"]
    assert delta["delta"] == {"stop_reason": "max_tokens", "stop_sequence": None}
    assert delta["usage"]["output_tokens"] == 6 and delta["token_ids"] == whole["token_ids"]
    assert delta["weight_version_spans"][0]["end"] == 6
    assert end == {"type": "message_stop"}


def test_a_stop_sequence_is_named(client):
    first = client.messages.create(**asked(max_tokens=30)).content[0].text.split()[2]
    message = client.messages.create(**asked(max_tokens=30, stop_sequences=["<no>", first]))
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", first)
    assert first not in message.content[0].text
    with client.messages.stream(**asked(max_tokens=30, stop_sequences=[first])) as stream:
        streamed = stream.get_final_message()
    assert (streamed.stop_reason, streamed.stop_sequence) == ("stop_sequence", first)
    assert streamed.content[0].text == message.content[0].text


def test_the_conversation_is_the_templates(http):
    """A conversation of a system prompt, turns with blocks, a call and its result has the prompt of the same chat in
    OpenAI's form."""
    body = {
        "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
        "tools": [{**TOOL, "cache_control": {"type": "ephemeral"}}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "How is"}, {"type": "text", "text": "it?"}]},
            {"role": "assistant", "content": [
                {"type": "text", "text": "Let me look."},
                {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"z": 1, "a": "x"}}]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "21"}]},
                {"type": "text", "text": "And?"}]},
        ],
    }  # fmt: skip
    call = {"id": "toolu_1", "type": "function", "function": {"name": "weather", "arguments": '{"z": 1, "a": "x"}'}}
    expected = prompt_of(
        http,
        tools=[AS_OPENAI],
        messages=[
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "How is\nit?"},
            {"role": "assistant", "content": "Let me look.", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "toolu_1", "content": "21"},
            {"role": "user", "content": "And?"},
        ],
    )
    assert post(http, {**body, "return_token_ids": True})["prompt_token_ids"] == expected
    count = http.post("/v1/messages/count_tokens", {"model": "stories", **body})
    assert count.json == {"input_tokens": len(expected)}


def test_turns_of_one_role_are_one_turn(http):
    messages = [{"role": "user", "content": "Once"}, {"role": "user", "content": "upon"}]
    shown = post(http, {"messages": messages, "return_token_ids": True})["prompt_token_ids"]
    assert shown == prompt_of(http, messages=[{"role": "user", "content": "Once\nupon"}])


def test_the_assistants_last_words_are_gone_on_with(http):
    messages = ASKED + [{"role": "assistant", "content": "There was"}]
    shown = post(http, {"messages": messages, "return_token_ids": True})["prompt_token_ids"]
    going_on = {"continue_final_message": True, "add_generation_prompt": False}
    assert shown == prompt_of(http, messages=messages, **going_on)
    called = {"type": "tool_use", "id": "1", "name": "f", "input": {}}
    refused = http.post("/v1/messages", {**GREEDY, "messages": ASKED + [{"role": "assistant", "content": [called]}]})
    assert refused.status == 400 and "messages[1]" in refused.message


def test_the_variables_that_a_template_gets(http):
    template = "{{ enable_thinking }} {{ reasoning_effort }} {{ tools }} {{ messages | tojson }}"
    body = {"chat_template": template, "return_token_ids": True, "tools": [TOOL]}
    shown = post(http, {
        **body, "thinking": {"type": "disabled"}, "output_config": {"effort": "low"},
        "tool_choice": {"type": "none"},
        "messages": [
            {"role": "user", "content": "?"},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "hm", "signature": ""},
                {"type": "tool_use", "id": "1", "name": "f", "input": {}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "is_error": True, "content": "no"}]},
        ]})["prompt_token_ids"]  # fmt: skip
    text = http.post("/detokenize", {"tokens": shown}).json["prompt"]
    thinking, effort, tools, messages = text.split(" ", 3)
    assert (thinking, effort, tools) == ("False", "low", "None")
    _, said, result = json.loads(messages)
    assert said["reasoning_content"] == "hm" and said["content"] is None
    assert result == {"role": "tool", "content": "no", "tool_call_id": "1", "is_error": True}


IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}


@pytest.mark.parametrize(
    "body, named",
    [
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [7]}, "messages[0]"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0]"),
        ({"messages": [{"role": "user"}]}, "messages[0]"),
        ({"messages": [{"role": "user", "content": 7}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [IMAGE]}]}, 'messages[0].content[0]: "image"'),
        ({"messages": [{"role": "user", "content": [{"type": "document"}]}]}, '"document"'),
        ({"messages": [{"role": "user", "content": [{"type": "tool_use"}]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "1", "content": [IMAGE]}]}]}, ".content[0].content[0]"),
        ({"messages": [{"role": "assistant", "content": [{"type": "redacted_thinking"}]}]}, "redacted_thinking"),
        ({"system": 7}, "system"),
        ({"system": [IMAGE]}, "system[0]"),
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": "many"}, "max_tokens"),
        ({"max_tokens": 100000}, "context"),
        ({"temperature": -1}, "temperature"),
        ({"stop_sequences": [""]}, "stop_sequences"),
        ({"stop_sequences": [7]}, "stop_sequences"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "thinking"),
        ({"thinking": 7}, "thinking"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config"),
        ({"output_config": {"effort": 7}}, "output_config"),
        ({"tools": 7}, "tools"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0]"),
        ({"tools": [TOOL, {"name": "f"}]}, "tools[1]: input_schema"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tool_choice": {"type": "tool", "name": "weather"}}, "tool_choice"),
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"tool_choice": {"type": "auto", "disable_parallel_tool_use": "maybe"}}, "tool_choice"),
        ({"mcp_servers": [{"type": "url"}]}, "mcp_servers"),
        ({"container": "c"}, "container"),
        ({"context_management": {"edits": [{"type": "x"}]}}, "context_management"),
        ({"n": 2}, "n"),
        ({"logprobs": True}, "logprobs"),
        ({"return_prompt_text": True}, "return_prompt_text"),
        ({"return_prompt_token_ids": True}, "return_prompt_token_ids"),
        ({"bad_words": ["no", " "]}, "bad_words"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs_mode": "raw"}, "logprobs_mode"),
        ({"stream": "maybe"}, "stream"),
        ({"chat_template": "{{ raise_exception('no way') }}"}, "no way"),
    ],
)  # fmt: skip
def test_a_field_that_is_not_served_is_refused_by_name_in_anthropics_shape(http, body, named):
    refused = http.post("/v1/messages", {**GREEDY, **body})
    assert refused.status == 400 and named in refused.message, refused
    assert refused.json["type"] == "error" and set(refused.json) == {"type", "error"}
    assert refused.json["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    "body",
    [
        {"metadata": {"user_id": "u"}, "service_tier": "auto"},
        {"thinking": {"type": "adaptive"}, "context_management": None},
        {"tools": [], "tool_choice": {"type": "auto"}},
        {"stop_sequences": [], "top_k": 5, "top_p": 0.9},
        {"system": ""},
    ],
)
def test_fields_that_change_nothing_are_taken(http, body):
    post(http, body)


def test_anthropics_client_knows_our_errors_by_their_type(client, http):
    anthropic = pytest.importorskip("anthropic")
    with pytest.raises(anthropic.NotFoundError, match="claude"):
        client.messages.create(**asked(model="claude"))
    with pytest.raises(anthropic.BadRequestError, match="context"):
        client.messages.create(**asked(max_tokens=5000))
    too_long = [{"role": "user", "content": "x " * 2000}]
    with pytest.raises(anthropic.BadRequestError, match=r"prompt is too long: \d+ tokens > 1024 maximum"):
        client.messages.create(**asked(messages=too_long))
    with pytest.raises(anthropic.BadRequestError, match="image"):
        client.messages.create(**asked(messages=[{"role": "user", "content": [IMAGE]}]))
    with pytest.raises(anthropic.NotFoundError):
        client.messages.count_tokens(model="claude", messages=ASKED)
    assert http.get("/v1/messages").status == 405
    missing = http.post("/v1/messages/batches", {})
    assert missing.status == 404 and missing.json["error"]["type"] == "not_found_error"
    assert missing.json["type"] == "error"
    assert http.post("/v1/messages", json.dumps(GREEDY), headers={"Content-Type": "text/plain"}).status == 400


@pytest.mark.parametrize("bytes_", [b"{", b"[]", b"\xff", b"[" * 5000, b'{"messages": ' + b"[" * 90])
def test_a_body_that_is_no_json_is_refused_cheaply(http, bytes_):
    refused = http.call("POST", "/v1/messages", bytes_, {"Content-Type": "application/json"})
    assert refused.status == 400 and refused.json["type"] == "error", refused


def test_the_client_counts(client):
    count = client.messages.count_tokens(model="stories", messages=ASKED, system="Be brief.", tools=[TOOL])
    bare = client.messages.count_tokens(model="stories", messages=ASKED)
    assert count.input_tokens > bare.input_tokens > 4


def test_the_clients_key_opens_the_route(front_end, tree):
    anthropic = pytest.importorskip("anthropic", reason="the package index could not be reached")
    url = front_end(env={"PITSTOP_API_KEY": "api-secret"}).http.url
    # Anthropic's own header x-api-key, and the usual header Authorization.
    for named in ({"api_key": "api-secret"}, {"auth_token": "api-secret"}):
        with anthropic.Anthropic(base_url=url, max_retries=0, **named) as client:
            assert client.messages.create(**asked()).usage.output_tokens == 6
    with anthropic.Anthropic(base_url=url, max_retries=0, api_key="wrong") as client:
        with pytest.raises(anthropic.AuthenticationError) as refused:
            client.messages.create(**asked())
    assert refused.value.body["error"]["type"] == "authentication_error"


def test_a_client_that_leaves_a_stream_ends_it(client, wait_for_open):
    # Enough tokens that the answer does not end by itself during the test.
    body = {"temperature": 0, "ignore_eos": True}
    with client.messages.stream(**asked(max_tokens=900, extra_body=body)) as stream:
        next(iter(stream))
    wait_for_open(0)


def test_an_abort_is_told(http, admin, paused, wait_for_open):
    import threading

    got = []
    body = {**GREEDY, "max_tokens": 800, "ignore_eos": True}
    with paused():
        thread = threading.Thread(
            target=lambda: got.append(http.post("/v1/messages", body, headers={"X-Request-Id": "mine"}))
        )
        thread.start()
        wait_for_open(1)
        assert http.post("/abort_requests", {"request_ids": ["msg_mine"]}).json["aborted"] == 1
        thread.join()
    assert got[0].json["id"] == "msg_mine" and got[0].json["stop_reason"] == "abort"
    wait_until(lambda: admin.call("status")["open_requests"] == 0, "nothing to be open")
