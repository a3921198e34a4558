"""vLLM's render routes: a rendered request gives the same output as the request itself."""

import pytest

from lora_files import exact_adapter, write_adapter

TREE_FLAGS = ("--max-adapters", "1")
CHAT, RENDER, GENERATE = "/v1/chat/completions", "/v1/chat/completions/render", "/inference/v1/generate"
MESSAGES = [{"role": "user", "content": "Tell me of a cat."}]
SAMPLING = {
    "max_tokens": 12, "temperature": 0.8, "top_k": 20, "seed": 7, "stop": ["zebra"], "stop_token_ids": [3],
    "logit_bias": {"5": -2.5}, "repetition_penalty": 1.1,
}  # fmt: skip


SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "maximum": 99, "minimum": 0}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
FORMAT = {"response_format": {"type": "json_schema", "json_schema": {"name": "who", "schema": SCHEMA}}}
DRAWN = {"messages": MESSAGES, "temperature": 1, "max_tokens": 60}
INSIDE = {"chat_template": "{{ messages[0].content }}<think>"}  # the prompt opens the thinking
TOOL = {"name": "who", "parameters": SCHEMA}
NAMED = {"type": "function", "function": {"name": "who"}}


def run(http, rendered):
    answer = http.post(GENERATE, rendered)
    assert answer.status == 200, answer
    return answer.json["choices"][0]["token_ids"]


def test_a_rendered_chat_generates_what_the_chat_does(http):
    body = {"messages": MESSAGES, **SAMPLING}
    rendered = http.post("/v1/chat/completions/render", body)
    assert rendered.status == 200, rendered
    chat = http.post("/v1/chat/completions", {**body, "return_token_ids": True}).json
    assert rendered.json["token_ids"] == chat["prompt_token_ids"]
    assert run(http, rendered.json) == chat["choices"][0]["token_ids"]


def test_rendered_completions_are_a_list(http):
    body = {"prompt": ["Once upon a time", "A dog"], **SAMPLING}
    rendered = http.post("/v1/completions/render", body)
    assert rendered.status == 200, rendered
    whole = http.post("/v1/completions", {**body, "return_token_ids": True}).json["choices"]
    assert [one["token_ids"] for one in rendered.json] == [choice["prompt_token_ids"] for choice in whole]
    assert [run(http, one) for one in rendered.json] == [choice["token_ids"] for choice in whole]


def test_rendering_refuses_the_requests_that_its_route_refuses(http):
    assert http.post("/v1/chat/completions/render", {"messages": []}).status == 400
    refused = http.post("/v1/completions/render", {"prompt": "a", "bad_words": [" "]})
    assert refused.status == 400 and "bad_words" in refused.message


def test_a_render_route_refuses_an_adapter_that_is_not_loaded(http):
    for route, body in (
        ("/v1/chat/completions/render", {"messages": MESSAGES}),
        ("/v1/completions/render", {"prompt": "a"}),
    ):
        refused = http.post(route, {**body, "lora_path": "nobody"})
        assert refused.status == 404 and "no adapter 'nobody' is loaded" in refused.message, refused


def tools(**more):
    return {"tools": [{"type": "function", "function": {**TOOL, **more}}]}


@pytest.fixture
def reader(http, front_end):
    """A server that reads calls and thinking."""
    answer = http.post("/generate", {"text": "Once", "sampling_params": {"max_new_tokens": 1, "regex": "a"}})
    if answer.status != 200 and "no xgrammar" in answer.message:
        pytest.skip(answer.message)
    return front_end("--tool-call-parser", "hermes", "--reasoning-parser", "<think> </think>").http


@pytest.mark.parametrize(
    "more",
    [
        {**INSIDE, "thinking_token_budget": 5},
        {**INSIDE, **FORMAT, "max_thinking_tokens": 5},
        {**INSIDE, **FORMAT, "separate_reasoning": False},
        {**tools(), "tool_choice": NAMED},
        {**tools(), "tool_choice": "required"},
        {**tools(strict=True), **INSIDE, "thinking_token_budget": 3},
    ],
    ids=["budget", "budget and schema", "schema", "named call", "required call", "strict tool"],
)
def test_a_rendered_chat_is_held_to_the_grammar_of_its_turn(reader, more):
    free = 0
    for seed in range(3):
        body = {**DRAWN, "seed": seed, **more}
        chat = reader.post(CHAT, {**body, "return_token_ids": True}).json
        rendered = reader.post(RENDER, body)
        assert rendered.status == 200, rendered
        assert rendered.json["token_ids"] == chat["prompt_token_ids"]
        request, output = rendered.json, chat["choices"][0]["token_ids"]
        assert run(reader, request) == output
        for grammar in ("structural_tag", "json_schema"):
            request["sampling_params"].pop(grammar, None)
        free += run(reader, request) != output
    assert free, "without the grammar the output is another"


