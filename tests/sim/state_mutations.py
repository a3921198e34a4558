#!/usr/bin/env python3
"""state_mutations: bugs of hybrid models' recurrent states, planted one at a time, and what finds each.

    tests/sim/state_mutations.py [--write]      all of them; --write: write STATE_MUTATIONS.md beside this file
    tests/sim/state_mutations.py --only trail   those whose names have this word; the rows of others stay
    tests/sim/state_mutations.py --check        check that each fits the sources, list bugs without a row, build nothing

Works as update_mutations.py does, with the unit tests of states in kernels, scheduler_proc and tp_worker.
"""

import functools
import sys

import update_mutations
from planted_states import MUTATIONS
from planting import ROOT, Table, drive

UNIT_TESTS = (
    "scheduler_proc_test",
    "kernels_test",
    "tp_worker_test",
    "tp_worker_golden_test",
    "tp_worker_batch_invariance_test",
)
TESTS = "--gtest_filter=" + ":".join(
    f"*{word}*"
    for word in (
        "Checkpoint",
        "Place",
        "State",
        "KvPool",
        "PrefixCache",
        "ybrid",
        "GatedDelta",
        "qwen3_next",
        "qwen3_5",
    )
)
SEEDS = 1000
TABLE = Table(
    ROOT / "tests" / "sim" / "STATE_MUTATIONS.md",
    "# Bugs of recurrent states, and what finds them\n\n"
    "Written by `tests/sim/state_mutations.py`: each is planted alone; then the unit tests of states run, and "
    f"{SEEDS} schedules of `pitstop_sim`. Where no schedule can show it, its row says why.\n\n"
    "| bug | in | unit test | schedule |\n"
    "|---|---|---|---|",
)
find = functools.partial(update_mutations.find, UNIT_TESTS, SEEDS, TESTS, "--gtest_fail_fast")
see_all_pass = functools.partial(update_mutations.see_all_pass, find)
try_one = functools.partial(update_mutations.try_one, find=find)


if __name__ == "__main__":
    sys.exit(drive(__doc__.splitlines()[0], MUTATIONS, TABLE, try_one, see_all_pass))
