"""Thinking separated from the answer, whole and streamed, on every route of chats and with agents'
clients. The model writes the output that the test chooses.
"""

import json

import pytest

from scripted_model import serve_scripts

SCRIPTS = {
    "thought": ["<think>", "\nThe sun", " is high.", "</thi", "nk>", "\n\nIt is", " noon."],
    "open": ["I wonder", " why.", "\n</think>", "Because."],
    "endless": ["I keep", " wondering"],
    "plain": ["It is", " late."],
    "caller": ["Time?</think>", '<tool_call>{"name": "time"}', "</tool_call>"],
    "hasty": ["I call", "<tool_call>", '{"name": "time", "arguments": {}}</tool_call>'],
    "forced": ['<tool_call>\n{"name": "time", "arguments":', " {}}\n</tool_call>"],
    "other": ["[a]deep", "[/a]", "shallow"],
}  # fmt: skip
THINKING, TEXT = "\nThe sun is high.", "\n\nIt is noon."
# The model writes the script that the first message names.
EXTRA = {"temperature": 0, "chat_template": "<script {{ messages[0].content }}>"}
# The model's own template, which has the formats that `auto` finds.
OWN_TEMPLATE = "{# '</think>' #}{# <tool_call>{\"name\": ... #}{{ messages[0].content }}"
TOOLS = [{"type": "function", "function": {"name": "time", "parameters": {"type": "object"}}}]
CHAT = "/v1/chat/completions"
JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def scripted():
    with serve_scripts(SCRIPTS, OWN_TEMPLATE) as served:
        yield served


@pytest.fixture
def tree(scripted):
    """Overrides conftest's fixture, for `front_end`."""
    return scripted


@pytest.fixture
def thinker(front_end):
    return front_end("--reasoning-parser", "qwen3", "--tool-call-parser", "hermes").http


@pytest.fixture
def inside(front_end):
    """A server with the flag for models whose output begins inside the thinking."""
    return front_end("--reasoning-parser", "deepseek-r1", "--tool-call-parser", "hermes").http


def body_of(script, **more):
    return {"messages": [{"role": "user", "content": script}], **EXTRA, **more}


def chat(http, script, **more):
    answer = http.post(CHAT, body_of(script, **more))
    assert answer.status == 200, answer
    return answer.json["choices"][0], answer.json["usage"]


def streamed(http, script, **more):
    """Streams a chat. Returns [(member, text)] of the deltas in order, and the usage."""
    told, usage = [], None
    options = {"include_usage": True}
    for event in http.events(CHAT, body_of(script, stream=True, stream_options=options, **more)):
        usage = event["usage"] or usage
        for choice in event["choices"]:
            delta = choice["delta"]
            assert delta.get("reasoning") == delta.get("reasoning_content")
            told += [(name, delta[name]) for name in ("reasoning", "content") if delta.get(name)]
    return told, usage


def joined(told, name):
    return "".join(text for member, text in told if member == name)


def test_a_message_has_its_thinking_under_both_engines_names(thinker):
    choice, usage = chat(thinker, "thought")
    message = choice["message"]
    assert message["reasoning_content"] == message["reasoning"] == THINKING
    assert message["content"] == TEXT and choice["finish_reason"] == "stop"
    # The markers are tokens, too: <think>, two words, and the end in two pieces.
    assert usage["completion_tokens_details"] == {"reasoning_tokens": 5} and usage["reasoning_tokens"] == 5
    assert usage["completion_tokens"] == len(SCRIPTS["thought"]) + 1
    choice, usage = chat(thinker, "plain")
    assert choice["message"]["reasoning_content"] is None and choice["message"]["content"] == "It is late."
    assert usage["reasoning_tokens"] == 0


def test_a_stream_has_the_same_in_pieces(thinker):
    told, usage = streamed(thinker, "thought")
    assert joined(told, "reasoning") == THINKING and joined(told, "content") == TEXT
    assert [name for name, _ in told] == sorted((name for name, _ in told), reverse=True)
    assert usage["reasoning_tokens"] == 5
    told, _ = streamed(thinker, "thought", stream_reasoning=False)
    assert told[0] == ("reasoning", THINKING) and joined(told, "content") == TEXT


def test_tokens_logprobs_and_spans_are_whole(thinker):
    choice, _ = chat(thinker, "thought", logprobs=True, return_token_ids=True)
    assert len(choice["token_ids"]) == len(choice["logprobs"]["content"]) == len(SCRIPTS["thought"]) + 1
    assert choice["weight_versions"][-1]["end"] == len(choice["token_ids"])


