"""A fleet's updates without processes: real coordinators and participants, simulated trees and
messages, a virtual clock.

Messages are lost, late, doubled and reordered. Replicas and coordinators die at any moment, and a
replaced coordinator may go on sending for a while. After every event the oracle checks what serves.
The same seed gives the same run.
"""

import dataclasses
import heapq
import pathlib
import random
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "client" / "python"))

from pitstop.fleet import orders  # noqa: E402
from pitstop.fleet.coordinator import Coordinator, Phase  # noqa: E402
from pitstop.fleet.participant import Cancel, End, Participant  # noqa: E402

INITIAL = orders.Version(1, "d-initial")
FAULTS_END_S = 60.0
HANG_S = 10.0  # a hang of this length is ended
END_S = 5.0  # a hung process that is ended may continue for up to this much longer
EVENTS_MAX = 30_000
TICK_S = 0.5


def said_of(version):
    return version and (version.epoch, version.digest, version.adapters)


class Broken(AssertionError):
    """A promise was broken."""


@dataclasses.dataclass
class Dice:
    """The faults of a run: probabilities and numbers."""

    loss: float
    double: float
    slow: float
    stage_fails: float
    deaths: int
    coordinator_deaths: int
    hangs: int
    replicas: int
    updates: int
    quorum: object


def throw(dice):
    num = dice.randint(1, 5)
    return Dice(
        loss=dice.choice([0.0, 0.0, 0.05, 0.3]),
        double=dice.choice([0.0, 0.1]),
        slow=dice.choice([0.0, 0.1, 0.4]),
        stage_fails=dice.choice([0.0, 0.0, 0.15]),
        deaths=dice.choice([0, 0, 1, 2, 4]),
        coordinator_deaths=dice.choice([0, 1, 1, 3]),
        hangs=dice.choice([0, 0, 1, 3]),
        replicas=num,
        updates=dice.randint(1, 4),
        quorum=dice.choice([None, None, max(1, num - 1)]),
    )


class Oracle:
    """The real outcomes, even those that no process knows."""

    def __init__(self, quorum):
        self.quorum = quorum
        self.asked = {}  # key -> participants that the key's first order named
        self.prepared = {}  # key -> the participants that prepared
        self.served = {}  # key -> the participants that committed it
        self.outcomes = {}  # uid -> Outcome
        self.uid_of = {}
        self.groups = {}  # uid -> the replicas that the update is for, or None: all

    def stage_ordered(self, member, order):
        if member not in self.groups.get(order.uid, {member}):
            raise Broken(f"{member} is to stage {order.uid}, which goes to {self.groups[order.uid]}")
        self.asked.setdefault(order.key, set()).add(member)
        self.uid_of[order.key] = order.uid

    def commits(self, member, key):
        needed = self.asked[key]
        prepared = self.prepared.get(key, set())
        group = self.groups.get(self.uid_of[key])
        if group is not None and not group <= prepared:
            raise Broken(f"{member} commits {key}; {group - prepared} of its group were never prepared")
        if self.quorum is None and not needed <= prepared:
            raise Broken(f"{member} commits {key}; {needed - prepared} were never prepared")
        if self.quorum is not None and len(prepared) < min(self.quorum, len(needed)):
            raise Broken(f"{member} commits {key} with {len(prepared)} prepared; the quorum is {self.quorum}")
        self.served.setdefault(key, set()).add(member)

    def drops(self, member, key):
        if key in self.served and self.quorum is None and member in self.asked[key]:
            raise Broken(f"{member} drops {key}, which {self.served[key]} serve")

    def tells(self, outcome):
        if outcome.uid in self.outcomes:
            raise Broken(f"{outcome.uid} was answered twice")
        self.outcomes[outcome.uid] = outcome
        if outcome.ok and outcome.uid not in {self.uid_of[key] for key in self.served}:
            raise Broken(f"{outcome.uid} is said to be in effect, and nobody serves it")

    def check_end(self):
        served = {self.uid_of[key] for key in self.served}
        for uid, outcome in self.outcomes.items():
            # "aborted" and "data_loss" promise nothing: another coordinator knows the outcome, or nobody does.
            if not outcome.ok and outcome.code not in ("aborted", "data_loss") and uid in served:
                raise Broken(f"{uid} is said to have failed ({outcome.code}), and was served")


