"""The paths of the benchmark programs."""

import os
import pathlib

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


def program(name):
    """A program's path, from the build directory in PITSTOP_BUILD or the cpu preset's. Skips if the
    program was not built (PITSTOP_BENCH is off).
    """
    path = pathlib.Path(os.environ.get("PITSTOP_BUILD", ROOT / "build" / "cpu")) / "bin"
    path = path / f"pitstop_{name}"
    if not path.exists():
        pytest.skip(f"{path} is not built (PITSTOP_BENCH is off)", allow_module_level=True)
    return str(path)
