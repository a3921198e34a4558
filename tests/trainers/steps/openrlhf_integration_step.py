"""pitstop.integrations.openrlhf on OpenRLHF's own actor, without Ray's cluster: its agents' calls and its trainer's.

What stands in for vLLM, which OpenRLHF imports, and for NCCL, by line:
"""

import asyncio
import dataclasses
import json
import os
import sys
import types

sys.path.insert(0, os.environ["PITSTOP_CLIENT"])


@dataclasses.dataclass
class SamplingParams:
    temperature: float = 1.0
    max_tokens: int = 16
    logprobs: int = None
    n: int = 1


vllm = types.ModuleType("vllm")  # shim: vLLM is not installed
vllm.__version__, vllm.SamplingParams = "0.33.0", SamplingParams
inputs, utils = types.ModuleType("vllm.inputs"), types.ModuleType("vllm.utils")
inputs.TokensPrompt, utils.random_uuid = dict, lambda: os.urandom(8).hex()  # shim: vLLM's are a dict and such a text
sys.modules.update({"vllm": vllm, "vllm.inputs": inputs, "vllm.utils": utils})

import torch  # noqa: E402
from host_group import HostBroadcast, as_bytes  # noqa: E402
from openrlhf.trainer.ray import vllm_engine  # noqa: E402
from pitstop.integrations import openrlhf as integration  # noqa: E402
from torch.multiprocessing.reductions import reduce_tensor  # noqa: E402
from weights import NUM_TOKENS, load  # noqa: E402

torch.multiprocessing.set_sharing_strategy("file_system")


async def main(url, other, prompt):
    integration.install(threads=1)
    assert vllm_engine.RolloutRayActor.__ray_metadata__.modified_class is not integration.Base
    actor = integration.PitstopRolloutActor.__new__(integration.PitstopRolloutActor)
    stories = os.path.join(os.path.dirname(other), "stories")
    await actor.__init__(stories, tensor_parallel_size=1, dtype="bfloat16", enforce_eager=True,
                         pitstop_options={"threads": 1})

    async def sample():
        params = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, logprobs=1)
        output = await actor.generate(json.loads(prompt), params)
        (completion,) = output.outputs
        assert all(token in row for token, row in zip(completion.token_ids, completion.logprobs))
        assert completion.finish_reason == "length" and output.prompt_token_ids == json.loads(prompt)
        return completion.token_ids

    loop = asyncio.get_running_loop()
    said = {"before": await sample()}
    tensors = load(other)
    with HostBroadcast("vllm_weight_transfer", num_workers=1) as group:
        joined = asyncio.ensure_future(actor.init_process_group(
            group.host, group.port, 1, 2, "openrlhf", "host", False))  # shim: nccl
        await loop.run_in_executor(None, group.accept)
        await joined
        await actor.pause_generation()
        for i, (name, tensor) in enumerate(tensors.items(), 1):
            call = asyncio.ensure_future(
                actor.update_weight(name, tensor.dtype, tensor.shape, empty_cache=i == len(tensors)))
            await loop.run_in_executor(None, group.broadcast, as_bytes(tensor))
            await call
        await actor.resume_generation()
        await actor.reset_prefix_cache()
        said["after"] = await sample()
    await actor.sleep(level=2)
    await actor.wake_up(tags=["weights"])
    for i, (name, tensor) in enumerate(tensors.items(), 1):
        handle = reduce_tensor(tensor.clone().share_memory_())
        await actor.update_weight_cuda_ipc(name, tensor.dtype, tensor.shape, {"0": handle}, i == len(tensors))
    await actor.wake_up(tags=["kv_cache"])
    said["colocated"] = await sample()
    assert actor.get_num_unfinished_requests() == 0
    await actor.llm.engine.close()
    print(json.dumps(said))


asyncio.run(main(*sys.argv[1:4]))
