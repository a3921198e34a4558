#!/usr/bin/env python3
"""Objects compiled for one level define only names of that level's namespace (pitstop::kernels::avx2).

Objects of two levels could share a name: that of an inline function that was not inlined. The linker keeps one
of the functions, perhaps the one that an older machine cannot run.

    level_symbols_test.py LEVEL OBJECT...
"""

import subprocess
import sys


def main() -> int:
    level, objects = sys.argv[1], sys.argv[2:]
    assert objects, "no objects given"
    wrong = []
    for path in objects:
        listing = subprocess.run(["nm", "-C", "--defined-only", path], capture_output=True, text=True, check=True)
        for line in listing.stdout.splitlines():
            _, kind, name = line.split(maxsplit=2)
            if kind in "TWVuDBRGS" and f"::{level}::" not in name:
                wrong.append(f"{path}: {kind} {name}")
    print("\n".join(wrong) if wrong else f"{level}: {len(objects)} objects, no shared name")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
