"""Proves who asks to the Ray clusters that want it.

Ray has a process prove it to every cluster or to none, and be proven to likewise: with a token towards a cluster without, what
the cluster calls in this process is refused, and waits. So the mode follows the cluster that is joined. RAY_AUTH_MODE, if it is
set, is left as it is.
"""

from __future__ import annotations

import contextlib
import os
from typing import Callable, TypeVar

from ray._raylet import GcsClient
from ray.exceptions import RayError

try:
    from ray._private.authentication import authentication_token_setup as _tokens
    from ray._raylet import Config
    from ray.exceptions import AuthenticationError
except ImportError:  # a Ray without tokens
    _tokens = None

MODE = "RAY_AUTH_MODE"
_T = TypeVar("_T")
_is_ours = False  # whether RAY_AUTH_MODE was set here


def ask(cluster: str, question: Callable[[GcsClient], _T]) -> _T:
    """What a cluster answers. The process is left in the mode in which it did. RayError: it does not, in any."""
    global _is_ours
    if _tokens is None or (MODE in os.environ and not _is_ours):
        return question(GcsClient(address=cluster))
    if _is_ours:
        del os.environ[MODE]
        Config.initialize("")
        _is_ours = False
    try:
        return question(GcsClient(address=cluster))
    except AuthenticationError:
        _is_ours = _tokens.maybe_enable_token_auth_if_token_available(warn_if_disabled=False)
        if not _is_ours:
            raise
        return question(GcsClient(address=cluster))


def take_mode_of(cluster: str) -> None:
    """Leaves the process in the mode of that cluster. One that does not answer is left to ray.init() to complain of."""
    with contextlib.suppress(RayError):
        ask(cluster, lambda client: client)
