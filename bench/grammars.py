#!/usr/bin/env python3
"""The cost of grammars: decodes of 1 and 32 streams that a JSON schema of 50 fields constrains, and the same without.

    bench/grammars.py --build build/cpu --tokenizer DIR [--shape qwen3-0.6b] [--pairs 5] [--json out.json]

Makes a model of random weights with that tokenizer (such as Qwen3's). Each pair decodes the same prompts with and without
the grammar in one tree, in alternating order, at temperature 1. Every output has --tokens tokens: the schema requires
more. The results are ratios of wall and CPU seconds. A ratio of 1.05 is a decode that takes 5 % longer.
"""

import argparse
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

import numpy

from routes import Meter, machine, pairs_of
from transfer import ROOT, Tree

sys.path.insert(0, str(ROOT / "client" / "python"))

import pitstop  # noqa: E402  (after the path)

NUM_FIELDS = 50
PROMPT_LEN = 16
TYPES = ({"type": "string"}, {"type": "integer"}, {"type": "boolean"}, {"enum": ["red", "green", "blue"]})
SCHEMA = {
    "type": "object",
    "properties": {f"field_{number}": TYPES[number % len(TYPES)] for number in range(NUM_FIELDS)},
    "required": [f"field_{number}" for number in range(NUM_FIELDS)],
    "additionalProperties": False,
}


def decode(client, prompts, num_tokens, **options):
    client.flush_cache()
    streams = [
        client.generate(prompt, max_new_tokens=num_tokens, temperature=1, seed=number, **options)
        for number, prompt in enumerate(prompts)
    ]
    for stream in streams:
        assert len(stream.result().tokens) == num_tokens


def measure(options, client, meter, vocab):
    random = numpy.random.default_rng(2)
    rows = {}
    for num_streams in (1, 32):
        prompts = random.integers(0, vocab, (num_streams, PROMPT_LEN)).tolist()

        def plain(prompts=prompts):
            decode(client, prompts, options.tokens, ignore_eos=True)

        def constrained(prompts=prompts):
            decode(client, prompts, options.tokens, json_schema=json.dumps(SCHEMA))

        rows[f"{num_streams} streams"] = pairs_of(meter, options.pairs, plain, constrained)
        print(f"decode of {num_streams}: {rows[f'{num_streams} streams']}", flush=True)
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=lambda path: pathlib.Path(path).resolve(), default=ROOT / "build/cpu")
    parser.add_argument("--tokenizer", type=pathlib.Path, required=True, help="a directory with tokenizer.json")
    parser.add_argument("--shape", default="qwen3-0.6b", help="of pitstop_make_model (qwen3-0.6b)")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=32, help="of each output (32)")
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        place = pathlib.Path(directory)
        model = place / "model"
        subprocess.run(
            [options.build / "bin/pitstop_make_model", options.shape, model], check=True, stdout=subprocess.DEVNULL
        )
        for each in options.tokenizer.glob("tokenizer*.json"):
            shutil.copy(each, model)
        vocab = json.loads((model / "config.json").read_text())["vocab_size"]
        flags = ("--max-running-requests", 64, "--max-total-tokens", 8192, "--no-http")
        with Tree(options.build, model, place, *flags) as tree, pitstop.Client(str(tree.run_dir)) as client:
            results = {
                **machine(),
                "command": f"bench/grammars.py --tokenizer {options.tokenizer.name} --pairs {options.pairs}",
                "fields": NUM_FIELDS,
                "vocab": vocab,
                "decode": measure(options, client, Meter(tree.launcher.pid), vocab),
            }
    if options.json:
        options.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
