#!/usr/bin/env python3
"""The costs of a fleet: of calls, of updates and their skew, of its Python layer, of a tree that dies under streams,
and of a replica that starts late.

build/fleet-venv/bin/python bench/fleet.py [--model DIR] [--trees 1 2 4 8] [--json FILE] [PART...]

Parts: calls, updates, layer, death, late; default: all. Everything runs on this machine, on a Ray cluster of its own.
"""

import argparse
import asyncio
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "client" / "python"), str(ROOT / "tests" / "fleet" / "on_ray")]
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

import numpy  # noqa: E402
import ray  # noqa: E402

from machines import another_version, kill, places, weights_of  # noqa: E402
from pitstop.aio import AsyncClient  # noqa: E402
from pitstop.fleet.door import CarriedStream  # noqa: E402
from pitstop.fleet.fleet import AsyncFleet, Fleet, start_ray  # noqa: E402

STREAMS = 64
UPDATES = 16
WARM_UPDATES = 4
COPY_BYTES = 256 << 20
DEATHS = 5
HOLD_S = 0.5
ROUNDS = 40
WARM_S, WINDOW_S = 0.2, 0.8  # of a round
STATES = ("idle", "streams", "held")
PARTS = ("calls", "updates", "layer", "death", "late")


@ray.remote(num_cpus=0)
class Answerer:
    async def answer(self, order):
        return order


@ray.remote(num_cpus=0)
class Asker:
    async def ask(self, others, rounds):
        """Returns the CPU seconds of this actor's thread per call."""
        await asyncio.gather(*(each.answer.remote(("warm", 1)) for each in others))
        begun = time.thread_time()
        wall = time.perf_counter()
        for number in range(rounds):
            await asyncio.gather(*(each.answer.remote(("order", number)) for each in others))
        calls = rounds * len(others)
        return (time.thread_time() - begun) / calls, (time.perf_counter() - wall) / calls


def calls(_):
    others = [Answerer.remote() for _ in range(4)]
    thread, wall = ray.get(Asker.remote().ask.remote(others, 300))
    return {"call_thread_s": thread, "call_wall_s": wall}


