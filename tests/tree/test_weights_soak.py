"""Pushes in a row, with mixed sources, half of the pushers killed at a random moment: no leak, no
wrong digest, no lost request. PITSTOP_SOAK_PUSHES pushes (default 16; by hand 1000).
"""

import json
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import tempfile
import time

import torch_sender
from process_tree import ROOT, environment, is_alive, wait_until

DIGESTS = json.loads((ROOT / "tests/data/golden/digests.json").read_text())["models"]
NUM_PUSHES = int(os.environ.get("PITSTOP_SOAK_PUSHES", "16"))
PUSH_ONCE = pathlib.Path(__file__).with_name("push_once.py")
KINDS = ["push", "adopted", "session", "broadcast", "sparse"]
TORCH_KINDS = ["checkpoint_engine", "handles"]
NUM_WARM = 50  # pushes after which memory no longer grows
GROWTH_MAX_KIB = 10_000
# The first pushes' requests fill this KV pool. A larger pool's pages would be touched, and memory grow, for long.
KV_TOKENS = 1024
PUSH_MAX_S = 600  # the machine of a soak is busy
CLOSED_AFTER_S = 20


def left_behind(pushers):
    """PyTorch's segments, /dev/shm/torch_PID_..., of pushers that have ended. Other tests' may exist, too."""
    segments = set()
    for segment in os.listdir("/dev/shm"):
        pid = re.match(r"torch_(\d+)_", segment)
        if pid and int(pid.group(1)) in pushers and not is_alive(int(pid.group(1))):
            segments.add(segment)
    return segments


class Held:
    """The resources of each process of a tree, and leftovers of its pushers."""

    def __init__(self, tree, pushers):
        self.files, self.sockets, self.kib = {}, {}, {}
        for process in tree.processes:
            pid, name = process["pid"], process["name"]
            links = []
            for entry in os.listdir(f"/proc/{pid}/fd"):
                try:
                    links.append(os.readlink(f"/proc/{pid}/fd/{entry}"))
                except FileNotFoundError:
                    pass  # closed meanwhile
            self.files[name] = len(links)
            self.sockets[name] = sum(link.startswith("socket:") for link in links)
            status = pathlib.Path(f"/proc/{pid}/status").read_text()
            self.kib[name] = int(re.search(r"VmRSS:\s+(\d+)", status).group(1))
        self.segments = left_behind(pushers)

    def exceeds(self, before):
        """Whether more files are open, or more of PyTorch's segments exist, than before."""
        more = any(self.files[name] > before.files[name] + 2 for name in self.files)
        return more or not self.segments <= before.segments

    def describe(self):
        """A line per process."""
        lines = [
            f"  {name:20} {self.kib[name]:8} KiB {self.files[name]:4} files, {self.sockets[name]:3} sockets"
            for name in self.files
        ]
        return "\n".join(lines + [f"  {len(self.segments)} segments of dead pushers in /dev/shm"])


def settle(admin):
    """Waits until nothing is left of a dead pusher's update."""
    wait_until(lambda: is_idle(admin), "the update to end", timeout_s=60)


def is_idle(admin):
    reply = admin.call("drop_stage")  # drops the stage of a pusher that has ended, if there is one
    return not reply["ok"] and "nothing is staged, and" in reply["message"]


def push(tree, model, kind, kill_after_s, pushers):
    """Whether the tree answered that the new version is in effect, and the pusher's output.
    `pushers` gets its pid.
    """
    # Output goes into a file: PyTorch's helper process would keep a pipe of its dead parent open.
    with tempfile.TemporaryFile() as words:
        child = subprocess.Popen(
            [sys.executable, PUSH_ONCE, tree.run_dir, ROOT / "launch/models" / model, kind],
            stdout=subprocess.DEVNULL,
            stderr=words,
            cwd=PUSH_ONCE.parent,
            env=environment(),
        )
        pushers.add(child.pid)
        try:
            child.wait(PUSH_MAX_S if kill_after_s is None else kill_after_s)
        except subprocess.TimeoutExpired:
            child.send_signal(signal.SIGKILL)
            child.wait()
        words.seek(0)
        return child.returncode == 0, words.read().decode()


def test_P2_P4_pushes_in_a_row_with_random_kills(start_tree):
    tree = start_tree("--tp", 2, "--max-total-tokens", KV_TOKENS)
    kinds = KINDS + (TORCH_KINDS if torch_sender.torch is not None else [])
    whole_s = dict.fromkeys(kinds, 1.0)  # seconds of a push of each kind, measured during the run
    rng = random.Random(7)
    counts = {"done": 0, "killed": 0}
    before, pushers = None, set()
    with tree.door("admin") as admin, tree.door() as door:
        rid = door.start("Once upon a time", max_new_tokens=60, ignore_eos=True)
        for number in range(NUM_PUSHES):
            model, kind = ("bard", "stories")[number % 2], kinds[rng.randrange(len(kinds))]
            kill_after_s = rng.uniform(0.2, 1.0) * whole_s[kind] if rng.random() < 0.5 else None
            begun = time.monotonic()
            is_done, words = push(tree, model, kind, kill_after_s, pushers)
            assert is_done or kill_after_s is not None, f"push {number}, {kind}: {words}"
            if is_done:
                whole_s[kind] = time.monotonic() - begun
            counts["done" if is_done else "killed"] += 1
            settle(admin)
            digest = admin.call("weight_digests")["digest"]
            if is_done:
                assert digest == DIGESTS[model]["digest"], f"push {number}, {kind}"
            assert digest in (DIGESTS["bard"]["digest"], DIGESTS["stories"]["digest"])
            (output,) = door.finish([rid])
            assert len(output.tokens) == 60, "a request was lost"
            rid = door.start("Once upon a time", max_new_tokens=60, ignore_eos=True)
            if number == min(NUM_WARM, NUM_PUSHES // 2):
                before = Held(tree, pushers)
            if number % 100 == 99:
                print(f"{number + 1} pushes, {counts}:\n{Held(tree, pushers).describe()}", flush=True)
        door.finish([rid])

        after = Held(tree, pushers)
        deadline = time.monotonic() + CLOSED_AFTER_S
        while after.exceeds(before) and time.monotonic() < deadline:
            time.sleep(0.2)
            after = Held(tree, pushers)
    text = (
        f"{NUM_PUSHES} pushes, {counts['done']} done, {counts['killed']} killed\n"
        f"after {min(NUM_WARM, NUM_PUSHES // 2)} pushes:\n{before.describe()}\nat the end:\n{after.describe()}"
    )
    assert not after.exceeds(before), f"not closed or removed after {CLOSED_AFTER_S} s: {text}"
    print(f"soak: {text}")
    grown = {name: kib - before.kib[name] for name, kib in after.kib.items() if kib > before.kib[name] + GROWTH_MAX_KIB}
    assert not grown, f"memory grew: {grown} KiB"
