"""A tree's messages as Python objects. Names and meanings are those of docs/protocol.md."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import struct
from dataclasses import dataclass, field
from typing import Any, Dict, Mapping, Optional, Sequence, Union, cast

PROTOCOL_VERSION = 2

SAMPLING_FIELDS = frozenset(
    {
        "max_new_tokens",
        "min_new_tokens",
        "temperature",
        "top_k",
        "top_p",
        "min_p",
        "repetition_penalty",
        "frequency_penalty",
        "presence_penalty",
        "num_output_in_prompt",
        "logit_bias",
        "allowed_token_ids",
        "bad_words",
        "bad_tokens",
        "seed",
        "json_schema",
        "regex",
        "ebnf",
        "structural_tag",
        "stop",
        "stop_token_ids",
        "ignore_eos",
        "no_stop_trim",
        "skip_special_tokens",
        "spaces_between_special_tokens",
    }
)

Prompt = Union[str, Sequence[int]]


@dataclass
class Span:
    """A run of output tokens sampled under one version of the weights."""

    epoch: int = 0
    label: str = ""
    digest: str = ""
    tokens: int = 0
    kv_min_epoch: int = 0
    kv_max_epoch: int = 0
    adapter: Optional[AdapterVersion] = None  # the version of the adapter; None: they have none
    kv_min_adapter: Optional[int] = None  # the oldest version of the adapter among the KV that they attended to
    replica: str = ""  # in a fleet: the replica that sampled them


@dataclass
class AdapterVersion:
    """A version of an adapter (LoRA), as an update brought it."""

    name: str = ""
    version: int = 0  # the number of the update
    label: str = ""
    digest: str = ""


@dataclass
class Finish:
    """Why a request ended: reason is "stop", "length", "abort" or "error"."""

    reason: str = ""
    matched_token: Optional[int] = None
    matched_text: str = ""
    code: str = ""
    message: str = ""
    was_waiting: bool = False


@dataclass
class PromptLogprobs:
    """Logprobs of prompt tokens [start, prompt length): n of them."""

    start: int = 0
    logprobs: list[float] = field(default_factory=list)  # [n]
    ranks: list[int] = field(default_factory=list)  # [n], from 1: the token's place in the vocabulary
    top_ids: list[int] = field(default_factory=list)  # [n * top]
    top_logprobs: list[float] = field(default_factory=list)  # [n * top]
    ids_logprobs: list[float] = field(default_factory=list)  # [n * ids]


@dataclass
class RouteSpan:
    """A run of rows of routes that one version of the weights chose."""

    epoch: int = 0
    rows: int = 0


@dataclass
class Routes:
    """The experts that each layer's router chose for tokens [start, start + n), or, of a request, those that its tokens
    use: n rows of layers * per_token ids, of one byte each, or of two, little-endian, over 256 experts."""

    start: int = 0
    layers: int = 0
    per_token: int = 0
    num_experts: int = 0
    experts: bytes = b""
    spans: list[RouteSpan] = field(default_factory=list)  # their rows sum to n

    @classmethod
    def of(cls, rows: Any, num_experts: int) -> Routes:
        """Of a numpy array of integers, [n, layers, per_token]. ValueError: an id that is no expert's."""
        import numpy

        rows = numpy.asarray(rows)
        if rows.ndim != 3 or rows.dtype.kind not in "iu":
            raise ValueError(f"rows of shape {rows.shape}, {rows.dtype}; routes are integers, [n, layers, per_token]")
        if rows.size and not (0 <= rows.min() and rows.max() < num_experts):
            raise ValueError(f"experts {rows.min()} to {rows.max()}; the model has [0, {num_experts})")
        return cls(0, rows.shape[1], rows.shape[2], num_experts, rows.astype(_id_dtype(num_experts)).tobytes())

    def array(self) -> Any:
        """A numpy array, [n, layers, per_token]."""
        import numpy

        ids = numpy.frombuffer(self.experts, dtype=_id_dtype(self.num_experts))
        return ids.reshape(-1, self.layers, self.per_token) if self.layers else ids.reshape(0, 0, 0)

    def append(self, other: Routes) -> None:
        self.experts += other.experts
        for span in other.spans:
            if self.spans and self.spans[-1].epoch == span.epoch:
                self.spans[-1].rows += span.rows
            else:
                self.spans.append(dataclasses.replace(span))

    def body(self) -> dict[str, Any]:
        """Returns the routes as a body of `generate` has them."""
        shape = {"layers": self.layers, "per_token": self.per_token, "num_experts": self.num_experts}
        return {"shape": shape, "experts": self.experts}