def test_a_rendered_request_scores_as_the_request_does(http):
    fields = {"logprobs_mode": "truncated", "logprob_token_ids": [7, 11], "top_k": 3, "max_tokens": 4, "seed": 3}
    for path, body in (
        (CHAT, {"messages": MESSAGES, "logprobs": True, "top_logprobs": 2, **fields}),
        ("/v1/completions", {"prompt": "Once", "logprobs": 2, **fields}),
    ):
        rendered = http.post(f"{path}/render", body).json
        [request] = rendered if isinstance(rendered, list) else [rendered]
        [whole] = http.post(path, {**body, "return_tokens_as_token_ids": True, "return_token_ids": True}).json[
            "choices"
        ]
        [choice] = http.post(GENERATE, request).json["choices"]
        assert (
            choice["token_ids"] == whole["token_ids"]
            and choice["logprobs_mode"] == whole["logprobs_mode"] == "truncated"
        )
        told = [
            {f"token_id:{top['token_id']}": top["logprob"] for top in entry["top_logprobs"]}
            for entry in choice["logprobs"]["content"]
        ]
        if path == CHAT:
            tops = [
                {top["token"]: top["logprob"] for top in entry["top_logprobs"]}
                for entry in whole["logprobs"]["content"]
            ]
        else:
            tops = whole["logprobs"]["top_logprobs"]
        assert len(told) == len(tops) == 4
        for mine, other in zip(told, tops):
            assert other.items() <= mine.items() and {"token_id:7", "token_id:11"} <= set(other)


def test_a_rendered_request_keeps_where_and_how_it_runs(http, reader):
    fields = {
        "kv_tolerance": "max_lag", "kv_max_lag": 2, "routed_dp_rank": 0, "draft_ids": [5, 6], "draft_key": "group",
        "priority": 3,
    }  # fmt: skip
    shown = {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": False}}
    for path, body in ((CHAT, {"messages": MESSAGES}), ("/v1/completions", {"prompt": "Once"})):
        rendered = http.post(f"{path}/render", {**body, **fields, **shown, "max_tokens": 3}).json
        [request] = rendered if isinstance(rendered, list) else [rendered]
        expected = {**fields, **shown, "priority": -3}
        assert {name: request[name] for name in expected} == expected
        *_, last = http.events(GENERATE, request)
        assert last["usage"]["completion_tokens"] == 3
        plain = http.post(f"{path}/render", {**body, "return_token_ids": True, "max_tokens": 3}).json
        [plain] = plain if isinstance(plain, list) else [plain]
        assert not (set(fields) - {"priority"}) & set(plain) and "stream_options" not in plain
        assert http.post(GENERATE, plain).json["prompt_token_ids"] == plain["token_ids"]
    # The output's text keeps special tokens where calls are read, and a stop may match it.
    assert http.post(RENDER, DRAWN).json["sampling_params"]["skip_special_tokens"] is True
    assert reader.post(RENDER, {**DRAWN, **tools()}).json["sampling_params"]["skip_special_tokens"] is False


@pytest.mark.parametrize(
    "path, body, named",
    [
        (RENDER, {**DRAWN, "thinking_token_budget": 5}, "thinking_token_budget"),
        (RENDER, {**DRAWN, "include_reasoning": False}, "include_reasoning"),
        (RENDER, {**DRAWN, "return_prompt_text": True}, "return_prompt_text"),
        (RENDER, {**DRAWN, **tools(), "tool_choice": NAMED}, "tool_choice"),
        ("/v1/completions/render", {"prompt": "a", "echo": True}, "echo"),
    ],
)
def test_what_a_rendered_request_cannot_have_is_refused_by_name(http, path, body, named):
    refused = http.post(path, body)
    assert refused.status == 400 and named in refused.message, refused


def test_a_rendered_request_refuses_two_grammars(reader):
    refused = reader.post(RENDER, {**DRAWN, **FORMAT, **tools(), "tool_choice": NAMED})
    assert refused.status == 400, refused
    refused = reader.post(RENDER, {**DRAWN, "include_reasoning": False})
    assert refused.status == 400 and "include_reasoning" in refused.message, refused


def logprobs_of(http, request):
    [choice] = http.post(GENERATE, request).json["choices"]
    return [entry["logprob"] for entry in choice["logprobs"]["content"]]


def test_an_adapter_may_be_named_as_the_model_where_nothing_is_generated(http, tmp_path):
    directory = write_adapter(tmp_path / "one", exact_adapter(1)[0])
    assert http.post("/load_lora_adapter", {"lora_name": "one", "lora_path": str(directory)}).status == 200
    drawn = {"temperature": 0, "max_tokens": 12, "ignore_eos": True}
    for path, body in (
        (RENDER, {"messages": MESSAGES, "logprobs": True, **drawn}),
        ("/v1/completions/render", {"prompt": "Once upon a time", "logprobs": 0, **drawn}),
        ("/v1/responses/input_tokens", {"input": "Once"}),
        ("/v1/messages/count_tokens", {"messages": MESSAGES}),
    ):
        unknown = http.post(path, {**body, "model": "two"})
        assert unknown.status == 404 and "`two` does not exist: no adapter 'two' is loaded" in unknown.message, unknown
        plain = http.post(path, body).json
        for model in ("one", "stories:one"):
            answer = http.post(path, {**body, "model": model})
            assert answer.status == 200, answer
            if "render" not in path:
                assert answer.json == plain
                continue
            request, base = (each[0] if isinstance(each, list) else each for each in (answer.json, plain))
            assert request["model"] == "one" and request["token_ids"] == base["token_ids"]
            route = path.removesuffix("/render")
            whole = http.post(route, {**body, "model": model, "return_token_ids": True}).json
            assert run(http, request) == whole["choices"][0]["token_ids"]
            assert logprobs_of(http, request) != logprobs_of(http, base)
    assert http.post("/unload_lora_adapter", {"lora_name": "one"}).status == 200
