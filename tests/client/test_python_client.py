"""The Python clients against a fake door, which does what a real tree rarely does."""

import asyncio
import pickle
import queue
import socket
import threading
import time

import pytest

import pitstop
from fake_door import DEADLINE_S, FakeDoor


def test_chunks_come_as_they_are_sent(door, client):
    stream = client.generate("hello", max_new_tokens=5, temperature=0.5, stop="end")
    peer, body = door.take("generate")
    assert body["text"] == "hello"
    assert body["sampling"] == {"max_new_tokens": 5, "temperature": 0.5, "stop": ["end"]}
    assert body["rid"] == stream.rid
    span = {"epoch": 1, "tokens": 1}
    door.chunk(peer, stream.rid, "a", tokens=[1], spans=[span], logprobs=[-0.5])
    assert next(stream).text == "a"
    assert stream.next(timeout=0.01) is None
    door.chunk(peer, stream.rid, "b", tokens=[2], spans=[span], finish={"reason": "length"})
    chunk = next(stream)
    assert chunk.finish == pitstop.Finish(reason="length")
    assert list(stream) == []


def test_a_result_is_all_chunks_joined(door, client):
    stream = client.generate([1, 2, 3], logprobs=True)
    peer, body = door.take("generate")
    assert body["input_ids"] == [1, 2, 3]
    assert body["logprobs"] == {"enabled": True}
    for i in range(10):
        door.chunk(peer, stream.rid, "x", tokens=[i], logprobs=[-1.0], spans=[{"epoch": 2, "tokens": 1}])
    door.chunk(peer, stream.rid, finish={"reason": "stop"}, counts={"completion_tokens": 10})
    whole = stream.result()
    assert whole.text == "x" * 10
    assert whole.tokens == list(range(10))
    assert whole.spans == [pitstop.Span(epoch=2, tokens=10)]
    assert whole.counts.completion_tokens == 10


def test_a_result_that_is_not_there_in_time_loses_nothing(door, client):
    stream = client.generate("hello")
    peer, _ = door.take("generate")
    door.chunk(peer, stream.rid, "a")
    with pytest.raises(pitstop.PitstopError) as error:
        stream.result(timeout=0.05)
    assert error.value.code == "deadline_exceeded"
    door.chunk(peer, stream.rid, "b", finish={"reason": "stop"})
    assert stream.result().text == "ab"


def test_a_refused_request_raises_the_doors_error(door, client):
    stream = client.generate("hello")
    peer, _ = door.take("generate")
    door.send(peer, "error", rid=stream.rid, code="too_large", message="of everything")
    with pytest.raises(pitstop.PitstopError, match="of everything") as error:
        next(stream)
    assert error.value.code == "too_large"


def test_tokens_that_come_with_an_error_are_taken_first(door, client):
    stream = client.generate([1])
    peer, _ = door.take("generate")
    door.chunk(peer, stream.rid, "a", tokens=[5])
    error = {"reason": "error", "code": "not_finite", "message": "for output token 2"}
    door.chunk(peer, stream.rid, "b", tokens=[6], finish=error)
    assert [next(stream).tokens, next(stream).tokens] == [[5], [6]] and not stream.finished
    with pytest.raises(pitstop.PitstopError, match="for output token 2"):
        next(stream)
    assert stream.finished and list(stream) == []


def test_the_error_of_a_result_has_what_came_before(door, client):
    stream = client.generate([1])
    peer, _ = door.take("generate")
    door.chunk(peer, stream.rid, "a", tokens=[5])
    error = {"reason": "error", "code": "not_finite", "message": "for output token 2"}
    door.chunk(peer, stream.rid, "b", tokens=[6], finish=error)
    with pytest.raises(pitstop.PitstopError) as failed:
        stream.result()
    assert failed.value.output.tokens == [5, 6] and failed.value.output.text == "ab"
    again = pickle.loads(pickle.dumps(failed.value))
    assert again.output == failed.value.output and again.code == "not_finite"


