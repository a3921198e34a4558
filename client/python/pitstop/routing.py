"""Chooses a request's replica: the same for the same session or prompt's beginning, unless it is overloaded. Pure.

Source: consistent hashing with bounded loads (Mirrokni, Thorup and Zadimoghaddam 2016), on rendezvous hashes: adding or
removing a replica moves only that replica's keys.
"""

from __future__ import annotations

import hashlib
import math
from typing import Any, Mapping, Optional, Sequence, Union

LOAD_FACTOR = 1.25  # a replica may have at most this times the mean load, rounded up
# A prompt's key is its first characters or tokens. A prompt of less than half of that has no key: it would share hardly
# a page of KV.
PREFIX_CHARS = 256
PREFIX_TOKENS = 64


def key_of(prompt: Union[str, Sequence[int]], session: Optional[str]) -> str:
    """The key of requests that stay together; empty: none."""
    if session is not None:
        return f"session {session}"
    if len(prompt) < (PREFIX_CHARS if isinstance(prompt, str) else PREFIX_TOKENS) // 2:
        return ""
    if isinstance(prompt, str):
        return prompt[:PREFIX_CHARS]
    return ",".join(str(token) for token in prompt[:PREFIX_TOKENS])


def _rank(key: str, member: str) -> bytes:
    return hashlib.blake2b(f"{member}\n{key}".encode(errors="surrogatepass"), digest_size=8).digest()


def choose(
    members: Mapping[str, Mapping[str, Any]], loads: Mapping[str, int], key: str, min_epoch: int = 0
) -> Optional[str]:
    """Chooses among `members`, the ready replicas with their "epoch". `loads`: requests of each. None: none is suitable."""
    names = [name for name, each in members.items() if each["epoch"] >= min_epoch]
    if not names:
        return None
    if not key:
        return min(names, key=lambda name: loads.get(name, 0))
    most = math.ceil(LOAD_FACTOR * (1 + sum(loads.get(name, 0) for name in names)) / len(names))
    by_rank = sorted(names, key=lambda name: _rank(key, name), reverse=True)
    return next((name for name in by_rank if loads.get(name, 0) < most), by_rank[0])
