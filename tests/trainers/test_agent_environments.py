"""The agents' environments of verifiers, which are prime-rl's, of SkyRL, and inspect-ai's evaluations, unmodified."""

import math
import re

import pytest

from environments import ROOT, python_of

STORIES = ROOT / "launch" / "models" / "stories"
LEGS = (4, 2, 0)  # in text2sql's table
MAX_TURNS = 3


@pytest.fixture(params=["inspect", "skyrl_gym", "verifiers"])
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


def are_the_trees(trajectory):
    """Each turn has the tree's own tokens and log-probabilities; what is between turns counts for nothing."""
    assert len(set(trajectory["lengths"])) == 1 and trajectory["stop_reason"] == "stop"
    assert not any(trajectory["outside"]) and 1 <= len(trajectory["turns"]) <= MAX_TURNS
    for turn in trajectory["turns"]:
        assert turn["ids"] == turn["own_ids"]
        assert turn["logprobs"] == pytest.approx(turn["own_logprobs"], abs=1e-4)
        assert all(math.isfinite(value) and value <= 0 for value in turn["logprobs"])
        assert not any(turn["rewards"][:-1]), "a turn's reward is its last token's"


def has_rewards_of_each_turn(trajectory):
    rewards = [turn["rewards"][-1] for turn in trajectory["turns"]]
    is_right = [turn["text"].endswith(f"#### {trajectory['truth']}") for turn in trajectory["turns"]]
    assert rewards == pytest.approx([1.0 if right else 0.2 / MAX_TURNS for right in is_right])
    assert not any(is_right[:-1]) and (is_right[-1] or len(is_right) == MAX_TURNS)
    assert trajectory["text"].count("numeric answer") == len(is_right) - 1, "the environment's words between turns"


def has_the_tool_s_results(trajectory):
    *asked, last = [turn["text"] for turn in trajectory["turns"]]
    results = re.findall(r"<observation>\s*0\s+(\d+)\s", trajectory["text"])  # 0: the column's name
    assert [int(each) for each in results] == [computed("sql", text) for text in asked]
    answer = computed("solution", last)
    assert answer is not None or len(asked) == MAX_TURNS - 1
    wanted = {"SELECT 4": 4, "SELECT sum(legs) FROM animals": sum(LEGS)}[trajectory["truth"]]
    rewards = [turn["rewards"][-1] for turn in trajectory["turns"]]
    assert rewards == [0.0] * len(asked) + [-1.0 if answer is None else float(answer == wanted)]


def computed(tag, text):
    """The value of the SQL in that tag; none if there is no such tag."""
    found = re.search(rf"<{tag}>SELECT (min|max|sum)\(legs\) FROM animals</{tag}>", text)
    return {"min": min, "max": max, "sum": sum}[found[1]](LEGS) if found else None


@pytest.mark.parametrize("package", ["skyrl_gym"], indirect=True)
def test_skyrl_rolls_out_agents_of_several_turns(package, tree, step):
    said = step("skyrl_gym", "skyrl_gym_step", STORIES)
    for environment, is_scored in (
        ("gsm8k_multi_turn", has_rewards_of_each_turn),
        ("text2sql", has_the_tool_s_results),
    ):
        for first, second in said[environment]:
            assert first == second, "two greedy rollouts of one version"
            for trajectory in first:
                are_the_trees(trajectory)
                is_scored(trajectory)
        before, after = ([[turn["ids"] for turn in each["turns"]] for each in runs[0]] for runs in said[environment])
        assert all(old != new for old, new in zip(before, after, strict=True))
        assert max(map(len, before)) > 1
        rewards = {turn["rewards"][-1] for each in said[environment][0][0] for turn in each["turns"]}
        assert 1.0 in rewards and len(rewards) > 1
