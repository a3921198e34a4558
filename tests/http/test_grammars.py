"""Outputs that match a grammar, by every dialect: at temperature 1, from a model that writes stories."""

import json
import re
import threading
import time

import pytest

# Rank 0 of each replica draws; the drafts come from earlier outputs.
TREE_FLAGS = ("--tp", "2", "--speculate", "4")
PROMPT = "Once upon a time"


@pytest.fixture(autouse=True)
def grammars_are_built(http):
    """Where xgrammar's sources could not be fetched, the build refuses grammars, and says so."""
    answer = http.post("/generate", {"text": PROMPT, "sampling_params": {"max_new_tokens": 1, "regex": "a"}})
    if answer.status != 200 and "no xgrammar" in answer.message:
        pytest.skip(answer.message)


PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "mood": {"enum": ["glad", "sad", None]},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 4}, "maxItems": 2},
        "alive": {"type": "boolean"},
    },
    "required": ["name", "age", "mood", "tags", "alive"],
    "additionalProperties": False,
}


def problem(schema, value, at="$"):
    """The error in a value, by the part of JSON schema that these tests use, or None."""
    if "enum" in schema:
        return None if value in schema["enum"] else f"{at}: {value!r} is not in the enum"
    kinds = {"object": dict, "array": list, "string": str, "integer": int, "boolean": bool, "null": type(None)}
    kind = schema.get("type")
    if kind and (not isinstance(value, kinds[kind]) or (kind == "integer" and isinstance(value, bool))):
        return f"{at}: {value!r} is no {kind}"
    if kind == "object":
        for name in schema.get("required", ()):
            if name not in value:
                return f"{at}: no {name}"
        for name, each in value.items():
            if name not in schema["properties"]:
                return f"{at}: {name} is not asked for"
            if why := problem(schema["properties"][name], each, f"{at}.{name}"):
                return why
        if list(value) != [name for name in schema["properties"] if name in value]:
            return f"{at}: the order is {list(value)}"
    if kind == "array":
        if len(value) > schema.get("maxItems", len(value)):
            return f"{at}: {len(value)} items"
        return next(filter(None, (problem(schema["items"], each, f"{at}[]") for each in value)), None)
    if kind == "string" and len(value) > schema.get("maxLength", len(value)):
        return f"{at}: {value!r} is too long"
    if kind == "integer" and not schema.get("minimum", value) <= value <= schema.get("maximum", value):
        return f"{at}: {value}"
    return None


def is_person(text):
    return problem(PERSON, json.loads(text)) is None


SAMPLING = {"temperature": 1, "max_new_tokens": 900}
GRAMMARS = {
    "json_schema": (json.dumps(PERSON), is_person),
    "regex": (r"(yes|no), [A-Z][a-z]{2,5}[.!]", lambda text: re.fullmatch(r"(yes|no), [A-Z][a-z]{2,5}[.!]", text)),
    "ebnf": ('root ::= "<" word ("," word){0,3} ">"\nword ::= [a-z]{1,5}',
             lambda text: re.fullmatch(r"<[a-z]{1,5}(,[a-z]{1,5}){0,3}>", text)),
    "structural_tag": (
        json.dumps({"type": "structural_tag", "format": {
            "type": "sequence", "elements": [
                {"type": "tag", "begin": "<call>", "content": {"type": "json_schema", "json_schema": PERSON}, "end": "</call>"},
                {"type": "const_string", "value": " done"}]}}),
        lambda text: (found := re.fullmatch(r"<call>(.*)</call> done", text, re.DOTALL)) and is_person(found[1])),
}  # fmt: skip


@pytest.mark.parametrize("kind", GRAMMARS)
def test_every_output_matches_its_grammar_and_ends_with_it(http, kind):
    grammar, matches = GRAMMARS[kind]
    texts = set()
    for seed in range(6):
        out = http.generate(text=PROMPT, **SAMPLING, **{kind: grammar}, sampling_seed=seed)
        assert out["meta_info"]["finish_reason"]["type"] == "stop", out
        assert matches(out["text"]), out["text"]
        texts.add(out["text"])
    assert len(texts) > 1, "they were drawn"


def test_an_output_that_is_cut_says_length(http):
    out = http.generate(text=PROMPT, max_new_tokens=3, json_schema=json.dumps(PERSON), sampling_seed=1)
    assert out["meta_info"]["finish_reason"] == {"type": "length", "length": 3}
    assert out["text"].startswith("{")


