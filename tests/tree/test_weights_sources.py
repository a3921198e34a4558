"""Weights from trainers over the bus: serialized tensors, raw bytes, sessions, sparse updates, NumPy pushes. Each
update takes effect as a whole or not at all."""

import mmap
import os
import pickle
import time

import numpy
import pytest

import pitstop
import torch_sender
from pitstop import push
from pitstop.digests import tensor_digest
from pitstop.push import WeightPusher
from pitstop.shared_memory import SharedFile
from process_tree import wait_until
from weights_sources import (  # noqa: F401  (the fixture)
    BARD,
    BARD_TENSORS,
    DIGESTS,
    STORIES,
    STORIES_TENSORS,
    client,
    digest_of,
    halves,
    needs_torch,
    raw_source,
    refused,
)

TREE_FLAGS = ("--tp", 2)


# ---- bytes in the call ----


def test_P10_raw_bytes_in_one_call(client):
    reply = client.update_weights(source=raw_source(BARD_TENSORS), label="raw")
    assert reply["digest"] == DIGESTS["bard"]["digest"] == digest_of(client)


def test_P2_a_session_is_one_transaction(client):
    first, second = halves(BARD_TENSORS)
    session = client.begin_update(label="bard")["session"]
    client.update_bucket(raw_source(first), session=session)
    assert digest_of(client) == DIGESTS["stories"]["digest"], "nothing serves before the commit"
    client.update_bucket(raw_source(second), session=session)
    reply = client.commit_weights(session=session, digest=DIGESTS["bard"]["digest"])
    assert reply["label"] == "bard"
    assert digest_of(client) == DIGESTS["bard"]["digest"]


def test_P2_a_session_that_is_not_complete_or_wrong_is_dropped(client):
    first, second = halves(BARD_TENSORS)
    client.begin_update()
    client.update_bucket(raw_source(first))
    error = refused(client.commit_weights)
    assert error.code == "invalid_argument" and list(second)[0] in error.message

    client.begin_update()
    client.update_bucket(raw_source(first))
    client.update_bucket(raw_source(second))
    error = refused(client.commit_weights, digest="0" * 32)
    assert error.code == "data_loss", error

    client.begin_update()
    client.update_bucket(raw_source(first))
    client.update_bucket(raw_source(first))  # sending the same bytes again is no error
    other = {name: array + 1 for name, array in first.items()}
    assert "arrived before" in refused(client.update_bucket, raw_source(other)).message
    assert refused(client.commit_weights).code == "failed_precondition"
    assert digest_of(client) == DIGESTS["stories"]["digest"]


def test_P5_an_abandoned_session_ends_by_its_deadline(client, shared_tree):
    client.begin_update(idle_timeout=2)
    client.update_bucket(raw_source(halves(BARD_TENSORS)[0]))

    def is_over():
        try:
            client.update_weights(str(STORIES))
            return True
        except pitstop.PitstopError as error:
            assert error.code == "failed_precondition", error
            return False

    wait_until(is_over, "the session to expire")


def test_a_partial_update_says_so(client):
    name = "model.norm.weight"
    source = raw_source({name: BARD_TENSORS[name]})
    assert "model.embed_tokens.weight" in refused(client.update_weights, source=source).message
    client.update_weights(source=source, partial=True)
    tensors = {t["name"]: t["digest"] for t in client.weight_digests()["tensors"]}
    assert tensors[name] == DIGESTS["bard"]["tensors"][name]
    other = "model.embed_tokens.weight"
    assert tensors[other] == DIGESTS["stories"]["tensors"][other]


def test_P2_a_partial_update_without_a_tensor_is_refused(client):
    empty = {"kind": "tensors", "format": "pickle", "payloads": [{"data": pickle.dumps([])}] * 2}
    epoch = client.status()["replicas"][0]["epoch"]

    def by_session():
        session = client.begin_update(partial=True)["session"]
        client.commit_weights(session=session)

    for how in (lambda: client.update_weights(source=empty, partial=True), by_session):
        error = refused(how)
        assert error.code == "invalid_argument", error
        assert "the update of the model is partial and brings no tensor" in error.message, error
    session = client.begin_update(partial=True)["session"]
    client.update_bucket(empty, session=session)
    client.update_bucket(raw_source({"model.norm.weight": BARD_TENSORS["model.norm.weight"]}), session=session)
    client.update_bucket(empty, session=session)
    assert client.commit_weights(session=session)["epoch"] > epoch


