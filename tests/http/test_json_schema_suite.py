"""Schemas of the JSON schema test suite: outputs under a grammar are valid, or the refusal names the keyword. The model
writes stories, at temperature 1."""

import json
import os
import re

import pytest

from json_schema_suite import schemas

jsonschema = pytest.importorskip("jsonschema", reason="the package index could not be reached")
referencing = pytest.importorskip("referencing", reason="the package index could not be reached")

ALL = os.environ.get("PITSTOP_ALL_SCHEMAS") == "1"
EACH, SLICE = 5, 9  # outputs of a schema; one of 9 schemas is in the bounded slice
WORDS = r"is not served|cannot be compiled|too large|deep"


@pytest.fixture(autouse=True)
def grammars_are_built(http):
    answer = http.post("/generate", {"text": "Once", "sampling_params": {"max_new_tokens": 1, "regex": "a"}})
    if answer.status != 200 and "no xgrammar" in answer.message:
        pytest.skip(answer.message)


def keywords(schema):
    if isinstance(schema, list):
        return set().union(*map(keywords, schema)) if schema else set()
    if not isinstance(schema, dict):
        return set()
    return set(schema) | keywords(list(schema.values()))


def check(http, name, schema, seeds):
    """Returns whether the schema was served."""
    validator = jsonschema.Draft202012Validator(schema, registry=referencing.Registry())
    for seed in seeds:
        sampling = {"max_new_tokens": 300, "temperature": 1, "json_schema": json.dumps(schema), "sampling_seed": seed}
        answer = http.post("/generate", {"text": "Once", "sampling_params": sampling})
        if answer.status == 400:
            assert re.search(WORDS, answer.message), (name, answer)
            named = {
                word for word in keywords(schema) if re.search(rf"(?<![\w$]){re.escape(word)}(?!\w)", answer.message)
            }
            assert named or "schema" in answer.message, (name, answer)
            return False
        assert answer.status == 200, (name, answer)
        if answer.json["meta_info"]["finish_reason"]["type"] != "stop":
            continue
        value = json.loads(answer.json["text"])
        validator.validate(value)
    return True


def test_outputs_under_the_suites_schemas_are_valid(http):
    chosen = schemas() if ALL else schemas()[::SLICE]
    served, wrong = 0, []
    for name, schema in chosen:
        try:
            served += check(http, name, schema, range(EACH) if ALL else range(2))
        except Exception as error:  # noqa: BLE001 (all of them are reported at once)
            wrong.append(f"{name}: {type(error).__name__}: {str(error).splitlines()[0][:300]}")
    print(f"{len(chosen)} schemas, {served} served")
    assert not wrong, "\n".join(wrong)
    assert served > len(chosen) // 5  # the suite tests odd cases: most of its schemas have no type
