"""One replica over several machines, on CPUs: launchers that only share an address and a key. The
ranks exchange data through the head's scheduler.
"""

import contextlib
import json
import os
import signal
import socket
import time
import urllib.request

import pytest

from nodes import Node, drop_link, free_port, machines, make_keys, namespaces, start_spanning  # noqa: F401
from process_tree import run, wait_until
from test_deaths import reasons
from test_updates import BARD, DIGESTS, GREEDY, start, update
from wire import DEADLINE_S

CPU = ("--device", "cpu")
STEP_TIMEOUT_S = 20
NUM = 12
SEEDED = {"temperature": 1.0, "seed": 5, "ignore_eos": True, "logprobs": {"enabled": True}, "top_p": 0.9}


def greedy(door, reference, model):
    case = reference[model]["greedy"][0]
    output = door.generate(case["prompt"], max_new_tokens=NUM, skip_special_tokens=False, **GREEDY)
    assert output.tokens == case["continuation"][:NUM]


def test_ranks_of_two_machines_are_one_replica(start_spanning, reference):
    spanning = start_spanning(*CPU)
    assert "node 1 of 2 is ready" in spanning.node_line and "1 of 2 workers" in spanning.node_line
    door, admin = spanning.tree.door(), spanning.tree.door("admin")
    greedy(door, reference, "stories")
    output = door.generate("Once upon a time", max_new_tokens=NUM, **SEEDED)
    (replica,) = admin.call("status")["replicas"]
    assert [worker["rank"] for worker in replica["workers"]] == [0, 1]
    reply = update(admin, BARD, kv_policy="keep")
    assert reply["ok"] and reply["digest"] == DIGESTS["bard"]["digest"], reply
    greedy(door, reference, "bard")
    assert admin.call("rollback_weights")["digest"] == DIGESTS["stories"]["digest"]
    assert admin.call("pause_generation", mode="retract")["ok"]
    assert admin.call("continue_generation")["ok"]
    again = door.generate("Once upon a time", max_new_tokens=NUM, **SEEDED)
    assert (again.tokens, again.logprobs) == (output.tokens, output.logprobs)
    spanning.tree.stop()
    assert spanning.node.wait_exit() == 0, spanning.node.log()


def test_a_status_says_on_which_machine_each_rank_is(start_spanning):
    spanning = start_spanning(*CPU, "--port", 0)
    here = socket.gethostname()
    (replica,) = spanning.tree.door("admin").call("status")["replicas"]
    places = [
        tuple(worker.get(field) for field in ("rank", "node", "host", "address")) for worker in replica["workers"]
    ]
    assert places == [(0, 0, here, None), (1, 1, here, "127.0.0.1")]
    assert replica["workers"][1]["pid"] in spanning.node.workers()
    printed = run("status", "--run-dir", spanning.tree.run_dir).stdout
    assert f"rank 0     on node 0 ({here}, the head), pid " in printed, printed
    assert f"rank 1     on node 1 ({here}, 127.0.0.1), pid " in printed, printed
    assert "nodes door   2 of 8 connections at tcp://127.0.0.1:" in printed, printed
    with urllib.request.urlopen(f"{spanning.tree.url}/server_info") as answer:
        info = json.load(answer)
    assert info["nnodes"] == 2
    (state,) = info["internal_states"]
    assert [(rank["rank"], rank["node"], rank["host"], rank["address"]) for rank in state["ranks"]] == [
        (0, 0, here, ""),
        (1, 1, here, "127.0.0.1"),
    ]


def test_P6_two_machines_have_the_bits_of_one(start_spanning, start_tree):
    outputs = [
        tree.door().generate("Once upon a time", max_new_tokens=NUM, **SEEDED)
        for tree in (start_spanning(*CPU).tree, start_tree(*CPU, "--tp", 2))
    ]
    assert outputs[0].tokens == outputs[1].tokens and outputs[0].logprobs == outputs[1].logprobs


