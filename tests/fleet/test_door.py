"""Requests that outlive trees: against real trees, without Ray."""

import asyncio
import json
import os
import pathlib
import socket
import subprocess
import sys

import pytest

pytest.importorskip("zmq")
sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "client" / "python"))

import pitstop  # noqa: E402
from pitstop.fleet.door import Call, Door, _OwedText  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
ATTEMPTS_MAX = 500
SAMPLING = {"max_new_tokens": 300, "ignore_eos": True}
PROMPT = "Once upon a time"


class Trees:
    """Two trees, and the view of them that a conductor would give."""

    async def __aenter__(self):
        self.engines = [await pitstop.AsyncEngine("stories", threads=1).start() for _ in range(2)]
        self.view = {"number": 1, "members": {}}
        for i, engine in enumerate(self.engines):
            self.view["members"][f"r{i}"] = {"machine": socket.gethostname(), "run_dir": engine.run_dir, "epoch": 1}
        self.door = Door(self.watch)
        await self.door.open()
        return self

    async def watch(self, seen):
        while seen == self.view["number"]:
            await asyncio.sleep(0.02)
        return dict(self.view)

    async def __aexit__(self, *_):
        await self.door.close()
        for engine in self.engines:
            await engine.close()

    async def strike(self, member):
        """Kills the replica's tree in the middle of the request. Returns False if the request had all its tokens
        already."""
        engine = self.engines[int(member[1:])]
        if (await engine.pause("in_place")).num_frozen == 0:
            await engine.resume()
            return False
        self.kill(member)
        return True

    async def in_its_middle(self):
        """A stream that has begun, and whose tree is then paused."""
        for _ in range(ATTEMPTS_MAX):
            stream = Call(self.door, None, 0).generate(PROMPT, temperature=0.0, **SAMPLING)
            await stream.__anext__()
            engine = self.engines[int(stream._member[1:])]
            if (await engine.pause("in_place")).num_frozen:
                return stream
            await engine.resume()
            await stream.result()
        raise AssertionError(f"{ATTEMPTS_MAX} requests were over before they could be paused")

    def kill(self, member):
        os.kill(self.engines[int(member[1:])]._tree._launcher.process.pid, 9)

    async def until_dead(self, member):
        """Waits until the replica's tree is dead: the kernel ends the tree's processes while its launcher ends, before
        the launcher can be waited for."""
        process = self.engines[int(member[1:])]._tree._launcher.process
        while process.poll() is None:
            await asyncio.sleep(0.01)


def run(work):
    async def with_trees():
        async with Trees() as trees:
            return await work(trees)

    return asyncio.run(asyncio.wait_for(with_trees(), 300))


async def die_in_the_middle(trees, prompt, kill_after, **sampling):
    """Runs a request whose tree dies after this many tokens. Returns all chunks joined, and the undisturbed output."""
    is_struck = False
    for _ in range(ATTEMPTS_MAX):
        if is_struck:
            break
        stream = Call(trees.door, None, 0).generate(prompt, **sampling)
        whole = None
        async for chunk in stream:
            if whole is None:
                whole = chunk
            else:
                whole.append(chunk)
            if len(whole.tokens) >= kill_after and not is_struck and not stream.finished:
                is_struck = await trees.strike(stream._member)
    assert is_struck
    undisturbed = await Call(trees.door, None, 0).generate(prompt, **sampling).result()
    return whole, undisturbed


SAMPLINGS = {
    "greedy": {"temperature": 0.0},
    "seeded": {"temperature": 1.0, "seed": 11},
    "penalties": {"temperature": 0.0, "frequency_penalty": 0.6, "presence_penalty": 0.4},
    "everything": {
        "temperature": 0.8,
        "seed": 3,
        "top_k": 50,
        "top_p": 0.9,
        "min_p": 0.01,
        "repetition_penalty": 1.2,
        "frequency_penalty": 0.3,
        "presence_penalty": -0.2,
        "logit_bias": {14: 2.0},
        "min_new_tokens": 200,
    },
}


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
@pytest.mark.parametrize("prompt", [PROMPT, [12, 300, 45, 6]], ids=["text", "tokens"])
def test_a_request_goes_on_at_another_tree_without_a_repeated_or_missing_token(prompt, sampling):
    async def work(trees):
        whole, undisturbed = await die_in_the_middle(
            trees, prompt, 40, logprobs={"enabled": True, "prompt_start": 0}, **SAMPLING, **sampling
        )
        assert trees.door.num_moved == 1
        assert [span.replica for span in whole.spans] in (["r0", "r1"], ["r1", "r0"])
        assert sum(span.tokens for span in whole.spans) == len(whole.tokens) == 300
        assert whole.spans[0].tokens >= 40
        assert whole.tokens == undisturbed.tokens
        assert whole.logprobs == undisturbed.logprobs
        assert whole.text == undisturbed.text
        assert whole.finish.reason == "length"
        assert whole.counts.completion_tokens == 300
        assert whole.counts.prompt_tokens == undisturbed.counts.prompt_tokens
        assert whole.prompt.logprobs == undisturbed.prompt.logprobs

    run(work)


