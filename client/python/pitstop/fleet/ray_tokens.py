"""Sends Ray's authentication token to the clusters that require it.

A process of Ray uses a token with every cluster or with none. If it uses one with a cluster that has none, it refuses
the cluster's calls, which then hang. So the mode follows the cluster that is joined. If RAY_AUTH_MODE is set, it is
not changed.
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
    """Returns the answer of a cluster. The process keeps the mode in which the cluster answered. RayError: the cluster
    answers in no mode."""
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
    """Sets the process to the authentication mode of that cluster. If the cluster does not answer, ray.init()
    reports the error."""
    with contextlib.suppress(RayError):
        ask(cluster, lambda client: client)
