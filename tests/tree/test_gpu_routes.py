"""SGLang's and vLLM's routes of weight groups, over NCCL, on a tree on the GPU in software; the trainer is that of
test_gpu_nccl.py. And --restart of such a tree."""

import json
import urllib.error
import urllib.request

import pytest

import nccl_trainer
from gpu_tree import BUILD, CUDA, gpu, needs_gpu  # noqa: F401
from test_gpu_nccl import NAMES
from test_gpu_updates import greedy, push
from test_restart import crash, serving
from test_updates import BARD, DIGESTS, update
from test_weights_broadcasts import in_thread
from weights_sources import BARD_TENSORS

pytestmark = needs_gpu


@pytest.fixture
def tree(gpu, start_tree):
    return start_tree(*CUDA, "--port", 0)


@pytest.fixture
def trainer(tree):
    with nccl_trainer.Trainer(BUILD, BARD) as trainer:
        yield trainer


def post(tree, route, body):
    """Posts to a route. Returns the status and the answer."""
    request = urllib.request.Request(tree.url + route, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return answer.status, json.loads(answer.read() or b"null")
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read() or b"null")


def about():
    shapes = [list(array.shape) for array in BARD_TENSORS.values()]
    return NAMES, ["bfloat16"] * len(NAMES), shapes


def test_P10_sglangs_routes_of_a_group(tree, trainer, reference):
    names, dtypes, shapes = about()
    group = {"master_address": "127.0.0.1", "master_port": trainer.port, "rank_offset": 1, "world_size": 2}
    status, answer = post(tree, "/init_weights_update_group", {**group, "group_name": "w", "backend": "nccl"})
    assert status == 200 and answer["success"], answer
    trainer.ask("counted_in", world_size=2)
    fields = {"names": names, "dtypes": dtypes, "shapes": shapes, "group_name": "w", "weight_version": "step 1"}
    sent = in_thread(post, tree, "/update_weights_from_distributed", fields)
    trainer.ask("make_id")
    trainer.ask("publish", group="w")
    assert trainer.ask("join", world_size=2) == {}
    assert trainer.ask("broadcast", names=NAMES, packs=None)["num_broadcasts"] == len(NAMES)
    status, answer = sent()
    assert status == 200 and answer["success"], answer
    assert serving(tree.door("admin"))["digest"] == DIGESTS["bard"]["digest"]
    assert greedy(tree.door(), reference, "bard")
    trainer.tell("leave")
    status, answer = post(tree, "/destroy_weights_update_group", {"group_name": "w"})
    assert status == 200 and answer["success"], answer
    assert trainer.answer() == {}
    status, answer = post(tree, "/update_weights_from_distributed", fields)
    assert status == 400 and "w" in answer["message"], answer


PACK_BYTES = 500_000
VLLM_PACKINGS = {"each": {}, "packed": {"packed": True, "packed_buffer_size_bytes": PACK_BYTES}}


def join_by_vllms_route(tree, trainer, **packing):
    """Joins as vLLM's trainers do: the id is in the store at once, and the group's first operation is an all-reduce."""
    place = {"master_address": "127.0.0.1", "master_port": trainer.port, "rank_offset": 1, "world_size": 2}
    joined = in_thread(post, tree, "/init_weight_transfer_engine", {"init_info": {**place, **packing}})
    trainer.ask("counted_in", world_size=2)
    trainer.ask("make_id")
    trainer.ask("publish")
    assert trainer.ask("join", world_size=2, warm_up=True) == {}
    status, answer = joined()
    assert status == 200, answer


def update_info(names):
    return {
        "names": names,
        "dtype_names": ["bfloat16"] * len(names),
        "shapes": [list(BARD_TENSORS[name].shape) for name in names],
    }


def packs_of(names):
    """The number of tensors after which each packed broadcast ends: when it has grown beyond the size."""
    ends, size = [], 0
    for number, name in enumerate(names, 1):
        size += BARD_TENSORS[name].nbytes
        if size > PACK_BYTES or number == len(names):
            ends.append(number)
            size = 0
    return ends


