"""Fields that decide where, when and on which weights a request runs, under every dialect's names. Two replicas run one
request at a time each."""

import json
import threading

import pytest

from amid import turns
from control_tree import BARD, STORIES
from process_tree import wait_until

TREE_FLAGS = ("--dp", 2, "--max-running-requests", 1)
PROMPT = list(range(5, 205))
PATHS = ("/generate", "/v1/completions", "/v1/chat/completions", "/inference/v1/generate")


def body_of(path, prompt=PROMPT, max_tokens=2, sampling=None, **fields):
    """The same request through any route: greedy, to its last token."""
    names = {"temperature": 0, "ignore_eos": True, **(sampling or {})}
    if path == "/generate":
        return {"input_ids": prompt, "sampling_params": {"max_new_tokens": max_tokens, **names}, **fields}
    if path == "/inference/v1/generate":
        return {"token_ids": prompt, "sampling_params": {"max_tokens": max_tokens, **names}, **fields}
    key = "prompt" if path == "/v1/completions" else "input_ids"
    return {key: prompt, "max_tokens": max_tokens, **names, **fields}


def cached_tokens(answer):
    assert answer.status == 200, answer
    if "usage" in answer.json:
        return answer.json["usage"]["prompt_tokens_details"]["cached_tokens"]
    return answer.json["meta_info"]["cached_tokens"]


def requests_by_replica(admin):
    return [replica["requests_total"] for replica in admin.call("status")["replicas"]]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", ("routed_dp_rank", "data_parallel_rank"))
def test_a_request_runs_on_the_replica_it_names(http, admin, path, name):
    before = requests_by_replica(admin)
    for rank in (1, 1, 0, 1):
        assert http.post(path, body_of(path, **{name: rank})).status == 200
    assert [b - a for a, b in zip(before, requests_by_replica(admin))] == [1, 3]
    refused = http.post(path, body_of(path, **{name: 2}))
    assert refused.status == 400 and "replica" in refused.message


def test_vllm_routers_header_names_the_replica(http, admin):
    path = "/inference/v1/generate"
    before = requests_by_replica(admin)
    for _ in range(3):
        assert http.post(path, body_of(path), headers={"X-data-parallel-rank": "1"}).status == 200
    assert [b - a for a, b in zip(before, requests_by_replica(admin))] == [0, 3]


@pytest.mark.parametrize("path", PATHS)
def test_the_more_urgent_request_runs_first(http, admin, path):
    """Larger runs first; on vLLM's own route lower runs first, as in vLLM."""
    order, threads = [], []
    # Both replicas are kept busy, so that all requests are queued before the first of them runs.
    admin.call("pause_generation", mode="in_place")

    def call(priority):
        body = body_of(path, max_tokens=300, priority=priority, routed_dp_rank=0)
        assert http.post(path, body).status == 200
        order.append(priority)

    for priority in (1, 9, 5):
        threads.append(threading.Thread(target=call, args=(priority,)))
        threads[-1].start()
        wait_until(lambda: admin.call("status")["open_requests"] == len(threads), "it to be queued")
    for num in (1, 2, 3):  # one answer at a time, as threads that wake together append in any order
        turns(admin, lambda: admin.call("status")["open_requests"] <= 3 - num, "a request to end")
        wait_until(lambda: len(order) >= num, "its answer")
    admin.call("continue_generation")
    for thread in threads:
        thread.join()
    assert order == ([1, 5, 9] if path == "/inference/v1/generate" else [9, 5, 1])


