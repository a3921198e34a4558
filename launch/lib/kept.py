"""Locks the directory of --keep-committed, and finds the complete versions and adapters in it.

The workers write the latest committed version (tp_worker/update/kept_directory.h) and the loaded adapters
(adapter_keeper.h) there.
"""

import fcntl
import os
import pathlib
import re
import shutil

from problem import EXIT_PLACE, Problem

LOCK = ".lock"
ADAPTER = re.compile(r"\.?adapter-\d+")
NAME = re.compile(r"committed-(\d{8})-([0-9a-f]{32})")


class KeptVersions:
    """Owns: the directory's lock, until close()."""

    def __init__(self, path, lock):
        self.path = path
        self._lock = lock

    @classmethod
    def hold(cls, named):
        """Makes the directory if it does not exist. Problem: it cannot be used, or another tree uses it."""
        path = pathlib.Path(named).absolute()
        try:
            path.mkdir(mode=0o700, exist_ok=True)
            lock = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise Problem.of("--keep-committed", error, EXIT_PLACE) from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(lock)
            if isinstance(error, BlockingIOError):
                line = f"--keep-committed {path}: another tree keeps its versions there"
                raise Problem(line, EXIT_PLACE) from error
            raise Problem.of("--keep-committed", error, EXIT_PLACE) from error
        return cls(path, lock)

    def find(self, digest):
        """Returns the directory of the complete version with that digest, or None."""
        try:
            names = sorted(os.listdir(self.path), reverse=True)
        except OSError:
            return None
        for name in names:
            if (match := NAME.fullmatch(name)) and match[2] == digest:
                return str(self.path / name)
        return None

    def find_adapter(self, version):
        """Returns the directory of that complete version of an adapter, or None."""
        path = self.path / f"adapter-{version}"
        return str(path) if path.is_dir() else None

    def remove_adapters(self, needed):
        """Removes the adapters of this and earlier trees, except those whose directories are `needed`."""
        for pattern in (".adapter-*", "adapter-*"):
            for path in self.path.glob(pattern):
                if ADAPTER.fullmatch(path.name) and str(path) not in needed:
                    shutil.rmtree(path, ignore_errors=True)

    def close(self):
        os.close(self._lock)
