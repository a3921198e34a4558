"""Says where things are: the built programs and the bundled models."""

import os
import pathlib

from problem import EXIT_PLACE, EXIT_USAGE, Problem
import hub

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODELS = ROOT / "launch" / "models"
# What a user types to run the launcher: of the sources, or installed.
COMMAND = "launch/pitstop" if (ROOT / "launch" / "quickstart").exists() else "pitstop"
PRESETS = ("cpu", "cuda")  # in whose build directories a program may be found


def bin_dir():
    """Returns PITSTOP_BUILD's, else the one built last. Problem: nothing is built."""
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
        raise Problem(f"{path} is not built", EXIT_PLACE)
    return str(path)


def model_dir(name, say=lambda line: None):
    """Takes a path, the name of a bundled model, or org/name of the Hugging Face cache."""
    for path in (pathlib.Path(name), MODELS / name):
        if path.is_dir():
            return str(path.resolve())
    if hub.is_name(name):
        return hub.fetch(name, say)
    bundled = ", ".join(sorted(path.name for path in MODELS.iterdir() if path.is_dir()))
    raise Problem(f"--model {name}: no such directory (bundled models: {bundled})", EXIT_USAGE)
