"""--restart: the tree comes back with exactly the last committed weights and their label; or without weights, and names
the version that it lost."""

import json
import os
import pathlib
import shutil
import signal
import urllib.error
import urllib.request

import pytest

from pairs import pair  # noqa: F401
from process_tree import ROOT, ProcessTree, run, wait_until
from test_bad_models import header_of, write_safetensors

GREEDY = {"temperature": 0.0, "ignore_eos": True}
STORIES = str(ROOT / "launch/models/stories")
BARD = str(ROOT / "launch/models/bard")
DIGESTS = json.loads((ROOT / "tests/data/golden/digests.json").read_text())["models"]


def update(admin, path, **spec):
    reply = admin.call("update_weights", update={"source": {"kind": "disk", "path": path}, **spec})
    assert reply["ok"], reply["message"]
    return reply


def crash(tree, name="scheduler_proc[0]"):
    """Kills a process. Returns when the tree is back: its ready line, and its doors."""
    tree.kill(name)
    line = tree.launcher.stdout.readline()
    assert line, tree.log()
    tree.processes = json.loads((tree.run_dir / "tree.json").read_text())["processes"]
    return line, tree.door(), tree.door("admin")


def serving(admin):
    """The version in status, after its digest was checked."""
    status = admin.call("status")
    (replica,) = status["replicas"]
    assert admin.call("weight_digests")["digest"] == replica["digest"]
    return {
        "path": status.get("weights_path", ""),
        **{name: replica.get(name, "") for name in ("epoch", "label", "digest")},
    }


def test_a_restarted_tree_serves_the_last_committed_weights_under_their_name(start_tree, pair):
    tree = start_tree("--model", pair.old, "--restart")
    door, admin = tree.door(), tree.door("admin")
    assert update(admin, pair.new, label="bard-1", epoch=7)["epoch"] == 7
    assert admin.call("set_weight_label", label="bard, first folio")["ok"]
    before = serving(admin)
    assert before == {"path": pair.new, "label": "bard, first folio", "epoch": 7, "digest": pair.new_digest}
    expected = door.generate("ROMEO:", max_new_tokens=20, **GREEDY).tokens
    _, door, admin = crash(tree)
    assert serving(admin) == before
    output = door.generate("ROMEO:", max_new_tokens=20, **GREEDY)
    assert output.tokens == expected
    assert {(span["epoch"], span["label"]) for span in output.spans} == {(7, "bard, first folio")}
    stale = admin.call("update_weights", update={"source": {"kind": "disk", "path": pair.old}, "epoch": 7})
    assert stale["code"] == "failed_precondition", "a trainer from the past stays out"
    assert update(admin, pair.old)["epoch"] == 8
    tree.stop()


def test_a_rollback_to_a_version_that_a_restart_loaded_survives_the_next_restart(start_tree):
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
    assert "has lost its version" in line and DIGESTS["bard"]["digest"] in line
    status = admin.call("status")
    assert "weights_path" not in status, "nowhere"
    assert status["lost"]["why"] == "no complete copy of it is on disk" and status["lost"]["epoch"] == 2
    refused = door.generate("ROMEO:", max_new_tokens=1).finish
    assert refused["code"] == "failed_precondition" and "no weights" in refused["message"]
    refused = admin.call("rollback_weights")
    assert (refused["code"], refused["state"]) == ("failed_precondition", "awaiting_weights")
    assert update(admin, BARD)["epoch"] == 3, "epochs go on where the tree was"
    assert admin.call("weight_digests")["digest"] == DIGESTS["bard"]["digest"]
    assert door.generate("ROMEO:", max_new_tokens=5, **GREEDY).finish["reason"] == "length"
    assert "lost" not in admin.call("status")
    tree.stop()
    assert "no complete copy of it is on disk" in tree.log()


# ---- what the tree had no longer exists ----


@pytest.fixture
def checkpoint(place):
    """A directory of the test's own, to be committed and then changed."""
    path = place / "step-7"
    shutil.copytree(BARD, path)
    return path


def overwrite(checkpoint):
    shutil.copy(f"{STORIES}/model.safetensors", checkpoint / "model.safetensors")


def remove(checkpoint):
    shutil.rmtree(checkpoint)


def truncate(checkpoint):
    with open(checkpoint / "model.safetensors", "r+b") as file:
        file.truncate(file.seek(0, os.SEEK_END) - 2)


