"""A fleet of three nodes: it serves, takes updates of two trainers in mid-stream, grows and shrinks."""

import contextlib
import json
import pathlib
import subprocess
import sys
import threading
import time
import urllib.request

import ray

from machines import START_S, is_replica, machines, places, weights_of
from pitstop import PitstopError
from pitstop.fleet import Fleet

HERE = pathlib.Path(__file__).resolve().parent
STREAMS = 9
SAMPLING = {"max_new_tokens": 700, "temperature": 0, "ignore_eos": True}


@contextlib.contextmanager
def streams(fleet):
    """Requests, STREAMS at a time and one after another, for as long as the block runs; yields
    their outputs. All have ended whole when the block is left.
    """
    outputs, errors, over = [], [], threading.Event()

    def one(number):
        try:
            while not over.is_set():
                outputs.append(fleet.generate("Once upon a time", SAMPLING, session=str(number)))
        except Exception as error:
            errors.append(f"{type(error).__name__}: {error}")

    threads = [threading.Thread(target=one, args=(number,)) for number in range(STREAMS)]
    for thread in threads:
        thread.start()
    try:
        yield outputs
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert not errors, errors
    assert len(outputs) >= STREAMS
    for output in outputs:
        assert len(output.output_ids) == SAMPLING["max_new_tokens"] == sum(span.tokens for span in output.spans)


def updates_of_two_trainers(fleet, address, first):
    command = [sys.executable, HERE / "trainer.py", address]
    committed = {first}
    epochs = []
    with streams(fleet) as outputs:
        trainers = [
            subprocess.Popen([*command, str(number), "3"], stdout=subprocess.PIPE, text=True) for number in (1, 11)
        ]
        for trainer in trainers:
            said, _ = trainer.communicate(timeout=400)
            assert trainer.returncode == 0
            for epoch, digest, members in json.loads(said.splitlines()[-1]):
                assert len(members) == 3
                committed.add((epoch, digest))
                epochs.append(epoch)
    assert sorted(epochs) == list(range(2, 8)), epochs  # one update at a time, whichever trainer asks
    assert len({digest for _, digest in committed}) == 7
    for output in outputs:
        assert {(span.epoch, span.digest) for span in output.spans} <= committed
    return max(committed), sum(len(set(output.epochs)) > 1 for output in outputs)


def refuses_what_no_replica_takes(fleet, weights, last):
    try:
        fleet.update_weights({**weights, "no.such.weight": weights["model.norm.weight"]})
    except PitstopError as error:
        assert "no.such.weight" in error.message, error
        assert len(error.reply["replicas"]) == 3
    else:
        raise AssertionError("it was taken")
    status = fleet.status()
    assert {(each["epoch"], each["digest"]) for each in status["replicas"].values()} == {last}
    assert status["updates_failed_total"] == 1


def fans_out(fleet):
    for answers in (fleet.pause("in_place"), fleet.resume(), fleet.flush_cache(), fleet.abort_request(abort_all=True)):
        assert len(answers) == 3 and all(answer["ok"] for answer in answers.values()), answers
    refused = fleet.fan_out("pause_generation", mode="no such mode")
    assert {answer["code"] for answer in refused.values()} == {"invalid_argument"}, refused


def shows(fleet):
    status = fleet.status()
    url = status["status_url"]
    metrics = urllib.request.urlopen(url + "/metrics").read().decode()
    assert "pitstop_fleet_ready_replicas 3" in metrics
    assert metrics.count("pitstop_fleet_replica_epoch{") == 3
    page = urllib.request.urlopen(url + "/").read().decode()
    assert all(member in page for member in status["replicas"])
    assert urllib.request.urlopen(url + "/health").status == 200


def grows_and_shrinks(fleet, machines_, last):
    machines_.add()
    added = fleet.add_replicas(1)
    fleet.until_ready(timeout=240)
    status = fleet.status()
    late = next(each for name, each in status["replicas"].items() if f"slot-{added[0]}." in name)
    assert (late["epoch"], late["digest"]) == last
    with streams(fleet):
        fleet.remove_replica(0)
    assert len(fleet.status()["replicas"]) == 3


def main():
    with machines(3) as made:
        with Fleet("stories", replicas=3, threads=1, status_port=0, start_timeout=START_S) as fleet:
            where = places(fleet)
            assert len({place["node"] for place in where.values()}) == 3, where
            weights = weights_of(next(iter(where.values())))
            status = fleet.status()
            last, num_spanning = updates_of_two_trainers(
                fleet, ray.get_runtime_context().gcs_address, (status["epoch"], status["digest"])
            )
            refuses_what_no_replica_takes(fleet, weights, last)
            fans_out(fleet)
            shows(fleet)
            grows_and_shrinks(fleet, made, last)
            pids = [place["pid"] for place in places(fleet).values()]
        deadline = time.monotonic() + 60
        while any(map(is_replica, pids)):
            assert time.monotonic() < deadline, pids
            time.sleep(0.1)
    print(json.dumps({"spanning": num_spanning}))


if __name__ == "__main__":
    main()
