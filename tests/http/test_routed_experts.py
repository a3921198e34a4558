"""return_routed_experts of /generate, on trees with experts: read as slime reads it, complete after
pauses, updates and retractions.
"""

import base64
import json
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy
import pytest

from amid import paused_amid
from expert_model import NUM_EXPERTS, PER_TOKEN, upcycled, write_experts
from http_calls import finished
from http_client import Http
from places import short_directory
from process_tree import ROOT, live_tree

sys.path.insert(0, str(ROOT / "client/python"))

import pitstop  # noqa: E402  (after the path)

GOLDEN = ROOT / "tests/data/golden/qwen3_moe_every_other"
STORIES = ROOT / "launch/models/stories"
PROMPT = "Once upon a time there was a little girl who lived in a house near the forest"
GREEDY = {"temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module", params=[1, 2], ids=["tp1", "tp2"])
def served(request, tmp_path_factory):
    """A tree with experts, and a directory with weights for updates."""
    place = tmp_path_factory.mktemp("models")
    models = [write_experts(place / str(seed), upcycled(seed)) for seed in (1, 2)]
    flags = ("--model", models[0], "--tp", request.param, "--compute", "fp32", "--page-size", 4)
    with short_directory() as path, live_tree(path / "tree", "--port", "0", *flags) as tree:
        yield tree, models


@pytest.fixture
def http(served):
    return Http(served[0].url)


@pytest.fixture
def client(served):
    with pitstop.Client(served[0].run_dir) as client:
        client.flush_cache()
        yield client


def layers():
    return json.loads((STORIES / "config.json").read_text())["num_hidden_layers"]


def rows_of(meta, num_layers=None, per_token=PER_TOKEN):
    """[rows, layers, per_token], as slime, verl and AReaL read it."""
    raw = numpy.frombuffer(base64.b64decode(meta["routed_experts"]), dtype=numpy.int32)
    num_tokens = meta["prompt_tokens"] + meta["completion_tokens"]
    rows = num_tokens - 1 - meta["routed_experts_start_len"]
    return raw.reshape(rows, num_layers or layers(), per_token)


def routed(http, prompt=PROMPT, max_new_tokens=24, **options):
    """(answer, rows)"""
    answer = http.generate(
        text=prompt, max_new_tokens=max_new_tokens, return_routed_experts=True, **{**GREEDY, **options}
    )
    return answer, rows_of(answer["meta_info"])


def recomputed(http, answer):
    """The rows of the same tokens, computed again in one prefill."""
    ids = answer["prompt_token_ids"] + answer["output_ids"]
    whole = http.generate(input_ids=ids, max_new_tokens=0, return_routed_experts=True)
    return rows_of(whole["meta_info"])


@pytest.mark.parametrize("tp", [1, 2])
def test_rows_are_what_transformers_chooses(tp, tmp_path):
    model = tmp_path / "model"
    shutil.copytree(GOLDEN, model)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(STORIES / name, model)
    config = json.loads((model / "config.json").read_text())
    num_layers, k = config["num_hidden_layers"], config["num_experts_per_tok"]
    flags = ("--model", model, "--tp", tp, "--compute", "fp32")
    with short_directory() as path, live_tree(path / "tree", "--port", "0", *flags) as tree:
        for golden in json.loads((GOLDEN / "routes.json").read_text())["prompts"]:
            answer = Http(tree.url).generate(input_ids=golden["ids"], max_new_tokens=0, return_routed_experts=True)
            rows = rows_of(answer["meta_info"], num_layers, k)
            expected = numpy.array(golden["routes"])[:-1]
            is_clear = numpy.array(golden["gaps"])[:-1] > 2e-4  # the two sides' logits differ by up to 1e-4 each
            assert rows.shape == expected.shape
            assert (rows[is_clear] == expected[is_clear]).all()


def test_P6_rows_are_the_same_however_they_come(http, client):
    answer, rows = routed(http, return_prompt_token_ids=True)
    assert rows.min() >= 0 and rows.max() < NUM_EXPERTS and len(set(map(bytes, rows))) > 10
    assert (rows[..., 0] != rows[..., 1]).all()
    assert (recomputed(http, answer) == rows).all()
    client.flush_cache()
    # The prefix is now in the cache, which keeps no routes.
    plain = http.generate(text=PROMPT, max_new_tokens=24, **GREEDY)
    assert "routed_experts" not in plain["meta_info"]
    again, rows_again = routed(http)
    assert again["output_ids"] == answer["output_ids"]
    assert (rows_again == rows).all()
    assert again["meta_info"]["cached_tokens"] == 0
    # The next turn asks for new rows only: the earlier tokens come from the cache.
    held = len(rows) - 3
    whole = answer["prompt_token_ids"] + answer["output_ids"]
    later = http.generate(
        input_ids=whole, max_new_tokens=2, return_routed_experts=True, routed_experts_start_len=held, **GREEDY
    )
    assert (rows_of(later["meta_info"])[: len(rows) - held] == rows[held:]).all()
    assert later["meta_info"]["cached_tokens"] > 0