def reshape(checkpoint):
    header, body = header_of(checkpoint / "model.safetensors")
    norm = header["model.norm.weight"]
    norm["shape"] = [norm["shape"][0] // 2, 2]
    write_safetensors(checkpoint / "model.safetensors", header, body)


SAID = {remove: "step-7", truncate: "model.safetensors", reshape: "model.norm.weight"}


def check_lost(tree, line, admin, **version):
    """The tree is up and serves nothing, and every client's status says which version it lost."""
    status = admin.call("status")
    lost = status["lost"]
    assert {name: lost.get(name, "") for name in version} == version
    assert f"(epoch {version['epoch']}, digest {version['digest']})" in line, line
    assert "waits for a complete update" in line
    (log,) = [each for each in tree.log().splitlines() if "cannot be brought back" in each]
    assert version["label"] in log and version["digest"] in log and lost["why"] in log
    said = run("status", "--run-dir", tree.run_dir).stdout
    assert "lost in a restart" in said and version["digest"] in said
    assert "weights_path" not in status and not status["is_ready"]
    for replica in status["replicas"]:
        assert replica["state"] == "awaiting_weights" and "label" not in replica
    return lost["why"]


@pytest.mark.parametrize("flags", ((), ("--tp", 2), ("--dp", 2)), ids=("one", "tp2", "dp2"))
def test_P2_a_directory_that_was_overwritten_is_no_committed_version(start_tree, checkpoint, flags):
    tree = start_tree("--restart", *flags)
    update(tree.door("admin"), str(checkpoint), label="step-7")
    overwrite(checkpoint)
    line, door, admin = crash(tree, "tp_worker[0.0]")
    bard, stories = DIGESTS["bard"]["digest"], DIGESTS["stories"]["digest"]
    why = check_lost(tree, line, admin, epoch=2, label="step-7", digest=bard, path=str(checkpoint))
    assert stories in why and bard in why
    refused = door.generate("Once", max_new_tokens=1).finish
    assert refused["code"] == "failed_precondition" and "no weights" in refused["message"]
    spec = {"source": {"kind": "disk", "path": BARD}}
    stale = admin.call("update_weights", update={**spec, "epoch": 2})
    assert stale["code"] == "failed_precondition" and "not newer" in stale["message"]
    partial = admin.call("update_weights", update={**spec, "partial": True, "epoch": 3})
    assert partial["code"] == "failed_precondition" and "no weights" in partial["message"]
    reply = admin.call("update_weights", update={**spec, "epoch": 3})
    assert reply["ok"] and (reply["epoch"], reply["digest"]) == (3, bard)
    assert reply.get("label", "") == "", "the lost version's label is not the next one's"
    status = admin.call("status")
    assert "lost" not in status and status["is_ready"] and status["weights_path"] == BARD
    assert len(door.generate("ROMEO:", max_new_tokens=5, **GREEDY).tokens) == 5


@pytest.mark.parametrize("change", SAID, ids=lambda change: change.__name__)
def test_P2_a_directory_that_cannot_be_loaded_leaves_a_tree_that_waits(start_tree, checkpoint, change):
    tree = start_tree("--restart")
    update(tree.door("admin"), str(checkpoint), label="step-7", epoch=9)
    change(checkpoint)
    line, door, admin = crash(tree)
    digest = DIGESTS["bard"]["digest"]
    why = check_lost(tree, line, admin, epoch=9, label="step-7", digest=digest, path=str(checkpoint))
    assert SAID[change] in why, why
    assert update(admin, BARD)["epoch"] == 10
    assert len(door.generate("ROMEO:", max_new_tokens=5, **GREEDY).tokens) == 5


def test_P2_the_model_s_own_directory_is_held_to_its_digest_too(start_tree, checkpoint):
    tree = start_tree("--restart", "--model", checkpoint)
    assert tree.door("admin").call("set_weight_label", label="base")["ok"]
    overwrite(checkpoint)
    line, _, admin = crash(tree)
    check_lost(tree, line, admin, epoch=1, label="base", digest=DIGESTS["bard"]["digest"], path=str(checkpoint))
    assert update(admin, STORIES)["epoch"] == 2


def test_a_lost_version_is_brought_back_by_the_next_restart_if_it_can_be(start_tree, checkpoint):
    tree = start_tree("--restart")
    update(tree.door("admin"), str(checkpoint), label="step-7")
    before = serving(tree.door("admin"))
    away = checkpoint.rename(checkpoint.with_name("away"))
    line, _, _ = crash(tree)
    assert "has lost its version" in line
    away.rename(checkpoint)
    line, _, admin = crash(tree)
    assert "is ready" in line, line
    assert serving(admin) == before and "lost" not in admin.call("status")


def test_P2_after_a_rollback_the_version_it_left_does_not_come_back(start_tree, checkpoint):
    tree = start_tree("--restart")
    admin = tree.door("admin")
    update(admin, str(checkpoint), label="step-7")
    update(admin, STORIES, label="step-8")
    assert admin.call("rollback_weights")["ok"]
    before = serving(admin)
    assert (before["label"], before["epoch"], before["path"]) == ("step-7", 4, str(checkpoint))
    _, _, admin = crash(tree)
    assert serving(admin) == before
    overwrite(checkpoint)
    line, _, admin = crash(tree)
    digest = DIGESTS["bard"]["digest"]
    check_lost(tree, line, admin, epoch=4, label="step-7", digest=digest, path=str(checkpoint))


def test_a_restart_brings_back_a_direct_update_and_names_a_lost_partial_one(start_tree, checkpoint):
    tree = start_tree("--restart")
    update(tree.door("admin"), str(checkpoint), label="direct", mode="direct")
    before = serving(tree.door("admin"))
    _, _, admin = crash(tree)
    assert serving(admin) == before
    part = checkpoint.with_name("part")
    part.mkdir()
    header, body = header_of(pathlib.Path(STORIES) / "model.safetensors")
    begin, end = header["model.norm.weight"]["data_offsets"]
    norm = {**header["model.norm.weight"], "data_offsets": [0, end - begin]}
    write_safetensors(part / "model.safetensors", {"model.norm.weight": norm}, body[begin:end])
    reply = update(admin, str(part), label="mixed", partial=True)
    line, _, admin = crash(tree)
    why = check_lost(tree, line, admin, epoch=3, label="mixed", digest=reply["digest"], path="")
    assert "no complete copy of it is on disk" in why


def test_P2_a_version_whose_commit_was_ordered_is_the_one_that_comes_back(place, monkeypatch):
    """Clients may already have tokens of that version, though none was told of its commit."""
    monkeypatch.setenv("PITSTOP_FAULT_POINT", "tp_worker[1.0]/commit_begin")
    tree = ProcessTree(place / "tree", "--restart", "--dp", 2)
    try:
        admin = tree.door("admin")
        spec = {"source": {"kind": "disk", "path": BARD}, "label": "bard"}
        admin.send("update_weights", call=1, timeout_ms=60_000, update=spec)
        tree.wait_stopped("tp_worker[1.0]")
        door = tree.door()
        wait_until(  # until replica 0 has committed
            lambda: {span["epoch"] for span in door.generate("A", max_new_tokens=1, replica=0).spans} == {2},
            "tokens of the new version",
        )
        line, _, admin = crash(tree, "tp_worker[1.0]")
        status = admin.call("status")
        assert {(each["epoch"], each["label"]) for each in status["replicas"]} == {(2, "bard")}
        assert status["weights_path"] == BARD
        assert admin.call("weight_digests")["digest"] == DIGESTS["bard"]["digest"]
        tree.stop()
    finally:
        tree.abandon()


LABELS = ("step 7", " two  blanks ", "größer als 7 ✓", "--label=" + "x" * 248)


def test_a_label_survives_whatever_it_is_and_whenever_it_was_given(start_tree):
    tree = start_tree("--restart")
    admin = tree.door("admin")
    for i, label in enumerate(LABELS):
        if i == 1:
            update(admin, BARD, label="other")
        if i == 2:
            update(admin, STORIES, label="another")
            assert admin.call("rollback_weights")["ok"]
        assert admin.call("set_weight_label", label=label)["ok"]
        before = serving(admin)
        assert before["label"] == label
        _, _, admin = crash(tree)
        assert serving(admin) == before
    pushed = run("push", BARD, "--run-dir", tree.run_dir, "--label", "pushed")
    assert pushed.returncode == 0, pushed.stderr
    assert admin.call("set_weight_label", label="pushed, then named")["ok"]
    _, _, admin = crash(tree)
    assert admin.call("status")["lost"]["label"] == "pushed, then named"


def test_health_says_which_version_is_lost_until_another_has_come(start_tree, checkpoint):
    tree = start_tree("--restart", "--port", 0)
    update(tree.door("admin"), str(checkpoint), label="step-7")
    remove(checkpoint)
    line, _, admin = crash(tree)
    url = json.loads((tree.run_dir / "tree.json").read_text())["url"]
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"{url}/health", timeout=30)
    body = refused.value.read().decode()
    assert refused.value.code == 503 and "step-7" in body and DIGESTS["bard"]["digest"] in body
    assert str(checkpoint) not in body, "the route is open"
    with urllib.request.urlopen(f"{url}/status/events", timeout=30) as events:
        event = json.loads(events.readline().removeprefix(b"data: "))
    assert event["lost"] == {"epoch": 2, "label": "step-7", "digest": DIGESTS["bard"]["digest"]}
    update(admin, BARD)
    assert urllib.request.urlopen(f"{url}/health", timeout=30).status == 200


