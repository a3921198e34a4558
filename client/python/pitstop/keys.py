"""A client's key for the tcp doors, from the file that `pitstop keygen --client NAME` makes."""

from __future__ import annotations

import dataclasses
import os
import stat

import zmq

from .errors import PitstopError

FILE_BYTES_MAX = 1 << 20
KEY_CHARS = 40  # Z85
WORDS = ("public", "secret", "server")


@dataclasses.dataclass(frozen=True)
class ClientKey:
    public: bytes
    secret: bytes
    server: bytes  # the tree's public key: no other program can impersonate the tree

    def apply(self, socket: zmq.Socket) -> None:
        """Sets the keys of a socket, before it connects."""
        socket.setsockopt(zmq.IPV6, 1)  # names may resolve to either kind of address
        socket.setsockopt(zmq.CURVE_SERVERKEY, self.server)
        socket.setsockopt(zmq.CURVE_PUBLICKEY, self.public)
        socket.setsockopt(zmq.CURVE_SECRETKEY, self.secret)


def read_key(path: str) -> ClientKey:
    """Raises PitstopError: "not_found", "permission_denied" (others can read it), "malformed",
    "unsupported" (this pyzmq has no CURVE)."""
    path = os.fspath(path)
    if not zmq.has("curve"):
        raise PitstopError("unsupported", "a tcp door needs CURVE, which this ZeroMQ was built without")
    try:
        with open(path, "rb") as file:
            if stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077:
                raise PitstopError(
                    "permission_denied", f"'{path}' contains a secret key and other users can open it: chmod 600 it"
                )
            text = file.read(FILE_BYTES_MAX)
    except OSError as error:
        code = "not_found" if isinstance(error, FileNotFoundError) else "permission_denied"
        raise PitstopError(code, f"cannot read '{path}': {error.strerror}") from None
    lines = [line.split() for line in text.decode("ascii", "replace").splitlines()]
    lines = [line for line in lines if line and not line[0].startswith("#")]
    keys = {line[0]: line[1].encode() for line in lines if len(line) == 2 and len(line[1]) == KEY_CHARS}
    if len(lines) != len(WORDS) or set(keys) != set(WORDS):
        raise PitstopError("malformed", f"'{path}': expected {len(WORDS)} lines, {', '.join(WORDS)}, each with a key")
    return ClientKey(**keys)
