"""Adds up the tests of launch/test and says so in one line, the last of its output.

A GoogleTest program counts by its cases, any other test of ctest as one, Python's as pytest counts.
A program that failed without a failed case (it crashed, hung, or a sanitizer spoke) is one failure.

    count_tests.py REPORT...    pytest's report (pytest.xml), or a directory with ctest.xml and gtest/
"""

import collections
import pathlib
import sys
import xml.etree.ElementTree as ElementTree

NAMED_MAX = 50  # failures that are listed by name


def outcome_of(case):
    """Says how a JUnit test case ended, as GoogleTest and pytest write it; None: disabled, not run."""
    if case.find("failure") is not None or case.find("error") is not None:
        return "failed"
    if case.find("skipped") is not None or case.get("result") == "skipped":
        return "skipped"
    return None if case.get("status") == "notrun" else "passed"


def cases_of(path):
    """Returns [(name, outcome)]; a file that cannot be read is a failure with its name."""
    try:
        root = ElementTree.parse(path).getroot()
    except (ElementTree.ParseError, OSError) as error:
        return [(f"{path}: {error}", "failed")]
    named = [
        (f"{case.get('classname', '')}.{case.get('name')}", outcome_of(case))
        for case in root.iter("testcase")
    ]
    return [(name, outcome) for name, outcome in named if outcome]


def ctest_cases(results):
    """Returns ctest's programs, each replaced by its GoogleTest cases where it has some."""
    cases = []
    try:
        root = ElementTree.parse(results / "ctest.xml").getroot()
    except (ElementTree.ParseError, OSError) as error:
        return [(f"{results}/ctest.xml: {error}", "failed")]
    for program in root.iter("testcase"):
        name, status = program.get("name"), program.get("status")
        reports = [results / "gtest" / f"{name}.xml", *(results / "gtest").glob(f"{name}_[0-9]*.xml")]
        inner = [case for report in reports if report.exists() for case in cases_of(report)]
        cases += inner
        skipped = program.find("skipped")
        is_missing = skipped is not None and "SKIP" not in skipped.get("message", "")
        if is_missing:
            cases.append((f"{name} ({skipped.get('message')})", "failed"))
        elif status == "fail" and all(outcome != "failed" for _, outcome in inner):
            cases.append((f"{name} (crashed, hung or was stopped)", "failed"))
        elif not inner and status != "fail":
            cases.append((name, "passed" if status == "run" else "skipped"))
    return cases


def main():
    cases = []
    for report in map(pathlib.Path, sys.argv[1:]):
        cases += cases_of(report) if report.suffix == ".xml" else ctest_cases(report)
    count = collections.Counter(outcome for _, outcome in cases)
    failed = [name for name, outcome in cases if outcome == "failed"]
    for name in failed[:NAMED_MAX]:
        print(f"FAILED {name}")
    print(f"{count['passed']} passed, {count['failed']} failed, {count['skipped']} skipped")
    sys.exit(1 if failed or not count["passed"] else 0)


if __name__ == "__main__":
    main()
