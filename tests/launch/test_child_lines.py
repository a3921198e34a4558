"""launch/lib/child.py: the lines of a process that the launcher reads late, and thus many at once."""

import os
import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "launch" / "lib"))

from child import LINE_BYTES_MAX, Child  # noqa: E402  (after the path)


@pytest.fixture
def written():
    """A Child without a process, and a function that writes on its `ready` pipe."""
    read_end, write_end = os.pipe()
    os.set_blocking(read_end, False)
    child = Child.__new__(Child)
    child.ready_fd, child.adapters, child.unfinished, child._said = read_end, {}, None, b""
    yield child, lambda data: os.write(write_end, data)
    os.close(read_end)
    os.close(write_end)


@pytest.mark.parametrize("first_bytes", [1, 100, LINE_BYTES_MAX - 1])
def test_no_line_of_a_long_backlog_is_lost(written, first_bytes):
    child, write = written
    lines = [f"ADAPTER policy-{number}\t{number}\t" + "d" * 100 for number in range(300)]
    data = "".join(line + "\n" for line in lines).encode()
    assert LINE_BYTES_MAX < len(data) < 65536
    write(data[:first_bytes])
    assert child.read_ready()
    write(data[first_bytes:])
    assert child.read_ready()
    assert [f"ADAPTER {text}" for text in child.adapters.values()] == lines


def test_a_line_without_an_end_takes_bounded_memory(written):
    child, write = written
    for _ in range(4):
        write(b"x" * LINE_BYTES_MAX)
        assert child.read_ready()
        assert len(child._said) <= LINE_BYTES_MAX
    write(b"\nUNFINISHED an update\n")
    assert child.read_ready()
    assert child.unfinished == "an update"
