"""HTTP for tests: whole answers, event streams, and bytes that no library would send."""

import http.client
import json
import os
import resource
import socket
import subprocess
import urllib.parse

from process_tree import ROOT, end_with_parent
from wire import DEADLINE_S


class Answer:
    def __init__(self, status, headers, body):
        self.status = status
        self.headers = {name.lower(): value for name, value in headers}
        self.body = body

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def message(self):
        """The text of an error, in any dialect."""
        error = self.json["error"]
        return error["message"] if isinstance(error, dict) else error

    def __repr__(self):
        return f"{self.status} {self.body[:300]!r}"


class Http:
    """A client of one server; a connection per call, unless `keep` holds one."""

    def __init__(self, url, headers=None):
        self.url = url
        parts = urllib.parse.urlsplit(url)
        self.host, self.port = parts.hostname, parts.port
        self.headers = headers or {}

    def connect(self):
        return http.client.HTTPConnection(self.host, self.port, timeout=DEADLINE_S)

    def call(self, method, path, body=None, headers=None, connection=None):
        own = connection or self.connect()
        headers = {**self.headers, **(headers or {})}
        if body is not None and not isinstance(body, (bytes, str)):
            body = json.dumps(body)
            headers.setdefault("Content-Type", "application/json")
        own.request(method, path, body=body, headers=headers)
        response = own.getresponse()
        answer = Answer(response.status, response.getheaders(), response.read())
        if connection is None:
            own.close()
        return answer

    def get(self, path, **options):
        return self.call("GET", path, **options)

    def post(self, path, body=None, **options):
        return self.call("POST", path, body, **options)

    def generate(self, **body):
        """Calls /generate and returns the answer's JSON. Sampling parameters are given flat."""
        answer = self.post("/generate", native(body))
        assert answer.status == 200, answer
        return answer.json

    def events(self, path, body):
        """The data of each event of a stream, without the "[DONE]" that must end it."""
        connection = self.connect()
        headers = {**self.headers, "Content-Type": "application/json"}
        connection.request("POST", path, body=json.dumps(body), headers=headers)
        response = connection.getresponse()
        assert response.status == 200, response.read()
        assert response.getheader("Content-Type").startswith("text/event-stream")
        is_done = False
        for line in response:
            line = line.rstrip(b"\n")
            if not line or line.startswith(b":"):  # a comment: the reason for waiting
                continue
            assert line.startswith(b"data: ") and not is_done, line
            if line == b"data: [DONE]":
                is_done = True
            else:
                yield json.loads(line[6:])
        assert is_done, "the stream ended without [DONE]"
        connection.close()

    def named_events(self, path, body):
        """The data of each event of a stream whose events have names, as in the agents' dialects: the name must be the
        data's type."""
        connection = self.connect()
        headers = {**self.headers, "Content-Type": "application/json"}
        connection.request("POST", path, body=json.dumps(body), headers=headers)
        response = connection.getresponse()
        assert response.getheader("Content-Type").startswith("text/event-stream"), response.read()
        *frames, last = response.read().decode().split("\n\n")
        connection.close()
        assert last == ""
        events = []
        for frame in (each for each in frames if not each.startswith(":")):
            name, data = frame.split("\n")
            events.append(json.loads(data.removeprefix("data: ")))
            assert name == "event: " + events[-1]["type"]
        return events

    def raw(self):
        """A socket."""
        return Raw(self.host, self.port)


class Raw:
    def __init__(self, host, port):
        self.socket = socket.create_connection((host, port), timeout=DEADLINE_S)

    def send(self, data):
        self.socket.sendall(data)
        return self

    def read_all(self):
        """Reads to the end of the connection."""
        data = b""
        try:
            while block := self.socket.recv(65536):
                data += block
        except ConnectionResetError:
            pass
        return data

    def read_answer(self):
        """Reads one whole answer with a Content-Length: (status, head, body)."""
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            byte = self.socket.recv(1)
            assert byte, head
            head += byte
        status = int(head.split()[1])
        length = 0
        for line in head.lower().split(b"\r\n"):
            if line.startswith(b"content-length:"):
                length = int(line.split(b":")[1])
        body = b""
        while len(body) < length:
            block = self.socket.recv(length - len(body))
            assert block, (head, body)
            body += block
        return status, head, body

    def close(self):
        self.socket.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


SAMPLING = {
    "max_new_tokens", "min_new_tokens", "temperature", "top_k", "top_p", "min_p", "stop", "n",
    "repetition_penalty", "frequency_penalty", "presence_penalty", "logit_bias", "sampling_seed",
    "stop_token_ids", "ignore_eos", "no_stop_trim", "skip_special_tokens", "stream_interval",
    "json_schema", "regex", "ebnf", "structural_tag",
}  # fmt: skip


def native(body):
    """/generate's body from flat arguments."""
    rest = {name: value for name, value in body.items() if name not in SAMPLING}
    return {**rest, "sampling_params": {name: value for name, value in body.items() if name in SAMPLING}}


def program(name):
    build = os.environ.get("PITSTOP_BUILD", str(ROOT / "build/cpu"))
    return os.path.join(build, "bin", f"pitstop_{name}")


class FrontEnd:
    """A pitstop_http_proc of the test's own for a running tree, with limits that a test can reach."""

    def __init__(self, run_dir, *flags, env=None, num_descriptors=None, waits=True):
        def begin():
            end_with_parent()
            if num_descriptors:
                resource.setrlimit(resource.RLIMIT_NOFILE, (num_descriptors, num_descriptors))

        read_fd, write_fd = os.pipe()
        self.process = subprocess.Popen(
            [
                program("http_proc"),
                f"--run-dir={run_dir}",
                "--port=0",
                f"--ready-fd={write_fd}",
                "--log-level=warning",
                *map(str, flags),
            ],
            pass_fds=(write_fd,),
            env={**os.environ, **(env or {})},
            preexec_fn=begin,
            stderr=subprocess.PIPE,
            text=True,
        )
        os.close(write_fd)
        self._ready = os.fdopen(read_fd)
        self.said, self.http = "", None
        if waits:
            self.wait_ready()

    def wait_ready(self):
        """Returns once the server has connected to the tree; `http` is None if it could not start."""
        with self._ready as ready:
            line = ready.readline()
        self.said = line.strip()
        self.http = Http(line.split()[1]) if line.startswith("READY") else None

    def memory_kib(self):
        with open(f"/proc/{self.process.pid}/status", encoding="utf-8") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))

    def stop(self):
        self.process.terminate()
        self.process.wait(DEADLINE_S)
        self.process.stderr.close()
