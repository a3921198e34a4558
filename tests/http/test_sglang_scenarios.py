"""SGLang's acceptance scenarios about generation, by their numbers."""

import json
import threading
import time

import pytest

import amid
from http_client import Http, native
from wire import DEADLINE_S

TREE_FLAGS = (
    "--max-running-requests", "4", "--max-total-tokens", "4096", "--max-queued-requests", "12",
)  # fmt: skip
PROMPT = "Once upon a time"
OPENAI = ("/v1/completions", "/v1/chat/completions")


class Background:
    """Calls in threads of their own, each of `samples` requests."""

    def __init__(self, http, bodies, paths=None, samples=1):
        self.answers = [None] * len(bodies)
        self.num_requests = samples * len(bodies)
        self.threads = [
            threading.Thread(target=self._call, args=(http, i, body, paths)) for i, body in enumerate(bodies)
        ]
        for thread in self.threads:
            thread.start()

    def __len__(self):
        return self.num_requests

    def _call(self, http, i, body, paths):
        self.answers[i] = http.post(paths[i], body) if paths else http.post("/generate", native(body))

    def join(self):
        for thread in self.threads:
            thread.join(DEADLINE_S)
        assert all(self.answers), self.answers
        return self.answers


def paused_amid(admin, begin, num_running, pause=None):
    return amid.paused_amid(admin, begin, Background.join, num_running, pause)


def long_body(**more):
    return {"text": PROMPT, "max_new_tokens": 1000, "ignore_eos": True, **more}


def test_15_an_untouched_request_has_one_span(http):
    meta = http.generate(text=PROMPT, max_new_tokens=7, ignore_eos=True)["meta_info"]
    assert meta["weight_versions"] == [{"version": "epoch 1", "start": 0, "end": 7}]
    (span,) = meta["weight_version_spans"]
    assert (span["start"], span["end"], span["epoch"]) == (0, 7, 1)
    assert (span["kv_min_epoch"], span["kv_max_epoch"]) == (1, 1) and len(span["digest"]) == 32


def test_22_spans_are_in_the_last_event_alone(http):
    body = native({"text": PROMPT, "max_new_tokens": 400, "stream": True, "ignore_eos": True})
    for _ in range(20):  # a reader that comes late gets one event
        *before, last = http.events("/generate", body)
        if before:
            break
    assert before and all("weight_versions" not in event["meta_info"] for event in before)
    assert all(event["meta_info"]["weight_version"] == "epoch 1" for event in before)
    assert last["meta_info"]["weight_versions"] == [{"version": "epoch 1", "start": 0, "end": 400}]


def test_24_openai_routes_have_the_same_spans_and_those_of_the_first_sample(http, admin, wait_for_open):
    chat = {"messages": [{"role": "user", "content": PROMPT}]}
    asked = {"max_tokens": 900, "ignore_eos": True, "n": 2, "temperature": 1.0}
    bodies = [{"prompt": PROMPT, **asked}, {**chat, **asked}]
    calls = paused_amid(admin, lambda: Background(http, bodies, OPENAI, samples=2), 4)
    admin.call("set_weight_label", label="later")
    admin.call("continue_generation")
    for answer in calls.join():
        body = answer.json
        for choice in body["choices"]:
            spans = choice["weight_versions"]
            assert [span["version"] for span in spans] == ["epoch 1", "later"]
            assert (spans[0]["start"], spans[-1]["end"]) == (0, 900)
        assert body["weight_versions"] == body["choices"][0]["weight_versions"]
        assert body["weight_version"] == "later" and body["metadata"] == {"weight_version": "later"}
    admin.call("set_weight_label", label="epoch 1")  # the label that the version had before; any label is accepted


def test_41_an_aborted_request_says_all_that_it_has(http, admin):
    body = long_body(return_logprob=True, top_logprobs_num=2)
    retract = lambda: admin.call("pause_generation", mode="retract")  # noqa: E731
    calls = paused_amid(admin, lambda: Background(http, [body for _ in range(8)]), 4, retract)
    http.post("/abort_request", {"abort_all": True})
    admin.call("continue_generation")
    num_partial = 0
    for answer in calls.join():
        meta = answer.json["meta_info"]
        assert meta["finish_reason"] == {"type": "abort", "message": "Abort in waiting queue"}
        count = meta["completion_tokens"]
        num_partial += count > 0
        assert len(answer.json["output_ids"]) == count == len(meta["output_token_logprobs"])
        assert len(meta["output_top_logprobs"]) == count
        assert bool(answer.json["text"]) == (count > 0)
        assert meta["weight_version"] == "epoch 1" and meta["e2e_latency"] > 0
        assert meta["prompt_tokens"] == 4  # better than SGLang: never left out
        assert meta["weight_versions"] == [{"version": "epoch 1", "start": 0, "end": count}]
    assert num_partial > 0


