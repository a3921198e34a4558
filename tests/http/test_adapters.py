"""Adapters on trees: loaded and replaced while requests run, over HTTP in the forms of SGLang, vLLM, SkyRL and
prime-rl, and from Python. The reference is a checkpoint with merged weights, which is exact for these adapters
(lora_files.py)."""

import contextlib
import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy
import pytest

import torch_sender
from amid import paused_amid, running_amid
from http_calls import finished
from http_client import Http
from lora_files import config_of, exact_adapter, write_adapter, write_merged
from places import short_directory
from process_tree import ROOT, live_tree
from trainers import serialized

sys.path.insert(0, str(ROOT / "client/python"))

import pitstop  # noqa: E402  (after the path)

PROMPT = "Once upon a time there was a little girl who lived in a house near the forest"
GREEDY = {"temperature": 0, "ignore_eos": True}
TOLERANCE = 2e-3  # of logprobs, fp32: the merged model rounds in another order, through thirty layers


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """{name: (directory of the adapter, directory of the merged model, its tensors)}"""
    place = tmp_path_factory.mktemp("adapters")
    made = {}
    for seed, name in enumerate(("one", "two"), 1):
        adapter, whole = exact_adapter(seed)
        directory = write_adapter(place / name, adapter)
        made[name] = directory, write_merged(place / f"merged-{name}", whole), adapter
    return made


@pytest.fixture(scope="module", params=[("--tp", 1), ("--tp", 2, "--dp", 2)], ids=["tp1", "tp2dp2"])
def served(request):
    flags = ("--compute", "fp32", "--page-size", 4, "--max-adapters", 3, *request.param)
    with short_directory() as path, live_tree(path / "tree", "--port", "0", *flags) as tree:
        yield tree


@pytest.fixture(scope="module")
def references(files):
    """{name: (token ids, logprobs)} of merged models; None: of the model alone."""
    found = {}
    for name, (_, merged, _) in {**files, None: (None, "stories", None)}.items():
        with (
            short_directory() as path,
            live_tree(path / "tree", "--port", "0", "--compute", "fp32", "--model", merged) as tree,
        ):
            found[name] = tokens_of(Http(tree.url))
    return found


@pytest.fixture
def http(served):
    http = Http(served.url)
    yield http
    for card in http.get("/v1/models").json["data"]:
        if card["parent"] is not None:
            assert http.post("/unload_lora_adapter", {"lora_name": card["id"]}).status == 200
    assert http.post("/flush_cache").status == 200


def tokens_of(http, adapter=None, prompt=PROMPT, max_new_tokens=16, **options):
    answer = http.generate(
        text=prompt, max_new_tokens=max_new_tokens, return_logprob=True, lora_path=adapter, **GREEDY, **options
    )
    logprobs = [entry[0] for entry in answer["meta_info"]["output_token_logprobs"]]
    return answer["output_ids"], logprobs


def load(http, name, directory):
    answer = http.post("/load_lora_adapter", {"lora_name": name, "lora_path": str(directory)})
    assert answer.status == 200, answer
    return answer.json


def assert_same(actual, expected):
    assert actual[0] == expected[0]
    numpy.testing.assert_allclose(actual[1], expected[1], atol=TOLERANCE)


def test_an_adapter_gives_what_the_merged_model_gives_and_the_model_alone_what_it_gave(http, files, references):
    before = tokens_of(http)
    assert_same(before, references[None])
    for name in ("one", "two"):
        said = load(http, name, files[name][0])
        assert said["success"] and said["loaded_adapters"][name] == str(files[name][0])
    assert references["one"][0] != references["two"][0] != references[None][0]
    for name in ("one", "two", None, "one"):
        assert_same(tokens_of(http, name), references[name])
    assert tokens_of(http) == before, "bit for bit"


def test_P6_a_batch_of_several_adapters_has_the_bits_of_each_alone(http, files):
    for name in ("one", "two"):
        load(http, name, files[name][0])
    adapters = ["one", None, "two", "one", None, "two"]
    prompts = [f"{PROMPT} {number}" for number in range(len(adapters))]
    http.post("/flush_cache")
    body = {
        "text": prompts,
        "lora_path": adapters,
        "return_logprob": True,
        "logprob_start_len": 0,
        "sampling_params": {**GREEDY, "max_new_tokens": 12},
    }
    together = http.post("/generate", body)
    assert together.status == 200, together
    for prompt, adapter, answer in zip(prompts, adapters, together.json):
        http.post("/flush_cache")
        alone = http.generate(
            text=prompt, lora_path=adapter, return_logprob=True, logprob_start_len=0, max_new_tokens=12, **GREEDY
        )
        for what in ("output_token_logprobs", "input_token_logprobs"):
            assert answer["meta_info"][what] == alone["meta_info"][what]


