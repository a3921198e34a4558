"""A directory whose files are read slowly: a file system of a few calls (FUSE, spoken over
/dev/fuse).

    with SlowFiles(directory, mounted_at, seconds_per_read=0.02): ...

Each read of at most 4 KiB takes that long. __enter__ raises Unavailable with the reason if the file system
cannot be mounted, which requires root and a kernel with FUSE.
Source: include/uapi/linux/fuse.h, protocol 7.23 and newer.
"""

import ctypes
import errno
import os
import pathlib
import stat
import struct
import threading
import time

LOOKUP, FORGET, GETATTR, OPEN, READ, RELEASE, FLUSH, INIT = 1, 2, 3, 14, 15, 18, 25, 26
INTERRUPT, BATCH_FORGET = 36, 42
NO_ANSWER = (FORGET, INTERRUPT, BATCH_FORGET)
MS_RDONLY, MNT_DETACH = 1, 2
ROOT_NODE = 1
REQUEST_BYTES_MAX = 1 << 20
libc = ctypes.CDLL(None, use_errno=True)


class Unavailable(Exception):
    pass


def attributes(node, path):
    info = path.stat()
    times = [int(info.st_mtime)] * 3
    nanoseconds = [info.st_mtime_ns % 10**9] * 3
    return struct.pack(
        "<QQQQQQIIIIIIIIII",
        node, info.st_size, info.st_size // 512, *times, *nanoseconds,
        info.st_mode, 1, 0, 0, 0, 4096, 0,
    )  # fmt: skip


class SlowFiles:
    def __init__(self, directory, mounted_at, seconds_per_read):
        self.mounted_at = os.fsencode(mounted_at)
        self.seconds_per_read = seconds_per_read
        # Node numbers: the directory is the first, its files follow.
        files = sorted(pathlib.Path(directory).iterdir())
        self.paths = dict(enumerate([pathlib.Path(directory), *files], start=ROOT_NODE))
        self.nodes = {path.name: node for node, path in self.paths.items() if node != ROOT_NODE}
        self.num_reads = 0

    def __enter__(self):
        try:
            self.fd = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise Unavailable(f"/dev/fuse: {error.strerror}") from error
        os.makedirs(self.mounted_at, exist_ok=True)
        options = f"fd={self.fd},rootmode={stat.S_IFDIR:o},user_id={os.getuid()},group_id=0,allow_other"
        if libc.mount(b"slow", self.mounted_at, b"fuse", MS_RDONLY, options.encode()) != 0:
            os.close(self.fd)
            raise Unavailable(f"mount: {os.strerror(ctypes.get_errno())}")
        self.server = threading.Thread(target=self.serve, daemon=True)
        self.server.start()
        return self

    def __exit__(self, *_):
        libc.umount2(self.mounted_at, MNT_DETACH)
        self.server.join(30)
        os.close(self.fd)

    def serve(self):
        while True:
            try:
                request = os.read(self.fd, REQUEST_BYTES_MAX)
            except OSError as error:
                if error.errno in (errno.EINTR, errno.ENOENT, errno.EAGAIN):
                    continue
                return  # ENODEV: unmounted
            _, operation, unique, node = struct.unpack_from("<IIQQ", request)
            if operation in NO_ANSWER:
                continue
            answer = self.answer(operation, node, request[40:])
            code, body = (-answer, b"") if isinstance(answer, int) else (0, answer)
            try:
                os.write(self.fd, struct.pack("<IiQ", 16 + len(body), code, unique) + body)
            except OSError:  # the reader has gone
                continue

    def answer(self, operation, node, body):
        """The answer's bytes, or an error number."""
        if operation == INIT:
            return struct.pack("<IIIIHHIIHHI28x", 7, 31, 4096, 0, 1, 1, 4096, 1, 0, 0, 0)
        if operation == GETATTR:
            return struct.pack("<QII", 3600, 0, 0) + attributes(node, self.paths[node])
        if operation == LOOKUP:
            found = self.nodes.get(body.rstrip(b"\0").decode())
            if found is None:
                return errno.ENOENT
            return struct.pack("<QQQQII", found, 0, 3600, 3600, 0, 0) + attributes(found, self.paths[found])
        if operation == OPEN:
            return struct.pack("<QII", node, 0, 0)
        if operation == READ:
            _, offset, size = struct.unpack_from("<QQI", body)
            self.num_reads += 1
            time.sleep(self.seconds_per_read)
            with open(self.paths[node], "rb") as file:
                return os.pread(file.fileno(), size, offset)
        return b"" if operation in (FLUSH, RELEASE) else errno.ENOSYS