class SpellingDoor:
    """Token i is the character i."""

    async def text_of(self, ids, skips_special_tokens):
        return "".join(map(chr, ids))


@pytest.mark.parametrize(
    "min_new_tokens, output, text, finish",
    [
        (0, "xyababcd", "xy", "ab"),
        (3, "xyababcd", "xy", "ab"),
        (4, "xyababcd", "xyab", "ab"),
        (4, "xyabcd", "xyabcd", None),
    ],
)
def test_a_stop_text_at_the_seam_begins_no_earlier_than_min_new_tokens_says(min_new_tokens, output, text, finish):
    async def work():
        options = {"stop": ["ab"], "min_new_tokens": min_new_tokens}
        tokens = [ord(each) for each in output]
        owed = _OwedText(SpellingDoor(), options, [], "xy")
        chunk = pitstop.Chunk(tokens=tokens[3:])
        await owed.pay(chunk, tokens)
        assert "xy" + chunk.text == text
        assert (chunk.finish and chunk.finish.matched_text) == finish

    asyncio.run(work())


@pytest.mark.parametrize("kill_after", [1, 5, 9, 12, 14])
def test_a_stop_text_is_found_across_the_seam(kill_after):
    async def work(trees):
        text = (await Call(trees.door, None, 0).generate(PROMPT, temperature=0.0, **SAMPLING).result()).text
        stop = text[60:78]
        whole, undisturbed = await die_in_the_middle(
            trees, PROMPT, kill_after, temperature=0.0, stop=[stop], **SAMPLING
        )
        assert undisturbed.finish.matched_text == stop
        assert whole.text == undisturbed.text
        assert whole.finish.reason == "stop" and whole.finish.matched_text == stop

    run(work)


def test_where_nobody_is_left_the_request_ends_with_an_error(monkeypatch):
    monkeypatch.setattr("pitstop.fleet.door.WAIT_S", 1.0)

    async def work(trees):
        stream = await trees.in_its_middle()
        # The other tree is dead before the request looks for another one, so it cannot serve the
        # rest.
        other = "r1" if stream._member == "r0" else "r0"
        trees.kill(other)
        await trees.until_dead(other)
        trees.kill(stream._member)
        with pytest.raises(pitstop.PitstopError) as refused:
            await stream.result()
        assert refused.value.code == "unavailable"
        assert not any(trees.door._loads.values())

    run(work)


def test_a_request_that_is_refused_before_it_is_sent_is_no_load():
    async def work(trees):
        for _ in range(3):
            with pytest.raises(TypeError):
                await Call(trees.door, None, 0).generate(PROMPT, max_new_tokens=4, temprature=1.0).result()
        assert not any(trees.door._loads.values())

    run(work)


def test_trees_of_other_machines_have_doors_with_keys(tmp_path):
    for who in ([], ["--client", "fleet"]):
        subprocess.run([ROOT / "launch" / "pitstop", "keygen", tmp_path, *who], check=True, capture_output=True)

    async def work(trees):
        engine = await pitstop.AsyncEngine(
            "stories", threads=1, tcp_door="127.0.0.1:0", door_keys=str(tmp_path)
        ).start()
        trees.engines.append(engine)
        far = {"machine": "another", "run_dir": "/not/here", "epoch": 1, "key": str(tmp_path / "clients" / "fleet.key")}
        far["data"] = json.loads(engine._tree.tree_file.read_text())["doors"]["data"]
        trees.view = {"number": 2, "members": {"r2": far}}
        await trees.door.refresh()
        out = await Call(trees.door, None, 0).generate(PROMPT, temperature=0.0, max_new_tokens=4).result()
        assert [span.replica for span in out.spans] == ["r2"]
        trees.view = {"number": 3, "members": {"r3": {**far, "data": None}}}
        await trees.door.refresh()
        with pytest.raises(pitstop.PitstopError) as refused:
            await Call(trees.door, None, 0).generate(PROMPT, max_new_tokens=4).result()
        assert refused.value.code == "unsupported" and "door_keys" in refused.value.message

    run(work)


def test_a_request_may_wait_for_a_version():
    async def work(trees):
        waiting = asyncio.ensure_future(
            Call(trees.door, None, 2).generate(PROMPT, max_new_tokens=4, temperature=0.0).result()
        )
        await asyncio.wait([waiting], timeout=0.3)
        assert not waiting.done()
        members = {name: dict(each) for name, each in trees.view["members"].items()}
        members["r1"]["epoch"] = 2
        trees.view = {"number": 2, "members": members}
        assert {span.replica for span in (await waiting).spans} == {"r1"}

    run(work)


def test_a_request_that_its_client_leaves_ends_in_the_tree():
    async def work(trees):
        stream = await trees.in_its_middle()
        stream.cancel()
        last = await stream.result()
        assert last.finish.reason == "abort"
        assert not any(trees.door._loads.values())

    run(work)
