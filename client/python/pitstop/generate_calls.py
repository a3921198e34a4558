"""The generating calls of an asyncio engine, for any object with a connection."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any, AsyncIterator, Mapping, Optional, Sequence, Union

from .aio import AsyncClient, AsyncStream
from .calls import CALL_TIMEOUT_S
from .errors import PitstopError
from .messages import Chunk, Routes
from .not_served import check_arguments
from .outputs import Output, output_of
from .progress import Progress
from .prompts import Prompts, read_prompts
from .sampling import Drawing, read_sampling


def _names(rid: Union[str, Sequence[str], None], num_samples: Sequence[int]) -> list[str]:
    """One id per request: a batch with the id X has X_0, X_1, ..."""
    total = sum(num_samples)
    if rid is None:
        return [uuid.uuid4().hex for _ in range(total)]
    if isinstance(rid, str):
        return [rid] if total == 1 else [f"{rid}_{i}" for i in range(total)]
    if len(rid) != len(num_samples):
        raise TypeError(f"{len(rid)} rids for {len(num_samples)} prompts: give one for each prompt")
    names = []
    for each, n in zip(rid, num_samples):
        names += [each] if n == 1 else [f"{each}_{i}" for i in range(n)]
    return names


Adapters = Union[str, Sequence[Optional[str]], None]


def _of_each(value: Any, num_prompts: int, name: str) -> list:
    """An argument's value for each prompt: a list has one per prompt, anything else is for all."""
    if not isinstance(value, (list, tuple)):
        return [value] * num_prompts
    if len(value) != num_prompts:
        raise TypeError(f"{len(value)} {name} for {num_prompts} prompts")
    return list(value)


def _adapters(adapter: Adapters, lora_path: Adapters, num_prompts: int) -> list[str]:
    """The adapter of each prompt; empty: the model alone."""
    if adapter is not None and lora_path is not None:
        raise TypeError("adapter and lora_path name the same thing: give one of them")
    given = adapter if adapter is not None else lora_path
    return [each or "" for each in _of_each(given, num_prompts, "adapters")]


def _turn(given: Optional[Mapping[str, Any]]) -> Optional[dict[str, Any]]:
    """docs/protocol.md's Turn, from SGLang's session_params."""
    names = {"id": "conversation", "rid": "after", "offset": "offset", "replace": "replace",
             "drop_previous_output": "drop_output"}  # fmt: skip
    unknown = sorted(set(given or {}) - set(names))
    if unknown:
        raise TypeError(f"session_params: unknown member {', '.join(unknown)}; accepted are {', '.join(names)}")
    turn = {names[name]: value for name, value in (given or {}).items() if value}
    return {**turn, "wants_prompt": True} if turn else None


def _logprobs(
    drawing: Drawing, is_wanted: bool, start: Optional[int], top: int, ids: Optional[Sequence[int]], mode: str
) -> Any:
    """docs/protocol.md's LogprobOptions, from SGLang's arguments or vLLM's sampling parameters; None: no logprobs. vLLM's
    `top` of -1 means the whole vocabulary."""
    tops = [top, drawing.logprobs or 0, drawing.prompt_logprobs or 0]
    num_top = -1 if -1 in tops else max(tops)
    if drawing.prompt_logprobs is not None:
        start = 0 if start is None else start
    if not (is_wanted or drawing.logprobs is not None or start is not None or num_top or ids):
        return None
    asked: dict[str, Any] = {"enabled": True, "mode": mode, "top": num_top}
    if start is not None and start != -1:  # SGLang's -1: no token of the prompt
        asked["prompt_start"] = start
    return {**asked, "ids": list(ids)} if ids else asked


def _jobs(prompts: Sequence, drawings: Sequence, reports: Sequence, own: Sequence[dict], rids: Sequence) -> list:
    """A job for each sample of each prompt, in order: its prompt, sampling, number, logprobs and other fields."""
    names = iter(rids)
    return [
        (prompt, drawing, sample, logprobs, {**fields, "rid": next(names)})
        for prompt, drawing, logprobs, fields in zip(prompts, drawings, reports, own)
        for sample in range(drawing.n)
    ]


