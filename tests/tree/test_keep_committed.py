"""--keep-committed: committed versions are written to the disk after their commit, so that a
restart brings them back whatever their source.
"""

import errno
import os
import pathlib
import re
import shutil
import struct

import pytest

from pairs import pair  # noqa: F401
from process_tree import ROOT, ProcessTree, run, wait_until
from test_bad_models import header_of, write_safetensors
from test_restart import BARD, DIGESTS, GREEDY, STORIES, crash, overwrite, serving, update

BARD_DIGEST = DIGESTS["bard"]["digest"]
STORIES_DIGEST = DIGESTS["stories"]["digest"]
WHOLE = re.compile(r"committed-\d{8}-[0-9a-f]{32}")


def keep_of(admin):
    return admin.call("status")["keep"]


def wait_kept(admin, epoch):
    """Waits until that version is whole on the disk; returns its directory."""
    wait_until(
        lambda: (keep_of(admin)["epoch"], keep_of(admin)["state"]) == (epoch, "kept"),
        f"epoch {epoch} to be kept; {keep_of(admin)}",
    )
    return pathlib.Path(keep_of(admin)["path"])


def listed(kept):
    return sorted(path.name for path in kept.iterdir() if path.name != ".lock")


def tensors_of(directory):
    """name -> (dtype, shape, bytes), by the format's own description."""
    header, body = header_of(directory / "model.safetensors")
    header.pop("__metadata__", None)
    return {name: (each["dtype"], each["shape"], body[slice(*each["data_offsets"])]) for name, each in header.items()}


def perturbed(path, number):
    """A copy of the model in which one value differs."""
    shutil.copytree(STORIES, path)
    header, body = header_of(path / "model.safetensors")
    begin, _ = header["model.norm.weight"]["data_offsets"]
    body = body[:begin] + struct.pack("<H", 0x3F80 + number) + body[begin + 2 :]
    write_safetensors(path / "model.safetensors", header, body)
    return path


def push(tree, path, label):
    pushed = run("push", path, "--run-dir", tree.run_dir, "--label", label)
    assert pushed.returncode == 0, pushed.stderr


@pytest.mark.parametrize("flags", ((), ("--tp", 2), ("--dp", 2)), ids=("one", "tp2", "dp2"))
def test_P2_pushed_weights_come_back_from_where_they_were_kept(start_tree, place, flags, pair):
    kept = place / "kept"
    tree = start_tree("--model", pair.old, "--restart", "--keep-committed", kept, *flags)
    admin = tree.door("admin")
    assert keep_of(admin)["state"] == "idle"
    push(tree, pair.new, "pushed")
    directory = wait_kept(admin, 2)
    assert admin.call("set_weight_label", label="pushed, then named")["ok"]
    expected = tree.door().generate("ROMEO:", max_new_tokens=20, **GREEDY).tokens
    line, door, admin = crash(tree)
    assert "is ready" in line, line + tree.log()
    status = admin.call("status")
    assert status["weights_path"] == str(directory) and "lost" not in status
    assert {(each["epoch"], each["label"]) for each in status["replicas"]} == {(2, "pushed, then named")}
    assert admin.call("weight_digests")["digest"] == pair.new_digest
    assert door.generate("ROMEO:", max_new_tokens=20, **GREEDY).tokens == expected
    assert keep_of(admin)["state"] == "kept", "the directory has it"
    assert update(admin, pair.old)["epoch"] == 3


@pytest.mark.parametrize("flags", ((), ("--tp", 2)), ids=("one", "tp2"))
def test_a_kept_version_is_a_checkpoint_like_the_one_it_came_from(start_tree, place, flags):
    tree = start_tree("--keep-committed", place / "kept", *flags)
    admin = tree.door("admin")
    push(tree, BARD, "step 7 ✓")
    directory = wait_kept(admin, 2)
    assert tensors_of(directory) == tensors_of(pathlib.Path(BARD))
    header, _ = header_of(directory / "model.safetensors")
    assert header["__metadata__"] == {
        "format": "pt",
        "pitstop_epoch": "2",
        "pitstop_label": "step 7 ✓",
        "pitstop_digest": BARD_DIGEST,
    }
    (size,) = struct.unpack("<Q", (directory / "model.safetensors").read_bytes()[:8])
    assert size % 8 == 0, "tensors are aligned"
    for name in ("config.json", "tokenizer.json"):  # the model's own files: the push brought only tensors
        assert (directory / name).read_bytes() == (pathlib.Path(STORIES) / name).read_bytes()
    other = start_tree("--model", directory)
    assert serving(other.door("admin"))["digest"] == BARD_DIGEST
    other.stop()
    # The tree that wrote the directory accepts it as an update's source, too.
    update(admin, STORIES)
    assert update(admin, str(directory))["digest"] == BARD_DIGEST


