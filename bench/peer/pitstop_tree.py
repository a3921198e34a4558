"""pitstop as one of the compared engines: a tree, driven by pitstop_bench over the bus."""

from __future__ import annotations

import json
import pathlib
import subprocess
import tempfile
import time

from .protocol import EngineEnded
from .rows import Figures, Workload

ADAPTER = "adapter"  # the name under which the tree has it


class PitstopTree:
    name = "pitstop"

    def __init__(
        self,
        root: pathlib.Path,
        build: pathlib.Path,
        model: pathlib.Path,
        log: pathlib.Path,
        adapter: pathlib.Path | None = None,
    ):
        self._bench = build / "bin/pitstop_bench"
        self._home = tempfile.TemporaryDirectory(prefix="peers-")
        self.run_dir = pathlib.Path(self._home.name) / "run"
        self.of_limit: dict[str, float] = {}  # the last workload's share of the limit measured next to it
        begin = time.perf_counter()
        with open(log, "w", encoding="utf-8") as errors:
            self._tree = subprocess.Popen(
                [
                    str(root / "launch/pitstop"),
                    "serve",
                    "--model",
                    str(model),
                    "--run-dir",
                    str(self.run_dir),
                    "--max-running-requests",
                    "64",
                    "--no-http",
                ],
                stdout=errors,
                stderr=errors,
            )
        while not (self.run_dir / "tree.json").exists():
            if self._tree.poll() is not None:
                raise EngineEnded("the tree", self._tree.returncode, log)
            time.sleep(0.01)
        self._adapter = ADAPTER if adapter else ""
        if adapter:
            command = [
                str(root / "launch/pitstop"),
                "load-adapter",
                ADAPTER,
                str(adapter),
                "--run-dir",
                str(self.run_dir),
            ]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        self.ready_s = time.perf_counter() - begin
        self.version = f"pitstop {_commit(root)}"

    def run(self, workload: Workload, seed: int) -> Figures:
        mode = "stream" if workload.rows == 1 else "offline"  # "stream" also reports prefill's share of its limit
        with tempfile.NamedTemporaryFile(suffix=".json") as out:
            command = [
                str(self._bench),
                mode,
                "--run-dir",
                str(self.run_dir),
                "--num-requests",
                str(workload.rows),
                "--prompt-len",
                str(workload.prompt),
                "--output-len",
                str(workload.output),
                "--warmup",
                "0",
                "--no-text",
                f"--adapter={self._adapter}",
                "--seed",
                str(seed),
                "--json",
                out.name,
            ]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            report = json.loads(pathlib.Path(out.name).read_text())
        self.of_limit = {
            bound["figure"].replace(" tokens/s", "_tokens_per_s"): bound["fraction"] for bound in report["of_limit"]
        }
        figures = report["figures"]
        first = figures["first_token_ms"]["max"] / 1000
        return Figures(
            prefill_tokens_per_s=workload.rows * workload.prompt / first,
            decode_tokens_per_s=figures.get("decode", {}).get("tokens_per_s", 0.0),
            total_tokens_per_s=figures["total_tokens_per_s"],
            seconds=figures["seconds"],
        )

    def close(self) -> None:
        self._tree.terminate()
        self._tree.wait(60)
        self._home.cleanup()


def _commit(root: pathlib.Path) -> str:
    described = subprocess.run(
        ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12"], capture_output=True, text=True
    )
    return described.stdout.strip() or "of no repository"
