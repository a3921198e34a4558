"""The readers of routed experts in trainers, each written anew after the function that its comment names."""

import base64
import io
import json
import math

import numpy

PREFIX = b'"routed_experts":{"data":"'


def of_slime(meta, num_tokens, num_layers, k):
    """slime's Sample: int32 of exactly (tokens - 1) rows, which follow those of earlier turns."""
    ids = numpy.frombuffer(base64.b64decode(meta["routed_experts"].encode("ascii")), dtype=numpy.int32)
    held = meta.get("routed_experts_start_len", 0)
    assert ids.size == (num_tokens - 1 - held) * num_layers * k
    return ids.reshape(num_tokens - 1 - held, num_layers, k)


def of_verl(text, num_layers, k):
    """verl's SGLang rollout, which accepts any number of rows."""
    return numpy.frombuffer(base64.b64decode(text), dtype=numpy.int32).reshape(-1, num_layers, k)


def of_vllm(text):
    """vLLM's own clients (numpy_to_b64): an .npy file that has shape and dtype."""
    return numpy.load(io.BytesIO(base64.b64decode(text)), allow_pickle=False)


def without_base64(raw):
    """renderers' _strip_base64_fields: (the body without the base64 of its envelopes, each one's base64)."""
    parts = raw.split(PREFIX)
    ends = [part.index(b'"') for part in parts[1:]]
    rest = PREFIX.join([parts[0], *(part[end:] for part, end in zip(parts[1:], ends))])
    return rest, [part[:end] for part, end in zip(parts[1:], ends)]


def of_prime_rl(raw):
    """As renderers' parse_generate_response and prime-rl read it. Returns [(rows, start)] for the choices with routes, and
    the answer.
    """
    rest, blobs = without_base64(raw)
    answer = json.loads(rest)
    envelopes = [choice["routed_experts"] for choice in answer["choices"] if choice["routed_experts"]]
    assert [envelope["data"] for envelope in envelopes] == [""] * len(blobs)
    rows = []
    for blob, envelope in zip(blobs, envelopes):
        ids = numpy.frombuffer(base64.b64decode(blob, validate=True), dtype=envelope["dtype"])
        rows.append((ids.reshape(envelope["shape"]), envelope["start"]))
    return rows, answer


def of_skyrl_body(raw):
    """SkyRL's generate_wire.load_packed_body, which finds the base64 of every envelope in the bytes. Returns [rows], by
    choice."""
    rest, blobs = without_base64(raw)
    answer = json.loads(rest)
    envelopes = [choice["routed_experts"] for choice in answer["choices"]]
    assert [envelope["data"] for envelope in envelopes] == [""] * len(blobs)
    return [of_skyrl(envelope | {"data": blob}) for envelope, blob in zip(envelopes, blobs)], answer


def of_skyrl(envelope):
    """SkyRL's generate_wire.decode_packed_routed_experts: the smallest dtype, and no byte more or less."""
    dtype = {name: numpy.dtype(name) for name in ("uint8", "int16", "int32")}[envelope["dtype"]]
    assert list(envelope)[0] == "data"
    data, shape = base64.b64decode(envelope["data"], validate=True), envelope["shape"]
    assert len(shape) == 3 and len(data) == math.prod(shape) * dtype.itemsize
    rows = numpy.frombuffer(data, dtype=dtype).reshape(shape)
    largest = rows.max(initial=0)
    assert dtype == ("uint8" if largest < 2**8 else "int16" if largest < 2**15 else "int32")
    return rows
