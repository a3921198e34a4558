"""checkpoint-engine's protocol, with a real PyTorch sender, on a real tree."""

import json
import os
import pickle
import time

import pytest
import zmq

import torch_sender
from process_tree import ROOT, wait_until
from torch_sender import Failed, ParameterServer, load
from wire import Door

pytestmark = pytest.mark.skipif(torch_sender.torch is None, reason=torch_sender.REASON)

STORIES = ROOT / "launch/models/stories"
BARD = ROOT / "launch/models/bard"
DIGESTS = json.loads((ROOT / "tests/data/golden/digests.json").read_text())["models"]
TREE_FLAGS = ("--tp", 2)
DEVICES = ("CPU-0-0", "CPU-0-1")


@pytest.fixture(scope="module")
def bard():
    return load(BARD)


@pytest.fixture
def admin(shared_tree):
    with shared_tree.door("admin") as admin:
        admin.call("update_weights", update={"source": {"kind": "disk", "path": str(STORIES)}})
        yield admin
        check_serves(admin, "stories")


def devices_of(admin):
    return [worker["device_uuid"] for replica in admin.call("status")["replicas"] for worker in replica["workers"]]


def start_update(admin, handles, stall_ms=30_000, **spec):
    """Starts the call. finish_update() returns its answer."""
    source = {"kind": "ipc", "handles": handles, "stall_ms": stall_ms}
    admin.send("update_weights", call=next(Door.numbers), update={"source": source, **spec})


def finish_update(admin):
    kind, reply = admin.receive()
    assert kind == "update_reply", (kind, reply)
    return reply


def check_serves(admin, model):
    """Checks that the resident weights are the model's, bit for bit."""
    reply = admin.call("weight_digests")
    assert reply["ok"] and reply["digest"] == DIGESTS[model]["digest"], reply


@pytest.mark.parametrize("tp", (1, 2, 4))
@pytest.mark.parametrize("num_nones", (1, 2))
def test_P10_a_checkpoint_arrives_in_buckets(start_tree, bard, tp, num_nones):
    tree = start_tree("--tp", tp)
    with tree.door("admin") as admin:
        devices = devices_of(admin)
        assert len(devices) == tp
        before = torch_sender.torch_segments()
        server = ParameterServer(devices, num_nones=num_nones)
        start_update(admin, server.handles, label="bard")
        server.update(bard)
        reply = finish_update(admin)
        assert reply["ok"], reply
        assert reply["digest"] == DIGESTS["bard"]["digest"] and reply["label"] == "bard"
        (replica,) = reply["replicas"]
        for rank in replica["ranks"]:
            assert rank["bytes"] > 0 and rank["receive_s"] > 0, rank
            assert rank["tensors"] == len(bard)
        check_serves(admin, "bard")
        # The references lent to the workers were returned, so torch frees tensors that nobody else
        # holds.
        wait_until(lambda: torch_sender.torch_segments() <= before, "shared memory to be freed")


def test_P10_a_buffer_that_was_exported_once_serves_many_updates(admin, bard):
    before = torch_sender.torch_segments()
    bucket_bytes = 1 << 20
    exported = torch_sender.Exported(DEVICES, 2 * bucket_bytes)
    stories = load(STORIES)
    for model, tensors in (("bard", bard), ("stories", stories), ("bard", bard), ("stories", stories)):
        server = ParameterServer(DEVICES, bucket_bytes, exported=exported)
        start_update(admin, server.handles, label=model)
        server.update(tensors)
        reply = finish_update(admin)
        assert reply["ok"] and reply["digest"] == DIGESTS[model]["digest"], reply
    del exported, server
    wait_until(lambda: torch_sender.torch_segments() <= before, "shared memory to be freed")


def test_P10_the_pair_that_torch_reduces_a_tensor_to_is_a_handle(admin, bard):
    before = torch_sender.torch_segments()
    for model, tensors in (("bard", bard), ("stories", load(STORIES))):
        server = ParameterServer(DEVICES, is_reduced=True)
        start_update(admin, server.handles, label=model)
        server.update(tensors)
        reply = finish_update(admin)
        assert reply["ok"] and reply["digest"] == DIGESTS[model]["digest"], reply
    del server
    wait_until(lambda: torch_sender.torch_segments() <= before, "shared memory to be freed")


def test_P2_tokens_flow_while_buckets_come(door, admin, bard):
    rid = door.start("Once upon a time", max_new_tokens=400, ignore_eos=True, temperature=0.0)
    server = ParameterServer(DEVICES, bucket_bytes=600_000)
    start_update(admin, server.handles, label="bard")
    server.update(bard)
    assert finish_update(admin)["ok"]
    (output,) = door.finish([rid])
    assert len(output.tokens) == 400 and output.finish["reason"] == "length"
    admin.call("update_weights", update={"source": {"kind": "disk", "path": str(STORIES)}})


