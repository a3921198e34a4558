"""Shared by tests of trees on the GPU in software (tests/emulated_gpu): the build, the flags, the
machine.
"""

import os
import pathlib

import pytest

from places import short_directory
from process_tree import ROOT, live_tree

BUILD = pathlib.Path(os.environ.get("PITSTOP_EMULATED_BUILD", ROOT / "build/emulated"))
needs_gpu = pytest.mark.skipif(
    not (BUILD / "bin/pitstop_tp_worker").exists(),
    reason=f"{BUILD} is not built: cmake --preset emulated && cmake --build --preset emulated",
)
CUDA = ("--device", "cuda", "--max-total-tokens", 2048, "--tuning-dir", "none")


def machine(monkeypatch, place):
    """machine(**settings): the machine of trees from here on (tests/emulated_gpu/settings.h)."""

    def set_up(**settings):
        for name, value in settings.items():
            monkeypatch.setenv(f"PITSTOP_EMULATED_{name.upper()}", str(value))

    monkeypatch.setenv("PITSTOP_BUILD", str(BUILD))
    set_up(machine=place / "machine", gpus=2, policy="random", seed=1)
    return set_up


@pytest.fixture
def gpu(monkeypatch, place):
    """gpu(**settings): the machine of the test's trees."""
    return machine(monkeypatch, place)


@pytest.fixture(scope="module")
def shared_tree(request):
    """One tree on a GPU for the tests of a module that only send to it; flags from the module's GPU_TREE_FLAGS."""
    with short_directory() as path, pytest.MonkeyPatch.context() as monkeypatch:
        machine(monkeypatch, path)
        with live_tree(path / "tree", *CUDA, *getattr(request.module, "GPU_TREE_FLAGS", ())) as tree:
            yield tree