def test_P5_what_is_too_large_for_a_door_is_refused_before_it_is_sent(door, client):
    """A door that refuses a message for its size has not read its rid, so its answer could not name the request."""
    text = "a" * (17 << 20)
    with pytest.raises(pitstop.PitstopError) as error:
        client.generate(text, max_new_tokens=1).result(DEADLINE_S)
    assert error.value.code == "too_large" and "16777216" in error.value.message
    with pytest.raises(pitstop.PitstopError) as error:
        client.call("data", "tokenize", timeout=DEADLINE_S, text=text)
    assert error.value.code == "too_large" and error.value.message.startswith("tokenize: ")


def test_a_lost_tree_ends_every_request_and_call_and_a_new_one_gets_nothing_old(door, client, run_dir):
    streams = [client.generate("hello") for _ in range(3)]
    for _ in streams:
        door.take("generate")
    call = []
    caller = threading.Thread(target=lambda: call.append(pytest.raises(pitstop.PitstopError, client.status)))
    caller.start()
    door.take("status")
    door.die()
    for stream in streams:
        with pytest.raises(pitstop.PitstopError) as error:
            next(stream)
        assert error.value.code == "unavailable"
    caller.join(DEADLINE_S)
    assert call[0].value.code == "unavailable"
    with pytest.raises(pitstop.PitstopError) as error:
        client.generate("lost").result()
    assert error.value.code == "unavailable"
    again = FakeDoor(run_dir)
    try:
        deadline = time.monotonic() + DEADLINE_S
        while not client.is_connected:
            assert time.monotonic() < deadline
            time.sleep(0.005)
        stream = client.generate("new")
        peer, body = again.take("generate")
        assert body["text"] == "new"
        again.chunk(peer, stream.rid, "yes", finish={"reason": "stop"})
        assert stream.result().text == "yes"
    finally:
        again.die()


def test_the_last_messages_of_a_dying_tree_are_heard(door, client):
    stream = client.generate("hello")
    peer, _ = door.take("generate")
    error = {"reason": "error", "code": "unavailable", "message": "tp_worker[0.1] died"}
    door.chunk(peer, stream.rid, finish=error)
    door.die()
    with pytest.raises(pitstop.PitstopError, match=r"tp_worker\[0.1\] died"):
        stream.result()


def test_a_request_with_a_timeout_is_cancelled(door, client):
    stream = client.generate("hello", timeout=0.05)
    door.take("generate")
    with pytest.raises(pitstop.PitstopError) as error:
        stream.result()
    assert error.value.code == "deadline_exceeded"
    assert door.take("cancel")[1] == {"rids": [stream.rid]}


def test_a_dropped_stream_is_cancelled(door, client):
    rid = client.generate("hello").rid
    door.take("generate")
    assert door.take("cancel")[1] == {"rids": [rid]}


def test_streams_of_many_threads_are_not_mixed_up(door, client):
    results = {}

    def one(number):
        results[number] = client.generate(str(number)).result().text

    threads = [threading.Thread(target=one, args=(number,)) for number in range(64)]
    for thread in threads:
        thread.start()
    for _ in threads:
        peer, body = door.take("generate")
        door.chunk(peer, body["rid"], f"<{body['text']}>", finish={"reason": "stop"})
    for thread in threads:
        thread.join(DEADLINE_S)
    assert results == {number: f"<{number}>" for number in range(64)}


def test_a_duplicate_rid_leaves_the_first_request_alone(door, client):
    first = client.generate("hello", rid="mine")
    with pytest.raises(pitstop.PitstopError) as error:
        client.generate("hello", rid="mine").result()
    assert error.value.code == "already_exists"
    unread = client.generate("hello", rid="mine")  # refused, too; nobody reads this answer
    del unread
    peer, _ = door.take("generate")
    client.generate("another", rid="other")  # once this request has arrived, all earlier messages have
    assert door.take("generate")[1]["rid"] == "other"
    door.chunk(peer, "mine", finish={"reason": "stop"})
    first.result()


