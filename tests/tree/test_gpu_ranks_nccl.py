"""NCCL in trees of ranks on GPUs in software: for the sums of a step between the ranks, also while the ranks are in a
trainer's group."""

import re

import pytest

import nccl_trainer
import pitstop
from gpu_tree import BUILD, CUDA, gpu, needs_gpu  # noqa: F401
from nccl_push import push
from process_tree import run, wait_until
from test_gpu_ranks import NUM, SEEDED, greedy, workers_of
from test_updates import GREEDY
from test_weights_broadcasts import distributed, in_thread
from weights_sources import BARD, BARD_TENSORS, DIGESTS

pytestmark = needs_gpu
BY_NCCL = (*CUDA, "--all-reduce", "nccl")
BYTES = sum(array.nbytes for array in BARD_TENSORS.values())
BUCKET = 500_000
OWN, OF_ALL = "sums over the ranks: own kernels", "; from 0 bytes on by NCCL 2.28.9"


def how_it_sums(admin):
    """The ranks' reports about the library that sums."""
    return {worker["libraries"][2] for worker in workers_of(admin)}


@pytest.mark.parametrize("tp, policy", [(2, "late"), (4, "random"), (2, "early")])
def test_ranks_that_sum_by_nccl_follow_the_reference(gpu, start_tree, reference, tp, policy):
    gpu(gpus=4, policy=policy)
    tree = start_tree(*BY_NCCL, "--tp", tp)
    door, admin = tree.door(), tree.door("admin")
    assert how_it_sums(admin) == {OWN + OF_ALL}
    greedy(door, reference, "stories")
    source = {"source": {"kind": "disk", "path": str(BARD)}}
    assert admin.call("update_weights", update=source)["digest"] == DIGESTS["bard"]["digest"]
    greedy(door, reference, "bard")


def test_own_kernels_compute_small_sums_and_no_nccl_is_opened(gpu, start_tree):
    """Ranks on the GPU in software do not time sums: own kernels are used up to a fixed size."""
    tree = start_tree(*CUDA, "--tp", 2)
    assert how_it_sums(tree.door("admin")) == {OWN}


def test_P6_deterministic_ranks_have_nothing_to_choose(gpu, start_tree):
    tree = start_tree(*CUDA, "--tp", 2, "--deterministic")
    assert how_it_sums(tree.door("admin")) == {OWN}


@pytest.mark.parametrize("flags", [("--deterministic",), ("--tp", 1), ("--device", "cpu")])
def test_nccl_where_it_cannot_sum_is_refused_by_name(gpu, place, flags):
    refused = run("serve", "--no-http", "--run-dir", place / "tree", *BY_NCCL, "--tp", 2, *flags)
    text = "--all-reduce nccl with " + " ".join(map(str, flags))
    assert refused.returncode != 0 and text in refused.stderr, refused.stderr


def test_nccl_of_ranks_that_auto_puts_on_cpus_is_warned_of(gpu, start_tree):
    gpu(gpus=1)
    tree = start_tree("--device", "auto", "--all-reduce", "nccl", "--tp", 2, "--max-total-tokens", 2048)
    assert "--all-reduce nccl is ignored: ranks on CPUs sum without NCCL" in tree.log()


def test_an_nccl_that_cannot_sum_is_found_at_the_start_and_named(gpu, place):
    """A trial sum fails: a tree that was told to use NCCL does not start without NCCL."""
    gpu(faults="gpu1/ncclAllReduce:1=ncclSystemError")
    refused = run("serve", "--no-http", "--run-dir", place / "tree", *BY_NCCL, "--tp", 2)
    assert refused.returncode != 0
    assert "--all-reduce nccl needs NCCL between the ranks, which is not available: NCCL 2.28.9: " in refused.stderr, (
        refused.stderr
    )
    said = (
        "a sum failed on rank 1",
        "ncclAllReduce: unhandled system error",
    )  # the error of another rank, or of the rank itself
    assert any(text in refused.stderr for text in said), refused.stderr


def test_P5_a_sum_that_nccl_fails_ends_the_tree_and_is_named(gpu, start_tree):
    """The second sum of the first prompt fails on one rank. The first sum was the trial at the start."""
    gpu(faults="gpu1/ncclAllReduce:3=ncclSystemError")
    tree = start_tree(*BY_NCCL, "--tp", 2, "--step-timeout", 20)
    door = tree.door()
    output = door.finish([door.start("Once upon a time", max_new_tokens=NUM, **GREEDY)])[0]
    assert output.finish["reason"] == "error", output.finish
    assert tree.wait_exit() != 0
    assert "NCCL 2.28.9: ncclAllReduce: unhandled system error" in tree.log()
    assert "has not arrived" not in output.finish["message"], "a healthy rank is blamed"
    tree.check_gone()


def test_P5_steps_go_on_while_a_trainers_broadcast_is_in_flight(gpu, start_tree, reference):
    """A GPU never runs two communicators at once: the ranks' sums stop using NCCL, and use it again later."""
    gpu(gpus=3)
    tree = start_tree(*BY_NCCL, "--tp", 2)
    door = tree.door()
    greedy(door, reference, "stories")
    with nccl_trainer.Trainer(BUILD, BARD, 2) as trainer, pitstop.Client(tree.run_dir) as client:
        spec = {"backend": "nccl", "address": "127.0.0.1", "port": trainer.port, "world_size": 3}
        client.init_group("w", timeout=30, **spec)
        trainer.ask("counted_in", world_size=3)
        trainer.ask("make_id")
        trainer.ask("publish", group="w")
        for is_first in (True, False):
            source = distributed(BARD_TENSORS, group="w", stall_ms=60_000, format="flattened")
            updating = in_thread(client.update_weights, source=source)
            if is_first:
                assert trainer.ask("join", world_size=3) == {}
            while_it_waits = door.generate("Once upon a time", max_new_tokens=NUM, **SEEDED)
            assert len(while_it_waits.tokens) == NUM
            trainer.ask("broadcast", names=list(BARD_TENSORS), packs=[len(BARD_TENSORS)])
            assert updating()["digest"] == DIGESTS["bard"]["digest"]
        greedy(door, reference, "bard")
        trainer.tell("leave")
        client.destroy_group("w")
        assert trainer.answer() == {}


@pytest.mark.parametrize("dp, tp", [(2, 1), (2, 2)])
def test_P10_every_rank_of_every_replica_receives_each_bucket_once(gpu, start_tree, place, dp, tp):
    num = dp * tp
    gpu(gpus=num + 1)
    tree = start_tree(*CUDA, "--dp", dp, "--tp", tp, "--log-level", "info")
    order = {"run_dir": str(tree.run_dir), "model": str(BARD), "device": num, "num_workers": num}
    said = push(BUILD, place, **order, bucket_bytes=BUCKET)
    assert said["digest"] == DIGESTS["bard"]["digest"] and said["bytes"] == BYTES and said["broadcasts"] > 1, said
    assert tree.door("admin").call("weight_digests")["digest"] == DIGESTS["bard"]["digest"]
    text = rf"group 'w': rank ([0-9]+) received {said['broadcasts']} broadcasts, {BYTES} bytes"
    wait_until(lambda: len(re.findall(text, tree.log())) == num, "every rank's count")
    assert sorted(map(int, re.findall(text, tree.log()))) == list(range(1, num + 1))
