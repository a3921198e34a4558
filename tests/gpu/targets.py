"""What a GPU should reach, and whether it did.

A target's figure is the worst of the kernel benchmarks that it names, or the share that decode of a
whole model has of what reading its weights alone would take.
"""

# Title, share, of what, {family: how the benchmark's name begins}
KERNELS = (
    (
        "norms, rope + KV write, silu_mul, digest, scatter",
        0.85,
        "copy bandwidth",
        {"rmsnorm": "", "rope": "", "silu_mul": "", "digest": "", "shard_copy": ""},
    ),
    ("prefill attention, 8k, causal, mma", 0.45, "matrix rate", {"attention": "prefill, 8192, causal, mma"}),
    ("prefill attention, 8k, causal, wgmma", 0.60, "matrix rate", {"attention": "prefill, 8192, causal, wgmma"}),
    ("decode attention, 64 requests x 4k", 0.80, "copy bandwidth", {"attention": "decode, 64 requests x 4096"}),
    ("GEMMs of qwen3-8b, M = 1", 0.80, "copy bandwidth", {"linear": "M = 1"}),
    ("GEMMs of qwen3-8b, M = 64", 0.75, "roofline", {"linear": "M = 64"}),
    ("GEMMs of qwen3-8b, M = 4096", 0.80, "matrix rate", {"linear": "M = 4096"}),
    # Twice the time to read the logits once is half of the bandwidth.
    ("sampling of 64 x 152k, top-p 0.95", 0.50, "copy bandwidth", {"sampling": "64 x 151936, top-p"}),
)
DECODE = ("qwen3-8b decode, 1 request, without graphs", 0.60, "copy bandwidth")
DECODE_PART = "qwen3-8b, random weights"


def evaluate(kernels, parts):
    """[{what, target, of, measured, holds}]; measured and holds None: not run."""
    rows = kernels["kernels"] if kernels else []
    found = []
    for what, target, of, names in KERNELS:
        figures = [_worst(rows, family, name) for family, name in names.items()]
        measured = None if None in figures else min(figures)
        found.append(_target(what, target, of, measured))
    found.append(_target(*DECODE, _decode_share(kernels, parts)))
    return found


def _worst(rows, family, name):
    """Of the benchmarks that the name is of; those that say `deterministic` have no target."""
    figures = [
        row["fraction"]
        for row in rows
        if row["family"] == family
        and row["target"]
        and (row["what"].startswith(name) or row["what"].endswith(name))
    ]
    return min(figures, default=None)


def _decode_share(kernels, parts):
    rate = parts.get(DECODE_PART, {}).get("decode_1")
    if not rate or not kernels or "weight_bytes_per_step" not in rate or "decode.tokens_per_s" not in rate:
        return None
    return rate["decode.tokens_per_s"] * rate["weight_bytes_per_step"] / (kernels["limits"]["copy_gb_s"] * 1e9)


def _target(what, target, of, measured):
    holds = None if measured is None else measured >= target
    return {"what": what, "target": target, "of": of, "measured": measured, "holds": holds}


def as_lines(targets):
    words = {True: "**yes**", False: "**no**", None: "not run"}
    lines = ["| target | at least | measured | holds |", "|---|---|---|---|"]
    for row in targets:
        measured = "-" if row["measured"] is None else f"{row['measured']:.0%}"
        lines.append(f"| {row['what']} | {row['target']:.0%} of the {row['of']} | {measured} | {words[row['holds']]} |")
    return lines
