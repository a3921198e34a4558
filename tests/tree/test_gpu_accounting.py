"""P8 in each --update-mode on the GPU in software. `status` reports the device and host memory that
the driver has allocated for the worker: at the start, in a stage, after it, released and resumed.
The start keeps its plan. The memory of steps' graphs is reported, too. The code of kernels is on
the GPU before its memory is divided.

The driver's side is read from outside: each piece of its memory is a file of the worker's, named by its kind
(tests/emulated_gpu/memory.cpp), and the machine's file has the worker's total."""

import os
import pathlib
import re

import pytest

import nccl_trainer
import pitstop
from cuda_sender import Sender
from gpu_tree import BUILD, gpu, needs_gpu  # noqa: F401
from process_tree import run, wait_until
from test_gpu_memory_cycles import gpu_bytes
from test_gpu_nccl import NAMES, held_by, meet, part
from test_gpu_updates import FULL, greedy
from test_updates import BARD, DIGESTS, update
from test_weights_broadcasts import in_thread

pytestmark = needs_gpu
ROOMY = 160 << 20  # of the GPU: two copies and the KV of a whole context fit
FRACTION = 0.97
PAGE = 4096  # bytes of a page of host memory, in which page-locked memory is counted
MODES = ("staged", "host", "lend", "direct", "auto")
NUMBERS = re.compile(
    r"(\d+) bytes were free, of which (\d+) may be used; weights and activations take (\d+), "
    r"a second copy (\d+), (\d+) pages of KV (\d+); in host memory (\d+) are free, and a version takes (\d+)"
)


def driver_bytes(pid):
    """{kind: bytes}. chunk: mapped ranges; gpu: other memory of the GPU; context, graph: the driver's own; code,
    library: our kernels and those of libraries; nccl: NCCL's; pinned: page-locked memory of the host."""
    found = dict.fromkeys(("chunk", "gpu", "context", "graph", "code", "library", "nccl", "pinned"), 0)
    for path in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        try:
            name = re.match(r"/memfd:pitstop_emulated_(\w+)", os.readlink(path))
            if name:
                found[name.group(1)] += path.stat().st_size
        except FileNotFoundError:  # closed meanwhile
            pass
    return found


def num_locked(pid):
    """The number of page-locked pieces of host memory."""
    links = [path.readlink() for path in pathlib.Path(f"/proc/{pid}/fd").iterdir()]
    return sum(str(link).startswith("/memfd:pitstop_emulated_pinned") for link in links)


