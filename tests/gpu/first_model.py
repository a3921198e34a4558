"""Steps of tests/gpu/first with a model of a real shape: updates during streams, decode, prefill, memory, a push."""

import json
import pathlib
import tempfile

import programs
import targets
import updates
from lending import NoSender, Sender
from models import NoModel
from served import NotServed, Served

LARGE, SMALL = "qwen3-8b", "qwen3-0.6b"
BF16 = 2  # bytes
# The share of the limit that other engines seem to reach (estimated from their figures, not
# measured).
DECODE_TARGETS = {"decode_1": 0.68, "decode_32": 0.68, "decode_256": 0.74}
PREFILL_TARGET = 0.70
# An update's limit, and its target as a share of that; 0: no target.
UPDATES = (
    ("lent", "copy_gb_s", "copy bandwidth", 0),
    ("push", "h2d_gb_s", "bus", 0.80),
    ("disk", "h2d_gb_s", "bus", 0.70),
)
UPDATE_HINT = "one thread's copies into page-locked pieces; digests"
BATCH_HINTS = {
    "decode_1": "the merge in decode attention, the GEMV, launches (tests/gpu/run --part profile)",
    "decode_32": "cuBLASLt at M = 32, which no kernel starts early behind",
    "decode_256": "decode attention, fp32 norms, logits that are read more than once",
}


def with_model(run, shape, flags, measure):
    """Runs measure(client, served, found) with a tree that serves the model. Returns (status, why,
    figures).
    """
    found = updates.Measured()
    served = Served(run.model(shape), flags, run.environment(), max(1.0, run.budget.left() - 10), run.report.log)
    with served as client:
        measure(client, served, found)
    return found.as_part()


def ending_well(step):
    """A step whose failures are reported as such."""

    def go(run):
        try:
            return step(run)
        except (NotServed, NoSender, NoModel) as error:
            return "failed", str(error), {}

    return go


@ending_well
def updates_beside_streams(run):
    """Release and resume, then pushes by CUDA IPC while streams decode, with a model that loads in
    a second.
    """
    limits = run.limits()
    with Sender(run.environment()) as sender:  # starts before the tree, which would take the memory
        loaded = sender.ask("load", dir=str(run.model(SMALL)))

        def measure(client, _, found):
            digest = client.weight_digests()["digest"]
            before = updates.tokens_of(client)
            for number in ("first", "again"):  # the first push creates objects that stay, while graphs are built
                updates.lent_beside_streams(client, sender, loaded, run.of, limits, found)
                found.figures[f"lent, {number}"] = found.figures.pop("lent")
            found.expect(updates.tokens_of(client) == before, "other tokens after the updates")
            found.expect(client.weight_digests()["digest"] == digest, "another digest after the updates")
            add_lent(run, found.figures["lent, again"])

        return with_model(run, SMALL, run.of.untuned, measure)


def add_lent(run, figures):
    name = (run.report.device or {}).get("name", "")
    asked = targets.H200_GB_S if "H200" in name else targets.OTHERS_GB_S
    whole = figures["gb"] / figures["total_ms"] * 1e3
    what = f"0.6B by CUDA IPC beside {run.of.streams} streams"
    run.report.figure(
        f"{what}: the whole, verified", whole, "GB/s", asked, "rate asked for", 1.0, "the bucket's imports and digests"
    )
    run.report.figure(f"{what}: pause", figures["pause_ms"], "ms", 1.0, "pause asked for", 1.0)
    if "slowdown" in figures:
        rate = 1 / (1 + figures["slowdown"])
        run.report.figure(f"{what}: steps meanwhile", rate, "of the rate before", 1.0, "rate before", 0.87)


@ending_well
def large_model(run):
    """Decode of 1, 32 and 256 requests, prefill, then release and resume of the memory: one
    tree.
    """
    run.limits()
    model = run.model(LARGE)

    def measure(client, served, found):
        for what, arguments in run.of.first.items():
            if run.budget.left() < 15:
                found.problems.append(f"{what} and after: no time left")
                return
            bench(run, served, model, what, arguments, found)
        if run.budget.left() > 15:
            with Sender(run.environment()) as sender:
                updates.release_and_resume(client, sender, found, run.budget)
            add_memory(run, found)

    return with_model(run, LARGE, run.of.tree, measure)