def test_calls_get_their_own_replies_and_errors(door, client):
    with pytest.raises(pitstop.PitstopError) as error:
        client.status(timeout=0.01)
    assert error.value.code == "deadline_exceeded"
    peer, late = door.take("status")

    def answer():
        peer, body = door.take("status")
        door.send(peer, "status_reply", door="admin", call=late["call"], model="late")
        door.send(peer, "status_reply", door="admin", call=body["call"], model="in time")

    helper = threading.Thread(target=answer)
    helper.start()
    assert client.status()["model"] == "in time"
    helper.join(DEADLINE_S)


def test_memory_labels_and_shutdown_are_one_message_each(door, client):
    calls = (
        ("release_memory", {"tags": ["kv_cache"], "keep_weights": True}, {"tags": ["kv_cache"], "keep_weights": True}),
        ("release_memory", {}, {"keep_weights": False}),
        ("resume_memory", {"tags": ("weights",)}, {"tags": ["weights"]}),
        ("set_weight_label", {"label": "step-4"}, {"label": "step-4", "abort_all": False}),
        ("shutdown", {"drain_s": 2}, {"drain_s": 2.0}),
    )
    for kind, arguments, fields in calls:
        answers = []
        thread = threading.Thread(target=lambda: answers.append(getattr(client, kind)(**arguments)))
        thread.start()
        peer, body = door.take(kind)
        assert {name: body[name] for name in body if name not in ("call", "timeout_ms")} == fields
        door.send(peer, "reply_of_" + kind, door="admin", call=body["call"], ok=True)
        thread.join(DEADLINE_S)
        assert answers and answers[0]["ok"] is True


@pytest.mark.parametrize("answer", ("fence_reply", "error"))
def test_an_abort_is_sent_when_the_requests_before_it_have_been_read(door, client, answer):
    stream = client.generate("hello")
    answers = []
    thread = threading.Thread(target=lambda: answers.append(client.abort([stream.rid])))
    thread.start()
    door.take("generate")
    peer, fence = door.take("fence")
    with pytest.raises(queue.Empty):
        door.received.get(timeout=0.1)
    door.send(peer, answer, call=fence["call"], code="invalid_argument", message="whatever it is")
    peer, body = door.take("abort")
    assert body["rids"] == [stream.rid]
    door.send(peer, "abort_reply", door="admin", call=body["call"], ok=True)
    thread.join(DEADLINE_S)
    assert answers and answers[0]["ok"] is True


def test_an_abort_is_sent_though_its_caller_has_stopped_waiting(door, run_dir):
    async def give_up():
        async with pitstop.AsyncClient(run_dir) as client:
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(client.abort(["r"]), 0.05)
            peer, fence = door.take("fence")
            door.send(peer, "fence_reply", call=fence["call"])
            while door.received.empty():  # the client's loop runs on
                await asyncio.sleep(0.01)
            return door.take("abort")[1]["rids"]

    assert asyncio.run(asyncio.wait_for(give_up(), DEADLINE_S)) == ["r"]


def test_a_control_call_that_is_not_ok_raises_with_its_reply(door, client):
    def answer():
        peer, body = door.take("pause_generation")
        assert body["mode"] == "retract"
        door.send(
            peer, "pause_reply", door="admin", call=body["call"], ok=False, code="internal", message="why", parts=[1]
        )

    helper = threading.Thread(target=answer)
    helper.start()
    with pytest.raises(pitstop.PitstopError, match="why") as error:
        client.pause("retract")
    assert error.value.reply["parts"] == [1]
    helper.join(DEADLINE_S)


def test_unreadable_outputs_end_the_requests_they_may_belong_to(door, client):
    stream = client.generate("hello")
    peer, _ = door.take("generate")
    door.send_raw("data", peer, b"outputs", b"\xc1 not msgpack")
    with pytest.raises(pitstop.PitstopError) as error:
        stream.result()
    assert error.value.code == "malformed"


