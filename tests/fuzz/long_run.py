#!/usr/bin/env python3
"""Runs the fuzz targets for hours, one after the other, and counts every execution.

    tests/fuzz/long_run.py --hours 8 [TARGET...]                all targets by default
    tests/fuzz/long_run.py --keep DIR --nights 30 --hours 8     one of this many nights, whose results DIR collects
    tests/fuzz/long_run.py [--keep DIR] --total                 the counts so far

A target runs without sanitizers first, which is some five times as fast, then for a quarter of that
time with ASan and UBSan; each starts from the other's inputs (DIR/corpus, reduced at the end of a
night). Each turn is a line of DIR/executions.csv: when, the commit, the target, the build, seconds,
executions. A night is over after its hours, or once it has done its share of what is missing to 10^9. A
failing input is kept in DIR/failures and its target skipped; the next run in DIR tries those inputs first.
"""

import argparse
import collections
import csv
import datetime
import fcntl
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

import seeds

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "fuzz"
EXECUTIONS = 10**9  # executions: the goal of all nights together
COUNTED_BEFORE = 47_204_067  # docs/testing.md
TARGETS = re.findall(r"(?m)^pitstop_fuzz\((\w+)", (ROOT / "tests/fuzz/CMakeLists.txt").read_text())
FLAGS = {
    "plain": ["-DCMAKE_CXX_FLAGS=-fsanitize=fuzzer-no-link -D_GLIBCXX_ASSERTIONS"],
    "sanitized": ["-DPITSTOP_SANITIZE=address", "-DCMAKE_CXX_FLAGS=-fsanitize=fuzzer-no-link"],
}
SECONDS_OF_TURN = {"plain": 240, "sanitized": 60}
INPUT_BYTES_MAX = 1024  # long enough for every structure, short enough for many inputs per second


def directory_of(kind):
    return BUILD if kind == "sanitized" else ROOT / "build" / "fuzz_plain"


def build(kind, targets, compiler="clang++-14"):
    """The programs of these targets. CalledProcessError: the compiler's words are on stderr."""
    directory = directory_of(kind)
    command = ["cmake", "-S", ROOT, "-B", directory, "-G", "Ninja", "-DPITSTOP_FUZZ=ON",
               f"-DCMAKE_CXX_COMPILER={compiler}", "-DPITSTOP_CUDA=OFF", "-DPITSTOP_BENCH=OFF"]  # fmt: skip
    subprocess.run([*command, *FLAGS[kind]], check=True, stdout=subprocess.DEVNULL)
    programs = [f"fuzz_{target}" for target in targets]
    subprocess.run(["ninja", "-C", directory, *programs], check=True, stdout=subprocess.DEVNULL)


def program(kind, target, *arguments):
    return subprocess.run(
        [directory_of(kind) / "bin" / f"fuzz_{target}", *arguments],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace",
    )  # fmt: skip


class Place:
    """A directory that collects the results of runs: the corpus, inputs that failed, and a line for
    each turn. One run at a time.
    """

    def __init__(self, path):
        self.path = pathlib.Path(path)
        self.counts = self.path / "executions.csv"
        self.failures = self.path / "failures"

    def lock(self):
        """Returns a lock that this program holds until it ends. BlockingIOError: another run has it."""
        self.failures.mkdir(parents=True, exist_ok=True)
        held = (self.path / "lock").open("w")
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return held

    def corpus(self, target):
        corpus = self.path / "corpus" / target
        corpus.mkdir(parents=True, exist_ok=True)
        return corpus

    def run(self, kind, target, seconds):
        """Returns the number of executions, and whether no input failed."""
        start = BUILD / "seeds" / target
        seeds.write(target, start)
        ended = program(
            kind, target, f"-max_total_time={seconds}", f"-max_len={INPUT_BYTES_MAX}", "-timeout=20",
            f"-artifact_prefix={self.failures}/{target}-", "-print_final_stats=1", self.corpus(target), start,
        )  # fmt: skip
        counted = re.search(r"stat::number_of_executed_units:\s+(\d+)", ended.stderr)
        if ended.returncode != 0:
            print(ended.stderr[-6000:], file=sys.stderr)
        return int(counted[1]) if counted else 0, ended.returncode == 0

    def fails_still(self, target):
        """Runs the inputs that failed before; those that no longer fail join the corpus."""
        is_failing = False
        for path in sorted(self.failures.glob(f"{target}-*")):
            ended = program("sanitized", target, "-timeout=20", path)
            if ended.returncode == 0:
                path.rename(self.corpus(target) / path.name)
            else:
                print(f"{path} fails still:\n{ended.stderr[-3000:]}", file=sys.stderr)
                is_failing = True
        return is_failing

    def shrink(self, target):
        """Reduces the corpus to inputs that together reach the same code; if that fails, it stays as it was."""
        corpus, merged = self.corpus(target), self.path / "merged"
        shutil.rmtree(merged, ignore_errors=True)
        merged.mkdir()
        ended = program("plain", target, "-merge=1", f"-max_len={INPUT_BYTES_MAX}", merged, corpus)
        if ended.returncode == 0 and any(merged.iterdir()):
            shutil.rmtree(corpus)
            merged.rename(corpus)

    def count(self, target, kind, seconds, executions):
        commit = subprocess.run(
            ["git", "-C", ROOT, "rev-parse", "--short", "HEAD"], capture_output=True, text=True
        ).stdout.strip()
        now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
        with self.counts.open("a", newline="") as file:
            csv.writer(file).writerow([now, commit, target, kind, f"{seconds:.0f}", executions])

    def totals(self):
        """{target: {"plain", "sanitized": executions, "seconds"}} of every turn."""
        totals = collections.defaultdict(collections.Counter)
        if self.counts.exists():
            with self.counts.open(newline="") as file:
                for _, _, target, kind, seconds, executions in csv.reader(file):
                    totals[target][kind] += int(executions)
                    totals[target]["seconds"] += int(seconds)
        return totals

    def executions(self):
        """The executions of this directory, and those counted before it existed."""
        return COUNTED_BEFORE + sum(total["plain"] + total["sanitized"] for total in self.totals().values())


