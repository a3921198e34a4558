"""Faults: each does something to a process, and is undone. Only one is active at a time, so that a finding has one
cause.

Named points are those of base/fault_point.h, in builds that have them (the presets).
"""

import errno
import os
import pathlib
import resource
import signal
import struct
import subprocess
import threading
import time

from . import weights
from .tree import stat_of

DEATHS_MAX = 3  # deliberate deaths per tree: the launcher gives up after five restarts in a row
CLAIM_S = 4.0  # limit for a process to reach a named point
POINTS = {
    "tokenizer_proc": (
        "receive generate",
        "send outputs",
        "receive text_batch",
        "receive update_weights",
        "send update_stage",
        "receive update_part",
        "send update_commit",
        "send update_reply",
        "receive pause_generation",
        "receive pause_part",
    ),
    "scheduler_proc": (
        "receive tokenized_request",
        "send step_plan",
        "receive step_result",
        "send token_batch",
        "receive update_stage",
        "send worker_stage",
        "receive worker_staged",
        "receive update_commit",
        "send worker_commit",
        "receive worker_committed",
        "send update_part",
        "receive memory_part",
        "receive end_requests",
    ),
    "tp_worker": (
        "receive step_plan",
        "send step_result",
        "stage_begin",
        "stage_half",
        "send worker_staged",
        "commit_begin",
        "commit_done",
        "drop_begin",
        "memory_begin",
        "receive worker_commit",
        "send worker_committed",
    ),
    "detokenizer_proc": ("receive token_batch", "send text_batch"),
    "http_proc": ("send generate", "receive outputs", "receive update_reply"),
}


class Place:
    """Directories that can be made full, and a clock that can be set. `missing` has the reason for each that this
    machine does not allow.

    Mounts are private to this program, which launch/chaos starts in a namespace of its own.
    """

    def __init__(self, root, has_mounts):
        self.root = pathlib.Path(root)
        self.missing = {}
        self.run_root = self.root / "r"
        self.disk = self.root / "disk"
        self.fault_dir = self.root / "points"
        self.clock = self.root / "clock"
        for path in (self.run_root, self.disk, self.fault_dir):
            path.mkdir(mode=0o700)
        self.clock.write_bytes(struct.pack("<q", 0))
        self.has_mounts = has_mounts and self._mount()
        if not self.has_mounts:
            for name in ("full run directory", "full disk", "full /dev/shm"):
                self.missing[name] = "it takes root, to mount a small file system"
        self.environment = {"PITSTOP_FAULT_DIR": str(self.fault_dir)}
        self._build_shim()

    def _mount(self):
        return all(
            subprocess.run(
                ["mount", "-t", "tmpfs", "-o", f"size={size},mode=0700", "tmpfs", path],
                stderr=subprocess.DEVNULL,
            ).returncode
            == 0
            for path, size in ((self.run_root, "4m"), (self.disk, "256k"), (pathlib.Path("/dev/shm"), "64m"))
        )

    def _build_shim(self):
        shim = self.root / "clock_shim.so"
        source = pathlib.Path(__file__).with_name("clock_shim.c")
        try:
            done = subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", shim, source, "-ldl"], capture_output=True)
        except OSError:
            done = None
        if done is None or done.returncode:
            self.missing["clock step"] = "it takes a C compiler, for the library that is preloaded"
            return
        self.environment.update(LD_PRELOAD=str(shim), CHAOS_CLOCK=str(self.clock))

    def step_clock(self, seconds):
        with open(self.clock, "r+b") as file:
            file.write(struct.pack("<q", seconds))


def fill(directory):
    """Writes until there is no room. Returns the file."""
    path = pathlib.Path(directory) / "filler"
    with open(path, "wb", buffering=0) as file:
        size = 65536
        while size:
            try:
                file.write(b"\xa5" * size)
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                size //= 2
    return path


