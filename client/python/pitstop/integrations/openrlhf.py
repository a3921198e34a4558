"""OpenRLHF (0.11): call install() before create_vllm_engines, and its rollout actors use pitstop engines.

    import pitstop.integrations.openrlhf
    pitstop.integrations.openrlhf.install()

The trainer sends weights as NCCL broadcasts, one parameter at a time, or as CUDA IPC handles, which the actor copies
through host memory. In both cases, all parameters form one update, which takes effect with the last of them.
"""

from __future__ import annotations

from typing import Any, Optional

import ray
from openrlhf.trainer.ray import vllm_engine
from openrlhf.utils.agent import SingleTurnAgentExecutor

from ..arrays import array_of
from ..async_engine import AsyncEngine
from ..errors import PitstopError
from .vllm_like import BroadcastUpdate, VllmLike

Base = vllm_engine.RolloutRayActor.__ray_metadata__.modified_class


class PitstopRolloutActor(Base):
    """OpenRLHF's own actor, with pitstop in place of vLLM's workers."""

    async def __init__(
        self,
        model: str,
        tensor_parallel_size: int = 1,
        agent_func_path: Optional[str] = None,
        remote_rm_url: Optional[str] = None,
        logprobs_mode: Optional[str] = None,
        pitstop_options: Optional[dict[str, Any]] = None,
        **kwargs: Any,
    ):
        if kwargs.get("limit_mm_per_prompt"):
            raise PitstopError("unsupported", "max_images_per_prompt: models read and write only text")
        load = vllm_engine._load_agent_executor
        self.executor = load(agent_func_path) if agent_func_path else SingleTurnAgentExecutor(remote_rm_url)
        self.kwargs = kwargs
        engine = await AsyncEngine(model, tp=tensor_parallel_size, **(pitstop_options or {})).start()
        self.llm = VllmLike(engine, logprobs_mode)
        self._mm_pad_token_ids = None
        self._update = BroadcastUpdate(engine)
        self._copies: dict[str, Any] = {}

    async def init_process_group(
        self, master_address, master_port, rank_offset, world_size, group_name, backend, use_ray
    ):
        if use_ray:
            raise PitstopError("unsupported", "use_ray: the workers join by NCCL, not by Ray's collectives")
        info = {"master_address": master_address, "master_port": master_port, "rank_offset": rank_offset}
        info.update(world_size=world_size, backend=backend)
        return await self.llm.collective_rpc("init_weight_transfer_engine", kwargs={"init_info": info})

    async def update_weight(self, name, dtype, shape, empty_cache=False):
        await self._update.update_tensor(name, dtype, shape, is_last=empty_cache)

    async def update_weight_cuda_ipc(self, name, dtype, shape, ipc_handles, empty_cache=False):
        function, arguments = next(iter(ipc_handles.values()))
        self._copies[name] = array_of(name, function(*arguments)).copy()
        if empty_cache:  # set for the last parameter
            copies, self._copies = self._copies, {}
            await self.llm.engine.update_weights(copies, partial=True)


def install(**pitstop_options: Any) -> None:
    """Makes create_vllm_engines use these actors; `pitstop_options` are AsyncEngine's."""

    class Actor(PitstopRolloutActor):
        async def __init__(self, *args: Any, **kwargs: Any):
            await super().__init__(*args, pitstop_options=pitstop_options, **kwargs)

    vllm_engine.RolloutRayActor = ray.remote(Actor)
