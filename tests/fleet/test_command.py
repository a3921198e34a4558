"""launch/fleet: its arguments."""

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


LAUNCH = pathlib.Path(__file__).resolve().parents[2] / "launch" / "fleet"
CALL = "import sys; from pitstop.fleet import command; sys.exit(command.main())"


def parsed(ray_python, *arguments):
    said = subprocess.run(
        [ray_python, "-c", PROGRAM, *arguments],
        env={"PYTHONPATH": str(CLIENT)},
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return json.loads(said.splitlines()[-1])


def test_flags_that_are_not_the_fleets_are_every_trees(ray_python):
    own, trees = parsed(ray_python, "--replicas", "3", "--threads", "1", "--deterministic", "--page-size=16", "--http")
    assert own["command"] == "serve" and own["replicas"] == 3 and own["http"] is True
    assert trees == {"threads": "1", "deterministic": True, "page_size": "16"}


def test_a_command_and_what_it_is_about(ray_python):
    own, trees = parsed(ray_python, "generate", "Once upon", "a time", "--temperature", "0")
    assert own["command"] == "generate" and own["what"] == ["Once upon", "a time"] and own["temperature"] == 0
    assert trees == {}


@pytest.mark.parametrize(
    "words, told",
    [
        (["add", "one"], "a whole number, not 'one'"),
        (["remove", "-1"], "a whole number, not '-1'"),
        (["remove"], "remove takes a slot"),
        (["update", "here", "there"], "update takes no 'there'"),
        (["status", "please"], "status takes no 'please'"),
        (["serve", "stories"], "serve takes no 'stories'"),
        (["status", "--threads", "1"], "status takes no threads"),
        (["--replicas", "0"], "replicas=0"),
        (["--quorum", "2"], "quorum=2"),
    ],
    ids=" ".join,
)
def test_arguments_that_mean_nothing_are_refused_by_name_before_anything_starts(ray_python, words, told):
    done = subprocess.run(
        [ray_python, "-c", CALL, *words],
        env={"PYTHONPATH": str(CLIENT), "RAY_ADDRESS": "127.0.0.1:1"},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
    assert done.stderr.startswith("launch/fleet: ") and told in done.stderr


@pytest.mark.parametrize(
    "words, told, code",
    [(["--version"], "launch/fleet 0.", 0), (["help"], "usage: launch/fleet [COMMAND] [flags]\n", 0)],
)
def test_the_version_and_help_start_no_fleet(ray_python, words, told, code):
    for program in ([ray_python, "-c", CALL], [LAUNCH]):
        done = subprocess.run(
            [*program, *words],
            env={"PYTHONPATH": str(CLIENT), "PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == code and done.stdout.startswith(told) and done.stderr == "", done


def test_a_word_that_is_no_command_is_told_in_a_line(ray_python):
    done = subprocess.run(
        [ray_python, "-c", CALL, "statsu"], env={"PYTHONPATH": str(CLIENT)}, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert done.stderr.startswith("launch/fleet: no command 'statsu'; there are serve, generate, ")


def place(ray_python, options, replicas, gpus, bundle):
    config = {"options": options, "replicas": replicas, "bundle": bundle}
    program = (
        f"import json; from pitstop.fleet.fleet import place_for; print(json.dumps(place_for({config}, False, {gpus})))"
    )
    return json.loads(
        subprocess.run(
            [ray_python, "-c", program], env={"PYTHONPATH": str(CLIENT)}, check=True, capture_output=True, text=True
        ).stdout.splitlines()[-1]
    )


@pytest.mark.parametrize(
    "options, replicas, gpus, bundle, device",
    [
        ({"tp": 2}, 1, [0], {"CPU": 2}, "cpu"),
        ({"tp": 2}, 1, [2], {"CPU": 1, "GPU": 2}, None),  # without a device flag, the tree uses the two GPUs
        ({"tp": 1}, 3, [1], {"CPU": 1}, "cpu"),  # one GPU cannot serve three replicas, so all three run on CPUs
        ({"tp": 2}, 3, [3, 4, 0], {"CPU": 1, "GPU": 2}, None),
        ({"tp": 2}, 3, [3, 3, 0], {"CPU": 2}, "cpu"),  # six GPUs, but one replica would be spread over two machines
        ({"tp": 2, "dp": 2}, 1, [2], {"CPU": 4}, "cpu"),
        ({"tp": 2, "device": "auto"}, 1, [8], {"CPU": 1, "GPU": 2}, "auto"),
        ({"tp": 2, "device": "cpu"}, 1, [8], {"CPU": 2}, "cpu"),
        ({"tp": 2, "device": "cuda"}, 3, [0], {"CPU": 1, "GPU": 2}, "cuda"),  # Ray waits for such machines
    ],
)
def test_a_replica_takes_the_gpus_that_its_tree_will_compute_on(ray_python, options, replicas, gpus, bundle, device):
    found = place(ray_python, options, replicas, gpus, {})
    assert found["bundle"] == bundle
    assert found["options"].get("device") == device


@pytest.mark.parametrize("bundle, device", [({"CPU": 3}, "cpu"), ({"CPU": 1, "GPU": 1}, None), ({"GPU": 0}, "cpu")])
def test_a_replicas_resources_decide_the_device_of_its_tree(ray_python, bundle, device):
    found = place(ray_python, {"tp": 1}, 1, [8], bundle)
    assert found["bundle"] == bundle
    assert found["options"].get("device") == device
