"""Finds org/name, a checkpoint of the Hugging Face cache, after fetching it if huggingface_hub is installed.

The cache's layout is huggingface_hub's: models--org--name/refs/REVISION has a commit, snapshots/COMMIT the files.
"""

import importlib
import json
import os
import pathlib
import re

from problem import EXIT_USAGE, Problem

NAME = re.compile(r"([\w][\w.-]{0,95}/[\w][\w.-]{0,95})(?:@([\w][\w./-]{0,95}))?")
# The files of a repository that a tree reads.
PATTERNS = [
    "*.safetensors",
    "*.safetensors.index.json",
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "*.jinja",
]


def is_name(name):
    """Returns whether the text has the form org/name or org/name@revision."""
    return NAME.fullmatch(name) is not None


def cache():
    """Returns the directory of huggingface_hub's cache."""
    place = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE")
    if place:
        return pathlib.Path(place)
    home = os.environ.get("HF_HOME")
    if not home:
        home = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "huggingface")
    return pathlib.Path(home) / "hub"


def _what_is_missing(snapshot):
    """Describes what an interrupted fetch lacks; empty: nothing."""
    if not (snapshot / "config.json").exists():
        return "config.json"
    index = snapshot / "model.safetensors.index.json"
    try:
        names = sorted(set(json.loads(index.read_text())["weight_map"].values())) if index.exists() else []
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return index.name
    for name in names or ["model.safetensors"]:
        if not (snapshot / str(name)).exists():
            return str(name)
    return ""


def cached(name):
    """Returns (the snapshot's directory or None, the reason for None)."""
    repository, revision = NAME.fullmatch(name).groups()
    place = cache() / ("models--" + repository.replace("/", "--"))
    if not place.is_dir():
        return None, f"it is not in {cache()}"
    commit = revision or "main"
    reference = place / "refs" / commit
    try:
        commit = reference.read_text().strip() if reference.is_file() else commit
    except OSError as error:
        return None, f"{reference}: {error.strerror}"
    snapshot = place / "snapshots" / commit
    if "/" in commit or not snapshot.is_dir():
        return None, f"revision {revision or 'main'} is not in {place}"
    missing = _what_is_missing(snapshot)
    return (None, f"{snapshot} has no {missing}") if missing else (str(snapshot), "")


def fetch(name, say):
    """Returns the directory of org/name. Problem: it is not in the cache, and cannot be fetched."""
    path, why = cached(name)
    if path:
        return path
    try:
        hub = importlib.import_module("huggingface_hub")
    except ImportError:
        raise Problem(
            f"--model {name}: {why}, and huggingface_hub, which would fetch it, is not installed "
            "(pip install huggingface_hub)",
            EXIT_USAGE,
        ) from None
    repository, revision = NAME.fullmatch(name).groups()
    say(f"fetching {name}: {why}")
    try:
        return hub.snapshot_download(repository, revision=revision, allow_patterns=PATTERNS, cache_dir=str(cache()))
    except Exception as error:  # huggingface_hub's exceptions, and those of its dependencies
        line = " ".join(str(error).split())[:300] or type(error).__name__
        raise Problem(f"--model {name}: {line}", EXIT_USAGE) from error
