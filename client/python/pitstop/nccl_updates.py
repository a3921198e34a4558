"""A trainer's updates of a fleet over NCCL: one broadcast of a bucket for the workers of all trees (nccl_trees.py).

A group belongs to one set of replicas: a new one is made for the first update after a replica has joined or left. A
death during a broadcast fails that update's stage.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from typing import TYPE_CHECKING, Any, AsyncIterator, Awaitable, Callable, Mapping

from .aio import off_loop
from .arrays import Weight
from .errors import PitstopError
from .nccl_trees import VICTIMS, NcclTrees

if TYPE_CHECKING:
    from .fleet.orders import Outcome

LOOK_S = 0.01
CHANGE_S = 5.0  # a death that broke a group is noticed within this time


def _check_time(deadline: float, why: object) -> None:
    if time.monotonic() >= deadline:
        raise PitstopError("deadline_exceeded", f"the update timed out: {why}", getattr(why, "reply", None)) from None


def _has_failed(update: asyncio.Future) -> bool:
    """Whether the update failed. A committed update has received everything, so its broadcast is not cancelled."""
    return update.done() and (update.cancelled() or update.exception() is not None)


class TrainersGroup:
    """Owns the trainer's rank. `ask` sends the conductor a question; `run` makes the conductor run an update."""

    def __init__(self, name: str, ask: Callable[..., Awaitable[Any]], run: Callable[..., Awaitable[Outcome]]):
        self._ask = ask
        self._run = run
        self._trees = NcclTrees(
            name, lambda kind, timeout, own: ask("fan_out", kind, timeout, {}, own), self._turn_to_join
        )
        self._turn = asyncio.Lock()

    async def update(
        self, weights: Mapping[str, Weight], payload: Mapping[str, Any], timeout: float
    ) -> tuple[Outcome, Any]:
        """Runs one update; returns its outcome and what was broadcast. The update begins again if replicas joined or left
        before anything was staged; with a quorum, also after that. `timeout` includes all of this and all waiting."""
        deadline = time.monotonic() + timeout
        try:
            await asyncio.wait_for(self._turn.acquire(), timeout)
        except asyncio.TimeoutError:
            raise PitstopError("deadline_exceeded", "this trainer's earlier updates are not done") from None
        try:
            while True:
                view = await self._ask("view")
                try:
                    return await self._attempt(view["members"], weights, payload, deadline)
                except BaseException as error:
                    await self.part()
                    is_staged = bool((getattr(error, "reply", None) or {}).get("replicas"))
                    may_be_again = getattr(error, "code", "") in VICTIMS and not (is_staged and view["quorum"] is None)
                    if not may_be_again or not await self._have_changed(
                        view["members"], min(deadline, time.monotonic() + CHANGE_S)
                    ):
                        if getattr(error, "code", "") == "aborted":
                            _check_time(deadline, error)
                        raise
                    _check_time(deadline, error)
        finally:
            self._turn.release()

    async def _have_changed(self, members: Mapping[str, Any], until: float) -> bool:
        while (await self._ask("view"))["members"].keys() == members.keys():
            if time.monotonic() > until:
                return False
            await asyncio.sleep(10 * LOOK_S)
        return True

    async def _attempt(
        self, members: Mapping[str, Any], weights: Mapping[str, Weight], payload: Mapping[str, Any], deadline: float
    ) -> tuple[Outcome, Any]:
        group = await self._trees.meet({name: place["workers"] for name, place in members.items()}, weights, deadline)
        uid, before, left = uuid.uuid4().hex, (group.num_broadcasts, group.num_bytes), deadline - time.monotonic()
        payload = {**payload, "source": group.source(weights), "group": list(members)}
        update = asyncio.ensure_future(self._run(payload, left, uid))
        try:
            while not update.done() and not await self._ask("is_staging", uid):
                _check_time(deadline, "others' updates are not done")
                await asyncio.sleep(LOOK_S)
            if not update.done():
                await off_loop(group.send, weights, deadline - time.monotonic(), lambda: _has_failed(update))
        except BaseException as error:
            if not update.done():
                await self._ask("give_up", uid, f"the trainer: {error}")
            if not isinstance(error, PitstopError):
                update.cancel()
                raise
        broadcasts, sent = group.num_broadcasts - before[0], group.num_bytes - before[1]
        return await update, {"transfer": "nccl", "workers": group.num_workers, "broadcasts": broadcasts, "bytes": sent}

    @contextlib.asynccontextmanager
    async def _turn_to_join(self, deadline: float) -> AsyncIterator[None]:
        uid = uuid.uuid4().hex
        try:
            while not await self._ask("take_turn", uid):
                _check_time(deadline, "others' updates are not done")
                await asyncio.sleep(LOOK_S)
            yield
        finally:
            await self._ask("give_up", uid, "its group is formed")

    async def part(self) -> None:
        await self._trees.part()
