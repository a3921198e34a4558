"""How requests name adapters, and how the routes of vLLM and SkyRL refuse them."""

import pathlib
import subprocess
import sys

import pytest

from http_client import Http
from lora_files import config_of, exact_adapter, write_adapter
from places import short_directory
from process_tree import ROOT, live_tree
from wire import Refused

sys.path.insert(0, str(ROOT / "client/python"))

import pitstop  # noqa: E402  (after the path)

PROMPT = "Once upon a time there was a little girl who lived in a house near the forest"
SERVED = "stories:small:v2"  # Ollama's names have a colon
GREEDY = {"temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def adapter():
    return exact_adapter(1)[0]


@pytest.fixture(scope="module")
def http(adapter, tmp_path_factory):
    flags = ("--compute", "fp32", "--max-adapters", 1, "--served-model-name", SERVED, "--dp", 2)
    with short_directory() as path, live_tree(path / "tree", "--port", "0", *flags) as tree:
        http = Http(tree.url)
        directory = write_adapter(tmp_path_factory.mktemp("adapter") / "one", adapter)
        loaded = http.post("/load_lora_adapter", {"lora_name": "policy:1", "lora_path": str(directory)})
        assert loaded.status == 200, loaded
        yield http


def ids_of(http, **body):
    answer = http.post(
        "/v1/completions", {"prompt": PROMPT, "max_tokens": 16, "return_token_ids": True, **GREEDY, **body}
    )
    assert answer.status == 200, answer
    return [choice["token_ids"] for choice in answer.json["choices"]]


def test_a_served_name_and_an_adapters_may_have_colons(http):
    plain, adapted = ids_of(http, model=SERVED), ids_of(http, lora_path="policy:1")
    assert plain != adapted
    for model in ("policy:1", f"{SERVED}:policy:1"):
        assert ids_of(http, model=model) == adapted
    for model in ("stories:policy:1", f"{SERVED}:policy", f"{SERVED}:", "stories:small"):
        refused = http.post("/v1/completions", {"model": model, "prompt": PROMPT})
        assert refused.status == 404 and f"The model `{model}` does not exist" in refused.message, refused


def test_no_adapter_has_a_name_that_stands_for_the_model_or_another_adapter(tmp_path, adapter):
    """By any way to load one."""
    directory = write_adapter(tmp_path / "one", adapter)
    flags = ("--compute", "fp32", "--served-model-name", SERVED, "alias")
    with short_directory() as path, live_tree(path / "tree", "--port", "0", *flags) as tree:
        http, admin = Http(tree.url), tree.door("admin")
        for name in (SERVED, f"{SERVED}:policy", "alias", "alias:policy"):
            loads = [
                http.post("/load_lora_adapter", {"lora_name": name, "lora_path": str(directory)}),
                http.post("/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(directory)}),
            ]
            for refused in loads:
                assert refused.status == 400 and f"the adapter's name is '{name}'" in refused.message, refused
            with pytest.raises(Refused, match="invalid_argument: .*; accepted is a name that is not the model's"):
                admin.call("update_weights", update={"adapter": name, "source": {"path": str(directory)}})
            with pitstop.Engine(run_dir=str(tree.run_dir)) as engine, pytest.raises(pitstop.PitstopError) as wrong:
                engine.load_adapter(name, directory)
            assert wrong.value.code == "invalid_argument" and f"'{name}'" in str(wrong.value)
            command = subprocess.run(
                [ROOT / "launch/pitstop", "load-adapter", name, directory, "--run-dir", tree.run_dir],
                capture_output=True,
                text=True,
                timeout=60,
            )
            assert command.returncode == 1 and "accepted is a name that" in command.stderr, command
        assert [card["id"] for card in http.get("/v1/models").json["data"]] == [SERVED, "alias"]
        for name in ("stories", "policy:alias"):
            assert http.post("/load_lora_adapter", {"lora_name": name, "lora_path": str(directory)}).status == 200


def test_each_prompt_of_a_completion_may_have_an_adapter_of_its_own(http):
    plain, adapted = ids_of(http)[0], ids_of(http, lora_path="policy:1")[0]
    prompts = [PROMPT] * 3
    assert ids_of(http, prompt=prompts, lora_path=["policy:1", None, "policy:1"]) == [adapted, plain, adapted]
    assert ids_of(http, prompt=prompts, lora_path=["policy:1"] * 3, n=2) == [adapted] * 6
    assert ids_of(http, prompt=prompts[:2], lora_path=[None, "policy:1"], model="policy:1") == [adapted] * 2
    for wrong in (["policy:1"], [], [1, None, None], {"a": 1}, 3):
        refused = http.post("/v1/completions", {"prompt": prompts, "lora_path": wrong})
        assert refused.status == 400 and "lora_path" in refused.message, refused
    ghost = http.post("/v1/completions", {"prompt": prompts, "lora_path": [None, "ghost", None]})
    assert ghost.status == 404 and "'ghost'" in ghost.message, ghost
    chat = {"messages": [{"role": "user", "content": PROMPT}], "lora_path": ["policy:1"]}
    assert http.post("/v1/chat/completions", chat).status == 400


def test_routes_that_generate_nothing_refuse_an_unknown_adapter_too(http):
    template = "{% for message in messages %}{{ message.content }}{% endfor %}"
    chat = {"messages": [{"role": "user", "content": PROMPT}], "chat_template": template}
    calls = {
        "/v1/messages/count_tokens": chat,
        "/v1/chat/completions/render": chat,
        "/v1/completions/render": {"prompt": PROMPT},
    }
    for path, body in calls.items():
        refused = http.post(path, {"model": SERVED, "lora_path": "ghost", **body})
        assert refused.status == 404 and "'ghost'" in refused.message, (path, refused)
        known = http.post(path, {"model": SERVED, "lora_path": "policy:1", **body})
        assert known.status == 200, (path, known)
    rendered = http.post("/v1/completions/render", {"prompt": [PROMPT] * 2, "lora_path": [None, "policy:1"]})
    assert [each["model"] for each in rendered.json] == [SERVED, "policy:1"]


@pytest.mark.parametrize("path", ["/v1/load_lora_adapter", "/skyrl/v1/load_lora_adapter"])
def test_vllms_clients_do_not_repeat_a_load_that_cannot_succeed(http, adapter, tmp_path, path):
    """They repeat a call after 5xx."""
    bad = {
        "use_dora": ("policy:1", config_of(use_dora=True), adapter),
        "lm_head": ("policy:1", config_of(target_modules=["lm_head"]), {}),
        "--max-adapters": ("another", config_of(), adapter),
    }
    for number, (why, (name, config, tensors)) in enumerate(bad.items()):
        directory = write_adapter(tmp_path / str(number), tensors, config)
        refused = http.post(path, {"lora_name": name, "lora_path": str(directory), "load_inplace": True})
        assert refused.status == 400 and why in refused.message, (why, refused)
    (tmp_path / "cut").mkdir()
    for file in pathlib.Path(directory).iterdir():
        content = file.read_bytes()
        (tmp_path / "cut" / file.name).write_bytes(content if file.suffix == ".json" else content[:-8])
    for place, status in ((tmp_path / "cut", 400), ("/nowhere", 404)):
        refused = http.post(path, {"lora_name": "policy:1", "lora_path": str(place), "load_inplace": True})
        assert refused.status == status, refused
