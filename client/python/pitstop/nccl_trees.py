"""A trainer's NCCL group with the workers of several trees: each broadcast of a bucket reaches the GPUs of all.

    trees = NcclTrees("w", ask)
    group = await trees.meet({"a": workers of tree a, "b": ...}, tensors)   # all these workers are in it
    ... an update with source=group.source(tensors) on each, and meanwhile:
    group.send(tensors)

A group of NCCL never changes: each set of trees needs a group of its own. A death during a broadcast breaks the group for
all; then part(), and meet() the remaining trees.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from typing import Any, AsyncContextManager, AsyncIterator, Awaitable, Callable, Mapping, Optional, Sequence

from .aio import off_loop
from .arrays import OnGpu, Weight
from .cuda_runtime import cuda_runtime
from .errors import PitstopError
from .nccl_broadcast import NcclBroadcast, nccl_library

JOIN_S = 30.0
LEAVE_S = 5.0
VICTIMS = ("aborted", "deadline_exceeded", "unavailable")  # codes of trees that failed because of another one's fault
NO_NCCL = "none"

Worker = Mapping[str, str]
Answers = Mapping[str, Mapping[str, Any]]


def workers_of(status: Mapping[str, Any]) -> list[dict[str, str]]:
    """The workers of a tree, from its status, in the order of ranks: {"device_uuid", "nccl": the version, or none}."""
    workers = [each for replica in status["replicas"] for each in replica["workers"]]
    return [{"device_uuid": each["device_uuid"], "nccl": _nccl_of(each.get("libraries", []))} for each in workers]


def _nccl_of(libraries: Sequence[str]) -> str:
    """NCCL's version in lines such as "NCCL 2.28.9: /usr/lib/libnccl.so.2"."""
    return next(
        (line.removeprefix("NCCL ").partition(":")[0] for line in libraries if line.startswith("NCCL ")), NO_NCCL
    )


def first_ranks(num_workers: Mapping[str, int]) -> dict[str, int]:
    """The first rank of each tree. Ranks are numbered in the trees' order, after the trainer."""
    return dict(zip(num_workers, itertools.accumulate(num_workers.values(), initial=1)))


def is_on_gpus(workers: Sequence[Worker]) -> bool:
    return all(each["device_uuid"].startswith("GPU-") for each in workers)


def why_not(trees: Mapping[str, Sequence[Worker]], version: str, device_uuid: str) -> str:
    """The reason why these trees cannot form a group with the trainer's NCCL and GPU; empty: they can."""
    for name, workers in trees.items():
        if not is_on_gpus(workers):
            devices = ", ".join(each["device_uuid"] for each in workers)
            return f"{name} computes on {devices}; a worker of an NCCL group has a GPU"
        for each in workers:
            if each["nccl"] != version:
                need = "a group needs one version, including the patch number"
                return f"{name} has NCCL {each['nccl']}, the trainer {version}; {need}"
            if each["device_uuid"] == device_uuid:
                return f"{name} computes on {device_uuid}, the trainer's own; a group needs one GPU per member"
    return "" if trees else "there is no tree that serves"


def _device_of(weights: Mapping[str, Weight]) -> int:
    """The trainer's GPU: that of the first tensor on a GPU; otherwise the thread's."""
    pointer = next((each.pointer for each in weights.values() if isinstance(each, OnGpu)), None)
    return cuda_runtime().current() if pointer is None else cuda_runtime().device_of(pointer)


@contextlib.asynccontextmanager
async def _at_once(_: float) -> AsyncIterator[None]:
    yield


