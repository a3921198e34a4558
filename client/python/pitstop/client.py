"""The blocking client. A thread of its own owns the sockets; any thread may use the client."""

from __future__ import annotations

import collections
import os
import queue
import threading
import time
from concurrent.futures import Future, InvalidStateError
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any, Callable, Iterator, Optional

import zmq

from .calls import CALL_TIMEOUT_S, Calls
from .errors import PitstopError
from .messages import Chunk, ServerInfo
from .keys import ClientKey
from .wire import Wire, door_endpoint, key_for

REPLY_GRACE_S = 0.5  # the tree's own, more telling answer to a late call may come until then


class _Mailbox:
    """Chunks on their way to whoever takes them; at most a request's whole output."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._chunks: collections.deque[Chunk] = collections.deque()

    def put(self, chunk: Chunk) -> None:
        with self._changed:
            self._chunks.append(chunk)
            self._changed.notify()

    def take(self, timeout: Optional[float]) -> Optional[Chunk]:
        with self._changed:
            self._changed.wait_for(lambda: self._chunks, timeout)
            return self._chunks.popleft() if self._chunks else None


class Stream(Iterator[Chunk]):
    """A request's output. Iterating yields its chunks and raises PitstopError if it failed.

    A stream that is dropped before its end is cancelled.
    """

    def __init__(self, client: Client, rid: str, mailbox: _Mailbox, deadline: Optional[float]):
        self._client = client
        self._mailbox = mailbox
        self._deadline = deadline  # as time.monotonic() counts
        self._whole: Optional[Chunk] = None
        self.rid = rid
        self.finished = False

    def __next__(self) -> Chunk:
        if self.finished:
            raise StopIteration
        return self._take(None)

    def next(self, timeout: float) -> Optional[Chunk]:
        """The next chunk; None if none came in `timeout` seconds, or the last was taken."""
        if self.finished:
            return None
        try:
            return self._take(timeout)
        except TimeoutError:
            return None

    def result(self, timeout: Optional[float] = None) -> Chunk:
        """Everything that was not taken yet, joined. Raises PitstopError; with code
        "deadline_exceeded" if `timeout` seconds were not enough: the request then goes on, and
        result() may be called again."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self.finished:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            try:
                chunk = self._take(left)
            except TimeoutError:
                raise PitstopError(
                    "deadline_exceeded", f"request '{self.rid}' is not done; it goes on"
                ) from None
            if self._whole is None:
                self._whole = Chunk(rid=self.rid)
            self._whole.append(chunk)
        whole, self._whole = self._whole, None
        return whole or Chunk(rid=self.rid)

    def cancel(self) -> None:
        """Ends it with its output so far: the last chunk has finish.reason "abort"."""
        self._client._command(lambda wire: wire.cancel(self.rid, self._mailbox))

    def _take(self, timeout: Optional[float]) -> Chunk:
        """Raises TimeoutError if nothing came in time."""
        own = None if self._deadline is None else max(0.0, self._deadline - time.monotonic())
        waits_for_own = own is not None and (timeout is None or own <= timeout)
        chunk = self._mailbox.take(own if waits_for_own else timeout)
        if chunk is None:
            if not waits_for_own:
                raise TimeoutError
            self.cancel()
            self.finished = True
            raise PitstopError("deadline_exceeded", f"request '{self.rid}' was not done in time")
        if chunk.finish is not None:
            self.finished = True
            if chunk.finish.reason == "error":
                raise PitstopError(chunk.finish.code, chunk.finish.message)
        return chunk

    def __del__(self) -> None:
        if not self.finished:
            self.cancel()


