"""Calls of tools through /v1/responses and /v1/messages, with agents' clients: calls sent whole and
streamed, and their results returned. The model writes the output that the test chooses.
"""

import json
import re

import pytest

from scripted_model import serve_scripts

SCRIPTS = {
    "two": ["Let me", " look.", "<tool", "_call>", '\n{"name": "weather", "argu',
            'ments": {"city": "Par', 'is", "days": 2}}\n</tool_', "call>", "\n<tool_call>",
            '{"name": "time"}</tool_call>'],
    "around": ["Before it", "<tool_call>{", '"name": "time"', "}</tool_call>", " and after", " it all."],
    "answer": ["It is", " noon."],
    "silence": [],
}  # fmt: skip
CALLS = [("weather", {"city": "Paris", "days": 2}), ("time", {})]
# The model writes the script that the first message names, and its answer after a result.
TEMPLATE = "{% if messages[-1].role == 'tool' %}<script answer>{% else %}<script {{ messages[0].content }}>{% endif %}"
EXTRA = {"temperature": 0, "chat_template": TEMPLATE}


@pytest.fixture(scope="module")
def scripted():
    with serve_scripts(SCRIPTS) as served:
        yield served


@pytest.fixture
def tree(scripted):
    """Overrides conftest's fixture, for `http` and `front_end`."""
    return scripted


# ---- /v1/messages ----

MESSAGE_TOOLS = [{"name": name, "input_schema": {"type": "object"}} for name in ("weather", "time")]


@pytest.fixture
def anthropic_client(http):
    anthropic = pytest.importorskip("anthropic", reason="the package index could not be reached")
    with anthropic.Anthropic(base_url=http.url, api_key="any", max_retries=0) as client:
        yield client


def message(script, **more):
    body = {"model": "model", "max_tokens": 50, "messages": [{"role": "user", "content": script}],
            "tools": MESSAGE_TOOLS, "extra_body": EXTRA}  # fmt: skip
    return {**body, **more}


def blocks_of(answer):
    return [("text", block.text) if block.type == "text" else (block.name, block.input) for block in answer.content]


def test_a_message_has_text_and_calls_in_their_order(anthropic_client):
    answer = anthropic_client.messages.create(**message("two"))
    assert blocks_of(answer) == [("text", "Let me look."), *CALLS]
    assert answer.stop_reason == "tool_use" and answer.stop_sequence is None
    ids = [block.id for block in answer.content[1:]]
    assert len(set(ids)) == 2 and all(re.fullmatch("toolu_[0-9a-f]{24}", one) for one in ids)
    around = anthropic_client.messages.create(**message("around"))
    assert blocks_of(around) == [("text", "Before it"), ("time", {}), ("text", " and after it all.")]
    assert around.stop_reason == "tool_use"


@pytest.mark.parametrize("script", ["two", "around", "answer", "silence"])
def test_a_streamed_message_is_the_same(anthropic_client, script):
    whole = anthropic_client.messages.create(**message(script))
    with anthropic_client.messages.stream(**message(script)) as stream:
        types = [event.type for event in stream]
        streamed = stream.get_final_message()
    assert blocks_of(streamed) == blocks_of(whole)
    assert (streamed.stop_reason, streamed.usage) == (whole.stop_reason, whole.usage)
    assert types.count("content_block_start") == types.count("content_block_stop") == len(whole.content)


def test_a_round_of_messages_with_a_tool(anthropic_client):
    """As agents do: sends the answer's blocks back unchanged, with the results."""
    first = anthropic_client.messages.create(**message("two"))
    results = [
        {"type": "tool_result", "tool_use_id": block.id, "content": "noon"}
        for block in first.content
        if block.type == "tool_use"
    ]
    turns = [
        {"role": "user", "content": "two"},
        {"role": "assistant", "content": first.content},
        {"role": "user", "content": results},
    ]
    second = anthropic_client.messages.create(**message("", messages=turns))
    assert blocks_of(second) == [("text", "It is noon.")] and second.stop_reason == "end_turn"


def test_one_call_at_a_time_is_one_call(anthropic_client):
    choice = {"type": "auto", "disable_parallel_tool_use": True}
    answer = anthropic_client.messages.create(**message("two", tool_choice=choice))
    assert blocks_of(answer) == [("text", "Let me look."), CALLS[0]] and answer.stop_reason == "tool_use"
    with anthropic_client.messages.stream(**message("two", tool_choice=choice)) as stream:
        assert blocks_of(stream.get_final_message()) == blocks_of(answer)


