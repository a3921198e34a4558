"""The costs of weights and their memory on the GPU: release and resume with kept weights, and
updates by each way of this machine, as shares of the bus's rate in the same run.
"""

import json
import threading
import time

import programs
from lending import NoSender, Sender, push_lent
from served import NotServed, Served
from timed_call import call

PROMPT = "Once upon a time"
GREEDY = {"temperature": 0.0, "ignore_eos": True, "timeout": 120.0}
NUM_TOKENS = 4
START_S = 180.0
PUSH_S = 120.0
WORTH_S = 20.0  # a round begins only with this much time left
BUCKETS = 8  # buckets of a broadcast model


class Measured:
    """The results of a tree: figures, and problems."""

    def __init__(self):
        self.figures = {}
        self.problems = []

    def expect(self, condition, problem):
        if not condition:
            self.problems.append(problem)

    def as_part(self):
        return ("failed" if self.problems else "passed"), " / ".join(self.problems), self.figures


def measured(measure, budget):
    """(status, why, figures) of measure(found), whichever way it ends."""
    if budget.left() < WORTH_S:
        return "skipped", "no time left", {}
    found = Measured()
    try:
        skipped = measure(found)
    except (NotServed, NoSender) as error:
        return "failed", str(error), found.figures
    except Exception as error:  # an error of the client, whether or not the tree answered
        return "failed", f"{type(error).__name__}: {error}", found.figures
    return ("skipped", skipped, found.figures) if skipped else found.as_part()


def of_this_machine(model, of, limits, environment, budget):
    """Release and resume, and updates from disk, from the host's memory and from the GPU's own, of one tree."""

    def measure(found):
        with Sender(environment) as sender:  # starts before the tree, which would take the memory
            loaded = sender.ask("load", dir=str(model))
            served = Served(model, of.untuned, environment, min(START_S, budget.left()))
            with served as client:
                digest = client.weight_digests()["digest"]
                release_and_resume(client, sender, found, budget)
                found.figures["disk"] = of_bus(client.update_weights(path=str(model)), limits, "h2d_gb_s")
                found.figures["push"] = push(served.run_dir, model, limits, environment, budget)
                lent_beside_streams(client, sender, loaded, of, limits, found)
                found.expect(client.weight_digests()["digest"] == digest, "another digest after the updates")

    return measured(measure, budget)


def by_host_memory(model, of, limits, environment, budget):
    """--update-mode host: the commit uploads, while the previous version is downloaded."""

    def measure(found):
        flags = [*of.untuned, "--update-mode=host"]
        with Served(model, flags, environment, min(START_S, budget.left())) as client:
            before = tokens_of(client)
            digest = client.weight_digests()["digest"]
            for number in ("first", "again"):  # the first round also takes page-locked memory
                reply = client.update_weights(path=str(model))
                up_gb_s = rate(reply["bytes"], reply["commit_s"])
                found.figures[number] = {
                    **of_bus(reply, limits, "h2d_gb_s"),
                    "up_gb_s": up_gb_s,
                    "up_of_h2d": share(up_gb_s, limits, "h2d_gb_s"),
                    "stall_ms": milliseconds(reply["pause_s"]),
                }
                found.expect(reply["digest"] == digest, f"{number}: another digest")
            found.expect(tokens_of(client) == before, "other tokens after the updates")

    return measured(measure, budget)


def by_nccl(model, of, environment, budget):
    """Flattened buckets from another GPU of the machine: one broadcast per bucket."""

    def measure(found):
        try:
            sender = Sender(environment, gpu=1).__enter__()
        except NoSender as error:
            return f"no second GPU, and NCCL takes none twice: {error}"
        try:
            loaded = sender.ask("load", dir=str(model))
            with Served(model, of.untuned, environment, min(START_S, budget.left())) as client:
                broadcast(client, sender, loaded["tensors"], found)
        finally:
            sender.__exit__()

    return measured(measure, budget)


def broadcast(client, sender, tensors, found):
    digest = client.weight_digests()["digest"]
    unique_id = sender.ask("make_id")["id"]
    spec = {"backend": "nccl", "world_size": 2, "rendezvous": "direct", "unique_id": bytes.fromhex(unique_id)}
    joined = Beside(client.init_group, "w", timeout=60, **spec)
    sender.ask("join", id=unique_id, world_size=2)
    joined.result()
    session = client.begin_update()["session"]
    begin = time.monotonic()
    buckets = [tensors[i::BUCKETS] for i in range(BUCKETS) if tensors[i::BUCKETS]]
    for bucket in buckets:
        infos = [{name: each[name] for name in ("name", "dtype", "shape")} for each in bucket]
        source = {"kind": "distributed", "group": "w", "format": "flattened", "tensors": infos}
        received = Beside(client.update_bucket, source, session)
        num = sender.ask("broadcast", names=[each["name"] for each in bucket])["num_broadcasts"]
        received.result()
    reply = client.commit_weights(session=session)
    found.figures.update(buckets=len(buckets), broadcasts=num, gb_s=rate(reply["bytes"], time.monotonic() - begin))
    found.expect(num == len(buckets), f"{num} broadcasts of {len(buckets)} buckets")
    found.expect(reply["digest"] == digest, "another digest")
    left = Beside(client.destroy_group, "w")
    sender.ask("leave")
    left.result()


