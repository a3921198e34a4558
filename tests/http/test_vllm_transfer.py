"""vLLM's acceptance scenarios about weights from a trainer, on a live tree of two ranks; TCP and
shared memory replace NCCL and CUDA IPC.
"""

import base64
import json

import numpy
import pytest

import torch_sender
from control_tree import BARD, LONG, STORIES, http, kind, many, paused_amid, read_tensor  # noqa: F401
from http_calls import finished
from trainers import ROOT, load, vllm_chunks, vllm_group

TREE_FLAGS = ("--tp", 2)
needs_torch = pytest.mark.skipif(torch_sender.torch is None, reason=torch_sender.REASON)
DIGESTS = json.loads((ROOT / "tests/data/golden/digests.json").read_text())["models"]
DEVICES = ("CPU-0-0", "CPU-0-1")
NORM = "model.norm.weight"
DOWN = "model.layers.2.mlp.down_proj.weight"


def digest(http):
    return http.ok("GET", "/weight_info").json()["weight_digest"]


def info_of(tensors, dtype="bfloat16", **more):
    return {
        "names": list(tensors),
        "dtype_names": [dtype] * len(tensors),
        "shapes": [list(tensor.shape) for tensor in tensors.values()],
        **more,
    }


def end_group(admin):
    admin.call("destroy_group", group="vllm_weight_transfer")


# ---- packed broadcasts ----

SIZES = [array.nbytes for array in load(BARD).values()]
PACKED = {
    "exact fit of all": sum(SIZES),  # a chunk that is exactly full does not end, so there is one chunk
    "one byte over": sum(SIZES) - 1,
    "exact fit of the first two": SIZES[0] + SIZES[1],
    "one byte over the first two": SIZES[0] + SIZES[1] - 1,
    "smaller than any tensor": 1,  # every tensor is a chunk of its own
    "smaller than the largest": max(SIZES) - 1,
}


@pytest.mark.parametrize("name", PACKED)
@pytest.mark.parametrize("said", ("at the start", "with the update"))
def test_packed_broadcasts_of_every_size(http, admin, name, said):
    """Packing is turned on by /init_weight_transfer_engine (new clients) or by update_info (older ones)."""
    packing = {"packed": True, "packed_buffer_size_bytes": PACKED[name]}
    tensors = load(BARD)
    with vllm_group(http, **(packing if said == "at the start" else {"packed": False})) as group:
        http.ok("POST", "/start_weight_update")
        info = info_of(tensors, **(packing if said == "with the update" else {}))
        update = http.in_background(http.post, "/update_weights", {"update_info": info})
        for chunk in vllm_chunks(tensors.values(), PACKED[name]):
            group.broadcast(chunk)
        assert update.result().status == 200, update.result()
        http.ok("POST", "/finish_weight_update", {"weight_version": name})
        assert digest(http) == DIGESTS["bard"]["digest"]
        end_group(admin)


def test_packed_broadcasts_of_mixed_dtypes_at_odd_offsets(http, admin):
    """A float8 tensor is refused by name; float32 is accepted for bfloat16, at any offset."""
    norm = (load(BARD)[NORM].astype("<u4") << 16).view("<f4")
    with vllm_group(http, packed=True) as group:
        tensors = {DOWN: load(BARD)[DOWN], NORM: norm}
        info = info_of(tensors)
        info["dtype_names"] = ["bfloat16", "float32"]
        update = http.in_background(http.post, "/update_weights", {"update_info": info})
        group.broadcast(numpy.concatenate([a.reshape(-1).view(numpy.uint8) for a in tensors.values()]))
        answer = update.result()
        assert answer.status == 200, answer
        end_group(admin)


# ---- SkyRL's worker extension ----


def rpc(http, method, **kwargs):
    return http.post("/collective_rpc", {"method": method, "kwargs": kwargs})


