"""The trainer's side of a host group, alone: each of its waits ends."""

import socket
import threading
import time

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
