"""HTTP in front of a fleet: /generate, against real trees, without Ray."""

import asyncio
import json
import pathlib
import sys
import urllib.error
import urllib.request

import pytest

pytest.importorskip("zmq")
sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "client" / "python"))

from pitstop.fleet.door import Call  # noqa: E402
from pitstop.fleet.generate_door import GenerateDoor  # noqa: E402
from pitstop.fleet.http import Answer, HttpServer  # noqa: E402
from pitstop.generate_calls import GenerateCalls  # noqa: E402
from test_door import PROMPT, run  # noqa: E402

SAMPLING = {"max_new_tokens": 300, "ignore_eos": True, "temperature": 0}


class OneCall(GenerateCalls):
    _use_tqdm = False

    def __init__(self, call):
        self._open = lambda: call


class FleetOfTrees:
    """The calls that the door makes to an AsyncFleet."""

    def __init__(self, door):
        self._door = door

    @property
    def num_ready(self):
        return len(self._door.view["members"])

    async def generate(self, *, session=None, min_epoch=0, **options):
        return await OneCall(Call(self._door, session, min_epoch)).generate(**options)


def with_server(work):
    async def serve(trees):
        server = HttpServer(GenerateDoor(FleetOfTrees(trees.door)).handle)
        await server.start(0)
        try:
            await work(trees, server)
        finally:
            server.stop()

    run(serve)


async def ask(url, body=None, **headers):
    def call():
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(url, data, headers)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    return await asyncio.get_running_loop().run_in_executor(None, call)


def test_P4_a_stream_over_http_goes_on_at_another_tree():
    async def work(trees, server):
        _, undisturbed = await ask(server.url + "/generate", {"text": PROMPT, "sampling_params": SAMPLING})
        body = json.dumps({"text": PROMPT, "sampling_params": SAMPLING, "stream": True}).encode()
        is_struck = False
        while not is_struck:
            reader, writer = await asyncio.open_connection("127.0.0.1", int(server.url.rpartition(":")[2]))
            writer.write(b"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            events = []
            while line := await reader.readline():
                if line.startswith(b"data: ") and b"[DONE]" not in line:
                    events.append(json.loads(line[6:]))
                    if not is_struck and len(events[-1]["output_ids"]) >= 20:
                        is_struck = await trees.strike(events[-1]["meta_info"]["weight_version_spans"][0]["replica"])
            writer.close()
        lengths = [len(event["output_ids"]) for event in events]
        assert lengths == sorted(lengths) and lengths[-1] == 300
        whole = json.loads(undisturbed)
        assert events[-1]["output_ids"] == whole["output_ids"] and events[-1]["text"] == whole["text"]
        spans = events[-1]["meta_info"]["weight_version_spans"]
        assert {span["replica"] for span in spans} == {"r0", "r1"}
        assert trees.door.num_moved == 1

    with_server(work)


def test_a_wrong_request_is_refused_with_a_status():
    async def work(trees, server):
        for body, status, told in [
            (b"{", 400, "not JSON"),
            (b"[]", 400, "object"),
            ({"text": "x", "image_data": "y"}, 400, "image_data"),
            ({}, 400, "input_ids"),
            ({"text": "x", "sampling_params": {"no_such": 1}}, 400, "no_such"),
            ({"text": "x", "sampling_params": {"temperature": -1}}, 400, "temperature"),
            ({"text": "x", "sampling_params": {"temperature": -1}, "stream": True}, 400, "temperature"),
            ({"text": "x", "sampling_params": 7}, 400, ""),
            ({"input_ids": [-5]}, 400, ""),
        ]:
            answer = await ask(server.url + "/generate", body)
            assert answer[0] == status and told in answer[1], (body, answer)
        assert (await ask(server.url + "/generate", {"text": "x"}, Host="evil.example"))[0] == 403
        assert (await ask(server.url + "/generate"))[0] == 405
        assert (await ask(server.url + "/no/such"))[0] == 404
        for path in ("/v1/completions", "/v1/chat/completions", "/v1/models"):
            status, said = await ask(server.url + path, {"model": "stories", "prompt": PROMPT})
            assert status == 501 and path in said and "--router" in said, said
        assert (await ask(server.url + "/health"))[0] == 200
        status, answer = await ask(
            server.url + "/generate", {"text": [PROMPT, "One day"], "sampling_params": {"max_new_tokens": 3}}
        )
        assert status == 200 and [len(each["output_ids"]) for each in json.loads(answer)] == [3, 3]

    with_server(work)


def test_a_client_that_goes_away_ends_its_request():
    async def work(trees, server):
        for engine in trees.engines:
            await engine.pause("in_place")  # so that the request does not end by itself
        reader, writer = await asyncio.open_connection("127.0.0.1", int(server.url.rpartition(":")[2]))
        body = json.dumps({"text": PROMPT, "sampling_params": SAMPLING}).encode()
        writer.write(b"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body)

        async def open_requests():
            return sum([(await engine.client.status()).get("open_requests", 0) for engine in trees.engines])

        async def until(count):
            while await open_requests() != count:
                await asyncio.sleep(0.01)

        await asyncio.wait_for(until(1), 120)
        writer.close()
        await asyncio.wait_for(until(0), 120)
        assert not any(trees.door._loads.values())

    with_server(work)


def test_a_stream_without_a_piece_is_an_empty_answer():
    async def nothing():
        return
        yield

    async def handle(request):
        return Answer(nothing(), kind="text/event-stream")

    async def work():
        server = HttpServer(handle)
        await server.start(0)
        try:
            assert await ask(server.url + "/") == (200, "")
        finally:
            server.stop()

    asyncio.run(asyncio.wait_for(work(), 60))


def test_a_server_bounds_what_it_reads():
    async def work(trees, server):
        port = int(server.url.rpartition(":")[2])
        for sent, status in [
            (b"GET / HTTP/1.1\r\nX: " + b"x" * 40_000 + b"\r\n\r\n", b"413"),
            (b"POST /generate HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n", b"413"),
            (b"POST /generate HTTP/1.1\r\nContent-Length: -1\r\n\r\n", b"400"),
            (b"POST /generate HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", b"400"),
            (b"\x00\xff\r\n\r\n", b"400"),
        ]:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(sent)
            assert (await reader.readline()).split()[1] == status, sent[:60]
            writer.close()

    with_server(work)
