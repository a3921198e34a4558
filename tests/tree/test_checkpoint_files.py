"""A checkpoint's files in an update: headers with useless entries, files that change while they are
read, files that are read slowly. Each is refused by name; the old version goes on serving; and the
next update works.
"""

import contextlib
import os
import shutil
import signal
import time

import pytest

from process_tree import wait_until
from slow_files import SlowFiles, Unavailable
from test_faults import start_held
from test_updates import BARD, DIGESTS, GREEDY, read_checkpoint, update, write_checkpoint

__all__ = ["start_held"]
TREE_FLAGS = ("--tp", 2)


def is_running(admin):
    return admin.call("status")["replicas"][0]["state"] == "running"


def serves(door, admin, model):
    assert admin.call("weight_digests")["digest"] == DIGESTS[model]["digest"]
    assert len(door.generate("Once", max_new_tokens=5, **GREEDY).tokens) == 5


def with_many_tensors(directory, num):
    """Copies the checkpoint and adds this many tensors without bytes."""
    shutil.copytree(BARD, directory)
    header, data = read_checkpoint(BARD)
    for i in range(num):
        at = [len(data), len(data)]
        header[f"extra.{i}.weight"] = {"dtype": "BF16", "shape": [0], "data_offsets": at}
    write_checkpoint(directory, header, data)


# Reading such a header would take more than 7 minutes. The deadline and the drop would pass, and later orders would
# wait.
def test_P5_a_header_of_300000_tensors_is_refused_and_the_next_update_works(door, admin, place):
    with_many_tensors(place / "many", 300_000)
    begun = time.monotonic()
    reply = update(admin, str(place / "many"))
    assert not reply["ok"] and reply["code"] == "too_large", reply
    assert "model.safetensors" in reply["message"] and "rank " in reply["message"], reply["message"]
    serves(door, admin, "stories")
    assert update(admin, BARD)["ok"]
    serves(door, admin, "bard")
    assert time.monotonic() - begun < 300


def test_P5_files_that_come_slowly_cost_the_deadline_and_no_more(door, admin, place):
    try:
        slow = SlowFiles(BARD, place / "slow", seconds_per_read=0.05).__enter__()
    except Unavailable as error:
        pytest.skip(f"no file system of our own: {error}")
    with contextlib.ExitStack() as stack:
        stack.callback(slow.__exit__)
        spec = {"source": {"kind": "disk", "path": str(place / "slow")}}
        reply = admin.call("update_weights", timeout_ms=1500, update=spec)
        assert not reply["ok"] and reply["code"] == "deadline_exceeded", reply
        wait_until(lambda: is_running(admin), "the stage to be dropped")
        num_reads = slow.num_reads
        serves(door, admin, "stories")
        assert update(admin, BARD)["ok"]
        serves(door, admin, "bard")
        # After the drop, the update's files are not read to their end.
        assert num_reads < os.path.getsize(f"{BARD}/model.safetensors") / 4096


def rewritten(directory):
    """Writes every byte of the files again, unchanged."""
    with (directory / "model.safetensors").open("r+b") as file:  # opened so that the file is never shorter
        data = file.read()
        file.seek(0)
        file.write(data)


def replaced(directory):
    shutil.copy(directory / "model.safetensors", directory / "new")
    os.replace(directory / "new", directory / "model.safetensors")


def another_config(directory):
    path = directory / "config.json"
    path.write_text(path.read_text() + "\n")


CHANGES = {
    "written in place": (rewritten, "model.safetensors' changed"),
    "replaced": (replaced, "model.safetensors' changed"),
    "another config": (another_config, "config.json' changed"),
}


@pytest.mark.parametrize("how", CHANGES)
def test_P2_files_that_change_while_they_are_read_are_named(start_held, place, how):
    change, named = CHANGES[how]
    shutil.copytree(BARD, place / "model")
    tree = start_held("stage_half")
    with tree.door("admin") as admin:
        spec = {"source": {"kind": "disk", "path": str(place / "model")}}
        admin.send("update_weights", call=1, timeout_ms=60_000, update=spec)
        tree.wait_stopped("tp_worker[0.1]")
        change(place / "model")
        tree.kill("tp_worker[0.1]", signal.SIGCONT)
        kind, reply = admin.receive(60)
        assert kind == "update_reply" and not reply["ok"], reply
        assert reply["code"] == "data_loss" and named in reply["message"], reply
        # The other rank may still be reading, too, and report first.
        assert "rank " in reply["message"], reply["message"]
        assert reply["state"] == "serving" and reply["epoch"] == 1
        serves(tree.door(), admin, "stories")