def test_each_of_a_batch_and_of_samples_has_its_own(http):
    answers = http.generate(
        text=[PROMPT, "The king"],
        n=2,
        max_new_tokens=12,
        ignore_eos=True,
        return_routed_experts=True,
        return_prompt_token_ids=True,
    )
    for answer in answers:
        assert (rows_of(answer["meta_info"]) == recomputed(http, answer)).all()
    some = http.generate(text=[PROMPT, "The king"], max_new_tokens=3, return_routed_experts=[False, True])
    assert ["routed_experts" in each["meta_info"] for each in some] == [False, True]


def test_rows_end_where_a_stop_text_ends_the_output(http):
    free, rows = routed(http, max_new_tokens=40)
    word = free["text"].split()[12]
    answer, cut = routed(http, max_new_tokens=40, stop=[word])
    assert answer["meta_info"]["finish_reason"]["matched"] == word
    assert len(cut) < len(rows) and (cut == rows[: len(cut)]).all()


def test_a_stream_has_rows_in_its_last_event(http):
    events = http.events(
        "/generate",
        {
            "text": PROMPT,
            "sampling_params": {"max_new_tokens": 8, **GREEDY},
            "stream": True,
            "return_routed_experts": True,
        },
    )
    events = [event["meta_info"] for event in events if isinstance(event, dict)]
    assert [("routed_experts" in each) for each in events] == [False] * (len(events) - 1) + [True]
    assert (rows_of(events[-1]) == routed(http, max_new_tokens=8)[1]).all()


@pytest.fixture
def amid(http, served):
    """amid(mode, **options): the future (answer, rows) of a request during which the tree was paused."""
    with served[0].door("admin") as admin, ThreadPoolExecutor(1) as thread:

        def meet(mode, **options):
            def begin():
                return [thread.submit(routed, http, max_new_tokens=900, return_prompt_token_ids=True, **options)]

            pause = lambda: admin.call("pause_generation", mode=mode)  # noqa: E731
            (request,) = paused_amid(admin, begin, finished, pause=pause)
            return request

        yield meet
        admin.call("continue_generation")


def test_P4_a_retracted_request_has_every_row(http, client, amid):
    request = amid("retract")
    client.continue_generation()
    answer, rows = request.result()
    assert answer["meta_info"]["num_retractions"] >= 1
    assert (rows == recomputed(http, answer)).all()


def test_P4_an_aborted_request_has_the_rows_of_its_tokens(http, client, amid):
    request = amid("in_place", rid="ended")
    http.post("/abort_request", {"rid": "ended"})
    client.continue_generation()
    answer, rows = request.result()
    assert answer["meta_info"]["finish_reason"]["type"] == "abort"
    assert answer["output_ids"]
    assert (rows == recomputed(http, answer)).all()


@pytest.mark.parametrize("policy", ["keep", "recompute"])
def test_P3_rows_name_the_version_that_chose_them(client, served, amid, policy):
    before = client.status()["replicas"][0]["epoch"]
    request = amid("in_place")
    client.update_weights(str(served[1][1]), kv_policy=policy)
    client.continue_generation()
    answer, rows = request.result()
    meta = answer["meta_info"]
    spans = meta["weight_version_spans"]
    first_row = meta["prompt_tokens"] - 1  # the pass that predicts the first output
    of_outputs = {
        row: span["epoch"] for span in spans for row in range(first_row + span["start"], first_row + span["end"])
    }
    named = {row: span["epoch"] for span in meta["routed_experts_spans"] for row in range(span["start"], span["end"])}
    assert sorted(named) == list(range(len(rows)))
    assert all(named[row] == epoch for row, epoch in of_outputs.items())
    assert of_outputs[first_row] == before < of_outputs[max(of_outputs)]
    client.rollback_weights()


def test_impossible_requests_for_routes_are_refused_by_name(http):
    body = {"text": PROMPT, "return_routed_experts": True}
    beyond = http.post("/generate", {**body, "routed_experts_start_len": 10_000})
    assert beyond.status == 400 and "routed_experts_start is 10000" in beyond.message
    for bad in (-1, "x", 1.5):
        refused = http.post("/generate", {**body, "routed_experts_start_len": bad})
        assert refused.status == 400 and "routed_experts_start_len" in refused.message
    refused = http.post("/generate", {**body, "return_routed_experts": "yes"})
    assert refused.status == 400 and "return_routed_experts" in refused.message
    with short_directory() as path, live_tree(path / "tree", "--port", "0") as dense:
        refused = Http(dense.url).post("/generate", body)
        assert refused.status == 400 and "return_routed_experts" in refused.message
