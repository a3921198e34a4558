"""Calls of tools in chats, whole and streamed: the model's output in each format, returned in the
form that OpenAI's clients read. The model writes the output that the test chooses.
"""

import json
import re

import pytest

from scripted_model import serve_scripts

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}]
SCRIPTS = {
    "hermes": ["Let me", " look.", "<tool", "_call>", '\n{"name": "weather", "argu',
               'ments": {"city": "Par', 'is", "days": 2}}\n</tool_', "call>", "\n<tool_call>",
               '{"name": "time"}</tool_call>'],
    "malformed": ["<tool_call>{no", "thing}</tool_call>", " so."],
    "plain": ["It is", " sunny", " today."],
    "llama3": [("<|python_tag|>",), '{"name": "weather", ', '"parameters": {"city": "Paris", "days"',
               ": 2}}", "; ", '{"name": "time", "parameters": {}}'],
    "mistral": [("[TOOL_CALLS]",), ' [{"name": "weather", "arguments"', ': {"city": "Paris", "days": 2',
                '}}, {"name": "time", "arguments": {}}]'],
    "qwen3_coder": ["I shall", " see.", "\n<tool_call>\n<function=", "weather>\n<para", "meter=city>\nPa", "ris\n</param",
                    "eter>\n<parameter=days>\n", "2\n</parameter>\n", "</function>\n</tool_call>\n",
                    "<tool_call>\n<function=time>\n</function>\n</tool_call>"],
    "kimi_k2": [("<|tool_calls_section_begin|>",), ("<|tool_call_begin|>",), "functions.weather:0",
                ("<|tool_call_argument_begin|>",), '{"city": "Paris", ', '"days": 2 }', ("<|tool_call_end|>",),
                "<|tool_call_begin|>functions.time:1<|tool_call_argument_begin|>{}<|tool_call_end|>",
                ("<|tool_calls_section_end|>",)],
}  # fmt: skip
CALLS = [("weather", {"city": "Paris", "days": 2}), ("time", {})]


@pytest.fixture(scope="module")
def scripted():
    with serve_scripts(SCRIPTS) as served:
        yield served


@pytest.fixture
def tree(scripted):
    """Overrides conftest's fixture, for `http`, `door` and `front_end`."""
    return scripted


def text_of(script):
    return "".join(piece[0] if isinstance(piece, tuple) else piece for piece in SCRIPTS[script])


def body_of(tree, script, **more):
    return {"input_ids": tree.prompts[script], "temperature": 0, "tools": TOOLS, **more}


def chat(http, tree, script, **more):
    answer = http.post("/v1/chat/completions", body_of(tree, script, **more))
    assert answer.status == 200, answer
    return answer.json["choices"][0]


def streamed(http, tree, script, **more):
    """A stream's pieces joined: content, calls, finish_reason; and its deltas."""
    content, calls, reason, deltas = "", {}, None, []
    for event in http.events("/v1/chat/completions", body_of(tree, script, stream=True, **more)):
        for choice in event["choices"]:
            delta = choice["delta"]
            deltas.append(delta)
            content += delta.get("content") or ""
            for call in delta.get("tool_calls", ()):
                if call["index"] in calls:
                    assert set(call) == {"index", "function"} and set(call["function"]) == {"arguments"}
                    calls[call["index"]]["function"]["arguments"] += call["function"]["arguments"]
                else:
                    assert call["type"] == "function" and call["id"] and call["function"]["name"]
                    calls[call["index"]] = call
            reason = choice["finish_reason"] or reason
    return content, [calls[i] for i in sorted(calls)], reason, deltas


def essence(calls):
    return [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in calls]


TEXTS = {"hermes": "Let me look.", "qwen3_coder": "I shall see.\n"}


@pytest.fixture(params=["hermes", "llama3", "mistral", "qwen3_coder", "kimi_k2"])
def with_parser(request, http, front_end):
    """(a format, a client of a server that reads it)"""
    if request.param == "hermes":
        return request.param, http
    return request.param, front_end("--tool-call-parser", request.param).http


def test_calls_are_told_with_ids_and_end_with_tool_calls(with_parser, tree):
    script, http = with_parser
    choice = chat(http, tree, script)
    message = choice["message"]
    assert essence(message["tool_calls"]) == CALLS
    assert message["content"] == TEXTS.get(script)
    assert message["role"] == "assistant" and choice["finish_reason"] == "tool_calls"
    ids = [call["id"] for call in message["tool_calls"]]
    patterns = {"mistral": "[0-9a-zA-Z]{9}", "kimi_k2": "functions[.](weather:0|time:1)"}
    pattern = patterns.get(script, "call_[0-9a-f]{24}")
    assert len(set(ids)) == 2 and all(re.fullmatch(pattern, call_id) for call_id in ids)