@pytest.mark.parametrize("path", PATHS)
def test_26_a_prefix_of_older_weights_is_shared_by_those_that_tolerate_it_and_by_no_other_replica(http, admin, path):
    """SGLang's scenario: the answer reports how much of the prompt's cached KV is of older weights; a flush removes it."""
    http.post("/update_weights_from_disk", {"model_path": STORIES})
    http.post("/flush_cache")

    def ask(rank=0, **fields):
        return http.post(path, body_of(path, routed_dp_rank=rank, **fields))

    assert cached_tokens(ask()) == 0
    assert cached_tokens(ask()) >= 150
    update = {"model_path": BARD, "flush_cache": False, "weight_version": "26"}
    assert http.post("/update_weights_from_disk", update).status == 200
    epoch = http.get("/weight_version").json["weight_epoch"]
    for fields in ({"kv_tolerance": "keep"}, {"kv_tolerance": "max_lag", "kv_max_lag": 1}):
        stale = ask(**fields)
        assert cached_tokens(stale) >= 150
        if path == "/generate":
            (span,) = stale.json["meta_info"]["weight_version_spans"]
            assert (span["kv_min_epoch"], span["kv_max_epoch"]) == (epoch - 1, epoch)
    assert cached_tokens(ask(rank=1, kv_tolerance="keep")) == 0
    assert cached_tokens(ask(kv_tolerance="max_lag", kv_max_lag=0)) == 0
    assert http.post("/flush_cache").status == 200
    assert cached_tokens(ask(kv_tolerance="keep")) == 0
    for wrong in ({"kv_tolerance": "some"}, {"kv_tolerance": "max_lag", "kv_max_lag": -1}):
        assert ask(**wrong).status == 400, wrong


@pytest.mark.parametrize("path", ("/v1/completions", "/inference/v1/generate"))
def test_logprobs_of_tokens_that_were_asked_for(http, path):
    sampling = {"logprobs": 0, "logprob_token_ids": [7, 11]}
    choice = http.post(path, body_of(path, sampling=sampling)).json["choices"][0]
    native = {"return_logprob": True, "token_ids_logprob": [7, 11], "logprobs_mode": "raw"}
    meta = http.post("/generate", body_of("/generate", **native)).json["meta_info"]
    wanted = [[entry[0] for entry in entries] for entries in meta["output_token_ids_logprobs"]]
    if path == "/v1/completions":
        got = [sorted(top.values()) for top in choice["logprobs"]["top_logprobs"]]
        assert all(set(w) <= set(g) for w, g in zip(wanted, got))
    else:
        got = [
            {top["token_id"]: top["logprob"] for top in entry["top_logprobs"]}
            for entry in choice["logprobs"]["content"]
        ]
        assert [[g[7], g[11]] for g in got] == wanted


@pytest.mark.parametrize("path", PATHS[1:])
def test_usage_is_told_with_every_event_where_it_is_asked_for(http, path):
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = body_of(path, max_tokens=9, stream=True, stream_options=options)
    *events, last = http.events(path, body)
    counts = [event["usage"]["completion_tokens"] for event in events]
    assert counts == sorted(counts) and counts[-1] == 9
    assert last["choices"] == [] and last["usage"]["completion_tokens"] == 9


def test_an_update_may_say_what_must_result_and_how_it_is_made(http):
    digest = http.get("/weight_version").json["weight_digest"]
    wrong = http.post("/update_weights_from_disk", {"model_path": BARD, "digest": "0" * 32})
    assert wrong.status == 400 and wrong.json["success"] is False
    assert http.get("/weight_version").json["weight_digest"] == digest
    for mode in ("staged", "direct"):
        body = {"model_path": STORIES, "update_mode": mode, "kv_policy": "drain"}
        answer = http.post("/update_weights_from_disk", body)
        assert answer.status == 200, answer
        assert answer.json["weight_digest"] == http.get("/weight_version").json["weight_digest"]
    assert http.post("/update_weights_from_disk", {"model_path": BARD, "update_mode": "x"}).status == 400


