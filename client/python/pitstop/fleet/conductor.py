"""The actor that runs the fleet's one Coordinator: a Ray actor by name, which Ray starts again when it dies.

The Coordinator decides (coordinator.py). The conductor gives it the time, and starts, watches and calls the replicas. A
successor can recover all state: slots are placement groups by name, replicas are actors by name, and the replicas'
answers show what was decided. No request and no weight passes through the conductor.
"""

from __future__ import annotations

import asyncio
import collections
import logging
import os
import re
import time
from dataclasses import replace
from typing import Any, Iterator, Mapping, Optional

import ray
from ray.exceptions import RayActorError, RayError
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from ..errors import PitstopError
from .cluster import slot_name, worker_environment
from .coordinator import Coordinator
from .http import HttpServer
from .orders import LEAD_REPLICA_S, LEAD_S, NO_KEY, Commit, Key, Order, Outcome, Stage
from .records import Phase, Standing
from .relay import NAMESPACE
from .replica import CALLS_AT_ONCE, Replica
from .slot import Slot
from .status import FleetStatus, StatusPages
from .ways import Way, ways

TICK_S = 0.2
POLL_S = 1.0
POLL_REPLICA_S = 0.023  # a status uses 2.3 ms of CPU (docs/scale.md), so polling takes a tenth of the time
POLL_TIMEOUT_S = 5.0
CHECKS = 3  # unanswered checks after which a replica counts as hanging
CHECK_REPLICA_S = 0.003  # a check takes 0.3 ms of the loop's thread, so checks take at most a tenth of its time
FIND_S = 20.0
START_GRACE_S = 60.0  # for starting the actor's process, and for ending a tree that was not ready in time
OUTCOMES_KEPT = 64
RESTART_PAUSE_S = 0.5  # doubled for each consecutive replica that dies before it is ready
DOUBLINGS_MAX = 6  # the pause is at most half a minute
LONG_POLL_S = 10.0
ADD_MAX = 10_000  # replicas per call; docs/scale.md covers no more
VIEW_S = 0.02  # clients hear of changes at most this often

log = logging.getLogger("pitstop.fleet")


