"""Plots throughput against concurrent requests: plot FIGURES.json OUT.png, in the peers' environment."""

from __future__ import annotations

import json
import pathlib
import statistics
import sys


def draw(figures: pathlib.Path, out: pathlib.Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    report = json.loads(figures.read_text())
    rows = report["concurrency"]
    figure, axes = pyplot.subplots(figsize=(7, 4), dpi=130)
    for name, engine in report["engines"].items():
        rates = [[run["decode_tokens_per_s"] for run in point["figures"][name]] for point in report["curve"]]
        medians = [statistics.median(each) for each in rates]
        below = [middle - min(each) for middle, each in zip(medians, rates)]
        above = [max(each) - middle for middle, each in zip(medians, rates)]
        axes.errorbar(rows, medians, yerr=[below, above], marker="o", capsize=3, label=engine["version"])
    axes.set_xscale("log", base=2)
    axes.set_xticks(rows, [str(each) for each in rows])
    axes.set_xlabel("requests at once")
    axes.set_ylabel("tokens made per second")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(out)


if __name__ == "__main__":
    draw(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))
