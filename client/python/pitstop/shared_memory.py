"""Finds arrays in shared memory, in a file that another process can open, such as Ray's object store.

Source: proc(5), /proc/PID/maps and /proc/PID/fd.
"""

from __future__ import annotations

import bisect
import os
from typing import Iterable, Mapping, Optional

import numpy


class SharedFile:
    """A file of shared memory with all of `arrays`, as mapped in this process.

    pid, fd    a process that has the file open, and its descriptor
    offsets    of each array's first byte in the file, by name
    """

    def __init__(self, pid: int, fd: int, size: int, offsets: Mapping[str, int]):
        self.pid = pid
        self.fd = fd
        self.size = size
        self.offsets = dict(offsets)

    def describe(self) -> dict[str, int]:
        return {"pid": self.pid, "fd": self.fd, "bytes": self.size}


def find_shared_file(arrays: Mapping[str, numpy.ndarray], processes: Iterable[int]) -> Optional[SharedFile]:
    """The one file that has all arrays, row-major. None: there is no such file, or none of these processes has it
    open."""
    maps = _shared_maps()
    begins = [begin for begin, *_ in maps]
    files, offsets = set(), {}
    for name, array in arrays.items():
        address = array.__array_interface__["data"][0]
        index = bisect.bisect_right(begins, address) - 1
        if index < 0 or array.nbytes == 0 or not array.flags.c_contiguous or address + array.nbytes > maps[index][1]:
            return None
        begin, _, at, file = maps[index]
        files.add(file)
        offsets[name] = at + address - begin
    if len(files) != 1:
        return None
    (file,) = files
    for pid in processes:
        found = _descriptor(pid, file)
        if found is not None:
            return SharedFile(pid, *found, offsets)
    return None


def _shared_maps() -> list[tuple[int, int, int, tuple[int, int]]]:
    """The shared mappings of this process: (begin, end, offset in the file, (device, inode)), in order."""
    found = []
    with open("/proc/self/maps") as lines:
        for line in lines:
            where, rights, offset, device, inode, *_ = line.split(maxsplit=5)
            if rights[3] == "s" and inode != "0":
                begin, end = (int(each, 16) for each in where.split("-"))
                major, minor = (int(each, 16) for each in device.split(":"))
                found.append((begin, end, int(offset, 16), (os.makedev(major, minor), int(inode))))
    return found


def _descriptor(pid: int, file: tuple[int, int]) -> Optional[tuple[int, int]]:
    """(descriptor, size) of the file in a process that has it open."""
    try:
        names = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return None
    for name in names:
        try:
            about = os.stat(f"/proc/{pid}/fd/{name}")
        except OSError:
            continue  # closed meanwhile
        if (about.st_dev, about.st_ino) == file:
            return int(name), about.st_size
    return None
