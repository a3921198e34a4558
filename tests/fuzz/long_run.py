#!/usr/bin/env python3
"""Runs the fuzz targets for hours, one after the other, and counts every execution.

    tests/fuzz/long_run.py --hours 8 [TARGET...]     all targets by default
    tests/fuzz/long_run.py --total                   what was counted so far

A target runs without sanitizers first, which is some five times as fast, then for a quarter of that
time with ASan and UBSan; what one has found the other starts from (build/fuzz/corpus). Each turn is
a line of build/fuzz/executions.csv: when, the commit, the target, the build, seconds, executions. A
failure keeps its input in build/fuzz, takes its target out of the run, and is the exit code.
"""

import argparse
import collections
import csv
import datetime
import os
import pathlib
import re
import subprocess
import sys
import time

import seeds

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "fuzz"
COUNTS = BUILD / "executions.csv"
TARGETS = re.findall(r"(?m)^pitstop_fuzz\((\w+)", (ROOT / "tests/fuzz/CMakeLists.txt").read_text())
FLAGS = {
    "plain": ["-DCMAKE_CXX_FLAGS=-fsanitize=fuzzer-no-link -D_GLIBCXX_ASSERTIONS"],
    "sanitized": ["-DPITSTOP_SANITIZE=address", "-DCMAKE_CXX_FLAGS=-fsanitize=fuzzer-no-link"],
}
SECONDS_OF_TURN = {"plain": 240, "sanitized": 60}
INPUT_BYTES_MAX = 1024  # long enough for every structure, short enough for many a second


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


def run(kind, target, seconds):
    """How many executions there were, and whether nothing was found."""
    corpus, start = BUILD / "corpus" / target, BUILD / "seeds" / target
    corpus.mkdir(parents=True, exist_ok=True)
    seeds.write(target, start)
    ended = subprocess.run(
        [directory_of(kind) / "bin" / f"fuzz_{target}", f"-max_total_time={seconds}",
         f"-max_len={INPUT_BYTES_MAX}", f"-artifact_prefix={BUILD}/{target}-", "-timeout=20",
         "-print_final_stats=1", corpus, start],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace",
    )  # fmt: skip
    counted = re.search(r"stat::number_of_executed_units:\s+(\d+)", ended.stderr)
    if ended.returncode != 0:
        print(ended.stderr[-6000:], file=sys.stderr)
    return int(counted[1]) if counted else 0, ended.returncode == 0


def count(target, kind, seconds, executions):
    commit = subprocess.run(
        ["git", "-C", ROOT, "rev-parse", "--short", "HEAD"], capture_output=True, text=True
    ).stdout.strip()
    now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    with COUNTS.open("a", newline="") as file:
        csv.writer(file).writerow([now, commit, target, kind, f"{seconds:.0f}", executions])


def print_totals():
    totals = collections.defaultdict(collections.Counter)
    with COUNTS.open(newline="") as file:
        for _, _, target, kind, seconds, executions in csv.reader(file):
            totals[target][kind] += int(executions)
            totals[target]["seconds"] += int(seconds)
    print(f"{'target':<14} {'plain':>14} {'sanitized':>14} {'hours':>7}")
    for target, total in sorted(totals.items()):
        hours = total["seconds"] / 3600
        print(f"{target:<14} {total['plain']:>14,} {total['sanitized']:>14,} {hours:>7.2f}")
    everything = sum(total["plain"] + total["sanitized"] for total in totals.values())
    print(f"{'all':<14} {everything:>29,}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--hours", type=float, default=1.0)
    parser.add_argument("--total", action="store_true", help="print what was counted, and end")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=", ".join(TARGETS))
    arguments = parser.parse_args()
    targets = arguments.targets or TARGETS
    unknown = sorted(set(targets) - set(TARGETS))
    if unknown:
        parser.error(f"no target is named {', '.join(unknown)}; there are {', '.join(TARGETS)}")
    if not arguments.total:
        end = time.monotonic() + arguments.hours * 3600
        for kind in FLAGS:
            build(kind, targets)
        os.nice(19)
        left = list(targets)
        while left and time.monotonic() < end:
            for target in list(left):
                for kind, seconds in SECONDS_OF_TURN.items():
                    seconds = min(seconds, int(end - time.monotonic()))
                    if seconds < 1 or target not in left:
                        continue
                    begun = time.monotonic()
                    executions, is_clean = run(kind, target, seconds)
                    count(target, kind, time.monotonic() - begun, executions)
                    if not is_clean:
                        left.remove(target)
    print_totals()
    return 0 if arguments.total or len(left) == len(targets) else 1


if __name__ == "__main__":
    sys.exit(main())