class Node:
    """A replica: its participant, and a simulated tree."""

    def __init__(self, world, name, version):
        self.world = world
        self.name = name
        self.participant = Participant(name, version)
        self.tree = version  # the version that really serves
        self.is_alive = True
        self.is_gone = False  # gets no more messages, although it may still run
        self.held = None  # what a hung node does when it continues; None: it does not hang

    def later(self, delay, what):
        self.world.after(delay, lambda: self.act(what))

    def act(self, what):
        if self.held is not None:
            self.held.append(what)
        elif self.is_alive:
            what()

    def deliver(self, order, reply):
        self.act(lambda: self.handle_order(order, reply))

    def handle_order(self, order, reply):
        answer, works = self.participant.handle_order(order)
        if answer is not None:
            reply(answer)
        for work in works:
            self.do(work, reply)

    def go_on(self):
        held, self.held = self.held or [], None
        for what in held:
            self.act(what)

    def do(self, work, reply):
        world, oracle = self.world, self.world.oracle
        if isinstance(work, End):
            world.kill(self.name)
        elif isinstance(work, Cancel):
            if work.then is not None:
                oracle.drops(self.name, work.then.key)
                reply(work.then)
        elif isinstance(work, orders.Stage):
            self.later(world.work_time(), lambda: self.end_stage(work, reply))
        elif isinstance(work, orders.Commit):
            self.later(world.dice.random() * 0.02, lambda: self.end_commit(work, reply))
        elif isinstance(work, orders.Fetch):
            self.later(world.work_time(), lambda: self.end_fetch(work, reply))

    def end_stage(self, order, reply):
        fails = self.world.are_faults_on and self.world.dice.random() < self.world.faults.stage_fails
        version = None if fails else self.staged(order)
        answer = self.participant.stage_done(order.key, version, "data_loss" if fails else "", "torn")
        if answer is not None:
            if version is not None:
                self.world.oracle.prepared.setdefault(order.key, set()).add(self.name)
            reply(answer)

    def staged(self, order):
        if order.payload is None:
            return order.version(f"d-{order.key}", "")
        name, is_load = order.payload
        return order.version_beside(self.tree, orders.Adapter(name, f"d-{order.key}") if is_load else None)

    def end_commit(self, order, reply):
        self.world.oracle.commits(self.name, order.key)
        answer = self.participant.commit_done(order.key)
        self.tree = self.participant.version
        reply(answer)

    def end_fetch(self, order, reply):
        if not self.participant.fetch_may_commit(order.version):
            return
        donor = self.world.nodes.get(order.donor)
        gives = order.path or donor is not None and donor.is_alive and order.version.is_same(donor.participant.version)
        self.later(self.world.dice.random() * 0.02, lambda: self.serve_fetched(order, gives, reply))

    def serve_fetched(self, order, gives, reply):
        """The weights come from the donor, and then each adapter from its directory."""
        wanted = order.version
        if not wanted.has_weights_of(self.tree) and gives:
            self.tree = dataclasses.replace(wanted, adapters=self.tree.adapters if self.tree else (), change=0)
        is_done = wanted.has_weights_of(self.tree)
        for adapter in wanted.adapters if is_done else ():
            if adapter not in self.tree.adapters:
                is_done = not (
                    self.world.are_faults_on and self.world.adapter_dice.random() < self.world.faults.stage_fails
                )
                if not is_done:
                    break
                adapters = sorted((*self.tree.without(adapter.name), adapter), key=lambda each: each.name)
                self.tree = dataclasses.replace(self.tree, adapters=tuple(adapters), change=0)
        if is_done:
            self.tree = wanted
        answer = self.participant.fetch_done(wanted, "" if is_done else "unavailable", "", self.tree)
        if answer is not None:
            reply(answer)


def coordinator_of(*names):
    """A coordinator whose replicas are ready and serve the model's own weights."""
    made = Coordinator(1, names)
    for name in names:
        made.handle_answer(orders.State(name, 1, INITIAL))
    made.take_orders()
    assert sorted(made.ready) == sorted(names)
    return made


