"""The client's side of the bus, without a thread or an event loop: sockets, greeting, routing.

Its owner calls pump() when a socket is readable or wake_time() has come. Everything here belongs
to one thread.
"""

from __future__ import annotations

import collections
import os
import sys
import time
from typing import Any, Callable, Iterable, Optional, Protocol

import msgpack
import zmq

from .errors import PitstopError
from .keys import ClientKey, read_key
from .messages import PROTOCOL_VERSION, Chunk, ServerInfo, error_chunk, place_expert_load, read_chunk, read_info

GREET_AGAIN_S = 0.05  # between two greetings while a tree starts
KNOCK_AGAIN_S = 0.2  # a door that is full, or refuses the key, closes each connection at once
REOPEN_S = 10.0  # a greeting may be lost with a tree that dies at that moment
RETRY_S = 0.005  # a full queue does not report when it has room
QUEUE_LEN_MAX = 4096
AFTER_REQUESTS = ("abort", "unload_adapter")  # calls that concern requests, as messages/calls.h says
MESSAGE_BYTES_MAX = 16 << 20  # the limit of a door, which does not read the rid of a larger message
# Over a network a tree may vanish unnoticed; on a local socket the kernel reports it.
HEARTBEAT_MS = 5000
HEARTBEAT_TIMEOUT_MS = 30000

# Called once, with the reply's map or the error.
OnReply = Callable[[Optional[dict[str, Any]], Optional[PitstopError]], None]


class Sink(Protocol):
    """Receives a request's chunks; the last has `finish`."""

    def put(self, chunk: Chunk) -> None: ...


def door_endpoint(run_dir: str, door: str) -> str:
    if not os.path.isdir(run_dir):
        raise PitstopError("not_found", f"run directory '{run_dir}' does not exist")
    return f"ipc://{run_dir}/{door}.sock"


def key_for(endpoints: Iterable[Optional[str]], path: Optional[str]) -> Optional[ClientKey]:
    """Reads the key for these endpoints. PitstopError: a tcp door without a key, or an error of its file."""
    is_remote = any(each is not None and each.startswith("tcp://") for each in endpoints)
    if is_remote and path is None:
        raise PitstopError("invalid_argument", "a tcp door needs a key: give key=FILE")
    return read_key(path) if is_remote and path is not None else None


def _without_bytes(value: Any, raw: list[bytes]) -> Any:
    """Moves large arrays from the body to frames of their own; the body has the frames' numbers."""
    if isinstance(value, (bytes, memoryview)):
        raw.append(bytes(value))
        return len(raw) - 1
    if isinstance(value, dict):
        return {key: _without_bytes(each, raw) for key, each in value.items()}
    if isinstance(value, list):
        return [_without_bytes(each, raw) for each in value]
    return value