def test_a_score_has_the_logprobs_that_sampling_had(http, files):
    load(http, "one", files["one"][0])
    answer = http.generate(
        text=PROMPT,
        lora_path="one",
        return_logprob=True,
        max_new_tokens=12,
        return_prompt_token_ids=True,
        temperature=1,
        sampling_seed=7,
        ignore_eos=True,
    )
    ids = answer["prompt_token_ids"] + answer["output_ids"]
    start = len(answer["prompt_token_ids"])
    score = http.generate(
        input_ids=ids, lora_path="one", return_logprob=True, logprob_start_len=start, max_new_tokens=0
    )
    scored = [entry[:2] for entry in score["meta_info"]["input_token_logprobs"]]
    assert scored == [entry[:2] for entry in answer["meta_info"]["output_token_logprobs"]]


def test_prefixes_are_of_one_version_of_one_adapter(http, files, references):
    def cached(adapter):
        answer = http.generate(text=PROMPT, lora_path=adapter, max_new_tokens=1, routed_dp_rank=0, **GREEDY)
        return answer["meta_info"]["cached_tokens"]

    load(http, "one", files["one"][0])
    assert cached(None) == 0 and cached(None) > 0
    assert cached("one") == 0, "the model's prefix is not the adapter's"
    assert cached("one") > 0
    load(http, "one", files["two"][0])  # from now on the name means another adapter
    assert cached("one") == 0, "the name is the same, the weights are not"
    assert_same(tokens_of(http, "one"), references["two"])
    load(http, "one", files["two"][0])  # the very same weights again: still a new version
    assert cached("one") == 0


def test_a_request_ends_with_the_version_that_it_began_with(http, files, served):
    first = load(http, "one", files["one"][0])
    expected = tokens_of(http, "one", max_new_tokens=400)
    http.post("/flush_cache")
    asked = {"text": PROMPT, "lora_path": "one", "max_new_tokens": 400, "return_logprob": True, **GREEDY}
    with pitstop.Client(served.run_dir) as client, served.door("admin") as admin, ThreadPoolExecutor(1) as thread:
        (request,) = paused_amid(admin, lambda: [thread.submit(http.generate, **asked)], finished)
        second = load(http, "one", files["two"][0])
        loaded = [adapter for replica in client.status()["replicas"] for adapter in replica["adapters"]]
        assert {adapter["adapter"]["digest"] for adapter in loaded} == {second["adapter_digest"]}
        assert sum(adapter.get("num_older", 0) for adapter in loaded) == 1
        client.continue_generation()
        answer = request.result()
        assert all(adapter.get("num_older", 0) == 0 for r in client.status()["replicas"] for adapter in r["adapters"])
    assert answer["output_ids"] == expected[0]
    assert [entry[0] for entry in answer["meta_info"]["output_token_logprobs"]] == expected[1]
    said = answer["meta_info"]["adapter"]
    assert said == {"name": "one", "version": first["adapter_version"], "label": "", "digest": first["adapter_digest"]}
    assert second["adapter_version"] > first["adapter_version"]


