"""The command of a fleet: serve, and commands for a running fleet. flags.py has its flags."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import sys
import tempfile
import warnings
from typing import TYPE_CHECKING, Any, Iterator, Mapping, Optional, Sequence

from ..errors import PitstopError
from ..local_tree import bundled_or_path
from ..standstill import WaitingWarning
from .flags import COMMANDS, PROGRAM, parser

if TYPE_CHECKING:
    from .fleet import AsyncFleet

PROGRESS_S = 0.5  # how often the number of ready replicas is checked
RAY_SILENCE = {
    "RAY_BACKEND_LOG_LEVEL": "fatal",
    "RAY_LOGGER_LEVEL": "error",
    "RAY_LOG_TO_DRIVER": "0",
    "RAY_DEDUP_LOGS": "0",
}


def _split(own: argparse.ArgumentParser, arguments: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    """Separates the fleet's flags from those of every tree: --page-size=16, --page-size 16 and --deterministic."""
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
    if given.model.startswith(("/", ".")) and not os.path.isdir(given.model):
        raise PitstopError("not_found", f"--model {given.model}: the directory does not exist")
    from .fleet import AsyncFleet

    ended = asyncio.Event()
    fleet = AsyncFleet(
        given.model,
        replicas=given.replicas,
        tp=given.tp,
        name=given.name,
        quorum=given.quorum,
        address=given.address,
        status_port=given.status_port,
        start_timeout=given.start_timeout,
        hang_timeout=given.hang_timeout,
        port=0 if given.http or given.router else None,
        **options,
    )
    _tell(f"starting Ray{f' at {given.address}' if given.address else ' on this machine'}")
    with _ray_on_file():
        await fleet.start(wait=False)
    for each in (signal.SIGINT, signal.SIGTERM):  # replaces the handlers that Ray has just installed
        asyncio.get_running_loop().add_signal_handler(each, ended.set)
    try:
        starting, waiting = asyncio.ensure_future(fleet.until_ready()), asyncio.ensure_future(ended.wait())
        telling = asyncio.ensure_future(_tell_progress(fleet, given.replicas))
        await asyncio.wait([starting, waiting], return_when=asyncio.FIRST_COMPLETED)
        telling.cancel()
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


def _tell(line: str) -> None:
    print(f"{PROGRAM}: {line}", file=sys.stderr, flush=True)


async def _tell_progress(fleet: AsyncFleet, replicas: int) -> None:
    """Prints the number of ready replicas at the start and whenever it changes."""
    told = -1
    while True:
        if fleet.num_ready != told:
            told = fleet.num_ready
            _tell(f"{told} of {replicas} replicas are ready")
        await asyncio.sleep(PROGRESS_S)


async def _generate(fleet: AsyncFleet, given: argparse.Namespace) -> int:
    sampling = {"max_new_tokens": given.max_new_tokens, "temperature": given.temperature}
    said = ""
    async for output in await fleet.generate(" ".join(given.what), sampling, stream=True, timeout=given.timeout_s):
        print(output.text[len(said) :], end="", flush=True)
        said = output.text
    print()
    return 0


async def _say(fleet: AsyncFleet, given: argparse.Namespace) -> int:
    command, what = given.command, given.what
    if command == "generate":
        return await _generate(fleet, given)
    if command == "update":
        outcome = await fleet.update_weights_from_disk(
            bundled_or_path(what[0]), given.label, kv_policy=given.kv_policy, hold_s=given.hold_s
        )
        print(f"epoch {outcome.version.epoch}, digest {outcome.version.digest}")
        for member, each in outcome.replicas.items():
            print(f"  {member}: {each['outcome']}{' ' if each['message'] else ''}{each['message']}")
    elif command == "status":
        status = await fleet.status()
        print(json.dumps(status, indent=2) if given.json else prose(status))
    elif command == "add":
        slots = await fleet.add_replicas(int(what[0]) if what else 1)
        print(f"added, and starting: slot {', '.join(map(str, slots))}")
    elif command == "remove":
        await fleet.remove_replica(int(what[0]))
        print(f"removed: slot {what[0]}; its requests continue on other replicas")
    else:
        return await _fan_out(fleet, given)
    return 0


async def _fan_out(fleet: AsyncFleet, given: argparse.Namespace) -> int:
    """Makes a call of every replica, and prints a line for each."""
    if given.command == "pause":
        answers = await fleet.pause(given.mode)
    elif given.command == "resume":
        answers = await fleet.resume()
    elif given.command == "digests":
        answers = await fleet.fan_out("weight_digests", 600.0)
    else:
        answers = await fleet.fan_out("abort", rids=given.what, all=given.all)
    if given.json:
        print(json.dumps(answers, indent=2))
    for member, answer in () if given.json else answers.items():
        said = "ok" if answer["ok"] else f"{answer['code']}: {answer['message']}"
        reply = answer.get("reply") or {}
        if answer["ok"] and given.command == "digests":
            said = f"epoch {reply.get('epoch', 0)}, digest {reply.get('digest', '')}"
        elif answer["ok"] and given.command == "abort":
            ended = [f"{each['rid']} {each.get('outcome', 'unknown')}" for each in reply.get("results", [])]
            said = "; ".join(ended) or "nothing was open"
        print(f"{member}: {said}")
    return 0 if all(answer["ok"] for answer in answers.values()) else 1


