"""Pushes in a row, sources mixed, half of the pushers killed at a random moment: no leak, no wrong
digest, no lost request. PITSTOP_SOAK_PUSHES pushes (default 16; by hand 1000)."""

import json
import os
import pathlib
import random
import re
import signal
import subprocess
import sys

import torch_sender
from process_tree import ROOT, wait_until

STORIES = ROOT / "launch/models/stories"
BARD = ROOT / "launch/models/bard"
DIGESTS = json.loads((ROOT / "tests/data/golden/digests.json").read_text())["models"]
NUM_PUSHES = int(os.environ.get("PITSTOP_SOAK_PUSHES", "16"))
PUSH_ONCE = pathlib.Path(__file__).with_name("push_once.py")


def num_open_files(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def resident_kib(pid):
    return int(re.search(r"VmRSS:\s+(\d+)", pathlib.Path(f"/proc/{pid}/status").read_text()).group(1))


def settle(admin):
    """Whatever a dead pusher left under way has ended."""
    wait_until(lambda: is_idle(admin), "the update to end", timeout_s=60)


def is_idle(admin):
    reply = admin.call("drop_stage")  # of a pusher that is gone, if there is one
    return not reply["ok"] and "phase idle" in reply["message"]


def test_P2_P4_pushes_in_a_row_with_random_kills(start_tree):
    tree = start_tree("--tp", 2)
    workers = tree.pids("tp_worker")
    kinds = ["push", "session", "broadcast"]
    if torch_sender.torch is not None:
        kinds.append("checkpoint_engine")
    rng = random.Random(7)
    counts = {"done": 0, "killed": 0}
    before = {}
    with tree.door("admin") as admin, tree.door() as door:
        rid = door.start("Once upon a time", max_new_tokens=60, ignore_eos=True)
        for number in range(NUM_PUSHES):
            model = ("bard", "stories")[number % 2]
            child = subprocess.Popen(
                [sys.executable, PUSH_ONCE, tree.run_dir, ROOT / "launch/models" / model, rng.choice(kinds)],
                stderr=subprocess.PIPE,
                cwd=PUSH_ONCE.parent,
            )
            is_killed = rng.random() < 0.5
            if is_killed:
                try:
                    child.wait(rng.uniform(0.2, 0.8))
                except subprocess.TimeoutExpired:
                    child.send_signal(signal.SIGKILL)
            _, words = child.communicate(timeout=120)
            assert is_killed or child.returncode == 0, words.decode()
            counts["killed" if child.returncode else "done"] += 1
            settle(admin)
            digest = admin.call("weight_digests")["digest"]
            if child.returncode == 0:
                assert digest == DIGESTS[model]["digest"]
            assert digest in (DIGESTS["bard"]["digest"], DIGESTS["stories"]["digest"])
            (output,) = door.finish([rid])
            assert len(output.tokens) == 60, "a request was lost"
            rid = door.start("Once upon a time", max_new_tokens=60, ignore_eos=True)
            if number == min(7, NUM_PUSHES // 2):
                before = {pid: (num_open_files(pid), resident_kib(pid)) for pid in workers}
        door.finish([rid])
        for pid in workers:
            files, kib = before[pid]
            wait_until(lambda: num_open_files(pid) <= files + 2, "descriptors to be closed", 20)
            assert resident_kib(pid) < kib + 20_000, "memory grew"
    print(f"soak: {NUM_PUSHES} pushes, {counts['done']} done, {counts['killed']} killed")