def test_an_abort_while_running_has_sglangs_shape(http, admin):
    calls = paused_amid(admin, lambda: Background(http, [long_body(rid="runs")]), 1)
    admin.call("continue_generation")
    http.post("/abort_request", {"rid": "runs"})
    (answer,) = calls.join()
    assert answer.json["meta_info"]["finish_reason"] == {
        "type": "abort", "message": "Aborted", "status_code": None, "err_type": None,
    }  # fmt: skip


def test_42_a_rid_is_used_again_but_not_twice_at_once(http, wait_for_open, paused):
    for _ in range(2):
        assert http.generate(text=PROMPT, max_new_tokens=1, rid="again")["meta_info"]["id"] == "again"
    with paused():
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


def test_43_a_queue_that_is_full_is_503_in_the_shape_of_errors(http, admin, wait_for_open):
    admin.call("pause_generation", mode="in_place")
    calls = Background(http, [{"text": PROMPT, "max_new_tokens": 1} for _ in range(12)])
    wait_for_open(12)
    for stream in (False, True):
        refused = http.post("/generate", native({"text": PROMPT, "max_new_tokens": 1, "stream": stream}))
        assert refused.status == 503, refused
        assert refused.json["object"] == "error" and refused.json["code"] == 503
        assert "--max-queued-requests" in refused.json["message"]
    admin.call("continue_generation")
    assert {answer.status for answer in calls.join()} == {200}


@pytest.mark.parametrize("key", [None, "k"])
def test_44_a_client_that_is_gone_ends_its_requests(http, front_end, admin, wait_for_open, paused, key):
    if key:
        server = front_end(env={"PITSTOP_API_KEY": key})
        http = Http(server.http.url, {"Authorization": f"Bearer {key}"})
    bodies = [{"text": [PROMPT] * 3, "sampling_params": {"max_new_tokens": 1000, "ignore_eos": True}}]
    bodies += [{**bodies[0], "stream": True}]
    for body in bodies:
        connection = http.connect()
        with paused():
            connection.request("POST", "/generate", json.dumps(body), http.headers)
            wait_for_open(3)
            connection.sock.close()
            connection.close()
            wait_for_open(0)
    (replica,) = admin.call("status")["replicas"]
    assert replica["num_running"] == replica["num_waiting"] == 0
    assert replica["pages_free"] + replica["pages_cached"] == replica["pages_total"], "a leak"


@pytest.mark.parametrize("mode", ["in_place", "retract"])
def test_49_a_pause_just_after_a_prefill_shifts_no_requests_tokens(http, admin, mode):
    """Some requests end with their prefill, others continue. Whenever the pause comes, each answer must equal the one
    without a pause."""

    def body(i):
        return {"text": f"Story {i}: {PROMPT}", "max_new_tokens": 1 + 7 * (i % 3), "temperature": 0,
                "ignore_eos": True, "return_logprob": True}  # fmt: skip

    def essence(answer):
        meta = answer["meta_info"]
        assert len(meta["output_token_logprobs"]) == meta["completion_tokens"] == len(answer["output_ids"])
        return answer["output_ids"], meta["output_token_logprobs"]

    alone = [essence(http.generate(**body(i))) for i in range(12)]
    for _ in range(6):
        calls = Background(http, [body(i) for i in range(12)])
        while any(thread.is_alive() for thread in calls.threads):
            admin.call("pause_generation", mode=mode)
            admin.call("continue_generation")
        assert [essence(answer.json) for answer in calls.join()] == alone


def test_50_a_drain_waits_until_nothing_is_open(http, admin):
    begin = time.monotonic()
    assert http.post("/drain", {"timeout": 30}).json == {"success": True, "remaining_requests": 0}
    assert time.monotonic() - begin < 15
    calls = paused_amid(admin, lambda: Background(http, [long_body() for _ in range(2)]), 2)
    late = http.post("/drain", {"timeout": 0.2})
    assert (late.status, late.json) == (200, {"success": False, "remaining_requests": 2})
    admin.call("continue_generation")
    assert http.post("/drain?timeout=110").json == {"success": True, "remaining_requests": 0}
    assert {a.json["meta_info"]["finish_reason"]["type"] for a in calls.join()} == {"length"}
    assert http.post("/drain", {"timeout": -1}).status == 400


def test_28_29_memory_goes_and_comes_back_on_one_rank(http, admin):
    """test_sglang_control.py tests the same with two ranks."""
    before = http.generate(text=PROMPT, max_new_tokens=24, temperature=0)["text"]
    for keeps in (True, False):
        assert http.post("/release_memory_occupation", {"keep_weights": keeps}).json is None
        (replica,) = admin.call("status")["replicas"]
        assert {tag["state"] for tag in replica["memory"]} == {"released"}
        assert http.post("/resume_memory_occupation", {}).json is None
        if not keeps:
            model = http.get("/server_info").json["model_path"]
            assert http.post("/update_weights_from_disk", {"model_path": model}).status == 200
        assert http.generate(text=PROMPT, max_new_tokens=24, temperature=0)["text"] == before


