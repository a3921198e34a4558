"""Starts pitstop, or connects to a running tree: blocking (Engine, Client) or with asyncio (AsyncEngine, AsyncClient).

    import pitstop

    with pitstop.Engine("stories") as engine:  # a tree of this program's own
        print(engine.generate("Once upon a time", {"max_new_tokens": 60}).text)

    with pitstop.Client(run_dir) as client:
        for chunk in client.generate("Once upon a time", max_new_tokens=60):
            print(chunk.text, end="", flush=True)

    async with pitstop.AsyncClient(run_dir) as client:
        whole = await client.generate("Once upon a time", max_new_tokens=60).result()

    pitstop.AsyncClient(data="tcp://10.0.0.7:5000", admin="tcp://10.0.0.7:5001", key="me.key")  # on another machine

Needs pyzmq and msgpack; the engines also need NumPy. Every error is a PitstopError with a `code` to switch on and a
`message` to read. If a tree is lost, every open request and call ends with code "unavailable"; the tree that replaces
it runs none of them.
"""

from typing import TYPE_CHECKING, Any

from .aio import AsyncClient, AsyncStream
from .client import Client, Stream
from .errors import PitstopError, WaitingWarning
from .messages import AdapterVersion, Chunk, Counts, Finish, PromptLogprobs, Routes, RouteSpan, ServerInfo, Span
from .version import VERSION as __version__

if TYPE_CHECKING:
    from .async_engine import AsyncEngine
    from .engine import Engine
    from .outputs import Adapter, Output, TensorDigest, Update, WeightDigests

# Modules that need NumPy are loaded on demand: a client needs none.
_LAZY = {
    "Adapter": "outputs",
    "AsyncEngine": "async_engine",
    "Engine": "engine",
    "Output": "outputs",
    "TensorDigest": "outputs",
    "Update": "outputs",
    "WeightDigests": "outputs",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'pitstop' has no attribute '{name}'")
    import importlib

    return getattr(importlib.import_module(f".{_LAZY[name]}", __name__), name)


__all__ = [
    "__version__",
    "Adapter",
    "AdapterVersion",
    "AsyncClient",
    "AsyncEngine",
    "AsyncStream",
    "Chunk",
    "Client",
    "Counts",
    "Engine",
    "Finish",
    "Output",
    "PitstopError",
    "PromptLogprobs",
    "RouteSpan",
    "Routes",
    "ServerInfo",
    "Span",
    "Stream",
    "TensorDigest",
    "Update",
    "WaitingWarning",
    "WeightDigests",
]
