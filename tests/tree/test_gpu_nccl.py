"""Weights over NCCL on the GPU in software: a trainer in a process of its own on the machine's
other GPU. The worker joins its group through torch's store, as SGLang and vLLM do, or with a given
id (nccl_trainer.py).
"""

import numpy
import pytest

import nccl_trainer
import pitstop
from gpu_tree import BUILD, machine, needs_gpu, shared_tree  # noqa: F401  (the fixture, in place of the CPU's)
from pitstop.digests import tensor_digest
from test_gpu_updates import greedy
from test_weights_broadcasts import distributed, in_thread
from weights_sources import BARD, BARD_TENSORS, DIGESTS, STORIES, STORIES_TENSORS, digest_of, refused

pytestmark = needs_gpu
NAMES = list(BARD_TENSORS)


@pytest.fixture
def client(shared_tree, monkeypatch):
    """A client of the tree, which serves stories, bit for bit, before and after each test. Trainers use the tree's
    machine."""
    machine(monkeypatch, shared_tree.run_dir.parent)
    with pitstop.Client(shared_tree.run_dir) as client:
        if digest_of(client) != DIGESTS["stories"]["digest"]:
            client.update_weights(str(STORIES))
        yield client
        with pytest.raises(pitstop.PitstopError, match="nothing is staged"):
            client.drop_stage()


@pytest.fixture
def start_trainer(client):
    """start_trainer(gpu=1): starts a trainer, which ends with the test."""
    trainers = []

    def start(gpu=1, model=BARD):
        trainers.append(nccl_trainer.Trainer(BUILD, model, gpu))
        return trainers[-1]

    yield start
    for trainer in trainers:
        trainer.__exit__()


def spec(trainer, **fields):
    return {"backend": "nccl", "address": "127.0.0.1", "port": trainer.port, "world_size": 2, **fields}


def meet(client, trainer, group="w", **fields):
    """SGLang's way: the worker counts itself in, and reads the id when the first update comes."""
    client.init_group(group, timeout=30, **spec(trainer, **fields))
    trainer.ask("counted_in", world_size=2)
    trainer.ask("make_id")
    trainer.ask("publish", group=group)


def part(client, trainer, group="w"):
    trainer.tell("leave")
    client.destroy_group(group)
    assert trainer.answer() == {}


def held_by(group, stall_ms=60_000, tensors=BARD_TENSORS, **fields):
    return distributed(tensors, group=group, stall_ms=stall_ms, **{"format": "each", **fields})


@pytest.mark.parametrize("format", ["each", "flattened", "packed"])
def test_P10_broadcasts_of_a_torch_trainer(client, start_trainer, shared_tree, reference, format):
    """torch's order: the id comes only with the first broadcast. One broadcast per tensor or
    bucket, and no more.
    """
    trainer = start_trainer()
    client.init_group("w", timeout=30, **spec(trainer))
    trainer.ask("counted_in", world_size=2)
    packs = {"each": None, "flattened": [len(NAMES)], "packed": []}[format]
    fields = {"format": "flattened" if packs is not None else "each"}
    if format == "packed":
        fields["packed_bytes"], size = 500_000, 0
        for number, array in enumerate(BARD_TENSORS.values(), 1):
            size += array.nbytes
            if size > 500_000 or number == len(NAMES):
                packs.append(number)
                size = 0
    update = in_thread(client.update_weights, source=held_by("w", **fields), label=format)
    trainer.ask("make_id")
    trainer.ask("publish", group="w")
    assert trainer.ask("join", world_size=2) == {}
    sent = trainer.ask("broadcast", names=NAMES, packs=packs)
    reply = update()
    assert sent["num_broadcasts"] == (len(NAMES) if packs is None else len(packs))
    assert reply["digest"] == DIGESTS["bard"]["digest"] == digest_of(client)
    (rank,) = reply["replicas"][0]["ranks"]
    assert rank["bytes"] == reply["bytes"] and rank["receive_s"] > 0
    assert greedy(shared_tree.door(), reference, "bard")
    part(client, trainer)


