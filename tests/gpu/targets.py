"""The rates that a GPU should reach, and whether it did.

A target's figure is one of these: the worst of the kernel benchmarks that it names; the share of a model's decode time
that reading the weights would take; the rate of an update or a release as a share of a limit of the same run. For a
time that may not be exceeded, the figure is the limit divided by the time: 100 % is just in time, and more is better.
"""

# Title, share, limit, {family: the beginning of the benchmark's name}
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
    (
        "experts of qwen3-30b-a3b, 8192 tokens",
        0.60,
        "matrix rate",
        {"expert_linear": "gate, up of qwen3-30b-a3b, 8192"},
    ),
    # Sampling may take twice as long as one read of the logits, which is half of the bandwidth.
    ("sampling of 64 x 152k, top-p 0.95", 0.50, "copy bandwidth", {"sampling": "64 x 151936, top-p"}),
)
DECODE = ("qwen3-8b decode, 1 request, without graphs", 0.60, "copy bandwidth")
DECODE_PART = "qwen3-8b, random weights"
UPDATES_PART = "memory and updates of qwen3-8b"
HOST_PART = "updates of qwen3-8b by host memory"
H200_GB_S, OTHERS_GB_S = 160.0, 107.0  # 16 GB in 100 ms, and in 150 ms
HOST_GB_S = 40.0  # rate for kept weights
RESUMED_S = 0.5  # limit for resuming 60 GB

# Title, share, limit, and where its number is: the part, its figures, the name among them
UPDATES = (
    ("host memory to the second copy (push), verified", 0.80, "H2D rate", UPDATES_PART, "push", "of_h2d"),
    ("page cache to the second copy (disk), verified", 0.70, "H2D rate", UPDATES_PART, "disk", "of_h2d"),
    ("--update-mode host: the commit's upload", 0.90, "H2D rate", HOST_PART, "again", "up_of_h2d"),
    (
        "memory that a release gives back, as the driver counts",
        0.99,
        "tagged bytes",
        UPDATES_PART,
        "again",
        "back_of_said",
    ),
)
LENT = "CUDA IPC beside 64 streams"


def evaluate(kernels, parts, device_name=""):
    """[{what, target, of, measured, holds}]; measured and holds None: it did not run."""
    rows = kernels["kernels"] if kernels else []
    found = []
    for what, target, of, names in KERNELS:
        figures = [_worst(rows, family, name) for family, name in names.items()]
        measured = None if None in figures else min(figures)
        found.append(_target(what, target, of, measured))
    found.append(_target(*DECODE, _decode_share(kernels, parts)))
    for what, target, of, part, figures, name in UPDATES:
        found.append(_target(what, target, of, parts.get(part, {}).get(figures, {}).get(name)))
    digest = _worst(rows, "digest", "")
    found.append(_target("digest of resident weights", 0.85, "copy bandwidth", digest))
    return [*found, *_memory(parts), *_lent(parts, device_name)]


def _memory(parts):
    """Release and resume, as seconds for 60 GB; kept weights, as a rate."""
    found = parts.get(UPDATES_PART, {}).get("again", {})
    weights = found.get("freed_bytes", {}).get("weights")
    rates = (found["gb_s_to_host"], found["gb_s_to_gpu"]) if weights else None
    kv = found.get("freed_bytes", {}).get("kv_cache")
    resumed = kv * RESUMED_S / (60e9 * found["resume_kv_s"]) if kv and found["resume_kv_s"] else None
    return [
        _target(
            "weights kept in host memory, each way", 1.0, f"{HOST_GB_S:.0f} GB/s", rates and min(rates) / HOST_GB_S
        ),
        _target(f"resume, {RESUMED_S} s for 60 GB", 1.0, "time", resumed),
    ]


def _lent(parts, device_name):
    found = parts.get(UPDATES_PART, {}).get("lent", {})
    limit = H200_GB_S if "H200" in device_name else OTHERS_GB_S
    rate = found["gb"] / found["total_ms"] * 1e3 if found else None
    runs = "slowdown" in found
    return [
        _target(f"{LENT}: the whole, verified", 1.0, f"{limit:.0f} GB/s", rate and rate / limit),
        _target(f"{LENT}: pause of 1 ms", 1.0, "time", 1 / max(found["pause_ms"], 1e-3) if found else None),
        _target(f"{LENT}: steps meanwhile", 0.87, "rate before", 1 / (1 + found["slowdown"]) if runs else None),
        _target(
            f"{LENT}: gap of 2 steps", 1.0, "time", 2 / found["gap_steps"] if runs and found["gap_steps"] else None
        ),
    ]


def _worst(rows, family, name):
    """The lowest fraction of the target among the benchmarks whose names begin or end with `name`; the `deterministic`
    ones have no target."""
    figures = [
        row["fraction"]
        for row in rows
        if row["family"] == family and row["target"] and (row["what"].startswith(name) or row["what"].endswith(name))
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
