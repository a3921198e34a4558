"""A replica: a Ray actor that starts a tree on its machine, and ends with it.

A Participant (participant.py) decides what the replica does about weights; its tree does the work. The tree ends
with this process and this process with its tree, so watching the actor is enough.
"""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import os
import shutil
import socket
import threading
import time
from dataclasses import replace
from typing import Any, Mapping, Optional, Sequence

import numpy
import ray

from ..aio import AsyncClient, off_loop
from ..arrays import grouped
from ..calls import UPDATE_TIMEOUT_S
from ..client import Client
from ..errors import PitstopError
from ..hold import Hold
from ..local_tree import LocalTree
from ..nccl_trees import workers_of
from ..push import WeightPusher
from .orders import Answer, Commit, Decided, Drop, Fetch, Key, Order, Stage, Version
from .participant import Cancel, End, Participant
from .relay import LOOK_S, NAMESPACE, GivenUp, Relay
from .tree_adapters import UNLOAD, TreeAdapters, adapter_of
from .ways import Way

CLIENT_KEY = "fleet"  # the name of the clients' key among the fleet's keys
WATCH_S = 0.05
CALLS_AT_ONCE = 64
DROP_TRIES = 50
NOTHING_STAGED = "nothing is staged, and no calls are collected"  # the answer to a drop without a stage
FETCH_BYTES = 64 << 20  # the tensors that a donor reads and sends at once

log = logging.getLogger("pitstop.fleet")


def version_of(status: Mapping[str, Any]) -> Optional[Version]:
    """The version that a tree serves; None: no weights."""
    first = status["replicas"][0]
    if not first.get("has_weights", True):
        return None
    return Version(first["epoch"], first.get("digest", ""), first.get("label", ""))