class Conductor:
    def __init__(self, fleet: str, config: Mapping[str, Any]):
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
        self._fleet = fleet
        self._config = dict(config)
        self._slots: dict[int, Slot] = {}
        # does not match the slots of another fleet
        self._number_of = re.compile(re.escape(slot_name(fleet, 0)[:-1]) + r"(\d+)(?:\.(\d+))?")
        self._handles: dict[str, Any] = {}  # member -> its actor
        self._places: dict[str, dict[str, Any]] = {}  # member -> the place of its tree
        self._outcomes: collections.OrderedDict[str, Outcome] = collections.OrderedDict()
        self._ways: dict[str, Way] = {}  # member -> its place in the relay of the latest update
        self._ways_key: Key = NO_KEY  # the key of the latest update
        self._asked: dict[str, asyncio.Future] = {}  # uid -> its outcome
        self._view_number = 0
        self._view: dict[str, Any] = {}
        self._is_view_due = False
        self._view_changed: Optional[asyncio.Condition] = None
        self._coordinator: Optional[Coordinator] = None
        self._status = FleetStatus(fleet)
        self._server: Optional[HttpServer] = None
        self._tasks: set[asyncio.Task] = set()
        self._started: Optional[asyncio.Future] = None

    # ---- its life ----

    async def start(self) -> None:
        """Starts the fleet, once per process; later callers wait for the first call."""
        if self._started is None:
            self._started = asyncio.ensure_future(self._start())
        await asyncio.shield(self._started)

    async def _start(self) -> None:
        self._view_changed = asyncio.Condition()
        if self._config.get("status_port") is not None:
            self._server = HttpServer(StatusPages(self._status).handle)
            await self._server.start(self._config["status_port"])
        groups = [each["name"] for each in ray.util.placement_group_table().values() if each["state"] != "REMOVED"]
        numbers = sorted(int(name[1]) for name in map(self._number_of.fullmatch, groups) if name and not name[2])
        self._slots = {number: Slot(number) for number in numbers}
        found = await self._find()
        self._coordinator = self._new_coordinator(list(found.values()))
        for slot in self._slots.values():
            self._keep(slot, found.get(slot.number))
        if not numbers:
            for number in range(self._config["replicas"]):
                self._add_slot(number)
        self._run(self._tick())
        self._run(self._poll())
        self._go_on()

    async def _find(self) -> dict[int, str]:
        """The living replicas of a predecessor, by slot. Replicas that were starting or hang are replaced."""
        found: dict[int, str] = {}

        async def look(name: str, number: int, incarnation: int) -> None:
            slot = self._slots.get(number)
            try:
                handle = ray.get_actor(name, NAMESPACE)
            except ValueError:
                return
            try:
                place = await asyncio.wait_for(handle.where.remote(), FIND_S)
            except (RayError, asyncio.TimeoutError):
                place = None
            if slot is not None:
                slot.incarnation = max(slot.incarnation, incarnation)
            if place is None or slot is None or slot.number in found:
                ray.kill(handle)
                return
            self._handles[name], self._places[name] = handle, place
            found[slot.number] = name

        actors = ray.util.list_named_actors(all_namespaces=True)
        names = [self._number_of.fullmatch(each["name"]) for each in actors if each["namespace"] == NAMESPACE]
        await asyncio.gather(*(look(name[0], int(name[1]), int(name[2])) for name in names if name and name[2]))
        return found

    def _new_coordinator(self, members: list[str], after: int = 0) -> Coordinator:
        # If the clock was set back, this generation is refused, and the next one is later than the refusing one.
        generation = max(after + 1, time.time_ns() // 1_000_000)
        return Coordinator(generation, members, self._config.get("quorum"), time.monotonic())

    def _run(self, work: Any) -> asyncio.Task:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a task of the conductor failed: %s", task, exc_info=task.exception())

    async def shutdown(self) -> None:
        """Ends every tree and frees every place."""
        for slot in self._slots.values():
            slot.task.cancel()
        await asyncio.gather(*(self._stop(member) for member in list(self._handles)), return_exceptions=True)
        for number in self._slots:
            self._free(number)
        self._slots.clear()

    async def _stop(self, member: str) -> None:
        try:
            await asyncio.wait_for(self._handles[member].stop.remote(), 20.0)
        except (RayError, asyncio.TimeoutError):
            pass
        ray.kill(self._handles[member])

    def _free(self, number: int) -> None:
        try:
            remove_placement_group(ray.util.get_placement_group(slot_name(self._fleet, number)))
        except ValueError:
            pass

    # ---- places ----

    async def add(self, count: int = 1) -> list[int]:
        """Adds this many replicas; returns their slots."""
        if not isinstance(count, int) or not 1 <= count <= ADD_MAX:
            raise PitstopError("invalid_argument", f"add: 1 to {ADD_MAX} replicas, not {count}")
        first = max(self._slots, default=-1) + 1
        for number in range(first, first + count):
            self._add_slot(number)
        self._go_on()
        return list(range(first, first + count))

    async def remove(self, slot: int) -> None:
        if slot not in self._slots:
            raise PitstopError(
                "not_found", f"unknown slot {slot}; the fleet has {', '.join(map(str, self._slots)) or 'none'}"
            )
        gone = self._slots.pop(slot)
        gone.task.cancel()
        for member in [each for each in self._handles if each.startswith(slot_name(self._fleet, slot) + ".")]:
            await self._stop(member)
            self._gone(member)
        self._free(slot)
        self._go_on()

    def _add_slot(self, number: int) -> None:
        # One placement group per replica: Ray places each on the emptiest machine, and moves it if that
        # machine is lost.
        placement_group([self._config["bundle"]], strategy="PACK", name=slot_name(self._fleet, number))
        self._slots[number] = Slot(number)
        self._keep(self._slots[number], None)

    def _keep(self, slot: Slot, member: Optional[str]) -> None:
        slot.task = self._run(self._keep_replica(slot, member))

    async def _keep_replica(self, slot: Slot, member: Optional[str]) -> None:
        """Keeps a replica in the slot: a dead one is replaced, on another machine if its own is gone."""
        while True:
            try:
                member = member or await self._new_replica(slot)
            except Exception as error:  # the tree's error, which has the reason, or an error of Ray
                said = str(getattr(error, "cause", None) or error).strip() or type(error).__name__
                slot.num_failed, slot.why = slot.num_failed + 1, said.splitlines()[-1]
                log.warning("slot %d does not start: %s", slot.number, slot.why)
            else:
                watch = self._run(self._watch(member))
                try:
                    await self._handles[member].until_end.remote()
                except RayError:
                    ray.kill(self._handles[member])  # also if it was only unreachable: a lost replica never returns
                state = self._coordinator.members[member]
                why = await watch if watch.done() else state.why or "it vanished"
                watch.cancel()
                log.info("%s is gone: %s", member, why)
                slot.num_failed, slot.why = (0, "") if state.standing is Standing.READY else (slot.num_failed + 1, why)
                self._gone(member, why)
                self._status.counts["deaths_total"] += 1
                member = None
            if slot.num_failed:
                await asyncio.sleep(RESTART_PAUSE_S * 2 ** min(slot.num_failed, DOUBLINGS_MAX))

    async def _watch(self, member: str) -> str:
        """Ends a replica that does not answer, or whose tree does not. Returns why; Ray reports the death."""
        hang_s = self._config["hang_timeout"]
        handle, num_missed = self._handles[member], 0
        while num_missed < CHECKS - 1:  # several: a pause of this process can cause a single miss
            pause = max(hang_s / CHECKS, CHECK_REPLICA_S * len(self._handles))
            await asyncio.sleep(pause)
            try:
                await asyncio.wait_for(handle.check.remote(), pause)
                num_missed = 0
            except (RayError, asyncio.TimeoutError):
                num_missed += 1
        ray.kill(handle)
        return f"it has not answered for {hang_s:g} s"

    async def _new_replica(self, slot: Slot) -> str:
        group: PlacementGroup = ray.util.get_placement_group(slot_name(self._fleet, slot.number))
        bundle = self._config["bundle"]
        why, slot.why = slot.why, f"no machine of the cluster has {bundle} free"
        self._go_on()
        await group.ready()
        slot.why = why
        slot.incarnation += 1
        member = f"{slot_name(self._fleet, slot.number)}.{slot.incarnation}"
        actor = (
            ray.remote(Replica)
            .options(
                name=member,
                namespace=NAMESPACE,
                lifetime="detached",
                max_concurrency=CALLS_AT_ONCE,
                num_cpus=bundle.get("CPU", 0),
                num_gpus=bundle.get("GPU", 0),
                runtime_env=worker_environment(),
                scheduling_strategy=PlacementGroupSchedulingStrategy(group, 0),
            )
            .remote(member)
        )
        timeout = self._config["start_timeout"]
        try:
            place = await asyncio.wait_for(actor.start.remote(self._tree_options(), timeout), timeout + START_GRACE_S)
        except BaseException:
            ray.kill(actor)
            raise
        slot.why = ""
        self._handles[member], self._places[member] = actor, place
        self._coordinator.add(member)
        self._go_on()
        return member

    def _tree_options(self) -> dict[str, Any]:
        """The options of a new tree. After the fleet's first update, a new tree loads no weights from disk and
        receives the fleet's."""
        options = dict(self._config["options"])
        committed = self._coordinator.committed
        if committed is not None and committed.uid:
            options["wait_for_initial_weights"] = True
        return options

    def _gone(self, member: str, why: str = "it was removed") -> None:
        self._handles.pop(member, None)
        self._places.pop(member, None)
        self._status.forget(member)
        self._coordinator.gone(member, why)
        self._go_on()

    # ---- what the coordinator decided ----

    def _go_on(self) -> None:
        coordinator = self._coordinator
        for member, order in self._arranged(coordinator.take_orders()):
            if member in self._handles:
                self._run(self._deliver(member, order))
        for outcome in coordinator.take_outcomes():
            self._outcomes[outcome.uid] = outcome
            while len(self._outcomes) > OUTCOMES_KEPT:
                self._outcomes.popitem(last=False)
            future = self._asked.pop(outcome.uid, None)
            if future is not None and not future.done():
                future.set_result(outcome)
            self._status.record(outcome)
        if coordinator.deposed_by:
            self._yield()
            return
        if not self._is_view_due:
            self._is_view_due = True
            asyncio.get_running_loop().call_later(VIEW_S, self._renew_view)

    def _arranged(self, orders: list[tuple[str, Order]]) -> Iterator[tuple[str, Order]]:
        """Completes the orders with facts about all replicas: the time of the commit, and the source of the bytes. The
        stages of an update begin together, and so do its commits."""
        lead_s = LEAD_S + LEAD_REPLICA_S * len(orders)
        at = time.time() + lead_s
        for member, order in orders:
            if isinstance(order, Commit) and len(orders) > 1:
                order = replace(order, at=at, lead_s=lead_s)
            if not isinstance(order, Stage) or "buckets" not in order.payload:
                yield member, order
                continue
            if order.key != self._ways_key:
                names = [name for name, each in orders if isinstance(each, Stage) and each.key == order.key]
                nodes = {name: self._places[name]["node"] for name in names if name in self._places}
                self._ways_key, self._ways = order.key, ways(nodes, order.payload["node"])
            yield member, replace(order, way=self._ways.get(member))

    async def _deliver(self, member: str, order: Order) -> None:
        try:
            answer = await self._handles[member].order.remote(order)
        except (RayActorError, KeyError):
            return  # _watch reports the death
        except RayError as error:
            log.error("%s: %s", member, error)
            return
        if answer is not None:
            self._coordinator.handle_answer(answer)
            self._go_on()

    def _yield(self) -> None:
        """Ends in favour of a newer coordinator. If the newer one was this process before its clock was set back,
        begins an even newer one."""
        newer = self._coordinator.deposed_by
        if self._coordinator.phase is not Phase.RECOVERING:
            os._exit(1)
        self._coordinator = self._new_coordinator(list(self._handles), after=newer)
        self._go_on()

    async def _tick(self) -> None:
        try:
            while True:
                self._coordinator.tick(time.monotonic())
                self._go_on()
                await asyncio.sleep(TICK_S)
        except Exception:  # without ticks no deadline would expire; a successor ticks again
            log.exception("the coordinator's rules are broken")
            os._exit(1)

    # ---- calls of clients ----

    async def update(self, uid: str, payload: Mapping[str, Any], timeout_s: float) -> Outcome:
        """Runs an update. `payload` is for Replica. A repeated uid, also at a successor, is the same update."""
        known = await self.outcome(uid)
        if known is not None:
            return known
        future = self._asked[uid] = asyncio.get_running_loop().create_future()
        adapter = payload.get("adapter", "")
        self._coordinator.update(uid, payload, timeout_s, payload.get("path", ""), payload.get("group"), adapter)
        self._go_on()
        return await asyncio.shield(future)

    async def take_turn(self, uid: str) -> bool:
        await self.start()
        try:
            return self._coordinator.take_turn(uid)
        finally:
            self._go_on()

    async def is_staging(self, uid: str) -> bool:
        """Whether the update's turn has come."""
        return self._coordinator is not None and self._coordinator.update_uid == uid

    async def give_up(self, uid: str, message: str) -> None:
        await self.start()
        self._coordinator.give_up(uid, message)
        self._go_on()

    async def outcome(self, uid: str) -> Optional[Outcome]:
        """The outcome of an update, also of one that a predecessor began. None: the update will never take effect."""
        await self.start()
        while self._coordinator.phase is Phase.RECOVERING or (
            self._coordinator.update_uid == "" and self._coordinator.phase is not Phase.IDLE
        ):
            await asyncio.sleep(TICK_S / 4)
        if uid in self._asked:
            return await asyncio.shield(self._asked[uid])
        committed = self._coordinator.committed
        if uid not in self._outcomes and committed is not None and uid in (committed.uid, committed.changed_by):
            replicas = {member: {"outcome": "committed", "message": "", "report": None} for member in self._handles}
            return Outcome(uid, True, committed, replicas=replicas)
        return self._outcomes.get(uid)

    def _renew_view(self) -> None:
        self._is_view_due = False
        coordinator = self._coordinator
        ready = {name: coordinator.members[name].version for name in coordinator.ready if name in self._places}
        view = {
            "committed": coordinator.committed,
            "members": {
                name: {**self._places[name], "epoch": each.epoch if each else 0} for name, each in ready.items()
            },
            "slots": len(self._slots),
            "quorum": self._config.get("quorum"),
            "failed": min((slot.num_failed for slot in self._slots.values()), default=0),
            "why": next(
                filter(None, (each.why for each in (*self._slots.values(), *coordinator.members.values()))), ""
            ),
        }
        if view != self._view:
            self._view = view
            self._view_number += 1
            self._run(self._tell_view())

    async def _tell_view(self) -> None:
        async with self._view_changed:
            self._view_changed.notify_all()

    async def view(self, seen: Optional[tuple[int, int]] = None) -> dict[str, Any]:
        """The replicas that may generate, and their places; with `seen`, waits (for a while) until they have changed."""
        await self.start()
        self._renew_view()
        if seen == (os.getpid(), self._view_number):
            try:
                async with self._view_changed:
                    await asyncio.wait_for(self._view_changed.wait(), LONG_POLL_S)
            except asyncio.TimeoutError:
                pass
        return {**self._view, "number": (os.getpid(), self._view_number)}

    async def fan_out(
        self,
        kind: str,
        timeout: float,
        fields: Mapping[str, Any],
        own: Optional[Mapping[str, Mapping[str, Any]]] = None,
    ) -> dict[str, dict[str, Any]]:
        """Makes a call at every replica's admin door, or at those with fields in `own`: member -> {"ok", "reply"} or {"ok",
        "code", "message"}."""
        await self.start()

        async def ask(member: str) -> dict[str, Any]:
            try:
                more = own[member] if own is not None else {}
                call = handles[member].call.remote(kind, timeout, {**fields, **more})
                return {"ok": True, "reply": await asyncio.wait_for(call, timeout + POLL_TIMEOUT_S)}
            except asyncio.TimeoutError:
                return {"ok": False, "code": "deadline_exceeded", "message": f"{kind}: no answer after {timeout:g} s"}
            except (RayError, KeyError) as error:
                cause = getattr(error, "cause", None)
                if isinstance(cause, PitstopError):
                    return {"ok": False, "code": cause.code, "message": cause.message}
                return {"ok": False, "code": "unavailable", "message": "it vanished"}

        handles = dict(self._handles)  # some of them may be gone before they are asked
        members = list(handles if own is None else own)
        return dict(zip(members, await asyncio.gather(*map(ask, members))))

    # ---- status ----

    async def _poll(self) -> None:
        while True:
            await self._refresh()
            await asyncio.sleep(max(POLL_S, POLL_REPLICA_S * len(self._handles)))

    async def _refresh(self) -> None:
        answers = await self.fan_out("status", POLL_TIMEOUT_S, {})
        self._status.refresh(self._coordinator, answers, self._places, self._slots)

    async def tell_moves(self, moved: int, lost: int) -> None:
        """Adds a client's counts: requests that continued at another replica, and lost ones."""
        self._status.counts["moved_requests_total"] += moved
        self._status.counts["lost_requests_total"] += lost

    async def status(self) -> dict[str, Any]:
        await self.start()
        await self._refresh()
        return {**self._status.said, "status_url": self._server.url if self._server else None}