@pytest.mark.parametrize("policy", ("keep", "recompute"))
def test_open_requests_continue_with_the_new_version_if_the_caller_says_so(http, files, served, policy):
    first = load(http, "one", files["one"][0])
    of_first = tokens_of(http, "one", max_new_tokens=400)
    http.post("/flush_cache")
    asked = {"text": PROMPT, "lora_path": "one", "max_new_tokens": 400, "return_logprob": True, **GREEDY}
    body = {"lora_name": "one", "lora_path": str(files["two"][0]), "adapter_policy": policy}
    with pitstop.Client(served.run_dir) as client, served.door("admin") as admin, ThreadPoolExecutor(1) as thread:
        begin = lambda: [thread.submit(http.generate, return_prompt_token_ids=True, **asked)]  # noqa: E731
        (request,) = paused_amid(admin, begin, finished)
        second = http.post("/load_lora_adapter", body)
        assert second.status == 200, second
        client.continue_generation()
        answer = request.result()
    meta = answer["meta_info"]
    spans = meta["weight_version_spans"]
    assert [span["adapter"]["digest"] for span in spans] == [first["adapter_digest"], second.json["adapter_digest"]]
    assert spans[0]["kv_min_adapter"] == spans[0]["adapter"]["version"] == first["adapter_version"]
    assert spans[1]["adapter"] == meta["adapter"] and meta["adapter"]["version"] == second.json["adapter_version"]
    assert spans[1]["kv_min_adapter"] == spans[policy == "recompute"]["adapter"]["version"]
    cut = spans[1]["start"]
    logprobs = [entry[0] for entry in meta["output_token_logprobs"]]
    assert (answer["output_ids"][:cut], logprobs[:cut]) == (of_first[0][:cut], of_first[1][:cut])
    assert logprobs[cut:] != of_first[1][cut:]
    ids = answer["prompt_token_ids"] + answer["output_ids"]
    start = len(answer["prompt_token_ids"]) + cut
    score = http.generate(
        input_ids=ids, lora_path="one", return_logprob=True, logprob_start_len=start, max_new_tokens=0
    )
    scored = [entry[0] for entry in score["meta_info"]["input_token_logprobs"]]
    assert (scored == logprobs[cut:]) == (policy == "recompute"), "a scoring attends to KV of the new version alone"
    refused = http.post("/load_lora_adapter", {**body, "adapter_policy": "drain"})
    assert refused.status == 400 and "finish, keep or recompute" in refused.message


def test_after_an_unload_no_new_request_gets_it_and_open_ones_end(http, files, served):
    load(http, "one", files["one"][0])
    expected = tokens_of(http, "one", max_new_tokens=400)
    http.post("/flush_cache")
    with served.door("admin") as admin, ThreadPoolExecutor(1) as thread:
        begin = lambda: [thread.submit(tokens_of, http, "one", max_new_tokens=400)]  # noqa: E731
        (request,) = running_amid(admin, begin, finished)
        open_ones_end(http)
        assert request.result() == expected


def open_ones_end(http):
    unloaded = http.post("/unload_lora_adapter", {"lora_name": "one"})
    assert unloaded.status == 200 and unloaded.json["loaded_adapters"] == {}
    refused = http.post("/generate", {"text": "x", "lora_path": "one"})
    assert refused.status == 400 and "no adapter 'one' is loaded" in refused.message
    assert http.post("/unload_lora_adapter", {"lora_name": "one"}).status == 400


def test_a_refused_adapter_is_named_and_changes_nothing(http, files, tmp_path):
    load(http, "one", files["one"][0])
    before = http.get("/v1/models").json
    adapter, _ = exact_adapter(3)
    bad = {
        "use_dora": (config_of(use_dora=True), adapter),
        "rank of": (config_of(r=65), adapter),
        "is missing": (config_of(), {name: each for name, each in adapter.items() if "layers.0" not in name}),
        "adapts no module": (config_of(target_modules=["c_attn"]), adapter),
        "no tensor of the adapter": (config_of(target_modules=["q_proj"]), adapter),
        "lm_head": (config_of(target_modules=["q_proj", "lm_head"]), adapter),
        "is not finite": (config_of(), {**adapter, next(iter(adapter)): next(iter(adapter.values())) * numpy.nan}),
    }
    for number, (why, (config, tensors)) in enumerate(bad.items()):
        directory = write_adapter(tmp_path / str(number), tensors, config)
        answer = http.post("/load_lora_adapter", {"lora_name": "one", "lora_path": str(directory)})
        assert answer.status == 400 and why in answer.message, (why, answer)
        assert answer.json["success"] is False
    for body, why in (
        ({"lora_name": "one"}, "lora_path"),
        ({"lora_path": str(files["one"][0])}, "lora_name"),
        ({"lora_name": "stories", "lora_path": str(files["one"][0])}, "the model's"),
        ({"lora_name": "a\nb", "lora_path": str(files["one"][0])}, "control character"),
        ({"lora_name": "x" * 300, "lora_path": str(files["one"][0])}, "at most 256"),
    ):
        answer = http.post("/load_lora_adapter", body)
        assert answer.status == 400 and why in answer.message, (why, answer)
    assert http.get("/v1/models").json == before
    load(http, "two", files["two"][0])
    load(http, "three", files["two"][0])
    full = http.post("/load_lora_adapter", {"lora_name": "four", "lora_path": str(files["two"][0])})
    assert full.status == 400 and "--max-adapters" in full.message and "'one', 'three', 'two'" in full.message


