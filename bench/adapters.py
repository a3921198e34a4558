#!/usr/bin/env python3
"""The cost of adapters (LoRA): decodes with and without them in one tree, and a load while streams run.

    bench/adapters.py --build build/cpu [--shape qwen3-0.6b] [--rank 16] [--dtype BF16] [--pairs 5] [--json out.json] [-- flags of serve]

decode  1 stream with an adapter, 32 streams with the same adapter, and 32 streams that use 8 adapters in turn. The
        results are ratios of wall and CPU seconds to the same requests without adapters, in pairs of alternating order.
load    loads an adapter of that rank for all modules from a directory while 8 streams run. The results are the seconds
        of the call, the pause, and the longest gap of a stream compared with the median gap.

A ratio of 1.05 is a decode that takes 5 % longer.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import numpy

from routes import Meter, machine, pairs_of
from transfer import ROOT, Tree

sys.path[:0] = [str(ROOT), str(ROOT / "client" / "python")]

from bench.peer.adapter_files import DTYPES, write_adapter  # noqa: E402

import pitstop  # noqa: E402  (after the path)

NUM_ADAPTERS = 8
PROMPT_LEN = 16
STREAMS_BESIDE = 8


def decode(client, prompts, num_tokens, adapters):
    """Stream i uses adapter i, modulo the number of adapters."""
    client.flush_cache()
    streams = [
        client.generate(
            prompt, max_new_tokens=num_tokens, temperature=0, ignore_eos=True, text_output=False,
            adapter=adapters[number % len(adapters)],
        )
        for number, prompt in enumerate(prompts)
    ]  # fmt: skip
    for stream in streams:
        assert len(stream.result().tokens) == num_tokens


def measure_decodes(options, client, meter, vocab, names):
    random = numpy.random.default_rng(2)
    rows = {}
    for streams, adapters in ((1, 1), (32, 1), (32, NUM_ADAPTERS)):
        prompts = random.integers(0, vocab, (streams, PROMPT_LEN)).tolist()

        def plain(prompts=prompts):
            decode(client, prompts, options.tokens, [""])

        def adapted(prompts=prompts, adapters=adapters):
            decode(client, prompts, options.tokens, names[:adapters])

        row = pairs_of(meter, options.pairs, plain, adapted)
        rows[f"{streams} streams, {adapters} adapters"] = row
        print(f"decode of {streams} with {adapters} adapters: {row}", flush=True)
    return rows


def measure_loads(options, client, vocab, directories):
    """Replaces an adapter repeatedly while streams without adapters run."""
    random, gaps, is_over = numpy.random.default_rng(3), [], threading.Event()

    def watch():
        prompts = random.integers(0, vocab, (STREAMS_BESIDE, PROMPT_LEN)).tolist()
        while not is_over.is_set():
            streams = [
                client.generate(
                    prompt, max_new_tokens=options.tokens * 4, temperature=0, ignore_eos=True, text_output=False
                )
                for prompt in prompts
            ]
            last = {}
            while streams:
                for stream in list(streams):
                    chunk = stream.next(timeout=60)
                    now = time.perf_counter()
                    if stream in last and chunk.tokens:
                        gaps.append((now, now - last[stream]))
                    last[stream] = now
                    if chunk.finish:
                        streams.remove(stream)

    watcher = threading.Thread(target=watch)
    watcher.start()
    loads = []
    with pitstop.Client(options.run_dir) as trainer:
        for number in range(options.loads):
            time.sleep(0.5)
            begin = time.perf_counter()
            reply = trainer.load_adapter("policy", str(directories[number % len(directories)]))
            loads.append((begin, time.perf_counter(), reply))
    is_over.set()
    watcher.join()
    beside = [gap for at, gap in gaps if any(begin <= at and at - gap <= end for begin, end, _ in loads)]
    seconds = [reply["total_s"] for _, _, reply in loads]
    row = {
        "loads": len(loads),
        "load_ms": round(1e3 * statistics.median(seconds), 2),
        "load_ms_range": [round(1e3 * min(seconds), 2), round(1e3 * max(seconds), 2)],
        "pause_ms": round(1e3 * max(reply["pause_s"] for _, _, reply in loads), 3),
        "gap_median_ms": round(1e3 * statistics.median(gap for _, gap in gaps), 2),
        "gap_max_beside_ms": round(1e3 * max(beside), 2) if beside else None,
    }
    print(f"load beside {STREAMS_BESIDE} streams: {row}", flush=True)
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=lambda path: pathlib.Path(path).resolve(), default=ROOT / "build/cpu")
    parser.add_argument("--shape", default="qwen3-0.6b", help="shape of pitstop_make_model (qwen3-0.6b)")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--dtype", choices=DTYPES, default="F32", help="of the adapters' files (F32, as PEFT saves)")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=16, help="tokens of each output (16)")
    parser.add_argument("--loads", type=int, default=10)
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("flags", nargs="*", help="flags of serve, after --")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        place = pathlib.Path(directory)
        model = place / "model"
        subprocess.run(
            [options.build / "bin/pitstop_make_model", options.shape, model], check=True, stdout=subprocess.DEVNULL
        )
        vocab = json.loads((model / "config.json").read_text())["vocab_size"]
        directories = [place / f"adapter-{number}" for number in range(NUM_ADAPTERS)]
        sizes = [
            write_adapter(each, model, options.rank, number, options.dtype) for number, each in enumerate(directories)
        ]
        flags = ("--max-running-requests", 64, "--max-total-tokens", 8192, "--no-http", *options.flags)
        with Tree(options.build, model, place, *flags) as tree:
            options.run_dir = str(tree.run_dir)
            with pitstop.Client(options.run_dir) as client:
                names = [f"a{number}" for number in range(NUM_ADAPTERS)]
                for name, each in zip(names, directories):
                    client.load_adapter(name, str(each))
                results = {
                    **machine(),
                    "command": "bench/adapters.py " + " ".join(sys.argv[1:]),
                    "adapter_bytes": sizes[0],
                }
                results["load"] = measure_loads(options, client, vocab, directories)
                results["decode"] = measure_decodes(options, client, Meter(tree.launcher.pid), vocab, names)
    if options.json:
        options.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