LIES = {
    "dtype": (lambda entry: entry.update(dtype=torch_sender.torch.int16), "I16"),
    "shape": (lambda entry: entry.update(shape=torch_sender.torch.Size([2, 2])), "[2, 2]"),
    "name": (lambda entry: entry.update(name="model.nothing"), "model.nothing"),
    "offset past the end": (lambda entry: entry.update(offset=1 << 40), "buffer of"),
    "offset before the start": (lambda entry: entry.update(offset=-1), "offset -1"),
    "size past the end": (lambda entry: entry.update(offset=2 * (1 << 20) - 1), "buffer of"),
    "negative extent": (lambda entry: entry.update(shape=torch_sender.torch.Size([-1, 2])), "[-1, 2]"),
    "a key too many": (lambda entry: entry.update(other=1), "entry 0"),
    "a key missing": (lambda entry: entry.pop("dtype"), "entry 0"),
}


@pytest.mark.parametrize("lie", LIES)
def test_P2_a_sender_that_lies_is_told_and_nothing_changes(admin, bard, lie):
    change, what = LIES[lie]

    def tamper(index, metadata):
        if index == 1:
            change(metadata[0])
        return metadata

    server = ParameterServer(DEVICES)
    start_update(admin, server.handles)
    with pytest.raises(Failed) as failed:
        server.update(bard, tamper)
    assert what in str(failed.value)
    reply = finish_update(admin)
    assert not reply["ok"] and reply["code"] == "invalid_argument", reply
    assert what in reply["message"] and reply["state"] == "serving"
    server.close()


def test_P2_overlapping_tensors_and_a_tensor_sent_twice_are_refused(admin, bard):
    for change, what in (
        (lambda m: m[1].update(offset=m[0]["offset"]), "overlap"),
        (lambda m: m.append(dict(m[0], offset=m[-1]["offset"] + (1 << 19))), "twice"),
    ):
        server = ParameterServer(DEVICES, bucket_bytes=1 << 20)
        start_update(admin, server.handles)

        def tamper(index, metadata):
            if index == 0:
                change(metadata)
            return metadata

        with pytest.raises(Failed, match=what):
            server.update(bard, tamper)
        assert what in finish_update(admin)["message"]
        server.close()


def test_P2_an_error_in_the_last_bucket_is_told_by_the_call(admin, bard):
    """The sender ignores the answer to its last bucket."""
    server = ParameterServer(DEVICES, bucket_bytes=4 << 20)  # one bucket

    def tamper(_, metadata):
        return metadata[:-1]

    start_update(admin, server.handles)
    server.update(bard, tamper)
    reply = finish_update(admin)
    assert not reply["ok"] and list(bard)[-1] in reply["message"], reply


def test_a_missing_device_is_named_and_the_others_are_told(admin, bard):
    server = ParameterServer(["CPU-0-0"])
    start_update(admin, {**server.handles, "GPU-1234": server.handles["CPU-0-0"]})
    server.open()
    reply = finish_update(admin)
    assert reply["code"] == "not_found" and "CPU-0-1" in reply["message"], reply
    assert "GPU-1234" in reply["message"]
    server.close()


def test_P5_a_sender_that_stalls_is_given_up(admin, bard):
    for num_messages in (0, 1, 2):
        server = ParameterServer(DEVICES)
        # Time enough for a sender that continues, even if it waits for a core.
        start_update(admin, server.handles, stall_ms=300 if num_messages == 0 else 4000)
        buckets = list(server.buckets(bard))
        if num_messages >= 1:
            server.open()
            server.check_answers()
        if num_messages >= 2:
            server.send(pickle.dumps(server.fill(buckets[0], 0)))
            server.check_answers()
        reply = finish_update(admin)
        assert reply["code"] == "deadline_exceeded", reply
        assert "did not answer in time" in reply["message"] and reply["total_s"] < 60
        server.close()


def test_P5_a_stall_of_any_length_may_be_asked_for(admin, bard):
    server = ParameterServer(DEVICES)
    start_update(admin, server.handles, stall_ms=(1 << 63) - 1)
    server.update(bard)
    assert finish_update(admin)["ok"]
    admin.call("update_weights", update={"source": {"kind": "disk", "path": str(STORIES)}})


def give_up(socket):
    """Sends the sender's error to one worker. The whole stage is dropped, on the other rank too."""
    socket.send(pickle.dumps(RuntimeError("out of memory")))


