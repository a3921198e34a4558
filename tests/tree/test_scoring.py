"""Prompts scored while versions change: an answer's scores are the bits of an undisturbed scoring
under the version that it names, whatever the policy and the pause (P3).
"""

import json
import time

import pytest

from process_tree import ROOT
from wire import DEADLINE_S

STORIES = str(ROOT / "launch/models/stories")
BARD = str(ROOT / "launch/models/bard")
DIGESTS = json.loads((ROOT / "tests/data/golden/digests.json").read_text())["models"]
CHUNK = 16
TREE_FLAGS = ("--chunked-prefill-size", CHUNK)
PROMPT = [(31 * i + i * i // 7) % 2000 for i in range(900)]
POLICIES = ("keep", "recompute", "drain", "abort")
PAUSES = ("in_place", "retract", "wait", "abort")
# Under these pauses requests cannot end, so an update that waits for their ends is refused.
UNDER_PAUSE = [
    (pause, policy)
    for pause in PAUSES
    for policy in POLICIES
    if not (policy == "drain" and pause in ("in_place", "retract"))
]
NUM_AT_ONCE = 6


def update(admin, path, **spec):
    reply = admin.call("update_weights", update={"source": {"kind": "disk", "path": path}, **spec})
    assert reply["ok"], reply
    return reply["epoch"]


def scoring(max_new_tokens=0, start=0):
    return {
        "logprobs": {"enabled": True, "prompt_start": start, "top": 2, "ids": [5, 9]},
        "max_new_tokens": max_new_tokens,
        "temperature": 0.0,
        "ignore_eos": True,
        "text_output": False,
    }


def scores_of(output):
    return next(chunk["prompt"] for chunk in output.chunks if "prompt" in chunk)


@pytest.fixture(scope="module")
def quiet(shared_tree):
    """{digest: the whole prompt's scores under it}: one at a time, without an update."""
    scores = {}
    with shared_tree.door() as door, shared_tree.door("admin") as admin:
        for name, path in (("bard", BARD), ("stories", STORIES)):
            epoch = update(admin, path)
            output = door.generate(PROMPT, **scoring())
            assert [(span["epoch"], span["tokens"]) for span in output.spans] == [(epoch, 0)]
            scores[DIGESTS[name]["digest"]] = scores_of(output)
    assert len({tuple(each["logprobs"]) for each in scores.values()}) == 2
    return scores


def start_scorings(door):
    """Starts some scorings of each kind. They are prefilled one after another, so one of them is always half-way."""
    fields = [scoring(), scoring(3), scoring(0, start=450), scoring(40), scoring(), scoring(3, start=880)]
    return [door.start(PROMPT, kv_tolerance=("keep", "never")[i % 2], **fields[i]) for i in range(NUM_AT_ONCE)]


def check(quiet, outputs, may_abort=False):
    """Checks that each output's scores belong to its version. Returns the number of restarted scorings."""
    num_anew = 0
    for output in outputs:
        if may_abort and output.finish["reason"] == "abort" and not output.tokens:
            continue
        first = output.spans[0]
        assert first["kv_min_epoch"] == first["kv_max_epoch"] == first["epoch"], output.spans
        scores, want = scores_of(output), quiet[first["digest"]]
        begin = scores["start"] - 1
        for field, width in (("logprobs", 1), ("ranks", 1), ("top_ids", 2), ("top_logprobs", 2), ("ids_logprobs", 2)):
            assert scores[field] == want[field][begin * width :], field
        num_anew += output.counts["retractions"]
    return num_anew


@pytest.mark.parametrize("policy", POLICIES)
def test_P3_a_commit_amid_scorings_leaves_each_of_one_version(door, admin, quiet, policy):
    deadline, paths = time.monotonic() + DEADLINE_S, [BARD, STORIES]
    while True:
        spec = {"source": {"kind": "disk", "path": paths[0]}}
        assert admin.call("stage_weights", update=spec)["ok"]
        before = admin.call("status")["replicas"][0]["num_steps"]
        rids = start_scorings(door)
        while admin.call("status")["replicas"][0]["num_steps"] < before + 20:
            assert time.monotonic() < deadline
        assert admin.call("commit_weights", kv_policy=policy)["ok"]
        num_anew = check(quiet, door.finish(rids), may_abort=policy == "abort")
        if num_anew or policy in ("drain", "abort"):
            return
        assert time.monotonic() < deadline, "no commit lay between two chunks"
        paths.reverse()


@pytest.mark.parametrize("pause, policy", UNDER_PAUSE)
def test_P3_an_update_under_each_pause_leaves_each_scoring_of_one_version(door, admin, quiet, pause, policy):
    deadline, paths = time.monotonic() + DEADLINE_S, [BARD, STORIES]
    while True:
        rids = start_scorings(door)
        while not admin.call("status")["replicas"][0]["num_running"]:
            assert time.monotonic() < deadline
        part = admin.call("pause_generation", mode=pause)["parts"][0]
        update(admin, paths[0], kv_policy=policy)
        admin.call("continue_generation")
        num_anew = check(quiet, door.finish(rids), may_abort="abort" in (pause, policy))
        if pause != "in_place" or policy == "abort" or (part["num_frozen"] and num_anew):
            return
        assert time.monotonic() < deadline, "nothing was frozen between two chunks"
        paths.reverse()


def test_P3_a_rollback_amid_scorings_is_a_commit_as_well(door, admin, quiet):
    deadline = time.monotonic() + DEADLINE_S
    update(admin, BARD)
    while True:
        rids = start_scorings(door)
        while not admin.call("status")["replicas"][0]["num_running"]:
            assert time.monotonic() < deadline
        assert admin.call("rollback_weights", kv_policy="keep")["ok"]
        if check(quiet, door.finish(rids)):
            return
        assert time.monotonic() < deadline, "no rollback lay between two chunks"


def test_P9_no_older_prefix_goes_into_a_scoring_whatever_it_tolerates(door, admin, quiet):
    admin.call("flush_cache", wait_idle=True)
    tolerant = {"kv_tolerance": "keep"}
    door.generate(PROMPT, max_new_tokens=1)
    update(admin, BARD)
    plain = door.generate(PROMPT, max_new_tokens=1, **tolerant)
    assert plain.counts["cached_tokens"] > 0 and plain.spans[0]["kv_min_epoch"] < plain.spans[0]["epoch"]
    empty = door.generate(PROMPT, max_new_tokens=0, **tolerant)
    assert [span["tokens"] for span in empty.spans] == [0]
    assert empty.spans[0]["kv_min_epoch"] == plain.spans[0]["kv_min_epoch"]
    for max_new_tokens in (0, 4):
        output = door.generate(PROMPT, **tolerant, **scoring(max_new_tokens, start=800))
        check(quiet, [output])
        assert output.counts["cached_tokens"] == (0 if max_new_tokens == 0 else 784), output.counts
