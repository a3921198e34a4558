"""A tree's workers in a trainer's NCCL group. PyTorch's own TCPStore and process group helper make
the group, through the trainers' own functions: on the GPU in software, with the emulated NCCL instead of
NVIDIA's.

slime is in no package index: PITSTOP_SLIME names a checkout of it (read at 624b824)."""

import importlib.util
import json
import os
import pathlib
import subprocess
import sys

import pytest

from environments import LIGHT, ROOT, python_of
from gpu_tree import BUILD, CUDA, gpu, needs_gpu  # noqa: F401
from process_tree import ProcessTree
from weights_sources import BARD, BARD_TENSORS, DIGESTS

pytestmark = needs_gpu
STEPS = pathlib.Path(__file__).with_name("steps")
STEP_S = 300


@pytest.fixture
def interpreter():
    """An interpreter that has PyTorch: this one, or the trainers' (heavy)."""
    return sys.executable if importlib.util.find_spec("torch") else python_of("torch")


@pytest.fixture
def sglang():
    """The place of SGLang's package."""
    (packages,) = pathlib.Path(python_of(LIGHT)).parents[1].glob("lib/python*/site-packages")
    return packages / "sglang"


def run(interpreter, program, *arguments, paths=()):
    """The output of steps/PROGRAM."""
    done = subprocess.run(
        [interpreter, STEPS / program, *map(str, arguments)],
        env={
            **os.environ,
            "PITSTOP_TREE_TESTS": str(ROOT / "tests" / "tree"),
            "NO_PROXY": "*",
            "HF_HUB_OFFLINE": "1",
            "PITSTOP_CLIENT": str(ROOT / "client" / "python"),
            "PYTHONPATH": os.pathsep.join(map(str, paths)),
        },
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=STEP_S,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    return json.loads(done.stdout.splitlines()[-1])


def libraries():
    return [next(BUILD.rglob(name)) for name in ("libpitstop_emulated_cuda.so", "libnccl.so.2")]


@pytest.mark.parametrize("style", ["torch", "vllm"])
@pytest.mark.parametrize("tp", [1, 2])
def test_P10_a_group_of_pytorchs_own_store_brings_a_whole_model(gpu, interpreter, sglang, place, style, tp):
    gpu(gpus=tp + 1)
    tree = ProcessTree(place / "tree", *CUDA, "--tp", tp, "--port", 0)
    try:
        said = run(interpreter, "nccl_groups_step.py", style, tree.url, BARD, sglang, *libraries(), tp, tp + 1)
        assert said["broadcasts"] == len(BARD_TENSORS)
        assert tree.door("admin").call("weight_digests")["digest"] == DIGESTS["bard"]["digest"]
        tree.stop()
    finally:
        tree.abandon()


@pytest.mark.parametrize("trainer", ["trl", "slime"])
@pytest.mark.parametrize("tp", [1, 2])
def test_P10_a_trainers_own_code_sends_its_weights_by_nccl(gpu, sglang, fresh, place, trainer, tp):
    """The output must equal that of a fresh start on the new weights."""
    package = os.environ.get("PITSTOP_SLIME") if trainer == "slime" else "-"
    if not package:
        pytest.skip("PITSTOP_SLIME names no checkout of slime")
    interpreter = python_of("torch")
    gpu(gpus=tp + 1)
    tree = ProcessTree(place / "tree", *CUDA, "--tp", tp, "--port", 0)
    try:
        said = run(
            interpreter,
            "nccl_trainers_step.py",
            trainer,
            tree.url,
            BARD,
            sglang,
            *libraries(),
            tp,
            tp + 1,
            package,
            paths=[STEPS, *import_paths(interpreter, sglang.parent)],
        )
        assert said["before"] == fresh["stories"][1] and said["after"] == fresh["bard"][1]
        assert said["broadcasts"] == (1 if trainer == "trl" else len(BARD_TENSORS))
        assert said.get("version") == (None if trainer == "trl" else "1")
        assert tree.door("admin").call("weight_digests")["digest"] == DIGESTS["bard"]["digest"]
        tree.stop()
    finally:
        tree.abandon()


@pytest.mark.parametrize("tp", [1, 2])
def test_P10_openrlhfs_own_trainer_sends_its_weights_by_nccl(gpu, sglang, fresh, tp):
    """The trainer sends to a rollout actor of its own, which has pitstop's engine."""
    interpreter = python_of("integrations")
    (package,) = pathlib.Path(interpreter).parents[1].glob("lib/python*/site-packages")
    gpu(gpus=tp + 1)
    said = run(
        interpreter,
        "nccl_trainers_step.py",
        "openrlhf",
        "-",
        BARD,
        sglang,
        *libraries(),
        tp,
        tp + 1,
        package,
        paths=[STEPS],
    )
    assert said["before"] == fresh["stories"][1] and said["after"] == fresh["bard"][1]
    assert said["broadcasts"] == len(BARD_TENSORS)


def import_paths(interpreter, packages):
    """The packages of an environment without PyTorch, after the packages of an environment that has PyTorch."""
    (own,) = pathlib.Path(interpreter).parents[1].glob("lib/python*/site-packages")
    return own, packages