def test_requests_that_share_the_tokens_texts_outlive_the_first(thinker, tree):
    """The first request of a new server fetches the texts of all tokens. The others wait for them, also if its client
    leaves, and an abort ends no request but its own."""
    first, *others, aborted = [thinker.connect() for _ in range(6)]
    with tree.frozen("tokenizer_proc"):
        for connection in (first, *others, aborted):
            more = {"rid": "aborted"} if connection is aborted else {}
            connection.request("POST", CHAT, json.dumps(body_of("thought", **more)), JSON)
        for _ in range(2):
            assert thinker.get("/ping").status == 200  # the server has read the requests
        first.close()
        abort = thinker.connect()
        abort.request("POST", "/abort_request", json.dumps({"rid": "aborted"}), JSON)
    for connection in others:
        answer = json.loads(connection.getresponse().read())
        assert answer["choices"][0]["message"]["reasoning"] == THINKING
        assert answer["usage"]["reasoning_tokens"] == 5
    assert aborted.getresponse().status == abort.getresponse().status == 200


def test_an_output_begins_inside_where_the_prompt_ends_there(thinker, inside, tree):
    """The output begins inside the thinking if the prompt's text or tokens open it, or if the model always begins with
    thinking."""
    choice, usage = chat(thinker, "?", chat_template="assistant: <think>", return_token_ids=True)
    message = choice["message"]
    assert (message["reasoning"], message["content"]) == (THINKING, TEXT)
    assert usage["reasoning_tokens"] == 4  # the opening marker belongs to the prompt
    ids = thinker.post(CHAT, body_of("?", chat_template="assistant: <think>", return_token_ids=True)).json
    by_ids = thinker.post(CHAT, {"input_ids": ids["prompt_token_ids"], "temperature": 0}).json
    assert by_ids["choices"][0]["message"] == message
    choice, usage = chat(inside, "open")
    assert (choice["message"]["reasoning"], choice["message"]["content"]) == ("I wonder why.\n", "Because.")
    assert usage["reasoning_tokens"] == 3
    by_ids = inside.post(CHAT, {"input_ids": tree.prompts["open"], "temperature": 0}).json
    assert by_ids["choices"][0]["message"]["reasoning"] == "I wonder why.\n"
    choice, usage = chat(inside, "endless")
    assert (choice["message"]["reasoning"], choice["message"]["content"]) == ("I keep wondering", "")
    assert usage["reasoning_tokens"] == usage["completion_tokens"]


def test_the_templates_end_of_thinking_is_seen(inside, tree):
    """With enable_thinking false a template writes an empty thinking, so the prompt ends after it."""
    template = (
        "<script plain>{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}"
    )
    body = {
        "messages": [{"role": "user", "content": "?"}],
        "temperature": 0,
        "max_tokens": 1,
        "chat_template": template,
    }
    message = inside.post(CHAT, body).json["choices"][0]["message"]
    assert message["reasoning"] and not message["content"]
    closed = inside.post(CHAT, {**body, "chat_template_kwargs": {"enable_thinking": False}})
    assert closed.json["choices"][0]["message"]["reasoning"] is None
    ids = inside.post(CHAT, {**body, "chat_template_kwargs": {"enable_thinking": False}, "return_token_ids": True})
    again = inside.post(CHAT, {"input_ids": ids.json["prompt_token_ids"], "temperature": 0, "max_tokens": 1})
    assert again.json["choices"][0]["message"]["reasoning"] is None


def test_a_turn_that_is_continued_is_inside_what_it_was_inside_of(thinker):
    """A continued message may end inside its thinking. The template here ends the prompt with the last message."""
    template = "{% for message in messages %}{{ message.content }}{% endfor %}"

    def continued(text):
        messages = [{"role": "user", "content": "<think>?"}, {"role": "assistant", "content": text}]
        answer = thinker.post(CHAT, {"messages": messages, "continue_final_message": True, "temperature": 0,
                                     "chat_template": template, "add_generation_prompt": False})  # fmt: skip
        assert answer.status == 200, answer
        return answer.json["choices"][0]["message"]

    assert continued("<think>so <script open>")["reasoning"] == "I wonder why.\n"
    assert continued("<think>so</think> then <script plain>")["reasoning"] is None
    assert continued("then <script plain>")["content"] == "It is late."


