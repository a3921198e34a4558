"""The rank of each worker of many trees in a trainer's NCCL group, the workers that cannot join it, and the tensors of
one broadcast."""

import pathlib
import random
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "client" / "python"))

from pitstop.nccl_broadcast import packs  # noqa: E402
from pitstop.nccl_trees import first_ranks, why_not, workers_of  # noqa: E402

VERSION = "2.28.9"
TRAINERS = "GPU-trainers"


def on_gpus(*gpus, nccl=VERSION):
    return [{"device_uuid": f"GPU-{gpu}", "nccl": nccl} for gpu in gpus]


@pytest.mark.parametrize("sizes", [[1], [1, 1, 1], [2, 4, 1], [8] * 100])
def test_every_worker_has_a_rank_of_its_own_behind_the_trainer(sizes):
    trees = {f"tree {number}": size for number, size in enumerate(sizes)}
    ranks = [first + rank for name, first in first_ranks(trees).items() for rank in range(trees[name])]
    assert ranks == list(range(1, 1 + sum(sizes)))


def test_where_there_is_no_tree_there_is_no_rank():
    assert first_ranks({}) == {}
    assert why_not({}, VERSION, TRAINERS) == "there is no tree that serves"


def test_a_worker_that_cannot_be_in_a_group_is_named_with_the_reason():
    assert why_not({"a": on_gpus(0, 1), "b": on_gpus(2)}, VERSION, TRAINERS) == ""
    on_cpu = {"a": on_gpus(0), "b": [{"device_uuid": "CPU-0-0", "nccl": "none"}]}
    assert why_not(on_cpu, VERSION, TRAINERS) == "b computes on CPU-0-0; a worker of an NCCL group has a GPU"
    older = {"a": on_gpus(0), "b": on_gpus(1, nccl="2.27.3")}
    assert (
        why_not(older, VERSION, TRAINERS)
        == "b has NCCL 2.27.3, the trainer 2.28.9; a group needs one version, including the patch number"
    )
    same = {"a": on_gpus(0), "b": on_gpus(1, "trainers")}
    said = why_not(same, VERSION, TRAINERS)
    assert said == "b computes on GPU-trainers, the trainer's own; a group needs one GPU per member"


def test_a_status_says_where_workers_compute_and_with_which_nccl():
    def worker(device, *libraries):
        return {"device_uuid": device, "libraries": ["cuBLASLt 13.0: /lib/libcublasLt.so.13", *libraries]}

    found = worker("GPU-a", "NCCL 2.28.9: /lib/libnccl.so.2")
    status = {
        "replicas": [
            {"workers": [found, worker("GPU-b", "NCCL: none was found")]},
            {"workers": [{"device_uuid": "CPU-1-0"}]},
        ]
    }
    assert workers_of(status) == [
        {"device_uuid": "GPU-a", "nccl": "2.28.9"},
        {"device_uuid": "GPU-b", "nccl": "none"},
        {"device_uuid": "CPU-1-0", "nccl": "none"},
    ]


def as_workers_count(sizes, packed_bytes):
    """The ends of the packs, as end_of_pack() of tp_worker/sources/distributed_source.cpp computes them."""
    ends = []
    while (ends or [0])[-1] < len(sizes):
        end, total = (ends or [0])[-1], 0
        while end < len(sizes) and total <= packed_bytes:
            total += sizes[end]
            end += 1
        ends.append(end)
    return ends


def test_a_broadcast_ends_where_the_workers_expect_it():
    dice = random.Random(1)
    for _ in range(300):
        sizes = [dice.choice([0, 2, 4, 100, 1000]) for _ in range(dice.randint(0, 12))]
        packed_bytes = dice.choice([1, 3, 100, 1001, 10**6])
        made = packs(sizes, packed_bytes)
        assert [pack.stop for pack in made] == as_workers_count(sizes, packed_bytes), (sizes, packed_bytes)
        assert [index for pack in made for index in pack] == list(range(len(sizes)))
