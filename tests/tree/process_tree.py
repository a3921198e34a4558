"""A tree under test: started with launch/pitstop, inspected, stopped, and checked to leave
nothing.
"""

import atexit
import contextlib
import ctypes
import functools
import json
import os
import pathlib
import re
import resource
import shutil
import signal
import subprocess
import tempfile
import time

from wire import DEADLINE_S, Door

ROOT = pathlib.Path(__file__).resolve().parents[2]
PR_SET_PDEATHSIG = 1
LAUNCHER = ROOT / "launch" / "pitstop"


HOME = "PITSTOP_TEST_HOME"  # another directory in which a test may have its trees registered


@functools.lru_cache(maxsize=None)
def _home(pid):
    """The directory in which this process's trees are registered; removed with the process."""
    path = tempfile.mkdtemp(prefix="pitstop-test-home-", dir="/tmp")
    atexit.register(lambda: os.getpid() == pid and shutil.rmtree(path, ignore_errors=True))
    return path


def environment():
    """The environment of programs under test: the build under test, and a directory of registered trees
    that has no others."""
    return {
        **os.environ,
        "PITSTOP_BUILD": os.environ.get("PITSTOP_BUILD", str(ROOT / "build/cpu")),
        "XDG_RUNTIME_DIR": os.environ.get(HOME) or _home(os.getpid()),
    }


def end_with_parent():
    """Runs in each new process, so that an interrupted test run leaves no tree behind."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def is_alive(pid):
    """Whether the process runs. A zombie does not: it has ended, and waits for its parent."""
    try:
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rsplit(")", 1)[1].split()[0] not in "ZX"


def wait_until(condition, what, timeout_s=DEADLINE_S):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"waited {timeout_s:.0f} s for {what}"
        time.sleep(0.005)


def run(*arguments, timeout_s=DEADLINE_S, **options):
    """Runs launch/pitstop with these arguments, to its end."""
    return subprocess.run(
        [LAUNCHER, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        env=environment(),
        **options,
    )


class ProcessTree:
    """Owns: a launcher and, through it, a tree. stop() or check_gone() ends it."""

    def __init__(self, run_dir, *flags, descriptors=None, prefix=()):
        self.run_dir = pathlib.Path(run_dir)
        self._log = open(f"{run_dir}.log", "w+")
        no_http = [] if "--port" in flags else ["--no-http"]  # tests of HTTP choose their port
        begin = time.monotonic()
        self.launcher = subprocess.Popen(
            [*prefix, LAUNCHER, "serve", "--run-dir", str(run_dir), *no_http, *map(str, flags)],
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=environment(),
            preexec_fn=lambda: self._prepare(descriptors),
        )
        self.ready_line = self.launcher.stdout.readline()
        self.start_s = time.monotonic() - begin
        if not self.ready_line:
            self.launcher.wait(DEADLINE_S)
            raise AssertionError(f"exit {self.launcher.returncode}: {self.log()}")
        description = json.loads((self.run_dir / "tree.json").read_text())
        self.processes = description["processes"]
        self.url = description["url"]  # of HTTP; None: without
        self.doors = []

    @staticmethod
    def _prepare(descriptors):
        """Runs in the launcher's process before exec. `descriptors`: the soft limit and the hard one."""
        end_with_parent()
        # The launcher would inherit signals that nohup, or a background shell, ignores.
        for number in (signal.SIGHUP, signal.SIGQUIT):
            signal.signal(number, signal.SIG_DFL)
        if descriptors is not None:
            resource.setrlimit(resource.RLIMIT_NOFILE, descriptors)

    def log(self):
        """The standard error of the launcher and of all processes."""
        self._log.flush()
        return pathlib.Path(self._log.name).read_text()

    def door(self, name="data", **options):
        """A connection that is closed with the tree."""
        self.doors.append(Door(self.run_dir, name, **options))
        return self.doors[-1]

    def pids(self, kind=None):
        return [p["pid"] for p in self.processes if kind in (None, p["kind"])]

    def kill(self, name, number=signal.SIGKILL):
        """Sends a signal to the process of that name: tp_worker[0.0]."""
        (pid,) = [p["pid"] for p in self.processes if p["name"] == name]
        os.kill(pid, number)

    def wait_stopped(self, name):
        """Waits until SIGSTOP has stopped that process: an earlier SIGCONT is lost."""
        (pid,) = [p["pid"] for p in self.processes if p["name"] == name]
        stat = pathlib.Path(f"/proc/{pid}/stat")
        wait_until(lambda: stat.read_text().rsplit(")", 1)[1].split()[0] == "T", f"{name} to stand still")

    @contextlib.contextmanager
    def frozen(self, name):
        """Within the block the process reads nothing; afterwards it finds all messages that came meanwhile."""
        self.kill(name, signal.SIGSTOP)
        try:
            self.wait_stopped(name)
            yield
        finally:
            self.kill(name, signal.SIGCONT)

    def go_away(self):
        """Kills every process while the launcher is stopped: the gap of a restart, until come_back()."""
        self.launcher.send_signal(signal.SIGSTOP)
        for pid in self.pids():
            os.kill(pid, signal.SIGKILL)

    def come_back(self):
        """With --restart: returns once the next tree is ready."""
        self.launcher.send_signal(signal.SIGCONT)
        assert self.launcher.stdout.readline(), self.log()
        self.processes = json.loads((self.run_dir / "tree.json").read_text())["processes"]

    def memory_mib(self):
        """The peak memory so far of each kind of process, summed over its processes."""
        peak = {}
        for process in self.processes:
            text = pathlib.Path(f"/proc/{process['pid']}/status").read_text()
            kib = int(re.search(r"VmHWM:\s+(\d+)", text).group(1))
            peak[process["kind"]] = peak.get(process["kind"], 0) + kib / 1024
        return {kind: round(mib) for kind, mib in peak.items()}

    def wait_exit(self, timeout_s=DEADLINE_S):
        """The launcher's exit code."""
        return self.launcher.wait(timeout_s)

    def check_gone(self, is_killed=False):
        """Checks that no process is left, and no file either, unless the launcher itself was killed."""
        for door in self.doors:
            door.close()
        self.launcher.stdout.close()
        wait_until(lambda: not any(map(is_alive, self.pids())), "processes to end", timeout_s=60.0)
        if not is_killed:
            assert not self.run_dir.exists(), list(self.run_dir.iterdir())

    def stop(self, number=signal.SIGINT):
        """Ends the tree cleanly, and checks that nothing is left."""
        if self.launcher.poll() is None:
            self.launcher.send_signal(number)
        code = self.wait_exit()
        self.check_gone()
        assert code == 0, f"exit {code}: {self.log()}"

    def abandon(self):
        """Ends everything that could disturb the next test, after a failed one."""
        if self.launcher.poll() is None:
            self.launcher.terminate()
            self.launcher.send_signal(signal.SIGCONT)  # it may be stopped
            try:
                self.launcher.wait(20)
            except subprocess.TimeoutExpired:
                self.launcher.kill()
                self.launcher.wait()


@contextlib.contextmanager
def live_tree(run_dir, *flags):
    """A tree that is stopped after its use, and checked to leave nothing; after an error it is ended."""
    tree = ProcessTree(run_dir, *flags)
    try:
        yield tree
        tree.stop()
    finally:
        tree.abandon()
