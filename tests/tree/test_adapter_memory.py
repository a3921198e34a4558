"""--adapter-memory: more adapters than a worker has memory for. Each answer has the very tensors of the digest that it
names; a request whose adapter is on its way waits, and others do not.
"""

import collections
import contextlib
import json
import os
import pathlib
import random
import sys
import threading
import time

import pytest

from adapter_loads import load, tokens_with
from http_client import Http
from lora_files import exact_adapter, write_adapter
from process_tree import ROOT, live_tree, wait_until
from test_adapter_restarts import refusal
from test_restart import crash
from test_updates import GREEDY

sys.path.insert(0, str(ROOT / "client/python"))

import pitstop  # noqa: E402  (after the path)

PROMPT = "Once upon a time there was a little girl who lived in a house near the forest"
NUM_NAMES, NUM_PLACES, NUM_CONTENTS = 200, 8, 5
NUM_ASKED = int(os.environ.get("PITSTOP_ADAPTER_REQUESTS", "400"))
NUM_THREADS, NUM_TOKENS = 4, 16


@pytest.fixture(scope="module")
def contents(tmp_path_factory):
    place = tmp_path_factory.mktemp("adapters")
    return [write_adapter(place / str(seed), exact_adapter(seed, size=1.0)[0]) for seed in range(1, NUM_CONTENTS + 1)]


def bytes_of_one(place, directory, *flags):
    """The memory that a worker needs for the adapter, as a refusal says."""
    with live_tree(place / "narrow", "--adapter-memory", 1, *flags) as tree:
        update = {"adapter": "a", "source": {"kind": "disk", "path": str(directory)}}
        refused = tree.door("admin").call("update_weights", update=update)
        assert refused["code"] == "resource_exhausted" and "(--adapter-memory)" in refused["message"], refused
        return int(refused["message"].partition("'a' needs ")[2].split()[0])


def generate(client, adapter, **more):
    return client.generate(
        PROMPT, max_new_tokens=NUM_TOKENS, temperature=0, ignore_eos=True, text_output=False, adapter=adapter, **more
    )


class Versions:
    """The digests that each name was loaded with, in order, and the number of them known to be in effect."""

    def __init__(self):
        self.digests, self.num_done = collections.defaultdict(list), collections.Counter()

    def load(self, admin, name, directory, digest):
        self.digests[name].append(digest)
        assert load(admin, directory, name=name)["digest"] == digest
        self.num_done[name] = len(self.digests[name])


class Asking(threading.Thread):
    """Asks for names at random; each answer must be of a version that served the name meanwhile."""

    def __init__(self, run_dir, seed, versions, expected):
        super().__init__(daemon=True)
        self._run_dir, self._versions, self._expected = run_dir, versions, expected
        self._random, self.num, self.problem = random.Random(seed), 0, None

    def run(self):
        with pitstop.Client(self._run_dir) as client:
            while self.num < NUM_ASKED // NUM_THREADS and not self.problem:
                name = f"n{self._random.randrange(NUM_NAMES)}"
                num_before = self._versions.num_done[name]
                chunk = generate(client, name).result(timeout=120)
                may_be = self._versions.digests[name][num_before - 1 :]
                if chunk.adapter.digest not in may_be or chunk.tokens != self._expected[chunk.adapter.digest]:
                    self.problem = f"{name} gave {chunk.tokens} and says {chunk.adapter}; it had {may_be}"
                self.num += 1


