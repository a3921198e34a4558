"""A server that runs while its tree is restarted: it answers 503 without a tree, and then serves again."""

import json

import pytest

from http_client import FrontEnd, Http
from process_tree import ProcessTree, live_tree, wait_until
from scripted_model import write_scripted_model


@pytest.fixture
def restarting(tmp_path_factory):
    """A tree with --restart, and a server that outlives it."""
    place = tmp_path_factory.mktemp("t", numbered=True)
    tree = ProcessTree(place / "tree", "--restart")
    server = FrontEnd(tree.run_dir)
    try:
        yield tree, server.http
        tree.stop()
    finally:
        server.stop()
        tree.abandon()


def test_calls_while_the_tree_is_away_get_503_and_are_not_done_later(restarting):
    tree, http = restarting
    generate = {"text": "Once", "sampling_params": {"max_new_tokens": 5, "temperature": 0}}
    assert http.post("/generate", generate).status == 200
    tree.go_away()
    wait_until(lambda: http.get("/health").status == 503, "the server to notice")
    gone = {
        "/generate": generate,
        "/pause_generation": {"mode": "in_place"},
        "/pause?mode=keep": None,
        "/update_weights_from_disk": {"model_path": "/nowhere"},  # a route whose calls have no time limit
        "/release_memory_occupation": {},
        "/abort_request": {"abort_all": True},
    }
    for path, body in gone.items():
        answer = http.post(path, body)
        assert answer.status == 503, (path, answer)
    assert http.get("/server_info").status == 503
    assert http.post("/flush_cache").status == 400, "as SGLang says that it failed, whatever the reason"
    tree.come_back()
    wait_until(lambda: http.get("/health").status == 200, "the server to find the next tree")
    answer = http.post("/generate", generate)
    assert answer.status == 200 and answer.json["meta_info"]["completion_tokens"] == 5
    assert http.post("/pause_generation", {"mode": "in_place"}).status == 200
    assert http.post("/continue_generation", {}).status == 200


def test_a_server_describes_the_tree_that_is_there(tmp_path_factory):
    """The server forgets the previous tree's model name, and whether that tree had weights."""
    place = tmp_path_factory.mktemp("t", numbered=True)
    tree = ProcessTree(place / "tree", "--served-model-name", "first")
    server = FrontEnd(tree.run_dir)
    http = server.http
    try:
        assert http.get("/health").status == 200
        assert [card["id"] for card in http.get("/v1/models").json["data"]] == ["first"]
        tree.stop()
        wait_until(lambda: http.get("/health").status == 503, "the server to notice")
        tree = ProcessTree(place / "tree", "--served-model-name", "second", "--wait-for-initial-weights")
        wait_until(lambda: http.get("/model_info").status == 200, "the next tree")
        wait_until(lambda: http.get("/model_info").json["served_model_name"] == "second", "its name")
        assert [card["id"] for card in http.get("/v1/models").json["data"]] == ["second"]
        assert http.get("/health").status == 503, "the next tree has no weights"
        tree.stop()
    finally:
        server.stop()
        tree.abandon()


def test_a_server_reads_chats_in_the_format_of_the_next_trees_model(place):
    """`--reasoning-parser auto` reads the template of each tree's model, and vLLM's and AReaL's announcements end with
    the tree that they were for."""
    model, _ = write_scripted_model(place / "model", {"thought": ["<think>", "Hm.", "</think>", "Noon."]})
    template = place / "model" / "chat_template.jinja"
    template.write_text("{{ messages[0].content }}")
    tree = ProcessTree(place / "tree", "--model", model)
    server = FrontEnd(tree.run_dir, "--reasoning-parser", "auto")
    http = server.http
    body = {
        "messages": [{"role": "user", "content": "thought"}],
        "chat_template": "<script {{ messages[0].content }}>",
        "temperature": 0,
    }
    announced = {"names": ["model.norm.weight"], "dtypes": ["bfloat16"], "shapes": [[64]], "group_name": "none"}
    try:
        message = http.post("/v1/chat/completions", body).json["choices"][0]["message"]
        assert message["content"] == "<think>Hm.</think>Noon."
        assert http.post("/areal_set_update_weight_meta", announced).status == 200
        tree.stop()
        wait_until(lambda: http.get("/health").status == 503, "the server to notice")
        template.write_text("{# '</think>' #}{{ messages[0].content }}")
        tree = ProcessTree(place / "tree", "--model", model)
        wait_until(lambda: http.get("/health").status == 200, "the next tree")
        message = http.post("/v1/chat/completions", body).json["choices"][0]["message"]
        assert (message["reasoning"], message["content"]) == ("Hm.", "Noon.")
        refused = http.post("/areal_update_weights_xccl", {})
        assert "no tensors were announced" in refused.message, refused
        tree.stop()
    finally:
        server.stop()
        tree.abandon()


