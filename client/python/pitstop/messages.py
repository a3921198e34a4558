"""A tree's messages as Python objects. pitstop_python_fields writes their fields from messages/*.h."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import struct
from dataclasses import dataclass, field
from typing import Any, Dict, Mapping, Optional, Sequence, Union, cast

# begin: protocol (written by pitstop_python_fields)
PROTOCOL_VERSION = 3
# end

SAMPLING_FIELDS = frozenset(
    {
        # begin: sampling (written by pitstop_python_fields)
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
        "stop",
        "stop_token_ids",
        "json_schema",
        "regex",
        "ebnf",
        "structural_tag",
        "ignore_eos",
        "no_stop_trim",
        "skip_special_tokens",
        "spaces_between_special_tokens",
        # end
    }
)

Prompt = Union[str, Sequence[int]]


@dataclass
class Span:
    """A run of output tokens sampled under one version of the weights."""

    # begin: Span (written by pitstop_python_fields)
    epoch: int = 0  # the weight version that sampled the tokens
    label: str = ""  # that version's label
    digest: str = ""  # that version's digest, 32 hex digits
    tokens: int = 0  # the number of tokens
    kv_min_epoch: int = 0  # the oldest epoch of the KV that these tokens attended to
    kv_max_epoch: int = 0  # the newest epoch of the KV that these tokens attended to
    adapter: Optional[AdapterVersion] = None  # the adapter's version that sampled the tokens; absent: no adapter
    # the oldest version of the adapter among the KV that these tokens attended to; the newest is the version in
    # `adapter`
    kv_min_adapter: Optional[int] = None
    # end
    replica: str = ""  # in a fleet: the replica that sampled them


@dataclass
class AdapterVersion:
    """A version of an adapter (LoRA), as an update brought it."""

    # begin: AdapterVersion (written by pitstop_python_fields)
    name: str = ""  # the adapter's name
    version: int = 0  # the number of the update that loaded it; later updates have larger numbers
    label: str = ""  # its label
    digest: str = ""  # the digest of its resident tensors, 32 hex digits
    # end


@dataclass
class Finish:
    """Why a request ended: reason is "stop", "length", "abort" or "error"."""

    # begin: Finish (written by pitstop_python_fields)
    reason: str = "stop"  # stop (end of sequence, stop token, stop text), length, abort or error
    matched_token: Optional[int] = None  # stop: the token that ended the output
    matched_text: str = ""  # stop: the stop text that ended it
    code: str = ""  # error: the error's code
    message: str = ""  # abort, error: why
    was_waiting: bool = False  # abort: the request was not running, because it had not begun or was retracted
    # end


@dataclass
class PromptLogprobs:
    """Logprobs of prompt tokens [start, prompt length): n of them."""

    # begin: PromptLogprobs (written by pitstop_python_fields)
    start: int = 0  # the prompt index of the first entry, at least 1: token 0 has no logprob
    logprobs: list[float] = field(default_factory=list)  # [n], the logprob of each prompt token from `start` on
    # [n], each prompt token's rank among all tokens, from 1: the most probable; equally probable tokens are ordered by
    # id
    ranks: list[int] = field(default_factory=list)
    top_ids: list[int] = field(default_factory=list)  # [n * top], most probable first
    top_logprobs: list[float] = field(default_factory=list)  # [n * top]
    ids_logprobs: list[float] = field(default_factory=list)  # [n * ids], in the request's order
    # end


@dataclass
class RouteSpan:
    """A run of rows of routes that one version of the weights chose."""

    # begin: RouteSpan (written by pitstop_python_fields)
    epoch: int = 0  # the epoch of the weights that chose the rows' experts
    rows: int = 0  # number of rows
    # end


@dataclass
class RouteShape:
    """The shape of a row of routes."""

    # begin: RouteShape (written by pitstop_python_fields)
    layers: int = 0  # all of the model's layers, including those without experts
    per_token: int = 0  # experts that each token has in a layer
    num_experts: int = 0  # ids are less than this: one byte each, two bytes if it is over 256
    # end


@dataclass
class Routes:
    """The experts that each layer's router chose for tokens [start, start + n); in a request, the experts that these
    tokens must use. There are n rows of layers * per_token ids. An id is one byte, or two (little-endian) with over 256
    experts."""

    # begin: Routes, without shape (written by pitstop_python_fields)
    start: int = 0  # the index of the first row's token in prompt and output together
    experts: bytes = b""  # [n, layers, per_token], the most probable first, little-endian if ids have two bytes
    # the versions that chose the experts, run-length encoded: the spans' rows sum to n
    spans: list[RouteSpan] = field(default_factory=list)
    # end
    # begin: RouteShape (written by pitstop_python_fields)
    layers: int = 0  # all of the model's layers, including those without experts
    per_token: int = 0  # experts that each token has in a layer
    num_experts: int = 0  # ids are less than this: one byte each, two bytes if it is over 256
    # end

    @classmethod
    def of(cls, rows: Any, num_experts: int) -> Routes:
        """Makes Routes of a numpy array of integers, [n, layers, per_token]. ValueError: an id that is no expert's."""
        import numpy

        rows = numpy.asarray(rows)
        if rows.ndim != 3 or rows.dtype.kind not in "iu":
            raise ValueError(f"rows of shape {rows.shape}, {rows.dtype}; routes are integers, [n, layers, per_token]")
        if rows.size and not (0 <= rows.min() and rows.max() < num_experts):
            raise ValueError(f"experts {rows.min()} to {rows.max()}; the model has [0, {num_experts})")
        return cls(
            experts=rows.astype(_id_dtype(num_experts)).tobytes(),
            layers=rows.shape[1],
            per_token=rows.shape[2],
            num_experts=num_experts,
        )

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

    # begin: Supports (written by pitstop_python_fields)
    # [n], the size of each output token's support: how many tokens it was drawn among
    sizes: list[int] = field(default_factory=list)
    # [sum of sizes], the ids in each support, ascending, supports back to back
    ids: list[int] = field(default_factory=list)
    # [n], the logprob of each output token, with the probabilities of its support scaled to sum to 1
    logprobs: list[float] = field(default_factory=list)
    # end

    def append(self, other: Supports) -> None:
        for name in ("sizes", "ids", "logprobs"):
            getattr(self, name).extend(getattr(other, name))

    def rows(self) -> list[list[int]]:
        """The support of each token: [n][size]."""
        ids = iter(self.ids)
        return [list(itertools.islice(ids, size)) for size in self.sizes]


