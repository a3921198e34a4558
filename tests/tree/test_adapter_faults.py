"""A process dies or stops amid a rollback of an adapter, or amid an update of a part of it: all of it takes effect, or
nothing.
"""

import signal

import pytest

from adapter_loads import HELD, assert_drops_late_stage, assert_ends_with_every_answer, load, tokens_with
from lora_files import exact_adapter, write_adapter
from test_deaths import start_long
from test_faults import PROCESSES
from test_restart import crash

NAME = "policy"
FIRST, SECOND = (exact_adapter(seed)[0] for seed in (1, 2))
PART = [name for name in FIRST if ".layers.0." in name and ".mlp." in name]
CONTENTS = {
    "first": FIRST,
    "second": SECOND,
    "part": {name: FIRST[name] for name in PART},
    "mixed": {name: (FIRST if name in PART else SECOND)[name] for name in FIRST},
}
# A rollback writes no tensor, so it has no moment with half of them.
PLACES = [("rollback", phase) for phase in ("stage_begin", "commit_begin", "commit_done")]
PLACES += [("part", phase) for phase in ("stage_begin", "stage_half", "commit_begin", "commit_done")]
RESULTS = {"rollback": "first", "part": "mixed"}


@pytest.fixture(scope="module")
def adapters(tmp_path_factory):
    place = tmp_path_factory.mktemp("adapters")
    return {name: write_adapter(place / name, tensors) for name, tensors in CONTENTS.items()}


@pytest.fixture
def start_loaded(start_tree, adapters, tmp_path, monkeypatch):
    """start_loaded(*flags): a tree that serves the second version of an adapter and retains the first one."""
    faults = tmp_path / "faults"
    faults.mkdir()
    monkeypatch.setenv("PITSTOP_FAULT_DIR", str(faults))

    def start(*flags):
        tree = start_tree("--tp", 2, *flags)
        tree.faults, admin = faults, tree.door("admin")
        tree.digests = {name: load(admin, adapters[name])["digest"] for name in ("mixed", "first", "second")}
        return tree

    return start


def begin(tree, adapters, change, phase, timeout_ms=60_000):
    """Sends the change, and waits until the worker has stopped at the phase."""
    (tree.faults / f"{HELD}@{phase}").write_text("stop")
    admin = tree.door("admin")
    if change == "rollback":
        admin.send("rollback_weights", call=1, timeout_ms=timeout_ms, adapter=NAME)
    else:
        source = {"kind": "disk", "path": str(adapters["part"])}
        spec = {"adapter": NAME, "partial": True, "source": source}
        admin.send("update_weights", call=1, timeout_ms=timeout_ms, update=spec)
    tree.wait_stopped(HELD)
    return admin


def said(admin):
    (replica,) = admin.call("status")["replicas"]
    (adapter,) = replica["adapters"]
    return adapter["adapter"]["digest"], adapter.get("previous", {}).get("digest")


@pytest.mark.parametrize(("change", "phase"), PLACES)
@pytest.mark.parametrize("name", PROCESSES)
def test_P2_a_killed_process_ends_the_tree_with_every_answer(start_loaded, adapters, change, phase, name):
    tree = start_loaded()
    door = tree.door()
    rids = start_long(door, adapter=NAME)
    admin = begin(tree, adapters, change, phase)
    assert_ends_with_every_answer(tree, name, door, rids, admin)
    for rid in rids:  # open requests have the version that they began with
        digests = {span["adapter"]["digest"] for span in door.outputs[rid].spans}
        assert digests == ({tree.digests["second"]} if door.outputs[rid].tokens else set()), digests


@pytest.mark.parametrize(("change", "phase"), PLACES)
def test_P2_after_a_restart_one_of_the_two_versions_serves(start_loaded, adapters, change, phase):
    tree = start_loaded("--restart")
    begin(tree, adapters, change, phase)
    _, door, admin = crash(tree, HELD)
    (replica,) = admin.call("status")["replicas"]
    digests = [each["adapter"]["digest"] for each in replica.get("adapters", [])]
    lost = [each["adapter"]["digest"] for each in replica.get("lost_adapters", [])]
    before, after = tree.digests["second"], tree.digests[RESULTS[change]]
    # A part that was committed is in no directory: it is lost, and named.
    ends = ([before], []), ([after], []) if change == "rollback" else ([], [after])
    assert (digests, lost) in (ends[:1] if phase.startswith("stage") else ends)
    finish = door.generate("Once upon a time", max_new_tokens=2, adapter=NAME).finish
    assert finish.get("code", "") == ("" if digests else "not_found"), finish


@pytest.mark.parametrize(("change", "phase"), PLACES)
def test_P4_a_worker_that_goes_on_completes_the_change(start_loaded, adapters, change, phase):
    tree = start_loaded()
    before = tokens_with(tree)
    admin = begin(tree, adapters, change, phase)
    tree.kill(HELD, signal.SIGCONT)
    kind, reply = admin.receive()
    assert kind == "update_reply" and reply["ok"], reply
    expected = tree.digests[RESULTS[change]]
    assert reply["digest"] == expected and said(admin) == (expected, tree.digests["second"])
    after = tokens_with(tree)
    assert after != before
    load(admin, adapters[RESULTS[change]])
    assert tokens_with(tree) == after


@pytest.mark.parametrize(("change", "phase"), [place for place in PLACES if place[1].startswith("stage")])
def test_P5_a_worker_that_stands_still_in_the_stage_drops_the_change(start_loaded, adapters, change, phase):
    """A rollback that fails can be tried again. A part that fails has given up the version before."""
    tree = start_loaded()
    before = tokens_with(tree)
    admin = begin(tree, adapters, change, phase, timeout_ms=4000)
    assert_drops_late_stage(tree, admin)
    retained = tree.digests["first"] if change == "rollback" else None
    assert said(admin) == (tree.digests["second"], retained) and tokens_with(tree) == before
    again = admin.call("rollback_weights", adapter=NAME)
    assert again["ok"] if retained else again["code"] == "failed_precondition", again
