"""Weights that are in the GPU's memory when they are sent: handles of PyTorch's and
checkpoint-engine's, from another process on the same GPU in software.
"""

import base64
import os
import sys

import pytest

from cuda_sender import Sender
from gpu_tree import BUILD, CUDA, gpu, machine, needs_gpu, shared_tree  # noqa: F401
from process_tree import ROOT
from test_updates import BARD, DIGESTS, STORIES, update
from wire import Door

sys.path.insert(0, str(ROOT / "client" / "python"))
import pitstop  # noqa: E402  (after the path)

pytestmark = needs_gpu


@pytest.fixture
def admin(shared_tree, monkeypatch):
    """The admin door of the tree, which serves stories, bit for bit, before and after each test. Senders use the tree's
    machine."""
    machine(monkeypatch, shared_tree.run_dir.parent)
    with shared_tree.door("admin") as admin:
        assert update(admin, STORIES)["ok"]
        yield admin
        assert admin.call("weight_digests")["digest"] == DIGESTS["stories"]["digest"]


@pytest.fixture
def sender(admin):
    with Sender(BUILD, BARD) as sender:
        yield sender


def test_P10_an_allocation_is_opened_once_for_all_buckets_of_a_session(gpu, start_tree):
    # Every further call of CUDA's to open the allocation fails.
    gpu(faults=",".join(f"cudaIpcOpenMemHandle:{n}=cudaErrorInvalidValue" for n in range(2, 100)))
    tree = start_tree(*CUDA)
    with pitstop.Client(tree.run_dir) as client, Sender(BUILD, BARD) as sender:
        names = [tensor["name"] for tensor in sender.ask("tensors")["tensors"]]
        session = client.begin_update()["session"]
        for part in range(3):
            payload = sender.payload(only=names[part::3])
            client.update_bucket({"kind": "tensors", "format": "pickle", "payloads": [{"data": payload}]}, session)
            assert not any(sender.ask("references")["references"]), "of each bucket"
        client.commit_weights(session=session)
        assert client.weight_digests()["digest"] == DIGESTS["bard"]["digest"]
        # The next update must open the allocation again, as the sender may have freed it; here that fails.
        assert refusal(client, sender.payload()).code == "unavailable"


def uuid_of(admin):
    return admin.call("status")["replicas"][0]["workers"][0]["device_uuid"]


@pytest.fixture
def client(shared_tree):
    with pitstop.Client(shared_tree.run_dir) as client:
        yield client


def send(client, payload):
    """Sends an update and rolls it back; returns the digest that the weights had in between."""
    source = {"kind": "tensors", "format": "pickle", "payloads": [{"data": payload}]}
    digest = client.update_weights(source=source)["digest"]
    assert digest == client.weight_digests()["digest"]
    client.rollback_weights()
    return digest


def refusal(client, payload):
    with pytest.raises(pitstop.PitstopError) as error:
        send(client, payload)
    return error.value


def drop(admin):
    admin.call("drop_stage")


@pytest.mark.parametrize("flattened", [False, True])
def test_P10_tensors_are_read_where_they_lie_and_their_references_come_back(client, sender, flattened):
    for _ in range(3):  # each update opens the handle again, as its sender may have freed the memory
        assert send(client, sender.payload(flattened=flattened)) == DIGESTS["bard"]["digest"]
        references = sender.ask("references")["references"]
        assert references and not any(references), references
    sender.ask("free")  # freed at once, as no worker has it open
    refused = refusal(client, sender.payload(flattened=flattened))
    assert refused.code == "unavailable", refused
    assert f"the sender, process {sender.process.pid}, runs: it freed the memory" in refused.message, refused


def test_P10_a_view_that_is_not_contiguous_is_gathered(client, sender):
    about = "model.layers.0.mlp.down_proj.weight"
    strides = sender.ask("transpose", name=about)["strides"]
    assert send(client, sender.payload(about=about, strides=strides)) == DIGESTS["bard"]["digest"]
    refused = refusal(client, sender.payload(about=about, strides=[0, 1], storage_bytes=4096))
    assert refused.code == "invalid_argument" and "send it contiguous" in refused.message, refused
    assert not any(sender.ask("references")["references"])


def test_a_device_by_its_uuid(admin, client, sender):
    own = uuid_of(admin).removeprefix("GPU-")
    assert send(client, sender.payload(device=own)) == DIGESTS["bard"]["digest"]
    other = own[:-1] + ("0" if own[-1] != "0" else "1")
    refused = refusal(client, sender.payload(device=other))
    assert refused.code == "invalid_argument" and other in refused.message, refused
    # Every reference that was sent is returned, however the update ended.
    assert sender.ask("references")["references"].count(0) > 10


