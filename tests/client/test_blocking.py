"""The blocking interface of Engine and Fleet: what it does once it is closed."""

import os
import signal
import threading

import pytest

from pitstop.blocking import Blocking


class Counter:
    """An object that lives in an event loop."""

    def __init__(self):
        self.is_closed = False

    async def start(self):
        pass

    async def close(self):
        self.is_closed = True

    async def count(self, number):
        return number + 1

    async def numbers(self):
        number = 0
        while True:
            yield number
            number += 1


class BlockingCounter(Blocking):
    def __init__(self):
        super().__init__(Counter())

    def count(self, number):
        return self._wait(self._inner.count(number))

    def numbers(self):
        return self._each(self._inner.numbers())


def in_time(work):
    """Returns what `work` raised, or None; fails if it waits for ever."""
    raised = []

    def run():
        try:
            work()
        except Exception as error:
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive(), "it waits for a loop that has ended"
    return raised[0] if raised else None


def test_calls_and_streams_are_waited_for():
    with BlockingCounter() as counter:
        assert counter.count(1) == 2
        numbers = counter.numbers()
        assert [next(numbers) for _ in range(3)] == [0, 1, 2]
    assert counter._inner.is_closed


def test_a_call_after_the_end_is_an_error():
    counter = BlockingCounter()
    counter.close()
    error = in_time(lambda: counter.count(1))
    assert isinstance(error, RuntimeError) and "closed" in str(error)


def test_a_stream_that_outlives_the_end_is_over():
    counter = BlockingCounter()
    numbers = counter.numbers()
    next(numbers)
    counter.close()
    assert in_time(numbers.close) is None
    with pytest.raises(StopIteration):
        next(numbers)


def test_a_forked_child_is_refused_by_name_and_ends_at_once():
    counter = BlockingCounter()
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:  # ends by os._exit: no code of pytest may run here
        signal.alarm(20)  # the alarm kills a child that waits for ever
        try:
            counter.count(1)
            said = "no error"
        except RuntimeError as error:
            said = str(error)
        counter.close()
        os.write(write_end, said.encode())
        os._exit(0)
    os.close(write_end)
    said = os.read(read_end, 1000).decode()
    os.close(read_end)
    assert os.waitpid(child, 0)[1] == 0
    assert f"belongs to process {os.getpid()}" in said
    assert counter.count(1) == 2, "the parent's is as it was"
    counter.close()
