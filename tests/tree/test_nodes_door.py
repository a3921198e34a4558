"""Wrong peers at the door for other machines' ranks. Each is refused by name, or its connection is ended and counted.
The head then waits for the right machine, or serves on."""

import contextlib
import os
import pathlib
import re
import shutil
import signal
import socket

import msgpack
import pytest
import zmq

from nodes import Node, free_port, make_keys, start_spanning  # noqa: F401
from process_tree import ROOT, run, wait_until
from test_nodes import CPU, greedy
from test_tcp_doors import GARBAGE
from test_updates import STORIES, read_checkpoint, rebuilt, tensors_of, write_checkpoint
from wire import DEADLINE_S

BUILD = "pitstop " + re.search(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)[1]
JOIN = {
    "protocol": 2,
    "build": BUILD,
    "rank": 1,
    "tp": 2,
    "node": 1,
    "nodes": 2,
    "host": "a-peer",
    "pid": 7,
    "settings": [],
}
HELLO = {
    "protocol": 2,
    "rank": 1,
    "tp": 2,
    "model_type": "qwen3",
    "context_len": 8,
    "vocab_size": 8,
    "num_pages": 8,
    "page_size": 16,
    "num_slots": 1,
}
START_S = 90
NUM_LOGGED = 1000  # Ports::kRefusalsLoggedMax


def peer(port, key_file):
    """A socket with a machine's key that sends any message."""
    key = dict(line.split() for line in pathlib.Path(key_file).read_text().splitlines() if not line.startswith("#"))
    made = zmq.Context.instance().socket(zmq.DEALER)
    made.linger, made.sndhwm, made.rcvhwm = 0, 0, 0
    made.curve_serverkey, made.curve_publickey = key["server"].encode(), key["public"].encode()
    made.curve_secretkey = key["secret"].encode()
    made.connect(f"tcp://127.0.0.1:{port}")
    return contextlib.closing(made)


def told(socket_):
    """(type, code, message) of the answer to a peer."""
    assert socket_.poll(DEADLINE_S * 1000), "nothing was answered"
    kind, body = socket_.recv_multipart()
    body = msgpack.unpackb(body)
    return kind.decode(), body.get("code", "ok"), body.get("message", "")


def said(kind, **fields):
    return [kind.encode(), msgpack.packb(fields)]


class Head:
    """The head of a replica of two machines; the second machine is missing."""

    def __init__(self, place, *flags, settings=None):
        self.place = place
        keys, (self.key,) = make_keys(place, "second")
        self.port = free_port()
        self.shared = ("--tp", 2, "--nodes", 2, "--head", f"127.0.0.1:{self.port}", *CPU, "--start-timeout", START_S)
        start = [*self.shared, "--no-http", "--door-keys", keys, *flags]
        self.launchers = [Node(place / "head", *start, settings=settings)]
        wait_until(self.listens, "the door to open")

    def listens(self):
        with socket.socket() as knock:
            return knock.connect_ex(("127.0.0.1", self.port)) == 0

    def log(self):
        return self.launchers[0].log()

    def node(self, *flags):
        name = f"node-{len(self.launchers)}"
        self.launchers.append(Node(self.place / name, *self.shared, "--node-rank", 1, "--node-key", self.key, *flags))
        return self.launchers[-1]

    def check_a_right_machine_is_let_in(self):
        node = self.node()
        assert "node 1 of 2 is ready" in node.ready_line() and "2 workers" in self.launchers[0].ready_line(), self.log()
        self.launchers[0].launcher.terminate()
        assert (self.launchers[0].wait_exit(), node.wait_exit()) == (0, 0), self.log()


@pytest.fixture
def start_head(place):
    with contextlib.ExitStack() as stack:

        def start(*flags, **options):
            head = Head(place, *flags, **options)
            stack.callback(lambda: [launcher.abandon() for launcher in reversed(head.launchers)])
            return head

        yield start


