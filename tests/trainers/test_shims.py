"""docs/trainers.md lists every shim of the steps."""

import pathlib

import shims

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "trainers.md"


def test_the_page_lists_every_shim():
    listed = PAGE.read_text().split("<!-- begin: shims -->\n")[1].split("<!-- end: shims -->")[0]
    assert listed.splitlines() == shims.lines(), "tests/trainers/shims.py prints the list"
