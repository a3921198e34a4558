"""A small HTTP server for a fleet's own routes: one request per connection, on the loopback.

Bounded: a header, a body, the time that each may take, the connections at once.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import logging
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, AsyncIterator, Awaitable, Callable, Mapping, Optional, Union

from ..errors import PitstopError

HEAD_BYTES_MAX = 16 << 10
BODY_BYTES_MAX = 32 << 20
HEAD_S = 10.0
BODY_S = 60.0
WRITE_S = 30.0
CONNECTIONS_MAX = 4096
log = logging.getLogger("pitstop.fleet")
STATUS_OF = {"unavailable": 503, "resource_exhausted": 503, "deadline_exceeded": 504, "internal": 500, "data_loss": 500}


@dataclass
class Answer:
    """body: the whole body, or pieces as they arrive (the first decides whether the answer is an error)."""

    body: Union[str, AsyncIterator[str]]
    status: int = 200
    kind: str = "application/json"


@dataclass
class Request:
    method: str
    path: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""

    def json(self) -> dict[str, Any]:
        """The body as a JSON object. PitstopError: it is not JSON, or not an object."""
        try:
            said = json.loads(self.body)
        except (ValueError, RecursionError) as error:
            raise PitstopError("invalid_argument", f"the body is not JSON: {error}") from None
        if not isinstance(said, dict):
            raise PitstopError("invalid_argument", "the body must be a JSON object")
        return said


class Refused(Exception):
    def __init__(self, status: int, message: str):
        super().__init__(message)
        self.status = status


def error_of(status: int, message: str) -> Answer:
    return Answer(
        json.dumps({"error": {"message": message}, "object": "error", "message": message, "code": status}), status
    )


def _is_own_name(host: str) -> bool:
    """Whether the host is an address or localhost. This keeps out web pages whose own name resolves to this machine."""
    name = host.rpartition(":")[0] if host.count(":") == 1 else host
    try:
        ipaddress.ip_address(name.strip("[]").partition("]")[0])
    except ValueError:
        return name in ("", "localhost")
    return True


class HttpServer:
    """handle(request) returns the answer; a PitstopError becomes an error answer. `url` is set once the server listens."""

    def __init__(self, handle: Callable[[Request], Awaitable[Answer]]):
        self._handle = handle
        self._server: Optional[asyncio.AbstractServer] = None
        self._num_open = 0
        self.url = ""

    async def start(self, port: int) -> None:
        """Listens. PitstopError: the port cannot be used."""
        try:
            self._server = await asyncio.start_server(self._serve, "127.0.0.1", port, limit=HEAD_BYTES_MAX)
        except (OSError, OverflowError) as error:
            raise PitstopError("failed_precondition", f"port {port}: {error}") from None
        self.url = "http://127.0.0.1:%d" % self._server.sockets[0].getsockname()[1]

    def stop(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._num_open += 1
        try:
            try:
                if self._num_open > CONNECTIONS_MAX:
                    raise Refused(503, f"{CONNECTIONS_MAX} connections are open, the most allowed")
                request = await self._read(reader)
                answer = await self._answered(request, reader)
            except Refused as refused:
                answer = error_of(refused.status, str(refused))
                request = None
            await self._write(writer, answer, is_head=request is not None and request.method == "HEAD")
        except (asyncio.CancelledError, asyncio.TimeoutError, asyncio.IncompleteReadError, ConnectionError):
            pass  # the client has gone or reads nothing, or this server is closing
        finally:
            self._num_open -= 1
            writer.close()

    async def _read(self, reader: asyncio.StreamReader) -> Request:
        try:
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), HEAD_S)
        except asyncio.LimitOverrunError:
            raise Refused(413, f"a header has at most {HEAD_BYTES_MAX} bytes") from None
        except asyncio.TimeoutError:
            raise Refused(408, f"the header did not arrive within {HEAD_S:g} s") from None
        first, *lines = head.decode("latin-1").split("\r\n")
        words = first.split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            raise Refused(400, "this is not an HTTP/1 request")
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        if not _is_own_name(headers.get("host", "")):
            raise Refused(
                403, f"the host '{headers['host'][:100]}' is not served; accepted are IP addresses and localhost"
            )
        length = headers.get("content-length", "0")
        if "transfer-encoding" in headers or not length.isascii() or not length.isdigit():
            raise Refused(400, "the request has no Content-Length")
        if int(length[:12]) > BODY_BYTES_MAX:
            raise Refused(413, f"a body has at most {BODY_BYTES_MAX} bytes")
        try:
            body = await asyncio.wait_for(reader.readexactly(int(length[:12])), BODY_S)
        except asyncio.TimeoutError:
            raise Refused(408, f"the body did not arrive within {BODY_S:g} s") from None
        return Request(words[0], words[1].partition("?")[0], headers, body)

    async def _answered(self, request: Request, reader: asyncio.StreamReader) -> Answer:
        """Answers a request; the work is cancelled if the client disconnects."""

        async def answer() -> Answer:
            try:
                said = await self._handle(request)
                return said if isinstance(said.body, str) else await _begun(said)
            except (PitstopError, TypeError) as error:  # TypeError: an unknown argument, by name
                status = STATUS_OF.get(getattr(error, "code", ""), 400)
                return error_of(status, getattr(error, "message", str(error)))
            except Exception as error:  # a bug of this server: the client gets an answer, not a closed connection
                log.exception("%s %s", request.method, request.path)
                return error_of(500, f"{type(error).__name__}: {error}")

        work, gone = asyncio.ensure_future(answer()), asyncio.ensure_future(reader.read(1))
        try:
            await asyncio.wait([work, gone], return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                raise ConnectionError("the client has gone")
            return work.result()
        finally:
            work.cancel()
            gone.cancel()

    async def _write(self, writer: asyncio.StreamWriter, answer: Answer, is_head: bool) -> None:
        head = f"HTTP/1.1 {answer.status} {HTTPStatus(answer.status).phrase}\r\nContent-Type: {answer.kind}\r\nConnection: close\r\n"
        if isinstance(answer.body, str):
            data = answer.body.encode(errors="replace")
            writer.write(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + (b"" if is_head else data))
            await asyncio.wait_for(writer.drain(), WRITE_S)
            return
        writer.write(f"{head}\r\n".encode())
        try:
            async for piece in answer.body:
                writer.write(piece.encode(errors="replace"))
                await asyncio.wait_for(writer.drain(), WRITE_S)
        finally:
            await answer.body.aclose()


async def _begun(answer: Answer) -> Answer:
    """Waits for the answer's first piece, so that a refusal has a status."""
    pieces = answer.body
    try:
        first = await pieces.__anext__()
    except StopAsyncIteration:
        return Answer("", answer.status, answer.kind)

    async def all_of_them() -> AsyncIterator[str]:
        try:
            yield first
            async for piece in pieces:
                yield piece
        finally:
            await pieces.aclose()

    return Answer(all_of_them(), answer.status, answer.kind)
