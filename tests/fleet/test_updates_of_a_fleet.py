"""The rules of a fleet's updates, under random schedules; and planted bugs that the schedules must
find.
"""

import os

import pytest

import update_world
from pitstop.fleet import coordinator as coordinating, orders, participant
from update_world import Broken, World, coordinator_of

NUM_SCHEDULES = int(os.environ.get("PITSTOP_FLEET_SCHEDULES", "2000"))
NUM_MUTANT_SCHEDULES = 20_000

Coordinator, Participant = coordinating.Coordinator, participant.Participant


@pytest.mark.timeout(900 + NUM_SCHEDULES // 20)
def test_P2_an_update_is_in_effect_on_every_replica_or_on_none():
    events = sum(World(seed).run() for seed in range(NUM_SCHEDULES))
    assert events > 50 * NUM_SCHEDULES


def test_the_schedules_reach_what_they_are_for():
    codes, outcomes, generations = set(), set(), 0
    for seed in range(400):
        world = World(seed)
        world.run()
        generations = max(generations, world.coordinators[-1].generation)
        for outcome in world.oracle.outcomes.values():
            codes.add(outcome.code)
            outcomes |= {each["outcome"] for each in outcome.replicas.values()}
    assert {"", "deadline_exceeded", "unavailable", "data_loss", "aborted"} <= codes
    assert {"committed", "dropped", "failed", "vanished"} <= outcomes
    assert generations >= 4


def test_a_replica_that_hangs_holds_neither_its_update_nor_the_next():
    coordinator = coordinator_of("a", "b")
    coordinator.update("first", timeout_s=5.0)
    coordinator.update("second", timeout_s=5.0)
    key = coordinator.take_orders()[0][1].key
    coordinator.handle_answer(orders.Staged("a", key, orders.Version(2, "d", "", "first")))
    coordinator.tick(5.0)
    (first,) = coordinator.take_outcomes()
    assert (first.ok, first.code) == (False, "deadline_exceeded") and "b: " in first.message
    coordinator.handle_answer(orders.Dropped("a", key))
    coordinator.take_orders()
    coordinator.tick(5.0 + coordinating.DROP_S)
    assert [(name, order.uid) for name, order in coordinator.take_orders() if isinstance(order, orders.Stage)] == [
        ("a", "second"),
        ("b", "second"),
    ]
    coordinator.tick(10.0 + coordinating.DROP_S)
    (second,) = coordinator.take_outcomes()
    assert second.code == "deadline_exceeded" and second.uid == "second"


@pytest.mark.parametrize("phase", list(coordinating.Phase)[2:5], ids=lambda phase: phase.value)
def test_a_replica_that_is_ended_for_hanging_is_named_with_the_reason(phase):
    coordinator = coordinator_of("a", "b")
    coordinator.update("it")
    key = coordinator.take_orders()[0][1].key
    version = orders.Version(2, "d", "", "it")
    said = {
        coordinating.Phase.STAGING: lambda name: orders.Staged(name, key, version),
        coordinating.Phase.DECIDING: lambda name: orders.Decided(name, key),
        coordinating.Phase.COMMITTING: lambda name: orders.Committed(name, key),
    }
    for earlier, answer in said.items():
        coordinator.handle_answer(answer("a"))
        if earlier is phase:
            break
        coordinator.handle_answer(answer("b"))
    assert coordinator.phase is phase and not coordinator.take_outcomes()
    coordinator.gone("b", "it has not answered for 9 s")
    coordinator.handle_answer(orders.Dropped("a", key))
    for answer in said.values():
        coordinator.handle_answer(answer("a"))
    (outcome,) = coordinator.take_outcomes()
    assert outcome.ok is (phase is not coordinating.Phase.STAGING)
    assert outcome.replicas["b"] == {"outcome": "vanished", "message": "it has not answered for 9 s", "report": None}
    assert outcome.ok or outcome.message == "b: it has not answered for 9 s"


def test_an_update_of_a_group_is_of_all_that_are_ready_or_does_not_begin():
    coordinator = coordinator_of("a", "b")
    coordinator.update("one of two", group=["a"])
    coordinator.update("three of two", group=["a", "b", "c"])
    refused = coordinator.take_outcomes()
    assert [(each.uid, each.code, each.replicas) for each in refused] == [
        ("one of two", "aborted", {}),
        ("three of two", "aborted", {}),
    ]
    assert refused[0].message == "it is for the group a; ready are a, b" and not coordinator.take_orders()
    coordinator.update("both", group=["b", "a"])
    assert sorted(name for name, order in coordinator.take_orders() if order.uid == "both") == ["a", "b"]


def test_no_replica_of_a_group_is_set_aside_whatever_the_quorum():
    coordinator = coordinator_of("a", "b", "c")
    coordinator.quorum = 2
    coordinator.update("it", group=["a", "b", "c"])
    coordinator.take_orders()
    coordinator.gone("b")
    (outcome,) = coordinator.take_outcomes()
    assert (outcome.code, outcome.message) == ("unavailable", "b: it vanished")
    assert [(name, type(order)) for name, order in coordinator.take_orders()] == [
        ("a", orders.Drop),
        ("c", orders.Drop),
    ]


def test_a_trainer_gives_up_what_waits_or_is_staged_and_nothing_that_is_decided():
    coordinator = coordinator_of("a", "b")
    for uid in ("first", "waits", "second"):
        coordinator.update(uid, group=["a", "b"])
    key = coordinator.take_orders()[0][1].key
    coordinator.give_up("waits", "the trainer: it is late")
    (outcome,) = coordinator.take_outcomes()
    assert (outcome.uid, outcome.code, outcome.message) == ("waits", "aborted", "the trainer: it is late")
    assert coordinator.phase is coordinating.Phase.STAGING and coordinator.update_uid == "first"
    coordinator.give_up("first", "the trainer: NCCL")
    (outcome,) = coordinator.take_outcomes()
    assert (outcome.uid, outcome.code, outcome.message) == ("first", "aborted", "the trainer: NCCL")
    for name in ("a", "b"):
        coordinator.handle_answer(orders.Dropped(name, key))
    key = coordinator.take_orders()[-1][1].key
    for name in ("a", "b"):
        coordinator.handle_answer(orders.Staged(name, key, orders.Version(2, "d", "", "second")))
    assert coordinator.phase is coordinating.Phase.DECIDING
    coordinator.give_up("second", "too late")
    assert coordinator.phase is coordinating.Phase.DECIDING and not coordinator.take_outcomes()


def staged_by_all(coordinator, uid):
    """Runs the next update to its end. Returns the replicas that were asked to stage it."""
    stages = {
        name: order.key
        for name, order in coordinator.take_orders()
        if isinstance(order, orders.Stage) and order.uid == uid
    }
    for name, key in stages.items():
        coordinator.handle_answer(orders.Staged(name, key, orders.Version(key[1] + 1, uid, "", uid)))
    for answer in (orders.Decided, orders.Committed):
        for name, key in stages.items():
            coordinator.handle_answer(answer(name, key))
    coordinator._orders = [each for each in coordinator.take_orders() if isinstance(each[1], orders.Stage)]
    return sorted(stages)


def test_a_group_is_formed_in_its_turn_and_beside_no_update():
    coordinator = coordinator_of("a", "b")
    coordinator.update("first")
    assert not coordinator.take_turn("a group")
    coordinator.update("second")
    assert not coordinator.take_turn("a group") and coordinator.phase is coordinating.Phase.STAGING
    assert coordinator.num_waiting == 2
    assert staged_by_all(coordinator, "first") == ["a", "b"]
    assert coordinator.take_turn("a group") and not coordinator.take_orders()
    coordinator.tick(coordinating.TURN_S / 2)
    assert coordinator.take_turn("a group") and not coordinator.take_orders()
    coordinator.give_up("a group", "it is formed")
    assert staged_by_all(coordinator, "second") == ["a", "b"]
    assert [outcome.uid for outcome in coordinator.take_outcomes()] == ["first", "second"]


def test_a_trainer_that_misses_its_turn_or_never_ends_it_holds_no_update_for_long():
    coordinator = coordinator_of("a", "b")
    coordinator.update("first")
    assert not coordinator.take_turn("dead meanwhile")
    coordinator.update("second")
    staged_by_all(coordinator, "first")
    coordinator.tick(coordinating.CLAIM_S)
    assert coordinator.update_uid == "second"
    assert not coordinator.take_turn("dies in it")
    staged_by_all(coordinator, "second")
    assert coordinator.take_turn("dies in it")
    coordinator.update("third")
    coordinator.tick(coordinator._now + coordinating.TURN_S)
    assert staged_by_all(coordinator, "third") == ["a", "b"]
    assert not coordinator.take_turn("given up") and coordinator.take_turn("given up")
    coordinator.gone("a")
    coordinator.give_up("given up", "it is formed")
    assert coordinator.phase is coordinating.Phase.IDLE and not coordinator._waiting
    assert [outcome.uid for outcome in coordinator.take_outcomes()] == ["first", "second", "third"]


def test_a_replica_that_is_not_ready_says_why():
    coordinator = coordinator_of("a", "b")
    coordinator.update("it")
    key = coordinator.take_orders()[0][1].key
    version = orders.Version(2, "d", "", "it")
    for name in ("a", "b"):
        coordinator.handle_answer(orders.Staged(name, key, version))
    for name in ("a", "b"):
        coordinator.handle_answer(orders.Decided(name, key))
        coordinator.handle_answer(orders.Committed(name, key))
    coordinator.add("c")
    coordinator.handle_answer(orders.State("c", 1, None))
    assert isinstance(coordinator.take_orders()[-1][1], orders.Fetch)
    coordinator.handle_answer(orders.Fetched("c", None, "resource_exhausted", "no memory for them"))
    assert coordinator.members["c"].why == "no memory for them"
    coordinator.gone("a")
    coordinator.gone("b")
    coordinator.tick(coordinating.RESEND_S)
    assert coordinator.members["c"].why == "no replica serves epoch 2 any more: it waits for the next complete update"
    coordinator.add("d")
    coordinator.handle_answer(orders.State("d", 1, orders.Version(3, "e")))
    assert coordinator.members["d"].why == "it serves epoch 3, digest e; the fleet epoch 2, digest d"
    coordinator.update("another")
    key = coordinator.take_orders()[-1][1].key
    coordinator.handle_answer(orders.Staged("c", key, orders.Version(4, "f", "", "another")))
    coordinator.handle_answer(orders.Decided("c", key))
    coordinator.handle_answer(orders.Committed("c", key))
    assert coordinator.ready == ["c"] and not coordinator.members["c"].why


def test_an_updates_time_begins_with_the_clock_that_its_coordinator_was_made_with():
    coordinator = Coordinator(2, ["a"], now=1000.0)
    coordinator.handle_answer(orders.State("a", 2, update_world.INITIAL))
    coordinator.update("it", timeout_s=5.0)
    coordinator.tick(1001.0)
    assert coordinator.phase is coordinating.Phase.STAGING and not coordinator.take_outcomes()


def test_where_all_vanish_that_had_heard_the_decision_nobody_says_that_it_had_no_effect():
    """The coordinator has a successor, which may have ordered the commit while the coordinator still runs."""
    coordinator = coordinator_of("a")
    coordinator.update("it")
    key = coordinator.take_orders()[0][1].key
    coordinator.handle_answer(orders.Staged("a", key, orders.Version(2, "d", "", "it")))
    assert coordinator.phase is coordinating.Phase.DECIDING
    successor, replica = Coordinator(2, ["a"]), Participant("a", update_world.INITIAL)
    replica.handle_order(orders.Stage(1, key, 2, "it"))
    replica.stage_done(key, orders.Version(2, "d", "", "it"))
    replica.handle_order(orders.Decide(1, key))
    successor.handle_answer(replica.handle_order(orders.Ask(2))[0])
    successor.handle_answer(replica.handle_order(orders.Decide(2, key))[0])
    assert successor.take_orders()[-1] == ("a", orders.Commit(2, key))
    coordinator.gone("a")
    (outcome,) = coordinator.take_outcomes()
    assert outcome.code == "data_loss"


# ---- bugs ----


def obeys_old_coordinators(monkeypatch):
    handle = Participant.handle_order

    def patched(self, order):
        self.generation = min(self.generation, order.generation)
        return handle(self, order)

    monkeypatch.setattr(Participant, "handle_order", patched)


def commits_without_deciding(monkeypatch):
    begin = Coordinator._begin

    def patched(self, phase, order):
        if phase is coordinating.Phase.DECIDING:
            self._update.awaited.clear()
            self._begin_commit()
        else:
            begin(self, phase, order)

    def commit(self, order):
        self._decided = order.key
        return unpatched(self, order)

    unpatched = Participant._commit
    monkeypatch.setattr(Coordinator, "_begin", patched)
    monkeypatch.setattr(Participant, "_commit", commit)


def forgets_who_vanished(monkeypatch):
    def patched(self, name, code, message, outcome="failed"):
        del self._update.left[name], self._update.awaited[name]
        if not self._update.left:
            self._begin_drop(code, message)

    monkeypatch.setattr(Coordinator, "_fail", patched)


def drops_what_was_decided(monkeypatch):
    recover = Coordinator._recover

    def patched(self):
        for member in self.members.values():
            member.state = update_world.dataclasses.replace(member.state, is_decided=False)
        recover(self)

    monkeypatch.setattr(Coordinator, "_recover", patched)


def commits_whatever_is_staged(monkeypatch):
    recover = Coordinator._recover

    def patched(self):
        for member in self.members.values():
            staged = member.state.staged is not None
            member.state = update_world.dataclasses.replace(member.state, is_decided=staged)
        recover(self)

    monkeypatch.setattr(Coordinator, "_recover", patched)


def recovers_from_the_first_answer(monkeypatch):
    handle = Coordinator._handle_state

    def patched(self, member, answer):
        handle(self, member, answer)
        if self.phase is coordinating.Phase.RECOVERING:
            for name, each in self.members.items():
                each.state = each.state or orders.State(name, self.generation, None)
            self._num_asked = 0

    monkeypatch.setattr(Coordinator, "_handle_state", patched)


def counts_answers_to_another_update(monkeypatch):
    def patched(self, name, key, phase):
        update = self._update
        return update if update is not None and self.phase is phase and name in update.awaited else None

    monkeypatch.setattr(Coordinator, "_current", patched)


def is_ready_with_whatever_was_fetched(monkeypatch):
    handle = Coordinator._handle_fetched

    def patched(self, member, answer):
        handle(self, member, answer)
        if not answer.code:
            member.standing = coordinating.Standing.READY

    monkeypatch.setattr(Coordinator, "_handle_fetched", patched)


def stays_ready_when_set_aside(monkeypatch):
    begin_commit = Coordinator._begin_commit

    def patched(self):
        ready = self.ready
        begin_commit(self)
        for name in ready:
            self.members[name].standing = coordinating.Standing.READY
            self._behind.discard(name)

    monkeypatch.setattr(Coordinator, "_begin_commit", patched)


def says_nothing_twice(monkeypatch):
    monkeypatch.setattr(coordinating, "RESEND_S", 1e9)


def takes_the_commit_of_any_update(monkeypatch):
    def patched(self, order):
        if self._staged is None or self._committing:
            return orders.Committed(self.member, order.key), []
        self._committing = self._staged[0]
        return None, [update_world.dataclasses.replace(order, key=self._staged[0])]

    monkeypatch.setattr(Participant, "_commit", patched)


def begins_again_what_is_over(monkeypatch):
    stage = Participant._stage

    def patched(self, order):
        self._floor = orders.NO_KEY
        return stage(self, order)

    monkeypatch.setattr(Participant, "_stage", patched)


def ignores_the_quorum(monkeypatch):
    fail = Coordinator._fail

    def patched(self, *args, **kwargs):
        quorum, self.quorum = self.quorum, 1
        fail(self, *args, **kwargs)
        self.quorum = quorum

    monkeypatch.setattr(Coordinator, "_fail", patched)


def sets_one_of_a_group_aside(monkeypatch):
    fail = Coordinator._fail

    def patched(self, *args, **kwargs):
        group, self._update.group = self._update.group, None
        fail(self, *args, **kwargs)
        if self._update is not None:
            self._update.group = group

    monkeypatch.setattr(Coordinator, "_fail", patched)


def begins_with_whoever_is_ready(monkeypatch):
    begin = Coordinator._begin_stage

    def patched(self, update):
        update.group = None
        begin(self, update)

    monkeypatch.setattr(Coordinator, "_begin_stage", patched)


def fetches_beside_a_stage(monkeypatch):
    def patched(self, wanted):
        return True

    def done(self, wanted, code="", message="", reached=None):
        self._fetching = None
        if not code:
            self.version, self._served_key = wanted, None
        return orders.Fetched(self.member, self.version, code, message)

    monkeypatch.setattr(Participant, "fetch_may_commit", patched)
    monkeypatch.setattr(Participant, "fetch_done", done)


def goes_on_fetching_when_asked(monkeypatch):
    monkeypatch.setattr(Participant, "_ask", lambda self, is_new: (self._state(), []))


def fetches_what_is_older(monkeypatch):
    fetch = Participant._fetch

    def patched(self, order):
        version = self.version
        if version is not None and not order.version.is_same(version):
            self.version = update_world.dataclasses.replace(version, epoch=0)
        answered = fetch(self, order)
        self.version = version
        return answered

    monkeypatch.setattr(Participant, "_fetch", patched)


def looks_at_the_weights_alone(monkeypatch):
    monkeypatch.setattr(orders.Version, "is_same", orders.Version.has_weights_of)


def unloads_the_others(monkeypatch):
    monkeypatch.setattr(orders.Version, "without", lambda self, name: ())


def lets_one_that_is_behind_load_an_adapter(monkeypatch):
    begin = Coordinator._begin_stage

    def patched(self, update):
        behind = [
            each for each in self.members.values() if each.standing is coordinating.Standing.BEHIND and each.version
        ]
        for each in behind:
            each.standing = coordinating.Standing.READY
        begin(self, update)

    monkeypatch.setattr(Coordinator, "_begin_stage", patched)


BUGS = [
    looks_at_the_weights_alone,
    unloads_the_others,
    lets_one_that_is_behind_load_an_adapter,
    obeys_old_coordinators,
    commits_without_deciding,
    forgets_who_vanished,
    drops_what_was_decided,
    commits_whatever_is_staged,
    recovers_from_the_first_answer,
    counts_answers_to_another_update,
    is_ready_with_whatever_was_fetched,
    stays_ready_when_set_aside,
    says_nothing_twice,
    takes_the_commit_of_any_update,
    begins_again_what_is_over,
    ignores_the_quorum,
    fetches_beside_a_stage,
    fetches_what_is_older,
    goes_on_fetching_when_asked,
    sets_one_of_a_group_aside,
    begins_with_whoever_is_ready,
]


@pytest.mark.parametrize("plant", BUGS, ids=lambda bug: bug.__name__)
def test_a_bug_is_found(plant, monkeypatch):
    plant(monkeypatch)
    for seed in range(NUM_MUTANT_SCHEDULES):
        try:
            World(seed).run()
        except Broken:
            return
    pytest.fail(f"{NUM_MUTANT_SCHEDULES} schedules saw nothing")
