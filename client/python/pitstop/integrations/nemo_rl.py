"""NeMo-RL: a GenerationInterface in the driver's process, with a tree on this machine.

    generation = PitstopGeneration(model, pad_token_id=tokenizer.pad_token_id, max_new_tokens=512)

NeMo-RL's policies send weights by NCCL with a store and a warm-up of their own, or by CUDA IPC over ZeroMQ. Both are
refused by name. refit() takes the state dict of a policy, through shared memory; refit_from_disk() takes a
checkpoint.
"""

from __future__ import annotations

from typing import Any, Optional

import torch
from nemo_rl.distributed.batched_data_dict import BatchedDataDict
from nemo_rl.models.generation.interfaces import GenerationInterface

from ..arrays import NamedTensors
from ..engine import Engine
from ..errors import PitstopError
from ..outputs import Update


class PitstopGeneration(GenerationInterface):
    """Owns: the tree, until shutdown()."""

    def __init__(self, model: str, pad_token_id: int, max_new_tokens: int, **options: Any):
        self.engine = Engine(model, **options)
        self._pad = pad_token_id
        self._sampling: dict[str, Any] = {"max_new_tokens": max_new_tokens}

    def configure(self, **sampling: Any) -> None:
        """Sets temperature, top_p, top_k, stop_token_ids, ... of every later request."""
        self._sampling.update(sampling)

    def generate(self, data: Any, greedy: bool = False, guided_decoding_config: Optional[Any] = None) -> Any:
        if guided_decoding_config is not None:
            raise PitstopError("unsupported", "guided_decoding_config: outputs are not constrained")
        lengths = data["input_lengths"].tolist()
        prompts = [row[:length].tolist() for row, length in zip(data["input_ids"], lengths)]
        stops = data.get("stop_strings") or [None] * len(prompts)
        of_greedy = {"temperature": 0.0} if greedy else {}
        how = [{**self._sampling, **of_greedy, **({"stop": stop} if stop else {})} for stop in stops]
        outs = self.engine.generate(input_ids=prompts, sampling_params=how, return_logprob=True, use_tqdm=False)
        ends = [length + len(out.output_ids) for length, out in zip(lengths, outs)]
        ids = torch.full((len(prompts), max(ends)), self._pad, dtype=data["input_ids"].dtype)
        logprobs = torch.zeros(ids.shape, dtype=torch.float32)
        for i, (prompt, out) in enumerate(zip(prompts, outs)):
            ids[i, : ends[i]] = torch.tensor(prompt + out.output_ids)
            logprobs[i, lengths[i] : ends[i]] = torch.tensor(out.logprobs)
        return BatchedDataDict(
            {
                "output_ids": ids,
                "logprobs": logprobs,
                "generation_lengths": torch.tensor([len(out.output_ids) for out in outs]),
                "unpadded_sequence_lengths": torch.tensor(ends),
                "truncated": torch.tensor([out.finish.reason == "length" for out in outs]),
            }
        )

    def prepare_for_generation(self, *_: Any, tags: Optional[list[str]] = None, **__: Any) -> bool:
        self.engine.wake_up(tags)
        return True

    def finish_generation(self, *_: Any, **__: Any) -> bool:
        """Like vLLM's: frees the GPU's memory and keeps the weights on the host."""
        self.engine.sleep(level=1)
        return True

    def refit(self, state_dict: NamedTensors, label: str = "") -> Update:
        return self.engine.update_weights(state_dict, label)

    def refit_from_disk(self, path: str, label: str = "") -> Update:
        return self.engine.update_weights_from_disk(path, label=label)

    def invalidate_kv_cache(self) -> bool:
        return self.engine.reset_prefix_cache()

    def prepare_refit_info(self, state_dict_info: dict[str, Any]) -> None:
        """Does nothing: the checkpoint has the names and shapes."""

    def init_collective(self, ip: str, port: int, world_size: int, **_: Any) -> list:
        raise PitstopError("unsupported", "init_collective: NeMo-RL's NCCL group is not joined; use refit()")

    def update_weights_from_collective(self, *_: Any, **__: Any) -> list:
        raise PitstopError("unsupported", "update_weights_from_collective: use refit()")

    def update_weights_via_ipc_zmq(self, *_: Any, **__: Any) -> list:
        raise PitstopError("unsupported", "update_weights_via_ipc_zmq: use refit()")

    def shutdown(self) -> bool:
        self.engine.close()
        return True
