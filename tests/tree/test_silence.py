"""The message about a tree that does not answer: its processes hang, or they get no core."""

import signal

import pytest

from process_tree import wait_until
from wire import cores_of


def test_a_tree_that_says_nothing_is_looked_at_process_by_process(start_tree):
    tree = start_tree()
    door = tree.door()
    tree.kill("scheduler_proc[0]", signal.SIGSTOP)
    tree.wait_stopped("scheduler_proc[0]")
    door.start("Once upon a time", max_new_tokens=4, temperature=0.0)
    with pytest.raises(TimeoutError) as silent:
        door.step(timeout_s=0.2)
    tree.kill("scheduler_proc[0]", signal.SIGCONT)
    said = str(silent.value)
    assert said.startswith("nothing came in 0.2 s: load ") and "scheduler_proc[0] (T) ran 0.00 s" in said, said
    assert "tp_worker[0.0] (S) ran" in said and "has ended" not in said, said
    door.step()


def test_processes_that_compute_are_told_from_those_that_stand(start_tree):
    tree = start_tree()
    door = tree.door()
    (worker,) = tree.pids("tp_worker")
    before = cores_of([worker])[worker][1]
    door.start("Once upon a time", max_new_tokens=1000, temperature=0.0, ignore_eos=True)
    wait_until(lambda: cores_of([worker])[worker][1] > before + 0.01, "the worker to run")
