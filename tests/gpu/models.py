"""Models of a run, with random weights: each is made once, in memory rather than on a disk, and
removed with the run.
"""

import os
import pathlib
import shutil
import tempfile

import programs
from timed_call import call

MAKE_S = 150.0


class NoModel(Exception):
    """The reason why there is no model. `is_failure`: making it failed; otherwise there was no place
    for it.
    """

    def __init__(self, why, is_failure):
        super().__init__(why)
        self.is_failure = is_failure


class Models:
    """Makes each model once. Models in a caller's folder stay for the next run."""

    def __init__(self, folder, environment):
        self._kept = folder
        self._environment = environment
        self._made_in = []

    def get(self, name, arguments, num_bytes, budget):
        """Returns the directory of model `name`. NoModel: the reason why not."""
        for folder in [self._kept, *self._made_in] if self._kept else self._made_in:
            if (folder / name).exists():
                return folder / name
        folder = self._kept or self._new_folder(num_bytes)
        draft = folder / f".{name}"  # an interrupted draft does not count as complete
        shutil.rmtree(draft, ignore_errors=True)
        command = [programs.program("make_model"), *arguments, draft]
        ended = call(command, self._environment, max(1.0, min(MAKE_S, budget.left())))
        if ended.code != 0:
            shutil.rmtree(draft, ignore_errors=True)
            raise NoModel(ended.last_lines(), is_failure=True)
        draft.rename(folder / name)
        return folder / name

    def remove(self):
        for folder in self._made_in:
            shutil.rmtree(folder, ignore_errors=True)
        self._made_in = []

    def _new_folder(self, num_bytes):
        for base in ("/dev/shm", tempfile.gettempdir()):
            if os.access(base, os.W_OK) and shutil.disk_usage(base).free > 1.1 * num_bytes:
                self._made_in.append(pathlib.Path(tempfile.mkdtemp(prefix="pitstop-models-", dir=base)))
                return self._made_in[-1]
        raise NoModel(f"no place for {num_bytes / 1e9:.1f} GB of weights", is_failure=False)
