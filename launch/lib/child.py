"""One process of the tree, as its launcher sees it (base/supervision.h is the other side).

Uses two pipes: on `ready` the process reports READY, FAILED, LOST, VERSION, UNFINISHED, ADAPTER, NO_ADAPTER, DOOR or
END, one line each; on `supervisor` it receives "stop" or the name of a dead process. The process ends with this program
in any case: the kernel kills it (--parent-pid), and it reads the end of the supervisor pipe.
"""

import contextlib
import dataclasses
import os
import signal
import subprocess

LINE_BYTES_MAX = 16384  # twice the longest line of a process


@dataclasses.dataclass(frozen=True)
class Version:
    """The weights that serve, or should serve."""

    epoch: int
    digest: str  # of the resident weights; empty: no weights, or no digest could be computed
    label: str
    path: str  # the checkpoint; empty: no directory has all of it

    def __str__(self):
        name = f"'{self.label}' " if self.label else ""
        return f"{name}(epoch {self.epoch}, digest {self.digest or 'unknown'})"


class Child:
    """Owns: the process, until has_ended(); two pipe ends and a pidfd, until close()."""

    def __init__(self, kind, name, command):
        self.kind = kind  # tp_worker
        self.name = name  # tp_worker[0.1]
        self.ready_line = None  # the text of its READY line
        self.doors = {}  # door -> its endpoint for other machines
        self.failed_line = None  # the text of its FAILED line
        self.lost_line = None  # the text of its LOST line: why the weights could not be loaded
        self.version = None  # from its last VERSION line: the Version that serves
        self.unfinished = None  # the text of its last UNFINISHED line: calls in progress
        self.adapters = {}  # name -> the text of its last ADAPTER line; None: it was unloaded
        self.end_line = None  # the text of its END line: the tree should end
        self._said = b""
        with contextlib.ExitStack() as undo:  # releases everything if a later step fails
            self._start(command, undo)
            undo.pop_all()
        self.pid = self._process.pid

    def _start(self, command, undo):
        self.ready_fd, ready_write = os.pipe()
        with os.fdopen(ready_write, "wb"):  # the process's end, which is closed here after the start
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
                    stdout=2,  # a process's output is not part of this program's answers
                    pass_fds=(ready_write, supervisor_read),
                    start_new_session=True,  # Ctrl-C reaches only the launcher, which stops the tree
                )
        undo.callback(self._process.wait)
        undo.callback(self._process.kill)
        self.pidfd = os.pidfd_open(self._process.pid)  # readable when the process has ended

    def read_ready(self):
        """Reads all lines that the child has written. Returns False at the end of the pipe."""
        while True:
            try:
                data = os.read(self.ready_fd, LINE_BYTES_MAX)
            except BlockingIOError:
                return True
            if not data:
                return False
            *lines, unfinished = (self._said + data).split(b"\n")
            self._said = unfinished[-LINE_BYTES_MAX:]
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
            elif kind == "ADAPTER":
                self.adapters[text.partition("\t")[0]] = text
            elif kind == "NO_ADAPTER":
                self.adapters[text] = None
            elif kind == "DOOR":
                door, _, endpoint = text.partition(" ")
                self.doors[door] = endpoint
            elif kind == "END":
                self.end_line = text

    def tell(self, line):
        """Sends one line. A process that is gone, or that has 64 KiB to read, does not get it."""
        try:
            os.write(self._supervisor_fd, line.encode() + b"\n")
        except (BlockingIOError, BrokenPipeError):
            pass

    def has_ended(self):
        return self._process.poll() is not None

    def is_stopped(self):
        """Returns whether the process is stopped (SIGSTOP, a debugger), and thus cannot answer."""
        try:
            with open(f"/proc/{self.pid}/stat", encoding="utf-8", errors="replace") as stat:
                return stat.read().rsplit(")", 1)[1].split()[0] in "Tt"
        except (OSError, IndexError):
            return False

    def exit_code(self):
        """Returns its exit code; negative: minus the signal that killed it. REQUIRES: has_ended()."""
        self.read_ready()  # reads its last lines
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
