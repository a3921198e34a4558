"""Trees of this machine: started by the caller with the launcher, or found by URL."""

from __future__ import annotations

import collections
import fcntl
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import weakref
from typing import Any, Mapping, Optional

from .errors import PitstopError
from .progress import Progress
from .start_options import tree_options

STOP_S = 15.0  # the launcher itself takes up to nine
POLL_S = 0.01
SHORT_DIR = "/tmp"  # not TMPDIR: a unix socket's path has room for a hundred bytes
PREFIX = "pitstop-"
LEFT_S = 60.0  # in a younger directory the launcher may not have taken its lock yet
LINES_KEPT = 20
READY = re.compile(r"pitstop: \S+ is ready \((\d+) of (\d+)\)$")
HERE = pathlib.Path(__file__).resolve().parent

UNKNOWN = re.compile(r"unrecognized arguments: (.*) \(--help")


def launcher() -> pathlib.Path:
    """The launcher of the wheel, or of the sources around this package. PitstopError: neither exists."""
    for path in (HERE / "_tree" / "launch" / "pitstop", HERE.parents[2] / "launch" / "pitstop"):
        if path.is_file():
            return path
    on_path = shutil.which("pitstop")
    if on_path:
        return pathlib.Path(on_path)
    raise PitstopError(
        "not_found",
        "no launcher is installed with this client: install the wheel, or join a tree with run_dir=, url= or data=",
    )


def bundled_or_path(model: Any) -> str:
    """Returns the directory of the bundled model with this name; the path of an existing directory; or `model`."""
    name = os.fspath(model)
    if os.path.isdir(name):
        return os.path.abspath(name)
    try:
        bundled = launcher().resolve().parent / "models" / name
    except PitstopError:
        return name  # a client without the models: the tree is elsewhere
    return str(bundled) if os.sep not in name and (bundled / "config.json").is_file() else name


def flags_of(options: Mapping[str, Any]) -> list[str]:
    """The flags of serve: page_size=16 is --page-size=16, deterministic=True is --deterministic. PitstopError: as in
    start_options.py."""
    flags = []
    for name, value in tree_options(options).items():
        flag = "--" + name.replace("_", "-")
        if value is True:
            flags.append(flag)
        elif isinstance(value, (list, tuple)):
            flags += [flag, *map(str, value)]
        elif value is not None and value is not False:
            flags.append(f"{flag}={value}")
    return flags


class _Launcher(threading.Thread):
    """Owns: the launcher's process. The kernel kills that process when the thread that started it ends, so this thread
    lives as long as the process."""

    def __init__(self, command: list[str], progress: Progress):
        super().__init__(name="pitstop-tree", daemon=True)
        self._command = command
        self._progress = progress
        self.lines: collections.deque[str] = collections.deque(maxlen=LINES_KEPT)  # the last lines of its output
        self.process: Optional[subprocess.Popen] = None
        self.failure: Optional[OSError] = None
        self.is_started = threading.Event()
        self.is_ready = False

    def run(self) -> None:
        try:
            # A session of its own: Ctrl-C reaches the program only, which then ends its tree.
            self.process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                start_new_session=True,
            )
        except OSError as error:
            self.failure = error
            return
        finally:
            self.is_started.set()
        for line in self.process.stderr:
            ready = READY.match(line.rstrip())
            if ready:
                self._progress.go_to(int(ready[1]), int(ready[2]))
            else:
                self.lines.append(line.rstrip())
                if self.is_ready or " waiting for " in line:
                    print(line, end="", file=sys.stderr, flush=True)
        self.process.wait()

    def say_ready(self) -> None:
        """Called after a successful start: prints the lines so far, and each later line at once. After a failed start
        the exception has the lines."""
        self.is_ready = True
        for line in list(self.lines):
            print(line, file=sys.stderr, flush=True)

    def end(self) -> None:
        self.is_started.wait()
        if self.process is None:
            return
        if self.process.poll() is None:
            self.process.terminate()
        try:
            self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def _end(keeper: _Launcher, place: str) -> None:
    keeper.end()
    shutil.rmtree(place, ignore_errors=True)