def _id_dtype(num_experts: int) -> str:
    return "<u1" if num_experts <= 256 else "<u2"


@dataclass
class Supports:
    """The tokens that each of n output tokens was drawn among: those that the grammar, top-k, top-p and min-p left."""

    sizes: list[int] = field(default_factory=list)  # [n]
    ids: list[int] = field(default_factory=list)  # [sum of sizes], back to back
    logprobs: list[float] = field(default_factory=list)  # [n], of the token among these alone

    def append(self, other: Supports) -> None:
        for name in ("sizes", "ids", "logprobs"):
            getattr(self, name).extend(getattr(other, name))

    def rows(self) -> list[list[int]]:
        """[n][size]"""
        ids = iter(self.ids)
        return [list(itertools.islice(ids, size)) for size in self.sizes]


@dataclass
class Counts:
    """Token counts and timings of a request."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    retractions: int = 0
    replica: int = 0
    queue_us: int = 0  # from its arrival at the scheduler until it was first admitted
    prefill_us: int = 0  # from then until its first output token
    decode_us: int = 0  # from then until its latest
    replayed_tokens: int = 0  # of the prompt, that the prefix cache had without the recurrent state after them
    drafts: Optional[Dict[str, int]] = None  # with --speculate: passes, rows, drafted, accepted
    history_tokens: int = 0  # of a turn: prompt tokens that the turn before had
    stale_tokens: int = 0  # of a turn: tokens after the cached ones that only weights out of its tolerance had computed


@dataclass
class Chunk:
    """The next part of a request's output: n tokens and their text."""

    rid: str = ""
    text: str = ""
    tokens: list[int] = field(default_factory=list)  # [n]
    logprobs: list[float] = field(default_factory=list)  # [n], if asked for
    ranks: list[int] = field(default_factory=list)  # [n], if asked for: the token's place, from 1
    top_ids: list[int] = field(default_factory=list)  # [n * top], most probable first
    top_logprobs: list[float] = field(default_factory=list)  # [n * top]
    ids_logprobs: list[float] = field(default_factory=list)  # [n * ids]
    spans: list[Span] = field(default_factory=list)  # their tokens sum to n
    prompt: Optional[PromptLogprobs] = None  # in the first chunk, if asked for
    routes: Optional[Routes] = None  # if asked for: a row for each of these tokens, and first those of the prompt
    supports: Optional[Supports] = None  # [n], if asked for
    prompt_ids: list[int] = field(default_factory=list)  # in the first chunk of a turn, if asked for
    counts: Optional[Counts] = None  # in the first and the last chunk
    finish: Optional[Finish] = None  # in the last chunk
    # with counts: the version that the latest token has, or that the first will have; None: the request has no adapter
    adapter: Optional[AdapterVersion] = None

    def append(self, other: Chunk) -> None:
        """Appends the next chunk; its counts and finish replace these."""
        self.text += other.text
        for name in ("tokens", "logprobs", "ranks", "top_ids", "top_logprobs", "ids_logprobs"):
            getattr(self, name).extend(getattr(other, name))
        for span in other.spans:
            last = self.spans[-1] if self.spans else None
            if last is not None and dataclasses.replace(last, tokens=span.tokens) == span:
                last.tokens += span.tokens
            else:
                self.spans.append(dataclasses.replace(span))
        self.prompt = self.prompt or other.prompt
        if other.routes is not None:
            if self.routes is None:
                self.routes = dataclasses.replace(other.routes, experts=b"", spans=[])
            self.routes.append(other.routes)
        if other.supports is not None:
            self.supports = self.supports or Supports()
            self.supports.append(other.supports)
        self.prompt_ids = self.prompt_ids or other.prompt_ids
        self.counts = other.counts or self.counts
        self.finish = other.finish or self.finish
        self.adapter = other.adapter or self.adapter