@pytest.mark.parametrize(
    "change, what",
    [
        (lambda s: s["payloads"][0].update(data=s["payloads"][0]["data"][:-2]), "were sent"),
        (lambda s: s["payloads"][0].update(data=s["payloads"][0]["data"] + b"00"), "were sent"),
        (lambda s: s["tensors"][0].update(shape=[1 << 62, 1 << 62]), "shape"),
        (lambda s: s["tensors"][0].update(shape=[-1]), "[-1]"),
        (lambda s: s["tensors"][0].update(dtype="int7"), "int7"),
        (lambda s: s["payloads"].insert(0, {"data": b""}), "were sent|2 payloads for 1 rank"),
        (lambda s: s["payloads"].extend([{"data": b""}] * 3), "4 payloads for "),
    ],
)
def test_P2_bytes_that_do_not_fit_are_refused(client, change, what):
    source = raw_source(BARD_TENSORS)
    change(source)
    error = refused(client.update_weights, source=source)
    assert any(part in error.message for part in what.split("|")), error
    assert digest_of(client) == DIGESTS["stories"]["digest"]


# ---- sparse ----


def sparse_source(name, shape, indices, values):
    data = numpy.array(indices, numpy.int32).tobytes() + numpy.array(values, numpy.uint16).tobytes()
    return {
        "kind": "tensors",
        "format": "sparse",
        "tensors": [{"name": name, "dtype": "bfloat16", "shape": list(shape)}],
        "num_updates": [len(indices)],
        "payloads": [{"data": data}],
    }


@pytest.mark.parametrize(
    "name",
    [
        "model.embed_tokens.weight",
        "model.layers.0.self_attn.q_proj.weight",
        "model.layers.1.mlp.down_proj.weight",
        "model.norm.weight",
    ],
)
def test_P10_a_sparse_update_changes_those_elements(client, name):
    want = STORIES_TENSORS[name].copy()
    rng = numpy.random.default_rng(5)
    indices = rng.choice(want.size, size=min(want.size, 200), replace=False)
    values = BARD_TENSORS[name].reshape(-1)[indices]
    want.reshape(-1)[indices] = values
    base = digest_of(client)
    source = sparse_source(name, want.shape, indices, values)
    client.update_weights(source=source, partial=True, base_digest=base)
    tensors = {t["name"]: t["digest"] for t in client.weight_digests()["tensors"]}
    assert tensors.pop(name) == tensor_digest(want)
    expected = dict(DIGESTS["stories"]["tensors"])
    expected.pop(name)
    assert tensors == expected
    # The base version of this update no longer serves.
    error = refused(client.update_weights, source=source, partial=True, base_digest=base)
    assert error.code == "failed_precondition"


def test_P2_a_sparse_update_out_of_range_is_refused(client):
    shape = STORIES_TENSORS["model.norm.weight"].shape
    base = digest_of(client)
    for index in (-1, shape[0], 2**31 - 1):
        source = sparse_source("model.norm.weight", shape, [0, index], [0, 0])
        error = refused(client.update_weights, source=source, partial=True, base_digest=base)
        assert error.code == "invalid_argument" and str(index) in error.message
    source = sparse_source("model.norm.weight", shape, [0], [0])
    assert "base_digest" in refused(client.update_weights, source=source, partial=True).message
    assert digest_of(client) == base


# ---- PyTorch's serialized tensors ----


def ranks(client):
    """The ranks of the tree's replica: each needs a payload of its own."""
    return range(client.info.tp)


def pickled(payloads):
    return {"kind": "tensors", "format": "pickle", "payloads": [{"data": p} for p in payloads]}


@needs_torch
def test_P10_serialized_named_tensors_and_their_references_come_back(client):
    before = torch_sender.torch_segments()

    def send():
        tensors = {n: t.share_memory_() for n, t in torch_sender.load(BARD).items()}
        payload = lambda: bytes(torch_sender.ForkingPickler.dumps(list(tensors.items())))
        return client.update_weights(source=pickled([payload() for _ in ranks(client)]))

    assert send()["digest"] == DIGESTS["bard"]["digest"] == digest_of(client)
    wait_until(lambda: torch_sender.torch_segments() <= before, "shared memory to be freed")


@needs_torch
def test_P10_flattened_buckets_in_a_session(client):
    before = torch_sender.torch_segments()
    client.begin_update()

    def send(half):
        buckets = [torch_sender.flattened_bucket(half) for _ in ranks(client)]
        client.update_bucket(pickled([payload for payload, _ in buckets]))

    for half in halves(torch_sender.load(BARD)):
        send(half)
    assert client.commit_weights()["digest"] == DIGESTS["bard"]["digest"]
    wait_until(lambda: torch_sender.torch_segments() <= before, "shared memory to be freed")


