"""The results of an engine's calls."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Mapping, Optional

from .messages import AdapterVersion, Chunk, Counts, Finish, Routes, Span

MINUS_INFINITY = -9999.0  # the value that HTTP uses


@dataclass(frozen=True)
class TokenLogprob:
    token: int
    logprob: float


@dataclass
class Output:
    """A request's whole output; in a stream, all output so far. SGLang's callers read out["text"], out["output_ids"]
    and out["meta_info"]."""

    rid: str = ""
    index: int = 0  # its position among the call's outputs; samples of a prompt follow each other
    text: str = ""
    output_ids: list[int] = field(default_factory=list)  # [n]
    spans: list[Span] = field(default_factory=list)  # the versions of these tokens: their tokens sum to n
    logprobs: list[float] = field(default_factory=list)  # [n], if asked for
    ranks: list[int] = field(
        default_factory=list
    )  # [n], if asked for: each token's rank, from 1, in the distribution of its logprob
    top_logprobs: list[list[TokenLogprob]] = field(default_factory=list)  # [n][top], most probable first
    ids_logprobs: list[list[float]] = field(default_factory=list)  # [n][ids], in the request's order
    prompt_start: int = 0  # the prompt index of the first entries of the next two lists
    prompt_logprobs: list[float] = field(default_factory=list)
    prompt_ranks: list[int] = field(default_factory=list)
    routes: Optional[Routes] = None  # if asked for: `routes.array()` is [rows, layers, per_token]
    supports: list[list[int]] = field(default_factory=list)  # [n], if asked for: the tokens that each was drawn among
    support_logprobs: list[float] = field(default_factory=list)  # [n]: the logprob of each among its support alone
    prompt_ids: list[int] = field(default_factory=list)  # the whole prompt of a turn of a session
    counts: Counts = field(default_factory=Counts)
    finish: Optional[Finish] = None  # None: the stream continues
    adapter: Optional[AdapterVersion] = None  # the version that its latest token has; None: it has no adapter

    @property
    def epochs(self) -> list[int]:
        """[n]: the epoch of each token."""
        return [span.epoch for span in self.spans for _ in range(span.tokens)]

    @property
    def label(self) -> str:
        """The label of the last token's version; "epoch N" if it has none, as over HTTP."""
        last = self.spans[-1] if self.spans else None
        return (last.label or f"epoch {last.epoch}") if last else "epoch 0"

    @property
    def meta_info(self) -> dict[str, Any]:
        """SGLang's keys."""
        reason: Optional[dict[str, Any]] = None
        if self.finish is not None:
            reason = {"type": self.finish.reason}
            if self.finish.reason == "stop":
                reason["matched"] = self.finish.matched_text or self.finish.matched_token
            elif self.finish.reason == "length":
                reason["length"] = len(self.output_ids)
            else:
                reason["message"] = self.finish.message
        said: dict[str, Any] = {
            "id": self.rid,
            "finish_reason": reason,
            "prompt_tokens": self.counts.prompt_tokens,
            "completion_tokens": len(self.output_ids),
            "cached_tokens": self.counts.cached_tokens,
            "weight_version": self.label,
            "weight_version_spans": [_span_info(span) for span in self.spans],
        }
        if self.adapter is not None:
            said["adapter"] = dataclasses.asdict(self.adapter)
        if self.logprobs:
            said["output_token_logprobs"] = [
                (max(logprob, MINUS_INFINITY), token, None) for logprob, token in zip(self.logprobs, self.output_ids)
            ]
        if self.supports:
            said["output_token_sampling_mask"] = self.supports
            said["output_token_sampling_logprobs"] = self.support_logprobs
        if self.top_logprobs:
            said["output_top_logprobs"] = [
                [(max(each.logprob, MINUS_INFINITY), each.token, None) for each in row] for row in self.top_logprobs
            ]
        return said

    def __getitem__(self, name: str) -> Any:
        if name not in ("text", "output_ids", "meta_info"):
            raise KeyError(name)
        return getattr(self, name)


def _span_info(span: Span) -> dict[str, Any]:
    info = dataclasses.asdict(span)
    if span.adapter is None:
        del info["adapter"], info["kv_min_adapter"]
    return info


def _rows(values: list, width: int) -> list[list]:
    return [values[i : i + width] for i in range(0, len(values), width)] if width else []


