"""The trainer's side of a host group, alone: each of its waits ends."""

import os
import resource
import socket
import struct
import threading
import time

import numpy
import pytest

from pitstop import PitstopError, broadcast


def test_a_host_name_that_nobody_answers_for_is_given_up(monkeypatch):
    silent = threading.Event()

    def resolve(*_, **__):
        silent.wait(30)
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    monkeypatch.setattr(broadcast, "LOOKUP_S", 0.2)
    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    begun = time.monotonic()
    with pytest.raises(PitstopError, match="'trainer.example' was not found in 0.2 s") as error:
        broadcast.HostBroadcast("w", num_workers=1, host="trainer.example")
    silent.set()
    assert error.value.code == "deadline_exceeded"
    assert time.monotonic() - begun < 25  # the answer would come after 30 s


def test_a_host_name_that_is_not_known_is_said(monkeypatch):
    def unknown(*_, **__):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(PitstopError, match="'nowhere' is not known") as error:
        broadcast.HostBroadcast("w", num_workers=1, host="nowhere")
    assert error.value.code == "invalid_argument"


def test_a_host_name_becomes_the_address_that_workers_are_told():
    with broadcast.HostBroadcast("w", num_workers=1, host="localhost") as group:
        assert group.spec()["address"] == "127.0.0.1"


def _joined(group, rank):
    """A worker's connection, as tp_worker/groups/host_group.cpp opens it."""
    peer = socket.create_connection((group.host, group.port))
    name = group.group.encode()
    hello = struct.pack("<8sIIII", broadcast.MAGIC, broadcast.VERSION, rank, group.num_workers + 1, len(name))
    peer.sendall(hello + name)
    return peer


def test_a_broadcast_takes_descriptors_over_1023():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 4096)), hard))
    taken = [os.open("/dev/null", os.O_RDONLY) for _ in range(1100)]
    try:
        with broadcast.HostBroadcast("w", num_workers=2) as group:
            peers = [_joined(group, rank) for rank in (1, 2)]
            group.accept()
            data = numpy.arange(1 << 20, dtype=numpy.uint16)  # more than a socket takes at once
            sender = threading.Thread(target=group.broadcast, args=(data,))
            sender.start()
            for peer in peers:
                assert peer.fileno() > 1023
                got = bytearray()
                while len(got) < 4 + 20 + data.nbytes:
                    got += peer.recv(1 << 20)
                assert bytes(got[24:]) == data.tobytes()
            sender.join()
            peers[1].sendall(struct.pack("<I", 4) + b"full")
            with pytest.raises(PitstopError, match="rank 2 gave up: full"):
                while True:
                    group.broadcast(data[:8])
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
