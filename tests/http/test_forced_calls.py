"""Calls of tools that a request forces: the answer begins with one, on every route of chats and in
every format. The model writes the output that the test chooses after the beginning of a call.
"""

import json

import pytest

from scripted_model import EOS, serve_scripts

# The forced beginning of a call in each format, for a named function and for any function ("_any"), and the model's
# continuation.
SCRIPTS = {
    "hermes": ['<tool_call>\n{"name": "weather", "arguments":', ' {"city": "Par', 'is"}}\n</tool_call>', " And so."],
    "hermes_any": ['<tool_call>\n{"name":', ' "weather", "arguments": {"city": "Paris"}}\n</tool_call>',
                   '\n<tool_call>\n{"name": "time", "arguments": {}}\n</tool_call>'],
    "llama3": ['{"name": "weather", "parameters":', ' {"city": "Paris"', "}}", '; {"name": "time", "parameters": {}}'],
    "llama3_any": ['{"name":', ' "weather", "parameters": {"city": "Paris"}}', '; {"name": "time", "parameters": { }}'],
    "mistral": ['[TOOL_CALLS][{"name": "weather", "arguments":', ' {"city":', ' "Paris"}}]', " Or so."],
    "mistral_any": [("[TOOL_CALLS]",), '[{"name": "weather", "arguments": {"city": "Paris"}}, ', '{"name": "time", "arguments": {}}]'],
}  # fmt: skip
WEATHER, TIME = ("weather", {"city": "Paris"}), ("time", {})
TEMPLATE = "Which? "


@pytest.fixture(scope="module")
def scripted():
    with serve_scripts(SCRIPTS) as served:
        yield served


@pytest.fixture
def tree(scripted):
    """Overrides conftest's fixture, for `http` and `front_end`."""
    return scripted


def chat_body(choice, **more):
    tools = [{"type": "function", "function": {"name": name, "parameters": {}}} for name in ("weather", "time")]
    return {"messages": [{"role": "user", "content": "?"}], "tools": tools, "tool_choice": choice, **EXTRA, **more}


def responses_body(choice, **more):
    tools = [{"type": "function", "name": name, "parameters": {}} for name in ("weather", "time")]
    return {"input": "?", "tools": tools, "tool_choice": choice, **EXTRA, **more}


def messages_body(choice, **more):
    tools = [{"name": name, "input_schema": {"type": "object"}} for name in ("weather", "time")]
    turns = [{"role": "user", "content": "?"}]
    return {"messages": turns, "max_tokens": 50, "tools": tools, "tool_choice": choice, **EXTRA, **more}


EXTRA = {"temperature": 0, "chat_template": TEMPLATE}
CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
BODIES = {CHAT: chat_body, RESPONSES: responses_body, MESSAGES: messages_body}
ANY = {CHAT: "required", RESPONSES: "required", MESSAGES: {"type": "any"}}


def named(path, name="weather"):
    return {
        CHAT: {"type": "function", "function": {"name": name}},
        RESPONSES: {"type": "function", "name": name},
        MESSAGES: {"type": "tool", "name": name},
    }[path]


def said(path, answer):
    """Returns [(name, arguments) or text], and the finish reason."""
    assert answer.status == 200, answer
    if path == CHAT:
        (choice,) = answer.json["choices"]
        calls = [call["function"] for call in choice["message"].get("tool_calls", ())]
        parts = [choice["message"]["content"]] if choice["message"]["content"] else []
        return parts + [(call["name"], json.loads(call["arguments"])) for call in calls], choice["finish_reason"]
    if path == RESPONSES:
        parts = [
            (item["name"], json.loads(item["arguments"]))
            if item["type"] == "function_call"
            else "".join(part["text"] for part in item["content"])
            for item in answer.json["output"]
        ]
        return parts, answer.json["status"]
    parts = [
        (block["name"], block["input"]) if block["type"] == "tool_use" else block["text"]
        for block in answer.json["content"]
    ]
    return parts, answer.json["stop_reason"]


ENDS = {CHAT: "tool_calls", RESPONSES: "completed", MESSAGES: "tool_use"}


@pytest.fixture(params=["hermes", "llama3", "mistral"])
def server(request, http, front_end):
    """A server that reads this format of calls."""
    return http if request.param == "hermes" else front_end("--tool-call-parser", request.param).http


@pytest.mark.parametrize("path", BODIES)
def test_the_function_that_was_named_is_called_once(server, path):
    answer = server.post(path, BODIES[path](named(path)))
    assert said(path, answer) == ([WEATHER], ENDS[path])


@pytest.mark.parametrize("path", BODIES)
def test_a_call_that_must_be_is_of_the_models_choice(server, path):
    answer = server.post(path, BODIES[path](ANY[path]))
    assert said(path, answer) == ([WEATHER, TIME], ENDS[path])


def test_one_call_where_calls_may_not_be_parallel(http):
    for path, one in (
        (CHAT, {"parallel_tool_calls": False}),
        (RESPONSES, {"parallel_tool_calls": False}),
    ):
        assert said(path, http.post(path, BODIES[path](ANY[path], **one))) == ([WEATHER], ENDS[path])
    choice = {"type": "any", "disable_parallel_tool_use": True}
    assert said(MESSAGES, http.post(MESSAGES, messages_body(choice))) == ([WEATHER], "tool_use")


def test_a_stream_tells_the_same(http):
    events = list(http.events(CHAT, chat_body(named(CHAT), stream=True)))
    deltas = [choice["delta"] for event in events for choice in event["choices"]]
    calls = [call for delta in deltas for call in delta.get("tool_calls", ())]
    assert {call["index"] for call in calls} == {0} and calls[0]["function"]["name"] == WEATHER[0]
    assert json.loads("".join(call["function"]["arguments"] for call in calls)) == WEATHER[1]
    assert not any(delta.get("content") for delta in deltas)
    assert events[-1]["choices"][0]["finish_reason"] == "tool_calls"