@needs_torch
def test_P10_tensors_that_were_serialized_once_serve_many_updates(client):
    """Only the first update returns a lent reference; later ones find only the sender's own references."""
    before = torch_sender.torch_segments()

    def send():
        resident = {n: t.share_memory_() for n, t in torch_sender.load(BARD).items()}
        versions = {"bard": torch_sender.load(BARD), "stories": torch_sender.load(STORIES)}
        dumps = torch_sender.ForkingPickler.dumps
        source = pickled([bytes(dumps(list(resident.items()))) for _ in ranks(client)])
        for version in ("bard", "stories", "bard", "stories"):
            for name, tensor in resident.items():
                tensor.copy_(versions[version][name])
            assert client.update_weights(source=source)["digest"] == DIGESTS[version]["digest"]

    send()
    wait_until(lambda: torch_sender.torch_segments() <= before, "shared memory to be freed")


@needs_torch
def test_P10_memory_that_its_sender_has_let_go_of_is_freed_by_its_last_reader(client):
    before = torch_sender.torch_segments()

    def lent():
        """Returns a pickle for each rank, the only owners of the tensors."""
        tensors = {n: t.share_memory_() for n, t in torch_sender.load(BARD).items()}
        return [bytes(torch_sender.ForkingPickler.dumps(list(tensors.items()))) for _ in ranks(client)]

    source = pickled(lent())
    assert len(torch_sender.torch_segments() - before) == len(BARD_TENSORS)
    assert client.update_weights(source=source)["digest"] == DIGESTS["bard"]["digest"]
    wait_until(lambda: torch_sender.torch_segments() <= before, "shared memory to be freed")
    assert refused(client.update_weights, source=source).code == "not_found"


@needs_torch
def test_P7_payloads_for_another_number_of_ranks_are_refused_and_given_back(client):
    before = torch_sender.torch_segments()
    num_ranks = len(ranks(client))

    def lent(num):
        """Returns `num` pickles, the only owners of the tensors."""
        tensors = {n: t.share_memory_() for n, t in torch_sender.load(BARD).items()}
        return [bytes(torch_sender.ForkingPickler.dumps(list(tensors.items()))) for _ in range(num)]

    for num in {1, num_ranks + 1, 2 * num_ranks} - {num_ranks}:
        error = refused(client.update_weights, source=pickled(lent(num)))
        what = "one payload for 2 ranks: a handle" if num == 1 else f"{num} payloads for {num_ranks} rank"
        assert error.code == "invalid_argument" and what in error.message, error
    assert digest_of(client) == DIGESTS["stories"]["digest"]
    wait_until(lambda: torch_sender.torch_segments() <= before, "shared memory to be freed")


@needs_torch
def test_a_view_that_is_not_contiguous_is_gathered(client):
    name = "model.layers.0.mlp.gate_proj.weight"
    tensor = torch_sender.load(BARD)[name].t().contiguous().share_memory_().t()
    assert not tensor.is_contiguous()
    payload = lambda: bytes(torch_sender.ForkingPickler.dumps([(name, tensor)]))
    client.update_weights(source=pickled([payload() for _ in ranks(client)]), partial=True)
    tensors = {t["name"]: t["digest"] for t in client.weight_digests()["tensors"]}
    assert tensors[name] == DIGESTS["bard"]["tensors"][name]


@needs_torch
def test_P7_bad_payloads_are_refused_and_lend_nothing(client):
    class Exploit:
        def __reduce__(self):
            return os.system, ("false",)

    tensor = torch_sender.load(BARD)["model.norm.weight"]
    plain = pickle.dumps([("model.norm.weight", tensor)])
    for payload, code in (
        (pickle.dumps([("model.norm.weight", Exploit())]), "permission_denied"),
        (plain, "permission_denied"),  # a torch.save stream inside
        (b"", "malformed"),
        (pickle.dumps({"flattened_tensor": None}), "invalid_argument"),
        (pickle.dumps([("model.norm.weight", 5)]), "invalid_argument"),
    ):
        error = refused(client.update_weights, source=pickled([payload for _ in ranks(client)]), partial=True)
        assert error.code == code, error
    assert digest_of(client) == DIGESTS["stories"]["digest"]


# ---- pushes ----


def test_P10_numpy_arrays_are_pushed(client):
    seen = []
    reply = WeightPusher(client, bucket_bytes=300_000).push(
        BARD_TENSORS, label="numpy", on_progress=lambda done, total: seen.append(done / total)
    )
    assert reply["digest"] == DIGESTS["bard"]["digest"] == digest_of(client)
    assert reply["label"] == "numpy" and seen[-1] == 1.0 and len(seen) > 3
    single = {"model.norm.weight": STORIES_TENSORS["model.norm.weight"]}
    WeightPusher(client).push(single, partial=True)
    tensors = {t["name"]: t["digest"] for t in client.weight_digests()["tensors"]}
    assert tensors["model.norm.weight"] == DIGESTS["stories"]["tensors"]["model.norm.weight"]