@pytest.mark.parametrize("flags", ((), ("--tp", 2), ("--dp", 2)), ids=("one", "tp2", "dp2"))
def test_P2_200_names_over_8_places_under_load(start_tree, place, contents, flags):
    memory = NUM_PLACES * bytes_of_one(place, contents[0], *flags)
    tree = start_tree("--max-adapters", NUM_NAMES, "--adapter-memory", memory, "--max-running-requests", 8, *flags)
    admin = tree.door("admin")
    digests, expected, versions = [], {}, Versions()
    for directory in contents:
        digests.append(load(admin, directory, name="n0")["digest"])
        expected[digests[-1]] = tokens_with(tree, "n0")
    assert len({tuple(tokens) for tokens in expected.values()}) == NUM_CONTENTS
    pick = random.Random(1)

    def load_some(name):
        i = pick.randrange(NUM_CONTENTS)
        versions.load(admin, name, contents[i], digests[i])

    for i in range(NUM_NAMES):
        load_some(f"n{i}")
    threads = [Asking(tree.run_dir, seed, versions, expected) for seed in range(NUM_THREADS)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        load_some(f"n{pick.randrange(NUM_NAMES)}")
    assert [thread.problem for thread in threads] == [None] * NUM_THREADS
    for replica in admin.call("status")["replicas"]:
        said = replica["adapters"]
        assert len(said) == NUM_NAMES
        assert 1 <= sum(not each.get("evicted", False) for each in said) <= NUM_PLACES
        assert sum(each.get("evictions_total", 0) for each in said) > NUM_NAMES - NUM_PLACES
        for each in said:
            assert each["adapter"]["digest"] == versions.digests[each["adapter"]["name"]][-1]


@pytest.fixture
def narrow(start_tree, place, contents, monkeypatch):
    """narrow(*flags): a tree with room for one adapter, in which "a" and "b" are loaded, and "a" was evicted; and its
    directory of faults."""
    faults = place / "faults"
    faults.mkdir()
    monkeypatch.setenv("PITSTOP_FAULT_DIR", str(faults))

    def start(*flags):
        tree = start_tree("--adapter-memory", bytes_of_one(place, contents[0], *flags), *flags)
        admin = tree.door("admin")
        load(admin, contents[0], name="a")
        tree.expected = {"a": tokens_with(tree, "a")}
        load(admin, contents[1], name="b")
        tree.expected["b"] = tokens_with(tree, "b")
        assert [each["adapter"]["name"] for each in status_of(admin) if each.get("evicted")] == ["a"]
        return tree, faults

    return start


def status_of(admin):
    return admin.call("status")["replicas"][0]["adapters"]


def test_a_request_whose_adapter_is_on_its_way_waits_and_others_do_not(narrow):
    tree, faults = narrow()
    (faults / "tp_worker[0.0]@restore adapter").write_text("delay 3000")
    door = tree.door()
    waits = door.start(PROMPT, max_new_tokens=16, adapter="a", **GREEDY)
    tree.door("admin").call("status")
    began = time.monotonic()
    assert door.generate(PROMPT, max_new_tokens=16, **GREEDY).finish["reason"] == "length"
    assert time.monotonic() - began < 2.5, "it did not wait for the other's adapter"
    (output,) = door.finish([waits])
    assert output.tokens == tree.expected["a"]
    assert tokens_with(tree, "b") == tree.expected["b"]


@pytest.mark.parametrize(
    "point", ("receive worker_adapters", "evict adapter", "restore adapter", "send worker_restored")
)
def test_P2_both_adapters_come_back_after_a_worker_dies_in_a_move(narrow, point):
    """The tree comes back with both adapters."""
    tree, faults = narrow("--tp", 2, "--restart")
    digests = {each["adapter"]["name"]: each["adapter"]["digest"] for each in status_of(tree.door("admin"))}
    (faults / f"tp_worker[0.1]@{point}").write_text("kill")
    output = tree.door().generate(PROMPT, max_new_tokens=16, adapter="a", **GREEDY)
    assert output.finish["code"] == "unavailable", output.finish
    assert tree.launcher.stdout.readline(), tree.log()
    admin = tree.door("admin")
    assert {each["adapter"]["name"]: each["adapter"]["digest"] for each in status_of(admin)} == digests
    for name, tokens in tree.expected.items():
        assert tokens_with(tree, name) == tokens


def change_evicted_bytes(tree, worker=0):
    """As another program that writes to the file of a worker's evicted adapter."""
    pid = [process["pid"] for process in tree.processes if process["kind"] == "tp_worker"][worker]
    files = [file for file in pathlib.Path(f"/proc/{pid}/fd").iterdir() if os.readlink(file).endswith(" (deleted)")]
    changed = [file for file in files if str(tree.run_dir) in os.readlink(file)]
    assert len(changed) == 1, [os.readlink(file) for file in files]
    with open(changed[0], "r+b") as file:
        file.seek(64)
        file.write(b"\x01")


def test_P2_bytes_that_changed_meanwhile_are_an_error_that_names_the_version(narrow):
    tree, _ = narrow()
    (evicted,) = (each["adapter"] for each in status_of(tree.door("admin")) if each.get("evicted"))
    change_evicted_bytes(tree)
    finish = tree.door().generate(PROMPT, max_new_tokens=1, adapter="a", **GREEDY).finish
    assert finish["code"] == "data_loss" and "has changed since it was written" in finish["message"], finish
    assert f"with digest {evicted['digest']} is lost; load it again" in refusal(tree, "a")
    assert tokens_with(tree, "b") == tree.expected["b"]
    status = tree.door("admin").call("status")["replicas"][0]
    assert [each["adapter"] for each in status["lost_adapters"]] == [evicted]


@pytest.mark.parametrize("worker", (0, 1))
def test_the_page_shows_what_serves_beside_what_one_replica_has_lost(narrow, worker):
    tree, _ = narrow("--dp", 2, "--port", 0)
    change_evicted_bytes(tree, worker)
    codes = [
        tree.door().generate(PROMPT, max_new_tokens=1, adapter="a", replica=replica, **GREEDY).finish.get("code")
        for replica in (0, 1)
    ]
    assert sorted(codes, key=str) == [None, "data_loss"]
    replicas = tree.door("admin").call("status")["replicas"]
    (served,) = (each for replica in replicas for each in replica["adapters"] if each["adapter"]["name"] == "a")
    with contextlib.closing(Http(tree.url).connect()) as connection:
        connection.request("GET", "/status/events")
        event = json.loads(connection.getresponse().readline().removeprefix(b"data: "))
    shown = {each["name"]: each for each in event["adapters"]["shown"]}
    assert (shown["a"]["lost"], shown["a"]["digest"]) == (1, served["adapter"]["digest"])
    assert shown["a"]["requests"] == served["requests_total"] and "lost" not in shown["b"]


def lose(tree, worker):
    """The replica of that worker loses "a"."""
    change_evicted_bytes(tree, worker)
    for replica in (0, 1):
        tree.door().generate(PROMPT, max_new_tokens=1, adapter="a", replica=replica, **GREEDY)


@pytest.mark.parametrize("worker", (0, 1))
def test_an_adapter_that_one_replica_has_lost_is_not_loaded(narrow, contents, worker):
    """Every call that asks says so, and the load that repairs it needs no option."""
    tree, _ = narrow("--dp", 2, "--port", 0)
    http = Http(tree.url)

    def names():
        with pitstop.Engine(run_dir=str(tree.run_dir)) as engine:
            in_python = [each.name for each in engine.adapters()]
        cards = http.get("/v1/models").json["data"]
        assert in_python == [card["id"] for card in cards if card["parent"] is not None]
        counted = http.post(
            "/v1/messages/count_tokens",
            {"model": "a", "messages": [{"role": "user", "content": PROMPT}], "chat_template": "x"},
        )
        assert (counted.status == 404) == ("a" not in in_python), counted
        return in_python

    assert names() == ["a", "b"]
    lose(tree, worker)
    assert names() == ["b"]
    assert http.get("/v1/models/a").status == 404
    again = http.post("/v1/load_lora_adapter", {"lora_name": "a", "lora_path": str(contents[0])})
    assert again.status == 200, again
    assert names() == ["a", "b"]
    assert tokens_with(tree, "a") == tree.expected["a"]


@pytest.mark.parametrize("worker", (0, 1))
def test_an_unload_that_gives_up_a_loss_on_one_replica_succeeds(narrow, worker):
    tree, _ = narrow("--dp", 2)
    (evicted,) = (each["adapter"] for each in status_of(tree.door("admin")) if each.get("evicted"))
    lose(tree, worker)
    admin = tree.door("admin")
    reply = admin.call("unload_adapter", name="a")
    assert reply["ok"], reply
    note = f"had lost version {evicted['version']} with digest {evicted['digest']}, and has given it up"
    assert reply["message"] == f"replica {worker}: {note}"
    for replica in admin.call("status")["replicas"]:
        assert [each["adapter"]["name"] for each in replica["adapters"]] == ["b"]
        assert "lost_adapters" not in replica
    assert admin.call("unload_adapter", name="a")["code"] == "not_found"
    said = admin.call("status")["adapter_updates"]
    assert [(each["adapter"], each["ok"]) for each in said[-2:]] == [("a", True), ("a", False)]


def test_an_eviction_that_finds_no_room_on_the_disk_keeps_it_in_memory(place, contents, mount_tmpfs):
    """The run directory, which gets the evicted adapters, is full."""
    small = mount_tmpfs(1)
    memory = bytes_of_one(place, contents[0])
    with live_tree(small / "tree", "--adapter-memory", memory) as tree:
        admin = tree.door("admin")
        load(admin, contents[0], name="a")
        first = tokens_with(tree, "a")
        left = os.statvfs(small).f_bavail * 4096
        (small / "filler").write_bytes(bytes(left - memory // 2))
        load(admin, contents[1], name="b")
        second = tokens_with(tree, "b")
        wait_until(lambda: "adapter 'a' stays in memory: cannot write the file" in tree.log(), "the worker to say so")
        assert tokens_with(tree, "a") == first != second == tokens_with(tree, "b")

        def both_are_there():
            said = status_of(admin)
            return all(not each.get("evicted", False) and each["bytes"] > 0 for each in said) and len(said) == 2

        wait_until(both_are_there, "both to be counted in memory")
        refused = admin.call(
            "update_weights", update={"adapter": "c", "source": {"kind": "disk", "path": str(contents[2])}}
        )
        assert refused["code"] == "resource_exhausted" and "could not be evicted: cannot write" in refused["message"], (
            refused
        )


def test_P2_pinned_adapters_stay_and_are_pinned_after_a_restart(start_tree, place, contents):
    tree = start_tree("--restart", "--adapter-memory", 2 * bytes_of_one(place, contents[0]))
    admin = tree.door("admin")
    load(admin, contents[0], name="a", adapter_pinned=True)
    for name in ("b", "c", "d"):
        load(admin, contents[1], name=name)
        tokens_with(tree, name)
    for _ in (1, 2):
        said = {each["adapter"]["name"]: each for each in status_of(admin)}
        assert said["a"]["pinned"] and not said["a"].get("evicted", False)
        assert sum(not each.get("evicted", False) for each in said.values()) == 2
        load(admin, contents[2], name="e", adapter_pinned=True)
        third = admin.call(
            "update_weights", update={"adapter": "f", "source": {"kind": "disk", "path": str(contents[2])}}
        )
        assert third["code"] == "resource_exhausted" and "bytes of pinned adapters" in third["message"], third
        assert tree.door().generate(PROMPT, max_new_tokens=1, adapter="b").finish["code"] == "resource_exhausted"
        assert admin.call("unload_adapter", name="e")["ok"]
        _, _, admin = crash(tree)
