"""Runs a GoogleTest program suite by suite: a test that crashes or hangs loses only itself."""

import collections
import json
import pathlib
import re
import tempfile

from timed_call import call

CRASHES_MAX = 3  # per suite: its other tests then do not run, as the cause concerns them, too


class Counts:
    def __init__(self):
        self.passed = 0
        self.skipped = 0
        self.failed = []  # "Suite.Test: why"
        self.not_run = []
        self.suites = {}  # suite: its worst errors against the reference, if it measured any

    def figures(self):
        return {
            "passed": self.passed,
            "failed": len(self.failed),
            "skipped": self.skipped,
            "not_run": len(self.not_run),
        }


def tests_of(program, environment, which="*"):
    """{suite: [tests]} of this filter, or the reason why not."""
    ended = call([program, "--gtest_list_tests", f"--gtest_filter={which}"], environment, 60)
    if ended.code != 0:
        return None, ended.last_lines()
    suites = collections.OrderedDict()
    for line in ended.output.splitlines():
        if re.match(r"\S+\.$", line.split("#")[0].strip()) and not line.startswith(" "):
            suite = line.split("#")[0].strip()[:-1]
            suites[suite] = []
        elif line.startswith("  ") and suites:
            suites[suite].append(line.split("#")[0].strip())
    return suites, ""


def run(program, environment, budget, timeout_s, test_s):
    """Runs all tests of the program, for timeout_s at most. A test without output for test_s counts as hanging."""
    counts = Counts()
    suites, why = tests_of(program, environment)
    if suites is None:
        counts.failed.append(f"{pathlib.Path(program).name}: {why}")
        return counts
    end_left = max(0.0, budget.left() - timeout_s)  # what must be left of the budget when timeout_s is over
    for suite, tests in suites.items():
        _run_suite(program, environment, suite, tests, counts, lambda: budget.left() - end_left, test_s)
    return counts


def run_in_one(program, environment, which, budget, timeout_s, test_s, log=None):
    """Runs the tests that `which` filters in one process, as a process's start takes seconds on a GPU. Another process
    runs the tests after one that crashed or hung."""
    counts = Counts()
    suites, why = tests_of(program, environment, which)
    if suites is None:
        counts.failed.append(f"{pathlib.Path(program).name}: {why}")
        return counts
    names = [f"{suite}.{test}" for suite, tests in suites.items() for test in tests]
    end_left = max(0.0, budget.left() - timeout_s)
    _run_names(program, environment, "all", names, counts, lambda: budget.left() - end_left, test_s, log)
    return counts


def _run_suite(program, environment, suite, tests, counts, seconds_left, test_s):
    names = [f"{suite}.{test}" for test in tests]
    _run_names(program, environment, suite, names, counts, seconds_left, test_s)


def _run_names(program, environment, suite, left, counts, seconds_left, test_s, log=None):
    for _ in range(CRASHES_MAX):
        if not left:
            return
        if seconds_left() < 1:
            break
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "results.json"
            ended = call(
                [program, f"--gtest_filter={':'.join(left)}", f"--gtest_output=json:{path}"],
                environment,
                seconds_left(),
                test_s,
                log,
            )
            if path.exists():
                passed, failed = counts.passed, len(counts.failed)
                _add_results(json.loads(path.read_text()), counts)
                if ended.code != 0 and counts.passed > passed and len(counts.failed) == failed:
                    counts.failed.append(f"{suite}: after its tests: {ended.last_lines(3)}")
                return
        left = _add_lines(ended, left, counts)
    counts.not_run += left


def _add_results(results, counts):
    for suite in results["testsuites"]:
        for test in suite["testsuite"]:
            name = f"{suite['name']}.{test['name']}"
            if test.get("result") == "SKIPPED":
                counts.skipped += 1
            elif "failures" in test:
                counts.failed.append(f"{name}: {test['failures'][0]['failure'].splitlines()[-1]}")
            else:
                counts.passed += 1
            for key in ("worst_error", "worst_error_over_bound"):
                if key in test:
                    errors = counts.suites.setdefault(suite["name"], {})
                    errors[key] = max(errors.get(key, 0.0), float(test[key]))


def _add_lines(ended, left, counts):
    """Handles the output of a program that has ended. Returns the tests that it did not reach."""
    started = None
    done = set()
    for line in ended.output.splitlines():
        found = re.match(r"\[ (RUN     |      OK|  FAILED|  SKIPPED) \] (\S+?)(,| \(|$)", line)
        if not found or found[2] not in left:
            continue
        started = found[2] if found[1].startswith("RUN") else None
        if started is None and found[2] not in done:
            done.add(found[2])
            if "OK" in found[1]:
                counts.passed += 1
            elif "SKIPPED" in found[1]:
                counts.skipped += 1
            else:
                counts.failed.append(f"{found[2]}: see the program's own output")
    blamed = started or next((name for name in left if name not in done), None)
    if blamed is not None:
        counts.failed.append(f"{blamed}: {ended.last_lines(3)}")
        done.add(blamed)
    return [name for name in left if name not in done]
