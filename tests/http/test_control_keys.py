"""Which control routes the two keys open, and shutdown over HTTP."""

import pytest

from http_calls import Http
from process_tree import ProcessTree

API = {"authorization": "Bearer data-key"}
ADMIN = {"x-api-key": "admin-key"}


@pytest.fixture
def start_keyed_tree(place):
    """start_keyed_tree(*flags): a tree of the test's own."""
    trees = []

    def start(*flags):
        trees.append(ProcessTree(place / "tree", "--port", 0, *flags))
        return trees[-1]

    yield start
    for tree in trees:
        tree.abandon()


def test_control_needs_the_admin_key_and_own_aborts_do_not(start_keyed_tree):
    tree = start_keyed_tree("--api-key", "data-key", "--admin-api-key", "admin-key")
    http = Http(tree.url)
    for path in ("/pause_generation", "/pause", "/sleep", "/update_weight_version", "/shutdown"):
        assert http.post(path, {}).status == 401, path
        assert http.post(path, {}, headers=API).status == 403, path
    assert http.get("/is_paused", headers=API).json() == {"is_paused": False}
    assert http.post("/abort_requests", {}, headers=API).status == 403
    assert http.post("/abort_requests", {"request_ids": ["x"]}, headers=API).json()["aborted"] == 0
    assert http.post("/abort_requests", {}, headers=ADMIN).json()["aborted"] == 0
    assert http.post("/pause_generation", {"mode": "in_place"}, headers=ADMIN).status == 200
    assert http.post("/resume", headers=ADMIN).status == 200
    ended = http.post("/shutdown", {"drain_s": 1}, headers=ADMIN)
    assert ended.status == 200 and ended.json()["open_requests"] == 0
    assert tree.wait_exit() == 0
    tree.check_gone()
