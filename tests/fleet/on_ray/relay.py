"""Machines pass an update's buckets on: as planned, and when one of them hangs or dies in the
middle.
"""

import json
import os
import signal
import threading

from machines import START_S, another_version, kill, machines, places, weights_of
from pitstop.fleet import Fleet, fleet as of_fleets

BUCKET_BYTES = 256 << 10  # so that this model's weights fill several buckets
UPDATE_S = 20.0
DEADLINE_S = 120
ATTEMPTS_MAX = 10


def sources(outcome):
    """{replica: the source of its buckets}."""
    return {
        name: each["report"]["buckets_from"]
        for name, each in outcome.replicas.items()
        if each["outcome"] == "committed"
    }


def in_a_chain(fleet, weights):
    """The replicas' names, in the order in which they pass buckets on."""
    for _ in range(ATTEMPTS_MAX):  # again if a slow replica made the next one fetch a bucket from the trainer
        of_each = sources(fleet.update_weights(another_version(weights, 1)))
        assert len(of_each) == 3 and all(sum(each.values()) > 2 for each in of_each.values()), of_each
        after = {next(iter(each)): name for name, each in of_each.items() if len(each) == 1}
        chain = ["trainer"]
        while chain[-1] in after:
            chain.append(after.pop(chain[-1]))
        if len(chain) == 4:
            return chain[1:]
    raise AssertionError(of_each)


def one_hangs(fleet, weights, name, number):
    """The replica is set aside when the update's time is over. The next replica in the chain has fetched the buckets
    itself."""
    pid = places(fleet)[name]["pid"]
    os.kill(pid, signal.SIGSTOP)
    try:
        outcome = fleet.update_weights(another_version(weights, number), timeout=UPDATE_S)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert outcome.replicas[name]["outcome"] == "failed", outcome
    assert len(sources(outcome)) == 2, outcome
    fleet.until_ready(timeout=DEADLINE_S)
    return sources(outcome)


def one_dies(fleet, weights, name, number):
    pid = places(fleet)[name]["pid"]
    os.kill(pid, signal.SIGSTOP)  # so that the replica takes part in the update, but passes nothing on
    came = []
    thread = threading.Thread(target=lambda: came.append(fleet.update_weights(another_version(weights, number))))
    thread.start()
    while thread.is_alive() and fleet.status()["phase"] == "idle":
        pass
    kill(pid)
    thread.join(DEADLINE_S)
    assert came, f"{name} died, and the update does not end"
    assert came[0].replicas[name]["outcome"] == "vanished" and len(sources(came[0])) == 2, came
    fleet.until_ready(timeout=DEADLINE_S)


def main():
    of_fleets.BUCKET_BYTES = BUCKET_BYTES
    options = {"threads": 1, "quorum": 2, "start_timeout": START_S, "hang_timeout": 3600}  # the watch ends nothing here
    with machines(3) as _, Fleet("stories", replicas=3, **options) as fleet:
        weights = weights_of(next(iter(places(fleet).values())))
        chain = in_a_chain(fleet, weights)
        first = one_hangs(fleet, weights, chain[0], 2)
        assert "trainer" in first[chain[1]], first
        one_hangs(fleet, weights, chain[1], 3)
        one_dies(fleet, weights, chain[0], 4)
        one_dies(fleet, weights, chain[1], 5)
        last = fleet.update_weights(another_version(weights, 6))
        assert [each["outcome"] for each in last.replicas.values()] == ["committed"] * 3
        assert {each["digest"] for each in fleet.status()["replicas"].values()} == {last.version.digest}
    print(json.dumps({"chain": chain}))


if __name__ == "__main__":
    main()