class Beside:
    """Runs a call on a thread of its own."""

    def __init__(self, function, *arguments, **fields):
        self._outcome = []
        self._thread = threading.Thread(target=self._run, args=(function, arguments, fields), daemon=True)
        self._thread.start()

    def _run(self, function, arguments, fields):
        try:
            self._outcome = [function(*arguments, **fields), None]
        except Exception as error:
            self._outcome = [None, error]

    def result(self):
        self._thread.join()
        value, error = self._outcome
        if error is not None:
            raise error
        return value


def digits(number):
    """The number, rounded to four significant digits."""
    return float(f"{number:.4g}")


def rate(num_bytes, seconds):
    return digits(num_bytes / max(seconds, 1e-9) * 1e-9)


def share(gb_s, limits, name):
    """The share of a limit that this run has measured; None: not measured."""
    limit = (limits or {}).get(name)
    return digits(gb_s / limit) if limit else None


def milliseconds(seconds):
    return digits(seconds * 1e3)


PARTS = ("open_s", "wait_s", "receive_s", "verify_s", "rest_s")  # parts of stage_s


def of_bus(reply, limits, name):
    """An update's rate, from its first call to the last rank's vote, including digests, checks and
    waits.
    """
    gb_s = rate(reply["bytes"], reply["stage_s"])
    return {
        "gb": digits(reply["bytes"] * 1e-9),
        "gb_s": gb_s,
        f"of_{name.split('_')[0]}": share(gb_s, limits, name),
        "total_ms": milliseconds(reply["total_s"]),
        "pause_ms": milliseconds(reply["pause_s"]),
        "stage_ms": milliseconds(reply["stage_s"]),
        **{part.replace("_s", "_ms"): milliseconds(reply.get(part, 0.0)) for part in PARTS},
    }


def tokens_of(client):
    return client.generate(PROMPT, max_new_tokens=NUM_TOKENS, **GREEDY).result().tokens


def timed(function, **arguments):
    begin = time.monotonic()
    reply = function(**arguments)
    return reply, time.monotonic() - begin


def release_and_resume(client, sender, found, budget):
    """Releases memory, which the driver must count as returned, and takes it again. The tokens must be the same
    afterwards."""
    before = tokens_of(client)
    for round_name in ("first", "again"):  # the first round also takes page-locked memory
        if budget.left() < WORTH_S:
            found.problems.append(f"{round_name}: no time left")
            break
        free = sender.ask("memory")["free_bytes"]
        released, release_s = timed(client.release_memory, keep_weights=True)
        back = sender.ask("memory")["free_bytes"] - free
        freed = {tag["tag"]: tag["freed_bytes"] for part in released["parts"] for tag in part["tags"]}
        _, weights_s = timed(client.resume_memory, tags=["weights"])
        _, kv_s = timed(client.resume_memory, tags=["kv_cache"])
        said = sum(freed.values())
        found.figures[round_name] = {
            "freed_bytes": freed,
            "back_of_said": digits(back / said) if said else None,
            "release_s": digits(release_s),
            "resume_weights_s": digits(weights_s),
            "resume_kv_s": digits(kv_s),
            "gb_s_to_host": rate(freed.get("weights", 0), release_s),
            "gb_s_to_gpu": rate(freed.get("weights", 0), weights_s),
        }
        found.expect(freed.get("weights") and freed.get("kv_cache"), f"{round_name}: a release freed {freed}")
        found.expect(tokens_of(client) == before, f"{round_name}: other tokens after the resume")


def push(run_dir, model, limits, environment, budget):
    """pitstop push, from the files into shared memory and from there to the GPU. NotServed: it
    failed.
    """
    command = [programs.program("cli"), "push", model, f"--run-dir={run_dir}", "--json"]
    ended = call(command, environment, max(1.0, min(PUSH_S, budget.left())))
    if ended.code != 0:
        raise NotServed(f"pitstop push: {ended.last_lines()}")
    report = json.loads(ended.output.strip().splitlines()[-1])
    figures = of_bus({"pause_s": 0.0, **report["reply"]}, limits, "h2d_gb_s")
    # The pusher's own times: filling that no wait hides, waits for the worker, and the total from the first byte on.
    return {
        **figures,
        **{f"pusher_{part}_ms": milliseconds(report.get(f"{part}_s", 0.0)) for part in ("fill", "wait", "push")},
    }


def lent_beside_streams(client, sender, loaded, of, limits, found):
    """Sends all tensors of the model from the GPU's own memory while requests decode. Measures the time, and how much
    the requests lose."""
    streams = [
        client.generate(PROMPT, max_new_tokens=of.stream_tokens, temperature=0.0, ignore_eos=True)
        for _ in range(of.streams)
    ]
    try:
        for stream in streams:  # all of them run, and the steps before the update are counted
            num = 0
            while num < of.tokens_before:
                num += len(next(stream).tokens)
        reply = push_lent(client, loaded, sender.device_uuid)
    finally:
        for stream in streams:
            stream.cancel()
    for stream in streams:
        found.expect(stream.result().finish.reason == "abort", "a stream ended before the update")
    (cost,) = reply["replicas"]
    before = cost["step_s_before"]
    figures = of_bus(reply, limits, "copy_gb_s")
    figures["num_steps"] = cost["num_steps"]
    if cost["num_steps"] and before:
        figures["step_ms_before"] = milliseconds(before)
        figures["slowdown"] = digits(cost["step_s"] / before - 1)
        figures["gap_steps"] = digits(cost["gap_s"] / before)
    found.expect(cost["num_steps"], "no step ended while weights were staged")
    found.figures["lent"] = figures
