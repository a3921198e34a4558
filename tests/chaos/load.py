"""Clients of every kind, each a thread: their requests, and the results."""

import http.client
import json
import threading
import time
import urllib.parse
import warnings

import zmq

import pitstop

from . import routed
from .asked import REQUEST_S
from .replay import Record
from .tree import is_alive

warnings.simplefilter("ignore", pitstop.WaitingWarning)  # pauses and updates are what chaos is about
ENDINGS_OK = {"stop", "length", "abort"}
# The codes with which a request may end while processes die, pauses expire and weights are released.
CODES_OK = {"unavailable", "aborted", "failed_precondition", "resource_exhausted", "deadline_exceeded"}
STATUS_OK = {409, 503}
NOT_LOADED = "no adapter '"  # the beginning of a refusal because an adapter is missing
LOST = ("no connection", "connection lost")
LOST_S = 20.0  # the server must end within this many seconds for its end to explain an error


class LoadThread(threading.Thread):
    """A client that sends requests until it is told to stop. An exception in it is a finding."""

    kind = ""

    def __init__(self, number, rng, tree, requests, prompts, report, may_ask):
        super().__init__(name=f"{self.kind}-{number}", daemon=True)
        self.rng, self.tree, self.requests, self.prompts, self.report = rng, tree, requests, prompts, report
        self._may_ask = may_ask  # returns whether the verifiers keep up
        self.stopped = threading.Event()
        self._number = 0

    def rid(self):
        self._number += 1
        return f"{self.name}-{self._number}"

    def run(self):
        while not self.stopped.is_set():
            if not self._may_ask():
                self.stopped.wait(0.2)
                continue
            try:
                self.ask()
            except Exception as error:
                self.report.problem(f"{self.name}: {type(error).__name__}: {error}", trace=True)
                return
        self.close()

    def ask(self):
        raise NotImplementedError

    def close(self):
        pass

    def sampling(self):
        """Fields that all dialects have: (fields, is greedy, top_k)."""
        fields = {"max_new_tokens": self.rng.choice((1, 5, 16, 40, 64)), "temperature": 0.0}
        is_greedy, top_k = self.rng.random() < 0.5, 0
        if not is_greedy:
            fields["temperature"] = self.rng.choice((0.6, 1.0, 1.4))
            if self.rng.random() < 0.4:
                fields["top_k"] = top_k = self.rng.choice((1, 5, 40))
            if self.rng.random() < 0.3:
                fields["top_p"] = 0.9
        if self.rng.random() < 0.5:
            fields["ignore_eos"] = True
        if self.rng.random() < 0.15:
            fields["stop"] = [self.rng.choice(("e", " the", "no such text at all"))]
        return fields, is_greedy, top_k


class PythonClient(LoadThread):
    """The bus through the Python client: several requests at once, some cancelled, some with old KV."""

    kind = "bus"
    at_once = (1, 1, 2, 4)

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self._client = None

    def _connected(self):
        if self._client is None:
            try:
                self._client = pitstop.Client(str(self.tree.run_dir), timeout=5)
            except pitstop.PitstopError:
                self.stopped.wait(0.2)
        return self._client

    def ask(self):
        client = self._connected()
        if client is None:
            return
        open_streams = [self._start(client) for _ in range(self.rng.choice(self.at_once))]
        for each in open_streams:
            self._finish(*each)
        if self.rng.random() < 0.05:
            self.close()

    def _start(self, client):
        rid = self.rid()
        fields, is_greedy, top_k = self.sampling()
        prompt, draft = self.prompts.ids_and_draft(self.rng)
        record = Record(rid, prompt, [], [], is_greedy=is_greedy, top_k=top_k)
        options = {
            "stream": self.rng.random() < 0.7,
            "text_output": "stop" in fields or self.rng.random() < 0.5,
        }
        if draft:
            options["draft_ids"] = draft
        if not is_greedy or self.rng.random() < 0.8:
            options["logprobs"], record.logprobs = True, []
        if self.rng.random() < 0.25:
            options["kv_tolerance"] = record.kv_tolerance = self.rng.choice(("keep", "max_lag"))
            if record.kv_tolerance == "max_lag":
                options["kv_max_lag"] = self.rng.choice((1, 3))
        if self.prompts.asks_for_routes(self.rng):
            options["routed_experts_start"], record.routes = 0, []
        if self.rng.random() < 0.1:
            options["priority"] = self.rng.choice((-1, 5))
        options["adapter"] = self.prompts.adapter(self.rng, record)
        self.requests.begin(rid, self.kind)
        cancel_after = self.rng.randint(0, 12) if self.rng.random() < 0.12 else None
        return client.generate(record.prompt, rid=rid, **options, **fields), record, cancel_after

    def _finish(self, stream, record, cancel_after):
        ending, deadline = None, time.monotonic() + REQUEST_S
        while ending is None:
            if cancel_after is not None and len(record.tokens) >= cancel_after:
                stream.cancel()
                cancel_after = None
            try:
                chunk = stream.next(timeout=1.0)
            except pitstop.PitstopError as error:
                ending = f"error {error.code}"
                if error.code == "not_finite":
                    self.requests.judge_not_finite(record, error.message)
                elif error.code not in CODES_OK and not (record.adapter_name and NOT_LOADED in error.message):
                    self.report.problem(f"{record.rid} ended with {error}")
                break
            if chunk is None:
                if time.monotonic() > deadline:
                    self.requests.hanging()
                    self.report.problem(
                        f"{record.rid} hangs: nothing for {REQUEST_S:.0f} s after {len(record.tokens)} tokens"
                    )
                    stream.cancel()
                    ending = "hangs"
                continue
            record.tokens += chunk.tokens
            if record.logprobs is not None:
                record.logprobs += chunk.logprobs
            self.took(record, chunk)
            routed.of_bus(record, chunk)
            record.labels |= {(span.label, span.digest) for span in chunk.spans}
            if chunk.adapter:
                record.adapter = (chunk.adapter.name, chunk.adapter.version, chunk.adapter.digest)
            record.spans += [(s.epoch, s.digest, s.tokens, s.kv_min_epoch, s.kv_max_epoch) for s in chunk.spans]
            if chunk.counts:
                record.cached, record.retractions = chunk.counts.cached_tokens, chunk.counts.retractions
            if chunk.finish:
                ending = chunk.finish.reason
                self._note_drafts(record, chunk.counts)
        if ending.startswith("error"):
            record.retractions = max(record.retractions, 4)  # a failed request has no last chunk with the count
            self.stopped.wait(0.05)
        self.requests.end(record.rid, ending, record)

    def _note_drafts(self, record, counts):
        if self.prompts.drafts and counts and counts.drafts:
            self.prompts.drafts.note(record, counts.drafts["drafted"], counts.drafts["accepted"])

    def took(self, record, chunk):
        """Reads the other fields of a chunk into the record."""

    def close(self):
        if self._client is not None:
            self._client.close()
            self._client = None


