"""The agents' environments of verifiers, which are prime-rl's, and inspect-ai's evaluations, unmodified."""

import math

import pytest

from environments import ROOT, python_of

STORIES = ROOT / "launch" / "models" / "stories"


@pytest.fixture(params=["inspect", "verifiers"])
def package(request):
    python_of(request.param)  # skips before a tree starts, if the packages cannot be installed
    return request.param


@pytest.mark.parametrize("package", ["verifiers"], indirect=True)
def test_verifiers_rolls_out_as_it_evaluates_and_as_it_trains(package, tree, step):
    """Both ways write the same texts. Those that train have the tree's tokens and log-probabilities."""
    said = step("verifiers", "verifiers_step", STORIES)
    for chats, trained in zip(said["eval"], said["train"], strict=True):
        assert [each["text"] for each in chats] == [each["text"] for each in trained]
        assert [each["reward"] for each in chats] == [each["reward"] for each in trained]
        for first, second in zip(trained[::2], trained[1::2], strict=True):
            assert first == second, "two greedy rollouts of one task"
        for each in trained:
            assert len(each["ids"]) == len(each["logprobs"]) == 12 and all(value <= 0 for value in each["logprobs"])
    before, after = said["train"]
    assert [each["ids"] for each in before] != [each["ids"] for each in after]


@pytest.mark.parametrize("tree", [("--tool-call-parser", "hermes")], indirect=True)
@pytest.mark.parametrize("package", ["inspect"], indirect=True)
def test_inspect_calls_a_tool_and_continues_after_its_result(package, tree, step):
    before, after = step("inspect", "inspect_step")
    for each in (*before, *after):
        ((name, arguments),) = each["calls"]
        assert name == "weather" and arguments["place"] in ("Paris", "Rome") and arguments["days"] in (1, 2, 3)
        assert each["results"] == [f"sunny for {arguments['days']} days"]
        assert each["text"] and len(each["logprobs"]) == 12
        assert all(value <= 0 and math.isfinite(value) for value in each["logprobs"])
    assert [each["text"] for each in before] != [each["text"] for each in after]