def test_P10_vllms_group_begins_with_an_all_reduce(client, start_trainer):
    for has_store in (True, False):
        trainer = start_trainer()
        unique_id = bytes.fromhex(trainer.ask("make_id")["id"])
        if has_store:
            joined = in_thread(client.init_group, "v", timeout=30, **spec(trainer, rendezvous="vllm"))
            trainer.ask("counted_in", world_size=2)
            trainer.ask("publish")
        else:
            fields = {"backend": "nccl", "world_size": 2, "rendezvous": "vllm", "unique_id": unique_id}
            joined = in_thread(client.init_group, "v", timeout=30, **fields)
        assert trainer.ask("join", world_size=2, warm_up=True) == {}
        joined()
        for _ in range(2):  # a group serves many updates
            update = in_thread(client.update_weights, source=held_by("v", format="flattened"))
            trainer.ask("broadcast", names=NAMES, packs=[len(NAMES)])
            assert update()["digest"] == DIGESTS["bard"]["digest"]
        part(client, trainer, "v")
        client.update_weights(str(STORIES))


def test_P10_an_id_in_the_call_and_sparse_updates(client, start_trainer):
    trainer = start_trainer()
    unique_id = bytes.fromhex(trainer.ask("make_id")["id"])
    fields = {"backend": "nccl", "world_size": 2, "rendezvous": "direct", "unique_id": unique_id}
    joined = in_thread(client.init_group, "d", timeout=30, **fields)
    assert trainer.ask("join", world_size=2) == {}
    joined()
    name = "model.norm.weight"
    old, new = STORIES_TENSORS[name], STORIES_TENSORS[name].copy()
    indices = numpy.array([0, 7, old.size - 1], dtype=numpy.int32)
    new[indices] = BARD_TENSORS[name].reshape(-1)[indices]
    source = held_by("d", tensors={name: old}, format="sparse", num_updates=[len(indices)])
    base = digest_of(client)
    update = in_thread(client.update_weights, source=source, partial=True, base_digest=base)
    parts = [[indices.tobytes().hex(), nccl_trainer.INT32], [new[indices].tobytes().hex(), nccl_trainer.BFLOAT16]]
    assert trainer.ask("broadcast_bytes", parts=parts) == {}
    update()
    digests = {tensor["name"]: tensor["digest"] for tensor in client.weight_digests()["tensors"]}
    assert digests[name] == tensor_digest(new) != tensor_digest(old)
    part(client, trainer, "d")


def test_P2_a_trainer_that_dies_in_mid_broadcast_costs_the_group_and_the_stage(client, start_trainer, shared_tree):
    for die_before in (0, 3):
        before = digest_of(client)
        trainer = start_trainer()
        meet(client, trainer)
        update = in_thread(client.update_weights, source=held_by("w"))
        assert trainer.ask("join", world_size=2) == {}
        trainer.tell("broadcast", names=NAMES, die_before=die_before)
        error = refused(update)
        assert error.code == "unavailable" and "NCCL 2.28.9" in error.message, error
        assert digest_of(client) == before
    # The next trainer joins under the same name, and everything else is as before.
    trainer = start_trainer()
    meet(client, trainer)
    update = in_thread(client.update_weights, source=held_by("w"))
    trainer.ask("join", world_size=2)
    trainer.ask("broadcast", names=NAMES)
    assert update()["digest"] == DIGESTS["bard"]["digest"]
    # The death of a trainer between two updates does not block the next trainer either.
    trainer.kill()
    trainer = start_trainer()
    meet(client, trainer)
    client.destroy_group("w")


@pytest.mark.parametrize("lateness", ["never joins", "sends nothing", "sends another size"])
def test_P5_a_trainer_that_does_not_come_is_waited_for_until_the_deadline(client, start_trainer, lateness):
    before = digest_of(client)
    trainer = start_trainer()
    meet(client, trainer)
    update = in_thread(client.update_weights, source=held_by("w", stall_ms=3000))
    if lateness != "never joins":
        assert trainer.ask("join", world_size=2) == {}
    if lateness == "sends another size":
        trainer.tell("broadcast_bytes", parts=[["00" * 64, nccl_trainer.BFLOAT16]])
    error = refused(update)
    assert error.code == "deadline_exceeded" and "timed out waiting" in error.message, error
    assert digest_of(client) == before
    assert refused(client.destroy_group, "w").code == "not_found"


