"""What the tests of control routes share. `http` is a fixture: import it by name."""

import contextlib
import json
import struct

import numpy
import pytest

from http_calls import ROOT, Http

from process_tree import wait_until

STORIES = str(ROOT / "launch/models/stories")
BARD = str(ROOT / "launch/models/bard")
LONG = 960  # tokens, of the model's context of 1024: requests that must still run when a test looks at them
LONG_OF_MANY = 600  # for trees with slower steps


@pytest.fixture
def http(tree):
    """The tree serves stories, generates, and holds nothing, before and after."""
    client = Http(tree.url)
    yield client
    client.post("/abort_request", {"abort_all": True})
    client.post("/drop_weight_update")  # after a test that failed within a session
    states = [memory["state"] for state in client.states() for memory in state["memory_usage"].values()]
    if any(state != "resident" for state in states):
        client.ok("POST", "/resume_memory_occupation")
    client.ok("POST", "/continue_generation")
    client.ok("POST", "/update_weights_from_disk", {"model_path": STORIES, "weight_version": "stories"})


def replicas(admin):
    return admin.call("status")["replicas"]


@contextlib.contextmanager
def together(http, admin, num):
    """Starts this many requests; none ends before the last one has started."""
    held = sum(replica["num_waiting"] + replica["num_running"] for replica in replicas(admin))
    http.ok("POST", "/pause_generation", {"mode": "in_place"})
    yield

    def are_there():
        status = replicas(admin)
        return sum(r["num_waiting"] + r["num_running"] for r in status) == held + num

    wait_until(are_there, f"{num} requests to be there")
    http.ok("POST", "/continue_generation")


def start_all(http, admin, num, prompt="Story {}: once", **sampling):
    """Runs this many requests in the background, together."""
    with together(http, admin, num):
        return [http.start(prompt=prompt.format(i), **sampling) for i in range(num)]


def kind(answer):
    return answer["meta_info"]["finish_reason"]["type"]


def wait_running(admin, num, waiting=0):
    """Waits until this many requests decode, and at least this many wait."""

    def is_there():
        status = replicas(admin)
        tokens = sum(replica["output_tokens_total"] for replica in status)
        is_there.begin = getattr(is_there, "begin", tokens)
        return (
            sum(replica["num_running"] for replica in status) >= num
            and sum(replica["num_waiting"] for replica in status) >= waiting
            and tokens >= is_there.begin + 4 * num
        )

    wait_until(is_there, f"{num} requests to decode and {waiting} to wait")


def read_tensor(directory, name):
    """Read from a checkpoint, by the format's own description: float32."""
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
