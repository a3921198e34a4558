"""A replica's actor when several calls wait for its tree, and when its trainer dies; and the conductor when replicas
join or leave. Runs without a cluster."""

import asyncio
import json
import threading
from unittest import mock

from ray.exceptions import ActorDiedError, OwnerDiedError

from pitstop import PitstopError
from pitstop.fleet import conductor as conductors, orders, participant
from pitstop.fleet.conductor import Conductor
from pitstop.fleet.coordinator import Coordinator
from pitstop.fleet.relay import Relay
from pitstop.fleet.replica import Replica
from pitstop.fleet.slot import Slot
from pitstop.fleet.tree_adapters import TreeAdapters
from pitstop.fleet.ways import Way
from pitstop.hold import Hold

SERVES = orders.Version(1, "d1")


class Tree:
    """Replaces a replica's connection to its tree."""

    def __init__(self):
        self.staged = []
        self.num_drops = 0

    async def drop_stage(self):
        self.num_drops += 1
        self.staged.clear()


def replica_of(tree):
    replica = Replica("r")
    replica._client, replica._participant, replica._hold = tree, participant.Participant("r", SERVES), Hold(tree)
    replica._adapters = TreeAdapters(tree)
    return replica


async def a_stage_that_was_dropped_while_a_fetch_gave_way_to_it():
    tree = Tree()
    replica = replica_of(tree)
    fetches = asyncio.Event()

    async def fetch(order):
        fetches.set()
        given_up = replica._given_up
        while not given_up.is_set():
            await asyncio.sleep(0)
        for _ in range(10):  # after these turns both later calls wait
            await asyncio.sleep(0)

    async def staged(order, given_up):
        tree.staged.append(order.key)
        return order.version("d2", ""), {}

    replica._fetch, replica._staged = fetch, staged
    fetching = asyncio.ensure_future(replica.order(orders.Fetch(1, orders.Version(2, "d2"), "donor")))
    await fetches.wait()
    staging = asyncio.ensure_future(replica.order(orders.Stage(1, (1, 1), 3, "u")))
    dropping = asyncio.ensure_future(replica.order(orders.Drop(1, (1, 1))))
    answers = await asyncio.gather(fetching, staging, dropping)
    assert answers == [None, None, orders.Dropped("r", (1, 1))], answers
    assert tree.staged == [], "its tree holds what the replica does not know of"
    answer = await replica.order(orders.Stage(1, (1, 2), 3, "v"))
    assert answer.version.uid == "v" and tree.staged == [(1, 2)]


class PausingTree(Tree):
    def __init__(self, pause_mode="", hangs=False):
        super().__init__()
        self.said = []
        self._pause_mode, self._hangs = pause_mode, hangs

    async def status(self):
        return {"replicas": [{"pause_mode": self._pause_mode}]}

    async def pause(self, mode, max_pause_s):
        self.said.append((mode, max_pause_s))
        if self._hangs:
            await asyncio.Event().wait()

    async def continue_generation(self):
        self.said.append("continue")
        return {"parts": [{"paused_s": 0.25}]}

    async def commit_weights(self):
        self.said.append("commit")
        return {}

    async def call(self, door, kind, timeout, **fields):
        self.said.append(kind)


async def decided(tree, hold_s):
    """A replica with a staged update, to which the coordinator has sent the decision."""
    replica = replica_of(tree)

    async def staged(order, given_up):
        replica._hold_s = order.payload["hold_s"]
        return order.version("d2", ""), {}

    replica._staged = staged
    await replica.order(orders.Stage(1, (1, 1), 2, "u", {"hold_s": hold_s}))
    assert await replica.order(orders.Decide(1, (1, 1))) == orders.Decided("r", (1, 1))
    return replica


async def a_tree_that_is_held_until_its_commit():
    tree = PausingTree()
    replica = await decided(tree, 60.0)
    assert await replica.order(orders.Decide(0, (1, 1))) == orders.Refused("r", 1)
    pausing = asyncio.ensure_future(replica.call("pause_generation", 1.0, {}))
    await replica.call("status", 1.0, {})  # other calls than pauses do not wait for the hold's end
    assert await replica.order(orders.Decide(1, (1, 1))) == orders.Decided("r", (1, 1))
    committed = await replica.order(orders.Commit(1, (1, 1)))
    assert committed.report["held_s"] == 0.25
    await pausing
    assert tree.said == [("in_place", 60.0), "status", "commit", "continue", "pause_generation"], tree.said


