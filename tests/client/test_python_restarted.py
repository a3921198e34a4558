"""A client's calls to a tree that ended reach no later tree."""

import asyncio
import threading
import time

import pytest

import pitstop
from fake_door import DEADLINE_S, FakeDoor


class Calls:
    """Waiting calls, each on a thread, and their results."""

    def __init__(self):
        self.threads = []
        self.errors = {}  # call's name -> error

    def start(self, name, call):
        def run():
            try:
                call()
                self.errors[name] = None
            except pitstop.PitstopError as error:
                self.errors[name] = error

        self.threads.append(threading.Thread(target=run))
        self.threads[-1].start()

    def wait(self):
        for thread in self.threads:
            thread.join(DEADLINE_S)
            assert not thread.is_alive(), self.errors
        return self.errors


def wait_until(condition):
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def wait_found(client, door):
    wait_until(lambda: client.is_connected and client.info.tree == door.tree)


def next_answer(door, call):
    """Lets the tree answer a status, so that everything sent before it has arrived."""
    answers = Calls()
    answers.start("status", call)
    peer, body = door.take("status")
    door.send(peer, "status_reply", door="admin", call=body["call"])
    assert answers.wait() == {"status": None}


def test_calls_that_are_open_end_when_the_tree_is_lost(door, client):
    calls = Calls()
    calls.start("update", lambda: client.update_weights("/model"))  # the default timeout: ten minutes
    door.take("update_weights")
    calls.start("tokenize", lambda: client.tokenize("hi", timeout=600.0))
    door.take("tokenize")
    door.die()
    for error in calls.wait().values():
        assert error.code == "unavailable" and "may have taken effect" in error.message


def test_calls_while_no_tree_is_there_fail_at_once_and_reach_no_tree(door, client, run_dir):
    door.die()

    def knows(door_name):
        with pytest.raises(pitstop.PitstopError) as error:
            client.call(door_name, "status" if door_name == "admin" else "tokenize", timeout=600.0)
        assert error.value.code == "unavailable"
        return "nothing was sent" in error.value.message

    wait_until(lambda: knows("data") and knows("admin"))
    assert not client.is_connected
    asked = {
        "pause": lambda: client.pause("in_place", timeout=600.0),
        "update": lambda: client.update_weights("/model"),
        "abort": lambda: client.abort(all=True, timeout=600.0),
        "tokenize": lambda: client.tokenize("hi", timeout=600.0),
        "generate": lambda: client.generate("lost").result(),
    }
    for name, call in asked.items():
        with pytest.raises(pitstop.PitstopError, match="nothing was sent") as error:
            call()
        assert error.value.code == "unavailable", name
    again = FakeDoor(run_dir)
    try:
        wait_found(client, again)
        next_answer(again, lambda: client.status(timeout=DEADLINE_S))
        assert again.received.empty()
    finally:
        again.die()


def test_a_tree_that_says_it_is_another_one_ends_what_is_open_and_is_greeted_again(door, client):
    """A proxy keeps the connection open while another tree replaces the first."""
    calls = Calls()
    calls.start("pause", lambda: client.pause("in_place"))
    door.take("pause_generation")
    calls.start("update", lambda: client.update_weights("/model"))
    peer, body = door.take("update_weights")
    before, door.tree = door.tree, "another"
    door.send(peer, "error", door="admin", call=body["call"], code="unavailable", message="", tree="another")
    for error in calls.wait().values():
        assert error.code == "unavailable" and "was restarted" in error.message
    # The client has not noticed the new tree at the data door: calls there get the same error.
    stream = client.generate("hello")
    _, peer, kind, body = door.received.get(timeout=DEADLINE_S)
    assert (kind, body["tree"]) == ("generate", before)
    door.send(peer, "error", rid=stream.rid, code="unavailable", message="", tree="another")
    with pytest.raises(pitstop.PitstopError, match="was restarted"):
        stream.result()
    wait_found(client, door)
    stream = client.generate("hello")
    peer, _ = door.take("generate")
    door.chunk(peer, stream.rid, "yes", finish={"reason": "stop"})
    assert stream.result().text == "yes"


def test_a_call_that_names_a_tree_that_is_gone_is_not_sent(door, client, run_dir):
    before = client.info.tree
    door.die()
    again = FakeDoor(run_dir)
    try:
        wait_found(client, again)
        with pytest.raises(pitstop.PitstopError, match="nothing was sent") as error:
            client.call("admin", "commit_weights", tree=before)
        assert error.value.code == "unavailable"
        assert again.received.empty()
    finally:
        again.die()


def test_a_connection_is_one_to_every_door(door, run_dir):
    with pytest.raises(pitstop.PitstopError) as error:
        pitstop.Client(data=f"ipc://{run_dir}/data.sock", admin=f"ipc://{run_dir}/nobody.sock", timeout=0.1)
    assert error.value.code == "unavailable"


def test_async_calls_end_with_the_tree_and_reach_no_other(door, run_dir):
    async def scenario():
        async with pitstop.AsyncClient(run_dir, timeout=DEADLINE_S) as client:
            loop = asyncio.get_running_loop()
            update = asyncio.ensure_future(client.update_weights("/model"))
            await loop.run_in_executor(None, door.take, "update_weights")
            await loop.run_in_executor(None, door.die)
            with pytest.raises(pitstop.PitstopError, match="may have taken effect") as error:
                await update
            assert error.value.code == "unavailable"
            with pytest.raises(pitstop.PitstopError, match="nothing was sent"):
                await client.pause("in_place", timeout=600.0)
            again = FakeDoor(run_dir)
            try:
                while not (client.is_connected and client.info.tree == again.tree):
                    await asyncio.sleep(0.005)
                pause = asyncio.ensure_future(client.pause("in_place"))
                peer, body = await loop.run_in_executor(None, again.take, "pause_generation")
                again.send(peer, "pause_reply", door="admin", call=body["call"], ok=True)
                assert (await pause)["ok"]
                assert again.received.empty()
            finally:
                await loop.run_in_executor(None, again.die)

    asyncio.run(asyncio.wait_for(scenario(), 4 * DEADLINE_S))
