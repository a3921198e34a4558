"""Routes that a request of /generate brings: the model follows them, over HTTP, over the bus, and
through updates of the router; invalid routes are refused by name.
"""

import base64
import json
import sys

import numpy
import pytest

from expert_model import floats, rounded, upcycled, write_experts
from http_client import Http
from places import short_directory
from process_tree import ROOT, live_tree
from routed_forms import of_slime
from weights_sources import raw_source

sys.path.insert(0, str(ROOT / "client/python"))

import pitstop  # noqa: E402  (after the path)

STORIES = ROOT / "launch/models/stories"
LAYERS = json.loads((STORIES / "config.json").read_text())["num_hidden_layers"]
PROMPT = "Once upon a time there was a little girl who lived in a house near the forest"
E, K, NUM = 6, 2, 24


def tied(seed):
    """{router: bf16 bits}: experts 2 i and 2 i + 1 have equal rows, so that both are chosen, with weights of exactly
    1/2, whichever pair it is."""
    random = numpy.random.default_rng(seed)
    routers = {}
    for name, bits in upcycled(1).items():
        if name.endswith("mlp.gate.weight"):
            rows = rounded(random.normal(0, 0.5, (E // 2, bits.shape[1])))
            routers[name] = numpy.repeat(rows, 2, axis=0)
    return routers


def experts_of(routers):
    """Six experts, no two alike: the sixth is the first one negated."""
    tensors = upcycled(1) | routers
    for name in [name for name in tensors if ".experts.0." in name]:
        tensors[name.replace(".experts.0.", ".experts.5.")] = rounded(-floats(tensors[name]))
    return tensors


def own_router(seed=7):
    random = numpy.random.default_rng(seed)
    return {name: rounded(random.normal(0, 0.5, bits.shape)) for name, bits in tied(1).items()}


RANKS = {"tp1": ("--tp", 1), "tp2": ("--tp", 2), "tp2 ep2": ("--tp", 2, "--ep", 2)}


@pytest.fixture(scope="module", params=RANKS.values(), ids=RANKS)
def served(request, tmp_path_factory):
    model = write_experts(tmp_path_factory.mktemp("models") / "tied", experts_of(tied(1)), num_experts=E)
    flags = ("--model", model, *request.param, "--page-size", 4, "--chunked-prefill-size", 16)
    with short_directory() as path, live_tree(path / "tree", "--port", "0", *flags) as tree:
        yield tree


@pytest.fixture
def http(served):
    return Http(served.url)


@pytest.fixture
def client(served):
    with pitstop.Client(served.run_dir) as client:
        client.update_weights(source=raw_source(tied(1)), partial=True)
        client.flush_cache()
        yield client


def sampled(http, **more):
    """(all tokens, the output's logprobs, rows) of a sampled answer."""
    answer = http.generate(
        text=PROMPT, max_new_tokens=NUM, temperature=0.9, sampling_seed=5, ignore_eos=True, return_logprob=True,
        return_prompt_token_ids=True, return_routed_experts=True, logprobs_mode="raw", **more,
    )  # fmt: skip
    tokens = answer["prompt_token_ids"] + answer["output_ids"]
    meta = answer["meta_info"]
    return tokens, [entry[0] for entry in meta["output_token_logprobs"]], of_slime(meta, len(tokens), LAYERS, K)


def as_int32(rows):
    return base64.b64encode(rows.astype("<i4").tobytes()).decode()


def scored(http, tokens, **more):
    """The logprobs of the last NUM tokens."""
    answer = http.generate(
        input_ids=tokens, max_new_tokens=0, return_logprob=True, logprob_start_len=0, logprobs_mode="raw", **more
    )
    return [entry[0] for entry in answer["meta_info"]["input_token_logprobs"]][-NUM:], answer


@pytest.mark.parametrize("num_updates", [1, 3])
def test_P6_scoring_with_routes_is_sampling_bit_for_bit_after_updates_of_the_router(http, client, num_updates):
    tokens, logprobs, rows = sampled(http)
    assert len({row.tobytes() for row in rows}) > 5, "the test's routers choose different pairs"
    assert scored(http, tokens)[0] == logprobs
    for seed in range(2, 2 + num_updates):
        client.update_weights(source=raw_source(tied(seed)), partial=True)
    assert scored(http, tokens)[0] != logprobs, "the test's routers differ"
    with_routes, answer = scored(http, tokens, routed_experts=as_int32(rows), return_routed_experts=True)
    assert with_routes == logprobs
    assert (of_slime(answer["meta_info"], len(tokens), LAYERS, K) == rows).all()
    # A request with brought routes leaves no KV in the cache, and uses none from it.
    assert scored(http, tokens)[0] != logprobs
    assert scored(http, tokens, routed_experts=as_int32(rows))[0] == logprobs


def test_P6_with_another_router_too_as_long_as_it_is_the_one_that_sampled(http, client):
    """The two experts' weights differ here: they are computed from the router's logits of the brought experts."""
    client.update_weights(source=raw_source(own_router()), partial=True)
    tokens, logprobs, rows = sampled(http)
    with_routes, answer = scored(http, tokens, routed_experts=as_int32(rows))
    assert with_routes == logprobs and answer["meta_info"]["cached_tokens"] == 0
    turned = rows[..., ::-1]
    assert scored(http, tokens, routed_experts=as_int32((rows + 1) % E))[0] != logprobs
    near = scored(http, tokens, routed_experts=as_int32(turned))[0]
    assert numpy.allclose(near, logprobs, atol=0.05), "another order of the sum alone"


def test_routes_of_a_prompt_are_followed_and_the_output_is_routed(http, client):
    tokens, _, rows = sampled(http)
    prompt, routes = tokens[:-NUM], rows[: len(tokens) - NUM]
    client.update_weights(source=raw_source(tied(2)), partial=True)
    for num in (len(prompt), len(prompt) - 1):
        answer = http.generate(
            input_ids=prompt, max_new_tokens=6, temperature=0, ignore_eos=True, return_routed_experts=True,
            routed_experts=as_int32(routes[:num]),
        )  # fmt: skip
        told = of_slime(answer["meta_info"], len(prompt) + 6, LAYERS, K)
        assert (told[:num] == routes[:num]).all()
        assert (told[num:, :, 0] % 2 == 0).all(), "a pair begins with its even expert, as ties say"
    # A batch: each request has its own routes, or none.
    answers = http.generate(
        input_ids=[prompt, prompt], max_new_tokens=2, temperature=0, ignore_eos=True, return_routed_experts=True,
        routed_experts=[as_int32(routes), None],
    )  # fmt: skip
    told = [of_slime(each["meta_info"], len(prompt) + 2, LAYERS, K)[: len(prompt)] for each in answers]
    assert (told[0] == routes).all() and (told[1] != routes).any()


def test_forms_of_answers_are_forms_of_requests(http, client):
    tokens, logprobs, rows = sampled(http)
    client.update_weights(source=raw_source(tied(2)), partial=True)
    for dtype in ("uint8", "uint16", "int16", "int32"):
        envelope = {"data": base64.b64encode(rows.astype(dtype).tobytes()).decode(), "dtype": dtype, "start": 0}
        assert scored(http, tokens, routed_experts=envelope)[0] == logprobs
        assert scored(http, tokens, routed_experts={**envelope, "shape": list(rows.shape)})[0] == logprobs


def test_brought_routes_over_the_bus(client, http):
    tokens, logprobs, rows = sampled(http)
    client.update_weights(source=raw_source(tied(2)), partial=True)
    routes = pitstop.Routes.of(rows, E)
    asked = {"logprobs": {"enabled": True, "prompt_start": 0}, "max_new_tokens": 0, "routed_experts_start": 0}
    whole = client.generate(tokens, stream=False, routed_experts=routes, **asked).result()
    assert [float(str(each)) for each in numpy.float32(whole.prompt.logprobs[-NUM:])] == logprobs
    assert (whole.routes.array() == rows).all() and sum(span.rows for span in whole.routes.spans) == len(rows)
    with pytest.raises(pitstop.PitstopError, match="it has 3 rows"):
        client.generate(tokens, routed_experts=pitstop.Routes.of(rows[:3], E), max_new_tokens=1).result()
    with pytest.raises(ValueError, match="the model has"):
        pitstop.Routes.of(rows + E, E)


def test_rows_that_are_no_routes_are_refused_with_token_layer_and_entry(http, client):
    tokens, _, rows = sampled(http)

    def refused(routes, *words, **more):
        body = {"input_ids": tokens, "sampling_params": {"max_new_tokens": 0}, "routed_experts": routes, **more}
        answer = http.post("/generate", body)
        assert answer.status == 400 and all(word in answer.message for word in words), answer

    def changed(token, layer, entry, expert):
        ids = rows.copy().astype(numpy.int32)
        ids[token, layer, entry] = expert
        return as_int32(ids)

    refused(changed(4, 1, 0, E), f"token 4, layer 1, entry 0 is expert {E}", f"[0, {E})")
    refused(changed(4, 1, 0, -1), "token 4, layer 1, entry 0 is expert -1")
    refused(changed(4, 1, 1, rows[4, 1, 0]), "token 4, layer 1, entry 1", "once")
    refused(as_int32(rows[:-1]), f"{len(rows) - 1} rows")
    refused(as_int32(rows)[:-8], "rows of")
    refused("", "at least one")
    refused("?", "base64")
    refused(7, "base64 of int32")
    refused([as_int32(rows)], "one prompt's")
    good = {"data": as_int32(rows), "dtype": "int32"}
    refused({**good, "dtype": "int64"}, "int64", "uint8")
    refused({**good, "shape": [len(rows), K, LAYERS]}, "shape")
    refused({**good, "shape": "x"}, "shape")
    refused({**good, "start": 3}, "start is 3")
    refused({"dtype": "int32"}, "data")
    dense = http.post("/v1/completions", {"prompt": tokens, "max_tokens": 1, "routed_experts": as_int32(rows)})
    assert dense.status == 400 and "routed_experts" in dense.message
    with short_directory() as path, live_tree(path / "tree", "--port", "0") as dense:
        answer = Http(dense.url).post("/generate", {"input_ids": [5, 9], "routed_experts": as_int32(rows[:2])})
        assert answer.status == 400 and "no experts" in answer.message


def test_more_than_a_request_takes_is_refused(http, client):
    num = (12 << 20) // (LAYERS * K) + 1
    rows = numpy.broadcast_to(numpy.arange(K, dtype=numpy.uint8), (num, LAYERS, K))
    envelope = {"data": base64.b64encode(rows.tobytes()).decode(), "dtype": "uint8"}
    answer = http.post("/generate", {"input_ids": [5, 9], "routed_experts": envelope})
    assert answer.status == 400 and f"at most {num - 1} such rows" in answer.message
