"""A command that waits says for what, and how to end the wait."""

import subprocess

from process_tree import LAUNCHER, environment, run
from wire import DEADLINE_S

GENERATE = ("generate", "--max-new-tokens", "4", "--temperature", "0")


def waiting(tree, prompt="Once upon a time"):
    """Starts a generate that waits. Returns (the process, its line with the reason)."""
    client = subprocess.Popen(
        [LAUNCHER, *GENERATE, "--run-dir", tree.run_dir, prompt],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    return client, client.stderr.readline()


def test_generate_on_a_paused_tree_says_once_why_it_waits(shared_tree):
    assert run("pause", "--run-dir", shared_tree.run_dir).returncode == 0
    client, line = waiting(shared_tree)
    assert line.startswith("pitstop: waiting: paused (in_place) for ")
    assert line.endswith("s; continue ends the pause\n")
    assert run("continue", "--run-dir", shared_tree.run_dir).returncode == 0
    out, rest = client.communicate(timeout=DEADLINE_S)
    assert client.returncode == 0 and out and rest == ""


def test_generate_on_released_memory_says_what_takes_it_again(shared_tree):
    place = ("--run-dir", shared_tree.run_dir)
    assert run("pause", *place).returncode == 0
    assert run("release", "kv_cache", *place).returncode == 0
    client, line = waiting(shared_tree)
    assert "memory of kv_cache is released; resume takes it again; paused (in_place)" in line
    assert run("resume", *place).returncode == 0 and run("continue", *place).returncode == 0
    client.communicate(timeout=DEADLINE_S)
    assert client.returncode == 0


def test_a_timeout_says_what_was_waited_for(shared_tree):
    assert run("pause", "--run-dir", shared_tree.run_dir).returncode == 0
    done = run(*GENERATE, "--timeout-s", "0.3", "--run-dir", shared_tree.run_dir, "Once")
    assert done.returncode == 1
    assert "did not finish in time: paused (in_place) for " in done.stderr
    assert run("continue", "--run-dir", shared_tree.run_dir).returncode == 0


def test_resume_of_a_pause_and_continue_of_a_release_name_each_other(shared_tree):
    place = ("--run-dir", shared_tree.run_dir)
    assert run("pause", *place).returncode == 0
    done = run("resume", *place)
    assert done.returncode == 1 and "continue ends a pause" in done.stderr
    assert run("release", *place, "kv_cache").returncode == 0
    done = run("continue", *place)
    assert done.returncode == 1 and "resume" in done.stderr
    assert run("resume", *place).returncode == 0 and run("continue", *place).returncode == 0


def test_status_takes_a_timeout(shared_tree):
    assert run("status", "--timeout-s", "100", "--run-dir", shared_tree.run_dir).returncode == 0
