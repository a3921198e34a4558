"""The files of a model's directory besides its weights: config.json, the tokenizer's files, the chat template.

A restart restores the committed version: its weights and these files. The directory may have changed since the start,
or be gone; so the launcher remembers the files.
"""

import os
import pathlib

ENDINGS = (".json", ".txt", ".model", ".jinja")
FILE_BYTES_MAX = 64 << 20
FILES_MAX = 64


def _read(directory):
    """Returns {name: bytes}. OSError: the directory cannot be read. Leaves out files over the bounds; the tree
    refuses them."""
    found = {}
    for name in sorted(os.listdir(directory)):
        path = pathlib.Path(directory) / name
        is_small = name.endswith(ENDINGS) and not name.endswith(".index.json") and not name.startswith(".")
        if not is_small or not path.is_file() or path.stat().st_size > FILE_BYTES_MAX:
            continue
        if len(found) == FILES_MAX:
            break
        found[name] = path.read_bytes()
    return found


class ModelFiles:
    """The files of a directory as they are now."""

    def __init__(self, directory):
        self._directory = directory
        try:
            self._files = _read(directory)
        except OSError:
            self._files = {}  # the starting tree reports what is wrong with the directory

    def what_changed(self):
        """Describes in a line which files changed, or why the directory cannot be read; empty: nothing changed."""
        try:
            now = _read(self._directory)
        except OSError as error:
            return f"{self._directory}: {error.strerror}"
        names = sorted(name for name in {*now, *self._files} if now.get(name) != self._files.get(name))
        return f"{' and '.join(names)} in {self._directory} changed" if names else ""

    def write(self, directory):
        """Makes the directory with the files as they were. OSError: the disk is full."""
        os.mkdir(directory, 0o700)
        for name, data in self._files.items():
            (pathlib.Path(directory) / name).write_bytes(data)
