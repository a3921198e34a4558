"""A server whose tree was replaced, before it has learned the formats of the next tree's model. The doors leave each
answer to the test."""

import http.client
import json
import sys
import time

import pytest

from http_client import FrontEnd
from process_tree import ROOT, wait_until

sys.path.insert(0, str(ROOT / "tests/client"))

from fake_door import FakeDoor  # noqa: E402  (after the path)

PATH = "/v1/chat/completions"
CHAT = json.dumps({"messages": [{"role": "user", "content": "Once"}], "max_tokens": 1}).encode()
HEADERS = {"Content-Type": "application/json", "Content-Length": len(CHAT), "Expect": "100-continue"}
TICKS_S = 2.0  # ten ticks of the server


class Doors:
    """The doors of one tree after another; `here` are those of the present one."""

    def __init__(self, run_dir):
        self._run_dir = run_dir
        self.here = FakeDoor(run_dir)

    def close(self):
        if self.here:
            self.here.die()
        self.here = None

    def replace(self):
        self.close()
        self.here = FakeDoor(self._run_dir)

    def asked(self):
        """The server's question for the formats: (peer, body)."""
        return self.here.take("describe_tokenizer")

    def answer(self, peer, body):
        self.here.send(peer, "tokenizer_reply", call=body["call"], config="{}")


@pytest.fixture
def doors(place):
    doors = Doors(place)
    yield doors
    doors.close()


@pytest.fixture
def server(place, doors):
    """It knows the formats of the first tree's model."""
    server = FrontEnd(place, "--reasoning-parser", "auto", waits=False)
    try:
        doors.answer(*doors.asked())
        server.wait_ready()
        yield server
    finally:
        server.stop()


def begin_chat(server):
    """Sends the head of a chat. Returns its connection once the server waits for the body."""
    connection = server.http.connect()
    connection.putrequest("POST", PATH)
    for name, value in HEADERS.items():
        connection.putheader(name, value)
    connection.endheaders()
    assert connection.sock.recv(1000) == b"HTTP/1.1 100 Continue\r\n\r\n"
    return connection


def finish_chat(connection):
    """Sends the body. Returns the answer's status and body."""
    connection.sock.sendall(CHAT)
    response = http.client.HTTPResponse(connection.sock, method="POST")
    response.begin()
    status, body = response.status, response.read().decode()
    connection.close()
    return status, body


def assert_serves(server, doors):
    """The server knows the formats: a chat reaches the tree."""
    wait_until(lambda: server.http.post(PATH, b"{}").status == 400, "the server to know the formats")
    connection = begin_chat(server)
    connection.sock.sendall(CHAT)
    doors.here.take("render_chat")
    connection.close()


def test_a_chat_whose_tree_is_replaced_while_its_body_arrives_is_refused(server, doors):
    """The server would read its output in the formats of the first tree's model."""
    connection = begin_chat(server)
    doors.replace()
    question = doors.asked()
    status, body = finish_chat(connection)
    assert status == 503 and "the engine is starting" in body, (status, body)
    assert doors.here.received.empty()
    doors.answer(*question)
    assert_serves(server, doors)


def test_a_tree_that_dies_before_it_tells_the_formats_is_asked_no_more(server, doors):
    """Each question would fail at once, and each failure is logged."""
    doors.replace()
    doors.asked()
    doors.close()
    time.sleep(TICKS_S)
    doors.replace()
    doors.answer(*doors.asked())
    assert_serves(server, doors)
    server.process.terminate()
    lines = server.process.stderr.read().splitlines()
    assert len([line for line in lines if "the chat template of the next tree" in line]) == 1, lines
