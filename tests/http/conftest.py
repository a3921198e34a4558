"""HTTP servers for tests: one per module on a live tree, and further ones on request."""

import contextlib
import pathlib
import socket
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tree"))

from http_client import FrontEnd, Http  # noqa: E402
from places import place, short_directory  # noqa: E402, F401
from process_tree import live_tree, wait_until  # noqa: E402


@pytest.fixture(scope="module")
def tree(request):
    """One tree with HTTP for the tests of a module; flags from its TREE_FLAGS."""
    flags = getattr(request.module, "TREE_FLAGS", ())
    with short_directory() as path, live_tree(path / "tree", "--port", "0", *flags) as served:
        yield served


@pytest.fixture
def port():
    """A port that stays free between two trees: it is bound here, and nothing listens."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


@pytest.fixture
def http(tree):
    return Http(tree.url)


@pytest.fixture
def door(tree):
    """The bus: another way to the tree, independent of HTTP."""
    with tree.door() as connection:
        yield connection


@pytest.fixture
def admin(tree):
    with tree.door("admin") as connection:
        yield connection


@pytest.fixture
def wait_for_open(admin):
    """wait_for_open(n): waits until the tree has n open requests."""

    def wait(num_open):
        wait_until(lambda: admin.call("status")["open_requests"] == num_open, f"{num_open} open requests")

    return wait


@pytest.fixture
def paused(admin):
    """with paused(): open requests stay open, as nothing is generated. Aborts work."""

    @contextlib.contextmanager
    def hold():
        admin.call("pause_generation", mode="in_place")
        try:
            yield
        finally:
            admin.call("continue_generation")

    return hold


@pytest.fixture
def front_end(tree):
    """front_end(*flags): another server for the module's tree."""
    started = []

    def start(*flags, **options):
        started.append(FrontEnd(tree.run_dir, *flags, **options))
        return started[-1]

    yield start
    for server in started:
        server.stop()
