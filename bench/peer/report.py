"""The page of the comparison, and the plot of throughput against concurrent requests."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import platform
import statistics
import subprocess
from typing import Any, Sequence

from .pairs import Engine, Measured
from .rows import CURVE, Row


def _head(engines: Sequence[Engine], command: str, num_pairs: int, shape: str) -> list[str]:
    cpu = next(
        (line.split(":", 1)[1].strip() for line in open("/proc/cpuinfo", encoding="utf-8") if "model name" in line),
        platform.processor(),
    )
    return [
        "# pitstop beside other engines",
        "",
        f"`{command}` on {cpu}, {os.cpu_count()} threads, Linux {platform.release()}; one model for all, random "
        f"weights in the shape of {shape}, bf16. {num_pairs} runs of each engine in turn, after one that is not "
        "counted. The ratio is of the medians, and in brackets the least and the largest of a pair. A share of the "
        "limit is of the longer of what must be read and what must be multiplied, at rates that were measured beside "
        "each run.",
        "",
        *(f"* {engine.version}: ready after {engine.ready_s:.1f} s" for engine in engines),
        "",
    ]


def table(
    rows: Sequence[tuple[Row, Measured]], engines: Sequence[Engine], command: str, num_pairs: int, shape: str
) -> str:
    """`shape` describes the model in words."""
    peers = [engine.name for engine in engines if engine.name != "pitstop"]
    lines = _head(engines, command, num_pairs, shape)
    heads = ["work", "pitstop, tokens/s", *(f"{peer}, tokens/s" for peer in peers)]
    heads += [*(f"pitstop / {peer}" for peer in peers), "targets", "of the limit"]
    lines += ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for row, measured in rows:
        cells = [row.name]
        for name in ("pitstop", *peers):
            least, most = measured.range(name, row.figure)
            cells.append(f"{measured.median(name, row.figure):,.0f} ({least:,.0f} to {most:,.0f})")
        targets = []
        for peer in peers:
            ratio, least, most = measured.ratio(peer, row.figure)
            cells.append(f"{ratio:.2f} ({least:.2f} to {most:.2f})")
            if peer in row.target:
                holds = "holds" if ratio >= row.target[peer] else "MISSED"
                targets.append(f"{row.target[peer]:g} of {peer}: {holds}")
        shares = [each[row.figure] for each in measured.of_limit if row.figure in each]
        share = statistics.median(shares) if shares else None
        if row.of_limit is not None and share is not None:
            targets.append(f"{row.of_limit:.0%} of the limit: {'holds' if share >= row.of_limit else 'MISSED'}")
        cells += ["; ".join(targets) or "none", f"{share:.0%}" if share is not None else "not known"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def figures_json(
    rows: Sequence[tuple[Row, Measured]], curve: Sequence[Measured], engines: Sequence[Engine], command: str
) -> dict[str, Any]:
    return {
        "command": command,
        "engines": {engine.name: {"version": engine.version, "ready_s": engine.ready_s} for engine in engines},
        "rows": [{"row": dataclasses.asdict(row), **dataclasses.asdict(measured)} for row, measured in rows],
        "concurrency": [each.rows for each in CURVE],
        "curve": [dataclasses.asdict(measured) for measured in curve],
    }


def plot(python: pathlib.Path, figures: pathlib.Path, out: pathlib.Path, root: pathlib.Path) -> None:
    subprocess.run([str(python), "-m", "bench.peer.plot", str(figures), str(out)], cwd=root, check=True)


def write_json(path: pathlib.Path, report: dict[str, Any]) -> None:
    path.write_text(json.dumps(report, indent=1) + "\n")