def test_status_metrics_and_the_page_count_by_adapter(http, files, served):
    tensors = 4 * sum(tensor.size for tensor in files["one"][2].values())  # resident in float32
    for _ in range(2):
        load(http, "one", files["one"][0])
    for _ in range(3):
        tokens_of(http, "one", max_new_tokens=5)
    with pitstop.Engine(run_dir=str(served.run_dir)) as engine, pitstop.Client(served.run_dir) as client:
        (loaded,) = engine.adapters()
        replicas = client.status()["replicas"]
    ranks = len(replicas[0]["workers"])
    assert (loaded.loads_total, loaded.num_requests) == (2, 0)
    # Two versions are resident: the one that serves, and the previous one, for a rollback. Ranks split some tensors,
    # and each rank has the other tensors whole.
    assert 2 * tensors <= loaded.bytes <= 2 * ranks * tensors
    totals = [adapter for replica in replicas for adapter in replica["adapters"]]
    assert sum(each.get("requests_total", 0) for each in totals) == 3
    assert sum(each.get("output_tokens_total", 0) for each in totals) == 15
    lines = [line for line in http.get("/metrics").body.decode().splitlines() if 'adapter="one"' in line]
    for name, total in (("requests", 3), ("output_tokens", 15), ("loads", 2 * len(replicas))):
        samples = [line for line in lines if line.startswith(f"pitstop_adapter_{name}_total{{")]
        assert sum(float(line.rpartition(" ")[2]) for line in samples) == total, samples
    with contextlib.closing(http.connect()) as connection:
        connection.request("GET", "/status/events")
        event = json.loads(connection.getresponse().readline().removeprefix(b"data: "))
    (shown,) = event["adapters"]["shown"]
    assert (shown["name"], shown["version"], shown["digest"]) == ("one", loaded.version, loaded.digest)
    assert (shown["requests"], shown["tokens"]) == (3, 15) and "path" not in shown


def test_vllms_and_skyrls_routes(http, files, references):
    body = {"lora_name": "one", "lora_path": os.path.relpath(files["one"][0])}
    answer = http.post("/v1/load_lora_adapter", body)
    assert (answer.status, answer.body.decode()) == (200, "Success: LoRA adapter 'one' added successfully.")
    (root,) = [card["root"] for card in http.get("/v1/models").json["data"] if card["id"] == "one"]
    assert os.path.isabs(root) and os.path.samefile(root, files["one"][0]), root
    again = http.post("/v1/load_lora_adapter", body)
    assert again.status == 400 and "has already been loaded" in again.message
    replaced = http.post("/v1/load_lora_adapter", {**body, "lora_path": str(files["two"][0]), "load_inplace": True})
    assert replaced.status == 200
    assert_same(tokens_of(http, "one"), references["two"])
    assert http.post("/v1/load_lora_adapter", {**body, "lora_name": "none", "lora_path": "/nowhere"}).status == 404
    skyrl = http.post("/skyrl/v1/load_lora_adapter", body)
    assert skyrl.status == 200 and skyrl.json["status"] == "ok" and skyrl.json["lora_name"] == "one"
    assert isinstance(skyrl.json["lora_int_id"], int)
    assert_same(tokens_of(http, "one"), references["one"])
    packed = http.post("/v1/load_lora_adapter", {**body, "load_inplace": True, "is_3d_lora_weight": True})
    assert packed.status == 200, packed
    gone = http.post("/v1/unload_lora_adapter", {"lora_name": "one"})
    assert (gone.status, gone.body.decode()) == (200, "Success: LoRA adapter 'one' removed successfully.")
    assert http.post("/v1/unload_lora_adapter", {"lora_name": "one"}).status == 404


