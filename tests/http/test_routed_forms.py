"""Routed experts in the answers of completions, chats, vLLM's generate and SkyRL's: in the form that each engine's
trainers read, with the same rows as in /generate's answer."""

import json

import numpy
import pytest

from expert_model import PER_TOKEN, upcycled, write_experts
from http_client import Http
from places import short_directory
from process_tree import ROOT, live_tree
from routed_forms import of_prime_rl, of_skyrl, of_skyrl_body, of_slime, of_verl, of_vllm

STORIES = ROOT / "launch/models/stories"
PROMPT = "Once upon a time there was a little girl who lived in a house near the forest"
GREEDY = {"temperature": 0, "ignore_eos": True}
LAYERS = json.loads((STORIES / "config.json").read_text())["num_hidden_layers"]
NUM = 48


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_experts(tmp_path_factory.mktemp("models") / "experts", upcycled(1))


@pytest.fixture(scope="module")
def http(model):
    with (
        short_directory() as path,
        live_tree(path / "tree", "--port", "0", "--model", model, "--compute", "fp32") as tree,
    ):
        yield Http(tree.url)


@pytest.fixture(scope="module", params=["npy", "envelope"])
def telling(request, model):
    """(A tree whose flag adds routes to every answer that has them in vLLM; the flag's form)."""
    flags = ("--port", "0", "--model", model, "--compute", "fp32", "--return-routed-experts", request.param)
    with short_directory() as path, live_tree(path / "tree", *flags) as tree:
        yield Http(tree.url), request.param


@pytest.fixture(scope="module")
def expected(http):
    """(prompt's ids, output's ids, rows) of /generate."""
    answer = http.generate(
        text=PROMPT, max_new_tokens=NUM, return_routed_experts=True, return_prompt_token_ids=True, **GREEDY
    )
    prompt, output = answer["prompt_token_ids"], answer["output_ids"]
    rows = of_slime(answer["meta_info"], len(prompt) + len(output), LAYERS, PER_TOKEN)
    assert (of_verl(answer["meta_info"]["routed_experts"], LAYERS, PER_TOKEN) == rows).all()
    return prompt, output, rows


def completion(prompt, **more):
    return {"prompt": prompt, "max_tokens": NUM, **GREEDY, **more}


def chat(prompt, **more):
    return {"messages": [], "input_ids": prompt, "max_tokens": NUM, **GREEDY, **more}


OPENAI = pytest.mark.parametrize(
    "route, body", [("/v1/completions", completion), ("/v1/chat/completions", chat)], ids=["completions", "chat"]
)


def answered(http, route, body):
    answer = http.post(route, body)
    assert answer.status == 200, answer
    return answer.json


@OPENAI
@pytest.mark.parametrize("start", [0, 3])
def test_sglangs_rows_are_in_sglext(http, expected, route, body, start):
    prompt, _, rows = expected
    answer = answered(http, route, body(prompt, return_routed_experts=True, routed_experts_start_len=start))
    ext = answer["sglext"]
    assert ext["routed_experts_start_len"] == start
    assert (of_verl(ext["routed_experts"], LAYERS, PER_TOKEN) == rows[start:]).all()
    assert ext["routed_experts_spans"] == [{"epoch": 1, "start": start, "end": len(rows)}]
    assert "routed_experts" not in answer["choices"][0]
    plain = answered(http, route, body(prompt))
    assert "sglext" not in plain and "routed_experts" not in plain["choices"][0]


@OPENAI
def test_vllms_rows_are_in_each_choice(http, expected, route, body):
    prompt, _, rows = expected
    answer = answered(http, route, body(prompt, n=2, routed_experts_prompt_start=3))
    for choice in answer["choices"]:
        told = of_vllm(choice["routed_experts"])
        assert told.dtype == numpy.uint8 and (told == rows[3:]).all()
        assert choice["routed_experts_spans"] == [{"epoch": 1, "start": 3, "end": len(rows)}]
    assert "sglext" not in answer


def tokens_in(prompt, **more):
    sampling = {"max_tokens": NUM, **GREEDY, **more.pop("sampling_params", {})}
    return {"token_ids": prompt, "sampling_params": sampling, **more}


def test_vllms_generate_has_rows_where_asked(http, expected):
    prompt, output, rows = expected
    for start in (0, 5):
        body = tokens_in(prompt, sampling_params={"routed_experts_prompt_start": start})
        [choice] = answered(http, "/inference/v1/generate", body)["choices"]
        assert choice["token_ids"] == output and (of_vllm(choice["routed_experts"]) == rows[start:]).all()
    [choice] = answered(http, "/inference/v1/generate", tokens_in(prompt, return_routed_experts=True))["choices"]
    assert (of_vllm(choice["routed_experts"]) == rows).all()
    [choice] = answered(http, "/inference/v1/generate", tokens_in(prompt))["choices"]
    assert choice["routed_experts"] is None


