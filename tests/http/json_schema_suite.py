"""The JSON Schema organization's own test suite, from the source distribution of the package jsonschema: fetched once
into the build's folder, pinned by its hash."""

import hashlib
import json
import os
import subprocess
import sys
import tarfile

import pytest

from process_tree import ROOT

VERSION = "4.26.0"
SHA256 = "0c26707e2efad8aa1bfc5b7ce170f3fccc2e4918ff85989ba9ffa9facb2be326"
DRAFT = "json/tests/draft2020-12"


def archive():
    folder = ROOT / "build" / "json_schema_suite"
    path = folder / f"jsonschema-{VERSION}.tar.gz"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "-q",
            "--disable-pip-version-check",
            "--retries",
            "1",
            "--no-deps",
        ]
        command += ["--no-binary", "jsonschema", "--dest", os.fspath(folder), f"jsonschema=={VERSION}"]
        if subprocess.run(command, check=False, timeout=300).returncode != 0:
            pytest.skip("the package index could not be reached")
    assert hashlib.sha256(path.read_bytes()).hexdigest() == SHA256, f"{path} is not the pinned distribution"
    return path


def schemas():
    """[(name, schema)], in the suite's order: each schema of the draft's required part once."""
    found = []
    with tarfile.open(archive()) as packed:
        for member in sorted(packed.getmembers(), key=lambda member: member.name):
            folder, _, name = member.name.partition("/")[2].rpartition("/")
            if folder != DRAFT or not name.endswith(".json"):
                continue
            for group in json.load(packed.extractfile(member)):
                found.append((f"{name[:-5]}: {group['description']}", group["schema"]))
    assert len(found) > 300
    return found