def test_a_stream_tells_the_same_call_by_call(with_parser, tree):
    script, http = with_parser
    content, calls, reason, deltas = streamed(http, tree, script)
    assert essence(calls) == CALLS and reason == "tool_calls"
    assert content == TEXTS.get(script, "")
    assert [call["function"]["arguments"] for call in calls] == ['{"city":"Paris","days":2}', "{}"]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert len({call["id"] for call in calls}) == 2


def test_logprobs_and_ids_are_of_every_token_whatever_was_told(http, tree):
    choice = chat(http, tree, "hermes", logprobs=True, return_token_ids=True)
    assert len(choice["logprobs"]["content"]) == len(choice["token_ids"]) == len(SCRIPTS["hermes"]) + 1
    body = body_of(tree, "hermes", stream=True, return_token_ids=True)
    parts = [event["choices"][0] for event in http.events("/v1/chat/completions", body)]
    assert sum((part.get("token_ids", []) for part in parts), []) == choice["token_ids"]


@pytest.mark.parametrize("script", ["plain", "malformed"])
def test_output_that_is_no_call_is_text_as_it_was_written(http, tree, script):
    choice = chat(http, tree, script)
    assert choice["message"] == {"role": "assistant", "content": text_of(script), "refusal": None}
    assert choice["finish_reason"] == "stop"
    content, calls, reason, _ = streamed(http, tree, script)
    assert (content, calls, reason) == (text_of(script), [], "stop")


def test_a_call_that_is_cut_off_is_text(http, tree):
    choice = chat(http, tree, "hermes", max_tokens=6)
    assert choice["message"]["content"] == "".join(SCRIPTS["hermes"][:6])
    assert "tool_calls" not in choice["message"] and choice["finish_reason"] == "length"
    content, (call,), reason, _ = streamed(http, tree, "hermes", max_tokens=6)
    assert (content, reason) == ("Let me look.", "length")
    assert call["function"] == {"name": "weather", "arguments": '{"city":"Par'}


@pytest.mark.parametrize("more", [{"tools": None}, {"tools": []}, {"tool_choice": "none"}])
def test_nothing_is_looked_for_without_tools(http, tree, more):
    choice = chat(http, tree, "hermes", **more)
    assert choice["message"]["content"] == text_of("hermes") and choice["finish_reason"] == "stop"


def test_nothing_is_looked_for_without_the_flag(front_end, tree):
    choice = chat(front_end().http, tree, "hermes")
    assert choice["message"]["content"] == text_of("hermes") and choice["finish_reason"] == "stop"


def test_several_samples_have_calls_of_their_own(http, tree):
    answer = http.post("/v1/chat/completions", body_of(tree, "hermes", n=3)).json
    ids = [call["id"] for choice in answer["choices"] for call in choice["message"]["tool_calls"]]
    assert len(ids) == len(set(ids)) == 6


def test_openais_client_reads_calls(http, tree):
    openai = pytest.importorskip("openai", reason="the package index could not be reached")
    with openai.OpenAI(base_url=http.url + "/v1", api_key="any", max_retries=0) as client:
        asked = {"model": "model", "messages": [{"role": "user", "content": "?"}], "tools": TOOLS,
                 "temperature": 0, "extra_body": {"input_ids": tree.prompts["hermes"]}}  # fmt: skip
        choice = client.chat.completions.create(**asked).choices[0]
        assert choice.finish_reason == "tool_calls" and choice.message.content == "Let me look."
        assert [call.function.name for call in choice.message.tool_calls] == ["weather", "time"]
        with client.chat.completions.stream(**asked) as stream:
            message = stream.get_final_completion().choices[0].message
        assert [json.loads(call.function.arguments) for call in message.tool_calls] == [
            {"city": "Paris", "days": 2},
            {},
        ]


def test_a_format_that_is_not_known_is_refused_with_those_that_are(front_end):
    server = front_end("--tool-call-parser", "klingon")
    assert server.http is None
    said = server.process.stderr.read()
    assert "klingon" in said and "hermes" in said and "mistral" in said


def test_one_call_at_most_where_calls_may_not_be_parallel(http, tree):
    """The text after the first call is left out. finish_reason is tool_calls even if that text reached the limit."""
    one = {"parallel_tool_calls": False}
    for more in ({}, {"max_tokens": 8}):
        choice = chat(http, tree, "hermes", **one, **more)
        assert essence(choice["message"]["tool_calls"]) == CALLS[:1]
        assert choice["message"]["content"] == "Let me look." and choice["finish_reason"] == "tool_calls"
        _, calls, reason, _ = streamed(http, tree, "hermes", **one, **more)
        assert essence(calls) == CALLS[:1] and reason == "tool_calls"
    assert chat(http, tree, "plain", **one)["finish_reason"] == "stop"
    assert chat(http, tree, "hermes", max_tokens=1, **one)["finish_reason"] == "length"
    assert essence(chat(http, tree, "hermes", parallel_tool_calls=True)["message"]["tool_calls"]) == CALLS
    refused = http.post("/v1/chat/completions", body_of(tree, "plain", parallel_tool_calls="some"))
    assert refused.status == 400 and "parallel_tool_calls" in refused.message
