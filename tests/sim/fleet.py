#!/usr/bin/env python3
"""An update of a fleet that grows to 10,000 trees: the coordinator itself, under a clock of measured costs.

    tests/sim/fleet.py [--trees 1 10 100 1000 10000] [--json FILE]

Real: the Coordinator's and the Participants' code, and the coordinator's CPU time, which is added
to the clock. Assumed: Costs, each with its source. The conductor is one thread: its calls wait for
one another. Staging copies at a machine's memory rate, after the bytes have come over the network,
along the paths that the fleet's own ways() plans.
"""

import argparse
import collections
import dataclasses
import heapq
import json
import os
import pathlib
import platform
import random
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "client" / "python"))

from pitstop.fleet import orders  # noqa: E402
from pitstop.fleet.coordinator import Coordinator  # noqa: E402
from pitstop.fleet.participant import Participant  # noqa: E402
from pitstop.fleet.ways import ways  # noqa: E402


@dataclasses.dataclass(frozen=True)
class Costs:
    """Seconds, bytes per second. bench/fleet.py measures call_s and commit_s."""

    call_s: float = 300e-6  # time of the conductor's thread to ask an actor and read its answer
    status_s: float = 2.3e-3  # time of all the conductor's threads to request and decode a replica's status
    commit_s: float = 9.0e-3  # time of a tree from the call to its answer, while streams decode
    commit_spread: float = 0.35  # log-normal
    latency_s: float = 250e-6  # one way, within a data centre
    clock_s: float = 1e-3  # standard deviation of a machine's clock error, with NTP within a data centre
    weight_bytes: float = 1.2e9  # 0.6B parameters in bf16
    network_rate: float = 3.0e9  # per machine: 25 Gb/s
    bucket_bytes: float = 64 << 20
    stage_rate: float = 2.0e9  # per machine, to receive, check and digest
    stage_spread: float = 0.15
    order_bytes: float = 1500  # a call and its answer, with Ray's headers
    manifest_bytes: float = 110 * 400  # in each stage order: a line per tensor and its digest
    view_bytes: float = 320  # per tree, in the state that each generating program gets after a change
    poll_s: float = 1.0  # between two updates of the status page, if possible


class Fleet:
    def __init__(self, num_trees, costs, seed=1):
        self.costs = costs
        self.dice = random.Random(seed)
        self.events = []
        self.count = 0
        self.free_at = 0.0  # the time at which the conductor's thread has done all its work
        self.calls = 0
        self.busy_s = 0.0
        self.own_s = 0.0  # the part that runs the coordinator's code
        self.committed = []
        first = orders.Version(1, "initial")
        self.trees = {f"t{i}": Participant(f"t{i}", first) for i in range(num_trees)}
        plan = ways({name: name for name in self.trees}, "the trainer's machine")  # each tree has a machine to itself
        self.depths = {}
        for name, way in plan.items():  # senders come before their receivers
            self.depths[name] = self.depths[way.source] + 1 if way.source else 0
        self.fan_out = max(collections.Counter(way.source for way in plan.values()).values())
        self.now = 0.0
        self.coordinator = self.own(lambda: Coordinator(1, self.trees))
        self.carry()

    def own(self, work):
        begun = time.process_time()  # CPU time: excludes other processes
        result = work()
        spent = time.process_time() - begun
        self.own_s += spent
        self.take_thread(spent)
        return result

    def take_thread(self, seconds):
        self.free_at = max(self.free_at, self.now) + seconds
        self.busy_s += seconds

    def at(self, when, what):
        self.count += 1
        heapq.heappush(self.events, (when, self.count, what))

    def carry(self):
        given = self.coordinator.take_orders()
        lead_s = orders.LEAD_S + orders.LEAD_REPLICA_S * len(given)
        due = max(self.free_at, self.now) + lead_s
        for name, order in given:
            if isinstance(order, orders.Commit):
                order = dataclasses.replace(order, at=due, lead_s=lead_s)
            self.calls += 1
            self.take_thread(self.costs.call_s / 2)
            self.at(self.free_at + self.costs.latency_s, lambda name=name, order=order: self.execute(name, order))

    def execute(self, name, order):
        tree = self.trees[name]
        answer, works = tree.handle_order(order)
        if answer is not None:
            self.answer(answer, 0.0)
        for work in works:
            if isinstance(work, orders.Stage):
                took = self.stage_time(name)
                version = orders.Version(order.epoch, "next", "", order.uid)
                self.at(self.now + took, lambda: self.answer(tree.stage_done(order.key, version), 0.0))
            elif isinstance(work, orders.Commit):
                took = self.costs.commit_s * self.dice.lognormvariate(0, self.costs.commit_spread)
                wait_s = min(max(0.0, order.at + self.dice.gauss(0, self.costs.clock_s) - self.now), order.lead_s)
                self.committed.append(self.now + wait_s + took)
                self.at(self.committed[-1], lambda: self.answer(tree.commit_done(order.key), 0.0))

    def stage_time(self, name):
        costs = self.costs
        # The machine with the most receivers delays all machines behind it. Each machine on the path copies a bucket
        # before it forwards the bucket.
        hop_s = costs.bucket_bytes / costs.network_rate + costs.bucket_bytes / costs.stage_rate
        arrives = costs.weight_bytes / costs.network_rate * self.fan_out + self.depths[name] * hop_s
        return arrives + costs.weight_bytes / costs.stage_rate * self.dice.lognormvariate(0, costs.stage_spread)

    def answer(self, answer, after):
        self.at(self.now + after + self.costs.latency_s, lambda: self.deliver(answer))

    def deliver(self, answer):
        self.take_thread(self.costs.call_s / 2)
        # A message is read when the thread is free.
        self.at(self.free_at, lambda: self.heard(answer))

    def heard(self, answer):
        self.own(lambda: self.coordinator.handle_answer(answer))
        self.carry()

    def run(self):
        while self.events:
            self.now, _, what = heapq.heappop(self.events)
            what()


