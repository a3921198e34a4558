"""Requests that run when something else happens, on a machine of any speed.

A tree runs only for the moment between two calls, so the clock does not decide how far a request gets.
"""

import time

from wire import DEADLINE_S

TOKENS = 4  # tokens of each running request before something happens to it


def look(admin):
    """Returns (open requests, replicas)."""
    status = admin.call("status")
    return status["open_requests"], status["replicas"]


def turns(admin, is_enough, what):
    """Lets the tree run for a moment at a time, until is_enough(). The tree is paused in place when is_enough() is
    called, and at the end."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        admin.call("continue_generation")
        assert admin.call("pause_generation", mode="in_place")["ok"]
        if is_enough():
            return
        assert time.monotonic() < deadline, f"waited {DEADLINE_S:.0f} s for {what}"


def paused_amid(admin, begin, finish, num_running=1, pause=None):
    """Returns begin()'s requests, all of them open under a pause. `num_running` of them have some tokens.

    `pause` pauses the running tree; without it, the tree is paused in place. If a request has ended before the pause,
    finish(requests) waits for the others, and begin() begins all of them again.
    """
    deadline = time.monotonic() + DEADLINE_S
    while True:
        assert admin.call("pause_generation", mode="in_place")["ok"]
        num_before, before = look(admin)
        requests = begin()
        num_open = num_before + len(requests)
        while look(admin)[0] != num_open:
            assert time.monotonic() < deadline, f"{len(requests)} requests were begun: {look(admin)}"
            time.sleep(0.005)

        def are_amid():
            num, replicas = look(admin)
            if num < num_open:
                return True  # a request has ended
            new = [now["output_tokens_total"] - then["output_tokens_total"] for now, then in zip(replicas, before)]
            running = [replica["num_running"] for replica in replicas]
            return sum(running) >= num_running and all(tokens >= TOKENS * num for tokens, num in zip(new, running))

        turns(admin, are_amid, f"{num_running} requests to run")
        if pause and look(admin)[0] == num_open:
            admin.call("continue_generation")
            pause()
        if look(admin)[0] == num_open:
            return requests
        admin.call("continue_generation")
        finish(requests)
        assert time.monotonic() < deadline, "a request always ended before the pause"


def running_amid(admin, begin, finish, num_running=1):
    """Does the same as paused_amid, and then lets the tree run."""
    requests = paused_amid(admin, begin, finish, num_running)
    assert admin.call("continue_generation")["ok"]
    return requests
