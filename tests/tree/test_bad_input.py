"""Invalid input is answered with a typed error; everything else goes on undisturbed."""

import random
import socket

import msgpack
import pytest
import zmq

from wire import Refused

GREEDY = {"temperature": 0.0, "ignore_eos": True}


@pytest.fixture
def witness(shared_tree):
    """A request that runs before, during and after the test's input, and whose output must not change."""
    with shared_tree.door() as door:
        expected = door.generate("Once upon a time", max_new_tokens=400, **GREEDY)
        rid = door.start("Once upon a time", max_new_tokens=400, **GREEDY)
        door.step()
        yield
        assert door.finish([rid])[0].tokens == expected.tokens


def refusal(door, **fields):
    """The error for a generate with these fields; it must name the rid."""
    door.send("generate", rid="bad", **fields)
    with pytest.raises(Refused) as refused:
        door.step()
    assert refused.value.rid == "bad"
    return refused.value


def good(door):
    """Checks that the connection still works."""
    assert len(door.generate("Once", max_new_tokens=2, **GREEDY).tokens) == 2


NAN, INF = float("nan"), float("inf")

BAD_FIELDS = {
    "an unknown field": ({"text": "x", "wing": 1}, "wing"),
    "an unknown sampling field": ({"text": "x", "sampling": {"topp": 1}}, "sampling"),
    "text of the wrong type": ({"text": 5}, "text: expected a string"),
    "a sampling that is no map": ({"text": "x", "sampling": []}, "sampling: expected a map"),
    "a string for a number": ({"text": "x", "sampling": {"top_p": "1"}}, "sampling.top_p"),
    "an empty prompt": ({"text": ""}, "empty"),
    "an empty list of tokens": ({"input_ids": []}, "empty"),
    "no prompt": ({}, "neither text nor input_ids"),
    "two prompts": ({"text": "x", "input_ids": [1]}, "both"),
    "a negative temperature": ({"text": "x", "sampling": {"temperature": -1.0}}, "temperature"),
    "a temperature that is no number": ({"text": "x", "sampling": {"temperature": NAN}}, "temperature"),
    "an infinite temperature": ({"text": "x", "sampling": {"temperature": INF}}, "temperature"),
    "top_p of zero": ({"text": "x", "sampling": {"top_p": 0.0}}, "top_p"),
    "a NaN top_p": ({"text": "x", "sampling": {"top_p": NAN}}, "top_p"),
    "a NaN min_p": ({"text": "x", "sampling": {"min_p": NAN}}, "min_p"),
    "a negative max_new_tokens": ({"text": "x", "sampling": {"max_new_tokens": -1}}, "max_new_tokens"),
    "a NaN penalty": ({"text": "x", "sampling": {"frequency_penalty": NAN}}, "frequency_penalty"),
    "a NaN bias": ({"text": "x", "sampling": {"logit_bias": {1: NAN}}}, "logit_bias"),
    "a negative token": ({"input_ids": [1, -1]}, "-1"),
    "a token past the vocabulary": ({"input_ids": [1, 2048]}, "2048"),
    "a stop token past the vocabulary": ({"text": "x", "sampling": {"stop_token_ids": [9999]}}, "9999"),
    "a biased token past the vocabulary": ({"text": "x", "sampling": {"logit_bias": {9999: 1.0}}}, "9999"),
    "a logprob of a token past the vocabulary": (
        {"text": "x", "logprobs": {"enabled": True, "ids": [9999]}},
        "9999",
    ),
    "an empty stop text": ({"text": "x", "sampling": {"stop": [""]}}, "stop"),
    "a replica that is not there": ({"text": "x", "replica": 7}, "replica"),
    "a token of 64 bits": ({"input_ids": [1 << 40]}, "32 bits"),
}


@pytest.mark.parametrize("case", BAD_FIELDS, ids=lambda case: case.replace(" ", "_"))
def test_a_request_with(case, door):
    fields, expected = BAD_FIELDS[case]
    error = refusal(door, **fields)
    assert error.code == "invalid_argument"
    assert expected in error.message
    good(door)


def test_text_that_is_not_utf8(door, witness):
    packer = msgpack.Packer()
    body = packer.pack_map_header(2) + msgpack.packb("rid") + msgpack.packb("bad")
    body += msgpack.packb("text") + b"\xa3ok\xff"
    door.send_raw(b"generate", body)
    with pytest.raises(Refused, match="UTF-8"):
        door.step()
    good(door)


