"""Kills a process or a node at a random moment of an update under streams, many times.
Arguments: RUNS SEED [VICTIM].

Each time: every request ends whole, tokens name only versions that the fleet committed, all or none
of the replicas serve the new one, and the fleet returns to three replicas of one version.
"""

import collections
import json
import os
import random
import signal
import sys
import threading
import time
import traceback

import ray

from machines import NAMESPACE, START_S, another_version, kill, machines, places, processes_of, weights_of
from pitstop import PitstopError
from pitstop.fleet import Fleet

STREAMS = 6
NUM_TOKENS = 500
SAMPLING = {"max_new_tokens": NUM_TOKENS, "temperature": 0, "ignore_eos": True}
VICTIMS = ("worker", "tree", "actor", "raylet", "conductor", "actor and conductor", "actor that hangs")
READY_S = 240.0
HANG_S = 10.0
# Durations of an update of this model, so that deaths fall into each of its phases, before and
# after it.
MOMENTS_S = 0.35


def strike(victim, fleet, made, dice):
    """Kills the victim. Returns what was killed."""
    where = places(fleet)
    member, place = dice.choice(sorted(where.items()))
    conductor = ray.get(fleet._inner._conductor.view.remote())["number"][0] if "conductor" in victim else None
    if victim == "worker":
        kill(next(each["pid"] for each in processes_of(place)["processes"] if each["kind"] == "tp_worker"))
    elif victim == "tree":
        kill(processes_of(place)["launcher"])
    elif victim == "raylet":
        made.kill(next(node for node in made.nodes if node.node_id == place["node"]))
        made.add()
    if victim == "actor that hangs":
        os.kill(place["pid"], signal.SIGSTOP)
    elif "actor" in victim:
        kill(place["pid"])
    if conductor is not None:
        kill(conductor)
        return f"{member}, {victim}" if "actor" in victim else victim
    return f"{member}, {victim}"


def run(number, victim, dice, fleet, made, weights, committed):
    """One death. Returns how the update ended."""
    outputs, errors, update, is_struck = [], [], {}, threading.Event()

    def stream(index):
        """Runs requests one after another, so that one is running at the death, however fast the machine."""
        try:
            while True:
                outputs.append(fleet.generate(f"Once upon a time {index}", SAMPLING))
                if is_struck.is_set():
                    return
        except Exception as error:
            errors.append(f"stream: {type(error).__name__}: {error}")

    def push():
        try:
            update["outcome"] = fleet.update_weights(
                another_version(weights, number), label=f"run {number}", timeout=60
            )
        except PitstopError as error:
            update["error"] = error
        except Exception as error:
            errors.append(f"update: {type(error).__name__}: {error}")

    threads = [threading.Thread(target=stream, args=(index,)) for index in range(STREAMS)]
    for thread in threads:
        thread.start()
    time.sleep(dice.random() * 0.5)
    threads.append(threading.Thread(target=push))
    threads[-1].start()
    time.sleep(dice.random() * MOMENTS_S)
    try:
        struck = strike(victim, fleet, made, dice)
    finally:
        is_struck.set()
    for thread in threads:
        thread.join(READY_S)
        assert not thread.is_alive(), f"{struck}: a request or the update hangs"
    assert not errors, (struck, errors)
    deadline = time.monotonic() + READY_S
    while struck.partition(",")[0] in places(fleet):  # neither the death nor the update's end has been noticed yet
        assert time.monotonic() < deadline, f"{struck}: it is there still"
        time.sleep(0.1)
    fleet.until_ready(timeout=READY_S)
    status = fleet.status()
    serves = (status["epoch"], status["digest"])
    assert {(each["epoch"], each["digest"]) for each in status["replicas"].values()} == {serves}, status
    assert len(status["replicas"]) == 3, status
    if "outcome" in update:
        version = update["outcome"].version
        assert serves == (version.epoch, version.digest), (struck, serves, version)
        committed.add(serves)
    else:
        assert serves in committed, f"{struck}: the update failed ({update['error']}), and {serves} serves"
    assert len(outputs) >= STREAMS
    for output in outputs:
        assert len(output.output_ids) == NUM_TOKENS == sum(span.tokens for span in output.spans), struck
        assert output.finish.reason == "length"
        versions = {(span.epoch, span.digest) for span in output.spans}
        assert versions <= committed, (struck, versions - committed, update)
    return struck, "committed" if "outcome" in update else update["error"].code, fleet._inner._door.num_moved


def main(runs, seed, only=None):
    dice = random.Random(seed)
    seen = collections.Counter()
    with machines(4) as made:
        with Fleet("stories", replicas=3, threads=1, start_timeout=START_S, hang_timeout=HANG_S) as fleet:
            weights = weights_of(next(iter(places(fleet).values())))
            status = fleet.status()
            committed = {(status["epoch"], status["digest"])}
            for number in range(runs):
                victim = only or VICTIMS[number % len(VICTIMS)]
                begun = time.monotonic()
                try:
                    struck, came, moved = run(number + 1, victim, dice, fleet, made, weights, committed)
                except BaseException:
                    print(
                        f"run {number} of seed {seed}, {victim}:\n{traceback.format_exc()}", file=sys.stderr, flush=True
                    )
                    raise
                seen[f"{victim}: {came}"] += 1
                print(f"{number}: {struck}: {came}, {moved} moved, {time.monotonic() - begun:.1f} s", flush=True)
            moved = fleet._inner._door.num_moved
            lost = fleet._inner._door.num_lost
    print(json.dumps({"seen": seen, "moved": moved, "lost": lost, "runs": runs}))


if __name__ == "__main__":
    assert NAMESPACE
    main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