@pytest.mark.parametrize(
    "lie, code, what",
    [
        ({"storage_bytes": 1 << 40}, "invalid_argument", f"a storage of {1 << 40} bytes"),
        ({"storage_bytes": 1 << 40}, "invalid_argument", "the sender's allocation has"),
        ({"handle": "00" * 64}, "unavailable", "cannot be opened"),
        ({"handle": "00" * 40}, "unsupported", "memory handle of 42 bytes"),
    ],
)
def test_P2_a_sender_that_lies_is_refused_by_name(client, sender, lie, code, what):
    refused = refusal(client, sender.payload(**lie))
    assert refused.code == code and what in refused.message, refused


@pytest.mark.parametrize("version", [1, 2, 3])
@pytest.mark.parametrize("flattened", [False, True])
def test_P10_expandable_segments_are_read_by_their_file_descriptors(client, sender, version, flattened):
    assert sender.ask("expand", version=version)["chunks"] >= 2  # so that tensors cross chunk borders
    for _ in range(2):
        assert send(client, sender.payload(flattened=flattened)) == DIGESTS["bard"]["digest"]
    references = sender.ask("references")["references"]
    assert references and not any(references), references


def test_P10_a_checkpoint_arrives_in_buckets_of_an_expandable_segment(admin, sender):
    sender.ask("expand")
    staged = serve(admin, sender)
    assert staged["ok"] and staged["digest"] == DIGESTS["bard"]["digest"], staged
    assert sender.answer()["answers"] == [""] * 6
    assert sender.ask("references")["references"] == [0]
    drop(admin)


@pytest.mark.parametrize(
    "lie, code, what",
    [
        ({"kind": 2}, "unsupported", "by fabric handles"),
        ({"kind": 2, "version": 2}, "unsupported", "by fabric handles"),
        ({"version": 4}, "unsupported", "version 4; versions 1 to 3"),
        ({"pid": 1}, "invalid_argument", "segments belong to process 1 and the reference counters to process"),
        ({"chunk_bytes": 0}, "invalid_argument", "chunks of 0 bytes"),
        ({"chunk_bytes": 12345}, "invalid_argument", "chunks of 12345 bytes"),
        ({"chunk_bytes": 1 << 62}, "invalid_argument", f"chunks of {1 << 62} bytes"),
        (
            {"chunk_bytes": 4 << 20},
            "unavailable",
            "chunk 0 of the sender's GPU memory, of 4194304 bytes, cannot be opened",
        ),
        ({"only": 1}, "invalid_argument", "the sender's allocation has 2097152"),
    ],
)
def test_P2_a_segment_that_is_none_is_refused_by_name_and_given_back(client, sender, lie, code, what):
    sender.ask("expand", **lie)
    refused = refusal(client, sender.payload())
    assert refused.code == code and what in refused.message, refused
    references = sender.ask("references")["references"]
    assert len(references) > 10 and not any(references), references
    sender.ask("expand")
    assert send(client, sender.payload()) == DIGESTS["bard"]["digest"]


def test_P2_a_segment_whose_descriptors_are_closed_or_whose_process_has_ended_is_refused(client, sender):
    sender.ask("expand")
    payload = sender.payload()
    sender.ask("close")
    refused = refusal(client, payload)
    assert refused.code == "unavailable" and "it freed the shared memory" in refused.message, refused
    pid = sender.process.pid
    sender.kill()
    refused = refusal(client, payload)
    assert refused.code == "unavailable" and f"process {pid}, has ended" in refused.message, refused
    assert "expandable_segments:False" in refused.message


@pytest.mark.parametrize(
    "lie, code",
    [
        ({"storage_bytes": 1 << 40}, "invalid_argument"),
        ({"handle": "00" * 40}, "unsupported"),
        ({"device": "00000000-0000-0000-0000-000000000000"}, "invalid_argument"),
    ],
)
def test_a_payload_that_fails_gives_every_reference_back(client, sender, lie, code):
    about = "model.layers.0.mlp.down_proj.weight"  # many others come before it and after it
    assert refusal(client, sender.payload(about=about, **lie)).code == code
    references = sender.ask("references")["references"]
    assert len(references) > 10 and not any(references), references
    assert send(client, sender.payload()) == DIGESTS["bard"]["digest"]


def test_a_payload_that_is_not_read_at_all_gives_every_reference_back(client, sender):
    wrong = {"source": {"kind": "tensors", "format": "pickle"}, "manifest": [{"name": "no.such.tensor"}]}
    for flattened in (False, True):
        wrong["source"]["payloads"] = [{"data": sender.payload(flattened=flattened)}]
        with pytest.raises(pitstop.PitstopError) as error:
            client.update_weights(**wrong)
        assert "no.such.tensor" in error.value.message
    references = sender.ask("references")["references"]
    assert len(references) > 10 and not any(references), references


