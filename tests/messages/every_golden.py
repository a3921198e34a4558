#!/usr/bin/env python3
"""Writes tests/data/messages/every.txt: every message of docs/protocol.md once, as Python's msgpack
encodes it.

Uses the page's tables and nothing of the C++ code: each field appears, in the page's order, with a
valid value of the page's type that no other field of the message has.

    tests/messages/every_golden.py            write
    tests/messages/every_golden.py --check    exit code 1 if the file is something else
"""

import itertools
import pathlib
import re
import struct
import sys

from golden import F32, pack

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "protocol.md"
PATH = ROOT / "tests" / "data" / "messages" / "every.txt"

DIGEST = "00112233445566778899aabbccddeeff"
ABSENT = object()
# Values that the fields' meanings on the page require, by message or part, and by field.
VALUES = {
    "hello": {"protocol": 3},
    "push_open": {"protocol": 1},
    "rank_join": {"rank": 3, "tp": 4, "node": 1, "nodes": 2},
    "rank_part": {"num_bytes": 3, "limit_ms": 4},
    "worker_hello": {"protocol": 2, "rank": 3, "tp": 4, "dense_layers": [5], "drafted_max": 31, "ep": 2},
    "SamplingParams": {
        "min_new_tokens": 5,
        "max_new_tokens": 300,
        "top_p": 0.5,
        "repetition_penalty": 1.5,
        "min_p": 0.25,
        "frequency_penalty": -1.5,
        "presence_penalty": 0.125,
        "logit_bias": {5: -100.0, 2047: 0.25, 1 << 20: 7.5},
        "skip_special_tokens": False,
        "regex": ABSENT,
        "ebnf": ABSENT,
        "structural_tag": ABSENT,
        "ignore_eos": False,
    },
    "Turn": {"opens": False},  # true is refused together with most other fields
    "LogprobOptions": {"top": 20},
    "generate": {"input_ids": ABSENT, "text_output": True, "kv_tolerance": "max_lag"},
    "tokenize": {"text": ABSENT},
    "abort": {"all": False},
    "begin_update": {"update": {"mode": "staged", "source": {"kind": "buckets"}}},
    "stage_weights": {"update": {"mode": "staged"}},
    "rollback_weights": {"kv_policy": "keep"},
    "worker_stage": {
        "spec": {
            "adapter": "policy",
            "adapter_config": "{}",
            "adapter_policy": "recompute",
            "adapter_config_digest": DIGEST[::-1],
            "adapter_pinned": True,
        }
    },
    "UpdateSpec": {
        "digest": DIGEST,
        "base_digest": DIGEST[::-1],
        "adapter": ABSENT,
        "adapter_config": ABSENT,
        "adapter_policy": "finish",
        "adapter_config_digest": ABSENT,
        "adapter_pinned": False,
    },
    "TensorInfo": {"digest": DIGEST},
    "push_layout": {"shard_bytes": 1 << 33},
    "PushTensor": {"allocation": ABSENT},
    "ShardTensor": {"shape": [300, 70_000], "dtype": "F32"},
    "ShardPiece": {
        "row_begin": 1,
        "num_rows": 200,
        "col_begin": 3,
        "num_cols": 40_000,
        "offset": 70_000,
        "row_stride": 140_000,
    },
    "WeightSource": {"kind": "tensors", "format": "sparse", "num_updates": [3, 70_000]},
    "commit_weights": {"digest": DIGEST},
    "GroupSpec": {
        "world_size": 9,
        "rank_offset": 2,
        "port": 29500,
        "store_version": 1,
        "unique_id": bytes(range(128)),
    },
    "PlanRow": {
        "begin": 70_000,
        "num_new": 2,
        "num_pages": 1,
        "output_index": 300,
        "num_scored": 1,
        "num_routed": 2,
        "num_brought": 1,
        "takes_sampled": False,
        "save_at": 70_002,
        "num_drafted": ABSENT,  # refused together with scores; golden.py has it
    },
    "RouteShape": {"layers": 48, "per_token": 8, "num_experts": 300},
    "BroughtRoutes": {"experts": struct.pack("<768H", *range(768))},
    "scheduler_hello": {"dense_layers": [0, 47]},
    "step_plan": {
        "tokens": struct.pack("<4i", 740, -1, 1 << 30, 258),
        "pages": struct.pack("<2i", 9, 4),
        "targets": struct.pack("<2i", 543, 258),
        "routes": bytes(range(16)),
    },
}
RAW = {"int32": "i", "int64": "q", "float32": "f", "byte": "B"}


