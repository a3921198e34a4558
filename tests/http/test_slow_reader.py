"""A client that does not read costs bounded memory, and delays no other client."""

import json
import select

from http_client import native
from process_tree import wait_until

# Cumulative events of 900 tokens with 60 logprobs each: hundreds of megabytes in all.
BODY = native(
    {"text": "Once upon a time", "max_new_tokens": 900, "ignore_eos": True, "stream": True,
     "return_logprob": True, "top_logprobs_num": 60}
)  # fmt: skip
EVENT_MIB = 2  # size of a stream's last event


def start(http):
    data = json.dumps(BODY).encode()
    return http.raw().send(
        b"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s" % (len(data), data)
    )


def is_closed(raw):
    """Whether the server has closed the connection, found without reading the answer."""
    poll = select.poll()
    poll.register(raw.socket, select.POLLRDHUP | select.POLLHUP | select.POLLERR)
    return bool(poll.poll(0))


def read_chunked(raw):
    stream = raw.socket.makefile("rb")
    while stream.readline() not in (b"\r\n", b""):
        pass
    data = b""
    while size := int(stream.readline(), 16):
        data += stream.read(size)
        stream.read(2)
    return data


def test_a_stream_that_is_not_read_is_joined_then_ended(front_end, wait_for_open, paused):
    server = front_end("--write-timeout-s", 2)
    before = server.memory_kib()
    with paused():
        stuck = [start(server.http) for _ in range(8)]
        wait_for_open(8)
    peak = before

    def all_ended():
        nonlocal peak
        peak = max(peak, server.memory_kib())
        assert server.http.get("/ping").status == 200  # other clients are served
        return all(map(is_closed, stuck))

    wait_until(all_ended, "the streams to be ended")
    wait_for_open(0)
    # Per client: its output, an event in the making and one being sent. All events would be
    # gigabytes.
    assert (peak - before) / 1024 < 8 * 8 * EVENT_MIB
    for raw in stuck:
        raw.close()


def test_a_reader_that_comes_back_gets_the_newest_event_and_the_end(http, wait_for_open, paused):
    with paused():
        raw = start(http)
        wait_for_open(1)
    wait_for_open(0)  # the tree has generated everything, and nothing was read
    data = read_chunked(raw)
    raw.close()
    assert data.endswith(b"data: [DONE]\n\n")
    events = [json.loads(event[6:]) for event in data.split(b"\n\n") if event.startswith(b"data: {")]
    assert len(events) < 900  # some were joined
    assert events[-1]["meta_info"]["completion_tokens"] == 900
    assert len(events[-1]["output_ids"]) == 900
