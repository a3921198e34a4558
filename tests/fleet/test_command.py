"""launch/fleet: what it takes."""

import json
import pathlib
import subprocess

CLIENT = pathlib.Path(__file__).resolve().parents[2] / "client" / "python"
PROGRAM = """
import json, sys
from pitstop.fleet import command
own = command.parser()
mine, options = command._split(own, sys.argv[1:])
print(json.dumps([vars(own.parse_args(mine)), options]))
"""


def parsed(ray_python, *arguments):
    said = subprocess.run([ray_python, "-c", PROGRAM, *arguments], env={"PYTHONPATH": str(CLIENT)}, check=True,
                          capture_output=True, text=True).stdout
    return json.loads(said.splitlines()[-1])


def test_flags_that_are_not_the_fleets_are_every_trees(ray_python):
    own, trees = parsed(ray_python, "--replicas", "3", "--threads", "1", "--deterministic", "--page-size=16", "--http")
    assert own["command"] == "serve" and own["replicas"] == 3 and own["http"] is True
    assert trees == {"threads": "1", "deterministic": True, "page_size": "16"}


def test_a_command_and_what_it_is_about(ray_python):
    own, trees = parsed(ray_python, "generate", "Once upon", "a time", "--temperature", "0")
    assert own["command"] == "generate" and own["what"] == ["Once upon", "a time"] and own["temperature"] == 0
    assert trees == {}
