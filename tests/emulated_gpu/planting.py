"""Shared by the drivers of planted bugs. Each bug is planted alone, in a checkout of HEAD (build/mutations, which keeps
built objects). A table in the driver's folder lists what found each bug."""

import argparse
import contextlib
import dataclasses
import pathlib
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
PLACE = ROOT / "build" / "mutations"
TEST_S = 300


@dataclasses.dataclass
class Bug:
    """In `file`, `text` (which occurs once) is replaced by `bug`."""

    name: str
    file: str
    text: str
    bug: str

    @property
    def row_begins(self):
        return f"| {self.name} | `{self.file}` | "


@dataclasses.dataclass
class Tried:
    """The result of a bug: the cells of its row after its name and file; none if it has no row."""

    cells: tuple
    is_found: bool
    said: str


class Table:
    """A page with a row for each bug. `head` is the text above the rows."""

    def __init__(self, path, head):
        self.path = path
        self.head = head

    def rows(self):
        """{name: line}, of the bugs alone: the first row names the columns."""
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        return {line.split(" | ")[0][2:]: line for line in [line for line in lines if line.startswith("| ")][1:]}

    def write(self, bugs, tried):
        """Merges the new results, {name: Tried}, with the earlier rows of the others."""
        rows = self.rows()
        for bug in bugs:
            if bug.name in tried:
                cells = tried[bug.name].cells
                rows[bug.name] = (
                    " | ".join([f"| {bug.name}", f"`{bug.file}`", *(cell.replace("|", "/") for cell in cells)]) + " |"
                )
                if not cells:
                    del rows[bug.name]
        lines = [rows[bug.name] for bug in bugs if bug.name in rows]
        self.path.write_text("\n".join([self.head, *lines]) + "\n")

    def problems(self, bugs):
        rows = self.rows()
        names = {bug.name for bug in bugs}
        found = [f"no row: {bug.name}" for bug in bugs if bug.name not in rows]
        found += [
            f"an old row: {bug.name}"
            for bug in bugs
            if not rows.get(bug.name, bug.row_begins).startswith(bug.row_begins)
        ]
        return found + [f"a row of no bug: {name}" for name in rows if name not in names]


def run(*command, **options):
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, errors="replace", **options)


def check_out():
    """Replaces the sources by those of HEAD."""
    if not (PLACE / ".git").exists():
        run("git", "-C", ROOT, "worktree", "prune")
        done = run("git", "-C", ROOT, "worktree", "add", "--detach", PLACE, "HEAD")
    else:
        head = run("git", "-C", ROOT, "rev-parse", "HEAD").stdout.strip()
        done = run("git", "-C", PLACE, "checkout", "--force", "--detach", head)
    if done.returncode != 0:
        sys.exit(done.stderr.strip())


def build(preset, *targets):
    """Returns the compiler's messages if it failed, otherwise nothing."""
    if not (PLACE / "build" / preset / "build.ninja").exists():
        done = run("cmake", "--preset", preset, cwd=PLACE)
        if done.returncode != 0:
            return done.stdout + done.stderr
    done = run("cmake", "--build", "--preset", preset, "--target", *targets, cwd=PLACE)
    return "" if done.returncode == 0 else done.stdout + done.stderr


@contextlib.contextmanager
def planted(bug):
    path = PLACE / bug.file
    text = path.read_text()
    if text.count(bug.text) != 1:
        sys.exit(f"'{bug.name}' does not fit {bug.file}")
    path.write_text(text.replace(bug.text, bug.bug))
    try:
        yield
    finally:
        path.write_text(text)


def misfits(bugs, root=ROOT):
    """Returns the bugs that no longer fit the sources."""
    return [
        f"does not fit {bug.file}: {bug.name}" for bug in bugs if (root / bug.file).read_text().count(bug.text) != 1
    ]


def drive(about, bugs, table, try_bug, prepare=lambda: None):
    """A driver's command line. Returns its exit code. `try_bug` plants a bug; `prepare` checks that all tests pass
    without bugs."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--only", default="", metavar="WORD,WORD")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    if options.check:
        wrong = misfits(bugs)
        print("\n".join(wrong) or f"{len(bugs)} bugs fit")
        print("\n".join(table.problems(bugs)) or "each has its row")  # only reported: each missing row takes a build
        return 1 if wrong else 0
    check_out()
    prepare()
    tried = {}
    for bug in [bug for bug in bugs if any(word in bug.name for word in options.only.split(","))]:
        begin = time.monotonic()
        tried[bug.name] = try_bug(bug)
        print(f"{bug.name}: {tried[bug.name].said} ({time.monotonic() - begin:.0f} s)", flush=True)
        if options.write:  # written at once: an interrupted run keeps its results so far
            table.write(bugs, tried)
    num_found = sum(one.is_found for one in tried.values())
    print(f"{num_found} of {len(tried)} found")
    return 0 if num_found == len(tried) else 1