def test_separate_reasoning_false_leaves_the_text_as_written(thinker):
    choice, usage = chat(thinker, "thought", separate_reasoning=False)
    assert choice["message"]["content"] == "".join(SCRIPTS["thought"])
    assert "reasoning" not in choice["message"] and "reasoning_tokens" not in usage
    told, _ = streamed(thinker, "thought", separate_reasoning=False)
    assert joined(told, "content") == "".join(SCRIPTS["thought"])


def test_include_reasoning_false_leaves_thinking_out(thinker, front_end):
    choice, usage = chat(thinker, "thought", include_reasoning=False)
    assert choice["message"] == {"role": "assistant", "content": TEXT, "refusal": None}
    assert usage["reasoning_tokens"] == 5
    told, _ = streamed(thinker, "thought", include_reasoning=False)
    assert [name for name, _ in told if name == "reasoning"] == [] and joined(told, "content") == TEXT
    both = thinker.post(CHAT, body_of("plain", include_reasoning=False, separate_reasoning=False))
    assert both.status == 400 and "include_reasoning" in both.message
    refused = front_end().http.post(CHAT, body_of("plain", include_reasoning=False))
    assert refused.status == 400 and "--reasoning-parser" in refused.message


def test_calls_follow_thinking(inside):
    choice, _ = chat(inside, "caller", tools=TOOLS)
    assert choice["message"]["reasoning"] == "Time?" and choice["finish_reason"] == "tool_calls"
    assert choice["message"]["tool_calls"][0]["function"]["name"] == "time"
    assert choice["message"]["content"] is None


def test_a_call_ends_thinking_that_was_not_closed(front_end):
    http = front_end("--reasoning-parser", "qwen3-thinking", "--tool-call-parser", "hermes").http
    choice, usage = chat(http, "hasty", tools=TOOLS)
    assert choice["message"]["reasoning"] == "I call" and choice["finish_reason"] == "tool_calls"
    assert usage["reasoning_tokens"] == 1


def test_a_forced_call_has_no_thinking(inside):
    named = {"type": "function", "function": {"name": "time"}}
    choice, _ = chat(inside, "?", tools=TOOLS, tool_choice=named, chat_template="?")
    assert choice["finish_reason"] == "tool_calls" and choice["message"]["reasoning"] is None
    body = {**body_of("?", tools=TOOLS, tool_choice=named), "chat_template": "assistant\n<think>"}
    rendered = inside.post("/v1/chat/completions/render", body).json["token_ids"]
    text = inside.post("/detokenize", {"tokens": rendered}).json["text"]
    assert text.endswith('<think></think>\n\n<tool_call>\n{"name": "time", "arguments":'), text
    choice, _ = chat(inside, "?", tools=TOOLS, tool_choice=named, chat_template="assistant\n<think>")
    assert choice["finish_reason"] == "tool_calls" and choice["message"]["reasoning"] is None


def test_without_the_flag_thinking_is_text(front_end):
    choice, usage = chat(front_end().http, "thought")
    assert choice["message"] == {"role": "assistant", "content": "".join(SCRIPTS["thought"]), "refusal": None}
    assert "reasoning_tokens" not in usage


def test_formats_are_found_in_the_models_template(front_end):
    http = front_end("--reasoning-parser", "auto", "--tool-call-parser", "auto").http
    assert chat(http, "thought")[0]["message"]["reasoning"] == THINKING
    choice, _ = chat(http, "?", tools=TOOLS, chat_template="<script hasty>")
    assert choice["finish_reason"] == "tool_calls"


def test_two_markers_are_a_format(front_end):
    http = front_end("--reasoning-parser", "[a] [/a]").http
    assert chat(http, "other")[0]["message"]["reasoning"] == "deep"


@pytest.mark.parametrize("wrong", ["qwen9", "<a>", "<a> <a>"])
def test_a_format_that_is_not_known_is_refused_with_those_that_are(front_end, wrong):
    server = front_end("--reasoning-parser", wrong)
    assert server.http is None
    said = server.process.stderr.read()
    assert wrong in said and "deepseek-r1" in said and "auto" in said


def test_a_budget_without_a_number_is_refused_by_name(thinker):
    for thinking in ({"type": "enabled"}, {"type": "enabled", "budget_tokens": "many"}, {"type": "between_tools"}):
        body = {**body_of("plain"), "max_tokens": 9, "thinking": thinking}
        refused = thinker.post("/v1/messages", body)
        assert refused.status == 400 and "thinking" in refused.message, refused