REFUSED = {
    "a rank out of range": (
        said("rank_join", **{**JOIN, "rank": 2}),
        "rank_joined",
        "invalid_argument",
        "2 is not in [0, 2)",
    ),
    "a rank below zero": (said("rank_join", **{**JOIN, "rank": -1}), "rank_joined", "invalid_argument", "-1 is not in"),
    "a rank of another node": (
        said("rank_join", **{**JOIN, "tp": 4}),
        "rank_joined",
        "invalid_argument",
        "--tp 4 --nodes 2",
    ),
    "another --nodes": (
        said("rank_join", **{**JOIN, "nodes": 3}),
        "rank_joined",
        "invalid_argument",
        "the head with --tp 2 --nodes 2",
    ),
    "another build": (
        said("rank_join", **{**JOIN, "build": "pitstop 9"}),
        "rank_joined",
        "unsupported",
        f"the head is {BUILD}",
    ),
    "another protocol": (
        said("rank_join", **{**JOIN, "protocol": 1}),
        "rank_joined",
        "unsupported",
        "it speaks protocol 1",
    ),
    "the head's rank": (
        said("rank_join", **{**JOIN, "rank": 0, "node": 0}),
        "rank_joined",
        "invalid_argument",
        "node 0 is the head's",
    ),
    "other settings": (said("rank_join", **JOIN), "rank_joined", "invalid_argument", "all ranks take the same"),
    "a field of another type": (
        said("rank_join", **{**JOIN, "rank": "one"}),
        "rank_joined",
        "invalid_argument",
        "expected an integer",
    ),
    "a body that is none": ([b"rank_join", b"\xc1\xff"], "rank_joined", "malformed", "not msgpack"),
    "a part before its join": (
        said("rank_part", meeting=1, what="barrier", limit_ms=5),
        "rank_end",
        "failed_precondition",
        "before its rank_join",
    ),
    "a part that is none": (said("rank_part", meeting=0), "rank_end", "invalid_argument", "counted from 1"),
    "a hello before its join": (said("worker_hello", **HELLO), "rank_end", "permission_denied", "not its own"),
    "a hello of the head's rank": (
        said("worker_hello", **{**HELLO, "rank": 0}),
        "rank_end",
        "permission_denied",
        "not its own",
    ),
    "a hello that is none": (said("worker_hello", rank=0), "rank_end", "invalid_argument", "worker_hello"),
    "an error of nobody": (said("worker_error", rank=1), "rank_end", "failed_precondition", "before its hello"),
    "a type that is none": (said("nonsense"), "rank_end", "failed_precondition", "'nonsense' before its hello"),
    "a single frame": ([b"rank_join"], "rank_end", "malformed", "at least two are needed, a type and a body"),
    "a type of 5,000 bytes": ([b"x" * 5000, b"\x80"], "rank_end", "malformed", "at most 64"),
    "too many frames": ([b"rank_part", b"\x80", *[b"x"] * 5000], "rank_end", "too_large", "more than 64 raw frames"),
}


def test_P7_a_peer_that_is_no_rank_is_answered_by_name_and_a_right_machine_may_still_join(start_head):
    head = start_head("--log-level", "info")
    wait_until(lambda: "rank 0 on node 0 (" in head.log(), "the head's own rank to come")
    for name, (frames, kind, code, text) in REFUSED.items():
        with peer(head.port, head.key) as stranger:
            stranger.send_multipart(frames)
            answer = told(stranger)
            assert answer[:2] == (kind, code) and text in answer[2], (name, answer)
            wait_until(lambda text=text: text in head.log(), f"the refusal of {name} in the head's log")
    head.check_a_right_machine_is_let_in()


def test_a_rank_that_says_hello_before_the_heads_rank_joins_keeps_nobody_out(start_head, place):
    faults = place / "faults"
    faults.mkdir()
    held = faults / "tp_worker[0.0]@send rank_join"
    held.write_text("stop")
    head = start_head(settings={"PITSTOP_FAULT_DIR": str(faults)})
    wait_until(lambda: not held.exists(), "the head's rank to stop before it joins")
    with peer(head.port, head.key) as early:
        early.send_multipart(said("rank_join", **JOIN))
        assert told(early) == ("rank_joined", "ok", "")
        early.send_multipart(said("worker_hello", **HELLO))
        answer = told(early)
        assert answer[:2] == ("rank_end", "failed_precondition") and "before the ranks have met" in answer[2], answer
        for worker in head.launchers[0].workers():
            os.kill(worker, signal.SIGCONT)
        answer = told(early)  # now the head's rank has joined, and the early rank does not match it
        assert answer[:2] == ("rank_end", "invalid_argument") and "all ranks take the same" in answer[2], answer
    head.check_a_right_machine_is_let_in()


