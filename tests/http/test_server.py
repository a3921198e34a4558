"""HTTP/1.1 as specified, and the server's limits."""

import json
import socket

import pytest

from http_client import Raw
from process_tree import wait_until

PING = b"GET /ping HTTP/1.1\r\nHost: localhost\r\n\r\n"
BODY = json.dumps({"text": "Once", "sampling_params": {"max_new_tokens": 1}}).encode()
GENERATE = (
    b"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\n\r\n%s" % (len(BODY), BODY)
)


def test_a_connection_serves_many_requests(http):
    connection = http.connect()
    for _ in range(3):
        assert http.get("/ping", connection=connection).status == 200
        assert http.generate(text="Once", max_new_tokens=1)["output_ids"]
    connection.close()


def test_pipelined_requests_are_answered_in_order(http):
    with http.raw() as raw:
        raw.send(PING + GENERATE + b"GET /nope HTTP/1.1\r\nHost: localhost\r\n\r\n" + PING)
        assert [raw.read_answer()[0] for _ in range(4)] == [200, 200, 404, 200]


def test_a_request_may_come_byte_by_byte(http):
    with http.raw() as raw:
        for i in range(len(GENERATE)):
            raw.send(GENERATE[i : i + 1])
        assert raw.read_answer()[0] == 200


