"""Blocking calls of an object in an event loop, for Client, Engine and Fleet."""

from __future__ import annotations

import asyncio
import functools
import os
import threading
import weakref
from typing import TYPE_CHECKING, Any, AsyncIterator, Callable, Coroutine, Iterator, TypeVar

if TYPE_CHECKING:
    from typing import Concatenate, ParamSpec

    P = ParamSpec("P")
R = TypeVar("R")
CLOSE_S = 60.0
JOIN_S = 10.0
LAST_S = 1.0  # how long callers may still wait for answers that close() has caused


def _run(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_forever()
    loop.close()


async def _close(inner: Any) -> None:
    await inner.close()
    calls = asyncio.all_tasks() - {asyncio.current_task()}
    if calls:
        await asyncio.wait(calls, timeout=LAST_S)


def _end(pid: int, loop: asyncio.AbstractEventLoop, thread: threading.Thread, lock: Any, inner: Any) -> None:
    if os.getpid() != pid:  # a forked child has neither the thread nor the thread's resources
        return
    with lock:  # a call that found the object open has reached the loop by now
        closing = asyncio.run_coroutine_threadsafe(_close(inner), loop)
    if thread is threading.current_thread():  # the loop's thread dropped the last reference
        closing.add_done_callback(lambda _: loop.stop())
        return
    try:
        closing.result(CLOSE_S)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(JOIN_S)


def blocking(call: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]) -> Callable[Concatenate[Blocking, P], R]:
    """The blocking form of the call. Any thread may make it; Ctrl-C cancels it."""

    @functools.wraps(call)
    def wait(self: Blocking, *args: Any, **kwargs: Any) -> R:
        return self._wait(call(self._inner, *args, **kwargs))

    return wait


class Blocking:
    """Starts `inner` (start() and close() are awaited) in an event loop on a thread of its own, which owns its resources.

    Thread: any may call. A call after close(), or in a forked child, is a RuntimeError.
    """

    def __init__(self, inner: Any):
        self._what = type(self).__name__.lower()
        self._inner = inner
        self._loop = asyncio.new_event_loop()
        self._lock = threading.RLock()  # guards the end: a loop that has ended would never answer a call
        thread = threading.Thread(target=_run, args=(self._loop,), name=f"pitstop-{self._what}", daemon=True)
        thread.start()
        # If nobody calls close(), the resources are freed when the program ends.
        self._pid = os.getpid()
        self._finalizer = weakref.finalize(self, _end, self._pid, self._loop, thread, self._lock, inner)
        try:
            self._wait(inner.start())
        except BaseException:
            self.close()
            raise

    def _wait(self, coroutine: Coroutine[Any, Any, R]) -> R:
        """Waits for the awaitable's result; Ctrl-C cancels it."""
        if os.getpid() != self._pid:  # before the lock: another thread may have held the lock at the fork
            coroutine.close()
            raise self._forked()
        with self._lock:
            if not self._finalizer.alive:
                coroutine.close()
                raise self._closed()
            future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def _soon(self, work: Callable[..., Any], *args: Any) -> bool:
        """Schedules a call in the loop. False: the loop was closed."""
        if os.getpid() != self._pid:
            raise self._forked()
        with self._lock:
            if self._finalizer.alive:
                self._loop.call_soon_threadsafe(work, *args)
            return self._finalizer.alive

    def _forked(self) -> Exception:
        return RuntimeError(
            f"the {self._what} belongs to process {self._pid}, which forked this one: make another here"
        )

    def _closed(self) -> Exception:
        return RuntimeError(f"the {self._what} was closed")

    def _each(self, outputs: AsyncIterator[R]) -> Iterator[R]:
        try:
            while True:
                try:
                    yield self._wait(outputs.__anext__())
                except StopAsyncIteration:
                    return
        finally:
            if self._finalizer.alive and os.getpid() == self._pid:
                self._wait(outputs.aclose())

    def generate(self, *args: Any, stream: bool = False, **kwargs: Any) -> Any:
        answer = self._wait(self._inner.generate(*args, stream=stream, **kwargs))
        return self._each(answer) if stream else answer

    def close(self) -> None:
        self._finalizer()

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()