class GenerateCalls:
    """A mixin for classes with a connection."""

    _use_tqdm: Optional[bool]

    def _open(self) -> AsyncClient:
        raise NotImplementedError

    def _request(
        self, prompt: Any, drawing: Drawing, sample: int, logprobs: Any, options: Mapping[str, Any]
    ) -> AsyncStream:
        return self._open().generate(prompt, logprobs=logprobs, **options, **drawing.of_sample(sample))

    def _reports(self, logprobs: Optional[dict[str, Any]], wants_mask: bool) -> Optional[dict[str, Any]]:
        """docs/protocol.md's LogprobOptions: with the model's numbers, and with the support of draws."""
        if logprobs is not None and logprobs["top"] == -1:
            logprobs["top"] = self._open().info.vocab_size
        return {**(logprobs or {}), "support": True} if wants_mask else logprobs

    async def generate(
        self,
        prompt: Optional[Prompts] = None,
        sampling_params: Any = None,
        input_ids: Optional[Union[Sequence[int], Sequence[Sequence[int]]]] = None,
        *,
        return_logprob: Union[bool, Sequence[bool]] = False,
        logprob_start_len: Optional[int] = None,
        top_logprobs_num: int = 0,
        token_ids_logprob: Optional[Sequence[int]] = None,
        logprobs_mode: str = "raw",
        rid: Optional[Union[str, Sequence[str]]] = None,
        priority: int = 0,
        kv_tolerance: str = "never",
        kv_max_lag: int = 0,
        routed_dp_rank: Optional[int] = None,
        data_parallel_rank: Optional[int] = None,
        adapter: Adapters = None,
        lora_path: Adapters = None,
        return_sampling_mask: bool = False,
        session_params: Optional[Mapping[str, Any]] = None,
        return_routed_experts: bool = False,
        routed_experts_start_len: int = 0,
        routed_experts: Optional[Union[Routes, Sequence[Optional[Routes]]]] = None,
        stream: bool = False,
        use_tqdm: Optional[bool] = None,
        timeout: Optional[float] = None,
        **of_others: Any,
    ) -> Any:
        """Returns one Output for one prompt, or a list for a list or for samples (n over 1), in the order of the prompts.
        With `stream`, returns an async iterator of Outputs, each with all output so far.

        prompt, input_ids   text, token ids, or a list of either (also vLLM's {"prompt"} and {"prompt_token_ids"})
        sampling_params     a dict in SGLang's or vLLM's names, or vLLM's SamplingParams; a list: one per prompt
        logprobs_mode       the distribution of the logprobs: raw, scaled or truncated
        return_routed_experts   a model of experts: outputs have `routes`, of tokens from routed_experts_start_len on
        routed_experts      the Routes that a prompt's tokens use; a list: one per prompt
        kv_tolerance        never, max_lag or keep: cached prefixes of older weights (docs/provenance.md)
        adapter             the name of a loaded adapter (LoRA), or a list: one per prompt, None for the model alone;
                            lora_path is SGLang's name for it
        timeout             seconds after which each request is cancelled, with "deadline_exceeded" and the reason of
                            the wait; None: no limit. A tree that stands still for two seconds causes a WaitingWarning
        """
        check_arguments("generate", of_others)
        prompts, is_list = read_prompts(prompt, input_ids)
        drawings = [read_sampling(params) for params in _of_each(sampling_params, len(prompts), "sampling_params")]
        options = {
            "stream": stream,
            "priority": priority,
            "kv_tolerance": kv_tolerance,
            "kv_max_lag": kv_max_lag,
            "timeout": timeout,
            "replica": routed_dp_rank if routed_dp_rank is not None else data_parallel_rank,
            "routed_experts_start": routed_experts_start_len if return_routed_experts else None,
            "turn": _turn(session_params),
        }
        brought = _of_each(routed_experts, len(prompts), "routed_experts")
        wants = _of_each(return_logprob, len(prompts), "return_logprob")
        reported = (logprob_start_len, top_logprobs_num, token_ids_logprob, logprobs_mode)
        asked = [_logprobs(drawing, bool(wanted), *reported) for drawing, wanted in zip(drawings, wants)]
        reports = [self._reports(each, return_sampling_mask) for each in asked]
        adapters = _adapters(adapter, lora_path, len(prompts))
        own = [{**options, "adapter": name, "routed_experts": routes} for name, routes in zip(adapters, brought)]
        jobs = _jobs(prompts, drawings, reports, own, _names(rid, [drawing.n for drawing in drawings]))
        if stream:
            return self._streamed(jobs)
        if is_list or len(jobs) > 1:
            return await self._all(jobs, use_tqdm if use_tqdm is not None else self._use_tqdm)
        return (await self._all(jobs, False))[0]

    async_generate = generate

    async def _all(self, jobs: list, is_shown: Optional[bool]) -> list[Output]:
        streams = [self._request(*job) for job in jobs]
        with Progress("generating", len(jobs), is_shown, "request") as progress:

            async def one(index: int, stream: AsyncStream) -> Output:
                output = output_of(await stream.result(), index)
                progress.add()
                return output

            tasks = [asyncio.ensure_future(one(index, stream)) for index, stream in enumerate(streams)]
            try:
                return list(await asyncio.gather(*tasks))
            except BaseException:  # cancel the other requests of this call
                for task, stream in zip(tasks, streams):
                    task.cancel()
                    if not stream.finished:
                        stream.cancel()
                raise

    async def _streamed(self, jobs: list) -> AsyncIterator[Output]:
        queue: asyncio.Queue = asyncio.Queue()
        streams = [self._request(*job) for job in jobs]

        async def follow(index: int, stream: AsyncStream) -> None:
            whole = Chunk(rid=stream.rid)
            try:
                async for chunk in stream:
                    whole.append(chunk)
                    await queue.put(output_of(whole, index))
            except PitstopError as error:
                await queue.put(error)

        tasks = [asyncio.ensure_future(follow(index, stream)) for index, stream in enumerate(streams)]
        num_open = len(tasks)
        try:
            while num_open:
                output = await queue.get()
                if isinstance(output, PitstopError):
                    raise output
                num_open -= output.finish is not None
                yield output
        finally:
            for task, stream in zip(tasks, streams):
                task.cancel()
                if not stream.finished:
                    stream.cancel()

    async def chat(
        self,
        messages: Sequence[Any],
        sampling_params: Any = None,
        *,
        use_tqdm: Optional[bool] = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Optional[Sequence[Any]] = None,
        chat_template: Optional[str] = None,
        chat_template_kwargs: Optional[Mapping[str, Any]] = None,
        timeout: Optional[float] = None,
        **options: Any,
    ) -> Any:
        """Like vllm.LLM.chat: sends a conversation, or a list of them, through the model's chat template."""
        of_render = {name: options.pop(name) for name in ("lora_request", "mm_processor_kwargs") if name in options}
        check_arguments("chat", of_render)
        is_list = bool(messages) and not isinstance(messages[0], Mapping)
        conversations = list(messages) if is_list else [messages]
        variables = {"add_generation_prompt": add_generation_prompt, **(chat_template_kwargs or {})}
        if tools is not None:
            variables["tools"] = list(tools)
        rendered = await asyncio.gather(
            *(
                self._open().render_chat(
                    list(each),
                    continue_final_message=continue_final_message,
                    chat_template=chat_template or "",
                    **({} if timeout is None else {"timeout": timeout}),
                    **variables,
                )
                for each in conversations
            )
        )
        ids = [each["ids"] for each in rendered]
        return await self.generate(
            input_ids=ids if is_list else ids[0],
            sampling_params=sampling_params,
            use_tqdm=use_tqdm,
            timeout=timeout,
            **options,
        )

    async def open_session(
        self, capacity_of_str_len: int = 0, session_id: Optional[str] = None, timeout: Optional[float] = None
    ) -> str:
        """Opens a session. Returns its id, for session_params of generate(). The session ends `timeout` seconds after
        its last turn; None: an hour. capacity_of_str_len is SGLang's, and has no use."""
        return (await self._open().open_conversation(session_id or "", timeout))["id"]

    async def close_session(self, session_id: str, timeout: float = CALL_TIMEOUT_S) -> None:
        await self._open().close_conversation(session_id, timeout)

    async def tokenize(self, text: str, add_special_tokens: bool = True, timeout: float = CALL_TIMEOUT_S) -> list[int]:
        return (await self._open().tokenize(text, add_special_tokens, timeout))["ids"]

    async def detokenize(
        self, ids: Sequence[int], skip_special_tokens: bool = False, timeout: float = CALL_TIMEOUT_S
    ) -> str:
        return (await self._open().detokenize(ids, skip_special_tokens, timeout)).get("text", "")
