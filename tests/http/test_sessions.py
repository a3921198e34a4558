"""SGLang's sessions: turns that continue from each other's tokens. The expected prompts are made here, of
the ids that the answers show."""

import time

import pytest

from http_client import Http, native

TREE_FLAGS = ("--dp", "2")
PROMPT = "Once upon a time there was a little girl who lived near the forest with her mother and a dog"
GREEDY = {"max_new_tokens": 12, "temperature": 0, "ignore_eos": True}


@pytest.fixture
def session(http):
    name = http.post("/open_session", {"capacity_of_str_len": 1000}).json
    yield name
    http.post("/close_session", {"session_id": name})


def turn(http, session, text=None, *, ids=None, after=None, **more):
    """A turn's answer. `more`: other members of session_params; sampling parameters and fields of /generate."""
    names = ("offset", "replace", "drop_previous_output")
    params = {"id": session, "rid": after, **{name: more.pop(name) for name in names if name in more}}
    prompt = {"text": text} if ids is None else {"input_ids": ids}
    return http.generate(**{**prompt, **GREEDY, "session_params": params, "return_prompt_token_ids": True, **more})


def rid_of(answer):
    return answer["meta_info"]["id"]


def tokens_of(answer):
    return answer["prompt_token_ids"] + answer["output_ids"]


def encoded(http, text):
    return http.post("/tokenize", {"prompt": text, "add_special_tokens": False}).json["tokens"]


def test_a_turn_has_the_answer_of_the_whole_prompt(http, session):
    first = turn(http, session, PROMPT)
    second = turn(http, session, " The dog", after=rid_of(first))
    third = turn(http, session, ids=[300, 301], after=rid_of(second))
    assert second["prompt_token_ids"] == tokens_of(first) + encoded(http, " The dog")
    assert third["prompt_token_ids"] == tokens_of(second) + [300, 301]
    for answer in (first, second, third):
        alone = http.generate(input_ids=answer["prompt_token_ids"], **GREEDY)
        assert alone["output_ids"] == answer["output_ids"] and alone["text"] == answer["text"]
        assert answer["meta_info"]["prompt_tokens"] == len(answer["prompt_token_ids"])
    meta = third["meta_info"]
    assert meta["session_tokens"] == len(tokens_of(second))
    # At most 15 tokens of an incomplete page, and the last token.
    assert meta["recomputed_tokens"] == meta["session_tokens"] - meta["cached_tokens"] < 17
    assert meta["stale_tokens"] == 0


def test_a_turn_may_be_streamed_and_scored(http, session):
    first = turn(http, session, PROMPT)
    params = {"id": session, "rid": rid_of(first)}
    body = native({"text": " The", **GREEDY, "session_params": params, "stream": True, "return_logprob": True,
                   "logprob_start_len": 0})  # fmt: skip
    *_, last = http.events("/generate", body)
    whole = tokens_of(first) + encoded(http, " The")
    assert [each[1] for each in last["meta_info"]["input_token_logprobs"]] == whole
    alone = http.generate(input_ids=whole, **GREEDY, return_logprob=True, logprob_start_len=0)["meta_info"]
    assert last["meta_info"]["input_token_logprobs"] == alone["input_token_logprobs"]


def test_history_is_cut_as_sglang_cuts_it(http, session):
    first = turn(http, session, PROMPT)
    second = turn(http, session, " The dog", after=rid_of(first))
    ids = tokens_of(second)
    dropped = turn(http, session, ids=[300], after=rid_of(second), drop_previous_output=True)
    assert dropped["prompt_token_ids"] == second["prompt_token_ids"] + [300]
    for offset in (5, 1, 10_000, -2):
        cut = turn(http, session, ids=[300], after=rid_of(second), offset=offset)
        assert cut["prompt_token_ids"] == ids[:offset] + [300]
        assert cut["meta_info"]["session_tokens"] == len(ids[:offset])
    whole = turn(http, session, ids=[300], after=rid_of(second), offset=0)
    assert whole["prompt_token_ids"] == ids + [300]
    # Branches: an earlier turn is continued once more, and a turn without a rid begins anew.
    again = turn(http, session, ids=[301], after=rid_of(first))
    assert again["prompt_token_ids"] == tokens_of(first) + [301]
    anew = turn(http, session, ids=[302, 303])
    assert anew["prompt_token_ids"] == [302, 303] and anew["meta_info"]["session_tokens"] == 0


def refused(http, session, word, **more):
    params = {"id": session, **more}
    answer = http.post("/generate", {"text": "a", "session_params": params})
    assert answer.status == 400 and word in answer.message, answer


