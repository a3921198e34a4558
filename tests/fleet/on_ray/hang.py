"""Hangs are found and ended: of a replica's actor (during an update and without one), of a tree under streams, and of
the conductor. No call waits longer than the watch does."""

import json
import os
import signal
import threading
import time

import ray

from machines import START_S, another_version, machines, places, processes_of, weights_of
from pitstop import PitstopError
from pitstop.fleet import Fleet

HANG_S = 12.0
DEADLINE_S = 120
SAMPLING = {"max_new_tokens": 700, "temperature": 0, "ignore_eos": True}


def until(is_so, what):
    deadline = time.monotonic() + DEADLINE_S
    while not is_so():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def is_replaced(fleet, member):
    where = places(fleet)
    return member not in where and len(where) == 3


def in_an_update(fleet, weights):
    """The update fails everywhere long before its own deadline and names the replica that hangs;
    the next update takes effect.
    """
    member, place = sorted(places(fleet).items())[0]
    before = fleet.status()["digest"]
    os.kill(place["pid"], signal.SIGSTOP)
    try:
        fleet.update_weights(another_version(weights, 1), timeout=10 * DEADLINE_S)
    except PitstopError as error:
        assert error.message == f"{member}: it has not answered for {HANG_S:g} s", error
        assert error.reply["replicas"][member]["outcome"] == "vanished", error.reply
    else:
        raise AssertionError("it took effect")
    until(lambda: is_replaced(fleet, member), "nobody took its place")
    assert {each["digest"] for each in fleet.status()["replicas"].values()} == {before}
    outcome = fleet.update_weights(another_version(weights, 2))
    assert [each["outcome"] for each in outcome.replicas.values()] == ["committed"] * 3


def without_an_update(fleet):
    member, place = sorted(places(fleet).items())[1]
    os.kill(place["pid"], signal.SIGSTOP)
    until(lambda: is_replaced(fleet, member), "the watch did not find it")


def a_tree_under_streams(fleet):
    """The replica's actor runs, but its tree's launcher and all processes are stopped."""
    outputs, errors, is_struck = [], [], threading.Event()

    def stream(number):
        try:
            while not is_struck.is_set():
                outputs.append(fleet.generate(f"Once upon a time {number}", SAMPLING))
        except Exception as error:
            errors.append(f"{type(error).__name__}: {error}")

    threads = [threading.Thread(target=stream, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    running = fleet._inner._door._loads
    until(lambda: any(running.values()), "no stream begins")
    member = max(running, key=running.get)
    tree = processes_of(places(fleet)[member])
    for pid in [tree["launcher"], *(each["pid"] for each in tree["processes"])]:
        os.kill(pid, signal.SIGSTOP)
    until(lambda: running[member], "nobody asks the tree that hangs")
    is_struck.set()
    for thread in threads:
        thread.join(DEADLINE_S)
        assert not thread.is_alive(), "a request waits for the tree that hangs"
    assert not errors, errors
    assert len(outputs) >= 6 and {len(output.output_ids) for output in outputs} == {SAMPLING["max_new_tokens"]}
    until(lambda: is_replaced(fleet, member), "nobody took its place")


def the_conductor(fleet, weights):
    conductor = ray.get(fleet._inner._conductor.view.remote())["number"][0]
    os.kill(conductor, signal.SIGSTOP)
    said = {}

    def push():
        try:
            said["outcome"] = fleet.update_weights(another_version(weights, 3))
        except PitstopError as error:
            said["error"] = error

    thread = threading.Thread(target=push)
    thread.start()
    thread.join(DEADLINE_S)
    assert not thread.is_alive(), "the update waits for the conductor that hangs"
    assert "outcome" in said or said["error"].code == "aborted", said
    fleet.until_ready(timeout=DEADLINE_S)
    assert fleet.update_weights(another_version(weights, 4)).version.epoch > 2


def main():
    with (
        machines(1, cpus=3),
        Fleet("stories", replicas=3, threads=1, start_timeout=START_S, hang_timeout=HANG_S) as fleet,
    ):
        weights = weights_of(next(iter(places(fleet).values())))
        in_an_update(fleet, weights)
        without_an_update(fleet)
        a_tree_under_streams(fleet)
        deaths = fleet.status()["deaths_total"]
        the_conductor(fleet, weights)
    print(json.dumps({"deaths": deaths}))


if __name__ == "__main__":
    main()