def test_P2_experts_of_all_groups_of_ranks_are_kept(start_tree, place):
    tree = start_tree("--model", "stories-moe", "--tp", 2, "--ep", 2, "--restart", "--keep-committed", place / "kept")
    admin = tree.door("admin")
    other = ROOT / "launch/models/bard-moe"
    digest = update(admin, str(other))["digest"]
    directory = wait_kept(admin, 2)
    assert tensors_of(directory) == tensors_of(other)
    line, _, admin = crash(tree)
    assert "is ready" in line, line + tree.log()
    assert admin.call("weight_digests")["digest"] == digest and admin.call("status")["weights_path"] == str(directory)


def test_two_versions_are_on_the_disk_at_most_and_a_rollback_writes_nothing(start_tree, place):
    kept = place / "kept"
    tree = start_tree("--restart", "--keep-committed", kept)
    admin = tree.door("admin")
    update(admin, BARD, label="one")
    bard = wait_kept(admin, 2)
    update(admin, STORIES, label="two")
    stories = wait_kept(admin, 3)
    assert listed(kept) == [bard.name, stories.name]
    inode = (bard / "model.safetensors").stat().st_ino
    assert admin.call("rollback_weights")["ok"]
    again = wait_kept(admin, 4)
    assert again.name > stories.name and (again / "model.safetensors").stat().st_ino == inode
    assert listed(kept) == [stories.name, again.name]
    third = perturbed(place / "third", 1)
    update(admin, str(third))
    newest = wait_kept(admin, 5)
    assert listed(kept) == [again.name, newest.name]
    overwrite(third)
    line, _, admin = crash(tree)
    assert "is ready" in line and serving(admin)["epoch"] == 5


def test_a_directory_that_was_overwritten_does_not_matter_where_versions_are_kept(start_tree, place):
    checkpoint = place / "step-7"
    shutil.copytree(BARD, checkpoint)
    tree = start_tree("--restart", "--keep-committed", place / "kept")
    admin = tree.door("admin")
    update(admin, str(checkpoint), label="step-7")
    kept = wait_kept(admin, 2)
    overwrite(checkpoint)
    line, _, admin = crash(tree)
    assert "is ready" in line
    assert serving(admin) == {"path": str(kept), "epoch": 2, "label": "step-7", "digest": BARD_DIGEST}
    # The kept files are damaged, too: no copy of the version is left.
    with open(kept / "model.safetensors", "r+b") as file:
        file.seek(-2, os.SEEK_END)
        file.write(b"\x01\x02")
    line, _, admin = crash(tree)
    assert "has lost its version 'step-7'" in line
    assert admin.call("status")["lost"]["digest"] == BARD_DIGEST
    update(admin, BARD)
    assert tensors_of(wait_kept(admin, 3)) == tensors_of(pathlib.Path(BARD)), "written anew"


def start_held(place, monkeypatch, point, *flags):
    """A tree whose first worker stops at the point once, and not again after a restart."""
    faults = place / "faults"
    faults.mkdir()
    (faults / f"tp_worker[0.0]@{point}").write_text("stop")
    monkeypatch.setenv("PITSTOP_FAULT_DIR", str(faults))
    return ProcessTree(place / "tree", "--restart", "--keep-committed", place / "kept", *flags)


@pytest.mark.parametrize("point", ("keep_begun", "keep_half", "keep_seal"))
def test_P2_a_crash_in_the_middle_of_writing_leaves_the_former_version_whole(place, monkeypatch, point):
    kept = place / "kept"
    first = ProcessTree(place / "first", "--keep-committed", kept)
    update(first.door("admin"), STORIES, label="former")
    former = wait_kept(first.door("admin"), 2)
    before = tensors_of(former)
    first.stop()
    tree = start_held(place, monkeypatch, point)
    try:
        admin = tree.door("admin")
        push(tree, BARD, "lost")
        tree.wait_stopped("tp_worker[0.0]")
        assert tensors_of(former) == before
        line, door, admin = crash(tree, "tp_worker[0.0]")
        assert "has lost its version 'lost' (epoch 2" in line
        status = admin.call("status")
        assert str(kept) in status["lost"]["why"] and "not written" in status["lost"]["why"]
        assert former.name in listed(kept) and tensors_of(former) == before
        assert [name for name in listed(kept) if WHOLE.fullmatch(name)] == [former.name]
        assert update(admin, BARD)["epoch"] == 3
        assert len(door.generate("ROMEO:", max_new_tokens=5, **GREEDY).tokens) == 5
        tree.stop()
    finally:
        tree.abandon()