class Faults(threading.Thread):
    """One fault after another until stopped; each is undone before the next."""

    def __init__(self, rng, world, place):
        super().__init__(name="faults", daemon=True)
        self.rng, self.world, self.place = rng, world, place
        self.stopped = threading.Event()
        self.num_deaths = 0
        self.kinds = {
            self.kill: 2,
            self.pause_process: 5,
            self.stall: 1,
            self.point: 8,
            self.descriptors: 2,
            self.address_space: 1,
            self.full_run_dir: 1,
            self.full_disk: 1,
            self.full_shm: 1,
            self.clock_step: 2,
        }

    def run(self):
        while not self.stopped.is_set():
            self.stopped.wait(self.rng.uniform(0.5, 4.0))
            names = self.world.tree.pids()
            if self.stopped.is_set() or not names or not self.world.is_serving():
                continue
            fault = self.rng.choices(list(self.kinds), list(self.kinds.values()))[0]
            name = self.rng.choice(sorted(names))
            try:
                fault(name, names[name])
            except (ProcessLookupError, FileNotFoundError):
                pass  # the process had already ended
            except Exception as error:
                self.world.report.problem(f"faults: {type(error).__name__}: {error}", trace=True)
                return

    def done(self, what, name=None):
        kind = name.split("[")[0] if name else None
        self.world.report.count("faults", f"{what} {kind}" if kind else what)

    def _may_kill(self):
        if self.num_deaths >= DEATHS_MAX:
            return False
        self.num_deaths += 1
        return True

    def _rest(self, low, high):
        self.stopped.wait(self.rng.uniform(low, high))

    def kill(self, name, pid):
        if not self._may_kill():
            return
        self.world.report.act(f"fault: kill {name}")
        os.kill(pid, signal.SIGKILL)
        self.done("kill", name)

    def pause_process(self, name, pid):
        self.world.report.act(f"fault: stop {name}")
        os.kill(pid, signal.SIGSTOP)
        self.done("stop", name)
        self._rest(0.05, 2.5)
        os.kill(pid, signal.SIGCONT)

    def stall(self, name, pid):
        """Stops the process for good. The launcher must end it."""
        if not self._may_kill():
            return
        self.world.report.act(f"fault: stop {name} for good")
        os.kill(pid, signal.SIGSTOP)
        self.done("stop for good", name)
        self._rest(8, 9)

    def point(self, name, pid):
        """The process stops or kills itself at the named point."""
        action = self.rng.choice(("kill", "stop", "stop", "delay", "delay"))
        where = self.rng.choice(POINTS[name.split("[")[0]])
        if action == "kill" and not self._may_kill():
            return
        text = f"delay {self.rng.choice((20, 200, 1500))}" if action == "delay" else action
        file = self.place.fault_dir / f"{name}@{where}"
        self.world.report.act(f"fault: {text} {name} at {where}")
        file.with_suffix(".new").write_text(text)
        file.with_suffix(".new").rename(file)
        deadline = time.monotonic() + CLAIM_S
        while file.exists() and time.monotonic() < deadline and not self.stopped.is_set():
            time.sleep(0.01)
        try:
            file.unlink()
            self.num_deaths -= action == "kill"
            return  # no process has reached the point
        except FileNotFoundError:
            self.done(f"{action} at {where}:", name)
        if action == "stop":
            self._wait_stopped(pid)
            self._rest(0.05, 2.0)
            os.kill(pid, signal.SIGCONT)

    def _wait_stopped(self, pid):
        deadline = time.monotonic() + CLAIM_S
        while time.monotonic() < deadline:
            stat = stat_of(pid)
            if stat is None or stat[0] == "T":
                return
            time.sleep(0.01)

    def _limited(self, pid, which, soft):
        """For a while the process can take no more of this resource."""
        self.world.tree.denied.add(pid)
        before = resource.prlimit(pid, which)
        resource.prlimit(pid, which, (soft, before[1]))
        self._rest(0.5, 3.0)
        resource.prlimit(pid, which, before)

    def descriptors(self, name, pid):
        soft = len(os.listdir(f"/proc/{pid}/fd")) + self.rng.choice((0, 1, 3))
        self.world.report.act(f"fault: {name} has {soft} descriptors")
        self.done("no descriptors", name)
        self._limited(pid, resource.RLIMIT_NOFILE, soft)

    def address_space(self, name, pid):
        """No memory can be mapped: neither a trainer's shared memory nor another copy."""
        pages = int(pathlib.Path(f"/proc/{pid}/statm").read_text().split()[0])
        self.world.report.act(f"fault: {name} maps no more memory")
        self.done("no memory", name)
        self._limited(pid, resource.RLIMIT_AS, pages * resource.getpagesize() + (1 << 20))

    def _filled(self, directory, what, name=None, pid=None):
        if what in self.place.missing:
            return
        self.world.report.act(f"fault: {what}" + (f", and kill {name}" if pid else ""))
        path = fill(directory)
        self.done(what + (", and a death" if pid else ""))
        try:
            if pid:
                os.kill(pid, signal.SIGKILL)
            self._rest(0.5, 3.0)
        finally:
            path.unlink(missing_ok=True)

    def full_run_dir(self, name, pid):
        is_deadly = self.rng.random() < 0.4 and self._may_kill()
        self._filled(self.place.run_root, "full run directory", name, pid if is_deadly else None)

    def full_shm(self, name, pid):
        self._filled("/dev/shm", "full /dev/shm")

    def full_disk(self, name, pid):
        """A trainer writes a checkpoint to a full directory, and sends the update all the same."""
        if "full disk" in self.place.missing:
            return
        world = self.world
        source, _, tensors = world.checkpoints[0]
        directory = self.place.disk / "checkpoint"
        self.world.report.act("fault: full disk under a checkpoint")
        try:
            weights.write_checkpoint(directory, tensors, source)
            return  # there was room
        except OSError:
            self.done("full disk under a checkpoint")
        spec = {"kind": "disk", "run_dir": str(world.tree.run_dir), "dir": str(directory), "label": "torn"}
        if world.trainers.run(spec).get("ok"):
            world.report.problem("a checkpoint that was cut off by a full disk was committed")

    def clock_step(self, name, pid):
        if "clock step" in self.place.missing:
            return
        seconds = self.rng.choice((0, 1, -1, 3600, -3600, 86400 * 400, -86400 * 400))
        self.world.report.act(f"fault: the wall clock is off by {seconds} s")
        self.place.step_clock(seconds)
        self.done("clock step")
