"""The messages about weights between a fleet's coordinator and its replicas.

Every order has the generation of its coordinator: a replica that has seen a newer one refuses the
order. Any order may be lost, late or repeated; each is answered, and a repetition is answered like the first.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Optional, Union

LEAD_S = 0.008  # a commit is ordered this long before its time, so that all replicas have received it by then,
# plus this for each replica: an order takes 0.15 ms of the coordinator's thread (docs/scale.md)
LEAD_REPLICA_S = 0.0002

Key = tuple[int, int]  # names an update: the coordinator's generation, and its count there; never reused
NO_KEY: Key = (0, 0)


@dataclass(frozen=True)
class Adapter:
    """An adapter beside the model's weights: its tensors are in a directory that every machine can read."""

    name: str
    digest: str  # of the resident tensors
    label: str = ""
    path: str = ""
    config: str = ""  # the text of its configuration; empty: the directory's
    config_digest: str = ""  # of the directory's configuration
    pinned: bool = False


@dataclass(frozen=True)
class Version:
    """What serves, or could serve: the model's weights, and the adapters that are loaded beside them."""

    epoch: int
    digest: str  # of the resident weights, 32 hex digits; empty if the tree computes none
    label: str = ""
    uid: str = ""  # the update's name, given by its caller; empty: the model's own weights
    adapters: tuple[Adapter, ...] = ()  # by name
    change: int = 0  # numbers the loads and unloads of adapters: later ones have larger numbers
    changed_by: str = ""  # the uid of the latest change

    @property
    def rank(self) -> tuple[int, int]:
        """Larger for a later version."""
        return (self.epoch, self.change)

    def has_weights_of(self, other: Optional[Version]) -> bool:
        return other is not None and (self.epoch, self.digest) == (other.epoch, other.digest)

    def is_same(self, other: Optional[Version]) -> bool:
        """Also compares adapters and changes: a late answer may be about the version before a load or an unload."""
        return (
            other is not None
            and self.has_weights_of(other)
            and (self.adapters, self.change) == (other.adapters, other.change)
        )

    def without(self, name: str) -> tuple[Adapter, ...]:
        """Returns the adapters except the one with this name."""
        return tuple(each for each in self.adapters if each.name != name)


# ---- coordinator -> replica ----


@dataclass(frozen=True)
class _Said:
    generation: int


@dataclass(frozen=True)
class _OfUpdate(_Said):
    key: Key


@dataclass(frozen=True)
class Ask(_Said):
    """Asks which version a replica serves, and for the update under way. Answered by State; afterwards the replica
    refuses older coordinators."""


@dataclass(frozen=True)
class Stage(_OfUpdate):
    """Receive and check a version while another one serves. Answered by Staged."""

    epoch: int
    uid: str
    payload: Any = None  # where the bytes are; not read by the coordinator
    way: Any = None  # the relay's source for this replica; not read by the coordinator
    adapters: tuple[Adapter, ...] = ()  # the adapters that stay loaded
    change: int = 0  # as of Version

    def version(self, digest: str, label: str) -> Version:
        """The version of the model's weights that is staged."""
        return Version(self.epoch, digest, label, self.uid, self.adapters, self.change)

    def version_beside(self, serving: Version, adapter: Optional[Adapter]) -> Version:
        """The version with this adapter beside the weights that serve; after an unload, the version without it."""
        adapters = (*self.adapters, *([adapter] if adapter else []))
        in_order = tuple(sorted(adapters, key=lambda each: each.name))
        return replace(serving, adapters=in_order, change=self.change, changed_by=self.uid)


@dataclass(frozen=True)
class Decide(_OfUpdate):
    """All are prepared: this update will take effect. All answer with Decided before any gets Commit."""


@dataclass(frozen=True)
class Commit(_OfUpdate):
    """Serve the staged version. Answered by Committed."""

    at: float = 0.0  # when all begin, by the machines' clocks
    lead_s: float = 0.0  # begins at most this long after the order arrives, also if a clock is wrong


@dataclass(frozen=True)
class Drop(_OfUpdate):
    """Discard the stage, and refuse to begin it again. Answered by Dropped."""


@dataclass(frozen=True)
class Fetch(_Said):
    """Serve this version, received from a replica that serves it (or from a directory). Answered by Fetched."""

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
    key: Optional[Key] = None  # the staged update
    is_decided: bool = False  # whether it will take effect


@dataclass(frozen=True)
class Staged(_SaidBy):
    key: Key
    version: Optional[Version]  # None: the stage failed
    code: str = ""
    message: str = ""
    report: Any = None  # per rank, for the caller


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
    version: Optional[Version]  # the version that serves now
    code: str = ""
    message: str = ""


@dataclass(frozen=True)
class Refused(_SaidBy):
    """The replica has seen a newer coordinator."""

    generation: int


Answer = Union[State, Staged, Decided, Committed, Dropped, Fetched, Refused]


# ---- coordinator -> caller of an update ----


@dataclass(frozen=True)
class Outcome:
    """The result: in effect on every replica named `committed`, or nowhere."""

    uid: str
    ok: bool
    version: Optional[Version] = None  # if ok the new version, otherwise the one that serves
    code: str = ""
    message: str = ""
    replicas: dict[str, dict[str, Any]] = field(default_factory=dict)  # member -> {"outcome", "message", "report"}
    # what the trainer sent: "transfer", "bytes"; with nccl also "broadcasts", "workers"
    sent: dict[str, Any] = field(default_factory=dict)
