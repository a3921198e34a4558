"""docs/http.md lists exactly the routes that exist."""

import re
import subprocess

from http_client import program
from process_tree import ROOT


def documented():
    text = (ROOT / "docs" / "http.md").read_text()
    table = re.search(r"<!-- begin: routes -->(.*)<!-- end: routes -->", text, re.DOTALL).group(1)
    rows = [re.split(r"(?<!\\)\|", line)[1:-1] for line in table.strip().splitlines()[2:]]
    assert all(len(row) == 5 and row[4].strip() for row in rows), rows
    return [tuple(cell.strip().strip("`") for cell in row[:4]) for row in rows]


def routed():
    printed = subprocess.run([program("http_proc"), "--routes"], capture_output=True, text=True)
    return [tuple(line.split("\t")) for line in printed.stdout.splitlines()]


def test_http_md_lists_each_route_with_its_access():
    in_table, in_router = documented(), routed()
    assert len(in_table) == len(set(in_table))
    assert sorted(in_table) == sorted(in_router)