@pytest.mark.parametrize("packing", VLLM_PACKINGS)
def test_P10_vllms_routes_of_a_group(tree, trainer, reference, packing):
    """One update of two calls, like SkyRL's; nothing serves before it is finished."""
    join_by_vllms_route(tree, trainer, **VLLM_PACKINGS[packing])
    status, answer = post(tree, "/start_weight_update", {})
    assert status == 200, answer
    num_broadcasts = 0
    for names in (NAMES[:5], NAMES[5:]):
        packs = packs_of(names) if packing == "packed" else None
        sent = in_thread(post, tree, "/update_weights", {"update_info": update_info(names)})
        num_broadcasts += len(names if packs is None else packs)
        assert trainer.ask("broadcast", names=names, packs=packs)["num_broadcasts"] == num_broadcasts
        status, answer = sent()
        assert status == 200, answer
        assert serving(tree.door("admin"))["digest"] == DIGESTS["stories"]["digest"]
    status, answer = post(tree, "/finish_weight_update", {"weight_version": "step 1"})
    assert status == 200, answer
    now = serving(tree.door("admin"))
    assert (now["digest"], now["label"]) == (DIGESTS["bard"]["digest"], "step 1"), now
    assert greedy(tree.door(), reference, "bard")


def test_P2_a_trainer_that_dies_over_vllms_routes_costs_the_update_and_the_next_one_joins(tree, trainer, reference):
    join_by_vllms_route(tree, trainer)
    status, answer = post(tree, "/start_weight_update", {})
    assert status == 200, answer
    sent = in_thread(post, tree, "/update_weights", {"update_info": update_info(NAMES)})
    trainer.tell("broadcast", names=NAMES, die_before=3)
    status, answer = sent()
    assert status == 503 and "NCCL" in answer["error"]["message"], answer
    status, answer = post(tree, "/finish_weight_update", {})
    assert status == 409 and "begin one first" in answer["error"]["message"], answer
    assert serving(tree.door("admin"))["digest"] == DIGESTS["stories"]["digest"]
    assert greedy(tree.door(), reference, "stories")
    status, answer = post(tree, "/update_weights", {"update_info": update_info(NAMES)})
    assert status == 409 and "begin one first" in answer["error"]["message"], answer
    with nccl_trainer.Trainer(BUILD, BARD) as next_trainer:
        join_by_vllms_route(tree, next_trainer)
        status, answer = post(tree, "/start_weight_update", {})
        assert status == 200, answer
        sent = in_thread(post, tree, "/update_weights", {"update_info": update_info(NAMES)})
        next_trainer.ask("broadcast", names=NAMES)
        status, answer = sent()
        assert status == 200, answer
        status, answer = post(tree, "/finish_weight_update", {})
        assert status == 200, answer
        assert serving(tree.door("admin"))["digest"] == DIGESTS["bard"]["digest"]


def test_a_rank_outside_the_group_is_an_error_of_the_route(tree, trainer, reference):
    group = {"master_address": "127.0.0.1", "master_port": trainer.port, "rank_offset": 2, "world_size": 2}
    status, answer = post(tree, "/init_weights_update_group", {**group, "group_name": "w", "backend": "nccl"})
    assert status == 400 and "rank_offset is 2; accepted is 1" in answer["error"]["message"], answer
    assert greedy(tree.door(), reference, "stories")


def test_a_restart_brings_back_a_version_from_a_directory_and_names_a_lost_pushed_one(gpu, start_tree, reference):
    tree = start_tree(*CUDA, "--restart")
    assert update(tree.door("admin"), BARD, label="step 1")["ok"]
    _, door, admin = crash(tree)
    before = serving(admin)
    assert (before["digest"], before["label"]) == (DIGESTS["bard"]["digest"], "step 1"), before
    assert greedy(door, reference, "bard")
    done = push(tree, "stories", "--label", "step 2")
    assert done.returncode == 0, done.stderr
    line, door, admin = crash(tree)
    assert "has lost its version" in line, line
    status = admin.call("status")
    assert status["lost"]["label"] == "step 2" and status["replicas"][0]["state"] == "awaiting_weights", status
    assert door.generate("Once", max_new_tokens=1).finish["code"] == "failed_precondition"
    done = push(tree, "bard", "--label", "step 3")
    assert done.returncode == 0, done.stderr
    assert greedy(door, reference, "bard")
    assert serving(admin)["digest"] == DIGESTS["bard"]["digest"]
    tree.stop()
