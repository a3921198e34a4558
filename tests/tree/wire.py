"""The protocol of docs/protocol.md in a few lines of Python, with pyzmq and msgpack alone.

Tests that use it do not depend on the client libraries, and can send messages that no library would send.
"""

import itertools
import json
import os
import pathlib
import re
import time

import msgpack
import zmq

DEADLINE_S = 240.0  # seconds for everything that must happen; generous, as test machines are busy


LOOK_S = 2.0  # seconds to look at a silent tree

# The names of sampling parameters, from the text that pitstop_python_fields writes; the module is not imported.
MESSAGES = pathlib.Path(__file__).resolve().parents[2] / "client" / "python" / "pitstop" / "messages.py"
SAMPLING = frozenset(re.findall(r'"(\w+)"', MESSAGES.read_text().split("# begin: sampling ")[1].split("# end")[0]))


def cores_of(pids):
    """{pid: (state, seconds on a core, seconds of waiting for one)} of running processes, over all
    their threads.
    """
    seen = {}
    for pid in pids:
        try:
            state = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
            threads = [path.read_text().split() for path in pathlib.Path(f"/proc/{pid}/task").glob("*/schedstat")]
        except OSError:
            continue
        seen[pid] = (state, *(sum(int(each[column]) for each in threads) / 1e9 for column in (0, 1)))
    return seen


def why_silent(run_dir):
    """Distinguishes a tree that hangs from one that gets no core: reports what each of its processes does for two
    seconds."""
    try:
        processes = json.loads((pathlib.Path(run_dir) / "tree.json").read_text())["processes"]
    except (OSError, ValueError, KeyError):
        return f"no tree is told of in {run_dir}"
    names = {each["pid"]: each["name"] for each in processes}
    before = cores_of(names)
    time.sleep(LOOK_S)
    after = cores_of(names)
    lines = [f"load {os.getloadavg()[0]:.0f} on {len(os.sched_getaffinity(0))} cores; in the next {LOOK_S:g} s"]
    for pid, name in names.items():
        if pid not in before or pid not in after:
            lines.append(f"{name} has ended")
            continue
        ran, waited = (after[pid][column] - before[pid][column] for column in (1, 2))
        lines.append(f"{name} ({after[pid][0]}) ran {ran:.2f} s and waited {waited:.2f} s for a core")
    return "; ".join(lines)


class Refused(Exception):
    """The tree answered with `error`."""

    def __init__(self, body):
        super().__init__(f"{body['code']}: {body['message']}")
        self.code = body["code"]
        self.message = body["message"]
        self.rid = body.get("rid", "")


class Output:
    """The chunks of one request."""

    def __init__(self, rid):
        self.rid = rid
        self.chunks = []

    def add(self, chunk):
        assert self.finish is None, f"{self.rid}: a chunk after the last one"
        self.chunks.append(chunk)

    def _joined(self, field):
        return [entry for chunk in self.chunks for entry in chunk.get(field, [])]

    @property
    def text(self):
        return "".join(chunk.get("text", "") for chunk in self.chunks)

    @property
    def tokens(self):
        return self._joined("tokens")

    @property
    def logprobs(self):
        return self._joined("logprobs")

    @property
    def spans(self):
        return self._joined("spans")

    @property
    def routes(self):
        """(bytes of all rows, [(epoch, rows)], the first chunk's routes)"""
        parts = [chunk["routes"] for chunk in self.chunks if "routes" in chunk]
        spans = [(span["epoch"], span["rows"]) for part in parts for span in part["spans"]]
        return b"".join(part["experts"] for part in parts), spans, parts[0] if parts else None

    @property
    def finish(self):
        return self.chunks[-1].get("finish") if self.chunks else None

    @property
    def counts(self):
        return self.chunks[-1].get("counts")


class Door:
    """A client's connection to a door."""

    numbers = itertools.count(1)

    def __init__(self, run_dir, door="data", hello=True):
        self.run_dir = run_dir
        self.socket = zmq.Context.instance().socket(zmq.DEALER)
        self.socket.linger = 0
        self.socket.rcvhwm = 0
        self.socket.connect(f"ipc://{run_dir}/{door}.sock")
        self.outputs = {}
        self.tree = ""
        if hello:
            self.greet()

    def greet(self):
        self.send("hello", protocol=3, name="test")
        kind, self.hello = self.receive()
        assert kind == "hello_reply", (kind, self.hello)
        self.tree = self.hello["tree"]

    def close(self):
        self.socket.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def send_raw(self, *frames):
        self.socket.send_multipart(frames)

    def send(self, kind, **fields):
        if kind != "hello":
            fields.setdefault("tree", self.tree)
        self.send_raw(kind.encode(), msgpack.packb(fields))

    def receive(self, timeout_s=DEADLINE_S):
        """(type, body) of the next message."""
        if not self.socket.poll(timeout_s * 1000):
            raise TimeoutError(f"nothing came in {timeout_s} s: {why_silent(self.run_dir)}")
        kind, body, *self.raw = self.socket.recv_multipart()
        return kind.decode(), msgpack.unpackb(body, strict_map_key=False)

    def is_quiet(self, timeout_s):
        return not self.socket.poll(timeout_s * 1000)

    def call(self, kind, **fields):
        number = next(self.numbers)
        self.send(kind, call=number, **fields)
        while True:
            kind, body = self.receive()
            if kind == "outputs":
                self._take(body)
                continue
            assert body["call"] == number, (kind, body)
            if kind == "error":
                raise Refused(body)
            return body

    def start(self, prompt, **fields):
        """A request; `prompt` is text or token ids, sampling parameters are given flat."""
        rid = fields.pop("rid", None) or f"r-{next(self.numbers)}"
        sampling = {name: fields.pop(name) for name in list(fields) if name in SAMPLING}
        prompt = {"text": prompt} if isinstance(prompt, str) else {"input_ids": prompt}
        self.outputs[rid] = Output(rid)
        self.send("generate", rid=rid, sampling=sampling, **prompt, **fields)
        return rid

    def _take(self, body):
        for chunk in body.get("chunks", ()):  # no chunks: the door probes whether this client still exists
            assert chunk["rid"] in self.outputs, f"a chunk of {chunk['rid']}, which is not ours"
            if routes := chunk.get("routes"):
                frame, begin, num = routes["experts"]
                routes["experts"] = self.raw[frame][begin : begin + num]
            self.outputs[chunk["rid"]].add(chunk)

    def step(self, timeout_s=DEADLINE_S):
        """Reads one message about requests. Raises Refused for an error."""
        kind, body = self.receive(timeout_s)
        if kind == "error":
            raise Refused(body)
        assert kind == "outputs", (kind, body)
        self._take(body)

    def finish(self, rids, timeout_s=DEADLINE_S):
        """The outputs of `rids`, complete."""
        deadline = time.monotonic() + timeout_s
        while any(self.outputs[rid].finish is None for rid in rids):
            if time.monotonic() > deadline:
                open_rids = [rid for rid in rids if self.outputs[rid].finish is None]
                raise TimeoutError(f"{len(open_rids)} of {len(rids)} are open: {open_rids[:5]}")
            self.step(max(0.001, deadline - time.monotonic()))
        return [self.outputs[rid] for rid in rids]

    def generate(self, prompt, **fields):
        """One request, whole."""
        return self.finish([self.start(prompt, **fields)])[0]