def test_skyrls_calls_are_one_update_of_any_number_of_chunks(http, admin):
    tensors = load(BARD)
    names = list(tensors)
    with vllm_group(http) as group:
        assert rpc(http, "skyrl_start_weight_update", is_checkpoint_format=True).json() == {"results": [None, None]}
        for chunk in (names[:5], names[5:]):
            part = {name: tensors[name] for name in chunk}
            update = http.in_background(rpc, http, "update_weights_nccl", update_info=info_of(part))
            for array in part.values():
                group.broadcast(array)
            assert update.result().json() == {"results": [None, None]}, update.result()
            assert digest(http) == DIGESTS["stories"]["digest"], "nothing serves before the finish"
        assert rpc(http, "skyrl_finish_weight_update").json() == {"results": [None, None]}
        assert digest(http) == DIGESTS["bard"]["digest"]
        end_group(admin)


def test_skyrls_calls_say_what_is_wrong(http):
    for path, body in (
        ("/collective_rpc", {"method": "skyrl_start_weight_update", "kwargs": {"is_checkpoint_format": False}}),
        ("/start_weight_update", {"is_checkpoint_format": False}),
    ):
        kernels = http.post(path, body)
        assert kernels.status == 400 and "is_checkpoint_format" in kernels.json()["error"]["message"]
    over = rpc(http, "skyrl_finish_weight_update")
    assert over.status >= 400 and "begin one first" in over.json()["error"]["message"]
    assert rpc(http, "update_weights_ipc", update_info={"names": 5}).status == 400
    assert rpc(http, "update_weights_rdt").status == 501


# ---- IPC ----


@needs_torch
def test_ipc_packed_the_producer_overwrites_right_after_the_reply(http):
    """Each worker has one buffer. Each chunk of a session is written into it and announced again."""
    torch = torch_sender.torch
    size = 600_000
    buffers = {device: torch.zeros(size, dtype=torch.uint8).share_memory_() for device in DEVICES}
    chunks, chunk, used = [], {}, 0
    for name, tensor in torch_sender.load(BARD).items():  # a chunk ends before it would overflow the buffer
        data = torch_sender.as_bytes(tensor)
        if used + len(data) > size:
            chunks.append(chunk)
            chunk, used = {}, 0
        chunk[name] = tensor
        used += len(data)
    chunks.append(chunk)
    assert len(chunks) > 1
    http.ok("POST", "/init_weight_transfer_engine", {"init_info": {}})
    http.ok("POST", "/start_weight_update")
    for chunk in chunks:
        flat = torch.cat([torch_sender.as_bytes(tensor) for tensor in chunk.values()])
        for buffer in buffers.values():
            buffer[: len(flat)] = flat
        payload = base64.b64encode(bytes(torch_sender.ForkingPickler.dumps(buffers))).decode()
        sizes = [tensor.numel() * tensor.element_size() for tensor in chunk.values()]
        info = info_of(chunk, packed=True, tensor_sizes=sizes, ipc_handles_pickled=payload)
        answer = http.post("/update_weights", {"update_info": info})
        assert answer.status == 200, answer
        for buffer in buffers.values():
            buffer.fill_(0xFF)
    http.ok("POST", "/finish_weight_update")
    assert digest(http) == DIGESTS["bard"]["digest"]


# ---- failures ----


def test_an_update_that_fails_in_the_middle_ends_the_session_and_the_next_may_start(http):
    before = http.generate(max_new_tokens=16)["text"]
    http.ok("POST", "/start_weight_update")
    wrong = info_of({"model.nothing.weight": numpy.zeros((2, 2))})
    failed = http.post("/update_weights", {"update_info": wrong})
    assert failed.status >= 400 and failed.json()["error"]["message"], failed
    over = http.post("/finish_weight_update")
    assert over.status >= 400 and "begin one first" in over.json()["error"]["message"]
    assert digest(http) == DIGESTS["stories"]["digest"]
    assert http.generate(max_new_tokens=16)["text"] == before
    http.ok("POST", "/start_weight_update")
    empty = http.post("/finish_weight_update")
    assert empty.status == 400 and "brings no tensor" in empty.json()["error"]["message"], empty