def test_openais_client_reads_it(thinker):
    openai = pytest.importorskip("openai", reason="the package index could not be reached")
    asked = {"model": "model", "messages": [{"role": "user", "content": "thought"}], "extra_body": EXTRA}
    with openai.OpenAI(base_url=thinker.url + "/v1", api_key="any", max_retries=0) as client:
        answer = client.chat.completions.create(**asked)
        assert answer.choices[0].message.reasoning_content == THINKING
        assert answer.usage.completion_tokens_details.reasoning_tokens == 5
        deltas = [
            choice.delta for event in client.chat.completions.create(stream=True, **asked) for choice in event.choices
        ]
    assert "".join(getattr(delta, "reasoning", None) or "" for delta in deltas) == THINKING
    assert "".join(delta.content or "" for delta in deltas) == TEXT


@pytest.mark.parametrize("script", ["thought", "plain"])
def test_a_response_has_an_item_of_reasoning(thinker, script):
    openai = pytest.importorskip("openai", reason="the package index could not be reached")
    asked = {"model": "model", "input": script, "extra_body": EXTRA}
    with openai.OpenAI(base_url=thinker.url + "/v1", api_key="any", max_retries=0) as client:
        whole = client.responses.create(**asked)
        with client.responses.stream(**asked) as stream:
            events = list(stream)
            told = stream.get_final_response()
        # As agents do: the items are sent back unchanged.
        again = client.responses.create(**{**asked, "input": [{"role": "user", "content": script}, *whole.output]})
    assert again.status == "completed"
    items = [(item.type, item.content[0].text) for item in whole.output]
    assert items == ([("reasoning", THINKING)] if script == "thought" else []) + [
        ("message", TEXT if script == "thought" else "It is late.")
    ]
    assert [(item.type, item.content[0].text) for item in told.output] == items
    assert whole.usage.output_tokens_details.reasoning_tokens == (5 if script == "thought" else 0)
    assert told.usage == whole.usage
    deltas = [event.delta for event in events if event.type == "response.reasoning_text.delta"]
    assert "".join(deltas) == (THINKING if script == "thought" else "")
    done = [event.item.id for event in events if event.type == "response.output_item.done"]
    assert done == [item.id for item in told.output]


def test_a_responses_logprobs_are_refused_where_thinking_is_separated(thinker):
    body = {"input": "plain", "include": ["message.output_text.logprobs"], **EXTRA}
    refused = thinker.post("/v1/responses", body)
    assert refused.status == 400 and "include" in refused.message


@pytest.mark.parametrize("script", ["thought", "plain", "endless"])
def test_a_message_of_anthropics_has_a_block_of_thinking(thinker, script):
    anthropic = pytest.importorskip("anthropic", reason="the package index could not be reached")
    asked = {"model": "model", "max_tokens": 20, "messages": [{"role": "user", "content": script}],
             "thinking": {"type": "adaptive"}, "extra_body": EXTRA}  # fmt: skip
    with anthropic.Anthropic(base_url=thinker.url, api_key="any", max_retries=0) as client:
        whole = client.messages.create(**asked)
        with client.messages.stream(**asked) as stream:
            types = [event.type for event in stream]
            told = stream.get_final_message()
        turns = [*asked["messages"], {"role": "assistant", "content": whole.content}, {"role": "user", "content": "?"}]
        assert client.messages.create(**{**asked, "messages": turns}).stop_reason == "end_turn"
    blocks = [(block.type, getattr(block, block.type)) for block in whole.content]
    text = {"thought": TEXT, "plain": "It is late.", "endless": "I keep wondering"}[script]
    assert blocks == ([("thinking", THINKING)] if script == "thought" else []) + [("text", text)]
    assert [(block.type, getattr(block, block.type)) for block in told.content] == blocks
    assert told.usage == whole.usage
    assert types.count("content_block_start") == types.count("content_block_stop") == len(blocks)


def test_a_message_of_anthropics_may_leave_thinking_out(thinker):
    body = {**body_of("thought"), "max_tokens": 20, "thinking": {"type": "adaptive", "display": "omitted"}}
    (block,) = thinker.post("/v1/messages", body).json["content"]
    assert block["text"] == TEXT
    refused = thinker.post("/v1/messages", {**body, "thinking": {"type": "adaptive", "display": "summarized"}})
    assert refused.status == 400 and "display" in refused.message


def test_vllms_name_reaches_the_template(thinker):
    messages = [{"role": "assistant", "content": "a", "reasoning": "b"}, {"role": "user", "content": "?"}]
    template = "{{ messages[0].reasoning_content }}"
    shown = thinker.post("/tokenize", {"messages": messages, "chat_template": template}).json
    assert shown["prompt"] == "b", json.dumps(shown)
