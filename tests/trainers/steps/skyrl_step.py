"""SkyRL's RemoteInferenceClient: samples, pauses, updates with its own calls, resumes, samples;
then around a sleep.

Replacements of NCCL, by line:
"""

import asyncio
import json
import sys
import typing

import typing_extensions

if sys.version_info < (3, 12):
    typing.TypedDict = typing_extensions.TypedDict  # shim: pydantic requires this before Python 3.12

from skyrl.backends.skyrl_train.inference_servers.remote_inference_client import RemoteInferenceClient

from host_group import HostBroadcast, as_bytes
from weights import NUM_TOKENS, PROMPT, chunks, load


class InitInfo:
    """shim: BroadcastInitInfo's, with a `host` group in place of NCCL."""

    def __init__(self, group):
        self._group = group

    def for_servers(self, world_size_per_server, num_servers, dp_size=1):
        return [self]

    def to_api_payload(self):
        return {
            "master_address": self._group.host,
            "master_port": self._group.port,
            "rank_offset": 1,
            "world_size": self._group.num_workers + 1,
            "backend": "host",
        }


async def update(client, group, tensors, num_calls):
    for pairs in chunks(tensors, num_calls):
        info = {
            "names": [name for name, _ in pairs],
            "dtype_names": ["bfloat16"] * len(pairs),
            "shapes": [list(tensor.shape) for _, tensor in pairs],
        }
        call = asyncio.ensure_future(client.update_named_weights(info))
        for _, tensor in pairs:
            await asyncio.get_running_loop().run_in_executor(None, group.broadcast, as_bytes(tensor))
        await call


async def main(url, other):
    tensors = load(other)
    async with RemoteInferenceClient(
        proxy_url=url, server_urls=[url], model_name="stories", data_parallel_size=1
    ) as client:
        [prompt] = await client.tokenize([PROMPT])

        async def sample(num_tokens=NUM_TOKENS, **more):
            params = {"temperature": 0.0, "max_tokens": num_tokens, **more}
            got = await client.generate({"prompt_token_ids": [prompt], "sampling_params": params})
            return got["response_ids"][0]

        said = {"before": await sample()}
        with HostBroadcast("vllm_weight_transfer", num_workers=(await client.get_world_size())[0]) as group:
            joined = asyncio.ensure_future(client.init_weight_update_communicator(InitInfo(group)))
            await asyncio.get_running_loop().run_in_executor(None, group.accept)
            await joined
            long = asyncio.ensure_future(sample(400, ignore_eos=True))
            await asyncio.sleep(0)
            await client.pause()
            await update(client, group, tensors, 5)
            await client.resume()
            said["spanning"] = len(await long)  # frozen, or not begun yet: no token may be lost
            await client.reset_prefix_cache()
            said["after"] = await sample()
            await client.sleep(level=2)
            await client.wake_up(tags=["weights"])
            await update(client, group, tensors, 5)
            await client.wake_up(tags=["kv_cache"])
            said["colocated"] = await sample()
    print(json.dumps(said))


asyncio.run(main(*sys.argv[1:3]))
