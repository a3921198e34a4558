"""Trainers' own code loads, replaces and unloads adapters (LoRA), each in its own way. The output must equal that of
the same adapter loaded over the bus under another name."""

import json

import pytest

from environments import LIGHT, NUM_TOKENS, PROMPT
from lora_files import exact_adapter, write_adapter


@pytest.fixture(scope="module")
def directories(tmp_path_factory):
    place = tmp_path_factory.mktemp("adapters")
    return [write_adapter(place / str(seed), exact_adapter(seed)[0]) for seed in (1, 2)]


@pytest.fixture
def expected(tree, directories):
    """The tokens of the model alone, and with each adapter."""
    with tree.door("admin") as admin, tree.door() as door:

        def tokens(adapter):
            return door.generate(PROMPT, max_new_tokens=NUM_TOKENS, temperature=0, adapter=adapter).tokens

        found = [tokens("")]
        for directory in directories:
            update = {"adapter": "mine", "source": {"kind": "disk", "path": str(directory)}}
            assert admin.call("update_weights", update=update)["ok"]
            found.append(tokens("mine"))
        assert admin.call("unload_adapter", name="mine")["ok"]
    assert len({tuple(each) for each in found}) == 3
    return found


@pytest.mark.parametrize("trainer", ["verl", "skyrl", "trl"])
def test_each_step_samples_its_own_adapter(trainer, tree, step, directories, expected):
    said = step(LIGHT, f"{trainer}_lora_step", *directories)
    base, *adapted = expected
    assert said["base"] == said["base_after"] == base
    assert said["steps"] == adapted
    assert said["open"] == 300, "the open request lost nothing"
    if trainer == "verl":
        assert said["models"] == ["stories"]
    elif trainer == "trl":
        assert said["models"] == ["stories", "trl-policy-v1"]
    else:
        assert "skyrl-lora" in said["unloaded"], said["unloaded"]


def test_areals_versions_follow_each_other(tree, step, directories, expected):
    """AReaL unloads version N - 1 after each load and ignores the answer; status must show that it is unloaded."""
    said = step(LIGHT, "areal_lora_step", json.dumps(tokens_of_prompt(tree)), *directories)
    assert said["steps"] == expected[1:]
    with tree.door("admin") as admin:
        (replica,) = admin.call("status")["replicas"]
    assert [each["adapter"]["name"] for each in replica["adapters"]] == ["policy-v1"]


def tokens_of_prompt(tree):
    with tree.door() as door:
        return door.call("tokenize", text=PROMPT)["ids"]