@pytest.mark.parametrize("lost", ["worker", "launcher"])
def test_P5_a_lost_machine_ends_the_replica_and_every_request_names_it(start_spanning, lost):
    spanning = start_spanning(*CPU)
    door = spanning.tree.door()
    rids = [start(door, tokens=2, max_new_tokens=900) for _ in range(2)]
    (worker,) = spanning.node.workers()
    os.kill(worker if lost == "worker" else spanning.node.launcher.pid, signal.SIGKILL)
    begin = time.monotonic()
    for rid, reason in reasons(door, rids).items():
        assert reason.startswith("unavailable: ") and "rank 1 on node 1 (" in reason, (rid, reason)
    assert time.monotonic() - begin < DEADLINE_S / 2
    assert spanning.tree.wait_exit() != 0
    spanning.tree.check_gone()
    assert spanning.node.wait_exit() != 0


@pytest.mark.parametrize("how", ["a rank that stands still", "a link that is dropped"])
def test_P5_a_silent_machine_is_named_to_every_request_before_a_steps_time_is_over(machines, start_spanning, how):
    spanning = start_spanning(*CPU, "--step-timeout", STEP_TIMEOUT_S, names=machines)
    door = spanning.tree.door()
    rids = [start(door, tokens=2, max_new_tokens=900) for _ in range(2)]
    (worker,) = spanning.node.workers()
    if how == "a link that is dropped":
        drop_link(machines[1])
    else:
        os.kill(worker, signal.SIGSTOP)
    lost = time.monotonic()
    ended = reasons(door, rids)
    assert time.monotonic() - lost < 2 * STEP_TIMEOUT_S
    for rid, reason in ended.items():
        assert reason.startswith("unavailable: ") and "rank 1 on node 1 (" in reason, (rid, reason)
        assert "rank 0" not in reason, (rid, reason)
    assert spanning.tree.wait_exit() != 0
    spanning.tree.check_gone()
    with contextlib.suppress(ProcessLookupError):
        os.kill(worker, signal.SIGCONT)
    assert spanning.node.wait_exit() == 13
    assert "tp_worker[0.1] died: exit 1" in spanning.node.log(), spanning.node.log()


def test_P5_a_lost_machine_is_noticed_while_nothing_runs(start_spanning):
    spanning = start_spanning(*CPU)
    os.kill(spanning.node.launcher.pid, signal.SIGKILL)
    assert spanning.tree.wait_exit() != 0
    assert "rank 1 on node 1 (" in spanning.tree.log(), spanning.tree.log()


def test_P5_a_head_that_dies_ends_the_other_machine_which_says_so(start_spanning):
    spanning = start_spanning(*CPU)
    spanning.tree.launcher.kill()
    assert spanning.node.wait_exit() == 13
    assert "the scheduler at tcp://127.0.0.1:" in spanning.node.log(), spanning.node.log()


def test_a_machine_that_may_not_join_is_told_and_the_replica_serves_on(start_spanning, place, reference):
    spanning = start_spanning(*CPU, "--log-level", "warning")

    def refused(text, key=spanning.key, start_s=DEADLINE_S):
        node = Node(
            place / f"refused-{len(os.listdir(place))}",
            *spanning.shared,
            "--node-rank",
            1,
            "--node-key",
            key,
            "--start-timeout",
            start_s,
        )
        try:
            assert node.wait_exit() == 3
            assert text in node.log(), node.log()
        finally:
            node.abandon()

    refused("it has joined already (pid")
    made = run("keygen", spanning.keys, "--client", "stranger", "--admin")
    refused("does not accept this node's key", key=made.stdout.strip())
    (place / "elsewhere").mkdir()
    _, (foreign,) = make_keys(place / "elsewhere", "foreign")
    refused("its key is not the one", key=foreign, start_s=15)  # the worker gives up after nine tenths of this time
    greedy(spanning.tree.door(), reference, "stories")
    log = spanning.tree.log()
    assert "rank 1 of node 1: it has joined already" in log and "refused so far: 1" in log, log


