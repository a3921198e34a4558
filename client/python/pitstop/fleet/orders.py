"""What a fleet's coordinator and its replicas say to each other about weights.

Every order carries the generation of the coordinator that gives it: a replica that has heard a newer one refuses the
order. Any order may be lost, late or said twice; each is answered, and a second time as the first.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Optional, Union

LEAD_S = 0.008  # a commit is ordered so long before it is due, so that all replicas have heard of it by then,
LEAD_REPLICA_S = 0.0002  # and so much longer for each: an order takes 0.15 ms of the coordinator's thread (docs/scale.md)

Key = tuple[int, int]  # of an update: the coordinator's generation, and its count there; never used again
NO_KEY: Key = (0, 0)


@dataclass(frozen=True)
class Version:
    """Weights that serve, or could."""

    epoch: int
    digest: str  # of what is resident, 32 hex digits; empty where a tree computes none
    label: str = ""
    uid: str = ""  # of the update that brought it, as its caller named that; empty: the model's own weights

    def is_same(self, other: Optional[Version]) -> bool:
        return other is not None and (self.epoch, self.digest) == (other.epoch, other.digest)


# ---- coordinator -> replica ----


@dataclass(frozen=True)
class Ask:
    """What do you serve, and what is under way? Answered by State. From then on older coordinators are refused."""

    generation: int


@dataclass(frozen=True)
class Stage:
    """Receive and check a version beside the one that serves. Answered by Staged."""

    generation: int
    key: Key
    epoch: int
    uid: str
    payload: Any = None  # where the bytes are; the coordinator never looks at it,
    way: Any = None  # nor at who gives them on to this replica


@dataclass(frozen=True)
class Decide:
    """All are prepared: this update will take effect. Answered by Decided, before anybody is told to commit."""

    generation: int
    key: Key


@dataclass(frozen=True)
class Commit:
    """Serve it. Answered by Committed."""

    generation: int
    key: Key
    at: float = 0.0  # on the machines' clocks, so that all begin together; on one that is wrong
    lead_s: float = 0.0  # no later than so long after the order comes


@dataclass(frozen=True)
class Drop:
    """Forget the stage, and never begin it again. Answered by Dropped."""

    generation: int
    key: Key


@dataclass(frozen=True)
class Fetch:
    """Serve this version, from a replica that does (or from a directory). Answered by Fetched."""

    generation: int
    version: Version
    donor: str = ""
    path: str = ""


@dataclass(frozen=True)
class Retire:
    """End: what you serve cannot become what the fleet serves."""

    generation: int
    reason: str = ""


Order = Union[Ask, Stage, Decide, Commit, Drop, Fetch, Retire]


# ---- replica -> coordinator ----


@dataclass(frozen=True)
class State:
    member: str
    generation: int
    version: Optional[Version]  # None: no weights
    staged: Optional[Version] = None
    key: Optional[Key] = None  # of what is staged
    is_decided: bool = False  # that one will take effect


@dataclass(frozen=True)
class Staged:
    member: str
    key: Key
    version: Optional[Version]  # None: it failed
    code: str = ""
    message: str = ""
    report: Any = None  # of each rank, for the caller


@dataclass(frozen=True)
class Decided:
    member: str
    key: Key
    code: str = ""
    message: str = ""


@dataclass(frozen=True)
class Committed:
    member: str
    key: Key
    code: str = ""
    message: str = ""
    report: Any = None


@dataclass(frozen=True)
class Dropped:
    member: str
    key: Key


@dataclass(frozen=True)
class Fetched:
    member: str
    version: Optional[Version]  # what serves now
    code: str = ""
    message: str = ""


@dataclass(frozen=True)
class Refused:
    """A newer coordinator is there."""

    member: str
    generation: int


Answer = Union[State, Staged, Decided, Committed, Dropped, Fetched, Refused]


# ---- coordinator -> who asked for an update ----


@dataclass(frozen=True)
class Outcome:
    """In effect on every replica that is named `committed`, or nowhere."""

    uid: str
    ok: bool
    version: Optional[Version] = None  # ok: the new one; else what serves
    code: str = ""
    message: str = ""
    replicas: dict[str, dict[str, Any]] = field(default_factory=dict)  # member -> {"outcome", "message", "report"}