def print_totals(place):
    print(f"{'target':<14} {'plain':>14} {'sanitized':>14} {'hours':>7}")
    for target, total in sorted(place.totals().items()):
        hours = total["seconds"] / 3600
        print(f"{target:<14} {total['plain']:>14,} {total['sanitized']:>14,} {hours:>7.2f}")
    done = place.executions()
    print(f"{done:,} of {EXECUTIONS:,} executions ({done / EXECUTIONS:.1%}), {COUNTED_BEFORE:,} of them before")


def share_of_night(done, nights):
    """The total of executions that this night, the first of `nights`, must reach."""
    return done + -(-max(0, EXECUTIONS - done) // nights)


def fuzz(place, targets, hours, executions):
    """Fuzzes the targets in turn until the hours are over or the executions reach this total (None: no limit). Returns
    the targets without failures."""
    end = time.monotonic() + hours * 3600
    left = [target for target in targets if not place.fails_still(target)]

    def is_over():
        return time.monotonic() >= end or (executions is not None and place.executions() >= executions)

    while left and not is_over():
        for target in list(left):
            for kind, seconds in SECONDS_OF_TURN.items():
                seconds = min(seconds, int(end - time.monotonic()))
                if seconds < 1 or target not in left or is_over():
                    continue
                begun = time.monotonic()
                made, is_clean = place.run(kind, target, seconds)
                place.count(target, kind, time.monotonic() - begun, made)
                if not is_clean:
                    left.remove(target)
    return left


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--hours", type=float, default=1.0, help="how long, at most (1)")
    parser.add_argument("--keep", metavar="DIR", default=BUILD, help="where runs add up (build/fuzz)")
    parser.add_argument(
        "--nights", type=int, help="this is the first of so many: it makes its share of what is missing"
    )
    parser.add_argument("--total", action="store_true", help="print what was counted, and end")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=", ".join(TARGETS))
    arguments = parser.parse_args()
    targets = arguments.targets or TARGETS
    unknown = sorted(set(targets) - set(TARGETS))
    if unknown:
        parser.error(f"no target is named {', '.join(unknown)}; there are {', '.join(TARGETS)}")
    if arguments.nights is not None and arguments.nights < 1:
        parser.error(f"--nights takes a whole number of 1 or more, not {arguments.nights}")
    place = Place(arguments.keep)
    if arguments.total:
        print_totals(place)
        return 0
    try:
        lock = place.lock()
    except BlockingIOError:
        parser.error(f"another run adds up in {place.path}")
    for kind in FLAGS:
        build(kind, targets)
    os.nice(19)
    executions = None if arguments.nights is None else share_of_night(place.executions(), arguments.nights)
    left = fuzz(place, targets, arguments.hours, executions)
    for target in left:
        place.shrink(target)
    print_totals(place)
    lock.close()
    return 0 if len(left) == len(targets) else 1


if __name__ == "__main__":
    sys.exit(main())
