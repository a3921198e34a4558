#!/usr/bin/env python3
"""Measures the bytes that an update of a fleet sends over the network. Each machine is a network namespace with its own
Ray node, and the kernel counts the bytes of its interface.

    build/fleet-venv/bin/python bench/fleet_network.py [--model DIR] [--machines 1 2 3 4] [--json FILE]

Needs root, `ip` and a kernel that makes namespaces. The trainer has a machine to itself.
"""

import argparse
import contextlib
import json
import os
import pathlib
import platform
import secrets
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
UPDATES = 4
STORE_BYTES = 400 << 20
PREFIX = f"ps{os.getpid() % 10000}"
HEAD_PORT = 6479
START_S = 120
STOP_S = 40  # Ray drains a node for 30
# Settings of Ray. The clusters started here have a token that no other cluster has.
OF_RAY = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": secrets.token_hex(32),
    "RAY_raylet_start_wait_time_s": str(START_S),
}


def ip(*words):
    subprocess.run(["ip", *words], check=True)


def address(number):
    return f"10.77.0.{number + 1}"


@contextlib.contextmanager
def network(count):
    """Makes `count` namespaces on one bridge; returns their names."""
    names = [f"{PREFIX}n{number}" for number in range(count)]
    bridge = f"{PREFIX}br"
    try:
        ip("link", "add", bridge, "type", "bridge")
        ip("link", "set", bridge, "up")
        for number, name in enumerate(names):
            ip("netns", "add", name)
            ip("link", "add", f"{PREFIX}v{number}", "type", "veth", "peer", "name", "eth0", "netns", name)
            ip("link", "set", f"{PREFIX}v{number}", "master", bridge, "up")
            ip("-n", name, "addr", "add", f"{address(number)}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield names
    finally:
        for number, name in enumerate(names):
            # Delete the link first: deleting the namespace alone removes it later, and its name stays taken until then.
            subprocess.run(["ip", "link", "del", f"{PREFIX}v{number}"], stderr=subprocess.DEVNULL)
            subprocess.run(["ip", "netns", "del", name], stderr=subprocess.DEVNULL)
        subprocess.run(["ip", "link", "del", bridge], stderr=subprocess.DEVNULL)


def until_listens(name):
    probe = f"import socket; socket.create_connection(({address(0)!r}, {HEAD_PORT}), 1)"
    deadline = time.monotonic() + START_S
    while subprocess.run(
        ["ip", "netns", "exec", name, sys.executable, "-c", probe], stderr=subprocess.DEVNULL
    ).returncode:
        assert time.monotonic() < deadline, "Ray's head does not listen"


def until_there(place, count):
    """Waits for node `count` before the next one starts: all nodes choose names for their sockets in one directory."""
    deadline = time.monotonic() + START_S
    while len(set(place.glob("session_2*/sockets/raylet*"))) < count:
        assert time.monotonic() < deadline, f"Ray's node {count} does not start"
        time.sleep(0.1)


@contextlib.contextmanager
def ray_nodes(names, place):
    """A Ray node per namespace, the head in the first. Each node's process ends with the `with` block."""
    ray = pathlib.Path(sys.executable).with_name("ray")
    environment = {**os.environ, **OF_RAY, "PYTHONPATH": str(ROOT / "client" / "python")}
    nodes = []
    try:
        for number, name in enumerate(names):
            place_of = (
                ["--head", f"--port={HEAD_PORT}", "--include-dashboard=false", "--num-cpus=0", f"--temp-dir={place}"]
                if number == 0
                else [f"--address={address(0)}:{HEAD_PORT}", "--num-cpus=1"]
            )
            nodes.append(
                subprocess.Popen(
                    [
                        "ip",
                        "netns",
                        "exec",
                        name,
                        str(ray),
                        "start",
                        "--block",
                        f"--node-ip-address={address(number)}",
                        f"--object-store-memory={STORE_BYTES}",
                        "--disable-usage-stats",
                        *place_of,
                    ],
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    start_new_session=True,
                )
            )
            if number == 0:
                until_listens(name)
            until_there(pathlib.Path(place), number + 1)
        yield
    finally:
        for node in reversed(nodes):
            node.terminate()
        for node in nodes:
            try:
                node.wait(STOP_S)
            except subprocess.TimeoutExpired:
                os.killpg(node.pid, signal.SIGKILL)
                node.wait()


def sent(name):
    """Bytes that this machine has sent so far, counted as received by the bridge's end of its interface."""
    number = name.rpartition("n")[2]
    return int(pathlib.Path(f"/sys/class/net/{PREFIX}v{number}/statistics/rx_bytes").read_text())


def update(model, replicas):
    """Runs in the trainer's namespace: prints when each update begins and ends, and waits for a line before the next."""
    sys.path[:0] = [str(ROOT / "client" / "python"), str(ROOT / "tests" / "fleet" / "on_ray")]
    import ray

    from machines import another_version, places, weights_of
    from pitstop.fleet import Fleet

    ray.init(address=f"{address(0)}:{HEAD_PORT}", log_to_driver=False)
    deadline = time.monotonic() + START_S
    while len([node for node in ray.nodes() if node["Alive"]]) < replicas + 1:
        assert time.monotonic() < deadline, "Ray's nodes do not start"
        time.sleep(0.1)
    with Fleet(model, replicas=replicas, threads=1) as fleet:
        nodes = {place["node"] for place in places(fleet).values()}
        assert len(nodes) == replicas, nodes
        weights = weights_of(next(iter(places(fleet).values())))
        size = sum(array.nbytes for array in weights.values())
        took_s = 0.0
        for number in range(UPDATES):
            print(json.dumps({"bytes": size, "s": took_s}), flush=True)
            sys.stdin.readline()
            begun = time.monotonic()
            fleet.update_weights(another_version(weights, number + 1), digests=False)
            took_s = time.monotonic() - begun
        print(json.dumps({"bytes": size, "s": took_s}), flush=True)
        sys.stdin.readline()


def measure(model, replicas):
    with (
        tempfile.TemporaryDirectory(prefix="ps", dir="/tmp") as place,
        network(replicas + 1) as names,
        ray_nodes(names, place),
    ):
        program = subprocess.Popen(
            ["ip", "netns", "exec", names[0], sys.executable, __file__, "--model", model, "--trainer", str(replicas)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **OF_RAY},
        )
        counts, seconds, size = [], [], 0
        for line in program.stdout:
            if not line.startswith("{"):
                continue
            size = json.loads(line)["bytes"]
            seconds.append(round(json.loads(line)["s"], 2))
            counts.append([sent(name) for name in names])
            program.stdin.write("\n")
            program.stdin.flush()
        assert program.wait() == 0 and len(counts) == UPDATES + 1
    of_each = [[after - before for before, after in zip(*pair)] for pair in zip(counts, counts[1:])]
    return {
        "machines": replicas,
        "bytes": size,
        "update_s": seconds[1:],
        "trainer_sent": [each[0] for each in of_each],
        "trainer_sent_over_bytes": [round(each[0] / size, 3) for each in of_each],
        "replicas_sent_over_bytes": [[round(one / size, 3) for one in each[1:]] for each in of_each],
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="stories")
    parser.add_argument("--machines", type=int, nargs="+", default=[1, 2, 3, 4])
    parser.add_argument("--json", help="also write the results to this file")
    parser.add_argument("--trainer", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.trainer is not None:
        update(given.model, given.trainer)
        return
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True
    ).stdout.strip()
    said = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "commit": commit,
        "command": " ".join(sys.argv),
        "rows": [],
    }
    for count in given.machines:
        said["rows"].append(measure(given.model, count))
        print(json.dumps(said["rows"][-1]), flush=True)
    if given.json:
        pathlib.Path(given.json).write_text(json.dumps(said, indent=1) + "\n")


if __name__ == "__main__":
    main()
