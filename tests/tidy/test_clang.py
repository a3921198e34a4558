"""Checks with Clang's tools: mutexes guard what their comments and types claim, and every file is formatted."""

import json
import os
import re
import shutil
import subprocess

import pytest

from project import ROOT, changed_files, files, read

PRODUCT = (
    "base bench bus checkpoint client detokenizer_proc digest grammar http_proc jinja kernels messages pickle"
    " scheduler_proc text tokenizer_proc tp_worker"
).split()
ANALYSIS = "clang++ -std=c++20 -fsyntax-only -Wthread-safety -Werror=thread-safety -I".split() + [str(ROOT)]


CHANGED_FILES_MAX = 12


def needs(tool):
    return pytest.mark.skipif(not shutil.which(tool), reason=f"{tool} is not installed")


def included(path):
    """The project's headers that a file includes itself."""
    names = re.findall(r'^\s*#\s*include\s*"([^"]+)"', read(path), re.MULTILINE)
    return [name for name in names if (ROOT / name).is_file()]


def files_with_mutexes():
    """Sources that lock, themselves or in a header that they include."""
    with_mutex = re.compile(r"\bMutex(Lock)?\b")
    sources = [path for path in files(".cpp") if path.parts[0] in PRODUCT]
    return [path for path in sources if any(with_mutex.search(read(name)) for name in [path, *included(path)])]


def analyze(*arguments, source=None):
    return subprocess.run([*ANALYSIS, *arguments], input=source, cwd=ROOT, capture_output=True, text=True, check=False)


@needs("clang++")
@pytest.mark.parametrize("path", files_with_mutexes(), ids=str)
def test_members_that_a_mutex_guards_are_touched_under_it_alone(path):
    # The headers of the GPU in software replace the toolkit's, which may be missing.
    done = analyze("-I", "tests/emulated_gpu/include", '-DPITSTOP_VERSION="any"', str(path))
    assert done.returncode == 0, done.stderr


@needs("clang++")
@pytest.mark.parametrize(
    "body, is_refused",
    [("MutexLock lock(mutex_); ++count_;", False), ("++count_;", True), ("add();", True)],
)
def test_the_analysis_finds_what_is_not_locked(body, is_refused):
    source = f"""
        #include "base/mutex.h"
        using pitstop::MutexLock;
        class Counter {{
          public:
            void count() {{ {body} }}
          private:
            void add() REQUIRES(mutex_) {{ ++count_; }}
            pitstop::Mutex mutex_;
            int count_ GUARDED_BY(mutex_) = 0;
        }};
        int main() {{ Counter().count(); }}"""
    done = analyze("-x", "c++", "-", source=source)
    assert (done.returncode != 0) == is_refused, done.stderr
    assert not is_refused or "requires holding mutex" in done.stderr, done.stderr


def test_every_mutex_of_the_product_is_one_that_the_analysis_knows():
    wrong = [
        f"{path}:{number}: {line.strip()}"
        for path in files(".h", ".cpp")
        if path.parts[0] in PRODUCT and path.parts[0] != "bench" and str(path) != "base/mutex.h"
        for number, line in enumerate(read(path).splitlines(), 1)
        if re.search(r"std::(recursive_|shared_|timed_)?mutex\b|//.*\bGUARDED_BY\b", line)
    ]
    assert not wrong, "\n".join(wrong)


def files_for_clang_tidy():
    """All files at night. Otherwise the changed files, or a sample if there are many: a file takes ten seconds. One
    skip counts the omitted files."""
    sources = [path for path in files(".cpp") if path.parts[0] in PRODUCT]
    if os.environ.get("PITSTOP_CLANG_TIDY_ALL"):
        return sources
    changed = changed_files()
    chosen = [path for path in sources if str(path) in changed]
    if len(chosen) <= CHANGED_FILES_MAX:
        return chosen
    every = -(-len(chosen) // CHANGED_FILES_MAX)  # spread over the folders
    asked = chosen[::every]
    left = f"{len(chosen) - len(asked)} more files changed: launch/test --clang-tidy-all asks about each"
    return [*asked, pytest.param(None, marks=pytest.mark.skip(reason=left), id="others")]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """A folder with compile commands for each source alone, so that a source that relies on includes of its group is
    found."""
    place = tmp_path_factory.mktemp("alone")
    configure = ["cmake", "-S", ROOT, "-B", place, "-G", "Ninja", "-DPITSTOP_UNITY_BUILD=OFF"]
    configure += ["-DPITSTOP_WERROR=ON", "-DPITSTOP_FAULT_POINTS=ON"]
    subprocess.run(configure, check=True, capture_output=True)
    return place


@needs("clang-tidy")
@pytest.mark.parametrize("path", files_for_clang_tidy(), ids=str)
def test_clang_tidy_has_nothing_to_say(path, alone):
    commands = json.loads((alone / "compile_commands.json").read_text())
    if not any(command["file"] == str(ROOT / path) for command in commands):
        pytest.skip("not built on this machine")
    done = run_clang_tidy(path, alone)
    assert done.returncode == 0, done.stdout[-4000:]


def run_clang_tidy(path, build):
    # GCC's own warnings are no errors on the command line.
    command = ["clang-tidy", "-p", build, "--quiet", "--extra-arg=-Wno-unknown-warning-option", path]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@needs("clang-tidy")
def test_clang_tidy_finds_what_is_wrong(tmp_path):
    (tmp_path / ".clang-tidy").write_text(read(".clang-tidy"))
    (tmp_path / "wrong.cpp").write_text("int BadName() { return 1; }\n")
    (tmp_path / "compile_commands.json").write_text("[]")
    done = subprocess.run(
        ["clang-tidy", "--quiet", tmp_path / "wrong.cpp", "--", "-std=c++20"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0 and "readability-identifier-naming" in done.stdout, done.stdout


@needs("clang-format")
def test_every_file_is_formatted():
    sources = [str(path) for path in files(".h", ".cpp", ".cu", ".cuh")]
    assert len(sources) > 500
    done = subprocess.run(
        ["clang-format", "--dry-run", "--Werror", *sources], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