def other_weights(directory):
    """A checkpoint with one changed tensor, which the ranks split: no two ranks have the same part to compare."""
    tensors = tensors_of(*read_checkpoint(STORIES))
    name = "model.layers.3.mlp.up_proj.weight"
    changed = [(n, t, s, raw[::-1] if n == name else raw) for n, t, s, raw in tensors]
    assert changed != tensors
    write_checkpoint(directory, *rebuilt(changed))


def other_config(directory):
    config = directory / "config.json"
    config.write_text(config.read_text() + "\n")


@pytest.mark.parametrize("change, text", [(other_weights, "weights="), (other_config, "config.json=")])
def test_a_machine_with_another_model_is_refused_by_name_and_the_head_waits_on(start_head, place, change, text):
    other = place / "other"
    shutil.copytree(STORIES, other)
    change(other)
    head = start_head()
    node = head.node("--model", other)
    assert node.wait_exit() == 3, node.log()
    named = f"rank 1 of node 1 was started with {text}"
    assert named in node.log(), node.log()
    wait_until(lambda: named in head.log(), "the refusal in the head's log")
    head.check_a_right_machine_is_let_in()


def nodes_door(admin):
    (replica,) = admin.call("status")["replicas"]
    (listener,) = replica["listeners"]
    assert listener["door"] == "nodes"
    return listener


def port_of(admin):
    return int(nodes_door(admin)["endpoint"].rpartition(":")[2])


def test_garbage_and_wrong_keys_are_ended_and_counted_and_the_replica_serves_on(start_spanning, place, reference):
    spanning = start_spanning(*CPU)
    admin = spanning.tree.door("admin")
    before = nodes_door(admin)
    assert before["handshakes_failed_total"] == 0 and before["connections"] == 2, before
    port = port_of(admin)
    for data in GARBAGE.values():
        with socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S) as connection:
            connection.sendall(data)
            with contextlib.suppress(ConnectionResetError):
                while connection.recv(4096):
                    pass
    counted = len(GARBAGE)
    wait_until(lambda: nodes_door(admin)["handshakes_failed_total"] >= counted, "garbage to be counted")
    made = run("keygen", spanning.keys, "--client", "stranger")
    with peer(port, made.stdout.strip()) as stranger:
        stranger.send_multipart(said("rank_join", **JOIN))
        wait_until(lambda: nodes_door(admin)["keys_refused_total"] > 0, "a key to be refused")
    assert "refused a connection whose key is not on the list of the nodes' door" in spanning.tree.log()
    greedy(spanning.tree.door(), reference, "stories")


def test_silent_connections_keep_the_right_machine_out_for_no_longer_than_a_handshake_may_take(start_head):
    head = start_head()
    with contextlib.ExitStack() as stack:
        for _ in range(64):
            knock = stack.enter_context(socket.create_connection(("127.0.0.1", head.port), timeout=DEADLINE_S))
            with contextlib.suppress(ConnectionResetError, BrokenPipeError):
                knock.sendall(b"\xff" + bytes(8) + b"\x7f\x03\x01CURVE" + bytes(47))
        head.check_a_right_machine_is_let_in()


def test_a_peer_that_sends_only_garbage_fills_neither_the_log_nor_the_memory(start_spanning, reference):
    num = 20 * NUM_LOGGED
    spanning = start_spanning(*CPU)
    admin = spanning.tree.door("admin")
    (scheduler,) = spanning.tree.pids("scheduler_proc")

    def resident_mib():
        text = pathlib.Path(f"/proc/{scheduler}/status").read_text()
        return int(text.partition("VmRSS:")[2].split()[0]) / 1024

    def refused():
        (replica,) = admin.call("status")["replicas"]
        return replica["refused_total"]

    before = resident_mib()
    with peer(port_of(admin), spanning.key) as stranger:
        for _ in range(num):
            stranger.send_multipart([b"rank_part", b"\xc1", bytes(1024)])
        wait_until(lambda: refused() >= num, "all to be counted")
        assert stranger.poll(0) and told(stranger)[:2] == ("rank_end", "malformed")
    assert resident_mib() - before < 64  # the messages have 20 MiB; the rest is room for the answers
    num_lines = len(spanning.tree.log().splitlines())
    assert NUM_LOGGED <= num_lines < NUM_LOGGED + 100, num_lines
    greedy(spanning.tree.door(), reference, "stories")
