"""SGLang's /generate for a whole fleet: requests continue at another replica when theirs dies."""

from __future__ import annotations

import json
from typing import Any, AsyncIterator, Mapping

from ..errors import PitstopError
from .http import Answer, Request, error_of

FIELDS = (
    "rid",
    "priority",
    "kv_tolerance",
    "kv_max_lag",
    "return_logprob",
    "logprob_start_len",
    "top_logprobs_num",
    "token_ids_logprob",
    "logprobs_mode",
    "session",
    "min_epoch",
)
NOT_HERE = (
    "this door serves only /generate, whose requests survive a replica's death. Each tree serves OpenAI's routes (--http), "
    "and so does a router in front of them (--router); their requests end with their replica"
)


def _said(output: Any) -> dict[str, Any]:
    return {"text": output.text, "output_ids": output.output_ids, "meta_info": output.meta_info}


class GenerateDoor:
    """The routes /generate and /health (200 once a replica is ready) of an AsyncFleet."""

    def __init__(self, fleet: Any):
        self._fleet = fleet

    async def handle(self, request: Request) -> Answer:
        if request.path == "/health" and request.method in ("GET", "HEAD"):
            return Answer("", 200 if self._fleet.num_ready else 503)
        if request.path.startswith("/v1/"):
            return error_of(501, f"{request.path}: {NOT_HERE}")
        if request.path != "/generate":
            return error_of(404, f"unknown path {request.path}; accepted are /generate and /health")
        if request.method != "POST":
            return error_of(405, "/generate takes POST")
        body = request.json()
        unknown = sorted(set(body) - {*FIELDS, "text", "input_ids", "sampling_params", "stream"})
        if unknown:
            raise PitstopError(
                "invalid_argument",
                f"unknown field {', '.join(unknown)}; accepted are {', '.join(sorted(FIELDS))}, "
                "text, input_ids, sampling_params, stream",
            )
        try:
            return await self._generate(body)
        except (ValueError, AttributeError, KeyError, IndexError) as error:
            raise PitstopError("invalid_argument", f"{type(error).__name__}: {error}") from None

    async def _generate(self, body: Mapping[str, Any]) -> Answer:
        given = {name: body[name] for name in FIELDS if body.get(name) is not None}
        prompts = {"prompt": body.get("text")} if body.get("text") is not None else {"input_ids": body.get("input_ids")}
        if body.get("stream"):
            outputs = await self._fleet.generate(
                sampling_params=body.get("sampling_params"), stream=True, **prompts, **given
            )
            return Answer(self._events(outputs), kind="text/event-stream")
        outputs = await self._fleet.generate(sampling_params=body.get("sampling_params"), **prompts, **given)
        return Answer(json.dumps([_said(each) for each in outputs] if isinstance(outputs, list) else _said(outputs)))

    async def _events(self, outputs: AsyncIterator[Any]) -> AsyncIterator[str]:
        """Events like SGLang's, each with all output so far; a late error is an event, too."""
        is_begun = False
        try:
            async for output in outputs:
                is_begun = True
                yield f"data: {json.dumps({**_said(output), 'index': output.index})}\n\n"
            yield "data: [DONE]\n\n"
        except PitstopError as error:
            if not is_begun:
                raise
            yield f"data: {json.dumps({'error': {'message': error.message, 'code': error.code}})}\n\n"
        finally:
            await outputs.aclose()
