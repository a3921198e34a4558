"""Grammars of requests without a budget of thinking: where the model thinks, they begin after its thinking; where it does
not, they hold the first token. The model writes the output that the test chooses, as far as the grammar allows.
"""

import json

import pytest

from scripted_model import serve_scripts

THOUGHT = "I wonder why."
# A name, and pieces: a first piece that ends with <think> is the end of a prompt. The pieces after </think> match the
# schema or the regex, or ("off") neither.
SCRIPTS = {
    "json": ["0<think>", "I wonder", " why.", "</thi", "nk>", "\n\n{", '"who":', ' "she"}'],
    "own json": ["<think>", "I won", "der why.", "</think>", '{"who"', ': "she"}'],
    "regex": ["1<think>", "I wonde", "r why.</", "think>", "perh", "aps!"],
    "off": ["2<think>", "I wond", "er why.</th", "ink>", "Because"],
    "at once": ["0<think>\n\n</think>\n\n", "I am", " off."],
    "plain schema": ['{"who":', ' "he"}'],
    "plain regex": ["always!"],
}  # fmt: skip
SCHEMA = {
    "type": "object",
    "properties": {"who": {"enum": ["he", "she"]}},
    "required": ["who"],
    "additionalProperties": False,
}
REGEX = "(perhaps|always)!"
TEXTS_OF_REGEX = ["perhaps!", "always!"]
CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
# By the way that the thinking is opened: the template's text.
OPENED_BY_PROMPT = {"json": "0<think>", "regex": "1<think>", "off": "2<think>"}
OPENED_BY_MODEL = "<script own json>"


@pytest.fixture(scope="module")
def tree():
    with serve_scripts(SCRIPTS) as served:
        yield served


@pytest.fixture(autouse=True)
def grammars_are_built(http):
    answer = http.post("/generate", {"text": "Once", "sampling_params": {"max_new_tokens": 1, "regex": "a"}})
    if answer.status != 200 and "no xgrammar" in answer.message:
        pytest.skip(answer.message)


@pytest.fixture
def thinker(front_end):
    return front_end("--reasoning-parser", "qwen3").http


def fields_of(path, grammar):
    """The route's fields of a grammar: "schema" or "regex"."""
    if grammar == "regex":
        return {"regex": REGEX}
    form = {"type": "json_schema", "name": "who", "schema": SCHEMA}
    return {
        CHAT: {"response_format": {"type": "json_schema", "json_schema": {"name": "who", "schema": SCHEMA}}},
        RESPONSES: {"text": {"format": form}},
        MESSAGES: {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
    }[path]


def body_of(path, template, grammar, **more):
    body = {
        CHAT: {"messages": [{"role": "user", "content": "Who?"}], "max_tokens": 60},
        RESPONSES: {"input": "Who?", "max_output_tokens": 60},
        MESSAGES: {"messages": [{"role": "user", "content": "Who?"}], "max_tokens": 60},
    }[path]
    return {**body, "temperature": 0, "chat_template": template, **fields_of(path, grammar), **more}


def parts_of(path, answer):
    """Thinking and content of a whole answer."""
    if path == CHAT:
        [choice] = answer["choices"]
        assert choice["finish_reason"] == "stop", choice
        return choice["message"]["reasoning_content"], choice["message"]["content"]
    told = {"reasoning": None, "thinking": None, "message": "", "text": ""}
    for item in answer["output"] if path == RESPONSES else answer["content"]:
        entry = item["content"][0] if path == RESPONSES else item
        told[item["type"]] = entry["thinking" if item["type"] == "thinking" else "text"]
    return (told["reasoning"], told["message"]) if path == RESPONSES else (told["thinking"], told["text"])


def parts_of_stream(path, events):
    """The same of a stream's deltas."""
    thinking, content = [], []
    for event in events:
        if path == CHAT:
            for choice in event["choices"]:
                thinking.append(choice["delta"].get("reasoning_content"))
                content.append(choice["delta"].get("content"))
        elif path == RESPONSES and event["type"].endswith(".delta"):
            (content if event["type"] == "response.output_text.delta" else thinking).append(event["delta"])
        elif event.get("type") == "content_block_delta":
            thinking.append(event["delta"].get("thinking"))
            content.append(event["delta"].get("text"))
    return "".join(filter(None, thinking)) or None, "".join(filter(None, content))


def parts(http, path, *body, is_streamed, **more):
    if is_streamed:
        read = http.events if path == CHAT else http.named_events
        return parts_of_stream(path, read(path, body_of(path, *body, stream=True, **more)))
    answer = http.post(path, body_of(path, *body, **more))
    assert answer.status == 200, answer
    return parts_of(path, answer.json)


def matches(grammar, content):
    if grammar == "regex":
        return content in TEXTS_OF_REGEX
    return json.loads(content) in ({"who": "he"}, {"who": "she"})


ROUTES = pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES])
STREAMS = pytest.mark.parametrize("is_streamed", [False, True], ids=["whole", "streamed"])


