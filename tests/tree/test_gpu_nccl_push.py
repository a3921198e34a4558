"""A trainer with pitstop.nccl_broadcast, on the GPU in software: rank 0 of a group whose other
ranks are a tree's workers.
"""

import pytest

import pitstop
from gpu_tree import BUILD, machine, needs_gpu, shared_tree  # noqa: F401  (the fixture, in place of the CPU's)
from nccl_push import push
from weights_sources import BARD, BARD_TENSORS, DIGESTS, STORIES, digest_of

pytestmark = needs_gpu
GPU_TREE_FLAGS = ("--tp", 2)
BYTES = sum(array.nbytes for array in BARD_TENSORS.values())
BUCKET = 500_000


@pytest.fixture
def client(shared_tree, monkeypatch):
    machine(monkeypatch, shared_tree.run_dir.parent)(gpus=3)
    with pitstop.Client(shared_tree.run_dir) as client:
        client.update_weights(str(STORIES))
        yield client


def num_packs(packed_bytes):
    """As docs/protocol.md states: a broadcast ends after the tensor that makes it longer than the limit."""
    num, size = 0, 0
    for array in BARD_TENSORS.values():
        num, size = num + (size == 0), size + array.nbytes
        size = 0 if size > packed_bytes else size
    return num


@pytest.mark.parametrize("on_gpu", [False, True], ids=["host", "GPU"])
def test_P10_a_broadcast_per_bucket_reaches_every_rank(client, shared_tree, place, on_gpu):
    """From host memory, or from a GPU by the CUDA array interface. The group serves many updates."""
    order = {"run_dir": str(shared_tree.run_dir), "model": str(BARD), "device": 2, "num_workers": 2}
    said = push(BUILD, place, **order, bucket_bytes=BUCKET, on_gpu=on_gpu, times=2)
    assert said == {"digest": DIGESTS["bard"]["digest"], "broadcasts": 2 * num_packs(BUCKET), "bytes": 2 * BYTES}
    assert num_packs(BUCKET) > 2 and digest_of(client) == DIGESTS["bard"]["digest"]


def test_errors_of_a_push_name_the_gpu_or_the_library(client, shared_tree, place):
    order = {"run_dir": str(shared_tree.run_dir), "model": str(BARD), "num_workers": 2, "bucket_bytes": BUCKET}
    same = push(BUILD, place, **order, device=0, join_s=20.0)
    assert same["code"] == "failed_precondition" and "Duplicate GPU" in same["message"], same
    late = push(BUILD, place, **{**order, "num_workers": 3}, device=2, join_s=3.0)
    assert late["code"] in ("deadline_exceeded", "failed_precondition"), late
    library = push(None, place, **order, device=0)
    assert library["code"] in ("not_found", "failed_precondition"), library
    assert "libcudart.so" in library["message"] or "sees no GPU" in library["message"]
    assert digest_of(client) == DIGESTS["stories"]["digest"]