class Replica:
    def __init__(self, member: str):
        self._member = member
        self._tree: Optional[LocalTree] = None
        self._workers: list[dict[str, str]] = []  # of the tree
        self._client: Optional[AsyncClient] = None
        self._blocking: Optional[Client] = None
        self._participant: Optional[Participant] = None
        self._given_up = threading.Event()  # ends the stage or fetch under way
        self._relay: Optional[Relay] = None  # of the stage under way, if its bytes arrive over the network
        self._adapters: Optional[TreeAdapters] = None
        self._hold: Optional[Hold] = None
        self._hold_s = 0.0  # of the staged update
        self._work = asyncio.Lock()  # serializes changes of the tree's weights
        self._ended: Optional[asyncio.Event] = None
        self._is_stopping = False
        self._key: Optional[str] = None  # the key file of clients on other machines: the same path there

    # ---- its life ----

    async def start(self, options: Mapping[str, Any], start_timeout: float) -> dict[str, Any]:
        """Starts the tree; returns its place. PitstopError: it does not start."""
        if "door_keys" in options:  # a data door for programs on other machines
            self._key = os.path.join(options["door_keys"], "clients", f"{CLIENT_KEY}.key")
            options = {**options, "tcp_door": f"{ray.util.get_node_ip_address()}:0"}
        self._tree = await off_loop(LocalTree, options, start_timeout, False)
        self._client = await AsyncClient(self._tree.run_dir, name=self._member).connect()
        self._adapters = TreeAdapters(self._client)
        self._hold = Hold(self._client)
        self._blocking = await off_loop(lambda: Client(self._tree.run_dir, name=f"{self._member} weights"))
        status = await self._client.status()
        self._workers = workers_of(status)
        self._participant = Participant(self._member, version_of(status))
        self._ended = asyncio.Event()
        threading.Thread(target=self._watch, name="watch", daemon=True).start()
        return self.where()

    def where(self) -> dict[str, Any]:
        """The place of the tree. PitstopError: none was started."""
        if self._participant is None:
            raise PitstopError("failed_precondition", f"{self._member} has not started")
        return {
            "member": self._member,
            "machine": socket.gethostname(),
            "node": ray.get_runtime_context().get_node_id(),
            "pid": os.getpid(),
            "run_dir": self._tree.run_dir,
            "url": self._tree.url,
            "data": json.loads(self._tree.tree_file.read_text())["doors"].get("data") if self._key else None,
            "key": self._key,
            "workers": self._workers,
            "model": self._client.info.model,
            "context_len": self._client.info.context_len,
        }

    def _watch(self) -> None:
        """Watches the tree on a thread, which the loop cannot delay."""
        while self._tree.is_running:
            time.sleep(WATCH_S)
        if not self._is_stopping:
            shutil.rmtree(os.path.dirname(self._tree.run_dir), ignore_errors=True)
            os._exit(1)

    async def until_end(self) -> None:
        """Never returns. The call fails at once when this actor dies, which reports the death."""
        await self._ended.wait()

    async def stop(self) -> None:
        """Ends the tree regularly, then this actor."""
        if self._tree is not None:
            self._is_stopping = True
            await off_loop(self._tree.stop)
        ray.actor.exit_actor()

    # ---- control ----

    async def check(self) -> None:
        """Returns once this actor and its tree have answered."""
        await self._client.status()

    async def call(self, kind: str, timeout: float, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Makes one call at the admin door; returns its reply."""
        if kind in ("pause_generation", "continue_generation"):
            await self._hold.is_over.wait()
        return await self._client.call("admin", kind, timeout, timeout_ms=int(timeout * 1000), **fields)

    # ---- weights ----

    async def order(self, order: Order) -> Optional[Answer]:
        """Carries out an order. None: another call is already carrying it out, and answers."""
        answer, works = self._participant.handle_order(order)
        if isinstance(order, Drop) and self._relay is not None and self._relay.key <= order.key:
            self._relay = None
        if isinstance(answer, Decided) and not answer.code and self._hold_s:
            hold_s, self._hold_s = self._hold_s, 0.0
            await self._hold.begin(hold_s)
        for work in works:
            said = await self._do(work)
            answer = said or answer
        return answer

    async def _do(self, work: Any) -> Optional[Answer]:
        if isinstance(work, End):
            log.warning("%s ends: %s", self._member, work.reason)
            os._exit(1)
        if isinstance(work, Cancel):
            self._given_up.set()
            async with self._work:
                await self._drop()
                await self._hold.end()
                self._given_up = threading.Event()
                self._relay = None
            return work.then
        async with self._work:
            if not self._participant.wants(work):
                return None  # dropped while waiting for another order's work
            do = {Stage: self._stage, Commit: self._commit, Fetch: self._fetch}[type(work)]
            return await do(work)

    async def _drop(self) -> None:
        """Drops the stage. A replica that cannot drop is ended."""
        self._adapters.drop()
        for _ in range(DROP_TRIES):
            try:
                await self._client.drop_stage()
                return
            except PitstopError as error:
                if error.code == "failed_precondition" and error.message.startswith(NOTHING_STAGED):
                    return
            await asyncio.sleep(WATCH_S)
        os._exit(1)

    async def _stage(self, order: Stage) -> Optional[Answer]:
        try:
            staged = await self._staged(order, self._given_up)
        except GivenUp:
            return None
        except Exception as error:
            return self._participant.stage_done(order.key, None, getattr(error, "code", "internal"), str(error))
        version, report = staged
        return self._participant.stage_done(order.key, version, report=report)

    async def _staged(self, order: Stage, given_up: threading.Event) -> tuple[Version, dict[str, Any]]:
        serving = self._participant.version
        if order.payload.get(UNLOAD):
            return self._adapters.stage_unload(order, serving), {}
        if "adapter" in order.payload:
            reply = await self._filled(order, given_up)
            return order.version_beside(serving, adapter_of(order.payload, reply["digest"])), reply
        reply = await self._filled(order, given_up)
        self._adapters.stage_weights(order, serving)
        return order.version(reply.get("digest", ""), reply.get("label", "")), reply

    async def _filled(self, order: Stage, given_up: threading.Event) -> dict[str, Any]:
        """payload: "path" of a directory, "source" (a `group`'s broadcasts), or "buckets" in the object store of "node"; and
        fields of UpdateSpec."""
        if given_up.is_set():
            raise GivenUp
        update = {"timeout": UPDATE_TIMEOUT_S, **order.payload}
        if "adapter" not in update:
            update["epoch"] = order.epoch
        path, buckets, self._hold_s, *_ = (
            update.pop(name, None) for name in ("path", "buckets", "hold_s", "node", "group")
        )
        if path or "source" in update:
            stage = asyncio.ensure_future(self._client.stage_weights(path, **update))
            while not stage.done() and not given_up.is_set():
                await asyncio.wait([stage], timeout=LOOK_S)
            if not stage.done():  # the tree must drop the stage
                stage.cancel()
                raise GivenUp
            return stage.result()
        self._relay = Relay(order.key, order.way or Way(), buckets, update["timeout"])
        tensors = await self._relay.receive(given_up)
        return await off_loop(functools.partial(self._push, tensors, given_up, **update))

    async def give_bucket(self, key: Key, index: int) -> Optional[list[Any]]:
        """Calls Relay.give for a replica further down the relay. None: this update is not under way here."""
        return await self._relay.give(index) if self._relay is not None and self._relay.key == key else None

    def _push(self, tensors: Mapping[str, Any], given_up: threading.Event, **update: Any) -> dict[str, Any]:
        def on_progress(_: int, __: int) -> None:
            if given_up.is_set():
                raise GivenUp

        # Ray's process on this machine, the parent of this process, has the object store open.
        return WeightPusher(self._blocking, holders=[os.getppid()]).stage(tensors, on_progress=on_progress, **update)

    async def _commit(self, order: Commit) -> Answer:
        relay, self._relay = self._relay, None  # a commit shows that all replicas have received everything
        await asyncio.sleep(min(order.at - time.time(), order.lead_s))
        try:
            report = {**await self._adapters.commit(), "committed_at": time.time()}
        except PitstopError as error:
            return self._participant.commit_done(order.key, error.code, error.message)
        finally:
            held_s = await self._hold.end()
        buckets_from = dict(relay.num_from) if relay is not None else {}
        return self._participant.commit_done(
            order.key, report={**report, "held_s": held_s, "buckets_from": buckets_from}
        )

    # ---- a late replica ----

    async def _fetch(self, order: Fetch) -> Optional[Answer]:
        wanted, reached = order.version, self._participant.version
        try:
            has_weights = wanted.has_weights_of(reached)
            if not has_weights:
                await self._fetched(order, self._given_up)
            if not self._participant.fetch_may_commit(wanted):
                await self._drop()
                return None
            if not has_weights:
                await self._client.commit_weights()
                reached = replace(wanted, adapters=reached.adapters if reached else (), change=0)
            async for step in self._adapters.become(reached, wanted):
                reached = step
        except GivenUp:
            return None
        except Exception as error:
            return self._participant.fetch_done(wanted, getattr(error, "code", "internal"), str(error), reached)
        return self._participant.fetch_done(wanted)

    async def _fetched(self, order: Fetch, given_up: threading.Event) -> None:
        """Stages the donor's version, and checks its digest."""
        wanted = order.version
        spec = {"epoch": wanted.epoch, "digest": wanted.digest, "label": wanted.label}
        if not order.donor:
            await off_loop(functools.partial(self._blocking.stage_weights, order.path, **spec))
            return
        donor = await off_loop(ray.get_actor, order.donor, NAMESPACE)
        tensors: dict[str, numpy.ndarray] = {}
        for names in await donor.list_weights.remote():
            if given_up.is_set():
                raise GivenUp
            tensors.update(await donor.give_weights.remote(names, wanted.epoch))
        await off_loop(functools.partial(self._push, tensors, given_up, **spec))

    async def list_weights(self) -> list[list[str]]:
        """The names of the resident tensors, in groups that are sent together."""
        tensors = (await self._client.weight_digests())["tensors"]
        return grouped(((each["name"], 2 * int(numpy.prod(each["shape"]))) for each in tensors), FETCH_BYTES)

    async def give_weights(self, names: Sequence[str], epoch: int) -> dict[str, numpy.ndarray]:
        """The resident tensors, read during generation. PitstopError: another version serves now."""
        tensors = {}
        for name in names:
            reply = await self._client.get_weights(name)
            if reply["epoch"] != epoch:
                raise PitstopError("failed_precondition", f"epoch {reply['epoch']} serves, not {epoch}")
            tensors[name] = numpy.frombuffer(reply["data"], numpy.uint16).reshape(reply["tensor"]["shape"])
        return tensors