def test_a_signal_while_a_dead_tree_is_taken_down_ends_its_launcher(start_tree):
    """The launcher must still know of the signal when it would start the next tree."""
    tree = start_tree("--restart")
    tree.kill("detokenizer_proc", signal.SIGSTOP)  # so that taking it down takes a while
    tree.wait_stopped("detokenizer_proc")
    tree.kill("tp_worker[0.0]")
    wait_until(lambda: "tp_worker[0.0] died" in tree.log(), "the launcher to see it")
    tree.launcher.send_signal(signal.SIGTERM)
    assert tree.wait_exit() == 0
    tree.check_gone()


def test_a_restart_that_does_not_start_is_tried_again(start_tree, place, monkeypatch):
    programs = place / "build" / "bin"
    programs.mkdir(parents=True)
    for path in (pathlib.Path(os.environ.get("PITSTOP_BUILD", ROOT / "build/cpu")) / "bin").iterdir():
        (programs / path.name).symlink_to(path.absolute())
    monkeypatch.setenv("PITSTOP_BUILD", str(place / "build"))
    tree = start_tree("--restart")
    program = programs / "pitstop_scheduler_proc"
    program.rename(place / "away")
    tree.kill("scheduler_proc[0]")
    wait_until(lambda: "restart 2 of at most 5" in tree.log(), "a second try")
    (place / "away").rename(program)
    line = tree.launcher.stdout.readline()
    assert "is ready" in line, tree.log()
    tree.processes = json.loads((tree.run_dir / "tree.json").read_text())["processes"]
    assert serving(tree.door("admin"))["digest"] == DIGESTS["stories"]["digest"]


