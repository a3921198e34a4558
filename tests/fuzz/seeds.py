"""Writes the initial inputs of a fuzz target, from the tests' own data.

tests/fuzz/seeds.py TARGET DIRECTORY
"""

import json
import pathlib
import shutil
import struct
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "data"
MODELS = ROOT / "launch" / "models"


def files_of(directory):
    return {path.name: path.read_bytes() for path in sorted((DATA / directory).iterdir())}


def messages():
    """Every message with every field: its number, its raw frames, the kind of peer, the body."""
    lines = (DATA / "messages/every.txt").read_text().splitlines()
    order = message_types()
    seeds = {}
    for line in lines:
        if not line or line.startswith("#"):
            continue
        name, body, *raw = line.split(" ")
        frames = [bytes.fromhex(frame) for frame in raw]
        seed = bytes([order.index(name), len(frames), 0])
        for frame in frames:
            seed += struct.pack("<H", len(frame)) + frame
        seeds[name] = seed + bytes.fromhex(body)
    return seeds


def message_types():
    """The types of messages in the order of AllMessages, which is that of docs/protocol.md and every.txt."""
    lines = (DATA / "messages/every.txt").read_text().splitlines()
    return [line.split(" ")[0] for line in lines if line and not line.startswith("#")]


def tokenizer():
    """A small file of each kind, the components of the reference's cases, and its texts."""
    seeds, models, texts = {}, [], set()
    components = ("normalizer", "pre_tokenizer", "post_processor", "decoder")
    for index, line in enumerate((DATA / "tokenizers/component_cases.jsonl").open()):
        case = json.loads(line)
        if "model" in case:
            models.append(case["model"])
            continue
        file = case["file"]
        lines = [json.dumps(file.get(name)) for name in components]
        text = case["texts"][-1]["text"]
        seeds[f"components_{index}"] = "1" + "\n".join([*lines, text])
        texts.update(entry["text"] for entry in case["texts"])
        model = models[file["model"]]
        seeds[f"file_{file['model']}"] = "0" + json.dumps({**file, "model": model})
    for index, text in enumerate(sorted(texts)):
        seeds[f"text_{index}"] = "2" + text
    return {name: seed.encode() for name, seed in seeds.items()}


def safetensors():
    """A header with tensors of every dtype, the length of its data, a header of none, and an index."""
    widths = {"BF16": 2, "F32": 4, "BOOL": 1, "I64": 8, "F8_E4M3": 1, "C64": 8}
    header, end = {"__metadata__": {"format": "pt"}}, 0
    for dtype, width in widths.items():
        header[f"model.{dtype}.weight"] = {
            "dtype": dtype, "shape": [2, 3], "data_offsets": [end, end + 6 * width]
        }  # fmt: skip
        end += 6 * width
    header["empty"] = {"dtype": "U8", "shape": [0], "data_offsets": [end, end]}
    names = {name: f"model-0000{i % 2}.safetensors" for i, name in enumerate(header)}
    index = {"metadata": {"total_size": end}, "weight_map": names}
    return {
        "header": b"0" + struct.pack("<I", end) + json.dumps(header).encode(),
        "nothing": b"0" + struct.pack("<I", 0) + b"{}",
        "index": b"1" + json.dumps(index).encode(),
    }


def config():
    """The configurations of the tests' models, after their generation_config.json."""
    ends = {"eos_token_id": [1, 2]}
    paths = sorted(DATA.glob("**/config.json")) + sorted(MODELS.glob("*/config.json"))
    return {f"{index}": (json.dumps(ends) + "\n").encode() + path.read_bytes() for index, path in enumerate(paths)}


SEEDS = {
    "config": config,
    "http_requests": lambda: files_of("fuzz/http_requests"),
    "messages": messages,
    "pickle": lambda: files_of("pickle"),
    "safetensors": safetensors,
    "template": lambda: files_of("jinja/templates"),
    "tokenizer": tokenizer,
    "torch_file": lambda: files_of("torch_files/2.15"),
}


def write(target, directory):
    """Writes a target's seeds. Returns the number that libFuzzer loads: it skips empty ones."""
    directory = pathlib.Path(directory)
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    seeds = SEEDS[target]()
    for name, seed in seeds.items():
        (directory / name).write_bytes(seed)
    return sum(bool(seed) for seed in seeds.values())


if __name__ == "__main__":
    write(sys.argv[1], sys.argv[2])
