"""The tree under test: launch/pitstop serve --restart, its lives, and what it leaves behind."""

import json
import os
import pathlib
import re
import resource
import secrets
import signal
import subprocess
import threading
import time

from .weights import ROOT

LAUNCHER = ROOT / "launch" / "pitstop"
MARK = "PITSTOP_CHAOS_MARK"  # in the environment of every process of a tree
START_S = 300.0  # seconds for a start on a busy machine
STOP_S = 60.0
EXIT_START, EXIT_PLACE = 3, 4  # docs/running.md
EXIT_DIED = {10, 11, 12, 13, 14}


def stat_of(pid):
    """(state letter, parent) of a process; None: it has ended."""
    try:
        fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except (OSError, IndexError):
        return None
    return fields[0], int(fields[1])


def is_alive(pid):
    stat = stat_of(pid)
    return stat is not None and stat[0] not in "ZX"


def marked(mark):
    """Living processes with that mark in their environment: {pid: command}."""
    found = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            if mark.encode() in pathlib.Path(f"/proc/{name}/environ").read_bytes() and is_alive(name):
                found[int(name)] = pathlib.Path(f"/proc/{name}/cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
    return found


def tells_of_a_lost_version(log):
    """Whether the log reports a version that a restart lost. The restart logs this before any client gets an answer."""
    return "cannot be brought back" in log


class ChaosTree:
    """Owns: a launcher, until stop(). A life is from a ready line to the next death."""

    def __init__(self, run_dir, flags, log_path, environment):
        self.run_dir = pathlib.Path(run_dir)
        self.mark = secrets.token_hex(8)
        self.log_path = pathlib.Path(log_path)
        self.num_lives = 0
        self.ready_at = 0.0  # when the current life became ready
        self.denied = set()  # pids that could open no descriptor, or map no memory, for a while
        self._changed = threading.Condition()
        log = open(self.log_path, "ab")
        self.command = [str(LAUNCHER), "serve", "--run-dir", str(run_dir), "--port", "0", *map(str, flags)]
        self.launcher = subprocess.Popen(
            self.command,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env={
                **os.environ,
                "PITSTOP_BUILD": os.environ.get("PITSTOP_BUILD", str(ROOT / "build/cpu")),
                **environment,
                MARK: self.mark,
            },
        )
        log.close()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        for _ in self.launcher.stdout:  # logged once per life
            with self._changed:
                self.num_lives += 1
                self.ready_at = time.monotonic()
                self._changed.notify_all()
        with self._changed:
            self._changed.notify_all()

    def wait_life(self, number, timeout_s=START_S):
        """Waits until this many lives have begun; False: the tree ended, or the time ran out."""
        with self._changed:
            self._changed.wait_for(
                lambda: self.num_lives >= number or not self._reader.is_alive() or self.has_ended(), timeout_s
            )
            return self.num_lives >= number

    def has_ended(self):
        return self.launcher.poll() is not None

    def description(self):
        """tree.json of the current life; None: no tree runs."""
        try:
            return json.loads((self.run_dir / "tree.json").read_text())
        except (OSError, ValueError):
            return None

    def pids(self):
        """{process's name: pid} of the current life."""
        description = self.description()
        return {each["name"]: each["pid"] for each in description["processes"]} if description else {}

    def url(self):
        description = self.description()
        return description["url"] if description else None

    def num_deaths(self):
        return len(re.findall(r" died: ", self.log()))

    def has_lost_version(self):
        return tells_of_a_lost_version(self.log())

    def log(self):
        return self.log_path.read_text(errors="replace")

    def held(self):
        """{process's name: (pid, resident KiB, open descriptors)}."""
        held = {}
        for name, pid in self.pids().items():
            try:
                status = pathlib.Path(f"/proc/{pid}/status").read_text()
                resident = sum(int(kib) for kib in re.findall(r"Rss(?:Anon|Shmem):\s+(\d+)", status))
                held[name] = (pid, resident, len(os.listdir(f"/proc/{pid}/fd")))
            except OSError:
                continue
        return held

    def undo_faults(self):
        """Ends every fault: no process is stopped, and each has its limits back."""
        for pid in self.pids().values():
            try:
                os.kill(pid, signal.SIGCONT)
                for limit in (resource.RLIMIT_NOFILE, resource.RLIMIT_AS):
                    hard = resource.prlimit(pid, limit)[1]
                    resource.prlimit(pid, limit, (hard, hard))
            except OSError:
                continue

    def stop(self):
        """The exit code; None: it had to be killed."""
        if not self.has_ended():
            self.launcher.send_signal(signal.SIGINT)
        try:
            code = self.launcher.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.launcher.kill()
            self.launcher.wait()
            code = None
        self._reader.join(5)
        self.launcher.stdout.close()
        return code

    def leftovers(self, timeout_s=15.0):
        """Processes and files that are left after the end."""
        deadline = time.monotonic() + timeout_s
        while (left := marked(self.mark)) and time.monotonic() < deadline:
            time.sleep(0.05)
        found = [f"process {pid}: {command}" for pid, command in left.items()]
        if self.run_dir.exists():
            found += [f"file {path}" for path in self.run_dir.iterdir()] or [f"directory {self.run_dir}"]
        return found


def sockets_left(pids):
    """Abstract sockets of dead pushers: their names have the pushers' pids."""
    wanted = tuple(f"@pitstop-push-{pid}-" for pid in pids)
    try:
        lines = pathlib.Path("/proc/net/unix").read_text().splitlines()
    except OSError:
        return []
    return [line.split()[-1] for line in lines if line.split()[-1].startswith(wanted)] if wanted else []
