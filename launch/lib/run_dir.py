"""The run directory: one private directory (mode 0700) per tree, for its sockets.

    launcher.lock   locked (flock) by the launcher; if the lock is free, the tree is dead
    tree.json       pids and flags, once the tree is ready
    *.sock          the processes' sockets (bus/run_dir.h)
    launcher.model  the model's other files as at the start, if its directory has changed since
    lost-adapters   the adapters that were loaded before a restart
    ranks-*         files by which the workers of a replica find their shared memory

Trees without --run-dir have directories under one private directory of the user, where a client finds them
(registry.py). A launcher removes the directories that killed launchers left there.
"""

import contextlib
import fcntl
import json
import os
import pathlib
import shutil
import stat

from problem import EXIT_PLACE, Problem

LOCK = "launcher.lock"
MODEL = "launcher.model"
TREE = "tree.json"
LOST_ADAPTERS = "lost-adapters"
SOCKET_PATH_BYTES_MAX = 107  # the size of sockaddr_un's path without the final zero
LONGEST_SOCKET = "/requests-9999.sock"


def home():
    """Returns the directory of trees without --run-dir."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and os.path.isdir(runtime):
        return pathlib.Path(runtime) / "pitstop"
    return pathlib.Path("/tmp") / f"pitstop-{os.getuid()}"


def check_private(path):
    info = os.lstat(path)
    if not stat.S_ISDIR(info.st_mode):
        raise Problem(f"{path} is not a directory", EXIT_PLACE)
    if info.st_uid != os.geteuid() or info.st_mode & 0o077:
        raise Problem(f"{path} must be this user's and closed to others (chmod 700 {path})", EXIT_PLACE)


def _check_length(path):
    size = len(os.fsencode(str(path)))
    most = SOCKET_PATH_BYTES_MAX - len(LONGEST_SOCKET)
    if size > most:
        raise Problem(
            f"run directory {path} is too long for unix sockets: {size} bytes, at most {most}; "
            "give a shorter one with --run-dir",
            EXIT_PLACE,
        )


def _try_lock(path):
    """Returns the open lock file, or None if another process has the lock."""
    while True:
        lock = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(lock), os.stat(path / LOCK)):
                return lock
        except BlockingIOError:
            os.close(lock)
            return None
        except FileNotFoundError:
            pass
        os.close(lock)  # the last owner removed the file between the two calls: lock the new one


def _remove_files(path, keep=()):
    """Removes only our files: a directory that the user named may contain others."""
    for name in os.listdir(path):
        is_ours = name in (LOCK, TREE, TREE + ".new", LOST_ADAPTERS) or ".sock" in name or name.startswith("ranks-")
        if is_ours and name not in keep:
            (path / name).unlink(missing_ok=True)
    shutil.rmtree(path / MODEL, ignore_errors=True)


@contextlib.contextmanager
def _unmade(path, is_made):
    """Removes a directory that was made here but cannot be locked."""
    try:
        yield
    except OSError:
        if is_made:
            path.rmdir()
        raise


def _gate(place):
    """A lock for adding and removing directories in home(); held only for a few system calls."""
    gate = os.open(place / ".gate", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(gate, fcntl.LOCK_EX)
    return gate


class RunDir:
    """A tree's run directory, locked until remove()."""

    def __init__(self, path, lock, is_made):
        self.path = path
        self._lock = lock
        self._is_made = is_made  # made by this program, which removes it at the end

    @classmethod
    def hold(cls, named):
        """Locks the directory `named` by the user; None: makes one in home()."""
        try:
            return cls._hold_named(pathlib.Path(named).absolute()) if named else cls._hold_new()
        except OSError as error:
            raise Problem.of("run directory", error, EXIT_PLACE) from error

    @classmethod
    def _hold_named(cls, path):
        _check_length(path)
        is_made = not path.exists()
        if is_made:
            path.mkdir(mode=0o700)
        check_private(path)
        with _unmade(path, is_made):
            lock = _try_lock(path)
        if lock is None:
            raise Problem(f"a tree already runs in {path}", EXIT_PLACE)
        held = cls(path, lock, is_made)
        try:
            held.clear()
        except Problem:
            held.remove()
            raise
        return held

    @classmethod
    def _hold_new(cls):
        place = home()
        _check_length(place / "9999999")
        place.mkdir(mode=0o700, exist_ok=True)
        check_private(place)
        gate = _gate(place)  # so that no other launcher removes a directory that is not locked yet
        try:
            for old in place.iterdir():
                if old.is_dir() and (lock := _try_lock(old)) is not None:
                    shutil.rmtree(old, ignore_errors=True)
                    os.close(lock)
            path = place / str(os.getpid())
            path.mkdir(mode=0o700)
            with _unmade(path, True):
                return cls(path, _try_lock(path), True)
        finally:
            os.close(gate)

    def write_tree(self, facts):
        new = self.path / (TREE + ".new")
        try:
            new.write_text(json.dumps(facts, indent=1) + "\n")
            new.rename(self.path / TREE)
        except OSError as error:
            raise Problem.of("run directory", error, EXIT_PLACE) from error

    def clear(self):
        """Removes the processes' files before the tree is started again in this directory."""
        try:
            _remove_files(self.path, keep=(LOCK,))
        except OSError as error:
            raise Problem.of("run directory", error, EXIT_PLACE) from error

    def remove(self):
        """Removes as many files as possible; the next launcher in this directory removes the others."""
        with contextlib.suppress(OSError):
            _remove_files(self.path)
        with contextlib.suppress(OSError):  # also if _remove_files() failed, for lack of a descriptor
            (self.path / LOCK).unlink(missing_ok=True)
        if self._is_made:
            with contextlib.suppress(OSError):  # the user has other files in it
                self.path.rmdir()
        os.close(self._lock)
