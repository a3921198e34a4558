"""Directories for trees of tests."""

import contextlib
import pathlib
import shutil
import tempfile

import pytest


@contextlib.contextmanager
def short_directory():
    """A private directory that is removed after use, with a short name: a unix socket's path has
    room for some hundred bytes.
    """
    path = pathlib.Path(tempfile.mkdtemp(prefix="pitstop-test-", dir="/tmp"))
    try:
        yield path
    finally:
        shutil.rmtree(path)


@pytest.fixture
def place():
    """A short directory for trees that a test starts itself."""
    with short_directory() as path:
        yield path
