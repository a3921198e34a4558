"""Grammars that begin after the thinking, and limits of thinking. The model writes stories at temperature 1, on two
ranks, with drafts."""

import json
import re

import pytest

TREE_FLAGS = ("--tp", "2", "--speculate", "4", "--reasoning-parser", "<think> </think>")
CHAT = "/v1/chat/completions"
INSIDE = "{{ messages[0].content }}<think>"  # the prompt opens the thinking
OUTSIDE = "{{ messages[0].content }}"
ENDED = "{{ messages[0].content }}<think></think>"
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "maximum": 99, "minimum": 0}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
FORMAT = {"response_format": {"type": "json_schema", "json_schema": {"name": "who", "schema": SCHEMA}}}


@pytest.fixture(autouse=True)
def grammars_are_built(http):
    answer = http.post("/generate", {"text": "Once", "sampling_params": {"max_new_tokens": 1, "regex": "a"}})
    if answer.status != 200 and "no xgrammar" in answer.message:
        pytest.skip(answer.message)


def body_of(template=INSIDE, **more):
    messages = [{"role": "user", "content": "Once upon a time"}]
    return {"messages": messages, "temperature": 1, "max_tokens": 300, "chat_template": template, **more}


def chat(http, **more):
    answer = http.post(CHAT, body_of(**more))
    assert answer.status == 200, answer
    return answer.json["choices"][0], answer.json["usage"]


def is_who(text):
    who = json.loads(text)
    return list(who) == ["name", "age"] and len(who["name"]) <= 8 and 0 <= who["age"] <= 99


def thought_tokens(choice, end="</think>"):
    """The number of tokens before the end marker of a choice's thinking."""
    texts = [entry["token"] for entry in choice["logprobs"]["content"]]
    whole = "".join(texts)
    begin, num = whole.index(end), 0
    while len("".join(texts[: num + 1])) <= begin:
        num += 1
    return num


def test_the_grammar_begins_after_the_thinking(http):
    seen = set()
    for seed in range(6):
        choice, usage = chat(http, seed=seed, thinking_token_budget=12, **FORMAT)
        message = choice["message"]
        assert choice["finish_reason"] == "stop" and is_who(message["content"]), choice
        assert message["reasoning_content"] and "</think>" not in message["reasoning_content"]
        assert 12 < usage["reasoning_tokens"] < usage["completion_tokens"]
        seen.add(message["content"])
    assert len(seen) > 1, "they were drawn"


@pytest.mark.parametrize("budget", [0, 1, 7, 30])
@pytest.mark.parametrize("form", [{}, FORMAT], ids=["any answer", "a schema"])
def test_the_end_is_forced_when_the_budget_is_used_up(http, budget, form):
    for seed in range(4):
        choice, usage = chat(http, seed=seed, thinking_token_budget=budget, max_tokens=90, logprobs=True, **form)
        assert choice["thinking_budget_used"] is True
        assert thought_tokens(choice) == budget
        marker = usage["reasoning_tokens"] - budget
        assert 1 <= marker <= len("</think>"), usage
        texts = [entry["token"] for entry in choice["logprobs"]["content"]]
        assert (choice["message"]["reasoning"] or "") == "".join(texts[:budget])
        if form and choice["finish_reason"] == "stop":
            assert is_who(choice["message"]["content"])


def test_a_thinking_that_ends_before_its_budget_is_told(http):
    """thinking_budget_used tells whether the thinking used its whole budget. An output that is cut inside the thinking
    has no answer."""
    choice, usage = chat(http, seed=1, thinking_token_budget=50, max_tokens=20, **FORMAT)
    assert choice["finish_reason"] == "length" and choice["thinking_budget_used"] is False
    assert choice["message"]["content"] == "" and usage["reasoning_tokens"] == usage["completion_tokens"] == 20
    choice, _ = chat(http, seed=1, thinking_token_budget=20, max_tokens=20, **FORMAT)
    assert choice["finish_reason"] == "length" and choice["thinking_budget_used"] is True
    assert "thinking_budget_used" not in chat(http, seed=1, max_tokens=5)[0]
    assert "thinking_budget_used" not in chat(http, seed=1, max_tokens=5, thinking_token_budget=-1)[0]


def test_without_thinking_there_is_nothing_to_wait_for(http):
    choice, usage = chat(http, template=ENDED, seed=2, thinking_token_budget=5, **FORMAT)
    assert is_who(choice["message"]["content"]), choice
    assert choice["message"]["reasoning"] is None and usage["reasoning_tokens"] == 0
    assert choice["thinking_budget_used"] is False
    free, _ = chat(http, template=OUTSIDE, seed=2, max_tokens=30, thinking_token_budget=5)
    assert free["message"]["content"] and free["message"]["reasoning"] is None


def test_where_the_model_may_open_the_thinking_itself_the_same_holds(http):
    """The grammar allows two beginnings: the answer's, and a thinking's."""
    thought = set()
    for seed in range(8):
        choice, _ = chat(http, template=OUTSIDE, seed=seed, thinking_token_budget=5, **FORMAT)
        assert is_who(choice["message"]["content"]), choice
        assert choice["thinking_budget_used"] is (choice["message"]["reasoning"] is not None)
        thought.add(choice["thinking_budget_used"])
    assert thought == {True, False}


def test_other_kinds_of_grammars_match_all_of_the_content(http):
    for outputs, pattern in (
        ({"regex": "(yes|no), [a-z]{2,5}"}, "(yes|no), [a-z]{2,5}"),
        ({"choice": ["red", "green"]}, "red|green"),
        ({"grammar": 'root ::= "<" [a-z]{1,3} ">"'}, "<[a-z]{1,3}>"),
    ):
        choice, _ = chat(http, seed=4, max_thinking_tokens=6, structured_outputs=outputs)
        assert re.fullmatch(pattern, choice["message"]["content"]), choice
        assert choice["message"]["reasoning"]