def test_prime_rls_calls(http, files, references, tmp_path):
    """The bodies that prime-rl's client sends (005c286c9): a name, and a directory per step, which may arrive late. The
    client repeats a load after 404 and 500 only, and ignores the answer to an unload. Its requests have a salt for each
    version."""
    models = {card["id"] for card in http.get("/v1/models").json["data"]}
    assert models == {"stories"}
    for number, name in enumerate(("one", "two"), 1):
        directory = tmp_path / f"step_{number}"
        body = {"lora_name": "policy", "lora_path": directory.as_posix()}
        late = http.post("/load_lora_adapter", body)
        assert late.status == 404 and "adapter_config.json" in late.message and late.json["success"] is False, late
        write_adapter(directory, files[name][2])
        loaded = http.post("/load_lora_adapter", body)
        assert loaded.status == 200, loaded
        assert "policy" in {card["id"] for card in http.get("/v1/models").json["data"]}
        request = {
            "model": "policy",
            "prompt": PROMPT,
            "max_tokens": 16,
            "return_token_ids": True,
            "cache_salt": str(number),
        }
        said = http.post("/v1/completions", {**request, **GREEDY})
        assert said.status == 200, said
        assert said.json["choices"][0]["token_ids"] == references[name][0]
    assert http.post("/v1/unload_lora_adapter", {"lora_name": "policy"}).status == 200
    assert http.post("/v1/unload_lora_adapter", {"lora_name": "policy"}).status == 404


def test_tensors_without_upsert_do_not_replace(http, files):
    load(http, "one", files["one"][0])
    body = {"lora_name": "one", "config_dict": config_of(), "serialized_named_tensors": ["gAQu"]}
    before = http.get("/v1/models").json
    refused = http.post("/load_lora_adapter_from_tensors", {**body, "upsert": False})
    assert refused.status == 400 and "adapter 'one' is loaded already" in refused.message, refused
    for options, why in (
        ({"load_format": "npcache"}, "accepted is null, 'auto' or 'flattened_bucket'"),
        ({"serialized_tensors": ["gAQu"]}, "serialized_named_tensors has the tensors already"),
        ({"added_tokens_config": {"a": 1}}, "the vocabulary is the model's"),
        ({"expected_checksums": ["a"]}, "update.digest"),
        ({"config_dict": None}, "config_dict"),
        ({"serialized_named_tensors": []}, "serialized_named_tensors"),
    ):
        refused = http.post("/load_lora_adapter_from_tensors", {**body, **options})
        assert refused.status == 400 and why in refused.message, refused
    assert http.get("/v1/models").json == before


@pytest.mark.skipif(torch_sender.torch is None, reason=torch_sender.REASON)
def test_tensors_in_the_request_are_the_directorys_adapter(http, files, served, tmp_path):
    """If two patterns match a module, PEFT uses the first: the configuration must keep the body's order."""
    torch = torch_sender.torch
    adapter = files["one"][2]
    config = config_of(alpha_pattern={"q_proj": 2, r"layers\.0\.self_attn\.q_proj": 64})
    assert list(config["alpha_pattern"]) != sorted(config["alpha_pattern"])
    load(http, "one", write_adapter(tmp_path / "one", adapter, config))
    expected = tokens_of(http, "one")
    with pitstop.Client(served.run_dir) as client:
        num_ranks = len(client.status()["replicas"][0]["workers"])
    shared = [(name, torch.from_numpy(tensor.copy()).share_memory_()) for name, tensor in adapter.items()]
    payloads = [bytes(torch_sender.ForkingPickler.dumps(shared)) for _ in range(num_ranks)]
    body = {"lora_name": "sent", "config_dict": config, "serialized_named_tensors": serialized(payloads)}
    answer = http.post("/load_lora_adapter_from_tensors", body)
    assert answer.status == 200 and answer.json["loaded_adapters"]["sent"] == "__tensor__", answer
    assert tokens_of(http, "sent") == expected


