#!/usr/bin/env python3
"""Writes tests/data/messages/golden.txt: messages as Python's msgpack encodes them.

Uses nothing of the C++ code. Maps have the order of docs/protocol.md's fields, without empty texts,
arrays and maps; numbers are float32 where the page says so; raw frames are made by struct.

    tests/messages/golden.py            write
    tests/messages/golden.py --check    exit code 1 if the file is something else
"""

import pathlib
import struct
import sys

import msgpack

PATH = pathlib.Path(__file__).resolve().parents[1] / "data" / "messages" / "golden.txt"


class F32(float):
    """A number that is sent as float32."""


def pack(value):
    """msgpack's Packer has one float width, so the bytes are joined from pieces."""
    if isinstance(value, dict):
        head = msgpack.Packer().pack_map_header(len(value))
        return head + b"".join(pack(key) + pack(entry) for key, entry in value.items())
    if isinstance(value, list):
        head = msgpack.Packer().pack_array_header(len(value))
        return head + b"".join(pack(entry) for entry in value)
    return msgpack.packb(value, use_single_float=isinstance(value, F32))


def int32s(*values):
    return struct.pack(f"<{len(values)}i", *values)


SAMPLING = {
    "max_new_tokens": 300,
    "min_new_tokens": 0,
    "temperature": 0.7,
    "top_p": 1.0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "num_output_in_prompt": 0,
    "logit_bias": {5: -100.0, 2047: 0.25},
    "seed": 1 << 63,
    "stop": ["\n\n", "終"],
    "stop_token_ids": [2],
    "ignore_eos": False,
    "no_stop_trim": False,
    "skip_special_tokens": True,
    "spaces_between_special_tokens": True,
}