def test_P6_neighbours_cuts_and_retractions_change_no_bit(http, door, admin):
    """A retracted request runs again, and a new matcher follows its whole output so far."""
    sampling = {"temperature": 1.0, "max_new_tokens": 900, "seed": 5, "json_schema": json.dumps(PERSON)}
    alone = door.generate(PROMPT, logprobs={"enabled": True}, **sampling)
    assert is_person(alone.text), alone.text
    rids = [door.start(PROMPT, logprobs={"enabled": True}, **sampling)]
    rids += [door.start(PROMPT, **{**sampling, "seed": seed}) for seed in range(6, 12)]
    while len(door.outputs[rids[0]].tokens) < 5:
        door.step()
    assert admin.call("pause_generation", mode="retract")["parts"][0]["num_retracted"] > 0
    admin.call("continue_generation")
    outputs = door.finish(rids)
    assert outputs[0].tokens == alone.tokens and outputs[0].logprobs == alone.logprobs
    for output in outputs[1:]:
        assert is_person(output.text), output.text


def test_logprobs_are_of_the_model_alone(http):
    """The forced token of a grammar has the model's probability, not 1."""
    body = {
        "text": PROMPT,
        "sampling_params": {"temperature": 0, "max_new_tokens": 1, "regex": "\\{"},
        "return_logprob": True,
        "logprobs_mode": "raw",
    }
    raw = http.post("/generate", body).json["meta_info"]["output_token_logprobs"][0]
    scaled = http.post("/generate", {**body, "logprobs_mode": "scaled"}).json["meta_info"]["output_token_logprobs"][0]
    assert raw[0] < -1 and scaled[0] == 0 and raw[1] == scaled[1]


def test_an_answer_says_which_distribution_its_logprobs_have(http):
    """The answer names the distribution if a grammar or the request may change it from the model's own."""
    held = {"max_new_tokens": 2, "regex": "ab"}
    body = {"text": PROMPT, "return_logprob": True}
    assert http.post("/generate", {**body, "sampling_params": held}).json["meta_info"]["logprobs_mode"] == "scaled"
    named = {**body, "sampling_params": {"max_new_tokens": 2}, "logprobs_mode": "truncated"}
    assert http.post("/generate", named).json["meta_info"]["logprobs_mode"] == "truncated"
    assert (
        "logprobs_mode"
        not in http.post("/generate", {**body, "sampling_params": {"max_new_tokens": 2}}).json["meta_info"]
    )
    for path, given in (
        ("/v1/completions", {"prompt": PROMPT, "logprobs": 1, "max_tokens": 2}),
        ("/v1/chat/completions", {"messages": CHAT["messages"], "logprobs": True, "max_tokens": 2}),
    ):
        assert "logprobs_mode" not in http.post(path, given).json["choices"][0]
        assert http.post(path, {**given, "regex": "ab"}).json["choices"][0]["logprobs_mode"] == "raw"
        assert http.post(path, {**given, "logprobs_mode": "scaled"}).json["choices"][0]["logprobs_mode"] == "scaled"
    sampling = {"max_tokens": 2, "logprobs": 0, "structured_outputs": {"regex": "ab"}}
    answer = http.post("/inference/v1/generate", {"token_ids": [1, 5], "sampling_params": sampling})
    assert answer.json["choices"][0]["logprobs_mode"] == "raw", answer
    body = {"input": "A person?", "max_output_tokens": 2, "regex": "ab", "include": ["message.output_text.logprobs"]}
    assert http.post("/v1/responses", body).json["logprobs_mode"] == "raw"


CHAT = {"messages": [{"role": "user", "content": "A person?"}], "temperature": 1, "seed": 3}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}}
INNER = {"type": "json_schema", "name": "person", "schema": PERSON, "strict": True}
DIALECTS = {
    "chat": ("/v1/chat/completions", {**CHAT, "max_tokens": 900, "response_format": SCHEMA},
             lambda answer: answer["choices"][0]["message"]["content"]),
    "chat, vLLM's": ("/v1/chat/completions", {**CHAT, "max_tokens": 900, "structured_outputs": {"json": PERSON}},
                     lambda answer: answer["choices"][0]["message"]["content"]),
    "completions": ("/v1/completions", {"prompt": PROMPT, "max_tokens": 900, "response_format": SCHEMA},
                    lambda answer: answer["choices"][0]["text"]),
    "completions, SGLang's": ("/v1/completions", {"prompt": PROMPT, "max_tokens": 900, "json_schema": json.dumps(PERSON)},
                              lambda answer: answer["choices"][0]["text"]),
    "responses": ("/v1/responses", {"input": "A person?", "max_output_tokens": 900, "text": {"format": INNER}},
                  lambda answer: answer["output"][0]["content"][0]["text"]),
    "messages": ("/v1/messages", {"messages": CHAT["messages"], "max_tokens": 900,
                                  "output_config": {"format": {"type": "json_schema", "schema": PERSON}}},
                 lambda answer: answer["content"][0]["text"]),
}  # fmt: skip


@pytest.mark.parametrize("dialect", DIALECTS)
def test_each_dialect_has_schemas_whose_properties_keep_their_order(http, dialect):
    path, body, text_of = DIALECTS[dialect]
    answer = http.post(path, body)
    assert answer.status == 200, answer
    text = text_of(answer.json)
    assert problem(PERSON, json.loads(text)) is None, text