class World:
    def __init__(self, seed):
        self.dice = random.Random(seed)
        self.faults = throw(self.dice)
        self.group_dice = random.Random(~seed)
        self.adapter_dice = random.Random(seed ^ 0xADA)
        self.oracle = Oracle(self.faults.quorum)
        self.now = 0.0
        self.events = []
        self.count = 0
        self.nodes = {}
        self.num_born = 0
        self.num_asked = 0
        for _ in range(self.faults.replicas):
            self.bear(INITIAL)
        self.coordinators = []  # the newest last; the earlier ones are dead, or go on sending
        self.silent = set()
        self.start_coordinator()
        for _ in range(self.faults.updates):
            self.after(self.dice.random() * FAULTS_END_S * 0.8, self.ask_update)
        for _ in range(self.faults.deaths):
            self.after(self.dice.random() * FAULTS_END_S * 0.9, self.kill_one)
        for _ in range(self.faults.hangs):
            self.after(self.dice.random() * FAULTS_END_S * 0.8, self.hang_one)
        for _ in range(self.faults.coordinator_deaths):
            self.after(self.dice.random() * FAULTS_END_S * 0.9, self.replace_coordinator)

    @property
    def are_faults_on(self):
        return self.now < FAULTS_END_S

    # ---- time ----

    def after(self, delay, what):
        self.count += 1
        heapq.heappush(self.events, (self.now + delay, self.count, what))

    def run_until(self, is_done, limit_s):
        end = self.now + limit_s
        while self.events and not is_done():
            at, _, what = heapq.heappop(self.events)
            if at > end:
                raise Broken(f"not done after {limit_s} s: {self.told()}")
            self.now = at
            what()
            self.check()
            if self.count > EVENTS_MAX:
                raise Broken(f"{EVENTS_MAX} events: {self.told()}")

    def told(self):
        last = self.coordinators[-1]
        members = {name: (each.standing.value, each.version) for name, each in last.members.items()}
        return f"{last.phase}, {members}, {last._unanswered}"

    def work_time(self):
        slow = self.are_faults_on and self.dice.random() < self.faults.slow
        return self.dice.random() * (12.0 if slow else 1.0)

    # ---- replicas ----

    def bear(self, version):
        self.num_born += 1
        name = f"r{self.num_born}"
        self.nodes[name] = Node(self, name, version)
        return name

    def kill_one(self):
        alive = [name for name, node in self.nodes.items() if node.is_alive and not node.is_gone]
        if alive:
            self.kill(self.dice.choice(alive))

    def kill(self, name):
        if not self.nodes[name].is_alive:
            return
        self.nodes[name].is_alive = False
        if not self.nodes[name].is_gone:
            self.after(self.dice.random() * 3.0, lambda: self.seen_dead(name))

    def hang_one(self):
        names = [name for name, node in self.nodes.items() if node.is_alive and node.held is None and not node.is_gone]
        if not names:
            return
        name = self.dice.choice(names)
        self.nodes[name].held = []
        if self.dice.random() < 0.5:
            self.after(self.dice.random() * HANG_S, self.nodes[name].go_on)
        else:
            self.after(HANG_S, lambda: self.end(name))

    def end(self, name):
        """The watch ends this replica. Callers get an error at once; its process may run for a moment longer."""
        node = self.nodes[name]
        if node.is_alive:
            node.is_gone = True
            self.seen_dead(name)
            self.after(self.dice.random() * END_S, node.go_on)
            self.after(END_S * self.dice.random(), lambda: setattr(node, "is_alive", False))

    def seen_dead(self, name):
        for coordinator in self.coordinators:
            if coordinator not in self.silent:
                coordinator.gone(name)
                self.carry(coordinator)
        # A new replica replaces the dead one, and loads the model's own weights only while the fleet serves those.
        self.after(self.dice.random() * 4.0, self.replace_replica)

    def replace_replica(self):
        committed = self.coordinators[-1].committed
        name = self.bear(INITIAL if committed is None or INITIAL.is_same(committed) else None)
        self.coordinators[-1].add(name)
        self.carry(self.coordinators[-1])

    # ---- coordinators ----

    def start_coordinator(self):
        # Also asks replicas whose death is not noticed yet.
        members = [
            name
            for name, node in self.nodes.items()
            if not node.is_gone and (node.is_alive or self.dice.random() < 0.5)
        ]
        coordinator = Coordinator(len(self.coordinators) + 1, members, self.faults.quorum)
        self.coordinators.append(coordinator)
        for name in members:
            if not self.nodes[name].is_alive:
                self.after(self.dice.random() * 3.0, lambda name=name: self.say_dead(coordinator, name))
        self.carry(coordinator)
        self.after(TICK_S, lambda: self.tick(coordinator))

    def say_dead(self, coordinator, name):
        if coordinator not in self.silent:
            coordinator.gone(name)
            self.carry(coordinator)

    def replace_coordinator(self):
        old = self.coordinators[-1]
        if self.dice.random() < 0.7:
            self.silent.add(old)  # the old coordinator is dead; otherwise it sends on for a while
        else:
            self.after(self.dice.random() * 10.0, lambda: self.silent.add(old))
        self.start_coordinator()

    def tick(self, coordinator):
        if coordinator in self.silent:
            return
        coordinator.tick(self.now)
        self.carry(coordinator)
        self.after(TICK_S, lambda: self.tick(coordinator))

    def ask_update(self):
        self.num_asked += 1
        coordinator = self.coordinators[-1]
        path = self.dice.choice(["", "on disk"])
        uid, group = f"u{self.num_asked}", None
        if self.group_dice.random() < 0.3:
            group = self.oracle.groups[uid] = frozenset(coordinator.ready)
            if self.group_dice.random() < 0.2:
                self.after(self.group_dice.random(), lambda: self.give_up(uid))
        coordinator.update(uid, timeout_s=self.dice.choice([3.0, 30.0]), path=path, group=group)
        for number in range(self.adapter_dice.randint(0, 2)):
            self.after(self.adapter_dice.random() * 5.0, lambda number=number: self.ask_adapter(f"{uid}-{number}"))
        self.carry(coordinator)

    def ask_adapter(self, uid):
        """Loads an adapter, or unloads one that is perhaps not loaded."""
        coordinator = self.coordinators[-1]
        name, is_load = self.adapter_dice.choice("ab"), self.adapter_dice.random() < 0.7
        coordinator.update(uid, (name, is_load), timeout_s=self.adapter_dice.choice([3.0, 30.0]), adapter=name)
        self.carry(coordinator)

    def give_up(self, uid):
        coordinator = self.coordinators[-1]
        coordinator.give_up(uid, "its trainer gives it up")
        self.carry(coordinator)

    # ---- messages ----

    def fates(self):
        """The delays of a message's copies that arrive; empty: it is lost."""
        if not self.are_faults_on:
            return [self.dice.random() * 0.05]
        if self.dice.random() < self.faults.loss:
            return []
        copies = 2 if self.dice.random() < self.faults.double else 1
        late = 8.0 if self.dice.random() < self.faults.slow else 0.2
        return [self.dice.random() * late for _ in range(copies)]

    def carry(self, coordinator):
        for name, order in coordinator.take_orders():
            if isinstance(order, orders.Stage):
                self.oracle.stage_ordered(name, order)
            for delay in self.fates():
                self.after(delay, lambda name=name, order=order: self.give(coordinator, name, order))
        for outcome in coordinator.take_outcomes():
            self.oracle.tells(outcome)

    def give(self, coordinator, name, order):
        def reply(answer):
            for delay in self.fates():
                self.after(delay, lambda: self.answer(coordinator, answer))

        self.nodes[name].deliver(order, reply)

    def answer(self, coordinator, answer):
        if coordinator not in self.silent:
            coordinator.handle_answer(answer)
            self.carry(coordinator)

    # ---- what is promised ----

    def check(self):
        coordinator = self.coordinators[-1]
        if coordinator.deposed_by:
            raise Broken("the newest coordinator was deposed")
        taking_part = coordinator._update.left if coordinator._update else {}
        for name in coordinator.ready:
            serves = self.nodes[name].tree
            if name in taking_part or not self.nodes[name].is_alive:
                continue
            if said_of(coordinator.committed) != said_of(serves):
                raise Broken(f"{name} is ready and serves {serves}; the fleet committed {coordinator.committed}")

    def is_whole(self, uid):
        coordinator = self.coordinators[-1]
        alive = sorted(name for name, node in self.nodes.items() if node.is_alive)
        outcome = self.oracle.outcomes.get(uid)
        if outcome is not None and not outcome.ok:
            raise Broken(f"without faults {uid} failed: {outcome}")
        return (
            outcome is not None
            and coordinator.phase is Phase.IDLE
            and sorted(coordinator.ready) == alive
            and all(uid in (self.nodes[name].tree.uid, self.nodes[name].tree.changed_by) for name in alive)
            and len({self.nodes[name].tree for name in alive}) <= 1
        )

    def run(self):
        self.after(FAULTS_END_S + 15.0, lambda: None)
        self.run_until(lambda: self.now > FAULTS_END_S + 12.0, FAULTS_END_S + 60.0)
        coordinator = self.coordinators[-1]
        self.run_until(lambda: coordinator.phase is Phase.IDLE and not coordinator._waiting, 200.0)
        alive = [node for node in self.nodes.values() if node.is_alive]
        if self.faults.quorum is None or len(alive) >= self.faults.quorum:
            coordinator.update("last", timeout_s=60.0)
            self.carry(coordinator)
            self.run_until(lambda: self.is_whole("last"), 200.0)
            for name in ("a", "b"):
                coordinator.update(f"last of {name}", (name, True), timeout_s=60.0, adapter=name)
                self.carry(coordinator)
                self.run_until(lambda name=name: self.is_whole(f"last of {name}"), 200.0)
            if [each.name for each in coordinator.committed.adapters] != ["a", "b"]:
                raise Broken(f"a and b are loaded, and the fleet has {coordinator.committed.adapters}")
        self.oracle.check_end()
        return self.count


def main(first, number):
    events = 0
    for seed in range(first, first + number):
        try:
            events += World(seed).run()
        except Exception as error:
            raise SystemExit(f"seed {seed}: {type(error).__name__}: {error}") from error
    print(f"{number} schedules from {first} on, {events} events: no promise was broken")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
