"""The asyncio client. It runs in the event loop that opened it, without a thread."""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import functools
import os
import time
from typing import Any, AsyncIterator, Callable, NoReturn, Optional

import zmq

from .calls import CALL_TIMEOUT_S, Calls
from .errors import PitstopError
from .messages import Chunk, ServerInfo
from .standstill import ASK_S, Silence, late, why_it_stands
from .wire import Sink, Wire, door_endpoint, key_for

REPLY_GRACE_S = 0.5  # after a deadline, the tree's more precise error may still arrive for this long


async def off_loop(work: Callable[..., Any], *arguments: Any) -> Any:
    """Runs a slow call on a thread, or on the current one if the program is ending and cannot start threads."""
    try:
        future = asyncio.get_running_loop().run_in_executor(None, functools.partial(work, *arguments))
    except RuntimeError:
        return work(*arguments)
    return await future


class _Mailbox:
    """Chunks that the caller has not taken yet; at most a request's whole output."""

    def __init__(self) -> None:
        self._chunks: collections.deque[Chunk] = collections.deque()
        self._filled = asyncio.Event()

    def put(self, chunk: Chunk) -> None:
        self._chunks.append(chunk)
        self._filled.set()

    def take_ready(self) -> Optional[Chunk]:
        return self._chunks.popleft() if self._chunks else None

    async def take(self) -> Chunk:
        while not self._chunks:
            self._filled.clear()
            await self._filled.wait()
        return self._chunks.popleft()


class RequestOutput:
    """A request's chunks on their way to its caller: the common part of Stream and AsyncStream."""

    def __init__(self, client: Any, rid: str, mailbox: Any, deadline: Optional[float]):
        self._client = client
        self._mailbox = mailbox
        self._deadline = deadline  # by the clock of the thread that waits
        self._whole: Optional[Chunk] = None
        self._failure: Optional[PitstopError] = None  # raised after the tokens that arrived with it
        self.rid = rid
        self.finished = False

    def cancel(self) -> None:
        """Ends the request with its output so far: the last chunk has finish.reason "abort"."""
        self._client._cancel(self.rid, self._mailbox)

    def _taken(self, chunk: Chunk) -> Chunk:
        if chunk.finish is not None:
            if chunk.finish.reason != "error":
                self.finished = True
                return chunk
            error = PitstopError(chunk.finish.code, chunk.finish.message)
            if not chunk.tokens and not chunk.text:
                self._fail(error)
            self._failure = error
            return dataclasses.replace(chunk, finish=None)
        return chunk

    def _fail(self, error: PitstopError) -> NoReturn:
        self.finished = True
        self._failure = None
        raise error

    def _check(self) -> None:
        """Raises the error that came with the last tokens taken."""
        if self._failure is not None:
            self._fail(self._failure)

    def _is_late(self, why: str) -> PitstopError:
        """The error of a request whose time ran out; `why` is the tree's reason."""
        self.finished = True
        return PitstopError("deadline_exceeded", late(self.rid, why))

    def _join(self, chunk: Chunk) -> None:
        if self._whole is None:
            self._whole = Chunk(rid=self.rid)
        self._whole.append(chunk)

    def _joined(self) -> Chunk:
        whole, self._whole = self._whole, None
        return whole or Chunk(rid=self.rid)

    def __del__(self) -> None:
        if not self.finished and self._failure is None:
            self.cancel()


class AsyncStream(RequestOutput, AsyncIterator[Chunk]):
    """A request's output. Iterating yields its chunks and raises PitstopError if it failed.

    If a stream is dropped, or its task cancelled, before its end, the request is cancelled in the tree.
    """

    def __aiter__(self) -> AsyncStream:
        return self

    def take_ready(self) -> Optional[Chunk]:
        """The next chunk, if it has arrived; None if not, and after the end. Raises PitstopError."""
        self._check()
        chunk = self._mailbox.take_ready()
        return None if chunk is None else self._taken(chunk)

    async def __anext__(self) -> Chunk:
        if self.finished:
            raise StopAsyncIteration
        self._check()
        chunk = self._mailbox.take_ready()
        if chunk is not None:
            pass
        elif self._deadline is None:
            chunk = await self._mailbox.take()
        else:
            left = self._deadline - asyncio.get_running_loop().time()
            try:
                chunk = await asyncio.wait_for(self._mailbox.take(), max(0.0, left))
            except asyncio.TimeoutError:
                self.cancel()
                raise self._is_late(await self._client._why_it_stands()) from None
        return self._taken(chunk)

    async def result(self) -> Chunk:
        """All chunks not taken yet, joined. Raises PitstopError, whose `output` has the chunks before it."""
        try:
            async for chunk in self:
                self._join(chunk)
        except PitstopError as error:
            error.output = self._joined()
            raise
        return self._joined()


