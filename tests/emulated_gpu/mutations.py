#!/usr/bin/env python3
"""mutations: bugs of the kind that only a device shows, planted one at a time, and the test that finds each.

    tests/emulated_gpu/mutations.py                     all of them
    tests/emulated_gpu/mutations.py --write             besides, MUTATIONS.md beside this file
    tests/emulated_gpu/mutations.py --only fence,piece  those whose name has one of these; the others' rows stay
    tests/emulated_gpu/mutations.py --check             that each still fits the sources; builds nothing

Works on a checkout of HEAD of its own (build/mutations), built by the emulated preset. Each test is first seen to
pass there. The exit code is 0 if every bug was found.
"""

import argparse
import os
import pathlib
import subprocess
import sys
import time

from planted import MUTATIONS

ROOT = pathlib.Path(__file__).resolve().parents[2]
PLACE = ROOT / "build" / "mutations"
TABLE = ROOT / "tests" / "emulated_gpu" / "MUTATIONS.md"
TEST_S = 300
FINDERS = ("emulator:", "emulated GPU:", "CUDA error", "cudaError")  # whose lines say what was wrong


def run(*command, **options):
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, errors="replace", **options)


def check_out():
    """The sources of HEAD in a place of their own; what was built there before is kept."""
    if not (PLACE / ".git").exists():
        run("git", "-C", ROOT, "worktree", "prune")
        done = run("git", "-C", ROOT, "worktree", "add", "--detach", PLACE, "HEAD")
    else:
        head = run("git", "-C", ROOT, "rev-parse", "HEAD").stdout.strip()
        done = run("git", "-C", PLACE, "checkout", "--force", "--detach", head)
    if done.returncode != 0:
        sys.exit(f"mutations: {done.stderr.strip()}")


def build(program):
    if not (PLACE / "build" / "emulated" / "build.ninja").exists():
        done = run("cmake", "--preset", "emulated", cwd=PLACE)
        if done.returncode != 0:
            return done
    return run("cmake", "--build", "--preset", "emulated", "--target", program, "pitstop_emulated_cublas", cwd=PLACE)


def run_test(mutation):
    """What failed under the first schedule that found something, or None where all passed."""
    for seed in range(1, mutation.num_seeds + 1):
        found = run_schedule(mutation, seed)
        if found is not None:
            return found
    return None


def run_schedule(mutation, seed):
    program, name = mutation.test.split()
    environment = {
        **os.environ,
        "PITSTOP_SOURCE_DIR": str(PLACE),
        "PITSTOP_REQUIRE_GPU": "1",
        "PITSTOP_EMULATED_POLICY": mutation.policy,
        "PITSTOP_EMULATED_SEED": str(seed),
        "PITSTOP_EMULATOR_COPIES": mutation.copies,
        "PITSTOP_EMULATED_GPUS": "2",
        "PITSTOP_EMULATED_MACHINE": str(PLACE / "build" / "machine"),
    }
    command = [PLACE / "build" / "emulated" / "bin" / program, f"--gtest_filter={name}", "--gtest_break_on_failure"]
    try:
        done = run(*command, env=environment, timeout=TEST_S)
    except subprocess.TimeoutExpired:
        return f"no end within {TEST_S} s"
    if done.returncode == 0:
        return None
    said = [line for line in (done.stderr + done.stdout).splitlines() if any(word in line for word in FINDERS)]
    said += [line for line in done.stdout.splitlines() if "Failure" in line]
    return (said or [f"exit code {done.returncode}"])[0].strip()


def plant(mutation):
    """The file with the bug in it, and how it was."""
    path = PLACE / mutation.file
    text = path.read_text()
    if text.count(mutation.text) != 1:
        sys.exit(f"mutations: '{mutation.name}' does not fit {mutation.file}")
    path.write_text(text.replace(mutation.text, mutation.bug))
    return path, text


def try_one(mutation):
    path, text = plant(mutation)
    try:
        built = build(mutation.test.split()[0])
        if built.returncode != 0:
            return "", f"does not build: {built.stdout[-400:]}"
        found = run_test(mutation)
        return (found, "") if found else ("", "NOT FOUND")
    finally:
        path.write_text(text)


def check():
    """The mutations that no longer fit the sources."""
    return [m.name for m in MUTATIONS if (ROOT / m.file).read_text().count(m.text) != 1]


def earlier_rows():
    """{name: line} of the table as it is."""
    lines = TABLE.read_text().splitlines() if TABLE.exists() else []
    return {line.split(" | ")[0][2:]: line for line in lines if line.startswith("| ")}


def table(found):
    """With what was found now, {name: how}, or not, {name: ""}, and before that for the others."""
    lines = [
        "# Bugs that only a device shows, and who finds them",
        "",
        "Written by `tests/emulated_gpu/mutations.py`: each bug is planted alone, the test passes without it and fails with it.",
        "",
        "| bug | in | found by | as |",
        "|---|---|---|---|",
    ]
    earlier = earlier_rows()
    for m in MUTATIONS:
        if found.get(m.name):
            lines.append(f"| {m.name} | `{m.file}` | `{m.test.split()[1]}` | {found[m.name].replace('|', '/')} |")
        elif m.name not in found and m.name in earlier:
            lines.append(earlier[m.name])
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", metavar="WORD")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    if options.check:
        misfits = check()
        print("\n".join(misfits) or f"{len(MUTATIONS)} mutations fit")
        return 1 if misfits else 0
    check_out()
    chosen = [m for m in MUTATIONS if any(word in m.name for word in options.only.split(","))]
    passed = {}
    rows = []
    for mutation in chosen:
        key = (mutation.test, mutation.policy, mutation.copies, mutation.num_seeds)
        if key not in passed:
            built = build(mutation.test.split()[0])
            if built.returncode != 0:
                sys.exit(f"mutations: {built.stdout[-2000:]}")
            passed[key] = run_test(mutation)
            print(f"without a bug: {mutation.test}: {passed[key] or 'passes'}", flush=True)
        begin = time.monotonic()
        found, trouble = ("", "its test fails without it") if passed[key] else try_one(mutation)
        print(f"{mutation.name}: {found or trouble} ({time.monotonic() - begin:.0f} s)", flush=True)
        rows.append((mutation, found, bool(found)))
    if options.write:
        TABLE.write_text(table({mutation.name: found for mutation, found, _ in rows}))
    num_found = sum(is_found for _, _, is_found in rows)
    print(f"{num_found} of {len(rows)} found")
    return 0 if num_found == len(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