class _Shared:
    """Tensors in unsealed shared memory of this process."""

    def __init__(self, tensors):
        self.fd = os.memfd_create("a test's")
        os.ftruncate(self.fd, 4096 + sum(array.nbytes for array in tensors.values()))
        memory = mmap.mmap(self.fd, 0)
        self.tensors, at = {}, 4096
        for name, array in tensors.items():
            lying = numpy.frombuffer(memory, array.dtype, array.size, at).reshape(array.shape)
            lying[...] = array
            self.tensors[name] = lying
            at += array.nbytes


@pytest.fixture
def shared_bard():
    shared = _Shared(BARD_TENSORS)
    yield shared
    os.close(shared.fd)


def test_P10_arrays_in_shared_memory_are_read_where_they_are(client, shared_bard, monkeypatch):
    monkeypatch.setattr(push, "_Memory", None)  # nothing is copied
    seen = []
    reply = WeightPusher(client, holders=[1, os.getpid()]).push(
        shared_bard.tensors, on_progress=lambda done, total: seen.append(done / total)
    )
    assert reply["digest"] == DIGESTS["bard"]["digest"] == digest_of(client)
    assert seen[-1] == 1.0


def test_P10_arrays_outside_the_holders_memory_are_copied(client, shared_bard):
    half = {**shared_bard.tensors, "model.norm.weight": BARD_TENSORS["model.norm.weight"]}
    reply = WeightPusher(client, holders=[os.getpid()]).push(half)
    assert reply["digest"] == DIGESTS["bard"]["digest"] == digest_of(client)
    turned = {**shared_bard.tensors}
    for name, array in shared_bard.tensors.items():
        if array.ndim == 2 and array.shape[0] == array.shape[1]:
            turned[name] = array.T  # the same memory, with the elements in another order
    wanted = {name: numpy.ascontiguousarray(array) for name, array in turned.items()}
    WeightPusher(client, holders=[os.getpid()]).push(turned)
    found = {t["name"]: t["digest"] for t in client.weight_digests()["tensors"]}
    assert found == {name: tensor_digest(array) for name, array in wanted.items() if name in found}


def test_P2_shared_memory_that_is_cut_short_ends_its_push_alone(client, shared_bard, monkeypatch):
    monkeypatch.setattr(push, "READ_BYTES", 300_000)

    def cut(done, total):
        os.ftruncate(shared_bard.fd, 4096)

    error = refused(WeightPusher(client, holders=[os.getpid()]).push, shared_bard.tensors, on_progress=cut)
    assert error.code == "data_loss" and "shorter" in error.message, error
    assert digest_of(client) == DIGESTS["stories"]["digest"]
    reply = WeightPusher(client).push(BARD_TENSORS)
    assert reply["digest"] == DIGESTS["bard"]["digest"], "the workers live"


def test_P2_a_file_that_is_no_shared_memory_is_refused(client, tmp_path, monkeypatch):
    file = open(tmp_path / "weights", "w+b")
    file.write(bytes(1 << 20))
    file.flush()
    monkeypatch.setattr(
        push,
        "find_shared_file",
        lambda tensors, holders: SharedFile(os.getpid(), file.fileno(), 1 << 20, dict.fromkeys(tensors, 0)),
    )
    error = refused(WeightPusher(client, holders=[os.getpid()]).push, BARD_TENSORS)
    assert error.code == "invalid_argument" and "is not shared memory" in error.message, error
    assert digest_of(client) == DIGESTS["stories"]["digest"]


def test_P2_a_pusher_that_fails_tells_its_workers(client):
    """Workers that wait for further buckets are told, and the next push succeeds at once."""

    class Failed(Exception):
        pass

    def fail(done, total):
        raise Failed("the disk is full")

    stall = 120.0
    begin = time.monotonic()
    with pytest.raises(Failed):
        WeightPusher(client, bucket_bytes=300_000, stall=stall).push(BARD_TENSORS, on_progress=fail)
    reply = WeightPusher(client).push(BARD_TENSORS)
    assert reply["digest"] == DIGESTS["bard"]["digest"]
    assert time.monotonic() - begin < stall / 2


def test_P2_a_push_of_another_model_is_refused(client):
    wrong = {**BARD_TENSORS, "model.norm.weight": numpy.zeros((3,), numpy.uint16)}
    error = refused(WeightPusher(client).push, wrong)
    assert error.code == "invalid_argument" and "model.norm.weight" in error.message, error
    assert digest_of(client) == DIGESTS["stories"]["digest"]
