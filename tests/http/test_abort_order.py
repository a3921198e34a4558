"""An abort ends the requests that came before it. Requests go to the tree through the data door,
aborts through the admin door, and neither door may overtake the other. A request that the server
has read before an abort never runs on.
"""

import json

import pytest

from http_client import native

LONG = 600
NUM_PAIRS = 200
DOORS = "tokenizer_proc"


@pytest.fixture(autouse=True)
def paused(http):
    """Pauses generation, so that no request ends before its abort, however late the abort comes."""
    assert http.post("/pause_generation", {"mode": "in_place"}).status == 200
    yield
    assert http.post("/continue_generation").status == 200


class Line:
    """A kept connection: one call after another, each sent and read separately."""

    def __init__(self, http):
        self.connection = http.connect()

    def send(self, path, body):
        self.connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        return self

    def read(self):
        answer = self.connection.getresponse()
        body = answer.read()
        assert answer.status == 200, (answer.status, body)
        return json.loads(body) if body else None


def body_of(rid, **more):
    return native({"input_ids": [1, 2, 3], "rid": rid, "max_new_tokens": LONG, "ignore_eos": True, **more})


def end_of(output):
    return output["meta_info"]["finish_reason"]["type"]


def was_read(http):
    """Returns when the server has read everything that arrived before: the server looks at its connections in the order
    of arrival."""
    for _ in range(2):
        assert http.get("/ping").status == 200


def test_an_abort_right_behind_its_request_ends_it_or_came_first(http):
    """vLLM's route answers with the number of aborted requests. While it is 0 the request has not arrived, and the next
    abort must end it."""
    requests, aborts = Line(http), Line(http)
    for i in range(NUM_PAIRS):
        requests.send("/generate", body_of(f"pair-{i}"))
        abort = {"request_ids": [f"pair-{i}"]}
        if aborts.send("/abort_requests", abort).read()["aborted"] == 0:
            was_read(http)
            assert aborts.send("/abort_requests", abort).read()["aborted"] == 1
        assert end_of(requests.read()) == "abort"


@pytest.mark.parametrize("abort", ({"rid": "read"}, {"abort_all": True}))
def test_an_abort_of_a_request_that_was_read_ends_it(http, abort):
    requests, aborts = Line(http), Line(http)
    for i in range(NUM_PAIRS):
        requests.send("/generate", body_of("read"))
        was_read(http)
        aborts.send("/abort_request", abort).read()
        assert end_of(requests.read()) == "abort", i


ABORTS = (
    ("/abort_request", {"rid": "held"}),
    ("/abort_request", {"abort_all": True}),
    ("/abort_requests", {"request_ids": ["held"]}),
    ("/abort_requests", {}),
    ("/inference/v1/abort_requests", {"request_ids": ["held"]}),
    ("/pause_generation", {"mode": "abort"}),
    ("/pause", {"mode": "abort"}),
    ("/update_weight_version", {"new_version": "x", "abort_all_requests": True}),
)
# Some fields about a request's prompt make the server ask the tree before it sends the request.
FIELDS = ({}, {"return_prompt_token_ids": True}, {"return_logprob": True, "logprob_start_len": 0})


@pytest.mark.parametrize("fields", FIELDS, ids=("plain", "prompt_ids", "prompt_logprobs"))
@pytest.mark.parametrize("path, body", ABORTS, ids=lambda value: str(value))
@pytest.mark.parametrize("process", (DOORS, "scheduler_proc[0]"))
def test_no_process_on_the_way_lets_an_abort_overtake(tree, http, process, path, body, fields):
    request, control = Line(http), Line(http)
    with tree.frozen(process):
        prompt = {"text": "Once", "input_ids": None} if fields else {}
        request.send("/generate", body_of("held", **fields, **prompt))
        was_read(http)
        control.send(path, body)
        was_read(http)
    control.read()
    assert end_of(request.read()) == "abort"


def test_an_abort_reaches_what_the_tree_has_read_of_another_front_end(tree, http, front_end):
    """Messages of two front ends have no order before the doors have read them. An abort ends the requests that the
    doors have read."""
    other = front_end().http
    request, aborts = Line(other), Line(http)
    for body in ({"rid": "held"}, {"abort_all": True}):
        with tree.frozen("scheduler_proc[0]"):
            request.send("/generate", body_of("held"))
            was_read(other)
            # The data door answers this call after it has read the request.
            assert other.post("/tokenize", {"prompt": "Once"}).status == 200
            aborts.send("/abort_request", body)
            was_read(http)
        aborts.read()
        assert end_of(request.read()) == "abort", body


ALL_OF_IT = {"max_tokens": LONG, "ignore_eos": True}


@pytest.mark.parametrize(
    "path, fields",
    (
        ("/v1/completions", {"prompt": "Once", "return_token_ids": True, **ALL_OF_IT}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Once"}], **ALL_OF_IT}),
        ("/inference/v1/generate", {"token_ids": [1, 2], "sampling_params": ALL_OF_IT}),
    ),
)
def test_an_answer_is_aborted_by_its_name_from_the_moment_it_was_read(tree, http, path, fields):
    request, aborts = Line(http), Line(http)
    with tree.frozen(DOORS):
        request.send(path, {"request_id": "named", **fields})
        was_read(http)
        aborts.send("/abort_requests", {"request_ids": ["named"]})
        was_read(http)
    assert aborts.read()["aborted"] == 1
    assert request.read()["choices"][0]["finish_reason"] == "abort"


def test_an_abort_does_not_wait_for_a_request_that_was_refused(tree, http):
    """The refused request ended during its preparation, so the abort must not wait for it."""
    request, aborts = http.connect(), Line(http)
    with tree.frozen(DOORS):
        body = body_of("wrong", text="Once", input_ids=None, return_logprob=True, logprob_start_len=99)
        request.request("POST", "/generate", json.dumps(body))
        was_read(http)
        aborts.send("/abort_requests", {"request_ids": ["wrong"]})
        was_read(http)
    assert request.getresponse().status == 400
    assert aborts.read()["aborted"] == 0


def test_an_abort_does_not_wait_for_a_client_that_left(tree, http, wait_for_open):
    request, aborts = http.connect(), Line(http)
    with tree.frozen(DOORS):
        request.request("POST", "/generate", json.dumps(body_of("left", return_prompt_token_ids=True)))
        was_read(http)
        aborts.send("/abort_request", {"rid": "left"})
        was_read(http)
        request.close()
        was_read(http)
    aborts.read()
    wait_for_open(0)
