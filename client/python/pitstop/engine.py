"""The engine in a program of its own thread of control: AsyncEngine's calls, blocking.

    with pitstop.Engine("stories", tp=1) as engine:
        out = engine.generate(["Once upon a time"], {"max_new_tokens": 60, "temperature": 0})
        engine.pause("in_place"); engine.update_weights(model.named_parameters(), label="step 1"); engine.resume()
"""

from __future__ import annotations

import asyncio
import functools
from typing import Any, Optional

from .async_engine import AsyncEngine
from .blocking import Blocking, blocking
from .not_served import refuse_call


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
    def generate(self, *args: Any, **kwargs: Any) -> Any:
        return super().generate(*args, **kwargs)

    async def async_generate(self, *args: Any, **kwargs: Any) -> Any:
        """generate, awaited, on the caller's own loop."""
        if kwargs.get("stream"):
            raise TypeError("async_generate gives whole outputs; AsyncEngine.generate streams")
        future = asyncio.run_coroutine_threadsafe(self._inner.generate(*args, **kwargs), self._loop)
        return await asyncio.wrap_future(future)

    chat = blocking(AsyncEngine.chat)
    tokenize = blocking(AsyncEngine.tokenize)
    detokenize = blocking(AsyncEngine.detokenize)
    abort_request = blocking(AsyncEngine.abort_request)

    pause = blocking(AsyncEngine.pause)
    pause_generation = blocking(AsyncEngine.pause_generation)
    resume = blocking(AsyncEngine.resume)
    continue_generation = resume
    resume_generation = resume
    is_paused = blocking(AsyncEngine.is_paused)
    flush_cache = blocking(AsyncEngine.flush_cache)
    reset_prefix_cache = blocking(AsyncEngine.reset_prefix_cache)

    update_weights = blocking(AsyncEngine.update_weights)
    update_weights_from_tensor = blocking(AsyncEngine.update_weights_from_tensor)
    update_weights_from_disk = blocking(AsyncEngine.update_weights_from_disk)
    update_weights_from_distributed = blocking(AsyncEngine.update_weights_from_distributed)
    update_weights_from_ipc = blocking(AsyncEngine.update_weights_from_ipc)
    init_weights_update_group = blocking(AsyncEngine.init_weights_update_group)
    destroy_weights_update_group = blocking(AsyncEngine.destroy_weights_update_group)
    update_weight_version = blocking(AsyncEngine.update_weight_version)
    rollback_weights = blocking(AsyncEngine.rollback_weights)
    weight_digests = blocking(AsyncEngine.weight_digests)
    get_weights_by_name = blocking(AsyncEngine.get_weights_by_name)
    get_server_info = blocking(AsyncEngine.get_server_info)

    release_memory_occupation = blocking(AsyncEngine.release_memory_occupation)
    resume_memory_occupation = blocking(AsyncEngine.resume_memory_occupation)
    sleep = blocking(AsyncEngine.sleep)
    wake_up = blocking(AsyncEngine.wake_up)
    is_sleeping = blocking(AsyncEngine.is_sleeping)
    collective_rpc = blocking(AsyncEngine.collective_rpc)
