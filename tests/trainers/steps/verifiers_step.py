"""verifiers, whose environments are those of prime-rl: rollouts of a taskset as it evaluates (chats) and as it trains
(tokens in, tokens out, by /inference/v1/generate), before an update and after it.

No line of verifiers is replaced. Prints the tokens and log-probabilities of the rollouts that train, and the texts and
rewards of all.
"""

import asyncio
import json
import os
import pathlib
import sys

import requests
import verifiers.v1 as vf
from verifiers.v1.envs.single_agent import SingleAgentEnv, SingleAgentEnvConfig
from verifiers.v1.harnesses.null.harness import NullHarnessConfig
from verifiers.v1.runtimes import SubprocessConfig

SAMPLING = {"temperature": 0.0, "max_tokens": 12}


async def rollouts(client, model):
    config = SingleAgentEnvConfig(
        taskset={"id": "story_tasks"},
        agent=vf.AgentConfig(harness=NullHarnessConfig(id="null"), runtime=SubprocessConfig()),
    )
    environment = SingleAgentEnv(config)
    context = vf.ModelContext(client=client, model=model, sampling=vf.SamplingConfig(**SAMPLING))
    async with environment.serving():
        slots = [slot for task in environment.taskset for slot in environment.slots(task, 2)]
        episodes = await asyncio.gather(*(environment.run_slot(slot, context) for slot in slots))
    told = []
    for episode in episodes:
        if not episode.ok:
            raise RuntimeError(repr([*episode.errors, *(trace.errors for trace in episode.traces)]))
        (trace,) = episode.traces
        nodes = [node for node in trace.nodes if node.sampled and node.token_ids]
        told.append(
            {
                "text": trace.assistant_messages[-1].content,
                "reward": trace.reward,
                "ids": [token for node in nodes for token, is_kept in zip(node.token_ids, node.mask) if is_kept],
                "logprobs": [value for node in nodes for value in node.logprobs],
            }
        )
    return told


def main(url, other, directory):
    os.environ["PATH"] = f"{pathlib.Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # of uv
    evaluating = vf.EvalClientConfig(base_url=f"{url}/v1", api_key_var="PITSTOP_KEY")
    training = vf.TrainClientConfig(base_url=f"{url}/v1", api_key_var="PITSTOP_KEY", renderer_model_name=directory)
    said = {"eval": [], "train": []}
    for is_updated in (False, True):
        if is_updated:
            update = {"model_path": other, "flush_cache": True}
            requests.post(f"{url}/pause_generation", json={"mode": "retract"}, timeout=60).raise_for_status()
            requests.post(f"{url}/update_weights_from_disk", json=update, timeout=60).raise_for_status()
            requests.post(f"{url}/continue_generation", json={}, timeout=60).raise_for_status()
        said["eval"].append(asyncio.run(rollouts(evaluating, "stories")))
        said["train"].append(asyncio.run(rollouts(training, "stories")))
    print(json.dumps(said))


main(*sys.argv[1:4])
