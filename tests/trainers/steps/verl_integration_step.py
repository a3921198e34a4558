"""pitstop.integrations.verl on verl's own base classes, without Ray's cluster: the server's calls, and a hybrid worker's.

Nothing of verl is replaced; actors are called as plain objects.
"""

import asyncio
import dataclasses
import json
import os
import sys
import types

sys.path.insert(0, os.environ["PITSTOP_CLIENT"])

from verl.workers.rollout.base import get_rollout_class  # noqa: E402
from verl.workers.rollout.replica import RolloutReplica, RolloutReplicaRegistry  # noqa: E402

import pitstop.integrations.verl as integration  # noqa: E402
from weights import NUM_TOKENS, load  # noqa: E402


@dataclasses.dataclass
class Config:
    """The used settings of verl's RolloutConfig, which itself requires a GPU."""

    tensor_model_parallel_size: int = 1
    data_parallel_size: int = 1
    prompt_length: int = 512
    response_length: int = NUM_TOKENS
    free_cache_engine: bool = True


async def main(url, other, prompt):
    integration.register()
    assert RolloutReplicaRegistry.get("pitstop") is integration.PitstopReplica
    assert issubclass(integration.PitstopReplica, RolloutReplica)
    assert get_rollout_class("pitstop") is integration.PitstopRollout
    stories = os.path.join(os.path.dirname(other), "stories")
    server = integration.PitstopServer()
    await server.start(stories, Config(), threads=1)
    host, port = await server.get_server_address()
    assert host == "127.0.0.1" and port > 0
    rollout = integration.PitstopRollout(Config(), types.SimpleNamespace(), None, run_dir=await server.get_run_dir())

    async def sample(request_id, **how):
        params = {"temperature": 0.0, "logprobs": True, **how}
        return await server.generate(json.loads(prompt), params, request_id)

    first = await sample("a")
    assert len(first.log_probs) == len(first.token_ids) and first.stop_reason == "length"
    said = {"before": first.token_ids}
    long = asyncio.ensure_future(sample("b", max_tokens=400, ignore_eos=True))
    await asyncio.sleep(0.05)
    await server.abort_all_requests()
    assert (await long).stop_reason == "abort"
    await server.resume_generation()
    await rollout.update_weights(iter(load(other).items()), global_steps=1)
    await server.set_global_steps(1)
    await server.clear_kv_cache()
    after = await sample("c")
    assert after.extra_fields["global_steps"] == 1
    said["after"] = after.token_ids
    await rollout.release()
    await rollout.resume(["weights"])
    await rollout.update_weights(iter(load(other).items()), global_steps=2)
    await rollout.resume(["kv_cache"])
    said["colocated"] = (await sample("d")).token_ids
    await server.sleep()
    await rollout.resume(["weights"])
    await rollout.update_weights(iter(load(stories).items()))
    await server.wake_up()
    assert (await sample("e")).token_ids == said["before"]
    await rollout._engine.close()
    await server.engine.close()
    print(json.dumps(said))


asyncio.run(main(*sys.argv[1:4]))