class Books:
    """A worker's memory as the driver counts it, and as `status` reports it."""

    def __init__(self, tree, machine):
        self._admin, self._machine = tree.door("admin"), machine
        (self._pid,) = tree.pids("tp_worker")
        worker = self.worker()
        numbers = map(int, NUMBERS.search(worker["update_mode_why"]).groups())
        self.free, self.budget, self.others, self.copy, pages, kv, _, self.host_copy = numbers
        self.page, self.whole_context = kv // pages, kv
        self.mode = worker["update_mode"]
        # The buffers of steps and copies exist from the start and do not change.
        at_start, said = self.driver(), self.said()
        self._fixed = at_start["chunk"] - sum(device for device, _ in said.values())
        self._gpu, self._pinned = at_start["gpu"], at_start["pinned"]
        self.code, self.context = at_start["code"], at_start["context"]
        assert self.code > 0 and at_start["context"] > 0 and self._fixed + self._gpu <= self.others

    def worker(self):
        return self._replica()["workers"][0]

    def num_locked(self):
        return num_locked(self._pid)

    def num_pages(self):
        return self._replica()["pages_total"]

    def _replica(self):
        return self._admin.call("status")["replicas"][0]

    def driver(self):
        found = driver_bytes(self._pid)
        total = gpu_bytes(self._machine)[self._pid]
        assert total == sum(bytes for kind, bytes in found.items() if kind != "pinned"), "the driver's own books"
        assert total - found["context"] - found["code"] - found["nccl"] <= self.budget, (
            "never more than the start said may be taken"
        )
        assert found["library"] <= self.free // 256, "what the start left to libraries"
        assert found["nccl"] <= self.free - self.budget, "what it left to a trainer's group"
        return found

    def said(self):
        """{tag: (device bytes, host bytes)}"""
        return {each["tag"]: (each["resident_bytes"], each.get("host_bytes", 0)) for each in self._replica()["memory"]}

    def graphs_agree(self, more_than):
        """Waits until status reports the driver's bytes of graphs, and more than `more_than`; returns them."""

        def is_said():
            return self.worker()["graph_bytes"] == self.driver()["graph"] > more_than

        wait_until(is_said, f"status to say what graphs take, more than {more_than}: {self.worker()}")
        return self.worker()["graph_bytes"]

    def agree(self, weights, kv_cache, staged_on_host=0, kept=0):
        """Waits until status reports these numbers, within a second of the change. The driver must have allocated
        exactly as much."""
        expected = {"weights": (weights, staged_on_host + kept), "kv_cache": (kv_cache, 0)}
        wait_until(lambda: self.said() == expected, f"status to say {expected}, not {self.said()}")
        found = self.driver()
        assert found["code"] == self.code, "no kernel is brought to the GPU by its first launch"
        assert found["chunk"] - self._fixed == weights + kv_cache and found["gpu"] == self._gpu, (found, expected)
        assert found["pinned"] - self._pinned == -(-staged_on_host // PAGE) * PAGE, (found, expected)


@pytest.fixture
def tight(gpu, start_tree, place):
    """A GPU that has room for a second copy or for the KV of a whole context, not for both."""
    gpu(memory=ROOMY)
    tree = start_tree(*FULL, "direct", "--mem-fraction", FRACTION)
    books = Books(tree, place / "machine")
    tree.stop()
    return books.context + books.code + int((books.others + books.copy + books.whole_context / 2) / FRACTION)


@pytest.mark.parametrize("mode", MODES)
def test_P8_status_and_the_driver_say_the_same_bytes_through_updates_and_releases(
    gpu, start_tree, place, reference, tight, mode
):
    comes_to = "staged" if mode == "auto" else mode
    gpu(memory=ROOMY if comes_to == "staged" else tight)
    tree = start_tree(*FULL, mode, "--mem-fraction", FRACTION)
    door, admin = tree.door(), tree.door("admin")
    books = Books(tree, place / "machine")
    assert books.mode == comes_to
    assert books.worker()["graph_bytes_max"] == books.free // 256
    one, kv = books.copy, books.said()["kv_cache"][0]
    on_host = books.host_copy if mode == "host" else 0
    two = 2 * one if comes_to == "staged" else one
    assert kv > 0
    books.agree(one, kv)  # neither a second copy nor host memory exists before it is needed
    locked = books.num_locked()
    if mode == "direct":
        assert update(admin, BARD, mode="direct")["ok"]
    else:
        assert admin.call("stage_weights", update={"source": {"kind": "disk", "path": BARD}})["ok"]
        lent = mode == "lend"
        books.agree(2 * one if lent else two, 0 if lent else kv, on_host)
        assert mode != "host" or books.num_locked() >= locked + 8, "steps go on between the pieces"
        assert admin.call("commit_weights")["ok"]
    books.agree(two, kv, on_host)
    assert greedy(door, reference, "bard")
    assert admin.call("release_memory", keep_weights=True)["ok"]
    kept = books.said()["weights"][1]
    assert kept >= books.worker()["weight_bytes"]
    books.agree(0, 0, kept=kept)
    assert admin.call("resume_memory")["ok"]
    books.agree(one, kv)
    assert greedy(door, reference, "bard")
    assert admin.call("release_memory", tags=["weights"])["ok"]
    books.agree(0, kv)
    assert admin.call("resume_memory")["ok"]
    books.agree(one, kv)
    assert update(admin, BARD)["digest"] == DIGESTS["bard"]["digest"]
    books.agree(one, kv)
    assert greedy(door, reference, "bard")


def test_status_reports_the_memory_of_graphs(gpu, start_tree, place, reference):
    """Each copy of the weights has graphs of its own. Without graphs no memory is taken or reserved."""
    tree = start_tree(*FULL, "staged")
    door, admin = tree.door(), tree.door("admin")
    books = Books(tree, place / "machine")
    assert greedy(door, reference, "stories")
    first = books.graphs_agree(more_than=0)
    assert first <= books.worker()["graph_bytes_max"]
    assert update(admin, BARD)["ok"]
    assert greedy(door, reference, "bard")
    assert books.graphs_agree(more_than=first) <= books.worker()["graph_bytes_max"]
    tree.stop()
    tree = start_tree(*FULL, "staged", "--no-graphs")
    books = Books(tree, place / "machine")
    assert greedy(tree.door(), reference, "stories")
    assert books.worker()["graph_bytes"] == books.worker()["graph_bytes_max"] == 0


def test_kv_gets_the_memory_that_a_mode_leaves(gpu, start_tree, place):
    """In each mode but `staged` KV has the second copy's room."""
    pages = {}
    for mode in MODES:
        gpu(memory=ROOMY)
        tree = start_tree(*FULL, mode, "--mem-fraction", FRACTION)
        books = Books(tree, place / "machine")
        pages[mode] = books.num_pages()
        tree.stop()
    assert pages["staged"] == pages["auto"] and pages["host"] == pages["lend"] == pages["direct"], pages
    in_its_place = (pages["host"] - pages["staged"]) * books.page
    assert abs(in_its_place - books.copy) <= books.page, (pages, books.page, books.copy)


def test_a_model_of_which_two_copies_do_not_fit_is_updated_in_each_mode_but_staged(
    gpu, start_tree, place, reference, tight
):
    gpu(memory=tight)
    flags = ("--mem-fraction", FRACTION)
    done = run("serve", "--no-http", "--run-dir", place / "staged", *FULL, "staged", *flags)
    assert done.returncode == 3, (done.returncode, done.stderr)
    found = NUMBERS.search(done.stderr)
    assert found and "--update-mode host, lend and direct do without" in done.stderr, done.stderr
    free, budget, others, copy, _, kv, _, _ = map(int, found.groups())
    assert tight >= free >= budget and others + copy <= budget < others + copy + kv, found.groups()
    for mode in ("host", "lend", "direct", "auto"):
        tree = start_tree(*FULL, mode, *flags)
        admin = tree.door("admin")
        chosen = admin.call("status")["replicas"][0]["workers"][0]["update_mode"]
        assert chosen == mode or (mode == "auto" and chosen != "staged"), chosen
        reply = update(admin, BARD, mode="direct" if chosen == "direct" else "staged")
        assert reply["ok"] and reply["digest"] == DIGESTS["bard"]["digest"], reply
        assert greedy(tree.door(), reference, "bard")
        tree.stop()


def test_first_launches_need_no_memory_on_a_gpu_that_others_fill_after_the_start(gpu, start_tree, reference):
    """Another program takes all free memory before the first request: no launch may need memory for its kernel."""
    gpu(memory=ROOMY)
    tree = start_tree(*FULL, "direct", "--mem-fraction", 0.9)
    door, admin = tree.door(), tree.door("admin")
    with Sender(BUILD, BARD) as other:
        assert other.ask("take")["bytes"] > 0
        other.ask("take", piece=4096)
        assert greedy(door, reference, "stories")
        drawn = {"temperature": 0.8, "top_p": 0.9, "top_k": 40, "min_p": 0.01, "repetition_penalty": 1.1}
        output = door.generate("Once", max_new_tokens=4, ignore_eos=True, logprobs={"enabled": True}, **drawn)
        assert output.finish["reason"] == "length", output.finish
        assert update(admin, BARD, mode="direct")["ok"]
        assert greedy(door, reference, "bard")


def test_a_trainers_group_joins_a_gpu_of_which_kv_has_all_that_it_may(gpu, start_tree, place):
    """NCCL allocates memory on the worker's GPU, too, when the group joins: more than the unused part of the steps'
    memory."""
    nccl = 7 << 20
    gpu(memory=1 << 30, nccl=nccl)
    tree = start_tree(*FULL, "direct", "--mem-fraction", 1.0, "--no-graphs")
    books = Books(tree, place / "machine")
    assert books.budget <= books.free - nccl
    with pitstop.Client(tree.run_dir) as client, nccl_trainer.Trainer(BUILD, BARD) as trainer:
        meet(client, trainer)
        changed = in_thread(client.update_weights, source=held_by("w", format="flattened"), mode="direct")
        assert trainer.ask("join", world_size=2) == {}
        trainer.ask("broadcast", names=NAMES, packs=[len(NAMES)])
        assert changed()["digest"] == DIGESTS["bard"]["digest"]
        assert books.driver()["nccl"] == nccl
        part(client, trainer)
        assert books.driver()["nccl"] == 0
