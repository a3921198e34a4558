#!/usr/bin/env python3
"""The speed of Hugging Face's tokenizers, for comparison with pitstop_tokenizer_bench.

    tokenizer_peer.py NAME=DIR [NAME=DIR ...]

Uses the same documents, one after the other on one thread. Cold: a newly loaded tokenizer with an empty cache. Warm:
the best of three further rounds. Needs the package `tokenizers`. Prints JSON.
"""

import json
import os
import pathlib
import sys
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
import tokenizers  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[1]
DOCUMENT_BYTES = 8192


def documents():
    """The same documents as make_documents() of tokenizer_bench.cpp."""
    paths = [
        path
        for folder in ("docs", "base", "text", "tests/text")
        for path in (ROOT / folder).iterdir()
        if path.suffix in (".md", ".h", ".cpp", ".py")
    ]
    text = b"".join(path.read_bytes() for path in sorted(paths))
    expected = ROOT / "tests/data/tokenizers/demo/expected.jsonl"
    for line in expected.read_text().rstrip("\n").split("\n"):
        text += (json.loads(line)["text"] + "\n").encode("utf-8", "surrogatepass")
    cuts, begin = [], 0
    while begin < len(text):
        end = min(begin + DOCUMENT_BYTES, len(text))
        while end < len(text) and text[end] & 0xC0 == 0x80:
            end += 1
        cuts.append(text[begin:end].decode("utf-8", "replace"))
        begin = end
    return cuts


def rate(tokenizer, texts, num_bytes):
    begin = time.perf_counter()
    for text in texts:
        tokenizer.encode(text, add_special_tokens=False)
    return num_bytes / (time.perf_counter() - begin) / 1e6


def main():
    texts = documents()
    num_bytes = sum(len(text.encode()) for text in texts)
    figures = {}
    for argument in sys.argv[1:]:
        name, _, directory = argument.partition("=")
        tokenizer = tokenizers.Tokenizer.from_file(str(pathlib.Path(directory) / "tokenizer.json"))
        cold = rate(tokenizer, texts, num_bytes)
        warm = max(rate(tokenizer, texts, num_bytes) for _ in range(3))
        figures[name] = {"encode_cold_mb_s": round(cold, 2), "encode_warm_mb_s": round(warm, 2)}
    print(
        json.dumps(
            {"peer": f"tokenizers {tokenizers.__version__}", "bytes": num_bytes, "mb_s": figures},
            indent=1,
        )
    )


if __name__ == "__main__":
    main()
