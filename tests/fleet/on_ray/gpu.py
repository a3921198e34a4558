"""A fleet of trees on one GPU each: updates through the object store and from a directory; and a fleet without enough
GPUs."""

import json
import os
import pathlib

from machines import another_version, machines, places, processes_of, weights_of
from pitstop import PitstopError
from pitstop.fleet import Fleet

MODELS = pathlib.Path(__file__).resolve().parents[3] / "launch" / "models"
TREE = {"device": "cuda", "max_total_tokens": 2048, "tuning_dir": "none"}
SAMPLING = {"max_new_tokens": 6, "temperature": 0}
NO_ROOM_S = 15.0


def visible_gpus(place):
    worker = next(each["pid"] for each in processes_of(place)["processes"] if each["kind"] == "tp_worker")
    variables = pathlib.Path(f"/proc/{worker}/environ").read_bytes().decode().split("\0")
    return next(each.partition("=")[2] for each in variables if each.startswith("CUDA_VISIBLE_DEVICES="))


def serves(fleet, version):
    assert {(each["epoch"], each["digest"]) for each in fleet.status()["replicas"].values()} == {
        (version.epoch, version.digest)
    }
    outputs = [fleet.generate("Once upon a time", SAMPLING, session=str(number)) for number in range(4)]
    assert {span.epoch for output in outputs for span in output.spans} == {version.epoch}
    return outputs[0].text


def main():
    with machines(1, cpus=2, gpus=2):
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        with Fleet("stories", replicas=2, start_timeout=300, **TREE) as fleet:
            where = places(fleet)
            assert sorted(visible_gpus(place) for place in where.values()) == ["0", "1"]
            weights = weights_of(next(iter(where.values())))
            outcome = fleet.update_weights(another_version(weights, 1))  # this program sees no GPU
            assert outcome.sent["transfer"] == "store", outcome.sent
            try:
                fleet.update_weights(another_version(weights, 2), transfer="nccl")
            except PitstopError as error:
                assert error.code in ("failed_precondition", "not_found"), error
                assert "sees no GPU" in error.message or "libcudart.so" in error.message, error
            else:
                raise AssertionError("a trainer without a GPU is in an NCCL group")
            serves(fleet, outcome.version)
            text = serves(fleet, fleet.update_weights_from_disk(str(MODELS / "stories")).version)
        try:
            Fleet("stories", replicas=3, start_timeout=NO_ROOM_S, resources={"GPU": 2}, **TREE).close()
        except PitstopError as error:
            assert (
                error.code == "deadline_exceeded" and "no machine of the cluster has {'GPU': 2} free" in error.message
            ), error
        else:
            raise AssertionError("three replicas with two GPUs each on two GPUs")
    print(json.dumps({"text": text}))


if __name__ == "__main__":
    main()