def told_by_flag(form, answer):
    """(rows of the one choice, their start)"""
    if form == "npy":
        return of_vllm(answer.json["choices"][0]["routed_experts"]), None
    [(rows, start)], _ = of_prime_rl(answer.body)
    return rows, start


def test_the_flag_returns_rows_without_a_field(telling, expected):
    http, form = telling
    prompt, _, rows = expected
    for route, body in (
        ("/inference/v1/generate", tokens_in(prompt)),
        ("/v1/completions", completion(prompt)),
        ("/v1/chat/completions", chat(prompt)),
    ):
        answer = http.post(route, body)
        assert answer.status == 200, answer
        told, start = told_by_flag(form, answer)
        assert start in (None, 0) and told.dtype == numpy.uint8 and (told == rows).all()
    # Requests with SGLang's field get SGLang's form. /generate returns routes only on request.
    answer = answered(http, "/v1/completions", completion(prompt, return_routed_experts=True))
    assert "sglext" in answer and "routed_experts" not in answer["choices"][0]
    assert "routed_experts" not in http.generate(text=PROMPT, max_new_tokens=2)["meta_info"]


def test_a_later_turn_has_the_new_rows(telling, expected):
    http, form = telling
    prompt, output, rows = expected
    held = len(rows)
    body = tokens_in(prompt + output + [5], sampling_params={"routed_experts_prompt_start": held, "max_tokens": 3})
    told, start = told_by_flag(form, http.post("/inference/v1/generate", body))
    assert start in (None, held) and told.shape == (1 + 1 + 3 - 1, LAYERS, PER_TOKEN)


def test_skyrls_generate_always_has_rows(http, expected):
    prompt, output, rows = expected
    body = tokens_in(prompt, sampling_params={"logprobs": 0}, cache_salt="7")
    [told], answer = of_skyrl_body(http.post("/skyrl/v1/generate", body).body)
    [choice] = answer["choices"]
    assert choice["token_ids"] == output and choice["finish_reason"] == "length"
    assert (told == rows).all()
    assert len(choice["logprobs"]["content"]) == len(output)
    # A later turn: SkyRL expects a row for each token from its start on, except the last.
    body["sampling_params"] |= {"routed_experts_prompt_start": 4, "n": 2}
    told, _ = of_skyrl_body(http.post("/skyrl/v1/generate", body).body)
    assert len(told) == 2 and all((each == rows[4:]).all() for each in told)
    refused = http.post("/skyrl/v1/generate", {**body, "return_full_logprobs": True})
    assert refused.status == 400 and "return_full_logprobs" in refused.message
    assert http.post("/skyrl/v1/generate", {**body, "model": "nobody"}).status == 404


def test_a_trace_has_no_rows_that_no_field_asks_for(http, telling, expected):
    """The rows that the flag adds, and those of SkyRL's route, give way to a trace. Rows that the request names do not."""
    prompt, output, _ = expected
    sampling = {"trace_decode_token_ids": output, "logprobs": 0}
    body = {"token_ids": prompt, "sampling_params": sampling}
    for server, route in (
        (telling[0], "/inference/v1/generate"),
        (telling[0], "/skyrl/v1/generate"),
        (http, "/skyrl/v1/generate"),
    ):
        [choice] = answered(server, route, body)["choices"]
        assert choice["token_ids"] == output and len(choice["logprobs"]["content"]) == len(output)
        assert choice["routed_experts"] is None
        asked = {"token_ids": prompt, "sampling_params": {**sampling, "routed_experts_prompt_start": 0}}
        refused = server.post(route, asked)
        assert refused.status == 400 and "routed_experts" in refused.message, refused


def test_a_rendered_request_asks_for_what_the_request_did(http, expected):
    prompt, _, rows = expected
    for given in ({"return_routed_experts": True, "routed_experts_start_len": 3}, {"routed_experts_prompt_start": 3}):
        rendered = answered(http, "/v1/chat/completions/render", chat(prompt, **given))
        [choice] = answered(http, "/inference/v1/generate", rendered)["choices"]
        assert (of_vllm(choice["routed_experts"]) == rows[3:]).all()
    more = {"stream": True, "stream_routed_experts": True, "routed_experts_prompt_start": 3}
    [rendered] = answered(http, "/v1/completions/render", completion(prompt, **more))
    choices = [choice for event in events_of(http, "/inference/v1/generate", rendered) for choice in event["choices"]]
    parts = [of_vllm(choice["routed_experts"]) for choice in choices if choice["routed_experts"]]
    assert len(parts) >= 2 and (numpy.concatenate(parts) == rows[3:]).all()


