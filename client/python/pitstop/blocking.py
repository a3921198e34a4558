"""A face without await for an object that lives in an event loop: Engine's and Fleet's."""

from __future__ import annotations

import asyncio
import functools
import threading
import weakref
from typing import TYPE_CHECKING, Any, AsyncIterator, Callable, Coroutine, Iterator, TypeVar

if TYPE_CHECKING:
    from typing import Concatenate, ParamSpec

    P = ParamSpec("P")
R = TypeVar("R")
CLOSE_S = 60.0
JOIN_S = 10.0


def _end(loop: asyncio.AbstractEventLoop, thread: threading.Thread, inner: Any) -> None:
    asyncio.run_coroutine_threadsafe(inner.close(), loop).result(CLOSE_S)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(JOIN_S)
    loop.close()


def blocking(call: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]) -> Callable[Concatenate[Blocking, P], R]:
    """The same call, waited for. Any thread may make it; what Ctrl-C interrupts is cancelled."""

    @functools.wraps(call)
    def wait(self: Blocking, *args: Any, **kwargs: Any) -> R:
        return self._wait(call(self._inner, *args, **kwargs))

    return wait


class Blocking:
    """Starts `inner` (start() and close() are awaited) in an event loop on a thread of its own, which owns what it opens.

    Thread: any may call. A call after close() is a RuntimeError, not a wait for a loop that has ended.
    """

    def __init__(self, inner: Any):
        self._what = type(self).__name__.lower()
        self._inner = inner
        self._loop = asyncio.new_event_loop()
        thread = threading.Thread(target=self._loop.run_forever, name=f"pitstop-{self._what}", daemon=True)
        thread.start()
        # Also where nobody closes it: at the latest when the program ends.
        self._finalizer = weakref.finalize(self, _end, self._loop, thread, inner)
        try:
            self._wait(inner.start())
        except BaseException:
            self.close()
            raise

    def _wait(self, coroutine: Coroutine[Any, Any, R]) -> R:
        """What Ctrl-C interrupts is cancelled."""
        if not self._finalizer.alive:
            coroutine.close()
            raise RuntimeError(f"the {self._what} was closed")
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def _each(self, outputs: AsyncIterator[R]) -> Iterator[R]:
        try:
            while True:
                try:
                    yield self._wait(outputs.__anext__())
                except StopAsyncIteration:
                    return
        finally:
            if self._finalizer.alive:
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
