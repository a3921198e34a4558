"""The command: options, a private directory, one tree after the other, the exit code."""

import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
EPISODE_S = 150.0
MODELS = ("random", "stories", "random-experts", "stories-moe", "random-hybrid", "stories-hybrid")
IN_NAMESPACE = "PITSTOP_CHAOS_NAMESPACE"


def parse(arguments):
    parser = argparse.ArgumentParser(
        prog="launch/chaos",
        description="Trees under load, updates and faults; an independent oracle verifies every token. "
        "Exit code 0: nothing was found.",
    )
    parser.add_argument("--seed", type=int, default=1, help="decides what is done, and in which order (1)")
    parser.add_argument("--minutes", type=float, default=10.0, help="duration (10; a night: 480)")
    parser.add_argument("--episode", type=int, default=0, help="begin with this tree of the seed (0)")
    parser.add_argument("--model", choices=MODELS, help="the model of each tree; default: the seed chooses")
    parser.add_argument(
        "--speculate",
        choices=("auto", *map(str, range(1, 33))),
        metavar="auto|K",
        help="trees verify up to K drafts per row (1 to 32), or as many as let tokens come fastest, except those of "
        "hybrids; default: none",
    )
    parser.add_argument("--verifiers", type=int, default=1, help="processes that verify tokens (1)")
    parser.add_argument("--out", help="directory of the logs; default: one under /tmp, kept if something was found")
    parser.add_argument("--keep-going", action="store_true", help="continue after a finding")
    return parser.parse_args(arguments)


def enter_namespace():
    """Makes this program's mounts private, so that they end with it. False: not possible here."""
    if os.environ.get(IN_NAMESPACE):
        return True
    if os.geteuid() != 0 or not shutil.which("unshare"):
        return False
    unshare = ["unshare", "--mount", "--propagation", "private"]
    if subprocess.run([*unshare, "true"], stderr=subprocess.DEVNULL).returncode:
        return False
    os.environ[IN_NAMESPACE] = "1"
    os.execvp(unshare[0], [*unshare, sys.executable, *sys.argv])


def main(arguments):
    options = parse(arguments)
    has_mounts = enter_namespace()
    sys.path.insert(0, str(ROOT / "client/python"))
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
        os.environ[name] = "1"
    from . import faults
    from .episode import Episode
    from .report import Report

    root = pathlib.Path(tempfile.mkdtemp(prefix="chaos-", dir="/tmp"))
    out = pathlib.Path(options.out) if options.out else root / "logs"
    out.mkdir(parents=True, exist_ok=True)
    report = Report(out, "")
    print(f"launch/chaos --seed {options.seed} --minutes {options.minutes:g}: logs in {out}", flush=True)
    try:
        place = faults.Place(root, has_mounts)
        for name, why in place.missing.items():
            report.count("skipped", f"{name}: {why}")
        _run(Episode, options, report, place)
    finally:
        report.summary()
        if place.has_mounts:
            for path in (place.run_root, place.disk):
                subprocess.run(["umount", "-l", path], stderr=subprocess.DEVNULL)
        for path in root.iterdir():
            if path != out or not report.num_problems:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        if not any(root.iterdir()):
            root.rmdir()
    return 1 if report.num_problems else 0


def _run(Episode, options, report, place):
    end = time.monotonic() + options.minutes * 60
    number = options.episode
    next_minute = [time.monotonic() + 60]

    def tick():
        if time.monotonic() >= next_minute[0]:
            report.minute(number)
            next_minute[0] += 60

    while True:
        seconds = min(EPISODE_S, end - time.monotonic())
        if seconds <= 0 and number > options.episode:
            return
        report.reproduce = f"launch/chaos --seed {options.seed} --episode {number} --minutes {EPISODE_S / 60:g}"
        for name in ("model", "speculate"):
            if getattr(options, name):
                report.reproduce += f" --{name} {getattr(options, name)}"
        found = report.num_problems
        episode = Episode(number, options.seed, report, place, options)
        episode.run(seconds, tick)
        if report.num_problems == found:
            shutil.rmtree(episode.world.directory)
            (report.out_dir / f"tree-{number}.log").unlink()
        elif not options.keep_going:
            return
        number += 1
