"""An AsyncEngine with the calls of vLLM's AsyncLLM that trainers use."""

from __future__ import annotations

import types
import uuid
from dataclasses import dataclass, field
from typing import Any, AsyncIterator, Optional

from ..async_engine import AsyncEngine
from ..errors import PitstopError
from ..outputs import Output
from ..weight_calls import VLLM_GROUP


@dataclass(frozen=True)
class Logprob:
    logprob: float
    rank: Optional[int] = None
    decoded_token: Optional[str] = None


@dataclass
class CompletionOutput:
    index: int
    text: str
    token_ids: list[int]
    logprobs: Optional[list[dict[int, Logprob]]]  # [n]: the sampled token first, then the most probable
    cumulative_logprob: Optional[float]
    finish_reason: Optional[str]
    stop_reason: Any = None
    epochs: list[int] = field(default_factory=list)  # pitstop's addition: the version of each token


@dataclass
class RequestOutput:
    request_id: str
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    prompt: Optional[str] = None
    prompt_logprobs: Optional[list] = None
    metrics: Any = None
    lora_request: Any = None


def completion_of(out: Output) -> CompletionOutput:
    logprobs = None
    if out.logprobs:
        tops = out.top_logprobs or [[] for _ in out.logprobs]
        logprobs = []
        ranks = out.ranks or [None] * len(out.logprobs)
        for token, logprob, rank, top in zip(out.output_ids, out.logprobs, ranks, tops):
            row = {token: Logprob(logprob, rank)}
            row.update((each.token, Logprob(each.logprob, rank)) for rank, each in enumerate(top, 1))
            logprobs.append(row)
    finish = out.finish
    return CompletionOutput(
        index=out.index,
        text=out.text,
        token_ids=out.output_ids,
        logprobs=logprobs,
        cumulative_logprob=sum(out.logprobs) if out.logprobs else None,
        finish_reason=finish.reason if finish else None,
        stop_reason=(finish.matched_text or finish.matched_token) if finish else None,
        epochs=out.epochs,
    )


class VllmLike:
    """The calls of AsyncLLM. `logprobs_mode` is vLLM's argument: raw_logprobs or processed_logprobs."""

    def __init__(self, engine: AsyncEngine, logprobs_mode: Optional[str] = None):
        modes = {None: "raw", "raw_logprobs": "raw", "processed_logprobs": "truncated"}
        if logprobs_mode not in modes:
            raise PitstopError(
                "unsupported", f"logprobs_mode must be raw_logprobs or processed_logprobs, not {logprobs_mode}"
            )
        self.engine = engine
        self._mode = modes[logprobs_mode]
        self._num_open = 0
        self.output_processor = types.SimpleNamespace(get_num_unfinished_requests=lambda: self._num_open)
        for name in ("reset_prefix_cache", "resume_generation", "sleep", "wake_up", "is_sleeping", "collective_rpc"):
            setattr(self, name, getattr(engine, name))

    async def generate(
        self, prompt: Any, sampling_params: Any, request_id: Optional[str] = None, **options: Any
    ) -> AsyncIterator[RequestOutput]:
        """Yields one RequestOutput, the last one; trainers do not use earlier ones."""
        prompt_ids = prompt.get("prompt_token_ids") if isinstance(prompt, dict) else None
        if prompt_ids is None:
            prompt_ids = await self.engine.tokenize(prompt["prompt"] if isinstance(prompt, dict) else prompt)
        rid = request_id or uuid.uuid4().hex
        self._num_open += 1
        try:
            outs = await self.engine.generate(
                input_ids=[prompt_ids], sampling_params=sampling_params, rid=rid, logprobs_mode=self._mode, **options
            )
        finally:
            self._num_open -= 1
        for index, out in enumerate(outs):
            out.index = index
        yield RequestOutput(rid, list(prompt_ids), [completion_of(out) for out in outs], True)

    async def pause_generation(self, mode: str = "abort", **_: Any) -> None:
        await self.engine.pause(mode)

    async def abort(self, request_id: str) -> None:
        await self.engine.abort_request(request_id)


class BroadcastUpdate:
    """A version whose tensors are broadcast one call at a time. The version takes effect as a whole, with
    the last call."""

    def __init__(self, engine: AsyncEngine):
        self._engine = engine
        self._session: Optional[int] = None

    async def update_tensor(self, name: str, dtype: Any, shape: Any, is_last: bool) -> None:
        client = self._engine.client
        if self._session is None:
            self._session = (await client.begin_update(partial=True))["session"]
        info = {"name": name, "dtype": str(dtype).removeprefix("torch."), "shape": [int(n) for n in shape]}
        source = {"kind": "distributed", "group": VLLM_GROUP, "format": "each", "tensors": [info]}
        session, self._session = self._session, None  # the tree drops a failed session
        await client.update_bucket(source, session=session)
        if is_last:
            await client.commit_weights(session=session)
        else:
            self._session = session
