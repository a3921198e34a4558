"""Runs the same workload on each engine in turn, so that a slow minute of the machine affects all of them."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import statistics
from typing import Iterator, Protocol, Sequence

from .rows import Figures, Workload

LOCK = "/tmp/pitstop-bench.lock"  # one measurement at a time on a machine


class Engine(Protocol):
    name: str
    version: str
    ready_s: float

    def run(self, workload: Workload, seed: int) -> Figures: ...
    def close(self) -> None: ...


@dataclasses.dataclass(frozen=True)
class Measured:
    """Each engine's results per run, and pitstop's share of the machine's limit, which is measured next to each run."""

    figures: dict[str, list[Figures]]
    of_limit: list[dict[str, float]]

    def median(self, engine: str, figure: str) -> float:
        return statistics.median(getattr(each, figure) for each in self.figures[engine])

    def range(self, engine: str, figure: str) -> tuple[float, float]:
        values = [getattr(each, figure) for each in self.figures[engine]]
        return min(values), max(values)

    def ratio(self, peer: str, figure: str) -> tuple[float, float, float]:
        """The ratio of pitstop to the peer: of the medians, and the smallest and largest ratio of a pair."""
        pairs = [
            getattr(ours, figure) / getattr(theirs, figure)
            for ours, theirs in zip(self.figures["pitstop"], self.figures[peer])
        ]
        return self.median("pitstop", figure) / self.median(peer, figure), min(pairs), max(pairs)


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Waits until no other measurement runs on this machine, and keeps others out."""
    with open(LOCK, "w", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def measure(engines: Sequence[Engine], workload: Workload, num_pairs: int, first_seed: int) -> Measured:
    """Each engine's first run is not counted: it touches pages and compiles shapes."""
    figures: dict[str, list[Figures]] = {engine.name: [] for engine in engines}
    of_limit: list[dict[str, float]] = []
    for turn in range(num_pairs + 1):
        for engine in engines if turn % 2 else reversed(engines):
            made = engine.run(workload, first_seed + turn)
            if turn == 0:
                continue
            figures[engine.name].append(made)
            if engine.name == "pitstop":
                of_limit.append(dict(getattr(engine, "of_limit", {})))
    return Measured(figures, of_limit)
