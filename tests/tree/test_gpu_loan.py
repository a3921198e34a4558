"""--update-mode lend on the GPU in software: a version is staged in the KV cache's memory, as there is no room for
both."""

import sys

import pytest

from cuda_sender import Sender
from gpu_tree import BUILD, gpu, needs_gpu  # noqa: F401
from process_tree import ROOT, run, wait_until
from test_gpu_updates import FULL, greedy
from test_updates import BARD, DIGESTS, GREEDY, ended_after, joined, start, update

sys.path.insert(0, str(ROOT / "client" / "python"))

pytestmark = needs_gpu
MEMORY = 152 << 20  # too small for two copies of the weights and the KV at a share of 0.97


@pytest.fixture
def tree(gpu, start_tree):
    gpu(memory=MEMORY)
    return start_tree(*FULL, "lend", "--mem-fraction", 0.97)


def replica(admin):
    return admin.call("status")["replicas"][0]


def memory_of(admin, tag):
    return next(each for each in replica(admin)["memory"] if each["tag"] == tag)


def wait_until_kv_is_back(admin):
    wait_until(lambda: memory_of(admin, "kv_cache")["state"] == "resident", "the KV cache to be back")


def test_P1_P2_P3_P8_P10_a_version_staged_where_kv_lies_takes_effect_and_kv_comes_back(tree, reference):
    door, admin = tree.door(), tree.door("admin")
    worker = replica(admin)["workers"][0]
    assert worker["update_mode"] == "lend" and "a second copy" in worker["update_mode_why"], worker
    wait_until(lambda: memory_of(admin, "kv_cache")["resident_bytes"] > 0, "the memory to be measured")
    before = {tag: memory_of(admin, tag)["resident_bytes"] for tag in ("weights", "kv_cache")}
    rid = start(door, tokens=3, max_new_tokens=300)
    reply = update(admin, BARD, kv_policy="keep", label="bard")
    assert reply["ok"] and reply["digest"] == DIGESTS["bard"]["digest"], reply
    outcome = reply["replicas"][0]
    assert (outcome["num_kept"], outcome["num_recomputed"]) == (0, 1), outcome
    assert memory_of(admin, "kv_cache")["state"] == "resident", "it is back before the answer"
    assert reply["total_s"] >= reply["pause_s"] > 0, reply
    output = ended_after(door, rid, epoch=2)
    spans = joined(output.spans)
    assert [span["epoch"] for span in spans] == [1, 2], spans
    assert (spans[1]["kv_min_epoch"], spans[1]["kv_max_epoch"]) == (2, 2), "its KV was computed anew"
    assert greedy(door, reference, "bard")
    assert admin.call("weight_digests")["digest"] == DIGESTS["bard"]["digest"]
    wait_until(
        lambda: {tag: memory_of(admin, tag)["resident_bytes"] for tag in before} == before,
        "as much memory to be taken as before",
    )
    assert admin.call("rollback_weights")["code"] == "failed_precondition"


def test_P2_an_update_that_fails_gives_kv_back_and_the_old_version_serves(tree, reference):
    door, admin = tree.door(), tree.door("admin")
    rid = start(door, tokens=3, max_new_tokens=40)
    reply = update(admin, BARD, digest="0" * 32)
    assert reply["code"] == "data_loss", reply
    (output,) = door.finish([rid])
    assert output.finish["reason"] == "length" and [span["epoch"] for span in joined(output.spans)] == [1]
    wait_until_kv_is_back(admin)
    assert greedy(door, reference, "stories")
    assert update(admin, BARD)["ok"]
    assert greedy(door, reference, "bard")


def test_P2_P4_a_session_holds_the_loan_until_it_is_dropped(tree, reference):
    door, admin = tree.door(), tree.door("admin")
    assert admin.call("begin_update", update={"source": {"kind": "buckets"}})["session"] > 0
    assert memory_of(admin, "kv_cache")["resident_bytes"] == 0
    assert replica(admin)["state"] == "updating"
    refused = admin.call("resume_memory")
    assert refused["code"] == "failed_precondition" and "lent" in refused["message"], refused
    rid = start(door, tokens=0, max_new_tokens=4)
    admin.call("drop_stage")
    (output,) = door.finish([rid])
    assert output.finish["reason"] == "length"
    assert greedy(door, reference, "stories")


def test_P8_memory_that_somebody_takes_meanwhile_is_missed_by_name_and_resumed(tree, reference):
    door, admin = tree.door(), tree.door("admin")
    assert admin.call("begin_update", update={"source": {"kind": "buckets"}})["session"] > 0
    with Sender(BUILD, BARD) as other:
        assert other.ask("take")["bytes"] > 0
        admin.call("drop_stage")
        # Of the lent memory, only the part of the second copy is free now, so the KV cache cannot be restored.
        wait_until(lambda: replica(admin)["state"] == "released", "the KV cache to be missed")
        refused = door.generate("Once", max_new_tokens=1, **GREEDY)
        assert refused.finish["code"] == "failed_precondition", refused.finish
        assert "lent to an update" in refused.finish["message"], refused.finish
        assert admin.call("resume_memory")["code"] == "resource_exhausted"
    assert admin.call("resume_memory")["ok"]
    assert greedy(door, reference, "stories")


def test_P10_pushes_and_adopts(tree, reference):
    door, admin = tree.door(), tree.door("admin")
    for model, flags in (("bard", ()), ("stories", ("--adopt",)), ("bard", ())):
        done = run("push", model, "--run-dir", tree.run_dir, *flags)
        assert done.returncode == 0, done.stderr
        assert admin.call("weight_digests")["digest"] == DIGESTS[model]["digest"]
    assert greedy(door, reference, "bard")


def test_kv_that_is_larger_than_a_copy_is_needed(gpu, place):
    gpu(memory=60 << 20)
    done = run("serve", "--no-http", "--run-dir", place / "tree", *FULL, "lend")
    assert done.returncode != 0 and "--update-mode lend" in done.stderr, done.stderr
