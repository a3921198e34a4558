"""The README's examples, taken out of the page, built, and run against a tree."""

import os
import pathlib
import re
import subprocess
import sys

from process_tree import ROOT, environment

PROMPT = "Once upon a time"


def example(name):
    text = (ROOT / "README.md").read_text()
    return re.search(rf"<!-- example: {re.escape(name)} -->\n```\w+\n(.*?)```", text, re.DOTALL).group(1)


def expected(shared_tree):
    with shared_tree.door() as door:
        return door.generate(PROMPT, max_new_tokens=60, seed=7).text


def test_the_python_front_end_prints_what_the_tree_says(shared_tree):
    ended = subprocess.run(
        [sys.executable, "-c", example("front_end.py"), str(shared_tree.run_dir), PROMPT],
        capture_output=True,
        text=True,
        timeout=400,
        env={**environment(), "PYTHONPATH": str(ROOT / "client" / "python")},
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == expected(shared_tree) + "\n"


def test_the_cpp_front_end_prints_what_the_tree_says(shared_tree, place):
    source = place / "front_end.cpp"
    source.write_text(example("front_end.cpp"))
    build = pathlib.Path(environment()["PITSTOP_BUILD"])
    libraries = [build / name / f"libpitstop_{name}.a" for name in ("client", "bus", "messages", "digest", "base")]
    # The command that CMake would use for target_link_libraries(front_end pitstop_client), with the build's own
    # compiler flags if it has any (sanitizers).
    command = [
        os.environ.get("CXX", "c++"),
        "-std=c++20",
        "-DSPDLOG_COMPILED_LIB",
        "-DSPDLOG_FMT_EXTERNAL",
        "-DFMT_SHARED",
        "-Wall",
        "-Wextra",
        "-Werror",
        f"-I{ROOT}",
        source,
        "-o",
        place / "front_end",
        *libraries,
        "-lzmq",
        "-lspdlog",
        "-lfmt",
        "-lpthread",
    ]
    subprocess.run(command, check=True, timeout=400)
    ended = subprocess.run(
        [place / "front_end", shared_tree.run_dir, PROMPT],
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == expected(shared_tree) + "\n"


def test_the_examples_are_short():
    for name in ("front_end.cpp", "front_end.py"):
        assert len(example(name).splitlines()) <= 24, name


def test_the_protocols_own_example_works(shared_tree):
    """docs/protocol.md's example, with only pyzmq and msgpack."""
    text = (ROOT / "docs" / "protocol.md").read_text()
    source = re.search(r"```python\n(.*?)```", text, re.DOTALL).group(1)
    ended = subprocess.run(
        [sys.executable, "-c", source, str(shared_tree.run_dir)],
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert ended.returncode == 0, ended.stderr
    first, *_ = ended.stdout.splitlines()
    assert first == "stories"
    assert "length" in ended.stdout or "stop" in ended.stdout
