"""Trees for tests. Each test that gets a tree checks that the tree leaves nothing behind."""

import json
import subprocess

import pytest

from places import place, short_directory  # noqa: F401
from process_tree import ROOT, ProcessTree, live_tree

REFERENCE = ROOT / "tests" / "data" / "models" / "reference.json"
STORIES = ROOT / "launch" / "models" / "stories"


@pytest.fixture(scope="session")
def reference():
    """Greedy continuations by an independent implementation, per bundled model."""
    return json.loads(REFERENCE.read_text())["models"]


def pytest_terminal_summary(terminalreporter):
    """Prints the numbers that tests measured, for people to read; they are compared with no limit."""
    lines = [
        line
        for reports in terminalreporter.stats.values()
        for report in reports
        if getattr(report, "when", None) == "call"
        for name, line in report.user_properties
        if name == "number"
    ]
    if lines:
        terminalreporter.section("numbers")
        for line in lines:
            terminalreporter.write_line(line)


@pytest.fixture
def tell(record_property):
    """tell(line): prints the line at the end of the run."""
    return lambda line: record_property("number", line)


@pytest.fixture
def mount_tmpfs(place):
    """mount_tmpfs(megabytes): a small file system of the test's own; skips if it cannot be mounted."""
    mounts = []

    def mount(megabytes, options=""):
        path = place / f"small-{len(mounts)}"
        path.mkdir(mode=0o700)
        command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m,mode=700{options}", "tmpfs", path]
        mounted = subprocess.run(command, capture_output=True, text=True)
        if mounted.returncode != 0:
            pytest.skip(f"cannot mount a small file system here: {mounted.stderr.strip()}")
        mounts.append(path)
        return path

    yield mount
    for path in mounts:
        subprocess.run(["umount", "-l", path], check=True)


@pytest.fixture
def start_tree(place):
    """start_tree(*flags): a tree of the test's own; ended with the test if it still runs."""
    trees = []

    def start(*flags, **options):
        trees.append(ProcessTree(place / f"tree-{len(trees)}", *flags, **options))
        return trees[-1]

    yield start
    try:
        for tree in trees:
            if tree.launcher.poll() is None:
                tree.stop()
            else:
                tree.check_gone(is_killed=tree.launcher.returncode < 0)
    finally:
        for tree in trees:
            tree.abandon()


@pytest.fixture(scope="module")
def shared_tree(request):
    """One tree for the tests of a module that only send to it; flags from its TREE_FLAGS."""
    with short_directory() as path, live_tree(path / "tree", *getattr(request.module, "TREE_FLAGS", ())) as tree:
        yield tree


@pytest.fixture
def door(shared_tree):
    """A connection of the test's own to the module's tree."""
    with shared_tree.door() as door:
        yield door


@pytest.fixture
def admin(shared_tree):
    """The admin door of the module's tree, which serves stories; afterwards no request runs and
    nothing is paused.
    """
    with shared_tree.door("admin") as admin:
        reply = admin.call("update_weights", update={"source": {"kind": "disk", "path": str(STORIES)}})
        assert reply["ok"], reply
        yield admin
        admin.call("continue_generation")
        admin.call("abort", all=True)