def test_P5_a_sender_that_goes_on_after_a_drop_is_heard_for_seconds_only(admin, bard):
    server = ParameterServer(DEVICES)
    start_update(admin, server.handles)
    server.open()
    server.check_answers()
    first, second = server.sockets.values()
    give_up(first)
    message = pickle.dumps([])  # an empty bucket
    begun = time.monotonic()
    second.send(message)
    while second.poll(4000):  # repeats the bucket as fast as answers come
        second.recv()
        try:
            second.send(message, zmq.NOBLOCK)
        except zmq.Again:  # the rank has closed its socket
            break
        assert time.monotonic() - begun < 60, "it is answered for ever"
    assert finish_update(admin)["code"] == "aborted"
    server.close()


def test_P5_a_drop_is_noticed_after_an_error_that_the_sender_ignores(admin, bard):
    server = ParameterServer(DEVICES)
    start_update(admin, server.handles, stall_ms=60_000)
    server.open()
    server.check_answers()
    first, second = server.sockets.values()
    second.send(pickle.dumps([{"name": "model.nothing"}]))
    assert "entry 0" in second.recv().decode()
    begun = time.monotonic()
    give_up(first)  # and nothing more is sent to the second rank
    assert not finish_update(admin)["ok"]
    check_serves(admin, "stories")  # this call waits for the stage's end
    assert time.monotonic() - begun < 50  # the stall is 60 s
    server.close()


def test_P2_a_sender_that_dies_anywhere_costs_the_stage_alone(admin, bard):
    for num_messages in range(6):
        server = ParameterServer(DEVICES, bucket_bytes=600_000)
        start_update(admin, server.handles)
        steps = [server.open]
        for index, bucket in enumerate(list(server.buckets(bard))[:3]):
            steps.append(lambda index=index, bucket=bucket: server.send(pickle.dumps(server.fill(bucket, index % 2))))
        for step in steps[: num_messages // 2 + 1]:
            step()
            if step is not steps[num_messages // 2] or num_messages % 2 == 1:
                server.check_answers()
        server.close()
        reply = finish_update(admin)
        assert reply["code"] == "unavailable", reply
        assert "is gone" in reply["message"] or "no sender" in reply["message"]
        check_serves(admin, "stories")


def test_a_sender_that_gives_up_is_believed(admin, bard):
    server = ParameterServer(DEVICES)
    start_update(admin, server.handles)
    server.open()
    server.check_answers()
    server.send(pickle.dumps(RuntimeError("out of memory")))
    reply = finish_update(admin)
    assert reply["code"] == "aborted" and "RuntimeError: out of memory" in reply["message"], reply
    server.close()


def test_P7_bytes_that_are_no_bucket_are_refused_and_never_run(admin, bard, tmp_path):
    class Exploit:
        def __reduce__(self):
            return os.system, (f"touch {tmp_path}/pwned",)

    server = ParameterServer(DEVICES)
    start_update(admin, server.handles)
    server.open()
    server.check_answers()
    server.send(pickle.dumps(Exploit()))
    assert "is not allowed" in str(server.answers())
    reply = finish_update(admin)
    assert reply["code"] == "permission_denied", reply
    assert not (tmp_path / "pwned").exists()
    server.close()


def test_P2_a_handle_to_memory_that_is_gone_is_refused(admin, bard):
    server = ParameterServer(DEVICES)
    handles = [bytes(torch_sender.ForkingPickler.dumps(b)) for b in server.buffers.values()]
    for name in torch_sender.torch_segments():
        os.unlink(f"/dev/shm/{name}")
    start_update(admin, server.handles)
    for socket, handle in zip(server.sockets.values(), handles):
        socket.send(handle)
    assert "cannot be opened" in str(server.answers())
    server.send(pickle.dumps(RuntimeError("Some workers failed to update weights")))
    reply = finish_update(admin)
    assert reply["code"] == "not_found", reply
    server.close()


def test_two_senders_at_once(admin, bard, shared_tree):
    first, second = ParameterServer(DEVICES), ParameterServer(DEVICES)
    start_update(admin, first.handles, label="first")
    with shared_tree.door("admin") as other:
        wait_until(lambda: other.call("drop_stage", session=2**63)["state"] != "serving", "the first to begin")
        start_update(other, second.handles, label="second")
        first.update(bard)
        assert finish_update(admin)["ok"]
        second.update(bard)
        assert finish_update(other)["ok"], "it waited for the first"
    second.close()
    admin.call("update_weights", update={"source": {"kind": "disk", "path": str(STORIES)}})
