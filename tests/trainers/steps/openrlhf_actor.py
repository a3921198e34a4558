"""OpenRLHF's rollout actor with pitstop's engine (pitstop.integrations.openrlhf), without Ray's
cluster.

Replacements of vLLM, which OpenRLHF imports, by line:
"""

import dataclasses
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
inputs.TokensPrompt, utils.random_uuid = (
    dict,
    lambda: os.urandom(8).hex(),
)  # shim: vLLM's are a dict and a text like these
sys.modules.update({"vllm": vllm, "vllm.inputs": inputs, "vllm.utils": utils})

from openrlhf.trainer.ray import vllm_engine  # noqa: E402

from pitstop.integrations import openrlhf as integration  # noqa: E402
from weights import NUM_TOKENS  # noqa: E402


async def start(model, tensor_parallel_size, options):
    """The actor that create_vllm_engines would make. `options`: AsyncEngine's."""
    integration.install(**options)
    assert vllm_engine.RolloutRayActor.__ray_metadata__.modified_class is not integration.Base
    actor = integration.PitstopRolloutActor.__new__(integration.PitstopRolloutActor)
    await actor.__init__(
        model, tensor_parallel_size=tensor_parallel_size, dtype="bfloat16", enforce_eager=True, pitstop_options=options
    )
    return actor


async def sample(actor, prompt):
    """The greedy ids that follow these ids."""
    params = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, logprobs=1)
    output = await actor.generate(prompt, params)
    (completion,) = output.outputs
    assert all(token in row for token, row in zip(completion.token_ids, completion.logprobs))
    assert completion.finish_reason == "length" and output.prompt_token_ids == prompt
    return completion.token_ids