def events_of(http, route, body):
    return [event for event in http.events(route, {**body, "stream": True}) if isinstance(event, dict)]


@pytest.mark.parametrize("incremental", [False, True])
def test_events_of_generate_have_rows_as_they_come(http, expected, incremental):
    prompt, _, rows = expected
    body = {"input_ids": prompt, "sampling_params": {"max_new_tokens": NUM, **GREEDY}, "return_routed_experts": True}
    body |= {"stream_routed_experts": True, "incremental_streaming_output": incremental}
    metas = [event["meta_info"] for event in events_of(http, "/generate", body)]
    parts = [of_verl(meta["routed_experts"], LAYERS, PER_TOKEN) for meta in metas if "routed_experts" in meta]
    assert len(parts) >= 2 and (numpy.concatenate(parts) == rows).all()
    starts = [meta["routed_experts_start_len"] for meta in metas if "routed_experts" in meta]
    assert starts == [sum(map(len, parts[:i])) for i in range(len(parts))]
    spans = [span for meta in metas for span in meta.get("routed_experts_spans", [])]
    assert [row for span in spans for row in range(span["start"], span["end"])] == list(range(len(rows)))


@pytest.mark.parametrize("streamed", [False, True])
def test_events_of_the_other_routes_have_rows_as_they_come(http, telling, expected, streamed):
    prompt, _, rows = expected
    more = {"stream_routed_experts": True} if streamed else {}
    for route, body in (
        ("/v1/completions", completion(prompt, return_routed_experts=True, **more)),
        ("/v1/chat/completions", chat(prompt, return_routed_experts=True, **more)),
    ):
        events = events_of(http, route, body)
        parts = [of_verl(event["sglext"]["routed_experts"], LAYERS, PER_TOKEN) for event in events if "sglext" in event]
        assert (numpy.concatenate(parts) == rows).all() and (len(parts) >= 2) == streamed
    other, form = telling
    for route, body in (
        ("/v1/completions", completion(prompt, **more)),
        ("/v1/chat/completions", chat(prompt, **more)),
        ("/inference/v1/generate", tokens_in(prompt, **more)),
    ):
        choices = [choice for event in events_of(other, route, body) for choice in event["choices"]]
        told = [choice["routed_experts"] for choice in choices if choice.get("routed_experts")]
        parts = [of_vllm(each) if form == "npy" else of_skyrl(each) for each in told]
        assert (numpy.concatenate(parts) == rows).all() and (len(parts) >= 2) == streamed


def test_impossible_requests_for_routes_are_refused_by_name(http, expected):
    prompt, *_ = expected
    for route, body, name in (
        ("/v1/completions", completion(prompt, n=2, return_routed_experts=True), "routed_experts_prompt_start"),
        ("/v1/completions", completion(prompt, routed_experts_start_len=2), "routed_experts_start_len"),
        ("/v1/completions", completion(prompt, routed_experts_prompt_start=-1), "routed_experts_prompt_start"),
        ("/v1/completions", completion(prompt, routed_experts_prompt_start=len(prompt) + 1), "routed_experts_start"),
        ("/v1/completions", completion(prompt, stream_routed_experts=True), "stream_routed_experts"),
        ("/v1/completions", completion(prompt, stream=True, stream_routed_experts=True), "stream_routed_experts"),
        ("/v1/chat/completions", chat(prompt, return_routed_experts=True, routed_experts_prompt_start=1), "routed_experts"),
        ("/inference/v1/generate", tokens_in(prompt, routed_experts_prompt_start=1), "sampling_params"),
        ("/inference/v1/generate", tokens_in(prompt, sampling_params={"return_routed_experts": True}), "outside"),
        ("/v1/responses", {"input": "a", "return_routed_experts": True}, "return_routed_experts"),
        ("/v1/messages", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 2, "return_routed_experts": True},
         "return_routed_experts"),
        ("/generate", {"input_ids": prompt, "stream": True, "stream_routed_experts": True}, "stream_routed_experts"),
    ):  # fmt: skip
        refused = http.post(route, body)
        assert refused.status == 400 and name in refused.message, (route, body, refused)


def test_a_model_without_experts_has_no_rows():
    flags = ("--port", "0", "--return-routed-experts", "npy")
    with short_directory() as path, live_tree(path / "tree", *flags) as tree:
        http = Http(tree.url)
        [choice] = answered(http, "/inference/v1/generate", tokens_in([5, 9]))["choices"]
        assert choice["routed_experts"] is None
        [choice] = answered(http, "/skyrl/v1/generate", tokens_in([5, 9]))["choices"]
        assert choice["routed_experts"] is None
        refused = http.post("/v1/completions", completion([5, 9], routed_experts_prompt_start=0))
        assert refused.status == 400 and "no experts" in refused.message
