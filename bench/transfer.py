#!/usr/bin/env python3
"""The speed of weights from outside, as ratios to memcpy in the same run.

    bench/transfer.py --build build/cpu [--gb 1.2] [--tp 1] [--json out.json] [-- flags of push]

Makes a model of that size (and one of 10,000 tensors), starts a tree, pushes, and compares an update of 1 % with one of
all weights, and 724 MiB in 16 calls with one session; prints a table. Every push is verified: the sender declares the
digest of the sent bytes with the commit, and each worker digests the bytes it has written. Each figure is the best of
five. The memcpy is one thread's, between touched arrays of the model's size.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import statistics
import struct
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "client" / "python"))

import numpy  # noqa: E402  (after the path)

import pitstop  # noqa: E402
from pitstop.push import WeightPusher  # noqa: E402

NUM_SMALL_TENSORS = 10_000
NUM_CALLS, CALLS_BYTES = 16, 724 << 20


def make_model(build, directory, hidden, ffn, num_layers, seed):
    """A Qwen3 with random bf16 weights; returns its tensors, as header_of(), and their bytes."""
    heads = max(1, hidden // 64)
    sizes = {
        "vocab": 2048,
        "hidden": hidden,
        "ffn": ffn,
        "layers": num_layers,
        "heads": heads,
        "kv-heads": heads,
        "head-dim": hidden // heads,
        "context": 1024,
        "seed": seed,
    }
    flags = [f"--{name}={value}" for name, value in sizes.items()]
    command = [build / "bin/pitstop_make_model", "custom", directory, "--family=qwen3", "--untied", *flags]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    tensors, _ = header_of(directory)
    return tensors, sum(tensor["data_offsets"][1] - tensor["data_offsets"][0] for tensor in tensors.values())


def header_of(model):
    """Returns {name: its entry} in the file's order, and where the tensors begin."""
    with open(model / "model.safetensors", "rb") as file:
        (header_len,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(header_len))
    header.pop("__metadata__", None)
    return dict(sorted(header.items(), key=lambda entry: entry[1]["data_offsets"])), 8 + header_len


def memcpy_rate(num_bytes, num_threads=1):
    """Bytes per second of the best of five copies of `num_bytes`, between touched memory."""
    sources = numpy.array_split(numpy.ones(num_bytes, numpy.uint8), num_threads)
    targets = numpy.array_split(numpy.zeros(num_bytes, numpy.uint8), num_threads)
    best = 0.0
    with concurrent.futures.ThreadPoolExecutor(num_threads) as threads:
        for _ in range(5):
            begin = time.perf_counter()
            list(threads.map(numpy.copyto, targets, sources))  # numpy releases the interpreter's lock
            best = max(best, num_bytes / (time.perf_counter() - begin))
    return best


def machine():
    """The machine's description."""
    model = re.search(r"model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text())
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=12"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return {
        "command": "bench/transfer.py " + " ".join(sys.argv[1:]),
        "commit": commit.stdout.strip(),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "cpu": model.group(1) if model else "",
        "cores": os.cpu_count(),
    }


