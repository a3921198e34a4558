"""The flags of a fleet's command. Needs Python's standard library alone: --help needs no Ray."""

from __future__ import annotations

import argparse
import pathlib
import runpy
import sys

ABOUT = """Many trees on Ray, one update for all of them (docs/fleet.md).

  {program} --replicas 3                     a fleet on this machine, until Ctrl-C
  {program} generate "Once upon a time"      on the fleet that runs
  {program} update DIR --label step-41       on all its replicas, or on none
  {program} status | digests                 what each replica is doing; digests of its weights
  {program} pause | resume | abort RID...    on every replica
  {program} add N | remove SLOT              while it runs
"""
IN_SOURCES = (pathlib.Path(__file__).resolve().parents[4] / "launch" / "fleet").exists()
PROGRAM = "launch/fleet" if IN_SOURCES else "pitstop-fleet"
LAUNCHER = "launch/pitstop" if IN_SOURCES else "pitstop"
# As a program of its own this file cannot import the package, which needs third-party packages.
VERSION = runpy.run_path(str(pathlib.Path(__file__).resolve().parents[1] / "version.py"))["VERSION"]


COMMANDS = ("serve", "generate", "update", "status", "digests", "pause", "resume", "abort", "rollback", "add", "remove")


def parser() -> argparse.ArgumentParser:
    own = argparse.ArgumentParser(
        prog=PROGRAM,
        usage=f"{PROGRAM} [COMMAND] [flags]",
        description=ABOUT.format(program=PROGRAM),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=f"Further flags of serve are those of every tree: {LAUNCHER} serve --help.",
    )
    own.add_argument(
        "command",
        nargs="?",
        choices=COMMANDS,
        default="serve",
        metavar="COMMAND",
        help=f"{', '.join(COMMANDS)} (serve)",
    )
    own.add_argument("--version", action="version", version=f"{PROGRAM} {VERSION}")
    own.add_argument(
        "what",
        nargs="*",
        metavar="WHAT",
        help="generate: the prompt; update: DIR; abort: ids; add: number of replicas; remove: a slot",
    )
    own.add_argument(
        "--name", metavar="NAME", default="fleet", help="the fleet's name, if a cluster has several (fleet)"
    )
    own.add_argument(
        "--address",
        metavar="H:P",
        help="the Ray cluster: HOST:PORT, or auto "
        "(default: for serve, a cluster of this machine alone; otherwise, the cluster of the fleet)",
    )
    own.add_argument(
        "--start-timeout",
        metavar="S",
        type=float,
        default=600.0,
        help="seconds to wait for replicas to become ready (600)",
    )
    _add_serve(own)
    _add_calls(own)
    return own


def _add_serve(own: argparse.ArgumentParser) -> None:
    own.add_argument(
        "--model",
        metavar="MODEL",
        default="stories",
        help=f"serve: model of the trees, as for {LAUNCHER} serve (stories)",
    )
    own.add_argument(
        "--replicas",
        metavar="N",
        type=int,
        default=1,
        help="serve: number of trees, each on a machine of its own if possible (1)",
    )
    own.add_argument("--tp", metavar="N", type=int, default=1, help="serve: ranks of each tree, all on one machine (1)")
    own.add_argument(
        "--quorum",
        metavar="K",
        type=int,
        help="serve: number of prepared replicas that an update needs to commit (all)",
    )
    own.add_argument(
        "--hang-timeout",
        metavar="S",
        type=float,
        default=30.0,
        help="serve: seconds without an answer after which a replica is ended (30)",
    )
    own.add_argument(
        "--status-port",
        metavar="P",
        type=int,
        default=0,
        help="serve: port of the status page and /metrics; 0: any free one (0)",
    )
    own.add_argument("--http", action="store_true", help="serve: every tree has HTTP, at a port that status shows")
    own.add_argument(
        "--door-port",
        metavar="P",
        type=int,
        help="serve: port of an HTTP /generate whose requests outlive a lost replica; 0: any free one (none)",
    )
    own.add_argument(
        "--router",
        metavar="KIND",
        help="serve: router in front of the trees: sglang, smg or vllm; opens HTTP in each tree (none)",
    )
    own.add_argument("--router-port", metavar="P", type=int, default=30000, help="serve: the router's port (30000)")


def _add_calls(own: argparse.ArgumentParser) -> None:
    own.add_argument("--label", metavar="NAME", default="", help="update: label of the new version")
    own.add_argument(
        "--kv-policy",
        metavar="POLICY",
        default="keep",
        help="update: running requests: keep, recompute, drain or abort (keep)",
    )
    own.add_argument(
        "--hold-s",
        metavar="S",
        type=float,
        default=0.0,
        help="update: maximum number of seconds that replicas stand still so that all commit together (0)",
    )
    own.add_argument(
        "--max-new-tokens", metavar="N", type=int, default=200, help="generate: maximum number of output tokens (200)"
    )
    own.add_argument(
        "--temperature", metavar="X", type=float, default=1.0, help="generate: sampling temperature; 0: greedy (1)"
    )
    own.add_argument(
        "--mode",
        metavar="MODE",
        default="in_place",
        help="pause: running requests: in_place, retract, abort or wait (in_place)",
    )
    own.add_argument("--all", action="store_true", help="abort: end every open request")
    own.add_argument(
        "--json", action="store_true", help="status, digests, pause, resume, abort: the whole answer as JSON"
    )
    own.add_argument("--timeout-s", metavar="S", type=float, help="generate: give up after this many seconds (never)")


if __name__ == "__main__":
    if sys.argv[1:2] == ["help"]:
        parser().print_help()
    else:
        parser().parse_args()
