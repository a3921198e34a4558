"""The memory that clients make the server hold is bounded, and other clients are not affected."""

import json
import resource
import select

from http_client import native
from process_tree import wait_until
from wire import DEADLINE_S

PING = b"GET /ping HTTP/1.1\r\nHost: localhost\r\n\r\n"
CHUNKED = (
    b"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)
MIB = 1 << 20


def post(body):
    data = json.dumps(body).encode()
    return b"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s" % (len(data), data)


def send_what_is_taken(raw, data):
    """Sends as much as the server reads: it may stop reading, or close, before the end."""
    wait_s = raw.socket.gettimeout()
    raw.socket.settimeout(2)
    try:
        raw.socket.sendall(data)
    except (ConnectionError, TimeoutError):
        pass
    raw.socket.settimeout(wait_s)


def answer_within_bounds(server, data):
    before = server.memory_kib()
    with server.http.raw() as raw:
        send_what_is_taken(raw, data)
        answer = raw.read_all()
    assert (server.memory_kib() - before) / 1024 < 8
    assert server.http.get("/ping").status == 200
    return answer


def test_a_chunk_extension_without_an_end_is_431(front_end):
    answer = answer_within_bounds(front_end(), CHUNKED + b"5;" + b"x" * (3 * MIB))
    assert answer.startswith(b"HTTP/1.1 431 ")


def test_a_trailer_without_an_end_is_431(front_end):
    trailer = b"2\r\n{}\r\n0\r\n" + b"A: b\r\n" * (3 * MIB // 6)
    answer = answer_within_bounds(front_end(), CHUNKED + trailer)
    assert answer.startswith(b"HTTP/1.1 431 ")


def test_a_trailer_of_one_line_without_an_end_is_431(front_end):
    answer = answer_within_bounds(front_end(), CHUNKED + b"0\r\nA: " + b"b" * (3 * MIB))
    assert answer.startswith(b"HTTP/1.1 431 ")


def test_small_extensions_and_trailers_are_read_over(http):
    body = json.dumps(native({"text": "Once", "max_new_tokens": 1})).encode()
    chunks = b"".join(b"1;name=%s\r\n%c\r\n" % (b"v" * 100, byte) for byte in body)
    with http.raw() as raw:
        raw.send(CHUNKED + chunks + b"0\r\n" + b"A: b\r\n" * 100 + b"\r\n" + PING)
        assert raw.read_answer()[0] == 200
        assert raw.read_answer()[0] == 200


def test_prompts_count_once_per_sample(front_end, wait_for_open):
    server = front_end("--held-bytes-max", 8 * MIB)
    prompt = "Once upon a time. " * 20_000  # 360 KB
    refused = [
        server.http.post("/generate", native({"text": prompt, "n": 64})),
        server.http.post("/v1/completions", {"prompt": prompt, "n": 64}),
        server.http.post("/inference/v1/generate", {"token_ids": [5] * 90_000, "sampling_params": {"n": 64}}),
    ]
    for answer in refused:
        assert answer.status == 400 and "once per sample" in answer.message, answer
    assert len(server.http.generate(text="Once", n=64, max_new_tokens=1)) == 64
    wait_for_open(0)


def test_bodies_that_do_not_end_are_held_together_up_to_the_limit(front_end):
    server = front_end("--held-bytes-max", 8 * MIB)
    begun = CHUNKED + b"%x\r\n" % (3 * MIB) + b" " * (3 * MIB)
    held = [server.http.raw().send(begun) for _ in range(3)]
    answered, _, _ = select.select([raw.socket for raw in held], [], [], DEADLINE_S)
    assert len(answered) == 1  # any of them may be the first to reach the limit
    assert answered[0].recv(100).startswith(b"HTTP/1.1 503 ")
    for raw in held:
        raw.close()
    whole = {"text": "Once", "sampling_params": {"max_new_tokens": 1}, "ignored": " " * (5 * MIB)}
    wait_until(lambda: server.http.post("/generate", whole).status == 200, "memory to be free")


def test_a_body_is_let_go_of_once_its_prompts_are_on_their_way(front_end, http, wait_for_open):
    """Requests stay open under a pause, and their bodies together exceed the limit: each body must be freed once its
    prompts are sent to the tree."""
    server = front_end("--held-bytes-max", 8 * MIB)
    assert http.post("/pause_generation", {"mode": "in_place"}).status == 200
    body = native({"text": "Once", "max_new_tokens": 1})
    waiting = []
    for i in range(8):
        waiting.append(server.http.raw().send(post({**body, "ignored": " " * (3 * MIB)})))
        wait_for_open(i + 1)
    assert http.post("/continue_generation", {}).status == 200
    for raw in waiting:
        assert raw.read_answer()[0] == 200
        raw.close()
    wait_for_open(0)


def test_memory_that_runs_out_costs_one_connection(front_end):
    server = front_end(env={"MALLOC_ARENA_MAX": "1"})  # threads with arenas of their own would find room
    with open(f"/proc/{server.process.pid}/status", encoding="utf-8") as status:
        kib = next(int(line.split()[1]) for line in status if line.startswith("VmSize"))
    limit = kib * 1024 + 2 * MIB
    resource.prlimit(server.process.pid, resource.RLIMIT_AS, (limit, limit))
    with server.http.raw() as raw:  # a body within the server's limits, but beyond its memory
        raw.send(b"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % (30 * MIB))
        send_what_is_taken(raw, b" " * (5 * MIB))
        answer = raw.read_all()  # empty if the server closed with bytes unread: the kernel then discards the answer
    assert not answer or answer.startswith(b"HTTP/1.1 500 "), answer
    assert server.http.generate(text="Once", max_new_tokens=2)["output_ids"]
    assert server.process.poll() is None


def test_a_client_that_sends_far_ahead_and_goes_away_ends_its_request(http, wait_for_open):
    assert http.post("/pause_generation", {"mode": "in_place"}).status == 200
    try:
        raw = http.raw().send(post(native({"text": "Once", "max_new_tokens": 500})))
        wait_for_open(1)
        send_what_is_taken(raw, PING * (4 * MIB // len(PING)))
        raw.close()
        wait_for_open(0)  # the request ends although generation is paused
    finally:
        assert http.post("/continue_generation", {}).status == 200


def test_of_what_was_sent_too_far_ahead_the_beginning_is_answered(http):
    with http.raw() as raw:
        raw.send(post(native({"text": "Once", "max_new_tokens": 200, "ignore_eos": True})))
        send_what_is_taken(raw, PING * (MIB // len(PING)))
        answers = raw.read_all()
    assert answers.count(b"HTTP/1.1 200 OK") > 100
    assert answers.count(b"HTTP/1.1 ") == answers.count(b"HTTP/1.1 200 OK")
