"""Adapters on a model's experts and routers, on real trees: loaded in each form and way, replaced while a request runs,
rolled back and unloaded. The references are the oracle of tests/chaos (stories-moe), and PEFT's logits of the models in
tests/data/golden.
"""

import dataclasses
import json
import pathlib
import shutil
import sys

import numpy
import pytest

from adapter_loads import load, source_of
from amid import paused_amid
from places import short_directory
from process_tree import ROOT, live_tree
from test_updates import joined
from weights_sources import refused

sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests/http"), str(ROOT / "client/python")]

import pitstop  # noqa: E402  (after the path)
from chaos import adapters as files  # noqa: E402
from chaos.oracle import Oracle, Rounding, Sequence, log_softmax  # noqa: E402
from chaos.weights import layers_with_experts, read_checkpoint  # noqa: E402
from http_calls import Http  # noqa: E402

MODEL = ROOT / "launch/models/stories-moe"
CONFIG = json.loads((MODEL / "config.json").read_text())
NUM_EXPERTS = CONFIG["num_experts"]
MATRICES = ("gate_proj", "up_proj", "down_proj")
RANK, ALPHA = 3, 7
RANKS = {"tp1": ("--tp", 1), "tp2 ep2": ("--tp", 2, "--ep", 2)}
PROMPT = [int(each) for each in numpy.random.default_rng(1).integers(0, 2000, 40)]
GREEDY = {"temperature": 0.0, "ignore_eos": True}
ERROR = 1e-4  # of logprobs in fp32: the engine adds in another order than the oracle
LONG = 120
NAME = "policy"


@dataclasses.dataclass(frozen=True)
class Adapter:
    directory: pathlib.Path
    described: dict  # adapter_config.json
    tensors: dict  # of the directory
    of_modules: dict  # the same as a pair for each expert's matrix