def _version(epoch: int, label: str, digest: str) -> str:
    name = f"version {epoch} ({label})" if label else f"epoch {epoch}"
    return f"{name}{f', digest {digest[:8]}' if digest else ''}"


def prose(status: Mapping[str, Any]) -> str:
    """The status in prose."""
    serves = _version(status["epoch"], status["label"], status["digest"]) if status["epoch"] else "no version yet"
    lines = [
        f"fleet {status['fleet']}: {status['ready']} of {status['slots']} replicas are ready, {serves}",
        f"updates: {status['updates_total']} done, {status['updates_failed_total']} failed, {status['updates_waiting']} "
        f"waiting; the latest took effect within {1e3 * status['skew_s']:.1f} ms on all",
        f"deaths: {status['deaths_total']}; requests that went on elsewhere: {status['moved_requests_total']}, lost: "
        f"{status['lost_requests_total']}",
    ]
    if drafts := status.get("drafts"):
        lines.append(
            f"drafts: {drafts['draft_tokens_total']} verified, {drafts['draft_tokens_accepted_total']} right; "
            f"{drafts['sampling_passes_total']} passes of requests"
        )
    if status.get("status_url"):
        lines.append(f"page and metrics: {status['status_url']}")
    for member, each in status["replicas"].items():
        behind = f", {each['lag']} behind" if each["lag"] else ""
        why = f" ({each['why']})" if each["why"] else ""
        label = status["label"] if each["epoch"] == status["epoch"] else ""
        lines.append(
            f"  {member}: {each['standing']}{why}, {each['state']}, {_version(each['epoch'], label, each['digest'])}{behind}, "
            f"{each['running']} running, {each['waiting']} waiting, {each['output_tokens_per_s']:.0f} tokens/s, "
            f"{each['machine']}{', ' + each['url'] if each['url'] else ''}"
        )
    lines += [f"  slot {number} does not start: {why}" for number, why in status["why_not_started"].items()]
    return "\n".join(lines)


async def _run(given: argparse.Namespace, options: dict[str, Any]) -> int:
    num_taken = {"generate": len(given.what), "abort": len(given.what), "update": 1, "add": 1, "remove": 1}.get(
        given.command, 0
    )
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
    if given.command == "rollback":
        raise PitstopError("unsupported", "rollback: a fleet has none; update to the previous version: update DIR")
    from .fleet import AsyncFleet

    fleet = AsyncFleet(name=given.name, address=given.address, start_timeout=given.start_timeout)
    try:
        with _ray_on_file():
            await fleet.start()
        return await _say(fleet, given)
    finally:
        await fleet.close()


def _quiet_ray() -> None:
    """Sends Ray's own logs to its files only, unless the user has set a log level. REQUIRES: Ray is not imported yet."""
    for name, value in RAY_SILENCE.items():
        os.environ.setdefault(name, value)


@contextlib.contextmanager
def _ray_on_file() -> Iterator[None]:
    """While joining a cluster, Ray's C++ code writes to standard error at every log level. This redirects the output to
    a file, which is printed only if Ray fails. Python's sys.stderr is not affected."""
    sys.stderr.flush()
    shown, python = os.dup(2), sys.stderr
    with tempfile.TemporaryFile() as file, os.fdopen(os.dup(2), "w", buffering=1) as ours:
        os.dup2(file.fileno(), 2)
        sys.stderr = ours
        try:
            yield
        except BaseException as error:
            if not isinstance(error, (PitstopError, asyncio.CancelledError, KeyboardInterrupt)):
                file.seek(0)
                ours.write(file.read().decode(errors="replace"))
            raise
        finally:
            sys.stderr = python
            os.dup2(shown, 2)
            os.close(shown)


def _show_warning(message: Any, category: type[Warning], *place: Any) -> None:
    """Prints a warning about a waiting request as one line, without its place in the sources."""
    if issubclass(category, WaitingWarning):
        _tell(str(message).replace("pitstop: ", "", 1))
    else:
        print(warnings.formatwarning(message, category, *place[:2]), end="", file=sys.stderr)


def main(arguments: Optional[Sequence[str]] = None) -> int:
    own = parser()
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] == ["help"]:
        own.print_help()
        return 0
    if words and not words[0].startswith("-") and words[0] not in COMMANDS:
        _tell(f"no command '{words[0]}'; there are {', '.join(COMMANDS)}")
        return 2
    mine, options = _split(own, words)
    given = own.parse_args(mine)
    _quiet_ray()
    warnings.showwarning = _show_warning
    try:
        return asyncio.run(_run(given, options))
    except (PitstopError, ConnectionError, TypeError, ValueError) as error:
        print(f"{PROGRAM}: {error}", file=sys.stderr)
        return 1
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        print(f"{PROGRAM}: a fleet needs Ray: pip install ray", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