def test_a_request_may_name_the_adapter_as_its_model(http, files, references):
    load(http, "one", files["one"][0])
    cards = {card["id"]: card for card in http.get("/v1/models").json["data"]}
    assert cards["one"]["root"] == str(files["one"][0]) and cards["one"]["parent"] == "stories"
    assert http.get("/v1/models/one").json == cards["one"]
    ids = references["one"][0]
    for model in ("one", "stories:one"):
        body = {"model": model, "prompt": PROMPT, "max_tokens": 16, "return_token_ids": True, **GREEDY}
        answer = http.post("/v1/completions", body)
        assert answer.status == 200, answer
        assert answer.json["choices"][0]["token_ids"] == ids and answer.json["model"] == model
    with_field = {"model": "stories", "lora_path": "one", "prompt": PROMPT, "max_tokens": 16, "return_token_ids": True}
    assert http.post("/v1/completions", {**with_field, **GREEDY}).json["choices"][0]["token_ids"] == ids
    prompt_ids = http.generate(text=PROMPT, max_new_tokens=1, return_prompt_token_ids=True)["prompt_token_ids"]
    tokens = {"model": "one", "token_ids": prompt_ids, "sampling_params": {"max_tokens": 16, **GREEDY}}
    assert http.post("/inference/v1/generate", tokens).json["choices"][0]["token_ids"] == ids
    agents = {
        "/v1/responses": {"input": PROMPT, "max_output_tokens": 16},
        "/v1/messages": {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 16},
        "/v1/chat/completions": {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 16},
    }
    for path, body in agents.items():
        body = {**body, "return_token_ids": True, "chat_template": TEMPLATE, "temperature": 0, "ignore_eos": True}
        plain, with_adapter, same = (
            http.post(path, {**body, **named}) for named in ({}, {"model": "one"}, {"lora_path": "one"})
        )
        assert tokens_in(with_adapter) == tokens_in(same) != tokens_in(plain)
        for streams in (False, True):
            unknown = http.post(path, {**body, "model": "three", "stream": streams})
            assert unknown.status == 404, unknown
            assert (
                "The model `three` does not exist: no adapter 'three' is loaded; loaded are 'one'; served"
                in unknown.message
            )
        for named in (
            {"model": "one", "lora_path": "two"},
            {"model": "stories:"},
            {"model": "three", "lora_path": "one"},
        ):
            assert http.post(path, {**body, **named}).status == 404, named


TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"


def tokens_in(answer):
    assert answer.status == 200, answer
    return answer.json["choices"][0]["token_ids"] if "choices" in answer.json else answer.json["token_ids"]


def test_an_update_of_the_model_leaves_the_adapter(http, files, served, references):
    load(http, "one", files["one"][0])
    before = tokens_of(http, "one")
    with pitstop.Client(served.run_dir) as client:
        assert client.update_weights(str(files["two"][1]))["ok"]
        other = tokens_of(http, "one")
        assert other[0] != before[0] or other[1] != before[1]
        assert client.rollback_weights()["ok"]
    assert tokens_of(http, "one") == before


def test_python_loads_tensors_that_are_the_directorys_adapter(http, files, served, references):
    directory, _, adapter = files["one"]
    of_directory = load(http, "one", directory)
    live = {name.replace(".weight", ".default.weight"): tensor for name, tensor in adapter.items()}
    with pitstop.Engine(run_dir=str(served.run_dir)) as engine:
        update = engine.load_adapter(
            "sent",
            live,
            config_of(target_modules={"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}),
            label="step 1",
        )
        assert update.digest == of_directory["adapter_digest"] and update.label == "step 1"
        names = {each.name: each for each in engine.adapters()}
        assert sorted(names) == ["one", "sent"] and names["sent"].path == "" and names["sent"].label == "step 1"
        outputs = engine.generate([PROMPT] * 3, {"max_new_tokens": 16, **GREEDY}, adapter=["sent", None, "one"])
        assert [output.output_ids for output in outputs] == [references[name][0] for name in ("one", None, "one")]
        assert outputs[0].adapter.label == "step 1" and outputs[1].adapter is None
        assert outputs[0].meta_info["adapter"]["digest"] == update.digest
        engine.unload_adapter("sent")
        with pytest.raises(pitstop.PitstopError) as gone:
            engine.generate("x", {"max_new_tokens": 1}, adapter="sent")
        assert gone.value.code == "not_found" and "loaded are 'one'" in str(gone.value)
        with pytest.raises(pitstop.PitstopError) as wrong:
            engine.load_adapter("wrong", live, config_of(r=5))
        assert wrong.value.code == "invalid_argument" and "has shape" in str(wrong.value)
        assert [each.name for each in engine.adapters()] == ["one"]


def test_many_loads_leave_nothing(http, files, served):
    def resident():
        with pitstop.Client(served.run_dir) as client:
            pids = [worker["pid"] for replica in client.status()["replicas"] for worker in replica["workers"]]
        return sum(int(open(f"/proc/{pid}/statm").read().split()[1]) for pid in pids) * 4096

    def replace(num):
        for _ in range(num):
            load(http, "one", files["two"][0])
            tokens_of(http, "one", max_new_tokens=1)

    replace(40)  # the allocator's arenas grow to their size, in steps of 10 MiB and more
    before = resident()
    replace(160)
    size = (files["two"][0] / "adapter_model.safetensors").stat().st_size
    assert 160 * size > 36 << 20, "or the bound would not show a leak"
    assert resident() - before < 24 << 20