MESSAGES = [
    ("hello", {"protocol": 3, "name": "trainer"}),
    (
        "error",
        {
            "rid": "r-1",
            "call": (1 << 64) - 1,
            "code": "too_large",
            "message": "a message of more than 16777216 bytes",
        },
    ),
    (
        "generate",
        {
            "rid": "story/1",
            "input_ids": [0, 127, 128, 65536, -33],
            "sampling": SAMPLING,
            "logprobs": {"enabled": True, "mode": "truncated", "prompt_start": 0, "top": 5, "support": False},
            "stream": False,
            "text_output": True,
            "priority": -7,
            "kv_tolerance": "max_lag",
            "kv_max_lag": 2,
            "replica": 1,
        },
    ),
    (
        "outputs",
        {
            "chunks": [
                {
                    "key": 0,
                    "rid": "r" * 40,
                    "text": " Lily",
                    "tokens": [605],
                    "logprobs": [F32(-0.125)],
                    "ranks": [300],
                    "top_ids": [605, 13],
                    "top_logprobs": [F32(-0.125), F32(-2.5)],
                    "spans": [
                        {
                            "epoch": 3,
                            "label": "step 12",
                            "digest": "00112233445566778899aabbccddeeff",
                            "tokens": 1,
                            "kv_min_epoch": 2,
                            "kv_max_epoch": 3,
                        }
                    ],
                    "counts": {
                        "prompt_tokens": 4,
                        "cached_tokens": 0,
                        "completion_tokens": 64,
                        "retractions": 1,
                        "replica": 1,
                        "queue_us": 70000,
                        "prefill_us": 200,
                        "decode_us": 0,
                        "replayed_tokens": 0,
                        "history_tokens": 0,
                        "stale_tokens": 0,
                    },
                    "finish": {"reason": "stop", "matched_token": 2, "was_waiting": False},
                }
            ]
        },
    ),
    (
        "step_plan",
        {
            "step": 70000,
            "epoch": 1,
            "rows": [
                {
                    "slot": 0,
                    "begin": 0,
                    "num_new": 3,
                    "num_pages": 1,
                    "num_scored": 2,
                    "num_routed": 1,
                    "num_brought": 2,
                    "takes_sampled": False,
                    "save_to": 300,
                    "save_at": 2,
                },
                {
                    "slot": 1,
                    "begin": 17,
                    "num_new": 1,
                    "num_pages": 2,
                    "output_index": 0,
                    "num_scored": 0,
                    "num_routed": 0,
                    "num_brought": 0,
                    "takes_sampled": True,
                    "state_from": 1,
                    "save_at": 0,
                },
                {
                    "slot": 2,
                    "begin": 5,
                    "num_new": 2,
                    "num_pages": 1,
                    "output_index": 4,
                    "num_scored": 0,
                    "num_routed": 0,
                    "num_brought": 0,
                    "takes_sampled": False,
                    "save_at": 0,
                    "num_drafted": 1,
                },
            ],
            "tokens": 0,
            "pages": 1,
            "targets": 2,
            "routes": 3,
        },
        int32s(740, 543, 258, 0, 7, 8),
        int32s(9, 4, 5, 6),
        int32s(543, 258),
        bytes([3, 0, 7, 1]),
    ),
    (
        "set_weight_label",
        {"call": 9, "timeout_ms": 0, "label": "pas 12 – été", "abort_all": True},
    ),
    (
        "release_memory",
        {"call": 3, "timeout_ms": 2500, "tags": ["kv_cache", "weights"], "keep_weights": True},
    ),
    (
        "memory_reply",
        {
            "call": 3,
            "ok": True,
            "parts": [
                {
                    "call": 0,
                    "replica": 1,
                    "was_done": False,
                    "tags": [
                        {
                            "tag": "weights",
                            "state": "released",
                            "resident_bytes": 0,
                            "host_bytes": 1 << 33,
                            "freed_bytes": (1 << 33) + 4096,
                        }
                    ],
                    "has_weights": True,
                }
            ],
        },
    ),
    ("push_open", {"protocol": 1, "memory": {"pid": 4711, "fd": 23, "bytes": 1 << 33}}),
    (
        "push_layout",
        {
            "rank": 1,
            "tp": 2,
            "shard_bytes": 1 << 32,
            "tensors": [
                {
                    "name": "model.norm.weight",
                    "shape": [1024],
                    "pieces": [
                        {
                            "row_begin": 0,
                            "num_rows": 1,
                            "col_begin": 512,
                            "num_cols": 512,
                            "offset": 4096,
                            "row_stride": 1024,
                        }
                    ],
                }
            ],
            "takes_rows": True,
        },
    ),
    (
        "push_bucket",
        {
            "bucket": 3,
            "tensors": [
                {
                    "name": "lm_head.weight",
                    "dtype": "F32",
                    "shape": [151936, 1024],
                    "offset": 64,
                    "row_begin": 4096,
                    "num_rows": 512,
                },
                {
                    "name": "model.norm.weight",
                    "dtype": "BF16",
                    "shape": [1024],
                    "offset": 512,
                    "allocation": 0,
                    "row_begin": 0,
                },
            ],
            "allocations": [{"handle": "0123456789abcdef" * 8, "device_uuid": "GPU-0123"}],
        },
    ),
    ("push_shard", {"memory": {"pid": 4711, "fd": 24, "bytes": 4096}}),
    ("push_end", {"code": "data_loss", "message": "'a' was cut short"}),
    ("push_done", {}),
    (
        "update_bucket",
        {
            "call": 5,
            "timeout_ms": 0,
            "session": 7,
            "source": {
                "kind": "ipc",
                "handles": {"CPU-0-0": "ipc://@a", "CPU-0-1": "ipc://@b"},
                "stall_ms": 60000,
                "format": "flattened",
                "packed_bytes": 0,
            },
        },
    ),
    ("shutdown", {"call": 1, "timeout_ms": 0, "drain_s": 2.5}),
]


def main():
    text = "# Written by tests/messages/golden.py: type, body, raw frames.\n"
    for kind, body, *raw in MESSAGES:
        text += " ".join([kind, pack(body).hex(), *(frame.hex() for frame in raw)]) + "\n"
    if sys.argv[1:] == ["--check"]:
        sys.exit(PATH.read_text() != text)
    PATH.write_text(text)


if __name__ == "__main__":
    main()
