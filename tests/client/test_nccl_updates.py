"""The waits of a trainer's update over NCCL, and the group that sends it. NCCL and the coordinator are simulated."""

import asyncio
import pathlib
import sys
import threading
import time

import numpy
import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "client" / "python"))

from pitstop import PitstopError, nccl_trees  # noqa: E402
from pitstop.nccl_updates import TrainersGroup  # noqa: E402

WEIGHTS = {"a": numpy.ones(8, numpy.float32)}
VERSION, TRAINERS = "2.28.9", "GPU-trainers"
SOON_S, LATE_S = 0.3, 1e6


class Runtime:
    version = VERSION

    def current(self):
        return 0

    def uuid_of(self, device):
        return TRAINERS


class Group:
    """Simulates NcclBroadcast."""

    made = []
    room = True

    def __init__(self, group, num_workers, device=None):
        self.group, self.num_workers = group, num_workers
        self.num_broadcasts = self.num_bytes = 0
        self.is_whole = False
        self.accepted_in = None
        Group.made.append(self)

    def make_room(self, weights):
        if not Group.room:
            raise PitstopError("resource_exhausted", "cudaMalloc: 2")

    def spec(self, first):
        return {"rank_offset": first}

    def source(self, weights):
        return {"group": self.group}

    def accept(self, timeout, is_called_off):
        self.accepted_in = timeout
        self.is_whole = True

    def send(self, weights, timeout, is_called_off):
        self.num_broadcasts += 1
        self.num_bytes += 32

    def close(self):
        self.is_whole = False


class Fleet:
    """Simulates the coordinator: lists the calls, and gives the coordinator's answers."""

    def __init__(self):
        self.members = {"a": {"workers": [{"device_uuid": "GPU-a", "nccl": VERSION}]}}
        self.has_turn = self.is_staging = True
        self.asked = []
        self.given_up = {}
        self.group = TrainersGroup("w", self.ask, self.run)

    async def ask(self, what, *arguments):
        self.asked.append(what if what != "fan_out" else arguments[0])
        if what == "view":
            return {"members": self.members, "quorum": None}
        if what == "take_turn":
            return self.has_turn
        if what == "is_staging":
            return self.is_staging
        if what == "give_up":
            self.given_up[arguments[0]] = arguments[1]
        return {name: {"ok": True} for name in self.members}

    async def run(self, payload, timeout, uid):
        while not self.is_staging:
            await asyncio.sleep(0.001)
            if uid in self.given_up:
                raise PitstopError("aborted", self.given_up[uid], {"replicas": {}})
        await asyncio.sleep(0.01)
        return payload["label"]

    async def update(self, label="it", timeout=LATE_S):
        return await self.group.update(WEIGHTS, {"label": label}, timeout)


@pytest.fixture(autouse=True)
def played(monkeypatch):
    monkeypatch.setattr(Group, "made", [])
    monkeypatch.setattr(Group, "room", True)
    for name, made in {"NcclBroadcast": Group, "nccl_library": Runtime, "cuda_runtime": Runtime}.items():
        monkeypatch.setattr(nccl_trees, name, made)


def code_of(call):
    with pytest.raises(PitstopError) as error:
        asyncio.run(call())
    return error.value.code


def test_a_group_serves_as_long_as_it_is_whole():
    async def run():
        fleet = Fleet()
        assert (await fleet.update())[1] == {"transfer": "nccl", "workers": 1, "broadcasts": 1, "bytes": 32}
        await fleet.update()
        assert len(Group.made) == 1 and fleet.asked.count("init_group") == 1
        Group.made[0].is_whole = False  # broken, although the update took effect
        assert (await fleet.update("third"))[0] == "third"
        assert len(Group.made) == 2 and fleet.asked.count("init_group") == 2

    asyncio.run(run())


def test_an_update_that_took_effect_is_not_called_off(monkeypatch):
    async def run():
        fleet, has_begun, seen = Fleet(), threading.Event(), []

        def send(self, weights, timeout, is_called_off):
            has_begun.set()
            for _ in range(100):  # the update ends during these looks
                seen.append(is_called_off())
                time.sleep(0.001)

        async def run_it(payload, timeout, uid):
            while not has_begun.is_set():
                await asyncio.sleep(0)
            return "in effect"

        monkeypatch.setattr(Group, "send", send)
        fleet.group._run = run_it
        assert (await fleet.update())[0] == "in effect"
        assert not any(seen)

    asyncio.run(run())


def test_workers_join_in_the_trainers_turn_and_it_gives_that_up():
    async def run():
        fleet = Fleet()
        fleet.has_turn = False
        update = asyncio.ensure_future(fleet.update())
        while fleet.asked.count("take_turn") < 3:
            await asyncio.sleep(0)
        assert "init_group" not in fleet.asked
        fleet.has_turn = True
        await update
        joined = fleet.asked.index("init_group")
        assert "take_turn" not in fleet.asked[joined:] and fleet.asked.index("give_up") == joined + 1

    asyncio.run(run())


def fleet_without(what):
    """A fleet in which an update has timed out, and which never reaches the state `what` afterwards."""
    fleets = []

    async def run():
        fleets.append(Fleet())
        setattr(fleets[0], what, False)
        await fleets[0].update(timeout=SOON_S)

    assert code_of(run) == "deadline_exceeded"
    return fleets[0]


def test_a_turn_that_does_not_come_is_given_up_in_time():
    fleet = fleet_without("has_turn")
    assert "init_group" not in fleet.asked and len(fleet.given_up) == 1


def test_an_update_that_waits_for_others_is_given_up_in_time():
    fleet = fleet_without("is_staging")
    assert any("others' updates" in why for why in fleet.given_up.values())


def test_the_trainers_own_earlier_update_is_waited_for_no_longer_than_that():
    async def run():
        fleet = Fleet()
        fleet.is_staging = False
        first = asyncio.ensure_future(fleet.update())
        while "is_staging" not in fleet.asked:
            await asyncio.sleep(0)
        try:
            await fleet.update("second", SOON_S)
        finally:
            fleet.is_staging = True
            assert (await first)[0] == "it"

    assert code_of(run) == "deadline_exceeded"


def test_workers_have_no_longer_to_join_than_the_update_has():
    async def run():
        fleet = Fleet()
        await fleet.update(timeout=20.0)
        assert Group.made[0].accepted_in <= 20.0

    asyncio.run(run())


def test_a_gpu_that_is_a_workers_is_told_before_anybody_joins():
    async def run():
        fleet = Fleet()
        fleet.members["a"]["workers"][0]["device_uuid"] = TRAINERS
        try:
            await fleet.update()
        finally:
            assert not Group.made and "take_turn" not in fleet.asked

    assert code_of(run) == "failed_precondition"


def test_a_gpu_without_room_is_told_before_anybody_joins_or_stages():
    async def run():
        Group.room = False
        fleet = Fleet()
        try:
            await fleet.update()
        finally:
            assert fleet.asked == ["view"]

    assert code_of(run) == "resource_exhausted"
