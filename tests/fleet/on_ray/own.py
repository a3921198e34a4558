"""A fleet on a cluster that it starts itself: any number of replicas share this machine, however
few CPUs it has. Commands find it by its name among the machine's clusters, whichever was started
last.
"""

import functools
import json
import os
import subprocess
import sys

from ray._raylet import GcsClient
from ray.cluster_utils import Cluster

from machines import START_S, places, processes_of, started
from pitstop.fleet import Fleet, fleet as of_fleets
from pitstop.fleet.cluster import KV, conductor_name

NAME = f"own-{os.getpid()}"


def command(*arguments):
    # The environment of another shell: without the address and the credentials that ray.init() has set.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    return subprocess.run(
        [sys.executable, "-m", "pitstop.fleet.command", *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )


def is_found_among_clusters(fleet):
    head = {"num_cpus": 0, "include_dashboard": False, "node_ip_address": "127.0.0.1", "object_store_memory": 80 << 20}
    other = started(lambda: Cluster(initialize_head=True, head_node_args=head))
    try:
        done = command("status", "--json", "--name", NAME)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["fleet"] == NAME and done.stderr == "", done
        missing = command("status", "--name", f"{NAME}-of-nobody")
        assert missing.returncode == 1 and "not_found" in missing.stderr and other.address in missing.stderr, missing
        assert missing.stderr.count("\n") == 1, missing.stderr
        GcsClient(address=other.address).internal_kv_put(conductor_name(NAME).encode(), b"", True, KV)
        several = command("pause", "--name", NAME)
        assert several.returncode == 1 and "failed_precondition" in several.stderr, several
        assert all(each in several.stderr for each in (other.address, fleet._inner.cluster)), several.stderr
        told = command("resume", "--name", NAME, "--address", fleet._inner.cluster)
        assert told.returncode == 0 and told.stderr == "", told.stderr
    finally:
        other.shutdown()


def have_the_programs_niceness(fleet):
    for place in places(fleet).values():
        for process in processes_of(place)["processes"]:
            is_worker = process["kind"] == "tp_worker"  # a worker yields to its tree's other processes
            assert is_worker or os.getpriority(os.PRIO_PROCESS, process["pid"]) == os.nice(0), process


def main():
    os.environ.pop("RAY_worker_niceness", None)  # set in the test's environment
    of_fleets.start_ray = functools.partial(of_fleets.start_ray, num_cpus=1, log_to_driver=False)
    with Fleet("stories", replicas=2, threads=1, start_timeout=START_S, name=NAME) as fleet:
        fleet.add_replicas(1)
        fleet.until_ready(timeout=START_S)
        ready = fleet.status()["ready"]
        have_the_programs_niceness(fleet)
        is_found_among_clusters(fleet)
    print(json.dumps({"ready": ready}))


if __name__ == "__main__":
    main()
