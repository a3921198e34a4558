#!/usr/bin/env python3
"""adapter_mutations: bugs of adapters, planted one at a time, and what finds each.

    tests/sim/adapter_mutations.py [--write]       all of them; --write: write ADAPTER_MUTATIONS.md beside this file
    tests/sim/adapter_mutations.py --only pinned   those whose names have this word; the rows of others stay
    tests/sim/adapter_mutations.py --check         check that each fits the sources, list bugs without a row, build nothing

Works as update_mutations.py does, with the unit tests of adapters in scheduler_proc, and for bugs of sessions with those
of scheduler_proc and tokenizer_proc. The bugs of experts' adapters are in the worker, which has unit tests of its own,
and no schedules.
"""

import functools
import sys

import update_mutations
from planted_adapter_sessions import MUTATIONS as OF_SESSIONS
from planted_adapters import MUTATIONS as OF_SCHEDULER
from planted_expert_adapters import MUTATIONS as OF_WORKER
from planting import ROOT, Table, drive

MUTATIONS = OF_SCHEDULER + OF_SESSIONS + OF_WORKER
UNIT_TESTS = ("scheduler_proc_test",)
SESSION_TESTS = ("scheduler_proc_test", "tokenizer_proc_test")
WORKER_TESTS = ("tp_worker_weights_test", "tp_worker_adapters_test")
TESTS = "--gtest_filter=*Adapter*"
SEEDS = 2000
TABLE = Table(
    ROOT / "tests" / "sim" / "ADAPTER_MUTATIONS.md",
    "# Bugs of adapters, and what finds them\n\n"
    "Written by `tests/sim/adapter_mutations.py`: each is planted alone; then the unit tests of adapters run, and "
    f"{SEEDS} schedules of `pitstop_sim --adapters`. Where no schedule can show it, its row says why.\n\n"
    "| bug | in | unit test | schedule |\n"
    "|---|---|---|---|",
)
find = functools.partial(update_mutations.find, UNIT_TESTS, SEEDS, TESTS, "--gtest_fail_fast", of_sim=("--adapters",))
find_in_sessions = functools.partial(
    update_mutations.find, SESSION_TESTS, SEEDS, "--gtest_fail_fast", of_sim=("--adapters",)
)
find_in_worker = functools.partial(update_mutations.find, WORKER_TESTS, 0, "--gtest_fail_fast")


def see_all_pass():
    for each in (find, find_in_sessions, find_in_worker):
        update_mutations.see_all_pass(each)


def try_one(mutation):
    finds = find_in_worker if mutation in OF_WORKER else find_in_sessions if mutation in OF_SESSIONS else find
    return update_mutations.try_one(mutation, finds)


if __name__ == "__main__":
    sys.exit(drive(__doc__.splitlines()[0], MUTATIONS, TABLE, try_one, see_all_pass))