def measure(num_trees, costs):
    """The measured row of a fleet of this size."""
    fleet = Fleet(num_trees, costs)
    fleet.run()
    recovered_s = fleet.now
    assert len(fleet.coordinator.ready) == num_trees
    fleet.calls, fleet.busy_s, fleet.own_s = 0, 0.0, 0.0
    begun = fleet.now
    fleet.own(lambda: fleet.coordinator.update("u", timeout_s=3600))
    fleet.carry()
    fleet.run()
    outcome = fleet.coordinator.take_outcomes()[0]
    assert outcome.ok and len(fleet.committed) == num_trees
    assert all(tree.version.uid == "u" for tree in fleet.trees.values())
    return {
        "trees": num_trees,
        "update_s": fleet.now - begun,
        "skew_s": max(fleet.committed) - min(fleet.committed),
        "calls": fleet.calls,
        "conductor_bytes": fleet.calls * costs.order_bytes + num_trees * costs.manifest_bytes,
        "conductor_busy_s": fleet.busy_s,
        "coordinator_code_s": fleet.own_s,
        "recovery_s": recovered_s,
        "status_load": num_trees * costs.status_s / costs.poll_s,
        "view_bytes": num_trees * costs.view_bytes,
        "weight_bytes": num_trees * costs.weight_bytes,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--trees", type=int, nargs="+", default=[1, 10, 100, 1000, 10_000])
    parser.add_argument("--json", help="write the rows there, too")
    given = parser.parse_args()
    print("trees  update s  skew ms  calls  MB out  busy s  own code s  recovery s  status load  view MB")
    rows = [measure(num_trees, Costs()) for num_trees in given.trees]
    for row in rows:
        print(
            f"{row['trees']:5}  {row['update_s']:8.2f}  {1000 * row['skew_s']:7.1f}  {row['calls']:5}  "
            f"{row['conductor_bytes'] / 1e6:6.1f}  {row['conductor_busy_s']:6.2f}  {row['coordinator_code_s']:10.2f}  "
            f"{row['recovery_s']:10.2f}  {row['status_load']:11.2f}  {row['view_bytes'] / 1e6:7.2f}"
        )
    if given.json:
        said = {
            "machine": f"{platform.machine()}, {os.cpu_count()} cores",
            "command": " ".join(sys.argv),
            "costs": dataclasses.asdict(Costs()),
            "rows": rows,
        }
        pathlib.Path(given.json).write_text(json.dumps(said, indent=1) + "\n")


if __name__ == "__main__":
    main()
