"""One replica over two machines with GPUs in software: network namespaces that reach each other by
TCP, each with its own GPUs, whose memory the other cannot open. The ranks' GPUs exchange data by
NCCL.
"""

import contextlib
import os
import signal
import time

import pytest

from gpu_tree import BUILD, CUDA, gpu, needs_gpu  # noqa: F401
from nccl_push import push
from nodes import drop_link, machines, namespaces, start_spanning  # noqa: F401
from process_tree import run
from test_deaths import reasons
from test_gpu_ranks import BF16_TOLERANCE, KINDS, NUM, greedy, workers_of
from test_updates import BARD, DIGESTS, STORIES, start, update

pytestmark = needs_gpu
STEP_TIMEOUT_S = 40  # a step of a GPU in software takes seconds on a loaded machine


@pytest.fixture
def start_apart(gpu, place, start_spanning):
    """start_apart(*flags): each machine with its own GPUs."""

    def begin(*flags, gpus=1, **options):
        gpu(gpus=gpus)
        settings = {"PITSTOP_EMULATED_MACHINE": str(place / "second-machine")}
        return start_spanning(*CUDA, *flags, settings=settings, **options)

    return begin


def test_two_machines_follow_the_reference_and_are_updated(machines, start_apart, reference):
    spanning = start_apart(names=machines)
    door, admin = spanning.tree.door(), spanning.tree.door("admin")
    greedy(door, reference, "stories")
    workers = workers_of(admin)
    assert len({worker["device_uuid"] for worker in workers}) == 2
    assert {worker["libraries"][2] for worker in workers} == {"sums over the ranks of 2 machines: NCCL 2.28.9"}
    rid = start(door, tokens=3, max_new_tokens=30)
    reply = update(admin, BARD, kv_policy="keep")
    assert reply["digest"] == DIGESTS["bard"]["digest"], reply
    door.finish([rid])
    greedy(door, reference, "bard")
    assert admin.call("weight_digests")["digest"] == DIGESTS["bard"]["digest"]
    assert update(admin, STORIES, mode="direct", kv_policy="recompute")["ok"]
    rid = start(door, tokens=2, max_new_tokens=NUM)
    assert admin.call("pause_generation", mode="retract")["ok"]
    assert admin.call("release_memory", keep_weights=True)["ok"]
    assert admin.call("resume_memory")["ok"] and admin.call("continue_generation")["ok"]
    (output,) = door.finish([rid])
    assert len(output.tokens) == NUM
    greedy(door, reference, "stories")
    spanning.tree.stop()
    assert spanning.node.wait_exit() == 0, spanning.node.log()


def test_every_kind_of_row_is_as_on_one_machine(gpu, start_apart, start_tree):
    """The kinds: rows that need all logits, rows for which the ranks' parts are enough, and ranks of logprobs."""
    outputs = []
    for one in (True, False):
        if one:
            gpu(gpus=2)
            tree = start_tree(*CUDA, "--compute", "fp32", "--tp", 2)
        else:
            tree = start_apart("--compute", "fp32").tree
        door = tree.door()
        outputs.append(door.finish([door.start("Once upon a time", max_new_tokens=NUM, **kind) for kind in KINDS]))
    for first, second in zip(*outputs):
        assert first.tokens == second.tokens
        assert first.logprobs == pytest.approx(second.logprobs, abs=BF16_TOLERANCE)


@pytest.mark.parametrize("how", ["SIGKILL", "SIGSTOP", "its link"])
def test_P5_a_rank_of_another_machine_that_is_lost_is_named_to_every_request(machines, start_apart, how):
    spanning = start_apart("--step-timeout", STEP_TIMEOUT_S, names=machines)
    door = spanning.tree.door()
    rids = [start(door, tokens=2, max_new_tokens=900) for _ in range(2)]
    (worker,) = spanning.node.workers()
    if how == "its link":
        drop_link(machines[1])
    else:
        os.kill(worker, getattr(signal, how))
    lost = time.monotonic()
    ended = reasons(door, rids)
    assert time.monotonic() - lost < 2 * STEP_TIMEOUT_S
    for rid, reason in ended.items():
        assert reason.startswith("unavailable: ") and "rank 1 on node 1" in reason, (rid, reason)
    assert spanning.tree.wait_exit() != 0
    spanning.tree.check_gone()
    with contextlib.suppress(ProcessLookupError):  # its launcher may have killed it already
        os.kill(worker, signal.SIGCONT)
    assert spanning.node.wait_exit() != 0


def test_P10_a_trainers_nccl_group_reaches_the_ranks_of_both_machines(start_apart, place, reference):
    """The trainer is on the head's machine, on a GPU without a rank."""
    spanning = start_apart(gpus=2)
    order = {"run_dir": str(spanning.tree.run_dir), "model": str(BARD), "device": 1, "num_workers": 2}
    said = push(BUILD, place, **order, bucket_bytes=500_000)
    assert said["digest"] == DIGESTS["bard"]["digest"], said
    greedy(spanning.tree.door(), reference, "bard")


@pytest.mark.parametrize("flags", [("--deterministic",), ("--all-reduce", "own")])
def test_flags_that_ranks_of_several_machines_do_not_support_are_refused_by_name(gpu, place, flags):
    refused = run(
        "serve",
        "--no-http",
        "--run-dir",
        place / "tree",
        *CUDA,
        "--tp",
        2,
        "--nodes",
        2,
        "--head",
        "127.0.0.1:9",
        "--door-keys",
        place,
        *flags,
    )
    assert refused.returncode != 0 and f"--nodes with {' '.join(flags)}" in refused.stderr, refused.stderr