def test_a_duplicate_request_id(shared_tree, door):
    with shared_tree.door("admin") as admin:
        assert admin.call("pause_generation", mode="in_place")["ok"]  # otherwise the first may end early
        rid = door.start("Once", rid="twice", max_new_tokens=300, **GREEDY)
        door.send("generate", rid="twice", text="again")
        with pytest.raises(Refused) as refused:
            door.step()
        assert admin.call("continue_generation")["ok"]
    assert refused.value.code == "already_exists"
    assert refused.value.rid == "twice"
    # The first goes on; its id still belongs to it.
    assert len(door.finish([rid])[0].tokens) == 300


def test_a_body_cut_at_every_byte(door, witness):
    whole = msgpack.packb({"rid": "bad", "text": "Once", "sampling": {"temperature": 0.5}})
    for size in range(len(whole)):
        door.send_raw(b"generate", whole[:size])
        with pytest.raises(Refused) as refused:
            door.step()
        assert refused.value.code == "malformed"
    good(door)


def test_a_type_that_does_not_exist(door, witness):
    for kind in (b"genrate", b"", b"\xff\xfe", b"x" * 64):
        door.send_raw(kind, msgpack.packb({"rid": "bad"}))
        with pytest.raises(Refused) as refused:
            door.step()
        assert refused.value.code == "unknown_message"
    good(door)


def test_frames_that_are_no_message(door, witness):
    for frames in ([b"generate"], [b""], [b"x" * 65, b"\x80"], [b"generate", b"\x80"] + [b"r"] * 65):
        door.send_raw(*frames)
        with pytest.raises(Refused) as refused:
            door.step()
        assert refused.value.code in ("malformed", "too_large")
    good(door)


def test_a_message_over_the_limit(door, witness):
    door.send("generate", rid="bad", text="x" * (17 << 20))
    with pytest.raises(Refused, match=str(16 << 20)) as refused:
        door.step()
    assert refused.value.code == "too_large"
    good(door)


def test_a_frame_over_the_limit_ends_its_connection_only(shared_tree, witness):
    with shared_tree.door() as door:
        door.socket.setsockopt(zmq.RECONNECT_IVL, -1)
        door.send("generate", rid="bad", text="x" * (65 << 20))
        assert door.is_quiet(0.2)
    with shared_tree.door() as door:
        good(door)


def test_nesting_without_an_end(door, witness):
    door.send_raw(b"generate", b"\x81\xa4text" + b"\x91" * 100_000)
    with pytest.raises(Refused) as refused:
        door.step()
    assert refused.value.code == "malformed"
    good(door)


def test_messages_of_the_other_door(shared_tree, door):
    door.send("status", call=1)
    with pytest.raises(Refused) as refused:
        door.step()
    assert refused.value.code == "permission_denied"
    with shared_tree.door("admin") as admin:
        admin.send("generate", rid="bad", text="x")
        with pytest.raises(Refused) as refused:
            admin.step()
        assert refused.value.code == "permission_denied"


def test_messages_that_only_the_trees_own_processes_send(door):
    for kind in (b"step_plan", b"outputs", b"text_batch", b"worker_hello", b"scheduler_hello"):
        door.send_raw(kind, b"\x80")
        with pytest.raises(Refused) as refused:
            door.step()
        assert refused.value.code in ("unknown_message", "permission_denied")
    good(door)


def test_a_hello_of_another_protocol(shared_tree):
    with shared_tree.door(hello=False) as door:
        door.send("hello", protocol=99, name="from the future")
        with pytest.raises(Refused, match="99"):
            door.step()


def test_a_call_without_a_number(shared_tree):
    with shared_tree.door("admin") as admin:
        admin.send("status")
        with pytest.raises(Refused, match="call"):
            admin.step()


# ---- random bytes on every socket ----


def sockets(tree):
    return sorted(path for path in tree.run_dir.iterdir() if path.name.endswith(".sock"))