class Link:
    """One connection to a door, reopened with a new socket whenever the tree is lost.

    A tree's hello_reply identifies it, and the socket's monitor reports its loss. Silence is not a death, because a
    tree may be slow. Messages queued for a tree never reach its successor: the socket is closed with the tree, and
    messages name their tree.
    """

    def __init__(self, context: zmq.Context, endpoint: str, name: str, key: Optional[ClientKey] = None):
        self._context = context
        self._name = name
        self._key = key
        self.endpoint = endpoint
        self.socket: Optional[zmq.Socket] = None
        self.monitor: Optional[zmq.Socket] = None
        self.info: Optional[ServerInfo] = None  # set: the tree greeted back
        self.refusal: Optional[PitstopError] = None
        self.is_other_tree = False  # another tree answers here than the one that greeted back
        self._why_not_ready = "no answer has arrived yet"
        self._greet_time = float("inf")
        self._reopen_time = float("inf")
        self._unsent: collections.deque[list[bytes]] = collections.deque()
        self._connect()

    @property
    def tree(self) -> str:
        """The tree that greeted back; empty: none."""
        return self.info.tree if self.info is not None else ""

    def reopen(self) -> None:
        """Opens a new socket. If that fails (no descriptor is left), run_due() tries again."""
        if self.info is not None:
            self._why_not_ready = "it was restarted" if self.is_other_tree else "the connection is lost"
        self.info = None  # before close(), which then drops queued messages: they are for the lost tree
        self.close()
        if self.refusal is not None and self.refusal.code != "permission_denied":
            self.refusal = None  # a key may be refused before any greeting
        self.is_other_tree = False
        self._greet_time = float("inf")
        self._unsent.clear()
        try:
            self._connect()
        except zmq.ZMQError:
            self.close()
            self._reopen_time = time.monotonic() + GREET_AGAIN_S

    def _connect(self) -> None:
        self._reopen_time = time.monotonic() + REOPEN_S
        self.socket = self._context.socket(zmq.DEALER)
        self.socket.linger = 100  # the time for the last cancels of a closing client
        self.socket.sndhwm = self.socket.rcvhwm = QUEUE_LEN_MAX
        self.socket.setsockopt(zmq.RECONNECT_IVL, 20)
        self.socket.setsockopt(zmq.RECONNECT_IVL_MAX, 500)
        if self.endpoint.startswith("tcp://"):
            self.socket.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
            self.socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, HEARTBEAT_TIMEOUT_MS)
            assert self._key is not None, "key_for() refuses a tcp door without a key"
            self._key.apply(self.socket)
        self.monitor = self.socket.get_monitor_socket(zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_FAILED_AUTH)
        self.socket.connect(self.endpoint)
        self._greet()

    def close(self) -> None:
        if self.socket is None:
            return
        if not self.info:
            self.socket.linger = 0
        monitor, self.monitor = self.monitor, None
        if monitor is not None:
            self.socket.disable_monitor()
            monitor.close(linger=0)  # otherwise the context would wait for the monitor for ever
        self.socket.close()
        self.socket = None

    def sockets(self) -> list[zmq.Socket]:
        return [each for each in (self.socket, self.monitor) if each is not None]

    def why_not(self, tree: str) -> Optional[PitstopError]:
        """The error if nothing may be sent to `tree` (empty: any tree); None: send."""
        if self.info is None:
            why = f"no tree is ready at {self.endpoint}: {self._why_not_ready}; nothing was sent"
        elif tree and tree != self.info.tree:
            why = f"the tree at {self.endpoint} was restarted, and the call is for the tree before it; nothing was sent"
        else:
            return None
        return PitstopError("unavailable", why)

    def _greet(self) -> None:
        self.send("hello", {"protocol": PROTOCOL_VERSION, "name": self._name})

    def send(self, kind: str, body: dict[str, Any]) -> Optional[PitstopError]:
        """Queues a message, however full the connection is. Returns an error if the message is too large."""
        raw: list[bytes] = []
        body = _without_bytes(body, raw)
        frames = [kind.encode(), msgpack.packb(body), *raw]
        num_bytes = sum(map(len, frames))
        if num_bytes > MESSAGE_BYTES_MAX:
            why = f"{kind}: the message takes {num_bytes} bytes; a door accepts {MESSAGE_BYTES_MAX}"
            return PitstopError("too_large", why)
        self._unsent.append(frames)
        self._flush()
        return None

    def _flush(self) -> None:
        while self._unsent and self.socket is not None:
            try:
                self.socket.send_multipart(self._unsent[0], zmq.NOBLOCK)
            except zmq.Again:
                return
            self._unsent.popleft()

    def receive(self) -> Optional[tuple[str, dict[str, Any], list[bytes]]]:
        """The next message that is not part of the greeting."""
        while self.socket is not None:
            try:
                kind_frame, body_frame, *raw = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return None
            except ValueError:
                continue  # not a message of this protocol
            kind = kind_frame.decode("ascii", "replace")
            try:
                body = msgpack.unpackb(body_frame, strict_map_key=False)
            except Exception as error:  # msgpack's own classes differ between versions
                return "", {"code": "malformed", "message": f"'{kind}': {error}"}, []
            if not self._take_greeting(kind, body):
                return kind, body, raw
        return None

    def _take_greeting(self, kind: str, body: dict[str, Any]) -> bool:
        if kind == "hello_reply":
            info = read_info(body)
            if info.protocol == PROTOCOL_VERSION and info.tree:
                self.info = info
                self.refusal = None
                self._greet_time = self._reopen_time = float("inf")
            elif info.protocol == PROTOCOL_VERSION:
                self.refusal = PitstopError("malformed", f"{self.endpoint}: hello_reply names no tree")
            else:
                self.refusal = PitstopError(
                    "unsupported",
                    f"{self.endpoint} speaks protocol {info.protocol}; this client speaks {PROTOCOL_VERSION}",
                )
            return True
        if kind == "error" and self.info is not None and body.get("tree", self.info.tree) != self.info.tree:
            self.is_other_tree = True
            return True
        if kind != "error" or self.info or body.get("rid") or body.get("call"):
            return False
        if body["code"] == "unavailable":  # the tree is starting
            self._why_not_ready = body["message"]
            self._greet_time = time.monotonic() + GREET_AGAIN_S
            self._reopen_time = time.monotonic() + REOPEN_S
        else:
            self.refusal = PitstopError(body["code"], body["message"])
        return True

    def take_loss(self) -> bool:
        """Whether the greeted tree was lost since the last call."""
        is_lost = False
        while self.monitor is not None:
            try:
                event = int.from_bytes(self.monitor.recv_multipart(zmq.NOBLOCK)[0][:2], sys.byteorder)
            except zmq.Again:
                break
            if event == zmq.EVENT_DISCONNECTED:
                is_lost = True
            elif event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
                self.refusal = PitstopError("permission_denied", f"{self.endpoint} does not accept this client's key")
        if is_lost and self.info is None:
            # The socket reconnects by itself. The greeting may have been lost with the connection, so send a new one
            # soon, but not at once, or this would loop without a pause.
            self._reopen_time = min(self._reopen_time, time.monotonic() + KNOCK_AGAIN_S)
            return False
        return is_lost

    def run_due(self) -> None:
        now = time.monotonic()
        if now >= self._reopen_time:
            self.reopen()
        elif now >= self._greet_time:
            self._greet_time = float("inf")
            self._greet()
        self._flush()

    def wake_time(self) -> float:
        retry = time.monotonic() + RETRY_S if self._unsent else float("inf")
        return min(self._greet_time, self._reopen_time, retry)


