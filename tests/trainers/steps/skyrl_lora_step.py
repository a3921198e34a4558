"""SkyRL's RemoteInferenceClient: loads an adapter under one name, replaces it in place with a request open, and unloads it.

Replacements, by line:
"""

import asyncio
import json
import sys
import typing

import typing_extensions

if sys.version_info < (3, 12):
    typing.TypedDict = typing_extensions.TypedDict  # shim: pydantic requires this before Python 3.12

from skyrl.backends.skyrl_train.inference_servers.remote_inference_client import (
    SKYRL_LORA_ADAPTER_NAME,
    RemoteInferenceClient,
)

from weights import NUM_TOKENS, PROMPT


async def main(url, _other, *directories):
    async with RemoteInferenceClient(
        proxy_url=url, server_urls=[url], model_name="stories", data_parallel_size=1, uses_lora_weight_sync=True
    ) as client:
        [prompt] = await client.tokenize([PROMPT])

        async def sample(model, num_tokens=NUM_TOKENS, **more):
            params = {"temperature": 0.0, "max_tokens": num_tokens, **more}
            got = await client.generate({"prompt_token_ids": [prompt], "sampling_params": params}, model=model)
            return got["response_ids"][0]

        said = {"base": await sample("stories"), "steps": []}
        open_request = None
        for directory in directories:
            await client.pause()
            await client.load_lora_adapter(SKYRL_LORA_ADAPTER_NAME, directory)
            await client.resume()
            said["steps"].append(await sample(SKYRL_LORA_ADAPTER_NAME))
            if open_request is None:
                open_request = asyncio.ensure_future(sample(SKYRL_LORA_ADAPTER_NAME, 300, ignore_eos=True))
                await asyncio.sleep(0)
        said["open"] = len(await open_request)
        said["base_after"] = await sample("stories")
        await client.unload_lora_adapter(SKYRL_LORA_ADAPTER_NAME)
        try:
            await sample(SKYRL_LORA_ADAPTER_NAME)
            said["unloaded"] = "it answers"
        except Exception as error:  # of any class
            said["unloaded"] = str(error)
    print(json.dumps(said))


asyncio.run(main(*sys.argv[1:]))
