"""A replica's half of an update of the fleet: which orders it carries out, and how it answers. Pure.

Owns:    the record of what is staged and whether it was decided; the tree does the work.
Thread:  one.
Bounded: one stage, one fetch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional, Union

from .orders import (
    NO_KEY,
    Answer,
    Ask,
    Commit,
    Committed,
    Decide,
    Decided,
    Drop,
    Dropped,
    Fetch,
    Fetched,
    Key,
    Order,
    Refused,
    Retire,
    Stage,
    Staged,
    State,
    Version,
)


@dataclass(frozen=True)
class Cancel:
    """Abort the stage or the fetch under way, and discard what is staged. Then send `then`."""

    then: Optional[Answer] = None


@dataclass(frozen=True)
class End:
    reason: str


# The work that an order causes. Stage, Commit and Fetch end with a call of *_done.
Work = Union[Stage, Commit, Fetch, Cancel, End]


class Participant:
    def __init__(self, member: str, version: Optional[Version]):
        self.member = member
        self.version = version
        self.generation = 0
        self._served_key: Optional[Key] = None
        self._staging: Optional[Key] = None
        self._staged: Optional[tuple[Key, Version]] = None
        self._decided: Optional[Key] = None
        self._committing: Optional[Key] = None
        self._fetching: Optional[Version] = None
        self._is_fetch_committing = False
        self._floor: Key = NO_KEY  # updates up to this one have ended

    def handle_order(self, order: Order) -> tuple[Optional[Answer], list[Work]]:
        """Returns the answers to send at once and the work to do, in this order."""
        if order.generation < self.generation:
            return Refused(self.member, self.generation), []
        is_new = order.generation > self.generation
        self.generation = order.generation
        if isinstance(order, Ask):
            return self._ask(is_new)
        if isinstance(order, Retire):
            return None, [End(order.reason)]
        return {Stage: self._stage, Decide: self._decide, Commit: self._commit, Drop: self._drop, Fetch: self._fetch}[
            type(order)
        ](order)

    def _ask(self, is_new: bool) -> tuple[Optional[Answer], list[Work]]:
        if self._is_fetch_committing:
            return None, []  # unanswered: the repeated Ask is answered after the commit
        works: list[Work] = []
        if is_new and (self._fetching or self._staging):
            # This report must stay true until the next order: a stage that ended later could be the last vote that a
            # predecessor waits for.
            self._floor = max(self._floor, self._staging or NO_KEY)
            self._fetching, self._staging = None, None
            works.append(Cancel())
        return self._state(), works

    def _state(self) -> State:
        key, staged = self._staged or (None, None)
        is_decided = key is not None and self._decided == key
        return State(self.member, self.generation, self.version, staged, key, is_decided)

    def _stage(self, order: Stage) -> tuple[Optional[Answer], list[Work]]:
        key = order.key
        if self._staged is not None and self._staged[0] == key:
            return Staged(self.member, key, self._staged[1]), []
        if key == self._staging:
            return None, []
        if self._is_fetch_committing:
            return None, []  # a repeated order: its work has begun
        if key <= self._floor:
            return Staged(self.member, key, None, "aborted", "this update is over"), []
        if self._decided is not None:
            return Staged(self.member, key, None, "failed_precondition", "another update is decided"), []
        # The coordinator has ended the earlier work: its drop is late, or was lost.
        works: list[Work] = []
        if self._staging or self._staged or self._fetching:
            works.append(Cancel())
        self._staged, self._fetching = None, None
        self._staging = key
        return None, [*works, order]

    def wants(self, work: Work) -> bool:
        """Whether the work is still wanted after a wait for other work."""
        if isinstance(work, Stage):
            return self._staging == work.key
        return not isinstance(work, Fetch) or self._fetching == work.version

    def stage_done(
        self, key: Key, version: Optional[Version], code: str = "", message: str = "", report: object = None
    ) -> Optional[Answer]:
        if self._staging != key:
            return None  # dropped meanwhile
        self._staging = None
        if version is not None:
            self._staged = (key, version)
        else:
            self._floor = max(self._floor, key)
        return Staged(self.member, key, version, code, message, report)

    def _decide(self, order: Decide) -> tuple[Optional[Answer], list[Work]]:
        if self._staged is not None and self._staged[0] == order.key:
            self._decided = order.key
        elif self._served_key != order.key:
            return Decided(self.member, order.key, "failed_precondition", "the update is not staged"), []
        return Decided(self.member, order.key), []

    def _commit(self, order: Commit) -> tuple[Optional[Answer], list[Work]]:
        if self._served_key == order.key:
            return Committed(self.member, order.key), []
        if self._committing == order.key:
            return None, []
        if self._staged is None or self._staged[0] != order.key or self._decided != order.key:
            return Committed(
                self.member, order.key, "failed_precondition", "the update was not staged and decided here"
            ), []
        self._committing = order.key
        return None, [order]

    def commit_done(self, key: Key, code: str = "", message: str = "", report: object = None) -> Answer:
        assert self._committing == key and self._staged is not None
        self._committing = None
        if not code:
            self.version = self._staged[1]
            self._served_key = key
            self._floor = max(self._floor, key)
            self._staged, self._decided = None, None
        return Committed(self.member, key, code, message, report)

    def _drop(self, order: Drop) -> tuple[Optional[Answer], list[Work]]:
        done = Dropped(self.member, order.key)
        self._floor = max(self._floor, order.key)
        of_stage = self._staged[0] if self._staged else self._staging
        if of_stage is None or of_stage > order.key:
            return done, []
        if self._committing is not None:
            return None, []  # a bug of the coordinator, which has decided to commit: commits are never undone
        self._staging, self._staged, self._decided = None, None, None
        return None, [Cancel(done)]

    def _fetch(self, order: Fetch) -> tuple[Optional[Answer], list[Work]]:
        if order.version.is_same(self.version):
            return Fetched(self.member, self.version), []
        if self._fetching == order.version:
            return None, []
        if self.version is not None and order.version.rank <= self.version.rank:
            said = f"epoch {order.version.epoch} is not newer than the one that serves, {self.version.epoch}"
            return Fetched(self.member, self.version, "failed_precondition", said), []
        if self._staging or self._staged or self._is_fetch_committing:
            return Fetched(self.member, self.version, "failed_precondition", "an update is staged"), []
        works: list[Work] = [Cancel()] if self._fetching else []
        self._fetching = order.version
        return None, [*works, order]

    def fetch_may_commit(self, wanted: Version) -> bool:
        """Whether a fetched version may begin to serve; fetch_done follows."""
        self._is_fetch_committing = self._fetching == wanted
        return self._is_fetch_committing

    def fetch_done(
        self, wanted: Version, code: str = "", message: str = "", reached: Optional[Version] = None
    ) -> Optional[Answer]:
        """`reached`: the version that serves after a part of the fetch."""
        self._is_fetch_committing = False
        if self._fetching != wanted:
            return None  # cancelled meanwhile
        self._fetching = None
        if not code or reached is not None:
            self.version = reached if code else wanted
            self._served_key = None
        return Fetched(self.member, self.version, code, message)
