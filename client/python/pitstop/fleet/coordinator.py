"""One update for a whole fleet: staged on all, all prepared, decided on all, then committed on all. Pure.

  staging     every participant receives and checks the version while it serves the old one. If a participant fails,
              disappears or is late, all participants drop the version. With a quorum, that participant is only set
              aside as long as enough others are left.
  deciding    all participants are prepared, and each gets the decision. The update takes effect as soon as one has
              received it: a successor commits if it finds such a replica, and drops if it finds none.
  committing  all living participants have received the decision, and commit. So every living replica knows of any
              version that a replica serves.
  dropping    the old version keeps serving on all replicas. The coordinator does not wait for a replica that hangs: its
              next stage replaces the older one.
  forming     a trainer's group is formed. No update is under way, because its workers can receive nothing meanwhile.

The bytes of a broadcast reach either all replicas of its `group` or none. Such an update is for exactly the replicas that
are ready when its turn comes, and none of them is set aside.

A replica that joins late, or was set aside, is not ready until it serves the committed version. It gets that version from
a replica that serves it, also during another update. Deaths are final: a replica that is `gone` never returns under that
name. Messages may be lost: each is repeated until it is answered.

Source: the three phases are Skeen's non-blocking commit (1981), for processes that stop and are seen to have stopped.
Owns:    the members, the version that is the fleet's, the update under way.
Thread:  one. No clock, no I/O: time and facts come in, orders and outcomes go out.
Bounded: one update at a time, UPDATES_WAITING_MAX more in order.
"""

from __future__ import annotations

import collections
from typing import Any, Callable, Iterable, Optional

from .orders import Answer, Ask, Commit, Committed, Decide, Decided, Drop, Dropped, Fetch, Fetched, Key, Order
from .orders import Outcome, Refused, Retire, Stage, Staged, State, Version
from .records import Member, Phase, Standing, Update

UPDATES_WAITING_MAX = 16
RESEND_S = 2.0
TURN_S = 40.0  # a trainer that has claimed its turn must form its group within this time
CLAIM_S = 5.0  # a trainer must claim its turn within this time, or loses it
DROP_S = 10.0  # a participant that has not confirmed a drop by then forgets the stage with its next order


