"""Many loads and unloads under load: each answer is of the version that it names, and no memory is
left behind.

At night: PITSTOP_ADAPTER_CYCLES=1000.
"""

import collections
import os
import pathlib
import random
import re
import sys
import threading

import numpy
import pytest

from lora_files import SCALE, config_of, exact_adapter, write_adapter
from process_tree import ROOT, wait_until

sys.path.insert(0, str(ROOT / "client/python"))

import pitstop  # noqa: E402  (after the path)

NUM_CYCLES = int(os.environ.get("PITSTOP_ADAPTER_CYCLES", "40"))
WARM_CYCLES = 12
NUM_NAMES, NUM_PLACES, NUM_CONTENTS = 200, 8, 3
RANK = 32
POOL = 512  # tokens of KV: so few that all of its memory is touched at the beginning
TREE_FLAGS = ("--max-adapters", NUM_PLACES, "--max-running-requests", 8, "--max-total-tokens", POOL, "--no-http")
PROMPT = "Once upon a time there was a little girl who lived in a house near the forest"
NUM_TOKENS = 12


def padded(adapter):
    """The same adapter with a higher rank (rows of zeros), so that a leaked one is noticed."""
    wide = {}
    for name, tensor in adapter.items():
        axis = 0 if ".lora_A." in name else 1
        missing = [(0, RANK - tensor.shape[axis] if at == axis else 0) for at in (0, 1)]
        wide[name] = numpy.pad(tensor, missing)
    return wide


@pytest.fixture(scope="module")
def contents(tmp_path_factory):
    place, made = tmp_path_factory.mktemp("adapters"), []
    for seed in range(1, NUM_CONTENTS + 1):
        adapter = padded(exact_adapter(seed, size=1.0)[0])
        made.append(write_adapter(place / str(seed), adapter, config_of(r=RANK, lora_alpha=int(SCALE * RANK))))
    return made


def held_kib(tree):
    """Resident anonymous memory of each worker."""
    found = {}
    for process in tree.processes:
        if process["kind"] == "tp_worker":
            text = pathlib.Path(f"/proc/{process['pid']}/status").read_text()
            found[process["name"]] = sum(int(kib) for kib in re.findall(r"Rss(?:Anon|Shmem):\s+(\d+)", text))
    return found


def generate(client, adapter):
    return client.generate(
        PROMPT, max_new_tokens=NUM_TOKENS, temperature=0, ignore_eos=True, text_output=False, adapter=adapter
    ).result()


class Asking(threading.Thread):
    """Asks for the loaded names one after another; each answer must fit the content that its digest names."""

    def __init__(self, run_dir, loaded, expected):
        super().__init__(daemon=True)
        self._run_dir, self._loaded, self._expected = run_dir, loaded, expected
        self.is_over, self.counts, self.problem = threading.Event(), collections.Counter(), None

    def run(self):
        rng = random.Random(1)
        with pitstop.Client(self._run_dir) as client:
            while not self.is_over.is_set() and not self.problem:
                name = rng.choice(list(self._loaded) or [""])
                try:
                    chunk = generate(client, name)
                except pitstop.PitstopError as error:
                    if error.code != "not_found" or f"'{name}'" in error.message.partition("; ")[2]:
                        self.problem = f"{name}: {error}"
                    self.counts["not loaded"] += 1
                    continue
                digest = chunk.adapter.digest if chunk.adapter else None
                if (chunk.adapter.name if chunk.adapter else "") != name or chunk.tokens != self._expected[digest]:
                    self.problem = f"{name} gave {chunk.tokens} and says {chunk.adapter}"
                self.counts["answers"] += 1


def test_P8_loads_and_unloads_under_load_leave_nothing_behind(shared_tree, contents):
    with pitstop.Client(shared_tree.run_dir) as client:
        client.generate(
            [5] * (POOL - 20), max_new_tokens=10, temperature=0, ignore_eos=True, text_output=False
        ).result()
        expected = {None: generate(client, "").tokens}
        for directory in contents:
            digest = client.load_adapter("first", str(directory))["digest"]
            expected[digest] = generate(client, "first").tokens
        client.unload_adapter("first")
        assert len({tuple(tokens) for tokens in expected.values()}) == NUM_CONTENTS + 1
        adapter_kib = (contents[0] / "adapter_model.safetensors").stat().st_size >> 10
        loaded, before = collections.OrderedDict(), {}
        threads = [Asking(shared_tree.run_dir, loaded, expected) for _ in range(2)]
        for thread in threads:
            thread.start()
        rng = random.Random(2)
        try:
            for cycle in range(NUM_CYCLES):
                if cycle == WARM_CYCLES:
                    before = held_kib(shared_tree)
                name = f"n{rng.randrange(NUM_NAMES)}"
                if name not in loaded and len(loaded) == NUM_PLACES:
                    client.unload_adapter(loaded.popitem(last=False)[0])
                client.load_adapter(name, str(rng.choice(contents)))
                loaded[name] = True
        finally:
            for thread in threads:
                thread.is_over.set()
            for thread in threads:
                thread.join(60)
        assert [thread.problem for thread in threads] == [None, None]
        assert sum(thread.counts["answers"] for thread in threads) > 0
        assert len(client.status()["replicas"][0]["adapters"]) == NUM_PLACES
        for name in loaded:
            client.unload_adapter(name)
        assert generate(client, "").tokens == expected[None]
    # A worker frees the memory of a version between two steps, and may have orders to do so ahead.
    for name, kib in before.items():
        most = kib - (NUM_PLACES - 2) * adapter_kib
        wait_until(
            lambda name=name, most=most: held_kib(shared_tree)[name] < most, f"{name} to hold less than {most} KiB"
        )
