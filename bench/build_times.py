#!/usr/bin/env python3
"""The cost of a clean build: the CPU seconds of each compiler call, by folder.

    bench/build_times.py                        what launch/quickstart builds
    bench/build_times.py --all                  everything
    bench/build_times.py --cuda                 also CUDA's sources, if the toolkit is installed
    bench/build_times.py FILE.cpp ...           these files alone

Builds in a separate folder, without ccache. Reports CPU seconds, because other work on the machine hardly changes
them. Half of their sum is the time on two idle cores, without linking.
"""

import argparse
import collections
import json
import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
QUICKSTART = [
    f"bin/pitstop_{name}"
    for name in ("tokenizer_proc", "scheduler_proc", "detokenizer_proc", "tp_worker", "http_proc", "cli", "tokenize")
]
LOG = "PITSTOP_BUILD_TIMES_LOG"  # the environment variable with the path of the log


def launch(command):
    """As a compiler launcher: runs the compiler, and adds a line to the log."""
    begin = time.monotonic()
    code = subprocess.call(command)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    output = command[command.index("-o") + 1] if "-o" in command else ""
    line = {"cpu_s": used.ru_utime + used.ru_stime, "wall_s": time.monotonic() - begin, "output": output}
    with open(os.environ[LOG], "a") as log:  # one write() per line: compilers that run in parallel append to it
        log.write(json.dumps(line) + "\n")
    return code


def folder_of(output):
    """`tp_worker/model` of `tp_worker/model/CMakeFiles/x.dir/engine.cpp.o`."""
    return output.split("CMakeFiles/")[0].rstrip("/") or "(headers)"


def report(lines):
    seconds, counts = collections.Counter(), collections.Counter()
    for line in lines:
        seconds[folder_of(line["output"])] += line["cpu_s"]
        counts[folder_of(line["output"])] += 1
    for folder, spent in seconds.most_common():
        print(f"{spent:8.1f} s  {counts[folder]:4} sources  {folder}")
    total = seconds.total()
    print(f"{total:8.1f} s  {len(lines):4} sources  in all: {total / 120:.1f} minutes of two cores")
    print("\nthe longest:")
    for line in sorted(lines, key=lambda line: -line["cpu_s"])[:15]:
        print(f"{line['cpu_s']:8.1f} s  {line['output']}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", nargs="*", metavar="FILE.cpp", help="compile only these sources")
    parser.add_argument("--all", action="store_true", help="also compile tests and benchmarks")
    parser.add_argument("--cuda", action="store_true", help="compile with CUDA")
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count(), help="compilers that run at once (default: the number of cores)"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as build:
        log = pathlib.Path(build) / "times.jsonl"
        launcher = f"{sys.executable};{pathlib.Path(__file__).resolve()};--launch"
        configure = ["cmake", "-S", ROOT, "-B", build, "-G", "Ninja", f"-DCMAKE_CXX_COMPILER_LAUNCHER={launcher}"]
        configure += [f"-DCMAKE_CUDA_COMPILER_LAUNCHER={launcher}", f"-DPITSTOP_CUDA={'ON' if options.cuda else 'OFF'}"]
        targets = QUICKSTART
        if options.sources:
            configure.append("-DPITSTOP_UNITY_BUILD=OFF")
            # ninja's syntax for "the outputs of this source"
            targets = [f"{pathlib.Path(source).resolve()}^" for source in options.sources]
        elif options.all:
            targets = ["all"]
        subprocess.run([*configure, "-DPITSTOP_FAULT_POINTS=ON"], check=True, stdout=subprocess.DEVNULL)
        begin = time.monotonic()
        command = ["ninja", "-C", build, "-j", str(options.jobs), *targets]
        subprocess.run(command, check=True, env={**os.environ, LOG: str(log)}, stdout=sys.stderr)
        print(f"{time.monotonic() - begin:.0f} s passed, including linking and everything else that ran on the machine")
        report([json.loads(line) for line in log.read_text().splitlines()])


if __name__ == "__main__":
    sys.exit(launch(sys.argv[2:]) if sys.argv[1:2] == ["--launch"] else main())
