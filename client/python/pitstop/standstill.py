"""Tells a waiting caller why a tree that answers generates nothing, and how to let it continue."""

from __future__ import annotations

import time
import warnings
from typing import Any, Mapping, Optional

from .errors import WaitingWarning

SILENCE_S = 2.0  # a waiting caller is warned after this time without output
AGAIN_S = 30.0  # the longest time between two questions to the tree
ASK_S = 1.0  # the time limit of an answer


def _why(replica: Mapping[str, Any]) -> str:
    parts = []
    released = [each["tag"] for each in replica.get("memory", []) if each.get("state", "resident") != "resident"]
    if released:
        parts.append(
            f"memory of {' and '.join(released)} is released; wake_up or resume_memory_occupation takes it again"
        )
    if not replica.get("has_weights", True):
        parts.append("there are no weights; a complete update brings them")
    if replica.get("pause_mode"):
        parts.append(
            f"paused ({replica['pause_mode']}) for {replica.get('paused_s', 0.0):.1f} s; resume ends the pause"
        )
    if not parts and replica.get("state") == "updating":
        parts.append("an update is taking effect")
    return "; ".join(parts)


def why_it_stands(status: Mapping[str, Any]) -> str:
    """The reason of the first replica that stands still; empty: none does."""
    replicas = status.get("replicas", [])
    for number, replica in enumerate(replicas):
        if why := _why(replica):
            return why if len(replicas) == 1 else f"replica {replica.get('replica', number)}: {why}"
    return ""


class Silence:
    """Notices that no output arrives. Its owner calls end() for each output."""

    def __init__(self) -> None:
        self._since = time.monotonic()
        self._patience = SILENCE_S
        self._is_told = False

    def end(self) -> None:
        self._since = time.monotonic()
        self._patience = SILENCE_S
        self._is_told = False

    def left(self) -> float:
        """Seconds until the silence is long enough to ask the tree; 0: now."""
        return max(0.0, self._since + self._patience - time.monotonic())

    def take(self, why: str) -> None:
        """Warns of the first standstill since the last output, given the tree's answer."""
        self._patience = min(2 * self._patience, AGAIN_S)
        self._since = time.monotonic()
        if not why or self._is_told:
            return
        self._is_told = True
        try:
            warnings.warn(f"pitstop: a request waits: {why}", WaitingWarning, stacklevel=2)
        except WaitingWarning:
            pass  # a filter makes warnings errors; raised here, the error would not reach the waiting caller


def late(rid: str, why: Optional[str]) -> str:
    return f"request '{rid}' did not finish in time" + (f": {why}" if why else "")
