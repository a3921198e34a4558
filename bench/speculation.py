#!/usr/bin/env python3
"""The gain and the cost of --speculate: ratios to --speculate off, of two trees that run the same requests in turn.

    bench/speculation.py --build build/cpu [--drafts auto 4 8] [--pairs 7] [--shape qwen3-0.6b] [--prompts 64]
                         [--rows quoted random epoch tail cost] [--json out.json]

quoted  a model of that shape, one request, greedy: the output quotes its prompt, where every 25th token is another
random  the same model, 64 requests at once; no text repeats
epoch   the bundled model, 8 requests at once, temperature 1: 8 samples of each of 64 prompts, after an epoch of the same
        prompts with other seeds and an update of all weights by 0.1 %
tail    the same model, after such an epoch: 32 samples at once, whose lengths have a heavy tail. Let n be the number of
        tokens that `off` computes in the last quarter of its time. The ratio is the time of the last n tokens with
        `off` to their time with drafts.
cost    pitstop_draft_cost: microseconds and bytes of drafts, without a model

Tokens and logprobs of both trees are compared: a bit that differs ends the run (P11). The quoting model has random
weights, blocks that add nothing, and a head that maps each token to another one. Its passes cost as much as a trained
model's.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
import types

import numpy

from routes import Meter, machine
from transfer import ROOT, Tree, header_of

sys.path.insert(0, str(ROOT / "client" / "python"))

import pitstop  # noqa: E402  (after the path)

STEP = 7919  # from one output token to the next; a prime, so that no token appears twice
QUOTED_LEN, EDIT_EVERY = 256, 25
TAIL_LEN_MAX = 320
ROWS = ("quoted", "random", "epoch", "tail", "cost")
STORIES = ROOT / "launch/models/stories"


def make_quoting_model(build, directory, shape):
    """Writes a model whose greedy output is t, t + STEP, t + 2 * STEP, ...; returns the size of its vocabulary."""
    command = [build / "bin/pitstop_make_model", shape, directory, "--untied"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    tensors, data = header_of(directory)
    bytes_ = numpy.memmap(directory / "model.safetensors", numpy.uint8, "r+")

    def of(name):
        begin, end = tensors[name]["data_offsets"]
        return bytes_[data + begin : data + end].view(numpy.uint16).reshape(tensors[name]["shape"])

    for name in tensors:
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            of(name)[:] = 0
        elif name.endswith("norm.weight"):
            of(name)[:] = 0x3F80  # 1.0 in bf16
    embeddings = of("model.embed_tokens.weight")
    vocab = len(embeddings)
    of("lm_head.weight")[(numpy.arange(vocab) + STEP) % vocab] = embeddings
    bytes_.flush()
    return vocab


def make_next_epoch(directory):
    """Writes the bundled model after a small update: each weight times 1 + 0.001 * a standard normal."""
    directory.mkdir()
    for path in STORIES.iterdir():
        if path.is_file():
            (directory / path.name).write_bytes(path.read_bytes())
    tensors, data = header_of(directory)
    bytes_ = numpy.memmap(directory / "model.safetensors", numpy.uint8, "r+")
    random = numpy.random.default_rng(3)
    for tensor in tensors.values():
        begin, end = tensor["data_offsets"]
        bits = bytes_[data + begin : data + end].view(numpy.uint16)
        values = (bits.astype(numpy.uint32) << 16).view(numpy.float32)
        moved = values * (1 + 0.001 * random.standard_normal(len(values), numpy.float32))
        bits[:] = ((moved.view(numpy.uint32) + 0x8000) >> 16).astype(numpy.uint16)
    bytes_.flush()


def run_all(client, requests, at_once):
    """Returns (outputs, wall seconds); `requests` are pairs (prompt, fields)."""
    begin, done, open_ = time.perf_counter(), [], []
    for prompt, fields in requests:
        if len(open_) == at_once:
            done.append(open_.pop(0).result())
        open_.append(client.generate(prompt, logprobs=True, text_output=False, ignore_eos=True, **fields))
    done += [stream.result() for stream in open_]
    return done, time.perf_counter() - begin


def run_followed(client, requests, _):
    """Runs all requests at once; returns (outputs, when each token came)."""
    arrivals = []

    def follow(stream):
        chunks = []
        for chunk in stream:
            arrivals.extend([time.perf_counter()] * len(chunk.tokens))
            chunks.append(chunk)
        tokens = [token for chunk in chunks for token in chunk.tokens]
        return types.SimpleNamespace(
            tokens=tokens, logprobs=[each for chunk in chunks for each in chunk.logprobs], counts=chunks[-1].counts
        )

    begin = time.perf_counter()
    streams = [
        client.generate(prompt, logprobs=True, text_output=False, ignore_eos=True, **fields)
        for prompt, fields in requests
    ]
    with concurrent.futures.ThreadPoolExecutor(len(streams)) as pool:
        outputs = list(pool.map(follow, streams))
    return outputs, sorted(at - begin for at in arrivals)


def tail_ratio(base, arrivals):
    """The speedup of the last tokens: those that the base computes in the last quarter of its time."""
    num = sum(at > 0.75 * base[-1] for at in base)
    return 0.25 * base[-1] / (arrivals[-1] - arrivals[-num - 1])


def drafts_of(outputs):
    """Returns (passes, drafted tokens, correct ones)."""
    counts = [output.counts.drafts or {} for output in outputs]
    return [sum(each.get(name, 0) for each in counts) for name in ("passes", "drafted", "accepted")]


class Sides:
    """A tree without drafts, and one for each number of drafts; each measurement runs on all of them in turn."""

    def __init__(self, trees, clients):
        self._meters = [Meter(tree.launcher.pid) for tree in trees]
        self.clients = clients

    def compare(self, make_requests, at_once, num_pairs, before=None, run=run_all):
        """Per tree: the median ratios of tokens per second and of CPU seconds to the first tree, and the drafts."""
        taken, told, loads = [[] for _ in self.clients], [[] for _ in self.clients], []
        for pair in range(num_pairs + 1):
            requests, bits = make_requests(pair), None
            order = range(len(self.clients)) if pair % 2 else reversed(range(len(self.clients)))
            for at in order:
                client = self.clients[at]
                client.flush_cache()
                if before:
                    before(client, pair)
                cpu, wall, (outputs, more) = self._meters[at].run(lambda: run(client, requests, at_once))
                loads.append(os.getloadavg()[0])
                got = [(output.tokens, output.logprobs) for output in outputs]
                assert bits is None or got == bits, "P11"
                bits = got
                tokens = sum(len(output.tokens) for output in outputs)
                if pair > 0:  # the first only touches memory
                    taken[at].append((wall, cpu, tokens, *drafts_of(outputs)))
                    told[at].append(more)
        rows = [self._row(each, taken[0]) for each in taken]
        for row, each in zip(rows, told):
            row["load"] = [round(min(loads), 1), round(max(loads), 1)]
            if run is run_followed:
                ratios = sorted(map(tail_ratio, told[0], each))
                row["tail_ratio"] = round(statistics.median(ratios), 3)
                row["tail_range"] = [round(ratios[0], 3), round(ratios[-1], 3)]
        return rows

    @staticmethod
    def _row(taken, base):
        walls = sorted(b[0] / t[0] for t, b in zip(taken, base))
        cpus = [t[1] / b[1] for t, b in zip(taken, base)]
        passes, drafted, accepted = (sum(t[at] for t in taken) for at in (3, 4, 5))
        return {
            "tokens_per_s": round(statistics.median(t[2] / t[0] for t in taken), 1),
            "speed_ratio": round(statistics.median(walls), 3),
            "speed_range": [round(walls[0], 3), round(walls[-1], 3)],
            "cpu_ratio": round(statistics.median(cpus), 3),
            "tokens_per_pass": round(sum(t[2] for t in taken) / passes, 2) if passes else 1.0,
            "drafts": drafted,
            "right": round(accepted / drafted, 3) if drafted else 0.0,
        }


def quoted(vocab, pair):
    random = numpy.random.default_rng([1, pair])
    text = (random.integers(vocab) + STEP * numpy.arange(QUOTED_LEN + 1)) % vocab
    edited = text[1:].copy()
    edits = edited[EDIT_EVERY // 2 :: EDIT_EVERY]
    edits[:] = random.integers(0, vocab, len(edits))
    return [([*edited.tolist(), int(text[0])], {"max_new_tokens": QUOTED_LEN, "temperature": 0.0})]


def unrelated(vocab, pair):
    random = numpy.random.default_rng([2, pair])
    prompts = random.integers(0, vocab, (64, 16)).tolist()
    return [(prompt, {"max_new_tokens": 24, "temperature": 0.0}) for prompt in prompts]


NAMES = "Tom Lily Ben Mia Sam Anna Max Sue Tim Lucy Jack Amy Bob Sara Leo Kim".split()
LIKINGS = ("liked to", "wanted to go to", "had a", "was very")


def samples(epoch, num_prompts):
    """Eight samples of each prompt."""
    prompts = [
        f"Once upon a time there was a little child named {name}. {name} {liking}"
        for liking in LIKINGS
        for name in NAMES
    ][:num_prompts]
    return [
        (prompt, {"max_new_tokens": 64, "temperature": 1.0, "seed": 1000 * epoch + 8 * at + sample})
        for at, prompt in enumerate(prompts)
        for sample in range(8)
    ]


def heavy_tailed(pair):
    """32 samples of eight prompts: half are shorter than 30 tokens, and few are long."""
    random = numpy.random.default_rng([3, pair])
    lengths = numpy.minimum(16 * (1 + random.pareto(1.1, 32)), TAIL_LEN_MAX).astype(int)
    return [
        (prompt, {**fields, "max_new_tokens": int(length)})
        for (prompt, fields), length in zip(samples(2 * pair + 1, 4), lengths)
    ]


def measure_large(options, place):
    model = place / "quoting"
    vocab = make_quoting_model(options.build, model, options.shape)
    flags = ("--max-running-requests", 64, "--max-total-tokens", 8192, "--no-http")
    measurements = {
        "quoted": lambda sides: sides.compare(lambda pair: quoted(vocab, pair), 1, options.pairs),
        "random": lambda sides: sides.compare(lambda pair: unrelated(vocab, pair), 64, options.pairs),
    }
    wanted = {name: measure for name, measure in measurements.items() if name in options.rows}
    return on_trees(options, place, model, flags, wanted)


def measure_epochs(options, place):
    """The rows of the bundled model: epoch and tail."""
    wanted = {"epoch", "tail"} & set(options.rows)
    if not wanted:
        return {}
    make_next_epoch(place / "next")

    def before(client, pair):
        """Runs an epoch with the bundled weights. The measured epoch drafts from its outputs."""
        client.update_weights(str(STORIES))
        run_all(client, samples(2 * pair, options.prompts), 8)
        client.update_weights(str(place / "next"))
        client.flush_cache()

    def before_tail(client, pair):
        client.update_weights(str(STORIES))
        earlier = [(prompt, {**fields, "max_new_tokens": TAIL_LEN_MAX}) for prompt, fields in samples(2 * pair, 4)]
        run_all(client, earlier, 32)
        client.update_weights(str(place / "next"))
        client.flush_cache()

    results = {}
    if "epoch" in wanted:
        flags = ("--max-running-requests", 8, "--max-total-tokens", 8192, "--no-http")
        measure = {
            "epoch": lambda sides: sides.compare(
                lambda pair: samples(2 * pair + 1, options.prompts), 8, options.pairs, before
            )
        }
        results |= on_trees(options, place, STORIES, flags, measure)
    if "tail" in wanted:
        flags = ("--max-running-requests", 32, "--max-total-tokens", 16384, "--no-http")
        measure = {"tail": lambda sides: sides.compare(heavy_tailed, 32, options.pairs, before_tail, run_followed)}
        results |= on_trees(options, place, STORIES, flags, measure)
    return results


def measure_cost(options):
    if "cost" not in options.rows:
        return {}
    told = subprocess.run([options.build / "bin/pitstop_draft_cost"], check=True, capture_output=True, text=True).stdout
    print("cost", told, sep="\n", flush=True)
    return {"cost": json.loads(told)}


def on_trees(options, place, model, flags, measurements):
    """Returns {measurement: {"off" or the number of drafts: its row}}."""
    results, trees, clients = {}, [], []
    try:
        for number, drafts in enumerate(["off", *options.drafts]):
            directory = pathlib.Path(tempfile.mkdtemp(prefix=f"{model.name}-{number}-", dir=place))
            tree = Tree(options.build, model, directory, *flags, "--speculate", drafts)
            trees.append(tree)
            clients.append(pitstop.Client(str(tree.run_dir)))
        sides = Sides(trees, clients)
        for name, measure in measurements.items():
            results[name] = dict(zip(["off", *options.drafts], measure(sides)))
            print(name, *(f"  {key:>3}  {row}" for key, row in results[name].items()), sep="\n", flush=True)
    finally:
        for client in clients:
            client.close()
        for tree in trees:
            tree.__exit__()
    return results


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=lambda path: pathlib.Path(path).resolve(), default=ROOT / "build/cpu")
    parser.add_argument("--drafts", nargs="+", default=["auto", "4", "8"], help="values of --speculate (auto 4 8)")
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--shape", default="qwen3-0.6b", help="shape of pitstop_make_model (qwen3-0.6b)")
    parser.add_argument(
        "--prompts", type=int, default=64, choices=range(1, 65), metavar="N", help="prompts of an epoch (64)"
    )
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=ROWS)
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    results = {**machine(), "command": "bench/speculation.py " + " ".join(sys.argv[1:])}
    with tempfile.TemporaryDirectory() as directory:
        place = pathlib.Path(directory)
        if {"quoted", "random"} & set(options.rows):
            results |= measure_large(options, place)
        results |= measure_epochs(options, place)
    results |= measure_cost(options)
    if options.json:
        options.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
