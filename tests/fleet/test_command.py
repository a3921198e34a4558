"""launch/fleet: what it takes."""

import json
import pathlib
import subprocess

import pytest

CLIENT = pathlib.Path(__file__).resolve().parents[2] / "client" / "python"
PROGRAM = """
import json, sys
from pitstop.fleet import command
own = command.parser()
mine, options = command._split(own, sys.argv[1:])
print(json.dumps([vars(own.parse_args(mine)), options]))
"""


CALL = "import sys; from pitstop.fleet import command; sys.exit(command.main())"


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


@pytest.mark.parametrize("words, told", [
    (["add", "one"], "a whole number, not 'one'"),
    (["remove", "-1"], "a whole number, not '-1'"),
    (["remove"], "remove takes a slot"),
    (["update", "here", "there"], "update takes no 'there'"),
    (["status", "please"], "status takes no 'please'"),
    (["serve", "stories"], "serve takes no 'stories'"),
    (["status", "--threads", "1"], "status takes no threads"),
    (["--replicas", "0"], "replicas=0"),
    (["--quorum", "2"], "quorum=2"),
], ids=" ".join)
def test_what_means_nothing_is_refused_by_name_before_anything_starts(ray_python, words, told):
    done = subprocess.run([ray_python, "-c", CALL, *words], env={"PYTHONPATH": str(CLIENT), "RAY_ADDRESS": "127.0.0.1:1"},
                          capture_output=True, text=True)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
    assert done.stderr.startswith("launch/fleet: ") and told in done.stderr


def bundle(ray_python, options, is_own, gpus):
    program = f"import json; from pitstop.fleet.fleet import bundle_of; print(json.dumps(bundle_of({options}, {is_own}, {gpus})))"
    return json.loads(subprocess.run([ray_python, "-c", program], env={"PYTHONPATH": str(CLIENT)}, check=True,
                                     capture_output=True, text=True).stdout.splitlines()[-1])


@pytest.mark.parametrize(
    "options, gpus, taken",
    [
        ({"tp": 2}, 0, {"CPU": 2}),
        ({"tp": 2}, 2, {"CPU": 1, "GPU": 2}),  # the tree, told nothing, takes them
        ({"tp": 2, "dp": 2}, 2, {"CPU": 4}),  # more ranks than GPUs: it computes on CPUs
        ({"tp": 2, "device": "auto"}, 8, {"CPU": 1, "GPU": 2}),
        ({"tp": 2, "device": "cpu"}, 8, {"CPU": 2}),
        ({"tp": 2, "device": "cuda"}, 0, {"CPU": 1, "GPU": 2}),  # Ray waits for such a machine
    ],
)
def test_a_replica_takes_the_gpus_that_its_tree_will_compute_on(ray_python, options, gpus, taken):
    assert bundle(ray_python, options, False, gpus) == taken
