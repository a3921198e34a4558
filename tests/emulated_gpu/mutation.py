"""A bug that mutations.py plants, and the test runs that must find it."""

import dataclasses

from planting import Bug


@dataclasses.dataclass(frozen=True)
class Trial:
    """A test, and the number of schedules of the emulated GPU that it runs under. The first failure ends the trial."""

    program: str
    test: str
    policy: str
    copies: str
    num_seeds: int


@dataclasses.dataclass
class Mutation(Bug):
    """A bug under which `test`, a program and its filter, fails."""

    test: str
    policy: str = "random"
    copies: str = "late"
    num_seeds: int = 1

    @property
    def trial(self):
        return Trial(*self.test.split(), self.policy, self.copies, self.num_seeds)

    @property
    def row_begins(self):
        return f"{super().row_begins}`{self.trial.test}` | "
