#!/usr/bin/env python3
"""What a fleet costs: its calls, its updates and their skew, its layer, a death under streams, a replica that comes late.

    build/fleet-venv/bin/python bench/fleet.py [--model DIR] [--trees 1 2 4 8] [--json FILE] [PART...]

Parts: calls, updates, layer, death, late; none: all. Everything runs on this machine, on a Ray cluster of its own.
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
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "client" / "python"), str(ROOT / "tests" / "fleet" / "on_ray")]
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

import numpy  # noqa: E402
import ray  # noqa: E402

from machines import another_version, kill, places, weights_of  # noqa: E402
from pitstop.aio import AsyncClient  # noqa: E402
from pitstop.fleet.door import CarriedStream  # noqa: E402
from pitstop.fleet.fleet import Fleet, start_ray  # noqa: E402

STREAMS = 64
UPDATES = 16
DEATHS = 5
ROUNDS = 31
PARTS = ("calls", "updates", "layer", "death", "late")


@ray.remote(num_cpus=0)
class Answerer:
    async def answer(self, order):
        return order


@ray.remote(num_cpus=0)
class Asker:
    async def ask(self, others, rounds):
        """Seconds of this actor's thread per call."""
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


def copy_rate():
    """Bytes per second that one thread copies."""
    source = numpy.ones(64 << 20, numpy.uint8)
    target = numpy.zeros_like(source)
    best = min(_timed(lambda: numpy.copyto(target, source)) for _ in range(8))
    return source.nbytes / best


def _spread(values):
    values = list(values)
    return max(values) - min(values)


def _timed(work):
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def background(fleet, count, tokens):
    """So many streams; a function that ends them."""
    fleet_ = fleet._inner

    async def one(number):
        while True:
            await fleet_.generate(f"Story {number}", {"max_new_tokens": tokens, "ignore_eos": True}, session=str(number))

    async def begin():
        return [asyncio.ensure_future(one(number)) for number in range(count)]

    tasks = fleet._wait(begin())

    async def end():
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    return lambda: fleet._wait(end())


def updates(given):
    rows = []
    for num_trees in given.trees:
        with Fleet(given.model, replicas=num_trees, threads=1, name=f"updates{num_trees}", resources={"CPU": 0.01}) as fleet:
            weights = weights_of(next(iter(places(fleet).values())))
            size = sum(array.nbytes for array in weights.values())
            row = {"trees": num_trees, "bytes": size}
            for name, streams in (("idle", 0), ("streams", 2 * num_trees)):
                end = background(fleet, streams, 400) if streams else lambda: None
                took, skews, own, passes = [], [], [], []
                for number in range(UPDATES):
                    version = another_version(weights, number + 1)
                    begun = time.perf_counter()
                    outcome = fleet.update_weights(version, digests=False)
                    took.append(time.perf_counter() - begun)
                    reports = [each["report"] for each in outcome.replicas.values()]
                    skews.append(_spread(report["committed_at"] for report in reports))
                    own.append(_spread(report["total_s"] for report in reports))  # of the trees alone, by their own clocks
                    passes.append(statistics.median(report["replicas"][0]["step_s"] for report in reports))
                end()
                commits = [report["total_s"] for report in reports]
                row[name] = {"update_s": statistics.median(took), "commit_s": statistics.median(commits),
                             "pass_ms": 1000 * statistics.median(passes),
                             "skew_ms": 1000 * statistics.median(skews), "skew_ms_min": 1000 * min(skews),
                             "skew_ms_max": 1000 * max(skews), "skew_ms_of_the_trees": 1000 * statistics.median(own)}
            rows.append(row)
            print(json.dumps(row), flush=True)
    return {"rows": rows, "copy_rate": copy_rate()}


async def _rate(requests):
    begun = time.perf_counter()
    counts = await asyncio.gather(*requests)
    return sum(counts) / (time.perf_counter() - begun)


def layer(given):
    """Tokens per second of 64 streams, null model: clients of the trees themselves, and the fleet's."""
    tokens = 400
    sampling = {"max_new_tokens": tokens, "ignore_eos": True}
    with Fleet("stories", replicas=2, threads=1, name="layer", load_format="null", resources={"CPU": 0.01}) as fleet:
        run_dirs = [place["run_dir"] for place in places(fleet).values()]

        async def direct():
            clients = [await AsyncClient(run_dir).connect() for run_dir in run_dirs]

            async def one(number):
                stream = clients[number % len(clients)].generate([1, 2, number + 3], text_output=False, **sampling)
                return len((await stream.result()).tokens)

            rate = await _rate([one(number) for number in range(STREAMS)])
            for client in clients:
                await client.close()
            return rate

        async def through():
            call = fleet._inner._one_call(None, 0)._call

            async def one(number):
                stream = call.generate([1, 2, number + 3], text_output=False, **sampling)
                return len((await stream.result()).tokens)

            return await _rate([one(number) for number in range(STREAMS)])

        rates = {"direct": [], "fleet": []}
        for _ in range(ROUNDS):  # in turn, so that what else runs here is in both
            rates["direct"].append(fleet._wait(direct()))
            rates["fleet"].append(fleet._wait(through()))
    best = {name: max(each) for name, each in rates.items()}
    median = {name: statistics.median(each) for name, each in rates.items()}
    costs = sorted(1 - through / direct for direct, through in zip(rates["direct"], rates["fleet"]))
    return {"tokens_per_s": median, "best": best, "cost": statistics.median(costs),
            "cost_quartiles": [costs[len(costs) // 4], costs[-1 - len(costs) // 4]], "rounds": ROUNDS}


def death(given):
    """From a death that a stream saw to its next token."""
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
    return {"streams": STREAMS, "deaths": DEATHS, "whole": whole, "moved": [len(each) for each in gaps],
            "gap_s_median": [statistics.median(each) if each else None for each in gaps],
            "gap_s_max": [max(each, default=None) for each in gaps], "ready_again_after_streams_s": back_s}


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
    parser.add_argument("--json", help="write it there, too")
    given = parser.parse_args()
    start_ray(object_store_bytes=512 << 20, num_cpus=2, log_to_driver=False)
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    said = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores", "load": os.getloadavg()[0], "ray": ray.__version__,
        "commit": commit, "command": " ".join(sys.argv),
    }
    for part in given.parts or PARTS:
        said[part] = {"calls": calls, "updates": updates, "layer": layer, "death": death, "late": late}[part](given)
        print(json.dumps({part: said[part]}), flush=True)
        if given.json:
            pathlib.Path(given.json).write_text(json.dumps(said, indent=1) + "\n")
    ray.shutdown()


if __name__ == "__main__":
    main()
