"""Adapters (LoRA) on trees whose ranks compute on the GPU in software: numbers, versions that
replace each other amid requests, and a GPU without room.
"""

import pathlib

import numpy
import pytest

from adapter_loads import load
from gpu_tree import CUDA, gpu, needs_gpu, shared_tree  # noqa: F401
from lora_files import config_of, exact_adapter, write_adapter, write_merged
from test_gpu_ranks import LOGPROB_TOLERANCE
from test_updates import GREEDY, joined

pytestmark = needs_gpu
GPU_TREE_FLAGS = ("--deterministic",)
PROMPT = "Once upon a time"
NUM = 4  # tokens: one takes some tenths of a second
LONG = 9
SEEDS = {"a": 1, "b": 2}


@pytest.fixture(scope="module")
def adapters(tmp_path_factory):
    """{name: (its directory, the directory of the merged model)}."""
    place = pathlib.Path(tmp_path_factory.mktemp("adapters"))
    made = {}
    for name, seed in SEEDS.items():
        adapter, whole = exact_adapter(seed)
        made[name] = write_adapter(place / name, adapter), write_merged(place / f"merged_{name}", whole)
    return made


def begin(door, adapter=None, tokens=NUM):
    more = {"adapter": adapter} if adapter else {}
    return door.start(PROMPT, max_new_tokens=tokens, logprobs={"enabled": True}, **GREEDY, **more)


def answers(door, *adapters):
    """(tokens, logprobs) of requests that share their passes."""
    outputs = door.finish([begin(door, adapter) for adapter in adapters])
    return [(output.tokens, output.logprobs) for output in outputs]


@pytest.mark.parametrize("tp", (1, 2))
def test_P6_rows_have_the_tokens_of_merged_models_whatever_shares_their_pass(gpu, start_tree, adapters, tp):
    gpu()
    expected = {}
    for name, (_, merged) in adapters.items():
        tree = start_tree("--device", "cpu", "--compute", "fp32", "--model", merged)
        (expected[name],) = answers(tree.door(), None)
        tree.stop()
    assert not numpy.allclose(*(logprobs for _, logprobs in expected.values()), rtol=0, atol=10 * LOGPROB_TOLERANCE)
    tree = start_tree(*CUDA, "--compute", "fp32", "--deterministic", "--tp", tp)
    door = tree.door()
    (base,) = answers(door, None)
    for name, (directory, _) in adapters.items():
        load(tree.door("admin"), directory, name=name)
    names = [None, "a", "b"]
    together = answers(door, *names)
    for name, (tokens, logprobs) in zip(names, together):
        if name is None:
            assert (tokens, logprobs) == base, "its bits are those of a tree without adapters"
            continue
        assert tokens == expected[name][0]
        assert numpy.allclose(logprobs, expected[name][1], rtol=0, atol=LOGPROB_TOLERANCE)
    assert [answers(door, name)[0] for name in names] == together


@pytest.mark.parametrize("policy", ("finish", "keep", "recompute"))
def test_P1_P3_open_requests_continue_as_the_load_says(shared_tree, adapters, policy):  # noqa: F811
    door, admin = shared_tree.door(), shared_tree.door("admin")
    first = load(admin, adapters["a"][0])
    rids = [begin(door, "policy", LONG), begin(door, None, LONG)]
    while any(len(door.outputs[rid].tokens) < 3 for rid in rids):
        door.step()
    admin.call("pause_generation", mode="in_place")  # both have some of their output
    second = load(admin, adapters["b"][0], adapter_policy=policy)
    admin.call("continue_generation")
    output, other = door.finish(rids)
    said = [(span["adapter"]["version"], span["kv_min_adapter"]) for span in joined(output.spans)]
    moved = {
        "finish": [],
        "keep": [(second["epoch"], first["epoch"])],
        "recompute": [(second["epoch"], second["epoch"])],
    }
    assert said == [(first["epoch"], first["epoch"]), *moved[policy]]
    assert len(output.tokens) == len(other.tokens) == LONG and "adapter" not in other.spans[0]
    (alone,) = door.finish([begin(door, None, LONG)])
    assert (alone.tokens, alone.logprobs) == (other.tokens, other.logprobs)
    load(admin, adapters["a"][0])
    (of_first,) = door.finish([begin(door, "policy", LONG)])
    is_of_first = (of_first.tokens, of_first.logprobs) == (output.tokens, output.logprobs)
    assert is_of_first == (policy == "finish")
    assert admin.call("unload_adapter", name="policy")["ok"]


def test_a_gpu_without_room_refuses_the_load_and_serves_on(gpu, start_tree, tmp_path, adapters):
    """KV has all the memory, so an adapter of a high rank is refused."""
    gpu(memory=384 << 20)
    rank = 256
    tree = start_tree("--device", "cuda", "--tuning-dir", "none", "--mem-fraction", 1, "--max-adapter-rank", rank)
    door, admin = tree.door(), tree.door("admin")
    before = answers(door, None)
    large = {}
    for name, tensor in exact_adapter(1)[0].items():
        out, of = tensor.shape
        large[name] = numpy.zeros((rank, of) if "lora_A" in name else (out, rank), numpy.float32)
    directory = write_adapter(tmp_path / "large", large, config_of(r=rank))
    reply = admin.call(
        "update_weights", update={"adapter": "large", "source": {"kind": "disk", "path": str(directory)}}
    )
    assert not reply["ok"] and reply["code"] == "resource_exhausted", reply
    assert "no memory for an adapter" in reply["message"], reply["message"]
    assert admin.call("status")["replicas"][0].get("adapters", []) == []
    assert answers(door, None) == before