class HttpClient(LoadThread):
    """HTTP through the standard library; a dialect says what to post and how to read the answer."""

    path = ""
    reads_slowly = False

    def body(self, rid, record, fields):
        raise NotImplementedError

    def take(self, record, answer):
        """Adds an event's or an answer's object to the record; returns how it ended, or None."""
        raise NotImplementedError

    @staticmethod
    def spans_of(meta, with_empty=False):
        """A request without output has one piece, which is empty."""
        return [
            (s["epoch"], s["digest"], s["end"] - s["start"], s["kv_min_epoch"], s["kv_max_epoch"])
            for s in meta["weight_version_spans"]
            if with_empty or s["end"] > s["start"]
        ]

    def ask(self):
        url = self.tree.url()
        if url is None:
            self.stopped.wait(0.2)
            return
        rid = self.rid()
        fields, is_greedy, top_k = self.sampling()
        record = Record(rid, [], [], [], [], is_greedy=is_greedy, top_k=top_k)
        body = self.body(rid, record, fields)
        self.requests.begin(rid, self.kind)
        server = self.tree.pids().get("http_proc")
        ending = self._post(urllib.parse.urlsplit(url), body, record)
        if ending in LOST and not self._has_ended(server):
            self.report.problem(f"{rid}: {ending}, and http_proc, pid {server}, lives on")
        self.requests.end(rid, ending, record if ending in ENDINGS_OK else None)
        if ending in LOST or ending.startswith("status"):
            self.stopped.wait(0.2)

    def _has_ended(self, server):
        """Whether the server has ended within LOST_S, or lacked the memory or descriptors to answer."""
        deadline = time.monotonic() + LOST_S
        while time.monotonic() < deadline:
            if server is None or not is_alive(server) or server in self.tree.denied:
                return True
            time.sleep(0.05)
        return False

    def _post(self, url, body, record):
        connection = http.client.HTTPConnection(url.hostname, url.port, timeout=REQUEST_S)
        try:
            try:
                connection.connect()
            except OSError:
                return "no connection"
            try:
                connection.request("POST", self.path, json.dumps(body), {"Content-Type": "application/json"})
                response = connection.getresponse()
                if response.status != 200:
                    text = response.read(2000).decode("utf-8", "replace")
                    if response.status == 500 and "not finite" in text:
                        self.requests.judge_not_finite(record, text)
                    elif response.status not in STATUS_OK and not (record.adapter_name and NOT_LOADED in text):
                        self.report.problem(f"{record.rid}: HTTP {response.status}: {text[:300]}")
                    return f"status {response.status}"
                if not body.get("stream"):
                    return self.take(record, json.loads(response.read())) or "no end"
                return self._read_stream(response, record)
            except TimeoutError:
                self.report.problem(f"{record.rid} hangs: nothing by HTTP for {REQUEST_S:.0f} s")
                return "hangs"
            except (OSError, http.client.HTTPException):
                return "connection lost"
        finally:
            connection.close()

    def _read_stream(self, response, record):
        ending = None
        for line in response:
            if not line.startswith(b"data: "):
                continue
            data = line[6:].strip()
            if data == b"[DONE]":
                break
            answer = json.loads(data)
            if "error" in answer:
                if "not finite" in json.dumps(answer):
                    self.requests.judge_not_finite(record, json.dumps(answer))
                return "error in stream"
            ending = self.take(record, answer) or ending
            if self.reads_slowly:
                if self.rng.random() < 0.1:
                    return "client left"
                self.stopped.wait(self.rng.choice((0.0, 0.5, 3.0)))
        return ending or "connection lost"


