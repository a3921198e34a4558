"""pitstop.integrations.openrlhf on OpenRLHF's own actor, without Ray's cluster: its agents' calls
and its trainer's.

Replacements of NCCL, by line (openrlhf_actor.py has those of vLLM):
"""

import asyncio
import json
import os
import sys

import torch
from torch.multiprocessing.reductions import reduce_tensor

import openrlhf_actor
from host_group import HostBroadcast, as_bytes
from weights import load

torch.multiprocessing.set_sharing_strategy("file_system")


async def main(url, other, prompt):
    stories = os.path.join(os.path.dirname(other), "stories")
    actor = await openrlhf_actor.start(stories, 1, {"threads": 1})

    def sample():
        return openrlhf_actor.sample(actor, json.loads(prompt))

    loop = asyncio.get_running_loop()
    said = {"before": await sample()}
    tensors = load(other)
    with HostBroadcast("vllm_weight_transfer", num_workers=1) as group:
        joined = asyncio.ensure_future(
            actor.init_process_group(group.host, group.port, 1, 2, "openrlhf", "host", False)
        )  # shim: nccl
        await loop.run_in_executor(None, group.accept)
        await joined
        await actor.pause_generation()
        for i, (name, tensor) in enumerate(tensors.items(), 1):
            call = asyncio.ensure_future(
                actor.update_weight(name, tensor.dtype, tensor.shape, empty_cache=i == len(tensors))
            )
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
