"""A server that waits for its first weights: alive from the start, ready after them (SGLang's
--checkpoint-engine-wait-weights-before-ready)."""

from control_tree import BARD
from http_calls import Http

TREE_FLAGS = ("--wait-for-initial-weights",)


def test_alive_from_the_start_and_ready_after_the_first_complete_update(tree):
    http = Http(tree.url)
    assert http.get("/ping").status == 200
    assert http.get("/health").status == 503
    assert http.get("/health_generate").status == 503
    assert http.ok("GET", "/server_info").json()["status"] == "starting"
    assert http.get("/model_info").status == 200
    refused = http.post("/generate", {"text": "Once", "sampling_params": {"max_new_tokens": 1}})
    assert refused.status >= 400 and b"no weights" in refused.body
    assert http.post("/update_weights_from_disk", {"model_path": "/nowhere"}).status == 400
    assert http.get("/health").status == 503
    answer = http.ok("POST", "/update_weights_from_disk", {"model_path": BARD, "weight_version": "1"})
    assert answer.json()["success"]
    assert http.get("/health").status == 200
    assert http.get("/health_generate").status == 200
    assert http.ok("GET", "/server_info").json()["status"] == "ready"
    assert http.generate(max_new_tokens=4)["meta_info"]["weight_version"] == "1"
    # Released weights, unlike missing first weights, are no reason to evict a server.
    http.ok("POST", "/release_memory_occupation", {})
    assert http.get("/health").status == 200
    http.ok("POST", "/resume_memory_occupation", {})
