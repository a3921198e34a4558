"""Errors name their cause, come at once, and leave nothing behind: wrong arguments, a missing model, a port in use,
tensors that do not fit."""

import json
import pathlib
import socket
import time

import numpy
import ray

from machines import NAMESPACE, START_S, another_version, machines, places, weights_of
from pitstop import PitstopError
from pitstop.fleet import Fleet

DEADLINE_S = 60


def said(kind, work):
    try:
        work()
    except kind as error:
        return str(error)
    raise AssertionError("it was not refused")


def until_nothing_is_left():
    deadline = time.monotonic() + DEADLINE_S
    while left := [each for each in ray.util.list_named_actors(all_namespaces=True) if each["namespace"] == NAMESPACE]:
        assert time.monotonic() < deadline, left
        time.sleep(0.1)


def arguments():
    wrong = {
        "replicas": 0,
        "tp": 0,
        "quorum": 3,
        "hang_timeout": 0,
        "name": "a fleet",
        "model": None,
    }
    for name, value in wrong.items():
        assert name in said(
            TypeError, lambda: Fleet(**{"model": "stories", "replicas": 2, "threads": 1, name: value})
        ) or (name == "model")
    assert "no fleet 'another'" in said(PitstopError, lambda: Fleet(name="another"))


def a_model_that_is_not_there():
    message = said(PitstopError, lambda: Fleet("nowhere", replicas=2))
    assert "no replica of the fleet starts" in message and "--model nowhere: no such directory" in message, message
    until_nothing_is_left()


def a_port_that_is_taken():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        message = said(PitstopError, lambda: Fleet("stories", status_port=port))
        assert f"port {port}: " in message, message
        until_nothing_is_left()
    assert "port 70000: " in said(PitstopError, lambda: Fleet("stories", status_port=70000))
    until_nothing_is_left()


def tensors(fleet, weights):
    """Each replica refuses; the error names the tensor, or the replica and its reason."""
    some = next(iter(weights))
    for given, names in (
        ({}, "named_tensors"),
        ([*weights.items(), (some, weights[some])], f"{some} appears twice"),
        ({**weights, some: weights[some].astype(numpy.int64)}, f"{some}: dtype int64"),
        ({some: "no tensor"}, f"{some} must be a NumPy array"),
    ):
        message = said(TypeError, lambda: fleet.update_weights(given))
        assert names in message, message
    for given in (
        {name: each for name, each in weights.items() if name != some},
        {**weights, some: weights[some][:1]},
        {**weights, "no.such.weight": weights[some]},
    ):
        message = said(PitstopError, lambda: fleet.update_weights(given, label="wrong"))
        assert "pitstop-fleet-slot-" in message and (some in message or "no.such.weight" in message), message
    message = said(PitstopError, lambda: fleet.update_weights_from_disk("nowhere"))
    assert str(pathlib.Path("nowhere").resolve()) in message, message


def main():
    with machines(1, cpus=2):
        arguments()
        a_model_that_is_not_there()
        a_port_that_is_taken()
        with Fleet("stories", replicas=2, threads=1, start_timeout=START_S) as fleet:
            weights = weights_of(next(iter(places(fleet).values())))
            before = fleet.status()["digest"]
            tensors(fleet, weights)
            assert "slot 7; the fleet has 0, 1" in said(PitstopError, lambda: fleet.remove_replica(7))
            for count in (0, -1, 1 << 20, "one"):
                assert f"not {count}" in said(PitstopError, lambda: fleet.add_replicas(count))
            status = fleet.status()
            assert status["epoch"] == 1 and {each["digest"] for each in status["replicas"].values()} == {before}
            for number in (1, 2):  # two updates may have the same label
                assert fleet.update_weights(another_version(weights, number), label="same").version.epoch == 1 + number
    print(json.dumps({"digest": before}))


if __name__ == "__main__":
    main()
