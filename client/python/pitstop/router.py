"""Starts the routers of other projects, unmodified, in front of trees with HTTP, and tells them which trees are ready.

router = Router("sglang")
await router.until_up()
router.feed(["http://127.0.0.1:8000", "http://127.0.0.1:8001"])
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import logging
import shutil
import signal
import socket
import subprocess
import urllib.parse
import urllib.request
from typing import Any, Callable, Iterable, Mapping, Optional, Sequence

from .aio import off_loop
from .errors import PitstopError

# The command of each router, as its package installs it.
COMMANDS = {
    "sglang": ("sglang-router", "launch"),
    "smg": ("smg", "launch"),
    "vllm": ("vllm-router",),
}
FLAGS = ("--health-check-interval-secs", "1", "--health-failure-threshold", "1", "--worker-startup-check-interval", "1")
START_S = 60.0
CALL_S = 10.0
FEED_S = 1.0
STOP_S = 10.0
PR_SET_PDEATHSIG = 1

log = logging.getLogger("pitstop.router")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Router:
    """Owns: the router's process, which ends with stop(), or with the thread that made it."""

    def __init__(self, kind: str, host: str = "127.0.0.1", port: int = 0, flags: Sequence[str] = ()):
        if kind not in COMMANDS:
            raise PitstopError("invalid_argument", f"router must be one of {', '.join(COMMANDS)}, not '{kind}'")
        program, *rest = COMMANDS[kind]
        path = shutil.which(program)
        if path is None:
            raise PitstopError("not_found", f"router {kind}: no program {program} on the path; install its package")
        port = port or _free_port()
        self.url = f"http://{host}:{port}"
        command = [path, *rest, "--host", host, "--port", str(port), "--prometheus-host", "127.0.0.1"]
        command += ["--prometheus-port", str(_free_port()), *FLAGS, *flags]
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=_end_with_parent)

    def _call(self, method: str, path: str, body: Optional[Mapping[str, Any]] = None) -> bytes:
        request = urllib.request.Request(self.url + path, method=method)
        if body is not None:
            request.data = json.dumps(body).encode()
            request.add_header("Content-Type", "application/json")
        with urllib.request.urlopen(request, timeout=CALL_S) as answer:
            return answer.read()

    async def until_up(self) -> None:
        """Waits until the router listens. PitstopError: it ended, or does not listen in time."""
        for _ in range(int(START_S / 0.1)):
            if self._process.poll() is not None:
                raise PitstopError("failed_precondition", f"the router ended with code {self._process.returncode}")
            try:
                await off_loop(self._call, "GET", "/workers")
                return
            except OSError:
                await asyncio.sleep(0.1)
        raise PitstopError("deadline_exceeded", f"the router does not listen at {self.url} after {START_S:g} s")

    def feed(self, urls: Iterable[str]) -> None:
        """Makes the router use exactly these trees. OSError if the router does not answer; the next call sends all
        changes again."""
        wanted = set(urls)
        known = {each["url"]: each.get("id") for each in json.loads(self._call("GET", "/workers"))["workers"]}
        for url in sorted(wanted - set(known)):
            self._call("POST", "/workers", {"url": url})
        for url in sorted(set(known) - wanted):
            if known[url]:
                self._call("DELETE", f"/workers/{known[url]}")
            else:
                self._call("POST", "/remove_worker?" + urllib.parse.urlencode({"url": url}))

    async def follow(self, urls: Callable[[], Iterable[str]]) -> None:
        """Feeds the router these trees, once a second, until it ends."""
        while self._process.poll() is None:
            try:
                await off_loop(self.feed, urls())
            except (OSError, ValueError, KeyError, TypeError):
                pass  # the router is busy, or is adding a tree
            await asyncio.sleep(FEED_S)
        log.error("the router at %s ended with code %s", self.url, self._process.returncode)

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
