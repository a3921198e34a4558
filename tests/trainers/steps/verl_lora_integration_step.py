"""pitstop.integrations.verl on verl's own base classes: LoRA steps as verl's workers make them (ActorRolloutRefWorker's
update_weights), with the base sent first. Tensors are NumPy's, and actors are called as plain objects.
"""

import asyncio
import dataclasses
import json
import os
import pathlib
import sys

from torch.nothing import provide

provide("tensordict", "codetiming", "pylatexenc", "peft", "pyarrow")  # shim: names alone
sys.path.insert(0, os.environ["PITSTOP_CLIENT"])

from verl.workers.rollout.base import BaseRollout  # noqa: E402
from verl.workers.rollout.replica import RolloutReplica, RolloutReplicaRegistry  # noqa: E402

import pitstop.integrations.verl as integration  # noqa: E402
from pitstop.errors import PitstopError  # noqa: E402
from weights import NUM_TOKENS, load, load_floats  # noqa: E402

ADAPTED = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@dataclasses.dataclass
class Config:
    """The used settings of verl's RolloutConfig, which itself requires a GPU."""

    tensor_model_parallel_size: int = 1
    data_parallel_size: int = 1
    prompt_length: int = 512
    response_length: int = NUM_TOKENS
    free_cache_engine: bool = True


@dataclasses.dataclass
class ModelConfig:
    lora_rank: int = 4
    lora: dict = dataclasses.field(default_factory=dict)


def wrapped(name):
    """As verl's replace_lora_wrapper names the base's weights."""
    module, _, kind = name.rpartition(".")
    return f"{module}.base_layer.{kind}" if module.endswith(ADAPTED) else name


def arrays(tensors):
    return {name: tensor.array for name, tensor in tensors.items()}


async def main(url, bard, prompt, *directories):
    assert issubclass(integration.PitstopReplica, RolloutReplica)
    assert issubclass(integration.PitstopRollout, BaseRollout)
    integration.register()
    assert RolloutReplicaRegistry.get("pitstop") is integration.PitstopReplica
    assert integration.adapter_rank(ModelConfig(0, {"rank": 8})) == 8
    assert integration.adapter_rank(ModelConfig(4, {"merge": True})) == 0
    stories = os.path.join(os.path.dirname(bard), "stories")
    server = integration.PitstopServer()
    await server.start(bard, Config(), lora_rank=4, threads=1)
    run_dir = await server.get_run_dir()

    def rollout_of(model_config):
        return integration.PitstopRollout(Config(), model_config, None, run_dir=run_dir)

    async def sample(request_id):
        params = {"temperature": 0.0, "logprobs": True}
        return (await server.generate(json.loads(prompt), params, request_id)).token_ids

    rollout = rollout_of(ModelConfig())
    said = {"steps": []}
    for step, directory in enumerate(directories):
        config = json.loads((pathlib.Path(directory) / "adapter_config.json").read_text())
        config["target_modules"] = set(config["target_modules"])  # LoraConfig.to_dict()
        await rollout.release()
        await rollout.resume(["weights"])
        rollout.sleep_level = 1
        if step == 0:
            base = {wrapped(name): array for name, array in arrays(load(stories)).items()}
            assert any(".base_layer." in name for name in base)
            await rollout.update_weights(iter(base.items()), peft_config=config, base_sync_done=False, global_steps=1)
            before = await server.engine.adapters()
            assert before == [], before
        await rollout.update_weights(
            iter(arrays(load_floats(directory)).items()), peft_config=config, base_sync_done=True, global_steps=step + 1
        )
        await rollout.resume(["kv_cache"])
        said["steps"].append(await sample(f"step {step}"))
    (adapter,) = await server.engine.adapters()
    said["adapter"] = [adapter.name, adapter.label]
    await server.sleep()
    await server.wake_up()
    assert await sample("awake") == said["steps"][-1]
    merged = rollout_of(ModelConfig(lora={"merge": True}))
    try:
        await merged.update_weights(iter([]), peft_config=config, base_sync_done=True)
    except PitstopError as error:
        said["refused"] = [error.code, str(error)]
    await rollout._engine.close()
    await server.engine.close()
    print(json.dumps(said))


asyncio.run(main(*sys.argv[1:]))