def read_tables():
    """[(field, type, default)] of every message and part of the page, in its order."""
    tables, name = {}, None
    for line in PAGE.read_text().splitlines():
        if heading := re.fullmatch(r"### `?(\w+)`?", line):
            name = heading[1]
            tables[name] = []
        elif row := re.match(r"\| `(\w+)` \| (.+?) \| (.*?) \| .* \|$", line):
            if name is not None:
                tables[name].append(row.groups())
    return tables


def message_names(page):
    part = page[page.index("\n## Messages\n") : page.index("\n## Parts\n")]
    return re.findall(r"(?m)^### `(\w+)`$", part)


class Maker:
    """Makes one message."""

    def __init__(self, tables):
        self.tables = tables
        self.numbers = itertools.count(1)
        self.raw = []
        self.parts_frame = None

    def fields_of(self, name, values):
        """`values`: given for this message alone."""
        values = {**VALUES.get(name, {}), **values}
        fields = {}
        for field, kind, default in self.tables[name]:
            value = values.get(field)
            if value is ABSENT:
                continue
            if isinstance(value, bytes):
                value = self.frame(value)
            elif value is None or isinstance(value, dict) and "](#" in kind:
                value = self.value(kind.removesuffix(", optional"), field, default, value or {})
            fields[field] = value
        return fields

    def frame(self, data):
        self.raw.append(data)
        return len(self.raw) - 1

    def part(self, data, num):
        """Adds an array to the frame that such arrays share. The frame is placed where the first of them is."""
        if self.parts_frame is None:
            self.parts_frame = self.frame(b"")
        begin = len(self.raw[self.parts_frame])
        self.raw[self.parts_frame] += data
        return [self.parts_frame, begin, num]

    def value(self, kind, field, default, values):
        number = next(self.numbers)
        if link := re.fullmatch(r"\[(\w+)\]\(#\w+\)", kind):
            return self.fields_of(link[1], values)
        if kind.startswith("array of "):
            kind = kind.removeprefix("array of ")
            if kind.startswith("one of "):  # two of the listed values
                return re.findall(r"`(\w+)`", kind)[:2]
            return [self.value(kind, field, default, values) for _ in range(2)]
        if kind.startswith("raw frame of "):
            code = RAW[kind.removeprefix("raw frame of ")]
            return self.frame(struct.pack(f"<3{code}", number, 0, number + 1))
        if kind.startswith("part of a raw frame of "):
            code = RAW[kind.removeprefix("part of a raw frame of ")]
            return self.part(struct.pack(f"<3{code}", number % 200, 0, number % 200 + 1), 3)
        if kind.startswith("one of "):
            return next(name for name in re.findall(r"`(\w+)`", kind)[::-1] if name != default)
        if kind == "map of str to str":
            return {"CPU-0-0": f"ipc://@{field}", "CPU-0-1": f"ipc://@{field}-{number}"}
        match kind:
            case "str":
                return f"{field} № {number}" + "." * (number % 3 * 20)  # fixstr, and str 8
            case "error code":
                return "too_large"
            case "bool":
                return default != "true"
            case "int32":
                return (1 << 20) + number
            case "int64":  # values of every encoded width
                return number + [0, 200, 70_000, 1 << 33][number % 4]
            case "uint64":
                return (1 << 63) + number
            case "float64":
                return number + 0.1
            case "float32":
                return F32(number + 0.5)
        raise ValueError(f"{field}: what is {kind}?")


def main():
    tables = read_tables()
    text = "# Written by tests/messages/every_golden.py: type, body, raw frames.\n"
    for name in message_names(PAGE.read_text()):
        maker = Maker(tables)
        body = pack(maker.fields_of(name, {}))
        text += " ".join([name, body.hex(), *(frame.hex() for frame in maker.raw)]) + "\n"
    if sys.argv[1:] == ["--check"]:
        sys.exit(PATH.read_text() != text)
    PATH.write_text(text)


if __name__ == "__main__":
    main()
