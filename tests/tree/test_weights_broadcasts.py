"""Weights that trainers broadcast to a group of workers. Each update takes effect as a whole or not at all."""

import pathlib
import subprocess
import sys
import threading

import numpy
import pytest

import pitstop
import torch_sender
from pitstop.broadcast import HostBroadcast
from weights_sources import BARD_TENSORS, DIGESTS, client, digest_of, infos, needs_torch, refused  # noqa: F401  (the fixture)
from wire import DEADLINE_S

STORE = pathlib.Path(__file__).with_name("torch_store.py")
TREE_FLAGS = ("--tp", 2)


def in_thread(function, *args, **kwargs):
    """Runs the function on a thread. The returned function joins it and returns its result, or its error."""
    result = {}

    def run():
        try:
            result["value"] = function(*args, **kwargs)
        except Exception as error:
            result["error"] = error

    thread = threading.Thread(target=run)
    thread.start()

    def join():
        thread.join(DEADLINE_S)
        assert not thread.is_alive()
        if "error" in result:
            raise result["error"]
        return result["value"]

    return join


def num_workers(client):
    return sum(len(replica["workers"]) for replica in client.status()["replicas"])


def join_group(client, group):
    joined = in_thread(client.init_group, **group.spec())
    group.accept(30)
    joined()


def distributed(tensors, **fields):
    return {"kind": "distributed", "group": "w", "tensors": infos(tensors), **fields}


@pytest.mark.parametrize("packed_bytes", (None, 0, 500_000))
def test_P10_a_broadcast_over_tcp(client, packed_bytes):
    with HostBroadcast("w", num_workers=num_workers(client)) as group:
        join_group(client, group)
        if packed_bytes is None:
            source = distributed(BARD_TENSORS, format="each")
            packs = list(BARD_TENSORS.values())
        else:
            source = distributed(BARD_TENSORS, format="flattened", packed_bytes=packed_bytes)
            packs, pack, size = [], [], 0
            for array in BARD_TENSORS.values():
                pack.append(array.reshape(-1))
                size += array.nbytes
                if packed_bytes and size > packed_bytes:
                    packs.append(numpy.concatenate(pack))
                    pack, size = [], 0
            if pack:
                packs.append(numpy.concatenate(pack))
        update = in_thread(client.update_weights, source=source, label="broadcast")
        for pack in packs:
            group.broadcast(pack)
        assert update()["digest"] == DIGESTS["bard"]["digest"]
        client.destroy_group("w")
    assert refused(client.destroy_group, "w").code == "not_found"


def test_P2_a_trainer_that_dies_costs_the_stage_and_the_next_one_joins(client):
    for num_sent in (0, 3):
        group = HostBroadcast("w", num_workers=num_workers(client))
        join_group(client, group)
        update = in_thread(client.update_weights, source=distributed(BARD_TENSORS, format="each"))
        for array in list(BARD_TENSORS.values())[:num_sent]:
            group.broadcast(array)
        group.close()
        error = refused(update)
        assert error.code == "unavailable" and "is gone" in error.message, error
        assert digest_of(client) == DIGESTS["stories"]["digest"]


def test_P2_a_trainer_that_died_before_it_was_joined_keeps_the_next_one_out_for_seconds(client):
    dead = HostBroadcast("dead", num_workers=num_workers(client))
    spec = dead.spec()
    dead.close()
    call = in_thread(client.init_group, **spec)  # this call's time limit is ten minutes
    with HostBroadcast("w", num_workers=num_workers(client)) as group:
        join_group(client, group)
        client.destroy_group("w")
    assert refused(call).code == "unavailable"


def test_P2_a_broadcast_of_another_size_is_told_to_the_trainer(client):
    with HostBroadcast("w", num_workers=num_workers(client)) as group:
        join_group(client, group)
        update = in_thread(client.update_weights, source=distributed(BARD_TENSORS, format="each"))
        with pytest.raises(pitstop.PitstopError):
            while True:  # until a worker has read the first broadcast, or no more fits into the connection
                group.broadcast(numpy.zeros(7, numpy.uint16))
        assert "broadcast 0 has 14 bytes" in refused(update).message


@pytest.mark.parametrize("format", ("each", "flattened"))
def test_a_tensor_too_large_to_broadcast_is_named_before_anything_is_received(client, format):
    """The model ignores these names, so any shape may be announced for them."""
    name = "model.layers.{}.self_attn.rotary_emb.inv_freq"
    tensors = [{"name": name.format(i), "dtype": "BF16", "shape": [1 << 61]} for i in range(4)]
    source = {"kind": "distributed", "group": "w", "tensors": tensors, "format": format}
    if format == "flattened":
        source["packed_bytes"] = (1 << 63) - 1
    with HostBroadcast("w", num_workers=num_workers(client)) as group:
        join_group(client, group)
        error = refused(client.update_weights, source=source, partial=True)
        assert error.code == "too_large" and name.format(0) in error.message, error


def test_P5_a_group_that_nobody_serves_ends_by_its_deadline(client):
    group = HostBroadcast("w", num_workers=num_workers(client))
    spec = group.spec()
    group.close()
    error = refused(client.init_group, timeout=1.0, **spec)
    assert error.code == "deadline_exceeded" and "did not answer in time" in error.message
    update = refused(client.update_weights, source=distributed(BARD_TENSORS, format="each"))
    assert update.code == "not_found" and "init_weights_update_group" in update.message


@needs_torch
@pytest.mark.parametrize("style", ("sglang", "vllm"))
def test_the_rendezvous_with_a_real_tcp_store(client, style):
    """torch's own TCPStore serves; its constructor returns when both workers have counted in."""
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    version = 2 if int(torch_sender.torch.__version__.split(".")[0]) >= 2 else 1
    spec = {
        "backend": "nccl",
        "rendezvous": style,
        "address": "127.0.0.1",
        "port": port,
        "rank_offset": 1,
        "world_size": 3,
        "store_version": version,
    }
    trainer = subprocess.Popen(
        [sys.executable, STORE, str(port), "3", style],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=STORE.parent,
    )
    joined = in_thread(client.init_group, "g", timeout=60, **spec)
    assert trainer.stdout.readline() == "joined\n"
    if style == "sglang":
        joined()
        name = "model.norm.weight"
        source = distributed({name: BARD_TENSORS[name]}, format="each", group="g")
        error = refused(client.update_weights, source=source, partial=True)
    else:
        error = refused(joined)
    trainer.communicate("", timeout=120)
    # A CPU has no NCCL: the error comes after the id has arrived, and no group stays joined.
    assert error.code == "unsupported" and "NCCL unique id" in error.message, error
    assert digest_of(client) == DIGESTS["stories"]["digest"]
    assert refused(client.destroy_group, "g").code == "not_found"
