"""More connections than descriptors: existing clients go on, and later ones are served again."""

import resource
import socket

import pytest
import zmq

from process_tree import run, wait_until

GREEDY = {"temperature": 0.0, "ignore_eos": True}
SOCKETS = ("data", "admin", "tokenizer", "detokenizer", "requests-0", "control-0", "workers-0")
DOORS = ("data", "admin")
HARD = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
RAW_OF_EACH = 800  # connections to each of seven sockets
DEALERS_OF_EACH = 300


def connect_raw(path):
    """A connection that sends nothing. The tree may end it at once."""
    raw = socket.socket(socket.AF_UNIX)
    raw.setblocking(False)

    def is_connected():
        try:
            raw.connect(str(path))
        except BlockingIOError:
            return False  # the listener's backlog is full
        return True

    wait_until(is_connected, f"a place in the backlog of {path}")
    return raw


def listeners(tree, door):
    status = door.call("status")
    by_door = {each["door"]: each for each in status["listeners"]}
    assert set(by_door) == set(DOORS)
    for name, each in by_door.items():
        assert each["endpoint"] == f"ipc://{tree.run_dir}/{name}.sock"
        assert each["connections"] <= each["connections_max"]
    return by_door


def check_served(tree):
    """New clients are served at both doors."""
    with tree.door() as data, tree.door("admin") as admin:
        assert len(data.generate("Once", max_new_tokens=4, **GREEDY).tokens) == 4
        assert admin.call("status")["is_ready"]


class Honest:
    """A client that connected earlier: its requests and calls must succeed, whatever the others do."""

    def __init__(self, tree):
        self.data, self.admin = tree.door(), tree.door("admin")
        self.expected = self.data.generate("Once upon a time", max_new_tokens=60, **GREEDY).tokens

    def check(self):
        output = self.data.generate("Once upon a time", max_new_tokens=60, **GREEDY)
        assert output.tokens == self.expected
        assert self.admin.call("status")["is_ready"]


@pytest.mark.parametrize("limit", [64, 256, 1024])
def test_thousands_of_raw_connections_to_every_socket_cost_nobody_anything(start_tree, limit):
    tree = start_tree(descriptors=(limit, limit))
    honest = Honest(tree)
    opened = []
    try:
        for name in SOCKETS:
            opened += [connect_raw(tree.run_dir / f"{name}.sock") for _ in range(RAW_OF_EACH)]
            honest.check()
        full = listeners(tree, honest.admin)
        for name in DOORS:
            assert full[name]["refused_total"] > 0, full
            assert full[name]["connections_max"] < limit
    finally:
        for raw in opened:
            raw.close()
    honest.check()
    check_served(tree)
    tree.stop()


@pytest.mark.parametrize("limit", [64, 256, 1024])
def test_clients_that_are_one_too_many_wait_and_are_served_when_others_have_left(start_tree, limit):
    tree = start_tree(descriptors=(limit, limit))
    honest = Honest(tree)
    context, dealers = zmq.Context(), []
    context.max_sockets = 2 * DEALERS_OF_EACH + 16
    try:
        for name in DOORS:
            for _ in range(DEALERS_OF_EACH):
                dealers.append(context.socket(zmq.DEALER))
                dealers[-1].linger = 0
                dealers[-1].connect(f"ipc://{tree.run_dir}/{name}.sock")
        seen = listeners(tree, honest.admin)
        for name in DOORS:
            if seen[name]["connections_max"] >= DEALERS_OF_EACH:
                continue  # this door has room for all of them
            wait_until(lambda: listeners(tree, honest.admin)[name]["refused_total"] > 0, f"a full {name} door")
        honest.check()
    finally:
        context.destroy(linger=0)
    honest.check()
    check_served(tree)
    tree.stop()


@pytest.mark.parametrize("limit", [12, 24, 47])
def test_a_limit_that_a_tree_cannot_work_with_is_said_in_a_line(place, limit):
    ended = run(
        "serve",
        "--no-http",
        "--run-dir",
        place / "tree",
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit)),
    )
    assert ended.returncode == 3, ended
    (line,) = ended.stderr.splitlines()
    assert f"{limit} file descriptors" in line and "ulimit -n" in line, line
    assert not (place / "tree").exists()


def test_the_soft_limit_is_raised_by_every_process(start_tree):
    tree = start_tree("--port", 0, descriptors=(100, HARD))
    for process in tree.processes:
        limits = open(f"/proc/{process['pid']}/limits").read()
        (line,) = [line for line in limits.splitlines() if line.startswith("Max open files")]
        soft, hard = line.split()[3:5]
        assert soft == str(min(int(hard), 1 << 20)), (process, line)
    check_served(tree)
    tree.stop()
