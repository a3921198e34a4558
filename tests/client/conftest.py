"""Clients of fake doors."""

import pathlib
import sys
import tempfile

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "client" / "python"))

import pitstop  # noqa: E402
from fake_door import DEADLINE_S, FakeDoor  # noqa: E402


@pytest.fixture
def run_dir():
    with tempfile.TemporaryDirectory() as path:
        yield path


@pytest.fixture
def door(run_dir):
    doors = [FakeDoor(run_dir)]
    yield doors[0]
    if not doors[0]._is_stopping:
        doors[0].die()


@pytest.fixture
def client(door, run_dir):
    with pitstop.Client(run_dir, timeout=DEADLINE_S) as client:
        yield client
