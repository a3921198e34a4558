#!/usr/bin/env python3
"""Measures the tokens recomputed for agents whose tokens are twice what the KV pool can hold.

    bench/agents.py --build build/cpu [--agents 16] [--turns 20] [--tool-tokens 500] [--output 64] [--tool-s 0.2]
                    [--json out.json]

Each agent sends its turns in order: all tokens so far and the result of a tool. Between two turns its tool takes up to twice
--tool-s. The model has random weights. The pool holds half of the tokens that all agents have after their last turns.

sessions  each agent names its session (`session_id`)
requests  the same turns without sessions
alone     the same sessions in a pool with room for all agents

The ratio of a row is the number of computed tokens divided by the number of new tokens. Computed are prompt tokens that
no cache had, recomputed tokens, and output tokens.
"""

import argparse
import concurrent.futures
import json
import pathlib
import random
import socket
import subprocess
import tempfile
import time
import urllib.request

from routes import Meter, machine
from transfer import ROOT, Tree

VOCAB = 2048


def post(address, route, body):
    request = urllib.request.Request(
        f"http://{address}{route}", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=3600) as answer:
        text = answer.read()
    return json.loads(text) if text else None  # /close_session answers nothing


class Agent:
    """Sends the turns of one agent, and counts the tokens that were computed for it."""

    def __init__(self, at, address, options, has_session):
        self._random = random.Random(at)
        self._address = address
        self._options = options
        self._fields = {"session_id": f"agent-{at}"} if has_session else {}
        self._tokens = []
        self.computed = 0
        self.longest_wait = 0.0

    def run(self):
        for turn in range(self._options.turns):
            if turn > 0:
                time.sleep(self._random.uniform(0, 2 * self._options.tool_s))
            self._tokens += [self._random.randrange(VOCAB - 1) for _ in range(self._options.tool_tokens)]
            begin = time.perf_counter()
            sampling = {"max_new_tokens": self._options.output, "temperature": 0, "ignore_eos": True}
            answer = post(
                self._address, "/generate", {"input_ids": self._tokens, "sampling_params": sampling, **self._fields}
            )
            self.longest_wait = max(self.longest_wait, time.perf_counter() - begin)
            told = answer["meta_info"]
            self.computed += told["prompt_tokens"] - told["cached_tokens"] + told["completion_tokens"]
            self._tokens += answer["output_ids"]

    def end(self):
        if self._fields:
            post(self._address, "/close_session", self._fields)


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def recomputed(address):
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    name = "pitstop_recomputed_tokens_total"
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name))


def run_row(options, model, place, pool_tokens, has_session):
    port = free_port()
    address = f"127.0.0.1:{port}"
    flags = ["--port", port, "--max-total-tokens", pool_tokens, "--session-memory", 1]
    flags += ["--max-running-requests", 2 * options.agents]
    with Tree(options.build, model, place, *flags) as tree:
        agents = [Agent(at, address, options, has_session) for at in range(options.agents)]

        def run_all():
            with concurrent.futures.ThreadPoolExecutor(len(agents)) as pool:
                for done in [pool.submit(agent.run) for agent in agents]:
                    done.result()

        cpu, wall, _ = Meter(tree.launcher.pid).run(run_all)
        again = recomputed(address)
        for agent in agents:
            agent.end()
    new = options.agents * options.turns * (options.tool_tokens + options.output)
    return {
        "pool_tokens": pool_tokens,
        "new_tokens": new,
        "computed_ratio": round((sum(agent.computed for agent in agents) + again) / new, 3),
        "seconds": round(wall, 1),
        "cpu_seconds": round(cpu, 1),
        "longest_turn_s": round(max(agent.longest_wait for agent in agents), 1),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=lambda path: pathlib.Path(path).resolve(), default=ROOT / "build/cpu")
    parser.add_argument("--agents", type=int, default=16)
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--tool-tokens", type=int, default=500)
    parser.add_argument("--output", type=int, default=64)
    parser.add_argument("--tool-s", type=float, default=0.2)
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    final = options.turns * (options.tool_tokens + options.output)
    results = machine() | {
        "command": "bench/agents.py",
        "agents": options.agents,
        "turns": options.turns,
        "tool_tokens": options.tool_tokens,
        "output_tokens": options.output,
        "tool_s": options.tool_s,
    }
    with tempfile.TemporaryDirectory() as directory:
        place = pathlib.Path(directory)
        model = place / "model"
        subprocess.run(
            [options.build / "bin/pitstop_make_model", "custom", model, "--family", "llama", "--vocab", str(VOCAB)]
            + ["--hidden", "128", "--ffn", "256", "--layers", "2", "--heads", "2", "--kv-heads", "1"]
            + ["--head-dim", "64", "--context", str(2 * final)],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        rows = {"sessions": (2, True), "requests": (2, False), "alone": (1, True)}
        for name, (share, has_session) in rows.items():
            (place / name).mkdir()
            pool_tokens = (options.agents * final // share + 255) // 256 * 256
            results[name] = run_row(options, model, place / name, pool_tokens, has_session)
            print(name, json.dumps(results[name]), flush=True)
    if options.json:
        options.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
