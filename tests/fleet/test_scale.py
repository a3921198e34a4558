"""tests/sim/fleet.py, which docs/scale.md shows."""

import importlib.util
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]


def scale():
    spec = importlib.util.spec_from_file_location("fleet_scale", ROOT / "tests" / "sim" / "fleet.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_an_update_costs_three_calls_per_tree_however_many_there_are():
    module = scale()
    for num_trees in (1, 7, 200):
        row = module.measure(num_trees, module.Costs())
        assert row["calls"] == 3 * num_trees
        assert row["update_s"] < 10


def test_the_skew_is_that_of_the_thread_that_gives_the_orders():
    module = scale()
    costs = module.dataclasses.replace(module.Costs(), commit_spread=0.0, call_s=1e-3)
    row = module.measure(300, costs)
    given_s = 299 * costs.call_s / 2
    assert given_s <= row["skew_s"] <= 1.5 * given_s


def test_the_page_names_the_costs_that_the_program_has():
    costs = scale().Costs()
    page = (ROOT / "docs" / "scale.md").read_text()
    told = dict(re.findall(r"^\| (a call|a replica's status|a commit)[^|]*\| ([\d.]+) ms", page, re.MULTILINE))
    assert {name: float(value) for name, value in told.items()} == {
        "a call": 1000 * costs.call_s, "a replica's status": 1000 * costs.status_s, "a commit": 1000 * costs.commit_s,
    }
