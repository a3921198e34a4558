"""A trainer dies when its update is staged on one machine and not on the other. The update takes effect nowhere; the
next trainer's update takes effect."""

import json
import os
import signal
import subprocess
import sys
import time

from machines import START_S, another_version, machines, places, weights_of
from pitstop.fleet import Fleet

DEADLINE_S = 120
TRAINER = """
import sys
sys.path.insert(0, sys.argv[1])
from machines import another_version, places, weights_of
from pitstop.fleet import Fleet
fleet = Fleet(address=sys.argv[2])
fleet.update_weights(another_version(weights_of(next(iter(places(fleet).values()))), 1))
"""


def until(is_so, what):
    deadline = time.monotonic() + DEADLINE_S
    while not is_so():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def main():
    # The long hang_timeout keeps the watch from ending anything here.
    with (
        machines(2) as made,
        Fleet("stories", replicas=2, threads=1, hang_timeout=3600, start_timeout=START_S) as fleet,
    ):
        before = fleet.status()
        weights = weights_of(next(iter(places(fleet).values())))
        still = next(iter(places(fleet).values()))[
            "pid"
        ]  # the trainer sends only to this replica, which sends to the other
        trainer = subprocess.Popen(
            [sys.executable, "-c", TRAINER, os.path.dirname(os.path.abspath(__file__)), made.cluster.address],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.kill(still, signal.SIGSTOP)
        try:
            until(
                lambda: fleet.status()["phase"] == "staging" or trainer.poll() is not None,
                "the trainer's update does not begin",
            )
            assert trainer.poll() is None, "the update ended, and one replica stands still"
        finally:
            trainer.kill()
            trainer.wait()
            os.kill(still, signal.SIGCONT)
        until(lambda: fleet.status()["updates_failed_total"] == 1, "the update does not end")
        after = fleet.status()
        assert (after["epoch"], after["digest"], after["ready"]) == (before["epoch"], before["digest"], 2), after
        last = fleet.update_weights(another_version(weights, 2))
        assert [each["outcome"] for each in last.replicas.values()] == ["committed"] * 2, last
    print(json.dumps({"epoch": last.version.epoch}))


if __name__ == "__main__":
    main()
