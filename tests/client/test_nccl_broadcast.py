"""A trainer's group when something goes wrong: what it reports, what it returns, and what it leaves unchanged. NCCL and
CUDA are simulated."""

import contextlib
import pathlib
import sys
import time

import numpy
import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "client" / "python"))

from pitstop import PitstopError, cuda_runtime, nccl_broadcast  # noqa: E402
from pitstop.nccl_broadcast import SUCCESS, NcclBroadcast  # noqa: E402

WEIGHTS = {"a": numpy.ones(8, numpy.float32), "b": numpy.ones(100, numpy.float32)}
USERS, OURS = 0, 2  # the program's own GPU, and the group's


class Driver:
    """Simulates the used calls of CUDA's runtime library; counts allocated memory."""

    def __init__(self):
        self.device = USERS
        self.entered = []
        self.allocated = {}
        self.looks = 0  # how often a stream is asked before it is done
        self.fails = set()

    def __getattr__(self, name):
        if not name.startswith("cuda"):
            raise AttributeError(name)
        return lambda *arguments: 2 if name in self.fails else getattr(self, "do_" + name, lambda *_: 0)(*arguments)

    def do_cudaGetDevice(self, device):
        device._obj.value = self.device
        return 0

    def do_cudaSetDevice(self, device):
        self.device = device.value
        self.entered.append(device.value)
        return 0

    def do_cudaMalloc(self, pointer, size):
        pointer._obj.value = 4096 * (1 + len(self.allocated))
        self.allocated[pointer._obj.value] = size.value
        return 0

    def do_cudaFree(self, pointer):
        del self.allocated[pointer.value]
        return 0

    def do_cudaStreamCreateWithPriority(self, stream, *_):
        stream._obj.value = 77
        return 0

    def do_cudaStreamQuery(self, _):
        self.looks -= 1
        return 600 if self.looks >= 0 else 0


class Nccl:
    """Simulates NCCL's library, and lists its calls."""

    version = "2.28.9"

    def __init__(self):
        self.library = self
        self.called = []

    def __getattr__(self, name):
        if not name.startswith("nccl"):
            raise AttributeError(name)

        def call(*arguments):
            self.called.append(name)
            if name == "ncclCommInitRankConfig":
                arguments[0]._obj.value = 55
            return SUCCESS

        return call

    def check(self, result, what, comm):
        assert result == SUCCESS


@pytest.fixture
def driver(monkeypatch):
    """A driver on which this program uses only the group's GPUs; a test may change `in_use`."""
    played = Driver()
    runtime = cuda_runtime.CudaRuntime.__new__(cuda_runtime.CudaRuntime)
    runtime._library = played
    runtime._name_of = str
    played.in_use = {USERS, OURS}
    monkeypatch.setattr(runtime, "_is_in_use", lambda device: device in played.in_use)
    monkeypatch.setattr(nccl_broadcast, "cuda_runtime", lambda: runtime)
    return played


@pytest.fixture
def nccl(monkeypatch):
    played = Nccl()
    monkeypatch.setattr(nccl_broadcast, "nccl_library", lambda: played)
    return played


@pytest.fixture
def group(driver, nccl):
    made = NcclBroadcast("w", 2, OURS)
    made.accept(5.0)
    return made


def test_an_update_that_ends_before_its_last_broadcast_is_seen_to_be_done_leaves_the_group_whole(group, driver):
    """The watching thread is delayed between looking at the broadcast and looking at the update."""
    driver.looks = 1
    group.send(WEIGHTS, is_called_off=lambda: True)
    assert group.is_whole and (group.num_broadcasts, group.num_bytes) == (1, 432)


def test_a_broadcast_that_is_called_off_breaks_the_group(group, driver):
    driver.looks = 10**9
    with pytest.raises(PitstopError, match="cancelled") as error:
        group.send(WEIGHTS, is_called_off=lambda: True)
    assert error.value.code == "aborted" and not group.is_whole
    driver.looks = 0
    group.close()
    assert not driver.allocated


def test_room_is_made_before_anything_is_sent(group, driver, nccl):
    group.make_room(WEIGHTS)
    assert list(driver.allocated.values()) == [432] and "ncclBroadcast" not in nccl.called
    group.send(WEIGHTS)
    assert list(driver.allocated.values()) == [432]
    driver.fails.add("cudaMalloc")
    with pytest.raises(PitstopError) as error:
        group.make_room({"a": numpy.ones(1000, numpy.float32)})
    assert error.value.code == "resource_exhausted" and group.is_whole
    group.close()
    assert not driver.allocated


def test_a_groups_end_is_quiet_and_aborts_nccl_where_the_gpu_is_lost(group, driver, nccl):
    driver.fails |= {"cudaSetDevice", "cudaGetDevice", "cudaStreamQuery"}
    with pytest.raises(ZeroDivisionError):  # the body's error, not one of the group's end
        with group:
            raise ZeroDivisionError
    assert "ncclCommAbort" in nccl.called and not group.is_whole


@pytest.mark.parametrize("users_is_in_use, after", [(True, USERS), (False, OURS)])
def test_the_callers_gpu_is_what_it_was_unless_it_has_begun_nothing_there(driver, nccl, users_is_in_use, after):
    driver.in_use = {USERS, OURS} if users_is_in_use else {OURS}

    def is_back():
        return driver.device == after and OURS in driver.entered

    with NcclBroadcast("w", 2, OURS) as group:
        assert is_back()
        for step in (lambda: group.accept(5.0), lambda: group.make_room(WEIGHTS), lambda: group.send(WEIGHTS)):
            step()
            assert is_back()
        group._cuda.finish(OURS)
        assert is_back()
        driver.looks = 10**9
        with contextlib.suppress(PitstopError):
            group.send(WEIGHTS, timeout=0.0)
        assert is_back()
        driver.looks = 0
    assert is_back()


def test_a_broadcast_that_nobody_receives_ends_in_time(group, driver):
    driver.looks = 10**9
    with pytest.raises(PitstopError) as error:
        group.send(WEIGHTS, timeout=time.get_clock_info("monotonic").resolution)
    assert error.value.code == "deadline_exceeded" and not group.is_whole
    driver.looks = 0
    group.close()
