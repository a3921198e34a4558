"""The ends of a tree: the dead process is named, open requests are answered, and nothing is
left.
"""

import json
import os
import signal
import subprocess
import time

import pytest

from process_tree import LAUNCHER, environment, is_alive, run, wait_until
from wire import DEADLINE_S, Refused

GREEDY = {"temperature": 0.0, "ignore_eos": True}
NUM_TOKENS = 900
NUM_LONG = 40  # enough requests for seconds of work on any machine; no test waits for their ends

EXIT_CODES = {
    "tokenizer_proc": 10,
    "scheduler_proc[0]": 11,
    "scheduler_proc[1]": 11,
    "detokenizer_proc": 12,
    "tp_worker[0.0]": 13,
    "tp_worker[1.1]": 13,
}


def start_long(door, **more):
    """Requests that are open for a while, decoding and waiting."""
    rids = [door.start(f"The king {i}", max_new_tokens=NUM_TOKENS, **GREEDY, **more) for i in range(NUM_LONG)]
    while not all(door.outputs[rid].tokens for rid in rids[:4]):
        door.step()
    return rids


def reasons(door, rids):
    """The error's text of each open request. On a loaded machine some requests, but not all, may
    have ended before.
    """
    ended, over = {}, set()
    while len(ended) + len(over) < len(rids):
        try:
            door.step()
        except Refused as refused:
            ended[refused.rid] = f"{refused.code}: {refused.message}"
        for rid in rids:
            finish = door.outputs[rid].finish
            if finish is not None and finish["reason"] == "length":
                assert len(door.outputs[rid].tokens) == NUM_TOKENS, finish
                over.add(rid)
            elif finish is not None:
                assert finish["reason"] == "error", finish
                ended[rid] = f"{finish['code']}: {finish['message']}"
    assert ended or not rids, "every request was over before"
    return ended


@pytest.mark.parametrize("name", EXIT_CODES)
def test_a_killed_process_ends_the_tree_and_is_named(start_tree, name):
    tree = start_tree("--dp", 2, "--tp", 2)
    door = tree.door()
    rids = start_long(door)
    tree.kill(name)
    if name != "tokenizer_proc":  # otherwise no process is left to answer: the client's library reports it
        for rid, reason in reasons(door, rids).items():
            assert reason.startswith("unavailable: "), (rid, reason)
            assert name in reason
    assert tree.wait_exit() == EXIT_CODES[name]
    assert f"pitstop: {name} died: signal 9 (SIGKILL)" in tree.log()
    tree.check_gone()


def test_a_killed_launcher_leaves_no_process(start_tree):
    tree = start_tree("--dp", 2, "--tp", 2)
    start_long(tree.door())
    tree.launcher.kill()
    tree.launcher.wait()
    tree.check_gone(is_killed=True)


def test_a_killed_launcher_leaves_no_process_that_is_still_starting(place):
    for delay_s in (0.02, 0.05, 0.08, 0.12, 0.2):
        run_dir = place / "early"
        launcher = subprocess.Popen(
            [LAUNCHER, "serve", "--no-http", "--dp", "2", "--run-dir", run_dir],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment(),
        )
        time.sleep(delay_s)  # not a wait for a condition: the moment of the kill varies
        children = subprocess.run(
            ["ps", "-o", "pid=", "--ppid", str(launcher.pid)], capture_output=True, text=True
        ).stdout.split()
        launcher.kill()
        launcher.wait()
        wait_until(lambda: not any(is_alive(int(pid)) for pid in children), "children to end")


def test_the_next_tree_removes_what_a_killed_launcher_left(place):
    """Trees without --run-dir share the user's common place."""
    env = {**environment(), "XDG_RUNTIME_DIR": str(place)}

    def start():
        launcher = subprocess.Popen([LAUNCHER, "serve", "--no-http"], stdout=subprocess.PIPE, text=True, env=env)
        line = launcher.stdout.readline()
        return launcher, line.rsplit(" ", 1)[1].strip()

    first, first_dir = start()
    second, second_dir = start()
    assert first_dir != second_dir
    first.kill()
    first.wait()
    first.stdout.close()
    assert os.path.exists(first_dir)
    third, third_dir = start()
    assert not os.path.exists(first_dir)
    assert os.path.exists(second_dir), "a tree that lives is left alone"
    for launcher, path in ((second, second_dir), (third, third_dir)):
        launcher.send_signal(signal.SIGINT)
        assert launcher.wait(DEADLINE_S) == 0
        launcher.stdout.close()
        assert not os.path.exists(path)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_a_signal_is_a_clean_end_that_answers_open_requests(start_tree, number):
    tree = start_tree("--dp", 2)
    door = tree.door()
    rids = start_long(door)
    assert tree.door("admin").call("pause_generation", mode="in_place")["ok"]  # otherwise a request may end first
    tree.launcher.send_signal(number)
    for reason in reasons(door, rids).values():
        assert reason.startswith("unavailable: ")
    tree.stop()
    assert tree.log() == "", "a clean end has nothing to say"


def test_ctrl_c_in_a_terminal_reaches_the_launcher_alone(start_tree):
    """The terminal signals a whole group; the processes must not be in it."""
    tree = start_tree()
    group = os.getpgid(tree.launcher.pid)
    assert all(os.getpgid(pid) != group for pid in tree.pids())
    tree.stop(signal.SIGINT)


def test_a_stopped_process_does_not_hang_the_end(start_tree):
    tree = start_tree("--tp", 2)
    tree.kill("tp_worker[0.1]", signal.SIGSTOP)
    tree.stop()
    assert "tp_worker[0.1] did not stop in time" in tree.log()


def test_restart_brings_the_tree_back_in_the_same_place(start_tree):
    tree = start_tree("--restart")
    door = tree.door()
    expected = door.generate("Once", max_new_tokens=20, **GREEDY).tokens
    old_pids = tree.pids()
    tree.kill("tp_worker[0.0]")
    assert tree.launcher.stdout.readline(), "ready again"
    again = tree.door()
    assert again.generate("Once", max_new_tokens=20, **GREEDY).tokens == expected
    assert not any(map(is_alive, old_pids))
    tree.processes = json.loads((tree.run_dir / "tree.json").read_text())["processes"]
    assert not set(old_pids) & set(tree.pids())
    tree.stop()
    assert "restart 1 of at most 5" in tree.log()


def test_two_trees_in_one_place_is_refused(start_tree):
    tree = start_tree()
    second = run("serve", "--run-dir", tree.run_dir)
    assert second.returncode == 4
    assert second.stderr == f"pitstop: a tree already runs in {tree.run_dir}\n"
    assert len(tree.door().generate("Once", max_new_tokens=2, **GREEDY).tokens) == 2


def test_two_trees_at_once_do_not_disturb_each_other(start_tree):
    trees = [start_tree("--model", model) for model in ("stories", "bard")]
    doors = [tree.door() for tree in trees]
    rids = [door.start("Once upon a time", max_new_tokens=200, **GREEDY) for door in doors]
    outputs = [door.finish([rid])[0] for door, rid in zip(doors, rids)]
    assert [door.hello["model"] for door in doors] == ["stories", "bard"]
    assert outputs[0].tokens != outputs[1].tokens
    trees[0].stop()
    assert len(doors[1].generate("Once", max_new_tokens=2, **GREEDY).tokens) == 2