def test_a_sampling_parameter_that_does_not_exist_is_a_type_error(client):
    with pytest.raises(TypeError, match="topp"):
        client.generate("hello", topp=0.5)


@pytest.mark.parametrize("wrong", [{"max_new_tokens": object()}, {"max_new_tokens": 1 << 70}, {"rid": "\ud800"}])
def test_P5_a_request_that_cannot_be_packed_is_told_to_its_caller(door, client, wrong):
    with pytest.raises(pitstop.PitstopError) as failed:
        client.generate("hello", **wrong).result(timeout=10)
    assert failed.value.code == "invalid_argument"
    client.close()  # no request is left open


def test_closing_ends_what_is_open(door, run_dir):
    client = pitstop.Client(run_dir)
    stream = client.generate("hello")
    door.take("generate")
    client.close()
    with pytest.raises(pitstop.PitstopError) as error:
        stream.result()
    assert error.value.code == "aborted"
    assert door.take("cancel")[1] == {"rids": [stream.rid]}
    with pytest.raises(pitstop.PitstopError):
        client.generate("late")


def test_closing_ends_a_call_that_waits(door, run_dir):
    client = pitstop.Client(run_dir)
    raised = []
    caller = threading.Thread(target=lambda: raised.append(pytest.raises(pitstop.PitstopError, client.status, 600.0)))
    caller.start()
    door.take("status")
    client.close()
    caller.join(DEADLINE_S)
    assert raised[0].value.code == "aborted"
    with pytest.raises(pitstop.PitstopError, match="the client was closed"):
        client.status()


def test_a_client_ends_that_is_let_go_of_in_its_own_loop(door, run_dir):
    """The client's own thread drops the last reference, and must not wait for its own end."""
    holder = [pitstop.Client(run_dir)]
    (thread,) = [each for each in threading.enumerate() if each.name == "pitstop-client"]
    holder[0]._loop.call_soon_threadsafe(holder.clear)
    thread.join(DEADLINE_S)
    assert not thread.is_alive()


def test_connecting_waits_for_a_tree_that_is_starting(run_dir):
    door = FakeDoor(run_dir, greetings=[{"code": "unavailable", "message": "starting"}] * 2)
    with pitstop.Client(run_dir, timeout=DEADLINE_S) as client:
        assert client.info.model == "fake"
    door.die()


def test_connecting_says_why_not(run_dir):
    with pytest.raises(pitstop.PitstopError) as error:
        pitstop.Client(run_dir, timeout=0.05)
    assert error.value.code == "unavailable"
    with pytest.raises(pitstop.PitstopError) as error:
        pitstop.Client(run_dir + "/nowhere")
    assert error.value.code == "not_found"
    door = FakeDoor(run_dir, greetings=[{"code": "invalid_argument", "message": "protocol 1"}] * 2)
    with pytest.raises(pitstop.PitstopError, match="protocol 1"):
        pitstop.Client(run_dir, timeout=DEADLINE_S)
    door.die()


# ---- asyncio ----


def run(run_dir, scenario):
    async def main():
        async with pitstop.AsyncClient(run_dir, timeout=DEADLINE_S) as client:
            await asyncio.wait_for(scenario(client), DEADLINE_S)

    asyncio.run(main())


async def take(door, kind):
    return await asyncio.get_running_loop().run_in_executor(None, door.take, kind)


def test_async_chunks_come_as_they_are_sent(door, run_dir):
    async def scenario(client):
        assert client.info.model == "fake"
        stream = client.generate("hello")
        peer, body = await take(door, "generate")
        texts = []
        door.chunk(peer, stream.rid, "a")
        async for chunk in stream:
            texts.append(chunk.text)
            if chunk.text == "a":
                door.chunk(peer, stream.rid, "b", finish={"reason": "stop"})
        assert texts == ["a", "b"]

    run(run_dir, scenario)


