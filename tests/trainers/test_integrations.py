"""pitstop.integrations: trainers that call an engine in a process of their own, on their own base
classes.
"""

import json

import pytest

from environments import LIGHT, python_of
from test_adapters_of_trainers import directories, expected  # noqa: F401  (fixtures)
from test_trainers import is_a_step


@pytest.mark.parametrize("package", ["verl", "openrlhf", "nemo_rl"])
def test_a_whole_step_and_the_colocated_cycle(package, fresh, step):
    python_of("integrations")
    is_a_step(step("integrations", f"{package}_integration_step", json.dumps(fresh["stories"][0])), fresh)


def test_verls_lora_steps_load_an_adapter_that_each_request_names(fresh, step, directories, expected):  # noqa: F811
    """The tree of the integration begins with another model: verl sends the base, and then an adapter in each step."""
    said = step(LIGHT, "verl_lora_integration_step", json.dumps(fresh["stories"][0]), *directories)
    assert said["steps"] == expected[1:]
    assert said["adapter"] == ["verl_actor", "step 2"]
    code, why = said["refused"]
    assert code == "unsupported" and "peft_config" in why and "lora_rank" in why
