"""The blocking engine: AsyncEngine's calls, without asyncio.

with pitstop.Engine("stories", tp=1) as engine:
    out = engine.generate(["Once upon a time"], {"max_new_tokens": 60, "temperature": 0})
    engine.pause("in_place"); engine.update_weights(model.named_parameters(), label="step 1"); engine.resume()
"""

from __future__ import annotations

import asyncio
import functools
import threading
from typing import Any, Callable, Optional

from .async_engine import AsyncEngine
from .blocking import Blocking, blocking
from .calls import CALL_TIMEOUT_S
from .errors import PitstopError
from .not_served import refuse_call
from .standstill import why_it_stands

OWN_THREADS = ("pitstop-", "asyncio_")


def _is_only_thread() -> bool:
    return not any(
        thread is not threading.current_thread() and not thread.name.startswith(OWN_THREADS)
        for thread in threading.enumerate()
    )


def _stopping(call: Callable[..., Any]) -> Any:
    """Marks a blocking call that stops generation: requests wait until another call."""
    wait = blocking(call)

    @functools.wraps(call)
    def stop(self: Engine, *args: Any, **kwargs: Any) -> Any:
        is_pause = call in (AsyncEngine.pause, AsyncEngine.pause_generation)
        has_deadline = is_pause and (kwargs.get("max_pause_s") or args[1:2] not in ((), (0,)))
        self._was_stopped = self._was_stopped or not has_deadline
        return wait(self, *args, **kwargs)

    return stop


class Engine(Blocking):
    """Starts a tree of its own, or joins a running one. Arguments and calls are AsyncEngine's (help(pitstop.AsyncEngine)).

    Thread: any may call. An event loop on a thread of its own owns the connection.
    """

    _was_stopped = False  # stopped by a call of this engine, and not seen running since

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(AsyncEngine(*args, **kwargs))

    def __enter__(self) -> Engine:
        return self

    def close(self) -> None:
        """Ends open requests. A tree that the engine started ends; a joined tree keeps running."""
        super().close()

    def shutdown(self, timeout: float = CALL_TIMEOUT_S) -> None:
        """Ends the tree, also one that the engine joined."""
        if self._finalizer.alive:
            self._wait(self._inner.shutdown(timeout))
            self.close()

    def __getattr__(self, name: str) -> Any:
        return refuse_call(type(self).__name__, name)

    @property
    def url(self) -> Optional[str]:
        """The URL of HTTP; None: there is no HTTP, or the tree was joined by its doors."""
        return self._inner.url

    @property
    def run_dir(self) -> Optional[str]:
        return self._inner.run_dir

    def _check_awake(self, call: str, timeout: Optional[float]) -> None:
        """Raises PitstopError "failed_precondition" if the tree is stopped and the only thread that could wake it would wait
        for ever. If HTTP, another thread or a deadline of the pause can wake it, a warning is issued instead."""
        if not self._was_stopped or timeout is not None:
            return
        if not self._inner.is_private or not _is_only_thread():
            return
        why = why_it_stands(self._wait(self._inner.client.status()))
        if why:
            raise PitstopError("failed_precondition", f"{call} would wait for ever: {why}; timeout= limits the wait")
        self._was_stopped = bool(why)

    @functools.wraps(AsyncEngine.generate)
    def generate(self, *args: Any, **kwargs: Any) -> Any:
        self._check_awake("generate", kwargs.get("timeout"))
        return super().generate(*args, **kwargs)

    async def async_generate(self, *args: Any, **kwargs: Any) -> Any:
        """The same as generate(), for the caller's own event loop."""
        if kwargs.get("stream"):
            raise TypeError("async_generate returns whole outputs; AsyncEngine.generate streams")
        future = asyncio.run_coroutine_threadsafe(self._inner.generate(*args, **kwargs), self._loop)
        return await asyncio.wrap_future(future)

    @functools.wraps(AsyncEngine.chat)
    def chat(self, *args: Any, **kwargs: Any) -> Any:
        self._check_awake("chat", kwargs.get("timeout"))
        return self._wait(self._inner.chat(*args, **kwargs))

    open_session = blocking(AsyncEngine.open_session)
    close_session = blocking(AsyncEngine.close_session)
    tokenize = blocking(AsyncEngine.tokenize)
    detokenize = blocking(AsyncEngine.detokenize)
    abort_request = blocking(AsyncEngine.abort_request)

    pause = _stopping(AsyncEngine.pause)
    pause_generation = _stopping(AsyncEngine.pause_generation)
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
    load_adapter = blocking(AsyncEngine.load_adapter)
    rollback_adapter = blocking(AsyncEngine.rollback_adapter)
    unload_adapter = blocking(AsyncEngine.unload_adapter)
    adapters = blocking(AsyncEngine.adapters)
    load_lora_adapter = blocking(AsyncEngine.load_lora_adapter)
    load_lora_adapter_from_tensors = blocking(AsyncEngine.load_lora_adapter_from_tensors)
    unload_lora_adapter = blocking(AsyncEngine.unload_lora_adapter)
    rollback_weights = blocking(AsyncEngine.rollback_weights)
    weight_digests = blocking(AsyncEngine.weight_digests)
    get_weights_by_name = blocking(AsyncEngine.get_weights_by_name)
    get_server_info = blocking(AsyncEngine.get_server_info)

    release_memory_occupation = _stopping(AsyncEngine.release_memory_occupation)
    resume_memory_occupation = blocking(AsyncEngine.resume_memory_occupation)
    sleep = _stopping(AsyncEngine.sleep)
    wake_up = blocking(AsyncEngine.wake_up)
    is_sleeping = blocking(AsyncEngine.is_sleeping)
    collective_rpc = blocking(AsyncEngine.collective_rpc)
