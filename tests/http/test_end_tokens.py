"""Tokens that end an output: the tokenizer's end token, too, if the model's own files name
another.
"""

import json

import pytest

from http_calls import Http
from places import short_directory
from process_tree import live_tree
from scripted_model import EOS, write_scripted_model


@pytest.fixture(scope="module")
def turns():
    """A model that writes " One", an end of turn that only tokenizer_config.json names, " two"."""
    with short_directory() as place:
        model, prompts = write_scripted_model(place / "model", {"a": [" One", ("<turn>",), " two"]})
        path = place / "model" / "tokenizer_config.json"
        config = json.loads(path.read_text())
        config |= {"eos_token": "<turn>", "chat_template": "{{ messages[0].content }}"}
        path.write_text(json.dumps(config))
        with live_tree(place / "tree", "--port", "0", "--model", model) as tree:
            yield Http(tree.url), prompts["a"]


def test_the_tokenizers_end_token_ends_a_chat(turns):
    http, _ = turns
    body = {"messages": [{"role": "user", "content": "<script a>"}], "max_tokens": 8, "temperature": 0}
    (choice,) = http.ok("POST", "/v1/chat/completions", body).json()["choices"]
    assert choice["message"]["content"] == " One"
    assert choice["finish_reason"] == "stop"
    assert choice["stop_reason"] is None  # like the model's own end token: no stop token of the request


def test_a_request_may_go_on_past_the_tokenizers_end_token(turns):
    http, prompt = turns
    sampling = {"temperature": 0, "max_new_tokens": 3, "skip_special_tokens": True}
    ends = http.ok("POST", "/generate", {"input_ids": prompt, "sampling_params": sampling}).json()
    assert ends["meta_info"]["finish_reason"] == {"type": "stop", "matched": EOS + 3}
    sampling["ignore_eos"] = True
    goes_on = http.ok("POST", "/generate", {"input_ids": prompt, "sampling_params": sampling}).json()
    assert goes_on["text"] == " One two"