class Client(Calls[Stream]):
    """A connection to a running tree; calls are in calls.py.

    run_dir   the tree's run directory; or data and admin, its doors' ZeroMQ endpoints
    key       for endpoints at tcp://: the client's key file, of pitstop keygen
    timeout   seconds to wait for a tree that answers; also one that is still starting
    Raises PitstopError: "unavailable" if none does, "not_found" without a run directory.
    """

    def __init__(
        self,
        run_dir: Optional[str] = None,
        *,
        data: Optional[str] = None,
        admin: Optional[str] = None,
        key: Optional[str] = None,
        name: str = "python",
        timeout: float = 10.0,
    ):
        self._thread: Optional[threading.Thread] = None
        if run_dir is not None:
            data = door_endpoint(os.fspath(run_dir), "data")
            admin = door_endpoint(os.fspath(run_dir), "admin")
        if data is None:
            raise TypeError("give run_dir or data")
        client_key = key_for((data, admin), key)
        self._context = zmq.Context()
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        self._commands: queue.SimpleQueue[Callable[[Wire], None]] = queue.SimpleQueue()
        self._lock = threading.Lock()  # of is_closed, against commands nobody would take
        self._is_closed = False
        self._changed = threading.Event()
        self._info: Optional[ServerInfo] = None
        self._is_connected = False
        self._refusal: Optional[PitstopError] = None
        self._thread = threading.Thread(
            target=self._run, args=(data, admin, name, client_key), name="pitstop-client", daemon=True
        )
        self._thread.start()
        if not self._changed.wait(timeout) or self._refusal:
            self.close()
            raise self._refusal or PitstopError(
                "unavailable", f"no tree is ready at {data} after {timeout} s"
            )

    @property
    def info(self) -> ServerInfo:
        """What the tree serves."""
        return self._info or ServerInfo()

    @property
    def is_connected(self) -> bool:
        """False from the loss of a tree until one answers again at every door. What is asked
        meanwhile fails at once with code "unavailable"."""
        return self._is_connected

    def _start_request(self, rid: str, body: dict[str, Any], timeout: Optional[float]) -> Stream:
        mailbox = _Mailbox()
        if not self._command(lambda wire: wire.start_request(rid, body, mailbox)):
            raise PitstopError("aborted", "the client was closed")
        deadline = None if timeout is None else time.monotonic() + timeout
        return Stream(self, rid, mailbox, deadline)

    def call(self, door: str, kind: str, timeout: float = CALL_TIMEOUT_S, **fields: Any) -> dict[str, Any]:
        """Any call by its message type; waits for the reply. Raises PitstopError."""
        future: Future[dict[str, Any]] = Future()

        def on_reply(reply: Optional[dict[str, Any]], error: Optional[PitstopError]) -> None:
            try:
                if error is not None:
                    future.set_exception(error)
                else:
                    future.set_result(reply or {})
            except InvalidStateError:
                pass  # nobody waits any more

        number: list[int] = []

        def start(wire: Wire) -> None:
            if not future.cancelled():  # a caller who has given up means it no more
                number.append(wire.start_call(door, kind, fields, on_reply))

        if not self._command(start):
            raise PitstopError("aborted", "the client was closed")
        try:
            return future.result(timeout + REPLY_GRACE_S)
        except FutureTimeout:
            future.cancel()
            self._command(lambda wire: [wire.forget_call(each) for each in number])
            raise PitstopError("deadline_exceeded", f"{kind}: the tree did not answer in time") from None

    def close(self) -> None:
        """Open requests are cancelled, and end with code "aborted"."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        self._wake()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __del__(self) -> None:
        if self._thread is not None:
            self.close()

    # ---- the client's thread ----

    def _wake(self) -> None:
        try:
            os.write(self._wake_write, b"x")
        except (BlockingIOError, OSError):
            pass  # it is awake, or gone

    def _command(self, command: Callable[[Wire], None]) -> bool:
        """Runs it on the client's thread. False: the client is closed."""
        with self._lock:
            if self._is_closed:
                return False
            self._commands.put(command)
        self._wake()
        return True

    def _run(self, data: str, admin: Optional[str], name: str, key: Optional[ClientKey]) -> None:
        wire = Wire(self._context, data, admin, name, key)
        while True:
            poller = zmq.Poller()
            for socket in wire.sockets():
                poller.register(socket, zmq.POLLIN)
            poller.register(self._wake_read, zmq.POLLIN)
            left_s = min(wire.wake_time() - time.monotonic(), 60.0)
            poller.poll(max(0, int(left_s * 1000) + 1))
            try:
                os.read(self._wake_read, 4096)
            except BlockingIOError:
                pass
            with self._lock:
                is_closed = self._is_closed
            while not self._commands.empty():
                self._commands.get()(wire)
            wire.pump()
            self._info = wire.data.info or self._info
            self._refusal = wire.refusal
            self._is_connected = wire.is_ready
            if wire.is_ready or wire.refusal:
                self._changed.set()
            if is_closed:
                break
        self._is_connected = False
        wire.close()
        self._context.term()
        os.close(self._wake_read)
        os.close(self._wake_write)
