"""Counts the tests of launch/test, prints the slowest, and ends with one line of totals.

Each case of a GoogleTest program counts as one test, and so does any other test of ctest and each test of pytest. A
program that failed without a failed case (it crashed, hung, or a sanitizer reported an error) is one failure.

    count_tests.py REPORT...    pytest's report (pytest.xml), or a directory with ctest.xml and gtest/
"""

import collections
import pathlib
import sys
import typing
import xml.etree.ElementTree as ElementTree

NAMED_MAX = 50  # failures that are listed by name
SLOWEST_MAX = 20


class Case(typing.NamedTuple):
    name: str
    outcome: str
    seconds: float = 0.0


def seconds_of(case):
    """Returns the seconds of a JUnit test case; for Python including its fixtures."""
    try:
        return float(case.get("time", "0"))
    except ValueError:
        return 0.0


def outcome_of(case):
    """Returns how a JUnit test case ended, as GoogleTest and pytest write it; None: disabled, not run."""
    if case.find("failure") is not None or case.find("error") is not None:
        return "failed"
    if case.find("skipped") is not None or case.get("result") == "skipped":
        return "skipped"
    return None if case.get("status") == "notrun" else "passed"


def cases_of(path):
    """Returns the cases of a report. An unreadable file counts as a failure with its name."""
    try:
        root = ElementTree.parse(path).getroot()
    except (ElementTree.ParseError, OSError) as error:
        return [Case(f"{path}: {error}", "failed")]
    cases = [
        Case(f"{case.get('classname', '')}.{case.get('name')}", outcome_of(case), seconds_of(case))
        for case in root.iter("testcase")
    ]
    return [case for case in cases if case.outcome]


def ctest_cases(results):
    """Returns a case per program of ctest, but for a program of GoogleTest its own cases."""
    cases = []
    try:
        root = ElementTree.parse(results / "ctest.xml").getroot()
    except (ElementTree.ParseError, OSError) as error:
        return [Case(f"{results}/ctest.xml: {error}", "failed")]
    for program in root.iter("testcase"):
        name, status = program.get("name"), program.get("status")
        reports = [results / "gtest" / f"{name}.xml", *(results / "gtest").glob(f"{name}_[0-9]*.xml")]
        inner = [case for report in reports if report.exists() for case in cases_of(report)]
        inner = [case._replace(name=f"{name}: {case.name}") for case in inner]
        cases += inner
        skipped = program.find("skipped")
        is_missing = skipped is not None and "SKIP" not in skipped.get("message", "")
        if is_missing:
            cases.append(Case(f"{name} ({skipped.get('message')})", "failed"))
        elif status == "fail" and all(case.outcome != "failed" for case in inner):
            cases.append(Case(f"{name} (crashed, hung or was stopped)", "failed", seconds_of(program)))
        elif not inner and status != "fail":
            cases.append(Case(name, "passed" if status == "run" else "skipped", seconds_of(program)))
    return cases


def of_preset(case, report):
    """Returns the case with its preset's name, because two presets run the same programs."""
    return case._replace(name=f"{report.parent.name} {case.name}")


def print_slowest(cases_by_report):
    """Prints the slowest tests, and for each report the sum of its tests' seconds."""
    for report, cases in cases_by_report.items():
        print(f"{sum(case.seconds for case in cases):8.1f} s in {len(cases)} tests of {report}")
    slowest = sorted((case for cases in cases_by_report.values() for case in cases), key=lambda case: -case.seconds)
    slowest = [case for case in slowest[:SLOWEST_MAX] if case.seconds > 0]
    print(f"The slowest {len(slowest)}:")
    for case in slowest:
        print(f"{case.seconds:8.1f} s {case.name}")


def main():
    cases_by_report = {}
    for report in map(pathlib.Path, sys.argv[1:]):
        if report.suffix == ".xml":
            cases_by_report[report] = cases_of(report)
        else:
            cases_by_report[report] = [of_preset(case, report) for case in ctest_cases(report)]
    cases = [case for each in cases_by_report.values() for case in each]
    print_slowest(cases_by_report)
    count = collections.Counter(case.outcome for case in cases)
    failed = [case.name for case in cases if case.outcome == "failed"]
    for name in failed[:NAMED_MAX]:
        print(f"FAILED {name}")
    print(f"{count['passed']} passed, {count['failed']} failed, {count['skipped']} skipped")
    sys.exit(1 if failed or not count["passed"] else 0)


if __name__ == "__main__":
    main()
