"""Holds one process of the tree, as its launcher sees it (base/supervision.h is the other side).

Two pipes: on `ready` the process says READY, FAILED, LOST, VERSION, UNFINISHED, DOOR or END in one line;
on `supervisor` it is told "stop" or who died. It dies with this program whatever happens: it asks the
kernel for that itself (--parent-pid), and the end of the supervisor pipe says the same.
"""

import contextlib
import dataclasses
import os
import signal
import subprocess

LINE_BYTES_MAX = 16384  # twice what a process says in one


@dataclasses.dataclass(frozen=True)
class Version:
    """Names the weights that serve, or are to."""

    epoch: int
    digest: str  # the resident weights'; empty: there are none, or it could not be computed
    label: str
    path: str  # the checkpoint; empty: no directory holds it whole

    def __str__(self):
        name = f"'{self.label}' " if self.label else ""
        return f"{name}(epoch {self.epoch}, digest {self.digest or 'unknown'})"


class Child:
    """Owns: the process, until has_ended(); two pipe ends and a pidfd, until close()."""

    def __init__(self, kind, name, command):
        self.kind = kind  # tp_worker
        self.name = name  # tp_worker[0.1]
        self.ready_line = None  # what it said with READY
        self.doors = {}  # door -> its endpoint for other machines
        self.failed_line = None  # what it said with FAILED
        self.lost_line = None  # what it said with LOST: why the weights could not be loaded
        self.version = None  # what it said last with VERSION: the Version that serves
        self.unfinished = None  # what it said last with UNFINISHED: what callers are amid
        self.end_line = None  # what it said with END: the tree is to end
        self._said = b""
        with contextlib.ExitStack() as undo:  # what was taken, if something cannot be had
            self._start(command, undo)
            undo.pop_all()
        self.pid = self._process.pid

    def _start(self, command, undo):
        self.ready_fd, ready_write = os.pipe()
        with os.fdopen(ready_write, "wb"):  # the process's end: closed here when it has it
            undo.callback(os.close, self.ready_fd)
            supervisor_read, self._supervisor_fd = os.pipe()
            with os.fdopen(supervisor_read, "rb"):
                undo.callback(os.close, self._supervisor_fd)
                os.set_blocking(self.ready_fd, False)
                os.set_blocking(self._supervisor_fd, False)
                self._process = subprocess.Popen(
                    [
                        *command,
                        f"--ready-fd={ready_write}",
                        f"--supervisor-fd={supervisor_read}",
                        f"--parent-pid={os.getpid()}",
                    ],
                    stdin=subprocess.DEVNULL,
                    stdout=2,  # nothing of a process belongs to this program's answers
                    pass_fds=(ready_write, supervisor_read),
                    start_new_session=True,  # Ctrl-C is for the launcher alone: it stops the tree
                )
        undo.callback(self._process.wait)
        undo.callback(self._process.kill)
        self.pidfd = os.pidfd_open(self._process.pid)  # readable when it has ended

    def read_ready(self):
        """Takes all that it said; False at the end of the pipe."""
        while True:
            try:
                data = os.read(self.ready_fd, LINE_BYTES_MAX)
            except BlockingIOError:
                return True
            if not data:
                return False
            self._said = (self._said + data)[-LINE_BYTES_MAX:]
            *lines, self._said = self._said.split(b"\n")
            self._take(lines)

    def _take(self, lines):
        for line in lines:
            kind, _, text = line.decode("utf-8", "replace").partition(" ")
            if kind == "READY":
                self.ready_line = text
            elif kind == "FAILED":
                self.failed_line = text
            elif kind == "LOST":
                self.lost_line = text
            elif kind == "VERSION":
                epoch, digest, label, path = text.split("\t", 3)
                self.version = Version(int(epoch), digest, label, path)
            elif kind == "UNFINISHED":
                self.unfinished = text
            elif kind == "DOOR":
                door, _, endpoint = text.partition(" ")
                self.doors[door] = endpoint
            elif kind == "END":
                self.end_line = text

    def tell(self, line):
        """Sends one line; a process that is gone or has not read for 64 KiB does not get it."""
        try:
            os.write(self._supervisor_fd, line.encode() + b"\n")
        except (BlockingIOError, BrokenPipeError):
            pass

    def has_ended(self):
        return self._process.poll() is not None

    def is_stopped(self):
        """Tells whether somebody sent it SIGSTOP (or a debugger holds it): it does nothing, and cannot say so."""
        try:
            with open(f"/proc/{self.pid}/stat", encoding="utf-8", errors="replace") as stat:
                return stat.read().rsplit(")", 1)[1].split()[0] in "Tt"
        except (OSError, IndexError):
            return False

    def exit_code(self):
        """Returns its exit code; negative: the signal that killed it. REQUIRES: has_ended()."""
        self.read_ready()  # its last words
        return self._process.returncode

    def how_it_ended(self):
        """REQUIRES: has_ended()."""
        code = self.exit_code()
        if code >= 0:
            return f"exit {code}" + (f": {self.failed_line}" if self.failed_line else "")
        try:
            return f"signal {-code} ({signal.Signals(-code).name})"
        except ValueError:
            return f"signal {-code}"

    def send_signal(self, number):
        if not self.has_ended():
            self._process.send_signal(number)

    def close(self):
        """REQUIRES: has_ended()."""
        for fd in (self.ready_fd, self._supervisor_fd, self.pidfd):
            os.close(fd)
