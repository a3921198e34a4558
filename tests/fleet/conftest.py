"""Ray's own Python, for tests that need it."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
CLIENT = ROOT / "client" / "python"
sys.path.insert(0, str(CLIENT))


@pytest.fixture(scope="session")
def ray_python():
    """Skips where launch/test could not install Ray."""
    python = ROOT / "build" / "fleet-venv" / "bin" / "python"
    if not python.exists() or subprocess.run([python, "-c", "import ray"], capture_output=True).returncode != 0:
        pytest.skip("Ray is not installed (launch/fleet makes build/fleet-venv)")
    return python


@pytest.fixture
def on_ray(ray_python):
    """on_ray(PROGRAM, ...): what on_ray/PROGRAM.py says in its last line, as JSON."""

    def run(program, *arguments, timeout=600):
        done = subprocess.run(
            [ray_python, ROOT / "tests" / "fleet" / "on_ray" / f"{program}.py", *map(str, arguments)],
            env={"PITSTOP_BUILD": str(ROOT / "build" / "cpu"), **os.environ, "PYTHONPATH": str(CLIENT)},
            capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=timeout,
        )
        assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-6000:]
        return json.loads(done.stdout.splitlines()[-1])

    return run