@pytest.mark.parametrize(
    "path, body",
    (
        ("/init_weight_transfer_engine", {}),
        ("/init_weight_transfer_engine", {"init_info": 5}),
        ("/update_weights", {}),
        ("/update_weights", {"update_info": 5}),
        ("/update_weights", {"update_info": [5]}),
        ("/update_weights", {"update_info": {"names": ["a"], "dtype_names": [], "shapes": []}}),
        ("/update_weights", {"update_info": {"names": ["a"], "dtype_names": ["b"], "shapes": [5]}}),
        ("/collective_rpc", {}),
    ),
)
def test_what_is_missing_or_malformed_is_400_in_vllms_shape(http, path, body):
    answer = http.post(path, body)
    assert answer.status == 400, answer
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


# ---- the reference order of an update in flight ----


@pytest.mark.parametrize("clear_cache", ("false", "true"))
def test_the_reference_order_of_an_update_while_requests_run(http, admin, clear_cache):
    """Pause, start, update, finish, resume: every request continues, and names its versions."""
    http.ok("POST", "/update_weight_version", {"new_version": "step-6"})
    tensors, said = load(BARD), []
    with vllm_group(http) as group:
        pause = lambda: said.append(http.ok("POST", f"/pause?mode=keep&clear_cache={clear_cache}").json())  # noqa: E731
        requests = paused_amid(admin, many(http, 8, max_new_tokens=LONG), 8, pause)
        assert said[-1] == {"status": "paused"}
        http.ok("POST", "/start_weight_update", {"is_checkpoint_format": True})
        update = http.in_background(http.post, "/update_weights", {"update_info": info_of(tensors)})
        for array in tensors.values():
            group.broadcast(array)
        assert update.result().json() == {"message": "Weights updated"}
        assert digest(http) == DIGESTS["stories"]["digest"], "nothing serves before the finish"
        finish = http.ok("POST", "/finish_weight_update", {"weight_version": "step-7"})
        assert finish.json() == {"message": "Weight update finished"}
        http.ok("POST", "/resume")
        end_group(admin)
    outputs = finished(requests)
    assert {kind(output) for output in outputs} == {"length"}
    labels = [[s["version"] for s in output["meta_info"]["weight_versions"]] for output in outputs]
    assert ["step-6", "step-7"] in labels and all(label[-1] == "step-7" for label in labels)
    numpy.testing.assert_array_equal(
        http.ok("POST", "/get_weights_by_name", {"name": DOWN}).json(), read_tensor(BARD, DOWN)[:100]
    )


# ---- the weight checker ----


def test_weight_checker_by_vllms_route(http):
    sums = http.ok("POST", "/weight_checker", {"action": "checksum"}).json()["checksums"]
    assert DOWN in sums and len(set(sums.values())) > 10
    same = http.ok("POST", "/weight_checker", {"action": "compare", "baseline": sums}).json()
    assert same == {"match": True, "mismatches": []}
    other = http.post("/weight_checker", {"action": "compare", "baseline": {**sums, DOWN: "0" * 32}})
    assert other.json() == {"match": False, "mismatches": [DOWN]}
    for body in ({}, {"action": "explode"}, {"action": "compare"}, {"action": "compare", "baseline": 5}):
        assert http.post("/weight_checker", body).status == 400, body
    http.ok("POST", "/pause")
    assert http.post("/weight_checker", {"action": "checksum"}).status == 409
    http.ok("POST", "/resume")
    assert http.ok("POST", "/weight_checker", {"action": "reset"}).json() == {"status": "reset"}
    assert http.post("/weight_checker", {"action": "checksum"}).status == 409
    http.ok("POST", "/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": STORIES}})
    assert http.ok("POST", "/weight_checker", {"action": "compare", "baseline": sums}).json()["match"]
