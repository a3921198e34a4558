#!/usr/bin/env python3
"""The cost of many tensors in an update: 1 GB as 18,867 tensors, the number of Qwen3-30B-A3B, and as 531 tensors.

    bench/experts_transfer.py --build build/cpu [--rounds 5] [--width 96] [--tp 1] [--json out.json]

Writes a small model with the tensor names and counts of Qwen3-30B-A3B (48 layers of 128 experts) in two forms: with
a tensor per expert, and with experts fused as in transformers 5. Starts a tree. Each round updates it with both forms
in each way: a push of the C++ client, a directory, and, if PyTorch is installed, checkpoint-engine's buckets in shared
memory. The result of a way is its best round, in seconds and in CPU seconds of the tree's processes. The difference
between the two forms, divided by 18,336 tensors, is the cost of a tensor without its bytes. (Compare the pushes without
a digest: a pusher can declare the digest of single experts, but not that of fused ones.)
"""

import argparse
import json
import pathlib
import struct
import sys
import tempfile
import threading
import time

import numpy

from routes import Meter, machine, write_model
from transfer import ROOT, Tree, load, memcpy_rate

sys.path.insert(0, str(ROOT / "client" / "python"))
sys.path.insert(0, str(ROOT / "tests" / "tree"))

import pitstop  # noqa: E402  (after the path)
import torch_sender  # noqa: E402

SHAPE = {"hidden": 256, "layers": 48, "experts": 128, "chosen": 8, "heads": 8, "kv": 2, "head": 32, "vocab": 2048}
NUM_TENSORS = 18_867
BUCKET_BYTES = 64 << 20  # of checkpoint-engine


def fuse(tensors, shape):
    """Returns {name: array}, with all experts of a layer fused into two tensors."""
    fused = {name: array for name, array in tensors.items() if ".experts." not in name}
    for layer in range(shape["layers"]):
        at = f"model.layers.{layer}.mlp.experts."
        of = [
            [tensors[f"{at}{e}.{part}_proj.weight"] for part in ("gate", "up", "down")] for e in range(shape["experts"])
        ]
        fused[at + "gate_up_proj"] = numpy.stack([numpy.concatenate([gate, up]) for gate, up, _ in of])
        fused[at + "down_proj"] = numpy.stack([down for _, _, down in of])
    return fused


def write_fused(model, directory, tensors):
    directory.mkdir()
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (directory / name).write_bytes((model / name).read_bytes())
    header, at = {}, 0
    for name, array in tensors.items():
        header[name] = {"dtype": "BF16", "shape": list(array.shape), "data_offsets": [at, at + array.nbytes]}
        at += array.nbytes
    text = json.dumps(header).encode()
    with open(directory / "model.safetensors", "wb", buffering=64 << 20) as file:  # gets large folios in the page cache
        file.write(struct.pack("<Q", len(text)) + text)
        for array in tensors.values():
            file.write(array.tobytes())


class Ways:
    """The ways to update; each updates the tree from a directory.

    Each returns the reply and, if a separate program sends the weights, the seconds without starting that program.
    """

    def __init__(self, options, tree, client):
        self._options, self._tree, self._client = options, tree, client
        self._arrays = {}

    def arrays(self, model):
        if model not in self._arrays:
            self._arrays[model] = load(model)
        return self._arrays[model]

    def push(self, model, *flags):
        pushed = self._tree.push(self._options.build, model, *flags)[0]
        return pushed["reply"], pushed["push_s"]

    def push_without_digest(self, model):
        return self.push(model, "--no-digest")

    def disk(self, model):
        return self._client.update_weights(str(model)), None

    def ipc(self, model):
        torch = torch_sender.torch
        tensors = {
            name: torch.from_numpy(each.copy()).view(torch.bfloat16) for name, each in self.arrays(model).items()
        }
        devices = [worker["device_uuid"] for worker in self._client.status()["replicas"][0]["workers"]]
        server, reply = torch_sender.ParameterServer(devices, bucket_bytes=BUCKET_BYTES), {}
        source = {"kind": "ipc", "handles": server.handles, "stall_ms": 120_000}
        thread = threading.Thread(target=lambda: reply.update(self._client.update_weights(source=source, timeout=600)))
        thread.start()
        server.update(tensors)
        thread.join()
        return reply, None


def measure(options, place):
    shape = {**SHAPE, "width": options.width}
    one_by_one, fused = place / "experts", place / "fused"
    num_bytes = write_model(one_by_one, shape)
    tensors = load(one_by_one)
    assert len(tensors) == NUM_TENSORS
    together = fuse(tensors, shape)
    write_fused(one_by_one, fused, together)
    results = {**machine(), "tp": options.tp, "model_bytes": num_bytes, "memcpy_gb_s": memcpy_rate(num_bytes) / 1e9}
    results["command"] = "bench/experts_transfer.py " + " ".join(sys.argv[1:])
    names = ["push", "push_without_digest", "disk"] + (["ipc"] if torch_sender.torch is not None else [])
    best = {}
    with (
        Tree(options.build, one_by_one, place, "--tp", options.tp) as tree,
        pitstop.Client(str(tree.run_dir)) as client,
    ):
        ways, meter, digests = Ways(options, tree, client), Meter(tree.launcher.pid), set()
        for round_ in range(options.rounds):
            for name in names:
                for form in (one_by_one, fused) if round_ % 2 else (fused, one_by_one):
                    cpu, wall, (reply, own) = meter.run(lambda way=getattr(ways, name), form=form: way(form))
                    assert reply["ok"], reply
                    digests.add(reply["digest"])
                    was = best.get((name, form.name), (1e9, 1e9))
                    best[name, form.name] = (min(was[0], cpu), min(was[1], own or wall))
        results["status_bytes"] = len(json.dumps(client.status()))
    assert len(digests) == 1, "both forms are one version"
    for name in names:
        (cpu, wall), (fused_cpu, fused_wall) = best[name, "experts"], best[name, "fused"]
        more = NUM_TENSORS - len(together)
        results[name] = {
            "s": wall,
            "ratio_to_memcpy": num_bytes / wall / 1e9 / results["memcpy_gb_s"],
            "cpu_s": cpu,
            "fused_s": fused_wall,
            "fused_cpu_s": fused_cpu,
            "us_per_tensor": (wall - fused_wall) / more * 1e6,
            "cpu_us_per_tensor": (cpu - fused_cpu) / more * 1e6,
        }
    return results


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/cpu")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--width", type=int, default=96, help="width of an expert; 96 makes 1 GB")
    parser.add_argument("--tp", type=int, default=1)
    parser.add_argument("--json", type=pathlib.Path, help="write the numbers here, too")
    options = parser.parse_args()
    options.build = options.build.resolve()
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="pitstop-experts-", dir="/tmp") as place:
        results = measure(options, pathlib.Path(place))
    for name, value in results.items():
        if isinstance(value, dict):
            print(name)
            for key, number in value.items():
                print(f"  {key:28} {number:12.4g}")
        else:
            print(f"{name:30} {value}")
    print(f"took {time.monotonic() - begin:.0f} s")
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
