"""Sends an update's buckets from the trainer to one machine, and from machine to machine.

Ray would fetch each bucket from the trainer for every machine, because all ask at once. So the first replica of each
machine fetches it from the first replica of another machine, which has put its received buckets into the object store
as new objects. If the source dies or is silent, the replica fetches the remaining buckets from the trainer.

Owns:    the received buckets of one stage, until it is committed or dropped.
Thread:  the loop's.
Bounded: AHEAD buckets are requested at once, so a machine holds the version once, and AHEAD buckets more.
"""

from __future__ import annotations

import asyncio
import collections
import threading
from typing import Any, Optional, Sequence

import ray
from ray.exceptions import RayError

from ..aio import off_loop
from ..errors import PitstopError
from .orders import Key
from .ways import Way

NAMESPACE = "pitstop"  # the namespace of all fleets' actors, also if the program uses another one
AHEAD = 2
LOOK_S = 0.5  # how often a waiting stage checks whether it is still wanted
SILENCE_S = 5.0  # a source without an answer for this long is abandoned
PULL_S = 30.0  # a source whose bucket takes this long is abandoned, too
TRAINER = "trainer"  # key in `num_from`
PATIENCE = 4  # each of these limits is at most the update's timeout divided by this


class GivenUp(Exception):
    """The stage or the fetch is no longer wanted."""


class Relay:
    """One replica's part: the buckets that it receives and passes on."""

    def __init__(self, key: Key, way: Way, buckets: Sequence[Any], timeout_s: float):
        self.key = key
        self._way = way
        self._buckets = buckets  # the trainer's
        self._timeout_s = timeout_s
        self._silence_s = min(SILENCE_S, timeout_s / PATIENCE)
        self._pull_s = min(PULL_S, timeout_s / PATIENCE)
        self._source: Any = None
        self.num_from: collections.Counter[str] = collections.Counter()  # number of buckets per source
        # the buckets' places in this machine's store
        self._here = [asyncio.get_running_loop().create_future() for _ in buckets]

    async def receive(self, given_up: threading.Event) -> dict[str, Any]:
        """Receives all tensors, as views of shared memory. PitstopError "unavailable": the trainer has died."""
        if self._way.source:
            try:
                self._source = await off_loop(ray.get_actor, self._way.source, NAMESPACE)
            except ValueError:
                pass  # the source has died
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._timeout_s
        tensors: dict[str, Any] = {}
        fetches: collections.deque[asyncio.Future] = collections.deque()
        try:
            for index, here in enumerate(self._here):
                for one in range(index + len(fetches), min(index + AHEAD, len(self._buckets))):
                    fetches.append(asyncio.ensure_future(self._fetch(one)))
                while not fetches[0].done():
                    await asyncio.wait([fetches[0]], timeout=LOOK_S)
                    if given_up.is_set():
                        raise GivenUp
                    if loop.time() > deadline:
                        said = (
                            f"{index} of {len(self._buckets)} buckets of weights arrived within {self._timeout_s:g} s"
                        )
                        raise PitstopError("deadline_exceeded", said)
                place, bucket = fetches.popleft().result()
                if self._way.passes_on:
                    place = await off_loop(ray.put, bucket)
                    bucket = await place
                here.set_result(place)
                tensors.update(bucket)
        finally:
            for each in (*fetches, *self._here):  # completed ones are not affected
                each.cancel()
        return tensors

    async def give(self, index: int) -> Optional[list[Any]]:
        """The place of bucket `index` in this machine's store; []: not received yet; None: it never will be."""
        here = self._here[index]
        await asyncio.wait([here], timeout=self._silence_s / PATIENCE)
        if here.cancelled():
            return None
        return [here.result()] if here.done() else []

    async def _fetch(self, index: int) -> tuple[Any, Any]:
        try:
            place = await self._place_at_source(index)
            if place is not None:
                bucket = await asyncio.wait_for(place, self._pull_s)
                self.num_from[self._way.source] += 1
                return place, bucket
        except (RayError, asyncio.TimeoutError):
            pass
        self._source = None
        try:
            bucket = await self._buckets[index]
        except RayError as error:
            said = f"bucket {index} of {len(self._buckets)}: the trainer that has it is gone ({type(error).__name__})"
            raise PitstopError("unavailable", said) from None
        self.num_from[TRAINER] += 1
        return self._buckets[index], bucket

    async def _place_at_source(self, index: int) -> Optional[Any]:
        """The bucket's place at the source. None: there is no source, or it is silent."""
        loop = asyncio.get_running_loop()
        heard = loop.time()
        while self._source is not None and loop.time() - heard < self._silence_s:
            given = await asyncio.wait_for(self._source.give_bucket.remote(self.key, index), self._silence_s)
            if given:
                return given[0]
            if given is None:  # the source does not know this update yet, or has forgotten it
                await asyncio.sleep(self._silence_s / 10)
            else:
                heard = loop.time()
        return None