@pytest.mark.parametrize("path", PATHS[1:])
def test_the_callers_name_for_an_answer_aborts_it_by_vllms_route(http, admin, paused, path):
    """The route accepts the id with the prefix that it has in an answer, and without."""
    prefix = {"/v1/completions": "cmpl-", "/v1/chat/completions": "chatcmpl-"}.get(path, "generate-tokens-")
    for name in (prefix + "mine", "mine"):
        got = []

        def call():
            got.append(http.post(path, body_of(path, max_tokens=800), headers={"X-Request-Id": "mine"}))

        thread = threading.Thread(target=call)
        with paused():
            thread.start()
            wait_until(lambda: admin.call("status")["open_requests"] == 1, "it to be open")
            answer = http.post("/abort_requests", {"request_ids": [name, "nobody"]})
            assert answer.json == {"status": "aborted", "aborted": 1}
            thread.join()
        assert got[0].json["choices"][0]["finish_reason"] == "abort"
        assert got[0].json["id" if path.startswith("/v1") else "request_id"] == prefix + "mine"
    assert json.loads(http.post("/abort_requests", {"request_ids": ["mine"]}).body)["aborted"] == 0


ABSENT = {
    "truncate_prompt_tokens": 5,
    "prompt_embeds": "AA==",
    "thinking_token_budget": 7,
    "max_thinking_tokens": 0,
    "sampling_logprobs_mode": "raw",
    "lora_request": {"name": "a"},
    "return_routed_experts": True,
    "return_hidden_states": True,
    "guided_regex": "a*",
    "kv_transfer_params": {"do_remote_prefill": True},
    "bootstrap_room": 7,
    "function_call": "auto",
    "repetition_detection": {"max_pattern_size": 3, "min_count": 3},
    "require_reasoning": True,
    "background": True,
    "web_search_options": {"search_context_size": "low"},
    "audio": {"voice": "alloy", "format": "wav"},
    "modalities": ["text", "audio"],
    "guided_json": {"type": "object"},
    "verbosity": "low",
    "include_reasoning": False,
    "moderation": {"model": "m"},
    "watermark": {"key": 1},
    "watermarking": True,
    "beam_width": 2,
    "flat_logprobs": True,
    "prompt_logprob_token_ids": [5],
    "prompt_logprob_start": 3,
    "return_flat_raw_output_top_logprobs": True,
    "return_cached_tokens_details": True,
    "return_spec_tokens_details": True,
    "return_input_ids_in_sglext": True,
    "return_output_ids_in_sglext": True,
    "lora_id": "a",
    "positional_embed_overrides": [[1]],
    "multi_item_delimiter_indices": [1],
    "token_indices_to_pool": [1],
    "ec_transfer_params": {"do_remote_encode": True},
    "bootstrap_port": 8998,
    "bootstrap_pair_key": "a",
    "decode_tp_size": 2,
    "disagg_prefill_dp_rank": 1,
}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", ABSENT)
def test_a_field_that_is_not_served_is_refused_by_name_in_every_dialect(http, path, name):
    refused = http.post(path, body_of(path, **{name: ABSENT[name]}))
    assert refused.status == 400 and name in refused.message, refused
    if path == "/inference/v1/generate" and name in ("prompt_logprob_token_ids", "prompt_logprob_start"):
        return  # their place is in sampling_params
    inside = http.post(path, body_of(path, sampling={name: ABSENT[name]}))
    assert inside.status == 400 and name in inside.message, inside
    assert http.post(path, body_of(path, **{name: None})).status == 200


@pytest.mark.parametrize("path", PATHS)
def test_an_adapter_that_is_not_loaded_is_refused_by_name_in_every_dialect(http, path):
    refused = http.post(path, body_of(path, lora_path="a"))
    assert refused.status == (400 if path == "/generate" else 404) and "no adapter 'a' is loaded" in refused.message, (
        refused
    )
    wrong = http.post(path, body_of(path, lora_path=7))
    assert wrong.status == 400 and "lora_path" in wrong.message, wrong
    if "sampling_params" in body_of(path):
        inside = http.post(path, body_of(path, sampling={"lora_path": "a"}))
        assert inside.status == 400 and "lora_path" in inside.message, inside
    assert http.post(path, body_of(path, lora_path=None)).status == 200


