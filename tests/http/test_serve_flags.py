"""Flags of `pitstop serve` about HTTP reach its front end."""

import re
import subprocess
import time

from http_client import native, program
from process_tree import LAUNCHER, wait_until

ORIGIN = "http://ours.example"
TREE_FLAGS = (
    "--http-body-bytes-max", "1000", "--http-header-bytes-max", "4096", "--http-held-bytes-max",
    "20000", "--http-connections-max", "3", "--http-idle-timeout", "3", "--http-header-timeout",
    "2", "--http-body-timeout", "2", "--http-write-timeout", "5", "--cors-origin", ORIGIN,
    "--incremental-streaming-output",
)  # fmt: skip
SET_BY_THE_LAUNCHER = {"run-dir", "routes", "ready-fd", "supervisor-fd", "parent-pid", "bundled-models"}


def flags_in(text):
    return set(re.findall(r"^  (?:-h, )?--([\w-]+)", text, re.MULTILINE))


def test_each_flag_of_the_server_is_one_of_serve():
    own = flags_in(subprocess.check_output([program("http_proc"), "--help"], text=True))
    serve = flags_in(subprocess.check_output([LAUNCHER, "serve", "--help"], text=True))
    named = {re.sub(r"^http-", "", flag) for flag in serve}
    missing = {flag for flag in own - SET_BY_THE_LAUNCHER if re.sub(r"-s$", "", flag) not in named}
    assert not missing


def test_limits_on_size(http):
    assert http.post("/generate", b" " * 1001).status == 413
    assert http.get("/ping", headers={"A": "b" * 5000}).status == 431
    refused = http.post("/generate", native({"text": "Once", "n": 200}))
    assert refused.status == 400 and "at most 20000 are accepted" in refused.message


def test_a_limit_on_connections(http):
    held = [http.raw() for _ in range(3)]
    for raw in held:
        raw.send(b"GET /ping HTTP/1.1\r\nHost: localhost\r\n\r\n").read_answer()
    with http.raw() as raw:
        assert raw.read_all().startswith(b"HTTP/1.1 503 ")
    for raw in held:
        raw.close()
    wait_until(lambda: can_ping(http), "room again")


def can_ping(http):
    try:
        return http.get("/ping").status == 200
    except OSError:
        return False


def test_limits_on_time(http):
    begun = {
        b"": b"",  # idle
        b"GET /ping HTTP/1.1\r\n": b"HTTP/1.1 408 ",
        b"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n": b"HTTP/1.1 408 ",
    }
    for sent, said in begun.items():
        begin = time.monotonic()
        with http.raw() as raw:
            assert raw.send(sent).read_all()[: len(said) or None] == said
        assert time.monotonic() - begin < 60  # the defaults are longer


def test_the_origin_that_may_call(http):
    assert http.get("/ping").headers["access-control-allow-origin"] == ORIGIN


def test_streams_are_of_what_is_new(http):
    body = native({"text": "Once upon a time", "max_new_tokens": 8, "stream": True})
    events = list(http.events("/generate", body))
    assert sum(len(event["output_ids"]) for event in events) == 8
