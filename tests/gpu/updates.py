"""What weights and their memory cost on the GPU: release and resume with weights kept, and an update where there is one."""

import time

from served import NotServed, Served

PROMPT = "Once upon a time"
GREEDY = {"temperature": 0.0, "ignore_eos": True, "timeout": 120.0}
NUM_TOKENS = 4
START_S = 180.0
NO_TUNING = ("--tuning-dir=none",)  # a start without it is faster, and no product is measured here
WORTH_S = 20.0  # a round is not begun with less


def measure(model, flags, environment, budget):
    """(status, why, figures)."""
    if budget.left() < WORTH_S:
        return "skipped", "no time left", {}
    figures = {}
    try:
        with Served(model, flags or NO_TUNING, environment, min(START_S, budget.left())) as client:
            problems = release_and_resume(client, figures, budget)
            not_measured = update(client, model, figures)
    except NotServed as error:
        return "failed", str(error), figures
    except Exception as error:  # of the client: whatever the tree answered or did not
        return "failed", f"{type(error).__name__}: {error}", figures
    return ("failed" if problems else "passed"), " / ".join([*problems, *not_measured]), figures


def tokens_of(client):
    return client.generate(PROMPT, max_new_tokens=NUM_TOKENS, **GREEDY).result().tokens


def timed(call, **arguments):
    begin = time.monotonic()
    reply = call(**arguments)
    return reply, time.monotonic() - begin


def release_and_resume(client, figures, budget):
    """Memory goes back and comes again, with the same tokens after it."""
    before = tokens_of(client)
    problems = []
    for round_name in ("first", "again"):  # the first takes its page-locked memory, too
        if budget.left() < WORTH_S:
            problems.append(f"{round_name}: no time left")
            break
        released, release_s = timed(client.release_memory, keep_weights=True)
        freed = {tag["tag"]: tag["freed_bytes"] for part in released["parts"] for tag in part["tags"]}
        _, weights_s = timed(client.resume_memory, tags=["weights"])
        _, kv_s = timed(client.resume_memory, tags=["kv_cache"])
        figures[round_name] = {
            "freed_bytes": freed,
            "release_s": round(release_s, 3),
            "resume_weights_s": round(weights_s, 3),
            "resume_kv_s": round(kv_s, 3),
            "gb_s_to_host": round(freed.get("weights", 0) / release_s * 1e-9, 2),
            "gb_s_to_gpu": round(freed.get("weights", 0) / weights_s * 1e-9, 2),
        }
        if not freed.get("weights") or not freed.get("kv_cache"):
            problems.append(f"{round_name}: a release freed {freed}")
        if tokens_of(client) != before:
            problems.append(f"{round_name}: other tokens after the resume")
    return problems


def update(client, model, figures):
    """A staged update to the same checkpoint; what the engine refuses is named as not measured."""
    try:
        reply, seconds = timed(client.update_weights, path=str(model))
    except Exception as error:
        if getattr(error, "code", "") != "unsupported":
            raise
        return [f"not measured: updates on the GPU ({error})"]
    figures["update_s"] = round(seconds, 3)
    figures["update"] = {key: value for key, value in reply.items() if isinstance(value, (int, float))}
    return []