AGENTS_BODIES = {
    "/v1/responses": {"input": "Once", "max_output_tokens": 2},
    "/v1/messages": {"messages": [{"role": "user", "content": "Once"}], "max_tokens": 2},
}


@pytest.mark.parametrize("path", AGENTS_BODIES)
def test_a_field_that_is_not_served_is_refused_by_name_by_the_routes_of_agents(http, path):
    for name, value in ABSENT.items():
        refused = http.post(path, {**AGENTS_BODIES[path], name: value})
        assert refused.status == 400 and name in refused.message, refused
        assert http.post(path, {**AGENTS_BODIES[path], name: None}).status == 200


@pytest.mark.parametrize("path", AGENTS_BODIES)
def test_agents_requests_run_on_the_replica_they_name(http, admin, path):
    before = requests_by_replica(admin)
    for rank in (1, 1, 0, 1):
        assert http.post(path, {**AGENTS_BODIES[path], "routed_dp_rank": rank}).status == 200
    assert [b - a for a, b in zip(before, requests_by_replica(admin))] == [1, 3]


@pytest.mark.parametrize("path", PATHS)
def test_fields_that_ask_for_what_is_done_anyhow_are_taken(http, path):
    for fields in (
        {"modalities": ["text"], "background": False, "response_format": {"type": "text"}},
        {"verbosity": "medium", "include_reasoning": True, "separate_reasoning": True},
        {"session_id": "a conversation", "cache_salt": "a", "extra_key": "b", "routing_key": "c"},
    ):
        assert http.post(path, body_of(path, **fields)).status == 200, fields


@pytest.mark.parametrize("path", ("/generate", "/inference/v1/generate"))
@pytest.mark.parametrize(
    "name, value",
    [("temperature", 0.5), ("top_p", 0.5), ("n", 2), ("seed", 1), ("max_tokens", 5), ("max_new_tokens", 5),
     ("stop", "a"), ("logit_bias", {"5": 1}), ("skip_special_tokens", False), ("bad_words", ["a"])],
)  # fmt: skip
def test_sampling_parameters_beside_their_object_are_refused_by_name(http, path, name, value):
    """SGLang and vLLM ignore such parameters without an error, and sample in another way than the caller expects."""
    refused = http.post(path, {**body_of(path), name: value})
    assert refused.status == 400 and name in refused.message and "sampling_params" in refused.message, refused
    assert http.post(path, {**body_of(path), name: None}).status == 200


@pytest.mark.parametrize("path", PATHS)
def test_meta_info_comes_by_sglangs_route_alone(http, path):
    answer = http.post(path, body_of(path, return_meta_info=True))
    if path == "/generate":
        assert answer.status == 200 and "meta_info" in answer.json
    else:
        assert answer.status == 400 and "return_meta_info" in answer.message


@pytest.mark.parametrize("path", PATHS)
def test_the_prompts_tokens_alone_are_shown_where_asked_for(http, path):
    answer = http.post(path, body_of(path, return_prompt_token_ids=True)).json
    shown = answer["choices"][0] if path == "/v1/completions" else answer
    assert shown["prompt_token_ids"] == PROMPT
    if path.startswith("/v1"):
        assert "token_ids" not in answer["choices"][0]


@pytest.mark.parametrize(
    "path, fields",
    (
        ("/v1/completions", {"prompt": "Once", "add_special_tokens": False}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "?"}], "add_special_tokens": True}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "?"}], "echo": True}),
    ),
)
def test_fields_that_would_change_the_prompt_or_the_answer_are_refused_by_name(http, path, fields):
    refused = http.post(path, {"max_tokens": 1, **fields})
    assert refused.status == 400 and list(fields)[-1] in refused.message, refused
    taken = dict(list(fields.items())[:-1])
    assert http.post(path, {"max_tokens": 1, **taken}).status == 200


