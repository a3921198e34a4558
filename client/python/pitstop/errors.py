"""The errors and warnings of the client."""

from __future__ import annotations

from typing import Any, Optional


class WaitingWarning(UserWarning):
    """A request gets no output, for a reason that the tree reports: paused, asleep, or without weights."""


class PitstopError(Exception):
    """An error of the tree or of the connection to it, or a timeout.

    code     one of docs/protocol.md's: "invalid_argument", "unavailable", "deadline_exceeded", ...
    message  what failed, which, and what is accepted
    reply    the whole reply of a failed control call, with every rank's answer; otherwise None
    output   the Chunk that a request had generated when it failed; otherwise None
    """

    output: Any = None

    def __init__(self, code: str, message: str, reply: Optional[dict[str, Any]] = None):
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.reply = reply

    def __reduce__(self) -> Any:  # pickled with all fields
        return type(self), (self.code, self.message, self.reply), {"output": self.output}
