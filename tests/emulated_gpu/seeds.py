#!/usr/bin/env python3
"""seeds: runs a test program with PITSTOP_EMULATED_SEED = 1, 2, ... NUM, and stops at the first that fails.

tests/emulated_gpu/seeds.py NUM PROGRAM [ARGUMENT ...]
"""

import os
import subprocess
import sys


def main():
    num, command = int(sys.argv[1]), sys.argv[2:]
    for seed in range(1, num + 1):
        environment = {**os.environ, "PITSTOP_EMULATED_SEED": str(seed)}
        environment.pop("GTEST_OUTPUT", None)  # ctest counts all runs of the program as one test
        done = subprocess.run(command, env=environment, capture_output=True, text=True, errors="replace")
        if done.returncode != 0:
            print(f"seed {seed}:\n{done.stdout[-4000:]}{done.stderr[-4000:]}")
            return 1
    print(f"{num} seeds")
    return 0


if __name__ == "__main__":
    sys.exit(main())
