#!/usr/bin/env python3
"""update_mutations: bugs of weight updates, planted one at a time, and who finds each.

    tests/sim/update_mutations.py [--write]     all of them; with --write, UPDATE_MUTATIONS.md beside this file
    tests/sim/update_mutations.py --only vote   those whose name has this
    tests/sim/update_mutations.py --check       that each still fits the sources; builds nothing

Works as tests/emulated_gpu/mutations.py, on the same checkout, built by the cpu preset: the unit tests of messages,
scheduler_proc and tokenizer_proc, and SEEDS schedules of pitstop_sim. All pass without a bug. The exit code is 0 if
every bug was found by a unit test. That so few schedules show one, too, is told and not asked for.
"""

import argparse
import pathlib
import re
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "emulated_gpu"))

from mutations import PLACE, ROOT, TEST_S, check_out, plant, run  # noqa: E402
from planted_updates import MUTATIONS  # noqa: E402

TABLE = ROOT / "tests" / "sim" / "UPDATE_MUTATIONS.md"
UNIT_TESTS = ("messages_test", "scheduler_proc_test", "tokenizer_proc_test")
SEEDS = 300


def build():
    if not (PLACE / "build" / "cpu" / "build.ninja").exists():
        done = run("cmake", "--preset", "cpu", cwd=PLACE)
        if done.returncode != 0:
            return done
    return run("cmake", "--build", "--preset", "cpu", "--target", "pitstop_sim", *UNIT_TESTS, cwd=PLACE)


def said_by(program, *arguments):
    """What a program printed where it failed, else nothing."""
    command = [PLACE / "build" / "cpu" / "bin" / program, *arguments]
    try:
        done = run(*command, timeout=TEST_S, cwd=PLACE, env={"PITSTOP_SOURCE_DIR": str(PLACE)})
    except subprocess.TimeoutExpired:
        return f"no end within {TEST_S} s"
    return "" if done.returncode == 0 else done.stdout + done.stderr or f"exit code {done.returncode}"


def find():
    """The first unit test that fails, and the seed of the first schedule that does."""
    unit_test = schedule = ""
    for program in UNIT_TESTS:
        if said := said_by(program):
            failed = re.search(r"^\[  FAILED  \] ([\w./]+)", said, re.MULTILINE)
            began = re.findall(r"^\[ RUN      \] ([\w./]+)", said, re.MULTILINE)  # a CHECK ended it
            unit_test = failed[1] if failed else began[-1] if began else program
            break
    if said := said_by("pitstop_sim", "--num", SEEDS):
        seed = re.search(r"^seed (\d+): (.*)", said, re.MULTILINE)
        schedule = f"seed {seed[1]}: {seed[2]}" if seed else said.strip().splitlines()[-1]
    return unit_test, schedule.replace(str(PLACE) + "/", "").replace("|", "/")[:160]


def try_one(mutation):
    path, text = plant(mutation)
    try:
        built = build()
        if built.returncode != 0:
            sys.exit(f"update_mutations: '{mutation.name}' does not build: {built.stdout[-1000:]}")
        return find()
    finally:
        path.write_text(text)


def table(rows):
    lines = [
        "# Bugs of weight updates, and who finds them",
        "",
        f"Written by `tests/sim/update_mutations.py`: each is planted alone; then the unit tests run, and {SEEDS} schedules of `pitstop_sim`.",
        "",
        "| bug | in | unit test | schedule |",
        "|---|---|---|---|",
    ]
    for mutation, (unit_test, schedule) in rows:
        lines.append(f"| {mutation.name} | `{mutation.file}` | `{unit_test or 'none'}` | {schedule or 'none'} |")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", metavar="WORD")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    if options.write and options.only:
        parser.error("--write is of all of them")
    if options.check:
        misfits = [m.name for m in MUTATIONS if (ROOT / m.file).read_text().count(m.text) != 1]
        print("\n".join(misfits) or f"{len(MUTATIONS)} mutations fit")
        return 1 if misfits else 0
    check_out()
    built = build()
    if built.returncode != 0:
        sys.exit(f"update_mutations: {built.stdout[-2000:]}")
    if any(without := find()):
        sys.exit(f"update_mutations: without a bug: {without}")
    rows = []
    for mutation in [m for m in MUTATIONS if options.only in m.name]:
        begin = time.monotonic()
        rows.append((mutation, try_one(mutation)))
        print(f"{mutation.name}: {rows[-1][1]} ({time.monotonic() - begin:.0f} s)", flush=True)
    if options.write:
        TABLE.write_text(table(rows))
    num_found = sum(bool(unit_test) for _, (unit_test, _) in rows)
    print(f"{num_found} of {len(rows)} found by unit tests, {sum(bool(s) for _, (_, s) in rows)} by the simulator")
    return 0 if num_found == len(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
