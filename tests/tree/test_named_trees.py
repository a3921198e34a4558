"""The tree of a command: commands name it, find it in any place, and never use another tree by accident."""

import json
import os
import re
import subprocess
import sys

import pytest

from process_tree import HOME, ROOT, environment, run, wait_until

SHORT = ("--max-new-tokens", "4", "--temperature", "0")


@pytest.fixture(autouse=True)
def own_home(place, monkeypatch):
    """Hides this user's other trees from the test's commands."""
    (place / "home").mkdir(mode=0o700)
    monkeypatch.setenv(HOME, str(place / "home"))


def test_a_plain_command_finds_a_tree_with_a_directory_of_its_own(start_tree):
    tree = start_tree("--port", "0")
    done = run("status")
    assert done.returncode == 0, done.stderr
    assert "serves stories" in done.stdout
    listed = run("trees").stdout
    assert re.fullmatch(rf"--run-dir {tree.run_dir}   stories at {tree.url}, up \d+ s\n", listed), listed


def test_a_changing_command_names_its_tree_first(start_tree):
    tree = start_tree("--port", "0")
    for place in ([], ["--run-dir", tree.run_dir]):
        done = run("pause", *place)
        assert done.returncode == 0, done.stderr
        first, *_ = done.stderr.splitlines()
        assert first == f"pitstop: pause: stories at {tree.url}, run directory {tree.run_dir}"
        assert run("continue", *place).returncode == 0
    assert json.loads(run("flush", "--json").stdout), "what a machine reads has no such line"


def test_of_several_trees_none_is_taken_and_each_is_told_apart(start_tree):
    first, second = start_tree("--port", "0"), start_tree("--model", "bard")
    done = run("release", "kv_cache")
    assert done.returncode == 4
    assert "2 trees run: name one" in done.stderr
    assert re.search(rf"--run-dir {first.run_dir}   stories at {first.url}, up \d+ s", done.stderr)
    assert re.search(rf"--run-dir {second.run_dir}   bard at no HTTP, up \d+ s", done.stderr)


def test_flags_of_a_tree_are_refused_beside_one_that_runs(start_tree):
    start_tree()
    for flags in (["--model", "bard"], ["--model=stories"], ["--tp", "4"], ["--compute", "fp32"]):
        done = run("generate", *flags, *SHORT, "Once upon a time")
        assert done.returncode == 2 and done.stdout == ""
        (line,) = done.stderr.splitlines()
        assert "runs already" in line and flags[0].partition("=")[0] in line and "--own" in line
    assert run("generate", *SHORT, "Once upon a time").returncode == 0
    after = run("generate", *SHORT, "--", "--model")
    assert after.returncode == 0, "behind -- it is the prompt"


def test_own_starts_another_tree_beside_one_that_runs(start_tree):
    tree = start_tree()
    done = run(
        "generate",
        "--own",
        "--model",
        "bard",
        "--temperature",
        "0",
        "--max-new-tokens",
        "40",
        "--ignore-eos",
        "Once upon a time",
    )
    assert done.returncode == 0, done.stderr
    assert "VINCENTIO" in done.stdout, "that is bard's, not the running tree's"
    assert "runs already" not in done.stderr and str(tree.run_dir) not in done.stderr, done.stderr
    named = run("generate", "--own", "--run-dir", "/tmp/x", "Once")
    assert (
        named.returncode == 2
        and named.stderr == "pitstop: --own starts a tree for this call; leave out --run-dir and the doors\n"
    )


def test_a_programs_own_tree_is_taken_only_where_it_is_named(place):
    program = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import pitstop, sys\nwith pitstop.Engine('stories') as engine:\n"
            "    print(engine.run_dir, flush=True)\n    sys.stdin.read()",
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**environment(), "PYTHONPATH": str(ROOT / "client" / "python")},
    )
    try:
        run_dir = program.stdout.readline().strip()
        done = run("pause")
        assert done.returncode == 4
        first, listed = done.stderr.splitlines()
        assert first.startswith("pitstop: no tree runs; start one with launch/pitstop serve")
        assert f"--run-dir {run_dir}" in listed and f"of the program with pid {program.pid}" in listed
        assert run("status", "--run-dir", run_dir).returncode == 0
    finally:
        program.communicate("")
    assert "no tree runs" in run("trees").stdout


def test_entries_of_a_killed_launcher_are_forgotten(start_tree, place):
    tree = start_tree()
    (entry,) = (place / "home" / "pitstop").glob("*.tree")
    assert entry.read_text() == str(tree.run_dir)
    tree.launcher.kill()
    tree.launcher.wait()
    assert run("trees").stdout == "no tree runs\n"
    assert not entry.exists()


def test_an_entry_goes_with_its_tree(start_tree, place):
    tree = start_tree()
    tree.stop()
    assert list((place / "home" / "pitstop").glob("[!.]*")) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="needs to be able to become another user")
def test_another_users_directory_is_said_to_be_that(start_tree):
    tree = start_tree()
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; sys.path.insert(0, sys.argv[1]); import os\n"
            "os.setuid(65534)\nimport problem, registry\n"
            "try: registry.find(sys.argv[2])\nexcept problem.Problem as told: print(told)",
            str(ROOT / "launch" / "lib"),
            str(tree.run_dir),
        ],
        capture_output=True,
        text=True,
        env=environment(),
    )
    assert "belongs to another user" in done.stdout, done.stderr


def test_entries_that_are_rubbish_harm_nothing(start_tree, place):
    tree = start_tree()
    home = place / "home" / "pitstop"
    (home / "1.tree").write_bytes(b"/nowhere")
    (home / "2.tree").write_bytes(b"\0\xff" * 9)
    (home / "3.tree").write_bytes(b"")
    assert str(tree.run_dir) in run("trees").stdout
    (tree.run_dir / "tree.json").write_text("{")
    wait_until(lambda: run("trees").stdout == "no tree runs\n", "a description that is none to be passed over")
