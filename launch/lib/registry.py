"""Finds the trees of this user on this machine.

A tree without --run-dir has a directory under home(). A tree with --run-dir registers its path there, in a file
`PID.tree` named after its launcher, so that commands without --run-dir find the tree, too. A reader removes the entries
of trees that are gone.

Trees that a program started for itself (pitstop.Engine, a generate without a tree) end with that program. A command
uses such a tree only if it is named, so that no notebook's tree is paused or updated by accident.
"""

import contextlib
import dataclasses
import errno
import fcntl
import json
import os
import pathlib
import time

from problem import EXIT_PLACE, Problem
from run_dir import LOCK, TREE, check_private, home

ENTRY = ".tree"
ENTRY_BYTES_MAX = 4096


@dataclasses.dataclass(frozen=True)
class Known:
    """A running tree, as described in its launcher's file."""

    run_dir: pathlib.Path
    model: str
    url: str  # empty: no HTTP
    started: float  # seconds since the epoch
    of_program: int  # the pid of the program that started the tree for itself; 0: it was started by hand

    @classmethod
    def read(cls, run_dir):
        """OSError or ValueError: there is no tree, or it is ending."""
        facts = json.loads((run_dir / TREE).read_text())
        return cls(
            run_dir,
            str(facts.get("served_model_name", "")),
            facts.get("url") or "",
            float(facts.get("started") or (run_dir / TREE).stat().st_mtime),
            int(facts.get("of_program") or 0),
        )

    def age(self):
        seconds = max(0, int(time.time() - self.started))
        for size, unit in ((86400, "days"), (3600, "h"), (60, "min")):
            if seconds >= 2 * size:
                return f"{seconds // size} {unit}"
        return f"{seconds} s"

    def __str__(self):
        return f"{self.model} at {self.url or 'no HTTP'}, run directory {self.run_dir}"

    def listed(self):
        owner = f", of the program with pid {self.of_program}" if self.of_program else ""
        return f"  --run-dir {self.run_dir}   {self.model} at {self.url or 'no HTTP'}, up {self.age()}{owner}"


class Entry:
    """A tree's entry under home(), until remove(). There is no entry if the disk is full."""

    def __init__(self, run_dir):
        self._path = None
        place = home()
        if pathlib.Path(run_dir).parent == place:
            return  # home() is searched for trees, so no entry is needed
        with contextlib.suppress(OSError, Problem):
            place.mkdir(mode=0o700, exist_ok=True)
            check_private(place)
            path = place / f"{os.getpid()}{ENTRY}"
            new = place / f".{os.getpid()}{ENTRY}"
            new.write_bytes(os.fsencode(str(run_dir)))
            new.rename(path)
            self._path = path

    def remove(self):
        if self._path is not None:
            with contextlib.suppress(OSError):
                self._path.unlink(missing_ok=True)


def _state(path):
    """Returns "gone", "starting" or "live". OSError: the state cannot be read."""
    try:
        lock = os.open(path / LOCK, os.O_RDWR | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return "gone"
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return "gone"
    except BlockingIOError:
        return "live" if (path / TREE).exists() else "starting"
    finally:
        os.close(lock)


def _directories(place):
    """Yields the directories in which this user's trees may run."""
    for path in sorted(place.iterdir()):
        if path.name.endswith(ENTRY) and not path.name.startswith("."):
            try:
                named = pathlib.Path(os.fsdecode(path.read_bytes()[:ENTRY_BYTES_MAX]))
                if _state(named) == "gone":
                    path.unlink(missing_ok=True)
                    continue
            except (OSError, ValueError):
                continue
            yield named
        elif path.is_dir():
            yield path


def running():
    """Returns every tree of this user that is ready."""
    place = home()
    if not place.is_dir():
        return []
    check_private(place)
    found = []
    for path in _directories(place):
        with contextlib.suppress(OSError, ValueError):  # the tree is ending, or belongs to another user
            if _state(path) == "live":
                found.append(Known.read(path))
    return found


def _named(name):
    path = pathlib.Path(name).absolute()
    try:
        if _state(path) == "live":
            return Known.read(path)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM):
            raise Problem.of("run directory", error, EXIT_PLACE) from error
        raise Problem(f"{path} cannot be read: it belongs to another user", EXIT_PLACE) from error
    except ValueError as error:
        raise Problem(f"{path / TREE} does not describe a tree: {error}", EXIT_PLACE) from error
    raise Problem(f"no tree runs in {path}", EXIT_PLACE)


def _list(trees):
    return "\n" + "\n".join(tree.listed() for tree in trees)


def find(named):
    """Returns the tree `named`, otherwise the only one started by hand, or None. Problem: there are several."""
    if named:
        return _named(named)
    by_hand = [tree for tree in running() if not tree.of_program]
    if len(by_hand) > 1:
        raise Problem(f"{len(by_hand)} trees run: name one{_list(by_hand)}", EXIT_PLACE)
    return by_hand[0] if by_hand else None


def require(named, program):
    """Calls find(). Problem: no tree runs."""
    tree = find(named)
    if tree is None:
        others = running()
        own = f"; trees that programs started must be named{_list(others)}" if others else ""
        raise Problem(f"no tree runs; start one with {program} serve{own}", EXIT_PLACE)
    return tree
