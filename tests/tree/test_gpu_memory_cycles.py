"""P8 over many releases and resumes on the GPU in software, while another process takes the memory and returns it each
time: no memory of the GPU or of the host, no mapping and no descriptor is left behind.

20 rounds always, 1,000 with launch/test --emulated-gpu-all.
"""

import os
import pathlib
import re
import struct

import pytest

from cuda_sender import Sender
from gpu_tree import BUILD, CUDA, gpu, needs_gpu  # noqa: F401
from test_gpu_updates import greedy
from test_updates import BARD, DIGESTS

pytestmark = needs_gpu
ALL = "PITSTOP_EMULATED_GPU_ALL" in os.environ
NUM_ROUNDS = 1000 if ALL else 20
WARM_UP = 5  # rounds until everything that is made only once exists
HOST_SLACK = 8 << 20  # allocators keep some; one page per round would be 4 MiB at night


def gpu_bytes(machine):
    """{pid: bytes} from the machine's file (tests/emulated_gpu/machine.cpp)."""
    entries = struct.iter_unpack("<4q", pathlib.Path(machine).read_bytes())
    return {pid: num_bytes for pid, _, _, num_bytes in entries if pid != 0}


def host_state(pid):
    """Memory in bytes (page-locked memory is shared here, and counts), mappings, descriptors."""
    process = pathlib.Path(f"/proc/{pid}")
    status = (process / "status").read_text()
    kib = sum(int(re.search(rf"{name}:\s+(\d+)", status).group(1)) for name in ("RssAnon", "RssShmem"))
    return 1024 * kib, len((process / "maps").read_text().splitlines()), len(list((process / "fd").iterdir()))


@pytest.mark.timeout(4 * 3600 if ALL else 900)
def test_P8_many_releases_and_resumes_beside_another_allocator_leave_nothing(gpu, start_tree, place, reference):
    gpu(memory=160 << 20)
    tree = start_tree(*CUDA)
    door, admin = tree.door(), tree.door("admin")
    (pid,) = tree.pids("tp_worker")
    assert greedy(door, reference, "stories")
    before = {}
    with Sender(BUILD, BARD) as other:
        for number in range(NUM_ROUNDS):
            held = gpu_bytes(place / "machine")
            released = admin.call("release_memory", keep_weights=True)
            assert released["ok"], released
            freed = sum(tag["freed_bytes"] for each in released["parts"] for tag in each["tags"])
            away = gpu_bytes(place / "machine")
            assert held[pid] - away[pid] == freed > 0, "what is said to be freed, the machine has back"
            taken = other.ask("take")["bytes"]
            assert taken >= freed, "somebody else can have it"
            if number % 7 == 3:
                assert admin.call("resume_memory")["code"] == "resource_exhausted"
            other.ask("give")
            assert admin.call("resume_memory")["ok"]
            if number == WARM_UP:
                before = {"gpu": gpu_bytes(place / "machine"), "host": host_state(pid)}
        after = {"gpu": gpu_bytes(place / "machine"), "host": host_state(pid)}
    assert after["gpu"] == before["gpu"]
    assert after["host"][0] <= before["host"][0] + HOST_SLACK, (before, after)
    assert after["host"][1] <= before["host"][1] + 8, (before, after)
    assert after["host"][2] <= before["host"][2], (before, after)
    assert admin.call("weight_digests")["digest"] == DIGESTS["stories"]["digest"]
    assert greedy(door, reference, "stories")