def test_the_newest_version_wins_and_generation_goes_on_meanwhile(place, monkeypatch):
    tree = start_held(place, monkeypatch, "keep_half", "--tp", 2)
    try:
        admin = tree.door("admin")
        update(admin, BARD, label="first")
        tree.wait_stopped("tp_worker[0.0]")
        tree.kill("tp_worker[0.0]", 18)  # SIGCONT: the worker continues to write
        update(admin, STORIES, label="second")
        update(admin, BARD, label="third")
        assert len(tree.door().generate("ROMEO:", max_new_tokens=20, **GREEDY).tokens) == 20
        kept = wait_kept(admin, 4)
        assert tensors_of(kept) == tensors_of(pathlib.Path(BARD))
        assert len(listed(place / "kept")) <= 2
        tree.stop()
    finally:
        tree.abandon()


@pytest.mark.parametrize("mode", ("staged", "direct"))
def test_memory_that_is_needed_is_not_waited_for(start_tree, place, mode):
    """A release, and an update over the live copy, while the previous version is being written."""
    tree = start_tree("--keep-committed", place / "kept", "--tp", 2)
    admin = tree.door("admin")
    for epoch in range(2, 8):
        update(admin, (BARD, STORIES)[epoch % 2], mode=mode)
        if epoch % 3 == 0:
            assert admin.call("release_memory", tags=["weights"])["ok"]
            assert admin.call("resume_memory", tags=["weights"])["ok"]
    if keep_of(admin)["state"] == "failed":
        assert "memory" in keep_of(admin)["message"]
    assert update(admin, BARD, mode=mode)["epoch"] == 8
    assert tensors_of(wait_kept(admin, 8)) == tensors_of(pathlib.Path(BARD))
    assert len(tree.door().generate("ROMEO:", max_new_tokens=20, **GREEDY).tokens) == 20


def test_a_directory_that_cannot_be_written_is_told_and_hurts_nobody(start_tree, place):
    kept = place / "kept"
    tree = start_tree("--restart", "--keep-committed", kept)
    admin = tree.door("admin")
    (kept / ".lock").unlink()
    kept.rmdir()
    kept.write_text("a file")
    push(tree, BARD, "step-7")
    wait_until(lambda: keep_of(admin)["state"] == "failed", "the failure to be told")
    keep = keep_of(admin)
    assert str(kept) in keep["message"] and os.strerror(errno.ENOTDIR) in keep["message"]
    assert keep["failed_total"] == 1 and "path" not in keep
    wait_until(lambda: "epoch 2 is not kept" in tree.log(), "a line in the log")
    assert len(tree.door().generate("ROMEO:", max_new_tokens=20, **GREEDY).tokens) == 20
    assert "failed" in run("status", "--run-dir", tree.run_dir).stdout
    kept.unlink()
    kept.mkdir(mode=0o700)
    assert update(admin, STORIES)["epoch"] == 3
    wait_kept(admin, 3)


def test_a_disk_that_is_full_is_told_before_anything_is_written(place, mount_tmpfs):
    small = mount_tmpfs(megabytes=1)
    tree = ProcessTree(place / "tree", "--keep-committed", small)
    try:
        admin = tree.door("admin")
        push(tree, BARD, "step-7")
        wait_until(lambda: keep_of(admin)["state"] == "failed", "the failure to be told")
        assert os.strerror(errno.ENOSPC) in keep_of(admin)["message"]
        assert len(tree.door().generate("ROMEO:", max_new_tokens=20, **GREEDY).tokens) == 20
        wait_until(lambda: listed(small) == [], "what was begun to be removed")
        tree.stop()
    finally:
        tree.abandon()


def test_two_trees_do_not_keep_their_versions_in_one_place(start_tree, place):
    kept = place / "kept"
    start_tree("--keep-committed", kept)
    second = run("serve", "--run-dir", place / "second", "--keep-committed", kept, "--no-http")
    assert second.returncode == 4 and "another tree" in second.stderr
    assert "Traceback" not in second.stderr and not (place / "second").exists()
    third = run("serve", "--run-dir", place / "third", "--keep-committed", "/proc/none", "--no-http")
    assert third.returncode == 4 and "--keep-committed" in third.stderr
    assert "Traceback" not in third.stderr and not (place / "third").exists()


def test_the_kept_version_that_a_tree_was_started_from_is_never_removed(start_tree, place):
    """A kept version is a checkpoint like others: a tree may start from it and keep its own versions in the same
    directory."""
    kept = place / "kept"
    tree = start_tree("--keep-committed", kept)
    admin = tree.door("admin")
    update(admin, BARD)
    model = wait_kept(admin, 2)
    tree.stop()
    tree = start_tree("--restart", "--model", model, "--keep-committed", kept)
    admin = tree.door("admin")
    for epoch in (2, 3, 4):
        update(admin, str(perturbed(place / f"v{epoch}", epoch)))
        wait_kept(admin, epoch)
        assert (model / "config.json").exists() and (model / "model.safetensors").exists()
    update(admin, BARD)  # the same weights as at the start: already kept, in the model's directory
    assert wait_kept(admin, 5) == model and model.exists()
    tree.stop()
