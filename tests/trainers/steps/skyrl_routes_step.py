"""SkyRL's RemoteInferenceClient and its trace of routes, unmodified: a turn, then the next one from
its first new row on.

Replacements of Python 3.12, and of packages that these do not use, by line:
"""

import asyncio
import json
import sys
import typing

import typing_extensions

if sys.version_info < (3, 12):
    typing.TypedDict = typing_extensions.TypedDict  # shim: pydantic requires this before Python 3.12

from torch.nothing import provide

provide("cloudpathlib")  # shim: packages of which only names are used

from skyrl.backends.skyrl_train.inference_servers.remote_inference_client import RemoteInferenceClient  # noqa: E402
from skyrl.backends.skyrl_train.utils.routed_experts import RoutedExpertTrace  # noqa: E402


async def main(url, prompt, num_tokens):
    trace, tokens = RoutedExpertTrace(), list(prompt)
    client = RemoteInferenceClient(
        proxy_url=url,
        server_urls=[url],
        model_name="stories-moe",
        data_parallel_size=1,
        enable_return_routed_experts=True,
    )
    async with client:
        for turn in ([], [11, 12, 13]):  # the text of a tool between two turns
            tokens += turn
            got = await client.generate(
                {
                    "prompt_token_ids": [tokens],
                    "sampling_params": {"temperature": 0.0, "max_tokens": num_tokens, "ignore_eos": True},
                    "routed_experts_prompt_starts": [trace.prompt_start],
                }
            )
            [output], [rows] = got["response_ids"], got["rollout_expert_indices"]
            trace.record_generation(
                prompt_token_count=len(tokens), generated_token_count=len(output), routed_experts=rows
            )
            tokens = tokens + output
    rows = trace.finalize(token_count=len(tokens), loss_mask=[1] * len(tokens))
    print(json.dumps({"tokens": tokens, "rows": rows.tolist()}))


asyncio.run(main(sys.argv[1], json.loads(sys.argv[3]), int(sys.argv[4])))
