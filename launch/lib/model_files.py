"""Keeps what a model's directory holds beside its weights: config.json, the tokenizer's files, the chat template.

A restart brings the committed version back, which is the weights and what is computed with them. The
directory may have changed since the start, or be gone; so the launcher remembers these files."""

import os
import pathlib

ENDINGS = (".json", ".txt", ".model", ".jinja")
FILE_BYTES_MAX = 64 << 20
FILES_MAX = 64


def _read(directory):
    """Reads bytes by name. OSError: it cannot be read. Files beyond the bounds are left to the tree to refuse."""
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
    """Holds the files of a directory as they are now."""

    def __init__(self, directory):
        self._directory = directory
        try:
            self._files = _read(directory)
        except OSError:
            self._files = {}  # the tree that is about to start says what is wrong with it

    def what_changed(self):
        """Says for a line which files changed, or why the directory cannot be read; empty: nothing changed."""
        try:
            now = _read(self._directory)
        except OSError as error:
            return f"{self._directory}: {error.strerror}"
        names = sorted(name for name in {*now, *self._files} if now.get(name) != self._files.get(name))
        return f"{' and '.join(names)} in {self._directory} changed" if names else ""

    def write(self, directory):
        """Makes the directory, with the files as they were. OSError: there is no room for them."""
        os.mkdir(directory, 0o700)
        for name, data in self._files.items():
            (pathlib.Path(directory) / name).write_bytes(data)
