"""A fleet, for the program that runs it and for those that join it.

    with pitstop.fleet.Fleet("stories", replicas=3) as fleet:
        out = fleet.generate("Once upon a time", {"max_new_tokens": 60}, session="story 7")
        fleet.update_weights(model.named_parameters(), label="step 1")     # on all replicas, or on none

AsyncFleet has the same calls, awaited.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import os
import re
import uuid
from dataclasses import replace
from typing import Any, Mapping, Optional, Sequence

import ray
from ray._raylet import GcsClient
from ray.exceptions import RayActorError, RayError

from ..aio import off_loop
from ..arrays import NamedTensors, Weight, grouped, in_host, weights_of
from ..blocking import Blocking, blocking
from ..calls import CALL_TIMEOUT_S, UPDATE_TIMEOUT_S
from ..errors import PitstopError
from ..generate_calls import GenerateCalls
from ..hold import HOLD_S_MAX
from ..nccl_trees import is_on_gpus
from ..nccl_updates import TrainersGroup
from ..push import manifest_of
from ..router import Router
from .adapter_calls import FleetAdapterCalls
from .cluster import KV, cluster_of, conductor_name, start_ray, worker_environment
from .conductor import LONG_POLL_S, Conductor
from .door import Call, Door
from .generate_door import GenerateDoor
from .http import HttpServer
from .orders import Outcome
from .relay import NAMESPACE

BUCKET_BYTES = 64 << 20  # the size of an object in the object store
CONDUCTOR_CALLS_AT_ONCE = 1000
CONDUCTOR_HANG_S = 30.0
# errors of a group without NCCL: nothing was staged yet
CANNOT = ("failed_precondition", "not_found", "resource_exhausted", "unsupported")
STARTS_MAX = 3  # consecutive failures of every replica, after which a fleet with no ready replica stops waiting
NAME = re.compile(r"[A-Za-z0-9_.-]{1,100}")
RETRY_S = 0.3
SHARED_CPU = 0.01  # CPUs that a replica asks for on a cluster of its own, which nobody else uses

log = logging.getLogger("pitstop.fleet")


def place_for(config: Mapping[str, Any], is_own: bool, gpus: Sequence[float]) -> dict[str, dict[str, Any]]:
    """The resources of a replica, all on one machine, and the options of its tree.

    If no device is named, replicas get GPUs if the machines have enough for every replica; `gpus` are the machines'
    numbers of GPUs. Otherwise they compute on CPUs.
    """
    options = config["options"]
    num_ranks = options["tp"] * int(options.get("dp", options.get("dp_size", 1)))
    device = options.get("device") or "auto"
    has_room = sum(int(each) // num_ranks for each in gpus) >= config["replicas"]
    if config["bundle"]:
        bundle = config["bundle"]
    elif device == "cuda" or device == "auto" and has_room:
        bundle = {"CPU": SHARED_CPU if is_own else 1, "GPU": num_ranks}
    else:
        bundle = {"CPU": SHARED_CPU if is_own else num_ranks}
    is_on_cpus = device == "auto" and not bundle.get("GPU")
    return {"bundle": bundle, "options": {**options, "device": "cpu"} if is_on_cpus else dict(options)}


class _OneCall(GenerateCalls):
    def __init__(self, call: Call, use_tqdm: Optional[bool]):
        self._call = call
        self._use_tqdm = use_tqdm

    def _open(self) -> Any:
        return self._call


class AsyncFleet(FleetAdapterCalls):
    """Replicas on Ray, one update for all of them.

    model      as for Engine; None: join the fleet of that name
    replicas   number of trees, each on a machine of its own as long as there are enough machines
    tp         ranks of each tree, all on one machine
    resources  the resources of a replica, in Ray's words. The default is one CPU per rank; with device="cuda", or if no
               device is named and the cluster has enough for all replicas, GPUs. On a cluster that this program starts,
               any number of replicas share the machine's CPUs
    quorum     number of prepared replicas with which an update takes effect, the others set aside; None: all
    address    address of the Ray cluster; "auto": the cluster that was started last; None: start one on this machine.
               To join a fleet (no model): the address of its cluster; None or "auto": look for the fleet on this
               machine's clusters
    hang_timeout  seconds without an answer after which a replica is ended and replaced
    status_port  of the status page and /metrics, on the conductor's loopback; 0: any free one; None: no page
    options    flags of `pitstop serve` with underscores, for every tree; door_keys: also open doors for other machines
    """

    def __init__(
        self,
        model: Optional[str] = None,
        *,
        replicas: int = 1,
        tp: int = 1,
        name: str = "fleet",
        resources: Optional[Mapping[str, float]] = None,
        quorum: Optional[int] = None,
        address: Optional[str] = None,
        status_port: Optional[int] = None,
        start_timeout: float = 600.0,
        hang_timeout: float = 30.0,
        use_tqdm: Optional[bool] = None,
        port: Optional[int] = None,
        **options: Any,
    ):
        if model is None and options:
            raise TypeError(
                f"{', '.join(sorted(options))} cannot be set when joining a running fleet: it keeps its own options"
            )
        if replicas < 1 or tp < 1 or (quorum is not None and not 1 <= quorum <= replicas):
            raise TypeError(
                f"replicas and tp must be 1 or more, quorum 1 to replicas, not {replicas=}, {tp=}, {quorum=}"
            )
        if not NAME.fullmatch(name):
            raise TypeError(f"name must be 1 to 100 letters, digits, '_', '.' and '-', not {name!r}")
        if not 0.0 < hang_timeout < float("inf"):
            raise TypeError(f"hang_timeout must be a number of seconds above 0, not {hang_timeout}")
        options.update({"no_http": True} if port is None else {"port": port})
        self._config = (
            None
            if model is None
            else {
                "replicas": replicas,
                "quorum": quorum,
                "start_timeout": start_timeout,
                "hang_timeout": hang_timeout,
                "status_port": status_port,
                "bundle": dict(resources or {}),
                "options": {"model": model, "tp": tp, **options},
            }
        )
        self.name = name
        self._address = address
        self._start_timeout = start_timeout
        self._use_tqdm = use_tqdm
        self._conductor: Any = None
        self._door: Optional[Door] = None
        self._telling: Optional[asyncio.Task] = None
        self._group = TrainersGroup(f"fleet {name} {uuid.uuid4().hex[:8]}", self._ask, self._update)
        self._routers: list[Router] = []
        self._server: Optional[HttpServer] = None
        self._following: list[asyncio.Task] = []

    # ---- its life ----

    async def start(self, wait: bool = True) -> AsyncFleet:
        """Starts or joins the fleet; with `wait`, waits until every replica is ready. PitstopError."""
        is_own = self._address is None and not ray.is_initialized()
        is_found = self._config is None and self._address in (None, "auto") and not ray.is_initialized()
        await off_loop(start_ray, await off_loop(cluster_of, self.name) if is_found else self._address)
        name = conductor_name(self.name)
        if self._config is None:
            try:
                self._conductor = ray.get_actor(name, NAMESPACE)
            except ValueError:
                raise PitstopError("not_found", f"no fleet '{self.name}' runs on the cluster {self.cluster}") from None
        else:
            gpus = [node["Resources"].get("GPU", 0) for node in ray.nodes() if node["Alive"]]
            self._config.update(place_for(self._config, is_own, gpus))
            try:
                self._conductor = (
                    ray.remote(Conductor)
                    .options(
                        name=name,
                        namespace=NAMESPACE,
                        num_cpus=0,
                        max_restarts=-1,
                        max_task_retries=0,
                        max_concurrency=CONDUCTOR_CALLS_AT_ONCE,
                        runtime_env=worker_environment(),
                    )
                    .remote(self.name, self._config)
                )
            except ValueError:
                raise PitstopError(
                    "already_exists", f"a fleet '{self.name}' runs on the cluster {self.cluster}"
                ) from None
        self._door = Door(self._watch_view)
        try:
            if self._config is not None:
                await off_loop(GcsClient(address=self.cluster).internal_kv_put, name.encode(), b"", True, KV)
            await self._door.open()
            self._telling = asyncio.ensure_future(self._tell_moves())
            if wait and self._config is not None:
                await self.until_ready()
        except BaseException:
            await self.close()
            raise
        return self

    async def until_ready(self, replicas: Optional[int] = None, timeout: Optional[float] = None) -> None:
        """Waits until this many replicas (default: all) serve the committed version. PitstopError: not in time, or no
        replica exists and all fail to start again and again."""
        timeout = self._start_timeout if timeout is None else timeout

        def are_ready(view: Mapping[str, Any]) -> bool:
            if not view["members"] and view["failed"] >= STARTS_MAX:
                raise PitstopError("failed_precondition", f"no replica of the fleet starts: {view['why']}")
            return len(view["members"]) >= (view["slots"] if replicas is None else replicas)

        await self._open().refresh()
        await self._open().until(are_ready, timeout, "the fleet's replicas are not ready")

    async def close(self) -> None:
        """Ends a fleet that this program started. A joined fleet keeps running."""
        for task in (*self._following, *([self._telling] if self._telling else [])):
            task.cancel()
        await self._group.part()
        if self._server is not None:
            self._server.stop()
        for router in self._routers:
            await off_loop(router.stop)
        self._routers.clear()
        if self._door is not None:
            await self._door.close()
        conductor, self._conductor = self._conductor, None
        if conductor is not None and self._config is not None:
            try:
                await asyncio.wait_for(conductor.shutdown.remote(), 30.0)
            except (RayError, asyncio.TimeoutError):
                pass
            ray.kill(conductor)
            with contextlib.suppress(RayError):  # otherwise the name stays until the cluster ends
                await off_loop(
                    GcsClient(address=self.cluster).internal_kv_del, conductor_name(self.name).encode(), False, KV
                )
        self._door = None

    async def __aenter__(self) -> AsyncFleet:
        return await self.start()

    async def __aexit__(self, *_: Any) -> None:
        await self.close()

    def _open(self) -> Door:
        if self._door is None:
            raise PitstopError("failed_precondition", "the fleet was not started, or was closed")
        return self._door

    async def _ask(self, method: str, *args: Any, **options: Any) -> Any:
        """Makes a call of the conductor, also while Ray restarts it."""
        deadline = asyncio.get_running_loop().time() + self._start_timeout
        while True:
            self._open()
            try:
                return await getattr(self._conductor, method).remote(*args, **options)
            except RayActorError as error:
                if asyncio.get_running_loop().time() > deadline:
                    raise PitstopError("unavailable", f"the fleet's conductor: {error}") from None
                await asyncio.sleep(RETRY_S)
            except RayError as error:
                raise getattr(error, "cause", error) from None

    async def _watch_view(self, seen: Any) -> Any:
        """Follows the conductor's view. A hanging conductor is killed, and Ray restarts it."""
        # the first call also waits for the conductor's process to start
        timeout = None if seen is None else LONG_POLL_S + CONDUCTOR_HANG_S
        try:
            return await asyncio.wait_for(self._ask("view", seen), timeout)
        except asyncio.TimeoutError:
            ray.kill(self._conductor, no_restart=False)
            raise

    async def _tell_moves(self) -> None:
        told = (0, 0)
        while True:
            await asyncio.sleep(1.0)
            now = (self._door.num_moved, self._door.num_lost)
            if now != told:
                await self._ask("tell_moves", now[0] - told[0], now[1] - told[1])
                told = now

    # ---- generating ----

    def _one_call(self, session: Optional[str], min_epoch: int) -> _OneCall:
        return _OneCall(Call(self._open(), session, min_epoch), self._use_tqdm)

    async def generate(self, *args: Any, session: Optional[str] = None, min_epoch: int = 0, **options: Any) -> Any:
        """Like AsyncEngine.generate. Requests with the same session (or, without one, the same long beginning) go to the
        same replica, unless it is overloaded; with `min_epoch`, to one that serves this version or a newer one. Spans
        name replicas."""
        return await self._one_call(session, min_epoch).generate(*args, **options)

    async def chat(self, *args: Any, session: Optional[str] = None, min_epoch: int = 0, **options: Any) -> Any:
        return await self._one_call(session, min_epoch).chat(*args, **options)

    async def tokenize(self, *args: Any, **options: Any) -> list[int]:
        return await self._one_call(None, 0).tokenize(*args, **options)

    async def detokenize(self, *args: Any, **options: Any) -> str:
        return await self._one_call(None, 0).detokenize(*args, **options)

    # ---- weights ----

    async def update_weights(
        self,
        named_tensors: NamedTensors,
        label: str = "",
        *,
        partial: bool = False,
        kv_policy: str = "keep",
        digests: bool = True,
        transfer: str = "auto",
        timeout: float = UPDATE_TIMEOUT_S,
        **update: Any,
    ) -> Outcome:
        """Sends a whole version once. When this returns, every replica serves the version. After a PitstopError no
        replica does; the error's `reply` is the Outcome. With `hold_s` (at most 1) the replicas stop between two passes
        until all commit, for at most this many seconds after the decision.

        transfer  nccl: broadcast to the workers of all trees, which compute on GPUs, from a GPU of this program without
                  a worker; store: Ray's object store; auto: nccl for trees on GPUs, if this program can
        """
        if transfer not in ("auto", "nccl", "store"):
            raise TypeError(f"transfer must be auto, nccl or store, not {transfer!r}")
        weights = weights_of(named_tensors)
        if not weights:
            raise TypeError("named_tensors is empty")
        payload: dict[str, Any] = {"partial": partial, "kv_policy": kv_policy, "label": label, **update}
        if digests:
            payload["manifest"] = await off_loop(manifest_of, weights)
        members = self._open().view["members"].values()
        if transfer == "nccl" or (
            transfer == "auto" and members and all(is_on_gpus(each["workers"]) for each in members)
        ):
            try:
                outcome, sent = await self._group.update(weights, payload, timeout)
                return replace(outcome, sent=sent)
            except PitstopError as error:
                if transfer == "nccl" or error.code not in CANNOT or error.reply:
                    raise
                log.warning("weights are sent through the object store, not over NCCL: %s", error)
        return await self._put(weights, payload, timeout)

    async def _put(self, weights: Mapping[str, Weight], payload: dict[str, Any], timeout: float) -> Outcome:
        arrays = await off_loop(in_host, weights)
        groups = grouped(((name, array.nbytes) for name, array in arrays.items()), BUCKET_BYTES)
        buckets = [await off_loop(ray.put, {name: arrays[name] for name in names}) for names in groups]
        node = ray.get_runtime_context().get_node_id()
        outcome = await self._update({**payload, "node": node, "buckets": buckets}, timeout)
        return replace(outcome, sent={"transfer": "store", "bytes": sum(each.nbytes for each in weights.values())})

    async def update_weights_from_disk(
        self, path: str, label: str = "", *, kv_policy: str = "keep", timeout: float = UPDATE_TIMEOUT_S, **update: Any
    ) -> Outcome:
        """Loads a checkpoint directory that every machine can read."""
        return await self._update(
            {"path": os.path.abspath(path), "label": label, "kv_policy": kv_policy, **update}, timeout
        )

    async def _update(self, payload: Mapping[str, Any], timeout: float, uid: Optional[str] = None) -> Outcome:
        if not 0.0 <= payload.get("hold_s", 0.0) <= HOLD_S_MAX:
            raise TypeError(f"hold_s must be 0 to {HOLD_S_MAX:g} seconds, not {payload['hold_s']}")
        uid = uid or uuid.uuid4().hex
        try:
            self._open()
            outcome = await self._conductor.update.remote(uid, {**payload, "timeout": timeout}, timeout)
        except RayActorError:
            # The conductor died during the update: its successor has committed or dropped the update.
            outcome = await self._ask("outcome", uid)
            if outcome is None:
                raise PitstopError("aborted", "the fleet's conductor died; the update is not in effect") from None
        except RayError as error:
            raise getattr(error, "cause", error) from None
        if not outcome.ok:
            raise PitstopError(outcome.code, outcome.message, vars(outcome))
        return outcome

    # ---- every replica ----

    async def fan_out(self, kind: str, timeout: float = CALL_TIMEOUT_S, **fields: Any) -> dict[str, dict[str, Any]]:
        """Makes a call at every admin door (docs/protocol.md): replica -> {"ok", "reply"} or {"ok", "code", "message"}."""
        return await self._ask("fan_out", kind, timeout, fields)

    async def pause(self, mode: str = "in_place", max_pause_s: float = 0.0) -> dict[str, dict[str, Any]]:
        mode = "in_place" if mode == "keep" else mode
        return await self.fan_out("pause_generation", UPDATE_TIMEOUT_S, mode=mode, max_pause_s=float(max_pause_s))

    async def resume(self) -> dict[str, dict[str, Any]]:
        return await self.fan_out("continue_generation", UPDATE_TIMEOUT_S)

    async def abort_request(self, rid: str = "", abort_all: bool = False) -> dict[str, dict[str, Any]]:
        return await self.fan_out("abort", rids=[] if abort_all else [rid], all=abort_all)

    async def release_memory_occupation(
        self, tags: Any = None, keep_weights: bool = False
    ) -> dict[str, dict[str, Any]]:
        """Frees memory. Discarded weights return with the next complete update."""
        given = {} if tags is None else {"tags": list(tags)}
        return await self.fan_out("release_memory", UPDATE_TIMEOUT_S, keep_weights=keep_weights, **given)

    async def resume_memory_occupation(self, tags: Any = None) -> dict[str, dict[str, Any]]:
        return await self.fan_out("resume_memory", UPDATE_TIMEOUT_S, **({} if tags is None else {"tags": list(tags)}))

    async def flush_cache(self) -> dict[str, dict[str, Any]]:
        return await self.fan_out("flush_cache", UPDATE_TIMEOUT_S)

    async def status(self) -> dict[str, Any]:
        """The status of the fleet and of every replica."""
        return await self._ask("status")

    async def add_replicas(self, count: int = 1) -> list[int]:
        """Adds replicas; returns their slots. They get requests once they serve the fleet's version (until_ready)."""
        return await self._ask("add", count)

    async def start_door(self, port: int = 0) -> str:
        """Starts HTTP on the loopback, in this program: SGLang's /generate, with `session` and `min_epoch`.
        Returns its URL."""
        self._server = HttpServer(GenerateDoor(self).handle)
        await self._server.start(port)
        return self._server.url

    @property
    def cluster(self) -> str:
        """The Ray cluster's address."""
        return ray.get_runtime_context().gcs_address

    @property
    def num_ready(self) -> int:
        return len(self._open().view.get("members", {}))

    async def start_router(self, kind: str, port: int = 0, flags: Sequence[str] = ()) -> str:
        """Starts sglang's, smg's or vllm's router, if its package is installed; returns its URL, on the loopback. As long as
        this fleet is open, the router gets the ready replicas, which need HTTP (port=0). Its requests do not continue
        at another replica."""
        router = Router(kind, port=port, flags=flags)
        self._routers.append(router)
        await router.until_up()
        self._following.append(asyncio.ensure_future(router.follow(self._urls)))
        return router.url

    def _urls(self) -> list[str]:
        return [each["url"] for each in self._open().view.get("members", {}).values() if each["url"]]

    async def remove_replica(self, slot: int) -> None:
        """Removes the replica of a slot. Its requests continue elsewhere."""
        await self._ask("remove", slot)


class Fleet(Blocking):
    """The blocking AsyncFleet: the same arguments and calls. Any thread may call."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(AsyncFleet(*args, **kwargs))


for _name, _call in (vars(FleetAdapterCalls) | vars(AsyncFleet)).items():
    if (
        not _name.startswith("_")
        and inspect.iscoroutinefunction(_call)
        and not hasattr(Fleet, _name)
        and _name != "start"
    ):
        setattr(Fleet, _name, blocking(_call))