@pytest.mark.parametrize(
    "path, name, wrong",
    (
        ("/v1/completions", "max_tokens", {"max_tokens": -1}),
        ("/v1/completions", "min_tokens", {"max_tokens": 2, "min_tokens": 3}),
        ("/v1/completions", "prompt", {"prompt": ""}),
        ("/v1/completions", "prompt", {"prompt": [[5], []]}),
        ("/v1/chat/completions", "max_completion_tokens", {"max_completion_tokens": -1}),
        ("/v1/chat/completions", "min_tokens", {"min_tokens": -1}),
        ("/inference/v1/generate", "max_tokens", {"sampling_params": {"max_tokens": -1}}),
        ("/v1/responses", "max_output_tokens", {"max_output_tokens": -1}),
        ("/v1/messages", "max_tokens", {"max_tokens": -1}),
    ),
)
def test_a_wrong_field_has_the_name_that_the_caller_gave_it(http, path, name, wrong):
    refused = http.post(path, {**(AGENTS_BODIES.get(path) or body_of(path)), **wrong})
    assert refused.status == 400 and name in refused.message and "new_tokens" not in refused.message, refused


@pytest.mark.parametrize("path", ("/v1/tokenize", "/v1/detokenize"))
def test_tokenizing_has_its_other_name(http, path):
    body = {"prompt": "Once"} if path == "/v1/tokenize" else {"tokens": [5]}
    answer = http.post(path, body)
    assert answer.status == 200 and answer.json == http.post(path.removeprefix("/v1"), body).json


@pytest.mark.parametrize("path", ("/detokenize", "/v1/detokenize"))
@pytest.mark.parametrize("tokens", ([5, -1], [5, 1_000_000], [[5], [5, 1_000_000]], [2**31 - 1], [2**40]))
def test_an_invalid_token_is_not_decoded(http, path, tokens):
    """A token outside the vocabulary is refused: callers would trust an empty text."""
    refused = http.post(path, {"tokens": tokens})
    assert refused.status == 400, refused
    culprit = tokens[-1][-1] if isinstance(tokens[-1], list) else tokens[-1]
    message = refused.message if "error" in refused.json else refused.json["message"]
    assert "tokens" in message and (str(culprit) in message or culprit == 2**40), refused
    if isinstance(tokens[-1], list):
        assert message.startswith("tokens[1]: "), refused


@pytest.mark.parametrize(
    "path, name, given",
    (
        ("/inference/v1/generate", "token_ids", {"token_ids": [5, None, 6]}),
        ("/skyrl/v1/generate", "token_ids", {"token_ids": [None]}),
        (
            "/inference/v1/generate",
            "trace_decode_token_ids",
            {"sampling_params": {"trace_decode_token_ids": [5, None]}},
        ),
        ("/inference/v1/generate", "allowed_token_ids", {"sampling_params": {"allowed_token_ids": [5, None]}}),
        ("/v1/completions", "logprob_token_ids", {"logprobs": 1, "logprob_token_ids": [5, None]}),
        ("/v1/completions", "draft_ids", {"draft_ids": [None, 5]}),
        ("/v1/chat/completions", "input_ids", {"input_ids": [5, None]}),
        ("/detokenize", "tokens", {"tokens": [5, None]}),
        ("/detokenize", "tokens", {"tokens": [[5], [5, None]]}),
    ),
)
def test_a_list_of_tokens_has_no_null(http, path, name, given):
    """A prompt without the entry would be another prompt."""
    body = given if path == "/detokenize" else {**body_of(path.replace("skyrl", "inference")), **given}
    refused = http.post(path, body)
    assert refused.status == 400 and name in str(refused) and "a list of token ids" in str(refused), refused


@pytest.mark.parametrize("path", PATHS)
def test_stop_tokens_may_have_the_null_of_a_tokenizer_without_pad_token(http, path):
    first = http.post(path, body_of(path, sampling={"stop_token_ids": [2047, None]}))
    assert first.status == 200, first
    assert http.post(path, body_of(path, sampling={"stop_token_ids": [None, "x"]})).status == 400