async def a_hold_that_is_not_to_be():
    for tree, said in (
        (PausingTree(pause_mode="retract"), ["commit"]),  # another client has paused the tree: no hold is needed
        (PausingTree(hangs=True), [("in_place", 0.01), "commit"]),  # a tree that does not answer delays no commit
    ):
        replica = await decided(tree, 0.01)
        await replica._hold.is_over.wait()
        assert (await replica.order(orders.Commit(1, (1, 1)))).report["held_s"] == 0.0
        assert tree.said == said, tree.said
    tree = PausingTree()
    await decided(tree, 0.0)
    assert tree.said == []


async def a_hold_that_outlives_the_time_of_the_one_before():
    tree = PausingTree()
    hold = Hold(tree)
    await hold.begin(0.01)
    await hold.end()
    await hold.begin(60.0)
    await asyncio.sleep(0.05)
    assert await hold.end() == 0.25 and tree.said[-1] == "continue", tree.said


async def a_trainer_that_is_gone():
    loop = asyncio.get_running_loop()
    buckets = [loop.create_future() for _ in range(3)]
    buckets[0].set_result({"a": 1})
    buckets[1].set_exception(OwnerDiedError("ab" * 28, None, ""))
    relay = Relay((1, 1), Way(), buckets, 60.0)
    try:
        await relay.receive(threading.Event())
    except PitstopError as error:
        assert error.code == "unavailable" and "bucket 1 of 3: the trainer" in error.message, error
    else:
        raise AssertionError("it came")


async def one_that_vanishes_while_all_are_asked():
    class Handle:
        def __init__(self):
            self.call = self

        def remote(self, kind, *_):
            return asyncio.sleep(0, {"kind": kind})

    conductor = Conductor("fleet", {"replicas": 2})
    conductor._started = asyncio.get_running_loop().create_future()
    conductor._started.set_result(None)
    conductor._handles = {"a": Handle(), "b": Handle()}
    num_tasks = len(asyncio.all_tasks())
    asking = asyncio.ensure_future(conductor.fan_out("status", 1.0, {}))
    while len(asyncio.all_tasks()) < num_tasks + 3:  # one task for the call, and one per replica, not begun yet
        await asyncio.sleep(0)
    del conductor._handles["b"]
    said = await asking
    assert said == {name: {"ok": True, "reply": {"kind": "status"}} for name in "ab"}, said


async def one_that_dies_again_and_again_before_it_is_ready():
    """The actor is started again without end, at growing intervals, and at once after it was ready."""

    class Handle:
        def __init__(self):
            self.until_end = self

        async def remote(self):
            raise ActorDiedError

    loop = asyncio.get_running_loop()
    conductor = Conductor("fleet", {"hang_timeout": 3600.0})
    conductor._coordinator = Coordinator(1)
    slot, failed, is_over = Slot(0), [], loop.create_future()

    async def new_replica(of_slot):
        failed.append((of_slot.num_failed, of_slot.why))
        if len(failed) == 1:
            raise ValueError("it has no place any more")
        if len(failed) == 5:
            is_over.set_result(None)
            await loop.create_future()
        name = f"r.{len(failed)}"
        conductor._handles[name] = Handle()
        conductor._coordinator.add(name)
        if len(failed) == 4:
            conductor._coordinator.handle_answer(orders.State(name, 1, SERVES))
        return name

    conductor._new_replica = new_replica
    slot.num_failed = 5000
    with mock.patch.object(conductors, "RESTART_PAUSE_S", 1e-6), mock.patch("ray.kill"):
        keeping = asyncio.ensure_future(conductor._keep_replica(slot, None))
        await asyncio.wait([keeping, is_over], return_when=asyncio.FIRST_COMPLETED)
        assert is_over.done(), keeping
        keeping.cancel()
    assert failed == [
        (5000, ""),
        (5001, "it has no place any more"),
        (5002, "it vanished"),
        (5003, "it vanished"),
        (0, ""),
    ], failed


def another_fleets_names_are_not_this_ones():
    names = [
        "pitstop-fleet-slot-3",
        "pitstop-fleet-slot-3.2",
        "pitstop-fleet-slot-1-slot-0",
        "pitstop-fleet-slot-1-slot-0.1",
    ]
    found = [Conductor("fleet", {})._number_of.fullmatch(name) for name in names]
    assert [each and each.groups() for each in found] == [("3", None), ("3", "2"), None, None], found


def main():
    for each in (
        a_stage_that_was_dropped_while_a_fetch_gave_way_to_it,
        a_trainer_that_is_gone,
        one_that_vanishes_while_all_are_asked,
        one_that_dies_again_and_again_before_it_is_ready,
        a_tree_that_is_held_until_its_commit,
        a_hold_that_is_not_to_be,
        a_hold_that_outlives_the_time_of_the_one_before,
    ):
        asyncio.run(asyncio.wait_for(each(), 60))
    another_fleets_names_are_not_this_ones()
    print(json.dumps({"ok": True}))


if __name__ == "__main__":
    main()
