"""A Ray cluster of several nodes on this machine's loopback, each with an object store of its own."""

import contextlib
import json
import os
import pathlib
import signal

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

import ray  # noqa: E402
from ray.cluster_utils import Cluster  # noqa: E402

from pitstop.client import Client  # noqa: E402
from pitstop.fleet.cluster import keep_on_loopback  # noqa: E402
from pitstop.fleet.relay import NAMESPACE  # noqa: E402

STORE_BYTES = 80 << 20


START_S = 300.0  # the limit for a fleet to become ready; no test passes by reaching it


def started(start, num_tries=6):
    """Ray gives a node 30 s to start. A raylet ends itself if its agents have not written down their
    ports within 15 s (NodeManager::WaitForDashboardAgentPorts). Neither limit can be changed, and a
    loaded machine needs longer.
    """
    for _ in range(num_tries - 1):
        try:
            return start()
        except Exception as error:
            if "timed out during startup" not in str(error):
                raise
    return start()


class Machines:
    def __init__(self, count, cpus, gpus):
        keep_on_loopback()
        self._has = {"num_cpus": cpus, "num_gpus": gpus}
        # The cluster notices a lost node after a second or two.
        config = {
            "health_check_initial_delay_ms": 500,
            "health_check_period_ms": 300,
            "health_check_failure_threshold": 4,
        }
        head = {
            "num_cpus": 0,
            "num_gpus": 0,
            "object_store_memory": STORE_BYTES,
            "include_dashboard": False,
            "node_ip_address": "127.0.0.1",
            "_system_config": config,
        }
        self.cluster = started(lambda: Cluster(initialize_head=True, head_node_args=head))
        self.nodes = []
        for _ in range(count):
            self.add()
        ray.init(address=self.cluster.address, namespace="a test", log_to_driver=False, logging_level="ERROR")
        self.cluster.wait_for_nodes()

    def add(self):
        node = started(
            lambda: self.cluster.add_node(**self._has, object_store_memory=STORE_BYTES, include_dashboard=False)
        )
        self.nodes.append(node)
        return node

    def kill(self, node):
        """Kills the node's raylet and store, as when a machine loses power; the processes on it follow."""
        self.nodes.remove(node)
        self.cluster.remove_node(node, allow_graceful=False)

    def end(self):
        ray.shutdown()
        self.cluster.shutdown()


@contextlib.contextmanager
def machines(count, cpus=1, gpus=0):
    made = Machines(count, cpus, gpus)
    try:
        yield made
    finally:
        made.end()


def places(fleet):
    """{member: place}, as the conductor knows them."""
    return fleet._wait(fleet._inner._ask("view"))["members"]


def processes_of(place):
    """A tree's tree.json."""
    with open(f"{place['run_dir']}/tree.json") as file:
        return json.load(file)


def weights_of(place):
    """{name: bfloat16 as uint16}: the weights that a tree serves."""
    import numpy

    with Client(place["run_dir"]) as client:
        names = [each["name"] for each in client.weight_digests()["tensors"]]
        replies = [client.get_weights(name) for name in names]
        return {
            name: numpy.frombuffer(reply["data"], numpy.uint16).reshape(reply["tensor"]["shape"])
            for name, reply in zip(names, replies)
        }


def another_version(weights, number):
    """The same model with its last norm scaled a little, so that its digest differs."""
    import numpy

    name = "model.norm.weight"
    wide = weights[name].astype(numpy.uint32) << 16
    scaled = wide.view(numpy.float32) * numpy.float32(1.0 + 2.0**-6 * number)
    return {**weights, name: (scaled.view(numpy.uint32) >> 16).astype(numpy.uint16)}


def kill(pid):
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def is_replica(pid):
    try:
        return b"Replica" in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


__all__ = [
    "NAMESPACE",
    "START_S",
    "another_version",
    "is_replica",
    "kill",
    "machines",
    "places",
    "processes_of",
    "weights_of",
]
