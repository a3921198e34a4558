"""The blocking client: AsyncClient in an event loop on a thread of its own. Any thread may use it."""

from __future__ import annotations

import collections
import threading
import time
from typing import Any, Iterator, Optional

from .aio import AsyncClient, RequestOutput
from .blocking import Blocking
from .calls import CALL_TIMEOUT_S, Calls
from .errors import PitstopError
from .messages import Chunk, ServerInfo, error_chunk


class _Mailbox:
    """Chunks that the caller has not taken yet; at most a request's whole output."""

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


class Stream(RequestOutput, Iterator[Chunk]):
    """A request's output. Iterating yields its chunks and raises PitstopError if it failed.

    If a stream is dropped before its end, the request is cancelled.
    """

    def __next__(self) -> Chunk:
        if self.finished:
            raise StopIteration
        return self._take(None)

    def next(self, timeout: float) -> Optional[Chunk]:
        """The next chunk; None if none arrived within `timeout` seconds, or the last was taken."""
        if self.finished:
            return None
        try:
            return self._take(timeout)
        except TimeoutError:
            return None

    def result(self, timeout: Optional[float] = None) -> Chunk:
        """Returns all chunks not taken yet, joined. Raises PitstopError, whose `output` has the chunks before the error.
        After `timeout` seconds its code is "deadline_exceeded"; the request then continues, and result() may be called
        again."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self.finished:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            try:
                chunk = self._take(left)
            except PitstopError as error:
                error.output = self._joined()
                raise
            except TimeoutError:
                raise PitstopError("deadline_exceeded", f"request '{self.rid}' is not done; it continues") from None
            self._join(chunk)
        return self._joined()

    def _take(self, timeout: Optional[float]) -> Chunk:
        """Raises TimeoutError if no chunk arrived in time."""
        self._check()
        own = None if self._deadline is None else max(0.0, self._deadline - time.monotonic())
        waits_for_own = own is not None and (timeout is None or own <= timeout)
        chunk = self._mailbox.take(own if waits_for_own else timeout)
        if chunk is None:
            if not waits_for_own:
                raise TimeoutError
            self.cancel()
            raise self._is_late(self._client._why_it_stands())
        return self._taken(chunk)


class Client(Calls[Stream], Blocking):
    """A connection to a running tree; calls are in calls.py.

    run_dir   the tree's run directory; or data and admin, its doors' ZeroMQ endpoints
    key       for endpoints at tcp://: the client's key file, from pitstop keygen
    timeout   seconds to wait for an answer, also from a tree that is still starting
    Raises PitstopError: "unavailable" if no tree answers, "not_found" without a run directory.
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
        super().__init__(AsyncClient(run_dir, data=data, admin=admin, key=key, name=name, timeout=timeout))

    @property
    def info(self) -> ServerInfo:
        """The model and the tree that serves it."""
        return self._inner.info

    @property
    def is_connected(self) -> bool:
        """False from the loss of a tree until one answers again at every door. Requests and calls made
        meanwhile fail at once with code "unavailable"."""
        return self._inner.is_connected

    def _start_request(self, rid: str, body: dict[str, Any], timeout: Optional[float]) -> Stream:
        mailbox = _Mailbox()
        if not self._soon(self._send_request, rid, body, mailbox):
            raise self._closed()
        deadline = None if timeout is None else time.monotonic() + timeout
        return Stream(self, rid, mailbox, deadline)

    def _send_request(self, rid: str, body: dict[str, Any], mailbox: _Mailbox) -> None:
        """Runs in the loop, where an exception would be lost: a field that cannot be packed becomes an error chunk."""
        try:
            self._inner._send_request(rid, body, mailbox)
        except (TypeError, ValueError, OverflowError) as error:
            mailbox.put(error_chunk(rid, "invalid_argument", str(error)))

    def _cancel(self, rid: str, mailbox: _Mailbox) -> None:
        self._soon(self._inner._cancel, rid, mailbox)

    def call(self, door: str, kind: str, timeout: float = CALL_TIMEOUT_S, **fields: Any) -> dict[str, Any]:
        """Makes any call by its message type, and waits for the reply. Raises PitstopError."""
        return self._wait(self._inner.call(door, kind, timeout, **fields))

    def _why_it_stands(self) -> str:
        return self._wait(self._inner._why_it_stands())

    def _closed(self) -> Exception:
        return PitstopError("aborted", "the client was closed")

    def close(self) -> None:
        """Cancels open requests, which end with code "aborted"."""
        super().close()

    def __enter__(self) -> Client:
        return self
