"""Ray's own Python, for tests that need it, and the marks of tests that run on Ray only at
night.
"""

import json
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
CLIENT = ROOT / "client" / "python"
sys.path.insert(0, str(CLIENT))
sys.path.insert(0, str(ROOT / "tests" / "tidy"))
from project import changed_files  # noqa: E402  (after the path)

FLEET = ("client/python/pitstop/", "tests/fleet/")  # a change there runs every test of a fleet


def pytest_collection_modifyitems(items):
    """`@pytest.mark.night`: at night (launch/test --fleet), and where a fleet's own code changed."""
    if "PITSTOP_FLEET_ALL" in os.environ or any(path.startswith(FLEET) for path in changed_files()):
        return
    reason = "a fleet's code did not change: launch/test --fleet runs it"
    for item in items:
        if item.path.parent == pathlib.Path(__file__).parent and item.get_closest_marker("night"):
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def ray_python():
    """Skips where launch/test could not install Ray."""
    python = ROOT / "build" / "fleet-venv" / "bin" / "python"
    if not python.exists() or subprocess.run([python, "-c", "import ray"], capture_output=True).returncode != 0:
        pytest.skip("Ray is not installed (launch/fleet makes build/fleet-venv)")
    return python


@pytest.fixture
def on_ray(ray_python):
    """on_ray(PROGRAM, ...): the last line of on_ray/PROGRAM.py's output, as JSON."""

    def run(program, *arguments, timeout=600):
        done = subprocess.run(
            [ray_python, ROOT / "tests" / "fleet" / "on_ray" / f"{program}.py", *map(str, arguments)],
            # Ray's default niceness of 15 starves the trees on a machine with other work.
            env={
                "PITSTOP_BUILD": str(ROOT / "build/cpu"),
                "RAY_worker_niceness": "0",
                **os.environ,
                "PYTHONPATH": str(CLIENT),
            },
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=timeout,
        )
        assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-6000:]
        return json.loads(done.stdout.splitlines()[-1])

    return run
