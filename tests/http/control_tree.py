"""Shared by the tests of control routes. `http` is a fixture: import it by name."""

import json
import struct

import numpy
import pytest

import amid
from http_calls import ROOT, Http, finished

STORIES = str(ROOT / "launch/models/stories")
BARD = str(ROOT / "launch/models/bard")
LONG = 500  # tokens, of the model's context of 1024
LONG_OF_MANY = 150


@pytest.fixture
def http(tree):
    """A client of the tree. Before and after each test the tree serves stories, generates, and has no open request."""
    client = Http(tree.url)
    yield client
    client.post("/abort_request", {"abort_all": True})
    client.post("/drop_weight_update")  # after a test that failed during a session
    states = [memory["state"] for state in client.states() for memory in state["memory_usage"].values()]
    if any(state != "resident" for state in states):
        client.ok("POST", "/resume_memory_occupation")
    client.ok("POST", "/continue_generation")
    client.ok("POST", "/update_weights_from_disk", {"model_path": STORIES, "weight_version": "stories"})


def replicas(admin):
    return admin.call("status")["replicas"]


def one(http, **options):
    """The begin() of one request, for paused_amid()."""
    return lambda: [http.start(**options)]


def many(http, num, prompt="Story {}: once", **sampling):
    return lambda: [http.start(prompt=prompt.format(i), **sampling) for i in range(num)]


def paused_amid(admin, begin, num_running=1, pause=None):
    """amid.paused_amid() for requests that run in the background."""
    return amid.paused_amid(admin, begin, finished, num_running, pause)


def running_amid(admin, begin, num_running=1):
    return amid.running_amid(admin, begin, finished, num_running)


def kind(answer):
    return answer["meta_info"]["finish_reason"]["type"]


def read_tensor(directory, name):
    """Reads a tensor from a checkpoint by the format's own description, as float32."""
    with open(f"{directory}/model.safetensors", "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        base = file.tell()
        begin, end = header[name]["data_offsets"]
        file.seek(base + begin)
        words = numpy.frombuffer(file.read(end - begin), dtype="<u2")
    assert header[name]["dtype"] == "BF16"
    return (words.astype("<u4") << 16).view("<f4").reshape(header[name]["shape"])


def tensor_names(directory):
    with open(f"{directory}/model.safetensors", "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
    return [name for name in header if name != "__metadata__"]