@dataclass
class Counts:
    """Token counts and timings of a request."""

    # begin: RequestCounts (written by pitstop_python_fields)
    prompt_tokens: int = 0  # length of the prompt
    cached_tokens: int = 0  # prompt tokens found in the prefix cache when it was first admitted
    completion_tokens: int = 0  # output tokens so far
    retractions: int = 0  # the number of its retractions
    replica: int = 0  # the replica that ran it
    queue_us: int = 0  # microseconds from its arrival at the replica to its first admission
    prefill_us: int = 0  # microseconds from its first admission to its first output token
    decode_us: int = 0  # microseconds from its first output token to its latest
    # prompt tokens after the cached ones, computed again although the prefix cache had them: no checkpoint of the
    # recurrent state after them existed
    replayed_tokens: int = 0
    drafts: Optional[Dict[str, int]] = None  # with speculation: its drafts
    history_tokens: int = 0  # for a turn: prompt tokens that the previous turn had in its prompt or output
    # for a turn: prompt tokens after the cached ones. The prefix cache had them, but from weights that kv_tolerance
    # excludes
    stale_tokens: int = 0
    # end


@dataclass
class Chunk:
    """The next part of a request's output: n tokens and their text."""

    # begin: OutputChunk, without key (written by pitstop_python_fields)
    rid: str = ""  # the caller's id; empty inside the tree
    text: str = ""  # the text that these tokens added
    tokens: list[int] = field(default_factory=list)  # [n], the new output tokens
    logprobs: list[float] = field(default_factory=list)  # [n], if asked for
    # [n], if asked for: the rank of each token, from 1, in the distribution of its logprob
    ranks: list[int] = field(default_factory=list)
    top_ids: list[int] = field(default_factory=list)  # [n * top], most probable first
    top_logprobs: list[float] = field(default_factory=list)  # [n * top]
    ids_logprobs: list[float] = field(default_factory=list)  # [n * ids], in the request's order
    # the versions of these tokens, run-length encoded: their tokens sum to n
    spans: list[Span] = field(default_factory=list)
    prompt: Optional[PromptLogprobs] = None  # prompt logprobs, if asked for: in the first chunk
    # if requested: a row for each token in `tokens`, of the position before that token; the first chunk has the
    # prompt's rows, too
    routes: Optional[Routes] = None
    supports: Optional[Supports] = None  # if requested: the support of each token in `tokens`
    prompt_ids: list[int] = field(default_factory=list)  # the whole prompt of a turn, if asked for: in the first chunk
    counts: Optional[Counts] = None  # in the first and the last chunk
    finish: Optional[Finish] = None  # in the last chunk
    # with counts: the adapter's version that sampled the request's latest token, or will sample its first; absent: no
    # adapter
    adapter: Optional[AdapterVersion] = None
    # end

    def append(self, other: Chunk) -> None:
        """Appends the next chunk, whose counts and finish replace this chunk's."""
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

    # begin: HelloReply (written by pitstop_python_fields)
    protocol: int = 0  # protocol version of the tree
    server: str = ""  # pitstop and its version
    model: str = ""  # the served model's name
    model_path: str = ""  # the directory that the model was loaded from
    model_type: str = ""  # the model's family: model_type of its config.json
    context_len: int = 0  # tokens that prompt and output together may have
    vocab_size: int = 0  # token ids are less than this
    replicas: int = 0  # data-parallel replicas
    tp: int = 0  # ranks per replica
    eos_ids: list[int] = field(default_factory=list)  # end-of-sequence tokens
    routes: Optional[RouteShape] = None  # the shape of a row of routes; absent: the model has no experts
    # end
    tree: str = ""  # its identity, which changes with every start


def read(kind: type, body: Mapping[str, Any]) -> Any:
    """Makes a dataclass of a message's map. Fields of a newer tree are ignored."""
    names = _names_of(kind)
    return kind(**{name: value for name, value in body.items() if name in names})


@functools.cache
def _names_of(kind: type) -> frozenset[str]:
    """The field names of a class, cached: chunks are read for each token of each stream."""
    return frozenset(each.name for each in dataclasses.fields(kind))


def read_info(body: Mapping[str, Any]) -> ServerInfo:
    info = read(ServerInfo, body)
    if info.routes is not None:
        info.routes = read(RouteShape, body["routes"])
    return cast(ServerInfo, info)


def place_expert_load(status: Mapping[str, Any], raw: Sequence[bytes]) -> None:
    """Replaces the reference to a raw frame in a status's expert_load by the frame's table."""
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
        raise TypeError(f"unknown sampling parameter {', '.join(unknown)}; accepted are {known}")
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
