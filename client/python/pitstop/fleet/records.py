"""The records of a Coordinator (coordinator.py): of its members, and of an update."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any, Optional

from .orders import Key, State, Version


class Standing(enum.Enum):
    ASKED = "asked"  # has not reported its version yet
    BEHIND = "behind"  # does not serve the fleet's version, and no replica can send it now
    FETCHING = "fetching"
    READY = "ready"
    RETIRED = "retired"  # was told to end


class Phase(enum.Enum):
    RECOVERING = "recovering"  # until every member has reported its version
    IDLE = "idle"
    STAGING = "staging"
    DECIDING = "deciding"
    COMMITTING = "committing"
    DROPPING = "dropping"
    FORMING = "forming"  # a trainer's group


@dataclass
class Member:
    standing: Standing = Standing.ASKED
    version: Optional[Version] = None
    state: Optional[State] = None  # as reported when asked
    not_before: float = 0.0  # not told to fetch again before this time
    why: str = ""  # why it is not ready, if known


@dataclass
class Update:
    uid: str
    payload: Any
    timeout_s: float
    path: str = ""  # the directory of the weights, if any
    group: Optional[frozenset[str]] = None  # members that receive the bytes together, all or none; None: each by itself
    adapter: str = ""  # the adapter that is loaded or unloaded; empty: the update is of the model's weights
    is_turn: bool = False  # a turn to form a group: stages nothing and has no Outcome
    key: Key = (0, 0)
    deadline: float = 0.0
    version: Optional[Version] = None
    left: dict[str, None] = field(default_factory=dict)  # the remaining participants, in order; and of these,
    awaited: dict[str, None] = field(default_factory=dict)  # those that have not answered the phase's order, in order
    replicas: dict[str, dict[str, Any]] = field(default_factory=dict)  # all participants -> the outcome at each
    code: str = ""
    message: str = ""