def test_a_call_that_no_worker_has_seen_lends_nothing_and_may_be_sent_again(admin, client, sender):
    payload = sender.payload()
    assert admin.call("stage_weights", update={"source": {"kind": "disk", "path": BARD}})["ok"]
    error = refusal(client, payload)
    assert error.code == "failed_precondition" and "is staged" in error.message, error
    references = sender.ask("references")["references"]
    assert len(references) > 10 and all(references), "the sender's still"
    drop(admin)
    assert send(client, payload) == DIGESTS["bard"]["digest"]
    assert not any(sender.ask("references")["references"])


def test_P2_handles_of_a_process_that_is_gone_are_refused(client, sender):
    payload, pid = sender.payload(), sender.process.pid
    sender.kill()
    refused = refusal(client, payload)
    assert refused.code == "unavailable" and "cannot be opened" in refused.message, refused
    assert f"the sender, process {pid}, has ended" in refused.message, refused


def serve(admin, sender, manifest=(), **fields):
    endpoint = f"ipc://@pitstop-test-{os.getpid()}-{next(Door.numbers)}.sock"
    sender.tell("serve", endpoint=endpoint, **fields)
    assert sender.answer()["bound"]
    source = {"kind": "ipc", "handles": {uuid_of(admin): endpoint}, "stall_ms": 20_000}
    return admin.call("stage_weights", update={"source": source, "manifest": list(manifest)})


def test_P10_a_checkpoint_arrives_in_buckets_of_gpu_memory(admin, sender):
    staged = serve(admin, sender)
    assert staged["ok"] and staged["digest"] == DIGESTS["bard"]["digest"], staged
    assert sender.answer()["answers"] == [""] * 6
    assert sender.ask("references")["references"] == [0]
    drop(admin)


@pytest.mark.parametrize("die_before", [1, 2, 4])
def test_P2_a_sender_that_dies_anywhere_costs_the_stage_alone(admin, sender, die_before):
    refused = serve(admin, sender, die_before=die_before)
    assert not refused["ok"] and refused["code"] in ("unavailable", "aborted"), refused
    sender.process.wait()
    with Sender(BUILD, BARD) as next_sender:
        assert serve(admin, next_sender)["digest"] == DIGESTS["bard"]["digest"]
        next_sender.answer()
    drop(admin)


def test_P2_a_buffer_beyond_its_allocation_is_refused_and_the_sender_told(admin, sender):
    refused = serve(admin, sender, storage_bytes=1 << 40)
    assert refused["code"] == "invalid_argument", refused
    assert "the sender's allocation has" in sender.answer()["answers"][0]
    assert sender.ask("references")["references"] == [0]


def test_sockets_for_another_device_are_refused_by_both_uuids(admin):
    other = "GPU-00000000-0000-0000-0000-000000000000"
    source = {"kind": "ipc", "handles": {other: "ipc://@pitstop-test-nobody.sock"}}
    refused = admin.call("update_weights", update={"source": source})
    assert refused["code"] == "not_found" and other in refused["message"] and uuid_of(admin) in refused["message"], (
        refused
    )


def test_a_buffer_on_another_device_is_refused_by_its_uuid_and_given_back(admin, sender):
    other = "00000000-0000-0000-0000-000000000000"
    refused = serve(admin, sender, device=other)
    assert refused["code"] == "invalid_argument" and f"the buffer is on device {other}" in refused["message"], refused
    assert all(other in answer for answer in sender.answer()["answers"][:4])
    assert sender.ask("references")["references"] == [0]


def test_a_stage_that_takes_no_buffer_gives_it_back_and_tells_the_sender(admin, sender):
    refused = serve(admin, sender, manifest=[{"name": "no.such.tensor"}])
    assert refused["code"] == "invalid_argument" and "no.such.tensor" in refused["message"], refused
    assert "no.such.tensor" in sender.answer()["answers"][0]
    assert sender.ask("references")["references"] == [0]


def test_handles_by_a_device_that_is_not_this_workers_are_refused_by_its_uuid(admin, client, sender):
    """vLLM's form: per tensor the handles by device."""
    own = uuid_of(admin).removeprefix("GPU-")
    other = own[:-1] + ("0" if own[-1] != "0" else "1")
    infos = sender.ask("tensors")["tensors"]

    def send(uuid):
        payload = base64.b64decode(sender.ask("handles_by_device", uuid=uuid)["payload"])
        source = {"kind": "tensors", "format": "vllm_ipc", "tensors": infos, "payloads": [{"data": payload}]}
        return client.update_weights(source=source)

    with pytest.raises(pitstop.PitstopError) as error:
        send(other)
    assert error.value.code == "not_found" and f"this worker's device, GPU-{own}" in error.value.message, error.value
    num_refused = len(sender.ask("references")["references"])  # the other engine returns these itself
    assert send(own)["digest"] == DIGESTS["bard"]["digest"]
    assert not any(sender.ask("references")["references"][num_refused:])
    client.rollback_weights()
