"""The results of a run so far, one line of JSON each, so that an interrupted run can be resumed."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from typing import Any, Sequence

from .pairs import Engine, Measured
from .rows import Figures, Workload


def of_run(engines: Sequence[Engine], num_pairs: int) -> dict[str, Any]:
    """Identifies a run: only results with equal identities may be combined. The engines' versions include
    commits or releases."""
    return {"pairs": num_pairs, "engines": [engine.version for engine in engines]}


class Journal:
    def __init__(self, path: pathlib.Path, run: dict[str, Any], resume: bool) -> None:
        """With `resume`, loads the file's results if they belong to the same run. Otherwise starts an empty file."""
        self._path = path
        self._measured: dict[str, Measured] = {}
        lines = path.read_text().splitlines() if resume and path.exists() else []
        if not lines or json.loads(lines[0]) != run:
            path.write_text(json.dumps(run) + "\n")
            return
        for line in lines[1:]:
            kept = json.loads(line)
            figures = {name: [Figures(**each) for each in runs] for name, runs in kept["figures"].items()}
            self._measured[kept["key"]] = Measured(figures, kept["of_limit"])

    def find(self, workload: Workload, num_pairs: int) -> Measured | None:
        return self._measured.get(_key(workload, num_pairs))

    def keep(self, workload: Workload, num_pairs: int, measured: Measured) -> None:
        line = json.dumps({"key": _key(workload, num_pairs), **dataclasses.asdict(measured)})
        with open(self._path, "a", encoding="utf-8") as file:
            file.write(line + "\n")

    def remove(self) -> None:
        """Deletes the file. Called after the run's page is written."""
        self._path.unlink(missing_ok=True)


def _key(workload: Workload, num_pairs: int) -> str:
    return f"{num_pairs} x {workload}"
