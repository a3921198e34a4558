"""pitstop.integrations: trainers that call an engine in a process of their own, on their own base
classes.
"""

import json

import pytest

from environments import python_of
from test_trainers import is_a_step


@pytest.mark.parametrize("package", ["verl", "openrlhf", "nemo_rl"])
def test_a_whole_step_and_the_colocated_cycle(package, fresh, step):
    python_of("integrations")
    is_a_step(step("integrations", f"{package}_integration_step", json.dumps(fresh["stories"][0])), fresh)