class Wire:
    """Both doors of a tree, the open requests and the open calls."""

    def __init__(
        self,
        context: zmq.Context,
        data: str,
        admin: Optional[str],
        name: str,
        key: Optional[ClientKey] = None,
    ):
        self.data = Link(context, data, name, key)
        self.admin = Link(context, admin, name, key) if admin else None
        self.links = [self.data] + ([self.admin] if self.admin else [])
        self._requests: dict[str, Sink] = {}
        self.on_output: Callable[[], None] = lambda: None
        self._calls: dict[int, tuple[Link, OnReply]] = {}
        self._next_call = 1

    def sockets(self) -> list[zmq.Socket]:
        return [each for link in self.links for each in link.sockets()]

    @property
    def is_ready(self) -> bool:
        """Whether every door has answered the hello, for the same tree."""
        infos = [link.info for link in self.links]  # read once: another thread may ask while a tree is lost
        return all(info is not None for info in infos) and len({info.tree for info in infos if info}) == 1

    @property
    def has_requests(self) -> bool:
        return bool(self._requests)

    @property
    def refusal(self) -> Optional[PitstopError]:
        """The error of a door that will never answer the hello."""
        return next((link.refusal for link in self.links if link.refusal is not None), None)

    def wake_time(self) -> float:
        """The latest time at which pump() is due, by time.monotonic()."""
        return min(link.wake_time() for link in self.links)

    def pump(self) -> bool:
        """Handles all received messages. True: sockets() has changed."""
        before = self.sockets()
        for link in self.links:
            # Notices a loss first and acts on it afterwards: messages that the tree sent before can still be read.
            is_lost = link.take_loss()
            while (message := link.receive()) is not None:
                self._take(link, *message)
            if is_lost or link.is_other_tree:
                why = "was restarted" if link.is_other_tree else "is lost: its connection broke"
                link.reopen()
                self._fail(
                    link,
                    PitstopError(
                        "unavailable",
                        f"the tree at {link.endpoint} {why}; calls that it has not answered may have taken effect",
                    ),
                )
            link.run_due()
        return self.sockets() != before

    def start_request(self, rid: str, body: dict[str, Any], sink: Sink) -> None:
        refused = self.data.why_not(body.get("tree", ""))
        if refused is not None:
            sink.put(error_chunk(rid, refused.code, refused.message))
        elif rid in self._requests:
            sink.put(error_chunk(rid, "already_exists", f"rid '{rid}' is an open request of this client"))
        else:
            # Sent first: a body that cannot be packed raises here, and leaves no open request.
            refused = self.data.send("generate", {"tree": self.data.tree, **body})
            if refused is None:
                self._requests[rid] = sink
            else:
                sink.put(error_chunk(rid, refused.code, refused.message))

    def cancel(self, rid: str, sink: Sink) -> None:
        """Cancels the open request of `sink`; another request may have the same rid."""
        if self._requests.get(rid) is sink:
            self.data.send("cancel", {"rids": [rid], "tree": self.data.tree})

    def start_call(self, door: str, kind: str, body: dict[str, Any], on_reply: OnReply) -> int:
        """Returns the call's number, for forget_call()."""
        link = self.data if door == "data" else self.admin
        number = self._next_call
        self._next_call += 1
        if link is None:
            on_reply(None, PitstopError("failed_precondition", "this client has no admin door"))
            return number
        refused = link.why_not(body.get("tree", ""))
        if refused is not None:
            on_reply(None, refused)
            return number
        self._calls[number] = (link, on_reply)
        body = {"call": number, "tree": link.tree, **body}
        if kind in AFTER_REQUESTS:
            # A caller that has stopped waiting still wants the call, but only from this tree.
            self._after_requests(lambda: self._send_later(link, number, kind, body))
            return number
        refused = link.send(kind, body)
        if refused is not None:
            del self._calls[number]
            on_reply(None, refused)
        return number

    def _send_later(self, link: Link, number: int, kind: str, body: dict[str, Any]) -> None:
        refused = link.why_not(body["tree"]) or link.send(kind, body)
        if refused is not None:
            self._end_call(number, None, refused)

    def _after_requests(self, send: Callable[[], Any]) -> None:
        """Orders a call behind requests: the doors do not order messages between them. Any answer to a fence shows that
        the data door has read the requests sent before."""
        self.start_call("data", "fence", {}, lambda reply, error: send())

    def forget_call(self, number: int) -> None:
        self._calls.pop(number, None)

    def close(self) -> None:
        for rid, sink in list(self._requests.items()):
            self.cancel(rid, sink)
        for link in self.links:
            self._fail(link, PitstopError("aborted", "the client was closed"))
            link.close()

    def _take(self, link: Link, kind: str, body: dict[str, Any], raw: list[bytes]) -> None:
        if kind == "outputs":
            for each in body.get("chunks", []):
                self._put(read_chunk(each, raw))
        elif kind == "error":
            error = PitstopError(body.get("code", ""), body.get("message", ""))
            if body.get("rid"):
                self._put(error_chunk(body["rid"], error.code, error.message))
            self._end_call(body.get("call", 0), None, error)
        elif kind == "":  # unreadable, so the request or call is unknown
            self._fail(link, PitstopError(body["code"], body["message"]))
        else:
            # A large array's field holds the number of its raw frame.
            if kind == "weights_reply":
                body["data"] = raw[body["data"]] if raw else b""
            elif kind == "status_reply":
                place_expert_load(body, raw)
            number = body.pop("call", 0)
            if body.get("ok") is False:
                self._end_call(number, None, PitstopError(body.get("code", ""), body.get("message", ""), body))
            else:
                self._end_call(number, body, None)

    def _put(self, chunk: Chunk) -> None:
        self.on_output()
        sink = self._requests.get(chunk.rid)
        if sink is None:
            return  # nobody is waiting any more
        if chunk.finish is not None:
            del self._requests[chunk.rid]
        sink.put(chunk)

    def _end_call(self, number: int, reply: Optional[dict[str, Any]], error: Optional[PitstopError]) -> None:
        _, on_reply = self._calls.pop(number, (None, None))
        if on_reply is not None:
            on_reply(reply, error)

    def _fail(self, link: Link, error: PitstopError) -> None:
        if link is self.data:
            for rid in list(self._requests):
                self._put(error_chunk(rid, error.code, error.message))
        for number in [n for n, (its_link, _) in self._calls.items() if its_link is link]:
            self._end_call(number, None, error)
