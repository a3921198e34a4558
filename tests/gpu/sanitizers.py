"""compute-sanitizer's tools over all kernels at small shapes, a group of families at a time."""

import glob
import os
import re
import shutil
import time

from timed_call import call

TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck")
# These tools make programs ten to a hundred times slower, so the likeliest findings come first. Death tests have
# intended failures, in processes of their own. Exchanges are missing: their kernels wait for each other, and a tool
# runs kernels one after the other.
FAMILIES = (
    "*Attention*",
    "*Linear*-*DeathTest*",
    "*Sampl*",
    "-*Attention*:*Linear*:*Sampl*:*DeathTest*:*CudaExchange*",
)
FOUND = 9  # compute-sanitizer's exit code for found errors; the tested program has no such code
SUMMARY = re.compile(r"^=+ (?:ERROR|RACECHECK) SUMMARY: (\d+) ", re.MULTILINE)
# The findings in the output of a tool that was stopped before its summary.
FINDING = re.compile(
    r"^=+ (?:Invalid|Misaligned|Uninitialized|Barrier|Race|Error: .*(?:hazard|[Rr]ace)).*", re.MULTILINE
)
# A test that fails under a tool (which slows everything down) has met an order that it does not expect.
FAILED_TEST = re.compile(r"^\[  FAILED  \] (\w\S*)", re.MULTILINE)
PROBE_S = 60.0
NO_TIME = "no time left"


def find(environment):
    """Returns compute-sanitizer's path; None: not installed. Toolkits have it next to nvcc, Python environments in
    NVIDIA's packages."""
    places = [shutil.which("compute-sanitizer", path=environment.get("PATH"))]
    places += sorted(glob.glob("/usr/local/cuda*/bin/compute-sanitizer"), reverse=True)
    python = shutil.which("python3", path=environment.get("PATH"))
    if python is not None:
        ended = call([python, "-c", "import sys; print('\\n'.join(sys.path))"], environment, 30)
        for folder in ended.output.splitlines() if ended.code == 0 else []:
            places += sorted(glob.glob(f"{glob.escape(folder)}/nvidia/*/bin/compute-sanitizer"))
    return next((place for place in places if place and os.access(place, os.X_OK)), None)


def found_in(ended):
    """Returns the tool's findings: the number of errors, or the first line of an error; empty:
    none.
    """
    summaries = [int(number) for number in SUMMARY.findall(ended.output)]
    if summaries:
        return f"{max(summaries)} errors" if max(summaries) else ""
    finding = FINDING.search(ended.output)
    if finding:
        return finding[0].strip("= ")
    return ended.last_lines() if ended.code == FOUND else ""


class Sanitizers:
    """Runs compute-sanitizer for `families` of the program `tests`. A run of the command `probe` shows once whether
    compute-sanitizer works."""

    def __init__(self, tests, probe, environment, budget, families=FAMILIES, tools=TOOLS):
        self._families = families
        self._tests = tests
        self._probe = probe
        self._environment = environment
        self._budget = budget
        self._asked = None  # (its path, or None and the reason why not)
        self._left = len(tools) * len(families)

    def run(self, tool):
        """(status, why, figures)."""
        begin = time.monotonic()
        program, why = self._working()
        if program is None:
            return "skipped", why, {}
        found, troubles = [], []
        for families in self._families:
            seconds = self._budget.left() / self._left  # the unused time of one run goes to the later ones
            self._left -= 1
            if seconds < 1:
                troubles.append(f"{families}: {NO_TIME}")
                continue
            ended = self._call(program, tool, [self._tests, f"--gtest_filter={families}"], seconds)
            seen = found_in(ended)
            if seen:
                found.append(f"{families}: {seen}")
            elif test := FAILED_TEST.search(ended.output):
                found.append(f"{families}: {test[1]} failed")
            elif ended.code != 0:
                troubles.append(f"{families}: {ended.last_lines(2)}")
            elif not SUMMARY.search(ended.output):
                troubles.append(f"{families}: no summary, so that nothing was looked at")
        status = "failed" if found else "skipped" if troubles else "passed"
        return status, " / ".join([*found, *troubles]), {"seconds": round(time.monotonic() - begin, 1)}

    def _working(self):
        if self._asked is None:
            self._asked = self._ask()
        return self._asked

    def _ask(self):
        program = find(self._environment)
        if program is None:
            return None, "compute-sanitizer is not installed"
        seconds = max(1.0, min(PROBE_S, self._budget.left()))
        ended = self._call(program, TOOLS[0], self._probe, seconds)
        if ended.code != 0:
            return None, f"compute-sanitizer does not work here: {ended.last_lines(2)}"
        return program, ""

    def _call(self, program, tool, command, seconds):
        # The tests judge failing calls themselves: some are intended.
        flags = ["--tool", tool, "--error-exitcode", str(FOUND), "--report-api-errors", "no"]
        small = {**self._environment, "PITSTOP_REQUIRE_GPU": "1", "PITSTOP_SMALL_SHAPES": "1"}
        return call([program, *flags, *command], small, seconds)
