"""Many trees on Ray, one update for all of them (docs/fleet.md).

  launch/fleet --replicas 3                     a fleet on this machine, until Ctrl-C
  launch/fleet generate "Once upon a time"      on the fleet that runs
  launch/fleet update DIR --label step-41       on all its replicas, or on none
  launch/fleet status | pause | resume | add N | remove SLOT
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
from typing import Any, Optional, Sequence

from ..errors import PitstopError
from .fleet import AsyncFleet

COMMANDS = ("serve", "generate", "update", "status", "pause", "resume", "add", "remove")


def parser() -> argparse.ArgumentParser:
    own = argparse.ArgumentParser(
        prog="launch/fleet", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="Further flags of serve are those of every tree: launch/pitstop serve --help.",
    )
    own.add_argument("command", nargs="?", choices=COMMANDS, default="serve")
    own.add_argument("what", nargs="*", help="generate: the prompt; update: DIR; add: how many; remove: a slot")
    own.add_argument("--name", default="fleet", help="of the fleet, where a cluster has several (fleet)")
    own.add_argument("--address", help="the Ray cluster: HOST:PORT, or auto (serve: one of this machine alone; else the fleet's)")
    own.add_argument("--model", default="stories", help="serve: as of launch/pitstop (stories)")
    own.add_argument("--replicas", type=int, default=1, help="serve: trees, each on a machine of its own if it can (1)")
    own.add_argument("--tp", type=int, default=1, help="serve: ranks of each, all on one machine (1)")
    own.add_argument("--quorum", type=int, help="serve: an update may set others aside if so many are prepared (all)")
    own.add_argument("--hang-timeout", type=float, default=30.0, help="serve: seconds until what does not answer is ended (30)")
    own.add_argument("--status-port", type=int, default=0, help="serve: the page and /metrics; 0: any free port (0)")
    own.add_argument("--http", action="store_true", help="serve: every tree listens to HTTP, at a port that status says")
    own.add_argument("--door-port", type=int, help="serve: HTTP, /generate, whose requests outlive replicas; 0: any free port")
    own.add_argument("--router", help="serve: sglang, smg or vllm in front of the trees, which then listen to HTTP")
    own.add_argument("--router-port", type=int, default=30000, help="serve: where the router listens (30000)")
    own.add_argument("--label", default="", help="update: the version's name")
    own.add_argument("--kv-policy", default="keep", help="update: keep, recompute, drain or abort (keep)")
    own.add_argument("--hold-s", type=float, default=0.0, help="update: all stand still until all commit, so long at most (0)")
    own.add_argument("--max-new-tokens", type=int, default=200, help="generate: at most so many (200)")
    own.add_argument("--temperature", type=float, default=1.0, help="generate: 0 is greedy (1)")
    own.add_argument("--mode", default="in_place", help="pause: in_place, retract, abort or wait (in_place)")
    own.add_argument("--start-timeout", type=float, default=600.0, help="seconds until what is not ready is given up (600)")
    return own


def _split(own: argparse.ArgumentParser, arguments: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    """What is the fleet's, and the flags of every tree: --page-size=16, --page-size 16 and --deterministic."""
    known = {flag for action in own._actions for flag in action.option_strings}
    mine: list[str] = []
    options: dict[str, Any] = {}
    left = list(arguments)
    while left:
        flag, has_value, value = left.pop(0).partition("=")
        if not flag.startswith("--") or flag in known:
            mine.append(flag + has_value + value)
            if flag in known and not has_value and left and not left[0].startswith("--"):
                mine.append(left.pop(0))
            continue
        if not has_value and left and not left[0].startswith("--"):
            value, has_value = left.pop(0), "="
        options[flag[2:].replace("-", "_")] = value if has_value else True
    return mine, options