def test_random_messages_on_every_socket(start_tree):
    """Sends random ZeroMQ messages, also to the inner sockets, which check less than the doors do."""
    tree = start_tree("--dp", 2)
    watcher = tree.door()
    expected = watcher.generate("Once upon a time", max_new_tokens=100, **GREEDY).tokens
    draw = random.Random(1)
    kinds = [
        b"generate",
        b"step_plan",
        b"step_result",
        b"text_batch",
        b"token_batch",
        b"hello",
        b"worker_hello",
        b"scheduler_hello",
        b"tokenized_request",
        b"end_requests",
        b"",
        b"?",
    ]
    context = zmq.Context.instance()
    for path in sockets(tree):
        for kind in (zmq.DEALER, zmq.PUSH):
            with context.socket(kind) as intruder:
                intruder.linger = 200
                intruder.connect(f"ipc://{path}")
                for _ in range(200):
                    frames = [draw.choice(kinds), draw.randbytes(draw.randint(0, 60))]
                    frames += [draw.randbytes(draw.randint(0, 60)) for _ in range(draw.randint(0, 3))]
                    try:
                        intruder.send_multipart(frames[draw.randint(0, 1) :], zmq.NOBLOCK)
                    except zmq.Again:
                        break  # the peer does not accept this kind of socket
        assert watcher.generate("Once upon a time", max_new_tokens=100, **GREEDY).tokens == expected
    assert tree.launcher.poll() is None


def test_random_bytes_on_every_socket(start_tree):
    """Sends random bytes into the unix sockets, below ZeroMQ, and opens connections that send nothing."""
    tree = start_tree()
    watcher = tree.door()
    expected = watcher.generate("Once upon a time", max_new_tokens=100, **GREEDY).tokens
    draw = random.Random(2)
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(48)
    silent = []
    for path in sockets(tree):
        for size in (1, 10, 64, 5000):
            for head in (b"", greeting):
                with socket.socket(socket.AF_UNIX) as raw:
                    raw.settimeout(5)
                    raw.connect(str(path))
                    try:
                        raw.sendall(head + draw.randbytes(size))
                    except OSError:
                        pass  # the peer may close the connection
        quiet = socket.socket(socket.AF_UNIX)
        quiet.connect(str(path))
        silent.append(quiet)
    assert watcher.generate("Once upon a time", max_new_tokens=100, **GREEDY).tokens == expected
    for quiet in silent:
        quiet.close()
    assert tree.launcher.poll() is None


# ---- a client that does not read ----


def test_a_slow_client_costs_only_itself(start_tree):
    tree = start_tree("--max-running-requests", 64)
    lazy = zmq.Context.instance().socket(zmq.DEALER)
    lazy.linger = 0
    lazy.rcvhwm = 1
    lazy.setsockopt(zmq.RCVBUF, 4096)
    lazy.connect(f"ipc://{tree.run_dir}/data.sock")
    lazy.send_multipart([b"hello", msgpack.packb({"protocol": 3, "name": "lazy"})])
    assert lazy.poll(60_000)
    identity = msgpack.unpackb(lazy.recv_multipart()[1])["tree"]
    sampling = {"max_new_tokens": 800, **GREEDY}
    for i in range(32):
        body = {"tree": identity, "rid": f"lazy-{i}", "text": f"The king {i}", "sampling": sampling}
        lazy.send_multipart([b"generate", msgpack.packb(body)])
    quick = tree.door()
    expected = quick.generate("Once upon a time", max_new_tokens=300, **GREEDY).tokens
    assert len(expected) == 300
    # The lazy client finally reads: for each request all of its output, or an error with the
    # reason.
    seen, ended = {}, {}
    while len(ended) < 32:
        assert lazy.poll(60_000), f"{len(ended)} of 32 ended"
        kind, body, *_ = lazy.recv_multipart()
        body = msgpack.unpackb(body, strict_map_key=False)
        if kind == b"error":
            ended[body["rid"]] = body["code"]
        for chunk in body.get("chunks", []):
            seen[chunk["rid"]] = seen.get(chunk["rid"], 0) + len(chunk.get("tokens", []))
            if "finish" in chunk:
                ended[chunk["rid"]] = chunk["finish"]["reason"]
    lazy.close()
    for rid, reason in ended.items():
        assert reason in ("length", "error", "resource_exhausted"), reason
        assert reason != "length" or seen[rid] == 800
    assert quick.generate("Once upon a time", max_new_tokens=300, **GREEDY).tokens == expected
