"""Replicas over several machines, for tests: launchers of nodes, and machines that are network namespaces."""

import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys

import pytest

from process_tree import LAUNCHER, ROOT, end_with_parent, environment, is_alive, run, wait_until
from wire import DEADLINE_S

sys.path.insert(0, str(ROOT / "bench"))
import fleet_network  # noqa: E402  (after the path)


def free_port():
    """A port at which nothing listened a moment ago: all machines need the port of the head's door in advance."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def make_keys(place, *names):
    """Makes the head's directory of keys, and the key files of the machines that it accepts."""
    path = place / "keys"
    for arguments in ((), *(("--node", name) for name in names)):
        made = run("keygen", path, *arguments)
        assert made.returncode == 0, made.stderr
    return path, [path / "clients" / f"{name}.key" for name in names]


class Node:
    """The launcher of a machine that is not the head. Owns: the launcher and, through it, its workers."""

    def __init__(self, run_dir, *flags, prefix=(), settings=None):
        self.run_dir = pathlib.Path(run_dir)
        self._log = open(f"{run_dir}.log", "w+")
        self.launcher = subprocess.Popen(
            [*prefix, LAUNCHER, "serve", "--run-dir", str(run_dir), *map(str, flags)],
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env={**environment(), **(settings or {})},
            preexec_fn=end_with_parent,
        )

    def log(self):
        self._log.flush()
        return pathlib.Path(self._log.name).read_text()

    def ready_line(self):
        line = self.launcher.stdout.readline()
        assert line, self.log()
        return line

    def workers(self):
        """Pids; a node has no other processes."""
        pid = self.launcher.pid
        return [int(child) for child in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    def wait_exit(self, timeout_s=DEADLINE_S):
        return self.launcher.wait(timeout_s)

    def abandon(self):
        if self.launcher.poll() is None:
            self.launcher.send_signal(signal.SIGCONT)
            self.launcher.terminate()
            try:
                self.launcher.wait(20)
            except subprocess.TimeoutExpired:
                self.launcher.kill()
                self.launcher.wait()
        self.launcher.stdout.close()


class Spanning:
    """A head and a second machine, both of one replica of two ranks. Made by start_spanning."""

    def __init__(self, start_tree, place, *flags, names=None, settings=None):
        keys, (key,) = make_keys(place, "second")
        host = fleet_network.address(0) if names else "127.0.0.1"
        self.shared = ("--tp", 2, "--nodes", 2, "--head", f"{host}:{free_port()}", *flags)
        prefixes = [("ip", "netns", "exec", name) for name in names] if names else [(), ()]
        self.node = Node(
            place / "node", *self.shared, "--node-rank", 1, "--node-key", key, prefix=prefixes[1], settings=settings
        )
        try:
            self.tree = start_tree(*self.shared, "--door-keys", keys, prefix=prefixes[0])
            self.node_line = self.node.ready_line()
        except BaseException:
            self.node.abandon()
            raise
        self.keys, self.key = keys, key

    def check_ended(self):
        """Checks that nothing is left of the second machine."""
        workers = self.node.workers() if self.node.launcher.poll() is None else []
        self.node.wait_exit()
        wait_until(lambda: not any(map(is_alive, workers)), "the node's workers to end")


def drop_link(name):
    """Cuts that machine off from all others; neither side is told."""
    fleet_network.ip("-n", name, "link", "set", "eth0", "down")


@pytest.fixture
def start_spanning(start_tree, place):
    """start_spanning(*flags): a Spanning, which ends with the test."""
    started = []

    def start(*flags, **options):
        started.append(Spanning(start_tree, place, *flags, **options))
        return started[-1]

    yield start
    try:
        for spanning in started:  # the head first: the loss of its second machine would be an error
            if spanning.tree.launcher.poll() is None:
                spanning.tree.stop()
    finally:
        for spanning in started:
            spanning.node.abandon()


@pytest.fixture(scope="session")
def namespaces():
    """Network namespaces; skips if none can be made. Checked once: a later failure is an error."""
    if shutil.which("ip") is None or os.geteuid() != 0:
        pytest.skip("no network namespaces can be made here (root, iproute2)")
    try:
        with fleet_network.network(1):
            pass
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no network namespaces can be made here: {error}")


@pytest.fixture
def machines(namespaces):
    """Names of two network namespaces that reach each other by TCP alone."""
    with fleet_network.network(2) as names:
        yield names
