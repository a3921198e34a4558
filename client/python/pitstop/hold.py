"""Stops a tree between two passes from the decision of an update until its commit, so that all trees of a fleet commit
together. Without a hold, each tree commits when its current pass has ended.

A hold is a pause with a deadline that the tree enforces: even if the coordinator or this process hangs, the tree then
continues. A tree that is already paused needs no hold.
"""

from __future__ import annotations

import asyncio
from typing import Optional

from .aio import AsyncClient
from .errors import PitstopError

# seconds; a hang is noticed only after the hold. Half of RESEND_S, so that no decision is repeated during a hold
HOLD_S_MAX = 1.0


class Hold:
    def __init__(self, client: AsyncClient):
        self._client = client
        self.is_over = asyncio.Event()  # set: no hold is active
        self.is_over.set()
        self._deadline: Optional[asyncio.TimerHandle] = None

    async def begin(self, hold_s: float) -> None:
        """Returns when the tree has stopped, or after hold_s."""
        self.is_over.clear()
        self._deadline = asyncio.get_running_loop().call_later(hold_s, self.is_over.set)
        try:
            await asyncio.wait_for(self._stand(hold_s), hold_s)
        except (PitstopError, asyncio.TimeoutError):
            pass  # the other trees do not wait for this one, which commits between two passes of its own

    async def _stand(self, hold_s: float) -> None:
        if any(each.get("pause_mode") for each in (await self._client.status())["replicas"]):
            self.is_over.set()
        else:
            await self._client.pause("in_place", hold_s)

    async def end(self) -> float:
        """Ends the hold; returns the seconds for which the tree was stopped."""
        if self.is_over.is_set():
            return 0.0
        self._deadline.cancel()
        try:
            return max(part.get("paused_s", 0.0) for part in (await self._client.continue_generation())["parts"])
        except PitstopError:
            return 0.0
        finally:
            self.is_over.set()
