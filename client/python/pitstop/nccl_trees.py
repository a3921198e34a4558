"""A trainer's NCCL group with the workers of several trees: one broadcast of a bucket reaches them all, in their GPUs' memory.

    trees = NcclTrees("w", ask)
    group = await trees.meet({"a": workers of tree a, "b": ...})   # all of them are in it
    ... an update with source=group.source(tensors) on each, and meanwhile:
    group.send(tensors)

NCCL's groups never change: one is of one set of trees, and another set makes another. Who dies in a broadcast breaks it for
all; part() then, and meet() those that are left.
"""

from __future__ import annotations

import asyncio
import itertools
from typing import Any, Awaitable, Callable, Mapping, Optional, Sequence

from .aio import off_loop
from .errors import PitstopError
from .nccl_broadcast import NcclBroadcast

JOIN_S = 30.0
LEAVE_S = 5.0
VICTIMS = ("aborted", "deadline_exceeded", "unavailable")  # what those are told whom another one's fault concerns
NO_NCCL = "none"

Worker = Mapping[str, str]
Answers = Mapping[str, Mapping[str, Any]]


def workers_of(status: Mapping[str, Any]) -> list[dict[str, str]]:
    """Of a tree, by its status, in the order of their ranks: {"device_uuid", "nccl": the version, or none}."""
    workers = [each for replica in status["replicas"] for each in replica["workers"]]
    return [{"device_uuid": each["device_uuid"], "nccl": _nccl_of(each.get("libraries", []))} for each in workers]


def _nccl_of(libraries: Sequence[str]) -> str:
    """Of lines such as "NCCL 2.28.9: /usr/lib/libnccl.so.2"."""
    return next((line.removeprefix("NCCL ").partition(":")[0] for line in libraries if line.startswith("NCCL ")), NO_NCCL)


def first_ranks(num_workers: Mapping[str, int]) -> dict[str, int]:
    """Of each tree's workers, which are numbered in the trees' order, behind the trainer."""
    return dict(zip(num_workers, itertools.accumulate(num_workers.values(), initial=1)))


def is_on_gpus(workers: Sequence[Worker]) -> bool:
    return all(each["device_uuid"].startswith("GPU-") for each in workers)


def why_not(trees: Mapping[str, Sequence[Worker]], version: str) -> str:
    """What keeps these trees out of a group of the trainer's NCCL; empty: nothing."""
    for name, workers in trees.items():
        if not is_on_gpus(workers):
            devices = ", ".join(each["device_uuid"] for each in workers)
            return f"{name} computes on {devices}; a worker of an NCCL group has a GPU"
        for each in workers:
            if each["nccl"] != version:
                return f"{name} has NCCL {each['nccl']}, the trainer {version}; a group has one version, to the patch"
    return "" if trees else "there is no tree that serves"


class NcclTrees:
    """Owns: the trainer's rank of the group. Thread: the loop's; what waits is on others.

    ask(kind, timeout, {tree: fields}): that call of each tree's admin door: {tree: {"ok", "code", "message"}}.
    """

    def __init__(self, name: str, ask: Callable[[str, float, Mapping[str, Mapping[str, Any]]], Awaitable[Answers]]):
        self._name = name
        self._ask = ask
        self._group: Optional[NcclBroadcast] = None
        self._trees: list[str] = []
        self._numbers = itertools.count(1)
        self._leaving: set[asyncio.Future] = set()

    async def meet(self, trees: Mapping[str, Sequence[Worker]], device: Optional[int] = None) -> NcclBroadcast:
        """Their group: the one that is there, if it is of the same. device: the trainer's GPU; None: the current one.
        PitstopError: what is missing here or there, or who did not come."""
        if self._group is not None and self._trees == list(trees):
            return self._group
        await self.part()
        firsts = first_ranks({name: len(workers) for name, workers in trees.items()})
        num_workers = sum(len(workers) for workers in trees.values())
        name = f"{self._name} {next(self._numbers)}"
        group = await off_loop(NcclBroadcast, name, max(1, num_workers), device)
        self._group, self._trees = group, list(trees)
        try:
            if why := why_not(trees, group.version):
                raise PitstopError("failed_precondition", why)
            await self._join(group, {name: {"spec": group.spec(first)} for name, first in firsts.items()})
        except BaseException:
            await self.part()
            raise
        return group

    async def _join(self, group: NcclBroadcast, specs: Mapping[str, Mapping[str, Any]]) -> None:
        joining = asyncio.ensure_future(self._ask("init_group", JOIN_S, specs))

        def have_failed() -> bool:
            return joining.done() and (joining.exception() is not None or bool(_failed(joining.result())))

        accepted, answers = await asyncio.gather(off_loop(group.accept, JOIN_S, have_failed), joining, return_exceptions=True)
        if isinstance(answers, BaseException):
            raise answers
        for name, answer in _failed(answers):
            raise PitstopError(answer["code"], f"{name}: {answer['message']}")
        if isinstance(accepted, BaseException):
            raise accepted

    async def part(self) -> None:
        """Both sides take leave; for trees that do not answer nobody waits."""
        group, self._group = self._group, None
        if group is None:
            return
        leaving = asyncio.ensure_future(self._leave({name: {"group": group.group} for name in self._trees}))
        self._leaving.add(leaving)
        leaving.add_done_callback(self._leaving.discard)
        await off_loop(group.close)

    async def _leave(self, fields: Mapping[str, Mapping[str, Any]]) -> None:
        try:
            await self._ask("destroy_group", LEAVE_S, fields)
        except PitstopError:
            pass  # whoever would have carried it is gone, and the group with the trainer


def _failed(answers: Answers) -> list[tuple[str, Mapping[str, Any]]]:
    """Those whose own fault it was come first."""
    failed = [(name, answer) for name, answer in answers.items() if not answer["ok"]]
    return sorted(failed, key=lambda each: each[1]["code"] in VICTIMS)
