"""Weights from trainers over HTTP, as checkpoint-engine, SGLang's and vLLM's clients send them."""

import base64
import json
import pathlib
import sys
import threading

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "client" / "python"))

import torch_sender  # noqa: E402  (after the path)
from control_tree import http  # noqa: E402, F401
from pitstop.broadcast import HostBroadcast  # noqa: E402
from push_once import load  # noqa: E402

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


def in_thread(function, *args):
    result = []
    thread = threading.Thread(target=lambda: result.append(function(*args)))
    thread.start()

    def join():
        thread.join(60)
        return result[0]

    return join


@needs_torch
@pytest.mark.parametrize("flavour", ("sglang", "vllm"))
def test_P10_checkpoint_engine(http, admin, flavour):
    server = torch_sender.ParameterServer(DEVICES)
    if flavour == "sglang":
        body = {"zmq_handles": server.handles, "flush_cache": True, "weight_version": "v1"}
        request = in_thread(http.post, "/update_weights_from_ipc", body)
    else:
        body = {"method": "update_weights_from_ipc", "args": [server.handles], "timeout": 300.0}
        request = in_thread(http.post, "/collective_rpc", body)
    server.update(torch_sender.load(BARD))
    answer = request()
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
            "serialized_named_tensors": [base64.b64encode(p).decode() for p, _ in buckets],
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
    tensors = load(BARD)
    with HostBroadcast("weight_update_group", num_workers=2) as group:
        spec = {
            "master_address": group.host,
            "master_port": str(group.port),
            "rank_offset": 1,
            "world_size": 3,
            "backend": "host",
        }
        joined = in_thread(http.post, "/init_weights_update_group", spec)
        group.accept(20)
        assert joined().status == 200
        body = {
            "names": list(tensors),
            "dtypes": ["bfloat16"] * len(tensors),
            "shapes": [list(a.shape) for a in tensors.values()],
            "load_format": load_format,
        }
        update = in_thread(http.post, "/update_weights_from_distributed", body)
        if load_format is None:
            for array in tensors.values():
                group.broadcast(array)
        else:
            import numpy

            group.broadcast(numpy.concatenate([a.reshape(-1) for a in tensors.values()]))
        assert update().status == 200
        check_bard(admin)
        assert http.post("/destroy_weights_update_group", {}).status == 200
    assert http.post("/destroy_weights_update_group", {}).status == 400


def test_P10_vllms_session_with_packed_broadcasts(http, admin):
    import numpy

    tensors = load(BARD)
    with HostBroadcast("vllm_weight_transfer", num_workers=2) as group:
        info = {
            "master_address": group.host,
            "master_port": group.port,
            "rank_offset": 1,
            "world_size": 3,
            "backend": "host",
            "packed": True,
            "packed_buffer_size_bytes": 500_000,
        }
        joined = in_thread(http.post, "/init_weight_transfer_engine", {"init_info": info})
        group.accept(20)
        assert joined().status == 200
        assert http.post("/start_weight_update", {"is_checkpoint_format": True}).status == 200
        update_info = {
            "names": list(tensors),
            "dtype_names": ["bfloat16"] * len(tensors),
            "shapes": [list(a.shape) for a in tensors.values()],
        }
        update = in_thread(http.post, "/update_weights", {"update_info": update_info})
        pack, size = [], 0
        for array in tensors.values():
            pack.append(array.reshape(-1))
            size += array.nbytes
            if size > 500_000:
                group.broadcast(numpy.concatenate(pack))
                pack, size = [], 0
        if pack:
            group.broadcast(numpy.concatenate(pack))
        assert update().status == 200
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