def _sweep() -> None:
    """Removes the directories of trees whose programs were killed: their launcher's lock is free."""
    for lock in pathlib.Path(SHORT_DIR).glob(f"{PREFIX}????????/tree/launcher.lock"):
        try:
            about = lock.stat()
            if about.st_uid != os.geteuid() or time.time() - about.st_mtime < LEFT_S:
                continue
            with open(lock) as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(lock.parents[1], ignore_errors=True)
        except OSError:
            continue  # its launcher is alive, or another program removes it


class LocalTree:
    """A tree that ends with stop(), with this object, or with this program, however the program ends."""

    def __init__(self, options: Mapping[str, Any], start_timeout: float, is_shown: Optional[bool] = None):
        _sweep()
        place = tempfile.mkdtemp(prefix=PREFIX, dir=SHORT_DIR)
        self.run_dir = os.path.join(place, "tree")
        command = [sys.executable, str(launcher()), "serve", f"--run-dir={self.run_dir}", "--end-with-parent"]
        command += ["--progress", f"--start-timeout={start_timeout:g}", *flags_of(options)]
        with Progress("starting", 1, is_shown, "process") as progress:
            self._launcher = _Launcher(command, progress)
            self._launcher.start()
            self._finalizer = weakref.finalize(self, _end, self._launcher, place)
            try:
                self._wait_ready(start_timeout + STOP_S)
            except BaseException:
                self.stop()
                raise

    def _wait_ready(self, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        self._launcher.is_started.wait()
        if self._launcher.failure is not None:
            raise PitstopError("unavailable", f"the launcher cannot be started: {self._launcher.failure}")
        while not self.tree_file.exists():
            if not self.is_running:
                self._launcher.join(STOP_S)  # reads the last lines
                said = "; ".join(self._launcher.lines) or f"exit code {self._launcher.process.returncode}"
                if unknown := UNKNOWN.search(said):
                    names = ", ".join(
                        flag.partition("=")[0].strip("-").replace("-", "_") for flag in unknown[1].split()
                    )
                    raise TypeError(f"Engine() got an unexpected keyword argument: {names}")
                raise PitstopError("failed_precondition", f"the tree did not start: {said}")
            if time.monotonic() > deadline:
                raise PitstopError("deadline_exceeded", f"the tree was not ready after {timeout:g} s")
            time.sleep(POLL_S)
        self._launcher.say_ready()

    @property
    def tree_file(self) -> pathlib.Path:
        return pathlib.Path(self.run_dir) / "tree.json"

    @property
    def is_running(self) -> bool:
        return self._launcher.process.poll() is None

    @property
    def url(self) -> Optional[str]:
        """The URL of HTTP; None: there is no HTTP."""
        return json.loads(self.tree_file.read_text())["url"]

    def stop(self) -> None:
        """Ends the tree and removes its directory."""
        self._finalizer()


def _trees_with_http() -> list[tuple[str, str]]:
    """[(run directory, url)] of this user's trees with HTTP."""
    found = []
    for process in pathlib.Path("/proc").iterdir():
        try:
            if not process.name.isdigit() or process.stat().st_uid != os.geteuid():
                continue
            program, *flags = process.joinpath("cmdline").read_bytes().decode(errors="replace").split("\0")
            if os.path.basename(program) != "pitstop_http_proc":
                continue
            run_dir = next(flag.partition("=")[2] for flag in flags if flag.startswith("--run-dir="))
            tree = json.loads(pathlib.Path(run_dir, "tree.json").read_text())
        except (OSError, StopIteration, ValueError):
            continue  # the tree has just ended, or the HTTP is another front end's
        if tree.get("url"):
            found.append((run_dir, tree["url"]))
    return sorted(set(found))


def find_by_url(url: str) -> str:
    """The run directory of this user's tree on this machine whose HTTP has this URL. PitstopError "not_found": there is
    none."""
    asked = urllib.parse.urlsplit(url if "://" in url else f"http://{url}")
    trees = _trees_with_http()
    for run_dir, own in trees:
        place = urllib.parse.urlsplit(own)
        is_local = asked.hostname == "localhost" or (asked.hostname or "").startswith("127.")
        if asked.port == place.port and (asked.hostname == place.hostname or is_local):
            return run_dir
    others = ", ".join(each for _, each in trees) or "none of this user's trees has HTTP"
    raise PitstopError(
        "not_found",
        f"no tree of this user on this machine listens at {url} ({others}); one elsewhere is joined with data=, "
        "admin= and key=",
    )
