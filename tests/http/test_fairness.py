"""Two HTTP clients of one tree: neither waits for all requests of the other."""

import contextlib
import json
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from http_client import Http
from process_tree import ProcessTree, wait_until
from wire import DEADLINE_S

MANY = 120
NUM_NEW = 100
NUM_RUNNING = 2
# Nearly all the steps that one rendering may take.
COSTLY = "{% for i in range(450) %}{% for j in range(450) %}{% endfor %}{% endfor %}x"
NUM_COSTLY = 300


class Greedy(threading.Thread):
    """One call of many prompts, whose finished answers are counted as they come."""

    def __init__(self, url, headers):
        super().__init__(daemon=True)
        self.http = Http(url, headers)
        self.finished = 0

    def run(self):
        body = {
            "text": ["Once upon a time"] * MANY,
            "sampling_params": {"max_new_tokens": NUM_NEW, "temperature": 0, "ignore_eos": True},
            "stream": True,
        }
        for event in self.http.events("/generate", body):
            self.finished += event["meta_info"]["finish_reason"] is not None


def finished_before(tree, headers):
    """Returns the greedy client's requests that end while another client's one request waits, and the tokens that the
    tree has emitted by then. Both clients send under a pause, so that none is faster."""
    greedy = Greedy(tree.url, headers[0])
    other = Http(tree.url, headers[1])
    with contextlib.ExitStack() as ends:
        admin = ends.enter_context(tree.door("admin"))

        def num_waiting():
            (replica,) = admin.call("status")["replicas"]
            return replica["num_waiting"]

        assert admin.call("pause_generation", mode="in_place")["ok"]
        greedy.start()
        wait_until(lambda: num_waiting() == MANY, "the greedy client's requests to wait")
        waits = ends.enter_context(ThreadPoolExecutor(1))
        answer = waits.submit(other.generate, text="A dog", max_new_tokens=4, temperature=0)
        wait_until(lambda: num_waiting() == MANY + 1, "the other client's to wait")
        assert admin.call("continue_generation")["ok"]
        assert len(answer.result(DEADLINE_S)["output_ids"]) == 4
        passed = greedy.finished
        (replica,) = admin.call("status")["replicas"]
    greedy.join(3 * DEADLINE_S)
    assert greedy.finished == MANY
    return passed, replica["output_tokens_total"]


@pytest.fixture
def served(place):
    with contextlib.ExitStack() as ends:

        def start(*flags):
            flags = ("--port", "0", "--max-running-requests", str(NUM_RUNNING), *flags)
            tree = ProcessTree(place / "tree", *flags)
            ends.callback(tree.abandon)
            return tree

        yield start


@pytest.mark.parametrize(
    "headers",
    [({"X-Pitstop-Client": "many"}, {"X-Pitstop-Client": "few"}), ({}, {})],
    ids=["by name", "by connection"],
)
def test_a_client_waits_for_its_turn_only(served, headers):
    passed, _ = finished_before(served(), headers)
    assert passed < MANY // 2


def test_with_fcfs_it_waits_for_all_that_came_before(served):
    """Judged by the tokens that the tree has emitted, because a client may be slow to read."""
    _, num_tokens = finished_before(served("--scheduling", "fcfs"), ({}, {}))
    assert num_tokens > (MANY - NUM_RUNNING) * NUM_NEW


def cpu_s(pid):
    with open(f"/proc/{pid}/stat", encoding="utf-8") as stat:
        fields = stat.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def test_chats_of_a_client_that_left_are_not_rendered(served):
    tree = served()
    http = Http(tree.url)
    pid = tree.pids("tokenizer_proc")[0]
    chat = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1, "chat_template": COSTLY}
    begin = cpu_s(pid)
    for _ in range(10):
        assert http.post("/v1/chat/completions", chat).status == 200
    cost = (cpu_s(pid) - begin) / 10
    assert cost > 0.01, "a rendering that is too cheap to tell"
    body = json.dumps(chat).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
    begin = cpu_s(pid)
    with contextlib.ExitStack() as held:
        for _ in range(NUM_COSTLY):
            connection = held.enter_context(http.raw())
            connection.send(head.encode() + b"Content-Type: application/json\r\n\r\n" + body)
        wait_until(lambda: cpu_s(pid) > begin + cost / 2, "the first to be rendered")
    assert http.generate(text="Once", max_new_tokens=2)["output_ids"]

    def is_at_rest():
        was = cpu_s(pid)
        threading.Event().wait(10 * cost)
        return cpu_s(pid) - was < cost

    wait_until(is_at_rest, "the tokenizer to be at rest")
    assert cpu_s(pid) - begin < cost * NUM_COSTLY / 2
