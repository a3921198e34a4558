"""Which replica gets a request."""

import collections
import math
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "client" / "python"))

from pitstop.routing import LOAD_FACTOR, choose, key_of  # noqa: E402


def members(count, epoch=1):
    return {f"r{i}": {"epoch": epoch} for i in range(count)}


def test_one_session_stays_where_it_is():
    assert len({choose(members(5), {}, key_of(prompt, "s")) for prompt in ("a", "b", [1, 2])}) == 1


def test_without_a_session_the_beginning_of_the_prompt_decides():
    shared = "x" * 300
    assert key_of(shared + "a", None) == key_of(shared + "b", None)
    assert key_of([*range(64), 1], None) == key_of([*range(64), 2], None)
    assert key_of("a" * 200, None) != key_of("b" * 200, None)


def test_a_prompt_too_short_to_share_goes_where_there_is_least():
    loads = collections.Counter()
    for i in range(300):
        loads[choose(members(4), loads, key_of("Once upon a time" if i % 2 else [1, 2, i], None))] += 1
    assert set(loads.values()) == {75}


def test_a_replica_that_goes_moves_only_what_it_had():
    keys = [str(i) for i in range(500)]
    before = {key: choose(members(5), {}, key) for key in keys}
    left = {name: each for name, each in members(5).items() if name != "r2"}
    after = {key: choose(left, {}, key) for key in keys}
    assert all(after[key] == before[key] for key in keys if before[key] != "r2")
    assert {after[key] for key in keys if before[key] == "r2"} == set(left)


def test_no_replica_has_more_than_its_bound_whatever_the_keys():
    for key in ("one key for all", None):
        loads = collections.Counter()
        for i in range(300):
            loads[choose(members(4), loads, key or str(i))] += 1
        assert max(loads.values()) <= math.ceil(LOAD_FACTOR * 300 / 4)


def test_an_epoch_may_be_asked_for():
    some = {"old": {"epoch": 3}, "new": {"epoch": 4}}
    assert {choose(some, {}, str(i), 4) for i in range(50)} == {"new"}
    assert choose(some, {}, "k", 5) is None
    assert choose({}, {}, "k") is None
