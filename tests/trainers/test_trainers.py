"""Each trainer's own code drives a tree through a whole step: sample, pause, update in its own way,
continue, sample; and the colocated cycle. The output must be that of a fresh start on the new
weights.
"""

import json

import pytest

from environments import LIGHT, ROOT, python_of


def is_a_step(said, fresh):
    assert said["before"] == fresh["stories"][1]
    assert said["after"] == fresh["bard"][1]
    if "colocated" in said:
        assert said["colocated"] == fresh["bard"][1]
    for first, second, own in said.get("distilled", ()):
        assert first >= second > own > float("-inf")


@pytest.fixture(params=["openai", "anthropic", "trl", "skyrl", "sglang", "verl", "areal", "checkpoint_engine"])
def trainer(request):
    python_of(request.param)  # skips before a tree starts, if the packages cannot be installed
    return request.param


def test_a_whole_step_and_the_colocated_cycle(trainer, fresh, step):
    is_a_step(step(trainer, f"{trainer}_step", json.dumps(fresh["stories"][0])), fresh)


@pytest.mark.parametrize("trainer", ["trl", "skyrl", "sglang", "verl", "areal"])
def test_a_whole_step_without_pytorch(trainer, fresh, step):
    """The same programs, with tensors in PyTorch's replacement."""
    is_a_step(step(LIGHT, f"{trainer}_step", json.dumps(fresh["stories"][0])), fresh)


def test_lm_eval_scores_the_version_that_serves(step):
    """The log-likelihoods equal the tree's own prompt logprobs, before an update and after it."""
    said = step(LIGHT, "lm_eval_step", ROOT / "launch" / "models" / "stories")
    for mine, theirs in zip(said["lm_eval"], said["engine"]):
        assert mine == pytest.approx(theirs, abs=1e-4)
    assert said["lm_eval"][0] != pytest.approx(said["lm_eval"][1], abs=0.1)
