"""ctest runs several tests at once: each that uses GPUs in software gets a machine that no other
test sees.
"""

import json
import os
import pathlib
import subprocess

import pytest

ROOT = pathlib.Path(__file__).parents[2]
EMULATED = pathlib.Path(os.environ.get("PITSTOP_EMULATED_BUILD", ROOT / "build" / "emulated"))
VARIABLE = "PITSTOP_EMULATED_MACHINE"


def machine_of(test):
    """The machine that ctest gives `test`, or None."""
    properties = {each["name"]: each["value"] for each in test["properties"]}
    settings = dict(each.split("=", 1) for each in properties.get("ENVIRONMENT", []))
    for change in properties.get("ENVIRONMENT_MODIFICATION", []):
        name, operation = change.split("=", 1)
        assert name != VARIABLE or operation.startswith("set:"), change
        settings[name] = operation.removeprefix("set:")
    return settings.get(VARIABLE)


def test_no_two_tests_of_ctest_have_the_same_gpus():
    if not (EMULATED / "CTestTestfile.cmake").exists():
        pytest.skip("no build of the emulated preset")
    listed = subprocess.run(
        ["ctest", "--test-dir", str(EMULATED), "-L", "^emulated$", "--show-only=json-v1"],
        check=True,
        capture_output=True,
        text=True,
    )
    machines = {test["name"]: machine_of(test) for test in json.loads(listed.stdout)["tests"]}

    assert "tp_worker_gpu_test" in machines, "the tests of the GPU in software are not listed"
    assert {name for name, machine in machines.items() if machine is None} == set()
    assert len(set(machines.values())) == len(machines), machines
