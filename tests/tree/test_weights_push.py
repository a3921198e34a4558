"""launch/pitstop push: a checkpoint engine in one command."""

import json
import shutil
import signal
import subprocess
import time

import pytest

from process_tree import LAUNCHER, ROOT, environment, run, wait_until

BARD = ROOT / "launch/models/bard"
STORIES = ROOT / "launch/models/stories"
DIGESTS = json.loads((ROOT / "tests/data/golden/digests.json").read_text())["models"]


def push(tree, directory, *flags):
    return run("push", directory, "--run-dir", tree.run_dir, *flags)


def digest_of(admin):
    reply = admin.call("weight_digests")
    assert reply["ok"], reply
    return reply["digest"]


@pytest.mark.parametrize("tp", (1, 2, 4))
def test_P10_push_and_adopt_and_back(start_tree, tp):
    tree = start_tree("--tp", tp)
    with tree.door("admin") as admin, tree.door() as door:
        rid = door.start("Once upon a time", max_new_tokens=500, ignore_eos=True)
        done = push(tree, "bard", "--label", "bard", "--json", "--bucket-size", "1")
        assert done.returncode == 0, done.stderr
        report = json.loads(done.stdout)
        assert report["digest"] == DIGESTS["bard"]["digest"] == digest_of(admin), report
        assert report["num_workers"] == tp and report["num_buckets"] > 1
        assert report["reply"]["label"] == "bard"
        # An adopted shard is the pusher's memory, which outlives the pusher. The last push is copied again.
        for model, flags in (("stories", ["--adopt"]), ("bard", ["--adopt"]), ("stories", [])):
            done = push(tree, model, *flags)
            assert done.returncode == 0, done.stderr
            assert DIGESTS[model]["digest"] in done.stdout and "as declared" in done.stdout
            assert digest_of(admin) == DIGESTS[model]["digest"]
        reply = admin.call("rollback_weights")
        assert reply["digest"] == DIGESTS["bard"]["digest"] == digest_of(admin)
        # A direct update overwrites an adopted shard; a partial update adds to one.
        assert push(tree, "stories", "--adopt").returncode == 0
        disk = {"source": {"kind": "disk", "path": str(BARD)}}
        reply = admin.call("update_weights", update={**disk, "mode": "direct"})
        assert reply["ok"] and digest_of(admin) == DIGESTS["bard"]["digest"]
        (output,) = door.finish([rid])
        assert len(output.tokens) == 500


def test_P10_an_adopted_version_generates_as_the_model_does(start_tree, reference):
    tree = start_tree("--tp", 2, "--compute", "fp32")
    assert push(tree, "bard", "--adopt").returncode == 0
    expected = reference["bard"]["greedy"][0]
    with tree.door() as door:
        output = door.generate(
            expected["ids"],
            max_new_tokens=len(expected["continuation"]),
            temperature=0.0,
            ignore_eos=True,
        )
        assert output.tokens == expected["continuation"]


def test_P2_a_push_that_cannot_be_is_refused_by_name(start_tree, place):
    tree = start_tree()
    with tree.door("admin") as admin:
        done = push(tree, "/nowhere")
        assert done.returncode == 1 and "/nowhere" in done.stderr
        # A push of another model names the tensors that do not match.
        other = place / "other"
        shutil.copytree(ROOT / "tests/data/golden/llama_default", other)
        done = push(tree, other)
        assert done.returncode == 1 and "model." in done.stderr, done.stderr
        done = push(tree, other, "--adopt")
        assert done.returncode == 1, done.stderr
        assert run("push", "--run-dir", tree.run_dir).returncode == 2
        assert run("push", "bard", "--run-dir", tree.run_dir, "--bucket-size", "-1").returncode == 2
        assert digest_of(admin) == DIGESTS["stories"]["digest"]


def test_P2_a_pusher_that_is_killed_leaves_the_old_version(start_tree):
    tree = start_tree("--tp", 2)
    with tree.door("admin") as admin:
        for delay_s in (0.02, 0.05, 0.1, 0.2):
            pusher = subprocess.Popen(
                [LAUNCHER, "push", "bard", "--run-dir", tree.run_dir, "--bucket-size", "1"],
                env=environment(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            time.sleep(delay_s)
            pusher.send_signal(signal.SIGKILL)
            pusher.wait()

            digest = digest_of(admin)
            assert digest in (DIGESTS["stories"]["digest"], DIGESTS["bard"]["digest"])
        wait_until(lambda: push(tree, "bard").returncode == 0, "the next pusher to get through")
        assert digest_of(admin) == DIGESTS["bard"]["digest"]
