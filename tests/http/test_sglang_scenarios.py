"""The acceptance scenarios of SGLang's interface that are about generating, by their numbers."""

import json
import threading
import time

import pytest

from http_client import native
from process_tree import wait_until

TREE_FLAGS = ("--max-running-requests", "4", "--max-total-tokens", "4096")
PROMPT = "Once upon a time"


class Background:
    """Calls in threads of their own."""

    def __init__(self, http, bodies):
        self.answers = [None] * len(bodies)
        self.threads = [
            threading.Thread(target=self._call, args=(http, i, body))
            for i, body in enumerate(bodies)
        ]
        for thread in self.threads:
            thread.start()

    def _call(self, http, i, body):
        self.answers[i] = http.post("/generate", native(body))

    def join(self):
        for thread in self.threads:
            thread.join(60)
        assert all(self.answers), self.answers
        return self.answers


def long_body(**more):
    return {"text": PROMPT, "max_new_tokens": 1000, "ignore_eos": True, **more}


def test_15_an_untouched_request_has_one_span(http):
    meta = http.generate(text=PROMPT, max_new_tokens=7, ignore_eos=True)["meta_info"]
    assert meta["weight_versions"] == [{"version": "default", "start": 0, "end": 7}]
    (span,) = meta["weight_version_spans"]
    assert (span["start"], span["end"], span["epoch"]) == (0, 7, 1)
    assert (span["kv_min_epoch"], span["kv_max_epoch"]) == (1, 1) and len(span["digest"]) == 32


def test_22_spans_are_in_the_last_event_alone(http):
    body = native({"text": PROMPT, "max_new_tokens": 400, "stream": True, "ignore_eos": True})
    *before, last = http.events("/generate", body)
    assert before and all("weight_versions" not in event["meta_info"] for event in before)
    assert all(event["meta_info"]["weight_version"] == "default" for event in before)
    assert last["meta_info"]["weight_versions"] == [{"version": "default", "start": 0, "end": 400}]


def test_40_abort_all_ends_every_request_with_type_abort(http, wait_for_open):
    calls = Background(http, [long_body() for _ in range(12)])  # four run, eight wait
    wait_for_open(12)
    assert http.post("/abort_request", {"abort_all": True}).status == 200
    for answer in calls.join():
        assert answer.status == 200
        assert answer.json["meta_info"]["finish_reason"]["type"] == "abort"


def test_41_an_aborted_request_says_all_that_it_has(http, admin, wait_for_open):
    body = long_body(return_logprob=True, top_logprobs_num=2)
    calls = Background(http, [body for _ in range(8)])
    wait_for_open(8)
    wait_until(
        lambda: admin.call("status")["replicas"][0]["output_tokens_total"] > 0, "the first tokens"
    )
    admin.call("pause_generation", mode="retract")
    http.post("/abort_request", {"abort_all": True})
    admin.call("continue_generation")
    num_partial = 0
    for answer in calls.join():
        meta = answer.json["meta_info"]
        assert meta["finish_reason"]["type"] == "abort"
        count = meta["completion_tokens"]
        num_partial += count > 0
        assert len(answer.json["output_ids"]) == count == len(meta["output_token_logprobs"])
        assert len(meta["output_top_logprobs"]) == count
        assert bool(answer.json["text"]) == (count > 0)
        assert meta["weight_version"] == "default" and meta["e2e_latency"] > 0
        assert meta["prompt_tokens"] == 4 or count == 0  # better than SGLang: never left out
        assert meta["weight_versions"] == [{"version": "default", "start": 0, "end": count}]
    assert num_partial > 0


def test_42_a_rid_is_used_again_but_not_twice_at_once(http, wait_for_open):
    for _ in range(2):
        assert http.generate(text=PROMPT, max_new_tokens=1, rid="again")["meta_info"]["id"] == "again"
    calls = Background(http, [long_body(rid="twice")])
    wait_for_open(1)
    refused = http.post("/generate", native(long_body(rid="twice")))
    assert refused.status == 400 and "Duplicate request ID" in refused.message
    http.post("/abort_request", {"rid": "twice"})
    (answer,) = calls.join()
    assert answer.json["meta_info"]["finish_reason"]["type"] == "abort"
    within = http.post("/generate", {"text": ["a", "b"], "rid": ["same", "same"]})
    assert within.status == 400
    assert "Duplicate request IDs detected within the request" in within.message
    assert http.get("/health_generate").status == 200


def test_44_a_client_that_is_gone_ends_its_requests(http, wait_for_open):
    bodies = [{"text": [PROMPT] * 3, "sampling_params": {"max_new_tokens": 1000, "ignore_eos": True}}]
    bodies += [{**bodies[0], "stream": True}]
    for body in bodies:
        connection = http.connect()
        connection.request("POST", "/generate", json.dumps(body))
        wait_for_open(3)
        connection.sock.close()
        connection.close()
        wait_for_open(0)


def test_an_abort_is_by_exact_id(http, wait_for_open):
    calls = Background(http, [long_body(rid="req-1"), long_body(rid="req-10")])
    wait_for_open(2)
    http.post("/abort_request", {"rid": "req-1"})
    wait_for_open(1)  # SGLang would have ended both
    http.post("/abort_request", {"rid": "req-10"})
    assert [a.json["meta_info"]["id"] for a in calls.join()] == ["req-1", "req-10"]


def test_the_name_of_a_batch_aborts_all_of_it(http, wait_for_open):
    calls = Background(http, [long_body(text=[PROMPT, "The"], rid="batch"), long_body(n=2, rid="samples")])
    wait_for_open(4)
    http.post("/abort_request", {"rid": "batch"})
    wait_for_open(2)
    http.post("/abort_request", {"rid": "samples"})
    for answer in calls.join():
        assert {item["meta_info"]["finish_reason"]["type"] for item in answer.json} == {"abort"}


def test_an_abort_of_nobody_is_200_and_empty(http):
    answer = http.post("/abort_request", {"rid": "nobody"})
    assert (answer.status, answer.body) == (200, b"")
    assert http.post("/abort_request", {"rid": ""}).status == 200


@pytest.mark.parametrize("mode", ["in_place", "retract"])
def test_health_is_200_while_paused(http, admin, mode):
    admin.call("pause_generation", mode=mode)
    try:
        begin = time.monotonic()
        assert http.get("/health").status == 200
        assert http.get("/health_generate").status == 200
        assert time.monotonic() - begin < 5
    finally:
        admin.call("continue_generation")
