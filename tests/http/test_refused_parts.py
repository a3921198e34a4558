"""This server refuses a trainer's call, and the trainer ignores that and continues. A version would lack the call's
tensors, so none is made, and the answer to the continue reports it."""

import socket
import urllib.parse

import pytest

from control_tree import BARD, STORIES, http  # noqa: F401
from test_colocated import chunks, fresh, is_served, on_stories, status  # noqa: F401
from trainers import broadcast, load, sglang_group

TREE_FLAGS = ("--tp", 2)
BODY_BYTES_MAX = 32 << 20  # http_proc's default
REFUSED = (
    ("/update_weights_from_tensor", b"{nope", 400),
    ("/update_weights_from_tensor", b'{"serialized_named_tensors": 5}', 400),
    ("/update_weights_from_distributed", b'{"names": ["w"]}', 400),
    ("/update_weights_from_ipc", b"{}", 400),
    ("/update_weights", b'{"update_info": 5}', 400),
    ("/collective_rpc", b'{"method": "update_weights", "kwargs": {}}', 400),
    ("/areal_update_weights_xccl", b"", 400),
    ("/update_weights_from_tensor", None, 413),
)
NO_PART = (
    ("/collective_rpc", b'{"method": "my_extension"}', 501),
    ("/update_weights_from_disk", b'{"model_path": "/nowhere"}', None),
    ("/get_weights_by_name", b'{"name": "nobody"}', None),
    ("/update_weights", b'{"weight_dir": 5}', 400),
)


def send_half(http, group):
    http.ok("POST", "/pause_generation", {"mode": "in_place"})
    for tensors in chunks(load(BARD), 4)[:2]:
        assert broadcast(http, group, tensors, flush_cache=False).status == 200


def post_head_of_too_much(tree, path):
    """Sends the head of a POST with more than BODY_BYTES_MAX, and returns the status, which comes before the body is
    sent."""
    address = urllib.parse.urlsplit(tree.url)
    with socket.create_connection((address.hostname, address.port), timeout=20) as connection:
        head = f"POST {path} HTTP/1.1\r\nhost: {address.netloc}\r\ncontent-length: {BODY_BYTES_MAX + 1}\r\n\r\n "
        connection.sendall(head.encode())
        return int(connection.recv(4096).split()[1])


@pytest.mark.parametrize("path, body, code", REFUSED)
def test_P2_a_part_that_is_refused_here_is_missed_by_the_continue(http, tree, fresh, path, body, code):
    with sglang_group(http) as group:
        send_half(http, group)
        assert (post_head_of_too_much(tree, path) if body is None else http.post(path, raw=body).status) == code
        lost = status(tree)["lost_calls"]
        assert lost["calls"] == 2 and f"http_proc answered {code} to a POST {path}" in lost["why"], lost
        refused = http.post("/continue_generation", {})
        assert refused.status == 400 and "take no effect" in refused.json()["message"], refused
        http.ok("POST", "/continue_generation", {})
    is_served(http, fresh, STORIES)


@pytest.mark.parametrize("path, body, code", NO_PART)
def test_a_refused_call_that_is_no_part_loses_nothing(http, tree, fresh, path, body, code):
    with sglang_group(http) as group:
        send_half(http, group)
        answer = http.post(path, raw=body)
        assert answer.status >= 400 and code in (None, answer.status), answer
        assert "lost_calls" not in status(tree) and status(tree)["collecting"]["calls"] == 2
        for tensors in chunks(load(BARD), 4)[2:]:
            assert broadcast(http, group, tensors, flush_cache=False).status == 200
        http.ok("POST", "/continue_generation", {})
    is_served(http, fresh, BARD)
