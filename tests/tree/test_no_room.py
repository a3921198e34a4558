"""A launcher that lacks a resource of the system: room in the run directory, or descriptors. It names the missing
resource in a line, ends with an exit code of docs/running.md, and leaves nothing behind."""

import errno
import os
import resource
import subprocess

import pytest

from process_tree import LAUNCHER, ProcessTree, environment, run, wait_until
from wire import DEADLINE_S

EXIT_START, EXIT_PLACE = 3, 4


def check_ended(ended, codes=(EXIT_START, EXIT_PLACE)):
    """Checks that the launcher has ended with one line and such a code, and without Python's traceback."""
    assert ended.returncode in codes, (ended.returncode, ended.stderr)
    assert "Traceback" not in ended.stderr and "Exception ignored" not in ended.stderr, ended.stderr
    assert ended.stderr.startswith("pitstop: ") or "\npitstop: " in ended.stderr, ended.stderr


def serve_in(place, *flags, **options):
    return run("serve", "--run-dir", place / "tree", "--no-http", *flags, **options)


def test_a_file_system_that_is_full(mount_tmpfs):
    place = mount_tmpfs(1)
    with open(place / "filler", "wb") as filler:
        with pytest.raises(OSError):
            while True:
                os.write(filler.fileno(), bytes(4096))
    ended = serve_in(place)
    check_ended(ended, [EXIT_PLACE])
    assert os.strerror(errno.ENOSPC) in ended.stderr and "run directory" in ended.stderr
    assert not (place / "tree").exists(), "what it made is gone"


@pytest.mark.parametrize("inodes", (2, 3, 4, 5, 8))
def test_a_file_system_without_inodes(mount_tmpfs, inodes):
    place = mount_tmpfs(1, f",nr_inodes={inodes}")
    ended = serve_in(place, "--start-timeout", 20)
    check_ended(ended)
    assert os.strerror(errno.ENOSPC) in ended.stderr
    assert not (place / "tree").exists(), "what it made is gone"


def test_a_file_system_that_cannot_be_written(mount_tmpfs):
    place = mount_tmpfs(1)
    subprocess.run(["mount", "-o", "remount,ro", place], check=True)
    ended = serve_in(place)
    check_ended(ended, [EXIT_PLACE])
    assert os.strerror(errno.EROFS) in ended.stderr


def test_a_run_directory_that_cannot_be_cleared_does_not_change_the_exit_code(place, mount_tmpfs):
    mount_tmpfs(1)  # skips if it cannot mount: the test itself mounts, too
    tree = ProcessTree(place / "tree")
    try:
        subprocess.run(["mount", "--bind", tree.run_dir, tree.run_dir], check=True)
        subprocess.run(["mount", "-o", "remount,bind,ro", tree.run_dir], check=True)
        tree.kill("tp_worker[0.0]")
        assert tree.wait_exit() == 13
        assert "Traceback" not in tree.log(), tree.log()
    finally:
        subprocess.run(["umount", "-l", tree.run_dir], check=True)
        tree.abandon()


def test_files_that_may_not_grow(place):
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    ended = serve_in(place, preexec_fn=limit)
    check_ended(ended)
    assert not (place / "tree").exists()


@pytest.mark.parametrize("limit", (8, 12, 16, 20))
def test_few_descriptors(place, limit):
    """Soft and hard limit are equal, so no process can raise its limit."""
    lower = lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    ended = serve_in(place, preexec_fn=lower)
    check_ended(ended)
    assert not (place / "tree").exists()


def test_standard_output_that_is_full_ends_no_tree(place):
    with open("/dev/full", "w") as full, open(place / "log", "w+") as log:
        launcher = subprocess.Popen(
            [LAUNCHER, "serve", "--run-dir", place / "tree", "--no-http"],
            stdout=full,
            stderr=log,
            env=environment(),
        )
        try:
            wait_until(lambda: "is ready after" in (place / "log").read_text(), "the line elsewhere")
            assert os.strerror(errno.ENOSPC) in (place / "log").read_text()
            assert run("generate", "Once", "--max-new-tokens", 3, "--run-dir", place / "tree").returncode == 0
        finally:
            launcher.terminate()
            assert launcher.wait(DEADLINE_S) == 0
        assert "Traceback" not in (place / "log").read_text()
