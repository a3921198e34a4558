"""Speaks to a running pitstop tree: blocking (Client) or with asyncio (AsyncClient).

    import pitstop

    with pitstop.Client(run_dir) as client:
        for chunk in client.generate("Once upon a time", max_new_tokens=60):
            print(chunk.text, end="", flush=True)

    async with pitstop.AsyncClient(run_dir) as client:
        whole = await client.generate("Once upon a time", max_new_tokens=60).result()

    pitstop.AsyncClient(data="tcp://10.0.0.7:5000", admin="tcp://10.0.0.7:5001", key="me.key")  # elsewhere

Needs pyzmq and msgpack. Everything that goes wrong is a PitstopError with a `code` to switch on
and a `message` to read; a tree that is lost ends every open request with code "unavailable".
"""

from .aio import AsyncClient, AsyncStream
from .client import Client, Stream
from .errors import PitstopError
from .messages import Chunk, Counts, Finish, PromptLogprobs, ServerInfo, Span

__all__ = [
    "AsyncClient",
    "AsyncStream",
    "Chunk",
    "Client",
    "Counts",
    "Finish",
    "PitstopError",
    "PromptLogprobs",
    "ServerInfo",
    "Span",
    "Stream",
]
