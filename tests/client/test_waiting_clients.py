"""No call waits in silence: what a Python client is told about a paused tree, and the time limits of its calls."""

import asyncio
import inspect
import os
import pathlib
import sys
import threading
import warnings

import pytest

TESTS = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS / "tree"))

import pitstop  # noqa: E402
from pitstop import standstill  # noqa: E402
from process_tree import environment, wait_until  # noqa: E402
from wire import DEADLINE_S  # noqa: E402

SHORT = {"max_new_tokens": 4, "temperature": 0}


@pytest.fixture(scope="module")
def engine():
    os.environ["PITSTOP_BUILD"] = environment()["PITSTOP_BUILD"]
    with pitstop.Engine("stories", threads=1) as engine:
        yield engine


@pytest.fixture(autouse=True)
def awake(engine):
    yield
    engine.wake_up()
    engine.resume()


def has_warned(told):
    return any(each.category is pitstop.WaitingWarning for each in told)


def in_a_thread(work):
    done = []
    thread = threading.Thread(target=lambda: done.append(work()), name="a-users")
    thread.start()
    return thread, done


@pytest.mark.parametrize(
    "stop, why",
    [
        (lambda engine: engine.pause(), "paused (in_place)"),
        (lambda engine: engine.sleep(1), "memory of weights and kv_cache is released"),
        (lambda engine: engine.sleep(2), "there are no weights"),
    ],
    ids=["pause", "sleep", "sleep without weights"],
)
def test_an_engine_whose_only_caller_stopped_it_raises(engine, stop, why):
    stop(engine)
    for call in (engine.generate, lambda prompt, params: engine.chat([{"role": "user", "content": prompt}], params)):
        with pytest.raises(pitstop.PitstopError) as told:
            call("Once upon a time", SHORT)
        assert told.value.code == "failed_precondition"
        assert "would wait for ever" in told.value.message and why in told.value.message
    if "no weights" in why:
        engine.wake_up()
        engine.update_weights_from_disk(str(TESTS.parent / "launch" / "models" / "stories"))
    engine.wake_up()
    engine.resume()
    assert engine.generate("Once upon a time", SHORT).text


def test_a_pause_that_ends_by_itself_is_waited_for(engine):
    engine.pause(max_pause_s=0.2)
    assert engine.generate("Once upon a time", SHORT).text


def test_a_timeout_says_what_it_waited_for(engine):
    engine.pause()
    with pytest.raises(pitstop.PitstopError) as told:
        engine.generate("Once upon a time", SHORT, timeout=0.3)
    assert told.value.code == "deadline_exceeded"
    assert "did not finish in time: paused (in_place) for " in told.value.message
    assert "resume ends the pause" in told.value.message
    with pitstop.Client(engine.run_dir) as client:
        with pytest.raises(pitstop.PitstopError, match="paused .in_place.") as told:
            list(client.generate("Once", max_new_tokens=2, timeout=0.2))
        assert told.value.code == "deadline_exceeded"


def test_a_request_that_waits_for_another_thread_warns_once(engine):
    engine.pause()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        thread, done = in_a_thread(lambda: engine.generate("Once upon a time", SHORT))
        wait_until(lambda: has_warned(told), "the warning")
        assert thread.is_alive()
        engine.resume()
        thread.join()
    (warning,) = [each for each in told if each.category is pitstop.WaitingWarning]
    assert "a request waits: paused (in_place) for " in str(warning.message)
    assert done[0].text


def test_asyncio_and_a_plain_client_warn_too(engine):
    engine.pause()

    async def wait(run_dir):
        async with pitstop.AsyncClient(run_dir) as client:
            request = asyncio.ensure_future(client.generate("Once", max_new_tokens=2).result())
            while not has_warned(told):
                await asyncio.sleep(0.01)
            assert not request.done()
            request.cancel()

    with pytest.warns(pitstop.WaitingWarning, match="paused") as told:
        asyncio.run(asyncio.wait_for(wait(engine.run_dir), DEADLINE_S))
    with pytest.warns(pitstop.WaitingWarning, match="paused") as told, pitstop.Client(engine.run_dir) as client:
        stream = client.generate("Once", max_new_tokens=2)
        wait_until(lambda: stream.next(timeout=1.0) is not None or has_warned(told), "the warning")


def test_a_warning_that_is_made_an_error_ends_nothing(engine):
    engine.pause(max_pause_s=2.6)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pitstop.Client(engine.run_dir) as client:
            assert client.generate("Once", max_new_tokens=2).result(timeout=20).text


def test_output_that_comes_warns_of_nothing(engine):
    with warnings.catch_warnings():
        warnings.simplefilter("error", pitstop.WaitingWarning)
        for _ in range(3):
            assert engine.generate("Once upon a time", {"max_new_tokens": 200, "ignore_eos": True}).text


LIVES = {"start", "close", "async_generate"}  # start has start_timeout instead; async_generate has generate's arguments


@pytest.mark.parametrize("owner", [pitstop.AsyncEngine, pitstop.Engine, pitstop.AsyncClient, pitstop.Client])
def test_every_call_takes_a_timeout(owner):
    calls = {
        name: call
        for name, call in inspect.getmembers(owner, callable)
        if not name.startswith("_") and name not in LIVES | {"connect"}
    }
    assert len(calls) > 15
    assert not [name for name, call in calls.items() if "timeout" not in inspect.signature(call).parameters]


def test_each_standstill_has_its_words():
    def why(**replica):
        return standstill.why_it_stands({"replicas": [{"replica": 0, "state": "running"}, {"replica": 1, **replica}]})

    assert why(state="running") == ""
    assert why(state="updating") == "replica 1: an update is taking effect"
    assert "resume ends the pause" in why(state="paused", pause_mode="retract", paused_s=3.0)
    both = why(state="released", pause_mode="wait", paused_s=1, memory=[{"tag": "kv_cache", "state": "released"}])
    assert "memory of kv_cache is released" in both and "paused (wait) for 1.0 s" in both
    assert standstill.why_it_stands({}) == ""
