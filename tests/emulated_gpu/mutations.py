#!/usr/bin/env python3
"""mutations: bugs of the kind that only a device shows, planted one at a time, and the test that finds each.

    tests/emulated_gpu/mutations.py                     all of them
    tests/emulated_gpu/mutations.py --write             all of them; write MUTATIONS.md beside this file
    tests/emulated_gpu/mutations.py --only fence,piece  those whose names have one of these words; the rows of others stay
    tests/emulated_gpu/mutations.py --check             check that each fits the sources, list bugs without a row, build nothing

Works on a checkout of HEAD of its own (build/mutations), built by the emulated preset. Each test is first seen to
pass there. The exit code is 0 if every bug was found.
"""

import functools
import os
import subprocess
import sys

from planted import MUTATIONS
from planting import PLACE, ROOT, TEST_S, Table, Tried, build, drive, planted, run

TABLE = Table(
    ROOT / "tests" / "emulated_gpu" / "MUTATIONS.md",
    "# Bugs that only a device shows, and what finds them\n\n"
    "Written by `tests/emulated_gpu/mutations.py`: each bug is planted alone, the test passes without it and fails with it.\n\n"
    "| bug | in | found by | as |\n"
    "|---|---|---|---|",
)
FINDERS = ("emulator:", "emulated GPU:", "CUDA error", "cudaError")  # a line with one of these words names the fault


def run_test(trial):
    """Returns the failure under the first schedule that found something, or None if all passed."""
    for seed in range(1, trial.num_seeds + 1):
        found = run_schedule(trial, seed)
        if found is not None:
            return found
    return None


def run_schedule(trial, seed):
    environment = {
        **os.environ,
        "PITSTOP_SOURCE_DIR": str(PLACE),
        "PITSTOP_REQUIRE_GPU": "1",
        "PITSTOP_EMULATED_POLICY": trial.policy,
        "PITSTOP_EMULATED_SEED": str(seed),
        "PITSTOP_EMULATOR_COPIES": trial.copies,
        "PITSTOP_EMULATED_GPUS": "2",
        "PITSTOP_EMULATED_MACHINE": str(PLACE / "build" / "machine"),
    }
    program = PLACE / "build" / "emulated" / "bin" / trial.program
    command = [program, f"--gtest_filter={trial.test}", "--gtest_break_on_failure"]
    try:
        done = run(*command, env=environment, timeout=TEST_S)
    except subprocess.TimeoutExpired:
        return f"no end within {TEST_S} s"
    if done.returncode == 0:
        return None
    said = [line for line in (done.stderr + done.stdout).splitlines() if any(word in line for word in FINDERS)]
    said += [line for line in done.stdout.splitlines() if "Failure" in line]
    return (said or [f"exit code {done.returncode}"])[0].strip()


def build_test(trial):
    return build("emulated", trial.program, "pitstop_emulated_cublas")


@functools.cache
def passes_without(trial):
    if said := build_test(trial):
        sys.exit(f"mutations: {said[-2000:]}")
    found = run_test(trial)
    print(f"without a bug: {trial.test}: {found or 'passes'}", flush=True)
    return not found


def try_one(mutation):
    trial = mutation.trial
    if not passes_without(trial):
        return Tried((), False, "its test fails without it")
    with planted(mutation):
        if said := build_test(trial):
            return Tried((), False, f"does not build: {said[-400:]}")
        found = run_test(trial)
    return Tried((f"`{trial.test}`", found), True, found) if found else Tried((), False, "NOT FOUND")


if __name__ == "__main__":
    sys.exit(drive(__doc__.splitlines()[0], MUTATIONS, TABLE, try_one))
