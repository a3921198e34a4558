"""The trainer's side of a `host` group: broadcast over TCP to every worker that joined.

with HostBroadcast("w", num_workers=2) as group:
    thread = Thread(target=client.init_group, kwargs=group.spec())   # workers join meanwhile
    thread.start(); group.accept(); thread.join()
    ... client.update_weights(source=...) on a thread, and here:
    group.broadcast(array)                                           # once per tensor
"""

from __future__ import annotations

import math
import select
import socket
import struct
import threading
import time
from typing import Any

import numpy

from .errors import PitstopError

MAGIC = b"PITSTOPB"
VERSION = 1
TEXT_MAX = 16 << 10
GREETING_S = 5.0
LOOKUP_S = 5.0


class HostBroadcast:
    """Owns: the listening socket and a connection per worker. Every wait has a deadline."""

    def __init__(self, group: str, num_workers: int, host: str = "127.0.0.1", port: int = 0):
        self.group = group
        self.num_workers = num_workers
        self._listener = socket.create_server((_look_up(host), port))
        self.host, self.port = self._listener.getsockname()
        self._peers: dict[int, socket.socket] = {}  # by rank
        self._next = 0

    def spec(self) -> dict[str, Any]:
        """The arguments of init_group."""
        return {
            "group": self.group,
            "backend": "host",
            "address": self.host,
            "port": self.port,
            "rank_offset": 1,
            "world_size": self.num_workers + 1,
        }

    def accept(self, timeout: float = 60.0) -> None:
        """Waits until all workers have joined. A peer that joins wrongly gets the reason."""
        deadline = time.monotonic() + timeout
        while len(self._peers) < self.num_workers:
            self._listener.settimeout(max(0.001, deadline - time.monotonic()))
            try:
                peer, _ = self._listener.accept()
            except socket.timeout:
                raise PitstopError(
                    "deadline_exceeded",
                    f"{len(self._peers)} of {self.num_workers} workers have joined '{self.group}'",
                ) from None
            self._greet(peer)
        for rank, peer in self._peers.items():
            try:
                peer.sendall(struct.pack("<I", 0))
            except OSError:
                raise self._gone(rank) from None

    def _greet(self, peer: socket.socket) -> None:
        peer.settimeout(GREETING_S)
        why = "the message is not a worker's hello"
        try:
            head = _read(peer, 24)
            magic, version, rank, world_size, length = struct.unpack("<8sIIII", head)
            name = _read(peer, min(length, TEXT_MAX)).decode("utf-8", "replace")
            if magic == MAGIC:
                why = ""
                if version != VERSION:
                    why = f"version {version}; this trainer speaks {VERSION}"
                elif name != self.group or world_size != self.num_workers + 1:
                    own = f"'{self.group}' of {self.num_workers + 1}"
                    why = f"group '{name}' of {world_size} ranks; this trainer's is {own}"
                elif not 1 <= rank <= self.num_workers or rank in self._peers:
                    why = f"rank {rank} is the trainer's, joined already, or out of range"
        except (OSError, EOFError, struct.error):
            pass
        if why:
            try:
                peer.sendall(struct.pack("<I", len(why)) + why.encode())
            except OSError:
                pass
            peer.close()
        else:
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._peers[rank] = peer

    def broadcast(self, array: numpy.ndarray, timeout: float = 60.0) -> None:
        """Sends the same bytes to all workers in parallel. Raises PitstopError naming the rank."""
        flat = memoryview(numpy.ascontiguousarray(array).reshape(-1).view(numpy.uint8))
        header = struct.pack("<4sQQ", b"BCST", self._next, len(flat))
        self._next += 1
        deadline = time.monotonic() + timeout
        left = {rank: [memoryview(header), flat] for rank in self._peers}
        poll = select.poll()  # select() takes no descriptor over 1023, and a trainer may have more
        ranks = {}  # by descriptor
        for rank, peer in self._peers.items():
            peer.setblocking(False)
            poll.register(peer, select.POLLIN | select.POLLOUT)
            ranks[peer.fileno()] = rank
        while left:
            wait = deadline - time.monotonic()
            if wait <= 0:
                raise PitstopError("deadline_exceeded", f"rank {min(left)} did not read the broadcast in time")
            for descriptor, events in poll.poll(math.ceil(1000 * wait)):
                rank = ranks[descriptor]
                if events & ~select.POLLOUT:  # a worker sends data only when it gives up
                    raise self._gone(rank)
                if not self._send_some(rank, left[rank]):
                    del left[rank]
                    poll.unregister(descriptor)

    def _send_some(self, rank: int, pieces: list[memoryview]) -> bool:
        """Sends what the socket takes now. Returns whether some is left."""
        try:
            sent = self._peers[rank].send(pieces[0])
        except OSError:
            raise self._gone(rank) from None
        pieces[0] = pieces[0][sent:]
        while pieces and not pieces[0]:
            pieces.pop(0)
        return bool(pieces)

    def _gone(self, rank: int) -> PitstopError:
        peer = self._peers[rank]
        peer.settimeout(0.5)
        try:
            (length,) = struct.unpack("<I", _read(peer, 4))
            why = _read(peer, min(length, TEXT_MAX)).decode("utf-8", "replace")
            return PitstopError("aborted", f"rank {rank} gave up: {why}")
        except (OSError, EOFError):
            return PitstopError("unavailable", f"rank {rank} is gone")

    def close(self) -> None:
        for peer in self._peers.values():
            peer.close()
        self._listener.close()

    def __enter__(self) -> HostBroadcast:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


def _look_up(host: str) -> str:
    """The host's IPv4 address. Looked up on a thread of its own, because a resolver has no deadline."""
    found: list[Any] = []

    def resolve() -> None:
        try:
            found.append(socket.getaddrinfo(host, None, socket.AF_INET, socket.SOCK_STREAM)[0][4][0])
        except OSError as error:
            found.append(error)

    thread = threading.Thread(target=resolve, daemon=True)
    thread.start()
    thread.join(LOOKUP_S)
    if not found:
        raise PitstopError("deadline_exceeded", f"the address of '{host}' was not found in {LOOKUP_S:g} s")
    if isinstance(found[0], OSError):
        raise PitstopError("invalid_argument", f"the address of '{host}' is not known: {found[0]}")
    return found[0]


def _read(peer: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = peer.recv(size - len(data))
        if not piece:
            raise EOFError
        data += piece
    return data