class SglangClient(HttpClient):
    kind, path = "sglang", "/generate"

    def body(self, rid, record, fields):
        body = {
            "rid": rid,
            "sampling_params": fields,
            "stream": self.rng.random() < 0.6,
            "return_logprob": True,
            "logprobs_mode": "raw",
            "return_prompt_token_ids": True,
        }
        if self.prompts.asks_for_routes(self.rng):
            body["return_routed_experts"] = True
        body["lora_path"] = self.prompts.adapter(self.rng, record) or None
        if self.rng.random() < 0.5:
            record.prompt, draft = self.prompts.ids_and_draft(self.rng)
            body["input_ids"] = record.prompt
            if draft:
                body["draft_ids"] = draft
        else:
            body["text"] = self.prompts.text(self.rng)
        return body

    def take(self, record, answer):
        meta = answer["meta_info"]
        finish = meta.get("finish_reason")
        if finish is None:
            return None
        record.prompt = answer["prompt_token_ids"]
        record.tokens = answer["output_ids"]
        record.logprobs = [entry[0] for entry in meta["output_token_logprobs"]]
        record.spans = self.spans_of(meta)
        record.labels = {(span["version"], span["digest"]) for span in meta["weight_version_spans"]}
        record.cached, record.retractions = meta["cached_tokens"], meta["num_retractions"]
        if "adapter" in meta:
            record.adapter = tuple(meta["adapter"][key] for key in ("name", "version", "digest"))
        routed.of_sglang(record, meta, self.prompts.config)
        if self.prompts.drafts and "spec_verify_ct" in meta:
            self.prompts.drafts.note(record, meta["spec_num_proposed_drafts"], meta["spec_num_correct_drafts"])
        return finish["type"]


class OpenAiClient(HttpClient):
    kind, path = "openai", "/v1/completions"

    def body(self, rid, record, fields):
        fields["max_tokens"] = fields.pop("max_new_tokens")
        is_text = self.rng.random() < 0.5
        prompt = self.prompts.text(self.rng) if is_text else self.prompts.ids(self.rng)
        if self.prompts.asks_for_routes(self.rng):
            fields["routed_experts_prompt_start"] = 0
        return {
            "prompt": prompt,
            "stream": self.rng.random() < 0.6,
            "logprobs": 0,
            "return_token_ids": True,
            "request_id": rid,
            **fields,
        }

    def take(self, record, answer):
        choice = answer["choices"][0]
        record.prompt = choice.get("prompt_token_ids") or record.prompt
        record.tokens = record.tokens + choice["token_ids"]
        record.logprobs += (choice.get("logprobs") or {"token_logprobs": []})["token_logprobs"]
        record.retractions = 4  # this dialect has no such field
        routed.of_choice(record, choice)
        if "weight_version_spans" in answer:
            record.spans = self.spans_of(answer)
        return choice.get("finish_reason")


class SlowReader(SglangClient):
    """Reads one event, pauses, then reads on or closes the connection in mid-stream."""

    kind, reads_slowly = "slow", True

    def body(self, rid, record, fields):
        return {**super().body(rid, record, fields), "stream": True}


class DeafClient(LoadThread):
    """A client of the bus that sends requests and never reads. Its requests do not count as open:
    the promise is only that no other client notices.
    """

    kind = "deaf"

    def ask(self):
        import msgpack

        if not (self.tree.run_dir / "data.sock").exists():
            self.stopped.wait(0.5)
            return
        context = zmq.Context()
        socket = context.socket(zmq.DEALER)
        socket.linger, socket.rcvhwm = 0, 1
        try:
            socket.connect(f"ipc://{self.tree.run_dir}/data.sock")
            hello = [b"hello", msgpack.packb({"protocol": 3, "name": "deaf"})]
            socket.send_multipart(hello, zmq.DONTWAIT)
            if not socket.poll(2000):
                return
            tree = msgpack.unpackb(socket.recv_multipart()[1]).get("tree", "")  # empty: it is starting
            for _ in range(self.rng.randint(1, 6)):
                body = {
                    "tree": tree,
                    "rid": self.rid(),
                    "input_ids": self.prompts.ids(self.rng),
                    "sampling": {"max_new_tokens": 64, "ignore_eos": True},
                }
                socket.send_multipart([b"generate", msgpack.packb(body)], zmq.DONTWAIT)
            self.report.count("requests", "deaf: never read")
            self.stopped.wait(self.rng.uniform(1, 6))
        except zmq.Again:
            self.stopped.wait(0.5)
        finally:
            socket.close()
            context.term()


KINDS = (PythonClient, PythonClient, SglangClient, OpenAiClient, SlowReader, DeafClient)
