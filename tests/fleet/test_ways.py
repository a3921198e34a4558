"""The plan by which replicas pass an update's bytes on."""

import collections
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "client" / "python"))

from pitstop.fleet.ways import CHAIN_MAX, FAN_OUT, Way, ways  # noqa: E402


def depth(made, name):
    return 0 if not made[name].source else 1 + depth(made, made[name].source)


@pytest.mark.parametrize("num_machines", [1, 2, 3, CHAIN_MAX, CHAIN_MAX + 1, 1000])
@pytest.mark.parametrize("on_each", [1, 3])
def test_the_trainer_sends_to_one_machine_however_many_there_are(num_machines, on_each):
    nodes = {f"r{i}": f"n{i % num_machines}" for i in range(num_machines * on_each)}
    made = ways(nodes, "the trainer's")
    assert made.keys() == nodes.keys()
    assert sum(not way.source for way in made.values()) == 1
    arcs = {
        (nodes[way.source], nodes[name])
        for name, way in made.items()
        if way.source and nodes[way.source] != nodes[name]
    }
    sent = collections.Counter(source for source, _ in arcs)
    assert len(arcs) == num_machines - 1 == len({target for _, target in arcs})
    assert max(sent.values(), default=0) <= (1 if num_machines <= CHAIN_MAX else FAN_OUT)
    assert {name for name, way in made.items() if way.passes_on} == {
        way.source for name, way in made.items() if way.source and nodes[way.source] != nodes[name]
    }
    deepest = max(depth(made, name) for name in nodes)  # ends at the trainer: no ring
    assert deepest <= (num_machines if num_machines <= CHAIN_MAX else num_machines.bit_length() + 1)


def test_on_the_trainers_machine_replicas_pass_nothing_on():
    made = ways({"a": "here", "b": "there", "c": "here", "d": "there"}, "here")
    assert made == {"a": Way(), "c": Way(), "b": Way(), "d": Way("b")}
