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


def test_the_skew_does_not_grow_with_the_trees():
    """All trees commit at a time that they were told in advance, each by its own clock."""
    module = scale()
    costs = module.dataclasses.replace(module.Costs(), commit_spread=0.0, clock_s=0.0)
    for num_trees in (2, 300, 3000):
        assert module.measure(num_trees, costs)["skew_s"] < 1e-6
    costs = module.dataclasses.replace(costs, clock_s=1e-3)
    assert 0.0 < module.measure(300, costs)["skew_s"] < 10 * costs.clock_s


def test_a_clock_that_is_wrong_makes_a_commit_late_by_the_lead_at_most():
    module = scale()
    costs = module.dataclasses.replace(module.Costs(), commit_spread=0.0, clock_s=3600.0)
    given_s = 300 * costs.call_s / 2
    lead_s = module.orders.LEAD_S + 300 * module.orders.LEAD_REPLICA_S
    assert module.measure(300, costs)["skew_s"] < given_s + lead_s


def test_the_page_names_the_costs_that_the_program_has():
    costs = scale().Costs()
    page = (ROOT / "docs" / "scale.md").read_text()
    told = dict(re.findall(r"^\| (a call|a replica's status|a commit)[^|]*\| ([\d.]+) ms", page, re.MULTILINE))
    assert {name: float(value) for name, value in told.items()} == {
        "a call": 1000 * costs.call_s,
        "a replica's status": 1000 * costs.status_s,
        "a commit": 1000 * costs.commit_s,
    }