def bench(run, served, model, what, arguments, found):
    """pitstop_bench against the running tree."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "figures.json"
        command = [programs.program("bench"), *arguments, f"--run-dir={served.run_dir}", "--warmup=1", f"--json={path}"]
        done = run.call(command)
        if done.code != 0 or not path.exists():
            found.problems.append(f"{what}: {done.last_lines()}")
            return
        report = json.loads(path.read_text())
    weights = report["model"]["weight_bytes_per_step"]
    config = json.loads((pathlib.Path(model) / "config.json").read_text())
    if what.startswith("decode"):
        decode = report["figures"].get("decode")
        if decode is None:
            found.problems.append(f"{what}: at no time did all requests decode")
        else:
            add_decode(run, what, decode, weights, config, found)
    else:
        add_prefill(run, what, report, arguments, weights, config, found)


def of_arguments(arguments, name):
    return next(int(each.split("=")[1]) for each in arguments if each.startswith(f"--{name}="))


def kv_bytes(config):
    """Bytes of KV per token of context."""
    return 2 * BF16 * config["num_hidden_layers"] * config["num_key_value_heads"] * config["head_dim"]


def add_decode(run, what, decode, weights, config, found):
    """A step reads the weights and the KV of its requests once; a weight is two bytes, and two operations per request."""
    requests = of_arguments(run.of.first[what], "num-requests")
    step_ms = requests / decode["tokens_per_s"] * 1e3
    copy, matrix = run.limits()["copy_gb_s"] * 1e9, run.limits()["matrix_tflop_s"] * 1e12
    kv_s = requests * decode["context_mean"] * kv_bytes(config) / copy
    limit_ms = (max(weights / copy, requests * weights / matrix) + kv_s) * 1e3
    found.figures[what] = {"step_ms": updates.digits(step_ms), "tokens_per_s": updates.digits(decode["tokens_per_s"])}
    title = f"8B: a step of {requests} requests x {decode['context_mean']:.0f}"
    run.report.figure(title, step_ms, "ms", limit_ms, "bytes, or products", DECODE_TARGETS[what], BATCH_HINTS[what])


def add_prefill(run, what, report, arguments, weights, config, found):
    """Two operations per weight and token, and attention over half of the square."""
    tokens = of_arguments(arguments, "prompt-len")
    head = 2 * config["vocab_size"] * config["hidden_size"]
    scores = 2 * config["num_hidden_layers"] * config["num_attention_heads"] * config["head_dim"] * tokens**2
    operations = (weights - head) * tokens + head + scores  # a weight is two bytes and two operations
    limit_ms = operations / (run.limits()["matrix_tflop_s"] * 1e12) * 1e3
    first_ms = report["figures"]["first_token_ms"]["p50"]
    found.figures[what] = {"first_token_ms": updates.digits(first_ms)}
    hint = "prefill attention; elementwise passes between products"
    run.report.figure(
        f"8B: a prompt of {tokens}", first_ms, "ms", limit_ms, "products at the matrix rate", PREFILL_TARGET, hint
    )


def add_memory(run, found):
    again = found.figures.get("again")
    if not again:
        return
    limits = run.limits()
    for what, name, limit in (("to the host", "gb_s_to_host", "d2h_gb_s"), ("to the GPU", "gb_s_to_gpu", "h2d_gb_s")):
        hint = "copies by one thread into page-locked pieces"
        run.report.figure(f"8B: weights kept, {what}", again[name], "GB/s", limits.get(limit), "bus", 0.80, hint)
    kv = again["freed_bytes"].get("kv_cache", 0)
    asked_s = kv * targets.RESUMED_S / 60e9
    run.report.figure(
        "8B: KV resumed", again["resume_kv_s"], "s", asked_s, "0.5 s for 60 GB", 1.0, "chunks of 64 MiB, zeroed"
    )


@ending_well
def update_large(run):
    """Updates from the GPU's own memory, by pitstop push (files, shared memory, GPU), and from a disk; all of them
    verified."""
    limits = run.limits()
    model = run.model(LARGE)
    with Sender(run.environment()) as sender:  # starts before the tree, which would take the memory
        loaded = sender.ask("load", dir=str(model))

        def measure(client, served, found):
            digest = client.weight_digests()["digest"]
            reply = updates.push_lent(client, loaded, sender.device_uuid)
            found.figures["lent"] = updates.of_bus(reply, limits, "copy_gb_s")
            found.figures["push"] = updates.push(served.run_dir, model, limits, run.environment(), run.budget)
            found.figures["disk"] = updates.of_bus(client.update_weights(path=str(model)), limits, "h2d_gb_s")
            found.expect(client.weight_digests()["digest"] == digest, "another digest after the updates")
            for what, limit, of, target in UPDATES:
                rate = found.figures[what]["gb_s"]
                run.report.figure(f"8B: update by {what}", rate, "GB/s", limits.get(limit), of, target, UPDATE_HINT)

        return with_model(run, LARGE, run.of.untuned, measure)
