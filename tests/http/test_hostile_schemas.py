"""Schemas, names and sizes that would cost far more than their length, or end http_proc. Each is refused, or takes a
time in proportion to its length."""

import json
import time

import pytest

TREE_FLAGS = ("--tool-call-parser", "qwen3_coder", "--reasoning-parser", "qwen3")
PROMPT = {"model": "stories", "messages": [{"role": "user", "content": "x"}], "max_tokens": 2}
ITSELF = {"anyOf": [{"type": "string"}, {"$ref": "#/$defs/A"}]}
MANY = {f"key{i}": i for i in range(60_000)}


def forced(name="f", **schema):
    tools = [{"type": "function", "function": {"name": name, "parameters": {"type": "object", **schema}}}]
    return {**PROMPT, "tools": tools, "tool_choice": "required"}


@pytest.mark.parametrize(
    "body",
    [
        forced(properties={"a": {"$ref": "#/$defs/A"}}, **{"$defs": {"A": ITSELF}}),
        forced(properties={"a": {"type": "integer", "examples": [MANY]}}),
        forced(properties={f"p{i}": {"$ref": "#/$defs/d0"} for i in range(5000)}, **{"$defs": {f"d{i}": {} for i in range(5000)}}),
        forced(properties={"a": {"type": [["string"]], "examples": [0] * 50_000}}),
        forced(properties={"a": {"const": "</parameter>\n"}}),
        forced(properties={"x>y": {"type": "string"}}),
        forced(properties={"a": False}),
        forced(name="a>b", properties={}),
        {**PROMPT, "chat_template_kwargs": MANY},
        {**PROMPT, "thinking_token_budget": 2, "structured_outputs": {"json": "{bad"}},
        {**PROMPT, "thinking_token_budget": 2, "response_format": {"type": "structural_tag", "format": 5}},
        {**PROMPT, "thinking_token_budget": 2, "max_thinking_tokens": 3},
    ],
    ids=[
        "a definition of itself", "many members", "many references", "types in types", "a value that ends values",
        "a parameter's name that ends names", "no value", "a name that ends names", "many kwargs",
        "a budget beside what is no JSON", "a budget beside a format that is none", "two budgets",
    ],
)  # fmt: skip
def test_a_chat_is_refused_and_others_are_served(http, body):
    begin = time.monotonic()
    answer = http.post("/v1/chat/completions", body)
    assert answer.status == 400 and answer.message, answer
    assert time.monotonic() - begin < 20
    assert http.generate(text="x", max_new_tokens=2)["output_ids"]


def test_many_members_outside_of_schemas_are_served(http):
    assert (
        http.post("/v1/chat/completions", {**PROMPT, "metadata": {"note": json.dumps(MANY)[:10]}, "user": "u"}).status
        == 200
    )
    assert http.post("/v1/chat/completions", {**PROMPT, "documents": [MANY]}).status in (200, 400)
    assert http.generate(text="x", max_new_tokens=2)["output_ids"]


@pytest.mark.parametrize("top_k, status", [(4096, 200), (4097, 400), (10**8, 400), (2**62, 400), (2**62 + 1, 400)])
def test_the_rows_of_a_support_are_bounded(http, top_k, status):
    sampling = {"max_tokens": 4, "top_k": top_k, "ignore_eos": True}
    body = {"token_ids": [1, 2, 3], "return_sample_support": True, "sampling_params": sampling}
    assert http.post("/skyrl/v1/generate", body).status == status
    assert http.generate(text="x", max_new_tokens=2)["output_ids"]
