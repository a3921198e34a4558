"""Estimates the memory that a tree will use, before it starts.

This is about host memory. On a GPU the workers decide by the free memory that the driver reports.
"""

import json
import os
import pathlib

from problem import EXIT_START, Problem

MIB = 1 << 20
GIB = 1 << 30
SECOND_COPY = "a second copy, while an update is staged"
DEFAULT_KV = "KV, at most (--max-total-tokens sets another number)"
KV_SHARE = 0.25  # the default fraction of the memory for the KV of all replicas together
KV_BYTES_LEAST = GIB  # the least default KV of a replica (tp_worker/model/engine.h)
RUNNING_REQUESTS = 256  # the default limit of a replica
ELEMENT_BYTES = {"bf16": 2, "fp32": 4}
# What a worker takes for an absent key (tp_worker/config/families.cpp), by model_type: (num_key_value_heads, or None for as
# many as query heads; head_dim, or None for hidden_size / num_attention_heads).
FAMILIES = {
    "llama": (None, None),
    "mistral": (8, None),
    "mixtral": (8, None),
    "qwen2": (32, None),
    "qwen2_moe": (16, None),
    "qwen3": (32, 128),
    "qwen3_moe": (4, None),
    "qwen3_next": (2, 256),
    "qwen3_5": (4, 256),
    "qwen3_5_moe": (2, 256),
}
HYBRID = ("qwen3_next", "qwen3_5", "qwen3_5_moe")
INTERVAL = 4  # of layers with attention in hybrid models, if full_attention_interval is absent
CGROUP = pathlib.Path("/sys/fs/cgroup")
MEMINFO = pathlib.Path("/proc/meminfo")


def limit_bytes():
    """Returns (bytes, source of the limit): the machine's memory, or the cgroup's if that is less."""
    total = next(
        int(line.split()[1]) << 10 for line in MEMINFO.read_text().splitlines() if line.startswith("MemTotal:")
    )
    smallest, whose = total, "this machine has"
    for path in (CGROUP / "memory.max", CGROUP / "memory" / "memory.limit_in_bytes"):
        try:
            text = path.read_text().strip()
        except OSError:
            continue
        if text.isdigit() and int(text) < smallest:
            smallest, whose = int(text), "this control group may take"
    return smallest, whose


def num_kv_layers(config, is_hybrid):
    """Returns the number of layers that have KV: layers with linear attention have none."""
    layers = int(config["num_hidden_layers"])
    if not is_hybrid:
        return layers
    if isinstance(types := config.get("layer_types"), list):
        return sum(each != "linear_attention" for each in types)
    return layers // int(config.get("full_attention_interval", INTERVAL))


def kv_token_bytes(config, compute):
    """Returns the KV bytes of one token on all ranks; 0 if the config does not say, or its family is unknown."""
    try:
        family = config["model_type"].removesuffix("_text")
        absent_groups, absent_head = FAMILIES[family]
        config = config.get("text_config") or config
        heads = int(config["num_attention_heads"])
        groups = config.get("num_key_value_heads", absent_groups)
        head = config.get("head_dim", absent_head)
        head = int(config["hidden_size"]) // heads if head is None else int(head)
        layers = num_kv_layers(config, family in HYBRID)
        return 2 * layers * (heads if groups is None else int(groups)) * head * ELEMENT_BYTES[compute or "bf16"]
    except (AttributeError, KeyError, TypeError, ValueError, ZeroDivisionError):
        return 0


def default_kv_bytes(config, options, limit):
    """Returns the KV bytes that a replica's workers choose without --max-total-tokens (engine_sizes.cpp), on a machine
    with `limit` bytes of memory. A hybrid model's states take a part of these bytes.
    """
    token = kv_token_bytes(config, options.compute)
    try:
        context = int(config.get("text_config", config)["max_position_embeddings"])
    except (AttributeError, KeyError, TypeError, ValueError):
        return 0
    filled = context * (getattr(options, "max_running_requests", None) or RUNNING_REQUESTS) * token
    return max(min(int(limit * KV_SHARE / options.dp), filled), KV_BYTES_LEAST) if token else 0


def weight_bytes(directory):
    return sum(path.stat().st_size for path in pathlib.Path(directory).glob("*.safetensors"))


def plan(options, limit):
    """Returns [(what, bytes)] for all replicas; empty if the model's config cannot be read, which the tree will report.
    `limit` is the memory in bytes.
    """
    try:
        config = json.loads((pathlib.Path(options.model) / "config.json").read_text())
        weights = weight_bytes(options.model)
    except (OSError, ValueError):
        return []
    config = config if isinstance(config, dict) else {}
    token = kv_token_bytes(config, options.compute)
    rows = [("weights", weights * options.dp), (SECOND_COPY, weights * options.dp)]
    if options.max_total_tokens and token:
        rows.append((f"KV of {options.max_total_tokens} tokens", options.max_total_tokens * token * options.dp))
    elif kv := default_kv_bytes(config, options, limit):
        rows.append((DEFAULT_KV, kv * options.dp))
    return rows


def amount(size):
    return f"{size / GIB:.2f} GiB" if size >= GIB else f"{size / MIB:.1f} MiB"


def table(rows, limit, whose):
    lines = [f"  {amount(size):>14}  {what}" for what, size in rows]
    lines.append(f"  {amount(sum(size for _, size in rows)):>14}  in all; {whose} {amount(limit)}")
    return "\n".join(lines)


def _is_on_gpus(options):
    return options.device == "cuda" or (options.device == "auto" and os.path.exists("/dev/nvidia0"))


def check(options, say):
    """Returns a table of the planned memory; None if it is unknown. Problem: the tree does not fit. If only the second
    copy does not fit, prints that updates must be --direct."""
    if _is_on_gpus(options) or options.load_format == "null":
        return None
    try:
        limit, whose = limit_bytes()
    except (OSError, StopIteration, ValueError):
        return None
    rows = plan(options, limit)
    if not rows:
        return None
    shown = table(rows, limit, whose)
    sizes = dict(rows)
    # KV that is reserved by default takes memory as it is used.
    needed = sum(size for what, size in rows if what not in (SECOND_COPY, DEFAULT_KV))
    if needed <= limit:
        if needed + sizes[SECOND_COPY] > limit:
            copy = amount(sizes[SECOND_COPY])
            say(f"memory has no room for a second copy of the weights ({copy}): updates must be --direct")
        return shown
    flag = "--max-total-tokens" if options.max_total_tokens else "--dp" if options.dp > 1 else "--model"
    fit = ""
    if options.max_total_tokens and limit > sizes["weights"]:
        token = (needed - sizes["weights"]) // options.max_total_tokens
        fit = f"; at most {(limit - sizes['weights']) // token} tokens would"
    raise Problem(f"{flag}: the tree does not fit into memory{fit}\n{shown}", EXIT_START)