@pytest.mark.parametrize("begin", ["/pause_generation", "/begin_weight_update", "/start_weight_update"])
def test_P2_a_server_that_outlives_a_tree_goes_on_with_nothing_of_it(restarting, begin):
    """The update that a trainer had begun is lost with the tree. Without the check, the rest of its calls would become
    a version."""
    tree, http = restarting
    assert http.post(begin, {"mode": "in_place"}).status == 200
    tree.go_away()
    wait_until(lambda: http.get("/health").status == 503, "the server to notice")
    tree.come_back()
    wait_until(lambda: http.get("/health").status == 200, "the server to find the next tree")
    body = {"names": ["model.norm.weight"], "dtypes": ["bfloat16"], "shapes": [[64]], "group_name": "none"}
    for _ in range(2):
        refused = http.post("/update_weights_from_distributed", body)
        assert refused.status in (400, 409) and "the tree restarted at" in refused.message, refused
    if begin == "/pause_generation":
        assert http.post("/continue_generation").status == 200, "nothing but the pause was lost"
    else:
        refused = http.post("/end_weight_update")
        assert refused.status in (400, 409) and "the tree restarted at" in refused.message, refused
    # After the trainer was told, each call is an update of its own.
    refused = http.post("/update_weights_from_distributed", body)
    assert refused.status == 400 and "model.norm.weight" in refused.message, refused


@pytest.mark.parametrize(
    "path, body, kinds",
    [
        ("/v1/messages", {"messages": [{"role": "user", "content": "Once"}], "max_tokens": 900}, ["error"]),
        (
            "/v1/responses",
            {"input": "Once", "max_output_tokens": 900},
            ["response.output_text.done", "response.content_part.done", "response.output_item.done", "response.failed"],
        ),
    ],
)
def test_a_stream_of_named_events_tells_that_its_tree_went_away(restarting, path, body, kinds):
    tree, http = restarting
    body = json.dumps({**body, "stream": True, "ignore_eos": True, "temperature": 0})

    def paused_in_mid_stream():
        """Pauses in the middle of a stream. Returns its remaining lines; None: the answer was complete before the
        pause."""
        connection = http.connect()
        connection.request("POST", path, body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        assert response.status == 200
        lines = iter(response)
        next(line for line in lines if b"delta" in line)
        assert http.post("/pause_generation", {"mode": "in_place"}).status == 200
        with tree.door("admin") as admin:
            if admin.call("status")["replicas"][0]["num_running"] == 1:
                return lines
        assert http.post("/continue_generation", {}).status == 200
        return None

    while (lines := paused_in_mid_stream()) is None:
        continue
    tree.go_away()
    events = [json.loads(line[6:]) for line in lines if line.startswith(b"data: ")]
    assert [event["type"] for event in events][-len(kinds) :] == kinds
    last = events[-1]
    if path == "/v1/messages":
        assert set(last) == {"type", "error"} and last["error"]["type"] == "overloaded_error"
    else:
        assert last["response"]["status"] == "failed" and last["response"]["error"]["code"] == "server_error"
        (item,) = last["response"]["output"]
        assert item["status"] == "incomplete" and item["content"][0]["text"]
    tree.come_back()
    wait_until(lambda: http.get("/health").status == 200, "the server to find the next tree")


def test_a_port_that_was_found_is_kept_over_a_restart(place):
    with live_tree(place / "tree", "--port", "0", "--restart") as tree:
        before = tree.url
        tree.kill("tp_worker[0.0]")
        assert f" {before} (page and API), " in tree.launcher.stdout.readline()
        tree.processes = json.loads((tree.run_dir / "tree.json").read_text())["processes"]
        assert Http(before).get("/health").status == 200
