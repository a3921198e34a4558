"""Weights from trainers over HTTP, as checkpoint-engine, SGLang's and vLLM's clients send them."""

import base64
import json
import pathlib

import pytest

import torch_sender
from control_tree import http  # noqa: F401
from process_tree import wait_until
from trainers import broadcast, load, serialized, sglang_group, vllm_chunks, vllm_group

ROOT = pathlib.Path(__file__).resolve().parents[2]
needs_torch = pytest.mark.skipif(torch_sender.torch is None, reason=torch_sender.REASON)

TREE_FLAGS = ("--tp", 2)
STORIES = ROOT / "launch/models/stories"
BARD = ROOT / "launch/models/bard"
DIGESTS = json.loads((ROOT / "tests/data/golden/digests.json").read_text())["models"]
DEVICES = ("CPU-0-0", "CPU-0-1")


@pytest.fixture(autouse=True)
def serves_stories(admin):
    admin.call("update_weights", update={"source": {"kind": "disk", "path": str(STORIES)}})


def check_bard(admin):
    assert admin.call("weight_digests")["digest"] == DIGESTS["bard"]["digest"]


@needs_torch
@pytest.mark.parametrize("flavour", ("sglang", "vllm"))
def test_P10_checkpoint_engine(http, admin, flavour):
    server = torch_sender.ParameterServer(DEVICES)
    if flavour == "sglang":
        body = {"zmq_handles": server.handles, "flush_cache": True, "weight_version": "v1"}
        request = http.in_background(http.post, "/update_weights_from_ipc", body)
    else:
        body = {"method": "update_weights_from_ipc", "args": [server.handles], "timeout": 300.0}
        request = http.in_background(http.post, "/collective_rpc", body)
    server.update(torch_sender.load(BARD))
    answer = request.result()
    assert answer.status == 200, answer
    check_bard(admin)
    if flavour == "sglang":
        reply = answer.json()
        assert reply["success"] and "Weight version updated to v1" in reply["message"]
        assert reply["weight_digest"] == DIGESTS["bard"]["digest"]
        assert [rank["rank"] for rank in reply["ranks"]] == [0, 1]
    else:
        assert answer.json() == {"results": [None, None]}


@needs_torch
def test_a_device_that_is_not_named_is_400(http, admin):
    server = torch_sender.ParameterServer(["GPU-1"])
    answer = http.post("/update_weights_from_ipc", {"zmq_handles": server.handles})
    assert answer.status == 400 and "not found in zmq_handles" in answer.json()["message"]
    server.close()
    for body in ({}, {"zmq_handles": {}}, {"zmq_handles": {"CPU-0-0": "tcp://1.2.3.4:5"}}):
        assert http.post("/update_weights_from_ipc", body).status == 400, body


@needs_torch
def test_P10_flattened_buckets_in_a_session(http, admin):
    tensors = list(torch_sender.load(BARD).items())
    assert http.post("/end_weight_update").status == 400
    assert http.post("/begin_weight_update", {"selector": "all"}).status == 200
    for part in (dict(tensors[:30]), dict(tensors[30:])):
        buckets = [torch_sender.flattened_bucket(part) for _ in range(2)]
        body = {
            "serialized_named_tensors": serialized(payload for payload, _ in buckets),
            "load_format": "flattened_bucket",
            "flush_cache": False,
        }
        answer = http.post("/update_weights_from_tensor", body)
        assert answer.status == 200, answer
    answer = http.post("/end_weight_update", {"weight_version": "v2"})
    assert answer.status == 200 and answer.json()["weight_digest"] == DIGESTS["bard"]["digest"]
    check_bard(admin)


def test_bad_payloads_are_400(http):
    for body in (
        {},
        {"serialized_named_tensors": ["!"]},
        {"serialized_named_tensors": ["AAAA", "AAAA"]},
        {"serialized_named_tensors": ["AAAA"], "load_format": "os.system"},
    ):
        answer = http.post("/update_weights_from_tensor", body)
        assert answer.status == 400 and answer.json()["success"] is False, answer


@pytest.mark.parametrize("load_format", (None, "flattened_bucket"))
def test_P10_a_broadcast_by_sglangs_routes(http, admin, load_format):
    with sglang_group(http) as group:
        assert broadcast(http, group, load(BARD), load_format).status == 200
        check_bard(admin)
    assert http.post("/destroy_weights_update_group", {}).status == 400


