"""The bugs planted at night still fit the sources, and a table has a row for each."""

import subprocess
import sys

import pytest

from project import ROOT

sys.path[:0] = [str(ROOT / "tests" / "emulated_gpu"), str(ROOT / "tests" / "sim")]

import adapter_mutations  # noqa: E402
import route_mutations  # noqa: E402
import state_mutations  # noqa: E402
import update_mutations  # noqa: E402
from planting import Bug, Table, Tried, misfits  # noqa: E402

BUGS = [Bug("no fence", "a.cpp", "fence();", ""), Bug("no wait", "b.cpp", "wait();", "")]
HEAD = "# Bugs\n\n| bug | in | found by |\n|---|---|---|"


DRIVERS = (
    "tests/emulated_gpu/mutations.py",
    "tests/sim/update_mutations.py",
    "tests/sim/state_mutations.py",
    "tests/sim/adapter_mutations.py",
    "tests/sim/route_mutations.py",
)


@pytest.mark.parametrize("driver", DRIVERS)
def test_every_planted_bug_fits_its_file(driver):
    done = subprocess.run([sys.executable, ROOT / driver, "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("driver", [update_mutations, state_mutations, adapter_mutations, route_mutations])
def test_every_bug_of_the_simulators_tables_has_its_row(driver):
    assert driver.TABLE.problems(driver.MUTATIONS) == []


def test_a_bug_whose_place_is_not_there_once_does_not_fit(tmp_path):
    (tmp_path / "a.cpp").write_text("fence(); fence();")
    (tmp_path / "b.cpp").write_text("wait();")
    assert misfits(BUGS, tmp_path) == ["does not fit a.cpp: no fence"]


def test_rows_of_bugs_that_were_not_tried_stay(tmp_path):
    table = Table(tmp_path / "TABLE.md", HEAD)
    table.write(BUGS, {bug.name: Tried(("`Test.One`",), True, "") for bug in BUGS})
    table.write(BUGS, {"no fence": Tried(("`Test.Two`",), True, "")})
    rows = "| no fence | `a.cpp` | `Test.Two` |\n| no wait | `b.cpp` | `Test.One` |\n"
    assert table.path.read_text() == f"{HEAD}\n{rows}"
    assert table.problems(BUGS) == []


def test_a_bug_without_its_row_and_a_row_without_its_bug_are_named(tmp_path):
    table = Table(tmp_path / "TABLE.md", HEAD)
    table.write(BUGS, {"no fence": Tried(("`Test.One`",), True, ""), "no wait": Tried((), False, "")})
    assert table.problems(BUGS) == ["no row: no wait"]
    table.path.write_text(f"{HEAD}\n| no fence | `c.cpp` | `Test.One` |\n| no lock | `a.cpp` | `Test.One` |\n")
    assert table.problems(BUGS) == ["no row: no wait", "an old row: no fence", "a row of no bug: no lock"]
