"""A tree's workers in a trainer's NCCL group that PyTorch's own TCPStore and process group helper make, by the trainers'
own functions: on the GPU in software, with the emulated NCCL in place of NVIDIA's."""

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
STEP = pathlib.Path(__file__).with_name("steps") / "nccl_groups_step.py"
STEP_S = 300


@pytest.fixture
def interpreter():
    """One that has PyTorch: this one, or the trainers' (heavy)."""
    return sys.executable if importlib.util.find_spec("torch") else python_of("torch")


@pytest.fixture
def sglang():
    """Where SGLang's package lies."""
    (packages,) = pathlib.Path(python_of(LIGHT)).parents[1].glob("lib/python*/site-packages")
    return packages / "sglang"


@pytest.mark.parametrize("style", ["torch", "vllm"])
@pytest.mark.parametrize("tp", [1, 2])
def test_P10_a_group_of_pytorchs_own_store_brings_a_whole_model(gpu, interpreter, sglang, place, style, tp):
    gpu(gpus=tp + 1)
    tree = ProcessTree(place / "tree", *CUDA, "--tp", tp, "--port", 0)
    libraries = [next(BUILD.rglob(name)) for name in ("libpitstop_emulated_cuda.so", "libnccl.so.2")]
    try:
        done = subprocess.run(
            [interpreter, STEP, style, tree.url, BARD, sglang, *libraries, str(tp), str(tp + 1)],
            env={**os.environ, "PITSTOP_TREE_TESTS": str(ROOT / "tests" / "tree")},
            capture_output=True,
            text=True,
            timeout=STEP_S,
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
        assert json.loads(done.stdout.splitlines()[-1])["broadcasts"] == len(BARD_TENSORS)
        assert tree.door("admin").call("weight_digests")["digest"] == DIGESTS["bard"]["digest"]
        tree.stop()
    finally:
        tree.abandon()