class NcclTrees:
    """Owns: the trainer's rank of the group. Thread: the loop's; waits are on other threads.

    ask(kind, timeout, {tree: fields}): makes that call at each tree's admin door: {tree: {"ok", "code", "message"}}.
    turn(deadline): entered while workers join. A worker that waits in a broadcast cannot join, and one that joins cannot
                    receive, so other trainers' updates and joins must wait. None: there are no other trainers.
    Deadlines are time.monotonic()'s.
    """

    def __init__(
        self,
        name: str,
        ask: Callable[[str, float, Mapping[str, Mapping[str, Any]]], Awaitable[Answers]],
        turn: Optional[Callable[[float], AsyncContextManager[Any]]] = None,
    ):
        self._name = name
        self._ask = ask
        self._turn = turn or _at_once
        self._group: Optional[NcclBroadcast] = None
        self._trees: list[str] = []
        self._numbers = itertools.count(1)
        self._leaving: set[asyncio.Future] = set()

    async def meet(
        self, trees: Mapping[str, Sequence[Worker]], weights: Mapping[str, Weight], deadline: float = float("inf")
    ) -> NcclBroadcast:
        """The group of these trees, with memory for these tensors: the existing one, if it has the same trees and is whole.
        PitstopError names what is missing, before any worker is asked to join, or which worker did not join."""
        group = self._group
        if group is not None and group.is_whole and self._trees == list(trees):
            await off_loop(group.make_room, weights)
            return group
        await self.part()
        group = self._group = await off_loop(self._new_group, trees, weights)
        try:
            await off_loop(group.make_room, weights)
            firsts = first_ranks({name: len(workers) for name, workers in trees.items()})
            async with self._turn(deadline):
                self._trees = list(trees)
                left = deadline - time.monotonic()
                if left <= 0:
                    raise PitstopError(
                        "deadline_exceeded", f"group '{group.group}': no time is left for the workers to join"
                    )
                await self._join(
                    group, {name: {"spec": group.spec(first)} for name, first in firsts.items()}, min(JOIN_S, left)
                )
        except BaseException:
            await self.part()
            raise
        return group

    def _new_group(self, trees: Mapping[str, Sequence[Worker]], weights: Mapping[str, Weight]) -> NcclBroadcast:
        device = _device_of(weights)
        if why := why_not(trees, nccl_library().version, cuda_runtime().uuid_of(device)):
            raise PitstopError("failed_precondition", why)
        return NcclBroadcast(f"{self._name} {next(self._numbers)}", sum(map(len, trees.values())), device)

    async def _join(self, group: NcclBroadcast, specs: Mapping[str, Mapping[str, Any]], timeout: float) -> None:
        joining = asyncio.ensure_future(self._ask("init_group", timeout, specs))

        def have_failed() -> bool:
            return joining.done() and (joining.exception() is not None or bool(_failed(joining.result())))

        accepted, answers = await asyncio.gather(
            off_loop(group.accept, timeout, have_failed), joining, return_exceptions=True
        )
        if isinstance(answers, BaseException):
            raise answers
        for name, answer in _failed(answers):
            raise PitstopError(answer["code"], f"{name}: {answer['message']}")
        if isinstance(accepted, BaseException):
            raise accepted

    async def part(self) -> None:
        """Both sides leave the group, without waiting for trees that do not answer."""
        group, self._group = self._group, None
        trees, self._trees = self._trees, []
        if group is None:
            return
        if trees:
            leaving = asyncio.ensure_future(self._leave({name: {"group": group.group} for name in trees}))
            self._leaving.add(leaving)
            leaving.add_done_callback(self._leaving.discard)
        await off_loop(group.close)

    async def _leave(self, fields: Mapping[str, Mapping[str, Any]]) -> None:
        try:
            await self._ask("destroy_group", LEAVE_S, fields)
        except PitstopError:
            pass  # the trees' connection is gone, and so is the group


def _failed(answers: Answers) -> list[tuple[str, Mapping[str, Any]]]:
    """The failed trees; those that caused the failure come first."""
    failed = [(name, answer) for name, answer in answers.items() if not answer["ok"]]
    return sorted(failed, key=lambda each: each[1]["code"] in VICTIMS)