def test_a_chunked_body_is_taken_apart(http):
    half = len(BODY) // 2
    head = GENERATE.split(b"Content-Length")[0]
    chunks = b"".join(b"%x;ext=1\r\n%s\r\n" % (len(part), part) for part in (BODY[:half], BODY[half:]))
    with http.raw() as raw:
        raw.send(head + b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\nTrailer: x\r\n\r\n" + PING)
        status, _, body = raw.read_answer()
        assert status == 200 and json.loads(body)["output_ids"]
        assert raw.read_answer()[0] == 200


def test_100_continue_is_said_before_a_body_is_read(http):
    with http.raw() as raw:
        head, body = GENERATE.split(b"\r\n\r\n", 1)
        raw.send(head + b"\r\nExpect: 100-continue\r\n\r\n")
        assert raw.read_answer()[0] == 100
        raw.send(body)
        assert raw.read_answer()[0] == 200


def test_a_refusal_needs_no_body(http):
    with http.raw() as raw:
        raw.send(b"POST /nope HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\nExpect: 100-continue\r\n\r\n")
        assert raw.read_all().startswith(b"HTTP/1.1 404 ")


def test_head_has_the_head_of_get_and_no_body(http):
    answer = http.call("HEAD", "/v1/models")
    assert answer.status == 200 and answer.body == b""
    assert int(answer.headers["content-length"]) == len(http.get("/v1/models").body)


def test_options_names_the_methods_and_no_origin(http):
    answer = http.call("OPTIONS", "/generate", headers={"Origin": "http://evil.example"})
    assert answer.status == 204
    assert answer.headers["allow"] == "POST, PUT, OPTIONS"
    assert not [name for name in answer.headers if name.startswith("access-control")]
    assert http.call("OPTIONS", "*").status == 204


def test_cors_is_there_where_it_was_asked_for(front_end):
    server = front_end("--cors-origin", "http://ours.example")
    assert server.http.get("/ping").headers["access-control-allow-origin"] == "http://ours.example"


def test_a_wrong_method_is_405_with_what_is_right(http):
    answer = http.call("DELETE", "/generate")
    assert answer.status == 405 and answer.headers["allow"] == "POST, PUT, OPTIONS"


def test_http_1_0_closes_and_is_not_sent_chunks(http):
    with http.raw() as raw:
        body = BODY.replace(b'{"text"', b'{"stream": true, "text"')
        raw.send(b"POST /generate HTTP/1.0\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        answer = raw.read_all()
    assert answer.endswith(b"data: [DONE]\n\n") and b"chunked" not in answer


def test_the_absolute_form_of_a_target_is_a_path(http):
    with http.raw() as raw:
        raw.send(b"GET http://any.example/ping?x=1 HTTP/1.1\r\nHost: any.example\r\n\r\n")
        assert raw.read_answer()[0] == 200


MALFORMED = {
    "no HTTP at all": (b"\x16\x03\x01\x02\x00 hello\r\n\r\n", 400),
    "no host": (b"GET /ping HTTP/1.1\r\n\r\n", 400),
    "two hosts": (b"GET /ping HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
    "a target that is no path": (b"GET ping HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
    "a bad escape": (b"GET /%zz HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
    "a zero byte in a path": (b"GET /%00 HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
    "two lengths": (
        b"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        400,
    ),
    "a length and chunks": (
        b"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        400,
    ),
    "a negative length": (
        b"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\nhello",
        400,
    ),
    "a length that overflows": (
        b"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999999999999\r\n\r\nhello",
        400,
    ),
    "a chunk size that is none": (
        b"POST /generate HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nhello",
        400,
    ),
    "a coding we do not have": (
        b"POST /generate HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        501,
    ),
    "a compressed body": (
        b"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}",
        415,
    ),
    "a header name with a space": (b"GET /ping HTTP/1.1\r\nHost : x\r\n\r\n", 400),
    "a header with a zero byte": (b"GET /ping HTTP/1.1\r\nHost: localhost\r\nA: b\x00c\r\n\r\n", 400),
    "a bare carriage return": (b"GET /ping HTTP/1.1\r\nHost: localhost\r\nA: b\rc\r\n\r\n", 400),
    "HTTP/2.0": (b"GET /ping HTTP/2.0\r\nHost: localhost\r\n\r\n", 505),
    "an expectation we do not meet": (
        b"POST /generate HTTP/1.1\r\nHost: localhost\r\nExpect: miracle\r\nContent-Length: 2\r\n\r\n{}",
        417,
    ),
    "a header of 100 KB": (b"GET /ping HTTP/1.1\r\nHost: localhost\r\nA: " + b"b" * 100_000 + b"\r\n\r\n", 431),
    "a body of 1 GB, announced": (
        b"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000000\r\n\r\n",
        413,
    ),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_bytes_that_are_no_request_are_refused_and_harm_nobody(http, name):
    data, status = MALFORMED[name]
    with http.raw() as raw:
        raw.send(data)
        answer = raw.read_all()
    assert answer.startswith(b"HTTP/1.1 %d " % status), answer[:200]
    assert http.get("/ping").status == 200


BAD_BODIES = {
    "nothing of JSON": b"{bad",
    "a list": b"[1]",
    "two values": b"{} {}",
    "not UTF-8": b'{"text": "\xff\xfe"}',
    "half a surrogate pair": b'{"text": "\\ud800"}',
    "a thousand levels": b'{"text": ' + b"[" * 1000 + b"]" * 1000 + b"}",
    "a million levels": b"[" * 1_000_000,
    "a number out of range": b'{"input_ids": [1e400]}',
    "a token that is none": b'{"input_ids": [1, "x"]}',
    "a negative token": b'{"input_ids": [-1]}',
    "a fraction of a token": b'{"input_ids": [1.5]}',
    "no prompt": b"{}",
    "a NaN": b'{"text": "x", "sampling_params": {"temperature": NaN}}',
    "a text that is a number": b'{"text": 7}',
}


@pytest.mark.parametrize("path", ["/generate", "/v1/completions", "/inference/v1/generate"])
@pytest.mark.parametrize("name", BAD_BODIES)
def test_bytes_that_are_no_body_are_400(http, name, path):
    answer = http.post(path, BAD_BODIES[name], headers={"Content-Type": "application/json"})
    assert answer.status == 400, answer
    assert answer.message


def test_a_body_over_the_limit_is_413_however_it_comes(front_end):
    server = front_end("--body-bytes-max", 1000)
    assert server.http.post("/generate", b" " * 1001).status == 413
    with server.http.raw() as raw:
        raw.send(
            b"POST /generate HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
            + b"200\r\n"
            + b" " * 512
            + b"\r\n200\r\n"
            + b" " * 512
            + b"\r\n"
        )
        assert raw.read_all().startswith(b"HTTP/1.1 413 ")
    assert server.http.post("/generate", b" " * 1000).status == 400  # read, then refused: it has no prompt


def test_a_header_that_does_not_come_ends_the_connection_slow_loris(front_end):
    server = front_end("--header-timeout-s", 2)  # seconds: enough for an honest client on a busy machine
    slow = [server.http.raw().send(PING[:-7]) for _ in range(20)]
    assert server.http.get("/ping").status == 200  # other clients are served meanwhile
    for raw in slow:
        assert raw.read_all().startswith(b"HTTP/1.1 408 ")
        raw.close()


def test_a_header_that_drips_has_no_longer(front_end):
    server = front_end("--header-timeout-s", 0.5)
    with server.http.raw() as raw:
        raw.socket.settimeout(0.05)
        answer = b""
        for _ in range(200):  # ten seconds at least
            try:
                raw.socket.sendall(b"A")
                answer = raw.socket.recv(100)
                break
            except TimeoutError:
                continue
            except OSError:
                break
        else:
            raise AssertionError("each byte gave it more time")
    assert answer.startswith(b"HTTP/1.1 408 ") or answer == b""


def test_a_body_that_does_not_come_ends_the_connection(front_end):
    server = front_end("--body-timeout-s", 1)
    with server.http.raw() as raw:
        raw.send(GENERATE[:-1])
        assert raw.read_all().startswith(b"HTTP/1.1 408 ")


def test_an_idle_connection_is_closed(front_end):
    server = front_end("--idle-timeout-s", 2)
    with server.http.raw() as raw:
        raw.send(PING)
        assert raw.read_answer()[0] == 200
        assert raw.read_all() == b""


def test_a_connection_too_many_is_told_so(front_end):
    server = front_end("--connections-max", 2)
    held = [server.http.raw() for _ in range(2)]
    for raw in held:
        assert raw.send(PING).read_answer()[0] == 200
    with server.http.raw() as raw:
        assert raw.read_all().startswith(b"HTTP/1.1 503 ")
    for raw in held:
        raw.close()
    wait_until(lambda: can_ping(server.http), "room again")


def can_ping(http):
    try:
        return http.get("/ping").status == 200
    except OSError:
        return False


def test_early_disconnect_at_every_byte_of_a_request_leaves_nothing(http, wait_for_open):
    long_body = json.dumps({"text": "Once", "sampling_params": {"max_new_tokens": 900}}).encode()
    data = GENERATE.split(b"Content-Length")[0]
    data += b"Content-Length: %d\r\n\r\n%s" % (len(long_body), long_body)
    for length in range(len(data) + 1):
        http.raw().send(data[:length]).close()
    assert http.get("/health").status == 200
    wait_for_open(0)


def test_nothing_a_client_sends_gets_into_the_head_of_an_answer(http):
    answer = http.post(
        "/v1/completions",
        {"prompt": "Once", "max_tokens": 1, "model": "x\r\nSet-Cookie: a=b"},
    )
    assert answer.status == 404 and "set-cookie" not in answer.headers
    with http.raw() as raw:
        raw.send(b"GET /a%0d%0aSet-Cookie:%20a=b HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        head = raw.read_all().split(b"\r\n\r\n")[0].lower()
    assert head.startswith(b"http/1.1 404 ") and b"set-cookie" not in head


def test_a_port_in_use_is_said(tree, http, front_end):
    server = front_end("--port", http.port)
    assert server.said.startswith("FAILED cannot listen at 127.0.0.1:")


def test_a_host_that_is_no_address_is_said_to_be_that(front_end):
    refused = front_end("--host", "nowhere.example")
    assert refused.said.startswith("FAILED --host is 'nowhere.example'; accepted are localhost and the IP addresses")


def test_other_addresses_need_a_key_or_a_word(front_end):
    refused = front_end("--host", "0.0.0.0")
    assert refused.said.startswith("FAILED --host 0.0.0.0 can be reached by others")
    assert front_end("--host", "0.0.0.0", "--insecure").http
    assert front_end("--host", "0.0.0.0", env={"PITSTOP_API_KEY": "k"}).http


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6")
def test_the_server_listens_at_an_ipv6_address(front_end):
    server = front_end("--host", "::1")
    if server.http is None:
        pytest.skip(server.said)
    assert server.http.get("/ping").status == 200
    assert isinstance(server.http.raw(), Raw)


def test_P5_what_is_too_large_for_a_door_is_said_at_once(http):
    """The server accepts bodies up to 32 MiB, and the doors messages up to 16 MiB."""
    text = "a" * (17 << 20)
    for path, body in (
        ("/tokenize", {"prompt": text}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": text}]}),
        ("/update_weight_version", {"new_version": text}),
        ("/update_weights_from_disk", {"model_path": text}),
    ):
        answer = http.post(path, body)
        assert answer.status in (400, 413), (path, answer)
