"""Clients that hold every connection of the server leave the tree's own connection alone."""

import contextlib
import signal
import socket

from http_client import FrontEnd, Http
from process_tree import ProcessTree, wait_until

NUM_DESCRIPTORS = 64
NUM_CLIENTS = 200


@contextlib.contextmanager
def crowd(port):
    """Opens and holds as many connections as the server accepts, and more in its backlog."""
    with contextlib.ExitStack() as held:
        for _ in range(NUM_CLIENTS):
            connection = held.enter_context(socket.socket())
            connection.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                connection.connect(("127.0.0.1", port))
        yield


def is_there(http):
    with contextlib.suppress(OSError):
        return http.get("/ping").status == 200
    return False


def is_up(http):
    return is_there(http) and http.get("/health").status == 200


def test_a_crowd_that_is_there_first_ends_no_start(place, port):
    run_dir = place / "tree"
    run_dir.mkdir(mode=0o700)
    http = Http(f"http://127.0.0.1:{port}")
    with contextlib.ExitStack() as ends:
        server = FrontEnd(run_dir, f"--port={port}", num_descriptors=NUM_DESCRIPTORS, waits=False)
        ends.callback(server.stop)
        wait_until(lambda: is_there(http), "it to listen")
        with crowd(port):
            tree = ProcessTree(run_dir, "--threads", "1")
            ends.callback(tree.abandon)
            server.wait_ready()
            assert server.said.startswith("READY"), server.said
        wait_until(lambda: is_up(http), "a place among the connections")
        tree.launcher.send_signal(signal.SIGINT)
        assert tree.wait_exit() == 0, tree.log()


def test_a_crowd_costs_others_only_their_connections(tree, front_end):
    server = front_end(num_descriptors=NUM_DESCRIPTORS)
    for _ in range(3):
        with server.http.raw() as early, crowd(server.http.port):
            for path in ("/ping", "/health", "/metrics"):
                early.send(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
                assert early.read_answer()[0] == 200, path
        wait_until(lambda: is_up(server.http), "the crowd to be gone")
    assert server.http.generate(text="Once", max_new_tokens=2)["output_ids"]


def test_too_few_descriptors_are_said_at_the_start(front_end):
    server = front_end(num_descriptors=40)
    assert server.http is None and "may open 40 file descriptors" in server.said
