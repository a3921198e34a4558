"""The protocol between bench/peers and an engine's process: one line of JSON in, one line of JSON out.

An engine says {"ready": seconds, "version": text} when it has loaded, then answers each {"rows", "prompt", "output",
"seed"} with Figures' fields. All other output goes to standard error.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import time
from typing import Callable, Sequence

from .rows import Figures, Workload, figures_of

Times = dict[int, list[float]]  # per request: the arrival time of each token


class EngineEnded(RuntimeError):
    """An engine's process ended early. The message has the last line of its log."""

    def __init__(self, name: str, exit_code: int, log: str | pathlib.Path):
        lines = pathlib.Path(log).read_text(encoding="utf-8", errors="replace").strip().splitlines()
        last = f", at last: {lines[-1]}" if lines else ""
        super().__init__(f"{name} ended with {exit_code}; it said: {log}{last}")


def prompts_of(workload: Workload, vocab_size: int, seed: int) -> list[list[int]]:
    """Random token ids, below the special ones at the end of the vocabulary."""
    import numpy  # imported here because bench/peers itself does not need numpy

    random = numpy.random.default_rng(seed)
    return random.integers(0, vocab_size - 1024, (workload.rows, workload.prompt)).tolist()


def serve(load: Callable[[], tuple[str, int]], run: Callable[[list[list[int]], int], Times]) -> None:
    """Runs in the engine's process. `load` returns its version and the vocabulary's size; `run` takes prompts and an
    output length, and returns time.perf_counter() of every token."""
    try:
        import numpy  # noqa: F401  (before the engine loads, which may take minutes)
    except ImportError:
        sys.exit(
            f"{sys.executable} has no NumPy, which makes prompts: `bench/peers install` makes a Python that has it"
        )
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # engines print to standard output, which is the protocol's
    begin = time.perf_counter()
    version, vocab_size = load()
    print(json.dumps({"ready": time.perf_counter() - begin, "version": version}), file=answers, flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        workload = Workload(order["rows"], order["prompt"], order["output"])
        prompts = prompts_of(workload, vocab_size, order["seed"])
        begin = time.perf_counter()
        times = run(prompts, workload.output)
        print(json.dumps(dataclasses.asdict(figures_of(workload, begin, times))), file=answers, flush=True)


class EngineProcess:
    """An engine that loads once and then runs each requested workload."""

    def __init__(self, name: str, command: Sequence[str], env: dict[str, str], log: str):
        self.name = name
        with open(log, "w", encoding="utf-8") as errors:
            self._process = subprocess.Popen(
                command,
                env={**os.environ, **env},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        self._log = log
        hello = self._read()
        self.ready_s = float(hello["ready"])
        self.version = str(hello["version"])

    def run(self, workload: Workload, seed: int) -> Figures:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({**dataclasses.asdict(workload), "seed": seed}) + "\n")
        self._process.stdin.flush()
        return Figures(**self._read())

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _read(self) -> dict[str, float]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise EngineEnded(self.name, self._process.wait(), self._log)
        answer = json.loads(line)
        if not isinstance(answer, dict):
            raise RuntimeError(f"{self.name} said {line!r}")
        return answer
