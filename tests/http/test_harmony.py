"""gpt-oss's messages, on every route of chats: a model writes the output that the test chooses. Its markers are special
tokens, and <|call|> ends a call as its last token.
"""

import pytest

from scripted_model import serve_scripts

FLAGS = ("--tool-call-parser", "gpt-oss", "--reasoning-parser", "gpt-oss")
SCRIPTS = {
    "call": [("<|channel|>",), "analysis", ("<|message|>",), "Look it", " up.", ("<|end|>",), ("<|start|>",), "assistant",
             ("<|channel|> ",), "commentary to=functions.weather ", ("<|constrain|>",), "json", ("<|message|> ",), '{"city": "Pa',
             'ris"}'],
    "final": ["<|channel|>analysis<|message|>", "Two.", "<|end|><|start|>assistant<|channel|>final<|message|>", "It is", " 4."],
    "forced": ["<|channel|>commentary to=functions.weather <|constrain|>json<|message|>", '{"city": "Rome"}'],
}  # fmt: skip
CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
EXTRA = {"temperature": 0, "chat_template": "{{ '<script ' + messages[0].content + '>' }}"}
NAME = "weather"


@pytest.fixture(scope="module")
def scripted():
    with serve_scripts(SCRIPTS) as served:
        yield served


@pytest.fixture
def tree(scripted):
    """Overrides conftest's fixture, for `http` and `front_end`."""
    return scripted


@pytest.fixture
def server(front_end):
    return front_end(*FLAGS).http


def body_of(path, script, **more):
    turns = [{"role": "user", "content": script}]
    if path == CHAT:
        tools = [{"type": "function", "function": {"name": NAME, "parameters": {"type": "object"}}}]
        return {"messages": turns, "tools": tools, **EXTRA, **more}
    if path == RESPONSES:
        return {
            "input": script,
            "tools": [{"type": "function", "name": NAME, "parameters": {"type": "object"}}],
            **EXTRA,
            **more,
        }
    return {
        "messages": turns,
        "max_tokens": 50,
        "tools": [{"name": NAME, "input_schema": {"type": "object"}}],
        **EXTRA,
        **more,
    }


def test_a_chat_tells_thinking_and_calls_apart(server):
    answer = server.post(CHAT, body_of(CHAT, "call")).json
    (choice,) = answer["choices"]
    (call,) = choice["message"]["tool_calls"]
    assert (call["function"]["name"], call["function"]["arguments"]) == (NAME, '{"city":"Paris"}')
    assert choice["message"]["reasoning_content"] == "Look it up." and choice["message"]["content"] is None
    assert choice["finish_reason"] == "tool_calls"
    assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] == 6  # including the header and the marker
    final = server.post(CHAT, body_of(CHAT, "final")).json["choices"][0]
    assert final["message"]["content"] == "It is 4." and final["message"]["reasoning_content"] == "Two."
    assert final["finish_reason"] == "stop" and not final["message"].get("tool_calls")


def test_a_stream_tells_the_same(server):
    deltas = [c["delta"] for event in server.events(CHAT, body_of(CHAT, "call", stream=True)) for c in event["choices"]]
    assert "".join(delta.get("reasoning_content") or "" for delta in deltas) == "Look it up."
    calls = [call["function"] for delta in deltas for call in delta.get("tool_calls") or ()]
    assert calls[0]["name"] == NAME and "".join(call["arguments"] for call in calls) == '{"city":"Paris"}'
    assert not any(delta.get("content") for delta in deltas)
    whole = list(server.events(CHAT, body_of(CHAT, "final", stream=True, stream_reasoning=False)))
    thoughts = [c["delta"].get("reasoning_content") for event in whole for c in event["choices"]]
    assert [thought for thought in thoughts if thought] == ["Two."]


def test_responses_and_messages_tell_the_same(server):
    items = server.post(RESPONSES, body_of(RESPONSES, "call")).json["output"]
    assert [item["type"] for item in items] == ["reasoning", "function_call"] and items[1][
        "arguments"
    ] == '{"city":"Paris"}'
    blocks = server.post(MESSAGES, body_of(MESSAGES, "call")).json["content"]
    assert [block["type"] for block in blocks] == ["thinking", "tool_use"] and blocks[1]["input"] == {"city": "Paris"}


def test_parts_that_are_not_asked_for_are_left_out_or_unparsed(server):
    hidden = server.post(CHAT, body_of(CHAT, "final", include_reasoning=False)).json["choices"][0]["message"]
    assert hidden["content"] == "It is 4." and not hidden.get("reasoning_content")
    both = server.post(CHAT, body_of(CHAT, "final", separate_reasoning=False)).json["choices"][0]["message"]
    assert both["content"] == "<|channel|>analysis<|message|>Two.<|end|>It is 4."
    no_tools = server.post(CHAT, body_of(CHAT, "call", tools=[])).json["choices"][0]["message"]
    assert no_tools["content"].startswith("<|start|>assistant<|channel|> commentary to=functions.weather")
    for field in ({"thinking_token_budget": 3}, {"max_thinking_tokens": 3}):
        refused = server.post(CHAT, body_of(CHAT, "final", **field))
        assert refused.status == 400 and "special token" in refused.message


def test_a_forced_call_begins_as_gpt_oss_writes_it(server):
    choice = {"type": "function", "function": {"name": NAME}}
    (made,) = server.post(CHAT, body_of(CHAT, "other", tool_choice=choice)).json["choices"]
    (call,) = made["message"]["tool_calls"]
    assert (call["function"]["name"], call["function"]["arguments"]) == (NAME, '{"city":"Rome"}')


def test_another_format_with_one_of_the_flags_is_an_error(front_end):
    for flags in (("--tool-call-parser", "gpt-oss", "--reasoning-parser", "qwen3"),
                  ("--tool-call-parser", "hermes", "--reasoning-parser", "openai_gptoss")):  # fmt: skip
        server = front_end(*flags)
        assert server.http is None
        assert "name gpt-oss's with both" in server.process.stderr.read()
