"""A place for a replica, and the replica in it."""

from __future__ import annotations

import asyncio
from typing import Optional


class Slot:
    def __init__(self, number: int):
        self.number = number
        self.incarnation = 0
        self.num_failed = 0  # consecutive replicas that died before they were ready
        self.why = ""  # why the slot is empty: the cause of the latest death, or that there is no place yet
        self.task: Optional[asyncio.Task] = None
