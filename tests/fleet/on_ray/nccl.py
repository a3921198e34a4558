"""A trainer on a GPU broadcasts to all trees of a fleet on GPUs at once, in a group that is made again whenever
replicas join or leave. PART: all, quorum, two or cpu (docs/fleet.md, "Trees on GPUs")."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

from machines import another_version, kill, machines, places, processes_of, weights_of
from pitstop import PitstopError, nccl_broadcast
from pitstop.fleet import Fleet

DEADLINE_S = 240
TREE = {"device": "cuda", "max_total_tokens": 2048, "tuning_dir": "none", "hang_timeout": 3600, "start_timeout": 300}
SAMPLING = {"max_new_tokens": 6, "temperature": 0}
LAST_GPU = 3  # the trainer's GPU; Ray gives the earlier ones to the trees
BUCKET_BYTES = 500_000  # the model has 2.9 MB
TRAINER = """
import sys
sys.path.insert(0, sys.argv[1])
from machines import another_version, places, weights_of
from pitstop.fleet import Fleet
fleet = Fleet(address=sys.argv[2])
weights = weights_of(next(iter(places(fleet).values())))
for number in ("first", "second"):
    print("ready", flush=True)
    sys.stdin.readline()
    fleet.update_weights(another_version(weights, len(number)), f"the trainer's {number}", transfer="nccl")
