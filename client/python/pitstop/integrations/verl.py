"""verl (0.9): call register() in every process that reads its configuration, and set
actor_rollout_ref.rollout.name=pitstop.

The replica starts one tree in a Ray actor of this machine. A hybrid worker's rollout joins that tree, and pushes the
weights through shared memory while it is released, paused or generating.

With actor.model.lora_rank (or lora.rank) and lora.merge=False the rollout loads verl's LoRA tensors as an adapter. From
then on each request names it. The base stays: a sleep keeps it in host memory, because verl does not send it again.
"""

from __future__ import annotations

import os
from typing import Any, Optional

import ray
import verl.workers.rollout.base as rollout_base
from verl.workers.rollout.base import BaseRollout
from verl.workers.rollout.replica import RolloutReplica, RolloutReplicaRegistry, TokenOutput

from ..async_engine import AsyncEngine
from ..errors import PitstopError

NAME = "pitstop"
ADAPTER = "verl_actor"  # the adapter that is trained

RANK_MAX = 64  # without --max-adapter-rank


def adapter_rank(model_config: Any) -> int:
    """The rank of the adapter that verl sends. 0: verl trains none, or merges it into the weights that it sends."""
    lora = getattr(model_config, "lora", None) or {}  # Megatron's settings; FSDP's is lora_rank
    if lora.get("merge", False):
        return 0
    return max(int(getattr(model_config, "lora_rank", 0) or 0), int(lora.get("rank", 0) or 0))


def base_name(name: str) -> str:
    """The model's name of a tensor of the base. verl names a weight that LoRA adapts as vLLM wraps it."""
    return name.replace(".base_layer.", ".")


def _actor_name(replica_rank: int) -> str:
    return f"pitstop_server_{replica_rank}"


class PitstopServer:
    """A tree in a Ray actor, with the calls of verl's agent loops and replicas."""

    async def start(self, model_path: str, config: Any, lora_rank: int = 0, **options: Any) -> None:
        """`lora_rank`: that of the adapter that the rollout will load; 0: it loads none."""
        self._config = config
        self._steps: Optional[int] = None
        self._lora_rank = lora_rank
        self._has_adapter = False
        if lora_rank > RANK_MAX:
            options.setdefault("max_adapter_rank", lora_rank)
        shape = {"tp": config.tensor_model_parallel_size, "dp": config.data_parallel_size}
        self.engine = await AsyncEngine(model_path, port=0, **shape, **options).start()

    async def get_server_address(self) -> tuple[str, int]:
        host, _, port = self.engine.url.removeprefix("http://").rpartition(":")
        return host, int(port)

    async def get_run_dir(self) -> str:
        return self.engine.run_dir

    async def _adapter(self) -> Optional[str]:
        """The adapter for a request: the rollout's, once it is loaded."""
        if self._lora_rank and not self._has_adapter:
            self._has_adapter = any(each.name == ADAPTER for each in await self.engine.adapters())
        return ADAPTER if self._has_adapter else None

    async def generate(
        self,
        prompt_ids: Any,
        sampling_params: dict[str, Any],
        request_id: str,
        image_data: Any = None,
        video_data: Any = None,
        **_: Any,
    ) -> TokenOutput:
        how = dict(sampling_params)
        wants_logprobs = bool(how.pop("logprobs", False))
        room = self._config.prompt_length + self._config.response_length - len(prompt_ids)
        if "max_new_tokens" not in how and "max_tokens" not in how:
            how["max_new_tokens"] = max(1, min(self._config.response_length, room))
        out = await self.engine.generate(
            input_ids=list(prompt_ids),
            sampling_params=how,
            rid=request_id,
            return_logprob=wants_logprobs,
            image_data=image_data,
            video_data=video_data,
            adapter=await self._adapter(),
        )
        return TokenOutput(
            token_ids=out.output_ids,
            log_probs=out.logprobs if wants_logprobs else None,
            stop_reason=out.finish.reason,
            extra_fields={"global_steps": self._steps, "weight_epochs": out.epochs},
        )

    async def set_global_steps(self, global_steps: int) -> None:
        self._steps = global_steps

    async def sleep(self) -> None:
        if self._config.free_cache_engine:
            await self.engine.sleep(level=1 if self._lora_rank else 2)

    async def wake_up(self) -> None:
        await self.engine.wake_up()

    async def clear_kv_cache(self) -> None:
        await self.engine.flush_cache()

    async def release_kv_cache(self) -> None:
        await self.engine.release_memory_occupation(["kv_cache"])

    async def resume_kv_cache(self) -> None:
        await self.engine.resume_memory_occupation(["kv_cache"])

    async def abort_all_requests(self, reject_request: bool = False) -> None:
        await self.engine.pause("abort")

    async def resume_generation(self) -> None:
        await self.engine.resume()


