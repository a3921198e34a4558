"""An update for which all trees stop: its answer has the duration. Also a coordinator that dies
while a tree is stopped: the tree continues by itself, and the coordinator's successor commits the
update.
"""

import json
import pathlib
import threading
import time

import ray

from machines import NAMESPACE, START_S, another_version, machines, places, weights_of
from pitstop.client import Client
from pitstop.fleet import Fleet, cluster, orders

BARD = str(pathlib.Path(__file__).resolve().parents[3] / "launch" / "models" / "bard")
SAMPLING = {"max_new_tokens": 400, "ignore_eos": True}
DEADLINE_S = 240


def until(is_so, what):
    deadline = time.monotonic() + DEADLINE_S
    while not is_so():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def pause_of(place):
    with Client(place["run_dir"]) as client:
        (each,) = client.status()["replicas"]
        return each.get("pause_mode", ""), each["pauses_total"], each.get("pause_expiry", "")


def holds_each_until_all_commit(fleet, where, weights):
    outputs = []

    def stream(number):
        outputs.append(fleet.generate(f"Story {number}", SAMPLING, session=str(number)))

    threads = [threading.Thread(target=stream, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    outcome = fleet.update_weights(another_version(weights, 1), hold_s=1.0)
    for thread in threads:
        thread.join()
    assert all(len(output.output_ids) == SAMPLING["max_new_tokens"] for output in outputs)
    held = {name: each["report"]["held_s"] for name, each in outcome.replicas.items()}
    assert set(held) == set(where)
    assert [pause_of(place)[:2] for place in where.values()] == [("", 1)] * len(where)
    fleet.pause()
    fleet.update_weights(another_version(weights, 2), hold_s=1.0)
    assert [pause_of(place)[:2] for place in where.values()] == [("in_place", 2)] * len(where), "who paused decides"
    fleet.resume()
    fleet.update_weights(another_version(weights, 3))
    assert [pause_of(place)[:2] for place in where.values()] == [("", 2)] * len(where), "nobody stands who is not to"
    return held


def refuses_a_hold_without_end(fleet, weights):
    for hold_s in (-0.1, 1.5, float("nan")):
        try:
            fleet.update_weights(weights, hold_s=hold_s)
        except TypeError as error:
            assert "hold_s must be 0 to 1" in str(error)
        else:
            raise AssertionError(f"{hold_s} was taken")


def goes_on_when_its_coordinator_dies(fleet, where):
    member, place = next(iter(where.items()))
    replica = ray.get_actor(member, NAMESPACE)
    generation = time.time_ns() // 1_000_000  # the generation of a conductor that dies right after its order
    key = (generation, 1)
    payload = {"path": BARD, "label": "bard", "hold_s": 1.0}
    staged = ray.get(replica.order.remote(orders.Stage(generation, key, 10, "it", payload)))
    assert staged.version is not None, staged
    assert ray.get(replica.order.remote(orders.Decide(generation, key))) == orders.Decided(member, key)
    until(lambda: pause_of(place)[0] == "", "its tree goes on")
    assert pause_of(place)[2].startswith("continued by itself"), pause_of(place)
    output = fleet.generate("Once upon a time", SAMPLING, session="another")
    assert len(output.output_ids) == SAMPLING["max_new_tokens"]
    ray.kill(ray.get_actor(cluster.conductor_name("fleet"), NAMESPACE), no_restart=False)
    until(lambda: fleet.status()["epoch"] == 10, "its successor commits")
    fleet.until_ready(timeout=DEADLINE_S)
    until(lambda: {each["digest"] for each in fleet.status()["replicas"].values()} == {staged.version.digest}, "on all")


def main():
    with (
        machines(1, cpus=2),
        Fleet("stories", replicas=2, threads=1, start_timeout=START_S, hang_timeout=3600) as fleet,
    ):
        where = places(fleet)
        weights = weights_of(next(iter(where.values())))
        held = holds_each_until_all_commit(fleet, where, weights)
        refuses_a_hold_without_end(fleet, weights)
        goes_on_when_its_coordinator_dies(fleet, where)
    print(json.dumps({"held": len(held)}))


if __name__ == "__main__":
    main()