def test_async_tokens_that_come_with_an_error_are_taken_first(door, run_dir):
    error = {"reason": "error", "code": "not_finite", "message": "for output token 2"}

    async def scenario(client):
        first, second = client.generate([1]), client.generate([2])
        for _ in range(2):
            peer, body = await asyncio.to_thread(door.take, "generate")
            door.chunk(peer, body["rid"], "b", tokens=[6], finish=error)
        assert (await anext(first)).tokens == [6] and not first.finished
        with pytest.raises(pitstop.PitstopError, match="for output token 2"):
            await anext(first)
        assert first.finished
        with pytest.raises(pitstop.PitstopError) as failed:
            await second.result()
        assert failed.value.output.tokens == [6]

    run(run_dir, scenario)


def test_async_requests_at_once_are_not_mixed_up(door, run_dir):
    async def scenario(client):
        streams = [client.generate(str(number)) for number in range(256)]
        for _ in streams:
            peer, body = await take(door, "generate")
            door.chunk(peer, body["rid"], f"<{body['text']}>", finish={"reason": "stop"})
        results = await asyncio.gather(*(stream.result() for stream in streams))
        assert [each.text for each in results] == [f"<{number}>" for number in range(256)]

    run(run_dir, scenario)


def test_async_a_lost_tree_ends_everything_that_is_open(door, run_dir):
    async def scenario(client):
        stream = client.generate("hello")
        await take(door, "generate")
        status = asyncio.ensure_future(client.status())
        await take(door, "status")
        await asyncio.get_running_loop().run_in_executor(None, door.die)
        for waiting in (stream.result(), status):
            with pytest.raises(pitstop.PitstopError) as error:
                await waiting
            assert error.value.code == "unavailable"

    run(run_dir, scenario)


def test_async_a_cancelled_task_and_a_timeout_cancel_the_request(door, run_dir):
    async def scenario(client):
        task = asyncio.ensure_future(client.generate("hello", rid="one").result())
        await take(door, "generate")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        del task
        assert (await take(door, "cancel"))[1] == {"rids": ["one"]}
        with pytest.raises(pitstop.PitstopError) as error:
            await client.generate("hello", rid="two", timeout=0.05).result()
        assert error.value.code == "deadline_exceeded"
        await take(door, "generate")
        assert (await take(door, "cancel"))[1] == {"rids": ["two"]}

    run(run_dir, scenario)


def test_async_calls_are_awaited(door, run_dir):
    async def scenario(client):
        reply = asyncio.ensure_future(client.tokenize("hi"))
        peer, body = await take(door, "tokenize")
        door.send(peer, "tokenize_reply", call=body["call"], ids=[7], text="hi")
        assert await reply == {"ids": [7], "text": "hi"}
        with pytest.raises(pitstop.PitstopError) as error:
            await client.status(timeout=0.01)
        assert error.value.code == "deadline_exceeded"

    run(run_dir, scenario)


def test_async_connecting_says_why_not(run_dir):
    async def connect():
        with pytest.raises(pitstop.PitstopError) as error:
            await pitstop.AsyncClient(run_dir, timeout=0.05).connect()
        assert error.value.code == "unavailable"

    asyncio.run(connect())


def test_a_door_that_is_full_is_knocked_at_now_and_then(tmp_path):
    """The door closes each connection at once."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "data.sock"))
    listener.listen(128)
    listener.settimeout(0.05)
    knocks, is_over = [], threading.Event()

    def refuse():
        while not is_over.is_set():
            try:
                listener.accept()[0].close()
            except TimeoutError:
                continue
            knocks.append(time.monotonic())

    thread = threading.Thread(target=refuse)
    thread.start()
    begin = time.monotonic()
    try:
        with pytest.raises(pitstop.PitstopError, match="no tree is ready"):
            pitstop.Client(data=f"ipc://{tmp_path}/data.sock", timeout=2.0)
    finally:
        is_over.set()
        thread.join()
        listener.close()
    # At most one connection every 20 ms; without a pause there would be thousands.
    assert 1 < len(knocks) < 20 + 100 * (time.monotonic() - begin)
