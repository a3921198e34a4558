"""Bytes that are shared by files as PyTorch shares them.

Source: torch/lib/libshm (the segment: 64 bytes, whose first int32 counts references, then the payload).
"""

import atexit
import itertools
import mmap
import os
import pathlib
import struct

from .multiprocessing.reductions import rebuild_storage_filename, rebuild_typed_storage

HEADER_BYTES = 64


class UntypedStorage:
    """Bytes, of this process or in a file that others may map."""

    _numbers = itertools.count()

    def __init__(self, data):
        self.data = data  # a flat array of bytes
        self._name = None

    def share(self):
        if self._name is None:
            name = f"torch_{os.getpid()}_{os.getpid()}_{next(self._numbers)}"
            path = pathlib.Path("/dev/shm", name)
            path.write_bytes(struct.pack("<i", 1).ljust(HEADER_BYTES, b"\0") + self.data.tobytes())
            with open(path, "r+b") as file:
                self._map = mmap.mmap(file.fileno(), 0)
            self._name = f"/{name}"
            atexit.register(path.unlink, missing_ok=True)

    def __reduce__(self):
        self.share()
        struct.pack_into("<i", self._map, 0, struct.unpack_from("<i", self._map)[0] + 1)  # lent to its reader
        size = len(self.data)
        return rebuild_storage_filename, (UntypedStorage, b"", self._name.encode(), size)


class TypedStorage:
    def __init__(self, untyped, kind):
        self.untyped, self.kind = untyped, kind

    def __reduce__(self):
        return rebuild_typed_storage, (self.untyped, self.kind)