def described_as(**targets):
    return {"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "bias": "none", **targets}


def pair(random, weight, size=0.5):
    """(A, B), which change a matrix by about `size` of its standard deviation."""
    num_out, num_in = weight.shape
    scale = size * weight.std() / (ALPHA / RANK * numpy.sqrt(RANK))
    return (
        random.normal(0.0, 1.0, (RANK, num_in)).astype(numpy.float32),
        random.normal(0.0, scale, (num_out, RANK)).astype(numpy.float32),
    )


def pairs(seed, modules):
    """{name: float32} of a pair for each module whose name ends with one of these."""
    random, made = numpy.random.default_rng(seed), {}
    for name, bits in read_checkpoint(MODEL).items():
        module = name.removesuffix(".weight")
        if module.startswith("model.layers.") and module.rpartition(".")[2] in modules:
            weight = (bits.astype(numpy.uint32) << 16).view(numpy.float32)
            made[f"{module}.lora_A.weight"], made[f"{module}.lora_B.weight"] = pair(random, weight)
    return made


def of_modules(place, seed):
    """Of each expert's matrices and of the routers, and of two modules of attention and the dense layer."""
    modules = ("q_proj", "o_proj", "gate", *MATRICES)
    tensors, described = pairs(seed, modules), described_as(target_modules=list(modules))
    return written(place, described, tensors, tensors)


def packed(place, seed):
    """Of experts as parameters, as PEFT packs them: row e r + j of A and column j E + e of B are rank j of expert e."""
    apart = {name: each for name, each in pairs(seed, ("gate", *MATRICES)).items() if ".layers.0." not in name}
    tensors = {name: each for name, each in apart.items() if ".experts." not in name}
    for layer in layers_with_experts(CONFIG):
        block = f"model.layers.{layer}.mlp.experts"
        of = lambda matrix, side: [apart[f"{block}.{e}.{matrix}.lora_{side}.weight"] for e in range(NUM_EXPERTS)]
        for e in range(NUM_EXPERTS):  # gate and up are one parameter, with one A
            apart[f"{block}.{e}.up_proj.lora_A.weight"] = apart[f"{block}.{e}.gate_proj.lora_A.weight"]
        gate_up = [numpy.concatenate(both) for both in zip(of("gate_proj", "B"), of("up_proj", "B"))]
        for name, a, b in (
            (f"{block}.base_layer", of("gate_proj", "A"), gate_up),
            (block, of("down_proj", "A"), of("down_proj", "B")),
        ):
            tensors[f"{name}.lora_A.weight"] = numpy.concatenate(a)
            tensors[f"{name}.lora_B.weight"] = numpy.stack(b, axis=2).reshape(len(b[0]), RANK * NUM_EXPERTS)
    parameters = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj", "mlp.gate.weight"]
    # The gates and ups of this model are square: only the version tells which side of a tensor is which.
    described = described_as(target_modules=[], target_parameters=parameters, peft_version="0.19.1")
    return written(place, described, tensors, apart)


def written(place, described, tensors, modules):
    files.write(place, described, tensors)
    return Adapter(place, described, tensors, modules)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """{name: Adapter}"""
    place = tmp_path_factory.mktemp("adapters")
    return {
        "first": of_modules(place / "first", 1),
        "second": of_modules(place / "second", 2),
        "packed": packed(place / "packed", 3),
    }


@pytest.fixture(scope="module", params=RANKS.values(), ids=RANKS)
def tree(request):
    flags = ("--model", MODEL, "--compute", "fp32", "--port", 0, *request.param)
    with short_directory() as path, live_tree(path / "tree", *flags) as tree:
        yield tree


@pytest.fixture
def admin(tree):
    with tree.door("admin") as admin:
        yield admin
        admin.call("continue_generation")
        for name in loaded(admin):
            assert admin.call("unload_adapter", name=name)["ok"]


@pytest.fixture(scope="module")
def versions(made):
    """{name: the oracle's weights}; None: the model alone."""
    oracle = Oracle(CONFIG, Rounding.FP32)
    base = oracle.weights(read_checkpoint(MODEL))
    return {None: base} | {name: oracle.adapted(base, each.described, each.of_modules) for name, each in made.items()}


@pytest.fixture
def client(tree):
    with pitstop.Client(tree.run_dir) as client:
        yield client


def send(client, name, adapter, tensors):
    """Loads these tensors, which are in the call, with the adapter's configuration."""
    config = json.dumps(adapter.described)
    return client.update_weights(source=source_of(tensors), adapter=name, adapter_config=config)


def loaded(admin):
    """{name: what status says of the adapter}"""
    return {each["adapter"]["name"]: each for each in admin.call("status")["replicas"][0].get("adapters", [])}


def begin(door, adapter=None, tokens=24):
    more = {"adapter": adapter} if adapter else {}
    return door.start(PROMPT, max_new_tokens=tokens, logprobs={"enabled": True}, **GREEDY, **more)


def answers(tree, *adapters):
    """(tokens, logprobs) of requests that share their passes."""
    with tree.door() as door:
        outputs = door.finish([begin(door, adapter) for adapter in adapters])
    return [(output.tokens, output.logprobs) for output in outputs]


def assert_of(output, *spans):
    """The output is the oracle's greedy one. `spans`: (weights, number of tokens that they computed, weights that
    computed the KV of what came before)."""
    tokens, logprobs = output
    oracle, begin, ids = Oracle(CONFIG, Rounding.FP32), 0, PROMPT + tokens
    for weights, num, before in spans:
        sequence, end = Sequence(oracle), len(PROMPT) + begin
        if begin:
            oracle.forward(sequence, before, ids[: end - 1], 0)
        logits = oracle.forward(sequence, weights, ids[sequence.length : end + num - 1], 0)[-num:]
        assert logits.argmax(axis=1).tolist() == tokens[begin : begin + num]
        expected = log_softmax(logits)[numpy.arange(num), tokens[begin : begin + num]]
        numpy.testing.assert_allclose(logprobs[begin : begin + num], expected, rtol=0, atol=ERROR)
        begin += num
    assert begin == len(tokens)


def assert_whole(output, weights):
    assert_of(output, (weights, len(output[0]), None))


@pytest.mark.parametrize("content", ["first", "packed"])
def test_P6_an_adapter_of_experts_is_computed_beside_the_model_alone(tree, admin, client, made, versions, content):
    adapter = made[content]
    (base,) = answers(tree, None)
    assert_whole(base, versions[None])
    http = Http(tree.url)
    answer = http.post("/load_lora_adapter", {"lora_name": NAME, "lora_path": str(adapter.directory)})
    assert answer.status == 200, answer
    digest = files.digest_of(adapter.of_modules)
    assert answer.json()["adapter_digest"] == digest
    alone, beside, again = answers(tree, NAME, None, NAME)
    assert beside == base, "bit for bit"
    assert alone == again and alone[0] != base[0]
    assert_whole(alone, versions[content])
    sampling = {"max_new_tokens": len(alone[0]), "temperature": 0, "ignore_eos": True}
    body = {"input_ids": PROMPT, "lora_path": NAME, "sampling_params": sampling}
    assert http.post("/generate", body).json()["output_ids"] == alone[0]

    # The bus: from the directory, in the call, and in the form of a pair for each expert's matrix.
    assert load(admin, adapter.directory, name="of-a-directory")["digest"] == digest
    for name, tensors in (("sent", adapter.tensors), ("sent-apart", adapter.of_modules)):
        assert send(client, name, adapter, tensors)["digest"] == digest
    assert answers(tree, "of-a-directory", "sent", "sent-apart", None) == [alone, alone, alone, base]

    assert http.post("/unload_lora_adapter", {"lora_name": NAME}).status == 200
    finish = tree.door().generate(PROMPT, max_new_tokens=1, adapter=NAME).finish
    assert finish["code"] == "not_found" and "no adapter 'policy' is loaded" in finish["message"], finish
    assert answers(tree, None) == [base]


@pytest.mark.parametrize("policy", ["finish", "keep", "recompute"])
@pytest.mark.parametrize(("old", "new"), [("first", "second"), ("first", "packed")])
def test_P1_P3_a_request_continues_as_the_replacement_says(tree, admin, made, versions, policy, old, new):
    first = load(admin, made[old].directory, name=NAME)
    door = tree.door()
    rids = paused_amid(admin, lambda: [begin(door, NAME, LONG), begin(door, None, LONG)], door.finish, num_running=2)
    second = load(admin, made[new].directory, name=NAME, adapter_policy=policy)
    admin.call("continue_generation")
    output, other = door.finish(rids)
    spans = [(span["adapter"]["version"], span["tokens"], span["kv_min_adapter"]) for span in joined(output.spans)]
    assert sum(num for _, num, _ in spans) == LONG
    moved = {
        "finish": [],
        "keep": [(second["epoch"], first["epoch"])],
        "recompute": [(second["epoch"], second["epoch"])],
    }[policy]
    assert [(version, kv) for version, _, kv in spans] == [(first["epoch"], first["epoch"]), *moved]
    of_kv = {first["epoch"]: versions[old], second["epoch"]: versions[new]}
    assert_of((output.tokens, output.logprobs), *((of_kv[version], num, of_kv[kv]) for version, num, kv in spans))
    assert_whole((other.tokens, other.logprobs), versions[None])
    assert_whole(answers(tree, NAME)[0], versions[new])


def test_P2_a_rollback_and_a_part_give_the_experts_that_they_name(tree, admin, client, made, versions):
    first = load(admin, made["first"].directory, name=NAME)
    load(admin, made["second"].directory, name=NAME)
    assert_whole(answers(tree, NAME)[0], versions["second"])
    back = admin.call("rollback_weights", adapter=NAME)
    assert back["ok"] and back["digest"] == first["digest"], back
    assert loaded(admin)[NAME]["adapter"]["version"] == back["epoch"]
    assert_whole(answers(tree, NAME)[0], versions["first"])

    # One expert's pair of the second version, in every layer: of the last expert, which another rank may have.
    mine = f".experts.{NUM_EXPERTS - 1}.up_proj."
    part = {name: each for name, each in made["second"].tensors.items() if mine in name}
    assert len(part) == 2 * len(layers_with_experts(CONFIG))
    mixed = made["first"].tensors | part
    reply = client.update_weights(source=source_of(part), adapter=NAME, partial=True)
    assert reply["digest"] == files.digest_of(mixed)
    oracle = Oracle(CONFIG, Rounding.FP32)
    output = answers(tree, NAME)[0]
    assert_whole(output, oracle.adapted(versions[None], made["first"].described, mixed))
    assert output != answers(tree, None)[0]


def test_P2_what_is_no_pair_of_an_expert_is_refused_by_name(tree, admin, client, made):
    load(admin, made["first"].directory, name=NAME)
    before = answers(tree, NAME, None)
    described = {**made["packed"].described, "peft_version": "0.19.0"}
    error = refused(
        send, client, NAME, dataclasses.replace(made["packed"], described=described), made["packed"].tensors
    )
    assert error.code == "unsupported" and "mlp.experts.gate_up_proj' are square" in error.message, error
    whole = made["first"].tensors
    b = f"model.layers.3.mlp.experts.{NUM_EXPERTS - 1}.up_proj.lora_B.weight"
    wrong = {
        f"'{b}' is missing": {name: each for name, each in whole.items() if name != b},
        f"'{b}' has shape": whole | {b: whole[b].T},
        "experts.8.up_proj.lora_B.weight' is no tensor": whole | {b.replace("experts.7", "experts.8"): whole[b]},
        f"'{b}' is not finite": whole | {b: whole[b] * numpy.float32("nan")},
    }
    for words, tensors in wrong.items():
        error = refused(send, client, NAME, made["first"], tensors)
        assert error.code == "invalid_argument" and words in error.message, error
    assert answers(tree, NAME, None) == before


GOLDEN = ROOT / "tests/data/golden"
OF_PEFT = ("mixtral", "qwen2_moe_shared", "qwen3_moe_all", "qwen3_5_moe")
LOGPROB_ERROR = 2e-4  # twice that of a logit (tests/tp_worker/model/golden_test.cpp)


@pytest.mark.parametrize("ranks", RANKS.values(), ids=RANKS)
@pytest.mark.parametrize("model", OF_PEFT)
def test_P6_a_tree_computes_the_logits_of_peft(start_tree, tmp_path, model, ranks):
    """Experts, packed ones, routers, shared experts and their gates, all adapters of a model in one tree."""
    directory = shutil.copytree(GOLDEN / model, tmp_path / model)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(MODEL / name, directory)
    tree = start_tree("--model", directory, "--compute", "fp32", *ranks)
    golden = {None: GOLDEN / model} | {each.name: each for each in sorted((GOLDEN / model / "adapters").iterdir())}
    asked = {"max_new_tokens": 1, "logprobs": {"enabled": True, "prompt_start": 0}, "text_output": False, **GREEDY}
    with pitstop.Client(tree.run_dir) as client:
        for name in golden.keys() - {None}:
            client.load_adapter(name, str(golden[name]))
        for name, place in golden.items():
            more = {"adapter": name} if name else {}
            for prompt in json.loads((place / "golden.json").read_text())["prompts"]:
                ids, logits = prompt["ids"], prompt["logits"]
                chunk = client.generate(ids, **asked, **more).result()
                assert chunk.tokens[0] == numpy.argmax(logits[-1]), (name, ids)
                told = [*chunk.prompt.logprobs, chunk.logprobs[0]][-len(ids) :]
                for t, row in enumerate(logits):
                    if len(row) < len(logits[-1]):
                        continue  # the model's golden has some tokens' logits alone
                    expected = log_softmax(numpy.array(row))[[*ids[1:], *chunk.tokens][t]]
                    assert abs(told[t] - expected) < LOGPROB_ERROR, (name, ids, t)
