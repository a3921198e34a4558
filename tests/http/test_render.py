"""vLLM's render routes: a rendered request gives the same output as the request itself."""

MESSAGES = [{"role": "user", "content": "Tell me of a cat."}]
SAMPLING = {
    "max_tokens": 12, "temperature": 0.8, "top_k": 20, "seed": 7, "stop": ["zebra"], "stop_token_ids": [3],
    "logit_bias": {"5": -2.5}, "repetition_penalty": 1.1,
}  # fmt: skip


def run(http, rendered):
    answer = http.post("/inference/v1/generate", rendered)
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


def test_a_rendered_request_names_the_adapter(http):
    for route, body in (
        ("/v1/chat/completions/render", {"messages": MESSAGES}),
        ("/v1/completions/render", {"prompt": "a"}),
    ):
        rendered = http.post(route, {**body, "lora_path": "nobody"})
        assert rendered.status == 200, rendered
        [request] = [rendered.json] if isinstance(rendered.json, dict) else rendered.json
        refused = http.post("/inference/v1/generate", request)
        assert refused.status == 404 and "nobody" in refused.message, refused