@ROUTES
@STREAMS
def test_the_answer_after_a_thinking_matches(thinker, path, is_streamed):
    """The content is the script's where the script matches, and another text that matches where it does not."""
    for template, grammar, expected in (
        (OPENED_BY_PROMPT["json"], "schema", '\n\n{"who": "she"}'),
        (OPENED_BY_PROMPT["regex"], "regex", "perhaps!"),
        (OPENED_BY_PROMPT["off"], "schema", None),
        (OPENED_BY_PROMPT["off"], "regex", None),
        (OPENED_BY_MODEL, "schema", '{"who": "she"}'),
        (OPENED_BY_MODEL, "regex", None),
    ):
        thinking, content = parts(thinker, path, template, grammar, is_streamed=is_streamed)
        assert thinking == THOUGHT and matches(grammar, content), (template, grammar, thinking, content)
        assert expected in (None, content)


@ROUTES
@STREAMS
def test_without_thinking_the_first_token_matches(thinker, path, is_streamed):
    """The prompt has ended the thinking (enable_thinking false), or the model writes none."""
    ended = "0<think>{% if not enable_thinking %}\n\n</think>\n\n{% endif %}"
    off = {"chat_template_kwargs": {"enable_thinking": False}}
    if path == MESSAGES:
        off = {"thinking": {"type": "disabled"}}
    for grammar in ("schema", "regex"):
        for template, more in ((ended, off), (f"<script plain {grammar}>", {})):
            thinking, content = parts(thinker, path, template, grammar, is_streamed=is_streamed, **more)
            assert thinking is None and matches(grammar, content), (template, grammar, thinking, content)


def test_a_thinking_that_is_cut_off_is_no_answer(thinker):
    answer = thinker.post(CHAT, body_of(CHAT, OPENED_BY_PROMPT["json"], "schema", max_tokens=2)).json
    message = answer["choices"][0]["message"]
    assert message["reasoning_content"] == THOUGHT and message["content"] == ""
    assert answer["choices"][0]["finish_reason"] == "length"


def test_the_thinking_of_a_model_that_always_thinks_is_free(front_end):
    """With deepseek-r1 the output begins inside the thinking, whatever the prompt's end."""
    http = front_end("--reasoning-parser", "deepseek-r1").http
    for template in (OPENED_BY_PROMPT["json"], "<script json>", OPENED_BY_MODEL):
        thinking, content = parts(http, CHAT, template, "schema", is_streamed=False)
        assert thinking.endswith(THOUGHT) and json.loads(content) == {"who": "she"}, (template, thinking, content)


def test_a_thinking_that_is_not_separated_is_a_part_of_the_content(thinker, http):
    """So the grammar holds the first token: without the flag, and with separate_reasoning false."""
    for server, more in ((http, {}), (thinker, {"separate_reasoning": False})):
        answer = server.post(CHAT, body_of(CHAT, OPENED_BY_PROMPT["json"], "schema", **more)).json
        message = answer["choices"][0]["message"]
        assert matches("schema", message["content"]) and not message.get("reasoning_content"), message


@pytest.mark.parametrize("name, opened", [("mistral", "[THINK]"), ("kimi", "◁think▷"), ("gpt-oss", None)])
def test_special_markers_leave_no_thinking_before_a_grammar(front_end, name, opened):
    """No grammar matches a special token. A prompt that ends inside such a thinking is refused."""
    http = front_end("--reasoning-parser", name).http
    thinking, content = parts(http, CHAT, "<script off>", "regex", is_streamed=False)
    assert thinking is None and content in TEXTS_OF_REGEX
    if opened is None:
        return
    refused = http.post(CHAT, body_of(CHAT, f"2<think>{opened}", "regex"))
    assert refused.status == 400 and "thinking" in refused.message, refused