def streamed(http, **more):
    told = {"reasoning": "", "content": ""}
    used = None
    for event in http.events(CHAT, body_of(stream=True, **more)):
        for choice in event["choices"]:
            for name in told:
                told[name] += choice["delta"].get(name) or ""
            used = choice.get("thinking_budget_used", used)
    return told, used


def test_a_stream_tells_the_same(http):
    for more in ({"thinking_token_budget": 9}, {"thinking_token_budget": 9, **FORMAT}, {**FORMAT, "max_tokens": 8}):
        message = chat(http, seed=5, **more)[0]["message"]
        told, used = streamed(http, seed=5, **more)
        assert told == {"reasoning": message["reasoning"] or "", "content": message["content"]}
        assert used is (True if "thinking_token_budget" in more else None)


def counted(http, name):
    return sum(map(float, re.findall(rf"^{name}\{{.*?\}} (\S+)$", http.get("/metrics").body.decode(), re.MULTILINE)))


@pytest.mark.parametrize("form", [{}, FORMAT], ids=["any answer", "a schema"])
def test_P11_drafts_change_no_bit(http, form):
    more = {
        "seed": 6,
        "thinking_token_budget": 10,
        "max_tokens": 60,
        "return_token_ids": True,
        "logprobs": True,
        **form,
    }
    plain, _ = chat(http, draft_key="none", **more)
    right = plain["token_ids"]
    before = counted(http, "pitstop_draft_tokens_accepted_total")
    for drafts in (right, [*right[:15], *reversed(right[15:])], right[3:]):
        drafted, _ = chat(http, draft_ids=drafts, draft_key="some", **more)
        assert drafted["token_ids"] == right and drafted["logprobs"] == plain["logprobs"]
        assert drafted["message"] == plain["message"]
    assert counted(http, "pitstop_draft_tokens_accepted_total") > before + 10


@pytest.mark.parametrize("form", [{}, FORMAT], ids=["any answer", "a schema"])
@pytest.mark.parametrize("when", [4, 12, 16])
def test_P6_retractions_change_no_bit(http, door, admin, form, when):
    """Sends the grammar that the front end would make. A retracted request's new matcher follows thinking, marker and
    answer again."""
    tag = {"type": "tag", "begin": "", "content": {"type": "any_text", "max_tokens": 10}, "end": "</think>"}
    rest = {"type": "json_schema", "json_schema": SCHEMA} if form else {"type": "any_text"}
    tag = {"type": "structural_tag", "format": {"type": "sequence", "elements": [tag, rest]}}
    sampling = {"temperature": 1.0, "max_new_tokens": 60, "structural_tag": json.dumps(tag)}
    alone = door.generate("Once", logprobs={"enabled": True}, seed=5, **sampling)
    assert alone.text.count("</think>") == 1 or not form
    rids = [door.start("Once", logprobs={"enabled": True}, seed=seed, **sampling) for seed in range(5, 9)]
    while len(door.outputs[rids[0]].tokens) < when:
        door.step()
    assert admin.call("pause_generation", mode="retract")["parts"][0]["num_retracted"] > 0
    admin.call("continue_generation")
    again = door.finish(rids)[0]
    assert again.tokens == alone.tokens and again.logprobs == alone.logprobs


def test_every_dialect_has_budgets(http):
    extra = {"chat_template": INSIDE, "temperature": 1, "seed": 3}
    body = {"input": "Once", "max_output_tokens": 300, "thinking_token_budget": 8, **extra}
    form = {"format": {"type": "json_schema", "name": "who", "schema": SCHEMA}}
    answer = http.post("/v1/responses", {**body, "text": form}).json
    assert [item["type"] for item in answer["output"]] == ["reasoning", "message"]
    assert is_who(answer["output"][1]["content"][0]["text"]) and answer["thinking_budget_used"] is True
    body = {"messages": [{"role": "user", "content": "Once"}], "max_tokens": 300, **extra}
    thinking = {"type": "enabled", "budget_tokens": 8}
    config = {"format": {"type": "json_schema", "schema": SCHEMA}}
    answer = http.post("/v1/messages", {**body, "thinking": thinking, "output_config": config}).json
    assert [block["type"] for block in answer["content"]] == ["thinking", "text"]
    assert is_who(answer["content"][1]["text"]) and answer["thinking_budget_used"] is True


@pytest.mark.parametrize(
    "more, named",
    [
        ({"thinking_token_budget": -2}, "thinking_token_budget"),
        ({"thinking_token_budget": "many"}, "thinking_token_budget"),
        ({"max_thinking_tokens": 3.5}, "max_thinking_tokens"),
        ({"max_thinking_tokens": 3, "separate_reasoning": False}, "max_thinking_tokens"),
        ({"thinking_token_budget": 3, "ignore_eos": True}, "ignore_eos"),
    ],
)
def test_impossible_limits_of_thinking_are_refused_by_name(http, more, named):
    answer = http.post(CHAT, body_of(**more))
    assert answer.status == 400 and named in answer.message, answer


def test_a_budget_needs_a_format_whose_end_is_text(front_end):
    for flags, named in (((), "--reasoning-parser"), (("--reasoning-parser", "mistral"), "[/THINK]")):
        answer = front_end(*flags).http.post(CHAT, body_of(thinking_token_budget=3))
        assert answer.status == 400 and named in answer.message and "thinking_token_budget" in answer.message, answer
