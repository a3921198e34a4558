#!/usr/bin/env python3
"""route_mutations: bugs of routes that requests bring and get, planted one at a time, and what finds each.

    tests/sim/route_mutations.py [--write]       all of them; --write: write ROUTE_MUTATIONS.md beside this file
    tests/sim/route_mutations.py --only prefill  those whose names have this word; the rows of others stay
    tests/sim/route_mutations.py --check         check that each fits its source, list bugs without a row, build nothing

Works as update_mutations.py does, with the unit tests of routes in scheduler_proc.
"""

import functools
import sys

import update_mutations
from planted_routes import MUTATIONS
from planting import ROOT, Table, drive

UNIT_TESTS = ("scheduler_proc_test",)
TESTS = "--gtest_filter=*Routes*"
SEEDS = 1000
TABLE = Table(
    ROOT / "tests" / "sim" / "ROUTE_MUTATIONS.md",
    "# Bugs of routes, and who finds them\n\n"
    "Written by `tests/sim/route_mutations.py`: each is planted alone; then the unit tests of routes run, and "
    f"{SEEDS} schedules of `pitstop_sim --experts`. Where no schedule can show it, its row says why.\n\n"
    "| bug | in | unit test | schedule |\n"
    "|---|---|---|---|",
)
find = functools.partial(update_mutations.find, UNIT_TESTS, SEEDS, TESTS, "--gtest_fail_fast", of_sim=("--experts",))
see_all_pass = functools.partial(update_mutations.see_all_pass, find)
try_one = functools.partial(update_mutations.try_one, find=find)


if __name__ == "__main__":
    sys.exit(drive(__doc__.splitlines()[0], MUTATIONS, TABLE, try_one, see_all_pass))