@dataclass
class ServerInfo:
    """The tree at a door, and what it serves. `tree` changes with every start."""

    protocol: int = 0
    tree: str = ""
    server: str = ""
    model: str = ""
    model_path: str = ""
    model_type: str = ""
    context_len: int = 0
    vocab_size: int = 0
    replicas: int = 0
    tp: int = 0
    eos_ids: list[int] = field(default_factory=list)


def read(kind: type, body: Mapping[str, Any]) -> Any:
    """Makes a dataclass of a message's map. Fields of a newer tree are ignored."""
    names = _names_of(kind)
    return kind(**{name: value for name, value in body.items() if name in names})


@functools.cache
def _names_of(kind: type) -> frozenset[str]:
    """The field names of a class, cached: chunks are read for each token of each stream."""
    return frozenset(each.name for each in dataclasses.fields(kind))


def place_expert_load(status: Mapping[str, Any], raw: Sequence[bytes]) -> None:
    """Replaces the place of a status's expert_load in the message's frames by its table."""
    load = status.get("expert_load")
    if load is None or "tokens" not in load:
        return
    frame, begin, num = load["tokens"]
    counts = struct.unpack_from(f"<{num}q", raw[frame], begin)
    width = load["num_experts"]
    load["tokens"] = [list(counts[i : i + width]) for i in range(0, num, width)]


def _read_routes(body: Mapping[str, Any], raw: Sequence[bytes]) -> Routes:
    frame, begin, num = body.get("experts", (0, 0, 0))
    experts = raw[frame][begin : begin + num] if num else b""
    spans = [read(RouteSpan, span) for span in body.get("spans", [])]
    shape = body.get("shape", {})
    of_shape = {name: shape.get(name, 0) for name in ("layers", "per_token", "num_experts")}
    return Routes(start=body.get("start", 0), experts=experts, spans=spans, **of_shape)


def _read_span(body: Mapping[str, Any]) -> Span:
    span = read(Span, body)
    if span.adapter is not None:
        span.adapter = read(AdapterVersion, body["adapter"])
    return cast(Span, span)


def read_chunk(body: Mapping[str, Any], raw: Sequence[bytes] = ()) -> Chunk:
    """`raw`: the message's further frames."""
    chunk = read(Chunk, body)
    if chunk.routes is not None:
        chunk.routes = _read_routes(body["routes"], raw)
    chunk.spans = [_read_span(span) for span in chunk.spans]
    if chunk.prompt is not None:
        chunk.prompt = read(PromptLogprobs, chunk.prompt)
    if chunk.supports is not None:
        chunk.supports = read(Supports, chunk.supports)
    if chunk.counts is not None:
        chunk.counts = read(Counts, chunk.counts)
    if chunk.finish is not None:
        chunk.finish = read(Finish, chunk.finish)
    if chunk.adapter is not None:
        chunk.adapter = read(AdapterVersion, chunk.adapter)
    return cast(Chunk, chunk)


def error_chunk(rid: str, code: str, message: str) -> Chunk:
    return Chunk(rid=rid, finish=Finish(reason="error", code=code, message=message))


def generate_body(
    rid: str,
    prompt: Prompt,
    sampling: Mapping[str, Any],
    options: Mapping[str, Any],
) -> dict[str, Any]:
    """The map of a `generate`. Raises TypeError for a sampling parameter that does not exist."""
    unknown = sorted(set(sampling) - SAMPLING_FIELDS)
    if unknown:
        known = ", ".join(sorted(SAMPLING_FIELDS))
        raise TypeError(f"no sampling parameter {', '.join(unknown)}; there are {known}")
    body: dict[str, Any] = {"rid": rid}
    if isinstance(prompt, str):
        body["text"] = prompt
    else:
        body["input_ids"] = [int(token) for token in prompt]
    if sampling:
        body["sampling"] = dict(sampling)
    if isinstance(sampling.get("stop"), str):
        body["sampling"]["stop"] = [sampling["stop"]]
    body.update({name: value for name, value in options.items() if value is not None})
    if options.get("logprobs") is True:
        body["logprobs"] = {"enabled": True}
    elif options.get("logprobs") is False:
        del body["logprobs"]
    return body
