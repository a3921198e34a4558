"""The workloads of bench/peers. Prompts are random token ids, decoding is greedy, no prefix is shared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional


@dataclass(frozen=True)
class Workload:
    """`rows` requests at once, each with `prompt` tokens and `output` tokens to generate."""

    rows: int
    prompt: int
    output: int


@dataclass(frozen=True)
class Row:
    name: str
    workload: Workload
    figure: str  # of Figures: prefill_tokens_per_s, decode_tokens_per_s or total_tokens_per_s
    target: dict[str, float]  # the ratio to each peer
    of_limit: Optional[float] = None  # the target share of the machine's limit, measured next to each run


DENSE = (
    Row("prefill of 512 tokens", Workload(1, 512, 1), "prefill_tokens_per_s", {"vllm": 1.15}, 0.80),
    Row("prefill of 2,048 tokens", Workload(1, 2048, 1), "prefill_tokens_per_s", {"vllm": 1.2}, 0.78),
    Row("decode, 1 request", Workload(1, 64, 64), "decode_tokens_per_s", {"llama.cpp": 1.1}, 0.90),
    Row("decode, 8 requests", Workload(8, 64, 64), "decode_tokens_per_s", {"vllm": 1.4}),
    Row("decode, 32 requests", Workload(32, 64, 48), "decode_tokens_per_s", {"vllm": 1.6}, 0.70),
    Row("decode, 64 requests", Workload(64, 64, 32), "decode_tokens_per_s", {"vllm": 1.6}, 0.70),
    Row("32 requests of 512 + 128 tokens", Workload(32, 512, 128), "total_tokens_per_s", {"vllm": 1.4}),
    Row("decode at 4,096 tokens of context", Workload(1, 4096, 32), "decode_tokens_per_s", {}, 0.75),
)

EXPERTS = (
    Row("prefill of 512 tokens", Workload(1, 512, 1), "prefill_tokens_per_s", {"llama.cpp": 1.15}),
    Row("decode, 1 request", Workload(1, 64, 64), "decode_tokens_per_s", {"llama.cpp": 1.3}, 0.70),
    Row("decode, 8 requests", Workload(8, 64, 64), "decode_tokens_per_s", {}),
    Row("decode, 32 requests", Workload(32, 64, 48), "decode_tokens_per_s", {"vllm": 1.15}),
)

HYBRID = (
    Row("prefill of 512 tokens", Workload(1, 512, 1), "prefill_tokens_per_s", {"llama.cpp": 1.15, "vllm": 1.15}),
    Row("prefill of 2,048 tokens", Workload(1, 2048, 1), "prefill_tokens_per_s", {"llama.cpp": 1.15, "vllm": 1.15}),
    Row("decode, 1 request", Workload(1, 64, 64), "decode_tokens_per_s", {"llama.cpp": 1.15, "vllm": 1.15}, 0.80),
    Row("decode, 8 requests", Workload(8, 64, 64), "decode_tokens_per_s", {"llama.cpp": 1.15, "vllm": 1.15}),
    Row("decode, 32 requests", Workload(32, 64, 48), "decode_tokens_per_s", {"llama.cpp": 1.15, "vllm": 1.15}),
)

ADAPTED = (
    Row("decode, 1 request", Workload(1, 64, 64), "decode_tokens_per_s", {"llama.cpp": 1.0, "vllm": 1.0}),
    Row("decode, 32 requests", Workload(32, 64, 48), "decode_tokens_per_s", {"llama.cpp": 1.0, "vllm": 1.0}),
)

# By the model's name (models.py).
ROWS = {"qwen3-0.6b": DENSE, "experts-2b-a0.3b": EXPERTS, "qwen3.5-0.8b": HYBRID, "qwen3-0.6b-lora": ADAPTED}

# The plot's workloads: output tokens per second against concurrent requests.
CURVE = tuple(Workload(rows, 64, 48) for rows in (1, 2, 4, 8, 16, 32, 64))


@dataclass(frozen=True)
class Figures:
    """The figures of a workload; 0 where a figure does not apply."""

    prefill_tokens_per_s: float  # all prompt tokens, over the time until every request has its first token
    decode_tokens_per_s: float  # while all decode: after every first token, before any request ends
    total_tokens_per_s: float  # prompts and outputs over the whole time
    seconds: float


def figures_of(workload: Workload, begin: float, times: dict[int, list[float]]) -> Figures:
    """`times`: when each token of each request came, on one clock, in seconds."""
    if len(times) != workload.rows or any(len(each) != workload.output for each in times.values()):
        counts = sorted(len(each) for each in times.values())
        raise RuntimeError(f"{workload}: {len(times)} requests made {counts} tokens")
    prefilled = max(each[0] for each in times.values())
    first_end = min(each[-1] for each in times.values())
    end = max(each[-1] for each in times.values())
    decoded = sum(1 for each in times.values() for at in each if prefilled < at <= first_end)
    return Figures(
        prefill_tokens_per_s=workload.rows * workload.prompt / (prefilled - begin),
        decode_tokens_per_s=decoded / (first_end - prefilled) if first_end > prefilled else 0.0,
        total_tokens_per_s=workload.rows * (workload.prompt + workload.output) / (end - begin),
        seconds=end - begin,
    )