class AsyncClient(Calls[AsyncStream]):
    """A connection to a running tree. Its calls are in calls.py; await them.

        async with AsyncClient(run_dir) as client: ...

    run_dir   the tree's run directory; or data and admin, its doors' ZeroMQ endpoints
    key       for endpoints at tcp://: the client's key file, from pitstop keygen
    timeout   seconds that connect() waits for an answer, also from a tree that is still starting
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
        if run_dir is None and data is None:
            raise TypeError("give run_dir or data")
        self._run_dir = run_dir
        self._data = data
        self._admin = admin
        self._key = key
        self._name = name
        self._timeout = timeout
        self._wire: Optional[Wire] = None
        self._context: Optional[zmq.Context] = None
        self._loop: Optional[asyncio.AbstractEventLoop] = None
        self._fds: list[int] = []
        self._timer: Optional[asyncio.TimerHandle] = None
        self._is_pump_due = False
        self._changed: Optional[asyncio.Event] = None
        self._info: Optional[ServerInfo] = None
        self._silence = Silence()
        self._look_timer: Optional[asyncio.TimerHandle] = None

    @property
    def info(self) -> ServerInfo:
        """The model and the tree that serves it."""
        return self._info or ServerInfo()

    @property
    def is_connected(self) -> bool:
        """False from the loss of a tree until one answers again at every door. Requests and calls made
        meanwhile fail at once with code "unavailable"."""
        return self._wire is not None and self._wire.is_ready

    async def connect(self) -> AsyncClient:
        """Raises PitstopError: "unavailable" if no tree answers, "not_found" without a run
        directory."""
        if self._run_dir is not None:
            self._data = door_endpoint(os.fspath(self._run_dir), "data")
            self._admin = door_endpoint(os.fspath(self._run_dir), "admin")
        key = key_for((self._data, self._admin), self._key)
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._context = zmq.Context()
        self._wire = Wire(self._context, self._data, self._admin, self._name, key)
        self._wire.on_output = self._silence.end
        self._watch()
        self._pump()
        try:
            await asyncio.wait_for(self._changed.wait(), self._timeout)
        except asyncio.TimeoutError:
            await self.close()
            raise PitstopError("unavailable", f"no tree is ready at {self._data} after {self._timeout} s") from None
        refusal = self._wire.refusal
        if refusal is not None:
            await self.close()
            raise refusal
        return self

    start = connect  # the name that engines use

    def _start_request(self, rid: str, body: dict[str, Any], timeout: Optional[float]) -> AsyncStream:
        mailbox = _Mailbox()
        self._send_request(rid, body, mailbox)
        deadline = None if timeout is None else self._loop.time() + timeout
        return AsyncStream(self, rid, mailbox, deadline)

    def _send_request(self, rid: str, body: dict[str, Any], sink: Sink) -> None:
        wire = self._open_wire()
        if not wire.has_requests:
            self._silence.end()
        wire.start_request(rid, body, sink)
        self._pump_soon()
        if self._look_timer is None:
            self._look_timer = self._loop.call_later(self._silence.left(), self._look)

    def _look(self) -> None:
        """Asks the tree for the reason if no output arrives for a while."""
        self._look_timer = None
        if self._wire is None or not self._wire.has_requests:
            return
        if self._silence.left() > 0:
            self._look_timer = self._loop.call_later(self._silence.left(), self._look)
        else:
            self._look_task = self._loop.create_task(self._ask_why())

    async def _ask_why(self) -> None:
        self._silence.take(await self._why_it_stands())
        if self._look_timer is None and self._wire is not None:
            self._look_timer = self._loop.call_later(self._silence.left(), self._look)

    async def _why_it_stands(self) -> str:
        """The reason why the tree does not generate. Empty: the tree generates, or there is no admin door to ask."""
        try:
            return why_it_stands(await self.status(timeout=ASK_S))
        except PitstopError:
            return ""

    async def call(self, door: str, kind: str, timeout: float = CALL_TIMEOUT_S, **fields: Any) -> dict[str, Any]:
        """Any call by its message type. Raises PitstopError."""
        wire = self._open_wire()
        future: asyncio.Future[dict[str, Any]] = self._loop.create_future()

        def on_reply(reply: Optional[dict[str, Any]], error: Optional[PitstopError]) -> None:
            if future.done():
                return  # its task was cancelled
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(reply or {})

        number = wire.start_call(door, kind, fields, on_reply)
        self._pump_soon()
        try:
            return await asyncio.wait_for(future, timeout + REPLY_GRACE_S)
        except asyncio.TimeoutError:
            raise PitstopError("deadline_exceeded", f"{kind}: the tree did not answer in time") from None
        finally:
            wire.forget_call(number)

    async def close(self) -> None:
        """Open requests are cancelled, and end with code "aborted"."""
        if self._wire is None:
            return
        wire, self._wire = self._wire, None
        for fd in self._fds:
            self._loop.remove_reader(fd)
        self._fds = []
        for timer in (self._timer, self._look_timer):
            if timer is not None:
                timer.cancel()
        wire.close()
        # Waits for the last cancels to go out, 100 ms at most; not on the loop.
        await off_loop(self._context.term)

    async def __aenter__(self) -> AsyncClient:
        return await self.connect()

    async def __aexit__(self, *_: Any) -> None:
        await self.close()

    def _open_wire(self) -> Wire:
        if self._wire is None:
            raise PitstopError("failed_precondition", "the client is not connected, or was closed")
        return self._wire

    def _cancel(self, rid: str, sink: Sink) -> None:
        if self._wire is not None and not self._loop.is_closed():
            self._wire.cancel(rid, sink)
            self._pump_soon()

    def _watch(self) -> None:
        """Updates the watched descriptors after the wire has replaced a lost tree's sockets."""
        for fd in self._fds:
            self._loop.remove_reader(fd)
        self._fds = [socket.getsockopt(zmq.FD) for socket in self._wire.sockets()]
        for fd in self._fds:
            self._loop.add_reader(fd, self._pump)

    def _pump_soon(self) -> None:
        """ZeroMQ's descriptor is edge-triggered, and sending may consume an edge: pump after each send."""
        if not self._is_pump_due:
            self._is_pump_due = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        self._is_pump_due = False
        if self._wire is None:
            return
        if self._wire.pump():
            self._watch()
            self._pump_soon()  # handle messages that arrived before the sockets were watched
        self._info = self._wire.data.info or self._info
        if self._wire.is_ready or self._wire.refusal:
            self._changed.set()
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        left_s = self._wire.wake_time() - time.monotonic()
        if left_s != float("inf"):
            self._timer = self._loop.call_later(max(0.0, left_s), self._pump)
