"""What may go wrong."""

from __future__ import annotations

from typing import Any, Optional


class WaitingWarning(UserWarning):
    """A request gets no output, and the tree says why: it is paused, asleep, or without weights."""


class PitstopError(Exception):
    """An error of the tree, of the connection to it, or a time that ran out.

    code     one of docs/protocol.md's: "invalid_argument", "unavailable", "deadline_exceeded", ...
    message  what, which, what is accepted
    reply    the whole reply of a control call that was not ok (what every rank said), else None
    """

    def __init__(self, code: str, message: str, reply: Optional[dict[str, Any]] = None):
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.reply = reply

    def __reduce__(self) -> Any:  # it crosses processes whole
        return type(self), (self.code, self.message, self.reply)