def test_an_abort_is_by_exact_id(http, wait_for_open, paused):
    with paused():
        calls = Background(http, [long_body(rid="req-1"), long_body(rid="req-10")])
        wait_for_open(2)
        http.post("/abort_request", {"rid": "req-1"})
        wait_for_open(1)  # SGLang would have ended both requests
        http.post("/abort_request", {"rid": "req-10"})
        assert [a.json["meta_info"]["id"] for a in calls.join()] == ["req-1", "req-10"]


def test_the_name_of_a_batch_aborts_all_of_it(http, wait_for_open, paused):
    with paused():
        calls = Background(http, [long_body(text=[PROMPT, "The"], rid="batch"), long_body(n=2, rid="samples")])
        wait_for_open(4)
        http.post("/abort_request", {"rid": "batch"})
        wait_for_open(2)
        http.post("/abort_request", {"rid": "samples"})
        answers = calls.join()
    for answer in answers:
        assert {item["meta_info"]["finish_reason"]["type"] for item in answer.json} == {"abort"}


def reasons(items):
    return [item["meta_info"]["finish_reason"]["type"] for item in items]


def test_with_samples_an_abort_of_one_prompt_ends_its_samples_alone(http, wait_for_open, paused):
    with paused():
        calls = Background(http, [long_body(text=[PROMPT, "The"], rid=["p", "q"], n=2, max_new_tokens=40)])
        wait_for_open(4)
        http.post("/abort_request", {"rid": "q"})
        wait_for_open(2)
    (answer,) = calls.join()
    assert [item["meta_info"]["id"] for item in answer.json] == ["p_0", "p_1", "q_0", "q_1"]
    assert reasons(answer.json) == ["length", "length", "abort", "abort"]


def test_one_sample_is_aborted_by_its_own_id(http, wait_for_open, paused):
    with paused():
        calls = Background(http, [long_body(rid="x", n=3, max_new_tokens=40)])
        wait_for_open(3)
        http.post("/abort_request", {"rid": "x_1"})
        wait_for_open(2)
    (answer,) = calls.join()
    assert reasons(answer.json) == ["length", "abort", "length"]
    with paused():
        calls = Background(http, [long_body(text=[PROMPT, "The"], rid="b", n=2, max_new_tokens=40)])
        wait_for_open(4)
        http.post("/abort_request", {"rid": "b_1"})
        wait_for_open(2)
        http.post("/abort_request", {"rid": "b_0_1"})
        wait_for_open(1)
    (answer,) = calls.join()
    assert reasons(answer.json) == ["length", "abort", "abort", "abort"]


@pytest.mark.parametrize("open_n", [1, 2])
@pytest.mark.parametrize("n", [1, 2, 3])
def test_with_samples_too_a_rid_in_use_is_refused(http, wait_for_open, paused, open_n, n):
    with paused():
        calls = Background(http, [long_body(rid="w", n=open_n)])
        wait_for_open(open_n)
        for body in (long_body(rid="w", n=n), long_body(text=["a", "b"], rid=["a", "w"], n=n)):
            refused = http.post("/generate", native(body))
            assert refused.status == 400 and "Duplicate request ID" in refused.message, body
            assert "'w" in refused.message
        wait_for_open(open_n)
        http.post("/abort_request", {"rid": "w"})
        wait_for_open(0)
        calls.join()
    answer = http.generate(text=PROMPT, max_new_tokens=1, rid="w", n=n)  # the request's place is free again
    assert (answer if n == 1 else answer[0])["meta_info"]["id"] == ("w" if n == 1 else "w_0")


def test_the_name_of_a_batch_in_use_is_refused(http, wait_for_open, paused):
    with paused():
        calls = Background(http, [long_body(text=[PROMPT, "The"], rid="batch")])
        wait_for_open(2)
        for body in (long_body(rid="batch"), long_body(rid="batch_1"), long_body(rid="batch", n=2)):
            assert http.post("/generate", native(body)).status == 400, body
        http.post("/abort_request", {"rid": "batch"})
        calls.join()


def test_a_prompt_named_as_a_sample_of_another_is_refused(http):
    body = native({"text": ["a", "b"], "rid": ["x", "x_1"], "n": 2, "max_new_tokens": 1})
    refused = http.post("/generate", body)
    assert refused.status == 400 and "x_1" in refused.message
    assert http.post("/generate", native({**body, "n": 1})).status == 200


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
        assert time.monotonic() - begin < DEADLINE_S / 2
    finally:
        admin.call("continue_generation")
