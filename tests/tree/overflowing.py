"""The bundled model with an untied head, and changes to its tensors that make its numbers overflow."""

import json
import pathlib
import shutil
import struct

import numpy

from process_tree import ROOT

STORIES = ROOT / "launch/models/stories"
HUGE = 0x7F7F  # bf16's largest number, 3.39e38
BAD_TOKEN = 77
STATE, LOGITS = "hidden state", "logits"
PROMPT = [5, 301, 17, 950, 42, 61, 8, 1200, 33, 7, 512, 90, 3, 14, 15, 92, 65, 35, 89, 79]
LENGTH = len(PROMPT)


def read_tensors():
    blob = (STORIES / "model.safetensors").read_bytes()
    (size,) = struct.unpack("<Q", blob[:8])
    header = json.loads(blob[8 : 8 + size])
    header.pop("__metadata__", None)
    data = blob[8 + size :]
    tensors = {}
    for name, entry in header.items():
        raw = data[slice(*entry["data_offsets"])]
        tensors[name] = numpy.frombuffer(raw, numpy.uint16).reshape(entry["shape"]).copy()
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].copy()
    return tensors


def write_model(directory, tensors):
    header, parts, end = {}, [], 0
    for name, values in tensors.items():
        begin, end = end, end + values.nbytes
        header[name] = {"dtype": "BF16", "shape": list(values.shape), "data_offsets": [begin, end]}
        parts.append(values.tobytes())
    text = json.dumps(header).encode()
    (directory / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + b"".join(parts))


def bf16(value):
    return int(numpy.float32(value).view(numpy.uint32)) >> 16


def scaled(tensor, factor):
    """bf16 numbers times a power of two."""
    as_float = (tensor.astype(numpy.uint32) << 16).view(numpy.float32) * numpy.float32(factor)
    return (as_float.view(numpy.uint32) >> 16).astype(numpy.uint16)


def all_of(name, value):
    return lambda tensors: tensors[name].fill(value)


def times(name, factor):
    def change(tensors):
        tensors[name] = scaled(tensors[name], factor)

    return change


def element(name, row, value):
    def change(tensors):
        tensors[name][row] = value

    return change


def huge_row(tensors):
    tensors["model.embed_tokens.weight"][BAD_TOKEN] = bf16(2.0**80)


class Model:
    """Versions of the model in a directory; the healthy one serves first."""

    def __init__(self, directory):
        self.directory = pathlib.Path(directory)
        self.num_versions = 0
        self.healthy = self.directory / "healthy"
        shutil.copytree(STORIES, self.healthy)
        config = json.loads((STORIES / "config.json").read_text())
        (self.healthy / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": False}))
        write_model(self.healthy, read_tensors())

    def update(self, admin, *changes):
        """Serves the healthy model with changes; returns its epoch."""
        tensors = read_tensors()
        for change in changes:
            change(tensors)
        self.num_versions += 1
        path = self.directory / f"v{self.num_versions}"
        shutil.copytree(self.healthy, path)
        write_model(path, tensors)
        source = {"kind": "disk", "path": str(path)}
        reply = admin.call("update_weights", update={"source": source, "allow_nonfinite": True})
        shutil.rmtree(path)
        assert reply["ok"], reply
        return reply["epoch"]


def expect_error(output, what, token, epoch):
    assert output.finish["reason"] == "error", (output.finish, output.tokens, output.logprobs)
    assert output.finish["code"] == "not_finite", output.finish
    message = output.finish["message"]
    assert what in message and f"for {token}," in message, message
    assert f"under weight epoch {epoch}" in message and "in step " in message, message
    assert output.tokens == []
