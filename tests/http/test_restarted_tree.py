"""A server of its own beside a tree that is restarted: 503 while it is away, then it serves again."""

import pytest

from http_client import FrontEnd
from process_tree import ProcessTree, wait_until


@pytest.fixture
def restarting(tmp_path_factory):
    """A tree with --restart and a server beside it."""
    place = tmp_path_factory.mktemp("t", numbered=True)
    tree = ProcessTree(place / "tree", "--restart")
    server = FrontEnd(tree.run_dir)
    try:
        yield tree, server.http
        tree.stop()
    finally:
        server.stop()
        tree.abandon()


def test_what_is_asked_while_the_tree_is_away_gets_503_and_is_not_done_later(restarting):
    tree, http = restarting
    generate = {"text": "Once", "sampling_params": {"max_new_tokens": 5, "temperature": 0}}
    assert http.post("/generate", generate).status == 200
    tree.go_away()
    wait_until(lambda: http.get("/health").status == 503, "the server to notice")
    gone = {
        "/generate": generate,
        "/pause_generation": {"mode": "in_place"},
        "/pause?mode=keep": None,
        "/update_weights_from_disk": {"model_path": "/nowhere"},  # it has no time limit of a caller
        "/release_memory_occupation": {},
        "/flush_cache": None,
        "/abort_request": {"abort_all": True},
    }
    for path, body in gone.items():
        answer = http.post(path, body)
        assert answer.status == 503, (path, answer)
    assert http.get("/server_info").status == 503
    tree.come_back()
    wait_until(lambda: http.get("/health").status == 200, "the server to find the next tree")
    answer = http.post("/generate", generate)
    assert answer.status == 200 and answer.json["meta_info"]["completion_tokens"] == 5
    assert http.post("/pause_generation", {"mode": "in_place"}).status == 200
    assert http.post("/continue_generation", {}).status == 200
