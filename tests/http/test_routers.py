"""Other projects' routers, unmodified, in front of two trees. Each router serves, keeps its trees through a pause and
an update, and a tree can be ended without cutting a request that the router has sent."""

import os
import socket
import subprocess
import sys
import threading

import pytest

from control_tree import BARD
from http_client import Http
from process_tree import ProcessTree, end_with_parent, wait_until

PROMPT = "Once upon a time"
ROUTERS = {
    "sglang_router": ("--worker-startup-check-interval", "1"),
    "vllm_router": ("--worker-startup-check-interval", "1"),
}


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def trees(place):
    """Two trees, each with HTTP of its own."""
    started = []
    try:
        for i in range(2):
            started.append(ProcessTree(place / f"tree{i}", "--port", "0", "--max-running-requests", 4))
        yield started
    finally:
        for tree in started:
            tree.abandon()


class Router:
    """A router's process, and a client of it."""

    def __init__(self, package, trees):
        pytest.importorskip(package, reason="the package index could not be reached")
        self.port, self.metrics_port = free_port(), free_port()
        self.process = subprocess.Popen(
            [sys.executable, "-m", f"{package}.launch_router",
             "--worker-urls", *(tree.url for tree in trees),
             "--host", "127.0.0.1", "--port", str(self.port), "--policy", "round_robin",
             "--prometheus-port", str(self.metrics_port),
             "--health-check-interval-secs", "1", "--health-failure-threshold", "1",
             *ROUTERS[package]],
            preexec_fn=end_with_parent,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=os.environ,
        )  # fmt: skip
        self.http = Http(f"http://127.0.0.1:{self.port}")

    def is_ready(self):
        assert self.process.poll() is None, self.process.stdout.read().decode()
        try:
            return self.http.get("/health").status == 200 and self.http.get("/v1/models").status == 200
        except OSError:
            return False

    def stop(self):
        self.process.terminate()
        self.process.wait(20)
        self.process.stdout.close()


@pytest.fixture(params=ROUTERS)
def router(request, trees):
    started = Router(request.param, trees)
    try:
        wait_until(started.is_ready, "the router")
        yield started.http
    finally:
        started.stop()


def complete(http, max_tokens=8, **body):
    body = {"model": "stories", "prompt": PROMPT, "max_tokens": max_tokens, "temperature": 0,
            "ignore_eos": True, **body}  # fmt: skip
    return http.post("/v1/completions", body)


def num_requests(tree):
    with tree.door("admin") as admin:
        return sum(replica["requests_total"] for replica in admin.call("status")["replicas"])


def test_both_trees_serve_and_no_request_shows_which(router, trees):
    wanted = complete(Http(trees[0].url)).json["choices"][0]["text"]
    before = [num_requests(tree) for tree in trees]
    for _ in range(4):
        assert complete(router).json["choices"][0]["text"] == wanted
    body = {"model": "stories", "prompt": PROMPT, "max_tokens": 8, "temperature": 0, "stream": True}
    texts = [event["choices"][0]["text"] for event in router.events("/v1/completions", body)]
    assert "".join(texts) == wanted
    assert all(num_requests(tree) > num for tree, num in zip(trees, before))


class Calls:
    """Completions through a router, in threads of their own."""

    def __init__(self, router, num, max_tokens):
        self.answers = [None] * num
        self.threads = [threading.Thread(target=self._call, args=(router, i, max_tokens)) for i in range(num)]
        for thread in self.threads:
            thread.start()

    def _call(self, router, i, max_tokens):
        self.answers[i] = complete(router, max_tokens, prompt=f"Story {i}: {PROMPT}")

    def join(self):
        for thread in self.threads:
            thread.join(120)
        assert all(self.answers), self.answers
        return self.answers


def num_open(trees):
    total = 0
    for tree in trees:
        with tree.door("admin") as admin:
            total += admin.call("status")["open_requests"]
    return total


def all_open(router, trees, num):
    """This many long requests: all are open at the same time, under a pause."""
    for tree in trees:
        assert Http(tree.url).post("/pause_generation", {"mode": "in_place"}).status == 200
    calls = Calls(router, num, max_tokens=600)
    wait_until(lambda: num_open(trees) == num, "all requests to be open")
    for tree in trees:
        assert Http(tree.url).post("/continue_generation").status == 200
    return calls


def test_a_pause_an_update_and_a_resume_evict_nobody(router, trees):
    for tree in trees:
        assert Http(tree.url).post("/pause?mode=keep").status == 200
    calls = Calls(router, 8, max_tokens=12)
    wait_until(lambda: num_open(trees) == 8, "all requests to be queued")
    for tree in trees:
        updated = Http(tree.url).post("/update_weights_from_disk", {"model_path": BARD})
        assert updated.status == 200, updated
    assert router.get("/health").status == 200
    for tree in trees:
        assert Http(tree.url).post("/resume").status == 200
    for answer in calls.join():
        assert answer.status == 200 and answer.json["usage"]["completion_tokens"] == 12, answer
    before = [num_requests(tree) for tree in trees]
    for _ in range(4):
        assert complete(router).status == 200
    assert all(num_requests(tree) > num for tree, num in zip(trees, before)), "one was evicted"


def test_a_tree_that_is_drained_cuts_no_request_and_the_other_serves_on(router, trees):
    calls = all_open(router, trees, 16)
    assert Http(trees[0].url).post("/shutdown", {"drain_s": 60}).status == 200
    for answer in calls.join():
        assert answer.status == 200 and answer.json["usage"]["completion_tokens"] == 600, answer
        assert answer.json["choices"][0]["finish_reason"] == "length"
    assert trees[0].wait_exit() == 0
    for _ in range(4):
        assert complete(router).status == 200


def test_requests_of_a_tree_that_dies_are_made_again_by_the_other(router, trees):
    """The router repeats whole requests only, as a stream's client already has a part of the output."""
    calls = all_open(router, trees, 8)
    trees[0].kill("http_proc")
    for answer in calls.join():
        assert answer.status == 200 and answer.json["usage"]["completion_tokens"] == 600, answer