async def _serve(given: argparse.Namespace, options: dict[str, Any]) -> int:
    ended = asyncio.Event()
    fleet = AsyncFleet(
        given.model, replicas=given.replicas, tp=given.tp, name=given.name, quorum=given.quorum, address=given.address,
        status_port=given.status_port, start_timeout=given.start_timeout, hang_timeout=given.hang_timeout,
        port=0 if given.http or given.router else None, **options,
    )
    await fleet.start(wait=False)
    for each in (signal.SIGINT, signal.SIGTERM):  # Ray, which was started just now, had its own
        asyncio.get_running_loop().add_signal_handler(each, ended.set)
    try:
        starting, waiting = asyncio.ensure_future(fleet.until_ready()), asyncio.ensure_future(ended.wait())
        await asyncio.wait([starting, waiting], return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            starting.cancel()
            return 130
        await starting
        status = await fleet.status()
        router = f", router {await fleet.start_router(given.router, given.router_port)}" if given.router else ""
        door = f", door {await fleet.start_door(given.door_port)}" if given.door_port is not None else ""
        where = f"cluster {fleet.cluster}, status {status['status_url']}{door}{router}"
        print(f"the fleet is ready: {given.replicas} x {given.model}, {where}", flush=True)
        await waiting
        return 0
    finally:
        await fleet.close()


async def _generate(fleet: AsyncFleet, given: argparse.Namespace) -> int:
    sampling = {"max_new_tokens": given.max_new_tokens, "temperature": given.temperature}
    said = ""
    async for output in await fleet.generate(" ".join(given.what), sampling, stream=True):
        print(output.text[len(said):], end="", flush=True)
        said = output.text
    print()
    return 0


async def _say(fleet: AsyncFleet, given: argparse.Namespace) -> int:
    command, what = given.command, given.what
    if command == "generate":
        return await _generate(fleet, given)
    if command == "update":
        outcome = await fleet.update_weights_from_disk(what[0], given.label, kv_policy=given.kv_policy, hold_s=given.hold_s)
        print(f"epoch {outcome.version.epoch}, digest {outcome.version.digest}")
        for member, each in outcome.replicas.items():
            print(f"  {member}: {each['outcome']} {each['message']}")
    elif command == "status":
        print(json.dumps(await fleet.status(), indent=2))
    elif command == "add":
        print(*await fleet.add_replicas(int(what[0]) if what else 1))
    elif command == "remove":
        await fleet.remove_replica(int(what[0]))
    else:
        answers = await (fleet.pause(given.mode) if command == "pause" else fleet.resume())
        for member, answer in answers.items():
            print(member, "ok" if answer["ok"] else f"{answer['code']}: {answer['message']}")
        return 0 if all(answer["ok"] for answer in answers.values()) else 1
    return 0


async def _run(given: argparse.Namespace, options: dict[str, Any]) -> int:
    num_taken = {"generate": len(given.what), "update": 1, "add": 1, "remove": 1}.get(given.command, 0)
    if len(given.what) > num_taken:
        raise PitstopError("invalid_argument", f"{given.command} takes no '{given.what[num_taken]}'")
    if given.command in ("add", "remove") and given.what and not given.what[0].isdecimal():
        raise PitstopError("invalid_argument", f"{given.command} takes a whole number, not '{given.what[0]}'")
    if given.command == "serve":
        return await _serve(given, options)
    if options:
        raise PitstopError("invalid_argument", f"{given.command} takes no {', '.join(options)}")
    needed = {"generate": "a prompt", "update": "a directory", "remove": "a slot"}.get(given.command)
    if needed and not given.what:
        raise PitstopError("invalid_argument", f"{given.command} takes {needed}")
    async with AsyncFleet(name=given.name, address=given.address, start_timeout=given.start_timeout) as fleet:
        return await _say(fleet, given)


def main(arguments: Optional[Sequence[str]] = None) -> int:
    own = parser()
    mine, options = _split(own, sys.argv[1:] if arguments is None else arguments)
    given = own.parse_args(mine)
    try:
        return asyncio.run(_run(given, options))
    except (PitstopError, ConnectionError, TypeError, ValueError) as error:
        print(f"launch/fleet: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
