"""The messages about weights between a fleet's coordinator and its replicas.

Every order has the generation of its coordinator: a replica that has seen a newer one refuses the
order. Any order may be lost, late or repeated; each is answered, and a repetition is answered like the first.
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
class _Said:
    generation: int


@dataclass(frozen=True)
class _OfUpdate(_Said):
    key: Key


@dataclass(frozen=True)
class Ask(_Said):
    """Asks what a replica serves and what is under way. Answered by State; older coordinators are then refused."""


@dataclass(frozen=True)
class Stage(_OfUpdate):
    """Receive and check a version while another one serves. Answered by Staged."""

    epoch: int
    uid: str
    payload: Any = None  # where the bytes are; the coordinator never looks at it,
    way: Any = None  # nor at who gives them on to this replica


@dataclass(frozen=True)
class Decide(_OfUpdate):
    """All are prepared: this update will take effect. All answer with Decided before any gets Commit."""


@dataclass(frozen=True)
class Commit(_OfUpdate):
    """Serve it. Answered by Committed."""

    at: float = 0.0  # on the machines' clocks, so that all begin together; on one that is wrong
    lead_s: float = 0.0  # no later than so long after the order comes


@dataclass(frozen=True)
class Drop(_OfUpdate):
    """Discard the stage, and never begin it again. Answered by Dropped."""


@dataclass(frozen=True)
class Fetch(_Said):
    """Serve this version, from a replica that does (or from a directory). Answered by Fetched."""

    version: Version
    donor: str = ""
    path: str = ""


@dataclass(frozen=True)
class Retire(_Said):
    """End: the replica's version cannot become the fleet's."""

    reason: str = ""


Order = Union[Ask, Stage, Decide, Commit, Drop, Fetch, Retire]


# ---- replica -> coordinator ----


@dataclass(frozen=True)
class _SaidBy:
    member: str


@dataclass(frozen=True)
class State(_SaidBy):
    generation: int
    version: Optional[Version]  # None: no weights
    staged: Optional[Version] = None
    key: Optional[Key] = None  # of what is staged
    is_decided: bool = False  # that one will take effect


@dataclass(frozen=True)
class Staged(_SaidBy):
    key: Key
    version: Optional[Version]  # None: it failed
    code: str = ""
    message: str = ""
    report: Any = None  # of each rank, for the caller


@dataclass(frozen=True)
class Decided(_SaidBy):
    key: Key
    code: str = ""
    message: str = ""


@dataclass(frozen=True)
class Committed(_SaidBy):
    key: Key
    code: str = ""
    message: str = ""
    report: Any = None


@dataclass(frozen=True)
class Dropped(_SaidBy):
    key: Key


@dataclass(frozen=True)
class Fetched(_SaidBy):
    version: Optional[Version]  # what serves now
    code: str = ""
    message: str = ""


@dataclass(frozen=True)
class Refused(_SaidBy):
    """The replica has seen a newer coordinator."""

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
    sent: dict[str, Any] = field(default_factory=dict)  # by the trainer: "transfer", "bytes"; nccl: "broadcasts", "workers", too