def test_replace_drops_what_followed(http, session):
    first = turn(http, session, PROMPT, rid="s-first")
    second = turn(http, session, " The", after="s-first", rid="s-second")
    third = turn(http, session, ids=[300], after="s-first", replace=True)
    assert third["prompt_token_ids"] == tokens_of(first) + [300]
    refused(http, session, "s-second", rid=rid_of(second))
    turn(http, session, ids=[301], replace=True, rid="s-root")
    refused(http, session, "s-first", rid="s-first")


def test_samples_of_a_turn_can_each_be_continued(http, session):
    first = turn(http, session, PROMPT)
    samples = turn(http, session, " The", after=rid_of(first), n=3, temperature=1.2, sampling_seed=4)
    assert len({tuple(each["output_ids"]) for each in samples}) == 3
    for each in samples:
        assert turn(http, session, ids=[300], after=rid_of(each))["prompt_token_ids"] == tokens_of(each) + [300]


def test_turns_stay_on_one_replica(http):
    for rank in (0, 1):
        name = http.post("/open_session", {"capacity_of_str_len": 10}).json
        answer = turn(http, name, ids=[300 + rank], routed_dp_rank=rank)
        for _ in range(3):
            answer = turn(http, name, ids=[310], after=rid_of(answer))
            assert answer["meta_info"]["dp_rank"] == rank
        assert http.post("/close_session", {"session_id": name}).status == 200


def test_sessions_are_opened_and_closed_as_sglang_does(http):
    name = http.post("/open_session", {"capacity_of_str_len": 10, "session_id": "mine", "timeout": 60}).json
    assert name == "mine"
    again = http.post("/open_session", {"capacity_of_str_len": 10, "session_id": "mine"})
    assert again.status == 400 and "mine" in again.message
    closed = http.post("/close_session", {"session_id": "mine"})
    assert closed.status == 200 and closed.body == b""
    refused(http, "mine", "it was closed")
    assert http.post("/close_session", {"session_id": "never"}).status == 200
    refused(http, "never", "no conversation 'never'")
    for body, word in (
        ({}, "capacity_of_str_len"),
        ({"capacity_of_str_len": 1, "timeout": -1}, "timeout"),
        ({"capacity_of_str_len": 1, "session_id": "x" * 300}, "300"),
    ):
        answer = http.post("/open_session", body)
        assert answer.status == 400 and word in answer.message, answer


def test_wrong_turns_are_refused_by_name(http, session):
    refused(http, session, "no turn 'x'", rid="x")
    refused(http, session, "sequel", sequel=1)
    refused(http, session, "offset", offset="a")
    both = http.post("/generate", {"text": "a", "session_id": "other", "session_params": {"id": session}})
    assert both.status == 400 and "session_id" in both.message
    n = http.post(
        "/generate", {"text": "a", "sampling_params": {"n": 2}, "session_params": {"id": session, "replace": True}}
    )
    assert n.status == 400 and "replace" in n.message
    other = http.post("/v1/completions", {"prompt": "a", "session_params": {"id": session}})
    assert other.status == 400 and "/generate" in other.message
    assert http.generate(text="a", session_params={"id": None}, max_new_tokens=1)["output_ids"]


def test_a_turn_of_a_running_turn_waits_or_replaces_it(http, session):
    stream = http.events("/generate", native({"text": PROMPT, "max_new_tokens": 900, "ignore_eos": True, "stream": True,
                                              "rid": "s-running", "session_params": {"id": session}}))  # fmt: skip
    next(stream)
    refused(http, session, "has not ended", rid="s-running")
    after = turn(http, session, ids=[300], after="s-running", replace=True)
    *_, last = stream
    assert last["meta_info"]["finish_reason"]["type"] == "abort"
    output = last["output_ids"]
    so_far = after["prompt_token_ids"][:-1]
    assert so_far[-1] in output and len(so_far) <= last["meta_info"]["prompt_tokens"] + len(output)


def test_an_idle_session_ends(http):
    name = http.post("/open_session", {"capacity_of_str_len": 1, "timeout": 0.05}).json
    turn(http, name, ids=[300])
    deadline = time.monotonic() + 20
    while True:
        answer = http.post("/generate", {"text": "a", "session_params": {"id": name, "rid": "none"}})
        if "has ended: it was idle" in answer.message:
            break
        assert time.monotonic() < deadline, answer
    assert answer.status == 400


def test_turns_cost_their_new_tokens(tree):
    """Each of an agent's ten turns computes its own tokens, the previous turn's last token, and a part of a page."""
    http = Http(tree.url)
    name = http.post("/open_session", {"capacity_of_str_len": 1}).json
    answer, computed, new = None, 0, 0
    for index in range(10):
        own = [400 + index] * 40
        answer = turn(http, name, ids=own, after=answer and rid_of(answer))
        meta = answer["meta_info"]
        computed += meta["prompt_tokens"] - meta["cached_tokens"]
        new += len(own)
    assert computed <= new + 10 * 17, (computed, new)
    http.post("/close_session", {"session_id": name})