class PitstopReplica(RolloutReplica):
    async def launch_servers(self) -> None:
        actor = ray.remote(PitstopServer).options(
            name=_actor_name(self.replica_rank), max_concurrency=self.max_concurrency
        )
        server = actor.remote()
        await server.start.remote(self.model_config.path, self.config, lora_rank=adapter_rank(self.model_config))
        host, port = await server.get_server_address.remote()
        self.servers = [server]
        self._server_handle, self._server_address = server, f"{host}:{port}"


class PitstopRollout(BaseRollout):
    """A hybrid worker's side: rank 0 of each replica sends, all ranks take part in gathering."""

    def __init__(self, config: Any, model_config: Any, device_mesh: Any, replica_rank: int = -1, run_dir: str = ""):
        super().__init__(config, model_config, device_mesh)
        world = self.config.tensor_model_parallel_size * self.config.data_parallel_size
        rank = int(os.environ.get("RANK", "0"))
        self._is_sender = rank % world == 0
        self._replica_rank = rank // world if replica_rank == -1 else replica_rank
        self._run_dir = run_dir  # empty: the replica's actor is asked for it
        self.sleep_level = 1 if adapter_rank(self.model_config) else 2  # verl's workers set it, too
        self._engine: Optional[AsyncEngine] = None

    async def _join(self) -> AsyncEngine:
        if self._engine is None:
            run_dir = self._run_dir
            if not run_dir:
                run_dir = await ray.get_actor(_actor_name(self._replica_rank)).get_run_dir.remote()
            self._engine = await AsyncEngine(run_dir=run_dir).start()
        return self._engine

    async def resume(self, tags: list[str]) -> None:
        if self._is_sender and self.config.free_cache_engine:
            await (await self._join()).wake_up(tags)

    async def release(self) -> None:
        if self._is_sender and self.config.free_cache_engine:
            await (await self._join()).sleep(level=self.sleep_level)

    async def update_weights(
        self,
        weights: Any,
        wire_format: str = "named_tensors",
        global_steps: Optional[int] = None,
        peft_config: Any = None,
        base_sync_done: bool = False,
        **_more: Any,
    ) -> None:
        """Sends a model. With `peft_config`, the weights are the adapter's if the base has them already
        (`base_sync_done`), and otherwise the base's."""
        if wire_format != "named_tensors":
            raise PitstopError("unsupported", f"wire_format must be named_tensors, not {wire_format}")
        if peft_config and not adapter_rank(self.model_config):
            raise PitstopError(
                "unsupported",
                "peft_config: the model's configuration has lora_rank 0 or lora.merge, so no request would name the "
                "adapter; set lora_rank (Megatron: lora.rank) and lora.merge=False",
            )
        # Every rank iterates over all tensors: gathering a sharded tensor needs all ranks.
        tensors = dict(weights) if self._is_sender else [None for _ in weights]
        if not self._is_sender:
            return
        label = "" if global_steps is None else f"step {global_steps}"
        engine = await self._join()
        if peft_config and base_sync_done:
            await engine.load_adapter(ADAPTER, tensors, peft_config, label=label)
        else:
            await engine.update_weights([(base_name(name), each) for name, each in tensors.items()], label)


def register() -> None:
    """Makes rollout.name=pitstop available."""
    RolloutReplicaRegistry.register(NAME, lambda: PitstopReplica)
    rollout_base._ROLLOUT_REGISTRY[(NAME, "async")] = f"{__name__}.PitstopRollout"
