"""The project's own files, for tests that read them."""

import os
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
CODE = (".h", ".cpp", ".cu", ".cuh", ".inc")


def files(*suffixes):
    """Every file of the project with one of these endings (none given: all), relative to ROOT."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode == 0 and listed.stdout:
        names = [pathlib.Path(name) for name in listed.stdout.split("\0") if name]
    else:  # an unpacked archive
        names = [path.relative_to(ROOT) for path in ROOT.rglob("*") if path.is_file()]
        names = [path for path in names if path.parts[0] not in ("build", ".git")]
    names = [path for path in names if (ROOT / path).is_file()]
    return sorted(path for path in names if not suffixes or path.suffix in suffixes)


def changed_files():
    """The files that differ from main's tip, or, on main, those changed by the last commit and in
    the working tree.
    """

    def git(*arguments):
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)

    base = git("merge-base", "HEAD", "origin/main").stdout.strip()
    if not base or base == git("rev-parse", "HEAD").stdout.strip():
        base = "HEAD~1"
    return set(git("diff", "--name-only", base).stdout.split())


def read(path):
    return (ROOT / path).read_text(encoding="utf-8")


def program(name):
    """A built program's path, from the build directory in PITSTOP_BUILD or the cpu preset's."""
    build = pathlib.Path(os.environ.get("PITSTOP_BUILD", ROOT / "build" / "cpu"))
    return build / "bin" / f"pitstop_{name}"