def test_P10_vllms_session_with_packed_broadcasts(http, admin):
    tensors, size = load(BARD), 500_000
    with vllm_group(http, packed=True, packed_buffer_size_bytes=size) as group:
        assert http.post("/start_weight_update", {"is_checkpoint_format": True}).status == 200
        update_info = {
            "names": list(tensors),
            "dtype_names": ["bfloat16"] * len(tensors),
            "shapes": [list(a.shape) for a in tensors.values()],
        }
        update = http.in_background(http.post, "/update_weights", {"update_info": update_info})
        for chunk in vllm_chunks(tensors.values(), size):
            group.broadcast(chunk)
        assert update.result().status == 200
        answer = http.post("/finish_weight_update", {"weight_version": "step-7"})
        assert answer.status == 200, answer
        check_bard(admin)
        assert http.ok("GET", "/weight_info").json()["weight_version"] == "step-7"
        admin.call("destroy_group", group="vllm_weight_transfer")


@needs_torch
def test_P10_vllms_ipc_handles(http, admin):
    tensors = torch_sender.load(BARD)
    handles = [{d: t.clone().share_memory_() for d in DEVICES} for t in tensors.values()]
    payload = base64.b64encode(bytes(torch_sender.ForkingPickler.dumps(handles))).decode()
    assert http.post("/init_weight_transfer_engine", {"init_info": {}}).status == 200
    update_info = {
        "names": list(tensors),
        "dtype_names": ["bfloat16"] * len(tensors),
        "shapes": [list(t.shape) for t in tensors.values()],
        "ipc_handles_pickled": payload,
    }
    answer = http.post("/update_weights", {"update_info": update_info})  # without a session
    assert answer.status == 200, answer
    check_bard(admin)


def update_info(**fields):
    return {"update_info": {"names": [], "dtype_names": [], "shapes": [], **fields}}


@pytest.mark.parametrize("counts", (3, "3", {"a": 3}, ["x"], [None]))
def test_counts_of_sparse_updates_that_are_no_list_of_numbers_are_named(http, counts):
    answer = http.post("/update_weights", update_info(num_updates_list=counts))
    assert answer.status == 400 and "num_updates_list" in answer.json()["error"]["message"], answer


def test_a_call_that_was_not_understood_leaves_the_session_open(http, admin):
    with sglang_group(http) as group:
        http.ok("POST", "/begin_weight_update")
        bucket = broadcast(http, group, load(BARD), weight_version="named-by-a-bucket").json()
        assert bucket["success"] and "updated to" not in bucket["message"], bucket
        assert http.ok("GET", "/get_weight_version").json()["weight_version"] != "named-by-a-bucket"
        assert http.post("/end_weight_update", {"weight_version": "x" * 100_000}).status == 400
        assert http.post("/begin_weight_update").status == 400
        ended = http.ok("POST", "/end_weight_update").json()
        assert ended["weight_digest"] == DIGESTS["bard"]["digest"]
        assert http.ok("GET", "/get_weight_version").json()["weight_version"] == "named-by-a-bucket"
        assert http.post("/end_weight_update").status == 400  # the session has ended


def test_a_begin_or_an_end_beside_a_bucket_is_refused_and_ends_nothing(http, admin):
    tensors = load(BARD)
    body = {"names": list(tensors), "dtypes": ["bfloat16"] * len(tensors)}
    body["shapes"] = [list(array.shape) for array in tensors.values()]
    with sglang_group(http) as group:
        http.ok("POST", "/begin_weight_update")
        bucket = http.in_background(http.post, "/update_weights_from_distributed", body)
        wait_until(lambda: admin.call("drop_stage", session=2**63)["state"] == "fill", "the bucket to fill")
        for path in ("/begin_weight_update", "/end_weight_update"):  # refused while a bucket is in progress
            refused = http.post(path, body)
            assert refused.status == 400 and "under way" in refused.json()["message"], refused
        for array in tensors.values():
            group.broadcast(array)
        assert bucket.result().status == 200
        http.ok("POST", "/end_weight_update")
    check_bard(admin)
