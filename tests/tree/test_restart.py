"""--restart: the tree comes back with the weights that were committed last, and what they are called."""

import json
import shutil

from process_tree import ROOT, run, wait_until

GREEDY = {"temperature": 0.0, "ignore_eos": True}
STORIES = str(ROOT / "launch/models/stories")
BARD = str(ROOT / "launch/models/bard")
DIGESTS = json.loads((ROOT / "tests/data/golden/digests.json").read_text())["models"]


def update(admin, path, **spec):
    reply = admin.call("update_weights", update={"source": {"kind": "disk", "path": path}, **spec})
    assert reply["ok"], reply["message"]
    return reply


def crash(tree):
    """Returns once the tree is back: the line that says so, and its doors."""
    tree.kill("scheduler_proc[0]")
    line = tree.launcher.stdout.readline()
    assert line, tree.log()
    tree.processes = json.loads((tree.run_dir / "tree.json").read_text())["processes"]
    return line, tree.door(), tree.door("admin")


def serving(admin):
    """What status says of the version, after its digest was proven."""
    status = admin.call("status")
    (replica,) = status["replicas"]
    assert admin.call("weight_digests")["digest"] == replica["digest"]
    return {
        "path": status.get("weights_path", ""),
        **{name: replica.get(name, "") for name in ("epoch", "label", "digest")},
    }


def test_a_restarted_tree_serves_the_last_committed_weights_under_their_name(start_tree):
    tree = start_tree("--restart")
    door, admin = tree.door(), tree.door("admin")
    assert update(admin, BARD, label="bard-1", epoch=7)["epoch"] == 7
    assert admin.call("set_weight_label", label="bard, first folio")["ok"]
    before = serving(admin)
    assert before == {
        "path": BARD, "label": "bard, first folio", "epoch": 7, "digest": DIGESTS["bard"]["digest"]
    }
    expected = door.generate("ROMEO:", max_new_tokens=20, **GREEDY).tokens
    _, door, admin = crash(tree)
    assert serving(admin) == before
    output = door.generate("ROMEO:", max_new_tokens=20, **GREEDY)
    assert output.tokens == expected
    assert {(span["epoch"], span["label"]) for span in output.spans} == {(7, "bard, first folio")}
    stale = admin.call(
        "update_weights", update={"source": {"kind": "disk", "path": STORIES}, "epoch": 7}
    )
    assert stale["code"] == "failed_precondition", "a trainer from the past stays out"
    assert update(admin, STORIES)["epoch"] == 8
    tree.stop()


def test_a_rollback_to_what_a_restart_brought_survives_the_next_one(start_tree):
    tree = start_tree("--restart")
    update(tree.door("admin"), BARD, label="bard-1")
    _, _, admin = crash(tree)
    update(admin, STORIES, label="stories-2")
    assert admin.call("rollback_weights")["ok"]
    before = serving(admin)
    assert (before["path"], before["label"], before["epoch"]) == (BARD, "bard-1", 4)
    _, _, admin = crash(tree)
    assert serving(admin) == before
    tree.stop()


def test_a_rollback_to_the_model_s_own_weights_is_kept_too(start_tree):
    tree = start_tree("--restart")
    admin = tree.door("admin")
    update(admin, BARD, label="bard-1")
    assert admin.call("rollback_weights")["ok"]
    before = serving(admin)
    assert (before["path"], before["label"], before["epoch"]) == (STORIES, "", 3)
    _, _, admin = crash(tree)
    assert serving(admin) == before
    tree.stop()


def test_P2_a_restarted_tree_serves_no_older_weights_in_place_of_pushed_ones(start_tree):
    tree = start_tree("--restart")
    pushed = run("push", BARD, "--run-dir", tree.run_dir)
    assert pushed.returncode == 0, pushed.stderr
    line, door, admin = crash(tree)
    assert "waits for its first weights" in line
    assert "weights_path" not in admin.call("status"), "nowhere"
    refused = door.generate("ROMEO:", max_new_tokens=1).finish
    assert refused["code"] == "failed_precondition" and "no weights" in refused["message"]
    refused = admin.call("rollback_weights")
    assert (refused["code"], refused["state"]) == ("failed_precondition", "awaiting_weights")
    assert update(admin, BARD)["epoch"] == 3, "epochs go on where the tree was"
    assert admin.call("weight_digests")["digest"] == DIGESTS["bard"]["digest"]
    assert door.generate("ROMEO:", max_new_tokens=5, **GREEDY).finish["reason"] == "length"
    tree.stop()
    assert "came from no directory" in tree.log()


def test_a_restart_that_does_not_start_is_tried_again_and_then_given_up(start_tree, place):
    model = place / "model"
    shutil.copytree(STORIES, model)
    tree = start_tree("--restart", "--model", model)
    (model / "config.json").rename(model / "config.json.away")
    tree.kill("scheduler_proc[0]")
    wait_until(lambda: "restart 2 of at most 5" in tree.log(), "a second try")
    (model / "config.json.away").rename(model / "config.json")
    line = tree.launcher.stdout.readline()
    assert "is ready" in line, tree.log()
    tree.processes = json.loads((tree.run_dir / "tree.json").read_text())["processes"]
    assert serving(tree.door("admin"))["digest"] == DIGESTS["stories"]["digest"]
