"""llama.cpp in this process, by its C API: llama_engine MODEL.gguf THREADS [ADAPTER.gguf]. bench/peers
starts it."""

from __future__ import annotations

import ctypes
import sys
import time
from typing import Any

import numpy
from bench.peer.protocol import Times, serve

MAX_ROWS = 64
CONTEXT = 4608  # tokens of one request
TOTAL_CONTEXT = 32768  # tokens of all requests: one cache for every sequence
BATCH = 2048


class LlamaCpp:
    def __init__(self) -> None:
        self._lib: Any = None
        self._context: Any = None
        self._vocab_size = 0

    def load(self) -> tuple[str, int]:
        import llama_cpp

        self._lib = lib = llama_cpp
        lib.llama_backend_init()
        model = lib.llama_model_load_from_file(sys.argv[1].encode(), lib.llama_model_default_params())
        if not model:
            raise RuntimeError(f"llama.cpp does not load {sys.argv[1]}")
        params = lib.llama_context_default_params()
        params.n_ctx = TOTAL_CONTEXT
        params.n_batch = BATCH
        params.n_ubatch = 512
        params.n_seq_max = MAX_ROWS
        params.n_threads = params.n_threads_batch = int(sys.argv[2])
        params.kv_unified = True
        self._context = lib.llama_init_from_model(model, params)
        if not self._context:
            raise RuntimeError("llama.cpp cannot make a context")
        if len(sys.argv) > 3:
            self._use_adapter(model, sys.argv[3])
        self._vocab_size = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(model))
        return f"llama.cpp of llama-cpp-python {lib.__version__}", self._vocab_size

    def _use_adapter(self, model: Any, path: str) -> None:
        adapter = self._lib.llama_adapter_lora_init(model, path.encode())
        if not adapter:
            raise RuntimeError(f"llama.cpp does not load {path}")
        adapters, scales = (type(adapter) * 1)(adapter), (ctypes.c_float * 1)(1.0)
        if self._lib.llama_set_adapters_lora(self._context, adapters, 1, scales) != 0:
            raise RuntimeError(f"llama.cpp does not use {path}")

    def run(self, prompts: list[list[int]], num_tokens: int) -> Times:
        lib = self._lib
        lib.llama_memory_clear(lib.llama_get_memory(self._context), False)
        batch = lib.llama_batch_init(BATCH, 0, 1)
        try:
            return self._run(batch, prompts, num_tokens)
        finally:
            lib.llama_batch_free(batch)

    def _run(self, batch: Any, prompts: list[list[int]], num_tokens: int) -> Times:
        times: Times = {row: [] for row in range(len(prompts))}
        latest: dict[int, int] = {}
        waiting = [(row, at, token) for row, prompt in enumerate(prompts) for at, token in enumerate(prompt)]
        for begin in range(0, len(waiting), BATCH):
            part = waiting[begin : begin + BATCH]
            lasts = [i for i, (row, at, _) in enumerate(part) if at + 1 == len(prompts[row])]
            drawn = self._decode(batch, part, lasts)
            now = time.perf_counter()
            for i, token in zip(lasts, drawn):
                latest[part[i][0]] = token
                times[part[i][0]].append(now)
        for step in range(1, num_tokens):
            part = [(row, len(prompt) + step - 1, latest[row]) for row, prompt in enumerate(prompts)]
            drawn = self._decode(batch, part, list(range(len(part))))
            now = time.perf_counter()
            for row, token in enumerate(drawn):
                latest[row] = token
                times[row].append(now)
        return times

    def _decode(self, batch: Any, tokens: list[tuple[int, int, int]], wanted: list[int]) -> list[int]:
        """Computes (sequence, position, token) entries; returns the likeliest next token of the `wanted` ones."""
        batch.n_tokens = len(tokens)
        for i, (row, at, token) in enumerate(tokens):
            batch.token[i] = token
            batch.pos[i] = at
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = row
            batch.logits[i] = 0
        for i in wanted:
            batch.logits[i] = 1
        code = self._lib.llama_decode(self._context, batch)
        if code != 0:
            raise RuntimeError(f"llama_decode returns {code}")
        drawn = []
        for i in wanted:
            logits = self._lib.llama_get_logits_ith(self._context, i)
            row = numpy.ctypeslib.as_array(ctypes.cast(logits, ctypes.POINTER(ctypes.c_float)), (self._vocab_size,))
            drawn.append(int(row.argmax()))
        return drawn


if __name__ == "__main__":
    engine = LlamaCpp()
    serve(engine.load, engine.run)
