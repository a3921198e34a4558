"""Calls of tools whose arguments a grammar holds to their schemas: forced calls, and those of strict tools. The model
writes stories, at temperature 1."""

import json
import re

import pytest

jsonschema = pytest.importorskip("jsonschema", reason="the package index could not be reached")

TREE_FLAGS = ("--speculate", "4")
CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
FORMATS = ("hermes", "llama3", "mistral", "qwen3_coder", "glm45", "glm47")
# In these formats a grammar holds a call only if tool_choice names its function.
NAMED_FORMATS = ("kimi_k2", "deepseekv3", "deepseekv31", "gpt-oss")
SCHEMAS = {
    "weather": {
        "type": "object",
        "properties": {
            "where": {"type": "string", "maxLength": 9},
            "days": {"type": "integer", "minimum": 1, "maximum": 9},
            "unit": {"enum": ["celsius", "kelvin"]},
            "sea": {"type": "boolean"},
        },
        "required": ["where", "days"],
        "additionalProperties": False,
    },
    "book": {
        "$defs": {
            "Guest": {
                "type": "object",
                "properties": {"name": {"type": "string", "maxLength": 5}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
                "required": ["name", "age"],
                "additionalProperties": False,
            },
            "Room": {"enum": ["red", "blue"], "type": "string"},
        },
        "type": "object",
        "properties": {
            "guest": {"$ref": "#/$defs/Guest"},
            "room": {"$ref": "#/$defs/Room"},
            "nights": {"type": "array", "items": {"type": "integer", "minimum": 1, "maximum": 30}, "maxItems": 3},
            "note": {"anyOf": [{"type": "string", "enum": ["late", "early"]}, {"type": "null"}]},
            "key": {"type": ["integer", "null"], "maximum": 9, "minimum": 0},
        },
        "required": ["guest", "room", "nights", "note"],
        "additionalProperties": False,
    },
    "ping": {"type": "object", "properties": {}, "additionalProperties": False},
}  # fmt: skip


@pytest.fixture(autouse=True)
def grammars_are_built(http):
    answer = http.post("/generate", {"text": "Once", "sampling_params": {"max_new_tokens": 1, "regex": "a"}})
    if answer.status != 200 and "no xgrammar" in answer.message:
        pytest.skip(answer.message)


@pytest.fixture
def server(front_end):
    """The server that reads a format of calls."""
    return lambda name, *flags: front_end("--tool-call-parser", name, *flags).http


def body_of(path, choice, strict=None, schemas=SCHEMAS, **more):
    extra = {} if strict is None else {"strict": strict}
    turns = [{"role": "user", "content": "Once upon a time"}]
    if path == CHAT:
        tools = [
            {"type": "function", "function": {"name": name, "parameters": schema, **extra}}
            for name, schema in schemas.items()
        ]
        body = {"messages": turns, "max_tokens": 250}
    elif path == RESPONSES:
        tools = [{"type": "function", "name": name, "parameters": schema, **extra} for name, schema in schemas.items()]
        body = {"input": "Once upon a time", "max_output_tokens": 250}
    else:
        tools = [{"name": name, "input_schema": schema, **extra} for name, schema in schemas.items()]
        body = {"messages": turns, "max_tokens": 250}
    return {**body, "temperature": 1, "tools": tools, "tool_choice": choice, **more}


def forced(path, name=None):
    if name is None:
        return {CHAT: "required", RESPONSES: "required", MESSAGES: {"type": "any"}}[path]
    return {
        CHAT: {"type": "function", "function": {"name": name}},
        RESPONSES: {"type": "function", "name": name},
        MESSAGES: {"type": "tool", "name": name},
    }[path]


def said(path, answer):
    """Returns the calls, the text, and whether the output is complete."""
    assert answer.status == 200, answer
    told = answer.json
    if path == CHAT:
        (choice,) = told["choices"]
        calls = [
            (call["function"]["name"], json.loads(call["function"]["arguments"]))
            for call in choice["message"].get("tool_calls", ())
        ]
        return calls, choice["message"]["content"], choice["finish_reason"] != "length"
    if path == RESPONSES:
        calls = [
            (item["name"], json.loads(item["arguments"])) for item in told["output"] if item["type"] == "function_call"
        ]
        texts = [part["text"] for item in told["output"] if item["type"] == "message" for part in item["content"]]
        return calls, "".join(texts), told["status"] == "completed"
    calls = [(block["name"], block["input"]) for block in told["content"] if block["type"] == "tool_use"]
    texts = [block["text"] for block in told["content"] if block["type"] == "text"]
    return calls, "".join(texts), told["stop_reason"] == "tool_use"


def check(calls):
    for name, arguments in calls:
        jsonschema.validate(arguments, SCHEMAS[name])


@pytest.mark.parametrize("name", FORMATS)
def test_every_forced_call_is_of_a_tool_and_its_arguments_validate(server, name):
    http = server(name)
    num_whole = 0
    for path in (CHAT, RESPONSES, MESSAGES):
        for seed in range(6):
            choice = forced(path)
            one = {} if seed % 2 or path == MESSAGES else {"parallel_tool_calls": False}
            if path == MESSAGES and seed % 2 == 0:
                choice = {**choice, "disable_parallel_tool_use": True}
            calls, text, is_whole = said(path, http.post(path, body_of(path, choice, seed=seed, **one)))
            check(calls)
            if is_whole:
                assert calls and not text, text
                num_whole += 1
    assert num_whole >= 8, "few outputs came to their end"


@pytest.mark.parametrize("name", FORMATS + NAMED_FORMATS)
@pytest.mark.parametrize("tool", SCHEMAS)
def test_the_named_tool_is_called_once(server, name, tool):
    http = server(name)
    for path in (CHAT, RESPONSES, MESSAGES):
        for seed in range(3):
            longer = {
                "max_output_tokens" if path == RESPONSES else "max_tokens": 430
            }  # a tag of GLM's has ten tokens here
            calls, text, is_whole = said(path, http.post(path, body_of(path, forced(path, tool), seed=seed, **longer)))
            assert is_whole and not text and [called for called, _ in calls] == [tool], (calls, text)
            check(calls)


@pytest.mark.parametrize("name", FORMATS + NAMED_FORMATS)
def test_a_stream_tells_the_same(server, name):
    http = server(name)
    body = body_of(CHAT, forced(CHAT, "weather"), seed=3)
    whole = http.post(CHAT, body).json["choices"][0]
    streamed = {}
    for event in http.events(CHAT, {**body, "stream": True}):
        for choice in event["choices"]:
            for call in choice["delta"].get("tool_calls") or ():
                told = streamed.setdefault(call["index"], ["", ""])
                told[0] += call["function"].get("name") or ""
                told[1] += call["function"].get("arguments") or ""
    calls = [
        [call["function"]["name"], call["function"]["arguments"]] for call in whole["message"].get("tool_calls", ())
    ]
    assert list(streamed.values())[: len(calls)] == calls and calls


def test_P11_drafts_change_no_call(server):
    http = server("hermes")
    body = body_of(CHAT, forced(CHAT), seed=5, return_token_ids=True, logprobs=True, draft_key="none")
    plain = http.post(CHAT, body).json["choices"][0]
    drafted = http.post(CHAT, {**body, "draft_key": "some", "draft_ids": plain["token_ids"]}).json["choices"][0]
    assert drafted["token_ids"] == plain["token_ids"] and drafted["logprobs"] == plain["logprobs"]


def test_parallel_calls_are_none_where_one_is_wanted(server):
    http = server("hermes")
    for seed in range(5):
        body = body_of(CHAT, "required", seed=seed, parallel_tool_calls=False)
        calls, text, is_whole = said(CHAT, http.post(CHAT, body))
        assert is_whole and len(calls) == 1 and not text
        check(calls)


def test_a_forced_call_ends_the_thinking_of_its_prompt(server):
    http = server("hermes", "--reasoning-parser", "qwen3")
    body = body_of(
        CHAT, "required", seed=1, parallel_tool_calls=False, chat_template="{{ messages[0].content }}<think>"
    )
    calls, text, is_whole = said(CHAT, http.post(CHAT, body))
    assert is_whole and len(calls) == 1 and not text
    check(calls)


@pytest.mark.parametrize("name", ("hermes", "llama3", "qwen3_coder", "glm45", "glm47"))
def test_texts_beside_strict_tools_are_free(server, name):
    """Until a call begins, the draws are the same as without a grammar."""
    http = server(name)
    for path in (CHAT, RESPONSES, MESSAGES):
        free = body_of(path, {"type": "auto"} if path == MESSAGES else "auto", seed=2)
        calls, text, _ = said(path, http.post(path, free))
        assert not calls and text
        held = body_of(path, {"type": "auto"} if path == MESSAGES else "auto", strict=True, seed=2)
        assert said(path, http.post(path, held))[:2] == ([], text)


@pytest.mark.parametrize(
    "parser, schema, more, named",
    [
        ("kimi_k2", SCHEMAS["ping"], {"strict": True}, "strict"),
        ("gpt-oss", SCHEMAS["ping"], {"strict": True, "choice": "required"}, "strict"),
        ("pythonic", SCHEMAS["ping"], {"strict": True, "choice": forced(CHAT, "tool_x")}, "strict"),
        ("mistral", SCHEMAS["ping"], {"strict": True}, "strict"),
        ("hermes", {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}, {"strict": True}, "uniqueItems"),
        ("hermes", {"type": "object", "not": {"required": ["a"]}}, {"choice": "required"}, "not"),
        ("hermes", {"type": "array"}, {"choice": "required"}, "object"),
        ("hermes", SCHEMAS["ping"], {"choice": "required", "regex": "a"}, "grammar"),
        ("qwen3_coder", {"type": "object", "properties": {"a": {"type": "string", "pattern": "a+"}}}, {"strict": True}, "pattern"),
        ("qwen3_coder", {"type": "object", "minProperties": 1}, {"choice": "required"}, "minProperties"),
    ],
)  # fmt: skip
def test_a_schema_that_no_grammar_can_hold_is_refused_by_name(server, parser, schema, more, named):
    more = dict(more)
    body = body_of(CHAT, more.pop("choice", "auto"), more.pop("strict", None), {"tool_x": schema}, **more)
    answer = server(parser).post(CHAT, body)
    assert answer.status == 400 and re.search(named, answer.message), answer


# A JSON value may contain the tag that ends a value, and a name may contain braces.
@pytest.mark.parametrize("name", ("qwen3_coder", "glm45"))
def test_a_value_of_json_may_have_the_tag_that_ends_values(server, name):
    tag = {"qwen3_coder": "</parameter>", "glm45": "</arg_value>"}[name]
    schema = {"type": "object", "properties": {"a": {"type": "object", "properties": {"b": {"type": "string", "pattern": f"^x{tag}y$"}},
              "required": ["b"], "additionalProperties": False}}, "required": ["a"]}  # fmt: skip
    calls, text, is_whole = said(
        CHAT, server(name).post(CHAT, body_of(CHAT, "required", schemas={"f": schema}, parallel_tool_calls=False))
    )
    assert is_whole and (calls, text) == ([("f", {"a": {"b": f"x{tag}y"}})], None)


@pytest.mark.parametrize("name", ("hermes", "llama3", "mistral"))
@pytest.mark.parametrize("tool", ("a{}b", "{q}"))
def test_a_name_may_have_braces(server, name, tool):
    calls, text, is_whole = said(
        CHAT, server(name).post(CHAT, body_of(CHAT, forced(CHAT, tool), schemas={tool: SCHEMAS["ping"]}))
    )
    assert is_whole and (calls, text) == ([(tool, {})], None)


def test_a_name_that_a_format_cannot_write_is_refused(server):
    answer = server("qwen3_coder").post(CHAT, body_of(CHAT, forced(CHAT, "a{}b"), schemas={"a{}b": SCHEMAS["ping"]}))
    assert answer.status == 400 and "'a{}b'" in answer.message and "letters" in answer.message, answer


def test_without_a_format_of_calls_strict_has_no_effect_and_responses_say_so(front_end, server):
    http = front_end().http
    for path in (CHAT, RESPONSES, MESSAGES):
        choice = {"type": "auto"} if path == MESSAGES else "auto"
        answer = http.post(path, body_of(path, choice, strict=True, seed=1))
        assert answer.status == 200, answer
        if path == RESPONSES:
            assert {tool["strict"] for tool in answer.json["tools"]} == {False}
    answer = server("hermes").post(RESPONSES, body_of(RESPONSES, "auto", strict=True, seed=1, max_output_tokens=3))
    assert {tool["strict"] for tool in answer.json["tools"]} == {True}


def test_tools_and_a_format_do_not_go_together(server):
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMAS["ping"]}}
    answer = server("hermes").post(CHAT, body_of(CHAT, "required", response_format=form))
    assert answer.status == 400 and "response_format" in answer.message and "tools" in answer.message, answer