class Coordinator:
    def __init__(self, generation: int, members: Iterable[str] = (), quorum: Optional[int] = None, now: float = 0.0):
        self.generation = generation
        self.quorum = quorum
        self.members: dict[str, Member] = {}
        self.committed: Optional[Version] = None
        self.committed_path = ""  # a directory that has the committed version, too; empty: none has
        self.phase = Phase.RECOVERING
        self.deposed_by = 0  # the generation of a newer coordinator: this one sends nothing more
        self._update: Optional[Update] = None
        self._waiting: collections.deque[Update] = collections.deque()
        self._count = 0
        self._now = now
        self._num_asked = 0  # members that have not reported their version
        self._behind: set[str] = set()  # members that are BEHIND, and some that no longer exist
        self._orders: list[tuple[str, Order]] = []
        self._outcomes: list[Outcome] = []
        self._unanswered: dict[str, tuple[Order, float]] = {}  # member -> the latest order, and when it was sent
        for member in members:
            self.add(member)
        self._go_on()

    # ---- facts ----

    def add(self, member: str) -> None:
        """Adds a replica, new or of a predecessor."""
        self.members[member] = Member()
        self._num_asked += 1
        self._say(member, Ask(self.generation))

    def gone(self, member: str, why: str = "it vanished") -> None:
        """Removes a dead replica for good."""
        was = self.members.pop(member, None)
        if was is None:
            return
        self._num_asked -= was.standing is Standing.ASKED
        self._behind.discard(member)
        self._unanswered.pop(member, None)
        self._lose(member, "vanished", why)
        self._go_on()

    def handle_answer(self, answer: Answer) -> None:
        member = self.members.get(answer.member)
        if member is None or self.deposed_by:
            return
        if isinstance(answer, Refused):
            if answer.generation > self.generation:
                self._depose(answer.generation)
            return
        handlers: dict[type, Callable[[Member, Any], None]] = {
            State: self._handle_state,
            Staged: self._handle_staged,
            Decided: self._handle_decided,
            Committed: self._handle_committed,
            Dropped: self._handle_dropped,
            Fetched: self._handle_fetched,
        }
        handlers[type(answer)](member, answer)
        self._go_on()

    def update(
        self,
        uid: str,
        payload: Any = None,
        timeout_s: float = 600.0,
        path: str = "",
        group: Optional[Iterable[str]] = None,
        adapter: str = "",
    ) -> None:
        """Requests an update, of the model's weights or of an adapter beside them. Every request gets an Outcome."""
        update = Update(uid, payload, timeout_s, path, None if group is None else frozenset(group), adapter)
        if self.deposed_by:
            self._refuse(update, "aborted", "another coordinator has taken over")
        elif len(self._waiting) >= UPDATES_WAITING_MAX:
            self._refuse(update, "resource_exhausted", f"{len(self._waiting)} updates wait already")
        else:
            self._waiting.append(update)
            self._go_on()

    def take_turn(self, uid: str) -> bool:
        """Asks for a turn in which a trainer's group is formed: no update is under way until give_up(), or the end of
        its time. Repeat until True. A worker cannot join one group while it receives in another, nor the reverse."""
        if self.phase is Phase.FORMING and self.update_uid == uid:
            self._open_update.deadline = self._now + TURN_S
            return True
        if len(self._waiting) < UPDATES_WAITING_MAX and all(each.uid != uid for each in self._waiting):
            self._waiting.append(Update(uid, None, CLAIM_S, is_turn=True))
            self._go_on()
        return False

    def give_up(self, uid: str, message: str) -> None:
        """The trainer sends no more of this update, or no longer needs its turn."""
        if self.phase is Phase.STAGING and self.update_uid == uid:
            self._begin_drop("aborted", message)
        elif self.phase is Phase.FORMING and self.update_uid == uid:
            self._finish("", "")
        for update in [each for each in self._waiting if each.uid == uid]:
            self._waiting.remove(update)
            self._refuse(update, "aborted", message)
        self._go_on()

    def tick(self, now: float) -> None:
        """Repeats unanswered orders, and ends a stage whose time is up."""
        self._now = now
        if self.deposed_by:
            return
        for member, (order, said) in list(self._unanswered.items()):
            if now - said >= RESEND_S:
                self._say(member, order)
        update = self._update
        if update is not None and now >= update.deadline:
            if self.phase is Phase.STAGING:
                for member in list(update.awaited):
                    if self.phase is Phase.STAGING:
                        self._fail(member, "deadline_exceeded", "it was not prepared in time")
            elif self.phase in (Phase.DROPPING, Phase.FORMING):
                self._finish(update.code, update.message)
        self._go_on()

    def take_orders(self) -> list[tuple[str, Order]]:
        orders, self._orders = self._orders, []
        return orders

    def take_outcomes(self) -> list[Outcome]:
        outcomes, self._outcomes = self._outcomes, []
        return outcomes

    @property
    def update_uid(self) -> Optional[str]:
        """The uid of the update under way; empty if a predecessor began the update, None if there is none."""
        return self._update.uid if self._update is not None else None

    @property
    def _open_update(self) -> Update:
        """The update under way: every phase but RECOVERING and IDLE has one."""
        assert self._update is not None, self.phase
        return self._update

    @property
    def num_waiting(self) -> int:
        """The number of updates, and of groups to form, whose turn has not come."""
        return len(self._waiting)

    @property
    def ready(self) -> list[str]:
        """The replicas that may generate."""
        return [name for name, each in self.members.items() if each.standing is Standing.READY]

    # ---- orders and reports ----

    def _say(self, member: str, order: Order) -> None:
        self._unanswered[member] = (order, self._now)
        self._orders.append((member, order))

    def _answered(self, member: str, kind: type, key: Optional[Key] = None) -> None:
        order, _ = self._unanswered.get(member, (None, 0.0))
        if isinstance(order, kind) and (key is None or getattr(order, "key", None) == key):
            del self._unanswered[member]

    def _fall_behind(self, name: str) -> None:
        self.members[name].standing = Standing.BEHIND
        self._behind.add(name)

    def _retire(self, name: str, reason: str) -> None:
        self.members[name].standing, self.members[name].why = Standing.RETIRED, reason
        self._say(name, Retire(self.generation, reason))

    def _depose(self, generation: int) -> None:
        self.deposed_by = generation
        self._orders.clear()
        self._unanswered.clear()
        message = f"another coordinator, of generation {generation}, has taken over"
        for update in [*([self._update] if self._update else []), *self._waiting]:
            self._refuse(update, "aborted", message)
        self._update = None
        self._waiting.clear()

    def _refuse(self, update: Update, code: str, message: str) -> None:
        if update.uid and not update.is_turn:
            self._outcomes.append(Outcome(update.uid, False, self.committed, code, message, update.replicas))

    # ---- answers ----

    def _current(self, name: str, key: Key, phase: Phase) -> Optional[Update]:
        """The update under way, if it is in this phase and waits for this participant."""
        update = self._update
        is_current = update is not None and self.phase is phase and update.key == key and name in update.awaited
        return update if is_current else None

    def _handle_state(self, member: Member, answer: State) -> None:
        if answer.generation != self.generation or member.standing is not Standing.ASKED:
            return
        self._answered(answer.member, Ask)
        self._num_asked -= 1
        member.version, member.state = answer.version, answer
        self._fall_behind(answer.member)

    def _handle_staged(self, member: Member, answer: Staged) -> None:
        update = self._current(answer.member, answer.key, Phase.STAGING)
        if update is None:
            return
        self._answered(answer.member, Stage, answer.key)
        if answer.version is None:
            self._fail(answer.member, answer.code, answer.message)
            return
        others = update.version
        if others is not None and not others.is_same(answer.version):
            said = f"it staged other weights than the others: digests {answer.version.digest} and {others.digest}"
            self._begin_drop("data_loss", f"{answer.member}: {said}")
            return
        update.version = answer.version
        del update.awaited[answer.member]
        update.replicas[answer.member] = {"outcome": "prepared", "message": "", "report": answer.report}

    def _handle_decided(self, member: Member, answer: Decided) -> None:
        update = self._current(answer.member, answer.key, Phase.DECIDING)
        if update is None:
            return
        self._answered(answer.member, Decide, answer.key)
        if answer.code:
            self._lose(answer.member, "lost", answer.message)
            self._retire(answer.member, answer.message)
        else:
            del update.awaited[answer.member]

    def _handle_committed(self, member: Member, answer: Committed) -> None:
        update = self._current(answer.member, answer.key, Phase.COMMITTING)
        if update is None:
            return
        self._answered(answer.member, Commit, answer.key)
        if answer.code:
            self._lose(answer.member, "lost", answer.message)
            self._retire(answer.member, answer.message)
            return
        member.version, member.standing, member.why = update.version, Standing.READY, ""
        del update.awaited[answer.member]
        report = answer.report or update.replicas.get(answer.member, {}).get("report")
        update.replicas[answer.member] = {"outcome": "committed", "message": "", "report": report}

    def _handle_dropped(self, member: Member, answer: Dropped) -> None:
        self._answered(answer.member, Drop, answer.key)
        update = self._current(answer.member, answer.key, Phase.DROPPING)
        if update is not None:
            del update.awaited[answer.member], update.left[answer.member]

    def _handle_fetched(self, member: Member, answer: Fetched) -> None:
        if member.standing is not Standing.FETCHING:
            return
        self._answered(answer.member, Fetch)
        member.version = answer.version
        self._fall_behind(answer.member)
        member.not_before = self._now + RESEND_S if answer.code else 0.0
        member.why = answer.message

    # ---- lost participants ----

    def _lose(self, name: str, outcome: str, message: str) -> None:
        """Removes a participant from the update; the phase decides whether the update can continue without it."""
        update = self._update
        if update is None or name not in update.left:
            return
        if self.phase is Phase.STAGING:
            self._fail(name, "unavailable", message, outcome)
            return
        del update.left[name]
        update.awaited.pop(name, None)
        update.replicas[name] = {"outcome": outcome, "message": message, "report": None}

    def _fail(self, name: str, code: str, message: str, outcome: str = "failed") -> None:
        update = self._open_update
        del update.left[name]
        update.awaited.pop(name, None)
        update.replicas[name] = {"outcome": outcome, "message": message, "report": None}
        if self.quorum is None or update.group is not None or len(update.left) < max(1, self.quorum):
            is_few = self.quorum is not None and update.group is None
            left = f" ({len(update.left)} are left, the quorum is {self.quorum})" if is_few else ""
            self._begin_drop(code, f"{name}: {message}{left}", [name])
        elif name in self.members:
            # The replica is set aside. It serves the old version, so it is behind once the others have committed.
            self._say(name, Drop(self.generation, update.key))

    # ---- the phases ----

    def _go_on(self) -> None:
        """Takes all steps that the facts allow."""
        if self.deposed_by:
            return
        if self.phase is Phase.RECOVERING and self._num_asked == 0:
            self._recover()
        if self.phase is Phase.STAGING and not self._open_update.awaited:
            self._begin(Phase.DECIDING, Decide(self.generation, self._open_update.key))
        if self.phase is Phase.DECIDING and not self._open_update.awaited:
            if self._open_update.left:
                self._begin_commit()
            else:  # a successor unknown to this coordinator may have committed it before
                self._finish("data_loss", "every replica vanished during the decision")
        if self.phase is Phase.COMMITTING and not self._open_update.awaited:
            is_served = bool(self._open_update.left)
            self._finish(*(("", "") if is_served else ("data_loss", "every replica vanished during the commit")))
        if self.phase is Phase.DROPPING and not self._open_update.awaited:
            self._finish(self._open_update.code, self._open_update.message)
        if self.phase is Phase.IDLE and self._waiting:
            self._begin_stage(self._waiting.popleft())
        self._advance()

    def _begin(self, phase: Phase, order: Order) -> None:
        self.phase = phase
        self._open_update.awaited = dict(self._open_update.left)
        for name in self._open_update.left:
            self._say(name, order)

    def _begin_stage(self, update: Update) -> None:
        update.deadline = self._now + update.timeout_s
        if update.is_turn:
            self.phase, self._update = Phase.FORMING, update
            return
        # If no replica serves the fleet's version any more, the remaining ones may begin anew, without adapters.
        without_version = (Standing.BEHIND, Standing.FETCHING)
        is_anew = not self.ready and not update.adapter
        names = (
            [name for name, each in self.members.items() if each.standing in without_version] if is_anew else self.ready
        )
        if not names or len(names) < (self.quorum or 1):
            self._refuse(update, "unavailable", f"{len(names)} replicas can take part; {self.quorum or 1} are needed")
            return
        if update.group is not None and update.group != frozenset(names):
            self._refuse(
                update,
                "aborted",
                f"it is for the group {', '.join(sorted(update.group))}; ready are {', '.join(names)}",
            )
            return
        self._count += 1
        update.key = (self.generation, self._count)
        update.left = dict.fromkeys(names)
        for name in names:
            if self.members[name].standing is Standing.FETCHING:  # the stage ends the fetch
                self._fall_behind(name)
        self._update = update
        serving = Version(0, "") if is_anew or self.committed is None else self.committed
        epoch, change = self._latest()
        epoch, change = (serving.epoch, change + 1) if update.adapter else (epoch + 1, serving.change)
        order = Stage(
            self.generation,
            update.key,
            epoch,
            update.uid,
            update.payload,
            None,
            serving.without(update.adapter),
            change,
        )
        self._begin(Phase.STAGING, order)

    def _latest(self) -> tuple[int, int]:
        """The largest epoch and the largest number of a change."""
        versions = [each.version for each in self.members.values() if each.version is not None]
        versions += [self.committed] if self.committed else []
        return max((each.epoch for each in versions), default=0), max((each.change for each in versions), default=0)

    def _begin_commit(self) -> None:
        update = self._open_update
        assert update.version is not None, "every participant that is left has staged the version"
        if not update.version.has_weights_of(self.committed):
            self.committed_path = update.path
        self.committed = update.version
        for name, each in self.members.items():
            is_behind = name not in update.left and not update.version.is_same(each.version)
            if is_behind and each.standing is Standing.READY:
                self._fall_behind(name)
        self._begin(Phase.COMMITTING, Commit(self.generation, update.key))

    def _begin_drop(self, code: str, message: str, more: Iterable[str] = ()) -> None:
        update = self._open_update
        update.code, update.message, update.deadline = code, message, self._now + DROP_S
        update.left.update(dict.fromkeys(name for name in more if name in self.members))
        for name in update.left:
            update.replicas.setdefault(name, {"outcome": "dropped", "message": "", "report": None})
            if update.replicas[name]["outcome"] == "prepared":
                update.replicas[name]["outcome"] = "dropped"
        self._begin(Phase.DROPPING, Drop(self.generation, update.key))
        # Answer at once: the version will not serve, however long a hanging replica needs to forget it.
        self._refuse(update, code, message)
        update.uid = ""

    def _finish(self, code: str, message: str) -> None:
        update, self._update = self._open_update, None
        self.phase = Phase.IDLE
        if update.uid and not update.is_turn:
            self._outcomes.append(Outcome(update.uid, not code, self.committed, code, message, update.replicas))

    def _recover(self) -> None:
        """Commits a predecessor's update if a member has received its decision."""
        self.phase = Phase.IDLE
        states = [each.state for each in self.members.values() if each.state is not None]
        versions = [state.version for state in states if state.version is not None]
        if versions:
            self.committed = max(versions, key=lambda version: version.rank)
        update: Optional[Update] = None
        if decided := next((state for state in states if state.is_decided), None):
            assert decided.key is not None and decided.staged is not None, "a decided update is staged"
            update = Update("", None, 0.0, key=decided.key, version=decided.staged)
            for state in states:
                if state.key == decided.key and decided.staged.is_same(state.staged):
                    update.left[state.member] = None
        for state in states:
            if state.key is not None and (update is None or state.member not in update.left):
                self._say(state.member, Drop(self.generation, state.key))
        if update is not None:
            self._update = update
            for name in update.left:
                # These members serve the fleet's previous version until they commit.
                self.members[name].standing = Standing.READY
            self._begin(Phase.DECIDING, Decide(self.generation, update.key))

    def _advance(self) -> None:
        """Orders every replica that is behind to fetch the fleet's version."""
        if self.phase is Phase.RECOVERING:
            return
        taking_part = self._update.left if self._update else {}
        for name in sorted(self._behind):
            each = self.members[name]
            if each.standing is not Standing.BEHIND:
                self._behind.discard(name)
                continue
            if name in taking_part or name in self._unanswered or self._now < each.not_before:
                continue
            if self.committed is None:
                self.committed = each.version
            if self.committed is not None and self.committed.is_same(each.version):
                each.standing, each.why = Standing.READY, ""
            elif each.version is not None and self.committed is not None and each.version.rank >= self.committed.rank:
                self._retire(
                    name,
                    f"it serves epoch {each.version.epoch}, digest {each.version.digest}; the fleet "
                    f"epoch {self.committed.epoch}, digest {self.committed.digest}",
                )
            elif self.committed is not None:
                self._fetch(name, each, self.committed)

    def _fetch(self, name: str, member: Member, version: Version) -> None:
        donors = [each for each in self.ready if version.is_same(self.members[each].version)]
        if not donors and not self.committed_path and not version.has_weights_of(member.version):
            member.why = f"no replica serves epoch {version.epoch} any more: it waits for the next complete update"
            return
        num_fetching = sum(each.standing is Standing.FETCHING for each in self.members.values())
        donor = donors[num_fetching % len(donors)] if donors else ""
        member.standing = Standing.FETCHING
        self._say(name, Fetch(self.generation, version, donor, "" if donors else self.committed_path))