# ---- the files next to the weights: used as they were at the start ----


def edit_config(model):
    config = json.loads((model / "config.json").read_text())
    config |= {"rope_theta": 3.0, "rms_norm_eps": 0.01}
    (model / "config.json").write_text(json.dumps(config))


@pytest.fixture
def model(place):
    path = place / "model"
    shutil.copytree(STORIES, path)
    return path


def test_P2_a_restart_computes_as_before_where_the_model_s_config_changed(start_tree, model):
    tree = start_tree("--restart", "--model", model)
    before = serving(tree.door("admin"))
    expected = tree.door().generate("Once", max_new_tokens=20, **GREEDY).tokens
    edit_config(model)
    line, door, admin = crash(tree)
    assert "is ready" in line and "config.json" in tree.log()
    assert serving(admin) == before
    assert door.generate("Once", max_new_tokens=20, **GREEDY).tokens == expected
    (model / "tokenizer.json").unlink()
    _, door, _ = crash(tree)
    assert door.generate("Once", max_new_tokens=20, **GREEDY).tokens == expected
    tree.stop()


def test_P2_where_the_model_s_directory_is_gone_the_tree_awaits_weights(start_tree, model):
    tree = start_tree("--restart", "--model", model)
    version = serving(tree.door("admin"))
    shutil.rmtree(model)
    line, door, admin = crash(tree)
    check_lost(tree, line, admin, epoch=1, digest=version["digest"], label="")
    update(admin, BARD)
    assert len(door.generate("Once", max_new_tokens=5, **GREEDY).tokens) == 5
    tree.stop()


def test_P2_a_kept_version_is_served_where_the_model_s_directory_is_gone(start_tree, model, place):
    tree = start_tree("--restart", "--model", model, "--keep-committed", place / "kept")
    admin = tree.door("admin")
    update(admin, BARD, label="bard-1")
    wait_until(lambda: admin.call("status")["keep"]["state"] == "kept", "it to be kept")
    expected = tree.door().generate("Once", max_new_tokens=20, **GREEDY).tokens
    shutil.rmtree(model)
    line, door, admin = crash(tree)
    assert "is ready" in line
    assert serving(admin)["label"] == "bard-1"
    assert door.generate("Once", max_new_tokens=20, **GREEDY).tokens == expected
    tree.stop()