def output_of(chunk: Chunk, index: int) -> Output:
    """Makes an Output of all chunks so far."""
    num_tokens = len(chunk.tokens)
    top = list(map(TokenLogprob, chunk.top_ids, chunk.top_logprobs))
    prompt = chunk.prompt
    return Output(
        rid=chunk.rid,
        index=index,
        text=chunk.text,
        output_ids=list(chunk.tokens),
        spans=[dataclasses.replace(span) for span in chunk.spans],
        logprobs=list(chunk.logprobs),
        ranks=list(chunk.ranks),
        top_logprobs=_rows(top, len(top) // num_tokens if num_tokens else 0),
        ids_logprobs=_rows(chunk.ids_logprobs, len(chunk.ids_logprobs) // num_tokens if num_tokens else 0),
        prompt_start=prompt.start if prompt else 0,
        prompt_logprobs=list(prompt.logprobs) if prompt else [],
        prompt_ranks=list(prompt.ranks) if prompt else [],
        routes=dataclasses.replace(chunk.routes) if chunk.routes is not None else None,
        supports=chunk.supports.rows() if chunk.supports else [],
        support_logprobs=list(chunk.supports.logprobs) if chunk.supports else [],
        prompt_ids=list(chunk.prompt_ids),
        counts=chunk.counts or Counts(),
        finish=chunk.finish,
        adapter=chunk.adapter,
    )


def _read(kind: type, reply: Mapping[str, Any], **more: Any) -> Any:
    names = {each.name for each in dataclasses.fields(kind)}
    return kind(**{name: value for name, value in reply.items() if name in names}, **more)


@dataclass(frozen=True)
class Update:
    """An update in effect on every rank. With state "collecting" it is only received and staged; it takes effect with
    all calls of its collection."""

    state: str = ""
    epoch: int = 0
    label: str = ""
    digest: str = ""  # of the resident weights, 32 hex digits
    config_digest: str = ""  # of an adapter's configuration (adapter_config.json)
    message: str = ""
    bytes: int = 0
    open_s: float = 0.0  # the slowest rank's time for allocating, opening, checking and closing the source
    wait_s: float = 0.0  # waiting for the sender
    receive_s: float = 0.0  # copying and digesting
    verify_s: float = 0.0  # digesting without copying
    rest_s: float = 0.0  # pauses that let steps continue
    stage_s: float = 0.0  # from the update's first call to the last rank's vote
    vote_s: float = 0.0
    pause_s: float = 0.0
    commit_s: float = 0.0
    total_s: float = 0.0
    replicas: list[dict[str, Any]] = field(default_factory=list)  # docs/protocol.md's ReplicaOutcome

    @property
    def is_in_effect(self) -> bool:
        return self.state != "collecting"


@dataclass(frozen=True)
class Adapter:
    """An adapter (LoRA) that is loaded: the version that new requests get."""

    name: str = ""
    version: int = 0  # the number of the update that loaded it
    label: str = ""
    digest: str = ""
    path: str = ""  # the directory that it came from; empty: its tensors were sent
    num_requests: int = 0  # open requests that have this version
    num_older: int = 0  # open requests that began with an older one
    bytes: int = 0  # resident tensors of this version and of older versions that open requests have
    loads_total: int = 0  # versions under this name since it was last unloaded
    requests_total: int = 0  # requests that named it, since then
    output_tokens_total: int = 0  # output tokens of those requests so far
    config_digest: str = ""  # of its configuration's text; `digest` is of its tensors alone


def adapters_of(status: Mapping[str, Any]) -> list[Adapter]:
    """The adapters that every replica has, by name, with the first replica's counts. One that a replica has lost is not
    among them."""
    first, *others = [replica.get("adapters", []) for replica in status["replicas"]]
    names = [{each["adapter"]["name"] for each in adapters} for adapters in others]
    loaded = [each for each in first if all(each["adapter"]["name"] in other for other in names)]
    return [_read(Adapter, {**each, **each["adapter"]}) for each in loaded]


def update_of(reply: Mapping[str, Any]) -> Update:
    return _read(Update, reply)


@dataclass(frozen=True)
class Pause:
    """The result of a pause that holds on every replica: how many requests were aborted, retracted and frozen, and
    how many wait."""

    message: str = ""
    num_aborted: int = 0
    num_retracted: int = 0
    num_frozen: int = 0
    num_waiting: int = 0


def pause_of(reply: Mapping[str, Any]) -> Pause:
    parts = reply.get("parts", [])
    counts = {
        name: sum(part.get(name, 0) for part in parts)
        for name in ("num_aborted", "num_retracted", "num_frozen", "num_waiting")
    }
    return Pause(reply.get("message", ""), **counts)


@dataclass(frozen=True)
class TensorDigest:
    dtype: str
    shape: tuple[int, ...]
    digest: str


@dataclass(frozen=True)
class WeightDigests:
    """Digests of the resident weights, computed by this call."""

    epoch: int
    label: str
    digest: str
    tensors: dict[str, TensorDigest]


def digests_of(reply: Mapping[str, Any]) -> WeightDigests:
    tensors = {
        each["name"]: TensorDigest(each["dtype"], tuple(each["shape"]), each["digest"])
        for each in reply.get("tensors", [])
    }
    return WeightDigests(reply["epoch"], reply.get("label", ""), reply.get("digest", ""), tensors)