@pytest.mark.parametrize("more", [{"tools": []}, {"tool_choice": {"type": "none"}}])
def test_a_message_without_tools_is_text(anthropic_client, more):
    answer = anthropic_client.messages.create(**message("two", **more))
    assert blocks_of(answer) == [("text", "".join(SCRIPTS["two"]))] and answer.stop_reason == "end_turn"


def test_a_call_that_is_cut_off_is_text_of_a_message(anthropic_client):
    answer = anthropic_client.messages.create(**message("two", max_tokens=6))
    assert blocks_of(answer) == [("text", "".join(SCRIPTS["two"][:6]))] and answer.stop_reason == "max_tokens"


# ---- /v1/responses ----

FUNCTIONS = [{"type": "function", "name": name, "parameters": {"type": "object"}} for name in ("weather", "time")]


@pytest.fixture
def openai_client(http):
    openai = pytest.importorskip("openai", reason="the package index could not be reached")
    with openai.OpenAI(base_url=http.url + "/v1", api_key="any", max_retries=0) as client:
        yield client


def response(script, **more):
    return {"model": "model", "input": script, "tools": FUNCTIONS, "extra_body": EXTRA, **more}


def items_of(answer):
    return [
        ("text", item.content[0].text) if item.type == "message" else (item.name, json.loads(item.arguments))
        for item in answer.output
    ]


def test_a_response_has_text_and_calls_in_their_order(openai_client):
    answer = openai_client.responses.create(**response("two"))
    assert items_of(answer) == [("text", "Let me look."), *CALLS] and answer.status == "completed"
    calls = [item for item in answer.output if item.type == "function_call"]
    assert all(re.fullmatch("call_[0-9a-f]{24}", call.call_id) for call in calls)
    assert len({item.id for item in answer.output}) == 3
    around = openai_client.responses.create(**response("around"))
    assert items_of(around) == [("text", "Before it"), ("time", {}), ("text", " and after it all.")]


@pytest.mark.parametrize("script", ["two", "around", "answer", "silence"])
def test_a_streamed_response_is_the_same(openai_client, script):
    whole = openai_client.responses.create(**response(script))
    with openai_client.responses.stream(**response(script)) as stream:
        events = list(stream)
        streamed = stream.get_final_response()
    assert items_of(streamed) == items_of(whole) and streamed.status == whole.status == "completed"
    assert streamed.usage.output_tokens == whole.usage.output_tokens
    done = [event.item for event in events if event.type == "response.output_item.done"]
    assert [item.id for item in done] == [item.id for item in streamed.output]
    told = [event for event in events if event.type == "response.function_call_arguments.done"]
    assert [event.arguments for event in told] == [item.arguments for item in done if item.type == "function_call"]


def test_a_round_of_responses_with_a_tool(openai_client):
    """As agents do: nothing is stored here, so the answer's items are sent back unchanged, with the outputs of the
    calls."""
    first = openai_client.responses.create(**response("two"))
    outputs = [
        {"type": "function_call_output", "call_id": item.call_id, "output": "noon"}
        for item in first.output
        if item.type == "function_call"
    ]
    items = [{"role": "user", "content": "two"}, *first.output, *outputs]
    second = openai_client.responses.create(**response(items))
    assert second.output_text == "It is noon." and second.status == "completed"


def test_one_call_at_a_time_is_one_function_call(openai_client):
    answer = openai_client.responses.create(**response("two", parallel_tool_calls=False))
    assert items_of(answer) == [("text", "Let me look."), CALLS[0]]
    assert answer.parallel_tool_calls is False and answer.status == "completed"


@pytest.mark.parametrize("more", [{"tools": []}, {"tool_choice": "none"}])
def test_a_response_without_tools_is_text(openai_client, more):
    assert items_of(openai_client.responses.create(**response("two", **more))) == [("text", "".join(SCRIPTS["two"]))]


def test_a_call_that_is_cut_off_is_text_of_a_response(openai_client):
    answer = openai_client.responses.create(**response("two", max_output_tokens=6))
    assert items_of(answer) == [("text", "".join(SCRIPTS["two"][:6]))]
    assert answer.status == "incomplete" and answer.incomplete_details.reason == "max_output_tokens"


def test_without_the_flag_a_call_is_text(front_end, tree):
    """Without the flag, both routes return a call as text, as /v1/chat/completions does."""
    http = front_end().http
    body = {"max_tokens": 50, "messages": [{"role": "user", "content": "two"}], "tools": MESSAGE_TOOLS, **EXTRA}
    (block,) = http.post("/v1/messages", body).json["content"]
    assert block["text"] == "".join(SCRIPTS["two"])
    (item,) = http.post("/v1/responses", {"input": "two", "tools": FUNCTIONS, **EXTRA}).json["output"]
    assert item["content"][0]["text"] == "".join(SCRIPTS["two"])
