"""Finds the built programs and the bundled models."""

import os
import pathlib
import re

import hub
from problem import EXIT_PLACE, EXIT_USAGE, Problem

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODELS = ROOT / "launch" / "models"
# The command of the launcher: in the sources, or installed.
COMMAND = "launch/pitstop" if (ROOT / "launch" / "quickstart").exists() else "pitstop"
PRESETS = ("cpu", "cuda")  # presets whose build directories are searched for programs


def version():
    """Returns the version of the client package, whose file is next to this one."""
    for path in (ROOT / "client" / "python" / "pitstop", ROOT.parent):
        if (path / "version.py").is_file():
            return re.search(r'^VERSION = "(.*)"$', (path / "version.py").read_text(), re.MULTILINE)[1]
    return "of unknown version"


def bin_dir():
    """Returns PITSTOP_BUILD's bin, or the one built last. Problem: nothing is built."""
    named = os.environ.get("PITSTOP_BUILD")
    if named:
        candidates = [pathlib.Path(named) / "bin"]
    else:
        candidates = [ROOT / "build" / preset / "bin" for preset in PRESETS] + [ROOT / "bin"]
    built = [path for path in candidates if (path / "pitstop_tp_worker").exists()]
    if not built:
        raise Problem(
            f"no programs in {', '.join(map(str, candidates))}: build them with launch/quickstart, "
            "or name a build directory in PITSTOP_BUILD",
            EXIT_PLACE,
        )
    return max(built, key=lambda path: (path / "pitstop_tp_worker").stat().st_mtime)


def program(name):
    path = bin_dir() / f"pitstop_{name}"
    if not path.exists():
        raise Problem(
            f"{path} is not built; build it with launch/quickstart, or name a build directory in PITSTOP_BUILD",
            EXIT_PLACE,
        )
    return str(path)


def model_dir(name, say=lambda line: None):
    """Returns the directory of a model: a path, the name of a bundled model, or org/name of the Hugging Face cache."""
    for path in (pathlib.Path(name), MODELS / name):
        if path.is_dir():
            return str(path.resolve())
    if hub.is_name(name):
        return hub.fetch(name, say)
    raise Problem(f"--model {name}: {_why_no_model(name)}", EXIT_USAGE)


def _why_no_model(name):
    if name.endswith(".gguf"):
        return "GGUF is not supported; use the safetensors that it was made from"
    if pathlib.Path(name).is_file():
        return "this is a file; name the directory that contains it"
    bundled = ", ".join(sorted(path.name for path in MODELS.iterdir() if path.is_dir()))
    hint = "" if "/" in name else "; a model of the Hugging Face hub is called ORG/NAME, like Qwen/Qwen3-0.6B"
    return f"no such directory (bundled models: {bundled}){hint}"
