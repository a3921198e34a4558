"""The colocated cycle as trainers drive it: memory is released, the weights come back in many calls
without a session, and no token is generated from half-new weights.
"""

import contextlib
import json
from http.client import HTTPConnection

import pytest

from control_tree import BARD, STORIES, http  # noqa: F401
from shared_tensors import shared
from trainers import NUM_WORKERS, broadcast, load, serialized, sglang_group, vllm_group
from wire import DEADLINE_S

TREE_FLAGS = ("--tp", 2)
GREEDY = {"max_new_tokens": 12, "temperature": 0}
NUM_CALLS = 7


def chunks(tensors, num):
    """The tensors in this many calls, in their order."""
    names = list(tensors)
    size = -(-len(names) // num)
    return [{name: tensors[name] for name in names[i : i + size]} for i in range(0, len(names), size)]


def checksum(http):
    return http.ok("POST", "/weights_checker").json()["per_engine_checksum"]


def status(tree):
    with tree.door("admin") as admin:
        return admin.call("status")


@pytest.fixture(scope="module")
def fresh(tree):
    """The output of a fresh start on each model, and its digest."""
    from http_calls import Http

    http = Http(tree.url)
    found = {}
    for model in (BARD, STORIES):
        http.ok("POST", "/update_weights_from_disk", {"model_path": model})
        found[model] = (http.generate(**GREEDY)["output_ids"], checksum(http))
    assert found[BARD][0] != found[STORIES][0]
    return found


@pytest.fixture(autouse=True)
def on_stories(http, fresh):
    http.ok("POST", "/update_weights_from_disk", {"model_path": STORIES})


def is_served(http, fresh, model):
    assert http.generate(**GREEDY)["output_ids"] == fresh[model][0]
    assert checksum(http) == fresh[model][1]


def test_weights_come_back_in_many_calls_after_a_release(http, tree, fresh):
    http.ok("POST", "/release_memory_occupation", {})
    http.ok("POST", "/resume_memory_occupation", {"tags": ["weights"]})
    calls = chunks(load(BARD), NUM_CALLS)
    with sglang_group(http) as group:
        for i, tensors in enumerate(calls):
            answer = broadcast(http, group, tensors, weight_version="b", flush_cache=True)
            assert answer.status == 200 and answer.json()["success"], answer
            said = status(tree)
            if i + 1 < len(calls):
                assert said["collecting"]["must_be_complete"]
                missing = set(load(BARD)) - {name for call in calls[: i + 1] for name in call}
                assert said["collecting"]["num_missing"] == len(missing)
                assert set(said["collecting"]["missing"]) <= missing
                assert "missing tensors" in answer.json()["message"]
    assert "collecting" not in status(tree)
    http.ok("POST", "/resume_memory_occupation", {"tags": ["kv_cache"]})
    is_served(http, fresh, BARD)
    assert http.generate(**GREEDY)["meta_info"]["weight_version"] == "b"


def test_a_call_that_fails_leaves_a_tree_that_awaits_weights(http, tree, fresh):
    http.ok("POST", "/release_memory_occupation", {})
    http.ok("POST", "/resume_memory_occupation", {})
    first, *_ = chunks(load(BARD), NUM_CALLS)
    with sglang_group(http, survives=False) as group:
        assert broadcast(http, group, first).status == 200
        refused = http.post(
            "/update_weights_from_distributed",
            {"names": ["nothing.weight"], "dtypes": ["bfloat16"], "shapes": [[1, 1]]},
        )
        assert refused.status == 400 and "none of the 2 calls takes effect" in refused.json()["message"]
        assert status(tree)["replicas"][0]["state"] == "awaiting_weights"
    with sglang_group(http) as group:
        for tensors in chunks(load(BARD), 3):
            assert broadcast(http, group, tensors).status == 200
    is_served(http, fresh, BARD)


def test_calls_under_a_pause_are_one_update(http, tree, fresh):
    before = status(tree)
    http.ok("POST", "/pause_generation", {"mode": "retract"})
    with sglang_group(http) as group:
        for tensors in chunks(load(BARD), NUM_CALLS):
            answer = broadcast(http, group, tensors, weight_version="step 9", flush_cache=True)
            assert answer.status == 200 and "take effect together" in answer.json()["message"], answer
            assert status(tree)["replicas"][0]["epoch"] == before["replicas"][0]["epoch"]
    assert status(tree)["collecting"]["calls"] == NUM_CALLS
    http.ok("POST", "/continue_generation")
    after = status(tree)
    assert after["updates_total"] == before["updates_total"] + 1
    assert after["replicas"][0]["epoch"] == before["replicas"][0]["epoch"] + 1
    assert after["replicas"][0]["label"] == "step 9"
    is_served(http, fresh, BARD)


# The calls that pause and continue generation, by dialect.
WAYS = {
    "SGLang's pause": (("/pause_generation", {"mode": "in_place"}), "/continue_generation"),
    "AReaL's continue": (("/pause_generation", {"mode": "retract"}), "/areal_continue_generation"),
    "vLLM's pause": (("/pause?mode=keep", {}), "/resume"),
    "vLLM's sleep": (("/sleep?level=0&mode=keep", {}), "/wake_up"),
    "SGLang's memory": (("/release_memory_occupation", {"tags": ["kv_cache"]}), "/resume_memory_occupation"),
}


@pytest.mark.parametrize("way", WAYS)
def test_the_call_that_publishes_calls_says_what_took_effect(http, tree, fresh, way):
    stop, go_on = WAYS[way]
    before = status(tree)["replicas"][0]["epoch"]
    http.ok("POST", *stop)
    with sglang_group(http) as group:
        for tensors in chunks(load(BARD), 2):
            assert broadcast(http, group, tensors, weight_version="step 9", flush_cache=False).status == 200
    update = http.ok("POST", go_on).json()["update"]
    assert (update["epoch"], update["weight_version"], update["calls"]) == (before + 1, "step 9", 2)
    assert update["digest"] == status(tree)["replicas"][0]["digest"]
    assert update["bytes"] > 0
    is_served(http, fresh, BARD)


def test_a_digest_sees_whole_updates_only(http, tree, fresh):
    before = checksum(http)
    http.ok("POST", "/pause_generation", {"mode": "in_place"})
    with sglang_group(http) as group:
        for tensors in chunks(load(BARD), 2):
            assert broadcast(http, group, tensors).status == 200
    assert checksum(http) == before, "a reader reads what serves, and publishes nothing"
    answer = http.ok("POST", "/continue_generation").json()
    assert answer["update"]["calls"] == 2 and answer["update"]["digest"] == status(tree)["replicas"][0]["digest"]
    assert answer["update"]["weight_version"] == f"epoch {answer['update']['epoch']}"
    assert checksum(http) == fresh[BARD][1]
    is_served(http, fresh, BARD)


@pytest.mark.parametrize("is_paused", (True, False))
def test_eight_calls_at_once_are_queued_and_all_succeed(http, tree, fresh, is_paused):
    """A stopped worker delays the first answer, so all calls are sent before it. SGLang's tokenizer queues them in the
    same way."""
    before = status(tree)["replicas"][0]["epoch"]
    if is_paused:
        http.ok("POST", "/pause_generation", {"mode": "in_place"})
    with contextlib.ExitStack() as ends:
        calls = [HTTPConnection(http.place, timeout=DEADLINE_S) for _ in range(8)]
        with tree.frozen("tp_worker[0.1]"):
            for call, tensors in zip(calls, chunks(load(BARD), 8), strict=True):
                ends.callback(call.close)
                payloads = [ends.enter_context(shared(tensors)) for _ in range(NUM_WORKERS)]
                body = {
                    "serialized_named_tensors": serialized(payloads),
                    "weight_version": "step 9",
                    "flush_cache": False,
                }
                call.request("POST", "/update_weights_from_tensor", json.dumps(body))
        answers = [call.getresponse() for call in calls]
        said = [json.loads(answer.read()) for answer in answers]
        assert [answer.status for answer in answers] == [200] * 8 and all(each["success"] for each in said), said
    if is_paused:
        assert status(tree)["collecting"]["calls"] == 8
        update = http.ok("POST", "/continue_generation").json()["update"]
        assert (update["epoch"], update["weight_version"], update["calls"]) == (before + 1, "step 9", 8)
    serves = status(tree)["replicas"][0]
    assert serves["epoch"] == before + (1 if is_paused else 8) and serves["label"] == "step 9"
    is_served(http, fresh, BARD)


def test_a_session_of_a_tree_without_weights_must_be_complete(http, tree, fresh):
    http.ok("POST", "/release_memory_occupation", {})
    http.ok("POST", "/resume_memory_occupation", {})
    calls = chunks(load(BARD), 3)
    with sglang_group(http) as group:
        http.ok("POST", "/begin_weight_update", {})
        assert broadcast(http, group, calls[0]).status == 200
        refused = http.post("/end_weight_update", {})
        assert refused.status == 400 and "missing" in refused.json()["message"], refused
        assert status(tree)["replicas"][0]["state"] == "awaiting_weights"
        http.ok("POST", "/begin_weight_update", {})
        for tensors in calls:
            assert broadcast(http, group, tensors).status == 200
        http.ok("POST", "/end_weight_update", {})
    is_served(http, fresh, BARD)


def test_vllms_sleep_at_level_2_and_updates_without_a_session(http, tree, fresh):
    http.ok("POST", "/sleep?level=2")
    http.ok("POST", "/wake_up?tags=weights")
    with vllm_group(http) as group:
        for tensors in chunks(load(BARD), NUM_CALLS):
            info = {
                "names": list(tensors),
                "dtype_names": ["bfloat16"] * len(tensors),
                "shapes": [list(array.shape) for array in tensors.values()],
            }
            update = http.in_background(http.post, "/update_weights", {"update_info": info})
            for array in tensors.values():
                group.broadcast(array)
            assert update.result().status == 200, update.result()
        with tree.door("admin") as admin:
            admin.call("destroy_group", group="vllm_weight_transfer")
    http.ok("POST", "/wake_up?tags=kv_cache")
    is_served(http, fresh, BARD)
