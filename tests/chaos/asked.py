"""The requests that clients send: the open ones with their deadlines, and their prompts."""

import threading
import time

REQUEST_S = 150.0  # every request must end within this time, whatever happens to the tree
SCORED_LENGTHS = (1, 2, 60, 200, 300, 390, 400)
WORDS = ["Once upon a time", "ROMEO: What", "The little dog", "Tell me", "a b c d", "JULIET:"]


class Requests:
    """The open requests with their deadlines, and the endings of earlier requests."""

    def __init__(self, report, submit, judge_not_finite):
        self._lock = threading.Lock()
        self._open = {}  # rid -> (client, since)
        self._report = report
        self._submit = submit  # called with a Record
        self.judge_not_finite = judge_not_finite  # called with a Record and the error's message
        self._late = set()

    def begin(self, rid, client):
        with self._lock:
            self._open[rid] = (client, time.monotonic())

    def end(self, rid, ending, record=None):
        with self._lock:
            client, _ = self._open.pop(rid)
        self._report.count("requests", f"{client}: {ending}")
        if record is not None and (record.tokens or record.scores):
            record.client, record.ending = client, ending
            self._submit(record)

    def num_open(self):
        with self._lock:
            return len(self._open)

    def open_rids(self):
        with self._lock:
            return sorted(self._open)

    def hanging(self):
        """Requests past their deadline, each returned once."""
        now = time.monotonic()
        with self._lock:
            late = {rid: client for rid, (client, since) in self._open.items() if now - since > REQUEST_S}
            new = {rid: client for rid, client in late.items() if rid not in self._late}
            self._late |= set(new)
        return new


class Prompts:
    """Token ids and texts with shared beginnings. `config`: the model's configuration. `scored_max`:
    the length limit of prompts to be scored. `routed`: the share of requests that ask for routes.
    `drafts`: only for a tree that speculates. `adapters`: the adapters that exist.
    """

    def __init__(self, rng, config, scored_max, routed=0.0, drafts=None, adapters=None):
        self._rng, self._vocab_size = rng, config["vocab_size"]
        self.config, self._routed, self.drafts, self._adapters = config, routed, drafts, adapters
        self._bases = [self._ids(rng.randint(8, 80)) for _ in range(6)]
        self._scored = [self._ids(min(length, scored_max)) for length in SCORED_LENGTHS]

    def _ids(self, count):
        return [self._rng.randrange(self._vocab_size - 16) for _ in range(count)]

    def asks_for_routes(self, rng):
        return rng.random() < self._routed

    def adapter(self, rng, record):
        """The name of an adapter for this request, or empty. Stores in the record which versions it may get."""
        if self._adapters is not None:
            record.adapter_name = self._adapters.choose(rng)
            record.adapter_floor = self._adapters.floor(record.adapter_name)
        return record.adapter_name

    def ids(self, rng):
        base = rng.choice(self._bases)
        return base[: rng.randint(1, len(base))] + [
            rng.randrange(self._vocab_size - 16) for _ in range(rng.randint(1, 24))
        ]

    def ids_and_draft(self, rng):
        """Returns (token ids, draft ids or None)."""
        again = self.drafts.choose(rng) if self.drafts else None
        return again or (self.ids(rng), None)

    def scored(self, rng):
        """One of a few prompts, whole or cut, so that each version scores a prompt more than once. Most prompts have
        several chunks."""
        prompt = rng.choice(self._scored)
        return prompt if rng.random() < 0.8 else prompt[: rng.randint(1, len(prompt))]

    def text(self, rng):
        return rng.choice(WORDS) + rng.choice(WORDS) * rng.randint(0, 3)
