"""Runs ruff and mypy: imports, unused names and likely bugs in all Python files; types in the protocol's files."""

import importlib.util
import subprocess
import sys

import pytest

from project import ROOT


def needs(tool):
    return pytest.mark.skipif(importlib.util.find_spec(tool) is None, reason=f"{tool} is not installed")


def run(*arguments, source=None):
    return subprocess.run(
        [sys.executable, "-m", *arguments], input=source, cwd=ROOT, capture_output=True, text=True, check=False
    )


def ruff(*arguments, source=None):
    return run("ruff", "check", "--no-cache", "--quiet", "--output-format=concise", *arguments, source=source)


def mypy(*arguments):
    return run("mypy", "--no-incremental", "--cache-dir=/dev/null", *arguments)


@needs("ruff")
def test_ruff_has_nothing_to_say():
    done = ruff(".")
    assert done.returncode == 0, done.stdout + done.stderr


@needs("ruff")
@pytest.mark.parametrize(
    "source, rule",
    [
        ("import os\n", "F401"),
        ("import sys\nimport os\n\nprint(os, sys)\n", "I001"),
        ("print(missing)\n", "F821"),
        ("def grow(values=[]):\n    return values\n", "B006"),
    ],
)
def test_ruff_refuses(source, rule):
    done = ruff("--stdin-filename=launch/lib/planted.py", "-", source=source)
    assert done.returncode == 1 and f": {rule} " in done.stdout, done.stdout + done.stderr


def formatted(*arguments, source=None):
    return run("ruff", "format", "--check", "--no-cache", "--quiet", *arguments, source=source)


@needs("ruff")
def test_every_python_file_has_ruffs_form():
    done = formatted(".")
    assert done.returncode == 0, f"{done.stdout}{done.stderr}python -m ruff format . gives all files their form"


@needs("ruff")
def test_another_form_is_seen():
    assert formatted("--stdin-filename=launch/lib/planted.py", "-", source="x = 'one'\n").returncode == 1


@needs("mypy")
def test_the_types_of_the_protocol_hold():
    done = mypy()
    assert done.returncode == 0, done.stdout + done.stderr


@needs("mypy")
def test_mypy_refuses_a_value_that_may_be_missing(tmp_path):
    planted = tmp_path / "planted.py"
    planted.write_text("import typing\n\n\ndef size(value: typing.Optional[str]) -> int:\n    return len(value)\n")
    done = mypy(str(planted))
    assert done.returncode == 1 and "[arg-type]" in done.stdout, done.stdout + done.stderr