class Tree:
    """Owns a tree of this build, for a with block."""

    def __init__(self, build, model, place, *flags):
        self.run_dir = place / "tree"
        self.environment = {**os.environ, "PITSTOP_BUILD": str(build)}
        self.launcher = subprocess.Popen(
            [ROOT / "launch/pitstop", "serve", "--run-dir", self.run_dir, "--model", model]
            + ["--max-total-tokens", "1024", *map(str, flags)],
            env=self.environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        if not self.launcher.stdout.readline():
            raise SystemExit("the tree did not start")

    def push(self, build, directory, *flags):
        """The push's report and its seconds."""
        begin = time.perf_counter()
        answer = subprocess.run(
            [build / "bin/pitstop_cli", "push", directory, "--run-dir", self.run_dir, "--json", *flags],
            check=True,
            capture_output=True,
            text=True,
        )
        return json.loads(answer.stdout), time.perf_counter() - begin

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.launcher.terminate()
        self.launcher.wait(30)


def large(options, place, results):
    model = place / "large"
    _, num_bytes = make_model(options.build, model, 1024, 3072, max(1, round(options.gb * 1e9 / 27.3e6)), seed=1)
    copied = memcpy_rate(num_bytes)
    results["memcpy_gb_s"] = copied / 1e9
    results["memcpy_2_threads_gb_s"] = memcpy_rate(num_bytes, 2) / 1e9
    results["model_bytes"] = num_bytes
    with Tree(options.build, model, place, "--tp", options.tp) as tree:
        for name, flags in (
            ("push", ()),
            ("push, nothing declared", ("--no-digest",)),
            ("push, adopted", ("--adopt",)),
        ):
            best = None
            for _ in range(5):
                report, _ = tree.push(options.build, model, *flags, *options.flags)
                assert report["reply"]["ok"], report
                if best is None or report["push_s"] < best["push_s"]:
                    best = report
            rate = num_bytes / best["push_s"]
            ranks = best["filled"]["replicas"][0]["ranks"]
            results[name] = {
                "push_s": best["push_s"],
                "gb_s": rate / 1e9,
                "ratio_to_memcpy": rate / copied,
                "fill_s": best["fill_s"],
                "wait_s": best["wait_s"],
                "receive_s": best["filled"]["receive_s"],
                "verify_s": best["filled"]["verify_s"],
                "commit_ms": best["reply"]["commit_s"] * 1e3,
                "total_s": best["total_s"],
                "buckets": best["num_buckets"],
            }
            for rank in ranks:
                results[name][f"bytes of rank {rank['rank']}, of the model's"] = rank["bytes"] / num_bytes
        partial(tree, model, num_bytes, results)


def write_part(model, directory, num_bytes, last):
    """Writes a checkpoint of the last matrices before tensor `last`, `num_bytes` in total."""
    header, data_begin = header_of(model)
    names, part, pieces, size = list(header), {}, [], 0
    with open(model / "model.safetensors", "rb") as file:
        while size < num_bytes:
            last -= 1
            begin, end = header[names[last]]["data_offsets"]
            file.seek(data_begin + begin)
            pieces.append(file.read(end - begin))
            part[names[last]] = {**header[names[last]], "data_offsets": [size, size + end - begin]}
            size += end - begin
    text = json.dumps(part).encode()
    directory.mkdir()
    (directory / "model.safetensors").write_bytes(b"".join([struct.pack("<Q", len(text)), text, *pieces]))
    return size, last


def partial(tree, model, num_bytes, results):
    """Alternates updates of two parts: the copy that an update writes to lacks the other part's last update."""
    first, last = write_part(model, model.parent / "part-1", num_bytes / 100, -1)
    second, _ = write_part(model, model.parent / "part-2", num_bytes / 100, last)
    whole, parts = [], []
    with pitstop.Client(str(tree.run_dir)) as client:
        for _ in range(5):
            whole.append(client.update_weights(str(model)))
        for turn in range(12):
            path = str(model.parent / f"part-{turn % 2 + 1}")
            parts.append(client.update_weights(path, partial=True))
    parts = parts[2:]  # the first two also copy all tensors that the whole updates left old
    assert all(reply["ok"] for reply in whole + parts)
    whole_s = min(reply["total_s"] for reply in whole)
    part_s = min(reply["total_s"] for reply in parts)
    results["partial update, from a directory"] = {
        "bytes sent, of the model's": (first + second) / 2 / num_bytes,
        "bytes written, of the model's": max(reply["bytes"] for reply in parts) / num_bytes,
        "whole_s": whole_s,
        "partial_s": part_s,
        "ratio": part_s / whole_s,
    }


def calls(options, place, results):
    """Compares 16 calls without a session, on a paused tree, with one session of the same bytes, in alternating pairs."""
    model = place / "calls"
    _, num_bytes = make_model(options.build, model, 1024, 3072, round(CALLS_BYTES / 27.3e6), seed=3)
    arrays = list(load(model).items())
    per_call = -(-len(arrays) // NUM_CALLS)
    groups = [dict(arrays[i : i + per_call]) for i in range(0, len(arrays), per_call)]
    with Tree(options.build, model, place, "--tp", options.tp) as tree:
        with pitstop.Client(str(tree.run_dir)) as client:
            pusher = WeightPusher(client)

            def timed(update):
                before = client.status()["replicas"][0]["epoch"]
                begin = time.perf_counter()
                client.pause("in_place")
                replies = update()
                client.continue_generation(timeout=600)
                taken = time.perf_counter() - begin
                moved = sum(rank["bytes"] for rank in replies[-1]["replicas"][0]["ranks"])
                after = client.status()["replicas"][0]
                return taken, moved, after["epoch"] - before, after["digest"]

            def by_calls():
                return [pusher.push(group, partial=True, session=False) for group in groups]

            def by_session():
                session = client.begin_update(timeout=60)["session"]
                for group in groups:
                    pusher.push_bucket(group, session)
                return [client.commit_weights(session=session)]

            def by_push():
                return [pusher.push(dict(arrays), digests=False)]

            rounds = []
            for turn in range(options.pairs):
                order = (by_calls, by_session, by_push)
                found = {update: timed(update) for update in (order if turn % 2 == 0 else order[::-1])}
                rounds.append([found[update] for update in order])
    assert len({of_way[3] for each in rounds for of_way in each}) == 1, "digests differ"
    assert all(of_way[2] == 1 for each in rounds for of_way in each), "more than one commit"
    best = [min(each[way][0] for each in rounds) for way in range(3)]
    results[f"{len(groups)} calls under a pause"] = {
        "model_bytes": num_bytes,
        "calls_s": best[0],
        "one session of as many_s": best[1],
        "one push_s": best[2],
        "ratio to the session": best[0] / best[1],
        "ratio, median of pairs": statistics.median(each[0][0] / each[1][0] for each in rounds),
        "ratio to one push": best[0] / best[2],
        "pairs": len(rounds),
        "bytes written, of the model's": max(each[0][1] for each in rounds) / num_bytes,
        "commits": 1,
    }


def load(model):
    """Returns {name: bfloat16 as uint16}, mapped."""
    header, data_begin = header_of(model)
    data = numpy.memmap(model / "model.safetensors", numpy.uint8, "r", data_begin)
    return {
        name: data[slice(*entry["data_offsets"])].view(numpy.uint16).reshape(entry["shape"])
        for name, entry in header.items()
    }


def small(options, place, results):
    model = place / "small"
    stored, num_bytes = make_model(options.build, model, 16, 16, NUM_SMALL_TENSORS // 11, seed=2)
    data = (model / "model.safetensors").read_bytes()[-num_bytes:]
    tensors = [{"name": name, "dtype": "BF16", "shape": each["shape"]} for name, each in stored.items()]
    with Tree(options.build, model, place) as tree, pitstop.Client(str(tree.run_dir)) as client:
        source = {"kind": "tensors", "format": "flattened"}
        begin = time.perf_counter()
        client.begin_update()
        bucket = client.update_bucket({**source, "tensors": tensors, "payloads": [{"data": data}]})
        client.commit_weights()
        flattened_s = time.perf_counter() - begin
        begin = time.perf_counter()
        client.begin_update(partial=True)
        at, num_sent = 0, 1000
        for tensor in tensors[:num_sent]:
            size = 2 * int(numpy.prod(tensor["shape"]))
            client.update_bucket({**source, "tensors": [tensor], "payloads": [{"data": data[at : at + size]}]})
            at += size
        client.drop_stage()
        each_s = (time.perf_counter() - begin) * len(tensors) / num_sent
        worker_s = bucket["receive_s"] + bucket["verify_s"]
        results["many tensors"] = {
            "tensors": len(tensors),
            "flattened_s": flattened_s,
            "one_message_each_s": each_s,
            "ratio": each_s / flattened_s,
            "us_per_tensor_in_a_bucket": worker_s / len(tensors) * 1e6,
            "us_per_tensor_of_the_call": bucket["total_s"] / len(tensors) * 1e6,
        }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/cpu")
    parser.add_argument("--gb", type=float, default=1.2, help="size of the large model in GB")
    parser.add_argument("--tp", type=int, default=1)
    parser.add_argument("--no-small", action="store_true", help="measure only the large model")
    parser.add_argument("--pairs", type=int, default=8, help="pairs of calls and sessions")
    parser.add_argument("--json", type=pathlib.Path, help="write the numbers here, too")
    parser.add_argument("flags", nargs="*", help="flags of launch/pitstop push, after --")
    options = parser.parse_args()
    options.build = options.build.resolve()
    results = {**machine(), "tp": options.tp}
    with tempfile.TemporaryDirectory(prefix="pitstop-transfer-", dir="/tmp") as place:
        large(options, pathlib.Path(place) / "a", results)
        if not options.no_small:
            small(options, pathlib.Path(place) / "b", results)
        calls(options, pathlib.Path(place) / "c", results)
    for name, value in results.items():
        if isinstance(value, dict):
            print(name)
            for key, number in value.items():
                print(f"  {key:28} {number:12.4g}")
        else:
            print(f"{name:30} {value:12.4g}" if isinstance(value, float) else f"{name:30} {value}")
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
