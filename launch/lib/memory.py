"""Adds up what a tree will take of the machine's memory, before it is taken.

On a GPU the workers do this themselves, from what its driver says is free; here it is about the host.
"""

import json
import os
import pathlib

from problem import EXIT_START, Problem

GIB = 1 << 30
COPIES = 2  # of the weights: a second one while an update is staged
ELEMENT_BYTES = {"bf16": 2, "fp32": 4}
CGROUP = pathlib.Path("/sys/fs/cgroup")
MEMINFO = pathlib.Path("/proc/meminfo")


def limit_bytes():
    """Returns (bytes, whose limit it is): the machine's memory, or the cgroup's where that is less."""
    total = next(int(line.split()[1]) << 10 for line in MEMINFO.read_text().splitlines() if line.startswith("MemTotal:"))
    smallest, whose = total, "this machine has"
    for path in (CGROUP / "memory.max", CGROUP / "memory" / "memory.limit_in_bytes"):
        try:
            text = path.read_text().strip()
        except OSError:
            continue
        if text.isdigit() and int(text) < smallest:
            smallest, whose = int(text), "this control group may take"
    return smallest, whose


def kv_token_bytes(config, compute):
    """Returns the KV of one token on all ranks; 0: the config does not say."""
    try:
        heads = int(config["num_attention_heads"])
        head = int(config.get("head_dim") or int(config["hidden_size"]) // heads)
        groups = int(config.get("num_key_value_heads") or heads)
        return 2 * int(config["num_hidden_layers"]) * groups * head * ELEMENT_BYTES[compute or "bf16"]
    except (KeyError, TypeError, ValueError, ZeroDivisionError):
        return 0


def weight_bytes(directory):
    return sum(path.stat().st_size for path in pathlib.Path(directory).glob("*.safetensors"))


def plan(options):
    """Returns [(what, bytes)] for all replicas; empty: the model's config cannot be read, which the tree will say."""
    try:
        config = json.loads((pathlib.Path(options.model) / "config.json").read_text())
        weights = weight_bytes(options.model)
    except (OSError, ValueError):
        return []
    token = kv_token_bytes(config, options.compute) if isinstance(config, dict) else 0
    rows = [("weights", weights * options.dp), ("a second copy, for updates", weights * (COPIES - 1) * options.dp)]
    if options.max_total_tokens and token:
        rows.append((f"KV of {options.max_total_tokens} tokens", options.max_total_tokens * token * options.dp))
    return rows


def table(rows, limit, whose):
    lines = [f"  {size / GIB:10.2f} GiB  {what}" for what, size in rows]
    lines.append(f"  {sum(size for _, size in rows) / GIB:10.2f} GiB  in all; {whose} {limit / GIB:.2f} GiB")
    return "\n".join(lines)


def _is_on_gpus(options):
    return options.device == "cuda" or (options.device == "auto" and os.path.exists("/dev/nvidia0"))


def check(options):
    """Returns the table of what goes where; None: it is not known. Problem: it does not fit."""
    if _is_on_gpus(options) or options.load_format == "null":
        return None
    rows = plan(options)
    if not rows:
        return None
    try:
        limit, whose = limit_bytes()
    except (OSError, StopIteration, ValueError):
        return None
    shown = table(rows, limit, whose)
    if sum(size for _, size in rows) <= limit:
        return shown
    flag = "--max-total-tokens" if options.max_total_tokens else "--dp" if options.dp > 1 else "--model"
    fit = ""
    fixed = sum(size for what, size in rows if not what.startswith("KV"))
    if options.max_total_tokens and limit > fixed:
        token = (sum(size for _, size in rows) - fixed) // options.max_total_tokens
        fit = f"; at most {(limit - fixed) // token} tokens would"
    raise Problem(f"{flag}: the tree does not fit into memory{fit}\n{shown}", EXIT_START)
