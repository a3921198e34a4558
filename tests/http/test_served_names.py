"""A model's names: any of them is accepted; another is 404, and the base model never answers for
it.
"""

import pytest

from control_tree import STORIES

TREE_FLAGS = ("--served-model-name", "actor", "policy")
PROMPT = list(range(5, 25))
BODIES = {
    "/v1/completions": {"prompt": PROMPT, "max_tokens": 1},
    "/v1/chat/completions": {"input_ids": PROMPT, "messages": [{"role": "user", "content": "?"}], "max_tokens": 1},
    "/inference/v1/generate": {"token_ids": PROMPT, "sampling_params": {"max_tokens": 1}},
    "/v1/chat/completions/render": {"messages": [{"role": "user", "content": "?"}]},
    "/v1/completions/render": {"prompt": "Once"},
}


@pytest.mark.parametrize("path", BODIES)
def test_each_served_name_is_taken_and_another_is_404(http, path):
    for name in ("actor", "policy", STORIES, ""):
        answer = http.post(path, {**BODIES[path], "model": name})
        assert answer.status == 200, answer
        shown = answer.json[0] if isinstance(answer.json, list) else answer.json
        assert shown["model"] == (name or "actor")
    for name in ("stories", "actor:adapter", "my-adapter"):
        refused = http.post(path, {**BODIES[path], "model": name})
        assert refused.status == 404 and name in refused.message, refused
        assert refused.message.endswith("; served here: `actor`, `policy`"), refused.message


def test_models_lists_every_name(http):
    models = http.get("/v1/models").json["data"]
    assert [model["id"] for model in models] == ["actor", "policy"]
    assert {model["root"] for model in models} == {STORIES}
    assert http.get("/v1/models/policy").json == models[1]
    assert http.get("/v1/models/stories").status == 404
