"""Chooses each replica's source of an update's bytes, so that the trainer sends them to one machine. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Mapping

CHAIN_MAX = 16  # up to this many machines form a chain, in which each sends the weights once,
FAN_OUT = 2  # more form a tree, which has less depth, and in which each sends them this many times


@dataclass(frozen=True)
class Way:
    """A replica's place in an update's relay."""

    source: str = ""  # the replica that sends it the buckets; empty: the trainer
    passes_on: bool = False  # whether replicas on other machines fetch them from it


def ways(nodes: Mapping[str, str], trainer: str) -> dict[str, Way]:
    """Returns the Way of each replica; `nodes` are their machines. The trainer's own node has the buckets. One other
    machine fetches them from the trainer, and each further one from a machine before it. All replicas of a machine
    share what its first one received."""
    machines: dict[str, list[str]] = {}
    for name, node in nodes.items():
        if node != trainer:
            machines.setdefault(node, []).append(name)
    firsts = [names[0] for names in machines.values()]
    fan_out = 1 if len(firsts) <= CHAIN_MAX else FAN_OUT
    made = {name: Way() for name in nodes}
    for index, (first, *others) in enumerate(machines.values()):
        source = firsts[(index - 1) // fan_out] if index else ""
        made[first] = Way(source, passes_on=index * fan_out + 1 < len(firsts))
        made.update((other, Way(first)) for other in others)
    return made