def test_json_mode_makes_objects(http):
    body = {**CHAT, "max_tokens": 200, "response_format": {"type": "json_object"}}
    for seed in range(8):
        choice = http.post("/v1/chat/completions", {**body, "seed": seed}).json["choices"][0]
        if choice["finish_reason"] == "stop":
            assert isinstance(json.loads(choice["message"]["content"]), dict)
        else:
            assert choice["message"]["content"].lstrip().startswith("{")


@pytest.mark.parametrize(
    "outputs, matches",
    [
        ({"regex": "[ab]{3}"}, lambda text: re.fullmatch("[ab]{3}", text)),
        ({"choice": ["red", 'a "blue"', "grün"]}, lambda text: text in ("red", 'a "blue"', "grün")),
        ({"grammar": 'root ::= "x" | "y"'}, lambda text: text in "xy"),
        ({"json_object": True}, lambda text: text.lstrip().startswith("{")),
    ],
)
def test_structured_outputs_are_vllms(http, outputs, matches):
    for seed in range(3):
        body = {"prompt": PROMPT, "max_tokens": 60, "seed": seed, "structured_outputs": outputs}
        answer = http.post("/v1/completions", body)
        assert answer.status == 200 and matches(answer.json["choices"][0]["text"]), answer


@pytest.mark.parametrize(
    "grammar, named",
    [
        ({"json_schema": "{"}, "json_schema"),
        ({"json_schema": '{"type": "array", "items": {}, "uniqueItems": true}'}, "uniqueItems"),
        ({"json_schema": '{"type": "object", "not": {"required": ["a"]}}'}, "not"),
        ({"regex": "(a"}, "regex"),
        ({"ebnf": "root ::= nothing"}, "ebnf"),
        ({"structural_tag": "{}"}, "structural_tag"),
        ({"regex": "(" * 70 + "a" + ")" * 70}, "70 deep"),
        ({"regex": "a", "ignore_eos": True}, "ignore_eos"),
        ({"regex": "x" * 300000}, "262144"),
    ],
)
def test_a_grammar_that_cannot_be_served_is_refused_by_name(http, grammar, named):
    body = {"text": PROMPT, "sampling_params": {"max_new_tokens": 5, **grammar}}
    for _ in range(2):  # the refusal is the same the second time
        answer = http.post("/generate", body)
        assert answer.status == 400 and named in answer.message, answer
    assert http.generate(text=PROMPT, max_new_tokens=3)["meta_info"]["completion_tokens"] == 3


def test_a_hostile_grammar_costs_its_sender_alone(http, door):
    """While the hostile grammar is compiled, tokens are generated and other grammars are compiled, each within a
    second."""
    hostile = json.dumps({"type": "object", "properties": {str(i): {} for i in range(18000)}})
    answers = []

    def send():
        answer = http.post("/generate", {"text": PROMPT, "sampling_params": {"json_schema": hostile}})
        answers.append(answer)  # 503 from a machine without five free CPU seconds within a minute

    sender = threading.Thread(target=send)
    http.generate(text=PROMPT, max_new_tokens=3, regex="a+")  # starts the compiler
    sender.start()
    num = 0
    while not answers:
        num += 1
        begin = time.monotonic()
        out = http.generate(text=PROMPT, max_new_tokens=5, regex=f"[ab]{{{num}}}")
        assert out["text"] and time.monotonic() - begin < 5  # takes a second on a machine with a free core
    sender.join()
    refusals = {400: "json_schema cannot be compiled in", 503: "not compiled within 60000 ms on a busy machine"}
    assert refusals[answers[0].status] in answers[0].message, answers[0]
    assert num > 3


def test_a_request_that_waits_for_its_grammar_can_be_aborted(http, door):
    hostile = json.dumps({"type": "object", "properties": {str(i): {} for i in range(18001)}})
    rid = door.start(PROMPT, max_new_tokens=5, json_schema=hostile)
    assert door.generate(PROMPT, max_new_tokens=5).tokens
    door.send("cancel", rids=[rid])
    begin = time.monotonic()
    assert door.finish([rid])[0].finish["reason"] == "abort"
    assert time.monotonic() - begin < 5


def test_requests_without_a_grammar_keep_their_bits(http):
    plain = http.generate(text=PROMPT, max_new_tokens=30, sampling_seed=4, temperature=1)["output_ids"]
    http.generate(text=PROMPT, max_new_tokens=30, regex="[a-z ]+")
    assert http.generate(text=PROMPT, max_new_tokens=30, sampling_seed=4, temperature=1)["output_ids"] == plain


def test_tools_and_a_format_do_not_go_together(http):
    tools = [{"type": "function", "function": {"name": "weather", "parameters": {}}}]
    answer = http.post("/v1/chat/completions", {**CHAT, "tools": tools, "response_format": SCHEMA})
    assert answer.status == 400 and "response_format" in answer.message and "tools" in answer.message, answer
