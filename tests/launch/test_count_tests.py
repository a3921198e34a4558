"""launch/test's summary of its reports: the slowest tests, those that failed, and the number of
tests.
"""

import subprocess
import sys

import pytest

from test_bundle import ROOT

COUNT = ROOT / "launch" / "lib" / "count_tests.py"


@pytest.fixture
def count(tmp_path):
    """count(): the exit code and the lines about the reports of two presets and Python."""

    def run():
        reports = [tmp_path / "cpu/results", tmp_path / "emulated/results", tmp_path / "pytest.xml"]
        done = subprocess.run([sys.executable, COUNT, *reports], capture_output=True, text=True)
        assert not done.stderr, done.stderr
        return done.returncode, done.stdout.splitlines()

    for preset in ("cpu", "emulated"):
        (tmp_path / preset / "results/gtest").mkdir(parents=True)
        write_ctest(tmp_path, preset)
    write(tmp_path / "pytest.xml", "")
    return run


def write(path, *cases):
    path.write_text(f"<testsuites><testsuite>{''.join(cases)}</testsuite></testsuites>")


def write_ctest(tmp_path, preset, *programs):
    (tmp_path / preset / "results/ctest.xml").write_text(f"<testsuite>{''.join(programs)}</testsuite>")


def case(name, seconds, classname="", inner="", status="run"):
    return f'<testcase name="{name}" classname="{classname}" time="{seconds}" status="{status}">{inner}</testcase>'


def slowest(lines):
    begin = next(index for index, line in enumerate(lines) if line.startswith("The slowest "))
    return [line.split(maxsplit=2) for line in lines[begin + 1 :] if " s " in line]


def test_the_slowest_twenty_are_of_all_reports_together(tmp_path, count):
    write_ctest(tmp_path, "cpu", case("unit_test", 60, status="run"), case("symbols", 33))
    write_ctest(tmp_path, "emulated", case("unit_test", 90, status="run"))
    write(tmp_path / "cpu/results/gtest/unit_test.xml", *(case(f"C{i}", i, "Suite") for i in range(1, 15)))
    write(tmp_path / "emulated/results/gtest/unit_test.xml", case("C1", 40, "Suite"))
    write(tmp_path / "pytest.xml", *(case(f"test_{i}", i + 0.5, "tests.tree.test_x") for i in range(1, 15)))
    code, lines = count()
    assert code == 0 and lines[-1] == "30 passed, 0 failed, 0 skipped"
    assert "The slowest 20:" in lines
    seen = slowest(lines)
    assert len(seen) == 20
    assert seen[:4] == [
        ["40.0", "s", "emulated unit_test: Suite.C1"],
        ["33.0", "s", "cpu symbols"],
        ["14.5", "s", "tests.tree.test_x.test_14"],
        ["14.0", "s", "cpu unit_test: Suite.C14"],
    ]
    assert [float(seconds) for seconds, *_ in seen] == sorted((float(seconds) for seconds, *_ in seen), reverse=True)


def test_what_each_report_took_is_told(tmp_path, count):
    write(tmp_path / "pytest.xml", case("a", 1.5), case("b", 2.25))
    code, lines = count()
    assert code == 0 and f"3.8 s in 2 tests of {tmp_path}/pytest.xml" in "\n".join(lines)
    assert "The slowest 2:" in lines


def test_failures_are_named_after_the_slowest_and_the_last_line_counts(tmp_path, count):
    write_ctest(tmp_path, "cpu", case("crashed", 7, status="fail"), case("good", 1))
    write(tmp_path / "cpu/results/gtest/crashed.xml", case("Before", 1, "Suite"))
    write(tmp_path / "pytest.xml", case("bad", 2, "t", "<failure/>"), case("left", 0, "t", "<skipped/>"))
    code, lines = count()
    assert code == 1
    assert lines[-3:] == [
        "FAILED cpu crashed (crashed, hung or was stopped)",
        "FAILED t.bad",
        "2 passed, 2 failed, 1 skipped",
    ]
    assert slowest(lines)[0] == ["7.0", "s", "cpu crashed (crashed, hung or was stopped)"]


def test_a_report_that_cannot_be_read_is_a_failure(tmp_path, count):
    (tmp_path / "pytest.xml").write_text("<cut")
    code, lines = count()
    assert code == 1 and lines[-1] == "0 passed, 1 failed, 0 skipped", lines
    assert any(line.startswith(f"FAILED {tmp_path}/pytest.xml: ") for line in lines)