def test_P5_steps_wait_for_no_broadcast(client, start_trainer, shared_tree):
    """Requests run while a worker waits for a tensor that is not sent yet."""
    trainer = start_trainer()
    meet(client, trainer)
    update = in_thread(client.update_weights, source=held_by("w", format="flattened"))
    assert trainer.ask("join", world_size=2) == {}
    door = shared_tree.door()
    output = door.generate("Once upon a time", max_new_tokens=8, temperature=0.0, ignore_eos=True)
    assert len(output.tokens) == 8
    trainer.ask("broadcast", names=NAMES, packs=[len(NAMES)])
    assert update()["digest"] == DIGESTS["bard"]["digest"]
    part(client, trainer)


def test_P5_one_group_at_a_time_uses_nccl(client, start_trainer):
    """The other trainer's join waits for its turn. If the time runs out, the error names the group that has the turn."""
    trainer, other = start_trainer(), start_trainer()
    meet(client, trainer)
    update = in_thread(client.update_weights, source=held_by("w", format="flattened"))
    assert trainer.ask("join", world_size=2) == {}
    unique_id = bytes.fromhex(other.ask("make_id")["id"])
    fields = {"backend": "nccl", "world_size": 2, "rendezvous": "direct", "unique_id": unique_id}
    error = refused(client.init_group, "x", timeout=2, **fields)
    assert error.code == "deadline_exceeded", error
    trainer.ask("broadcast", names=NAMES, packs=[len(NAMES)])
    assert update()["digest"] == DIGESTS["bard"]["digest"]
    part(client, trainer)


@pytest.mark.parametrize("format", ["each", "flattened"])
def test_P2_a_broadcast_of_more_than_4_gib_is_refused_before_any_is_received(client, start_trainer, format):
    """The model ignores these names, so any shape may be announced for them; the trainer sends nothing."""
    trainer = start_trainer()
    meet(client, trainer)
    name = "model.layers.{}.self_attn.rotary_emb.inv_freq"
    num, elements = (1, (2 << 30) + 1) if format == "each" else (2, (1 << 30) + 1)
    tensors = [{"name": name.format(i), "dtype": "BF16", "shape": [elements]} for i in range(num)]
    source = {"kind": "distributed", "group": "w", "tensors": tensors, "format": format}
    error = refused(client.update_weights, source=source, partial=True)
    assert error.code == "too_large", error
    assert f"a broadcast of {2 * num * elements} bytes" in error.message and str(4 << 30) in error.message, error
    assert refused(client.destroy_group, "w").code == "not_found"  # the announced tensor has no receiver


def test_groups_that_nccl_cannot_form_are_refused_by_name(client, start_trainer):
    def joins_with(trainer, **fields):
        unique_id = bytes.fromhex(trainer.ask("make_id")["id"])
        fields = {"world_size": 2, "rendezvous": "direct", "unique_id": unique_id, "timeout": 20, **fields}
        joined = in_thread(client.init_group, "w", backend="nccl", **fields)
        trainer.tell("join", world_size=2)
        return refused(joined)

    same = joins_with(start_trainer(gpu=0))
    assert same.code == "failed_precondition" and "Duplicate GPU" in same.message, same
    larger = joins_with(start_trainer(), world_size=3, timeout=5)  # the second trainer gets an error
    assert larger.code in ("failed_precondition", "deadline_exceeded"), larger
    short = joins_with(start_trainer(), unique_id=bytes(5))
    assert "unique_id has 5 bytes" in short.message, short
    lost = joins_with(start_trainer(), unique_id=bytes(128))
    assert lost.code == "unavailable" and "unique id" in lost.message, lost
