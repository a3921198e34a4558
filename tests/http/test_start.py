"""A tree that gets requests while it starts, and while it restarts, starts like any other."""

import collections
import contextlib
import json
import socket
import subprocess
import threading

from http_client import program
from process_tree import ProcessTree, wait_until

NUM_STARTS = 30
NUM_POLLERS = 5
PATIENCE_S = 30.0  # limit of a poller's request, because a process that ends does not answer


def open_routes():
    printed = subprocess.run([program("http_proc"), "--routes"], capture_output=True, text=True, check=True)
    rows = [line.split("\t") for line in printed.stdout.splitlines()]
    return [(methods.split(",")[0], path) for methods, path, _, access in rows if access == "open"]


class Pollers:
    """Threads that call every open route again and again, whatever the answers."""

    def __init__(self, port):
        self.routes = open_routes()
        self.statuses = collections.Counter()  # (path, status) -> count; status 0: no answer
        self._port = port
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(i,)) for i in range(NUM_POLLERS)]

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self._is_over.set()
        for thread in self._threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()

    def _run(self, first):
        turn = first  # each thread begins with another route
        while not self._is_over.wait(0.002):  # the pauses leave the cores to the tree
            method, path = self.routes[turn % len(self.routes)]
            turn += 1
            status = self._ask(method, path)
            with self._lock:
                self.statuses[path, status] += 1

    def _ask(self, method, path):
        with contextlib.suppress(OSError):
            with socket.create_connection(("127.0.0.1", self._port), PATIENCE_S) as connection:
                connection.sendall(f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
                head = connection.recv(12)
                return int(head.split()[1]) if len(head) == 12 else 0
        return 0

    def num(self, path, status):
        with self._lock:
            return self.statuses[path, status]


def is_answered_again(pollers, status=200):
    """Waits until every open route has given this status once more."""
    before = {path: pollers.num(path, status) for _, path in pollers.routes}
    wait_until(
        lambda: all(pollers.num(path, status) > before[path] for path in before),
        f"{status} of every open route",
    )


def test_a_tree_that_is_polled_starts_each_time(place, port):
    with Pollers(port) as pollers:
        for i in range(NUM_STARTS):
            tree = ProcessTree(place / f"tree-{i}", "--port", port, "--threads", "1")
            try:
                if i % 10 == 0:
                    is_answered_again(pollers)
                tree.stop()
            finally:
                tree.abandon()
    assert pollers.num("/health", 503) >= NUM_STARTS // 2, "they asked while it started"
    assert {status for _, status in pollers.statuses} <= {0, 200, 503}, pollers.statuses


def test_a_tree_that_is_polled_comes_back(place, port):
    tree = ProcessTree(place / "tree", "--port", port, "--threads", "1", "--restart")
    try:
        with Pollers(port) as pollers:
            for name in ("tokenizer_proc", "scheduler_proc[0]", "http_proc"):
                is_answered_again(pollers)
                tree.kill(name)
                assert tree.launcher.stdout.readline(), tree.log()
                tree.processes = json.loads((tree.run_dir / "tree.json").read_text())["processes"]
            is_answered_again(pollers)
            tree.stop()
    finally:
        tree.abandon()
