"""A program's connections to the trees of a fleet, and requests that survive a tree.

A request whose tree dies continues at another one, from the tokens that its client already has. Draws depend on the
seed and the position alone, and scoring a prefix gives the same logprobs as sampling it, so the result is the same as
without the death.
"""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import os
import random
import socket
import time
import uuid
from typing import Any, AsyncIterator, Callable, Mapping, Optional, Sequence

from ..aio import AsyncClient, AsyncStream
from ..errors import PitstopError
from ..messages import Chunk, Finish, Prompt
from ..routing import choose, key_of

WAIT_S = 60.0  # how long a request waits for a replica
RECONNECT_S = 0.5
MOVES_MAX = 8  # per request
CONNECT_S = 5.0
CONTEXT_TOKENS = 8


class Door:
    """Owns: a connection per used replica. watch: follows the conductor's view."""

    def __init__(self, watch: Callable[[Any], Any]):
        self._watch = watch
        self._clients: dict[str, asyncio.Future] = {}
        # replicas lost recently, and the time until which a view that still lists them is ignored
        self._avoid: dict[str, float] = {}
        self._members: dict[str, dict[str, Any]] = {}
        self.view: dict[str, Any] = {}  # the conductor's latest
        self._changed = asyncio.Condition()
        self._loads: collections.Counter[str] = collections.Counter()
        self._watching: Optional[asyncio.Task] = None
        self.name = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:6]}"
        self.num_moved = 0
        self.num_lost = 0

    async def open(self) -> None:
        await self.refresh()
        self._watching = asyncio.ensure_future(self._follow())

    async def refresh(self) -> None:
        await self._take_view(await self._watch(None))

    async def close(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
        for future in self._clients.values():
            if future.done() and not future.exception():
                await future.result().close()
        self._clients.clear()

    async def _follow(self) -> None:
        while True:
            try:
                await self._take_view(await self._watch(self.view.get("number")))
            except asyncio.CancelledError:
                raise
            except Exception:
                await asyncio.sleep(RECONNECT_S)  # the conductor is being restarted

    async def _take_view(self, view: Mapping[str, Any]) -> None:
        async with self._changed:
            self.view = dict(view)
            self._members = dict(view["members"])
            gone = [
                name for name in {*self._clients, *self._loads} if name not in self._members and not self._loads[name]
            ]
            self._changed.notify_all()
        for name in gone:
            self._forget(name)
            self._loads.pop(name, None)

    async def until(self, is_so: Callable[[Mapping[str, Any]], bool], timeout: float, what: str) -> None:
        """Waits until a condition holds. PitstopError "deadline_exceeded" after WAIT_S."""

        async def wait() -> None:
            async with self._changed:
                await self._changed.wait_for(lambda: is_so(self.view))

        try:
            await asyncio.wait_for(wait(), timeout)
        except asyncio.TimeoutError:
            why = self.view.get("why")
            said = f"{what} after {timeout:g} s{': ' + why if why else ''}"
            raise PitstopError("deadline_exceeded", said) from None

    # ---- connections ----

    def _forget(self, member: str) -> None:
        future = self._clients.pop(member, None)
        if future is not None and future.done() and not future.exception():
            asyncio.ensure_future(future.result().close())

    def lose(self, member: str) -> None:
        """Called by a request that noticed a replica's death."""
        self._avoid[member] = time.monotonic() + WAIT_S
        self._forget(member)

    async def client_of(self, member: str) -> AsyncClient:
        if member not in self._clients:
            place = self._members[member]
            where = {"run_dir": place["run_dir"]}
            if place["machine"] != socket.gethostname():
                if not place.get("data"):
                    said = f"{member} is on {place['machine']} and has no door for other machines: give the fleet door_keys"
                    raise PitstopError("unsupported", said)
                where = {"data": place["data"], "key": place["key"]}
            client = AsyncClient(**where, name=f"fleet {self.name}", timeout=CONNECT_S)
            self._clients[member] = asyncio.ensure_future(client.connect())
        try:
            client = await asyncio.shield(self._clients[member])
            if not client.is_connected:
                raise PitstopError("unavailable", f"{member}: its tree is lost")
            return client
        except PitstopError:
            self.lose(member)
            raise

    async def place(self, key: str, min_epoch: int) -> tuple[str, AsyncClient]:
        """Chooses a replica for a request, which counts as its load until leave(). PitstopError "unavailable"."""
        deadline = time.monotonic() + WAIT_S
        while True:
            now = time.monotonic()
            self._avoid = {name: until for name, until in self._avoid.items() if until > now and name in self._members}
            members = {name: each for name, each in self._members.items() if name not in self._avoid}
            member = choose(members, self._loads, key, min_epoch)
            if member is not None:
                self._loads[member] += 1
                try:
                    return member, await self.client_of(member)
                except BaseException as error:
                    self.leave(member)
                    if not isinstance(error, PitstopError) or error.code not in ("unavailable", "not_found"):
                        raise
                    if now < deadline:
                        continue
            if now >= deadline:
                raise PitstopError("unavailable", f"no replica could take the request within {WAIT_S:g} s")
            try:
                async with self._changed:
                    await asyncio.wait_for(self._changed.wait(), min(deadline - now, 1.0))
            except asyncio.TimeoutError:
                pass

    def leave(self, member: str) -> None:
        self._loads[member] -= 1

    async def ask(self, call: str, *args: Any, **options: Any) -> dict[str, Any]:
        """Makes a call of the data door at any replica."""
        for attempt in range(MOVES_MAX + 1):
            member, client = await self.place(call, 0)
            try:
                return await getattr(client, call)(*args, **options)
            except PitstopError as error:
                if error.code != "unavailable" or attempt == MOVES_MAX:
                    raise
                self.lose(member)
            finally:
                self.leave(member)
        raise AssertionError("the last attempt returns or raises")

    async def text_of(self, ids: Sequence[int], skips_special_tokens: bool) -> str:
        return (await self.ask("detokenize", list(ids), skips_special_tokens)).get("text", "")


class Call:
    """The connection that an engine's calls use, for the requests of one session."""

    def __init__(self, door: Door, session: Optional[str], min_epoch: int):
        self._door = door
        self._session = session
        self._min_epoch = min_epoch

    def generate(self, prompt: Prompt, **options: Any) -> CarriedStream:
        return CarriedStream(self._door, prompt, key_of(prompt, self._session), self._min_epoch, options)

    async def tokenize(self, *args: Any, **options: Any) -> Any:
        return await self._door.ask("tokenize", *args, **options)

    async def detokenize(self, *args: Any, **options: Any) -> Any:
        return await self._door.ask("detokenize", *args, **options)

    async def render_chat(self, *args: Any, **options: Any) -> Any:
        return await self._door.ask("render_chat", *args, **options)


class CarriedStream(AsyncIterator[Chunk]):
    """A request's output, like AsyncStream, that survives the death of trees."""

    def __init__(self, door: Door, prompt: Prompt, key: str, min_epoch: int, options: dict[str, Any]):
        self._door = door
        self._prompt = prompt
        self._key = key
        self._min_epoch = min_epoch
        # All parts use one seed and one name. Even a request without streaming is streamed, so that its tokens are here
        # when a tree dies.
        self._options = {**options, "rid": options.get("rid") or uuid.uuid4().hex, "stream": True}
        if self._options.get("seed") is None:
            self._options["seed"] = random.getrandbits(63)
        timeout = self._options.pop("timeout", None)
        self._deadline = None if timeout is None else time.monotonic() + timeout
        self._member = ""
        self._stream: Optional[AsyncStream] = None
        self._kept: list[int] = []  # the tokens that the client has
        self._text = ""
        self._at_seam = 0  # number of kept tokens that were generated before the running part
        self._owed: Optional[_OwedText] = None
        self._has_scores = False
        self._text_is_wanted = self._options.get("text_output", True)
        self._num_moves = 0
        self._is_cancelled = False
        self.finished = False

    @property
    def rid(self) -> str:
        return self._options["rid"]

    def __aiter__(self) -> CarriedStream:
        return self

    async def __anext__(self) -> Chunk:
        while not self.finished:
            try:
                if self._stream is None:
                    await self._begin()
                    if self.finished:  # all tokens had arrived
                        return Chunk(rid=self.rid, finish=Finish(reason="length"))
                chunk = self._stream.take_ready() or await self._stream.__anext__()
            except StopAsyncIteration:
                self._end()
                break
            except PitstopError as error:
                await self._move(error)
                continue
            except BaseException:
                self._end()
                raise
            self._take(chunk)
            if self._owed is not None:
                await self._owed.pay(chunk, self._kept)
            if self._text_is_wanted:
                self._text += chunk.text
            if chunk.finish is not None:
                self._finish()
            return chunk
        raise StopAsyncIteration

    async def result(self) -> Chunk:
        whole = Chunk(rid=self.rid)
        async for chunk in self:
            whole.append(chunk)
        return whole

    def cancel(self) -> None:
        self._is_cancelled = True
        if self._stream is not None:
            self._stream.cancel()

    # ---- parts ----

    async def _begin(self) -> None:
        prompt, options = self._prompt, dict(self._options)
        kept = len(self._kept)
        if kept:
            limit = options.get("max_new_tokens")
            if limit is not None and kept >= limit:
                self.finished = True
                return
            if isinstance(prompt, str):
                prompt = self._prompt = (await self._door.ask("tokenize", prompt))["ids"]
            prompt = [*prompt, *self._kept]
            if limit is not None:
                options["max_new_tokens"] = limit - kept
            if options.get("min_new_tokens"):
                options["min_new_tokens"] = max(0, options["min_new_tokens"] - kept)
            options["num_output_in_prompt"] = kept
            if self._has_scores:
                options["logprobs"] = {**options["logprobs"], "prompt_start": None}
        if self._deadline is not None:
            options["timeout"] = max(0.001, self._deadline - time.monotonic())
        self._member, client = await self._door.place(self._key, self._min_epoch)
        self._at_seam = kept
        try:
            self._stream = client.generate(prompt, **options)
        except BaseException:  # unknown options: no request was sent
            self._door.leave(self._member)
            raise
        if self._is_cancelled:
            self._stream.cancel()
        if kept and self._text_is_wanted:
            await self._look_at_seam()  # while the new tree computes the prefix

    async def _look_at_seam(self) -> None:
        """The new tree must send the text that the dead tree held back (half a character, a possible stop text)."""
        owed = _OwedText(self._door, self._options, self._prompt[-CONTEXT_TOKENS:], self._text)
        self._owed = None if await owed.text_of(self._kept) == self._text else owed

    def _leave(self) -> None:
        if self._stream is not None:
            self._door.leave(self._member)
            self._stream = None

    def _end(self) -> None:
        self.finished = True
        self._leave()

    async def _move(self, error: PitstopError) -> None:
        member, had_tree = self._member, self._stream is not None
        self._leave()
        if error.code != "unavailable" or not had_tree:
            self.finished = True
            raise error
        self._door.lose(member)
        self._num_moves += 1
        if self._num_moves > MOVES_MAX or self._is_cancelled:
            self.finished = True
            self._door.num_lost += 1
            died = f"{self._num_moves} replicas died while they ran the request"
            raise PitstopError("unavailable", f"{died}; the last: {error.message}")
        self._door.num_moved += 1

    def _take(self, chunk: Chunk) -> None:
        """Converts a chunk of this part to one of the whole request. Called for each token of each stream."""
        for span in chunk.spans:
            span.replica = self._member
        if chunk.counts is not None and self._at_seam:
            counts = chunk.counts
            chunk.counts = dataclasses.replace(
                counts,
                prompt_tokens=counts.prompt_tokens - self._at_seam,
                completion_tokens=counts.completion_tokens + self._at_seam,
            )
        self._kept += chunk.tokens
        if chunk.prompt is not None:
            self._has_scores = True

    def _finish(self) -> None:
        if self._owed is not None and self._stream is not None:  # the stop text was found here
            self._stream.cancel()
        self._end()

    def __del__(self) -> None:
        if not self.finished and self._stream is not None:
            self._door.leave(self._member)
            self._stream.cancel()


class _OwedText:
    """The text of a request that moved to a new tree inside a character or a stop text, decoded from all its tokens."""

    def __init__(self, door: Door, options: Mapping[str, Any], context: list[int], told: str):
        self._door = door
        self._options = options
        self._context = context  # the prompt's last tokens; the output is decoded after them
        self._told = told

    async def text_of(self, tokens: list[int]) -> str:
        skips = self._options.get("skip_special_tokens", True)
        ids = (self._context, [*self._context, *tokens])
        before, all_of_it = await asyncio.gather(*(self._door.text_of(each, skips) for each in ids))
        return all_of_it[len(before) :]

    async def pay(self, chunk: Chunk, tokens: list[int]) -> None:
        """Sets the chunk's text: the owed text, then the text of its own tokens. Finds stop texts."""
        ids = tokens
        if (
            chunk.finish is not None
            and chunk.finish.matched_token is not None
            and not self._options.get("no_stop_trim")
        ):
            ids = tokens[:-1]
        text = await self.text_of(ids)
        stops = self._options.get("stop") or []
        # no stop text is searched in the text of the first min_new_tokens - 1 tokens
        num_free = max(0, (self._options.get("min_new_tokens") or 0) - 1)
        begin = len((await self.text_of(tokens[:num_free])).rstrip("\ufffd")) if num_free and stops else 0
        stops = [stops] if isinstance(stops, str) else stops
        found = [(text.index(stop, begin), stop) for stop in stops if stop in text[begin:]]
        if found:
            at, stop = min(found)
            text = text[: at + len(stop)] if self._options.get("no_stop_trim") else text[:at]
            chunk.finish = Finish(reason="stop", matched_text=stop)
        elif chunk.finish is None:
            text = text[:begin] + _without_tail(text[begin:], stops)
        chunk.text = text[len(self._told) :] if len(text) > len(self._told) else ""
        self._told += chunk.text


def _without_tail(text: str, stops: Sequence[str]) -> str:
    """The text without its end that may still change: half a character, the beginning of a stop text."""
    text = text.rstrip("\ufffd")
    lengths = (length for stop in stops for length in range(1, len(stop)) if text.endswith(stop[:length]))
    longest = max(lengths, default=0)
    return text[: len(text) - longest]
