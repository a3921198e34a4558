"""Gives a replica's tree the adapters of the fleet's version.

Thread: the loop's. The replica serializes the calls with its other changes of weights.
"""

from __future__ import annotations

from typing import Any, AsyncIterator, Mapping, Optional

from ..aio import AsyncClient
from ..calls import CALL_TIMEOUT_S
from ..errors import PitstopError
from .orders import Adapter, Stage, Version

UNLOAD = "unload"  # in a payload: the adapter is unloaded


def adapter_of(payload: Mapping[str, Any], digest: str) -> Adapter:
    """The adapter that a payload loads, once its digest is known."""
    return Adapter(
        payload["adapter"],
        digest,
        payload.get("label", ""),
        payload["path"],
        payload.get("adapter_config", ""),
        payload.get("adapter_config_digest", ""),
        payload.get("adapter_pinned", False),
    )


class TreeAdapters:
    def __init__(self, client: AsyncClient):
        self._client = client
        self._unloads: tuple[str, ...] = ()  # the adapters that the staged update unloads
        self._has_weights = True  # whether the staged update has weights

    def stage_unload(self, order: Stage, serving: Version) -> Version:
        """Stages an unload, which changes nothing yet. PitstopError: no such adapter is loaded."""
        name = order.payload["adapter"]
        if all(each.name != name for each in serving.adapters):
            loaded = ", ".join(f"'{each.name}'" for each in serving.adapters)
            raise PitstopError(
                "not_found", f"no adapter '{name}' is loaded; {f'loaded are {loaded}' if loaded else 'none is loaded'}"
            )
        self._unloads, self._has_weights = (name,), False
        return order.version_beside(serving, None)

    def stage_weights(self, order: Stage, serving: Optional[Version]) -> None:
        """Called after the model's weights were staged. A fleet that begins anew has no adapters."""
        had = serving.adapters if serving is not None else ()
        self._unloads = tuple(each.name for each in had if each not in order.adapters)

    def drop(self) -> None:
        self._unloads, self._has_weights = (), True

    async def commit(self) -> dict[str, Any]:
        """Commits the staged update, of any kind."""
        names, has_weights = self._unloads, self._has_weights
        self.drop()
        reply = await self._client.commit_weights() if has_weights else {}
        for name in names:
            await self._unload(name)
        return reply

    async def _unload(self, name: str) -> None:
        try:
            await self._client.unload_adapter(name, CALL_TIMEOUT_S)
        except PitstopError as error:
            if error.code != "not_found":  # the tree has lost the adapter already
                raise

    async def become(self, serving: Version, wanted: Version) -> AsyncIterator[Version]:
        """Loads and unloads, until the tree has the adapters of `wanted` beside its weights. Yields the tree's version
        after each step, and before each step that may fail, so that the caller knows the version after a failure."""
        names = {each.name for each in wanted.adapters}
        for each in serving.adapters:
            if each.name not in names:
                await self._unload(each.name)
                serving = _with(serving, serving.without(each.name))
                yield serving
        for each in wanted.adapters:
            if each in serving.adapters:
                continue
            serving = _with(serving, serving.without(each.name))
            yield serving
            await self._client.load_adapter(
                each.name,
                each.path,
                each.config,
                each.label,
                digest=each.digest,
                adapter_config_digest=each.config_digest,
                adapter_pinned=each.pinned,
            )
            serving = _with(serving, (*serving.adapters, each))
            yield serving


def _with(version: Version, adapters: tuple[Adapter, ...]) -> Version:
    in_order = tuple(sorted(adapters, key=lambda each: each.name))
    return Version(version.epoch, version.digest, version.label, version.uid, in_order)
