"""A tree's HTTP as its clients use it: the standard library alone, a connection per call.

Thread: any; each call has its own connection.
"""

import concurrent.futures
import http.client
import json
import pathlib
import sys
import time
import urllib.parse

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "tree"))

from wire import DEADLINE_S  # noqa: E402


class Answer:
    def __init__(self, status, headers, body):
        self.status = status
        self.headers = headers
        self.body = body

    def json(self):
        return json.loads(self.body)

    def __repr__(self):
        return f"{self.status} {self.body[:500]!r}"


class Http:
    def __init__(self, url):
        self.url = url
        self.place = urllib.parse.urlparse(url).netloc
        self._threads = concurrent.futures.ThreadPoolExecutor(max_workers=256)

    def call(self, method, path, body=None, headers=None, raw=None, timeout_s=DEADLINE_S):
        connection = http.client.HTTPConnection(self.place, timeout=timeout_s)
        try:
            given = dict(headers or {})
            if body is not None:
                raw = json.dumps(body)
                given["content-type"] = "application/json"
            connection.request(method, path, raw, given)
            response = connection.getresponse()
            return Answer(response.status, dict(response.headers), response.read())
        finally:
            connection.close()

    def get(self, path, body=None, **options):
        return self.call("GET", path, body, **options)

    def post(self, path, body=None, **options):
        return self.call("POST", path, body, **options)

    def ok(self, method, path, body=None, **options):
        """Returns the body; the status must be 200."""
        answer = self.call(method, path, body, **options)
        assert answer.status == 200, (path, answer)
        return answer

    def in_background(self, function, *arguments, **options):
        """Calls the function on a thread; returns a future."""
        return self._threads.submit(function, *arguments, **options)

    # ---- generation, by SGLang's route ----

    def generate(self, prompt="Once upon a time", rid=None, **sampling):
        """The whole answer of one request."""
        body = {"sampling_params": {"temperature": 0.0, "ignore_eos": True, **sampling}}
        body["text" if isinstance(prompt, str) else "input_ids"] = prompt
        if rid is not None:
            body["rid"] = rid
        answer = self.post("/generate", body)
        assert answer.status == 200, answer
        return answer.json()

    def start(self, *arguments, **options):
        """generate() in the background."""
        return self.in_background(self.generate, *arguments, **options)

    def stream(self, prompt="Once upon a time", on_chunk=None, **sampling):
        """Every chunk, cumulative; calls on_chunk(chunk) for each."""
        connection = http.client.HTTPConnection(self.place, timeout=DEADLINE_S)
        try:
            body = {
                "text": prompt,
                "stream": True,
                "sampling_params": {"temperature": 0.0, "ignore_eos": True, **sampling},
            }
            connection.request("POST", "/generate", json.dumps(body))
            response = connection.getresponse()
            assert response.status == 200
            chunks = []
            for line in response:
                if not line.startswith(b"data: "):
                    continue
                if line.strip() == b"data: [DONE]":
                    return chunks
                chunks.append(json.loads(line[len("data: ") :]))
                if on_chunk is not None:
                    on_chunk(chunks[-1])
            raise AssertionError("the stream ended without [DONE]")
        finally:
            connection.close()

    # ---- the tree's state ----

    def states(self):
        return self.ok("GET", "/server_info").json()["internal_states"]


def finished(futures, timeout_s=DEADLINE_S):
    """The results of all calls, in order."""
    deadline = time.monotonic() + timeout_s
    return [future.result(max(0.01, deadline - time.monotonic())) for future in futures]


def is_prefix(part, whole):
    return whole[: len(part)] == part