def test_the_beginning_is_of_the_prompt_and_the_rest_the_models(http, tree):
    """The forced beginning belongs to the prompt's token ids, and only the sampled tokens have logprobs."""
    free = http.post(CHAT, chat_body("auto", max_tokens=1, return_token_ids=True)).json
    whole = http.post(CHAT, chat_body(named(CHAT), return_token_ids=True, logprobs=True)).json
    opening = tree.prompts["hermes"][0] + 1
    assert whole["prompt_token_ids"] == [*free["prompt_token_ids"], opening]
    (choice,) = whole["choices"]
    assert choice["token_ids"] == [opening + 1, opening + 2, EOS]  # nothing may follow the call
    assert len(choice["logprobs"]["content"]) == len(choice["token_ids"])
    assert whole["usage"]["prompt_tokens"] == len(whole["prompt_token_ids"])
    assert whole["usage"]["completion_tokens"] == len(choice["token_ids"])
    rendered = http.post(CHAT + "/render", chat_body(named(CHAT))).json
    assert rendered["token_ids"] == whole["prompt_token_ids"]
    counted = http.post(MESSAGES + "/count_tokens", messages_body(named(MESSAGES))).json
    assert counted["input_tokens"] == len(whole["prompt_token_ids"])
    past_template = chat_body(named(CHAT), input_ids=tree.prompts["hermes"], return_token_ids=True)
    del past_template["chat_template"], past_template["messages"]
    answer = http.post(CHAT, past_template)
    assert said(CHAT, answer) == ([WEATHER], "tool_calls")
    assert answer.json["prompt_token_ids"] == [opening - 1, opening]


def test_each_sample_has_a_call_of_its_own(http):
    choices = http.post(CHAT, chat_body(named(CHAT), n=3)).json["choices"]
    ids = {choice["message"]["tool_calls"][0]["id"] for choice in choices}
    assert len(ids) == 3


@pytest.mark.parametrize("path", BODIES)
def test_a_forced_call_that_is_cut_off_is_text_with_its_beginning(http, path):
    cut = {RESPONSES: {"max_output_tokens": 1}}.get(path, {"max_tokens": 1})
    parts, end = said(path, http.post(path, BODIES[path](named(path), **cut)))
    assert parts == ["".join(SCRIPTS["hermes"][:2])]
    assert end == {CHAT: "length", RESPONSES: "incomplete", MESSAGES: "max_tokens"}[path]


@pytest.mark.parametrize("path", BODIES)
def test_a_tool_choice_that_can_force_no_call_is_refused_by_name(http, front_end, path):
    for choice in (named(path, "other"), named(path, ""), named(path, 5), {}, {"type": "function"}, "weather", 7):
        refused = http.post(path, BODIES[path](choice))
        assert refused.status == 400 and "tool_choice" in refused.message, (choice, refused)
    for choice in (named(path), ANY[path]):
        for tools in ([], None):
            refused = http.post(path, {**BODIES[path](choice), "tools": tools})
            assert refused.status == 400 and "tool_choice" in refused.message, refused
    if path != RESPONSES:
        turns = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "So"}]
        more = {"add_generation_prompt": False, "continue_final_message": True} if path == CHAT else {}
        refused = http.post(path, BODIES[path](ANY[path], messages=turns, **more))
        assert refused.status == 400 and "tool_choice" in refused.message, refused
    without = front_end().http
    for choice in (named(path), ANY[path]):
        refused = without.post(path, BODIES[path](choice))
        assert refused.status == 400 and "--tool-call-parser" in refused.message, refused
    assert without.post(path, BODIES[path]({"type": "none"} if path == MESSAGES else "none")).status == 200


def history_of(path):
    """Turns of two calls in one message, and of one more."""
    made = (("call_1", "call_2"), ("call_3",))
    if path == CHAT:
        turns = [{"role": "user", "content": "?"}]
        for ids in made:
            calls = [{"id": i, "type": "function", "function": {"name": "time", "arguments": "{}"}} for i in ids]
            turns += [{"role": "assistant", "content": "", "tool_calls": calls}]
            turns += [{"role": "tool", "tool_call_id": i, "content": "1"} for i in ids]
        return {"messages": turns}
    if path == RESPONSES:
        items = [{"type": "message", "role": "user", "content": "?"}]
        for ids in made:
            items += [{"type": "function_call", "call_id": i, "name": "time", "arguments": "{}"} for i in ids]
            items += [{"type": "function_call_output", "call_id": i, "output": "1"} for i in ids]
        return {"input": items}
    turns = [{"role": "user", "content": "?"}]
    for ids in made:
        turns += [
            {"role": "assistant", "content": [{"type": "tool_use", "id": i, "name": "time", "input": {}} for i in ids]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": i, "content": "1"} for i in ids]},
        ]
    return {"messages": turns}


@pytest.mark.parametrize("path", BODIES)
def test_a_numbered_call_counts_on_from_the_conversations(http, front_end, path):
    """In kimi_k2 a call's id is its function and its number, from 0, in the conversation."""
    server = front_end("--tool-call-parser", "kimi_k2").http
    for history, number in (({}, 0), (history_of(path), 3)):
        body = BODIES[path](named(path), return_token_ids=True, **history)
        body["max_output_tokens" if path == RESPONSES else "max_tokens"] = 1
        answer = server.post(path, body)
        assert answer.status == 200, answer
        prompt = http.post("/detokenize", {"tokens": answer.json["prompt_token_ids"]}).json["text"]
        assert prompt.endswith(f"functions.weather:{number}<|tool_call_argument_begin|>"), prompt
