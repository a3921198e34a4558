"""The engine in a program of its own thread of control: AsyncEngine's calls, blocking.

    with pitstop.Engine("stories", tp=1) as engine:
        out = engine.generate(["Once upon a time"], {"max_new_tokens": 60, "temperature": 0})
        engine.pause("in_place"); engine.update_weights(model.named_parameters(), label="step 1"); engine.resume()
"""

from __future__ import annotations

import asyncio
import functools
from typing import TYPE_CHECKING, Any, Callable, Coroutine, Optional, TypeVar

from .async_engine import AsyncEngine
from .blocking import Blocking
from .not_served import refuse_call

if TYPE_CHECKING:
    from typing import Concatenate, ParamSpec

    P = ParamSpec("P")
R = TypeVar("R")


def _blocking(call: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]) -> Callable[Concatenate[Engine, P], R]:
    """The same call, waited for. Any thread may make it; what Ctrl-C interrupts is cancelled."""

    @functools.wraps(call)
    def wait(self: Engine, *args: Any, **kwargs: Any) -> R:
        return self._wait(call(self._inner, *args, **kwargs))

    return wait


class Engine(Blocking):
    """A tree of its own, or one that runs; arguments and calls are AsyncEngine's (help(pitstop.AsyncEngine)).

    Thread: any may call. An event loop on a thread of its own owns the connection.
    """

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(AsyncEngine(*args, **kwargs))

    def __enter__(self) -> Engine:
        return self

    def close(self) -> None:
        """Open requests end. A tree that was started here ends; one that was joined goes on."""
        super().close()

    def shutdown(self) -> None:
        """Ends the tree, whoever started it."""
        if self._finalizer.alive:
            self._wait(self._inner.shutdown())
            self.close()

    def __getattr__(self, name: str) -> Any:
        return refuse_call(type(self).__name__, name)

    @property
    def url(self) -> Optional[str]:
        """Where HTTP listens; None: it does not, or the tree was joined by its doors."""
        return self._inner.url

    @property
    def run_dir(self) -> Optional[str]:
        return self._inner.run_dir

    @functools.wraps(AsyncEngine.generate)
    def generate(self, *args: Any, stream: bool = False, **kwargs: Any) -> Any:
        answer = self._wait(self._inner.generate(*args, stream=stream, **kwargs))
        return self._each(answer) if stream else answer

    async def async_generate(self, *args: Any, **kwargs: Any) -> Any:
        """generate, awaited, on the caller's own loop."""
        if kwargs.get("stream"):
            raise TypeError("async_generate gives whole outputs; AsyncEngine.generate streams")
        future = asyncio.run_coroutine_threadsafe(self._inner.generate(*args, **kwargs), self._loop)
        return await asyncio.wrap_future(future)

    chat = _blocking(AsyncEngine.chat)
    tokenize = _blocking(AsyncEngine.tokenize)
    detokenize = _blocking(AsyncEngine.detokenize)
    abort_request = _blocking(AsyncEngine.abort_request)

    pause = _blocking(AsyncEngine.pause)
    pause_generation = _blocking(AsyncEngine.pause_generation)
    resume = _blocking(AsyncEngine.resume)
    continue_generation = resume
    resume_generation = resume
    is_paused = _blocking(AsyncEngine.is_paused)
    flush_cache = _blocking(AsyncEngine.flush_cache)
    reset_prefix_cache = _blocking(AsyncEngine.reset_prefix_cache)

    update_weights = _blocking(AsyncEngine.update_weights)
    update_weights_from_tensor = _blocking(AsyncEngine.update_weights_from_tensor)
    update_weights_from_disk = _blocking(AsyncEngine.update_weights_from_disk)
    update_weights_from_distributed = _blocking(AsyncEngine.update_weights_from_distributed)
    update_weights_from_ipc = _blocking(AsyncEngine.update_weights_from_ipc)
    init_weights_update_group = _blocking(AsyncEngine.init_weights_update_group)
    destroy_weights_update_group = _blocking(AsyncEngine.destroy_weights_update_group)
    update_weight_version = _blocking(AsyncEngine.update_weight_version)
    rollback_weights = _blocking(AsyncEngine.rollback_weights)
    weight_digests = _blocking(AsyncEngine.weight_digests)
    get_weights_by_name = _blocking(AsyncEngine.get_weights_by_name)
    get_server_info = _blocking(AsyncEngine.get_server_info)

    release_memory_occupation = _blocking(AsyncEngine.release_memory_occupation)
    resume_memory_occupation = _blocking(AsyncEngine.resume_memory_occupation)
    sleep = _blocking(AsyncEngine.sleep)
    wake_up = _blocking(AsyncEngine.wake_up)
    is_sleeping = _blocking(AsyncEngine.is_sleeping)
    collective_rpc = _blocking(AsyncEngine.collective_rpc)