def test_a_machine_that_was_started_otherwise_is_refused_by_name(place):
    keys, (key,) = make_keys(place, "second")
    shared = ("--tp", 2, "--nodes", 2, "--head", f"127.0.0.1:{free_port()}", *CPU, "--start-timeout", 60)
    head = Node(place / "head", *shared, "--no-http", "--door-keys", keys)
    node = Node(place / "node", *shared, "--node-rank", 1, "--node-key", key, "--compute", "fp32")
    try:
        assert node.wait_exit() == 3 and head.wait_exit() == 3
        said = node.log() + head.log()
        assert "--compute=fp32" in said and "--compute=bf16" in said, said
        assert "rank 1 on node 1" in head.log() or "rank 0 of node 0" in said, said
    finally:
        node.abandon()
        head.abandon()


def test_a_machine_that_leaves_before_all_are_there_may_come_again(place):
    keys, (key,) = make_keys(place, "others")
    shared = ("--tp", 4, "--nodes", 4, "--head", f"127.0.0.1:{free_port()}", *CPU, "--threads", 1)
    started = []

    def node(name, *flags):
        started.append(Node(place / name, *shared, *flags))
        return started[-1]

    def other(name, rank):
        return node(name, "--node-rank", rank, "--node-key", key)

    try:
        first = other("first", 1)  # started before the head
        head = node("head", "--no-http", "--door-keys", keys, "--log-level", "info")
        wait_until(lambda: "rank 1 on node 1 (" in head.log(), "the first machine to come")
        first.launcher.terminate()
        assert first.wait_exit() == 0, first.log()
        wait_until(lambda: "left before all ranks had joined" in head.log(), "the head to notice")
        nodes = [other(f"node-{rank}", rank) for rank in (3, 1, 2)]
        assert "4 workers" in head.ready_line()
        assert all("1 of 4 workers" in node.ready_line() for node in nodes)
        head.launcher.terminate()
        assert [node.wait_exit() for node in (head, *nodes)] == [0, 0, 0, 0], head.log()
    finally:
        for node in started:
            node.abandon()


def test_memory_of_one_machine_is_refused_as_a_source(start_spanning, reference):
    spanning = start_spanning(*CPU)
    pushed = run("push", BARD, "--run-dir", spanning.tree.run_dir, "--json")
    assert pushed.returncode != 0
    assert "spans 2 (--nodes); accepted are disk, distributed" in pushed.stdout + pushed.stderr, pushed
    greedy(spanning.tree.door(), reference, "stories")


@pytest.mark.parametrize(
    "flags, text",
    [
        (("--nodes", 2, "--tp", 2), "--nodes with --device auto"),
        (("--nodes", 2, "--tp", 2, *CPU, "--dp", 2), "--nodes with --dp"),
        (("--nodes", 2, "--tp", 2, *CPU, "--restart"), "--nodes with --restart"),
        (("--nodes", 2, "--tp", 2, *CPU, "--keep-committed", "/tmp/kept"), "--nodes with --keep-committed"),
        (("--nodes", 2, "--tp", 3, *CPU), "--nodes with --tp"),
        (("--nodes", 2, "--tp", 2, *CPU), "--nodes with no --head"),
        (("--nodes", 2, "--tp", 2, *CPU, "--head", "127.0.0.1:0"), "takes a port that the other machines know"),
        (("--nodes", 2, "--tp", 2, *CPU, "--head", "127.0.0.1:9"), "--nodes needs --door-keys"),
        (("--nodes", 2, "--tp", 2, *CPU, "--head", "127.0.0.1:9", "--node-rank", 1), "needs --node-key"),
        (("--nodes", 2, "--tp", 2, *CPU, "--head", "127.0.0.1:9", "--node-rank", 2), "--nodes with --node-rank"),
        (
            (
                "--nodes",
                2,
                "--tp",
                2,
                *CPU,
                "--head",
                "127.0.0.1:9",
                "--node-rank",
                1,
                "--node-key",
                "key",
                "--door-keys",
                "keys",
                "--admin-tcp-door",
                "127.0.0.1:0",
            ),
            "--node-rank with --admin-tcp-door",
        ),
        (("--node-rank", 1), "go with --nodes"),
    ],
)
def test_flags_that_several_machines_do_not_support_are_refused_in_one_line(place, flags, text):
    refused = run("serve", "--no-http", "--run-dir", place / "tree", *flags)
    assert refused.returncode == 2 and text in refused.stderr, refused.stderr
    assert len(refused.stderr.splitlines()) == 1
