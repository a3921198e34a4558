"""Sessions of whole prompts: requests name them by a header, and SkyRL ends them by /finish_session."""

import re

import pytest

from http_client import Http, native
from process_tree import wait_until

TREE_FLAGS = ("--dp", "2")
IDS = list(range(300, 364))  # four pages
HEADER = {"X-Session-ID": "agent-7"}
ROUTES = {
    "/v1/completions": {"prompt": IDS, "max_tokens": 4},
    "/v1/chat/completions": {"messages": [], "input_ids": IDS, "max_tokens": 4},
    "/v1/responses": {"input": "Once upon a time there was a little girl who lived near the forest", "max_output_tokens": 4},
    "/v1/messages": {"messages": [{"role": "user", "content": "Once upon a time there was a little girl who lived near"}], "max_tokens": 4},
    "/inference/v1/generate": {"token_ids": IDS, "sampling_params": {"max_tokens": 4}},
    "/generate": native({"input_ids": IDS, "max_new_tokens": 4}),
}  # fmt: skip


def held(http):
    """Tokens of KV that sessions hold, of each replica."""
    found = re.findall(r"^pitstop_kv_held_tokens\{.*?\} (\S+)$", http.get("/metrics").body.decode(), re.MULTILINE)
    return [float(each) for each in found]


def wait_for_none(http):
    wait_until(lambda: sum(held(http)) == 0, "no session holds pages")


def finish(http, name):
    answer = http.post(f"/finish_session?session_id={name}")
    assert answer.status == 200 and answer.json == {"status": "ok", "session_id": name}, answer


@pytest.mark.parametrize("path", ROUTES)
def test_a_header_names_a_session_on_every_route(http, path):
    assert sum(held(http)) == 0
    plain = http.post(path, ROUTES[path])
    assert plain.status == 200, plain
    assert sum(held(http)) == 0
    assert http.post(path, ROUTES[path], headers=HEADER).status == 200
    wait_until(lambda: sum(held(http)) > 0, "a session's pages")
    finish(http, "agent-7")
    wait_for_none(http)


def test_a_body_may_name_the_session_and_close_session_ends_it(http):
    answer = http.generate(input_ids=IDS, max_new_tokens=4, session_id="mine")
    assert "session_tokens" not in answer["meta_info"]
    wait_until(lambda: sum(held(http)) > 0, "a session's pages")
    assert http.post("/close_session", {"session_id": "mine"}).status == 200
    wait_for_none(http)


def test_requests_of_a_session_run_on_one_replica(http):
    for number in range(4):
        name = {"X-Session-ID": f"s{number}"}
        body = {"max_new_tokens": 2, "ignore_eos": True}
        first = http.post("/generate", native({"input_ids": [400 + number], **body}), headers=name).json["meta_info"][
            "dp_rank"
        ]
        for turn in range(4):  # other prompts: only the session's name leads to the replica
            answer = http.post("/generate", native({"input_ids": [500 + 10 * turn + number], **body}), headers=name)
            assert answer.json["meta_info"]["dp_rank"] == first
        finish(http, f"s{number}")


def test_an_invalid_session_name_is_refused(http):
    for path, body in ROUTES.items():
        answer = http.post(path, body, headers={"X-Session-ID": "x" * 300})
        assert answer.status == 400 and "X-Session-ID" in answer.message and "256" in answer.message, answer
    answer = http.post("/generate", native({"input_ids": IDS, "max_new_tokens": 1, "session_id": "x" * 300}))
    assert answer.status == 400 and "session_id" in answer.message
    for query in ("", "?session_id="):
        answer = http.post("/finish_session" + query)
        assert answer.status == 400 and "session_id" in answer.message, answer
    assert http.post("/finish_session?session_id=never").status == 200
    assert http.post("/finish_session", {"session_id": "never"}).status == 200


def test_a_turn_of_an_open_session_ignores_the_header(http):
    assert http.post("/open_session", {"session_id": "open", "capacity_of_str_len": 1000}).status == 200
    body = native({"input_ids": IDS, "max_new_tokens": 2})
    answer = http.post("/generate", {**body, "session_params": {"id": "open"}}, headers={"X-Session-ID": "x" * 257})
    assert answer.status == 200, answer
    assert http.post("/close_session", {"session_id": "open"}).status == 200


def test_the_sessions_of_a_front_end_that_died_are_freed(http, front_end):
    server = front_end()
    other = Http(server.http.url)
    assert other.post("/generate", native({"input_ids": IDS, "max_new_tokens": 4}), headers=HEADER).status == 200
    name = other.post("/open_session", {"capacity_of_str_len": 1}).json
    other.generate(input_ids=IDS[:32], max_new_tokens=4, session_params={"id": name})
    wait_until(lambda: sum(held(http)) > 64, "pages of two sessions")
    server.process.kill()
    wait_for_none(http)