print("ready", flush=True)
"""


def until(is_so, what):
    deadline = time.monotonic() + DEADLINE_S
    while not is_so():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def workers_of(place):
    return [each["pid"] for each in processes_of(place)["processes"] if each["kind"] == "tp_worker"]


def serve_one_version(fleet, version):
    replicas = fleet.status()["replicas"].values()
    assert {(each["epoch"], each["digest"]) for each in replicas} == {(version.epoch, version.digest)}, replicas
    outputs = [fleet.generate("Once upon a time", SAMPLING, session=str(number)) for number in range(4)]
    assert {span.epoch for output in outputs for span in output.spans} == {version.epoch}


def in_thread(call, *args, **kwargs):
    """Runs the call in a thread. The returned function joins it and gives its result, or its PitstopError."""
    said = []

    def run():
        try:
            said.append(call(*args, **kwargs))
        except PitstopError as error:
            said.append(error)

    thread = threading.Thread(target=run)
    thread.start()

    def join():
        thread.join(DEADLINE_S)
        assert said, "the update does not end"
        return said[0]

    return join


def num_buckets(weights):
    """As docs/protocol.md states: a broadcast ends after the tensor that makes it longer than the limit."""
    num, size = 0, 0
    for array in weights.values():
        num, size = num + (size == 0), size + array.nbytes
        size = 0 if size > BUCKET_BYTES else size
    return num


def is_sent(outcome, num_workers, weights):
    num_bytes = sum(array.nbytes for array in weights.values())
    sent = {"transfer": "nccl", "workers": num_workers, "broadcasts": num_buckets(weights), "bytes": num_bytes}
    assert outcome.sent == sent and sent["broadcasts"] > 2, outcome
    assert [each["outcome"] for each in outcome.replicas.values()] == ["committed"] * num_workers, outcome


def stopped_in_a_broadcast(fleet, start):
    """start() begins an update while a replica's worker is stopped, so that no broadcast can end.
    Returns that worker.
    """
    member, place = sorted(places(fleet).items())[-1]
    (worker,) = workers_of(place)
    os.kill(worker, signal.SIGSTOP)
    update = start()
    until(lambda: fleet.status()["phase"] == "staging", "the update does not begin")
    return member, worker, update


def begun_trainer(made):
    """Another trainer, which updates the fleet twice each time that it is continued."""
    trainer = subprocess.Popen(
        [sys.executable, "-c", TRAINER, str(pathlib.Path(__file__).parent), made.cluster.address],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    until_ready(trainer)
    return trainer


def until_ready(trainer):
    assert any(line == "ready\n" for line in trainer.stdout), "the trainer ended"


def go_on(trainer):
    trainer.stdin.write("\n")
    trainer.stdin.flush()


def a_tree_dies(fleet, weights, number):
    return stopped_in_a_broadcast(fleet, lambda: in_thread(fleet.update_weights, another_version(weights, number)))


def of_all_or_none(made):
    with Fleet("stories", replicas=2, **TREE) as fleet:
        weights = weights_of(next(iter(places(fleet).values())))
        for number in (1, 2):
            outcome = fleet.update_weights(another_version(weights, number))
            is_sent(outcome, 2, weights)
            serve_one_version(fleet, outcome.version)
        fleet.add_replicas(1)
        fleet.until_ready(timeout=DEADLINE_S)
        is_sent(fleet.update_weights(another_version(weights, 3), transfer="nccl"), 3, weights)
        before = fleet.update_weights(another_version(weights, 4), transfer="store")
        assert before.sent == {"transfer": "store", "bytes": sum(array.nbytes for array in weights.values())}
        serve_one_version(fleet, before.version)

        member, worker, update = a_tree_dies(fleet, weights, 5)
        kill(worker)
        error = update()
        assert isinstance(error, PitstopError) and error.code in ("unavailable", "aborted"), error
        assert error.reply["replicas"][member]["outcome"] in ("vanished", "failed", "dropped"), error.reply
        until(lambda: member not in places(fleet), "the death is not seen")
        fleet.until_ready(timeout=DEADLINE_S)
        serve_one_version(fleet, before.version)
        outcome = fleet.update_weights(another_version(weights, 6))
        is_sent(outcome, 3, weights)

        num_failed = fleet.status()["updates_failed_total"]
        trainer = begun_trainer(made)
        go_on(trainer)
        until_ready(trainer)
        _, worker, _ = stopped_in_a_broadcast(fleet, lambda: go_on(trainer))
        assert trainer.poll() is None
        trainer.kill()
        os.kill(worker, signal.SIGCONT)
        trainer.wait()
        until(lambda: fleet.status()["updates_failed_total"] > num_failed, "the dead trainer's update does not end")
        fleet.until_ready(timeout=DEADLINE_S)
        assert fleet.status()["label"] == "the trainer's first"
        outcome = fleet.update_weights(another_version(weights, 7))
        is_sent(outcome, 3, weights)
        serve_one_version(fleet, outcome.version)


def with_a_quorum(_):
    """After a death, the tensors are broadcast again to the remaining replicas."""
    with Fleet("stories", replicas=3, quorum=2, **TREE) as fleet:
        weights = weights_of(next(iter(places(fleet).values())))
        is_sent(fleet.update_weights(another_version(weights, 9)), 3, weights)  # makes the group that breaks later
        member, worker, update = a_tree_dies(fleet, weights, 1)
        kill(worker)
        outcome = update()
        assert not isinstance(outcome, PitstopError), outcome
        assert member not in outcome.replicas and outcome.sent["workers"] == len(outcome.replicas) >= 2, outcome
        fleet.until_ready(timeout=DEADLINE_S)
        serve_one_version(fleet, outcome.version)


def of_two_trainers(made):
    """While one trainer's update runs, its workers cannot receive. The other trainer, whose group is complete, waits
    for its turn."""
    with Fleet("stories", replicas=2, **TREE) as fleet:
        weights = weights_of(next(iter(places(fleet).values())))
        is_sent(fleet.update_weights(another_version(weights, 3)), 2, weights)
        trainer = begun_trainer(made)
        _, worker, update = a_tree_dies(fleet, weights, 4)  # here the worker is only stopped
        go_on(trainer)
        until(lambda: fleet.status()["updates_waiting"] == 1, "the other trainer does not ask for its turn")
        os.kill(worker, signal.SIGCONT)
        outcome = update()
        is_sent(outcome, 2, weights)
        until_ready(trainer)
        for _ in range(3):  # each trainer has its own group by now
            is_sent(fleet.update_weights(another_version(weights, 5)), 2, weights)
        go_on(trainer)
        until_ready(trainer)
        assert trainer.wait(DEADLINE_S) == 0
        status = fleet.status()
        assert status["label"] == "the trainer's second" and status["updates_failed_total"] == 0, status


def on_the_cpu(_):
    with Fleet("stories", replicas=1, device="cpu", threads=1, start_timeout=300) as fleet:
        weights = weights_of(next(iter(places(fleet).values())))
        assert fleet.update_weights(another_version(weights, 1)).sent["transfer"] == "store"
        try:
            fleet.update_weights(another_version(weights, 2), transfer="nccl")
        except PitstopError as error:
            assert error.code == "failed_precondition" and "slot-0.1 computes on CPU-0-0" in error.message, error
        else:
            raise AssertionError("a worker on a CPU is in an NCCL group")


PARTS = {"all": of_all_or_none, "quorum": with_a_quorum, "two": of_two_trainers, "cpu": on_the_cpu}


def main(part):
    nccl_broadcast.BUCKET_BYTES = BUCKET_BYTES
    with machines(1, cpus=4, gpus=LAST_GPU) as made:
        os.environ["CUDA_VISIBLE_DEVICES"] = str(LAST_GPU)
        PARTS[part](made)
    print(json.dumps({"part": part}))


if __name__ == "__main__":
    main(sys.argv[1])
