#!/usr/bin/env python3
"""update_mutations: bugs of weight updates, planted one at a time, and what finds each.

    tests/sim/update_mutations.py [--write]     all of them; --write: write UPDATE_MUTATIONS.md beside this file
    tests/sim/update_mutations.py --only vote   those whose names have this word; the rows of others stay
    tests/sim/update_mutations.py --check       check that each fits the sources, list bugs without a row, build nothing

Works as tests/emulated_gpu/mutations.py, on the same checkout, built by the cpu preset: the unit tests of messages,
scheduler_proc and tokenizer_proc, and SEEDS schedules of pitstop_sim. All pass without a bug. The exit code is 0 if
every bug was found by a unit test, and by a schedule unless planted_updates.py says why none can show it.
"""

import pathlib
import re
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "emulated_gpu"))

from planted_updates import MUTATIONS  # noqa: E402
from planting import PLACE, ROOT, TEST_S, Table, Tried, build, drive, planted, run  # noqa: E402

UNIT_TESTS = ("messages_test", "scheduler_proc_test", "tokenizer_proc_test")
SEEDS = 4000
TABLE = Table(
    ROOT / "tests" / "sim" / "UPDATE_MUTATIONS.md",
    "# Bugs of weight updates, and what finds them\n\n"
    "Written by `tests/sim/update_mutations.py`: each is planted alone; then the unit tests run, and "
    f"{SEEDS} schedules of `pitstop_sim`. Where no schedule can show it, its row says why.\n\n"
    "| bug | in | unit test | schedule |\n"
    "|---|---|---|---|",
)


def said_by(program, *arguments):
    """A failed program's output; nothing if the program succeeded."""
    command = [PLACE / "build" / "cpu" / "bin" / program, *arguments]
    try:
        done = run(*command, timeout=TEST_S, cwd=PLACE, env={"PITSTOP_SOURCE_DIR": str(PLACE)})
    except subprocess.TimeoutExpired:
        return f"no end within {TEST_S} s"
    return "" if done.returncode == 0 else done.stdout + done.stderr or f"exit code {done.returncode}"


def find(unit_tests=UNIT_TESTS, seeds=SEEDS, *flags, of_sim=()):
    """The first unit test that fails, and the seed of the first schedule that does. No seeds: no schedules."""
    if said := build("cpu", *unit_tests, *(["pitstop_sim"] if seeds else [])):
        sys.exit(f"update_mutations: {said[-2000:]}")
    unit_test = schedule = ""
    for program in unit_tests:
        if said := said_by(program, *flags):
            failed = re.search(r"^\[  FAILED  \] ([\w./]+)", said, re.MULTILINE)
            began = re.findall(r"^\[ RUN      \] ([\w./]+)", said, re.MULTILINE)  # a CHECK ended it
            unit_test = failed[1] if failed else began[-1] if began else program
            break
    if seeds and (said := said_by("pitstop_sim", "--num", seeds, *of_sim)):
        seed = re.search(r"^seed (\d+): (.*)", said, re.MULTILINE)
        schedule = f"seed {seed[1]}: {seed[2]}" if seed else said.strip().splitlines()[-1]
    return unit_test, schedule.replace(str(PLACE) + "/", "")[:160]


def see_all_pass(find=find):
    if any(without := find()):
        sys.exit(f"update_mutations: without a bug: {without}")


def try_one(mutation, find=find):
    with planted(mutation):
        unit_test, schedule = find()
    cells = (f"`{unit_test or 'none'}`", schedule or f"none{mutation.unseen and ': '}{mutation.unseen}")
    return Tried(cells, bool(unit_test) and bool(schedule or mutation.unseen), f"{cells[0]}; {cells[1]}")


if __name__ == "__main__":
    sys.exit(drive(__doc__.splitlines()[0], MUTATIONS, TABLE, try_one, see_all_pass))
