"""The engine for asyncio: the calls of sglang.Engine and the RL calls of vllm.LLM, under their names.

    async with pitstop.AsyncEngine("stories", tp=1) as engine:
        out = await engine.generate("Once upon a time", {"max_new_tokens": 60})

Engine (engine.py) has the same calls, blocking.
"""

from __future__ import annotations

from typing import Any, Optional, Sequence, Union

from .adapter_calls import AdapterCalls
from .aio import AsyncClient, off_loop
from .calls import CALL_TIMEOUT_S, UPDATE_TIMEOUT_S
from .client import Client
from .errors import PitstopError
from .generate_calls import GenerateCalls
from .local_tree import LocalTree, find_by_url
from .not_served import refuse_call
from .outputs import Pause, pause_of
from .weight_calls import WeightCalls


class AsyncEngine(GenerateCalls, WeightCalls, AdapterCalls):
    """Starts a tree of its own, or joins a running one.

    model      start a tree with this checkpoint directory, bundled model, or org/name of the Hugging Face cache
    run_dir    join the tree in this run directory; or
    url        join this user's tree on this machine whose HTTP has this URL; or
    data, admin, key    join the tree with these doors (docs/doors.md)
    port       also start HTTP, at this port (0: any free one; see url); None: no HTTP
    use_tqdm   show a progress bar; None: if standard error is a terminal
    options    flags of `pitstop serve` with underscores: dp=2, max_total_tokens=4096, ...; also under their names in
               sglang.Engine and vllm.LLM (tp_size, tensor_parallel_size, ...)

    Errors are PitstopErrors. An unknown argument is a TypeError, or has code "unsupported" if another engine
    knows it. A tree that the engine started ends with close(), and with this program.
    """

    def __init__(
        self,
        model: Optional[str] = None,
        *,
        run_dir: Optional[str] = None,
        url: Optional[str] = None,
        data: Optional[str] = None,
        admin: Optional[str] = None,
        key: Optional[str] = None,
        port: Optional[int] = None,
        start_timeout: float = 600.0,
        use_tqdm: Optional[bool] = None,
        **options: Any,
    ):
        places = [name for name, value in (("run_dir", run_dir), ("url", url), ("data", data)) if value is not None]
        if len(places) > 1 or (places and (model is not None or port is not None or options)):
            raise TypeError("give a model and its options, or one of run_dir, url and data of a tree that runs")
        if model is not None:
            options["model"] = model
        options.update({"no_http": True} if port is None else {"port": port})
        self._options = None if places else options
        self._url = url
        self._doors: dict[str, Any] = {"run_dir": run_dir, "data": data, "admin": admin, "key": key}
        self._start_timeout = start_timeout
        self._use_tqdm = use_tqdm
        self._tree: Optional[LocalTree] = None
        self._client: Optional[AsyncClient] = None
        self._blocking: Optional[Client] = None  # for pushes, which have threads of their own

    # ---- its life ----

    async def start(self) -> AsyncEngine:
        """Starts or joins the tree. PitstopError: the tree does not start, or none is found."""
        if self._client is not None:
            return self
        if self._options is not None:
            self._tree = await off_loop(LocalTree, self._options, self._start_timeout, self._use_tqdm)
            self._doors = {"run_dir": self._tree.run_dir}
        elif self._url is not None:
            self._doors = {"run_dir": await off_loop(find_by_url, self._url)}
        try:
            self._client = await AsyncClient(**self._doors, name="engine", timeout=self._start_timeout).connect()
        except BaseException:
            await self.close()
            raise
        return self

    async def close(self) -> None:
        """Ends open requests. A tree that the engine started ends; a joined tree keeps running."""
        client, self._client = self._client, None
        blocking, self._blocking = self._blocking, None
        tree, self._tree = self._tree, None
        if client is not None:
            await client.close()
        for each in (blocking and blocking.close, tree and tree.stop):
            if each is not None:
                await off_loop(each)

    async def shutdown(self, timeout: float = CALL_TIMEOUT_S) -> None:
        """Ends the tree, also one that the engine joined."""
        if self._tree is None:
            await self._open().shutdown(timeout=timeout)
        await self.close()

    async def __aenter__(self) -> AsyncEngine:
        return await self.start()

    async def __aexit__(self, *_: Any) -> None:
        await self.close()

    def __getattr__(self, name: str) -> Any:
        return refuse_call(type(self).__name__, name)

    def _open(self) -> AsyncClient:
        if self._client is None:
            raise PitstopError("failed_precondition", "the engine was not started, or was closed")
        return self._client

    @property
    def client(self) -> AsyncClient:
        """The connection to the tree, with every message of docs/protocol.md."""
        return self._open()

    @property
    def is_private(self) -> bool:
        """True for a tree that this engine started and that only this engine can reach."""
        return self._tree is not None and self._options is not None and bool(self._options.get("no_http"))

    @property
    def url(self) -> Optional[str]:
        """The URL of HTTP; None: there is no HTTP, or the tree was joined by its doors."""
        return self._tree.url if self._tree is not None else self._url

    @property
    def run_dir(self) -> Optional[str]:
        return self._doors.get("run_dir")

    async def abort_request(
        self, rid: Union[str, Sequence[str]] = "", abort_all: bool = False, timeout: float = CALL_TIMEOUT_S
    ) -> dict[str, str]:
        """Ends requests of any client by exact id. Each request ends with its output so far and finish.reason "abort",
        which has been sent when this returns. Returns {rid: "aborted", "already_done" or "unknown"}."""
        rids = [rid] if isinstance(rid, str) else list(rid)
        reply = await self._open().abort(None if abort_all else rids, all=abort_all, timeout=timeout)
        return {each["rid"]: each.get("outcome", "unknown") for each in reply.get("results", [])}

    # ---- pausing ----

    async def pause(self, mode: str = "in_place", max_pause_s: float = 0.0, timeout: float = UPDATE_TIMEOUT_S) -> Pause:
        """Stops generating. mode: abort, in_place, retract or wait (docs/design.md, section 4); vLLM's keep is in_place."""
        reply = await self._open().pause({"keep": "in_place"}.get(mode, mode), max_pause_s, timeout)
        return pause_of(reply)

    async def pause_generation(
        self, mode: str = "abort", max_pause_s: float = 0.0, timeout: float = UPDATE_TIMEOUT_S
    ) -> Pause:
        """pause() with SGLang's default mode."""
        return await self.pause(mode, max_pause_s, timeout)

    async def resume(self, timeout: float = UPDATE_TIMEOUT_S) -> str:
        """Continues generation; does nothing if it runs already. Collected calls without a session take effect first,
        and the returned message says so."""
        return (await self._open().continue_generation(timeout=timeout)).get("message", "")

    continue_generation = resume
    resume_generation = resume

    async def is_paused(self, timeout: float = CALL_TIMEOUT_S) -> bool:
        return any(replica.get("pause_mode", "") != "" for replica in (await self._open().status(timeout))["replicas"])

    async def flush_cache(self, wait_idle: bool = False, timeout: float = UPDATE_TIMEOUT_S) -> None:
        """Drops all cached prefixes. PitstopError while a request has pages."""
        await self._open().flush_cache(wait_idle, timeout=timeout)

    async def reset_prefix_cache(self, timeout: float = UPDATE_TIMEOUT_S) -> bool:
        """vLLM's call. Returns whether the cache was reset."""
        try:
            await self.flush_cache(timeout=timeout)
        except PitstopError as error:
            if error.code not in ("failed_precondition", "unavailable"):
                raise
            return False
        return True
