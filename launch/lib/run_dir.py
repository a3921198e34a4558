"""Keeps the run directory: one private place (mode 0700) per tree, for its sockets.

    launcher.lock   held (flock) by the launcher while it lives: who can take it finds a dead tree
    tree.json       pids and flags, once the tree is ready
    *.sock          the processes' sockets (bus/run_dir.h)
    launcher.model  what lay beside the weights at the start, once the model's directory has changed
    ranks-*         how the workers of a replica find their shared memory

Trees that were given no place live side by side under one private directory of the user, where a client
finds them (registry.py). What a killed launcher left there is removed by the next one.
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
SOCKET_PATH_BYTES_MAX = 107  # sockaddr_un, without its end
LONGEST_SOCKET = "/requests-9999.sock"


def home():
    """Returns where trees without a place of their own live."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and os.path.isdir(runtime):
        return pathlib.Path(runtime) / "pitstop"
    return pathlib.Path("/tmp") / f"pitstop-{os.getuid()}"


def check_private(path):
    info = os.lstat(path)
    if not stat.S_ISDIR(info.st_mode):
        raise Problem(f"{path} is not a directory", EXIT_PLACE)
    if info.st_uid != os.geteuid() or info.st_mode & 0o077:
        raise Problem(
            f"{path} must be this user's and closed to others (chmod 700 {path})", EXIT_PLACE
        )


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
    """Returns the open lock file, or None while somebody holds it."""
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
        os.close(lock)  # its last owner removed it between the two calls: take the new one


def _remove_files(path, keep=()):
    """Removes ours only: a directory the user named may hold other things."""
    for name in os.listdir(path):
        is_ours = name in (LOCK, TREE, TREE + ".new") or ".sock" in name or name.startswith("ranks-")
        if is_ours and name not in keep:
            (path / name).unlink(missing_ok=True)
    shutil.rmtree(path / MODEL, ignore_errors=True)


@contextlib.contextmanager
def _unmade(path, is_made):
    """Removes a directory that was made here where it cannot be held."""
    try:
        yield
    except OSError:
        if is_made:
            path.rmdir()
        raise


def _gate(place):
    """Is held while directories in home() come and go; elsewhere for a few system calls at most."""
    gate = os.open(place / ".gate", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(gate, fcntl.LOCK_EX)
    return gate


class RunDir:
    """Is a tree's place, held until remove()."""

    def __init__(self, path, lock, is_made):
        self.path = path
        self._lock = lock
        self._is_made = is_made  # here, so it goes with the tree

    @classmethod
    def hold(cls, named):
        """Takes the one `named` by the user, or None: a new one in home()."""
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
        gate = _gate(place)  # so that nobody removes one that is not locked yet
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
        """Removes what the processes left, between two lives of a tree in one place."""
        try:
            _remove_files(self.path, keep=(LOCK,))
        except OSError as error:
            raise Problem.of("run directory", error, EXIT_PLACE) from error

    def remove(self):
        """Removes it as far as it can be: what stays is removed by the next launcher that starts here."""
        with contextlib.suppress(OSError):
            _remove_files(self.path)
        with contextlib.suppress(OSError):  # also where no descriptor is left to list the others
            (self.path / LOCK).unlink(missing_ok=True)
        if self._is_made:
            with contextlib.suppress(OSError):  # somebody keeps files of their own in it
                self.path.rmdir()
        os.close(self._lock)
