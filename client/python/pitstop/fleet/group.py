"""A trainer's updates of a fleet over NCCL: one broadcast of a bucket for the workers of all trees (nccl_trees.py).

A group is of one set of replicas: it is made for the first update after one has come or gone, and whose dies in a broadcast
costs that update's stage.
"""

from __future__ import annotations

import asyncio
import uuid
from typing import Any, Awaitable, Callable, Mapping

from ..aio import off_loop
from ..arrays import OnGpu, Weight
from ..cuda_runtime import cuda_runtime
from ..errors import PitstopError
from ..nccl_trees import VICTIMS, NcclTrees
from .orders import Outcome

LOOK_S = 0.01
CHANGE_S = 5.0  # a death that broke a group is seen by then


class TrainersGroup:
    """Owns: the trainer's rank. `ask` asks the conductor; `run` has it carry out an update."""

    def __init__(self, name: str, ask: Callable[..., Awaitable[Any]], run: Callable[..., Awaitable[Outcome]]):
        self._ask = ask
        self._run = run
        self._trees = NcclTrees(name, lambda kind, timeout, own: ask("fan_out", kind, timeout, {}, own))
        self._turn = asyncio.Lock()

    async def update(self, weights: Mapping[str, Weight], payload: Mapping[str, Any], timeout: float) -> tuple[Outcome, Any]:
        """And what was broadcast for it. It begins again if replicas came or went before anything was staged; with a quorum,
        also after that."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        async with self._turn:
            while True:
                view = await self._ask("view")
                try:
                    return await self._attempt(view["members"], weights, payload, deadline - loop.time())
                except BaseException as error:
                    await self.part()
                    is_staged = bool((getattr(error, "reply", None) or {}).get("replicas"))
                    may_be_again = getattr(error, "code", "") in VICTIMS and not (is_staged and view["quorum"] is None)
                    if not may_be_again or not await self._have_changed(view["members"], min(deadline, loop.time() + CHANGE_S)):
                        raise

    async def _have_changed(self, members: Mapping[str, Any], until: float) -> bool:
        while (await self._ask("view"))["members"].keys() == members.keys():
            if asyncio.get_running_loop().time() > until:
                return False
            await asyncio.sleep(10 * LOOK_S)
        return True

    async def _attempt(
        self, members: Mapping[str, Any], weights: Mapping[str, Weight], payload: Mapping[str, Any], timeout: float
    ) -> tuple[Outcome, Any]:
        pointer = next((each.pointer for each in weights.values() if isinstance(each, OnGpu)), None)
        device = None if pointer is None else await off_loop(lambda: cuda_runtime().device_of(pointer))
        group = await self._trees.meet({name: place["workers"] for name, place in members.items()}, device)
        uid, before = uuid.uuid4().hex, (group.num_broadcasts, group.num_bytes)
        payload = {**payload, "source": group.source(weights), "group": list(members)}
        update = asyncio.ensure_future(self._run(payload, timeout, uid))
        try:
            while not update.done() and not await self._ask("is_staging", uid):
                await asyncio.sleep(LOOK_S)  # others' updates come first
            if not update.done():
                await off_loop(group.send, weights, timeout, update.done)
        except BaseException as error:
            if not update.done():
                await self._ask("give_up", uid, f"the trainer: {error}")
            if not isinstance(error, PitstopError):
                update.cancel()
                raise
        broadcasts, sent = group.num_broadcasts - before[0], group.num_bytes - before[1]
        return await update, {"transfer": "nccl", "workers": group.num_workers, "broadcasts": broadcasts, "bytes": sent}

    async def part(self) -> None:
        await self._trees.part()
