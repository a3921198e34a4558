"""The program that started a fleet on a cluster is killed: nothing of the fleet stays."""

import json
import os
import pathlib
import subprocess
import sys
import time

import ray

from machines import is_replica, kill, machines

PROGRAM = """
import json, os, sys, time
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
from machines import places
from pitstop.fleet import Fleet
from pitstop.fleet.cluster import keep_on_loopback
keep_on_loopback()
fleet = Fleet("stories", replicas=2, threads=1, address=sys.argv[1])
print(json.dumps([place["pid"] for place in places(fleet).values()]), flush=True)
time.sleep(600)
"""
DEADLINE_S = 240


def main():
    with machines(1, cpus=2):
        address = ray.get_runtime_context().gcs_address
        program = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, address],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": f"{pathlib.Path(__file__).parent}:{os.environ['PYTHONPATH']}"},
        )
        pids = json.loads(next(line for line in program.stdout if line.startswith("[")))
        assert len(pids) == 2 and all(map(is_replica, pids))
        kill(program.pid)
        program.wait()
        deadline = time.monotonic() + DEADLINE_S
        while any(map(is_replica, pids)) or ray.util.list_named_actors(all_namespaces=True):
            assert time.monotonic() < deadline, (pids, ray.util.list_named_actors(all_namespaces=True))
            time.sleep(0.1)
        while ray.available_resources().get("CPU", 0) != 2:
            assert time.monotonic() < deadline, ray.available_resources()
            time.sleep(0.1)
    print(json.dumps({"gone": len(pids)}))


if __name__ == "__main__":
    main()