def copy_rate(num_threads):
    """Returns the bytes per second that `num_threads` threads copy in total, each its own 256 MiB."""
    pairs = [(numpy.ones(COPY_BYTES, numpy.uint8), numpy.zeros(COPY_BYTES, numpy.uint8)) for _ in range(num_threads)]

    def copy():
        threads = [threading.Thread(target=numpy.copyto, args=(target, source)) for source, target in pairs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    return num_threads * COPY_BYTES / min(_timed(copy) for _ in range(8))


def _spread(values):
    values = list(values)
    return max(values) - min(values)


def _timed(work):
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def background(fleet, count, tokens):
    """Starts `count` streams and returns a function that ends them."""
    fleet_ = fleet._inner

    async def one(number):
        while True:
            await fleet_.generate(
                f"Story {number}", {"max_new_tokens": tokens, "ignore_eos": True}, session=str(number)
            )

    async def begin():
        return [asyncio.ensure_future(one(number)) for number in range(count)]

    tasks = fleet._wait(begin())

    async def end():
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    return lambda: fleet._wait(end())


def updates(given):
    """Compares an update with a limit: a copy into the object store and a copy per tree, at the rate of all threads."""
    rates = {"one_thread": copy_rate(1), "all_threads": copy_rate(os.cpu_count())}
    rows, puts = [], []
    update = AsyncFleet._update

    async def timed_update(self, payload, timeout):
        puts.append(time.perf_counter())  # all buckets are in the store
        return await update(self, payload, timeout)

    AsyncFleet._update = timed_update
    for num_trees in given.trees:
        with Fleet(
            given.model, replicas=num_trees, threads=1, name=f"updates{num_trees}", resources={"CPU": 0.01}
        ) as fleet:
            weights = weights_of(next(iter(places(fleet).values())))
            size = sum(array.nbytes for array in weights.values())
            row = {
                "trees": num_trees,
                "bytes": size,
                "limit_s": (1 + num_trees) * size / rates["all_threads"],
                "limit_s_one_thread": (1 + num_trees) * size / rates["one_thread"],
            }
            # the object store's pages and the trees' second copies are allocated here
            for number in range(WARM_UPDATES):
                fleet.update_weights(another_version(weights, 100 + number), digests=False)
            for name in given.states:
                streams = 0 if name == "idle" else 2 * num_trees
                hold_s = HOLD_S if name == "held" else 0.0
                end = background(fleet, streams, 400) if streams else lambda: None
                took, put, receive, skews, own, passes, held = [], [], [], [], [], [], []
                for number in range(UPDATES):
                    version = another_version(weights, number + 1)
                    begun = time.perf_counter()
                    outcome = fleet.update_weights(version, digests=False, hold_s=hold_s)
                    took.append(time.perf_counter() - begun)
                    put.append(puts.pop() - begun)
                    reports = [each["report"] for each in outcome.replicas.values()]
                    skews.append(_spread(report["committed_at"] for report in reports))
                    # the times that the trees themselves report
                    own.append(_spread(report["total_s"] for report in reports))
                    receive.append(max(report["receive_s"] for report in reports))
                    held.append(max(report["held_s"] for report in reports))
                    passes.append(statistics.median(report["replicas"][0]["step_s"] for report in reports))
                end()
                commits = [report["total_s"] for report in reports]
                row[name] = {
                    "update_s": statistics.median(took),
                    "update_s_min": min(took),
                    "update_s_max": max(took),
                    "put_s": statistics.median(put),
                    "receive_s": statistics.median(receive),
                    "over_limit": statistics.median(took) / row["limit_s"],
                    "commit_s": statistics.median(commits),
                    "pass_ms": 1000 * statistics.median(passes),
                    "skew_ms": 1000 * statistics.median(skews),
                    "skew_ms_min": 1000 * min(skews),
                    "skew_ms_max": 1000 * max(skews),
                    "held_ms": 1000 * statistics.median(held),
                    "skew_ms_of_the_trees": 1000 * statistics.median(own),
                }
            rows.append(row)
            print(json.dumps(row), flush=True)
    AsyncFleet._update = update
    return {"rows": rows, "copy_rate": rates}


async def _rate(generate):
    """Tokens per second of STREAMS streams while all of them run. A stream sends its requests one after another;
    generate(number) returns a request's stream."""
    over = time.perf_counter() + WARM_S + WINDOW_S
    begun = over - WINDOW_S

    async def one(number):
        count = 0
        while True:
            stream = generate(number)
            async for chunk in stream:
                now = time.perf_counter()
                if now > over:
                    stream.cancel()
                    return count
                count += len(chunk.tokens) if now > begun else 0

    return sum(await asyncio.gather(*map(one, range(STREAMS)))) / WINDOW_S


def layer(given):
    """Compares clients that talk to the trees directly with the fleet's clients: a null model, 64 streams. Measured in
    pairs; every other pair begins with the fleet."""
    sampling = {"max_new_tokens": 400, "ignore_eos": True, "text_output": False}
    with Fleet("stories", replicas=2, threads=1, name="layer", load_format="null", resources={"CPU": 0.01}) as fleet:
        run_dirs = [place["run_dir"] for place in places(fleet).values()]

        async def connected():
            return [await AsyncClient(run_dir).connect() for run_dir in run_dirs]

        clients = fleet._wait(connected())
        call = fleet._inner._one_call(None, 0)._call
        ways = [
            ("direct", lambda number: clients[number % len(clients)].generate([1, 2, number + 3], **sampling)),
            ("fleet", lambda number: call.generate([1, 2, number + 3], **sampling)),
        ]
        rates = {"direct": [], "fleet": []}
        for _ in range(ROUNDS):  # alternating, so that other load on this machine affects both
            for name, generate in ways:
                rates[name].append(fleet._wait(_rate(generate)))
            ways.reverse()

        async def close():
            for client in clients:
                await client.close()

        fleet._wait(close())
    best = {name: max(each) for name, each in rates.items()}
    median = {name: statistics.median(each) for name, each in rates.items()}
    costs = sorted(1 - through / direct for direct, through in zip(rates["direct"], rates["fleet"]))
    return {
        "tokens_per_s": median,
        "best": best,
        "cost": statistics.median(costs),
        "cost_quartiles": [costs[len(costs) // 4], costs[-1 - len(costs) // 4]],
        "cost_range": [costs[0], costs[-1]],
        "rounds": ROUNDS,
    }


def death(given):
    """Seconds from the death of a stream's tree to the stream's next token."""
    gaps, seen = [], {}
    move, take = CarriedStream._move, CarriedStream._take

    async def timed_move(self, error):
        await move(self, error)
        seen[self.rid] = time.perf_counter()

    def timed_take(self, chunk):
        if self.rid in seen and chunk.tokens:
            gaps[-1].append(time.perf_counter() - seen.pop(self.rid))
        take(self, chunk)

    CarriedStream._move, CarriedStream._take = timed_move, timed_take
    sampling = {"max_new_tokens": 300, "ignore_eos": True, "temperature": 0}
    whole, back_s = 0, []
    with Fleet("stories", replicas=3, threads=1, name="death", resources={"CPU": 0.01}) as fleet:

        async def run():
            tasks = [
                asyncio.ensure_future(fleet._inner.generate(f"Story {number}", sampling, session=str(number)))
                for number in range(STREAMS)
            ]
            await asyncio.sleep(3.0)
            kill(next(iter(fleet._inner._door._members.values()))["pid"])
            return await asyncio.gather(*tasks)

        for _ in range(DEATHS):
            gaps.append([])
            outputs = fleet._wait(run())
            whole += sum(len(output.output_ids) == 300 for output in outputs)
            begun = time.perf_counter()
            fleet.until_ready(timeout=120)
            back_s.append(time.perf_counter() - begun)
    CarriedStream._move, CarriedStream._take = move, take
    return {
        "streams": STREAMS,
        "deaths": DEATHS,
        "whole": whole,
        "moved": [len(each) for each in gaps],
        "gap_s_median": [statistics.median(each) if each else None for each in gaps],
        "gap_s_max": [max(each, default=None) for each in gaps],
        "ready_again_after_streams_s": back_s,
    }


def late(given):
    with Fleet(given.model, replicas=1, threads=1, name="late", resources={"CPU": 0.01}) as fleet:
        weights = weights_of(next(iter(places(fleet).values())))
        update_s = _timed(lambda: fleet.update_weights(another_version(weights, 1), digests=False))
        ready_s = []
        for _ in range(3):
            begun = time.perf_counter()
            fleet.add_replicas(1)
            fleet.until_ready(timeout=300)
            ready_s.append(time.perf_counter() - begun)
    return {"update_s": update_s, "ready_s": ready_s}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("parts", nargs="*", default=[], help=", ".join(PARTS))
    parser.add_argument("--model", default="stories")
    parser.add_argument("--trees", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument(
        "--states",
        nargs="+",
        choices=STATES,
        default=STATES,
        help="states of the trees during updates: idle; with "
        "two streams per tree; or with the streams held until all trees commit (all three)",
    )
    parser.add_argument(
        "--object-store-mib",
        type=int,
        default=512,
        help="size of Ray's object store: a version and two buckets of 64 MiB (512)",
    )
    parser.add_argument("--json", help="also write the results to this file")
    given = parser.parse_args()
    start_ray(object_store_bytes=given.object_store_mib << 20, num_cpus=2, log_to_driver=False)
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True
    ).stdout.strip()
    said = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "load": os.getloadavg()[0],
        "ray": ray.__version__,
        "commit": commit,
        "command": " ".join(sys.argv),
    }
    for part in given.parts or PARTS:
        said[part] = {"calls": calls, "updates": updates, "layer": layer, "death": death, "late": late}[part](given)
        print(json.dumps({part: said[part]}), flush=True)
        if given.json:
            pathlib.Path(given.json).write_text(json.dumps(said, indent=1) + "\n")
    ray.shutdown()


if __name__ == "__main__":
    main()
