"""Shared by tests of weights' sources: the two models' tensors, a client of a tree that serves the
first, and a tensor source's description.
"""

import json
import pathlib
import struct
import sys

import numpy
import pytest

import torch_sender
from process_tree import ROOT

sys.path.insert(0, str(ROOT / "client" / "python"))
import pitstop  # noqa: E402  (after the path)

needs_torch = pytest.mark.skipif(torch_sender.torch is None, reason=torch_sender.REASON)

STORIES = ROOT / "launch/models/stories"
BARD = ROOT / "launch/models/bard"
DIGESTS = json.loads((ROOT / "tests/data/golden/digests.json").read_text())["models"]


def load(directory):
    """The checkpoint's tensors as NumPy has them: bfloat16 as uint16."""
    data = (pathlib.Path(directory) / "model.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    return {
        name: numpy.frombuffer(
            data[8 + length + entry["data_offsets"][0] : 8 + length + entry["data_offsets"][1]],
            dtype=numpy.uint16,
        ).reshape(entry["shape"])
        for name, entry in header.items()
    }


BARD_TENSORS = load(BARD)
STORIES_TENSORS = load(STORIES)


@pytest.fixture
def client(shared_tree):
    """A client of a tree that serves stories, bit for bit, before each test."""
    with pitstop.Client(shared_tree.run_dir) as client:
        client.update_weights(str(STORIES))
        yield client
        with pytest.raises(pitstop.PitstopError, match="nothing is staged"):
            client.drop_stage()


def digest_of(client):
    """The digest of the resident weights, computed by this call."""
    return client.weight_digests()["digest"]


def infos(tensors):
    dtype = lambda array: "F32" if array.dtype.name == "float32" else "BF16"
    return [{"name": n, "dtype": dtype(a), "shape": list(a.shape)} for n, a in tensors.items()]


def raw_source(tensors, **fields):
    data = b"".join(array.tobytes() for array in tensors.values())
    return {
        "kind": "tensors",
        "format": "flattened",
        "tensors": infos(tensors),
        "payloads": [{"data": data}],
        **fields,
    }


def halves(tensors):
    items = list(tensors.items())
    return dict(items[: len(items) // 2]), dict(items[len(items) // 2 :])


def refused(call, *args, **kwargs):
    with pytest.raises(pitstop.PitstopError) as error:
        call(*args, **kwargs)
    return error.value
